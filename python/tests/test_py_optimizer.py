#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""nvswap.Optimizer and nvswap.adam_update."""

import array
import errno
import gc
import json
import os
import typing
import weakref

import numpy

from promises import child, main, promise, raises, settings
import nvswap
from nvswap.checkpoint import Parameter, export_universal


def adam(master, gradients, mean, square, step, lr=0.01):
    """AdamW of PyTorch in float64."""
    mean[:] = 0.9 * mean + 0.1 * gradients
    square[:] = 0.999 * square + 0.001 * gradients ** 2
    denominator = numpy.sqrt(square / (1 - 0.999 ** step)) + 1e-8
    master[:] = master - lr * (mean / (1 - 0.9 ** step)) / denominator


@promise
def a_step_is_adams(directory):
    random = numpy.random.default_rng(1)
    weights = random.normal(size=200000).astype(numpy.float32)
    expected = [weights.astype(float), numpy.zeros(200000), numpy.zeros(200000)]
    with nvswap.Optimizer(settings(directory), {"g": weights}) as optimizer:
        for step in range(1, 4):
            gradients = random.normal(size=200000).astype(numpy.float32)
            optimizer.lend_gradients("g", gradients)
            result = optimizer.step(norm=True)
            assert result["step"] == step and not result["skipped"]
            norm = numpy.linalg.norm(gradients.astype(float))
            assert abs(result["norm"] - norm) < 1e-3, (result["norm"], norm)
            adam(*expected[:1], gradients, *expected[1:], step)
        assert numpy.allclose(weights, expected[0], atol=1e-5)
        assert numpy.array_equal(optimizer.get_state("g", "master"), weights)
        assert numpy.allclose(optimizer.get_state(0, "exp_avg", 5, 10), expected[1][5:15], atol=1e-5)
        assert optimizer.step_count == 3


@promise
def the_types_of_what_a_step_returns_are_those_it_has(directory):
    def check(found, kind):
        hints = typing.get_type_hints(kind)
        assert list(found) == list(hints), kind
        for name, hint in hints.items():
            assert isinstance(found[name], dict if hint is nvswap.StepIO else hint), name

    with nvswap.Optimizer(settings(directory), {"g": numpy.ones(10, "f4")}) as optimizer:
        result = optimizer.step()
    check(result, nvswap.StepResult)
    check(result["io"], nvswap.StepIO)
    with nvswap.Engine(settings(directory)) as engine, engine.step() as io:
        pass
    check(io, nvswap.StepIO)
    for call, kind in ((nvswap.Optimizer.step, nvswap.StepResult),
                       (nvswap.Engine.step_end, nvswap.StepIO)):
        assert typing.get_type_hints(call)["return"] is kind


@promise
def a_trace_has_each_step_with_the_bytes_that_the_drives_were_given(directory):
    config, trace, path = nvswap.Config(settings(directory)), nvswap.Trace(1000), directory + "/trace.json"
    config.set_trace(trace)
    with nvswap.Optimizer(config, {"g": numpy.ones(100000, "f4")}) as optimizer:
        written = []
        for _ in range(2):
            optimizer.lend_gradients("g", numpy.ones(100000, "f4"))
            written.append(optimizer.step()["io"]["drive_written_bytes"])
        trace.write(path)
    with open(path) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("cat") == "optimizer"]
    assert [(event["ph"], event["name"]) for event in events] == [("b", "optimizer step"), ("e", "optimizer step")] * 2
    assert [event["args"]["bytes"] for event in events[::2]] == written and min(written) > 12 * 100000
    assert events[0]["ts"] < events[1]["ts"] <= events[2]["ts"] < events[3]["ts"]


