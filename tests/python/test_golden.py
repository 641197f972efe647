"""The four golden programs (written by the public compiler, none of it by this project) replay on
the emulated array: results as their args.json states them, zero undecoded register writes, the
bytes of every level as computed by hand from the program, and a second submission without a new
configure.

bfloat16 products are exact in float32, so the bf16 result is held against float64 within the bound
of a float32 sum of K terms in any order: |error| <= (K - 1) 2^-24 sum |a b| / (1 - (K - 1) 2^-24).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from golden_files import golden

import npu

DTYPES: dict[str, Any] = {
    "i16": np.int16,
    "i32": np.int32,
    "f32": np.float32,
    "bf16": ml_dtypes.bfloat16,
}
PROGRAMS = ["relay_npu1", "relay_npu2", "gemm_npu1_2x2_i16", "gemm_npu2_4x8_bf16"]


def arguments(name: str) -> dict[str, Any]:
    return json.loads(golden(name, "args.json"))


def insts(name: str) -> bytes:
    return golden(name, "insts.bin")


def inputs(name: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Random inputs; outputs filled with a pattern that a result would not contain by chance."""
    arrays = []
    for arg in arguments(name)["args"]:
        dtype, shape = DTYPES[arg["dtype"]], tuple(arg["shape"])
        if arg["direction"] == "out":
            arrays.append(np.full(shape, -1234567, dtype))
        elif np.issubdtype(dtype, np.integer):
            info = np.iinfo(dtype)
            arrays.append(rng.integers(info.min, info.max, shape, dtype, endpoint=True))
        else:
            arrays.append(rng.standard_normal(shape).astype(dtype))
    return arrays


