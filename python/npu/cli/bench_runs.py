"""What `npu bench -m MODEL` measures: runs of a model, timed on the host.

Two kinds: a prompt followed by greedy decoding (``--context``), and llama-bench's tests: a prompt
alone (pp) or generation alone (tg), each after ``depth`` tokens that are not timed. After each run
of generation, if wanted, the roof of its reads: a plain read of the weights per token; after each
run, if wanted, the same by another program (bench_against.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npu.cli import common, progress

if TYPE_CHECKING:
    import numpy as np

    from npu.models.gemma3 import Model
    from npu.models.kv_cache import Cache

_BOS = 2  # where a tokenizer names none


@dataclass(frozen=True)
class Test:
    """``prompt`` tokens in one go or ``generated`` tokens one by one, at a depth; of so many
    sequences at once."""

    prompt: int
    generated: int
    depth: int
    sequences: int = 1

    @property
    def name(self) -> str:
        what = f"pp{self.prompt}" if self.prompt else f"tg{self.generated}"
        what += f" x {self.sequences}" if self.sequences > 1 else ""
        return f"{what} @ d{self.depth}" if self.depth else what

    @property
    def tokens(self) -> int:
        """Of all sequences."""
        return (self.prompt or self.generated) * self.sequences


def tests(
    prompts: list[int], generated: list[int], depths: list[int], sequences: list[int]
) -> list[Test]:
    """The tests in llama-bench's order: per depth first prompts, then generation, by one sequence
    or several; 0 is no test."""
    found = []
    for depth in depths:
        found += [Test(prompt, 0, depth) for prompt in prompts if prompt]
        for count in filter(None, generated):
            found += [Test(0, count, depth, many) for many in sequences]
    return found


@dataclass
class Runner:
    """Runs tests of one model. ``words``: token ids to take prompts from; ``size``: tokens that may
    be chosen; ``roof``: whether plain reads of the weights follow generation; ``rival``: tokens per
    second of a test by another program, which follows each run."""

    model: Model
    words: np.ndarray
    size: int
    repeats: int
    bos: int | None
    roof: bool = False
    rival: Callable[[Test], float] | None = None
    _filled: dict[int, Cache] = field(default_factory=dict)  # by depth

    def test(self, test: Test, label: str) -> dict[str, Any]:
        """Figures of a test: its repeats, after a warm-up that is not among them."""
        base = self._at_depth(test.depth)
        run = self._prompt if test.prompt else self._generate
        if test.sequences > 1:
            run = self._generate_together
        reads = self.roof and not test.prompt

        def timed(cache: Cache) -> list[float]:
            found = [run(test, cache), self._read(test.generated) if reads else 0.0]
            return [*found, self.rival(test) if self.rival else 0.0]

        seconds = self._repeated(f"{test.name}{label}", test.tokens, base, timed, test.sequences)
        more = self._roof(test.generated, seconds) if reads else {}
        if self.rival:
            theirs = [one[2] for one in seconds]
            ratios = [test.tokens / one[0] / one[2] for one in seconds]
            more |= {"rival_tokens_per_s": common.spread(theirs), "ratio": common.spread(ratios)}
        return more | {
            "test": test.name,
            "prompt_tokens": test.prompt,
            "generated_tokens": test.generated,
            "sequences": test.sequences,
            "depth": test.depth,
            "seconds": common.spread([one[0] for one in seconds]),
            "tokens_per_s": common.spread([test.tokens / one[0] for one in seconds]),
        }

    def context(self, length: int, steps: int, label: str) -> dict[str, Any]:
        """A prompt of ``length`` tokens, then ``steps`` greedy decode steps."""
        prompt = self.words[:length].tolist()

        def run(cache: Cache) -> list[float]:
            begin = time.perf_counter()
            _, token = self.model.top(prompt, cache, 1, self.size)
            middle = time.perf_counter()
            self._decode(token.tolist(), steps, cache)
            return [middle - begin, time.perf_counter() - middle]

        what = f"context {length}{label}"
        seconds = self._repeated(what, length + steps, self.model.new_cache(), run)
        return {
            "prompt_tokens": length,
            "decode_steps": steps,
            "ttft_ms": common.spread([first * 1e3 for first, _ in seconds]),
            "prefill_tokens_per_s": common.spread([length / first for first, _ in seconds]),
            "decode_tokens_per_s": common.spread([steps / decode for _, decode in seconds]),
        }

    def _prompt(self, test: Test, cache: Cache) -> float:
        prompt = self.words[: test.prompt].tolist()
        begin = time.perf_counter()
        self.model.top(prompt, cache, 1, self.size)
        return time.perf_counter() - begin

    def _generate(self, test: Test, cache: Cache) -> float:
        """Every step runs one token; the first is BOS, as in llama-bench."""
        token = [_BOS if self.bos is None else self.bos]
        begin = time.perf_counter()
        self._decode(token, test.generated, cache)
        return time.perf_counter() - begin

    def _generate_together(self, test: Test, cache: Cache) -> float:
        """The same of the cache and forks of it, by steps that run a token of each."""
        caches = [cache, *(cache.fork() for _ in range(test.sequences - 1))]
        tokens = [_BOS if self.bos is None else self.bos] * test.sequences
        begin = time.perf_counter()
        for _ in range(test.generated):
            logits = self.model.decode_batch(tokens, caches)
            tokens = [int(row[: self.size].argmax()) for row in logits]
        return time.perf_counter() - begin

    def _read(self, times: int) -> float:
        """Seconds of so many plain reads of the weights."""
        from npu._npu import host

        blocks = self.model.weight_blocks
        begin = time.perf_counter()
        for _ in range(times):
            host.read_all(blocks)
        return time.perf_counter() - begin

    def _roof(self, tokens: int, seconds: list[list[float]]) -> dict[str, Any]:
        """Bytes per second of weights, in generation and read plainly, and the ratio of both."""
        size = sum(blocks.nbytes for blocks in self.model.weight_blocks)
        return {
            "weight_bytes": size,
            "weights_gb_per_s": common.spread([size * tokens / s[0] / 1e9 for s in seconds]),
            "plain_gb_per_s": common.spread([size * tokens / s[1] / 1e9 for s in seconds]),
            "share_of_roof": common.spread([s[1] / s[0] for s in seconds]),
        }

    def _decode(self, token: list[int], steps: int, cache: Cache) -> None:
        for _ in range(steps):
            token = self.model.top(token, cache, 1, self.size)[1].tolist()

    def _at_depth(self, depth: int) -> Cache:
        """A cache with ``depth`` tokens, to be forked."""
        if depth not in self._filled:
            cache = self.model.new_cache()
            if depth:
                with progress.shown(f"filling d{depth}", "tokens", lambda: (cache.progress, depth)):
                    self.model.top(self.words[:depth].tolist(), cache, 1, self.size)
            self._filled[depth] = cache
        return self._filled[depth]

    def _repeated(
        self,
        what: str,
        tokens: int,
        base: Cache,
        run: Callable[[Cache], list[float]],
        sequences: int = 1,
    ) -> list[list[float]]:
        """What ``run`` returns for forks of a cache, beside each of which are others that it makes,
        without the warm-up."""
        done: list[list[float]] = []
        cache = base

        def position() -> tuple[float, float]:
            here = (cache.progress - base.length) * sequences
            return len(done) * tokens + here, (self.repeats + 1) * tokens

        with progress.shown(what, "tokens, warm-up included", position):
            for _ in range(self.repeats + 1):
                cache = base.fork()
                done.append(run(cache))
        return done[1:]
