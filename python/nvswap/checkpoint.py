# SPDX-License-Identifier: Apache-2.0
"""
Universal checkpoints of DeepSpeed (version 0.4): for each parameter a directory zero/NAME with a file of
torch.save for each part of its state, whole, and zero/optimizer_state.pt with the number of steps. State is
streamed between the store and the files, so that no parameter need be in memory; any number of ranks writes
and reads one checkpoint.

The parts are fp32.pt and those of the rule: exp_avg.pt and exp_avg_sq.pt of Adam, exp_avg.pt of Lion,
momentum_buffer.pt of SGD and, as DeepSpeed calls its sum, exp_avg_sq.pt of Adagrad. Others are not read, since
DeepSpeed writes zeros for those that an optimizer does not have.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import operator
import os
import threading
import zlib
from bisect import bisect_right
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache, reduce
from itertools import product
from typing import (
    Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple,
    Union)

from nvswap.durable import (
    discard, is_removed, locked, new_directory, old_of, partial_of, replace, replace_text, reserve, sync)
from nvswap.errors import Error, invalid
from nvswap.optimizer import STATES, Optimizer, StateRun
from nvswap.tensor_files import tensors_of
from nvswap.torch_file import damaged, data_offset, read_count, saved_value, sum_before, sum_of, write_around

# Returns what all ranks pass, in their order.
Gather = Callable[[bytes], Sequence[bytes]]

_STATE = "optimizer_state.pt"
_STEP = ("optimizer_state_dict", "state", 0, "step")  # where DeepSpeed looks for it in that
_OPEN_FILES = 32
_FILES = {"master": "fp32", "sum": "exp_avg_sq"}  # parts whose files have other names


class Parameter(NamedTuple):
    """
    A parameter, and the elements of it that an optimizer has.

    Parameters
    ----------
    name : str
        In the checkpoint, where it is the name of a directory: up to 255 bytes.
    group : int or str
        The optimizer's group that has the elements.
    offset, numel : int
        The group's elements `offset` to ``offset + numel`` are of this parameter. ZeRO-3 gives rank R of W elements
        from ``R * ceil(N / W)`` on, ``ceil(N / W)`` at most; numel 0: this rank has none.
    first : int
        The parameter's element at `offset`; 0 unless it is cut between ranks.
    shape : sequence of int, optional
        Of the whole parameter; otherwise it has one dimension and lies here as a whole.
    """

    name: str
    group: Union[int, str]
    offset: int
    numel: int
    first: int = 0
    shape: Optional[Sequence[int]] = None


def export_universal(optimizer: Optimizer, path: Union[str, "os.PathLike[str]"],
                     parameters: Optional[Iterable[Parameter]] = None, *, optimizer_state: Optional[bytes] = None,
                     rank: int = 0, world: int = 1, gather: Optional[Gather] = None) -> None:
    """
    Writes `path`/zero, and "latest_universal" beside `path` with its name. All files are durable before they take the
    place of what was there before. After a crash `path`/zero is what it was before, or the whole new checkpoint. On
    a file system that can't exchange two names (FUSE, NFS) a crash between the renames leaves what it was before as
    `path`/zero.partial/old, where import_universal finds it and from where the next export moves it back.

    Parameters
    ----------
    optimizer : Optimizer
    path : str or path
        The checkpoint's directory, such as "run/global_step50"; it is made if it is missing.
    parameters : iterable of Parameter, optional
        All ranks pass the same names and shapes in the same order, and give each element once. By default each
        group is a parameter of its name. Elements of no parameter are not written.
    optimizer_state : bytes, optional
        The contents of zero/optimizer_state.pt; by default a file with the number of steps.
    rank, world : int
        Of several ranks that write one checkpoint, to one file system.
    gather : callable, optional
        Gets bytes and returns those of all ranks, in their order, as ``torch.distributed.all_gather_object`` fills
        its list; all ranks call it equally often. Needed if `world` is above 1. Its exceptions are raised.

    Raises
    ------
    Error
        EINVAL: a name is no directory's, or appears twice; elements lie beyond the group or the shape, or in two
        parameters; `path` has no name; on all ranks: no rank has some elements, or two have them; the ranks differ
        in their names, shapes or numbers. EBUSY: another process writes to `path`; another thread took a step
        meanwhile; a step has failed and is not finished. EEXIST: `path`/zero or `path`/zero.partial has other files.
        ENOSPC: the file system has no room, or ``ulimit -f`` is too low. ECANCELED: another rank has failed, which
        the error names. Others are those of reading state, and of making, writing and renaming files.
    """
    path = os.fsdecode(path).rstrip("/")
    zero, (parent, tag) = os.path.join(path, "zero"), os.path.split(path)
    with ExitStack() as held:
        def begin() -> None:
            if tag in ("", ".", ".."):
                raise invalid("path must end with the name of the checkpoint's directory, such as run/global_step50")
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)
            held.enter_context(locked(path, wait=False))
            refuse_other_files(zero)
            discard(zero)
            held.callback(clean)

        def clean() -> None:
            with suppress(OSError):
                discard(zero)

        def finish() -> None:
            replace(zero)
            replace_text(os.path.join(parent, "latest_universal"), tag)

        write_universal(optimizer, new_directory(zero), parameters, optimizer_state=optimizer_state, rank=rank,
                        world=world, gather=gather, begin=begin, finish=finish)


def write_universal(optimizer: Optimizer, folder: str, parameters: Optional[Iterable[Parameter]], *,
                    optimizer_state: Optional[bytes] = None, rank: int = 0, world: int = 1,
                    gather: Optional[Gather] = None, begin: Callable[[], None] = lambda: None,
                    finish: Callable[[], None] = lambda: None) -> None:
    """Writes the durable files of export_universal to a directory that the first rank makes. That calls `begin`
    before, and `finish` behind; where one fails, all ranks raise."""
    if world < 2 and rank or world > 1 and gather is None:
        raise invalid(f"rank {rank} of {world}: ranks are 0 to world - 1, and several need gather")
    ranks, own = _Ranks(rank, world, gather), []

    def plan() -> Any:
        placed = _Placed(optimizer, parameters)
        own.append(placed)
        if rank == 0:
            with _failing("make", folder):
                begin()
                _make_files(folder, placed)
        named = json.dumps([(each.name, shape) for each, shape in zip(placed.parameters, placed.shapes)])
        return [hashlib.sha256(named.encode()).hexdigest(), [each.first for each in placed.parameters],
                [each.numel for each in placed.parameters]]

    plans = ranks.together(plan)
    placed, = own
    _check_cover(placed, plans)
    gathered = ranks.together(lambda: _write_elements(folder, placed, rank > 0))
    sums = [[reduce(operator.xor, of_ranks) for of_ranks in zip(*of_parts)] for of_parts in zip(*gathered)]

    def complete() -> None:
        if rank == 0:
            with _failing("complete", folder):
                _complete_files(folder, placed, sums, optimizer_state)
                finish()

    ranks.together(complete)


def import_universal(optimizer: Optimizer, path: Union[str, "os.PathLike[str]"],
                     parameters: Optional[Iterable[Parameter]] = None) -> None:
    """
    Reads state and the number of steps from `path`/zero, which DeepSpeed may have written, of all elements of the
    parameters or of this rank's. Elements of the groups that belong to no parameter become 0; new master weights go
    to the groups' weights. The checkpoint may have other parameters.

    Raises
    ------
    Error
        EINVAL: as for export_universal, or a file is damaged. ENOENT: there is no such checkpoint, or not this
        parameter. ESTALE: a parameter has another type, length or, where both have two dimensions or more, shape,
        and nothing was read; or another save replaced or wrote to a file during the call: call again. EBADMSG: a
        parameter that is read as a whole does not have the CRC-32 of its file. ENODATA: a file was truncated.
        EBUSY: another thread took a step meanwhile: import again. ERANGE: the number of steps is above 2^53 - 1.
        After other errors than the first three some state is imported and the rest is not.
    """
    placed, zero = _Placed(optimizer, parameters), os.path.join(os.fsdecode(path), "zero")
    folder = old_of(zero) if not os.path.lexists(zero) and os.path.isdir(old_of(zero)) else zero
    with _failing("read", os.path.join(folder, _STATE)):
        step = read_count(os.path.join(folder, _STATE), _STEP)
    found = {(index, part): _Found(os.path.join(folder, each.name, file), each, placed.shapes[index])
             for index, each in enumerate(placed.parameters) if each.numel for part, file in placed.files.items()}

    def read(run: StateRun) -> None:
        pieces = list(placed.pieces(run))
        for part in placed.files:
            array = getattr(run, part)
            if sum(len(elements) for _, _, elements in pieces) < len(array):
                array[:] = 0
            for index, at, elements in pieces:
                found[index, part].read(opened, at, array[elements.start:elements.stop])

    opened = lru_cache(_OPEN_FILES)(_Found.open)
    optimizer.import_state(read)
    opened.cache_clear()
    for each in found.values():
        each.compare()
    placed.check_step()
    optimizer.step_count = step


def refuse_other_files(zero: str) -> None:
    """Raises EEXIST if what an export replaces has other files than those of a universal checkpoint. Files that NFS or
    FUSE keep under another name, since they were removed while they were open, count as none."""
    for top, depth in ((zero, 1), (partial_of(zero), 3)):
        if os.path.lexists(top) and (os.path.islink(top) or not os.path.isdir(top)):
            raise Error(errno.EEXIST, f"{top} is no directory: move it away, or choose another tag", path=top)
        for folder, folders, names in os.walk(top):
            level = folder[len(top):].count("/")
            for name in [*names, *(folders if level >= depth else ())]:
                if is_removed(name) or name in names and name.endswith((".pt", ".pt.partial")) and name[0] != ".":
                    continue
                raise Error(errno.EEXIST, f"{os.path.join(folder, name)} is no part of a universal checkpoint: move it "
                            "away, or choose another tag", path=zero)


# ---- Parameters


class _Placed:
    """Parameters that are checked, and where an optimizer has their elements."""

    def __init__(self, optimizer: Optimizer, parameters: Optional[Iterable[Parameter]]) -> None:
        info = optimizer.info()
        self.optimizer, self.step = optimizer, info["step"]
        # Parts of a StateRun, and the files of a parameter.
        self.files = {part: f"{_FILES.get(part, part)}.pt" for part in ("master", *STATES[info["rule"]])}
        if parameters is None:
            parameters = [Parameter(each.name, number, 0, optimizer._group_numel(number))
                          for number, each in enumerate(optimizer.groups)]
        self.parameters: List[Parameter] = []
        self.shapes: List[Tuple[int, ...]] = []
        self._by_group: Dict[Any, List[Tuple[int, int, int]]] = {}
        for each in parameters:
            self._add(each)
        if not self.parameters:
            raise invalid("there are no parameters")
        names: Set[str] = set()
        for index, each in enumerate(self.parameters):
            if each.name in names:
                raise invalid(f"two parameters have the name {each.name}", each.name)
            names.add(each.name)
            if each.numel:
                self._by_group.setdefault(each.group, []).append((each.offset, each.offset + each.numel, index))
        for places in self._by_group.values():
            places.sort()
            for (_, end, before), (begin, _, index) in zip(places, places[1:]):
                if begin < end:
                    raise invalid(f"{self.parameters[index].name} and {self.parameters[before].name} have elements "
                                  "in common", self.parameters[index].name)

    def _add(self, given: Parameter) -> None:
        # Numbers may be of numpy, which overflow, and of which ranks gather none.
        given = given._replace(**{field: operator.index(getattr(given, field)) for field in ("offset", "numel", "first")})
        name, end = given.name, given.first + given.numel
        if not 0 < len(os.fsencode(name)) < 256 or "/" in name or "\0" in name or name in (".", "..", _STATE):
            raise invalid(f'"{name}": the name must be that of a directory: 1 to 255 bytes without '
                          f"'/', and not {_STATE}", name)
        shape = (end,) if given.shape is None else tuple(map(int, given.shape))
        if min(given.offset, given.numel, given.first, *shape) < 0 or end > math.prod(shape):
            raise invalid(f"{name}: its shape {list(shape)} has {math.prod(shape)} elements, and elements "
                          f"{given.first} to {end} are here", name)
        group = self.optimizer._number(given.group)
        if given.offset + given.numel > self.optimizer._group_numel(group):
            raise invalid(f"{name}: {given.numel} elements from {given.offset} on: the group "
                          f"{self.optimizer.groups[group].name} has {self.optimizer._group_numel(group)}", name)
        self.parameters.append(given._replace(group=group))
        self.shapes.append(shape)

    def pieces(self, run: StateRun) -> Iterator[Tuple[int, int, range]]:
        """The elements of a run that are of a parameter: its index, the first of them in it, and where they are in the
        run's arrays."""
        places, end = self._by_group.get(run.group, []), run.offset + len(run.master)
        for from_, to, index in places[max(0, bisect_right(places, (run.offset,)) - 1):]:
            if from_ >= end:
                break
            begin = max(from_, run.offset)
            if begin < to:
                yield index, self.parameters[index].first + begin - from_, \
                    range(begin - run.offset, min(to, end) - run.offset)

    def check_step(self) -> None:
        if self.optimizer.step_count != self.step:
            raise Error(errno.EBUSY, "the optimizer took a step meanwhile: export and import its state between steps")


