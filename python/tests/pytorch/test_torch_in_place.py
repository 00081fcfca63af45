#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Modules whose parameters nvswap.torch.offload reads in .safetensors files. Needs torch and safetensors."""

import contextlib
import copy
import errno
import gc
import json
import os
import re
import sys
import threading
import time

import safetensors.torch
import torch

from promises import main, promise, raises, settings
from stand_in import host_as_device
import nvswap
import nvswap.torch
import nvswap.torch.weights


class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.norm = torch.nn.LayerNorm(64)
        self.register_buffer("scale", torch.full((64,), 0.5))

    def forward(self, x):
        return x + self.norm(self.linear(x).relu()) * self.scale


def module(dtype=torch.float32):
    torch.manual_seed(1)
    return torch.nn.Sequential(*[Part() for _ in range(4)], torch.nn.Linear(64, 10)).to(dtype)


def saved(directory, made=None, **renamed):
    """A module over a mapped file, whose tensors begin at any multiple of 8 bytes: some kernels round by that."""
    made = made or module()
    state = {renamed.get(name.replace(".", "_"), name): tensor for name, tensor in made.state_dict().items()}
    path = os.path.join(directory, "model.safetensors")
    safetensors.torch.save_file(state, path, {"padding": "x" * 11})
    if not renamed:
        made.load_state_dict(safetensors.torch.load_file(path), assign=True)
    return made.eval().requires_grad_(False), path


def on_meta(dtype=torch.float32):
    with torch.device("meta"):
        return module(dtype)


def small(rows=1):
    """A pool that holds some layers."""
    return {"zero_optimization": {"offload_param": {"buffer_count": rows, "buffer_size": 8192}}}


def inputs(dtype=torch.float32):
    return torch.randn(5, 64, generator=torch.Generator().manual_seed(2)).to(dtype)


def closed(offloaded):
    gc.collect()
    offloaded.engine.close()


def devices():
    """The host, and a device that stands in for a GPU."""
    yield contextlib.nullcontext(), {}
    yield (host_as_device(sys.modules["nvswap.torch.offload"], nvswap.torch.weights, nvswap.torch.state),
           {"device": "cpu", "device_memory": 40000})


class Waiting(torch.nn.Linear):
    """A layer that computes until the next one is in the pool, or being read."""

    def forward(self, x):
        with self.trace.span(f"layer {self.number}"):
            deadline = time.monotonic() + 60
            while self.after and self.engine().info(self.after)["state"] == "on drive":
                assert time.monotonic() < deadline, f"{self.after} is not read ahead"
            return super().forward(x)


@promise
def the_next_layer_is_read_while_one_computes_by_the_order_of_the_module_and_then_by_the_plan(directory):
    layers = 8
    made = torch.nn.Sequential(*[Waiting(64, 64, bias=False) for _ in range(layers)])
    wanted, _ = saved(directory, torch.nn.Sequential(*[torch.nn.Linear(64, 64, bias=False) for _ in range(layers)]))
    trace = nvswap.Trace(10000)
    # The pool has room for four layers of 16 KiB, and none of them is too small to go.
    config = nvswap.Config({"zero_optimization": {"stage3_param_persistence_threshold": 0, "offload_param": {
        "buffer_count": 1, "buffer_size": 20000}}})
    config.set_trace(trace)
    offloaded = nvswap.torch.offload(made, config, weights=directory)
    for number, layer in enumerate(made):
        layer.trace, layer.number, layer.engine = trace, number, lambda: offloaded.engine
        layer.after = f"{number + 1}.weight" if number + 1 < layers else None
    for _ in range(3):
        with torch.no_grad():
            assert torch.equal(made(inputs()), wanted(inputs()))
    path = os.path.join(directory, "trace.json")
    trace.write(path)
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    spans = sorted((each["ts"], each["ts"] + each["dur"], each["name"]) for each in events
                   if each["name"].startswith("layer"))
    reads = [(each["ts"], re.search(r"(\d+)\.weight", each["name"]).group(1)) for each in events
             if each["ph"] == "b" and each["name"].startswith("read ")]
    assert len(spans) == 3 * layers and len(reads) >= layers + 2 * (layers - 4), (len(spans), len(reads))
    for begun, number in reads:
        use = [place for place, span in enumerate(spans) if span[0] > begun and span[2] == f"layer {number}"]
        # The program begins the forward of the first layer.
        assert not use or number == "0" or begun < spans[use[0] - 1][1], (begun, number, spans)
    del layer
    closed(offloaded)
    trace.close()


