"""Every device: every registered operation gives the bits that the emulated NPU of its generation
gives without reloads and from host memory, at sizes of one and of several tasks, in any order and
repeatedly; a new size loads nothing on a device that stays configured; results agree with float64.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import shutil
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import npu
from npu._npu import facts
from npu.models.gemma3.model import Model
from npu.models.sources import open_source
from npu.ops.registry import operations

BF16 = np.dtype(ml_dtypes.bfloat16)
FORMATS = tuple(facts.BLOCK_COLUMNS)  # of weight blocks


# Numbers of a block that are not codes.
_NUMBERS = {"q4nx": (512, BF16), "q8": (256, np.float32), "bf16": (2560, BF16),
            "q4_0": (256, BF16), "q8_0": (128, np.float32)}  # fmt: skip


def _blocks(
    rng: np.random.Generator, n: int, k: int, format: str = "q4nx"
) -> tuple[np.ndarray, tuple[int, int], str]:
    """Random blocks with finite scales and minima."""
    count = -(-n // 32) * -(-k // facts.BLOCK_COLUMNS[format])
    blocks = rng.integers(0, 256, (count, facts.BYTES_OF_BLOCK[format]), dtype=np.uint8)
    numbers, kind = _NUMBERS[format]
    planes = rng.normal(0, 0.01, (count, numbers)).astype(kind).view(np.uint8)
    blocks[:, : planes.shape[1]] = planes
    return blocks, (n, k), format


def _gemm(rng: np.random.Generator, m: int, k: int, n: int) -> np.ndarray:
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    return npu.matmul(a, b)


def _gemm_int8(rng: np.random.Generator, m: int, k: int, n: int) -> np.ndarray:
    a, b = (rng.integers(-128, 128, shape, dtype=np.int8) for shape in ((m, k), (k, n)))
    return npu.matmul(a, b, out_dtype=np.int8, shift=8)


def _gemm_packed(rng: np.random.Generator, m: int, k: int, n: int) -> np.ndarray:
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (n, k)))
    return npu.matmul(a, npu.pack(b.T))


def _gemm_blocks(rng: np.random.Generator, m: int, k: int, n: int) -> np.ndarray:
    """A plain A by a B in BFP16 blocks, then the result, in blocks itself, by another, with
    float32 sums: narrower ones depend on the configuration. npu1, which has no blocks, says so."""
    a, b, c = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n), (n, k)))
    left, right = npu.pack(b, format="bfp16"), npu.pack(c.T, format="bfp16", side="a").T
    if npu.current_device().generation == "npu1":
        with pytest.raises(npu.errors.DeviceError):
            npu.matmul(a, left)
        return np.zeros(0)
    first = npu.matmul(a, left, out_dtype="bfp16")
    second = npu.matmul(first, right)
    return np.concatenate([second.to_numpy(), npu.matmul(first, right, out_dtype="float32")])


def _gemv(rng: np.random.Generator, n: int, k: int, batch: int, *format: str) -> np.ndarray:
    x = rng.standard_normal((batch, k)).astype(np.float32)
    return npu.gemv(_blocks(rng, n, k, *format), x)


def _gemv_top(rng: np.random.Generator, n: int, k: int, top: int, *format: str) -> np.ndarray:
    x = rng.standard_normal(k).astype(np.float32)
    values, rows = npu.gemv_top(_blocks(rng, n, k, *format), x, top)
    return np.concatenate([values.astype(np.float64), rows])


def _dequant(rng: np.random.Generator, n: int, k: int, *format: str) -> np.ndarray:
    return npu.dequantize(_blocks(rng, n, k, *format))


def _rms_norm(rng: np.random.Generator, rows: int, width: int) -> np.ndarray:
    x = rng.standard_normal((rows, width)).astype(BF16)
    return npu.rms_norm(x, rng.standard_normal(width).astype(np.float32))


def _rms_norm_residual(rng: np.random.Generator, rows: int, width: int) -> np.ndarray:
    x, residual = (rng.standard_normal((rows, width)).astype(BF16) for _ in range(2))
    return npu.rms_norm(x, residual=residual)


def _rope(rng: np.random.Generator, tokens: int, heads: int, width: int) -> np.ndarray:
    return npu.rope(rng.standard_normal((tokens, heads, width)).astype(BF16), 1000, factor=8)


def _rope_normed(rng: np.random.Generator, tokens: int, heads: int, width: int) -> np.ndarray:
    x = rng.standard_normal((tokens, heads, width)).astype(BF16)
    weight = rng.standard_normal(width).astype(np.float32)
    return npu.rope(x, rng.integers(0, 131072, tokens), base=1e6, norm_weight=weight)


def _geglu(rng: np.random.Generator, rows: int, width: int) -> np.ndarray:
    both = rng.standard_normal((rows, 2 * width)).astype(BF16)
    return npu.geglu(both[:, :width], both[:, width:])


def _attention(
    rng: np.random.Generator, tokens: int, keys: int, heads: int, kv_heads: int, width: int
) -> np.ndarray:
    q = rng.standard_normal((tokens, heads, width)).astype(BF16)
    k, v = (rng.standard_normal((keys, kv_heads, width)).astype(BF16) for _ in range(2))
    return npu.attention(q, k, v)


@functools.cache
def _model(heads: int, kv_heads: int, width: int, size: str = "large") -> Path:
    """A file with a model of six layers, five with a window, whose blocks are large or small."""
    files = pytest.importorskip("gemma3_files", reason="writes a model with the gguf package")
    shape = files.Shape(
        layers=6, width=64, ffn_width=96, heads=heads, kv_heads=kv_heads, head_dim=width, window=6
    )
    folder = Path(tempfile.mkdtemp(prefix="npu-conformance-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    types = files.small_types(6) if size == "small" else None
    return files.write_model(folder / "m.gguf", shape, types=types)


def _decoder(
    rng: np.random.Generator, tokens: int, heads: int, kv: int, width: int, *size: str
) -> np.ndarray:
    """Logits, then the largest of them, token by token."""
    model = Model(open_source(_model(heads, kv, width, *size)))
    assert model.decodes_on_array
    cache, out = model.new_cache(), []
    for token in rng.integers(0, 200, tokens):
        out.append(model.forward([int(token)], cache)[0])
        values, ids = model.top([int(token)], cache, 7, 300)
        out.append(np.concatenate([values, ids.astype(np.float32)]))
    return np.concatenate(out)


def _prefill(
    rng: np.random.Generator, tokens: int, heads: int, kv: int, width: int, *size: str
) -> np.ndarray:
    """The last layer's output of two chunks, and what they leave in the cache."""
    model = Model(open_source(_model(heads, kv, width, *size)))
    prompts = model._prefill()
    assert prompts is not None
    cache, out = model.new_cache(), []
    for count in (tokens, 5):
        with cache.running(np.arange(count)):
            x = rng.standard_normal((count, 64)).astype(np.float32)
            out.append(prompts.run(x, cache).reshape(-1).copy())
    keys = [cache.pool[page * cache.page_bytes :][: cache.page_bytes] for page in range(6)]
    return np.concatenate([*out, np.concatenate(keys).view(BF16).astype(np.float32)])


