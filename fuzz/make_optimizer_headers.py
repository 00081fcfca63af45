#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Makes fuzz/corpus/optimizer_header: the first byte says whether the counts are made to match the
length, as fuzz_optimizer_header.c has it; the layout is that of docs/store-format.md.
"""

import os
import struct

AS_IT_IS, MATCHED = range(2)
F32, F16, U8 = 1, 2, 13
LENT = (1 << 64) - 1


def header(ntiles=3, ngradients=1, ngroups=2, version=3, unfinished=0, tile_numel=1024, noffloaded=2,
           dtype=F32, dynamic=1, step=7, scale=65536.0, iteration=9, last_overflow=-1, hysteresis=2,
           lr=0.001, marks=None, groups=None):
    fixed = struct.pack("<8sIIQQQQQQIIQdqqQdddd", b"nvsoptim", version, unfinished, 77, tile_numel,
                        ntiles, noffloaded, ngradients, ngroups, dtype, dynamic, step, scale,
                        iteration, last_overflow, hysteresis, lr, 0.5, 2.0, 1.0)
    if marks is None:
        marks = bytes([1] * ntiles + [0] * ngradients)
    if groups is None:
        groups = [12345] * ngroups
    return fixed + marks + struct.pack(f"<{len(groups)}Q", *groups)


SEEDS = {
    "finished": (AS_IT_IS, header()),
    "unfinished": (AS_IT_IS, header(unfinished=1)),
    "half": (AS_IT_IS, header(dtype=F16, dynamic=0)),
    "lent": (AS_IT_IS, header(groups=[LENT, 0])),
    "matched": (MATCHED, header()),
    "no_tiles": (AS_IT_IS, header(ntiles=0, noffloaded=0)),
    "no_groups": (AS_IT_IS, header(ngroups=0)),
    "cut_off": (AS_IT_IS, header()[:100]),
    "version": (AS_IT_IS, header(version=2)),
    "tile": (AS_IT_IS, header(tile_numel=1000)),
    "tile_long": (AS_IT_IS, header(tile_numel=1 << 57)),
    "wraps": (AS_IT_IS, header()[:32] + struct.pack("<Q", (1 << 64) - 8) + header()[40:]),
    "offloaded": (AS_IT_IS, header(noffloaded=4)),
    "dtype": (AS_IT_IS, header(dtype=U8)),
    "step": (AS_IT_IS, header(step=1 << 60)),
    "scale": (AS_IT_IS, header(scale=float("inf"))),
    "overflow": (AS_IT_IS, header(last_overflow=10)),
    "hysteresis": (AS_IT_IS, header(hysteresis=0)),
    "lr": (AS_IT_IS, header(unfinished=1, lr=float("nan"))),
    "mark": (AS_IT_IS, header(marks=b"\1\2\0\0")),
    "group": (AS_IT_IS, header(groups=[1 << 60, 0])),
}


def main():
    directory = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus",
                             "optimizer_header")
    os.makedirs(directory, exist_ok=True)
    for name, (kind, data) in SEEDS.items():
        with open(os.path.join(directory, name), "wb") as file:
            file.write(bytes([kind]) + data)


if __name__ == "__main__":
    main()
