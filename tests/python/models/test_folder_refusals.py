"""Checkpoint folders: what this package does not compute is refused by the file's own key.

Each change of config.json or tokenizer.json is one that transformers or tokenizers would follow to
another result. What they read as the same model is read here, too; transformers' own configuration
class says what keys mean.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import q4nx_models
from q4nx_models import K_SHAPE, gguf_model

from npu import cli
from npu.errors import FormatError
from npu.formats.metadata import ModelFile
from npu.models.gemma3.checks import check
from npu.models.gemma3.config import read_config
from npu.models.sources import huggingface, open_source

CONFIG = {
    "model_type": "gemma3_text", "num_hidden_layers": 2, "hidden_size": 256,
    "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 16,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
}  # fmt: skip
FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that transformers has written, with a tokenizer.json."""
    import gguf

    folder = tmp_path_factory.mktemp("hf")
    weights = gguf_model(folder / "m.gguf", gguf.GGMLQuantizationType.BF16)[1]
    q4nx_models.save_checkpoint(folder / "hf", K_SHAPE, weights)
    q4nx_models.save_tokenizer_json(folder / "hf")
    return folder / "hf"


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "hf"))


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def config_of(tmp_path: Path, **changes: Any) -> Any:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    file = ModelFile()
    file.metadata = huggingface.folder_metadata(tmp_path)
    file.shapes = {"token_embd.weight": (300, 256), "a": (), "b": ()}
    return read_config(file)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a kind of layer": ({"layer_types": [FULL, "chunked_attention"]}, "layer_types"),
    "no kinds": ({"layer_types": "sliding_attention"}, "layer_types"),
    "too few kinds": ({"layer_types": [FULL]}, "layer_types"),
    "numbers as kinds": ({"layer_types": [1, [2]]}, "layer_types"),
    "both directions": ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    "quantised by MLX": ({"quantization": {"bits": 4}}, "quantization"),
    "biases": ({"attention_bias": True}, "attention_bias"),
    "another activation": ({"hidden_activation": "silu"}, "hidden_activation"),
    "capped attention": ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    "a cap of 0": ({"final_logit_softcapping": 0}, "final_logit_softcapping"),
    "a negative cap": ({"final_logit_softcapping": -1.0}, "final_logit_softcapping"),
    "partly rotated": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "no window": ({"sliding_window": None}, "sliding_window"),
    "a window of 0": ({"sliding_window": 0}, "sliding_window"),
    "a period of 0": ({"sliding_window_pattern": 0}, "sliding_window_pattern"),
    "a period transformers ignores": ({"_sliding_window_pattern": 2}, "_sliding_window_pattern"),
    "yarn": ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_scaling"),
    "GGUF's none": ({"rope_scaling": {"rope_type": "none"}}, "rope_scaling"),
    "no rope type": ({"rope_scaling": {"factor": 2.0}}, "rope_scaling"),
    "no factor": ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling"),
    "a list as scaling": ({"rope_scaling": [1]}, "rope_scaling"),
    "flat parameters": ({"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters"),
    "scaled windows": (
        {"rope_parameters": {SLIDING: {"rope_type": "linear", "factor": 2.0}}}, "rope_parameters"),
    "dynamic": (
        {"rope_parameters": {FULL: {"rope_type": "dynamic", "factor": 2.0}}}, "rope_parameters"),
    "partly rotated by kind": (
        {"rope_parameters": {FULL: {"partial_rotary_factor": 0.5}}}, "rope_parameters"),
    "a negative base": ({"rope_theta": -1}, "rope_theta"),
    "no local base": ({"rope_local_base_freq": "x"}, "rope_local_base_freq"),
    "layers in words": ({"num_hidden_layers": "2"}, "num_hidden_layers"),
    "no width": ({"hidden_size": None}, "hidden_size"),
    "no heads": ({"num_attention_heads": 0}, "num_attention_heads"),
    "an odd head": ({"head_dim": 33, "query_pre_attn_scalar": 33}, "head_dim"),
    "heads that do not divide": ({"num_key_value_heads": 3}, "num_key_value_heads"),
    "epsilon": ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
    "scale": ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    "fewer layers": ({"num_hidden_layers": 1}, "num_hidden_layers"),
    "another vocabulary": ({"vocab_size": 100}, "vocab_size"),
    "no head": ({"tie_word_embeddings": False}, "tie_word_embeddings"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_config_json(folder: Path, name: str) -> None:
    changes, key = REFUSED[name]
    config = {**CONFIG, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError) as caught:
        check(open_source(folder))
    words = str(caught.value)
    assert re.search(rf"(?<![\w.]){key} of config\.json", words), words
    assert "gemma3." not in words and "tokenizer.ggml" not in words
    assert "\n" not in words and len(words) < 400


def test_a_multimodal_configuration_is_read_like_a_text_one(folder: Path) -> None:
    """The text model's settings are refused in text_config, too."""
    for text, key in (
        ({**CONFIG, "quantization_config": {"bits": 4}}, "quantization_config"),
        ({**CONFIG, "tie_word_embeddings": False}, "tie_word_embeddings"),
        ({**CONFIG, "model_type": "gemma2"}, "text_config.model_type"),
        (5, "text_config"),
    ):
        document = {"model_type": "gemma3", "text_config": text}
        (folder / "config.json").write_text(json.dumps(document))
        with pytest.raises(FormatError, match=f"{key} of config.json"):
            check(open_source(folder))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layer_types": [FULL, SLIDING]},
        {"sliding_window_pattern": 2},
        {"layer_types": [FULL, FULL], "sliding_window": None},
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_theta": 5e5},
        {"rope_theta": 2e5, "rope_local_base_freq": 3e4},
        {"rope_parameters": {FULL: {"rope_type": "linear", "factor": 4.0, "rope_theta": 7.0},
                             SLIDING: {"rope_type": "default", "rope_theta": 9.0}}},
        {"rope_parameters": {FULL: {"rope_type": "default"}, SLIDING: None}, "rope_theta": 11.0},
        {"final_logit_softcapping": 30.0, "query_pre_attn_scalar": 100},
        {"_sliding_window_pattern": 6, "num_hidden_layers": 2},
    ],
)  # fmt: skip
def test_keys_mean_what_transformers_makes_of_them(tmp_path: Path, changes: dict) -> None:
    transformers = pytest.importorskip("transformers")
    keys = {**CONFIG, **changes}
    theirs = transformers.Gemma3TextConfig(**{k: v for k, v in keys.items() if k != "model_type"})
    ours = config_of(tmp_path, **changes)
    windows = [theirs.sliding_window if k == SLIDING else None for k in theirs.layer_types]
    assert list(ours.windows) == windows
    full, local = theirs.rope_parameters[FULL], theirs.rope_parameters[SLIDING]
    assert (ours.rope_base, ours.rope_base_sliding) == (full["rope_theta"], local["rope_theta"])
    assert ours.rope_factor == (full["factor"] if full["rope_type"] == "linear" else 1.0)
    assert ours.logit_softcap == theirs.final_logit_softcapping
    assert ours.attention_scale == theirs.query_pre_attn_scalar**-0.5


