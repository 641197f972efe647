"""Kernels as designs call them: as aie_kernels/ declares them, or with types their author states.

A declaration (aie_kernels/kernel.h) says what a kernel's operands are called, their element types
and limits, and how many elements a call accesses; a design names the kernel and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from npu._npu import kernels
from npu.errors import DesignError, NpuError

# Types of a call's operands: "int32" for a number, (dtype, shape) for a buffer.
Signature = tuple[str | tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class KernelOperand:
    """One operand. `shape` is what a buffer must have, if the author stated it."""

    name: str
    dtype: str
    buffer: bool
    shape: tuple[int, ...] | None = None

    @property
    def type(self) -> str:
        """For messages: "float32" or "float32[16, 16]"."""
        return self.dtype + ("" if self.shape is None else str(list(self.shape)))


@dataclass(frozen=True)
class Kernel:
    """A function that runs on cores."""

    name: str
    operands: tuple[KernelOperand, ...]
    generation: str = ""  # whose declaration it is; empty: the author's own types
    in_place: bool = False  # a result may lie where an input begins

    def counts(self, *integers: int | None) -> list[int | None]:
        """Elements of each buffer that a call with these integers accesses, None where one of them
        is not known. Raises DesignError for integers that the kernel does not take."""
        if not self.generation:
            return [None for operand in self.operands if operand.buffer]
        try:
            return list(kernels.counts(self.name, self.generation, integers))
        except NpuError as error:
            raise DesignError(str(error)) from error
        except TypeError as error:  # beyond 64 bits
            raise DesignError(f"[{self.name}] the integers {integers} are too large") from error

    def sizes(self) -> list[int]:
        """Elements of each buffer, for a kernel whose declaration fixes them."""
        found = self.counts(*(None for operand in self.operands if not operand.buffer))
        if not all(isinstance(count, int) for count in found):
            raise DesignError(f'[kernel] "{self.name}" has buffers whose sizes depend on the call')
        return [count for count in found if count is not None]


def kernel(
    name: str,
    generation: str,
    arguments: Sequence[str | tuple[str, tuple[int, ...]]] | None = None,
) -> Kernel:
    """The kernel of that name of aie_kernels/, or one with the given types (`Design.kernel`)."""
    declared = name in _names(generation)
    if declared and arguments is None:
        return _declared(name, generation)
    if declared:
        raise DesignError(
            f'[kernel] "{name}" declares its operands in aie_kernels/; leave the types out'
        )
    if arguments is None:
        raise DesignError(
            f'[kernel] {generation} has no kernel "{name}" in aie_kernels/; a kernel of your own '
            'needs its argument types: "int32" for a number, (dtype, shape) for a buffer'
        )
    return Kernel(name, tuple(_stated(argument) for argument in arguments))


def _stated(argument: str | tuple[str, tuple[int, ...]]) -> KernelOperand:
    if isinstance(argument, str):
        return KernelOperand("", argument, buffer=False)
    return KernelOperand("", argument[0], buffer=True, shape=tuple(argument[1]))


@cache
def _names(generation: str) -> frozenset[str]:
    return frozenset(kernels.list(generation))


@cache
def _declared(name: str, generation: str) -> Kernel:
    declaration = kernels.describe(name, generation)
    operands = (KernelOperand(o["name"], o["dtype"], o["buffer"]) for o in declaration["operands"])
    return Kernel(name, tuple(operands), generation, declaration["in_place"])


def limits(name: str, generation: str, operand: str) -> tuple[int, int]:
    """The least and the largest value of an integer operand of a declared kernel."""
    declared = _integer(name, generation, operand)
    return declared["min"], declared["max"]


def step(name: str, generation: str, operand: str) -> int:
    """What an integer operand of a declared kernel must be a multiple of."""
    return int(_integer(name, generation, operand)["step"])


def _integer(name: str, generation: str, operand: str) -> dict[str, Any]:
    for declared in kernels.describe(name, generation)["operands"]:
        if declared["name"] == operand and not declared["buffer"]:
            found: dict[str, Any] = declared
            return found
    raise DesignError(f'[kernel] "{name}" has no integer operand "{operand}"')