# ---- Ranks


class _Ranks(NamedTuple):
    """Ranks that write one checkpoint."""

    rank: int
    world: int
    gather: Optional[Gather]

    def together(self, call: Callable[[], Any]) -> List[Any]:
        """Returns what `call` returned on each rank. Where it raises on one, all ranks raise."""
        failure: Optional[BaseException] = None
        own: Dict[str, Any] = {"rank": self.rank, "world": max(1, self.world)}
        try:
            own["value"] = call()
        except BaseException as error:  # pylint: disable=broad-exception-caught
            failure = error
            own["failure"] = error.strerror if isinstance(error, Error) else repr(error)
        gathered = [own]
        try:
            if self.world > 1 and self.gather is not None:
                gathered = [json.loads(part) for part in self.gather(json.dumps(own).encode())]
        except BaseException:
            if failure is None:
                raise
        if any((each["rank"], each["world"]) != (rank, len(gathered)) for rank, each in enumerate(gathered)):
            raise invalid(f"rank {self.rank} of {self.world}: the ranks differ in their numbers; all pass the same "
                          "world, and each another rank from 0 to world - 1") from failure
        if failure is not None:
            raise failure
        for each in gathered:
            if "failure" in each:
                raise Error(errno.ECANCELED, f"rank {each['rank']} has failed: {each['failure']}")
        return [each["value"] for each in gathered]


