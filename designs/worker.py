"""The control program of one core, as the design author writes it.

A worker is filled by calling its methods in program order; loops are `with` blocks::

    worker = design.worker(core)
    tiles = worker.rtp("tiles")
    with worker.forever():
        worker.wait_rtps()
        with worker.loop(tiles):
            source, sink = worker.acquire(fifo_in), worker.acquire(fifo_out)
            worker.call(copy, source, sink, 256)
            worker.release(fifo_in)
            worker.release(fifo_out)

What does not fit program memory at once are overlays: programs of which streams load one after the
other (`with worker.overlay("name"): ...`), the same ones into all cores of a design.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from npu.errors import DesignError

from .fifo import Names, ObjectFifo
from .hardware import DTYPE_BYTES, Tile
from .kernel import Kernel, KernelOperand, Signature


@dataclass(frozen=True)
class Rtp:
    """A runtime parameter: a 32-bit integer in the core's memory that streams may write."""

    name: str


@dataclass(frozen=True)
class Buffer:
    """Memory of one core that is not part of a FIFO."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    address: int | None
    init: tuple[int, ...] = ()  # int32 words at its start, when the array is configured

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Word:
    """An int32 of a local buffer, which kernels of this core write: a loop bound or an operand."""

    buffer: Buffer
    index: int


@dataclass(frozen=True)
class Object:
    """An acquired object of a FIFO; `sequence` counts the objects acquired so far."""

    fifo: ObjectFifo
    sequence: int


@dataclass(frozen=True)
class Step:
    """One line of the program. `kind`: forever, loop, end, wait_rtps, acquire, release, call.
    A loop around one acquire or release is of acquire_some() or release_some()."""

    kind: str
    fifo: ObjectFifo | None = None
    count: int | Rtp | Word = 1
    kernel: Kernel | None = None
    # call: operands; (fifo, slot after the oldest held one) stands for an acquired object.
    operands: tuple[Any, ...] = ()
    signature: Signature = ()  # call: the operands' types


class Worker:
    """One core's program under construction; see the module's example."""

    def __init__(self, names: Names, tile: Tile, stack_bytes: int | None) -> None:
        self._names = names
        self.tile = tile
        self.stack_bytes = stack_bytes  # None: what lowering/stack.py reserves
        self.steps: list[Step] = []
        self.overlays: dict[str, list[Step]] = {}
        self._program = self.steps  # that is being written
        self.rtps: list[Rtp] = []
        self.buffers: list[Buffer] = []
        self._acquired: dict[ObjectFifo, int] = {}  # objects so far
        self._released: dict[ObjectFifo, int] = {}
        self._frames: list[dict[ObjectFifo, int]] = [{}]  # objects held per open loop
        self._some: dict[ObjectFifo, tuple[Word, int]] = {}  # by acquire_some()

    def rtp(self, name: str) -> Rtp:
        """A runtime parameter of this core. All of a core's are guarded by one lock."""
        self._names.check(name)
        if any(r.name == name for r in self.rtps):
            raise self._error(f'the RTP "{name}" exists already')
        self.rtps.append(Rtp(name))
        return self.rtps[-1]

    @property
    def all_steps(self) -> list[Step]:
        """Of the program, or of all overlays."""
        return [step for program in (self.steps, *self.overlays.values()) for step in program]

    @contextmanager
    def overlay(self, name: str) -> Iterator[None]:
        """A program that streams load (Design.programs()) and that ends by itself."""
        if not name.isidentifier():
            raise self._error(f'overlay "{name}": a name has letters, digits and underscores')
        inside = self._program is not self.steps or len(self._frames) > 1
        if name in self.overlays or self.steps or self.rtps or inside:
            raise self._error(
                f'overlay "{name}": a worker has either one program or overlays of different '
                "names, without RTPs, none inside another"
            )
        self._program = self.overlays[name] = []
        try:
            yield
        finally:
            self._program = self.steps
        if held := _held_names(self._frames[0]):
            raise self._error(f'overlay "{name}" ends while holding objects of {held}')

    def buffer(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        *,
        address: int | None = None,
        init: tuple[int, ...] = (),
    ) -> Buffer:
        """Local memory, at a fixed byte address if one is given. init: words it begins with when
        the array is configured (int32 buffers)."""
        self._names.take(name)
        if dtype not in DTYPE_BYTES or not shape or min(shape) < 1:
            raise self._error(f'buffer "{name}" has dtype "{dtype}" and shape {shape}')
        words = dtype == "int32" and len(shape) == 1 and len(init) <= math.prod(shape)
        if init and not (words and all(-(1 << 31) <= word < 1 << 31 for word in init)):
            raise self._error(f'buffer "{name}" of {dtype}{list(shape)} cannot begin with {init}')
        self.buffers.append(Buffer(name, dtype, tuple(shape), address, tuple(init)))
        return self.buffers[-1]

    @contextmanager
    def forever(self) -> Iterator[None]:
        """An infinite loop."""
        with self._block(Step("forever")):
            yield

    @contextmanager
    def loop(self, count: int | Rtp | Word) -> Iterator[None]:
        """A loop of a constant number of rounds, or of as many as an RTP or word says on entry."""
        if isinstance(count, int) and count < 1:
            raise self._error(f"a loop of {count} rounds; at least 1")
        if isinstance(count, Rtp) and count not in self.rtps:
            raise self._error(f'the loop bound "{count.name}" is not an RTP of this worker')
        if isinstance(count, Word):
            self._check_word("the loop bound", count)
        with self._block(Step("loop", count=count)):
            yield

    def wait_rtps(self) -> None:
        """Waits until the stream has set the RTP lock to 1, and takes it back to 0."""
        if not self.rtps:
            raise self._error("wait_rtps: declare the RTPs first")
        self._program.append(Step("wait_rtps"))

    def acquire(self, fifo: ObjectFifo) -> Object:
        """Waits for the next object: a free one of an output FIFO, a full one of an input FIFO."""
        taken = self._take(fifo)
        self._program.append(Step("acquire", fifo=fifo))
        return taken

    def release(self, fifo: ObjectFifo) -> None:
        """Gives the oldest held object on (output FIFO) or back (input FIFO)."""
        self._give(fifo)
        self._program.append(Step("release", fifo=fifo))

    def acquire_some(self, fifo: ObjectFifo, count: Word, most: int) -> list[Object]:
        """Waits for as many objects as a word says, 1 to `most`. The others are operands that a
        kernel does not touch."""
        self._check_word("the number of objects", count)
        with self._round(count):
            objects = [self.acquire(fifo)]
        objects += [self._take(fifo) for _ in range(most - 1)]
        self._some[fifo] = count, most
        return objects

    def release_some(self, fifo: ObjectFifo, count: Word, most: int) -> None:
        """Gives the objects of acquire_some() on or back, of the same word, whose value stays."""
        if self._some.pop(fifo, None) != (count, most):
            raise self._error(
                f'release_some of "{fifo.name}": its objects were not acquired by acquire_some of '
                f"the same word, of at most {most}"
            )
        with self._round(count):
            self.release(fifo)
        for _ in range(most - 1):
            self._give(fifo)

    def call(self, kernel: Kernel, *operands: Object | Buffer | Rtp | Word | int) -> None:
        """Calls a kernel with objects, buffers, integers, or RTPs and words read at the call."""
        if len(operands) != len(kernel.operands):
            raise self._error(
                f"call of {kernel.name}: {len(operands)} operands, it takes {len(kernel.operands)}"
            )
        pairs = list(zip(operands, kernel.operands, strict=True))
        lowered = tuple(
            self._operand(kernel, i, o, d, in_place=operands.count(o) > 1)
            for i, (o, d) in enumerate(pairs)
        )
        self._check_counts(kernel, operands)
        signature = tuple(
            self._type_of(o) if isinstance(o, (Object, Buffer)) else d.dtype for o, d in pairs
        )
        self._program.append(Step("call", kernel=kernel, operands=lowered, signature=signature))

    def finish(self) -> None:
        """Checks what can only be seen at the end; called by the lowering."""
        if held := _held_names(self._frames[0]):
            raise self._error(f"the program ends while holding objects of {held}")
        if self.rtps and not any(s.kind == "wait_rtps" for s in self.steps):
            raise self._error("the worker has RTPs but never calls wait_rtps")
        if self.overlays and (self.steps or self.rtps):
            raise self._error("a worker has either one program or overlays, which have no RTPs")
        for name, steps in self.overlays.items():
            if any(step.kind == "forever" for step in steps):
                raise self._error(f'overlay "{name}" never ends; another could not be loaded')

    def _type_of(self, operand: Object | Buffer) -> tuple[str, tuple[int, ...]]:
        """(dtype, shape) of a buffer operand in this core's memory."""
        if isinstance(operand, Object):
            return operand.fifo.type_at(self.tile)
        return operand.dtype, operand.shape

    def _operand(
        self, kernel: Kernel, index: int, operand: Any, declared: KernelOperand, *, in_place: bool
    ) -> Any:
        what = f"call of {kernel.name}: operand {index}"
        what += f" ({declared.name})" if declared.name else ""
        if isinstance(operand, (Object, Buffer)):
            if not declared.buffer:
                raise self._error(f"{what} is a buffer, the kernel takes a number")
            dtype, shape = self._type_of(operand)
            same = dtype == declared.dtype or (kernel.in_place and in_place)
            if not same or declared.shape not in (None, shape):
                raise self._error(
                    f'{what} "{_source(operand).name}" is {dtype}{list(shape)}, the kernel '
                    f"takes {declared.type}"
                )
            if isinstance(operand, Buffer):
                if operand not in self.buffers:
                    raise self._error(f'{what} "{operand.name}" belongs to another worker')
                return operand
            slot = operand.sequence - self._released.get(operand.fifo, 0)
            if slot < 0:
                raise self._error(f'{what} is an object of "{operand.fifo.name}" released before')
            return (operand.fifo, slot)
        if declared.buffer:
            raise self._error(f"{what} is a number, the kernel takes a buffer")
        if isinstance(operand, Rtp) and operand not in self.rtps:
            raise self._error(f'{what} "{operand.name}" is not an RTP of this worker')
        if isinstance(operand, Word):
            self._check_word(what, operand)
        return operand

    def _check_counts(self, kernel: Kernel, operands: tuple[Any, ...]) -> None:
        """Buffers must hold what the kernel accesses, as far as the integers are constants."""
        buffers = [o for o in operands if isinstance(o, (Object, Buffer))]
        integers = [o for o in operands if not isinstance(o, (Object, Buffer))]
        try:
            counts = kernel.counts(*(i if isinstance(i, int) else None for i in integers))
        except DesignError as error:
            raise self._error(f"call of {error}") from error
        declared = [operand.dtype for operand in kernel.operands if operand.buffer]
        for operand, count, wanted in zip(buffers, counts, declared, strict=True):
            dtype, shape = self._type_of(operand)
            elements = math.prod(shape)
            # In place, a result may be of another type than the buffer.
            size = DTYPE_BYTES[dtype], DTYPE_BYTES[wanted]
            if count is not None and count * size[1] > elements * size[0]:
                raise self._error(
                    f'call of {kernel.name}: "{_source(operand).name}" has {elements} elements, '
                    f"the kernel accesses {count}"
                )

    def _check_word(self, what: str, word: Word) -> None:
        if word.buffer not in self.buffers or word.buffer.dtype != "int32":
            raise self._error(f'{what} "{word.buffer.name}" is not an int32 buffer of this worker')
        if not 0 <= word.index < math.prod(word.buffer.shape):
            raise self._error(
                f'{what} is word {word.index} of "{word.buffer.name}", which has '
                f"{math.prod(word.buffer.shape)}"
            )

    @contextmanager
    def _block(self, step: Step) -> Iterator[None]:
        self._program.append(step)
        frame: dict[ObjectFifo, int] = {}
        self._frames.append(frame)
        try:
            yield
        finally:
            self._frames.pop()
        if held := _held_names(frame):
            raise self._error(
                f"a loop body ends while holding objects of {held}; release them in it"
            )
        self._program.append(Step("end"))

    @contextmanager
    def _round(self, count: Word) -> Iterator[None]:
        """A loop around one acquire or release, whose objects are held outside of it."""
        self._program.append(Step("loop", count=count))
        yield
        self._program.append(Step("end"))

    def _take(self, fifo: ObjectFifo) -> Object:
        """Counts an object that is acquired."""
        held, depth = self._held(fifo), self._depth(fifo)
        if held == depth:
            raise self._error(
                f'acquire of "{fifo.name}": {held} objects are held and its depth is {depth}; the '
                "core would wait forever"
            )
        sequence = self._acquired.get(fifo, 0)
        self._acquired[fifo] = sequence + 1
        self._frames[-1][fifo] = self._frames[-1].get(fifo, 0) + 1
        return Object(fifo, sequence)

    def _give(self, fifo: ObjectFifo) -> None:
        """Counts an object that is released."""
        self._depth(fifo)
        outer = self._held(fifo) - self._frames[-1].get(fifo, 0)
        if self._frames[-1].get(fifo, 0) < 1 or outer:
            raise self._error(
                f'release of "{fifo.name}": the oldest object held was not acquired in this loop'
            )
        self._frames[-1][fifo] -= 1
        self._released[fifo] = self._released.get(fifo, 0) + 1

    def _held(self, fifo: ObjectFifo) -> int:
        return sum(frame.get(fifo, 0) for frame in self._frames)

    def _depth(self, fifo: ObjectFifo) -> int:
        if fifo.producer == self.tile:
            return fifo.producer_depth
        if self.tile in fifo.consumers:
            return fifo.consumer_depth
        raise self._error(f'fifo "{fifo.name}" has no end on this tile')

    def _error(self, text: str) -> DesignError:
        return DesignError(f"[worker {self.tile} of {self._names.design}] {text}")


def _held_names(frame: dict[ObjectFifo, int]) -> str:
    """Of FIFOs with objects that are still held, quoted; empty if there are none."""
    return ", ".join(f'"{fifo.name}"' for fifo, count in frame.items() if count)


def _source(operand: Object | Buffer) -> ObjectFifo | Buffer:
    """What a buffer operand is an object of, or is."""
    return operand.fifo if isinstance(operand, Object) else operand
