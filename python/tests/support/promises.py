# SPDX-License-Identifier: Apache-2.0
"""
Runs the tests of a file: functions that are called after the promise each checks, registered by
@promise. Prints "ok NAME", "not ok NAME" or "skip NAME: REASON", as tests/run reads them. The
package is the one that make built; files lie below the build directory, which has direct I/O.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import traceback

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BUILD = os.path.join(TOP, os.environ.get("BUILD", "build"))
PACKAGE = os.path.join(BUILD, "python")
sys.path.insert(0, PACKAGE)

_tests = []


def load_runtimes():
    """Starts the program again with the runtimes of the sanitizers that the package was built with,
    which must be loaded before all else. What the interpreter itself leaves allocated is no leak."""
    with open(os.path.join(PACKAGE, "runtimes"), encoding="ascii") as file:
        runtimes = file.read().strip()
    if runtimes and os.environ.get("LD_PRELOAD") != runtimes:
        options = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
        os.execve(sys.executable, [sys.executable, *sys.argv],
                  dict(os.environ, LD_PRELOAD=runtimes, ASAN_OPTIONS=options))


load_runtimes()


class Skip(Exception):
    """The test can't run here; says why."""


def promise(test):
    """Registers a test, which gets a directory of its own."""
    _tests.append(test)
    return test


def settings(path, **more):
    """A configuration with both blocks on a path; `more` is the "nvswap" block."""
    block = {"device": "nvme", "nvme_path": path, "buffer_count": 4, "buffer_size": 262144}
    optimizer = {"device": "nvme", "nvme_path": path}
    return {"zero_optimization": {"offload_param": block, "offload_optimizer": optimizer,
                                  "sub_group_size": 262144},
            "aio": {"block_size": 131072, "queue_depth": 8, "thread_count": 1},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "nvswap": more}


def raises(kind, call, errno=None):
    """Calls and returns the exception, which must be of this kind and errno."""
    try:
        call()
    except kind as error:
        assert errno is None or error.errno == errno, f"errno {error.errno}: {error}"
        return error
    raise AssertionError(f"no {kind.__name__}")


def timeouts_of(module, calls):
    """The timeouts with which a module's calls wait; each call gets one to wait with."""
    seen, wait = [], module.wait_sliced

    def recorded(handle, call, timeout, error):
        seen.append(timeout)
        return wait(handle, call, timeout, error)

    module.wait_sliced = recorded
    try:
        for timeout, call in enumerate(calls, 60):
            call(timeout)
    finally:
        module.wait_sliced = wait
    return seen


def child(script, directory, timeout=60):
    """Runs a script in another interpreter and returns its output; it must end by itself."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(
        [PACKAGE, os.path.dirname(os.path.abspath(__file__))]), DIRECTORY=directory)
    done = subprocess.run([sys.executable, "-c", script], env=environment, timeout=timeout,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stdout}"
    return done.stdout


def _run(test):
    directory = os.path.join(BUILD, "tmp")
    os.makedirs(directory, exist_ok=True)
    directory = tempfile.mkdtemp(prefix=test.__name__[:40], dir=directory)
    try:
        test(directory)
        print(f"ok {test.__name__}", flush=True)
        return True
    except Skip as reason:
        print(f"skip {test.__name__}: {reason}", flush=True)
        return True
    except BaseException:
        traceback.print_exc()
        print(f"not ok {test.__name__}", flush=True)
        return False
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main():
    """Runs the tests that the arguments name, or all that tests/run does not leave to `make check-all`."""
    left_out = os.environ.get("LEFT_OUT", "").split()
    wanted = sys.argv[1:] or [test.__name__ for test in _tests if test.__name__ not in left_out]
    results = [_run(test) for test in _tests if test.__name__ in wanted]
    sys.stdout.flush()
    sys.exit(0 if results and all(results) else 1)
