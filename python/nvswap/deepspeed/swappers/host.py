# SPDX-License-Identifier: Apache-2.0
"""
Which class DeepSpeed's ZeRO-3 optimizer is, by the devices of a job, and the one for state in memory
with parameters on NVMe. DeepSpeed saves such a job, but its loader takes all parameters for being in
memory.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, List, Optional

import torch
from deepspeed.checkpoint.constants import OPTIMIZER_STATE_DICT
from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

from nvswap.deepspeed.checkpoint.zero3 import (
    Checkpoints, global_state_in, set_param_group_numbers)
from nvswap.deepspeed.releases import ReleasedStage3
from nvswap.errors import invalid


def class_with_state_in_memory(offload_param_config: Any) -> Any:
    """HostStage3, or DeepSpeed's class if no parameters are on NVMe either."""
    on_drive = offload_param_config is not None and \
        offload_param_config.device == OffloadDeviceEnum.nvme
    return HostStage3 if on_drive else DeepSpeedZeroOptimizer_Stage3


class PartitionedStage3(ReleasedStage3):
    """Refuses parameters for the drive that a zero.Init has partitioned without a swapper."""

    def _move_to_flat_buffer(self, param_list: List[Any], flat_buffer: Optional[torch.Tensor],
                             *args: Any, **kwargs: Any) -> None:
        if flat_buffer is None and any(param.nvme_swapper is None for param in param_list):
            raise invalid("a deepspeed.zero.Init that knows of no offload_param on nvme partitioned "
                          "the parameters: give it the configuration of deepspeed.initialize, "
                          "zero.Init(config_dict_or_path=...)", "offload_param")
        super()._move_to_flat_buffer(param_list, flat_buffer, *args, **kwargs)


class StoredStage3(Checkpoints, PartitionedStage3):
    """Takes the arguments of DeepSpeed's class, and stands in its place. A subclass has the state in a
    store; with offload_optimizer on any other device than nvme it becomes class_with_state_in_memory."""

    def __init__(self, *args: Any, offload_optimizer_config: Any = None, **kwargs: Any) -> None:
        if offload_optimizer_config is None or \
                offload_optimizer_config.device != OffloadDeviceEnum.nvme:
            self.__class__ = class_with_state_in_memory(kwargs.get("offload_param_config"))
        # super() takes no object whose class is no longer this one.
        DeepSpeedZeroOptimizer_Stage3.__init__(
            self, *args, offload_optimizer_config=offload_optimizer_config, **kwargs)


class HostStage3(PartitionedStage3):
    """Loads state as DeepSpeed does, and then writes the new weights to the drive."""

    fp16_partitioned_groups_flat: List[Optional[torch.Tensor]]  # None: on the drive
    fp16_partitioned_groups: List[List[torch.Tensor]]

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._partition_all_parameters()
        # Else it would refresh the master weights from the stand-ins.
        kwargs["load_from_fp32_weights"] = True
        with self._stand_ins():
            super().load_state_dict(*args, **kwargs)
        for group, flat in enumerate(self.fp16_partitioned_groups_flat):
            if flat is None:
                self._partitioned_params_swap_out(group)

    def load_hp_checkpoint_state_from_checkpoint_dir_stage3(self, checkpoint_dir: str, *param_shapes: Any) -> None:
        own = [dict(param_group) for param_group in self.optimizer.param_groups]
        super().load_hp_checkpoint_state_from_checkpoint_dir_stage3(checkpoint_dir, *param_shapes)
        # It has given all parameter groups the settings of the first one.
        for param_group, numbers in zip(self.optimizer.param_groups, own):
            param_group.update(numbers)
        saved = global_state_in(checkpoint_dir)[OPTIMIZER_STATE_DICT]
        set_param_group_numbers(self.optimizer, saved["param_groups"])

    @contextmanager
    def _stand_ins(self) -> Iterator[None]:
        """Tensors without memory for what is on the drive."""
        flats, partitions = self.fp16_partitioned_groups_flat, self.fp16_partitioned_groups
        stand_ins = [torch.empty(int(numel), dtype=self.dtype, device="meta") if flat is None else None
                     for flat, numel in zip(flats, self.fp16_partitioned_groups_flat_numel)]
        self.fp16_partitioned_groups_flat = [
            flat if each is None else each for flat, each in zip(flats, stand_ins)]
        self.fp16_partitioned_groups = [
            own if each is None else [each] for own, each in zip(partitions, stand_ins)]
        try:
            yield
        finally:
            self.fp16_partitioned_groups_flat = flats
            self.fp16_partitioned_groups = partitions

    def _restore_from_bit16_weights(self) -> None:
        for group, master in enumerate(self.fp32_partitioned_groups_flat):
            self._swap_in_sub_group_to_flat_buffer(master.data, group)
