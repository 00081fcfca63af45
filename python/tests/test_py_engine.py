#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""nvswap.Engine: tensors by name, pins, steps, kept stores."""

import errno
import gc
import json
import logging
import os
import signal
import threading
import weakref
from unittest import mock

import numpy

from promises import main, promise, raises, settings, timeouts_of
import nvswap
from nvswap._native import ffi, lib


def opened(directory, **more):
    return nvswap.Engine(settings(directory, **more))


@promise
def contents_survive_the_drive(directory):
    with opened(directory) as engine:
        engine.register_all({f"t{i}": ("F32", (100, 257)) for i in range(8)})
        for i, name in enumerate(engine):
            with engine.pinned(name, "w") as tensors:
                tensors[name][:] = i
        engine.swap_out(list(engine))
        engine.wait(list(engine))
        assert engine.info("t3")["state"] == "on_drive" or engine.info("t3")["pins"] == 0
        with engine.pinned(["t3", "t5"]) as tensors:
            assert (tensors["t3"] == 3).all() and tensors["t5"].shape == (100, 257)


def header_of(path):
    with open(path, "rb") as file:
        return json.loads(file.read(int.from_bytes(file.read(8), "little")))


@promise
def tensors_leave_for_files_and_come_back(directory):
    path = os.path.join(directory, "model.safetensors")
    with opened(directory) as engine:
        engine.register_all({"a": ("F32", (100, 257)), "b": ("F32", ()), "c": ("F32", 7)})
        contents = {"a": numpy.random.default_rng(1).normal(size=(100, 257)).astype("float32"),
                    "b": numpy.array(2, "float32"), "c": numpy.arange(7, dtype="float32")}
        engine.store_from(contents)
        nvswap.export_tensors(engine, path, {"a": "layer.a", "b": "b"})
        header = header_of(path)
        assert {name: header[name]["shape"] for name in header if name != "__metadata__"} == \
            {"layer.a": [100, 257], "b": []}
        nvswap.export_tensors(engine, os.path.join(directory, "all.pt"))
        for name, array in contents.items():
            engine.store_from({name: numpy.zeros_like(array)})
        nvswap.import_tensors(engine, path, {"a": "layer.a", "b": "b"})
        with engine.pinned(list(engine)) as tensors:
            assert (tensors["a"] == contents["a"]).all() and tensors["b"] == 2
            assert (tensors["c"] == 0).all()
        nvswap.import_tensors(engine, os.path.join(directory, "all.pt"), engine["c"])
        with engine.pinned("c") as tensors:
            assert (tensors["c"] == contents["c"]).all()
        raises(nvswap.Error, lambda: nvswap.import_tensors(engine, path), errno.ENOENT)
        engine.register("turned", "F32", (257, 100))
        error = raises(nvswap.Error, lambda: nvswap.import_tensors(
            engine, path, {"turned": "layer.a"}), errno.ESTALE)
        assert error.tensor == "layer.a"
        assert "[100, 257]" in str(error) and "[257, 100]" in str(error)
        engine.forget("turned")
        raises(nvswap.Error, lambda: nvswap.import_tensors(engine, path + "x"), errno.ENOENT)
        error = raises(nvswap.Error, lambda: engine.register("d", ("F32", 10)), errno.EINVAL)
        assert "as two arguments" in str(error) and error.tensor == "d"
        raises(nvswap.Error, lambda: nvswap.export_tensors(engine, path, ["d"]), errno.ENOENT)
        nvswap.export_tensors(engine, path, shard_bytes=100000)
        assert sorted(os.listdir(directory))[1:4] == [
            "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
            "model.safetensors.index.json"]


@promise
def an_array_keeps_its_pin(directory):
    with opened(directory) as engine:
        engine.register("a", "F32", 1000)
        with engine.pinned("a", "w") as tensors:
            tensors["a"][:] = 5
            kept = tensors["a"][10:]
        assert engine.info("a")["pins"] == 1
        raises(nvswap.Error, engine.close, errno.EBUSY)
        raises(nvswap.Error, lambda: engine.swap_out("a"), errno.EBUSY)
        assert (kept == 5).all()
        del kept
        gc.collect()
        assert engine.info("a")["pins"] == 0 and engine.info("a")["dirty"]


