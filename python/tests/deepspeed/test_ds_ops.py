#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's ops async_io, pin_memory and cpu_adam in nvswap's place, called as DeepSpeed does."""

import errno
import functools
import gc
import inspect
import os
import re
import subprocess
import threading
import types
import weakref

from promises import Skip, child, main, promise, raises

os.environ["DS_ACCELERATOR"] = "cpu"
import torch  # noqa: E402

import nvswap.deepspeed  # noqa: E402

nvswap.deepspeed.install()

import deepspeed  # noqa: E402
from deepspeed.ops.op_builder import (  # noqa: E402
    AsyncIOBuilder, CPUAdagradBuilder, CPUAdamBuilder, CPULionBuilder, PinMemoryBuilder)

aio = AsyncIOBuilder().load()


def handle():
    return aio.aio_handle(block_size=65536, queue_depth=8, single_submit=False, overlap_events=True,
                          intra_op_parallelism=2)


@promise
def a_handle_tells_its_settings(_):
    it = aio.aio_handle()
    assert (it.get_block_size(), it.get_queue_depth(), it.get_single_submit(),
            it.get_overlap_events(), it.get_intra_op_parallelism()) == (1 << 20, 128, False, False, 1)
    assert handle().get_alignment() == 1024
    assert "queue_depth" in str(raises(OSError, lambda: aio.aio_handle(queue_depth=0), errno.EINVAL))


@promise
def any_tensor_is_read_back_at_any_length_and_offset(directory):
    it, path = handle(), directory + "/f"
    for numel, offset in ((1, 0), (511, 3), (4096, 4096), (300001, 1)):
        for dtype in (torch.uint8, torch.bfloat16, torch.float32):
            data = torch.randint(0, 200, (numel,)).to(dtype)
            found = torch.empty_like(data)
            assert it.async_pwrite(data, path, offset) == 0 and it.wait() == 1
            assert it.async_pread(found, path, offset) == 0 and it.wait() == 1
            assert torch.equal(data, found)


@promise
def tensors_that_are_not_contiguous_are_copied(directory):
    it, data = handle(), torch.arange(1200.0).view(30, 40)
    assert it.sync_pwrite(data.t(), directory + "/f") == 1
    found = torch.zeros(30, 40)
    assert it.async_pread(found.t(), directory + "/f") == 0 and it.wait() == 1
    assert torch.equal(found, data)


@promise
def each_call_returns_what_deepspeeds_does(directory):
    it, data, path = handle(), torch.rand(1000), directory + "/f"
    assert it.write(data, path, True) == 0 and it.read(data, path, True) == 0
    assert it.pwrite(data, path, False, True) == 0 and it.pread(data, path, False, True) == 0
    assert it.wait() == 2 and it.wait() == 0
    assert it.pwrite(data, path, True, False) == 1 and it.pread(data, path, True, False) == 1
    assert it.sync_pwrite(data, path, 4096) == 1 and it.sync_pread(data, path, 4096) == 1
    assert aio.aio_write(data, path, 65536, 8, False, False, True) == 0
    assert aio.aio_read(data, path, 65536, 8, False, False, True) == 0
    copy = torch.empty(10, 100)
    assert aio.deepspeed_memcpy(copy, data) == 0 and torch.equal(copy.view(-1), data)
    assert os.stat(path).st_mode & 0o777 == 0o600


SOURCES = os.path.join(os.path.dirname(deepspeed.__file__), "ops", "csrc")
DEFAULTS = {"": inspect.Parameter.empty, "0": 0, "1": 1, "128": 128, "1024 * 1024": 1 << 20, "false": False}


def source(*names):
    with open(os.path.join(SOURCES, *names), encoding="utf-8") as file:
        return file.read()


def bound_methods(*names):
    """Of each method that a source in C++ binds, its name, and its arguments' names and defaults."""
    for binding in re.split(r"[^m]\.def\(", source(*names))[1:]:
        found = re.match(r'\s*"(\w+)"', binding)
        yield found[1] if found else "__init__", [
            (name, DEFAULTS[default]) for name, default in re.findall(r'"(\w+)"_a(?: = ([^,)]+))?', binding)]


