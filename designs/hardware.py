"""The hardware as designs see it: tile kinds and limits, data types, stream-switch ports.

Limits, register offsets and switch ports come from the C++ tables (backend/arch); this module adds
what only a lowering needs: memory banks, and where a DMA sees its own memory and locks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from npu._npu import arch

ROWS = 6
FIRST_CORE_ROW = 2
CORE_ROWS = ROWS - FIRST_CORE_ROW
STACK_BYTES = 0x400  # mlir-aie's default, that of published designs
MAX_LOCK_VALUE = 63

DTYPE_BYTES = {
    "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4,
}  # fmt: skip
DTYPE_MLIR = {
    "int8": "i8", "uint8": "i8", "int16": "i16", "uint16": "i16", "bfloat16": "bf16",
    "int32": "i32", "uint32": "i32", "float32": "f32",
}  # fmt: skip


@dataclass(frozen=True)
class TileLimits:
    """What one kind of tile has; lengths, steps and wraps in 32-bit words."""

    kind: str  # "shim", "mem", "core"
    memory_bytes: int
    locks: int
    bds: int
    channels: int  # per direction
    address_dims: int
    max_length: int
    max_step: int
    max_wrap: int
    lock_base: int
    bd_base: int
    switch_base: int
    banks: int  # logical banks the allocator spreads buffers over
    dma_memory_base: int  # where the tile's own DMA sees its memory, bytes
    dma_lock_base: int  # and its locks
    neighbour_channels: int  # DMA channels 0 to this - 1 reach the neighbours' memory


_BANKS = {"shim": 1, "mem": 8, "core": 4}  # mlir-aie getNumBanks
_TITLES = {"shim": "shim tile", "mem": "memtile", "core": "core tile"}


@cache
def tile_limits(kind: str) -> TileLimits:
    """Limits of a tile kind."""
    model = arch.tile_geometry(kind)
    names = [f for f in TileLimits.__dataclass_fields__ if f in model and f != "kind"]
    # A memtile DMA addresses west | own | east memory: its own starts at 512 KiB and lock 64.
    own = kind == "mem"
    return TileLimits(
        kind=kind,
        banks=_BANKS[kind],
        dma_memory_base=model["memory_bytes"] if own else 0,
        dma_lock_base=model["locks"] if own else 0,
        neighbour_channels=4 if own else 0,
        **{name: int(model[name]) for name in names},
    )


@cache
def device_columns(generation: str) -> int:
    """Columns of a generation; raises for an unknown name."""
    return int(arch.device_geometry(generation)["columns"])


def kind_of_row(row: int) -> str:
    """The kind of tile in a row."""
    return "shim" if row == 0 else "mem" if row == 1 else "core"


@dataclass(frozen=True, order=True)
class Tile:
    """A tile by its coordinates; row 0 is the shim, 1 the memtile, 2 to 5 the cores."""

    col: int
    row: int

    @property
    def kind(self) -> str:
        return kind_of_row(self.row)

    @property
    def limits(self) -> TileLimits:
        return tile_limits(self.kind)

    def __str__(self) -> str:
        return f"{_TITLES[self.kind]} ({self.col}, {self.row})"


# (first register index, ports) of each group of switch ports.
MASTER_PORTS, SLAVE_PORTS = (
    {kind: arch.switch_ports(kind, master) for kind in ("core", "mem", "shim")}
    for master in (True, False)
)
# Streams per direction between two tiles.
LANES = {side: MASTER_PORTS["core"][side][1] for side in ("north", "south", "east", "west")}
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
OFFSETS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}

# (South port, mux register, shift) of the shim tile's DMA channels, by direction.
SHIM_DMA_PORTS = {
    direction: tuple(arch.shim_dma_port(direction, channel) for channel in range(2))
    for direction in ("mm2s", "s2mm")
}
