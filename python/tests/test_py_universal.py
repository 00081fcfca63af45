#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""State of parameters to universal checkpoints and back, by one rank and by several."""

import builtins
import contextlib
import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import zipfile
from unittest import mock

import numpy

from promises import Skip, main, promise, raises, settings
import nvswap
from nvswap.checkpoint import Parameter, export_universal, import_universal
from nvswap import durable
from nvswap.durable import reserve
from nvswap.torch_file import saved_value

# The groups end with elements of no parameter: padding.
GROUPS = {"first": 20100, "second": 60011}
PARAMETERS = [Parameter("embed.weight", "first", 0, 19800, 0, (200, 99)), Parameter("embed.bias", "first", 19950, 111),
              Parameter("blocks.0.weight", "second", 0, 59000), Parameter("blocks.0.norm", "second", 59001, 1003),
              Parameter("head", "second", 7, 0, 0, (0, 5))]
PARTS = ("master", "exp_avg", "exp_avg_sq")


def opened(directory, groups=None, **more):
    """An optimizer whose tiles cut parameters."""
    config = settings(tempfile.mkdtemp(dir=directory))
    config["optimizer"]["type"] = more.pop("type", "AdamW")
    groups = groups or [nvswap.Group(name, None, numel, "F32") for name, numel in GROUPS.items()]
    return nvswap.Optimizer(config, groups, **more)


def fill(optimizer, seed):
    """Sets random state of so many steps."""
    generator = numpy.random.default_rng(seed)
    for number, group in enumerate(optimizer.groups):
        for part in PARTS:
            optimizer.set_state(number, part, generator.random(group.numel, numpy.float32))
    optimizer.step_count = seed


def state_of(optimizer, parameters=None):
    return {(each.name, part): optimizer.get_state(each.group, part, each.offset, each.numel)
            for each in parameters or PARAMETERS for part in PARTS}


def same(one, other):
    return one.keys() == other.keys() and all(numpy.array_equal(one[key], other[key]) for key in one)


@contextlib.contextmanager
def exported(directory, step=3, above=None):
    """An optimizer and its checkpoint."""
    path = os.path.join(above or directory, "tag")
    with opened(directory) as optimizer:
        fill(optimizer, step)
        export_universal(optimizer, path, PARAMETERS)
        yield optimizer, path


def in_memory():
    """A directory for files whose fsync is to take no time."""
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


def assert_is(path, state, step):
    """The checkpoint is whole, and nothing is beside it."""
    with opened(os.path.dirname(path)) as reader:
        import_universal(reader, path, PARAMETERS)
        assert reader.step_count == step and same(state_of(reader), state)
    assert os.listdir(path) == ["zero"]


@promise
def what_is_exported_is_imported(directory):
    with exported(directory, 4) as (optimizer, path):
        export_universal(optimizer, path + "/", iter(PARAMETERS))
        with open(os.path.join(directory, "latest_universal"), encoding="ascii") as file:
            assert file.read() == "tag"
        for folder, _, names in os.walk(path):
            assert os.stat(folder).st_mode & 0o777 == 0o700
            assert all(os.stat(os.path.join(folder, name)).st_mode & 0o777 == 0o600 for name in names)
        assert_is(path, state_of(optimizer), 4)
        import_universal(optimizer, path, PARAMETERS)
        assert all(not optimizer.get_state("first", part, 19800, 150).any() for part in PARTS)
        for name in ("embed.weight/fp32.pt", "head/exp_avg.pt", "optimizer_state.pt"):
            with zipfile.ZipFile(os.path.join(path, "zero", name)) as archive:
                assert archive.testzip() is None
        export_universal(optimizer, os.fsencode(directory) + b"/\xff", PARAMETERS)
        with open(os.path.join(directory, "latest_universal"), "rb") as file:
            assert file.read() == b"\xff"
        export_universal(optimizer, path, PARAMETERS, optimizer_state=b"own")
        with open(os.path.join(path, "zero/optimizer_state.pt"), "rb") as file:
            assert file.read() == b"own"


