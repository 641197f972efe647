"""Generated expansion of 8-bit blocks: bit for bit the C++ kernel's results in silicon arithmetic,
on XDNA2 the formula's as well, for scales from the smallest to the largest that this holds for,
with the cycles that docs/kernels.md publishes; wrong exponents show.
"""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npu
from npu.errors import ArgumentError, ShapeError
from npu.vliw import dequant_q8, vector_kernels
from npu.vliw.aie2p import AIE2P
from npu.vliw.program import Op, Program
from npu.vliw.vector_kernels import LoopSchedule

BF16 = np.dtype(ml_dtypes.bfloat16)
DEVICES = ("npu1", "npu2")
# Of each loop.
TURNS = {"npu1": (24, 51), "npu2": (106,)}  # the fullest slots need 24 and 48; 76


def schedule(device: str = "npu2", blocks: int = 1) -> LoopSchedule:
    return vector_kernels.schedule(device, "dequant_q8", blocks)


@settings(deadline=None, max_examples=6)
@given(device=st.sampled_from(DEVICES), blocks=st.integers(1, 2), seed=st.integers(0, 999))
def test_the_cpp_kernels_bits(device: str, blocks: int, seed: int) -> None:
    result, expected, run = schedule(device, blocks).compared(seed)
    np.testing.assert_array_equal(result, expected)
    assert run.stalls == 0


def formula(scales: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """d code, rounded to fp32 and then to bf16, of scales (8, 32) and codes (128, 32)."""
    exact = np.repeat(scales, 16, axis=0).astype(np.float64) * codes  # 32 bits
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(exact.T.astype(np.float32).astype(BF16))


def block_of(scales: np.ndarray, codes: np.ndarray) -> np.ndarray:
    return np.concatenate([scales.reshape(-1).view(np.uint8), codes.reshape(-1).view(np.uint8)])


def expanded(device: str, scales: np.ndarray, codes: np.ndarray) -> np.ndarray:
    result, _ = schedule(device).run(block_of(scales, codes))
    return result.view(BF16).reshape(32, 128)


# What is left of a significand after its first 8 bits, and after the next: ties, one more and one
# less than these, all ones.
EDGES = [0, 1, 0x7FFFFF, 0x7FFF, 0x8000, 0x8001, 0x807F, 0x8080, 0x8081, 0x18000, 0x17F80, 0x7F8000]


def operands(low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Scales of 24 bits from 2^low on, edges and zeros among them, of both signs, and all codes.
    Below 2^-110 only scales of 16 bits."""
    rng = np.random.default_rng(abs(low))
    bits = rng.integers(0, 1 << 23, (8, 32))
    bits[:4] = rng.choice(EDGES, (4, 32))
    if low < -110:
        low, bits = max(low, -118), bits & ~0xFF
    bits |= rng.integers(low + 127, high + 127, (8, 32)) << 23
    scales = bits.astype(np.uint32).view(np.float32) * rng.choice([-1, 1], (8, 32))
    scales[0, :2] = 0, -0.0
    codes = rng.permutation(np.arange(128 * 32) % 256 - 128).astype(np.int8).reshape(128, 32)
    return scales.astype(np.float32), codes


@pytest.mark.parametrize("exponents", [(-110, -90), (-130, 0), (-4, 4), (100, 127)])
def test_the_formula(exponents: tuple[int, int]) -> None:
    """On XDNA2, where a product is the nearest fp32."""
    scales, codes = operands(*exponents)
    found, expected = expanded("npu2", scales, codes), formula(scales, codes)
    np.testing.assert_array_equal(found.view(np.uint16) << 1, expected.view(np.uint16) << 1)
    np.testing.assert_array_equal(found.astype(float), expected.astype(float))


@pytest.mark.parametrize("exponents", [(-100, -80), (-4, 4), (100, 119)])
def test_the_cpp_kernel_at_edges(exponents: tuple[int, int]) -> None:
    """On XDNA1, whose products lose bits that the formula keeps: those of 2^-100 to 2^126, outside
    of which the C++ kernel takes one FMA."""
    scales, codes = operands(*exponents)
    with npu.device("emu:npu1", arithmetic="silicon"):
        expected = npu.dequantize((block_of(scales, codes)[None], (32, 128), "q8"))
    found = expanded("npu1", scales, codes)
    np.testing.assert_array_equal(found.view(np.uint16), np.asarray(expected).view(np.uint16))


@pytest.mark.parametrize("device", DEVICES)
def test_infinite_scales_give_no_number(device: str) -> None:
    scales = np.full((8, 32), np.inf, np.float32)
    assert np.isnan(expanded(device, scales, np.ones((128, 32), np.int8)).astype(float)).all()


@pytest.mark.parametrize("device", DEVICES)
def test_cycles(device: str) -> None:
    found, turns = vector_kernels.cycles(device, "dequant_q8"), TURNS[device]
    # Between two loops a pointer goes back over the tile, in steps that an immediate can hold.
    per_block, steps = {"npu1": (16, 3), "npu2": (8, 0)}[device]
    assert found.block == per_block * sum(turns) + steps and 0 < found.outside < 140
    figures = schedule(device).document()
    assert [loop["bundles"] for loop in figures["loops"]] == [2 * turn for turn in turns]
    assert figures["cycles"] == found.total()
    assert figures["stalls"] == 0 and figures["code_bytes"] < 4500
    # 32 rows of 128 columns leave 32 bytes at a time; 4096 codes in products of 64, or in as many
    # lanes as XDNA1 has, once as codes; d in parts for 16 rows of a group.
    issued = schedule(device).simulated().issued
    names = ("vst.w", "vmul.f", "vmac.f", "vmsc.f", "vst.conv.bf16.fp32")
    expected = {"npu1": [256, 256, 512, 32, 256], "npu2": [256, 64, 0, 0, 0]}[device]
    assert [issued[name] for name in names] == expected


def test_other_sizes() -> None:
    with pytest.raises(ShapeError, match="blocks is 0"):
        dequant_q8.regions(AIE2P, 0)
    with pytest.raises(ArgumentError, match="no kernel dequant_bf16 on npu1; there is"):
        vector_kernels.schedule("npu1", "dequant_bf16")


def replaced(program: Program, victim: Op, *operands: str) -> Program:
    """The program with other first operands of one operation."""
    other = dataclasses.replace(victim, operands=(*operands, *victim.operands[len(operands) :]))
    bundles = tuple(
        dataclasses.replace(b, ops=tuple(other if op is victim else op for op in b.ops))
        for b in program.bundles
    )
    return dataclasses.replace(program, bundles=bundles)


def test_wrong_exponents() -> None:
    """Of one register of codes, those of the identity's."""
    program = schedule().program
    moves = [op for b in program.bundles for op in b.ops if op.operation.key == "mov.EH.R"]
    used = next(str(o) for b in program.bundles for op in b.ops if op.operation.key == "vmul.f"
        for o in op.operands[1:2])  # fmt: skip
    victim = next(op for op in moves if op.operands[0] == f"el{used.removeprefix('ex')}")
    one = next(op for op in moves if op.operands[0] == "el11")
    *inputs, expected = schedule().operands(0)
    broken = dataclasses.replace(
        schedule(), program=replaced(program, victim, str(victim.operands[0]), str(one.operands[1]))
    )
    result, _ = broken.run(*inputs)
    assert (result != expected).any()
