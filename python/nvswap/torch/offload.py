# SPDX-License-Identifier: Apache-2.0
"""
Keeps the parameters of a module in an engine. Each module is given its own, pinned in the pool or copied
to a device, for the time of its forward; reading those of another module there pins them too, until
that forward ends. Between, a parameter has its shape and no memory: reading an element is an error.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import sys
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, NoReturn, Optional, Set, Tuple

import torch
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from nvswap.engine import Engine
from nvswap.errors import Error, drop_variables, invalid
from nvswap.torch.absent import give_memory, is_offloaded, take_memory
from nvswap.torch.local import is_host, is_sharded
from nvswap.torch.settings import place_of_its_own, settings_of
from nvswap.torch.shared import leave, shared_of
from nvswap.torch.threads import Forward

Initialize = Callable[[str, torch.Tensor], None]

_HOST = torch.device("cpu")
_UNIT_BYTES = 4096

# Not in older releases.
_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)
_is_transforming: Callable[[], bool] = getattr(
    torch._C, "_are_functorch_transforms_active", lambda: False)


def refused_use() -> Optional[str]:
    """What torch makes of the forward that runs now, if offloaded modules refuse that."""
    if torch.jit.is_tracing() or _is_exporting():
        return "traced or exported"
    return "called in a transform of torch.func" if _is_transforming() else None


def _placeholder(dtype: torch.dtype, shape: torch.Size, device: torch.device) -> torch.Tensor:
    return torch.full((), float("nan"), dtype=dtype, device=device).expand(shape)


def _tensors_of(output: Any) -> Iterator[torch.Tensor]:
    """The tensors of what a forward returns: in dictionaries, lists and tuples, of any depth."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, (dict, list, tuple)):
        for value in output.values() if isinstance(output, dict) else output:
            yield from _tensors_of(value)


class _Parameters(Dict[str, Any]):
    """The parameters of a module; looking one up in a forward pins it."""

    def __init__(self, parameters: Dict[str, Any],
                 look_up: Callable[[Optional[torch.nn.Parameter]], None]) -> None:
        super().__init__(parameters)
        self._look_up = look_up

    def __getitem__(self, key: str) -> Any:
        parameter = super().__getitem__(key)
        self._look_up(parameter)
        return parameter

    def __reduce__(self) -> Any:
        raise invalid("an offloaded module can't be copied or pickled; load() it first")


