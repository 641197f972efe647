"""The searches: single core, balanced walk and exhaustive, with k_mt and C buffers.

The closed form ranks every legal design; the timed emulator, the more faithful model, ranks the
best of those again. Published designs are put beside whatever is found.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np

from npu.errors import ArgumentError, DesignError
from npu.perf import published
from npu.perf.tune.model import Estimate, Model, Point
from npu.perf.tune.space import C_BUFFERS, FAMILIES, Family, Tiles

OBJECTIVES = ("core", "array")
EMULATED = 32  # designs that the emulator ranks again, at least
SATURATED = 0.99  # of the TOPS of the best k_mt: a smaller one that reaches it needs less padding
_CURVE_POINTS = 12
_ATTEMPTS = 4  # of the closed form's best, this many times as many as wanted may fail to lower
Progress = Callable[[Iterable[Point], str], Iterable[Point]]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A design and what the models say about it. ``rank`` counts from 1."""

    rank: int
    family: str
    tile: tuple[int, int, int]
    k_mt: int
    c_buffers: int
    l1_bytes: int
    l1_share: float
    l2_bytes: int
    l2_share: float
    macs_per_cycle: float
    closed_form_tops: float
    emulator_tops: float | None
    bound: str  # what takes longest: compute, DRAM, stream, command
    tile_limit: str  # what stops a larger m/k/n
    k_mt_limit: str
    published: str = ""  # where the paper has this tile

    @property
    def point(self) -> Point:
        return Point(self.family, self.tile, self.k_mt, self.c_buffers)

    @property
    def tops(self) -> float:
        """By the emulator if it ran, else by the closed form."""
        return self.closed_form_tops if self.emulator_tops is None else self.emulator_tops


@dataclasses.dataclass(frozen=True)
class Result:
    """What a search found, best first. ``published`` ranks the paper's designs among all tiles, by
    the closed form; ``not_lowered`` has the errors of designs that only the emulator refused.
    """

    model: Model
    objective: str
    designs: int  # (m, k, n, k_mt, C buffers) evaluated
    tiles: int  # (m, k, n, C buffers) among them
    entries: list[Entry]
    published: list[Entry]
    variants: list[Entry] = dataclasses.field(default_factory=list)  # the best of each family
    walk: list[Entry] = dataclasses.field(default_factory=list)
    k_mt_curve: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    k_mt_saturated: int | None = None
    not_lowered: list[str] = dataclasses.field(default_factory=list)

    @property
    def best(self) -> Entry:
        return self.entries[0]


@dataclasses.dataclass(frozen=True)
class _Scored:
    """Tiles of a family, each with its best k_mt."""

    family: Family
    tiles: Tiles
    k_mt: np.ndarray
    estimate: Estimate

    def point(self, index: int) -> Point:
        t = self.tiles[index]
        tile = int(t.m), int(t.k), int(t.n)
        return Point(self.family.name, tile, int(self.k_mt[index]), int(t.c_buffers))


def _quietly(points: Iterable[Point], _: str) -> Iterable[Point]:
    return points


def gemm(
    model: Model,
    objective: str = "array",
    top: int = 20,
    emulated: int = EMULATED,
    c_buffers: tuple[int, ...] = C_BUFFERS,
    progress: Progress = _quietly,
    details: bool = True,
) -> Result:
    """The best tiles of ``model.space`` for ``model.workload``, every legal one considered.

    objective "core": MACs per cycle of a core whose streams keep up (section 4.5.1 of the paper);
    "array": TOPS of the whole NPU (4.5.2). ``emulated``: how many of the closed form's best the
    emulator ranks again; ``progress`` wraps the points it runs, with a word of what for;
    ``details=False`` leaves out the walk and the k_mt curve.
    """
    if objective not in OBJECTIVES:
        raise ArgumentError(f"[tune] objective is {objective!r}; use one of {OBJECTIVES}")
    if top < 1 or emulated < 1:
        raise ArgumentError(f"[tune] top is {top} and emulated {emulated}; both must be 1 or more")
    if not c_buffers or any(count not in C_BUFFERS for count in c_buffers):
        raise ArgumentError(f"[tune] c_buffers is {c_buffers}; use some of {C_BUFFERS}")
    if objective == "core":
        return _core(model, top)
    return _array(model, top, max(top, emulated), c_buffers, progress, details)