def bound_functions(module, headers):
    """Of each function that a source in C++ binds without names, its arguments as a header names them."""
    for name, function in re.findall(r'm\.def\(\s*"(\w+)",\s*&(\w+)', source(*module)):
        declared = re.search(rf"\b{function}\(([^)]*)\)", headers)
        yield name, re.findall(r"(\w+)(?: = [^,]+)?(?:,|$)", declared[1])


def arguments_of(call):
    return [(each.name, each.default) for each in inspect.signature(call).parameters.values()
            if each.name != "self" and each.kind is not inspect.Parameter.KEYWORD_ONLY]


@promise
def arguments_have_the_names_and_places_of_deepspeeds(_):
    methods = list(bound_methods("aio", "py_lib", "py_ds_aio.cpp"))
    assert len(methods) == 20, methods
    for name, arguments in methods:
        # Python's grammar has the word async, and one method has both overloads.
        own = {"async": "async_op", "fd": "filename"}
        expected = [(own.get(each, each), default) for each, default in arguments]
        found = arguments_of(getattr(aio.aio_handle, name))
        if name == "async_pwrite":
            found[1] = "filename", inspect.Parameter.empty
        assert found == expected, (name, found, expected)
    methods = list(bound_methods("pin_memory", "py_ds_pin_memory.cpp"))[1:]
    assert len(methods) == 4, methods
    for name, arguments in methods:
        assert arguments_of(getattr(PinMemoryBuilder().load().pin_handle, name)) == arguments, name
    headers = source("aio", "py_lib", "deepspeed_py_aio.h") + source("aio", "py_lib", "deepspeed_py_copy.h") \
        + "".join(source("includes", f"cpu_{name}.h") for name in ("adam", "adagrad", "lion")) \
        + source("adagrad", "cpu_adagrad.cpp")
    functions = [(aio, *each) for each in bound_functions(("aio", "py_lib", "py_ds_aio.cpp"), headers)]
    functions += [(CPUAdamBuilder().load(), *each)
                  for each in bound_functions(("adam", "cpu_adam.cpp"), headers)
                  if each[0] in ("create_adam", "adam_update", "destroy_adam")]
    for builder, name in ((CPUAdagradBuilder, "adagrad"), (CPULionBuilder, "lion")):
        functions += [(builder().load(), *each) for each in bound_functions((name, f"cpu_{name}.cpp"), headers)]
    assert len(functions) == 12, functions
    for module, name, arguments in functions:
        assert [each for each, _ in arguments_of(getattr(module, name))] == arguments, name


@promise
def every_argument_is_taken_by_its_name(directory):
    it, path = handle(), directory + "/f"
    it.sync_pwrite(torch.ones(1000), path)
    pins, descriptor = PinMemoryBuilder().load().pin_handle(), os.open(path, os.O_RDWR)
    pinned = [pins.new_cpu_locked_tensor(num_elem=10, example_tensor=torch.ones(1)) for _ in range(3)]
    assert pins.is_pinned(buffer=pinned[0]) and pins.free_cpu_locked_tensor(locked_tensor=pinned[0])
    assert pins.free_cpu_locked_tensor_by_ptr(address=pinned[1].data_ptr())
    values = {"buffer": torch.ones(1000), "filename": path, "validate": True, "async": True,
              "file_offset": 0, "fd": descriptor, "num_elem": 10, "example_tenosr": torch.ones(1),
              "tensor": pinned[2]}
    begun = 0
    for name, arguments in list(bound_methods("aio", "py_lib", "py_ds_aio.cpp"))[1:]:
        result = getattr(it, name)(**{each: values[each] for each, _ in arguments})
        begun += name in ("pread", "pwrite", "async_pread", "async_pwrite")
        if name == "wait":
            assert result == begun == 5, (result, begun)
        elif name == "free_cpu_locked_tensor":
            assert result is True
    os.close(descriptor)
    raises(TypeError, lambda: it.async_pwrite(buffer=torch.ones(1), file_offset=0))
    raises(TypeError, lambda: it.async_pwrite(torch.ones(1), path, fd=1))
    raises(TypeError, lambda: it.pread(torch.ones(1), path, False, True, **{"async": True}))


