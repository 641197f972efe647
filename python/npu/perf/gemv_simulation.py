"""How long y = W x on weights in blocks takes on the NPU, simulated: no hardware is involved.

``npu.simulate_gemv`` lowers the real configuration, builds the real command stream and executes it
on the timed emulated array (docs/timing.md). The loop counts of the cores travel with x, so the run
moves data; weights are zeros.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from npu._npu import facts
from npu.designs import gemv
from npu.errors import ArgumentError, DeviceError
from npu.ops.registry import operation
from npu.perf.execution import constant, run_request
from npu.perf.machines import constants_of
from npu.perf.problem import checked_constants, whole

BATCHES = (1, 2, 4, 8)
_MAX_SIDE = 1 << 24
# The projections of one decode step: name -> (N, K), and how often each runs per token.
PROJECTIONS: dict[str, dict[str, tuple[int, int, int]]] = {
    "gemma3-1b": {
        "qkv": (1536, 1152, 26),
        "o": (1152, 1024, 26),
        "gate+up": (13824, 1152, 26),
        "down": (1152, 6912, 26),
        "head": (262144, 1152, 1),
    },
    "gemma3-4b": {
        "qkv": (4096, 2560, 34),
        "o": (2560, 2048, 34),
        "gate+up": (20480, 2560, 34),
        "down": (2560, 10240, 34),
        "head": (262208, 2560, 1),
    },
}


@dataclasses.dataclass(frozen=True)
class SimulatedGemv:
    """A simulated GEMV: times are of the modelled NPU, not of this machine.

    ``seconds`` is array time, from the first command-processor operation until the last result is
    in memory; ``token_seconds`` (the completion token's way to the command processor) and
    ``dispatch_seconds`` (host to array and back) come on top, once per submission. ``bandwidth`` is
    weight bytes per second of ``seconds``, ``ceiling`` the modelled read ceiling in the same unit,
    ``share`` their ratio. ``bound`` is the resource that is busiest, ``shares`` how much of the
    time each works; ``machine`` and ``kernels`` the profiles
    simulated.
    """

    machine: str
    kernels: str
    seconds: float
    token_seconds: float
    dispatch_seconds: float
    bandwidth: float
    ceiling: float
    share: float
    bound: str
    weight_bytes: int
    read_bytes: int
    shares: dict[str, float]
    details: dict[str, float] = dataclasses.field(repr=False)


def simulate_gemv(
    device: str,
    N: int,
    K: int,
    batch: int = 1,
    *,
    cores: int | None = None,
    channels: int = 2,
    top: int = 0,
    format: str = "q4nx",
    constants: Mapping[str, float] | None = None,
    machine: str | None = None,
    kernels: str | None = None,
) -> SimulatedGemv:
    """The simulated time of y[batch, N] = x[batch, K] W[N, K]^T on "npu1" or "npu2".

    batch: 1 to 8 vectors, rounded up to 1, 2, 4 or 8; cores, channels: see npu.designs.gemv.design;
    top: keep that many largest elements instead of y (0: y as bfloat16); format: of the blocks,
    "q4nx", "q8", "bf16", "q4_0" or "q8_0"; constants: other values for those of
    ``npu validate-model --constants``; machine: a profile of ``npu validate-model --machines``, by
    default that of the generation. Raises DeviceError, ShapeError, ArgumentError, DesignError.
    """
    if device not in ("npu1", "npu2"):
        raise DeviceError(f'[simulate_gemv] device is {device!r}; use "npu1" or "npu2"')
    n, k = whole("simulate_gemv", N, "N", _MAX_SIDE), whole("simulate_gemv", K, "K", _MAX_SIDE)
    asked = whole("simulate_gemv", batch, "batch", BATCHES[-1])
    vectors = next(b for b in BATCHES if b >= asked)
    if format not in gemv.COLUMNS:
        known = ", ".join(map(repr, gemv.COLUMNS))
        raise ArgumentError(f"[simulate_gemv] format is {format!r}; use {known}")
    changed = checked_constants("simulate_gemv", constants)
    overrides = constants_of("simulate_gemv", device, machine, changed, kernels)
    config = gemv.configuration(device, cores, channels, **operation("gemv").choices_of(format))
    output = facts.GEMV_TOP_OUTPUT if top else 0
    request = {
        "n": n, "k": k, "batch": vectors, "output": output, "top": top,
        "format": list(gemv.COLUMNS).index(format),
    }  # fmt: skip
    totals = run_request("gemv", config, request, overrides)
    token = constant("token", overrides) * 1e-6
    seconds = totals.array_seconds - token
    ceiling = constant(f"dram_read_{device}", overrides) * 1e9
    weight_bytes = (
        -(-n // gemv.BLOCK_ROWS) * -(-k // gemv.COLUMNS[format]) * facts.BYTES_OF_BLOCK[format]
    )
    return SimulatedGemv(
        machine=overrides.label,
        kernels=overrides.kernels(totals.kernels),
        seconds=seconds,
        token_seconds=token,
        dispatch_seconds=totals.timing["dispatch"],
        bandwidth=weight_bytes / seconds,
        ceiling=ceiling,
        share=weight_bytes / seconds / ceiling,
        bound=totals.bound,
        weight_bytes=weight_bytes,
        read_bytes=totals.moved["shim_read"],
        shares=totals.shares,
        details=totals.details,
    )