@promise
def a_step_takes_the_learning_rate_of_its_call(directory):
    weights, gradients = numpy.ones(1000, numpy.float32), numpy.ones(1000, numpy.float32)
    master, state = weights.copy(), [numpy.zeros(1000, numpy.float32) for _ in range(2)]
    with nvswap.Optimizer(settings(directory), {"g": weights}) as optimizer:
        for step, lr in ((1, 0.5), (2, 0.0), (3, None)):
            optimizer.lend_gradients("g", gradients)
            optimizer.step(lr)
            nvswap.adam_update(master, gradients, *state, step=step, lr=0.01 if lr is None else lr)
            assert numpy.array_equal(master, weights)
        for lr in (-1, float("nan")):
            raises(nvswap.Error, lambda lr=lr: optimizer.step(lr), errno.EINVAL)


@promise
def gradients_of_all_ranks_are_clipped_by_the_sum_of_their_squares(directory):
    config = dict(settings(directory), gradient_clipping=1.0)
    with nvswap.Optimizer(config, {"g": numpy.ones(100, "f4")}) as optimizer:
        optimizer.lend_gradients("g", numpy.ones(100, "f4"))
        assert optimizer.sum_squares() == 100
        result = optimizer.step(sum_squares=10000.0)
        assert result["norm"] == 100 and abs(result["clip"] - 0.01) < 1e-6, result


@promise
def the_loss_scale_and_statistics_are_the_optimizers(directory):
    config = dict(settings(directory), fp16={"enabled": True, "initial_scale_power": 4})
    with nvswap.Optimizer(config, {"g": numpy.ones(100, "f4")}) as optimizer:
        assert optimizer.loss_scale == 16
        assert optimizer.stats()["tensors"] > 0


@promise
def lent_gradients_are_kept_until_they_are_discarded(directory):
    with nvswap.Optimizer(settings(directory), {"g": numpy.ones(1000, "f4")}) as optimizer:
        for discard in (optimizer.step, optimizer.clear_gradients):
            gradients = numpy.ones(1000, "f4")
            lent = weakref.ref(gradients)
            optimizer.lend_gradients("g", gradients)
            del gradients
            gc.collect()
            assert lent() is not None
            discard()
            assert lent() is None


def bits(floats):
    """The upper halves of floats, which are bfloat16."""
    return (numpy.asarray(floats, "f4").view("u4") >> 16).astype("u2")


@promise
def weights_and_gradients_of_16_bits_are_taken_by_their_type(directory):
    values = [1.0, -2.0, 0.5, 4.0]
    groups = [nvswap.Group("b", bits(values), None, "BF16"),
              nvswap.Group("h", numpy.array(values, "f2"))]
    with nvswap.Optimizer(settings(directory), groups) as optimizer:
        for group, dtype in (("b", "BF16"), ("h", "F16")):
            assert optimizer.group_info(group)["dtype"] == dtype
            assert optimizer.get_state(group, "master").tolist() == values
        optimizer.lend_gradients("b", bits([3.0] * 4), "BF16")
        optimizer.add_gradients("h", bits([4.0] * 2), 1, "BF16")
        assert optimizer.sum_squares() == 4 * 9 + 2 * 16
        raises(nvswap.Error, lambda: optimizer.lend_gradients("b", array.array("H", [0] * 4)),
               errno.EINVAL)
        optimizer.step()
    assert nvswap.memory.array_dtype(array.array("H")) == "U16"
    master, weights, state = numpy.ones(4, "f4"), numpy.zeros(4, "u2"), numpy.zeros((2, 4), "f4")
    nvswap.adam_update(master, bits(values), *state, step=1, lr=0.5, gradients_dtype="BF16",
                       weights=weights, weights_dtype="BF16")
    assert numpy.allclose(state[0], 0.1 * numpy.array(values)) and weights.tolist() == [
        0x3f00 if value > 0 else 0x3fc0 for value in values]


@promise
def the_first_exception_of_a_callback_is_raised_once(directory):
    with nvswap.Optimizer(settings(directory), {"g": numpy.ones(10, "f4")}) as optimizer:
        calls = nvswap.optimizer._Calls(None, None, optimizer)
        for error in (KeyError(1), KeyError(2)):
            with calls.callback():
                raise error
        assert raises(KeyError, calls.raise_failure).args == (1,)
        calls.raise_failure()


