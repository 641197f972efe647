"""The MLIR text: well formed as far as text shows (brackets, every SSA value and block defined and
in scope), and saying the same as the serialised configuration: addresses, locks, BDs, programs, in
both forms that mlir-aie has for them; what keeps addresses and links kernels; the set-up sequence.
"""

from __future__ import annotations

import re

import pytest
from designs_reference import chains, lock_values, read_configuration, run_txn
from test_designs_golden import REORDER, gemm_2x2, relay

from npu._npu import arch
from npu.designs import (
    attention,
    decoder,
    dequant,
    geglu,
    gemm,
    gemv,
    prefill,
    rms_norm,
    rope,
)
from npu.designs.api import Design
from npu.designs.lowering import lower, mlir, print_mlir, serialise
from npu.designs.lowering.serialise import bd_words
from npu.designs.lowering.setup import setup_stream
from npu.stream import operations

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
    "gemm_blocks_values": lambda: gemm.design(
        "npu2",
        "bfloat16",
        "bfloat16",
        b_dtype="bfp16",
        tile=(96, 32, 64),
        k_mt=64,
        a_parts=3,
        accumulate="narrow",
    ),
    "gemm_blocks": lambda: gemm.design(
        "npu2", "bfp16", "bfp16", b_dtype="bfp16", accumulate="bfloat16", c_buffers=0
    ),
    "gemm_one_core": lambda: gemm.design("npu2", "bfloat16", "bfloat16", k_mt=64, cores=(1, 1)),
    "gemm_part": lambda: gemm.design("npu1", "int8", "int16", b_layout="col", cores=(3, 2)),
    "gemm_pairs": lambda: gemm.design(
        "npu2", "int8", "int32", tile=(128, 32, 80), k_mt=128, kernel="pipelined", b_pairs=True
    ),
}
VALUE = re.compile(r"%[A-Za-z_0-9]+")
DIGITS = re.compile(r"\d+")


@pytest.fixture(params=[name for name in DESIGNS if name != "gemm_pairs"], scope="module")
def both(request: pytest.FixtureRequest) -> tuple[str, bytes]:
    lowered = lower(DESIGNS[request.param]())
    return print_mlir(lowered, operands=False), serialise(lowered)


@pytest.mark.parametrize("operands", [False, True])
@pytest.mark.parametrize("name", [*DESIGNS, "prefill"])
def test_balanced_and_defined(name: str, operands: bool) -> None:
    """Each line's values are defined before it in an enclosing region; blocks exist."""
    design = DESIGNS.get(name, lambda: prefill.design("npu1"))()
    text = print_mlir(lower(design), operands=operands)
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
        if right.startswith("aie.runtime_sequence"):
            inner = set(re.findall(r"(%\w+): ", right))
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
    today = print_mlir(lower(relay("npu2")))
    sizes, strides = [size for size, _ in REORDER], [stride for _, stride in REORDER]
    descriptor = f"offset = 0 len = 1536 sizes = {sizes} strides = {strides})"
    assert today.count(descriptor) == 2
    text = print_mlir(lower(relay("npu2")), operands=False)
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


@pytest.mark.parametrize("name", DESIGNS)
def test_both_forms_say_the_same(name: str) -> None:
    """Lock values and register writes are SSA values in one form; with these replaced, locks,
    descriptors and registers are those of the other."""
    lowered = lower(DESIGNS[name]())
    old, new = (print_mlir(lowered, operands=operands) for operands in (False, True))
    found = []
    for text in (old, new):
        constants = dict(re.findall(r"(%cm?\d+_i32) = arith\.constant (-?\d+) : i32", text))
        lines = []
        for line in map(str.strip, text.splitlines()):
            if line.startswith("aie.use_lock"):
                lines.append(re.sub(r"%cm?\d+_i32", lambda m, known=constants: known[m[0]], line))
            elif line.startswith("aie.dma_bd"):
                lines.append(
                    str([line.split(" : ")[0], *re.findall(r"\d+", line.split(" : ", 1)[1])])
                )
            elif match := re.match(r"aiex\.npu\.(\w+)\((.*)\) \{column = (\d+)", line):
                values = [int(constants[v]) & 0xFFFFFFFF for v in match[2].split(", ")]
                lines.append(f"{match[1]} {match[3]} {values}")
            elif match := re.match(
                r"aiex\.npu\.(\w+) \{column = (\d+) : i32, row = 0 : i32, ", line
            ):
                values = [int(v) for v in re.findall(r"= (\d+) : ui32", line)]
                lines.append(f"{match[1]} {match[2]} {values}")
        found.append(lines)
    assert [sorted(re.findall(r"\d+", line)) for line in found[0]] == [
        sorted(re.findall(r"\d+", line)) for line in found[1]
    ]
    assert "AcquireGreaterEqual, 1)" not in new and "ui32" not in new


