# SPDX-License-Identifier: Apache-2.0
"""
Optimizer: Adam, SGD, Adagrad or Lion over state on the drive, by groups; and one Adam update of arrays in
memory.
"""

from __future__ import annotations

import errno
import gc
import math
import weakref
from contextlib import contextmanager
from typing import (
    Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Union, cast)

from nvswap._native import ffi, lib
from nvswap.aio import Aio
from nvswap.config import config_of
from nvswap.dtypes import (
    array_over, dtype_name, dtype_number, imported_numpy, itemsize, number_name)
from nvswap.engine import engine_stats, note_of
from nvswap.errors import Error, check, drop_variables, invalid, new_error
from nvswap.handle import Handle
from nvswap.memory import Span, array_dtype, array_numel, span_of
from nvswap.statistics import StepResult, fields_of
from nvswap.strings import encoded

_NULL = ffi.NULL
_PARTS = {"master": lib.NVS_MASTER, "exp_avg": lib.NVS_EXP_AVG, "exp_avg_sq": lib.NVS_EXP_AVG_SQ,
          "momentum_buffer": lib.NVS_MOMENTUM_BUFFER, "sum": lib.NVS_SUM}
_RULES = {"adam": lib.NVS_RULE_ADAM, "sgd": lib.NVS_RULE_SGD, "adagrad": lib.NVS_RULE_ADAGRAD,
          "lion": lib.NVS_RULE_LION}
# The states of each, beside the master weights.
STATES = {"adam": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",), "adagrad": ("sum",),
          "lion": ("exp_avg",)}
# Of struct nvs_rule_update, beside lr, betas and grad_factor.
_NUMBERS = ("eps", "weight_decay", "momentum", "dampening", "lr_decay", "adam_w_mode", "bias_correction", "nesterov")
_STATES = {"fp32": lib.NVS_STATE_FP32, "split": lib.NVS_STATE_SPLIT,
           "bf16": lib.NVS_STATE_BF16, "8bit": lib.NVS_STATE_8BIT}
_GRADIENTS = {lib.NVS_GRADIENTS_NONE: "none", lib.NVS_GRADIENTS_LENT: "lent",
              lib.NVS_GRADIENTS_ADDED: "added", lib.NVS_GRADIENTS_OWED: "owed"}


class Group(NamedTuple):
    """
    Parameters with state in the store.

    Parameters
    ----------
    name : str
        Unique.
    weights : array, optional
        F32, BF16 or F16 in host memory; its contents are the initial master weights, and each step
        writes the new weights into it. It is kept alive.
    numel : int, optional
        The elements of a group without `weights`.
    dtype : optional
        The type of the weights, where the array can't say ("BF16" of a numpy array of uint16) or
        where there are none.
    """

    name: str
    weights: Any = None
    numel: Optional[int] = None
    dtype: Any = None


class Update(NamedTuple):
    """A run of a group's elements to update. Copy what is needed after the call: the memory of an
    array that is kept gets other contents, and until it is dropped close() raises EBUSY."""

    group: int
    offset: int
    step: int
    lr: float
    gradients: Any
    master: Any
    # None: the rule has no such state.
    exp_avg: Any = None
    exp_avg_sq: Any = None
    momentum_buffer: Any = None
    sum: Any = None


class StateRun(NamedTuple):
    """A run of a group's state, with arrays as those of :class:`Update`."""

    group: int
    offset: int
    master: Any
    exp_avg: Any = None
    exp_avg_sq: Any = None
    momentum_buffer: Any = None
    sum: Any = None