def blocks(tile: np.ndarray, rows: int, cols: int, r: int, c: int) -> np.ndarray:
    """A tile stored as [rows/r][cols/c][r][c], as a matrix (a copy)."""
    return tile.reshape(rows // r, cols // c, r, c).transpose(0, 2, 1, 3).reshape(rows, cols)


def kernels(name: str) -> dict[str, Callable[..., None]]:
    """The functions of args.json's core_functions as NumPy callbacks."""
    spec = arguments(name)
    if "core_functions" not in spec:
        return {}
    m, k, n = spec["core_functions"]["tile"]
    r, s, t = spec["core_functions"]["mmul"]
    a_type, b_type, c_type = (DTYPES[arg["dtype"]] for arg in spec["args"])
    accumulate = np.int64 if np.issubdtype(c_type, np.integer) else np.float32

    def words(view: memoryview, dtype: Any, count: int) -> np.ndarray:
        return np.frombuffer(view, dtype, count)

    def zero(c: memoryview) -> None:
        words(c, c_type, m * n)[:] = 0

    def mac(a: memoryview, b: memoryview, c: memoryview) -> None:
        a_tile = blocks(words(a, a_type, m * k), m, k, r, s).astype(accumulate)
        b_tile = blocks(words(b, b_type, k * n), k, n, s, t).astype(accumulate)
        out = words(c, c_type, m * n).reshape(m // r, n // t, r, t)
        product = (a_tile @ b_tile).reshape(m // r, r, n // t, t).transpose(0, 2, 1, 3)
        out += product.astype(c_type)  # integers wrap around as the accumulator's low words do

    return {"zero": zero, "mac": mac}


def array(name: str) -> npu.emulator.Array:
    """A configured array with the golden cores attached; the configuration decodes completely."""
    arr = npu.emulator.Array(arguments(name)["device"])
    report = arr.configure(golden(name, "config.bin"))
    assert report.undecoded_writes == 0
    assert report.operations > 0
    functions = kernels(name)
    for core in json.loads(golden(name, "cores.json"))["cores"]:
        arr.attach(core["col"], core["row"], core["ops"], functions)
    return arr


def check(name: str, arrays: list[np.ndarray]) -> None:
    if name.startswith("relay"):
        a, b = arrays
        first = a.reshape(8, 4, 6, 8).transpose(2, 0, 1, 3).ravel()
        second = a.reshape(32, 3, 16).transpose(1, 0, 2).ravel()
        np.testing.assert_array_equal(b, np.stack([first, second]))
        return
    a, b, c = arrays
    if c.dtype == np.int32:
        exact = a.astype(np.int64) @ b.astype(np.int64)
        np.testing.assert_array_equal(c, exact.astype(np.int32))
        return
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    error = (a.shape[1] - 1) * 2.0**-24
    bound = error / (1 - error) * (np.abs(a64) @ np.abs(b64))
    assert np.all(np.abs(c.astype(np.float64) - a64 @ b64) <= bound)


# Bytes over each level's DMA channels. relay: 1536 words by way of each of two memtiles.
# gemm: A goes to the array once per pass over N, B once per pass over M; a memtile sends each of
# them once, a row of cores (A) or a column of cores (B) receives it at the same time; C comes back
# once on every level.
def moved(name: str) -> dict[str, int]:
    if name.startswith("relay"):
        total = 2 * 1536 * 4
        return {
            "shim_read": total,
            "shim_write": total,
            "memtile_read": total,
            "memtile_write": total,
            "core_read": 0,
            "core_write": 0,
        }
    if name == "gemm_npu1_2x2_i16":  # 64 x 96 x 128, 2 x 2 cores of 16 x 32 x 32
        a, b, c = 64 * 96 * 2, 96 * 128 * 2, 64 * 128 * 4
        passes_n, passes_m, rows, cols = 128 // (2 * 32), 64 // (2 * 16), 2, 2
    else:  # 256 x 128 x 512, 4 x 8 cores of 32 x 64 x 32
        a, b, c = 256 * 128 * 2, 128 * 512 * 2, 256 * 512 * 4
        passes_n, passes_m, rows, cols = 512 // (8 * 32), 256 // (4 * 32), 4, 8
    a, b = a * passes_n, b * passes_m
    return {
        "shim_read": a + b,
        "shim_write": c,
        "memtile_write": a + b + c,
        "memtile_read": a + b + c,
        "core_write": a * cols + b * rows,
        "core_read": c,
    }


@pytest.mark.parametrize("name", PROGRAMS)
def test_replay(name: str) -> None:
    arr = array(name)
    rng = np.random.default_rng(1)
    for _ in range(2):  # the second time without a configure
        arrays = inputs(name, rng)
        before = [a.copy() for a in arrays]
        report = arr.submit(insts(name), arrays)
        check(name, arrays)
        assert report.undecoded_writes == 0
        assert report.bytes_moved == moved(name)
        for arg, a, b in zip(arguments(name)["args"], arrays, before, strict=True):
            if arg["direction"] == "in":
                assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("name", ["gemm_npu1_2x2_i16", "gemm_npu2_4x8_bf16"])
def test_kernel_calls(name: str) -> None:
    """One zero per output tile, one mac per output tile and K step; every core runs ahead to the
    zero of its next tile, once, before it waits for input that no longer comes."""
    m, k, n = arguments(name)["core_functions"]["tile"]
    (rows, depth), (_, cols) = (arg["shape"] for arg in arguments(name)["args"][:2])
    tiles = rows // m * (cols // n)
    cores = len(json.loads(golden(name, "cores.json"))["cores"])
    arr, rng = array(name), np.random.default_rng(2)
    calls = [arr.submit(insts(name), inputs(name, rng)).kernel_calls for _ in range(2)]
    assert calls == [tiles * (1 + depth // k) + cores, tiles * (1 + depth // k)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_argument_is_needed(name: str) -> None:
    arrays = inputs(name, np.random.default_rng(3))
    with pytest.raises(npu.errors.ArgumentError, match=f"{len(arrays) - 1} arguments were given"):
        array(name).submit(insts(name), arrays[:-1])


def test_too_small_output_is_out_of_range() -> None:
    arrays = inputs("relay_npu1", np.random.default_rng(4))
    arrays[1] = arrays[1].reshape(-1)[:-1].copy()
    with pytest.raises(npu.errors.EmulatorError, match="only 1535 words are there") as caught:
        array("relay_npu1").submit(insts("relay_npu1"), arrays)
    assert caught.value.kind == "out_of_range"


def test_gemm_without_one_core_names_it() -> None:
    name = "gemm_npu1_2x2_i16"
    arr = npu.emulator.Array("npu1")
    arr.configure(golden(name, "config.bin"))
    cores = json.loads(golden(name, "cores.json"))["cores"]
    for core in cores[:-1]:
        arr.attach(core["col"], core["row"], core["ops"], kernels(name))
    with pytest.raises(npu.errors.DeadlockError) as caught:
        arr.submit(insts(name), inputs(name, np.random.default_rng(5)))
    missing = f"core ({cores[-1]['col']},{cores[-1]['row']})"
    assert missing in str(caught.value)
    assert "has no program" in str(caught.value)


def test_generations_do_not_mix() -> None:
    with pytest.raises(npu.errors.FormatError, match="generation 3, this array is npu2"):
        npu.emulator.Array("npu2").configure(golden("relay_npu1", "config.bin"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_configurations_end_by_enabling_all_cores(name: str) -> None:
    """As tests/golden/README.md says: without program memory, yet with the final enable."""
    operations = npu.stream.operations(golden(name, "config.bin"))
    addresses = [op["address"] for op in operations]
    rows = [address >> 20 & 31 for address in addresses]
    offsets = [address & 0xFFFFF for address in addresses]
    assert not any(r >= 2 and 0x20000 <= o < 0x24000 for r, o in zip(rows, offsets, strict=True))
    cores = json.loads(golden(name, "cores.json"))["cores"] if "gemm" in name else []
    at = npu.stream.tile_address
    enables = [
        {"opcode": "MASKWRITE", "address": at(c["col"], c["row"], 0x32000), "mask": 1, "value": 1}
        for c in cores
    ]
    last = operations[len(operations) - len(cores) :]
    kept = ("opcode", "address", "mask", "value")
    found = [{key: op[key] for key in kept} for op in last]
    assert sorted(found, key=str) == sorted(enables, key=str)
    assert offsets.count(0x32000) == 3 * len(cores)