def test_descriptors_without_a_lock_name_the_other() -> None:
    """mlir-aie configures both locks or none: of the missing one it takes or gives 0, in the text
    and in the registers. aiecc erases an AcquireGreaterEqual of 0 (UseLockOp::canonicalize)."""
    lowered = lower(DESIGNS["gemm_pairs"]())
    for channel in lowered.channels:
        for d in channel.descriptors:
            bd = arch.decode_bd(channel.tile.kind, bd_words(d, channel.tile))
            assert bd["acquire_enable"] == (d.acquire is not None)
            assert (bd["acquire_value"], bd["release_value"]) == (
                -1 if d.acquire else 0, 1 if d.release else 0
            )  # fmt: skip
            take, give = d.acquire or d.release, d.release or d.acquire
            base = channel.tile.limits.dma_lock_base
            if take and give:
                assert (bd["acquire_id"] - base, bd["release_id"] - base) == (take.id, give.id)
    text = print_mlir(lowered, operands=False)
    off = text.count("Acquire, 0) {acq_en = false}")
    assert off == text.count("Acquire, 0)") > 0 < text.count("Release, 0)")
    assert "AcquireGreaterEqual, 0)" not in text and "acq_en" not in text.replace(
        "Acquire, 0) {acq_en = false}", ""
    )
    for region in re.findall(r"\^bb\d+:\n(.*?)aie\.next_bd", text, re.S):
        assert len(re.findall("Acquire(?:GreaterEqual)?,", region)) == region.count("Release") == 1


MODULES = [attention, decoder, dequant, geglu, gemm, gemv, prefill, rms_norm, rope]


def _designs() -> list[tuple[str, Design]]:
    out = []
    for module in MODULES:
        more = ("int8", "int8") if module is gemm else ()
        out += [(g, module.design(g, *more)) for g in ("npu1", "npu2")]
        if module in (decoder, gemv):
            out += [(g, module.design(g, small=True)) for g in ("npu1", "npu2")]
    return out


def test_tiles_keep_addresses_and_kernels_are_linked() -> None:
    """Cores and memtiles ask for basic-sequential allocation and buffers have an address and no
    bank; kernels are declared in devices that call them, each with the design's object file; every
    core states its stack."""
    for _, design in _designs():
        lowered = lower(design)
        for device in re.split(r"\n  aie\.device", mlir(design))[1:]:
            tiles = re.findall(r"= aie\.tile\(\d+, (\d)\) \{(\S+ = \S+)", device)
            wanted = 'allocation_scheme = "basic-sequential",'
            assert tiles and all((text == wanted) == (row != "0") for row, text in tiles)
            assert "mem_bank" not in device
            assert device.count("aie.buffer(") == device.count(") {address = ")
            declared = re.findall(
                r"func\.func private @(\w+)\(.*\) attributes \{link_with = \"(\S+)\"\}", device
            )
            called = set(re.findall(r"func\.call @(\w+)\(", device))
            assert declared == [(name, design.object_file) for name, _ in declared]
            assert {name for name, _ in declared} == called
            assert device.count("func.func") == len(declared)
            stacks = re.findall(r"\n    \} \{(.*)\}", device)
            cores = device.count("= aie.core(")
            stack = f"stack_size = {design.least_stack or 2048} : i32"
            assert [s for s in stacks if "stack_size" in s] == [stack] * cores
        assert {name for name in lowered.kernels} <= set(re.findall(r"@(\w+)\(", mlir(design)))


def test_every_design_has_a_sequence_of_what_the_host_writes_once() -> None:
    """The words are those of setup_stream, and of the configuration where it has them; a port's
    token id is what every stream writes."""
    for generation, design in _designs():
        lowered = lower(design)
        text = print_mlir(lowered, operands=False)
        assert text.count("aie.runtime_sequence @setup(") == text.count("runtime_sequence") == 1
        head = text[text.index("aie.runtime_sequence @setup(") :].split("\n")[0]
        assert head.count("memref<1xi32>") == 16
        printed = {}
        for line in text.splitlines():
            if match := re.search(r"aiex\.npu\.(write32|maskwrite32) \{(.*)\}", line):
                n = {key: int(v) for key, v in re.findall(r"(\w+) = (\d+)", match[2])}
                printed[n["column"] << 25 | n["row"] << 20 | n["address"]] = (
                    n["value"], n.get("mask")
                )  # fmt: skip
        written = {
            o["address"]: (o["value"], o.get("mask")) for o in operations(setup_stream(lowered))
        }
        assert printed == written
        channels = {(p.tile, p.direction, p.channel) for p in lowered.ports}
        assert len(written) == len(channels) + 8 * len(lowered.shim_bds)
        assert all(v == (0xF00, 0x1F00) for v in written.values() if v[1] is not None)
        config = run_txn(read_configuration(serialise(lowered)).txn)
        for address, (value, _) in written.items():
            tile, offset = (address >> 25, 0), address & 0xFFFFF
            ours = config.get(tile, offset)
            assert ours == value or (not lowered.token_ports and ours == 0), generation
