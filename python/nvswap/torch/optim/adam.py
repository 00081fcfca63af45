# SPDX-License-Identifier: Apache-2.0
"""AdamW and Adam of torch.optim with their state on the drive."""

from __future__ import annotations

from typing import Any, Optional, Tuple

from nvswap.torch.offload import Offloaded
from nvswap.torch.optim.optimizer import Number, StoredOptimizer


class AdamW(StoredOptimizer):
    """
    torch.optim.AdamW whose state lies in the offload_optimizer block's store.

    Parameters
    ----------
    params : iterable of torch.nn.Parameter, of (name, parameter) or of dict
        As torch.optim.AdamW has them, with groups and their own settings. F32, BF16 or F16 and
        contiguous, in host memory or on a device, DTensors too; or those of `offloaded`.
    lr, betas, eps, weight_decay, maximize : optional
        As in torch.optim.AdamW.
    amsgrad, capturable, differentiable : bool
        False.
    foreach, fused : bool, optional
        Have no effect.
    config : Config, dict, str or os.PathLike, optional
        A directory on the drive; or a DeepSpeed JSON file or its contents, of which the numbers of
        the "optimizer" block are not used. The variable NVSWAP_CONFIG of the environment by default.
    offloaded : Offloaded, optional
        The module whose parameters are on the drive; new weights are written there.
    shard : bool or torch.distributed.ProcessGroup, optional
        Divides the state among the ranks of the default group, or of this one, which have the same
        parameters and gradients, as those of DistributedDataParallel do.
    state : str, optional
        The format in which the store has the state: "fp32", "split", "bf16" or "8bit". By default what
        the configuration has as "nvswap.optimizer_state", or "fp32". docs/state-formats.md compares them.

    Attributes
    ----------
    stores : list of State
        One, until a parameter is added or unfrozen; of `shard`, those with parameters of this rank.
    result : StepResult
        Of the last step: I/O, tiles and processor time of all its stores, the rest of the last one.

    Raises
    ------
    nvswap.Error
        EINVAL: there is no configuration, a setting is out of bounds or not False, a parameter is not
        contiguous or has no memory, or none is of `offloaded`; or `shard` without a process group, with
        `offloaded` or with DTensors. EBUSY: another optimizer has parameters of `offloaded`. ESTALE: the kept stores of
        `shard` are of another number of ranks, or of different steps. And those of nvswap.Optimizer.

    Notes
    -----
    Each rank of torch.distributed has a store of its own, with the state of its parameters or shards.

    The settings of groups may change between steps, as schedulers change them. A parameter that is
    frozen has no state before its first gradient; it and those of add_param_group() get a store of
    their own, which is merged with others that have no more elements where there are more than four.
    Kept ones are below the first one's path, and are not merged.

    state[parameter] has "step" alone. state_dict() has what that of torch.optim.AdamW has, and the
    "master" of a parameter of 16 bits; either one loads the other's. Its tensors lie in files without
    a name on the drive, and take memory as the system has it. With "nvswap": {"keep": true} they stay
    in the store instead, which `commit()` makes durable, and state_dict() has the numbers of steps;
    the parameters get the weights of a kept store when the optimizer is made.

    A weight that the program changes between steps (load_state_dict, `weight.mul_(0.5)`) is stepped
    from there, and so is any change of one in host memory. Of one on a device or a shard, a change in
    place by `weight.data` is not seen and lasts until the next step, and so does one of an offloaded
    parameter.

    Gradients of offloaded parameters leave the backward for the store. `parameter.grad` stands for one
    there: clip_grad_norm_ and a GradScaler take it, other operations are refused, and a step sets it to
    None. Setting that of all to None drops them.

    With `shard` each parameter's state is on one rank, which steps it and sends the new weights to the
    others. All ranks make these calls: the constructor, step(), add_param_group(), load_state_dict(),
    commit() and consolidate_state_dict(). An error of one of them is an error on each rank.
    state_dict() has this rank's share of the moments and the steps of all parameters, as
    torch.distributed.checkpoint saves and loads it, also for another number of ranks.

    Dropping the last reference closes the store, as `close()` does and the interpreter's exit; gradients
    then stay in `parameter.grad`.
    """

    _decoupled = True
    _rule = "adam"
    _settings = ("lr", "eps", "weight_decay")

    def __init__(self, params: Any, lr: Number = 1e-3,
                 betas: Tuple[Number, Number] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False,
                 foreach: Optional[bool] = None, capturable: bool = False,
                 differentiable: bool = False, fused: Optional[bool] = None, config: Any = None,
                 offloaded: Optional[Offloaded] = None, shard: Any = None,
                 state: Optional[str] = None) -> None:
        self._begin(params, dict(
            lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad,
            maximize=maximize, foreach=foreach, capturable=capturable,
            differentiable=differentiable, fused=fused,
            decoupled_weight_decay=self._decoupled), config, offloaded, shard, state)


class Adam(AdamW):
    """torch.optim.Adam whose state lies in the offload_optimizer block's store: see :class:`AdamW`,
    from which it differs as torch's do."""

    def __init__(self, params: Any, lr: Number = 1e-3,
                 betas: Tuple[Number, Number] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0, amsgrad: bool = False, *,
                 foreach: Optional[bool] = None, maximize: bool = False, capturable: bool = False,
                 differentiable: bool = False, fused: Optional[bool] = None,
                 decoupled_weight_decay: bool = False, config: Any = None,
                 offloaded: Optional[Offloaded] = None, shard: Any = None,
                 state: Optional[str] = None) -> None:
        self._decoupled = decoupled_weight_decay
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, foreach=foreach,
                         capturable=capturable, differentiable=differentiable, fused=fused, config=config,
                         offloaded=offloaded, shard=shard, state=state)
