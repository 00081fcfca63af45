#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Depth "swappers" with optimizers of torch and those that the configuration names, in one process: losses are those
of state in memory, and checkpoints have all state.
"""

import contextlib
import errno
import os
from unittest import mock

import one_rank  # noqa: F401
import deepspeed
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
from deepspeed.utils import logger, safe_get_full_optimizer_state, safe_set_full_optimizer_state
from jobs import configuration
from promises import main, promise, raises

import nvswap
from nvswap import Engine
from nvswap.deepspeed.checkpoint.universal import save_universal
from nvswap.deepspeed.step import tiled

WIDTH = 16
UNIVERSAL = {"checkpoint": {"load_universal": True}}
MUON = {"type": "Muon", "params": {"lr": 0.01}}


def initialized(directory, optimizer=None, seed=1, depth="swappers", optimizer_of=None, momentum_in_memory=False,
                **blocks):
    """An engine with several sub-groups and an optimizer of torch, or DeepSpeed's own, which `optimizer_of` names."""
    zero = {"sub_group_size": WIDTH * WIDTH, "reduce_scatter": optimizer_of is not MUON,
            "save_muon_momentum_buffer_in_memory": momentum_in_memory}
    config = configuration(directory, dtype="fp32", depth=depth, zero=zero)
    config.update(blocks, gradient_accumulation_steps=1, zero_allow_untested_optimizer=True,
                  zero_force_ds_cpu_optimizer=False)
    if optimizer_of:
        config["optimizer"] = optimizer_of
    torch.manual_seed(seed)
    with deepspeed.zero.Init(config_dict_or_path=config):
        module = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    if optimizer is None:
        return deepspeed.initialize(model=module, model_parameters=module.parameters(), config=config)[0]
    del config["optimizer"]
    return deepspeed.initialize(model=module, optimizer=optimizer(module.parameters()), config=config)[0]


