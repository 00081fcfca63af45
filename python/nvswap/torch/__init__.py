# SPDX-License-Identifier: Apache-2.0
"""
For PyTorch without DeepSpeed: `offload` keeps a module's parameters on the drive, `AdamW` and `Adam`
the state of an optimizer.
"""

from nvswap.torch.adam import Adam, AdamW
from nvswap.torch.offload import Offloaded, offload

__all__ = ["Adam", "AdamW", "Offloaded", "offload"]
