"""The actions of vector_operations.py by name: operands as the simulator has read them to the bytes
of the result."""

from __future__ import annotations

from collections.abc import Mapping

from npu.errors import ScheduleError
from npu.vliw import conversions, lane_arithmetic
from npu.vliw import vector_arithmetic as arithmetic
from npu.vliw.machine import Machine, Operation

Inputs = Mapping[int | str, int | bytes]
ACTIONS = (
    "shuffle", "broadcast", "extract broadcast", "unpack", "widen", "narrow", "multiply lanes",
    "add lanes", "subtract lanes", "subtract product", "clear", "shift bytes", "extract",
    "inverse root", "power of two", "tangent", "and", "or", "at least", "below", "select",
    "exponents", "add integers", "subtract", "shift", "mask",
)  # fmt: skip


def result(machine: Machine, operation: Operation, inputs: Inputs, size: int) -> int | bytes:
    """The result of ``size`` bytes. ScheduleError where a mode is not simulated."""
    match operation.action:
        case "shuffle":
            return arithmetic.shuffled(_vector(inputs, 1), _vector(inputs, 2), _scalar(inputs, 3))
        case "broadcast":
            return arithmetic.broadcast(_scalar(inputs, 1), _lane_bytes(operation), size)
        case "extract broadcast":
            index = _scalar(inputs, 2)
            return arithmetic.extracted(_vector(inputs, 1), index, _lane_bytes(operation))
        case "unpack":
            return _unpacked(inputs)
        case "widen":
            return conversions.to_fp32(_vector(inputs, 1))
        case "narrow":
            return conversions.to_bf16(_vector(inputs, 1), _scalar(inputs, "crrnd"))
        case "add lanes":
            return arithmetic.added(_vector(inputs, 1), _vector(inputs, 2))
        case "add integers":
            a, b = _vector(inputs, 1), _vector(inputs, 2)
            return arithmetic.added_integers(a, b, _lane_bytes(operation))
        case "exponents":
            return _scalar(inputs, 1).to_bytes(4, "little")
        case "subtract" | "shift" | "mask":
            return lane_arithmetic.integer(operation.action, _scalar(inputs, 1), _scalar(inputs, 2))
        case "clear":
            return bytes(size)
        case "shift bytes":
            a, b, count = _vector(inputs, 1), _vector(inputs, 2), _scalar(inputs, 3)
            return lane_arithmetic.shifted_bytes(a, b, count)
        case "extract":
            return lane_arithmetic.lane(_vector(inputs, 1), _scalar(inputs, 2))
        case "at least":
            return lane_arithmetic.at_least(_vector(inputs, 1), _vector(inputs, 2))
        case "below":
            a, b = _vector(inputs, 1), _vector(inputs, 2)
            return lane_arithmetic.below(a, b, _lane_bytes(operation))
        case "select":
            a, b, mask = _vector(inputs, 1), _vector(inputs, 2), _scalar(inputs, 3)
            return lane_arithmetic.selected(a, b, mask, _lane_bytes(operation))
        case "inverse root":
            return lane_arithmetic.inverse_root(_scalar(inputs, 1))
        case "power of two" | "tangent":
            return lane_arithmetic.elementary(operation.action, _vector(inputs, 1))
        case "subtract lanes" | "and" | "or":
            return lane_arithmetic.paired(operation.action, _vector(inputs, 1), _vector(inputs, 2))
    # A product; without an accumulator it starts from zero.
    first = len(operation.operands) - 3
    totals = [_vector(inputs, number) for number in range(1, first)] or [bytes(size)]
    a, b = _vector(inputs, first), _vector(inputs, first + 1)
    if operation.action == "subtract product":
        a = lane_arithmetic.negative(a)
    return arithmetic.multiplied(machine.generation, totals, a, b, _scalar(inputs, first + 2))


def _unpacked(inputs: Inputs) -> bytes:
    for mode in ("crunpacksign", "crunpacksize"):
        if inputs.get(mode, 0) != 0:
            raise ScheduleError(
                f"[simulate] {mode} is {inputs[mode]!r}; only 0 (unsigned 4 bits to 8) is simulated"
            )
    return arithmetic.unpacked(_vector(inputs, 1))


def _lane_bytes(operation: Operation) -> int:
    return int(operation.mnemonic.split(".")[1].lstrip("s")) // 8


def _vector(inputs: Inputs, key: int) -> bytes:
    value = inputs[key]
    assert isinstance(value, bytes)
    return value


def _scalar(inputs: Inputs, key: int | str) -> int:
    value = inputs[key]
    assert isinstance(value, int)
    return value
