"""Which block format a stored type becomes: the ``weights`` choice of ``npu.gemma3.load``.

"auto" keeps what the file has at the nearest width that adds less than a percent of error; "q8" is
the same with floats in 8 bits; "q4nx" and "bf16" make everything of one format. Small blocks are
chosen where they hold the whole model (``block_formats``).
"""

from __future__ import annotations

from collections.abc import Iterable

from npu.errors import ArgumentError

CHOICES = ("auto", "q8", "q4nx", "bf16")

ZERO_POINTS = "Q4NX with zero points"
_FLOATS = ("F64", "F32", "F16", "BF16")
_NEAREST = {
    # Codes are kept.
    **dict.fromkeys(("Q4NX", ZERO_POINTS, "Q4_0", "Q4_1", "Q4_K"), "q4nx"),
    **dict.fromkeys(("Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0"), "q8"),
    # Levels that 4-bit codes of 32 weights do not have: Q4NX would add 4 to 6 % of error.
    **dict.fromkeys(("Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS"), "q8"),
    **dict.fromkeys(_FLOATS, "bf16"),
}
# What small blocks hold no worse than large ones, in a tenth fewer bytes; and what they hold with a
# few tenths of a percent of error, by choice of weights: worth it beside others, as heads are that
# llama-quantize stores otherwise than the layers.
_SMALL = {"Q4_0": "q4_0", "Q5_0": "q8_0", "Q8_0": "q8_0"}
_FITTED = {"auto": ("Q6_K",), "q8": ("Q6_K", *_FLOATS)}
# What a format holds without any error.
_EXACT = {
    ("Q4NX", "q4nx"), ("BF16", "bf16"), ("Q6_K", "q8"),
    *((stored, format) for stored in ("Q5_0", "Q8_0") for format in ("q8", "q8_0")),
}  # fmt: skip


def check_choice(weights: str) -> None:
    if weights not in CHOICES:
        raise ArgumentError(f"[gemma3] weights is {weights!r}; use {', '.join(map(repr, CHOICES))}")


def block_formats(stored: Iterable[str], weights: str) -> dict[str, str]:
    """The block format by tensor type, of the types of all matrices of a model (their names in the
    file, Q4NX for Q4NX blocks).

    The array multiplies blocks of one size at a time: either all types become small, or none.
    """
    types = set(stored)
    small = types & _SMALL.keys()
    if weights in _FITTED and small and types - small <= set(_FITTED[weights]):
        return {name: _SMALL.get(name, "q8_0") for name in types}
    return {name: _large(name, weights) for name in types}


def _large(stored: str, weights: str) -> str:
    if weights in ("q4nx", "bf16"):
        return weights
    if weights == "q8" and stored in _FLOATS:
        return "q8"
    return _NEAREST[stored]


def exact(stored: str, format: str) -> bool:
    """Whether every value of the type is a value of the format, by construction."""
    return (stored, format) in _EXACT
