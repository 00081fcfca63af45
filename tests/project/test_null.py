#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every public function refuses NULL and unknown enumerators: -EINVAL, or NULL, 0 or "unknown" where the type
has no errno; and one that fails to open stores NULL, since the caller's pointer may hold what was closed.

The headers are the table: a program is made of their prototypes that calls each function with one argument that
is wrong and others that are right, by their types and names."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

import checks

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = (ROOT / os.environ.get("BUILD", "build")).resolve()
OBJECTS = {"aio", "checkpoint", "config", "engine", "file", "optimizer", "request", "store", "tensor", "trace"}
# Arguments that may be NULL, of any function or of one.
OPTIONAL = set("""error options arg nvs_aio_pread.request nvs_aio_pwrite.request nvs_aio_submit.requests
nvs_aio_wait_all.completed nvs_config_set_trace.trace nvs_memory_alloc.aio
nvs_checkpoint_import_optimizer.names nvs_engine_get_note.note nvs_engine_step_end.io nvs_machine_advise.path
nvs_memory_alloc.path nvs_optimizer_add_gradients.added nvs_optimizer_get_note.note nvs_optimizer_step.result
nvs_store_repair.repairs nvs_trace_write.dropped""".split())
# A group may have no weights.
OPTIONAL_ELEMENTS = {"nvs_optimizer_set_weights.weights"}
# What is right by its name, of any function or of one.
RIGHT = {
    "error": "&error", "key": '"aio.block_size"', "value": '"1M"', "text": '"{}  "', "path": "path", "numel": "4",
    "nbytes": "4", "n": "1", "fd": "-1", "number": "4096", "max_spans": "8", "dtype": "NVS_F32",
    "nvs_dtype_parse.name": '"F32"', "nvs_ioengine_parse.name": '"auto"', "nvs_trace_write.path": "saved",
    "nvs_checkpoint_open.path": "saved", "nvs_checkpoint_export.path": "saved",
    "nvs_checkpoint_export_optimizer.path": "saved", "nvs_tensor_release.pin": "pin"}
# Structures that functions read, with what is right in them.
GIVEN = {
    "adam_update": ".numel = 4, .step = 1", "rule_update": ".numel = 4, .step = 1", "machine_info": "",
    "checkpoint_item": ".tensor = tensor", "checkpoint_param": '.name = "p", .numel = 1',
    "group_spec": '.name = "h", .numel = 4, .dtype = NVS_F32', "latency": "", "path_info": "",
    "store_place": '.paths = (const char *const[]){"/"}, .npaths = 1',
    "tensor_range": ".tensor = tensor, .data = page",
    "tensor_rows": ".tensor = tensor, .count = 1", "tensor_spec": '.name = "u", .numel = 4',
    "transfer": ".file = file, .data = page, .nbytes = 512"}
