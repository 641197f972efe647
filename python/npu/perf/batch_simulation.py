"""How long a step of a batch of sequences takes on the NPU, simulated: no hardware is involved.

``npu.simulate_batch`` runs the steps of the prefill configuration's real streams for such a batch
(npu.designs.prefill) on the timed emulated array, each kind once, as ``npu.simulate_prefill`` does,
and adds them up; the head is one of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from npu import _npu
from npu.errors import ArgumentError, DeviceError
from npu.models.interface import MOST_NEW, MOST_SEQUENCES
from npu.perf.decode_simulation import (
    MAX_CONTEXT,
    DecodeShape,
    check_shape,
    chosen_constants,
    shape_of,
)
from npu.perf.execution import constant
from npu.perf.machines import Constants
from npu.perf.prefill_simulation import Chunk, StepRun
from npu.perf.prefill_split import MOVED, RESOURCES, TERMS
from npu.perf.problem import whole


@dataclasses.dataclass(frozen=True)
class SimulatedBatch:
    """A simulated step of ``sequences``, each with ``tokens`` new tokens of which the last sees
    ``context`` positions: times are of the modelled NPU, not of this machine.

    ``seconds``: from the host's call until the logits are in memory, the dispatch included; no
    configuration is loaded between such steps. What the host does besides (embedding rows, the
    stream, choosing tokens) is not in it. ``split`` has its parts in seconds, which add up to it,
    with the names that ``SimulatedPrefill`` has; the head is part of them, and ``head`` says how
    many seconds it takes. ``bound`` names the resource that is busiest in the steps with most of
    the time. ``bytes`` counts what is moved; ``ceiling``: bytes per second.
    """

    device: str
    machine: str
    kernels: str
    shape: str
    sequences: int
    tokens: int
    context: int
    seconds: float
    split: dict[str, float]
    head: float
    bound: str
    bytes: dict[str, int]
    ceiling: float

    @property
    def tokens_per_second(self) -> float:
        """Of all sequences."""
        return self.sequences * self.tokens / self.seconds


def simulate_batch(
    device: str,
    shape: str | DecodeShape,
    context: int,
    sequences: int = MOST_SEQUENCES,
    *,
    tokens: int = 1,
    format: str = "q4nx",
    read_gbs: float | None = None,
    constants: Mapping[str, float] | None = None,
    machine: str | None = None,
    kernels: str | None = None,
) -> SimulatedBatch:
    """The simulated time of a step of ``Model.decode_batch`` on "npu1" or "npu2".

    shape, format, read_gbs, constants, machine, kernels: as of ``simulate_decode``; context:
    positions that the last new token of each sequence sees, itself included, 1 to 1048576;
    sequences: 1 to 8; tokens: new ones of each, 1 to 8. Raises ArgumentError, DeviceError,
    ShapeError (also for sizes with which batches do not run on the array).
    """
    if device not in ("npu1", "npu2"):
        raise DeviceError(f'[simulate_batch] device is {device!r}; use "npu1" or "npu2"')
    found = shape if isinstance(shape, DecodeShape) else shape_of(shape, format)
    check_shape(found)
    length = whole("simulate_batch", context, "context", MAX_CONTEXT)
    count = whole("simulate_batch", sequences, "sequences", MOST_SEQUENCES)
    new = whole("simulate_batch", tokens, "tokens", MOST_NEW)
    if new > length:
        raise ArgumentError(
            f"[simulate_batch] {new} new tokens in a context of {length}; the context includes them"
        )
    overrides = chosen_constants("simulate_batch", device, machine, read_gbs, constants, kernels)
    chunk = Chunk(device, found, new, length - new, overrides, count)
    return _Sum(device, overrides).result(found, chunk, count, new, length)


class _Sum:
    """Adds up the steps of a batch."""

    def __init__(self, device: str, constants: Constants) -> None:
        self._device, self._constants = device, constants
        self._clock = float(_npu.arch.device_geometry(device)["clock_hz"])
        self._parts = dict.fromkeys((*TERMS, "dispatch"), 0.0)
        self._moved = dict.fromkeys(MOVED, 0.0)
        self._bound = dict.fromkeys(RESOURCES, 0.0)
        self._kernels: dict[str, str] = {}

    def result(
        self, shape: DecodeShape, chunk: Chunk, sequences: int, tokens: int, context: int
    ) -> SimulatedBatch:
        for _, count, run in chunk.steps():
            self._add(run, count)
        head = chunk.head()
        self._add(head, 1)
        self._parts["waiting"] -= len(shape.layers) * chunk.overlap() / self._clock
        self._parts["dispatch"] = constant("dispatch", self._constants) * 1e-6
        return SimulatedBatch(
            device=self._device,
            machine=self._constants.label,
            kernels=self._constants.kernels(self._kernels),
            shape=shape.name,
            sequences=sequences,
            tokens=tokens,
            context=context,
            seconds=sum(self._parts.values()),
            split=self._parts,
            head=head.cycles / self._clock,
            bound=max(self._bound, key=lambda name: self._bound[name]),
            bytes={name: int(value) for name, value in self._moved.items()},
            ceiling=constant(f"dram_read_{self._device}", self._constants) * 1e9,
        )

    def _add(self, run: StepRun, count: int) -> None:
        self._kernels |= run.kernels
        for name, cycles in zip(TERMS, run.terms.tolist(), strict=True):
            self._parts[name] += count * cycles / self._clock
        for name, moved in zip(MOVED, run.moved.tolist(), strict=True):
            self._moved[name] += count * moved
        self._bound[run.bound] += count * run.cycles / self._clock