class GroupRule:
    """
    A rule with numbers of its own for each group, and for each step: an `update` of
    :class:`Optimizer` that runs without the GIL, by the kernels of the library.

    Parameters
    ----------
    rule : {"adam", "sgd", "adagrad", "lion"}
        Whose states the optimizer has: see enum nvs_rule in optimizer.h.
    ngroups : int
        Groups of the optimizer; each has the defaults of :meth:`set` first.
    """

    def __init__(self, rule: str, ngroups: int) -> None:
        self.rule = rule
        self._table = ffi.new("struct nvswap_group[]", max(1, ngroups))
        self.ngroups = ngroups
        for group in range(ngroups):
            self.set(group)

    def set(self, group: int, *, lr: Optional[float] = 1e-3, betas: Sequence[float] = (0.9, 0.999),
            grad_factor: float = 1.0, missed: int = 0, **numbers: Any) -> None:
        """
        Sets the numbers of a group, between steps.

        Parameters
        ----------
        lr : float, optional
            None: that of :meth:`Optimizer.step`.
        grad_factor : float
            What gradients are multiplied by first; -1 maximizes.
        missed : int
            The optimizer's steps that the group does not count, such as those in which it had no
            gradients.
        **numbers
            Others of struct nvs_rule_update, 0 or False by default: eps, weight_decay, momentum,
            dampening, lr_decay, adam_w_mode, bias_correction, nesterov.

        Raises
        ------
        Error
            EINVAL: no such group, or a number is out of bounds; nothing has changed.
        TypeError
            There is no such number; nothing has changed.
        """
        if not 0 <= group < self.ngroups:
            raise invalid(f"no group {group}")
        if missed < 0:
            raise invalid(f"missed steps are not negative: {missed}")
        update = dict(_known(numbers), size=ffi.sizeof("struct nvs_rule_update"), rule=_rule(self.rule),
                      lr=0.0 if lr is None else lr, beta1=betas[0], beta2=betas[1], grad_factor=_factor(grad_factor),
                      step=1, gradients_dtype=lib.NVS_F32, weights_dtype=lib.NVS_F32)
        error = new_error()
        # An update of no elements checks the numbers.
        check(lib.nvs_rule_update(ffi.new("struct nvs_rule_update *", update), error), error)
        self._table[group] = {"update": dict(update, lr=-1.0 if lr is None else lr), "missed": missed}


class GroupAdam(GroupRule):
    """:class:`GroupRule` of Adam, as :func:`adam_update` steps."""

    def __init__(self, ngroups: int) -> None:
        super().__init__("adam", ngroups)

    def set(self, group: int, *, lr: Optional[float] = 1e-3, betas: Sequence[float] = (0.9, 0.999),
            grad_factor: float = 1.0, missed: int = 0, eps: float = 1e-8,
            weight_decay: float = 0.0, adam_w_mode: bool = True,
            bias_correction: bool = True) -> None:
        """Sets the numbers of a group, between steps; see :meth:`GroupRule.set`."""
        super().set(group, lr=lr, betas=betas, grad_factor=grad_factor, missed=missed, eps=eps,
                    weight_decay=weight_decay, adam_w_mode=adam_w_mode, bias_correction=bias_correction)


class _Calls:
    """What the library calls back in the calls on an optimizer, and the first exception of a
    callback, which C can't pass on."""

    def __init__(self, update: Any, weights_final: Any, optimizer: "Optimizer") -> None:
        self._optimizer = weakref.ref(optimizer)
        self.update = update
        self.weights_final = weights_final
        self.state: Any = None
        self.failure: Optional[BaseException] = None

    @contextmanager
    def callback(self) -> Iterator[None]:
        """A callback, of any thread: it is a part of the call, in which close() is refused."""
        optimizer = self._optimizer()
        assert optimizer is not None
        optimizer._begin_call()
        try:
            yield
        except BaseException as failure:
            # Its frames have the arrays.
            drop_variables(failure)
            self.failure = self.failure or failure
        finally:
            optimizer._end_call()

    def memory(self) -> "_Memory":
        optimizer = self._optimizer()
        assert optimizer is not None
        return _Memory(optimizer)

    def raise_failure(self) -> None:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure


class _Memory:
    """The memory of one callback's arrays, which have references to this: an optimizer that has one
    isn't closed."""

    def __init__(self, optimizer: "Optimizer") -> None:
        self._optimizer = optimizer
        optimizer._kept[id(self)] = None

    def __del__(self) -> None:
        self._optimizer._kept.pop(id(self), None)

    def _keep(self, _: Any) -> None:
        """Called when an array is gone; its reference to this method kept the memory."""

    def array(self, data: Any, dtype: str, numel: int, writable: bool = True) -> Any:
        owner = ffi.gc(ffi.cast("char *", data), self._keep)
        return array_over(ffi.buffer(owner, numel * itemsize(dtype)), dtype, (numel,), "numpy",
                          writable)

    def floats(self, numel: int, *data: Any) -> List[Any]:
        return [self.array(each, "F32", numel) if each else None for each in data]


