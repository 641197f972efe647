"""The searches: single core, balanced walk and exhaustive, with k_mt and C buffers.

The closed form ranks every legal design; the timed emulator, the more faithful of the two, ranks
the best of those again. Published designs are put beside whatever is found.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from npu.designs import gemm_limits
from npu.designs.gemm import DesignPoint
from npu.designs.hardware import tile_limits
from npu.errors import ArgumentError, DesignError
from npu.perf import published
from npu.perf.problem import Size
from npu.perf.tune.evaluator import Estimate, Evaluator
from npu.perf.tune.space import C_BUFFERS, Points, variant_name, what_stops

OBJECTIVES = ("core", "array")
EMULATED = 32  # designs that the emulator ranks again, at least
SATURATED = 0.99  # of the TOPS of the best k_mt: a smaller one that reaches it needs less padding
_CURVE_POINTS = 12
_ATTEMPTS = 4  # of the closed form's best, this many times as many as wanted may fail to lower
Progress = Callable[[Iterable[DesignPoint], str], Iterable[DesignPoint]]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A design and what the simulations say about it. ``rank`` counts from 1."""

    rank: int
    design: DesignPoint
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
    def variant(self) -> str:
        return variant_name(self.design)

    @property
    def tile(self) -> Size:
        return self.design.tile

    @property
    def k_mt(self) -> int:
        return self.design.k_mt

    @property
    def c_buffers(self) -> int:
        return self.design.c_buffers

    @property
    def tops(self) -> float:
        """By the emulator if it ran, else by the closed form."""
        return self.closed_form_tops if self.emulator_tops is None else self.emulator_tops

    def row(self) -> dict[str, Any]:
        """What JSON and CSV files have of it."""
        figures = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del figures["rank"], figures["design"]
        design = {"tile": self.tile, "k_mt": self.k_mt, "c_buffers": self.c_buffers}
        return {"rank": self.rank, "family": self.variant, **design, **figures}


@dataclasses.dataclass(frozen=True)
class Result:
    """What a search found, best first. ``published`` ranks the paper's designs among all tiles, by
    the closed form; ``not_lowered`` has the errors of designs that only the emulator refused.
    """

    evaluator: Evaluator
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
    """Tiles of a variant, each with its best k_mt."""

    points: Points
    estimate: Estimate


def _quietly(points: Iterable[DesignPoint], _: str) -> Iterable[DesignPoint]:
    return points


