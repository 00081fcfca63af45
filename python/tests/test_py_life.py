#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Objects at fork, at interpreter exit, and the configuration and its log."""

import ctypes
import errno
import fractions
import gc
import json
import logging
import mmap
import os
import pathlib
import pickle
import sys
import threading
import typing
from unittest import mock

import numpy

from promises import child, main, promise, raises, settings
import nvswap
from nvswap.handle import Handle, users_of

OPENED = """
import os, nvswap, numpy
from promises import settings
directory = os.environ["DIRECTORY"]
engine = nvswap.Engine(settings(directory, keep=KEEP))
engine.register("a", "F32", 1000)
aio = nvswap.Aio()
file = aio.open_file(directory + "/f", "w")
"""


@promise
def a_child_after_fork_gets_exceptions(directory):
    memory = nvswap.empty(4096)
    engine = nvswap.Engine(settings(directory))
    engine.register("a", "F32", 1000)
    aio = nvswap.Aio()
    file = aio.open_file(directory + "/f", "w")
    pinned = engine.swap_in("a", "w")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for call in (engine.stats, aio.wait_all, lambda: file.pwrite(b"x"),
                         lambda: pinned.wait()):
                raises(nvswap.ClosedError, call, errno.EBADF)
            engine.close()
            pinned.release()
            del memory
            gc.collect()
            status = 0
        finally:
            os.write(write, bytes([status]))
            os._exit(status)
    os.close(write)
    assert os.read(read, 1) == b"\0" and os.waitpid(pid, 0)[1] == 0
    os.close(read)
    pinned["a"][:] = 1
    pinned.release()
    engine.close()
    aio.close()


def mapped(address):
    """Whether the process has memory at an address."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        ranges = [line.split()[0].split("-") for line in maps]
    return any(int(begin, 16) <= address < int(end, 16) for begin, end in ranges)


@promise
def pinned_memory_is_not_mapped_in_a_child(directory):
    memory = nvswap.empty(4096, "U8")
    with nvswap.Engine(settings(directory)) as engine:
        addresses = memory.ctypes.data, engine.pool()[0]
        assert all(mapped(address) for address in addresses)
        memory[:] = 3
        copy, libc = numpy.array(memory), ctypes.CDLL(None)
        libc.mmap.restype, libc.mmap.argtypes = ctypes.c_size_t, [ctypes.c_size_t] * 6
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                assert not any(mapped(address) for address in addresses)
                assert (copy == 3).all()
                # What the child has there itself stays when its copy of the array is gone.
                flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
                there = libc.mmap(addresses[0], 4096, mmap.PROT_READ, flags, 2 ** 64 - 1, 0)
                assert there == addresses[0]
                del memory
                assert mapped(addresses[0])
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0


@promise
def the_exit_of_the_interpreter_commits_and_closes(directory):
    child(OPENED.replace("KEEP", "True") + """
engine.store_from({"a": numpy.full(1000, 4, numpy.float32)})
file.pwrite(bytes(100000))
print("end")
""", directory)
    assert os.path.getsize(directory + "/f") == 100000
    with nvswap.Engine(settings(directory, keep=True)) as engine:
        engine.register("a", "F32", 1000)
        with engine.pinned("a") as tensors:
            assert (tensors["a"] == 4).all()


# Prints at exit what was closed in which order, and then the states of `handles`.
RECORDED = """
import atexit
events, handles = [], []
# Functions that are registered before nvswap's run after it.
atexit.register(lambda: print(*events, *(handle._state.name for handle in handles)))
import os, nvswap, numpy
from promises import settings

def recorded(handle, free):
    if handle in handles:
        events.append(f"{type(handle).__name__}.{handle.number}")
    close(handle, free)

class Library:
    def nvswap_end_log(self):
        events.append("end_log")

close, nvswap.handle.Handle._close = nvswap.handle.Handle._close, recorded
nvswap.handle.lib = Library()
for i in range(6):
    directory = os.path.join(os.environ["DIRECTORY"], str(i))
    os.mkdir(directory)
    aio, of_engine, of_optimizer = (nvswap.Aio(settings(directory)) for _ in range(3))
    handles += [aio, aio.open_file(directory + "/f", "w"), of_engine,
                nvswap.Engine(settings(directory, keep=True), aio=of_engine), of_optimizer,
                nvswap.Optimizer(settings(directory), {"a": numpy.zeros(10, "f4")},
                                 aio=of_optimizer)]
    for n, handle in enumerate(handles[-6:]):
        handle.number = 3 * i + n // 2
