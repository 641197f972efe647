"""Text to token ids and back, from the tokenizer metadata of a GGUF file.

Gemma's vocabulary is a SentencePiece BPE model. GGUF keeps its pieces, scores and types; they are
written back as a SentencePiece model and the `sentencepiece` library does the segmentation.
Pieces that stand for themselves, such as ``<start_of_turn>`` and runs of spaces, are split off
before, as llama.cpp and Hugging Face tokenizers do; docs/model_files.md compares the three.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from npu.errors import FormatError
from npu.formats.metadata import Metadata, show
from npu.models.chat_template import Message, gemma_turns, render

# Piece types, the same numbers in GGUF and in sentencepiece_model.proto.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_SPACE = "\u2581"  # SentencePiece's visible space
_UNKNOWN_TEXT = " \u2047 "  # what SentencePiece shows for an unknown piece
_MODEL_BPE = 2  # TrainerSpec.model_type
_MAX_MISSING_BYTES = 8
_MAX_SCORE = float(np.finfo(np.float32).max)
_SAMPLE = "Hello, 1 + 1 = \u00e9\n"  # what ``check`` encodes


class Tokenizer:
    """Built from ``tokenizer.*`` metadata; raises FormatError when that is missing or malformed."""

    def __init__(self, file: Metadata) -> None:
        kind = file.text("tokenizer.ggml.model")
        if kind != "llama":
            raise file.fail(
                f"tokenizer type {kind!r} is not supported, Gemma 3 models use 'llama' "
                "(SentencePiece)"
            )
        self.pieces, scores, kinds = _read_vocabulary(file)
        self.types: list[int] = kinds.tolist()
        size = len(self.pieces)

        def token_id(key: str) -> int | None:
            key = f"tokenizer.ggml.{key}"
            return file.integer(key, low=0, high=size - 1) if key in file.metadata else None

        self.bos_id = token_id("bos_token_id")
        self.eos_id = token_id("eos_token_id")
        self.add_bos = file.flag("tokenizer.ggml.add_bos_token", True)
        self.add_eos = file.flag("tokenizer.ggml.add_eos_token", False)
        self.space_prefix = file.flag("tokenizer.ggml.add_space_prefix", True)
        if self.add_bos and self.bos_id is None:
            raise file.fail(
                f"{file.named('tokenizer.ggml.add_bos_token')} is set but "
                f"{file.named('tokenizer.ggml.bos_token_id')} is missing"
            )
        key = "tokenizer.chat_template"
        self._template = file.text(key) if key in file.metadata else None
        self._fail = file.fail

        unknown = token_id("unknown_token_id")
        self._processor = _processor(file, self.pieces, scores, kinds, unknown, self)
        controls = _literals(self.pieces, kinds, CONTROL)
        defined = _literals(self.pieces, kinds, USER_DEFINED)
        self._special = _Splitter(controls | defined | _literals(self.pieces, kinds, UNKNOWN))
        self._plain = _Splitter(defined)
        ends = (self.eos_id, token_id("eot_token_id"), controls.get("<end_of_turn>"))
        self.end_ids: frozenset[int] = frozenset(index for index in ends if index is not None)

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(
        self, text: str, *, add_special: bool = True, parse_control: bool = True
    ) -> list[int]:
        """Token ids of a text.

        ``add_special`` prepends BOS (and appends EOS) as the model asks, unless the text already
        starts with it; ``parse_control`` maps control pieces and the unknown piece written in the
        text to their ids. User-defined pieces are always found.
        """
        text = text.encode("utf-8", errors="replace").decode("utf-8")
        ids: list[int] = []
        for part in (self._special if parse_control else self._plain).split(text):
            if isinstance(part, int):
                ids.append(part)
            elif part:
                found = self._processor.encode(part)
                ids.extend(found if max(found, default=0) < len(self) else map(self._own, found))
        if add_special and self.add_bos and ids[:1] != [self.bos_id]:
            assert self.bos_id is not None
            ids.insert(0, self.bos_id)
        if add_special and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def _own(self, index: int) -> int:
        """The library's id, or the unknown piece for a byte piece that it was only lent."""
        return index if index < len(self) else self._processor.unk_id()

    def token_bytes(self, index: int) -> bytes:
        """The UTF-8 bytes a token stands for; none for control pieces."""
        kind, piece = self.types[index], self.pieces[index]
        if kind in (CONTROL, UNUSED):
            return b""
        if kind == UNKNOWN:
            return _UNKNOWN_TEXT.encode()
        if kind == BYTE:
            return bytes([int(piece[3:5], 16)])
        return piece.replace(_SPACE, " ").encode("utf-8", errors="replace")

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the tokens, control pieces left out."""
        stream = self.stream(at_start=True)
        return "".join(stream.push(index) for index in ids) + stream.finish()

    def stream(self, *, at_start: bool = False) -> StreamDecoder:
        """A decoder to feed token by token; ``at_start``: drop the space prefix of the first."""
        return StreamDecoder(self, at_start and self.space_prefix)

    def render_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> str:
        """The prompt text of a conversation by the model's template, or in Gemma 3's turn format.

        A message has a ``role`` and a ``content``: a string, or a list of {"type": "text", "text":
        ...}. Raises FormatError when the template fails or refuses, ArgumentError when Gemma's
        format does.
        """
        if self._template is None:
            bos = self._text(self.bos_id)
            return gemma_turns(messages, bos, add_generation_prompt=add_generation_prompt)
        try:
            return self._render(self._template, messages, add_generation_prompt)
        except FormatError as error:
            raise FormatError(f"{error}; prompt without the template (--raw)") from None

    def check(self) -> None:
        """Encodes and decodes a sample; FormatError when that does not give tokens and text."""
        try:
            ids = self.encode(_SAMPLE)
            good = bool(ids) and all(0 <= index < len(self) for index in ids)
            self.decode(ids)
        except Exception as error:  # the library raises bare RuntimeError and others
            raise self._fail(f"the tokenizer fails on a sample: {show(str(error))}") from None
        if not good:
            raise self._fail(f"the tokenizer gives the ids {show(ids)} for a sample")

    def check_template(self) -> None:
        """Renders one user message by the model's template, if it has one; raises FormatError."""
        if self._template is not None:
            self._render(self._template, [{"role": "user", "content": _SAMPLE}], True)

    def _render(
        self, template: str, messages: Sequence[Message], add_generation_prompt: bool
    ) -> str:
        variables = {
            "messages": list(messages),
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self._text(self.bos_id),
            "eos_token": self._text(self.eos_id),
            "tools": None,
            "documents": None,
        }
        return render(template, variables)

    def _text(self, index: int | None) -> str:
        return "" if index is None else self.pieces[index]


