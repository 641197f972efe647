"""The GEMM designs: what is in the configuration, that tiles arrive in the kernels' layout and C
leaves row-major (from the BD registers alone), that no buffers overlap, and that it is quick.
"""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from designs_reference import Bd, chains, read_configuration, run_txn, tile_kind
from hypothesis import given, settings
from hypothesis import strategies as st

from npu.designs import gemm
from npu.designs.hardware import STACK_BYTES
from npu.designs.lowering import lower
from npu.errors import DesignError

CASES = [(g, *p) for g in ("npu1", "npu2") for p in gemm.PAIRS]
MMUL = {("npu1", 2): (4, 8, 4), ("npu1", 1): (4, 8, 8), ("npu2", 2): (8, 8, 8), ("npu2", 1): (8, 8, 8)}  # fmt: skip # noqa: E501
BYTES = {"bfloat16": 2, "float32": 4, "int8": 1, "int32": 4}


def read_object(bd: Bd, memory: np.ndarray) -> np.ndarray:
    """The bytes an MM2S BD puts on the stream."""
    words = np.array(bd.addresses())
    return memory[(words[:, None] + np.arange(4)).ravel()]


@pytest.mark.parametrize(("generation", "a_dtype", "c_dtype"), CASES)
def test_configuration(generation: str, a_dtype: str, c_dtype: str) -> None:
    config = read_configuration(gemm.configuration(generation, a_dtype, c_dtype))
    columns = {"npu1": 4, "npu2": 8}[generation]
    m, k, n = (64, 64, 64) if a_dtype == "bfloat16" else (64, 128, 64)
    r, s, t = MMUL[generation, BYTES[a_dtype]]
    assert config.params == {
        "tile_m": m, "tile_k": k, "tile_n": n, "rows": 4, "columns": columns,
        "a_bytes": BYTES[a_dtype], "c_bytes": BYTES[c_dtype],
        "a_columns_stride": columns // 4, "r": r, "s": s, "t": t,
    }  # fmt: skip
    assert config.head["npu-config"] == "1" and config.head["generation"] == generation
    assert len(config.head["source"]) == 64
    assert set(config.ports) == {f"A{i}" for i in range(4)} | {
        f"{x}{c}" for x in "BC" for c in range(columns)
    }
    cores = {(c, r) for c in range(columns) for r in range(2, 6)}
    assert set(config.cores) == cores == set(config.rtp_locks)
    assert set(config.rtps) == {(x, core) for x in ("k_tiles", "tiles") for core in cores}
    assert all(used <= limit for used, limit in config.resources.values())
    for core in cores:
        lines = config.cores[core]
        tiles, k_tiles = config.rtps["tiles", core], config.rtps["k_tiles", core]
        assert lines[:2] == ["loop forever", f"acquire_eq {config.rtp_locks[core]} 1"]
        assert lines[2] == f"loop rtp:{tiles}"
        assert f"loop rtp:{k_tiles}" in lines
        calls = [line.split()[1] for line in lines if line.startswith("call")]
        assert (
            calls
            == {
                "gemm_bf16_f32": ["zero_f32", "matmul_bf16_f32"],
                "gemm_bf16_bf16": ["zero_f32", "matmul_bf16_f32", "convert_f32_bf16"],
                "gemm_i8_i32": ["zero_i32", "matmul_i8_i32"],
            }[config.head["name"]]
        )
        matmul = next(line for line in lines if "matmul" in line)
        assert matmul.split()[-3:] == [f"#{m}", f"#{k}", f"#{n}"]


@pytest.mark.parametrize(("generation", "a_dtype", "c_dtype"), CASES)
def test_layouts(generation: str, a_dtype: str, c_dtype: str) -> None:
    """A and B leave the memtile as [m/r][k/s][r][s] and [k/s][n/t][s][t], C as 4m x n."""
    m, k, n = gemm.DEFAULT_TILE[a_dtype]
    r, s, t = MMUL[generation, BYTES[a_dtype]]
    a_size, c_size = BYTES[a_dtype], BYTES[c_dtype]
    found = chains(
        run_txn(read_configuration(gemm.configuration(generation, a_dtype, c_dtype)).txn)
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
            assert len(bds) == 8
            for slot in range(2):
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
        result = last[3] if c_dtype == "bfloat16" else last[4]
        assert result == f"@{c[0].base}"
        for chain in (a, b):  # the core waits on what the DMA releases and the other way round
            assert f"acquire_ge {chain[0].release[0]} 1" in lines
            assert f"release {chain[0].acquire[0]} 1" in lines
        assert f"acquire_ge {c[0].release[0]} 1" in lines
        assert f"release {c[0].acquire[0]} 1" in lines


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(CASES), st.integers(1, 10), st.integers(1, 20), st.integers(1, 10))
def test_no_overlap_for_any_tile(case: tuple[str, str, str], i: int, j: int, h: int) -> None:
    """Whatever tile is accepted, buffers, RTPs and stack are disjoint and inside their memories."""
    r, s, t = MMUL[case[0], BYTES[case[1]]]
    tile = (2 * r * i, s * j, 2 * t * h)
    m, k, n = tile
    need = 2 * (m * k + k * n) * BYTES[case[1]] + m * n * BYTES[case[2]]
    need += m * n * 4 if case[2] == "bfloat16" else 0
    try:
        lowered = lower(gemm.design(*case, tile=tile))
    except DesignError as error:
        assert need + 8 + STACK_BYTES > 65536 - 7 * 64 or "memtile" in str(error), error
        return
    for at, memories in lowered.memories.items():
        spans = sorted((x.address, x.address + x.bytes) for x in memories)
        if at.kind == "core":
            spans.insert(0, (0, STACK_BYTES))
        assert spans[0][0] >= 0 and spans[-1][1] <= at.limits.memory_bytes
        assert all(x[1] <= y[0] for x, y in pairwise(spans))


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


def test_lowering_is_quick() -> None:
    """Far below a second for both generations, or starting up would be felt."""
    start = time.perf_counter()
    for generation in ("npu1", "npu2"):
        lower(gemm.design(generation, "bfloat16", "float32"))
    assert time.perf_counter() - start < 1.0
