# SPDX-License-Identifier: Apache-2.0
"""
Adapts older releases of DeepSpeed to the interface of the newest one, for which the rest of this package is written.
Each difference stands here, under the release that made it. Features are looked for, not versions, so that builds
between two releases work too.
"""

from __future__ import annotations

import importlib
import inspect
import os
import warnings
from functools import cached_property, reduce
from typing import Any, Dict, List, Sequence, Set, Tuple

import deepspeed
import torch
from deepspeed import comm as dist
from deepspeed.accelerator import get_accelerator

import nvswap
from nvswap.deepspeed import VersionError
from nvswap.deepspeed.pinned import PINNED, is_pinned

try:
    from deepspeed.runtime import engine as runtime
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.swap_tensor.utils import SwapBufferPool
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
    from deepspeed.utils import debug
except ImportError as lost:
    raise VersionError(f"nvswap {nvswap.__version__} can't take the place of ops of DeepSpeed {deepspeed.__version__}: "
                       f"{lost}") from lost

OLDEST, NEWEST = (0, 16, 0), (0, 19, 8)

# What each depth replaces or calls: modules, and names in them.
_OPS = {
    "deepspeed.ops": ["__compatible_ops__"],
    "deepspeed.ops.op_builder": ["AsyncIOBuilder.is_compatible"],
    "deepspeed.ops.op_builder.builder": ["OpBuilder._loaded_ops"],
    "deepspeed.runtime.config": ["DeepSpeedConfig.__init__"],
    "deepspeed.runtime.engine": ["DeepSpeedEngine.offload_states", "DeepSpeedEngine.reload_states"],
}
_SWAPPERS = {
    "deepspeed.runtime.engine": ["get_fp32_state_dict_from_zero_checkpoint", *(f"DeepSpeedEngine.{name}" for name in (
        "__init__", "_configure_checkpointing", "_get_all_ckpt_names", "_get_ckpt_name", "_get_param_fragment_func",
        "_get_rank_zero_ckpt_name", "_get_zero_ckpt_name", "_get_zero_param_shapes", "_load_checkpoint",
        "_load_zero_checkpoint", "_save_checkpoint", "_save_moe_checkpoint", "_save_zero_checkpoint",
        "load_checkpoint", "load_module_state_dict", "save_checkpoint"))],
    "deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine": ["TorchCheckpointEngine"],
    "deepspeed.runtime.swap_tensor.partitioned_param_swapper": ["PartitionedParamStatus.INFLIGHT"],
    "deepspeed.runtime.zero.offload_config": ["OffloadDeviceEnum.nvme"],
    "deepspeed.runtime.zero.partition_parameters": ["AsyncPartitionedParameterSwapper", "ZeroParamStatus.INFLIGHT"],
    "deepspeed.runtime.zero.parameter_offload": ["FWD_MODULE_STACK", "DeepSpeedZeRoOffload.destroy"],
    "deepspeed.runtime.zero.stage3": [
        "PartitionedOptimizerSwapper", "PipelinedOptimizerSwapper", *(
            f"DeepSpeedZeroOptimizer_Stage3.{name}" for name in (
                "_configure_tensor_swapping", "_fp32_state_allgather", "_get_fp32_opt_state_partition",
                "_load_global_state_stage3", "_load_universal_checkpoint", "_move_to_flat_buffer",
                "_overflow_check_and_loss_scale_update",
                "_partition_all_parameters", "_partitioned_params_swap_out", "_prepare_sub_group",
                "_reassign_or_swap_out_partitioned_parameters", "_release_sub_group", "_restore_from_bit16_weights",
                "_rigid_load_state_dict", "_rigid_state_dict", "_swap_in_sub_group_to_flat_buffer",
                "_unflatten_partitioned_parameters", "destroy",
                "load_hp_checkpoint_state_from_checkpoint_dir_stage3", "load_state_dict",
                "refresh_fp32_params", "set_full_hp_param",
                "set_local_hp_param", "unscale_and_clip_grads"))],
    "deepspeed.utils.debug": ["param_names"],
    "deepspeed.utils.zero_to_fp32": ["get_checkpoint_files"],
}
_STEP = {
    "deepspeed.ops.adagrad": ["DeepSpeedCPUAdagrad"],
    "deepspeed.ops.adam": ["DeepSpeedCPUAdam"],
    "deepspeed.ops.lion": ["DeepSpeedCPULion"],
    "deepspeed.runtime.zero.partition_parameters": ["Init._ensure_availability_of_partitioned_params"],
    "deepspeed.runtime.zero.partitioned_param_coordinator": [
        "PartitionedParameterCoordinator.fetch_sub_module", "iter_params"],
    "deepspeed.runtime.zero.stage3": [f"DeepSpeedZeroOptimizer_Stage3.{name}" for name in (
        "_configure_offloading", "_constant_buffered_norm2", "_create_fp32_partitions", "_optimizer_step",
        "_post_step", "_pre_step", "checkpoint_event_prologue", "empty_partition_cache", "get_fp32_grad_for_param",
        "get_fp32_grad_partitions", "get_full_hp_param", "initialize_optimizer_states", "offload_states",
        "partition_grads")],
}
_REQUIRED: Dict[str, Sequence[Dict[str, List[str]]]] = {
    "ops": (_OPS,), "swappers": (_OPS, _SWAPPERS), "step": (_OPS, _SWAPPERS, _STEP)}
