# SPDX-License-Identifier: Apache-2.0
"""
`python -m nvswap.deepspeed script.py ...` runs a script as Python does, after install(); so do the
processes of Python that it starts. Under DeepSpeed's launcher it is
`deepspeed --module nvswap.deepspeed script.py ...`.
"""

import os
import runpy
import shutil
import sys
from typing import List

from nvswap.deepspeed import install
from nvswap.deepspeed.startup import install_in_children

USAGE = "usage: python -m nvswap.deepspeed (SCRIPT | -m MODULE) [ARGUMENT ...]"


def main(arguments: List[str]) -> None:
    launched = []
    # DeepSpeed's launcher puts it before the script; scripts expect it behind their name.
    while arguments and arguments[0].startswith("--local_rank="):
        launched.append(arguments.pop(0))
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        sys.exit(0 if arguments else 2)
    is_module = arguments[0] == "-m"
    name, *others = arguments[is_module:] or [""]
    if name.startswith("-") or not name:
        sys.exit(f"{USAGE}\n" + (f"{name}: unknown option" if name
                                 else "a module: missing after -m"))
    if not is_module and os.sep not in name and not os.path.exists(name):
        name = shutil.which(name) or name  # such as ds_nvme_tune
    if not is_module and not os.path.exists(name):
        sys.exit(f"python -m nvswap.deepspeed: {name}: there is no such script")
    sys.argv = [name, *launched, *others]
    install_in_children()
    install()
    if is_module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, name.rpartition("/")[0] or ".")
        runpy.run_path(name, run_name="__main__")


main(sys.argv[1:])
