"""Operations of kernels that normalise, rotate and exponentiate: differences, powers of two and
tangents of lanes of fp32, what moves lanes to other lanes and to scalars. What they compute is in
lane_arithmetic.py.

Sources: [LLVM] Xilinx/llvm-aie, AIE2Schedule.td and AIE2PGenSchedule.td: slots, latencies, stages
and ports; [API] Xilinx/aie_api, what they compute. What the units for 2^x, tanh and 1/sqrt round
to is not public: results are those of `silicon` (docs/fidelity.md), correctly rounded.
"""

from __future__ import annotations

from npu.vliw import scalar
from npu.vliw.machine import Immediate, Operand, Operation, RegisterFile, Source

AIE2 = Source("[LLVM] AIE2Schedule.td, II_VMACf to II_VADDMACf, II_VST_CONV", "documented")
AIE2_MOVE = Source("[LLVM] AIE2Schedule.td, II_VMOV_X, II_VSHIFT, II_VEXTRACT", "documented")
AIE2_SUM = Source("[LLVM] AIE2Schedule.td, II_VACCf", "documented")
AIE2_LANES = Source("[LLVM] AIE2Schedule.td, II_VCMP, II_VSEL, II_VBLOG", "documented")
AIE2_INTEGERS = Source("[LLVM] AIE2Schedule.td, II_VADD", "documented")
AIE2_SCALAR = Source("[LLVM] AIE2Schedule.td: as II_XOR, a cycle", "assumed")
AIE2P = Source("[LLVM] AIE2PGenSchedule.td; [API]", "documented")
UNIT = Source("[LLVM] AIE2PGenSchedule.td; rounding as in `silicon`", "assumed")
LANE = Source("[LLVM] AIE2PGenSchedule.td; the name of its sign operand inferred", "documented")

_Ports = tuple[tuple[str, int], ...]
_X2, _X, _R = Operand("X", 0, 2), Operand("X"), Operand("R")
_READ, _SCALAR = (("DM read m", 1),), (("L read m", 1),)


def _products(
    suffix: str, sums: tuple[Operand, Operand], source: Source, ends: _Ports, second: _Ports
) -> tuple[Operation, ...]:
    """Products of lanes, negative or added to one or two accumulators (``sums``: as written and as
    read); of two the second goes through a port of its own."""
    written, read = sums
    found = []
    for name, count, minus in (
        ("vnegmul", 0, True), ("vmsc", 1, True), ("vaddmac", 2, False), ("vaddmsc", 2, True),
    ):  # fmt: skip
        action = "subtract product" if minus else "multiply lanes"
        operands = (written, *(read,) * count, _X, _X, _R)
        found.append(
            Operation(f"{name}.f{suffix}", f"{name}.f", "vec", operands, action, source,
                ports=(*ends, *(second if count > 1 else ())))
        )  # fmt: skip
    return tuple(found)


