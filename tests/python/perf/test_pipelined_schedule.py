"""The cost of pipelined kernels (docs/timing.md) rests on a schedule: one multiplication per cycle,
with everything else in free slots, and a wait per 2x2 cluster of C blocks where five accumulator
registers are too few. This builds that schedule for every k the kernels are unrolled for, from the
instruction latencies of AIE2P, checks it cycle by cycle, and asserts that the method charges its
length and one call.

Latencies: vector load 7, load with UPS 9, multiply-accumulate 6 with its accumulator read in the
4th cycle, so 3 between dependent ones; a store with SRS reads its accumulator when it issues. Five
accumulator registers of 64 x 32 bits, twelve vector registers; two load units, of which only A
writes accumulators; one store unit. (Hello XDNA, llvm-aie's AIE2P schedule, the ATB paper.)
"""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest

from npu import _npu
from npu.designs import gemm
from npu.perf.simulate import simulate_gemm

LOAD, LOAD_UPS, MAC_READ, MAC_DONE = 7, 9, 3, 6
ACCUMULATORS, VECTORS = 5, 12
CLUSTERS = 20
DEPTHS = range(gemm.PIPELINED_K[0], gemm.PIPELINED_K[1] + 1, 8)


class Schedule:
    """Issue cycles of clusters, in the order of the kernel source, each as early as it may.

    C block number b uses accumulator b % 5 and `vectors` loads and stores.
    """

    def __init__(self, steps: int, vectors: int) -> None:
        self.steps, self.vectors = steps, vectors
        self.taken: set[tuple[str, int]] = set()  # (unit, cycle)
        self.macs: dict[int, list[int]] = {}  # block -> issue cycles
        self.loads: dict[int, list[int]] = {}
        self.stores: dict[int, list[int]] = {}
        self.operands: list[tuple[int, int]] = []  # loaded, last used
        self.starts = []
        now = 100
        for cluster in range(CLUSTERS):
            self.starts.append(now)
            for step in range(steps):
                issued = []
                for block in range(4 * cluster, 4 * cluster + 4):
                    now = self._multiply(block, step, now)
                    issued.append(now)
                    now += 1
                self._load_operands(issued)

    @property
    def period(self) -> float:
        """Cycles per cluster in steady state."""
        return (self.starts[-1] - self.starts[5]) / (CLUSTERS - 6)

    def _issue(self, unit: str, earliest: int, step: int = 1) -> int:
        at = earliest
        while (unit, at) in self.taken:
            at += step
        self.taken.add((unit, at))
        return at

    def _multiply(self, block: int, step: int, now: int) -> int:
        if step == 0:
            freed = self.stores.get(block - ACCUMULATORS, [0] * self.vectors)
            self.loads[block] = [
                self._issue("load A", max(store + 1 - LOAD_UPS, 0)) for store in freed
            ]
            now = max(now, max(self.loads[block]) + LOAD_UPS - MAC_READ)
            self.macs[block] = []
        else:
            now = max(now, self.macs[block][-1] + MAC_DONE - MAC_READ)
        self.macs[block].append(now)
        if step == self.steps - 1:
            self.stores[block] = []
            for _ in range(self.vectors):
                self.stores[block].append(self._issue("store", now + MAC_DONE))
        return now

    def _load_operands(self, issued: list[int]) -> None:
        """A0, B0, B1, A1: c00, c01, c10, c11 use A0 B0, A0 B1, A1 B0, A1 B1."""
        for first, last in ((0, 1), (0, 2), (1, 3), (2, 3)):
            at = self._issue("load B", issued[first] - LOAD, -1)
            self.operands.append((at + LOAD, issued[last]))


def overlap(spans: list[tuple[int, int]]) -> int:
    """The most spans that share a cycle."""
    count: Counter[int] = Counter()
    for start, end in spans:
        count.update(range(start, end + 1))
    return max(count.values())


