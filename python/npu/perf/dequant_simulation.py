"""How long the dequantisation of weights takes on the NPU, simulated: no hardware is involved.

``npu.simulate_dequantize`` lowers the real configuration, builds the real command stream and
executes it on the timed emulated array (docs/timing.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from npu import _npu
from npu.designs import dequant
from npu.errors import DeviceError
from npu.perf.execution import constant, run_request
from npu.perf.machines import constants_of
from npu.perf.problem import checked_constants, whole

_MAX_SIDE = 1 << 24


@dataclasses.dataclass(frozen=True)
class SimulatedDequantize:
    """A simulated dequantisation: times are of the modelled NPU, not of this machine.

    ``seconds`` is array time, from the first command-processor operation until the last result is
    in memory and its token taken; ``dispatch_seconds`` (host to array and back) comes on top.
    ``read_bandwidth`` and ``write_bandwidth`` are bytes of blocks and of bfloat16 per second of
    ``seconds``. ``ceiling`` is what bounds the writes: the memory's bandwidth for reads and writes
    together, of which writes take their part (of q4nx 16 bytes in 21), or all shim channels at the
    rate of a stream port if that is less; ``share`` is of that. ``bound`` is the busiest resource,
    ``shares`` how much of the time each works; ``machine`` and ``kernels`` the profiles simulated.
    """

    machine: str
    kernels: str
    seconds: float
    dispatch_seconds: float
    read_bandwidth: float
    write_bandwidth: float
    ceiling: float
    share: float
    bound: str
    shares: dict[str, float]
    details: dict[str, float] = dataclasses.field(repr=False)


def simulate_dequantize(
    device: str,
    N: int,
    K: int,
    *,
    format: str = "q4nx",
    constants: Mapping[str, float] | None = None,
    machine: str | None = None,
    kernels: str | None = None,
) -> SimulatedDequantize:
    """The simulated time of expanding W (N, K) on "npu1" or "npu2", padding included.

    format: of the blocks, "q4nx", "q8", "bf16", "q4_0" or "q8_0"; constants: other values for those
    of ``npu validate-model --constants``; machine: a profile of ``npu validate-model --machines``,
    by default that of the generation. Raises DeviceError, ShapeError, ArgumentError, DesignError.
    """
    if device not in ("npu1", "npu2"):
        raise DeviceError(f'[simulate_dequantize] device is {device!r}; use "npu1" or "npu2"')
    n = whole("simulate_dequantize", N, "N", _MAX_SIDE)
    k = whole("simulate_dequantize", K, "K", _MAX_SIDE)
    changed = checked_constants("simulate_dequantize", constants)
    overrides = constants_of("simulate_dequantize", device, machine, changed, kernels)
    config = dequant.configuration(device, format)
    totals = run_request("dequant", config, {"n": n, "k": k}, overrides)
    seconds = totals.array_seconds
    read, written = totals.moved["shim_read"], totals.moved["shim_write"]
    model = _npu.arch.device_geometry(device)
    channels = dequant.LANES * model["columns"]
    ports = channels * constant(f"stream_{device}", overrides) * model["clock_hz"]
    memory = constant(f"dram_total_{device}", overrides) * 1e9
    ceiling = min(ports, memory * written / (read + written))
    return SimulatedDequantize(
        machine=overrides.label,
        kernels=overrides.kernels(totals.kernels),
        seconds=seconds,
        dispatch_seconds=totals.timing["dispatch"],
        read_bandwidth=read / seconds,
        write_bandwidth=written / seconds,
        ceiling=ceiling,
        share=written / seconds / ceiling,
        bound=totals.bound,
        shares=totals.shares,
        details=totals.details,
    )