# Numbers beyond what there is, and structures without a size or with a member that is not one.
OTHERS = """
nvs_file_open(aio, path, 1u << 30, &made_file, &error)
nvs_file_from_fd(aio, 0, 1u << 30, &made_file, &error)
nvs_store_open(&place, 1u << 30, &made_store, &error)
nvs_store_repair(&place, 1u << 30, NULL, &error)
nvs_engine_open_files(&made_engine, config, &path, 0, NULL, &error)
nvs_engine_open_files(&made_engine, config, &path, 1, &(const struct nvs_files_options){.size = 0}, &error)
nvs_aio_get_latency(aio, NVS_READ, NVS_LAT, &(struct nvs_latency){.size = 0})
nvs_checkpoint_export(engine, NULL, 0, "a.safetensors", NULL, &error)
nvs_trace_open(&made_trace, 0, &error)
nvs_memory_alloc(aio, 0, NULL, &made_memory, &error)
nvs_optimizer_lend_gradients(optimizer, 99, NVS_F32, page, &error)
nvs_optimizer_set_weights(optimizer, &made_memory, 99, &error)
nvs_optimizer_sum_groups(optimizer, (double *)page, 99, &error)
nvs_optimizer_get_group_info(optimizer, 99, &(struct nvs_group_info){sizeof(struct nvs_group_info)}, &error)
nvs_optimizer_open(&made_optimizer, config, &(struct nvs_group_spec){sizeof(group)}, 1, NULL, &error)
nvs_ioengine_parse("sync", &(enum nvs_ioengine){0})
""".strip().splitlines()
PROGRAM = r"""
#include <errno.h>
#include <nvswap.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static _Alignas(4096) char page[4096];
static struct nvs_error error = {.size = sizeof(error)};
static unsigned bad, calls;
static void wrong(const char *call) { bad++; printf("%s\n", call); }
#define IS(call, due) (calls++, (call) == (due) ? (void)0 : wrong(#call))
#define SAYS(call, due) (calls++, !strcmp(call, due) ? (void)0 : wrong(#call))
#define STORES_NULL(type, call, due) \
	do { \
		type made = (void *)page; \
		IS(call, due); \
		if (made) \
			wrong("stored: " #call); \
	} while (0)
#define MUST(call) \
	do { \
		if (call) { \
			printf("%s: %s\n", #call, error.text); \
			return 2; \
		} \
	} while (0)
static int run(void *arg, const struct nvs_state_run *state) { (void)arg, (void)state; return 0; }
int main(int argc, char **argv)
{
	static const char text[] =
		"{\"offload_param\": {\"device\": \"cpu\", \"buffer_size\": 65536},"
		" \"offload_optimizer\": {\"device\": \"cpu\"}, \"zero_optimization\": {\"sub_group_size\": 65536}}";
	struct nvs_tensor_spec spec = {sizeof(spec), "t", NVS_F32, 4, NULL, 0};
	const struct nvs_group_spec group = {sizeof(group), "g", 4, NVS_F32, page};
	const char *path = argv[argc - 1];
	const struct nvs_store_place place = {sizeof(place), &path, 1, 0, false};
	struct nvs_checkpoint_item item = {.size = sizeof(item)};
	struct nvs_engine *engine, *made_engine;
	struct nvs_optimizer *optimizer, *made_optimizer;
	struct nvs_trace *trace, *made_trace;
	struct nvs_store *store, *made_store;
	struct nvs_file *file, *made_file;
	struct nvs_tensor *tensor, *held;
	struct nvs_checkpoint *checkpoint;
	struct nvs_request *request;
	struct nvs_config *config;
	struct nvs_aio *aio;
	void *made_memory = NULL;
	char name[4096], saved[4096];
	uint64_t pin;

	snprintf(name, sizeof(name), "%s/file", path);
	snprintf(saved, sizeof(saved), "%s/a.safetensors", path);
	MUST(nvs_config_open(&config, &error));
	MUST(nvs_config_set_paths(config, NVS_OFFLOAD_PARAM, &path, 1, &error));
	MUST(nvs_config_set(config, "nvswap.keep", "true", &error));
	MUST(nvs_config_set(config, "offload_param.buffer_size", "65536", &error));
	MUST(nvs_engine_open(&engine, config, NVS_OFFLOAD_PARAM, &error));
	MUST(nvs_tensor_register(engine, &spec, 1, &tensor, &error));
	MUST(nvs_engine_close(engine, &error));
	MUST(nvs_store_open(&place, NVS_STORE_LOCK, &store, &error));
	nvs_config_close(config);
	MUST(nvs_config_open(&config, &error));
	MUST(nvs_config_parse(config, text, strlen(text), "test", &error));
	MUST(nvs_engine_open(&engine, config, NVS_OFFLOAD_PARAM, &error));
	MUST(nvs_tensor_register(engine, &spec, 1, &tensor, &error));
	spec.name = "held";
	MUST(nvs_tensor_register(engine, &spec, 1, &held, &error));
	MUST(nvs_optimizer_open(&optimizer, config, &group, 1, NULL, &error));
	MUST(nvs_aio_open(&aio, config, &error));
	MUST(nvs_file_open(aio, name, NVS_FILE_WRITE | NVS_FILE_CREATE, &file, &error));
	MUST(nvs_aio_pwrite(aio, file, page, 4096, 0, &request, &error));
	MUST(nvs_aio_wait(aio, &request, 1, -1, &error));
	MUST(nvs_trace_open(&trace, 8, &error));
	MUST(nvs_tensor_pin(engine, &tensor, 1, 0, &pin, &error));
	MUST(nvs_tensor_release(engine, &tensor, 1, pin, NVS_DIRTY, &error));
	item.tensor = tensor;
	MUST(nvs_checkpoint_export(engine, &item, 1, saved, NULL, &error));
	MUST(nvs_checkpoint_open(&checkpoint, saved, &error));
	MUST(nvs_tensor_pin(engine, &held, 1, 0, &pin, &error));
@CALLS@
	STORES_NULL(struct nvs_file *, nvs_file_open(aio, "/nonexistent", 0, &made, &error), -ENOENT);
	STORES_NULL(struct nvs_file *, nvs_file_from_fd(aio, -1, 0, &made, &error), -EBADF);
	SAYS(nvs_strerror(-2147483647 - 1), "unknown error");
	nvs_checkpoint_close(checkpoint);
	nvs_store_close(store);
	nvs_trace_close(trace);
	MUST(nvs_request_close(request));
	nvs_file_close(file);
	MUST(nvs_aio_close(aio));
	MUST(nvs_optimizer_close(optimizer, &error));
	MUST(nvs_engine_abandon(engine, &error));
	nvs_config_close(config);
	if (calls < 270)
		printf("only %u calls\n", calls);
	return bad || calls < 270;
}
"""


