# SPDX-License-Identifier: Apache-2.0
"""
The masters and moments of some of an optimizer's parameters, in one store. A parameter is cut into
groups of the store of sub_group_size elements at most: its pieces.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch

from nvswap.config import Config
from nvswap.optimizer import Group, GroupAdam, Optimizer
from nvswap.statistics import StepResult
from nvswap.torch.offload import Offloaded

MOMENTS = ("exp_avg", "exp_avg_sq")


class Piece(NamedTuple):
    """Elements of a parameter, and the group of the store that has their state."""

    group: int
    offset: int
    numel: int


class State:
    """
    Opens a store for parameters, whose weights are the first masters unless the store was kept.

    Parameters
    ----------
    config : Config
    parameters : dict of torch.nn.Parameter to str
        With the prefixes of their groups' names in the store. Contiguous and in host memory, or of
        `offloaded`.
    offloaded : Offloaded, optional

    Attributes
    ----------
    optimizer : nvswap.Optimizer
    pieces : dict of torch.nn.Parameter to list of Piece
    """

    def __init__(self, config: Config, parameters: Dict[torch.nn.Parameter, str],
                 offloaded: Optional[Offloaded]) -> None:
        self._offloaded = offloaded
        self._config = config
        self.pieces: Dict[torch.nn.Parameter, List[Piece]] = {}
        self._owners: List[Tuple[torch.nn.Parameter, Piece]] = []
        groups = []
        limit = int(config["zero_optimization.sub_group_size"])
        for parameter, name in parameters.items():
            self.pieces[parameter] = pieces = []
            for offset in range(0, parameter.numel(), limit):
                piece = Piece(len(groups), offset, min(limit, parameter.numel() - offset))
                pieces.append(piece)
                self._owners.append((parameter, piece))
                groups.append(Group(f"{name}.{offset}", *(
                    (None, piece.numel, parameter.dtype) if self._tensor_of(parameter) else
                    (_part(parameter.data.view(-1), piece),))))
        self._adam = GroupAdam(len(groups))
        self.optimizer = Optimizer(config, groups, update=self._adam,
                                   weights_final=self._write_weights if offloaded else None)
        if self.optimizer.step_count:
            self._take_kept_weights()
        else:
            self._start_offloaded()

    def _tensor_of(self, parameter: torch.nn.Parameter) -> Optional[str]:
        return self._offloaded.name_of(parameter) if self._offloaded else None

    def _start_offloaded(self) -> None:
        """The masters of offloaded parameters begin as these."""
        for parameter, piece in self._owners:
            name = self._tensor_of(parameter)
            if name is not None:
                weights = torch.empty(piece.numel, dtype=parameter.dtype, device="cpu")
                assert self._offloaded is not None
                self._offloaded.engine.read_range(name, weights, piece.offset * weights.itemsize)
                self.optimizer.set_state(piece.group, "master", weights.float())

    def _take_kept_weights(self) -> None:
        """Gives the parameters the weights of the last step that a kept store has."""
        if any(self._tensor_of(parameter) is None for parameter in self.pieces):
            self.optimizer.get_weights()
        for parameter, piece in self._owners:
            if self._tensor_of(parameter) is not None:
                self._write_weights(piece.group, 0, self._get(piece, "master").to(parameter.dtype))

    def _write_weights(self, group: int, offset: int, weights: Any) -> None:
        parameter, piece = self._owners[group]
        name = self._tensor_of(parameter)
        if name is not None:
            assert self._offloaded is not None
            self._offloaded.engine.write_range(
                name, weights, (piece.offset + offset) * weights.itemsize)

    def _get(self, piece: Piece, part: str) -> torch.Tensor:
        values = torch.empty(piece.numel, device="cpu")
        self.optimizer.get_state(piece.group, part, out=values)
        return values

    # ---- Steps

    def set_numbers(self, parameter: torch.nn.Parameter, steps: int, **numbers: Any) -> None:
        """Sets the numbers of Adam for the next step of a parameter that has had `steps`."""
        missed = self.optimizer.step_count - steps
        for piece in self.pieces[parameter]:
            self._adam.set(piece.group, missed=missed, **numbers)

    def add_gradient(self, parameter: torch.nn.Parameter, flat: torch.Tensor) -> None:
        """Adds a gradient to those since the last step; it is copied."""
        for piece in self.pieces[parameter]:
            self.optimizer.add_gradients(piece.group, _part(flat, piece))

    def lend_gradient(self, parameter: torch.nn.Parameter, flat: torch.Tensor) -> None:
        """Lends the gradient to the next step, or again to one that failed and needs it."""
        unfinished = self.optimizer.info()["unfinished"]
        for piece in self.pieces[parameter]:
            if not (unfinished and self._gradients(piece) == "lent"):
                self.optimizer.lend_gradients(piece.group, _part(flat, piece))

    def _gradients(self, piece: Piece) -> str:
        gradients: str = self.optimizer.group_info(piece.group)["gradients"]
        return gradients

    def with_gradients(self) -> List[torch.nn.Parameter]:
        """The parameters that the next step changes."""
        return [parameter for parameter, pieces in self.pieces.items()
                if any(self._gradients(piece) != "none" for piece in pieces)]

    def step(self, sum_squares: Optional[float]) -> StepResult:
        """Steps the parameters that have gradients, by the numbers that were set for them."""
        return self.optimizer.step(sum_squares=sum_squares)

    # ---- Values

    def take_changes(self, parameter: torch.nn.Parameter) -> None:
        """Weights that the program has changed become masters; the others keep theirs, which have
        more bits than a weight of 16."""
        weights = parameter.data.view(-1)
        for piece in self.pieces[parameter]:
            master, own = self._get(piece, "master"), _part(weights, piece)
            same = master.to(own.dtype) == own
            if not same.all():
                self.optimizer.set_state(piece.group, "master",
                                         torch.where(same, master, own.float()))

    def values(self, parameter: torch.nn.Parameter) -> Dict[str, torch.Tensor]:
        """
        The moments of a parameter, and the master of one of 16 bits. They lie in files without a
        name beside the store, which the system writes and reads when memory is short, and which
        end with the tensors.
        """
        return {part: self._copied(parameter, part) for part in self._parts(parameter)}

    def _parts(self, parameter: torch.nn.Parameter) -> Iterator[str]:
        yield from MOMENTS
        if parameter.dtype != torch.float32:
            yield "master"

    def _copied(self, parameter: torch.nn.Parameter, part: str) -> torch.Tensor:
        if not parameter.numel():
            return torch.empty_like(parameter, dtype=torch.float32, device="cpu")
        values = self._mapped(parameter.numel())
        for piece in self.pieces[parameter]:
            self.optimizer.get_state(piece.group, part, out=_part(values, piece))
        return values.view(parameter.shape)

    def _mapped(self, numel: int) -> torch.Tensor:
        paths = self._config.paths("optimizer")
        if not paths:
            return torch.empty(numel, device="cpu")
        with tempfile.TemporaryFile(dir=paths[0]) as file:
            os.posix_fallocate(file.fileno(), 0, 4 * numel)
            return torch.frombuffer(mmap.mmap(file.fileno(), 4 * numel), dtype=torch.float32)

    def set_values(self, parameter: torch.nn.Parameter, values: Dict[str, Any]) -> None:
        """Takes moments, which are zero where they are missing, and the master if there is one."""
        for part in [*MOMENTS, *(["master"] if "master" in values else [])]:
            flat = values[part].reshape(-1) if part in values else None
            for piece in self.pieces[parameter]:
                self.optimizer.set_state(piece.group, part, torch.zeros(piece.numel, device="cpu")
                                         if flat is None else _part(flat, piece).float().cpu())


def _part(flat: torch.Tensor, piece: Piece) -> torch.Tensor:
    return flat[piece.offset:piece.offset + piece.numel]
