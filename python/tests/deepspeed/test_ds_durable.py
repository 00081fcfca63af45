#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files of checkpoints after a loss of power: what was synced, under the names that were synced."""

import contextlib
import errno
import glob
import os
import resource
import stat
from types import SimpleNamespace
from unittest import mock

from promises import main, promise, raises, settings

os.environ["DS_ACCELERATOR"] = "cpu"
import torch  # noqa: E402

import nvswap  # noqa: E402
from nvswap.deepspeed.checkpoint.durable import (  # noqa: E402
    REPLACING, FolderLock, check_whole, mark_replacing)
from nvswap.deepspeed.checkpoint.engine import CheckpointEngine, _locking  # noqa: E402
from nvswap.deepspeed.checkpoint.stored import EngineFile, Stored  # noqa: E402
from nvswap.durable import discard, new_directory, replace, replace_text, replacing  # noqa: E402


def contents(path):
    with open(path, "rb") as file:
        return file.read()


class Drive:
    """What a drive has for sure. A new name may become durable before it is synced, so the contents
    must be durable before the file is renamed."""

    def __init__(self):
        self._fsync, self._rename = os.fsync, os.rename
        self._synced = {}  # contents by inode
        self.names = {}  # renamed paths, and whether their directory was synced since
        self.listed = []  # the last directory that was synced

    @contextlib.contextmanager
    def watched(self):
        with mock.patch("os.fsync", self._sync), mock.patch("os.rename", self._renamed):
            yield self

    def _sync(self, descriptor):
        self._fsync(descriptor)
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self.listed = os.listdir(f"/proc/self/fd/{descriptor}")
        else:
            self._synced[status.st_ino] = contents(f"/proc/self/fd/{descriptor}")
        for path in self.names:
            self.names[path] |= os.stat(os.path.dirname(path)).st_ino == status.st_ino

    def _renamed(self, old, new):
        assert self._synced.get(os.stat(old).st_ino) == contents(old), f"{old} is not durable"
        self._rename(old, new)
        self.names[new] = False


@promise
def a_file_is_durable_before_it_has_its_name_and_the_name_when_the_call_returns(directory):
    latest, saved, pair = (os.path.join(directory, name) for name in ("latest", "saved.pt", "pair"))
    with Drive().watched() as drive:
        replace_text(latest, "step1")
        assert drive.names == {latest: True}
        replace_text(latest, "step2")
        assert drive.names == {latest: True}
        CheckpointEngine().save({"weights": torch.rand(70001)}, saved)
        assert drive.names == {latest: True, saved: True}
        with replacing(pair, rename=False) as partial, open(partial, "w", encoding="ascii") as file:
            file.write("both")
        assert pair not in drive.names
        replace(pair)
        assert drive.names == {latest: True, saved: True, pair: True}
    assert contents(latest) == b"step2" and contents(pair) == b"both"


@contextlib.contextmanager
def one_rank():
    with mock.patch("torch.distributed.get_world_size", lambda: 1), \
            mock.patch("deepspeed.comm.get_rank", lambda: 0), \
            mock.patch("torch.distributed.all_gather_object", lambda into, each: into.__setitem__(0, each)):
        yield


def save_pair(folder):
    """As a job of one rank."""
    engine = CheckpointEngine()
    engine.begin()
    engine.lock(folder)
    for name in ("model.pt", "state.pt"):
        engine.save({"weights": torch.rand(100)}, os.path.join(folder, name))
    engine.finish()


@promise
def a_tag_is_durably_marked_while_its_files_are_replaced(directory):
    folder, marked = os.path.join(directory, "step1"), []
    os.mkdir(folder)
    drive = Drive()
    with drive.watched(), one_rank():
        save_pair(folder)
        assert REPLACING not in drive.listed
        renamed = drive._rename
        drive._rename = lambda *names: (marked.append(REPLACING in drive.listed), renamed(*names))
        save_pair(folder)
    assert marked == [True, True]
    assert sorted(drive.listed) == ["model.pt", "saving", "state.pt"]  # the lock is there until end()


@promise
def a_tag_is_locked_from_the_first_file_to_the_last(directory):
    one, other = CheckpointEngine(), CheckpointEngine()
    with one_rank():
        for ended in (one.end, one.finish):
            one.begin()
            one.lock(directory)
            other.begin()
            error = raises(nvswap.Error, lambda: other.lock(directory), errno.EBUSY)
            assert f"another job saves {directory}" in str(error), error
            ended()
            other.begin()
            other.lock(directory)
            other.end()


@promise
def the_mark_of_a_tag_stays_until_files_of_the_tag_are_replaced(directory):
    folder, saver = os.path.join(directory, "step1"), CheckpointEngine()
    mark = os.path.join(folder, REPLACING)
    os.mkdir(folder)
    with open(mark, "w", encoding="utf-8"):
        pass
    with one_rank():
        for path, stays in ((os.path.join(directory, "weights.pt"), True),
                            (os.path.join(folder, "state.pt"), False)):
            saver.begin()
            saver.lock(folder)
            saver.save({}, path)
            saver.finish()
            assert os.path.exists(mark) == stays, path


@promise
def a_rank_that_cannot_save_its_model_goes_on_to_the_commit(directory):
    saver = CheckpointEngine()
    os.mkdir(os.path.join(directory, "step1"))
    save = _locking(mock.Mock(side_effect=OSError(errno.EIO, "no"), __name__="save"))
    with one_rank():
        saver.begin()
        save(SimpleNamespace(checkpoint_engine=saver), directory, "step1")
        raises(OSError, saver.finish, errno.EIO)


