"""A simulated token of a decoder as a timeline: ``npu.trace_token``, as npu.perf.trace for GEMM."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from npu import _npu
from npu.errors import DeviceError, ShapeError
from npu.ops.registry import operation
from npu.perf.decode_simulation import (
    MAX_CONTEXT,
    DecodeShape,
    check_shape,
    chosen_constants,
    request_of,
    shape_of,
)
from npu.perf.execution import Totals, zeros_but
from npu.perf.machines import Constants
from npu.perf.problem import whole
from npu.perf.timeline import Track
from npu.perf.trace import DEFAULT_LIMIT, Trace, check_request, members, operations_of, record

_Bar = tuple[str, Callable[[Track], bool]]


class TokenTrace(Trace):
    """The timeline of a simulated token, with the members of ``GemmTrace``."""


@dataclasses.dataclass(frozen=True)
class TracedToken:
    """The whole run that a window was kept of; ``seconds`` with the dispatch."""

    seconds: float
    dispatch_seconds: float
    cycles: float
    bound: str
    kernels: str


def trace_token(
    device: str,
    shape: str | DecodeShape,
    context: int,
    *,
    format: str = "q4nx",
    read_gbs: float | None = None,
    from_us: float = 0,
    to_us: float | None = None,
    limit: int = DEFAULT_LIMIT,
    locks: bool = True,
    constants: Mapping[str, float] | None = None,
    machine: str | None = None,
    kernels: str | None = None,
) -> TokenTrace:
    """The timeline of a token; device, shape, context, format, read_gbs, constants, machine,
    kernels as of ``simulate_decode``, from_us, to_us, limit, locks as of ``trace_gemm``.

    All layers run, those with a window first; they need the same formats. Raises ArgumentError,
    DeviceError, ShapeError.
    """
    kept = Kept.checked("trace_token", from_us, to_us, limit, locks)
    found, formats, counts = layers_of("trace_token", device, shape, format)
    length = whole("trace_token", context, "context", MAX_CONTEXT)
    overrides = chosen_constants("trace_token", device, machine, read_gbs, constants, kernels)
    request = request_of(found, length, counts, formats, found.vocabulary)
    run, fields = traced("decoder", device, request, kept, overrides)
    return TokenTrace(
        what="Simulated token",
        rate=("tokens per second", 1 / run.seconds),
        bars=_bars(device),
        title=f"{device}, {found.name}, context {length}",
        design=f"{counts[0]} layers with a window, {counts[1]} without, the head",
        **fields,
    )


@dataclasses.dataclass(frozen=True)
class Kept:
    """What of a run is kept: microseconds [begin, end), so many events, values of locks."""

    function: str
    begin: float
    end: float
    limit: int
    locks: bool

    @staticmethod
    def checked(function: str, from_us: Any, to_us: Any, limit: Any, locks: Any) -> Kept:
        return Kept(function, *check_request(from_us, to_us, limit, function), bool(locks))


def layers_of(
    function: str, device: str, shape: str | DecodeShape, format: str
) -> tuple[DecodeShape, tuple[str, ...], tuple[int, int]]:
    """The shape, its layers' formats, and how many layers have a window and how many do not. Raises
    ArgumentError, DeviceError, ShapeError."""
    if device not in ("npu1", "npu2"):
        raise DeviceError(f'[{function}] device is {device!r}; use "npu1" or "npu2"')
    found = shape if isinstance(shape, DecodeShape) else shape_of(shape, format)
    check_shape(found)
    formats = {layer.formats for layer in found.layers}
    if len(formats) > 1:
        raise ShapeError(f"[{function}] the layers differ in formats; use a shape with one of each")
    sliding = sum(layer.window > 0 for layer in found.layers)
    return found, formats.pop(), (sliding, len(found.layers) - sliding)


def traced(
    name: str,
    device: str,
    request: Mapping[str, int],
    kept: Kept,
    constants: Constants,
    kernels: Sequence[str] = (),
) -> tuple[TracedToken, dict[str, Any]]:
    """The one submission of a request to an operation: the run, and the members of its timeline
    that follow from it. kernels: as of ``npu.perf.execution.execute``."""
    found = operation(name)
    config = found.configuration(device, **found.choices_for(request))
    (submission,) = _npu.operations.submissions(name, config, dict(request))
    window = (kept.begin, kept.end)
    report, recorded = record(
        device, config, submission["stream"], (*window, kept.limit, kept.locks), constants,
        data=[zeros_but(a["contents"], a["bytes"]) for a in submission["arguments"]],
        kernels=kernels,
    )  # fmt: skip
    run = _run(report, constants)
    shared = members(kept.function, device, run, window, recorded, config)
    return run, shared | {
        "operations": operations_of(submission["stream"]),
        "machine": constants.label,
    }


def _run(report: dict[str, Any], constants: Constants) -> TracedToken:
    totals = Totals.of([(1, report)])
    timing = totals.timing
    assert math.isfinite(timing["cycles"])
    return TracedToken(
        timing["seconds"], timing["dispatch"], timing["cycles"], totals.bound,
        constants.kernels(totals.kernels),
    )  # fmt: skip


def _bars(device: str) -> tuple[_Bar, ...]:
    last = int(_npu.arch.device_geometry(device)["columns"]) - 1

    def core(rows: tuple[int, int], vector: bool | None) -> Callable[[Track], bool]:
        return lambda t: (
            t.kind == "core" and t.row in rows and vector in (None, t.col == last)
        )  # fmt: skip

    def port(name: str) -> Callable[[Track], bool]:
        return lambda t: t.port.rstrip("0123456789") == name

    return (
        ("GEMV cores", core((2, 3), None)),
        ("attention cores", core((4, 5), False)),
        ("vector core", core((4, 5), True)),
        ("shim DMA, weights", port("W")),
        ("shim DMA, keys and values", port("KV")),
        ("shim DMA, to the vector core", port("X")),
        ("shim DMA, results of products", port("Y")),
    )
