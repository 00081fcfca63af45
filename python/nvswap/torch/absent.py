# SPDX-License-Identifier: Apache-2.0
"""
Parameters that have no memory. A parameter of an offloaded module has the class of its own while its contents are in
memory, and a class that is derived from it otherwise: shape, type, gradient and hooks are as before, and what would
read or write elements is an error. So computation in forwards costs nothing more.
"""

from __future__ import annotations

import functools
from typing import Any, Optional, Type

import torch

from nvswap.errors import invalid

# Functions of tensors that need no elements, or only those of gradients.
_WITHOUT_ELEMENTS = frozenset("""
    __dir__ __len__ _is_view _is_zerotensor backward can_cast dim dim_order element_size empty_like full_like
    get_device grad has_names is_coalesced is_complex is_conj is_contiguous is_floating_point is_inference is_neg
    is_pinned is_same_size is_shared is_signed ndimension nelement new_empty new_empty_strided new_full new_ones
    new_tensor new_zeros numel ones_like rand_like randint_like randn_like register_hook
    register_post_accumulate_grad_hook requires_grad_ result_type retain_grad size storage_offset stride type
    untyped_storage zeros_like""".split())
# What these return has no memory either.
_VIEWS = frozenset("data detach T mT H mH real imag".split())
_ALLOWED = _WITHOUT_ELEMENTS | _VIEWS


class _Absent(torch.Tensor):
    """What the derived classes have first among their bases."""

    _kind: Type[torch.Tensor]
    nvswap_offloaded: str  # the name in the store

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, allowed = function.__name__, _ALLOWED
        if name in ("__get__", "__set__", "__delete__"):  # of a property
            of = getattr(function.__self__, "__name__", "")
            allowed = frozenset() if name == "__set__" and of in _VIEWS else frozenset((of,))
            name = of
        if name not in allowed or name == "type" and (args[1:] or kwargs):  # type(dtype) converts.
            raise _not_in_memory(name, args, kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **kwargs or {})
        if name in _VIEWS:
            result.nvswap_offloaded = args[0].nvswap_offloaded
            result.__class__ = _absent(type(result))
        return result

    def __repr__(self, **_: Any) -> str:
        return f"{self.nvswap_offloaded}: {self.dtype} of {list(self.shape)} on {self.device}, not in memory"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)


def _not_in_memory(name: str, args: Any, kwargs: Any) -> Exception:
    found = [each for value in (*args, *kwargs.values())
             for each in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(each, _Absent)]
    which = found[0].nvswap_offloaded if found else "of an offloaded module"
    return invalid(f"parameter {which} is not in memory outside of forwards of the module that has it, and {name} "
                   "needs its elements: read them in `with offloaded.engine.pinned([name])` or by state_dict(), or "
                   "call offloaded.load() before, which brings all parameters into memory", which)


@functools.lru_cache(maxsize=None)
def _absent(kind: Type[torch.Tensor]) -> Type[torch.Tensor]:
    class Absent(_Absent, kind):  # type: ignore[misc,valid-type]
        """A tensor of a class that has no memory."""

        _kind = kind

    Absent.__name__ = Absent.__qualname__ = kind.__name__
    return Absent


def is_offloaded(parameter: torch.Tensor) -> bool:
    """Whether a parameter's contents are in the store of an offloaded module."""
    return hasattr(parameter, "nvswap_offloaded")


def take_memory(parameter: Any, placeholder: Optional[torch.Tensor] = None) -> None:
    """What would read or write elements of an offloaded parameter is an error from here on. Its data is a placeholder,
    which the first call gives. A second call has no effect."""
    if isinstance(parameter, _Absent):
        return
    if placeholder is not None:
        parameter.nvswap_placeholder = placeholder
    parameter.data = parameter.nvswap_placeholder
    parameter.__class__ = _absent(type(parameter))


def give_memory(parameter: torch.Tensor, data: torch.Tensor) -> None:
    """Gives a parameter, of which take_memory() was called or not, memory."""
    if isinstance(parameter, _Absent):
        parameter.__class__ = parameter._kind
    parameter.data = data