"""


@promise
def the_exit_closes_users_before_their_aio_and_ends_the_log_last(directory):
    output = child(RECORDED, directory).split()
    events, states = output[:-36], output[-36:]
    assert states == ["CLOSED"] * 36, states
    assert events[-1] == "end_log" and events.count("end_log") == 1, events
    for i in range(18):
        user = f"{('File', 'Engine', 'Optimizer')[i % 3]}.{i}"
        assert events.index(user) < events.index(f"Aio.{i}"), events


@promise
def the_exit_closes_all_others_when_some_can_not_close(directory):
    output = child(RECORDED + """
for handle in handles[1::6]:  # as in a call that the exit interrupts
    handle._begin_call()
""", directory).split()
    assert output[-36:] == ["CLOSED", "OPEN", *["CLOSED"] * 4] * 6, output
    assert output[-37] == "end_log", output


@promise
def the_exit_with_pins_and_futures_neither_hangs_nor_crashes(directory):
    child(OPENED.replace("KEEP", "False") + """
pinned = engine.swap_in("a", "w")
array = pinned["a"]
future = file.pwrite(bytes(100000)).future()
array[:] = 3
import threading
threading.Thread(target=lambda: [aio.stats() for _ in range(100000)], daemon=True).start()
""", directory)
    assert not os.path.exists(directory + "/nvswap")


@promise
def the_exit_while_another_thread_drops_pins_does_not_crash(directory):
    with nvswap.Engine(settings(directory)) as engine:
        engine.register("a", "F32", 1000)
        pinned, release, released = engine.swap_in("a", "w"), nvswap.engine._release, []
        nvswap.engine._release = lambda *args: (released.append(args), release(*args))
        try:
            engine._end_pins(engine._pointer, True)
            # The engine may be freed from now on.
            pinned.release()
            assert len(released) == 1
        finally:
            nvswap.engine._release = release
    child(OPENED.replace("KEEP", "False") + """
engine.register("b", "F32", 600000)
import threading
threading.Thread(target=lambda: [engine.swap_in(name, "w") for name in 3 * "ab"], daemon=True).start()
""", directory)


@promise
def a_pin_ends_where_a_signal_handler_raises_while_it_begins_or_ends(directory):
    engine, reported = nvswap.Engine(settings(directory)), []
    engine.register("a", "F32", 1000)
    pinned = engine.swap_in("a", "w")
    with mock.patch.object(os, "getpid", side_effect=[KeyboardInterrupt, os.getpid()]), \
            mock.patch.object(sys, "unraisablehook", lambda told: reported.append(told.exc_type)):
        pinned.release()
    assert reported == [KeyboardInterrupt]
    with mock.patch("nvswap.engine.check", side_effect=KeyboardInterrupt):
        raises(KeyboardInterrupt, lambda: engine.swap_in("a", "w"))
    engine.forget("a")


@promise
def an_aio_that_is_collected_with_its_engine_is_closed(directory):
    threads = len(os.listdir("/proc/self/task"))
    cycle = {}
    cycle["cycle"] = cycle
    cycle["aio"] = nvswap.Aio(settings(directory))
    cycle["engine"] = nvswap.Engine(settings(directory), aio=cycle["aio"])
    del cycle
    gc.collect()
    assert len(os.listdir("/proc/self/task")) == threads


@promise
def the_log_goes_to_logging_or_a_function(directory):
    text = json.dumps({"zero_optimization": {"stage": 3, "offload_param": {"buffer_count": 5}},
                       "aio": {}, "nvswap": {}})
    config, said = nvswap.Config({"aio": {"block_size": 1 << 20}}), []
    assert config["aio.block_size"] == 1 << 20
    with nvswap.Config(log=lambda level, line: said.append((level, line))) as config:
        config.parse(text)
        config.parse('{"zero_optimization": {"offload_optimizer": {"buffer_size": 8}}}')
        assert config["offload_param.buffer_count"] == 5
    assert said and said[0][0] == logging.WARNING
    config = nvswap.Config(log=lambda *line: said.append(line))
    for each in (config, nvswap.Config(config)):
        said.clear()
        each.parse('{"zero_optimization": {"offload_optimizer": {"buffer_size": 8}}}')
        assert said
    records, logger = [], logging.getLogger("nvswap")
    logger.addFilter(records.append)
    try:
        nvswap.Config({"zero_optimization": {"offload_optimizer": {"buffer_size": 8}}})
    finally:
        logger.filters.clear()
    assert records[0].levelno == logging.WARNING
    assert "the dictionary" in records[0].getMessage()


@promise
def a_trace_has_what_is_opened_with_it_and_spans_of_the_program(directory):
    path, config, trace = directory + "/trace.json", nvswap.Config(settings(directory)), nvswap.Trace(1000)
    config.set_trace(trace)
    with nvswap.Engine(nvswap.Config(config)) as engine, trace.span("training"):
        engine.register("weights", "F32", 1000)
        engine.store_from({"weights": numpy.ones(1000, numpy.float32)})
        raises(nvswap.Error, trace.close, errno.EBUSY)
    assert trace.write(path) == 0
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    spans = {event["name"]: event for event in events if event.get("ph") == "X"}
    ours = spans["training"]
    written = [event for event in events if "write" in event["name"] and "weights" in str(event)]
    assert written and all(ours["ts"] <= event["ts"] <= ours["ts"] + ours["dur"] for event in written
                           if "ts" in event)
    with nvswap.Optimizer(config, {"g": numpy.zeros(1000, numpy.float32)}) as optimizer:
        raises(nvswap.Error, trace.close, errno.EBUSY)
        optimizer.lend_gradients("g", numpy.ones(1000, numpy.float32))
        optimizer.step()
    small = nvswap.Trace(1)
    for _ in range(3):
        with small.span("one"):
            pass
    assert small.write(path) == 2
    raises(nvswap.Error, lambda: small.write(directory), None)
    raises(nvswap.Error, lambda: nvswap.Trace(0), errno.EINVAL)
    trace.close()
    raises(nvswap.ClosedError, lambda: nvswap.Engine(config))
    config.set_trace(None)
    nvswap.Engine(config).close()
    # The exit closes an engine and its trace, in whatever order.
    output = child("""
