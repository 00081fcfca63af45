# SPDX-License-Identifier: Apache-2.0
"""What the programs of this folder need of the system: a cgroup, a cold page cache, the bytes that were moved."""
import os


def enter_cgroup(arguments):
    """Enters that whose file cgroup.procs is named by the only argument, if there is one and it is not empty."""
    for path in filter(None, arguments):
        with open(path, "r+", encoding="ascii") as procs:
            procs.write("0")


def leave_page_cache(directory):
    """Has no byte of the files below a directory in the page cache."""
    for parent, _, names in os.walk(directory):
        for name in names:
            with open(os.path.join(parent, name), "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def counted(key):
    """A counter of this process in /proc/self/io, such as read_bytes."""
    with open("/proc/self/io", encoding="ascii") as file:
        return int(dict(line.split(": ") for line in file)[key])
