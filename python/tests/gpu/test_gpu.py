#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory of nvswap registered with a GPU, and tensors on a GPU where memory of the host is needed."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gpu import promise, register, unregister  # noqa: E402
from promises import main, raises, settings  # noqa: E402
import torch  # noqa: E402

import nvswap  # noqa: E402
import nvswap.torch  # noqa: E402

NUMEL = 65536
COUNT = 40  # tensors, ten times the pool


def opened(directory):
    return nvswap.Engine(settings(directory), arrays="torch")


def pattern(number):
    generator = torch.Generator(device="cuda").manual_seed(number)
    return torch.rand(NUMEL, generator=generator, device="cuda")


def round_trips(engine):
    """Has every tensor filled from the GPU, written, read again and copied to the GPU."""
    names = [str(number) for number in range(COUNT)]
    engine.register_all({name: ("F32", NUMEL) for name in names if name not in engine})
    for number, name in enumerate(names):
        with engine.pinned(name, "w") as tensors:
            assert tensors[name].is_pinned()
            tensors[name].copy_(pattern(number), non_blocking=True)
            torch.cuda.synchronize()
    for number, name in enumerate(names):
        with engine.pinned(name, "r+") as tensors:
            on_gpu = tensors[name].to("cuda", non_blocking=True)
            assert torch.equal(on_gpu, pattern(number)), name
            tensors[name].copy_(on_gpu + 1, non_blocking=True)
            torch.cuda.synchronize()
    for number, name in enumerate(names):
        with engine.pinned(name) as tensors:
            assert torch.equal(tensors[name].cuda(), pattern(number) + 1), name


@promise
def a_registered_pool_is_pinned_and_copied_from_and_to_the_gpu(directory):
    with opened(directory) as engine:
        address, nbytes = engine.pool()
        assert register(address, nbytes) == 0
        round_trips(engine)
        assert unregister(address) == 0


@promise
def a_pool_is_registered_before_or_after_its_tensors_and_again(directory):
    with opened(directory) as engine:
        address, nbytes = engine.pool()
        engine.register("first", "F32", NUMEL)
        with engine.pinned("first", "w") as tensors:
            assert not tensors["first"].is_pinned()
            tensors["first"].copy_(pattern(7))
            assert register(address, nbytes) == 0
            assert tensors["first"].is_pinned()
            assert torch.equal(tensors["first"].cuda(), pattern(7))
        assert unregister(address) == 0
        with engine.pinned("first") as tensors:
            assert torch.equal(tensors["first"].cuda(), pattern(7))
        assert register(address, nbytes) == 0
        round_trips(engine)
        assert unregister(address) == 0


@promise
def engines_that_follow_each_other_are_registered_one_after_the_other(directory):
    for _ in range(3):
        with opened(directory) as engine:
            address, nbytes = engine.pool()
            assert register(address, nbytes) == 0
            round_trips(engine)
            assert unregister(address) == 0


@promise
def pinned_memory_of_any_size_is_registered_and_copied(directory):
    for aio in (None, nvswap.Aio()):
        arrays = [nvswap.empty(numel, "F32", aio=aio, arrays="torch") for numel in (1, 1000, NUMEL, 1 << 22)]
        for array in arrays:
            assert register(array.data_ptr(), array.nbytes) == 0
            assert array.is_pinned()
            array.copy_(torch.arange(array.numel(), device="cuda", dtype=torch.float32))
        for array in arrays:
            wanted = torch.arange(array.numel(), dtype=torch.float32)
            assert torch.equal(array, wanted) and torch.equal(array.cuda().cpu(), wanted)
        if aio is not None:
            with aio.open_file(os.path.join(directory, "file"), "w") as file:
                file.pwrite(arrays[-1]).wait()
                arrays[-1].zero_()
                file.pread(arrays[-1]).wait()
            assert torch.equal(arrays[-1].cuda(), torch.arange(1 << 22, device="cuda",
                                                               dtype=torch.float32))
        for array in arrays:
            assert unregister(array.data_ptr()) == 0


@promise
def tensors_on_the_gpu_are_refused_by_name_of_the_device(directory):
    tensor = torch.zeros(NUMEL, device="cuda")
    with opened(directory) as engine, nvswap.Aio() as aio:
        engine.register("tensor", "F32", NUMEL)
        with aio.open_file(os.path.join(directory, "file"), "w") as file:
            calls = [lambda: file.pwrite(tensor), lambda: file.pread(tensor),
                     lambda: engine.store_from({"tensor": tensor}),
                     lambda: engine.load_to({"tensor": tensor}),
                     lambda: engine.write_range("tensor", tensor, 0),
                     lambda: engine.read_range("tensor", tensor, 0),
                     lambda: nvswap.is_pinned(tensor),
                     lambda: nvswap.adam_update(tensor, tensor, tensor, tensor, step=1)]
            for call in calls:
                error = raises(ValueError, call)
                assert "cuda:0" in str(error) and "host memory" in str(error), error
    weights = {"weights": tensor}
    assert "host memory" in str(raises(ValueError, lambda: nvswap.Optimizer(settings(directory), weights)))
    with nvswap.Optimizer(settings(directory), {"weights": torch.zeros(NUMEL)}) as optimizer:
        for call in (lambda: optimizer.lend_gradients(0, tensor),
                     lambda: optimizer.add_gradients(0, tensor),
                     lambda: optimizer.set_state(0, "master", tensor),
                     lambda: optimizer.get_state(0, "master", out=tensor)):
            assert "host memory" in str(raises(ValueError, call))


@promise
def a_module_of_another_device_is_refused_with_what_to_do(directory):
    config, module = settings(directory), torch.nn.Linear(8, 8).cuda()
    error = raises(nvswap.Error, lambda: nvswap.torch.offload(module, config))
    assert "cuda:0" in str(error) and "device=" in str(error), error
    offloaded = nvswap.torch.offload(module.cpu(), config)
    for call in (module.cuda, lambda: module.to("cuda"), lambda: torch.nn.Sequential(module).cuda()):
        error = raises(nvswap.Error, call)
        assert "cuda:0" in str(error) and "device=" in str(error), error
    raises(RuntimeError, lambda: module(torch.zeros(1, 8, device="cuda")))
    assert torch.isfinite(module(torch.zeros(1, 8))).all()
    offloaded.load()
    assert torch.isfinite(module.cuda()(torch.zeros(1, 8, device="cuda"))).all()
    offloaded.engine.close()


@promise
def a_module_is_trained_in_host_memory_where_the_gpu_is_the_default_device(directory):
    def trained(device, offload):
        torch.manual_seed(1)
        module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
        data = torch.rand(16, 64)
        with torch.device(device):
            offloaded = nvswap.torch.offload(module, settings(directory)) if offload else None
            optimizer = nvswap.torch.AdamW(module.parameters(), config=settings(directory), offloaded=offloaded)
            losses = []
            for _ in range(4):
                loss = module(data).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            optimizer.close()
            if offloaded is not None:
                offloaded.load()
                offloaded.engine.close()
        return losses, [parameter.data for parameter in module.parameters()]

    wanted, weights = trained("cpu", False)
    for offload in (False, True):
        losses, own = trained("cuda", offload)
        assert losses == wanted and all(map(torch.equal, own, weights))


main()
