"""A command stream of ours as a runtime sequence of MLIR: aiecc must make the same words of it.

The kernel metadata of an xclbin declares as many buffers as the first sequence of a device has
arguments, at least five, and XRT does not survive a buffer too many. So the sequence has as many as
streams of the operation pass, and stands behind those that the design has.
"""

from __future__ import annotations

import itertools
import re
import struct
from dataclasses import dataclass
from typing import Any

from npu import stream
from npu.errors import BuildError, NpuError
from npu.ops.registry import operation

NAME = "sample"
_OPERATIONS = 512  # of a stream that are compared; longer ones repeat themselves
_HEADER = 16  # bytes: version and generation, columns, operations, bytes
_FOLDED, _APERTURE = 5, 0x80000000  # arguments from which on offsets include DDR's aperture
_ROW_SHIFT, _COLUMN_SHIFT = 20, 25
_DIRECTIONS = {"s2mm": 0, "mm2s": 1}
_DEVICE = re.compile(r"^( *)aie\.device\(\w+\)")


@dataclass(frozen=True)
class Sample:
    """``words``: the stream, at most its first operations. ``buffers``: arguments of the operation
    whose requests need most. ``request``: whose stream it is, for messages."""

    words: bytes
    buffers: int
    request: str


def sample(name: str, config: bytes) -> Sample | None:
    """Of the first request among an operation's examples that this configuration runs; None if it
    runs none. ``buffers`` is that of all examples."""
    found: Sample | None = None
    buffers = 0
    one = operation(name)
    for about, request in one.examples.items():
        try:
            submissions = one.submissions(config, request)
        except NpuError:  # an example for another format, or too large for this tile
            continue
        for each in submissions:
            buffers = max(buffers, len(each.arguments), _patched(each.stream))
        if found is None and submissions:
            found = Sample(_shortened(submissions[0].stream), 0, about)
    return found and Sample(found.words, buffers, found.request)


def with_sequence(mlir: str, sample: Sample, *, operands: bool) -> str:
    """The module with the stream as the last runtime sequence of its first device.

    operands: numbers as operands, as mlir-aie has them since 2026-07; else as attributes. Raises
    BuildError for a module of another form than designs.lowering prints.
    """
    lines = mlir.split("\n")
    begin = next((n for n, line in enumerate(lines) if _DEVICE.match(line)), None)
    if begin is None:
        raise BuildError("[build] the design's MLIR has no device to add a runtime sequence to")
    margin = str(_DEVICE.match(lines[begin])[1])  # type: ignore[index]
    end = next((n for n in range(begin, len(lines)) if lines[n] == margin + "}"), None)
    if end is None:
        raise BuildError("[build] the first device of the design's MLIR does not end")
    added = _Writer(operands).sequence(sample)
    return "\n".join([*lines[:end], *(f"{margin}  {line}" for line in added), *lines[end:]])


def _patched(data: bytes) -> int:
    """Arguments that a stream's address patches name."""
    named = [o["argument"] for o in stream.operations(data) if o["opcode"] == "ADDRESS_PATCH"]
    return max(named, default=-1) + 1


def _shortened(data: bytes) -> bytes:
    """The first operations of a stream, as a stream."""
    found = list(itertools.takewhile(_has_form, stream.operations(data)[:_OPERATIONS]))
    words = data[_HEADER : found[-1]["byte_offset"] + found[-1]["bytes"]] if found else b""
    sizes = struct.pack("<2I", len(found), _HEADER + len(words))
    return data[: _HEADER - len(sizes)] + sizes + words


def _has_form(o: dict[str, Any]) -> bool:
    """An offset of an address patch is an i32 in MLIR."""
    return o["opcode"] != "ADDRESS_PATCH" or o["argument_offset"] < 1 << 32


class _Writer:
    """The operations of a stream in words of mlir-aie's AIEX dialect."""

    def __init__(self, operands: bool) -> None:
        self._operands = operands
        self._globals: list[str] = []
        self._body: list[str] = []
        self._constants: dict[int, str] = {}

    def sequence(self, sample: Sample) -> list[str]:
        for o in stream.operations(sample.words):
            self._operation(o)
        arguments = ", ".join(f"%argument{n}: memref<1024xi32>" for n in range(sample.buffers))
        constants = [
            f"  {name} = arith.constant {_signed(value)} : i32"
            for value, name in self._constants.items()
        ]
        head = f"aie.runtime_sequence @{NAME}({arguments}) {{"
        return [*self._globals, head, *constants, *self._body, "}"]

    def _operation(self, o: dict[str, Any]) -> None:
        code = o["opcode"]
        if code == "WRITE":
            self._numbers("write32", {"address": o["address"], "value": o["value"]})
        elif code == "MASKWRITE":
            fields = {"address": o["address"], "value": o["value"], "mask": o["mask"]}
            self._numbers("maskwrite32", fields)
        elif code == "SYNC":
            fields = {
                "column": o["column"], "row": o["row"], "direction": _DIRECTIONS[o["direction"]],
                "channel": o["channel"], "column_num": o["columns"], "row_num": o["rows"],
            }  # fmt: skip
            self._numbers("sync", fields, signed=True)
        elif code == "ADDRESS_PATCH":
            self._patch(o)
        elif code == "BLOCKWRITE":
            self._block(o)
        else:
            raise BuildError(f"[build] a sample stream has {code}, which has no form in MLIR here")

    def _numbers(self, name: str, fields: dict[str, int], *, signed: bool = False) -> None:
        """An operation of numbers only; ``signed``: what its attributes are where it has them."""
        if self._operands:
            values = ", ".join(self._constant(value) for value in fields.values())
            self._body.append(f"  aiex.npu.{name}({values}) : {', '.join(['i32'] * len(fields))}")
            return
        kind = "i32" if signed else "ui32"
        values = ", ".join(f"{key} = {value} : {kind}" for key, value in fields.items())
        self._body.append(f"  aiex.npu.{name} {{{values}}}")

    def _patch(self, o: dict[str, Any]) -> None:
        offset = o["argument_offset"] - (_APERTURE if o["argument"] >= _FOLDED else 0)
        about = f"addr = {o['address']} : ui32, arg_idx = {o['argument']} : i32"
        if self._operands:
            operand = f"({self._constant(offset)} : i32)"
            self._body.append(f"  aiex.npu.address_patch{operand} {{{about}}}")
        else:
            self._body.append(
                f"  aiex.npu.address_patch {{{about}, arg_plus = {_signed(offset)} : i32}}"
            )

    def _block(self, o: dict[str, Any]) -> None:
        number, kind = len(self._globals), f"memref<{len(o['data'])}xi32>"
        data = ", ".join(str(_signed(word)) for word in o["data"])
        self._globals.append(
            f'memref.global "private" constant @{NAME}_{number} : {kind} = dense<[{data}]>'
        )
        address, place = o["address"], ""
        if o["column"] or o["row"]:  # then the address is the tile's own
            address -= (o["column"] << _COLUMN_SHIFT) + (o["row"] << _ROW_SHIFT)
            place = f", column = {o['column']} : i32, row = {o['row']} : i32"
        self._body.append(f"  %block{number} = memref.get_global @{NAME}_{number} : {kind}")
        self._body.append(
            f"  aiex.npu.blockwrite(%block{number}) {{address = {address} : ui32{place}}} : {kind}"
        )

    def _constant(self, value: int) -> str:
        return self._constants.setdefault(value, f"%number{len(self._constants)}")


def _signed(word: int) -> int:
    """A word as the number of i32 that has its bits."""
    return word - (1 << 32) if word >= 1 << 31 else word
