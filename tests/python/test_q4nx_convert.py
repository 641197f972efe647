"""Conversion: every GGUF type and Hugging Face checkpoints, names and scales of the public layout,
the tokenizer's survival, memory, and what stops a conversion.

Values of converted files are compared with what the `gguf` package dequantises from the source.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import q4nx_models
from gemma3_files import Shape, config_of, random_weights, small_vocabulary, write_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from q4nx_models import K_SHAPE, bf16, dequantised, gguf_model

from npu.errors import ArgumentError, FormatError
from npu.gemma3 import huggingface
from npu.gemma3.config import ModelFile, read_config
from npu.gemma3.names import tensor_shapes
from npu.gemma3.source import GgufSource, Q4nxSource, check_tensors, open_source
from npu.gguf_file import GgufFile
from npu.q4nx.container import Q4nxFile
from npu.q4nx.convert import convert
from npu.q4nx.report import diff, verify
from npu.tokenizer import Tokenizer

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
    source, target = converted(tmp_path, TYPES.Q4_1)
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


def opened(path: Path) -> Q4nxSource:
    return Q4nxSource(Q4nxFile(path))


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


# --- Hugging Face folders --------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    weights = random_weights(K_SHAPE, len(small_vocabulary().pieces))
    folder = q4nx_models.save_checkpoint(tmp_path / "hf", K_SHAPE, weights)
    q4nx_models.save_tokenizer_json(folder)
    return folder, weights


def test_a_checkpoint_equals_the_gguf(
    tmp_path: Path, checkpoint: tuple[Path, dict[str, np.ndarray]]
) -> None:
    """transformers' own file gives the blocks, embedding and configuration of the same weights in a
    GGUF file. Norms: HF rounds w to bfloat16, GGUF 1 + w."""
    folder, weights = checkpoint
    path = write_model(tmp_path / "m.gguf", K_SHAPE, weights=weights)
    one = opened(convert(path, tmp_path / "gguf.q4nx"))
    two = opened(convert(folder, tmp_path / "hf.q4nx"))
    # GGUF's numbers are float32.
    assert dataclasses.replace(read_config(one), eps=1e-6) == read_config(two)
    assert list(one.shapes) == list(two.shapes)
    for name, shape in one.shapes.items():
        a, b = one.float32(name), two.float32(name)
        if len(shape) == 2:
            assert np.array_equal(a, b), name
        else:
            assert np.abs(a - b).max() <= 2.0**-8 * np.abs(a).max() * 2
            assert np.abs(b - weights[name]).max() <= 2.0**-8 * np.abs(a).max() * 2


def test_shards_and_multimodal_names(
    tmp_path: Path, checkpoint: tuple[Path, dict[str, np.ndarray]]
) -> None:
    folder, weights = checkpoint
    plain = convert(folder, tmp_path / "a.q4nx").read_bytes()
    shards = q4nx_models.save_checkpoint(tmp_path / "s", K_SHAPE, weights, shards="200KB")
    assert len(list(shards.glob("*.safetensors"))) > 2
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, shards / name)
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = safetensors.load_file(folder / "model.safetensors")
    prefixes = ("language_model.model.", "model.language_model.")
    for index, prefix in enumerate(prefixes):
        other = tmp_path / f"mm{index}"
        shutil.copytree(folder, other)
        renamed = {name.replace("model.", prefix, 1): value for name, value in tensors.items()}
        vision = {"vision_tower.x.weight": next(iter(tensors.values())).clone()}
        safetensors.save_file({**renamed, **vision}, other / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        (other / "config.json").write_text(
            json.dumps({"model_type": "gemma3", "text_config": config})
        )
        shards_or_mm = (shards, other) if index == 0 else (other,)
        for place in shards_or_mm:
            found = convert(place, tmp_path / f"{place.name}.q4nx")
            a, b = opened(found), opened(tmp_path / "a.q4nx")
            assert list(a.shapes) == list(b.shapes) and read_config(a) == read_config(b)
            for name in a.shapes:
                assert np.array_equal(a.float32(name), b.float32(name))
    assert plain == (tmp_path / "a.q4nx").read_bytes()


def test_tokenizer_json_segments_as_its_library(tmp_path: Path) -> None:
    library = q4nx_models.save_tokenizer_json(tmp_path / "t")
    ours = tokenizer_of(tmp_path / "t")
    random = np.random.default_rng(8)
    words = ["hello", "world", " ", "  ", "user", "model", "he", "wor", "\n", "\n\n", "x", "é", "ü"]
    words += ["<start_of_turn>", "<table>", "9", "ld", "\U0001f600"]
    for _ in range(200):
        text = "".join(random.choice(words, random.integers(0, 12)))
        expected = library.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special=False) == expected, text
    assert ours.bos_id == 2 and ours.eos_id == 1 and 5 in ours.end_ids
    assert ours.render_chat([]) == "<bos>X"


def tokenizer_of(folder: Path) -> Tokenizer:
    from npu.gemma3 import hf_tokenizer
    from npu.metadata import Metadata

    keys = Metadata()
    keys.metadata = hf_tokenizer.metadata(folder)
    return Tokenizer(keys)


def test_sentencepiece_model(tmp_path: Path) -> None:
    """tokenizer.model as the sentencepiece library trains it."""
    sentencepiece = pytest.importorskip("sentencepiece")
    text = tmp_path / "text"
    text.write_text("\n".join(f"the number {i} and the word {i * 7919 % 1000}" for i in range(300)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(tmp_path / "tokenizer"), model_type="bpe",
        vocab_size=330, byte_fallback=True, add_dummy_prefix=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
        control_symbols=["<start_of_turn>"], user_defined_symbols=["<end_of_turn>"],
        minloglevel=2,
    )  # fmt: skip
    library = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    config = {"chat_template": [{"name": "default", "template": "T"}], "add_bos_token": True}
    config["added_tokens_decoder"] = {
        str(library.piece_to_id("<end_of_turn>")): {"content": "<end_of_turn>", "special": True}
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 5]}')
    ours = tokenizer_of(tmp_path)
    assert ours.pieces == [library.id_to_piece(i) for i in range(len(library))]
    for line in ("the number 17", "  two  spaces\n", "unseen \u00fcmlaut", ""):
        assert ours.encode(line, add_special=False) == library.encode(line)
    assert (ours.bos_id, ours.eos_id) == (2, 1) and ours.space_prefix is False
    assert {1, 5, library.piece_to_id("<end_of_turn>")} == ours.end_ids
    assert ours.render_chat([]) == "T"
    raw = (tmp_path / "tokenizer.model").read_bytes()
    random = np.random.default_rng(9)
    for cut in range(1, len(raw), 97):
        bad = bytearray(raw[:cut] if cut % 2 else raw)
        bad[random.integers(len(bad))] = random.integers(256)
        (tmp_path / "tokenizer.model").write_bytes(bad)
        try:
            tokenizer_of(tmp_path)
        except FormatError as error:
            assert "\n" not in str(error)


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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_fuzzed_folders(tmp_path: Path, data: st.DataObject) -> None:
    """Any JSON in the place of values of config.json and of the tokenizer's files."""
    folder = tmp_path / "t"
    if not folder.exists():
        q4nx_models.save_tokenizer_json(folder)
        (folder / "tokenizer.model").touch()
        for name in ("config", "generation_config"):
            (folder / f"{name}.good").write_text(json.dumps(config_json(rope_scaling={})))
        for name in ("tokenizer", "tokenizer_config"):
            (folder / f"{name}.json").rename(folder / f"{name}.good")
        (folder / "tokenizer.model").unlink()
    for name in ("config", "generation_config", "tokenizer", "tokenizer_config"):
        document = json.loads((folder / f"{name}.good").read_text())
        extra = {"added_tokens_decoder", "eos_token_id", "rope_parameters", "layer_types",
                 "sliding_window_pattern", "rope_theta"}  # fmt: skip
        place = document
        if data.draw(st.booleans()):
            while isinstance(place, dict):
                keys = sorted(place) + (sorted(extra) if place is document else [])
                if not keys:
                    break
                key = data.draw(st.sampled_from(keys))
                inner = place.get(key)
                if isinstance(inner, dict) and inner and data.draw(st.booleans()):
                    place = inner
                    continue
                place[key] = data.draw(JSON)
                break
        (folder / f"{name}.json").write_text(json.dumps(document))
    try:
        file = ModelFile()
        file.metadata = huggingface.folder_metadata(folder)
        file.shapes = {"token_embd.weight": (400, 256), "a": (), "b": ()}
        read_config(file)
        Tokenizer(file)
    except FormatError as error:
        assert "\n" not in str(error) and len(str(error)) < 600


