#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Makes fuzz/corpus/torch: the first byte says whether the rest is a file of torch.save, or the pickle of
one, as fuzz_torch.c has it. The pickles are those that torch 2 writes, without their memos.
"""

import io
import struct
import zipfile

import seeds

FILE, PICKLE = range(2)


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def tensor(shape=(2, 8), stride=(8, 1), storage="Float", numel=16, key="0", offset=0):
    def numbers(values):
        return b"(" + b"".join(b"K" + bytes([value]) for value in values) + b"t"
    return (b"ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") +
            f"ctorch\n{storage}Storage\n".encode() + text(key) + text("cpu") +
            b"K" + bytes([numel]) + b"tQK" + bytes([offset]) + numbers(shape) + numbers(stride) +
            b"\x89ccollections\nOrderedDict\n)RtR")


def pickle(**values):
    return b"\x80\x02}(" + b"".join(text(name) + value for name, value in values.items()) + b"u."


def file(data, **more):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **more) as saved:
        for name, contents in (("data.pkl", data), ("byteorder", b"little"),
                               ("data/0", bytes(64)), ("version", b"3\n")):
            saved.writestr(f"archive/{name}", contents)
    return out.getvalue()


V3 = (b"ctorch._utils\n_rebuild_tensor_v3\n((" + text("storage") +
      b"ctorch.storage\nUntypedStorage\n" + text("0") + text("cpu") +
      b"K\x40tQK\x00(K\x20t(K\x01t\x89}ctorch\nuint16\n}tR")
SEEDS = {
    "one": (PICKLE, pickle(a=tensor())),
    "memo": (PICKLE, b"\x80\x02}q\x00" + text("a") + b"q\x01" + tensor() + b"q\x02s" + text("b") + b"h\x02s."),
    "alone": (PICKLE, b"\x80\x02" + tensor() + b"."),
    "part": (PICKLE, pickle(a=tensor(shape=(8,), stride=(1,), offset=8))),
    "untyped": (PICKLE, pickle(a=V3)),
    "deep": (PICKLE, pickle(a=b"](}(K\x01" + tensor() + b"ue", n=b"N", f=b"G?\xf8" + bytes(6),
                            b=b"\x88", i=b"\x8a\x08" + b"\xff" * 8, t=b"K\x01K\x02\x86")),
    "itself": (PICKLE, b"\x80\x02]q\x00h\x00a."),
    "scaler": (PICKLE, pickle(s=b"cdeepspeed.runtime.fp16.loss_scaler\nLossScaler\n)\x81}" +
                              text("cur_scale") + b"K\x01sb", a=tensor())),
    "frames": (PICKLE, b"\x80\x04\x95" + struct.pack("<Q", 9) + b"}\x8c\x01a\x94" + tensor() + b"s."),
    "transposed": (PICKLE, pickle(a=tensor(stride=(1, 8)))),
    "forbidden": (PICKLE, pickle(a=b"cos\nsystem\n" + text("ls") + b"\x85R")),
    # Lists in lists: 16 million times a tensor.
    "bomb": (PICKLE, b"\x80\x02" + tensor() + b"q\x00" + b"".join(
        b"](" + 255 * bytes([ord("h"), level]) + b"eq" + bytes([level + 1]) for level in range(3)) + b"\x87\x86."),
    "file": (FILE, file(pickle(a=tensor()))),
    "file_packed": (FILE, file(pickle(a=tensor()), compression=zipfile.ZIP_DEFLATED)),
    "file_cut_off": (FILE, file(pickle(a=tensor()))[:-30]),
}

if __name__ == "__main__":
    seeds.write("torch", SEEDS)