# Of DeepSpeedZeroOptimizer_Stage3: what older releases work without, and one after NEWEST must have.
_STAGE3_SINCE_OLDEST = [
    "_get_fp32_grad_state_partition", "update_fp32_grad_for_param_vectorized",  # 0.16.9
    "_get_param_partition_rank",  # 0.19.3
    "load_module_checkpoint_state_from_checkpoint_dir_stage3", "_offload_grad_partition_at_boundary",  # 0.19.5
    "_loss_scale_update_and_overflow_cleanup",  # 0.19.8
]


def check_release() -> None:
    """
    To be called before anything is replaced. A release after NEWEST is tried, with a warning.

    Raises
    ------
    VersionError
        DeepSpeed is older than OLDEST, or has not all that the ops need.
    """
    ours, theirs = nvswap.__version__, deepspeed.__version__
    if _parsed(theirs) < OLDEST:
        raise VersionError(f"nvswap {ours} takes the place of the ops of DeepSpeed {_formatted(OLDEST)} and newer, and "
                           f"{theirs} is installed: install another release of either")
    missing = missing_places("ops")
    if missing:
        raise VersionError(f"DeepSpeed {theirs} has no {', '.join(missing)}, which nvswap {ours} needs: "
                           f"install DeepSpeed {_formatted(NEWEST)}, or a newer nvswap")
    if _parsed(theirs) > NEWEST:
        lost = missing_places("step")
        warnings.warn(
            f"DeepSpeed {theirs} is newer than nvswap {ours} was tried with, {_formatted(NEWEST)}" +
            (f": it has no {', '.join(lost)}, so only \"nvswap\": {{\"deepspeed\": \"ops\"}} can work" if lost else ""),
            RuntimeWarning, stacklevel=3)


def missing_places(depth: str) -> List[str]:
    """Names that a depth needs and this release lacks, as MODULE.NAME."""
    missing = []
    required = [place for places in _REQUIRED[depth] for place in places.items()]
    if depth != "ops" and _parsed(deepspeed.__version__) > NEWEST:
        required.append(("deepspeed.runtime.zero.stage3",
                         [f"DeepSpeedZeroOptimizer_Stage3.{name}" for name in _STAGE3_SINCE_OLDEST]))
    for module, names in required:
        for name in names:
            try:
                reduce(getattr, name.split("."), importlib.import_module(module))
            except (ImportError, AttributeError):
                missing.append(f"{module}.{name}")
    return missing


def _parsed(version: str) -> Tuple[int, ...]:
    numbers = []
    for part in version.split("+")[0].split(".")[:3]:
        digits = part[:len(part) - len(part.lstrip("0123456789"))]
        numbers.append(int(digits or 0))
    return tuple(numbers)


