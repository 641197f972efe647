"""The tokenizer of a checkpoint folder as GGUF's ``tokenizer.*`` metadata.

Read from ``tokenizer.model`` (SentencePiece, preferred: it has scores and types) or
``tokenizer.json`` (BPE with merges), with tokenizer_config.json and generation_config.json for
special tokens and the chat template. A folder without a tokenizer gives no keys.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from npu.errors import FormatError
from npu.formats.json_file import read_json
from npu.formats.metadata import show
from npu.models import tokenizer_json
from npu.models.tokenizer import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED

_MAX_BYTES = 256 << 20
_PREFIX = "tokenizer.ggml."
# What GGUF's keys are called here, for errors that the tokenizer finds.
_PLACES = {
    "tokens": "the vocabulary of the folder's tokenizer",
    "scores": "the scores of the folder's tokenizer",
    "token_type": "the types of the folder's tokenizer",
    "bos_token_id": "bos_token of tokenizer_config.json",
    "eos_token_id": "eos_token of tokenizer_config.json",
    "eot_token_id": "eos_token_id of generation_config.json",
    "add_bos_token": "add_bos_token of tokenizer_config.json",
    "add_eos_token": "add_eos_token of tokenizer_config.json",
    "unknown_token_id": "model.unk_token of tokenizer.json",
}
KEY_NAMES = {f"{_PREFIX}{key}": place for key, place in _PLACES.items()}
# sentencepiece_model.proto: fields of ModelProto, TrainerSpec, NormalizerSpec.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_UNK_ID, _BOS_ID, _EOS_ID, _PAD_ID = 40, 41, 42, 43
_MODEL_TYPE, _SPACE_AS_SUFFIX, _BPE = 3, 24, 2
_CHARACTER_MAP, _DUMMY_PREFIX, _EXTRA_SPACES, _ESCAPE_SPACES = 2, 3, 4, 5


class _Pieces:
    """Pieces, scores and types by id."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.texts: list[str] = []
        self.scores: list[float] = []
        self.types: list[int] = []

    def fail(self, what: str) -> FormatError:
        return FormatError(f"[tokenizer] {self.label}: {what}")

    def put(self, index: int, text: str, kind: int) -> None:
        """Sets a piece, as an added token does; ids may grow the vocabulary by a few."""
        if not 0 <= index <= len(self.texts) + 1024:
            raise self.fail(f"the added token {show(text)} has the id {index}")
        while len(self.texts) <= index:
            self.texts.append(f"<unused piece {len(self.texts)}>")
            self.scores.append(0.0)
            self.types.append(USER_DEFINED)
        self.texts[index], self.types[index] = text, kind


def metadata(folder: Path) -> dict[str, Any]:
    """GGUF's tokenizer keys for a folder; empty without a tokenizer."""
    if (folder / "tokenizer.model").is_file():
        pieces, found = _from_sentencepiece(folder / "tokenizer.model")
    elif (folder / "tokenizer.json").is_file():
        pieces, found = _from_json(folder / "tokenizer.json")
    else:
        return {}
    found |= _settings(folder, pieces)
    return {
        f"{_PREFIX}model": "llama",
        f"{_PREFIX}tokens": pieces.texts,
        f"{_PREFIX}scores": np.array(pieces.scores, np.float32),
        f"{_PREFIX}token_type": np.array(pieces.types, np.int32),
        **found,
    }


# --- tokenizer.model -------------------------------------------------------------------------


