#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of transformers whose weights nvswap.torch reads in the folders that save_pretrained makes."""

import copy
import errno
import functools
import gc
import hashlib
import json
import os
import re
import shutil
import sys
import threading

os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false")
from promises import TOP, child, main, promise, raises, settings
from stand_in import host_as_device
import accelerate  # noqa: E402
import peft  # noqa: E402
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import nvswap.torch  # noqa: E402
import nvswap.torch.weights  # noqa: E402

transformers.utils.logging.disable_progress_bar()

AUTO = transformers.AutoModelForCausalLM
TOKENS = torch.randint(1, 64, (2, 12), generator=torch.Generator().manual_seed(2))
KINDS = ("gpt2", "llama", "qwen2", "mixtral")
LAYERS = {"gpt2": ["c_attn"], "qwen2": ["q_proj", "embed_tokens"]}
DTYPES = (torch.float32, torch.bfloat16)


def settings_of(kind):
    if kind == "gpt2":
        return transformers.GPT2Config(n_layer=3, n_embd=32, n_head=2, vocab_size=64, n_positions=32, bos_token_id=0,
                                       eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    sizes = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, vocab_size=64,
                 max_position_embeddings=32, bos_token_id=0, eos_token_id=0)
    if kind == "llama":
        return transformers.LlamaConfig(intermediate_size=64, **sizes)
    if kind == "qwen2":
        return transformers.Qwen2Config(intermediate_size=64, tie_word_embeddings=True, **sizes)
    return transformers.MixtralConfig(intermediate_size=48, num_local_experts=4, num_experts_per_tok=2, **sizes)


def saved(directory, kind, dtype=torch.float32):
    """A folder of several files with an index, and the model of it in memory: frozen, as torch multiplies by what
    requires a gradient in another order."""
    transformers.set_seed(1)
    folder = os.path.join(directory, f"{kind}-{dtype}")
    AUTO.from_config(settings_of(kind), dtype=dtype).save_pretrained(folder, max_shard_size="20KB")
    assert len([name for name in os.listdir(folder) if name.endswith(".safetensors")]) > 2
    return folder, AUTO.from_pretrained(folder).requires_grad_(False)


def small(kind="llama"):
    """A pool that holds some layers."""
    return {"zero_optimization": {"offload_param": {
        "buffer_count": 1, "buffer_size": 30000 if kind == "mixtral" else 10000}}}


def state_of(folder):
    """All that a program could see of the files."""
    result = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        status = os.stat(os.path.join(folder, name))
        result[name] = digest, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
    return result


def same(model, wanted):
    for cache in (True, False):
        with torch.no_grad():
            assert torch.equal(model(TOKENS, use_cache=cache).logits, wanted(TOKENS, use_cache=cache).logits)
        more = dict(attention_mask=torch.ones_like(TOKENS), pad_token_id=0, max_new_tokens=8, do_sample=False,
                    use_cache=cache, output_scores=True, return_dict_in_generate=True)
        ours, theirs = model.generate(TOKENS, **more), wanted.generate(TOKENS, **more)
        assert torch.equal(ours.sequences, theirs.sequences)
        assert all(map(torch.equal, ours.scores, theirs.scores))


def closed(model):
    gc.collect()
    model.offloaded.engine.close()


@promise
def models_compute_and_generate_as_in_memory_and_write_nothing(directory):
    for kind in KINDS:
        for dtype in DTYPES:
            folder, wanted = saved(directory, kind, dtype)
            before = state_of(folder)
            model = nvswap.torch.from_pretrained(AUTO, folder, config=small(kind))
            assert type(model) is type(wanted) and not model.training and model.dtype == dtype
            same(model, wanted)
            closed(model)
            assert state_of(folder) == before