@promise
def adam_update_gives_the_bits_of_a_step(directory):
    random = numpy.random.default_rng(2)
    weights = random.normal(size=5000).astype(numpy.float32)
    master, state = weights.copy(), [numpy.zeros(5000, numpy.float32) for _ in range(2)]
    with nvswap.Optimizer(settings(directory), {"g": weights}) as optimizer:
        for step in range(1, 4):
            gradients = random.normal(size=5000).astype(numpy.float32)
            optimizer.lend_gradients("g", gradients)
            optimizer.step()
            nvswap.adam_update(master, gradients, *state, step=step, lr=0.01)
        assert numpy.array_equal(master, weights)


@promise
def gradients_are_added_piece_by_piece(directory):
    weights = [numpy.ones(1000, numpy.float32) for _ in range(2)]
    gradients = numpy.arange(1000, dtype=numpy.float32)
    with nvswap.Optimizer(settings(directory), [("a", weights[0]), ("b", weights[1])]) as optimizer:
        optimizer.lend_gradients("a", gradients)
        optimizer.add_gradients("b", gradients[:300])
        optimizer.add_gradients("b", gradients[300:], 300)
        assert optimizer.group_info("a")["gradients"] == "lent"
        assert optimizer.group_info("b")["gradients_numel"] == 1000
        assert optimizer.sum_squares() == 2 * float((gradients.astype(float) ** 2).sum())
        optimizer.step()
        assert numpy.array_equal(weights[0], weights[1])
        raises(nvswap.Error, lambda: optimizer.add_gradients("b", gradients, 1), errno.EINVAL)
        raises(nvswap.Error, lambda: optimizer.lend_gradients("b", gradients[1:]), errno.EINVAL)
        raises(nvswap.Error, lambda: optimizer.lend_gradients("c", gradients), errno.EINVAL)
        raises(nvswap.Error, lambda: optimizer.lend_gradients(2, gradients), errno.EINVAL)


@promise
def a_kept_optimizer_goes_on_where_it_was(directory):
    config = settings(directory, keep=True)
    weights = numpy.ones(1000, numpy.float32)
    with nvswap.Optimizer(config, {"g": weights}) as optimizer:
        optimizer.lend_gradients("g", numpy.ones(1000, numpy.float32))
        optimizer.step()
        optimizer.note = b"epoch 1"
        optimizer.commit()
        committed = weights.copy()
        optimizer.lend_gradients("g", numpy.ones(1000, numpy.float32))
        optimizer.step()
        optimizer.abandon()
        assert optimizer.closed
    other = numpy.zeros(1000, numpy.float32)
    with nvswap.Optimizer(config, {"g": other}) as optimizer:
        optimizer.get_weights()
        assert numpy.array_equal(other, committed) and optimizer.step_count == 1
        assert optimizer.note == b"epoch 1"


@promise
def state_is_exported_and_imported(directory):
    arrays = {part: numpy.arange(70000, dtype=numpy.float32) + i
              for i, part in enumerate(("master", "exp_avg", "exp_avg_sq"))}
    weights = numpy.zeros(70000, numpy.float32)

    def fill(run):
        for part, array in arrays.items():
            getattr(run, part)[:] = array[run.offset:run.offset + len(run.master)]

    with nvswap.Optimizer(settings(directory), {"g": weights}) as optimizer:
        optimizer.import_state(fill)
        optimizer.step_count = 17
        assert numpy.array_equal(weights, arrays["master"]) and optimizer.step_count == 17
        seen = {part: numpy.zeros(70000, numpy.float32) for part in arrays}

        def copy(run):
            for part, array in seen.items():
                array[run.offset:run.offset + len(run.master)] = getattr(run, part)

        optimizer.export_state(copy)
        assert all(numpy.array_equal(seen[part], arrays[part]) for part in arrays)
        optimizer.set_state("g", "exp_avg", numpy.full(10, 3, numpy.float32), 5)
        assert (optimizer.get_state("g", "exp_avg", 5, 10) == 3).all()
        assert numpy.array_equal(optimizer.get_state("g", "exp_avg", 15), arrays["exp_avg"][15:])
        for call in (lambda: optimizer.get_state("g", "master", -1, 1),
                     lambda: optimizer.set_state("g", "master", numpy.zeros(3), 0),
                     lambda: setattr(optimizer, "step_count", -1)):
            raises(nvswap.Error, call, errno.EINVAL)


