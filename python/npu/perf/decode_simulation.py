"""How long a token of a Gemma 3 model takes on the NPU, simulated: no hardware is involved.

``npu.simulate_decode`` runs the decode configuration's real command stream (npu.designs.decoder) on
the timed emulated array, for one layer and for five of every kind, and adds up: all further layers
of a kind take what these four add (docs/decoder.md says how exact that is).
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from npu import _npu
from npu._npu import facts
from npu.errors import ArgumentError, DeviceError, ShapeError
from npu.ops.attention import array_head_dim
from npu.ops.registry import operation
from npu.perf.decode_split import TERMS, split
from npu.perf.execution import constant, execute, zeros_but
from npu.perf.machines import Constants, constants_of
from npu.perf.problem import checked_constants, whole
from npu.perf.timeline import EVENT

FORMATS = tuple(facts.BLOCK_COLUMNS)
MATRICES = ("qkv", "output", "gate_up", "down")
MAX_CONTEXT = 1 << 20
_TOP = 8  # of the logits leave the array, as for greedy decoding
_SMALL_HEAD = 64  # rows of the head where its time cancels out
_MAX_LAYERS = 1024
_MEMORY_TERMS = 2  # the first ones are bytes / ceiling
_MORE = 4  # layers of a kind whose time is taken at once: how a layer's time splits varies a little


@dataclasses.dataclass(frozen=True)
class DecodeLayer:
    """``window``: positions that a query sees, itself included, 0 for all; ``formats``: of the
    blocks of q k v, output, gate and up, down: "q4nx", "q8" or "bf16"; or "q4_0" or "q8_0", in
    all layers and the head."""

    window: int
    formats: tuple[str, str, str, str] = ("q4nx",) * 4


@dataclasses.dataclass(frozen=True)
class DecodeShape:
    """Sizes of a decoder: what a token's time depends on. All windows but 0 are equal."""

    name: str
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    layers: tuple[DecodeLayer, ...]
    head_format: str = "q4nx"

    @property
    def window(self) -> int:
        return max(layer.window for layer in self.layers)


# Layers, width, heads, KV heads, head size, FFN width, vocabulary, window; every sixth is global
# (the models' config.json).
_SIZES = {
    "gemma3-270m": (18, 640, 4, 1, 256, 2048, 262144, 512),
    "gemma3-1b": (26, 1152, 4, 1, 256, 6912, 262144, 512),
    "gemma3-4b": (34, 2560, 8, 4, 256, 10240, 262208, 1024),
}
SHAPES = tuple(_SIZES)


def shape_of(name: str, format: str = "q4nx") -> DecodeShape:
    """A model's shape (a name of ``SHAPES``), all matrices in one format. Raises ArgumentError."""
    if name not in _SIZES:
        raise ArgumentError(
            f"[simulate_decode] shape is {name!r}; use {', '.join(SHAPES)} or a DecodeShape"
        )
    _check_format(format)
    layers, width, heads, kv_heads, head_dim, ffn, vocabulary, window = _SIZES[name]
    formats = (format,) * 4
    kinds = tuple(DecodeLayer(0 if i % 6 == 5 else window, formats) for i in range(layers))
    return DecodeShape(name, width, heads, kv_heads, head_dim, ffn, vocabulary, kinds, format)


@dataclasses.dataclass(frozen=True)
class SimulatedDecode:
    """A simulated decode step: times are of the modelled NPU, not of this machine.

    ``seconds``: from the host's call until the token's largest logits are in memory, the dispatch
    included. ``split`` has its parts in seconds, which add up to it. "weights" and "kv" are what
    the memory needs for these bytes at its read ceiling. The rest is time in which the memory was
    not at its ceiling while weights were multiplied or read ("products"), attention ran
    ("attention"), the vector core did ("small operations"), of the others only the command
    processor worked ("command processor") or nothing did ("waiting"), and the host's call and its
    return ("dispatch"); docs/decoder.md has more.

    ``bound`` names the largest part; ``machine`` and ``kernels`` the profiles simulated.
    ``weight_bytes``, ``kv_bytes``: read per token; ``floor``: the seconds that these take at the
    ceiling (``ceiling``, bytes per second).
    """

    device: str
    machine: str
    kernels: str
    shape: str
    context: int
    seconds: float
    split: dict[str, float]
    bound: str
    weight_bytes: int
    kv_bytes: int
    ceiling: float

    @property
    def tokens_per_second(self) -> float:
        return 1 / self.seconds

    @property
    def floor(self) -> float:
        return (self.weight_bytes + self.kv_bytes) / self.ceiling


