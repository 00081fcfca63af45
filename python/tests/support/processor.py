# SPDX-License-Identifier: Apache-2.0
"""Asks once what the processor is: for each engine DeepSpeed runs a program that takes a second to say so."""

import functools

import cpuinfo

cpuinfo.get_cpu_info = functools.lru_cache(maxsize=None)(cpuinfo.get_cpu_info)
cpuinfo.get_cpu_info()
