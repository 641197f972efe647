"""The registry of operations: C++ and Python list the same ones, every example becomes submissions
that both generations simulate, requests are checked by name and value, and what is listed can be
opened, lowered and printed."""

from __future__ import annotations

import pytest

import npu
from npu import _npu
from npu._npu import facts
from npu.cli import main
from npu.errors import ArgumentError, DeviceError, FormatError, NpuError, ShapeError
from npu.ops.registry import operation, operations
from npu.perf.operation_simulation import simulate_operation

EXAMPLES = [(name, example) for name, one in operations().items() for example in one.examples]


def test_both_sides_list_the_same():
    assert [one["name"] for one in _npu.operations.types()] == list(operations())
    for one in operations().values():
        assert one.summary and one.fields
        for request in one.examples.values():
            assert set(request) <= {field.name for field in one.fields}


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
@pytest.mark.parametrize("name, example", EXAMPLES)
def test_examples_are_simulated(name, example, generation):
    """The bytes moved are at least those of the operands, each once."""
    request = operation(name).examples[example]
    found = operation(name).submissions(operation(name).configuration(generation), request)
    result = simulate_operation(name, generation, request)
    sizes = [a["bytes"] for one in found for a in one.arguments if not a["written"]]
    assert 0 < result.seconds < 0.03 and result.submissions == sum(one.count for one in found)
    assert result.read_bytes >= sum(sizes) / 2  # objects of x may be shorter than their buffers
    assert result.write_bytes > 0 and result.bound in result.shares


def test_a_slower_memory_takes_longer():
    request = {"rows": 512, "width": 1152}
    usual = simulate_operation("rms_norm", "npu2", request)
    slow = simulate_operation("rms_norm", "npu2", request, constants={"dram_read_npu2": 10.0})
    assert slow.seconds > 1.5 * usual.seconds and slow.bound == "DRAM"


@pytest.mark.parametrize("name", operations())
@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_every_operation_opens_lowers_and_prints(name, generation, tmp_path, capsys):
    device = npu.Device(f"emu:{generation}", "fast")
    choices = {}
    assert device.operation(name, **choices) is device.operation(name, **choices)
    path = tmp_path / "c.npucfg"
    assert main(["compile", name, "--device", generation, "-o", str(path)]) == 0
    assert path.read_bytes().startswith(b"npu-config 1\n")
    assert main(["compile", name, "--device", generation, "--emit", "mlir"]) == 0
    assert f"aie.device({generation}" in capsys.readouterr().out
    assert main(["inspect", "--operation", name]) == 0
    assert operation(name).fields[0].meaning in capsys.readouterr().out


@pytest.mark.parametrize("name", ["gemv", "decoder"])
@pytest.mark.parametrize("fields, small", [
    ({}, False), ({"format": 0}, False), ({"format": 2}, False), ({"format": 3}, True),
    ({"format": 4}, True), ({"format": -1}, False), ({"format": 99}, False),
])  # fmt: skip
def test_requests_choose_the_size_of_blocks(name, fields, small):
    one = operation(name)
    request = next(iter(one.examples.values())) | fields
    assert one.choices_for(request) == ({"small": True} if small else {})
    if fields.get("format") not in (-1, 99):
        config = one.configuration("npu2", **one.choices_for(request))
        assert one.submissions(config, request)
        result = simulate_operation(name, "npu2", request)
        assert result.seconds > 0
    for other in ("prefill", "copy"):
        assert operation(other).choices_for({"format": 3}) == {}


def test_a_format_of_one_matrix_chooses_the_size_of_all():
    decoder = operation("decoder")
    assert decoder.choices_for({"format_head": 4}) == {"small": True}
    assert decoder.choices_for({"format": -1, "format_qkv": 3}) == {"small": True}
    assert decoder.choices_for({"format_head": 2, "heads": 3}) == {}


@pytest.mark.parametrize("format, size", [("q4nx", 5120), ("q4_0", 4608)])
def test_inspect_prints_streams_of_both_sizes_of_blocks(format, size, capsys):
    number = list(facts.BLOCK_COLUMNS).index(format)
    request = f"n=64,k=256,format={number}"
    assert main(["inspect", "--operation", "gemv", "--request", request]) == 0
    assert f"0 = w ({2 * size} bytes)" in capsys.readouterr().err


