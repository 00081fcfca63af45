# SPDX-License-Identifier: Apache-2.0
"""
The masters and states of some of an optimizer's parameters, in one store. A parameter, or this
rank's shard of it, is cut into groups of the store of sub_group_size elements at most: its pieces.

Gradients and new weights of a plain parameter in host memory are read and written where they are.
For one on a device, gradients are copied to host memory before a step, and each run of new weights
to the device while later ones are computed. Gradients of offloaded parameters that a device makes are
copied while it makes the next ones, and are then added to the store's.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import functools
import math
import mmap
import os
import tempfile
import weakref
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Tuple

import torch

from nvswap.aio import Aio
from nvswap.config import Config
from nvswap.dtypes import dtype_name
from nvswap.errors import Error
from nvswap.optimizer import STATES, Group, GroupRule, Optimizer
from nvswap.statistics import StepResult
from nvswap.torch.absent import is_offloaded
from nvswap.torch.gradients import StoredGradient
from nvswap.torch.local import is_on_host, is_sharded, like_parameter, local
from nvswap.torch.offload import Offloaded
from nvswap.torch.settings import place_of_its_own
from nvswap.torch.writes import Writes

# Gradients on their way from a device, with the event after which they are there.
Arriving = Deque[Tuple[Any, torch.nn.Parameter, torch.Tensor]]
_ARRIVING = 2


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
        With the prefixes of their groups' names in the store. Contiguous, or of `offloaded`.
    offloaded : Offloaded, optional
    aio : nvswap.Aio
        That of all stores of an optimizer.
    rule : str
        As of nvswap.GroupRule.

    Attributes
    ----------
    optimizer : nvswap.Optimizer
    pieces : dict of torch.nn.Parameter to list of Piece
    """

    def __init__(self, config: Config, parameters: Dict[torch.nn.Parameter, str],
                 offloaded: Optional[Offloaded], aio: Aio, rule: str) -> None:
        self._offloaded = offloaded
        self._config = config
        self.states = STATES[rule]
        # What a state is before the first step.
        self._initial = float(config["optimizer.params.initial_accumulator_value"]) if rule == "adagrad" else 0.0
        self.pieces: Dict[torch.nn.Parameter, List[Piece]] = {}
        self._owners: List[Tuple[torch.nn.Parameter, Piece]] = []
        # Where steps write new weights to themselves.
        self._memory: Dict[torch.nn.Parameter, int] = {}
        # Where gradients of a device are copied to.
        self._host: Dict[torch.nn.Parameter, torch.Tensor] = {}
        self._streams: Dict[torch.device, Any] = {}
        self._arriving: Arriving = collections.deque()
        self._arrivals: Dict[torch.device, Any] = {}
        self._writes: Optional[Writes] = None
        # Whose gradients are in the store, and the factor that they have got since, but not there.
        self.stored: Dict[torch.nn.Parameter, float] = {}
        self._squares: Optional[List[float]] = None
        groups = []
        limit = int(config["zero_optimization.sub_group_size"])
        for parameter, name in parameters.items():
            self.pieces[parameter] = pieces = []
            numel = local(parameter).numel()
            if not (is_sharded(parameter) or self._tensor_of(parameter)) and is_on_host(parameter):
                self._memory[parameter] = parameter.data_ptr()
            for offset in range(0, numel, limit):
                piece = Piece(len(groups), offset, min(limit, numel - offset))
                pieces.append(piece)
                self._owners.append((parameter, piece))
                groups.append(Group(f"{name}.{offset}", *(
                    (_part(parameter.data.view(-1), piece),) if parameter in self._memory else
                    (None, piece.numel, parameter.dtype))))
        self._rule = GroupRule(rule, len(groups))
        # No cycle: dropping the last reference closes the store.
        own = weakref.ref(self)

        def write_weights(*run: Any) -> None:
            state = own()
            assert state is not None
            state._write_weights(*run)

        with place_of_its_own(config, "optimizer"):
            self.optimizer = Optimizer(
                config, groups, update=self._rule, aio=aio, take_weights=True,
                weights_final=None if len(self._memory) == len(parameters) else write_weights)
        self.optimizer._forget_weights()
        # A kept store has all gradients that were added, or none, also where the program drops this.
        if config["nvswap.keep"]:
            self.optimizer._take_last = functools.partial(_take_last, self._arriving, self.pieces)
        # A kept store has those that were added before its commit.
        self.stored.update((parameter, 1.0) for parameter, pieces in self.pieces.items()
                           if any(self._gradients(piece) == "added" for piece in pieces))
        if self.optimizer.step_count:
            self._take_kept_weights()
        else:
            self._start()

    def _tensor_of(self, parameter: torch.nn.Parameter) -> Optional[str]:
        return self._offloaded.name_of(parameter) if self._offloaded else None

    def _start(self) -> None:
        """The masters of parameters whose memory the store does not know begin as these."""
        for parameter, piece in self._owners:
            if parameter not in self._memory:
                self.optimizer.set_state(piece.group, "master", self._weights(parameter, piece).float())

    def _weights(self, parameter: torch.nn.Parameter, piece: Piece) -> torch.Tensor:
        name = self._tensor_of(parameter)
        if name is None:
            return _part(local(parameter).view(-1), piece).cpu()
        weights = torch.empty(piece.numel, dtype=parameter.dtype, device="cpu")
        assert self._offloaded is not None
        self._offloaded.idle_engine.read_range(name, weights, piece.offset * weights.itemsize)
        return weights

    def _take_kept_weights(self) -> None:
        """Gives the parameters the weights of the last step that a kept store has."""
        if self._memory:
            self.optimizer.get_weights()
        for parameter, piece in self._owners:
            if parameter not in self._memory:
                self._put(parameter, piece.offset, self._get(piece, "master").to(parameter.dtype))

    def _write_weights(self, group: int, offset: int, weights: Any) -> None:
        """Called by the threads of a step."""
        parameter, piece = self._owners[group]
        name = self._tensor_of(parameter)
        if name is not None:
            assert self._writes is not None
            self._writes.put(name, piece.offset + offset, weights)
        elif parameter not in self._memory:
            # torch makes no tensor over memory that it may not write to.
            own = torch.from_numpy(weights.view("u1").copy()).view(parameter.dtype)
            with self._stream_of(parameter):
                self._put(parameter, piece.offset + offset, own)

    def _put(self, parameter: torch.nn.Parameter, offset: int, weights: Any) -> None:
        name = self._tensor_of(parameter)
        if name is not None:
            assert self._offloaded is not None
            self._offloaded.idle_engine.write_range(name, weights, offset * weights.itemsize)
            torch.autograd.graph.increment_version(parameter)
        else:
            local(parameter).view(-1)[offset:offset + len(weights)].copy_(weights)

    def _get(self, piece: Piece, part: str) -> torch.Tensor:
        values = torch.empty(piece.numel, device="cpu")
        self.optimizer.get_state(piece.group, part, out=values)
        return values

    # ---- Steps

    def set_numbers(self, parameter: torch.nn.Parameter, missed: int, grad_factor: float,
                    **numbers: Any) -> None:
        """Sets the numbers of the rule for the next step of a parameter that was not in `missed` of the store's."""
        # One of 0 is not for GroupRule, and is 0 in float32.
        grad_factor = grad_factor * self.stored.get(parameter, 1.0) or 1e-300
        for piece in self.pieces[parameter]:
            self._rule.set(piece.group, missed=missed, grad_factor=grad_factor, **numbers)

    def add_gradient(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        """Adds a gradient to those of the parameter in the store; it is copied."""
        factor = self.stored.setdefault(parameter, 1.0)
        flat = gradient.contiguous().view(-1)
        flat = flat if factor == 1 else flat / factor
        self._squares = None
        if is_on_host(flat):
            _add(self.optimizer, self.pieces[parameter], flat)
            return
        device = torch.get_device_module(flat.device)
        stream = self._arrivals.get(flat.device)
        if stream is None:
            stream = self._arrivals[flat.device] = device.Stream(flat.device)
        stream.wait_stream(device.current_stream(flat.device))
        with device.stream(stream):
            host = torch.empty(flat.shape, dtype=flat.dtype, device="cpu", pin_memory=True)
            host.copy_(flat, non_blocking=True)
        flat.record_stream(stream)
        self._arriving.append((stream.record_event(), parameter, host))
        self.take_arriving(_ARRIVING)

    def take_arriving(self, rest: int = 0) -> None:
        """Adds the gradients that are on their way from a device, but for the last ones."""
        _take_arriving(self.optimizer, self._arriving, self.pieces, rest)

    def scale_gradient(self, parameter: torch.nn.Parameter, factor: float) -> None:
        """Multiplies the parameter's gradient in the store, when it is stepped."""
        self.stored[parameter] *= factor

    def gradient_norm(self, parameter: torch.nn.Parameter) -> float:
        """The 2-norm of the parameter's gradient in the store."""
        if self._squares is None:
            self.take_arriving()
            self._squares = self.optimizer.sum_squares_of_groups()
        squares = sum(self._squares[piece.group] for piece in self.pieces[parameter])
        return math.sqrt(squares) * abs(self.stored[parameter])

    def sum_squares(self) -> float:
        """Of all gradients of the next step, those that were lent too."""
        self.take_arriving()
        squares = self.optimizer.sum_squares_of_groups()
        return sum(squares[piece.group] * self.stored.get(parameter, 1.0) ** 2
                   for parameter, piece in self._owners)

    def clear_gradients(self) -> None:
        """Drops all gradients."""
        self.optimizer.clear_gradients()
        self.forget_gradients()

    def forget_gradients(self) -> None:
        """What a step has used is in the store no more."""
        for parameter in self.stored:
            if isinstance(parameter.grad, StoredGradient):
                parameter.grad = None
        self.stored.clear()
        self._arriving.clear()
        self._squares = None

    def lend_gradients(self, gradients: Dict[torch.nn.Parameter, torch.Tensor]) -> None:
        """Lends flat gradients to the next step, or again to one that failed and needs them. Those of devices
        are copied on the present streams, on which the new weights are copied too."""
        self.take_arriving()
        unfinished = self.optimizer.info()["unfinished"]
        for parameter, flat in gradients.items():
            if not is_on_host(flat):
                host = self._host.get(parameter)
                if host is None or host.dtype != flat.dtype:
                    host = self._host[parameter] = torch.empty(
                        flat.shape, dtype=flat.dtype, device="cpu", pin_memory=True)
                flat = host.copy_(flat, non_blocking=True)
            for piece in self.pieces[parameter]:
                if not (unfinished and self._gradients(piece) == "lent"):
                    self.optimizer.lend_gradients(piece.group, _part(flat, piece))
        self._streams = {device: torch.get_device_module(device).current_stream(device)
                         for device in {local(parameter).device for parameter in self._host}}
        for stream in self._streams.values():
            stream.synchronize()

    def _stream_of(self, parameter: torch.nn.Parameter) -> Any:
        stream = self._streams.get(local(parameter).device)
        return stream if stream is not None else contextlib.nullcontext()

    def _gradients(self, piece: Piece) -> str:
        gradients: str = self.optimizer.group_info(piece.group)["gradients"]
        return gradients

    def with_gradients(self) -> List[torch.nn.Parameter]:
        """The parameters that the next step changes."""
        return [parameter for parameter, pieces in self.pieces.items()
                if parameter.grad is not None
                or any(self._gradients(piece) != "none" for piece in pieces)]

    def follow_memory(self) -> Optional[torch.nn.Parameter]:
        """New weights go where the parameters have them now. Returns one that has become another."""
        moved = [parameter for parameter, memory in self._memory.items()
                 if is_offloaded(parameter) or parameter.data_ptr() != memory]
        for parameter in moved:
            last = self.pieces[parameter][-1:]
            groups = self.optimizer.groups
            if is_offloaded(parameter) or not is_on_host(parameter) or not parameter.is_contiguous() or any(
                    parameter.numel() != piece.offset + piece.numel
                    or dtype_name(parameter.dtype) != groups[piece.group].dtype for piece in last):
                return parameter
        if moved:
            self.optimizer.set_weights({
                piece.group: _part(parameter.data.view(-1), piece)
                for parameter in moved for piece in self.pieces[parameter]})
            self.optimizer._forget_weights()
            self._memory.update((parameter, parameter.data_ptr()) for parameter in moved)
        return None

    def step(self, sum_squares: Optional[float]) -> StepResult:
        """Steps the parameters that have gradients, by the numbers that were set for them."""
        if self._offloaded is not None:
            names = (self._tensor_of(parameter) for parameter in self.pieces)
            self._writes = Writes(self._offloaded.idle_engine, [name for name in names if name])
        try:
            return self.optimizer.step(sum_squares=sum_squares)
        finally:
            if self._writes is not None:
                self._writes.end()

    # ---- Values

    def steps_from_memory(self, parameter: torch.nn.Parameter) -> bool:
        """Whether a step begins from what the parameter's memory has, however that was changed."""
        return parameter in self._memory

    def take_changes(self, parameter: torch.nn.Parameter) -> None:
        """Weights that the program has changed become masters; the others keep theirs, which have
        more bits than a weight of 16."""
        for piece in self.pieces[parameter]:
            master, own = self._get(piece, "master"), self._weights(parameter, piece)
            same = master.to(own.dtype) == own
            if not same.all():
                self.optimizer.set_state(piece.group, "master",
                                         torch.where(same, master, own.float()))

    def values(self, parameter: torch.nn.Parameter) -> Dict[str, torch.Tensor]:
        """
        The states of a parameter, and the master of one of 16 bits. They lie in files without a
        name beside the store, which the system writes and reads when memory is short, and which
        end with the tensors.
        """
        return {part: self.copied(parameter, part) for part in parts_of(parameter, self.states)}

    def copied(self, parameter: torch.nn.Parameter, part: str) -> torch.Tensor:
        """Some state of a parameter, see :meth:`values`."""
        own = local(parameter)
        values = mapped(self._config, own.numel())
        for piece in self.pieces[parameter]:
            self.optimizer.get_state(piece.group, part, out=_part(values, piece))
        return like_parameter(values.view(own.shape), parameter)

    def set_values(self, parameter: torch.nn.Parameter, values: Dict[str, Any]) -> None:
        """Takes states, which begin anew where they are missing, and the master if there is one."""
        for part in [*self.states, *(["master"] if "master" in values else [])]:
            flat = local(values[part]).reshape(-1) if part in values else None
            for piece in self.pieces[parameter]:
                self.optimizer.set_state(piece.group, part, torch.full((piece.numel,), self._initial, device="cpu")
                                         if flat is None else _part(flat, piece).float().cpu())


def _part(flat: torch.Tensor, piece: Piece) -> torch.Tensor:
    return flat[piece.offset:piece.offset + piece.numel]


def _add(optimizer: Optimizer, pieces: List[Piece], flat: torch.Tensor) -> None:
    for piece in pieces:
        optimizer.add_gradients(piece.group, _part(flat, piece))


def _take_arriving(optimizer: Optimizer, arriving: Arriving, pieces: Dict[torch.nn.Parameter, List[Piece]],
                   rest: int) -> None:
    while len(arriving) > rest:
        arrived, parameter, flat = arriving[0]
        arrived.synchronize()
        _add(optimizer, pieces[parameter], flat)
        arriving.popleft()


def _take_last(arriving: Arriving, pieces: Dict[torch.nn.Parameter, List[Piece]], optimizer: Optimizer) -> None:
    """Called before an optimizer is closed, which has a reference to this, and which this has none to."""
    # A step that is to be finished takes no others.
    if arriving and optimizer.info()["unfinished"]:
        arriving.clear()
    _take_arriving(optimizer, arriving, pieces, 0)


def parts_of(parameter: torch.nn.Parameter, states: Tuple[str, ...]) -> List[str]:
    """What state_dict() has of a parameter beside its steps."""
    return [*states, *(["master"] if parameter.dtype != torch.float32 else [])]


def mapped(config: Config, numel: int) -> torch.Tensor:
    """A tensor of float32 in a file without a name beside the store; without a path, in memory."""
    paths = config.paths("optimizer")
    if not paths or not numel:
        return torch.empty(numel, device="cpu")
    try:
        with tempfile.TemporaryFile(dir=paths[0]) as file:
            os.posix_fallocate(file.fileno(), 0, 4 * numel)
            return torch.frombuffer(mmap.mmap(file.fileno(), 4 * numel), dtype=torch.float32)
    except OSError as error:
        code = error.errno or errno.EIO
        remedy = "; free some space there, as each tensor of a state_dict() needs its bytes beside the store" \
            if code in (errno.ENOSPC, errno.EDQUOT) else ""
        raise Error(code, f"{paths[0]} can't have a file of {4 * numel} bytes for a state_dict(): "
                    f"{os.strerror(code)}{remedy}", path=paths[0]) from error
