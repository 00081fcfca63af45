# SPDX-License-Identifier: Apache-2.0
"""Makes the process that imports it the one rank of a DeepSpeed job, with nvswap installed."""

import os
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import promises  # noqa: E402, F401  # finds the package

os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1",
                  MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    os.environ["MASTER_PORT"] = str(free.getsockname()[1])
import deepspeed  # noqa: E402
import processor  # noqa: E402, F401

import nvswap.deepspeed  # noqa: E402

nvswap.deepspeed.install()
deepspeed.init_distributed("gloo")
