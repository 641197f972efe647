"""Conversion of GGUF files: every type, names and scales of the public layout, the tokenizer's
survival, memory, and what stops a conversion. Checkpoints: test_q4nx_checkpoint.py.

Values of converted files are compared with what the `gguf` package dequantises from the source.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from gemma3_files import Shape, config_of, random_weights, small_vocabulary, write_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from limits import HANG
from q4nx_models import K_SHAPE, bf16, dequantised, gguf_model, opened

from npu.errors import ArgumentError, FormatError
from npu.formats.gguf_file import GgufFile
from npu.formats.q4nx.container import Q4nxFile
from npu.models.convert import convert
from npu.models.gemma3.config import read_config
from npu.models.gemma3.names import check_tensors, tensor_shapes
from npu.models.report import diff, verify
from npu.models.sources import GgufSource, open_source
from npu.models.tokenizer import Tokenizer

TYPES = gguf.GGMLQuantizationType
UP = "blk.1.ffn_up.weight"


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def source_values(path: Path, name: str) -> np.ndarray:
    """A tensor by the gguf package's reader and dequantiser."""
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(str(path)).tensors}[name]
    shape = tuple(int(size) for size in reversed(found.shape))
    values = gguf.quants.dequantize(found.data, found.tensor_type)
    return np.asarray(values, np.float32).reshape(shape)


def converted(tmp_path: Path, kind: TYPES, shape: Shape = K_SHAPE) -> tuple[Path, Path]:
    source, _ = gguf_model(tmp_path / "m.gguf", kind, shape)
    return source, convert(source, tmp_path / "m.q4nx")


def test_q4_0_keeps_codes(tmp_path: Path) -> None:
    """Same codes, bfloat16 scales, m = -8 d exactly: no error but the rounding of d."""
    source, target = converted(tmp_path, TYPES.Q4_0)
    values = dequantised(target)
    for name in (UP, "blk.0.attn_q.weight", "blk.0.ffn_down.weight"):
        expected = source_values(source, name)
        blocks = expected.reshape(-1, 32)
        raw = {t.name: t for t in gguf.GGUFReader(str(source)).tensors}[name].data
        d = raw.reshape(-1, 18)[:, :2].copy().view(np.float16).astype(np.float32)
        codes = np.rint(blocks / np.where(d == 0, 1, d))  # -8 to 7
        assert np.array_equal(values[name].reshape(-1, 32), codes * bf16(d))
        assert (np.abs(values[name] - expected) <= np.abs(expected) * 2.0**-8).all()


def test_q4_1_keeps_codes(tmp_path: Path) -> None:
    """Kept, not found again: with minima that are no bfloat16 numbers a search does better."""
    weights = random_weights(K_SHAPE, len(small_vocabulary().pieces))
    weights[UP] = weights[UP] * np.float32(1.01)
    source = write_model(tmp_path / "m.gguf", K_SHAPE, weights=weights, types={UP: TYPES.Q4_1})
    target = convert(source, tmp_path / "m.q4nx")
    raw = {t.name: t for t in gguf.GGUFReader(str(source)).tensors}[UP].data.reshape(-1, 20)
    halves = raw[:, :4].copy().view(np.float16).astype(np.float32)
    codes = np.hstack([raw[:, 4:] & 15, raw[:, 4:] >> 4]).astype(np.float32)
    expected = bf16(halves[:, 1:]) + bf16(halves[:, :1]) * codes
    assert np.array_equal(dequantised(target)[UP].reshape(-1, 32), expected)


@pytest.mark.parametrize(
    "kind", [TYPES.F32, TYPES.F16, TYPES.BF16, TYPES.Q8_0, TYPES.Q5_0, TYPES.Q5_1]
)
def test_other_types_are_quantised_once(tmp_path: Path, kind: TYPES) -> None:
    """From the source's values with less error than gguf's Q4_1 makes of them."""
    source, target = converted(tmp_path, kind)
    for name in (UP, "blk.0.attn_v.weight", "blk.1.attn_output.weight"):
        expected = source_values(source, name)
        error = rms(dequantised(target)[name] - expected)
        theirs = gguf.quants.dequantize(gguf.quants.quantize(expected, TYPES.Q4_1), TYPES.Q4_1)
        assert 0 < error < 0.95 * rms(theirs - expected)


