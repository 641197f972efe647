"""The operations of a decoder layer that still run on the host, in float32.

Each is named after the device operation that will replace it, so a model calls these names and
does not change when one moves. Reference: Gemma 3 technical report (arXiv 2503.19786), section 2.
"""

from __future__ import annotations

import numpy as np

from npu._npu import host as native

# Queries per block: bounds the score matrix of a long prefill.
_QUERY_BLOCK = 256


def embed(rows: np.ndarray, scale: float) -> np.ndarray:
    """Embedding rows (T, d) times the model's embedding scale."""
    return rows * np.float32(scale)


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; ``weight`` is the stored 1 + w."""
    x = np.ascontiguousarray(x, np.float32)
    out = np.empty_like(x)
    width = x.shape[-1]
    factors = np.ascontiguousarray(weight, np.float32)
    native.rms_norm(x.reshape(-1, width), factors, eps, out.reshape(-1, width))
    return out


def rope_table(
    start: int, count: int, head_dim: int, base: float, factor: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines (count, head_dim / 2) of positions start.. divided by ``factor``."""
    inverse = base ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    angles = np.arange(start, start + count)[:, None] / factor * inverse
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rope(x: np.ndarray, table: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Rotates x (T, heads, head_dim), pairing element i with i + head_dim / 2 (NEOX order)."""
    cos, sin = (part[:, None, :] for part in table)
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    query_start: int,
    key_start: int,
    scale: float,
    window: int | None,
) -> np.ndarray:
    """Causal grouped-query attention of T new positions over the cache.

    q is (T, heads, head_dim), k and v are (kv_heads, S, head_dim); query t is at position
    ``query_start + t``, key s at ``key_start + s``. A query sees keys at most ``window`` - 1
    positions back (itself included in the window); None: all. Returns (T, heads * head_dim).
    """
    count, heads, head_dim = q.shape
    out = np.empty((count, heads * head_dim), np.float32)
    for begin in range(0, count, _QUERY_BLOCK):
        block = q[begin : begin + _QUERY_BLOCK]
        first = query_start + begin
        oldest = key_start if window is None else max(key_start, first - window + 1)
        seen = slice(oldest - key_start, first + len(block) - key_start)
        out[begin : begin + len(block)] = _attend(
            block, k[:, seen], v[:, seen], first - oldest, scale, window
        )
    return out


def _attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, shift: int, scale: float, window: int | None
) -> np.ndarray:
    """One block; query t is ``shift + t`` keys after the first key given."""
    count, heads, head_dim = q.shape
    kv_heads, keys, _ = k.shape
    group = heads // kv_heads
    # (T, kv, group, hd) -> (kv, group * T, hd): one matrix product per KV head.
    by_head = (q * np.float32(scale)).reshape(count, kv_heads, group, head_dim)
    grouped = by_head.transpose(1, 2, 0, 3).reshape(kv_heads, group * count, head_dim)
    scores = grouped @ k.transpose(0, 2, 1)
    native.causal_softmax(scores.reshape(-1, keys), count, shift, window or 0)
    mixed = (scores @ v).reshape(kv_heads, group, count, head_dim)
    return mixed.transpose(2, 0, 1, 3).reshape(count, heads * head_dim)


def geglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """gelu(gate) * up (T, F) with the tanh form of GELU; both may be halves of one array."""
    if gate.strides != up.strides or gate.strides[1] != gate.itemsize:
        gate, up = np.ascontiguousarray(gate), np.ascontiguousarray(up)
    out = np.empty(gate.shape, np.float32)
    native.geglu(gate, up, out)
    return out
