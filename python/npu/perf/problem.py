"""What is simulated: a GEMM design point, a problem size, and timing constants.

Users name choices one by one; ``gemm_problem`` checks them and makes the one design point that
everything behind it takes. Defaults are those of the published designs (arXiv 2512.13282): sums in
C's type ("narrow"), column-major B, and on npu2 bfloat16 through BFP16.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import DTypeLike

from npu.designs import gemm, gemm_limits
from npu.designs.gemm import DesignPoint
from npu.designs.hardware import DTYPE_BYTES
from npu.errors import ArgumentError, DesignError, DeviceError, DtypeError, ShapeError
from npu.perf.machines import Constants, constants_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

Size = tuple[int, int, int]
MAX_SIZE = 1 << 24
_DTYPES = ("int8", "int16", "int32", "bfloat16", "float32", gemm.BFP16)
_DEPTH = 448  # elements: the deepest of the published designs
_RUN_BYTES = 448  # of a default k_mt: where the published k_mt curves level off


class DesignChoices(TypedDict, total=False):
    """What may be chosen of a design; see ``npu.designs.gemm.Choices``."""

    dtype_in: DTypeLike
    """Of A and B; default int8. "bfp16": blocks of BFP16, see ``npu.designs.gemm.Choices``."""
    dtype_b: DTypeLike | None
    """Of B, default dtype_in; "bfp16" beside a bfloat16 A."""
    dtype_out: DTypeLike
    """Of C; default int32."""
    tile: Size | None
    """(m, k, n) of one core; default ``npu.designs.gemm.default_tile``."""
    k_mt: int | None
    """Depth of a memtile's tiles, a multiple of k; default: up to 448 elements, as fits L2 and
    pads K little."""
    b_layout: str
    """"col" (default) or "row" (major)."""
    c_buffers: int
    """C tiles per core, 1 (default) or 2; with wide sums also 0, which narrows them where they
    lie."""
    accumulate: str
    """"narrow" (default): C stays in its type in L1; "wide": sums have 32 bits; "bfloat16": so
    are those of a C in blocks."""
    bf16: str
    """How npu2 multiplies bfloat16, "bfp16" (default) or "native"."""
    kernel: str | None
    """"published" (default) or "pipelined" (for blocks the only one)."""
    a_parts: int
    """Row parts in which an A tile reaches a core, 1 (default) to 8."""


class Choices(DesignChoices, total=False):
    """Keyword arguments of ``simulate_gemm`` and ``trace_gemm``."""

    design: DesignPoint | None
    """A checked design point, instead of choices."""
    overlap_bds: bool
    """False: the stream waits for each round of outputs before it writes the next BDs."""
    stream_bytes: int | None
    """Bytes per cycle of a stream port, 4 or 8; default: the constant of the generation."""
    constants: Mapping[str, float] | None
    """Other values for constants of ``npu validate-model --constants``."""
    machine: str | None
    """A profile of ``npu validate-model --machines``; default: that of the generation."""
    kernels: str | None
    """Cycles of products: "published" or "scheduled"; default: published kernels as published,
    this project's own as scheduled."""


@dataclasses.dataclass(frozen=True)
class GemmProblem:
    """A checked design point and size, and how they are simulated."""

    design: DesignPoint
    size: Size
    overlap: bool
    constants: Constants


def gemm_problem(
    function: str,
    device: str,
    size: tuple[Any, Any, Any],
    *,
    design: DesignPoint | None = None,
    overlap_bds: bool = True,
    stream_bytes: int | None = None,
    constants: Mapping[str, float] | None = None,
    machine: str | None = None,
    kernels: str | None = None,
    **choices: Unpack[DesignChoices],
) -> GemmProblem:
    """The arguments of ``function``, checked; a k_mt left out is chosen for K."""
    fitted = design is None and choices.get("k_mt") is None
    if design is None:
        design = design_point(device, function=function, **choices)
    elif not isinstance(design, DesignPoint) or design.generation != device:
        raise ArgumentError(
            f"[{function}] design is {design!r}; pass a npu.designs.gemm.DesignPoint of {device}"
        )
    elif choices:
        raise ArgumentError(
            f"[{function}] {', '.join(choices)} beside a design: it says these already; leave out "
            "one or the other"
        )
    m, k, n = (whole(function, x, name, MAX_SIZE) for x, name in zip(size, "MKN", strict=True))
    if fitted:
        design = _with_depth_for(design, k)
    values = checked_constants(function, constants)
    if stream_bytes is not None:
        if stream_bytes not in (4, 8):
            raise ArgumentError(
                f"[{function}] stream_bytes is {stream_bytes!r}; use 4 or 8 (bytes per cycle)"
            )
        values[f"stream_{device}"] = float(stream_bytes)
    chosen = constants_of(function, device, machine, values, kernels)
    return GemmProblem(design, (m, k, n), bool(overlap_bds), chosen)


