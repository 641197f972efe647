"""1 / sqrt of a positive normal fp32 number in scalar registers, as XDNA1 needs it: it has no
instruction for it, and aie_api divides by the library's root. Both are rounded to nearest.

Root and quotient come bit by bit, 25 of them, the last one for the rounding: neither is ever half
way. Masks instead of jumps take back what was subtracted too much.
"""

from __future__ import annotations

from npu.vliw.vector_dataflow import Dataflow

_BITS = 25
# Registers with numbers, and what values may take.
_NUMBERS = {
    "one": ("r9", 1), "sign": ("r10", -31), "half": ("r11", -1), "fraction": ("r12", 0x7FFFFF),
    "hidden": ("r13", 0x800000), "exponent": ("r14", -23), "bias": ("r15", -127),
    "first": ("r2", 0x2000000), "quarter": ("r3", -2), "two": ("r4", 2), "up": ("r5", 23),
    "result": ("r6", 125),
}  # fmt: skip
CONSTANTS = dict(_NUMBERS.values())
POOL = tuple(f"r{number}" for number in range(25, 32))
CYCLES = 480  # at most


def inverse_root(flow: Dataflow, value: str) -> str:
    """``value``: bits in a scalar register; so is the result."""
    exponent = _op(flow, "add", _op(flow, "ashl", value, "exponent"), "bias")
    significand = _op(flow, "add", _op(flow, "and", value, "fraction"), "hidden")
    rest = _op(flow, "ashl", significand, _op(flow, "and", exponent, "one"))
    exponent = _op(flow, "ashl", exponent, "half")
    root = _root(flow, _op(flow, "add", rest, rest))
    quotient = _op(flow, "ashl", _quotient(flow, root), "half")
    exponent = _op(flow, "ashl", _op(flow, "sub", "result", exponent), "up")
    return _op(flow, "add", quotient, exponent)


def _op(flow: Dataflow, form: str, *operands: str) -> str:
    return flow.op(form, "R", *(_NUMBERS[o][0] if o in _NUMBERS else o for o in operands))


def _root(flow: Dataflow, rest: str) -> str:
    """24 bits of the root of 2^22 times ``rest``. ``found`` is four times as large."""
    found, unit = "", "first"
    for _ in range(_BITS):
        last, unit = unit, _op(flow, "ashl", unit, "half")
        tried = _op(flow, "add", found, unit) if found else unit
        less = _op(flow, "sub", rest, tried)
        mask = _op(flow, "ashl", less, "sign")
        kept = _op(flow, "add", less, _op(flow, "and", tried, mask))
        rest = _op(flow, "add", kept, kept)
        more = _op(flow, "add", found, last) if found else last
        found = _op(flow, "sub", more, _op(flow, "and", last, mask))
    return _op(flow, "ashl", _op(flow, "add", found, "two"), "quarter")


def _quotient(flow: Dataflow, divisor: str) -> str:
    """2^48 / divisor, cut, plus 1."""
    rest, found = "hidden", "one"
    for _ in range(_BITS):
        less = _op(flow, "sub", _op(flow, "add", rest, rest), divisor)
        mask = _op(flow, "ashl", less, "sign")
        rest = _op(flow, "add", less, _op(flow, "and", divisor, mask))
        found = _op(flow, "add", _op(flow, "add", found, found), mask)
    return found
