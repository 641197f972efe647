"""Every step of a layer of a prompt (npu.ops registry's "prefill") against NumPy in float64: what a
step leaves in the workspace, from what the one before it left there. The layout is that of
backend/ops/prefill/prefill_layout.h, blocks and units that of aie_kernels/prefill_job.h."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import compare
import ml_dtypes
import numpy as np
import pytest

from npu._npu import facts
from npu.ops.registry import operation
from npu.perf.execution import execute

BF16 = ml_dtypes.bfloat16
PAYLOAD, BLOCK, RECORD, EPS = 4096, 512, 1536, 1e-6


def up(count: int, to: int) -> int:
    return -(-count // to) * to


@dataclasses.dataclass(frozen=True)
class Size:
    tokens: int = 40
    position: int = 0
    width: int = 512
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 256
    ffn: int = 512
    window: int = 512


SIZES = {
    "2:1": Size(),
    "a token, ragged width": Size(tokens=1, width=320, heads=4, kv_heads=2, head_dim=64),
    "in the middle of 16 positions": Size(position=19, heads=4, kv_heads=2, head_dim=128, width=96),
    "a window, several jobs": Size(
        tokens=150, heads=6, kv_heads=2, head_dim=64, width=128, window=20, ffn=96
    ),
}


class Chunk:
    """Memory of a layer's chunk, and runs of its steps."""

    def __init__(self, size: Size, device: str, format_: str) -> None:
        self.s = s = size
        columns, self.units, a_bytes = (8, 4, 4608) if device == "npu2" else (4, 2, 4096)
        self.bfp16 = device == "npu2"
        self.op = operation("prefill")
        self.config = self.op.configuration(device)
        self.lead, cores, heads = s.position % 16, 4 * columns, s.heads + 2 * s.kv_heads
        self.end = self.lead + s.tokens
        rows = up(-(-self.end // 8), 8)
        self.rows = rows if rows <= 16 else up(rows, cores)
        self.blocks = up(-(-s.width // 32), 8)
        ffn, mixed = up(s.ffn // 32, 8), up(s.heads * s.head_dim // 32, 8)
        self.group = s.heads // s.kv_heads
        while (self.units * columns) % self.group:
            self.group += 1
        column, unit, units = self.rows * BLOCK, 16 * s.head_dim, self.units * cores
        slack = cores * a_bytes + 16 * column
        jobs = -(-self.rows * self.group // units)
        self.attention_rows = jobs * units // self.group
        self.query_bytes = jobs * units * unit + 5120
        self.norm_objects = -(-2 * self.blocks * 32 * 4 // PAYLOAD)
        dump = up(max(self.blocks * 2 * RECORD, heads * 2 * unit + a_bytes), 64)
        parts = {
            "records": self.blocks * self.rows * RECORD + 3 * slack,
            "factors": self.rows * BLOCK + 2 * cores * BLOCK,
            "qkv": heads * s.head_dim // 32 * column + slack,
            "queries": s.kv_heads * self.query_bytes,
            "attention": (mixed + 8) * self.attention_rows * BLOCK,
            "y": self.blocks * column + slack,
            **dict.fromkeys(("gate", "up", "act"), ffn * column + slack),
            **dict.fromkeys(("whole", "sliding"), up(self.rows, cores) * 32 * s.head_dim + a_bytes),
            "dump": columns * dump,  # a place for each
            "constants": (2 * self.norm_objects + 1) * PAYLOAD,
            "last": self.norm_objects * PAYLOAD + a_bytes,
        }  # fmt: skip
        self.at, total = {}, 0
        for name, count in parts.items():
            self.at[name], total = total, total + up(count, 64)
        self.request = {
            "sliding": 1, "global": 0, **dataclasses.asdict(s),
            "format": list(facts.BLOCK_COLUMNS).index(format_),
        }  # fmt: skip
        (whole,) = self.op.submissions(self.config, self.request)
        sizes = [one["bytes"] for one in whole.arguments]
        assert sizes[0] == total, "the layout is another one"
        self.weight_bytes = sizes[3]
        self.memory, self.pool = np.zeros(total, np.uint8), np.zeros(sizes[1], np.uint8)
        self.weights = np.zeros(0, np.uint8)

    def run(self, step: int) -> None:
        request = {**self.request, "first_step": step, "steps": 1}
        (one,) = self.op.submissions(self.config, request)
        headers = np.zeros(one.arguments[2]["bytes"], np.uint8)
        contents = np.frombuffer(one.arguments[2]["contents"], np.uint8)
        headers[: len(contents)] = contents
        data = [self.memory, self.pool, headers, self.weights]
        execute(self.config, one.stream, data=data, timed=False)

    def part(self, name: str, count: int, type_: Any) -> np.ndarray:
        at = self.at[name]
        return self.memory[at : at + count].view(type_)

    def plain(self, name: str, columns: int) -> np.ndarray:
        """Rows of tokens (rows, columns), blocks row by row."""
        v = self.part(name, columns // 32 * self.rows * BLOCK, BF16)
        v = v.reshape(-1, self.rows, 8, 32).transpose(1, 2, 0, 3)
        return v.reshape(self.rows * 8, columns).astype(np.float64)[: self.end]

    def operands(self, v: np.ndarray, rows: int) -> np.ndarray:
        """Blocks of BLOCK bytes: bfloat16 in tiles [2][4][4][8]; npu2: BFP16, [4][8] of 9 bytes."""
        if self.bfp16:
            v = v.reshape(-1, rows, BLOCK)[:, :, :288].reshape(-1, rows, 4, 8, 9)
            unit = np.exp2(v[..., :1].astype(np.float64) - 133)
            v = (v[..., 1:].view(np.int8) * unit).transpose(1, 3, 0, 2, 4)
        else:
            v = v.view(BF16).reshape(-1, rows, 2, 4, 4, 8).transpose(1, 2, 4, 0, 3, 5)
        return v.reshape(rows * 8, -1).astype(np.float64)[: self.end]

    def tiled(self, name: str, columns: int, rows: int) -> np.ndarray:
        return self.operands(self.part(name, columns // 32 * rows * BLOCK, np.uint8), rows)

    def records(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """x, a (rows, width) and f (rows)."""
        v = self.part("records", self.blocks * self.rows * RECORD, np.uint8)
        v = v.reshape(self.blocks, self.rows, RECORD)
        x = v[:, :, :1024].copy().view(np.float32).reshape(self.blocks, self.rows, 8, 32)
        x = x.transpose(1, 2, 0, 3).reshape(self.rows * 8, -1).astype(np.float64)
        a = self.operands(v[:, :, 1024:].copy(), self.rows)
        f = self.part("factors", self.rows * BLOCK, np.float32).reshape(self.rows, 128)[:, :8]
        w = self.s.width
        return x[: self.end, :w], a[:, :w], f.reshape(-1)[: self.end].astype(np.float64)

    def put_x(self, x: np.ndarray) -> None:
        wide = np.zeros((self.rows * 8, self.blocks * 32), np.float32)
        wide[:, : x.shape[1]] = x
        blocks = np.ascontiguousarray(wide.reshape(self.rows, 8, -1, 32).transpose(2, 0, 1, 3))
        v = self.part("records", self.blocks * self.rows * RECORD, np.uint8)
        v = v.reshape(self.blocks, self.rows, RECORD)
        v[:, :, :1024] = blocks.reshape(self.blocks, self.rows, 256).view(np.uint8)

    def put(self, name: str, offset: int, values: np.ndarray) -> None:
        self.memory[self.at[name] + offset :][: values.nbytes] = values.reshape(-1).view(np.uint8)

    def queries(self) -> np.ndarray:
        """(rows, heads, head_dim)."""
        s, out = self.s, []
        for head in range(s.kv_heads):
            at = self.at["queries"] + head * self.query_bytes
            v = self.memory[at : at + self.rows * self.group * 16 * s.head_dim].view(BF16)
            v = v.reshape(self.rows, self.group, s.head_dim // 32, 8, 32).transpose(0, 3, 1, 2, 4)
            out.append(v.reshape(self.rows * 8, self.group, s.head_dim))
        q = np.stack(out, 1)[: self.end, :, : s.heads // s.kv_heads]
        return q.reshape(self.end, s.heads, s.head_dim).astype(np.float64)

    def cached(self, values: int) -> np.ndarray:
        """K or V (tokens, kv_heads, head_dim) of the chunk's own positions."""
        s = self.s
        size = 4096 // s.head_dim
        page = 1024 * s.kv_heads * s.head_dim  # bytes; streams may read behind the last one
        pool = self.pool[: len(self.pool) // page * page]
        pool = pool.view(BF16).reshape(-1, s.kv_heads, 256 // size, 2, size, s.head_dim)
        first = max(0, s.position - s.window + 1) // 256
        rows = range(s.position, s.position + s.tokens)
        found = [pool[p // 256 - first, :, p % 256 // size, values, p % size] for p in rows]
        return np.stack(found).astype(np.float64)


def weights(rng: np.random.Generator, n: int, k: int, format: str) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of q4nx, q4_0 or q8_0, and their values (n, k)."""
    if format == "q8_0":
        shape = -(-n // 32), -(-k // 128)
        scales = rng.normal(0, 0.001, (*shape, 4, 32)).astype(np.float32)
        codes = rng.integers(-128, 128, (*shape, 128, 32)).astype(np.int8)
        blocks = [part.reshape(*shape, -1).view(np.uint8) for part in (scales, codes)]
        values = scales.astype(np.float64).repeat(32, axis=2) * codes
        values = values.transpose(0, 3, 1, 2).reshape(shape[0] * 32, -1)
        return np.concatenate(blocks, -1).reshape(-1), values[:n, :k]
    shape = -(-n // 32), -(-k // 256)
    d, m = (rng.normal(0, std, (*shape, 8, 32)).astype(BF16) for std in (0.01, 0.05))
    codes = rng.integers(0, 16, (*shape, 256, 32))
    blocks = np.zeros((*shape, 5120), np.uint8)
    blocks[:, :, :512] = d.reshape(*shape, -1).view(np.uint8)
    blocks[:, :, 512:1024] = m.reshape(*shape, -1).view(np.uint8)
    pairs = codes.reshape(*shape, 256, 2, 8, 2).transpose(0, 1, 3, 2, 4, 5)
    blocks[:, :, 1024:] = (pairs[..., 0] | pairs[..., 1] << 4).reshape(*shape, -1)
    d, m = d.astype(np.float64)[:, :, :, None], m.astype(np.float64)[:, :, :, None]
    values = d * codes.reshape(*shape, 8, 32, 32) + m
    if format == "q4_0":
        blocks = np.delete(blocks, np.s_[512:1024], axis=2)
        values = d * (codes.reshape(*shape, 8, 32, 32) - 8)
    values = values.reshape(*shape, 256, 32).transpose(0, 3, 1, 2).reshape(shape[0] * 32, -1)
    return blocks.reshape(-1), values[:n, :k]


def normed(v: np.ndarray, w: np.ndarray) -> np.ndarray:
    return v / np.sqrt((v**2).mean(-1, keepdims=True) + EPS) * w


def rotated(v: np.ndarray, angles: np.ndarray) -> np.ndarray:
    c, s = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = np.split(v, 2, axis=-1)
    return np.concatenate([a * c - b * s, b * c + a * s], -1)


def product_rms(a: np.ndarray, w: np.ndarray, device: str) -> float:
    """Root mean square error of a @ w.T relative to it: the weights and the result rounded to
    bfloat16; on npu2 both operands off by a uniform part of their bfp16's steps."""
    error = 2 * compare.BF16_RMS**2
    if device == "npu2":
        da, dw = compare.bfp16_unit(a, -1) ** 2 / 12, compare.bfp16_unit(w, -1) ** 2 / 12
        error += (da @ (w**2).T + (a**2) @ dw.T).mean() / ((a @ w.T) ** 2).mean()
    return math.sqrt(error)


@pytest.mark.parametrize("device", ["npu1", "npu2"])
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("format_", ["q4nx", "q4_0", "q8_0"])
def test_every_step_of_a_layer(name: str, device: str, format_: str) -> None:
    c, s = Chunk(SIZES[name], device, format_), SIZES[name]
    rng = np.random.default_rng(0)
    own = slice(c.lead, c.end)
    d, q_size, kv_size = s.head_dim, s.heads * s.head_dim, s.kv_heads * s.head_dim
    sizes = [(q_size + 2 * kv_size, s.width), (s.width, q_size), (2 * s.ffn, s.width),
             (s.width, s.ffn), (64, s.width)]  # fmt: skip
    blocks, (w_qkv, w_out, w_ffn, w_down, _) = zip(
        *(weights(rng, *one, format_) for one in sizes), strict=True
    )
    # Objects of a large block's size read beyond the last small one; of NaNs here.
    beyond = np.full(0 if format_ == "q4nx" else 512, 0xFF, np.uint8)
    c.weights = np.concatenate([*blocks, beyond])
    assert len(c.weights) == c.weight_bytes
    x = rng.normal(size=(c.rows * 8, s.width)).astype(np.float32)
    g1, g2, g3 = (1 + 0.1 * rng.normal(size=(3, s.width))).astype(np.float32)
    qw, kw = (1 + 0.1 * rng.normal(size=(2, d))).astype(np.float32)
    positions = s.position - c.lead + np.arange(c.rows * 8)
    angles = positions[:, None] * 1e4 ** (-np.arange(d // 2) * 2 / d)
    c.put_x(x)
    second, objects = c.blocks * 128, c.norm_objects * PAYLOAD
    for offset, values in ((second, g1), (objects, g2), (objects + second, g3),
                           (2 * objects, qw), (2 * objects + 4 * d, kw)):  # fmt: skip
        c.put("constants", offset, values)
    table = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    c.put("sliding", 0, table)
    angles, x = angles[: c.end], x[: c.end].astype(np.float64)
    unit = compare.BF16_RMS

    def product(actual: np.ndarray, left: np.ndarray, w: np.ndarray, factor: Any = 1) -> None:
        # 1.5: the errors of few rows scatter, blocks of weights have common signs.
        close(actual, left @ w.T * factor, 1.5 * product_rms(left, w, device))

    def close(actual: np.ndarray, expected: np.ndarray, bound: float) -> None:
        """Largest error six standard deviations of the bound, root mean square error within it."""
        assert np.isfinite(actual).all()
        assert compare.rms_error(actual, expected) <= bound
        assert compare.max_error(actual, expected) <= 6 * bound * max(
            1, np.abs(expected).max() / expected.std() / 3
        )

    def operand(actual: np.ndarray, expected: np.ndarray, bound: float) -> None:
        """What is multiplied next, on npu2 in BFP16: a bfloat16 value of the block's exponent is a
        multiple of half a step, so that rounding it moves it by none or half: a variance of 1/8."""
        if device == "npu2":
            steps = (compare.bfp16_unit(expected, -1) ** 2).mean() / 8 / (expected**2).mean()
            bound = math.sqrt(bound**2 + steps)
        close(actual, expected, bound)

    c.run(0)
    x0, a, f = c.records()
    assert np.array_equal(x0, x)
    operand(a, x * g1, unit * 1.5)
    np.testing.assert_allclose(f, 1 / np.sqrt((x**2).mean(1) + EPS), rtol=2e-5)
    c.run(1)
    qkv = c.plain("qkv", sizes[0][0])
    product(qkv, a, w_qkv, f[:, None])
    c.run(2)
    heads = qkv.reshape(c.end, -1, d)
    q, k, v = np.split(heads, [s.heads, s.heads + s.kv_heads], axis=1)
    close(c.queries(), rotated(normed(q, qw), angles), unit * 1.5)
    close(c.cached(0), rotated(normed(k, kw), angles)[own], unit * 1.5)
    assert np.array_equal(c.cached(1), v[own])
    c.run(3)
    mixed = c.tiled("attention", q_size, c.attention_rows).reshape(c.end, s.heads, d)[own]
    q, k, v = c.queries()[own], c.cached(0), c.cached(1)
    k, v = (one.repeat(s.heads // s.kv_heads, axis=1) for one in (k, v))
    back = np.arange(s.tokens)[:, None] - np.arange(s.tokens)
    scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(d)
    # The cache before the chunk is zeros: keys that score 0 and weigh in with values of 0.
    earlier = np.minimum(s.position, np.maximum(0, s.window - 1 - np.arange(s.tokens)))
    scores = np.where((back >= 0) & (back < s.window), scores, -np.inf)
    p = np.exp(scores)
    expected = np.einsum("hqk,khd->qhd", p / (p.sum(-1, keepdims=True) + earlier[:, None]), v)
    own_error = 2 + (compare.BFP16_NORMAL * 3 + compare.BFP16_SOFTMAX if device == "npu2" else 0)
    operand(
        mixed.reshape(-1, q_size), expected.reshape(-1, q_size), unit * math.sqrt(own_error + 2)
    )
    c.run(4)
    y = c.plain("y", s.width)
    whole = c.tiled("attention", q_size, c.attention_rows)
    product(y[own], whole[own], w_out)
    c.run(5)
    x1, a, f = c.records()
    np.testing.assert_allclose(x1[own], (x + normed(y, g2))[own], atol=2e-4)
    operand(a[own], (x1 * g3)[own], unit * 1.5)
    np.testing.assert_allclose(f[own], 1 / np.sqrt((x1**2).mean(1) + EPS)[own], rtol=2e-5)
    c.run(6)
    gate, up_ = c.plain("gate", s.ffn), c.plain("up", s.ffn)
    product(np.concatenate([gate, up_], 1)[own], a[own], w_ffn, f[own, None])
    c.run(7)
    act = c.tiled("act", s.ffn, c.rows)
    gelu = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    operand(act[own], (gelu * up_)[own], unit * 2)
    c.run(8)
    product(c.plain("y", s.width)[own], act[own], w_down)


@pytest.mark.parametrize("device", ["npu1", "npu2"])
@pytest.mark.parametrize("format_", range(len(facts.BLOCK_COLUMNS)))
def test_a_stream_of_as_many_tokens_as_a_request_may_have(format_: int, device: str) -> None:
    """Steps of BDs fit their fields."""
    request = {
        "tokens": 2048, "sliding": 1, "global": 0, "width": 320, "heads": 2, "kv_heads": 1,
        "head_dim": 64, "ffn": 512, "format": format_,
    }  # fmt: skip
    op = operation("prefill")
    assert op.submissions(op.configuration(device), request)[0].stream
