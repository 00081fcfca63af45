# SPDX-License-Identifier: Apache-2.0
"""
Tiles between an engine's store and buffers in memory: while a run of them is computed with, the next one is
read and the one before is written. A tile stays on the drive as it was until its new contents are complete.
"""

from __future__ import annotations

import contextlib
import errno
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple, TypeVar

import torch

from nvswap.aio import Aio
from nvswap.engine import Engine
from nvswap.errors import Error
from nvswap.memory import empty
from nvswap.torch.local import local

_BUFFERS = 3
# Of a buffer's arrays. Tensors that lie side by side in the store do so in a buffer too, and move as one.
_ALIGNMENT = 4096

Arrays = Dict[str, torch.Tensor]


class Part:
    """
    A tensor of the engine that has some state of a tile.

    Attributes
    ----------
    name : str
        Of the tensor.
    written : bool
        Whether it is written with the tile; others are read alone.
    fresh : bool
        Whether it was never written, and is zeros.
    """

    def __init__(self, name: str, dtype: torch.dtype, shape: torch.Size, written: bool = True) -> None:
        self.name, self.dtype, self.shape, self.written = name, dtype, shape, written
        self.nbytes = dtype.itemsize * shape.numel()
        self.fresh = True


class Moved:
    """
    Parts that are read and written together.

    Attributes
    ----------
    parts : dict of str to Part
    """

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self.parts = parts
        self.nbytes = sum(map(_room_of, parts.values()))

    def set_fresh(self, fresh: bool) -> None:
        """Says of all written parts whether they are zeros."""
        for part in self.parts.values():
            part.fresh = fresh if part.written else part.fresh

    def arrays(self, buffer: torch.Tensor) -> Arrays:
        """The parts at the beginning of a buffer."""
        result = {}
        for key, part in self.parts.items():
            result[key] = buffer[:part.nbytes].view(part.dtype).view(part.shape)
            buffer = buffer[_room_of(part):]
        return result


AnyMoved = TypeVar("AnyMoved", bound=Moved)


class Tile(Moved):
    """
    Elements of a parameter.

    Attributes
    ----------
    parameter : torch.nn.Parameter
    offset, numel : int
        Of the elements.
    whole : bool
        Whether it has all elements, so that a part may have another shape.
    dtype : torch.dtype
        Of the parameter when the tile was made.
    """

    def __init__(self, parameter: torch.nn.Parameter, offset: int, numel: int, parts: Dict[str, Part],
                 whole: bool) -> None:
        super().__init__(parts)
        self.parameter, self.offset, self.numel, self.whole = parameter, offset, numel, whole
        self.dtype = parameter.dtype

    def elements_of(self, whole: torch.Tensor) -> torch.Tensor:
        """The tile's elements of a tensor that is like its parameter, or has a part of a whole one."""
        if self.whole:
            return whole
        return whole.reshape(-1)[self.offset:self.offset + self.numel]


def cut(parameter: torch.nn.Parameter, kinds: Dict[str, Tuple[torch.dtype, torch.Size]], name: str, most: int,
        read_only: Set[str]) -> List[Tile]:
    """Tiles of a parameter, or of this rank's shard of it, with `most` elements each, and with parts of these types and
    shapes, all of the parameter's shape where there are several tiles; tensors' names begin with `name`."""
    numel, tiles = local(parameter).numel(), []
    for offset in range(0, numel, most):
        own, suffix = min(most, numel - offset), f".{offset}" if offset else ""
        tiles.append(Tile(parameter, offset, own, {
            key: Part(f"{name}.{key}{suffix}", dtype, shape if own == numel else torch.Size([own]),
                      key not in read_only)
            for key, (dtype, shape) in kinds.items()}, own == numel))
    return tiles


