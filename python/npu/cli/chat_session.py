"""A conversation: its messages, and the KV cache that holds what was run of it.

Every turn renders the whole conversation with the model's chat template and runs what the cache
does not hold; which tokens these are, the tokens decide, not the text.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npu.errors import ArgumentError

if TYPE_CHECKING:
    from npu.models.gemma3 import Generation, Model, Sampler, Tokenizer
    from npu.models.kv_cache import Cache

Message = dict[str, str]


class ContextFullError(ArgumentError):
    """A conversation that does not fit the context."""


@dataclass
class Session:
    """``sampler`` makes the sampler of a turn; ``max_tokens`` None: until the context is full."""

    model: Model
    tokenizer: Tokenizer
    sampler: Sampler
    context: int | None = None
    max_tokens: int | None = None
    stop: list[str] = field(default_factory=list)
    system: str | None = None
    messages: list[Message] = field(default_factory=list)
    turns: int = 0
    reused: int = 0  # tokens of all prompts that were not run again
    run: int = 0  # tokens of all prompts that were

    def __post_init__(self) -> None:
        self.cache = self.model.new_cache(self.context)

    def answer(self, text: str, show: Callable[[Generation, list[str]], None]) -> Generation:
        """Lets ``show`` iterate over the answer to a message and append its pieces to a list.

        Both become part of the conversation, also when ``show`` is interrupted, unless there is no
        piece then. Raises ContextFullError, ArgumentError.
        """
        from npu.models.gemma3 import Generation

        question = {"role": "user", "content": text}
        prompt = self._prompt([*self.messages, question])
        if len(prompt) > self.cache.context:
            raise ContextFullError(
                f"[chat] the context is full: the conversation has {len(prompt)} tokens with this "
                f"message, the context {self.cache.context}; start over with /reset"
                + self._longer_context()
            )
        generation = Generation(
            self.model, self.tokenizer, prompt, self.sampler,
            max_tokens=self.max_tokens or sys.maxsize, stop=self.stop, cache=self.cache,
        )  # fmt: skip
        pieces: list[str] = []
        try:
            show(generation, pieces)
        finally:
            if pieces or generation.finish_reason:
                reply = {"role": "assistant", "content": "".join(pieces)}
                self.messages += [question, reply]
                self.turns += 1
            self.reused += generation.timings.reused_tokens
            self.run += len(prompt) - generation.timings.reused_tokens
        return generation

    def _prompt(self, messages: list[Message]) -> list[int]:
        if self.system:
            messages = [{"role": "system", "content": self.system}, *messages]
        return self.tokenizer.encode(self.tokenizer.render_chat(messages))

    def _longer_context(self) -> str:
        most = self.model.config.context
        if self.cache.context >= most:
            return ""
        return f", or start npu chat with a longer one (-c, up to {most})"

    def context_note(self) -> str:
        """What to do where an answer ended because the context is full."""
        return (
            f"the context of {self.cache.context} tokens is full and the answer cut off; start "
            f"over with /reset{self._longer_context()}"
        )

    def reset(self) -> None:
        """Forgets the conversation, not the system message."""
        self.cache.truncate(0)
        self.messages = []

    def save(self, path: str) -> None:
        """Writes conversation and cache to one file. Raises ArgumentError."""
        self.cache.save(path, {"messages": self.messages, "system": self.system})

    def load(self, path: str) -> None:
        """Continues what ``save`` wrote. Raises ArgumentError and FormatError and changes nothing
        for anything else."""
        cache = self.model.new_cache(self.context)
        notes = cache.load(path)
        messages: Any = notes.get("messages")
        system = notes.get("system")
        if not _is_conversation(messages) or not isinstance(system, (str, type(None))):
            raise ArgumentError(f"[chat] {path} has no conversation; name a file of /save")
        self.cache, self.messages, self.system = cache, messages, system

    def describe(self) -> list[str]:
        """Lines for /stats."""
        cache: Cache = self.cache
        return [
            f"{self.turns} answers; {len(self.messages)} messages in the conversation",
            f"context: {cache.length} of {cache.context} tokens in the cache, "
            f"{cache.nbytes / 1e6:.1f} MB",
            f"prompts: {self.run} tokens run, {self.reused} reused",
        ]


def _is_conversation(messages: Any) -> bool:
    roles = ("user", "assistant")
    return (
        isinstance(messages, list)
        and len(messages) % 2 == 0
        and all(
            isinstance(message, dict)
            and message.get("role") == roles[index % 2]
            and isinstance(message.get("content"), str)
            for index, message in enumerate(messages)
        )
    )