def _from_sentencepiece(path: Path) -> tuple[_Pieces, dict[str, Any]]:
    pieces = _Pieces(path.name)
    if path.stat().st_size > _MAX_BYTES:
        raise pieces.fail("larger than any vocabulary")
    raw = path.read_bytes()
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for field, value in _fields(pieces, raw):
        if field == _PIECES:
            piece = dict(_fields(pieces, value))
            text, score = piece.get(1, b""), piece.get(2, b"\0\0\0\0")
            kind = piece.get(3, NORMAL)
            if not isinstance(text, bytes) or not isinstance(score, bytes) or len(score) != 4:
                raise pieces.fail("a piece is malformed; it is corrupted")
            if not isinstance(kind, int) or not NORMAL <= kind <= BYTE:
                raise pieces.fail(f"a piece has the type {show(kind)}; it is corrupted")
            pieces.texts.append(text.decode("utf-8", "replace"))
            pieces.scores.append(struct.unpack("<f", score)[0])
            pieces.types.append(kind)
        elif field == _TRAINER:
            trainer = dict(_fields(pieces, value))
        elif field == _NORMALIZER:
            normalizer = dict(_fields(pieces, value))
    if not pieces.texts:
        raise pieces.fail("has no pieces; it is not a SentencePiece model")
    if trainer.get(_MODEL_TYPE, 1) != _BPE:
        raise pieces.fail(
            f"model_type is {show(trainer.get(_MODEL_TYPE, 1))}, only BPE (2) is read"
        )
    if normalizer.get(_CHARACTER_MAP) or not normalizer.get(_ESCAPE_SPACES, 1):
        raise pieces.fail(
            "the normalizer changes characters; only 'identity', as Gemma has, is read"
        )
    if trainer.get(_SPACE_AS_SUFFIX):
        raise pieces.fail("treat_whitespace_as_suffix is set, which is not supported")
    found: dict[str, Any] = {
        f"{_PREFIX}add_space_prefix": bool(normalizer.get(_DUMMY_PREFIX, 1)),
        f"{_PREFIX}remove_extra_whitespaces": bool(normalizer.get(_EXTRA_SPACES, 1)),
    }
    ids = {"unknown": (_UNK_ID, 0), "bos": (_BOS_ID, 1), "eos": (_EOS_ID, 2)}
    for name, (field, default) in ids.items():
        index = trainer.get(field, default)
        if isinstance(index, int) and index < len(pieces.texts):
            found[f"{_PREFIX}{name}_token_id"] = index
    return pieces, found


def _fields(pieces: _Pieces, raw: Any) -> list[tuple[int, Any]]:
    """(number, value) of a protobuf message: ints for varints, bytes for the rest."""
    if not isinstance(raw, bytes):
        raise pieces.fail("is not a SentencePiece model")
    found: list[tuple[int, Any]] = []
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while shift < 70 and position < len(raw):
            byte = raw[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
        raise pieces.fail("is truncated or not a SentencePiece model")

    while position < len(raw):
        key = varint()
        field, kind = key >> 3, key & 7
        if kind == 0:
            found.append((field, varint()))
            continue
        size = {1: 8, 5: 4}.get(kind) or (varint() if kind == 2 else len(raw))
        if size > len(raw) - position or kind not in (1, 2, 5):
            raise pieces.fail("is truncated or not a SentencePiece model")
        found.append((field, raw[position : position + size]))
        position += size
    return found


# --- tokenizer.json --------------------------------------------------------------------------


def _from_json(path: Path) -> tuple[_Pieces, dict[str, Any]]:
    pieces = _Pieces(path.name)
    document = read_json(path)
    model = document.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    merges = model.get("merges") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict) or not isinstance(merges, list) or not vocabulary:
        kind = model.get("type") if isinstance(model, dict) else None
        raise pieces.fail(
            f"model (type {show(kind)}) is not a BPE tokenizer with a vocabulary and merges, as "
            "Gemma's is"
        )
    assert isinstance(model, dict)
    space_prefix = tokenizer_json.check(path.name, document)
    _fill(pieces, vocabulary)
    ranks: dict[str, int] = {}
    pairs: set[tuple[str, str]] = set()
    for rank, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(p) is str for p in pair):
            raise pieces.fail(f"the merge {show(merge)} is not a pair of pieces")
        ranks.setdefault(pair[0] + pair[1], rank)
        pairs.add((pair[0], pair[1]))
    tokenizer_json.check_merges(path.name, document, vocabulary, pairs)
    # SentencePiece merges the pair whose result scores best, BPE the pair of lowest rank.
    pieces.scores = [-float(ranks.get(text, len(merges))) for text in pieces.texts]
    unknown = model.get("unk_token")
    for index, text in enumerate(pieces.texts):
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            pieces.types[index] = BYTE
        elif text == unknown:
            pieces.types[index] = UNKNOWN
    _add_tokens(pieces, document.get("added_tokens") or [])
    found: dict[str, Any] = {
        f"{_PREFIX}add_space_prefix": space_prefix,
        f"{_PREFIX}remove_extra_whitespaces": False,
    }
    if isinstance(unknown, str) and unknown in vocabulary:
        found[f"{_PREFIX}unknown_token_id"] = vocabulary[unknown]
    return pieces, found


