"""A chunk of a simulated prompt as a timeline: ``npu.trace_prefill``, as npu.perf.token_trace for a
token."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from npu import _npu
from npu.perf.decode_simulation import DecodeShape, chosen_constants
from npu.perf.prefill_simulation import KERNELS, MAX_TOKENS, request_of_steps
from npu.perf.problem import whole
from npu.perf.timeline import Track
from npu.perf.token_trace import Kept, layers_of, traced
from npu.perf.trace import DEFAULT_LIMIT, Trace

_Bar = tuple[str, Callable[[Track], bool]]


class PrefillTrace(Trace):
    """The timeline of a chunk of a simulated prompt, with the members of ``GemmTrace``."""


def trace_prefill(
    device: str,
    shape: str | DecodeShape,
    tokens: int,
    *,
    position: int = 0,
    layers: int | None = None,
    format: str = "q4nx",
    read_gbs: float | None = None,
    from_us: float = 0,
    to_us: float | None = None,
    limit: int = DEFAULT_LIMIT,
    locks: bool = True,
    constants: Mapping[str, float] | None = None,
    machine: str | None = None,
    kernels: str | None = None,
) -> PrefillTrace:
    """The timeline of a chunk of 1 to 1024 tokens; device, shape, position, format, read_gbs,
    constants, machine, kernels as of ``simulate_prefill``, from_us, to_us, limit, locks as of
    ``trace_gemm``.

    All layers run, those with a window first, or only the first ``layers`` of these; they need the
    same formats. The head is not part of it. Raises ArgumentError, DeviceError, ShapeError.
    """
    kept = Kept.checked("trace_prefill", from_us, to_us, limit, locks)
    found, formats, (sliding, others) = layers_of("trace_prefill", device, shape, format)
    count = whole("trace_prefill", tokens, "tokens", _npu.ops.Prefill.SUBMISSION_ROWS)
    first = whole("trace_prefill", position, "position", MAX_TOKENS) if position != 0 else 0
    if layers is not None:
        few = whole("trace_prefill", layers, "layers", sliding + others)
        sliding, others = min(few, sliding), max(0, few - sliding)
    overrides = chosen_constants("trace_prefill", device, machine, read_gbs, constants, kernels)
    request = request_of_steps(found, count, first, (sliding, others), formats)
    run, fields = traced("prefill", device, request, kept, overrides, KERNELS)
    return PrefillTrace(
        what="Simulated prompt",
        rate=("ms per layer", run.seconds * 1e3 / (sliding + others)),
        bars=_BARS,
        title=f"{device}, {found.name}, {count} tokens at position {first}",
        design=f"{sliding} layers with a window, {others} without",
        **fields,
    )


def _port(name: str) -> Callable[[Track], bool]:
    return lambda track: track.port.rstrip("0123456789") == name


_BARS: tuple[_Bar, ...] = (
    ("cores", lambda track: track.kind == "core"),
    ("shim DMA, stream A", _port("A")),
    ("shim DMA, stream B", _port("B")),
    ("shim DMA, results", lambda track: track.port[:1] in ("C", "D")),
)
