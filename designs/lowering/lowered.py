"""A lowered design: every address, lock, BD, channel and connection decided.

The serialiser (serialise.py) and the MLIR printer (mlir.py) read the same objects; nothing is
decided in either of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..fifo import ShimBd
from ..hardware import DTYPE_BYTES, Tile
from ..kernel import Signature
from .dims import Access


@dataclass
class Lock:
    """A lock of a tile. `id` is the tile's own number."""

    tile: Tile
    id: int
    init: int
    name: str


@dataclass
class Memory:
    """A buffer with its address in the memory of `tile`, which holds it."""

    tile: Tile
    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    address: int
    init: tuple[int, ...] = ()  # int32 words at its start


@dataclass
class Part:
    """A piece of a pool's objects that is filled and drained under its own pair of locks."""

    offset: int  # bytes
    bytes: int
    free: Lock  # counts slots that may be filled; initially the depth
    full: Lock  # counts slots that are filled; initially 0


@dataclass
class Pool:
    """The buffers of one FIFO end (or of a link, which both its sides share)."""

    name: str
    tile: Tile
    dtype: str
    shape: tuple[int, ...]
    slots: list[Memory] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]


@dataclass
class Descriptor:
    """A buffer descriptor of a resident chain."""

    id: int
    memory: Memory
    offset: int  # bytes into the buffer
    bytes: int
    element_bytes: int
    access: Access
    acquire: Lock | None
    release: Lock | None
    next: int | None  # BD that follows; None: the task ends
    # Executions until it begins at `offset` again, and bytes from one to the next.
    turns: int = 1
    turn_bytes: int = 0


@dataclass
class Channel:
    """A DMA channel and the circular BD chain it runs, or, if runtime streams start its tasks, the
    chains among which they choose."""

    tile: Tile
    direction: str  # "s2mm", "mm2s"
    index: int
    fifo: str
    descriptors: list[Descriptor] = field(default_factory=list)
    started: bool = True  # by the configuration


# Ids of packets where a FIFO and programs share a shim channel. In each switch, packets also have
# the slot and the arbiter of this number.
FIFO_PACKET, PROGRAM_PACKET = 1, 2


@dataclass
class Port:
    """A shim DMA channel that runtime streams drive. packet: id of what they send, packets then."""

    name: str
    tile: Tile
    direction: str
    channel: int
    packet: int | None = None


@dataclass(frozen=True)
class Endpoint:
    """One end of a flow: a DMA channel of a tile, or the port by which packets reach its registers
    and program memory."""

    tile: Tile
    channel: int
    control: bool = False


@dataclass
class Flow:
    """A stream from one MM2S channel to one or several S2MM channels, or to control ports."""

    fifo: str
    source: Endpoint
    sinks: list[Endpoint]
    packet: int | None = None  # id; None: a circuit


@dataclass(frozen=True)
class Connection:
    """In one stream switch: a master port fed by a slave port, each (group, index in group), or by
    those of its packets that have an id."""

    tile: Tile
    slave: tuple[str, int]
    master: tuple[str, int]
    packet: int | None = None


@dataclass(frozen=True)
class RtpWord:
    """One runtime parameter: an int32 of the core's RTP buffer."""

    name: str
    memory: Memory
    index: int

    @property
    def address(self) -> int:
        return self.memory.address + 4 * self.index


@dataclass(frozen=True)
class Register:
    """A register of a memtile that runtime streams write."""

    name: str
    tile: Tile
    offset: int


@dataclass(frozen=True)
class Operand:
    """A kernel argument: buffers (one, or one per slot with a counter), a number, or an RTP."""

    kind: str  # "buffer", "constant", "rtp"
    memories: tuple[Memory, ...] = ()
    counter: int = -1  # rotating buffers only
    value: int = 0
    rtp: RtpWord | None = None


@dataclass(frozen=True)
class Instruction:
    """A line of a worker program (backend/runtime/program.h). `code` is its first word."""

    code: str  # loop, end, acquire_ge, acquire_eq, release, call, advance
    lock: Lock | None = None
    value: int = 0  # lock value, advance modulus
    count: int | RtpWord | None = None  # loop: rounds; None = forever
    function: str = ""
    operands: tuple[Operand, ...] = ()
    counter: int = -1  # advance


@dataclass
class Core:
    """One worker: its program, its RTPs (words of one int32 buffer) and their lock."""

    tile: Tile
    stack: int
    program: list[Instruction]
    counters: int
    rtps: dict[str, RtpWord] = field(default_factory=dict)
    rtp_lock: Lock | None = None
    buffers: list[Memory] = field(default_factory=list)
    program_bytes: int | None = None  # estimated; None if a kernel has no estimate
    overlays: dict[str, list[Instruction]] = field(default_factory=dict)  # instead of a program
    slots: Memory | None = None  # int32: where overlays keep their counters

    @property
    def programs(self) -> list[list[Instruction]]:
        """The program, or the overlays."""
        return list(self.overlays.values()) or [self.program]


@dataclass
class Overlay:
    """A program that streams load into all cores."""

    name: str
    program: list[Instruction]  # a core's; the others' are the same words
    bytes: int  # of its image
    slots: int  # address of the counters in a core's data memory


@dataclass
class Lowered:
    """The whole design."""

    name: str
    generation: str
    columns: int
    params: dict[str, int]
    object_file: str
    least_stack: int = 0  # bytes, of every core
    tiles: list[Tile] = field(default_factory=list)
    locks: dict[Tile, list[Lock]] = field(default_factory=dict)
    memories: dict[Tile, list[Memory]] = field(default_factory=dict)
    pools: list[Pool] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    ports: list[Port] = field(default_factory=list)
    shim_bds: list[ShimBd] = field(default_factory=list)
    token_ports: bool = False
    flows: list[Flow] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    cores: list[Core] = field(default_factory=list)
    registers: list[Register] = field(default_factory=list)
    overlays: list[Overlay] = field(default_factory=list)
    kernels: dict[str, Signature] = field(default_factory=dict)
