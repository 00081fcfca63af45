# SPDX-License-Identifier: Apache-2.0
"""
Universal checkpoints of ZeRO-3 jobs, written directly: a file for each parameter's weights and moments,
whole, so that any number of ranks loads them. One tensor of one parameter is in memory at a time.
"""

from __future__ import annotations

import os
from typing import Any, Iterator, Optional, Tuple

import torch
from deepspeed import comm as dist
from deepspeed.checkpoint.constants import (
    LOSS_SCALER, OPTIMIZER_STATE_DICT, PARAM_GROUPS, ZERO_STAGE)
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

from nvswap.deepspeed.checkpoint.durable import replace_text, replacing
from nvswap.deepspeed.checkpoint.zero3 import MOMENTS


def save_universal(engine: Any, save_dir: str, tag: Optional[str] = None) -> None:
    """
    Saves a universal checkpoint of a DeepSpeedEngine; all ranks call it, between steps.

    Parameters
    ----------
    engine : DeepSpeedEngine
        With ZeRO-3, and the checkpoint engine of this package.
    save_dir, tag : str
        As for engine.save_checkpoint. `latest_universal` names the tag when all files are durable.
    """
    tag = str(tag or f"global_step{engine.global_steps}")
    folder = os.path.join(save_dir, tag)
    engine.optimizer.checkpoint_event_prologue()
    os.makedirs(os.path.join(folder, "zero"), exist_ok=True)
    engine._create_checkpoint_file(save_dir, tag, False)
    engine._save_checkpoint(save_dir, tag)
    for path, tensor in _tensors_of(engine):
        # Every rank has gathered the tensor; the first writes it.
        if engine.global_rank == 0:
            _save(tensor, os.path.join(folder, "zero", path))
    if engine.global_rank == 0:
        _save(_global_state(engine.optimizer), os.path.join(folder, "zero", "optimizer_state.pt"))
    engine.optimizer.checkpoint_event_epilogue()
    dist.barrier()
    if engine.global_rank == 0:
        replace_text(os.path.join(save_dir, "latest_universal"), tag)
    dist.barrier()


def _tensors_of(engine: Any) -> Iterator[Tuple[str, torch.Tensor]]:
    for group in engine.optimizer.fp16_groups:
        for param in group:
            name = engine.param_names[param]
            yield os.path.join(name, "fp32.pt"), safe_get_full_fp32_param(param)
            for part in MOMENTS:
                yield os.path.join(name, f"{part}.pt"), safe_get_full_optimizer_state(param, part)


def _global_state(optimizer: Any) -> Any:
    groups = [{**numbers, "params": []} for numbers in optimizer.optimizer.param_groups]
    return {ZERO_STAGE: 3, LOSS_SCALER: optimizer.loss_scaler,
            "dynamic_loss_scale": optimizer.dynamic_loss_scale, "overflow": optimizer.overflow,
            OPTIMIZER_STATE_DICT: {"state": {0: {"step": optimizer._step_of(0)}},
                                   PARAM_GROUPS: groups},
            PARAM_GROUPS: groups}


def _save(value: Any, path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if isinstance(value, torch.Tensor):
        # A view would be saved with its whole storage.
        value = value.detach().flatten().cpu().clone()
    with replacing(path) as partial:
        torch.save(value, partial)
