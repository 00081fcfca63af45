# SPDX-License-Identifier: Apache-2.0
"""
What people train with on top of DeepSpeed, each as its documentation shows it, with a tiny model that is made
from a configuration: transformers' Trainer ("trainer"), the same with PEFT's LoRA ("lora"), TRL's SFTTrainer
("sft"), a loop of accelerate ("accelerate") and one of DeepSpeed ("engine"). train.py KIND JSON, where JSON has
"config", the path of a DeepSpeed configuration or null where the launcher gives it; "out", a folder; "resume".
Rank 0 prints losses, all digits, as one line of JSON.
"""

import copy
import hashlib
import json
import os
import sys

import torch
import transformers
from transformers import (
    GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments)

KIND, JOB = sys.argv[-2], json.loads(sys.argv[-1])  # DeepSpeed puts --local_rank before them
VOCABULARY, LENGTH, STEPS = 512, 32, 4

torch.set_num_threads(1)
transformers.set_seed(1)


class Texts(torch.utils.data.Dataset):
    def __init__(self, count):
        self._count = count

    def __len__(self):
        return self._count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        text = torch.randint(VOCABULARY, (LENGTH,), generator=generator)
        return {"input_ids": text, "labels": text}


def model_of_configuration():
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))


def arguments(kind=TrainingArguments, **more):
    return kind(
        JOB["out"], per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=STEPS,
        learning_rate=1e-3, bf16=True, logging_steps=1, save_steps=2, eval_strategy="steps", eval_steps=2,
        load_best_model_at_end=True, deepspeed=JOB["config"], report_to=[], seed=1, use_cpu=True, **more)


def run(trainer):
    """Trains, and gathers the weights in one file."""
    trainer.train(resume_from_checkpoint=JOB.get("resume"))
    trainer.save_model(os.path.join(JOB["out"], "final"))
    return [[each["step"], each.get("loss", each.get("eval_loss"))] for each in trainer.state.log_history
            if "loss" in each or "eval_loss" in each]


def trainer():
    args = arguments()
    return run(Trainer(model=model_of_configuration(), args=args, train_dataset=Texts(64), eval_dataset=Texts(8)))


def lora():
    from peft import LoraConfig, get_peft_model

    args = arguments()
    model = get_peft_model(model_of_configuration(), LoraConfig(
        task_type="CAUSAL_LM", r=4, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True))
    return run(Trainer(model=model, args=args, train_dataset=Texts(64), eval_dataset=Texts(8)))


def sft():
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w1")
    texts = Dataset.from_list([{"text": " ".join(f"w{token}" for token in Texts(64)[index]["input_ids"].tolist())}
                               for index in range(64)])
    args = arguments(SFTConfig, max_length=LENGTH, packing=False)
    # Its loss takes an output layer that is not tied to the embeddings.
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, bos_token_id=0, eos_token_id=1, pad_token_id=0))
    return run(SFTTrainer(model=model, args=args, train_dataset=texts,
                          eval_dataset=texts.select(range(8)), processing_class=tokenizer))


def accelerate():
    """Two micro batches a step, saved amid and loaded; the configuration is the launcher's or a plugin's."""
    from accelerate import Accelerator, DeepSpeedPlugin
    from torch.utils.data import DataLoader

    # With a file of the launcher's, accelerate makes its own plugin.
    plugin = DeepSpeedPlugin(hf_ds_config=JOB["config"]) if JOB["config"] else None
    accelerator = Accelerator(deepspeed_plugin=plugin, gradient_accumulation_steps=2,
                              mixed_precision="bf16")
    model = model_of_configuration()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if accelerator.state.deepspeed_plugin.deepspeed_config.get("optimizer"):
        from accelerate.utils import DummyOptim
        optimizer = DummyOptim(model.parameters(), lr=1e-3)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(Texts(64), batch_size=2))
    losses = []
    for number, batch in zip(range(2 * STEPS), batches):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append([number, loss.item()])
        if number == 3:
            accelerator.save_state(os.path.join(JOB["out"], "state"))
    accelerator.load_state(os.path.join(JOB["out"], "state"))
    model.save_16bit_model(JOB["out"], "weights.bin")
    if torch.distributed.get_rank() == 0:
        losses.append(["weights", digest(torch.load(os.path.join(JOB["out"], "weights.bin")))])
    return losses


def digest(state):
    """Of the bytes of all weights."""
    found = hashlib.sha256()
    for name in sorted(state):
        found.update(state[name].detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def engine():
    """Two engines in turn; weights and state are read and changed. The first has its parameters on the device, so
    that DeepSpeed can offload and reload its states, the other has experts."""
    import deepspeed
    from deepspeed.utils import (
        safe_get_full_fp32_param, safe_get_full_grad, safe_get_full_optimizer_state, safe_set_full_fp32_param,
        set_z3_leaf_modules)

    deepspeed.init_distributed("gloo")
    with open(JOB["config"], encoding="utf-8") as file:
        config = json.load(file)
    on_device = copy.deepcopy(config)
    del on_device["zero_optimization"]["offload_param"]
    engines = []
    for kind, own in ((Plain, on_device), (Mixed, config)):
        with deepspeed.zero.Init(config_dict_or_path=own):
            model = kind()
        if kind is Mixed:
            set_z3_leaf_modules(model, [Experts])
        engines.append(deepspeed.initialize(model=model, model_parameters=model.parameters(), config=own)[0])
    losses = []
    for step in range(STEPS):
        for number, each in enumerate(engines):
            generator = torch.Generator().manual_seed(10 * step + number + 100 * each.global_rank)
            data = torch.randn(2, 48, generator=generator, dtype=torch.bfloat16)
            loss = each(data).float().square().mean()
            each.backward(loss)
            first = next(each.module.parameters())
            if step == 1:
                losses.append(["gradient", safe_get_full_grad(first).double().sum().item()])
            each.step()
            losses.append([step, loss.item()])
            if step == 1:
                weights, moment = safe_get_full_fp32_param(first), safe_get_full_optimizer_state(first, "exp_avg")
                losses.append(["state", weights.double().sum().item(), moment.double().sum().item()])
                safe_set_full_fp32_param(first, weights / 2)
            if step == 2 and number == 0:
                each.offload_states()
                each.reload_states()
    for each in engines:
        each.destroy()
    return losses


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(48, 96), torch.nn.Linear(96, 48)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Experts(torch.nn.Module):
    """A layer whose experts see different texts on each rank, and so are a leaf of ZeRO-3."""

    def __init__(self):
        super().__init__()
        self.router = torch.nn.Linear(48, 4)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(48, 48) for _ in range(4))

    def forward(self, x):
        weights = torch.softmax(self.router(x), dim=-1)
        best = weights.argmax(dim=-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            chosen = (best == number).unsqueeze(-1)
            if chosen.any():
                out = out + expert(x) * weights[:, number:number + 1] * chosen
        return out


class Mixed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.mixture = torch.nn.Linear(48, 48), Experts()

    def forward(self, x):
        return self.mixture(self.first(x))


result = globals()[KIND]()
if torch.distributed.get_rank() == 0:
    print("LOSSES " + json.dumps(result), flush=True)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
