"""What npu.matmul expects of a GEMM configuration before it runs: the closed form's seconds, or
those of a host that emulates the array."""

from __future__ import annotations

import functools

from npu import _npu
from npu.designs.gemm import DesignPoint
from npu.ops.gemm_product import Size

Constants = tuple[tuple[str, float], ...]  # that are not the table's


@functools.lru_cache(maxsize=1 << 14)
def seconds(o: DesignPoint, size: Size, packed: bool = False, constants: Constants = ()) -> float:
    """The predicted time of all submissions of a problem, dispatch included, no load.

    packed: B is a packed copy, whose runs are as long as those of a column-major B; constants: of
    a machine and a profile of kernels.
    """
    return float(_npu.gemm_choice.seconds(o, size, packed, dict(constants)))


def host_seconds(o: DesignPoint, size: Size) -> float:
    """The expected time of a product that an emulated device repeats, no load, on as many threads
    as the package uses now."""
    return float(_npu.gemm_choice.host_seconds(o, size))


HOST_LOAD_SECONDS: float = _npu.gemm_choice.HOST_LOAD_SECONDS  # of a configuration used before


def load_seconds(generation: str, constants: Constants = ()) -> float:
    """Of changing the array's configuration."""
    from npu.perf.execution import constant

    return constant(f"load_{generation}", dict(constants)) * 1e-3


def constants_of(generation: str, machine: str | None, kernels: str | None) -> Constants:
    """What predictions of a device rest on beside the table. Raises ArgumentError."""
    if machine is None and kernels is None:
        return ()
    from npu.perf import machines

    return tuple(machines.constants_of("device", generation, machine, {}, kernels).items())
