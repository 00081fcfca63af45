#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Draws what bench/state_quality.py --json has written as an SVG: the mean loss of the evaluation with each format of
optimizer state, from the least to the most of the seeds, and the distance of the weights from fp32's.

    python3 bench/draw_quality.py quality.json docs/state-quality.svg
"""
import argparse
import json

import matplotlib
from matplotlib import pyplot

COLOURS = {"fp32": "#57606a", "split": "#3c9a5f", "bf16": "#2f7fd1", "8bit": "#e07b1f"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results")
    parser.add_argument("svg")
    args = parser.parse_args()
    with open(args.results, encoding="utf-8") as file:
        results = json.load(file)
    matplotlib.rcParams["svg.hashsalt"] = "quality"
    figure, (losses, distances) = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for form, runs in results["runs"].items():
        every, last = results["arguments"]["every"], results["arguments"]["steps"]
        for plot, what in (losses, "losses"), (distances, "distances"):
            of_steps = list(zip(*(run[what] for run in runs)))
            steps = [min(every * (number + 1), last) for number in range(len(of_steps))]
            plot.fill_between(steps, list(map(min, of_steps)), list(map(max, of_steps)), alpha=0.15,
                              color=COLOURS[form], linewidth=0)
            plot.plot(steps, [sum(each) / len(each) for each in of_steps], color=COLOURS[form], label=form)
    losses.set(xlabel="step", ylabel="loss of the evaluation")
    distances.set(xlabel="step", ylabel="distance of the weights from fp32's")
    losses.legend(frameon=False)
    figure.savefig(args.svg, metadata={"Date": None})


main()
