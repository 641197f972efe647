"""Which block formats a model's matrices get, what they hold, what the report says of them.

Blocks against the values of the file (the `gguf` package's), products of matrices in several
formats against float64, reported errors against errors over all weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
from gemma3_files import Shape, random_weights, small_vocabulary, write_model
from gguf import GGMLQuantizationType as Type
from q4nx_models import K_SHAPE, save_checkpoint, save_tokenizer_json
from test_block_conversion import TYPES, stored_rows

import npu
from npu import q4nx
from npu.errors import FormatError
from npu.formats.blocks import FORMATS, bytes_of
from npu.formats.gguf_file import GgufFile
from npu.models.convert import convert
from npu.models.gemma3 import products
from npu.models.gemma3.array_model import Regions
from npu.models.gemma3.config import read_config
from npu.models.gemma3.model import Model
from npu.models.gemma3.weights import matrices
from npu.models.prepare import prepare
from npu.models.prepare.converter import convert_rows, in_order
from npu.models.prepare.formats import block_formats
from npu.models.prepare.plan import Matrix, Part, Segment, plan
from npu.models.prepare.report import measure
from npu.models.sources import open_source
from npu.models.sources.gguf import GgufSource

SHAPE = Shape(width=256, ffn_width=512, head_dim=64, layers=2)
SIZE = len(small_vocabulary().pieces)
AUTO = {  # beside a matrix that small blocks do not hold
    Type.Q4_0: "q4nx", Type.Q4_1: "q4nx", Type.Q4_K: "q4nx",
    Type.Q2_K: "q8", Type.Q3_K: "q8", Type.IQ4_NL: "q8", Type.IQ4_XS: "q8",
    Type.Q5_0: "q8", Type.Q5_1: "q8", Type.Q5_K: "q8", Type.Q6_K: "q8", Type.Q8_0: "q8",
    Type.F16: "bf16", Type.BF16: "bf16", Type.F32: "bf16",
}  # fmt: skip
SMALL = {Type.Q4_0: "q4_0", Type.Q5_0: "q8_0", Type.Q8_0: "q8_0"}  # alone in a model
EXACT = {
    (Type.Q5_0, "q8"), (Type.Q6_K, "q8"), (Type.Q8_0, "q8"), (Type.BF16, "bf16"),
    (Type.Q5_0, "q8_0"), (Type.Q8_0, "q8_0"),
}  # fmt: skip
# Relative RMS error that a format may add; 4 bits on random codes of another type: a few percent.
BOUNDS = {"bf16": 0.002, "q8": 0.005, "q4nx": 0.12, "q4_0": 0.002, "q8_0": 0.006}


def tensor_file(path: Path, raw: np.ndarray, kind: Type) -> GgufSource:
    """A file with one tensor, "t"."""
    return tensors_file(path, {"t": (raw, kind)})


def tensors_file(path: Path, tensors: dict[str, tuple[np.ndarray, Type]]) -> GgufSource:
    writer = gguf.GGUFWriter(path, "gemma3")
    for name, (raw, kind) in tensors.items():
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufSource(GgufFile(path))


def rows_of(kind: Type, rows: int, k: int) -> np.ndarray:
    if kind not in (Type.IQ4_NL, Type.IQ4_XS):
        return stored_rows(kind, rows, k)
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(1).integers(0, 256, (rows, k // elements, size), dtype=np.uint8)
    raw[:, :, :2] = np.array([0.01], np.float16).view(np.uint8)
    return raw.reshape(rows, -1)


def expected_format(kind: Type, kinds: Iterable[Type], weights: str) -> str:
    """By the rule of docs/weights.md, of a type of a model that has these."""
    floats = (Type.F16, Type.BF16, Type.F32)
    fitted = (Type.Q6_K, *(floats if weights == "q8" else ()))
    if any(k in SMALL for k in kinds) and all(k in SMALL or k in fitted for k in kinds):
        return SMALL.get(kind, "q8_0")
    return "q8" if weights == "q8" and kind in floats else AUTO[kind]


@pytest.mark.parametrize("kind", AUTO, ids=lambda kind: kind.name)
@pytest.mark.parametrize("weights", ["auto", "q8", "q4nx", "bf16"])
@pytest.mark.parametrize("beside", [None, Type.Q4_1, Type.Q8_0])
def test_every_type_by_every_choice(
    kind: Type, weights: str, beside: Type | None, tmp_path: Path
) -> None:
    """The format, its error over all weights, and the report of it; alone in a model, and beside a
    matrix that has no small blocks, and one that has."""
    n, k = 96, 512
    raw = rows_of(kind, n, k)
    tensors, matrices = {"t": (raw, kind)}, [Matrix("m", "some kind", ("t",))]
    if beside is not None:
        tensors["other"] = rows_of(beside, 32, 256), beside
        matrices.append(Matrix("o", "other", ("other",)))
    source = tensors_file(tmp_path / "t.gguf", tensors)
    segment, *_ = plan(source, matrices, weights)
    kinds = [kind] if beside is None else [kind, beside]
    expected = weights if weights in ("q4nx", "bf16") else expected_format(kind, kinds, weights)
    assert segment.format == expected and segment.shape == (n, k)
    made = convert_rows(source, "t", slice(0, n), segment.format)
    values = gguf.quants.dequantize(raw, kind).astype(np.float64)
    found = npu.formats.blocks.BlockTensor(made, (n, k), segment.format).to_numpy()
    error = (np.square(found - values).sum() / np.square(values).sum()) ** 0.5
    (row,) = measure(source, [segment])
    assert (row.kind, row.stored, row.format) == ("some kind", kind.name, expected)
    assert row.nbytes == made.nbytes and row.tensors == 1
    assert error < BOUNDS.get(expected, 1e-9)
    if (kind, expected) in EXACT:
        assert error == 0 == row.error and row.sampled_rows == 0 and "exact" in str(row)
    else:
        assert 0 < row.error == pytest.approx(error, rel=0.2) and row.sampled_rows == 32
        assert f"{row.error:.2%}" in str(row) and "sampled" in str(row)


@pytest.mark.parametrize("weights", ["auto", "q8"])
def test_a_whole_model_has_blocks_of_one_size(weights: str) -> None:
    """Any types together: small blocks where all types have them, the large ones otherwise."""
    for count in range(1, 4):
        for kinds in itertools.combinations(AUTO, count):
            found = block_formats([kind.name for kind in kinds], weights)
            for kind in kinds:
                assert found[kind.name] == expected_format(kind, kinds, weights)
            assert len({bytes_of(format) for format in found.values()}) == 1
            for choice in ("q4nx", "bf16"):
                assert set(block_formats([k.name for k in kinds], choice).values()) == {choice}
    assert block_formats(["Q4NX", "Q4_0"], weights) == {"Q4NX": "q4nx", "Q4_0": "q4nx"}


def small_model(path: Path) -> Path:
    """Q4_0 with attention values in Q8_0 and a Q5_0 down projection, all small."""
    types = dict.fromkeys(("attn_q", "attn_k", "attn_output", "ffn_gate", "ffn_up"), Type.Q4_0)
    return mixed_model(path, **types, attn_v=Type.Q8_0, ffn_down=Type.Q5_0, head=Type.Q8_0)[0]


def test_the_blocks_of_a_model_that_small_ones_hold(tmp_path: Path) -> None:
    source = open_source(small_model(tmp_path / "m.gguf"))
    config = read_config(source)
    segments = plan(source, matrices(source, config), "auto")
    assert [segment.format for segment in segments[:5]] == ["q4_0", "q8_0", "q4_0", "q4_0", "q8_0"]
    prepared = prepare(source, segments, "auto", cache=False)
    tensors = [tensor for key in prepared.blocks for tensor in prepared.blocks[key]]
    assert sum(tensor.nbytes for tensor in tensors) == prepared.report.nbytes
    for segment, tensor in zip(segments, tensors, strict=True):
        values = np.concatenate([source.float32(part.name) for part in segment.parts])
        error = np.abs(tensor.to_numpy() - values)
        assert (error <= (2.0**-8 * np.abs(values) if segment.format == "q4_0" else 0)).all()
    four, eight = prepared.report.rows[:2]
    assert "Q4_0 -> q4_0, 4 tensors" in str(four) and four.sampled_rows == 4 * 32
    assert "Q8_0 -> q8_0, 2 tensors" in str(eight) and "exact" in str(eight)
    shape = products.decode_shape("m", source, config)
    # q, k and v as the wider of their formats.
    by_width = sorted(FORMATS, key=products._bytes_per_weight)
    assert by_width == ["q4_0", "q4nx", "q8_0", "q8", "bf16"]
    assert shape.layers[0].formats == ("q8_0", "q4_0", "q4_0", "q8_0")
    assert shape.head_format == "q8_0"
    # The same matrices beside one of another type.
    other, _ = mixed_model(tmp_path / "other.gguf", attn_q=Type.Q4_0, attn_k=Type.Q8_0)
    shape = products.decode_shape("other", open_source(other), config)
    assert shape.layers[0].formats == ("bf16",) * 4 and shape.head_format == "bf16"


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("rows", "columns"), [(32, 80), (256, 512), (4096, 2048), (31, 5000)])
def test_memory_of_a_segment_has_what_is_read_beyond_small_blocks(
    format: str, rows: int, columns: int
) -> None:
    segment = Segment("k", "kind", format, (Part("t", "Q4_0", rows),), columns)
    assert segment.room % 4096 == 0
    beyond = segment.room - segment.nbytes
    assert (512 if format in ("q4_0", "q8_0") else 0) <= beyond < 4096 + 512


@pytest.mark.parametrize("place", ["memory", "cache"])
def test_the_array_may_read_beyond_small_blocks(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regions have 512 more bytes than the last block of any matrix, which lie in memory that
    belongs to them, whatever the matrices' sizes leave of their pages."""
    monkeypatch.setenv("NPU_CACHE", str(tmp_path / "cache") if place == "cache" else "off")
    # 8 and 64 blocks fill pages; a head that is not tied to the embedding ends with them.
    tensors = {
        name: (rows_of(kind, rows, 1024), kind)
        for name, rows, kind in (("a", 64, Type.Q4_0), ("b", 60, Type.Q8_0), ("c", 256, Type.Q8_0))
    }
    source = tensors_file(tmp_path / "t.gguf", tensors)
    segments = plan(source, [Matrix(name, name, (name,)) for name in tensors], "auto")
    assert segments[-1].nbytes % 4096 == 0 and segments[0].nbytes % 4096 == 0
    prepared = prepare(source, segments, "auto", cache=True)
    assert (prepared.report.location == "in memory") == (place == "memory")
    regions = Regions()
    for (tensor,) in prepared.blocks.values():
        region, at = regions.place(tensor.blocks)
        whole = regions.arrays[region]
        assert at + tensor.nbytes + 512 <= whole.nbytes
        beyond = whole[at : at + tensor.nbytes + 512]
        assert np.array_equal(beyond[: tensor.nbytes], tensor.blocks.reshape(-1))
        int(beyond[tensor.nbytes :].sum())  # readable
        if place == "cache":
            assert not beyond[tensor.nbytes :].any()
    assert len(regions.arrays) == 1