def config_json(**changes: object) -> dict[str, object]:
    config = {
        "model_type": "gemma3_text", "num_hidden_layers": 2, "hidden_size": 256,
        "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 16,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
    }  # fmt: skip
    return {**config, **changes}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, {"rope_factor": 8.0}),
        (
            {"rope_theta": 5e5, "rope_local_base_freq": 2e4},
            {"rope_base": 5e5, "rope_base_sliding": 2e4},
        ),
        ({"sliding_window_pattern": 2}, {"windows": (16, None)}),
        ({"layer_types": ["full_attention", "sliding_attention"]}, {"windows": (None, 16)}),
        ({"query_pre_attn_scalar": 100}, {"attention_scale": 0.1}),
        ({"final_logit_softcapping": 30.0}, {"logit_softcap": 30.0}),
        ({"num_attention_heads": None, "num_key_value_heads": None}, {"heads": 8, "kv_heads": 4}),
    ],
)  # fmt: skip
def test_configurations(tmp_path: Path, changes: dict, expected: dict) -> None:
    """Keys of transformers 4 and 5 and their defaults; the rest comes from a checkpoint test."""
    (tmp_path / "config.json").write_text(json.dumps(config_json(**changes)))
    file = ModelFile()
    file.metadata = huggingface.folder_metadata(tmp_path)
    file.shapes = {"token_embd.weight": (300, 256), "a": (), "b": ()}
    config = read_config(file)
    for key, value in {"context": 256, "vocabulary": 300, "eps": 1e-6, **expected}.items():
        assert getattr(config, key) == value


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "llama"}, "model type 'llama', only Gemma 3"),
        ({"attention_bias": True}, "another activation or biases"),
        ({"hidden_activation": "gelu"}, "another activation or biases"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}, "rope scaling 'yarn'"),
        ({"num_hidden_layers": "2"}, "gemma3.block_count is '2'"),
        ({"query_pre_attn_scalar": "x"}, "query_pre_attn_scalar is 'x'"),
        ({"rope_parameters": {"full_attention": 1}}, "rope_parameters"),
        ({"num_hidden_layers": 3}, "blk.2|model.layers.2"),
        ({"hidden_size": 128}, r"expected \(tokens, 128\)"),
    ],
)
def test_unsuitable_checkpoints(
    tmp_path: Path, checkpoint: tuple[Path, dict], changes: dict, words: str
) -> None:
    folder = checkpoint[0]
    (folder / "config.json").write_text(json.dumps(config_json(**changes)))
    with pytest.raises(FormatError, match=words):
        convert(folder, tmp_path / "m.q4nx")
    assert not (tmp_path / "m.q4nx").exists()


