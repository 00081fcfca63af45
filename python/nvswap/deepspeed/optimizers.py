# SPDX-License-Identifier: Apache-2.0
"""
DeepSpeed's ops `cpu_adam`, `cpu_adagrad` and `cpu_lion` by nvs_rule_update, so that a job needs no compiler. An update
is cut into pieces for as many threads as torch computes with; each element's bits are the same in any piece.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Mapping, Optional

import torch

from nvswap.errors import invalid
from nvswap.optimizer import rule_update

PIECE_NUMEL = 1 << 20

_modes: Dict[int, bool] = {}  # adamw_mode by the optimizer's number
_pool: Optional[ThreadPoolExecutor] = None
_pool_pid = 0


def create_adam(optimizer_id: int, alpha: float = 1e-3, betta1: float = 0.9, betta2: float = 0.999,
                eps: float = 1e-8, weight_decay: float = 0.0, adamw_mode: bool = True,
                should_log: bool = False) -> int:
    """Remembers the optimizer's mode. The numbers come again with each update, and those count, as
    in DeepSpeed's op."""
    del alpha, betta1, betta2, eps, weight_decay, should_log
    _modes[optimizer_id] = bool(adamw_mode)
    return 0


def destroy_adam(optimizer_id: int) -> int:
    _modes.pop(optimizer_id, None)
    return 0


def adam_update(optimizer_id: int, step: int, lr: float, beta1: float, beta2: float, epsilon: float,
                weight_decay: float, bias_correction: bool, params: torch.Tensor,
                grads: torch.Tensor, exp_avg: torch.Tensor, exp_avg_sq: torch.Tensor) -> int:
    """
    One step of flat tensors of fp32, bf16 or fp16. It is computed in fp32, and what has another type is rounded
    once.

    Raises
    ------
    Error
        EINVAL: no such optimizer; lengths that differ.
    """
    if optimizer_id not in _modes:
        raise invalid(f"there is no Adam optimizer {optimizer_id}")
    return update_flat("adam", params, grads, {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}, step=int(step), lr=lr,
                       betas=(beta1, beta2), eps=epsilon, weight_decay=weight_decay, adam_w_mode=_modes[optimizer_id],
                       bias_correction=bool(bias_correction))


def adam_rollback(*_: object) -> int:
    """DeepSpeed's SuperOffload alone calls it."""
    raise NotImplementedError("nvswap has no adam_rollback, which SuperOffload needs; use DeepSpeed's "
                              "own cpu_adam for it: nvswap.deepspeed.install(adam=False)")


def create_adagrad(optimizer_id: int, alpha: float = 1e-2, eps: float = 1e-8, weight_decay: float = 0,
                   should_log: bool = False) -> int:
    """All numbers come again with each update."""
    del optimizer_id, alpha, eps, weight_decay, should_log
    return 0


def destroy_adagrad(optimizer_id: int) -> int:
    del optimizer_id
    return 0


def adagrad_update(optimizer_id: int, step: int, lr: float, epsilon: float, weight_decay: float, params: torch.Tensor,
                   grads: torch.Tensor, exp_avg_sq: torch.Tensor) -> int:
    """As adam_update."""
    del optimizer_id
    return update_flat("adagrad", params, grads, {"sum": exp_avg_sq}, step=int(step), lr=lr, eps=epsilon,
                       weight_decay=weight_decay)


def create_lion(optimizer_id: int, alpha: float = 1e-3, betta1: float = 0.9, betta2: float = 0.999,
                weight_decay: float = 0, should_log: bool = False) -> int:
    """All numbers come again with each update."""
    del optimizer_id, alpha, betta1, betta2, weight_decay, should_log
    return 0


def destroy_lion(optimizer_id: int) -> int:
    del optimizer_id
    return 0


def lion_update(optimizer_id: int, step: int, lr: float, beta1: float, beta2: float, weight_decay: float,
                params: torch.Tensor, grads: torch.Tensor, exp_avg: torch.Tensor) -> int:
    """As adam_update; the sign of 0 is 0, where DeepSpeed's op has 1."""
    del optimizer_id
    return update_flat("lion", params, grads, {"exp_avg": exp_avg}, step=int(step), lr=lr, betas=(beta1, beta2),
                       weight_decay=weight_decay)


def update_flat(rule: str, params: torch.Tensor, grads: torch.Tensor, states: Mapping[str, torch.Tensor],
                **numbers: Any) -> int:
    """One step of flat tensors by a rule, whose numbers are those of nvswap.rule_update()."""
    weights, gradients, *others = (each.detach().view(-1) for each in (params, grads, *states.values()))
    single = weights.dtype == torch.float32

    def piece(begin: int) -> None:
        cut = slice(begin, begin + PIECE_NUMEL)
        own = [each[cut] for each in others]
        computed = [each.float() for each in own]  # themselves, if they are fp32
        rule_update(rule, weights[cut].float(), gradients[cut], dict(zip(states, computed)),
                    weights=None if single else weights[cut], **numbers)
        for state, new in zip(own, computed):
            if state is not new:
                state.copy_(new)

    if any(each.numel() != params.numel() for each in (grads, *states.values())):
        raise invalid(f"tensors of {[each.numel() for each in (params, grads, *states.values())]} elements")
    _for_each(piece, range(0, params.numel(), PIECE_NUMEL))
    return 0


def _for_each(work: object, begins: range) -> None:
    global _pool, _pool_pid
    threads = torch.get_num_threads()
    if len(begins) <= 1 or threads <= 1:
        for begin in begins:
            work(begin)  # type: ignore[operator]
        return
    if _pool is None or _pool_pid != os.getpid():
        _pool, _pool_pid = ThreadPoolExecutor(threads, "nvswap-update"), os.getpid()
    for _ in _pool.map(work, begins):  # type: ignore[arg-type]
        pass
