"""Small products on emulated devices, which one core computes, or a row of four. Asserts that they
are those of NumPy in float64 within the tolerances of compare.py, for odd sizes of every type and
layout of B, at register level and as replays; that they have the bits of the default design on all
cores; and that the choice follows the size and what is loaded.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from compare import assert_matmul_close
from devices_under_test import DEVICES

import npu
from npu.designs import gemm
from npu.devices import Device
from npu.ops import gemm_designs
from npu.ops.epilogue import shift_right
from npu.ops.gemm_product import Product

BF16 = np.dtype(ml_dtypes.bfloat16)
SIZES = ((1, 1, 1), (64, 64, 64), (3, 130, 65), (77, 40, 9), (70, 300, 900))  # the last on four
KINDS = [  # of operands, of results, shift
    (np.float32, np.float32, 0), (BF16, BF16, 0), (np.float16, np.float16, 0),
    (np.int8, np.int32, 0), (np.int8, np.int16, 3), (np.int8, np.int8, 9), (np.int16, np.int32, 0),
]  # fmt: skip
LAYOUTS = ("row", "col", "packed", "strided")
WAYS = [(name, None) for name in ("emu:npu1", "emu:npu2")] + [("emu:npu2", "native")]


def operands(
    rng: np.random.Generator, size: tuple[int, int, int], dtype: np.typing.DTypeLike
) -> tuple[np.ndarray, np.ndarray]:
    m, k, n = size
    if np.issubdtype(dtype, np.integer):
        low = np.iinfo(dtype).min
        a, b = (rng.integers(low, -low, s) for s in ((m, k), (k, n)))
    else:
        a, b = (rng.standard_normal(s) for s in ((m, k), (k, n)))
    return a.astype(dtype), b.astype(dtype)


def laid_out(b: np.ndarray, layout: str, device: Device) -> np.ndarray | npu.PackedMatrix:
    if layout == "packed":
        return npu.pack(b, device=device)
    if layout == "strided":
        return np.repeat(np.repeat(b, 2, 0), 3, 1)[::2, ::3]
    return np.asfortranarray(b) if layout == "col" else b


@pytest.fixture
def two_threads() -> Iterator[None]:
    """What the choice depends on."""
    npu.set_threads(2)
    yield
    npu.set_threads(None)


@pytest.mark.parametrize("replay", ["replays", "register level"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(filter(None, way)))
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{np.dtype(kind[0])}-{np.dtype(kind[1])}")
def test_few_cores_give_the_bits_of_all(
    kind: tuple,
    way: tuple[str, str | None],
    replay: str,
    two_threads: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three times each: the second run is recorded, the third repeats it."""
    dtype, out_dtype, shift = kind
    monkeypatch.setenv("NPU_REPLAY", str(int(replay == "replays")))
    small, whole = (Device(way[0], "fast", way[1]) for _ in range(2))
    rng, columns = np.random.default_rng(9), set()
    for layout, size, _ in itertools.product(LAYOUTS, SIZES, range(3)):
        a, b = operands(rng, size, dtype)
        options = {"out_dtype": out_dtype, "shift": shift}
        c = npu.matmul(a, laid_out(b, layout, small), device=small, **options)
        assert small.last_gemm.options.rows == 1
        columns.add(small.last_gemm.options.columns)
        with monkeypatch.context() as patch:
            patch.setattr(gemm_designs, "_host_designs", lambda product, default, _: (default,))
            on_all = npu.matmul(a, laid_out(b, layout, whole), device=whole, **options)
        assert whole.last_gemm.options.whole
        assert c.dtype == out_dtype and c.tobytes() == on_all.tobytes()
        if np.issubdtype(dtype, np.floating) or dtype == BF16:
            assert_matmul_close(c, a, b, bf16=small.bf16)
        else:
            exact = a.astype(np.int64) @ b.astype(np.int64)
            wanted = shift_right(exact, shift, c.dtype) if shift else exact.astype(np.int32)
            np.testing.assert_array_equal(c, wanted)
    assert columns == {1, 4}
    assert (small.counters()["replays"] > 0) == (replay == "replays")