@promise
def models_on_a_device_compute_as_in_memory(directory):
    for kind in ("gpt2", "mixtral"):
        folder, wanted = saved(directory, kind)
        wanted = copy.deepcopy(wanted)  # Memory of a device begins where that of torch does.
        with host_as_device(sys.modules["nvswap.torch.offload"], nvswap.torch.weights,
                            nvswap.torch.state):
            model = nvswap.torch.from_pretrained(AUTO, folder, config=small(kind), device="cpu",
                                                 device_memory=60000)
            same(model, wanted)
            closed(model)


@promise
def models_on_the_meta_device_are_given_weights_however_they_are_made(directory):
    def of_torch(settings, dtype):
        with torch.device("meta"):
            return AUTO.from_config(settings, dtype=dtype)

    def of_accelerate(settings, dtype):
        with accelerate.init_empty_weights():
            return AUTO.from_config(settings, dtype=dtype)

    def with_buffers(settings, dtype):
        with accelerate.init_empty_weights(include_buffers=True):
            return AUTO.from_config(settings, dtype=dtype)

    for kind in ("gpt2", "qwen2"):
        folder, wanted = saved(directory, kind)
        for make in (of_torch, of_accelerate, with_buffers):
            model = make(transformers.AutoConfig.from_pretrained(folder), torch.float32).eval()
            model.offloaded = nvswap.torch.offload(model, small(), weights=folder)
            same(model, wanted)
            closed(model)


@promise
def base_models_and_those_with_a_head_read_each_other_s_names(directory):
    for kind in ("gpt2", "llama"):
        folder, wanted = saved(directory, kind)
        shutil.rmtree(folder)
        base = wanted.base_model
        base.save_pretrained(folder, max_shard_size="20KB")
        model = nvswap.torch.from_pretrained(transformers.AutoModel, folder)
        with torch.no_grad():
            assert torch.equal(model(TOKENS).last_hidden_state, base(TOKENS).last_hidden_state)
        closed(model)
        if kind == "gpt2":  # Its head is the embedding.
            model = nvswap.torch.from_pretrained(AUTO, folder)
            same(model, wanted)
            closed(model)
        else:
            error = raises(nvswap.Error, lambda: nvswap.torch.from_pretrained(AUTO, folder), errno.EINVAL)
            assert 'Missing key(s): "lm_head.weight"' in str(error)
            wanted.save_pretrained(folder)
            model = nvswap.torch.from_pretrained(transformers.AutoModel, folder)  # Without the head.
            with torch.no_grad():
                assert torch.equal(model(TOKENS).last_hidden_state, base(TOKENS).last_hidden_state)
            closed(model)


@promise
def types_are_those_of_from_pretrained(directory):
    for kind in ("llama", "mixtral"):
        folder, _ = saved(directory, kind)
        wanted = AUTO.from_pretrained(folder, dtype=torch.bfloat16).requires_grad_(False)
        for dtype in (torch.bfloat16, "bfloat16"):
            model = nvswap.torch.from_pretrained(AUTO, folder, dtype=dtype)
            assert model.dtype == torch.bfloat16
            same(model, wanted)
            closed(model)
        with open(os.path.join(folder, "config.json"), "r+", encoding="utf-8") as file:
            settings = json.load(file)
            settings.pop("dtype")
            file.seek(0)
            file.truncate()
            json.dump(settings, file)
        model = nvswap.torch.from_pretrained(AUTO, folder)
        assert model.dtype == torch.float32
        closed(model)
    # Of T5 some parameters stay in float32.
    transformers.set_seed(1)
    folder = os.path.join(directory, "t5")
    transformers.T5ForConditionalGeneration(transformers.T5Config(
        d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=64, decoder_start_token_id=0)
    ).save_pretrained(folder)
    cls = transformers.T5ForConditionalGeneration
    wanted = cls.from_pretrained(folder, dtype=torch.float16)
    model = nvswap.torch.from_pretrained(cls, folder, dtype=torch.float16)
    assert {name: each.dtype for name, each in model.named_parameters()} == {
        name: each.dtype for name, each in wanted.named_parameters()}
    with torch.no_grad():
        assert torch.equal(model(TOKENS, decoder_input_ids=TOKENS).logits,
                           wanted(TOKENS, decoder_input_ids=TOKENS).logits)
    closed(model)


