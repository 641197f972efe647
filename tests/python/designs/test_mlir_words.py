"""Memtile buffers that are printed in words: every size is one that mlir-aie takes, every
descriptor walks the same bytes in the same order and fills the same register, nothing else changes;
a pattern that stays too large is refused.
"""

from __future__ import annotations

import itertools
import re

import pytest

from npu.designs import gemm
from npu.designs.api import Design
from npu.designs.lowering import lower, mlir
from npu.designs.lowering.lowered import Descriptor, Lowered
from npu.designs.lowering.mlir_words import MOST, in_words
from npu.designs.lowering.serialise import bd_words
from npu.errors import DesignError


@pytest.fixture(scope="module")
def blocks() -> Lowered:
    """Tiles of 64 x 64 in BFP16: 576 bytes of blocks in a row."""
    return lower(
        gemm.design("npu2", "bfp16", "bfp16", b_dtype="bfp16", tile=(64, 64, 64), k_mt=256)
    )


def through_memtile(dtype: str, rows: int, columns: int) -> Design:
    """A memtile sends an object of two planes, row by row of both."""
    design = Design("wide", "npu2")
    memtile, core = design.tile(0, 1), design.tile(0, 2)
    first = design.fifo("in", design.tile(0, 0), memtile, (2, rows, columns), dtype=dtype)
    second = design.fifo(
        "out", memtile, core, (2, rows, columns), dtype=dtype,
        to_stream=[(rows, columns), (2, rows * columns), (columns, 1)],
    )  # fmt: skip
    design.forward(first, second)
    kernel = design.kernel("k", [(dtype, (2, rows, columns))])
    worker = design.worker(core)
    with worker.forever():
        worker.call(kernel, worker.acquire(second))
        worker.release(second)
    return design


def byte_order(d: Descriptor) -> list[int]:
    """Every byte that a descriptor moves, in order, from its buffer's base on."""
    dims = d.access.dims or ((d.bytes // d.element_bytes, 1),)
    places = itertools.product(*(range(0, size * step, step) for size, step in dims))
    starts = (sum(place) * d.element_bytes for place in places)
    return [start + byte for start in starts for byte in range(d.element_bytes)]


def test_sizes_fit_and_bytes_are_the_same(blocks: Lowered) -> None:
    printed, changed = in_words(blocks), 0
    for before, after in zip(blocks.channels, printed.channels, strict=True):
        for old, new in zip(before.descriptors, after.descriptors, strict=True):
            assert all(size <= MOST for size, _ in new.access.dims)
            if old == new:
                continue
            changed += 1
            assert before.tile.kind == "mem"
            assert (new.memory.dtype, new.element_bytes) == ("int32", 4)
            assert byte_order(new) == byte_order(old)
            assert bd_words(new, before.tile) == bd_words(old, before.tile)
    assert changed, "the design has no pattern to rewrite"


def test_buffers_keep_name_place_and_bytes(blocks: Lowered) -> None:
    text = mlir(gemm.design("npu2", "bfp16", "bfp16", b_dtype="bfp16", tile=(64, 64, 64), k_mt=256))
    found = re.findall(
        r'address = (\d+) : i32, sym_name = "(\w+)"\} : memref<((?:\d+x)+)(i8|i32)>', text
    )
    width = {"i8": 1, "i32": 4}
    bytes_of = {}
    for address, name, shape, kind in found:
        count = width[kind]
        for extent in shape.split("x")[:-1]:
            count *= int(extent)
        bytes_of[name] = (int(address), count)
    for memories in blocks.memories.values():
        for memory in memories:
            if memory.dtype in ("int8", "uint8", "int32"):
                assert bytes_of[memory.name] == (memory.address, memory.bytes)
    patterns = re.findall(r"sizes = \[([\d, ]+)\]", text)
    largest = max(int(size) for sizes in patterns for size in sizes.split(","))
    assert largest <= MOST


def test_patterns_that_fit_are_printed_as_they_are() -> None:
    lowered = lower(through_memtile("int8", 3, MOST))
    assert in_words(lowered) == lowered


def test_words_only_where_elements_do_not_fit() -> None:
    lowered = lower(through_memtile("int8", 3, MOST + 4))
    (memory, *_) = next(m for t, m in in_words(lowered).memories.items() if t.kind == "mem")
    assert (memory.dtype, memory.bytes) == ("int32", 6 * (MOST + 4))
    core = next(m for t, m in in_words(lowered).memories.items() if t.kind == "core")
    assert all(m.dtype == "int8" for m in core)


def test_sizes_of_words_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DesignError, match=r"size of 516 elements, mlir-aie takes at most 512"):
        mlir(through_memtile("int32", 3, MOST + 4))


def test_buffers_of_cores_keep_their_type() -> None:
    """Kernels take it: a pattern there that is too large is refused."""
    design = Design("wide", "npu2")
    core, shim = design.tile(0, 2), design.tile(0, 0)
    out = design.fifo(
        "out", core, shim, (2, 3, 516), "int8", to_stream=[(3, 516), (2, 1548), (516, 1)]
    )
    kernel = design.kernel("k", [("int8", (2, 3, 516))])
    worker = design.worker(core)
    with worker.forever():
        worker.call(kernel, worker.acquire(out))
        worker.release(out)
    with pytest.raises(DesignError, match=r"core tile \(0, 2\).* size of 516 elements"):
        mlir(design)
