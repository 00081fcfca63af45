# SPDX-License-Identifier: Apache-2.0
"""
The part of a step that goes on behind the next forward, with "nvswap": {"overlap_step": true}.

Before step() returns, DeepSpeed's code has decided all that a step depends on: overflow, norm, clipping, loss scale,
learning rates. What is left, the pass over the store, runs in a thread, from the first sub-group to the last.
Sub-groups are in the order of the modules, so the forward needs the last ones last.

step() ends            begin(): the pass goes on behind
a gather in a forward  waits for the new weights of its parameters' sub-groups, on this rank alone: then comes
of the model           DeepSpeed's collective. Nothing is gathered ahead but of sub-groups that were waited for, which
                       are the same on all ranks
the forward's end,     the owner's finish(), on all ranks: waits for the pass, and raises on all what it failed with on
a gather elsewhere,    one. So does all else that ranks do together and that needs the state, the weights or the memory
...                    of the gradients: the first gradient of a backward, the next step, saving, loading, offload_states
the state is read      wait(), on this rank: safe_get_local_* and others that a rank calls alone

Until the end of the forward no rank knows that another one's pass has failed. The forward then goes on with the old
weights of some sub-groups, and ends with the error in place of a result; called again, it finishes the step first.
So no result depends on how far a pass was. A collective for each sub-group would end it earlier, at the cost of one in
each good step. Persistent parameters, which DeepSpeed gathers at the end of a step, are gathered by their modules.
"""

from __future__ import annotations

import functools
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple

import torch
from deepspeed.runtime.zero.partition_parameters import Init, ZeroParamStatus
from deepspeed.runtime.zero.partitioned_param_coordinator import iter_params
from deepspeed.utils import logger, z3_leaf_module

_PREFETCH = "_PartitionedParameterCoordinator__prefetch_bucket_sz"
_QUEUE = "_PartitionedParameterCoordinator__param_queue"