def test_fitted_4_bit_blocks_are_those_of_quantize(tmp_path: Path) -> None:
    raw = stored_rows(Type.Q8_0, 64, 256)
    source = tensor_file(tmp_path / "t.gguf", raw, Type.Q8_0)
    made = convert_rows(source, "t", slice(0, 64), "q4nx")
    assert np.array_equal(made, q4nx.quantize(gguf.quants.dequantize(raw, Type.Q8_0)).blocks)


def mixed_model(path: Path, **types: Type) -> tuple[Path, dict[str, Type]]:
    """Storage by part of a layer, and of the embedding (as ``head``)."""
    names = {
        f"blk.{layer}.{part}.weight": kind
        for part, kind in types.items()
        if part != "head"
        for layer in range(SHAPE.layers)
    }
    if "head" in types:
        names["token_embd.weight"] = types["head"]
    return write_model(path, SHAPE, types=names), names


@pytest.mark.parametrize("rows", [1, 5, 60])
def test_formats_that_differ_within_a_projection(rows: int, tmp_path: Path) -> None:
    """q and k in 4 bits with v in 8, gate with up in bfloat16: results follow one another."""
    path, _ = mixed_model(
        tmp_path / "m.gguf",
        attn_q=Type.Q4_0, attn_k=Type.Q4_0, attn_v=Type.Q8_0,
        ffn_gate=Type.Q8_0, ffn_up=Type.F16, head=Type.Q8_0,
    )  # fmt: skip
    source = open_source(path)
    model = Model(source)
    x = np.random.default_rng(rows).normal(size=(rows, 256)).astype(ml_dtypes.bfloat16)
    layer = model._layers[1]
    for projection, parts, formats in (
        (layer.qkv, ("attn_q", "attn_k", "attn_v"), ["q4nx", "q8"]),
        (layer.gate_up, ("ffn_gate", "ffn_up"), ["q8", "bf16"]),
    ):
        assert [tensor.format for tensor in projection.tensors] == formats
        weights = np.concatenate([source.float32(f"blk.1.{part}.weight") for part in parts])
        assert projection.shape == weights.shape
        actual = projection.multiply(x.astype(np.float32))
        expected = x.astype(np.float64) @ weights.T.astype(np.float64)
        # Weights, or scales and minima, are rounded to bfloat16: 2^-9 of m + 15 d at most.
        limit = np.abs(x.astype(np.float64)) @ np.abs(weights.T).astype(np.float64)
        span = 2.0**-8 * limit + 2.0**-9 * 16 * np.abs(x.astype(np.float64)).sum(1, keepdims=True)
        assert actual.shape == expected.shape and actual.dtype == np.float32
        assert (np.abs(actual - expected) <= span * np.abs(weights).max()).all()
        # And far from what any exchange of rows would give.
        assert np.abs(actual - np.roll(expected, 32, axis=1)).max() > 1
    assert model._head.tensors[0].format == "q8"
    values, ids = model.top([3], model.new_cache(), 5, SIZE)
    logits = model.forward([3], model.new_cache())[0]
    assert np.array_equal(np.sort(logits)[::-1][:5], values) and np.array_equal(logits[ids], values)


