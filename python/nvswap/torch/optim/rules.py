# SPDX-License-Identifier: Apache-2.0
"""
SGD and Adagrad of torch.optim, and Lion, with their state on the drive. They are StoredOptimizers that differ by their
rule, its settings, and its states in state_dict().
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch

from nvswap.errors import invalid
from nvswap.optimizer import STATES
from nvswap.torch.local import like_parameter, local
from nvswap.torch.offload import Offloaded
from nvswap.torch.optim.optimizer import Number, StoredOptimizer
from nvswap.torch.state import mapped


class _OneState(StoredOptimizer):
    """Of a rule with one state."""

    def _with_steps(self, state: Dict[torch.nn.Parameter, Any]) -> Dict[torch.nn.Parameter, Any]:
        """Others count no steps where the rule does not: state that there is has had one at least."""
        part, = STATES[self._rule]
        return {parameter: values if "step" in values else {**values, "step": 1}
                for parameter, values in state.items() if "step" in values or values.get(part) is not None}


class SGD(_OneState):
    """
    torch.optim.SGD whose state lies in the offload_optimizer block's store: `params`, `config`, `offloaded`
    and `shard` are those of :class:`AdamW`, and so is all that is said there.

    state_dict() has "momentum_buffer" and "step", of which torch's has the first. A step reads and writes 16
    bytes of a parameter, also without momentum. Momentum that is raised from 0 later begins with (1 - dampening)
    times the gradient, where torch's begins with the gradient.

    Raises
    ------
    nvswap.Error
        Those of AdamW; EINVAL: nesterov without momentum or with dampening; ENOTSUP: the configuration has another
        nvswap.optimizer_state than "fp32".
    """

    _rule = "sgd"
    _settings = ("lr", "momentum", "dampening", "weight_decay", "nesterov")

    def __init__(self, params: Any, lr: Number = 1e-3, momentum: float = 0, dampening: float = 0,
                 weight_decay: Number = 0, nesterov: bool = False, *, maximize: bool = False,
                 foreach: Optional[bool] = None, differentiable: bool = False,
                 fused: Optional[bool] = None, config: Any = None,
                 offloaded: Optional[Offloaded] = None, shard: Any = None) -> None:
        self._begin(params, dict(
            lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov,
            maximize=maximize, foreach=foreach, differentiable=differentiable, fused=fused),
            config, offloaded, shard)


class Adagrad(_OneState):
    """
    torch.optim.Adagrad whose state lies in the offload_optimizer block's store: `params`, `config`,
    `offloaded` and `shard` are those of :class:`AdamW`, and so is all that is said there.

    state_dict() has "sum" and "step". All groups have the initial_accumulator_value of the constructor.

    Raises
    ------
    nvswap.Error
        Those of AdamW; EINVAL: a group has another initial_accumulator_value; ENOTSUP: the configuration has another
        nvswap.optimizer_state than "fp32".
    """

    _rule = "adagrad"
    _settings = ("lr", "lr_decay", "weight_decay", "eps")

    def __init__(self, params: Any, lr: Number = 1e-2, lr_decay: float = 0, weight_decay: float = 0,
                 initial_accumulator_value: float = 0, eps: float = 1e-10,
                 foreach: Optional[bool] = None, *, maximize: bool = False,
                 differentiable: bool = False, fused: Optional[bool] = None, config: Any = None,
                 offloaded: Optional[Offloaded] = None, shard: Any = None) -> None:
        self._begin(params, dict(
            lr=lr, lr_decay=lr_decay, eps=eps, weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value, foreach=foreach, maximize=maximize,
            differentiable=differentiable, fused=fused), config, offloaded, shard)

    def _numbers_of(self, group: Dict[str, Any]) -> Dict[str, Any]:
        first, default = (each["initial_accumulator_value"] for each in (group, self.defaults))
        if first != default:
            raise invalid(f"initial_accumulator_value is {first} in a group and {default} in the constructor: all "
                          "groups have the same")
        return super()._numbers_of(group)

    def state_dict(self) -> Dict[str, Any]:
        """As that of :class:`AdamW`; as torch's, it has the first state of parameters that were not stepped."""
        result = super().state_dict()
        if "nvswap" not in result and not self._ranks.sharded:
            for parameter, number in self._numbers().items():
                if number not in result["state"] and parameter.requires_grad:
                    own = local(parameter)
                    values = mapped(self._config, own.numel()).fill_(self.defaults["initial_accumulator_value"])
                    result["state"][number] = {"step": torch.tensor(0.0),
                                               "sum": like_parameter(values.view(own.shape), parameter)}
        return result


class Lion(_OneState):
    """
    Lion (Chen et al., arXiv 2302.06675) whose state lies in the offload_optimizer block's store: `params`,
    `config`, `offloaded` and `shard` are those of :class:`AdamW`, and so is all that is said there.

    weight_decay is decoupled. state_dict() has "exp_avg" and "step"; one without "step" is loaded too. The
    sign of 0 is 0: a weight without gradients stays.

    Raises
    ------
    nvswap.Error
        Those of AdamW; ENOTSUP: the configuration has another nvswap.optimizer_state than "fp32".
    """

    _rule = "lion"
    _settings = ("lr", "weight_decay")

    def __init__(self, params: Any, lr: Number = 1e-4, betas: Tuple[Number, Number] = (0.9, 0.99),
                 weight_decay: float = 0.0, *, maximize: bool = False,
                 foreach: Optional[bool] = None, config: Any = None,
                 offloaded: Optional[Offloaded] = None, shard: Any = None) -> None:
        self._begin(params, dict(lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize,
                                 foreach=foreach), config, offloaded, shard)
