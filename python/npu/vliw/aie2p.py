"""The core of XDNA2 (AIE2P), as far as kernels here need it: what differs from XDNA1's is above all
the accumulators, five of 2048 bits, and the load files through which blocks of BFP16 come.

A load file turns accesses of 64 bytes into values of 72: `vlda.fill.512` puts 64 bytes into it,
each `vlda.pop.576` fetches 64 more, takes the first 72 and moves the pointer by 72. So eight pops
need a fill before them and leave the file empty. A register counts the bytes that it holds. From an
address that is no multiple of 64 a fill of an empty file takes the rest of its line, as loads of
vectors from any address need (assumed; aie_api has these on the same operations).

The store file is the same the other way round: `vst.push.576.conv` turns 64 sums into 72 bytes,
stores what fills up a line and moves the pointer by 72; r26 counts what waits, down. A flush stores
that, 64 bytes at most, so that it follows eight pushes from a line's start at the latest.

Sources: [SA] scalable-analyses/xdna, isa.rst and xdna2_kernel.rst; [LLVM] Xilinx/llvm-aie,
llvm/lib/Target/AIE/aie2p; [RTG] AMD's register database of aie-rt; where they are silent, AIE2's
entry.
"""

from __future__ import annotations

from npu.vliw import lane_operations, scalar, vector_operations
from npu.vliw.aie2 import FORMATS as AIE2_FORMATS
from npu.vliw.aie2 import INT8_8X8X8, INT16_4X4X8, SIZES
from npu.vliw.machine import (
    Banks,
    Fifo,
    Immediate,
    LoopRules,
    Machine,
    Operand,
    Operation,
    RegisterFile,
    Slot,
    Source,
)

LATENCY = Source("[SA] isa.rst, table of XDNA2 operations", "published")
ITINERARY = Source("[LLVM] AIE2PGenSchedule.td; [SA] isa.rst", "documented")
INTEGER = Source("[LLVM] AIE2PGenSchedule.td, vmul_cm_core_X_X, vec_shuffle_x", "documented")
CONVERSION = Source("[LLVM] AIE2PGenSchedule.td, dmx_lda_ups .., dmx_sts_srs ..", "documented")
# That a pop moves the pointer by 72 and what it takes from where is [SA]'s reading of a test.
FILE = Source("latency, stages, port [LLVM] AIE2PGenSchedule.td; effect [SA] isa.rst", "published")
# As aie_api's pop_seek uses it; what becomes of the pointer and the file follows from that use.
LEAVE = Source("latency [LLVM] AIE2PGenSchedule.td, fifo_1d_pop; effect from its use", "assumed")
# Kernels of others push eight times before a flush; aie_api pushes and flushes from any address.
PUSH = Source("latency, stages, ports [LLVM] AIE2PGenSchedule.td; effect from its use", "published")
FLUSH = Source("latency [LLVM] AIE2PGenSchedule.td, dmx_sts_fifo_conv_x; effect assumed", "assumed")
REGISTERS = Source("[SA] isa.rst: five accumulators, exponents, load and store files", "published")
WALK = Source("[LLVM] PADDA_2D; counts taken to be as on AIE2", "assumed")
ENCODING = Source("[LLVM] aie2p/AIE2PSlots.td, AIE2PCompositeFormats.td", "documented")

SLOTS = (
    Slot("lda", 20, "nopa"),
    Slot("ldb", 17, "nopb"),
    Slot("st", 20, "nops"),
    Slot("alu", 20, "nopx"),
    Slot("mv", 22, "nopm"),
    Slot("lng", 42, "nopxm"),
    Slot("vec", 26, "nopv"),
)

# AIE2's, but that alu and mv fit into 6 bytes.
FORMATS = tuple((6 if slots == {"alu", "mv"} else size, slots) for size, slots in AIE2_FORMATS)


FILES = (
    *scalar.files(REGISTERS, WALK),
    RegisterFile("W", {"wl": (), "wh": ()}, 12, 256, REGISTERS),
    RegisterFile("X", {"x": ("wl", "wh")}, 12, 512, REGISTERS),
    RegisterFile("Y", {"y": ("x",)}, 6, 1024, REGISTERS, paired=True),
    RegisterFile("EH", {"el": (), "eh": ()}, 12, 32, REGISTERS),
    RegisterFile("E", {"e": ("el", "eh")}, 12, 64, REGISTERS),
    # In memory byte e[i] and then x[8 i .. 8 i + 7], eight times.
    RegisterFile("EX", {"ex": ("x", "e")}, 12, 576, REGISTERS),
    RegisterFile("BM", {"bmll": (), "bmlh": (), "bmhl": (), "bmhh": ()}, 5, 512, REGISTERS),
    RegisterFile("CM", {"cml": ("bmll", "bmlh"), "cmh": ("bmhl", "bmhh")}, 5, 1024, REGISTERS),
    RegisterFile("DM", {"dm": ("cml", "cmh")}, 5, 2048, REGISTERS),
    RegisterFile("LF", {"lf": ()}, 2, 1024, REGISTERS),
    RegisterFile("SF", {"sf": ()}, 1, 1024, REGISTERS),
    *vector_operations.AIE2P_FILES,
    *lane_operations.AIE2P_FILES,
    *(RegisterFile(n, {f"{n.lower()}sign1": ()}, 1, 1, REGISTERS) for n in ("UPS", "SRS")),
)

