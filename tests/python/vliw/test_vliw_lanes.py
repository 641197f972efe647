"""Operations on lanes: shuffles against published permutations, products and sums against exact
fractions, conversions and broadcasts, their times on a simulated core, modes that it refuses; `npu
kernel` for loops over lanes.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from vliw_programs import memory, run

from npu.cli import main
from npu.errors import ScheduleError
from npu.vliw import vector_arithmetic as arithmetic
from npu.vliw.aie2 import AIE2
from npu.vliw.aie2p import AIE2P
from npu.vliw.vector_operations import LANES, SHUFFLES

BF16 = np.dtype(ml_dtypes.bfloat16)
KERNEL = ["--device", "npu2", "--kernel", "dequant_q4nx"]


# llvm-aie, aie2p-vector-shuffle-wide-shapes.s: lanes of 16 bits of the pair, the lowest first.
@pytest.mark.parametrize(
    ("mode", "lanes"),
    [
        ("T16_16x4_lo", [*range(0, 64, 4), *range(1, 64, 4)]),
        ("T16_16x4_hi", [*range(2, 64, 4), *range(3, 64, 4)]),
        ("T16_2x32_lo", [n // 2 + 32 * (n % 2) for n in range(32)]),
        ("T256_2x2_lo", [*range(16), *range(32, 48)]),
        ("T256_2x2_hi", [*range(16, 32), *range(48, 64)]),
    ],
)
def test_shuffles(mode: str, lanes: list[int]) -> None:
    pair = np.arange(64, dtype=np.uint16)
    found = arithmetic.shuffled(pair[:32].tobytes(), pair[32:].tobytes(), SHUFFLES[mode])
    assert np.frombuffer(found, np.uint16).tolist() == lanes


def test_interleaved_bytes() -> None:
    a, b = np.arange(64, dtype=np.uint8), np.arange(100, 164, dtype=np.uint8)
    both = np.stack([a, b], axis=1).reshape(-1)
    for name, part in (("T8_2x64_lo", both[:64]), ("T8_2x64_hi", both[64:])):
        assert arithmetic.shuffled(a.tobytes(), b.tobytes(), SHUFFLES[name]) == part.tobytes()
    with pytest.raises(ScheduleError, match="mode 39 of vshuffle"):
        arithmetic.shuffled(a.tobytes(), b.tobytes(), 39)


def rounded(exact: Fraction) -> float:
    """The nearest float32, ties to even, of a number in its normal range."""
    near = np.float32(float(exact))
    candidates = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.inf)]

    def distance(x: np.float32) -> tuple[Fraction, int]:
        return abs(Fraction(float(x)) - exact), int(np.float32(x).view(np.uint32)) & 1

    return float(min(map(np.float32, candidates), key=distance))


def test_a_fused_product_is_rounded_once() -> None:
    """XDNA2; with sums near a tie of fp32 that a double would round away."""
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(32).astype(BF16) for _ in range(2))
    c = (rng.standard_normal(64) * 2.0 ** rng.integers(-40, 40, 64)).astype(np.float32)
    a[0], b[0], c[0] = 2.0**-40 * (1 + 2**-7), 1, 1 + 2**-23  # far below half a unit of c
    a[1], b[1], c[1] = 2.0**-12 * (1 + 2**-7), 2.0**-12, 1  # a little above the tie
    found = arithmetic.multiplied("npu2", [c.tobytes()], a.tobytes(), b.tobytes(), LANES)
    sums = np.frombuffer(found, np.float32)
    exact = [
        Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        for x, y, z in zip(a, b, c, strict=False)
    ]
    assert sums[:32].tolist() == [rounded(value) for value in exact]
    np.testing.assert_array_equal(sums[32:], c[32:])
    with pytest.raises(ScheduleError, match="configuration 28"):
        arithmetic.multiplied("npu2", [c.tobytes()], a.tobytes(), b.tobytes(), 28)


def test_two_products_of_xdna1_meet_in_a_lane() -> None:
    """Whole numbers are exact; a term 2^-30 below the largest is lost, as the rule says."""
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-200, 200, 32).astype(BF16) for _ in range(2))
    c = rng.integers(-1000, 1000, 16).astype(np.float32)
    found = arithmetic.multiplied("npu1", [c.tobytes()], a.tobytes(), b.tobytes(), LANES)
    x, y = a.astype(np.int64).reshape(2, 16), b.astype(np.int64).reshape(2, 16)
    np.testing.assert_array_equal(np.frombuffer(found, np.float32), c + (x * y).sum(axis=0))
    tiny = np.zeros(32, BF16)
    tiny[0] = 2.0**-30
    one, same = np.ones(16, np.float32), np.ones(32, BF16)
    found = arithmetic.multiplied("npu1", [one.tobytes()], tiny.tobytes(), same.tobytes(), LANES)
    assert np.frombuffer(found, np.float32)[0] == 1


def test_nibbles_and_broadcasts() -> None:
    assert arithmetic.unpacked(b"\x21\x43") == b"\x01\x02\x03\x04"
    assert arithmetic.broadcast(0xC300, 2, 6) == b"\x00\xc3" * 3
    assert arithmetic.extracted(bytes(range(16)), 1, 8) == bytes(range(8, 16)) * 2


def test_sums_of_integers_wrap() -> None:
    a, b = bytes([255, 0, 1, 128]), bytes([1, 0, 255, 128])
    assert arithmetic.added_integers(a, b, 1) == bytes(4)
    assert arithmetic.added_integers(a, b, 2) == bytes([0, 1, 0, 1])


def test_times_of_unpacking() -> None:
    """It reads its operand in stage 7: what a load of the bundle before brings still counts, what
    one of the bundle behind brings does not."""
    data = np.arange(32, dtype=np.uint8) * 5
    load, unpack = "vldb wl0, [p0], #32\n", "vunpack.d8.d4 x1, wl0\n"
    rest = "nop\n" * 7 + "vst wl1, [p1], #32\nnop\nnop\nnop\nnop"
    registers = {"p0": 0, "p1": 64, "crunpacksign": 0}
    core, _ = run(load + unpack + rest, memory(at_0=data), AIE2, **registers)
    wide = np.frombuffer(bytes(core.memory), np.uint8, 32, 64)
    np.testing.assert_array_equal(wide, np.stack([data & 15, data >> 4], 1).reshape(-1)[:32])
    with pytest.raises(ScheduleError, match="wl0 was never written"):
        run(unpack + load + rest, memory(at_0=data), AIE2, **registers)


def test_modes_that_are_not_simulated() -> None:
    for machine, text, mode in (
        (AIE2, "vunpack.d8.d4 x1, wl0", "crunpacksign"),
        (AIE2P, "vunpack x1, wl0, unpacksign0", "crunpacksize"),
    ):
        registers = {"wl0": bytes(32), "crunpacksign": 0, "crunpacksize": 0} | {mode: 1}
        with pytest.raises(ScheduleError, match=f"{mode} is 1; only 0"):
            run(text + "\nnop" * 7, None, machine, **registers)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernel", "run", *KERNEL, "--seed", "2"]) == 0
    assert "0 of 8192 values differ" in capsys.readouterr().out
    source, plot = tmp_path / "k.s", tmp_path / "k.svg"
    assert main(["kernel", "schedule", *KERNEL, "--asm", str(source), "--plot", str(plot)]) == 0
    assert "blocks: 1, on npu2: " in capsys.readouterr().out
    assert "void dequant_q4nx_1(const uint8_t *blocks" in source.read_text()
    assert "dequant_q4nx, 1 block on npu2" in plot.read_text()
    assert main(["kernel", "schedule", *KERNEL, "--blocks", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["blocks"] == 2 and found["simulated"] and 0.9 < found["busy"]["st"] <= 1
    assert main(["kernel", "run", *KERNEL, "--blocks", "9"]) == 1
    assert "give fewer blocks" in capsys.readouterr().err
