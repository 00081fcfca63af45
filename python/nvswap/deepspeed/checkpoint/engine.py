# SPDX-License-Identifier: Apache-2.0
"""
The checkpoint engine that DeepSpeed calls where optimizer state is on NVMe: its own files and names,
each replaced as a whole, with state from the store streamed to them. `latest` is written last, when the
files of all ranks are durable, and names no tag that only some ranks have saved.
"""

from __future__ import annotations

import errno
import functools
import glob
import os
from contextlib import contextmanager, suppress
from typing import Any, Callable, Iterator, List, Optional, Set

import torch
from deepspeed import comm as dist
from deepspeed.checkpoint.constants import FP32_FLAT_GROUPS, OPTIMIZER_STATE_DICT
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum
from deepspeed.utils import logger

from nvswap.checkpoint import refuse_other_files
from nvswap.deepspeed.checkpoint import stored, writing
from nvswap.deepspeed.checkpoint.durable import (
    FolderLock, check_whole, is_zip, mark_replacing, naming, remove, unmark_replacing)
from nvswap.deepspeed.checkpoint.ranks import of_all_ranks, share_failure, together
from nvswap.deepspeed.checkpoint.zero3 import FILE, UNIVERSAL
from nvswap.deepspeed.depth import choice
from nvswap.deepspeed.releases import checkpoint_settings, swap_copy_predicate_name
from nvswap.durable import (
    discard, make_directories, new_directory, partial_of, replace, replace_text, replacing)
from nvswap.errors import Error