def _fill(pieces: _Pieces, vocabulary: dict[str, Any]) -> None:
    size = len(vocabulary)
    texts: list[str | None] = [None] * size
    for text, index in vocabulary.items():
        if type(index) is not int or not 0 <= index < size or texts[index] is not None:
            raise pieces.fail(f"the ids of the vocabulary are not 0 to {size - 1}")
        texts[index] = text
    pieces.texts = [text or "" for text in texts]
    pieces.types = [NORMAL] * size


def _add_tokens(pieces: _Pieces, tokens: Any) -> None:
    """Added tokens: special ones are control pieces, the rest user-defined."""
    good = isinstance(tokens, list)
    if not good or not all(isinstance(t, dict) and type(t.get("id")) is int for t in tokens):
        raise pieces.fail("added_tokens is malformed")
    for token in sorted(tokens, key=lambda token: token["id"]):
        index, text = token["id"], token.get("content")
        tokenizer_json.check_added(pieces.label, token)
        if not isinstance(text, str):
            raise pieces.fail(f"the added token {index} has no content")
        known = pieces.types[index] if 0 <= index < len(pieces.types) else NORMAL
        if known not in (UNKNOWN, BYTE):
            pieces.put(index, text, CONTROL if token.get("special") else USER_DEFINED)


# --- settings beside it ----------------------------------------------------------------------


def _settings(folder: Path, pieces: _Pieces) -> dict[str, Any]:
    """Special tokens, BOS policy and chat template."""
    config = _optional(folder / "tokenizer_config.json")
    decoder = config.get("added_tokens_decoder")
    if isinstance(decoder, dict) and all(str(key).isdecimal() for key in decoder):
        _add_tokens(
            pieces,
            [{**v, "id": int(k)} for k, v in decoder.items() if isinstance(v, dict)],
        )
    ids = {text: index for index, text in enumerate(pieces.texts)}
    found: dict[str, Any] = {}
    for name, usual in (("add_bos_token", True), ("add_eos_token", False)):
        value = config.get(name, usual)
        found[_PREFIX + name] = usual if value is None else value
    defaults = {"bos": "<bos>", "eos": "<eos>", "padding": "<pad>"}
    for ours, default in defaults.items():
        token = config.get(f"{ours.removesuffix('ding')}_token", default)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str) and token in ids:
            found[f"{_PREFIX}{ours}_token_id"] = ids[token]
    ends = _optional(folder / "generation_config.json").get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    for end in ends:
        if type(end) is int and 0 <= end < len(pieces.texts):
            found[f"{_PREFIX}eot_token_id"] = end  # the last of the list: <end_of_turn>
    if template := _template(folder, config):
        found["tokenizer.chat_template"] = template
    return found


def _template(folder: Path, config: dict[str, Any]) -> str | None:
    plain = folder / "chat_template.jinja"
    if plain.is_file() and plain.stat().st_size < _MAX_BYTES:
        return plain.read_text("utf-8", "replace")
    value = _optional(folder / "chat_template.json").get("chat_template")
    value = config.get("chat_template") if value is None else value
    if isinstance(value, list):  # several named ones
        named = {v.get("name"): v.get("template") for v in value if isinstance(v, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
