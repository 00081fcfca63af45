# SPDX-License-Identifier: Apache-2.0
"""
Writes a state dictionary some of whose tensors are in a store as torch.save does. The pickle is made
here, as torch.save makes it; the library writes the file, with the data of the store. Relies on the
form of storages in a pickle of torch, which is the same since torch 1.6.
"""

from __future__ import annotations

import errno
import io
import pickle
from collections import OrderedDict
from typing import (
    Any, Dict, Hashable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union)

import torch

from nvswap.engine import Engine
from nvswap.errors import Error
from nvswap.optimizer import STATES, Optimizer
from nvswap.tensor_files import export_optimizer, export_tensors


# The states of a universal checkpoint of DeepSpeed, which its loader reads whatever the optimizer.
MOMENTS = ("exp_avg", "exp_avg_sq")


class EngineFile:
    """Writes tensors of an engine, whose keys are their names."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def in_order(self, keys: Sequence[str]) -> Sequence[str]:
        """The keys of all tensors that a file with these has, in its order."""
        return keys

    def write(self, path: str, keys: Sequence[str], pickled: bytes, storages: Sequence[Any]) -> None:
        """Writes a file of torch.save. Storages "0", "1" and so on of `pickled` are the tensors with
        the keys of in_order(), and behind them `storages`."""
        export_tensors(self._engine, path, keys, pickle=pickled, storages=storages)


class OptimizerFile:
    """Writes the state of an optimizer; a key is a group's index and a part, "master" or a state of the rule."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    def in_order(self, _: Sequence[Any]) -> List[Tuple[int, str]]:
        parts = ("master", *STATES[self._optimizer.info()["rule"]])
        return [(group, part) for group in range(len(self._optimizer.groups)) for part in parts]

    def write(self, path: str, _: Sequence[Any], pickled: bytes, storages: Sequence[Any]) -> None:
        export_optimizer(self._optimizer, path, pickle=pickled, storages=storages)


class Stored:
    """
    A flat tensor in a store, as a value of a state dictionary.

    Parameters
    ----------
    file : EngineFile or OptimizerFile
    key : str or tuple
        The tensor.
    numel : int
    dtype : torch.dtype, optional
    """

    def __init__(self, file: Union[EngineFile, OptimizerFile], key: Hashable, numel: int,
                 dtype: torch.dtype = torch.float32) -> None:
        self.file = file
        self.key = key
        self.numel = numel
        self.dtype = dtype

    def __reduce__(self) -> Any:
        raise Error(errno.ENOTSUP, "state in a store is saved by DeepSpeed's save_checkpoint, not by "
                    "pickling what the optimizer gave it")


class _Storage(NamedTuple):
    """What a stored tensor is pickled with in place of a storage of torch."""

    number: int
    kind: Any  # the class that torch pickles for the element type
    numel: int


# By the element type of a tensor in a store.
_KINDS = {torch.float32: torch.FloatStorage, torch.bfloat16: torch.BFloat16Storage,
          torch.float16: torch.HalfStorage}


class _Pickler(pickle.Pickler):
    """Numbers the storages of stored tensors as their file has them, and then all others."""

    def __init__(self, file: Any, numbers: Dict[Hashable, int]) -> None:
        super().__init__(file, protocol=2)
        self._numbers = numbers
        self._own: Dict[int, str] = {}  # by address
        self._kept: List[torch.UntypedStorage] = []  # so that no other one gets its address
        self.storages: List[Any] = []  # as arrays of bytes

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Stored):
            return NotImplemented
        if obj.key not in self._numbers:
            raise Error(errno.ENOTSUP, "state in a store is in an object that is no dict, list or tuple")
        storage = _Storage(self._numbers[obj.key], _KINDS[obj.dtype], obj.numel)
        return torch._utils._rebuild_tensor_v2, (storage, 0, (obj.numel,), (1,), False, OrderedDict())

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, _Storage):
            return "storage", obj.kind, str(obj.number), "cpu", obj.numel
        if isinstance(obj, torch.storage.TypedStorage):
            kind = getattr(torch, obj._pickle_storage_type())
            return "storage", kind, self._number(obj._untyped_storage), "cpu", obj._size()
        if isinstance(obj, torch.UntypedStorage):
            return "storage", torch.UntypedStorage, self._number(obj), "cpu", obj.nbytes()
        return None

    def _number(self, storage: torch.UntypedStorage) -> str:
        if storage._cdata not in self._own:
            self._own[storage._cdata] = str(len(self._numbers) + len(self.storages))
            self._kept.append(storage)
            self.storages.append(
                torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage.cpu()).numpy())
        return self._own[storage._cdata]


def has_stored(state: Any) -> bool:
    """Whether any value is in a store."""
    return any(True for _ in _stored(state))


def save(state: Any, path: str) -> None:
    """
    Writes `state`, which has values in one store, to a file that torch.load reads.

    Raises
    ------
    Error
        ENOTSUP: a stored tensor is in an object other than a dict, list or tuple.
    OSError
        Those of writing and of reading the store.
    """
    found = list(_stored(state))
    file: Any = found[0].file
    keys = file.in_order([each.key for each in found])
    pickled = io.BytesIO()
    pickler = _Pickler(pickled, {key: number for number, key in enumerate(keys)})
    pickler.dump(state)
    file.write(path, keys, pickled.getvalue(), pickler.storages)


def _stored(state: Any, seen: Optional[Set[int]] = None) -> Iterator[Stored]:
    """The values in a store. A container that is in itself, or in several, is looked into once."""
    seen = set() if seen is None else seen
    if isinstance(state, Stored):
        yield state
    elif isinstance(state, (dict, list, tuple)) and id(state) not in seen:
        seen.add(id(state))
        for value in state.values() if isinstance(state, dict) else state:
            yield from _stored(value, seen)
