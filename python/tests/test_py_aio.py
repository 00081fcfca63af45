#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""nvswap.Aio, its files and requests, and pinned memory."""

import asyncio
import concurrent.futures
import ctypes
import errno
import gc
import logging
import os
import threading
import time

import numpy

from promises import main, promise, raises, timeouts_of
import nvswap


@promise
def a_write_is_read_back_at_any_length_and_offset(directory):
    with nvswap.Aio() as aio, aio.open_file(directory + "/f", "w") as file:
        for nbytes, offset in ((0, 0), (1, 0), (513, 7), (1 << 20, 4096), (100001, 3)):
            data = os.urandom(nbytes)
            assert file.pwrite(data, offset).wait() == nbytes
            read = bytearray(nbytes)
            assert file.pread(read, offset).wait() == nbytes
            assert read == data


@promise
def a_request_can_be_awaited(directory):
    async def run(file, array):
        written = [file.pwrite(array[i:i + 1000], i * 8) for i in range(0, 10000, 1000)]
        return await asyncio.gather(*written)

    with nvswap.Aio() as aio, aio.open_file(directory + "/f", "w") as file:
        array = numpy.arange(10000, dtype=numpy.int64)
        assert asyncio.run(run(file, array)) == [8000] * 10
        # A second loop, after the first was closed.
        assert asyncio.run(run(file, array)) == [8000] * 10


@promise
def an_aio_may_be_closed_while_a_request_is_awaited(directory):
    async def wait_for(request):
        return await request

    async def run():
        # The next aio has the descriptors that the one before had.
        for _ in range(3):
            with nvswap.Aio() as aio, aio.open_file(directory + "/f", "w") as file:
                awaited = asyncio.ensure_future(wait_for(file.pwrite(bytes(1 << 20))))
                await asyncio.sleep(0)
            with nvswap.Aio() as aio, aio.open_file(directory + "/f", "w") as file:
                assert await asyncio.wait_for(wait_for(file.pwrite(bytes(4096))), 60) == 4096
            assert await awaited == 1 << 20

    descriptors = len(os.listdir("/proc/self/fd"))
    asyncio.run(run())
    assert len(os.listdir("/proc/self/fd")) == descriptors


@promise
def an_awaited_failure_is_raised(directory):
    async def run(file):
        await file.pread(bytearray(10), 1 << 20)

    with nvswap.Aio() as aio, aio.open_file(directory + "/f", "w") as file:
        error = raises(nvswap.Error, lambda: asyncio.run(run(file)), errno.ENODATA)
        assert error.path == directory + "/f" and error.offset == 1 << 20


@promise
def a_request_becomes_a_future(directory):
    with nvswap.Aio() as aio, aio.open_file(directory + "/f", "w") as file:
        futures = [file.pwrite(bytes(4096), i * 4096).future() for i in range(20)]
        done, left = concurrent.futures.wait(futures, 60)
        assert len(done) == 20 and not left and futures[0].result() == 4096
        failed = file.pread(bytearray(1), 1 << 30).future()
        assert isinstance(failed.exception(60), nvswap.Error)
    assert "nvswap-futures" not in [thread.name for thread in threading.enumerate()]


@promise
def a_done_callback_may_close_the_aio(directory):
    def watched(call):
        aio = nvswap.Aio()
        closed = threading.Event()

        def close(_):
            aio.close()
            closed.set()

        file = aio.open_file(directory + "/f", "w")
        others = [file.pwrite(bytes(65536), (i + 1) * 65536) for i in range(10)]
        request = file.pwrite(bytes(4096))
        request.add_done_callback(close)
        call(aio, request)
        assert closed.wait(60) and aio.closed
        assert [other.wait() for other in others] == [65536] * 10 and request.wait() == 4096

    async def awaited(request):
        await request

    watched(lambda aio, request: request.wait())
    watched(lambda aio, request: aio.wait_any([request, request]))
    watched(lambda aio, request: aio.wait_all())
    watched(lambda aio, request: request.future().result(60))
    watched(lambda aio, request: asyncio.run(awaited(request)))
    watched(lambda aio, request: aio.close())


@promise
def a_failing_done_callback_is_logged_and_ends_nothing_else(directory):
    def fail(_):
        raise KeyError("wrong")

    def leave(_):
        if threading.current_thread() is not threading.main_thread():
            left.append(True)
            raise SystemExit

    logger, records, left = logging.getLogger("nvswap"), [], []
    logger.addFilter(lambda record: records.append(record))
    try:
        with nvswap.Aio() as aio, aio.open_file(directory + "/f", "w") as file:
            request, seen = file.pwrite(bytes(4096)), []
            for callback in (fail, seen.append):
                request.add_done_callback(callback)
            assert request.wait() == 4096 and seen == [request]
            request.add_done_callback(fail)
            for callback in (fail, leave):
                requests = [file.pwrite(bytes(4096), i * 4096) for i in range(5)]
                for request in requests:
                    request.add_done_callback(callback)
                assert [each.future().result(60) for each in requests] == [4096] * 5
    finally:
        logger.filters.clear()
    assert sum(record.exc_info[0] is KeyError for record in records) == 7
    assert any("thread of futures" in record.getMessage() for record in records) == bool(left)


