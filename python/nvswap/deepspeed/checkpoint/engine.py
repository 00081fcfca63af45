# SPDX-License-Identifier: Apache-2.0
"""
The checkpoint engine that DeepSpeed calls where optimizer state is on NVMe: its own files and names,
each replaced as a whole, with state from the store streamed to them. `latest` is written last, when the
files of all ranks are durable.
"""

from __future__ import annotations

import errno
import functools
import os
import zipfile
from typing import Any

import torch
from deepspeed import comm as dist
from deepspeed.runtime import checkpoint_engine as theirs
from deepspeed.runtime.model_checkpointing import CHECKPOINT_SERIALIZATION, CHECKPOINT_WRITER
from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum

from nvswap.deepspeed.checkpoint import stored
from nvswap.deepspeed.checkpoint.durable import replace_text, replacing
from nvswap.errors import Error


class CheckpointEngine(theirs.TorchCheckpointEngine):
    """Takes the arguments of DeepSpeed's class."""

    def save(self, state_dict: Any, path: str) -> None:
        with replacing(path) as partial:
            if stored.has_stored(state_dict):
                stored.save(state_dict, partial)
            else:
                torch.save(state_dict, partial)

    def load(self, path: str, map_location: Any = None) -> Any:
        """Maps the file, so that tensors take memory only as they are read."""
        if not zipfile.is_zipfile(path):
            return super().load(path, map_location)
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise Error(errno.EIO, f"{path} is damaged: the CRC-32 of {damaged} differs")
        return torch.load(path, map_location=map_location or "cpu", weights_only=False, mmap=True)

    def commit(self, info: Any) -> bool:
        dist.barrier()
        return bool(super().commit(info))


def create_checkpoint_engine(config_params: Any, *args: Any, **kwargs: Any) -> Any:
    """
    DeepSpeed's function, for a job whose optimizer state is on NVMe.

    Raises
    ------
    Error
        ENOTSUP: the configuration asks for a checkpoint engine that can't save it.
    """
    offload = config_params.zero_config.offload_optimizer
    if offload is None or offload.device != OffloadDeviceEnum.nvme:
        return theirs.create_checkpoint_engine(config_params, *args, **kwargs)
    block = config_params.checkpoint_config
    refused = {"checkpoint.writer": block[CHECKPOINT_WRITER] is not None,
               "checkpoint.checkpoint_serialization": not block[CHECKPOINT_SERIALIZATION],
               "datastates_ckpt": config_params.datastates_config.enabled}
    for key, is_set in refused.items():
        if is_set:
            raise Error(errno.ENOTSUP, f"{key}: optimizer state in a store is written by nvswap, to "
                        'torch.save\'s zip files: leave it out, or use "nvswap": {"deepspeed": "ops"}',
                        key)
    return CheckpointEngine(config_params)


def watch_saves() -> None:
    """Has each DeepSpeedEngine with this checkpoint engine write `latest` whole, and save and load
    state as if it were in memory; calling it again changes nothing."""
    from deepspeed.runtime.engine import DeepSpeedEngine

    if hasattr(DeepSpeedEngine.save_checkpoint, "nvswap_watches"):
        return
    save, on_nvme = DeepSpeedEngine.save_checkpoint, DeepSpeedEngine.zero_nvme_offload_optimizer

    @functools.wraps(save)
    def saved(self: Any, save_dir: str, tag: Any = None, client_state: Any = None,
              save_latest: bool = True, **kwargs: Any) -> Any:
        ours = isinstance(self.checkpoint_engine, CheckpointEngine)
        result = save(self, save_dir, tag, client_state or {}, save_latest and not ours, **kwargs)
        if ours and save_latest:
            if self.global_rank == 0:
                replace_text(os.path.join(save_dir, "latest"),
                             str(tag or f"global_step{self.global_steps}"))
            dist.barrier()
        return result

    saved.nvswap_watches = True  # type: ignore[attr-defined]
    DeepSpeedEngine.save_checkpoint = saved
    DeepSpeedEngine.zero_nvme_offload_optimizer = lambda self: on_nvme(self) and \
        not isinstance(self.checkpoint_engine, CheckpointEngine)
