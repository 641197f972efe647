"""Worker.acquire_some and release_some (designs/worker.py): the program of as many locks as a word
says around a call, with slots that follow each other; what does not fit together is refused."""

from __future__ import annotations

import pytest

from npu.designs.api import Design
from npu.designs.lowering import lower
from npu.designs.worker import Word
from npu.errors import DesignError


def reading(depth: int = 3):
    """A core that reads objects, with a word that its kernels may write."""
    design = Design("reading", "npu2")
    core = design.tile(0, 2)
    source = design.fifo("source", design.tile(0, 0), core, 1024, "float32", depth=depth)
    worker = design.worker(core)
    count = Word(worker.buffer("words", "int32", (4,)), 1)
    return design, worker, source, count


def take(design: Design, worker, source, count: Word) -> None:
    kernel = design.kernel("both", [("float32", (1024,)), ("float32", (1024,))])
    with worker.forever():
        held = worker.acquire_some(source, count, 2)
        worker.call(kernel, *held)
        worker.release_some(source, count, 2)


def test_locks_are_taken_and_given_as_often_as_the_word_says():
    design, worker, source, count = reading()
    take(design, worker, source, count)
    (core,) = lower(design).cores
    codes = [i.code for i in core.program]
    assert codes == ["loop", "loop", "acquire_ge", "end", "call", "loop", "release", "advance",
                     "end", "end"]  # fmt: skip
    assert [i.count for i in core.program if i.code == "loop"][1:] == [core.program[1].count] * 2
    assert core.program[1].count.index == 1
    first, second = core.program[4].operands
    slots = [memory.name for memory in first.memories]
    assert len(set(slots)) == 3
    assert [memory.name for memory in second.memories] == slots[1:] + slots[:1]
    assert first.counter == second.counter >= 0


def test_more_than_the_depth_is_refused():
    _, worker, source, count = reading(depth=2)
    with pytest.raises(DesignError, match="its depth is 2; the core would wait forever"):
        worker.acquire_some(source, count, 3)


def test_a_word_of_another_worker_is_refused():
    design, worker, source, _ = reading()
    other = design.worker(design.tile(0, 3))
    word = Word(other.buffer("others", "int32", (4,)), 0)
    with pytest.raises(DesignError, match="is not an int32 buffer of this worker"):
        worker.acquire_some(source, word, 2)


@pytest.mark.parametrize("what", ["another word", "fewer", "one by one first", "never acquired"])
def test_what_is_released_is_what_was_acquired(what: str):
    _, worker, source, count = reading()
    other = Word(count.buffer, 0)
    if what != "never acquired":
        worker.acquire_some(source, count, 2)
    word, most = (other, 2) if what == "another word" else (count, 1 if what == "fewer" else 2)
    if what == "one by one first":
        worker.release_some(source, count, 2)
    with pytest.raises(DesignError, match="were not acquired by acquire_some of the same word"):
        worker.release_some(source, word, most)


def test_a_loop_that_keeps_some_is_refused():
    _, worker, source, count = reading()
    with pytest.raises(DesignError, match="ends while holding"), worker.forever():
        worker.acquire_some(source, count, 2)