@promise
def lora_over_files_trains_as_over_memory_and_leaves_the_files(directory):
    for kind in ("gpt2", "llama", "mixtral", "qwen2"):  # Of the last one also on its embedding, which the head shares.
        folder, wanted = saved(directory, kind)
        before, found = state_of(folder), []
        for model in (wanted, nvswap.torch.from_pretrained(AUTO, folder, config=small(kind))):
            transformers.set_seed(3)
            model.requires_grad_(False)
            adapted = peft.get_peft_model(model, peft.LoraConfig(
                r=4, target_modules=LAYERS.get(kind, ["q_proj", "v_proj"]), lora_dropout=0.0,
                task_type="CAUSAL_LM"))
            adapted.train()
            trained = [each for each in adapted.parameters() if each.requires_grad]
            optimizer = nvswap.torch.AdamW(trained, lr=1e-2, config=settings(directory))
            losses = []
            for _ in range(4):
                loss = adapted(input_ids=TOKENS, labels=TOKENS).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            optimizer.close()
            found.append((losses, [each.detach().clone() for each in trained]))
        assert found[0][0] == found[1][0] and found[0][0][-1] < found[0][0][0], found
        assert all(map(torch.equal, found[0][1], found[1][1]))
        place = os.path.join(directory, f"adapter-{kind}")
        adapted.save_pretrained(place, save_embedding_layers=False)
        with nvswap.open_weights(place) as weights:
            assert weights.keys() and all("lora" in name for name in weights.keys())
        assert state_of(folder) == before
        del adapted
        closed(model)


@promise
def adapters_that_compute_with_weights_are_refused_until_these_are_loaded(directory):
    folder, wanted = saved(directory, "llama")
    for more in ({"use_dora": True}, {"trainable_token_indices": [1, 2]}, {"init_lora_weights": "pissa"}):
        found = []
        made = peft.LoraConfig(r=4, target_modules=["q_proj"], **more)
        model = nvswap.torch.from_pretrained(AUTO, folder, config=small())
        error = raises(nvswap.Error, lambda model=model, made=made: peft.get_peft_model(model, made), errno.EINVAL)
        assert "load() before" in str(error)
        closed(model)
        model = nvswap.torch.from_pretrained(AUTO, folder, config=small())
        model.offloaded.load()
        for each in (copy.deepcopy(wanted), model):
            transformers.set_seed(3)
            each.requires_grad_(False)
            found.append(peft.get_peft_model(each, copy.deepcopy(made))(input_ids=TOKENS, labels=TOKENS).loss.item())
        assert found[0] == found[1], more
        closed(model)


@promise
def adapters_are_loaded_over_files_as_over_memory(directory):
    folder, wanted = saved(directory, "llama")
    place = os.path.join(directory, "adapter")
    adapted = peft.get_peft_model(wanted, peft.LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)).eval()
    adapted.save_pretrained(place)
    with torch.no_grad():
        logits = adapted(input_ids=TOKENS).logits
    model = nvswap.torch.from_pretrained(AUTO, folder, config=small())
    with torch.no_grad():
        assert torch.equal(peft.PeftModel.from_pretrained(model, place).eval()(input_ids=TOKENS).logits, logits)
    closed(model)
    model = nvswap.torch.from_pretrained(AUTO, folder, config=small())
    model.load_adapter(place)
    with torch.no_grad():
        assert torch.equal(model(TOKENS).logits, logits)
    model.offloaded.load()
    model.offloaded.engine.close()
    with torch.no_grad():
        assert torch.equal(model(TOKENS).logits, logits)


