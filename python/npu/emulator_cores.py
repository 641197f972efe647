"""Cores of the emulated NPU whose programs are Python generator functions.

``npu.emulator.Array.attach(col, row, program)`` takes a function of one argument, the
:class:`Core`. The function does what the core's compiled program would do: it reads and writes
buffers, and it yields what may have to wait::

    def add_one(core):
        source = core.buffer(0x400, 16, np.int32)
        target = core.buffer(0x800, 16, np.int32)
        while True:
            yield core.acquire(1)           # an object has arrived
            yield core.acquire(2)           # there is room for a result
            target[:] = source + 1
            yield core.release(0)
            yield core.release(3)

It may have code before its loop, loops that depend on data, and an end.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Generator, Sequence
from types import GeneratorType
from typing import Any

import numpy as np

from npu import _npu
from npu.errors import ArgumentError, make_error

__all__ = ["Core", "Fifo", "Operation", "Program"]

# The order of a core's address map: 64 KiB and 16 locks of each side, "own" last.
SIDES = ("south", "west", "north", "own")
FIRST_ADDRESS, SIDE_BYTES, SIDE_LOCKS = 0x40000, 0x10000, 16
CASCADE_BYTES = 64
ACQUIRE_GE, ACQUIRE_EQ, RELEASE, PUT, GET, PUT_CASCADE, GET_CASCADE, WORK = range(8)
MAX_LOCK_VALUE = 63
MAX_CYCLES = 1e15
PROCESSOR_BUS = 0x32038


class Operation:
    """What a core's program yields; made by the methods of :class:`Core`."""

    __slots__ = ("decode", "fields", "text")

    def __init__(self, text: str, fields: tuple[Any, ...], decode: Callable[[bytes], Any]) -> None:
        self.text = text  # the call that made it
        self.fields = fields
        self.decode = decode

    def __repr__(self) -> str:
        return f"core.{self.text}"


def _nothing(_: bytes) -> None:
    return None