def simulate_decode(
    device: str,
    shape: str | DecodeShape,
    context: int,
    *,
    format: str = "q4nx",
    read_gbs: float | None = None,
    constants: Mapping[str, float] | None = None,
    machine: str | None = None,
    kernels: str | None = None,
) -> SimulatedDecode:
    """The simulated time of one token on "npu1" or "npu2".

    shape: "gemma3-270m", "gemma3-1b", "gemma3-4b" (all matrices in ``format``: "q4nx", "q8",
    "bf16", "q4_0" or "q8_0"), or a ``DecodeShape`` with formats of its own; context: positions that
    the token sees, itself included, 1 to 1048576; read_gbs: the memory's read ceiling in GB/s
    instead of the fitted one; constants: other values for constants of ``npu validate-model
    --constants``; machine: a profile of ``npu validate-model --machines``, by default that of the
    generation; kernels: as of ``simulate_gemm``. Raises ArgumentError, DeviceError, ShapeError (a
    size that the array does not run).
    """
    if device not in ("npu1", "npu2"):
        raise DeviceError(f'[simulate_decode] device is {device!r}; use "npu1" or "npu2"')
    found = shape if isinstance(shape, DecodeShape) else shape_of(shape, format)
    check_shape(found)
    length = whole("simulate_decode", context, "context", MAX_CONTEXT)
    overrides = chosen_constants("simulate_decode", device, machine, read_gbs, constants, kernels)
    return _Token(device, found, length, overrides).result()


def chosen_constants(
    function: str,
    device: str,
    machine: str | None,
    read_gbs: float | None,
    constants: Mapping[str, float] | None,
    kernels: str | None = None,
) -> Constants:
    """Those of a machine, with another read ceiling (GB/s) and other changes. Raises ArgumentError,
    DeviceError."""
    changed = checked_constants(function, constants)
    if read_gbs is not None:
        number = isinstance(read_gbs, (int, float)) and not isinstance(read_gbs, bool)
        if not number or not math.isfinite(read_gbs) or not 0.1 <= read_gbs <= 10000:
            raise ArgumentError(
                f"[{function}] the read ceiling is {read_gbs!r} GB/s; use 0.1 to 10000"
            )
        changed[f"dram_read_{device}"] = float(read_gbs)
    return constants_of(function, device, machine, changed, kernels)


def _check_format(format: str) -> None:
    if format not in FORMATS:
        known = ", ".join(map(repr, FORMATS))
        raise ArgumentError(f"[simulate_decode] format is {format!r}; use {known}")


def check_shape(shape: DecodeShape) -> None:
    """Raises ArgumentError, ShapeError for layers that no request describes."""
    if not 1 <= len(shape.layers) <= _MAX_LAYERS:
        raise ShapeError(
            f"[simulate_decode] {len(shape.layers)} layers; it must be 1 to {_MAX_LAYERS}"
        )
    windows = sorted({layer.window for layer in shape.layers} - {0})
    if len(windows) > 1:
        raise ShapeError(
            f"[simulate_decode] the layers have windows of {windows} positions; use one length"
        )
    formats = {shape.head_format, *(f for layer in shape.layers for f in layer.formats)}
    for format in formats:
        _check_format(format)
    if len({facts.BYTES_OF_BLOCK[format] for format in formats}) > 1:
        raise ShapeError(
            f"[simulate_decode] formats {', '.join(sorted(formats))} have blocks of different "
            "sizes, and the array multiplies those of one"
        )


@dataclasses.dataclass(frozen=True)
class Run:
    """A few layers and a head on the timed array: cycles, how they split, and what those of the
    kernels are (kernel_profile.py)."""

    cycles: float
    terms: np.ndarray
    bytes: np.ndarray  # of weights, of keys and values
    kernels: Mapping[str, str]

    def __add__(self, other: Run) -> Run:
        return Run(
            self.cycles + other.cycles, self.terms + other.terms, self.bytes + other.bytes,
            {**self.kernels, **other.kernels},
        )  # fmt: skip

    def times(self, factor: float) -> Run:
        return Run(self.cycles * factor, self.terms * factor, self.bytes * factor, self.kernels)