# The array


def _array(
    model: Model,
    top: int,
    emulated: int,
    c_buffers: tuple[int, ...],
    progress: Progress,
    details: bool,
) -> Result:
    scored, designs = [], 0
    for family in model.space.families:
        best_depths, count = _best_depths(model, family, c_buffers)
        scored.append(best_depths)
        designs += count
    tops = np.concatenate([s.estimate.tops for s in scored])
    owner = [(s, i) for s in scored for i in range(len(s.tiles))]
    order = np.argsort(-tops, kind="stable")
    known = _published_points(model)
    firsts = [s.point(int(np.argmax(s.estimate.tops))) for s in scored]
    candidates = (owner[i][0].point(owner[i][1]) for i in order[: _ATTEMPTS * emulated])
    results, failed = _emulate(model, [*known, *firsts], progress, "emulating")
    more, failures = _emulate(model, candidates, progress, "emulating", emulated)
    walk = _walk(model, progress) if details else {}
    results |= more | walk
    failed += failures
    # The paper's designs and its walk are reported even if they are not what is searched for.
    names = {family.name for family in model.space.families}
    wanted = [p for p in results if p.family in names and p.c_buffers in c_buffers]
    if not wanted:
        raise DesignError(
            f"[tune] none of the best {len(failed)} designs can be lowered: {failed[0]}"
        )
    ranked = sorted(wanted, key=lambda p: -results[p][0])
    entries = {p: entry(model, p, i + 1, results[p]) for i, p in enumerate(ranked)}
    better = {p: int(np.count_nonzero(tops > model.estimate_point(p)[0])) for p in known}
    curve = _k_mt_curve(model, ranked[0], progress) if details else []
    highest = max((t for _, t in curve), default=0.0)
    return Result(
        model, "array", designs, len(tops), list(entries.values())[:top],
        published=[entry(model, p, better[p] + 1, results[p]) for p in known if p in results],
        variants=[e for p, e in entries.items() if p in firsts],
        walk=[entry(model, p, i + 1, results[p]) for i, p in enumerate(walk)],
        k_mt_curve=curve,
        k_mt_saturated=next((k for k, t in curve if t >= SATURATED * highest), None),
        not_lowered=failed,
    )  # fmt: skip


def _best_depths(model: Model, family: Family, c_buffers: tuple[int, ...]) -> tuple[_Scored, int]:
    """Every tile of a family with its best k_mt by the closed form; the smallest of equals."""
    tiles = model.space.tiles(family, c_buffers)
    k_mt = np.zeros(len(tiles), np.int64)
    best = Estimate(np.zeros(len(tiles)), np.zeros(len(tiles)), np.zeros(len(tiles), int))
    count = 0
    for depths in model.space.depths(family, tiles):
        e = model.estimate(family, tiles[depths.tile], depths.k_mt)
        order = np.lexsort((depths.k_mt, -e.tops, depths.tile))
        index, first = np.unique(depths.tile[order], return_index=True)
        chosen = order[first]
        k_mt[index] = depths.k_mt[chosen]
        best.tops[index] = e.tops[chosen]
        best.macs_per_cycle[index] = e.macs_per_cycle[chosen]
        best.bound[index] = e.bound[chosen]
        count += len(depths.tile)
    return _Scored(family, tiles, k_mt, best), count