import os, nvswap
from promises import settings
config, trace = nvswap.Config(settings(os.environ["DIRECTORY"])), nvswap.Trace(10)
config.set_trace(trace)
aio = nvswap.Aio(config)
engine = nvswap.Engine(config, aio=aio)
print("ends")
""", directory)
    assert output == "ends\n", output


@promise
def a_trace_is_not_closed_while_another_thread_opens_what_records_in_it(directory):
    config, trace, errors = nvswap.Config(settings(directory)), nvswap.Trace(1000), []
    config.set_trace(trace)
    made = Handle.__init__

    def closed_meanwhile(self, *arguments):
        """The library has opened the object, and its handle is not made yet."""
        thread = threading.Thread(target=lambda: errors.append(raises(nvswap.Error, trace.close, errno.EBUSY)))
        open_state = trace._state
        thread.start()
        while trace._state is open_state and thread.is_alive():
            pass
        made(self, *arguments)
        self.thread = thread

    for opened in (nvswap.Aio, nvswap.Engine,
                   lambda config: nvswap.Optimizer(config, {"g": numpy.zeros(10, numpy.float32)})):
        errors.clear()
        with mock.patch.object(Handle, "__init__", closed_meanwhile):
            handle = opened(config)
        handle.thread.join()
        assert len(errors) == 1 and not trace.closed
        handle.close()
    trace.close()


@promise
def the_users_of_a_trace_are_looked_for_while_other_threads_open_objects(_):
    class Empty(Handle):
        def _free(self, pointer, at_exit):
            pass

    def open_objects():
        while not ended.is_set():
            Empty(None).close()

    trace, ended, interval = nvswap.Trace(1000), threading.Event(), sys.getswitchinterval()
    opened = [Empty(None) for _ in range(3000)]
    threads = [threading.Thread(target=open_objects) for _ in range(2)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(100):
            assert not users_of(trace)
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        for thread in threads:
            thread.join()
    for handle in opened:
        handle.close()
    trace.close()


@promise
def settings_are_read_and_set_by_key(directory):
    config = nvswap.Config()
    config["aio.block_size"] = "1M"
    assert config["aio.block_size"] == 1 << 20
    config["offload_param.nvme_path"] = [directory, directory + "/other"]
    assert config.paths("param") == [directory, directory + "/other"]
    config["offload_param.nvme_path"] = None
    assert config["offload_param.nvme_path"] is None and config.paths("param") == []
    config["offload_optimizer.nvme_path"] = [directory]
    assert config.paths("optimizer") == [directory] and config.paths("param") == []
    config["offload_optimizer.nvme_path"] = pathlib.Path(directory)
    assert config["offload_optimizer.nvme_path"] == directory
    config["nvswap.ioengine"] = "posix"
    assert config["nvswap.ioengine"] == "posix"
    os.environ["NVSWAP_TEST_RANK"] = "7"
    config["nvswap.rank"] = "NVSWAP_TEST_RANK"
    config.read_rank()
    assert config["nvswap.rank"] == 7
    config.set("nvswap.keep", True)
    assert config["nvswap.keep"] is True
    error = raises(nvswap.Error, lambda: config.set("aio.blok_size", 1), errno.EINVAL)
    assert "block_size" in str(error)
    error = raises(nvswap.Error, lambda: nvswap.Config({"aio": {"queue_depth": -1}}), errno.EINVAL)
    assert error.tensor and error.line == 1
    error = raises(nvswap.Error, lambda: nvswap.Config(directory + "/none.json"), errno.ENOENT)
    assert error.path == directory + "/none.json"
    for call in (lambda: config.set("aio.block_size\0", 1), lambda: config["aio\0"],
                 lambda: config.set("offload_param.nvme_path", directory + "\0x"),
                 lambda: config.set_paths("param", [directory + "\0x"]),
                 lambda: nvswap.Config(directory + "/f\0")):
        raises(ValueError, call)
    assert config["offload_param.nvme_path"] is None
    copy = nvswap.Config(config)
    config.close()
    assert copy["aio.block_size"] == 1 << 20
    raises(nvswap.ClosedError, lambda: config["aio.block_size"], errno.EBADF)
    assert copy.pool_bytes("param") > 0
    raises(nvswap.Error, lambda: copy.pool_bytes("both"), errno.EINVAL)


@promise
def settings_take_numbers_of_numpy_and_alike(directory):
    config = nvswap.Config({"aio": {"block_size": numpy.int64(8192), "single_submit": numpy.True_},
                            "gradient_clipping": numpy.float32(0.5),
                            "optimizer": {"params": {"lr": fractions.Fraction(1, 4)}}})
    assert config["aio.block_size"] == 8192 and config["aio.single_submit"] is True
    assert config["gradient_clipping"] == 0.5 and config["optimizer.params.lr"] == 0.25
    for key, value in (("aio.queue_depth", numpy.uint8(7)), ("nvswap.keep", numpy.False_),
                       ("gradient_clipping", numpy.float64(1.5))):
        config[key] = value
        assert config[key] == value


@promise
def keys_and_values_of_other_types_are_refused_with_those_there_are(directory):
    config = nvswap.Config()
    for call in (lambda: config[5], lambda: config.set(5, 1), lambda: config.set(None, [directory])):
        assert '"aio.block_size"' in str(raises(TypeError, call))
    error = raises(TypeError, lambda: config.set("aio.block_size", object()))
    assert "a number, a bool, a string or None" in str(error)
    for document in ({"aio": {1}}, {"aio": {"queue_depth": object()}}):
        assert "aio" in str(raises(nvswap.Error, lambda: nvswap.Config(document), errno.EINVAL))


@promise
def objects_are_not_pickled_but_errors_are(directory):
    raises(TypeError, lambda: pickle.dumps(nvswap.Config()))
    error = raises(nvswap.Error, lambda: nvswap.Config(directory + "/none"))
    same = pickle.loads(pickle.dumps(error))
    assert (same.errno, same.path, str(same)) == (error.errno, error.path, str(error))


@promise
def without_numpy_an_array_says_what_to_install_or_to_ask_for(directory):
    output = child("""