PARTS = ("master", "exp_avg", "exp_avg_sq")


def states_of(optimizer):
    return [optimizer.get_state(group.name, part).copy() for group in optimizer.groups for part in PARTS]


@promise
def state_leaves_for_a_file_and_comes_back(directory):
    random = numpy.random.default_rng(3)
    weights = {name: random.normal(size=n).astype("float32") for name, n in (("a", 50000), ("b", 9))}
    with nvswap.Optimizer(settings(directory), weights) as optimizer:
        for name, array in weights.items():
            optimizer.lend_gradients(name, array + 1)
        optimizer.step()
        saved = states_of(optimizer)
        for name in "state.safetensors", "state.pt":
            nvswap.export_optimizer(optimizer, os.path.join(directory, name))
            optimizer.import_state(clear)
            optimizer.step_count = 0
            nvswap.import_optimizer(optimizer, os.path.join(directory, name))
            assert all(map(numpy.array_equal, states_of(optimizer), saved))
            assert optimizer.step_count == 1
        names = [f"{group}.{part}" for group in "ab" for part in ("fp32", "exp_avg", "exp_avg_sq")]
        names[1], names[3:] = None, ["b.exp_avg", "b.fp32", "b.exp_avg_sq"]
        optimizer.step_count = 7
        nvswap.import_optimizer(optimizer, os.path.join(directory, "state.pt"), names)
        saved[1][:] = 0
        saved[3], saved[4] = saved[4], saved[3]
        assert all(map(numpy.array_equal, states_of(optimizer), saved))
        assert optimizer.step_count == 7
        raises(ValueError, lambda: nvswap.import_optimizer(
            optimizer, os.path.join(directory, "state.pt"), names[1:]))


def clear(run):
    for part in run.master, run.exp_avg, run.exp_avg_sq:
        part[:] = 0


@promise
def an_exception_of_a_callback_is_raised(directory):
    def fail(_run):
        raise KeyError("callback")

    weights = numpy.zeros(1000, numpy.float32)
    with nvswap.Optimizer(settings(directory), {"g": weights}) as optimizer:
        raises(KeyError, lambda: optimizer.export_state(fail))
        optimizer.export_state(lambda run: None)


@promise
def closing_in_a_callback_is_an_exception(directory):
    def close(*_):
        optimizer.close()

    for options in ({"update": close}, {"weights_final": close}):
        optimizer = nvswap.Optimizer(settings(directory), {"g": numpy.zeros(1000, "f4")}, **options)
        optimizer.lend_gradients("g", numpy.ones(1000, "f4"))
        error = raises(nvswap.Error, optimizer.step, errno.EDEADLK)
        assert "in a callback" in str(error)
        raises(nvswap.Error, lambda: optimizer.export_state(close), errno.EDEADLK)
        optimizer.close()
        assert optimizer.closed


