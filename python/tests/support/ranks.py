# SPDX-License-Identifier: Apache-2.0
"""Processes of job.py, which rank_server.py forks."""

import ctypes
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
PR_SET_CHILD_SUBREAPER = 36

_servers = []


@functools.lru_cache(maxsize=None)
def _server(package, python):
    """The socket of a server, run by an interpreter, that ends with this process."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        _servers.append(subprocess.Popen(
            [python, os.path.join(HERE, "rank_server.py"), str(theirs.fileno())],
            env=dict(os.environ, PYTHONPATH=package, DS_ACCELERATOR="cpu"),
            pass_fds=[theirs.fileno()]))
    return ours


class Rank:
    """A process of job.py, with the part of subprocess.Popen's interface that tests use."""

    def __init__(self, setting, environment, package, python=sys.executable):
        reading, writing = os.pipe()
        request = {"setting": setting, "environment": environment}
        socket.send_fds(_server(package, python), [json.dumps(request).encode()], [writing])
        os.close(writing)
        self.stdout = os.fdopen(reading, encoding="utf-8", errors="replace")
        self.pid = int(self.stdout.readline())
        self.returncode = None

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def kill(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout):
        """Its output from here to its end, and None."""
        late = threading.Event()

        def end():
            late.set()
            os.kill(self.pid, signal.SIGKILL)

        timer = threading.Timer(timeout, end)
        timer.start()
        try:
            output = self.stdout.read()
        finally:
            timer.cancel()
            timer.join()
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if late.is_set():
            raise subprocess.TimeoutExpired("job.py", timeout, output)
        return output, None