# A callback gives the arrays to the caller's function and has no variables with them.

def _update_of(memory: _Memory, update: Any) -> Update:
    return Update(update.group, update.offset, update.step, update.lr, *memory.floats(
        update.numel, update.gradients, update.master, update.exp_avg, update.exp_avg_sq,
        update.momentum_buffer, update.sum))


def _state_of(memory: _Memory, run: Any) -> StateRun:
    return StateRun(run.group, run.offset, *memory.floats(
        run.numel, run.master, run.exp_avg, run.exp_avg_sq, run.momentum_buffer, run.sum))


@ffi.def_extern()
def nvswap_update(arg: Any, update: Any) -> None:
    calls = ffi.from_handle(arg)
    with calls.callback():
        calls.update(_update_of(calls.memory(), update))


@ffi.def_extern()
def nvswap_weights_final(arg: Any, group: int, offset: int, numel: int, dtype: int,
                         data: Any) -> None:
    calls = ffi.from_handle(arg)
    with calls.callback():
        calls.weights_final(group, offset, calls.memory().array(
            data, number_name(dtype), numel, False))


@ffi.def_extern(error=-5)
def nvswap_state(arg: Any, run: Any) -> int:
    calls = ffi.from_handle(arg)
    with calls.callback():
        calls.state(_state_of(calls.memory(), run))
        return 0
    return -5


