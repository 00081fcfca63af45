# SPDX-License-Identifier: Apache-2.0
"""The optimizers of DeepSpeed whose steps nvswap makes, by the rule of each: what they call its states and numbers."""

from __future__ import annotations

import errno
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.adam import DeepSpeedCPUAdam
from deepspeed.ops.lion import DeepSpeedCPULion
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

from nvswap.errors import Error

# Settings of parameter groups that tell optimizers apart.
_TELLING = ("betas", "eps", "momentum")


class Rule(NamedTuple):
    """
    Parameters
    ----------
    name : str
        Of nvswap.GroupRule, or "muon".
    states : mapping of str to str
        The rule's states by DeepSpeed's keys of them, in the rule's order.
    settings : tuple of str
        Of a parameter group, what the rule takes beside lr.
    unread : tuple of str
        Keys of states that DeepSpeed's optimizer makes, as zeros, and never reads.
    """

    name: str
    states: Mapping[str, str]
    settings: Tuple[str, ...]
    unread: Tuple[str, ...] = ()

    def numbers(self, optimizer: Any, settings: Mapping[str, Any]) -> Dict[str, Any]:
        """Those of a parameter group for GroupRule.set()."""
        numbers = {name: settings[name] for name in self.settings}
        if "betas" in numbers:
            numbers["betas"] = tuple(map(float, numbers["betas"]))
        if self.name == "adam":
            numbers.update(adam_w_mode=optimizer.adam_w_mode, bias_correction=bool(numbers["bias_correction"]))
        return {"lr": float(settings["lr"]), **numbers}

    def unread_states(self, numel: int) -> Dict[str, torch.Tensor]:
        """For DeepSpeed's tools, which read them: one element, that a file has for all."""
        return {key: torch.zeros(1, device="cpu").expand(numel) for key in self.unread}

    def check_saved(self, optimizer: torch.optim.Optimizer, states: Sequence[Mapping[str, Any]],
                    param_groups: Sequence[Mapping[str, Any]]) -> None:
        """Raises if a checkpoint has other states than the optimizer, or is one of another optimizer."""
        unknown = sorted({key for state in states for key in state} - {"step", *self.states, *self.unread})
        if unknown:
            raise Error(errno.ENOTSUP, f"the checkpoint has {', '.join(unknown)} of the optimizer's state, and "
                        'nvswap\'s optimizer has none: use "nvswap": {"deepspeed": "swappers"}, or load '
                        "the weights alone (load_optimizer_states=False)")
        own, saved = (_telling(groups) for groups in (optimizer.param_groups, param_groups))
        if own != saved:
            raise Error(errno.ESTALE, f"the checkpoint is of an optimizer with {_listed(saved)}, and "
                        f"{type(optimizer).__name__} has {_listed(own)}: set optimizer.type to the one that saved it, "
                        "or load the weights alone (load_optimizer_states=False)", "optimizer.type")


ADAM = Rule("adam", {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"},
            ("betas", "eps", "weight_decay", "bias_correction"))
# Muon's own sub-groups, and all of its optimizer: see step.muon.
MATRICES = Rule("muon", {"momentum_buffer": "momentum_buffer"}, ("weight_decay",))
MUON = Rule("muon", {**MATRICES.states, **ADAM.states}, ())
_RULES = {
    DeepSpeedCPUAdam: ADAM,
    DeepSpeedCPULion: Rule("lion", {"exp_avg": "exp_avg"}, ("betas", "weight_decay"), ("exp_avg_sq",)),
    DeepSpeedCPUAdagrad: Rule("adagrad", {"exp_avg_sq": "sum"}, ("eps", "weight_decay")),
}
NAMES = ", ".join(each.__name__ for each in _RULES) + ", and MuonWithAuxAdam with DeepSpeedCPUAdam"


def rule_of(optimizer: Any) -> Optional[Rule]:
    """None: nvswap can't make its steps. A subclass may have any."""
    return MUON if _is_muon(optimizer) else _RULES.get(type(optimizer))


def _is_muon(optimizer: Any) -> bool:
    """Whether it is DeepSpeed's Muon of a release that orthogonalizes gradients once in a step, those of all its
    matrices and of no others."""
    if type(optimizer).__name__ != "MuonWithAuxAdam" or not all(
            hasattr(DeepSpeedZeroOptimizer_Stage3, name)
            for name in ("_apply_muon_updates_cpu_offload", "_loss_scale_update_and_overflow_cleanup")):
        return False
    from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam  # compiles functions

    groups = optimizer.param_groups
    return type(optimizer) is MuonWithAuxAdam and all(
        bool(getattr(param, "use_muon", False)) == bool(group["use_muon"]) for group in groups
        for param in group["params"]) and (
            type(optimizer.aux_optimizer) is DeepSpeedCPUAdam or all(group["use_muon"] for group in groups))


def _telling(groups: Sequence[Mapping[str, Any]]) -> List[str]:
    return [name for name in _TELLING if any(name in group for group in groups)]


def _listed(names: List[str]) -> str:
    return " and ".join(names) or "neither betas nor eps"
