"""Runs a program of bundles on one core and its 64 KB of data memory.

The pipeline is exposed: an operation reads each operand in its stage and its result is there after
its latency, whether anybody waits for it or not. What a core would do silently and a programmer
cannot have meant is an error here: a register that was never written, a value other than the one
the scheduler meant (``Op.expects``), a port taken twice, a loop that breaks the rules. Two accesses
to one bank in a cycle cost a stall each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from npu.errors import ArgumentError, ScheduleError
from npu.vliw import assembly, conversions, vector_actions
from npu.vliw.arithmetic import multiply_bf16, multiply_bfp16, multiply_int8, multiply_int16
from npu.vliw.machine import Fifo, Operation
from npu.vliw.program import Address, Op, Program, Tag
from npu.vliw.vector_arithmetic import multiplied
from npu.vliw.vector_operations import LANES

_POINTER_BITS = 20
_FILE = ("fill", "pop", "leave")  # actions through load files
_STORE_FILE = ("store push", "store flush", "store leave")
_BLOCKS = 72  # bytes of 8 blocks of BFP16, which one pop takes
Value = int | bytes


@dataclass
class Run:
    """What happened: ``cycles`` from the first bundle to the last one, stalls included."""

    bundles: int = 0
    stalls: int = 0
    issued: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # per operation
    passed: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # per bundle
    # What read a register before the result of an earlier bundle had landed in it, and from where
    # that comes; first times only, and only of operations that do not say what they expect.
    early: dict[str, str] = field(default_factory=dict)

    @property
    def cycles(self) -> int:
        return self.bundles + self.stalls


@dataclass(eq=False)
class _Flight:
    """An operation under way."""

    op: Op
    where: str
    blocks: int  # by which tags have advanced
    began: int  # the cycle
    inputs: dict[int | str, Value] = field(default_factory=dict)  # of operands and of modes
    address: int = 0
    loaded: bytes = b""
    held: int = 0  # bytes in the load file
    skipped: int = 0  # of what was loaded for it


class Core:
    """One core: ``memory`` is its data memory; ``run`` executes a program from its first bundle."""

    def __init__(self, memory: bytearray, pointers: Mapping[str, int]) -> None:
        self.memory = memory
        self.registers: dict[str, Value] = {"lr": 0, **pointers}
        self.tags: dict[str, Tag | None] = {}
        self.result = Run()
        self._reads: dict[int, list[tuple[_Flight, int | str]]] = defaultdict(list)
        self._accesses: dict[int, list[_Flight]] = defaultdict(list)
        self._landings: dict[int, list[_Flight]] = defaultdict(list)
        self._pointers: dict[int, list[tuple[str, int]]] = defaultdict(list)
        self._fifos: dict[str, bytes] = defaultdict(bytes)
        self._ports: set[tuple[str, int]] = set()
        self._under_way: dict[str, list[_Flight]] = defaultdict(list)  # to each part of a register
        self._loop_code: dict[str, int] = {}  # loop register -> end of the bundle that set it
        self._passes = 0

    def run(self, program: Program, limit: int = 10_000_000) -> Run:
        """Executes bundles until `ret` and its delay slots are over."""
        self._begin(program)
        index = now = 0
        left: int | None = None  # bundles until the return takes effect
        while left != 0:
            if index >= len(program.bundles):
                raise ScheduleError(
                    f"[simulate] {program.name} runs past its last bundle, {index - 1}: no `ret` "
                    "with its delay slots"
                )
            if now >= limit:
                raise ScheduleError(f"[simulate] {program.name} has not ended after {now} bundles")
            left = None if left is None else left - 1
            slots = self._issue(program, index, now)
            left = left if slots is None else slots
            self.result.bundles += 1
            self.result.passed[index] += 1
            index, now = self._next(program, index), now + 1
        while any((self._reads, self._accesses, self._landings, self._pointers)):
            self._begin_cycle(now)  # what is still under way
            self._end_cycle(now)
            now += 1
        return self.result

    def value(self, register: str) -> Value:
        """What a register holds after a run, of all its parts. KeyError if it was never written."""
        values = [self.registers[atom] for atom in self._program.machine.atoms(register)]
        if isinstance(values[0], int):
            return values[0]
        return b"".join(v for v in values if isinstance(v, bytes))

    def _begin(self, program: Program) -> None:
        self._program, self._addresses, self._sizes = program, program.addresses, program.sizes
        self._index_at = {address: i for i, address in enumerate(self._addresses[:-1])}
        self._loops = dict(program.loops)
        machine = program.machine
        if program.code_bytes > machine.program_bytes:
            raise ScheduleError(
                f"[simulate] {program.name} has {program.code_bytes} bytes of code; program memory "
                f"has {machine.program_bytes}: unroll less"
            )
        for i, bundle in enumerate(program.bundles):
            bundle.check(machine, f"bundle {i}")

    # One cycle: results land, operands are read, memory is accessed.

    def _issue(self, program: Program, index: int, now: int) -> int | None:
        """Starts a bundle; the delay slots of its return, if it has one."""
        self._begin_cycle(now)
        left = None
        inside = any(first <= index <= last for first, last in program.loops)
        blocks = program.loop_step * self._passes if inside else 0
        for op in map(self._configured, program.bundles[index].ops):
            operation = op.operation
            flight = _Flight(op, f"bundle {index}, {assembly.op_text(op)}", blocks, now)
            self.result.issued[operation.key] += 1
            self._reserve(flight, now)
            for position, operand in enumerate(operation.operands):
                if operand.kind == "address":
                    self._start_access(flight, position, now)
                elif operand.kind == "fifo":
                    self._start_fifo(flight, position, now)
                elif operand.stage and operand.kind not in ("imm", "label"):
                    self._reads[now + operand.stage - 1].append((flight, position))
                if operand.latency:
                    self._landings[now + operand.latency].append(flight)
                    for atom in program.machine.atoms(str(op.operands[position])):
                        self._under_way[atom].append(flight)
            for mode, stage in operation.modes:
                self._reads[now + stage - 1].append((flight, mode))
            if operation.action == "return":
                left = operation.delay_slots
            if operation.operands and operation.operands[0].kind == "LOOP":
                self._loop_code[str(op.operands[0])] = self._addresses[index + 1]
        self._end_cycle(now)
        return left

    def _configured(self, op: Op) -> Op:
        """Of operations that the configuration word tells apart, as text does not, the one that
        is meant."""
        if not op.operation.word:
            return op
        word = self.registers.get(str(op.operands[-1]))
        forms = self._program.machine.by_mnemonic[op.operation.mnemonic]
        return replace(op, operation=next((f for f in forms if f.word == word), op.operation))

    def _begin_cycle(self, now: int) -> None:
        for pointer, value in self._pointers.pop(now, ()):
            self.registers[pointer] = value
        written: set[str] = set()
        for flight in self._landings.pop(now, ()):
            self._land(flight, written)

    def _end_cycle(self, now: int) -> None:
        for flight, key in self._reads.pop(now, ()):
            if isinstance(key, str):
                flight.inputs[key] = self._read(flight, key)
                continue
            parts = flight.op.operation.operands[key].parts
            flight.inputs[key] = self._read(flight, str(flight.op.operands[key]), parts)
        self._access(self._accesses.pop(now, []))

    def _reserve(self, flight: _Flight, now: int) -> None:
        for port, stage in flight.op.operation.ports:
            key = (port, now + stage - 1)
            if key in self._ports:
                raise ScheduleError(f"[simulate] {flight.where}: port {port!r} is used twice")
            self._ports.add(key)

    def _read(self, flight: _Flight, register: str, parts: int = 0) -> Value:
        atoms = self._program.machine.atoms(register)[: parts or None]
        for atom in atoms:
            if atom not in self.registers:
                raise ScheduleError(f"[simulate] {flight.where}: {atom} was never written")
            self._check_tag(flight, atom)
            self._note_early(flight, atom)
        values = [self.registers[atom] for atom in atoms]
        if isinstance(values[0], int):
            return values[0]
        return b"".join(v for v in values if isinstance(v, bytes))

    def _check_tag(self, flight: _Flight, atom: str) -> None:
        expected = flight.op.expects.get(atom)
        if expected is None:
            return
        expected = expected.later(flight.blocks).meant
        found = self.tags.get(atom)
        if found is None or (found.node, found.block) != (expected.node, expected.block):
            has = f"{found.node} of block {found.block}" if found else "nothing of the dataflow"
            raise ScheduleError(
                f"[simulate] {flight.where}: {atom} holds {has}, the schedule meant "
                f"{expected.node} of block {expected.block}"
            )

    def _note_early(self, flight: _Flight, atom: str) -> None:
        """That another result is on its way: legal, but not always meant."""
        if atom in flight.op.expects or not self._under_way[atom]:
            return
        writer = self._under_way[atom][0]
        if writer.began < flight.began:
            self.result.early.setdefault(f"{flight.where}: {atom}", writer.where)

    def _land(self, flight: _Flight, written: set[str]) -> None:
        """Puts a result into its register."""
        register = str(flight.op.operands[0])
        atoms = self._program.machine.atoms(register)
        result = self._result(flight)
        start = 0
        for atom in atoms:
            if atom in written:
                raise ScheduleError(
                    f"[simulate] {flight.where}: {atom} gets two results in one cycle"
                )
            written.add(atom)
            self._under_way[atom].remove(flight)
            end = start + self._program.machine.bytes_of(atom)
            self.registers[atom] = result[start:end] if isinstance(result, bytes) else result
            start = end
            tag = flight.op.tag
            self.tags[atom] = tag and tag.later(flight.blocks)
        if register == "le" and self.registers["le"] not in self._index_at:
            raise ScheduleError(
                f"[simulate] {flight.where}: the loop end, byte {self.registers['le']!r}, is no "
                "bundle's address"
            )

    def _result(self, flight: _Flight) -> Value:
        operation, inputs = flight.op.operation, flight.inputs
        operands = flight.op.operands
        match operation.action:
            case "load" | "pop" | "leave":
                return flight.loaded
            case "load ups" | "load bf16":
                return self._widened(flight)
            case "move":
                value = operands[1]
                if isinstance(value, str):
                    return self._addresses[self._label(value, flight)]
                return _wrapped(int(value), str(operands[0])) if isinstance(value, int) else 0
            case "copy":
                copied = inputs[1]
                return copied if isinstance(copied, bytes) else _wrapped(copied, str(operands[0]))
            case "add" | "mul":
                last = operands[2]
                other = last if isinstance(last, int) else _integer(inputs[2])
                one = _integer(inputs[1])
                return _wrapped(one + other if operation.action == "add" else one * other, "r")
            case "multiply":
                return _multiply(flight)
            case "multiply bfp16" | "multiply blocks":
                return _multiply_bfp16(flight)
            case "multiply int8":
                return _multiply_int8(flight)
            case "to blocks":
                sums = inputs[1]
                assert isinstance(sums, bytes)
                return _register_of(conversions.to_bfp16(sums, _integer(inputs["crrnd"])))
            case "multiply int16":
                return _multiply_int16(flight)
            case action if action in vector_actions.ACTIONS:
                size = self._program.machine.bytes_of(str(operands[0]))
                return vector_actions.result(self._program.machine, operation, inputs, size)
        raise ScheduleError(
            f"[simulate] {flight.where}: the action {operation.action!r} of {operation.key} is "
            "described but not simulated"
        )

    def _widened(self, flight: _Flight) -> bytes:
        if flight.op.operation.action == "load bf16":
            return conversions.to_fp32(flight.loaded)
        shift, saturation = _integer(flight.inputs[1]), _integer(flight.inputs["crsat"])
        size = self._sum_bytes(flight, "crupsmode")
        lane = len(flight.loaded) // self._lanes(flight, size)
        return conversions.shifted_up(flight.loaded, lane, shift, saturation, size)

    def _stored(self, flight: _Flight) -> bytes:
        """What a store writes."""
        data, action = flight.inputs[0], flight.op.operation.action
        assert isinstance(data, bytes)
        if action == "store":
            return data
        rounding = _integer(flight.inputs["crrnd"])
        if action == "store bf16":
            return conversions.to_bf16(data, rounding)
        shift, saturation = _integer(flight.inputs[1]), _integer(flight.inputs["crsat"])
        size = self._sum_bytes(flight, "crsrsmode")
        lane = flight.op.operation.memory_bytes // self._lanes(flight, size)
        return conversions.shifted_down(data, lane, shift, rounding, saturation, size)

    def _lanes(self, flight: _Flight, size: int) -> int:
        """Of so many bytes, in the accumulator."""
        atoms = self._program.machine.atoms(str(flight.op.operands[0]))
        return sum(self._program.machine.bytes_of(atom) for atom in atoms) // size

    def _sum_bytes(self, flight: _Flight, mode: str) -> int:
        """Of a sum, as the operation's name or the mode says."""
        value = flight.inputs.get(mode, int("s64" in flight.op.operation.key))
        if value not in (0, 1):
            raise ScheduleError(
                f"[simulate] {flight.where}: {mode} is {value!r}; only 0 and 1, lanes of 32 and of "
                "64 bits, are simulated"
            )
        return 8 if value else 4

    def _label(self, label: str, flight: _Flight) -> int:
        if label not in self._program.labels:
            raise ScheduleError(f"[simulate] {flight.where}: there is no label {label}")
        return self._program.labels[label]

    # Addresses and memory.

    def _start_access(self, flight: _Flight, position: int, now: int) -> None:
        """The address, the pointer's new value, and the access in its stage."""
        address = flight.op.operands[position]
        assert isinstance(address, Address)
        pointer = _integer(self._read(flight, address.pointer))
        step = address.step
        step = step if isinstance(step, int) else self._step(flight, step, now)
        flight.address = pointer + (step if address.mode == "offset" else 0)
        if address.mode != "offset":
            self._change(flight, address.pointer, pointer + step, now)
        if flight.op.operation.memory_stage:
            self._accesses[now + flight.op.operation.memory_stage - 1].append(flight)

    def _start_fifo(self, flight: _Flight, position: int, now: int) -> None:
        """Every access brings the 64 bytes of a line, from behind those that the file holds; a pop
        takes 72."""
        operation, fifo = flight.op.operation, flight.op.operands[position]
        assert isinstance(fifo, Fifo)
        pointer = _integer(self._read(flight, fifo.pointer))
        if operation.action in _STORE_FILE:
            self._start_store_file(flight, fifo, pointer, now)
            return
        flight.held = _integer(self._read(flight, fifo.position))
        flight.address = pointer + flight.held
        if operation.action == "fill" and flight.held == 0:
            flight.skipped = pointer % operation.memory_bytes
            flight.address -= flight.skipped
        left = flight.held + operation.memory_bytes - flight.skipped
        if operation.action != "fill":
            left -= _BLOCKS
            step = self._step(flight, fifo.step, now) if fifo.step else _BLOCKS
            self._change(flight, fifo.pointer, pointer + step, now)
        if not 0 <= left <= self._program.machine.bytes_of(fifo.file):
            raise ScheduleError(
                f"[simulate] {flight.where}: {fifo.file} would hold {left} bytes; a fill gives 64, "
                "a pop takes 8 of them"
            )
        self._change(flight, fifo.position, 0 if fifo.step else left, now)
        self._accesses[now + operation.memory_stage - 1].append(flight)

    def _start_store_file(self, flight: _Flight, fifo: Fifo, pointer: int, now: int) -> None:
        """A push stores up to the end of a line, a flush what waits."""
        operation = flight.op.operation
        line = operation.memory_bytes
        flight.held = -_signed(_integer(self._read(flight, fifo.position)), 32)
        flight.skipped = (pointer - flight.held) % line
        flight.address = pointer - flight.held - flight.skipped
        left = 0
        if operation.action == "store push":
            left = flight.held + _BLOCKS - (line - flight.skipped)
            self._change(flight, fifo.pointer, pointer + _BLOCKS, now)
        elif fifo.step:
            self._change(flight, fifo.pointer, pointer + self._step(flight, fifo.step, now), now)
        if left > line or flight.held < 0 or (not left and flight.skipped + flight.held > line):
            raise ScheduleError(
                f"[simulate] {flight.where}: {fifo.file} would hold {max(left, flight.held)} "
                f"bytes; a flush stores the rest of a line of {line}"
            )
        self._change(flight, fifo.position, -left, now)
        self._accesses[now + operation.memory_stage - 1].append(flight)

    def _store_file(self, flight: _Flight) -> None:
        """What the file gives to memory."""
        action, inputs = flight.op.operation.action, flight.inputs
        fifo = next(o for o in flight.op.operands if isinstance(o, Fifo))
        content = self._fifos[fifo.file]
        if len(content) != flight.held:
            raise ScheduleError(
                f"[simulate] {flight.where}: {fifo.position} says {flight.held} bytes, {fifo.file} "
                f"holds {len(content)}"
            )
        if action == "store push":
            sums = inputs[0]
            assert isinstance(sums, bytes)
            content += conversions.to_bfp16(sums, _integer(inputs["crrnd"]))
        size = flight.op.operation.memory_bytes - flight.skipped
        size = size if action == "store push" else flight.held
        start = flight.address + flight.skipped
        self.memory[start : start + size] = content[:size]
        self._fifos[fifo.file] = content[size:]

    def _change(self, flight: _Flight, register: str, value: int, now: int) -> None:
        """A register's new value in the next cycle."""
        if register in [name for name, _ in self._pointers[now + 1]]:
            raise ScheduleError(
                f"[simulate] {flight.where}: {register} is changed twice in one cycle"
            )
        self._pointers[now + 1].append((register, _wrapped(value, register)))

    def _step(self, flight: _Flight, register: str, now: int) -> int:
        """A modifier, or the next step of a d register's walk."""
        atoms = self._program.machine.atoms(register)
        if len(atoms) == 1:
            return _signed(_integer(self._read(flight, register)))
        modifier, size, step, count = (_integer(self._read(flight, atom)) for atom in atoms)
        again = count != size
        self._pointers[now + 1].append((atoms[3], count + 1 if again else 0))
        return _signed(step if again else modifier)

    def _access(self, flights: list[_Flight]) -> None:
        """The accesses of one cycle: loads see memory as it was before the cycle's store."""
        banks: dict[int, int] = defaultdict(int)
        for flight in flights:
            operation = flight.op.operation
            self._check_address(flight, operation)
            for bank in self._program.machine.banks.of(flight.address, operation.memory_bytes):
                banks[bank] += 1
            if operation.action.startswith("load") or operation.action in _FILE:
                end = flight.address + operation.memory_bytes
                flight.loaded = bytes(self.memory[flight.address : end])
            if operation.action in _FILE:
                self._through_file(flight)
        for flight in flights:
            if flight.op.operation.action in _STORE_FILE:
                self._store_file(flight)
            elif flight.op.operation.action.startswith("store"):
                data = self._stored(flight)
                self.memory[flight.address : flight.address + len(data)] = data
        self.result.stalls += max(banks.values(), default=1) - 1

    def _through_file(self, flight: _Flight) -> None:
        fifo = next(o for o in flight.op.operands if isinstance(o, Fifo))
        content = self._fifos[fifo.file]
        if len(content) < flight.held:
            raise ScheduleError(
                f"[simulate] {flight.where}: {fifo.position} says {flight.held} bytes, {fifo.file} "
                f"holds {len(content)}"
            )
        content = content[len(content) - flight.held :] + flight.loaded[flight.skipped :]
        if flight.op.operation.action != "fill":
            flight.loaded = _register_of(content[:_BLOCKS])
            content = content[_BLOCKS:]
        self._fifos[fifo.file] = content

    def _check_address(self, flight: _Flight, operation: Operation) -> None:
        size = operation.memory_bytes
        if flight.address % size or not 0 <= flight.address <= len(self.memory) - size:
            raise ScheduleError(
                f"[simulate] {flight.where}: address {flight.address:#x} must be a multiple of "
                f"{size} within {len(self.memory)} bytes"
            )

    # Hardware loops.

    def _next(self, program: Program, index: int) -> int:
        """The bundle after this one."""
        if self.registers.get("le") != self._addresses[index] or "lc" not in self.registers:
            return index + 1
        self._check_loop(index)
        count = _integer(self.registers["lc"])
        if count <= 1:
            self._passes = 0
            for name in ("ls", "le", "lc"):
                self.registers.pop(name, None)
            return index + 1
        self.registers["lc"] = count - 1
        self._passes += 1
        return self._index_at[_integer(self.registers["ls"])]

    def _check_loop(self, last: int) -> None:
        rules = self._program.machine.loop
        start = self.registers.get("ls")
        where = f"[simulate] loop that ends in bundle {last}"
        if start not in self._index_at or _integer(start) > self._addresses[last]:
            raise ScheduleError(f"{where}: its start, byte {start!r}, is no bundle before it")
        for address in (_integer(start), self._addresses[last]):
            if address % rules.alignment:
                raise ScheduleError(f"{where}: byte {address} is no multiple of {rules.alignment}")
        if self._sizes[last] != rules.last_bytes:
            raise ScheduleError(
                f"{where}: its last bundle has {self._sizes[last]} bytes, not {rules.last_bytes}"
            )
        for name, end in self._loop_code.items():
            if end <= _integer(start) < end + rules.distance:
                raise ScheduleError(
                    f"{where}: {name} is set {_integer(start) - end} bytes before its start, at "
                    f"least {rules.distance} are needed"
                )


