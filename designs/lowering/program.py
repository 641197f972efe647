"""Worker steps become worker programs (runtime/program.h): locks, addresses, slot counters."""

from __future__ import annotations

from npu.errors import DesignError

from ..api import Design
from ..fifo import ObjectFifo
from ..hardware import Tile
from ..worker import Buffer, Rtp, Step, Word, Worker
from .dataflow import Dataflow
from .lowered import Core, Instruction, Lock, Memory, Operand, Pool, RtpWord


def reserve(worker: Worker, flow: Dataflow) -> tuple[Core, dict[str, Memory]]:
    """The core with its local buffers, RTP words and RTP lock; its stack comes with its program,
    addresses with place()."""
    worker.finish()
    tile = worker.tile
    core = Core(tile, 0, [], 0)
    buffers = {
        b.name: flow.add_memory(tile, b.name, b.dtype, b.shape, b.address, b.init)
        for b in worker.buffers
    }
    if worker.overlays:
        fifos = {step.fifo for step in worker.all_steps if step.fifo is not None}
        rotating = [fifo for fifo in fifos if len(flow.pool_of[fifo, tile].slots) > 1]
        name, zeros = f"slots_{tile.col}_{tile.row}", (0,) * max(1, len(rotating))
        core.slots = flow.add_memory(tile, name, "int32", (len(zeros),), init=zeros)
        buffers[name] = core.slots
    core.buffers = list(buffers.values())
    if worker.rtps:
        name = f"rtp_{tile.col}_{tile.row}"
        memory = flow.add_memory(tile, name, "int32", (len(worker.rtps),))
        core.rtps = {r.name: RtpWord(r.name, memory, i) for i, r in enumerate(worker.rtps)}
        core.rtp_lock = flow.add_lock(tile, f"{name}_lock", 0)
    return core, buffers


def build(worker: Worker, core: Core, buffers: dict[str, Memory], flow: Dataflow) -> None:
    """Fills in the program of a reserved core."""
    counters: dict[ObjectFifo, int] = {}
    core.overlays = {name: [] for name in worker.overlays}
    for steps, program in zip(
        (worker.steps, *worker.overlays.values()),
        (core.program, *core.overlays.values()),
        strict=True,
    ):
        for step in steps:
            program += _lower(step, core, buffers, flow, counters)
    for step in worker.all_steps:
        if step.kernel is not None:
            known = flow.out.kernels.setdefault(step.kernel.name, step.signature)
            if known != step.signature:
                raise flow.error(
                    f'{core.tile}: kernel "{step.kernel.name}" is used with two argument lists'
                )
    core.counters = len(counters)


def check_ends(design: Design) -> None:
    """Every FIFO end on a core must be used by a worker there, or the design stops."""
    used = {(s.fifo, w.tile) for w in design.workers for s in w.all_steps if s.kind == "acquire"}
    for fifo in design.fifos:
        for tile in (fifo.producer, *fifo.consumers):
            if tile.kind == "core" and (fifo, tile) not in used:
                raise DesignError(
                    f'[lower {design.name}] fifo "{fifo.name}": no worker on {tile} acquires it'
                )


def _lower(
    step: Step,
    core: Core,
    buffers: dict[str, Memory],
    flow: Dataflow,
    counters: dict[ObjectFifo, int],
) -> list[Instruction]:
    if step.kind == "forever":
        return [Instruction("loop")]
    if step.kind == "loop":
        return [Instruction("loop", count=_count(step.count, core, buffers))]
    if step.kind == "end":
        return [Instruction("end")]
    if step.kind == "wait_rtps":
        return [Instruction("acquire_eq", lock=core.rtp_lock, value=1)]
    if step.kind == "call":
        assert step.kernel is not None
        operands = tuple(_operand(o, core, buffers, flow, counters) for o in step.operands)
        return [Instruction("call", function=step.kernel.name, operands=operands)]
    assert step.fifo is not None
    pool = flow.pool_of[step.fifo, core.tile]
    acquired, released = _locks(step.fifo, core.tile, pool)
    if step.kind == "acquire":
        return [Instruction("acquire_ge", lock=acquired, value=1)]
    lines = [Instruction("release", lock=released, value=1)]
    if len(pool.slots) > 1:
        counter = counters.setdefault(step.fifo, len(counters))
        lines.append(Instruction("advance", counter=counter, value=len(pool.slots)))
    return lines


def _count(count: int | Rtp | Word, core: Core, buffers: dict[str, Memory]) -> int | RtpWord:
    if isinstance(count, Rtp):
        return core.rtps[count.name]
    return _word(count, buffers) if isinstance(count, Word) else count


def _word(word: Word, buffers: dict[str, Memory]) -> RtpWord:
    return RtpWord(word.buffer.name, buffers[word.buffer.name], word.index)


def _locks(fifo: ObjectFifo, tile: Tile, pool: Pool) -> tuple[Lock, Lock]:
    part = pool.parts[0]
    return (part.free, part.full) if fifo.producer == tile else (part.full, part.free)


def _operand(
    operand: object,
    core: Core,
    buffers: dict[str, Memory],
    flow: Dataflow,
    counters: dict[ObjectFifo, int],
) -> Operand:
    if isinstance(operand, Buffer):
        return Operand("buffer", (buffers[operand.name],))
    if isinstance(operand, Rtp):
        return Operand("rtp", rtp=core.rtps[operand.name])
    if isinstance(operand, Word):
        return Operand("rtp", rtp=_word(operand, buffers))
    if isinstance(operand, tuple):
        fifo, slot = operand
        slots = flow.pool_of[fifo, core.tile].slots
        if len(slots) == 1:
            return Operand("buffer", (slots[0],))
        # Slot `counter` is the oldest held object; later ones follow it.
        shift = slot % len(slots)
        counter = counters.setdefault(fifo, len(counters))
        return Operand("buffer", tuple(slots[shift:] + slots[:shift]), counter)
    assert isinstance(operand, int)
    return Operand("constant", value=operand)