@promise
def outputs_are_those_of_memory_and_the_files_stay_as_they_are(directory):
    for dtype in (torch.float32, torch.bfloat16):
        wanted, path = saved(directory, module(dtype))
        with open(path, "rb") as file:
            before, status = file.read(), os.stat(path)
        for device, more in devices():
            if more:
                wanted = copy.deepcopy(wanted)  # Memory of a device begins where that of torch does.
            with device, torch.no_grad():
                empty = on_meta(dtype)
                offloaded = nvswap.torch.offload(empty, small(), weights=directory, **more)
                for rows in (1, 5):
                    for _ in range(3):
                        assert torch.equal(empty(inputs(dtype)[:rows]), wanted(inputs(dtype)[:rows]))
                assert dtype is torch.bfloat16 or offloaded.engine.stats()["aio"]["read"]["bytes"] > 2 * len(before)
                closed(offloaded)
        with open(path, "rb") as file:
            assert file.read() == before
        assert os.stat(path).st_mtime_ns == status.st_mtime_ns and os.listdir(directory) == ["model.safetensors"]


@promise
def gradients_of_inputs_and_of_parameters_in_memory_are_those_of_memory(directory):
    wanted, _ = saved(directory)
    for device, more in devices():
        with device:
            empty = on_meta()
            offloaded = nvswap.torch.offload(empty, small(), weights=directory, **more)
            found = []
            for each in (wanted, empty):
                each.requires_grad_(False)
                head, x = torch.nn.Linear(10, 3, bias=False), inputs().requires_grad_()
                torch.nn.init.ones_(head.weight)
                head(each(x)).square().sum().backward()
                found.append((x.grad, head.weight.grad))
            assert all(map(torch.equal, *found))
            closed(offloaded)


@promise
def training_a_parameter_of_files_is_an_error_that_says_how(directory):
    saved(directory)
    empty = on_meta()
    offloaded = nvswap.torch.offload(empty, weights=directory)
    assert not any(each.requires_grad for each in empty.parameters())
    error = raises(nvswap.Error, lambda: nvswap.torch.AdamW(empty.parameters(), config=settings(directory),
                                                            offloaded=offloaded), errno.EINVAL)
    assert "adapters" in str(error) and "without weights=" in str(error)
    weight = empty[1].linear.weight
    for train in (weight.requires_grad_, empty.requires_grad_, lambda: setattr(weight, "requires_grad", True)):
        error = raises(nvswap.Error, train, errno.EINVAL)
        assert "linear.weight" in str(error) and "LoRA" in str(error) and "without weights=" in str(error), error
    weight.requires_grad = False
    raises(nvswap.Error, lambda: empty.load_state_dict(module().state_dict()), errno.EINVAL)
    assert "convert=True" in str(raises(nvswap.Error, empty.half, errno.EINVAL))
    empty(inputs())
    closed(offloaded)


@promise
def names_shapes_and_types_that_do_not_fit_are_listed(directory):
    saved(directory, **{"0_linear_weight": "other", "1_norm_bias": "4.weight2"})
    error = str(raises(nvswap.Error, lambda: nvswap.torch.offload(on_meta(), weights=directory), errno.EINVAL))
    assert 'Missing key(s): "0.linear.weight", "1.norm.bias"' in error, error
    assert 'Unexpected key(s): "4.weight2", "other"' in error, error
    wanted, _ = saved(directory)
    wrong = on_meta()
    wrong[2].linear = torch.nn.Linear(32, 64, device="meta")
    error = str(raises(nvswap.Error, lambda: nvswap.torch.offload(wrong, weights=directory), errno.EINVAL))
    assert "size mismatch for 2.linear.weight: [64, 64] in the files, [64, 32] in the module" in error, error
    assert all(each.is_meta and each.requires_grad for each in wrong.parameters())
    wrong = on_meta(torch.bfloat16)
    error = str(raises(nvswap.Error, lambda: nvswap.torch.offload(wrong, weights=directory), errno.EINVAL))
    assert "dtype mismatch for 4.weight: torch.float32 in the files, torch.bfloat16" in error, error
    assert "convert=True" in error, error
    raises(nvswap.Error, lambda: nvswap.torch.offload(on_meta(), weights=directory + "/none"), errno.ENOENT)
    del wanted