class _Splitter:
    """Cuts texts at pieces, from the left, the longest match first."""

    def __init__(self, pieces: dict[str, int]) -> None:
        self._pieces = pieces
        lengths: dict[str, set[int]] = {}
        for piece in pieces:
            lengths.setdefault(piece[:2], set()).add(len(piece))
        starts = sorted(lengths, key=lambda start: -len(start))
        self._start = re.compile("|".join(map(re.escape, starts))) if starts else None
        # Lengths to try where a text has these two characters, or the first alone.
        self._lengths = {
            start: sorted(found | lengths.get(start[0], set()), reverse=True)
            for start, found in lengths.items()
        }

    def split(self, text: str) -> list[str | int]:
        """The text between pieces, and the pieces as ids."""
        parts: list[str | int] = []
        done = position = 0
        while self._start and (match := self._start.search(text, position)):
            position = match.start()
            for length in self._lengths[match[0]]:
                index = self._pieces.get(text[position : position + length])
                if index is not None:
                    parts += [text[done:position], index]
                    done = position = position + length
                    break
            else:
                position += 1
        return [*parts, text[done:]]


class StreamDecoder:
    """Turns tokens into text as they come, holding back incomplete UTF-8 sequences."""

    def __init__(self, tokenizer: Tokenizer, strip_space: bool) -> None:
        self._tokenizer = tokenizer
        self._strip_space = strip_space
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, index: int) -> str:
        raw = self._tokenizer.token_bytes(index)
        if raw and self._strip_space:
            raw = raw.removeprefix(b" ")
            self._strip_space = False
        return self._decoder.decode(raw)

    def finish(self) -> str:
        """What is left at the end; a broken sequence becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)


def _literals(pieces: list[str], kinds: np.ndarray, kind: int) -> dict[str, int]:
    """Pieces of a kind, which stand for themselves in a text."""
    indexes = np.flatnonzero(kinds == kind).tolist()
    return {pieces[index]: index for index in indexes if pieces[index]}


def _read_vocabulary(file: Metadata) -> tuple[list[str], np.ndarray, np.ndarray]:
    pieces = file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(pieces, list) or not pieces or {type(p) for p in pieces} != {str}:
        raise file.fail(
            f"{file.named('tokenizer.ggml.tokens')} is missing or not a list of strings"
        )
    columns = []
    for key, low, high in (("scores", -_MAX_SCORE, _MAX_SCORE), ("token_type", NORMAL, BYTE)):
        name = file.named(f"tokenizer.ggml.{key}")
        values = file.metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(values, np.ndarray) or values.dtype == bool:
            raise file.fail(f"{name} is missing or not a list of numbers")
        if len(values) != len(pieces):
            raise file.fail(f"{name} has {len(values)} entries for {len(pieces)} tokens")
        if not np.isfinite(values).all() or (values < low).any() or (values > high).any():
            raise file.fail(f"{name} has values outside [{low:g}, {high:g}]")
        columns.append(values)
    kinds = columns[1].astype(np.int64)
    for index in np.flatnonzero(kinds == BYTE).tolist():
        if not re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", pieces[index]):
            raise file.fail(f"the byte token {pieces[index][:20]!r} is not of the form <0x41>")
    return pieces, columns[0].astype(np.float32), kinds


def _processor(
    file: Metadata,
    pieces: list[str],
    scores: np.ndarray,
    kinds: np.ndarray,
    unknown: int | None,
    options: Tokenizer,
) -> Any:
    import sentencepiece

    model = _model_proto(
        *_library_vocabulary(file, pieces, scores, kinds, unknown),
        space_prefix=options.space_prefix,
        squeeze_spaces=file.flag("tokenizer.ggml.remove_extra_whitespaces", False),
    )
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except Exception as error:  # the library raises bare RuntimeError and others
        reason = " ".join(str(error).split())
        raise file.fail(f"the vocabulary is not a valid SentencePiece model: {reason}") from None


def _library_vocabulary(
    file: Metadata,
    pieces: list[str],
    scores: np.ndarray,
    kinds: np.ndarray,
    unknown: int | None,
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The vocabulary under the library's rules: unique non-empty pieces, one unknown piece, all
    256 byte pieces or none. What breaks them keeps its id as an unused piece; a few missing byte
    pieces are added at the end."""
    names, kinds = list(pieces), kinds.copy()
    if UNKNOWN not in kinds:
        if unknown is None:
            raise file.fail("the vocabulary has no unknown token")
        kinds[unknown] = UNKNOWN
    first_unknown = int(np.flatnonzero(kinds == UNKNOWN)[0])
    # The library knows one spelling of byte pieces.
    byte_pieces = np.flatnonzero(kinds == BYTE).tolist()
    for index in byte_pieces:
        names[index] = f"<0x{int(names[index][3:5], 16):02X}>"
    # Gemma's first vocabularies have a tab in the place of its byte.
    lent = sorted({f"<0x{value:02X}>" for value in range(256)}.difference(names))
    found = {names[index] for index in byte_pieces}
    has_bytes = len(lent) <= _MAX_MISSING_BYTES and len(lent) + len(found) == 256
    suspects: Iterable[int] = range(len(kinds))
    unique, text = set(names), "".join(names)
    if (
        len(unique) == len(names)
        and "" not in unique
        and not any(part in text for part in ("\0", "<unused piece"))
    ):
        # As in most vocabularies: only these pieces may break a rule.
        suspects = np.flatnonzero(np.isin(kinds, (UNKNOWN, BYTE))).tolist()
    seen: set[str] = set()
    for index in suspects:
        kind = kinds[index]
        name = names[index]
        drop = kind == UNKNOWN and index != first_unknown
        drop = drop or (kind == BYTE and not has_bytes)
        if drop or not name or name in seen or "\0" in name:
            name = f"<unused piece {index}>"
            kinds[index] = UNKNOWN if index == first_unknown else UNUSED
        seen.add(name)
        names[index] = name
    lent = lent if has_bytes else []
    return names + lent, np.pad(scores, (0, len(lent))), np.append(kinds, [BYTE] * len(lent))


