# SPDX-License-Identifier: Apache-2.0
"""Muon of torch.optim with its state on the drive."""

from __future__ import annotations

import math
from typing import Any, Dict, Mapping, Optional, Tuple

import torch

from nvswap.errors import invalid
from nvswap.torch.optim.custom import CustomOptimizer, Kind
from nvswap.torch.offload import Offloaded

_FUNCTIONS = (None, "original", "match_rms_adamw")


class Muon(CustomOptimizer):
    """
    torch.optim.Muon whose momentum lies in the offload_optimizer block's store: see :class:`CustomOptimizer` for
    `config`, `offloaded` and all else. Of matrices; other parameters, and embeddings, are for AdamW.

    A step reads and writes 4 bytes of an element, and 8 of one of 16 bits. Newton-Schulz is computed in float32 on
    the host, where that of torch has bfloat16, so steps differ from torch's by that rounding. state_dict() has
    "momentum_buffer" and "step", of which torch's has the first; either one loads the other's.

    Raises
    ------
    nvswap.Error
        Those of CustomOptimizer; EINVAL: a parameter is no matrix, or a setting is out of bounds.
    """

    def __init__(self, params: Any, lr: float = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95,
                 nesterov: bool = True, ns_coefficients: Tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
                 eps: float = 1e-7, ns_steps: int = 5, adjust_lr_fn: Optional[str] = None, *,
                 config: Any = None, offloaded: Optional[Offloaded] = None) -> None:
        super().__init__(params, dict(
            lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov, ns_coefficients=ns_coefficients,
            eps=eps, ns_steps=ns_steps, adjust_lr_fn=adjust_lr_fn), config, offloaded)

    def states(self, parameter: torch.nn.Parameter, group: Dict[str, Any]) -> Mapping[str, Kind]:
        """See :class:`CustomOptimizer`."""
        for name in ("lr", "weight_decay", "momentum"):
            if not float(group[name]) >= 0:
                raise invalid(f"{name} is {group[name]}: it is 0 or more")
        if len(group["ns_coefficients"]) != 3 or not 0 <= group["ns_steps"] < 100:
            raise invalid(f"ns_coefficients are three numbers, not {group['ns_coefficients']}, and ns_steps 0 to 99, "
                          f"not {group['ns_steps']}")
        if group["adjust_lr_fn"] not in _FUNCTIONS:
            raise invalid(f"adjust_lr_fn is {group['adjust_lr_fn']!r}: it is one of {_FUNCTIONS}")
        if parameter.ndim != 2:
            raise invalid(f"a parameter of shape {list(parameter.shape)} is no matrix, and Muon steps these alone: "
                          "give it to AdamW")
        return {"momentum_buffer": torch.float32}

    def update(self, weights: torch.Tensor, gradient: torch.Tensor, state: Dict[str, torch.Tensor],
               group: Dict[str, Any], step: int) -> None:
        """See :class:`CustomOptimizer`."""
        lr, momentum = float(group["lr"]), group["momentum"]
        buffer = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        direction = zeropower(gradient.lerp(buffer, momentum) if group["nesterov"] else buffer,
                              group["ns_coefficients"], group["ns_steps"], group["eps"])
        rows, columns = weights.shape
        factor = 0.2 * math.sqrt(max(rows, columns)) if group["adjust_lr_fn"] == "match_rms_adamw" else \
            math.sqrt(max(1, rows / columns))
        weights.mul_(1 - lr * group["weight_decay"]).add_(direction, alpha=-lr * factor)


def zeropower(matrix: torch.Tensor, coefficients: Tuple[float, float, float], steps: int,
              eps: float) -> torch.Tensor:
    """Brings the singular values of a matrix near 1, by the quintic Newton-Schulz iteration of Keller Jordan
    (https://kellerjordan.github.io/posts/muon), in the matrix's own type."""
    a, b, c = coefficients
    wide = matrix.T if matrix.size(0) > matrix.size(1) else matrix
    wide = wide / wide.norm().clamp(min=eps)
    for _ in range(steps):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.T if matrix.size(0) > matrix.size(1) else wide
