# SPDX-License-Identifier: Apache-2.0
"""What the optimizers share: parameters by their numbers, and those of an offloaded module."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, TypeVar

import torch

from nvswap.errors import invalid
from nvswap.torch.offload import Offloaded

Loss = TypeVar("Loss")


class NumberedOptimizer(torch.optim.Optimizer):
    """A torch.optim.Optimizer of parameters in memory and, with `_offloaded`, of an offloaded module."""

    _offloaded: Optional[Offloaded] = None

    def __reduce__(self) -> Any:
        raise TypeError(f"a nvswap.torch.{type(self).__name__} can't be pickled or copied: save its state_dict()")

    def _numbers(self) -> Dict[torch.nn.Parameter, int]:
        """All parameters, numbered as state_dict() has them."""
        parameters = [each for group in self.param_groups for each in group["params"]]
        return {parameter: number for number, parameter in enumerate(parameters)}

    def _tensor_of(self, parameter: torch.nn.Parameter) -> Optional[str]:
        return self._offloaded.name_of(parameter) if self._offloaded else None

    @staticmethod
    def _loss(closure: Optional[Callable[[], Loss]], finishes: bool) -> Optional[Loss]:
        """What the closure of a step returns; `finishes`: the step is the rest of one that failed."""
        if closure is None:
            return None
        if finishes:
            raise invalid("a step has failed and is not finished: call step() without a closure")
        with torch.enable_grad():
            return closure()