@promise
def types_are_converted_on_arrival_where_that_is_asked_for(directory):
    wanted, _ = saved(directory)
    wanted.to(torch.bfloat16)
    for device, more in devices():
        with device:
            empty = on_meta(torch.bfloat16)
            offloaded = nvswap.torch.offload(empty, small(), weights=directory, convert=True, **more)
            assert torch.equal(empty(inputs(torch.bfloat16)), wanted(inputs(torch.bfloat16)))
            assert {each.dtype for each in empty.state_dict().values()} == {torch.bfloat16}
            closed(offloaded)


@promise
def tied_parameters_are_read_by_any_of_their_names(directory):
    class Tied(torch.nn.Module):
        def __init__(self, tied=True):
            super().__init__()
            self.first, self.last = torch.nn.Embedding(50, 64), torch.nn.Linear(64, 50, bias=False)
            if tied:
                self.last.weight = self.first.weight

        def forward(self, x):
            return self.last(self.first(x))

    wanted, tokens = Tied(False), torch.arange(7)
    path = os.path.join(directory, "model.safetensors")
    for names in (["last.weight"], ["first.weight"], ["first.weight", "last.weight"]):
        safetensors.torch.save_file({name: wanted.get_parameter(name).data for name in names}, path)
        with torch.device("meta"):
            empty = Tied()
        offloaded = nvswap.torch.offload(empty, weights=path)
        assert empty.first.weight is empty.last.weight
        one = wanted.get_parameter(names[-1])
        assert torch.equal(empty(tokens), torch.nn.functional.linear(one[tokens], one)), names
        closed(offloaded)


class Words(torch.nn.Module):
    """Embeddings of 4000 words and of places, a layer and a head."""

    def __init__(self, tied=False, **more):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(4000, 50, **more), torch.nn.Embedding(500, 50)
        self.layer, self.head = torch.nn.Linear(50, 50), torch.nn.Linear(50, 4000, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens):
        places = torch.arange(tokens.shape[-1])
        return self.head(self.layer(self.words(tokens) + self.places(places)).relu())


def words(directory, dtype=torch.float32, **more):
    """The model in memory, and on the meta device."""
    torch.manual_seed(1)
    wanted = Words(**more)
    state = {name: each for name, each in wanted.state_dict().items() if not (more.get("tied") and name == "head.weight")}
    path = os.path.join(directory, "model.safetensors")
    safetensors.torch.save_file(state, path, {"padding": "x" * 11})
    wanted.load_state_dict(safetensors.torch.load_file(path), assign=True, strict=False)
    if more.get("tied"):
        wanted.head.weight = wanted.words.weight
    with torch.device("meta"):
        return wanted.to(dtype).eval().requires_grad_(False), Words(**more).to(dtype)


def read_bytes(offloaded):
    return offloaded.engine.stats()["aio"]["read"]["bytes"]


def planned(model):
    """Nothing is read ahead by the order of the module any more."""
    with torch.no_grad():
        for _ in range(2):
            model(TOKENS[0])


TABLE, UNITS = 4000 * 50 * 4, 2 * 4096
TOKENS = [torch.tensor([[3999]]), torch.tensor([[7, 8, 9, 7], [7, 0, 3999, 2000]]), torch.tensor([5], dtype=torch.int32)]


