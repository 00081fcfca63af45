# SPDX-License-Identifier: Apache-2.0
"""
Optimizers by a rule of the program, with their state on the drive. The rule is a method that gets the weights,
the gradient and the state of a parameter, or of a piece of it, as tensors in host memory.
"""

from __future__ import annotations

import errno
import functools
import json
import weakref
import zlib
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union, overload

import torch

from nvswap.aio import Aio
from nvswap.config import Config
from nvswap.engine import Engine
from nvswap.errors import Error, invalid
from nvswap.torch.absent import is_offloaded
from nvswap.torch.gradients import StoredGradient
from nvswap.torch.local import is_on_host, is_sharded, like_parameter, local, local_gradient
from nvswap.torch.offload import Offloaded
from nvswap.torch.settings import place_of_its_own, settings_of
from nvswap.torch.state import mapped
from nvswap.torch.optim.numbered import Loss, NumberedOptimizer
from nvswap.torch.optim.sums import Sums
from nvswap.torch.optim.tiles import Arrays, Tile, Tiles, cut

# Of a state: its type, with the parameter's shape, or type and shape.
Kind = Union[torch.dtype, Tuple[torch.dtype, Tuple[int, ...]]]

# Elements of a piece, at most, and of 4 bytes in a buffer.
_MOST_ELEMENTS = 1 << 24
# Elements whose temporary tensors stay in a cache, and in memory that the allocator has.
_CHUNK = 1 << 18
_MASTER, _GRADIENT = "master", "gradient"
_OWN = {_MASTER, _GRADIENT}


