"""The simulated time of a prompt: it adds up, agrees with whole chunks on the array, is never
faster than its bytes, and nonsense is refused."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import npu
from npu import _npu
from npu.errors import ArgumentError, DeviceError, ShapeError
from npu.ops.registry import operation
from npu.perf import prefill_simulation, published_decode
from npu.perf.decode_simulation import DecodeLayer, DecodeShape, shape_of
from npu.perf.execution import constant, execute, zeros_but
from npu.perf.operation_simulation import simulate_operation
from npu.perf.prefill_simulation import Chunk, request_of_steps, simulate_step, stream_cycles
from npu.perf.prefill_split import MOVED, RESOURCES, TERMS

BLOCK_ROWS = 32
COLUMNS = {"q4nx": 256, "q8": 128, "q4_0": 256, "q8_0": 128}
BYTES = {"q4nx": 5120, "q8": 5120, "q4_0": 4608, "q8_0": 4608}
READ = 5120  # for each block, of small ones the beginning of the next one
ROWS = {"npu1": 256, "npu2": 512}  # of a product's job: weights are read once for so many tokens
# A model small enough for many runs.
SMALL = DecodeShape(
    "small", 320, 4, 2, 64, 512, 4096,
    tuple(DecodeLayer(128 if i % 3 else 0) for i in range(4)),
)  # fmt: skip
PLAIN = ("q4nx",) * 4


def of_chunks(found: npu.SimulatedPrefill) -> float:
    """Seconds of the chunks on the array."""
    return found.seconds - sum(
        found.split[name] for name in ("head", "dispatch", "configuration loads")
    )


def whole_chunk(device: str, shape: DecodeShape, tokens: int, position: int) -> float:
    """Seconds of a chunk through all layers, in one stream."""
    is_global = sum(layer.window == 0 for layer in shape.layers)
    counts = (len(shape.layers) - is_global, is_global)
    request = request_of_steps(shape, tokens, position, counts, shape.layers[0].formats)
    return stream_cycles(device, request, {}) / _npu.arch.device_geometry(device)["clock_hz"]


def in_format(shape: DecodeShape, format: str) -> DecodeShape:
    layers = tuple(DecodeLayer(layer.window, (format,) * 4) for layer in shape.layers)
    return dataclasses.replace(shape, layers=layers, head_format=format)


@pytest.mark.parametrize("device", ["npu1", "npu2"])
@pytest.mark.parametrize("format", ["q4nx", "q4_0", "q8_0"])
@pytest.mark.parametrize(("tokens", "position"), [(17, 0), (64, 0), (300, 0), (100, 700)])
def test_a_chunk_is_what_its_steps_add_up_to(
    device: str, tokens: int, position: int, format: str
) -> None:
    shape = in_format(SMALL, format)
    found = npu.simulate_prefill(device, shape, tokens, position=position)
    whole = whole_chunk(device, shape, tokens, position)
    # Small steps, of which the waits between them are a larger part than of a real model's.
    assert of_chunks(found) == pytest.approx(whole, rel=0.04)
    assert sum(found.split.values()) == pytest.approx(found.seconds, rel=1e-9)
    assert all(value >= 0 for value in found.split.values()), found.split
    assert (found.chunks, found.configuration_loads) == (1, 2)
    assert found.tokens_per_second == tokens / found.seconds


def test_chunks_head_dispatches_and_loads() -> None:
    found = npu.simulate_prefill("npu2", SMALL, 200, position=32, chunk=96)
    chunks = [(96, 32), (96, 128), (8, 224)]
    whole = sum(whole_chunk("npu2", SMALL, *chunk) for chunk in chunks)
    assert found.chunks == 3 and of_chunks(found) == pytest.approx(whole, rel=0.04)
    assert found.split["dispatch"] == pytest.approx(4 * constant("dispatch") * 1e-6)
    assert found.split["configuration loads"] == pytest.approx(2 * constant("load_npu2") * 1e-3)
    head = npu.simulate_gemv("npu2", SMALL.vocabulary, SMALL.width, top=8)
    assert found.split["head"] == pytest.approx(head.seconds + head.token_seconds)
    slow = npu.simulate_prefill(
        "npu2", SMALL, 200, position=32, chunk=96, constants={"load_npu2": 14.9, "dispatch": 1070}
    )
    assert slow.seconds - found.seconds == pytest.approx(2 * 10e-3 + 4 * 1e-3, rel=1e-6)


@pytest.mark.parametrize("format", ["q4nx", "q8_0"])
def test_a_last_token_alone_is_a_decode_step(format: str) -> None:
    shape = in_format(SMALL, format)
    few = npu.simulate_prefill("npu2", shape, 64)
    more = npu.simulate_prefill("npu2", shape, 65, chunk=64)
    token = npu.simulate_decode("npu2", shape, 65)
    assert more.seconds == pytest.approx(
        few.seconds - few.split["head"] - constant("dispatch") * 1e-6 + token.seconds
    )
    one = npu.simulate_prefill("npu2", shape, 1)
    load = constant("load_npu2") * 1e-3
    assert one.seconds == pytest.approx(npu.simulate_decode("npu2", shape, 1).seconds + load)
    assert one.configuration_loads == 1


@pytest.mark.parametrize("device", ["npu1", "npu2"])
def test_time_does_not_depend_on_what_is_not_computed(device: str) -> None:
    request = request_of_steps(SMALL, 40, 48, (1, 1), PLAIN)
    config = operation("prefill").configuration(device)
    (one,) = _npu.operations.submissions("prefill", config, request)

    def cycles(kernels: tuple[str, ...]) -> float:
        data = [zeros_but(a["contents"], a["bytes"]) for a in one["arguments"]]
        report = execute(config, one["stream"], data=data, kernels=kernels)
        return float(report["timing"]["cycles"])

    assert cycles(prefill_simulation.KERNELS) == cycles(())


def test_kernels_that_are_left_out_take_their_time_and_do_nothing() -> None:
    config = operation("geglu").configuration("npu2")
    (one,) = _npu.operations.submissions("geglu", config, {"elements": 4096})
    cycles, results = [], []
    for kernels in ((), ("geglu",), ("another",)):
        data = [np.full(4096, 1, ml_dtypes.bfloat16).view(np.uint8) for _ in range(2)]
        data.append(np.full(8192, 7, np.uint8))
        report = execute(config, one["stream"], data=data, kernels=kernels)
        cycles.append(report["timing"]["cycles"])
        results.append(data[2].view(ml_dtypes.bfloat16).astype(np.float64))
    assert len(set(cycles)) == 1
    assert np.array_equal(results[0], results[1])
    assert np.allclose(results[0], 0.841, atol=0.01)  # gelu(1)
    assert not np.any(np.isclose(results[2], 0.841, atol=0.01))


@pytest.mark.parametrize("device", ["npu1", "npu2"])
@pytest.mark.parametrize("format", COLUMNS)
def test_weights_are_read_once_for_so_many_tokens(format: str, device: str) -> None:
    shape = in_format(SMALL, format)
    qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    sizes = [
        (qkv, shape.width), (shape.width, shape.heads * shape.head_dim),
        (2 * shape.ffn, shape.width), (shape.width, shape.ffn),
    ]  # fmt: skip
    blocks = sum(-(-n // BLOCK_ROWS) * -(-k // COLUMNS[format]) for n, k in sizes)
    for tokens in (64, 300, 600):
        found = npu.simulate_prefill(device, shape, tokens)
        times = -(-tokens // ROWS[device]) * len(shape.layers)
        assert found.bytes["weights"] == blocks * READ * times
        head = -(-shape.vocabulary // BLOCK_ROWS) * -(-shape.width // COLUMNS[format])
        assert found.bytes["head"] == head * BYTES[format]
        assert found.split["weights"] == pytest.approx(
            found.bytes["weights"] / found.ceiling, rel=1e-2
        )
        kept = tokens * shape.kv_heads * shape.head_dim * 2 * 2
        assert found.bytes["kv"] >= len(shape.layers) * kept


def test_more_tokens_positions_and_slower_memory_take_longer() -> None:
    plain = npu.simulate_prefill("npu2", SMALL, 256).seconds
    assert npu.simulate_prefill("npu2", SMALL, 512).seconds > plain
    assert npu.simulate_prefill("npu2", SMALL, 256, position=8192).seconds > plain
    assert npu.simulate_prefill("npu2", SMALL, 256, read_gbs=5).seconds > plain


def test_attention_to_all_positions_is_a_line() -> None:
    """Between and behind the positions that are simulated."""
    for position in (2048, 8192):
        chunk = Chunk("npu2", SMALL, 128, position, {})
        found = chunk.step("attention", PLAIN, True)
        request = request_of_steps(SMALL, 128, position, (0, 1), PLAIN, (3, 1))
        direct = simulate_step("npu2", request, {}, "attention")
        assert found.cycles == pytest.approx(direct.cycles, rel=0.03)
        assert found.terms == pytest.approx(direct.terms, rel=0.1, abs=0.03 * direct.cycles)
        assert found.moved == pytest.approx(direct.moved, rel=0.01)


def test_positions_beyond_the_window_are_alike() -> None:
    for position in (300, 812, 5000):
        chunk = Chunk("npu2", SMALL, 64, position, {})
        request = request_of_steps(SMALL, 64, position, (1, 0), PLAIN, (3, 1))
        direct = simulate_step("npu2", request, {}, "attention")
        assert chunk.step("attention", PLAIN, False).cycles == pytest.approx(
            direct.cycles, rel=0.01
        )


def test_the_parts_of_a_step() -> None:
    for index, work in ((1, "products"), (3, "attention"), (7, "rows")):
        run = simulate_step(
            "npu2", request_of_steps(SMALL, 64, 0, (1, 0), PLAIN, (index, 1)), {}, work
        )
        assert run.terms.sum() == pytest.approx(run.cycles, rel=1e-9)
        terms = dict(zip(TERMS, run.terms, strict=True))
        others = {"products", "attention", "rows"} - {work}
        assert terms[work] > 0 and all(terms[name] == 0 for name in others)
        moved = dict(zip(MOVED, run.moved, strict=True))
        assert (moved["weights"] > 0) == (work == "products")
        assert (moved["kv"] > 0) == (work == "attention")
        assert moved["activations written"] > 0
        assert len(run.shares) == len(RESOURCES) and run.bound in RESOURCES
        assert np.all(run.shares >= 0) and np.all(run.shares <= 1 + 1e-9)


@pytest.mark.slow
def test_a_whole_chunk_of_1b() -> None:
    shape = shape_of("gemma3-1b")
    few = dataclasses.replace(shape, layers=shape.layers[:6])
    found = npu.simulate_prefill("npu2", few, 1024, position=1024)
    whole = whole_chunk("npu2", few, 1024, 1024)
    assert of_chunks(found) == pytest.approx(whole, rel=0.005)


@pytest.mark.slow
def test_attention_far_away() -> None:
    shape = shape_of("gemma3-1b")
    chunk = Chunk("npu2", shape, 1024, 15360, {})
    request = request_of_steps(shape, 1024, 15360, (0, 1), PLAIN, (3, 1))
    direct = simulate_step("npu2", request, {}, "attention")
    assert chunk.step("attention", PLAIN, True).cycles == pytest.approx(direct.cycles, rel=0.005)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "telling"),
    [
        (("npu3", "gemma3-1b", 1024), {}, DeviceError, "npu3"),
        (("npu2", "gemma3-7b", 1024), {}, ArgumentError, "gemma3-7b"),
        (("npu2", "gemma3-1b", 0), {}, ShapeError, "tokens is 0"),
        (("npu2", "gemma3-1b", 1 << 40), {}, ShapeError, "tokens"),
        (("npu2", "gemma3-1b", 1.5), {}, ArgumentError, "whole number"),
        (("npu2", dataclasses.replace(SMALL, head_format="q8_0"), 16), {}, ShapeError,
         "formats q4nx, q8_0 have blocks of different sizes"),
        (("npu2", "gemma3-1b", 16), {"format": "q4_1"}, ArgumentError, "q4_1"),
        (("npu2", SMALL, 16), {"position": -1}, ShapeError, "position"),
        (("npu2", SMALL, 16), {"chunk": 0}, ShapeError, "chunk"),
        (("npu2", SMALL, 16), {"chunk": 2049}, ShapeError, "chunk"),
        (("npu2", SMALL, 16), {"read_gbs": -1}, ArgumentError, "read ceiling"),
        (("npu2", SMALL, 16), {"constants": {"load_npu9": 1}}, ArgumentError, "load_npu9"),
        (("npu2", dataclasses.replace(SMALL, width=336), 16), {}, ShapeError, "width"),
        (("npu2", dataclasses.replace(SMALL, head_dim=48), 16), {}, ShapeError, "head"),
    ],
)  # fmt: skip
def test_nonsense_is_refused(
    arguments: Any, options: dict[str, Any], error: type[Exception], telling: str
) -> None:
    with pytest.raises(error, match=telling):
        npu.simulate_prefill(*arguments, **options)


def test_published_prompts() -> None:
    assert published_decode.prompts("gemma3-270m") == {}
    for shape in ("gemma3-1b", "gemma3-4b"):
        curves = published_decode.prompts(shape)
        assert set(curves) == set(published_decode.curves(shape))
        for curve in curves.values():
            assert list(curve) == sorted(curve) and list(curve.values()) == sorted(curve.values())


@pytest.mark.parametrize("format", ["q4nx", "q4_0"])
def test_the_trace_of_a_chunk(tmp_path: Path, format: str) -> None:
    shape, size = in_format(SMALL, format), "" if format == "q4nx" else "small_"
    trace = npu.trace_prefill("npu2", shape, 40, position=16, layers=3)
    request = request_of_steps(shape, 40, 16, (2, 1), (format,) * 4)
    whole = simulate_operation("prefill", "npu2", request)
    assert trace.simulation.seconds == pytest.approx(whole.seconds + whole.dispatch_seconds)
    assert trace.left_out == 0 and "2 layers with a window, 1 without" in trace.design
    file = tmp_path / "t.json.gz"
    trace.save(file)
    document = json.loads(gzip.decompress(file.read_bytes()))
    names = {event["name"] for event in document["traceEvents"]}
    kernels = {f"{size}multiply": f"{size}products", "scores": "attention", "norm_piece": "norm"}
    assert {f"prefill_{kernel} ({overlay})" for kernel, overlay in kernels.items()} <= names
    pytest.importorskip("matplotlib")
    trace.plot(tmp_path / "t.svg")
    assert "Simulated prompt on npu2, small" in (tmp_path / "t.svg").read_text()
    with pytest.raises(ShapeError, match="layers"):
        npu.trace_prefill("npu2", SMALL, 40, layers=5)
    with pytest.raises(ArgumentError, match="window"):
        npu.trace_prefill("npu2", SMALL, 40, from_us=1e9)
