# SPDX-License-Identifier: Apache-2.0
"""
How much of DeepSpeed is replaced: "nvswap": {"deepspeed": "ops", "swappers" or "step"} in its JSON
file, "step" without it. DeepSpeed reads that file after install(), so each configuration that it reads
puts the classes of its depth into the modules that look them up, or DeepSpeed's own ones back.
"""

from __future__ import annotations

import errno
import functools
import importlib
import logging
from typing import Any, Dict, List, NamedTuple, Tuple

from nvswap.config import Config, as_json
from nvswap.deepspeed.releases import missing_places
from nvswap.errors import Error

_PARAMETER_SWAPPER = ("deepspeed.runtime.zero.partition_parameters",
                      "AsyncPartitionedParameterSwapper",
                      "nvswap.deepspeed.swappers.parameters.parameter_swapper")
_OPTIMIZER_SWAPPERS = [
    ("deepspeed.runtime.zero.stage3", name, f"nvswap.deepspeed.swappers.optimizer.{name}")
    for name in ("PartitionedOptimizerSwapper", "PipelinedOptimizerSwapper")]
# Of each depth, the replaced names: the module that looks a name up, the name, and where its
# replacement is.
_REPLACEMENTS: Dict[str, List[Tuple[str, str, str]]] = {
    "ops": [],
    "swappers": [
        _PARAMETER_SWAPPER,
        ("deepspeed.runtime.zero.stage3", "DeepSpeedZeroOptimizer_Stage3",
         "nvswap.deepspeed.swappers.stage3.Stage3"),
        *_OPTIMIZER_SWAPPERS,
    ],
    # Its class takes that of the swappers for an optimizer that it can't step.
    "step": [
        _PARAMETER_SWAPPER,
        *_OPTIMIZER_SWAPPERS,
        ("deepspeed.runtime.zero.stage3", "DeepSpeedZeroOptimizer_Stage3",
         "nvswap.deepspeed.step.stage3.Stage3"),
    ],
}


logger = logging.getLogger("nvswap")


class Choice(NamedTuple):
    """The configuration that DeepSpeed read last."""

    depth: str
    document: Dict[str, Any]  # its blocks_of()
    progress: bool = False  # whether the job logs its progress

    @property
    def is_asked_for(self) -> bool:
        """Whether the configuration names the depth; else the job may have less than the default."""
        return "deepspeed" in (self.document.get("nvswap") or {})


_choice = Choice("ops", {})
_theirs: Dict[Tuple[str, str], Any] = {}


def choice() -> Choice:
    """What the last configuration asks for. DeepSpeed makes its optimizer right after it has read
    one, and gives it only some blocks."""
    return _choice


def blocks_of(config: Any) -> Dict[str, Any]:
    """
    What nvswap reads of a DeepSpeedConfig, and nothing else: the rest of a configuration may hold anything.

    Returns
    -------
    dict
        "zero_optimization" with the keys that were set, as DeepSpeed's models understood them, "aio",
        "nvswap", and "compile" if it asks for DeepCompile.
    """
    document = config._param_dict
    blocks = {key: document[key] for key in ("aio", "nvswap") if document.get(key)}
    if "aio" in blocks:
        # DeepSpeed reads past others; check_places() has reported them.
        blocks["aio"] = {key: value for key, value in blocks["aio"].items() if _is_aio_key(key)}
    if (document.get("compile") or {}).get("deepcompile"):
        blocks["compile"] = {"deepcompile": True}
    blocks["zero_optimization"] = config.zero_config.model_dump(
        mode="json", by_alias=True, exclude_unset=True)
    return blocks


def check_places(document: Dict[str, Any]) -> None:
    """
    Warns of blocks that are in the wrong place of a DeepSpeed configuration, or whose names are near misses. An offload
    block outside `zero_optimization` is misplaced for DeepSpeed, though valid in a file for nvswap alone.

    Raises
    ------
    Error
        EINVAL: there is one, and "nvswap.strict" is true.
    """
    places = _blocks_in(document, ())
    places["nvswap"] = document.get("nvswap") or {}
    _check_once(as_json(places))
    unknown = [f"aio.{key}" for key in document.get("aio") or () if not _is_aio_key(key)]
    outside = [name for name in ("offload_param", "offload_optimizer") if isinstance(document.get(name), dict)]
    problems = [(name, f"{name} is not in `zero_optimization`, where it belongs: DeepSpeed ignores it")
                for name in outside]
    problems += [(name, f"{name} is a key that neither DeepSpeed nor nvswap knows") for name in unknown]
    with Config({"nvswap": places["nvswap"]}) as config:
        strict = config["nvswap.strict"]
    for name, text in problems:
        if strict:
            raise Error(errno.EINVAL, text, name)
        logger.warning(text)