def test_parts_whose_rows_fill_no_block_stay_apart(tmp_path: Path) -> None:
    shape = Shape(width=72, heads=3, kv_heads=3, head_dim=40, ffn_width=100, window=7)
    model = Model(open_source(write_model(tmp_path / "m.gguf", shape)))
    layer = model._layers[0]
    assert [tensor.shape[0] for tensor in layer.qkv.tensors] == [120, 120, 120]
    assert [tensor.shape[0] for tensor in layer.gate_up.tensors] == [100, 100]
    assert len(layer.down.tensors) == 1


def test_the_report_of_a_model(tmp_path: Path) -> None:
    path, _ = mixed_model(
        tmp_path / "m.gguf",
        attn_q=Type.Q4_0, attn_k=Type.Q4_0, attn_v=Type.Q8_0, attn_output=Type.Q4_1,
        ffn_gate=Type.Q5_0, ffn_up=Type.Q5_0, ffn_down=Type.Q8_0, head=Type.F16,
    )  # fmt: skip
    model = Model(open_source(path))
    report = model.weights_report
    assert [(row.kind, row.stored, row.format, row.tensors) for row in report.rows] == [
        ("attention q, k, v", "Q4_0", "q4nx", 4),
        ("attention q, k, v", "Q8_0", "q8", 2),
        ("attention output", "Q4_1", "q4nx", 2),
        ("ffn gate, up", "Q5_0", "q8", 4),
        ("ffn down", "Q8_0", "q8", 2),
        ("head", "F16", "bf16", 1),
    ]
    projections = [p for x in model._layers for p in (x.qkv, x.output, x.gate_up, x.down)]
    tensors = [t for p in [*projections, model._head] for t in p.tensors]
    assert report.nbytes == sum(tensor.nbytes for tensor in tensors)
    lines = report.lines()
    assert len(lines) == 7 and all(line.startswith("weights: ") for line in lines)
    assert "Q4_0 -> q4nx, 4 tensors" in lines[0] and "exact" in lines[1]
    assert "in memory" in lines[-1]