@promise
def a_store_becomes_a_universal_checkpoint_of_its_groups_and_comes_back(directory):
    config, path = settings(directory, keep=True), os.path.join(directory, "all")
    with nvswap.Optimizer(config, [nvswap.Group(name, None, numel) for name, numel in GROUPS.items()]) as optimizer:
        fill(optimizer, 5)
    with nvswap.Optimizer(config) as optimizer:
        export_universal(optimizer, path)
        wanted = state_of(optimizer)
        assert sorted(os.listdir(os.path.join(path, "zero"))) == ["first", "optimizer_state.pt", "second"]
        fill(optimizer, 6)
        import_universal(optimizer, path)
    with nvswap.Optimizer(config) as optimizer:
        assert optimizer.step_count == 5 and same(state_of(optimizer), wanted)


@promise
def a_universal_checkpoint_has_the_states_of_the_rule(directory):
    for kind, part, file in (("Adagrad", "sum", "exp_avg_sq"), ("SGD", "momentum_buffer", "momentum_buffer"),
                             ("Lion", "exp_avg", "exp_avg")):
        path = os.path.join(directory, kind)
        with opened(directory, type=kind) as optimizer:
            values = numpy.random.default_rng(1).random(GROUPS["second"], numpy.float32)
            optimizer.set_state("second", part, values)
            export_universal(optimizer, path)
            assert sorted(os.listdir(os.path.join(path, "zero/second"))) == sorted(["fp32.pt", f"{file}.pt"])
            optimizer.set_state("second", part, values + 1)
            import_universal(optimizer, path)
            assert numpy.array_equal(optimizer.get_state("second", part), values)
        with opened(directory) as other:
            error = raises(nvswap.Error, lambda path=path: import_universal(other, path), errno.ENOENT)
            assert "exp_avg" in str(error), error


@promise
def state_in_fewer_bytes_is_exported_as_float32_and_imported_into_any_format(directory):
    groups = [nvswap.Group(name, None, numel, "BF16") for name, numel in GROUPS.items()]
    for kind in ("split", "bf16", "8bit"):
        one, again = (os.path.join(directory, kind + name) for name in ("one", "again"))
        with opened(directory, groups, state=kind) as packed, opened(directory, groups) as whole, \
                opened(directory, groups, state=kind) as back:
            fill(packed, 4)
            export_universal(packed, one)
            assert os.stat(os.path.join(one, "zero/second/exp_avg.pt")).st_size >= 4 * GROUPS["second"]
            import_universal(whole, one)
            assert same(state_of(whole), state_of(packed))
            export_universal(whole, again)
            import_universal(back, again)
            assert back.step_count == 4 and same(state_of(back), state_of(packed))


@promise
def an_import_and_an_export_that_a_step_changes_meanwhile_are_told(directory):
    with exported(directory) as (optimizer, path):
        before = state_of(optimizer)
        for call in (import_universal, export_universal):
            info, counts = optimizer.info, iter((3, 4))
            with mock.patch.object(optimizer, "info", lambda info=info, counts=counts: dict(info(), step=next(counts))):
                error = raises(nvswap.Error, lambda call=call: call(optimizer, path, PARAMETERS), errno.EBUSY)
            assert "took a step" in str(error), error
        assert_is(path, before, 3)


@promise
def a_file_that_is_written_to_or_cut_off_during_an_import_is_told(directory):
    with exported(directory) as (optimizer, path):
        file = os.path.join(path, "zero/blocks.0.weight/exp_avg.pt")
        for change, code in ((lambda: os.utime(file, ns=(0, 1)), errno.ESTALE),
                             (lambda: os.truncate(file, 9000), errno.ENODATA), (lambda: os.unlink(file), errno.ESTALE)):
            export_universal(optimizer, path, PARAMETERS)
            imports = optimizer.import_state

            def run(function, change=change, imports=imports):
                change()
                imports(function)

            same_file = mock.patch("os.fstat", lambda _: os.stat(directory)) if code == errno.ENODATA else \
                contextlib.nullcontext()
            with mock.patch.object(optimizer, "import_state", run), same_file:
                error = raises(nvswap.Error, lambda: import_universal(optimizer, path, PARAMETERS), code)
            assert error.path == file, error


# ---- Several ranks


class Meeting:
    """Ranks in threads. One that waits for another whose export has returned gets an exception."""

    def __init__(self, world, failing=None):
        self.world, self.failing, self.rounds = world, failing, [{} for _ in range(9)]
        self.calls, self.has_left, self._changed = [0] * world, False, threading.Condition()

    def gather(self, rank, own):
        with self._changed:
            parts = self.rounds[self.calls[rank]]
            self.calls[rank] += 1
            if (rank, self.calls[rank]) == self.failing:
                raise KeyError("gather")
            parts[rank] = own
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(parts) == self.world or self.has_left)
            if len(parts) < self.world:
                raise BrokenPipeError("another rank has left")
            return [parts[each] for each in range(self.world)]

    def run(self, call):
        """The exception of each rank, or None."""
        failures = [None] * self.world

        def one(rank):
            try:
                call(rank, lambda own: self.gather(rank, own))
            except BaseException as error:
                failures[rank] = error
            with self._changed:
                self.has_left = True
                self._changed.notify_all()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return failures


