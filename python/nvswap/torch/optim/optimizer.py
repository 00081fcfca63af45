# SPDX-License-Identifier: Apache-2.0
"""
Optimizers of torch with their state on the drive, of any rule. Gradients are lent to the step; those of
offloaded parameters are added to the store's as the backward makes them, so that they are never in
memory together.
"""

from __future__ import annotations

import errno
import functools
import os
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple, Union, overload

import torch

from nvswap.aio import Aio
from nvswap.config import Config
from nvswap.errors import Error, invalid
from nvswap.optimizer import STATES, GroupRule
from nvswap.statistics import StepResult
from nvswap.torch.absent import is_offloaded
from nvswap.torch.gradients import StoredGradient
from nvswap.torch.local import is_sharded, local, local_gradient
from nvswap.torch.offload import Offloaded
from nvswap.torch.optim.numbered import Loss, NumberedOptimizer
from nvswap.torch.optim.ranks import Ranks
from nvswap.torch.settings import settings_of
from nvswap.torch.state import State, mapped, parts_of

# Of a closure: a number or a tensor.
Number = Union[float, torch.Tensor]

# Sets that are not merged: it takes the drive's time and, meanwhile, its space.
_FEW_SETS = 4


class _Set:
    """Parameters that got a store together: on each rank its share of them, if it has one."""

    def __init__(self, parameters: List[torch.nn.Parameter], store: Optional[State], steps: int) -> None:
        self.parameters, self.store, self.steps = parameters, store, steps
        self.numel = sum(parameter.numel() for parameter in parameters)
        self._made = {parameter: (parameter.numel(), parameter.dtype) for parameter in parameters}

    def is_as_made(self, parameter: torch.nn.Parameter) -> bool:
        """Whether it can have new weights as it is."""
        return (parameter.numel(), parameter.dtype) == self._made[parameter] and parameter.is_contiguous()


