# SPDX-License-Identifier: Apache-2.0
"""
Loads of checkpoints that fail on all ranks if they fail on one, naming the file. DeepSpeed's loader
fails on the one rank, and the others wait for it in their next collective or go on without it.
"""

from __future__ import annotations

import errno
import functools
import glob
import inspect
import os
from contextlib import contextmanager, suppress
from itertools import zip_longest
from typing import Any, Iterator, List, Optional, Tuple

from deepspeed import comm as dist
from deepspeed.checkpoint.constants import (
    FP32_FLAT_GROUPS, FROZEN_PARAM_SHAPES, OPTIMIZER_STATE_DICT, PARAM_SHAPES)
from deepspeed.runtime import engine as runtime
from deepspeed.utils import zero_to_fp32

from nvswap.deepspeed.checkpoint.durable import check_replaced, check_whole
from nvswap.deepspeed.checkpoint.engine import CheckpointEngine, is_amid_window
from nvswap.deepspeed.checkpoint.ranks import of_all_ranks, together
from nvswap.deepspeed.checkpoint.zero3 import UNIVERSAL, check_in_file
from nvswap.deepspeed.releases import model_parallel_rank, model_states
from nvswap.errors import Error

# Tags that an error names.
_SHOWN = 5

# For a checkpoint whose state this job can't load.
_BY_NAME = "load the weights alone (load_optimizer_states=False), or convert the checkpoint to a " \
    "universal one"


def watch_loads() -> None:
    """Makes load_checkpoint of each DeepSpeedEngine with our checkpoint engine raise on all ranks if it
    fails on one; what was loaded before stays. Calling it again changes nothing."""
    from deepspeed.runtime.engine import DeepSpeedEngine

    load, names = DeepSpeedEngine.load_checkpoint, DeepSpeedEngine._get_all_ckpt_names
    if hasattr(load, "nvswap_watches"):
        return

    @functools.wraps(load)
    def loaded(self: Any, load_dir: str, tag: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self.checkpoint_engine, CheckpointEngine):
            return load(self, load_dir, tag, *args, **kwargs)
        if is_amid_window(self):
            raise Error(errno.EBUSY, "load_checkpoint amid gradient accumulation: the gradients of the "
                        "micro batches before would go into the first step after it: call it after a "
                        "step, or of a new engine")
        tag = None if tag is None else str(tag)  # as it was saved
        given = inspect.signature(load).bind(self, load_dir, tag, *args, **kwargs)
        states = not given.arguments.get("load_module_only") and \
            given.arguments.get("load_optimizer_states", True)
        strict = given.arguments.get("load_module_strict", True)
        # Else DeepSpeed loads no weights with load_module_only.
        given.arguments["load_optimizer_states"] = states
        wanted = _tag_of_latest(self, load_dir) if tag is None else tag
        with self.checkpoint_engine.comparing_once(), _weights_of(self, wanted):
            if wanted is not None:
                together(f"load {wanted}", lambda: _check_files(self, load_dir, wanted, states, strict))
            return load(*given.args, **given.kwargs)

    @functools.wraps(names)
    def escaped(self: Any, load_dir: str, tag: Any) -> Any:
        """DeepSpeed takes folder and tag for patterns."""
        return names(self, glob.escape(load_dir), glob.escape(str(tag)))

    loaded.nvswap_watches = True  # type: ignore[attr-defined]
    DeepSpeedEngine.load_checkpoint = loaded
    DeepSpeedEngine._get_all_ckpt_names = escaped
    find = zero_to_fp32.get_checkpoint_files
    zero_to_fp32.get_checkpoint_files = lambda folder, pattern: find(glob.escape(folder), pattern)
    for name in ("_load_checkpoint", "_load_zero_checkpoint"):
        setattr(DeepSpeedEngine, name, _on_all_ranks(getattr(DeepSpeedEngine, name)))


@contextmanager
def _weights_of(engine: Any, tag: Optional[str]) -> Iterator[None]:
    """Without optimizer states DeepSpeed loads the weights of the tag that `latest` names: has it load
    those of `tag`. With a universal checkpoint it has no use for what it reads there."""
    read = runtime.get_fp32_state_dict_from_zero_checkpoint
    runtime.get_fp32_state_dict_from_zero_checkpoint = (lambda load_dir: None) \
        if engine.load_universal_checkpoint() else functools.partial(read, tag=tag)
    try:
        yield
    finally:
        runtime.get_fp32_state_dict_from_zero_checkpoint = read