class Core:
    """A core as its program sees it: locks, memory, stream ports, cascade.

    Operations (``acquire``, ``release``, ``put``, ``get``, ``work``, ...) happen when they are
    yielded.
    ``side`` names a tile that the core reaches: "own", "south", "west" or "north" (a core reaches
    no tile to its east, whose core reaches this one's as its west), with that tile's own lock
    numbers (0-15) and byte addresses (0-65535), as ``aie.lock`` and ``aie.buffer`` have them; or
    "map": then a lock is one of 0-63 and an address one of 0x40000-0x7ffff of the core's own
    address map, as in compiled code.
    """

    def __init__(self, array: Any, col: int, row: int) -> None:
        self.col = col
        self.row = row
        self._array = array
        self._made: Operation | None = None  # not yielded so far

    def __repr__(self) -> str:
        return f"core ({self.col},{self.row})"

    # Locks

    def acquire(self, lock: int, value: int = 1, *, side: str = "own") -> Operation:
        """Waits until the lock is at least ``value``, then takes ``value`` from it."""
        return self._lock("acquire", ACQUIRE_GE, lock, value, side)

    def acquire_equal(self, lock: int, value: int = 1, *, side: str = "own") -> Operation:
        """Waits until the lock is exactly ``value``, then sets it to 0."""
        return self._lock("acquire_equal", ACQUIRE_EQ, lock, value, side)

    def release(self, lock: int, value: int = 1, *, side: str = "own") -> Operation:
        """Adds ``value`` to the lock; EmulatorError when that leaves 0-63."""
        return self._lock("release", RELEASE, lock, value, side)

    # Streams and cascade

    def put(self, words: Any, *, last: bool = False) -> Operation:
        """Sends a 32-bit integer, or an array of whole 32-bit words, through the stream port.

        Waits until the receivers have taken them: streams hold no words. ``last`` marks the last
        word by TLAST. On a packet-switched route the first word of a packet is its header.
        EmulatorError where the port has no route.
        """
        data = self._words("put", words)
        return self._make(f"put({_brief(words)})", (PUT, 0, 0, data, 0, bool(last)), _nothing)

    def get(self, count: int | None = None, dtype: Any = np.int32) -> Operation:
        """Takes words from the stream port: one, as a number, or an array of ``count`` words.

        The yield gives ``count`` * 4 bytes as an array of ``dtype``. EmulatorError where no stream
        reaches the port.
        """
        text = f"get({'' if count is None else count})"
        kind = self._dtype("get", dtype)
        if count is None and kind.itemsize != 4:
            raise ArgumentError(f"[get] {self}: one word is no {kind}; give the number of words")
        words = 1 if count is None else self._int("get", "count", count, 1, 1 << 24)

        def decode(result: bytes) -> Any:
            values = np.frombuffer(bytearray(result), kind)
            return values[0] if count is None else values

        self._fits("get", words * 4, kind)
        return self._make(text, (GET, 0, 0, None, words, False), decode)

    def put_cascade(self, values: Any) -> Operation:
        """Writes values of 512 bits, an array of a multiple of 64 bytes, to the cascade.

        It goes to the south or east neighbour, as Accumulator_Control (0x36060) says, and holds
        four values on the way. EmulatorError where that core takes its cascade from elsewhere.
        """
        data = _bytes_of("put_cascade", self, values)
        if not data or len(data) % CASCADE_BYTES:
            raise ArgumentError(
                f"[put_cascade] {self}: the values have {len(data)} bytes; the cascade takes "
                "multiples of 64 (512 bits)"
            )
        fields = (PUT_CASCADE, 0, 0, data, 0, False)
        return self._make(f"put_cascade({_brief(values)})", fields, _nothing)

    def get_cascade(self, count: int = 1, dtype: Any = np.int32) -> Operation:
        """Reads ``count`` values of 512 bits from the cascade: ``count`` * 64 bytes of ``dtype``.

        From the north or west neighbour, as Accumulator_Control says; else EmulatorError.
        """
        kind = self._dtype("get_cascade", dtype)
        values = self._int("get_cascade", "count", count, 1, 1 << 20)
        self._fits("get_cascade", values * CASCADE_BYTES, kind)
        fields = (GET_CASCADE, 0, 0, None, values * CASCADE_BYTES // 4, False)
        return self._make(
            f"get_cascade({count})", fields, lambda result: np.frombuffer(bytearray(result), kind)
        )

    # Time

    def work(self, cycles: float, name: str = "work") -> Operation:
        """Takes ``cycles`` in a run of ``Array.simulate``, under this name in its timeline.

        Everything else that a program computes takes no time there; lock and cascade operations
        are paid for by the next work. Nothing in a run of ``submit``.
        """
        try:
            number = float(cycles)
        except (TypeError, ValueError):
            raise ArgumentError(f"[work] {self}: cycles is no number: {cycles!r}") from None
        if not 0 <= number <= MAX_CYCLES:
            raise ArgumentError(f"[work] {self}: cycles is {cycles!r}; use 0..{MAX_CYCLES:.0e}")
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"[work] {self}: name is {name!r}; pass a text")
        return self._make(f"work({cycles})", (WORK, number, name), _nothing)

    # Memory

    def buffer(
        self, address: int, shape: int | Sequence[int], dtype: Any, *, side: str = "own"
    ) -> np.ndarray:
        """A writable view of ``shape`` elements of ``dtype`` at a byte address of a tile's memory.

        It shows what is there at any time. Runtime parameters are buffers of one element.
        """
        dimensions = shape if isinstance(shape, Sequence) else (shape,)
        where = self._int("buffer", "address", address, 0, FIRST_ADDRESS + 4 * SIDE_BYTES - 1)
        index = self._side("buffer", side)
        if side == "map":
            if where < FIRST_ADDRESS:
                raise ArgumentError(
                    f"[buffer] {self}: address 0x{where:x} is not in a core's address map, which "
                    "has memory at 0x40000-0x7ffff (south, west, north, own)"
                )
            index, where = divmod(where - FIRST_ADDRESS, SIDE_BYTES)
        memory = self._array.core_memory(self.col, self.row, index)
        if memory is None:
            raise ArgumentError(
                f"[buffer] {self}: there is no core tile to the {SIDES[index]}, and a core reaches "
                "the memory of core tiles only; correct the side"
            )
        kind = self._dtype("buffer", dtype)
        sizes = [self._int("buffer", "a dimension", n, 0, SIDE_BYTES) for n in dimensions]
        size = int(np.prod(sizes, dtype=np.int64)) * kind.itemsize
        if where + size > SIDE_BYTES:
            raise ArgumentError(
                f"[buffer] {self}: {size} bytes at 0x{where:x} end beyond the tile's 64 KiB; "
                'correct address, shape or dtype (side="map" takes addresses of the core\'s map)'
            )
        if where % min(kind.alignment, 4):
            raise ArgumentError(f"[buffer] {self}: 0x{where:x} is not aligned for {kind}")
        return np.frombuffer(memory, np.uint8)[where : where + size].view(kind).reshape(sizes)

    def parameter(self, address: int, *, side: str = "own") -> int:
        """The int32 that is at a byte address now: a runtime parameter."""
        return int(self.buffer(address, 1, np.int32, side=side)[0])

    def register(self, offset: int) -> int:
        """A register of the core's own tile, read over its processor bus.

        EmulatorError unless the bus is enabled (bit 0 of 0x32038): hardware would hang.
        """
        where = self._int("register", "offset", offset, 0, (1 << 20) - 1)
        if not self._array.read_register(self._address(PROCESSOR_BUS)) & 1:
            raise make_error(
                "kernel",
                f"[register] {self} reads 0x{where:05x} over its processor bus, which is not "
                "enabled; set bit 0 of register 0x32038",
            )
        return self._array.read_register(self._address(where))

    def _address(self, offset: int) -> int:
        return _npu.arch.tile_address(self.col, self.row, offset)

    def fifo(
        self, buffers: Sequence[np.ndarray], *, acquire: int, release: int, side: str = "own"
    ) -> Fifo:
        """One end of an object FIFO: its buffers in their order and its two locks.

        ``acquire`` is the lock that this end takes (the consumer's: filled objects), ``release``
        the one that it gives (room); both of the tile ``side``.
        """
        return Fifo(self, buffers, acquire, release, side)

    # Checks

    def _make(
        self, text: str, fields: tuple[Any, ...], decode: Callable[[bytes], Any]
    ) -> Operation:
        self._check_yielded()
        self._made = Operation(text, fields, decode)
        return self._made

    def _check_yielded(self) -> None:
        if self._made is not None:
            forgotten, self._made = self._made, None
            raise ArgumentError(
                f"[attach] {self}: core.{forgotten.text} was made but not yielded, so it did not "
                f"happen; write `yield core.{forgotten.text}`"
            )

    def _lock(self, name: str, code: int, lock: int, value: int, side: str) -> Operation:
        index = self._side(name, side)
        if side == "map":
            number = self._int(name, "lock", lock, 0, 4 * SIDE_LOCKS - 1)
        else:
            number = self._int(name, "lock", lock, 0, SIDE_LOCKS - 1) + SIDE_LOCKS * index
        low = -MAX_LOCK_VALUE if code == RELEASE else 0
        amount = self._int(name, "value", value, low, MAX_LOCK_VALUE)
        where = "" if side == "own" else f", side={side!r}"
        text = f"{name}({lock}, {amount}{where})"
        return self._make(text, (code, number, amount, None, 0, False), _nothing)

    def _side(self, name: str, side: str) -> int:
        if side in SIDES:
            return SIDES.index(side)
        if side == "map":
            return 0
        east = "; a core reaches nothing of its east neighbour" if side == "east" else ""
        raise ArgumentError(
            f'[{name}] {self}: side is {side!r}; use "own", "south", "west", "north" or "map"{east}'
        )

    def _int(self, name: str, what: str, value: Any, low: int, high: int) -> int:
        try:
            number = operator.index(value)
        except TypeError:
            raise ArgumentError(
                f"[{name}] {self}: {what} must be an integer, found {value!r}"
            ) from None
        if not low <= number <= high:
            hint = ' (side="map" takes 0-63)' if what == "lock" and number <= 63 else ""
            raise ArgumentError(f"[{name}] {self}: {what} is {number}; use {low}..{high}{hint}")
        return number

    def _dtype(self, name: str, dtype: Any) -> np.dtype:
        try:
            kind = np.dtype(dtype)
        except TypeError as error:
            raise ArgumentError(f"[{name}] {self}: {dtype!r} is no NumPy dtype") from error
        if kind.hasobject or not kind.itemsize:
            raise ArgumentError(f"[{name}] {self}: memory holds plain numbers, not {kind}")
        return kind

    def _fits(self, name: str, size: int, kind: np.dtype) -> None:
        if size % kind.itemsize:
            raise ArgumentError(f"[{name}] {self}: {size} bytes are not a whole number of {kind}")

    def _words(self, name: str, words: Any) -> bytes:
        if isinstance(words, (int, np.integer)) and not isinstance(words, bool):
            number = self._int(name, "the word", words, -(1 << 31), (1 << 32) - 1)
            return (number & 0xFFFFFFFF).to_bytes(4, "little")
        data = _bytes_of(name, self, words)
        if not data or len(data) % 4:
            raise ArgumentError(
                f"[{name}] {self}: the words have {len(data)} bytes; a stream takes multiples of 4"
            )
        return data


