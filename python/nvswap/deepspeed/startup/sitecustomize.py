# SPDX-License-Identifier: Apache-2.0
"""
Run by Python as it starts, in children of `python -m nvswap.deepspeed`: the first import of deepspeed calls
install(), so that other programs lose no time. Then the sitecustomize that this one hides is run.
"""

import importlib.machinery
import importlib.util
import os
import sys


class _Watcher:
    """A finder that has deepspeed found by the others, and install() called when it is imported. A program may
    look for deepspeed before, as transformers does."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "deepspeed":
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not cls)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_install(module):  # type: ignore[no-untyped-def]
                execute(module)
                _install()

            spec.loader.exec_module = execute_and_install  # type: ignore[method-assign]
        return spec


def _install() -> None:
    import warnings
    try:
        from nvswap.deepspeed import VersionError, install
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "nvswap":
            raise
        warnings.warn(f"{sys.executable} has no nvswap, so DeepSpeed uses its own ops here: install nvswap for "
                      "this Python too, or put it in PYTHONPATH", RuntimeWarning)
        return
    try:
        install()
    except VersionError as error:
        warnings.warn(f"{sys.executable}: DeepSpeed uses its own ops here: {error}", RuntimeWarning)


def _run_hidden() -> None:
    own = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.machinery.PathFinder.find_spec(
        "sitecustomize", [path for path in sys.path if os.path.abspath(path) != own])
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


sys.meta_path.insert(0, _Watcher)  # type: ignore[arg-type]
_run_hidden()
