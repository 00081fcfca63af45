# SPDX-License-Identifier: Apache-2.0
"""
The methods of DeepSpeed's ZeRO-3 optimizer that save and load state, for state in a store. A state
dictionary has the form that `offload_optimizer` on the host gives it, with Stored for the tensors;
loading takes one sub-group after the other.
"""

from __future__ import annotations

import errno
import glob
import os
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import torch
from deepspeed import comm as dist
from deepspeed.checkpoint.constants import (
    FP32_FLAT_GROUPS, LOSS_SCALER, OPTIMIZER_STATE_DICT, ZERO_STAGE)
from deepspeed.utils import logger

from nvswap.checkpoint import Parameter, import_universal
from nvswap.deepspeed.checkpoint.durable import check_whole, naming
from nvswap.deepspeed.checkpoint.ranks import together
from nvswap.deepspeed.checkpoint.stored import MOMENTS, Stored
from nvswap.errors import Error
from nvswap.optimizer import Optimizer

UNIVERSAL = "zero"  # the directory in a tag with the tensors of a universal checkpoint
FILE = "nvswap_file"  # in a state dictionary: the path that it was loaded from
State = Dict[str, torch.Tensor]


class Checkpoints:
    """To be a base before DeepSpeed's class."""

    # The keys of the optimizer's state that are tensors of checkpoints, in the order of a store's parts.
    _state_keys: Sequence[str] = MOMENTS

    def _stored_state(self, group: int) -> Dict[str, Stored]:
        """What of a sub-group is in the store: "master", its weights, and tensors of the optimizer's
        state by their keys."""
        raise NotImplementedError

    def _state_of(self, group: int) -> Dict[str, Any]:
        """The optimizer's state of a sub-group, with anything for what _stored_state has."""
        raise NotImplementedError

    def _put_state(self, group: int, master: torch.Tensor, state: Optional[Dict[str, Any]]) -> None:
        """Replaces a sub-group's weights, and all of the optimizer's state unless `state` is None."""
        raise NotImplementedError

    def _check_saved(self, states: List[Dict[str, Any]], param_groups: List[Dict[str, Any]]) -> None:
        """Raises if the optimizer can't take the states of sub-groups, by their keys, or those of an optimizer with
        these settings."""

    def _import_state(self, path: str, names: List[Optional[str]], step: int) -> bool:
        """Replaces all state and all parameters by tensors of a file of torch.save: the names of each
        sub-group's weights and states, None for what becomes 0. False: it can't be done, and the caller
        must replace all of it."""
        return False

    def _stored_parameters(self) -> Optional[Tuple[Optimizer, List[Parameter]]]:
        """The optimizer with this rank's elements of the parameters; None: they are elsewhere."""
        return None

    def _take_imported_weights(self) -> None:
        """Gives the parameters the weights of the optimizer of _stored_parameters."""
        raise NotImplementedError

    def _put_weights_of_parameters(self) -> None:
        """Replaces the weights of all sub-groups by those of the parameters."""
        raise NotImplementedError

    def _restore_from_bit16_weights(self) -> None:
        together("put the loaded weights into the store", self._put_weights_of_parameters)

    def refresh_fp32_params(self) -> None:
        """Part of a load that shares a failure when it ends: a rank that failed before is not here."""
        self._put_weights_of_parameters()

    def _in_order_of_param_groups(self: Any) -> List[int]:
        """The sub-groups as the optimizer's state dictionary numbers them."""
        return sorted(range(len(self.fp16_groups)),
                      key=lambda group: self.sub_group_to_group_id[group])

    def _rigid_state_dict(self: Any) -> Any:
        result = super()._rigid_state_dict()  # type: ignore[misc]
        groups = [self._stored_state(group) for group in range(len(self.fp16_groups))]
        result[ZERO_STAGE] = int(result[ZERO_STAGE])  # an enumeration is pickled as a call of getattr
        result[FP32_FLAT_GROUPS] = [state["master"] for state in groups]
        result[OPTIMIZER_STATE_DICT]["state"] = {
            index: {key: groups[group].get(key, value) for key, value in self._state_of(group).items()}
            for index, group in enumerate(self._in_order_of_param_groups())}
        return result

    def _rigid_load_state_dict(self: Any, state_dict: Any, load_optimizer_states: bool = True) -> None:
        self.loss_scaler = state_dict[LOSS_SCALER]
        self.dynamic_loss_scale = state_dict["dynamic_loss_scale"]
        self.overflow = state_dict["overflow"]
        saved, masters = state_dict[OPTIMIZER_STATE_DICT], state_dict[FP32_FLAT_GROUPS]
        path = state_dict.get(FILE)
        check_in_file(path, masters)
        states = self._checked_states(saved["state"], masters)
        if load_optimizer_states:
            self._check_saved(states, saved["param_groups"])
            set_param_group_numbers(self.optimizer, saved["param_groups"])
        self._partition_all_parameters()
        if load_optimizer_states and path is not None and \
                self._import_state(path, self._names_in_file(saved["state"]), step_of(states[0])):
            return
        if path is not None:
            check_whole(path)
        for group, state in enumerate(states):
            self._put_state(group, masters[group], state if load_optimizer_states else None)

    def _checked_states(self: Any, saved: Any, masters: List[torch.Tensor]) -> List[Any]:
        """What a state dictionary has of each sub-group beside its weights."""
        states: List[Any] = [{}] * len(self.fp16_groups)
        for index, group in enumerate(self._in_order_of_param_groups()):
            states[group] = saved.get(index, {})
            self._check_numel(group, {"master": masters[group], **{
                part: states[group][part] for part in self._state_keys if part in states[group]}})
        return states

    def _names_in_file(self: Any, saved: Any) -> List[Optional[str]]:
        """What the library calls the tensors of a file with this state."""
        names: Dict[int, List[Optional[str]]] = {}
        for index, group in enumerate(self._in_order_of_param_groups()):
            names[group] = [f"{OPTIMIZER_STATE_DICT}.{FP32_FLAT_GROUPS}.{group}", *(
                f"{OPTIMIZER_STATE_DICT}.{OPTIMIZER_STATE_DICT}.state.{index}.{part}"
                if part in saved.get(index, {}) else None for part in self._state_keys)]
        return [name for group in sorted(names) for name in names[group]]

    def _check_numel(self: Any, group: int, state: State) -> None:
        numel = int(self.fp16_partitioned_groups_flat_numel[group])
        for part, tensor in state.items():
            if tensor.numel() != numel:
                raise Error(errno.ESTALE, f"sub-group {group} has {numel} elements on this rank, "
                            f"{part} of the checkpoint has {tensor.numel()}: it is of another model, "
                            "sub_group_size or number of ranks")

    # ---- Universal checkpoints

    def load_hp_checkpoint_state_from_checkpoint_dir_stage3(self: Any, checkpoint_dir: str, *_: Any) -> None:
        folder = os.path.join(checkpoint_dir, UNIVERSAL)
        _check_files(folder)
        saved = global_state_in(checkpoint_dir)
        self._check_saved([], saved[OPTIMIZER_STATE_DICT]["param_groups"])
        self._load_global_state_stage3(saved)
        set_param_group_numbers(self.optimizer, saved[OPTIMIZER_STATE_DICT]["param_groups"])
        self._partition_all_parameters()
        if self._import_universal(checkpoint_dir):
            return
        step = int(saved[OPTIMIZER_STATE_DICT]["state"][0]["step"])
        for group, _ in enumerate(self.fp16_groups):
            state = {part: self._universal_part(folder, group, part) for part in self._state_keys}
            self._put_state(group, self._universal_part(folder, group, "fp32"), {"step": step, **state})

    def _import_universal(self: Any, checkpoint_dir: str) -> bool:
        """False: the state is not in an optimizer, or the library takes no pickle with objects that torch
        has read; what it imported is to be replaced."""
        stored = self._stored_parameters()
        if stored is None:
            return False
        if not is_read_by_library(lambda: import_universal(stored[0], checkpoint_dir, stored[1])):
            return False
        self._take_imported_weights()
        return True

    def load_module_checkpoint_state_from_checkpoint_dir_stage3(self: Any, checkpoint_dir: str,
                                                                _fp32: bool) -> None:
        folder = os.path.join(checkpoint_dir, UNIVERSAL)
        _check_files(folder)
        self._partition_all_parameters()
        for group, _ in enumerate(self.fp16_groups):
            self._put_state(group, self._universal_part(folder, group, "fp32"), None)

    def _universal_part(self: Any, folder: str, group: int, key: str) -> torch.Tensor:
        """This rank's partitions of a sub-group's parameters. Weights that are not in the folder are with
        the model states, and were loaded to the parameters."""
        flat = torch.zeros(int(self.fp16_partitioned_groups_flat_numel[group]), device="cpu")
        found = [os.path.isdir(os.path.join(folder, self.param_names[param]))
                 for param in self.fp16_groups[group]]
        if key == "fp32" and not all(found):
            self._swap_in_sub_group_to_flat_buffer(flat, group)
        offset = 0
        for param, is_found in zip(self.fp16_groups[group], found):
            numel = param.partition_numel()
            if is_found:
                flat.narrow(0, offset, numel).copy_(self._universal_partition(folder, param, key))
            offset += numel
        return flat

    def _universal_partition(self: Any, folder: str, param: Any, key: str) -> torch.Tensor:
        """This rank's partition of a parameter."""
        name = self.param_names[param]
        path = os.path.join(folder, name, f"{key}.pt")
        with naming(path):
            whole = torch.load(path, map_location="cpu", weights_only=False, mmap=True)
            if not torch.is_tensor(whole):  # a dictionary, of tensor-parallel ranks or of experts
                part: torch.Tensor = self.load_hp_checkpoint_state(os.path.dirname(path), key, param=param)
                return part
        if whole.numel() != param.ds_numel:
            raise Error(errno.ESTALE, f"parameter {name} has {whole.numel()} elements in {path} and "
                        f"{param.ds_numel} here", tensor=name, path=path)
        part = torch.zeros(param.partition_numel(), dtype=whole.dtype, device="cpu")
        begin = part.numel() * self._get_param_partition_rank(param)
        own = whole.flatten()[begin:begin + part.numel()]
        part[:own.numel()] = own
        return part


