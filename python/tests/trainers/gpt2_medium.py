# SPDX-License-Identifier: Apache-2.0
"""gpt2_medium.py {memory|state|all} DIRECTORY: takes some steps of GPT-2 medium, 355 million random weights, and
has it generate, by transformers. In memory, with the optimizer's state on the drive, or with the parameters there
too. Prints losses and tokens as JSON."""

import json
import sys
import zlib

import torch
import transformers

import nvswap.torch

STEPS, LENGTH, WRITTEN = 2, 32, 4
variant, directory = sys.argv[1:]


def initialize(name, tensor):
    """The same weights wherever they lie."""
    if name.endswith("bias"):
        tensor.zero_()
    elif "ln_" in name:
        tensor.fill_(1)
    else:
        tensor.normal_(std=0.02, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))


config = transformers.GPT2Config(
    n_layer=24, n_embd=1024, n_head=16, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
with torch.device("meta"):
    model = transformers.GPT2LMHeadModel(config)
offloaded = None
if variant == "all":
    offloaded = nvswap.torch.offload(model, directory, initialize=initialize)
else:
    model.to_empty(device="cpu")
    model.tie_weights()
    with torch.no_grad():
        for each, parameter in model.named_parameters():
            initialize(each, parameter)
assert not list(model.buffers()) and sum(each.numel() for each in model.parameters()) > 350e6
if variant == "memory":
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
else:
    optimizer = nvswap.torch.AdamW(model.parameters(), lr=1e-4, config=directory, offloaded=offloaded)
losses, tokens = [], torch.randint(config.vocab_size, (1, LENGTH), generator=torch.Generator().manual_seed(1))
for _ in range(STEPS):
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    del loss
model.eval()
written = model.generate(tokens[:, :8], max_new_tokens=WRITTEN, do_sample=False, pad_token_id=config.eos_token_id)
print(json.dumps({"losses": losses, "written": written[0].tolist()}))