class CheckpointEngine(TorchCheckpointEngine):
    """
    Takes the arguments of DeepSpeed's class. From begin() to commit() files are written under
    temporary names, and a rank that can't save goes on, because the others would wait for it; commit()
    raises on all ranks, or renames all files once those of all ranks are durable. Meanwhile lock() keeps
    other jobs away, which would write to the same names.
    """

    def __init__(self, config_params: Any = None) -> None:
        super().__init__(config_params)
        self._failures: Optional[List[Exception]] = None  # since begin(), until end()
        self._written: List[str] = []  # files and directories to be renamed
        self._folder: Optional[str] = None  # of the tag, since lock()
        self._lock: Optional[FolderLock] = None  # since lock()
        self._is_first = False  # since lock(): of the ranks that see the tag's folder
        self._compared: Optional[Set[str]] = None  # files, within comparing_once()

    def begin(self) -> None:
        """Before DeepSpeed makes directories and calls create(), which does it otherwise."""
        self.end()
        self._failures = []

    def create(self, info: Any) -> None:
        """`info` was the tag before DeepSpeed 0.17.1, and is that or an object with it since."""
        if self._failures is None:
            self.begin()
        super().create(info)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        with self.collecting():
            make_directories(path)

    def lock(self, folder: str) -> None:
        """
        Keeps other jobs from saving to the tag's folder, which is there, until end(). One rank locks it
        for all that see the same one: on several nodes, or with several tags, there are several.

        Raises
        ------
        Error
            EBUSY: another job saves to it. EIO: another rank has failed.
        """
        inode, self._folder = None, folder
        with self.collecting():
            self._lock = FolderLock(folder)
            inode = self._lock.inode
        self._is_first = of_all_ranks(inode).index(inode) == dist.get_rank()
        with self.collecting():
            if self._lock is not None and self._is_first:
                self._lock.take()
        self._agree()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Keeps an exception for commit()."""
        try:
            yield
        except Exception as error:  # pylint: disable=broad-exception-caught
            if self._failures is None:
                raise
            self._failures.append(error)

    def has_failed(self) -> bool:
        """Whether this rank will have commit() raise."""
        return bool(self._failures)

    def end(self) -> None:
        """After commit(), or in its place if something else has failed."""
        self._failures = self._folder = None
        written, self._written = self._written, []
        lock, self._lock = self._lock, None
        try:
            for path in written:
                discard(path)
        finally:
            if lock is not None:
                lock.release()

    def save(self, state_dict: Any, path: str) -> None:
        """Replaces the file; between begin() and commit(), in commit()."""
        later = self._failures is not None
        with self.collecting():
            with replacing(path, rename=not later) as partial:
                if stored.has_stored(state_dict):
                    stored.save(state_dict, partial)
                else:
                    writing.save(state_dict, partial)
            if later:
                self._written.append(path)

    def add_directory(self, path: str) -> None:
        """Has commit() replace a directory by new_directory(), which is to be made."""
        discard(path)
        self._written.append(path)
        make_directories(os.path.dirname(new_directory(path)))

    @contextmanager
    def comparing_once(self) -> Iterator[None]:
        """Within the block check_whole() and load() compare a file with its CRC-32 once."""
        self._compared = set()
        try:
            yield
        finally:
            self._compared = None

    def check_whole(self, path: str) -> None:
        """durable.check_whole() of a file that has checksums."""
        compared = set() if self._compared is None else self._compared
        if is_zip(path) and path not in compared:
            check_whole(path)
            compared.add(path)

    def load(self, path: str, map_location: Any = None) -> Any:
        """Maps the file, so that tensors take memory only as they are read."""
        if not is_zip(path):
            with naming(path):  # a file of torch.save before version 1.6, which has no checksums
                return super().load(path, map_location)
        check_whole(path, data=False)
        with naming(path):
            loaded = torch.load(path, map_location=map_location or "cpu", weights_only=False, mmap=True)
        state = loaded.get(OPTIMIZER_STATE_DICT) if isinstance(loaded, dict) else None
        if isinstance(state, dict) and FP32_FLAT_GROUPS in state:
            state[FILE] = path  # its tensors are compared when they are read
        else:
            self.check_whole(path)
        return loaded

    def commit(self, info: Any) -> bool:
        """
        Waits until all ranks have saved.

        Raises
        ------
        Exception
            What this rank's save failed with.
        Error
            EIO: another rank's failed.
        """
        self.finish()
        return bool(super().commit(info))

    def finish(self) -> None:
        """Renames the files of all ranks into place, and ends the save."""
        try:
            replaced = self._rename()
            together(f"finish {self._tag_name()}", lambda: unmark_replacing(self._folder) if replaced else None)
        finally:
            self.end()

    def _tag_name(self) -> str:
        return os.path.basename(self._folder or "the file")

    def _rename(self) -> bool:
        """Renames the files of all ranks. If any replaces an older one of the tag, or has one removed, the
        tag is marked, and can't be loaded until all are in place: a crash in between leaves files of two
        saves. Returns whether any file of this rank is in the tag's folder."""
        self._agree()
        folder, marked = self._folder, False
        of_tag = [path for path in self._written if folder and path.startswith(os.path.join(folder, ""))]
        names = of_all_ranks([os.path.basename(path) for path in of_tag])
        outdated: List[str] = []
        with self.collecting():
            if folder and self._is_first:
                outdated = _outdated(folder, of_tag, set(sum(names, [])))
            if folder and (outdated or any(map(os.path.lexists, of_tag))):
                marked = mark_replacing(folder)
        try:
            self._agree()
        except Exception:
            if folder and marked:
                unmark_replacing(folder)
            raise
        with self.collecting():
            for path in self._written:
                replace(path)
            self._written = []
            for path in outdated:
                logger.warning(f"{path} is removed: it is of another step or other ranks than what "
                               f"{folder} has now")
                remove(path)
        self._agree()
        return bool(of_tag)

    def _agree(self) -> None:
        """Raises on all ranks what one has failed with."""
        failed = share_failure(self._failures[0] if self._failures else None)
        if failed is not None:
            rank, text = failed
            raise Error(errno.EIO, f"rank {rank} could not save its part of {self._tag_name()}: {text}")


def _outdated(folder: str, written: List[str], names: Set[str]) -> List[str]:
    """Files of the tag that must not be loaded with the new ones: those of ranks that are gone or of
    another dtype, and ordinary or universal state of another step. `written` are the new files of this
    rank, not renamed yet; `names` are the base names of all ranks' new files."""
    def left(pattern: str) -> List[str]:
        found = glob.glob(os.path.join(glob.escape(folder), pattern))
        return [path for path in found if os.path.basename(path) not in names]

    models, states = map(left, ("*zero_pp_rank_*_model_states.pt", "*zero_pp_rank_*_optim_states.pt"))
    zero = os.path.join(folder, UNIVERSAL)
    if UNIVERSAL in names:
        return models + ([] if _agrees(written, *_PLACE, "dp_world_size") else states)
    if not os.path.isdir(zero) or _agrees(written, *_PLACE):
        return models + states
    refuse_other_files(zero)
    return [*models, *states, zero]