@functools.lru_cache(maxsize=None)
def _is_aio_key(key: str) -> bool:
    with Config() as config:
        try:
            config[f"aio.{key}"]  # pylint: disable=expression-not-assigned
        except (Error, KeyError):
            return False
    return True


def _blocks_in(block: Dict[Any, Any], around: Tuple[int, ...]) -> Dict[str, Any]:
    """The blocks in a block, and its paths: no other values matter for their places."""
    around += (id(block),)
    return {str(key): _blocks_in(value, around) if isinstance(value, dict) else value for key, value in block.items()
            if (isinstance(value, dict) and id(value) not in around) or "path" in str(key)}


@functools.lru_cache(maxsize=None)
def _check_once(places: str) -> None:
    """A process reads its configuration several times."""
    with Config() as config:
        config.parse(places, "DeepSpeed's configuration")


def watch_configurations() -> None:
    """Has every DeepSpeedConfig of this process choose the depth; calling it again changes nothing."""
    from deepspeed.runtime.config import DeepSpeedConfig

    if not missing_places("swappers"):  # else the ops alone can be chosen
        from nvswap.deepspeed.checkpoint.engine import watch_saves
        from nvswap.deepspeed.checkpoint.frozen import watch_frozen
        from nvswap.deepspeed.checkpoint.loads import watch_loads
        from nvswap.deepspeed.checkpoint.swapped import watch_swapped
        from nvswap.deepspeed.modules import watch_destroyed

        watch_destroyed()
        watch_saves()
        watch_frozen()
        watch_swapped()
        watch_loads()  # around what the others change
    read = DeepSpeedConfig.__init__
    if hasattr(read, "nvswap_watches"):
        return

    @functools.wraps(read)
    def watched(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            read(self, *args, **kwargs)
        except Exception:
            # DeepSpeed's own is the one to see, but does not say where a block belongs.
            try:
                check_places(getattr(self, "_param_dict", {}))
            except Error as error:
                logger.warning(error.strerror)
            except Exception as error:  # pylint: disable=broad-exception-caught
                logger.debug("the places of blocks were not checked: %s", error)
            raise
        check_places(self._param_dict)
        choose(blocks_of(self))

    watched.nvswap_watches = True  # type: ignore[attr-defined]
    DeepSpeedConfig.__init__ = watched


def choose(document: Dict[str, Any]) -> None:
    """
    Puts the depth of a configuration in place, of which `document` is the blocks_of().

    Raises
    ------
    Error
        EINVAL: a key or value of the "nvswap" block is wrong, or of the blocks of a drive: DeepSpeed makes folders
        of paths such as "~/nvme" before a store is opened. With the ops alone all but the paths is DeepSpeed's to
        check.
        ENOTSUP: this release of DeepSpeed lacks what the depth replaces.
    """
    global _choice  # pylint: disable=global-statement
    with Config({"nvswap": document.get("nvswap") or {}}) as config:
        depth, progress = config["nvswap.deepspeed"], config["nvswap.progress"]
        if config["nvswap.overlap_step"] and depth != "step":
            raise Error(errno.ENOTSUP, "nvswap.overlap_step: the step is DeepSpeed's own with "
                        f'"deepspeed": "{depth}": leave it out, or use "step"', "nvswap.overlap_step")
        has_format = config["nvswap.optimizer_state"] != "fp32"
    zero = document.get("zero_optimization") or {}
    on_drive = {block: zero[block] for block in ("offload_param", "offload_optimizer")
                if (zero.get(block) or {}).get("device") == "nvme"}
    if has_format and depth != "step":
        logger.warning('nvswap.optimizer_state has no effect with "deepspeed": "%s": use "step"', depth)
    elif has_format and "offload_optimizer" not in on_drive:
        logger.warning("nvswap.optimizer_state has no effect: the state is not on a drive, as with "
                       '"offload_optimizer": {"device": "nvme"}')
    if depth == "ops":
        Config({"zero_optimization": {block: {key: each[key] for key in ("device", "nvme_path") if key in each}
                                      for block, each in on_drive.items()}}).close()
    elif on_drive:
        Config(document).close()
    missing = missing_places(depth)
    if missing:
        raise Error(errno.ENOTSUP, f"this release of DeepSpeed has no {', '.join(missing)}: use "
                    '"nvswap": {"deepspeed": "ops"}, another release of it, or a newer nvswap', "nvswap.deepspeed")
    _restore()
    for module, name, replacement in _REPLACEMENTS[depth]:
        _replace(module, name, replacement)
    _choice = Choice(depth, document, progress)


def _replace(module: str, name: str, replacement: str) -> None:
    place = importlib.import_module(module)
    _theirs[module, name] = getattr(place, name)
    home, _, attribute = replacement.rpartition(".")
    setattr(place, name, getattr(importlib.import_module(home), attribute))


def _restore() -> None:
    while _theirs:
        (module, name), theirs = _theirs.popitem()
        setattr(importlib.import_module(module), name, theirs)
