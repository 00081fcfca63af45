# SPDX-License-Identifier: Apache-2.0
"""
Pauses a model or an optimizer: its tensors go to the drive, their memory back to the system, and all
comes back when it is wanted. A storage that several tensors share goes once, and is shared again.
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Tuple, Type, Union

import torch

from nvswap.errors import Error, invalid
from nvswap.torch.local import (
    Place, bytes_of, trim_memory, is_on_host, is_sharded, place_of, view_at)
from nvswap.torch.absent import is_offloaded
from nvswap.torch.settings import engine_of_its_own, settings_of

Parkable = Union[torch.nn.Module, torch.optim.Optimizer, torch.Tensor, Mapping[Any, torch.Tensor],
                 Iterable[torch.Tensor]]
# Of a device's memory, through host memory.
_STAGING_BYTES = 64 << 20


class _Storage:
    """A storage, and the places in it of the tensors that are parked."""

    def __init__(self, name: str, first: torch.Tensor) -> None:
        self.name = name
        self.bytes = bytes_of(first)
        self.nbytes, self.device = self.bytes.numel(), first.device
        self.on_host = is_on_host(first)
        self._tensors: List[Tuple[torch.Tensor, Place]] = []

    def add(self, tensor: torch.Tensor) -> None:
        """A tensor is of this storage."""
        self._tensors.append((tensor, place_of(tensor)))

    def parts(self) -> Iterator[Tuple[str, int, int]]:
        """The tensors of the engine: name, first byte and number of bytes."""
        step = self.nbytes if self.on_host else _STAGING_BYTES
        for first in range(0, self.nbytes, step):
            yield f"{self.name}.{first}" if first else self.name, first, min(step, self.nbytes - first)

    def free(self) -> None:
        """The tensors have no elements and no memory from here on."""
        for tensor, _ in self._tensors:
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        self.bytes = torch.empty(0, dtype=torch.uint8, device=self.device)

    def allocate(self) -> None:
        """Has memory again."""
        self.bytes = torch.empty(self.nbytes, dtype=torch.uint8, device=self.device)

    def restore(self) -> None:
        """The tensors have their places in `bytes`."""
        for tensor, place in self._tensors:
            tensor.data = view_at(self.bytes, tensor.dtype, place)


class StorageInPlace(_Storage):
    """Loses its memory and gets other, so that tensors which are not given share it too. Nothing may read
    these meanwhile: they have their shapes, and no memory."""

    def __init__(self, name: str, first: torch.Tensor) -> None:
        super().__init__(name, first)
        if not self.bytes.untyped_storage().resizable():
            raise invalid(f"tensor {name} lies in memory that torch has not allocated, such as pinned memory of "
                          "DeepSpeed, and can't be parked in place")

    def free(self) -> None:
        self.bytes.untyped_storage().resize_(0)

    def allocate(self) -> None:
        self.bytes.untyped_storage().resize_(self.nbytes)

    def restore(self) -> None:
        pass


class Parked:
    """
    What :func:`park` has moved to the drive.

    Attributes
    ----------
    nbytes : int
        On the drive now; 0 after :meth:`unpark`.
    """

    def __init__(self, tensors: Parkable, config: Any, kind: Type[_Storage] = _Storage) -> None:
        storages: Dict[int, _Storage] = {}
        for name, tensor in _named(tensors):
            if not isinstance(tensor, torch.Tensor):
                raise invalid(f"{name} is a {type(tensor).__name__}, and no tensor: park a module, an optimizer, a "
                              "tensor, or a dictionary or list that has tensors alone")
            if not tensor.is_leaf or tensor.layout is not torch.strided or tensor.is_meta:
                raise invalid(f"tensor {name}, of shape {list(tensor.shape)} on {tensor.device}, can't be parked: "
                              "leaves of a graph can, that are dense and have memory")
            if is_sharded(tensor):
                tensor = tensor._local_tensor
            if is_offloaded(tensor):
                raise invalid(f"tensor {name} is of an offloaded module, and on the drive already")
            key = tensor.untyped_storage()._cdata
            if tensor.untyped_storage().nbytes():
                if key not in storages:
                    storages[key] = kind(name, tensor)
                storages[key].add(tensor)
        self._storages = list(storages.values())
        self._engine = engine_of_its_own(settings_of(config), verify=True)
        try:
            self._engine.register_all({name: ("U8", (nbytes,)) for storage in self._storages
                                       for name, _, nbytes in storage.parts()})
            self._move(self._engine.store_from, to_drive=True)
        except BaseException:
            with contextlib.suppress(Error):
                self._engine.abandon()
            raise
        for storage in self._storages:
            storage.free()
        trim_memory()

    @property
    def nbytes(self) -> int:
        """See the class."""
        return sum(storage.nbytes for storage in self._storages)

    def _move(self, transfer: Any, to_drive: bool) -> None:
        """All of host memory at once, and each part of a device's through host memory."""
        transfer({name: storage.bytes for storage in self._storages if storage.on_host
                  for name, _, _ in storage.parts()})
        staging = None
        for storage in self._storages:
            for name, first, nbytes in () if storage.on_host else storage.parts():
                if staging is None:
                    staging = torch.empty(_STAGING_BYTES, dtype=torch.uint8, device="cpu",
                                          pin_memory=True)
                there, here = storage.bytes[first:first + nbytes], staging[:nbytes]
                if to_drive:
                    here.copy_(there)
                transfer({name: here})
                if not to_drive:
                    there.copy_(here)

    def unpark(self) -> None:
        """
        Brings all tensors back to where they were, on their devices. A second call has no effect.

        Raises
        ------
        nvswap.Error
            EBADMSG: the drive lost bytes; EIO and others of the drive: all are still parked.
        """
        if not self._storages:
            return
        try:
            for storage in self._storages:
                storage.allocate()
            self._move(self._engine.load_to, to_drive=False)
        except BaseException:
            for storage in self._storages:
                storage.free()
            raise
        for storage in self._storages:
            storage.restore()
        self._storages = []
        self._engine.abandon()


