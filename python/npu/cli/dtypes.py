"""Names of element types on the command line: one spelling for all commands, short or long.

An unknown name is an error of the option (argparse adds which), before anything runs.
"""

from __future__ import annotations

import argparse

# Name -> what it is called everywhere else.
NAMES = {
    "int8": "int8", "i8": "int8",
    "int16": "int16", "i16": "int16",
    "int32": "int32", "i32": "int32",
    "bfloat16": "bfloat16", "bf16": "bfloat16",
    "float32": "float32", "f32": "float32", "fp32": "float32",
    "bfp16": "bfp16",
}  # fmt: skip
OPERANDS = ("bfloat16", "int8", "int16")  # of A and B; the first where none is named
TENSORS = ("bfloat16", "float32")  # of a torch model
RESULTS = ("int8", "int16", "int32", "bfloat16", "float32")
BLOCKS = ("bfp16",)  # where matrices in blocks are offered, too


def operand(text: str) -> str:
    """An argparse type: the element type of A and B."""
    return _named(text, OPERANDS)


def result(text: str) -> str:
    """An argparse type: the element type of C."""
    return _named(text, RESULTS)


def tensor(text: str) -> str:
    """An argparse type: the element type of a torch model's tensors."""
    return _named(text, TENSORS)


def operand_or_blocks(text: str) -> str:
    """An argparse type: the element type of A and B, blocks of BFP16 among them."""
    return _named(text, OPERANDS + BLOCKS)


def result_or_blocks(text: str) -> str:
    """An argparse type: the element type of C, blocks of BFP16 among them."""
    return _named(text, RESULTS + BLOCKS)


def operands(text: str) -> list[str]:
    """An argparse type: several of A and B, separated by commas."""
    return [operand(part) for part in text.split(",")]


def results(text: str) -> list[str]:
    """An argparse type: several of C, separated by commas."""
    return [result(part) for part in text.split(",")]


def _named(text: str, allowed: tuple[str, ...]) -> str:
    found = NAMES.get(text.strip().lower())
    if found in allowed:
        return str(found)
    short = [min((n for n, long in NAMES.items() if long == name), key=len) for name in allowed]
    named = [a if a == b else f"{a} ({b})" for a, b in zip(allowed, short, strict=True)]
    what = "is not one of this option" if found else "is not an element type"
    raise argparse.ArgumentTypeError(f"{text!r} {what}; use {', '.join(named)}")