# Where in the training a file of model states was saved.
_PLACE = ("global_steps", "global_samples", "skipped_steps")


def _agrees(written: List[str], *keys: str) -> bool:
    """Whether model states that are to be replaced have the same values as the new ones. Damaged ones
    have not."""
    def values(path: str) -> List[Any]:
        with naming(path):
            state = torch.load(path, map_location="cpu", weights_only=False, mmap=True)
            return [state.get(key) for key in keys]

    def agrees(path: str) -> bool:
        new = values(partial_of(path))
        with suppress(Error):
            return values(path) == new
        return False

    return all(agrees(path) for path in written
               if path.endswith("_model_states.pt") and os.path.exists(path))


def refuse_what_is_set(config: Any) -> None:
    """
    Raises
    ------
    Error
        ENOTSUP: a key of a DeepSpeedConfig would have no effect on optimizer state in a store.
    """
    block, datastates = checkpoint_settings(config)
    refused = {"checkpoint.writer": block.get("writer") is not None,
               "checkpoint.checkpoint_serialization": not block.get("checkpoint_serialization", True),
               "datastates_ckpt": datastates is not None and datastates.enabled}
    for key, is_set in refused.items():
        if is_set:
            raise Error(errno.ENOTSUP, f"{key}: optimizer state in a store is written by nvswap, to "
                        'torch.save\'s zip files: leave it out, or use "nvswap": {"deepspeed": "ops"}',
                        key)
    if config.checkpoint_parallel_write_pipeline:
        key = "checkpoint.parallel_write.pipeline_stage"
        raise Error(errno.ENOTSUP, f"{key}: DeepSpeed has no pipeline stages with ZeRO-3, where each "
                    "rank writes its own files, all ranks at once: leave it out", key)


def watch_saves() -> None:
    """Has each DeepSpeedEngine with this checkpoint engine write `latest` whole, and save and load
    state as if it were in memory; calling it again changes nothing."""
    from deepspeed.runtime.engine import DeepSpeedEngine

    if hasattr(DeepSpeedEngine.save_checkpoint, "nvswap_watches"):
        return
    save, save_state = DeepSpeedEngine.save_checkpoint, DeepSpeedEngine._save_zero_checkpoint
    configure, copies = DeepSpeedEngine._configure_checkpointing, getattr(DeepSpeedEngine, swap_copy_predicate_name())

    @functools.wraps(configure)
    def configured(self: Any, *args: Any) -> None:
        offload = self._config.zero_config.offload_optimizer
        ours = choice().depth != "ops" and offload is not None and offload.device == OffloadDeviceEnum.nvme
        if ours:
            refuse_what_is_set(self._config)
            # Ranks that wait for their turn would not hear of one that fails; state is streamed to the store, so
            # they need no memory for all of it at once.
            self._config.zero_config.pipeline_loading_checkpoint = False
        configure(self, *args)
        if ours:
            self.checkpoint_engine = CheckpointEngine()

    @functools.wraps(save)
    def saved(self: Any, save_dir: str, tag: Any = None, client_state: Any = None,
              save_latest: bool = True, *args: Any, **kwargs: Any) -> Any:
        ours = isinstance(self.checkpoint_engine, CheckpointEngine)
        if ours:
            name = checked_tag(self, save_dir, tag, "latest" if save_latest else None)
            warn_of_window(self)
            self.checkpoint_engine.begin()
        try:
            result = save(self, save_dir, tag, client_state or {}, save_latest and not ours, *args,
                          **kwargs)
        finally:
            if ours:
                self.checkpoint_engine.end()
        if ours and save_latest:
            _name_latest(self, save_dir, name)
        return result

    @functools.wraps(save_state)
    def saved_state(self: Any, *args: Any) -> None:
        if not isinstance(self.checkpoint_engine, CheckpointEngine):
            return save_state(self, *args)
        with self.checkpoint_engine.collecting():
            save_state(self, *args)
        return None

    saved.nvswap_watches = True  # type: ignore[attr-defined]
    for name in ("_save_checkpoint", "_save_moe_checkpoint"):
        setattr(DeepSpeedEngine, name, _locking(getattr(DeepSpeedEngine, name)))
    DeepSpeedEngine._save_zero_checkpoint = saved_state
    DeepSpeedEngine.save_checkpoint = saved
    DeepSpeedEngine._configure_checkpointing = configured
    setattr(DeepSpeedEngine, swap_copy_predicate_name(), lambda self: copies(self) and
            not isinstance(self.checkpoint_engine, CheckpointEngine))