@promise
def a_validated_transfer_that_differs_from_the_file_is_an_error(directory):
    it, path, data = handle(), directory + "/f", torch.rand(60, 50)
    now = it._now

    def change_last_byte():
        end = os.path.getsize(path) - 1
        os.pwrite(descriptor, bytes([os.pread(descriptor, 1, end)[0] ^ 1]), end)

    def shorten():
        os.truncate(path, os.path.getsize(path) - 1)

    def now_and(change):
        return lambda *arguments: (now(*arguments), change())

    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    calls = [(it.read, (path, True, 4096)), (it.pread, (descriptor, True, False, 4096)),
             (it.write, (path, True, 4096)), (it.pwrite, (descriptor, True, False, 4096))]
    for tensor in (data, data.t(), data.bfloat16()):
        for change in (change_last_byte, shorten):
            for call, arguments in calls:
                it._now = now
                os.truncate(path, 0)
                assert it.write(tensor, path, True, 4096) == 0
                it._now = now_and(change)
                error = raises(OSError, functools.partial(call, tensor, *arguments), errno.EIO)
                assert error.offset == 4096 and error.path in (path, f"/proc/self/fd/{descriptor}")
    os.close(descriptor)


@promise
def a_wait_counts_what_all_threads_began(directory):
    it, data = handle(), torch.rand(1000)
    threads = [threading.Thread(target=it.async_pwrite, args=(data, f"{directory}/{i}"))
               for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert it.wait() == 8


@promise
def an_error_names_path_and_offset_and_leaves_the_handle_usable(directory):
    it, path = handle(), directory + "/f"
    it.sync_pwrite(torch.zeros(100000, dtype=torch.uint8), path)
    assert it.async_pread(torch.empty(200000, dtype=torch.uint8), path) == 0
    assert it.async_pread(torch.empty(10, dtype=torch.uint8), path) == 0
    error = raises(OSError, it.wait, errno.ENODATA)
    assert error.path == path and error.offset >= 65536
    assert it.wait() == 0 and it.sync_pread(torch.empty(10, dtype=torch.uint8), path) == 1
    raises(OSError, lambda: it.async_pread(torch.empty(1), directory + "/none"), errno.ENOENT)


@promise
def a_full_drive_is_an_error(directory):
    if os.geteuid():
        raise Skip("mounting a small file system needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", directory], check=True)
    try:
        it = handle()
        assert it.async_pwrite(torch.zeros(3 << 20, dtype=torch.uint8), directory + "/f") == 0
        error = raises(OSError, it.wait, errno.ENOSPC)
        assert error.path == directory + "/f"
        del it
        gc.collect()
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


@promise
def a_replaced_file_is_opened_anew(directory):
    it, path = handle(), directory + "/f"
    it.sync_pwrite(torch.ones(1000), path)
    os.rename(path, directory + "/old")
    it.sync_pwrite(torch.zeros(1000), path)
    found = torch.empty(1000)
    it.sync_pread(found, path)
    assert not found.any()
    it.sync_pread(found, directory + "/old")
    assert found.all()


@promise
def small_transfers_that_start_together_fail_alone(directory):
    it, data = handle(), torch.ones(1000)
    for index, offset in enumerate((0, 2 ** 63 - 100, 0)):
        assert it.async_pwrite(data, f"{directory}/{index}", offset) == 0
    assert raises(OSError, it.wait, errno.EINVAL).path == directory + "/1"
    assert it.wait() == 0
    for index in (0, 2):
        found = torch.empty(1000)
        assert it.sync_pread(found, f"{directory}/{index}") == 1 and torch.equal(found, data)
    raises(OSError, lambda: it.async_pwrite(data, directory + "/0", -1), errno.EINVAL)


@promise
def small_transfers_precede_the_closing_of_their_file(directory):
    it, path = handle(), directory + "/f"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    assert it.async_pwrite(torch.ones(1000, dtype=torch.uint8), path) == 0
    os.unlink(path)
    for index in range(20):  # closes the deleted file
        assert it.async_pwrite(torch.zeros(10), f"{directory}/{index}") == 0
    assert it.wait() == 21
    assert os.pread(descriptor, 2000, 0) == b"\1" * 1000
    os.close(descriptor)


def open_below(directory):
    """What is open there."""
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
             if os.path.lexists(f"/proc/self/fd/{fd}")]
    return [link for link in links if link.startswith(directory + "/")]