def test_a_text_model_without_a_head(folder: Path) -> None:
    """Gemma3TextModel, as transformers saves it: no `model.` before the names."""
    reference = pytest.importorskip("gemma3_reference", exc_type=ImportError)
    expected = open_source(folder)
    model = reference.transformers.AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.model.save_pretrained(folder)
    found = open_source(folder)
    assert found.stored_name("output_norm.weight") == "norm.weight"
    assert found.shapes == expected.shapes
    check(found)
    for name in found.shapes:
        assert np.array_equal(found.float32(name), expected.float32(name))


def test_a_folder_of_another_model(folder: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    other = {"vision.x.weight": np.zeros((2, 2), np.float32)}
    safetensors.save_file(other, folder / "model.safetensors")
    with pytest.raises(FormatError, match=r"none of its 1 tensors .* is 'vision\.x\.weight'"):
        open_source(folder)


# --- tokenizer.json --------------------------------------------------------------------------


def replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def with_model(**changes: Any) -> Callable[[dict], Any]:
    return lambda document: document["model"].update(changes)


def with_key(key: str, value: Any) -> Callable[[dict], Any]:
    return lambda document: document.__setitem__(key, value)


def with_token(**changes: Any) -> Callable[[dict], Any]:
    return lambda document: document["added_tokens"][5].update(changes)


def only_one_merge(document: dict) -> None:
    """ "abc" of "ab" and "c", but not of "a" and "bc"."""
    model = document["model"]
    size = len(model["vocab"])
    model["vocab"] |= {"ab": size, "bc": size + 1, "abc": size + 2}
    model["merges"] += [["a", "b"], ["b", "c"], ["ab", "c"]]


SPACES = replace(" ", "\u2581")
TOKENIZERS: dict[str, tuple[Callable[[dict], Any], str]] = {
    "no normaliser": (with_key("normalizer", None), "normalizer"),
    "lower case": (with_key("normalizer", {"type": "Lowercase"}), "normalizer"),
    "another replacement": (with_key("normalizer", replace(" ", "_")), "normalizer"),
    "NFKC first": (
        with_key("normalizer", {"type": "Sequence", "normalizers": [{"type": "NFKC"}, SPACES]}),
        "normalizer"),
    "a prefix alone": (
        with_key("normalizer", {"type": "Prepend", "prepend": "\u2581"}), "normalizer"),
    "bytes": (with_key("pre_tokenizer", {"type": "ByteLevel"}), "pre_tokenizer"),
    "digits": (with_key("pre_tokenizer", {"type": "Digits"}), "pre_tokenizer"),
    "a split": (
        with_key("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "\\d"}}), "pre_tokenizer"),
    "no decoder": (with_key("decoder", None), "decoder"),
    "another decoder": (with_key("decoder", {"type": "WordPiece"}), "decoder"),
    "Unigram": (with_model(type="Unigram", vocab=[["a", 0.0]]), "model"),
    "WordPiece": (with_model(type="WordPiece"), "model"),
    "dropout": (with_model(dropout=0.1), "model.dropout"),
    "a prefix of pieces": (with_model(continuing_subword_prefix="##"), "model.continuing"),
    "an end of words": (with_model(end_of_word_suffix="</w>"), "model.end_of_word_suffix"),
    "merges ignored": (with_model(ignore_merges=True), "model.ignore_merges"),
    "no bytes": (with_model(byte_fallback=False), "model.byte_fallback"),
    "merges of another BPE": (only_one_merge, "model.merges"),
    "a merge of three": (with_model(merges=[["a", "b", "c"]]), "merge"),
    "left strip": (with_token(lstrip=True), "added_tokens"),
    "right strip": (with_token(rstrip=True), "added_tokens"),
    "words only": (with_token(single_word=True), "added_tokens"),
    "normalised spaces": (with_token(content="a b", normalized=True), "added_tokens"),
}  # fmt: skip


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizer_json(folder: Path, name: str) -> None:
    edit, key = TOKENIZERS[name]
    document = json.loads((folder / "tokenizer.json").read_text())
    edit(document)
    (folder / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(FormatError) as caught:
        check(open_source(folder))
    words = str(caught.value)
    assert re.search(rf"tokenizer\.json: .*{key}", words), words
    assert "\n" not in words and len(words) < 400


def test_steps_without_effect_are_read(folder: Path) -> None:
    """Gemma 3's own file splits at spaces, of which the normaliser has left none."""
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
             "invert": False}  # fmt: skip
    decoder = {"type": "Sequence", "decoders": [
        replace("\u2581", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]}  # fmt: skip
    change(folder / "tokenizer.json", pre_tokenizer=split, decoder=decoder)
    tokenizer = check(open_source(folder))[1]
    tokenizers = pytest.importorskip("tokenizers")
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in ("hello  world\n\u00e9", " a b ", "\U0001f600"):
        ids = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special=False) == ids
        assert tokenizer.decode(ids) == library.decode(ids)


def test_a_tab_in_the_place_of_its_byte(folder: Path) -> None:
    """As in Gemma's first vocabularies, where other characters still become bytes."""
    tokenizers = pytest.importorskip("tokenizers")
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"<0x09>"', '"\\t"'))
    tokenizer = check(open_source(folder))[1]
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for words in ("a\tb", "\u00fc\U0001f600", "\t\t"):
        ids = library.encode(words, add_special_tokens=False).ids
        assert tokenizer.encode(words, add_special=False) == ids
        assert tokenizer.decode(ids) == words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model_type": "unigram"}, "model_type is 1"),
        ({"model_type": "word"}, "model_type is 3"),
        ({"normalization_rule_name": "nmt_nfkc"}, "the normalizer changes characters"),
        ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix"),
    ],
)
def test_tokenizer_model(folder: Path, options: dict, words: str) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    usual = {"model_type": "bpe", "normalization_rule_name": "identity", "vocab_size": 40}
    lines = [f"number {i} and {i * 7919 % 1000}" for i in range(300)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(folder / "tokenizer"), minloglevel=2,
        **{**usual, **options},
    )  # fmt: skip
    with pytest.raises(FormatError, match=rf"tokenizer\.model: .*{words}"):
        check(open_source(folder))


def test_errors_about_the_tokenizer_name_its_files(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(folder / "tokenizer_config.json", add_bos_token="yes")
    with pytest.raises(FormatError, match=r"add_bos_token of tokenizer_config.json is 'yes'"):
        check(open_source(folder))
    change(folder / "tokenizer_config.json", add_bos_token=True, bos_token="<none>")
    with pytest.raises(FormatError, match=r"bos_token of tokenizer_config.json is missing"):
        check(open_source(folder))
    assert cli.main(["convert", str(folder), str(folder / "x.q4nx")]) == 1
    assert "bos_token of tokenizer_config.json is missing" in capsys.readouterr().err
    assert not (folder / "x.q4nx").exists()


def test_sampling_settings_are_named_as_in_the_folder(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"top_p": 2, "top_k": 5}))
    with pytest.raises(FormatError, match=r"top_p of generation_config\.json is 2, expected"):
        check(open_source(folder))
    change(folder / "generation_config.json", top_p=0.9, repetition_penalty=0)
    with pytest.raises(FormatError, match=r"repetition_penalty of generation_config\.json is 0"):
        check(open_source(folder))


def test_added_tokens_that_are_no_list(folder: Path) -> None:
    change(folder / "tokenizer.json", added_tokens="abc")
    with pytest.raises(FormatError, match="added_tokens is malformed"):
        check(open_source(folder))
