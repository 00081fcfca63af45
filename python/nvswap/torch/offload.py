# SPDX-License-Identifier: Apache-2.0
"""
Keeps the parameters of a module in an engine. Each module that has parameters of its own is given
them, pinned in the pool, for the time of its forward. What autograd saves of them is replaced by
name and place, and pinned again when the backward asks for it. Between, a parameter has its shape
and no memory: every element reads as nan.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

from nvswap.engine import Engine
from nvswap.errors import Error, invalid

Initialize = Callable[[str, torch.Tensor], None]


class _Saved(NamedTuple):
    """A tensor over pool memory that autograd saves."""

    name: str
    offset: int  # in elements
    size: Tuple[int, ...]
    stride: Tuple[int, ...]


def _placeholder(dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    return torch.full((1,), float("nan"), dtype=dtype).expand(shape)


class Offloaded:
    """
    A module whose parameters are in an engine; made by :func:`offload`.

    Attributes
    ----------
    module : torch.nn.Module
    engine : nvswap.Engine
    """

    def __init__(self, module: torch.nn.Module, engine: Engine,
                 initialize: Optional[Initialize]) -> None:
        self.module = module
        self.engine = engine
        self._initialize = initialize
        self._names: Dict[torch.nn.Parameter, str] = {}
        # The parameters that are pinned now, by address, for what autograd saves of them.
        self._pool = engine.pool()
        self._pinned: Dict[str, torch.Tensor] = {}
        self._depth: Dict[str, int] = {}
        self._step = False
        self._forwards: List[Tuple[torch.nn.Module, Any]] = []
        self._take_parameters()
        for each in module.modules():
            owned = list(each.parameters(recurse=False))
            if owned:
                self._wrap(each, [self._names[parameter] for parameter in owned], owned)
        self._begin = module.register_forward_pre_hook(self._begin_step)

    def name_of(self, parameter: torch.nn.Parameter) -> Optional[str]:
        """The tensor of a parameter; None if it is not offloaded."""
        return self._names.get(parameter)

    # ---- Parameters

    def _take_parameters(self) -> None:
        parameters = list(self.module.named_parameters())
        for name, parameter in parameters:
            if not parameter.is_floating_point() or parameter.device.type not in ("cpu", "meta"):
                raise invalid(f"parameter {name} is {parameter.dtype} on {parameter.device}; "
                              "floating-point ones in host memory can be offloaded")
        self.engine.register_all({name: (parameter.dtype, tuple(parameter.shape))
                                  for name, parameter in parameters})
        for name, parameter in parameters:
            if parameter.is_meta:
                self._replace_meta(name, parameter)
            else:
                self.engine.store_from({name: parameter.data.contiguous()})
                parameter.data = _placeholder(parameter.dtype, parameter.shape)
                self._names[parameter] = name

    def _replace_meta(self, name: str, parameter: torch.nn.Parameter) -> None:
        """A parameter on the meta device never was in memory: its contents are made in the pool."""
        if self._initialize is None:
            raise invalid(f"parameter {name} is on the meta device, and there is no `initialize`")
        with self.engine.pinned(name, "w", arrays="torch") as tensors, torch.no_grad():
            self._initialize(name, tensors[name])
        made = torch.nn.Parameter(_placeholder(parameter.dtype, parameter.shape),
                                  parameter.requires_grad)
        for each in self.module.modules():
            for key, value in list(each._parameters.items()):
                if value is parameter:
                    each._parameters[key] = made
        self._names[made] = name

    # ---- Forward and backward

    def _wrap(self, module: torch.nn.Module, names: List[str],
              parameters: List[torch.nn.Parameter]) -> None:
        forward = module.forward
        self._forwards.append((module, forward))

        @functools.wraps(forward)
        def pinned_forward(*args: Any, **kwargs: Any) -> Any:
            unique = list(dict.fromkeys(names))
            with self.engine.pinned(unique, arrays="torch") as tensors:
                self._enter(tensors, names, parameters)
                try:
                    with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                        return self._checked(module, forward(*args, **kwargs))
                finally:
                    self._leave(names, parameters)

        module.forward = pinned_forward  # type: ignore[method-assign]

    def _enter(self, tensors: Any, names: List[str], parameters: List[torch.nn.Parameter]) -> None:
        for name, parameter in zip(names, parameters):
            self._depth[name] = self._depth.get(name, 0) + 1
            self._pinned[name] = parameter.data = tensors[name]

    def _leave(self, names: List[str], parameters: List[torch.nn.Parameter]) -> None:
        for name, parameter in zip(names, parameters):
            self._depth[name] -= 1
            if self._depth[name] == 0:
                del self._pinned[name]
                parameter.data = _placeholder(parameter.dtype, parameter.shape)

    def _in_pool(self, tensor: torch.Tensor) -> bool:
        base, nbytes = self._pool
        return tensor.device.type == "cpu" and tensor.layout is torch.strided and \
            base <= tensor.data_ptr() < base + nbytes

    def _pack(self, tensor: torch.Tensor) -> Any:
        if not self._in_pool(tensor):
            return tensor
        storage = tensor.untyped_storage().data_ptr()
        for name, pinned in self._pinned.items():
            if pinned.untyped_storage().data_ptr() == storage and pinned.dtype == tensor.dtype:
                return _Saved(name, tensor.storage_offset(), tuple(tensor.size()), tensor.stride())
        return tensor  # It keeps its pin.

    def _unpack(self, saved: Any) -> torch.Tensor:
        if not isinstance(saved, _Saved):
            return saved
        with self.engine.pinned(saved.name, arrays="torch") as tensors:
            # The tensor keeps the pin for as long as the backward needs it.
            return tensors[saved.name].as_strided(saved.size, saved.stride, saved.offset)

    def _checked(self, module: torch.nn.Module, output: Any) -> Any:
        values = output.values() if isinstance(output, dict) else \
            output if isinstance(output, (tuple, list)) else (output,)
        for value in values:
            if isinstance(value, torch.Tensor) and self._in_pool(value):
                raise invalid(f"{type(module).__name__} returns its parameter or a view of it, "
                              "which is not in memory after its forward")
        return output

    def _begin_step(self, *_: Any) -> None:
        """The engine learns the order of a forward and its backward, and reads ahead by it."""
        if self._step:
            self.engine.step_end()
        self.engine.step_begin()
        self._step = True

    # ---- The end

    def load(self) -> None:
        """Brings all parameters back into memory, and ends the hooks; the engine can be closed."""
        for module, forward in self._forwards:
            module.forward = forward
        self._forwards.clear()
        self._begin.remove()
        if self._step:
            self.engine.step_end()
            self._step = False
        for parameter, name in self._names.items():
            data = torch.empty(parameter.shape, dtype=parameter.dtype)
            self.engine.load_to({name: data})
            parameter.data = data
        self._names.clear()


def offload(module: torch.nn.Module, config: Any, *, engine: Optional[Engine] = None,
            initialize: Optional[Initialize] = None) -> Offloaded:
    """
    Moves the parameters of a module to the drive.

    Parameters
    ----------
    module : torch.nn.Module
        With floating-point parameters in host memory or on the meta device.
    config : Config, str or dict
        Its offload_param block has path and pool. The pool must hold the parameters of the largest
        module, twice for what a backward needs at once.
    engine : Engine, optional
        Instead of one that is opened here.
    initialize : callable, optional
        Gets ``(name, tensor)`` for parameters on the meta device, to fill the tensor in: so a model
        that is larger than memory can be made.

    Returns
    -------
    Offloaded
        Give it to :class:`nvswap.torch.AdamW` to train.

    Raises
    ------
    Error
        EINVAL: a parameter can't be offloaded. Later, in a forward: a module returns its parameter.

    Notes
    -----
    A parameter is in memory only in the forward of the module that has it, and is nan elsewhere.
    Modules with parametrizations, and code that uses another module's parameters, can't be
    offloaded.
    """
    for each in module.modules():
        if hasattr(each, "parametrizations"):
            raise invalid(f"{type(each).__name__} has parametrizations")
    own = engine or Engine(config, "param", arrays="torch")
    try:
        return Offloaded(module, own, initialize)
    except Error:
        if engine is None:
            own.close()
        raise