def _check_cover(placed: _Placed, plans: List[Any]) -> None:
    """Raises unless the ranks together have each element of each parameter once. All of them come to the same end."""
    sums, firsts, numels = zip(*plans)
    for rank, named in enumerate(sums):
        if named != sums[0]:
            raise invalid(f"rank {rank} has other parameters than rank 0: all ranks pass the same names and shapes in "
                          "the same order")
    for (name, *_), shape, first_of, numel_of in zip(placed.parameters, placed.shapes, zip(*firsts), zip(*numels)):
        whole, end, before = math.prod(shape), 0, None
        runs = sorted((first, rank, numel) for rank, (first, numel) in enumerate(zip(first_of, numel_of)) if numel)
        for first, rank, numel in [*runs, (whole, None, 0)]:
            if first < end and rank is not None:
                raise invalid(f"{name}: ranks {before} and {rank} both have the {min(end, first + numel) - first} "
                              f"elements from {first} on", name)
            if first > end:
                beside = [f"rank {before} has those before"] * (before is not None) + \
                    [f"rank {rank} has those behind"] * (rank is not None)
                raise invalid(f"{name}: no rank has the {first - end} elements from {end} on, of {whole}; "
                              f"{', '.join(beside) or 'none has any'}", name)
            end, before = first + numel, rank


