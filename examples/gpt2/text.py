"""Text as token ids: a file of the user's or sentences made here, words of a checkpoint's tokenizer
or bytes, and random windows of them as batches."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

BYTES = 256  # ids of a model without a tokenizer
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
_SENTENCES = 4000
_VALIDATION = 0.1  # of a text, its end


class ByteTokenizer:
    """A token per byte, for models that come without a tokenizer."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: list[int]) -> str:
        return bytes(i for i in ids if i < BYTES).decode(errors="replace")


def made_up(seed: int) -> str:
    """Sentences about days and months: something to learn that can be checked."""
    numbers, lines = random.Random(seed), []
    for _ in range(_SENTENCES):
        names = numbers.choice((_DAYS, _MONTHS))
        at = numbers.randrange(len(names))
        step, word = numbers.choice(((1, "after"), (-1, "before")))
        other = names[(at + step) % len(names)]
        lines.append(f"{word} {names[at]} comes {other}.")
    return "\n".join(lines) + "\n"


def read(path: Path) -> str:
    """A text file. Ends the program with a sentence if it is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SystemExit(f"[gpt2] --text {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise SystemExit(
            f"[gpt2] --text {path} is no UTF-8 text (byte {error.start}); convert it first"
        ) from None
    if not text.strip():
        raise SystemExit(f"[gpt2] --text {path} has no text; give another file")
    return text


class Windows:
    """Batches of ``batch`` windows of ``length`` tokens, drawn at random from the first nine tenths
    of a text; validation windows follow each other through the rest."""

    def __init__(self, ids: list[int], batch: int, length: int, seed: int) -> None:
        cut = int(len(ids) * (1 - _VALIDATION))
        self._train = torch.tensor(ids[:cut])
        self._rest = torch.tensor(ids[cut:])
        self.batch, self.length = batch, length
        if min(len(self._train), len(self._rest)) <= length:
            raise SystemExit(
                f"[gpt2] the text has {len(ids)} tokens, of which a tenth is for validation; "
                f"windows of {length} need at least {10 * (length + 2)}: give more text or a "
                "smaller --length"
            )
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self) -> torch.Tensor:
        """Ids of a batch of training, (batch, length)."""
        last = len(self._train) - self.length
        starts = torch.randint(last + 1, (self.batch,), generator=self.generator)
        return torch.stack([self._train[s : s + self.length] for s in starts])

    def validation(self, most: int) -> list[torch.Tensor]:
        """At most so many batches, (up to batch, length)."""
        whole = self._rest[: len(self._rest) // self.length * self.length]
        return list(whole.reshape(-1, self.length).split(self.batch))[:most]


def tokenizer_of(folder: Path | None) -> Any:
    """That of a checkpoint folder, if it has one; else bytes."""
    if folder is None or not any(
        (folder / name).exists() for name in ("tokenizer.json", "vocab.json")
    ):
        return ByteTokenizer()
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # whatever a damaged file makes of the reader
        raise SystemExit(f"[gpt2] the tokenizer in {folder} does not load: {error}") from None
