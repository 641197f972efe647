"""The core of XDNA1 (AIE2, also AIE-ML), as far as kernels here need it.

Sources: [SA] scalable-analyses/xdna, isa.rst: operations and latencies inferred from
the compiler's output and microbenchmarks; [LLVM] Xilinx/llvm-aie, llvm/lib/Target/AIE: slots,
formats, register files and itineraries of AMD's public compiler; [API] Xilinx/aie_api; [EMU]
xdna-emu, bank rules observed on a Phoenix NPU; [AM020] AMD's AIE-ML architecture manual.
"""

from __future__ import annotations

from npu.vliw import lane_operations, scalar, vector_operations
from npu.vliw.machine import (
    Banks,
    Immediate,
    LoopRules,
    Machine,
    Operand,
    Operation,
    RegisterFile,
    Slot,
    Source,
)

ITINERARY = Source("[LLVM] AIE2Schedule.td; [SA]", "documented")
INTEGER = Source("[LLVM] AIE2Schedule.td, II_VMAC, II_VLDA_UPS, II_VST_SRS", "documented")
ENCODING = Source("[LLVM] AIE2Slots.td, AIE2CompositeFormats.td", "documented")
REGISTERS = Source("[LLVM] AIE2GenRegisterInfo.td; [AM020] register files; [SA]", "documented")
SIZES = Source("mlir-aie, AIETargetModel; docs/reference/hardware.md, memories", "documented")
# aie_api's circular_iterator only works under this rule; hardware was not asked.
WALK = Source("[API] detail/aie2/array_helpers.hpp, add_2d_ptr; [LLVM] eD", "published")

SLOTS = (
    Slot("lda", 21, "nopa"),
    Slot("ldb", 16, "nopb"),
    Slot("st", 21, "nops"),
    Slot("alu", 20, "nopx"),
    Slot("mv", 22, "nopm"),
    Slot("lng", 42, "nopxm"),
    Slot("vec", 26, "nopv"),
)

# Slots that share a bundle, per size in bytes.
_FORMATS = {
    16: "ldb lda st lng vec, ldb lda st alu mv vec",
    14: "st ldb lng vec, st ldb alu mv vec, lda st mv vec, lda ldb alu st vec, lda ldb lng st, "
    "lda ldb alu mv st, lda ldb lng vec, lda ldb alu mv vec",
    12: "st lng vec, st alu mv vec, st ldb mv vec, st ldb alu vec, st ldb lng, st ldb alu mv, "
    "ldb lng vec, ldb alu mv vec, lda st alu vec, lda st lng, lda st alu mv, lda ldb st vec, "
    "lda ldb st mv, lda ldb alu st, lda ldb mv vec, lda ldb alu vec, lda ldb lng, lda ldb alu mv, "
    "lda lng vec, lda alu mv vec",
    10: "st mv vec, st alu vec, st lng, st alu mv, st ldb vec, st ldb mv, ldb mv vec, ldb alu vec, "
    "ldb lng, ldb alu mv, lda st vec, lda st mv, lda st alu, lda mv vec, lda ldb vec, lda ldb mv, "
    "lda alu vec, lda lng, lda alu mv, lng vec, alu mv vec",
    8: "st vec, st mv, mv vec, ldb vec, st ldb alu, lda vec, lda ldb st, lda ldb alu, alu vec, "
    "alu mv",
    6: "st alu, lng, ldb st, ldb mv, ldb alu, lda st, lda mv, lda ldb, lda alu",
    4: "vec, st, mv, ldb, lda, alu",
    2: "",
}
FORMATS = tuple(
    (size, frozenset(slots.split())) for size, text in _FORMATS.items() for slots in text.split(",")
)


FILES = (
    *scalar.files(REGISTERS, WALK),
    RegisterFile("W", {"wl": (), "wh": ()}, 12, 256, REGISTERS),
    RegisterFile("X", {"x": ("wl", "wh")}, 12, 512, REGISTERS),
    RegisterFile("AM", {"amll": (), "amlh": (), "amhl": (), "amhh": ()}, 9, 256, REGISTERS),
    RegisterFile("BM", {"bml": ("amll", "amlh"), "bmh": ("amhl", "amhh")}, 9, 512, REGISTERS),
    RegisterFile("CM", {"cm": ("bml", "bmh")}, 9, 1024, REGISTERS),
)

_NEAR = (Immediate(3, 32), Immediate(4, 32))  # vldb: offset, post-increment
_FAR = (Immediate(6, 32), Immediate(7, 32))  # vlda, vst


def _memory(key: str, slot: str, data: Operand, action: str, port: str) -> Operation:
    """A vector load or store of 32 bytes; data memory is accessed in stage 5."""
    mnemonic = key.split(".")[0]
    offset, post = _NEAR if slot == "ldb" else _FAR
    ports = ((port, data.latency or 1),) if port else ()
    return Operation(
        key, mnemonic, slot, (data, scalar.ADDRESS), action, ITINERARY, offset=offset, post=post,
        memory_stage=5, memory_bytes=32, ports=ports,
    )  # fmt: skip