def test_incomplete_folders(tmp_path: Path, checkpoint: tuple[Path, dict]) -> None:
    folder = checkpoint[0]
    target = tmp_path / "m.q4nx"
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FormatError, match=r"without a .q4nx file and without config.json"):
        convert(empty, target)
    (folder / "tokenizer.json").rename(folder / "tokenizer.bak")
    with pytest.raises(FormatError, match=r"no tokenizer was found; put tokenizer.model"):
        convert(folder, target)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(FormatError, match="is not a BPE tokenizer"):
        convert(folder, target)
    (folder / "tokenizer.json").write_text("[")
    with pytest.raises(FormatError, match="cannot be read as JSON"):
        convert(folder, target)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x"}}')
    with pytest.raises(FormatError, match=r"outside its folder|cannot be read"):
        (folder / "tokenizer.json").unlink()
        convert(folder, target)
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.safetensors").unlink()
    with pytest.raises(FormatError, match="cannot open"):
        convert(folder, target)


# --- foreign Q4NX files ----------------------------------------------------------------------


@pytest.fixture
def foreign(tmp_path: Path, checkpoint: tuple[Path, dict]) -> Path:
    """What the public converter leaves: no metadata; config.json and tokenizer beside it."""
    import q4nx_files

    ours = Q4nxFile(convert(checkpoint[0], tmp_path / "own.q4nx"))
    folder = tmp_path / "foreign"
    folder.mkdir()
    raw = {
        name: (entry.dtype, entry.shape, ours._file.raw(entry).tobytes())
        for name, entry in ours.entries.items()
    }
    q4nx_files.write_file(folder / "model.q4nx", raw)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(checkpoint[0] / name, folder / name)
    return folder