class Offloaded:
    """
    A module whose parameters are in an engine; made by :func:`offload`.

    Attributes
    ----------
    module : torch.nn.Module
    engine : nvswap.Engine
    device : torch.device
        Where the forwards compute.
    threads : Threads
    optimizers : list of callable
        The optimizers of nvswap that train it, or None of those that are gone.
    written : set of torch.nn.Parameter
        Those that load_state_dict() has changed since the optimizer has seen them.
    of_files : bool
        Whether the parameters are read of files, and never written.
    """

    of_files = False
    _kind = torch.nn.Parameter

    def __init__(self, module: torch.nn.Module, engine: Engine, initialize: Optional[Initialize],
                 device: torch.device, device_memory: int, smallest: int) -> None:
        self.module = module
        self.engine = engine
        self.device = device
        self.written: Set[torch.nn.Parameter] = set()
        self._initialize = initialize
        self._smallest = smallest
        self._names: Dict[torch.nn.Parameter, str] = {}
        self.optimizers: List[Callable[[], Any]] = []
        self._forwards: List[Tuple[torch.nn.Module, Any]] = []
        self._shared = shared_of(engine, self)
        try:
            if not is_host(device):
                self._shared.use_device(device, device_memory)
            self._take_parameters()
        except BaseException:
            leave(engine, self)
            raise
        self.threads = self._shared.threads
        self._saved = self._shared.saved
        self._hooks = [
            module.register_forward_pre_hook(self._begin_step),
            register_module_module_registration_hook(
                functools.partial(_enter_data_parallel, weakref.ref(self)))]
        # torch sets an attribute of a hook, which a bound method can't have.
        copy_to = functools.partial(self._copy_to)
        for each in module.modules():
            if next(each.parameters(), None) is not None:
                self._wrap(each)
                self._hooks.append(each.register_state_dict_post_hook(copy_to))

    def name_of(self, parameter: torch.nn.Parameter) -> Optional[str]:
        """The tensor of a parameter; None if it is not offloaded."""
        return self._names.get(parameter)

    @property
    def idle_engine(self) -> Engine:
        """The engine, of whose pool nothing is pinned for a device any more."""
        self._shared.finish_copies()
        return self.engine

    # ---- Parameters

    def _take_parameters(self) -> None:
        """Puts the parameters into the engine, and what stays in memory on the device."""
        parameters, staying = {}, {}
        for name, parameter in self.module.named_parameters():
            if is_offloaded(parameter):
                raise invalid(f"parameter {name} is offloaded already, with another module that has it: "
                              "offload a module with both of them")
            if is_sharded(parameter):
                raise invalid(f"parameter {name} is a shard of fully_shard or tensor parallelism, which can't be "
                              "offloaded; nvswap.torch.AdamW takes it, with its state on the drive")
            if parameter.device not in (_HOST, torch.device("meta"), self.device):
                raise invalid(f"parameter {name} is on {parameter.device}, and the forwards compute on "
                              f"{self.device}, which is device=")
            if parameter.numel() < self._smallest:
                staying[name] = parameter
                continue
            if not parameter.is_floating_point():
                raise invalid(f"parameter {name} is {parameter.dtype}; floating-point ones can be offloaded")
            parameters[name] = parameter
        if not parameters:
            raise invalid(f"no parameter has {self._smallest} elements, which is smallest=")
        self._check_room(parameters)
        made = {parameter: self._in_memory(name, parameter) for name, parameter in staying.items()}
        buffers = [(module._buffers, key, self._in_memory(f"{prefix}.{key}" if prefix else key, buffer))
                   for prefix, module in self.module.named_modules()
                   for key, buffer in module._buffers.items() if buffer is not None]
        self._store(parameters)
        # Nothing can fail from here on: a failure leaves the module as it was.
        for parameter, data in made.items():
            self._replace(parameter, data)
        for of_module, key, buffer in buffers:
            of_module[key] = buffer
        for name, parameter in parameters.items():
            parameter = self._replace(
                parameter, _placeholder(parameter.dtype, parameter.shape, self.device), self._kind)
            parameter.nvswap_offloaded = name  # type: ignore[attr-defined]
            self._names[parameter] = name
            take_memory(parameter, parameter.data)

    def _store(self, parameters: Dict[str, torch.nn.Parameter]) -> None:
        """Puts the contents of parameters into the engine."""
        self.engine.register_all({name: (parameter.dtype, tuple(parameter.shape))
                                  for name, parameter in parameters.items()})
        engine, handled = self.idle_engine, sys.exc_info()[1]
        try:
            for name, parameter in parameters.items():
                if parameter.is_meta:
                    with engine.pinned(name, "w", arrays="torch") as tensors:
                        self._fill(name, tensors[name])
                else:
                    engine.store_from({name: parameter.data.cpu().contiguous()})
        except BaseException as failure:
            drop_variables(failure, handled)
            for name in parameters:
                with contextlib.suppress(Error):  # Its array was kept elsewhere.
                    engine.forget(name)
            raise

    def _in_memory(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        """What a parameter or buffer that stays in memory has there."""
        if not parameter.is_meta:
            return parameter.data.to(self.device)
        data = torch.empty_like(parameter, device=_HOST)
        self._fill(name, data)
        return data.to(self.device)

    def _fill(self, name: str, tensor: torch.Tensor) -> None:
        """What is on the meta device never was in memory."""
        if self._initialize is None:
            raise invalid(f"{name} is on the meta device, and there is no `initialize`")
        with torch.no_grad():
            self._initialize(name, tensor)

    def _pool_bytes(self, name: str, parameter: torch.nn.Parameter) -> int:
        """What a parameter takes of the pool."""
        del name
        return parameter.nbytes

    def _check_room(self, parameters: Dict[str, torch.nn.Parameter]) -> None:
        """Refuses a module whose own parameters, which a forward pins together, exceed the pool."""
        _, room = self.engine.pool()
        own = {parameter: self._pool_bytes(name, parameter) for name, parameter in parameters.items()}
        for name, module in self.module.named_modules():
            sizes = [own[parameter] for parameter in module.parameters(recurse=False) if parameter in own]
            # Those of a ParameterList are pinned one by one.
            has_forward = type(module).forward is not torch.nn.Module.forward
            nbytes = sum(sizes) if has_forward else max(sizes, default=0)
            if nbytes > room:
                raise Error(errno.E2BIG, f"module {name or type(module).__name__} has parameters of "
                            f"{nbytes} bytes, more than the whole pool of {room} bytes: raise "
                            "buffer_count or buffer_size of offload_param")

    def _replace(self, parameter: torch.nn.Parameter, data: torch.Tensor,
                 kind: Any = torch.nn.Parameter) -> torch.nn.Parameter:
        """Gives a parameter other memory; one on the meta device becomes another parameter."""
        if not parameter.is_meta:
            parameter.data = data
            return parameter
        made: torch.nn.Parameter = kind(data.detach(), parameter.requires_grad)
        for each in self.module.modules():
            for key, value in list(each._parameters.items()):
                if value is parameter:
                    each._parameters[key] = made
        return made

    # ---- Forward and backward

    def _wrap(self, module: torch.nn.Module) -> None:
        forward = module.forward
        owned = [each for each in module.parameters(recurse=False) if each in self._names]
        self._forwards.append((module, forward))
        module.__dict__["_parameters"] = _Parameters(module._parameters, self._look_up)

        @functools.wraps(forward)
        def pinned_forward(*args: Any, **kwargs: Any) -> Any:
            use = refused_use()
            if use:
                _refuse(module, use)
            with self.threads.forward() as mine, _without_autocast_cache():
                try:
                    self._pin(owned, mine)
                    with self._saved.hooks():
                        return self._checked(module, forward(*args, **kwargs))
                finally:
                    self._unpin(mine)

        module.forward = pinned_forward  # type: ignore[method-assign]
        module._apply = functools.partial(  # type: ignore[method-assign]
            self._convert, module, module._apply)
        module._load_from_state_dict = functools.partial(  # type: ignore[method-assign]
            self._load_state, module, module._load_from_state_dict)
        # What torch.jit.script calls first.
        module.__prepare_scriptable__ = functools.partial(  # type: ignore[assignment]
            _refuse, module, "scripted")
        if hasattr(module, "resize_token_embeddings"):  # Of transformers: it would make new ones of nan.
            module.resize_token_embeddings = functools.partial(_refuse, module, "given other embeddings")

    # torch.compile compiles what a forward computes, and not how it gets its parameters.
    @torch.compiler.disable
    def _pin(self, parameters: Iterable[torch.nn.Parameter],
             forward: Forward) -> None:
        names = {self._names[parameter]: parameter for parameter in parameters}
        if not names:
            return
        if is_host(self.device):
            self._refuse_to_wait_for_own(names)
        with self._shared.contents(names) as tensors, self._shared.lock:
            for name, parameter in names.items():
                self._shared.depth[name] = self._shared.depth.get(name, 0) + 1
                # Another thread may be computing with it: its memory stays.
                if name not in self._saved.pinned:
                    give_memory(parameter, tensors[name])
                    self._saved.pinned[name] = parameter
                forward[name] = parameter

    def _refuse_to_wait_for_own(self, names: Dict[str, torch.nn.Parameter]) -> None:
        """Room that only forwards around this one could make would be awaited for ever."""
        held = {name: each for forward in self.threads.forwards() for name, each in forward.items()}
        wanted = {name: each for name, each in names.items() if name not in held}
        if not held or not wanted:
            return
        sizes = [self._pool_bytes(name, each) for name, each in wanted.items()]
        nbytes = sum(self._pool_bytes(name, each) for name, each in held.items()) + sum(sizes)
        if nbytes > self.engine.pool()[1] or max(sizes) > self.engine.room_beside(held):
            modules = ", ".join(sorted({name.rpartition(".")[0] or type(self.module).__name__
                                        for name in [*held, *wanted]}))
            raise Error(errno.E2BIG, f"forwards within each other need parameters of {nbytes} bytes "
                        f"at once, of {modules}, and the pool of {self.engine.pool()[1]} bytes has no "
                        "room for them: raise buffer_count or buffer_size of offload_param")

    @torch.compiler.disable
    def _unpin(self, forward: Forward) -> None:
        depth = self._shared.depth
        with self._shared.lock:
            for name, parameter in forward.items():
                depth[name] -= 1
                if depth[name] == 0:
                    del self._saved.pinned[name]
                    take_memory(parameter)

    def _look_up(self, parameter: Optional[torch.nn.Parameter]) -> None:
        """Pins a parameter until the innermost forward of this thread ends."""
        name = self._names.get(parameter) if parameter is not None else None
        forwards = self.threads.forwards()
        if parameter is None or name is None or any(name in forward for forward in forwards):
            return
        if forwards:
            self._pin([parameter], forwards[-1])
        elif torch._C._current_graph_task_id() != -1:
            raise invalid(f"parameter {name} is read in a backward outside of any forward: call "
                          "the module that has it, or checkpoint a whole module")

    def _checked(self, module: torch.nn.Module, output: Any) -> Any:
        if any(self._saved.of_parameter(tensor) for tensor in _tensors_of(output)):
            raise invalid(f"{type(module).__name__} returns a parameter or a view of it, "
                          "which is not in memory after its forward")
        return output

    def _begin_step(self, *_: Any) -> None:
        active = DistributedDataParallel._active_ddp_module
        if active is not None and any(each in self._names for each in active._module_parameters):
            raise _wrapped(self.module)
        self._shared.begin_step(self.module)

    # ---- Ranks

    def enter_data_parallel(self, parallel: Any, module: torch.nn.Module) -> None:
        """
        Takes the parameters over from a DistributedDataParallel that is made of a module: they begin as
        those of its first rank, and a backward averages each gradient over its ranks.
        """
        if not isinstance(parallel, DistributedDataParallel):
            return
        rest = [each for each in parallel._module_parameters if each not in self._names]
        if len(rest) == len(parallel._module_parameters):
            return
        if not any(each.requires_grad for each in rest):
            raise invalid(f"DistributedDataParallel of an offloaded {type(self.module).__name__} has no "
                          "parameter to train itself, and needs one: offload(..., smallest=N) leaves those "
                          "of fewer than N elements in memory")
        parallel._module_parameters = rest
        parallel.parameters_to_ignore |= {
            name for name, each in module.named_parameters(remove_duplicate=False) if each in self._names}
        group = parallel.process_group
        first = torch.distributed.get_global_rank(group, 0)
        for parameter in self._names if not self.of_files else ():
            with self._writable([parameter]):
                # Of NCCL, only memory of the device is sent.
                data = parameter.data.to(self.device)
                torch.distributed.broadcast(data, first, group)
                parameter.data.copy_(data)
            if parameter.requires_grad:
                # It stays after load(), since the DistributedDataParallel leaves the parameter to it; one
                # that is made later averages equal gradients again.
                parameter.register_hook(functools.partial(_average, group))

    # ---- State dictionaries

    def _copy_to(self, module: torch.nn.Module, state: Dict[str, Any], prefix: str, _: Any) -> None:
        """Replaces the entries of a module's own parameters by copies in memory."""
        for key, parameter in module._parameters.items():
            name = self._names.get(parameter) if parameter is not None else None
            if name is not None:
                with self.idle_engine.pinned(name, arrays="torch") as tensors:
                    state[prefix + key] = tensors[name].clone()

    def _load_state(self, module: torch.nn.Module, load: Any, state: Dict[str, Any], prefix: str,
                    metadata: Dict[str, Any], *more: Any) -> None:
        """_load_from_state_dict of a module, with its parameters in memory."""
        # Its hooks may rename entries. An adapter's state has none of its base model.
        hooked = bool(module._load_state_dict_pre_hooks)
        own = [each for key, each in module._parameters.items()
               if each in self._names and (hooked or prefix + key in state)]
        if metadata.get("assign_to_params_buffers") and own:
            raise invalid(f"load_state_dict(assign=True) of an offloaded {type(module).__name__}: its "
                          "parameters stay on the drive, so leave assign out")
        with self._writable(own):
            load(state, prefix, metadata, *more)

    @contextlib.contextmanager
    def _writable(self, parameters: List[torch.nn.Parameter]) -> Iterator[None]:
        """The parameters are in host memory, and what is written to them goes to the store."""
        if not parameters:
            yield
            return
        names = {self._names[parameter]: parameter for parameter in parameters}
        for name in names:
            if name in self._saved.pinned:
                raise Error(errno.EBUSY, f"parameter {name} would be written while a forward computes with it: wait "
                            "for the forward")
        with self.idle_engine.pinned(list(names), "r+", arrays="torch") as tensors:
            for name, parameter in names.items():
                give_memory(parameter, tensors[name])
            try:
                yield
            finally:
                for parameter in names.values():  # A module may have one by several names.
                    take_memory(parameter)
                    torch.autograd.graph.increment_version(parameter)
                self.written.update(parameters)

    def _convert(self, module: torch.nn.Module, apply: Any, function: Any,
                 recurse: bool = True) -> torch.nn.Module:
        """_apply of a module, which converts its parameters in the store; they stay there."""
        dtypes = {}
        for dtype in {parameter.dtype for parameter in module.parameters(recurse)}:
            before = torch.empty((), dtype=dtype, device=self.device)
            after = function(before)
            dtypes[dtype] = after.dtype
            if after.device == before.device and after.dtype == before.dtype and (
                    after.data_ptr() != before.data_ptr() or after.is_shared()):
                _refuse(module, "given other memory, as by share_memory() and to_empty()")
            if after.device != before.device:
                raise invalid(f"an offloaded {type(module).__name__} can't be moved to {after.device}, as its "
                              f"forwards compute on {self.device}: give offload() the device=, or move it "
                              "after load()")
            if after.dtype != before.dtype and self.of_files:
                raise invalid(f"an offloaded {type(module).__name__} whose parameters are read of files can't become "
                              f"{after.dtype}: give from_pretrained() that dtype=, or make the module of that type "
                              "and give offload() convert=True")
            if after.dtype != before.dtype and self.has_optimizer():
                raise invalid(f"an offloaded {type(module).__name__} can't become {after.dtype} while an optimizer "
                              "has its parameters: make the optimizer after that")
        every = module.__dict__["_parameters"]
        module.__dict__["_parameters"] = {
            key: each for key, each in every.items() if each not in self._names}
        try:
            result: torch.nn.Module = apply(function, recurse)
        finally:
            every.update(module.__dict__["_parameters"])
            module.__dict__["_parameters"] = every
        for parameter in module.parameters(recurse=False):
            if parameter in self._names and parameter.dtype in dtypes:
                self._convert_parameter(parameter, dtypes[parameter.dtype])
        return result

    def _convert_parameter(self, parameter: torch.nn.Parameter, dtype: torch.dtype) -> None:
        if dtype == parameter.dtype:
            return
        self._shared.end_step()
        name = self._names[parameter]
        converted = f"{name}.{dtype}"
        self.idle_engine.register(converted, dtype, tuple(parameter.shape))
        try:
            with self.engine.pinned(name, arrays="torch") as tensors:
                self.engine.store_from({converted: tensors[name].to(dtype)})
            self.engine.forget(name)
        except BaseException:
            self.engine.forget(converted)
            raise
        # Memory for the old name may lack: then the parameter is there by the new one.
        self._names[parameter] = converted
        gradient, parameter.grad = parameter.grad, None
        placeholder = _placeholder(dtype, parameter.shape, self.device)
        give_memory(parameter, placeholder)
        take_memory(parameter, placeholder)
        torch.autograd.graph.increment_version(parameter)
        parameter.grad = gradient.to(dtype) if gradient is not None else None
        self.engine.rename(converted, name)
        self._names[parameter] = name

    def has_optimizer(self) -> bool:
        """Whether an optimizer that is not closed trains it."""
        return bool(self._open_optimizers())

    def _open_optimizers(self) -> List[Any]:
        return [own for each in self.optimizers for own in [each()] if own is not None and not own.closed]

    def check_optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Refuses to be trained by an optimizer of these parameters, which must have some of the module."""
        if self.of_files:
            raise invalid("the parameters of `offloaded` are read of files, which are not written: train adapters "
                          "over them, as those of peft (LoRA), and leave out offloaded=; or load the weights into a "
                          "module, and offload() it without weights=")
        if not any(parameter in self._names for parameter in parameters):
            raise invalid("no parameter is of the module of `offloaded`, which would not be trained: "
                          "give the parameters of that module too, or leave out `offloaded`")

    def refuse_others(self, optimizer: Any, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Refuses parameters of the module that another optimizer trains than this one."""
        self.optimizers = [each for each in self.optimizers if each() is not None]
        own = {parameter for parameter in parameters if parameter in self._names}
        if any(parameter in own for other in self._open_optimizers() if other is not optimizer
               for group in other.param_groups for parameter in group["params"]):
            raise Error(errno.EBUSY, "the offloaded module has an optimizer of the same parameters, which takes their "
                        "gradients: close() that one before making another")

    # ---- The end

    def load(self) -> None:
        """Brings all parameters back into host memory, and ends the hooks; the engine can be closed.
        After an error the module is still offloaded, and can be loaded again."""
        self._shared.end_step()
        loaded = {parameter: torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
                  for parameter in self._names}
        for parameter, data in loaded.items():
            self.idle_engine.load_to({self._names[parameter]: data})
        for module, forward in self._forwards:
            module.forward = forward
            del module._apply, module._load_from_state_dict, module.__prepare_scriptable__
            module.__dict__.pop("resize_token_embeddings", None)
            module.__dict__["_parameters"] = dict(module._parameters)
        self._forwards.clear()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for parameter, data in loaded.items():
            give_memory(parameter, data)
            del parameter.nvswap_offloaded, parameter.nvswap_placeholder  # type: ignore[attr-defined]
        self._names.clear()
        leave(self.engine, self)


@contextlib.contextmanager
def _without_autocast_cache() -> Iterator[None]:
    """Autocast would keep copies of all parameters in memory until it ends."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def _refuse(module: torch.nn.Module, use: str, *_: Any, **__: Any) -> NoReturn:
    raise invalid(f"an offloaded {type(module).__name__} can't be {use}: its parameters are not in "
                  "memory; do it before offload(), or after load()")


def _enter_data_parallel(offloaded: "weakref.ref[Offloaded]", module: torch.nn.Module, _: str,
                         child: torch.nn.Module) -> None:
    own = offloaded()
    if own is not None:
        own.enter_data_parallel(module, child)


def _average(group: Any, gradient: torch.Tensor) -> torch.Tensor:
    mean = gradient / group.size()
    torch.distributed.all_reduce(mean, group=group)
    return mean


def _wrapped(module: torch.nn.Module) -> Error:
    return invalid(f"a DistributedDataParallel has the {type(module).__name__} that is offloaded: call "
                   "offload() first, and DistributedDataParallel(module) after it")


def _is_fully_sharded(module: torch.nn.Module) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # Importing it takes long.
    return fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel)


def _device_of(device: Any) -> torch.device:
    """A device with its number, as its tensors have it."""
    if torch.device(device or _HOST).type == "meta":
        raise invalid("forwards can't compute on the meta device: leave device= out, or give that of a GPU")
    return torch.empty(0, device=device or _HOST).device


def offload(module: torch.nn.Module, config: Any = None, *, engine: Optional[Engine] = None,
            initialize: Optional[Initialize] = None, device: Any = None,
            device_memory: Optional[int] = None, smallest: int = 0, weights: Any = None,
            convert: bool = False, experts_memory: int = 0) -> Offloaded:
    """
    Moves the parameters of a module to the drive, or reads them there.

    Parameters
    ----------
    module : torch.nn.Module
        With floating-point parameters in host memory, on the meta device or on `device`.
    config : Config, dict, str or os.PathLike, optional
        A directory on the drive; or a DeepSpeed JSON file or its contents, whose offload_param block has
        path and pool. The variable NVSWAP_CONFIG of the environment by default. The pool must hold the
        parameters of the largest module, twice for what a backward needs at once, and those of other
        modules that a forward reads.
    engine : Engine, optional
        Instead of one that is opened here; also that of other modules, if no parameter has the name
        of another's. It has none of the tensors after an error, but those whose array `initialize`
        has kept.
    initialize : callable, optional
        Gets ``(name, tensor)`` for parameters and buffers on the meta device, to fill the tensor in: so
        a model that is larger than memory can be made.
    device : torch.device or str, optional
        Where the forwards compute, as "cuda"; the host by default. Parameters go there from the pool for
        the time of their use; buffers are moved there.
    device_memory : int, optional
        Bytes of the device's memory for parameters; four times the largest module's by default. Those
        that are needed soonest stay there, and what one module needs is there also beyond it.
    smallest : int
        Parameters of fewer elements stay in memory, or on the device.
    weights : str, os.PathLike or iterable of them, optional
        A folder, an index or .safetensors files, as for :func:`nvswap.open_weights`, in which the
        parameters are read and never written; `module` is on the meta device, or what its parameters
        were means nothing. A model of transformers is loaded as its from_pretrained() loads it, another
        module as load_state_dict() would; buffers that neither files nor transformers have are as they
        are, or `initialize`'s. No parameter requires a gradient then, nor can it. `config` has the pool
        alone; by default it holds what the largest module needs four times, and at least 64 MiB.
    convert : bool
        With `weights`: a parameter whose type differs from that in the files is converted each time
        that it is read.
    experts_memory : int
        With `weights`, of a mixture of experts of transformers whose forwards compute on the host: bytes of memory
        beside the pool for the experts that the most tokens chose, which are not read again. What fits in it is
        kept; ``engine.stats()["experts"]`` says how much that is, and how many experts that forwards needed were
        there. 0, the default, without `weights` and on a device.

    Returns
    -------
    Offloaded
        Give it to :class:`nvswap.torch.AdamW` to train.

    Raises
    ------
    Error
        EINVAL: a parameter can't be offloaded, or is already; `weights` don't fit the module, by names,
        shapes or types, which the text lists; EEXIST: `engine` has a tensor of its name; EBUSY: a step of
        `engine` has begun; E2BIG: the parameters of one module exceed the pool. In a forward, EINVAL: a
        module returns a parameter, or is traced or exported, or called in a transform of torch.func;
        E2BIG: the parameters of forwards within each other exceed the pool; ESTALE: a file of `weights`
        was replaced or written to; EBUSY: a backward of another thread runs. In a backward, EBUSY: a
        forward or a backward of another thread runs.

    Notes
    -----
    A step of the engine (:meth:`Engine.step`) begins with the first forward, and with that of a
    module which has had one in the present step; the program begins none itself until
    :meth:`Offloaded.load`.

    A parameter is in memory in the forward of the module that has it. A forward that reads it as an
    attribute of another module, as torch.nn.MultiheadAttention and users of torch.nn.ParameterList
    do, has it until that forward ends. Elsewhere, and as what `module.parameters()` gives in a
    forward, it has no memory: what reads or writes its elements is EINVAL, and its shape, type, gradient
    and hooks are as ever. torch.tensor(parameter), other.new_tensor(parameter) and ``other.data = parameter``,
    which torch lets no class refuse, have nan. What a forward changes in place of its parameter, as
    torch.nn.Embedding does with max_norm, lasts until the pool needs the room. Modules that compute a parameter from
    others (parametrizations, weight_norm, spectral_norm, prune) can't be offloaded. state_dict() has
    copies of all parameters in host memory. load_state_dict(), and before there is an optimizer half()
    and to(dtype), change the store; share_memory() and to_empty() are refused.

    A DistributedDataParallel is made of the offloaded module, and trains at least one parameter that
    `smallest` leaves in memory. Those that are offloaded begin as its first rank has them, and each
    backward averages their gradients over its ranks. The weights are in the engine alone: a
    module whose engine was closed before :meth:`Offloaded.load` has none, and its forwards raise
    ClosedError.
    """
    for name, each in module.named_modules():
        if isinstance(each, DistributedDataParallel):
            raise _wrapped(each.module)
        if _is_fully_sharded(each):
            raise invalid(f"module {name or type(each).__name__} is a FullyShardedDataParallel, whose "
                          "parameters are views of its own memory; several ranks train by DeepSpeed, "
                          "with nvswap.deepspeed")
        if isinstance(each._parameters, _Parameters):
            raise invalid(f"module {name or type(each).__name__} is offloaded already")
        hooks = each._forward_pre_hooks.values()
        if hasattr(each, "parametrizations") or any(
                isinstance(hook, (WeightNorm, SpectralNorm, BasePruningMethod)) for hook in hooks):
            raise invalid(f"module {name or type(each).__name__} computes a parameter from others: "
                          "it can't be offloaded")
    parts = [list(part.parameters(recurse=False)) for part in module.modules()]
    if device_memory is None:
        device_memory = 4 * max(sum(each.nbytes for each in part) for part in parts)
    if experts_memory and weights is None:
        raise invalid("experts_memory is for experts that are read in files: give weights=, or leave it out")
    if convert and weights is None:
        raise invalid("convert is for parameters that are read in files: give weights=, or leave it out")
    if weights is not None:
        # It makes an Offloaded, so it imports this module.
        from nvswap.torch.weights import offload_files  # pylint: disable=import-outside-toplevel,cyclic-import
        if engine is not None:
            raise invalid("weights= has an engine of its own: leave out engine=")
        return offload_files(module, weights, config, initialize, _device_of(device), device_memory, smallest,
                             convert, experts_memory)
    if engine is not None:
        own = engine
    else:
        # Each parameter takes whole units of the pool.
        settings = settings_of(config, max(sum(
            each.numel() + _UNIT_BYTES // each.itemsize for each in part) for part in parts))
        with place_of_its_own(settings, "param"):
            own = Engine(settings, "param", arrays="torch")
    try:
        return Offloaded(module, own, initialize, _device_of(device), device_memory, smallest)
    except BaseException:
        if engine is None:
            # An array that `initialize` has kept keeps the engine open. A kept store is as before.
            with contextlib.suppress(Error):
                own.abandon()
        raise
