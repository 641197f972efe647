"""npu2's bfloat16 products through BFP16 (blocks of 8 along K share an exponent): the default, how
it is chosen and overruled, its values against the format's definition and float64, and its error
for normal data and for bad blocks, which docs/fidelity.md states.

``PYTHONPATH=tests/python python tests/python/ops/test_bfp16.py`` prints that page's table.
"""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from compare import (
    BFP16_BLOCK,
    assert_matmul_close,
    bfp16_bound,
    bfp16_rms,
    bfp16_unit,
    round_bf16,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import npu
from npu import gemma3
from npu.errors import ArgumentError, DeviceError
from npu.ops.linear import DECODE_ROWS

BF16 = np.dtype(ml_dtypes.bfloat16)
DEMO = Path(__file__).parents[3] / "examples/demo_model/demo-gemma3.gguf"
FIDELITY = Path(__file__).parents[3] / "docs/fidelity.md"
SIZE = (256, 1024, 256)  # of the table


def data(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Operands of the table, float32 holding bfloat16 values."""
    rng = np.random.default_rng(16)
    m, k, n = SIZE
    a = rng.standard_normal((m, k)).astype(np.float32)
    b = rng.standard_normal((k, n)).astype(np.float32)
    if kind == "uniform":
        a, b = np.abs(a), rng.random((k, n), np.float32)
    elif kind == "integers":
        a, b = (rng.integers(-63, 64, x.shape).astype(np.float32) for x in (a, b))
    elif kind.startswith("outlier"):  # one value in every block of A
        a[:, ::BFP16_BLOCK] *= float(kind.split()[1])
    elif kind.startswith("hidden"):  # and nothing in B to meet it: only what it hides counts
        a[:, ::BFP16_BLOCK] *= float(kind.split()[1])
        b[::BFP16_BLOCK] = 0
    return round_bf16(a), round_bf16(b)


KINDS = ["normal", "uniform", "integers", "outlier 16", "outlier 256", "hidden 16", "hidden 256"]


def errors(kind: str, bf16: str) -> tuple[float, float, float]:
    """Against float64: RMS error over RMS product, largest error over RMS product, largest error
    over the format's bound."""
    a, b = data(kind)
    c = npu.matmul(a, b, device="emu:npu2", bf16=bf16).astype(np.float64)
    a, b = a.astype(np.float64), b.astype(np.float64)
    error, scale = np.abs(c - a @ b), np.sqrt(np.mean(np.square(a @ b)))
    rms = float(np.sqrt(np.mean(np.square(error))) / scale)
    return rms, float(error.max() / scale), float((error / bfp16_bound(a, b)).max())


def table() -> list[str]:
    def percent(share: float) -> str:
        return f"{100 * share:.0f} %" if share >= 1 else f"{100 * share:.2g} %"

    lines = []
    for kind in KINDS:
        (rms, most, share), (native, _, _) = errors(kind, "bfp16"), errors(kind, "native")
        cells = [kind, percent(rms), percent(most), percent(share), f"{100 * native:.1g} %"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


@pytest.mark.slow
def test_fidelity_states_the_measured_errors() -> None:
    """Two digits each; the last may differ, as float32 sums differ between machines."""
    page = FIDELITY.read_text()
    for line in table():
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        found = re.search(rf"^\| {name} \|(.*)\|$", page, re.MULTILINE)
        assert found, f"docs/fidelity.md has no row {name!r}; it is {line}"
        for cell, stated in zip(cells[:3], found[1].split("|")[:3], strict=True):
            numbers = [float(text.strip().removesuffix("%")) for text in (cell, stated)]
            assert numbers[0] == pytest.approx(numbers[1], rel=0.11), line


def test_rms_error_of_normal_data_is_what_the_format_predicts() -> None:
    """Independent rounding errors: within a few per cent of sqrt(2 <step^2> / 12)."""
    a, b = data("normal")
    spread = (np.mean(bfp16_unit(a, -1) ** 2) + np.mean(bfp16_unit(b, -2) ** 2)) / 2
    rms, most, _ = errors("normal", "bfp16")
    assert rms == pytest.approx(bfp16_rms(float(spread)), rel=0.1)
    assert most < 6 * rms  # six standard deviations for the largest of 65536


def test_small_integers_are_exact() -> None:
    """Magnitudes up to 63 fit the mantissa with one bit to spare, sums stay below 2^24."""
    assert errors("integers", "bfp16")[:2] == (0, 0)


def test_a_value_below_half_a_step_of_its_block_is_lost() -> None:
    a = np.array([[128, 1, 3, 1.5, 0, 0, 0, 0]], np.float32)  # step 2, half a step is 1
    c = npu.matmul(a, np.eye(8, dtype=np.float32), bf16="bfp16")
    assert c.tolist() == [[128, 0, 4, 2, 0, 0, 0, 0]]  # ties to even
    c = npu.matmul(np.array([[255.0]], np.float32), np.ones((1, 1), np.float32))
    assert c.tolist() == [[254]]  # 127 steps at most


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_values_are_those_of_the_format(data) -> None:
    """Any size, layout, result type and exponents, over the whole normal range."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    m, k, n = (data.draw(st.integers(1, 150)) for _ in range(3))
    width = data.draw(st.integers(0, 30))

    def operand(rows: int, columns: int) -> np.ndarray:
        exponents = rng.integers(-width, width + 1, (rows, columns))
        return np.ldexp(rng.standard_normal((rows, columns)), exponents).astype(BF16)

    a = operand(m, k)
    b = operand(k, n) if data.draw(st.booleans()) else operand(n, k).T
    out_dtype = data.draw(st.sampled_from([np.dtype(np.float32), BF16]))
    c = npu.matmul(a, b, out_dtype=out_dtype, bf16="bfp16")
    assert_matmul_close(c, a, b, bf16="bfp16")
    packed = npu.matmul(a, npu.pack(b, bf16="bfp16"), out_dtype=out_dtype)
    np.testing.assert_array_equal(packed, c)


def test_a_block_with_infinity_or_nan_makes_nan_where_it_is_used() -> None:
    a = np.ones((3, 20), np.float32)
    a[0, 1], a[1, 19] = np.inf, np.nan
    c = npu.matmul(a, np.ones((20, 4), np.float32), bf16="bfp16")
    assert np.isnan(c[:2]).all() and (c[2] == 20).all()


def test_the_faster_way_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPU_BF16", raising=False)
    a, b = data("normal")
    native, blocks = (npu.matmul(a, b, bf16=way) for way in ("native", "bfp16"))
    assert not np.array_equal(native, blocks)
    times = [npu.simulate_gemm("npu2", 512, 512, 512, dtype_in="bfloat16", dtype_out="bfloat16",
                               tile=(64, 64, 64), bf16=way).seconds
             for way in ("native", "bfp16")]  # fmt: skip
    assert times[1] < times[0]
    with npu.device("emu:npu2") as device:
        assert (device.bf16, device.bf16_chosen) == ("bfp16", None)
        np.testing.assert_array_equal(npu.matmul(a, b), blocks)
    with npu.device("emu:npu2", bf16="native") as device:
        assert device.bf16 == "native"
        np.testing.assert_array_equal(npu.matmul(a, b), native)
        np.testing.assert_array_equal(npu.matmul(a, b, bf16="bfp16"), blocks)
    monkeypatch.setenv("NPU_BF16", "native")
    assert npu.current_device("emu:npu2").bf16 == "native"
    np.testing.assert_array_equal(npu.matmul(a, b), native)
    assert npu.current_device("emu:npu1").bf16 == "native"


def test_packed_operands_keep_their_way() -> None:
    a, b = data("normal")
    for way in ("native", "bfp16"):
        packed = npu.pack(b, bf16=way)
        assert packed.bf16 == way
        for used in (None, "native", "bfp16"):
            want = npu.matmul(a, b, bf16=used or way)
            np.testing.assert_array_equal(npu.matmul(a, packed, bf16=used), want)


def test_prompts_of_gemma_are_native_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPU_BF16", raising=False)

    def logits() -> np.ndarray:
        model, _ = gemma3.load(DEMO)
        prompt = [2, *range(5, 5 + DECODE_ROWS)]  # long enough for matrix products
        return model.forward(prompt, model.new_cache(64))

    usual = logits()
    with npu.device("emu:npu2", bf16="bfp16"):
        np.testing.assert_array_equal(logits(), usual)
    with npu.device("emu:npu2", bf16="native"):
        native = logits()
    assert not np.array_equal(native, usual)
    monkeypatch.setenv("NPU_BF16", "native")
    np.testing.assert_array_equal(logits(), native)


ONES, BYTES = np.ones((4, 4), np.float32), np.ones((4, 4), np.int8)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: npu.matmul(ONES, ONES, bf16="fp8"), DeviceError, ["[matmul]", "'fp8'", "bfp16"]),
        (lambda: npu.matmul(ONES, ONES, bf16=3), DeviceError, ["[matmul]", "3"]),
        (lambda: npu.pack(ONES, bf16="fp8"), DeviceError, ["[pack]", "'fp8'"]),
        (lambda: npu.matmul(ONES, ONES, bf16="bfp16", device="emu:npu1"), DeviceError, ["npu1"]),
        (lambda: npu.matmul(BYTES, BYTES, bf16="native"), ArgumentError, ["integers"]),
        (lambda: npu.pack(BYTES, bf16="native"), ArgumentError, ["[pack]", "integers"]),
        (lambda: npu.device("emu:npu1", bf16="bfp16").__enter__(), DeviceError, ["npu1"]),
        (lambda: npu.device("emu:npu2", bf16="x").__enter__(), DeviceError, ["'x'"]),
        (lambda: npu.device("emu:npu2", bf16=3).__enter__(), DeviceError, ["int"]),
    ],
)  # fmt: skip
def test_wrong_ways(call, error, words) -> None:
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


if __name__ == "__main__":
    print("\n".join(table()))
