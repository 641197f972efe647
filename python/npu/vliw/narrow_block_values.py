"""8-bit codes as bf16 on XDNA1, which has no products of blocks: codes plus 128 are cut into two
halves of 4 bits, h and l; 128 + h and 128 + l are bf16 numbers with a half as low byte, and a
product of 4 x 8 by 8 x 4, whose right side has a column of 16 and 1 per code, makes 16 codes of
them, exactly: 16 (128 + h) + (128 + l) - 2304.

Codes leave as 16 lanes beside 16 zeros: an operation on lanes adds two products to each, of which
only one is wanted. What only ever gets results in its lower half keeps the zeros above.
"""

from __future__ import annotations

from npu.vliw.aie2 import BF16_4X8X4
from npu.vliw.block_values import Numbers, Step
from npu.vliw.machine import Machine
from npu.vliw.vector_dataflow import Dataflow
from npu.vliw.vector_operations import LANES, SHUFFLES

LOW = "X@low"  # values beside zeros
ZEROS = ("x9", "x10", "x11")  # their registers
_MAGIC, _OFFSET, _RIGHT, _ONES = "x0", "x1", "x2", "x3"
_BIAS = "bml7"
_HIGH_BYTE, _128, _ONE, _SIXTEEN, _MINUS_2304 = 0x43, 0x80, 0x3F80, 0x4180, 0xC510
MODES = {"crrnd": 12, "crunpacksign": 0, "crunpacksize": 0}
RESERVED = frozenset({_MAGIC, _OFFSET, _RIGHT, _ONES, _BIAS})
POOLS = {LOW: ZEROS, "X": tuple(f"x{n}" for n in range(12) if f"x{n}" not in ZEROS)}
_IDENTITY = ("T16_2x32_lo", "T64_2x8_lo", "T32_2x16_lo", "T64_8x2_lo", "T128_4x2_lo")
# What the preamble needs in registers, and what the loop does.
FIRST = (
    _HIGH_BYTE, _128, _ONE, _SIXTEEN, _MINUS_2304, 0, *(SHUFFLES[name] for name in _IDENTITY),
)  # fmt: skip
NUMBERS = (LANES, BF16_4X8X4, SHUFFLES["T8_2x64_lo"], SHUFFLES["T8_2x64_hi"])


def preamble(numbers: Numbers) -> tuple[Step, ...]:
    zeros, bias = ZEROS[0], "x4"
    steps: list[Step] = [("vbcst.16", (f"x{number}", numbers[0])) for number in range(4, 12)]
    for value, result in ((_ONE, _OFFSET), (_SIXTEEN, _MAGIC)):
        steps += _diagonal(numbers, value, result, zeros)
    steps += [
        ("vshuffle", (_RIGHT, _OFFSET, _MAGIC, numbers.mode("T64_2x8_lo"))),
        ("vbcst.16", (bias, numbers[_MINUS_2304])),
        ("vconv.fp32.bf16", (_BIAS, "wl4")),
        ("vbcst.8", (_MAGIC, numbers[_HIGH_BYTE])),
        ("vbcst.8", (_OFFSET, numbers[_128])),
        ("vbcst.16", (_ONES, numbers[_ONE])),
    ]
    return tuple(steps)


def _diagonal(numbers: Numbers, value: int, result: str, zeros: str) -> list[Step]:
    """4 x 4 lanes with a number in the diagonal, from equal ones: first those whose row and column
    differ in the lower bit become zeros, then in the upper bit."""
    lanes, units, pairs, even, quads = map(numbers.mode, _IDENTITY)
    return [
        ("vbcst.16", (result, numbers[value])),
        ("vshuffle", ("x4", result, zeros, lanes)),
        ("vshuffle", ("x5", zeros, result, lanes)),
        ("vshuffle", (result, "x4", "x5", units)),
        ("vshuffle", ("x4", result, zeros, pairs)),
        ("vshuffle", ("x5", zeros, result, pairs)),
        ("vshuffle", (result, "x4", "x5", even)),
        ("vshuffle", (result, result, result, quads)),
    ]


class NarrowBlocks(Dataflow):
    """A dataflow over such registers."""

    def __init__(self, machine: Machine, numbers: Numbers, name: str = "") -> None:
        super().__init__(machine, name)
        self.numbers = numbers

    def low(self, sums: str) -> str:
        """16 lanes of fp32 as bf16, beside zeros."""
        result = self.value(LOW, partial=True)
        self.into("vconv.bf16.fp32", f"{result}:0", sums)
        return result

    def raised(self, codes: str) -> str:
        """64 codes plus 128."""
        return self.op("vadd.8", "X", codes, _OFFSET)

    def widened(self, raised: str) -> list[str]:
        """64 of these as codes in fp32, 16 at a time."""
        found, config = [], self.numbers[BF16_4X8X4]
        for half in range(2):
            halves = self.op("vunpack", "X", f"{raised}:{half}")
            for mode in ("T8_2x64_lo", "T8_2x64_hi"):
                left = self.op("vshuffle", "X", halves, _MAGIC, self.numbers.mode(mode))
                found.append(self.op("vmac.f", "BM", _BIAS, left, _RIGHT, config))
        return found

    def left(self, value: str) -> list[str]:
        """fp32 lanes, and what their first and their first two parts of bf16 leave of them: parts
        are rounded again when they are needed, as there are more accumulators than vectors."""
        found = [value]
        for _ in range(2):
            operands = (found[-1], self.low(found[-1]), _ONES, self.numbers[LANES])
            found.append(self.op("vmsc.f", "BM", *operands))
        return found

    def added(self, total: str, a: str, b: str, at: int | None = None) -> str:
        """total, if there is one, plus products of lanes."""
        lanes = self.numbers[LANES]
        if total:
            return self.op("vmac.f", "BM", total, a, b, lanes, at=at)
        return self.op("vmul.f", "BM", a, b, lanes, at=at)
