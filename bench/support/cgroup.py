# SPDX-License-Identifier: Apache-2.0
"""A cgroup with a limit of memory, of either version."""
import contextlib
import os
import re
import time


def mounted(kind, option=""):
    """Where a file system is mounted."""
    with open("/proc/self/mountinfo", encoding="ascii") as file:
        for line in file:
            fields, (found, _, options) = (part.split() for part in line.split(" - "))
            if found == kind and (not option or option in options.split(",")):
                return fields[4]
    raise OSError(f"no {kind} is mounted")


class Cgroup:
    """A new one: in v1 below this process's own, in v2, where that may have no children, beside it. OSError:
    none can be made here."""

    def __init__(self, limit):
        with open("/proc/self/cgroup", encoding="ascii") as file:
            own = dict(line.rstrip().split(":")[1:] for line in file)
        name = f"nvswap-{os.getpid()}"
        if "memory" in own:
            self.path = os.path.join(mounted("cgroup", "memory") + own["memory"], name)
            maximum, self._peak = "memory.limit_in_bytes", "memory.max_usage_in_bytes"
            self._kills, swap = "memory.oom_control", ("memory.memsw.limit_in_bytes", limit)
        else:
            self.path = os.path.join(os.path.dirname(mounted("cgroup2") + own[""]), name)
            maximum, self._peak = "memory.max", "memory.peak"
            self._kills, swap = "memory.events", ("memory.swap.max", 0)
        try:
            os.mkdir(self.path)
            self._write(maximum, limit)
            with contextlib.suppress(FileNotFoundError):  # The kernel may be without swap.
                self._write(*swap)
        except OSError:
            self.remove()
            raise

    def _write(self, name, value):
        with open(os.path.join(self.path, name), "r+", encoding="ascii") as file:
            file.write(str(value))

    def enter(self):
        """Moves this process there."""
        self._write("cgroup.procs", 0)

    def peak(self):
        """The most bytes that it had, the page cache of its files too."""
        with open(os.path.join(self.path, self._peak), encoding="ascii") as file:
            return int(file.read())

    def kills(self):
        """How many processes the kernel has killed for the limit."""
        with open(os.path.join(self.path, self._kills), encoding="ascii") as file:
            return int(re.search(r"^oom_kill (\d+)", file.read(), re.M)[1])

    def remove(self):
        """Once its processes are gone, which the kernel notices after a moment."""
        for _ in range(100):
            with contextlib.suppress(FileNotFoundError):
                try:
                    os.rmdir(self.path)
                except OSError:
                    time.sleep(0.1)
                    continue
            return
