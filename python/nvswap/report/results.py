# SPDX-License-Identifier: Apache-2.0
"""
Results as JSON: which command wrote a file, and its numbers. A file may come from anywhere: what is
read from it is a finite number from 0 on, or text, or an error that names file and member.
"""

import json
import math
import os
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

# Nothing that is measured comes near it, and no arithmetic on such numbers overflows.
NUMBER_MAX = 1e21


class ResultError(Exception):
    """Why there is no page, for the user."""


@dataclass
class Result:
    """What one file has."""

    path: str
    kind: str  # "tune", "compare" or "bench", which fio's are too
    data: Dict[str, Any]

    @property
    def label(self) -> str:
        """The file's name without directory and .json."""
        name = os.path.basename(self.path)
        return name[:-5] if name.endswith(".json") else name


def _kind_of(data: Any) -> Optional[str]:
    if not isinstance(data, dict):
        return None
    if isinstance(data.get("tune"), dict):
        return "tune"
    if not isinstance(data.get("jobs"), list) or not data["jobs"]:
        return None
    return "compare" if "threshold" in data and "results" in data else "bench"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _last_result(text: str) -> Tuple[Optional[str], Any]:
    """
    The last document with a result: lines around one (fio's warnings, output in another form) and
    earlier ones (--status-interval) are passed over.
    """
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    found: Tuple[Optional[str], Any] = (None, None)
    at = 0 if text.startswith("{") else text.find("\n{") + 1
    while text.startswith("{", at):
        data, end = decoder.raw_decode(text, at)
        if _kind_of(data):
            found = _kind_of(data), data
        at = text.find("\n{", end) + 1
        if not at:
            break
    return found


def read_result(path: str) -> Result:
    """
    Reads a file that `nvswap bench`, `tune`, `compare` or fio has written.

    Raises
    ------
    ResultError
        The file can't be read, is not JSON, or has no such result.
    """
    try:
        with open(path, encoding="utf-8") as file:
            kind, data = _last_result(file.read())
    except OSError as error:
        raise ResultError(f"{path} can't be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise ResultError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise ResultError(f"{path} can't be read as JSON: {error}") from None
    if not kind:
        raise ResultError(f"{path} is no result: give what --output-format json of nvswap bench, "
                          "tune or compare, or of fio, has written")
    return Result(path, kind, data)


def is_number(value: Any) -> bool:
    """Whether it is a finite number from 0 on."""
    return (isinstance(value, (int, float)) and not isinstance(value, bool)
            and 0 <= value < NUMBER_MAX)


def member(of: Any, *keys: str, default: Any = None) -> Any:
    """The member of nested objects; `default` if there is none, or null."""
    for key in keys:
        of = of.get(key) if isinstance(of, dict) else None
    return default if of is None else of


def number(of: Any, *keys: str, default: Optional[float] = None) -> float:
    """
    The number at that place.

    Raises
    ------
    ResultError
        It is something else, or it is missing and there is no default.
    """
    value = member(of, *keys, default=default)
    if not is_number(value):
        raise ResultError(f"{'.'.join(keys)} must be a number, not below 0")
    return value


def count(of: Any, *keys: str) -> int:
    """The whole number from 1 on at that place."""
    value = number(of, *keys)
    if value < 1 or value != math.floor(value):
        raise ResultError(f"{'.'.join(keys)} must be a whole number from 1 on")
    return int(value)


def text(of: Any, *keys: str) -> str:
    """The text at that place, empty if there is none."""
    value = member(of, *keys, default="")
    return value if isinstance(value, str) else json.dumps(value)


def items(of: Any, *keys: str) -> list:
    """The list at that place, empty if there is none."""
    value = member(of, *keys, default=[])
    if not isinstance(value, list):
        raise ResultError(f"{'.'.join(keys)} must be a list")
    return value