def _room_of(part: Part) -> int:
    return -(-part.nbytes // _ALIGNMENT) * _ALIGNMENT


class Tiles:
    """
    Parameters
    ----------
    engine : nvswap.Engine
    aio : nvswap.Aio
        Of the engine.
    path : str, optional
        On the engine's drive.
    locked : bool
        Whether buffers that can't be locked in memory are an error.
    nbytes : int
        Of a run of tiles, of which one tile may have more.
    """

    def __init__(self, engine: Engine, aio: Aio, path: Optional[str], locked: bool, nbytes: int) -> None:
        self._engine, self._aio, self._path, self._locked, self._nbytes = engine, aio, path, locked, nbytes
        self._buffers = [torch.empty(0, dtype=torch.uint8, device="cpu")] * _BUFFERS
        # What each buffer has that is being written, or could not be; and those that are being written.
        self._unwritten: List[Arrays] = [{} for _ in range(_BUFFERS)]
        self._writing: Set[int] = set()
        # Tensors that are being read into each.
        self._reading: List[List[str]] = [[] for _ in range(_BUFFERS)]

    def compute(self, tiles: Sequence[AnyMoved], step: Callable[[AnyMoved, Arrays, List[AnyMoved]], None],
                done: List[AnyMoved]) -> None:
        """
        Reads tiles in turn, and calls step(tile, arrays, done), which appends the tile to `done` when the arrays
        are its new parts. These are written.

        Raises
        ------
        nvswap.Error
            Of the drive, and what `step` raises. Tiles that are not done have their old contents. What could not be
            written is in the buffers until :meth:`finish`.
        """
        self.finish()
        runs = self._runs(tiles)
        arrays: Dict[Moved, Arrays] = {}
        try:
            self._make_room(runs)
            for number, run in enumerate(runs):
                if number == 0:
                    self._begin_read(run, 0, arrays)
                if number + 1 < len(runs):
                    self._begin_read(runs[number + 1], (number + 1) % _BUFFERS, arrays)
                self._end_read(number % _BUFFERS)
                first = len(done)
                try:
                    for tile in run:
                        step(tile, arrays.pop(tile), done)
                finally:
                    self._begin_write(done[first:], number % _BUFFERS)
        except BaseException:
            with contextlib.suppress(Error):
                self._end_transfers()
            raise
        self._end_transfers()

    def finish(self) -> None:
        """Writes what could not be written before."""
        for number, unwritten in enumerate(self._unwritten):
            self._end_read(number)
            if unwritten:
                with contextlib.suppress(Error):  # Of a write that was overdue.
                    self._engine.wait(unwritten)
                self._engine.store_from(unwritten)
                self._unwritten[number] = {}

    @property
    def unwritten(self) -> bool:
        """Whether there is something for :meth:`finish`."""
        return any(self._unwritten)

    def _runs(self, tiles: Sequence[AnyMoved]) -> List[List[AnyMoved]]:
        runs: List[List[AnyMoved]] = []
        nbytes = 0
        for tile in tiles:
            if not runs or nbytes + tile.nbytes > self._nbytes:
                runs.append([])
                nbytes = 0
            runs[-1].append(tile)
            nbytes += tile.nbytes
        return runs

    def _make_room(self, runs: Sequence[Sequence[Moved]]) -> None:
        largest = max((sum(tile.nbytes for tile in run) for run in runs), default=0)
        for number in range(min(_BUFFERS, len(runs))):
            if self._buffers[number].numel() < largest:
                # Its memory, before there is other.
                self._buffers[number] = self._buffers[number][:0].clone()
                self._buffers[number] = self._allocated(largest)

    def _allocated(self, nbytes: int) -> torch.Tensor:
        try:
            buffer: torch.Tensor = empty(nbytes, "U8", aio=self._aio, path=self._path, arrays="torch")
            return buffer
        except Error as error:
            if error.errno != errno.ENOMEM or self._locked:
                raise
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu")

    def _begin_read(self, run: Sequence[Moved], number: int, arrays: Dict[Moved, Arrays]) -> None:
        self._end_write(number)
        buffer, wanted = self._buffers[number], {}
        for tile in run:
            arrays[tile] = tile.arrays(buffer)
            buffer = buffer[tile.nbytes:]
            for key, array in arrays[tile].items():
                if tile.parts[key].fresh:
                    array.zero_()
                else:
                    wanted[tile.parts[key].name] = array
        self._reading[number] = list(wanted)
        self._engine.load_to(wanted, wait=False)

    def _end_read(self, number: int) -> None:
        self._engine.wait(self._reading[number])
        self._reading[number] = []

    def _begin_write(self, done: Sequence[Moved], number: int) -> None:
        buffer = self._buffers[number]
        for tile in done:
            tile.set_fresh(False)
            self._unwritten[number].update((tile.parts[key].name, array) for key, array in
                                           tile.arrays(buffer).items() if tile.parts[key].written)
            buffer = buffer[tile.nbytes:]
        self._engine.store_from(self._unwritten[number], wait=False)
        self._writing.add(number)

    def _end_write(self, number: int) -> None:
        if number in self._writing:
            # A failure is reported once.
            self._writing.remove(number)
            self._engine.wait(self._unwritten[number])
            self._unwritten[number] = {}

    def _end_transfers(self) -> None:
        with contextlib.ExitStack() as stack:
            for number in range(_BUFFERS):
                stack.callback(self._end_write, number)
                stack.callback(self._end_read, number)
