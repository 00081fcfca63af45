# SPDX-License-Identifier: Apache-2.0
"""
The main module of processes that a script under `python -m nvswap.deepspeed` starts by
multiprocessing's "spawn" or "forkserver". Each such process runs the main module of its parent again
under the name __mp_main__, in an interpreter of its own. `install_in_children`, called by the
parent, names this module instead, which calls install() there and then runs the parent's.
"""

import runpy
import sys
from multiprocessing import spawn

_KEYS = ("init_main_from_name", "init_main_from_path")


def install_in_children() -> None:
    """Has install() called in each process that multiprocessing starts from now on."""
    preparation = spawn.get_preparation_data

    def with_install(name):  # type: ignore[no-untyped-def]
        data = preparation(name)
        key = next((key for key in _KEYS if key in data), "none")
        # runpy replaces sys.argv[0] while it runs a module.
        first, *others = data["sys_argv"]
        data["sys_argv"] = [first, key, data.pop(key, ""), *others]
        data["init_main_from_name"] = "nvswap.deepspeed.spawned"
        return data

    spawn.get_preparation_data = with_install


def _main_of_parent() -> dict:
    key, main = sys.argv[1:3]
    del sys.argv[1:3]
    # multiprocessing does not run the __main__ of a package again.
    if key == "none" or main.endswith(".__main__"):
        return {}
    run = runpy.run_path if key == "init_main_from_path" else runpy.run_module
    return run(main, run_name="__mp_main__")  # type: ignore[no-any-return, operator]


if __name__ == "__mp_main__":
    from nvswap.deepspeed import install
    install_in_children()
    install()
    globals().update(_main_of_parent())
