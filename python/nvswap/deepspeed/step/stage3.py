# SPDX-License-Identifier: Apache-2.0
"""
DeepSpeed's ZeRO-3 optimizer whose state lies in the store of an nvswap.Optimizer.

With "offload_optimizer": {"device": "nvme"} it takes DeepSpeed's path for state in host memory and
replaces the methods that touch the state, so norm, clipping, overflow, loss scale and gradient
accumulation are DeepSpeed's own code. With any other device it is DeepSpeed's class, or that of
swappers.host. Replaced are:

_configure_offloading                 no optimizer swapper is made
_create_fp32_partitions               the store is opened; stand-ins take the partitions' place
initialize_optimizer_states           the store does it
_offload_grad_partition_at_boundary   gradients stay in the flat buffer, and only the norm is taken
_pre_step                             gradients of parameters that the window did not use are zeroed, and
                                      what an exception amid a step left in the stand-ins goes
_overflow_check_and_loss_scale_update, _loss_scale_update_and_overflow_cleanup
                                      a step that is finished by a second call has the loss scale of the first
_optimizer_step                       collects a sub-group; the last one's call makes the whole step
_reassign_or_swap_out_partitioned_parameters   the step has done it
_post_step, partition_grads, checkpoint_event_prologue, load_state_dict, empty_partition_cache, offload_states,
get_full_hp_param, get_fp32_grad_for_param
                                      a step that goes on behind the forward ends first: see step.overlap
_get_fp32_grad_state_partition, get_fp32_grad_partitions, update_fp32_grad_for_param_vectorized,
_get_fp32_opt_state_partition, set_full_hp_param, set_local_hp_param
                                      safe_get_* and safe_set_*: the flat buffer and the store
_rigid_state_dict and others of checkpoint.zero3, _put_weights_of_parameters
                                      checkpoints, from and to the store
destroy                               closes the store

A stand-in has one element and a gradient of 1. DeepSpeed's unscale_and_clip_grads multiplies that
by the factor of the step, which is so computed by its own code, to the last bit.
"""

from __future__ import annotations

import enum
import errno
import re
import weakref
from functools import cached_property
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from deepspeed import comm as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum
from deepspeed.utils import logger

from nvswap.checkpoint import Parameter
from nvswap.config import Config
from nvswap.deepspeed import progress
from nvswap.deepspeed.checkpoint.ranks import together
from nvswap.deepspeed.checkpoint.stored import OptimizerFile, Stored
from nvswap.deepspeed.checkpoint.zero3 import is_read_by_library, step_of
from nvswap.deepspeed.depth import choice
from nvswap.deepspeed.step.overlap import Overlap
from nvswap.deepspeed.step.rules import MUON, NAMES, Rule, rule_of
from nvswap.deepspeed.step.state import open_optimizer
from nvswap.deepspeed.step.weights import Here, NewWeights
from nvswap.deepspeed.swappers.host import StoredStage3
from nvswap.deepspeed.swappers.names import name_at, names_of
from nvswap.deepspeed.swappers.stage3 import Stage3 as SwappersStage3
from nvswap.errors import Error
from nvswap.optimizer import Group, GroupRule, Optimizer
from nvswap.tensor_files import import_optimizer

# A tensor of the optimizer, which may go beyond its first sub-group: the sub-group, and an element.
_TENSOR = re.compile(r"group(\d+)(?:\+(\d+) )?")


def _has_moments_in_bf16(settings: Dict[str, Any]) -> bool:
    """Whether bf16_optimizer_states is set, which DeepSpeed takes with bf16_master_weights_and_grads alone."""
    return bool(settings.get("bf16_optimizer_states"))


def _is_on_nvme(settings: Dict[str, Any]) -> bool:
    """Whether optimizer state is on NVMe, by the settings of DeepSpeed's class."""
    offload = settings.get("offload_optimizer_config")
    return offload is not None and bool(offload.device == OffloadDeviceEnum.nvme)