def _emulate(
    model: Model, points: Iterable[Point], progress: Progress, what: str, enough: int = 1 << 30
) -> tuple[dict[Point, tuple[float, str]], list[str]]:
    """Emulated TOPS and bound of points until `enough` ran; why the others cannot be lowered."""
    results: dict[Point, tuple[float, str]] = {}
    failed = []
    for point in progress(points, what):
        try:
            tops, bound, _ = model.emulate(point)
            results[point] = tops, bound
        except DesignError as error:
            failed.append(str(error))
        if len(results) >= enough:
            break
    return results, failed


def entry(
    model: Model, point: Point, rank: int, emulated: tuple[float, str] | None = None
) -> Entry:
    """A design with its memory, limits and the closed form's answers."""
    space, family = model.space, FAMILIES[point.family]
    tops, macs, bound = model.estimate_point(point)
    l1 = int(space.l1_bytes(family, *point.tile, point.c_buffers))
    l2 = int(space.l2_bytes(family, *point.tile, point.k_mt))
    tile_limit, k_mt_limit = space.limits(family, point.tile, point.k_mt, point.c_buffers)
    where = {(p.tile, p.k_mt): w for p, w in _published_places(model).items()}
    return Entry(
        rank, point.family, point.tile, point.k_mt, point.c_buffers, l1, l1 / space.l1_size,
        l2, l2 / space.l2_size, macs, tops, emulated[0] if emulated else None,
        emulated[1] if emulated else bound, tile_limit, k_mt_limit,
        where.get((point.tile, point.k_mt), ""),
    )  # fmt: skip


# The paper's walk: from the single-core optimum to ever smaller k


def _walk(model: Model, progress: Progress) -> dict[Point, tuple[float, str]]:
    """Section 4.5.2: k shrinks step by step, m n is made as large as fits, until TOPS drops.

    A k that allows no larger m n than the one before is passed over: it could only be slower. It
    ends with a design that is slower than the best before it and not bound by DRAM any more; the
    best is the balanced design.
    """
    family = model.space.families[0]
    tiles = _streaming(model, family)
    if not len(tiles):
        return {}
    start = _core_order(model, family, tiles)[0]
    product = tiles.m * tiles.n
    steps: list[int] = [int(start)]
    step = model.space.steps(family)[1]
    for k in range(int(tiles.k[start]) - step, 0, -step):
        at_k = np.nonzero(tiles.k == k)[0]
        if not len(at_k) or product[at_k].max() <= product[steps[-1]]:
            continue
        ties = at_k[product[at_k] == product[at_k].max()]
        _, tops = _depths_of(model, family, tiles[ties])
        steps.append(int(ties[int(np.argmax(tops))]))
    depths, _ = _depths_of(model, family, tiles[np.array(steps)])
    points = [
        Point(family.name, (int(tiles.m[i]), int(tiles.k[i]), int(tiles.n[i])), int(d), 1)
        for i, d in zip(steps, depths, strict=True)
    ]
    found: dict[Point, tuple[float, str]] = {}
    for point in progress(points, "walking"):
        found |= _emulate(model, [point], _quietly, "")[0]
        if point in found:
            latest, bound = found[point]
            if latest < max(t for t, _ in found.values()) and bound != "DRAM":
                break
    return found


def _depths_of(model: Model, family: Family, tiles: Tiles) -> tuple[np.ndarray, np.ndarray]:
    """Best k_mt and its TOPS for a few tiles."""
    k_mt, best = np.zeros(len(tiles), np.int64), np.zeros(len(tiles))
    for depths in model.space.depths(family, tiles):
        tops = model.estimate(family, tiles[depths.tile], depths.k_mt).tops
        for i in np.unique(depths.tile):
            mine = np.nonzero(depths.tile == i)[0]
            chosen = mine[int(np.argmax(tops[mine]))]
            k_mt[i], best[i] = depths.k_mt[chosen], tops[chosen]
    return k_mt, best


