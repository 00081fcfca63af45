#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes fuzz/corpus/optimizer_groups: tables of groups, as docs/store-format.md has them."""

import struct

import seeds

F16, U8 = 2, 13


def table(groups=((b"layers.0", 20001), (b"head", 7)), version=1, dtype=F16, ratio=0.5, count=None):
    fixed = struct.pack("<8sIIdQ", b"nvsgroup", version, dtype, ratio,
                        len(groups) if count is None else count)
    return fixed + b"".join(struct.pack("<QI", numel, len(name)) + name for name, numel in groups)


SEEDS = {
    "two": table(),
    "one": table([(b"a", 1)]),
    "long": table([(b"n" * 511, 1 << 56)]),
    "too_long": table([(b"n" * 512, 1)]),
    "none": table([]),
    "no_name": table([(b"", 1)]),
    "no_elements": table([(b"a", 0)]),
    "zero_byte": table([(b"a\0b", 1)]),
    "count": table(count=1),
    "count_max": table(count=(1 << 64) - 1),
    "version": table(version=2),
    "dtype": table(dtype=U8),
    "ratio_nan": table(ratio=float("nan")),
    "ratio_2": table(ratio=2.0),
    "cut_off": table()[:50],
}

if __name__ == "__main__":
    seeds.write("optimizer_groups", SEEDS)