def test_a_file_without_metadata(tmp_path: Path, foreign: Path) -> None:
    ours, theirs = opened(tmp_path / "own.q4nx"), open_source(foreign)
    assert isinstance(theirs, Q4nxSource) and not theirs.file.own
    assert theirs.shapes == ours.shapes and read_config(theirs) == read_config(ours)
    for name in ours.shapes:
        assert np.array_equal(ours.float32(name), theirs.float32(name))
    assert Tokenizer(theirs).pieces == Tokenizer(ours).pieces
    assert verify(theirs.file) == []
    # Converting it gives it metadata and leaves its blocks alone.
    again = opened(convert(foreign, tmp_path / "again.q4nx"))
    assert again.file.own
    for name in ours.shapes:
        assert np.array_equal(ours.float32(name), again.float32(name))
    (foreign / "config.json").unlink()
    with pytest.raises(FormatError, match=r"no metadata of its own .* no config.json in"):
        open_source(foreign)


def test_zero_point_files_become_additive(tmp_path: Path, foreign: Path) -> None:
    import q4nx_files

    file = Q4nxFile(foreign / "model.q4nx")
    shapes = opened(tmp_path / "own.q4nx").file.shapes
    raw = {}
    for name, entry in file.entries.items():
        data = file._file.raw(entry).tobytes()
        if name in shapes:
            matrix = q4nx_files.random_matrix(*shapes[name], low=5, high=10)
            raw[name] = ("Q4NX", shapes[name], q4nx_files.pack(matrix))
        else:
            raw[name] = (entry.dtype, entry.shape, data)
    q4nx_files.write_file(foreign / "model.q4nx", raw)
    before = open_source(foreign)
    after = opened(convert(foreign, tmp_path / "additive.q4nx"))
    assert (before.file.dialect, after.file.dialect) == ("zero_point", "additive")  # type: ignore[attr-defined]
    name = "blk.1.ffn_up.weight"
    difference = np.abs(before.float32(name) - after.float32(name))
    assert 0 < difference.max() <= 0.1 * 10 * 2.0**-9 * 1.01


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


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_full_disk(tmp_path: Path) -> None:
    """A limit on the file size stands in for a full disk: the write fails in the middle."""
    source, _ = gguf_model(tmp_path / "m.gguf", TYPES.F16)
    code = """
import resource, sys
from npu.errors import FileError
from npu.q4nx.convert import convert
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
    """Peak memory over what importing takes, for a file of 190 MB with an embedding of 134 MB."""
    shape = Shape(layers=1, width=1024, heads=4, kv_heads=1, head_dim=256, ffn_width=4096)
    vocabulary = small_vocabulary()
    vocabulary.add(5, *(f"<filler {index}>" for index in range(32768 - len(vocabulary.pieces))))
    some = np.random.default_rng(0).normal(size=1 << 16).astype(np.float32)
    sizes = tensor_shapes(config_of(shape, len(vocabulary.pieces)))
    weights = {name: np.resize(some, size) for name, size in sizes.items()}
    source = write_model(tmp_path / "m.gguf", shape, vocabulary=vocabulary, weights=weights)
    del weights
    code = r"""
import re, sys
from npu.q4nx.convert import convert
from npu.q4nx import quantize
import gguf, numpy
quantize(numpy.ones((64, 64), numpy.float32))
# Not getrusage, which counts what the parent had when it forked.
peak = lambda: int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1])
before = peak()
convert(sys.argv[1], sys.argv[2])
print(before, peak() - before)
"""
    done = run_python(code, source, tmp_path / "m.q4nx")
    assert done.returncode == 0, done.stderr
    before, grown = map(int, done.stdout.split())
    print(f"peak {before} KiB before, {grown} KiB more")
    assert source.stat().st_size > 180e6
    assert grown * 1024 < 0.75 * 4 * 32768 * 1024  # of one float32 copy of the embedding