def _k_mt_curve(model: Model, point: Point, progress: Progress) -> list[tuple[int, float]]:
    """Emulated TOPS over k_mt for one tile (figure 6), thinned out to a dozen depths."""
    family = FAMILIES[point.family]
    columns = [np.array([v]) for v in (*point.tile, point.c_buffers)]
    legal = np.concatenate([d.k_mt for d in model.space.depths(family, Tiles(*columns))])
    if len(legal) > _CURVE_POINTS:
        chosen = np.unique(np.geomspace(1, len(legal), _CURVE_POINTS).round().astype(int)) - 1
        legal = legal[chosen]
    depths = sorted({*(int(k) for k in legal), point.k_mt})
    points = [dataclasses.replace(point, k_mt=depth) for depth in depths]
    results, _ = _emulate(model, points, progress, "k_mt")
    return [(p.k_mt, results[p][0]) for p in points if p in results]


# A single core


def _streaming(model: Model, family: Family) -> Tiles:
    """Tiles with one C buffer whose streams keep up with the kernel (equation 4)."""
    tiles = model.space.tiles(family, (1,))
    cycles = tiles.m * tiles.k * tiles.n / _macs(model, family, tiles)
    return tiles[np.nonzero(cycles >= model.stream_cycles(tiles))[0]]


def _macs(model: Model, family: Family, tiles: Tiles) -> np.ndarray:
    return model.estimate(family, tiles, tiles.k).macs_per_cycle


def _core_order(model: Model, family: Family, tiles: Tiles) -> np.ndarray:
    """Most MACs per cycle first, of equals the most MACs, of those the smallest C tile."""
    macs = np.round(_macs(model, family, tiles), 6)
    return np.lexsort((tiles.m * tiles.n, -(tiles.m * tiles.k * tiles.n), -macs))


def _core(model: Model, top: int) -> Result:
    ranked: list[tuple[float, Point]] = []
    count = 0
    for family in model.space.families:
        tiles = _streaming(model, family)
        count += len(tiles)
        order = _core_order(model, family, tiles)[:top]
        macs = _macs(model, family, tiles[order])
        for i, value in zip(order, macs, strict=True):
            tile = int(tiles.m[i]), int(tiles.k[i]), int(tiles.n[i])
            ranked.append((float(value), Point(family.name, tile, tile[1], 1)))
    ranked.sort(key=lambda item: -item[0])
    entries = [entry(model, p, i + 1) for i, (_, p) in enumerate(ranked[:top])]
    known = [entry(model, p, 0) for p in _published_points(model, "table 1")]
    known = [dataclasses.replace(e, rank=_rank_of(model, e)) for e in known]
    return Result(model, "core", count, count, entries, known)


def _rank_of(model: Model, wanted: Entry) -> int:
    """Where a tile is among all that keep up with their streams; 0 if it does not itself."""
    rank, found = 1, False
    for family in model.space.families:
        tiles = _streaming(model, family)
        rank += int(np.count_nonzero(_macs(model, family, tiles) > wanted.macs_per_cycle + 1e-6))
        m, k, n = wanted.tile
        found |= bool(np.any((tiles.m == m) & (tiles.k == k) & (tiles.n == n)))
    return rank if found else 0


# What the paper publishes


def _published_places(model: Model) -> dict[Point, str]:
    """Published single-buffer designs of this space -> where."""
    space, places = model.space, {}
    for row in published.figures():
        if (row.device, row.b_layout, row.c_buffers) != (space.generation, space.b_layout, 1):
            continue
        if not row.where.startswith("table") or row.metric != "macs_per_cycle":
            continue
        d = row.design
        if (d.dtype_in, d.dtype_out, d.bf16) == (space.dtype_in, space.dtype_out, space.bf16):
            places[Point("published", row.tile, d.k_mt, 1)] = row.where
    return places


def _published_points(model: Model, where: str = "") -> list[Point]:
    """Of one table, or of the array's tables."""
    places = _published_places(model)
    return [p for p, w in places.items() if w == where or (not where and w != "table 1")]
