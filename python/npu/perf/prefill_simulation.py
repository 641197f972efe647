"""How long a prompt of a Gemma 3 model takes on the NPU, simulated: no hardware is involved.

``npu.simulate_prefill`` runs the prefill configuration's real command streams (npu.designs.prefill)
on the timed emulated array, each kind of step once, and adds up the steps of all layers and chunks,
less what consecutive steps of a stream overlap; then comes the head (docs/prefill.md says how exact
that is).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from npu import _npu
from npu.errors import DeviceError
from npu.ops.registry import operation
from npu.perf.decode_simulation import (
    DecodeShape,
    check_shape,
    chosen_constants,
    request_of,
    shape_of,
    simulate_decode,
)
from npu.perf.execution import constant, execute, zeros_but
from npu.perf.gemv_simulation import simulate_gemv
from npu.perf.machines import Constants
from npu.perf.prefill_split import MOVED, RESOURCES, TERMS, shares, split
from npu.perf.problem import whole
from npu.perf.timeline import EVENT

MAX_CHUNK: int = _npu.ops.Prefill.MOST
MAX_TOKENS = 1 << 20
PARTS = (*TERMS, "head", "dispatch", "configuration loads")
LAYER = (
    "norm", "qkv", "rotation", "attention", "output", "second norm", "gate_up", "geglu", "down",
)  # fmt: skip
WORK = dict.fromkeys(("qkv", "output", "gate_up", "down"), "products") | {
    "attention": "attention"
}  # of a step's cores; the others: rows
# The kernel that loops depend on; data does not change the time of the others.
KERNELS = ("prefill_begin", "prefill_begin_product")
_PAGE = 256  # positions of a page of the cache: what follows repeats with them
_FAR = (0, 1024, 4096)  # where attention to all positions is simulated; between and behind: lines
PLAIN = ("q4nx",) * 4  # where formats do not matter
_TOP = 8  # of the logits leave the array, as for greedy decoding
_EVENTS = 1 << 27


@dataclasses.dataclass(frozen=True)
class SimulatedPrefill:
    """A simulated prompt: times are of the modelled NPU, not of this machine.

    ``seconds``: from the host's call until the largest logits of the last token are in memory, with
    all ``chunks`` (a submission per 1,024 rows), the head, their dispatches, and the loads of the
    prefill configuration and of the head's (``configuration_loads``). What the host does before and
    between (embedding rows, streams, the norm before the head) is not in it.

    ``split`` has its parts in seconds, which add up to it. "weights", "kv" and "activations" are
    the memory's share of the time, bytes / read ceiling. The rest is time in which the memory was
    not at its ceiling while cores multiplied ("products"), attention ran ("attention"), norms,
    rotation or GeGLU did ("rows"), only the command processor worked ("command processor") or
    nothing did ("waiting"); then "head", "dispatch" and "configuration loads". ``bound`` names what
    binds most of the time: the busiest resource of each step ("DRAM", "stream A", "stream B",
    "results", "core compute", "command processor"), "head", "dispatch" or "configuration loads".
    ``bytes`` counts what is moved: "weights", "kv", "activations read", "activations written",
    "head"; ``ceiling``: bytes per second.
    """

    device: str
    machine: str
    kernels: str
    shape: str
    tokens: int
    position: int
    seconds: float
    split: dict[str, float]
    bound: str
    bytes: dict[str, int]
    ceiling: float
    chunks: int
    configuration_loads: int

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def simulate_prefill(
    device: str,
    shape: str | DecodeShape,
    tokens: int,
    *,
    position: int = 0,
    chunk: int = MAX_CHUNK,
    format: str = "q4nx",
    read_gbs: float | None = None,
    constants: Mapping[str, float] | None = None,
    machine: str | None = None,
    kernels: str | None = None,
) -> SimulatedPrefill:
    """The simulated time to the first token of a prompt on "npu1" or "npu2".

    shape, format, read_gbs, constants, machine, kernels: as of ``simulate_decode``; tokens: of the
    prompt, 1 to 1048576; position: of its first token, so many positions are in the cache already;
    chunk: tokens of a chunk, 1 to 2048. A last chunk of one token is a decode step. Raises
    ArgumentError, DeviceError, ShapeError (also for sizes with which prompts do not run on the
    array).
    """
    if device not in ("npu1", "npu2"):
        raise DeviceError(f'[simulate_prefill] device is {device!r}; use "npu1" or "npu2"')
    found = shape if isinstance(shape, DecodeShape) else shape_of(shape, format)
    check_shape(found)
    count = whole("simulate_prefill", tokens, "tokens", MAX_TOKENS)
    first = whole("simulate_prefill", position, "position", MAX_TOKENS) if position != 0 else 0
    size = whole("simulate_prefill", chunk, "chunk", MAX_CHUNK)
    overrides = chosen_constants("simulate_prefill", device, machine, read_gbs, constants, kernels)
    return _Prompt(device, found, count, first, size, overrides).result()


@dataclasses.dataclass(frozen=True)
class StepRun:
    """A step on the timed array: cycles, how they split (TERMS), bytes (MOVED), the shares in
    which resources work (RESOURCES), and what the cycles of kernels are (kernel_profile.py)."""

    cycles: float
    terms: np.ndarray
    moved: np.ndarray
    shares: np.ndarray
    kernels: Mapping[str, str]

    @property
    def bound(self) -> str:
        return RESOURCES[int(np.argmax(self.shares))]

    def towards(self, other: StepRun, t: float) -> StepRun:
        """On the line from this run (t = 0) to another one (1), or behind it."""

        def line(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return a + (b - a) * t

        cycles = self.cycles + (other.cycles - self.cycles) * t
        busy = line(self.shares * self.cycles, other.shares * other.cycles)
        return StepRun(
            cycles, line(self.terms, other.terms), line(self.moved, other.moved), busy / cycles,
            {**self.kernels, **other.kernels},
        )  # fmt: skip


def request_of_steps(
    shape: DecodeShape,
    tokens: int,
    position: int,
    counts: tuple[int, int],
    formats: tuple[str, ...],
    steps: tuple[int, int] = (0, 0),
    sequences: int = 0,
) -> dict[str, int]:
    """The request for a chunk through so many (sliding, global) layers; steps: the first one, and
    how many (0: all). sequences: of a batch, each with so many tokens, and its head; 0: a chunk."""
    request = request_of(
        shape, position + 1, counts, formats, shape.vocabulary if sequences else 64
    )
    del request["top"]
    if not sequences:
        request["format_head"] = 0
    request["sequences"] = sequences
    return request | {"tokens": tokens, "first_step": steps[0], "steps": steps[1]}


def simulate_step(
    device: str, request: Mapping[str, int], constants: Mapping[str, float], work: str
) -> StepRun:
    """A request to ``prefill`` whose cores do ``work`` (npu.perf.prefill_split.WORK)."""
    return _step(device, tuple(sorted(request.items())), tuple(sorted(constants.items())), work)


@functools.lru_cache(maxsize=1024)
def _step(
    device: str,
    request: tuple[tuple[str, int], ...],
    constants: tuple[tuple[str, float], ...],
    work: str,
) -> StepRun:
    values = dict(constants)
    config, report = _execute(device, dict(request), values, (0.0, math.inf, _EVENTS, False))
    trace, timing = report["trace"], report["timing"]
    ceiling = constant(f"dram_read_{device}", values) * 1e9 / _clock(device)
    events = trace["events"].view(EVENT)
    terms, moved = split(trace, events, config, timing["cycles"], ceiling, work)
    return StepRun(timing["cycles"], terms, moved, shares(timing), timing["kernels"])


def stream_cycles(device: str, request: Mapping[str, int], constants: Mapping[str, float]) -> float:
    """Of a request to ``prefill``, one stream."""
    return _cycles(device, tuple(sorted(request.items())), tuple(sorted(constants.items())))


@functools.lru_cache(maxsize=1024)
def _cycles(
    device: str, request: tuple[tuple[str, int], ...], constants: tuple[tuple[str, float], ...]
) -> float:
    _, report = _execute(device, dict(request), dict(constants), None)
    return float(report["timing"]["cycles"])


def _execute(
    device: str,
    request: dict[str, int],
    constants: dict[str, float],
    trace: tuple[float, float, int, bool] | None,
) -> tuple[bytes, dict]:
    config = operation("prefill").configuration(device)
    (submission,) = _npu.operations.submissions("prefill", config, request)
    data = [zeros_but(a["contents"], a["bytes"]) for a in submission["arguments"]]
    report = execute(
        config, submission["stream"], data=data, constants=constants, trace=trace, kernels=KERNELS
    )
    return config, report


def _clock(device: str) -> float:
    return float(_npu.arch.device_geometry(device)["clock_hz"])


class Chunk:
    """The steps of a chunk of ``tokens`` at ``position``; or of a batch of ``sequences``, each with
    so many tokens there."""

    def __init__(
        self,
        device: str,
        shape: DecodeShape,
        tokens: int,
        position: int,
        constants: Mapping[str, float],
        sequences: int = 0,
    ) -> None:
        self._device, self._shape, self._constants = device, shape, dict(constants)
        self._tokens, self._position, self._sequences = tokens, position, sequences

    def steps(self) -> Iterator[tuple[str, int, StepRun]]:
        """Name, how often, and run of the steps of all layers."""
        layers = Counter((layer.formats, layer.window == 0) for layer in self._shape.layers)
        for (formats, is_global), count in layers.items():
            for name in LAYER[1:]:
                yield name, count, self.step(name, formats, is_global)
        yield "norm", 1, self._first_norm()
        yield "norm", len(self._shape.layers), self.step("norm", PLAIN, False)  # behind each layer

    def step(self, name: str, formats: tuple[str, ...], is_global: bool) -> StepRun:
        """A step of a layer that is not the first one."""
        index = LAYER.index("second norm" if name == "norm" else name)
        work = WORK.get(name, "rows")
        if name in ("qkv", "output", "gate_up", "down"):
            one = formats[("qkv", "output", "gate_up", "down").index(name)]
            return self._run(index, (1, 0), (one,) * 4, self._near, work)
        if name != "attention":
            return self._run(index, (1, 0), PLAIN, self._near, work)
        return self._attention_to_all(index) if is_global else self._attention(index)

    @property
    def _near(self) -> int:
        """A position where a step that does not read the cache takes as long."""
        return self._position % _PAGE

    def _attention(self, index: int) -> StepRun:
        """In a window: beyond it all positions are alike."""
        window = -(-self._shape.window // _PAGE) * _PAGE
        position = self._position
        if position > window:
            position = window + (position - window) % _PAGE
        return self._run(index, (1, 0), PLAIN, position, "attention")

    def _attention_to_all(self, index: int) -> StepRun:
        """Linear in the position: keys of all positions before, for every query."""

        def at(far: int) -> StepRun:
            return self._run(index, (0, 1), PLAIN, far + self._near, "attention")

        distance = self._position - self._near
        if distance in _FAR:
            return at(distance)
        low = max(far for far in _FAR[:-1] if far < distance)
        high = _FAR[_FAR.index(low) + 1]
        return at(low).towards(at(high), (distance - low) / (high - low))

    def _run(
        self, step: int, counts: tuple[int, int], formats: tuple[str, ...], position: int, work: str
    ) -> StepRun:
        request = request_of_steps(
            self._shape, self._tokens, position, counts, formats, (step, 1), self._sequences
        )
        return simulate_step(self._device, request, self._constants, work)

    def head(self) -> StepRun:
        """Of a batch, all of the vocabulary."""
        return self._run(len(LAYER) + 1, (1, 0), PLAIN, self._near, "products")

    def overlap(self) -> float:
        """Cycles that a layer's steps, one behind the other, take less than alone: what does not
        depend on the step before is on its way. Of a layer with a window, the norm behind it
        included; layers differ little in it."""
        formats = Counter(layer.formats for layer in self._shape.layers).most_common(1)[0][0]
        alone = [self._first_norm(), self.step("norm", formats, False)]
        for name in LAYER[1:]:
            if name == "attention":
                index = LAYER.index(name)
                alone.append(self._run(index, (1, 0), PLAIN, self._near, "attention"))
            else:
                alone.append(self.step(name, formats, False))
        steps = (0, len(LAYER) + 1)
        request = request_of_steps(
            self._shape, self._tokens, self._near, (1, 0), formats, steps, self._sequences
        )
        together = stream_cycles(self._device, request, self._constants)
        return sum(run.cycles for run in alone) - together

    def _first_norm(self) -> StepRun:
        """Of the first layer: nothing to add."""
        return self._run(0, (1, 0), PLAIN, self._near, "rows")


class _Prompt:
    """Adds up chunks and the head."""

    def __init__(
        self,
        device: str,
        shape: DecodeShape,
        tokens: int,
        position: int,
        chunk: int,
        constants: Constants,
    ) -> None:
        self._device, self._shape, self._constants = device, shape, constants
        self._tokens, self._position, self._chunk = tokens, position, chunk
        self._parts = dict.fromkeys(PARTS, 0.0)
        self._moved = dict.fromkeys((*MOVED, "head"), 0.0)
        self._bound = dict.fromkeys((*RESOURCES, *PARTS), 0.0)
        self._kernels: dict[str, str] = {}  # of the steps
        self._one_token = ""  # what a prompt of one token is stamped with

    def result(self) -> SimulatedPrefill:
        dispatch = constant("dispatch", self._constants) * 1e-6
        load = constant(f"load_{self._device}", self._constants) * 1e-3
        lengths = [
            min(self._chunk, self._tokens - at) for at in range(0, self._tokens, self._chunk)
        ]
        single = lengths[-1] == 1
        for i, length in enumerate(lengths[:-1] if single else lengths):
            self._add_chunk(length, self._position + i * self._chunk)
            lead = (self._position + i * self._chunk) % _npu.ops.Prefill.ALIGN
            rows = lead + length
            self._parts["dispatch"] += -(-rows // _npu.ops.Prefill.SUBMISSION_ROWS) * dispatch
        if single:
            self._add_token()
        else:
            self._add_head()
            self._parts["dispatch"] += dispatch
        loads = 1 + (len(lengths) > single)
        self._parts["configuration loads"] = loads * load
        for name in ("head", "dispatch", "configuration loads"):
            self._bound[name] += self._parts[name]
        return SimulatedPrefill(
            device=self._device,
            machine=self._constants.label,
            kernels=self._one_token or self._constants.kernels(self._kernels),
            shape=self._shape.name,
            tokens=self._tokens,
            position=self._position,
            seconds=float(sum(self._parts.values())),
            split={name: float(value) for name, value in self._parts.items()},
            bound=max(self._bound, key=lambda name: self._bound[name]),
            bytes={name: int(value) for name, value in self._moved.items()},
            ceiling=constant(f"dram_read_{self._device}", self._constants) * 1e9,
            chunks=len(lengths),
            configuration_loads=loads,
        )

    def _add_chunk(self, tokens: int, position: int) -> None:
        clock = _clock(self._device)
        chunk = Chunk(self._device, self._shape, tokens, position, self._constants)
        for _, count, run in chunk.steps():
            self._kernels |= run.kernels
            for name, cycles in zip(TERMS, run.terms, strict=True):
                self._parts[name] += count * cycles / clock
            for name, moved in zip(MOVED, run.moved, strict=True):
                self._moved[name] += count * moved
            self._bound[run.bound] += count * run.cycles / clock
        self._parts["waiting"] -= len(self._shape.layers) * chunk.overlap() / clock

    def _add_head(self) -> None:
        head = simulate_gemv(
            self._device, self._shape.vocabulary, self._shape.width, top=_TOP,
            format=self._shape.head_format, constants=self._constants,
        )  # fmt: skip
        self._parts["head"] += head.seconds + head.token_seconds
        self._moved["head"] += head.weight_bytes

    def _add_token(self) -> None:
        """The last token alone: a decode step, its head included."""
        token = simulate_decode(
            self._device, self._shape, self._position + self._tokens, constants=self._constants
        )
        if self._tokens == 1:
            self._one_token = token.kernels
        for name, seconds in token.split.items():
            self._parts["rows" if name == "small operations" else name] += seconds
        self._moved["weights"] += token.weight_bytes
        self._moved["kv"] += token.kv_bytes
        self._bound["DRAM"] += token.seconds
