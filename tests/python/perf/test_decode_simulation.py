"""The simulated time of a token: it adds up, agrees with a whole token on the array, is never
faster than its bytes, and nonsense is refused."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npu
import npu.perf.operation_simulation
from npu.errors import ArgumentError, DeviceError, ShapeError
from npu.perf import decode_simulation, published_decode
from npu.perf.decode_simulation import SHAPES, DecodeLayer, DecodeShape, request_of, run, shape_of
from npu.perf.execution import constant

BLOCK_BYTES, BLOCK_ROWS = 5120, 32
COLUMNS = {"q4nx": 256, "q8": 128, "bf16": 80, "q4_0": 256, "q8_0": 128}
BYTES = dict.fromkeys(COLUMNS, BLOCK_BYTES) | {"q4_0": 4608, "q8_0": 4608}
# A model small enough for many runs.
SMALL = DecodeShape(
    "small", 256, 4, 2, 64, 512, 4096,
    tuple(DecodeLayer(128 if i % 3 else 0) for i in range(9)),
)  # fmt: skip


def matrices(shape: DecodeShape) -> list[tuple[int, int]]:
    qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    return [
        (qkv, shape.width), (shape.width, shape.heads * shape.head_dim),
        (2 * shape.ffn, shape.width), (shape.width, shape.ffn),
    ]  # fmt: skip


def kv_bytes(shape: DecodeShape, context: int) -> int:
    """Of the positions that the layers see, without the rest of chunks."""
    seen = sum(min(context, layer.window or context) for layer in shape.layers)
    return seen * shape.kv_heads * shape.head_dim * 2 * 2


def in_format(shape: DecodeShape, format: str) -> DecodeShape:
    layers = tuple(DecodeLayer(layer.window, (format,) * 4) for layer in shape.layers)
    return dataclasses.replace(shape, layers=layers, head_format=format)


@pytest.mark.parametrize("device", ["npu1", "npu2"])
@pytest.mark.parametrize("format", ["q4nx", "q4_0"])
@pytest.mark.parametrize("context", [1, 100, 1024])
def test_a_token_is_what_its_layers_add_up_to(device: str, context: int, format: str) -> None:
    shape = in_format(SMALL, format)
    found = npu.simulate_decode(device, shape, context)
    request = request_of(shape, context, (6, 3), (format,) * 4, SMALL.vocabulary)
    whole = npu.perf.operation_simulation.simulate_operation("decoder", device, request)
    assert found.seconds - found.split["dispatch"] == pytest.approx(whole.seconds, rel=0.01)
    assert sum(found.split.values()) == pytest.approx(found.seconds, rel=1e-9)


@pytest.mark.parametrize("device", ["npu1", "npu2"])
@pytest.mark.parametrize("format", ["q4nx", "q4_0"])
def test_a_head_whose_weights_fill_the_queues_of_their_channels(device: str, format: str) -> None:
    """A pass that has more tasks than a queue would wait for itself; DeadlockError."""
    request = {
        "position": 100, "sliding": 1, "global": 0, "window": 512, "top": 8, "width": 512,
        "heads": 2, "kv_heads": 1, "head_dim": 64, "ffn": 512, "vocabulary": 262144,
        "format": decode_simulation.FORMATS.index(format),
    }  # fmt: skip
    whole = npu.perf.operation_simulation.simulate_operation("decoder", device, request)
    bytes_of_head = 262144 // 32 * 2 * BYTES[format]
    assert whole.seconds > bytes_of_head / 60e9


def test_the_whole_token_of_1b() -> None:
    shape = shape_of("gemma3-1b")
    request = request_of(shape, 1024, (22, 4), ("q4nx",) * 4, shape.vocabulary)
    whole = npu.perf.operation_simulation.simulate_operation("decoder", "npu2", request)
    found = npu.simulate_decode("npu2", shape, 1024)
    # Layers overlap their neighbours by a little more or less than in the short streams: 1.3e-3.
    assert found.seconds - found.split["dispatch"] == pytest.approx(whole.seconds, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "format"), [*((name, "q4nx") for name in SHAPES), *(("gemma3-1b", f) for f in BYTES)]
)
def test_never_faster_than_its_bytes(name: str, format: str) -> None:
    shape = shape_of(name)
    found = npu.simulate_decode("npu2", name, 4096, format=format)
    every = [m for _ in shape.layers for m in matrices(shape)]
    every.append((shape.vocabulary, shape.width))
    blocks = sum(-(-n // BLOCK_ROWS) * -(-k // COLUMNS[format]) for n, k in every)
    block_bytes = BYTES[format]
    # Rows that are no multiple of what the cores take at a time are read twice.
    assert blocks * block_bytes <= found.weight_bytes <= 1.1 * blocks * block_bytes
    kv = kv_bytes(shape, 4096)
    assert kv <= found.kv_bytes <= 1.25 * kv  # headers of the queries and whole chunks
    assert found.ceiling == constant("dram_read_npu2") * 1e9
    assert found.seconds > (blocks * block_bytes + kv) / found.ceiling
    for part in ("weights", "kv"):
        assert found.split[part] == pytest.approx(
            getattr(found, f"{part.removesuffix('s')}_bytes") / found.ceiling, rel=1e-6
        )
    assert all(value >= 0 for value in found.split.values()), found.split


@pytest.mark.parametrize("device", ["npu1", "npu2"])
@pytest.mark.parametrize(("large", "small"), [("q4nx", "q4_0"), ("q8", "q8_0")])
@pytest.mark.parametrize("name", ["gemma3-1b", "gemma3-4b"])
def test_small_blocks_take_less_time(name: str, large: str, small: str, device: str) -> None:
    """A tenth less to read, as what binds is the memory; the formats have the same columns."""
    before, after = (npu.simulate_decode(device, name, 1024, format=f) for f in (large, small))
    assert after.weight_bytes == pytest.approx(0.9 * before.weight_bytes, rel=5e-3)
    assert after.kv_bytes == before.kv_bytes
    saved = (before.weight_bytes - after.weight_bytes) / before.ceiling
    assert before.seconds - after.seconds == pytest.approx(saved, rel=0.3)
    assert after.bound == before.bound == "weights"


def test_no_part_is_below_zero() -> None:
    terms = np.array([5.0, 1.0, 2.0, -0.25, 0.5, 0.0, 0.5])
    shares = decode_simulation._shares(terms)
    kept = 1 - 0.25 / 3  # of 3.0 that the memory leaves
    assert shares == pytest.approx([5.0, 1.0, 2.0 * kept, 0.0, 0.5 * kept, 0.0, 0.5 * kept])
    assert decode_simulation._shares(shares) == pytest.approx(shares)
    terms = np.array([5.0, 1.0, 0.1, -0.25, 0.05, 0.0, 0.05])  # more than that
    shares = decode_simulation._shares(terms)
    assert min(shares) >= 0 and shares.sum() == pytest.approx(terms.sum())


def test_more_context_and_slower_memory_take_longer() -> None:
    # Contexts apart: near each other, more pairs of cores may outweigh more positions.
    seconds = [npu.simulate_decode("npu2", SMALL, c).seconds for c in (1, 1024, 8192)]
    assert seconds == sorted(seconds) and len(set(seconds)) == len(seconds)
    slow = npu.simulate_decode("npu2", "gemma3-1b", 1024, read_gbs=30)
    fast = npu.simulate_decode("npu2", "gemma3-1b", 1024)
    assert slow.ceiling == 30e9 and slow.seconds > slow.floor > fast.floor
    assert slow.bound == "weights"


def test_a_long_context_is_bound_by_keys_and_values() -> None:
    assert npu.simulate_decode("npu2", "gemma3-4b", 131072).bound == "kv"


def test_formats_per_matrix() -> None:
    # Wide enough that what the cores read together is all of use.
    shape = dataclasses.replace(shape_of("gemma3-270m"), vocabulary=8192)

    def bytes_with(formats: tuple[str, ...], head: str) -> int:
        layers = tuple(DecodeLayer(layer.window, formats) for layer in shape.layers)  # type: ignore[arg-type]
        other = dataclasses.replace(shape, layers=layers, head_format=head)
        return npu.simulate_decode("npu2", other, 64).weight_bytes

    def added(n: int, k: int) -> int:
        return -(-n // BLOCK_ROWS) * (-(-k // COLUMNS["bf16"]) - -(-k // 256)) * BLOCK_BYTES

    plain = bytes_with(("q4nx",) * 4, "q4nx")
    for i, (n, k) in enumerate(matrices(shape)):
        formats = tuple("bf16" if i == j else "q4nx" for j in range(4))
        more = bytes_with(formats, "q4nx") - plain
        assert more == pytest.approx(len(shape.layers) * added(n, k), rel=0.35), i
    more = bytes_with(("q4nx",) * 4, "bf16") - plain
    assert more == pytest.approx(added(shape.vocabulary, shape.width), rel=0.05)


def test_layers_of_several_formats() -> None:
    shape = dataclasses.replace(shape_of("gemma3-270m"), vocabulary=4096)
    wide = ("q4nx", "q4nx", "q8", "q8")

    def bytes_with(count: int) -> int:
        layers = tuple(
            DecodeLayer(layer.window, wide if i < count else layer.formats)
            for i, layer in enumerate(shape.layers)
        )
        other = dataclasses.replace(shape, layers=layers)
        return npu.simulate_decode("npu2", other, 64).weight_bytes

    none, some, every = (bytes_with(count) for count in (0, 7, 18))
    assert every > 1.3 * none
    assert some == pytest.approx(none + (every - none) * 7 / 18, rel=1e-2)


def test_small_blocks_of_both_formats() -> None:
    """Columns of a block are as many as of a large one: 0.9 of its bytes. Times of kernels as
    published, as those of small blocks have no schedules, and the cores matter here."""
    shape = dataclasses.replace(shape_of("gemma3-270m"), vocabulary=8192)
    found = []
    for four, eight in (("q4nx", "q8"), ("q4_0", "q8_0")):
        layers = tuple(DecodeLayer(x.window, (eight, four, four, eight)) for x in shape.layers)
        mixed = dataclasses.replace(shape, layers=layers, head_format=eight)
        found.append(npu.simulate_decode("npu2", mixed, 64, kernels="published"))
    large, small = found
    assert small.weight_bytes == pytest.approx(0.9 * large.weight_bytes, rel=1e-2)
    assert small.seconds < large.seconds


SIZES = "have blocks of different sizes, and the array multiplies those of one"


@pytest.mark.parametrize(
    ("arguments", "error", "telling"),
    [
        (("npu2", dataclasses.replace(SMALL, head_format="q4_0"), 16), ShapeError,
         rf"\[simulate_decode\] formats q4_0, q4nx {SIZES}"),
        (("npu2", dataclasses.replace(in_format(SMALL, "q8_0"), head_format="bf16"), 16),
         ShapeError, f"formats bf16, q8_0 {SIZES}"),
        (
            ("npu2", dataclasses.replace(in_format(SMALL, "q4_0"), layers=(
                DecodeLayer(0, ("q4_0", "q4_0", "q8", "q4_0")),)), 16),
            ShapeError, f"formats q4_0, q8 {SIZES}",
        ),
        (("npu3", "gemma3-1b", 1024), DeviceError, "npu3"),
        (("npu2", "gemma3-7b", 1024), ArgumentError, "gemma3-7b"),
        (("npu2", "gemma3-1b", 0), ShapeError, "context is 0"),
        (("npu2", "gemma3-1b", 1 << 40), ShapeError, "context"),
        (("npu2", "gemma3-1b", 1.5), ArgumentError, "whole number"),
        (("npu2", dataclasses.replace(SMALL, layers=()), 16), ShapeError, "0 layers"),
        (("npu2", dataclasses.replace(SMALL, head_dim=512), 16), ShapeError, "head"),
        (("npu2", dataclasses.replace(SMALL, head_format="q2"), 16), ArgumentError, "q2"),
        (
            ("npu2", dataclasses.replace(SMALL, layers=(DecodeLayer(8), DecodeLayer(9))), 16),
            ShapeError, "windows",
        ),
    ],
)  # fmt: skip
def test_nonsense_is_refused(arguments: Any, error: type[Exception], telling: str) -> None:
    with pytest.raises(error, match=telling):
        npu.simulate_decode(*arguments)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "47", True])
def test_read_ceilings_that_are_none(value: Any) -> None:
    with pytest.raises(ArgumentError, match="read ceiling"):
        npu.simulate_decode("npu2", "gemma3-1b", 16, read_gbs=value)
    with pytest.raises(ArgumentError, match="format"):
        npu.simulate_decode("npu2", "gemma3-1b", 16, format="q5")


def test_the_split_of_a_run_counts_every_byte() -> None:
    one = run("npu2", request_of(SMALL, 64, (1, 0), ("q4nx",) * 4, 64), {})
    two = run("npu2", request_of(SMALL, 64, (2, 0), ("q4nx",) * 4, 64), {})
    assert one.terms.sum() == pytest.approx(one.cycles) and np.all(two.bytes > one.bytes)
    assert two.cycles > one.cycles


def test_published_curves() -> None:
    assert published_decode.curves("gemma3-270m") == {}
    assert len(published_decode.curves("gemma3-4b")) == 2
    for shape in ("gemma3-1b", "gemma3-4b"):
        for curve in published_decode.curves(shape).values():
            assert list(curve) == sorted(curve)
            assert list(curve.values()) == sorted(curve.values(), reverse=True)


@pytest.mark.parametrize("format", ["q4nx", "q4_0", "q8_0"])
def test_the_trace_of_a_token(tmp_path: Path, format: str) -> None:
    shape = in_format(SMALL, format)
    trace = npu.trace_token("npu2", shape, 64)
    request = request_of(shape, 64, (6, 3), (format,) * 4, SMALL.vocabulary)
    whole = npu.perf.operation_simulation.simulate_operation("decoder", "npu2", request)
    assert trace.simulation.seconds == pytest.approx(whole.seconds + whole.dispatch_seconds)
    assert trace.left_out == 0
    file = tmp_path / "t.json.gz"
    trace.save(file)
    document = json.loads(gzip.decompress(file.read_bytes()))
    assert document["otherData"]["tokens_per_second"] == 1 / trace.simulation.seconds
    names = {event["name"] for event in document["traceEvents"]}
    kept = "gemv_kept" if format == "q4nx" else "gemv_small_kept"
    assert {kept, "attention_scores", "vector_input"} <= names
    pytest.importorskip("matplotlib")
    trace.plot(tmp_path / "t.svg")
    text = (tmp_path / "t.svg").read_text()
    assert "Simulated token on npu2, small" in text and "vector core" in text


def test_shapes_in_the_command_line_are_those_of_the_simulation() -> None:
    from npu.cli import bench_simulated

    assert bench_simulated.SHAPES == decode_simulation.SHAPES
