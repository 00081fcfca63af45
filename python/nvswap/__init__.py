# SPDX-License-Identifier: Apache-2.0
"""
nvswap swaps tensors and optimizer state between pinned host memory and NVMe.

`Config` has the settings, `Aio` transfers files, `Engine` swaps tensors by name, `Optimizer` steps
Adam over state on the drive, `empty` allocates pinned memory. `nvswap.torch` offloads modules and
optimizers of PyTorch. Everything that fails raises `Error`, an OSError.
"""

from nvswap._native import ffi as _ffi, lib as _lib
from nvswap.aio import Aio, File, Request, Transfer
from nvswap.checkpoint import Parameter, export_universal, import_universal
from nvswap.config import Config
from nvswap.dtypes import dtype_name
from nvswap.engine import Engine, Pinned, StoredTensor, Tensor
from nvswap.errors import ClosedError, Error, Timeout
from nvswap.memory import empty, is_pinned
from nvswap.optimizer import Group, GroupAdam, Optimizer, StateRun, Update, adam_update
from nvswap.statistics import StepIO, StepResult
from nvswap.tensor_files import export_optimizer, export_tensors, import_optimizer, import_tensors

__version__ = _ffi.string(_lib.nvs_version()).decode()

__all__ = ["Aio", "ClosedError", "Config", "Engine", "Error", "File", "Group", "GroupAdam",
           "Optimizer", "Parameter", "Pinned", "Request", "StateRun", "StepIO", "StepResult",
           "StoredTensor", "Tensor", "Timeout", "Transfer", "Update", "adam_update", "dtype_name",
           "empty", "export_optimizer", "export_tensors", "export_universal", "import_optimizer",
           "import_tensors", "import_universal", "is_pinned"]
