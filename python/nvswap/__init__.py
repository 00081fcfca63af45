# SPDX-License-Identifier: Apache-2.0
"""
nvswap swaps tensors and optimizer state between pinned host memory and NVMe.

`Config` has the settings, `Aio` transfers files, `Engine` swaps tensors by name, `Optimizer` steps
Adam, SGD, Adagrad or Lion over state on the drive, `open_weights` reads .safetensors files in place, `empty` allocates
pinned memory, `Trace` records a timeline.
`nvswap.torch` offloads modules and optimizers of PyTorch, `nvswap.report` draws results of the
command. Everything that fails raises `Error`, an OSError.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvswap.aio import Aio, File, Request, Transfer
    from nvswap.checkpoint import Parameter, export_universal, import_universal
    from nvswap.config import Config
    from nvswap.dtypes import dtype_name
    from nvswap.engine import Engine, Pinned, StoredTensor, Tensor
    from nvswap.errors import ClosedError, Error, Timeout
    from nvswap.memory import empty, is_pinned
    from nvswap.optimizer import Group, GroupAdam, GroupRule, Optimizer, StateRun, Update, adam_update
    from nvswap.statistics import StepIO, StepResult
    from nvswap.tensor_files import (export_optimizer, export_tensors, import_optimizer,
                                     import_tensors)
    from nvswap.trace import Trace
    from nvswap.weights import TensorSlice, Weights, open_weights

    __version__: str

__all__ = ["Aio", "ClosedError", "Config", "Engine", "Error", "File", "Group", "GroupAdam", "GroupRule",
           "Optimizer", "Parameter", "Pinned", "Request", "StateRun", "StepIO", "StepResult",
           "StoredTensor", "Tensor", "TensorSlice", "Timeout", "Trace", "Transfer", "Update", "Weights",
           "adam_update", "dtype_name", "empty", "export_optimizer", "export_tensors", "export_universal", "import_optimizer",
           "import_tensors", "import_universal", "is_pinned", "open_weights"]

_MODULES = ("aio", "checkpoint", "config", "dtypes", "engine", "errors", "handle", "memory",
            "optimizer", "statistics", "strings", "tensor_files", "trace", "weights")


def __getattr__(name: str) -> Any:
    """Loads the native library with the first of these names: nvswap.report works without it."""
    if name not in (*__all__, *_MODULES, "__version__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module in _MODULES:
        members = vars(_import_module(f"nvswap.{module}"))
        globals().update({each: members[each] for each in __all__ if each in members})
    native = _import_module("nvswap._native")
    globals()["__version__"] = native.ffi.string(native.lib.nvs_version()).decode()
    return globals()[name]


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__, *_MODULES, "__version__"})
