# SPDX-License-Identifier: Apache-2.0
"""
Imports what every job imports, once for all jobs of a test program, and forks a process for each rank:

    rank_server.py SOCKET

A request is JSON with `environment` and `setting`, and comes with the descriptor for the rank's output,
whose first line is the process id. The rank's parent ends at once, so that its exit status is that of a
child of the test program. A rank has imported nothing of nvswap.

A rank whose job returns runs what is registered for the end of the process and ends there: to free all
objects of torch, page after page copied since the fork, takes as long as the rest of a short job.
One that has "whole_exit" in its setting, or an exception, ends as any interpreter does.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import socket
import sys
import threading

import deepspeed  # noqa: F401
import processor  # noqa: F401
import torch._inductor.pattern_matcher  # noqa: F401

with contextlib.suppress(ImportError):  # before DeepSpeed 0.18
    import deepspeed.runtime.zero.muon.original_muon  # noqa: F401  # compiles functions

JOB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "job.py")


def serve(requests):
    """Returns in the process of each rank, with its request."""
    gc.freeze()
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, 1 << 16, 1)
        if not data:
            os._exit(0)
        child = os.fork()
        if child == 0:
            if os.fork():
                os._exit(0)
            requests.close()
            for output in (1, 2):
                os.dup2(descriptors[0], output)
            os.close(descriptors[0])
            return json.loads(data)
        os.waitpid(child, 0)
        os.close(descriptors[0])


request = serve(socket.socket(fileno=int(sys.argv[1])))
os.environ.update(request["environment"])
print(os.getpid(), flush=True)
sys.argv = [JOB, request["setting"]]
runpy.run_path(JOB, run_name="__main__")
if not json.loads(request["setting"]).get("whole_exit"):
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
