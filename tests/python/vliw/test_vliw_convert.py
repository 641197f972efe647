"""Generated conversions to BFP16: bit for bit the C++ kernels' blocks for any number of tiles, of
operands, sums and a row-major B, in the intervals that docs/kernels.md publishes; sums may be
converted where they lie. The store file: what a push and a flush store and leave, and that nine
pushes are one too many.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vliw_programs import memory, run

import npu
from npu.errors import ArgumentError, ScheduleError, ShapeError
from npu.vliw import assembly, convert_bfp16, convert_bfp16_rows, cycles, modulo, vector_kernels
from npu.vliw.aie2p import AIE2P, TO_EVEN
from npu.vliw.vector_kernels import LoopSchedule

IN_ORDER = ("convert_bf16_bfp16_a", "convert_bf16_bfp16_c", "convert_f32_bfp16_c")
ROWS = "convert_bf16_bfp16_b"
PUSH, FLUSH = "vst.push.576.conv.bfp16ebs8.fp32 dm{}, [p2, sf, r26]", "vst.flush.512.conv "


def schedule(kernel: str, tiles: int, k1: int | None = None) -> LoopSchedule:
    return vector_kernels.schedule("npu2", kernel, tiles, k1)


def check(found: LoopSchedule, seed: int) -> None:
    result, expected, run = found.compared(seed)
    np.testing.assert_array_equal(result, expected)
    tiles = found.blocks * (found.k1 or 1)
    assert run.issued["vst.push"] == tiles
    # A line more or less at the ends, where loads and stores share a bank.
    assert run.stalls <= (8 if found.kernel.endswith("_c") else 0)


@pytest.mark.parametrize("kernel", IN_ORDER)
@pytest.mark.parametrize("tiles", [1, 8, 13, 24, 42])
def test_the_blocks_of_the_cpp_kernel(kernel: str, tiles: int) -> None:
    """One tile, a group of eight, odd numbers, a loop of groups with a rest."""
    check(schedule(kernel, tiles), tiles)


@settings(deadline=None, max_examples=10)
@given(kernel=st.sampled_from(IN_ORDER), tiles=st.integers(1, 60), seed=st.integers(0, 99))
def test_any_number_of_tiles(kernel: str, tiles: int, seed: int) -> None:
    check(schedule(kernel, tiles), seed)


@pytest.mark.parametrize(("k1", "n1"), [(1, 6), (2, 5), (3, 4), (4, 2)])
def test_a_row_major_b(k1: int, n1: int) -> None:
    check(schedule(ROWS, n1, k1), k1)


@pytest.mark.slow
@pytest.mark.parametrize(("k1", "n1"), [(4, 14), (5, 3), (8, 2)])
def test_a_row_major_b_with_many_rows(k1: int, n1: int) -> None:
    check(schedule(ROWS, n1, k1), k1)


def test_operands_have_what_is_hard_to_convert() -> None:
    source, blocks = schedule(IN_ORDER[0], 2).operands(0)
    values = npu.Bfp16Matrix(blocks.reshape(1, 2, 72), (8, 16), "a").to_numpy()
    assert np.isnan(values[0, :8]).all() and np.isfinite(values[1:]).all()
    assert len(np.unique(source.view(np.uint16) >> 7 & 0xFF)) > 40  # exponents


def test_no_byte_behind_the_result_changes() -> None:
    found = schedule(IN_ORDER[0], 11)
    source, expected = found.operands(3)
    content = bytearray(b"\xa5" * 65536)
    content[: source.size] = source.tobytes()
    vector_kernels.Core(content, {"p0": 0, "p1": 32768}).run(found.program)
    assert bytes(content[32768 : 32768 + 792]) == expected.tobytes()
    assert set(content[32768 + 792 :]) == {0xA5} == set(content[source.size : 32768])


@pytest.mark.parametrize(("kernel", "interval"), list(zip(IN_ORDER, (16, 25, 41), strict=True)))
def test_what_eight_tiles_take(kernel: str, interval: int) -> None:
    """Two or four loads each through one unit; in place nine stores of the same bank as well."""
    whole, *left = cycles.conversion(kernel)
    assert (whole.tiles, whole.interval) == (8, interval) and whole.outside < 12
    assert [c.tiles for c in left] == list(range(7, 0, -1))
    total = schedule(kernel, 45).simulated().cycles
    assert abs(5 * whole.interval + whole.outside + left[2].interval - total) <= 4


@pytest.mark.parametrize(
    ("k1", "interval"),
    [(2, 7), (3, 12)]
    + [
        pytest.param(*p, marks=pytest.mark.slow)
        for p in ((4, 13), (5, 20), (6, 21), (7, 28), (8, 25))
    ],
)
def test_what_a_column_takes(k1: int, interval: int) -> None:
    """Two shuffles and a push per tile, and a flush where a line may be full."""
    (found,) = cycles.conversion(ROWS, k1)
    assert (found.tiles, found.interval) == (k1, interval) and found.outside < 20
    assert interval == 3 * k1 + k1 // np.gcd(k1, 8)


@pytest.mark.parametrize("interval", [12, 13, 14])
def test_runs_that_are_known_are_what_a_search_finds(
    interval: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few streams are shifted the same way again and again."""
    (region,) = convert_bfp16_rows.loop(AIE2P, 8, 4)
    found = list(modulo.schedules(region, AIE2P, interval))
    run = modulo._Search.run

    def forgetful(self: modulo._Search, shift: dict[str, int], spread: int) -> object:
        self.known.clear()
        return run(self, shift, spread)

    monkeypatch.setattr(modulo._Search, "run", forgetful)
    assert found == list(modulo.schedules(region, AIE2P, interval))
    assert bool(found) == (interval >= 13)
    assert len({id(steady) for steady in found}) < max(1, len(found))


