# SPDX-License-Identifier: Apache-2.0
"""
DeepSpeed's AsyncPartitionedParameterSwapper: each rank's partitions of parameters are tensors of one
engine. The engine learns the order of a training step, from one update of the parameters to the next,
and reads ahead by it. Relies on Init calling swap_out_and_release for each partition that it fills.
"""

from __future__ import annotations

import enum
import json
import weakref
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from deepspeed import comm
from deepspeed.runtime.swap_tensor.partitioned_param_swapper import PartitionedParamStatus
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

from nvswap.deepspeed import progress
from nvswap.deepspeed.depth import blocks_of
from nvswap.deepspeed.swappers.hold import Hold, Holds
from nvswap.deepspeed.swappers.names import name_of
from nvswap.deepspeed.swappers.store import open_engine


class _Step(enum.Enum):
    """Of the engine: a step begins with the first read after an update."""

    NONE = 1
    BEGUN = 2
    UPDATED = 3


class StoredPartition(str):
    """What get_path returns: the tensor's name, for the optimizer to read it by."""

    swapper: "ParameterSwapper"

    def read_into(self, destination: torch.Tensor) -> None:
        """Copies the partition, in the destination's type."""
        self.swapper.copy_stored(self, destination)


class ParameterSwapper:
    """What DeepSpeed calls; a partition is `param.ds_tensor`, of `param.ds_tensor.ds_numel` elements."""

    def __init__(self, document: Dict[str, Any], dtype: torch.dtype) -> None:
        self.dtype = dtype
        # The pool has room for buffer_count elements of buffer_size of this type.
        self.engine = open_engine(document, "param", comm.get_rank(), bf16__enabled=dtype == torch.bfloat16,
                                  fp16__enabled=dtype == torch.float16)
        self.engine.describe = weakref.WeakMethod(self._described)
        self._parameters: "weakref.WeakValueDictionary[str, Any]" = weakref.WeakValueDictionary()
        self._holds = Holds(self.engine)
        self._held: Dict[int, Hold] = {}
        self._reading: List[Any] = []
        self._gathering: List[Tuple[Any, Hold]] = []
        self._largest = 1  # bytes of a partition
        self._stored = 0  # bytes of all
        self._step = _Step.NONE

    # ---- What can be swapped, and where it is

    def swappable_tensor(self, param: Any = None, numel: Optional[int] = None) -> bool:
        """Any partition, however small or large."""
        return (param.ds_tensor.ds_numel if numel is None else numel) > 0

    def get_path(self, param: Any, must_exist: bool = False) -> StoredPartition:
        """A path in DeepSpeed's swapper, here a name with the means to read the partition."""
        path = StoredPartition(_name(param))
        assert not must_exist or path in self.engine, f"{path} was never swapped"
        path.swapper = self
        return path

    def available_swap_in_buffers(self) -> int:
        """How many partitions, as large as the largest, there is room for to read ahead."""
        return self._holds.free_bytes() // self._largest

    def _described(self, tensor: str) -> Optional[str]:
        return name_of(self._parameters.get(tensor))

    # ---- Partitions that are made or updated

    def get_buffer(self, param: Any, numel: int) -> torch.Tensor:
        """Memory for a new partition."""
        name = _name(param)
        self._parameters[name] = param
        self._holds.register({name: param}, numel)
        nbytes = self.engine[name].nbytes
        self._largest, self._stored = max(self._largest, nbytes), self._stored + nbytes
        progress.report_fill(progress.PARAMETERS, self._stored)
        hold = self._held[param.ds_id] = self._holds.new(name)
        return hold.tensor

    def swap_out_and_release(self, params: Sequence[Any], async_op: bool = False,
                             force_buffer_release: bool = False) -> None:
        """Gives partitions that were filled in to the engine, which writes them behind."""
        for param in params:
            self._release(param, True)

    def swap_out_partitioned_params(self, dst_fp16_params: Sequence[Any],
                                    src_fp32_params: Sequence[torch.Tensor]) -> None:
        """Replaces partitions by the optimizer's new weights, in the parameters' type."""
        for param, source in zip(dst_fp16_params, src_fp32_params):
            self.replace(param, source)
        if self._step is _Step.BEGUN:
            self._step = _Step.UPDATED

    def replace(self, param: Any, source: torch.Tensor) -> None:
        """Replaces a partition that no kernel uses, in the parameter's type."""
        self._release(param, False)
        hold = self._holds.new(_name(param))
        hold.tensor.copy_(source.data)
        hold.end(True)

    def has(self, param: Any) -> bool:
        """Whether the partition is a tensor of the store."""
        return _name(param) in self.engine

    def copy(self, param: Any) -> torch.Tensor:
        """A copy of a partition, wherever it is."""
        if param.ds_tensor.status is PartitionedParamStatus.INFLIGHT:
            self.synchronize_reads()
        if param.ds_tensor.status is PartitionedParamStatus.AVAILABLE:
            return param.ds_tensor.detach().clone()
        partition = torch.empty(param.ds_tensor.ds_numel, dtype=param.dtype, device="cpu")
        self.copy_stored(_name(param), partition)
        return partition

    def remove_partition_and_release_buffers(self, params: Sequence[Any]) -> None:
        """Ends the use of partitions that were not changed. DeepSpeed says so of a persistent parameter
        while other ranks are still being sent the partition; it is released by a later call."""
        self._release_gathered()
        for param in params:
            hold = self._held.get(param.ds_id)
            if hold is not None and param.ds_status is ZeroParamStatus.INFLIGHT:
                self._gathering.append((param, hold))
            else:
                self._release(param, False)

    def _release_gathered(self) -> None:
        gathering, self._gathering = self._gathering, []
        for param, hold in gathering:
            if param.ds_status is ZeroParamStatus.INFLIGHT:
                self._gathering.append((param, hold))
            elif self._held.get(param.ds_id) is hold:
                self._release(param, False)

    def _release(self, param: Any, changed: bool) -> None:
        hold = self._held.pop(param.ds_id, None)
        assert hold is not None or not changed, f"{_name(param)} is not in memory"
        if hold is not None:
            hold.end(changed)
        partition = param.ds_tensor
        partition.data = torch.full((1,), float("nan"), dtype=param.dtype,
                                    device="cpu").expand(partition.ds_numel)
        partition.status = PartitionedParamStatus.NOT_AVAILABLE
        self._reading = [each for each in self._reading if each is not param]

    # ---- Reading

    def swap_in(self, params: Sequence[Any], async_op: bool = True,
                swap_in_buffers: Optional[Sequence[torch.Tensor]] = None) -> None:
        """Starts to read partitions, and waits for them unless `async_op`; then only those are read
        for which the pool has room."""
        self._release_gathered()
        self._follow_step()
        if swap_in_buffers is not None:
            return self._swap_in_to(params, swap_in_buffers)
        # Reading ahead, DeepSpeed names a parameter as often as it will be used, and gathered ones.
        once = list({param.ds_id: param for param in params if not async_op
                     or param.ds_status is ZeroParamStatus.NOT_AVAILABLE}.values())
        wanted = self._fitting(once) if async_op else once
        holds = self._holds.read([_name(param) for param in wanted])
        for param, hold in zip(wanted, holds):
            self._held[param.ds_id] = hold
            param.ds_tensor.status = PartitionedParamStatus.INFLIGHT
            self._reading.append(param)
        if not async_op:
            self.synchronize_reads()
        return None

    def _swap_in_to(self, params: Sequence[Any], buffers: Sequence[torch.Tensor]) -> None:
        for param, buffer in zip(params, buffers):
            self.swap_into_buffer(param, buffer.narrow(0, 0, param.ds_tensor.ds_numel))
            param.ds_tensor.data = buffer.narrow(0, 0, param.ds_tensor.ds_numel).data
            param.ds_tensor.status = PartitionedParamStatus.AVAILABLE

    def _fitting(self, params: Sequence[Any]) -> List[Any]:
        left, fitting = self._holds.free_bytes(), []
        for param in params:
            left -= self._holds.taken_by(_name(param))
            if left < 0:
                break
            fitting.append(param)
        return fitting

    def synchronize_reads(self) -> None:
        """Waits for all partitions that are being read."""
        while self._reading:
            param = self._reading[0]
            try:
                param.ds_tensor.data = self._held[param.ds_id].tensor
            except OSError:
                self._release(param, False)
                raise
            param.ds_tensor.status = PartitionedParamStatus.AVAILABLE
            del self._reading[0]

    def swap_into_buffer(self, param: Any, dest_buffer: torch.Tensor) -> None:
        """Copies a partition that is not in memory to the caller's."""
        assert param.ds_tensor.status is PartitionedParamStatus.NOT_AVAILABLE
        self.copy_stored(_name(param), dest_buffer)

    def copy_stored(self, name: str, destination: torch.Tensor) -> None:
        """Copies a partition that is not held."""
        hold, = self._holds.read([name])
        try:
            destination.data.copy_(hold.tensor)
        finally:
            hold.end(False)

    def _follow_step(self) -> None:
        if self._step is _Step.BEGUN:
            return
        if self._step is _Step.UPDATED:
            progress.record_step(progress.PARAMETERS, self.engine.step_end(), self.engine.stats())
        self.engine.step_begin()
        self._step = _Step.BEGUN

    # ---- Memory that DeepSpeed's optimizer swapper asks for, and this one does not need

    def reserve_available_buffers(self) -> List[torch.Tensor]:
        return [torch.empty(0, dtype=self.dtype, device="cpu")]

    def release_reserved_buffers(self) -> None:
        pass

    def reserve_partitioned_swap_space(self, partition_num_elems: Sequence[int]) -> None:
        pass


def _name(param: Any) -> str:
    return f"parameter.{param.ds_id}"


_swappers: "weakref.WeakValueDictionary[Tuple[torch.dtype, str], ParameterSwapper]" = \
    weakref.WeakValueDictionary()


def parameter_swapper(ds_config: Any, model_dtype: torch.dtype) -> ParameterSwapper:
    """One for all zero.Init of a configuration: DeepSpeed gives the swapper of one parameter those
    of others too."""
    document = blocks_of(ds_config)
    key = (model_dtype, json.dumps(document, sort_keys=True, default=str))
    swapper = _swappers.get(key)
    if swapper is None or swapper.engine.closed:
        swapper = _swappers[key] = ParameterSwapper(document, model_dtype)
    return swapper
