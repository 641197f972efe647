"""Matrix multiplication on the NPU: dtype and shape rules, then one call into the runtime.

The device computes C = A @ B on bfloat16 inputs with float32 accumulation, or on int8 or int16
inputs with int32 accumulation, in the output-stationary GEMM design (arXiv 2512.13282, section 4).
What follows the product (alpha, bias, requantisation after these) is in epilogue.py.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from npu.devices import Device, current_device
from npu.errors import ArgumentError, DeviceError, DtypeError, ShapeError
from npu.ops import bfp16 as block_floats
from npu.ops import gemm_plans, matmul_blocks
from npu.ops.arrays import BFLOAT16, FLOATS, as_array, check_out, typed_view, wanted_dtype
from npu.ops.bfp16 import Bfp16Matrix
from npu.ops.epilogue import Epilogue
from npu.ops.gemm_calls import Call, Piece

if TYPE_CHECKING:
    from typing import overload

    from npu.designs.gemm import DesignPoint
    from npu.ops.gemm_product import GemmRun
else:

    def overload(function):  # typing's would keep this module beyond the end of the extension
        return function


_INT8, _INT16, _INT32 = np.dtype(np.int8), np.dtype(np.int16), np.dtype(np.int32)
# Operand dtype -> result dtypes, the default first.
_RESULTS: dict[np.dtype, tuple[np.dtype, ...]] = {dtype: FLOATS for dtype in FLOATS}
_RESULTS |= {_INT8: (_INT32, _INT16, _INT8), _INT16: (_INT32,)}
_PADDING = 1024  # no native size is larger in any dimension
_MAX_BYTES = 1 << 62


class PackedMatrix:
    """A right-hand operand in device memory in the layout the array reads; see ``npu.pack``."""

    def __init__(
        self, handle: Any, dtype: np.dtype, device: Device, bf16: str, options: DesignPoint
    ) -> None:
        self.handle = handle
        self.options = options  # the configuration whose layout it has
        self.dtype = dtype
        self.device = device
        self.bf16 = bf16  # how products with it are computed, unless matmul's bf16= says otherwise
        self.shape: tuple[int, int] = (handle.k, handle.n)
        self.of_plans = dtype, self.shape, bf16, options  # see gemm_plans.py

    @property
    def nbytes(self) -> int:
        """Bytes of device memory, padding included."""
        return self.handle.nbytes

    def __repr__(self) -> str:
        return f"<npu.PackedMatrix {self.shape} {self.dtype} on {self.device.name}>"


def _operand(function: str, value: ArrayLike, name: str) -> np.ndarray:
    array = as_array(function, value, name, _RESULTS)
    if array.ndim < 2:
        raise ShapeError(
            f"[{function}] {name} has shape {array.shape}; at least two dimensions are needed: "
            "reshape vectors to (1, K) or (K, 1)"
        )
    return array


def _is_float(dtype: np.dtype) -> bool:
    return dtype in FLOATS


def _device_input(dtype: np.dtype) -> str:
    """The element type the array multiplies for an operand dtype."""
    return "bfloat16" if _is_float(dtype) else str(dtype)


def _result_dtype(
    a: np.dtype, b: np.dtype, out_dtype: DTypeLike | None, out: np.ndarray | None
) -> np.dtype:
    if _is_float(a) != _is_float(b) or (not _is_float(a) and a != b):
        raise DtypeError(
            f"[matmul] operands are {a} and {b}; both must be int8, both int16, or both floating "
            "point"
        )
    wanted = wanted_dtype("matmul", out_dtype, out)
    if wanted is None:
        return _INT32 if not _is_float(a) else a if a == b else np.dtype(np.float32)
    if wanted not in _RESULTS[a]:
        raise DtypeError(
            f"[matmul] out_dtype {wanted} is not available for {a} operands; use "
            f"{' or '.join(str(dtype) for dtype in _RESULTS[a])}"
        )
    return wanted


def _check_size(function: str, *sides: int) -> None:
    """Refuses sizes whose padded matrices no 64-bit offset reaches; sides: M, K, N or K, N."""
    padded = [side + _PADDING for side in sides]
    if any(4 * a * b > _MAX_BYTES for a, b in itertools.combinations(padded, 2)):
        raise ShapeError(
            f"[{function}] {' x '.join(map(str, sides))} is more than can be addressed; split it"
        )


@overload
def pack(
    b: ArrayLike,
    *,
    format: None = None,
    side: str = "b",
    bf16: str | None = None,
    device: str | Device | None = None,
) -> PackedMatrix: ...
@overload
def pack(  # noqa: F811
    b: ArrayLike,
    *,
    format: str,
    side: str = "b",
    bf16: str | None = None,
    device: str | Device | None = None,
) -> Bfp16Matrix: ...
def pack(  # noqa: F811
    b: ArrayLike,
    *,
    format: str | None = None,
    side: str = "b",
    bf16: str | None = None,
    device: str | Device | None = None,
) -> PackedMatrix | Bfp16Matrix:
    """Converts and packs an operand once, for many multiplications.

    ``b``: (K, N), float32/bfloat16/float16 (rounded to bfloat16, nearest even), int8 or int16, any
    strides, so ``npu.pack(weight.T)`` makes no extra copy. The result is tied to the device it was
    packed for. ``bf16``: as in ``npu.matmul``, for the products with it.
    ``format="bfp16"`` (floats; for npu2): a ``Bfp16Matrix``, 9 bytes for 8 values along K, in host
    memory, for every npu2 device and configuration, with ``to_numpy()`` as the way back. Rounding
    is that of npu2's cores: a value is off by at most half a step of its block, 2^-7 of the largest
    magnitude in it (docs/fidelity.md). ``side="a"``: b is a left-hand operand, (M, K).
    Raises ArgumentError, DtypeError, ShapeError, DeviceError.
    """
    if format is not None:
        return _pack_blocks(b, format, side, bf16, device)
    if side != "b":
        block_floats.checked_side("pack", side)
        raise ArgumentError(
            '[pack] side is "a" without a format; left-hand operands are packed with format="bfp16"'
        )
    return pack_like(b, None, bf16=bf16, device=device)


def pack_like(
    b: ArrayLike,
    shape: tuple[int, int] | None,
    *,
    bf16: str | None = None,
    device: str | Device | None = None,
) -> PackedMatrix:
    """``pack`` in the layout that it gives a matrix of another shape: products with both run on
    the same configurations. None: of its own."""
    array = _operand("pack", b, "b")
    if array.ndim != 2 or 0 in array.shape:
        raise ShapeError(f"[pack] b has shape {array.shape}; expected (K, N) with K, N >= 1")
    _check_size("pack", *array.shape)
    chosen = current_device(device)
    kind = _device_input(array.dtype)
    mode = _bf16_mode(bf16, chosen, kind == "bfloat16", "pack") or chosen.bf16
    options = chosen.designs.for_packing(kind, shape or array.shape, chosen.bf16_of(kind, mode))
    view, name = typed_view(array)
    dtype = BFLOAT16 if kind == "bfloat16" else array.dtype
    return PackedMatrix(chosen.gemm_of(options).pack(view, name), dtype, chosen, mode, options)


def _pack_blocks(
    x: ArrayLike, format: str, side: str, bf16: str | None, device: str | Device | None
) -> Bfp16Matrix:
    if not isinstance(format, str) or format != block_floats.FORMAT:
        raise ArgumentError(
            f'[pack] format is {format!r}; use "bfp16", or leave it out for the layout of a device'
        )
    if bf16 not in (None, "bfp16"):
        raise ArgumentError(f"[pack] bf16 is {bf16!r} with format bfp16; leave it out")
    if device is not None and current_device(device).generation != "npu2":
        raise DeviceError(
            f"[pack] BFP16 for {current_device(device).name}: only npu2 multiplies it; leave "
            "format out"
        )
    return block_floats.packed(x, side)


@overload
def matmul(
    a: ArrayLike | Bfp16Matrix,
    b: Bfp16Matrix,
    *,
    out_dtype: DTypeLike | None = None,
    out: np.ndarray | None = None,
    shift: int = 0,
    alpha: float = 1,
    bias: ArrayLike | None = None,
    bf16: str | None = None,
    accumulate: str = "wide",
    device: str | Device | None = None,
) -> Any: ...
@overload
def matmul(  # noqa: F811
    a: ArrayLike,
    b: ArrayLike | PackedMatrix,
    *,
    out_dtype: DTypeLike | None = None,
    out: np.ndarray | None = None,
    shift: int = 0,
    alpha: float = 1,
    bias: ArrayLike | None = None,
    bf16: str | None = None,
    accumulate: str = "wide",
    device: str | Device | None = None,
) -> np.ndarray: ...
def matmul(  # noqa: F811
    a: ArrayLike | Bfp16Matrix,
    b: ArrayLike | PackedMatrix | Bfp16Matrix,
    *,
    out_dtype: DTypeLike | None = None,
    out: np.ndarray | None = None,
    shift: int = 0,
    alpha: float = 1,
    bias: ArrayLike | None = None,
    bf16: str | None = None,
    accumulate: str = "wide",
    device: str | Device | None = None,
) -> np.ndarray | Bfp16Matrix:
    """``alpha * (a @ b) + bias`` on the current device (in this version always an emulated NPU).

    a: (..., M, K), b: (..., K, N) or a ``PackedMatrix``; leading dimensions broadcast as in
    ``numpy.matmul``; any strides; any M, K, N including 0 (an empty sum is 0, as in NumPy).
    Row-major a and b, and a b that is the transpose of a row-major array, are read where they lie
    if they have the device's dtype and whole native sizes; everything else is packed first.

    dtypes: float32, bfloat16 and float16 are rounded to bfloat16 (to nearest even), multiplied as
    ``bf16`` says and accumulated in float32; int8 and int16 are accumulated in int32 and wrap
    around like int32.
    ``out_dtype``: float32, bfloat16 or float16 for floats (default: the common input dtype, float32
    when they differ); int32 (default), int16 or int8 for int8; int32 for int16.
    ``shift``: int16 and int8 results are the int32 sums divided by 2**shift (0 to 31), rounded to
    nearest, ties to even, and saturated.
    ``alpha``, ``bias``: a number and an array that broadcasts to the result. Applied by the host to
    float32 or int32 products, in float32, or exactly for integers (which need an integer alpha and
    bias), before rounding, shift and saturation.
    ``out``: a writable C-contiguous array of the result's shape and dtype that shares no memory
    with the operands; returned.
    ``bf16``: how npu2 multiplies bfloat16, "bfp16" or "native" (npu1 only has "native"); default:
    what b was packed with, else the device's ``bf16``, which is "bfp16" on npu2 unless
    ``npu.device(..., bf16=)`` or ``NPU_BF16`` say otherwise. bfp16 first rounds the operands to
    blocks of 8 along K with one exponent and 8-bit mantissas: about 1 % error of a product of
    normal numbers, large for values much smaller than others of their block (docs/fidelity.md).
    ``accumulate``: "wide" (default) keeps the array's sums in 32 bits and narrows them once;
    "narrow" keeps those of bfloat16, int16 and int8 results in that type, rounded and saturated
    after every step of the configuration's k along K, as published designs do for larger tiles and
    more speed (docs/fidelity.md). Products that the array writes in 32 bits (float32, float16 and
    int32 results, alpha, bias) have nothing to narrow: it then means the same as "wide".
    b (and a) in BFP16, ``Bfp16Matrix`` on npu2: a plain a is rounded to bfloat16, to blocks by the
    cores. ``out_dtype`` then may be "bfp16", which returns a ``Bfp16Matrix`` that is another
    product's a (the default where a is one), without out, shift, alpha and bias; ``accumulate``
    for it: "wide", "narrow" (sums in blocks) or "bfloat16".

    NaN and infinities propagate as in IEEE arithmetic (through bfp16, both make NaN of results
    that use their block); float32 values beyond bfloat16's largest become infinite; ``fast``
    arithmetic may count denormals as 0 (docs/fidelity.md).
    Masked arrays are refused. Raises ArgumentError, DtypeError, ShapeError, DeviceError, and
    MemoryError when an operand or the result does not fit memory.
    """
    key = gemm_plans.key_of(a, b, out_dtype, out, shift, alpha, bias, bf16, accumulate)
    if key is not None:
        packed = b if isinstance(b, PackedMatrix) else None
        chosen = current_device(device or packed.device if packed else device)
        plan = chosen.plans.get(key)
        if plan is not None and (packed is None or packed.device is chosen):
            return plan.run(chosen, a, b)
    if matmul_blocks.concerns(a, b, out_dtype):
        return matmul_blocks.matmul(
            a, b, out_dtype, out, shift, alpha, bias, bf16, accumulate, device
        )
    assert not isinstance(a, Bfp16Matrix) and not isinstance(b, Bfp16Matrix)
    call = call_of(
        a, b, out_dtype=out_dtype, out=out, shift=shift, alpha=alpha, bias=bias, bf16=bf16,
        accumulate=accumulate, device=device,
    )  # fmt: skip
    returned = call.run()
    if key is not None:
        gemm_plans.remember(key, call, a, b)
    return returned


def call_of(
    a: ArrayLike,
    b: ArrayLike | PackedMatrix,
    *,
    out_dtype: DTypeLike | None = None,
    out: np.ndarray | None = None,
    shift: int = 0,
    alpha: float = 1,
    bias: ArrayLike | None = None,
    bf16: str | None = None,
    accumulate: str = "wide",
    device: str | Device | None = None,
    layer: bool = False,
) -> Call:
    """``matmul`` of values, checked and ready to run. layer: one of the three products of a layer
    in training, for which there may be a configuration that serves them all
    (npu/ops/gemm_designs.py)."""
    left = _operand("matmul", a, "a")
    right: np.ndarray | PackedMatrix
    if isinstance(b, PackedMatrix):
        right, chosen = b, current_device(device or b.device)
        _check_packed(left, b, chosen)
        dtype = _result_dtype(left.dtype, left.dtype, out_dtype, out)
    else:
        right, chosen = _operand("matmul", b, "b"), current_device(device)
        dtype = _result_dtype(left.dtype, right.dtype, out_dtype, out)
    if not isinstance(accumulate, str) or accumulate not in ("wide", "narrow"):
        raise ArgumentError(f'[matmul] accumulate is {accumulate!r}; use "wide" or "narrow"')
    shape = _result_shape(left.shape, right.shape)
    m, n = shape[-2:]
    k = left.shape[-1]
    epilogue = Epilogue.of(dtype, not _is_float(left.dtype), shift, alpha, bias, shape)
    mode = _bf16_mode(bf16, chosen, _is_float(left.dtype), "matmul")
    if mode is None and isinstance(right, PackedMatrix):
        mode = right.bf16
    if out is not None:
        check_out("matmul", out, shape, [left, right, epilogue.bias])
    _check_size("matmul", math.prod(shape[:-2]) * m, k, n)
    returned = np.empty(shape, dtype) if out is None else out
    result = np.asarray(returned)  # not a subclass with operations of its own
    if 0 in shape:
        return Call(chosen, [], returned)
    if k == 0:
        result[...] = epilogue.apply(np.zeros(shape, epilogue.product_dtype))
        return Call(chosen, [], returned)
    product = result if epilogue.trivial else np.empty(shape, epilogue.product_dtype)
    piece = functools.partial(
        _piece, shift=epilogue.device_shift, device=chosen, bf16=mode, accumulate=accumulate,
        layer=layer,
    )  # fmt: skip
    if isinstance(right, PackedMatrix):
        pieces = [piece(left.reshape(-1, k), right, product)]
    elif math.prod(right.shape[:-2]) == 1:  # one b: the batch of a is more rows
        other = right.reshape(right.shape[-2:])
        pieces = [piece(left.reshape(-1, k), other, product)]
    else:
        left = np.broadcast_to(left, (*shape[:-2], m, k))
        right = np.broadcast_to(right, (*shape[:-2], k, n))
        pieces = [
            piece(left[index], right[index], product[index]) for index in np.ndindex(*shape[:-2])
        ]

    def finish() -> None:
        result[...] = epilogue.apply(product)

    return Call(chosen, pieces, returned, None if epilogue.trivial else finish)


def last_gemm(device: str | Device | None = None) -> GemmRun | None:
    """Which configuration the last product of a device (default: the current one) ran with, and
    why; None before the first."""
    return current_device(device).last_gemm


def _result_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if b[-2] != a[-1]:
        raise ShapeError(
            f"[matmul] a is {a} and b is {b}; the last dimension of a ({a[-1]}) must equal the "
            f"second last of b ({b[-2]})"
        )
    try:
        batch = np.broadcast_shapes(a[:-2], b[:-2])
    except (ValueError, RuntimeError) as error:  # RuntimeError: more than 32 dimensions
        raise ShapeError(
            f"[matmul] leading dimensions {a[:-2]} and {b[:-2]} do not broadcast"
        ) from error
    return (*batch, a[-2], b[-1])


def _check_packed(a: np.ndarray, b: PackedMatrix, device: Device) -> None:
    if device is not b.device:
        raise ArgumentError(
            f"[matmul] b was packed for {b.device!r}, the multiplication is on {device!r}; pack it "
            "for that device"
        )
    if a.shape[-1] != b.shape[0]:
        raise ShapeError(
            f"[matmul] a is {a.shape} and b is packed {b.shape}; a's last dimension must be "
            f"{b.shape[0]}"
        )
    if _device_input(a.dtype) != _device_input(b.dtype):
        raise DtypeError(
            f"[matmul] a is {a.dtype} and b is packed {b.dtype}; pack b from {a.dtype}"
        )


def _bf16_mode(bf16: str | None, device: Device, floats: bool, function: str) -> str | None:
    """The caller's choice, checked; None leaves it to the device."""
    if bf16 is None:
        return None
    if not floats:
        raise ArgumentError(
            f"[{function}] bf16 is {bf16!r} and the operands are integers; leave it out"
        )
    return device.checked_bf16(bf16, function)


def _by_columns(b: np.ndarray) -> bool:
    """Whether neighbours in a column of b are nearer in memory than neighbours in a row."""
    return min(b.shape) > 1 and abs(b.strides[0]) < abs(b.strides[1])


def _piece(
    a: np.ndarray,
    b: np.ndarray | PackedMatrix,
    out: np.ndarray,
    *,
    shift: int,
    device: Device,
    bf16: str | None,
    accumulate: str,
    layer: bool,
) -> Piece:
    """See Piece."""
    from npu.ops.gemm_product import Product  # the designs are not part of `import npu`

    kind = _device_input(a.dtype)
    packed = b if isinstance(b, PackedMatrix) else None
    layout = "packed" if isinstance(b, PackedMatrix) else "col" if _by_columns(b) else "row"
    sums = accumulate if out.dtype.itemsize < 4 else "wide"
    size = (a.shape[0], a.shape[1], b.shape[1])
    product = Product(
        kind, str(out.dtype), size, layout, sums, device.bf16_of(kind, bf16),
        packed.options if packed else None, layer,
    )  # fmt: skip
    return Piece(product, a, b.handle if isinstance(b, PackedMatrix) else b, out, shift)
