"""The array operations: what is needed to open, simulate, inspect, bench and test each by name.

C++ lists them with their requests (backend/runtime/operation_type.h); here stand the design that
configures the array for each, and example requests. ``Device.operation(name)`` opens one.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Mapping
from typing import Any

from npu import _npu
from npu.errors import ArgumentError

Request = dict[str, int]


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
    """An operation of the array.

    ``design``: module of npu.designs whose ``configuration(generation, *arguments, **choices)``
    and ``mlir`` lower it; ``arguments``: defaults of the positional ones. ``handle``: its class in
    npu._npu.ops; None if its arguments are plain arrays. ``examples``: requests of the size that
    models have, by name.
    """

    name: str
    design: str
    examples: Mapping[str, Request]
    handle: str | None = None
    arguments: tuple[Any, ...] = ()

    @property
    def summary(self) -> str:
        return str(_types()[self.name]["summary"])

    @property
    def fields(self) -> tuple[Field, ...]:
        """What a request consists of."""
        return tuple(Field(**field) for field in _types()[self.name]["fields"])

    def configuration(self, generation: str, *arguments: Any, **choices: Any) -> bytes:
        """The serialised configuration of "npu1" or "npu2"."""
        return bytes(
            self._module().configuration(generation, *(arguments or self.arguments), **choices)
        )

    def mlir(self, generation: str, *arguments: Any, **choices: Any) -> str:
        """The design as AIE-dialect MLIR."""
        return str(self._module().mlir(generation, *(arguments or self.arguments), **choices))

    def open(self, device: Any, config: bytes) -> Any:
        """The operation on an open device (a ``_npu.device.Device``)."""
        if self.handle is None:
            return _npu.operations.PlainOperation(device, config, self.name)
        return getattr(_npu.ops, self.handle)(device, config)

    def submissions(self, config: bytes, request: Mapping[str, int]) -> list[Submission]:
        """What the operation submits for a request on operands that lie dense in memory.

        Raises ArgumentError for fields that are missing or unknown, ShapeError.
        """
        found = _npu.operations.submissions(self.name, config, dict(request))
        return [
            Submission(one["stream"], tuple(one["arguments"]), int(one["count"])) for one in found
        ]

    def _module(self) -> Any:
        return importlib.import_module(f"npu.designs.{self.design}")


_OPERATIONS = (
    Operation(
        "gemm", "gemm",
        {"512 cubed": {"m": 512, "k": 512, "n": 512}, "ragged": {"m": 300, "k": 500, "n": 700}},
        handle="Gemm", arguments=("bfloat16", "float32"),
    ),
    Operation(
        "gemv", "gemv",
        {
            "1B qkv": {"n": 1536, "k": 1152},
            "1B down, batch 8": {"n": 1152, "k": 6912, "batch": 8},
            "1B head, top 4": {"n": 32768, "k": 1152, "output": 2, "top": 4},
        },
        handle="Gemv",
    ),
    Operation("dequant", "dequant", {"1B qkv": {"n": 1536, "k": 1152}}, handle="Dequant"),
    Operation(
        "rms_norm", "rms_norm",
        {
            "1B, a prompt of 512": {"rows": 512, "width": 1152},
            "widest": {"rows": 64, "width": 16384},
        },
    ),
)  # fmt: skip


@functools.cache
def _types() -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in _npu.operations.types()}


def operations() -> dict[str, Operation]:
    """All operations by name."""
    return {one.name: one for one in _OPERATIONS}


def operation(name: str) -> Operation:
    """The operation of that name. Raises ArgumentError with the names there are."""
    found = operations().get(name)
    if found is None:
        raise ArgumentError(f"[operation] {name!r} is unknown; there are {', '.join(operations())}")
    return found