def _batch(_: np.random.Generator, heads: int, kv: int, width: int, *size: str) -> np.ndarray:
    """Logits of three sequences of different lengths, and what they leave in their caches. On the
    array: an emulated NPU would run single tokens as decode steps."""
    device = npu.current_device()
    batching = npu.device(
        device.name, arithmetic=device.arithmetic, bf16=device.bf16_chosen, designs="array"
    )
    with nullcontext() if device.prefers == "array" else batching:
        model = Model(open_source(_model(heads, kv, width, *size)))
        assert model.batches_on_array
        caches, out = [model.new_cache() for _ in range(3)], []
        for cache, count in zip(caches, (40, 0, 7), strict=True):
            model.extend(list(range(count)), cache)
        for new in ([1, [2, 3, 4], 5], [[6, 7], 8, list(range(8))]):
            out.append(model.decode_batch(new, caches).reshape(-1))
        keys = [cache.pool[page * cache.page_bytes :][: cache.page_bytes]
                for cache in caches for page in cache.page_table(0)[:1].tolist()]  # fmt: skip
        return np.concatenate([*out, np.concatenate(keys).view(BF16).astype(np.float32)])


def _copy(rng: np.random.Generator, size: int) -> np.ndarray:
    data = rng.integers(0, 256, size, dtype=np.uint8)
    result = np.zeros_like(data)
    npu.current_device().operation("copy").run({"bytes": size}, [data, result])
    return result


