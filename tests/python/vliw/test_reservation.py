"""Cycles that operations are found, against trying one cycle after the other."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from npu.vliw.reservation import Needs, Reservation, Timeline

NEEDS = st.sets(st.tuples(st.sampled_from("abc"), st.integers(0, 6)), min_size=1, max_size=4).map(
    lambda found: tuple(sorted(found))
)


def cells(needed: Needs, time: int) -> set[tuple[str, int]]:
    return {(name, time + offset) for name, offset in needed}


@example(first=3, taken=[((("a", 1),), 2)], needed=(("a", 0),), begin=0, length=1)
@given(
    first=st.integers(-5, 5),
    taken=st.lists(st.tuples(NEEDS, st.integers(-12, 30)), max_size=12),
    needed=NEEDS,
    begin=st.integers(0, 12),
    length=st.integers(-2, 40),
)
def test_the_first_and_the_last_free_cycle(
    first: int, taken: list[tuple[Needs, int]], needed: Needs, begin: int, length: int
) -> None:
    timeline, busy = Timeline(first), set[tuple[str, int]]()
    for used, time in taken:
        timeline.take(used, time)
        busy |= cells(used, time)
    begin += first
    window = range(begin, begin + length + 1)
    free = [time for time in window if not busy & cells(needed, time)]
    later = timeline.since(begin, 100)  # from another cycle on, by another number
    assert later.earliest(needed, 100, 100 + length) == (free[0] - begin + 100 if free else None)
    for found in (timeline, timeline.copy()):
        assert found.earliest(needed, begin, begin + length) == (free[0] if free else None)
        assert found.latest(needed, begin, begin + length) == (free[-1] if free else None)
    if free:  # a copy is of its own
        timeline.copy().take(needed, free[0])
        assert timeline.earliest(needed, begin, begin + length) == free[0]


@given(
    interval=st.integers(7, 12),
    asked=st.lists(st.tuples(NEEDS, st.integers(-20, 40), st.booleans()), max_size=20),
)
def test_cycles_modulo_an_interval(interval: int, asked: list[tuple[Needs, int, bool]]) -> None:
    """What is taken is busy in every interval, but not what a copy has taken."""
    reservation, busy = Reservation(interval), set[tuple[str, int]]()

    def wanted(needed: Needs, time: int) -> set[tuple[str, int]]:
        return {(name, cycle % interval) for name, cycle in cells(needed, time)}

    for needed, time, kept in asked:
        needs = reservation.cells(needed)
        free = [t for t in range(time, time + interval) if not busy & wanted(needed, t)]
        assert reservation.earliest(needs, time) == (free[0] if free else None)
        assert reservation.latest(needs, time + interval - 1) == (free[-1] if free else None)
        if free:
            changed = reservation if kept else reservation.copy()
            changed.take(needs, free[0])
            busy |= wanted(needed, free[0]) if kept else set()