@promise
def deleted_files_do_not_stay_open(directory):
    it = handle()
    it.sync_pwrite(torch.ones(1000), directory + "/f")
    os.unlink(directory + "/f")
    for index in range(20):  # each opening looks at some of the open files
        it.sync_pwrite(torch.ones(1000), f"{directory}/g{index}")
    assert not [link for link in open_below(directory) if link.startswith(directory + "/f")]


@promise
def nothing_stays_open_of_a_descriptor_once_it_is_waited_for(directory):
    it, path = handle(), directory + "/f"
    for flags in (os.O_RDWR, os.O_WRONLY, os.O_WRONLY | os.O_DIRECT):
        fd = os.open(path, os.O_CREAT | flags, 0o600)
        for offset in (0, 8192):
            it.async_pwrite(buffer=torch.ones(1024), fd=fd, file_offset=offset)
        assert it.wait() == 2
        assert it.pwrite(torch.ones(10), fd, True, False) == 1
        assert open_below(directory) == [path]
        os.close(fd)
    fd = os.open(path, os.O_RDONLY)
    os.unlink(path)
    found = torch.zeros(1024)
    assert it.async_pread(found, fd, 8192) == 0 and it.wait() == 1 and found.all()
    assert open_below(directory) == [path + " (deleted)"]
    os.close(fd)


@promise
def deepspeeds_file_writer_leaves_no_descriptor(directory):
    from deepspeed.io import FastFileWriter, FastFileWriterConfig, fast_file_writer

    class Utils:  # DeepSpeed has none for the CPU; its own function is for lists of tensors
        def load(self):
            return types.SimpleNamespace(cast_to_byte_tensor=None)

    fast_file_writer.UtilsBuilder, path, data = Utils, directory + "/f", torch.rand(300001)
    it = handle()
    config = FastFileWriterConfig(
        dnvme_handle=it, pinned_tensor=it.new_cpu_locked_tensor(1 << 18, torch.zeros(0, dtype=torch.uint8)))
    writer = FastFileWriter(file_path=path, config=config)
    torch.save(data, writer)
    writer.close()
    assert torch.equal(torch.load(path), data) and open_below(directory) == []


@promise
def a_descriptor_for_writing_alone_is_written(directory):
    it, path = handle(), directory + "/f"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        assert it.async_pwrite(torch.ones(1000, dtype=torch.uint8), fd, 512) == 0 and it.wait() == 1
    finally:
        os.close(fd)
    assert open(path, "rb").read() == bytes(512) + b"\1" * 1000


@promise
def a_descriptor_is_transferred_only_in_ways_that_it_is_open_for(directory):
    it, path, data = handle(), directory + "/f", torch.ones(1000, dtype=torch.uint8)
    for known in (False, True):  # whether the handle has the file open by its path
        for flags, write in ((os.O_RDONLY, True), (os.O_WRONLY, False)):
            if known:
                it.sync_pwrite(data, path)
            fd = os.open(path, os.O_CREAT | flags, 0o600)
            try:
                call = it.async_pwrite if write else it.async_pread
                raises(OSError, lambda call=call, fd=fd: call(data + 1, fd), errno.EBADF)
            finally:
                os.close(fd)
    assert open(path, "rb").read() == bytes(data)


@promise
def tensors_whose_memory_is_not_their_contents_are_refused(directory):
    it, path = handle(), directory + "/f"
    it.sync_pwrite(torch.ones(100), path)
    numbers = torch.ones(3, dtype=torch.complex64)
    for tensor, word in ((numbers.conj(), "conjugate"), (torch._neg_view(torch.ones(3)), "negative"),
                         (numbers.view(1, 3).t().conj(), "conjugate"),
                         (torch.empty(3, device="meta"), "meta")):
        for call in (it.sync_pwrite, it.sync_pread, it.async_pwrite, it.async_pread):
            error = raises(OSError, functools.partial(call, tensor, path), errno.EINVAL)
            assert word in str(error), error
    assert it.wait() == 0
    assert it.sync_pwrite(numbers.conj().resolve_conj(), path) == 1


