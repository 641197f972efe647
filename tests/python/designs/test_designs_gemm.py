"""The GEMM designs: what is in the configuration, that tiles arrive in the kernels' layout and C
leaves row-major (from the BD registers alone), that no buffers overlap, and that it is quick.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from call_count import count_calls
from designs_reference import Bd, chains, read_configuration, run_txn, tile_kind
from hypothesis import given, settings
from hypothesis import strategies as st

from npu.designs import gemm
from npu.designs.hardware import STACK_BYTES
from npu.designs.lowering import lower
from npu.errors import DesignError

CASES = [(g, *p) for g in ("npu1", "npu2") for p in gemm.PAIRS]
MMUL = {
    ("npu1", "bfloat16"): (4, 8, 4), ("npu1", "int8"): (4, 8, 8), ("npu1", "int16"): (4, 4, 4),
    ("npu2", "bfloat16"): (8, 8, 8), ("npu2", "int8"): (8, 8, 8), ("npu2", "int16"): (4, 4, 8),
}  # fmt: skip
BYTES = {"bfloat16": 2, "float32": 4, "int8": 1, "int16": 2, "int32": 4}
TYPES = ["float32", "bfloat16", "int8", "int16", "int32"]
CALLS = {  # name of the configuration -> kernels in program order
    "gemm_bf16_f32": ["zero_f32", "matmul_bf16_f32"],
    "gemm_bf16_bf16": ["zero_f32", "matmul_bf16_f32", "convert_f32_bf16"],
    "gemm_bf16_bf16_narrow": ["zero_bf16", "matmul_bf16_bf16"],
    "gemm_bf16_f32_bfp16_bcol": ["zero_f32", "matmul_bf16bfp16_f32_bcol"],
    "gemm_i8_i32": ["zero_i32", "matmul_i8_i32"],
    "gemm_i8_i32_bcol": ["zero_i32", "matmul_i8_i32_bcol"],
    "gemm_i8_i16": ["zero_i32", "matmul_i8_i32", "narrow_i32_i16"],
    "gemm_i8_i8": ["zero_i32", "matmul_i8_i32", "narrow_i32_i8"],
    "gemm_i8_i8_bcol": ["zero_i32", "matmul_i8_i32_bcol", "narrow_i32_i8"],
    "gemm_i8_i8_bcol_narrow": ["zero_i8", "matmul_i8_i8_bcol"],
    "gemm_i8_i16_narrow": ["zero_i16", "matmul_i8_i16"],
    "gemm_i16_i32": ["zero_i32", "matmul_i16_i32"],
}
# Tiles of the paper's tables with their k_mt (section 5.2.2) and L2 total in KiB (0: not given).
PUBLISHED = [
    ("npu1", "int8", "int8", (64, 232, 64), 232, 0),
    ("npu1", "int8", "int32", (48, 280, 48), 280, 0),
    ("npu1", "int8", "int8", (112, 112, 112), 448, 980),
    ("npu1", "int8", "int8", (112, 104, 128), 416, 1004),
    ("npu1", "int8", "int16", (96, 112, 96), 448, 960),
    ("npu1", "int8", "int32", (80, 88, 96), 352, 964),
    ("npu1", "bfloat16", "bfloat16", (96, 56, 96), 224, 960),
    ("npu2", "int8", "int8", (144, 72, 144), 432, 2106),
    ("npu2", "int8", "int16", (128, 72, 112), 432, 2084),
    ("npu2", "int8", "int32", (96, 64, 96), 384, 2016),
    ("npu2", "bfloat16", "bfloat16", (112, 48, 96), 384, 2496),
    ("npu2", "bfloat16", "bfloat16", (48, 152, 48), 152, 0),
]


def read_object(bd: Bd, memory: np.ndarray) -> np.ndarray:
    """The bytes an MM2S BD puts on the stream."""
    words = np.array(bd.addresses())
    return memory[(words[:, None] + np.arange(4)).ravel()]


@pytest.mark.parametrize(("generation", "a_dtype", "c_dtype"), CASES)
def test_configuration(generation: str, a_dtype: str, c_dtype: str) -> None:
    config = read_configuration(gemm.configuration(generation, a_dtype, c_dtype))
    columns = {"npu1": 4, "npu2": 8}[generation]
    m, k, n = (64, 128, 64) if a_dtype == "int8" else (64, 64, 64)
    assert config.params == {
        "tile_m": m, "tile_k": k, "tile_n": n, "rows": 4, "columns": columns,
        "k_mt": 2 * k, "b_layout": 0, "b_pairs": 0, "b_rows": k,
        "a_type": TYPES.index(a_dtype), "b_type": TYPES.index(a_dtype),
        "c_type": TYPES.index(c_dtype),
    }  # fmt: skip
    assert config.head["npu-config"] == "1" and config.head["generation"] == generation
    assert len(config.head["source"]) == 64
    assert set(config.ports) == {f"A{i}" for i in range(4)} | {
        f"{x}{c}" for x in "BC" for c in range(columns)
    }
    cores = {(c, r) for c in range(columns) for r in range(2, 6)}
    assert set(config.cores) == cores == set(config.rtp_locks)
    words = ["k_tiles", "tiles"] + ["shift"] * (c_dtype in ("int8", "int16"))
    assert set(config.rtps) == {(x, core) for x in words for core in cores}
    assert all(used <= limit for used, limit in config.resources.values())
    for core in cores:
        lines = config.cores[core]
        tiles, k_tiles = config.rtps["tiles", core], config.rtps["k_tiles", core]
        assert lines[:2] == ["loop forever", f"acquire_eq {config.rtp_locks[core]} 1"]
        assert lines[2] == f"loop rtp:{tiles}"
        assert f"loop rtp:{k_tiles}" in lines
        calls = [line.split()[1] for line in lines if line.startswith("call")]
        assert calls == CALLS[config.head["name"]]
        matmul = next(line for line in lines if "matmul" in line)
        assert matmul.split()[-3:] == [f"#{m}", f"#{k}", f"#{n}"]
        if "narrow" in calls[-1]:
            narrow = next(line for line in lines if "narrow" in line)
            assert narrow.split()[-2:] == [f"#{m * n}", f"${config.rtps['shift', core]}"]


@pytest.mark.parametrize(("options", "name"), [
    ({"c_dtype": "int8", "accumulate": "narrow", "b_layout": "col"}, "gemm_i8_i8_bcol_narrow"),
    ({"c_dtype": "int16", "accumulate": "narrow"}, "gemm_i8_i16_narrow"),
    ({"c_dtype": "int8", "b_layout": "col"}, "gemm_i8_i8_bcol"),
    ({"c_dtype": "int32", "accumulate": "narrow", "b_layout": "col"}, "gemm_i8_i32_bcol"),
    ({"a_dtype": "bfloat16", "c_dtype": "bfloat16", "accumulate": "narrow"},
     "gemm_bf16_bf16_narrow"),
    ({"a_dtype": "bfloat16", "c_dtype": "float32", "bf16": "bfp16", "b_layout": "col"},
     "gemm_bf16_f32_bfp16_bcol"),
])  # fmt: skip
def test_kernels_of_variants(options: dict[str, str], name: str) -> None:
    """Narrow sums call the kernel of C's type, with the shift RTP as its last operand."""
    generation = "npu2" if "bf16" in options else "npu1"
    config = read_configuration(gemm.configuration(generation, **{"a_dtype": "int8", **options}))
    assert config.head["name"] == name
    for core, lines in config.cores.items():
        calls = [line.split() for line in lines if line.startswith("call")]
        assert [call[1] for call in calls] == CALLS[name]
        if ("shift", core) in config.rtps:
            assert calls[-1][-1] == f"${config.rtps['shift', core]}"
        else:
            assert name not in ("gemm_i8_i8_bcol_narrow", "gemm_i8_i16_narrow", "gemm_i8_i8_bcol")


