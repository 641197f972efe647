"""What bounds a GEMM's design point: the memory of cores and memtiles, shim BDs, unrolled kernels.

Formulas take design points whose sizes may be NumPy arrays, one element per point. ``fits`` is
exact: what passes can be lowered, what does not cannot (tests/python/perf/test_tune_space.py).
``check_bytes`` only compares sums of bytes with what the array has, as published designs are given.

Published tiles leave 1 KiB of a core's memory to stack and RTPs. They can be simulated; compiled
programs get more (``leaves_room``), and all tiles of the package leave it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from npu.errors import DesignError

from .gemm_point import BFP16, KEPT, LEAST_RING, PIPELINED_K, ROWS, DesignPoint, bytes_of
from .hardware import STACK_BYTES, tile_limits
from .lowering.memory import ALIGNMENT
from .lowering.stack import DATA_BYTES, LEAST_BYTES

_RTP_BYTES = ALIGNMENT
SIMULATED_STACK = STACK_BYTES - _RTP_BYTES  # of designs that leave no more


def core_memory() -> int:
    """Bytes of a core's data memory for the tiles of a simulated design; the stack and the RTPs
    have the rest."""
    return tile_limits("core").memory_bytes - STACK_BYTES


def memtile_memory() -> int:
    return tile_limits("mem").memory_bytes


def core_buffers(p: DesignPoint) -> list[tuple[Any, Any]]:
    """(bytes, count) of the buffers of a core."""
    m, k, n = p.tile
    a, b, c = m // p.a_parts * k, k * n, m * n  # elements
    (a_count, b_count), (a_copy, b_copy) = p.input_buffers, p.converts
    buffers = [(bytes_of(p.a_dtype, a), a_count), (bytes_of(p.b_dtype, b), b_count)]
    buffers += [(bytes_of(BFP16, x), 1) for x, copy in ((a, a_copy), (b, b_copy)) if copy]
    if p.sum_dtype != p.c_dtype:
        buffers.append((bytes_of(p.sum_dtype, c), 1))
    return [*buffers, (bytes_of(p.c_dtype, c), p.c_buffers)]


def core_bytes(p: DesignPoint) -> Any:
    """L1 in use, of one core."""
    return sum(size * count for size, count in core_buffers(p))


def memtile_buffers(p: DesignPoint) -> tuple[Any, Any, Any]:
    """Bytes of one A, one B and one joined C buffer of a memtile; A and B have l2_buffers each.
    With b_pairs B is in every second memtile."""
    m, _, n = p.tile
    b_depth = p.k_mt if p.b_layout == "col" else p.b_rows
    return (
        bytes_of(p.a_dtype, m * p.k_mt),
        bytes_of(p.b_dtype, b_depth * p.b_panel),
        bytes_of(p.c_dtype, p.rows * m * n),
    )


def memtile_bytes(p: DesignPoint) -> Any:
    """L2 in use, of all memtiles."""
    a, b, c = memtile_buffers(p)
    if p.keeps:  # slots for either
        return ROWS * ((max(KEPT) + kept_ring(p)) * a + p.c_l2_buffers * c)
    b_memtiles = p.columns // (2 if p.b_pairs else 1)
    return p.l2_buffers * (p.rows * a + b_memtiles * b) + p.columns * p.c_l2_buffers * c


def kept_ring(p: DesignPoint) -> int:
    """Slots of a B that passes memtiles by: one more than the least if there is room."""
    a, _, c = memtile_buffers(p)
    used = (max(KEPT) + LEAST_RING) * a + p.c_l2_buffers * c
    return LEAST_RING + int(used + a <= memtile_memory())


def fits_core(p: DesignPoint) -> Any:
    return sum(_aligned(size) * count for size, count in core_buffers(p)) <= core_memory()


def leaves_room(p: DesignPoint) -> Any:
    """Whether a core has room for the stack and the data section of a compiled program."""
    used = sum(_aligned(size) * count for size, count in core_buffers(p)) + _RTP_BYTES
    return used + LEAST_BYTES + DATA_BYTES <= tile_limits("core").memory_bytes


def fits_memtiles(p: DesignPoint) -> Any:
    """Whether the memtiles hold their buffers.

    npu1: every memtile has A, B and C. npu2: only the even ones have A, and may place whole A or B
    buffers in the odd memtile beside them (largest first, as the lowering does). With b_pairs the
    odd ones have all of B. A part of the array: as npu1, though neighbours may have room.
    """
    size, count = memtile_memory(), p.l2_buffers
    if p.keeps:
        return memtile_bytes(p) <= ROWS * size
    a, b, c = (_aligned(x) for x in memtile_buffers(p))
    fixed = count * b + p.c_l2_buffers * c
    if p.b_pairs:
        over, room = count * a + p.c_l2_buffers * c - size, size - fixed
        for _ in range(count):
            moves = (over > 0) & (room >= a)
            over, room = over - moves * a, room - moves * a
        return (over <= 0) & (room >= 0)
    over = count * a + fixed - size
    if p.columns == ROWS or not p.whole:
        return over <= 0
    room = size - fixed
    difference = abs(a - b)  # without NumPy, which the package's build need not have
    for buffer in ((a + b + difference) // 2, (a + b - difference) // 2):
        for _ in range(count):
            moves = (over > 0) & (room >= buffer)
            over, room = over - moves * buffer, room - moves * buffer
    return (over <= 0) & (room >= 0)


def fits_shim(p: DesignPoint) -> Any:
    """Whether the runs of A, B and C fit the wrap field of a shim BD."""
    limit = 4 * tile_limits("shim").max_wrap
    fits: Any = True
    for _, elements, size in p.shim_runs:
        fits = fits & (elements * size <= limit)
    return fits


def fits_kernel(p: DesignPoint) -> Any:
    """Pipelined kernels are unrolled along k and cover a range of it."""
    low, high = PIPELINED_K if p.kernel == "pipelined" else (1, core_memory())
    return (p.tile[1] >= low) & (p.tile[1] <= high)


def fits(p: DesignPoint) -> Any:
    return fits_kernel(p) & fits_core(p) & fits_memtiles(p) & fits_shim(p)


def check_core(p: DesignPoint, function: str) -> None:
    """Raises DesignError if the tiles of a core are more than its memory."""
    used = core_bytes(p)
    if used <= core_memory():
        return
    raise DesignError(
        f"[{function}] tile {' x '.join(map(str, p.tile))} with {p.c_buffers} C buffer(s) needs "
        f"{used} bytes of L1; a core has {core_memory()}: use {_smaller(p)}"
    )


def _smaller(p: DesignPoint) -> str:
    """For messages: which tile would fit, one size changed at a time, or whether this one does with
    sums that are narrowed where they lie."""
    found = []
    for axis, (name, unit) in enumerate(zip("mkn", p.granularity, strict=True)):
        largest = _largest(p, axis, unit)
        if largest:
            found.append(f"{name} <= {largest}")
    if p.c_buffers and p.sum_dtype != p.c_dtype and fits_core(replace(p, c_buffers=0)):
        found.append("c_buffers=0")
    return ", or ".join(found) or "a smaller tile: no m, k or n alone makes it fit"


def _largest(p: DesignPoint, axis: int, unit: int) -> int:
    """The largest size of one axis with which the others fit L1, 0 if there is none."""

    def fitting(units: int) -> bool:
        tile = list(p.tile)
        tile[axis] = units * unit
        changed = replace(p, tile=(tile[0], tile[1], tile[2]))
        return bool(fits_core(changed) and fits_kernel(changed))

    sizes = range(core_memory() // unit, 0, -1)
    return next((units * unit for units in sizes if fitting(units)), 0)


def check_shim(p: DesignPoint, function: str) -> None:
    """Raises DesignError if the runs that runtime streams put in shim BDs do not fit the wrap
    field."""
    limit = tile_limits("shim").max_wrap
    for label, elements, size in p.shim_runs:
        if elements * size > 4 * limit:
            raise DesignError(
                f"[{function}] {label} = {elements}: a shim BD addresses runs of at most {limit} "
                f"words, this needs {elements * size // 4}"
            )


def check_bytes(p: DesignPoint, function: str) -> None:
    """Raises DesignError if the tiles of a core or of all memtiles are more than there is."""
    check_core(p, function)
    tile = " x ".join(map(str, p.tile))
    l2 = memtile_bytes(p)
    if l2 > p.columns * memtile_memory():
        raise DesignError(
            f"[{function}] tile {tile} with k_mt {p.k_mt} needs {l2} bytes of L2; {p.columns} "
            f"memtiles have {p.columns * memtile_memory()}: use a smaller k_mt"
        )


def _aligned(size: Any) -> Any:
    return -(-size // ALIGNMENT) * ALIGNMENT
