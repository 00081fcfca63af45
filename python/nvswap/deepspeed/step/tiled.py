# SPDX-License-Identifier: Apache-2.0
"""
State of sub-groups in an engine's store, where they have different states: what an Optimizer is to step.stage3 where
all have the same. Each state of a sub-group is a tensor, so that a sub-group is read, computed and written as a whole.
"""

from __future__ import annotations

import errno
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import torch

from nvswap.deepspeed.swappers.store import aio_of, open_engine
from nvswap.errors import Error
from nvswap.optimizer import Group
from nvswap.torch.optim.tiles import Arrays, Moved, Part, Tiles

# Small sub-groups are moved together, up to so many bytes.
_TOGETHER = 64 << 20


class SubGroup(Moved):
    """Some of a sub-group's state, which is moved at one time."""

    def __init__(self, number: int, parts: Mapping[str, Part]) -> None:
        super().__init__(parts)
        self.number = number


class TiledState:
    """
    Parameters
    ----------
    document : dict
        The blocks_of() DeepSpeed's configuration.
    rank : int
        Of this process in the job.
    groups : list of Group
        The sub-groups, each with `numel` and `dtype`.
    first, second : list of dict of str to torch.dtype
        Of each sub-group, the states that compute_first() and step() move.
    in_memory : dict of (int, str) to torch.Tensor
        States that are elsewhere, for get_state() and set_state().
    update : callable
        Gets the number of a sub-group and arrays of its `second` states, and changes these by a step.

    Attributes
    ----------
    step_count : int
        Steps that have been taken.
    """

    def __init__(self, document: Dict[str, Any], rank: int, groups: List[Group],
                 first: Sequence[Mapping[str, torch.dtype]], second: Sequence[Mapping[str, torch.dtype]],
                 in_memory: Mapping[Tuple[int, str], torch.Tensor], update: Callable[[int, Arrays], None]) -> None:
        self.groups, self.step_count = groups, 0
        self._in_memory, self._update = in_memory, update
        # Steps move the tiles' buffers. The pool has one tensor at a time, which goes to a checkpoint.
        self.engine = open_engine(document, "optimizer", rank, zero_optimization__offload_optimizer__buffer_count=1,
                                  zero_optimization__sub_group_size=max(int(group.numel or 1) for group in groups))
        self._first, self._second = ([SubGroup(number, {
            name: Part(f"{group.name}.{name}", dtype, torch.Size([int(group.numel or 0)]))
            for name, dtype in kinds[number].items()}) for number, group in enumerate(groups)]
            for kinds in (first, second))
        self.engine.register_all({part.name: (part.dtype, part.shape) for moved in (*self._first, *self._second)
                                  for part in moved.parts.values()})
        config = self.engine._config
        self._tiles = Tiles(self.engine, aio_of(config), config.paths("optimizer")[0],
                            bool(config["zero_optimization.offload_optimizer.pin_memory"]), _TOGETHER)
        self._io: List[Dict[str, Any]] = []  # of calls since the last step
        self.forget_step()

    @property
    def describe(self) -> Any:
        return self.engine.describe

    @describe.setter
    def describe(self, describe: Any) -> None:
        self.engine.describe = describe

    def compute_first(self, update: Callable[[int, Arrays], None]) -> None:
        """
        Has update() change the first states of each sub-group that has such, and writes them.

        Raises
        ------
        Error
            Of the drive, and what update() raises. Another call goes on where this one ended, and first writes what
            could not be written, which is kept until then.
        """
        self._compute(self._first, update, self._computed)

    def step(self) -> Dict[str, Any]:
        """As compute_first(), of the second states. It ends the step: the next compute_first() is one of all
        sub-groups again."""
        self._is_begun = True
        self._compute(self._second, self._update, self._stepped)
        self.step_count += 1
        parts, self._io = self._io, []
        self.forget_step()
        return {"io": {key: sum(each[key] for each in parts) for key in parts[0]}}

    def forget_step(self) -> None:
        """What is left of a step that has failed is not taken."""
        self._is_begun, self._computed, self._stepped = False, [], []

    def forget_first(self) -> None:
        """Has the next compute_first() be one of all sub-groups again."""
        self._computed = []

    def _compute(self, states: Sequence[SubGroup], update: Callable[[int, Arrays], None],
                 done: List[SubGroup]) -> None:
        def call(moved: SubGroup, arrays: Arrays, done: List[SubGroup]) -> None:
            update(moved.number, arrays)
            done.append(moved)

        with self.engine.step() as io:
            self._tiles.compute([each for each in states if each.parts and each not in done], call, done)
        self._io.append(dict(io))

    def info(self) -> Dict[str, Any]:
        """As Optimizer.info(): whether a step is unfinished."""
        return {"unfinished": self._is_begun}

    def stats(self) -> Dict[str, Any]:
        return self.engine.stats()

    # ---- State

    def stored(self, group: int) -> Dict[str, Part]:
        """A sub-group's states in the store, but for those that are zeros and were never written. EBUSY: a step is
        unfinished."""
        self._settle()
        return {name: part for name, part in self._parts(group).items() if not part.fresh}

    def get_state(self, group: int, part: str, offset: int = 0, *, out: torch.Tensor) -> torch.Tensor:
        """Elements of a sub-group's state; a KeyError if it has no such. EBUSY: a step is unfinished."""
        if (group, part) in self._in_memory:
            return out.copy_(self._in_memory[group, part][offset:offset + out.numel()])
        found = self._parts(group)[part]
        self._settle()
        if found.fresh:
            return out.zero_()
        own = torch.empty_like(out, dtype=found.dtype)
        self.engine.read_range(found.name, own, offset * found.dtype.itemsize)
        return out.copy_(own)

    def set_state(self, group: int, part: str, values: torch.Tensor, offset: int = 0) -> None:
        """Replaces elements of a sub-group's state. EBUSY: a step is unfinished."""
        if (group, part) in self._in_memory:
            self._in_memory[group, part][offset:offset + values.numel()] = values
            return
        found, whole = self._parts(group)[part], values
        self._settle()
        if values.numel() < found.shape.numel():
            whole = self.get_state(group, part, out=torch.empty(found.shape, device="cpu"))
            whole[offset:offset + values.numel()] = values
        self.engine.store_from({found.name: whole.to(found.dtype).contiguous()})
        found.fresh = False

    def _parts(self, group: int) -> Dict[str, Part]:
        return {**self._second[group].parts, **self._first[group].parts}

    def _settle(self) -> None:
        if self._is_begun or self._computed:
            raise self.unfinished()
        self._tiles.finish()

    @staticmethod
    def unfinished() -> Error:
        """For what can't be done amid a step."""
        return Error(errno.EBUSY, "a step has failed and is not finished: call engine.step() again to finish it")

    def close(self) -> None:
        self.engine.close()
        self.__dict__.pop("_tiles", None)  # its buffers, which a kept engine of DeepSpeed would hold
