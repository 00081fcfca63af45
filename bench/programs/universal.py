# SPDX-License-Identifier: Apache-2.0
"""universal.py CONFIG.json DIRECTORY ELEMENTS: saves the state of an optimizer to a universal checkpoint with a
parameter for each group, replaces it, restores it from a cold page cache, compares every value, and prints the rates
as JSON."""
import json
import os
import sys
import time

import numpy

import nvswap

GROUPS = 32  # as bench/checkpoint.c
config, directory, numel = sys.argv[1], sys.argv[2], int(sys.argv[3]) // GROUPS
noise = numpy.random.default_rng(1).random(numel + 1024 * GROUPS, numpy.float32)


def arrays_of(run):
    """Each array of a run beside its values, which are those at another place of the noise for each."""
    for part, array in enumerate((run.master, run.exp_avg, run.exp_avg_sq)):
        place = 1024 * run.group + 256 * part + run.offset
        yield array, noise[place:place + len(array)]


def fill(run):
    for array, values in arrays_of(run):
        array[:] = values


def clear(run):
    for array, _ in arrays_of(run):
        array[:] = 0


def compare(run):
    assert all(numpy.array_equal(array, values) for array, values in arrays_of(run)), "values differ"


def drop_pages():
    for folder, _, names in os.walk(directory):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def rate_of(call):
    started = time.monotonic()
    call(optimizer, directory)
    return 12 * GROUPS * numel / (time.monotonic() - started) / 1e9


groups = [nvswap.Group(f"group.{number}", None, numel, "BF16") for number in range(GROUPS)]
with nvswap.Optimizer(config, groups) as optimizer:
    optimizer.import_state(fill)
    saved = rate_of(nvswap.export_universal)
    optimizer.import_state(clear)
    drop_pages()
    restored = rate_of(nvswap.import_universal)
    optimizer.export_state(compare)
print(json.dumps({"state_bytes": 12 * GROUPS * numel, "save_gb_s": saved, "restore_gb_s": restored}))
