# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of a fuzz target."""

import os


def write(target, seeds):
    """
    `seeds` maps a name to the first byte, which selects what the target does with the rest, and
    the rest; or to all bytes. Other files of the corpus stay.
    """
    directory = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../corpus", target)
    os.makedirs(directory, exist_ok=True)
    for name, seed in seeds.items():
        data = seed if isinstance(seed, bytes) else bytes([seed[0]]) + seed[1]
        with open(os.path.join(directory, name), "wb") as file:
            file.write(data)
