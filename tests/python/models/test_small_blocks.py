"""Models whose matrices are all of a type that small blocks hold: tokens, prompts and batches on
both arrays, and the host path, against Hugging Face's model in float32 with the blocks' weights.

Bounds are those of compare.py. Also: what the report says, blocks in memory and in a mapped cache,
models of both sizes in turn, bits at register level, wrong weights are far outside.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import compare
import numpy as np
import pytest
from devices_under_test import DEVICES
from gemma3_files import Shape, config_of, random_weights, small_types, write_model
from reference_case import Case, case_of
from test_batch import STEPS, batching, stepped
from test_decoder import SIZE, decoded, float32_logits, tokens_of, without_decoder, without_prefill
from test_prompts import CHUNKS, TOKENS, in_chunks

import npu
from npu import gemma3
from npu.errors import ArgumentError
from npu.formats.blocks import BlockTensor
from npu.models.gemma3.decoder import Decoder
from npu.models.gemma3.model import Model
from npu.models.gemma3.names import tensor_shapes
from npu.models.sources import open_source

SHAPES = {
    "ragged blocks": Shape(layers=6),
    "whole blocks, heads of 64": Shape(layers=2, width=256, head_dim=64, ffn_width=512, window=12),
}


def weights_of_blocks(model: Model, shape: Shape) -> dict[str, np.ndarray]:
    """What the array multiplies by, by the names of the file; the head is the embedding."""
    sizes = tensor_shapes(config_of(shape, SIZE))
    found: dict[str, np.ndarray] = {}
    parts = {
        "qkv": ("attn_q", "attn_k", "attn_v"), "output": ("attn_output",),
        "gate_up": ("ffn_gate", "ffn_up"), "down": ("ffn_down",),
    }  # fmt: skip
    for index, layer in enumerate(model._layers):
        for projection, names in parts.items():
            tensors = getattr(layer, projection).tensors
            rows = np.concatenate([tensor.to_numpy(np.float32) for tensor in tensors])
            for name in names:
                name = f"blk.{index}.{name}.weight"
                found[name], rows = np.split(rows, [sizes[name][0]])
            assert not rows.size
    (head,) = model._head.tensors
    return found | {"token_embd.weight": head.to_numpy(np.float32)}


@pytest.fixture(scope="module", params=SHAPES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    shape, tokens = SHAPES[request.param], tokens_of(TOKENS)
    weights, types = random_weights(shape, SIZE), small_types(shape.layers)
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    write_model(path, shape, weights=weights, types=types)
    weights |= weights_of_blocks(Model(open_source(path)), shape)
    return case_of(shape, path, weights, tokens)


def check(actual: np.ndarray, expected: np.ndarray, bound: float) -> None:
    assert actual.shape == expected.shape
    assert compare.max_error(actual, expected) <= 6 * bound
    assert compare.rms_error(actual, expected) <= bound


@pytest.mark.parametrize("device", DEVICES)
def test_tokens_are_the_references(case: Case, device: str) -> None:
    with npu.device(device):
        model = Model(open_source(case.path))
        cache = model.new_cache()
        actual = decoded(model, case.tokens[:36], cache)
        row = model.forward([case.tokens[36]], cache)[0]
        cache.truncate(36)
        values, ids = model.top([case.tokens[36]], cache, 7, SIZE - 3)
    assert np.array_equal(ids, np.argsort(-row[: SIZE - 3], kind="stable")[:7])
    assert np.array_equal(values, row[ids])
    bound = compare.decoder_logits_rms(case.shape.layers)
    compare.assert_logits(actual, case.expected[:36], 6 * bound)
    check(actual, case.expected[:36], bound)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chunks", CHUNKS)
def test_prompts_are_the_references(case: Case, device: str, chunks: str) -> None:
    """Also the tokens after them."""
    sizes = CHUNKS[chunks]
    with npu.device(device):
        model = Model(open_source(case.path))
        actual = in_chunks(model, case.tokens, sizes, model.new_cache())
        cache = model.new_cache()
        model.prefill(case.tokens[: sizes[0] - 5], cache)
        after = decoded(model, case.tokens[sizes[0] - 5 : sizes[0]], cache)
    bound = compare.prompt_logits_rms(
        case.shape.layers, bfp16="npu2" in device, rounded_weights=True
    )
    compare.assert_logits(actual, case.expected, 6 * bound)
    check(actual, case.expected, bound)
    check(after, case.expected[sizes[0] - 5 : sizes[0]], bound)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("designs", ["array", "host"])
def test_batches_are_the_references(case: Case, device: str, designs: str) -> None:
    """Also where single tokens are decode steps."""
    steps = [step for step in STEPS if sum(step) <= TOKENS]
    with batching(device, designs):
        model = Model(open_source(case.path))
        assert model.batches_on_array
        actual = stepped(model, case.tokens, steps)
    expected = case.expected[[at + count - 1 for at, count in steps]]
    bfp16 = "npu2" in device
    check(
        actual,
        expected,
        compare.batch_logits_rms(case.shape.layers, bfp16=bfp16, rounded_weights=True),
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chunk", [TOKENS, 50, 11])
def test_the_host_path_is_the_references(
    case: Case, device: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GEMV up to 48 rows, expanded weights above."""
    without_decoder(monkeypatch)
    without_prefill(monkeypatch)
    with npu.device(device, bf16="native"):
        model = Model(open_source(case.path))
        cache = model.new_cache()
        parts = [
            model.forward(case.tokens[at : at + chunk], cache, all_logits=True)
            for at in range(0, TOKENS, chunk)
        ]
    check(
        np.concatenate(parts), case.expected, compare.bf16_logits_rms(case.shape.layers, operands=2)
    )