@promise
def a_dropped_handle_finishes_its_transfers(directory):
    it = handle()
    for i in range(20):
        it.async_pwrite(torch.full((100000,), i, dtype=torch.uint8), f"{directory}/{i}")
    del it
    gc.collect()
    for i in range(20):
        assert open(f"{directory}/{i}", "rb").read() == bytes([i]) * 100000


@promise
def a_handle_that_is_dropped_amid_a_submission_finishes_its_transfers(directory):
    dropped, it = handle(), handle()
    transfers = it._shared.transfers
    assert dropped._shared.transfers is transfers
    tensor = torch.full((1000,), 1, dtype=torch.uint8)
    dropped.async_pwrite(tensor, f"{directory}/1")
    dropped.itself, memory = dropped, weakref.ref(tensor)
    del dropped, tensor
    submit, alive = transfers._submit, []

    def collect_and_submit(*arguments):
        gc.collect()
        alive.append(memory() is not None)
        submit(*arguments)

    transfers._submit = collect_and_submit
    it.async_pwrite(torch.full((1000,), 2, dtype=torch.uint8), f"{directory}/2")
    assert it.wait() == 1 and alive == [True] and memory() is None
    del transfers._submit
    for i in (1, 2):
        assert open(f"{directory}/{i}", "rb").read() == bytes([i]) * 1000


@promise
def a_process_that_ends_with_transfers_in_flight_ends(directory):
    child("""
import os, torch, nvswap.deepspeed
from nvswap.deepspeed.ops import aio_handle
it = aio_handle()
for i in range(50):
    it.async_pwrite(torch.zeros(1 << 20, dtype=torch.uint8), os.environ["DIRECTORY"] + f"/{i}")
""", directory)


@promise
def pinned_memory_is_one_for_the_process(_):
    it, pins = handle(), PinMemoryBuilder().load().pin_handle()
    one = it.new_cpu_locked_tensor(1000, torch.zeros(1, dtype=torch.bfloat16))
    two = pins.new_cpu_locked_tensor(10, torch.zeros(1))
    assert one.shape == (1000,) and one.dtype == torch.bfloat16
    assert pins.is_pinned(one) and it.is_pinned(two) and it.is_pinned(one[10:20])
    assert not it.is_pinned(torch.zeros(10))
    assert not it.free_cpu_locked_tensor(one[1:]) and pins.free_cpu_locked_tensor(one)
    assert not it.is_pinned(one) and not it.free_cpu_locked_tensor(one)
    assert it.new_cpu_locked_tensor(0, one).numel() == 0
    assert pins.free_cpu_locked_tensor_by_ptr(two.data_ptr())
    one.fill_(1)  # Valid as long as it is referenced.
    assert one.float().sum() == 1000


@promise
def pinned_memory_is_freed_with_the_last_tensor_over_it(_):
    it, pins = handle(), PinMemoryBuilder().load().pin_handle()
    tensor = it.new_cpu_locked_tensor(1 << 20, torch.zeros(1))
    address, view = tensor.data_ptr(), tensor[10:]
    del tensor
    gc.collect()
    assert it.is_pinned(view) and nvswap.memory.is_pinned(view)
    del view
    gc.collect()
    assert not nvswap._native.lib.nvs_memory_is_pinned(
        nvswap._native.ffi.cast("char *", address), 4)
    assert not pins.free_cpu_locked_tensor_by_ptr(address)
    again = it.new_cpu_locked_tensor(1 << 20, torch.zeros(1))
    assert it.is_pinned(again[100:]) and pins.free_cpu_locked_tensor(again)


@promise
def deepspeeds_native_pinning_follows_the_memory(_):
    from deepspeed.utils.pin_memory import NativePinnedMemory

    root = handle().new_cpu_locked_tensor(100, torch.zeros(1))
    assert root._base is None and root[10:]._base is root
    native, example = NativePinnedMemory(), torch.arange(32.0).view(4, 8)
    pinned = native.pin(example)
    view, address = pinned.view(-1).narrow(0, 8, 8), pinned.data_ptr()
    assert torch.equal(pinned, example) and native.is_pinned(pinned) and native.is_pinned(view)
    del pinned
    gc.collect()
    assert native.is_pinned(view) and view[0] == 8
    del view
    gc.collect()
    assert address not in native._ranges
    pinned = native.pin(example)
    view = pinned[1]
    assert native.unpin(pinned) is True and not native.is_pinned(view)
    assert not handle().is_pinned(view)


