# SPDX-License-Identifier: Apache-2.0
"""
Frozen parameters in checkpoints. No optimizer has their weights, so DeepSpeed saves each rank's
partition from memory, and loads it there; of a parameter in a store only a placeholder is in memory.
With a universal checkpoint DeepSpeed loads none of them, as each rank reads the first rank's file
alone, nor trained ones that were frozen when it was saved.
"""

from __future__ import annotations

import errno
import functools
import os
from typing import Any, Callable, Dict, Optional

import torch
from deepspeed import comm as dist
from deepspeed.checkpoint.constants import FROZEN_PARAM_FRAGMENTS, FROZEN_PARAM_SHAPES

from nvswap.deepspeed.checkpoint.buffers import load_buffers
from nvswap.deepspeed.checkpoint.engine import CheckpointEngine
from nvswap.deepspeed.checkpoint.zero3 import UNIVERSAL
from nvswap.deepspeed.releases import model_states
from nvswap.deepspeed.swappers.parameters import ParameterSwapper
from nvswap.errors import Error


def watch_frozen() -> None:
    """Has each DeepSpeedEngine save and load frozen parameters that are in a store; calling it again
    changes nothing."""
    from deepspeed.runtime.engine import DeepSpeedEngine

    fragment, load = DeepSpeedEngine._get_param_fragment_func, DeepSpeedEngine.load_module_state_dict
    load_files = DeepSpeedEngine._load_checkpoint
    if hasattr(load, "nvswap_watches"):
        return

    @functools.wraps(fragment)
    def fragment_of(self: Any, param: Any) -> torch.Tensor:
        swapper = _swapper_of(param)
        partition: torch.Tensor = swapper.copy(param) if swapper else fragment(self, param)
        return partition

    @functools.wraps(load)
    def loaded(self: Any, checkpoint: Any, strict: bool = True, *args: Any, **kwargs: Any) -> Any:
        fragments = checkpoint.get(FROZEN_PARAM_FRAGMENTS)
        if fragments is None or not (isinstance(self.checkpoint_engine, CheckpointEngine) or
                                     any(map(_swapper_of, self.module.parameters()))):
            return load(self, checkpoint, strict, *args, **kwargs)
        result = load(self, {**checkpoint, FROZEN_PARAM_FRAGMENTS: None}, strict, *args, **kwargs)
        shapes = checkpoint.get(FROZEN_PARAM_SHAPES) or {}
        # Of weights alone load() has loaded by name what was trained when they were saved.
        optional = not strict or kwargs.get("fetch_z3_params", False)
        for param in self.module.parameters():
            name = self.param_names[param]
            if not param.requires_grad and (name in fragments or not optional):
                _check_shape(name, shapes, param)
                _load_fragment(param, name, fragments)
        return result

    @functools.wraps(load_files)
    def loaded_files(self: Any, load_dir: str, tag: Any, *args: Any, **kwargs: Any) -> Any:
        result = load_files(self, load_dir, tag, *args, **kwargs)
        if self.load_universal_checkpoint() and isinstance(self.checkpoint_engine, CheckpointEngine):
            strict = kwargs.get("load_module_strict", True)
            path = model_states(self, os.path.join(load_dir, tag), 0)
            load_buffers(self.module, self.checkpoint_engine.load(path), strict)
            _load_universal(self, load_dir, tag, strict)
        return result

    loaded.nvswap_watches = True  # type: ignore[attr-defined]
    DeepSpeedEngine._load_checkpoint = loaded_files
    DeepSpeedEngine._get_param_fragment_func = fragment_of
    DeepSpeedEngine.load_module_state_dict = loaded


def _swapper_of(param: Any) -> Optional[ParameterSwapper]:
    """Of a parameter whose partition is in a store."""
    swapper = getattr(param, "nvme_swapper", None)
    in_store = isinstance(swapper, ParameterSwapper) and swapper.has(param)
    return swapper if in_store else None


def _load_universal(engine: Any, load_dir: str, tag: Any, strict: bool) -> None:
    """Loads this rank's part of each parameter that the optimizer does not: it is frozen, or was when the
    checkpoint was saved."""
    shapes: Dict[str, Any] = {}
    zero = os.path.join(load_dir, tag, UNIVERSAL)

    @functools.lru_cache(maxsize=None)
    def fragments_of(rank: int) -> Any:
        path = model_states(engine, os.path.join(load_dir, tag), rank)
        loaded = engine.checkpoint_engine.load(path)
        shapes.update(loaded.get(FROZEN_PARAM_SHAPES) or {})
        return loaded.get(FROZEN_PARAM_FRAGMENTS) or {}

    for param in engine.module.parameters():
        name = engine.param_names[param]
        if name in fragments_of(0):
            _check_shape(name, shapes, param)
            _load_fragment(param, name, {name: _part_of(engine, param, name, fragments_of)})
        elif not param.requires_grad and os.path.isdir(os.path.join(zero, name)):
            _load_fragment(param, name, {name: engine.optimizer._universal_partition(zero, param, "fp32")})
        elif not param.requires_grad and strict:
            _check_saved(name, {})


def _part_of(engine: Any, param: Any, name: str, fragments_of: Callable[[int], Any]) -> torch.Tensor:
    """This rank's part, from the files that have it, one of each rank that saved."""
    first: torch.Tensor = fragments_of(0)[name].flatten()
    each = max(first.numel(), 1)
    part = first.new_zeros(getattr(param, "ds_tensor", param).numel())
    begin = part.numel() * dist.get_rank(engine.optimizer.dp_process_group)
    end = min(begin + part.numel(), param.ds_numel)
    skipped = begin // each
    saved = torch.cat([first[:0], *(fragments_of(rank)[name].flatten() for rank in
                                    range(skipped, -(-end // each)))])
    mine = saved[begin - skipped * each:end - skipped * each]
    part[:mine.numel()] = mine
    return part


def _check_saved(name: str, fragments: Any) -> None:
    if name not in fragments:
        raise Error(errno.ENOENT, f"{name}: the checkpoint has no weights of this frozen parameter: it "
                    "is new, or was trained or excluded when the checkpoint was saved. With "
                    "load_module_strict=False it keeps the weights that it has", tensor=name)


def _check_shape(name: str, shapes: Any, param: Any) -> None:
    saved, own = tuple(shapes.get(name, ())), tuple(getattr(param, "ds_shape", param.shape))
    if name in shapes and saved != own:
        raise Error(errno.ESTALE, f"{name}: the checkpoint has this frozen parameter with the shape {saved}, "
                    f"and this job with {own}", tensor=name)


def _load_fragment(param: Any, name: str, fragments: Any) -> None:
    _check_saved(name, fragments)
    partition = getattr(param, "ds_tensor", param)
    if fragments[name].numel() != partition.numel():
        raise Error(errno.EINVAL, f"{name}: the checkpoint has {fragments[name].numel()} elements of "
                    f"this frozen parameter for a rank, and this job has {partition.numel()}: load it "
                    "on as many ranks as saved it", tensor=name)
    swapper = _swapper_of(param)
    if swapper:
        swapper.replace(param, fragments[name])
    else:
        partition.data.copy_(fragments[name].data)