def _multiply(flight: _Flight) -> bytes:
    from npu.vliw.aie2 import BF16_4X8X4

    c, a, b = _factors(flight)
    if flight.inputs[4] == LANES:
        return multiplied("npu1", [c], a, b, LANES)
    _require_configuration(flight, BF16_4X8X4, "bf16, 4 x 8 x 4")
    left = np.frombuffer(a, np.uint16).reshape(4, 8)
    right = np.frombuffer(b, np.uint16).reshape(8, 4)
    return multiply_bf16(left, right, np.frombuffer(c, np.uint32).reshape(4, 4)).tobytes()


def _multiply_bfp16(flight: _Flight) -> bytes:
    from npu.vliw.aie2p import BFP16_8X8X8

    _require_configuration(flight, BFP16_8X8X8, "BFP16, 8 x 8 x 8")
    c, a, b = _factors(flight)
    total = np.frombuffer(c, np.float32) if c else np.zeros(64, np.float32)
    return multiply_bfp16(*_blocks(a), *_blocks(b), total).tobytes()


def _multiply_int8(flight: _Flight) -> bytes:
    from npu.vliw.aie2 import INT8_8X8X8

    _require_configuration(flight, INT8_8X8X8, "int8, 8 columns of A and of B")
    c, a, b = _factors(flight)
    left, right = (np.frombuffer(x, np.int8).reshape(-1, 8) for x in (a, b))
    return multiply_int8(left, right, np.frombuffer(c, np.int32).reshape(-1, 8)).tobytes()


