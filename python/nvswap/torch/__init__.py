# SPDX-License-Identifier: Apache-2.0
"""
For PyTorch without DeepSpeed: `offload` keeps a module's parameters on the drive, `AdamW` and `Adam`
the state of an optimizer, `saved_on_nvme` what autograd saves, and `park` any tensors for a while.
`from_pretrained` makes a model of transformers whose weights are read where they lie.
"""

from nvswap.torch.activations import SavedOnNvme, checkpoint, saved_on_nvme
from nvswap.torch.adam import Adam, AdamW
from nvswap.torch.offload import Offloaded, offload
from nvswap.torch.park import Parked, park
from nvswap.torch.pretrained import from_pretrained

__all__ = ["Adam", "AdamW", "Offloaded", "Parked", "SavedOnNvme", "checkpoint", "from_pretrained",
           "offload", "park", "saved_on_nvme"]
