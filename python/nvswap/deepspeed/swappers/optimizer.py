# SPDX-License-Identifier: Apache-2.0
"""
DeepSpeed's PartitionedOptimizerSwapper and PipelinedOptimizerSwapper: of each sub-group, the fp32
weights, each state of the optimizer and each parameter's gradient are tensors of one engine. While a
sub-group is stepped, they are in memory; with pipeline_read the next one is read meanwhile, with
pipeline_write the one before is written. Relies on DeepSpeed for the order of its calls.
"""

from __future__ import annotations

import errno
import re
import weakref
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set

import torch
from deepspeed import comm

from nvswap.deepspeed import progress
from nvswap.deepspeed.depth import choice
from nvswap.deepspeed.swappers.hold import Hold, Holds
from nvswap.deepspeed.swappers.names import name_at, names_of
from nvswap.deepspeed.swappers.store import open_engine
from nvswap.errors import Error

# A tensor takes whole units of the pool; this many elements of 4 bytes are one unit at most.
_UNIT_ELEMENTS = 1024

# A sub-group's ds_id, and the offset of a parameter's gradient.
_TENSOR = re.compile(r"optimizer\.([^.]+)(?:\.gradient\.(\d+)$)?")

_SWAP_IN, _SWAP_OUT, _SWAP_OUT_GRADIENT = "swap_in_state", "swap_out_state", "swap_out_gradient"


class _SubGroup:
    """The tensors of a sub-group, and those of them that are in memory."""

    def __init__(self, parameter: torch.Tensor, numel: int) -> None:
        self.parameter = parameter
        self.numel = numel
        self.states: Set[str] = set()
        self.gradients: Dict[int, int] = {}  # elements, by offset
        self.factors: Dict[int, float] = {}  # of gradients that were scaled after they were written
        self.held: Dict[str, Hold] = {}

    @property
    def weights(self) -> str:
        return f"optimizer.{self.parameter.ds_id}"

    def state(self, key: str) -> str:
        return f"{self.weights}.{key}"

    def gradient(self, offset: int) -> str:
        return f"{self.weights}.gradient.{offset}"

    def stored(self) -> List[str]:
        """The tensors to have in memory for a step, without the gradient."""
        return [self.weights, *(self.state(key) for key in sorted(self.states))]

    def all(self) -> List[str]:
        return [*self.stored(), *(self.gradient(offset) for offset in self.gradients)]