def functions():
    """Yields the type of the result, the name, and the (type, name) of each argument."""
    for header in sorted((ROOT / "include/nvswap").glob("*.h")):
        text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
        for kind, name, arguments in re.findall(r"^NVS_API\s+([^;]*?)(nvs_\w+)\(([^;()]*)\)", text, re.M):
            pairs = [re.fullmatch(r"(.*?)(\w+)", " ".join(one.split())).groups() for one in arguments.split(",")]
            yield kind.strip(), name, [] if pairs[0][1] == "void" else [(kind.strip(), name) for kind, name in pairs]


def right(function, kind, name):
    """The expression of an argument that is right."""
    if f"{function}.{name}" in RIGHT:
        return RIGHT[f"{function}.{name}"]
    if name in RIGHT and (kind == "const char *" or name == "error" or not kind.endswith("*")):
        return RIGHT[name]
    base = re.sub(r"^const ", "", kind)
    what = re.fullmatch(r"struct nvs_(\w+) (\*+|\*const \*)", base)
    if what and what[2] == "**":
        return f"&(struct nvs_{what[1]} *){{NULL}}"
    if what and what[1] in OBJECTS:
        one = "held" if (function, what[1]) == ("nvs_tensor_release", "tensor") else what[1]
        return f"&{one}" if what[2] == "*const *" else one
    if what and kind.startswith("const "):
        return f"&(struct nvs_{what[1]}){{.size = sizeof(struct nvs_{what[1]}), {GIVEN.get(what[1], '')}}}"
    if what:
        return f"&(struct nvs_{what[1]}){{.size = sizeof(struct nvs_{what[1]})}}"
    if kind == "const char *":
        return '"t"'
    if kind.startswith("nvs_"):
        return "NULL" if "log" in kind else "run"
    if kind.endswith("*const *"):
        return "&path" if "char" in kind else f"&({kind[:-len('const *')]}){{page}}"
    if kind.endswith("*"):
        return f"({kind})page"
    return "0"


def wrong(kind):
    """Expressions of an argument that are refused."""
    if kind.startswith("enum ") and not kind.endswith("*"):
        yield "99"
    if kind.endswith("*"):
        yield "NULL"
    if kind.endswith("*const *"):
        yield f"&({kind[:-len('const *')]}){{NULL}}"


def calls():
    for result, function, arguments in functions():
        good = [right(function, kind, name) for kind, name in arguments]
        made = [i for i, (kind, _) in enumerate(arguments)
                if kind.endswith("**") and re.search("_open|_from|_alloc", function)]
        for i, (kind, name) in enumerate(arguments):
            if {name, f"{function}.{name}"} & OPTIONAL:
                continue
            for bad in wrong(kind):
                if bad.startswith("&") and f"{function}.{name}" in OPTIONAL_ELEMENTS:
                    continue
                given = good[:i] + [bad] + good[i + 1:]
                call = f"{function}({', '.join(given)})"
                closes = re.search(r"_(close|abandon|free)$", function)
                due = "-EINVAL" if result in ("int", "long") and not closes else "0"
                if result == "void":
                    yield f"\t{call};"
                elif function.endswith("_name"):
                    yield f'\tSAYS({call}, "unknown");'
                elif due == "-EINVAL" and made and made[0] != i and result == "int":
                    given[made[0]] = "&made"
                    yield f"\tSTORES_NULL({arguments[made[0]][0][:-1]}, {function}({', '.join(given)}), {due});"
                else:
                    yield f"\tIS(({call}), {due});"
    for call in OTHERS:
        yield f"\tIS(({call}), -EINVAL);"


def every_function_refuses_null_and_unknown_enumerators(directory):
    source, program = directory / "null.c", directory / "null"
    source.write_text(PROGRAM.replace("@CALLS@", "\n".join(calls())))
    subprocess.run([os.environ.get("CC", "gcc"), "-std=gnu11", "-w", f"-I{ROOT}/include", source, "-o", program,
                    f"-L{BUILD}", "-lnvswap", f"-Wl,-rpath,{BUILD}"], check=True)
    done = subprocess.run([program, directory], text=True, stdout=subprocess.PIPE, check=False)
    print(done.stdout, end="")
    if done.returncode < 0:
        print(f"ended by signal {-done.returncode}")
    return done.returncode == 0


if __name__ == "__main__":
    (BUILD / "tmp").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD / "tmp") as temporary:
        sys.exit(checks.run([every_function_refuses_null_and_unknown_enumerators], pathlib.Path(temporary)))
