"""The dequantisation design: it lowers within the hardware's limits, emits MLIR that names its
kernel, moves exactly the bytes of blocks and results, is timed sensibly, and `npu bench dequant`
prints what the simulation says."""

from __future__ import annotations

import json

import pytest
from weight_blocks import BYTES
from weight_blocks import COLUMNS as OTHER_COLUMNS

import npu
from npu import _npu, cli
from npu.designs import dequant
from npu.errors import ArgumentError, DesignError, DeviceError, NpuError, ShapeError
from npu.perf.execution import execute

GENERATIONS = {"npu1": 4, "npu2": 8}
COLUMNS = {"q4nx": 256} | OTHER_COLUMNS


@pytest.mark.parametrize("format", COLUMNS)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_ports_and_cores(generation, format):
    columns = GENERATIONS[generation]
    parsed = _npu.device.parse_configuration(dequant.configuration(generation, format))
    names = {name for name, *_ in parsed["ports"]}
    assert parsed["rtps"] == []
    for col, row, kind, used, limit in parsed["resources"]:
        assert used <= limit, (col, row, kind)
    lanes = [f"{c}_{lane}" for c in range(columns) for lane in range(2)]
    assert names == {f"{side}{lane}" for side in "WY" for lane in lanes}
    assert len(parsed["cores"]) == 4 * columns


@pytest.mark.parametrize("format", COLUMNS)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_mlir(generation, format):
    text = dequant.mlir(generation, format)
    cores = 4 * GENERATIONS[generation]
    assert text.count(f"func.call @dequant_{format}(") == cores == text.count("func.call @")
    assert f"dequant_{format}.o" in text
    tile = f"memref<32x{COLUMNS[format]}xbf16>"
    assert f"@dequant_{format}(memref<{BYTES.get(format, 5120)}xi8>, {tile})" in text


def test_unknown_generation():
    with pytest.raises(DesignError, match='generation is "npu3"; use "npu1" or "npu2"'):
        dequant.design("npu3")


@pytest.mark.parametrize("format", COLUMNS)
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(("rows", "columns"), [(2, 1), (5, 3), (36, 5), (36, 70), (1000, 2)])
def test_streams_move_every_block(generation, rows, columns, format):
    """Odd row-blocks begin their last pair one earlier: a row-block is moved twice."""
    config = dequant.configuration(generation, format)
    request = {"n": 32 * rows, "k": COLUMNS[format] * columns}
    (submission,) = _npu.operations.submissions("dequant", config, request)
    stream = submission["stream"]
    blocks, size, tile = rows * columns, BYTES.get(format, 5120), 32 * COLUMNS[format] * 2
    report = execute(config, stream, sizes=[blocks * size, blocks * tile])
    moved = (rows + rows % 2) * columns
    assert report["bytes_moved"]["shim_read"] == moved * size
    assert report["bytes_moved"]["shim_write"] == moved * tile


@pytest.mark.parametrize(("rows", "columns"), [(0, 1), (-1, 4), (2, 0), (2, 1 << 40), (1 << 56, 1)])
def test_impossible_streams(rows, columns):
    with pytest.raises(NpuError, match=r"\[dequant(ize)?\]"):
        request = {"n": 32 * rows, "k": 256 * columns}
        _npu.operations.submissions("dequant", dequant.configuration("npu2"), request)


@pytest.mark.parametrize("format", COLUMNS)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_simulated_bytes(generation, format):
    """Of a format's blocks, against its values."""
    result = npu.simulate_dequantize(generation, 2048, 2560, format=format)
    wide = 32 * COLUMNS[format] * 2 / BYTES.get(format, 5120)
    assert result.write_bandwidth / result.read_bandwidth == pytest.approx(wide)
    assert 0.8 < result.share <= 1


@pytest.mark.parametrize("generation", GENERATIONS)
def test_simulated_time(generation):
    """No faster than the memory reads and writes together, and near to that for a large matrix;
    bytes read and written are 5 to 16."""
    total = {"npu1": 21.6e9, "npu2": 66.6e9}[generation]
    for n, k in ((1536, 1152), (13824, 1152), (20480, 2560)):
        result = npu.simulate_dequantize(generation, n, k)
        assert 0 < result.share <= 1 and result.seconds > 0
        assert result.write_bandwidth / result.read_bandwidth == pytest.approx(16 / 5)
        assert result.read_bandwidth + result.write_bandwidth <= total
        assert result.ceiling == pytest.approx(total * 16 / 21)
    assert result.share > 0.95 and result.bound == "DRAM"
    half = {f"dram_total_{generation}": total / 2e9}
    slower = npu.simulate_dequantize(generation, n, k, constants=half)
    assert slower.seconds > 1.8 * result.seconds
    # Ports of a word every 8 cycles are slower than the memory.
    ports = npu.simulate_dequantize(generation, n, k, constants={f"stream_{generation}": 0.5})
    assert ports.bound == "stream" and ports.ceiling < result.ceiling
    assert 0.8 < ports.share <= 1


def test_simulation_errors():
    with pytest.raises(DeviceError, match="device is 'emu:npu2'"):
        npu.simulate_dequantize("emu:npu2", 64, 64)
    with pytest.raises(ShapeError, match="N is 0"):
        npu.simulate_dequantize("npu2", 0, 64)
    with pytest.raises(ArgumentError, match=r"K is 1\.5"):
        npu.simulate_dequantize("npu2", 64, 1.5)


def test_bench_dequant(capsys):
    assert cli.main(["bench", "dequant", "--projections", "gemma3-1b", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [row["projection"] for row in rows] == ["qkv", "o", "gate+up", "down"]
    for row in rows:
        expected = npu.simulate_dequantize("npu2", row["n"], row["k"])
        assert row["simulated_us"] == pytest.approx(1e6 * expected.seconds)
    assert cli.main(["bench", "dequant", "--projections", "gemma3-1b"]) == 0
    assert "gate+up" in capsys.readouterr().out
    assert cli.main(["bench", "dequant", "--batch", "2"]) == 2
    assert (
        "unrecognized arguments: --batch 2 (see `npu bench dequant --help`)"
        in capsys.readouterr().err
    )