@promise
def an_array_that_a_callback_has_kept_is_mapped_until_it_is_dropped(directory):
    # In a child, which a read of memory that is not mapped would end.
    child('''if True:
        import errno, gc, os, nvswap, numpy
        from promises import raises, settings

        directory, kept = os.environ["DIRECTORY"], []
        keep = {"update": lambda update: kept.append(update.master[1:]),
                "weights_final": lambda group, offset, array: kept.append(array)}
        for name, groups in (("update", {"g": numpy.ones(1000, "f4")}),
                             ("weights_final", [nvswap.Group("g", None, 1000, "F16")]),
                             (None, None)):
            options = {name: keep[name]} if name else {}
            optimizer = nvswap.Optimizer(
                settings(directory), groups or {"g": numpy.ones(1000, "f4")}, **options)
            optimizer.lend_gradients("g", numpy.ones(1000, "f4"))
            optimizer.step()
            if name is None:
                optimizer.export_state(lambda run: kept.append(run.exp_avg))
            for close in optimizer.close, optimizer.abandon:
                assert "kept an array" in str(raises(nvswap.Error, close, errno.EBUSY))
            assert optimizer.step_count == 1 and numpy.isfinite(kept[0]).all()
            kept.append(kept)
            kept = []  # a cycle
            optimizer.close()
            assert optimizer.closed
        # The arrays of an optimizer that is dropped.
        optimizer = nvswap.Optimizer(settings(directory), {"g": numpy.ones(1000, "f4")}, **options)
        optimizer.export_state(lambda run: kept.append(run.master))
        del optimizer
        gc.collect()
        assert (kept[0] == 1).all()
        kept.clear()
        nvswap.Optimizer(settings(directory), {"g": numpy.ones(1000, "f4")}).close()
    ''', directory)


@promise
def an_exception_of_a_callback_keeps_no_arrays(directory):
    def fail(*arguments):
        arrays = arguments
        try:
            raise KeyError(len(arrays))
        except KeyError as error:
            raise ValueError("callback") from error

    failures = []
    for options in ({"update": fail}, {"weights_final": fail}):
        optimizer = nvswap.Optimizer(settings(directory), {"g": numpy.zeros(1000, "f4")}, **options)
        optimizer.lend_gradients("g", numpy.ones(1000, "f4"))
        failures.append(raises(ValueError, optimizer.step))
        failures.append(raises(ValueError, lambda: optimizer.export_state(fail)))
        optimizer.close()
    assert len(failures) == 4


@promise
def calls_on_the_optimizer_in_its_callbacks_are_exceptions(directory):
    # In a child, as a call that waits for itself never ends.
    child('''if True:
        import errno, os, nvswap, numpy
        from promises import raises, settings

        weights, ones = numpy.zeros(1000, "f4"), numpy.ones(1000, "f4")
        calls = [
            lambda: optimizer.step(), lambda: optimizer.info(), lambda: optimizer.group_info("g"),
            lambda: optimizer.step_count, lambda: optimizer.sum_squares(),
            lambda: optimizer.add_gradients("g", ones), lambda: optimizer.lend_gradients("g", ones),
            lambda: optimizer.clear_gradients(), lambda: optimizer.get_state("g", "master"),
            lambda: optimizer.set_state("g", "master", ones), lambda: optimizer.get_weights(),
            lambda: optimizer.commit(), lambda: optimizer.export_state(print),
            lambda: nvswap.export_optimizer(optimizer, os.path.join(directory, "o.pt"))]
        directory, refused = os.environ["DIRECTORY"], []

        def call(*_):
            assert optimizer.loss_scale == 1 and optimizer.stats() and optimizer.note == b""
            for each in calls:
                refused.append(str(raises(nvswap.Error, each, errno.EDEADLK)))

        for options in ({"update": call}, {"weights_final": call}):
            with nvswap.Optimizer(settings(directory), {"g": weights}, **options) as optimizer:
                optimizer.lend_gradients("g", ones)
                assert optimizer.step()["step"] == 1
                optimizer.export_state(call)
                assert optimizer.info()["step"] == 1
        assert len(refused) == 4 * len(calls)
    ''', directory)