def gemm(
    evaluator: Evaluator,
    objective: str = "array",
    top: int = 20,
    emulated: int = EMULATED,
    c_buffers: tuple[int, ...] = C_BUFFERS,
    progress: Progress = _quietly,
    details: bool = True,
) -> Result:
    """The best tiles of the evaluator's space for its workload, every legal one considered.

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
        return _core(evaluator, top)
    return _array(evaluator, top, max(top, emulated), c_buffers, progress, details)


# The array


def _array(
    evaluator: Evaluator,
    top: int,
    emulated: int,
    c_buffers: tuple[int, ...],
    progress: Progress,
    details: bool,
) -> Result:
    scored, designs = [], 0
    for variant in evaluator.space.variants:
        best_depths, count = _best_depths(evaluator, evaluator.space.tiles(variant, c_buffers))
        scored.append(best_depths)
        designs += count
    tops = np.concatenate([s.estimate.tops for s in scored])
    owner = [(s.points, i) for s in scored for i in range(len(s.points))]
    order = np.argsort(-tops, kind="stable")
    known = _published_points(evaluator)
    firsts = [s.points.point(int(np.argmax(s.estimate.tops))) for s in scored]
    candidates = (owner[i][0].point(owner[i][1]) for i in order[: _ATTEMPTS * emulated])
    results, failed = _emulate(evaluator, [*known, *firsts], progress, "emulating")
    more, failures = _emulate(evaluator, candidates, progress, "emulating", emulated)
    walk = _walk(evaluator, progress) if details else {}
    results |= more | walk
    failed += failures
    # The paper's designs and its walk are reported even if they are not what is searched for.
    names = {variant_name(variant) for variant in evaluator.space.variants}
    wanted = [p for p in results if variant_name(p) in names and p.c_buffers in c_buffers]
    if not wanted:
        raise DesignError(
            f"[tune] none of the best {len(failed)} designs can be lowered: {failed[0]}"
        )
    ranked = sorted(wanted, key=lambda p: -results[p][0])
    entries = {p: entry(evaluator, p, i + 1, results[p]) for i, p in enumerate(ranked)}
    better = {p: int(np.count_nonzero(tops > evaluator.estimate_point(p)[0])) for p in known}
    curve = _k_mt_curve(evaluator, ranked[0], progress) if details else []
    highest = max((t for _, t in curve), default=0.0)
    return Result(
        evaluator, "array", designs, len(tops), list(entries.values())[:top],
        published=[entry(evaluator, p, better[p] + 1, results[p]) for p in known if p in results],
        variants=[e for p, e in entries.items() if p in firsts],
        walk=[entry(evaluator, p, i + 1, results[p]) for i, p in enumerate(walk)],
        k_mt_curve=curve,
        k_mt_saturated=next((k for k, t in curve if t >= SATURATED * highest), None),
        not_lowered=failed,
    )  # fmt: skip


def _best_depths(evaluator: Evaluator, tiles: Points) -> tuple[_Scored, int]:
    """Every tile with its best k_mt by the closed form, the smallest of equals; how many were
    compared."""
    k_mt = np.zeros(len(tiles), np.int64)
    best = Estimate(np.zeros(len(tiles)), np.zeros(len(tiles)), np.zeros(len(tiles), int))
    count = 0
    for tile, points in evaluator.space.depths(tiles):
        e = evaluator.estimate(points)
        order = np.lexsort((points.k_mt, -e.tops, tile))
        index, first = np.unique(tile[order], return_index=True)
        chosen = order[first]
        k_mt[index] = points.k_mt[chosen]
        best.tops[index] = e.tops[chosen]
        best.macs_per_cycle[index] = e.macs_per_cycle[chosen]
        best.bound[index] = e.bound[chosen]
        count += len(tile)
    return _Scored(tiles.with_depth(k_mt), best), count


def _emulate(
    evaluator: Evaluator,
    points: Iterable[DesignPoint],
    progress: Progress,
    what: str,
    enough: int = 1 << 30,
) -> tuple[dict[DesignPoint, tuple[float, str]], list[str]]:
    """Emulated TOPS and bound of points until `enough` ran; why the others cannot be lowered."""
    results: dict[DesignPoint, tuple[float, str]] = {}
    failed = []
    for point in progress(points, what):
        try:
            tops, bound, _ = evaluator.emulate(point)
            results[point] = tops, bound
        except DesignError as error:
            failed.append(str(error))
        if len(results) >= enough:
            break
    return results, failed


def entry(
    evaluator: Evaluator, point: DesignPoint, rank: int, emulated: tuple[float, str] | None = None
) -> Entry:
    """A design with its memory, limits and the closed form's answers."""
    tops, macs, bound = evaluator.estimate_point(point)
    l1, l2 = int(gemm_limits.core_bytes(point)), int(gemm_limits.memtile_bytes(point))
    l1_size = tile_limits("core").memory_bytes  # the stack's 1 KiB included
    l2_size = point.columns * gemm_limits.memtile_memory()
    tile_limit, k_mt_limit = what_stops(point)
    where = {(p.tile, p.k_mt): w for p, w in _published_places(evaluator).items()}
    return Entry(
        rank, point, l1, l1 / l1_size, l2, l2 / l2_size, macs, tops,
        emulated[0] if emulated else None, emulated[1] if emulated else bound, tile_limit,
        k_mt_limit, where.get((point.tile, point.k_mt), ""),
    )  # fmt: skip


# The paper's walk: from the single-core optimum to ever smaller k


def _walk(evaluator: Evaluator, progress: Progress) -> dict[DesignPoint, tuple[float, str]]:
    """Section 4.5.2: k shrinks step by step, m n is made as large as fits, until TOPS drops.

    A k that allows no larger m n than the one before is passed over: it could only be slower. It
    ends with a design that is slower than the best before it and not bound by DRAM any more; the
    best is the balanced design.
    """
    variant = evaluator.space.variants[0]
    tiles = _streaming(evaluator, variant)
    if not len(tiles):
        return {}
    start = _core_order(evaluator, tiles)[0]
    product = tiles.m * tiles.n
    steps: list[int] = [int(start)]
    unit = variant.granularity[1]
    for k in range(int(tiles.k[start]) - unit, 0, -unit):
        at_k = np.nonzero(tiles.k == k)[0]
        if not len(at_k) or product[at_k].max() <= product[steps[-1]]:
            continue
        ties = at_k[product[at_k] == product[at_k].max()]
        best = _best_depths(evaluator, tiles[ties])[0]
        steps.append(int(ties[int(np.argmax(best.estimate.tops))]))
    walked = _best_depths(evaluator, tiles[np.array(steps)])[0].points
    points = [walked.point(i) for i in range(len(walked))]
    found: dict[DesignPoint, tuple[float, str]] = {}
    for point in progress(points, "walking"):
        found |= _emulate(evaluator, [point], _quietly, "")[0]
        if point in found:
            latest, bound = found[point]
            if latest < max(t for t, _ in found.values()) and bound != "DRAM":
                break
    return found


