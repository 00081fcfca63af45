#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes fuzz/corpus/checksums: a number of tensors, and a file of their checksums as docs/weights.md has it."""

import json

import seeds

SUMS = {"a": "0123456789abcdef", "layers.0.weight": "fedcba9876543210", "c": "2d06800538d394c2"}


def file(sums=None, **more):
    return json.dumps({"format": "nvswap checksums 1", "bytes": 1000, "xxh3": SUMS if sums is None else sums,
                       **more}).encode()


SEEDS = {
    "three": (3, file()),
    "none": (0, file({})),
    "without_empty": (3, file({name: SUMS[name] for name in ("a", "layers.0.weight")})),
    "further": (1, file({**SUMS, "other": "0" * 16}, more=[None, {"deep": [True]}])),
    "missing": (2, file({"a": SUMS["a"]})),
    "twice": (1, file({"a": SUMS["a"]}).replace(b"{\"a\"", b"{\"a\": \"0000000000000000\", \"a\"")),
    "capitals": (1, file({"a": "0123456789ABCDEF"})),
    "short": (1, file({"a": "0123456789abcde"})),
    "number": (1, file({"a": 81985529216486895})),
    "zero_in_name": (1, file({"a\0b": SUMS["a"], **SUMS})),
    "escaped": (1, file().replace(b"\"a\"", b"\"\\u0061\"")),
    "other_length": (3, file(bytes=1001)),
    "bytes_1e3": (3, file().replace(b"1000", b"1e3")),
    "bytes_half": (3, file(bytes=1000.5)),
    "bytes_max": (3, file(bytes=(1 << 64) - 1)),
    "format": (3, file(format="nvswap checksums 2")),
    "array": (3, b"[]"),
    "cut_off": (3, file()[:90]),
    "empty": (3, b""),
}

if __name__ == "__main__":
    seeds.write("checksums", SEEDS)
