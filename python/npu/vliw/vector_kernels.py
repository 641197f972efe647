"""Generated kernels that are no matrix products, by name: their schedules, their cycles by
simulation, and what the C++ kernels in `silicon` give for random operands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from npu.errors import ArgumentError, DesignError
from npu.vliw import (
    convert_bfp16,
    convert_bfp16_rows,
    dequant_q4nx,
    dequant_q8,
    geglu,
    gemv_q4nx,
    gemv_q8,
    gemv_rows,
    q8_blocks,
    rms_norm,
    rope,
    softmax,
    vector_reference,
)
from npu.vliw.assembly import op_text
from npu.vliw.dataflow import Region
from npu.vliw.generate import generate
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
    not all of it. ``columns``: blocks are columns of tiles; regions, reference and sizes are for a
    number of tiles as well. ``in_place``: the result lies where the only input does; ``once``:
    the arguments whose size is the same for all numbers of blocks."""

    regions: Callable[..., list[Region]]
    arguments: str
    sizes: tuple[int, ...]
    reference: Callable[..., list[np.ndarray]]
    bits: str = "uint16"  # of a result
    devices: tuple[str, ...] = ("npu1", "npu2")
    counts: tuple[int, int] = (1, 2)
    seen: Callable[[np.ndarray, int], np.ndarray] | None = None
    columns: bool = False
    in_place: bool = False
    once: frozenset[int] = frozenset()


_KERNELS = {
    "dequant_q4nx": _Kernel(
        dequant_q4nx.regions,
        "const uint8_t *blocks, bfloat16 *out",
        (dequant_q4nx.BLOCK, dequant_q4nx.TILE),
        functools.partial(vector_reference.dequant, columns=256, format="q4nx"),
    ),
    "dequant_q8": _Kernel(
        dequant_q8.regions,
        "const uint8_t *blocks, bfloat16 *out",
        (q8_blocks.BLOCK, dequant_q8.TILE),
        functools.partial(vector_reference.dequant, columns=128, format="q8"),
    ),
    "gemv_q4nx": _Kernel(
        gemv_q4nx.regions,
        "const uint8_t *blocks, const bfloat16 *x, float *y",
        (gemv_q4nx.BLOCK, gemv_q4nx.X, gemv_q4nx.Y),
        functools.partial(vector_reference.gemv, columns=256, format="q4nx", room=gemv_q4nx.Y),
        bits="uint32",
        seen=lambda y, blocks: y[: gemv_rows.Y],
    ),
    "gemv_q8": _Kernel(
        gemv_q8.regions,
        "const uint8_t *blocks, const bfloat16 *x, float *y",
        (q8_blocks.BLOCK, gemv_q8.X, gemv_rows.Y),
        functools.partial(vector_reference.gemv, columns=128, format="q8"),
        bits="uint32",
        once=frozenset({2}),
    ),
    "rms_norm": _Kernel(
        rms_norm.regions,
        "const bfloat16 *x, const float *weight, bfloat16 *y",
        (rms_norm.X, rms_norm.WEIGHT, rms_norm.X),
        vector_reference.rms_norm,
        counts=(4, 8),
    ),
    "geglu": _Kernel(
        geglu.regions,
        "const bfloat16 *gate, const bfloat16 *up, bfloat16 *y",
        (geglu.BLOCK,) * 3,
        vector_reference.geglu,
    ),
    "softmax": _Kernel(
        softmax.regions,
        "float *scores, uint8_t *weights",
        (softmax.SCORES, softmax.WEIGHTS + softmax.STATISTICS),
        vector_reference.softmax,
        counts=(2, 4),
        seen=softmax.seen,
    ),
    "rope": _Kernel(
        rope.regions,
        "const bfloat16 *x, const float *table, bfloat16 *y",
        (rope.X, rope.TABLE, rope.X),
        vector_reference.rope,
    ),
}
for _name, _source, _in_place in (
    ("convert_bf16_bfp16_a", "bfloat16", False),
    ("convert_bf16_bfp16_c", "bfloat16", True),
    ("convert_f32_bfp16_c", "float32", True),
):
    _KERNELS[_name] = _Kernel(
        functools.partial(convert_bfp16.loop, source=_source, in_place=_in_place),
        f"const {'float' if _source == 'float32' else _source} *src, bfp16ebs8 *dst",
        (convert_bfp16.source_bytes(_source), convert_bfp16.TILE),
        functools.partial(vector_reference.convert_bfp16, source=_source),
        bits="uint8",
        devices=("npu2",),
        in_place=_in_place,
    )