def _on_all_ranks(load_part: Any) -> Any:
    """A method that loads a part of a checkpoint, and raises on all ranks."""
    @functools.wraps(load_part)
    def loaded(self: Any, load_dir: str, tag: Any, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(load_part, self, load_dir, tag, *args, **kwargs)
        ours = isinstance(self.checkpoint_engine, CheckpointEngine)
        return together(f"load {tag}", call) if ours else call()

    return loaded


def _tag_of_latest(engine: Any, load_dir: str) -> Optional[str]:
    """None: there is none, on any rank. Raises on all ranks if they find different ones."""
    path = os.path.join(load_dir,
                        "latest_universal" if engine.load_universal_checkpoint() else "latest")
    tag = together(f"read {path}", lambda: _text_of(path))
    found = of_all_ranks((path, tag))
    for rank, (where, other) in enumerate(found):
        if other != found[0][1]:
            raise Error(errno.ESTALE, f"the ranks find different checkpoints: rank 0 '{found[0][1]}' in "
                        f"{found[0][0]}, rank {rank} '{other}' in {where}: name the tag to load",
                        path=where)
    return tag


def _text_of(path: str) -> Optional[str]:
    """None if there is no such file."""
    if not os.path.isfile(path):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            tag = file.read().strip()
    except UnicodeDecodeError as error:
        raise Error(errno.EINVAL, f"{path} is damaged: {error}: name the tag to load",
                    path=path) from error
    if not tag.isprintable() or not tag:
        raise Error(errno.EINVAL, f"{path} is damaged: it has no tag: name the tag to load", path=path)
    return tag


def _check_files(engine: Any, load_dir: str, tag: str, with_state: bool, strict: bool) -> None:
    """Raises unless this rank's files are there and of one save. With `with_state` those of optimizer
    state are compared with their CRC-32 when they are read. Without it DeepSpeed reads the weights of
    all ranks on each: this rank compares its share of the files."""
    folder, universal = os.path.join(load_dir, tag), engine.load_universal_checkpoint()
    if not os.path.isdir(folder):
        _fail_no_tag(load_dir, tag)
    check_replaced(folder)
    states = _state_files(folder)
    if not (universal or states) and os.path.isdir(os.path.join(folder, UNIVERSAL)):
        raise Error(errno.ESTALE, f'{folder} is a universal checkpoint: load it with "checkpoint": '
                    '{"load_universal": true}', "checkpoint.load_universal", path=folder)
    found = engine._get_all_ckpt_names(load_dir, tag)
    if not found:
        _fail_missing(model_states(engine, folder, 0) if universal else engine._get_ckpt_name(load_dir, tag))
    for path in found:
        engine.checkpoint_engine.check_whole(path)
    if universal:
        _check_universal(engine, found[0], with_state, strict)
        return
    if not with_state:
        _check_states_of_all(engine, found[0], states)
        for path in states[dist.get_rank()::dist.get_world_size()]:
            check_whole(path)
            state = engine.checkpoint_engine.load(path)[OPTIMIZER_STATE_DICT]
            check_in_file(path, state.get(FP32_FLAT_GROUPS, []))
        return
    path = engine._get_zero_ckpt_name(load_dir, tag)
    # DeepSpeed takes an old name too.
    names = (path, path.replace("_optim_states.pt", "optim_states.pt"))
    if not any(map(os.path.exists, names)):
        _check_type(engine, load_dir, tag)
        _fail_missing(path)
    check_parameters(engine, engine._get_ckpt_name(load_dir, tag))


def _state_files(folder: str) -> List[str]:
    return sorted(glob.glob(os.path.join(glob.escape(folder), "*optim_states.pt")))


def _check_states_of_all(engine: Any, model: str, states: List[str]) -> None:
    """Raises unless there is a file of state of each rank that saved this one of model states."""
    bf16 = any(os.path.basename(path).startswith("bf16_") for path in states)
    for rank in range(engine.checkpoint_engine.load(model).get("dp_world_size", 0)):
        path = engine._get_rank_zero_ckpt_name(os.path.dirname(model), "", model_parallel_rank(engine), rank,
                                               bf16_mode=bf16)
        if not os.path.exists(path):
            _fail_missing(path)


def _fail_no_tag(load_dir: str, tag: str) -> None:
    there = sorted(entry.name for entry in os.scandir(load_dir) if entry.is_dir()) \
        if os.path.isdir(load_dir) else []
    naming = []
    for name in ("latest", "latest_universal"):
        with suppress(Error):  # it is damaged
            naming += [name] if _text_of(os.path.join(load_dir, name)) == tag else []
    named = f", though {' and '.join(naming)} there names it" if naming else ""
    more = ", ..." if len(there) > _SHOWN else ""
    raise Error(errno.ENOENT, f"there is no tag {tag} in {load_dir}{named}; it has "
                f"{', '.join(there[:_SHOWN]) or 'none'}{more}", path=os.path.join(load_dir, tag))


def _check_type(engine: Any, load_dir: str, tag: str) -> None:
    """Raises if the missing file of state is there as a job of another type names it."""
    bf16 = engine.bfloat16_enabled()
    path = engine._get_rank_zero_ckpt_name(load_dir, tag, model_parallel_rank(engine), dist.get_rank(
        group=engine.optimizer.dp_process_group), bf16_mode=not bf16)
    if os.path.exists(path):
        saved, own = ("without", "true") if bf16 else ("with", "false")
        raise Error(errno.ESTALE, f'{path} was saved {saved} "bf16", which is {own} in this job. Set it as '
                    f"it was, or {_BY_NAME}", path=path)


def check_parameters(engine: Any, path: str) -> None:
    """State has no names: raises unless this file of model states has the job's parameters in the same
    order. A name that the job lacks is that of a renamed parameter."""
    own = _listed(engine._get_zero_param_shapes())
    saved = _listed(engine.checkpoint_engine.load(path).get(PARAM_SHAPES) or [])
    names = {name for name, _ in own}
    for mine, other in zip_longest(own, saved) if saved else ():
        renamed = mine and other and other[0] not in names and mine[1] == other[1]
        if mine != other and not renamed:
            raise Error(errno.ESTALE, f"{path} has {_described(other)} where this job has "
                        f"{_described(mine)}: its state is in the order of its parameters and parameter "
                        f"groups. Have the job's in the same order, or {_BY_NAME}",
                        tensor=(mine or other)[0], path=path)


def _listed(groups: Any) -> List[Tuple[str, Tuple[int, ...]]]:
    """Names and shapes of all parameters; old releases of DeepSpeed saved one group."""
    return [(name, tuple(shape)) for shapes in (groups if isinstance(groups, list) else [groups])
            for name, shape in shapes.items()]


def _described(parameter: Optional[Tuple[str, Tuple[int, ...]]]) -> str:
    return f"{parameter[0]} of shape {parameter[1]}" if parameter else "no further parameter"


def _check_universal(engine: Any, model: str, with_state: bool, strict: bool) -> None:
    """Raises unless there is what the optimizer is to load beside this file of model states."""
    folder = os.path.dirname(model)
    path = os.path.join(folder, UNIVERSAL, "optimizer_state.pt")
    if not os.path.exists(path):
        raise Error(errno.ENOENT, f'{path} is missing: {folder} is no universal checkpoint: load it without '
                    '"load_universal"', path=path)
    frozen = engine.checkpoint_engine.load(model).get(FROZEN_PARAM_SHAPES) or {}
    for name, _ in _listed(engine._get_zero_param_shapes()):
        if os.path.isdir(os.path.join(folder, UNIVERSAL, name)):
            continue
        if name in frozen and with_state:
            raise Error(errno.ESTALE, f"{name} was frozen when {folder} was saved, so there are no moments "
                        "of it: load the weights alone (load_optimizer_states=False)", tensor=name, path=folder)
        if name not in frozen and (with_state or strict):
            raise Error(errno.ENOENT, f"{folder} has no weights of {name}: it is new, or was frozen and "
                        "excluded when the checkpoint was saved. With load_optimizer_states=False and "
                        "load_module_strict=False it keeps the weights that it has", tensor=name, path=folder)


def _fail_missing(path: str) -> None:
    folder = os.path.dirname(path)
    other = os.path.join(folder, "mp_rank_00_model_states.pt")
    if os.path.exists(other):
        raise Error(errno.ESTALE, f"{other} was saved with another ZeRO stage than 3, which loads its own "
                    "checkpoints alone: go on with that stage, or load the weights before "
                    f"deepspeed.initialize: zero_to_fp32.py in {os.path.dirname(folder)} converts them, and "
                    "those of stage 0 are in the file", path=other)
    raise Error(errno.ENOENT, f"{path} is missing: the checkpoint is not complete, or fewer ranks "
                "saved it than load it", path=path)
