# SPDX-License-Identifier: Apache-2.0
"""
Sums of the gradients of offloaded parameters, which go to a store as the backward makes them. A tile of a parameter
has its elements of the sum as a part that is read with it.
"""

from __future__ import annotations

import contextlib
from typing import Dict, List

import torch

from nvswap.engine import Engine
from nvswap.errors import Error
from nvswap.torch.gradients import StoredGradient
from nvswap.torch.optim.tiles import Arrays, Tile

_PART = "gradient"
# Gradients that are in memory while they are written.
_IN_FLIGHT = 2


class Sums:
    """
    What a StoredGradient stands for.

    Parameters
    ----------
    engine : nvswap.Engine
    tiles : dict of torch.nn.Parameter to list of Tile

    Attributes
    ----------
    stored : dict of torch.nn.Parameter to float
        Whose sums are in the store, and the factor that they have got since, but not there.
    """

    def __init__(self, engine: Engine, tiles: Dict[torch.nn.Parameter, List[Tile]]) -> None:
        self._engine, self._tiles = engine, tiles
        self.stored: Dict[torch.nn.Parameter, float] = {}
        self._norms: Dict[torch.nn.Parameter, float] = {}
        # In the order of their writes, the first of which may have failed.
        self._writing: Dict[torch.nn.Parameter, Arrays] = {}
        self._failed = False

    def take(self, parameter: torch.nn.Parameter) -> None:
        """Called when a backward has made `parameter.grad`: a tensor, or what it has added to is here."""
        gradient = parameter.grad
        if gradient is not None and not isinstance(gradient, StoredGradient):
            self._write(parameter, gradient.detach())
            parameter.grad = StoredGradient(self, parameter)

    def drop(self, parameter: torch.nn.Parameter) -> None:
        """Drops the sum of a parameter, if there is one."""
        if self.stored.pop(parameter, None) is not None:
            parameter.grad = None
            for tile in self._tiles[parameter]:
                tile.parts[_PART].fresh = True

    def drop_all(self) -> None:
        """Drops the sums of all parameters."""
        for parameter in list(self.stored):
            self.drop(parameter)

    def add_gradient(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        """Adds a gradient to the sum of a parameter."""
        sums = self._read(parameter).mul_(self.stored[parameter])
        self._write(parameter, sums.add_(gradient.to("cpu")))

    def gradient_norm(self, parameter: torch.nn.Parameter) -> float:
        """The 2-norm."""
        if parameter not in self._norms:
            self._norms[parameter] = float(torch.linalg.vector_norm(self._read(parameter), dtype=torch.float64))
        return self._norms[parameter] * abs(self.stored[parameter])

    def scale_gradient(self, parameter: torch.nn.Parameter, factor: float) -> None:
        """Multiplies the sum by a factor."""
        self.stored[parameter] *= factor

    def finish(self, most: int = 0) -> None:
        """Waits until at most so many gradients are on their way. What could not be written stays in memory, and the
        next call writes it again."""
        while len(self._writing) > most:
            parameter, parts = next(iter(self._writing.items()))
            if self._failed:
                with contextlib.suppress(Error):  # Of a write that was overdue.
                    self._engine.wait(parts)
                self._engine.store_from(parts)
            else:
                self._failed = True
                self._engine.wait(parts)
            self._failed = False
            del self._writing[parameter]

    def _read(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        self.finish()
        sums = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
        self._engine.load_to({tile.parts[_PART].name: tile.elements_of(sums) for tile in self._tiles[parameter]})
        return sums

    def _write(self, parameter: torch.nn.Parameter, sums: torch.Tensor) -> None:
        # A sum that was dropped may be on its way yet.
        self.finish(0 if parameter in self._writing else _IN_FLIGHT - 1)
        sums = sums.to("cpu", torch.float32).contiguous()
        parts = {tile.parts[_PART].name: tile.elements_of(sums) for tile in self._tiles[parameter]}
        self._engine.store_from(parts, wait=False)
        self._writing[parameter] = parts
        for tile in self._tiles[parameter]:
            tile.parts[_PART].fresh = False
        self.stored[parameter] = 1.0
        self._norms.pop(parameter, None)