@promise
def an_embedding_reads_the_rows_of_its_tokens_alone_and_is_not_read_ahead(directory):
    # The pool has room for the head and one layer.
    config = {"zero_optimization": {"stage3_param_persistence_threshold": 0, "offload_param": {
        "buffer_count": 1, "buffer_size": 230000}}}
    wanted, empty = words(directory, padding_idx=7, sparse=True, scale_grad_by_freq=True)
    offloaded = nvswap.torch.offload(empty, config, weights=directory)
    rest = sum(each.nbytes + UNITS for name, each in wanted.named_parameters() if "s.weight" not in name)
    for tokens in TOKENS + TOKENS:
        before = read_bytes(offloaded)
        assert torch.equal(empty(tokens), wanted(tokens))
        rows = len(tokens.unique()) + 1
        assert read_bytes(offloaded) - before <= rows * UNITS + rest < TABLE + rest, tokens
        assert offloaded.engine.info("words.weight")["state"] == "on drive"
    assert len(offloaded.engine) == 5  # None of the rows is left there.
    before = read_bytes(offloaded)
    with torch.no_grad():
        assert torch.equal(empty.words(TOKENS[1]), wanted.words(TOKENS[1]))
    assert read_bytes(offloaded) - before <= 3 * UNITS  # Three of the rows lie together.
    before = read_bytes(offloaded)
    assert torch.equal(empty.places(torch.arange(100)), wanted.places(torch.arange(100)))
    assert read_bytes(offloaded) - before <= 100 * 50 * 4 + UNITS
    offloaded.load()
    offloaded.engine.close()
    assert torch.equal(empty(TOKENS[1]), wanted(TOKENS[1]))


@promise
def an_embedding_whose_rows_are_most_of_it_or_that_is_looked_at_is_read_whole(directory):
    wanted, empty = words(directory)
    offloaded = nvswap.torch.offload(empty, weights=directory)
    planned(empty)
    tokens = torch.arange(0, 4000, 9)
    before = read_bytes(offloaded)
    assert torch.equal(empty.words(tokens), wanted.words(tokens))
    assert TABLE <= read_bytes(offloaded) - before <= TABLE + UNITS
    for wrong in (torch.tensor([4000]), torch.tensor([-1])):
        assert str(raises(IndexError, lambda: empty.words(wrong))) == str(raises(IndexError, lambda: wanted.words(wrong)))
    raises(RuntimeError, lambda: empty.words(torch.tensor([1.0])))
    assert empty.words(torch.empty(0, dtype=torch.int64)).shape == (0, 50)
    lists = torch.nested.nested_tensor([torch.tensor([3, 4]), torch.tensor([5])], layout=torch.jagged)
    assert torch.equal(empty.words(lists).values(), wanted.words(lists).values())
    other = {"words.weight": torch.ones(4000, 50)}  # The program's own is not that of the files.
    found, right = (torch.func.functional_call(each, other, (TOKENS[1],)) for each in (empty, wanted))
    assert torch.equal(found, right)
    empty.words.weight = torch.nn.Parameter(other["words.weight"], requires_grad=False)
    assert torch.equal(empty(TOKENS[1]), right)
    closed(offloaded)
    wanted, empty = words(directory)
    for model in wanted, empty:
        model.forward = lambda tokens, model=model: model.words(tokens) + model.words.weight[5]
    offloaded = nvswap.torch.offload(empty, weights=directory)
    assert torch.equal(empty(TOKENS[1]), wanted(TOKENS[1]))
    del model
    closed(offloaded)
    wanted, empty = words(directory, max_norm=1.0)
    offloaded = nvswap.torch.offload(empty, weights=directory)
    with torch.no_grad():
        assert torch.equal(empty(TOKENS[1]), wanted(TOKENS[1]))
    closed(offloaded)


@promise
def rows_of_an_embedding_are_converted_and_a_head_that_shares_it_has_the_whole(directory):
    for tied, dtype in ((False, torch.bfloat16), (True, torch.float32), (True, torch.bfloat16)):
        wanted, empty = words(directory, dtype, tied=tied)
        offloaded = nvswap.torch.offload(empty, weights=directory, convert=True)
        planned(empty)
        before = read_bytes(offloaded)
        assert torch.equal(empty.words(TOKENS[1]), wanted.words(TOKENS[1]))
        assert read_bytes(offloaded) - before <= 3 * UNITS
        for _ in range(2):
            for tokens in TOKENS:
                assert torch.equal(empty(tokens), wanted(tokens))
        assert (offloaded.engine.info("words.weight")["state"] == "on drive") is not tied
        closed(offloaded)


@promise
def a_table_whose_checksum_is_verified_is_read_whole(directory):
    wanted, empty = words(directory)
    offloaded = nvswap.torch.offload(empty, {"nvswap": {"verify": True}}, weights=directory)
    assert torch.equal(empty(TOKENS[1]), wanted(TOKENS[1]))
    assert offloaded.engine.info("words.weight")["state"] != "on drive"
    closed(offloaded)