@promise
def wait_all_counts_requests_and_raises_what_failed(directory):
    with nvswap.Aio() as aio, aio.open_file(directory + "/f", "w") as file:
        requests = [file.pwrite(bytes(100), i * 100) for i in range(5)]
        assert aio.wait_all() == 5 and all(request.done() for request in requests)
        assert aio.wait_all() == 0
        file.pread(bytearray(1), 1 << 30)
        raises(nvswap.Error, aio.wait_all, errno.ENODATA)
        assert aio.wait_all() == 0


@promise
def wait_any_returns_a_completed_request(directory):
    with nvswap.Aio() as aio, aio.open_file(directory + "/f", "w") as file:
        requests = [file.pwrite(bytes(100), i * 100) for i in range(5)]
        left = set(requests)
        while left:
            request = aio.wait_any(left)
            assert request.done() and request.wait() == 100
            left.remove(request)
        raises(nvswap.Error, lambda: aio.wait_any([]), errno.EINVAL)
        failing = file.pread(bytearray(1), 1 << 30)
        assert aio.wait_any([failing]) is failing
        raises(nvswap.Error, failing.wait, errno.ENODATA)


class Library:
    """The library as a module calls it, with other functions in some places."""

    def __init__(self, module, **functions):
        self.module, self.theirs, self.functions = module, module.lib, functions

    def __getattr__(self, name):
        return self.functions.get(name) or getattr(self.theirs, name)

    def __enter__(self):
        self.module.lib = self

    def __exit__(self, *_):
        self.module.lib = self.theirs


@promise
def a_request_in_flight_or_overdue_has_a_timeout_as_its_exception(directory):
    with nvswap.Aio() as aio, aio.open_file(directory + "/f", "w") as file:
        for code in (-errno.EINPROGRESS, -errno.ETIMEDOUT):
            with Library(nvswap.aio, nvs_request_status=lambda *_, code=code: code):
                request = file.pwrite(bytes(4096))
                assert not request.done() and isinstance(request.exception(), nvswap.Timeout)
                assert "in flight" in repr(request)
            assert request.wait() == 4096 and request.exception() is None


@promise
def waits_have_the_timeouts_of_their_calls(directory):
    with nvswap.Aio() as aio, aio.open_file(directory + "/f", "w") as file:
        assert timeouts_of(nvswap.aio, [
            lambda timeout: file.pwrite(b"x").wait(timeout),
            lambda timeout: aio.wait([file.pwrite(b"x")], timeout),
            lambda timeout: aio.wait_any([file.pwrite(b"x")], timeout),
            aio.wait_all]) == [60, 61, 62, 63]


@promise
def a_request_is_done_although_a_thread_waits_for_others_too(directory):
    waits = []

    def wait(pointer, array, n, timeout_ms, error):
        """In the first slice only the first request completes."""
        waits.append((n, request._finished))
        assert nvswap.handle.lib.nvs_aio_wait(pointer, array, 1, -1, error) == 0
        if len(waits) > 1:
            return 0
        time.sleep(timeout_ms / 1000)
        return -errno.ETIMEDOUT

    with nvswap.Aio() as aio, aio.open_file(directory + "/f", "w") as file:
        request, other = file.pwrite(bytes(10)), file.pwrite(bytes(20), 10)
        with Library(nvswap.aio, nvs_aio_wait=wait,
                     nvs_request_status=lambda pointer, error: -errno.EINPROGRESS
                     if pointer == other._pointer and len(waits) == 1
                     else nvswap.handle.lib.nvs_request_status(pointer, error)):
            aio.wait([request, other])
        assert waits == [(2, False), (1, True)]


@promise
def a_wait_without_time_is_told_from_one_that_ends(_):
    def returned(timeout, *codes):
        """What a wait returns that gets these codes, from calls that return at once."""
        left = list(codes)
        return nvswap.handle.wait_sliced(aio, lambda *_: left.pop(0), timeout, None)

    with nvswap.Aio() as aio:
        assert returned(0, -errno.EAGAIN) == -errno.EAGAIN
        assert returned(1e-9, -errno.EAGAIN) == -errno.ETIMEDOUT
        assert returned(None, 7) == 7
        # An I/O is overdue.
        assert returned(None, -errno.ETIMEDOUT) == -errno.ETIMEDOUT


