"""Broken schedules are caught, for every kind of generated kernel: those of a scheduler that
believes a result is there one cycle sooner, or that sums are read later than they are, and those
with a result in another register. The simulator reports each. Where results are compared as well,
without what the scheduler meant to be in registers, it computes something else or finds a register
that was never written.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from dataclasses import dataclass

import pytest
from vliw_programs import believing, changed, into, on, with_ops, writers

from npu.errors import ScheduleError
from npu.vliw import generate, kernels, reference, vector_kernels
from npu.vliw.kernels import Schedule
from npu.vliw.machine import Machine
from npu.vliw.machines import MACHINES
from npu.vliw.program import Program
from npu.vliw.vector_kernels import LoopSchedule

_ATTEMPTS = 4
_VICTIMS = 6  # results per kernel that go into another register
_FILES = "W X Y EX AM BM CM DM"  # vectors and accumulators


@dataclass(frozen=True)
class Kernel:
    """``size``: tiles of m, k and n, or blocks, and tiles of a column; ``kind``: type of C, layout
    of B; ``slack``: by what the intervals of loops over lanes are longer than those that a long
    search has found, so that a short one finds some for other latencies, too; ``compared``: whether
    results are."""

    device: str
    name: str
    size: tuple[int, ...]
    kind: tuple[str | None, ...] = ()
    slack: float = 0.0
    compared: bool = False

    def __str__(self) -> str:
        return "-".join([self.device, self.name, *filter(None, self.kind)])

    @functools.cached_property
    def found(self) -> Schedule | LoopSchedule:
        if self.name in kernels.NAMES:
            return kernels.schedule(self.device, self.name, *self.size, _ATTEMPTS, *self.kind)
        return vector_kernels.schedule(self.device, self.name, *self.size)

    def generated(self, machine: Machine) -> Program:
        """For another machine; as a program of the true one."""
        if isinstance(self.found, LoopSchedule):
            regions = vector_kernels._KERNELS[self.name].regions(machine, *self.size)
        else:
            found = kernels.KERNELS[self.device, self.name]
            regions = found.regions(*self.size, self.found.out, self.found.b_layout)
        if self.slack:
            regions = [
                dataclasses.replace(r, interval=int(r.interval * (1 + self.slack)), start=0)
                for r in regions
            ]
        return on(MACHINES[self.device], generate.generate("broken", regions, machine, _ATTEMPTS))

    def refuses(self, program: Program) -> None:
        broken = dataclasses.replace(self.found, program=program)
        with pytest.raises(ScheduleError, match=r"meant|never written|two results|used twice"):
            broken.simulated()
        if self.compared:
            blind = with_ops(program, lambda op: dataclasses.replace(op, expects={}))
            try:
                assert result(dataclasses.replace(broken, program=blind)) != result(self.found)
            except ScheduleError as error:
                assert "meant" not in str(error)


def result(found: Schedule | LoopSchedule) -> bytes:
    """For random operands."""
    if isinstance(found, LoopSchedule):
        return found.run(*found.operands(0)[:-1])[0].tobytes()
    given = reference.operands(found, 0)
    return found.run(given.a, given.b, given.c, given.shift)[0].tobytes()


def i8(device: str, out: str) -> Kernel:
    return Kernel(device, "matmul_i8", (4, 4, 8), (out, "col"))


def i16(device: str) -> Kernel:
    return Kernel(device, "matmul_i16", (4, 4, 8), (None, "col"))


def tiles(k1: int, out: str) -> Kernel:
    return Kernel("npu2", "matmul_bfp16_tiles", (4, k1, 8), (out,))


BF16 = Kernel("npu1", "matmul_bf16", (8, 4, 8), compared=True)
SQUARE = Kernel("npu1", "matmul_bf16_square_turned", (4, 3, 8), (None, "row"))
BFP16 = Kernel("npu2", "matmul_bfp16", (4, 12, 4))
CONVERTING = Kernel("npu2", "matmul_bf16_converting", (4, 2, 8), ("bfloat16", "row"))
PROMPTS = Kernel("npu2", "prefill_multiply", (8, 4, 4))

# Operations whose readers follow as soon as they may.
LATENCIES = {
    BF16: ["vlda.w", "vldb.w", "vlda.am", "vmac.f"],
    SQUARE: ["vmac.f", "vshuffle"],
    i8("npu1", "int8"): ["vlda.ups.s32.s8", "vldb.w vlda.w", "vshuffle"],
    i8("npu1", "int16"): ["vlda.ups.s32.s16", "vmac"],
    i8("npu1", "int32"): ["vlda.am"],
    i8("npu2", "int8"): ["vlda.ups.4x", "vldb.x vlda.x", "vshuffle"],
    i8("npu2", "int16"): ["vlda.ups.2x", "vmac"],
    i8("npu2", "int32"): ["vlda.bm"],
    i16("npu1"): ["vmac.16", "vshuffle", "vldb.w vlda.w"],
    i16("npu2"): ["vmac.16", "vshuffle", "vldb.x vlda.x"],
    BFP16: ["vlda.pop", "vldb.pop", "vldb.x", "vmov", "vmac.f"],
    tiles(4, "bfloat16"): ["vlda.pop vldb.pop", "vmac.f"],
    tiles(3, "float32"): ["vlda.leave vldb.leave"],
    tiles(5, "bfloat16"): ["vlda.conv.fp32.bf16"],
    tiles(4, "bfp16"): ["vlda.pop vldb.pop", "vmac.f"],
    CONVERTING: ["vconv.bfp16.fp32", "vconv.fp32.bf16"],
    PROMPTS: ["vlda.pop vldb.pop", "vlda.bm", "vmac.f"],
    Kernel("npu2", "convert_bf16_bfp16_a", (24,)): ["vlda.conv.fp32.bf16"],
    Kernel("npu2", "convert_f32_bfp16_c", (24,)): ["vlda.bm"],
    Kernel("npu2", "convert_bf16_bfp16_b", (12, 2)): ["vldb.x vlda.x", "vshuffle", "vmul.f.y"],
    Kernel("npu1", "dequant_q4nx", (1,), slack=0.25, compared=True): [
        "vunpack", "vshuffle", "vextbcst.64", "vconv.bf16.fp32", "vadd.f", "vldb.w", "vmul.f",
        "vmac.f", "vconv.fp32.bf16",
    ],
    Kernel("npu2", "dequant_q4nx", (1,), slack=0.95, compared=True): [
        "vunpack", "vshuffle", "vextbcst.64", "vconv.bf16.fp32", "vadd.f", "vldb.w", "vmul.f.x",
        "vmac.f.x", "vldb.x",
    ],
    Kernel("npu1", "dequant_q8", (1,)): ["vunpack", "vmsc.f"],
    Kernel("npu2", "dequant_q8", (1,)): ["vldb.x", "vsub.f"],
    Kernel("npu1", "gemv_q4nx", (1,)): ["vunpack", "vextbcst.32", "vconv.bf16.fp32", "vmsc.f"],
    Kernel("npu2", "gemv_q4nx", (1,)): ["vunpack", "vldb.x", "vldb.w"],
    Kernel("npu1", "gemv_q8", (1,)): ["vldb.w"],
    Kernel("npu2", "gemv_q8", (1,)): ["vldb.x", "vextbcst.16", "vconv.bf16.fp32", "vmul.f"],
    Kernel("npu1", "rms_norm", (2,)): ["vmac.f", "vmsc.f", "vmov.x", "vextract.32", "vshuffle"],
    Kernel("npu2", "rms_norm", (2,)): [
        "vmac.f.x", "vmul.f.x", "vadd.f", "vconv.bf16.fp32", "vmov.x", "vshift", "vextract.32",
        "invsqrt", "vldb.x", "vbcst.32",
    ],
    Kernel("npu1", "rope", (2,)): [
        "vmul.f", "vmac.f", "vmsc.f", "vconv.bf16.fp32", "vshuffle", "vlda.am",
    ],
    Kernel("npu2", "rope", (2,)): ["vmac.f.x", "vmsc.f.x", "vconv.bf16.fp32", "vldb.x"],
    Kernel("npu1", "geglu", (1,), slack=0.1): [
        "vmac.f", "vmsc.f", "vconv.bf16.fp32", "vmov.x", "vlt.32", "vsel.16",
    ],
    Kernel("npu2", "geglu", (1,), slack=0.22): [
        "vmac.f.x", "vconv.bf16.fp32", "vconv.fp32.bf16", "vexp2", "vtanh", "vsel.16",
    ],
    Kernel("npu1", "softmax", (2,), slack=0.15): [
        "vmac.f", "vmsc.f", "vsub.f", "vmov.x", "vsel.32", "vlt.32", "vshuffle",
    ],
    Kernel("npu2", "softmax", (2,)): [
        "vmac.f.x", "vmsc.f.x", "vsub.f", "vmov.x", "vmov", "vsel.32", "vshuffle",
    ],
}  # fmt: skip
# Multiplications, and in which stage the scheduler believes that they read sums: one too late.
STAGES = {
    BF16: ("vmac.f", 4),
    i8("npu1", "int8"): ("vmac", 4),
    i8("npu2", "int8"): ("vmac", 5),
    BFP16: ("vmac.f", 5),
    tiles(6, "bfloat16"): ("vmac.f", 5),
    PROMPTS: ("vmac.f", 5),
}


@pytest.mark.parametrize(
    ("kernel", "key"),
    [(kernel, key) for kernel, keys in LATENCIES.items() for key in keys],
    ids=str,
)
def test_a_latency_that_is_one_cycle_too_short(kernel: Kernel, key: str) -> None:
    kernel.refuses(kernel.generated(changed(MACHINES[kernel.device], believing(key))))


@pytest.mark.parametrize("kernel", STAGES, ids=str)
def test_sums_that_are_read_later(kernel: Kernel) -> None:
    key, stage = STAGES[kernel]
    kernel.refuses(kernel.generated(changed(MACHINES[kernel.device], believing(key, 0, stage))))


@pytest.mark.parametrize("kernel", LATENCIES, ids=str)
def test_a_register_that_is_replaced(kernel: Kernel) -> None:
    """A result goes into another register of its file."""
    machine, program = MACHINES[kernel.device], kernel.found.program
    results = writers(program, machine, _FILES)
    for victim in random.Random(1).sample(results, _VICTIMS):
        register = str(victim.operands[0])
        file = str(machine.file_of(register))
        others = {str(op.operands[0]) for op in writers(program, machine, file)} - {register}
        kernel.refuses(into(program, victim, min(others)))
