# SPDX-License-Identifier: Apache-2.0
"""
`python -m nvswap.deepspeed script.py ...` runs a script as Python does, after install(); so do the
processes that it starts by multiprocessing.
"""

import runpy
import sys

from nvswap.deepspeed import install
from nvswap.deepspeed.spawned import install_in_children


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print("usage: python -m nvswap.deepspeed (SCRIPT | -m MODULE) [ARGUMENT ...]")
        sys.exit(0 if len(sys.argv) > 1 else 2)
    install_in_children()
    install()
    if sys.argv[1] == "-m":
        if len(sys.argv) < 3:
            sys.exit("python -m nvswap.deepspeed -m: a module is missing")
        sys.argv = sys.argv[2:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = sys.argv[1:]
        sys.path.insert(0, sys.argv[0].rpartition("/")[0] or ".")
        runpy.run_path(sys.argv[0], run_name="__main__")


main()