@pytest.mark.parametrize(("generation", "a_dtype", "c_dtype", "tile", "k_mt", "l2_kib"), PUBLISHED)
def test_published_tiles(
    generation: str, a_dtype: str, c_dtype: str, tile: tuple[int, int, int], k_mt: int, l2_kib: int
) -> None:
    """The paper's tiles fit, and use the memory that its tables say."""
    lowered = lower(
        gemm.design(generation, a_dtype, c_dtype, tile=tile, k_mt=k_mt, b_layout="col",
                    accumulate="narrow")
    )  # fmt: skip
    m, k, n = tile
    size = 2 * (m * k + k * n) * BYTES[a_dtype] + m * n * BYTES[c_dtype]
    for at, memories in lowered.memories.items():
        if at.kind == "core":
            assert sum(x.bytes for x in memories if not x.name.startswith("rtp")) == size
    if l2_kib:
        l2 = sum(x.bytes for at, ms in lowered.memories.items() if at.kind == "mem" for x in ms)
        assert round(l2 / 1024) == l2_kib


@pytest.mark.parametrize(("generation", "a_dtype", "c_dtype"), CASES)
def test_layouts(generation: str, a_dtype: str, c_dtype: str) -> None:
    """A and B leave the memtile as [m/r][k/s][r][s] and [k/s][n/t][s][t], C as 4m x n."""
    m, k, n = gemm.DEFAULT_TILE[a_dtype]
    r, s, t = MMUL[generation, a_dtype]
    a_size, c_size = BYTES[a_dtype], BYTES[c_dtype]
    found = chains(
        run_txn(read_configuration(gemm.configuration(generation, a_dtype, c_dtype, k_mt=k)).txn)
    )
    rng = np.random.default_rng(1)
    seen = set()
    for (tile, direction, _), bds in found.items():
        if tile[1] != 1 or direction != "mm2s":
            continue
        memory = rng.integers(0, 256, 1 << 19, dtype=np.uint8)
        if len(bds) == 2 and (tile, "A") not in seen and tile[0] % (found_stride(generation)) == 0:
            seen.add((tile, "A"))
            for bd in bds:
                x = memory[bd.base : bd.base + m * k * a_size].reshape(m // r, r, k // s, s, a_size)
                np.testing.assert_array_equal(
                    read_object(bd, memory), x.transpose(0, 2, 1, 3, 4).ravel()
                )
        elif len(bds) == 2:
            seen.add((tile, "B"))
            for bd in bds:
                x = memory[bd.base : bd.base + k * n * a_size].reshape(k // s, s, n // t, t, a_size)
                np.testing.assert_array_equal(
                    read_object(bd, memory), x.transpose(0, 2, 1, 3, 4).ravel()
                )
        else:
            seen.add((tile, "C"))
            assert len(bds) == 4
            for slot in range(1):
                base = bds[4 * slot].base
                x = memory[base : base + 4 * m * n * c_size]
                x = x.reshape(4 * m // r, n // t, r, t, c_size).transpose(0, 2, 1, 3, 4).ravel()
                parts = [read_object(bd, memory) for bd in bds[4 * slot : 4 * slot + 4]]
                np.testing.assert_array_equal(np.concatenate(parts), x)
    assert {kind for _, kind in seen} == {"A", "B", "C"}


def found_stride(generation: str) -> int:
    return {"npu1": 1, "npu2": 2}[generation]


@pytest.mark.parametrize(("generation", "a_dtype", "c_dtype"), CASES)
def test_core_chains_and_programs_agree(generation: str, a_dtype: str, c_dtype: str) -> None:
    """A core's program names the buffers and locks that its DMA fills and drains."""
    config = read_configuration(gemm.configuration(generation, a_dtype, c_dtype))
    found = chains(run_txn(config.txn))
    for core, lines in config.cores.items():
        a, b = found[core, "s2mm", 0], found[core, "s2mm", 1]
        c = found[core, "mm2s", 0]
        matmul = next(line.split() for line in lines if "matmul" in line)
        assert matmul[2] == f"@{a[0].base}|{a[1].base}%0"
        assert matmul[3] == f"@{b[0].base}|{b[1].base}%1"
        last = next(line.split() for line in reversed(lines) if line.startswith("call"))
        result = last[4] if last[1].startswith("matmul") else last[3]
        assert result == f"@{c[0].base}"
        for chain in (a, b):  # the core waits on what the DMA releases and the other way round
            assert f"acquire_ge {chain[0].release[0]} 1" in lines
            assert f"release {chain[0].acquire[0]} 1" in lines
        assert f"acquire_ge {c[0].release[0]} 1" in lines
        assert f"release {c[0].acquire[0]} 1" in lines


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(CASES),
    st.tuples(st.integers(1, 10), st.integers(1, 20), st.integers(1, 10)),
    st.integers(1, 4),
    st.fixed_dictionaries({
        "b_layout": st.sampled_from(gemm.B_LAYOUTS),
        "c_buffers": st.integers(1, 2),
        "c_l2_buffers": st.integers(1, 2),
        "accumulate": st.sampled_from(gemm.ACCUMULATE),
        "cores": st.sampled_from([None, (1, 1), (2, 3)]),
    }),
)  # fmt: skip
@pytest.mark.slow
def test_no_overlap_for_any_tile(
    case: tuple[str, str, str], factors: tuple[int, int, int], tiles: int, options: dict
) -> None:
    """Whatever tile is accepted, buffers, RTPs and stack are disjoint and inside their memories;
    what is refused exceeds a core or a memtile."""
    r, s, t = MMUL[case[0], case[1]]
    m, k, n = tile = (2 * r * factors[0], s * factors[1], 2 * t * factors[2])
    c_bytes = BYTES[case[2]]
    core = 2 * (m * k + k * n) * BYTES[case[1]] + options["c_buffers"] * m * n * c_bytes
    core += m * n * 4 if c_bytes < 4 and options["accumulate"] == "wide" else 0
    try:
        lowered = lower(gemm.design(*case, tile=tile, k_mt=tiles * k, **options))
    except DesignError as error:
        # 64 B of RTPs lie in the 1 KiB kept for the stack; buffers are aligned to 64 B.
        assert core + STACK_BYTES > 65536 - 7 * 64 or "memtile" in str(error), error
        return
    stacks = {c.tile: c.stack for c in lowered.cores}
    for at, memories in lowered.memories.items():
        spans = sorted((x.address, x.address + x.bytes) for x in memories)
        if at.kind == "core":
            spans.insert(0, (0, stacks[at]))
        assert spans[0][0] >= 0 and spans[-1][1] <= at.limits.memory_bytes
        assert all(x[1] <= y[0] for x, y in pairwise(spans))


def test_a_core_filled_to_the_last_byte() -> None:
    """Matrices of exactly 63 KiB fit, 2 x 32 x 496 x 2 + 32 x 32 B; one more k block does not."""
    gemm.configuration("npu1", "int8", "int8", tile=(32, 496, 32), accumulate="narrow")
    with pytest.raises(
        DesignError,
        match=r"65536 bytes of L1; a core has 64512: use m <= 24, or k <= 496, or n <= 16",
    ):
        gemm.configuration("npu1", "int8", "int8", tile=(32, 504, 32), accumulate="narrow")


@pytest.mark.parametrize(("options", "words"), [
    ({"k_mt": 65}, "k_mt = 65: it must be a multiple of the tile's k = 64"),
    ({"k_mt": 0}, "k_mt = 0"),
    ({"b_layout": "column"}, "b_layout is 'column'"),
    ({"c_buffers": 3}, "c_buffers is 3"),
    ({"bf16": "fp8"}, "bf16 is 'fp8'"),
    ({"accumulate": "exact"}, "accumulate is 'exact'"),
    ({"cores": 1}, "cores is 1; it must be (rows, columns)"),
    ({"cores": (5, 1)}, "cores = (5, 1): npu2 has 4 x 8"),
    ({"cores": (1, 0)}, "cores = (1, 0): npu2 has 4 x 8"),
    ({"cores": (1, 1.0)}, "cores is 1.0; it must be a whole number"),
    ({"cores": (4, 4), "b_pairs": True}, "with square or b_pairs: those use all of them"),
    ({"k_mt": 2112}, "k_mt = 2112: a shim BD addresses runs of at most 1023 words"),
])  # fmt: skip
def test_options_are_checked(options: dict, words: str) -> None:
    with pytest.raises(DesignError) as caught:
        gemm.design("npu2", "bfloat16", "float32", **options)
    assert words in str(caught.value)


def test_ping_and_pong_in_different_banks() -> None:
    for case in CASES:
        lowered = lower(gemm.design(*case))
        for pool in lowered.pools:
            limits = pool.tile.limits
            size = limits.memory_bytes // limits.banks
            banks = [memory.address // size for memory in pool.slots]
            assert len(set(banks)) == len(banks), pool.name


def test_only_known_registers_are_written() -> None:
    """Locks, BDs, channels, switch, shim mux and core control; no data memory, no shim DMA."""
    registers = run_txn(read_configuration(gemm.configuration("npu2", "int8", "int32")).txn)
    allowed = {
        "shim": [(0x3F000, 0x400), (0x1F000, 8)],
        "mem": [(0xA0000, 0x600), (0xA0600, 0x60), (0xC0000, 0x400), (0xB0000, 0x400)],
        "core": [
            (0x1D000, 0x200), (0x1DE00, 0x20), (0x1F000, 0x100), (0x32000, 4), (0x3F000, 0x400)
        ],
    }  # fmt: skip
    for tile, offsets in registers.tiles.items():
        for offset in offsets:
            assert any(a <= offset < a + size for a, size in allowed[tile_kind(tile)]), hex(offset)


@pytest.mark.parametrize(("generation", "cores"), [("npu1", 16), ("npu2", 32)])
def test_lowering_takes_few_calls(generation: str, cores: int) -> None:
    """What keeps starting up short: the work grows with the number of cores and no faster. 4,000 to
    4,700 calls per core are a quarter of a second for the whole array."""
    calls, _ = count_calls(lambda: lower(gemm.design(generation, "bfloat16", "float32")))
    assert calls < 10000 * cores
