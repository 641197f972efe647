"""What a core is, as data: slots of a bundle, register files and their views, operations with their
latencies, memory banks, loop rules. aie2.py and aie2p.py are the two descriptions; the simulator,
the assembler syntax and the scheduler take everything from them.

Time: an operation issued in cycle t reads an operand of stage s in cycle t + s - 1 and its result
of latency d is there for reads from cycle t + d on. Nothing waits: earlier reads get the old value.
So a reader follows its writer by at least d - s + 1 cycles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from npu.errors import FormatError

Grade = Literal["documented", "published", "assumed"]


@dataclass(frozen=True)
class Source:
    """Where an entry comes from. documented: AMD's manuals and its public compiler; published:
    measured or inferred by others on hardware; assumed: ours."""

    text: str
    grade: Grade


@dataclass(frozen=True)
class Slot:
    """A field of a bundle: one operation per cycle."""

    name: str
    bits: int
    nop: str


@dataclass(frozen=True)
class RegisterFile:
    """Registers ``prefix + number``; ``views`` has, per prefix, the prefixes of its parts, lowest
    bits first: ("bml", ("amll", "amlh")) says that bml3 is amll3 and amlh3. ``paired``: y3 is
    x6 and x7."""

    name: str
    views: Mapping[str, tuple[str, ...]]
    count: int
    bits: int
    source: Source
    paired: bool = False


@dataclass(frozen=True)
class Operand:
    """``kind``: a register file, "imm", "label", "address" or "fifo". ``stage``: the cycle of a
    read, 0 for none; ``latency``: that of a result, 0 for none; ``parts``: how many of the
    register's lowest parts are read, 0 for all."""

    kind: str
    stage: int = 1
    latency: int = 0
    parts: int = 0


@dataclass(frozen=True)
class Immediate:
    """Signed: ``bits`` of them, in units of ``step``."""

    bits: int
    step: int = 1

    def holds(self, value: int) -> bool:
        half = 1 << (self.bits - 1)
        return value % self.step == 0 and -half <= value // self.step < half


@dataclass(frozen=True)
class Operation:
    """One form of an instruction. ``key`` is its name in programs built here, ``mnemonic`` what the
    assembler reads; forms that differ only in their operands share a mnemonic.

    ``memory_stage``: the cycle in which data memory is accessed, 0 for none; ``ports``: shared
    ports with the cycle in which they are taken, counted as stages are; ``modes``: control
    registers that it reads, with the stage.
    """

    key: str
    mnemonic: str
    slot: str
    operands: tuple[Operand, ...]
    action: str
    source: Source
    immediate: Immediate | None = None  # a plain one
    offset: Immediate | None = None  # of [p, #imm]
    post: Immediate | None = None  # of [p], #imm
    memory_stage: int = 0
    memory_bytes: int = 0
    ports: tuple[tuple[str, int], ...] = ()
    modes: tuple[tuple[str, int], ...] = ()
    delay_slots: int = 0
    word: int = 0  # the configuration, its last operand, that tells it from others of its mnemonic


@dataclass(frozen=True)
class LoopRules:
    """A zero-overhead loop: registers are set ``distance`` bytes of code before its first bundle;
    first and last bundle start at multiples of ``alignment``; the last has ``last_bytes``."""

    distance: int
    alignment: int
    last_bytes: int
    source: Source


@dataclass(frozen=True)
class Banks:
    """Single-ported banks of data memory; a bank of ``width`` bytes serves one access per cycle.
    Bank of an address: 2 * ((address >> 14) & 3) + ((address >> select) & 1)."""

    count: int
    width: int
    select: int
    bytes: int
    source: Source

    def of(self, address: int, size: int) -> set[int]:
        """The banks that an access of ``size`` bytes touches."""
        first = address - address % self.width
        return {
            2 * ((a >> 14) & 3) + ((a >> self.select) & 1)
            for a in range(first, address + size, self.width)
        }


@dataclass(frozen=True)
class Fifo:
    """A stream through a load or store file: the next byte's address, the file that holds bytes
    which were loaded and not yet taken, or given and not yet stored, and the register that counts
    them, down if they wait to be stored. ``step``: the modifier by which an access moves on that
    leaves the file empty, or the d register of its walk."""

    pointer: str
    file: str
    position: str
    step: str = ""


