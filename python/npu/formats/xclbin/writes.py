"""Commands of a CDO as operations of a TXN stream, one for one, where the NPU executes them.

The NPU's firmware executes writes, mask writes, DMA writes and NOPs (XRT's loader of NPU images,
aie-pdi-transform/lib/cdo_cmd.c); this module also takes mask polls and fills, which mean the same
in a stream.
"""

from __future__ import annotations

from collections.abc import Iterable

from npu import stream
from npu.errors import FormatError
from npu.formats.xclbin.cdo import (
    BlockWrite,
    Cdo,
    Command,
    Delay,
    Fill,
    MaskPoll,
    MaskWrite,
    Nop,
    Write,
)

END = 0x100
_ADDRESSES = 1 << 32
_MAX_STREAM = 1 << 24  # bytes that the reader of streams takes; a whole npu2 has 6.5 MB of memories


def is_register_access(command: Command) -> bool:
    """Whether the command becomes an operation of a stream."""
    return isinstance(command, (Write, MaskWrite, MaskPoll, BlockWrite, Fill))


def is_ignored(command: Command) -> bool:
    """Whether the command has no effect on registers."""
    return isinstance(command, (Nop, Delay)) or command.opcode == END


def append(builder: stream.Builder, command: Command) -> None:
    """Appends the operation of one register access."""
    match command:
        case Write(address=address, value=value):
            builder.write(address, value)
        case MaskWrite(address=address, mask=mask, value=value):
            builder.mask_write(address, value, mask)
        case MaskPoll(address=address, mask=mask, value=value):
            builder.mask_poll(address, value, mask)
        case BlockWrite(address=address, data=data):
            builder.block_write(address, data.tolist())
        case Fill(address=address, count=count, value=value):
            builder.block_write(address, [value] * count)


def address_of(command: Command) -> int | None:
    return getattr(command, "address", None)


def check_size(label: str, commands: Iterable[Command], before: int = 0) -> int:
    """Bytes that the commands write, and ``before``: counted before any are made. Raises
    FormatError for more than any NPU takes."""
    total = before
    for command in commands:
        match command:
            case BlockWrite(data=data):
                total += 4 * len(data)
            case Fill(count=count):
                total += 4 * count
    if total > _MAX_STREAM:
        raise _too_long(label, total)
    return total


def to_stream(cdos: Iterable[tuple[str, Cdo]], device: str, columns: int) -> bytes:
    """The TXN stream of (label, CDO) pairs in order.

    Raises FormatError for a command that the NPU does not execute, or an address beyond 32 bits.
    """
    builder, label, total = stream.Builder(device, columns), "", 0
    for label, cdo in cdos:
        total = check_size(label, cdo.commands, total)
        for command in cdo.commands:
            if is_ignored(command):
                continue
            if not is_register_access(command):
                raise FormatError(
                    f"[{label}] command {command.name} at byte {command.offset} is not one that "
                    "the NPU executes (writes, mask writes, mask polls, DMA writes, fills, NOPs)"
                )
            address = address_of(command) or 0
            if address >= _ADDRESSES:
                raise FormatError(
                    f"[{label}] command {command.name} at byte {command.offset} accesses address "
                    f"0x{address:x}; the array's addresses have 32 bits"
                )
            append(builder, command)
    return finish(builder, label)


def finish(builder: stream.Builder, label: str) -> bytes:
    """The stream's bytes. Raises FormatError for more than any NPU takes."""
    txn = builder.finish()
    if len(txn) > _MAX_STREAM:
        raise _too_long(label, len(txn))
    return txn


def _too_long(label: str, size: int) -> FormatError:
    return FormatError(
        f"[{label}] the commands write {size} bytes as a stream; at most {_MAX_STREAM} can be "
        "read, and no NPU has as many registers and memories"
    )