def test_a_folder_goes_the_same_way(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "hf", K_SHAPE, random_weights(K_SHAPE, SIZE))
    save_tokenizer_json(folder)
    source = open_source(folder)
    for choice, format in (("auto", "bf16"), ("q8", "q8"), ("q4nx", "q4nx"), ("bf16", "bf16")):
        model = Model(source, weights=choice)
        assert {row.format for row in model.weights_report.rows} == {format}
        assert {row.stored for row in model.weights_report.rows} <= {"BF16", "F32", "F16"}
    values = source.float32("blk.0.ffn_down.weight")
    found = Model(source)._layers[0].down.tensors[0].to_numpy(ml_dtypes.bfloat16)
    assert np.array_equal(found, values.astype(ml_dtypes.bfloat16))


def test_q4nx_files_are_read_in_place_or_expanded(tmp_path: Path) -> None:
    path = convert(write_model(tmp_path / "m.gguf", SHAPE), tmp_path / "m.q4nx")
    source = open_source(path)
    progress: list[tuple[int, int]] = []
    model = Model(source, lambda *step: progress.append(step))
    assert {(row.stored, row.format, row.error) for row in model.weights_report.rows} == {
        ("Q4NX", "q4nx", 0.0)
    }
    assert model.weights_report.location == "m.q4nx"
    done = [step[0] for step in progress]  # read ahead, so that the first token need not wait
    assert done == sorted(done) and len(done) > 2 and done[-1] == model.weights_report.nbytes
    expanded = Model(source, weights="bf16")._layers[1].gate_up.tensors[0]
    parts = [source.float32(f"blk.1.ffn_{part}.weight") for part in ("gate", "up")]
    expected = np.concatenate(parts).astype(ml_dtypes.bfloat16)
    assert np.array_equal(expanded.to_numpy(ml_dtypes.bfloat16), expected)


