# SPDX-License-Identifier: Apache-2.0
"""Trains a GPT on characters with each format of optimizer state, several seeds each, and compares the losses of
its evaluation and how far the weights are from those with fp32. The text is Python's own library. It runs with
PYTHONPATH=build/python in build/venv; docs/state-formats.md has figures."""
import argparse
import glob
import json
import os
import statistics
import sys
import sysconfig
import tempfile

import torch
from torch import nn

import nvswap.torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "examples"))
from train_gpt import GPT, Text, factor_of_lr, loss_of  # noqa: E402

REFERENCE = "fp32"
EVALUATED = 16  # batches


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--formats", default="fp32,bf16,8bit", help="the first of them is fp32")
    parser.add_argument("--directory", default=tempfile.gettempdir(), help="on the drive")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights")
    parser.add_argument("--json", help="a file for all losses and distances")
    for name, default in {"layers": 6, "heads": 6, "width": 384, "length": 128, "batch": 8, "steps": 2000,
                          "warmup": 100, "every": 100, "seeds": 3, "text-bytes": 4 << 20}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    args.autocast, args.device = None, "cpu"
    return args


def text_of(args, directory):
    """Python's sources, as far as they are ASCII."""
    args.text, left = os.path.join(directory, "text"), args.text_bytes
    with open(args.text, "w", encoding="ascii") as file:
        for path in sorted(glob.glob(os.path.join(sysconfig.get_path("stdlib"), "**", "*.py"), recursive=True)):
            with open(path, encoding="ascii", errors="ignore") as source:
                left -= file.write(source.read()[:left])
            if left <= 0:
                break
    return Text(args)


def adamw_of(model, form, args, directory):
    block = {"device": "nvme", "nvme_path": directory, "pipeline_read": True, "pipeline_write": True,
             "buffer_count": 4}
    config = {"zero_optimization": {"sub_group_size": 1 << 22, "offload_optimizer": block},
              "nvswap": {"optimizer_state": form}}
    return nvswap.torch.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1, config=config)


@torch.no_grad()
def evaluate(model, text, args):
    return statistics.fmean(loss_of(model, text.batch("eval", number), args).item() for number in range(EVALUATED))


def train(form, seed, text, args, directory):
    """Returns the losses of the evaluation, and the weights, after every `every` steps."""
    args.seed = seed
    torch.manual_seed(seed)
    model = GPT(len(text.characters), args).to(getattr(torch, args.dtype))
    losses, weights = [], []
    optimizer = adamw_of(model, form, args, directory)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor_of_lr(step, args))
    for step in range(args.steps):
        loss_of(model, text.batch("train", step), args).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if (step + 1) % args.every == 0 or step + 1 == args.steps:
            losses.append(evaluate(model, text, args))
            weights.append(torch.cat([each.detach().float().flatten() for each in model.parameters()]))
            print(f"{form}, seed {seed}, step {step + 1}: {losses[-1]:.4f}", file=sys.stderr, flush=True)
    optimizer.close()
    return losses, weights


def runs_of(args, directory):
    """For each format and seed: losses, and the weights' distance from fp32's relative to its norm."""
    text, runs = text_of(args, directory), {}
    formats = args.formats.split(",")
    for seed in range(1, args.seeds + 1):
        for form in formats:
            losses, weights = train(form, seed, text, args, directory)
            if form == formats[0]:
                reference = weights
            runs.setdefault(form, []).append({"seed": seed, "losses": losses, "distances": [
                (torch.linalg.vector_norm(ours - theirs) / torch.linalg.vector_norm(theirs)).item()
                for ours, theirs in zip(weights, reference)]})
    return runs


def print_table(runs):
    last = {form: [run["losses"][-1] for run in seeds] for form, seeds in runs.items()}
    spread = max(last[REFERENCE]) - min(last[REFERENCE])
    print("| state | evaluated, mean of seeds | least to most | from fp32's mean | of the spread of fp32 "
          "| distance of weights |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for form, losses in last.items():
        apart = statistics.fmean(losses) - statistics.fmean(last[REFERENCE])
        distance = statistics.fmean(run["distances"][-1] for run in runs[form])
        print(f"| {form} | {statistics.fmean(losses):.4f} | {min(losses):.4f} to {max(losses):.4f} | {apart:+.4f} "
              f"| {abs(apart) / spread if spread else 0:.2f} | {distance:.4f} |")


def main():
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="nvswap-", dir=args.directory) as directory:
        runs = runs_of(args, directory)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"arguments": vars(args), "runs": runs}, file)
    print_table(runs)


main()
