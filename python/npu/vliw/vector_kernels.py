"""Generated kernels that are no matrix products, by name: their schedules, their cycles by
simulation, and what the C++ kernels in `silicon` give for random operands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from npu.errors import ArgumentError, DesignError
from npu.vliw import dequant_q4nx, geglu, gemv_q4nx, rms_norm, rope, softmax, vector_reference
from npu.vliw.assembly import op_text
from npu.vliw.dataflow import Region
from npu.vliw.generate import generate
from npu.vliw.machine import Machine
from npu.vliw.machines import MACHINES
from npu.vliw.program import Program
from npu.vliw.simulator import Core, Run

_BANK_BYTES = 16384  # addresses that share a pair of banks
_ATTEMPTS = 4  # orders of the set-up that are tried; everything else is in place


@dataclass(frozen=True)
class _Kernel:
    """``sizes``: bytes per block of each argument, the last is the result's; ``reference``: inputs
    and result for a device, a number of blocks and a seed, as bytes; ``counts``: numbers of blocks
    by which its cycles are measured; ``seen``: what the C++ kernel shows of a result, where that is
    not all of it."""

    regions: Callable[[Machine, int], list[Region]]
    arguments: str
    sizes: tuple[int, ...]
    reference: Callable[[str, int, int], list[np.ndarray]]
    bits: str = "uint16"  # of a result
    devices: tuple[str, ...] = ("npu1", "npu2")
    counts: tuple[int, int] = (1, 2)
    seen: Callable[[np.ndarray, int], np.ndarray] | None = None


_KERNELS = {
    "dequant_q4nx": _Kernel(
        dequant_q4nx.regions,
        "const uint8_t *blocks, bfloat16 *out",
        (dequant_q4nx.BLOCK, dequant_q4nx.TILE),
        vector_reference.dequant_q4nx,
    ),
    "gemv_q4nx": _Kernel(
        gemv_q4nx.regions,
        "const uint8_t *blocks, const bfloat16 *x, float *work",
        (gemv_q4nx.BLOCK, gemv_q4nx.X, gemv_q4nx.WORK),
        vector_reference.gemv_q4nx,
        bits="uint32",
        devices=("npu2",),
    ),
    "rms_norm": _Kernel(
        rms_norm.regions,
        "const bfloat16 *x, const float *weight, bfloat16 *y",
        (rms_norm.X, rms_norm.WEIGHT, rms_norm.X),
        vector_reference.rms_norm,
        devices=("npu2",),
        counts=(4, 8),
    ),
    "geglu": _Kernel(
        geglu.regions,
        "const bfloat16 *gate, const bfloat16 *up, bfloat16 *y",
        (geglu.BLOCK,) * 3,
        vector_reference.geglu,
        devices=("npu2",),
    ),
    "softmax": _Kernel(
        softmax.regions,
        "float *scores, uint8_t *weights",
        (softmax.SCORES, softmax.WEIGHTS + softmax.STATISTICS),
        vector_reference.softmax,
        devices=("npu2",),
        counts=(2, 4),
        seen=softmax.seen,
    ),
    "rope": _Kernel(
        rope.regions,
        "const bfloat16 *x, const float *table, bfloat16 *y",
        (rope.X, rope.TABLE, rope.X),
        vector_reference.rope,
        devices=("npu2",),
    ),
}
NAMES = sorted(_KERNELS)


@dataclass(frozen=True)
class LoopSchedule:
    """A generated loop over ``blocks`` blocks of operands."""

    device: str
    kernel: str
    blocks: int
    program: Program
    prototype: str

    @property
    def label(self) -> str:
        return f"{self.kernel}, {self.blocks} block{'s' if self.blocks > 1 else ''}"

    def places(self) -> tuple[int, ...]:
        """Addresses of the arguments, banks of their own for each."""
        limit, starts = self.program.machine.memory_bytes, [0]
        for size in _KERNELS[self.kernel].sizes:
            end = starts[-1] + size * self.blocks
            starts.append(-(-end // _BANK_BYTES) * _BANK_BYTES)
        if starts[-1] > limit:
            raise DesignError(
                f"[schedule] {self.label} takes {starts[-1]} bytes, in banks of {_BANK_BYTES}; the "
                f"core's memory has {limit}: give fewer blocks"
            )
        return tuple(starts[:-1])

    def run(self, *inputs: np.ndarray) -> tuple[np.ndarray, Run]:
        """Simulates the kernel on inputs of bytes; the result's bytes."""
        memory, places = bytearray(self.program.machine.memory_bytes), self.places()
        for place, array in zip(places, inputs, strict=False):
            memory[place : place + array.nbytes] = array.tobytes()
        run = self._execute(memory)
        size = _KERNELS[self.kernel].sizes[-1] * self.blocks
        return np.frombuffer(bytes(memory), np.uint8, size, places[-1]), run

    def compared(self, seed: int) -> tuple[np.ndarray, np.ndarray, Run]:
        """The bits of its results and of the C++ kernel's for random operands, and the run."""
        *inputs, expected = self.operands(seed)
        result, run = self.run(*inputs)
        seen, bits = _KERNELS[self.kernel].seen, _KERNELS[self.kernel].bits
        if seen:
            result = seen(result, self.blocks)
        return result.view(bits), expected.view(bits), run

    def operands(self, seed: int) -> list[np.ndarray]:
        """Random inputs and, last, the C++ kernel's result for them, as bytes."""
        return _KERNELS[self.kernel].reference(self.device, self.blocks, seed)

    def simulated(self) -> Run:
        """Cycles; values have no influence on them."""
        return self._execute(bytearray(self.program.machine.memory_bytes))

    def _execute(self, memory: bytearray) -> Run:
        pointers = {f"p{number}": place for number, place in enumerate(self.places())}
        return Core(memory, pointers).run(self.program)

    def slots(self) -> list[dict[str, str]]:
        """Per bundle, the operations by slot."""
        return [
            {op.operation.slot: op_text(op) for op in bundle.ops} for bundle in self.program.bundles
        ]

    def document(self) -> dict[str, Any]:
        """The figures, for JSON. ``busy``: the share of the loop's bundles that use a slot."""
        run, program, slots = self.simulated(), self.program, self.slots()
        inside = [
            slots[number] for first, last in program.loops for number in range(first, last + 1)
        ]
        return {
            "device": self.device,
            "kernel": self.kernel,
            "blocks": self.blocks,
            "simulated": True,
            "bundles": run.bundles,
            "stalls": run.stalls,
            "cycles": run.cycles,
            "code_bundles": len(program.bundles),
            "code_bytes": program.code_bytes,
            "busy": {
                slot.name: sum(slot.name in bundle for bundle in inside) / len(inside)
                for slot in program.machine.slots
                if inside
            },
            "loops": [
                {"first": first, "last": last, "bundles": last - first + 1}
                for first, last in program.loops
            ],
            "slots": slots,
        }


