# SPDX-License-Identifier: Apache-2.0
"""
The ranks that share the state of an optimizer: which of them has a parameter's, how they agree on what
they do next, and how new weights come from the rank that has computed them to the others.

A call that fails on one rank is an error of all: its result is exchanged before the next thing that
ranks do together, so that none waits for one that has failed.
"""

from __future__ import annotations

import errno
from typing import Any, Callable, Dict, Iterator, List

import torch
import torch.distributed as dist

from nvswap.errors import Error, invalid

# Small weights are sent together.
_BUCKET_BYTES = 32 << 20

# An attribute of an exception that all ranks have.
_EXCHANGED = "nvswap_exchanged"


class Ranks:
    """
    Parameters
    ----------
    shard : bool, torch.distributed.ProcessGroup or None
        True: the default group. None or False: each rank is alone, and has all state.

    Attributes
    ----------
    rank, count : int
        In the group; 0 of 1 without one.
    owners : dict of torch.nn.Parameter to int
        The rank that has a parameter's state.
    """

    def __init__(self, shard: Any) -> None:
        self.rank, self.count = 0, 1
        self.owners: Dict[torch.nn.Parameter, int] = {}
        self._group: Any = None
        if shard is None or shard is False:
            return
        if not (dist.is_available() and dist.is_initialized()):
            raise invalid("shard= divides state among the ranks of torch.distributed: call "
                          "torch.distributed.init_process_group() first, or leave it out")
        if shard is not True and not isinstance(shard, dist.ProcessGroup):
            raise invalid("shard is True, or a process group that has this rank")
        self._group = dist.group.WORLD if shard is True else shard
        self.rank, self.count = dist.get_rank(self._group), dist.get_world_size(self._group)

    @property
    def sharded(self) -> bool:
        """Whether a rank has a share alone."""
        return self._group is not None

    def assign(self, parameters: List[torch.nn.Parameter]) -> Dict[torch.nn.Parameter, int]:
        """Ranks for parameters, each of which goes to the one that has fewest elements, the largest first."""
        loads = [0] * self.count
        for parameter, owner in self.owners.items():
            loads[owner] += parameter.numel()
        assigned = {}
        for parameter in sorted(parameters, key=lambda each: -each.numel()):
            assigned[parameter] = loads.index(min(loads))
            loads[assigned[parameter]] += parameter.numel()
        return assigned

    def all(self, what: str, call: Callable[[], Any]) -> List[Any]:
        """
        Makes a call on all ranks, and returns what each one's has returned. Within the call there may be
        others, which all ranks make that don't fail.

        Raises
        ------
        Exception
            That of this rank's call; that of another rank as an Error with the same errno.
        nvswap.Error
            EINVAL: another rank makes another call than `what`.
        """
        if self.count == 1:
            return [call()]
        value = failure = failed = None
        try:
            value = call()
        except Exception as error:
            if hasattr(error, _EXCHANGED):
                raise
            failure = error
            failed = (getattr(error, "errno", None) or errno.EIO,
                      error.strerror if isinstance(error, Error) else f"{type(error).__name__}: {error}")
        told: List[Any] = [None] * self.count
        dist.all_gather_object(told, (what, value, failed), self._group)
        if failure is None:
            failure = _failure_of(told)
        try:
            if failure is not None:
                setattr(failure, _EXCHANGED, True)
                raise failure
        finally:
            failure = None  # Its frames have this one.
        return [value for _, value, _ in told]

    def send(self, parameters: List[torch.nn.Parameter]) -> None:
        """Gives all ranks the weights that the parameters have on the ranks that own them."""
        for owner in range(self.count if self.count > 1 else 0):
            own = [parameter for parameter in parameters if self.owners[parameter] == owner]
            for bucket in _buckets(own):
                self._broadcast([parameter.data.view(-1) for parameter in bucket], owner)
            if owner != self.rank:
                for parameter in own:
                    # As a step of this rank's does.
                    torch.autograd.graph.increment_version(parameter)

    def _broadcast(self, weights: List[torch.Tensor], owner: int) -> None:
        source = dist.get_global_rank(self._group, owner)
        if len(weights) == 1:
            dist.broadcast(weights[0], source, self._group)
            return
        flat = torch.cat(weights)
        dist.broadcast(flat, source, self._group)
        if owner != self.rank:
            for own, received in zip(weights, flat.split([len(each) for each in weights])):
                own.copy_(received)

    def move(self, values: torch.Tensor, owner: int, to: int, device: torch.device) -> None:
        """Sends the values that the owner has to another rank's, through memory of a device."""
        if self.rank == owner:
            dist.send(values.to(device), dist.get_global_rank(self._group, to), self._group)
        elif self.rank == to:
            received = torch.empty_like(values, device=device)
            dist.recv(received, dist.get_global_rank(self._group, owner), self._group)
            values.copy_(received)


def _failure_of(told: List[Any]) -> Any:
    """The error of the first rank that has failed, or of ranks that make other calls."""
    for rank, (_, _, failed) in enumerate(told):
        if failed is not None:
            return Error(failed[0], f"rank {rank} has failed: {failed[1]}")
    for rank, (what, _, _) in enumerate(told):
        if what != told[0][0]:
            return invalid(f"rank 0 is at {told[0][0]}, rank {rank} at {what}: ranks that share the state of an "
                           "optimizer make the same calls on it, with gradients of the same parameters")
    return None


def _buckets(parameters: List[torch.nn.Parameter]) -> Iterator[List[torch.nn.Parameter]]:
    """Parameters of one type and device, in lists of _BUCKET_BYTES or with one that is larger."""
    kinds: Dict[Any, List[torch.nn.Parameter]] = {}
    for parameter in parameters:
        kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    for same in kinds.values():
        bucket: List[torch.nn.Parameter] = []
        nbytes = 0
        for parameter in same:
            if bucket and nbytes + parameter.nbytes > _BUCKET_BYTES:
                yield bucket
                bucket, nbytes = [], 0
            bucket.append(parameter)
            nbytes += parameter.nbytes
        if bucket:
            yield bucket
