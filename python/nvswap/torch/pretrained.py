# SPDX-License-Identifier: Apache-2.0
"""Models of transformers from a folder, whose weights are read where they lie."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Optional

import torch

from nvswap.dtypes import torch_dtype
from nvswap.errors import invalid
from nvswap.torch.offload import offload
from nvswap.weights import headers

# What the class's own from_pretrained() takes and a model that stays in its files has no use for.
_OF_MEMORY = {"device_map", "max_memory", "offload_folder", "offload_buffers", "low_cpu_mem_usage", "use_safetensors",
              "state_dict", "cache_dir", "revision", "token", "local_files_only", "force_download", "subfolder",
              "variant", "output_loading_info", "quantization_config", "ignore_mismatched_sizes", "torch_dtype"}


def from_pretrained(cls: Any, folder: Any, *, config: Any = None, dtype: Any = None, device: Any = None,
                    device_memory: Optional[int] = None, smallest: int = 0, experts_memory: int = 0,
                    **more: Any) -> Any:
    """
    Makes a model of transformers whose parameters are read in the files of a folder, as
    ``cls.from_pretrained(folder)`` makes one in memory.

    Parameters
    ----------
    cls : type
        A class of transformers 5 or newer, such as AutoModelForCausalLM or LlamaForCausalLM.
    folder : str or os.PathLike
        With config.json and .safetensors files, as save_pretrained and the hub's cache have it.
    config, device, device_memory, smallest, experts_memory
        As for :func:`nvswap.torch.offload` with `weights`.
    dtype : torch.dtype or str, optional
        Of the model; by default that of config.json, or else of the files. Parameters that have another type
        in the files are converted each time that they are read.
    **more
        For the class's from_config, such as attn_implementation="eager".

    Returns
    -------
    transformers.PreTrainedModel
        In eval mode. Its `offloaded` is what offload() returns: ``model.offloaded.load()`` brings the
        parameters into memory, ``model.offloaded.engine.close()`` closes the files.

    Raises
    ------
    Error
        EINVAL: the weights are quantized, or don't fit the class; an argument is one of loading into memory,
        such as device_map; and those of offload().
    OSError
        The folder has no config.json.
    """
    import transformers  # pylint: disable=import-outside-toplevel,import-error

    of_memory = sorted(_OF_MEMORY & more.keys())
    if of_memory:
        raise invalid(f"{', '.join(of_memory)}: leave it out, as the weights stay in the files of the folder. device= "
                      "says where forwards compute, config= has the pool of memory, and dtype= the type")
    path = os.fspath(folder)
    settings = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    if getattr(settings, "quantization_config", None) is not None:
        raise invalid(f"the weights in {path} are quantized, which nvswap does not compute with: use those that "
                      "they were made of")
    dtype = getattr(settings, "dtype", None) if dtype in (None, "auto") else dtype
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    make = getattr(cls, "from_config", None) or cls._from_config
    with torch.device("meta"):
        model = make(settings, dtype=dtype or _first_dtype(path), **more)
    if os.path.exists(os.path.join(path, "generation_config.json")) and model.can_generate():
        model.generation_config = transformers.GenerationConfig.from_pretrained(path, local_files_only=True)
    model.eval()
    model.offloaded = offload(model, config, device=device, device_memory=device_memory, smallest=smallest,
                              weights=path, convert=True, experts_memory=experts_memory)
    return model


def _first_dtype(path: str) -> torch.dtype:
    """That of the first tensor of floating-point numbers, by the headers."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # Opening the files says why.
        for header, _ in headers([path]):
            for name, each in header.items():
                if name != "__metadata__" and torch_dtype(each["dtype"]).is_floating_point:
                    return torch_dtype(each["dtype"])  # type: ignore[no-any-return]
    return torch.float32
