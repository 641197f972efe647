"""The simulations against published figures, against each other, and against limits no NPU beats.

Published values: npu/perf/published.csv. Nothing here compares a method with its own output.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path

import pytest

from npu import _npu
from npu.perf import published
from npu.perf.simulate import simulate_gemm

# Targets of the calibration; means of absolute relative errors.
TOPS_MAPE, MACS_MAPE, KMT_ERROR = 0.03, 0.04, 0.05
# The two methods, on the calibration figures (the reasons of what is left: docs/timing.md).
AGREEMENT = 0.05


@functools.cache
def _comparisons(method: str) -> tuple[published.Comparison, ...]:
    return tuple(published.compare(method, sweeps=False))


@pytest.mark.parametrize("method", ["emulator", "closed-form"])
def test_published_figures(method: str) -> None:
    errors = published.mean_errors(list(_comparisons(method)))
    assert errors["tops"] <= TOPS_MAPE
    assert errors["macs_per_cycle"] <= MACS_MAPE
    for table in ("table 2", "table 3"):
        assert errors[f"tops, {table}"] <= TOPS_MAPE
    assert errors["kmt_ratio"] <= KMT_ERROR
    assert len(_comparisons(method)) >= 25


def test_memory_is_exact() -> None:
    """L1 and L2 bytes are identities; the paper prints them to 0.1 or 1 KiB, rounded or cut."""
    for c in _comparisons("closed-form"):
        if c.published.metric in ("l1_kib", "l2_kib"):
            assert c.predicted == pytest.approx(c.published.value, abs=0.6), c.published.id


def test_published_bounds() -> None:
    """All hold, with streams of 4 and of 8 B/cycle."""
    for method in ("emulator", "closed-form"):
        bounds = [c for c in _comparisons(method) if c.error is None]
        assert bounds and all(c.holds for c in bounds)
    wide = published.compare("closed-form", {"stream_npu2": 8.0}, sweeps=False)
    assert all(c.holds for c in wide if c.error is None)


def test_models_agree_on_the_calibration_set() -> None:
    closed = {c.published.id: c for c in _comparisons("closed-form")}
    for c in _comparisons("emulator"):
        if not c.published.is_bound:
            other = closed[c.published.id].predicted
            assert c.predicted == pytest.approx(other, rel=AGREEMENT), c.published.id


def test_sweep_figures() -> None:
    """Best of a sweep, and what column-major B gains on average (percentage points of a ratio)."""
    found = {c.published.id: c for c in published.compare("closed-form")}
    for id_, c in found.items():
        if id_.startswith("max."):
            assert c.error is not None and abs(c.error) < 0.05, id_
        if id_.startswith("row."):
            assert c.error is not None and abs(c.error) < 0.05, id_
    assert found["row.npu2.i8i8"].predicted > found["row.npu1.i8i8"].predicted
    assert len(list(published.sweep(published.figures()[-1].design))) >= 400


@pytest.mark.parametrize(
    ("name", "factor", "metric"),
    [
        ("row_visit", 2.0, "kmt_ratio"),
        ("dram_read_npu1", 0.8, "tops"),
        ("dram_read_npu2", 0.8, "tops"),
        ("integer_move_npu1", 6.0, "macs_per_cycle"),
        ("mac_bf16_npu2", 0.7, "macs_per_cycle"),
        ("round", 8.0, "tops"),
        ("dispatch", 8.0, "tops"),
        ("token", 10.0, "tops"),
    ],
)
def test_a_wrong_constant_shows(name: str, factor: float, metric: str) -> None:
    """A changed constant moves the error of the figures it was fitted on beyond their target."""
    constant = next(c for c in _npu.perf.constants() if c["name"] == name)
    wrong = published.compare("closed-form", {name: constant["value"] * factor}, sweeps=False)
    limit = {"tops": TOPS_MAPE, "macs_per_cycle": MACS_MAPE, "kmt_ratio": KMT_ERROR}[metric]
    fitted = constant["fitted_on"].split()
    errors = [
        abs(c.error)
        for c in wrong
        if c.error is not None and c.published.metric == metric and c.published.id in fitted
    ] or [published.mean_errors(wrong)[metric]]
    assert sum(errors) / len(errors) > limit


def test_constants_name_published_figures() -> None:
    ids = {figure.id for figure in published.figures()}
    constants = _npu.perf.constants()
    assert sum(c["grade"] == "fitted" for c in constants) <= 25
    for constant in constants:
        for id_ in constant["fitted_on"].split():
            assert id_ in ids, (constant["name"], id_)


@pytest.mark.parametrize("method", ["emulator", "closed-form"])
@pytest.mark.parametrize("device", ["npu1", "npu2"])
@pytest.mark.parametrize("size", [(512, 512, 512), (1024, 4096, 512), (2048, 1024, 4096)])
@pytest.mark.parametrize("b_layout", ["col", "row"])
def test_no_limit_is_beaten(
    method: str, device: str, size: tuple[int, int, int], b_layout: str
) -> None:
    """Peak MACs, the DRAM ceiling, and the stream port of the busiest shim channel."""
    values = {c["name"]: c["value"] for c in _npu.perf.constants()}
    info = _npu.arch.device_geometry(device)
    tile, k_mt = (64, 64, 64), 256
    r = simulate_gemm(
        device, *size, dtype_out="int8", tile=tile, k_mt=k_mt, b_layout=b_layout, model=method
    )
    array = r.seconds - r.dispatch_seconds
    cores = 4 * info["columns"]
    assert array > math.prod(size) / (cores * values[f"mac_int8_{device}"] * info["clock_hz"])
    m, k, n = r.padded
    reads = m * k * (n // (64 * info["columns"])) + k * n * (m // 256)
    assert r.bytes["L3_read"] == reads
    assert r.bytes["L3_write"] == m * n
    assert array > reads / (values[f"dram_read_{device}"] * 1e9)
    rounds = m // 256 * n // (64 * info["columns"])
    assert array > rounds * 64 * k / (values[f"stream_{device}"] * info["clock_hz"])
    assert r.macs_per_cycle < values[f"mac_int8_{device}"]


def test_the_page_carries_the_constants() -> None:
    """docs/timing.md ends with the table that `npu validate-model --constants` prints."""
    from npu.cli.validate_model import constants_table

    page = (Path(__file__).resolve().parents[3] / "docs" / "timing.md").read_text()
    assert constants_table(_npu.perf.constants()) in page
