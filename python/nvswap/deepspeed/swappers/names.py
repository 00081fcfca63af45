# SPDX-License-Identifier: Apache-2.0
"""
Adds the model's names of parameters to errors. Tensors of a store are numbered, because zero.Init fills
partitions before initialize() tells DeepSpeed the names.
"""

from __future__ import annotations

import re
import weakref
from contextlib import contextmanager
from typing import Any, Iterator, Optional, Sequence

from deepspeed.utils import debug

from nvswap.engine import Engine
from nvswap.errors import Error
from nvswap.handle import Handle
from nvswap.optimizer import Optimizer


def name_of(parameter: Any) -> Optional[str]:
    """The model's name of a parameter; None if DeepSpeed does not know it."""
    return debug.param_names[parameter] if parameter in debug.param_names else None


def names_of(parameters: Sequence[Any]) -> Optional[str]:
    """The first and the last of a sub-group."""
    first, last = name_of(parameters[0]), name_of(parameters[-1])
    return first if first is None or first == last else f"{first} to {last}"


def name_at(parameters: Sequence[Any], offset: int) -> Optional[str]:
    """The name of the parameter that has element `offset` of this rank's part of a sub-group."""
    for parameter in parameters:
        numel = int(parameter.partition_numel())
        if offset < numel:
            return name_of(parameter)
        offset -= numel
    return None


class _Naming(Handle):
    """
    A handle whose errors have names of parameters beside those of tensors.

    Attributes
    ----------
    describe : weakref.WeakMethod or None
        Of a function that gets a tensor's name, and returns what the model calls it, or None.
    """

    describe: Optional["weakref.WeakMethod[Any]"] = None

    @contextmanager
    def _open(self) -> Iterator[Any]:
        try:
            with super()._open() as pointer:
                yield pointer
        except Error as error:
            describe = self.describe() if self.describe is not None else None
            if describe is not None and error.tensor:
                _add_name(error, error.tensor, describe(error.tensor))
            raise


def _add_name(error: Error, tensor: str, name: Optional[str]) -> None:
    if name is not None:
        error.strerror = re.sub(rf"(?<![\w.]){re.escape(tensor)}(?!\.?\w)",
                                lambda _: f"{name} ({tensor})", error.strerror, count=1)


class NamingEngine(_Naming, Engine):
    """An engine that names parameters."""


class NamingOptimizer(_Naming, Optimizer):
    """The optimizer of a rank."""