def test_inspect_prints_the_stream_that_runs(capsys):
    """--request of an example: the bytes of submissions()."""
    assert main(["inspect", "--operation", "dequant", "--request", "n=64,k=256"]) == 0
    captured = capsys.readouterr()
    config = operation("dequant").configuration("npu2")
    (one,) = operation("dequant").submissions(config, {"n": 64, "k": 256})
    from npu import stream

    assert captured.out == stream.disassemble(one.stream)
    assert "0 = blocks (10240 bytes), 1 = out (32768 bytes)" in captured.err


@pytest.mark.parametrize("request_, error, words", [
    ({}, ArgumentError, "rows is missing"),
    ({"rows": 8}, ArgumentError, "width is missing"),
    ({"rows": 8, "width": 128, "depth": 1}, ArgumentError, 'no field "depth"'),
    ({"rows": 8, "width": 100}, ShapeError, "multiple of 128"),
    ({"rows": 0, "width": 128}, ShapeError, "rows is 0; use 4 to"),
    ({"rows": 1 << 40, "width": 128}, ShapeError, "rows"),
    ({"rows": 8, "width": 128, "mean_width": 200}, ShapeError, "mean_width is 200; use 1 to 128"),
    ({"rows": 8, "width": 128, "epsilon": -1}, ShapeError, "epsilon is -1; use 0"),
])  # fmt: skip
def test_requests_are_checked(request_, error, words):
    config = operation("rms_norm").configuration("npu1")
    with pytest.raises(error, match=words):
        operation("rms_norm").submissions(config, request_)


def test_a_configuration_of_another_version_is_refused():
    """RTPs and parameters that the schedule does not know, or misses."""
    config = operation("rms_norm").configuration("npu2")
    request = {"rows": 8, "width": 128}
    for line, other, words in (
        (b"\nrtp rows ", b"\nrtp rowz ", 'RTP "rowz"'), (b"param chunk ", b"param chunq ", "chunk"),
        (b"param cores 4", b"param cores 5", "cores"), (b"port X7 ", b"port Z7 ", "X7"),
    ):  # fmt: skip
        assert line in config
        with pytest.raises(FormatError, match=words):
            operation("rms_norm").submissions(config.replace(line, other), request)


def test_unknown_names():
    with pytest.raises(ArgumentError, match="there are copy, gemm, gemv"):
        operation("conv")
    with pytest.raises(DeviceError):
        simulate_operation("gemm", "emu:npu2", {"m": 1, "k": 1, "n": 1})
    with pytest.raises(NpuError, match="unknown"):
        _npu.operations.submissions("conv", operation("gemv").configuration("npu1"), {})


@pytest.mark.parametrize("words", [
    ["inspect"], ["inspect", "--operation", "conv"], ["compile", "conv"],
    ["compile", "rms_norm", "--tile", "64x64x64"], ["bench", "operations", "--request", "n=1"],
    ["inspect", "--operation", "dequant", "--request", "n=64"],
    ["bench", "operations", "--operation", "dequant", "--request", "n=0,k=1"],
])  # fmt: skip
def test_commands_refuse_in_one_line(words, capsys):
    assert main(words) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "npu: error: [" in captured.err


def test_bench_operations(capsys):
    words = ["--operation", "rms_norm", "--request", "rows=64,width=256", "--device", "npu1"]
    assert main(["bench", "operations", *words]) == 0
    out = capsys.readouterr().out
    assert "simulated" in out and "rows=64,width=256" in out


@pytest.mark.parametrize(
    "name, value",
    [("shift", 1 << 32), ("shift", 32), ("shift", -1), ("packed_b", 7), ("overlap", -3)],
)
def test_gemm_requests_take_only_what_fits(name, value):
    """No number is cut to the width of the field that takes it."""
    gemm = operation("gemm")
    configuration = gemm.configuration("npu2", "int8", "int8")
    with pytest.raises(NpuError, match=name):
        gemm.submissions(configuration, {"m": 64, "k": 64, "n": 64, name: value})
