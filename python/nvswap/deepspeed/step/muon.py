# SPDX-License-Identifier: Apache-2.0
"""
The step with DeepSpeed's Muon. Its ZeRO-3 optimizer replaces the gradients of Muon's matrices, before it takes the
norm, by the orthogonalized sum of momentum and gradient, in collectives of all ranks. That is its own code here, for
one sub-group after the other, with momentum that is read before and written behind. What is left to the step is Muon's
decay and learning rate, and Adam for other parameters. So a step reads and writes momentum and master weights of
Muon's sub-groups, and master weights and moments of Adam's, once.

A drive's error in either part is raised on all ranks, and step() called again goes on where it ended: each
gradient becomes an update once.
"""

from __future__ import annotations

import errno
from typing import Any, Dict, List, Optional, Tuple

import torch
from deepspeed import comm as dist

from nvswap.config import Config
from nvswap.deepspeed.checkpoint.ranks import share_failure, together
from nvswap.deepspeed.checkpoint.stored import EngineFile, Stored
from nvswap.deepspeed.checkpoint.zero3 import step_of
from nvswap.deepspeed.depth import choice
from nvswap.deepspeed.optimizers import PIECE_NUMEL, update_flat
from nvswap.deepspeed.step.rules import ADAM, MATRICES, Rule
from nvswap.deepspeed.step.stage3 import Progress, Stage3
from nvswap.deepspeed.step.tiled import TiledState
from nvswap.errors import Error
from nvswap.optimizer import Group
from nvswap.torch.optim.tiles import Arrays


class _Flat:
    """In the place of a sub-group's master weights: what DeepSpeed's Muon reads of these."""

    def __init__(self, ds_id: str, grad: torch.Tensor) -> None:
        self.ds_id, self.grad = ds_id, grad


def apply_updates(master: torch.Tensor, updates: torch.Tensor, *, lr: float, weight_decay: float,
                  grad_factor: float) -> None:
    """As MuonWithAuxAdam.step() changes a flat partition."""
    for begin in range(0, master.numel(), PIECE_NUMEL):
        cut = slice(begin, begin + PIECE_NUMEL)
        update = updates[cut].to(torch.float32, copy=True).mul_(grad_factor)
        master[cut].mul_(1 - lr * weight_decay).add_(update, alpha=-lr)


