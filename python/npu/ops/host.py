"""What a decoder layer computes between the products of a prompt, on the host, in float32.

Reference: Gemma 3 technical report (arXiv 2503.19786), section 2.
"""

from __future__ import annotations

import numpy as np

from npu._npu import host as native


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
    x = np.ascontiguousarray(x, np.float32)
    out = np.empty_like(x)
    native.rope(x, *table, out)
    return out


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

    q is (T, heads, head_dim), k and v are (kv_heads, S, head_dim) with contiguous rows; query t is
    at position ``query_start + t``, key s at ``key_start + s``. A query sees keys at most
    ``window`` - 1 positions back (itself included in the window); None: all. Returns
    (T, heads * head_dim).
    """
    q = np.ascontiguousarray(q, np.float32)
    out = np.empty_like(q)
    native.attention(q, k, v, query_start - key_start, window or 0, scale, out)
    return out.reshape(len(q), -1)


def paged_attention(
    q: np.ndarray,
    pool: np.ndarray,
    table: np.ndarray,
    *,
    kv_heads: int,
    start: int,
    scale: float,
    window: int | None,
) -> np.ndarray:
    """``attention`` of positions ``start``.. over the pages of a KV cache (npu.models.kv_cache).

    q is (T, heads, head_dim); ``pool`` is uint8 and ``table`` int64, page numbers by position //
    256, which hold K and V of everything the window reaches, up to position ``start`` + T - 1.
    """
    q = np.ascontiguousarray(q, np.float32)
    out = np.empty_like(q)
    native.paged_attention(q, pool.view(np.uint16), table, kv_heads, start, window or 0, scale, out)
    return out.reshape(len(q), -1)


def geglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """gelu(gate) * up (T, F) with the tanh form of GELU; both may be halves of one array."""
    if gate.strides != up.strides or gate.strides[1] != gate.itemsize:
        gate, up = np.ascontiguousarray(gate), np.ascontiguousarray(up)
    out = np.empty(gate.shape, np.float32)
    native.geglu(gate, up, out)
    return out