@pytest.mark.parametrize("name", DEVICES)
def test_a_copy_packed_once_serves_all_sizes(name: str, two_threads: None) -> None:
    """Few rows are multiplied on few cores, many on all, by the same copy."""
    rng = np.random.default_rng(3)
    with npu.device(name, designs="host") as device:
        b = rng.integers(-128, 128, (300, 500)).astype(np.int8)
        packed, ran = npu.pack(b), set()
        for rows in (3, 900, 64, 1200, 5):
            a = rng.integers(-128, 128, (rows, 300)).astype(np.int8)
            for _ in range(4):
                np.testing.assert_array_equal(npu.matmul(a, packed), a.astype(int) @ b)
            ran.add(device.last_gemm.options.whole)
        assert ran == {False, True}
        b = b[:60, :40]
        packed = npu.pack(b)
        for _ in range(2):
            c = npu.matmul(a[:3, :60], packed)
            assert not device.last_gemm.options.whole
            np.testing.assert_array_equal(c, a[:3, :60].astype(int) @ b)
            c = npu.matmul(a[:3, :60], packed, out_dtype="int16", shift=5, accumulate="narrow")
            assert device.last_gemm.options.whole


def test_what_else_than_plain_products_keeps_the_default_design() -> None:
    """Narrow sums, blocks of BFP16, and devices that were told the kernels or want NPU time."""
    plain = Product("int8", "int8", (1, 1, 1))
    for product, prefers, kernel, count in (
        (plain, "host", None, 5), (plain, "host", "published", 5), (plain, "host", "pipelined", 1),
        (Product("int8", "int8", (1, 1, 1), accumulate="narrow"), "host", None, 1),
        (Product("bfp16", "float32", (1, 1, 1), "blocks", bf16="bfp16"), "host", None, 1),
        (Product("int16", "int32", (1, 1, 1), "col"), "host", "pipelined", 3),
    ):  # fmt: skip
        found = gemm_designs.candidates("npu2", prefers, product, kernel)
        assert [o.whole for o in found] == [True] + [False] * (count - 1)
        assert len({o.tile for o in found}) == 1, "the same calls of kernels"
    assert all(o.whole for o in gemm_designs.candidates("npu2", "array", plain))
    (default,) = gemm_designs.candidates("npu2", "host", plain, simulated=False)
    assert default.whole, "an NPU computes with all cores"


def choose(designs: gemm_designs.GemmDesigns, size: int, loads: int) -> gemm.DesignPoint:
    product = Product("bfloat16", "float32", (size, size, size), bf16="bfp16")
    designs.choose(designs.offered(product), loads)
    return designs.last.options


def test_the_choice_follows_size_and_what_is_loaded(two_threads: None) -> None:
    designs = gemm_designs.GemmDesigns("npu2", "host", None)
    assert not choose(designs, 64, 0).whole, "nothing was loaded"
    assert not choose(designs, 64, 1).whole and designs.last.load_seconds == 0
    assert choose(designs, 1024, 1).whole, "saves more than two loads at once"
    ran = [choose(designs, 64, 2).whole for _ in range(8)]
    assert ran[0] and not ran[-1] and sorted(ran, reverse=True) == ran
    assert choose(designs, 1024, 3).whole


def test_sizes_in_turn_change_nothing(two_threads: None) -> None:
    """A large product between any two small ones: they stay on its configuration."""
    designs = gemm_designs.GemmDesigns("npu2", "host", None)
    assert choose(designs, 512, 0).whole
    assert all(choose(designs, size, 1).whole for size in (64, 512) * 50)


def test_rows_and_packed_copies_in_turn_load_once(two_threads: None) -> None:
    designs = gemm_designs.GemmDesigns("npu2", "host", None)
    like = designs.for_packing("int8", (64, 64), "native")
    row = Product("int8", "int32", (64, 64, 64))
    packed = Product("int8", "int32", (64, 64, 64), "packed", packed_for=like)
    loads, keys = 0, []
    for product in (row, packed) * 10:
        _, load = designs.choose(designs.offered(product), loads)
        loads += load > 0
        keys.append(designs.last.options.key)
    assert loads == 2 and len(set(keys[1:])) == 1


def test_six_configurations_in_turn_are_replays(
    two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small and large products of three types: their arrays are kept, and what was recorded."""
    monkeypatch.delenv("NPU_REPLAY", raising=False)
    device, rng = Device("emu:npu2", "fast"), np.random.default_rng(2)
    kinds = list(itertools.product(("int8", "int16", "float32"), (8, 500)))
    ran = set()
    for _ in range(8):
        for dtype, size in kinds:
            a, b = (rng.integers(-3, 4, (size, size)).astype(dtype) for _ in range(2))
            np.testing.assert_array_equal(
                npu.matmul(a, b, device=device), a.astype(int) @ b.astype(int)
            )
            ran.add(device.last_gemm.options.key)
    counters = device.counters()
    assert len(ran) == 6 and counters["replays"] >= len(kinds) * 5
