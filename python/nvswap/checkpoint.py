# SPDX-License-Identifier: Apache-2.0
"""
Universal checkpoints of DeepSpeed: an optimizer's state by parameters, in a file for each part of each,
streamed between the store and the files. Ranks write one checkpoint together.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Sequence, Union

from nvswap._native import ffi, lib
from nvswap.errors import check, new_error
from nvswap.optimizer import Optimizer
from nvswap.strings import encoded_path

_NULL = ffi.NULL

# Returns what all ranks pass, in their order.
Gather = Callable[[bytes], Sequence[bytes]]


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
        The group's elements `offset` to ``offset + numel`` are of this parameter.
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


class _Gathering:
    """The caller's function, what it gathered last, and the first exception that it raised."""

    def __init__(self, gather: Optional[Gather]) -> None:
        self.gather = gather
        self.gathered: Any = None
        self.failure: Optional[BaseException] = None


@ffi.def_extern(error=-5)
def nvswap_gather(arg: Any, own: Any, nbytes: int, gathered: Any) -> int:
    gathering = ffi.from_handle(arg)
    try:
        parts = gathering.gather(bytes(ffi.buffer(own, nbytes)))
        if any(len(part) != nbytes for part in parts):
            raise ValueError(f"gather returns parts of {[len(part) for part in parts]} bytes; all ranks pass {nbytes}")
        gathering.gathered = ffi.new("uint64_t[]", -(-nbytes * len(parts) // 8))  # aligned
        ffi.memmove(gathering.gathered, b"".join(parts), nbytes * len(parts))
        gathered[0] = gathering.gathered
        return len(parts)
    except BaseException as failure:
        gathering.failure = gathering.failure or failure
        return -5


def export_universal(optimizer: Optimizer, path: Union[str, "os.PathLike[str]"],
                     parameters: Iterable[Parameter], *, optimizer_state: Optional[bytes] = None,
                     rank: int = 0, world: int = 1, gather: Optional[Gather] = None) -> None:
    """
    Writes `path`/zero, and "latest_universal" beside `path` with its name; a crash leaves what was there
    before, or the whole new checkpoint.

    Parameters
    ----------
    optimizer : Optimizer
    path : str or path
        The checkpoint's directory, such as "run/global_step50"; it is made if it is missing.
    parameters : iterable of Parameter
        All ranks pass the same names and shapes in the same order.
    optimizer_state : bytes, optional
        The contents of zero/optimizer_state.pt; by default a file with the number of steps.
    rank, world : int
        Of several ranks that write one checkpoint.
    gather : callable, optional
        Gets up to 1024 bytes and returns those of all ranks, in their order, as
        ``torch.distributed.all_gather_object`` fills its list; all ranks call it equally often. Needed
        if `world` is above 1.

    Raises
    ------
    Error
        Those of nvs_checkpoint_export_universal, such as ENOSPC; ECANCELED: another rank has failed.
    """
    given, keep = _params_of(optimizer, parameters)
    gathering, error = _Gathering(gather), new_error()
    arg = ffi.new_handle(gathering)
    options = ffi.new("struct nvs_universal_options *")
    options.size = ffi.sizeof("struct nvs_universal_options")
    if optimizer_state is not None:
        state = ffi.from_buffer(optimizer_state)
        options.optimizer_state, options.optimizer_state_bytes = state, len(optimizer_state)
    options.rank, options.world, options.gather_arg = rank, world, arg
    options.gather = lib.nvswap_gather if gather else _NULL
    with optimizer._open() as pointer:
        code = lib.nvs_checkpoint_export_universal(pointer, given, len(given), encoded_path(path),
                                                   options, error)
        if gathering.failure is not None:
            raise gathering.failure
        check(code, error)
    del keep


def import_universal(optimizer: Optimizer, path: Union[str, "os.PathLike[str]"],
                     parameters: Iterable[Parameter]) -> None:
    """
    Reads state and the number of steps from `path`/zero, which DeepSpeed may have written. Elements of
    the groups that belong to no parameter become 0; new master weights go to the groups' weights.

    Raises
    ------
    Error
        Those of nvs_checkpoint_import_universal, such as ENOENT, ESTALE (another shape, or
        another save replaced a file during the call: call again), EBADMSG.
    """
    given, keep = _params_of(optimizer, parameters)
    error = new_error()
    with optimizer._open() as pointer:
        check(lib.nvs_checkpoint_import_universal(pointer, given, len(given), encoded_path(path), error),
              error)
    del keep


def _params_of(optimizer: Optimizer, parameters: Iterable[Parameter]) -> Any:
    """The array for the library, and what it points to."""
    parameters = list(parameters)
    array, keep = ffi.new("struct nvs_checkpoint_param[]", len(parameters)), []
    for given, parameter in zip(array, parameters):
        given.size = ffi.sizeof("struct nvs_checkpoint_param")
        name = ffi.new("char[]", encoded_path(parameter.name))
        given.name, given.group = name, optimizer._number(parameter.group)
        given.offset, given.numel, given.first = parameter.offset, parameter.numel, parameter.first
        keep.append(name)
        if parameter.shape is not None:
            shape = ffi.new("uint64_t[]", list(parameter.shape) or [0])
            given.shape, given.ndim = shape, len(parameter.shape)
            keep.append(shape)
    return array, keep
