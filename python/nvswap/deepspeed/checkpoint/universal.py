# SPDX-License-Identifier: Apache-2.0
"""
Universal checkpoints of ZeRO-3 jobs, written directly: a file for each parameter's weights and moments,
whole, so that any number of ranks loads them. Ranks with an optimizer in a store write their elements
from it to the same files; else all ranks gather one tensor after the other, and the first writes it. All
files are durable before any takes its place.
"""

from __future__ import annotations

import errno
import os
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from deepspeed import comm as dist
from deepspeed.checkpoint.constants import (
    LOSS_SCALER, OPTIMIZER_STATE_DICT, PARAM_GROUPS, ZERO_STAGE)

from nvswap.checkpoint import Parameter, refuse_other_files, write_universal
from nvswap.deepspeed.checkpoint import writing
from nvswap.deepspeed.checkpoint.engine import (
    CheckpointEngine, checked_tag, name_tag, warn_of_window)
from nvswap.deepspeed.checkpoint.ranks import of_all_ranks
from nvswap.deepspeed.checkpoint.zero3 import MOMENTS, UNIVERSAL, keys_beside_moments, step_of
from nvswap.durable import make_directories, new_directory, replacing
from nvswap.errors import Error


def save_universal(engine: Any, save_dir: str, tag: Optional[str] = None,
                   client_state: Optional[Dict[str, Any]] = None,
                   exclude_frozen_parameters: bool = False) -> None:
    """
    Saves a universal checkpoint of a DeepSpeedEngine; all ranks call it, between steps.

    Parameters
    ----------
    engine : DeepSpeedEngine
        With ZeRO-3, and the checkpoint engine of this package.
    save_dir, tag, client_state, exclude_frozen_parameters
        As for engine.save_checkpoint. `latest_universal` in `save_dir` names the tag when all files
        are durable.

    Raises
    ------
    Error
        ENOTSUP: no optimizer state is on NVMe, or it is more than Adam's. EBUSY: another job saves the
        tag. EINVAL: `latest_universal` could not name the tag. EISDIR: it is a directory. EEXIST: zero/
        of the tag has other files than those of a checkpoint. EIO: another rank has failed.
    OSError
        Those of making, writing and renaming files; what was there before is whole, unless they come
        of renaming.
    """
    saver = engine.checkpoint_engine
    if not isinstance(saver, CheckpointEngine):
        raise Error(errno.ENOTSUP, "save_universal: no optimizer state is on NVMe: use save_checkpoint, and "
                    "convert the checkpoint by deepspeed.checkpoint.ds_to_universal")
    tag = checked_tag(engine, save_dir, tag, "latest_universal")
    _refuse_other_state(engine.optimizer)
    warn_of_window(engine)
    engine.optimizer.checkpoint_event_prologue()
    saver.begin()
    try:
        saver.makedirs(os.path.join(save_dir, tag), exist_ok=True)
        engine._save_checkpoint(save_dir, tag, client_state or {}, exclude_frozen_parameters)
        _save_parameters(engine, os.path.join(save_dir, tag, UNIVERSAL))
        saver.finish()
    finally:
        saver.end()
    engine.optimizer.checkpoint_event_epilogue()
    name_tag(os.path.join(save_dir, "latest_universal"), tag, lambda: engine.global_rank == 0)


def _refuse_other_state(optimizer: Any) -> None:
    """Its keys are the same on all ranks."""
    other = keys_beside_moments(map(optimizer._state_of, range(len(optimizer.fp16_groups))))
    if other:
        raise Error(errno.ENOTSUP, f"save_universal: the optimizer's state has {other}, and a universal "
                    "checkpoint of DeepSpeed has exp_avg, exp_avg_sq and step: use save_checkpoint")


def _save_parameters(engine: Any, zero: str) -> None:
    """Writes what replaces zero/ in commit()."""
    saver, stored = engine.checkpoint_engine, engine.optimizer._stored_parameters()
    with saver.collecting():
        if engine.global_rank == 0:
            saver.add_directory(zero)
            refuse_other_files(zero)
    if stored is None:
        _gather(engine, new_directory(zero))
        return
    state = writing.saved(_global_state(engine.optimizer))
    optimizer, parameters = stored
    with saver.collecting():
        write_universal(optimizer, new_directory(zero), parameters, optimizer_state=state, rank=dist.get_rank(),
                        world=dist.get_world_size(), gather=of_all_ranks)
        if engine.global_rank == 0:
            _add_missing(engine.optimizer, new_directory(zero), parameters)


def _add_missing(optimizer: Any, zero: str, parameters: List[Parameter]) -> None:
    """Writes zeros for the moments that the optimizer does not have, which DeepSpeed's loader reads all the same: one
    element in the file stands for all."""
    for parameter in parameters:
        for part in set(MOMENTS) - set(optimizer._state_keys):
            assert parameter.shape is not None
            with replacing(os.path.join(zero, parameter.name, f"{part}.pt")) as partial:
                writing.save(torch.zeros((), device="cpu").expand(tuple(parameter.shape)), partial)


def _gather(engine: Any, zero: str) -> None:
    for path, value in _files_of(engine):
        if engine.global_rank == 0 and not engine.checkpoint_engine.has_failed():
            with engine.checkpoint_engine.collecting():
                _save(value, os.path.join(zero, path))


def _files_of(engine: Any) -> Iterator[Tuple[str, Any]]:
    yield "optimizer_state.pt", _global_state(engine.optimizer)
    for number, group in enumerate(engine.optimizer.fp16_groups):
        moments = engine.optimizer._stored_state(number)  # none before the first step
        for param in group:
            name, weights = engine.param_names[param], _gathered(engine, param)
            yield os.path.join(name, "fp32.pt"), weights
            for part in MOMENTS:
                yield os.path.join(name, f"{part}.pt"), _gathered(engine, param, part) \
                    if part in moments else torch.zeros_like(weights)


def _gathered(engine: Any, param: Any, part: Optional[str] = None) -> torch.Tensor:
    """Weights or moments of all ranks. One that can't read its part takes zeros, as the others wait
    for it, and has the save fail."""
    optimizer = engine.optimizer
    own = torch.zeros(int(optimizer.grad_position[optimizer.get_param_id(param)][-1]), device="cpu")
    with engine.checkpoint_engine.collecting():
        own = optimizer._get_fp32_opt_state_partition(param, release_swap_buffers=True,
                                                      optim_state_key=part)[0]
    gathered: torch.Tensor = optimizer._fp32_state_allgather(param, own.to(param.device))
    return gathered


def _global_state(optimizer: Any) -> Any:
    groups = [{**numbers, "params": []} for numbers in optimizer.optimizer.param_groups]
    return {ZERO_STAGE: 3, LOSS_SCALER: optimizer.loss_scaler,
            "dynamic_loss_scale": optimizer.dynamic_loss_scale, "overflow": optimizer.overflow,
            OPTIMIZER_STATE_DICT: {"state": {0: {"step": step_of(optimizer._state_of(0))}},
                                   PARAM_GROUPS: groups},
            PARAM_GROUPS: groups}


def _save(value: Any, path: str) -> None:
    make_directories(os.path.dirname(path))
    if isinstance(value, torch.Tensor):
        # A view would be saved with its whole storage.
        value = value.detach().flatten().cpu().clone()
    with replacing(path) as partial:
        writing.save(value, partial)