class Fifo:
    """One end of an object FIFO, as mlir-aie lowers them: made by :meth:`Core.fifo`.

    Objects stay acquired until they are released, so that a window of several slides by one::

        window = yield from source.acquire(3)
        ...
        yield from source.release(1)
    """

    def __init__(
        self, core: Core, buffers: Sequence[np.ndarray], acquire: int, release: int, side: str
    ) -> None:
        self._core = core
        self._buffers = list(buffers)
        self._locks = (acquire, release)
        self._side = side
        self._first = self._held = 0
        if not self._buffers:
            raise ArgumentError(f"[fifo] {core}: an object FIFO has at least one buffer")

    def acquire(self, count: int = 1) -> Generator[Operation, Any, list[np.ndarray]]:
        """The ``count`` oldest objects, by ``yield from``; waits for those not yet held."""
        depth = len(self._buffers)
        self._core._int("fifo.acquire", "count", count, 1, depth)
        if count > self._held:
            yield self._core.acquire(self._locks[0], count - self._held, side=self._side)
            self._held = count
        return [self._buffers[(self._first + i) % depth] for i in range(count)]

    def release(self, count: int = 1) -> Generator[Operation, Any, None]:
        """Gives the ``count`` oldest objects to the other end; by ``yield from``."""
        self._core._int("fifo.release", "count", count, 1, len(self._buffers))
        if count > self._held:
            raise ArgumentError(
                f"[fifo.release] {self._core}: {count} objects are to be released, {self._held} "
                "are held; acquire them first"
            )
        yield self._core.release(self._locks[1], count, side=self._side)
        self._held -= count
        self._first = (self._first + count) % len(self._buffers)