def mixture(directory, fused):
    """A model of eight experts, in files that have them one by one, or those of a layer together."""
    transformers.set_seed(1)
    settings_of_it = settings_of("mixtral")
    settings_of_it.num_local_experts = 8
    model = AUTO.from_config(settings_of_it, dtype=torch.bfloat16).eval().requires_grad_(False)
    folder = os.path.join(directory, f"fused-{fused}")
    model.save_pretrained(folder)
    if fused:
        safetensors.torch.save_file(model.state_dict(), os.path.join(folder, "model.safetensors"))
    return folder, model


@promise
def a_mixture_of_experts_reads_those_that_a_token_chose(directory):
    for fused in (False, True):
        folder, wanted = mixture(directory, fused)
        chosen = {}
        for number, layer in enumerate(wanted.model.layers):
            layer.mlp.experts.register_forward_pre_hook(
                lambda _, given, number=number: chosen.update({number: set(given[1].unique().tolist())}))
        model = nvswap.torch.from_pretrained(AUTO, folder)
        engine = model.offloaded.engine
        with torch.no_grad():
            assert torch.equal(model(TOKENS[:1, :1]).logits, wanted(TOKENS[:1, :1]).logits)
        for layer in range(3):
            prefix = f"model.layers.{layer}.mlp.experts" if fused else f"model.layers.{layer}.block_sparse_moe.experts"
            names = {name for name in engine if name.startswith(prefix) and engine.info(name)["state"] != "on drive"}
            expected = {f"{prefix}.{key}[{each}:{each + 1}]" for key in ("gate_up_proj", "down_proj")
                        for each in chosen[layer]} if fused else {
                            f"{prefix}.{each}.{key}.weight" for key in ("w1", "w2", "w3") for each in chosen[layer]}
            assert len(chosen[layer]) == 2 and names == expected, (names, expected)
        read = engine.stats()["aio"]["read"]["bytes"]
        with torch.no_grad():
            model(TOKENS[:1, :1])
        assert engine.stats()["aio"]["read"]["bytes"] == read  # They are in the pool.
        same(model, wanted)
        closed(model)


def skewed(model):
    """Routers that choose experts 0 and 1 for all tokens but those whose number is divisible by five, which have 2 or 3
    instead of 1. Returns the sets that the forwards of each layer have chosen, the last one last."""
    chosen = [[] for _ in model.model.layers]

    def choose(layer, given):
        experts = torch.tensor([[0, 1 if number % 5 else 2 + layer % 2] for number in skewed.tokens])
        chosen[layer].append(set(experts.unique().tolist()))
        return given[0], experts, given[2]

    for number, layer in enumerate(model.model.layers):
        layer.mlp.experts.register_forward_pre_hook(lambda _, given, number=number: choose(number, given))
    return chosen


def read_of(trace, directory):
    """The places of all tensors that a trace has seen read, in the order of the reads."""
    path = os.path.join(directory, "trace.json")
    trace.write(path)
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    return [each["args"]["offset"] for each in events
            if each["ph"] == "b" and each["cat"] == "tensor" and each["name"].startswith("read")]


