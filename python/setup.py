# SPDX-License-Identifier: Apache-2.0
"""
Builds the package with the static library of the checkout around it, or of the source distribution, which
make builds first. Settings are in pyproject.toml; NVSWAP_LIBRARY names another static library.
"""

import os
import re
import shutil

from setuptools import find_packages, setup
from setuptools.command.sdist import sdist

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = HERE if os.path.isdir(os.path.join(HERE, "src")) else os.path.dirname(HERE)


def version():
    """The version of include/nvswap/version.h, the only place where it is written."""
    with open(os.path.join(TOP, "include/nvswap/version.h"), encoding="utf-8") as file:
        return re.search(r'NVS_VERSION\s+"(.*)"', file.read())[1]


class SourceDistribution(sdist):
    """The package with what the static library is built from."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        for folder in ("include", "src"):
            shutil.copytree(os.path.join(TOP, folder), os.path.join(base_dir, folder),
                            ignore=shutil.ignore_patterns("cli"))
        for name in ("LICENSE", "Makefile"):
            shutil.copy(os.path.join(TOP, name), base_dir)


setup(
    version=version(),
    license="Apache-2.0",
    packages=find_packages(include=["nvswap", "nvswap.*"]),
    cffi_modules=["build_native.py:ffi"],
    cmdclass={"sdist": SourceDistribution},
    options={"bdist_wheel": {"py_limited_api": "cp39"}},
    zip_safe=False,
)
