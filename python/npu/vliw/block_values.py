"""8-bit codes as blocks of BFP16 on XDNA2: registers with exponents that make each mantissa its own
value, and the identity by which a product of blocks gives them in fp32, exactly.

All vectors of such a dataflow are in registers with exponents (EX); what works on plain vectors
takes the part without. The preamble sets the exponents of all of them once, and nothing changes
them.
"""

from __future__ import annotations

from npu.vliw.aie2p import BFP16_8X8X8
from npu.vliw.dataflow import Access
from npu.vliw.machine import Machine
from npu.vliw.vector_dataflow import Dataflow
from npu.vliw.vector_operations import SHUFFLES

_ONE, _EXPONENT_ONE, _EXPONENT_64 = 0x40, 0x7F, 0x85  # a mantissa of 1, exponents of 1 and of 64
_IDENTITY, _REGISTERS = 11, 12
_STEPS = ("T16_2x32_lo", "T32_2x16_lo", "T64_2x8_lo")

Step = tuple[str, tuple[str, ...]]


class Numbers:
    """Scalar registers with numbers that are needed throughout, those that a function may change;
    ``named``: with registers of their choice."""

    def __init__(self, *numbers: int) -> None:
        own = [f"r{number}" for number in (*range(16), *range(24, 32))]
        self.register = dict(zip(dict.fromkeys(numbers), own, strict=False))

    def __getitem__(self, number: int) -> str:
        return self.register[number]

    def mode(self, name: str) -> str:
        return self.register[SHUFFLES[name]]

    @property
    def constants(self) -> dict[str, int]:
        return {register: _signed(number) for number, register in self.register.items()}


# What the preamble needs in registers.
NUMBERS = (
    _ONE, 0, _EXPONENT_ONE * 0x01010101, _EXPONENT_64 * 0x01010101, BFP16_8X8X8,
    *(SHUFFLES[name] for name in ("T8_2x64_lo", *_STEPS)),
)  # fmt: skip
IDENTITY = f"ex{_IDENTITY}"
RESERVED = frozenset({IDENTITY})


def preamble(numbers: Numbers) -> tuple[Step, ...]:
    """Exponents, the identity, and zeros for parts of registers that are read and not written. The
    identity: from equal mantissas, those whose row and column differ in a bit become zeros, for one
    bit after the other."""
    exponents = {n: _EXPONENT_ONE if n == _IDENTITY else _EXPONENT_64 for n in range(_REGISTERS)}
    steps: list[Step] = [("vclr", (f"dm{number}",)) for number in range(5)]
    steps += _mantissas(numbers)
    steps += [("vbcst.8", (f"x{number}", numbers[0])) for number in range(1, _IDENTITY)]
    for number, exponent in exponents.items():
        steps += _exponents(numbers, number, exponent)
    return tuple(steps)


def identity(numbers: Numbers) -> tuple[Step, ...]:
    """The identity alone."""
    return (*_mantissas(numbers), *_exponents(numbers, _IDENTITY, _EXPONENT_ONE))


def _mantissas(numbers: Numbers) -> list[Step]:
    same, zeros, interleaved = f"x{_IDENTITY}", "x0", numbers.mode("T8_2x64_lo")
    steps: list[Step] = [("vbcst.8", (same, numbers[_ONE])), ("vbcst.8", (zeros, numbers[0]))]
    for name in _STEPS:
        steps += [
            ("vshuffle", ("x1", same, zeros, interleaved)),
            ("vshuffle", ("x2", zeros, same, interleaved)),
            ("vshuffle", (same, "x1", "x2", numbers.mode(name))),
        ]
    return steps


def _exponents(numbers: Numbers, register: int, exponent: int) -> list[Step]:
    number = numbers[exponent * 0x01010101]
    return [("mov.EH.R", (f"{half}{register}", number)) for half in ("el", "eh")]


class Blocks(Dataflow):
    """A dataflow over such registers."""

    def __init__(self, machine: Machine, numbers: Numbers, name: str = "") -> None:
        super().__init__(machine, name)
        self.numbers = numbers

    def value(self, kind: str, register: str = "", *, partial: bool = False) -> str:
        if kind != "X":
            return super().value(kind, register, partial=partial)
        return super().value("EX", register, partial=True) + ":0-1"

    def load_part(self, stream: str, offset: int, bank: str, result: str, part: int) -> None:
        super().load_part(stream, offset, bank, result.partition(":")[0], part)

    def codes(self, stream: str, offset: int, bank: str) -> str:
        """64 codes from memory."""
        result = self.value("X")
        self._add(("vldb.x", "vlda.x"), (result, Access(stream, offset)), "load", bank)
        return result

    def widened(self, codes: str) -> list[str]:
        """64 codes as bf16, in their order."""
        of = codes.partition(":")[0]
        wide = self.op("vmul.f", "DM", of, f"ex{_IDENTITY}", self.numbers[BFP16_8X8X8])
        return [self.op("vconv.bf16.fp32", "X", f"{wide}:{part}") for part in ("0-1", "2-3")]


def _signed(number: int) -> int:
    """As 32 bits hold it."""
    return number - (1 << 32) if number >> 31 else number
