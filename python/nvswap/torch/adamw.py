# SPDX-License-Identifier: Apache-2.0
"""
AdamW with its state on the drive. Gradients are lent to the step; those of offloaded parameters are
added to the optimizer's as the backward makes them, so that they are never in memory together.
"""

from __future__ import annotations

import errno
import functools
import json
import operator
import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, TypeVar, overload

import torch

from nvswap.config import Config
from nvswap.errors import Error, invalid
from nvswap.optimizer import Group, GroupAdam, Optimizer
from nvswap.statistics import StepResult
from nvswap.torch.offload import FOR_DEVICES, Offloaded

# Of a closure: a number or a tensor.
Loss = TypeVar("Loss")

# What a group has besides settings; learning-rate schedulers keep initial_lr there.
_NO_SETTINGS = ("params", "param_names", "initial_lr")


class AdamW(torch.optim.Optimizer):
    """
    AdamW whose master weights and moments lie in the offload_optimizer block's store.

    Parameters
    ----------
    params : iterable of torch.nn.Parameter
        In host memory and contiguous: F32, BF16 or F16; or those of `offloaded`. One group. Frozen
        ones (`requires_grad` is false) have no state, and can't be stepped later.
    config : Config, str or dict
    lr, betas, eps, weight_decay : optional
        As in torch.optim.AdamW; they replace those of the configuration.
    offloaded : Offloaded, optional
        The module whose parameters are on the drive; new weights are written there.

    Raises
    ------
    nvswap.Error
        EINVAL: several groups, a setting that is not of AdamW, parameters that are elsewhere, or none
        of `offloaded`; in a step: a setting but the learning rate has changed. And those of nvswap.Optimizer.

    Notes
    -----
    Settings of the one group but the learning rate are fixed. state_dict() has these and the numbers
    of steps; the moments and master weights stay in the store, which `commit()` makes durable if it is
    kept. load_state_dict() takes it when the store has the state of that step. Over a kept store that
    has steps, the parameters get its weights when the optimizer is made, and all its steps count for
    each of them until load_state_dict().

    Gradients of offloaded parameters leave the backward for the store: `parameter.grad` is None, so
    torch.nn.utils.clip_grad_norm_ neither sees nor clips them. `gradient_clipping` of the
    configuration clips all.

    Dropping the last reference closes the store, as `close()` does; gradients then stay in
    `parameter.grad`.

    A step computes the weights from the master weights in the store. What else changes a weight
    after the optimizer was made (load_state_dict, `weight.mul_(0.5)`) lasts until the next step.
    """

    def __init__(self, params: Iterable[torch.nn.Parameter], config: Any, *, lr: float = 1e-3,
                 betas: Tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2, offloaded: Optional[Offloaded] = None) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        self._fixed = self._checked_settings(defaults)
        own = Config(config)
        own.parse(json.dumps({"optimizer": {"type": "AdamW", "params": dict(
            self._fixed, lr=float(self.param_groups[0]["lr"]))}}))
        self._offloaded = offloaded
        if offloaded is not None and offloaded.has_optimizer():
            raise Error(errno.EBUSY, "the offloaded module has an optimizer, which takes its gradients: "
                        "close() that one before making another")
        if offloaded is not None and not any(map(self._tensor_of, self.param_groups[0]["params"])):
            raise invalid("no parameter is of the module of `offloaded`, which would not be trained: "
                          "give the parameters of that module too, or leave out `offloaded`")
        # Each parameter is cut into groups of sub_group_size elements at most.
        self._pieces: List[Tuple[torch.nn.Parameter, int, int]] = []
        limit = int(own["zero_optimization.sub_group_size"])
        groups = []
        for index, parameter in enumerate(self.param_groups[0]["params"]):
            if not parameter.requires_grad:
                continue
            for offset in range(0, parameter.numel(), limit):
                numel = min(limit, parameter.numel() - offset)
                self._pieces.append((parameter, offset, numel))
                groups.append(self._group(index, parameter, offset, numel))
        # The optimizer's steps in which each group had no gradients.
        self._missed = [0] * len(groups)
        self._adam = GroupAdam(len(groups))
        self._set_missed(self._missed)
        self.optimizer = Optimizer(own, groups, update=self._adam,
                                   weights_final=self._write_weights if offloaded else None)
        self._stepped = {parameter for parameter, _, _ in self._pieces}
        # torch has hooks of a parameter outside of Python, where the collector finds no cycle.
        hook = functools.partial(_add_gradient, weakref.ref(self))
        self._hooks = [parameter.register_post_accumulate_grad_hook(hook)
                       for parameter in self._stepped if self._tensor_of(parameter) is not None]
        if self.optimizer.step_count:
            self._take_kept_weights()
        else:
            self._start_offloaded()
        # Where steps write new weights to.
        self._memory = {parameter: parameter.data_ptr() for parameter in self._stepped}
        if offloaded is not None:
            offloaded.optimizer = weakref.ref(self)

    def __reduce__(self) -> Any:
        raise TypeError("a nvswap.torch.AdamW can't be pickled or copied: save its state_dict()")

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Takes the one group that the constructor has; refuses others."""
        if self.param_groups:
            raise invalid("nvswap.torch.AdamW has one group of parameters")
        super().add_param_group(param_group)

    def _checked_settings(self, known: Iterable[str]) -> Dict[str, Any]:
        group, settings = self.param_groups[0], self._settings()
        for name, value in group.items():
            if name not in (*known, *_NO_SETTINGS) and value:
                raise invalid(f"nvswap.torch.AdamW has no setting {name}")
        if len(settings["betas"]) != 2:
            raise invalid(f"betas are two numbers, not {settings['betas']}")
        # Raises an error that names the setting.
        GroupAdam(1).set(0, lr=float(group["lr"]), **settings)
        return settings

    def _settings(self) -> Dict[str, Any]:
        """The settings of the one group without the learning rate."""
        group = self.param_groups[0]
        return {"betas": [float(beta) for beta in group["betas"]], "eps": float(group["eps"]),
                "weight_decay": float(group["weight_decay"])}

    def _set_missed(self, missed: List[int]) -> None:
        self._missed = missed
        for group, steps in enumerate(missed):
            self._adam.set(group, lr=None, missed=steps, **self._fixed)

    def _tensor_of(self, parameter: torch.nn.Parameter) -> Optional[str]:
        return self._offloaded.name_of(parameter) if self._offloaded else None

    def _described(self, parameter: torch.nn.Parameter) -> str:
        group = self.param_groups[0]
        index = [each is parameter for each in group["params"]].index(True)
        name = self._tensor_of(parameter) or group.get("param_names", {index: index})[index]
        return f"parameter {name}, of shape {list(parameter.shape)},"

    def _flat_gradient(self, parameter: torch.nn.Parameter,
                       gradient: torch.Tensor) -> torch.Tensor:
        if gradient.layout is not torch.strided:
            raise invalid(f"{self._described(parameter)} has sparse gradients: an Embedding takes "
                          "sparse=False")
        return gradient.contiguous().view(-1)

    def _group(self, index: int, parameter: torch.nn.Parameter, offset: int, numel: int) -> Group:
        name = f"{index}.{offset}"
        if self._tensor_of(parameter) is not None:
            return Group(name, None, numel, parameter.dtype)
        if parameter.device.type != "cpu":
            raise invalid(f"{self._described(parameter)} is on {parameter.device}, and not of `offloaded`: AdamW "
                          f"steps in host memory; {FOR_DEVICES}")
        if not parameter.is_contiguous():
            raise invalid(f"{self._described(parameter)} is not contiguous, and not of `offloaded`")
        return Group(name, parameter.data.view(-1)[offset:offset + numel])

    def _start_offloaded(self) -> None:
        """The master weights of offloaded parameters begin as these."""
        for group, (parameter, offset, numel) in enumerate(self._pieces):
            name = self._tensor_of(parameter)
            if name is None:
                continue
            piece = torch.empty(numel, dtype=parameter.dtype, device="cpu")
            assert self._offloaded is not None
            self._offloaded.engine.read_range(name, piece, offset * piece.element_size())
            self.optimizer.set_state(group, "master", piece.float())

    def _take_kept_weights(self) -> None:
        """Gives the parameters the weights of the last step that a kept store has."""
        if any(self._tensor_of(parameter) is None for parameter in self._stepped):
            self.optimizer.get_weights()
        for group, (parameter, _, numel) in enumerate(self._pieces):
            if self._tensor_of(parameter) is not None:
                master = torch.empty(numel, device="cpu")
                self.optimizer.get_state(group, "master", out=master)
                self._write_weights(group, 0, master.to(parameter.dtype))

    def _write_weights(self, group: int, offset: int, weights: Any) -> None:
        parameter, start, _ = self._pieces[group]
        name = self._tensor_of(parameter)
        if name is not None:
            assert self._offloaded is not None
            self._offloaded.engine.write_range(name, weights, (start + offset) * weights.itemsize)
            # For graphs of forwards before, as a change in memory.
            torch.autograd.graph.increment_version(parameter)

    def _add_gradient(self, parameter: torch.nn.Parameter) -> None:
        assert self._offloaded is not None
        self._offloaded.threads.begin_backward()
        # A backward that gives a parameter no gradient calls the hook too.
        if parameter.grad is None:
            return
        flat, parameter.grad = self._flat_gradient(parameter, parameter.grad), None
        for group, (owner, offset, numel) in enumerate(self._pieces):
            if owner is parameter:
                self.optimizer.add_gradients(group, flat[offset:offset + numel])

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], Loss]) -> Loss: ...

    def step(self, closure: Optional[Callable[[], Loss]] = None) -> Optional[Loss]:
        """
        Takes a step of all parameters that have gradients.

        Raises
        ------
        nvswap.Error
            EIO and others of the drive: the step is not finished; call it again, without a closure,
            before other gradients are computed. EINVAL: a setting but the learning rate has
            changed, a parameter has other memory, or gradients are sparse. And those of
            nvswap.Optimizer.step.
        """
        if self._settings() != self._fixed:
            raise invalid(f"the settings {self._fixed} can't change to {self._settings()}; "
                          "with OneCycleLR and CyclicLR: cycle_momentum=False")
        for parameter, memory in self._memory.items():
            if self._tensor_of(parameter) is None and parameter.data_ptr() != memory:
                raise invalid(f"{self._described(parameter)} has other memory than when the optimizer "
                              "was made, by offload(), load() or `.data =`: make a new one after that")
        loss: Optional[Loss] = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None and parameter not in self._stepped and parameter.numel():
                raise invalid(f"{self._described(parameter)} was frozen when the optimizer was "
                              "made: make a new one to train it")
        unfinished = self.optimizer.info()["unfinished"]
        for group, (parameter, offset, numel) in enumerate(self._pieces):
            # A step that failed has its gradients already.
            if parameter.grad is not None and not (unfinished and self._gradients(group) == "lent"):
                flat = self._flat_gradient(parameter, parameter.grad)
                self.optimizer.lend_gradients(group, flat[offset:offset + numel])
        without = [self._gradients(group) == "none" for group in range(len(self._pieces))]
        steps = self.optimizer.step_count
        try:
            self.result: StepResult = self.optimizer.step(lr=self.param_groups[0]["lr"])
        finally:
            # A step is counted also when weights could not be written to the parameters' engine.
            if self.optimizer.step_count > steps:
                self._set_missed([*map(operator.add, self._missed, without)])
        return loss

    def _gradients(self, group: int) -> str:
        """Those of the next step: none, lent, added or owed."""
        gradients: str = self.optimizer.group_info(group)["gradients"]
        return gradients

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients, those that were added included."""
        super().zero_grad(set_to_none)
        self.optimizer.clear_gradients()

    def state_dict(self) -> Dict[str, Any]:
        """The settings of the group, the number of the step, and the steps that each parameter, or
        piece of it in the store, was part of; the state is in the store."""
        step = self.optimizer.step_count
        return dict(super().state_dict(), nvswap={
            "step": step, "steps": [step - missed for missed in self._missed]})

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """
        Takes the learning rate, what schedulers keep in the group, and the steps of each parameter.

        Raises
        ------
        nvswap.Error
            EINVAL: it is of another optimizer, whose moments would be lost, or has other settings;
            ESTALE: the store has the state of another step, or of other pieces.
        """
        if "nvswap" not in state_dict:
            raise invalid("the state_dict is not of nvswap.torch.AdamW: its moments can't be "
                          "loaded")
        step, own = state_dict["nvswap"]["step"], self.optimizer.step_count
        if step != own:
            raise Error(errno.ESTALE, f"the state_dict is of step {step}, the store has the state "
                        f"of step {own}: open the kept store that was committed then")
        # Those of versions before have the number of the step alone.
        steps = state_dict["nvswap"].get("steps", [step] * len(self._pieces))
        if len(steps) != len(self._pieces):
            raise Error(errno.ESTALE, f"the state_dict has steps of {len(steps)} pieces, the store "
                        f"{len(self._pieces)}")
        before = self.param_groups
        super().load_state_dict(state_dict)
        settings = self._settings()
        if settings != self._fixed:
            self.param_groups = before
            raise invalid(f"the state_dict has settings {settings}, the optimizer {self._fixed}")
        self._set_missed([step - each for each in steps])

    def commit(self) -> None:
        """Makes the state of a kept store durable."""
        self.optimizer.commit()

    def close(self) -> None:
        """Closes the state's store; the parameters keep their weights."""
        for hook in self._hooks:
            hook.remove()
        self.optimizer.close()


def _add_gradient(adamw: "weakref.ref[AdamW]", parameter: torch.nn.Parameter) -> None:
    own = adamw()
    if own is not None:
        own._add_gradient(parameter)
