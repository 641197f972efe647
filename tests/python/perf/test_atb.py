"""The model of "Can Asymmetric Tile Buffering Be Beneficial?" (npu.perf.atb, model="atb"): its
equations against the paper's tables and against sums written out here, the time of whole runs
against table 3 and by how it depends on sizes and memory, what is published about it and the errors
on figures that nothing was fitted to, results, errors and the command.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import npu
from npu import cli
from npu.errors import ArgumentError, DesignError, DeviceError, DtypeError, ShapeError
from npu.perf import atb, published_atb
from npu.perf.atb import CONFIGURATIONS, Tile

# Table 2, rows of the paper's own kernels: configuration, tile, rho, K, KB in L1, KB if symmetric,
# operations per byte, bound by memory at 65 GB/s in TFLOPS.
TABLE_2 = [
    (1, (64, 64, 128), 1, 4096, 54.5, 54.5, 273, 17.8),
    (1, (64, 224, 64), 4, 4480, 57.4, 111, 217, 14.1),
    (1, (128, 64, 128), 4, 4096, 60.3, 91, 410, 26.6),
    (2, (128, 64, 128), 1, 4096, 54, 54, 504, 32.8),
    (2, (256, 64, 128), 8, 4096, 58.5, 90, 728, 47.3),
    (2, (192, 128, 96), 6, 4096, 56.3, 101, 562, 36.5),
    (3, (96, 64, 128), 1, 4096, 57, 57, 418, 27.2),
    (3, (128, 64, 128), 4, 4096, 56.5, 70, 504, 32.8),
]
# Table 3: M, K, N, TFLOPS of configuration 1 with 128 x 64 x 128 in 4 parts.
TABLE_3 = [
    (1024, 2048, 2048, 19.2), (1024, 8192, 2048, 23.3), (2048, 2048, 2048, 21.8),
    (2048, 4096, 2048, 23.3), (4096, 8192, 2048, 24.6),
]  # fmt: skip
TYPES: dict[int, dict[str, Any]] = {
    1: {"dtype_in": "bfloat16", "dtype_b": "bfp16", "dtype_out": "bfloat16"},
    2: {"dtype_in": "bfp16", "dtype_b": "bfp16", "dtype_out": "bfp16"},
    3: {"dtype_in": "bfp16", "dtype_b": "bfp16", "dtype_out": "bfp16", "accumulate": "bfloat16"},
}


def simulate(
    configuration: int = 1, size: Any = (4096, 4096, 2048), **more: Any
) -> npu.SimulatedAtb:
    options = TYPES[configuration] | {"model": "atb", "machine": "strix-atb"} | more
    result = npu.simulate_gemm("npu2", *size, **options)
    assert isinstance(result, npu.SimulatedAtb)
    return result


@pytest.mark.parametrize("row", TABLE_2, ids=lambda row: f"{row[0]}-{'x'.join(map(str, row[1]))}")
def test_table_2_follows_from_the_formulas(row: tuple[Any, ...]) -> None:
    """Printed to three digits, in KiB; TFLOPS to one decimal."""
    configuration, tile, rho, K, kib, symmetric, intensity, memory = row
    found = simulate(configuration, (4096, K, 2048), tile=tile, a_parts=rho)
    assert abs(found.l1_bytes / 1024 - kib) <= 0.06
    assert abs(found.l1_bytes_symmetric / 1024 - symmetric) <= 0.51
    assert abs(found.intensity - intensity) <= 0.51
    assert abs(found.memory_bound_tops - memory) <= 0.06


def test_the_formula_of_memory_written_out() -> None:
    """Configuration 1: two parts of A in 2 bytes and one in 9/8, two tiles of B in 9/8, one of C in
    2; configuration 3: sums of 2 bytes and an eighth."""
    m, k, n, rho = 128, 64, 128, 4
    one = 2 * 2 * (m // rho) * k + 9 * (m // rho) * k / 8 + 2 * 9 * k * n / 8 + 2 * m * n
    three = 2 * 9 * (m // rho) * k / 8 + 2 * 9 * k * n / 8 + 2 * m * n + m * n / 8
    assert atb.L1_bytes(Tile(m, k, n, rho), CONFIGURATIONS[1]) == one
    assert atb.L1_bytes(Tile(m, k, n, rho), CONFIGURATIONS[3]) == three


def test_intensity_is_operations_over_bytes() -> None:
    """Of the array's tile: A, B once over K, C once; more of m, n or K is better, k and rho do not
    count."""
    m, k, n, K = 64, 64, 128, 4096
    rows, columns = 4 * m, 8 * n
    moved = rows * K * 2 + columns * K * 1.25 + rows * columns * 2
    expected = 2 * rows * columns * K / moved
    assert atb.AI_array(Tile(m, k, n), K, CONFIGURATIONS[1]) == pytest.approx(expected)
    assert atb.AI_array(Tile(m, 8, n, 4), K, CONFIGURATIONS[1]) == pytest.approx(expected)
    for more in (Tile(2 * m, k, n), Tile(m, k, 2 * n)):
        assert atb.AI_array(more, K, CONFIGURATIONS[1]) > expected


def test_equations_of_the_microkernel() -> None:
    """Figures that follow from the definitions by hand: loads on two slots, longest first; an
    accumulation chain bound by its own latency until four of them hide it."""
    assert atb.L_prolog([8, 4], [2, 6]) == max(1 + 8, 4 + 4)  # the long loads end last
    assert atb.L_prolog([8, 7], [2, 6]) == max(1 + 8, 4 + 7)  # the short ones do
    assert atb.L_prolog([4, 8], [6, 2]) == atb.L_prolog([8, 4], [2, 6])
    assert atb.II(4, 2) == 4 and atb.II(4, 2, chains=2) == 2
    assert atb.II(4, 2, chains=4) == 1 and atb.II(4, 4, chains=4) == 2  # then the loads
    assert atb.II(4, 1, chains=5) == 1  # one issue per cycle
    assert atb.L_steady(1, 4, 8) == 32 and atb.L_epilog(4, 6, 5) == 6 + 8 + 5
    assert atb.L_sequential(3, 9, 32, 19) == 180 and atb.L_overlapped(3, 9, 32, 19) == 124
    assert atb.eff(32, 64) == 0.5
    assert atb.Perf(410, 65e9, 32, 1.84e12, 0.5) == pytest.approx(26.65e12)
    assert atb.Perf(504, 65e9, 32, 1.84e12, 0.4) == pytest.approx(23.552e12)


def test_equations_of_the_core() -> None:
    """Equations 13 to 15: cycles of 256 x 8 x 64 in 8 parts written out; the conversion of A and
    the rounding of sums belong to the configurations that have them."""
    c = published_atb.values_of(
        {"atb_overhead": 16, "atb_interval": 1, "atb_unaligned": 0.5, "atb_switch": 80,
         "atb_call": 200, "atb_sums": 10}
    )  # fmt: skip
    assert atb.vmacs_per_cluster(64) == 32 and atb.eff_mk(64, c) == 32 / 48
    assert atb.eff_mk(8, c) == 4 / 22 and atb.eff_mk(56, c) == 28 / 58  # rows end within a line
    assert atb.eff_mk(1 << 20, c) == pytest.approx(1, rel=1e-3)
    tile = Tile(256, 8, 64, 8)
    both = 64 * 22 + 8 * 80 + 200  # 64 clusters of four VMACs
    assert atb.L_tile(tile, CONFIGURATIONS[3], c) == both
    assert atb.L_tile(tile, CONFIGURATIONS[1], c) == both + 256 * 8 * 2 / 64
    assert atb.L_tile(tile, CONFIGURATIONS[2], c) == both + 10 * 256 * 64 / 256
    assert atb.eff_core(tile, CONFIGURATIONS[3], c) == 256 / both


@pytest.mark.parametrize(("M", "K", "N", "tflops"), TABLE_3)
def test_table_3_by_size(M: int, K: int, N: int, tflops: float) -> None:
    found = simulate(1, (M, K, N), tile=(128, 64, 128), a_parts=4)
    assert found.tops == pytest.approx(tflops, rel=0.015)
    assert found.tops == pytest.approx(2 * M * K * N / found.seconds / 1e12)
    assert found.bound == "DRAM" and found.binds == "memory"


def test_errors_of_what_is_published() -> None:
    """At most 5 % on average: of cores, of whole runs, and of runs that nothing was fitted to; the
    formulas without constants are exact to the digits printed."""
    comparisons = published_atb.compare()
    errors = published_atb.mean_errors(comparisons)
    for name in ("core figures", "core_tflops", "tflops", "tflops, section 6.3"):
        assert errors[name] <= 0.05, name
    assert errors["figures without fitted constants"] <= 0.002
    kinds = {(c.published.where, c.published.metric) for c in comparisons}
    assert {("table 1", m) for m in published_atb.CORE} <= kinds
    assert ("table 2", "tflops") in kinds and ("table 3", "tflops") in kinds
    assert all(c.published.fitted == ("never" not in c.published.note)
               for c in comparisons if c.published.metric == "tflops")  # fmt: skip


def test_errors_of_figures_left_out() -> None:
    """Fitted from other starting points to all others, the constants predict a figure nearly as
    well; the fit to all is near the constants in use."""
    found = published_atb.cross_validate()
    rows = [row for row in published_atb.figures() if row.fitted]
    assert [row for row, _ in found] == rows and len(rows) >= 25
    alone = published_atb.values_of(published_atb.fit(rows[1:]))
    assert found[0][1] == published_atb.predict(rows[0], alone) / rows[0].value - 1
    limits = {"tflops": 0.03, "core_tflops": 0.05, "microkernel_efficiency": 0.05}
    for metric, limit in limits.items():
        assert np.mean([abs(e) for row, e in found if row.metric == metric]) < limit
    fitted = published_atb.fit(rows)
    for constant in atb.CONSTANTS:
        assert 0.5 < fitted[constant.name] / constant.value < 1.5, constant.name


def test_constants_name_what_they_are_fitted_to() -> None:
    ids = [row.id for row in published_atb.figures()]
    assert len(atb.CONSTANTS) <= 7 and len(set(ids)) == len(ids)
    for constant in atb.CONSTANTS:
        assert constant.grade == "fitted"
        for name in constant.fitted_on.split():
            assert any(one.startswith(name) for one in ids), name
    assert [c.name for c in atb.CONSTANTS] == list(published_atb.START)


def test_a_result_says_what_binds() -> None:
    """Symmetric and small: memory; large and in parts: the cores. Constants and machines move it,
    and the stamp says so."""
    small = simulate(1, tile=(64, 64, 128))
    large = simulate(2, tile=(128, 64, 128))
    assert (small.binds, small.bound) == ("memory", "DRAM")
    assert (large.binds, large.bound) == ("compute", "compute")
    assert small.details["equation_12_tops"] == pytest.approx(small.memory_bound_tops)
    assert large.details["equation_12_tops"] == pytest.approx(large.compute_bound_tops)
    for one in (small, large):
        assert one.tops < one.details["equation_12_tops"] * 1.01 and one.model == "atb"
        assert one.core_tops == pytest.approx(1.8432 * one.core_efficiency)
        assert 0 < one.core_efficiency < one.microkernel_efficiency < 1
        busiest = {"memory": "DRAM", "compute": "compute"}[one.binds]
        assert max(one.shares, key=lambda name: one.shares[name]) == busiest
        assert 0.9 < one.shares[busiest] < 1
        assert one.machine == "strix-atb" and one.macs_per_cycle == 512 * one.core_efficiency
    slow = simulate(2, tile=(128, 64, 128), machine="krackan-gemma")
    assert (slow.bound, slow.binds, slow.machine) == ("DRAM", "memory", "krackan-gemma")
    assert simulate(1, machine=None).machine == "krackan-gemm"
    changed = simulate(2, tile=(128, 64, 128), constants={"atb_switch": 800})
    assert changed.seconds > large.seconds and changed.machine == "strix-atb with atb_switch = 800"
    wide = simulate(1, tile=(128, 64, 128), a_parts=4, stream_bytes=8)
    assert wide.tops > simulate(1, tile=(128, 64, 128), a_parts=4).tops


def test_parts_of_A_cost_switches_and_save_memory() -> None:
    runs = [simulate(2, tile=(128, 64, 64), a_parts=parts) for parts in (1, 2, 4, 8)]
    for fewer, more in itertools.pairwise(runs):
        assert more.l1_bytes < fewer.l1_bytes and more.core_efficiency < fewer.core_efficiency
        assert more.intensity == fewer.intensity
        assert more.l1_bytes_symmetric == fewer.l1_bytes_symmetric == runs[0].l1_bytes


def test_sizes_are_padded() -> None:
    full, ragged = simulate(1, (1024, 2048, 2048)), simulate(1, (1000, 2000, 2000))
    assert ragged.padded == full.padded == (1024, 2048, 2048)
    assert ragged.tops == pytest.approx(full.tops * ragged_share(), rel=0.01)
    assert full.bytes == {
        "L3_read": 4 * (512 * 2048 * 2 + 1024 * 2048 * 9 // 8), "L3_write": 1024 * 2048 * 2,
    }  # fmt: skip


def ragged_share() -> float:
    return float(1000 * 2000 * 2000 / (1024 * 2000 * 2048))  # reads of K are not padded


@pytest.mark.parametrize(
    ("change", "error", "telling"),
    [
        ({"dtype_b": None}, DtypeError, "bfloat16 x bfloat16"),
        ({"dtype_in": "int8"}, DtypeError, "int8 x bfp16"),
        ({"dtype_out": "float32"}, DtypeError, "-> float32"),
        ({"dtype_in": object()}, DtypeError, "dtype_in"),
        ({"accumulate": "wide"}, ArgumentError, "accumulate"),
        ({"k_mt": 64}, ArgumentError, "k_mt"),
        ({"tile": (128, 64)}, ArgumentError, "tile"),
        ({"tile": (128, 60, 128)}, DesignError, "k of 8"),
        ({"tile": (128, 64, 128), "a_parts": 3}, DesignError, "multiple of 48"),
        ({"tile": (128, 64, 128), "a_parts": 1}, DesignError, "91.0 KiB.*63 KiB"),
        ({"a_parts": 0}, ShapeError, "a_parts"),
        ({"stream_bytes": 5}, ArgumentError, "stream_bytes"),
        ({"constants": {"no_such": 1.0}}, ArgumentError, "no_such"),
        ({"constants": {"atb_switch": -1.0}}, ArgumentError, "positive"),
        ({"machine": "strix"}, ArgumentError, "strix-atb"),
    ],
)
def test_errors(change: dict[str, Any], error: type, telling: str) -> None:
    with pytest.raises(error, match=telling):
        simulate(1, **({"a_parts": 4} | change))


def test_errors_of_other_devices_and_models() -> None:
    options = TYPES[1] | {"model": "atb", "a_parts": 4}
    with pytest.raises(DeviceError, match="npu1"):
        npu.simulate_gemm("npu1", 512, 512, 512, **options)
    with pytest.raises(ShapeError, match="M is 0"):
        npu.simulate_gemm("npu2", 0, 512, 512, **options)
    with pytest.raises(ArgumentError, match="'emulator', 'closed-form', 'atb'"):
        npu.simulate_gemm("npu2", 512, 512, 512, **(options | {"model": "paper"}))
    typed = simulate(1, a_parts=4, dtype_in=ml_dtypes.bfloat16, dtype_out=np.dtype("bfloat16"))
    assert typed == simulate(1, a_parts=4)


def test_the_command_compares_both_papers(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate-model", "--method", "atb", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["mean_absolute_error"]) == {"atb"}
    rows = {row["id"]: row for row in document["figures"]}
    assert rows["atb.t3.1024x2048x2048"]["machine"] == "strix-atb"
    assert rows["atb.t3.1024x2048x2048"]["published"] == 19.2
    assert {row["where"] for row in rows.values()} >= {"table 1", "table 2", "table 3"}
    assert cli.main(["validate-model", "--method", "atb"]) == 0
    text = capsys.readouterr().out
    assert "strix-atb" in text and "core figures" in text and "atb.t2.c1.a.tflops" in text
    assert cli.main(["validate-model", "--constants"]) == 0
    text = capsys.readouterr().out
    assert all(f"`{c.name}`" in text for c in atb.CONSTANTS) and "`dispatch`" in text
