"""Models on Q4NX files: logits against Hugging Face transformers running the dequantised weights in
float32, the demo model's answers, and where the weights of a large file are.

The reference's weights come from the blocks through the package's float32 formula, which
test_q4nx_tensor.py checks against plain loops.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import compare
import numpy as np
import pytest
from devices_under_test import DEVICES
from exact_projection import ExactCache, ExactProjection
from gemma3_files import Shape, random_weights, small_vocabulary, write_model
from q4nx_models import bf16, dequantised, save_checkpoint, save_tokenizer_json

from npu import gemma3, q4nx
from npu.errors import ArgumentError, FormatError
from npu.formats.q4nx import Tensor, layout
from npu.formats.q4nx.container import Q4nxFile
from npu.models.convert import convert
from npu.models.gemma3 import model as model_module
from npu.models.gemma3.model import Model
from npu.models.sources import Q4nxSource, open_source
from npu.ops import linear as linear_module
from npu.ops.linear import Weight

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "examples/demo_model/demo-gemma3.gguf"
sys.path.insert(0, str(DEMO.parent))

from perplexity import requantise  # noqa: E402

SCRIPT = ROOT / "examples/demo_model/random_model.py"
SHAPES = {
    "whole blocks": Shape(width=256, ffn_width=256, head_dim=64),
    "padded": Shape(),
    "nothing fits": Shape(width=72, heads=3, kv_heads=3, head_dim=40, ffn_width=100, window=7),
}
TOKENS = 64


def reference_logits(path: Path, shape: Shape, tokens: list[int]) -> np.ndarray:
    """transformers in float32 with the file's weights, its head apart from the embedding."""
    reference = pytest.importorskip("gemma3_reference", exc_type=ImportError)
    weights = dequantised(path)
    head = weights.pop("output.weight")
    model = reference.hf_model(shape, weights)
    torch = reference.torch
    model.lm_head.weight = torch.nn.Parameter(torch.from_numpy(head))
    return reference.hf_logits(model, tokens)


