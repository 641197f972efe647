"""The simulated time of a batch: it adds up, agrees with whole steps on the array, is never faster
than its bytes or its parts, and nonsense is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import npu
from npu import _npu
from npu._npu import facts
from npu.errors import ArgumentError, DeviceError, ShapeError
from npu.perf.decode_simulation import DecodeLayer, DecodeShape
from npu.perf.execution import constant
from npu.perf.prefill_simulation import request_of_steps, stream_cycles

BLOCK_BYTES = 5120
# A model small enough for many runs.
SMALL = DecodeShape(
    "small", 320, 4, 2, 64, 512, 4096,
    tuple(DecodeLayer(128 if i % 3 else 0) for i in range(4)),
)  # fmt: skip
PLAIN = ("q4nx",) * 4


def in_format(shape: DecodeShape, format: str) -> DecodeShape:
    layers = tuple(DecodeLayer(layer.window, (format,) * 4) for layer in shape.layers)
    return dataclasses.replace(shape, layers=layers, head_format=format)


def whole_step(device: str, shape: DecodeShape, sequences: int, tokens: int, context: int) -> float:
    """Seconds of a step through all layers and the head, in one stream."""
    is_global = sum(layer.window == 0 for layer in shape.layers)
    counts, formats = (len(shape.layers) - is_global, is_global), shape.layers[0].formats
    request = request_of_steps(shape, tokens, context - tokens, counts, formats, (0, 0), sequences)
    return stream_cycles(device, request, {}) / _npu.arch.device_geometry(device)["clock_hz"]


@pytest.mark.parametrize("device", ["npu1", "npu2"])
@pytest.mark.parametrize("format", ["q4nx", "q4_0", "q8_0"])
@pytest.mark.parametrize(
    ("sequences", "tokens", "context"),
    [(8, 1, 40), (3, 8, 256), (1, 1, 1), (5, 2, 700), (1, 1, 3000), (2, 3, 3000)],
)
def test_a_step_is_what_its_parts_add_up_to(
    device: str, sequences: int, tokens: int, context: int, format: str
) -> None:
    shape = in_format(SMALL, format)
    found = npu.simulate_batch(device, shape, context, sequences, tokens=tokens)
    dispatch = constant("dispatch") * 1e-6
    whole = whole_step(device, shape, sequences, tokens, context)
    # Small steps, of which the waits between them are a larger part than of a real model's.
    assert found.seconds - dispatch == pytest.approx(whole, rel=0.05)
    assert sum(found.split.values()) == pytest.approx(found.seconds, rel=1e-9)
    assert found.split["dispatch"] == pytest.approx(dispatch)
    assert all(value >= 0 for value in found.split.values()), found.split
    assert 0 < found.head < found.seconds
    assert found.tokens_per_second == pytest.approx(sequences * tokens / found.seconds)


@pytest.mark.parametrize("format", ["q4nx", "q4_0"])
def test_weights_are_read_once_for_all_sequences(format: str) -> None:
    shape = in_format(SMALL, format)
    one, eight = (npu.simulate_batch("npu2", shape, 64, count) for count in (1, 8))
    rows_of_blocks = {  # n / 32, blocks along k
        "qkv": ((4 + 2 * 2) * 64 // 32, 2), "output": (10, 1), "gate_up": (32, 2), "down": (10, 2)
    }  # fmt: skip
    layer = sum(rows * blocks for rows, blocks in rows_of_blocks.values())
    blocks = len(SMALL.layers) * layer + SMALL.vocabulary // 32 * 2
    # Of small blocks with the beginning of the next one.
    assert one.bytes["weights"] == eight.bytes["weights"] == blocks * BLOCK_BYTES
    # A chunk of 64 positions, K and V in two objects of A each, for each key head of a sequence;
    # and headers for the rows of the array, which have one of these each, behind one that counts
    # them.
    a_bytes = facts.PREFILL_A_BYTES["npu2"]
    for found, sequences, jobs in ((one, 1, 1), (eight, 8, 4)):
        objects = sequences * 2 * 4 + (1 + jobs) * 4
        assert found.bytes["kv"] == len(SMALL.layers) * objects * a_bytes
    assert eight.seconds * eight.ceiling > sum(
        value for name, value in eight.bytes.items() if name != "activations written"
    )
    assert one.seconds < eight.seconds < 2 * one.seconds


def test_time_grows_with_what_is_read() -> None:
    near, far = (npu.simulate_batch("npu2", SMALL, context) for context in (512, 8192))
    farther = npu.simulate_batch("npu2", SMALL, 16384)
    assert near.seconds < far.seconds < farther.seconds
    # Of the layers, those that see all positions read on.
    assert farther.bytes["kv"] / far.bytes["kv"] == pytest.approx(2, rel=0.05)
    slow = npu.simulate_batch("npu2", SMALL, 512, read_gbs=5)
    assert slow.seconds > 1.5 * near.seconds and slow.ceiling == 5e9
    wide = dataclasses.replace(SMALL, vocabulary=65536)
    assert npu.simulate_batch("npu2", wide, 512).head > 5 * near.head


def test_a_batch_of_a_real_model_is_faster_than_its_sequences_one_by_one() -> None:
    for shape in ("gemma3-1b", "gemma3-4b"):
        batch = npu.simulate_batch("npu2", shape, 1024)
        single = npu.simulate_decode("npu2", shape, 1024)
        assert 2 < batch.tokens_per_second / single.tokens_per_second < 8


@pytest.mark.parametrize(
    ("arguments", "error", "telling"),
    [
        (("npu3", SMALL, 64), DeviceError, "device is"),
        (("npu2", "gemma3-7b", 64), ArgumentError, "shape is"),
        (("npu2", SMALL, 0), ArgumentError, "context"),
        (("npu2", SMALL, 64, 9), ArgumentError, "sequences"),
        (("npu2", SMALL, 64, 0), ArgumentError, "sequences"),
        (("npu2", dataclasses.replace(SMALL, width=6400), 64), ShapeError, "width"),
        (("npu2", dataclasses.replace(SMALL, head_format="q4_0"), 64), ShapeError, "of different"),
    ],
)
def test_nonsense_is_refused(arguments: Any, error: type[Exception], telling: str) -> None:
    with pytest.raises(error, match=telling):
        npu.simulate_batch(*arguments)


def test_nonsense_tokens_are_refused() -> None:
    with pytest.raises(ArgumentError, match="tokens"):
        npu.simulate_batch("npu2", SMALL, 64, tokens=9)
    with pytest.raises(ArgumentError, match="5 new tokens in a context of 4"):
        npu.simulate_batch("npu2", SMALL, 4, tokens=5)
