# SPDX-License-Identifier: Apache-2.0
"""
Loads of jobs that have DeepSpeed's own swappers, at the depth of the ops alone. With optimizer state on NVMe DeepSpeed
copies its swap files back, and reads weights from them; it leaves out the optimizer's numbers, and sub-groups that are
too small for a swap file, and the first step replaces the moments by zeros. With parameters alone on NVMe it takes them
for being in memory.
"""

from __future__ import annotations

import errno
import functools
import os
from typing import Any

import torch
from deepspeed.checkpoint.constants import FP32_FLAT_GROUPS, LOSS_SCALER, OPTIMIZER_STATE_DICT
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

from nvswap.deepspeed.checkpoint.engine import CheckpointEngine
from nvswap.deepspeed.checkpoint.loads import check_parameters
from nvswap.deepspeed.checkpoint.ranks import together
from nvswap.deepspeed.releases import replace_moments, swap_files
from nvswap.deepspeed.swappers.host import HostStage3
from nvswap.errors import Error


def watch_swapped() -> None:
    """Has each DeepSpeedEngine with DeepSpeed's own swappers load all that it saved; calling it again changes
    nothing."""
    from deepspeed.runtime.engine import DeepSpeedEngine

    load, load_state = DeepSpeedEngine._load_checkpoint, DeepSpeedEngine._load_zero_checkpoint
    if hasattr(load, "nvswap_watches_swapped"):
        return

    @functools.wraps(load)
    def loaded(self: Any, load_dir: str, tag: Any, *args: Any, **kwargs: Any) -> Any:
        optimizer, is_swapped = self.optimizer, _is_swapped(self)
        if type(optimizer) is DeepSpeedZeroOptimizer_Stage3 and optimizer.params_in_nvme_and_cpu and not is_swapped:
            optimizer.__class__ = HostStage3  # which other depths have from the start
        if is_swapped and (self.load_universal_checkpoint() or kwargs.get("load_module_only") or
                           not kwargs.get("load_optimizer_states", True)):
            raise Error(errno.ENOTSUP, "DeepSpeed's own swappers load neither weights without their moments nor a "
                        'universal checkpoint: leave out "nvswap": {"deepspeed": "ops"}; weights of a tag that was '
                        "saved with it are those of save_16bit_model in a job that loads all of it")
        result = load(self, load_dir, tag, *args, **kwargs)
        if is_swapped and result[0] is not None:
            together(f"load {tag}", lambda: _load_rest(self, load_dir, str(tag)))
        return result

    @functools.wraps(load_state)
    def loaded_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Called before 0.19 also for state in swap files, which it takes for being in memory."""
        return _is_swapped(self) or load_state(self, *args, **kwargs)

    loaded.nvswap_watches_swapped = True  # type: ignore[attr-defined]
    DeepSpeedEngine._load_checkpoint = loaded
    DeepSpeedEngine._load_zero_checkpoint = loaded_state


def _is_swapped(engine: Any) -> bool:
    """Whether its state is in DeepSpeed's own swap files."""
    return not isinstance(engine.checkpoint_engine, CheckpointEngine) and \
        bool(getattr(engine.optimizer, "swap_optimizer", False))


def _load_rest(engine: Any, load_dir: str, tag: str) -> None:
    """All but the contents of swap files, which DeepSpeed copies next."""
    optimizer, path = engine.optimizer, engine._get_zero_ckpt_name(load_dir, tag)
    check_parameters(engine, engine._get_ckpt_name(load_dir, tag))
    saved = engine.checkpoint_engine.load(path, map_location="cpu")[OPTIMIZER_STATE_DICT]
    masters, own = saved[FP32_FLAT_GROUPS], optimizer.fp32_partitioned_groups_flat
    # Those in swap files have no elements.
    if [master.numel() for master in masters] != [master.numel() for master in own]:
        raise Error(errno.ESTALE, f"{path} has other sub-groups in swap files than this job: load it with the "
                    "sub_group_size, aio.block_size and number of ranks that it was saved with", path=path)
    optimizer.loss_scaler = saved[LOSS_SCALER]
    optimizer.dynamic_loss_scale, optimizer.overflow = saved["dynamic_loss_scale"], saved["overflow"]
    optimizer._set_fp32_optimizer_param_groups()
    optimizer.optimizer.load_state_dict(saved[OPTIMIZER_STATE_DICT])
    optimizer._clear_fp32_optimizer_param_groups()
    folder = swap_files(engine, os.path.join(load_dir, tag))
    swapper = optimizer.optimizer_swapper
    for master, parameter in zip(masters, own):
        info = swapper.swap_params_info.get(swapper.parameter_id(parameter))
        if info is None:
            parameter.data.copy_(master)
            continue
        moments = {key: value for key, value in optimizer.optimizer.state[parameter].items()
                   if torch.is_tensor(value) and not value.numel()}
        for key, value in moments.items():
            value.ds_id = f"{key}-{info.param_id}"
        paths = replace_moments(info, list(moments.values()))
        nbytes = swapper._io_aligned_numel(info.numel()) * swapper.swap_element_size
        for name in map(os.path.basename, paths):
            _check_swap_file(os.path.join(folder, name), nbytes)


def _check_swap_file(path: str, nbytes: int) -> None:
    found = os.path.getsize(path) if os.path.exists(path) else 0
    if found != nbytes:
        raise Error(errno.ENODATA, f"{path} has {found} bytes and must have {nbytes}: the checkpoint was not saved "
                    "to its end, or by a job with other settings: load another tag", path=path)
