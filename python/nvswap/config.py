# SPDX-License-Identifier: Apache-2.0
"""
The configuration: a DeepSpeed JSON file, a dictionary, or single settings by their key.
docs/configuration.md has the keys, their units and defaults.
"""

from __future__ import annotations

import contextlib
import json
import logging
import operator
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from nvswap._native import ffi, lib
from nvswap.errors import check, invalid, new_error
from nvswap.handle import Handle
from nvswap.strings import encoded, encoded_path

if TYPE_CHECKING:
    from nvswap.trace import Trace

LogFunction = Callable[[int, str], None]

_BLOCKS = {"param": lib.NVS_OFFLOAD_PARAM, "optimizer": lib.NVS_OFFLOAD_OPTIMIZER}
_LEVELS = {lib.NVS_LOG_ERROR: logging.ERROR, lib.NVS_LOG_WARNING: logging.WARNING,
           lib.NVS_LOG_INFO: logging.INFO, lib.NVS_LOG_DEBUG: logging.DEBUG}


def block_number(block: str) -> int:
    """The number of a block: "param" or "optimizer"."""
    if block not in _BLOCKS:
        raise invalid(f'a block is "param" or "optimizer", not {block!r}')
    return int(_BLOCKS[block])


def _number(value: Any) -> Any:
    """A number of numpy or of another package, as JSON has it."""
    if hasattr(value, "tolist"):  # numpy's bool has neither of the others
        return value.tolist()
    if hasattr(value, "__index__"):
        return operator.index(value)
    if hasattr(value, "__float__"):
        return float(value)
    raise TypeError(f"the value of a setting is a number, a bool, a string or None, not {value!r}")


def _text(value: Any) -> str:
    return json.dumps(value, default=_number)


def as_json(source: Dict[Any, Any]) -> str:
    """A dictionary as JSON. What JSON does not have is an object with its repr for a key, which no setting takes."""
    return json.dumps(_plain(source, ()))


def _plain(value: Any, around: Tuple[int, ...]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (bytes, os.PathLike)):
        return os.fsdecode(value)
    if id(value) not in around and isinstance(value, (dict, list, tuple)):
        around += (id(value),)
        if isinstance(value, dict):
            return {str(key): _plain(each, around) for key, each in value.items()}
        return [_plain(each, around) for each in value]
    try:
        return _plain(_number(value), around)
    except Exception:  # pylint: disable=broad-except
        return {repr(value): None}


def _encoded_key(key: str) -> bytes:
    if not isinstance(key, str):
        raise TypeError(f'a key is a string, such as "aio.block_size", not {key!r}')
    return encoded(key)


@ffi.def_extern()
def nvswap_log(arg: Any, level: int, text: Any) -> None:
    ffi.from_handle(arg)(_LEVELS.get(level, logging.DEBUG),
                         ffi.string(text).decode(errors="replace"))


