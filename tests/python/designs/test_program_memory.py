"""Program memory and stack of cores: the estimates' parts, their limits, and what configurations
state."""

import functools
import itertools
import re
from pathlib import Path

import pytest

from npu.designs import (
    attention,
    decoder,
    dequant,
    geglu,
    gemm,
    gemm_catalogue,
    gemm_limits,
    gemv,
    prefill,
    rms_norm,
    rope,
)
from npu.designs.api import Design
from npu.designs.lowering import lower, mlir, program_memory, serialise, stack
from npu.errors import DesignError

WITHIN = {
    "decoder": decoder.design,
    "decoder, small": lambda generation: decoder.design(generation, small=True),
    "attention": attention.design,
    "geglu": geglu.design,
    "rms_norm": rms_norm.design,
    "rope": rope.design,
    "gemv": gemv.design,
    "gemv, small": lambda generation: gemv.design(generation, small=True),
    "gemv, one channel": lambda generation: gemv.design(generation, 16, 1),
    "gemv, few cores": lambda generation: gemv.design(
        generation, 8, 2 if generation == "npu1" else 1
    ),
}
GENERATIONS = ("npu1", "npu2")


def copying(generation="npu2", *, calls=("zero_f32",), over=False, own=False):
    """A core that calls kernels on what it sends."""
    design = Design("synthetic", generation, program_over=over)
    core = design.tile(0, 2)
    out = design.fifo("out", core, design.tile(0, 0), 1024, "float32")
    worker = design.worker(core)
    block = worker.buffer("block", "uint8", (5120,))
    tile = worker.buffer("tile", "bfloat16", (8192,))
    with worker.forever():
        result = worker.acquire(out)
        for name in calls:
            operands = (result, 1024) if name == "zero_f32" else (block, tile)
            worker.call(design.kernel(name), *operands)
        if own:
            worker.call(design.kernel("my_kernel", [("float32", (1024,))]), result)
        worker.release(out)
    return design


def program_of(design):
    """The bytes that the configuration states, by core."""
    text = serialise(lower(design)).split(b"\ntxn ")[0].decode()
    rows = [line.split() for line in text.splitlines() if line.startswith("resource ")]
    assert all(int(row[5]) == 16384 for row in rows if row[3] == "program")
    return {(int(r[1]), int(r[2])): int(r[4]) for r in rows if r[3] == "program"}


def test_kernels_count_once_and_calls_each_time():
    once = program_of(copying())[0, 2]
    twice = program_of(copying(calls=("zero_f32", "zero_f32")))[0, 2]
    another = program_of(copying(calls=("zero_f32", "dequant_q4nx")))[0, 2]
    tables = program_memory._tables()["fast", "npu2"][0]
    call = 30 + 2 * 24 + 6  # a jump, two slots to choose from, a constant
    assert twice - once == call
    assert another - once == tables["dequant_q4nx"][0] + 30 + 2 * 6
    # Start-up, a loop, two locks, a slot that advances.
    assert once == 640 + tables["zero_f32"][0] + 50 + 6 + 2 * 20 + 24 + call


def test_a_kernel_without_an_estimate_leaves_the_core_without_one():
    assert program_of(copying(own=True)) == {}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_program_that_is_too_large_is_refused(generation, monkeypatch):
    size = program_of(copying(generation))[0, 2]
    monkeypatch.setattr(program_memory, "PROGRAM_BYTES", size)
    lower(copying(generation))  # all of it may be used
    monkeypatch.setattr(program_memory, "PROGRAM_BYTES", size - 1)
    with pytest.raises(DesignError, match=rf"estimated at {size} B, program memory has {size - 1}"):
        lower(copying(generation))
    lower(copying(generation, over=True))


def test_a_design_that_is_over_is_refused_unless_it_says_so(monkeypatch):
    design = copying()
    monkeypatch.setattr(program_memory, "PROGRAM_BYTES", max(program_of(design).values()) - 1)
    with pytest.raises(DesignError, match="set the design's program_over"):
        lower(design)
    design.program_over = True
    lower(design)


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("name", WITHIN)
def test_other_operations_fit(name, generation):
    design = WITHIN[name](generation)
    sizes = program_of(design)
    assert not design.program_over
    assert sizes.keys() == {(w.tile.col, w.tile.row) for w in design.workers}
    assert max(sizes.values()) <= 16384


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_cores_of_the_decoder_fit(generation, small):
    design = decoder.design(generation, small)
    assert not design.program_over
    cores = lower(design).cores
    kept = "gemv_small_kept" if small else "gemv_kept"
    gemv_cores = [c for c in cores if kept in functions(c)]
    assert gemv_cores and max(c.program_bytes for c in gemv_cores) <= 16384
    for core in cores:
        assert program_memory.core_bytes(core, generation, "small") <= 16384


