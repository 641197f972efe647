"""The array operations: what is needed to open, simulate, inspect, bench and test each by name.

C++ lists them, with the fields of their requests and example requests
(backend/runtime/operation_type.h). The design of each has its name: npu/designs/NAME.py.
``Device.operation(name)`` opens one.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Mapping
from typing import Any

from npu import _npu
from npu._npu import facts
from npu.errors import ArgumentError

Request = dict[str, int]

# Operations that take more than plain arrays, by their class in the extension.
_HANDLES = {"gemm": _npu.ops.Gemm, "gemv": _npu.ops.Gemv, "dequant": _npu.ops.Dequant}
# What designs are lowered for where nobody chooses.
_ARGUMENTS: dict[str, tuple[Any, ...]] = {"gemm": ("bfloat16", "float32")}
# Operations with a design for each size of weight blocks, and for each format.
BLOCK_SIZES, BLOCK_FORMATS = ("gemv", "decoder"), ("dequant",)
_FORMATS = tuple(facts.BLOCK_COLUMNS)  # by their numbers in requests


@dataclasses.dataclass(frozen=True)
class Field:
    """A number of a request. ``default`` None: it must be given."""

    name: str
    meaning: str
    default: int | None


@dataclasses.dataclass(frozen=True)
class Submission:
    """One stream of a request: its bytes, its arguments in order, how often it is submitted."""

    stream: bytes
    arguments: tuple[dict[str, Any], ...]
    """Each with name, bytes, written, and contents: control data that the stream relies on."""
    count: int


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of the array: ``fields`` is what a request consists of, ``examples`` are
    requests of the size that models have, by name."""

    name: str
    summary: str
    fields: tuple[Field, ...]
    examples: Mapping[str, Request]

    def configuration(self, generation: str, *arguments: Any, **choices: Any) -> bytes:
        """The serialised configuration of "npu1" or "npu2"."""
        return bytes(self._design().configuration(generation, *self._chosen(arguments), **choices))

    def mlir(self, generation: str, *arguments: Any, **choices: Any) -> str:
        """The design as AIE-dialect MLIR."""
        return str(self._design().mlir(generation, *self._chosen(arguments), **choices))

    def design(self, generation: str, *arguments: Any, **choices: Any) -> Any:
        """The design (npu.designs.api.Design), not lowered."""
        return self._design().design(generation, *self._chosen(arguments), **choices)

    def choices_of(self, format: str) -> dict[str, Any]:
        """What tells the design, as ``choices``, the format of weights, as far as it matters."""
        if self.name in BLOCK_FORMATS:
            return {"format": format}
        small = facts.BYTES_OF_BLOCK[format] == facts.SMALL_BLOCK_BYTES
        return {"small": True} if small and self.name in BLOCK_SIZES else {}

    def choices_for(self, request: Mapping[str, int]) -> dict[str, Any]:
        """The same of the formats that a request names, by their numbers."""
        named = [number for field, number in request.items() if field.startswith("format")]
        formats = [_FORMATS[number] for number in named if 0 <= number < len(_FORMATS)]
        return next(filter(None, map(self.choices_of, formats)), {})

    def open(self, device: Any, config: bytes) -> Any:
        """The operation on an open device (a ``_npu.device.Device``)."""
        if self.name in _HANDLES:
            return _HANDLES[self.name](device, config)
        return _npu.operations.PlainOperation(device, config, self.name)

    def submissions(
        self, config: bytes, request: Mapping[str, int], device: Any = None
    ) -> list[Submission]:
        """What the operation submits for a request on operands that lie dense in memory.

        ``device``: the ``_npu.device.Device`` that they run on, whose programs of overlays are
        among the contents; None: stand-ins for them, which emulated NPUs take. Raises ArgumentError
        for fields that are missing or unknown, ShapeError, and what the device raises.
        """
        found = _npu.operations.submissions(self.name, config, dict(request), device)
        return [
            Submission(one["stream"], tuple(one["arguments"]), int(one["count"])) for one in found
        ]

    def _chosen(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return arguments or _ARGUMENTS.get(self.name, ())

    def _design(self) -> Any:
        return importlib.import_module(f"npu.designs.{self.name}")


@functools.cache
def operations() -> Mapping[str, Operation]:
    """All operations by name."""
    return {
        one["name"]: Operation(
            one["name"],
            one["summary"],
            tuple(Field(**field) for field in one["fields"]),
            one["examples"],
        )
        for one in _npu.operations.types()
    }


def operation(name: str) -> Operation:
    """The operation of that name. Raises ArgumentError with the names there are."""
    found = operations().get(name)
    if found is None:
        raise ArgumentError(f"[operation] {name!r} is unknown; there are {', '.join(operations())}")
    return found