def train(engine, first, last):
    """The losses of these steps, all digits."""
    losses = []
    for step in range(first, last):
        inputs = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))
        loss = (engine(inputs) - inputs.flip(1)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def trained(engine, *steps):
    """The losses of an engine that is destroyed then."""
    losses = train(engine, *steps)
    engine.destroy()
    return losses


def resumed(directory, steps, *args, tag="saved", **blocks):
    """The losses after a checkpoint of an engine that begins with other weights."""
    engine = initialized(directory, *args, seed=2, **blocks)
    engine.load_checkpoint(directory, tag=tag)
    return trained(engine, *steps)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def amsgrad(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, amsgrad=True)


def asgd(parameters):
    """Has numbers and tensors without dimensions beside those of each element."""
    return torch.optim.ASGD(parameters, lr=0.01)


@promise
def jobs_with_optimizers_of_torch_go_on_exactly(directory):
    for optimizer in sgd, adamw, amsgrad, asgd:
        for saved in 0, 3:
            engine = initialized(directory, optimizer)
            train(engine, 0, saved)
            engine.save_checkpoint(directory, tag="saved")
            losses = trained(engine, saved, 6)
            assert resumed(directory, (saved, 6), optimizer) == losses, (optimizer.__name__, saved)


@promise
def a_load_replaces_all_state_of_an_optimizer_that_has_some(directory):
    engine = initialized(directory, sgd)
    engine.save_checkpoint(directory, tag="first")
    losses = train(engine, 0, 4)
    engine.save_checkpoint(directory, tag="saved")
    losses += train(engine, 4, 6)
    for tag, step in (("saved", 4), ("first", 0)):
        engine.load_checkpoint(directory, tag=tag)
        assert train(engine, step, 6) == losses[step:], tag
    engine.destroy()


@promise
def a_universal_checkpoint_has_all_state_or_is_refused(directory):
    engine = initialized(directory, adamw)
    train(engine, 0, 3)
    save_universal(engine, directory, "universal")
    losses = trained(engine, 3, 6)
    assert resumed(directory, (3, 6), adamw, tag="universal", **UNIVERSAL) == losses
    for optimizer, keys in ((sgd, "momentum_buffer"), (amsgrad, "max_exp_avg_sq"), (None, "momentum_buffer")):
        muon = {} if optimizer else {"depth": "step", "optimizer_of": MUON}
        engine = initialized(directory, optimizer, **muon)
        train(engine, 0, 1)
        error = raises(OSError, lambda engine=engine: save_universal(engine, directory, "refused"),
                       errno.ENOTSUP)
        assert f"state has {keys}, and" in str(error), error
        engine.destroy()
    assert not os.path.exists(os.path.join(directory, "refused"))


@promise
def the_step_refuses_state_that_its_optimizer_does_not_have(directory):
    engine = initialized(directory, amsgrad)
    train(engine, 0, 1)
    engine.save_checkpoint(directory, tag="saved")
    engine.destroy()
    engine = initialized(directory, depth="step")
    error = raises(OSError, lambda: engine.load_checkpoint(directory, tag="saved"), errno.ENOTSUP)
    assert "the checkpoint has max_exp_avg_sq" in str(error), error
    assert engine.load_checkpoint(directory, tag="saved", load_optimizer_states=False)[0]
    engine.destroy()


@promise
def state_of_the_step_is_read_and_set_by_the_keys_of_deepspeed(directory):
    for kind, own, other in (("Lion", "exp_avg", "exp_avg_sq"), ("Adagrad", "exp_avg_sq", "exp_avg")):
        engine = initialized(directory, depth="step", optimizer_of={"type": kind, "params": {"lr": 0.01}})
        train(engine, 0, 1)
        parameter = next(engine.module.parameters())
        value = safe_get_full_optimizer_state(parameter, own)
        assert value.shape == (WIDTH, WIDTH) and value.any(), kind
        safe_set_full_optimizer_state(parameter, value / 2, own)
        assert torch.equal(safe_get_full_optimizer_state(parameter, own), value / 2), kind
        if kind == "Lion":  # DeepSpeed's has it too, and reads it nowhere
            zeros = safe_get_full_optimizer_state(parameter, other)
            assert zeros.shape == value.shape and not zeros.any()
            safe_set_full_optimizer_state(parameter, zeros, other)
            raises(nvswap.Error, lambda of=parameter, like=value: safe_set_full_optimizer_state(of, like, other),
                   errno.ENOTSUP)
            assert torch.equal(safe_get_full_optimizer_state(parameter, own), value / 2)
        else:
            raises(KeyError, lambda of=parameter, key=other: safe_get_full_optimizer_state(of, key))
        engine.destroy()


@promise
def an_optimizer_with_state_before_its_first_step_is_refused(directory):
    error = raises(OSError, lambda: initialized(directory, torch.optim.Adagrad), errno.ENOTSUP)
    assert "Adagrad has state before its first step" in str(error), error


def losses_of(directory, device, depth="swappers", dtype="fp32", fp16=None, bf16=None, zero=None, clipping=1.0,
              nvswap=None, offload=True, optimizer=None, **kind):
    """The losses of a job whose optimizer the configuration names, or `optimizer` makes of parameters; without
    `offload` it has no block that offloads, and without `depth` it names none."""
    config = configuration(directory if device == "nvme" else None, device, dtype, depth, bf16=bf16,
                           zero={"sub_group_size": WIDTH * WIDTH, **(zero or {})})
    if depth is None:
        del config["nvswap"]["deepspeed"]
    config.update(gradient_accumulation_steps=1, zero_allow_untested_optimizer=True,
                  zero_force_ds_cpu_optimizer=False, optimizer=kind)
    config.get("nvswap", {}).update(nvswap or {})
    if not offload:
        del config["zero_optimization"]["offload_param"], config["zero_optimization"]["offload_optimizer"]
    if clipping is None:
        del config["gradient_clipping"]
    else:
        config["gradient_clipping"] = clipping
    if fp16:
        config["fp16"] = {"enabled": True, "initial_scale_power": 4, **fp16}
    torch.manual_seed(1)
    with deepspeed.zero.Init(config_dict_or_path=config):
        module = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    for parameter in module.parameters():
        parameter.use_muon = len(parameter.ds_shape) == 2
    own = {"model_parameters": module.parameters()}
    if optimizer is not None:
        del config["optimizer"]
        own = {"optimizer": optimizer(list(module.parameters()))}
    engine, losses = deepspeed.initialize(model=module, config=config, **own)[0], []
    for step in range(5):
        inputs = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))
        inputs = inputs.to(next(module.parameters()).dtype)
        loss = (engine(inputs) - 10 * inputs.flip(1)).float().square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    engine.destroy()
    return losses


def same_losses(directory, **job):
    in_memory = losses_of(directory, "cpu", **job)
    assert losses_of(directory, "nvme", **job) == in_memory, job
    return in_memory


@promise
def optimizers_that_a_configuration_names_have_the_losses_of_state_in_memory(directory):
    for kind, params in (("SGD", {"lr": 0.01, "momentum": 0.9}), ("Adafactor", {"lr": 0.01}), ("Lion", {"lr": 0.01}),
                         ("Adagrad", {"lr": 0.01}), ("Adam", {"lr": 0.01, "torch_adam": True})):
        for dtype in ("fp32", "bf16"):
            same_losses(directory, dtype=dtype, type=kind, params=params)