@promise
def a_pin_for_reading_gives_read_only_arrays(directory):
    with opened(directory) as engine:
        engine.register("a", "F32", 1000)
        engine.store_from({"a": numpy.ones(1000, numpy.float32)})
        with engine.pinned("a") as tensors:
            assert not tensors["a"].flags.writeable
        assert not engine.info("a")["dirty"]
        with engine.pinned("a", "r+") as tensors:
            tensors["a"][0] = 9
        with engine.pinned("a") as tensors:
            assert tensors["a"][0] == 9 and tensors["a"][1] == 1


@promise
def new_contents_are_discarded_after_an_exception(directory):
    with opened(directory) as engine:
        engine.register("a", "F32", 1000)
        engine.store_from({"a": numpy.ones(1000, numpy.float32)})

        def fill():
            with engine.pinned("a", "w") as tensors:
                tensors["a"][:] = 2
                raise KeyError("in the middle")

        raises(KeyError, fill)
        gc.collect()
        with engine.pinned("a") as tensors:
            assert (tensors["a"] == 1).all()


@promise
def changed_contents_are_kept_after_an_exception(directory):
    with opened(directory) as engine:
        engine.register("a", "F32", 1000)
        engine.store_from({"a": numpy.ones(1000, numpy.float32)})

        def change():
            with engine.pinned("a", "r+") as tensors:
                tensors["a"][:] = 2
                raise KeyError("in the middle")

        raises(KeyError, change)
        gc.collect()
        assert engine.info("a")["dirty"]
        with engine.pinned("a") as tensors:
            assert (tensors["a"] == 2).all()


@promise
def the_caller_says_whether_the_contents_of_a_pin_are_kept(directory):
    with opened(directory) as engine:
        engine.register("a", "F32", 1000)
        for value, keep in ((1, True), (2, False)):
            pinned = engine.swap_in("a", "w")
            pinned["a"][:] = value
            pinned.keep_contents(keep)
            pinned.release()
            with engine.pinned("a") as tensors:
                assert (tensors["a"] == 1).all()


@promise
def a_pin_is_released_while_its_contents_are_read(directory):
    with opened(directory) as engine:
        engine.register("a", "F32", 600000)
        engine.store_from({"a": numpy.ones(600000, numpy.float32)})
        for _ in range(20):
            engine.swap_in("a").release()
            assert engine.info("a")["pins"] == 0
            engine.swap_out("a")
            engine.wait("a")


@promise
def the_memory_of_a_transfer_is_kept_alive_until_it_was_waited_for(directory):
    def referred(call):
        """A weak reference to a new array that a call has got."""
        array = numpy.ones(1000, numpy.float32)
        call(array)
        return weakref.ref(array)

    def interrupt(*_):
        raise KeyboardInterrupt

    def read_interrupted(array):
        try:
            engine.read_range("a", array)
        except KeyboardInterrupt:
            pass

    waiting = nvswap.engine.wait_sliced
    with opened(directory) as engine:
        engine.register("a", "F32", 1000)
        try:
            stored = referred(lambda array: engine.store_from({"a": array}, wait=False))
            assert stored() is not None
            nvswap.engine.wait_sliced = lambda *_: -errno.ETIMEDOUT
            raises(nvswap.Timeout, lambda: engine.wait("a"))
            assert stored() is not None
            nvswap.engine.wait_sliced = waiting
            engine.wait("a")
            assert stored() is None
            nvswap.engine.wait_sliced = interrupt
            read = referred(read_interrupted)
            assert read() is not None
        finally:
            nvswap.engine.wait_sliced = waiting
        engine.wait("a")
        assert read() is None


@promise
def a_step_ends_with_an_exception_too(directory):
    def fail():
        with engine.step():
            raise KeyError("in the step")

    with opened(directory) as engine:
        raises(KeyError, fail)
        with engine.step() as io:
            pass
        assert io["misses"] == 0


@promise
def a_tensor_that_is_forgotten_or_of_another_engine_is_refused(directory):
    os.mkdir(directory + "/other")
    with opened(directory) as engine, opened(directory + "/other") as other:
        tensor = engine.register("a", "F32", 1000)
        other.register("a", "F32", 1000)
        raises(nvswap.Error, lambda: other.swap_in(tensor, "w"), errno.EINVAL)
        engine.swap_in(tensor, "w").release()
        engine.forget(tensor)
        engine.register("a", "F32", 1000)
        error = raises(nvswap.Error, lambda: engine.swap_in(tensor, "w"), errno.EINVAL)
        assert error.tensor == "a" and "not registered with this engine" in str(error)