def check(s: Schedule) -> None:
    """Everything the hardware asks of the schedule, stated without the way it was built."""
    macs = [at for block in s.macs.values() for at in block]
    assert len(set(macs)) == len(macs), "two multiplications in a cycle"
    for unit in ("loads", "stores"):
        issued = [at for block in getattr(s, unit).values() for at in block]
        assert len(set(issued)) == len(issued), f"two C {unit} in a cycle"
    for block, times in s.macs.items():
        assert all(b - a >= MAC_DONE - MAC_READ for a, b in itertools.pairwise(times))
        assert max(s.loads[block]) + LOAD_UPS <= times[0] + MAC_READ, "multiplied before loaded"
        assert min(s.stores[block]) >= times[-1] + MAC_DONE, "stored before multiplied"
        for old, new in zip(s.stores.get(block - ACCUMULATORS, []), s.loads[block], strict=False):
            assert new + LOAD_UPS > old, "an accumulator is overwritten before it is stored"
    assert overlap(s.operands) <= VECTORS


@pytest.mark.parametrize("k", DEPTHS)
@pytest.mark.parametrize(("vectors", "wait"), [(1, 0), (2, 2), (4, 8)])
def test_a_schedule_exists(k: int, vectors: int, wait: int) -> None:
    """int8, int16 and int32 C blocks of 64 elements."""
    s = Schedule(k // 8, vectors)
    check(s)
    assert s.period == 4 * k // 8 + wait


def test_fewer_registers_would_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check means something: with four accumulators even int8 loses cycles."""
    monkeypatch.setattr("test_pipelined_schedule.ACCUMULATORS", 3)
    assert Schedule(4, 1).period > 16


@pytest.mark.parametrize(("out", "vectors"), [("int8", 1), ("int16", 2), ("int32", 4)])
@pytest.mark.parametrize("k", [16, 24, 64])
@pytest.mark.parametrize("method", ["emulator", "closed-form"])
def test_the_model_charges_the_schedule(out: str, vectors: int, k: int, method: str) -> None:
    """Its length for every cluster, and a call; both load units and the store unit keep up."""
    m, n = 64, 64
    values = {c["name"]: c["value"] for c in _npu.perf.constants()}
    loads, stores = 4 * k // 8 + 4 * vectors, 4 * vectors
    period = max(Schedule(k // 8, vectors).period, loads / 2, stores)
    cycles = m * n // 256 * period + values["kernel_call"]
    r = simulate_gemm("npu2", 256, k, 512, dtype_out=out, tile=(m, k, n), k_mt=k,
                      kernel="pipelined", model=method)  # fmt: skip
    assert r.macs_per_cycle == pytest.approx(m * k * n / cycles)


def test_bfp16_costs() -> None:
    """1.16 cycles per cycle of the schedule, a call; the conversions of A and of B apart."""
    m, k, n = 64, 32, 64
    kwargs = {"dtype_in": "bfloat16", "dtype_out": "bfloat16", "tile": (m, k, n), "k_mt": k}
    r = simulate_gemm("npu2", 256, k, 512, kernel="pipelined", **kwargs)
    product = m * n // 256 * Schedule(k // 8, 2).period * 1.16 + 218
    assert r.macs_per_cycle == pytest.approx(m * k * n / product)
    conversions = [m * k * (2 + 9 / 8) / 64 + 218, n * k * (2 + 9 / 8) / 64 + 218]
    closed = simulate_gemm("npu2", 256, k, 512, kernel="pipelined", model="closed-form", **kwargs)
    assert closed.details["convert_cycles"] == pytest.approx(math.fsum(conversions))
    # The busiest core works that long, and on zeroing its tile with the round's cost.
    values = {c["name"]: c["value"] for c in _npu.perf.constants()}
    zero = m * n * 2 / 64 + values["round"] * 1800
    core = max(v for name, v in r.agents.items() if "core" in name and "MM2S" not in name
               and "S2MM" not in name)  # fmt: skip
    assert core == pytest.approx(product + sum(conversions) + zero, abs=12 * 2)