def _conversion(key: str, slot: str, data: Operand, *modes: tuple[str, int]) -> Operation:
    """A load into an accumulator or a store from one that shifts integers; types are in its name,
    the shift is read where it is needed."""
    load = bool(data.latency)
    return Operation(
        key, key, slot, (data, Operand("S", 7 if load else 1), scalar.ADDRESS),
        "load ups" if load else "store srs", INTEGER, offset=_FAR[0], post=_FAR[1],
        memory_stage=5 if load else 7, memory_bytes=32,
        ports=(("CM write m", 9),) if load else (("CM read m", 1),), modes=modes,
    )  # fmt: skip


# Of vmac for 8x8 by 8x8 of int8: both signed, 32-bit sums, mode 1. [LLVM] aie2p_vmult.h
INT8_8X8X8 = 776
# Of vmac for int16, 4x4 by 4x8 (AIE2: 4x4 by 4x4), sums of 64 bits: the fields of the signs, of
# lanes (1) and of 16 x 16 bits (3); the field "variant" is taken to be 0 (assumed).
INT16_4X4X8 = 794
_ROUNDED = (("crrnd", 1), ("crsat", 1))
_W, _AM = Operand("W", 0, 7), Operand("AM", 0, 7)

OPERATIONS = (
    _memory("vlda.w", "lda", _W, "load", "W write a"),
    _memory("vldb.w", "ldb", _W, "load", ""),
    _memory("vlda.am", "lda", _AM, "load", "CM write m"),
    _memory("vst.w", "st", Operand("W"), "store", "W read s"),
    _memory("vst.am", "st", Operand("AM"), "store", "CM read m"),
    # Accumulators are read in the third cycle, everything else in the first.
    Operation(
        "vmac.f",
        "vmac.f",
        "vec",
        (Operand("BM", 0, 6), Operand("BM", 3), Operand("X"), Operand("X"), Operand("R")),
        "multiply",
        ITINERARY,
        ports=(("R read v", 1), ("CM write a", 6)),
    ),
    # Of A a tile of 4 x 8 bytes, half a register. Forwarding from sum to sum is not used here.
    Operation(
        "vmac",
        "vmac",
        "vec",
        (Operand("CM", 0, 5), Operand("CM", 3), Operand("X", parts=1), Operand("X"), Operand("R")),
        "multiply int8",
        INTEGER,
        ports=(("R read v", 1), ("CM write a", 5)),
        word=INT8_8X8X8,
    ),
    # Tiles of 4 x 4 int16, half a register each; sums of 64 bits.
    Operation(
        "vmac.16",
        "vmac",
        "vec",
        (
            Operand("CM", 0, 5), Operand("CM", 3), Operand("X", parts=1), Operand("X", parts=1),
            Operand("R"),
        ),
        "multiply int16",
        INTEGER,
        ports=(("R read v", 1), ("CM write a", 5)),
        word=INT16_4X4X8,
    ),
    _conversion("vlda.ups.s64.s32", "lda", Operand("BM", 0, 9), ("crsat", 7)),
    _conversion("vst.srs.s32.s64", "st", Operand("BM"), *_ROUNDED),
    _conversion("vlda.ups.s32.s8", "lda", Operand("CM", 0, 9), ("crsat", 7)),
    _conversion("vlda.ups.s32.s16", "lda", Operand("BM", 0, 9), ("crsat", 7)),
    _conversion("vst.srs.s8.s32", "st", Operand("CM"), *_ROUNDED),
    _conversion("vst.srs.s16.s32", "st", Operand("BM"), *_ROUNDED),
    *vector_operations.aie2(),
    *lane_operations.aie2(),
    *scalar.operations(ITINERARY, (10, 9, 10)),
    Operation(
        "add.imm", "add", "alu", (Operand("R", 0, 1), Operand("R"), Operand("imm")), "add",
        ITINERARY, immediate=Immediate(7),
    ),
    Operation("add", "add", "alu", (Operand("R", 0, 1), Operand("R"), Operand("R")), "add",
        ITINERARY),
    Operation("mul", "mul", "alu", (Operand("R", 0, 2), Operand("R"), Operand("R")), "mul",
        ITINERARY),
)  # fmt: skip

AIE2 = Machine(
    name="AIE2",
    generation="npu1",
    slots=SLOTS,
    slot_source=ENCODING,
    files=FILES,
    operations=OPERATIONS,
    formats=FORMATS,
    format_source=ENCODING,
    exclusive=(("lng", "alu"), ("lng", "mv")),
    banks=Banks(8, 16, 4, 8192, Source("[EMU] observed cycle by cycle; [AM020]", "published")),
    loop=LoopRules(64, 16, 16, Source("[SA] xdna1_kernel.rst", "published")),
    program_bytes=16384,
    memory_bytes=65536,
    size_source=SIZES,
)

# The configuration operand of vmac.f for a 4x8 by 8x4 product of bf16. [SA]
BF16_4X8X4 = 28
# What a function may change: the others are the caller's. [LLVM] AIE2CallingConv.td
CALLEE_SAVED = frozenset({"lr", "p6", "p7", *(f"r{i}" for i in range(16, 24))})
