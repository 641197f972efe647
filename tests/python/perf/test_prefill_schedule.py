"""The multiplication loop of prompts on npu2 (aie_kernels/prefill_product_multiply.h) is charged
with 19 cycles per 2x2 cluster of C blocks. This states a schedule of that length, a modulo schedule
whose blocks begin at different cycles, and asserts cycle by cycle that units and registers of AIE2P
allow it, and that no schedule with an accumulator per block is shorter. That kernels are charged
with it tests/cpp/kernels/test_prefill_cycles.cpp asserts.

Latencies: vector load 7, load with UPS 9, multiply-accumulate 6 with its accumulator read in the
4th cycle, so 3 between dependent ones; a store with SRS reads its accumulator when it issues. Five
accumulator registers of 64 x 32 bits, twelve vector registers; two load units, of which only A
writes accumulators; one store unit. (Hello XDNA, llvm-aie's AIE2P schedule, the ATB paper.) C
blocks are 64 sums of fp32, four vectors; k has four steps. No compiler has made this schedule.
"""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

LOAD, LOAD_UPS, MAC_READ, MAC_DONE = 7, 9, 3, 6
ACCUMULATORS, VECTORS = 5, 12
PERIOD, BLOCKS, STEPS, C_VECTORS = 19, 4, 4, 4
SPACING = MAC_DONE - MAC_READ  # of multiplications into one accumulator
STARTS = (0, 4, 8, 12)  # of c00, c01, c10, c11: their first multiplications
ROUNDS = 6  # that are looked at


def macs(block: int) -> list[int]:
    return [STARTS[block] + SPACING * step for step in range(STEPS)]


def loads(block: int) -> list[int]:
    """Of C's vectors, issue cycles: the last is there when the first multiplication reads it."""
    last = STARTS[block] + MAC_READ - LOAD_UPS
    return [last - i for i in range(C_VECTORS)]


def stores(block: int) -> list[int]:
    return [macs(block)[-1] + MAC_DONE + i for i in range(C_VECTORS)]


def slots(issued: list[int]) -> Counter[int]:
    """Operations of a unit by the cycle of the loop in which they issue."""
    return Counter(at % PERIOD for at in issued)


def operands() -> list[tuple[int, int]]:
    """(first use, last use) of the A and B blocks of every step: c00 and c01 share A0, c10 and c11
    A1, c00 and c10 B0, c01 and c11 B1."""
    pairs = ((0, 1), (2, 3), (0, 2), (1, 3))
    return [
        (min(macs(i)[step], macs(j)[step]), max(macs(i)[step], macs(j)[step]))
        for i, j in pairs
        for step in range(STEPS)
    ]


def operand_loads() -> list[int]:
    """Issue cycles on load unit B, each the latest free one that is early enough."""
    taken: set[int] = set()
    found = []
    for first, _ in sorted(operands()):
        at = first - LOAD
        while at % PERIOD in taken:
            at -= 1
        taken.add(at % PERIOD)
        found.append(at)
    return found


def test_units_have_one_operation_per_cycle() -> None:
    for unit in (macs, loads, stores):
        issued = [at for block in range(BLOCKS) for at in unit(block)]
        assert max(slots(issued).values()) == 1, unit.__name__
        assert len(issued) == 16
    assert max(slots(operand_loads()).values()) == 1


def test_results_are_there_before_they_are_read() -> None:
    for block in range(BLOCKS):
        assert max(loads(block)) + LOAD_UPS <= macs(block)[0] + MAC_READ
        assert all(b - a >= SPACING for a, b in itertools.pairwise(macs(block)))
        assert min(stores(block)) >= macs(block)[-1] + MAC_DONE
    for (first, _), at in zip(sorted(operands()), operand_loads(), strict=True):
        assert at + LOAD <= first


def test_registers_are_enough() -> None:
    """An accumulator per block: the next cluster's sums come when this one's have been stored."""
    assert BLOCKS <= ACCUMULATORS
    for block in range(BLOCKS):
        assert min(loads(block)) + LOAD_UPS + PERIOD > max(stores(block))
    live: Counter[int] = Counter()
    for (_, last), at in zip(sorted(operands()), operand_loads(), strict=True):
        for round_ in range(ROUNDS):
            live.update(range(at + LOAD + round_ * PERIOD, last + 1 + round_ * PERIOD))
    assert max(live.values()) <= VECTORS


def test_no_schedule_with_an_accumulator_per_block_is_shorter() -> None:
    """One vector of sums arrives per cycle, the last when the first multiplication reads it; from
    the first one's arrival to the last one's store the accumulator is taken."""
    first = MAC_READ - (C_VECTORS - 1)
    last = SPACING * (STEPS - 1) + MAC_DONE + C_VECTORS - 1
    assert last - first + 1 == PERIOD


@pytest.mark.parametrize("starts", [(0, 3, 8, 12), (0, 4, 8, 11)])
def test_other_starts_collide(monkeypatch: pytest.MonkeyPatch, starts: tuple[int, ...]) -> None:
    """The checks mean something."""
    monkeypatch.setattr("test_prefill_schedule.STARTS", starts)
    with pytest.raises(AssertionError):
        test_units_have_one_operation_per_cycle()
