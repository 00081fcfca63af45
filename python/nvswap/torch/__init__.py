# SPDX-License-Identifier: Apache-2.0
"""
Hooks for PyTorch without DeepSpeed: `offload` keeps a module's parameters on the drive, `AdamW` its
optimizer state.
"""

from nvswap.torch.adamw import AdamW
from nvswap.torch.offload import Offloaded, offload

__all__ = ["AdamW", "Offloaded", "offload"]
