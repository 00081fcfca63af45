# SPDX-License-Identifier: Apache-2.0
"""
Builds the package with the static library of the checkout around it, which make builds first.
Settings are in pyproject.toml; NVSWAP_LIBRARY names another static library.
"""

import os
import re

from setuptools import find_packages, setup

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def version():
    """The version of include/nvswap/version.h, the only place where it is written."""
    with open(os.path.join(TOP, "include/nvswap/version.h"), encoding="utf-8") as file:
        return re.search(r'NVS_VERSION\s+"(.*)"', file.read())[1]


setup(
    version=version(),
    packages=find_packages(include=["nvswap", "nvswap.*"]),
    cffi_modules=["build_native.py:ffi"],
    options={"bdist_wheel": {"py_limited_api": "cp39"}},
    zip_safe=False,
)