@pytest.mark.parametrize("device", DEVICES)
def test_another_zero_is_far_outside(
    case: Case, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Codes of 4 bits that are all one higher."""
    real = Decoder.of.__func__  # type: ignore[attr-defined]

    def higher(cls: type[Decoder], config: object, source: object, blocks: dict, scale: float):
        for tensors in blocks.values():
            for at, tensor in enumerate(tensors):
                if tensor.format == "q4_0":
                    own = tensor.blocks.copy()
                    codes = own[..., 512:]
                    codes[:] = np.minimum(codes & 15, 14) + 1 | np.minimum(codes >> 4, 14) + 1 << 4
                    tensor.blocks[:] = own
                    tensors[at] = BlockTensor(tensor.blocks, tensor.shape, "q4_0")
        return real(cls, config, source, blocks, scale)

    monkeypatch.setattr(Decoder, "of", classmethod(higher))
    with npu.device(device):
        model = Model(open_source(case.path))
        actual = decoded(model, case.tokens[:20], model.new_cache())
    bound = compare.decoder_logits_rms(case.shape.layers)
    assert compare.rms_error(actual, case.expected[:20]) > 3 * bound


def test_load_reports_the_blocks(case: Case) -> None:
    model, _ = gemma3.load(case.path)
    report, layers = model.weights_report, case.shape.layers
    assert [(row.kind, row.stored, row.format, row.tensors) for row in report.rows] == [
        ("attention q, k, v", "Q4_0", "q4_0", 2 * layers),
        ("attention q, k, v", "Q8_0", "q8_0", layers),
        ("attention output", "Q4_0", "q4_0", layers),
        ("ffn gate, up", "Q4_0", "q4_0", layers),
        ("ffn gate, up", "Q8_0", "q8_0", layers),
        ("ffn down", "Q5_0", "q8_0", layers),
        ("head", "Q8_0", "q8_0", 1),
    ]
    # Scales are an eighth of a bfloat16 weight here, which their rounding to bfloat16 keeps.
    assert {row.error for row in report.rows} == {0}
    for name, values in weights_of_blocks(model, case.shape).items():
        assert np.array_equal(values, model.source.float32(name)), name
    projections = [p for x in model._layers for p in (x.qkv, x.output, x.gate_up, x.down)]
    tensors = [t for p in [*projections, model._head] for t in p.tensors]
    assert {tensor.blocks.shape[-1] for tensor in tensors} == {4608}
    assert report.nbytes == sum(tensor.blocks.nbytes for tensor in tensors)
    assert any("Q4_0 -> q4_0" in line for line in report.lines())
    large, _ = gemma3.load(case.path, weights="q4nx")
    assert {row.format for row in large.weights_report.rows} == {"q4nx"}


def logits(model: Model, tokens: list[int]) -> np.ndarray:
    """Of prompt, tokens and a batch, as float32 words."""
    cache = model.new_cache()
    parts = [
        model.forward(tokens[:40], cache, all_logits=True),
        *(model.forward([token], cache) for token in tokens[40:46]),
        stepped(model, tokens, [(0, 1), (17, 3), (30, 8)]),
    ]
    return np.concatenate(parts)


@pytest.mark.parametrize("device", DEVICES)
def test_a_mapped_cache_gives_the_same_bits(
    case: Case, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with batching(device):
        in_memory = logits(Model(open_source(case.path)), case.tokens)
        monkeypatch.setenv("NPU_CACHE", str(tmp_path / "cache"))
        for _ in range(2):  # the second time from the file
            model = Model(open_source(case.path))
            assert model.weights_report.location.startswith(str(tmp_path))
            assert np.array_equal(logits(model, case.tokens), in_memory)


@pytest.mark.parametrize("device", DEVICES)
def test_models_of_both_sizes_in_turn(case: Case, device: str, tmp_path: Path) -> None:
    """Each with the bits that it has alone."""
    types = {"token_embd.weight": small_types(1)["token_embd.weight"]}
    other = write_model(tmp_path / "other.gguf", case.shape, types=types)
    with batching(device):
        paths = [case.path, other]
        alone = [logits(Model(open_source(path)), case.tokens) for path in paths]
        models = [Model(open_source(path)) for path in paths]
        caches = [model.new_cache() for model in models]
        rows: list[list[np.ndarray]] = [[], []]
        for first, end in ((0, 40), *((at, at + 1) for at in range(40, 46))):
            for model, cache, own in zip(models, caches, rows, strict=True):
                all_logits = end - first > 1
                own.append(model.forward(case.tokens[first:end], cache, all_logits=all_logits))
        for own, expected in zip(rows, alone, strict=True):
            assert np.array_equal(np.concatenate(own), expected[:46])


@pytest.mark.parametrize("device", ["emu:npu1", "emu:npu2"])
def test_bits_are_those_of_register_level(
    case: Case, device: str, monkeypatch: pytest.MonkeyPatch, fresh_devices: Callable[[], None]
) -> None:
    found = []
    for replays in ("1", "0"):
        monkeypatch.setenv("NPU_REPLAY", replays)
        fresh_devices()
        with batching(device):
            model = Model(open_source(case.path))
            before = npu.stats()
            found += [logits(model, case.tokens) for _ in range(2)]
            assert ((npu.stats() - before).replays > 0) is (replays == "1")
    assert all(np.array_equal(one, found[0]) for one in found)


@pytest.mark.parametrize("device", ["emu:npu1", "emu:npu2"])
def test_bit_exact_arithmetic_gives_the_logits(device: str, tmp_path: Path) -> None:
    shape, tokens = Shape(layers=1, width=64, ffn_width=64), tokens_of(24)
    path = write_model(tmp_path / "m.gguf", shape, types=small_types(1))
    expected = float32_logits(path, tokens)
    with npu.device(device, arithmetic="silicon", designs="array"):
        model = Model(open_source(path))
        cache = model.new_cache()
        check(decoded(model, tokens[:3], cache), expected[:3], compare.decoder_logits_rms(1))
        prompt = in_chunks(model, tokens, (24,), model.new_cache())
        batch = stepped(model, tokens, [(0, 2), (5, 3), (16, 8)])
    bfp16 = device == "emu:npu2"
    check(prompt, expected, compare.prompt_logits_rms(1, bfp16=bfp16, rounded_weights=True))
    bound = compare.batch_logits_rms(1, bfp16=bfp16, rounded_weights=True)
    check(batch, expected[[1, 7, 23]], bound)


def test_blocks_of_two_sizes_in_one_model_are_refused(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which npu.models.prepare never makes."""
    real = Decoder.of.__func__  # type: ignore[attr-defined]

    def mixed(cls: type[Decoder], config: object, source: object, blocks: dict, scale: float):
        key = next(iter(blocks))
        rows, columns = blocks[key][0].shape
        large = np.zeros((-(-rows // 32), -(-columns // 256), 5120), np.uint8)
        blocks[key][0] = BlockTensor(large, (rows, columns), "q4nx")
        return real(cls, config, source, blocks, scale)

    monkeypatch.setattr(Decoder, "of", classmethod(mixed))
    with pytest.raises(ArgumentError, match="blocks of q4nx have 5120 bytes, those of this conf"):
        Model(open_source(case.path))