@promise
def optimizers_that_deepspeed_compiles_have_the_losses_of_state_in_memory(directory):
    for in_memory in (False, True):
        same_losses(directory, dtype="bf16", type="Muon", params={"lr": 0.01}, zero={
            "reduce_scatter": False, "save_muon_momentum_buffer_in_memory": in_memory})


def muon_with_l2(parameters):
    """Muon whose Adam has weight decay in the gradient."""
    from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam
    groups = [{"params": [each for each in parameters if each.use_muon is use_muon], "use_muon": use_muon,
               "lr": 0.01, "weight_decay": 0.3} for use_muon in (False, True)]
    return MuonWithAuxAdam(groups, adam_optimizer=DeepSpeedCPUAdam, adam_optimizer_kwargs={"adamw_mode": False})


@promise
def muon_that_the_script_makes_has_the_mode_of_its_own_adam(directory):
    same_losses(directory, depth="step", optimizer=muon_with_l2, zero={"reduce_scatter": False})


@promise
def what_the_step_has_not_for_muon_is_refused_by_its_key_or_has_the_swappers(directory):
    muon = dict(dtype="bf16", type="Muon", params={"lr": 0.01}, zero={"reduce_scatter": False})
    for key, value in (("overlap_step", True), ("optimizer_state", "8bit"), ("optimizer_max_in_cpu", 1000)):
        error = raises(OSError, lambda key=key, value=value: losses_of(
            directory, "nvme", "step", nvswap={key: value}, **muon), errno.ENOTSUP)
        assert error.tensor == f"nvswap.{key}" and "Muon" in str(error), error
    muon["params"] = {"lr": 0.01, "torch_adam": True}
    error = raises(OSError, lambda: losses_of(directory, "nvme", "step", **muon), errno.ENOTSUP)
    assert error.tensor == "nvswap.deepspeed" and "with AdamW" in str(error) and '"swappers"' in str(error), error
    in_memory = losses_of(directory, "cpu", **muon)
    with mock.patch.object(logger, "warning", wraps=logger.warning) as warned:
        assert losses_of(directory, "nvme", None, nvswap={"optimizer_state": "8bit"}, **muon) == in_memory
    said = [str(call.args[0]) for call in warned.call_args_list if "MuonWithAuxAdam" in str(call.args[0])]
    assert len(said) == 1 and "this job has nvswap's swappers with DeepSpeed's own step" in said[0], said
    assert "without nvswap.optimizer_state" in said[0], said


@promise
def a_step_of_muon_reads_and_writes_each_state_once(directory):
    for in_memory in (False, True):
        engine = initialized(directory, depth="step", optimizer_of=MUON, momentum_in_memory=in_memory)
        train(engine, 0, 2)
        stats = engine.optimizer._opened.stats
        before = stats()
        train(engine, 2, 3)
        matrices, vectors = 3 * WIDTH * WIDTH, 3 * WIDTH
        nbytes = (4 if in_memory else 8) * matrices + 12 * vectors
        assert [stats()[key] - before[key] for key in ("swapped_in", "swapped_out")] == [nbytes] * 2, in_memory
        engine.destroy()


@promise
def momentum_of_muon_is_read_and_set_by_the_key_of_deepspeed(directory):
    for in_memory in (False, True):
        engine = initialized(directory, depth="step", optimizer_of=MUON, momentum_in_memory=in_memory)
        train(engine, 0, 1)
        for parameter in engine.module.parameters():
            own, other = ("momentum_buffer", "exp_avg") if parameter.use_muon else ("exp_avg", "momentum_buffer")
            value = safe_get_full_optimizer_state(parameter, own)
            assert value.shape == parameter.ds_shape and value.any()
            safe_set_full_optimizer_state(parameter, value / 2, own)
            assert torch.equal(safe_get_full_optimizer_state(parameter, own), value / 2)
            raises(KeyError, lambda of=parameter, key=other: safe_get_full_optimizer_state(of, key))
        engine.destroy()


