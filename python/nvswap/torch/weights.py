# SPDX-License-Identifier: Apache-2.0
"""
Modules whose parameters are read where they lie in .safetensors files.

What a parameter is made of is recorded when the module is offloaded: the tensors of the files go through
transformers' own loader without memory (recorded.py). When a module needs a parameter, the recorded calls are made
again with what was read. A parameter that is a tensor of a file as it lies there is pool memory; another one is a copy.

Of a module with experts, only the rows of its parameters are read that the tokens of a forward chose, and of an
embedding those of the tokens that it is given. The latter are never the parameter's memory, so that a head that is tied
to it, or another thread, can have the whole.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import functools
import inspect
import itertools
import os
import sys
import threading
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from nvswap.dtypes import torch_dtype
from nvswap.engine import Names, StoredTensor, Tensor
from nvswap.errors import Error, invalid
from nvswap.strings import Path
from nvswap.torch.experts import HotExperts, has_experts
from nvswap.torch.local import is_host
from nvswap.torch.offload import Initialize, Offloaded, is_offloaded, refused_use
from nvswap.torch.recorded import Leaf, Recorded, evaluate, leaf_of, leaves_of, row_of, table_of
from nvswap.torch.threads import Forward
from nvswap.weights import Paths, Weights, files_list, pool_config

_SMALLEST_POOL = 64 << 20
_UNIT_BYTES = 4096
_LINE_BYTES = 64
_POOL_OF_ONE = {"zero_optimization": {"offload_param": {"buffer_count": 1, "buffer_size": 1}}}

_HOW = ("train adapters over it, as those of peft (LoRA), or load the weights into a module and offload() it without "
        "weights=")


# ---- Reading


class Contents(Dict[str, torch.Tensor]):
    """Tensors of a module by its own names, in pool memory or in memory of their own. Pool memory is pinned
    for as long as a tensor is over it."""

    def release(self) -> None:
        """Drops the tensors."""
        self.clear()

    def __enter__(self) -> "Contents":
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()


class ParameterFiles(Weights):
    """
    Files whose tensors make up the parameters and buffers of a module.

    Parameters
    ----------
    paths, config
        As of Weights.
    sources : dict of str to recorded tensors
        By the names of the module.
    experts : dict of str to list of recorded tensors
        The rows of the parameters that are read by rows.
    hot : HotExperts
    """

    def __init__(self, paths: Sequence[Path], config: Any, sources: Dict[str, Recorded],
                 experts: Dict[str, List[Recorded]], hot: HotExperts) -> None:
        self.sources = sources
        self.hot = hot
        # Bytes of the pool that chosen experts may take.
        self.experts_room = 0
        self._experts = experts
        self._chosen = threading.local()
        self._registering = threading.Lock()
        self._places: Dict[str, int] = {}
        self._row_reads = itertools.count()
        super().__init__(paths, config, arrays="torch")

    @contextlib.contextmanager
    def choosing(self, tokens: Dict[int, int]) -> Iterator[None]:
        """Parameters of experts that this thread gets in the block have the contents of these rows, each of which so
        many tokens chose."""
        before = getattr(self._chosen, "tokens", None)
        self._chosen.tokens = tokens
        try:
            yield
        finally:
            self._chosen.tokens = before

    def swap_in(self, names: Names, mode: str = "r", *, timeout: Optional[float] = None,
                arrays: Optional[str] = None) -> Any:
        """Reads parameters or buffers by the module's names, and waits for them. Other names, and tensors,
        are those of the files, as of Weights."""
        result = Contents()
        wanted: Any = [names] if isinstance(names, (str, Tensor)) else list(names)
        if not all(name in self.sources for name in wanted):
            return super().swap_in(names, mode, timeout=timeout, arrays=arrays)
        whole = {name: self.sources[name] for name in wanted if name not in self._experts}
        if whole:
            result.update(self._made(whole, timeout))
        modules: Dict[str, List[str]] = {}
        for name in wanted:
            if name in self._experts:
                modules.setdefault(name.rpartition(".")[0], []).append(name)
        for module, of_module in modules.items():
            result.update(self._made_of_rows(module, of_module, timeout))
        return result

    def prefetch(self, names: Names) -> int:
        """Reads ahead, as of Weights, also by the module's names, of which those of experts are left out."""
        tensors: Dict[Union[str, Tensor], None] = {}
        for name in [names] if isinstance(names, (str, Tensor)) else names:
            if not isinstance(name, str) or name not in self.sources:
                tensors[name] = None
            elif name not in self._experts:
                tensors.update(dict.fromkeys(self._tensor_of(leaf.made) for leaf in leaves_of(self.sources[name])))
        return super().prefetch(tensors)

    def _made(self, wanted: Mapping[str, Recorded], timeout: Optional[float]) -> Dict[str, torch.Tensor]:
        leaves = {each.made: self._tensor_of(each.made) for source in wanted.values() for each in leaves_of(source)}
        with super().swap_in(dict.fromkeys(leaves.values()), timeout=timeout) as pinned, torch.no_grad():
            contents = {leaf: self._as_mapped(tensor, pinned[tensor.name]) if leaf.row is None else
                        pinned[tensor.name][0] for leaf, tensor in leaves.items()}
            return {name: evaluate(source, contents) for name, source in wanted.items()}

    def _as_mapped(self, tensor: Tensor, contents: torch.Tensor) -> torch.Tensor:
        """Pool memory, or a copy of a small tensor: some kernels round by where their input lies in a line of
        the cache. Large tensors lie there as in a mapped file, with which transformers computes."""
        place = self._place_of(tensor) % _LINE_BYTES
        if contents.data_ptr() % _LINE_BYTES == place or place % contents.itemsize:
            return contents
        return self._memory(tensor, _LINE_BYTES).copy_(contents)

    def _memory(self, tensor: Tensor, unit: int) -> torch.Tensor:
        """Memory for a tensor, which lies in units as it does in its file. Memory of torch begins with a line: so a
        backward finds what it needs at the same place of other memory."""
        dtype = torch_dtype(tensor.dtype)
        memory = torch.empty(tensor.nbytes + unit + _LINE_BYTES, dtype=torch.uint8, device="cpu")
        begin = (self._place_of(tensor) // dtype.itemsize * dtype.itemsize - memory.data_ptr()) % unit
        return memory[begin:begin + tensor.nbytes].view(dtype).view(tensor.shape)

    def _place_of(self, tensor: Tensor) -> int:
        """The tensor's first byte in its file, or that plus a number of whole units."""
        if tensor.name not in self._places:
            self._places[tensor.name] = self.info(tensor)["store_offset"]
        return self._places[tensor.name]

    def read_rows(self, name: str, numbers: List[int]) -> Optional[torch.Tensor]:
        """Rows of a parameter, by ascending numbers, in memory of their own; the plan does not have these reads. None:
        they are no less bytes of the drive than the whole parameter, or can't be read or verified alone."""
        table = table_of(self.sources[name])
        if table is None or self._config["nvswap.verify"]:
            return None
        tensor, row = self[table], self[table].nbytes // self[table].shape[0]
        breaks = [at for at in range(1, len(numbers)) if numbers[at] != numbers[at - 1] + 1]
        runs = [(numbers[begin], end - begin) for begin, end in zip([0, *breaks], [*breaks, len(numbers)])]
        place = self._place_of(tensor)
        units = sum((place + (first + count) * row - 1) // _UNIT_BYTES - (place + first * row) // _UNIT_BYTES + 1
                    for first, count in runs)
        if units * _UNIT_BYTES >= tensor.nbytes:
            return None
        read = next(self._row_reads)  # Threads may read the same rows.
        parts = self._register_rows(tensor, {f"{table}[{first}:{first + count}], read {read}": (first, count)
                                             for first, count in runs})
        try:
            rows = torch.empty((len(numbers), *tensor.shape[1:]), dtype=torch_dtype(tensor.dtype), device="cpu")
            super().load_to(dict(zip(parts, rows.split([count for _, count in runs]))))  # type: ignore[arg-type]
        finally:
            try:
                self.forget(parts)
            except Error:  # A signal has ended the wait.
                with contextlib.suppress(Error):
                    self.wait(parts)
                with contextlib.suppress(Error):
                    self.forget(parts)
        with torch.no_grad():
            return evaluate(self.sources[name], {Leaf(table, None): rows})

    def _made_of_rows(self, module: str, names: List[str], timeout: Optional[float]) -> Dict[str, torch.Tensor]:
        """Parameters of the experts of a module: the memory of rows that nothing chose is never touched."""
        chosen: Optional[Dict[int, int]] = getattr(self._chosen, "tokens", None)
        numbers = range(len(self._experts[names[0]])) if chosen is None else sorted(
            chosen, key=chosen.__getitem__, reverse=True)
        kept = self.hot.kept(module, numbers, names)
        if chosen is not None:
            self.hot.count(module, chosen)
        result = {name: torch.empty(self.sources[name].shape, dtype=self.sources[name].dtype, device="cpu")
                  for name in names}
        read = (self._read_by_pool if chosen is None else self._read_chosen)(
            names, [number for number in numbers if number not in kept], timeout)
        with contextlib.closing(read):
            for number, rows in itertools.chain(kept.items(), read):
                for name in names:
                    result[name][number] = rows[name]
                if chosen is not None and number not in kept:
                    self.hot.offer(module, number, rows)
        return result

    def _read_by_pool(self, names: List[str], numbers: Iterable[int],
                      timeout: Optional[float]) -> Iterator[Tuple[int, Dict[str, torch.Tensor]]]:
        """Experts, with the rows of these parameters, which are pool memory or copies."""
        self.prefetch([self._tensor_of(leaf) for number in numbers for leaf in self._leaves_of(names, number)])
        for number in numbers:
            yield number, self._made({name: self._experts[name][number] for name in names}, timeout)

    def _read_chosen(self, names: List[str], numbers: Iterable[int],
                     timeout: Optional[float]) -> Iterator[Tuple[int, Dict[str, torch.Tensor]]]:
        """Experts in memory of their own, each read while the one before is copied. The plan does not have these
        reads, as the next token chooses others. Without a budget they are read to where the pool has room beside all
        that is read whole, from where they are copied, and stay there until others need that."""
        reading: Dict[int, Dict[Any, torch.Tensor]] = {}
        busy, in_pool, room = [], set(), 0 if self.hot.memory else self.experts_room
        for number in numbers:
            tensors = [self._tensor_of(leaf) for leaf in self._leaves_of(names, number)]
            room -= sum(each.nbytes + 2 * _UNIT_BYTES for each in tensors)
            if room < 0 or self.prefetch(tensors) < len(tensors):
                break
            in_pool.add(number)

        def start(number: int) -> None:
            leaves = {leaf: self._tensor_of(leaf) for leaf in self._leaves_of(names, number)}
            # What a budget keeps has no bytes beside it.
            memory = {leaf: torch.empty(tensor.shape, dtype=torch_dtype(tensor.dtype), device="cpu") if self.hot.memory
                      else self._memory(tensor, _UNIT_BYTES) for leaf, tensor in leaves.items()}
            if number in in_pool:
                self.wait(leaves.values())
            try:
                super(ParameterFiles, self).load_to(
                    {tensor: memory[leaf] for leaf, tensor in leaves.items()}, wait=False)  # type: ignore[misc]
            except Error as error:
                if error.errno != errno.EBUSY:
                    raise
                busy.append(number)  # A backward of another forward has it.
            else:
                reading[number] = memory

        def finish() -> Tuple[int, Dict[str, torch.Tensor]]:
            number = next(iter(reading))
            leaves = reading.pop(number)
            self.wait([self._tensor_of(leaf) for leaf in leaves])
            return number, {name: evaluate(self._experts[name][number], leaves) for name in names}

        with self._parts, torch.no_grad():
            try:
                for number in numbers:
                    start(number)
                    if len(reading) > 1:
                        yield finish()
                while reading:
                    yield finish()
            finally:
                while reading:
                    with contextlib.suppress(Error):
                        finish()
        for number, rows in self._read_by_pool(names, busy, timeout):
            yield number, {name: row.clone() for name, row in rows.items()}

    def _leaves_of(self, names: List[str], number: int) -> List[Leaf]:
        """What an expert's rows of parameters are made of."""
        return [each.made for name in names  # type: ignore[misc]
                for each in leaves_of(self._experts[name][number])]

    def _tensor_of(self, leaf: Any) -> Tensor:
        if leaf.row is None:
            return self[leaf.name]
        name = f"{leaf.name}[{leaf.row}:{leaf.row + 1}]"
        with self._registering:
            return self[name] if name in self else self.register_rows(leaf.name, leaf.row)

    def load_to(self, arrays: Mapping[str, Any], wait: bool = True) -> None:
        """Copies parameters or buffers into tensors."""
        for name, array in arrays.items():
            with self.swap_in(name) as tensors:
                array.copy_(tensors[name])

    def pool_bytes(self, name: str) -> int:
        """What a parameter takes of the pool while it is read."""
        return pool_bytes(self.sources[name], self._experts.get(name))

    def bytes_in_pool(self, names: Iterable[str]) -> int:
        """What parameters take of the pool together, with the rest of the drive's blocks around them."""
        tensors = {each.made: each.nbytes for name in set(names) for each in leaves_of(self.sources[name])}
        return sum(tensors.values()) + 2 * _UNIT_BYTES * len(tensors)

    def has_rows(self, name: str) -> bool:
        """Whether a parameter's rows are experts, which are read one by one."""
        return name in self._experts

    def stats(self) -> Dict[str, Any]:
        """As those of an engine, with "experts": see :meth:`HotExperts.stats`."""
        return {**super().stats(), "experts": self.hot.stats()}

    def _free(self, pointer: Any, at_exit: bool) -> None:
        super()._free(pointer, at_exit)
        self.hot.clear()

    def room_beside(self, names: Iterable[str], unit: int = 1) -> int:
        files = {each.made.name for name in names if name not in self._experts  # type: ignore[union-attr]
                 for each in leaves_of(self.sources[name])}
        return super().room_beside(files, unit)


def pool_bytes(source: Recorded, rows: Optional[List[Recorded]]) -> int:
    """Of what a parameter is made of, or the largest of its rows."""
    return max(sum(leaf.nbytes for leaf in leaves_of(each)) for each in rows or [source])


# ---- The module


class _Frozen(torch.nn.Parameter):
    """A parameter of files. While it is offloaded, nothing can train it."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        """As that of a tensor."""
        return bool(torch.Tensor.requires_grad.__get__(self))  # type: ignore[attr-defined]

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and is_offloaded(self):
            raise invalid(f"parameter {self.nvswap_offloaded} is read of files, which are not written: {_HOW}")
        torch.Tensor.requires_grad.__set__(self, value)  # type: ignore[attr-defined]

    def requires_grad_(self, requires_grad: bool = True) -> "_Frozen":
        """As that of a tensor."""
        self.requires_grad = requires_grad
        return self


class OffloadedFiles(Offloaded):
    """An :class:`Offloaded` whose parameters are read of files, and never written."""

    engine: ParameterFiles
    of_files = True
    _kind = _Frozen

    def __init__(self, *args: Any) -> None:
        # The parameters that modules have, in their order, but those that are read by rows.
        self._order: List[str] = []
        super().__init__(*args)
        self.engine.experts_room = self.engine.pool()[1] - self.engine.bytes_in_pool(self._order)

    def _store(self, parameters: Dict[str, torch.nn.Parameter]) -> None:
        for parameter in self.module.parameters():
            parameter.requires_grad_(False)

    def _pool_bytes(self, name: str, parameter: torch.nn.Parameter) -> int:
        return self.engine.pool_bytes(name)

    def _in_memory(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        if name not in self.engine.sources:
            return super()._in_memory(name, parameter)
        data = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
        self.engine.load_to({name: data})
        return data.to(self.device)

    @torch.compiler.disable
    def _pin(self, parameters: Iterable[torch.nn.Parameter], forward: Forward) -> None:
        names = [self._names[parameter] for parameter in parameters]
        super()._pin(parameters, forward)
        if not self._shared.planned and any(name in self._order for name in names):
            self._read_from(1 + max(self._order.index(name) for name in names if name in self._order))

    def _read_from(self, place: int) -> None:
        """In the first forward, reads what modules have from a place of the order on ahead, into half of the pool."""
        room, ahead = self.engine.pool()[1] // 2, []
        for name in self._order[place:]:
            room -= self.engine.pool_bytes(name)
            if room < 0:
                break
            ahead.append(name)
        self.engine.prefetch(ahead)

    def _wrap(self, module: torch.nn.Module) -> None:
        own = [self._names[each] for each in module.parameters(recurse=False) if each in self._names]
        table = self._names.get(module._parameters.get("weight"))  # type: ignore[arg-type]
        embeds = getattr(module.forward, "__func__", None) is torch.nn.Embedding.forward and module.max_norm is None
        super()._wrap(module)
        if is_host(self.device) and has_experts(module):
            self._read_chosen(module)
            own = [name for name in own if not self.engine.has_rows(name)]
        elif is_host(self.device) and embeds and table is not None:
            self._read_rows(module, table)
            own.remove(table)
        self._order += own

    def _read_chosen(self, module: torch.nn.Module) -> None:
        """Forwards of a module with experts read those that its tokens chose."""
        forward, signature, lock = module.forward, inspect.signature(module.forward), threading.RLock()

        @functools.wraps(forward)
        def forward_of_chosen(*args: Any, **kwargs: Any) -> Any:
            chosen = signature.bind(*args, **kwargs).arguments["top_k_index"].unique(return_counts=True)
            tokens = {number: count for number, count in zip(*(each.tolist() for each in chosen))
                      if number < module.num_experts}
            # Another thread's forward would have the rows of this one.
            with lock, self.engine.choosing(tokens):
                return forward(*args, **kwargs)

        module.forward = forward_of_chosen  # type: ignore[method-assign]

    def _read_rows(self, module: torch.nn.Module, name: str) -> None:
        """Forwards of an embedding read the rows of their tokens, which no other module sees."""
        forward, after = module.forward, len(self._order)

        @functools.wraps(forward)
        @torch.compiler.disable
        def forward_of_tokens(input: Any) -> Any:  # pylint: disable=redefined-builtin
            if not self._shared.planned:
                self._read_from(after)
            found = self._rows_of(module, name, input)
            return forward(input) if found is None else torch.nn.functional.embedding(*found)

        module.forward = forward_of_tokens  # type: ignore[method-assign]

    def _rows_of(self, module: Any, name: str, tokens: Any) -> Optional[Tuple[torch.Tensor, torch.Tensor]]:
        """For each token its place among the rows of all of them, and these rows; None: the whole table is for it, also
        for errors of torch."""
        # The module's weight may be another meanwhile, as in torch.func.functional_call().
        if refused_use() or name in self._saved.pinned or \
                self._names.get(module._parameters.get("weight")) != name or type(tokens) is not torch.Tensor or \
                not is_host(tokens.device) or tokens.dtype not in (torch.int64, torch.int32) or not tokens.numel():
            return None
        numbers, places = tokens.unique(return_inverse=True)
        if numbers[0] < 0 or numbers[-1] >= module.num_embeddings:
            return None
        rows = self.engine.read_rows(name, numbers.tolist())
        return None if rows is None else (places, rows)

    def load(self) -> None:
        super().load()
        self.engine.hot.clear()

    @contextlib.contextmanager
    def _writable(self, parameters: List[torch.nn.Parameter]) -> Iterator[None]:
        if parameters:
            raise invalid(f"parameter {self._names[parameters[0]]} is read of files, which are not written: call "
                          "load() first, or offload() without weights=")
        yield


# ---- Names


def _load(module: torch.nn.Module, files: Dict[str, Recorded]) -> None:
    """Gives a module recorded tensors by its own names, as load_state_dict() gives it others."""
    state = {name: each for name, each in module.state_dict(keep_vars=True).items() if isinstance(each, torch.Tensor)}
    found = {each: files[name] for name, each in state.items() if name in files}
    errors = _listed("Missing", [name for name, each in state.items() if each not in found])
    errors += _listed("Unexpected", [name for name in files if name not in state])
    errors += [f"size mismatch for {name}: {list(found[each].shape)} in the files, {list(each.shape)} in the module"
               for name, each in state.items() if each in found and each.shape != found[each].shape]
    if errors:
        raise _unfit(module, errors)
    made = {each: torch.nn.Parameter(source.to(each.dtype), requires_grad=False)
            if isinstance(each, torch.nn.Parameter) else source.to(each.dtype) for each, source in found.items()}
    for _, entries, key, tensor in _tensors(module):
        entries[key] = made.get(tensor, tensor)


def _load_by_transformers(model: Any, files: Dict[str, Recorded]) -> None:
    """As from_pretrained() of transformers does, with its names, conversions, ties, buffers and report."""
    # pylint: disable=import-outside-toplevel,import-error
    try:
        from transformers import modeling_utils
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import convert_and_load_state_dict_in_model
    except ImportError:
        raise invalid("weights= of a model of transformers needs transformers 5 or newer") from None
    settings = modeling_utils.LoadStateDictConfig(
        pretrained_model_name_or_path="the files", dtype=model.dtype, dtype_plan=model._get_dtype_plan(model.dtype),
        weight_mapping=get_model_conversion_mapping(model, getattr(model, "_checkpoint_conversion_mapping", None)))
    found, _ = convert_and_load_state_dict_in_model(model, files, settings)
    # What is missing would be made in memory, so this is told before.
    adjusted = copy.copy(found)
    model._adjust_missing_and_unexpected_keys(adjusted)
    tied = {*model.all_tied_weights_keys, *model.all_tied_weights_keys.values()}
    errors = _listed("Missing", sorted(adjusted.missing_keys - tied))
    errors += [f"size mismatch for {name}: {list(there)} in the files, {list(here)} in the module"
               for name, there, here in sorted(found.mismatched_keys)]
    errors += [f"conversion of {name}: {error}" for name, error in found.conversion_errors.items()]
    if not errors:
        for each in model.modules():  # A module that was initialized would not be given its buffers again.
            each.__dict__.pop("_is_hf_initialized", None)
        type(model)._finalize_model_loading(model, settings, found)
        errors = _listed("Missing", sorted(found.missing_keys))
    if errors:
        raise _unfit(model, errors)


def _listed(what: str, names: List[str]) -> List[str]:
    """As load_state_dict() has them."""
    return [f"{what} key(s): " + ", ".join(f'"{name}"' for name in names)] if names else []


def _unfit(module: torch.nn.Module, errors: List[str]) -> Error:
    return invalid(f"the files do not fit {type(module).__name__}: " + "; ".join(errors))


def _tensors(module: torch.nn.Module) -> Iterator[Any]:
    """Modules, their dictionaries of parameters and of buffers, keys, and tensors."""
    for each in module.modules():
        for entries in (each._parameters, each._buffers):
            for key, tensor in list(entries.items()):
                if tensor is not None:
                    yield each, entries, key, tensor


def _is_transformers(module: torch.nn.Module) -> bool:
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(module, transformers.PreTrainedModel)


def _sources_of(module: torch.nn.Module, stored: Iterable[StoredTensor], convert: bool) -> Dict[str, Recorded]:
    """Loads the files without memory, and says what the module's tensors are made of; these are on the meta
    device then."""
    files = {each.name: leaf_of(each.name, None, torch_dtype(each.dtype), each.shape) for each in stored}
    (_load_by_transformers if _is_transformers(module) else _load)(module, files)
    sources = {name: each for named in (module.named_parameters(), module.named_buffers())
               for name, each in named if isinstance(each, Recorded)}
    wrong = [f"dtype mismatch for {name}: {leaf.dtype} in the files, {each.dtype} in the module" for
             name, each in sources.items() for leaf in list(leaves_of(each))[:1] if leaf.dtype != each.dtype]
    if wrong and not convert:
        raise _unfit(module, [*wrong, "make the module of that type, or give convert=True"])
    plain = {each: torch.empty(each.shape, dtype=each.dtype, device="meta") for each in sources.values()}
    plain = {each: torch.nn.Parameter(empty, requires_grad=False) if isinstance(each, torch.nn.Parameter) else empty
             for each, empty in plain.items()}
    for _, entries, key, tensor in _tensors(module):
        entries[key] = plain.get(tensor, tensor)
    return sources


def _rows_of_experts(module: torch.nn.Module, sources: Dict[str, Recorded]) -> Dict[str, List[Recorded]]:
    """The rows of each parameter of experts that can be read alone."""
    result = {}
    for prefix, each in module.named_modules():
        if not has_experts(each):
            continue
        for key, parameter in each.named_parameters(prefix, recurse=False):
            if key in sources and parameter.ndim and parameter.shape[0] == each.num_experts:
                rows = [row_of(sources[key], number) for number in range(each.num_experts)]
                if all(row is not None for row in rows):
                    result[key] = rows
    return result  # type: ignore[return-value]


# ---- The call


def offload_files(module: torch.nn.Module, paths: Paths, config: Any, initialize: Optional[Initialize],
                  device: torch.device, device_memory: int, smallest: int, convert: bool,
                  experts_memory: int) -> OffloadedFiles:
    """See :func:`nvswap.torch.offload`, of which `paths` are the `weights`."""
    files, hot = files_list(paths), HotExperts(experts_memory)
    if experts_memory and not is_host(device):
        raise invalid(f"experts_memory is for forwards on the host, and those on {device} read all experts: leave it "
                      "out, or leave out device=")
    config = config or os.environ.get("NVSWAP_CONFIG") or None
    before = [(entries, key, tensor) for _, entries, key, tensor in _tensors(module)]
    engine = None
    try:
        with Weights(files, pool_config(_POOL_OF_ONE, lambda: 1)) as weights:
            sources = _sources_of(module, weights.stored(), convert)
        experts = _rows_of_experts(module, sources)
        largest = max((sum(pool_bytes(sources[name], experts.get(name)) for name, _ in each.named_parameters(
            prefix, recurse=False) if name in sources) for prefix, each in module.named_modules()), default=0)
        # Each tensor has the rest of its first and of its last unit beside it.
        rest = 2 * _UNIT_BYTES * len(sources)
        engine = ParameterFiles(files, pool_config(config, lambda: max(_SMALLEST_POOL, 4 * largest + rest)), sources,
                                experts, hot)
        return OffloadedFiles(module, engine, initialize, device, device_memory, smallest)
    except BaseException:
        for entries, key, tensor in before:
            entries[key] = tensor
        if engine is not None:
            with contextlib.suppress(Error):
                engine.close()
        raise
