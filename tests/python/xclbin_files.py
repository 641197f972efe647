"""Small writers of CDOs, PDIs and xclbins for the tests, from the public layouts (the readers of
npu.formats.xclbin name the sources). Commands are tuples: ("write", address, value),
("mask_write", address, mask, value), ("mask_poll", address, mask, value, timeout),
("block", address, [words]), ("fill", address, count, value), ("delay", n), ("nop", words),
("end",), ("other", opcode, [words])."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from npu.formats.xclbin import cdo

CommandTuple = tuple[Any, ...]
_OPCODES = {"mask_poll": 0x101, "mask_write": 0x102, "write": 0x103, "delay": 0x104}


def words(values: Iterable[int]) -> bytes:
    return b"".join(struct.pack("<I", value) for value in values)


def checksum(values: Iterable[int]) -> int:
    return ~sum(values) & 0xFFFFFFFF


def _pair(address: int) -> list[int]:
    return [address >> 32, address & 0xFFFFFFFF]


def _payload(command: CommandTuple, wide: bool) -> tuple[int, list[int]]:
    """Opcode and payload words; ``wide``: with 64-bit addresses."""
    name, *fields = command
    if name in ("mask_poll", "mask_write", "write"):
        address, *rest = fields
        if wide:
            return {"mask_poll": 0x106, "mask_write": 0x107, "write": 0x108}[name], [
                *_pair(address),
                *rest,
            ]
        return _OPCODES[name], [address, *rest]
    if name == "block":
        return 0x105, [*_pair(fields[0]), *fields[1]]
    if name == "fill":
        return 0x10C, [*_pair(fields[0]), *fields[1:]]
    if name == "delay":
        return 0x104, fields
    if name == "nop":
        return 0x111, [0] * fields[0]
    if name == "end":
        return 0x100, []
    return fields[0], list(fields[1])


def encode_command(command: CommandTuple, wide: bool = False, long: bool = False) -> list[int]:
    opcode, payload = _payload(command, wide)
    if long or len(payload) >= 0xFF:
        return [0xFF << 16 | opcode, len(payload), *payload]
    return [len(payload) << 16 | opcode, *payload]


def encode_cdo(
    commands: Sequence[CommandTuple],
    wide: bool = False,
    long: bool = False,
    ident: int = 0x004F4443,
    version: int = 0x200,
) -> bytes:
    body = [word for command in commands for word in encode_command(command, wide, long)]
    header = [4, ident, version, len(body)]
    return words([*header, checksum(header), *body])


def _headers(table: list[int], count: int) -> bytes:
    padded = table + [0] * (count - 1 - len(table))
    return words([*padded, checksum(padded)])


def encode_pdi(
    partitions: Sequence[bytes], bus_width: bool = True, kind: int = 2, names: str = "aie_image"
) -> bytes:
    """A partial PDI with one image of the given partitions (bytes of CDOs)."""
    base = 16 if bus_width else 0
    image_at, partition_at = base + 128, base + 128 + 64
    data_at = partition_at + 128 * len(partitions)
    table = [0x40000, 1, image_at // 4, len(partitions), partition_at // 4, 0, 0x14CA8093, 0, 0, 0]
    out = words([0xDD, 0x11223344, 0x55667788, 0x99AABBCC]) if bus_width else b""
    out += _headers([*table, 0x50504449], 32)
    name = struct.unpack("<4I", names.encode().ljust(16, b"\0"))
    out += _headers([partition_at // 4, len(partitions), 0, 0, *name, 0x1C000000], 16)
    body = b""
    for index, data in enumerate(partitions):
        padded = data + bytes(-len(data) % 16)
        last = index == len(partitions) - 1
        following = 0 if last else (partition_at + 128 * (index + 1)) // 4
        count = len(padded) // 4
        offset = (data_at + len(body)) // 4
        fields = [count, len(data) // 4, count, following, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, offset]
        out += _headers([*fields, kind << 24 | 6, 1], 32)
        body += padded
    return out + body


def encode_transformed_pdi(commands: Sequence[CommandTuple], cut: int = 0) -> bytes:
    """The PDI of one CDO as xclbinutil --transform-pdi leaves it, ``cut`` bytes short."""
    plain = encode_cdo(commands)
    pdi = bytearray(encode_pdi([plain]))
    zone: list[int] = []
    data = b""
    group: int | None = None
    for command in commands:
        if command[0] == "nop":
            continue
        opcode, payload = _payload(command, wide=False)
        if opcode != group:
            zone += [opcode & 0xFF, 0]
            group, counter = opcode, len(zone) - 1
        zone[counter] += 1
        if command[0] == "block":
            zero = 0x10000 if command[2] and not any(command[2]) else 0
            zone += [*payload[:2], len(data), len(command[2]) | zero]
            data += words(command[2])
        else:
            zone += payload
    size = 4 * len(zone)
    mark = (0x8866 | 1 << 8 | (size & 0xFFFF) << 16 | size >> 16) & 0xFFFFFFFF
    struct.pack_into("<3I", pdi, 0xD0 + 4 * 28, 1, size, mark)
    out = bytes(pdi[:0x150]) + plain[:20] + words(zone) + data
    return out[: len(out) - cut]


def encode_partition(
    pdis: Sequence[bytes],
    columns: int = 4,
    starts: Sequence[int] = (0,),
    kernels: Sequence[int] = (),
) -> bytes:
    """An AIE_PARTITION section: each PDI with one CDO group of all ``kernels``."""
    heap = bytearray()
    first = 184 + 96 * len(pdis)

    def put(data: bytes) -> int:
        heap.extend(bytes(-len(heap) % 8))
        at = first + len(heap)
        heap.extend(data)
        return at

    name = put(b"QoS\0")
    starts_at = put(struct.pack(f"<{len(starts)}H", *starts))
    table = b""
    for index, image in enumerate(pdis):
        image_at = put(image)
        group_name = put(b"DPU\0")
        ids_at = put(struct.pack(f"<{len(kernels)}Q", *kernels))
        before_at = put(struct.pack("<I", 0xC1))
        fields = (group_name, 1, 1 + index, len(kernels), ids_at, 1, before_at)
        group_at = put(struct.pack("<IB3xQIIII64x", *fields))
        own = bytes([index]) * 16
        table += struct.pack("<16sIIII64x", own, len(image), image_at, 1, group_at)
    header = struct.pack(
        "<B3xII4xQQH6xII72xIII52x", 0, name, 2048, 1, 2, columns, len(starts), starts_at,
        len(pdis), 184, 0,
    )  # fmt: skip
    return header + table + bytes(heap)


def encode_memories(memories: Sequence[tuple[int, int, int, int, bytes]]) -> bytes:
    out = struct.pack("<i4x", len(memories))
    return out + b"".join(struct.pack("<BB6xQQ16s", *one) for one in memories)


def encode_ips(ips: Sequence[tuple[int, int, int, bytes]]) -> bytes:
    return struct.pack("<i4x", len(ips)) + b"".join(struct.pack("<IIQ64s", *one) for one in ips)


def encode_axlf(sections: Sequence[tuple[int, str, bytes]]) -> bytes:
    """An unsigned xclbin; sections are (kind, name, data), 8-byte aligned."""
    at = 0x1C8 + 40 * len(sections)
    table, body = b"", b""
    for kind, name, data in sections:
        body += bytes(-(at + len(body)) % 8)
        table += struct.pack("<I16s4xQQ", kind, name.encode(), at + len(body), len(data))
        body += data
    header = struct.pack(
        "<QQQHBBHH16s64s16s16sI4x", at + len(body), 1_700_000_000, 0, 7, 2, 1, 0, 0, b"\1" * 16,
        b"xilinx_v1_ipu_0_0", b"\2" * 16, b"", len(sections),
    )  # fmt: skip
    front = b"xclbin2\0" + struct.pack("<i", -1) + b"\xff" * 28 + bytes(256) + bytes(8)
    return front + header + table + body


def as_tuple(command: cdo.Command) -> CommandTuple:
    """A command that was read, in the form of this module."""
    match command:
        case cdo.Write(address=a, value=v):
            return ("write", a, v)
        case cdo.MaskWrite(address=a, mask=m, value=v):
            return ("mask_write", a, m, v)
        case cdo.MaskPoll(address=a, mask=m, value=v, timeout=t):
            return ("mask_poll", a, m, v, t)
        case cdo.BlockWrite(address=a, data=d):
            return ("block", a, d.tolist())
        case cdo.Fill(address=a, count=n, value=v):
            return ("fill", a, n, v)
        case cdo.Delay(duration=n):
            return ("delay", n)
        case cdo.Nop(words=n):
            return ("nop", n)
        case cdo.Other(opcode=o, payload=p):
            return ("other", o, p.tolist())
    return ("end",)