_OFFSET, _POST = Immediate(4, 64), Immediate(5, 64)  # [LLVM] c10s_step64; the second as AIE2's rule


# Loads, moves and conversions write accumulators through one port. [LLVM] DM_WM_PORT
_WRITE = "DM write m"


def _memory(key: str, slot: str, data: Operand, action: str) -> Operation:
    """A vector load or store of 64 bytes; data memory is accessed in stage 5. [SA] forbids loads
    right after a pop: of vector registers, as their write port says [LLVM]."""
    source = ITINERARY if data.latency else LATENCY
    port = _WRITE if data.kind == "BM" else f"write {slot}"
    return Operation(
        key, key.split(".")[0], slot, (data, scalar.ADDRESS), action, source,
        offset=_OFFSET, post=_POST, memory_stage=5, memory_bytes=64,
        ports=((port, data.latency),) if data.latency else (("data out", 2),),
    )  # fmt: skip


def _conversion(
    key: str, slot: str, action: str, data: Operand, memory_stage: int, *modes: tuple[str, int]
) -> Operation:
    """A load into an accumulator or a store from one that shifts integers or converts to or from
    bf16."""
    operands = [data, scalar.ADDRESS]
    if action in ("load ups", "store srs"):
        sign = "UPS" if action == "load ups" else "SRS"
        operands[1:1] = [Operand("S", 7 if sign == "UPS" else 1), Operand(sign, 0)]
    return Operation(
        key, key, slot, tuple(operands), action, CONVERSION, offset=_OFFSET, post=_POST,
        memory_stage=memory_stage, memory_bytes=64,
        ports=((_WRITE, data.latency),) if data.latency else _OUT[memory_stage], modes=modes,
    )  # fmt: skip


_OUT = {stage: (("crrnd read", 1), ("data out", stage - 3)) for stage in (5, 7)}
_UP = (("crsat", 7), ("crupsmode", 8))
_DOWN = (("crrnd", 1), ("crsat", 1), ("crsrsmode", 1))
_CONVERSIONS = (
    _conversion("vlda.ups.4x", "lda", "load ups", Operand("DM", 0, 9), 5, *_UP),
    _conversion("vlda.ups.2x", "lda", "load ups", Operand("CM", 0, 9), 5, *_UP),
    _conversion("vst.srs.4x", "st", "store srs", Operand("DM"), 7, *_DOWN),
    _conversion("vst.srs.2x", "st", "store srs", Operand("CM"), 7, *_DOWN),
    _conversion("vlda.conv.fp32.bf16", "lda", "load bf16", Operand("CM", 0, 7), 5),
    _conversion("vst.conv.bf16.fp32", "st", "store bf16", Operand("CM"), 5, ("crrnd", 1)),
)


def _through_file(unit: str) -> tuple[Operation, ...]:
    """Fill and pop of a load unit, and the pop that moves on by a modifier or in two dimensions and
    leaves the file empty."""
    fifo, name = Operand("fifo"), f"vld{unit[-1]}"
    pop = (Operand("EX", 0, 8), fifo)
    return (
        Operation(f"{name}.fill", f"{name}.fill.512", unit, (fifo,), "fill", FILE,
            memory_stage=5, memory_bytes=64),
        *(
            Operation(f"{name}.{key}", f"{name}.pop.576", unit, pop, key, source,
                memory_stage=5, memory_bytes=64, ports=((f"write {unit}", 8),))
            for key, source in (("pop", FILE), ("leave", LEAVE))
        ),
    )  # fmt: skip


