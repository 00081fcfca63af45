#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tests of all public functions and structures leave none out: test_cancel.c calls each function of
include/nvswap/ that waits, and test_extremes.c tries each field that a caller fills in."""

import pathlib
import re
import sys

import checks

HERE = pathlib.Path(__file__).resolve().parent
HEADERS = [re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
           for header in (HERE.parents[1] / "include/nvswap").glob("*.h")]
# They neither wait nor call the kernel or the caller, so no thread is cancelled in them.
ONLY_READ = set("""
nvs_version nvs_strerror nvs_latency_merge nvs_latency_percentile nvs_latency_mean nvs_latency_stddev
nvs_latency_within nvs_dtype_size nvs_dtype_bits nvs_dtype_name nvs_dtype_parse nvs_device_name nvs_ioengine_name
nvs_ioengine_parse nvs_tensor_state_name nvs_machine_advise nvs_file_direct nvs_file_unit nvs_request_status
nvs_request_user nvs_aio_get_latency nvs_aio_reset_stats nvs_aio_get_stats nvs_checkpoint_count
nvs_checkpoint_get nvs_checkpoint_close nvs_config_copy nvs_config_set_trace nvs_config_get
nvs_config_get_number nvs_config_get_real nvs_config_get_path nvs_config_pool_bytes nvs_tensor_data
nvs_tensor_find nvs_tensor_get_info nvs_engine_aio nvs_engine_pool nvs_engine_generation nvs_engine_get_stored
nvs_engine_get_note nvs_engine_get_stats nvs_memory_is_pinned nvs_optimizer_engine nvs_optimizer_get_note
nvs_optimizer_get_info nvs_optimizer_get_group_info nvs_optimizer_loss_scale nvs_store_get_copy
nvs_store_get_info nvs_store_get_tensor""".split())
# The library fills these in; it reads no field but the size (test_sizes).
RESULTS = set("""
nvs_io_stats nvs_aio_stats nvs_stored_tensor nvs_pool_stats nvs_engine_stats nvs_advice nvs_update
nvs_step_result nvs_state_run nvs_optimizer_info nvs_group_info nvs_step_io nvs_tensor_info nvs_store_info
nvs_store_copy nvs_store_tensor nvs_store_verdict nvs_store_repairs nvs_checkpoint_tensor
nvs_state_conversion""".split())


def all_are_in(what, names, test):
    for name in sorted(names - test):
        print(f"{what} {name} is not tested")
    return names <= test


def functions():
    found = {name for header in HEADERS for name in re.findall(r"^NVS_API [^;]*?(nvs_\w+)\(", header, re.M)}
    return found if len(found) > 90 else {"of which too few are found"}


def no_function_that_waits_is_left_out_of_cancel():
    called = set(re.findall(r"(nvs_\w+)\(", (HERE / "test_cancel.c").read_text()))
    return all_are_in("function", functions() - ONLY_READ, called)


def structures():
    """Returns the fields of each structure; what a structure in another has counts with that one's name."""
    found = {}
    for header in HEADERS:
        for name, body in re.findall(r"^struct (nvs_\w+) \{\n(.*?)^\}", header, re.S | re.M):
            found[name] = set(re.findall(r"(\w+)(?:\[[^]]*\])*\s*[,;]", re.sub(r"\{.*?\}", "", body, flags=re.S)))
    return found


def no_field_is_left_out_of_extremes():
    declared, tried, good = structures(), set(), True
    text = (HERE / "test_extremes.c").read_text()
    shared = re.search(r"^#define UPDATE_FIELDS\(structure\)(.*?[^\\])$", text, re.S | re.M)[1]
    text = re.sub(r"\bUPDATE_FIELDS\((nvs_\w+)\)", lambda found: shared.replace("structure", found[1]), text)
    for name, table in re.findall(r"\bS\((nvs_\w+),[^)]*?(\w+_fields)\)", text):
        tried.add(name)
        rows = re.search(rf"^static const struct field {table}\[\] = \{{\n(.*?)^\}};", text, re.S | re.M)[1]
        fields = {"size", *re.findall(rf"\({name}, (\w+)", rows)}
        good &= all_are_in(f"field of {name}:", declared[name], fields)
    tried |= set(re.findall(r"^\tFILLED\((nvs_\w+)", text, re.M))  # whole
    return good and all_are_in("structure", set(declared), tried | RESULTS)


if __name__ == "__main__":
    sys.exit(checks.run([no_function_that_waits_is_left_out_of_cancel, no_field_is_left_out_of_extremes]))