@promise
def a_file_system_without_locks_is_warned_of_and_saved_to(directory):
    with mock.patch("fcntl.flock", side_effect=OSError(errno.ENOLCK, "no")), \
            mock.patch("nvswap.deepspeed.checkpoint.durable.logger.warning") as warning:
        for tag in ("a", "b"):
            os.mkdir(os.path.join(directory, tag))
            lock = FolderLock(os.path.join(directory, tag))
            lock.take()
            lock.release()
    warning.assert_called_once()
    assert directory in warning.call_args[0][0]
    with mock.patch("fcntl.flock", side_effect=OSError(errno.EIO, "no")):
        raises(OSError, FolderLock(directory).take, errno.EIO)


@promise
def tensors_of_a_file_are_compared_with_their_checksums_once_within_a_load(directory):
    path, engine = os.path.join(directory, "model.pt"), CheckpointEngine()
    engine.save({"weights": torch.rand(10000)}, path)
    with engine.comparing_once():
        engine.check_whole(path)
        with open(path, "r+b") as file:
            file.seek(os.path.getsize(path) // 2)
            file.write(bytes(8))
        engine.load(path)
    raises(OSError, lambda: engine.load(path), errno.EIO)


@promise
def files_are_saved_with_checksums_and_refused_without(directory):
    path, value = os.path.join(directory, "model.pt"), {"weights": torch.rand(10)}
    torch.serialization.set_crc32_options(False)
    try:
        CheckpointEngine().save(value, path)
        assert CheckpointEngine().load(path)["weights"].equal(value["weights"])
        assert not torch.serialization.get_crc32_options()
        torch.save(value, path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert "set_crc32_options" in str(raises(nvswap.Error, lambda: CheckpointEngine().load(path), errno.EIO))


@promise
def directories_that_are_made_are_durable_in_their_parents(directory):
    listed, fsync = {}, os.fsync

    def synced(descriptor):
        fsync(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        listed[os.path.relpath(path, directory)] = os.listdir(path)

    with mock.patch("os.fsync", synced):
        CheckpointEngine().makedirs(os.path.join(directory, "saved", "runs", "a"), exist_ok=True)
        assert listed == {".": ["saved"], "saved": ["runs"], "saved/runs": ["a"]}
        CheckpointEngine().makedirs(os.path.join(directory, "saved", "runs", "b"), exist_ok=True)
        assert sorted(listed["saved/runs"]) == ["a", "b"]


@promise
def a_file_that_cannot_be_written_is_an_error_with_errno_and_path(directory):
    path, limit = os.path.join(directory, "model.pt"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, limit[1]))
    try:
        error = raises(OSError, lambda: CheckpointEngine().save({"weights": torch.rand(10000)}, path),
                       errno.EFBIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert path in error.filename
    assert not os.listdir(directory)


@promise
def state_that_has_no_room_is_an_error_that_names_the_file(directory):
    path, limit = os.path.join(directory, "state.pt"), resource.getrlimit(resource.RLIMIT_FSIZE)
    with nvswap.Engine(settings(directory)) as engine:
        engine.register("state", torch.float32, 10000)
        with engine.pinned("state", "w"):
            pass
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, limit[1]))
        try:
            error = raises(OSError, lambda: CheckpointEngine().save(
                {"state": Stored(EngineFile(engine), "state", 10000)}, path), errno.ENOSPC)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert path in str(error) and ".partial.partial" not in str(error), error
    assert not glob.glob(f"{path}*")


@promise
def state_that_contains_itself_is_saved_as_torch_saves_it(directory):
    path, state = os.path.join(directory, "model.pt"), {"weights": torch.rand(3)}
    state["itself"] = [state]
    CheckpointEngine().save(state, path)
    saved = torch.load(path, weights_only=False)
    assert saved["itself"][0] is saved and saved["weights"].equal(state["weights"])


@promise
def a_mark_that_cannot_be_made_durable_is_not_left(directory):
    with mock.patch("os.fsync", side_effect=OSError(errno.EIO, "no")):
        raises(OSError, lambda: mark_replacing(directory), errno.EIO)
    assert not os.listdir(directory)


@promise
def a_directory_that_cannot_be_replaced_stays(directory):
    zero = os.path.join(directory, "zero")
    for folder, text in ((zero, "old"), (new_directory(zero), "new")):
        os.makedirs(folder)
        replace_text(os.path.join(folder, "file"), text)
    rename = os.rename

    def fail(old, new):
        if new == zero and old == new_directory(zero):
            raise OSError(errno.EIO, "no")
        rename(old, new)

    with mock.patch("os.rename", fail), mock.patch("nvswap.durable.exchange", return_value=False):
        raises(OSError, lambda: replace(zero), errno.EIO)
        discard(zero)
    assert contents(os.path.join(zero, "file")) == b"old" and os.listdir(directory) == ["zero"]


@promise
def damage_of_any_field_of_a_file_is_an_error_that_names_it(directory):
    path = os.path.join(directory, "saved.pt")
    torch.save({"weights": torch.rand(1000)}, path)
    whole = contents(path)
    begin = whole.index(b"PK\1\2")
    for offset in (begin + 6, begin + 8, begin + 10, begin + 20, begin + 42, len(whole) // 2):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[offset] ^= 1 << bit
            with open(path, "wb") as file:
                file.write(damaged)
            try:
                check_whole(path)
            except nvswap.Error as error:
                assert error.errno == errno.EIO and path in str(error), error


@promise
def a_link_in_the_place_of_new_contents_is_not_followed(directory):
    victim, zero = os.path.join(directory, "victim"), os.path.join(directory, "zero")
    for name in ("old/kept", "new/kept"):
        os.makedirs(os.path.join(victim, name))
    os.symlink(victim, f"{zero}.partial")
    discard(zero)
    assert os.listdir(directory) == ["victim"]
    assert all(os.listdir(os.path.join(victim, name)) == ["kept"] for name in ("old", "new"))


main()
