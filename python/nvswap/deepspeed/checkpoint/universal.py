# SPDX-License-Identifier: Apache-2.0
"""
Universal checkpoints of ZeRO-3 jobs, written directly: a file for each parameter's weights and moments,
whole, so that any number of ranks loads them. Ranks with an optimizer in a store write their elements
from it to the same files; else all ranks gather one tensor after the other, and the first writes it.
"""

from __future__ import annotations

import io
import os
from functools import reduce
from operator import xor
from typing import Any, Iterator, List, Optional, Tuple

import torch
from deepspeed import comm as dist
from deepspeed.checkpoint.constants import (
    LOSS_SCALER, OPTIMIZER_STATE_DICT, PARAM_GROUPS, ZERO_STAGE)
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

from nvswap.checkpoint import export_universal
from nvswap.deepspeed.checkpoint.durable import replace_text, replacing
from nvswap.deepspeed.checkpoint.engine import tag_of
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
    tag = tag_of(engine, tag)
    folder = os.path.join(save_dir, tag)
    engine.optimizer.checkpoint_event_prologue()
    os.makedirs(folder, exist_ok=True)
    engine._create_checkpoint_file(save_dir, tag, False)
    info = CheckpointCommitInfo(tag=tag, save_dir=save_dir, save_latest=False)
    engine.checkpoint_engine.create(info)
    engine._save_checkpoint(save_dir, tag)
    engine.checkpoint_engine.rename(info)
    stored = engine.optimizer._stored_parameters()
    if stored is None:
        _gather(engine, folder)
    else:
        state = io.BytesIO()
        torch.save(_global_state(engine.optimizer), state)
        optimizer, parameters = stored
        export_universal(optimizer, folder, parameters, optimizer_state=state.getvalue(),
                         rank=dist.get_rank(), world=dist.get_world_size(), exchange=_exchange)
    engine.checkpoint_engine.finish(info)
    engine.optimizer.checkpoint_event_epilogue()
    dist.barrier()


def _exchange(words: List[int]) -> List[int]:
    """The exclusive or of all ranks' words."""
    gathered: List[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, words)
    return [reduce(xor, each) for each in zip(*gathered)]


def _gather(engine: Any, folder: str) -> None:
    zero = os.path.join(folder, "zero")
    for path, tensor in _tensors_of(engine):
        if engine.global_rank == 0:
            _save(tensor, os.path.join(zero, path))
    if engine.global_rank == 0:
        _save(_global_state(engine.optimizer), os.path.join(zero, "optimizer_state.pt"))
    dist.barrier()
    if engine.global_rank == 0:
        replace_text(os.path.join(os.path.dirname(folder), "latest_universal"),
                     os.path.basename(folder))


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
