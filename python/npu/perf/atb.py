"""The performance model of "Can Asymmetric Tile Buffering Be Beneficial?" as code: equations 1 to
15 with the paper's symbols.

An output tile C[m, n] is kept whole in a core while A comes in rho parts of m_A = m / rho rows, so
that A needs 1 / rho of the memory and a larger m n fits: more operations per byte (AI), for rho
switches of the microkernel per tile instead of one. Equations whose numbers the text states without
their formula are written so that its examples and tables come out; npu.perf.published_atb compares
all of them. The time of a whole run, with what the paper's bounds leave out, is
npu.perf.atb_simulation's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

PEAK_MACS = 512  # of BFP16 per cycle and core, section 2.4
VMAC = 8 * 8 * 8  # multiplications of one VMAC
LINE_BYTES = 64  # of a vector load
CLUSTER = 2  # accumulation chains along m and along n that share their operands (figure 5)
AI_BYTES = {"bfloat16": 2.0, "bfp16": 1.25}  # of equations 1 and 2
L1_BYTES = {"bfloat16": 2.0, "bfp16": 9 / 8}  # the buffer columns of table 2: 8 values in 9 bytes


@dataclasses.dataclass(frozen=True)
class Constant:
    """A constant of the model; fields as `npu validate-model --constants` prints them."""

    name: str
    value: float
    unit: str
    grade: str
    source: str
    fitted_on: str


_T1 = "atb.t1"
CONSTANTS = (
    Constant("atb_overhead", 14.8, "cycle", "fitted",
             "mk_ovh: prolog and epilog of a 2 x 2 cluster of chains that no VMAC hides", _T1),
    Constant("atb_interval", 1.12, "cycle", "fitted",
             "mk_ii: initiation interval of BFP16 VMACs in the steady state", _T1),
    Constant("atb_unaligned", 0.3, "cycle", "fitted",
             "added to mk_ii where rows of BFP16 tiles are no whole lines of memory", _T1),
    Constant("atb_switch", 84, "cycle", "fitted",
             "sw: switching to the microkernel of the next part of A", _T1),
    Constant("atb_call", 138, "cycle", "fitted",
             "c_call: a tile's share of the calls that do not depend on rho", _T1),
    Constant("atb_sums", 18.8, "cycle", "fitted",
             "per cluster, loading and rounding of sums that are kept in BFP16",
             "atb.t2.c2.a.core atb.t2.c2.b.core"),
    Constant("atb_run", 281, "B", "fitted",
             "contiguous bytes of a bfloat16 A that are read at a time; the paper does not say how "
             "A lies in memory", "atb.t2.c1.a.tflops atb.t2.c1.b.tflops atb.t3"),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Precision:
    """Element types of A, of B, of the sums in L1 and of C in memory ("bfloat16", "bfp16")."""

    a: str
    b: str
    sums: str
    c: str

    @property
    def converts(self) -> bool:
        """Whether cores convert A, into a third buffer."""
        return self.a != "bfp16"


# Section 6.1. Table 2 counts the C of configuration 3 as BFP16, its sums as bfloat16.
CONFIGURATIONS = {
    1: Precision("bfloat16", "bfp16", "bfloat16", "bfloat16"),
    2: Precision("bfp16", "bfp16", "bfp16", "bfp16"),
    3: Precision("bfp16", "bfp16", "bfloat16", "bfp16"),
}


@dataclasses.dataclass(frozen=True)
class Tile:
    """C[m, n] of a core, k deep, A in ``rho`` parts of ``m_A`` rows."""

    m: int
    k: int
    n: int
    rho: int = 1

    @property
    def m_A(self) -> int:
        return self.m // self.rho

    @property
    def symmetric(self) -> Tile:
        return dataclasses.replace(self, rho=1)


# Section 3: operations per byte, and what fits


def AI(m: float, n: float, K: int, precision: Precision) -> float:
    """Equation 1: operations per byte of an m x n tile whose A and B are read once over all of K
    and whose C is written once; k and rho only decide what fits."""
    s_A, s_B, s_C = (AI_BYTES[dtype] for dtype in (precision.a, precision.b, precision.c))
    return 2 / (s_A / n + s_B / m + s_C / K)


def AI_array(tile: Tile, K: int, precision: Precision, rows: int = 4, columns: int = 8) -> float:
    """Equation 2: the same of what all cores compute together, A shared by a row and B by a
    column."""
    return AI(rows * tile.m, columns * tile.n, K, precision)


def L1_bytes(tile: Tile, precision: Precision, c_buffers: int = 1, convert: bool = True) -> float:
    """Left side of equation 3: two parts of A, two tiles of B and C in a core.

    With a bfloat16 A there is a part in BFP16, too (``convert``: not in other people's kernels);
    sums wider than C have an eighth of a byte more per value (table 2, configuration 3).
    """
    a, b, c = (L1_BYTES[dtype] for dtype in (precision.a, precision.b, precision.c))
    part = 2 * a + (L1_BYTES["bfp16"] if precision.converts and convert else 0)
    sums = c if precision.sums == precision.c else L1_BYTES[precision.sums] + 1 / 8
    return part * tile.m_A * tile.k + 2 * b * tile.k * tile.n + c_buffers * sums * tile.m * tile.n


# Section 4: cycles of a microkernel, from its instructions


def eff(vmacs: float, cycles: float) -> float:
    """Equation 4: issued VMACs per cycle."""
    return vmacs / cycles


def L_prolog(latencies: Sequence[float], counts: Sequence[int], slots: int = 2) -> float:
    """Equation 5: cycles until all operands of the first VMAC are there; ``counts`` loads of each
    latency, the longest issued first, on so many load slots."""
    order = sorted(zip(latencies, counts, strict=True), reverse=True)
    issued, ready = 0, 0.0
    for latency, count in order:
        issued += count
        ready = max(ready, math.ceil(issued / slots) + latency)
    return ready


def II(distance: float, loads: float, chains: int = 1, slots: int = 2) -> float:
    """Equations 6 (one chain) and 7: cycles between VMACs, bound by the chain's own accumulator
    (``distance``: cycles until a VMAC may follow another one of its chain), by the loads per VMAC,
    and by one issue per cycle."""
    return max(1.0, distance / chains, loads / slots)


def L_steady(interval: float, chains: int, updates: int) -> float:
    """Equation 8: ``updates`` VMACs of each chain."""
    return interval * chains * updates


def L_epilog(chains: int, to_store: float, store: float, stores: int = 2) -> float:
    """Equation 9: from the last VMAC until the accumulators are written, each with ``stores``
    instructions; ``to_store``: from a VMAC to its first store, ``store``: latency of the last."""
    return to_store + chains * stores + store


def L_sequential(clusters: int, prolog: float, steady: float, epilog: float) -> float:
    """Equation 10: clusters of chains one after the other."""
    return clusters * (prolog + steady + epilog)


def L_overlapped(clusters: int, prolog: float, steady: float, epilog: float) -> float:
    """Equation 11: each cluster's prolog hidden behind the epilog of the one before."""
    return prolog + clusters * steady + epilog


# Section 5: from the microkernel to the array


def vmacs_per_cluster(k: int) -> float:
    """VMACs of a cluster in one microkernel: its chains times k / 8."""
    return CLUSTER * CLUSTER * k / 8


def eff_mk(k: int, constants: Mapping[str, float]) -> float:
    """Equation 13: grows with the length of the chains, towards 1 / mk_ii.

    Beyond it: section 4.3's extra instructions for unaligned BFP16, where a row of tiles (72 bytes
    per 8 of k) is no multiple of a line, that is, k none of 64.
    """
    v = vmacs_per_cluster(k)
    interval = constants["atb_interval"]
    if 8 * k * L1_BYTES["bfp16"] % LINE_BYTES:
        interval += constants["atb_unaligned"]
    return v / (constants["atb_overhead"] + interval * v)


def L_tile(tile: Tile, precision: Precision, constants: Mapping[str, float]) -> float:
    """Equation 14: cycles of C[m, n] += A[m, k] B[k, n] in a core, with rho switches.

    Beyond the paper's two terms: calls, the conversion of a bfloat16 A (its load, at the width of a
    vector load: ``l1_port_npu2``), and rounding where sums are BFP16.
    """
    ideal = tile.m * tile.k * tile.n / PEAK_MACS
    cycles = ideal / eff_mk(tile.k, constants) + tile.rho * constants["atb_switch"]
    cycles += constants["atb_call"]
    if precision.converts:
        cycles += tile.m * tile.k * L1_BYTES[precision.a] / constants["l1_port_npu2"]
    if precision.sums == "bfp16":
        clusters = tile.m * tile.n / (CLUSTER * 8) ** 2
        cycles += clusters * constants["atb_sums"]
    return cycles


def eff_core(tile: Tile, precision: Precision, constants: Mapping[str, float]) -> float:
    """Equation 15: the share of the core's peak that is left."""
    return tile.m * tile.k * tile.n / PEAK_MACS / L_tile(tile, precision, constants)


def Perf(ai: float, BW: float, cores: int, core_flops: float, efficiency: float) -> float:
    """Equation 12: operations per second, bound by memory (BW: bytes per second) or by the cores
    (``core_flops``: peak of one)."""
    return min(ai * BW, cores * core_flops * efficiency)
