#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of transformers and peft, as released, with parameters offloaded by nvswap.torch."""

import contextlib
import gc
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false")
from promises import main, promise, settings
from stand_in import host_as_device
import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import nvswap.torch  # noqa: E402

TOKENS = torch.randint(64, (2, 12), generator=torch.Generator().manual_seed(2))


def made(kind):
    transformers.set_seed(1)
    if kind == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_layer=3, n_embd=32, n_head=2, vocab_size=64, n_positions=32, bos_token_id=0, eos_token_id=0,
            resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    sizes = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                 vocab_size=64, max_position_embeddings=32, bos_token_id=0, eos_token_id=0)
    if kind == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(intermediate_size=64, **sizes))
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(
        intermediate_size=48, num_local_experts=4, num_experts_per_tok=2, **sizes))


def adapted(model):
    transformers.set_seed(3)
    targets = ["c_attn"] if isinstance(model, transformers.GPT2LMHeadModel) else ["q_proj", "v_proj"]
    return peft.get_peft_model(model, peft.LoraConfig(
        r=4, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM"))


def losses_of(model, optimizer):
    result = []
    for _ in range(4):
        loss = model(input_ids=TOKENS, labels=TOKENS).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        result.append(loss.item())
    return result


def small(directory):
    """A pool that holds some layers."""
    config = settings(directory)
    config["zero_optimization"]["offload_param"]["buffer_size"] = 10000
    return config


def devices():
    """The host, and a device that stands in for a GPU."""
    yield contextlib.nullcontext(), {}
    yield (host_as_device(sys.modules["nvswap.torch.offload"], nvswap.torch.state),
           {"device": "cpu", "device_memory": 20000})


@promise
def models_with_gradient_checkpointing_train_and_generate_as_in_memory(directory):
    for kind in ("gpt2", "llama", "mixtral"):
        expected = []
        for device, more in [(contextlib.nullcontext(), None), *devices()]:
            with device:
                model = made(kind)
                offloaded = None if more is None else nvswap.torch.offload(model, small(directory), **more)
                model.gradient_checkpointing_enable()
                optimizer = nvswap.torch.AdamW(model.parameters(), lr=1e-2, config=settings(directory),
                                               offloaded=offloaded)
                found = losses_of(model, optimizer)
                optimizer.close()
                model.eval()
                found.append(model.generate(TOKENS, max_new_tokens=8, do_sample=False).tolist())
                expected = expected or found
                assert found == expected, (kind, found, expected)
                if offloaded is not None:
                    gc.collect()
                    offloaded.load()
                    offloaded.engine.close()
        assert expected[3] < expected[0]


@promise
def lora_trains_over_frozen_weights_that_are_never_written(directory):
    for kind in ("gpt2", "llama"):
        expected = []
        # The adapters stay in memory, since they are made after offload() or are smaller.
        for before in (False, True):
            for device, more in [(contextlib.nullcontext(), None), *devices()]:
                with device:
                    model = made(kind)
                    if more is not None and before:
                        offloaded = nvswap.torch.offload(model, small(directory), **more)
                    model = adapted(model)
                    if more is not None and not before:
                        offloaded = nvswap.torch.offload(model, small(directory), smallest=1000, **more)
                    trained = [each for each in model.parameters() if each.requires_grad]
                    assert trained and all(each.isfinite().all() for each in trained)
                    if more is not None:
                        written = offloaded.engine.stats()["aio"]["write"]["bytes"]
                        read = offloaded.engine.stats()["aio"]["read"]["bytes"]
                    found = losses_of(model, torch.optim.AdamW(trained, lr=1e-2))
                    expected = expected or found
                    assert found == expected and found[-1] < found[0], (kind, found, expected)
                    if more is not None:
                        assert offloaded.engine.stats()["aio"]["write"]["bytes"] == written
                        assert offloaded.engine.stats()["aio"]["read"]["bytes"] > read
                        gc.collect()
                        offloaded.load()
                        offloaded.engine.close()


@promise
def layers_that_are_compiled_train_as_in_memory(directory):
    expected = []
    for device, more in [(contextlib.nullcontext(), None), *devices()]:
        with device:
            model = made("gpt2")
            offloaded = None if more is None else nvswap.torch.offload(model, small(directory), **more)
            for layer in model.transformer.h:
                layer.compile(backend="aot_eager")
            optimizer = nvswap.torch.AdamW(model.parameters(), lr=1e-2, config=settings(directory),
                                           offloaded=offloaded)
            found = losses_of(model, optimizer)
            optimizer.close()
            expected = expected or found
            assert found == expected, (found, expected)
            if offloaded is not None:
                gc.collect()
                offloaded.load()
                offloaded.engine.close()


main()
