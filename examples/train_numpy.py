#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits a line with master weights and moments on the drive: train_numpy.py DIRECTORY"""

import sys

import numpy

import nvswap

SETTINGS = {
    "zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": sys.argv[1]},
                          "sub_group_size": 1e6},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.05, "weight_decay": 0}},
}

random = numpy.random.default_rng(1)
wanted = random.normal(size=1000).astype(numpy.float32)
weights = numpy.zeros(1000, numpy.float32)
with nvswap.Optimizer(SETTINGS, {"line": weights}) as optimizer:
    for step in range(100):
        inputs = random.normal(size=(256, 1000)).astype(numpy.float32)
        error = inputs @ (weights - wanted)
        optimizer.lend_gradients("line", 2 * inputs.T @ error / len(error))
        optimizer.step()
        if step % 20 == 19:
            print(f"step {step + 1}: loss {(error ** 2).mean():.4f}")
