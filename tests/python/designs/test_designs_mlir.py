"""The MLIR text: well formed as far as text shows (brackets, every SSA value and block defined and
in scope), and saying the same as the serialised configuration: addresses, locks, BDs, programs.
"""

from __future__ import annotations

import re

import pytest
from designs_reference import chains, lock_values, read_configuration, run_txn
from test_designs_golden import REORDER, gemm_2x2, relay

from npu.designs import gemm
from npu.designs.api import Design
from npu.designs.lowering import lower, print_mlir, serialise

DESIGNS = {
    "relay": lambda: relay("npu2"),
    "gemm_2x2": gemm_2x2,
    **{
        f"{g}_{p[0]}_{p[1]}": (lambda g=g, p=p: gemm.design(g, *p))
        for g in ("npu1", "npu2")
        for p in gemm.PAIRS
    },
    "gemm_narrow_col": lambda: gemm.design(
        "npu1", "int8", "int8", tile=(112, 112, 112), k_mt=448, b_layout="col", accumulate="narrow"
    ),
    "gemm_neighbours": lambda: gemm.design(
        "npu2", "int8", "int16", tile=(128, 72, 112), k_mt=1080, b_layout="col", accumulate="narrow"
    ),
}
VALUE = re.compile(r"%[A-Za-z_0-9]+")


@pytest.fixture(params=DESIGNS, scope="module")
def both(request: pytest.FixtureRequest) -> tuple[str, bytes]:
    lowered = lower(DESIGNS[request.param]())
    return print_mlir(lowered), serialise(lowered)


def test_balanced_and_defined(both: tuple[str, bytes]) -> None:
    """Each line's values are defined before it in an enclosing region; blocks exist."""
    text = both[0]
    scopes: list[set[str]] = [set()]
    for line in text.splitlines():
        body = line.strip()
        left, _, right = body.partition(" = ") if body.startswith("%") else ("", "", body)
        defined = {left.split(":")[0]} if left else set()
        inner = set()
        if (body.startswith("%") and "scf.for" in right) or right.startswith("scf.for"):
            loop = re.search(r"scf\.for (%\w+) = ", right)
            assert loop
            inner = {loop[1], *re.findall(r"(%\w+) = %", right.partition("iter_args")[2])}
        used = set(VALUE.findall(right.partition("#aie.packet_info")[0])) - inner
        visible = set().union(*scopes)
        assert used <= visible, f"{used - visible} undefined in: {line}"
        closes = body.startswith("}")
        if closes:
            scopes.pop()
        opens = body.endswith("{")
        assert not defined & visible, f"{defined} defined twice: {line}"
        scopes[-1] |= defined
        if opens:
            scopes.append(inner)
    assert len(scopes) == 1
    for opening, closing in ("()", "[]", "<>", "{}"):
        assert text.replace("->", "").count(opening) == text.replace("->", "").count(closing)
    for region in re.findall(r"aie\.(?:mem|memtile_dma)\(.*?\n    }", text, re.S):
        labels = re.findall(r"\^bb\d+(?=:)", region)
        assert len(labels) == len(set(labels))
        assert set(re.findall(r"\^bb\d+", region)) == set(labels)


def test_addresses_locks_and_bds_equal(both: tuple[str, bytes]) -> None:
    text, data = both
    config = read_configuration(data)
    registers = run_txn(config.txn)
    tiles = {
        name: (int(col), int(row))
        for name, col, row in re.findall(r"(%\w+) = aie\.tile\((\d+), (\d+)\)", text)
    }
    buffers = {
        name: (tiles[tile], int(address))
        for name, tile, address in re.findall(
            r"(%\w+) = aie\.buffer\((%\w+)\) \{address = (\d+) : i32", text
        )
    }
    locks = {
        name: (tiles[tile], int(number), int(init))
        for name, tile, number, init in re.findall(
            r"(%\w+) = aie\.lock\((%\w+), (\d+)\) \{init = (\d+) : i32", text
        )
    }
    assert {(t, i): v for t, i, v in locks.values() if v} == lock_values(registers)
    printed = {}
    pattern = (
        r"use_lock\((%\w+), AcquireGreaterEqual, 1\)\s+"
        r"aie\.dma_bd\((%\w+) : memref<(?:\d+x)+(\w+)>, "
        r"(\d+), (\d+)(.*?)\) \{bd_id = (\d+) : i32, next_bd_id = (\d+) : i32\}\s+"
        r"aie\.use_lock\((%\w+), Release, 1\)"
    )
    width = {"i8": 1, "i16": 2, "bf16": 2, "i32": 4, "f32": 4}
    for acq, buffer, kind, offset, length, dims, number, after, rel in re.findall(pattern, text):
        home, address = buffers[buffer]
        tile = locks[acq][0]
        assert locks[rel][0] == tile
        assert home == tile or (home[1] == tile[1] == 1 and abs(home[0] - tile[0]) == 1)
        address += (home[0] - tile[0]) * 0x80000  # a memtile's DMA sees its neighbours' memory
        printed[tile, int(number)] = (
            address + int(offset) * width[kind],
            int(length) * width[kind] // 4,
            int(after),
            locks[acq][1],
            locks[rel][1],
            bool(dims),
        )
    written = {}
    for (tile, _, _), bds in chains(registers).items():
        for index, bd in enumerate(bds):
            number = bds[index - 1].next
            plain = bd.step == [1] * len(bd.step) and not any(bd.wrap)
            written[tile, number] = (
                bd.base, bd.length, bd.next, bd.acquire[0], bd.release[0], not plain
            )  # fmt: skip
    assert printed == written