@functools.lru_cache(maxsize=32)
def schedule(device: str, kernel: str, blocks: int = 1) -> LoopSchedule:
    """The kernel for this number of blocks. Raises ArgumentError, ShapeError, DesignError."""
    found = _KERNELS.get(kernel)
    if found is None or device not in found.devices:
        known = ", ".join(f"{n} on {d}" for n, k in sorted(_KERNELS.items()) for d in k.devices)
        raise ArgumentError(f"[schedule] no kernel {kernel} on {device}; there is {known}")
    machine = MACHINES[device]
    name = f"{kernel}_{blocks}"
    program = generate(name, found.regions(machine, blocks), machine, _ATTEMPTS)
    return LoopSchedule(device, kernel, blocks, program, f"void {name}({found.arguments});")


@dataclass(frozen=True)
class Cycles:
    """Of one kernel: ``block`` cycles per block, ``outside`` beside these, without bank stalls; the
    program's bytes."""

    device: str
    kernel: str
    block: float
    outside: float
    code_bytes: int

    def total(self, blocks: int = 1) -> float:
        """Cycles of a call, from the function's first bundle to its last. Raises ArgumentError."""
        if blocks < 1:
            raise ArgumentError(f"[cycles] {blocks} blocks of {self.kernel}: give 1 or more")
        return self.block * blocks + self.outside


@functools.cache
def cycles(device: str, kernel: str) -> Cycles:
    """By simulation of two numbers of blocks. Raises ArgumentError."""
    known = _KERNELS.get(kernel)
    few, more = known.counts if known else (1, 2)
    less, all_ = (schedule(device, kernel, blocks) for blocks in (few, more))
    short, long = (run.cycles - run.stalls for run in (less.simulated(), all_.simulated()))
    block = (long - short) / (more - few)
    return Cycles(device, kernel, block, short - block * few, less.program.code_bytes)