class Config(Handle):
    """
    Settings of engines, optimizers and aios, which copy what they need when they are opened.

    Parameters
    ----------
    source : str, os.PathLike, dict or Config, optional
        A DeepSpeed JSON file, its contents as a dictionary, or another configuration to copy.
    log : callable, optional
        Gets ``(level, text)``, with the levels of `logging`, from any thread. Without one,
        messages go to the logger ``"nvswap"``.

    Raises
    ------
    Error
        EINVAL with key and line: an unknown key or a value of a wrong type or out of range; any
        errno of opening and reading the file.
    """

    _what = "configuration"
    _trace: Optional["Trace"] = None

    def __init__(self, source: Union[None, str, "os.PathLike[str]", Dict[str, Any], "Config"] = None,
                 *, log: Optional[LogFunction] = None) -> None:
        config, error = ffi.new("struct nvs_config **"), new_error()
        if isinstance(source, Config):
            with source._open() as pointer:
                check(lib.nvs_config_copy(pointer, config, error), error)
            log = log or source._log
            self._trace = source._trace
        else:
            check(lib.nvs_config_open(config, error), error)
        super().__init__(config[0])
        self._log: LogFunction = log or logging.getLogger("nvswap").log
        self._log_handle = ffi.new_handle(self._log)
        lib.nvs_config_set_log(
            config[0], ffi.addressof(lib, "nvswap_log_unless_ended"), self._log_handle)
        if isinstance(source, dict):
            self.parse(as_json(source), "the dictionary")
        elif source is not None and not isinstance(source, Config):
            self.load(source)

    def _free(self, pointer: Any, at_exit: bool) -> None:
        lib.nvs_config_close(pointer)

    def set_trace(self, trace: Optional["Trace"]) -> None:
        """What is opened with the configuration, or a copy of it, records in the trace."""
        with self._open() as pointer:
            if trace is None:
                lib.nvs_config_set_trace(pointer, ffi.NULL)
            else:
                with trace._open() as recorded:
                    lib.nvs_config_set_trace(pointer, recorded)
            self._trace = trace

    @contextlib.contextmanager
    def _opening(self) -> Iterator[Tuple[Any, List[Handle]]]:
        """A block that opens an object with the configuration and makes its handle: gives the pointer, and what
        must outlive the object. A trace is not closed amid it."""
        trace = self._trace
        with self._open() as pointer, trace._open() if trace is not None else contextlib.nullcontext():
            yield pointer, [trace] if trace is not None else []

    def load(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Reads a DeepSpeed JSON file over the settings; on an error none has changed."""
        error = new_error()
        with self._open() as pointer:
            check(lib.nvs_config_load(pointer, encoded_path(path), error), error,
                  os.fsdecode(path))

    def parse(self, text: str, name: str = "the text") -> None:
        """Reads JSON over the settings; errors name `name` as the file."""
        data, error = text.encode(), new_error()
        with self._open() as pointer:
            check(lib.nvs_config_parse(pointer, data, len(data), encoded(name), error), error)

    def set(self, key: str, value: Any) -> None:
        """
        Sets one setting.

        Parameters
        ----------
        key : str
            With dots, as in ``"aio.block_size"`` or ``"offload_param.nvme_path"``.
        value : int, float, bool, str, None or list of str
            As in the file; a string may be a size such as ``"1M"``, a number any with ``__index__`` or
            ``__float__``, such as numpy's. A list is for ``nvme_path``.

        Raises
        ------
        Error
            EINVAL: no such key (the nearest is named), a wrong type, or out of range.
        TypeError
            The key is no string, or the value nothing that JSON has.
        """
        name = _encoded_key(key)
        if isinstance(value, (list, tuple)):
            if key.endswith("nvme_path"):
                return self.set_paths("optimizer" if "optimizer" in key else "param", value)
            text = _text(list(value))
        elif isinstance(value, os.PathLike):
            text = os.fspath(value)
        else:
            text = value if isinstance(value, str) else _text(value)
        error = new_error()
        with self._open() as pointer:
            check(lib.nvs_config_set(pointer, name, encoded_path(text), error), error)

    def get(self, key: str) -> Any:
        """The value of a setting: an int, float, bool or str; None for no path."""
        name, error, nbytes = _encoded_key(key), new_error(), 1 << 17
        text = ffi.new("char[]", nbytes)
        with self._open() as pointer:
            check(lib.nvs_config_get(pointer, name, text, nbytes, error), error)
        value = os.fsdecode(ffi.string(text))
        if key.endswith("nvme_path"):
            return value or None
        try:
            return json.loads(value)
        except ValueError:
            return value

    __setitem__ = set
    __getitem__ = get

    def set_paths(self, block: str, paths: Sequence[Union[str, "os.PathLike[str]"]]) -> None:
        """Sets the directories or block devices of block "param" or "optimizer", 1 to 16."""
        names = [ffi.new("char[]", encoded_path(path)) for path in paths]
        error = new_error()
        with self._open() as pointer:
            check(lib.nvs_config_set_paths(pointer, block_number(block),
                                           ffi.new("char *[]", names), len(names), error), error)

    def paths(self, block: str) -> List[str]:
        """The paths of block "param" or "optimizer"."""
        number, result = block_number(block), []
        with self._open() as pointer:
            while True:
                path = lib.nvs_config_get_path(pointer, number, len(result))
                if not path:
                    return result
                result.append(os.fsdecode(ffi.string(path)))

    def pool_bytes(self, block: str) -> int:
        """The size in bytes of the pool of an engine on this block."""
        with self._open() as pointer:
            return int(lib.nvs_config_pool_bytes(pointer, block_number(block)))

    def read_rank(self) -> None:
        """Reads the rank from the environment variable that "nvswap.rank" names."""
        error = new_error()
        with self._open() as pointer:
            check(lib.nvs_config_read_rank(pointer, error), error)


def config_of(source: Any) -> Config:
    """A configuration as it is, or one of a file or dictionary."""
    return source if isinstance(source, Config) else Config(source)