def cut(rank, world):
    """Each rank has ceil(numel / world) elements of each parameter, side by side in one group."""
    parameters, offset = [], 0
    for each in PARAMETERS:
        most = -(-each.numel // world)
        first = min(rank * most, each.numel)
        parameters.append(Parameter(each.name, 0, offset, min(most, each.numel - first), first,
                                    each.shape or (each.numel,)))
        offset += most
    return parameters, [nvswap.Group("all", None, offset, "F32")]


@contextlib.contextmanager
def ranks_of(directory, world, path=None):
    """Optimizers of ranks with their parameters; with the state of a checkpoint."""
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(world):
            parameters, groups = cut(rank, world)
            ranks.append((stack.enter_context(opened(directory, groups)), parameters))
            if path:
                import_universal(*ranks[-1][:1], path, parameters)
        yield ranks


def export_by(ranks, path, meeting=None, numbers=None):
    def call(rank, gather):
        number, world = (numbers or {}).get(rank, (rank, len(ranks)))
        export_universal(ranks[rank][0], path, ranks[rank][1], rank=number, world=world, gather=gather)

    return (meeting or Meeting(len(ranks))).run(call)


@promise
def ranks_cut_and_join_parameters(directory):
    with exported(directory) as (optimizer, path):
        for world in (1, 2, 3, 4):
            with ranks_of(directory, world, path) as ranks:
                several = os.path.join(directory, "several")
                failures = export_by(ranks, several)
                assert failures == [None] * world, failures
                assert_is(several, state_of(optimizer), 3)


@promise
def a_rank_that_fails_in_any_exchange_ends_the_export_of_all_and_the_checkpoint_stays(directory):
    with exported(directory) as (optimizer, path):
        before = state_of(optimizer)
        with ranks_of(directory, 3, path) as ranks:
            for rank, name, text in ((0, "_make_files", "first"), (2, "_Placed", "first"), (1, "_write_elements", "second"),
                                     (0, "_complete_files", "third"), (0, "replace", "last")):
                with failing_in(name, rank, ranks):
                    failures = export_by(ranks, path)
                for each, failure in enumerate(failures):
                    assert failure.errno == (errno.EIO if each == rank else errno.ECANCELED), (text, failure)
                    assert each == rank or f"rank {rank} has failed" in str(failure), failure
                assert_is(path, before, 3)
            for number in (1, 2, 3):
                failures = export_by(ranks, path, Meeting(3, failing=(1, number)))
                assert isinstance(failures[1], KeyError), failures
            ranks[1] = (ranks[1][0], [each._replace(name=f"other{each.name}") for each in ranks[1][1]])
            for failure in export_by(ranks, path):
                assert failure.errno == errno.EINVAL and "rank 1 has other parameters than rank 0" in str(failure)
            assert os.listdir(path) == ["zero"]


@contextlib.contextmanager
def failing_in(name, rank, ranks):
    """Has a function of the module fail on one rank."""
    done, failing = getattr(nvswap.checkpoint, name), ranks[rank][0]

    def fail(*arguments, **keywords):
        if name == "replace" or any(each is failing or getattr(each, "optimizer", None) is failing
                                    for each in arguments):
            raise OSError(errno.EIO, "no")
        return done(*arguments, **keywords)

    with mock.patch(f"nvswap.checkpoint.{name}", fail):
        yield


@promise
def elements_that_ranks_leave_out_or_have_twice_are_refused_by_all(directory):
    with exported(directory) as (optimizer, path):
        before = state_of(optimizer)
        alone = [(0, {"numel": 19793}, "embed.weight: no rank has the 7 elements from 19793 on, of 19800; rank 0 has "
                  "those before"), (0, {"first": 3, "numel": 19797}, "3 elements from 0 on, of 19800; rank 0 has those "
                                    "behind"), (0, {"numel": 0}, "no rank has the 19800 elements from 0 on, of 19800; "
                                                "none has any"), (1, {"first": 1}, "1 elements from 0 on, of 112")]
        for index, change, text in alone:
            changed = list(PARAMETERS)
            changed[index] = changed[index]._replace(**change)
            error = raises(nvswap.Error, lambda: export_universal(optimizer, path, changed), errno.EINVAL)
            assert text in str(error), error
        with ranks_of(directory, 4) as ranks:
            whole = ranks[1][1][0]  # elements 4950 to 9900 of embed.weight
            for change, text in (({"numel": 4948}, "embed.weight: no rank has the 2 elements from 9898 on, of 19800; rank "
                                  "1 has those before, rank 2 has those behind"),
                                 ({"first": 4951}, "no rank has the 1 elements from 4950 on"),
                                 ({"first": 4949}, "ranks 0 and 1 both have the 1 elements from 4949 on"),
                                 ({"shape": (99, 200)}, "rank 1 has other parameters than rank 0")):
                ranks[1][1][0] = whole._replace(**change)
                for failure in export_by(ranks, path):
                    assert failure.errno == errno.EINVAL and text in str(failure), failure
        assert_is(path, before, 3)


@promise
def numbers_of_a_parameter_may_be_those_of_numpy(directory):
    with exported(directory) as (optimizer, path):
        before = state_of(optimizer)
        with ranks_of(directory, 2, path) as ranks:
            ranks[1][1][:] = [each._replace(offset=numpy.int32(each.offset), numel=numpy.int64(each.numel),
                                            first=numpy.int32(each.first)) for each in ranks[1][1]]
            assert export_by(ranks, path) == [None] * 2
        assert_is(path, before, 3)


@promise
def ranks_that_differ_in_their_numbers_are_refused(directory):
    path = os.path.join(directory, "tag")
    with ranks_of(directory, 4) as ranks:
        for numbers in ({2: (1, 4)}, {2: (2, 3)}, {2: (4, 4)}, {2: (-1, 4)}, {1: (0, 4), 2: (0, 4), 3: (0, 4)},
                        {0: (0, 2), 1: (1, 2), 2: (0, 2), 3: (1, 2)}):
            for failure in export_by(ranks, path, numbers=numbers):
                assert failure.errno == errno.EINVAL and "the ranks differ in their numbers" in str(failure), failure
        assert not os.path.exists(os.path.join(path, "zero"))
        assert export_by(ranks, path) == [None] * 4
    with opened(directory) as optimizer:
        for rank, world, text in ((1, 1, "rank 1 of 1"), (1, 0, "rank 1 of 0"), (0, 2, "need gather")):
            error = raises(nvswap.Error, lambda: export_universal(optimizer, path, PARAMETERS, rank=rank, world=world),
                           errno.EINVAL)
            assert text in str(error), error


@promise
def a_checkpoint_may_have_many_parameters(directory):
    with opened(directory) as optimizer, opened(directory) as other, in_memory() as above:
        fill(optimizer, 2)
        many = [Parameter(f"p{index}", "first", 50 * index, 50) for index in range(400)]
        export_universal(optimizer, os.path.join(above, "tag"), many)
        import_universal(other, os.path.join(above, "tag"), many[::-1])
        assert same(state_of(optimizer, many), state_of(other, many))


# ---- Failures

CALLS = [(os, name) for name in ("pwrite", "fsync", "rename", "mkdir", "open", "unlink")] + [
    (builtins, "open"), (durable, "exchange")]


def without_exchange():
    """As on FUSE and NFS, where two directories can't exchange their names."""
    return mock.patch.object(durable, "exchange", return_value=False)


@promise
def each_failing_call_leaves_the_old_checkpoint_or_the_new(directory):
    with in_memory() as above, exported(directory, 1, above) as (old, path), opened(directory) as new, \
            opened(directory) as reader:
        fill(new, 2)
        for module, name in CALLS:
            nth, calls = 0, 0
            while calls >= nth:
                nth, calls, call = nth + 1 + nth // 8, 0, getattr(module, name)

                def fail(*arguments, nth=nth, call=call, **keywords):
                    nonlocal calls
                    calls += 1
                    if calls == nth:
                        raise OSError(errno.ENOSPC, "no")
                    return call(*arguments, **keywords)

                failure = None
                with without_exchange() if name == "rename" else contextlib.nullcontext(), \
                        mock.patch.object(module, name, fail):
                    try:
                        export_universal(new, path, PARAMETERS)
                    except nvswap.Error as error:
                        failure = error
                assert failure is None or failure.errno == errno.ENOSPC and calls >= nth, failure
                found = step_of(reader, path, old, new)
                assert failure or found == 2
                if found == 2:
                    export_universal(old, path, PARAMETERS)


def step_of(reader, path, old, new):
    """The steps of a checkpoint, whose state is that of one of these optimizers after 1 and 2 steps."""
    import_universal(reader, path, PARAMETERS)
    assert same(state_of(reader), state_of({1: old, 2: new}[reader.step_count]))
    return reader.step_count


EXPORT = """
import os
from test_py_universal import *
directory, path = os.environ["DIRECTORY"], os.environ["TAG"]
with opened(directory) as optimizer:
    fill(optimizer, 2)
"""


def exporting(directory, path, script):
    """A process with an optimizer after 2 steps."""
    here = os.path.dirname(os.path.abspath(__file__))
    return subprocess.Popen([os.sys.executable, "-c", f"import sys\nsys.path.insert(0, {here!r})\n{EXPORT}{script}"],
                            env=dict(os.environ, DIRECTORY=directory, TAG=path, PYTHONPATH=os.pathsep.join(os.sys.path)),
                            stdout=subprocess.PIPE)


@promise
def all_files_are_durable_before_they_have_their_names_and_the_names_when_the_call_returns(directory):
    fsync, rename, synced, renamed = os.fsync, os.rename, {}, []

    def sync(descriptor):
        fsync(descriptor)
        synced[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_mtime_ns

    def name(old, new):
        for folder, _, names in os.walk(old) if new == os.path.join(path, "zero") else ():
            for each in (folder, *(os.path.join(folder, name) for name in names)):
                assert synced[os.stat(each).st_ino] == os.stat(each).st_mtime_ns, each
        rename(old, new)
        renamed.append(os.path.dirname(new))

    with exported(directory, 1) as (optimizer, path), ranks_of(directory, 2, path) as ranks:
        for export in (lambda: export_universal(optimizer, path, PARAMETERS), lambda: export_by(ranks, path)):
            synced.clear()
            with mock.patch("os.fsync", sync), mock.patch("os.rename", name), without_exchange():
                export()
            for folder in (path, directory):
                assert folder in renamed and os.stat(folder).st_ino in synced


@promise
def an_export_that_ends_before_a_rename_leaves_the_old_checkpoint_or_the_new(directory):
    with in_memory() as above, exported(directory, 1, above) as (old, path), opened(directory) as new, \
            opened(directory) as reader:
        fill(new, 2)
        missing = []
        for nth, exchanges in [(1, False), (2, False), (3, False), (4, False), (1, True), (2, True)]:
            process = exporting(directory, path, f"""
    {exchanges} or setattr(durable, "exchange", lambda *_: False)
    rename, left = os.rename, [{nth}]

    def end(*names):
        left[0] -= 1
        left[0] or os._exit(7)
        rename(*names)

    os.rename = end
    export_universal(optimizer, path, PARAMETERS)
""")
            process.communicate()
            assert process.returncode == (7 if nth < (2 if exchanges else 4) else 0)
            missing += [nth] * (not os.path.exists(os.path.join(path, "zero")))
            assert step_of(reader, path, old, new) == (1 if nth < 3 and not exchanges else 2)
            if nth == 2 and not exchanges:  # an export that fails keeps it, under its name
                with mock.patch("os.pwrite", side_effect=OSError(errno.EIO, "no")):
                    raises(nvswap.Error, lambda: export_universal(new, path, PARAMETERS), errno.EIO)
                assert os.listdir(path) == ["zero"]
            export_universal(old, path, PARAMETERS)
            assert step_of(reader, path, old, new) == 1 and os.listdir(path) == ["zero"]
        assert missing == [2]


@promise
def a_killed_export_leaves_the_old_checkpoint_or_the_new(directory):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    with in_memory() as above, exported(directory, 1, above) as (old, path), opened(directory) as new, \
            opened(directory) as reader:
        fill(new, 2)
        for _ in range(4):
            process = exporting(directory, path, """
    print("begins", flush=True)
    while True:
        export_universal(optimizer, path, PARAMETERS)
""")
            process.stdout.readline()
            time.sleep(chosen.random() / 10)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            step_of(reader, path, old, new)
            export_universal(old, path, PARAMETERS)
            assert step_of(reader, path, old, new) == 1 and os.listdir(path) == ["zero"]


@promise
def damage_is_an_error_or_without_effect(directory):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chosen, refused = random.Random(seed), 0
    with exported(directory) as (optimizer, path), opened(directory) as other:
        for name, rounds in (("embed.bias/exp_avg.pt", 100), ("optimizer_state.pt", 100)):
            file = os.path.join(path, "zero", name)
            for at in [4096 + 50] + [chosen.randrange(os.path.getsize(file)) for _ in range(rounds)]:
                flip(file, at)
                try:
                    import_universal(other, path, PARAMETERS)
                    assert same(state_of(other), state_of(optimizer)) and other.step_count == 3
                except nvswap.Error as error:
                    refused += 1
                    assert error.errno == (errno.EBADMSG if at == 4096 + 50 else error.errno) and file in str(error), error
                flip(file, at)
        assert refused > 20
        import_universal(other, path, PARAMETERS)


def flip(file, at):
    with open(file, "r+b") as opened_file:
        opened_file.seek(at)
        byte = opened_file.read(1)
        opened_file.seek(at)
        opened_file.write(bytes(each ^ 0x10 for each in byte))


@promise
def a_limit_on_file_sizes_is_an_error_with_a_remedy(directory):
    process = exporting(directory, os.path.join(directory, "tag"), """
    with opened(directory) as clean:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        error = raises(nvswap.Error, lambda: export_universal(clean, path, PARAMETERS), errno.ENOSPC)
        assert "ulimit -f" in str(error), error
        os._exit(9)
""")
    process.communicate()
    assert process.returncode == 9 and not os.listdir(os.path.join(directory, "tag"))


# ---- Refusals


@promise
def parameters_that_are_wrong_are_refused(directory):
    path = os.path.join(directory, "tag")
    wrong = [(1, {"name": name}, "the name must be")
             for name in ("", ".", "..", "a/b", "a\0b", "optimizer_state.pt", 256 * "a")]
    wrong += [(1, {"name": "embed.weight"}, "two parameters have the name embed.weight"),
              (1, {"offset": 19799}, "embed.bias and embed.weight have elements in common"),
              (1, {"offset": 20000}, "the group first has 20100"), (1, {"offset": -1}, "elements 0 to 111 are here"),
              (1, {"group": "third"}, "no group"), (1, {"group": 2}, "no group 2"),
              (0, {"first": 1}, "elements 1 to 19801 are here"), (0, {"first": 1 << 64}, "embed.weight")]
    with opened(directory) as optimizer:
        for index, change, text in wrong:
            changed = list(PARAMETERS)
            changed[index] = changed[index]._replace(**change)
            for call in (export_universal, import_universal):
                error = raises(nvswap.Error, lambda call=call: call(optimizer, path, changed), errno.EINVAL)
                assert text in str(error), error
        for call in (export_universal, import_universal):
            raises(nvswap.Error, lambda call=call: call(optimizer, path, []), errno.EINVAL)
        for name in ("", "/", ".", "..", "a/.."):
            error = raises(nvswap.Error, lambda name=name: export_universal(optimizer, name, PARAMETERS), errno.EINVAL)
            assert "path must end" in str(error), error
        for call in (export_universal, import_universal):
            error = raises(nvswap.Error, lambda call=call: call(optimizer, path + "/none/tag", PARAMETERS), errno.ENOENT)
            assert "none/tag" in str(error), error


@promise
def a_checkpoint_of_other_parameters_or_steps_is_refused(directory):
    with exported(directory) as (optimizer, path):
        first = PARAMETERS[0]
        for parameter, code, text in ((first._replace(shape=(99, 200)), errno.ESTALE, "has the shape [200, 99]"),
                                      (first._replace(shape=None, numel=19799), errno.ESTALE, "19800 elements"),
                                      (first._replace(name="tail"), errno.ENOENT, "zero/tail/fp32.pt: ")):
            error = raises(nvswap.Error, lambda: import_universal(optimizer, path, [parameter]), code)
            assert text in str(error), error
        import_universal(optimizer, path, [first._replace(shape=None)])
        file = os.path.join(path, "zero/optimizer_state.pt")
        for step, code in ((2**53, errno.ERANGE), (-1, errno.EINVAL), (1.5, errno.EINVAL), ("1", errno.EINVAL),
                           (None, errno.EINVAL), (2**53 - 1, 0), (7.0, 0)):
            with open(file, "wb") as opened_file:
                opened_file.write(saved_value({"optimizer_state_dict": {"state": {0: {"step": step}}}}))
            if code:
                raises(nvswap.Error, lambda: import_universal(optimizer, path, PARAMETERS), code)
            else:
                import_universal(optimizer, path, PARAMETERS)
                assert optimizer.step_count == step


@promise
def other_files_and_links_are_neither_replaced_nor_followed(directory):
    with opened(directory) as optimizer:
        for place in ("zero/mine", "zero.partial/mine", "zero/params/mine", "zero/a/b/fp32.pt", "zero.partial/old/a/mine"):
            path = os.path.join(directory, place.replace("/", "."), "tag")
            mine = os.path.join(path, place)
            os.makedirs(os.path.dirname(mine))
            with open(mine, "w", encoding="ascii"):
                pass
            error = raises(nvswap.Error, lambda path=path: export_universal(optimizer, path, PARAMETERS), errno.EEXIST)
            assert "no part of a universal" in str(error) and os.path.exists(mine), error
        for name in ("zero", "zero.partial"):
            path, victim = os.path.join(directory, name, "tag"), os.path.join(directory, f"victim.{name}")
            os.makedirs(path)
            os.makedirs(os.path.join(victim, "kept"))
            os.symlink(victim, os.path.join(path, name))
            raises(nvswap.Error, lambda path=path: export_universal(optimizer, path, PARAMETERS), errno.EEXIST)
            assert os.listdir(victim) == ["kept"]


@promise
def two_exports_to_one_path_do_not_mix(directory):
    with exported(directory) as (optimizer, path):
        before, pwrite = state_of(optimizer), os.pwrite

        def write(*arguments):
            error = raises(nvswap.Error, lambda: export_universal(other, path, PARAMETERS), errno.EBUSY)
            assert "another process writes" in str(error), error
            return pwrite(*arguments)

        with opened(directory) as other, mock.patch("os.pwrite", write):
            export_universal(optimizer, path, PARAMETERS)
        assert_is(path, before, 3)


@promise
def names_of_removed_files_are_no_other_files(directory):
    """As a crash of an NFS client or a FUSE file system leaves them, in all places that are replaced."""
    with exported(directory) as (optimizer, path):
        shutil.copytree(os.path.join(path, "zero"), os.path.join(path, "zero.partial/new/zero"))
        for folder, _, _ in list(os.walk(path)):
            for name in (".nfs00000000deadbeef00000001", ".fuse_hidden0000000100000001"):
                with open(os.path.join(folder, name), "w", encoding="ascii"):
                    pass
        export_universal(optimizer, path, PARAMETERS)
        assert not any(name[0] == "." for folder, _, names in os.walk(os.path.join(path, "zero")) for name in names)


@promise
def a_file_that_is_open_keeps_no_export_from_replacing_its_directory_on_fuse(directory):
    below, mount = os.path.join(directory, "below"), os.path.join(directory, "mount")
    os.mkdir(below)
    os.mkdir(mount)
    if not shutil.which("bindfs") or subprocess.run(["bindfs", below, mount], stderr=subprocess.DEVNULL,
                                                    check=False).returncode:
        raise Skip("bindfs can't mount here")
    try:
        left = os.path.join(mount, "tag/zero.partial/new/zero", PARAMETERS[0].name)
        os.makedirs(left)
        with open(os.path.join(left, "fp32.pt"), "wb"), opened(directory) as optimizer:
            fill(optimizer, 1)
            path = os.path.join(mount, "tag")
            with open(os.path.join(mount, "file"), "wb") as file:
                reserve(file.fileno(), 1 << 20)
                assert os.fstat(file.fileno()).st_size == 1 << 20 and not os.fstat(file.fileno()).st_blocks
            for _ in range(2):
                export_universal(optimizer, path, PARAMETERS)
            import_universal(optimizer, path, PARAMETERS)
            with open(os.path.join(path, "zero/head/fp32.pt"), "rb"):  # of one that is replaced
                for _ in range(3):
                    export_universal(optimizer, path, PARAMETERS)
            export_universal(optimizer, path, PARAMETERS)
            import_universal(optimizer, path, PARAMETERS)
    finally:
        subprocess.run(f"umount '{mount}' || fusermount3 -u '{mount}'", shell=True, check=True)


if __name__ == "__main__":
    main()