class Optimizer(Handle):
    """
    Opens the state of groups in the store of the offload_optimizer block.

    Parameters
    ----------
    config : Config, str or dict
        optimizer.type Adam, AdamW, SGD, Adagrad or Lion with its params, gradient_clipping, fp16,
        sub_group_size.
    groups : sequence of Group or mapping of str to array, optional
        None: those of the kept store, without weights; ratio and grad_accum_dtype are its own too.
    update : callable or GroupRule, optional
        Gets an :class:`Update` instead of the configured optimizer; of several threads. The library
        can't end a step for its exception: see :meth:`step`.
    rule : {"adam", "sgd", "adagrad", "lion"}, optional
        Whose states the optimizer of a callable `update` has: Adam's by default. Without one optimizer.type chooses.
    weights_final : callable, optional
        Gets ``(group, offset, array)`` once for each run of new weights, of several threads; the
        array is as those of :class:`Update`.
    aio : Aio, optional
        Whose workers to share.
    state : str, optional
        The format of the state, "fp32", "split", "bf16" or "8bit": see docs/state-formats.md. By
        default that of the configuration, "nvswap.optimizer_state".
    take_weights : bool
        Steps begin from the contents of weights where the program has changed these since the last step.

    Raises
    ------
    Error
        Those of nvs_optimizer_open, such as ENOSPC, EBUSY, ESTALE (a kept store has other groups).

    Notes
    -----
    In a callback, calls on this optimizer raise Error EDEADLK, but for :attr:`loss_scale`,
    :attr:`note` and :meth:`stats`. A callback must not wait for such a call of another thread, which
    waits for the callback. While arrays that a callback was given exist, close() and abandon() raise
    EBUSY.
    """

    _what = "optimizer"

    def __init__(self, config: Any, groups: Any = None, *,
                 update: Union[None, GroupRule, Callable[[Update], None]] = None,
                 rule: Optional[str] = None,
                 weights_final: Optional[Callable[[int, int, Any], None]] = None,
                 aio: Optional[Aio] = None, state: Optional[str] = None, take_weights: bool = False) -> None:
        optimizer, error = ffi.new("struct nvs_optimizer **"), new_error()
        self._config = config_of(config)
        self._kept: Dict[int, None] = {}  # See _Memory.
        self.groups: List[Group] = [] if groups is None else _groups_of(groups)
        self._calls_back = _Calls(update, weights_final, self)
        self._arg = ffi.new_handle(self._calls_back)
        self._weights, specs, keep = _specs_of(self.groups)
        if groups is None:
            specs = _NULL
        options = ffi.new("struct nvs_optimizer_options *")
        options.size = ffi.sizeof("struct nvs_optimizer_options")
        if groups is None and isinstance(update, GroupRule):
            raise invalid("numbers of a rule by group need the groups")
        if isinstance(update, GroupRule) and update.ngroups != len(self.groups):
            raise invalid(f"{len(self.groups)} groups, and numbers of a rule for {update.ngroups}")
        options.update = lib.nvswap_update if update else _NULL
        options.weights_final = lib.nvswap_weights_final if weights_final else _NULL
        options.update_arg = options.weights_final_arg = self._arg
        options.take_weights = take_weights
        if rule is not None and (update is None or isinstance(update, GroupRule)):
            raise invalid("rule= is that of an update function: without one, optimizer.type of the configuration "
                          "chooses the rule, and a GroupRule has its own")
        options.rule = _rule(rule or "adam")
        if isinstance(update, GroupRule):
            options.update = ffi.addressof(lib, "nvswap_update_group")
            options.update_arg, options.rule = update._table, _rule(update.rule)
        if state is not None:
            if state not in _STATES:
                raise invalid(f"state is one of {', '.join(_STATES)}, not {state!r}")
            format_of_state = ffi.new("enum nvs_optimizer_state *", _STATES[state])
            options.state = format_of_state
        # Gradients that are lent, by group: kept until a step or clear_gradients.
        self._lent: Dict[int, Any] = {}
        self._take_last: Optional[Callable[["Optimizer"], None]] = None
        with self._config._opening() as (pointer, used):
            if aio is None:
                code = lib.nvs_optimizer_open(optimizer, pointer, specs, len(self.groups), options,
                                              error)
            else:
                with aio._open() as shared:
                    options.aio = shared
                    code = lib.nvs_optimizer_open(optimizer, pointer, specs, len(self.groups),
                                                  options, error)
            check(code, error)
            super().__init__(optimizer[0], *used, *([aio] if aio else []))
        del keep
        if groups is None:
            self.groups = [self._stored_group(i) for i in range(self.info()["ngroups"])]
        self._numbers = {group.name: i for i, group in enumerate(self.groups)}

    def _before_close(self) -> None:
        # Gradients that are on their way, of a store that is kept.
        if self._take_last is not None:
            self._take_last(self)

    def _free(self, pointer: Any, at_exit: bool) -> None:
        if not at_exit:
            self._refuse_kept()
        error = new_error()
        check(lib.nvs_optimizer_close(pointer, error), error)

    def abandon(self) -> None:
        """Closes the optimizer without a commit: a kept store stays as last committed."""
        def free(pointer: Any) -> None:
            self._refuse_kept()
            error = new_error()
            check(lib.nvs_optimizer_abandon(pointer, error), error)

        self._close(free)

    def _refuse_kept(self) -> None:
        """Refuses to free memory that arrays are over."""
        if self._kept:
            gc.collect()  # Those in cycles are gone, too.
        if self._kept:
            raise Error(errno.EBUSY, "a callback of the optimizer has kept an array over its "
                        "memory, maybe in an exception that it has caught: drop it, keep copies")

    def _number(self, group: Union[int, str]) -> int:
        if isinstance(group, str):
            if group not in self._numbers:
                raise invalid(f"no group {group!r}")
            return self._numbers[group]
        if not 0 <= group < len(self.groups):
            raise invalid(f"no group {group}")
        return group

    # ---- Gradients

    def lend_gradients(self, group: Union[int, str], gradients: Any, dtype: Any = None) -> None:
        """
        Gives all gradients of a group for the next step, without a copy.

        Parameters
        ----------
        gradients : array
            F32, BF16 or F16, scaled by :attr:`loss_scale`; kept alive, and not to be changed before
            the step.
        dtype : optional
            Where the array can't say: "BF16" of a numpy array of uint16.
        """
        number, span, error = self._number(group), span_of(gradients, False), new_error()
        kind = dtype_name(dtype) if dtype else array_dtype(gradients)
        numel = self._group_numel(number)
        if span.nbytes != numel * itemsize(kind):
            raise invalid(f"group {self.groups[number].name} has {numel} elements, the gradients "
                          f"{span.nbytes // itemsize(kind)}")
        with self._open() as pointer:
            check(lib.nvs_optimizer_lend_gradients(pointer, number, dtype_number(kind),
                                                   span.pointer, error), error)
            self._lent[number] = span.owner

    def add_gradients(self, group: Union[int, str], gradients: Any, offset: int = 0,
                      dtype: Any = None) -> None:
        """Adds gradients to those since the last step, from element `offset` of the group on; they
        are copied."""
        number, span, error = self._number(group), span_of(gradients, False), new_error()
        kind = dtype_name(dtype) if dtype else array_dtype(gradients)
        if offset < 0:
            raise invalid(f"an offset is not negative: {offset}")
        with self._open() as pointer:
            check(lib.nvs_optimizer_add_gradients(
                pointer, number, offset, span.nbytes // itemsize(kind), dtype_number(kind),
                span.pointer, _NULL, error), error)

    def clear_gradients(self) -> None:
        """Discards all gradients, as a step does at its end."""
        error = new_error()
        with self._open() as pointer:
            check(lib.nvs_optimizer_clear_gradients(pointer, error), error)
            self._lent.clear()

    def sum_squares(self) -> float:
        """The sum of the squares of this optimizer's scaled gradients, to be summed over ranks."""
        sums, error = ffi.new("struct nvs_gradient_sums *"), new_error()
        sums.size = ffi.sizeof("struct nvs_gradient_sums")
        with self._open() as pointer:
            check(lib.nvs_optimizer_sum_gradients(pointer, sums, error), error)
        return float(sums.sum_squares)

    def sum_squares_of_groups(self) -> List[float]:
        """The same for each group."""
        sums, error = ffi.new("double[]", len(self.groups)), new_error()
        with self._open() as pointer:
            check(lib.nvs_optimizer_sum_groups(pointer, sums, len(self.groups), error), error)
        return list(sums)

    # ---- Steps

    def step(self, lr: Optional[float] = None, *, sum_squares: Optional[float] = None,
             norm: bool = False) -> StepResult:
        """
        Steps all groups that have gradients, and discards these.

        Parameters
        ----------
        lr : float, optional
            The learning rate instead of the configured one; not negative.
        sum_squares : float, optional
            Of the gradients of all ranks, for clipping and overflow.
        norm : bool
            Compute the norm even without clipping.

        Returns
        -------
        StepResult
            A dictionary of the fields of struct nvs_step_result.

        Raises
        ------
        Error
            EIO and others of the drive, Timeout: the step isn't finished; call it again with the
            same gradients. ERANGE: skipped at the smallest loss scale.
        Exception
            The first of `update` and `weights_final`, without the variables of its frames. The step
            has gone on: each run was given to the callback once, and has what the callback made of
            it until its exception. If no error of the drive came too, which `info()["unfinished"]`
            tells, the step is counted and the gradients are discarded; a second call does not
            repeat it.
        """
        if lr is not None and not lr >= 0:
            raise invalid(f"a learning rate is not negative: {lr}")
        options, result = ffi.new("struct nvs_step_options *"), ffi.new("struct nvs_step_result *")
        options.size, result.size = (ffi.sizeof("struct nvs_step_options"),
                                     ffi.sizeof("struct nvs_step_result"))
        options.lr, options.norm, error = -1.0 if lr is None else lr, norm, new_error()
        sums = ffi.new("struct nvs_gradient_sums *")
        if sum_squares is not None:
            sums.size, sums.sum_squares = ffi.sizeof("struct nvs_gradient_sums"), sum_squares
            options.sums = sums
        with self._open() as pointer:
            code = lib.nvs_optimizer_step(pointer, options, result, error)
            if not code:
                self._lent.clear()
            self._calls_back.raise_failure()
            check(code, error)
        return cast(StepResult, fields_of(result))

    @property
    def loss_scale(self) -> float:
        """The factor to multiply the next step's loss by; 1 without fp16."""
        with self._open() as pointer:
            return float(lib.nvs_optimizer_loss_scale(pointer))

    def info(self) -> Dict[str, Any]:
        """The fields of struct nvs_optimizer_info: step, loss_scale, ngroups, kept, unfinished; the
        format of the `state` by its name, and its split_numel and step_bytes; `rule` is that of
        :class:`GroupRule`."""
        info, error = ffi.new("struct nvs_optimizer_info *"), new_error()
        info.size = ffi.sizeof("struct nvs_optimizer_info")
        with self._open() as pointer:
            check(lib.nvs_optimizer_get_info(pointer, info, error), error)
        return dict(fields_of(info), state=list(_STATES)[info.state],
                    rule=next(name for name, number in _RULES.items() if number == info.rule))

    def _stored_group(self, group: int) -> Group:
        info, error = ffi.new("struct nvs_group_info *"), new_error()
        info.size = ffi.sizeof("struct nvs_group_info")
        with self._open() as pointer:
            check(lib.nvs_optimizer_get_group_info(pointer, group, info, error), error)
            return Group(ffi.string(info.name).decode(), None, int(info.numel), "F32")

    def group_info(self, group: Union[int, str]) -> Dict[str, Any]:
        """The fields of struct nvs_group_info; `gradients` is none, lent, added or owed."""
        info, error = ffi.new("struct nvs_group_info *"), new_error()
        info.size = ffi.sizeof("struct nvs_group_info")
        with self._open() as pointer:
            check(lib.nvs_optimizer_get_group_info(pointer, self._number(group), info, error), error)
            fields = fields_of(info)
        fields["dtype"] = ffi.string(lib.nvs_dtype_name(info.dtype)).decode()
        fields["gradients"] = _GRADIENTS[info.gradients]
        return fields

    @property
    def step_count(self) -> int:
        """Steps taken, without skipped ones, also of the runs before; can be set for an imported
        state."""
        return int(self.info()["step"])

    @step_count.setter
    def step_count(self, step: int) -> None:
        error = new_error()
        if step < 0:
            raise invalid(f"a step count is not negative: {step}")
        with self._open() as pointer:
            check(lib.nvs_optimizer_set_step(pointer, step, error), error)

    # ---- State

    def _group_numel(self, number: int) -> int:
        numel = self.groups[number].numel
        assert numel is not None
        return numel

    def get_state(self, group: Union[int, str], part: str, offset: int = 0,
                  numel: Optional[int] = None, out: Any = None) -> Any:
        """
        Reads state.

        Parameters
        ----------
        part : {"master", "exp_avg", "exp_avg_sq", "momentum_buffer", "sum"}
            Of the optimizer's rule.
        offset, numel : int
            Elements of the group; to its end by default.
        out : array, optional
            F32 elements to read into, as many as it has; otherwise a numpy array is made.
        """
        number, error = self._number(group), new_error()
        if out is None:
            numpy = imported_numpy()
            left = max(0, self._group_numel(number) - offset)
            out = numpy.empty(left if numel is None else numel, numpy.float32)
        span = _float_span(out, True)
        with self._open() as pointer:
            check(lib.nvs_optimizer_get(pointer, number, _part(part), _offset(offset),
                                        span.nbytes // 4, ffi.cast("float *", span.address), error),
                  error)
        return out

    def set_state(self, group: Union[int, str], part: str, data: Any, offset: int = 0) -> None:
        """Writes F32 state, from element `offset` of the group on; a failed write is reported by a
        later call."""
        number, error, span = self._number(group), new_error(), _float_span(data, False)
        with self._open() as pointer:
            check(lib.nvs_optimizer_set(pointer, number, _part(part), _offset(offset),
                                        span.nbytes // 4, ffi.cast("float *", span.address), error),
                  error)

    def export_state(self, function: Callable[[StateRun], None]) -> None:
        """Calls `function` with every run of state once, of several threads; an exception ends the
        export and is raised."""
        self._pass(lib.nvs_optimizer_export, function)

    def import_state(self, function: Callable[[StateRun], None]) -> None:
        """Has `function` fill the arrays of every run of state; the new master weights go to the
        groups' weights."""
        self._pass(lib.nvs_optimizer_import, function)

    def _pass(self, call: Any, function: Callable[[StateRun], None]) -> None:
        calls, error = _Calls(None, None, self), new_error()
        calls.state, arg = function, ffi.new_handle(calls)
        with self._open() as pointer:
            code = call(pointer, lib.nvswap_state, arg, error)
            calls.raise_failure()
            check(code, error)

    def get_weights(self) -> None:
        """Copies the master weights to the groups' weights, as a step does."""
        error = new_error()
        with self._open() as pointer:
            check(lib.nvs_optimizer_get_weights(pointer, error), error)

    def set_weights(self, weights: Mapping[Union[int, str], Any]) -> None:
        """Writes new weights of these groups to other arrays from now on, of the same type and length, whose
        contents are the caller's to copy."""
        moved, error = ffi.new("void *[]", len(self.groups)), new_error()
        spans = {}
        for group, array in weights.items():
            number, span = self._number(group), span_of(array, True)
            if span.nbytes != self._group_numel(number) * itemsize(self.groups[number].dtype):
                raise invalid(f"the weights of group {group} have {span.nbytes} bytes")
            moved[number], spans[number] = span.pointer, span
        with self._open() as pointer:
            check(lib.nvs_optimizer_set_weights(pointer, moved, len(self.groups), error), error)
            self._weights.update(spans)

    def _forget_weights(self) -> None:
        """The arrays of weights are not kept alive any more: before a call that writes them, the caller gives those
        that have moved to set_weights."""
        self._weights.clear()
        self.groups = [group._replace(weights=None) for group in self.groups]

    def commit(self) -> None:
        """Makes the state of a kept store durable, with step count and loss scale."""
        error = new_error()
        with self._open() as pointer:
            check(lib.nvs_optimizer_commit(pointer, error), error)

    @property
    def note(self) -> bytes:
        """As Engine.note."""
        with self._open() as pointer:
            return note_of(lib.nvs_optimizer_get_note, pointer)

    @note.setter
    def note(self, note: bytes) -> None:
        error = new_error()
        with self._open() as pointer:
            check(lib.nvs_optimizer_set_note(pointer, bytes(note), len(note), error), error)

    def stats(self) -> Dict[str, Any]:
        """The statistics of the optimizer's engine."""
        with self._open() as pointer:
            return engine_stats(lib.nvs_optimizer_engine(pointer))


def _part(part: str) -> int:
    if part not in _PARTS:
        raise invalid(f'a part is one of {", ".join(_PARTS)}, not {part!r}')
    return int(_PARTS[part])


def _rule(rule: str) -> int:
    if rule not in _RULES:
        raise invalid(f'a rule is one of {", ".join(_RULES)}, not {rule!r}')
    return int(_RULES[rule])


def _offset(offset: int) -> int:
    if offset < 0:
        raise invalid(f"an offset is not negative: {offset}")
    return offset


def _float_span(array: Any, writable: bool) -> Span:
    if array_dtype(array) != "F32":
        raise invalid(f"state is F32, not {array_dtype(array)}")
    return span_of(array, writable)


def _groups_of(groups: Any) -> List[Group]:
    pairs: Sequence[Any] = list(groups.items()) if hasattr(groups, "items") else list(groups)
    result = []
    for pair in pairs:
        group = pair if isinstance(pair, Group) else Group(*pair)
        if group.weights is not None:
            numel = array_numel(group.weights)
            dtype = group.dtype or array_dtype(group.weights)
        elif group.numel is None:
            raise invalid(f"group {group.name} has neither weights nor numel")
        else:
            numel, dtype = int(group.numel), group.dtype or "F32"
        result.append(Group(group.name, group.weights, numel, dtype_name(dtype)))
    return result


def _specs_of(groups: List[Group]) -> Any:
    """What keeps the weights alive, the groups for the library, and their names."""
    names = [ffi.new("char[]", encoded(group.name)) for group in groups]
    specs, spans = ffi.new("struct nvs_group_spec[]", max(1, len(groups))), {}
    for number, (spec, name, group) in enumerate(zip(specs, names, groups)):
        assert group.numel is not None
        if group.numel < 0:
            raise invalid(f"group {group.name} has {group.numel} elements")
        spec.size, spec.name, spec.numel = ffi.sizeof("struct nvs_group_spec"), name, group.numel
        spec.dtype = dtype_number(group.dtype)
        if group.weights is not None:
            span = span_of(group.weights, True)
            if span.nbytes != group.numel * itemsize(group.dtype):
                raise invalid(f"the weights of group {group.name} are not {group.dtype}")
            spans[number] = span
            spec.weights = span.pointer
    return spans, specs, names


def adam_update(master: Any, gradients: Any, exp_avg: Any, exp_avg_sq: Any, *, step: int,
                lr: float = 1e-3, betas: Sequence[float] = (0.9, 0.999), eps: float = 1e-8,
                weight_decay: float = 0.0, adam_w_mode: bool = True, bias_correction: bool = True,
                grad_factor: float = 1.0, gradients_dtype: Any = None, weights: Any = None,
                weights_dtype: Any = None) -> None:
    """
    Updates arrays in memory by one Adam step, on the calling thread and without the GIL.

    Parameters
    ----------
    master, exp_avg, exp_avg_sq : arrays of F32
        Read and updated; they don't overlap.
    gradients : array of F32, BF16 or F16
        Multiplied by `grad_factor` first.
    step : int
        From 1.
    weights : array of F32, BF16 or F16, optional
        Receives the new master weights.
    gradients_dtype, weights_dtype : optional
        Where the array can't say: "BF16" of a numpy array of uint16.

    Raises
    ------
    Error
        EINVAL: lengths differ, a type or a number is out of bounds; nothing has changed.
    """
    rule_update("adam", master, gradients, {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}, step=step, lr=lr,
                betas=betas, eps=eps, weight_decay=weight_decay, adam_w_mode=adam_w_mode,
                bias_correction=bias_correction, grad_factor=grad_factor, gradients_dtype=gradients_dtype,
                weights=weights, weights_dtype=weights_dtype)


def rule_update(rule: str, master: Any, gradients: Any, states: Mapping[str, Any], *, step: int,
                lr: float = 1e-3, betas: Sequence[float] = (0.9, 0.999), grad_factor: float = 1.0,
                gradients_dtype: Any = None, weights: Any = None, weights_dtype: Any = None, **numbers: Any) -> None:
    """
    Updates arrays in memory by one step of a rule, as :func:`adam_update` by one of Adam.

    Parameters
    ----------
    rule : {"adam", "sgd", "adagrad", "lion"}
    states : mapping of str to array of F32
        The rule's, by their names; read and updated.
    **numbers
        Those of :meth:`GroupRule.set`.

    Raises
    ------
    Error
        EINVAL: lengths differ, other states, a type or a number is out of bounds; nothing has changed.
    TypeError
        There is no such number.
    """
    update, error, numel = ffi.new("struct nvs_rule_update *"), new_error(), array_numel(master)
    update.size, update.rule, update.numel = ffi.sizeof("struct nvs_rule_update"), _rule(rule), numel
    if set(states) != set(STATES[rule]):
        raise invalid(f"{rule} has {', '.join(STATES[rule])}, and states are {', '.join(states) or 'none'}")
    arrays = {"master": master, **states}
    spans = {name: _float_span(each, True) for name, each in arrays.items()}
    kind = dtype_name(gradients_dtype) if gradients_dtype else array_dtype(gradients)
    span = span_of(gradients, False)
    lengths = [each.nbytes / 4 for each in spans.values()] + [span.nbytes / itemsize(kind)]
    update.gradients, update.gradients_dtype = span.pointer, dtype_number(kind)
    for name, each in spans.items():
        setattr(update, name, ffi.cast("float *", each.address))
    update.weights_dtype = lib.NVS_F32
    if weights is not None:
        kind = dtype_name(weights_dtype) if weights_dtype else array_dtype(weights)
        span = span_of(weights, True)
        lengths.append(span.nbytes / itemsize(kind))
        update.weights, update.weights_dtype = span.pointer, dtype_number(kind)
    if any(length != numel for length in lengths) or step < 0:
        raise invalid(f"the arrays have {lengths} elements, at step {step}")
    update.step, update.lr, (update.beta1, update.beta2) = step, lr, betas
    update.grad_factor = _factor(grad_factor)
    for name, value in _known(numbers).items():
        setattr(update, name, value)
    check(lib.nvs_rule_update(update, error), error)


def _factor(grad_factor: float) -> float:
    if not math.isfinite(grad_factor) or grad_factor == 0:
        raise invalid(f"a gradient's factor is finite and not 0: {grad_factor}")
    return grad_factor


def _known(numbers: Dict[str, Any]) -> Dict[str, Any]:
    """Numbers of rules, once their names are checked."""
    unknown = sorted(set(numbers) - set(_NUMBERS))
    if unknown:
        raise TypeError(f"a rule has no {', '.join(unknown)}: beside lr, betas and grad_factor there are "
                        f"{', '.join(_NUMBERS)}")
    return numbers
