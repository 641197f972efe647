"""Several generations at a time: their next tokens are one step of the model, which reads the
weights once for all where that takes less time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence

from npu.errors import ArgumentError, NpuError
from npu.models.generation import Generation
from npu.models.interface import MOST_SEQUENCES


class BatchGeneration:
    """Up to ``size`` generations of one model at a time; the next one begins when one has ended.

    Iterate for pairs of a generation's index and a piece of its text; afterwards read the fields of
    the generations. Each has its own sampler, cache and end, and its text does not depend on the
    others. The cache of one that was given none is dropped at its end. ``errors`` has, by index,
    what ended a generation alone: logits that are not finite, a context that is too short;
    ``ended`` those that have ended and whose text has been given completely. Raises ArgumentError
    for generations of different models, a shared cache, or a size that is not 1 to 8.
    """

    def __init__(self, generations: Sequence[Generation], size: int = MOST_SEQUENCES) -> None:
        if not 1 <= size <= MOST_SEQUENCES:
            raise ArgumentError(
                f"[generate_batch] a batch of {size} was asked for, it has 1 to {MOST_SEQUENCES}"
            )
        models = {id(one.model) for one in generations}
        if len(models) > 1:
            raise ArgumentError(
                f"[generate_batch] the generations are of {len(models)} models; run each model's "
                "in a batch of their own"
            )
        caches = [id(one.cache) for one in generations if one.cache is not None]
        if len(set(caches)) < len(caches) or len({id(one) for one in generations}) < len(
            generations
        ):
            raise ArgumentError(
                "[generate_batch] two generations have the same cache; give each its own, by fork"
            )
        self.generations, self.size = list(generations), size
        self.errors: dict[int, NpuError] = {}
        self.ended: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, str]]:
        waiting = deque(range(len(self.generations)))
        running: dict[int, float] = {}  # since when the next token is waited for
        own = [one.cache is None for one in self.generations]
        while waiting or running:
            while waiting and len(running) < self.size:
                index = waiting.popleft()
                start = time.perf_counter()
                if self._begin(index):
                    running[index] = start
                else:
                    self.ended.append(index)
            if not running:
                return
            yield from self._step(running)
            for index in list(running):
                if not self.generations[index].pending:
                    del running[index]
                    self.ended.append(index)
                    if own[index]:
                        self.generations[index].cache = None

    def _begin(self, index: int) -> bool:
        """Runs a prompt but for the tokens at its end that go with the next step."""
        one = self.generations[index]
        try:
            one.begin()
            assert one.cache is not None
            one.cache.check_room(len(one.pending))
            left = one.model.joined_tokens
            one.model.extend(one.pending[:-left], one.cache, one.chunk)
        except NpuError as error:
            self.errors[index] = error
            one.pending = ()
            return False
        one.pending = one.pending[-left:]
        return True

    def _step(self, running: dict[int, float]) -> list[tuple[int, str]]:
        """The next token of all that run: their new text."""
        ones = [self.generations[index] for index in running]
        caches = [one.cache for one in ones if one.cache is not None]
        logits = ones[0].model.decode_batch([one.pending for one in ones], caches)
        texts: list[tuple[int, str]] = []
        for (index, start), one, row in zip(running.items(), ones, logits, strict=True):
            try:
                token = one.choose(row)
            except NpuError as error:
                self.errors[index] = error
                one.pending = ()
                continue
            now = time.perf_counter()
            one.took(now - start)
            running[index] = now
            texts += [(index, text) for text in one.accept(token)]
        return texts
