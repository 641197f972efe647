"""Generated kernels by name, and what their schedule comes to: bundles, cycles by simulation,
utilisation, the table of slots."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from npu.errors import ArgumentError, DesignError
from npu.vliw import (
    blocks,
    matmul_bf16,
    matmul_bf16_converting,
    matmul_bf16_square,
    matmul_bfp16,
    matmul_bfp16_blocks,
    matmul_bfp16_tiles,
    matmul_i8,
    matmul_i16,
    prefill_multiply,
)
from npu.vliw.aie2 import AIE2
from npu.vliw.aie2p import AIE2P
from npu.vliw.assembly import op_text
from npu.vliw.dataflow import Region
from npu.vliw.generate import ATTEMPTS, generate
from npu.vliw.machine import Machine
from npu.vliw.program import Program
from npu.vliw.simulator import Core, Run

_BANK_BYTES = 16384  # addresses that share a pair of banks
_C_TYPES = {
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "bfloat16": "bfloat16",
    "float32": "float",
    "bfp16": "bfp16ebs8",  # blocks of 8 values, as bytes
}
DTYPES = {n: np.dtype(n) for n in _C_TYPES if n[0] != "b"}
DTYPES |= {"bfloat16": np.dtype(ml_dtypes.bfloat16), "bfp16": np.dtype(np.uint8)}


@dataclass(frozen=True)
class Kernel:
    """``outs``: types of C, the first is the default, as of ``layouts`` of B; ``tile_bytes``: of a
    tile of A and of B; ``parts``: arrays that C consists of; ``addresses``: of the arguments, where
    a design has them."""

    machine: Machine
    regions: Callable[[int, int, int, str, str], list[Region]]
    operand: str
    tile_bytes: int
    tile_values: int  # of C
    outs: tuple[str, ...]
    layouts: tuple[str, ...]
    parts: int = 1
    b_bytes: int = 0  # of a tile of B, unless as many as A's
    addresses: tuple[int, ...] = ()

    def prototype(self, out: str) -> str:
        """The arguments as C has them."""
        names = ["c"] if self.parts == 1 else [f"c{part}" for part in range(self.parts)]
        results = ", ".join(f"{_C_TYPES[out]} *{name}" for name in names)
        shift = ", int32_t shift" if out in ("int8", "int16") else ""
        return f"const {self.operand} *a, const {self.operand} *b, {results}{shift}"


KERNELS = {
    ("npu1", "matmul_bf16"): Kernel(
        AIE2,
        lambda m1, k1, n1, out, b_layout: matmul_bf16.regions(m1, k1, n1),
        "bfloat16",
        matmul_bf16.TILE_A,
        matmul_bf16.TILE_C // 4,
        ("float32",),
        ("row",),
    ),
    ("npu1", "matmul_i8"): Kernel(
        AIE2,
        functools.partial(matmul_i8.regions, generation="npu1"),
        "int8_t",
        matmul_i8.XDNA1_TILE,
        32,
        matmul_i8.OUTS,
        ("row", "col"),
        b_bytes=matmul_i8.TILE,
    ),
    ("npu2", "matmul_bfp16"): Kernel(
        AIE2P,
        lambda m1, k1, n1, out, b_layout: matmul_bfp16.regions(m1, k1, n1),
        "bfp16ebs8",
        matmul_bfp16.TILE,
        matmul_bfp16.TILE_C // 4,
        ("float32",),
        ("col",),
        matmul_bfp16.SIDE,
    ),
    ("npu2", "matmul_bfp16_tiles"): Kernel(
        AIE2P,
        lambda m1, k1, n1, out, b_layout: (
            matmul_bfp16_blocks.regions(m1, k1, n1)
            if out == "bfp16"
            else matmul_bfp16_tiles.regions(m1, k1, n1, out, b_layout)
        ),
        "bfp16ebs8",
        matmul_bfp16_tiles.TILE,
        64,
        (*matmul_bfp16_tiles.OUTS, "bfp16"),
        ("col",),
    ),
    ("npu2", "matmul_bf16_converting"): Kernel(
        AIE2P,
        matmul_bf16_converting.regions,
        "bfloat16",
        matmul_bf16_converting.TILE,
        64,
        matmul_bf16_converting.OUTS,
        ("row", "col"),
    ),
    ("npu2", "prefill_multiply"): Kernel(
        AIE2P,
        lambda m1, k1, n1, out, b_layout: prefill_multiply.regions(m1, k1, n1),
        "bfp16ebs8",
        prefill_multiply.TILE,
        64,
        ("float32",),
        ("col",),
        blocks.SIDE,
        addresses=prefill_multiply.ADDRESSES,
    ),
    ("npu2", "matmul_i8"): Kernel(
        AIE2P, matmul_i8.regions, "int8_t", matmul_i8.TILE, 64, matmul_i8.OUTS, ("row", "col")
    ),
}


def _i16(machine: Machine) -> Kernel:
    size = matmul_i16.tile_b(machine.generation)
    return Kernel(
        machine,
        lambda m1, k1, n1, out, b_layout: matmul_i16.regions(
            m1, k1, n1, b_layout, machine.generation
        ),
        "int16_t",
        matmul_i16.TILE_A,
        size // 2,
        matmul_i16.OUTS,
        ("row", "col"),
        b_bytes=size,
    )


def _square(turned: bool) -> Kernel:
    return Kernel(
        AIE2,
        lambda m1, k1, n1, out, b_layout: matmul_bf16_square.regions(m1, k1, n1, b_layout, turned),
        "bfloat16",
        matmul_bf16_square.TILE,
        matmul_bf16.TILE_C // 4,
        ("float32",),
        ("row",) if turned else ("col", "row"),
    )


KERNELS |= {
    ("npu1", "matmul_bf16_square" + turned): _square(bool(turned)) for turned in ("", "_turned")
}
KERNELS |= {(machine.generation, "matmul_i16"): _i16(machine) for machine in (AIE2, AIE2P)}
DEVICES = sorted({device for device, _ in KERNELS})
NAMES = sorted({name for _, name in KERNELS})


@dataclass(frozen=True)
class Schedule:
    """A generated matrix product of ``m1`` x ``k1`` x ``n1`` tiles with C in ``out`` and B as
    ``b_layout`` says."""

    device: str
    kernel: str
    shape: tuple[int, int, int]
    out: str
    b_layout: str
    program: Program
    prototype: str

    @property
    def label(self) -> str:
        m1, k1, n1 = self.shape
        return f"{self.kernel} {m1} × {k1} × {n1}, {self.multiplications} multiplications,"

    @property
    def multiplications(self) -> int:
        m1, k1, n1 = self.shape
        return m1 * k1 * n1

    @property
    def narrow(self) -> bool:
        """Whether C is shifted on its way in and out."""
        return self.out in ("int8", "int16")

    def sizes(self) -> list[int]:
        """Bytes of the arguments: A, B and the parts of C."""
        m1, k1, n1 = self.shape
        kernel = KERNELS[self.device, self.kernel]
        values = kernel.tile_values * 9 // 8 if self.out == "bfp16" else kernel.tile_values
        c = values * DTYPES[self.out].itemsize * m1 * n1 // kernel.parts
        b = (kernel.b_bytes or kernel.tile_bytes) * k1 * n1
        return [kernel.tile_bytes * m1 * k1, b, *[c] * kernel.parts]

    def places(self) -> tuple[int, ...]:
        """Addresses of the arguments: banks of their own for each, or else for A and B together and
        for C, as far as they fit."""
        m1, k1, n1 = self.shape
        sizes, limit = self.sizes(), self.program.machine.memory_bytes
        addresses = KERNELS[self.device, self.kernel].addresses
        if addresses:
            return self._checked(addresses, sizes)
        own, any_ = _BANK_BYTES, 64
        for units in ((own, own, own), (any_, own, own), (any_, any_, any_)):
            starts = [0]
            for size, unit in zip(sizes, (*units, any_), strict=False):
                starts.append(-(-(starts[-1] + size) // unit) * unit)
            if starts[-2] + sizes[-1] <= limit:
                return tuple(starts[:-1])
        raise DesignError(
            f"[schedule] A, B and C of {m1} x {k1} x {n1} tiles take {sum(sizes)} bytes; the "
            f"core's memory has {limit}: give fewer tiles"
        )

    def _checked(self, addresses: tuple[int, ...], sizes: list[int]) -> tuple[int, ...]:
        """The design's addresses, if the operands fit there."""
        spans = sorted(zip(addresses, sizes, strict=True))
        ends = [start for start, _ in spans[1:]] + [self.program.machine.memory_bytes]
        if any(start + size > end for (start, size), end in zip(spans, ends, strict=True)):
            raise DesignError(
                f"[schedule] {self.kernel}: A, B and C take {sizes} bytes, which its design has no "
                "room for: give fewer tiles"
            )
        return addresses

    def run(
        self, a: np.ndarray, b: np.ndarray, c: np.ndarray, shift: int = 0
    ) -> tuple[np.ndarray, Run]:
        """Simulates the kernel on arrays in its layout (`reference` has such); the new c."""
        memory = bytearray(self.program.machine.memory_bytes)
        places = self.places()
        parts = c.reshape(KERNELS[self.device, self.kernel].parts, -1)
        for place, array in zip(places, (a, b, *parts), strict=True):
            memory[place : place + array.nbytes] = array.tobytes()
        run = self._execute(memory, shift)
        size = parts.shape[1]
        found = [np.frombuffer(bytes(memory), c.dtype, size, place) for place in places[2:]]
        return np.concatenate(found).reshape(c.shape), run

    def simulated(self) -> Run:
        """Cycles; values have no influence on them."""
        return self._execute(bytearray(self.program.machine.memory_bytes), 0)

    def _execute(self, memory: bytearray, shift: int) -> Run:
        arguments = {f"p{number}": place for number, place in enumerate(self.places())}
        if self.narrow:
            arguments["r0"] = shift
        return Core(memory, arguments).run(self.program)

    def document(self) -> dict[str, Any]:
        """The figures, for JSON."""
        run, program = self.simulated(), self.program
        return {
            "device": self.device,
            "kernel": self.kernel,
            "out": self.out,
            "b_layout": self.b_layout,
            "m1": self.shape[0],
            "k1": self.shape[1],
            "n1": self.shape[2],
            "simulated": True,
            "bundles": run.bundles,
            "multiplication_bundles": self.multiplications,
            "stalls": run.stalls,
            "cycles": run.cycles,
            "utilisation": self.multiplications / run.cycles,
            "code_bundles": len(program.bundles),
            "code_bytes": program.code_bytes,
            "loops": [
                {"first": first, "last": last, "bundles": last - first + 1}
                for first, last in program.loops
            ],
            "slots": [
                {op.operation.slot: op_text(op) for op in bundle.ops} for bundle in program.bundles
            ],
        }


