#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes fuzz/corpus/manifest: the first byte selects what the rest is and whether its checksum is
corrected, as in fuzz_manifest.c; the layouts are those of docs/store-format.md. The target
computes the checksums."""

import struct

import seeds

LABEL, LABEL_REPAIRED, HEADER, HEADER_REPAIRED, ENTRIES, ENTRIES_REPAIRED = range(6)
ID = bytes(range(16))
F32, BF16, U8 = 1, 3, 13


def label(index=0, count=1, unit=4096, stripe=0, flags=1, generation=5):
    return struct.pack("<8sII16sIIIIQQ", b"NVSWAP\0L", 3, flags, ID, index, count, 2, unit, stripe,
                       generation)


def header(count, body_bytes, generation=1, note_bytes=0):
    return struct.pack("<8sI4x16sQQQQQ", b"NVSWAP\0M", 3, ID, generation, count, body_bytes, 77,
                       note_bytes)


def entry(name, numel, nbytes, offset, spare, dtype=F32, flags=1, checksum=0, shape=None, ndim=None):
    """An entry; `shape` None is one dimension, and `ndim` another number than its dimensions."""
    text = name.encode() + b"\0"
    text += bytes(-len(text) % 8)
    if shape is not None:
        text += struct.pack(f"<{len(shape)}Q", *shape)
        ndim = len(shape) if ndim is None else ndim
    return struct.pack("<QQQQQIIII", numel, nbytes, offset, spare, checksum, dtype, flags,
                       len(name), 0 if shape is None else ndim + 1) + text


def entries(*made, count=None, unit=3, note=0):
    return bytes([unit + 8 * note, len(made) if count is None else count]) + b"".join(made)


SEEDS = {
    "label": (LABEL_REPAIRED, label()),
    "label_striped": (LABEL_REPAIRED, label(1, 2, 512, 1 << 20, 3)),
    "label_index": (LABEL_REPAIRED, label(2, 2, 512, 512)),
    "label_unit": (LABEL_REPAIRED, label(unit=4097)),
    "label_zeros": (LABEL, b""),
    "label_damaged": (LABEL, label()),
    "header": (HEADER_REPAIRED, header(2, 128)),
    "header_many": (HEADER_REPAIRED, header(1 << 40, 128)),
    "header_long": (HEADER_REPAIRED, header(1, 1 << 40)),
    "header_note": (HEADER_REPAIRED, header(1, 72, note_bytes=5)),
    "header_long_note": (HEADER_REPAIRED, header(1, 1 << 20, note_bytes=(1 << 16) + 1)),
    "header_note_beyond": (HEADER_REPAIRED, header(0, 8, note_bytes=9)),
    "header_damaged": (HEADER, header(2, 128)),
    "none": (ENTRIES_REPAIRED, entries()),
    "two": (ENTRIES_REPAIRED, entries(entry("w", 1024, 4096, 4096, 8192),
                                      entry("b", 3, 6, 0, 12288, BF16, 3, 0x123456789))),
    "empty_tensor": (ENTRIES_REPAIRED, entries(entry("nothing", 0, 0, 0, 0),
                                               entry("bytes", 4097, 4097, 8192, 0, U8))),
    "overlap": (ENTRIES_REPAIRED, entries(entry("w", 1025, 4100, 0, 65536),
                                          entry("b", 1, 4, 4096, 32768))),
    "overlap_spare": (ENTRIES_REPAIRED, entries(entry("w", 1025, 4100, 0, 4096))),
    "same_name": (ENTRIES_REPAIRED, entries(entry("w", 1, 4, 0, 4096),
                                            entry("w", 1, 4, 8192, 12288))),
    "sizes": (ENTRIES_REPAIRED, entries(entry("w", 1 << 62, 0, 0, 0))),
    "far": (ENTRIES_REPAIRED, entries(entry("w", 1, 4, (1 << 64) - 4096, 0))),
    "count": (ENTRIES_REPAIRED, entries(entry("w", 1, 4, 0, 4096), count=9)),
    "behind": (ENTRIES_REPAIRED, entries(entry("w", 1, 4, 0, 4096), bytes(8), count=1)),
    "note": (ENTRIES_REPAIRED, entries(entry("w", 1, 4, 0, 4096), b"step5\0\0\0", count=1, note=5)),
    "note_padding": (ENTRIES_REPAIRED, entries(b"step5\0\0x", count=0, note=5)),
    "shapes": (ENTRIES_REPAIRED, entries(entry("w", 6, 24, 0, 4096, shape=[2, 3]),
                                         entry("scale", 1, 4, 8192, 12288, shape=[]),
                                         entry("none", 0, 0, 0, 0, shape=[4, 0, 2]),
                                         entry("b", 3, 12, 16384, 20480))),
    "shape_product": (ENTRIES_REPAIRED, entries(entry("w", 6, 24, 0, 4096, shape=[2, 4]))),
    "shape_overflow": (ENTRIES_REPAIRED, entries(entry("w", 0, 0, 0, 0, shape=[1 << 63, 2, 0]))),
    "shape_long": (ENTRIES_REPAIRED, entries(entry("w", 1, 4, 0, 4096, shape=[1] * 64))),
    "shape_too_long": (ENTRIES_REPAIRED, entries(entry("w", 1, 4, 0, 4096, shape=[1] * 65))),
    "shape_of_one": (ENTRIES_REPAIRED, entries(entry("w", 6, 24, 0, 4096, shape=[6]))),
    "shape_beyond": (ENTRIES_REPAIRED, entries(entry("w", 1, 4, 0, 4096, shape=[1], ndim=60))),
    "damaged": (ENTRIES, entries(entry("w", 1, 4, 0, 4096))),
}


if __name__ == "__main__":
    seeds.write("manifest", SEEDS)