@promise
def an_exception_of_gather_is_raised_and_writes_no_checkpoint(directory):
    def fail(_own):
        raise KeyError("gather")

    path = os.path.join(directory, "step0")
    weights, parameters = numpy.zeros(1000, numpy.float32), [Parameter("w", "g", 0, 1000)]
    with nvswap.Optimizer(settings(directory), {"g": weights}) as optimizer:
        raises(KeyError, lambda: export_universal(optimizer, path, parameters, world=2, gather=fail))
        raises(ValueError, lambda: export_universal(optimizer, path, parameters, world=2,
                                                    gather=lambda own: [own, own[1:]]))
        assert not os.path.exists(os.path.join(path, "zero"))
        export_universal(optimizer, path, parameters)
        assert os.listdir(os.path.join(path, "zero", "w"))


@promise
def new_weights_are_given_once(directory):
    seen = numpy.zeros(300000, int)

    def final(_group, offset, array):
        seen[offset:offset + len(array)] += 1
        assert array.dtype == numpy.uint16 and not array.flags.writeable

    config = settings(directory)
    groups = [nvswap.Group("a", None, 200000, "BF16"), nvswap.Group("b", None, 100000, "BF16")]

    def both(group, offset, array):
        final(group, offset + 200000 * group, array)

    with nvswap.Optimizer(config, groups, weights_final=both) as optimizer:
        optimizer.lend_gradients("a", numpy.ones(200000, numpy.float32))
        optimizer.lend_gradients("b", numpy.ones(100000, numpy.float32))
        optimizer.step()
        assert (seen == 1).all()


@promise
def an_update_of_the_callers_replaces_adam(directory):
    def descend(update):
        update.master[:] -= update.gradients

    weights = numpy.ones(100000, numpy.float32)
    with nvswap.Optimizer(settings(directory), {"g": weights}, update=descend) as optimizer:
        optimizer.lend_gradients("g", numpy.full(100000, 3, numpy.float32))
        assert optimizer.step()["kernel"] == "caller"
        assert (weights == -2).all()


@promise
def an_exception_of_an_update_is_raised_at_the_end_of_its_step(directory):
    def descend(update):
        if update.group == failing:
            raise KeyError(update.group)
        update.master[:] -= update.gradients

    weights = [numpy.ones(1000, numpy.float32) for _ in range(2)]
    with nvswap.Optimizer(settings(directory), list(zip("ab", weights)), update=descend) as optimizer:
        for step, failing in enumerate((1, None), 1):
            gradients = numpy.full(1000, 3, numpy.float32)
            lent = weakref.ref(gradients)
            optimizer.lend_gradients("a", gradients)
            optimizer.lend_gradients("b", gradients)
            del gradients
            if failing is None:
                optimizer.step()
            else:
                raises(KeyError, optimizer.step)
            gc.collect()
            assert lent() is None and optimizer.step_count == step
            assert not optimizer.info()["unfinished"]
        assert (weights[0] == -5).all() and (weights[1] == -2).all()


@promise
def each_group_has_its_own_numbers_of_adam(directory):
    random = numpy.random.default_rng(3)
    weights = [random.normal(size=5000).astype(numpy.float32) for _ in range(2)]
    masters = [each.copy() for each in weights]
    states = [[numpy.zeros(5000, numpy.float32) for _ in range(2)] for _ in range(2)]
    numbers = [{"lr": 0.01, "betas": (0.8, 0.9), "grad_factor": 0.25},
               {"lr": 0.1, "eps": 1e-6, "weight_decay": 0.1, "adam_w_mode": False,
                "bias_correction": False}]
    adam_of_groups = nvswap.GroupAdam(2)
    with nvswap.Optimizer(settings(directory), list(zip("ab", weights)),
                          update=adam_of_groups) as optimizer:
        for step in range(1, 4):
            for group in range(2):
                gradients = random.normal(size=5000).astype(numpy.float32)
                adam_of_groups.set(group, **numbers[group])
                optimizer.lend_gradients(group, gradients)
                nvswap.adam_update(masters[group], gradients, *states[group], step=step,
                                   **numbers[group])
            optimizer.step()
        for group in range(2):
            assert numpy.array_equal(masters[group], weights[group])
            for part, state in zip(("exp_avg", "exp_avg_sq"), states[group]):
                assert numpy.array_equal(optimizer.get_state(group, part), state)