def test_zero_points_become_minima(tmp_path: Path) -> None:
    """w = d (code - z) is d code + m with m = -d z, rounded to bfloat16."""
    source = open_source(convert(write_model(tmp_path / "m.gguf", SHAPE), tmp_path / "m.q4nx"))
    source.file.dialect = q4nx.ZERO_POINT  # type: ignore[attr-defined]
    name = "blk.1.ffn_down.weight"
    values = source.float32(name)
    model = Model(source)
    found = model._layers[1].down.tensors[0].to_numpy()
    step = np.abs(values).max() * 2.0**-8
    assert 0 < np.abs(found - values).max() <= step
    row = model.weights_report.rows[-2]
    assert (row.kind, row.stored) == ("ffn down", "Q4NX with zero points")
    assert 0 < row.error < 0.004 and model.weights_report.location == "in memory"
    source.file.dialect = q4nx.ADDITIVE  # type: ignore[attr-defined]
    assert np.abs(source.float32(name) - values).max() > 10 * step  # so the formula matters


def test_progress_counts_bytes(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    model = Model(open_source(write_model(tmp_path / "m.gguf", SHAPE)), lambda *s: steps.append(s))
    done = [step[0] for step in steps]
    assert done == sorted(done) and len(done) > 10
    assert {step[1] for step in steps} == {model.weights_report.nbytes} and done[-1] == steps[0][1]


@pytest.mark.parametrize("kind", [k for k in TYPES if k is not Type.F32], ids=lambda k: k.name)
@pytest.mark.parametrize("weights", ["auto", "q4nx", "bf16", "q8"])
def test_a_nan_is_an_error_that_names_the_tensor(kind: Type, weights: str, tmp_path: Path) -> None:
    raw = stored_rows(kind, 96, 512)
    size = gguf.GGML_QUANT_SIZES[kind][1]
    at = {Type.Q2_K: 80, Type.Q3_K: 108, Type.Q6_K: 208}.get(kind, 0)
    raw.reshape(96, -1, size)[70, 0, at : at + 2] = 0xFF  # a NaN in float16 and bfloat16
    source = tensor_file(tmp_path / "t.gguf", raw, kind)
    format = block_formats([kind.name], weights)[kind.name]
    with pytest.raises(FormatError, match=r"the tensor t cannot be converted: .*(NaN|inf)"):
        for start in (0, 32, 64):
            convert_rows(source, "t", slice(start, start + 32), format)


def test_a_nan_in_a_model_file(tmp_path: Path) -> None:
    weights = random_weights(SHAPE, SIZE)
    weights["blk.1.ffn_up.weight"][300, 7] = np.inf
    path = write_model(tmp_path / "m.gguf", SHAPE, weights=weights)
    for choice in ("auto", "q8", "q4nx", "bf16"):
        with pytest.raises(FormatError, match=r"m\.gguf: the tensor blk\.1\.ffn_up\.weight"):
            Model(open_source(path), weights=choice)


def test_results_come_in_order_and_errors_end_the_work() -> None:
    assert list(in_order(lambda x: x * x, range(100))) == [x * x for x in range(100)]
    started: list[int] = []

    def work(x: int) -> int:
        started.append(x)
        if x == 5:
            raise ValueError("five")
        return x

    with pytest.raises(ValueError, match="five"):
        list(in_order(work, range(1000)))
    assert max(started) < 100
