# SPDX-License-Identifier: Apache-2.0
"""
Buffers of a universal checkpoint, which are with the model states. DeepSpeed loads none of them, so a
BatchNorm would keep the statistics of a new model.
"""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.checkpoint.constants import BUFFER_NAMES

_EXTRA_STATE = "_extra_state"  # the end of a name: what a module's get_extra_state() gives


def load_buffers(module: torch.nn.Module, saved: Any, strict: bool) -> None:
    """
    Loads buffers, and the extra state of modules, from a file of model states. Parameters stay.

    Raises
    ------
    RuntimeError
        That of load_state_dict.
    """
    own = {name: value.data for name, value in module.state_dict(keep_vars=True).items()
           if isinstance(value, torch.nn.Parameter)}
    names = saved.get(BUFFER_NAMES) or []
    module.load_state_dict({**own, **{name: value for name, value in saved["module"].items()
                                      if name in names or name.endswith(_EXTRA_STATE)}}, strict)