def _locking(save_model: Any) -> Any:
    """A method that saves the states of a model, to a tag's folder that is locked."""
    @functools.wraps(save_model)
    def saved(self: Any, save_dir: str, tag: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(self.checkpoint_engine, CheckpointEngine):
            save_model(self, save_dir, tag, *args, **kwargs)
            return
        self.checkpoint_engine.lock(os.path.join(save_dir, tag))
        with self.checkpoint_engine.collecting():
            save_model(self, save_dir, tag, *args, **kwargs)

    return saved


def is_amid_window(engine: Any) -> bool:
    """Whether there are gradients that no step has taken. A loop that sets the boundary itself, as
    accelerate's does, calls step() there alone, so that DeepSpeed's count is not one of micro batches. Of such a
    loop the first window counts from the time that it is announced, and each until its last backward."""
    boundary = engine._is_gradient_accumulation_boundary
    if boundary is not None:
        return not boundary
    return bool(engine.micro_steps % engine.gradient_accumulation_steps())


def warn_of_window(engine: Any) -> None:
    """No checkpoint has gradients. After a load DeepSpeed counts micro batches from 0, but steps on."""
    if is_amid_window(engine) and engine.global_rank == 0:
        begin = engine.global_steps * engine.gradient_accumulation_steps()
        logger.warning("saving amid gradient accumulation: the gradients of the micro batches since the last "
                       f"step are not saved, so go on with micro batch {begin}, from 0")


def checked_tag(engine: Any, save_dir: str, tag: Any, latest: Optional[str]) -> str:
    """
    The name of a checkpoint that is to be saved as `tag`, as DeepSpeed has it. All ranks call it.

    Raises
    ------
    Error
        EINVAL: no file can name it for a load, or it is no folder below `save_dir`. EISDIR: the file
        that is to name it, `latest`, is a directory. EIO: another rank has failed.
    """
    name = f"global_step{engine.global_steps}" if tag is None else str(tag)

    def check() -> None:
        if not name or not name.isprintable() or name != name.strip():
            raise Error(errno.EINVAL, f"the tag {name!r} could not be loaded through `latest`: choose one of "
                        "printable characters, without spaces around it")
        if os.path.isabs(name) or os.path.normpath(name).split(os.sep)[0] in (os.curdir, os.pardir):
            raise Error(errno.EINVAL, f"the tag {name!r} names no folder below {save_dir}: choose one that does")
        if latest is not None and os.path.isdir(os.path.join(save_dir, latest)):
            raise Error(errno.EISDIR, f"{os.path.join(save_dir, latest)} is a directory, and is to be the file "
                        "that names the tag: move it away", path=os.path.join(save_dir, latest))

    together(f"save {name!r}", check)
    return name


def _name_latest(engine: Any, save_dir: str, tag: str) -> None:
    """Has `latest` name a tag that all ranks have saved: with use_node_local_storage on each node."""
    path, tags = os.path.join(save_dir, "latest"), set(of_all_ranks(tag))
    if len(tags) > 1:
        if engine.global_rank == 0:
            logger.warning(f"{path} is not replaced: the ranks have saved under {len(tags)} tags, such "
                           f"as '{tag}', and none has the files of all ranks. Load each rank's tag")
        return
    name_tag(path, tag, lambda: engine.global_rank == 0)
    # Nodes that share the directory find it there: no two ranks replace one file at once.
    name_tag(path, tag, lambda: engine.use_node_local_storage() and engine.local_rank == 0 and
             not _has_text(path, tag))


def name_tag(path: str, tag: str, on_this_rank: Callable[[], bool]) -> None:
    """Makes the tag the contents of a file. Raises on all ranks if one can't write it."""
    def write() -> None:
        if on_this_rank():
            replace_text(path, tag)

    together(f"replace {path}", write)


def _has_text(path: str, text: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read() == text.encode()
    except FileNotFoundError:
        return False
