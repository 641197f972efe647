"""Attention on the NPU: checks, chunks of keys and values, one runtime call.

The design is npu/designs/attention.py; docs/attention.md has the arithmetic and its error bound.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from npu import _npu
from npu._npu import facts
from npu.devices import Device, current_device
from npu.errors import ArgumentError, ShapeError
from npu.ops.arrays import BFLOAT16, FLOATS, as_array, bytes_of, float_of, round_up

HEAD_DIMS = (64, 128, 256)  # that the cores know; others are padded with zeros
MAX_GROUP = 8  # query heads per head of keys
MAX_KEYS = 131072
_MAX_DISTANCE = 1 << 20  # of positions


def array_head_dim(head_dim: int) -> int:
    """The head size that the cores have for heads of this one; head_dim itself, if none has."""
    return next((size for size in HEAD_DIMS if size >= head_dim), head_dim)


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    query_start: int | None = None,
    key_start: int = 0,
    device: str | Device | None = None,
) -> np.ndarray:
    """``softmax(scale * q k^T) v`` of every head, on the current device.

    ``q``: (T, heads, d), ``k`` and ``v``: (S, kv_heads, d), bfloat16, float32 or float16 (rounded
    to bfloat16), any strides; all three may have a batch dimension in front. d: 1 to 256, S: 1 to
    131072; ``heads / kv_heads`` is a whole number up to 8, and query head h reads key head
    ``h // (heads / kv_heads)``. Key i has position ``key_start + i``, query t ``query_start + t``;
    by default the last query has the last key's. A query sees, if ``causal``, keys up to its own
    position, and with ``window`` only those behind ``position - window``; a query that sees no key
    gives zeros. ``scale``: default ``1 / sqrt(d)``.

    Returns bfloat16 of the shape of q. Scores are float32, weights are rounded to bfloat16,
    sums are float32 (docs/attention.md has the bound). NaN stays NaN; a score of -infinity weighs
    nothing; v must be finite also where a query does not see it. Raises ArgumentError,
    DtypeError, ShapeError, DeviceError.
    """
    queries, keys, values = (
        as_array("attention", array, name, FLOATS) for array, name in ((q, "q"), (k, "k"), (v, "v"))
    )
    _check_shapes(queries.shape, keys.shape, values.shape)
    if queries.ndim == 4:
        options: dict[str, Any] = dict(
            causal=causal, window=window, scale=scale, query_start=query_start, key_start=key_start,
            device=device,
        )  # fmt: skip
        parts = [attention(*part, **options) for part in zip(queries, keys, values, strict=True)]
        return np.stack(parts) if parts else np.empty(queries.shape, BFLOAT16)
    tokens, heads, width = queries.shape
    count, kv_heads, _ = keys.shape
    request = {
        "tokens": tokens,
        "keys": count,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": array_head_dim(width),
        "query_position": _query_position(query_start, key_start, count - tokens),
        "window": _window(window),
        "causal": int(_flag(causal)),
        "scale": _scale(scale, width),
    }
    chosen = current_device(device)
    if queries.size == 0:
        return np.empty(queries.shape, BFLOAT16)
    request["parts"] = _parts(request, chosen.generation)
    jobs = _npu.attention.jobs(request)
    headers = _headers(queries, request, jobs)
    chunks = _chunks(keys, values, request, jobs)
    result = np.empty((jobs["count"], jobs["y_bytes"]), np.uint8)
    arrays = [bytes_of(array) for array in (headers, chunks, result)]
    chosen.operation("attention").run(request, arrays)
    rows = _merged(result, request, jobs) if jobs["parts"] > 1 else result.view(BFLOAT16)
    return _in_order(rows, request, jobs)[:tokens, :, :width].copy()


def _parts(request: dict[str, int], generation: str) -> int:
    """Shares of the keys per block of queries: one for every pair that has no block."""
    from npu.designs.attention import PAIRS
    from npu.designs.hardware import device_columns

    jobs = _npu.attention.jobs(request)
    records = np.frombuffer(jobs["records"], np.int32).reshape(jobs["count"], -1)
    chunks = int(records[:, facts.ATTENTION_RECORD.index("chunks")].max())
    return max(1, min(PAIRS * device_columns(generation) // jobs["count"], chunks // 2))


def _headers(q: np.ndarray, request: dict[str, int], jobs: dict[str, Any]) -> np.ndarray:
    """Every job's header, (jobs, parts, 2 cores, 8192): its record in a table, then its rows."""
    from npu.designs.attention import PART_BYTES, RECORD_WORDS, TABLE_BYTES

    tokens, heads, width = q.shape
    kv_heads, dim = request["kv_heads"], request["head_dim"]
    blocks, block = jobs["blocks"], jobs["block_tokens"]
    rows = np.zeros((blocks * block, heads, dim), BFLOAT16)
    rows[:tokens, :, :width] = q
    by_job = rows.reshape(blocks, block, kv_heads, heads // kv_heads * dim).transpose(2, 0, 1, 3)
    count, parts = jobs["count"], jobs["header_parts"]
    whole = np.zeros((count, parts * PART_BYTES), np.uint8)
    records = np.frombuffer(jobs["records"], np.uint8).reshape(count, 4 * RECORD_WORDS)
    whole[:, : 4 * RECORD_WORDS] = records
    packed = np.ascontiguousarray(by_job).view(np.uint8).reshape(kv_heads * blocks, -1)
    packed = np.repeat(packed, jobs["parts"], axis=0)
    whole[:, TABLE_BYTES : TABLE_BYTES + packed.shape[1]] = packed
    by_part = whole.reshape(count, parts, 1, PART_BYTES)
    return np.ascontiguousarray(np.broadcast_to(by_part, (count, parts, 2, PART_BYTES)))


def _chunks(
    k: np.ndarray, v: np.ndarray, request: dict[str, int], jobs: dict[str, Any]
) -> np.ndarray:
    """Keys and values as (kv_heads, chunks, 2, positions of a chunk, head_dim)."""
    keys, kv_heads, width = k.shape
    chunks, positions, dim = jobs["chunks"], jobs["positions"], request["head_dim"]
    out = np.zeros((kv_heads, chunks, 2, positions, dim), BFLOAT16)
    whole = keys // positions
    for part, array in enumerate((k, v)):
        full = array[: whole * positions].reshape(whole, positions, kv_heads, width)
        out[:, :whole, part, :, :width] = full.transpose(2, 0, 1, 3)
        rest = array[whole * positions :]
        if len(rest):
            out[:, whole, part, : len(rest), :width] = rest.transpose(1, 0, 2)
    return out


def _merged(result: np.ndarray, request: dict[str, int], jobs: dict[str, Any]) -> np.ndarray:
    """The rows of every block from the partial results of its parts.

    Maxima are whole numbers: only the sums are rounded, in float32. A last block may have fewer
    rows, and then fewer bytes.
    """
    dim, most = request["head_dim"], facts.ATTENTION_ROWS
    records = np.frombuffer(jobs["records"], np.int32).reshape(jobs["count"], -1)
    counts = records[:, facts.ATTENTION_RECORD.index("rows")]
    merged = np.zeros((jobs["count"] // jobs["parts"], int(counts.max()) * dim), BFLOAT16)
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and infinity stay
        for block, out in enumerate(merged):
            first = block * jobs["parts"]
            rows = int(counts[first])
            parts = result.view(np.float32)[first : first + jobs["parts"]]
            sent = round_up(rows * dim, facts.ATTENTION_OUT_BYTES // 4)
            top = parts[:, sent : sent + rows]
            weights = np.exp2(np.maximum(top - top.max(0), np.float32(-1000)))
            total = (weights * parts[:, sent + most : sent + most + rows]).sum(0)
            sums = (weights[..., None] * parts[:, : rows * dim].reshape(-1, rows, dim)).sum(0)
            inverse = np.divide(1, total, out=np.zeros_like(total), where=total != 0)
            out[: rows * dim] = (sums * inverse[:, None]).astype(BFLOAT16).reshape(-1)
    return merged


def _in_order(rows: np.ndarray, request: dict[str, int], jobs: dict[str, Any]) -> np.ndarray:
    """The blocks' rows as (tokens of all blocks, heads, head_dim)."""
    blocks, block = jobs["blocks"], jobs["block_tokens"]
    heads, kv_heads, dim = request["heads"], request["kv_heads"], request["head_dim"]
    rows = rows[:, : block * heads // kv_heads * dim]
    by_job = rows.reshape(kv_heads, blocks, block, heads // kv_heads, dim)
    return by_job.transpose(1, 2, 0, 3, 4).reshape(blocks * block, heads, dim)


def _check_shapes(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> None:
    shapes = f"q has shape {q}, k {k}, v {v}"
    if len(q) not in (3, 4) or len(k) != len(q) or k != v or q[:-3] != k[:-3] or q[-1] != k[-1]:
        raise ShapeError(
            f"[attention] {shapes}; expected q (T, heads, d), k and v (S, kv_heads, d), or all "
            "with the same batch dimension in front"
        )
    heads, kv_heads, width, keys = q[-2], k[-2], q[-1], k[-3]
    if not 1 <= width <= HEAD_DIMS[-1] or not 1 <= keys <= MAX_KEYS:
        raise ShapeError(f"[attention] {shapes}; d must be 1 to {HEAD_DIMS[-1]}, S 1 to {MAX_KEYS}")
    if kv_heads < 1 or heads < 1 or heads % kv_heads or heads // kv_heads > MAX_GROUP:
        raise ShapeError(
            f"[attention] {heads} heads of q for {kv_heads} of k and v; 1 to {MAX_GROUP} of q "
            "share one, all equally many"
        )


def _integer(value: Any, name: str) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise ArgumentError(f"[attention] {name} is {value!r}; it must be a whole number")
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentError(f"[attention] {name} is {value!r}; it must be a whole number") from None


def _query_position(query_start: Any, key_start: Any, default: int) -> int:
    """The first query's position when key 0 has position 0."""
    first = _integer(key_start, "key_start")
    at = default if query_start is None else _integer(query_start, "query_start") - first
    if abs(at) > _MAX_DISTANCE:
        raise ArgumentError(
            f"[attention] query_start is {query_start}, key_start {key_start}; they may be "
            f"{_MAX_DISTANCE} apart"
        )
    return at


def _window(window: Any) -> int:
    if window is None:
        return 0
    size = _integer(window, "window")
    if size < 1:
        raise ArgumentError(f"[attention] window is {size}; it must be at least 1, or None")
    return min(size, _MAX_DISTANCE)


def _flag(causal: Any) -> bool:
    if not isinstance(causal, (bool, np.bool_)):
        raise ArgumentError(f"[attention] causal is {causal!r}; pass True or False")
    return bool(causal)


def _scale(scale: Any, width: int) -> int:
    """The bits of the scale of scores in units of log2."""
    factor = 1 / math.sqrt(width) if scale is None else float_of("attention", scale, "scale")
    return int(np.float32(float(factor) * math.log2(math.e)).view(np.int32))
