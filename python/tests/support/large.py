# SPDX-License-Identifier: Apache-2.0
"""
The job at length: 50 steps of a GPT of 20 million parameters on two ranks, with gradient accumulation
and clipping. Its texts are short, since processors without bfloat16 are slow to multiply with it.
"""

from jobs import configuration, results_of, start

STEPS = 50
MODEL = {"width": 512, "layers": 6, "heads": 8, "steps": STEPS, "length": 8}
# DeepSpeed's own swapper holds what is read ahead in buffers of one parameter each, and may read none
# twice.
ZERO = {"sub_group_size": 2000000, "stage3_prefetch_bucket_size": 0}
PARAM = {"buffer_size": 512 * 512 * 4 + 4096, "buffer_count": 64}


def _losses(what, config, **more):
    """Of each rank, all digits. Prints how long a step took and what each rank held in memory."""
    config["train_micro_batch_size_per_gpu"] = 1
    results = results_of(start(config, **MODEL, **more), timeout=1800)
    print(f"  {what}: {max(result['train_s'] for result in results) / STEPS:.2f} s a step, "
          f"{max(result['peak_mib'] for result in results):.0f} MiB in a rank at most", flush=True)
    return [result["losses"] for result in results]


def in_memory(dtype):
    return _losses(f"{dtype}, in memory", configuration(None, "cpu", dtype, zero=ZERO))


def on_drive(directory, dtype, depth):
    return _losses(f"{dtype}, {depth}", configuration(
        directory, dtype=dtype, depth=depth, zero=ZERO, param=PARAM))


def with_own_ops(directory, dtype):
    return _losses(f"{dtype}, DeepSpeed's own ops", configuration(
        directory, dtype=dtype, zero=ZERO, param=PARAM), nvswap=False)