def design_point(
    device: str,
    *,
    dtype_in: DTypeLike = "int8",
    dtype_b: DTypeLike | None = None,
    dtype_out: DTypeLike = "int32",
    tile: Size | None = None,
    k_mt: int | None = None,
    b_layout: str = "col",
    c_buffers: int = 1,
    accumulate: str = "narrow",
    bf16: str = "bfp16",
    kernel: str | None = None,
    a_parts: int = 1,
    function: str = "simulate_gemm",
) -> DesignPoint:
    """The design point of some choices, or the error that names the limit it violates."""
    if device not in ("npu1", "npu2"):
        raise DeviceError(f'[{function}] device is {device!r}; use "npu1" or "npu2"')
    a, c = _dtype(function, dtype_in, "dtype_in"), _dtype(function, dtype_out, "dtype_out")
    b = a if dtype_b is None else _dtype(function, dtype_b, "dtype_b")
    _check_types(function, device, a, b, c)
    blocks = b == gemm.BFP16
    kernel = kernel or ("pipelined" if blocks else "published")
    if tile is not None and (not isinstance(tile, (tuple, list)) or len(tile) != 3):
        raise ArgumentError(f"[{function}] tile is {tile!r}; it must be (m, k, n)")
    m, k, n = (
        whole(function, value, f"tile {label}", MAX_SIZE)
        for value, label in zip(tile or gemm.default_tile(a, kernel), "mkn", strict=True)
    )
    if k_mt is None:  # the deepest whose runs are not longer than the published designs' of int8
        depth = k * max(1, int(_RUN_BYTES / (k * (1 if a == gemm.BFP16 else DTYPE_BYTES[a]))))
    else:
        depth = whole(function, k_mt, "k_mt", MAX_SIZE)
    if bf16 not in gemm.BF16:
        raise ArgumentError(f'[{function}] bf16 is {bf16!r}; use "bfp16" or "native"')
    if not blocks and (a != "bfloat16" or device == "npu1"):
        bf16 = "native"
    point = gemm.design_point(
        device, a, c, tile=(m, k, n), k_mt=depth, b_layout=b_layout, c_buffers=c_buffers,
        accumulate=accumulate, bf16=bf16, kernel=kernel, a_parts=a_parts, b_dtype=b,
    )  # fmt: skip
    gemm_limits.check_bytes(point, function)
    return point


def _check_types(function: str, device: str, a: str, b: str, c: str) -> None:
    if (b == a and (a, c) in gemm.PAIRS) or (b == gemm.BFP16 and (a, c) in gemm.BLOCK_PAIRS):
        if b == gemm.BFP16 and device != "npu2":
            raise DtypeError(f"[{function}] bfp16 operands on {device}: only npu2 multiplies them")
        return
    pairs = ", ".join(f"{x} -> {y}" for x, y in gemm.PAIRS)
    blocks = ", ".join(f"{x} -> {y}" for x, y in gemm.BLOCK_PAIRS)
    types = a if a == b else f"{a} x {b}"
    raise DtypeError(
        f"[{function}] {types} -> {c} is not supported; there are {pairs}, and with "
        f'dtype_b="bfp16" {blocks}'
    )


def _with_depth_for(design: DesignPoint, k_size: int) -> DesignPoint:
    """The deepest k_mt of up to _DEPTH elements that fits L2 and pads K by at most 1 % more than
    the shallowest does."""
    k, fitting = design.tile[1], []
    for depth in range(k, max(_DEPTH, k) + 1, k):
        other = dataclasses.replace(design, k_mt=depth)
        try:
            gemm_limits.check_shim(other, "gemm")
            gemm_limits.check_bytes(other, "simulate_gemm")
        except DesignError:
            break
        fitting.append(other)
    shortest = -(-k_size // k) * k
    good = [x for x in fitting if -(-k_size // x.k_mt) * x.k_mt <= 1.01 * shortest]
    return good[-1] if good else design


def _dtype_name(value: DTypeLike) -> str:
    try:
        return np.dtype(value).name if not isinstance(value, str) else value
    except TypeError:
        return str(value)


def _dtype(function: str, value: DTypeLike, argument: str) -> str:
    name = _dtype_name(value)
    if name not in _DTYPES:
        raise DtypeError(f"[{function}] {argument} is {value!r}; use one of {', '.join(_DTYPES)}")
    return name


def whole(function: str, value: Any, name: str, high: int, low: int = 1) -> int:
    """A size that was passed to ``function``, or the error that says what it must be."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ArgumentError(f"[{function}] {name} is {value!r}; it must be a whole number")
    if not low <= value <= high:
        raise ShapeError(f"[{function}] {name} is {value}; it must be {low} to {high}")
    return int(value)


def checked_constants(function: str, constants: Any) -> dict[str, float]:
    """The ``constants`` passed to ``function`` as floats; the core checks names and signs."""
    if constants is not None and not isinstance(constants, Mapping):
        raise ArgumentError(f"[{function}] constants is {constants!r}; it must be a mapping")
    values: dict[str, float] = {}
    for name, value in (constants or {}).items():
        number = isinstance(value, (int, float, np.integer, np.floating))
        if not isinstance(name, str) or not number or isinstance(value, bool):
            raise ArgumentError(f"[{function}] constant {name!r} = {value!r}; it needs a number")
        try:
            values[name] = float(value)
        except OverflowError:
            raise ArgumentError(
                f"[{function}] constant {name!r} is too large for a float"
            ) from None
    return values
