"""Which sampling settings a run has: those asked for, else the model's own, else llama.cpp's.

The model's own stand in the metadata of GGUF and Q4NX files under ``general.sampling.*``
(gguf/constants.py), and in the generation_config.json of a checkpoint folder, whose keys become
those. The defaults are those of llama.cpp (common/common.h, common_params_sampling).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from npu.errors import FormatError
from npu.formats.metadata import Metadata, show
from npu.models.sampling import Sampler

DEFAULTS: dict[str, float] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "repeat_penalty": 1.0,
    "repeat_last_n": 64,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
_PREFIX = "general.sampling."
# Setting -> its key in a file, the range of its values, and whether it is a whole number.
_KEYS = {
    "temperature": ("temp", -np.inf, 1e30, False),
    "top_k": ("top_k", -(2**31), 2**31, True),
    "top_p": ("top_p", 0, 1, False),
    "min_p": ("min_p", 0, 1, False),
    "repeat_penalty": ("penalty_repeat", 0, 1e30, False),
    "repeat_last_n": ("penalty_last_n", -1, 2**31, True),
}
# What some files ask for and no Sampler does -> the values that switch it off.
_UNSUPPORTED = {"xtc_probability": (0,), "mirostat": (0,), "sequence": ()}
_FROM_GENERATION_CONFIG = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
    "penalty_repeat": "penalty_repeat",
    "penalty_last_n": "penalty_last_n",
}
# What GGUF's keys are called there, for errors; of two, the name that transformers reads.
KEY_NAMES = {
    _PREFIX + ours: f"{theirs} of generation_config.json"
    for theirs, ours in reversed(_FROM_GENERATION_CONFIG.items())
}


@dataclass(frozen=True)
class Settings:
    """``values``: an argument of Sampler for each name of DEFAULTS. ``asked`` and ``own``: which of
    them were asked for and which the model gave; the others are defaults. ``ignored``: keys of the
    file that have no effect."""

    values: dict[str, float]
    asked: frozenset[str]
    own: frozenset[str]
    ignored: tuple[str, ...] = ()

    def sampler(self, seed: int | None) -> Sampler:
        """A new sampler of these settings. Raises ArgumentError for a value out of range."""
        return Sampler(**self.values, seed=seed)  # type: ignore[arg-type]

    @property
    def greedy(self) -> bool:
        return self.values["temperature"] == 0

    def describe(self) -> str:
        """The settings in use and where they come from, in one line."""
        v = self.values
        names = [n for n in DEFAULTS if n in ("temperature", "top_k", "top_p", "min_p")]
        if self.greedy:
            names = ["temperature"]
        penalised = v["repeat_last_n"] != 0
        active = [
            name
            for name, off in (
                ("repeat_penalty", 1),
                ("presence_penalty", 0),
                ("frequency_penalty", 0),
            )
            if penalised and v[name] != off
        ]
        names += [*active, "repeat_last_n"] if active else []
        groups = {
            "as asked": [n for n in names if n in self.asked],
            "the model's": [n for n in names if n in self.own],
            "llama.cpp's defaults": [n for n in names if n not in self.asked | self.own],
        }
        parts = [
            ", ".join(f"{n.replace('_', '-')} {v[n]:g}" for n in group) + f" ({origin})"
            for origin, group in groups.items()
            if group
        ]
        return ("greedy: " if self.greedy else "") + "; ".join(parts)


def resolve(asked: Mapping[str, float | None], file: Metadata) -> Settings:
    """The settings of a run: ``asked`` where it has a value, else the file's, else DEFAULTS."""
    own = model_settings(file)
    given = {name: value for name, value in asked.items() if value is not None}
    ignored = tuple(
        _PREFIX + key
        for key, off in _UNSUPPORTED.items()
        if _PREFIX + key in file.metadata and file.metadata[_PREFIX + key] not in off
    )
    return Settings(
        {**DEFAULTS, **own, **given},
        frozenset(given),
        frozenset(set(own) - set(given)),
        ignored,
    )


def model_settings(file: Metadata) -> dict[str, float]:
    """The settings that a file's metadata has; FormatError names a key that makes no sense."""
    found: dict[str, float] = {}
    for name, (key, low, high, whole) in _KEYS.items():
        value = file.metadata.get(_PREFIX + key)
        if value is None:
            continue
        kinds = int if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
            wanted = "a whole number" if whole else "a number"
            raise file.fail(
                f"{file.named(_PREFIX + key)} is {show(value)}, expected {wanted} from {low:g} to "
                f"{high:g}"
            )
        # float32 values of a file, in the decimals that were meant.
        found[name] = value if whole else float(np.format_float_positional(np.float32(value)))
    # As llama.cpp reads them: no temperature is greedy, no top-k all tokens, top-p 0 the likeliest.
    if "temperature" in found:
        found["temperature"] = max(found["temperature"], 0.0)
    if "top_k" in found:
        found["top_k"] = max(found["top_k"], 0)
    if found.get("top_p") == 0:
        found["top_p"] = float(np.finfo(np.float32).tiny)
    if found.get("repeat_penalty") == 0:
        key = file.named(f"{_PREFIX}penalty_repeat")
        raise file.fail(f"{key} is 0, expected a positive number")
    return found


def from_generation_config(label: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF's keys for the sampling settings of a generation_config.json.

    ``do_sample`` false is temperature 0; with true, a temperature that is left out is
    transformers' 1.0. transformers' ``repetition_penalty`` counts the whole text.
    """
    sample = config.get("do_sample")
    if sample is not None and not isinstance(sample, bool):
        raise FormatError(
            f"[models] {label}: do_sample of generation_config.json is {show(sample)}, expected "
            "true or false"
        )
    found = {
        _PREFIX + ours: config[theirs]
        for theirs, ours in _FROM_GENERATION_CONFIG.items()
        if config.get(theirs) is not None
    }
    if config.get("repetition_penalty") is not None:
        found.setdefault(f"{_PREFIX}penalty_last_n", -1)
    if sample is False:
        found[f"{_PREFIX}temp"] = 0.0
    elif sample:
        found.setdefault(f"{_PREFIX}temp", 1.0)
    return found
