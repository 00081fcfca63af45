#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer, as released, with nvswap.torch.AdamW for its optimizer."""

import os

os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false")
from promises import main, promise, settings
import torch  # noqa: E402
import transformers  # noqa: E402
import nvswap.torch  # noqa: E402


def trainer(directory, make, steps, **more):
    transformers.set_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32, bos_token_id=0, eos_token_id=0))
    tokens = torch.randint(64, (64, 16), generator=torch.Generator().manual_seed(2))
    arguments = transformers.TrainingArguments(
        os.path.join(directory, "out"), max_steps=steps, per_device_train_batch_size=4, logging_steps=1,
        gradient_accumulation_steps=2, learning_rate=1e-2, warmup_steps=2, use_cpu=True, report_to=[],
        disable_tqdm=True, save_strategy="steps", save_steps=3, **more)
    groups = transformers.Trainer(model, arguments).get_decay_parameter_names(model)
    named = dict(model.named_parameters())
    optimizer = make([{"params": [named[name] for name in named if name in groups], "weight_decay": 0.1},
                      {"params": [named[name] for name in named if name not in groups],
                       "weight_decay": 0.0}])
    data = [{"input_ids": each, "labels": each} for each in tokens]
    return transformers.Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None)), optimizer


def losses_of(trained):
    return [entry["loss"] for entry in trained.state.log_history if "loss" in entry]


@promise
def a_trainer_with_its_optimizer_has_the_losses_of_torch_and_resumes_exactly(directory):
    place, other = os.path.join(directory, "ours"), os.path.join(directory, "theirs")
    os.mkdir(place)

    def ours(groups):
        return nvswap.torch.AdamW(groups, lr=1e-2, config=settings(directory))

    whole, optimizer = trainer(place, ours, 6)
    whole.train()
    optimizer.close()
    theirs, _ = trainer(other, lambda groups: torch.optim.AdamW(groups, lr=1e-2), 6)
    theirs.train()
    assert len(losses_of(whole)) == 6 and losses_of(whole)[-1] < losses_of(whole)[0]
    assert all(abs(a - b) < 2e-3 for a, b in zip(losses_of(whole), losses_of(theirs)))
    resumed, optimizer = trainer(place, ours, 6)
    resumed.train(resume_from_checkpoint=os.path.join(place, "out", "checkpoint-3"))
    optimizer.close()
    assert losses_of(resumed) == losses_of(whole)
    assert all(map(torch.equal, resumed.model.parameters(), whole.model.parameters()))


main()
