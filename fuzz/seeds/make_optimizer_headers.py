#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Makes fuzz/corpus/optimizer_header: the first byte says whether the counts are made to match the
length, as fuzz_optimizer_header.c has it; the layout is that of docs/store-format.md.
"""

import struct

import seeds

AS_IT_IS, MATCHED = range(2)
F32, F16, U8 = 1, 2, 13
LENT = (1 << 64) - 1


def header(ntiles=3, ngradients=1, ngroups=2, version=4, unfinished=0, tile_numel=1024, noffloaded=2,
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
    "version": (AS_IT_IS, header(version=3)),
    "tile": (AS_IT_IS, header(tile_numel=1000)),
    "tile_long": (AS_IT_IS, header(tile_numel=1 << 57)),
    "wraps": (AS_IT_IS, header()[:32] + struct.pack("<Q", (1 << 64) - 8) + header()[40:]),
    "offloaded": (AS_IT_IS, header(noffloaded=4)),
    "dtype": (AS_IT_IS, header(dtype=U8)),
    "step": (AS_IT_IS, header(step=1 << 60)),
    "scale": (AS_IT_IS, header(scale=float("inf"))),
    "overflow": (AS_IT_IS, header(last_overflow=10)),
    "hysteresis": (AS_IT_IS, header(hysteresis=0)),
    "lion": (AS_IT_IS, header(version=6, dynamic=1 | 3 << 16)),
    "rule": (AS_IT_IS, header(version=6, dynamic=4 << 16)),
    "rule_state": (AS_IT_IS, header(version=6, dynamic=1 << 16 | 2 << 8)),
    "lr": (AS_IT_IS, header(unfinished=1, lr=float("nan"))),
    "mark": (AS_IT_IS, header(marks=b"\1\2\0\0")),
    "group": (AS_IT_IS, header(groups=[1 << 60, 0])),
}


# Offsets of the fields.
WHOLE_4 = {"version": 8, "unfinished": 12, "dtype": 64, "dynamic": 68}
WHOLE_8 = {"layout": 16, "tile_numel": 24, "ntiles": 32, "noffloaded": 40, "ngradients": 48,
           "ngroups": 56, "step": 72, "iteration": 88, "last_overflow": 96, "hysteresis": 104}
REAL = {"scale": 80, "lr": 112, "factor": 120, "norm": 128, "clip": 136}
EXTREMES_4 = {"0": 0, "1": 1, "2to31": 1 << 31, "max": (1 << 32) - 1}
EXTREMES_8 = {"0": 0, "1": 1, "2to53": 1 << 53, "2to62": 1 << 62, "2to63": 1 << 63,
              "next_to_max": (1 << 64) - 2, "max": (1 << 64) - 1}
EXTREMES_REAL = {"0": 0.0, "minus_0": -0.0, "minus_1": -1.0, "least": 5e-324, "2to128": 2.0**128,
                 "max": 1.7976931348623157e308, "inf": float("inf"), "nan": float("nan")}


def extremes():
    """A header for each extreme of each field, of an unfinished step, whose factors count."""
    good = header(unfinished=1)
    for code, fields, values in (("<I", WHOLE_4, EXTREMES_4), ("<Q", WHOLE_8, EXTREMES_8),
                                 ("<d", REAL, EXTREMES_REAL)):
        for field, at in fields.items():
            for name, value in values.items():
                packed = struct.pack(code, value)
                yield f"{field}_{name}", (AS_IT_IS, good[:at] + packed + good[at + len(packed):])


SEEDS.update(extremes())

if __name__ == "__main__":
    seeds.write("optimizer_header", SEEDS)