def _multiply_int16(flight: _Flight) -> bytes:
    from npu.vliw.aie2 import INT16_4X4X8

    _require_configuration(flight, INT16_4X4X8, "int16, 4 rows of A and of B")
    c, a, b = _factors(flight)
    left, right = (np.frombuffer(x, np.int16).reshape(4, -1) for x in (a, b))
    return multiply_int16(left, right, np.frombuffer(c, np.int64).reshape(4, -1)).tobytes()


def _require_configuration(flight: _Flight, only: int, what: str) -> None:
    """The configuration word, a multiplication's last operand, is the one that is simulated."""
    found = flight.inputs[len(flight.op.operands) - 1]
    if found != only:
        raise ScheduleError(
            f"[simulate] {flight.where}: configuration {found!r}; only {only} ({what}) is simulated"
        )


def _factors(flight: _Flight) -> tuple[bytes, bytes, bytes]:
    """The sum that goes in, nothing without one, and its two factors."""
    first = len(flight.op.operands) - 3
    c = flight.inputs[1] if first == 2 else b""
    a, b = flight.inputs[first], flight.inputs[first + 1]
    assert isinstance(a, bytes) and isinstance(b, bytes) and isinstance(c, bytes)
    return c, a, b


def _register_of(blocks: bytes) -> bytes:
    """Eight blocks as a register has them: mantissas, then exponents."""
    rows = np.frombuffer(blocks, np.uint8).reshape(8, 9)
    return rows[:, 1:].tobytes() + rows[:, 0].tobytes()


def _blocks(register: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Mantissas, a block per row, and exponents."""
    return np.frombuffer(register, np.int8, 64).reshape(8, 8), np.frombuffer(
        register, np.uint8, 8, 64
    )


def _integer(value: Value | None) -> int:
    if not isinstance(value, int):
        raise ArgumentError(f"[simulate] a scalar register holds {value!r}")
    return value


def _wrapped(value: int, register: str) -> int:
    bits = 32 if register.startswith(("r", "l")) else _POINTER_BITS
    return value & ((1 << bits) - 1)


def _signed(value: int, bits: int = _POINTER_BITS) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value