class MuonStage3(Stage3):
    _opened: TiledState
    _are_updates_made = False  # of all gradients, for this step

    # ---- Setup

    def _refuse_what_is_not_done(self) -> None:
        with Config({"nvswap": choice().document.get("nvswap") or {}}) as config:
            refused = (
                ("nvswap.overlap_step", self._overlaps_steps, "Muon orthogonalizes all gradients first: leave it out"),
                ("nvswap.optimizer_state", config["nvswap.optimizer_state"] != "fp32",
                 'the state of Muon has its own types: set it to "fp32"'),
                ("nvswap.optimizer_max_in_cpu", config["nvswap.optimizer_max_in_cpu"] > 0,
                 "the state of Muon is on the drive between steps: leave it out"))
        for key, is_set, reason in refused:
            if is_set:
                raise Error(errno.ENOTSUP, f"{key}: {reason}", key)
        super()._refuse_what_is_not_done()

    def _open(self, groups: List[Group]) -> TiledState:
        self._numbers: List[Dict[str, Any]] = [{} for _ in groups]  # of this step
        first: List[Dict[str, torch.dtype]] = [{} for _ in groups]
        second: List[Dict[str, torch.dtype]] = [{"master": torch.float32} for _ in groups]
        in_memory: Dict[Tuple[int, str], torch.Tensor] = {}
        for number, group in enumerate(groups):
            if self._rule_at(number) is ADAM:
                second[number].update(dict.fromkeys(ADAM.states, torch.float32))
            elif self.save_muon_momentum_buffer_in_memory:
                in_memory[number, "momentum_buffer"] = torch.zeros(
                    int(group.numel or 0), dtype=self.communication_data_type, device="cpu")
            else:
                first[number]["momentum_buffer"] = self.communication_data_type
        self._momentum_in_memory = in_memory
        if self.save_muon_momentum_buffer_in_memory:
            self.muon_momentum_buffer_partitioned_groups_flat = {
                number: momentum for (number, _), momentum in in_memory.items()}
        opened = TiledState(choice().document, dist.get_rank(), groups, first, second, in_memory, self._update)
        try:
            for number, group in enumerate(groups):
                if group.weights is not None:
                    opened.set_state(number, "master", group.weights.float())
        except BaseException:
            opened.close()
            raise
        return opened

    def _settings(self, group: int) -> Dict[str, Any]:
        settings: Dict[str, Any] = self.optimizer.param_groups[self.sub_group_to_group_id[group]]
        return settings

    def _rule_at(self, group: int) -> Rule:
        return MATRICES if self._settings(group)["use_muon"] else ADAM

    # ---- Updates of Muon's matrices

    def partition_grads(self, *args: Any) -> Any:
        # There are new gradients. A step that failed before it changed weights is another one now.
        self._are_updates_made = False
        self._opened.forget_first()
        if self._step_progress is Progress.TO_STEP and not self._opened.info()["unfinished"]:
            self._failed = False
        return super().partition_grads(*args)

    def _forget_failure(self) -> None:
        super()._forget_failure()
        self._are_updates_made = False
        self._opened.forget_step()

    def _loss_scale_update_and_overflow_cleanup(self) -> Any:
        is_skipped = super()._loss_scale_update_and_overflow_cleanup()
        if is_skipped:
            self._forget_failure()
        return is_skipped

    def _apply_muon_updates_cpu_offload(self) -> None:
        if self._are_updates_made:
            return
        finishes = self._opened.info()["unfinished"] or self._step_progress is not Progress.TO_STEP
        self._failed = True
        for group, _ in self._momentum_in_memory:
            self._update_gradients(group, {})
        self._compute_momentum()
        # step() goes on with what no other call of it has done.
        self._are_updates_made, self._failed = True, finishes

    def _compute_momentum(self) -> None:
        """Raises on all ranks what one has failed with."""
        is_shared = False  # a failure

        def update(group: int, arrays: Arrays) -> None:
            nonlocal is_shared
            is_shared = True
            together("read the momentum", lambda: None)
            is_shared = False
            self._update_gradients(group, arrays)

        try:
            self._opened.compute_first(update)
        except Exception as error:
            if not is_shared:
                share_failure(error)
            raise
        together("write the momentum", lambda: None)

    def _update_gradients(self, group: int, state: Dict[str, torch.Tensor]) -> None:
        """Has DeepSpeed's code replace the gradients of a sub-group, and change the state."""
        stand_in, params = self.fp32_partitioned_groups_flat[group], self.fp16_groups
        flat = _Flat(stand_in.ds_id, self._gradients_of_group(group))
        self.fp32_partitioned_groups_flat[group] = flat
        self.fp16_groups = [each if number == group else [] for number, each in enumerate(params)]
        self.optimizer.state[flat] = state
        try:
            super()._apply_muon_updates_cpu_offload()
        finally:
            del self.optimizer.state[flat]
            self.fp32_partitioned_groups_flat[group], self.fp16_groups = stand_in, params

    # ---- The step

    def _lend(self, sub_group_id: int) -> None:
        # A script may make Muon with another adam_w_mode than its Adam's, which counts.
        numbers = self._rule_at(sub_group_id).numbers(self.optimizer.aux_optimizer, self._settings(sub_group_id))
        factor = self.fp32_partitioned_groups_flat[sub_group_id].grad.item()
        self._numbers[sub_group_id] = {"grad_factor": factor, **numbers}

    def _update(self, group: int, arrays: Arrays) -> None:
        """One step of a sub-group."""
        states, gradients = dict(arrays), self._gradients_of_group(group)
        master = states.pop("master")
        if self._rule_at(group) is MATRICES:
            apply_updates(master, gradients, **self._numbers[group])
        else:
            update_flat("adam", master, gradients, states, step=self._opened.step_count + 1, **self._numbers[group])
        weights = self._opened.groups[group].weights
        if weights is None:
            self._new_weights.add(group, 0, _elements_of(master.to(self.dtype)))
        else:
            weights.copy_(master)

    # ---- safe_get_* and safe_set_*

    def _get_fp32_opt_state_partition(self, *args: Any, **kwargs: Any) -> Any:
        if self._failed:
            # On all ranks, as one whose own part is made would wait for the others' elements.
            raise self._opened.unfinished()
        return super()._get_fp32_opt_state_partition(*args, **kwargs)

    # ---- Checkpoints

    def _stored_state(self, group: int) -> Dict[str, Stored]:
        file = EngineFile(self._opened.engine)
        return {key: Stored(file, part.name, part.shape.numel(), part.dtype)
                for key, part in self._opened.stored(group).items()}

    def _state_of(self, group: int) -> Dict[str, Any]:
        momentum = self._momentum_in_memory.get((group, "momentum_buffer"))
        zeros = torch.zeros(1, device="cpu").expand(int(self.fp16_partitioned_groups_flat_numel[group]))
        if self._rule_at(group) is MATRICES:
            return {"momentum_buffer": zeros if momentum is None else momentum}
        return {"step": self._opened.step_count, **dict.fromkeys(ADAM.states, zeros)}

    def _check_saved(self, states: List[Dict[str, Any]], param_groups: List[Dict[str, Any]]) -> None:
        super()._check_saved(states, param_groups)
        for group, state in enumerate(states):
            self._rule_at(group).check_saved(self.optimizer, [state], param_groups)

    def _put_state(self, group: int, master: torch.Tensor, state: Optional[Dict[str, Any]]) -> None:
        self._forget_failure()
        self._opened.set_state(group, "master", master)
        if state is not None:
            for key in self._rule_at(group).states:
                self._opened.set_state(group, key, state.get(key, torch.zeros(1, device="cpu").expand_as(master)))
            self._opened.step_count = max(self._opened.step_count if group else 0, step_of(state))
        self._put_master(group, master)

    def _import_state(self, *_: Any) -> bool:
        return False

    def _stored_parameters(self) -> None:
        return None


def _elements_of(weights: torch.Tensor) -> Any:
    """As an array of numpy, which has no bfloat16."""
    return weights.view(torch.int32 if weights.element_size() == 4 else torch.int16).numpy()