def _model_proto(
    names: list[str],
    scores: np.ndarray,
    kinds: np.ndarray,
    *,
    space_prefix: bool,
    squeeze_spaces: bool,
) -> bytes:
    """Serialises sentencepiece_model.proto: ModelProto{pieces=1, trainer_spec=2, normalizer=3}."""
    # SentencePiece{piece=1 string, score=2 float, type=3 enum}
    raws = [name.encode("utf-8", errors="replace") for name in names]
    ends = np.zeros(len(names), [("f2", "u1"), ("score", "<f4"), ("f3", "u1"), ("kind", "u1")])
    ends["f2"], ends["score"], ends["f3"], ends["kind"] = 0x15, scores, 0x18, kinds
    size = ends.itemsize
    begins: dict[int, bytes] = {}  # by the length of a piece
    for length in set(map(len, raws)):
        text = b"\x0a" + _varint(length)
        begins[length] = b"\x0a" + _varint(len(text) + length + size) + text
    parts = [
        part
        for raw, end in zip(raws, ends.view(f"V{size}").tolist(), strict=True)
        for part in (begins[len(raw)], raw, end)
    ]
    trainer = b"".join(
        [
            _integer(3, _MODEL_BPE),  # model_type
            _integer(4, len(names)),  # vocab_size
            _integer(35, int(BYTE in kinds)),  # byte_fallback
            _text(45, names[int(np.flatnonzero(kinds == UNKNOWN)[0])]),  # unk_piece
        ]
    )
    normalizer = b"".join(
        [
            _text(1, "identity"),
            _integer(3, int(space_prefix)),  # add_dummy_prefix
            _integer(4, int(squeeze_spaces)),  # remove_extra_whitespaces
            _integer(5, 1),  # escape_whitespaces
        ]
    )
    return b"".join([*parts, _message(2, trainer), _message(3, normalizer)])


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, body: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(body)) + body


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode("utf-8", errors="replace"))