def test_programs_equal(both: tuple[str, bytes]) -> None:
    """The core's lock operations and calls, line by line, with names resolved to numbers."""
    text, data = both
    config = read_configuration(data)
    locks = dict(re.findall(r"(%\w+) = aie\.lock\(%\w+, (\d+)\)", text))
    buffers = dict(re.findall(r"(%\w+) = aie\.buffer\(%\w+\) \{address = (\d+)", text))
    cores = re.findall(r"aie\.core\(%tile_(\d)_(\d)\) \{\n(.*?)\n    \}", text, re.S)
    assert {(int(c), int(r)) for c, r, _ in cores} == set(config.cores)
    words = {"AcquireGreaterEqual": "acquire_ge", "Acquire": "acquire_eq", "Release": "release"}
    for col, row, body in cores:
        constants = dict(re.findall(r"(%c\w+) = arith\.constant (\d+)", body))
        indices = re.findall(r"(%\w+) = memref\.load (%\w+)\[(%c\d+)\]", body)
        loads = {v: int(buffers[b]) + 4 * int(constants[i]) for v, b, i in indices}
        slots: dict[str, str] = {}
        lines: list[str] = []
        for line in map(str.strip, body.splitlines()):
            if match := re.match(r"aie\.use_lock\((%\w+), (\w+), (\d+)\)", line):
                lines.append(f"{words[match[2]]} {locks[match[1]]} {match[3]}")
            elif match := re.match(r"(%\w+) = scf\.index_switch", line):
                current = match[1]
                slots[current] = ""
            elif match := re.match(r"scf\.yield (%\w+) : memref", line):
                slots[current] += "|" + buffers[match[1]]
            elif match := re.match(r"func\.call @(\w+)\((.*?)\)", line):
                names = match[2].split(", ")
                operands = [
                    f"@{buffers[x]}" if x in buffers else f"@{slots[x][1:]}" if x in slots
                    else f"${loads[x]}" if x in loads else f"#{constants[x]}"
                    for x in names
                ]  # fmt: skip
                lines.append(" ".join(["call", match[1], *operands]))
            elif match := re.match(r"(?:%\w+(?::\d)? = )?scf\.for %\w+ = %c0 to (%\w+)", line):
                bound = constants.get(match[1], "rtp")
                lines.append(f"loop {'forever' if bound == '4294967295' else bound}")
        expected = []
        for line in config.cores[int(col), int(row)]:
            if not line.startswith(("advance", "end")):
                expected.append(re.sub(r"%\d+", "", re.sub(r"rtp:\d+", "rtp", line)))
        assert lines == expected
        assert len(loads) == body.count("memref.load")


def test_dims_are_printed_as_written() -> None:
    text = print_mlir(lower(relay("npu2")))
    dims = ", ".join(f"<size = {size}, stride = {stride}>" for size, stride in REORDER)
    assert text.count(f"[{dims}]") == 2


def test_counters_carry_across_loops() -> None:
    """A FIFO used in an inner and an outer loop keeps one rotation through both."""
    d = Design("d", "npu1")
    core = d.tile(0, 2)
    a = d.fifo("a", d.tile(0, 0), core, 16, depth=3)
    kernel = d.kernel("k", [("int32", (16,))])
    w = d.worker(core)
    with w.forever():
        w.call(kernel, w.acquire(a))
        w.release(a)
        with w.loop(5):
            w.call(kernel, w.acquire(a))
            w.release(a)
    text = print_mlir(lower(d))
    body = text[text.index("aie.core(") :]
    outer = re.search(r"scf\.for %\w+ = %c0 to %c4294967295 .*iter_args\((%\w+) = %c0\)", body)
    assert outer
    switches = re.findall(r"scf\.index_switch (%\w+) ", body)
    inner = re.search(r"(%\w+) = scf\.for .* to %c5 .*iter_args\((%\w+) = (%\w+)\)", body)
    assert inner and switches == [outer[1], inner[2]]
    selected = re.findall(r"(%\w+) = arith\.select", body)
    assert inner[3] == selected[0], "the inner loop starts where the outer body left off"
    yields = re.findall(r"scf\.yield (%\w+) : index", body)
    assert yields == [selected[1], inner[1]]
    assert body.count("default {") == 2 and body.count("case 0 {") == body.count("case 1 {") == 2
