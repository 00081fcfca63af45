#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a module with its parameters and its optimizer state on the drive: train_torch.py DIRECTORY"""

import sys

import torch

import nvswap.torch

NVME = {"device": "nvme", "nvme_path": sys.argv[1]}
SETTINGS = {"zero_optimization": {
    "offload_param": dict(NVME, buffer_count=4, buffer_size=2e6, max_in_cpu=0),
    "offload_optimizer": NVME, "sub_group_size": 1e6}}

module = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU())
                               for _ in range(16)))
offloaded = nvswap.torch.offload(module, SETTINGS)
optimizer = nvswap.torch.AdamW(module.parameters(), config=SETTINGS, lr=1e-3, offloaded=offloaded)
data = torch.randn(64, 512)
for step in range(5):
    loss = torch.nn.functional.mse_loss(module(data), data)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.4f}")
    del loss
optimizer.close()
offloaded.load()
offloaded.engine.close()
