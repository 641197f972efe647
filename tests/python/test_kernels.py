"""Asserts that every kernel of aie_kernels/ declares itself, that a design which names one gets its
operands, dtypes and sizes checked against the declaration, for every kernel and generation, and
that the MLIR signature is that of the call. Kernels with stated types: test_designs_limits.py.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from npu._npu import kernels
from npu.designs.api import Design
from npu.designs.hardware import DTYPE_BYTES
from npu.designs.kernel import limits
from npu.designs.lowering import mlir
from npu.designs.worker import Buffer, Rtp, Worker
from npu.errors import DesignError, NpuError

GENERATIONS = ("npu1", "npu2")
SOURCES = Path(__file__).parents[2] / "aie_kernels"
ALL = [(name, g) for g in GENERATIONS for name in kernels.list(g)]


def integers_of(name: str, generation: str) -> list[int]:
    """The least integers that a kernel takes."""
    operands = kernels.describe(name, generation)["operands"]
    return [o["min"] for o in operands if not o["buffer"]]


def operands_of(worker: Worker, name: str, generation: str) -> list[Any]:
    """Operands of a call that the declaration allows."""
    integers = integers_of(name, generation)
    counts = iter(kernels.counts(name, generation, integers))
    values = iter(integers)
    return [
        worker.buffer(f"b{i}", o["dtype"], (next(counts),)) if o["buffer"] else next(values)
        for i, o in enumerate(kernels.describe(name, generation)["operands"])
    ]


def new_worker(generation: str) -> tuple[Design, Worker]:
    design = Design("d", generation)
    return design, design.worker(design.tile(0, 2))


def test_every_kernel_function_declares_itself_and_is_documented() -> None:
    text = "".join(path.read_text() for path in sorted(SOURCES.glob("*.cc")))
    functions = re.findall(r"^NPU_KERNEL void (\w+)\(", text, re.MULTILINE)
    assert len(functions) == len(set(functions)) > 30
    first, second = (set(kernels.list(generation)) for generation in ("npu1", "npu2"))
    assert first | second == set(functions)
    assert first - second == {"matmul_bf16_f32_square"} and second - first
    readme = (SOURCES / "README.md").read_text()
    assert not [f for f in functions if f"`{f.removesuffix('_bcol')}" not in readme]


def test_description() -> None:
    found = kernels.describe("matmul_bfp16_bf16_pipelined", "npu2")
    a, b, c, m, k, n, row = found["operands"]
    assert [o["name"] for o in (a, b, c, m, k, n, row)] == ["a", "b", "c", "m", "k", "n", "row"]
    assert (a["dtype"], a["block_float"], a["read_only"], a["count"]) == (
        "uint8", True, True, "m * k",
    )  # fmt: skip
    assert (c["dtype"], c["alignment"], c["read_only"]) == ("bfloat16", 2, False)
    assert c["count"] == "row * n + m * n"
    assert (k["min"], k["max"], k["step"]) == (16, 64, 8)
    assert found["product"] and found["costed"]
    # 64 x 32 and 32 x 48 values in blocks of 8 with 9 bytes; rows 16 to 80 of C.
    counts = kernels.counts("matmul_bfp16_bf16_pipelined", "npu2", [64, 32, 48, 16])
    assert counts == [64 * 32 * 9 // 8, 32 * 48 * 9 // 8, 80 * 48]
    counts = kernels.counts("matmul_bfp16_bf16_pipelined", "npu2", [64, 32, None, 16])
    assert counts == [64 * 32 * 9 // 8, None, None]
    assert limits("gemv_setup", "npu1", "index") == (0, 31)


def test_description_errors() -> None:
    for call in (
        lambda: kernels.describe("matmul", "npu1"),
        lambda: kernels.describe("convert_bf16_bfp16_a", "npu1"),
        lambda: kernels.describe("zero_f32", "npu3"),
        lambda: kernels.counts("zero_f32", "npu1", []),
        lambda: kernels.counts("zero_f32", "npu1", [24]),
        lambda: kernels.counts("convert_bf16_bfp16_b", "npu2", [64, 16]),
        lambda: limits("zero_f32", "npu1", "c"),
    ):
        with pytest.raises(NpuError, match=r"^\["):
            call()


def test_a_name_is_enough_and_types_only_for_others() -> None:
    design = Design("d", "npu1")
    assert [o.name for o in design.kernel("zero_f32").operands] == ["c", "count"]
    with pytest.raises(DesignError, match='"zero_f32" declares its operands'):
        design.kernel("zero_f32", [("float32", (16,)), "int32"])
    for name in ("mine", "matmul_i8_i32_pipelined"):  # the latter is npu2's
        with pytest.raises(DesignError, match=f'npu1 has no kernel "{name}"'):
            design.kernel(name)
    assert design.kernel("mine", ["int32"]).counts(5) == []


@pytest.mark.parametrize(("name", "generation"), ALL)
def test_calls_are_checked_against_the_declaration(name: str, generation: str) -> None:
    design, worker = new_worker(generation)
    kernel = design.kernel(name)
    good = operands_of(worker, name, generation)
    worker.call(kernel, *good)
    other = worker.buffer("other", "uint16", (1 << 20,))  # no kernel takes it

    def refused(index: int, operand: object, text: str) -> None:
        operands = [*good]
        operands[index] = operand
        with pytest.raises(DesignError, match=re.escape(text)):
            worker.call(kernel, *operands)

    with pytest.raises(DesignError, match=f"it takes {len(good)}"):
        worker.call(kernel, *good[:-1])
    for i, operand in enumerate(kernels.describe(name, generation)["operands"]):
        what = f"operand {i} ({operand['name']})"
        if operand["buffer"]:
            refused(i, 16, f"{what} is a number, the kernel takes a buffer")
            refused(i, other, f"the kernel takes {operand['dtype']}")
            elements = math.prod(good[i].shape)
            short = worker.buffer(f"short{i}", operand["dtype"], (elements - 1,))
            refused(i, short, f"has {elements - 1} elements, the kernel accesses {elements}")
        else:
            refused(i, other, f"{what} is a buffer, the kernel takes a number")
            refused(i, operand["max"] + operand["step"], f"[{name}] {operand['name']} = ")
            refused(i, operand["min"] - 1, f"[{name}] {operand['name']} = ")


def test_integers_that_are_not_known_yet_are_not_checked() -> None:
    design, worker = new_worker("npu2")
    count = worker.rtp("count")
    tile = worker.buffer("tile", "float32", (16,))
    worker.call(design.kernel("zero_f32"), tile, count)
    assert worker.steps[-1].operands == (tile, Rtp("count"))


def test_larger_buffers_are_allowed_and_shapes_are_those_of_the_call() -> None:
    design = Design("d", "npu2", object_file="kernels.o")
    core = design.tile(0, 2)
    worker = design.worker(core)
    tile: Buffer = worker.buffer("tile", "bfloat16", (4, 32))
    worker.call(design.kernel("zero_bf16"), tile, 64)
    text = mlir(design)
    assert "func.func private @zero_bf16(memref<4x32xbf16>, i32)" in text
    assert "func.call @zero_bf16(%tile, %c64_i32) : (memref<4x32xbf16>, i32) -> ()" in text
    worker.call(design.kernel("zero_bf16"), worker.buffer("flat", "bfloat16", (128,)), 128)
    with pytest.raises(DesignError, match='"zero_bf16" is used with two argument lists'):
        mlir(design)


def test_dtypes_of_declarations_are_those_of_designs() -> None:
    for name, generation in ALL:
        for operand in kernels.describe(name, generation)["operands"]:
            assert operand["dtype"] in DTYPE_BYTES
