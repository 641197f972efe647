"""The products of a self-test, whose configurations `npu build` makes."""

from __future__ import annotations

from dataclasses import dataclass

SIZE = (200, 320, 264)  # M, K, N: no whole tiles
_INTEGERS = (("int8", "int32"), ("int8", "int16"), ("int8", "int8"), ("int16", "int32"))


@dataclass(frozen=True)
class TestedProduct:
    """Element types of A and B, and of C. ``bf16``: as npu.matmul takes it."""

    dtype: str
    out_dtype: str
    bf16: str = "native"


def integers() -> list[TestedProduct]:
    return [TestedProduct(a, c) for a, c in _INTEGERS]


def floats(generation: str) -> list[TestedProduct]:
    modes = ("native", "bfp16") if generation == "npu2" else ("native",)
    return [TestedProduct("bfloat16", c, mode) for mode in modes for c in ("float32", "bfloat16")]


def products(generation: str) -> list[TestedProduct]:
    return integers() + floats(generation)
