# SPDX-License-Identifier: Apache-2.0
"""Makes the process that imports it the one rank of a DeepSpeed job, with nvswap installed."""

import os

from jobs import free_port

os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1",
                  MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), GLOO_SOCKET_IFNAME="lo")
import deepspeed  # noqa: E402
import processor  # noqa: E402, F401

import nvswap.deepspeed  # noqa: E402

nvswap.deepspeed.install()
deepspeed.init_distributed("gloo")
