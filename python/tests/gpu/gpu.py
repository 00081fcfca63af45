# SPDX-License-Identifier: Apache-2.0
"""What the tests of a GPU share. Import it before torch."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
# Matrix products with the same bits in each run.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import promises  # noqa: E402
import torch  # noqa: E402


def promise(test):
    """As promises.promise, for a machine with a GPU."""
    def on_gpu(directory):
        if not torch.cuda.is_available():
            raise promises.Skip("torch sees no GPU")
        test(directory)

    on_gpu.__name__ = test.__name__
    return promises.promise(on_gpu)


def register(address, nbytes):
    """As cudaHostRegister; returns the error's number."""
    portable = 1
    return int(torch.cuda.cudart().cudaHostRegister(address, nbytes, portable))


def unregister(address):
    return int(torch.cuda.cudart().cudaHostUnregister(address))
