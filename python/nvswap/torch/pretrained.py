# SPDX-License-Identifier: Apache-2.0
"""Models of transformers from a folder, whose weights are read where they lie."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Dict, Optional

import torch

from nvswap.dtypes import torch_dtype
from nvswap.errors import invalid
from nvswap.torch.offload import offload
from nvswap.weights import headers

# What the class's own from_pretrained() takes and a model that stays in its files has no use for.
_OF_MEMORY = {"device_map", "max_memory", "offload_folder", "offload_buffers", "state_dict", "force_download",
              "output_loading_info", "quantization_config", "ignore_mismatched_sizes"}
# What it takes and is so in any case.
_IN_ANY_CASE = {"variant", "low_cpu_mem_usage", "local_files_only", "use_safetensors", "token", "weights_only"}
_PLACES = {"subfolder", "revision", "cache_dir"}


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
        With config.json and .safetensors files, as save_pretrained makes it; or the name of a model that is in
        the hub's cache, as "meta-llama/Llama-3.1-8B". Nothing is downloaded.
    config, device, device_memory, smallest, experts_memory
        As for :func:`nvswap.torch.offload` with `weights`.
    dtype : torch.dtype or str, optional
        Of the model; by default that of config.json, or else of the files. Parameters that have another type
        in the files are converted each time that they are read.
    **more
        As for the class's own from_pretrained(): values of config.json, such as num_hidden_layers=2,
        attn_implementation, trust_remote_code, key_mapping, subfolder, revision and cache_dir. torch_dtype is
        `dtype`.

    Returns
    -------
    transformers.PreTrainedModel
        In eval mode. Its `offloaded` is what offload() returns: ``model.offloaded.load()`` brings the
        parameters into memory, ``model.offloaded.engine.close()`` closes the files.

    Raises
    ------
    Error
        EINVAL: the weights are quantized, or don't fit the class; an argument is one of loading into memory,
        such as device_map; `folder` is a file; and those of offload().
    OSError
        There is no such folder or model in the cache, or it has no config.json.
    """
    import transformers  # pylint: disable=import-outside-toplevel,import-error

    if more.get("variant") is not None:
        raise invalid("variant: make the model with torch.device('meta'), and give nvswap.torch.offload(model, "
                      "weights=) the .safetensors files of that variant")
    more = {name: each for name, each in more.items() if name not in _OF_MEMORY or each not in (None, False)}
    of_memory = sorted(_OF_MEMORY & more.keys())
    if of_memory:
        raise invalid(f"{', '.join(of_memory)}: leave it out, as the weights stay in the files of the folder. device= "
                      "says where forwards compute, config= has the pool of memory, and dtype= the type")
    if isinstance(config, transformers.PreTrainedConfig):
        raise invalid("config= is nvswap's, which has the pool of memory: give values of the model's config.json by "
                      "their names, such as num_hidden_layers=2")
    if more.get("use_safetensors") is False:
        raise invalid("use_safetensors=False: only .safetensors files are read where they lie; leave it out")
    path = _folder_of(folder, {each: more.pop(each) for each in _PLACES & more.keys()})
    old_dtype = more.pop("torch_dtype", None)
    dtype = old_dtype if dtype is None else dtype
    mapping = more.pop("key_mapping", None)
    more = {name: each for name, each in more.items() if name not in _IN_ANY_CASE}
    remote = {"trust_remote_code": more.get("trust_remote_code")} if hasattr(cls, "from_config") else {}
    settings, more = transformers.AutoConfig.from_pretrained(path, local_files_only=True, return_unused_kwargs=True,
                                                             **more)
    if getattr(settings, "quantization_config", None) is not None:
        raise invalid(f"the weights in {path} are quantized, which nvswap does not compute with: use those that "
                      "they were made of")
    dtype = getattr(settings, "dtype", None) if dtype in (None, "auto") else dtype
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    make = getattr(cls, "from_config", None) or cls._from_config
    with torch.device("meta"):
        model = make(settings, dtype=dtype or _first_dtype(path), **remote, **more)
    if mapping is not None:
        model._checkpoint_conversion_mapping = mapping
    if os.path.exists(os.path.join(path, "generation_config.json")) and model.can_generate():
        model.generation_config = transformers.GenerationConfig.from_pretrained(path, local_files_only=True)
    model.eval()
    model.offloaded = offload(model, config, device=device, device_memory=device_memory, smallest=smallest,
                              weights=path, convert=True, experts_memory=experts_memory)
    return model


def _folder_of(folder: Any, places: Dict[str, Any]) -> str:
    """Where config.json and the weights lie, by transformers' own rules."""
    from transformers.utils import cached_file  # pylint: disable=import-outside-toplevel,import-error
    path = os.fspath(folder)
    if os.path.isfile(path):
        raise invalid(f"{path} is a file: give the folder that has it and config.json")
    found = cached_file(path, "config.json", local_files_only=True, **places)
    if found is None:
        raise invalid(f"{path} has no config.json; adapters go over a model by peft.PeftModel.from_pretrained(model, "
                      "folder)")
    path = os.path.dirname(found)
    names = os.listdir(path)
    if not any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names) and any(
            name.endswith(".bin") for name in names):
        raise invalid(f"{path} has its weights in .bin files, which are not read where they lie: save the model again "
                      "by save_pretrained(), which writes .safetensors files")
    return path


def _first_dtype(path: str) -> torch.dtype:
    """That of the first tensor of floating-point numbers, by the headers."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # Opening the files says why.
        for header, _ in headers([path]):
            for name, each in header.items():
                if name != "__metadata__" and torch_dtype(each["dtype"]).is_floating_point:
                    return torch_dtype(each["dtype"])  # type: ignore[no-any-return]
    return torch.float32