CASES: dict[str, tuple[Callable[..., np.ndarray], tuple[int | str, ...]]] = {
    "copy": (_copy, (3 << 16,)),
    "copy, one column": (_copy, (4096,)),
    "gemm": (_gemm, (256, 128, 512)),
    "gemm, ragged": (_gemm, (300, 500, 700)),
    "gemm, one element": (_gemm, (1, 1, 1)),
    "gemm, int8": (_gemm_int8, (300, 300, 100)),
    "gemm, packed": (_gemm_packed, (65, 200, 300)),
    "gemm, blocks": (_gemm_blocks, (256, 256, 512)),
    "gemm, blocks, ragged": (_gemm_blocks, (70, 300, 130)),
    "gemv": (_gemv, (1536, 1152, 1)),
    "gemv, ragged batch": (_gemv, (100, 300, 11)),
    "gemv, long x": (_gemv, (96, 9000, 2)),
    "gemv, top": (_gemv_top, (5000, 512, 5)),
    **{f"gemv, {format}": (_gemv, (500, 700, 3, format)) for format in FORMATS[1:]},
    "gemv, q4_0, one vector": (_gemv, (1536, 1152, 1, "q4_0")),
    "gemv, q8_0, top": (_gemv_top, (5000, 512, 5, "q8_0")),
    **{f"dequant, {format}": (_dequant, (320, 1000, format)) for format in FORMATS[1:]},
    "dequant": (_dequant, (320, 512)),
    "dequant, ragged": (_dequant, (70, 300)),
    "dequant, many tasks": (_dequant, (6000, 256)),
    "rms_norm": (_rms_norm, (33, 1152)),
    "rms_norm, one row": (_rms_norm, (1, 5)),
    "rms_norm, widest": (_rms_norm, (6, 16384)),
    "rms_norm, many tasks": (_rms_norm, (3000, 128)),
    "rms_norm, residual": (_rms_norm_residual, (33, 1152)),
    "rms_norm, residual, many tasks": (_rms_norm_residual, (2999, 130)),
    "rope": (_rope, (33, 4, 256)),
    "rope, one vector": (_rope, (1, 1, 64)),
    "rope, many tasks": (_rope, (2999, 1, 128)),
    "rope, normed": (_rope_normed, (70, 3, 256)),
    "geglu": (_geglu, (3, 6912)),
    "geglu, one element": (_geglu, (1, 1)),
    "attention": (_attention, (50, 300, 4, 1, 256)),
    "attention, one token": (_attention, (1, 500, 8, 4, 128)),
    "attention, many tasks": (_attention, (900, 900, 2, 2, 64)),
    "decoder": (_decoder, (6, 4, 2, 32)),
    "decoder, six key heads": (_decoder, (2, 6, 6, 64)),
    "decoder, large heads": (_decoder, (2, 8, 1, 256)),
    "decoder, small blocks": (_decoder, (6, 4, 2, 32, "small")),
    "prefill": (_prefill, (40, 4, 2, 32)),
    "prefill, several jobs": (_prefill, (150, 6, 6, 64)),
    "prefill, large heads": (_prefill, (9, 8, 1, 256)),
    "prefill, small blocks": (_prefill, (40, 4, 2, 32, "small")),
    "prefill, a batch": (_batch, (4, 2, 32)),
    "prefill, a batch, large heads": (_batch, (8, 1, 256)),
    "prefill, a batch, small blocks": (_batch, (4, 2, 32, "small")),
    "geglu, many tasks": (_geglu, (2200, 1001)),
}
_sizes = itertools.count(41)  # in units that no other test uses
_expected: dict[tuple[str, str], bytes] = {}


def compute(name: str) -> np.ndarray:
    function, sizes = CASES[name]
    return function(np.random.default_rng(7), *sizes)


def expected(name: str, device: Any) -> bytes:
    key = name, device.generation
    if key not in _expected:
        with npu.device(f"emu:{device.generation}", bf16=device.bf16):
            _expected[key] = compute(name).tobytes()
    return _expected[key]


def test_every_operation_has_cases():
    assert {name.split(",")[0] for name in CASES} == set(operations())


@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_the_emulated_npu(device, name):
    for _ in range(3):
        assert compute(name).tobytes() == expected(name, device)


def test_operations_may_follow_each_other_in_any_order(device):
    order = list(CASES)
    np.random.default_rng(3).shuffle(order)
    for name in order:
        assert compute(name).tobytes() == expected(name, device)


