"""Lowering of (size, stride) lists: the words a BD visits are exactly the elements that the
pattern names, in order, for every pattern that fits; what does not fit says which limit it is.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from designs_reference import Bd
from hypothesis import given, settings
from hypothesis import strategies as st

from npu.designs.hardware import tile_limits
from npu.designs.lowering.dims import Access, lower_dims
from npu.errors import DesignError

DIMS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 64)), min_size=1, max_size=6)


def reference_bytes(dims: list[tuple[int, int]], element_bytes: int) -> np.ndarray:
    """Byte addresses of a pattern by definition, in stream order."""
    elements = np.zeros(1, dtype=np.int64)
    for size, stride in dims:
        elements = (elements[:, None] + np.arange(size) * stride).ravel()
    return (elements[:, None] * element_bytes + np.arange(element_bytes)).ravel()


def visited_bytes(access: Access, words: int, kind: str) -> np.ndarray:
    """Byte addresses that a BD with these fields visits, by the odometer rule."""
    limits = tile_limits(kind)
    step = list(access.step) + [1] * (limits.address_dims - len(access.step))
    wrap = list(access.wrap) + [0] * (limits.address_dims - 1 - len(access.wrap))
    bd = Bd(0, words, step, wrap, 0, False, (0, 0), (0, 0), ())
    return (np.array(bd.addresses())[:, None] + np.arange(4)).ravel()


@settings(max_examples=300, deadline=None)
@given(DIMS, st.sampled_from([1, 2, 4]), st.sampled_from(["mem", "core"]))
def test_addresses_equal_brute_force(
    dims: list[tuple[int, int]], element_bytes: int, kind: str
) -> None:
    elements = math.prod(size for size, _ in dims)
    reach = 1 + sum((size - 1) * stride for size, stride in dims)
    try:
        access = lower_dims(tuple(dims), element_bytes, elements, reach, tile_limits(kind), "[t]")
    except DesignError:
        return  # does not fit; test_fitting_patterns_fit says which must
    words = elements * element_bytes // 4
    expected = reference_bytes(dims, element_bytes)
    np.testing.assert_array_equal(visited_bytes(access, words, kind), expected)


@st.composite
def nested_dims(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Dimensions of which neighbours often, or almost, continue one another."""
    dims = [(draw(st.integers(1, 5)), draw(st.integers(1, 3)))]
    for _ in range(draw(st.integers(1, 5))):
        size, stride = dims[0]
        candidates = [size * stride, size * stride, size, size * stride + 1]
        dims.insert(0, (draw(st.integers(1, 5)), draw(st.sampled_from(candidates))))
    return dims


@settings(max_examples=300, deadline=None)
@given(nested_dims(), st.sampled_from(["mem", "core"]))
def test_merging_keeps_the_order(dims: list[tuple[int, int]], kind: str) -> None:
    elements = math.prod(size for size, _ in dims)
    try:
        access = lower_dims(tuple(dims), 4, elements, 1 << 20, tile_limits(kind), "[t]")
    except DesignError:
        return
    np.testing.assert_array_equal(visited_bytes(access, elements, kind), reference_bytes(dims, 4))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.sampled_from([1, 2, 4]),
    st.permutations(range(4)),
)
def test_fitting_patterns_fit(sizes: list[int], element_bytes: int, order: list[int]) -> None:
    """Any order of up to 4 dimensions over whole words fits a memtile BD."""
    run = 4 // element_bytes
    strides = [run * math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    outer = [(sizes[i], strides[i]) for i in order if i < len(sizes)]
    dims = [*outer[:3], (run, 1)]
    elements = math.prod(size for size, _ in dims)
    reach = run * math.prod(sizes)
    access = lower_dims(tuple(dims), element_bytes, elements, reach, tile_limits("mem"), "[t]")
    expected = reference_bytes(dims, element_bytes)
    got = visited_bytes(access, elements * element_bytes // 4, "mem")
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("dims", "element_bytes"),
    [
        ([(64, 1)], 4),
        ([(4, 16), (16, 1)], 4),
        ([(2, 512), (4, 128), (128, 1)], 2),
        ([(1, 999), (64, 1), (1, 5)], 1),
        ([(2048, 1)], 4),  # beyond the wrap limit, but a plain run
    ],
)
def test_contiguous_becomes_linear(dims: list[tuple[int, int]], element_bytes: int) -> None:
    elements = math.prod(size for size, _ in dims)
    access = lower_dims(tuple(dims), element_bytes, elements, 4096, tile_limits("mem"), "[t]")
    assert access == Access(())


def test_wide_dimension_is_split() -> None:
    dims = ((2, 4096), (2048, 2))  # 2048 steps of 2 words; a wrap holds 1023
    access = lower_dims(dims, 4, 4096, 8192, tile_limits("mem"), "[t]")
    assert max(access.wrap) <= 1023
    np.testing.assert_array_equal(
        visited_bytes(access, 4096, "mem"), reference_bytes(list(dims), 4)
    )


def test_outermost_needs_no_wrap() -> None:
    access = lower_dims(((5000, 3),), 4, 5000, 15000, tile_limits("mem"), "[t]")
    assert access.wrap == (0,)
    expected = reference_bytes([(5000, 3)], 4)
    np.testing.assert_array_equal(visited_bytes(access, 5000, "mem"), expected)


@pytest.mark.parametrize(
    ("dims", "element_bytes", "kind", "message"),
    [
        ([(3, 1000), (3, 300), (3, 90), (3, 20), (2, 7)], 4, "mem", "5 dimensions, 4 exist"),
        ([(2, 1000), (2, 300), (2, 90), (2, 20)], 4, "core", "4 dimensions, 3 exist"),
        ([(2, 140000), (2, 2)], 4, "mem", "step of 140000 words, at most 131072"),
        ([(2, 9000), (2, 2)], 4, "core", "step of 9000 words, at most 8192"),
        ([(2, 3000), (257, 3)], 4, "core", "wrap of 257 words or steps, at most 255"),
        ([(2, 8192), (1031, 3)], 4, "mem", "wrap of 1031 words or steps, at most 1023"),
        ([(4, 8), (3, 1), (2, 4)], 2, "mem", "not a run of whole 32-bit words"),
        ([(4, 9), (4, 1)], 1, "mem", "stride 9 of 1-byte elements is not whole words"),
        ([(4, 0), (4, 1)], 4, "mem", "cannot step by 0"),
        ([(0, 1)], 4, "mem", "sizes must be at least 1"),
    ],
)
def test_limits_are_named(
    dims: list[tuple[int, int]], element_bytes: int, kind: str, message: str
) -> None:
    elements = math.prod(size for size, _ in dims)
    with pytest.raises(DesignError, match=message):
        lower_dims(tuple(dims), element_bytes, elements, 1 << 20, tile_limits(kind), "[t] here")


def test_counts_and_reach() -> None:
    limits = tile_limits("mem")
    with pytest.raises(DesignError, match="covers 12 elements, the transfer has 16"):
        lower_dims(((3, 4), (4, 1)), 4, 16, 16, limits, "[t]")
    with pytest.raises(DesignError, match="reaches element 18, the buffer has 16"):
        lower_dims(((4, 5), (4, 1), (1, 1)), 4, 16, 16, limits, "[t]")
    with pytest.raises(DesignError, match="6 B is not a multiple of 4 B"):
        lower_dims((), 2, 3, 3, limits, "[t]")
    with pytest.raises(DesignError, match="20000 words, a core BD moves at most 16383"):
        lower_dims((), 4, 20000, 20000, tile_limits("core"), "[t]")