@pytest.mark.parametrize("generation", GENERATIONS)
def test_programs_of_prefill_call_kernels_of_their_kind_and_fit(generation):
    kernels = {
        "products": "begin_product|multiply|expand|finish|clear|scale|piece",
        "small_products": "begin_product|small_(multiply|expand|finish)|clear|scale|piece",
        "norm": "begin|constant|norm_.*",
        "geglu": "begin|geglu_.*",
        "rotation": "begin|constant|rotation_.*",
        "attention": "begin|query|place|scores|weigh|values|add|out",
    }
    design = prefill.design(generation)
    assert not design.program_over
    for core in lower(design).cores:
        assert core.overlays.keys() == kernels.keys()
        for name, program in core.overlays.items():
            called = {i.function for i in program if i.function}
            assert all(re.fullmatch(f"prefill_({kernels[name]})", k) for k in called), called
            assert program_memory.program_bytes(program, core, generation) <= 16384
            assert program_memory.program_bytes(program, core, generation, "small") <= 16384


def test_a_stack_is_the_deepest_kernels_and_the_programs_own(monkeypatch):
    depths = {"zero_f32": 96, "dequant_q4nx": 320, "gemv_setup": 32, "gemv_block": 192}
    monkeypatch.setattr(stack, "kernel_stacks", lambda generation: depths)
    own = 64 + 4 * (1 + 1)  # a slot that advances, a loop
    (one,) = lower(copying()).cores
    assert stack.core_stack(one, "npu2") == own + 96
    (two,) = lower(copying(calls=("zero_f32", "dequant_q4nx"))).cores
    assert stack.core_stack(two, "npu2") == own + 320
    (core,) = lower(copying(own=True)).cores
    assert stack.core_stack(core, "npu2") is None
    # Three rotating buffers, five loops in each other, one operand beyond eight.
    cores = lower(gemv.design("npu2")).cores
    assert stack.core_stack(cores[0], "npu2") == 64 + 4 * (3 + 5 + 1) + 192


def test_a_stack_that_is_too_small_is_refused(monkeypatch):
    """At least 2,048 B and the estimate, to a vector; more if the worker says so; a design that is
    only simulated may say less and has no MLIR then."""
    design = copying(calls=("dequant_q4nx",))
    worker = design.workers[0]
    assert lower(design).cores[0].stack == stack.LEAST_BYTES == 2048
    worker.stack_bytes = 2047
    with pytest.raises(DesignError, match="gives its stack 2047 B, it gets at least 2048"):
        lower(design)
    design.room_over = True
    assert lower(design).cores[0].stack == 2047
    with pytest.raises(DesignError, match=r"2047 B of stack and .* can only be simulated"):
        mlir(design)
    design.room_over, worker.stack_bytes = False, 3000
    assert lower(design).cores[0].stack == 3000
    monkeypatch.setattr(stack, "kernel_stacks", lambda _: {"dequant_q4nx": 4000})
    with pytest.raises(DesignError, match=r"stack 3000 B, it gets at least 4096, 40\d\d B are"):
        lower(design)
    worker.stack_bytes = None
    assert lower(design).cores[0].stack == 4096


STACKS = {
    module.__name__.rsplit(".", 1)[1]: module.design
    for module in (attention, decoder, dequant, geglu, gemv, prefill, rms_norm, rope)
} | {
    "decoder, small": WITHIN["decoder, small"],
    "gemv, small": WITHIN["gemv, small"],
    **{
        f"dequant, {format}": functools.partial(dequant.design, format=format)
        for format in dequant.FORMATS[1:]
    },
}


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("name", STACKS)
def test_stacks_suffice(name, generation):
    design = STACKS[name](generation)
    assert not design.room_over
    lowered = lower(design)
    for core in lowered.cores:
        assert 0 < stack.core_stack(core, generation) <= core.stack
        begin, size = stack.data_section(lowered, core)
        least = 1280 if (name, generation) == ("prefill", "npu2") else 2048
        assert core.stack >= least and size >= 256 and begin + size == 65536
        buffers = sorted((m.address, m.address + m.bytes) for m in lowered.memories[core.tile])
        ends = [core.stack, *(end for _, end in buffers)]
        assert all(end <= start for end, (start, _) in zip(ends, buffers, strict=False))
        assert ends[-1] <= begin


