"""y = W x with W in blocks: dtype and shape rules, then one call into the runtime.

Weights stay 4-bit, 8-bit or bfloat16 in device memory and are dequantised on the cores while they
are multiplied (FusedDQP, arXiv 2602.06063, section 3.2.1); the design is npu/designs/gemv.py.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from npu._npu import facts
from npu.devices import Device, current_device
from npu.errors import ArgumentError, DtypeError, ShapeError
from npu.ops.arrays import (
    BFLOAT16,
    FLOATS,
    as_array,
    bytes_of,
    result_array,
    typed_view,
    wanted_dtype,
)
from npu.ops.registry import operation

BLOCK_ROWS = facts.BLOCK_ROWS
BLOCK_COLUMNS: dict[str, int] = dict(facts.BLOCK_COLUMNS)  # by format
Q4NX = next(iter(BLOCK_COLUMNS))  # the format where none is named
_OUTPUTS = (BFLOAT16, np.dtype(np.float32))
MAX_TOP = facts.GEMV_TOP


@runtime_checkable
class Blocks(Protocol):
    """A tensor in blocks, npu.q4nx.Tensor or npu.blocks.BlockTensor: raw blocks and the logical
    shape (N, K); Q4NX unless it has a ``format``."""

    @property
    def blocks(self) -> np.ndarray: ...

    @property
    def shape(self) -> tuple[int, int]: ...


class BoundWeights:
    """Weights in blocks in the memory of a device, ready for any number of products; see
    ``bind``."""

    def __init__(self, handle: Any, device: Device) -> None:
        self.handle = handle
        self.device = device
        self.shape: tuple[int, int] = (handle.n, handle.k)
        self.format: str = handle.format

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks, padding included."""
        return int(self.handle.nbytes)

    @property
    def in_place(self) -> bool:
        """Whether the device reads the caller's array, rather than a copy."""
        return bool(self.handle.in_place)

    def __repr__(self) -> str:
        return f"<npu.BoundWeights {self.shape} {self.format} on {self.device.name}>"


RawBlocks = tuple[ArrayLike, tuple[int, int]] | tuple[ArrayLike, tuple[int, int], str]
Weights = BoundWeights | Blocks | RawBlocks


def bind(w: Blocks | RawBlocks, *, device: str | Device | None = None) -> BoundWeights:
    """Makes weights in blocks readable by a device, without a copy where the device allows.

    ``w``: an ``npu.q4nx.Tensor``, an ``npu.blocks.BlockTensor``, or (blocks, (N, K)[, format]) with
    ``ceil(N / 32) * ceil(K / columns)`` blocks as a contiguous uint8 array, row-blocks first (a
    memory-mapped file region, say). Formats: "q4nx" (the default; 256 columns), "q8" (128), "bf16"
    (80), of 5120 bytes a block, "q4_0" (256) and "q8_0" (128), of 4608; docs/gemv.md has their
    layout. The array is kept alive and must not change while the result is used. Raises
    ArgumentError, DtypeError, ShapeError, DeviceError.
    """
    return _bound(w, device, "bind")


def _bound(w: object, device: str | Device | None, function: str) -> BoundWeights:
    blocks, shape, format = _blocks_of(w, function)
    chosen = current_device(device)
    return BoundWeights(_operation(chosen, format).bind(blocks, *shape, format), chosen)


def _operation(device: Device, format: str) -> Any:
    return device.operation("gemv", **operation("gemv").choices_of(format))