def test_a_new_size_loads_nothing(device):
    """A second, unseen size of every operation builds a stream and no configuration."""
    rng = np.random.default_rng(0)
    calls: list[Callable[[int], np.ndarray]] = [
        lambda size: _gemv(rng, 32 * size, 512, 1),
        lambda size: _gemv(rng, 32 * size, 512, 1, "q4_0"),
        lambda size: _dequant(rng, 32 * size, 256),
        lambda size: _dequant(rng, 32 * size, 256, "q8_0"),
        lambda size: _rms_norm(rng, size, 128),
        lambda size: _rope(rng, size, 1, 256),
        lambda size: _geglu(rng, size, 4096),
        lambda size: _attention(rng, size, size, 1, 1, 64),
    ]
    for call in calls:
        call(next(_sizes))
        before = npu.stats()
        size = next(_sizes)
        call(size)
        delta = npu.stats() - before
        assert delta.configuration_loads == 0 and delta.streams_built >= 1
        before = npu.stats()
        call(size)
        delta = npu.stats() - before
        assert delta.streams_built == 0 and delta.stream_hits >= 1


def test_submissions_are_timed_by_every_operation(device):
    rng = np.random.default_rng(0)
    for call in (
        lambda: _gemm(rng, 64, 64, 64), lambda: _gemv(rng, 64, 256, 1),
        lambda: _dequant(rng, 64, 256), lambda: _rms_norm(rng, 4, 128),
        lambda: _rope(rng, 16, 1, 256), lambda: _geglu(rng, 1, 4096),
        lambda: _attention(rng, 4, 9, 2, 1, 64),
    ):  # fmt: skip
        call()
        before = npu.stats()
        call()
        delta = npu.stats() - before
        assert delta.submissions >= 1 and delta.submit_overhead_ns > 0


def test_rope_is_the_formula(device):
    """Within half a unit in the last place of bfloat16 and, of each pair's magnitudes, four fp32
    roundings: table, two products, sum."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((50, 3, 128)).astype(BF16)
    pairs = x.astype(np.float64).reshape(50, 3, 2, 64)
    angles = (131000 + np.arange(50))[:, None, None] * 10000.0 ** (-np.arange(64) / 64)
    turned = (pairs[:, :, 0] + 1j * pairs[:, :, 1]) * np.exp(1j * angles)
    exact = np.concatenate([turned.real, turned.imag], -1)
    before = np.tile(np.abs(pairs).sum(2), 2) * 4 * 2.0**-24
    found = npu.rope(x, 131000).astype(np.float64)
    assert np.all(np.abs(found - exact) <= np.abs(exact) * 2.0**-8 + before * 1.01)


def test_geglu_is_the_formula(device):
    """Within half a unit in the last place of bfloat16, and before it twice 2^-8 of the value: the
    two roundings to bfloat16 of the unit for exp2 and tanh, where there is one; results below 1e-36
    may be 0."""
    rng = np.random.default_rng(1)
    gate, up = (3 * rng.standard_normal((2, 7000))).astype(BF16)
    g = gate.astype(np.float64)
    exact = g / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))) * up.astype(float)
    found = npu.geglu(gate, up).astype(np.float64)
    assert np.all(np.abs(found - exact) <= np.abs(exact) * 3 * 2.0**-8 + 1e-36)


def test_copy_copies(device):
    data = np.random.default_rng(3).integers(0, 256, 1 << 17, dtype=np.uint8)
    result = np.zeros_like(data)
    device.operation("copy").run({"bytes": data.size}, [data, result])
    np.testing.assert_array_equal(result, data)


def test_rms_norm_is_the_formula(device):
    """Within half a unit in the last place of bfloat16, at most 2^-8 of a value, and the fp32
    errors before it, 2^-24 of the value each: 32 additions per lane and 5 across lanes, halved by
    the root, the mean, the root itself and two products."""
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((50, 1000)) * np.exp(rng.uniform(-20, 20, (50, 1)))).astype(BF16)
    w = rng.standard_normal(1000).astype(np.float32)
    wide = x.astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * w
    before = (37 / 2 + 4) * 2.0**-24
    bound = np.abs(exact) * (2.0**-8 * (1 + before) + before)
    found = npu.rms_norm(x, w).astype(np.float64)
    assert np.all(np.abs(found - exact) <= bound)