@promise
def the_hottest_experts_are_kept_within_their_budget_and_not_read_again(directory):
    for fused in (False, True):
        folder, wanted = mixture(directory, fused)
        chosen = skewed(wanted)
        each = sum(parameter[0].nbytes for parameter in wanted.model.layers[0].mlp.experts.parameters())
        # The first one has an expert of each layer that is rarely chosen.
        inputs = [torch.arange(first, last)[None]
                  for first, last in ((5, 6), (1, 5), (4, 8), (6, 10), (14, 19), (1, 4))]
        for kept in (1, 6, 24):
            trace = nvswap.Trace(10000)
            # The pool would hold two experts at most, so that what is not kept is read again.
            config = nvswap.Config({"zero_optimization": {"offload_param": {"buffer_count": 1, "buffer_size": 7000}}})
            config.set_trace(trace)
            budget = kept * each + each // 2
            model = nvswap.torch.from_pretrained(AUTO, folder, config=config, experts_memory=budget)
            engine, needed = model.offloaded.engine, 0
            skewed(model)
            for number, tokens in enumerate(inputs):
                if number == 4:
                    before = len(read_of(trace, directory))
                skewed.tokens = tokens[0].tolist()
                with torch.no_grad():
                    assert torch.equal(model(tokens).logits, wanted(tokens).logits)
                needed += sum(len(of_layer[-1]) for of_layer in chosen)
                stats = engine.stats()["experts"]
                assert stats["kept_bytes"] == stats["kept"] * each <= budget == stats["memory"], stats
                assert stats["kept"] == min(kept, 3 * (2 if number == 0 else 3)), stats
                assert stats["hits"] + stats["misses"] == needed, stats
            read = read_of(trace, directory)
            places = {engine.info(name)["store_offset"] for name in engine if re.search(r"\.w\d|:", name)}
            # No more than what was not there: of each, two tensors of rows, or three.
            assert sum(place in places for place in read) == (2 if fused else 3) * stats["misses"], stats
            read = read[before:]
            # Of "experts.1.w1.weight" or "experts.down_proj[1:2]".
            found = {engine.info(name)["store_offset"]: re.search(r"\d+(?=\.w\d|:)", name) for name in engine}
            numbers = {int(found[place].group()) for place in read if found[place]}
            assert read and numbers == {1: {0, 1, 2, 3}, 6: {2, 3}, 24: set()}[kept], numbers
            closed(model)
            assert engine.hot.stats()["kept"] == 0
            trace.close()


@promise
def a_token_reads_no_expert_but_those_that_it_chose_nor_what_the_pool_has_room_for_beside_them(directory):
    for fused in (False, True):
        folder, wanted = mixture(directory, fused)
        chosen = skewed(wanted)
        for elements in (7000, 100000):
            trace = nvswap.Trace(10000)
            config = nvswap.Config({"zero_optimization": {"stage3_param_persistence_threshold": 0, "offload_param": {
                "buffer_count": 1, "buffer_size": elements}}})
            config.set_trace(trace)
            model = nvswap.torch.from_pretrained(AUTO, folder, config=config)
            engine, needed = model.offloaded.engine, 0
            skewed(model)
            for tokens in (torch.tensor([[each]]) for each in (1, 5, 2, 10, 15, 3)):
                skewed.tokens = tokens[0].tolist()
                with torch.no_grad():
                    assert torch.equal(model(tokens).logits, wanted(tokens).logits)
                needed += sum(len(of_layer[-1]) for of_layer in chosen)
            read = read_of(trace, directory)
            experts = {engine.info(name)["store_offset"] for name in engine if re.search(r"\.w\d|:", name)}
            found = sum(place in experts for place in read)
            if elements == 7000:
                assert found == (2 if fused else 3) * needed, (found, needed)
            else:  # What was read stays there.
                assert found == (2 if fused else 3) * 3 * 3 and len(set(read)) == len(read), (found, read)
            closed(model)
            trace.close()


@promise
def a_budget_of_experts_that_is_no_number_of_bytes_is_refused(directory):
    folder, _ = mixture(directory, False)
    for wrong in (-1, "4G", 1.5, None):
        error = raises(nvswap.Error, lambda: nvswap.torch.from_pretrained(AUTO, folder, experts_memory=wrong),
                       errno.EINVAL)
        assert "experts_memory is a number of bytes" in str(error)


@promise
def a_budget_of_experts_that_would_be_ignored_is_refused(directory):
    folder, _ = mixture(directory, False)
    with host_as_device(sys.modules["nvswap.torch.offload"], nvswap.torch.weights, nvswap.torch.state):
        assert "forwards on the host" in str(raises(nvswap.Error, lambda: nvswap.torch.from_pretrained(
            AUTO, folder, device="cpu", experts_memory=1 << 20), errno.EINVAL))
    assert "weights=" in str(raises(nvswap.Error, lambda: nvswap.torch.offload(
        torch.nn.Linear(4, 4), directory, experts_memory=1 << 20), errno.EINVAL))


