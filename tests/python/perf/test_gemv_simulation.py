"""npu.simulate_gemv: the targets per projection of Gemma 3, bytes counted by hand, and what must
change the time does. All times are simulated; no hardware figure is asserted."""

from __future__ import annotations

import json

import pytest

import npu
from npu.errors import ArgumentError, DesignError, DeviceError, ShapeError
from npu.perf.gemv_simulation import PROJECTIONS

# Read bandwidth against the modelled ceiling, by model.
MIN_SHARE = {"gemma3-1b": 0.79, "gemma3-4b": 0.90}


@pytest.mark.parametrize("device", ["npu1", "npu2"])
@pytest.mark.parametrize("model", list(PROJECTIONS))
def test_projections_reach_their_share_of_the_read_ceiling(device, model):
    for name, (n, k, _) in PROJECTIONS[model].items():
        n = n // 8 if name == "head" else n  # the same bandwidth in an eighth of the run
        result = npu.simulate_gemv(device, n, k)
        assert result.share >= MIN_SHARE[model], name
        assert result.share <= 1
        assert result.bound == "DRAM"


def test_bytes_and_times_by_hand():
    result = npu.simulate_gemv("npu2", 13824, 1152)
    assert result.weight_bytes == 432 * 5 * 5120
    # 12 or more channels; x and its setup are read once per row-block of the busiest core.
    assert result.weight_bytes < result.read_bytes < 1.03 * result.weight_bytes
    assert result.bandwidth == pytest.approx(result.weight_bytes / result.seconds)
    assert result.ceiling == pytest.approx(52.7e9)
    assert result.seconds > result.weight_bytes / result.ceiling
    assert result.token_seconds == pytest.approx(12e-6)
    assert result.dispatch_seconds == pytest.approx(70e-6)
    assert set(result.shares) == {"compute", "stream", "DRAM", "command"}


@pytest.mark.parametrize("device", ["npu1", "npu2"])
@pytest.mark.parametrize(
    ("format", "columns", "size"),
    [("q4nx", 256, 5120), ("q8", 128, 5120), ("bf16", 80, 5120), ("q4_0", 256, 4608),
     ("q8_0", 128, 4608)],
)  # fmt: skip
@pytest.mark.parametrize("options", [{}, {"top": 8}, {"batch": 8}])
def test_bytes_of_every_format(device, format, columns, size, options):
    result = npu.simulate_gemv(device, 4096, 1152, format=format, **options)
    assert result.weight_bytes == 128 * -(-1152 // columns) * size
    assert result.weight_bytes < result.read_bytes < 1.12 * result.weight_bytes
    assert result.seconds > result.weight_bytes / result.ceiling


@pytest.mark.parametrize("device", ["npu1", "npu2"])
@pytest.mark.parametrize(("large", "small"), [("q4nx", "q4_0"), ("q8", "q8_0")])
@pytest.mark.parametrize("cores", [None, 8])
def test_small_blocks_take_less_time(device, large, small, cores):
    """0.9 of the bytes at the memory's rate; the cores keep up."""
    options = {"cores": cores, "channels": 1 if cores and device == "npu2" else 2}
    before, after = (
        npu.simulate_gemv(device, 13824, 1152, format=format, **options)
        for format in (large, small)
    )
    assert after.weight_bytes == 0.9 * before.weight_bytes
    limit = 0.92 if cores is None else 1
    assert after.seconds < limit * before.seconds
    assert cores or after.share > 0.97


def test_eight_vectors_cost_less_than_two_passes_and_memory_still_counts():
    one, eight = (npu.simulate_gemv("npu2", 4096, 2560, batch, cores=32) for batch in (1, 8))
    assert one.seconds < eight.seconds < 2 * one.seconds
    assert npu.simulate_gemv("npu2", 4096, 2560, 5, cores=32).seconds == eight.seconds
    slow = npu.simulate_gemv("npu2", 4096, 2560, constants={"dram_read_npu2": 26.35})
    assert slow.seconds > 1.8 * npu.simulate_gemv("npu2", 4096, 2560).seconds


def test_second_channels_help_where_one_per_column_is_not_enough():
    both, one = (npu.simulate_gemv("npu1", 1152, 6912, channels=c) for c in (2, 1))
    assert both.seconds < one.seconds and one.bound == "stream"


def test_top_reads_the_same_weights():
    plain, top = (npu.simulate_gemv("npu2", 8192, 1152, top=k) for k in (0, 8))
    assert top.weight_bytes == plain.weight_bytes
    assert top.seconds == pytest.approx(plain.seconds, rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (("npu3", 32, 256), {}, DeviceError),
        (("npu2", 0, 256), {}, ShapeError),
        (("npu2", 32, 2.5), {}, ArgumentError),
        (("npu2", 32, True), {}, ArgumentError),
        (("npu2", 32, 256, 9), {}, ShapeError),
        (("npu2", 1 << 30, 256), {}, ShapeError),
        (("npu2", 32, 256), {"cores": 5}, DesignError),
        (("npu2", 32, 256), {"channels": 0}, DesignError),
        (("npu2", 32, 256), {"constants": {"nonsense": 1.0}}, ArgumentError),
        (("npu2", 32, 256), {"top": 100}, ArgumentError),
        (("npu2", 32, 256), {"top": -1}, ArgumentError),
    ],
)
def test_typed_errors(arguments, options, error):
    with pytest.raises(error):
        npu.simulate_gemv(*arguments, **options)


def test_bench_gemv_prints_every_projection(capsys):
    from npu.cli import main

    assert main(["bench", "gemv", "--projections", "gemma3-1b", "--json", "--batch", "2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["projection"] for row in document["results"]] == list(PROJECTIONS["gemma3-1b"])
    assert all(0 < row["share_of_ceiling"] < 1 for row in document["results"])
    assert document["batch"] == 2


def test_bench_gemv_measures_the_host_beside_numpy(capsys, monkeypatch):
    from npu.cli import main

    small = {"tiny": {"a": (64, 256, 3)}}
    monkeypatch.setattr("npu.perf.gemv_simulation.PROJECTIONS", small)
    arguments = ["bench", "gemv", "--projections", "tiny", "--host", "--repeats", "2"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "tiny, one token: simulated" in text and "host time, the NPU is emulated" in text
    assert main(["bench", "gemv", "--projections", "gemma9"]) != 0
    assert "'gemma9' is not one of tiny" in capsys.readouterr().err