@promise
def a_failed_sync_names_the_file(directory):
    with nvswap.Aio() as aio, aio.open_file(directory + "/f", "w") as file:
        with Library(nvswap.aio, nvs_file_sync=lambda *_: -errno.EIO):
            assert raises(nvswap.Error, file.sync, errno.EIO).path == directory + "/f"
        file.sync()


@promise
def a_file_is_opened_as_its_mode_says(directory):
    path = directory + "/f"
    with nvswap.Aio() as aio:
        with aio.open_file(path, "a") as file:
            assert file.direct and file.unit > 1
            assert file.pwrite(bytes(100)).wait() == 100
        for mode, left in (("a", 100), ("r+", 100), ("w", 0)):
            aio.open_file(path, mode).close()
            assert os.path.getsize(path) == left
        with aio.open_file(path, "r+", buffered=True) as file:
            assert not file.direct and file.unit == 1
        with aio.open_file(path, "r+", units=True) as file:
            raises(nvswap.Error, lambda: file.pwrite(bytes(file.unit + 1)), errno.EINVAL)
            assert file.pwrite(bytes(file.unit)).wait() == file.unit


@promise
def a_part_of_an_array_is_transferred(directory):
    with nvswap.Aio() as aio, aio.open_file(directory + "/f", "w") as file:
        assert file.pwrite(b"0123456789", 0, 7).wait() == 7
        assert os.path.getsize(directory + "/f") == 7
        read = bytearray(b"x" * 7)
        assert file.pread(read, 2, 3).wait() == 3 and read == b"234xxxx"
        raises(nvswap.Error, lambda: file.pwrite(b"x", 0, -1), errno.EINVAL)


@promise
def a_request_of_another_aio_is_refused(directory):
    with nvswap.Aio() as aio, nvswap.Aio() as other, aio.open_file(directory + "/f", "w") as file:
        request = file.pwrite(bytes(4096))
        for _ in ("in flight", "completed"):
            for call in (other.wait, other.wait_any):
                error = raises(nvswap.Error, lambda call=call: call([request]), errno.EINVAL)
                assert "another aio" in str(error)
            request.wait()


@promise
def a_loop_that_is_closed_is_not_called(_):
    loop, called = asyncio.new_event_loop(), []
    nvswap.aio._in_loop(loop, called.append, 1)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    nvswap.aio._in_loop(loop, called.append, 2)
    assert called == [1]


@promise
def the_memory_of_a_transfer_is_kept_alive(directory):
    with nvswap.Aio() as aio, aio.open_file(directory + "/f", "w") as file:
        request = file.pwrite(numpy.full(1 << 20, 7, numpy.uint8))
        gc.collect()
        # An exported bytearray can't be resized, so its memory stays where it is.
        array = bytearray(b"8" * 4096)
        held = file.pwrite(array, 1 << 20)
        if not held.done():
            raises(BufferError, lambda: array.extend(bytes(1 << 20)))
        aio.wait([request, held])
        array.extend(b"x")
        read = bytearray(1 << 20)
        file.pread(read).wait()
        assert read == b"\7" * (1 << 20)


@promise
def a_request_may_be_dropped_in_flight(directory):
    with nvswap.Aio() as aio, aio.open_file(directory + "/f", "w") as file:
        for i in range(50):
            file.pwrite(bytes(65536), i * 65536)
        gc.collect()
        assert aio.wait_all() == 50 and not aio._in_flight