@dataclass(frozen=True)
class Machine:
    """A core. ``formats``: bytes of a bundle that has room for these slots."""

    name: str
    generation: str
    slots: tuple[Slot, ...]
    slot_source: Source  # and of ``exclusive``
    files: tuple[RegisterFile, ...]
    operations: tuple[Operation, ...]
    formats: tuple[tuple[int, frozenset[str]], ...]
    format_source: Source
    banks: Banks
    loop: LoopRules
    program_bytes: int
    memory_bytes: int
    size_source: Source  # of both memories
    exclusive: tuple[tuple[str, str], ...] = field(default=())  # slots that share bits of a bundle
    fifos: tuple[Fifo, ...] = ()
    fifo_source: Source | None = None

    @cached_property
    def slot_named(self) -> dict[str, Slot]:
        return {slot.name: slot for slot in self.slots}

    @cached_property
    def operation(self) -> dict[str, Operation]:
        return {operation.key: operation for operation in self.operations}

    @cached_property
    def by_mnemonic(self) -> dict[str, list[Operation]]:
        found: dict[str, list[Operation]] = {}
        for operation in self.operations:
            found.setdefault(operation.mnemonic, []).append(operation)
        return found

    @cached_property
    def file(self) -> dict[str, RegisterFile]:
        return {file.name: file for file in self.files}

    @cached_property
    def _registers(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Name of a register -> its file and the parts that hold its bits."""
        parts: dict[str, tuple[str, ...]] = {}
        for file in self.files:
            for prefix, below in file.views.items():
                for number in _numbers(file):
                    has = [f"{p}{number}" for p in below]
                    if file.paired:
                        has = [f"{below[0]}{2 * int(number) + i}" for i in range(2)]
                    parts[f"{prefix}{number}"] = tuple(has)

        def atoms(name: str) -> tuple[str, ...]:
            return tuple(a for p in parts[name] for a in atoms(p)) if parts[name] else (name,)

        return {
            f"{prefix}{number}": (file.name, atoms(f"{prefix}{number}"))
            for file in self.files
            for prefix in file.views
            for number in _numbers(file)
        }

    def atoms(self, register: str) -> tuple[str, ...]:
        """The parts of a register that are no views of anything smaller, lowest bits first."""
        found = self._registers.get(register)
        if found is None:
            raise FormatError(f"[machine] {self.name} has no register {register!r}")
        return found[1]

    def file_of(self, register: str) -> str | None:
        """The register file that a name belongs to, or None."""
        found = self._registers.get(register)
        return found[0] if found else None

    @cached_property
    def _parts(self) -> dict[str, int]:
        """Name of a file -> how many parts its registers have."""
        return {
            file.name: len(self.atoms(f"{next(iter(file.views))}{_numbers(file)[0]}"))
            for file in self.files
        }

    def parts(self, kind: str) -> int:
        """How many parts the registers of a file have (``kind``: with a pool, "X@low")."""
        return self._parts[kind.partition("@")[0]]

    @cached_property
    def _views(self) -> dict[tuple[str, ...], str]:
        """Parts -> the first register that has just these."""
        found: dict[tuple[str, ...], str] = {}
        for name, (_, atoms) in self._registers.items():
            found.setdefault(atoms, name)
        return found

    def part(self, register: str, atoms: range) -> str:
        """The view of a register that has these of its parts."""
        wanted = self.atoms(register)[atoms.start : atoms.stop]
        if wanted not in self._views:
            raise FormatError(f"[machine] no register of {self.name} is {', '.join(wanted)}")
        return self._views[wanted]

    def bytes_of(self, register: str) -> int:
        return self.file[self._registers[register][0]].bits // 8

    @cached_property
    def _bundle_bytes(self) -> dict[frozenset[str], int]:
        """What `bundle_bytes` has found."""
        return {}

    def bundle_bytes(self, slots: frozenset[str]) -> int:
        """The bytes of the smallest bundle that has these slots."""
        found = self._bundle_bytes.get(slots)
        if found is None:
            sizes = [size for size, has in self.formats if slots <= has]
            if not sizes:
                raise FormatError(
                    f"[machine] {self.name}: no bundle holds {sorted(slots)} together"
                )
            found = self._bundle_bytes[slots] = min(sizes)
        return found


def _numbers(file: RegisterFile) -> list[str]:
    return [str(i) for i in range(file.count)] if file.count > 1 else [""]