@promise
def each_group_has_its_own_numbers_of_a_rule(directory):
    weights = [numpy.linspace(-1, 1, 5000, dtype=numpy.float32) for _ in range(2)]
    due, sums = [each.astype(numpy.float64) for each in weights], numpy.zeros((2, 5000))
    rule = nvswap.GroupRule("adagrad", 2)
    path = os.path.join(directory, "state.safetensors")
    with nvswap.Optimizer(settings(directory), list(zip("ab", weights)), update=rule) as optimizer:
        assert optimizer.info()["rule"] == "adagrad"
        for step in range(1, 4):
            for group, lr in enumerate((0.01, 0.1)):
                gradients = numpy.full(5000, step, numpy.float32)
                rule.set(group, lr=lr, eps=1e-6, lr_decay=0.5 * group, grad_factor=-1)
                optimizer.lend_gradients(group, gradients)
                sums[group] += gradients ** 2
                due[group] += lr / (1 + (step - 1) * 0.5 * group) * gradients / (sums[group] ** 0.5 + 1e-6)
            optimizer.step()
        for group in range(2):
            assert numpy.allclose(weights[group], due[group], atol=1e-6)
            assert numpy.array_equal(optimizer.get_state(group, "sum"), sums[group])
        assert "has no exp_avg" in str(raises(
            nvswap.Error, lambda: optimizer.get_state(0, "exp_avg"), errno.EINVAL))
        runs = []
        optimizer.export_state(lambda run: runs.append((run.exp_avg is None, len(run.sum))))
        assert all(none for none, _ in runs) and sum(length for _, length in runs) == 10000
        nvswap.export_optimizer(optimizer, path)
        nvswap.import_optimizer(optimizer, path, ["b.fp32", "b.sum", "a.fp32", None])
        assert numpy.allclose(weights[1], due[0], atol=1e-6)
        assert not optimizer.get_state(1, "sum").any()
        raises(ValueError, lambda: nvswap.import_optimizer(optimizer, path, ["b.fp32"] * 6))


@promise
def an_update_function_gets_the_states_of_its_rule(directory):
    def update(run):
        assert run.exp_avg is None and run.exp_avg_sq is None and run.sum is None
        run.momentum_buffer[:] += run.gradients
        run.master[:] -= run.lr * run.momentum_buffer

    weights = numpy.ones(1000, numpy.float32)
    with nvswap.Optimizer(settings(directory), {"g": weights}, update=update, rule="sgd") as optimizer:
        for _ in range(2):
            optimizer.lend_gradients("g", numpy.ones(1000, numpy.float32))
            optimizer.step(lr=0.25)
    assert (weights == 0.25).all()
    raises(nvswap.Error, lambda: nvswap.Optimizer(settings(directory), {"g": weights}, update=update, rule="muon"),
           errno.EINVAL)
    for other in (None, nvswap.GroupRule("lion", 1)):
        error = raises(nvswap.Error, lambda other=other: nvswap.Optimizer(
            settings(directory), {"g": weights}, update=other, rule="sgd"), errno.EINVAL)
        assert "optimizer.type" in str(error)
    raises(nvswap.Error, lambda: nvswap.GroupRule("lion", 1).set(0, betas=(1, 0)), errno.EINVAL)


@promise
def a_group_does_not_count_missed_steps_and_may_take_the_steps_learning_rate(directory):
    weights, gradients = numpy.ones(1000, numpy.float32), numpy.ones(1000, numpy.float32)
    master, state = weights.copy(), [numpy.zeros(1000, numpy.float32) for _ in range(2)]
    adam_of_groups = nvswap.GroupAdam(1)
    with nvswap.Optimizer(settings(directory), {"g": weights}, update=adam_of_groups) as optimizer:
        optimizer.step_count = 10
        adam_of_groups.set(0, lr=None, missed=8)
        optimizer.lend_gradients("g", gradients)
        optimizer.step(lr=0.5)
        nvswap.adam_update(master, gradients, *state, step=3, lr=0.5)
        assert numpy.array_equal(master, weights)