@promise
def several_threads_wait_for_one_request(directory):
    with nvswap.Aio() as aio, aio.open_file(directory + "/f", "w") as file:
        for _ in range(30):
            requests = [file.pwrite(bytes(65536), i * 65536) for i in range(4)]
            counts = []
            threads = [threading.Thread(target=lambda: counts.append(
                sum(request.wait() for request in requests))) for _ in range(3)]
            threads += [threading.Thread(target=aio.take), threading.Thread(target=aio.wait_all)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert counts == [4 * 65536] * 3


@promise
def a_full_or_missing_file_is_an_os_error(directory):
    with nvswap.Aio() as aio:
        error = raises(OSError, lambda: aio.open_file(directory + "/none"), errno.ENOENT)
        assert error.path == directory + "/none"
        raises(OSError, lambda: aio.open_file(directory), errno.EISDIR)
        raises(OSError, lambda: aio.open_file(directory, "x"), errno.EINVAL)
        error = raises(OSError, lambda: aio.open_file(os.fsencode(directory + "/none")))
        assert error.path == directory + "/none"
        raises(ValueError, lambda: aio.open_file(directory + "/f\0g", "w"))
        raises(ValueError, lambda: nvswap.empty(4096, path=directory + "\0"))
        raises(TypeError, lambda: aio.open_file(3.5))
        with aio.open_file(directory + "/f", "w"):
            pass
        with aio.open_file(directory + "/f") as file:
            raises(OSError, lambda: file.pwrite(b"x"), errno.EINVAL)


@promise
def bad_arrays_are_exceptions(directory):
    with nvswap.Aio() as aio, aio.open_file(directory + "/f", "w") as file:
        array = numpy.zeros((100, 100))
        raises(ValueError, lambda: file.pwrite(array[:, ::2]))
        raises(ValueError, lambda: file.pwrite(array.T))
        raises((BufferError, ValueError, TypeError), lambda: file.pread(b"read only"))
        raises(TypeError, lambda: file.pwrite("text"))
        raises(TypeError, lambda: file.pwrite(None))
        fields = [("O", "f4"), ("P", "c16")]
        file.pwrite(numpy.zeros(10, fields)).wait()
        file.pwrite(numpy.zeros(10, numpy.complex64)).wait()
        for pointers in (numpy.array(["a", None], dtype=object),
                         numpy.zeros(10, [*fields, ("x", object)]), (ctypes.c_char_p * 3)(),
                         (ctypes.c_wchar_p * 3)(), (ctypes.c_void_p * 3)(),
                         (ctypes.POINTER(ctypes.c_int) * 3)(), (ctypes.CFUNCTYPE(None) * 3)()):
            error = raises(TypeError, lambda: file.pread(pointers))
            assert "pointers" in str(error)
            raises(TypeError, lambda: file.pwrite(pointers))
        raises(nvswap.Error, lambda: file.pwrite(b"x", -1), errno.EINVAL)
        raises(nvswap.Error, lambda: file.pwrite(b"x", 0, 2), errno.EINVAL)
        raises(nvswap.Error, lambda: aio.submit([nvswap.Transfer(file, "copy", b"x")]),
               errno.EINVAL)


@promise
def use_after_close_is_an_exception(directory):
    aio = nvswap.Aio()
    file = aio.open_file(directory + "/f", "w")
    request = file.pwrite(bytes(1000))
    aio.close()
    aio.close()
    assert request.done() and request.wait() == 1000
    raises(nvswap.ClosedError, lambda: file.pwrite(b"x"), errno.EBADF)
    raises(ValueError, aio.wait_all)
    raises(nvswap.ClosedError, lambda: aio.open_file(directory + "/f"))
    raises(nvswap.ClosedError, aio.stats)
    file.close()
    raises(nvswap.ClosedError, lambda: file.unit)


@promise
def pinned_memory_lives_as_long_as_its_arrays(directory):
    with nvswap.Aio() as aio:
        array = nvswap.empty((100, 1000), "F32", aio=aio, path=directory)
        assert array.shape == (100, 1000) and not array.any() and nvswap.is_pinned(array)
        view = array[50:]
        del array
        gc.collect()
        assert nvswap.is_pinned(view)
        view[:] = 1
    assert view.sum() == 50 * 1000
    assert not nvswap.is_pinned(numpy.zeros(10))
    memory = nvswap.empty(4096)
    assert isinstance(memory, memoryview) and memory.nbytes == 4096
    assert isinstance(nvswap.empty(8, "F32", arrays="memoryview"), memoryview)
    raises(nvswap.ClosedError, lambda: nvswap.empty(8, aio=aio))
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert not nvswap.is_pinned((ctypes.c_char * (1 << 40)).from_address(address))
    raises(nvswap.Error, lambda: nvswap.empty(-1), errno.EINVAL)
    raises(nvswap.Error, lambda: nvswap.empty(1, "F128"), errno.EINVAL)


@promise
def an_array_of_any_shape_is_made_or_refused_with_the_shape(_directory):
    for shape, lengths in ((numpy.int64(3), (3,)), (numpy.array([2, 3]), (2, 3)), (0, (0,)),
                           ([0, 3], (0, 3))):
        assert nvswap.empty(shape, "F32").shape == lengths
    assert nvswap.empty(0).nbytes == 0
    raises(TypeError, lambda: nvswap.empty(1.5))
    for shape, dtype in ((1 << 62, "F64"), (1 << 64, None), ((1 << 64, 0), "F32")):
        error = raises(nvswap.Error, lambda shape=shape, dtype=dtype: nvswap.empty(shape, dtype),
                       errno.EINVAL)
        assert "more than can be addressed" in str(error)


@promise
def statistics_count_what_was_transferred(directory):
    with nvswap.Aio() as aio, aio.open_file(directory + "/f", "w") as file:
        file.pwrite(bytes(1 << 20)).wait()
        stats = aio.stats()
        assert stats["write"]["bytes"] == 1 << 20 and stats["ioengine"]


main()
