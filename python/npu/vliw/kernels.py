"""Generated kernels by name, and what their schedule comes to: bundles, cycles by simulation,
utilisation, the table of slots."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from npu.errors import ArgumentError, DesignError
from npu.vliw import matmul_bf16, matmul_bfp16
from npu.vliw.aie2 import AIE2
from npu.vliw.aie2p import AIE2P
from npu.vliw.assembly import op_text
from npu.vliw.dataflow import Region
from npu.vliw.generate import ATTEMPTS, generate
from npu.vliw.machine import Machine
from npu.vliw.program import Program
from npu.vliw.simulator import Core, Run

_BANK_BYTES = 16384  # addresses that share a pair of banks


@dataclass(frozen=True)
class _Kernel:
    """``tiles``: bytes of a tile of A, B and C; ``parts``: arrays that C consists of."""

    machine: Machine
    regions: Callable[[int, int, int], list[Region]]
    arguments: str
    tiles: tuple[int, int, int]
    parts: int


_KERNELS = {
    ("npu1", "matmul_bf16"): _Kernel(
        AIE2,
        matmul_bf16.regions,
        "const bfloat16 *a, const bfloat16 *b, float *c",
        (matmul_bf16.TILE_A, matmul_bf16.TILE_B, matmul_bf16.TILE_C),
        1,
    ),
    ("npu2", "matmul_bfp16"): _Kernel(
        AIE2P,
        matmul_bfp16.regions,
        "const bfp16ebs8 *a, const bfp16ebs8 *b, float *c0, float *c1",
        (matmul_bfp16.TILE, matmul_bfp16.TILE, matmul_bfp16.TILE_C),
        matmul_bfp16.SIDE,
    ),
}
DEVICES = sorted({device for device, _ in _KERNELS})
NAMES = sorted({name for _, name in _KERNELS})


@dataclass(frozen=True)
class Schedule:
    """A generated matrix product of ``m1`` x ``k1`` x ``n1`` tiles."""

    device: str
    kernel: str
    shape: tuple[int, int, int]
    program: Program
    prototype: str

    @property
    def multiplications(self) -> int:
        m1, k1, n1 = self.shape
        return m1 * k1 * n1

    def sizes(self) -> list[int]:
        """Bytes of the arguments: A, B and the parts of C."""
        m1, k1, n1 = self.shape
        kernel = _KERNELS[self.device, self.kernel]
        a, b, c = kernel.tiles
        return [a * m1 * k1, b * k1 * n1, *[c * m1 * n1 // kernel.parts] * kernel.parts]

    def places(self) -> tuple[int, ...]:
        """Addresses of A, B and C: each from a bank of its own if they fit so."""
        m1, k1, n1 = self.shape
        sizes = self.sizes()
        limit = self.program.machine.memory_bytes
        for unit in (_BANK_BYTES, 64):
            starts = [0]
            for size in sizes:
                starts.append(-(-(starts[-1] + size) // unit) * unit)
            if starts[-2] + sizes[-1] <= limit:
                return tuple(starts[:-1])
        raise DesignError(
            f"[schedule] A, B and C of {m1} x {k1} x {n1} tiles take {sum(sizes)} bytes; the "
            f"core's memory has {limit}: give fewer tiles"
        )

    def run(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, Run]:
        """Simulates the kernel on arrays in its layout (`reference` has such); the new c."""
        memory = bytearray(self.program.machine.memory_bytes)
        places, parts = self.places(), c.reshape(_KERNELS[self.device, self.kernel].parts, -1)
        for place, array in zip(places, (a, b, *parts), strict=True):
            memory[place : place + array.nbytes] = array.tobytes()
        run = self._execute(memory)
        size = parts.shape[1]
        found = [np.frombuffer(bytes(memory), np.float32, size, place) for place in places[2:]]
        return np.concatenate(found).reshape(c.shape), run

    def simulated(self) -> Run:
        """Cycles; values have no influence on them."""
        return self._execute(bytearray(self.program.machine.memory_bytes))

    def _execute(self, memory: bytearray) -> Run:
        pointers = {f"p{number}": place for number, place in enumerate(self.places())}
        return Core(memory, pointers).run(self.program)

    def document(self) -> dict[str, Any]:
        """The figures, for JSON."""
        run, program = self.simulated(), self.program
        return {
            "device": self.device,
            "kernel": self.kernel,
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
    device: str, kernel: str, m1: int, k1: int, n1: int, attempts: int = ATTEMPTS
) -> Schedule:
    """The kernel for these numbers of tiles. More ``attempts`` may find shorter ends."""
    if (device, kernel) not in _KERNELS:
        known = ", ".join(f"{name} on {on}" for on, name in sorted(_KERNELS))
        raise ArgumentError(f"[schedule] no kernel {kernel} on {device}; there is {known}")
    found = _KERNELS[device, kernel]
    name = f"{kernel}_{m1}x{k1}x{n1}"
    program = generate(name, found.regions(m1, k1, n1), found.machine, attempts)
    return Schedule(device, kernel, (m1, k1, n1), program, f"void {name}({found.arguments});")