class Overlap:
    """
    Parameters
    ----------
    module : torch.nn.Module
        The model, whose forward a pass goes on behind.
    groups : sequence of lists of parameters
        The sub-groups.
    numels : sequence of int
        What new weights of each are counted in.
    finish : method
        Of the owner: ends the step on all ranks, or finishes the one that has failed. Does nothing if there is none.
    """

    def __init__(self, module: Any, groups: Sequence[Iterable[Any]], numels: Sequence[int],
                 finish: Callable[[], None]) -> None:
        self._numels = list(numels)
        self._finish = weakref.WeakMethod(finish)  # the parameters outlive the owner
        self._changed = threading.Condition()
        self._missing: List[int] = [0] * len(self._numels)  # of the new weights
        self._behind: Optional["Future[None]"] = None
        self._in_forward = False
        self._awaited: Set[int] = set()  # sub-groups, in this forward; the same on all ranks
        self._thread = ThreadPoolExecutor(1, "nvswap-step")
        self._parameters: List[Any] = []
        for group, parameters in enumerate(groups):
            for parameter in parameters:
                parameter.nvswap_overlap = (self, group)
                self._parameters.append(parameter)
        enter, leave, end = map(torch.compiler.disable, (self._enter, self._leave, self._end))
        self._hooks = [module.register_forward_pre_hook(enter, prepend=True),
                       module.register_forward_hook(leave, always_call=True),
                       module.register_forward_hook(end)]
        _watch_gathers()

    # ---- A step

    @property
    def is_behind(self) -> bool:
        """Whether a pass goes on, or has ended and end() has not been called."""
        return self._behind is not None

    def begin(self, make: Callable[[], None]) -> None:
        """Has the thread make this rank's part of a step, which calls arrive() for all elements unless it fails."""
        assert self._behind is None
        self._missing = list(self._numels)
        self._awaited.clear()
        self._in_forward = False
        self._behind = self._thread.submit(self._make, make)

    def _make(self, make: Callable[[], None]) -> None:
        try:
            make()
        except BaseException as error:
            # The job may end before it waits.
            logger.error(f"the step that goes on behind the forward has failed on this rank: {error}")
            raise
        finally:
            with self._changed:
                self._missing = [0] * len(self._numels)
                self._changed.notify_all()

    def arrive(self, group: int, numel: int) -> None:
        """So many more new weights are where gathers read them. Any thread may call."""
        with self._changed:
            self._missing[group] -= numel
            if self._missing[group] == 0:
                self._changed.notify_all()

    def end(self) -> None:
        """Waits for the pass, and raises what it failed with: it is the caller's to finish the step."""
        assert self._behind is not None
        wait([self._behind])  # if it is interrupted, the pass still goes on
        behind, self._behind = self._behind, None
        behind.result()

    def wait(self) -> None:
        """Waits for the pass of this rank, and raises what it failed with."""
        if self._behind is not None:
            self._behind.result()

    def close(self) -> None:
        """Ends the thread, and waits for the pass. Later gathers of the parameters wait for nothing."""
        for hook in self._hooks:
            hook.remove()
        for parameter in self._parameters:
            if _overlap_of(parameter)[0] is self:  # and not a later engine's
                del parameter.nvswap_overlap
        self._parameters.clear()
        self._thread.shutdown()

    # ---- The forward

    def _enter(self, *_: Any) -> None:
        self._in_forward = True

    def _leave(self, *_: Any) -> None:
        self._in_forward = False

    def _end(self, *_: Any) -> None:
        self.finish()

    def finish(self) -> None:
        finish = self._finish()
        if finish is not None:
            finish()

    def await_weights(self, groups: Iterable[int]) -> None:
        """To be called on all ranks before parameters of these sub-groups are gathered."""
        if not self._in_forward or self._behind is None:
            self.finish()
            return
        new = set(groups) - self._awaited
        with self._changed:
            self._changed.wait_for(lambda: not any(self._missing[group] for group in new))
        self._awaited |= new

    def limit_prefetch(self, coordinator: Any) -> None:
        """Has a PartitionedParameterCoordinator gather ahead only what a forward need not wait for."""
        fetch, most = coordinator.fetch_sub_module, getattr(coordinator, _PREFETCH)

        @functools.wraps(fetch)
        def fetch_sub_module(module: Any, *args: Any, **kwargs: Any) -> None:
            limit = most
            if self._in_forward and self._behind is not None:
                limit = min(most, self._numel_ahead(module, getattr(coordinator, _QUEUE) or ()))
            setattr(coordinator, _PREFETCH, limit)
            fetch(module, *args, **kwargs)

        coordinator.fetch_sub_module = fetch_sub_module

    def _numel_ahead(self, module: Any, queue: Iterable[Any]) -> int:
        """The elements of parameters next in the queue whose sub-groups all ranks have waited for when they gather
        ahead: after those of the module itself."""
        own = set(iter_params(module, recurse=z3_leaf_module(module)))
        awaited = self._awaited | _groups_of(own).get(self, set())
        ahead: Dict[int, int] = {}
        for entry in queue:
            parameter = entry.param
            if parameter in own or parameter.ds_status is not ZeroParamStatus.NOT_AVAILABLE:
                continue
            overlap, group = _overlap_of(parameter)
            if overlap is self and group not in awaited:
                break
            ahead[id(parameter)] = parameter.ds_numel
        return sum(ahead.values())


def _overlap_of(parameter: Any) -> Tuple[Optional[Overlap], int]:
    """The Overlap of a parameter, if it has one, and its sub-group."""
    found: Tuple[Optional[Overlap], int] = getattr(parameter, "nvswap_overlap", (None, 0))
    return found


def _groups_of(parameters: Iterable[Any]) -> Dict[Overlap, Set[int]]:
    found: Dict[Overlap, Set[int]] = {}
    for overlap, group in map(_overlap_of, parameters):
        if overlap is not None:
            found.setdefault(overlap, set()).add(group)
    return found


def _watch_gathers() -> None:
    """Has each gather of parameters wait for their new weights, where DeepSpeed has it wait for the drive; calling it
    again changes nothing."""
    ensure = Init._ensure_availability_of_partitioned_params
    if hasattr(ensure, "nvswap_watches"):
        return

    @functools.wraps(ensure)
    def ensured(self: Any, params: Iterable[Any]) -> None:
        params = list(params)
        for overlap, groups in _groups_of(params).items():
            overlap.await_weights(groups)
        ensure(self, params)

    ensured.nvswap_watches = True  # type: ignore[attr-defined]
    Init._ensure_availability_of_partitioned_params = ensured