K_BYTES = {"Q2_K": 84, "Q3_K": 110, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210}
# Where the float16 scales of a block of 256 begin (ggml-common.h).
K_HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


@pytest.mark.parametrize("name", K_BYTES)
def test_k_quants(tmp_path: Path, name: str) -> None:
    """gguf has no packer for these, so blocks are random bytes with sane scales."""
    weights = random_weights(K_SHAPE, len(small_vocabulary().pieces))
    random = np.random.default_rng(7)
    n, k = weights[UP].shape
    raw = np.frombuffer(random.bytes(n * k // 256 * K_BYTES[name]), np.uint8).copy()
    blocks = raw.reshape(-1, K_BYTES[name])
    for at in K_HALVES[name]:
        scale = random.uniform(0.001, 0.002, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scale[:, None].view(np.uint8)
    expected = gguf.quants.dequantize(blocks.reshape(n, -1), TYPES[name])
    path = tmp_path / "m.gguf"
    writer_types = {UP: TYPES[name]}
    with pytest.MonkeyPatch.context() as patch:
        quantize = gguf.quants.quantize
        patch.setattr(
            gguf.quants,
            "quantize",
            lambda v, t: blocks.reshape(n, -1) if t == TYPES[name] else quantize(v, t),
        )
        write_model(path, K_SHAPE, weights=weights, types=writer_types)
    values = dequantised(convert(path, tmp_path / "m.q4nx"))[UP]
    theirs = gguf.quants.dequantize(gguf.quants.quantize(expected, TYPES.Q4_1), TYPES.Q4_1)
    assert rms(values - expected) < rms(theirs - expected)
    assert np.corrcoef(values.ravel(), expected.ravel())[0, 1] > 0.99


def test_public_layout(tmp_path: Path) -> None:
    """Names, dtypes and scales a reader of the public converter's files relies on."""
    safe_open = pytest.importorskip("safetensors").safe_open
    source, target = converted(tmp_path, TYPES.F16)
    with safe_open(target, framework="numpy") as file:
        keys = set(file.keys())
        layer = {
            "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
            "self_attn.q_norm", "self_attn.k_norm", "mlp.gate_proj", "mlp.up_proj",
            "mlp.down_proj", "input_layernorm", "post_attention_layernorm",
            "pre_feedforward_layernorm", "post_feedforward_layernorm",
        }  # fmt: skip
        expected = {f"model.layers.{i}.{part}.weight" for i in range(2) for part in layer}
        expected |= {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
        assert keys == expected
        tensor = file.get_tensor("model.layers.1.mlp.up_proj.weight")
        assert tensor.dtype == np.int8 and tensor.shape == (256 // 32, 5120)
        embedding = file.get_tensor("model.embed_tokens.weight").astype(np.float32)
    stored = source_values(source, "token_embd.weight")
    assert np.array_equal(embedding, bf16(stored * np.float32(16)))  # sqrt(256)
    values = dequantised(target)
    # The head is the unscaled embedding, norms the file's 1 + w.
    head = rms(values["output.weight"] - stored) / rms(stored)
    assert 0.01 < head < 0.1
    norm = source_values(source, "blk.0.attn_q_norm.weight")
    assert np.array_equal(values["blk.0.attn_q_norm.weight"], bf16(norm))
    assert verify(Q4nxFile(target)) == []


def test_own_head_is_used(tmp_path: Path) -> None:
    weights = random_weights(K_SHAPE, len(small_vocabulary().pieces))
    weights["output.weight"] = -weights["token_embd.weight"]
    path = write_model(tmp_path / "m.gguf", K_SHAPE, weights=weights)
    values = dequantised(convert(path, tmp_path / "m.q4nx"))
    head, embedding = values["output.weight"], weights["token_embd.weight"]
    assert np.corrcoef(head.ravel(), embedding.ravel())[0, 1] < -0.99


def test_shapes_that_need_padding(tmp_path: Path) -> None:
    """Rows and columns that fill no block, among them fused projections."""
    shape = Shape(layers=1, width=72, heads=3, kv_heads=3, head_dim=40, ffn_width=100, window=7)
    source, target = converted(tmp_path, TYPES.F32, shape)
    rows = {row["name"]: row for row in diff(GgufSource(GgufFile(source)), opened(target))}
    assert len(rows) == 1 + 1 + 1 + 13
    for row in rows.values():
        assert row["relative_rms"] < (0.09 if row["type"] == "Q4NX" else 2.0**-8)
    assert verify(Q4nxFile(target)) == []


def test_diff_is_numpys(tmp_path: Path) -> None:
    source, target = converted(tmp_path, TYPES.Q8_0)
    rows = diff(GgufSource(GgufFile(source)), opened(target))
    row = next(row for row in rows if row["name"] == "model.layers.1.mlp.up_proj.weight")
    a = source_values(source, UP).astype(np.float64)
    b = dequantised(target)[UP].astype(np.float64)
    assert row["max"] == pytest.approx(np.abs(a - b).max())
    assert row["rms"] == pytest.approx(rms(a - b))
    assert row["cosine"] == pytest.approx((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))
    assert (row["source_type"], row["type"]) == ("Q8_0", "Q4NX")
    assert max(row["relative_rms"] for row in rows) < 0.1


# --- metadata and tokenizer ------------------------------------------------------------------


def test_metadata_survives(tmp_path: Path) -> None:
    keys = {"tokenizer.chat_template": "{{ bos_token }}h\u00e9 {{ messages[0].content }}\n",
            "gemma3.attention.sliding_window_pattern": [True, False],
            "general.file_type": 1}  # fmt: skip
    source, _ = gguf_model(tmp_path / "m.gguf", TYPES.F16, keys=keys)
    target = open_source(convert(source, tmp_path / "m.q4nx"))
    before = GgufFile(source)
    assert read_config(target) == read_config(before)
    assert read_config(target).windows == (16, None)
    ours, theirs = Tokenizer(target), Tokenizer(before)
    assert ours.pieces == theirs.pieces and ours.types == theirs.types
    assert (ours.bos_id, ours.eos_id, ours.end_ids) == (
        theirs.bos_id,
        theirs.eos_id,
        theirs.end_ids,
    )
    text = "hello world\n\n  user <start_of_turn>é\U0001f600 9"
    assert ours.encode(text) == theirs.encode(text)
    messages = [{"role": "user", "content": "x"}]
    assert ours.render_chat(messages) == theirs.render_chat(messages) == "<bos>h\u00e9 x"
    assert set(before.metadata) - set(target.metadata) <= {
        "general.file_type", "general.quantization_version", "general.alignment"
    }  # fmt: skip


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_fuzzed_models(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes of a converted model's header change: it loads or raises one sentence."""
    good = tmp_path / "good.q4nx"
    if not good.exists():
        shape = Shape(layers=1, width=32, heads=1, kv_heads=1, head_dim=32, ffn_width=32)
        convert(write_model(tmp_path / "m.gguf", shape), good)
    raw = bytearray(good.read_bytes())
    header = 8 + int.from_bytes(raw[:8], "little")
    used = raw.rindex(b"}", 0, header)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(8, used))] = data.draw(
            st.sampled_from(b'019-.,:"{}[]\\naetl\x80')
        )
    bad = tmp_path / "bad.q4nx"
    bad.write_bytes(raw)
    load_or_refuse(bad)


def load_or_refuse(path: Path) -> None:
    try:
        source = open_source(path)
        config = read_config(source)
        Tokenizer(source)
        check_tensors(source, config)
    except FormatError as error:
        assert "\n" not in str(error) and len(str(error)) < 600


# --- what stops a conversion -----------------------------------------------------------------


def test_overwriting_and_folders(tmp_path: Path) -> None:
    source, target = converted(tmp_path, TYPES.F16)
    before = target.read_bytes()
    with pytest.raises(ArgumentError, match="exists; give --force to replace it"):
        convert(source, target)
    with pytest.raises(ArgumentError, match="is the input"):
        convert(target, target, force=True)
    assert target.read_bytes() == before
    convert(source, target, force=True)
    assert target.read_bytes() == before  # the same every time
    folder = tmp_path / "out"
    folder.mkdir()
    assert convert(source, folder) == folder / "model.q4nx"


def test_a_folder_with_two_models(tmp_path: Path) -> None:
    """Q4NX beside the checkpoint it was made of: converting again must not take the old one."""
    source, _ = converted(tmp_path, TYPES.Q4_0)
    folder = tmp_path / "out"
    folder.mkdir()
    made = convert(source, folder)
    assert convert(folder, tmp_path / "n.q4nx").read_bytes()[-1000:] == made.read_bytes()[-1000:]
    for name in ("model.safetensors", "model.safetensors.index.json"):
        (folder / name).write_bytes(b"")
        with pytest.raises(ArgumentError, match=r"has a safetensors checkpoint and model.q4nx"):
            convert(folder, folder, force=True)
        (folder / name).unlink()


@pytest.mark.parametrize("kind", [TYPES.F32, TYPES.Q8_0, TYPES.Q4_0])
def test_nan_in_the_source(tmp_path: Path, kind: TYPES) -> None:
    source, _ = gguf_model(tmp_path / "m.gguf", kind)
    info = GgufFile(source).tensors[UP]
    raw = bytearray(source.read_bytes())
    bad = b"\0\0\xc0\x7f" if kind == TYPES.F32 else b"\x00\x7e"
    raw[info.offset : info.offset + len(bad)] = bad
    source.write_bytes(raw)
    with pytest.raises(FormatError, match=rf"{UP} cannot be converted: .*NaN") as caught:
        convert(source, tmp_path / "m.q4nx")
    assert str(caught.value).startswith("[gguf] m.gguf: ")
    assert os.listdir(tmp_path) == ["m.gguf"]


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.attn_k_norm.weight"])
def test_nan_in_what_stays_plain(tmp_path: Path, name: str) -> None:
    weights = random_weights(K_SHAPE, len(small_vocabulary().pieces))
    weights["output.weight"] = weights["token_embd.weight"].copy()  # else the head refuses first
    weights[name].flat[-1] = np.inf
    source = write_model(tmp_path / "m.gguf", K_SHAPE, weights=weights)
    with pytest.raises(FormatError, match=rf"{name} cannot be converted: NaN or infinity"):
        convert(source, tmp_path / "m.q4nx")
    assert os.listdir(tmp_path) == ["m.gguf"]


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=HANG,
    )


def test_a_full_disk(tmp_path: Path) -> None:
    """A limit on the file size stands in for a full disk: the write fails in the middle."""
    source, _ = gguf_model(tmp_path / "m.gguf", TYPES.F16)
    code = """
import resource, sys
from npu.errors import FileError
from npu.models.convert import convert
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    convert(sys.argv[1], sys.argv[2])
except FileError as error:
    print(error)
"""
    done = run_python(code, source, tmp_path / "m.q4nx")
    assert done.stdout.startswith("[convert] cannot write ") and "File too large" in done.stdout
    assert os.listdir(tmp_path) == ["m.gguf"]


@pytest.mark.slow
def test_memory_stays_below_the_largest_tensor(tmp_path: Path) -> None:
    """At most three quarters of a float32 copy of the largest tensor is allocated at a time, for a
    file of 190 MB with an embedding of 134 MB."""
    shape = Shape(layers=1, width=1024, heads=4, kv_heads=1, head_dim=256, ffn_width=4096)
    vocabulary = small_vocabulary()
    vocabulary.add(5, *(f"<filler {index}>" for index in range(32768 - len(vocabulary.pieces))))
    some = np.random.default_rng(0).normal(size=1 << 16).astype(np.float32)
    sizes = tensor_shapes(config_of(shape, len(vocabulary.pieces)))
    weights = {name: np.resize(some, size) for name, size in sizes.items()}
    source = write_model(tmp_path / "m.gguf", shape, vocabulary=vocabulary, weights=weights)
    del weights
    tracemalloc.start()  # counts what Python and NumPy allocate
    convert(source, tmp_path / "m.q4nx")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert source.stat().st_size > 180e6
    assert peak < 0.75 * 4 * 32768 * 1024
