# SPDX-License-Identifier: Apache-2.0
"""
Has processes of Python that this one starts, in whatever way, call install() once they import deepspeed: the
folder of this package, whose sitecustomize.py Python runs first, is put first into PYTHONPATH. A child with -E, -I
or -S, or to which the parent gives another PYTHONPATH, is not reached.
"""

import os

FOLDER = os.path.dirname(os.path.abspath(__file__))


def install_in_children() -> None:
    """Has install() called in each process of Python that is started from now on."""
    paths = os.environ.get("PYTHONPATH")  # in which an empty path is the working directory
    others = [path for path in paths.split(os.pathsep) if path != FOLDER] if paths else []
    os.environ["PYTHONPATH"] = os.pathsep.join([FOLDER, *others])
