"""gelu(gate) * up on XDNA1 (aie_kernels/gelu.h), which has neither 2^x nor tanh:

    v = c gate (1 + 0.044715 gate^2),  gelu = gate min(1, 2^v) / (1 + 2^-|v|)

2^-|v| is a polynomial of the fraction times 2^n, the quotient a polynomial of it. A turn is 16
elements. -|v| is v of -|gate|; it is limited to -127.25 where the C++ kernel has -127, both of
which give 2^n = 0.

2^n as bf16 needs no shift: added to 1.5 * 2^16, n + 127 is in bits 7 to 14.
"""

from __future__ import annotations

import numpy as np

from npu.vliw import narrow_chains
from npu.vliw.dataflow import Access, Region, Stream
from npu.vliw.float_products import bits, constant_parts
from npu.vliw.machine import Machine
from npu.vliw.narrow_chains import ONE, ZERO, Chains, Number, coefficients
from npu.vliw.vector_dataflow import Dataflow
from npu.vliw.vector_operations import SHUFFLES

_STEP = 32  # bytes of a turn
# As in gelu.h, coefficients of 1, x, x^2 ...
_SLOPE = np.float32(0.797884561) * np.float32(2.88539008)
_CUBE = _SLOPE * np.float32(0.044715)
_EXP2 = tuple(np.float32(c) for c in (1, 0.693282927, 0.242210962, 0.0550089314))
_INVERSE = tuple(
    np.float32(c) for c in (1, -0.997308188, 0.959154799, -0.783540454, 0.430776906, -0.109112594)
)
_LIMIT_BITS = 0xC2FE8000 - (1 << 32)  # -127.25; the lower half is the sign of bf16
_MAGIC = np.float32(12583039)  # 1.5 * 2^23 + 127: a sum with it is a whole number
_EXPONENT = np.float32(1.5 * 2**16 + 127)  # its lower half is 1 in bf16

_CUBE_PARTS, _EXP2_PARTS, _INVERSE_PARTS = (
    ("r4", "r5", "r6"), ("r7", "r8", "r9"), ("r10", "r11", "r12"),
)  # fmt: skip
_FACTOR, _LIMIT, _WHOLE, _LOWER = "r13", "r14", "r15", "r3"
_EXP2_REST = ("r24", "r25", ZERO)  # falling; the last is 1
_INVERSE_REST = ("r26", "r27", "r28", "r29", ZERO)

# The shortest interval with registers for all values that a longer search found, and its order.
_FOUND = (124, 1)


def regions(machine: Machine, elements: int) -> list[Region]:
    """The loop over so many elements."""
    bases = [_STEP * turn for turn in range(2 * elements // _STEP)]
    # Uses of the gate are too far apart for a register: it is loaded for each.
    arrays = {name: "p0" for name in ("square", "cube", "sign", "gate")} | {"up": "p1", "y": "p2"}
    flow = Dataflow(machine)
    _turn(flow)
    interval, start = _FOUND
    return [
        flow.region(
            "elements", [Stream(name, array, bases) for name, array in arrays.items()],
            narrow_chains.CONSTANTS | _numbers(), preamble=narrow_chains.PREAMBLE,
            reserved=narrow_chains.RESERVED, pools=narrow_chains.POOLS, interval=interval,
            start=start,
        )
    ]  # fmt: skip


def _numbers() -> dict[str, int]:
    found = {ONE: bits(_EXPONENT), _LOWER: SHUFFLES["T16_32x2_lo"]}
    found |= {_FACTOR: bits(_SLOPE), _LIMIT: _LIMIT_BITS, _WHOLE: bits(_MAGIC)}
    found |= dict(zip(_CUBE_PARTS, constant_parts(_CUBE), strict=True))
    found |= coefficients(_EXP2_PARTS, _EXP2_REST, _EXP2)
    return found | coefficients(_INVERSE_PARTS, _INVERSE_REST, _INVERSE)


def _turn(flow: Dataflow) -> None:
    chains = Chains(flow)
    fraction, scale = _split_exponent(flow, chains, _exponent(flow, chains))
    of_fraction = chains.polynomial(
        chains.number(fraction), chains.everywhere(_EXP2_PARTS), _EXP2_REST
    )
    power = chains.number(chains.product(chains.number(of_fraction), chains.lanes(scale)))
    inverse = chains.polynomial(power, chains.everywhere(_INVERSE_PARTS), _INVERSE_REST)
    h = chains.product(_side(flow, chains, power), chains.number(inverse))
    gelu = chains.product(chains.number(h), chains.lanes(chains.narrow("gate", "gate")))
    result = chains.product(chains.number(gelu), chains.lanes(chains.narrow("up", "up")))
    flow.store(("vst.conv.bf16.fp32",), result, Access("y", 0), "y")


def _exponent(flow: Dataflow, chains: Chains) -> str:
    """-|v|."""
    gate = chains.lanes(chains.narrow("square", "gate"))
    square = chains.number(chains.product(gate, gate), count=2)
    slope = chains.product(square, chains.everywhere(_CUBE_PARTS), chains.constant(_FACTOR))
    sign = chains.broadcast(_LIMIT)
    negative = flow.op("vbor", "X", chains.narrow("cube", "gate"), sign)
    return chains.product(chains.number(slope), chains.lanes(negative))


def _split_exponent(flow: Dataflow, chains: Chains, v: str) -> tuple[str, str]:
    """Its fraction, and 2^n as bf16."""
    lanes, limit = flow.op("vmov.x", "X", v), flow.op("vbcst.32", "X", _LIMIT)
    mask = flow.op("vlt.32", "R", limit, lanes)  # of negative numbers the larger is less
    limited = flow.op("vmov", "BM", flow.op("vsel.32", "X", lanes, limit, mask))
    magic, exponent = chains.constant(_WHOLE), chains.constant(ONE)
    configuration = narrow_chains.CONFIGURATION
    shifted = flow.op("vadd.f", "BM", limited, magic, configuration)
    whole = flow.op("vsub.f", "BM", shifted, chains.constant(_WHOLE), configuration)
    fraction = flow.op("vsub.f", "BM", limited, whole, configuration)
    scale = flow.op("vmov.x", "X", flow.op("vadd.f", "BM", whole, exponent, configuration))
    return fraction, flow.op("vshuffle", "X", scale, scale, _LOWER)


def _side(flow: Dataflow, chains: Chains, power: Number) -> Number:
    """The power where the gate is negative, else 1."""
    mask = flow.op("vlt.16", "R", chains.narrow("sign", "gate"), chains.broadcast(ZERO))
    power.forget()

    def part(number: int) -> str:
        other = chains.broadcast(ZERO) if number else narrow_chains.ONES
        return flow.op("vsel.16", "X", other, power.part(number), mask)

    return Number(part, 3)
