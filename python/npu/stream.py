"""Command streams by hand: build, read, disassemble and check TXN bytes.

The format is in docs/reference/command_stream.md.

``Builder(generation, columns)`` appends operations (``write``, ``block_write``, ``mask_write``,
``mask_poll``, ``sync``, ``address_patch``, ``noop``, ``preempt``, ``load_pdi``) and ``finish()``
returns the bytes. ``encode_bd``/``decode_bd`` translate buffer descriptors of "shim", "mem" and
"core" tiles between named fields and register words; ``tile_address``, ``channel_control``,
``channel_queue`` and ``tile_geometry`` give addresses and limits. ``operations(bytes)`` lists a
stream, ``disassemble(bytes)`` prints it, ``check(bytes, ...)`` raises StreamError when a runtime
stream touches what it may not.
"""

from npu._npu.arch import (
    bd_reachable,
    channel_control,
    channel_queue,
    decode_bd,
    device_geometry,
    encode_bd,
    tile_address,
    tile_geometry,
)
from npu._npu.stream import Builder, check, disassemble, header, operations

__all__ = [
    "Builder",
    "bd_reachable",
    "channel_control",
    "channel_queue",
    "check",
    "decode_bd",
    "device_geometry",
    "disassemble",
    "encode_bd",
    "header",
    "operations",
    "tile_address",
    "tile_geometry",
]
