"""What a self-test computes, and how far a result may be off.

Each check runs on the device under test and on the emulated NPU of its generation in ``silicon``
arithmetic. Integers, copies and expanded weights must agree bit for bit; elsewhere two results,
each within the error bound of docs/fidelity.md of the exact one, may be twice that bound apart.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

import npu
from npu.devices import Device
from npu.hardware.selftest import products

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# Relative: half a unit in the last place of float32 and of bfloat16.
_HALF_ULP32, _HALF_ULP16 = 2.0**-24, 2.0**-8


@dataclasses.dataclass(frozen=True)
class Bound:
    """The largest difference of an element y: ``absolute + relative * |y|``."""

    absolute: np.ndarray | float
    relative: float = 0.0

    def of(self, y: np.ndarray) -> np.ndarray:
        """For every element of a float64 array."""
        return np.asarray(self.absolute + self.relative * np.abs(y), np.float64)


@dataclasses.dataclass(frozen=True)
class Check:
    """``compute(device=...)`` gives a result, ``bound`` how far two may be apart (None: no bit)."""

    name: str
    operation: str
    sizes: str
    compute: Callable[..., np.ndarray]
    bound: Bound | None = None


@dataclasses.dataclass(frozen=True)
class Difference:
    """How two results compare. ``worst``: the largest share of the bound that is used (bits: the
    number of elements that differ); ``where``, ``found``, ``expected``: the worst element."""

    passed: bool
    worst: float
    where: tuple[int, ...] = ()
    found: float = 0.0
    expected: float = 0.0


def checks(generation: str) -> Iterator[Check]:
    """All checks of "npu1" or "npu2", the simplest first."""
    rng = np.random.default_rng(2026)
    yield _copy(rng)
    yield from _integers(rng)
    yield from _floats(rng, generation)
    yield from _weights(rng)
    yield from _rows(rng, generation)
    yield from _attention(rng)
    yield from _answers()


def compare(check: Check, found: np.ndarray, expected: np.ndarray) -> Difference:
    """``found`` of the device under test beside ``expected`` of the emulated one."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return Difference(False, float("inf"))
    if check.bound is None:
        wrong = _bits(found) != _bits(expected)
        worst, share = float(wrong.sum()), wrong.astype(np.float64)
    else:
        share = _share(found, expected, check.bound.of(expected.astype(np.float64)))
        worst = float(share.max(initial=0.0))
    where = np.unravel_index(int(share.argmax()), share.shape) if share.size else ()
    passed = worst == 0 if check.bound is None else worst <= 1
    if not share.size:
        return Difference(passed, worst)
    return Difference(
        passed, worst, tuple(map(int, where)), float(found[where]), float(expected[where])
    )


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _share(found: np.ndarray, expected: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """The share of the bound that each difference uses; not a number counts as infinitely far,
    unless it is one in both."""
    a, b = found.astype(np.float64), expected.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.abs(a - b) / bound
    return np.where(same, 0.0, np.where(np.isnan(share), np.inf, share))


def _copied(data: np.ndarray, *, device: Device) -> np.ndarray:
    result = np.zeros_like(data)
    device.operation("copy").run({"bytes": data.size}, [data, result])
    return result


def _copy(rng: np.random.Generator) -> Check:
    data = rng.integers(0, 256, 1 << 20, dtype=np.uint8)
    return Check("copy", "copy", "1 MiB", functools.partial(_copied, data))


_M, _K, _N = products.SIZE
_GEMM = f"{_M}x{_K}x{_N}"


def _integers(rng: np.random.Generator) -> Iterator[Check]:
    for one in products.integers():
        dtype = np.dtype(one.dtype)
        top = (1 << (8 * dtype.itemsize - 1)) - 1
        a = rng.integers(-top, top, (_M, _K), dtype=dtype)
        b = rng.integers(-top, top, (_K, _N), dtype=dtype)
        shift = 0 if one.out_dtype == "int32" else 8
        product = functools.partial(npu.matmul, a, b, out_dtype=one.out_dtype, shift=shift)
        yield Check(f"gemm {one.dtype} to {one.out_dtype}", "gemm", _GEMM, product)


def _floats(rng: np.random.Generator, generation: str) -> Iterator[Check]:
    a, b = (rng.standard_normal(shape).astype(BFLOAT16) for shape in ((_M, _K), (_K, _N)))
    magnitudes = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    # A rounding per product, on npu1 to the unit of the largest of eight; BFP16's are exact.
    sums = 2 * (_K + 8) * _HALF_ULP32 * magnitudes
    for one in products.floats(generation):
        out = np.dtype(one.out_dtype)
        last = 2 * _HALF_ULP16 if out == BFLOAT16 else 0.0
        yield Check(
            f"gemm bfloat16 to {out}, {one.bf16}", "gemm", _GEMM,
            functools.partial(npu.matmul, a, b, out_dtype=out, bf16=one.bf16),
            Bound((1 + last) * sums, last),
        )  # fmt: skip


def _weights(rng: np.random.Generator) -> Iterator[Check]:
    n, k = 512, 1152
    packed = npu.q4nx.quantize(rng.normal(0, k**-0.5, (n, k)).astype(np.float32))
    expand = functools.partial(npu.dequantize, packed)
    yield Check("dequantize q4nx", "dequant", f"{n}x{k}", expand)
    # A weight is d code + m: both products, and sums of each.
    d_and_m = np.abs(npu.q4nx.dequantize_host(packed, np.float32).astype(np.float64)) + 2 * k**-0.5
    for vectors in (1, 4):
        x = rng.standard_normal((vectors, k)).astype(BFLOAT16)
        sums = 4 * (k + 8) * _HALF_ULP32 * (np.abs(x.astype(np.float64)) @ d_and_m.T)
        yield Check(
            f"gemv q4nx, {vectors} at a time", "gemv", f"{n}x{k}",
            functools.partial(npu.gemv, packed, x), Bound(sums, 2 * _HALF_ULP16),
        )  # fmt: skip
    yield _small_weights(rng, n, k)


def _small_weights(rng: np.random.Generator, n: int, k: int) -> Check:
    """Of blocks of 4608 bytes, by the bound of docs/gemv.md for q4_0, three times it on npu1."""
    d = rng.normal(0, k**-0.5, (n, k // 32)).astype(BFLOAT16)
    codes = rng.integers(0, 16, (n, k), dtype=np.uint8)
    packed = npu.blocks.BlockTensor(npu.blocks.pack_q4_0(codes, d), (n, k), "q4_0")
    x = rng.standard_normal((4, k)).astype(BFLOAT16)
    products = np.abs(x.astype(np.float64)) @ np.abs(d.astype(np.float64)).repeat(32, axis=1).T
    sums = 2 * 3 * (13702 + 8 * (k / 32 + 2)) * _HALF_ULP32 * products
    return Check(
        "gemv q4_0, 4 at a time", "gemv", f"{n}x{k}", functools.partial(npu.gemv, packed, x),
        Bound(sums, 2 * _HALF_ULP16),
    )  # fmt: skip


def _rows(rng: np.random.Generator, generation: str) -> Iterator[Check]:
    x = rng.standard_normal((24, 640)).astype(BFLOAT16)
    weight = rng.standard_normal(640).astype(np.float32)
    normed = functools.partial(npu.rms_norm, x, weight)
    yield Check("rms_norm", "rms_norm", "24x640", normed, Bound(1e-30, 2.01 * _HALF_ULP16))
    heads = rng.standard_normal((24, 2, 128)).astype(BFLOAT16)
    pair = np.abs(heads.astype(np.float64))
    both = np.tile(pair[..., :64] + pair[..., 64:], 2)
    turned = Bound(2.02 * 4 * _HALF_ULP32 * both, 2 * _HALF_ULP16)
    yield Check("rope", "rope", "24x2x128", functools.partial(npu.rope, heads, 100), turned)
    gate, up = (rng.standard_normal(8192).astype(BFLOAT16) for _ in range(2))
    unit = 0.0002 if generation == "npu1" else 0.0053  # docs/fidelity.md, GeGLU
    formula = Bound(1e-30, 2 * (_HALF_ULP16 * (1 + unit) + unit))
    yield Check("geglu", "geglu", "8192", functools.partial(npu.geglu, gate, up), formula)


def _attention(rng: np.random.Generator) -> Iterator[Check]:
    for tokens, keys, window in ((1, 700, None), (96, 96, None), (64, 300, 40)):
        q = rng.standard_normal((tokens, 4, 128)).astype(BFLOAT16)
        k, v = (rng.standard_normal((keys, 1, 128)).astype(BFLOAT16) for _ in range(2))
        name = "attention" if window is None else f"attention, window {window}"
        yield Check(
            name, "attention", f"{tokens} of {keys}",
            functools.partial(npu.attention, q, k, v, window=window),
            Bound(2 * _attention_bound(q, k, v, window), 2 * _HALF_ULP16),
        )  # fmt: skip


_QUESTIONS = ("What is 17 + 25?", "What is the capital of France?", "What is 8 - 3?")
_TOKENS = 8


def _answers() -> Iterator[Check]:
    """Answers of the demo model, whose tokens must be the same: in both arithmetics every one of
    them is 8 logits ahead of the next, far more than roundings move. A prompt is one submission,
    then a token is; in a batch a token of every sequence."""
    about = f"{_TOKENS} tokens"
    yield Check("answer of the demo model", "prefill", about, _answered)
    yield Check(f"{len(_QUESTIONS)} answers at a time", "prefill", about, _answered_together)


def _demo() -> tuple[Any, list[list[int]]]:
    """The model and its prompts, on the device that is current."""
    from npu.errors import FileError
    from npu.models import gemma3
    from npu.models.demo import demo_model

    path = demo_model()
    if path is None:
        raise FileError("[selftest] the demo model's file is missing; install the package again")
    model, tokenizer = gemma3.load(path, cache=False)
    chats = [tokenizer.render_chat([{"role": "user", "content": one}]) for one in _QUESTIONS]
    return model, [tokenizer.encode(chat) for chat in chats]


@contextlib.contextmanager
def _current(device: Device) -> Iterator[None]:
    """Makes this very device the one of models, with prompts and batches on the array, where
    NPU_BF16 would have products, and what is fastest on the host decode steps."""
    from npu.devices import _selected

    view = copy.copy(device)
    view.bf16_chosen = None
    view.prefers = "array"
    token = _selected.set(view)
    try:
        yield
    finally:
        _selected.reset(token)


def _answered(*, device: Device) -> np.ndarray:
    with _current(device):
        model, (prompt, *_) = _demo()
        cache, tokens = model.new_cache(), []
        logits = model.forward(prompt, cache)
        for _ in range(_TOKENS):
            tokens.append(int(logits[0].argmax()))
            logits = model.forward(tokens[-1:], cache)
    return np.array(tokens, np.int32)


def _answered_together(*, device: Device) -> np.ndarray:
    with _current(device):
        model, prompts = _demo()
        caches = [model.new_cache() for _ in prompts]
        for prompt, cache in zip(prompts, caches, strict=True):
            model.extend(prompt[:-1], cache)
        rows = [np.array([prompt[-1] for prompt in prompts])]
        for _ in range(_TOKENS):
            rows.append(model.decode_batch(rows[-1].tolist(), caches).argmax(1))
    return np.stack(rows[1:], 1).astype(np.int32)


def _attention_bound(q: np.ndarray, k: np.ndarray, v: np.ndarray, window: int | None) -> np.ndarray:
    """docs/attention.md's bound without its last rounding; one key head for all of q's."""
    wide_q, wide_k, wide_v = (array.astype(np.float64) for array in (q, k[:, 0], v[:, 0]))
    tokens, _, d = q.shape
    keys, scale = len(k), d**-0.5
    positions = np.arange(keys - tokens, keys)[:, None, None]
    visible = np.arange(keys) <= positions
    if window is not None:
        visible &= np.arange(keys) > positions - window
    scores = np.where(visible, scale * wide_q @ wide_k.T, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    total = weights.sum(-1, keepdims=True)
    finite = np.where(visible, np.abs(scores), 0.0)
    products = scale * np.abs(wide_q) @ np.abs(wide_k).T
    r = (d + 4) * 2 * _HALF_ULP32 * products + 4 * _HALF_ULP32 * finite + _HALF_ULP16 + 7.6e-5
    y = weights @ wide_v / total
    first = (
        (weights * r) @ np.abs(wide_v) + np.abs(y) * (weights * r).sum(-1, keepdims=True)
    ) / total
    return first + keys * 2 * _HALF_ULP32 * (weights @ np.abs(wide_v)) / total