def request_of(
    shape: DecodeShape, context: int, counts: tuple[int, int], formats: tuple[str, ...], head: int
) -> dict[str, int]:
    """The request for so many (sliding, global) layers with a head of ``head`` rows."""
    dim = shape.head_dim
    request = {
        "position": context - 1,
        "sliding": counts[0],
        "global": counts[1],
        "width": shape.width,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        # Smaller heads are spread (npu.models.gemma3.decoder).
        "head_dim": array_head_dim(dim),
        "dim": dim,
        "ffn": shape.ffn,
        "vocabulary": head,
        "window": max(1, shape.window),
        "top": _TOP,
        "format_head": FORMATS.index(shape.head_format),
    }
    names = (f"format_{name}" for name in MATRICES)
    return request | {name: FORMATS.index(f) for name, f in zip(names, formats, strict=True)}


def run(device: str, request: Mapping[str, int], constants: Mapping[str, float]) -> Run:
    """A request to the decoder, traced and split."""
    decoder = operation("decoder")
    config = decoder.configuration(device, **decoder.choices_for(request))
    (submission,) = _npu.operations.submissions("decoder", config, dict(request))
    data = [zeros_but(a["contents"], a["bytes"]) for a in submission["arguments"]]
    report = execute(
        config, submission["stream"], data=data, constants=constants,
        trace=(0.0, math.inf, 1 << 27, False),
    )  # fmt: skip
    trace = report["trace"]
    clock = float(_npu.arch.device_geometry(device)["clock_hz"])
    ceiling = constant(f"dram_read_{device}", constants) * 1e9 / clock
    cycles = report["timing"]["cycles"]
    terms, moved = split(trace["events"].view(EVENT), trace["tracks"], config, cycles, ceiling)
    return Run(cycles, terms, moved, report["timing"]["kernels"])


def _shares(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Terms as they are, but none below zero, where differences of runs may leave a small one: what
    is missing is taken from those that the memory leaves, by their shares, then from all."""
    out = np.maximum(terms, 0.0)
    for part in (out[_MEMORY_TERMS:], out):
        if (total := part.sum()) > 0:
            part *= max(0.0, total - (out.sum() - terms.sum())) / total
    return out


class _Token:
    """Adds up the layers of a token."""

    def __init__(self, device: str, shape: DecodeShape, context: int, constants: Constants) -> None:
        self.device, self.shape, self.context, self.constants = device, shape, context, constants
        self.clock = float(_npu.arch.device_geometry(device)["clock_hz"])
        self.runs: dict[tuple[object, ...], Run] = {}

    def run(self, counts: tuple[int, int], formats: tuple[str, ...], head: int) -> Run:
        key = (counts, formats, head)
        if key not in self.runs:
            request = request_of(self.shape, self.context, counts, formats, head)
            self.runs[key] = run(self.device, request, self.constants)
        return self.runs[key]

    def total(self) -> Run:
        """One layer of each kind of the most frequent formats and the head as they are; all others
        as what more of their kind add."""
        counts = Counter((layer.formats, layer.window == 0) for layer in self.shape.layers)
        usual = Counter(layer.formats for layer in self.shape.layers).most_common(1)[0][0]

        def base(formats: tuple[str, ...]) -> tuple[int, int]:
            return int((formats, False) in counts), int((formats, True) in counts)

        total = self.run(base(usual), usual, self.shape.vocabulary)
        for (formats, is_global), count in counts.items():
            more = count - (formats == usual)
            if more == 0:
                continue
            few = base(formats)
            many = (few[0], few[1] + _MORE) if is_global else (few[0] + _MORE, few[1])
            layer = self.run(many, formats, _SMALL_HEAD) + self.run(
                few, formats, _SMALL_HEAD
            ).times(-1)
            total += layer.times(more / _MORE)
        return total

    def result(self) -> SimulatedDecode:
        total = self.total()
        dispatch = constant("dispatch", self.constants) * 1e-6
        parts = dict(zip(TERMS, (_shares(total.terms) / self.clock).tolist(), strict=True))
        parts["dispatch"] = dispatch
        return SimulatedDecode(
            device=self.device,
            machine=self.constants.label,
            kernels=self.constants.kernels(total.kernels),
            shape=self.shape.name,
            context=self.context,
            seconds=total.cycles / self.clock + dispatch,
            split=parts,
            bound=max(parts, key=lambda name: parts[name]),
            weight_bytes=int(total.bytes[0]),
            kv_bytes=int(total.bytes[1]),
            ceiling=constant(f"dram_read_{self.device}", self.constants) * 1e9,
        )
