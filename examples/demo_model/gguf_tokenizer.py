"""The tokenizer and chat template of a GGUF file, read from its metadata alone; no torch needed.

A plain form of SentencePiece's BPE: the pair of neighbours with the best score merges first.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import gguf
import jinja2

CONTROL, USER_DEFINED, BYTE = 3, 4, 6  # tokenizer.ggml.token_type


def value(reader: gguf.GGUFReader, key: str) -> Any:
    """A metadata value, as a Python object."""
    field = reader.get_field(key)
    if field is None:
        raise SystemExit(f"[check] the file has no {key}; write it with train.py")
    return field.contents()


def _refuse(message: str) -> None:
    raise ValueError(message)


class GgufTokenizer:
    """Text to ids and back, and the prompt of a chat."""

    def __init__(self, reader: gguf.GGUFReader) -> None:
        self.tokens: list[str] = value(reader, "tokenizer.ggml.tokens")
        self._scores: list[float] = value(reader, "tokenizer.ggml.scores")
        self._types: list[int] = value(reader, "tokenizer.ggml.token_type")
        self._ids = {token: i for i, token in enumerate(self.tokens)}
        self.end_of_turn = self._ids["<end_of_turn>"]
        self._bos = self.tokens[value(reader, "tokenizer.ggml.bos_token_id")]
        environment = jinja2.Environment()
        environment.globals["raise_exception"] = _refuse
        self._template = environment.from_string(value(reader, "tokenizer.chat_template"))

    def encode(self, text: str) -> list[int]:
        """Token ids; special pieces in the text become their own ids."""
        for piece, kind in zip(self.tokens, self._types, strict=True):
            if kind in (CONTROL, USER_DEFINED) and piece in text:
                head, tail = text.split(piece, 1)
                return [*self.encode(head), self._ids[piece], *self.encode(tail)]
        parts = list(text.replace(" ", "▁"))
        while True:
            pairs = [(self._ids.get(a + b), i) for i, (a, b) in enumerate(pairwise(parts))]
            known = [(self._scores[token], -i) for token, i in pairs if token is not None]
            if not known:
                break
            at = -max(known)[1]
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        ids = []
        for part in parts:
            if part in self._ids:
                ids.append(self._ids[part])
            else:
                ids += [self._ids[f"<0x{byte:02X}>"] for byte in part.encode()]
        return ids

    def chat(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The messages in the model's chat format."""
        return str(
            self._template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                bos_token=self._bos,
            )
        )

    def prompt(self, *turns: str) -> list[int]:
        """Token ids of a chat (user, model, user, ...) up to the model's next turn."""
        roles = ("user", "assistant")
        messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
        return self.encode(self.chat(messages))

    def decode(self, ids: list[int]) -> str:
        """Text of generated ids; control pieces vanish."""
        data = b""
        for i in ids:
            if self._types[i] == BYTE:
                data += bytes([int(self.tokens[i][1:-1], 16)])
            elif self._types[i] != CONTROL:
                data += self.tokens[i].replace("▁", " ").encode()
        return data.decode(errors="replace")