def _why_unsupported(optimizer: Any, settings: Dict[str, Any]) -> Optional[Tuple[str, str]]:
    """The key and the reason that keep a job with state on NVMe from nvswap's optimizer; None if it can have it.
    `settings` are those of DeepSpeed's class."""
    if not _is_on_nvme(settings):
        return None
    rule = rule_of(optimizer)
    if rule is None:
        beside = getattr(optimizer, "aux_optimizer", None)
        name = type(optimizer).__name__ + (f" with {type(beside).__name__}" if beside is not None else "")
        return "nvswap.deepspeed", f"the optimizer is {name}, and nvswap's are {NAMES}"
    for kind in ("fp16", "bf16"):
        if settings.get(f"{kind}_master_weights_and_gradients") and not _has_moments_in_bf16(settings):
            key = f"{kind}.{kind}_master_weights_and_grads"
            return key, f"{key} keeps master weights in 16 bits, and the step's are float32"
    if rule.name != "adam" and _has_moments_in_bf16(settings):
        key = "bf16.bf16_optimizer_states"
        return key, f"{key} keeps state in 16 bits, and nvswap that of Adam alone"
    return None


class Progress(enum.Enum):
    """How far this rank's part of a step is."""

    TO_STEP = 1
    WEIGHTS_OWED = 2  # the store has stepped, and not all parameters have their new weights
    MADE = 3


