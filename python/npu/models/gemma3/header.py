"""A model's header: what is known before its weights are read, for checks that need no more."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from npu.errors import ArgumentError
from npu.models.gemma3.checks import check
from npu.models.gemma3.config import Config
from npu.models.sources import open_source
from npu.models.sources.interface import Source
from npu.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class Header:
    """Metadata, tensor table and tokenizer of a model. ``npu.gemma3.load`` takes one like a path
    and does not read them again."""

    path: str
    source: Source
    config: Config
    tokenizer: Tokenizer

    def __fspath__(self) -> str:
        return self.path

    def check_context(self, context: int | None) -> None:
        """Raises ArgumentError for a context that the model does not allow."""
        if context is not None and not 1 <= context <= self.config.context:
            raise ArgumentError(
                f"[gemma3] a context of {context} was asked for, the model allows 1 to "
                f"{self.config.context}"
            )

    def check_prompt(self, tokens: Sequence[int], context: int | None) -> None:
        """Raises ArgumentError unless a prompt can run in a context (None: the model's)."""
        room = self.config.context if context is None else context
        if not tokens:
            raise ArgumentError("[generate] the prompt has no tokens; write one")
        if len(tokens) > room:
            raise ArgumentError(
                f"[generate] the prompt's {len(tokens)} tokens do not fit the context of {room}; "
                "shorten the prompt or raise the context length"
            )


def read_header(path: str | os.PathLike[str]) -> Header:
    """Reads a header. Raises FormatError with one sentence for what is not a Gemma 3 model."""
    return header_of(os.fspath(path), open_source(path))


def header_of(path: str, source: Source) -> Header:
    """The header of an open source."""
    config, tokenizer = check(source)
    return Header(path, source, config, tokenizer)
