#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a GPT on the characters of a text and lets it write: train_gpt.py --help. This is plain PyTorch;
README.md has the two lines that put the optimizer's state on the drive."""

import argparse
import math
import os

import torch
from torch import nn
from torch.nn import functional as F


def arguments():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--text", default="/usr/share/common-licenses/GPL-3", help="any file of UTF-8")
    parser.add_argument("--checkpoint", default="gpt.pt", help="saved there, and resumed from there if it exists")
    for name, default in {"layers": 4, "heads": 4, "width": 128, "length": 64, "batch": 16, "accumulate": 2,
                          "steps": 500, "warmup": 20, "save-every": 100, "write": 300, "seed": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--stop", type=int, help="after this step, to resume later")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--autocast", choices=("bfloat16", "float16"), help="float32 without it")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        qkv = self.qkv(self.before_attention(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class GPT(nn.Module):
    def __init__(self, characters, args):
        super().__init__()
        self.token, self.place = nn.Embedding(characters, args.width), nn.Embedding(args.length, args.width)
        self.blocks = nn.Sequential(*(Block(args.width, args.heads) for _ in range(args.layers)))
        self.norm, self.head = nn.LayerNorm(args.width), nn.Linear(args.width, characters, bias=False)
        self.head.weight = self.token.weight
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.token(tokens) + self.place(places))))


class Text:
    """A text as numbers of its characters; its last tenth is for evaluation."""

    def __init__(self, args):
        with open(args.text, encoding="utf-8") as file:
            text = file.read()
        self.args, self.characters = args, sorted(set(text))
        numbers = {character: number for number, character in enumerate(self.characters)}
        tokens, end = torch.tensor([numbers[character] for character in text]), len(text) * 9 // 10
        self.parts = {"train": tokens[:end], "eval": tokens[end:]}

    def batch(self, part, number):
        """The same for the same number, so that a run which resumes has the batches of one which goes on."""
        tokens, random = self.parts[part], torch.Generator().manual_seed(self.args.seed + number)
        at = torch.randint(len(tokens) - self.args.length, (self.args.batch, 1), generator=random)
        rows = tokens[at + torch.arange(self.args.length + 1)].to(self.args.device)
        return rows[:, :-1], rows[:, 1:]


def loss_of(model, batch, args):
    tokens, targets = batch
    dtype = getattr(torch, args.autocast or "bfloat16")
    with torch.autocast(args.device, dtype, enabled=args.autocast is not None):
        return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(model, text, args):
    model.eval()
    loss = sum(loss_of(model, text.batch("eval", number), args).item() for number in range(8)) / 8
    model.train()
    return loss


@torch.no_grad()
def write(model, text, args):
    tokens = torch.zeros((1, 1), dtype=torch.long, device=args.device)
    random = torch.Generator(args.device).manual_seed(args.seed)
    for _ in range(args.write):
        chances = model(tokens[:, -args.length:])[:, -1].softmax(-1)
        tokens = torch.cat((tokens, torch.multinomial(chances, 1, generator=random)), 1)
    return "".join(text.characters[number] for number in tokens[0, 1:].tolist())


def factor_of_lr(step, args):
    """Warms up, and goes down to a tenth by a cosine."""
    if step < args.warmup:
        return (step + 1) / args.warmup
    return 0.55 + 0.45 * math.cos(math.pi * (step - args.warmup) / max(1, args.steps - args.warmup))


def main():
    args = arguments()
    torch.manual_seed(args.seed)
    text = Text(args)
    model = GPT(len(text.characters), args).to(args.device)
    groups = [{"params": [each for each in model.parameters() if each.dim() >= 2], "weight_decay": args.decay},
              {"params": [each for each in model.parameters() if each.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor_of_lr(step, args))
    scaler = torch.amp.GradScaler(args.device, enabled=args.autocast == "float16")
    saved = {"model": model, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}
    first = 0
    if os.path.exists(args.checkpoint):
        checkpoint = torch.load(args.checkpoint, map_location=args.device, weights_only=True)
        first = checkpoint["step"]
        for name, each in saved.items():
            each.load_state_dict(checkpoint[name])

    last = min(args.steps, args.stop or args.steps)
    for step in range(first, last):
        total = 0.0
        for micro in range(args.accumulate):
            batch = text.batch("train", step * args.accumulate + micro)
            loss = loss_of(model, batch, args) / args.accumulate
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        optimizer.zero_grad()
        print(f"step {step + 1}: loss {total:.7f}, norm {norm:.5f}", flush=True)
        if (step + 1) % args.save_every == 0 or step + 1 == last:
            print(f"evaluated: loss {evaluate(model, text, args):.7f}", flush=True)
            torch.save({"step": step + 1, **{name: each.state_dict() for name, each in saved.items()}},
                       args.checkpoint + ".new")
            os.replace(args.checkpoint + ".new", args.checkpoint)
    print(write(model, text, args))


if __name__ == "__main__":
    main()