@promise
def threads_that_choose_other_experts_compute_as_one(directory):
    folder, wanted = mixture(directory, False)
    model = nvswap.torch.from_pretrained(AUTO, folder)
    failed = []

    def run(number):
        for _ in range(5):
            with torch.no_grad():
                if not torch.equal(model(TOKENS[:1, number:number + 1]).logits,
                                   wanted(TOKENS[:1, number:number + 1]).logits):
                    failed.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    closed(model)


@promise
def a_file_that_is_replaced_amid_generation_raises(directory):
    folder, _ = saved(directory, "llama")
    model = nvswap.torch.from_pretrained(AUTO, folder, config=small())
    with torch.no_grad():
        model(TOKENS)
    name = next(name for name in sorted(os.listdir(folder)) if name.startswith("model-00003"))
    path = os.path.join(folder, name)
    shutil.copy(path, path + ".new")
    os.replace(path + ".new", path)
    error = str(raises(nvswap.Error, lambda: model.generate(TOKENS, max_new_tokens=4, pad_token_id=0), errno.ESTALE))
    assert path in error
    closed(model)


@promise
def links_into_a_cache_are_followed_as_the_hub_makes_them(directory):
    folder, wanted = saved(directory, "qwen2", torch.bfloat16)
    cache = os.path.join(directory, "models--a--b")
    snapshot = os.path.join(cache, "snapshots", "0123")
    os.makedirs(snapshot)
    os.mkdir(os.path.join(cache, "blobs"))
    for number, name in enumerate(sorted(os.listdir(folder))):
        os.rename(os.path.join(folder, name), os.path.join(cache, "blobs", f"{number:064x}"))
        os.symlink(f"../../blobs/{number:064x}", os.path.join(snapshot, name))
    model = nvswap.torch.from_pretrained(AUTO, snapshot)
    same(model, wanted)
    closed(model)


@promise
def the_recipes_run(directory):
    with open(os.path.join(TOP, "docs", "python", "weights.md"), encoding="utf-8") as file:
        recipes = re.findall(r"^```python\n(.*?)^```", file.read(), re.M | re.S)
    places = {"/mnt/nvme/Llama-3.1-8B": saved(directory, "llama")[0],
              "/mnt/nvme/Mixtral-8x7B": saved(directory, "mixtral")[0], "/mnt/nvme": directory}
    outputs = []
    for recipe in recipes:
        for path, own in places.items():
            recipe = recipe.replace(path, own)
        outputs.append(child(recipe, directory).splitlines())
    generate, lora, expert = outputs
    assert generate[-1].startswith("tensor([["), generate
    losses = [float(line) for line in lora if re.fullmatch(r"[0-9.]+", line)]
    assert len(losses) == 4 and losses[-1] < losses[0], lora
    assert os.path.exists(os.path.join(directory, "adapter", "adapter_model.safetensors"))
    assert [line for line in expert if line.startswith("tensor(")][-2:], expert


