"""Operations for kernels that are no matrix products, of both cores: lanes of bf16 and fp32, moves
between lanes, widening of packed integers. What they compute is in vector_arithmetic.py.

Sources: [LLVM] Xilinx/llvm-aie, AIE2Schedule.td, AIE2PGenSchedule.td and the tables of slots made
from them: latencies, stages, ports, slots; [API] Xilinx/aie_api; [EMU] xdna-emu, that vunpack reads
its operand in stage 7, seen on a Phoenix NPU. Bypasses between units are not used: they would let
some readers follow a cycle sooner.
"""

from __future__ import annotations

from npu.vliw import scalar
from npu.vliw.machine import Immediate, Operand, Operation, RegisterFile, Source

AIE2 = Source("[LLVM] AIE2Schedule.td", "documented")
AIE2P = Source("[LLVM] AIE2PGenSchedule.td", "documented")
UNPACK = Source("[LLVM] II_VUNPACK; [EMU] late read", "documented")
BYTES = Source("[LLVM] AIE2Schedule.td, II_VADD, whose port is the move slot's", "documented")
EXPONENTS = Source("[LLVM] MOV_alu_mv_mv_mv_e_mv_r_to_el; latency as of other moves", "assumed")
SIZES = Source("crUnpackSize 0 taken to be 4 bits to 8", "assumed")

# Modes of vshuffle: the pair of operands as rows x columns of so many bits, transposed; the lower
# or the upper half of it. [API] shuffle modes; [LLVM] test aie2p-vector-shuffle-wide-shapes.s
SHUFFLES = {
    "T8_2x64_lo": 20, "T8_2x64_hi": 21, "T256_2x2_lo": 10, "T256_2x2_hi": 11, "T16_16x4_lo": 24,
    "T16_16x4_hi": 25, "T16_2x32_lo": 18, "T16_2x32_hi": 19, "T64_2x8_lo": 14, "T64_2x8_hi": 15,
    "T32_2x16_lo": 16, "T32_2x16_hi": 17, "T128_2x4_lo": 12, "T128_2x4_hi": 13,
    "T16_32x2_lo": 2, "T16_32x2_hi": 3, "T16_8x8_lo": 52, "T16_8x8_hi": 53,
    "T32_16x2_lo": 4, "T32_16x2_hi": 5, "T64_8x2_lo": 6, "T64_8x2_hi": 7, "T128_4x2_lo": 8,
    "T128_4x2_hi": 9,
}  # fmt: skip
# The configuration of lane by lane products of bf16: that of the 4 x 8 x 4 product, 28, with 1
# instead of 0 in its field "variant", bits 5 to 7. That both cores read it so is inferred.
LANES = 60

_X2, _X, _R = Operand("X", 0, 2), Operand("X"), Operand("R")


def _moves(source: Source, ports: tuple[tuple[str, int], ...]) -> tuple[Operation, ...]:
    """Between lanes of vector registers, in the move slot."""
    return (
        *(
            Operation(f"vbcst.{bits}", f"vbcst.{bits}", "mv", (_X2, _R), "broadcast", source,
                ports=ports)
            for bits in (8, 16, 32)
        ),
        *(
            Operation(f"vextbcst.{bits}", f"vextbcst.{bits}", "mv", (_X2, _X, _R),
                "extract broadcast", source, ports=ports)
            for bits in (16, 32, 64)
        ),
    )  # fmt: skip


def aie2() -> tuple[Operation, ...]:
    """XDNA1: 16 lanes of fp32 at a time, two products of bf16 to each."""
    bm, ports = Operand("BM", 0, 6), (("R read v", 1), ("CM write a", 6))
    write = (("W write m", 2),)
    return (
        *_moves(AIE2, write),
        Operation("vshuffle", "vshuffle", "mv", (_X2, _X, _X, _R), "shuffle", AIE2, ports=write),
        Operation("vadd.8", "vadd.8", "mv", (_X2, _X, _X), "add integers", BYTES, ports=write),
        Operation("vunpack", "vunpack.d8.d4", "ldb", (Operand("X", 0, 7), Operand("W", 7)),
            "unpack", UNPACK, ports=(("W read s", 7),), modes=(("crunpacksign", 7),)),
        Operation("vconv.fp32.bf16", "vconv.fp32.bf16", "mv", (Operand("BM", 0, 2), Operand("W")),
            "widen", AIE2, ports=(("CM write m", 2),)),
        Operation("vconv.bf16.fp32", "vconv.bf16.fp32", "st", (Operand("W", 0, 2), Operand("BM")),
            "narrow", AIE2, ports=(("CM read m", 1), ("W write a", 2)), modes=(("crrnd", 1),)),
        Operation("vmul.f", "vmul.f", "vec", (bm, _X, _X, _R), "multiply lanes", AIE2, ports=ports),
        Operation("vadd.f", "vadd.f", "vec", (bm, Operand("BM", 3), Operand("BM", 3), _R),
            "add lanes", AIE2, ports=(*ports, ("CM read m", 3))),
    )  # fmt: skip