# ---- Files


@contextmanager
def _failing(what: str, path: str) -> Iterator[None]:
    """Has errors of the system name the file and a remedy."""
    try:
        yield
    except Error:
        raise
    except OSError as error:
        path = os.fsdecode(error.filename or path)
        remedy = {errno.EFBIG: ": raise the limit on the size of files, ulimit -f",
                  errno.ENOSPC: ": make room, or choose another file system"}.get(error.errno or 0, "")
        raise Error(errno.ENOSPC if error.errno == errno.EFBIG else error.errno or errno.EIO,
                    f"can't {what} {path}: {error.strerror or error}{remedy}", path=path) from error


def _not_following(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _make_files(folder: str, placed: _Placed) -> None:
    os.makedirs(folder, 0o700, exist_ok=True)
    for each, shape in zip(placed.parameters, placed.shapes):
        place = os.path.join(folder, each.name)
        os.makedirs(place, 0o700, exist_ok=True)  # it is there if it has a removed file
        nbytes = data_offset(shape) + 4 * math.prod(shape)
        for name in placed.files.values():
            with open(os.path.join(place, name), "xb", opener=_not_following) as file, _failing("write", file.name):
                reserve(file.fileno(), nbytes)


class _Open:
    """A file that is closed when no thread uses it any more."""

    number = -1

    def __init__(self, path: str, flags: int) -> None:
        self.number = os.open(path, flags | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


def _write_elements(folder: str, placed: _Placed, durable: bool) -> List[List[int]]:
    """Returns what this rank's elements contribute to the CRC-32 of each part of each parameter."""
    offsets = [data_offset(shape) for shape in placed.shapes]
    sums, lock = [[0] * len(placed.files) for _ in placed.parameters], threading.Lock()
    opened = lru_cache(_OPEN_FILES)(lambda path: _Open(path, os.O_WRONLY | os.O_NOFOLLOW))

    def write(run: StateRun) -> None:
        for (index, at, elements), (number, part) in product(placed.pieces(run), enumerate(placed.files)):
            data = memoryview(getattr(run, part)[elements.start:elements.stop]).cast("B")
            path, offset = os.path.join(folder, placed.parameters[index].name, placed.files[part]), offsets[index] + 4 * at
            with _failing("write", path):
                file, written = opened(path), 0
                while written < len(data):
                    written += os.pwrite(file.number, data[written:], offset + written)
                # Begins to write it to the drive, beside what follows.
                os.posix_fadvise(file.number, offset, len(data), os.POSIX_FADV_DONTNEED)
            crc = sum_before(zlib.crc32(data), 4 * (math.prod(placed.shapes[index]) - at) - len(data))
            with lock:
                sums[index][number] ^= crc

    placed.optimizer.export_state(write)
    opened.cache_clear()
    for each in placed.parameters if durable else ():
        for name in placed.files.values() if each.numel else ():
            with _failing("write", os.path.join(folder, each.name, name)):
                sync(os.path.join(folder, each.name, name))
    placed.check_step()
    return sums


def _complete_files(folder: str, placed: _Placed, sums: List[List[int]], optimizer_state: Optional[bytes]) -> None:
    """Writes all other bytes of the files, and makes them durable."""
    group: Dict[str, Any] = {"params": []}
    state = optimizer_state if optimizer_state is not None else saved_value({
        "zero_stage": 3, "param_groups": [group], "optimizer_state_dict": {
            "state": {0: {"step": placed.step}}, "param_groups": [group]}})
    paths = [os.path.join(folder, _STATE)]
    with open(paths[0], "xb", opener=_not_following) as file:
        file.write(state)
    for each, shape, of_parts in zip(placed.parameters, placed.shapes, sums):
        for name, crc in zip(placed.files.values(), of_parts):
            paths.append(os.path.join(folder, each.name, name))
            with open(paths[-1], "r+b", opener=_not_following) as file:
                write_around(file, shape, crc)
        paths.append(os.path.join(folder, each.name))
    for path in [*paths, folder]:
        sync(path)


class _Found:
    """A part of a parameter in its file, which must stay as it is."""

    def __init__(self, path: str, parameter: Parameter, shape: Tuple[int, ...]) -> None:
        self._path, self._name, numel = path, parameter.name, math.prod(shape)
        self._stamp: Any = None
        with _failing("read", path):
            self.open()
        # DeepSpeed writes a tensor alone, or as "param" of a dictionary.
        found = next((each for each in tensors_of(path) if each[0] in ("tensor", "param")), None)
        if found is None:
            raise damaged(path, 'it has no tensor "param"')
        _, dtype, there, self._offset = found
        if dtype != "F32" or math.prod(there) != numel:
            raise Error(errno.ESTALE, f"parameter {parameter.name} has {math.prod(there)} elements of {dtype} in {path}, "
                        f"and {numel} of F32 here", parameter.name, path)
        if there != shape and len(there) > 1 and len(shape) > 1:
            raise Error(errno.ESTALE, f"parameter {parameter.name} has the shape {list(there)} in {path}, and "
                        f"{list(shape)} here", parameter.name, path)
        # Of what is read as a whole.
        self._wanted = sum_of(path, self._offset, 4 * numel) if parameter.numel == numel else None
        self._numel, self._sum, self._lock = numel, 0, threading.Lock()

    def open(self) -> _Open:
        """For one that is in use, ESTALE if it has changed."""
        file, stamp = None, None
        with suppress(*([FileNotFoundError] if self._stamp else [])):  # amid the renames of another save
            file = _Open(self._path, os.O_RDONLY)
            status = os.fstat(file.number)
            stamp = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        if file is None or stamp != (self._stamp or stamp):
            raise Error(errno.ESTALE, f"{self._path} was replaced or written to since its header was read: import again",
                        self._name, self._path)
        self._stamp = stamp
        return file

    def read(self, opened: Callable[["_Found"], _Open], at: int, array: Any) -> None:
        """Reads elements from `at` on into an array, of several threads."""
        data, done = memoryview(array).cast("B"), 0
        with _failing("read", self._path):
            file = opened(self)
            while done < len(data):
                nbytes = os.preadv(file.number, [data[done:]], self._offset + 4 * at + done)
                if not nbytes:
                    raise Error(errno.ENODATA, f"{self._path} was truncated", self._name, self._path)
                done += nbytes
        if self._wanted is not None:
            crc = sum_before(zlib.crc32(data), 4 * (self._numel - at) - len(data))
            with self._lock:
                self._sum ^= crc

    def compare(self) -> None:
        if self._wanted is not None and self._sum != self._wanted:
            raise Error(errno.EBADMSG, f"{self._path}: its bytes do not have the checksum that the file states",
                        self._name, self._path)