_KERNELS["convert_bf16_bfp16_b"] = _Kernel(
    convert_bfp16_rows.loop,
    "const bfloat16 *src, bfp16ebs8 *dst",
    (convert_bfp16_rows.SOURCE, convert_bfp16.TILE),
    vector_reference.convert_bfp16_rows,
    bits="uint8",
    devices=("npu2",),
    columns=True,
)
NAMES = sorted(_KERNELS)
KERNELS = sorted((device, name) for name, kernel in _KERNELS.items() for device in kernel.devices)


@dataclass(frozen=True)
class LoopSchedule:
    """A generated loop over ``blocks`` blocks of operands."""

    device: str
    kernel: str
    blocks: int
    program: Program
    prototype: str
    k1: int | None = None  # tiles of a column

    @property
    def label(self) -> str:
        return f"{self.kernel}, {self.blocks} block{'s' if self.blocks > 1 else ''}"

    def sizes(self) -> list[int]:
        """Bytes of the arguments."""
        kernel, times = _KERNELS[self.kernel], self.blocks * (self.k1 or 1)
        return [size * (1 if n in kernel.once else times) for n, size in enumerate(kernel.sizes)]

    def places(self) -> tuple[int, ...]:
        """Addresses of the arguments, banks of their own for each unless it works in place."""
        limit, starts = self.program.machine.memory_bytes, [0]
        for size in self.sizes():
            end = starts[-1] + size
            starts.append(-(-end // _BANK_BYTES) * _BANK_BYTES)
        if starts[-1] > limit:
            raise DesignError(
                f"[schedule] {self.label} takes {starts[-1]} bytes, in banks of {_BANK_BYTES}; the "
                f"core's memory has {limit}: give fewer blocks"
            )
        return (0, 0) if _KERNELS[self.kernel].in_place else tuple(starts[:-1])

    def run(self, *inputs: np.ndarray) -> tuple[np.ndarray, Run]:
        """Simulates the kernel on inputs of bytes; the result's bytes."""
        memory, places = bytearray(self.program.machine.memory_bytes), self.places()
        for place, array in zip(places, inputs, strict=False):
            memory[place : place + array.nbytes] = array.tobytes()
        run = self._execute(memory)
        return np.frombuffer(bytes(memory), np.uint8, self.sizes()[-1], places[-1]), run

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
        tiles = [] if self.k1 is None else [self.k1]
        return _KERNELS[self.kernel].reference(self.device, self.blocks, seed, *tiles)

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
            "k1": self.k1,
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
def schedule(device: str, kernel: str, blocks: int = 1, k1: int | None = None) -> LoopSchedule:
    """The kernel for this number of blocks; ``k1``: tiles of a column, where blocks are. Raises
    ArgumentError, ShapeError, DesignError."""
    found = _KERNELS.get(kernel)
    if found is None or device not in found.devices:
        known = ", ".join(f"{name} on {on}" for on, name in KERNELS)
        raise ArgumentError(f"[schedule] no kernel {kernel} on {device}; there is {known}")
    machine = MACHINES[device]
    if found.columns != (k1 is not None):
        wanted = "give k1, the tiles of a column" if found.columns else "it takes no k1"
        raise ArgumentError(f"[schedule] k1 of {kernel} is {k1!r}: {wanted}")
    tiles = [] if k1 is None else [k1]
    name = "_".join(map(str, (kernel, blocks, *tiles)))
    program = generate(name, found.regions(machine, blocks, *tiles), machine, _ATTEMPTS)
    prototype = f"void {name}({found.arguments});"
    return LoopSchedule(device, kernel, blocks, program, prototype, k1)


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