def aie2p() -> tuple[Operation, ...]:
    """XDNA2: 32 lanes of fp32 in the lower half of an accumulator, one product of bf16 to each."""
    dm, sum_, ports = Operand("DM", 0, 6), Operand("DM", 4), (("L read m", 1),)
    unpacked = (Operand("X", 0, 7), Operand("W", 7), Operand("UNPACK", 0))
    return (
        *_moves(AIE2P, ports),
        *_narrow_memory(),
        # Half of a register of exponents from a scalar register.
        Operation("mov.EH.R", "mov", "mv", (Operand("EH", 0, 1), _R), "exponents", EXPONENTS),
        Operation("vmul.f", "vmul.f", "vec", (dm, Operand("EX"), Operand("EX"), _R),
            "multiply blocks", AIE2P),
        Operation("vunpack", "vunpack", "ldb", unpacked, "unpack", UNPACK,
            ports=(("write ldb", 7),), modes=(("crunpacksize", 7),)),
        Operation("vconv.fp32.bf16", "vconv.fp32.bf16", "mv", (Operand("CM", 0, 2), _X), "widen",
            AIE2P, ports=(("DM write m", 2),)),
        Operation("vconv.bf16.fp32", "vconv.bf16.fp32", "st", (_X2, Operand("CM")), "narrow", AIE2P,
            ports=(("write lda", 2),), modes=(("crrnd", 1),)),
        # 64 sums into blocks. [LLVM] AIE2PGenSchedule.td, VCONV_bfp16ebs8_fp32
        Operation("vconv.bfp16.fp32", "vconv.bfp16ebs8.fp32", "st",
            (Operand("EX", 0, 4), Operand("DM")), "to blocks", AIE2P,
            ports=(("crrnd read", 2), ("write lda", 4)), modes=(("crrnd", 2),)),
        Operation("vconv.fp32.bf16.w", "vconv.fp32.bf16", "mv",
            (Operand("BM", 0, 2), Operand("W")), "widen", AIE2P, ports=(("DM write m", 2),)),
        Operation("vconv.bf16.fp32.w", "vconv.bf16.fp32", "st",
            (Operand("W", 0, 2), Operand("BM")), "narrow", AIE2P, ports=(("write lda", 2),),
            modes=(("crrnd", 1),)),
        Operation("vmul.f.x", "vmul.f", "vec", (dm, _X, _X, _R), "multiply lanes", AIE2P),
        Operation("vmac.f.x", "vmac.f", "vec", (dm, sum_, _X, _X, _R), "multiply lanes", AIE2P),
        Operation("vadd.f", "vadd.f", "vec", (dm, sum_, sum_, _R), "add lanes", AIE2P,
            ports=(("DM read m", 4),)),
    )  # fmt: skip


def _narrow_memory() -> tuple[Operation, ...]:
    """Accesses of 32 bytes on XDNA2, whose steps are taken to be as wide as those of 64."""
    offset, post, found = Immediate(4, 32), Immediate(5, 32), []
    for key, slot in (("vlda.w", "lda"), ("vldb.w", "ldb"), ("vst.w", "st")):
        data = Operand("W") if slot == "st" else Operand("W", 0, 7)
        found.append(
            Operation(key, key[:-2], slot, (data, scalar.ADDRESS),
                "store" if slot == "st" else "load", AIE2P, offset=offset, post=post,
                memory_stage=5, memory_bytes=32,
                ports=((f"write {slot}", 7),) if data.latency else ())
        )  # fmt: skip
    return tuple(found)


AIE2P_FILES = (RegisterFile("UNPACK", {"unpacksign0": ()}, 1, 1, AIE2P),)
