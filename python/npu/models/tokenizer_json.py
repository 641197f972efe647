"""What a tokenizer.json has to say for this package's tokenizer to give the same tokens and text.

The tokenizer is SentencePiece's BPE: spaces become U+2581, pairs merge by score, unknown characters
become bytes. Files of the `tokenizers` library can ask for other steps; each that differs is
refused by its key. Gemma 3's file: a Replace normaliser, a Split on spaces without effect, BPE with
byte fallback, and a decoder that undoes these.
"""

from __future__ import annotations

from typing import Any

from npu.errors import FormatError
from npu.formats.metadata import show

_SPACE = "\u2581"
_SAMPLED = 4096  # pieces whose merges are counted
_COMPLETE = 0.995  # of their possible merges: trained BPE has one merge per piece, far fewer
_UNKNOWN_ARE_FUSED = "expected true: neighbouring unknown characters are one token"


def check(label: str, document: dict[str, Any]) -> bool:
    """Whether texts get a space in front; FormatError for a step that the tokenizer does not do."""

    def refuse(key: str, value: Any, why: str) -> FormatError:
        return FormatError(f"[tokenizer] {label}: {key} is {show(value)}; {why}")

    _check_model(document["model"], refuse)
    prefix = _check_normalizer(document, refuse)
    decoder = document.get("decoder")
    steps = _steps(decoder, "decoders")
    good = all(_is_decoding_step(step) for step in steps)
    if not good or not any(_replaces(step, _SPACE, " ") or _is_metaspace(step) for step in steps):
        raise refuse("decoder", decoder, f"expected one that turns {_SPACE} into spaces")
    return prefix


def check_merges(
    label: str, document: dict[str, Any], ids: dict[str, int], merges: set[tuple[str, str]]
) -> None:
    """Raises FormatError unless every split of a piece into two pieces is a merge, as
    SentencePiece, which merges any two pieces whose union is one, takes for granted. Converters
    may leave out added tokens."""
    tokens = document.get("added_tokens")
    entries = tokens if isinstance(tokens, list) else []
    added = {str(token.get("content")) for token in entries if isinstance(token, dict)}
    step = max(1, len(ids) // _SAMPLED)
    possible = found = 0
    merged = {a + b for a, b in merges}
    for piece in list(ids)[::step]:
        if piece not in merged or piece in added:
            continue
        for cut in range(1, min(len(piece), 64)):
            pair = piece[:cut], piece[cut:]
            if all(part in ids and part not in added for part in pair):
                possible += 1
                found += pair in merges
    if found < _COMPLETE * possible:
        raise FormatError(
            f"[tokenizer] {label}: model.merges has {found} of {possible} possible merges of a "
            "SentencePiece vocabulary; another kind of BPE would segment texts differently"
        )


def check_added(label: str, token: dict[str, Any]) -> None:
    """Refuses options of an added token under which more than its text matches."""
    text = str(token.get("content"))
    for key in ("lstrip", "rstrip", "single_word"):
        if token.get(key):
            raise FormatError(
                f"[tokenizer] {label}: added_tokens has {show(text)} with {key}, which is not "
                "supported"
            )
    if token.get("normalized") and (" " in text or _SPACE in text):
        raise FormatError(
            f"[tokenizer] {label}: added_tokens has {show(text)} with normalized, which is not "
            "supported for spaces"
        )


def _check_model(model: dict[str, Any], refuse: Any) -> None:
    if model.get("type", "BPE") != "BPE":
        raise refuse("model.type", model.get("type"), "only 'BPE' is supported, as Gemma has")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"):
        if model.get(key):
            raise refuse(f"model.{key}", model[key], "it is not supported, Gemma has none")
    pieces = {f"<0x{value:02X}>" for value in range(256)}
    bytes_ = pieces <= set(model["vocab"])
    if bytes_ and model.get("byte_fallback") is not True:
        raise refuse("model.byte_fallback", model.get("byte_fallback"), "the pieces are there")
    if not bytes_ and model.get("fuse_unk") is not True:
        raise refuse("model.fuse_unk", model.get("fuse_unk"), _UNKNOWN_ARE_FUSED)


def _check_normalizer(document: dict[str, Any], refuse: Any) -> bool:
    """Spaces become U+2581 by a normaliser, or by the pre-tokenizer Metaspace, and nothing else
    changes. Returns whether a space is put in front."""
    normalizer, splitter = document.get("normalizer"), document.get("pre_tokenizer")
    steps = _steps(normalizer, "normalizers")
    prefix = False
    if steps and _type(steps[0]) == "Prepend" and steps[0].get("prepend") == _SPACE:
        prefix, steps = True, steps[1:]
    replaced = len(steps) == 1 and _replaces(steps[0], " ", _SPACE)
    if (steps and not replaced) or (prefix and not replaced):
        raise refuse("normalizer", normalizer, f"expected one that replaces spaces by {_SPACE}")
    for step in _steps(splitter, "pretokenizers"):
        if _is_metaspace(step) and not replaced:
            scheme = step.get("prepend_scheme", "always")
            if step.get("split", True) or scheme not in ("always", "never"):
                raise refuse("pre_tokenizer", splitter, "Metaspace is supported without split")
            prefix, replaced = scheme == "always", True
        elif _type(step) != "Split" or not replaced or step.get("pattern") != {"String": " "}:
            # After the replacement there is no space to split at.
            raise refuse("pre_tokenizer", splitter, "texts are segmented without one")
    if not replaced:
        raise refuse("normalizer", normalizer, f"expected one that replaces spaces by {_SPACE}")
    return prefix


def _steps(part: Any, inner: str) -> list[Any]:
    if isinstance(part, dict) and part.get("type") == "Sequence":
        steps = part.get(inner)
        return steps if isinstance(steps, list) else [part]
    return [] if part is None else [part]


def _type(step: Any) -> Any:
    return step.get("type") if isinstance(step, dict) else None


def _is_metaspace(step: Any) -> bool:
    return _type(step) == "Metaspace" and step.get("replacement", _SPACE) == _SPACE


def _replaces(step: Any, old: str, new: str) -> bool:
    same = _type(step) == "Replace" and step.get("pattern") == {"String": old}
    return bool(same and step.get("content") == new)


def _is_decoding_step(step: Any) -> bool:
    # Strip takes the space away that the normaliser put in front.
    return (
        _type(step) in ("ByteFallback", "Fuse")
        or _replaces(step, _SPACE, " ")
        or _is_metaspace(step)
        or (_type(step) == "Strip" and step.get("content") == " " and step.get("stop") == 0)
    )
