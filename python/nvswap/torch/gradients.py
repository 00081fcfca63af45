# SPDX-License-Identifier: Apache-2.0
"""The gradients of offloaded parameters, which lie in an optimizer's store, as `parameter.grad`."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Tuple, Union

import torch

from nvswap.errors import invalid

if TYPE_CHECKING:
    from nvswap.torch.state import State
    from nvswap.torch.optim.sums import Sums

_aten = torch.ops.aten


class StoredGradient(torch.Tensor):
    """
    The gradient of a parameter in a store. It takes what torch.nn.utils.clip_grad_norm_,
    torch.amp.GradScaler and a backward do with gradients: its 2-norm, factors, and additions.

    Raises
    ------
    nvswap.Error
        EINVAL: of any other operation.
    """

    # The parameter has a reference to this, and keeps neither itself nor the store.
    _state: "weakref.ref[Union[State, Sums]]"
    _parameter: "weakref.ref[torch.nn.Parameter]"

    @staticmethod
    def __new__(cls, state: "Union[State, Sums]", parameter: torch.nn.Parameter) -> "StoredGradient":
        made: StoredGradient = torch.Tensor._make_wrapper_subclass(
            cls, parameter.shape, dtype=parameter.dtype, device=parameter.device)
        made._state, made._parameter = weakref.ref(state), weakref.ref(parameter)
        return made

    def where(self) -> Tuple["Union[State, Sums]", torch.nn.Parameter]:
        """The store and the parameter; an error if the store has it no more."""
        state, parameter = self._state(), self._parameter()
        if state is None or parameter is None or parameter not in state.stored:
            raise invalid("the gradient of an offloaded parameter was dropped by a step, by zero_grad(), or "
                          "with its optimizer")
        return state, parameter

    def __repr__(self, *_: Any, **__: Any) -> str:
        return f"StoredGradient(shape={list(self.shape)})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operation = _OPERATIONS.get(function)
        if operation is None:
            raise invalid(f"{function} of the gradient of an offloaded parameter, which lies in the store of its "
                          "optimizer: there are its 2-norm, as torch.nn.utils.clip_grad_norm_ takes it, "
                          "products with a factor, and additions of gradients")
        return operation(*args, **(kwargs or {}))


def _norm(gradient: StoredGradient, order: Any = 2, dims: Any = None, keepdim: bool = False, *,
          dtype: Any = None) -> torch.Tensor:
    if float(order) != 2 or dims not in (None, [], list(range(gradient.dim()))):
        raise invalid(f"a norm of order {order} over {dims} of the gradient of an offloaded parameter: there is "
                      "that of order 2 over all elements")
    state, parameter = gradient.where()
    value = state.gradient_norm(parameter)
    shape = [1] * gradient.dim() if keepdim else []
    return torch.full(shape, value, dtype=dtype or gradient.dtype, device=gradient.device)


def _multiply(gradient: StoredGradient, factor: Any) -> StoredGradient:
    if isinstance(factor, torch.Tensor) and factor.numel() != 1:
        raise invalid("the gradient of an offloaded parameter is multiplied by one factor")
    state, parameter = gradient.where()
    state.scale_gradient(parameter, float(factor))
    return gradient


def _divide(gradient: StoredGradient, divisor: Any) -> StoredGradient:
    return _multiply(gradient, 1 / float(divisor))


def _multiply_each(gradients: Any, factor: Any) -> None:
    for each in gradients:
        each.mul_(factor)


def _add(gradient: StoredGradient, more: torch.Tensor, *, alpha: Any = 1) -> StoredGradient:
    state, parameter = gradient.where()
    state.add_gradient(parameter, more * alpha if alpha != 1 else more)
    return gradient


def _unscale(gradients: Any, found_inf: torch.Tensor, inverse: torch.Tensor) -> None:
    """torch.amp.GradScaler's: gradients are divided by the scale, and found_inf is 1 if one is not finite."""
    plain = [each for each in gradients if not isinstance(each, StoredGradient)]
    if plain:
        torch._amp_foreach_non_finite_check_and_unscale_(plain, found_inf, inverse)
    for each in gradients:
        if isinstance(each, StoredGradient):
            if not torch.isfinite(_norm(each, dtype=torch.float64)):
                found_inf.fill_(1.0)
            _multiply(each, inverse)


_OPERATIONS: Dict[Any, Callable[..., Any]] = {
    _aten.linalg_vector_norm.default: _norm,
    _aten.mul_.Tensor: _multiply,
    _aten.mul_.Scalar: _multiply,
    _aten.div_.Tensor: _divide,
    _aten.div_.Scalar: _divide,
    _aten.add_.Tensor: _add,
    _aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
    _aten._foreach_norm.Scalar: lambda gradients, order=2, dtype=None: [
        torch.linalg.vector_norm(each, order, dtype=dtype) for each in gradients],
    _aten._foreach_mul_.Tensor: _multiply_each,
    _aten._foreach_mul_.Scalar: _multiply_each,
    _aten.detach.default: lambda gradient: StoredGradient(*gradient.where()),
}
