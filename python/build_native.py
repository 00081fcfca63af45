# SPDX-License-Identifier: Apache-2.0
"""
Describes nvswap._native to cffi: the declarations of the public headers, so that they are written
once, and the static library, whose symbols stay inside the extension. cffi releases the GIL in
every call, and builds one extension for all Python 3 from 3.9 on.
"""

import os
import re
import subprocess

from cffi import FFI

HERE = os.path.dirname(os.path.abspath(__file__))
DISTRIBUTED = os.path.isdir(os.path.join(HERE, "src"))
TOP = HERE if DISTRIBUTED else os.path.dirname(HERE)
HEADERS = ("version dtype error config latency aio file memory request engine tensor step "
           "optimizer checkpoint trace").split()
PACKAGES = ["liburing", "hwloc", "libxxhash", "zlib"]

# What Python implements. The C functions before them stop the log once the interpreter exits.
CALLBACKS = """
extern "Python" void nvswap_log(void *arg, enum nvs_log_level level, const char *text);
extern "Python" void nvswap_update(void *arg, const struct nvs_update *update);
extern "Python" void nvswap_weights_final(void *arg, size_t group, uint64_t offset,
    uint64_t numel, enum nvs_dtype dtype, const void *data);
unsigned long crc32_combine(unsigned long before, unsigned long behind, long nbytes_behind);
int fallocate(int fd, int mode, int64_t offset, int64_t nbytes);
int renameat2(int old_folder, const char *old, int new_folder, const char *new_, unsigned flags);
#define AT_FDCWD ...
#define RENAME_EXCHANGE ...
extern "Python" int nvswap_state(void *arg, const struct nvs_state_run *run);
void nvswap_log_unless_ended(void *arg, enum nvs_log_level level, const char *text);
void nvswap_end_log(void);
struct nvswap_group {
    struct nvs_rule_update update;
    uint64_t missed;
};
void nvswap_update_group(void *arg, const struct nvs_update *update);
"""
SOURCE = """
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <zlib.h>
#include "nvswap.h"

static atomic_bool ended;
static void nvswap_log(void *arg, enum nvs_log_level level, const char *text);

static void nvswap_log_unless_ended(void *arg, enum nvs_log_level level, const char *text)
{
    if (!atomic_load(&ended))
        nvswap_log(arg, level, text);
}

static void nvswap_end_log(void)
{
    atomic_store(&ended, true);
}

/* A group's update without its arrays; of lr, below 0 is the step's. */
struct nvswap_group {
    struct nvs_rule_update update;
    uint64_t missed; /* steps of the optimizer that the group does not count */
};

/* The update function with an array of these, one for each group, whose numbers Python has checked. */
static void nvswap_update_group(void *arg, const struct nvs_update *update)
{
    const struct nvswap_group *group = (const struct nvswap_group *)arg + update->group;
    struct nvs_rule_update run = group->update;

    run.numel = update->numel;
    run.step = update->step > group->missed ? update->step - group->missed : 1;
    if (run.lr < 0)
        run.lr = update->lr;
    run.gradients = update->gradients;
    run.master = update->master;
    run.exp_avg = update->exp_avg;
    run.exp_avg_sq = update->exp_avg_sq;
    run.momentum_buffer = update->momentum_buffer;
    run.sum = update->sum;
    nvs_rule_update(&run, NULL);
}
"""


def declarations(name):
    """The declarations of a public header, in the part of C that cffi reads."""
    with open(os.path.join(TOP, "include/nvswap", name + ".h"), encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.S)
    constants = re.findall(r"^#define (NVS_\w+)[ \t]+\(?(\d\w*)", text, flags=re.M)
    text = re.sub(r"^#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.M)
    lines = [f"#define {key} {value if value.isdigit() else '...'}" for key, value in constants]
    return "\n".join(lines) + text.replace("NVS_API ", "")


def pkg_config(*options):
    return subprocess.check_output(["pkg-config", *options, *PACKAGES], text=True).split()


def library():
    """The static library: NVSWAP_LIBRARY, or the one that make builds now."""
    path = os.environ.get("NVSWAP_LIBRARY")
    if not path:
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith(("MAKE", "MFLAGS", "CFLAGS", "LDFLAGS"))}
        # Warnings of other compilers are for a checkout alone.
        subprocess.check_call(["make", "-C", TOP, f"-j{os.cpu_count()}", "--no-print-directory", "BUILD=build",
                               *(["WERROR="] if DISTRIBUTED else []), "build/libnvswap.a"], env=environment)
        path = os.path.join(TOP, "build/libnvswap.a")
    return os.path.abspath(path)


ffi = FFI()
for header in HEADERS:
    ffi.cdef(declarations(header))
ffi.cdef(CALLBACKS)
ffi.set_source(
    "nvswap._native", SOURCE, py_limited_api=True, include_dirs=[os.path.join(TOP, "include")],
    extra_compile_args=["-std=gnu11", *pkg_config("--cflags")],
    extra_objects=[library()],
    extra_link_args=["-Wl,--exclude-libs,ALL", "-Wl,-z,relro,-z,now", *pkg_config("--libs"),
                     "-laio", "-lm", "-pthread"])