@promise
def adam_is_torchs_within_the_rounding_of_fp32(_):
    op, numel = CPUAdamBuilder().load(), 2500001
    op.create_adam(7, 1e-3, 0.9, 0.999, 1e-8, 0.01, True, False)
    weights = torch.randn(numel)
    expected = torch.nn.Parameter(weights.clone())
    reference = torch.optim.AdamW([expected], lr=1e-3, weight_decay=0.01)
    moments = torch.zeros(numel), torch.zeros(numel)
    for step in range(1, 5):
        expected.grad = torch.randn(numel)
        reference.step()
        op.adam_update(7, step, 1e-3, 0.9, 0.999, 1e-8, 0.01, True, weights, expected.grad, *moments)
    assert torch.allclose(weights, expected.data, rtol=1e-5, atol=1e-6)
    op.destroy_adam(7)
    raises(OSError, lambda: op.adam_update(7, 5, 1e-3, 0.9, 0.999, 1e-8, 0.01, True, weights,
                                           weights, *moments), errno.EINVAL)


@promise
def adagrad_is_torchs_and_lion_its_authors_within_the_rounding_of_fp32(_):
    numel, lr, decay = 2500001, 1e-3, 0.01
    adagrad, lion, total, moment = CPUAdagradBuilder().load(), CPULionBuilder().load(), *torch.zeros(2, numel)
    first = torch.randn(numel)
    weights, of_lion, due, signs = first.clone(), first.bfloat16(), torch.nn.Parameter(first.clone()), 0
    reference = torch.optim.Adagrad([due], lr=lr, eps=1e-8, weight_decay=decay)
    adagrad.create_adagrad(1, lr, 1e-8, decay, False)
    lion.create_lion(1, lr, 0.9, 0.99, 0.0, False)
    for step in range(1, 5):
        due.grad = torch.randn(numel)
        reference.step()
        adagrad.adagrad_update(1, step, lr, 1e-8, decay, weights, due.grad, total)
        lion.lion_update(1, step, 1.0, 0.9, 0.99, 0.0, of_lion, due.grad.bfloat16(), moment)
        signs = signs + 1
    assert torch.allclose(weights, due.data, rtol=1e-5, atol=1e-6)
    assert torch.allclose(total, reference.state[due]["sum"], rtol=1e-5)
    # Each step is one of the learning rate, 1.
    assert (of_lion.float() - first).abs().max() <= signs + 0.1 and moment.any()
    raises(OSError, lambda: adagrad.adagrad_update(1, 5, lr, 1e-8, decay, weights, weights[1:], total), errno.EINVAL)
    assert adagrad.destroy_adagrad(1) == lion.destroy_lion(1) == 0


@promise
def adam_has_the_same_bits_on_any_number_of_threads(_):
    op, numel, threads = CPUAdamBuilder().load(), 2500001, torch.get_num_threads()
    op.create_adam(8, 1e-3, 0.9, 0.999, 1e-8, 0.01, False, False)
    first, gradients, results = torch.randn(numel), torch.randn(numel), []
    for n in (1, 3):
        torch.set_num_threads(n)
        weights, moments = first.bfloat16(), (torch.zeros(numel), torch.zeros(numel))
        op.adam_update(8, 1, 1e-3, 0.9, 0.999, 1e-8, 0.01, True, weights, gradients, *moments)
        results.append((weights, *moments))
    torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results))
    op.destroy_adam(8)


@promise
def the_settings_that_ds_nvme_tune_prints_are_taken(_):
    it = aio.aio_handle(single_submit="false", overlap_events="true")
    assert (it.get_single_submit(), it.get_overlap_events()) == (False, True)
    raises(OSError, lambda: aio.aio_handle(single_submit="maybe"), errno.EINVAL)


@promise
def an_op_that_deepspeed_has_loaded_already_is_an_error(directory):
    assert "refused" in child("""
import types, nvswap.deepspeed
from deepspeed.ops.op_builder.builder import OpBuilder
OpBuilder._loaded_ops["async_io"] = types.ModuleType("async_io")
try:
    nvswap.deepspeed.install()
except OSError:
    print("refused")
""", directory)


main()
