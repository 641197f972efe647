"""Conversion of Hugging Face checkpoints and of Q4NX files without metadata: weights, configuration
and tokenizer of the folder, and what is refused.

References are the GGUF file of the same weights and the libraries that segment text.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import q4nx_models
from gemma3_files import random_weights, small_vocabulary, write_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from q4nx_models import K_SHAPE, opened

from npu.errors import FormatError
from npu.formats.metadata import ModelFile
from npu.formats.q4nx.container import Q4nxFile
from npu.models.convert import convert
from npu.models.gemma3.config import read_config
from npu.models.report import verify
from npu.models.sources import Q4nxSource, huggingface, open_source
from npu.models.tokenizer import Tokenizer


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
    from npu.formats.metadata import Metadata
    from npu.models import hf_tokenizer

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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@pytest.mark.slow
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
                 "sliding_window_pattern", "rope_theta", "sliding_window", "text_config",
                 "quantization_config", "tie_word_embeddings", "pre_tokenizer"}  # fmt: skip
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
        ({"rope_theta": 2**70}, {"rope_base": 2.0**70}),
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
        ({"attention_bias": True}, "attention_bias of config.json is True"),
        ({"hidden_activation": "gelu"}, "hidden_activation of config.json is 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}, "rope scaling 'yarn'"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers of config.json is '2'"),
        ({"query_pre_attn_scalar": "x"}, "query_pre_attn_scalar of config.json is 'x'"),
        ({"query_pre_attn_scalar": 10**400}, "query_pre_attn_scalar of config.json is 1000"),
        ({"rope_theta": 10**400}, "rope_theta of config.json is 1000.* expected a positive number"),
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


def test_plain_tensors_of_another_type(tmp_path: Path, foreign: Path) -> None:
    import q4nx_files

    file = Q4nxFile(foreign / "model.q4nx")
    raw = {
        name: (entry.dtype, entry.shape, file._file.raw(entry).tobytes())
        for name, entry in file.entries.items()
    }
    _, shape, data = raw["model.norm.weight"]
    raw["model.norm.weight"] = ("I32", shape, data * 2)
    q4nx_files.write_file(foreign / "model.q4nx", raw)
    with pytest.raises(FormatError, match=r"model.norm.weight has dtype 'I32'; plain tensors are"):
        convert(foreign, tmp_path / "out.q4nx")


def test_which_file_is_meant(tmp_path: Path, foreign: Path) -> None:
    """A Q4NX file by another name is one; a folder with two is refused."""
    other = (foreign / "model.q4nx").rename(foreign / "weights.safetensors")
    assert isinstance(open_source(other), Q4nxSource)
    for name in ("a.q4nx", "b.q4nx"):
        shutil.copy(other, foreign / name)
    with pytest.raises(FormatError, match=r"has several Q4NX files \(a.q4nx, b.q4nx\); name one"):
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