class Stage3(StoredStage3):
    _failed = False  # the last step, on some rank: the next call finishes it
    _step_progress = Progress.TO_STEP
    _lends_gradients = True  # to the store, in this call of step()
    _format_of_state: Dict[str, str] = {}  # before what "nvswap" says
    _overlap: Optional[Overlap] = None  # with nvswap.overlap_step

    # ---- Setup

    def __init__(self, module: Any, init_optimizer: Any, *args: Any, **kwargs: Any) -> None:
        unlike = _why_unsupported(init_optimizer, kwargs)
        if self._overlaps_steps and (unlike or not _is_on_nvme(kwargs)):
            reason = unlike[1] if unlike else "optimizer state is not on nvme"
            raise Error(errno.ENOTSUP, f"nvswap.overlap_step: {reason}, so the step is DeepSpeed's own: leave it out",
                        "nvswap.overlap_step")
        if unlike is None:
            if _has_moments_in_bf16(kwargs) and _is_on_nvme(kwargs):
                # Those of the store, whose master weights are float32.
                self._format_of_state = {"optimizer_state": "bf16"}
                kwargs.update(bf16_master_weights_and_gradients=False, bf16_optimizer_states=False)
            if _is_on_nvme(kwargs) and rule_of(init_optimizer) is MUON:
                from nvswap.deepspeed.step.muon import MuonStage3

                self.__class__ = MuonStage3
            StoredStage3.__init__(self, module, init_optimizer, *args, **kwargs)
            return
        key, reason = unlike
        if choice().is_asked_for:
            raise Error(errno.ENOTSUP, f'{reason}: use "nvswap": {{"deepspeed": "swappers"}}, whose checkpoints are '
                        'exact too, or "ops"', key)
        ignored = " and without nvswap.optimizer_state" * ("optimizer_state" in (choice().document.get("nvswap") or {}))
        logger.warning(f"{reason}, so this job has nvswap's swappers with DeepSpeed's own step{ignored}, as with "
                       '"nvswap": {"deepspeed": "swappers"}')
        self.__class__ = SwappersStage3  # DeepSpeed chooses the class before the optimizer is known
        SwappersStage3.__init__(self, module, init_optimizer, *args, **kwargs)

    def _configure_offloading(self, *args: Any) -> None:
        super()._configure_offloading(*args)
        self.swap_optimizer = False

    def _refuse_what_is_not_done(self) -> None:
        reason = None
        if self.torch_autocast_gradscaler is not None:
            reason = "torch_autocast with float16 has a gradient scaler of its own"
        elif self.zenflow:
            reason = "zenflow has an optimizer of its own"
        if reason:
            raise Error(errno.ENOTSUP, f'{reason}: use "nvswap": {{"deepspeed": "ops"}}', "nvswap.deepspeed")
        if self._overlaps_steps and self.params_in_nvme_and_cpu:
            reason = "offload_param on nvme writes new weights while the forward reads others from the same store"
        elif self._overlaps_steps and "compile" in choice().document:
            reason = "compile.deepcompile gathers parameters where nvswap can't have it wait for their weights"
        if reason:
            raise Error(errno.ENOTSUP, f"nvswap.overlap_step: {reason}: leave it out", "nvswap.overlap_step")

    @cached_property
    def _overlaps_steps(self) -> bool:
        with Config({"nvswap": choice().document.get("nvswap") or {}}) as config:
            return bool(config["nvswap.overlap_step"])

    def _create_fp32_partitions(self) -> None:
        self._refuse_what_is_not_done()
        numels = [int(numel) for numel in self.fp16_partitioned_groups_flat_numel]
        starts = torch.tensor([0] + numels).cumsum(0).tolist()
        self._gradient_starts: List[int] = starts[:-1]
        # Flat partitions of offload_param stay where they are; others move with offload_states.
        flats = [flat if self.offload_param else None for flat in self.fp16_partitioned_groups_flat]
        self._new_weights = NewWeights(
            {group: numel for group, numel in enumerate(numels) if flats[group] is None},
            # A step may still go on when the interpreter exits.
            self.dtype, self._put_weights, Here() if self._overlaps_steps else None)
        groups = [Group(f"group{group}", flats[group], numel, self.dtype)
                  for group, numel in enumerate(numels)]
        if self._overlaps_steps:
            self._overlap = Overlap(self.module, self.fp16_groups, numels, self._finish_step)
            self._overlap.limit_prefetch(self.parameter_offload.param_coordinator)
        self._opened = self._open(groups)
        self._store.describe = weakref.WeakMethod(self._described)
        self.subgroup_to_device = {group: "cpu" for group in range(len(numels))}
        for group, _ in enumerate(numels):
            if flats[group] is None:
                progress.report_fill(progress.STATE, 4 * self._gradient_starts[group], 4 * sum(numels))
                self._set_master_from_parameters(group)
            self.fp32_partitioned_groups_flat.append(self._stand_in(group))
        for param_group in self.optimizer.param_groups:
            param_group["params"] = []

    def _open(self, groups: List[Group]) -> Any:
        """What has the state: an Optimizer, or what has those of its methods that this class calls."""
        document = dict(choice().document)
        document["nvswap"] = {**self._format_of_state, **document.get("nvswap", {})}
        self._rule_of_groups = GroupRule(self._rule.name, len(groups))
        return open_optimizer(document, dist.get_rank(), groups, self._rule_of_groups, self._take_weights)

    @cached_property
    def _rule(self) -> Rule:
        rule = rule_of(self.optimizer)
        assert rule is not None
        return rule

    @property
    def _state_keys(self) -> Sequence[str]:  # type: ignore[override]
        return tuple(self._rule.states)

    @property
    def _store(self) -> Any:
        """The store when this rank's part of a step has ended: the step alone uses it before."""
        if self._overlap is not None:
            self._overlap.wait()
        return self._opened

    def _described(self, tensor: str) -> Optional[str]:
        found = _TENSOR.match(tensor)
        if not found:
            return None
        parameters = self.fp16_groups[int(found[1])]
        if found[2] is None:
            return names_of(parameters)
        first = name_at(parameters, int(found[2]))
        return None if first is None else f"from {first} on"

    def _stand_in(self, group: int) -> torch.Tensor:
        stand_in = torch.ones(1, requires_grad=True, device="cpu")
        stand_in.grad = torch.ones(1, device="cpu")
        names = self.fp16_partitioned_groups_flat_id[group]
        stand_in.ds_id = f"{names[0]}_{names[-1]}"  # type: ignore[attr-defined]
        return stand_in

    def _set_master_from_parameters(self, group: int) -> None:
        master = torch.empty(self._store.groups[group].numel or 0, device="cpu")
        self._swap_in_sub_group_to_flat_buffer(master, group)
        self._store.set_state(group, "master", master)

    def initialize_optimizer_states(self) -> None:
        """The store has them."""

    def destroy(self) -> None:
        try:
            super().destroy()
        finally:
            self.close_store()

    def close_store(self) -> None:
        """Closes the store of the state, and ends its writer, as far as they are there."""
        overlap = self._overlap
        try:
            if overlap is not None:
                overlap.close()
                overlap.wait()
        finally:
            for name in ("_new_weights", "_opened"):
                if hasattr(self, name):
                    getattr(self, name).close()

    # ---- Gradients

    def _offload_grad_partition_at_boundary(self, param: Any, grad_buffer: torch.Tensor,
                                            *_: Any) -> None:
        self.norm_for_param_grads[self.get_param_id(param)] = \
            self._constant_buffered_norm2(grad_buffer)

    def partition_grads(self, *args: Any) -> Any:
        self._finish_step()  # it reads the memory that the new gradients go to
        return super().partition_grads(*args)

    def _gradients_of_group(self, group: int) -> torch.Tensor:
        return self.grad_partitions_flat_buffer.narrow(
            0, self._gradient_starts[group], self._store.groups[group].numel)

    def _gradient_of(self, param: Any) -> Tuple[torch.Tensor, int]:
        group, offset, numel = self.grad_position[self.get_param_id(param)]
        return self._gradients_of_group(group).narrow(0, offset, numel), group

    def _await_gradients(self) -> None:
        """Waits for gradients that are being copied from the device."""
        if not get_accelerator().resolves_data_dependency():
            self.reduce_and_partition_stream.synchronize()

    def _pre_step(self) -> None:
        if self._overlap is not None and self._overlap.is_behind:
            self._finish_step()
        self._await_gradients()
        unfinished = self._store.info()["unfinished"]
        self._failed = self._failed or unfinished
        self._lends_gradients = self._step_progress is Progress.TO_STEP and not unfinished
        used = self._offload_boundary_param_ids
        for group, params in enumerate(self.fp16_groups):
            self.fp32_partitioned_groups_flat[group].grad.fill_(1)
            for param in params:
                if param.ds_id not in used and not self._failed:
                    self._gradient_of(param)[0].zero_()
        super()._pre_step()

    def _overflow_check_and_loss_scale_update(self, *args: Any, **kwargs: Any) -> Any:
        return False if self._failed else super()._overflow_check_and_loss_scale_update(*args, **kwargs)

    def _loss_scale_update_and_overflow_cleanup(self) -> Any:
        return False if self._failed else super()._loss_scale_update_and_overflow_cleanup()

    # ---- The step

    def _optimizer_step(self, sub_group_id: int) -> None:
        if self._lends_gradients:
            self._lend(sub_group_id)
        if sub_group_id == len(self.fp16_groups) - 1:
            self._step_all()

    def _lend(self, sub_group_id: int) -> None:
        stand_in = self.fp32_partitioned_groups_flat[sub_group_id]
        settings = self.optimizer.param_groups[self.sub_group_to_group_id[sub_group_id]]
        self._rule_of_groups.set(sub_group_id, grad_factor=stand_in.grad.item(),
                                 **self._rule.numbers(self.optimizer, settings))
        self._store.lend_gradients(sub_group_id, self._gradients_of_group(sub_group_id))

    def _step_all(self) -> None:
        """Takes the step on all ranks, or finishes the one that an error of the drive ended on some: engine.step()
        is called again, and has the gradients and the settings of its first call."""
        finishes = self._failed
        if self._overlap is not None and not finishes:
            self._overlap.begin(lambda: self._make_part(False))
        else:
            self._make_together(lambda: self._make_part(finishes))

    def _make_together(self, make: Callable[[], None]) -> None:
        self._failed = True
        together("make the step", make)
        self._forget_failure()

    def _finish_step(self) -> None:
        """On all ranks: ends the step that goes on behind the forward, or finishes it if it has failed."""
        if self._overlap is not None and self._overlap.is_behind:
            try:
                self._make_together(self._overlap.end)
            except Exception:
                self.parameter_offload.partition_all_parameters()  # some were gathered with the old weights
                raise
        elif self._overlap is not None and self._failed:
            self._make_together(lambda: self._make_part(True))

    def _make_part(self, finishes: bool) -> None:
        if self._step_progress is Progress.TO_STEP:
            try:
                progress.record_step(progress.STATE, self._opened.step()["io"], self._opened.stats())
                self._step_progress = Progress.WEIGHTS_OWED
            finally:
                self._new_weights.wait()
        if self._step_progress is Progress.WEIGHTS_OWED and finishes:
            # Those of the first call were not all written, and the store hands them out once.
            self._put_weights_of_store()
        self._step_progress = Progress.MADE

    def _forget_failure(self) -> None:
        self._failed, self._step_progress = False, Progress.TO_STEP

    def _take_weights(self, group: int, offset: int, run: Any) -> None:
        self._new_weights.add(group, offset, run)
        if self._overlap is not None and self._opened.groups[group].weights is not None:
            self._overlap.arrive(group, len(run))

    def _put_weights(self, group: int, weights: torch.Tensor) -> None:
        """Gives new weights to a sub-group's parameters, some of which may be in memory."""
        stand_in = self.fp32_partitioned_groups_flat[group]
        try:
            self.fp32_partitioned_groups_flat[group] = weights
            with get_accelerator().stream(self._copy_stream):
                self._partitioned_params_swap_out(group)
        finally:
            self.fp32_partitioned_groups_flat[group] = stand_in
        if self._overlap is not None:
            self._overlap.arrive(group, weights.numel())

    @cached_property
    def _copy_stream(self) -> Any:
        """Of new weights to the device, where the stream of the forward would have them wait for its kernels."""
        accelerator = get_accelerator()
        apart = self._overlap is not None and not accelerator.is_synchronized_device()
        return accelerator.Stream() if apart else None

    def _post_step(self, *args: Any) -> None:
        behind = self._overlap is not None and self._overlap.is_behind
        persistent = self.persistent_parameters
        try:
            if behind:
                self.persistent_parameters = []  # their modules gather them
            super()._post_step(*args)
        finally:
            self.persistent_parameters = persistent

    def _reassign_or_swap_out_partitioned_parameters(self, sub_group_id: int) -> None:
        """The step writes new weights where they belong."""

    # ---- What all ranks do together between steps

    def checkpoint_event_prologue(self) -> None:
        self._finish_step()
        super().checkpoint_event_prologue()

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._finish_step()
        super().load_state_dict(*args, **kwargs)

    def empty_partition_cache(self) -> None:
        self._finish_step()
        super().empty_partition_cache()

    def offload_states(self, *args: Any, **kwargs: Any) -> None:
        self._finish_step()
        super().offload_states(*args, **kwargs)

    def get_full_hp_param(self, *args: Any, **kwargs: Any) -> Any:
        self._finish_step()
        return super().get_full_hp_param(*args, **kwargs)

    def get_fp32_grad_for_param(self, param: Any) -> Any:
        self._finish_step()
        return super().get_fp32_grad_for_param(param)

    # ---- safe_get_* and safe_set_*

    def get_fp32_grad_partitions(self) -> Any:
        self._await_gradients()
        result: Any = {}
        for group, params in enumerate(self.fp16_groups):
            result[group] = {index: self._gradient_of(param)[0].float()
                             for index, param in enumerate(params)}
        return result

    def _get_fp32_grad_state_partition(self, param: Any, release_swap_buffers: bool) -> Any:
        del release_swap_buffers
        self._await_gradients()
        return self._gradient_of(param)

    def update_fp32_grad_for_param_vectorized(self, update_func: Any, param_list: Any) -> None:
        for param in param_list:
            if param.requires_grad:
                gradient = self.get_fp32_grad_for_param(param)
                self.set_fp32_grad_for_param(update_func(gradient, param), param)

    def _get_fp32_opt_state_partition(self, param: Any, *args: Any, optim_state_key: Any = None, **_: Any) -> Any:
        key = optim_state_key or (args[-1] if args else None)  # the second argument, before 0.16.9
        group, offset, numel = self.grad_position[self.get_param_id(param)]
        if key in self._rule.unread:
            part, values = key, torch.zeros(numel, device="cpu")
        else:
            # An unknown key is a KeyError, as that of a lookup in the optimizer's state.
            part = "master" if key is None else self._rule.states[key]
            values = self._store.get_state(group, part, offset, out=torch.empty(numel, device="cpu"))
        self._last_read = (group, part, values, offset)
        return values, group

    def set_full_hp_param(self, value: Any, param: Any, optim_state_key: Any = None) -> None:
        self._check_unread(value, optim_state_key)
        super().set_full_hp_param(value, param, optim_state_key)
        self._put_back(param)

    def set_local_hp_param(self, value: Any, param: Any, optim_state_key: Any = None) -> None:
        self._check_unread(value, optim_state_key)
        super().set_local_hp_param(value, param, optim_state_key)
        self._put_back(param)

    def _put_back(self, param: Any) -> None:
        """Writes the partition that DeepSpeed's code has got and changed; it does not get a frozen one."""
        if param.requires_grad and self._last_read[1] not in self._rule.unread:
            self._store.set_state(*self._last_read)

    def _check_unread(self, value: torch.Tensor, key: Optional[str]) -> None:
        if key in self._rule.unread and value.any():
            raise Error(errno.ENOTSUP, f"{type(self.optimizer).__name__} never reads {key}, which stays 0: leave it")

    # ---- Checkpoints

    def _stored_state(self, group: int) -> Dict[str, Stored]:
        numel = self._store.groups[group].numel or 0
        return {key: Stored(OptimizerFile(self._store), (group, part), numel)
                for key, part in {"master": "master", **self._rule.states}.items()}

    def _state_of(self, group: int) -> Dict[str, Any]:
        # An error that other ranks don't have is raised where they hear of it.
        return {"step": self._opened.step_count, **dict.fromkeys(self._state_keys),
                **self._rule.unread_states(int(self.fp16_partitioned_groups_flat_numel[group]))}

    def _put_state(self, group: int, master: torch.Tensor, state: Optional[Dict[str, Any]]) -> None:
        self._forget_failure()
        self._store.set_state(group, "master", master.float().contiguous())
        if state is not None:
            for key, part in self._rule.states.items():
                values = state.get(key, torch.zeros(1, device="cpu").expand_as(master))
                self._store.set_state(group, part, values.float().contiguous())
            self._store.step_count = step_of(state)
        self._put_master(group, master)

    def _check_saved(self, states: List[Dict[str, Any]], param_groups: List[Dict[str, Any]]) -> None:
        self._rule.check_saved(self.optimizer, states, param_groups)

    def _import_state(self, path: str, names: List[Optional[str]], step: int) -> bool:
        if not is_read_by_library(lambda: import_optimizer(self._store, path, names)):
            return False
        self._store.step_count = step
        self._take_imported_weights()
        return True

    def _put_master(self, group: int, master: torch.Tensor) -> None:
        if self.fp16_partitioned_groups_flat[group] is None:
            self._put_weights(group, master.to(self.dtype))
        else:
            self.fp16_partitioned_groups_flat[group].copy_(master)
            self._unflatten_partitioned_parameters(group)

    def _stored_parameters(self) -> Optional[Tuple[Optimizer, List[Parameter]]]:
        world, parameters = dist.get_world_size(), []
        for group, params in enumerate(self.fp16_groups):
            for param in params:
                if self._get_param_partition_world_size(param) != world:
                    return None
                _, offset, numel = self.grad_position[self.get_param_id(param)]
                first = min(numel * self._get_param_partition_rank(param), param.ds_numel)
                # The last part ends with padding.
                parameters.append(Parameter(
                    self.param_names[param], group, offset, min(numel, param.ds_numel - first),
                    first, (param.ds_numel,)))
        return self._store, parameters

    def _take_imported_weights(self) -> None:
        self._forget_failure()
        self._put_weights_of_store()

    def _put_weights_of_store(self) -> None:
        for group, given in enumerate(self._store.groups):
            if given.weights is None:
                self._put_master(group, self._master_of(group))
            else:
                # The store has written to them.
                self._unflatten_partitioned_parameters(group)

    def _master_of(self, group: int) -> torch.Tensor:
        master: torch.Tensor = self._store.get_state(
            group, "master", out=torch.empty(self._store.groups[group].numel or 0, device="cpu"))
        return master

    def _put_weights_of_parameters(self) -> None:
        for group, _ in enumerate(self.fp16_groups):
            self._set_master_from_parameters(group)