@promise
def waits_have_the_timeouts_of_their_calls(directory):
    with opened(directory) as engine:
        engine.register("a", "U8", 1000)
        engine.store_from({"a": bytes(1000)})
        assert timeouts_of(nvswap.engine, [
            lambda timeout: engine.write_range("a", b"x", timeout=timeout),
            lambda timeout: engine.wait("a", timeout),
            lambda timeout: engine.swap_in("a", timeout=timeout).release(),
            lambda timeout: engine.swap_in("a").wait(timeout).release()]) == [60, 61, 62, None, 63]


@promise
def a_prefetch_counts_what_it_reads(directory):
    with opened(directory) as engine:
        engine.register_all({name: ("F32", 300000) for name in "abcdefgh"})
        for name in engine:
            engine.store_from({name: numpy.ones(300000, numpy.float32)})
        assert engine.prefetch(["a", "b"]) == 2
        assert 2 <= engine.prefetch(list(engine)) < 8


@promise
def reading_what_was_never_written_is_an_error(directory):
    with opened(directory) as engine:
        engine.register("a", "F32", 1000)
        raises(nvswap.Error, lambda: engine.swap_in("a"), errno.ENODATA)
        error = raises(nvswap.Error, lambda: engine.swap_in("b"), errno.ENOENT)
        assert error.tensor == "b"
        raises(nvswap.Error, lambda: engine.register("a", "F32", 1), errno.EEXIST)
        raises(nvswap.Error, lambda: engine.register("", "F32", 1), errno.EINVAL)
        raises(nvswap.Error, lambda: engine.register("c", "complex", 1), errno.EINVAL)
        raises(nvswap.Error, lambda: engine.register("c", numpy.ones(6), (2, 3)), errno.EINVAL)
        raises(nvswap.Error, lambda: engine.swap_in("a", "rw"), errno.EINVAL)
        for call in (lambda: engine.store_from({"a": bytes(3)}),
                     lambda: engine.write_range("a", bytes(3), -1)):
            assert raises(nvswap.Error, call, errno.EINVAL).tensor == "a"
        raises(ValueError, lambda: engine.register("n\0m", "F32", 1))
        raises(ValueError, lambda: engine.rename("a", "n\0m"))
        assert list(engine) == ["a"]
        objects = numpy.full(500, None, dtype=object)
        for call in (lambda: engine.store_from({"a": objects}),
                     lambda: engine.load_to({"a": objects}),
                     lambda: engine.read_range("a", objects),
                     lambda: engine.write_range("a", objects)):
            raises(TypeError, call)


@promise
def errors_name_what_to_call_in_python(directory):
    with opened(directory) as engine:
        engine.register("a", "F32", 1000)
        for advised, call in (("call Engine.step_begin", engine.step_end),
                              ("Engine[name] returns it", lambda: engine.register("a", "F32", 9)),
                              ('Engine.pinned, mode "w"', lambda: engine.swap_in("a")),
                              ("nvswap.empty needs", lambda: nvswap.empty(1 << 46))):
            error = raises(nvswap.Error, call)
            assert advised in str(error) and "nvs_" not in str(error), error


@promise
def a_wait_for_room_ends_at_its_timeout(directory):
    with opened(directory) as engine:
        engine.register_all({name: ("F32", 600000) for name in "ab"})
        with engine.pinned("a", "w"):
            raises(nvswap.Timeout, lambda: engine.swap_in("b", "w", timeout=0.01))
            raises(TimeoutError, lambda: engine.swap_in("b", "w", timeout=0.3))
        raises(nvswap.Error, lambda: engine.swap_in(["a", "b"], "w"), errno.ENOBUFS)


@promise
def a_thread_that_waits_for_room_gets_it(directory):
    with opened(directory) as engine:
        engine.register_all({name: ("F32", 600000) for name in "ab"})
        waiting, got = threading.Event(), []

        def wait():
            waiting.set()
            with engine.pinned("b", "w") as tensors:
                got.append(tensors["b"].size)

        thread = threading.Thread(target=wait)
        with engine.pinned("a", "w"):
            thread.start()
            waiting.wait()
        thread.join()
        assert got == [600000]


