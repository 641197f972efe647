"""Text generation: the loop from prompt to stream of text, stop conditions and timings.

Times are host wall-clock times. They cover the model and the sampler, not what the caller does with
the text between two tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from npu.errors import ArgumentError
from npu.models.interface import PREFILL_CHUNK, Model
from npu.models.kv_cache import Cache
from npu.models.sampling import Sampler
from npu.models.tokenizer import Tokenizer
from npu.ops.gemv import MAX_TOP


@dataclass
class Timings:
    """Counts and host seconds of one generation.

    ``first_token`` is prefill plus the choice of the first token. The first token comes out of the
    prefill, so ``decode_steps`` is one less than the tokens drawn (an end token is drawn too).
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0  # of the prompt, which the cache already held
    generated_tokens: int = 0  # shown as text: without the end token
    decode_steps: int = 0
    first_token: float = 0.0
    decode: float = 0.0

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens run per second."""
        run = self.prompt_tokens - self.reused_tokens
        return run / self.first_token if self.first_token else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first; 0 when there was only one."""
        return self.decode_steps / self.decode if self.decode else 0.0


class StopScanner:
    """Passes text on until a stop string occurs, holding back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise ArgumentError("[generate] an empty stop string would stop everything")
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        held = self._held + text
        places = [place for stop in self._stops if (place := held.find(stop)) >= 0]
        if places:
            self.found, self._held = True, ""
            return held[: min(places)]
        keep = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(held)), keep, -1):
                if held.endswith(stop[:size]):
                    keep = size
                    break
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def finish(self) -> str:
        rest, self._held = self._held, ""
        return rest


@dataclass
class Generation:
    """One run over a prompt. Iterate for the text; afterwards read the other fields.

    A ``cache`` that is given (of this model and device, see ``Model.identity``) is continued: of
    the prompt, what it holds at its beginning is not run again, the rest of what it holds is
    forgotten. It ends with all tokens but those that were not run: the last, if any.
    """

    model: Model
    tokenizer: Tokenizer
    prompt: Sequence[int]
    sampler: Sampler = field(default_factory=Sampler)
    max_tokens: int = 256
    stop: Sequence[str] = ()
    context: int | None = None
    chunk: int = PREFILL_CHUNK
    timings: Timings = field(default_factory=Timings)
    tokens: list[int] = field(default_factory=list)
    cache: Cache | None = None  # its ``progress`` tells how far
    finish_reason: str = ""  # "end", "stop", "length" or "context"
    # What to run for the next token; nothing before the beginning and at the end.
    pending: Sequence[int] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ArgumentError(f"[generate] max tokens is {self.max_tokens}, it must be >= 1")
        if self.chunk < 1:
            raise ArgumentError(f"[generate] the prefill chunk is {self.chunk}, it must be >= 1")
        if len(self.tokenizer) > self.model.config.vocabulary:
            raise ArgumentError(
                f"[generate] the tokenizer has {len(self.tokenizer)} tokens, the model "
                f"{self.model.config.vocabulary}; the file is inconsistent"
            )
        if self.cache is not None and self.context not in (None, self.cache.context):
            raise ArgumentError(
                f"[generate] a context of {self.context} was asked for, the cache has "
                f"{self.cache.context}; leave one of them out"
            )
        self._scanner, self._text = StopScanner(self.stop), self.tokenizer.stream()

    @property
    def position(self) -> float:
        """Tokens run so far, prompt included; a pass in progress counts by its share of layers."""
        return self.cache.progress if self.cache is not None else 0.0

    def __iter__(self) -> Iterator[str]:
        start = time.perf_counter()
        self.begin()
        while self.pending:
            token = self._next(self.pending, self._begun_cache)
            self.took(time.perf_counter() - start)
            yield from self.accept(token)
            start = time.perf_counter()

    # The parts of the loop, for who runs several generations at a time (npu.models.batch).

    def begin(self) -> None:
        """``pending`` becomes what the cache does not have of the prompt."""
        self._scanner, self._text = StopScanner(self.stop), self.tokenizer.stream()
        self._cache_with_prefix()
        self.timings.prompt_tokens = len(self.prompt)
        self.pending = self.prompt[self.timings.reused_tokens :]

    def took(self, seconds: float) -> None:
        """Counts a step: the prompt, then token by token."""
        if self.tokens:
            self.timings.decode += seconds
            self.timings.decode_steps += 1
        else:
            self.timings.first_token = seconds

    def choose(self, logits: np.ndarray) -> int:
        """The token that the sampler chooses by the logits (vocabulary,) after ``pending``."""
        # Rows beyond the tokenizer are padding of the embedding and never chosen.
        return self.sampler.choose(logits[: len(self.tokenizer)], [*self.prompt, *self.tokens])

    def accept(self, token: int) -> list[str]:
        """Takes the token after ``pending``, which has been run. Returns the text that is certain
        by now; sets ``pending`` and, at the end, ``finish_reason``."""
        cache, self.pending = self._begun_cache, ()
        if token in self.tokenizer.end_ids:
            self.finish_reason = "end"
            return self._end()
        self.tokens.append(token)
        self.timings.generated_tokens += 1
        full = cache.length == cache.context
        last = len(self.tokens) == self.max_tokens
        self.finish_reason = "length" if last else "context" if full else ""
        texts = self._scanned(self._text.push(token))
        if not self._scanner.found and self.finish_reason:
            texts += self._end()
        if not self.finish_reason:
            self.pending = [token]
        return texts

    def _end(self) -> list[str]:
        """What was held back."""
        texts = self._scanned(self._text.finish())
        if not self._scanner.found and (text := self._scanner.finish()):
            texts.append(text)
        return texts

    def _scanned(self, text: str) -> list[str]:
        """The part that cannot become a stop string, if there is any; one that ends all is seen."""
        certain = self._scanner.push(text)
        if self._scanner.found:
            self.finish_reason = "stop"
        return [certain] if certain else []

    @property
    def _begun_cache(self) -> Cache:
        assert self.cache is not None
        return self.cache

    def _cache_with_prefix(self) -> None:
        """Leaves nothing in the cache but what the prompt begins with."""
        if self.cache is None:
            self.cache = self.model.new_cache(self.context)
            return
        cache = self.cache
        if cache.identity != self.model.identity:
            raise ArgumentError(
                "[generate] the cache is of another model, device or arithmetic: "
                f"{cache.identity}, this is {self.model.identity}"
            )
        if not 0 < len(self.prompt) <= cache.context:
            raise ArgumentError(
                f"[generate] the prompt has {len(self.prompt)} tokens, the cache's context allows "
                f"1 to {cache.context}"
            )
        self.timings.reused_tokens = cache.reuse(self.prompt)

    def _next(self, tokens: Sequence[int], cache: Cache) -> int:
        """The token that the sampler chooses after these."""
        size, history = len(self.tokenizer), [*self.prompt, *self.tokens]
        count = self.sampler.candidates_after(history)
        if 0 < count <= MAX_TOP:
            found = self.model.top(tokens, cache, min(count, size), size, self.chunk)
            return self.sampler.choose_among(*found, history)
        return self.choose(self.model.prefill(tokens, cache, self.chunk)[0])