import os, sys
sys.modules["numpy"] = None
import nvswap
from promises import raises, settings
memory = nvswap.empty((2, 4), "F32", arrays="memoryview")
engine = nvswap.Engine(settings(os.environ["DIRECTORY"]))
engine.register("a", "F32", 1000)
group = nvswap.Group("a", None, 1000, "F32")
with nvswap.Optimizer(settings(os.environ["DIRECTORY"]), [group]) as optimizer:
    for call in (lambda: nvswap.empty((2, 4), "F32"), lambda: engine.pinned("a", "w").wait(),
                 lambda: optimizer.get_state("a", "master")):
        print(raises(ModuleNotFoundError, call))
with engine.pinned("a", "w", arrays="memoryview") as tensors:
    assert tensors["a"].nbytes == 4000
""", directory)
    assert output.count('numpy is not installed: install it, or ask for arrays="memoryview"') == 3


@promise
def neither_numpy_nor_torch_is_imported_unasked(directory):
    output = child("""
import os, sys, nvswap
with nvswap.Aio() as aio, aio.open_file(os.environ["DIRECTORY"] + "/f", "w") as file:
    file.pwrite(nvswap.empty(4096)).wait()
print([name for name in ("numpy", "torch", "asyncio.events") if name in sys.modules][:2])
""", directory)
    assert "numpy" not in output and "torch" not in output
    assert numpy is not None


@promise
def a_with_block_has_the_type_of_its_object(_directory):
    for kind in (nvswap.Aio, nvswap.Config, nvswap.Engine, nvswap.File, nvswap.Optimizer):
        hints = typing.get_type_hints(kind.__enter__)
        assert hints["return"] is hints["self"], kind


main()