@functools.lru_cache(maxsize=32)
def schedule(
    device: str,
    kernel: str,
    m1: int,
    k1: int,
    n1: int,
    attempts: int = ATTEMPTS,
    out: str | None = None,
    b_layout: str | None = None,
) -> Schedule:
    """The kernel for these numbers of tiles. More ``attempts`` may find shorter ends."""
    if (device, kernel) not in KERNELS:
        known = ", ".join(f"{name} on {on}" for on, name in sorted(KERNELS))
        raise ArgumentError(f"[schedule] no kernel {kernel} on {device}; there is {known}")
    found = KERNELS[device, kernel]
    out = _choice(kernel, "out", out, found.outs)
    b_layout = _choice(kernel, "b_layout", b_layout, found.layouts)
    words = [kernel, *([out] if found.outs[1:] else []), *([b_layout] if found.layouts[1:] else [])]
    name = f"{'_'.join(words)}_{m1}x{k1}x{n1}"
    program = generate(name, found.regions(m1, k1, n1, out, b_layout), found.machine, attempts)
    prototype = f"void {name}({found.prototype(out)});"
    return Schedule(device, kernel, (m1, k1, n1), out, b_layout, program, prototype)


def _choice(kernel: str, name: str, value: str | None, known: tuple[str, ...]) -> str:
    if value is None:
        return known[0]
    if value not in known:
        raise ArgumentError(
            f"[schedule] {name} of {kernel} is {value!r}; it can be {', '.join(known)}"
        )
    return value