@promise
def threads_embed_tokens_while_the_head_has_the_whole_table(directory):
    wanted, empty = words(directory, tied=True)
    offloaded, same = nvswap.torch.offload(empty, weights=directory), []

    def run(number):
        with torch.no_grad():
            for each in range(20):
                tokens = torch.tensor([[3, 2 * each, 100 * number + each]])
                same.append(torch.equal(empty(tokens), wanted(tokens)))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same == [True] * 80
    closed(offloaded)


@promise
def buffers_are_read_or_initialized(directory):
    wanted, path = saved(directory)
    wanted[2].scale.fill_(3)
    saved(directory, wanted)
    empty = on_meta()
    offloaded = nvswap.torch.offload(empty, weights=path)
    assert torch.equal(empty(inputs()), wanted(inputs())) and empty[2].scale.eq(3).all()
    closed(offloaded)
    for part in wanted[:-1]:
        part._non_persistent_buffers_set.add("scale")
    saved(directory, wanted)

    def without(count):
        made = on_meta()
        for part in made[:count]:
            part._non_persistent_buffers_set.add("scale")
        return made

    assert "scale" in str(raises(nvswap.Error, lambda: nvswap.torch.offload(without(4), weights=path), errno.EINVAL))
    assert 'Missing key(s): "3.scale"' in str(raises(
        nvswap.Error, lambda: nvswap.torch.offload(without(3), weights=path), errno.EINVAL))
    empty, filled = without(4), []
    offloaded = nvswap.torch.offload(empty, weights=path, initialize=lambda name, tensor: (
        filled.append(name), tensor.copy_(wanted.get_buffer(name))))
    assert filled == [f"{number}.scale" for number in range(4)]
    assert torch.equal(empty(inputs()), wanted(inputs()))
    closed(offloaded)


@promise
def small_parameters_stay_in_memory_and_all_of_them_can_be_loaded(directory):
    wanted, _ = saved(directory)
    empty = on_meta()
    offloaded = nvswap.torch.offload(empty, small(), weights=directory, smallest=65)
    assert torch.equal(empty[0].norm.weight, wanted[0].norm.weight)
    raises(nvswap.Error, empty[0].linear.weight.isfinite, errno.EINVAL)
    found = empty.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.state_dict().items())
    offloaded.load()
    offloaded.engine.close()
    assert all(map(torch.equal, empty.parameters(), wanted.parameters()))
    assert torch.equal(empty(inputs()), wanted(inputs()))


@promise
def a_module_in_memory_is_given_the_weights_of_the_files(directory):
    wanted, path = saved(directory)
    other = torch.nn.Sequential(*[Part() for _ in range(4)], torch.nn.Linear(64, 10))
    offloaded = nvswap.torch.offload(other, directory, weights=path)
    assert torch.equal(other(inputs()), wanted(inputs()))
    assert offloaded.engine.pool()[1] >= 64 << 20
    closed(offloaded)


@promise
def a_pool_without_room_and_an_engine_are_refused(directory):
    _, path = saved(directory)
    raises(nvswap.Error, lambda: nvswap.torch.offload(
        on_meta(), {"zero_optimization": {"offload_param": {"buffer_count": 1, "buffer_size": 1024}}}, weights=path),
        errno.E2BIG)
    with nvswap.Engine(settings(directory)) as engine:
        raises(nvswap.Error, lambda: nvswap.torch.offload(on_meta(), engine=engine, weights=path), errno.EINVAL)
    error = raises(nvswap.Error, lambda: nvswap.torch.offload(module(), directory, convert=True), errno.EINVAL)
    assert "convert is for parameters that are read in files" in str(error)


@promise
def a_file_that_is_replaced_amid_a_run_raises(directory):
    _, path = saved(directory)
    empty = on_meta()
    offloaded = nvswap.torch.offload(empty, small(), weights=directory)
    empty(inputs())
    os.mkdir(os.path.join(directory, "other"))
    _, other = saved(os.path.join(directory, "other"))
    os.replace(other, path)
    assert path in str(raises(nvswap.Error, lambda: empty(inputs()), errno.ESTALE))
    closed(offloaded)


main()