def is_read_by_library(read: Callable[[], Any]) -> bool:
    """False: the library does not take the file. What torch has read is then read by torch, with a line in the log
    that says why: mostly objects in a pickle that the library does not know."""
    try:
        read()
    except Error as error:
        if error.errno != errno.EINVAL:
            raise
        logger.info(f"read by torch: {error.strerror}")
        return False
    return True


def global_state_in(checkpoint_dir: str) -> Any:
    """What a universal checkpoint has beside the tensors of parameters."""
    path = os.path.join(checkpoint_dir, UNIVERSAL, "optimizer_state.pt")
    with naming(path):
        return torch.load(path, map_location="cpu", weights_only=False)


def set_param_group_numbers(optimizer: torch.optim.Optimizer, saved: List[Dict[str, Any]]) -> None:
    """Learning rates, decay and so on."""
    own = optimizer.param_groups
    if len(saved) != len(own):
        logger.warning(f"the checkpoint has {len(saved)} parameter groups and the job {len(own)}: their "
                       "learning rates and other settings stay those of the job")
        return
    for param_group, numbers in zip(own, saved):
        param_group.update({key: value for key, value in numbers.items() if key != "params"})


def check_in_file(path: Optional[str], masters: List[torch.Tensor]) -> None:
    """Raises if the weights of a sub-group are elsewhere than in the file of state."""
    if any(not master.numel() for master in masters):
        raise Error(errno.ENOTSUP, f"{path or 'the checkpoint'} does not have all state: the rest is in swap "
                    "files of DeepSpeed's own, in offloaded_tensors beside it, which nvswap does not read. "
                    'Go on with "nvswap": {"deepspeed": "ops"}, as it was saved; for another depth save the '
                    "weights from there by save_16bit_model, and begin a job with them", path=path)


def step_of(state: Any) -> int:
    """Steps that a sub-group has taken."""
    return int(state.get("step", 0))


def keys_beside_moments(states: Iterable[Dict[str, Any]]) -> str:
    """The keys of states that neither a universal checkpoint nor nvswap's optimizer has, for errors."""
    return ", ".join(sorted({key for state in states for key in state} - {"step", *MOMENTS}))


def _check_files(folder: str) -> None:
    """Compares all files with their CRC-32, each on one rank: a rank that reads its part of a file
    can't. Raises on all ranks."""
    paths = sorted(glob.glob(os.path.join(glob.escape(folder), "**", "*.pt"), recursive=True))

    def check() -> None:
        for path in paths[dist.get_rank()::dist.get_world_size()]:
            check_whole(path)

    together(f"load {folder}", check)