def _blocks_of(w: object, function: str) -> tuple[np.ndarray, tuple[int, int], str]:
    """The blocks as bytes in one dimension, (N, K) and the format."""
    format: Any = Q4NX
    if isinstance(w, tuple) and len(w) in (2, 3):
        data, shape = w[:2]
        format = w[2] if len(w) == 3 else Q4NX
    elif isinstance(w, Blocks):
        data, shape, format = w.blocks, w.shape, getattr(w, "format", Q4NX)
        dialect = getattr(w, "dialect", "additive")
        if dialect != "additive":
            raise ArgumentError(
                f"[{function}] w is in the {dialect} dialect of Q4NX, kernels compute d code + m; "
                "pass w.to_additive()"
            )
    else:
        bound = "" if function == "bind" else "bound weights, "
        raise ArgumentError(
            f"[{function}] w is {type(w).__name__}; pass a tensor in blocks, {bound}or (blocks, "
            "(N, K)[, format])"
        )
    if not isinstance(format, str) or format not in BLOCK_COLUMNS:
        raise ArgumentError(
            f"[{function}] the format of w is {format!r}; use {', '.join(map(repr, BLOCK_COLUMNS))}"
        )
    if isinstance(data, np.ma.MaskedArray):
        raise ArgumentError(
            f"[{function}] the blocks of w are a masked array, whose mask would be ignored; pass "
            "its data"
        )
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8:
        found = data.dtype if isinstance(data, np.ndarray) else type(data).__name__
        raise DtypeError(f"[{function}] the blocks of w are {found}; pass a uint8 array")
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else ()
    if len(sizes) != 2 or not all(
        isinstance(side, (int, np.integer)) and not isinstance(side, bool) and side > 0
        for side in sizes
    ):
        raise ShapeError(f"[{function}] the shape of w is {shape!r}; expected (N, K), both >= 1")
    n, k = int(sizes[0]), int(sizes[1])
    count = -(-n // BLOCK_ROWS) * -(-k // BLOCK_COLUMNS[format])
    size = facts.BYTES_OF_BLOCK[format]
    if data.size != count * size:
        raise ShapeError(
            f"[{function}] w of shape ({n}, {k}) has {count} {format} blocks of {size} bytes, "
            f"{count * size} bytes; the array has {data.size}"
        )
    if not data.flags.c_contiguous:
        raise ArgumentError(f"[{function}] the blocks of w are not C-contiguous; copy them first")
    return data.reshape(-1), (n, k), format


def blocks_in(w: object) -> object:
    """The caller's array of blocks, if ``w`` has one."""
    return w[0] if isinstance(w, tuple) and w else getattr(w, "blocks", None)


def bound_weights(w: object, device: str | Device | None, function: str) -> BoundWeights:
    """Weights bound to the device that an operation runs on."""
    if isinstance(w, BoundWeights):
        chosen = current_device(device or w.device)
        if chosen is not w.device:
            raise ArgumentError(
                f"[{function}] w is bound to {w.device!r}, the product is on {chosen!r}; bind it "
                "to that device"
            )
        return w
    return _bound(w, device, function)


def _vectors(x: ArrayLike, k: int, function: str) -> np.ndarray:
    """x as (B, K)."""
    array = as_array(function, x, "x", FLOATS)
    if array.ndim not in (1, 2) or array.shape[-1] != k or array.shape[0] == 0:
        raise ShapeError(
            f"[{function}] x has shape {array.shape}; w needs ({k},) or (batch, {k}), batch >= 1"
        )
    return array.reshape(-1, k)


def gemv(
    w: Weights,
    x: ArrayLike,
    *,
    out: np.ndarray | None = None,
    out_dtype: DTypeLike | None = None,
    device: str | Device | None = None,
) -> np.ndarray:
    """``W @ x`` with weights in blocks on the current device (always an emulated NPU in this
    version).

    ``w``: a tensor in blocks (``npu.bind`` lists them), or ``npu.bind`` of one. ``x``: (K,) or (B,
    K), float32, bfloat16 or float16, rounded to bfloat16; any strides; passes of eight vectors
    (four for float32 results) read the weights once. The result is (N,) or (B, N) in ``out_dtype``,
    bfloat16 (default) or float32, or in ``out``, a writable C-contiguous array of that shape, which
    is returned.

    Sums are float32; docs/gemv.md has each format's order and error bound. A NaN or infinity in a
    vector makes every element of its result NaN or infinite. Raises ArgumentError, DtypeError,
    ShapeError, DeviceError.
    """
    bound = bound_weights(w, device, "gemv")
    n, k = bound.shape
    array = _vectors(x, k, "gemv")
    shape = (n,) if np.ndim(x) == 1 else (array.shape[0], n)
    wanted = wanted_dtype("gemv", out_dtype, out)
    dtype = BFLOAT16 if wanted is None else wanted
    if dtype not in _OUTPUTS:
        raise DtypeError(f"[gemv] out_dtype {dtype} is not available; use bfloat16 or float32")
    result = result_array("gemv", out, shape, dtype, [array, blocks_in(w)])
    _operation(bound.device, bound.format).run(
        bound.handle, *typed_view(array), bytes_of(result), str(dtype)
    )
    return result


def run(weights: BoundWeights, x: np.ndarray, out: np.ndarray) -> None:
    """x (B, K) into out (B, N), both C-contiguous float32, without the checks of ``gemv``."""
    _operation(weights.device, weights.format).run(
        weights.handle, x.view(np.uint32), "float32", bytes_of(out), "float32"
    )


def gemv_top(
    w: Weights, x: ArrayLike, k: int = 1, *, device: str | Device | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The ``k`` largest elements of ``W @ x`` and their indices, found on the device.

    For a greedy step of a language model: only ``k`` candidates per core leave the array, not N
    logits. ``k``: 1 to 64, at most N. Returns (values float32, indices int64) of shape (k,) or
    (B, k), largest first; equal values by index, NaNs last. Operands and errors as for ``gemv``.
    """
    bound = bound_weights(w, device, "gemv_top")
    n, depth = bound.shape
    if not isinstance(k, (int, np.integer)) or isinstance(k, bool) or not 1 <= k <= min(MAX_TOP, n):
        raise ArgumentError(f"[gemv_top] k is {k!r}; use 1 to {min(MAX_TOP, n)}")
    array = _vectors(x, depth, "gemv_top")
    shape = (int(k),) if np.ndim(x) == 1 else (array.shape[0], int(k))
    values, indices = np.empty(shape, np.float32), np.empty(shape, np.int64)
    _operation(bound.device, bound.format).top(
        bound.handle, *typed_view(array), int(k), bytes_of(values), bytes_of(indices)
    )
    return values, indices