def _formatted(version: Tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def remember_pinned() -> None:
    """Has the accelerator of a CPU report as pinned what it was asked to pin. Before 0.19.4 the swappers ask it which
    tensors are their buffers, and write new state through a buffer; it reports none, and they end with an
    AssertionError."""
    accelerator = get_accelerator()
    if accelerator.device_name() == "cpu" and "aio_handle" not in inspect.signature(SwapBufferPool).parameters:
        accelerator.pin_memory = lambda tensor, *_, **__: PINNED.adopt(tensor)
        accelerator.is_pinned = is_pinned


def forget_names() -> None:
    """Clears the names of modules and parameters, which the engine made last keeps before 0.19.7."""
    if isinstance(debug.param_names, dict):
        debug.debug_clear_module_and_param_names()


def swap_copy_predicate_name() -> str:
    """The method of DeepSpeedEngine that tells whether checkpoints have copies of the optimizer's swap files."""
    return "zero_nvme_offload_optimizer" if hasattr(DeepSpeedEngine, "zero_nvme_offload_optimizer") \
        else "zero_has_nvme_offload"  # before 0.16.4


def model_parallel_rank(engine: Any) -> int:
    """That in the names of a DeepSpeedEngine's checkpoint files; an attribute since 0.19.6."""
    before = 0 if engine.mpu is None else engine.mpu.get_model_parallel_rank()
    return int(getattr(engine, "checkpoint_mp_rank", before))


def model_states(engine: Any, folder: str, rank: int) -> str:
    """The file in a tag's folder with a rank's model states; _get_ckpt_name takes another rank since 0.18.0."""
    return os.path.join(folder, f"zero_pp_rank_{rank}_mp_rank_{model_parallel_rank(engine):02d}_model_states.pt")


def swap_files(engine: Any, folder: str) -> str:
    """The folder in a tag's one with copies of the optimizer's swap files, which some releases have for all ranks."""
    rank = engine.local_rank if engine.use_node_local_storage() else engine.global_rank
    of_ranks = [f"rank{rank:02d}"] if hasattr(runtime, "dp_index_to_str") else []
    return os.path.join(folder, "offloaded_tensors", *of_ranks)


def replace_moments(info: Any, moments: List[torch.Tensor]) -> List[str]:
    """Has DeepSpeed's OptimizerStateSwapInfo take these for the moments in swap files; returns the paths of weights and
    moments, which are beside the tensors before 0.17."""
    paths = getattr(info, "swap_paths", [])
    del info.tensors[1:], paths[1:]
    info.add_state_tensors(moments)
    return paths or info.get_swap_paths()


def checkpoint_settings(config: Any) -> Tuple[Dict[str, Any], Any]:
    """The "checkpoint" block of a DeepSpeedConfig, and the model of its "datastates_ckpt" block or None; they have
    attributes since 0.17.1 and 0.18.1."""
    return getattr(config, "checkpoint_config", {}), getattr(config, "datastates_config", None)


class ReleasedStage3(DeepSpeedZeroOptimizer_Stage3):
    """DeepSpeed's ZeRO-3 optimizer with what this package uses of the newest release's."""

    torch_autocast_gradscaler = None  # 0.17.2
    zenflow = False  # 0.18.1
    fp16_master_weights_and_gradients = False  # 0.18.3
    master_weights_and_grads_dtype = torch.float32  # 0.18.3

    if not hasattr(DeepSpeedZeroOptimizer_Stage3, "_get_fp32_grad_state_partition"):  # 0.16.9
        def get_fp32_grad_for_param(self, param: Any) -> Any:
            part = self.get_local_fp32_grad_for_param(param)
            return None if part is None else self._fp32_state_allgather(param, part)

        def get_local_fp32_grad_for_param(self, param: Any) -> Any:
            return self._get_fp32_grad_state_partition(param, True)[0].float() if param.requires_grad else None

        def set_fp32_grad_for_param(self, value: torch.Tensor, param: Any) -> None:
            if param.requires_grad:
                part, group = self._get_fp32_grad_state_partition(param, False)
                begin = part.numel() * self._get_param_partition_rank(param)
                part.copy_(value.flatten().narrow(0, begin, part.numel()))
                if self._swappable_optimizer_subgroup(group):
                    self.optimizer_swapper.writeback_optimizer_state_and_gradients(
                        self.fp32_partitioned_groups_flat[group], False, True)
                    self.fp32_partitioned_groups_flat[group].grad = None

        def _get_fp32_grad_state_partition(self, param: Any, release_swap_buffers: bool) -> Any:
            if not get_accelerator().resolves_data_dependency():
                self.reduce_and_partition_stream.synchronize()
            group, offset, numel = self.grad_position[self.get_param_id(param)]
            swapped = self._swappable_optimizer_subgroup(group)
            if swapped:
                self._optimizer_states_and_gradient_swap_in(group)
            part = self.fp32_partitioned_groups_flat[group].grad.narrow(0, offset, numel)
            if swapped and release_swap_buffers:
                part = part.clone()
                self._release_swap_buffers(group)
            return part, group

        def _get_fp32_opt_state_partition(self, param: Any, optim_state_key: Any = None,
                                          release_swap_buffers: bool = False) -> Any:
            part, group = super()._get_fp32_opt_state_partition(param, optim_state_key)
            if release_swap_buffers and self._swappable_optimizer_subgroup(group):
                part = part.clone()
                self._release_swap_buffers(group)
            return part, group

        def _release_swap_buffers(self, group: int) -> None:
            self.optimizer_swapper.release_swap_buffers(parameter=self.fp32_partitioned_groups_flat[group])
            self.fp32_partitioned_groups_flat[group].grad = None

        def _optimizer_states_and_gradient_swap_in(self, group: int, timer_names: Any = None) -> None:
            super()._optimizer_states_and_gradient_swap_in(group, set() if timer_names is None else timer_names)

        def _optimizer_states_and_gradient_swap_out(self, group: int, timer_names: Any = None) -> None:
            super()._optimizer_states_and_gradient_swap_out(group, set() if timer_names is None else timer_names)

    if "param_names" not in inspect.signature(DeepSpeedZeroOptimizer_Stage3.__init__).parameters:  # 0.18.0
        def _configure_offloading(self, *args: Any) -> None:
            self.param_names = dict(debug.param_names)
            super()._configure_offloading(*args)

    if not hasattr(DeepSpeedZeroOptimizer_Stage3, "_get_param_partition_rank"):  # 0.19.3
        def _get_param_partition_rank(self, _: Any) -> int:
            return int(dist.get_rank(group=self.dp_process_group))

        def _get_param_partition_world_size(self, _: Any) -> int:
            return int(dist.get_world_size(group=self.dp_process_group))

    if not hasattr(DeepSpeedZeroOptimizer_Stage3, "load_module_checkpoint_state_from_checkpoint_dir_stage3"):  # 0.19.5
        def _load_universal_checkpoint(self, checkpoint_folder: str, load_optimizer_states: bool,
                                       load_from_fp32_weights: bool, *param_shapes: Any) -> None:
            if load_optimizer_states or not hasattr(self, "load_module_checkpoint_state_from_checkpoint_dir_stage3"):
                self.load_hp_checkpoint_state_from_checkpoint_dir_stage3(checkpoint_folder, *param_shapes)
            else:
                self.load_module_checkpoint_state_from_checkpoint_dir_stage3(checkpoint_folder, load_from_fp32_weights)

    if not hasattr(DeepSpeedZeroOptimizer_Stage3, "_offload_grad_partition_at_boundary"):  # 0.19.5
        # What partition_grads hands the gradients of a window to at its end; None: DeepSpeed's own way.
        _offload_grad_partition_at_boundary: Any = None

        def partition_grads(self, params_to_release: List[Any], grad_partitions: List[torch.Tensor]) -> Any:
            own, at_boundary = self._offload_grad_partition_at_boundary, self.is_gradient_accumulation_boundary
            if own is None:
                return super().partition_grads(params_to_release, grad_partitions)
            self.is_gradient_accumulation_boundary = False
            try:
                buffers = super().partition_grads(params_to_release, grad_partitions)
            finally:
                self.is_gradient_accumulation_boundary = at_boundary
            # One buffer for each parameter of which this rank has a part.
            used = [(param, partition) for param, partition in zip(params_to_release, grad_partitions)
                    if param.partition_numel() * self._get_param_partition_rank(param) < param.ds_numel]
            for (param, partition), buffer in zip(used, buffers):
                self._offload_boundary_param_ids.add(param.ds_id)
                if at_boundary:
                    # Behind the copy to the host, in the order of the stream.
                    own(param, buffer.to(partition.device, non_blocking=True))
            return buffers

        @cached_property
        def _offload_boundary_param_ids(self) -> Set[int]:
            """The parameters that the window has used, until _pre_step."""
            return set()

        def _pre_step(self) -> None:
            self._offload_boundary_param_ids.clear()
            super()._pre_step()
