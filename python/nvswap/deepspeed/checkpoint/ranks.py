# SPDX-License-Identifier: Apache-2.0
"""
Failures of one rank that all ranks must know: the others would wait for it in their next collective.
"""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

from deepspeed import comm as dist


def share_failure(failure: Optional[Exception]) -> Optional[Tuple[int, str]]:
    """Raises this rank's failure, on all ranks at once; all of them call it. Returns the first other
    rank that failed, with its message; None if none did."""
    texts: List[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(texts, failure and str(failure))
    if failure is not None:
        raise failure
    return next(((rank, text) for rank, text in enumerate(texts) if text is not None), None)