@promise
def a_wait_keeps_its_place_from_slice_to_slice(directory):
    def sliced(handle, call, timeout, error):
        def stop_after(timeout_ms, error):
            code = call(timeout_ms, error)
            if code == -errno.ETIMEDOUT:
                timed_out.set()
                go_on.wait()
            return code

        return waiting(handle, stop_after, timeout, error)

    def wait_in_slices():
        numbers["sliced"] = engine.swap_in("b", "w")._the_pin().number

    def wait_in_one():
        number, (tensor,) = ffi.new("uint64_t *"), engine._named("c")
        array = ffi.new("struct nvs_tensor *[]", [tensor._pointer])
        assert not lib.nvs_tensor_pin(engine._pointer, array, 1, -1, number, ffi.NULL)
        numbers["in one"] = number[0]
        assert not lib.nvs_tensor_release(engine._pointer, array, 1, number[0], lib.NVS_CLEAN, ffi.NULL)

    def await_call(waits):
        while engine.stats()["pool"]["waits"] == waits:
            pass

    numbers, timed_out, go_on = {}, threading.Event(), threading.Event()
    waiting, slice_ms = nvswap.engine.wait_sliced, nvswap.handle.SLICE_MS
    threads = [threading.Thread(target=call) for call in (wait_in_slices, wait_in_one)]
    nvswap.engine.wait_sliced, nvswap.handle.SLICE_MS = sliced, 1
    try:
        with opened(directory) as engine:
            engine.register_all({name: ("F32", 600000) for name in "abc"})
            pinned = engine.swap_in("a", "w")
            threads[0].start()
            assert timed_out.wait(60)
            nvswap.handle.SLICE_MS = 600000
            waits = engine.stats()["pool"]["waits"]
            threads[1].start()
            await_call(waits)
            waits += 1
            go_on.set()
            await_call(waits)
            pinned.release()
            for thread in threads:
                thread.join()
    finally:
        nvswap.engine.wait_sliced, nvswap.handle.SLICE_MS = waiting, slice_ms
    assert numbers["sliced"] < numbers["in one"]


@promise
def a_long_wait_for_room_says_which_tensors_are_pinned(directory):
    said, told = [], threading.Event()

    def log(level, text):
        if "waits for room" in text:
            said.append((level, text))
            told.set()

    with nvswap.Engine(nvswap.Config(settings(directory), log=log)) as engine:
        engine.register_all({name: ("F32", 600000) for name in ("hoarded", "b")})
        pinned = engine.swap_in("hoarded", "w")
        thread = threading.Thread(target=lambda: engine.swap_in("b", "w").release())
        thread.start()
        assert told.wait(60)
        pinned.release()
        thread.join()
    (level, text), = said
    assert level == logging.WARNING and "pinned by 1 tensor: hoarded (" in text, text


@promise
def close_ends_a_wait_of_another_thread(directory):
    engine = opened(directory)
    engine.register_all({name: ("F32", 600000) for name in "ab"})
    pinned = engine.swap_in("a", "w")
    failures = []

    def wait():
        try:
            engine.swap_in("b", "w")
        except nvswap.Error as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not engine._calls and thread.is_alive():
        pass
    raises(nvswap.Error, engine.close, errno.EBUSY)
    thread.join()
    assert isinstance(failures[0], nvswap.ClosedError)
    pinned.release()
    engine.close()


def signal_within_call(engine):
    while not engine._calls:
        pass
    os.kill(os.getpid(), signal.SIGUSR1)


@promise
def memory_of_a_transfer_is_kept_where_a_signal_handler_raises_as_it_begins(directory):
    with opened(directory) as engine:
        engine.register("a", "F32", 1 << 20)
        for begin in (engine.store_from, engine.load_to, lambda arrays: engine.read_range("a", arrays["a"])):
            array = numpy.zeros(1 << 20, "float32")
            kept = weakref.ref(array)

            def interrupted(code, error):
                nvswap.errors.check(code, error)
                raise KeyboardInterrupt

            with mock.patch("nvswap.engine.check", interrupted):
                raises(KeyboardInterrupt, lambda begin=begin, array=array: begin({"a": array}))
            del array, begin
            gc.collect()
            assert kept() is not None
            engine.wait("a")


