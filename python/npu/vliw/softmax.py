"""Softmax of a block of eight rows on XDNA2, the part of attention between its two products
(aie_kernels/softmax.h, the first chunk of keys that rows see all of): scores [position][8 rows] in
fp32 become weights 2^(scale s - m) in bf16, as tiles of 8 rows x 8 positions, with each row's
maximum m, rounded up to a whole number, and the sum of its weights.

The first loop scales 32 scores per turn and keeps the largest of each lane. There is no maximum of
fp32 lanes: the sign of a difference chooses. That is a chain from turn to turn. Then four lanes per
row are compared and rounded up; the second loop takes 64 scores per turn, as a tile has; at the end
four sums per row are added. Scores are smaller than 2^23.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from npu.errors import ShapeError
from npu.vliw import narrow_softmax
from npu.vliw.dataflow import Access, Region, Stream
from npu.vliw.float_products import CONSTANTS, MINUS_ONE, Floats, bits, cleared, constant_parts
from npu.vliw.machine import Machine
from npu.vliw.vector_dataflow import Dataflow
from npu.vliw.vector_operations import SHUFFLES

ROWS, POSITIONS, CHUNKS = 8, 16, (1, 2, 4)  # positions of a block; blocks of a chunk of keys
SCORES = POSITIONS * ROWS * 4  # bytes
WEIGHTS, STATISTICS = POSITIONS * ROWS * 2, 2 * ROWS * 4
SCALE = np.float32(math.log2(math.e) / 16)  # of heads with 256 elements
NOTHING = np.float32(-3.40282347e38)  # the maximum of no scores
_WHOLE = np.float32(2.0**23)  # what is as large is a whole number

_SCALE = ("x1", "x2", "x3")  # its parts
_LARGEST, _LARGEST_SUM = ("x4", "x5"), "dm4"  # of 32 lanes, in both files
_ZERO = "x6"
_TOP, _TOTAL = "dm3", "dm4"  # the maxima, the sums
_MASKS = ("r24", "r25")
_HALF = "r6"  # bytes of half a vector
_NUMBERS = ("r1", "r2", "r3", "r4", "r5", "r8")
_MAGIC = ("r9", "r10", "r11")  # 2^23, -2^23, 1
_TURNED = {"r12": "T16_16x4_lo", "r13": "T16_16x4_hi", "r14": "T16_32x2_lo", "r15": "T16_32x2_hi"}
_ALONE = 128  # cycles of code without a loop, longer than any of its values lives

# The shortest interval with registers for all values that a longer search found, and its order.
_SCALING, _WEIGHING = (13, 5), (8, 0)


def regions(machine: Machine, blocks: int) -> list[Region]:
    """A chunk of ``blocks`` blocks of positions."""
    if type(blocks) is not int or blocks not in CHUNKS:
        raise ShapeError(
            f"[softmax] blocks is {blocks!r}: give 1, 2 or 4 times {POSITIONS} positions, the "
            "chunks of heads with 256, 128 and 64 elements"
        )
    if machine.generation == "npu1":
        return narrow_softmax.regions(machine, POSITIONS * blocks, SCALE, NOTHING)
    return [
        _scaling(machine, blocks), _maxima(machine, blocks), _weighing(machine, blocks),
        _sums(machine, blocks),
    ]  # fmt: skip


def seen(out: np.ndarray, blocks: int) -> np.ndarray:
    """What attention makes of weights and sums where values are an identity, as bytes: rows of
    weights divided by their sums."""
    count = blocks * WEIGHTS
    weights = out[:count].view(ml_dtypes.bfloat16).reshape(-1, ROWS, 8).transpose(1, 0, 2)
    sums = out[count + STATISTICS // 2 : count + STATISTICS].view(np.float32)
    shares = weights.reshape(ROWS, -1).astype(np.float32) * (np.float32(1) / sums)[:, None]
    return shares.astype(ml_dtypes.bfloat16).view(np.uint8).reshape(-1)


def _less(flow: Dataflow, a: str, b: str, pairs: list[tuple[str, str]], into: list[str]) -> None:
    """The larger lanes of pairs of vectors, whose accumulators are a and b: the second one's where
    a - b is negative."""
    difference = flow.op("vsub.f", "DM", a, b, "r0")
    for part, ((one, other), result) in enumerate(zip(pairs, into, strict=True)):
        sign, mask = flow.op("vmov.x", "X", f"{difference}:{part}"), flow.value("R", _MASKS[part])
        flow.into("vlt.32", mask, sign, _ZERO, "vaddsign1")
        flow.into("vsel.32", result, one, other, mask)


def _scaling(machine: Machine, blocks: int) -> Region:
    flow = Dataflow(machine, "scaling")
    floats = Floats(flow)
    scale = [flow.value("X", register) for register in _SCALE]
    largest = [flow.value("X", register) for register in _LARGEST]
    summed = flow.value("DM", _LARGEST_SUM)
    scaled = floats.multiplied(floats.parts(floats.loaded("scores", 0, "scores")), scale)
    for part in range(2):
        flow.store(("vst.bm",), f"{scaled}:{part}", Access("scaled", 64 * part), "scores")
    lanes = [flow.op("vmov.x", "X", f"{scaled}:{part}") for part in range(2)]
    _less(flow, summed, scaled, list(zip(largest, lanes, strict=True)), largest)
    for part in range(2):
        flow.into("vmov", f"{summed}:{part}", largest[part])
    numbers = [*constant_parts(SCALE), 0, bits(NOTHING)]
    constants = CONSTANTS | dict(zip(_NUMBERS, numbers, strict=False)) | {_HALF: 32}
    constants |= dict(zip(_MAGIC, (bits(_WHOLE), bits(-_WHOLE), bits(np.float32(1))), strict=True))
    constants |= {register: SHUFFLES[name] for register, name in _TURNED.items()}
    broadcast = zip((*_SCALE, _ZERO, *_LARGEST), (*_NUMBERS[:5], _NUMBERS[4]), strict=True)
    preamble: list[tuple[str, tuple[str, ...]]] = [
        ("vbcst.16" if register in _SCALE else "vbcst.32", (register, number))
        for register, number in broadcast
    ]
    preamble += cleared()
    preamble += [("vmov", (f"bml{half}4", x)) for half, x in zip("lh", _LARGEST, strict=True)]
    interval, start = _SCALING
    bases = [128 * turn for turn in range(blocks * SCORES // 128)]
    return Region(
        "scaling", tuple(flow.nodes), flow.values,
        {name: Stream(name, "p0", bases) for name in ("scores", "scaled")}, constants,
        preamble=tuple(preamble), pinned=flow.pinned, partial=frozenset(flow.partial), lanes=True,
        reserved=Floats.RESERVED | {_ZERO}, interval=interval, start=start,
    )  # fmt: skip


def _maxima(machine: Machine, blocks: int) -> Region:
    """Once: the largest of each row, rounded up, twice in a vector, and so in the accumulator."""
    flow = Dataflow(machine, "maxima")
    floats = Floats(flow)
    x, y = (flow.value("X", register) for register in _LARGEST)
    half, best = flow.value("X"), flow.value("X")
    _less(flow, flow.value("DM", _LARGEST_SUM), _accumulated(flow, y), [(x, y)], [half])
    other = flow.op("vshift", "X", half, half, _HALF)
    _less(flow, _accumulated(flow, half), _accumulated(flow, other), [(half, other)], [best])

    magic, mask, whole = flow.value("X"), flow.value("R", _MASKS[0]), flow.value("X")
    flow.into("vlt.32", mask, best, _ZERO, "vaddsign1")
    above, below = (flow.op("vbcst.32", "X", register) for register in _MAGIC[:2])
    flow.into("vsel.32", magic, above, below, mask)
    sums = [_accumulated(flow, vector) for vector in (best, magic)]
    nearest = flow.op("vsub.f", "DM", floats.add(*sums), _accumulated(flow, magic), "r0")
    up = floats.add(nearest, _accumulated(flow, flow.op("vbcst.32", "X", _MAGIC[2])))
    near, over = (flow.op("vmov.x", "X", f"{value}:0") for value in (nearest, up))
    _less(flow, nearest, _accumulated(flow, best), [(near, over)], [whole])

    top = flow.value("DM", _TOP, partial=True)
    for part in range(2):
        flow.into("vmov", f"{top}:{part}", whole)
    flow.store(("vst.w",), f"{whole}:0", Access("p1", 0), "out")
    return Region(
        "maxima", tuple(flow.nodes), flow.values,
        {"p1": Stream("p1", "p1", [blocks * WEIGHTS])}, {}, pinned=flow.pinned,
        partial=frozenset(flow.partial), lanes=True, reserved=Floats.RESERVED | {_ZERO},
        interval=_ALONE,
    )  # fmt: skip


def _accumulated(flow: Dataflow, vector: str) -> str:
    """16 lanes in an accumulator."""
    found = flow.value("DM", partial=True)
    flow.into("vmov", f"{found}:0", vector)
    return found


def _weighing(machine: Machine, blocks: int) -> Region:
    """A tile per turn."""
    flow = Dataflow(machine, "weighing")
    floats = Floats(flow)
    top, total = flow.value("DM", _TOP, partial=True), flow.value("DM", _TOTAL)
    powers = []
    for part in range(2):
        moved = flow.op("vsub.f", "DM", floats.loaded("p0", 128 * part, "scores"), top, "r0")
        powers.append(flow.value("X"))
        for half in range(2):
            flow.into("vexp2", f"{powers[-1]}:{half}", f"{moved}:{half}")
    for power in powers:
        flow.into("vmsc.f.x", total, total, power, MINUS_ONE, "r0")
    modes = list(_TURNED)
    pairs = [flow.op("vshuffle", "X", *powers, mode) for mode in modes[:2]]
    for part, mode in enumerate(modes[2:]):
        rows = flow.op("vshuffle", "X", *pairs, mode)
        flow.store(("vst.x",), rows, Access("p1", 64 * part), "out")
    interval, start = _WEIGHING
    tiles = blocks * WEIGHTS // 128
    return Region(
        "weighing", tuple(flow.nodes), flow.values,
        {
            "p0": Stream("p0", "p0", [256 * tile for tile in range(tiles)]),
            "p1": Stream("p1", "p1", [128 * tile for tile in range(tiles)]),
        },
        {}, preamble=(("vclr", (_TOTAL,)),), pinned=flow.pinned, partial=frozenset(flow.partial),
        lanes=True, reserved=Floats.RESERVED, interval=interval, start=start,
    )  # fmt: skip


def _sums(machine: Machine, blocks: int) -> Region:
    """Once: four sums of each row."""
    flow = Dataflow(machine, "sums")
    floats = Floats(flow)
    total = flow.value("DM", _TOTAL)
    other = flow.op("vmov.x", "X", f"{total}:1")
    total = floats.add(total, _accumulated(flow, other))
    lanes = flow.op("vmov.x", "X", f"{total}:0")
    other = flow.op("vshift", "X", lanes, lanes, _HALF)
    total = floats.add(total, _accumulated(flow, other))
    result = flow.op("vmov.x", "X", f"{total}:0")
    flow.store(("vst.w",), f"{result}:0", Access("p1", 0), "out")
    return Region(
        "sums", tuple(flow.nodes), flow.values,
        {"p1": Stream("p1", "p1", [blocks * WEIGHTS + STATISTICS // 2])}, {}, pinned=flow.pinned,
        partial=frozenset(flow.partial), lanes=True, interval=_ALONE,
    )  # fmt: skip