@promise
def any_read_or_write_that_fails_in_a_step_of_muon_is_made_by_the_next_call(directory):
    for name in ("load_to", "store_from"):
        engine = initialized(directory, depth="step", optimizer_of=MUON)
        losses, transfer, failed, refused = train(engine, 0, 6), getattr(Engine, name), 0, 0
        engine.destroy()
        with mock.patch.object(tiled, "_TOGETHER", 0):  # each sub-group by itself
            engine = initialized(directory, depth="step", optimizer_of=MUON)
        for step in range(6):
            left = [step + 1]

            def fails(*args, left=left, **kwargs):
                left[0] -= 1
                if not left[0]:
                    raise nvswap.Error(errno.EIO, "a transfer has failed")
                return transfer(*args, **kwargs)

            inputs = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))
            loss = (engine(inputs) - inputs.flip(1)).square().mean()
            engine.backward(loss)
            assert loss.item() == losses[step], (name, step)
            with mock.patch.object(Engine, name, fails), contextlib.suppress(nvswap.Error):
                engine.step()
                continue
            failed += 1
            try:
                engine.save_checkpoint(directory, tag="unfinished")
            except nvswap.Error as error:
                assert error.errno == errno.EBUSY and "call engine.step() again" in str(error), error
                refused += 1
            engine.step()
        assert failed > 2 and refused > 1, (name, failed, refused)
        engine.destroy()


@promise
def a_load_after_a_failed_step_of_muon_replaces_all_of_it(directory):
    for name in ("load_to", "store_from"):
        engine = initialized(directory, depth="step", optimizer_of=MUON)
        train(engine, 0, 2)
        engine.save_checkpoint(directory, tag="saved")
        losses = train(engine, 2, 5)
        for number in (1, 2):  # of the momentum, or of the step
            left = [number]

            def fails(*args, left=left, name=name, own=getattr(Engine, name), **kwargs):
                left[0] -= 1
                if not left[0]:
                    raise nvswap.Error(errno.EIO, "a transfer has failed")
                return own(*args, **kwargs)

            with mock.patch.object(Engine, name, fails):
                raises(nvswap.Error, lambda of=engine: train(of, 5, 6), errno.EIO)
            engine.load_checkpoint(directory, tag="saved")
            assert train(engine, 2, 5) == losses, (name, number)
        engine.destroy()


@promise
def state_in_16_bits_is_that_of_a_job_in_memory_or_refused_by_its_key(directory):
    type(deepspeed.accelerator.get_accelerator()).is_fp16_supported = lambda self: True
    adam, master, seen = {"type": "AdamW", "params": {"lr": 0.01}}, "bf16_master_weights_and_grads", []
    for dtype, blocks, key in (
            ("bf16", {"bf16": {master: True}}, f"bf16.{master}"),
            ("fp16", {"fp16": {"fp16_master_weights_and_grads": True}}, "fp16.fp16_master_weights_and_grads")):
        seen.append(same_losses(directory, dtype=dtype, **blocks, **adam))
        error = raises(OSError, lambda dtype=dtype, blocks=blocks: losses_of(
            directory, "nvme", "step", dtype, **blocks, **adam), errno.ENOTSUP)
        assert error.tensor == key and key in str(error) and '"swappers"' in str(error), error
    assert seen[0] != same_losses(directory, dtype="bf16", bf16={master: True, "bf16_optimizer_states": True}, **adam)
    # Moments in the type of the master weights, which is float32.
    off = {"type": "AdamW", "params": {"lr": 0.01, "fp32_optimizer_states": False}}
    in_memory = same_losses(directory, dtype="bf16", **off)
    assert losses_of(directory, "nvme", "step", "bf16", **off) == in_memory


@promise
def bf16_optimizer_states_chooses_the_format_at_depth_step_unless_nvswap_does(directory):
    adam = {"type": "AdamW", "params": {"lr": 0.01}}
    theirs = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    found = {(keys, state): losses_of(directory, "nvme", "step", "bf16", bf16=theirs if keys else None,
                                      nvswap={"optimizer_state": state} if state else None, **adam)
             for keys, state in ((False, "fp32"), (False, "bf16"), (True, None), (True, "fp32"))}
    assert found[True, None] == found[False, "bf16"] != found[False, "fp32"] == found[True, "fp32"], found


@promise
def bf16_optimizer_states_without_offload_optimizer_are_deepspeeds_own(directory):
    blocks = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    adam = {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}}
    found = [losses_of(directory, "cpu", depth, "bf16", bf16=blocks, offload=False, **adam)
             for depth in ("ops", "step")]
    assert found[0] == found[1], found


@promise
def without_gradient_clipping_deepspeeds_default_holds(directory):
    adam = {"type": "AdamW", "params": {"lr": 0.01}}
    of_default = same_losses(directory, clipping=None, **adam)
    assert of_default != same_losses(directory, clipping=0.0, **adam)
    for clipping in (None, 1.0):
        assert losses_of(directory, "nvme", "step", clipping=clipping, **adam) == of_default


main()