def _k_mt_curve(
    evaluator: Evaluator, point: DesignPoint, progress: Progress
) -> list[tuple[int, float]]:
    """Emulated TOPS over k_mt for one tile (figure 6), thinned out to a dozen depths."""
    depths_of_tile = evaluator.space.depths(Points.of(point))
    legal = np.concatenate([points.k_mt for _, points in depths_of_tile])
    if len(legal) > _CURVE_POINTS:
        chosen = np.unique(np.geomspace(1, len(legal), _CURVE_POINTS).round().astype(int)) - 1
        legal = legal[chosen]
    depths = sorted({*(int(k) for k in legal), point.k_mt})
    points = [dataclasses.replace(point, k_mt=depth) for depth in depths]
    results, _ = _emulate(evaluator, points, progress, "k_mt")
    return [(p.k_mt, results[p][0]) for p in points if p in results]


# A single core


def _streaming(evaluator: Evaluator, variant: DesignPoint) -> Points:
    """Tiles with one C buffer whose streams keep up with the kernel (equation 4)."""
    tiles = evaluator.space.tiles(variant, (1,))
    cycles = tiles.m * tiles.k * tiles.n / _macs(evaluator, tiles)
    return tiles[np.nonzero(cycles >= evaluator.stream_cycles(tiles))[0]]


def _macs(evaluator: Evaluator, tiles: Points) -> np.ndarray:
    return evaluator.estimate(tiles).macs_per_cycle


def _core_order(evaluator: Evaluator, tiles: Points) -> np.ndarray:
    """Most MACs per cycle first, of equals the most MACs, of those the smallest C tile."""
    macs = np.round(_macs(evaluator, tiles), 6)
    return np.lexsort((tiles.m * tiles.n, -(tiles.m * tiles.k * tiles.n), -macs))


def _core(evaluator: Evaluator, top: int) -> Result:
    ranked: list[tuple[float, DesignPoint]] = []
    count = 0
    for variant in evaluator.space.variants:
        tiles = _streaming(evaluator, variant)
        count += len(tiles)
        tiles = tiles[_core_order(evaluator, tiles)[:top]]
        macs = _macs(evaluator, tiles)
        ranked += [(float(macs[i]), tiles.point(i)) for i in range(len(tiles))]
    ranked.sort(key=lambda item: -item[0])
    entries = [entry(evaluator, p, i + 1) for i, (_, p) in enumerate(ranked[:top])]
    known = [entry(evaluator, p, 0) for p in _published_points(evaluator, "table 1")]
    known = [dataclasses.replace(e, rank=_rank_of(evaluator, e)) for e in known]
    return Result(evaluator, "core", count, count, entries, known)


def _rank_of(evaluator: Evaluator, wanted: Entry) -> int:
    """Where a tile is among all that keep up with their streams; 0 if it does not itself."""
    rank, found = 1, False
    for variant in evaluator.space.variants:
        tiles = _streaming(evaluator, variant)
        macs = _macs(evaluator, tiles)
        rank += int(np.count_nonzero(macs > wanted.macs_per_cycle + 1e-6))
        m, k, n = wanted.tile
        found |= bool(np.any((tiles.m == m) & (tiles.k == k) & (tiles.n == n)))
    return rank if found else 0


# What the paper publishes


def _published_places(evaluator: Evaluator) -> dict[DesignPoint, str]:
    """Published single-buffer designs of this space -> where."""
    variant, places = evaluator.space.variant(), {}
    for row in published.figures():
        if not row.where.startswith("table") or row.metric != "macs_per_cycle":
            continue
        design = dataclasses.replace(row.design, accumulate=variant.accumulate)
        if dataclasses.replace(design, tile=variant.tile, k_mt=variant.k_mt) == variant:
            places[design] = row.where
    return places


def _published_points(evaluator: Evaluator, where: str = "") -> list[DesignPoint]:
    """Of one table, or of the array's tables."""
    places = _published_places(evaluator)
    return [p for p, w in places.items() if w == where or (not where and w != "table 1")]