def aie2() -> tuple[Operation, ...]:
    bm, sum_ = Operand("BM", 0, 6), Operand("BM", 3)
    ends: _Ports = (("R read v", 1), ("CM write a", 6))
    second: _Ports = (("CM read m", 3),)
    return (
        *_products("", (bm, sum_), AIE2, ends, second),
        Operation("vsub.f", "vsub.f", "vec", (bm, sum_, sum_, _R), "subtract lanes", AIE2_SUM,
            ports=(*ends, *second)),
        Operation("vmov.x", "vmov", "mv", (_X2, Operand("BM")), "copy", AIE2_MOVE,
            ports=(("CM read m", 1), ("W write m", 2))),
        Operation("vmov", "vmov", "mv", (Operand("BM", 0, 2), _X), "copy", AIE2_MOVE,
            ports=(("CM write m", 2),)),
        Operation("vshift", "vshift", "mv", (_X2, _X, _X, _R), "shift bytes", AIE2_MOVE,
            ports=(("W write m", 2),)),
        Operation("vextract.32", "vextract.s32", "mv", (Operand("R", 0, 2), _X, _R), "extract",
            AIE2_MOVE, ports=(("RS write m", 2),)),
        # Signed, whatever crVaddSign says; masks are taken to lie where those of AIE2P do.
        *(
            Operation(f"vlt.{n}", f"vlt.s{n}", "mv", (Operand("R", 0, 2), _X, _X), "below",
                AIE2_LANES, ports=(("RS write m", 2),))
            for n in (16, 32)
        ),
        *(
            Operation(f"vsel.{n}", f"vsel.{n}", "mv", (_X2, _X, _X, _R), "select", AIE2_LANES,
                ports=(("W write m", 2),))
            for n in (16, 32)
        ),
        Operation("vadd.16", "vadd.16", "mv", (_X2, _X, _X), "add integers", AIE2_INTEGERS,
            ports=(("W write m", 2),)),
        Operation("vbor", "vbor", "mv", (_X2, _X, _X), "or", AIE2_LANES,
            ports=(("W write m", 2),)),
        *(
            Operation(name, name, "alu", (Operand("R", 0, 1), _R, _R), action, AIE2_SCALAR)
            for name, action in (("sub", "subtract"), ("ashl", "shift"), ("and", "mask"))
        ),
        Operation("vst.conv.bf16.fp32", "vst.conv.bf16.fp32", "st",
            (Operand("BM"), scalar.ADDRESS), "store bf16", AIE2, offset=Immediate(6, 32),
            post=Immediate(7, 32), memory_stage=7, memory_bytes=32, ports=(("CM read m", 1),),
            modes=(("crrnd", 1),)),
    )  # fmt: skip


def aie2p() -> tuple[Operation, ...]:
    dm, sum_ = Operand("DM", 0, 6), Operand("DM", 4)
    return (
        *_products(".x", (dm, sum_), AIE2P, (), (("DM read m", 4),)),
        Operation("vsub.f", "vsub.f", "vec", (dm, sum_, sum_, _R), "subtract lanes", AIE2P,
            ports=(("DM read m", 4),)),
        Operation("vclr", "vclr", "vec", (dm,), "clear", AIE2P),
        Operation("vmov.x", "vmov", "mv", (_X2, Operand("BM")), "copy", AIE2P, ports=_READ),
        Operation("vmov.xx", "vmov", "mv", (_X2, _X), "copy", AIE2P),
        Operation("vshift", "vshift", "mv", (_X2, _X, _X, _R), "shift bytes", AIE2P,
            ports=_SCALAR),
        Operation("vextract.32", "vextract.32", "mv",
            (Operand("R", 0, 2), _X, _R, Operand("VADD", 0)), "extract", LANE,
            ports=(*_SCALAR, ("L write m", 2))),
        Operation("invsqrt", "invsqrt", "alu", (Operand("R", 0, 4), _R), "inverse root", UNIT,
            ports=(("R write a", 4),)),
        *(
            Operation(name, name, "mv", (Operand("W", 0, 2), Operand("BM")), action, UNIT,
                ports=_READ)
            for name, action in (("vexp2", "power of two"), ("vtanh", "tangent"))
        ),
        # Masks lie in r16 .. r31.
        Operation("vge.bf16", "vge.bf16", "mv", (Operand("R", 0, 2), _X, _X), "at least", AIE2P,
            ports=(("L write m", 2),)),
        Operation("vlt.32", "vlt.32", "mv", (Operand("R", 0, 2), _X, _X, Operand("VADD", 0)),
            "below", AIE2P, ports=(("L write m", 2),)),
        *(
            Operation(f"vsel.{n}", f"vsel.{n}", "mv", (_X2, _X, _X, _R), "select", AIE2P,
                ports=_SCALAR)
            for n in (16, 32)
        ),
        Operation("vband", "vband", "mv", (_X2, _X, _X), "and", AIE2P),
    )  # fmt: skip


AIE2P_FILES = (RegisterFile("VADD", {"vaddsign1": ()}, 1, 1, AIE2P),)