def test_the_text_is_read_again() -> None:
    found = schedule(ROWS, 5, 2)
    text = assembly.write(found.program, found.prototype)
    assert PUSH.format(0)[:34] in text and FLUSH + "[p2, sf, r26]" in text and "vmul.f dm" in text
    again = assembly.read(text, AIE2P)
    assert [sorted(map(str, (op.operands for op in b.ops))) for b in again.bundles] == [
        sorted(map(str, (op.operands for op in b.ops))) for b in found.program.bundles
    ]


def test_wrong_sizes() -> None:
    with pytest.raises(ShapeError, match="tiles is 0: give a number of tiles, 1 or more"):
        convert_bfp16.regions(0, "bfloat16", False)
    with pytest.raises(ShapeError, match=r"\[convert_bfp16_rows\] n1 is True"):
        convert_bfp16_rows.regions(2, True)
    with pytest.raises(ArgumentError, match="k1 of convert_bf16_bfp16_b is None: give k1"):
        schedule(ROWS, 4)
    with pytest.raises(ArgumentError, match="k1 of convert_f32_bfp16_c is 2: it takes no k1"):
        schedule("convert_f32_bfp16_c", 4, 2)


# The store file.


def stored(pushes: int, flush: str, start: int = 0) -> tuple[bytes, dict[str, int]]:
    """Memory from ``start`` on after pushes of ones, and what the registers hold."""
    text = "\n".join([*(PUSH.format(0) for _ in range(pushes)), flush])
    ones = np.ones(64, np.float32).tobytes()
    core, _ = run(
        text, memory(), AIE2P, dm0=ones, p2=start, m1=100, r26=0, crrnd=TO_EVEN
    )  # fmt: skip
    return bytes(core.memory[start : start + 640]), {
        name: int(core.value(name)) for name in ("p2", "r26")
    }


TILE = bytes([127, *[64] * 8] * 8)


@pytest.mark.parametrize("start", [0, 64, 72, 504])
def test_pushes_store_lines_and_a_flush_the_rest(start: int) -> None:
    """From any tile: 504 is the last of a line, so that one push fills it."""
    pushes = 8 if start % 64 == 0 else 1
    content, registers = stored(pushes, FLUSH + "[p2, sf, r26]", start)
    assert content == (TILE * pushes).ljust(640, b"\0")
    assert registers == {"p2": start + 72 * pushes, "r26": 0}


def test_a_push_alone_leaves_the_rest_in_the_file() -> None:
    content, registers = stored(3, "nop")
    assert content == (TILE * 3)[:192].ljust(640, b"\0")
    assert registers == {"p2": 216, "r26": 2**32 - 24}


def test_a_flush_moves_on_by_a_modifier() -> None:
    content, registers = stored(2, FLUSH + "[p2, sf, r26, m1]")
    assert content == (TILE * 2).ljust(640, b"\0")
    assert registers == {"p2": 244, "r26": 0}


@pytest.mark.parametrize(("pushes", "start"), [(9, 0), (8, 72), (2, 504)])
def test_pushes_without_a_flush(pushes: int, start: int) -> None:
    with pytest.raises(ScheduleError, match="sf would hold 72 bytes; a flush stores the rest"):
        stored(pushes, "nop", start)


def test_a_count_that_is_wrong() -> None:
    text = "\n".join([PUSH.format(0), "mov r26, #-4", *["nop"] * 9, FLUSH + "[p2, sf, r26]"])
    with pytest.raises(ScheduleError, match="r26 says 4 bytes, sf holds 8"):
        run(text, memory(), AIE2P, dm0=bytes(256), p2=64, r26=0, crrnd=TO_EVEN)