class CustomOptimizer(NumberedOptimizer):
    """
    The base of optimizers whose state lies in the offload_optimizer block's store, and whose rule is a method.
    A class of its own has :meth:`states` and :meth:`update`, and gives its settings to this constructor, as to that
    of torch.optim.Optimizer.

    Parameters
    ----------
    params : iterable of torch.nn.Parameter, of (name, parameter) or of dict
        As torch.optim has them. F32, BF16 or F16, in host memory or on a device.
    defaults : dict
        The settings of groups.
    config : Config, dict, str or os.PathLike, optional
        A directory on the drive; or a DeepSpeed JSON file or its contents, of which the "optimizer" block is not
        used. The variable NVSWAP_CONFIG of the environment by default.
    offloaded : Offloaded, optional
        The module whose parameters are on the drive: gradients go to the store as the backward makes them, and
        new weights to the module's.

    Attributes
    ----------
    elementwise : bool
        Of the class. True: the rule treats each element by itself, so that a large parameter is stepped in flat
        pieces of sub_group_size elements at most; all states have the parameter's shape. False, the default:
        parameters are stepped whole.
    engine : nvswap.Engine
        Over the store: its stats() count bytes.
    result : dict
        Of the last step: "io" has struct nvs_step_io, in which each state is read once and written once. What a
        step reads is 0 where it is the first.

    Raises
    ------
    nvswap.Error
        EINVAL: there is no configuration; a parameter has another type, no memory, is of another offloaded module, or
        is a shard whose rule is not elementwise; gradient_clipping or fp16 of the configuration is set; a state is
        called "step", "master" or "gradient". EBUSY: another optimizer has parameters of
        `offloaded`. ESTALE: the kept store is that of another optimizer or of other parameters, or has a step that was
        not finished. And those of nvswap.Engine.

    Notes
    -----
    Groups, schedulers, closures, hooks of steps, a GradScaler and gradients that are None are as with torch.optim,
    and so is state_dict(), which has "step" and the states of each parameter, and the "master" of one of 16 bits.
    Its tensors lie in files without a name on the drive. state[parameter] has "step" alone.

    Weights of 16 bits are stepped in float32, which the store keeps. One that the program has changed meanwhile is
    stepped from there.

    With "nvswap": {"keep": true} the state stays in the store, with float32 weights of all parameters: `commit()`
    makes it durable, the parameters get the weights when the optimizer is made, and state_dict() has the numbers of
    steps.

    A GradScaler and clip_grad_norm_ take the gradients of `offloaded`, which are float32 sums in the store, as
    :class:`AdamW` says. Each is read once for a norm and once for a step. A kept store does not continue them.

    One thread at a time makes calls. Dropping the last reference closes the store, as `close()` does.

    Three buffers have the state of the largest parameter each, or of pieces of it, and beside small ones 64 MiB at
    most. They are locked if the system allows it, and with "pin_memory" in any case. A fourth one, which is not, has
    the weights of a parameter or piece.
    """

    elementwise = False

    def __init__(self, params: Any, defaults: Dict[str, Any], config: Any = None,
                 offloaded: Optional[Offloaded] = None) -> None:
        self._config = settings_of(config)
        self._offloaded = offloaded
        self._hooks: List[Any] = []
        for key, instead in (("gradient_clipping", "torch.nn.utils.clip_grad_norm_"),
                             ("fp16.enabled", "torch.amp.GradScaler")):
            if self._config[key]:
                raise invalid(f"{key} of the configuration has no effect on a {type(self).__name__}: leave it out, and "
                              f"use {instead}")
        if self._config["nvswap.optimizer_state"] != "fp32":
            raise Error(errno.ENOTSUP, f"the states of a {type(self).__name__} have their own types: set "
                        'nvswap.optimizer_state to "fp32"', "nvswap.optimizer_state")
        self._most = min(int(self._config["zero_optimization.sub_group_size"]), _MOST_ELEMENTS)
        self._of: Dict[torch.nn.Parameter, List[Tile]] = {}
        # Of a step that was not finished: what is left of it, whether there is more, and the gradients that it has.
        self._pending: List[Tile] = []
        self._begun = False
        self._gradients: Dict[torch.nn.Parameter, torch.Tensor] = {}
        self._versions: Dict[torch.nn.Parameter, int] = {}
        self._settings: Dict[torch.nn.Parameter, Dict[str, Any]] = {}
        self._scratch = torch.empty(0, dtype=torch.uint8, device="cpu")
        self.result: Dict[str, Any] = {}
        self._open()
        try:
            super().__init__(params, defaults)
            if offloaded is not None:
                offloaded.check_optimizer(self._numbers())
                offloaded.optimizers.append(weakref.ref(self))
            self._resume()
        except BaseException:
            for hook in self._hooks:
                hook.remove()
            self.engine.abandon()
            self._aio.close()
            raise

    def _open(self) -> None:
        own, paths = Config(self._config), self._config.paths("optimizer")
        # Transfers are those of the tiles' buffers: the engine's own pool is of no use.
        own["zero_optimization.sub_group_size"] = own["zero_optimization.offload_optimizer.buffer_count"] = 1
        self._aio = Aio(own)
        with place_of_its_own(own, "optimizer"):
            self.engine = Engine(own, "optimizer", aio=self._aio, arrays="torch")
        self._sums = Sums(self.engine, self._of)
        self._tiles = Tiles(self.engine, self._aio, paths[0] if paths else None,
                            bool(own["zero_optimization.offload_optimizer.pin_memory"]), 4 * self._most)

    # ---- The rule

    def states(self, parameter: torch.nn.Parameter, group: Dict[str, Any]) -> Mapping[str, Kind]:
        """
        What the rule keeps of a parameter. Called once for each.

        Returns
        -------
        dict of str to torch.dtype or (torch.dtype, shape)
            By name: the type of a state of the parameter's shape, or type and shape. All are zero before the first
            step.
        """
        raise NotImplementedError

    def update(self, weights: torch.Tensor, gradient: torch.Tensor, state: Dict[str, torch.Tensor],
               group: Dict[str, Any], step: int) -> None:
        """
        Steps a parameter, or a piece of one if the class is `elementwise`: changes weights and states, in place or
        by `state["name"] = ...`. Called without autograd.

        Parameters
        ----------
        weights, gradient : torch.Tensor
            In float32, in host memory. The gradient is not to be changed. No tensor is valid after the call.
        state : dict of str to torch.Tensor
            Of :meth:`states`.
        group : dict
            The settings of the parameter's group.
        step : int
            The number of the parameter's step, from 1.

        Notes
        -----
        What it raises, and a signal's exception, leaves step(). The weights and states are then as before the call.
        """
        raise NotImplementedError

    # ---- Parameters

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """
        Adds a group, whose parameters get room in the store.

        Raises
        ------
        nvswap.Error
            Those of the constructor; the group is not added.
        """
        super().add_param_group(param_group)
        try:
            if self._offloaded is not None:
                self._offloaded.refuse_others(self, self.param_groups[-1]["params"])
            self._register([each for each in self.param_groups[-1]["params"] if each.requires_grad])
        except BaseException:
            self.param_groups.pop()
            raise

    def _groups(self) -> Dict[torch.nn.Parameter, Dict[str, Any]]:
        return {parameter: group for group in self.param_groups for parameter in group["params"]}

    def _register(self, parameters: List[torch.nn.Parameter]) -> None:
        """Gives room in the store to those of the parameters that have none."""
        groups, numbers = self._groups(), self._numbers()
        made = {parameter: self._tiles_of(parameter, groups[parameter], numbers[parameter])
                for parameter in parameters if parameter not in self._of and local(parameter).numel()}
        self.engine.register_all({part.name: (part.dtype, part.shape) for tiles in made.values()
                                  for tile in tiles for part in tile.parts.values()})
        self._of.update(made)
        # torch has hooks of a parameter outside of Python, where the collector finds no cycle.
        hook = functools.partial(_take_gradient, weakref.ref(self))
        self._hooks += [parameter.register_post_accumulate_grad_hook(hook) for parameter in made
                        if self._tensor_of(parameter) is not None]

    def _tiles_of(self, parameter: torch.nn.Parameter, group: Dict[str, Any], number: int) -> List[Tile]:
        own, described = local(parameter), f"parameter {number}, of shape {list(parameter.shape)},"
        if parameter.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise invalid(f"{described} is {parameter.dtype}: parameters are float32, bfloat16 or float16")
        offloaded = self._tensor_of(parameter) is not None
        if not offloaded and (is_offloaded(parameter) or parameter.is_meta):
            raise invalid(f"{described} is of an offloaded module, or has no memory: give what offload() has returned "
                          "as offloaded=; an optimizer has one such module")
        if is_sharded(parameter) and not self.elementwise:
            raise invalid(f"{described} is a shard, and a {type(self).__name__} steps whole parameters: use it "
                          "without fully_shard and tensor parallelism")
        if self.elementwise and not offloaded and not own.is_contiguous():
            raise invalid(f"{described} is not contiguous: make it so before the optimizer, by parameter.data = "
                          "parameter.data.contiguous()")
        kinds: Dict[str, Tuple[torch.dtype, torch.Size]] = {}
        for name, kind in self.states(parameter, group).items():
            dtype, shape = kind if isinstance(kind, tuple) else (kind, own.shape)
            if not isinstance(dtype, torch.dtype):
                raise invalid(f"state {name} of {described[:-1]} is of type {dtype!r}: states() gives a torch.dtype, or "
                              "one and a shape")
            if name in ("step", *_OWN) or (self.elementwise and tuple(shape) != tuple(own.shape)):
                raise invalid(f"state {name} of shape {list(shape)}: of {described[:-1]} states have other names than "
                              f"step, {_MASTER} and {_GRADIENT}, and if the rule is elementwise that shape")
            kinds[name] = dtype, torch.Size(shape)
        if parameter.dtype != torch.float32 or self._config["nvswap.keep"]:
            kinds[_MASTER] = torch.float32, own.shape
        if offloaded:
            kinds[_GRADIENT] = torch.float32, own.shape
        return cut(parameter, kinds, str(number), self._most if self.elementwise else own.numel(), {_GRADIENT})

    # ---- Steps

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], Loss]) -> Loss: ...

    def step(self, closure: Optional[Callable[[], Loss]] = None) -> Optional[Loss]:
        """
        Takes a step of all parameters that have gradients.

        Raises
        ------
        nvswap.Error
            EIO and others of the drive, and what update() raises: the step is not finished. Call it again, without a
            closure and with the same gradients, and it goes on where it ended; or drop the rest by zero_grad() or
            load_state_dict(). EINVAL: other gradients or a closure for a step that is to be finished; a gradient is
            sparse; update() has changed the names of states.
        """
        with self.engine._open():  # or nothing is begun
            pass
        loss = self._loss(closure, bool(self._pending))
        self._begin_step()
        done: List[Tile] = []
        with self.engine.step() as io:
            self.result = {"io": io}
            try:
                self._tiles.compute(self._pending, self._step_tile, done)
            finally:
                self._count(done)
        return loss

    def _begin_step(self) -> None:
        self._settings = self._groups()
        gradients = {parameter: parameter.grad for parameter in self._settings if parameter.grad is not None}
        if self._pending:
            if any(gradients.get(tile.parameter) is not self._gradients[tile.parameter]
                   or gradients[tile.parameter]._version != self._versions[tile.parameter] for tile in self._pending):
                raise invalid("a step has failed and is not finished, and there are other gradients than it had: drop "
                              "what is left of it by zero_grad(), or call step() before they are computed")
            return
        self._register(list(gradients))
        for parameter, gradient in gradients.items():
            if gradient.layout is not torch.strided:
                raise invalid(f"parameter {self._numbers()[parameter]} has sparse gradients: an Embedding takes "
                              "sparse=False")
            if not self._is_as_made(parameter):
                raise invalid(f"parameter {self._numbers()[parameter]} has become another since the optimizer was "
                              "made, by a conversion or park(): call unpark(), or make the optimizer after that")
        self._sums.finish()
        self._gradients = gradients
        self._versions = {parameter: gradient._version for parameter, gradient in gradients.items()}
        self._pending = [tile for parameter in gradients for tile in self._of.get(parameter, ())]
        self._begun = False

    def _is_as_made(self, parameter: torch.nn.Parameter) -> bool:
        if parameter not in self._of:
            return True
        own, tiles = local(parameter), self._of[parameter]
        last = tiles[-1]
        has_pieces = len(tiles) == 1 or self._tensor_of(parameter) is not None or own.is_contiguous()
        return has_pieces and last.dtype == own.dtype and last.offset + last.numel == own.numel()

    def _count(self, done: List[Tile]) -> None:
        for tile in done:
            if tile is self._of[tile.parameter][-1]:
                self._set_steps(tile.parameter, self._steps(tile.parameter) + 1)
                self._sums.drop(tile.parameter)
                if self._tensor_of(tile.parameter) is not None:
                    # Graphs of forwards before can't go backward, as after a change in memory.
                    torch.autograd.graph.increment_version(tile.parameter)
        self._begun = self._begun or bool(done)
        # One of which nothing was done has changed nothing, and the next call is another step.
        self._pending = self._pending[len(done):] if self._begun else []
        if not self._pending:
            self._gradients = {}
        self._take_note()

    def _step_tile(self, tile: Tile, arrays: Arrays, done: List[Tile]) -> None:
        state = {name: array for name, array in arrays.items() if name not in _OWN}
        self._prefetch_after(len(done))
        before = self._with_memory(tile, "r", self._copied)
        try:
            weights = self._weights(tile, before, arrays)
            with torch.no_grad():
                self.update(weights, self._gradient(tile, arrays), state, self._settings[tile.parameter],
                            self._steps(tile.parameter) + 1)
            self._take_assigned(state, arrays)
            self._with_memory(tile, "r+", lambda own: own.data_ptr() == weights.data_ptr() or own.copy_(weights))
            done.append(tile)
        except BaseException:
            if done[-1:] != [tile]:
                self._with_memory(tile, "r+", lambda own: own.copy_(before))
            raise

    def _with_memory(self, tile: Tile, mode: str, use: Callable[[torch.Tensor], Any]) -> Any:
        """Calls with what the tile's weights have for memory, which is that of a pool for this call alone where
        the parameter is offloaded."""
        name = self._tensor_of(tile.parameter)
        if name is None:
            return use(tile.elements_of(local(tile.parameter)))
        assert self._offloaded is not None
        with self._offloaded.idle_engine.pinned(name, mode, arrays="torch") as tensors:
            return use(tile.elements_of(tensors[name]))

    def _copied(self, own: torch.Tensor) -> torch.Tensor:
        """A copy that is valid until the next one: new memory for each would take longer than the copy."""
        if not is_on_host(own):
            return own.clone()
        if self._scratch.numel() < own.nbytes:
            self._scratch = torch.empty(own.nbytes, dtype=torch.uint8, device="cpu")
        return self._scratch[:own.nbytes].view(own.dtype).view(own.shape).copy_(own)

    def _prefetch_after(self, number: int) -> None:
        """Begins to read the weights of the next tile of the step."""
        following = self._pending[number + 1:number + 2]
        if following and following[0].offset == 0 and self._tensor_of(following[0].parameter) is not None:
            assert self._offloaded is not None
            self._offloaded.engine.prefetch(str(self._tensor_of(following[0].parameter)))

    def _weights(self, tile: Tile, before: torch.Tensor, arrays: Arrays) -> torch.Tensor:
        """In float32: the master, where there is one, which has more bits than a weight of 16; but those of the
        weights that the program has changed."""
        own = local(tile.parameter)
        if _MASTER not in arrays:
            in_memory = own.dtype == torch.float32 and is_on_host(own) and self._tensor_of(tile.parameter) is None
            return tile.elements_of(own) if in_memory else before.to("cpu", torch.float32, copy=True)
        master, host = arrays[_MASTER], before.cpu()
        if tile.parts[_MASTER].fresh:
            return master.copy_(host)
        for kept, given in zip(master.view(-1).split(_CHUNK), host.reshape(-1).split(_CHUNK)):
            torch.where(kept.to(given.dtype) == given, kept, given.float(), out=kept)
        return master

    def _gradient(self, tile: Tile, arrays: Arrays) -> torch.Tensor:
        gradient = self._gradients[tile.parameter]
        if isinstance(gradient, StoredGradient):
            return arrays[_GRADIENT].mul_(self._sums.stored[tile.parameter])
        return tile.elements_of(local_gradient(gradient, tile.parameter)).to("cpu", torch.float32)

    def _take_assigned(self, state: Dict[str, torch.Tensor], arrays: Arrays) -> None:
        names = set(arrays) - _OWN
        if set(state) != names:
            raise invalid(f"update() of {type(self).__name__} leaves the states {sorted(state)}, where states() has "
                          f"{sorted(names)}")
        for name, value in state.items():
            if value is not arrays[name]:
                if value.shape != arrays[name].shape:
                    raise invalid(f"update() of {type(self).__name__} assigns {name} of shape {list(value.shape)}, "
                                  f"where states() has {list(arrays[name].shape)}")
                arrays[name].copy_(value)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients, and what is left of a step that has failed: parameters that it has stepped stay so."""
        self._sums.drop_all()
        super().zero_grad(set_to_none)
        self._pending, self._gradients = [], {}

    def _steps(self, parameter: torch.nn.Parameter) -> int:
        return int(self.state[parameter]["step"]) if parameter in self.state else 0

    def _set_steps(self, parameter: torch.nn.Parameter, steps: float) -> None:
        self.state[parameter]["step"] = torch.tensor(float(steps), device="cpu")

    # ---- State

    def state_dict(self) -> Dict[str, Any]:
        """
        What that of torch.optim has: "step" and the states of each parameter; with a kept store, the numbers of
        steps alone.

        Raises
        ------
        nvswap.Error
            EBUSY: a step has failed and is not finished. EIO, ENOSPC and others of the drive.
        """
        self._finish()
        result, numbers, kept = super().state_dict(), self._numbers(), self._config["nvswap.keep"]
        for parameter, number in numbers.items():
            if parameter in self.state:
                result["state"][number] = {"step": self.state[parameter]["step"].clone(),
                                           **({} if kept else self._values(parameter))}
        return dict(result, nvswap={"optimizer": type(self).__name__}) if kept else result

    def _finish(self) -> None:
        if self._pending:
            raise Error(errno.EBUSY, "a step has failed and is not finished: call step() or zero_grad() first")
        self._sums.finish()
        self._tiles.finish()
        self._take_note()

    def _shapes(self, parameter: torch.nn.Parameter) -> Dict[str, torch.Size]:
        """What this rank has of each part."""
        tiles = self._of.get(parameter, [])
        return {name: part.shape if len(tiles) == 1 else local(parameter).shape
                for name, part in (tiles[0].parts if tiles else {}).items() if part.written}

    def _values(self, parameter: torch.nn.Parameter) -> Dict[str, torch.Tensor]:
        """All parts of a parameter, in files without a name beside the store."""
        values = {}
        for name, shape in self._shapes(parameter).items():
            tiles = self._of[parameter]
            dtype = tiles[0].parts[name].dtype
            nbytes = dtype.itemsize * shape.numel()
            value = mapped(self._config, -(-nbytes // 4)).view(torch.uint8)[:nbytes].view(dtype).view(shape)
            self.engine.load_to({tile.parts[name].name: tile.elements_of(value) for tile in tiles
                                 if not tile.parts[name].fresh})
            values[name] = like_parameter(value, parameter) if shape == local(parameter).shape else value
        return values

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """
        Takes a state_dict of this class, or of an optimizer of torch.optim that has the same states. Parameters of
        which it has none start anew.

        Raises
        ------
        nvswap.Error
            EINVAL: it has other states, or of other shapes; ESTALE: it goes with a kept store that has other numbers
            of steps than this one. Nothing is loaded. EIO, ENOSPC and others of the drive: load it again.
        ValueError
            Its groups have other numbers of parameters.
        """
        ids = [number for group in state_dict["param_groups"] for number in group["params"]]
        state = {parameter: state_dict["state"][number] for number, parameter in zip(ids, self._numbers())
                 if state_dict["state"].get(number) and local(parameter).numel()}
        steps = {parameter: float(values.get("step", 1)) for parameter, values in state.items()}
        kept = "nvswap" in state_dict
        if kept and steps != {parameter: float(each["step"]) for parameter, each in self.state.items()}:
            raise Error(errno.ESTALE, "the state_dict goes with a kept store, and this one has other numbers of steps: "
                        "open the one that was committed with it")
        if not kept:
            self._register(list(state))
            for parameter, values in state.items():
                self._check_values(parameter, values)
            self._pending = []
        self._finish()
        super().load_state_dict(dict(state_dict, state={}))
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
        for tile in () if kept else [tile for tiles in self._of.values() for tile in tiles]:
            tile.set_fresh(True)
            if tile.parameter in state:
                self._load(tile, state[tile.parameter])
                tile.set_fresh(False)
        for parameter, count in steps.items():
            self._set_steps(parameter, count)
        self._take_note()

    def _check_values(self, parameter: torch.nn.Parameter, values: Dict[str, Any]) -> None:
        shapes = self._shapes(parameter)
        names = set(shapes) - {_MASTER}
        if not names <= set(values) <= names | {"step", _MASTER}:
            raise invalid(f"the state_dict has {', '.join(sorted(values))} of parameter {self._numbers()[parameter]}, "
                          f"where {type(self).__name__} has step, {', '.join(sorted(names))}")
        for name in set(values) & set(shapes):
            shape = local(values[name]).shape
            if shape != shapes[name]:
                raise invalid(f"{name} of parameter {self._numbers()[parameter]} is of shape {list(shape)} in the "
                              f"state_dict, and not {list(shapes[name])}")

    def _load(self, tile: Tile, values: Dict[str, Any]) -> None:
        parts = {name: tile.elements_of(local(value)) for name, value in values.items() if name in tile.parts}
        if _MASTER in tile.parts and _MASTER not in parts:
            parts[_MASTER] = self._with_memory(tile, "r", torch.clone)
        self.engine.store_from({part.name: parts[name].to("cpu", part.dtype).contiguous()
                                for name, part in tile.parts.items() if part.written})

    # ---- Kept stores

    def _take_note(self) -> None:
        """Commits of a kept store have the numbers of steps too."""
        if self._config["nvswap.keep"]:
            note = {"optimizer": type(self).__name__, "steps": list(map(self._steps, self._numbers())),
                    "unfinished": bool(self._pending) or self._tiles.unwritten}
            self.engine.note = zlib.compress(json.dumps(note).encode())

    def _resume(self) -> None:
        """Takes the steps of a kept store, and gives the parameters its weights."""
        if not self.engine.generation:
            self._take_note()
            return
        try:
            note = json.loads(zlib.decompress(self.engine.note))
        except (ValueError, zlib.error):
            note = {"optimizer": "another program"}
        if note["optimizer"] != type(self).__name__ or len(note["steps"]) != len(self._numbers()):
            raise Error(errno.ESTALE, f"the kept store is that of {note['optimizer']}, or of other parameters: give "
                        f"{type(self).__name__} an nvme_path of its own")
        if note["unfinished"]:
            raise Error(errno.ESTALE, "the kept store was closed when a step had failed and was not finished, so some "
                        "parameters have had it and others not: load a checkpoint into a new store")
        steps = dict(zip(self._numbers(), note["steps"]))
        self._register([parameter for parameter, count in steps.items() if count])
        for parameter, count in steps.items():
            if count:
                self._set_steps(parameter, count)
                for tile in self._of[parameter]:
                    self._take_kept(tile)

    def _take_kept(self, tile: Tile) -> None:
        tile.set_fresh(False)
        master = torch.empty(tile.parts[_MASTER].shape, dtype=torch.float32, device="cpu")
        self.engine.load_to({tile.parts[_MASTER].name: master})
        self._with_memory(tile, "r+", lambda own: own.copy_(master))

    def commit(self) -> None:
        """
        Makes the state of a kept store durable.

        Raises
        ------
        nvswap.Error
            EBUSY: a step has failed and is not finished. And those of nvswap.Engine.commit.
        """
        self._finish()
        self.engine.commit()

    def close(self) -> None:
        """Closes the store, after a commit if it is kept and no step is unfinished; the parameters keep their
        weights."""
        for hook in self._hooks:
            hook.remove()
        self._sums.drop_all()
        if self._pending:
            self.engine.abandon()
        elif not self.closed:
            self._finish()
        self.engine.close()
        self._aio.close()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self.engine.closed


def _take_gradient(optimizer: "weakref.ref[CustomOptimizer]", parameter: torch.nn.Parameter) -> None:
    own = optimizer()
    if own is not None and own._offloaded is not None and own._tensor_of(parameter) is not None:
        own._offloaded.threads.begin_backward()
        own._sums.take(parameter)