@promise
def numbers_of_adam_out_of_bounds_are_errors(directory):
    adam_of_groups = nvswap.GroupAdam(1)
    for numbers in ({"lr": -1}, {"lr": float("nan")}, {"betas": (1, 0.9)}, {"grad_factor": 0},
                    {"missed": -1}):
        raises(nvswap.Error, lambda: adam_of_groups.set(0, **numbers), errno.EINVAL)
    raises(nvswap.Error, lambda: adam_of_groups.set(1), errno.EINVAL)
    raises(nvswap.Error, lambda: nvswap.Optimizer(settings(directory), {
        "a": numpy.zeros(3, "f4"), "b": numpy.zeros(3, "f4")}, update=adam_of_groups), errno.EINVAL)


@promise
def the_groups_of_a_kept_store_need_not_be_known(directory):
    weights = {"body": numpy.arange(2000, dtype="f4"), "head": numpy.ones(3, "f4")}
    config = settings(directory, keep=True)
    raises(nvswap.Error, lambda: nvswap.Optimizer(config), errno.ENODATA)
    with nvswap.Optimizer(config, weights) as optimizer:
        optimizer.commit()
    with nvswap.Optimizer(settings(directory, read_only=True)) as optimizer:
        assert optimizer.groups == [nvswap.Group("body", None, 2000, "F32"),
                                    nvswap.Group("head", None, 3, "F32")]
        assert numpy.array_equal(optimizer.get_state("body", "master"), weights["body"])
    raises(nvswap.Error, lambda: nvswap.Optimizer(config, update=nvswap.GroupAdam(2)), errno.EINVAL)
    raises(nvswap.Error, lambda: nvswap.Optimizer(settings(directory)), errno.EINVAL)


@promise
def a_closed_optimizer_is_an_exception(directory):
    weights = numpy.ones(100, numpy.float32)
    optimizer = nvswap.Optimizer(settings(directory), {"g": weights})
    optimizer.close()
    for call in (optimizer.step, optimizer.info, optimizer.commit, optimizer.stats,
                 optimizer.clear_gradients, lambda: optimizer.loss_scale,
                 lambda: optimizer.get_state("g", "master")):
        raises(nvswap.ClosedError, call, errno.EBADF)


@promise
def bad_groups_and_updates_are_errors(directory):
    config = settings(directory)
    raises(nvswap.Error, lambda: nvswap.Optimizer(config, {}), errno.EINVAL)
    raises(nvswap.Error, lambda: nvswap.Optimizer(config, [("a",)]), errno.EINVAL)
    raises(ValueError, lambda: nvswap.Optimizer(config, {"a\0b": numpy.zeros(10, "f4")}))
    raises(nvswap.Error, lambda: nvswap.Optimizer(config, {"a": numpy.zeros(3)}), errno.EINVAL)
    raises(nvswap.Error, lambda: nvswap.Optimizer(config, [
        nvswap.Group("a", numpy.zeros(3, "f4"), None, "BF16")]), errno.EINVAL)
    raises(nvswap.Error, lambda: nvswap.Optimizer(config, {"a": numpy.zeros(300000, "f4")}),
           errno.E2BIG)
    arrays = [numpy.zeros(10, numpy.float32) for _ in range(4)]
    raises(nvswap.Error, lambda: nvswap.adam_update(*arrays, step=0), errno.EINVAL)
    raises(nvswap.Error, lambda: nvswap.adam_update(*arrays, step=1, lr=-1), errno.EINVAL)
    raises(nvswap.Error, lambda: nvswap.adam_update(arrays[0], arrays[1][1:], *arrays[2:], step=1),
           errno.EINVAL)


main()
