# SPDX-License-Identifier: Apache-2.0
"""
For PyTorch without DeepSpeed: `offload` keeps a module's parameters on the drive, `AdamW`, `Adam`, `SGD`,
`Adagrad`, `Lion` and `Muon` the state of an optimizer, `CustomOptimizer` that of a rule of the program, `saved_on_nvme`
what autograd saves, and `park` any tensors for a while. `from_pretrained` makes a model of transformers whose weights
are read where they lie.
"""

from nvswap.torch.activations import SavedOnNvme, checkpoint, saved_on_nvme
from nvswap.torch.optim.adam import Adam, AdamW
from nvswap.torch.optim.custom import CustomOptimizer
from nvswap.torch.optim.muon import Muon
from nvswap.torch.offload import Offloaded, offload
from nvswap.torch.park import Parked, park
from nvswap.torch.pretrained import from_pretrained
from nvswap.torch.optim.rules import SGD, Adagrad, Lion

__all__ = ["Adagrad", "Adam", "AdamW", "CustomOptimizer", "Lion", "Muon", "Offloaded", "Parked", "SGD", "SavedOnNvme",
           "checkpoint", "from_pretrained", "offload", "park", "saved_on_nvme"]
