"""How mlir-aie writes numbers of locks, buffer descriptors and register writes: in two ways.

Until 2026-07 they are attributes in the text of the operation; since then lock values and what a
register gets are SSA values, and a descriptor names its parts (andrej/mlir-aie 3ca0193c,
AIEOps.td and AIEX.td). The rest of what designs print is the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Syntax:
    """Prints the operations that differ; ``operands``: the form since 2026-07. One object prints
    one region: SSA values that it made keep their names."""

    operands: bool
    constants: dict[int, str] = field(default_factory=dict)

    def number(self, value: int) -> str:
        """An i32: its SSA value, which ``definitions`` has, or the number itself."""
        if not self.operands:
            return str(value)
        signed = value - (1 << 32) if value >= 1 << 31 else value
        name = f"%cm{-signed}_i32" if signed < 0 else f"%c{signed}_i32"
        return self.constants.setdefault(signed, name)

    def definitions(self) -> list[str]:
        """The constants that numbers became."""
        ordered = sorted(self.constants.items())
        return [f"{name} = arith.constant {value} : i32" for value, name in ordered]

    def use_lock(self, name: str, action: str, value: int, attributes: str = "") -> str:
        return f"aie.use_lock(%{name}, {action}, {self.number(value)}){attributes}"

    def dma_bd(
        self, buffer: str, offset: int, length: int, dims: list[tuple[int, int]], attributes: str
    ) -> str:
        """A buffer descriptor; offset, length, sizes and strides in elements, dims from the
        outermost one."""
        if self.operands:
            parts = f" offset = {offset} len = {length}"
            if dims:
                parts += f" sizes = {[size for size, _ in dims]}"
                parts += f" strides = {[stride for _, stride in dims]}"
        else:
            pattern = ", ".join(f"<size = {size}, stride = {stride}>" for size, stride in dims)
            parts = f", {offset}, {length}" + (f", [{pattern}]" if dims else "")
        return f"aie.dma_bd({buffer}{parts}) {attributes}"

    def register(self, operation: str, numbers: Mapping[str, int], column: int, row: int) -> str:
        """aiex.npu.write32 or maskwrite32 of a register of a tile."""
        place = f"column = {column} : i32, row = {row} : i32"
        if self.operands:
            values = ", ".join(map(self.number, numbers.values()))
            types = ", ".join("i32" for _ in numbers)
            return f"aiex.npu.{operation}({values}) {{{place}}} : {types}"
        values = ", ".join(f"{key} = {value} : ui32" for key, value in numbers.items())
        return f"aiex.npu.{operation} {{{place}, {values}}}"
