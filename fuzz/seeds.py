# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of a fuzz target: the first byte selects what the target does with the rest."""

import os


def write(target, seeds):
    """`seeds` maps a name to the first byte and the rest. Other files of the corpus stay."""
    directory = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus", target)
    os.makedirs(directory, exist_ok=True)
    for name, (kind, data) in seeds.items():
        with open(os.path.join(directory, name), "wb") as file:
            file.write(bytes([kind]) + data)
