# SPDX-License-Identifier: Apache-2.0
"""
Tensors without memory that know what they are made of: tensors of files, or the results of calls with them,
which are made again with what was read.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Mapping, NamedTuple, Optional, Sequence, Set, Union

import torch

from nvswap.errors import invalid


# Functions that make each row of the same row of their first argument.
_BY_ROWS = ("detach", "contiguous", "to")


class Leaf(NamedTuple):
    """A tensor of the files, or one row of it."""

    name: str
    row: Optional[int]


class _Call(NamedTuple):
    """A function that made a tensor, and of several results the index."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Dict[str, Any]
    index: Optional[int]


class Recorded(torch.Tensor):
    """A tensor without memory that knows what it is made of."""

    made: Union[Leaf, _Call, None] = None

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name == "__setitem__" or name.endswith("_") and not name.endswith("__") and name != "requires_grad_":
            raise invalid(f"the weights are converted by {name}, which writes to a tensor of the files: save the "
                          "model again by save_pretrained(), in the form that its class has now")
        result = super().__torch_function__(function, types, args, kwargs or {})
        many = isinstance(result, (tuple, list))
        for index, each in enumerate(result if many else [result]):
            if isinstance(each, Recorded) and each.made is None:
                each.made = _Call(function, args, kwargs or {}, index if many else None)
        return result

    def __getitem__(self, index: Any) -> Any:
        # The loader of transformers reads a tensor so.
        return self if index is Ellipsis else super().__getitem__(index)

    def to(self, *args: Any, device: Any = None, dtype: Any = None, **kwargs: Any) -> Any:
        """A change of the type alone: it has no device."""
        del device
        dtype = next((each for each in args if isinstance(each, torch.dtype)), dtype)
        return self if dtype in (None, self.dtype) else super().to(dtype, **kwargs)


def leaf_of(name: str, row: Optional[int], dtype: torch.dtype, shape: Iterable[int]) -> Recorded:
    tensor = torch.empty(tuple(shape), dtype=dtype, device="meta").as_subclass(Recorded)
    tensor.made = Leaf(name, row)
    return tensor


def _mapped(value: Any, function: Callable[[Recorded], Any]) -> Any:
    """Arguments of a call, with the recorded tensors among them replaced."""
    if isinstance(value, Recorded):
        return function(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_mapped(each, function) for each in value])
    return value


def evaluate(tensor: Recorded, leaves: Mapping[Leaf, torch.Tensor]) -> torch.Tensor:
    made = tensor.made
    if isinstance(made, Leaf):
        return leaves[made]
    assert made is not None
    args = _mapped(list(made.args), lambda each: evaluate(each, leaves))
    result = made.function(*args, **made.kwargs)
    return result if made.index is None else result[made.index]


def leaves_of(tensor: Recorded) -> Set[Recorded]:
    if isinstance(tensor.made, Leaf):
        return {tensor}
    found: Set[Recorded] = set()
    assert tensor.made is not None
    _mapped(list(tensor.made.args), lambda each: found.update(leaves_of(each)))
    return found


def row_of(tensor: Recorded, number: int) -> Optional[Recorded]:
    """One row along the first dimension, made of rows or whole tensors of the files; None: it takes more."""
    made = tensor.made
    if isinstance(made, Leaf):
        return leaf_of(made.name, number, tensor.dtype, tensor.shape[1:]) if made.row is None else None
    assert made is not None
    name, (first, *rest) = made.function.__name__, made.args
    dim = made.kwargs.get("dim", rest[0] if rest else 0)
    if name == "stack" and dim == 0:
        return first[number]  # type: ignore[no-any-return]
    parts = [row_of(each, number) for each in (first if isinstance(first, (list, tuple)) else [first])]
    if any(each is None for each in parts):
        return None
    if name == "cat" and dim >= 1:
        return torch.cat(parts, dim=dim - 1)  # type: ignore[arg-type,return-value]
    if name in _BY_ROWS:
        return made.function(parts[0], *rest, **made.kwargs)  # type: ignore[no-any-return]
    return None


def table_of(tensor: Recorded) -> Optional[str]:
    """The tensor of the files each of whose rows makes the same row of this one alone; None: there is none."""
    made = tensor.made
    while isinstance(made, _Call) and made.function.__name__ in _BY_ROWS:
        made = made.args[0].made
    return made.name if isinstance(made, Leaf) and made.row is None and tensor.ndim > 1 else None
