"""From (size, stride) lists in elements to the step and wrap fields of a buffer descriptor.

A pattern is kept as written where it fits; otherwise unit dimensions are dropped, neighbours that
scan contiguously are merged and sizes beyond the wrap limit are split, which never changes the
order of addresses. A pattern that is one contiguous run becomes the linear form (all fields 0).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from npu.errors import DesignError

from ..hardware import TileLimits

DimList = tuple[tuple[int, int], ...]  # (size, stride) in elements, outermost first


@dataclass(frozen=True)
class Access:
    """How one BD walks memory. Steps and wraps are in words, dimension 0 innermost."""

    dims: DimList  # the dimensions used, in elements, outermost first; empty = linear
    step: tuple[int, ...] = ()
    wrap: tuple[int, ...] = ()  # 0 = never wraps


def lower_dims(
    dims: DimList, element_bytes: int, elements: int, reach: int, limits: TileLimits, what: str
) -> Access:
    """The access pattern for `elements` elements that may touch `reach` elements from its base.

    `what` names the FIFO end and the tile in errors.
    """
    if elements * element_bytes % 4:
        raise DesignError(f"{what}: {elements * element_bytes} B is not a multiple of 4 B")
    if elements * element_bytes // 4 > limits.max_length:
        raise DesignError(
            f"{what}: the transfer has {elements * element_bytes // 4} words, "
            f"a {limits.kind} BD moves at most {limits.max_length}"
        )
    if not dims:
        return Access(())
    _check_extent(dims, elements, reach, what)
    written = tuple(d for d in dims if d[0] > 1) or ((1, 1),)
    merged = _merge(written)
    if len(merged) == 1 and merged[0][1] == 1:
        return Access(())
    problem = ""
    for candidate in (written, merged, _split(merged, element_bytes, limits)):
        access, problem = _fit(candidate, element_bytes, limits)
        if access:
            return access
    raise DesignError(f"{what}: {_text(dims)} does not fit a {limits.kind} BD: {problem}")


def _check_extent(dims: DimList, elements: int, reach: int, what: str) -> None:
    for size, stride in dims:
        if size < 1 or stride < 0 or (size > 1 and stride == 0):
            raise DesignError(
                f"{what}: dimension (size {size}, stride {stride}): sizes must be at least 1 and "
                "strides at least 1 (a BD cannot step by 0)"
            )
    count = math.prod(size for size, _ in dims)
    if count != elements:
        raise DesignError(
            f"{what}: {_text(dims)} covers {count} elements, the transfer has {elements}"
        )
    last = sum((size - 1) * stride for size, stride in dims)
    if last >= reach:
        raise DesignError(
            f"{what}: {_text(dims)} reaches element {last}, the buffer has {reach} from there"
        )


def _merge(dims: DimList) -> DimList:
    """Joins neighbours where the outer stride continues the inner run."""
    out: list[tuple[int, int]] = []
    for size, stride in reversed(dims):
        if out and stride == out[-1][0] * out[-1][1]:
            out[-1] = (out[-1][0] * size, out[-1][1])
        else:
            out.append((size, stride))
    return tuple(reversed(out))


def _split(dims: DimList, element_bytes: int, limits: TileLimits) -> DimList:
    """Factors sizes beyond the wrap limit, except the outermost, which needs no wrap."""
    out = list(dims[:1])
    for index, (size, stride) in enumerate(dims[1:], start=1):
        # The innermost run of small elements is counted in words.
        unit = 4 // element_bytes if index == len(dims) - 1 and stride == 1 else 1
        pieces: list[tuple[int, int]] = []  # innermost first
        while size > limits.max_wrap * unit:
            factor = _largest_factor(size, limits.max_wrap * unit, unit)
            if factor <= unit:
                break
            pieces.append((factor, stride))
            size, stride, unit = size // factor, stride * factor, 1
        out += [(size, stride), *reversed(pieces)]
    return tuple(out)


def _largest_factor(size: int, limit: int, unit: int) -> int:
    return max((f for f in range(unit, limit + 1, unit) if size % f == 0), default=1)


def _fit(dims: DimList, element_bytes: int, limits: TileLimits) -> tuple[Access | None, str]:
    """Word fields for exactly these dimensions, or why they do not fit."""
    if len(dims) > limits.address_dims:
        return None, f"{len(dims)} dimensions, {limits.address_dims} exist"
    step, wrap = [], []
    for index, (size, stride) in enumerate(reversed(dims)):
        outermost = index == len(dims) - 1
        if index == 0 and element_bytes < 4:
            if stride != 1 or size * element_bytes % 4:
                return None, (
                    f"the innermost dimension (size {size}, stride {stride}) of "
                    f"{element_bytes}-byte elements is not a run of whole 32-bit words"
                )
            size, words = size * element_bytes // 4, 1
        elif stride * element_bytes % 4:
            return None, f"stride {stride} of {element_bytes}-byte elements is not whole words"
        else:
            words = stride * element_bytes // 4
        if words > limits.max_step:
            return None, f"step of {words} words, at most {limits.max_step}"
        if index < limits.address_dims - 1:
            if size > limits.max_wrap and not outermost:
                return None, f"wrap of {size} words or steps, at most {limits.max_wrap}"
            wrap.append(size if size <= limits.max_wrap else 0)
        step.append(words)
    return Access(dims, tuple(step), tuple(wrap)), ""


def _text(dims: DimList) -> str:
    return "[" + ", ".join(f"<size {size}, stride {stride}>" for size, stride in dims) + "]"
