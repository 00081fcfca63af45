# SPDX-License-Identifier: Apache-2.0
"""
The optimizer of a rank: one group for each of DeepSpeed's sub-groups, in a store that no other rank or
job has. Relies on the document that DeepSpeed read; optimizer and fp16 settings come from DeepSpeed's
own objects at each step, so none of them are taken from the document.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List

from nvswap.config import Config
from nvswap.deepspeed.swappers.names import NamingOptimizer
from nvswap.deepspeed.swappers.store import end_with_job, on_own_store
from nvswap.optimizer import Group, GroupRule

_NUMEL_LEAST = 6144


def open_optimizer(document: Dict[str, Any], rank: int, groups: List[Group], rule: GroupRule,
                   weights_final: Callable[[int, int, Any], None]) -> NamingOptimizer:
    """
    Parameters
    ----------
    document : dict
        The blocks_of() DeepSpeed's configuration.
    rank : int
        Of this process in the job; "nvswap.rank" in the document goes before it.
    """
    config = _config_of(document, max(int(group.numel or 0) for group in groups))
    return on_own_store(
        config, document, "optimizer", rank,
        lambda: NamingOptimizer(config, groups, update=rule, weights_final=weights_final))


def _config_of(document: Dict[str, Any], largest_numel: int) -> Config:
    zero = document["zero_optimization"]
    blocks = {"zero_optimization": {"offload_optimizer": zero["offload_optimizer"]}}
    blocks.update({key: document[key] for key in ("aio", "nvswap") if document.get(key)})
    config = Config(blocks)
    end_with_job(config)
    # DeepSpeed ends a sub-group with the parameter that passes sub_group_size. The pool, which follows
    # from it, holds two of the smallest tiles.
    config["zero_optimization.sub_group_size"] = max(largest_numel, _NUMEL_LEAST)
    return config