@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_the_references(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    size = len(small_vocabulary().pieces)
    weights = random_weights(shape, size)
    path = convert(write_model(tmp_path / "m.gguf", shape, weights=weights), tmp_path / "m.q4nx")
    tokens = np.random.default_rng(1).integers(0, size, TOKENS).tolist()
    expected = reference_logits(path, shape, tokens)
    with pytest.MonkeyPatch.context() as patch:
        # Projections in float32 of the exact blocks: only the structure is compared.
        patch.setattr(model_module, "Projection", ExactProjection)
        patch.setattr(model_module.Prefill, "of", lambda *_: None)
        ExactCache().install(patch)
        model = Model(open_source(path))
        actual = model.forward(tokens, model.new_cache(), all_logits=True)
    compare.assert_logits(actual, expected, compare.FLOAT32_LOGITS)
    model = Model(open_source(path))
    cache = model.new_cache()
    rows = [model.forward(tokens[:50], cache, all_logits=True)]
    rows += [model.forward([token], cache) for token in tokens[50:]]
    bound = compare.prompt_logits_rms(shape.layers, bfp16=True, rounded_weights=True)
    compare.assert_logits(np.concatenate(rows), expected, 6 * bound)
    assert compare.rms_error(np.concatenate(rows), expected) <= bound


def test_a_classic_mistake_is_far_outside(tmp_path: Path) -> None:
    """The embedding scaled twice, as when a reader ignores that it is stored scaled."""
    shape = Shape()
    path = convert(write_model(tmp_path / "m.gguf", shape), tmp_path / "m.q4nx")
    expected = reference_logits(path, shape, list(range(20)))
    source = open_source(path)
    source.embedding_scaled = False
    model = Model(source)
    actual = model.forward(list(range(20)), model.new_cache(), all_logits=True)
    assert compare.max_error(actual, expected) > 6 * compare.prompt_logits_rms(
        shape.layers, bfp16=True
    )


def test_projections_stay_in_the_file(tmp_path: Path) -> None:
    """Fused projections are views of the mapped file: q, k, v and gate, up are neighbours."""
    shape = Shape(width=256, ffn_width=256, head_dim=64, layers=1)
    path = convert(write_model(tmp_path / "m.gguf", shape), tmp_path / "m.q4nx")
    model = Model(open_source(path))
    layer = model._layers[0]
    for projection in (layer.qkv, layer.gate_up, layer.output, layer.down, model._head):
        (tensor,), (weight,) = projection.tensors, projection.weights
        assert tensor.format == "q4nx" and not tensor.blocks.flags.owndata
        assert not tensor.blocks.flags.writeable
        assert weight.bound.in_place
        assert projection.nbytes == 0
    assert model.weights_report.rows[0].error == 0 and len(model.weights_report.rows) == 5
    assert layer.qkv.shape == (256 + 128 + 128, 256)
    source = open_source(path)
    parts = [source.q4nx(f"blk.0.attn_{part}.weight") for part in "qkv"]
    expected = np.concatenate([part.to_numpy(np.float32) for part in parts])  # type: ignore[union-attr]
    assert np.array_equal(layer.qkv.tensors[0].to_numpy(np.float32), expected)


def test_a_weight_with_zero_points_is_refused() -> None:
    tensor = q4nx.quantize(np.ones((32, 256), np.float32))
    older = Tensor.from_blocks(tensor.blocks, tensor.shape, dialect="zero_point")
    assert Weight(tensor).nbytes == 0
    with pytest.raises(ArgumentError, match=r"zero_point .* pass w.to_additive"):
        Weight(older)


# Around the change from GEMV to expanded blocks, each tile of the GEMM, weights expanded in parts.
@pytest.mark.parametrize("rows", [1, 9, 48, 49, 100, 200, 300])
@pytest.mark.parametrize("limit", [1 << 30, 100_000])
@pytest.mark.parametrize("device", DEVICES)
def test_products_of_any_length(
    rows: int, limit: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_module, "EXPANDED_BYTES", limit)
    random = np.random.default_rng(rows)
    tensor = q4nx.quantize(random.standard_normal((330, 500)).astype(np.float32))
    weight = Weight(tensor, device=device, bf16="native")
    x = random.standard_normal((rows, 500)).astype(np.float32)
    y = weight.multiply(x)
    rounded = bf16(x).astype(np.float64)
    # Longer ones meet weights that were rounded to bfloat16.
    exact = tensor.to_numpy(
        np.float32 if rows <= linear_module.DECODE_ROWS else layout.BFLOAT16
    ).astype(np.float64)
    # float32 sums of 500 products; GEMV's terms (128 + code) d x are up to 16 times the weights'.
    bound = np.abs(rounded) @ np.abs(exact).T * 2.0**-14
    assert y.shape == (rows, 330) and y.dtype == np.float32
    assert (np.abs(y - rounded @ exact.T) <= bound).all()


def test_a_file_without_a_head(tmp_path: Path) -> None:
    """The stored embedding is scaled, so it cannot serve as head."""
    import q4nx_files

    ours = Q4nxFile(convert(write_model(tmp_path / "m.gguf"), tmp_path / "m.q4nx"))
    raw = {
        name: (entry.dtype, entry.shape, ours._file.raw(entry).tobytes())
        for name, entry in ours.entries.items()
        if name != "lm_head.weight"
    }
    path = q4nx_files.write_file(tmp_path / "n.q4nx", raw, ours.metadata)
    with pytest.raises(FormatError, match=r"lm_head.weight is missing"):
        Model(Q4nxSource(Q4nxFile(path)))


QUESTIONS = {
    "What is 17 + 25?": "17 + 25 = 42.",
    "What is 8 minus 30?": "8 - 30 = -22.",
    "Convert 3 hours to minutes.": "3 hours are 180 minutes.",
    "How many centimetres are in 7 metres?": "7 metres are 700 centimetres.",
    "Who painted the Mona Lisa?": "I only know adding, subtracting and a few unit conversions.",
}


def test_a_checkpoint_folder_runs_directly(tmp_path: Path) -> None:
    """Unconverted: bfloat16 projections, norms plus one, against the checkpoint's own library."""
    reference = pytest.importorskip("gemma3_reference", exc_type=ImportError)
    shape = Shape()
    weights = random_weights(shape, len(small_vocabulary().pieces))
    for name in weights:
        if name.endswith("norm.weight"):  # w must be a bfloat16 number
            weights[name] = bf16(weights[name] - 1) + np.float32(1)
    folder = save_checkpoint(tmp_path / "hf", shape, weights)
    save_tokenizer_json(folder)
    model, tokenizer = gemma3.load(folder)
    tokens = tokenizer.encode("hello world, user and model " * 3)
    actual = model.forward(tokens, model.new_cache(), all_logits=True)
    expected = reference.hf_logits(reference.hf_model(shape, weights), tokens)
    bound = compare.prompt_logits_rms(shape.layers, bfp16=True)
    compare.assert_logits(actual, expected, 6 * bound)


@pytest.mark.parametrize("kind", ["BF16", "Q4_0", "Q4_1"])
def test_the_demo_model_answers(tmp_path: Path, kind: str) -> None:
    source = DEMO if kind == "BF16" else requantise(DEMO, tmp_path / "m.gguf", kind)
    model, tokenizer = gemma3.load(convert(source, tmp_path / "demo.q4nx"))
    count = len(QUESTIONS) if kind == "BF16" else 2
    for question, answer in list(QUESTIONS.items())[:count]:
        prompt = tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": question}]))
        assert "".join(gemma3.Generation(model, tokenizer, prompt)) == answer


@pytest.mark.slow
def test_loading_a_large_file_copies_no_weight(tmp_path: Path) -> None:
    """The 26 layers of Gemma 3 1B with a quarter of its vocabulary: 0.65 GB of tensors that stay in
    the mapped file. `npu bench` prints what loading takes in time and memory."""
    path = tmp_path / "big.q4nx"
    arguments = [sys.executable, str(SCRIPT), str(path), "--vocabulary", "65536"]
    subprocess.run(arguments, check=True, capture_output=True)
    model, tokenizer = gemma3.load(path)
    assert path.stat().st_size > 6e8 and (len(tokenizer), len(model._layers)) == (65536, 26)
    weights = [model._head]
    for layer in model._layers:
        weights += [layer.qkv, layer.output, layer.gate_up, layer.down]
    assert sum(tensor.nbytes for weight in weights for tensor in weight.tensors) > 5e8
    assert [weight.nbytes for weight in weights] == [0] * len(weights)


def test_the_random_model_runs(tmp_path: Path) -> None:
    """Finite logits of the scale that its script promises, at a small size that needs padding."""
    path = tmp_path / "r.q4nx"
    sizes = {"layers": 3, "width": 96, "heads": 2, "head-dim": 32, "ffn": 160, "vocabulary": 900}
    options = [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
    subprocess.run([sys.executable, str(SCRIPT), str(path), *options], check=True)
    model, tokenizer = gemma3.load(path)
    logits = model.prefill(tokenizer.encode("abc def"), model.new_cache(64))
    assert np.isfinite(logits).all() and 0.3 < logits.std() < 3
    from npu.models.report import verify

    assert verify(Q4nxFile(path)) == []


def test_unknown_weights_choice(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"weights is 'int4'; use 'auto', 'q8', 'q4nx', 'bf16'"):
        gemma3.load(write_model(tmp_path / "m.gguf"), weights="int4")