def _bytes_of(name: str, core: Core, values: Any) -> bytes:
    if not isinstance(values, (np.ndarray, np.generic)) or values.dtype.hasobject:
        raise ArgumentError(
            f"[{name}] {core}: expected a NumPy array of plain numbers, found {type(values)}"
        )
    return values.tobytes()


def _brief(values: Any) -> str:
    return f"<{values.dtype}, {values.size}>" if isinstance(values, np.ndarray) else str(values)


class Program:
    """A core's program while it runs: what the array asks for its next operation."""

    def __init__(self, array: Any, col: int, row: int, function: Callable[[Core], Any]) -> None:
        self._array = array
        self._function = function
        self._at = (col, row)
        self._core = Core(array, col, row)
        self._generator: Generator[Any, Any, Any] | None = None
        self._decode: Callable[[bytes], Any] = _nothing

    def next(self, restart: bool, result: bytes) -> tuple[Any, ...] | None:
        """The fields of the next operation, None when the program has returned."""
        try:
            return self._restart() if restart else self._resume(self._decode(result))
        except BaseException as error:
            if hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"in the program of {self._core}")
            raise

    def _restart(self) -> tuple[Any, ...] | None:
        if self._generator is not None:
            self._generator.close()
            self._generator = None
        self._core = Core(self._array, *self._at)
        started = self._function(self._core)
        if started is None:  # without a yield: it has run
            self._core._check_yielded()
            return None
        if not isinstance(started, GeneratorType):
            raise ArgumentError(
                f"[attach] the program of {self._core} returned {started!r}; it must be a "
                "generator function: one that yields the core's operations"
            )
        self._generator = started
        return self._resume(None)

    def _resume(self, value: Any) -> tuple[Any, ...] | None:
        assert self._generator is not None
        core = self._core
        try:
            made = self._generator.send(value)
        except StopIteration:
            core._check_yielded()
            return None
        if not isinstance(made, Operation):
            raise ArgumentError(
                f"[attach] the program of {core} yielded {made!r} at {self.place()}; yield what "
                "core.acquire, release, put, get, put_cascade, get_cascade or work return"
            )
        if core._made is made:
            core._made = None
        core._check_yielded()
        self._decode = made.decode
        return made.fields

    def place(self) -> str:
        """Where the program is: "line 12 of add_one (design.py)"; innermost `yield from`."""
        generator: Any = self._generator
        while isinstance(getattr(generator, "gi_yieldfrom", None), GeneratorType):
            generator = generator.gi_yieldfrom
        frame = getattr(generator, "gi_frame", None)
        if frame is None:
            return ""
        code = frame.f_code
        return f"line {frame.f_lineno} of {code.co_name} ({os.path.basename(code.co_filename)})"