@promise
def arguments_mean_what_they_do_to_transformers(directory):
    folder, wanted = saved(directory, "llama")
    place = os.path.join(directory, "hub", "models--x--y")
    os.makedirs(os.path.join(place, "refs"))
    os.makedirs(os.path.join(place, "snapshots"))
    with open(os.path.join(place, "refs", "main"), "w", encoding="utf-8") as file:
        file.write("0123")
    os.symlink(folder, os.path.join(place, "snapshots", "0123"))
    for path, more in ((folder, dict(local_files_only=True, low_cpu_mem_usage=True, use_safetensors=True, token=None)),
                       (directory, dict(subfolder=os.path.basename(folder))),
                       ("x/y", dict(cache_dir=os.path.dirname(place), revision="main")),
                       (folder, dict(trust_remote_code=True))):
        for cls in (AUTO, transformers.LlamaForCausalLM):
            model = nvswap.torch.from_pretrained(cls, path, **more)
            same(model, wanted)
            closed(model)
    for more in (dict(torch_dtype=torch.bfloat16), dict(num_hidden_layers=2), dict(attn_implementation="eager"),
                 dict(use_cache=False, output_hidden_states=True)):
        model, wanted = (each(AUTO, folder) for each in (
            functools.partial(nvswap.torch.from_pretrained, **more),
            lambda cls, path, more=more: cls.from_pretrained(path, **more).requires_grad_(False)))
        assert (model.dtype, model.config.to_dict()) == (wanted.dtype, wanted.config.to_dict())
        with torch.no_grad():
            assert all(map(torch.equal, model(TOKENS).to_tuple()[:1], wanted(TOKENS).to_tuple()[:1]))
        closed(model)
    renamed = os.path.join(directory, "renamed")
    shutil.copytree(folder, renamed, ignore=shutil.ignore_patterns("*.safetensors*"))
    model = AUTO.from_pretrained(folder)
    safetensors.torch.save_file({f"old.{name}": each for name, each in model.state_dict().items()},
                                os.path.join(renamed, "model.safetensors"))
    mapping = dict(key_mapping={"^old[.]": ""})
    model = nvswap.torch.from_pretrained(AUTO, renamed, **mapping)
    same(model, AUTO.from_pretrained(renamed, **mapping).requires_grad_(False))
    closed(model)
    closed(nvswap.torch.from_pretrained(AUTO, folder, device_map=None, output_loading_info=False, weights_only=True))
    for path, more, text in ((folder, dict(use_safetensors=False), "only .safetensors files"),
                             (folder, dict(variant="fp16"), "the .safetensors files of that variant"),
                             (folder, dict(device="meta"), "leave device= out"),
                             (folder, dict(config=wanted.config), "by their names"),
                             (os.path.join(folder, "config.json"), {}, "is a file: give the folder")):
        error = raises(nvswap.Error, lambda: nvswap.torch.from_pretrained(AUTO, path, **more), errno.EINVAL)
        assert text in str(error), error


@promise
def folders_that_can_not_be_used_are_refused(directory):
    folder, wanted = saved(directory, "llama")
    raises(OSError, lambda: nvswap.torch.from_pretrained(AUTO, os.path.join(directory, "none")))
    old = os.path.join(directory, "old")
    wanted.config.save_pretrained(old)
    torch.save(wanted.state_dict(), os.path.join(old, "pytorch_model.bin"))
    error = raises(nvswap.Error, lambda: nvswap.torch.from_pretrained(AUTO, old), errno.EINVAL)
    assert f"{old} has its weights in .bin files" in str(error)
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        settings = json.load(file)
    settings["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(settings, file)
    assert "quantized" in str(raises(nvswap.Error, lambda: nvswap.torch.from_pretrained(AUTO, folder), errno.EINVAL))
    error = raises(nvswap.Error, lambda: nvswap.torch.from_pretrained(AUTO, folder, device_map="auto"), errno.EINVAL)
    assert "device_map: leave it out" in str(error)


@promise
def other_embeddings_are_refused_until_the_weights_are_loaded(directory):
    folder, wanted = saved(directory, "llama")
    model = nvswap.torch.from_pretrained(AUTO, folder, config=small())
    error = raises(nvswap.Error, lambda: model.resize_token_embeddings(70, mean_resizing=False), errno.EINVAL)
    assert "after load()" in str(error)
    same(model, wanted)
    model.offloaded.load()
    model.offloaded.engine.close()
    model.resize_token_embeddings(70, mean_resizing=False)
    with torch.no_grad():
        assert torch.equal(model(TOKENS).logits[..., :64], wanted(TOKENS).logits)


main()
