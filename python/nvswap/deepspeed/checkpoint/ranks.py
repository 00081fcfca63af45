# SPDX-License-Identifier: Apache-2.0
"""
Failures of one rank that all ranks must know: the others would wait for it in their next collective.
"""

from __future__ import annotations

import errno
from typing import Any, Callable, List, Optional, Tuple, TypeVar

from torch import distributed

from nvswap.errors import Error

_Result = TypeVar("_Result")


def of_all_ranks(value: Any) -> List[Any]:
    """The values of all ranks, in their order; all of them call it."""
    values: List[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


def share_failure(failure: Optional[Exception]) -> Optional[Tuple[int, str]]:
    """Raises this rank's failure, on all ranks at once; all of them call it. Returns the first other
    rank that failed, with its message; None if none did."""
    own = failure.strerror if isinstance(failure, Error) else failure and str(failure)
    texts = of_all_ranks(failure and (own or repr(failure)))
    if failure is not None:
        raise failure
    return next(((rank, text) for rank, text in enumerate(texts) if text is not None), None)


def together(what: str, call: Callable[[], _Result]) -> _Result:
    """
    Runs `call`, and returns once all ranks have run theirs; all of them call this.

    Raises
    ------
    Exception
        What this rank's call raised.
    Error
        EIO: another rank could not do `what`.
    """
    result: Any = None
    failure = None
    try:
        result = call()
    except Exception as error:  # pylint: disable=broad-exception-caught
        failure = error
    failed = share_failure(failure)
    if failed is not None:
        rank, text = failed
        raise Error(errno.EIO, f"rank {rank} could not {what}: {text}")
    return result  # type: ignore[no-any-return]