@promise
def closing_in_a_signal_handler_within_a_call_is_an_exception(directory):
    engine = opened(directory)
    engine.register_all({name: ("F32", 600000) for name in "ab"})
    pinned = engine.swap_in("a", "w")
    before = signal.signal(signal.SIGUSR1, lambda *_: engine.close())
    thread = threading.Thread(target=signal_within_call, args=(engine,))
    try:
        thread.start()
        raises(nvswap.Error, lambda: engine.swap_in("b", "w"), errno.EDEADLK)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    pinned.release()
    engine.close()


@promise
def a_kept_store_has_what_was_committed(directory):
    config = settings(directory, keep=True)
    with nvswap.Engine(config) as engine:
        engine.register("a", "BF16", (10, 20))
        engine.register("never written", "F32", 1)
        engine.store_from({"a": numpy.arange(200, dtype=numpy.uint16)})
        engine.commit()
        generation = engine.generation
        assert engine.note == b""
        engine.note = b"step 7\0"
        engine.commit()
        generation = engine.generation
        engine.store_from({"a": numpy.zeros(200, numpy.uint16)})
        engine.abandon()
        assert engine.closed
    with nvswap.Engine(config) as engine:
        assert engine.generation == generation > 0
        assert engine.note == b"step 7\0"
        raises(nvswap.Error, lambda: setattr(engine, "note", bytes(65537)), errno.E2BIG)
        first, second = engine.stored()
        assert first[:5] == ("a", "BF16", 200, 400, True) and first.checksum
        assert first.shape == (10, 20)
        assert second == ("never written", "F32", 1, 4, False, None, (1,))
        raises(nvswap.Error, lambda: engine.register("a", "F32", 200), errno.ESTALE)
        engine.register("a", "BF16", (10, 20))
        with engine.pinned("a") as tensors:
            assert (tensors["a"].ravel() == numpy.arange(200)).all()
    with nvswap.Engine(settings(directory, keep=True, read_only=True)) as engine:
        engine.register("a", "BF16", (10, 20))
        raises(nvswap.Error, lambda: engine.swap_in("a", "w"), errno.EROFS)


@promise
def tensors_of_a_kept_store_come_back_in_their_shapes(directory):
    config = settings(directory, keep=True)
    given = {"matrix": numpy.ones((3, 4, 5), numpy.float32), "scalar": numpy.float32(7),
             "none": numpy.zeros((2, 0), numpy.uint8)}
    with nvswap.Engine(config) as engine:
        engine.register_all(given)
        assert {name: engine[name].shape for name in given} == \
            {"matrix": (3, 4, 5), "scalar": (), "none": (2, 0)}
        assert engine.info("matrix")["shape"] == (3, 4, 5) and engine.info("scalar")["ndim"] == 0
        engine.store_from({"matrix": given["matrix"], "scalar": numpy.asarray(given["scalar"])})
        raises(nvswap.Error, lambda: engine.register("other"), errno.ENOENT)
        raises(nvswap.Error, lambda: engine.register("other", "F32"), errno.ENOENT)
        raises(nvswap.Error, lambda: engine.register("other", None, 4), errno.EINVAL)
        raises(nvswap.Error, lambda: engine.register_all({"other": "F32"}), errno.EINVAL)
        raises(nvswap.Error, lambda: engine.register("other", "U8", [1] * 65), errno.EINVAL)
    with nvswap.Engine(config) as engine:
        assert {each.name: each.shape for each in engine.stored()} == \
            {"matrix": (3, 4, 5), "scalar": (), "none": (2, 0)}
        engine.register("matrix")
        engine.register_all({"scalar": None, "none": ("U8", None)})
        with engine.pinned(["matrix", "scalar"]) as tensors:
            assert (tensors["matrix"] == given["matrix"]).all() and tensors["scalar"] == 7
            assert tensors["matrix"].shape == (3, 4, 5) and tensors["scalar"].shape == ()
    with nvswap.Engine(config) as engine:
        engine.register("matrix", given["matrix"].reshape(5, 12))
    with nvswap.Engine(config) as engine:
        assert engine.register("matrix").shape == (5, 12)


@promise
def ranges_are_read_and_written(directory):
    with opened(directory) as engine:
        engine.register("a", "U8", 100)
        engine.store_from({"a": bytes(range(100))})
        engine.write_range("a", b"xyz", 50)
        read = bytearray(5)
        engine.read_range("a", read, 49)
        assert read == b"\x31xyz\x35"
        raises(nvswap.Error, lambda: engine.read_range("a", read, 99), errno.EINVAL)