def test_published_tiles_that_leave_no_room_are_only_simulated():
    """64 x 232 x 64 leaves 2 KiB and nothing for a data section; 64 B less of A are enough."""
    point = gemm.design_point("npu2", "int8", "int8", tile=(64, 232, 64), accumulate="narrow")
    design = gemm.design("npu2", "int8", "int8", tile=(64, 232, 64), accumulate="narrow")
    assert design.room_over and not gemm_limits.leaves_room(point) and gemm_limits.fits_core(point)
    assert {core.stack for core in lower(design).cores} == {gemm_limits.SIMULATED_STACK}
    with pytest.raises(DesignError, match=r"960 B of stack and .* can only be simulated"):
        gemm.mlir("npu2", "int8", "int8", tile=(64, 232, 64), accumulate="narrow")
    assert not gemm.design(
        "npu2", "int8", "int8", tile=(64, 224, 64), accumulate="narrow"
    ).room_over


def test_every_tile_of_the_package_leaves_room():
    """Exactly, as gemm_limits says: the tightest one by a data section of 256 B."""
    points = {
        point
        for (a, c), sums in itertools.product(gemm.BLOCK_PAIRS, gemm.BLOCK_ACCUMULATE)
        if sums != "bfloat16" or c == "bfp16"
        for point in gemm_catalogue.candidates("npu2", a, c, "blocks", accumulate=sums)
    }
    points |= {
        point
        for (a, c), layout, sums, bf16 in itertools.product(
            gemm.PAIRS, gemm_catalogue.VALUE_LAYOUTS, gemm.ACCUMULATE, gemm.BF16
        )
        for generation in GENERATIONS
        if bf16 == "native" or (a == "bfloat16" and generation == "npu2")
        for point in gemm_catalogue.candidates(generation, a, c, layout, accumulate=sums, bf16=bf16)
    }
    assert len(points) > 100 and all(gemm_limits.leaves_room(point) for point in points)
    assert not any(map(gemm_limits.leaves_room, [
        gemm.design_point("npu2", "int8", "int16", tile=(176, 32, 128), kernel="pipelined",
                          accumulate="narrow")
    ]))  # fmt: skip


PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "program_memory.md"
# Cores of the page's table, by a kernel that they call.
CORES = {
    "prefill": (prefill, "prefill_begin"),
    "decoder, GEMV": (decoder, "gemv_kept"),
    "gemv": (gemv, "gemv_block"),
    "decoder, vector core": (decoder, "vector_input"),
    "decoder, attention: scores": (decoder, "attention_scores"),
    "decoder, attention: values": (decoder, "values_chunk"),
    "rope": (rope, "rope_rotate"),
}


@pytest.mark.parametrize("title", CORES)
def test_the_documentation_has_these_figures(title):
    row = next(r for r in PAGE.read_text().splitlines() if r.startswith(f"| {title} |"))
    stated = [int(n) for n in re.findall(r"[\d,]+", "".join(row.split("|")[2:4]).replace(",", ""))]
    module, kernel = CORES[title]
    now = []
    for form in ("fast", "small"):
        for generation in GENERATIONS:
            cores = [c for c in lower(module.design(generation)).cores if kernel in functions(c)]
            now.append(max(program_memory.core_bytes(c, generation, form) for c in cores))
    assert stated == pytest.approx(now, rel=0.1)


def test_the_page_of_prefill_has_the_sizes_of_its_programs():
    table = (PAGE.parents[1] / "prefill.md").read_text().split("| overlay | steps |")[1]
    (core, *_) = lower(prefill.design("npu2")).cores
    for name, program in core.overlays.items():
        row = next(r for r in table.splitlines() if r.startswith(f"| {name} |"))
        stated = [int(cell.replace(",", "")) for cell in row.split("|")[3:5]]
        assert stated == [
            program_memory.program_bytes(program, core, "npu2", form) for form in ("fast", "small")
        ]


def functions(core):
    return {instruction.function for program in core.programs for instruction in program}