# Sums on their way out in blocks: conversions read the rounding mode a cycle later than others.
_BLOCKS_OUT = (("L read m", 1), ("crrnd read", 2), ("data out", 5))
_STORE_FILE = (
    Operation("vst.push", "vst.push.576.conv.bfp16ebs8.fp32", "st",
        (Operand("DM"), Operand("fifo")), "store push", PUSH, memory_stage=8, memory_bytes=64,
        ports=_BLOCKS_OUT, modes=(("crrnd", 2),)),
    *(
        Operation(f"vst.{key}", "vst.flush.512.conv", "st", (Operand("fifo"),), f"store {key}",
            FLUSH, memory_stage=8, memory_bytes=64, ports=_BLOCKS_OUT[::2])
        for key in ("flush", "leave")
    ),
)  # fmt: skip


OPERATIONS = (
    _memory("vlda.x", "lda", Operand("X", 0, 7), "load"),
    _memory("vldb.x", "ldb", Operand("X", 0, 7), "load"),
    _memory("vlda.bm", "lda", Operand("BM", 0, 7), "load"),  # ldb writes no accumulators
    *_through_file("lda"),
    *_through_file("ldb"),
    *_STORE_FILE,
    _memory("vst.x", "st", Operand("X"), "store"),
    _memory("vst.bm", "st", Operand("BM"), "store"),
    *_CONVERSIONS,
    *vector_operations.aie2p(),
    *lane_operations.aie2p(),
    # Accumulators are read in the fourth cycle, everything else in the first.
    Operation(
        "vmac.f",
        "vmac.f",
        "vec",
        (Operand("DM", 0, 6), Operand("DM", 4), Operand("EX"), Operand("EX"), Operand("R")),
        "multiply bfp16",
        ITINERARY,
    ),
    # Kernels of others widen bf16 by a multiplication with ones, 64 lanes at a time.
    Operation("vmul.f.y", "vmul.f", "vec",
        (Operand("DM", 0, 6), Operand("Y"), Operand("Y"), Operand("R")), "multiply lanes",
        ITINERARY),
    # The itinerary forwards sums from one to the next a cycle earlier, which is not used here.
    Operation(
        "vmac",
        "vmac",
        "vec",
        (Operand("DM", 0, 6), Operand("DM", 4), Operand("X"), Operand("X"), Operand("R")),
        "multiply int8",
        INTEGER,
        word=INT8_8X8X8,
    ),
    # Of A a tile of 4 x 4 int16, half a register; sums of 64 bits.
    Operation("vmac.16", "vmac", "vec",
        (Operand("DM", 0, 6), Operand("DM", 4), Operand("X", parts=1), Operand("X"), Operand("R")),
        "multiply int16", INTEGER, word=INT16_4X4X8),
    Operation("vshuffle", "vshuffle", "mv",
        (Operand("X", 0, 2), Operand("X"), Operand("X"), Operand("R")), "shuffle", INTEGER,
        ports=(("L read m", 1),)),
    # [SA] writes imm8 for moves, but its kernel has `movx r0, #780`: c11s of [LLVM]. It has 11 bits
    # for padda and padds and 10 for paddb, taken to be in units of 4 as on AIE2.
    *scalar.operations(LATENCY, (9, 8, 9)),
    Operation("vmov", "vmov", "mv", (Operand("BM", 0, 2), Operand("X")), "copy", LATENCY,
        ports=((_WRITE, 2),)),
)  # fmt: skip

AIE2P = Machine(
    name="AIE2P",
    generation="npu2",
    slots=SLOTS,
    slot_source=ENCODING,
    files=FILES,
    operations=OPERATIONS,
    formats=FORMATS,
    format_source=ENCODING,
    exclusive=(("lng", "alu"), ("lng", "mv")),
    banks=Banks(8, 32, 5, 8192, Source("[RTG] width 256 bit; wiring inferred from it", "assumed")),
    loop=LoopRules(64, 16, 16, Source("[SA], as on AIE2", "published")),
    program_bytes=16384,
    memory_bytes=65536,
    size_source=SIZES,
    fifos=(Fifo("p0", "lf0", "r24"), Fifo("p1", "lf1", "r25"), Fifo("p2", "sf", "r26")),
    fifo_source=REGISTERS,
)

# The configuration operand of vmac.f for an 8x8 by 8x8 product of BFP16. [SA]
BFP16_8X8X8 = 780
# Modes of vshuffle that transpose, on both cores: 8 x 8 bytes ([LLVM] aie2p_enums.h, T8_8x8), and
# 4 x 8 and 8 x 4 values of 16 bits ([SA] isa.rst).
TRANSPOSED_8X8, TRANSPOSED_4X8, TRANSPOSED_8X4 = 35, 28, 29
# Values of control registers. [LLVM] aie2p_defines.h; [RTG]
SATURATE, TO_EVEN, SUMS_OF_32_BITS, SUMS_OF_64_BITS = 1, 12, 0, 1