@promise
def steps_are_measured(directory):
    with opened(directory) as engine:
        engine.register_all({f"t{i}": ("F32", 200000) for i in range(10)})
        for name in engine:
            engine.store_from({name: numpy.zeros(200000, numpy.float32)})
        for _ in range(3):
            with engine.step() as io:
                for name in engine:
                    with engine.pinned(name):
                        pass
        assert io["hits"] + io["misses"] == 10 and io["wall_ns"] > 0
        raises(nvswap.Error, engine.step_end, errno.EBUSY)
        with engine.step() as io:
            engine.store_from({"t0": numpy.ones(200000, numpy.float32)})
        assert io["written_bytes"] == 800000 <= io["drive_written_bytes"] < 810000
        assert engine.stats()["drive_written_bytes"] >= 11 * 800000
        assert engine.stats()["tensors"] == 10 and engine.stats()["pool"]["bytes"] > 0


@promise
def an_aio_is_shared(directory):
    config = nvswap.Config(settings(directory))
    with nvswap.Aio(config) as aio:
        with nvswap.Engine(config, aio=aio) as engine:
            engine.register("a", "U8", 1000)
            engine.store_from({"a": bytes(1000)})
            raises(nvswap.Error, aio.close, errno.EBUSY)
            assert not aio.closed and aio.stats()["write"]["bytes"] >= 1000


@promise
def tensors_are_renamed_and_forgotten(directory):
    with opened(directory) as engine:
        tensor = engine.register("a", "U8", 10)
        engine.store_from({"a": b"0123456789"})
        engine.rename("a", "b")
        assert list(engine) == ["b"] and tensor.name == "b"
        with engine.pinned("b", arrays="memoryview") as tensors:
            assert isinstance(tensors["b"], memoryview)
            assert bytes(tensors["b"]) == b"0123456789"
            raises(nvswap.Error, lambda: engine.forget("b"), errno.EBUSY)
        engine.forget("b")
        assert len(engine) == 0
        raises(nvswap.Error, lambda: engine.swap_in(tensor), errno.EINVAL)


@promise
def names_that_are_not_utf8_are_refused(directory):
    with opened(directory, keep=True) as engine:
        engine.register("a", "U8", 1)
        for name in "\udcff", "a\udce9":
            raises(nvswap.Error, lambda: engine.register(name, "U8", 1), errno.EINVAL)
            raises(nvswap.Error, lambda: engine.rename("a", name), errno.EINVAL)
        assert list(engine) == ["a"]


@promise
def a_closed_engine_is_an_exception(directory):
    engine = opened(directory)
    engine.register("a", "U8", 10)
    pinned = engine.swap_in("a", "w")
    pinned.release()
    engine.close()
    for call in (engine.commit, engine.stats, engine.step_begin, engine.stored, engine.pool,
                 lambda: engine.swap_in("a"), lambda: engine.info("a"), lambda: engine.generation,
                 lambda: engine.register("b", "U8", 1)):
        raises(nvswap.ClosedError, call, errno.EBADF)
    raises(nvswap.Error, lambda: pinned["a"], errno.EINVAL)


@promise
def errors_of_a_path_have_it(directory):
    def refused(call, code):
        error = raises(nvswap.Error, call, code)
        assert error.path and error.path in str(error) and error.offset is None, str(error)
        return error

    missing = f"{directory}/a: b/missing"
    for call in (lambda: nvswap.Engine(settings(missing)), lambda: nvswap.Optimizer(
            settings(missing), {"a": numpy.zeros(4, numpy.float32)})):
        assert refused(call, errno.ENOENT).path == missing
    with nvswap.Engine(settings(directory)) as engine:
        error = refused(lambda: engine.register("a", "F32", 1 << 50), errno.ENOSPC)
        assert error.path == f"{directory}/nvswap/rank0/data"
    open(f"{directory}/file", "wb").close()
    with nvswap.Aio() as aio, aio.open_file(f"{directory}/file") as file:
        error = refused(lambda: file.pwrite(bytes(4096)), errno.EINVAL)
        assert error.path == f"{directory}/file" and 'open it with mode "r+"' in str(error)


main()
