"""What products of Q4NX blocks with a vector need before their loop (`start` of
aie_kernels/gemv_q4nx.h, XDNA2): X, the sum of the 32 elements of each group of x, and -128 X, in
memory as 16 lanes of fp32 each, behind y, which goes into its register.

A turn is a block. As aie::reduce_add has it, halves are added to each other; vectors join halves of
several groups, so that every step takes half as many sums as the one before.
"""

from __future__ import annotations

from npu.vliw import gemv_rows
from npu.vliw.block_values import Numbers, Step
from npu.vliw.dataflow import Access, Region, Stream
from npu.vliw.float_products import Floats
from npu.vliw.machine import Machine
from npu.vliw.vector_dataflow import Dataflow
from npu.vliw.vector_operations import LANES, SHUFFLES

GROUP, MINUS_AT = 128, 64  # bytes of a group, before -128 X
_GROUPS, _X = 8, 64  # of a block; bytes of a group of x
BLOCK = _GROUPS * GROUP
_BF16 = {"x0": 0xBF80, "x2": 0x3F80, "x3": 0xC300}  # -1, 1, -128
_ONE, _MINUS_128 = "x2", "x3"
STEPS = ("T256_2x2", "T128_4x2", "T64_8x2", "T32_16x2")  # what they exchange
_SIDES = ("lo", "hi")
NUMBERS = (
    LANES, *range(_GROUPS), *_BF16.values(),
    *(SHUFFLES[f"{name}_{side}"] for name in STEPS for side in _SIDES),
)  # fmt: skip


def region(
    machine: Machine,
    blocks: int,
    numbers: Numbers,
    modes: dict[str, int],
    preamble: tuple[Step, ...],
    reserved: frozenset[str],
) -> Region:
    """``preamble``, ``reserved``: of the loop that follows."""
    flow = Dataflow(machine, "start")
    gemv_rows.loaded(flow)
    _sums(flow, numbers)
    steps = (
        *(("vclr", (f"dm{number}",)) for number in range(5)),
        *(("vbcst.16", (register, numbers[bits])) for register, bits in _BF16.items()),
        *preamble,
    )
    streams = (
        Stream("y", "p2", [0] * blocks),
        Stream("x", "p1", [_GROUPS * _X * b for b in range(blocks)]),
        Stream("sums", "p2", [gemv_rows.Y + BLOCK * b for b in range(blocks)]),
    )
    return flow.region(
        "start", streams, numbers.constants | modes, preamble=steps,
        reserved=reserved | _BF16.keys(), interval=gemv_rows.ALONE,
    )  # fmt: skip


def _sums(flow: Dataflow, numbers: Numbers) -> None:
    floats = Floats(flow)
    sums = [part for pair in range(_GROUPS // 2) for part in _first(flow, pair)]
    for name in STEPS:
        vectors = [flow.op("vmov.x", "X", part) for part in sums]
        pairs = list(zip(vectors[::2], vectors[1::2] or vectors, strict=True))
        halves = [
            [flow.op("vshuffle", "X", *pair, numbers.mode(f"{name}_{side}")) for pair in pairs]
            for side in _SIDES
        ]
        sums = []
        for number in range(0, len(pairs), 2):
            terms = [_joined(flow, half[number : number + 2]) for half in halves]
            total = floats.add(*terms)
            sums += [f"{total}:{part}" for part in range(min(2, len(pairs)))]
    minus = floats.scaled(_MINUS_128, floats.parts(total))
    for place, value in ((0, total), (MINUS_AT, minus)):
        vector = flow.op("vmov.x", "X", f"{value}:0")
        for group in range(_GROUPS):
            lanes = flow.op("vextbcst.32", "X", vector, numbers[group])
            flow.store(("vst.x",), lanes, Access("sums", GROUP * group + place), "y")


def _first(flow: Dataflow, pair: int) -> list[str]:
    """Of two groups, 16 sums each."""
    floats, halves = Floats(flow), []
    for half in range(2):
        halves.append(flow.value("X"))
        for part in range(2):
            place = _X * (2 * pair + part) + _X // 2 * half
            flow.load_part("x", place, "x", halves[-1], part)
    total = floats.add_product(floats.product(halves[0], _ONE), halves[1], _ONE)
    return [f"{total}:{part}" for part in range(2)]


def _joined(flow: Dataflow, vectors: list[str]) -> str:
    """One or two vectors in an accumulator."""
    found = flow.value("DM", partial=True)
    for part, vector in enumerate(vectors):
        flow.into("vmov", f"{found}:{part}", vector)
    return found