class PartitionedOptimizerSwapper:
    """
    What DeepSpeed calls. Reads and writes are awaited.

    Attributes
    ----------
    parameters : dict of str to sequence
        Those of each sub-group by its ds_id, for errors.
    numel : int
        Elements of all sub-groups together.
    """

    pipeline_read = False
    pipeline_write = False

    def __init__(self, swap_config: Any, aio_config: Dict[str, Any], base_folder: str,
                 optimizer: torch.optim.Optimizer, largest_numel: int, device: Any,
                 dtype: torch.dtype, timers: Any) -> None:
        self.optimizer = optimizer
        self.timers = timers
        self.timer_names: Set[str] = set()
        numel = -(-int(largest_numel) // _UNIT_ELEMENTS) * _UNIT_ELEMENTS
        self.engine = open_engine(choice().document, "optimizer", comm.get_rank(),
                                  zero_optimization__sub_group_size=numel)
        self.engine.describe = weakref.WeakMethod(self._described)
        progress.count_engine_at_exit(progress.STATE, self.engine)
        self.parameters: Dict[str, Sequence[Any]] = {}
        self.numel = 0
        self._holds = Holds(self.engine)
        self._holds.register({"gradient": torch.empty(0, dtype=dtype)}, numel)
        self._groups: Dict[str, _SubGroup] = {}
        self._writing: List[str] = []
        self._caches = self.engine._config["nvswap.optimizer_max_in_cpu"] > 0

    def _described(self, tensor: str) -> Optional[str]:
        found = _TENSOR.match(tensor)
        parameters = self.parameters.get(found[1]) if found else None
        if not found or not parameters:
            return None
        return name_at(parameters, int(found[2])) if found[2] else names_of(parameters)

    # ---- What can be swapped

    def is_swappable_tensor(self, tensor: Optional[torch.Tensor] = None,
                            numel: Optional[int] = None) -> bool:
        """Any tensor of a sub-group, but for those that are marked to stay in memory."""
        if tensor is not None:
            return bool(getattr(tensor, "swappable", True)) and tensor.numel() > 0
        return numel is not None and numel > 0

    swappable_tensor = is_swappable_tensor  # its name before 0.16.9

    def purge_state(self) -> None:
        """Forgets the optimizer's states: a checkpoint brought others."""
        for group in self._groups.values():
            self.forget_states(group.parameter)

    def forget_states(self, parameter: torch.Tensor) -> None:
        """Forgets the optimizer's states of a sub-group that is not in memory."""
        group = self._groups[parameter.ds_id]
        self._end_cut_off(group)
        self.engine.forget([group.state(key) for key in group.states])
        group.states.clear()

    def initialize_parameters(self, parameters: Sequence[torch.Tensor],
                              src_tensors: Sequence[torch.Tensor]) -> None:
        """Writes the first weights."""
        for parameter, source in zip(parameters, src_tensors):
            hold = self._new_group(parameter, source.numel())
            hold.tensor.copy_(source.data.view(-1))
            hold.end(True)

    def initialize_from_swapped_fp16_params(self, fp16_partitions_info: Sequence[Any],
                                            fp16_num_elems: Sequence[int],
                                            fp16_pinned_buffers: Sequence[torch.Tensor],
                                            fp32_parameters: Sequence[torch.Tensor]) -> None:
        """Writes the first weights from partitions of parameters, in memory or in their store."""
        for partitions, numel, parameter in zip(fp16_partitions_info, fp16_num_elems,
                                                fp32_parameters):
            hold, offset = self._new_group(parameter, numel), 0
            for partition, length, path in partitions:
                destination = hold.tensor.narrow(0, offset, length)
                if path is None:
                    destination.copy_(partition.data)
                else:
                    path.read_into(destination)
                offset += length
            hold.end(True)

    def _new_group(self, parameter: torch.Tensor, numel: int) -> Hold:
        group = self._groups[parameter.ds_id] = _SubGroup(parameter, int(numel))
        self._holds.register({group.weights: parameter}, group.numel)
        progress.report_fill(progress.STATE, 4 * sum(each.numel for each in self._groups.values()), 4 * self.numel)
        return self._holds.new(group.weights)

    # ---- Gradients

    def swap_out_gradients(self, parameter: torch.Tensor, gradient_offsets: Sequence[int],
                           gradient_tensors: Sequence[torch.Tensor]) -> None:
        """Writes parts of a sub-group's gradient behind."""
        group = self._groups.get(parameter.ds_id)
        if group is None:
            return
        with self._timed(_SWAP_OUT_GRADIENT):
            for offset, tensor in zip(gradient_offsets, gradient_tensors):
                self._put_gradient(group, int(offset), tensor)

    def _put_gradient(self, group: _SubGroup, offset: int, tensor: torch.Tensor) -> None:
        name = group.gradient(offset)
        self._holds.register({name: tensor}, tensor.numel())
        group.gradients[offset] = tensor.numel()
        hold = self._holds.new(name)
        hold.tensor.copy_(tensor.data.view(-1))
        hold.end(True)
        group.factors.pop(offset, None)

    def _read_gradient(self, group: _SubGroup) -> None:
        """Gathers the parts in one tensor; elements that never had a gradient are 0."""
        hold = group.held["gradient"] = self._holds.scratch("gradient")
        gradient = hold.tensor.narrow(0, 0, group.numel)
        if sum(group.gradients.values()) < group.numel:
            gradient.zero_()
        self.engine.load_to({group.gradient(offset): gradient.narrow(0, offset, numel)
                             for offset, numel in group.gradients.items()})
        for offset, factor in list(group.factors.items()):
            part = gradient.narrow(0, offset, group.gradients[offset]).mul_(factor)
            self._put_gradient(group, offset, part)
        group.parameter.grad = gradient

    def scale_gradient(self, parameter: torch.Tensor, factor: float) -> None:
        """Scales the gradient of a sub-group in memory. In host memory DeepSpeed leaves it so for a
        later step that has no new gradient of a parameter, so the next read of the store scales it."""
        parameter.grad.mul_(factor)
        group = self._groups[parameter.ds_id]
        group.factors = dict.fromkeys(group.gradients, factor) if factor != 1 else {}

    def flush_gradients(self) -> None:
        """The engine orders reads behind the writes of the same tensor."""

    # ---- Steps

    def swap_in_optimizer_state(self, parameter: torch.Tensor,
                                async_parameter: Optional[torch.Tensor] = None) -> None:
        """Has the sub-group's weights, states and gradient in memory, as the store has them, and starts
        to read those of `async_parameter` if reads are pipelined."""
        group = self._groups.get(parameter.ds_id)
        if group is None:
            return
        with self._timed(_SWAP_IN):
            self._end_cut_off(group)
            self._hold(group)
            if self.pipeline_read and async_parameter is not None:
                following = self._groups.get(async_parameter.ds_id)
                if following is not None and not following.held:
                    self.engine.prefetch(following.all())

    def _hold(self, group: _SubGroup) -> None:
        for hold in self._holds.read(group.stored()):
            group.held[hold.name] = hold
        try:
            group.parameter.data = group.held[group.weights].tensor
            self._read_gradient(group)
            for key in group.states:
                self._state_of(group)[key].data = group.held[group.state(key)].tensor
        except BaseException:
            self._end(group, False)
            raise

    def _state_of(self, group: _SubGroup) -> Dict[str, Any]:
        state: Dict[str, Any] = self.optimizer.state.get(group.parameter, {})
        return state

    def swap_out_optimizer_state(self, parameter: torch.Tensor, async_swap: bool = False) -> None:
        """Gives weights and states back changed, and waits for their writes unless writes are
        pipelined and `async_swap`."""
        group = self._groups.get(parameter.ds_id)
        if group is None:
            return
        with self._timed(_SWAP_OUT):
            self._await_writes()
            self._put_contents(group)
            self._end(group, True)
            self._start_writes(group)
            if not (self.pipeline_write and async_swap):
                self._await_writes()

    def _put_contents(self, group: _SubGroup) -> None:
        """What the optimizer made anew, as its states in the first step, goes to tensors too."""
        self._put(group, group.weights, group.parameter)
        for key, value in self._state_of(group).items():
            if torch.is_tensor(value) and value.numel() == group.numel and value.dim() > 0 \
                    and self.is_swappable_tensor(tensor=value):
                self._holds.register({group.state(key): value}, group.numel)
                group.states.add(key)
                self._put(group, group.state(key), value)

    def _put(self, group: _SubGroup, name: str, value: torch.Tensor) -> None:
        hold = group.held.get(name)
        if hold is None:
            hold = group.held[name] = self._holds.new(name)
        if hold.tensor.data_ptr() != value.data_ptr():
            hold.tensor.copy_(value.data.view(-1))

    def _end(self, group: _SubGroup, changed: bool) -> None:
        """Empties what the optimizer sees, and ends the holds."""
        group.parameter.grad = None
        group.parameter.data = torch.empty(0, dtype=group.parameter.dtype, device="cpu")
        for key in group.states:
            value = self._state_of(group).get(key)
            if value is not None:
                value.data = torch.empty(0, dtype=value.dtype, device="cpu")
        while group.held:
            name, hold = group.held.popitem()
            hold.end(changed and name != "gradient")

    def _end_cut_off(self, group: _SubGroup) -> None:
        """Ends a stay in memory that an exception has cut off: its gradient is of that time."""
        if group.held:
            self._end(group, False)

    def _start_writes(self, group: _SubGroup) -> None:
        """Tensors of the host cache are left to the engine, which keeps and writes them."""
        if self._caches:
            return
        for name in group.stored():
            try:
                self.engine.swap_out(name)
                self._writing.append(name)
            except Error as error:
                # A caller still has a view of the tensor: it is written when the view is gone.
                if error.errno != errno.EBUSY:
                    raise

    def _await_writes(self) -> None:
        writing, self._writing = self._writing, []
        self.engine.wait(writing)

    def writeback_optimizer_state_and_gradients(self, parameter: torch.Tensor, write_opt_state: bool,
                                                write_gradients: bool) -> None:
        """Ends a sub-group's stay in memory, with the changes that the caller names."""
        group = self._groups.get(parameter.ds_id)
        if group is None:
            return
        if write_gradients and parameter.grad is not None:
            for offset, numel in group.gradients.items():
                self._put_gradient(group, offset, parameter.grad.narrow(0, offset, numel))
        if write_opt_state:
            self.swap_out_optimizer_state(parameter)
        else:
            self._end(group, False)

    def release_swap_buffers(self, parameter: torch.Tensor) -> None:
        """Ends a sub-group's stay in memory, unchanged."""
        group = self._groups.get(parameter.ds_id)
        if group is not None:
            self._end(group, False)

    def close(self) -> None:
        """Ends what is in memory, and closes the store."""
        for group in self._groups.values():
            self._end(group, False)
        progress.count_engine(self.engine)
        self.engine.close()

    # ---- Checkpoints

    def state_names(self, parameter: torch.Tensor) -> Dict[str, str]:
        """The tensors of a sub-group: "master", its weights, and its states."""
        group = self._groups[parameter.ds_id]
        return {"master": group.weights, **{key: group.state(key) for key in group.states}}

    # ---- Timers

    def init_timers(self) -> None:
        self.timer_names = set()

    def log_timers(self) -> None:
        if self.timer_names and self.timers:
            self.timers.log(sorted(self.timer_names))

    def pre_backward(self) -> None:
        self.init_timers()

    def post_backward(self) -> None:
        pass

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        if not self.timers:
            yield
            return
        self.timers(name).start()
        try:
            yield
        finally:
            self.timers(name).stop()
            self.timer_names.add(name)


class PipelinedOptimizerSwapper(PartitionedOptimizerSwapper):
    """Reads the next sub-group, or writes the last one, while one is stepped: as the keys say."""

    def __init__(self, swap_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(swap_config, *args, **kwargs)
        self.pipeline_read = bool(swap_config.pipeline_read)
        self.pipeline_write = bool(swap_config.pipeline_write)