def park(tensors: Parkable, config: Any = None) -> Parked:
    """
    Moves tensors to the drive and gives their memory back to the system.

    Parameters
    ----------
    tensors : Module, Optimizer, tensor, mapping or iterable of tensors
        Of a module its parameters and buffers, of an optimizer what its state has. On the host or on
        devices; of a DTensor this rank's shard.
    config : Config, dict, str or os.PathLike, optional
        A directory on the drive; or a DeepSpeed JSON file or its contents, whose offload_param block has
        the path. The variable NVSWAP_CONFIG of the environment by default.

    Returns
    -------
    Parked
        Whose :meth:`Parked.unpark` brings them back. Keep it: without it nothing does.

    Raises
    ------
    nvswap.Error
        EINVAL: a tensor is not a leaf, sparse or without memory; ENOSPC, EIO and others of the drive.
        The tensors are as before.

    Notes
    -----
    Until then the tensors have no elements. Their bytes have checksums, which are compared when they
    come back, and end with the process. Memory that tensors have which are not given, such as views,
    stays. What a device frees stays with torch's allocator until torch.cuda.empty_cache().
    """
    return Parked(tensors, config)


def _named(tensors: Parkable) -> Iterator[Tuple[str, torch.Tensor]]:
    if isinstance(tensors, torch.nn.Module):
        yield from tensors.named_parameters()
        yield from tensors.named_buffers()
    elif isinstance(tensors, torch.optim.Optimizer):
        for number, state in enumerate(tensors.state.values()):
            yield from ((f"{number}.{name}", value) for name, value in state.items()
                        if isinstance(value, torch.Tensor))
    elif isinstance(tensors, Mapping):
        yield from ((str(name), value) for name, value in tensors.items())
    else:
        yield from ((str(number), value) for number, value in enumerate(
            [tensors] if isinstance(tensors, torch.Tensor) else tensors))