class StoredOptimizer(NumberedOptimizer):
    """An optimizer of torch whose state lies in the offload_optimizer block's store. :class:`nvswap.torch.AdamW` says
    what those of all rules have in common."""

    _decoupled = False
    _rule: str  # of nvswap.GroupRule
    _settings: Tuple[str, ...]  # numbers of a group

    def _begin(self, params: Any, defaults: Dict[str, Any], config: Any, offloaded: Optional[Offloaded],
               shard: Any, state: Optional[str] = None) -> None:
        self._ranks = Ranks(shard)
        self._made = False
        self._ranks.all("the constructor", lambda: self._make(params, defaults, config, offloaded, state))

    def _make(self, params: Any, defaults: Dict[str, Any], config: Any,
              offloaded: Optional[Offloaded], state: Optional[str]) -> None:
        self._config = settings_of(config)
        if state is not None:
            self._config["nvswap.optimizer_state"] = state
        self._offloaded = offloaded
        if offloaded is not None and self._ranks.sharded:
            raise invalid("shard= divides the state of parameters in memory, and not of an offloaded module: "
                          "leave it out, and each rank has all of the state")
        # Stores are stepped one after another, by the same workers.
        self._aio = Aio(self._config)
        self._sets: List[_Set] = []
        self.stores: List[State] = []
        # The store whose step failed; those before it have been stepped.
        self._next = 0
        self._of_step: Optional[StepResult] = None  # the result of those that were
        self._sum_squares: Optional[float] = None
        self._has_numbers = False
        self._hooks: List[Any] = []
        # Which of its changes each parameter has had in its master.
        self._versions: Dict[torch.nn.Parameter, Tuple[int, int]] = {}
        # Those that this rank has stepped and not sent.
        self._stepped: List[torch.nn.Parameter] = []
        # State of other ranks, where consolidate_state_dict() has brought it since the last step.
        self._consolidated: Optional[Dict[torch.nn.Parameter, Dict[str, torch.Tensor]]] = None
        super().__init__(params, defaults)
        if offloaded is not None:
            offloaded.check_optimizer(self._numbers())
        self._store_uncovered()
        self._made = True
        if offloaded is not None:
            offloaded.optimizers.append(weakref.ref(self))

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Adds a group; its parameters get a store of their own. After an error, which is one of the constructor, it is
        not added."""
        def add() -> None:
            super(StoredOptimizer, self).add_param_group(param_group)
            try:
                self._numbers_of(self.param_groups[-1])
                if self._offloaded is not None:
                    self._offloaded.refuse_others(self, self.param_groups[-1]["params"])
                if self._made:
                    self._store_uncovered()
            except BaseException:
                self.param_groups.pop()
                raise

        if self._made:
            self._ranks.all("add_param_group()", add)
        else:
            add()

    # ---- Parameters

    def _described(self, parameter: torch.nn.Parameter) -> str:
        name = self._tensor_of(parameter)
        for group in self.param_groups:
            named = group.get("param_names", ())
            name = name or next((each for each, own in zip(named, group["params"])
                                 if own is parameter), None)
        return f"parameter {name or self._numbers()[parameter]}, of shape {list(parameter.shape)},"

    def _store_of(self, parameter: torch.nn.Parameter) -> Optional[State]:
        return next((store for store in self.stores if parameter in store.pieces), None)

    def _store_uncovered(self) -> None:
        """Makes a store for the trainable parameters that are in none."""
        self._make_set([parameter for parameter in self._numbers() if parameter.requires_grad])

    def _make_set(self, parameters: List[torch.nn.Parameter]) -> None:
        """Makes a store for those of the parameters that are in none."""
        parameters = [parameter for parameter in parameters if parameter not in self._ranks.owners]
        if not any(local(parameter).numel() for parameter in parameters):
            return
        owners, numbers = self._ranks.assign(parameters), self._numbers()
        opened: List[State] = []

        def open_own() -> Tuple[int, int]:
            for parameter in parameters:
                self._check(parameter)
            own = [parameter for parameter in parameters if owners[parameter] == self._ranks.rank]
            if not any(local(parameter).numel() for parameter in own):
                return -1, -1
            opened.append(self._open_store(own, bool(self._sets)))
            info = opened[0].optimizer.info()
            return info["step"], info["step"] + info["unfinished"]

        try:
            told = self._ranks.all(f"a store of parameters {[numbers[each] for each in parameters]}", open_own)
            steps = {last for _, last in told if last >= 0}
            if len(steps) > 1:
                raise Error(errno.ESTALE, "the kept stores of the ranks have the state of different steps, "
                            f"{sorted(steps)}: bring all of them back from one copy, or load a checkpoint "
                            "into new ones")
        except BaseException:
            for store in opened:
                store.optimizer.abandon()
            raise
        self._ranks.owners.update(owners)
        self._sets.append(_Set(parameters, opened[0] if opened else None, max(steps)))
        self.stores += opened
        # torch has hooks of a parameter outside of Python, where the collector finds no cycle.
        hook = functools.partial(_add_gradient, weakref.ref(self))
        for store in opened:
            for parameter in store.pieces:
                if parameter in store.stored:
                    parameter.grad = StoredGradient(store, parameter)
                if self._tensor_of(parameter) is not None:
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))
        if max(steps):
            self._ranks.send(parameters)
            for parameter in parameters:
                # Of those that an unfinished step has not counted yet, 0 is no state.
                if told[owners[parameter]][0] > 0:
                    self._set_steps(parameter, told[owners[parameter]][0])
        self._versions.update((parameter, _version_of(parameter)) for parameter in parameters)
        self._merge_sets()

    def _merge_sets(self) -> None:
        """Merges sets that came after others of no more elements, where there are several: each store has a pool and
        threads, and there are as many as the logarithm of the parameters. What is moved so is moved as often at
        most."""
        while len(self._sets) > _FEW_SETS and self._sets[-2].numel <= self._sets[-1].numel and not (
                self._config["nvswap.keep"] or self._config["fp16.enabled"]
                or any(store.stored for store in self.stores)):
            merged: List[State] = []
            try:
                self._ranks.all("merging stores", functools.partial(self._open_merged, merged))
            except Error:
                # They stay as they are, until others are added.
                for store in merged:
                    store.optimizer.abandon()
                return
            last = self._sets[-2:]
            self._sets[-2:] = [_Set([each for own in last for each in own.parameters], merged[0] if merged else None,
                                    max(own.steps for own in last))]
            self.stores = [own.store for own in self._sets if own.store]
            for own in last:
                if own.store:
                    own.store.optimizer.close()

    def _open_merged(self, merged: List[State]) -> None:
        """Appends a store with the state of the last two sets, if this rank has some of it."""
        if self._finishes():
            raise Error(errno.EBUSY, "a step has failed and is not finished")
        stores = [own.store for own in self._sets[-2:] if own.store]
        if not stores:
            return
        own = [parameter for store in stores for parameter in store.pieces]
        merged.append(self._open_store(own, len(self._sets) > 2))
        steps = max(store.optimizer.step_count for store in stores)
        if steps:
            for store in stores:
                for parameter in store.pieces:
                    merged[0].set_values(parameter, {
                        part: store.copied(parameter, part) for part in (*STATES[self._rule], "master")})
            merged[0].optimizer.step_count = steps

    def _check(self, parameter: torch.nn.Parameter) -> None:
        """Refuses a parameter that can't have its state in a store."""
        if parameter.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise invalid(f"{self._described(parameter)} is {parameter.dtype}: parameters are float32, bfloat16 or "
                          "float16. Convert it, or give it to an optimizer of torch.optim")
        if self._tensor_of(parameter) is not None:
            return
        if parameter.is_meta:
            raise invalid(f"{self._described(parameter)} is on meta, and not of `offloaded`: give it memory first, "
                          "or what offload() has returned as offloaded=")
        if is_sharded(parameter) and self._ranks.sharded:
            raise invalid(f"{self._described(parameter)} is a shard of fully_shard or tensor parallelism, whose "
                          "state each rank has its part of: leave shard= out")
        if is_sharded(parameter) and (self._config["gradient_clipping"] or self._config["fp16.enabled"]):
            raise invalid(f"{self._described(parameter)} is a shard, and gradient_clipping and fp16 of the "
                          "configuration go by this rank's gradients alone: leave them out, and use "
                          "torch.nn.utils.clip_grad_norm_ and torch.amp.GradScaler")
        if is_offloaded(parameter):
            raise invalid(f"{self._described(parameter)} is of an offloaded module: give what offload() has "
                          "returned as offloaded=, and each such module an optimizer of its own")
        if not local(parameter).is_contiguous():
            raise invalid(f"{self._described(parameter)} is not contiguous: make it so before the optimizer, by "
                          "parameter.data = parameter.data.contiguous(), or offload() its module")

    def _open_store(self, parameters: List[torch.nn.Parameter], added: bool) -> State:
        config, numbers = Config(self._config), self._numbers()
        config["optimizer.params.initial_accumulator_value"] = self.defaults.get("initial_accumulator_value", 0)
        if added:
            below = f"added.{len(self._sets)}"
            paths = [os.path.join(path, below) for path in self._config.paths("optimizer")]
            if paths and self._config["nvswap.keep"]:
                for path in paths:
                    os.makedirs(path, exist_ok=True)
                config.set_paths("optimizer", paths)
            # A pool for these parameters alone.
            config["zero_optimization.sub_group_size"] = min(
                int(config["zero_optimization.sub_group_size"]),
                max(65536, *(8 * local(parameter).numel() for parameter in parameters)))
        try:
            return State(config, {parameter: str(numbers[parameter]) for parameter in parameters},
                         self._offloaded, self._aio, self._rule)
        except Error as error:
            if error.errno != errno.ESTALE or not self._ranks.sharded:
                raise
            raise Error(errno.ESTALE, f"{error.strerror}; a rank's share is that of {self._ranks.count} ranks: "
                        "resume with as many as before, or make new stores and load what "
                        "consolidate_state_dict() has brought to one rank", error.tensor, error.path) from error

    def _set_steps(self, parameter: torch.nn.Parameter, steps: float) -> None:
        self.state[parameter]["step"] = torch.tensor(float(steps), device="cpu")

    def _steps(self, parameter: torch.nn.Parameter) -> int:
        return int(self.state[parameter]["step"]) if parameter in self.state else 0

    # ---- Gradients and steps

    def _flat_gradient(self, parameter: torch.nn.Parameter,
                       gradient: torch.Tensor) -> torch.Tensor:
        if gradient.layout is not torch.strided:
            raise invalid(f"{self._described(parameter)} has sparse gradients: an Embedding takes "
                          "sparse=False")
        return local_gradient(gradient, parameter).contiguous().view(-1)

    def _add_gradient(self, parameter: torch.nn.Parameter) -> None:
        assert self._offloaded is not None
        self._offloaded.threads.begin_backward()
        # A backward that gives a parameter no gradient calls the hook too, and so does one that has
        # added to what is in the store.
        if parameter.grad is None or isinstance(parameter.grad, StoredGradient):
            return
        store = self._store_of(parameter)
        assert store is not None
        _drop_replaced(store)
        store.add_gradient(parameter, self._flat_gradient(parameter, parameter.grad))
        parameter.grad = StoredGradient(store, parameter)

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
            before other gradients are computed. EINVAL: a setting is out of bounds, a parameter has
            become another, gradients are sparse, or a closure is given to a step that is to be
            finished. And those of nvswap.Optimizer.step.
        """
        finishes = any(self._ranks.all("step()", self._follow_memory))
        loss: Optional[Loss] = None

        def begin() -> Optional[float]:
            nonlocal loss
            loss = self._loss(closure, finishes)
            return self._begin_step(finishes)

        sums = self._ranks.all("the gradients of step()", begin)
        if not finishes:
            self._sum_squares = None if sums[0] is None else sum(sums)
        self._consolidated = None
        stepped = self._ranks.all("the new weights of step()", self._step_stores)
        parameters = list(self._numbers())
        for rank, (of_rank, steps) in enumerate(stepped):
            for number, count in of_rank.items():
                if rank != self._ranks.rank:
                    self._set_steps(parameters[number], count)
            for own, count in zip(self._sets, steps):
                own.steps = max(own.steps, count)
        self._ranks.send([parameters[number] for of_rank, _ in stepped for number in of_rank])
        self._stepped.clear()
        self._next = 0
        self._merge_sets()
        return loss

    def _follow_memory(self) -> bool:
        """Follows parameters that have moved, and returns whether step() is to finish one that failed."""
        others = [store.follow_memory() for store in self.stores]
        others += [parameter for own in self._sets for parameter in own.parameters
                   if self._ranks.owners[parameter] != self._ranks.rank and not own.is_as_made(parameter)]
        for other in others:
            if other is not None:
                raise invalid(f"{self._described(other)} has become another since the optimizer was made, by "
                              "offload(), park() or a conversion: call unpark(), or make the optimizer after that")
        return self._finishes()

    def _begin_step(self, finishes: bool) -> Optional[float]:
        """Gives the stores what the step needs; returns the sum of squares of this rank's gradients, if the step
        clips or scales by that of all."""
        if not finishes:
            self._prepare()
        # That of an earlier run is finished with the numbers of this one.
        if not finishes or not self._has_numbers:
            self._set_numbers()
        for store in self.stores[self._next:]:
            store.lend_gradients({
                parameter: self._flat_gradient(parameter, parameter.grad) for parameter in store.pieces
                if parameter.grad is not None and not isinstance(parameter.grad, StoredGradient)})
        return None if finishes else self._sum_of_all()

    def _step_stores(self) -> Tuple[Dict[int, int], List[int]]:
        """Steps this rank's stores; returns the steps of the parameters that have new weights, by number, and of
        the sets."""
        while self._next < len(self.stores):
            self._step_store(self.stores[self._next])
        numbers = self._numbers()
        return ({numbers[parameter]: self._steps(parameter) for parameter in self._stepped},
                [own.store.optimizer.step_count if own.store else 0 for own in self._sets])

    def _finishes(self) -> bool:
        """Whether step() is to finish one that failed."""
        return self._next > 0 or any(store.optimizer.info()["unfinished"] for store in self.stores)

    def _prepare(self) -> None:
        """Makes stores and masters be those of the parameters that have gradients."""
        for store in self.stores:
            _drop_replaced(store)
        self._make_set([parameter for parameter in self._numbers()
                        if parameter.grad is not None and local(parameter).numel()])
        for store in self.stores:
            for parameter in store.pieces:
                if parameter.grad is not None and not store.steps_from_memory(parameter) and \
                        self._is_changed(parameter):
                    store.take_changes(parameter)
                    self._versions[parameter] = _version_of(parameter)
                    if self._offloaded is not None:
                        self._offloaded.written.discard(parameter)

    def _is_changed(self, parameter: torch.nn.Parameter) -> bool:
        """Whether the program has changed the weights since the masters were made of them."""
        if self._tensor_of(parameter) is None:
            return self._versions[parameter] != _version_of(parameter)
        # A forward that changes an offloaded parameter does so until the pool needs the room.
        return self._offloaded is not None and parameter in self._offloaded.written

    def _set_numbers(self) -> None:
        numbers = {parameter: own for group in self.param_groups for own in [self._numbers_of(group)]
                   for parameter in group["params"]}
        for store in self.stores:
            steps = store.optimizer.step_count
            for parameter in store.pieces:
                store.set_numbers(parameter, steps - self._steps(parameter), **numbers[parameter])
        self._has_numbers = True

    def _sum_of_all(self) -> Optional[float]:
        """Of the gradients of all stores, by which each one clips and scales; None: the one that there is has
        them all."""
        scaled = any(factor != 1 for store in self.stores for factor in store.stored.values())
        if not (len(self.stores) > 1 or scaled or self._ranks.sharded) or not (
                self._config["gradient_clipping"] or self._config["fp16.enabled"]):
            return None
        return sum(store.sum_squares() for store in self.stores)

    def _step_store(self, store: State) -> None:
        stepped, steps = store.with_gradients(), store.optimizer.step_count
        ended, before = False, self._of_step if self._next else None
        self._of_step = before
        try:
            result = store.step(self._sum_squares)
            if before:
                result["io"] = {key: value + before["io"][key] for key, value in result["io"].items()}
                result["cpu_ns"] += before["cpu_ns"]
                result["tiles"] += before["tiles"]
            self._of_step = result
            self.result: StepResult = result
            ended = True
        finally:
            # A step is counted also when weights could not be written to the parameters' engine.
            counted = store.optimizer.step_count > steps
            if ended or counted:
                store.forget_gradients()
                # Another store or rank may fail, and this one is not stepped again.
                self._next += 1
            if counted:
                self._stepped += stepped
                for parameter in stepped:
                    self._set_steps(parameter, self._steps(parameter) + 1)
                    # Graphs of forwards before can't go backward, as after a change in memory.
                    torch.autograd.graph.increment_version(parameter)
                    self._versions[parameter] = _version_of(parameter)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients, those that were added included."""
        for store in self.stores:
            store.clear_gradients()
        super().zero_grad(set_to_none)
        self._next = 0

    # ---- State

    def _refuse_torn(self) -> None:
        """Refuses to read state of which a failed step has updated a part."""
        if 0 < self._next < len(self.stores) or any(store.optimizer.info()["unfinished"] for store in self.stores):
            raise Error(errno.EBUSY, "a step has failed and is not finished: call step() first")

    def state_dict(self) -> Dict[str, Any]:
        """
        What that of torch.optim.AdamW has; with a kept store, the numbers of steps alone. With `shard`, moments
        of this rank's share, or of all where consolidate_state_dict() has brought them.

        Raises
        ------
        nvswap.Error
            EBUSY: a step has failed and is not finished, and the store is not kept; EIO, ENOSPC and others of the
            drive.
        """
        result, numbers = super().state_dict(), self._numbers()
        if self._config["nvswap.keep"] and self._consolidated is None:
            return dict(result, nvswap=[
                {"step": own.steps, "params": [numbers[parameter] for parameter in own.parameters]}
                for own in self._sets])
        self._refuse_torn()
        for parameter in self.state:
            store = self._store_of(parameter)
            values = store.values(parameter) if store else (self._consolidated or {}).get(parameter, {})
            result["state"][numbers[parameter]] = dict(result["state"][numbers[parameter]], **values)
        return result

    def consolidate_state_dict(self, to: int = 0) -> None:
        """
        Brings the state of all ranks of `shard` to one of them, whose state_dict() has all of it until the next
        step, also of a kept store; any optimizer loads that. All ranks call it.

        Parameters
        ----------
        to : int
            The rank in the group of `shard`.

        Raises
        ------
        nvswap.Error
            EINVAL: no such rank; EBUSY: a step has failed and is not finished; EIO, ENOSPC and others of the drive.
        """
        if not 0 <= to < self._ranks.count:
            raise invalid(f"no rank {to} of {self._ranks.count} that share the state")
        self._ranks.all("consolidate_state_dict()", self._refuse_torn)
        consolidated = {parameter: self._brought(parameter, to) for parameter in self._numbers()
                        if parameter in self.state}
        self._consolidated = consolidated if self._ranks.rank == to else None

    def _brought(self, parameter: torch.nn.Parameter, to: int) -> Dict[str, torch.Tensor]:
        """The parameter's moments and master, on the rank `to` if another rank has them."""
        owner = self._ranks.owners[parameter]
        values: Dict[str, torch.Tensor] = {}

        def read() -> None:
            store = self._store_of(parameter)
            if owner != to and store is not None:
                values.update(store.values(parameter))
            elif owner != to == self._ranks.rank:
                values.update((part, mapped(self._config, parameter.numel()).view(parameter.shape))
                              for part in parts_of(parameter, STATES[self._rule]))

        self._ranks.all("consolidate_state_dict()", read)
        for value in values.values():
            self._ranks.move(value, owner, to, parameter.device)
        return values if self._ranks.rank == to else {}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """
        Takes a state_dict of this class or of torch.optim's.

        Raises
        ------
        nvswap.Error
            EINVAL: it has state that is not of this optimizer, or of other shapes, or the share of another rank;
            ESTALE: it was made with a kept store, and the store has the state of another step or of
            other parameters; EBUSY: a step has failed and is not finished.
        ValueError
            Its groups have other numbers of parameters.
        """
        self._ranks.all("load_state_dict()", lambda: self._load_state_dict(state_dict))

    def _load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        groups, stored = state_dict["param_groups"], state_dict.get("nvswap")
        own = [len(group["params"]) for group in self.param_groups]
        if [len(group["params"]) for group in groups] != own:
            raise ValueError(f"the state_dict has groups of {[len(group['params']) for group in groups]} "
                             f"parameters, the optimizer of {own}")
        for group in groups:
            self._numbers_of({**self.defaults, **group})
        ids = [number for group in groups for number in group["params"]]
        state = self._with_steps({
            parameter: state_dict["state"][number]
            for number, parameter in zip(ids, self._numbers()) if number in state_dict["state"]})
        if stored is None:
            self._make_set([parameter for parameter in state if local(parameter).numel()])
        self._check_state(state, stored is not None)
        if self._finishes():
            raise Error(errno.EBUSY, "a step has failed and is not finished: call step() first")
        if stored is not None:
            self._find_stores(stored)
        super().load_state_dict(dict(state_dict, state={}))
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
            if "decoupled_weight_decay" in group:
                group["decoupled_weight_decay"] |= self._decoupled
        if stored is None:
            self._load(state)
        self._consolidated = None
        for parameter, values in state.items():
            self._set_steps(parameter, float(values["step"]))

    def _numbers_of(self, group: Dict[str, Any]) -> Dict[str, Any]:
        """The settings of a group for GroupRule.set(), after a check of all of them."""
        for name in ("amsgrad", "capturable", "differentiable"):
            if group.get(name):
                raise invalid(f"{name} is not supported: leave it out, or use torch.optim")
        for name in self._settings:
            if not isinstance(group[name], (int, float, torch.Tensor)):
                raise invalid(f"{name} is {group[name]!r}: a configuration is given as config=")
        numbers: Dict[str, Any] = {
            name: (bool if name == "nesterov" else float)(group[name]) for name in self._settings}
        if "betas" in group:
            if len(group["betas"]) != 2:
                raise invalid(f"betas are two numbers, not {group['betas']}")
            numbers["betas"] = [float(beta) for beta in group["betas"]]
        if self._rule == "adam":
            numbers.update(adam_w_mode=bool(group["decoupled_weight_decay"]), bias_correction=True)
        numbers["grad_factor"] = -1.0 if group["maximize"] else 1.0
        # Raises an error that names the setting.
        GroupRule(self._rule, 1).set(0, **numbers)
        return numbers

    def _with_steps(self, state: Dict[torch.nn.Parameter, Any]) -> Dict[torch.nn.Parameter, Any]:
        """State that another optimizer has saved, with numbers of steps."""
        return state

    def _check_state(self, state: Dict[torch.nn.Parameter, Any], kept: bool) -> None:
        for parameter, values in state.items():
            # The moments of others' parameters are theirs.
            own = self._ranks.owners.get(parameter, self._ranks.rank) == self._ranks.rank
            wanted = {"step", *(STATES[self._rule] if own and not kept else ())}
            if own and not kept and set(values) == {"step"}:
                raise invalid(f"the state_dict has no moments of {self._described(parameter)}: it is the share of "
                              "another rank, or goes with a kept store. Load this rank's own, what "
                              "consolidate_state_dict() has brought to one rank, or by "
                              "torch.distributed.checkpoint")
            if not wanted <= set(values) <= {"step", "master", *(() if kept else STATES[self._rule])}:
                raise invalid(f"the state_dict has {', '.join(sorted(values))} of {self._described(parameter)} "
                              f"where {type(self).__name__} has {', '.join(sorted(wanted))}")
            for name in set(values) - {"step"}:
                if values[name].shape != parameter.shape:
                    raise invalid(f"{name} of {self._described(parameter)} is of shape "
                                  f"{list(values[name].shape)}")

    def _load(self, state: Dict[torch.nn.Parameter, Any]) -> None:
        """A parameter of which there is no state starts anew."""
        for own in self._sets:
            steps = max((int(state[parameter]["step"]) for parameter in own.parameters
                         if parameter in state), default=0)
            if not steps and not own.steps:
                continue
            own.steps = steps
            if own.store is None:
                continue
            for parameter in own.store.pieces:
                own.store.set_values(parameter, state.get(parameter, {}))
                # The program may load the weights before or after this.
                self._versions[parameter] = (-1, 0)
            own.store.optimizer.step_count = steps

    def _find_stores(self, stored: List[Dict[str, Any]]) -> None:
        """Opens the kept stores that a state_dict goes with."""
        parameters, numbers = list(self._numbers()), self._numbers()
        for wanted in stored[len(self._sets):]:
            self._make_set([parameters[number] for number in wanted["params"]])
        for own, wanted in zip(self._sets, stored):
            if [numbers[parameter] for parameter in own.parameters] != wanted["params"]:
                raise Error(errno.ESTALE, "the state_dict goes with stores of other parameters")
            if own.steps != wanted["step"]:
                raise Error(errno.ESTALE, f"the state_dict is of step {wanted['step']}, the store has the "
                            f"state of step {own.steps}: open the kept store that was committed then")

    def commit(self) -> None:
        """Makes the state of a kept store durable; with `shard`, that of all ranks."""
        def commit() -> None:
            for store in self.stores:
                store.take_arriving()
                store.optimizer.commit()

        self._ranks.all("commit()", commit)

    def close(self) -> None:
        """Closes the state's store; the parameters keep their weights."""
        for hook in self._hooks:
            hook.remove()
        for store in self.stores:
            store.optimizer.close()
            store.forget_gradients()
        self._aio.close()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._aio.closed or any(store.optimizer.closed for store in self.stores)


def _version_of(parameter: torch.nn.Parameter) -> Tuple[int, int]:
    """What tells that the program has changed a parameter in place, or given it other memory."""
    return parameter._version, 0 if is_offloaded(parameter) else local(parameter).data_ptr()


def _drop_replaced(store: State) -> None:
    """Drops the gradients in the store whose `parameter.grad` the program has set to None."""
    replaced = [not isinstance(parameter.grad, StoredGradient) for parameter in store.stored]
    if all(replaced):
        if replaced:
            store.clear_gradients()
    elif any(replaced):
        raise invalid("some gradients of offloaded parameters were set to None or replaced, and others not: "
                      "call optimizer.zero_grad(), which drops all")


def _add_gradient(optimizer: "weakref.ref[StoredOptimizer]", parameter: torch.nn.Parameter) -> None:
    own = optimizer()
    if own is not None:
        own._add_gradient(parameter)
