"""Products of plain matrices, or of one with a packed copy, that ``npu.matmul`` has run before:
types, sizes and options are checked and the candidates for them known, so that a call that asks for
the same goes straight to the choice of a configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from npu.devices import Device
    from npu.ops.gemm_calls import Call
    from npu.ops.gemm_designs import Offered

_MOST = 4096  # plans of a device
_UINT8 = np.dtype(np.uint8)


class Plan:
    """How such a product is run."""

    __slots__ = ("a_type", "a_view", "b_type", "b_view", "dtype", "offered", "shape", "shift")

    def __init__(self, offered: Offered, a: np.ndarray, b: Any, call: Call) -> None:
        self.offered = offered
        self.a_type, self.b_type = str(a.dtype), str(b.dtype)
        self.a_view = np.dtype(f"u{a.itemsize}")
        self.b_view = np.dtype(f"u{b.itemsize}") if isinstance(b, np.ndarray) else None
        self.shape, self.dtype = call.returned.shape, call.returned.dtype
        self.shift = call.pieces[0].shift

    def run(self, device: Device, a: Any, b: Any) -> np.ndarray:
        out = np.empty(self.shape, self.dtype)
        (gemm,) = device.choose_offered(self.offered)
        left, target = a.view(self.a_view), out.reshape(-1).view(_UINT8)
        if self.b_view is None:
            gemm.run_packed(left, self.a_type, b.handle, target, self.shift)
        else:
            gemm.run(left, self.a_type, b.view(self.b_view), self.b_type, target, self.shift)
        return out


def key_of(
    a: Any, b: Any, out_dtype: Any, out: Any, shift: Any, alpha: Any, bias: Any, bf16: Any,
    accumulate: Any,
) -> Any:  # fmt: skip
    """What a plan is found by, among those of a device; None for a call that has none. Everything
    that the checks of ``npu.matmul`` and the choice look at is part of it or excluded here, but for
    the device of a packed copy."""
    if type(a) is not np.ndarray or a.ndim != 2:
        return None
    if type(b) is np.ndarray:
        of_b = (b.dtype, b.shape, b.strides) if b.ndim == 2 else None
    else:
        of_b = getattr(b, "of_plans", None)  # of a PackedMatrix
    if of_b is None:
        return None
    if out is not None or bias is not None or type(alpha) is not int or alpha != 1:
        return None
    if type(shift) is not int or type(accumulate) is not str:
        return None
    if not (bf16 is None or type(bf16) is str):
        return None
    if not (out_dtype is None or isinstance(out_dtype, (str, type, np.dtype))):
        return None
    return (a.dtype, a.shape, a.strides, of_b, out_dtype, shift, bf16, accumulate)


def remember(key: Any, call: Call, a: Any, b: Any) -> None:
    """Keeps the plan of a call that has run, if arrays like these go to the device as they are."""
    if len(call.pieces) != 1 or call.finish is not None:
        return
    piece = call.pieces[0]
    plain = _same(piece.a, a) and (not isinstance(b, np.ndarray) or _same(piece.b, b))
    if not plain or np.float16 in (a.dtype, b.dtype):
        return
    plans = call.device.plans
    if len(plans) >= _MOST:
        plans.clear()
    plans[key] = Plan(call.device.designs.offered(piece.product), a, b, call)


def _same(passed: Any, given: np.ndarray) -> bool:
    return (
        isinstance(passed, np.ndarray)
        and (passed.dtype, passed.shape, passed.strides)
        == (given.dtype, given.shape, given.strides)
        and passed.__array_interface__["data"] == given.__array_interface__["data"]
    )
