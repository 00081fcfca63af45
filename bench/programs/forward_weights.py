# SPDX-License-Identifier: Apache-2.0
"""forward_weights.py make DIRECTORY: a folder of .safetensors files with an index, of a Llama of 2.01 GiB in bfloat16.
forward_weights.py {memory|nvswap|accelerate} DIRECTORY [PROCS]: passes a prompt forward twice, as generate() does, and
generates tokens after it, by the model in memory, by nvswap.torch.from_pretrained, or by accelerate's device_map with
all on the disk. Before each pass of a model that is not in memory, no byte of its files is in the page cache. Prints
seconds, bytes that were read, the share of the time of reading in which no call waited, by the trace, and the sum of
the logits, as JSON. PROCS is the file cgroup.procs of a cgroup to enter first."""
import contextlib
import json
import os
import sys
import time

from process import counted, enter_cgroup, leave_page_cache

enter_cgroup(sys.argv[3:])
os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402 pylint: disable=wrong-import-position
import transformers  # noqa: E402 pylint: disable=wrong-import-position

# A prompt of a page, and what comes after it.
PROMPT, TOKENS = 256, 4
WORDS = 16000
SPAN = "forward"
# Of a quarter of the model some 250 MiB are the libraries' own, and 63 what torch packs of the head.
POOL = 112 << 20
AUTO = transformers.AutoModelForCausalLM


def make(directory):
    transformers.set_seed(1)
    settings = transformers.LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=23, num_attention_heads=32, num_key_value_heads=4,
        vocab_size=WORDS, max_position_embeddings=2048)
    AUTO.from_config(settings, dtype=torch.bfloat16).save_pretrained(directory, max_shard_size="600MB")


def model_of(by, directory, trace):
    if by == "memory":
        return AUTO.from_pretrained(directory).requires_grad_(False)
    if by == "accelerate":  # Nothing is written to the folder.
        return AUTO.from_pretrained(directory, device_map={"": "disk"}, offload_folder=directory)
    import nvswap.torch
    config = nvswap.Config({
        "aio": {"block_size": 1 << 20, "queue_depth": 32},
        "zero_optimization": {"offload_param": {"buffer_count": 1, "buffer_size": POOL // 4, "max_in_cpu": 0}}})
    config.set_trace(trace)
    return nvswap.torch.from_pretrained(AUTO, directory, config=config)


def measured(directory, by, call):
    """What a call returns, with its seconds and the bytes that it has read."""
    if by != "memory":
        leave_page_cache(directory)
    before, begun = counted("read_bytes"), time.monotonic()
    result = call()
    return result, time.monotonic() - begun, counted("read_bytes") - before


def hidden(trace, path):
    """The share of the time of the reads in the last span of the program in which no call waited."""
    trace.write(path)
    with open(path, encoding="utf-8") as file:
        events = [each for each in json.load(file)["traceEvents"] if each["ph"] == "X"]
    os.unlink(path)
    begun = max(each["ts"] for each in events if each["name"] == SPAN)
    events = [each for each in events if each["ts"] >= begun]
    reads, waits = (union([(each["ts"], each["ts"] + each["dur"]) for each in events if each["cat"] == kind])
                    for kind in ("io", "wait"))
    return 1 - common(reads, waits) / sum(end - begin for begin, end in reads)


def union(spans):
    result = []
    for begin, end in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1] = result[-1][0], max(result[-1][1], end)
        else:
            result.append((begin, end))
    return result


def common(some, others):
    return sum(max(0, min(end, to) - max(begin, of)) for begin, end in some for of, to in others)


def main():
    by, directory = sys.argv[1:3]
    if by == "make":
        make(directory)
        print("{}")
        return
    trace = None
    if by == "nvswap":
        import nvswap
        trace = nvswap.Trace(100_000)
    begun = time.monotonic()
    model = model_of(by, directory, trace)
    result = {"open_s": time.monotonic() - begun}
    tokens = torch.randint(WORDS, (1, PROMPT), generator=torch.Generator().manual_seed(1))

    def prefill():
        return model(tokens, use_cache=True, logits_to_keep=1)

    with torch.no_grad():
        _, result["first_s"], _ = measured(directory, by, prefill)
        with trace.span(SPAN) if trace else contextlib.nullcontext():
            output, result["s"], result["bytes"] = measured(directory, by, prefill)
        if trace is not None:
            result["hidden"] = hidden(trace, f"{directory}/trace.json")
        result["sum"] = output.logits.double().sum().item()

        def generate():
            word, cache = output.logits.argmax(-1), output.past_key_values
            for _ in range(TOKENS):
                word = model(word, past_key_values=cache, use_cache=True).logits.argmax(-1)

        _, seconds, nbytes = measured(directory, by, generate)
        result["token_s"], result["token_bytes"] = seconds / TOKENS, nbytes / TOKENS
    print(json.dumps(result))


if __name__ == "__main__":
    main()
