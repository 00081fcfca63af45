# SPDX-License-Identifier: Apache-2.0
"""
DeepSpeed's ZeRO-3 optimizer with the swappers of this package: its own step, and checkpoints with the
state of the store. With offload_optimizer on any other device than nvme it is DeepSpeed's class, or `host`'s.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Optional

import torch

from nvswap.config import Config
from nvswap.deepspeed.checkpoint.stored import EngineFile, Stored
from nvswap.deepspeed.depth import choice
from nvswap.deepspeed.swappers.folders import make_folders
from nvswap.deepspeed.swappers.host import StoredStage3
from nvswap.errors import Error


class Stage3(StoredStage3):
    _keeps_view = False  # see _keeping_view()

    def _configure_tensor_swapping(self, *args: Any) -> None:
        if self.partial_offload < 1:
            raise Error(
                errno.ENOTSUP, f"offload_optimizer.ratio is {self.partial_offload}, but DeepSpeed's "
                "swappers keep the state of all sub-groups on the drive: leave it out, or use "
                '"nvswap": {"deepspeed": "step"}, which keeps the rest of the state in memory',
                "offload_optimizer.ratio")
        if any(self.optimizer.state.values()):
            raise Error(
                errno.ENOTSUP, f"{type(self.optimizer).__name__} has state before its first step, when weights "
                "are on the drive and DeepSpeed has no place for it: use an optimizer that makes its state in "
                'the first step, or "offload_optimizer": {"device": "cpu"}', "offload_optimizer.device")
        with Config(choice().document) as config:
            make_folders(config, "optimizer")  # before DeepSpeed does, in silence
        super()._configure_tensor_swapping(*args)
        self.optimizer_swapper.parameters = {
            f"{numbers[0]}_{numbers[-1]}": parameters for numbers, parameters in zip(
                self.fp16_partitioned_groups_flat_id, self.fp16_groups)}
        self.optimizer_swapper.numel = sum(self.fp16_partitioned_groups_flat_numel)

    def destroy(self) -> None:
        try:
            super().destroy()
        finally:
            self.close_store()

    def close_store(self) -> None:
        """Closes the store of the state, if it is open; __init__ may have failed before it was."""
        swapper = getattr(self, "optimizer_swapper", None)
        if swapper is not None:
            swapper.close()

    def unscale_and_clip_grads(self, sub_group_id: int, total_norm: Any) -> None:
        """Has DeepSpeed's code scale a 1, for the swapper to know the factor."""
        flat, factor = self.fp32_partitioned_groups_flat, torch.ones(1, device="cpu")
        parameter, flat[sub_group_id] = flat[sub_group_id], torch.empty(
            1, requires_grad=True, device="cpu")
        flat[sub_group_id].grad = factor
        try:
            super().unscale_and_clip_grads(sub_group_id, total_norm)
        finally:
            flat[sub_group_id] = parameter
        self.optimizer_swapper.scale_gradient(parameter, factor.item())

    def _get_fp32_opt_state_partition(self, param: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            part, group = super()._get_fp32_opt_state_partition(param, *args, **kwargs)
        except KeyError:  # no such state; the sub-group's gradient in memory must not stay for a step
            self._release_swap_buffers(self.grad_position[self.get_param_id(param)][0])
            raise
        # A view would keep the pool, and the store open.
        return part if self._keeps_view else part.clone(), group

    def set_full_hp_param(self, *args: Any, **kwargs: Any) -> None:
        with self._keeping_view():
            super().set_full_hp_param(*args, **kwargs)

    def set_local_hp_param(self, *args: Any, **kwargs: Any) -> None:
        with self._keeping_view():
            super().set_local_hp_param(*args, **kwargs)

    @contextmanager
    def _keeping_view(self) -> Iterator[None]:
        """Within the block DeepSpeed's code gets state to change it in the pool."""
        self._keeps_view = True
        try:
            yield
        finally:
            self._keeps_view = False

    def _get_fp32_grad_state_partition(self, param: Any, release_swap_buffers: bool) -> Any:
        part, group = super()._get_fp32_grad_state_partition(param, release_swap_buffers)
        return part.clone() if release_swap_buffers else part, group

    def _stored_state(self, group: int) -> Dict[str, Stored]:
        parameter, state = self.fp32_partitioned_groups_flat[group], self._state_of(group)
        numel = int(self.fp16_partitioned_groups_flat_numel[group])
        file = EngineFile(self.optimizer_swapper.engine)
        return {part: Stored(file, name, numel, (parameter if part == "master" else state[part]).dtype)
                for part, name in self.optimizer_swapper.state_names(parameter).items()}

    def _state_of(self, group: int) -> Dict[str, Any]:
        state: Dict[str, Any] = self.optimizer.state[self.fp32_partitioned_groups_flat[group]]
        return state

    def _put_state(self, group: int, master: torch.Tensor, state: Optional[Dict[str, Any]]) -> None:
        parameter = self.fp32_partitioned_groups_flat[group]
        if state is not None:
            self.optimizer_swapper.forget_states(parameter)
            self._replace_state(group, {key: value.clone().contiguous() if torch.is_tensor(value) else value
                                    for key, value in state.items()})
        self._prepare_sub_group(group, None)
        parameter.data.copy_(master)
        self._reassign_or_swap_out_partitioned_parameters(group)
        self._release_sub_group(group, None)

    def _replace_state(self, group: int, state: Dict[str, Any]) -> None:
        """Sets what the optimizer has of a sub-group, as its load_state_dict does: that makes a tensor of
        a step that another optimizer counted in an int."""
        optimizer, parameter = self.optimizer, self.fp32_partitioned_groups_flat[group]
        optimizer.state[parameter] = state
        param_group = optimizer.param_groups[self.sub_group_to_group_id[group]]
        param_group["params"] = [parameter]
        optimizer.__setstate__({"state": optimizer.state, "param_groups": optimizer.param_groups})
        param_group["params"] = []

    def _put_weights_of_parameters(self) -> None:
        for group, numel in enumerate(self.fp16_partitioned_groups_flat_numel):
            weights = torch.empty(int(numel), device="cpu")
            self._swap_in_sub_group_to_flat_buffer(weights, group)
            self._put_state(group, weights, None)
