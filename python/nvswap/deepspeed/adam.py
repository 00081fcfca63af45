# SPDX-License-Identifier: Apache-2.0
"""
DeepSpeed's op `cpu_adam` by nvs_adam_update, so that a job needs no compiler. An update is cut into
pieces for as many threads as torch computes with; each element's bits are the same in any piece.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, Optional

import torch

from nvswap.errors import invalid
from nvswap.optimizer import adam_update as update_arrays

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
    tensors = [each.detach().view(-1) for each in (params, grads, exp_avg, exp_avg_sq)]

    def piece(begin: int) -> None:
        weights, gradients, *moments = (each[begin:begin + PIECE_NUMEL] for each in tensors)
        single = weights.dtype == torch.float32
        first, second = computed = [each.float() for each in moments]  # themselves, if they are fp32
        update_arrays(weights if single else weights.float(), gradients, first, second,
                      step=int(step), lr=lr, betas=(beta1, beta2), eps=epsilon,
                      weight_decay=weight_decay, adam_w_mode=_modes[optimizer_id],
                      bias_correction=bool(bias_correction), weights=None if single else weights)
        for moment, new in zip(moments, computed):
            if moment is not new:
                moment.copy_(new)

    if any(each.numel() != params.numel() for each in tensors):
        raise invalid(f"tensors of {[each.numel() for each in tensors]} elements")
    _for_each(piece, range(0, params.numel(), PIECE_NUMEL))
    return 0


def adam_rollback(*_: object) -> int:
    """DeepSpeed's SuperOffload alone calls it."""
    raise NotImplementedError("nvswap has no adam_rollback, which SuperOffload needs; use DeepSpeed's "
                              "own cpu_adam for it: nvswap.deepspeed.install(adam=False)")


def _for_each(work: object, begins: range) -> None:
    global _pool, _pool_pid
    threads = torch.get_num_threads()
    if len(begins) <= 1 or threads <= 1:
        for begin in begins:
            work(begin)  # type: ignore[operator]
        return
    if _pool is None or _pool_pid != os.getpid():
        _pool, _pool_pid = ThreadPoolExecutor(threads, "nvswap-adam"), os.getpid()
    for _ in _pool.map(work, begins):  # type: ignore[arg-type]
        pass
