# SPDX-License-Identifier: Apache-2.0
"""
Loads of checkpoints that fail on all ranks if they fail on one, naming the file. DeepSpeed's loader
fails on the one rank, and the others wait for it in their next collective or go on without it.
"""

from __future__ import annotations

import errno
import functools
import inspect
import os
from typing import Any, List, Optional

from deepspeed import comm as dist

from nvswap.deepspeed.checkpoint.durable import check_replaced, check_whole, is_zip
from nvswap.deepspeed.checkpoint.engine import CheckpointEngine
from nvswap.deepspeed.checkpoint.ranks import together
from nvswap.errors import Error


def watch_loads() -> None:
    """Has each DeepSpeedEngine with our checkpoint engine load on all ranks or on none; calling it
    again changes nothing."""
    from deepspeed.runtime.engine import DeepSpeedEngine

    load = DeepSpeedEngine.load_checkpoint
    if hasattr(load, "nvswap_watches"):
        return

    @functools.wraps(load)
    def loaded(self: Any, load_dir: str, tag: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.checkpoint_engine, CheckpointEngine):
            given = inspect.signature(load).bind(self, load_dir, tag, *args, **kwargs).arguments
            wanted = _tag_of_latest(self, load_dir) if tag is None else str(tag)
            if wanted is not None:
                together(f"load {wanted}", lambda: _check_files(
                    self, load_dir, wanted, with_state=not given.get("load_module_only")))
        return load(self, load_dir, tag, *args, **kwargs)

    loaded.nvswap_watches = True  # type: ignore[attr-defined]
    DeepSpeedEngine.load_checkpoint = loaded
    for name in ("_load_checkpoint", "_load_zero_checkpoint"):
        setattr(DeepSpeedEngine, name, _on_all_ranks(getattr(DeepSpeedEngine, name)))


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
    tag = None
    if os.path.isfile(path):
        with open(path, encoding="utf-8") as file:
            tag = file.read().strip()
    found: List[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (path, tag))
    for rank, (where, other) in enumerate(found):
        if other != found[0][1]:
            raise Error(errno.ESTALE, f"the ranks find different checkpoints: rank 0 '{found[0][1]}' in "
                        f"{found[0][0]}, rank {rank} '{other}' in {where}: name the tag to load",
                        path=where)
    return tag


def _check_files(engine: Any, load_dir: str, tag: str, with_state: bool) -> None:
    """Whether this rank's files are there and of one save; those of optimizer state are read later."""
    check_replaced(os.path.join(load_dir, tag))
    universal = engine.load_universal_checkpoint()
    found = engine._get_all_ckpt_names(load_dir, tag)
    if not found:
        _fail_missing(engine._get_ckpt_name(load_dir, tag, pp_placeholder="0" if universal else None))
    for path in filter(is_zip, found):
        check_whole(path)
    path = engine._get_zero_ckpt_name(load_dir, tag)
    # DeepSpeed takes an old name too.
    names = (path, path.replace("_optim_states.pt", "optim_states.pt"))
    if with_state and not universal and not any(map(os.path.exists, names)):
        _fail_missing(path)


def _fail_missing(path: str) -> None:
    raise Error(errno.ENOENT, f"{path} is missing: the checkpoint is not complete, or fewer ranks "
                "saved it than load it", path=path)
