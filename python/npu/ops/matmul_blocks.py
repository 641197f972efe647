"""Products of a B in BFP16 blocks (npu.ops.bfp16): what npu.matmul does with one.

The three configurations of the ATB paper ("Can Asymmetric Tile Buffering Be Beneficial?", 6.1) and
those between them: A bfloat16 or in blocks, C bfloat16, float32 or in blocks, sums in float32,
bfloat16 or blocks.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from npu.devices import Device, current_device
from npu.errors import ArgumentError, DeviceError, DtypeError, ShapeError
from npu.ops import bfp16
from npu.ops.arrays import BFLOAT16, FLOATS, as_array, bytes_of, check_out, typed_view, wanted_dtype
from npu.ops.bfp16 import FORMAT, Bfp16Matrix
from npu.ops.epilogue import Epilogue

if TYPE_CHECKING:
    from npu.ops.gemm_product import Product

_ACCUMULATE = ("wide", "narrow", "bfloat16")


def concerns(a: Any, b: Any, out_dtype: Any) -> bool:
    """Whether npu.matmul(a, b, out_dtype=out_dtype) is one of these products."""
    blocks = isinstance(a, Bfp16Matrix) or isinstance(b, Bfp16Matrix)
    return blocks or (isinstance(out_dtype, str) and out_dtype == FORMAT)


def matmul(
    a: ArrayLike | Bfp16Matrix,
    b: Any,
    out_dtype: DTypeLike | None,
    out: np.ndarray | None,
    shift: int,
    alpha: float,
    bias: ArrayLike | None,
    bf16: str | None,
    accumulate: str,
    device: str | Device | None,
) -> np.ndarray | Bfp16Matrix:
    """npu.matmul, whose arguments these are."""
    right = _right(b)
    left = _left(a)
    chosen = current_device(device)
    if chosen.generation != "npu2":
        raise DeviceError(
            f"[matmul] operands or results in BFP16 on {chosen.name}: only npu2 multiplies them; "
            "multiply arrays"
        )
    if bf16 not in (None, "bfp16"):
        chosen.checked_bf16(bf16, "matmul")
        raise ArgumentError(
            f'[matmul] bf16 is "{bf16}" and b is in BFP16; leave it out or multiply arrays'
        )
    if left.shape[-1] != right.shape[0]:
        raise ShapeError(
            f"[matmul] a is {left.shape} and b is {right.shape}; the last dimension of a must "
            f"equal the first of b ({right.shape[0]})"
        )
    shape = (*left.shape[:-1], right.shape[1])
    to_blocks = isinstance(out_dtype, str) and out_dtype == FORMAT
    if out_dtype is None and out is None:
        to_blocks = isinstance(left, Bfp16Matrix)
    _check_sums(accumulate, to_blocks)
    multiply = functools.partial(_multiply, left, right, device=chosen, accumulate=accumulate)
    if to_blocks:
        _check_plain(out, shift, alpha, bias)
        return _into_blocks(multiply, shape)
    dtype = _value_dtype(left, out_dtype, out)
    epilogue = Epilogue.of(dtype, False, shift, alpha, bias, shape)
    if out is not None:
        operands = [left if isinstance(left, np.ndarray) else left.tiles, right.tiles]
        check_out("matmul", out, shape, [*operands, epilogue.bias])
    returned = np.empty(shape, dtype) if out is None else out
    if 0 in shape:
        return returned
    result = np.asarray(returned)
    if epilogue.trivial:
        multiply(out=result)
    else:
        product = np.empty(shape, epilogue.product_dtype)
        multiply(out=product)
        result[...] = epilogue.apply(product)
    return returned


def _left(a: ArrayLike | Bfp16Matrix) -> np.ndarray | Bfp16Matrix:
    if isinstance(a, Bfp16Matrix):
        return _of_side(a, "a")
    array = as_array("matmul", a, "a", FLOATS)
    if array.ndim < 2:
        raise ShapeError(
            f"[matmul] a has shape {array.shape}; at least two dimensions are needed: reshape "
            "vectors to (1, K)"
        )
    return array


def _right(b: Any) -> Bfp16Matrix:
    if isinstance(b, Bfp16Matrix):
        return _of_side(b, "b")
    raise DtypeError(
        f"[matmul] b is {type(b).__name__} where a or the result is in BFP16; pack it: "
        'npu.pack(b, format="bfp16")'
    )


def _of_side(matrix: Bfp16Matrix, side: str) -> Bfp16Matrix:
    if matrix.side == side:
        return matrix
    raise ArgumentError(
        f'[matmul] {side} was packed with side="{matrix.side}"; blocks lie along K: pack it with '
        f'side="{side}", or pass the transpose of the other operand'
    )


def _check_sums(accumulate: Any, to_blocks: bool) -> None:
    allowed = _ACCUMULATE if to_blocks else _ACCUMULATE[:2]
    if not isinstance(accumulate, str) or accumulate not in allowed:
        raise ArgumentError(
            f"[matmul] accumulate is {accumulate!r}; use one of {allowed}"
            + ("" if to_blocks else ', "bfloat16" where the result is bfp16')
        )


def _check_plain(out: Any, shift: Any, alpha: Any, bias: Any) -> None:
    """A result in blocks is what the array writes."""
    given = {"out": out is not None, "shift": shift != 0, "alpha": alpha != 1,
             "bias": bias is not None}  # fmt: skip
    for name, there in given.items():
        if there:
            raise ArgumentError(
                f"[matmul] {name} with a result in BFP16; compute float32 and use npu.pack"
            )


def _value_dtype(
    left: np.ndarray | Bfp16Matrix, out_dtype: DTypeLike | None, out: np.ndarray | None
) -> np.dtype:
    wanted = wanted_dtype("matmul", out_dtype, out)
    if wanted is None:
        assert isinstance(left, np.ndarray)
        return left.dtype
    if wanted not in FLOATS:
        raise DtypeError(
            f"[matmul] out_dtype {wanted} is not available for a B in BFP16; use "
            f'{", ".join(map(str, FLOATS))} or "bfp16"'
        )
    return wanted


def _into_blocks(multiply: Any, shape: tuple[int, ...]) -> Bfp16Matrix:
    if len(shape) != 2 or 0 in shape:
        raise ShapeError(
            f"[matmul] the result has shape {shape}; in BFP16 it must be a matrix with both sizes "
            ">= 1"
        )
    result = bfp16.empty((shape[0], shape[1]))
    multiply(out=result)
    return result


def _multiply(
    left: np.ndarray | Bfp16Matrix,
    right: Bfp16Matrix,
    *,
    out: np.ndarray | Bfp16Matrix,
    device: Device,
    accumulate: str,
) -> None:
    """out: C-contiguous, float32 or bfloat16, or blocks."""
    m, k, n = math.prod(left.shape[:-1]), left.shape[-1], right.shape[1]
    gemm = device.choose_gemm(_product(left, out, (m, k, n), accumulate))
    if isinstance(out, Bfp16Matrix):
        _run(gemm, left, right, out.tiles.reshape(-1))
        return
    # The array writes whole tiles of rows that come in tiles, and of columns.
    rows = -(-m // bfp16.SIDE) * bfp16.SIDE if isinstance(left, Bfp16Matrix) else m
    columns = -(-n // bfp16.SIDE) * bfp16.SIDE
    if (rows, columns) == (m, n):
        _run(gemm, left, right, bytes_of(out))
        return
    whole = np.empty((rows, columns), out.dtype)
    _run(gemm, left, right, bytes_of(whole))
    out.reshape(m, n)[...] = whole[:m, :n]


def _product(
    left: np.ndarray | Bfp16Matrix,
    out: np.ndarray | Bfp16Matrix,
    size: tuple[int, int, int],
    accumulate: str,
) -> Product:
    from npu.ops.gemm_product import Product  # the designs are not part of `import npu`

    a_dtype = FORMAT if isinstance(left, Bfp16Matrix) else str(BFLOAT16)
    sums = "wide" if out.dtype == np.float32 else accumulate
    return Product(a_dtype, str(out.dtype), size, "blocks", sums, "bfp16")


def _run(gemm: Any, left: np.ndarray | Bfp16Matrix, right: Bfp16Matrix, target: np.ndarray) -> None:
    if isinstance(left, Bfp16Matrix):
        gemm.run_blocks(left.tiles, right.tiles, target)
    else:
        view, name = typed_view(left.reshape(-1, left.shape[-1]))
        gemm.run_values_blocks(view, name, right.tiles, target)
