"""The available devices, the current one, and what each keeps between calls.

The choice, first match wins: the ``device=`` argument; the innermost ``with npu.device(...)``; the
environment variable ``NPU_DEVICE``; ``xrt``, the NPU, if its self-test has passed; ``emu:npu2``. A
``PackedMatrix`` belongs to the device it was packed for; naming another one is an error.

The NPU is reached in one of two ways (npu/hardware/xrt/ways.py), which a name may choose:
``xrt+pyxrt``, ``xrt:npu2+module``. ``npu.hardware`` is imported only where a machine may have an
NPU: it has /dev/accel/accel*, Python finds a module pyxrt, or libnpu_xrt.so has been built.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
import functools
import glob
import importlib
import importlib.util
import itertools
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from npu import _npu
from npu.errors import DeviceError, GenerationError, MissingXrtError, NpuError

if TYPE_CHECKING:
    from npu.designs.gemm import DesignPoint
    from npu.device_contract import DeviceBackend
    from npu.ops.gemm_designs import Offered
    from npu.ops.gemm_product import GemmRun, Product

DEFAULT_DEVICE = "emu:npu2"
XRT = "xrt"
DEFAULT_ARITHMETIC = "fast"
EMULATED_DEVICES = ("emu:npu1", "emu:npu2")
ARITHMETIC_MODES = ("fast", "silicon")
# How each generation multiplies bfloat16 by default: the fastest mode it has.
DEFAULT_BF16 = {"npu1": "native", "npu2": "bfp16"}
KERNELS = ("published", "pipelined")
DESIGNS = ("host", "array")  # that a device may prefer


@dataclasses.dataclass(frozen=True)
class DeviceDescription:
    """One line of ``npu.devices()``; ``reason`` says why a device is not available, or what an
    available one is."""

    name: str
    available: bool
    description: str
    reason: str = ""


_numbers = itertools.count()  # of attached operations


class Device:
    """An open device: its name, its arithmetic mode and the operations prepared for it."""

    def __init__(
        self,
        name: str,
        arithmetic: str | None,
        bf16: str | None = None,
        kernel: str | None = None,
        designs: str | None = None,
        machine: str | None = None,
        kernels: str | None = None,
    ) -> None:
        written = _written(name)
        self.handle = (
            written.open() if written else _npu.device.open(name, arithmetic or DEFAULT_ARITHMETIC)
        )
        info: dict[str, Any] = self.handle.info()
        _check_generation(name, info["generation"])
        if written and arithmetic not in (None, info["arithmetic"]):
            raise DeviceError(
                f'[device] {name} with arithmetic="{arithmetic}": it computes as '
                f'"{info["arithmetic"]}"; leave arithmetic out'
            )
        # "pyxrt" or "module" of an NPU.
        self.way = next((way for way, one in _xrt.items() if one is written), None)
        self.name: str = XRT if self.way else info["name"]
        self.generation: str = info["generation"]
        self.columns: int = info["columns"]
        self.emulated: bool = info["emulated"]
        self.arithmetic: str = info["arithmetic"]
        self.bf16_chosen = self.checked_bf16(bf16, "device") if bf16 else None  # by the user
        self.bf16: str = self.bf16_chosen or DEFAULT_BF16[self.generation]
        self.kernel_chosen = kernel  # by the user
        self.kernel = kernel or KERNELS[0]
        if self.kernel not in KERNELS or (kernel == "pipelined" and self.generation != "npu2"):
            raise DeviceError(
                f'[device] {name} with kernel="{kernel}": use "published", or on npu2 "pipelined"'
            )
        if designs not in (None, *DESIGNS):
            raise DeviceError(
                f'[device] {name} with designs="{designs}": use "host", the fastest on this '
                'machine, or "array", the fastest on the NPU'
            )
        # Who calls an emulated device waits for this machine, not for the NPU.
        self.prefers = designs or ("host" if self.emulated else "array")
        self.machine, self.kernels = machine, kernels  # of predictions; None: the defaults
        self._constants = _prediction_constants(self.generation, machine, kernels)
        self._designs: Any = None
        self.plans: dict[Any, Any] = {}  # of products that were run before (npu/ops/gemm_plans.py)
        self._operations: dict[tuple[str, Any], Any] = {}  # (name, choices) -> handle
        # What others attach, shared with copies of this object: operations by number, counters of
        # those that are gone, and of those that were counted.
        self._attached: dict[int, Any] = {}
        self._ended: dict[int, dict[str, int]] = {}
        self._past: collections.Counter[str] = collections.Counter()
        # Held while operations are opened, for which a device written in Python may need this one.
        self._lock = threading.RLock()
        self._choosing = threading.Lock()

    def __repr__(self) -> str:
        kind = "emulated" if self.emulated else "hardware"
        return f"<npu.Device {self.name} ({kind}, arithmetic {self.arithmetic}, bf16 {self.bf16})>"

    def checked_bf16(self, bf16: Any, function: str) -> str:
        """``bf16`` if this device has that compute mode."""
        modes = ("native", "bfp16") if self.generation == "npu2" else ("native",)
        if not isinstance(bf16, str) or bf16 not in modes:
            raise DeviceError(
                f'[{function}] {self.name} with bf16={bf16!r}: use "native", or on npu2 "bfp16"'
            )
        return bf16

    def gemm(
        self,
        input_dtype: str,
        output_dtype: str,
        b_layout: str = "row",
        bf16: str | None = None,
        tile: tuple[int, int, int] | None = None,
    ) -> Any:
        """The GEMM of a pair of element types, a layout of B ("row", "col") and, for bfloat16, a
        compute mode (default: the device's). ``tile``: of a core, default: the design's.

        There is one configuration for each, lowered on first use; sizes change only streams.
        """
        from npu.designs import gemm

        mode = self.bf16_of(input_dtype, bf16)
        there = gemm.kernel_exists(self.generation, input_dtype, self.kernel, mode)
        return self.gemm_of(
            gemm.design_point(
                self.generation, input_dtype, output_dtype, b_layout=b_layout, bf16=mode,
                kernel=self.kernel if there else KERNELS[0], tile=tile,
            )
        )  # fmt: skip

    def bf16_of(self, input_dtype: str, bf16: str | None = None) -> str:
        """How products of an element type are computed, if the caller asks for ``bf16``."""
        return (bf16 or self.bf16) if input_dtype == "bfloat16" else "native"

    def gemm_of(self, options: DesignPoint) -> Any:
        """The GEMM of one configuration, lowered on first use."""
        from npu.designs import gemm

        return self._opened("gemm", options, lambda: gemm.configuration_of(options))

    def operation(self, name: str, **choices: Any) -> Any:
        """A registered operation (npu/ops/registry.py) with its design's default configuration, or
        the one of ``choices``, on this device; lowered on first use."""
        from npu.ops.registry import operation

        key = tuple(sorted(choices.items()))
        return self._opened(
            name, key, lambda: operation(name).configuration(self.generation, **choices)
        )

    def _opened(self, name: str, key: Any, configuration: Callable[[], bytes]) -> Any:
        from npu.ops.registry import operation

        with self._lock:
            if (name, key) not in self._operations:
                self._operations[name, key] = operation(name).open(self.handle, configuration())
            return self._operations[name, key]

    @property
    def designs(self) -> Any:
        """The choice among GEMM configurations, a GemmDesigns (npu/ops/gemm_designs.py)."""
        with self._lock:
            if self._designs is None:
                module = importlib.import_module("npu.ops.gemm_designs")  # which needs devices
                self._designs = module.GemmDesigns(
                    self.generation, self.prefers, self.kernel_chosen, self._constants,
                    simulated=self.emulated,
                )  # fmt: skip
            return self._designs

    def choose_gemm(self, product: Product) -> Any:
        """The GEMM that computes a product; ``last_gemm`` says which."""
        (gemm,) = self.choose_gemms(product)
        return gemm

    def choose_gemms(self, *products: Product) -> list[Any]:
        """The same for products that follow each other."""
        designs = self.designs
        return self.choose_offered(*(designs.offered(product) for product in products))

    def choose_offered(self, *products: Offered) -> list[Any]:
        """The same for products whose candidates are known."""
        designs = self.designs
        numbers: list[int] = []
        with self._choosing:
            loads = self.handle.counters()["configuration_loads"]
            for product in products:
                number, load = designs.choose(product, loads)
                loads += load > 0  # which is still to come
                numbers.append(number)
        return [
            product.opened.get(number) or self._open_offered(product, number)
            for product, number in zip(products, numbers, strict=True)
        ]

    def _open_offered(self, product: Offered, number: int) -> Any:
        gemm = product.opened[number] = self.gemm_of(product.designs[number])
        return gemm

    @property
    def last_gemm(self) -> GemmRun | None:
        """What the last product ran as."""
        return None if self._designs is None else self._designs.last

    def counters(self) -> dict[str, int]:
        """Loads, submissions, streams, host copies and host time, totals. Loads and submissions are
        those of the handle, which views of a device written in Python share."""
        totals: dict[str, int] = dict(self.handle.counters())
        own = ("streams_built", "stream_hits", "host_copy_bytes", "submit_overhead_ns")
        times = ("stream_build_ns", "pack_ns", "transpose_ns", "result_copy_ns")
        totals.update(dict.fromkeys((*own, *times), 0))
        with self._lock:
            operations = list(self._operations.values())
            attached = self._attached.copy()
            for number in list(self._ended):  # after the copy: each is there or here
                attached.pop(number, None)
                self._past.update(self._ended.pop(number))
            past = dict(self._past)
        operations += attached.values()
        for counters in (past, *(operation.counters() for operation in operations)):
            for name, value in counters.items():
                totals[name] += value
        return totals

    def count_copy(self, nanoseconds: int, size: int) -> None:
        """A copy of an operand that Python has made, of ``size`` bytes."""
        with self._lock:
            self._past.update(pack_ns=nanoseconds, host_copy_bytes=size)

    def attach(self, owner: Any, operation: Any) -> None:
        """Counts an operation as long as its owner lives, and what it did afterwards."""
        number = next(_numbers)
        self._attached[number] = operation
        weakref.finalize(owner, self._detach, number)

    def _detach(self, number: int) -> None:
        # Any thread, at any time, in a call of the device, too: no lock may be taken here.
        self._ended[number] = self._attached[number].counters()
        del self._attached[number]


class _Registered:
    """A device that is opened once, however many ``Device`` views of it there are. ``handle``:
    makes its ``_npu.device.Device``."""

    def __init__(self, name: str, handle: Callable[[], Any]) -> None:
        self._name = name
        self._open = handle
        self._handle: Any = None
        self._lock = threading.RLock()  # a factory that opens its own device is told so
        self._opening = False

    def open(self) -> Any:
        """The ``_npu.device.Device``, made on first use."""
        with self._lock:
            if self._opening:
                raise DeviceError(
                    f"[device] {self._name} is opened by its own factory; open another device there"
                )
            if self._handle is None:
                self._opening = True
                try:
                    self._handle = self._open()
                finally:
                    self._opening = False
            return self._handle


# Devices written in Python, by name.
_registered: dict[str, _Registered] = {}


def _hardware_may_exist() -> bool:
    """Cheap enough for every program: a folder is listed, modules looked for and not imported."""
    if glob.glob("/dev/accel/accel*") or _npu.device.xrt_module():
        return True
    try:
        return importlib.util.find_spec("pyxrt") is not None
    except (ImportError, ValueError):  # ValueError: a module without a specification
        return True


def _open_pyxrt() -> Any:
    backend = importlib.import_module("npu.hardware.xrt.backend")
    return _npu.device.open_python(backend.XrtBackend(XRT))


_NO_HARDWARE = (
    "this machine has no NPU driver (/dev/accel/accel*) and no XRT (module pyxrt or libnpu_xrt.so)"
)
# The ways to the NPU (npu/hardware/xrt/ways.py): a device in Python, or the one of the C++ library.
_xrt = {
    "pyxrt": _Registered("xrt+pyxrt", _open_pyxrt),
    "module": _Registered("xrt+module", lambda: _npu.device.open(XRT, DEFAULT_ARITHMETIC)),
}
_XRT_NAME = re.compile(r"xrt(?::(npu[12]))?(?:\+(pyxrt|module))?")


def is_xrt(name: str) -> bool:
    """Whether the NPU of this machine is called that."""
    return name == XRT or name.startswith((XRT + ":", XRT + "+"))


def _xrt_name(name: str) -> tuple[str | None, str | None]:
    """(generation, way) that a name of the NPU asks for. Raises DeviceError."""
    found = _XRT_NAME.fullmatch(name)
    if found is None:
        raise DeviceError(
            f'[device] "{name}" is unknown; the NPU is "xrt", "xrt:npu1" or "xrt:npu2"; "+pyxrt" '
            'or "+module" behind it chooses the way to it'
        )
    return found[1], found[2]


def named_generation(name: str) -> str | None:
    """The generation that a name of the NPU asks for, if it does. Raises DeviceError."""
    return _xrt_name(name)[0]


def _check_generation(name: str, found: str) -> None:
    """Raises GenerationError where the name asks for another one."""
    if is_xrt(name) and _xrt_name(name)[0] not in (None, found):
        raise GenerationError(
            f'[device] "{name}" was requested, the NPU of this machine is {found}; use '
            f'"xrt:{found}"'
        )


def _written(name: str) -> _Registered | None:
    """The device of that name if it is not one of the core's. Raises MissingXrtError."""
    if not is_xrt(name):
        return _registered.get(name)
    way = _xrt_name(name)[1]
    if way is None and not _hardware_may_exist():
        raise MissingXrtError(f"[device] xrt: {_NO_HARDWARE}; use {' or '.join(EMULATED_DEVICES)}")
    return _xrt[way or importlib.import_module("npu.hardware.xrt.ways").choose().name]


def register_device(name: str, backend: Callable[[], DeviceBackend]) -> None:
    """Makes a device that is written in Python available as ``npu.device(name)``.

    ``backend``: returns an ``npu.device_contract.DeviceBackend``. It is called when the device is
    first opened, and again only if it raised; the choices bf16=, kernel=, designs=, machine= and
    kernels= share the backend. Raises DeviceError for a name that is taken.
    """
    if not isinstance(name, str) or not name or not callable(backend):
        raise DeviceError(
            f"[register_device] name {name!r}, backend {backend!r}; pass a name and a function"
        )
    with _open_lock:
        if name in _registered or name.startswith(("emu:", "null:", "xrt")):
            raise DeviceError(f"[register_device] the name {name!r} is taken")
        _registered[name] = _Registered(name, lambda: _npu.device.open_python(backend()))


_Word = str | None
_Choices = tuple[str, _Word, _Word, _Word, _Word, _Word, _Word]
_open_devices: dict[_Choices, Device] = {}
_open_lock = threading.Lock()
# What chooses the default device; and that device, with the version of these that it was opened by.
_CHOICES = ("DEVICE", "ARITHMETIC", "BF16", "KERNEL", "DESIGNS", "MACHINE", "KERNELS")
_environment = _npu.host.Environment([f"NPU_{word}" for word in _CHOICES])
_opened_default: tuple[int, Device] | None = None
_selected: contextvars.ContextVar[Device | None] = contextvars.ContextVar(
    "npu_device", default=None
)


def open_device(
    name: str,
    arithmetic: str | None = None,
    bf16: str | None = None,
    kernel: str | None = None,
    designs: str | None = None,
    machine: str | None = None,
    kernels: str | None = None,
) -> Device:
    """The device of that name, opened on first use and kept.

    ``arithmetic`` is "fast" (fp32 accumulation, the default) or "silicon" (the hardware's known
    bit-level rules, slow); default ``NPU_ARITHMETIC``. ``bf16`` is how npu2 multiplies bfloat16:
    "bfp16" (the default, the faster on hardware), which rounds both operands to blocks of 8 values
    along K with one exponent, or "native"; default ``NPU_BF16``. ``designs`` is what
    GEMM configurations are chosen for, whether tokens of several sequences are a batch
    (docs/prefill.md), and on emulated devices whether short prompts are decode steps
    (docs/decoder.md): "array", time on the NPU, or "host", time on this machine (the default of
    emulated devices; results are the same except of narrow sums, such batches and prompts); default
    ``NPU_DESIGNS``. ``kernel`` restricts configurations: "published" or, on npu2, "pipelined",
    whose kernels hide the traffic of C (docs/gemm_designs.md; types without one keep the published
    design); default ``NPU_KERNEL``. ``machine`` and ``kernels`` are what predictions are of, by
    which "array" configurations are chosen: a machine of ``npu validate-model --machines`` and a
    profile, "published" or "scheduled" (docs/timing.md); default ``NPU_MACHINE``, ``NPU_KERNELS``,
    else those of ``simulate_gemm``. A device written in Python has one arithmetic, its own; naming
    another is an error. Raises DeviceError, ArgumentError (of machine, kernels).
    """
    product = bf16 or os.environ.get("NPU_BF16") or None
    if not isinstance(name, str):
        raise DeviceError(
            f"[device] expected a device name, found {type(name).__name__}; use one of "
            f"{', '.join(EMULATED_DEVICES)}"
        )
    written = is_xrt(name) or name in _registered
    default = None if written else os.environ.get("NPU_ARITHMETIC") or DEFAULT_ARITHMETIC
    mode = arithmetic or default
    if mode is not None and not isinstance(mode, str):
        raise DeviceError(
            f"[device] expected an arithmetic mode, found {type(mode).__name__}; use one of "
            f"{', '.join(ARITHMETIC_MODES)}"
        )
    if product is not None and not isinstance(product, str):
        raise DeviceError(
            f'[device] expected bf16 to be "native" or "bfp16", found {type(product).__name__}'
        )
    kind = _choice("kernel", kernel, "NPU_KERNEL", KERNELS)
    preference = _choice("designs", designs, "NPU_DESIGNS", DESIGNS)
    whose = _choice("machine", machine, "NPU_MACHINE", ("`npu validate-model --machines`",))
    profile = _choice("kernels", kernels, "NPU_KERNELS", ("published", "scheduled"))
    key = (name, mode, product, kind, preference, whose, profile)
    with _open_lock:
        found = _open_devices.get(key)
    if found is not None:
        return found
    made = Device(*key)  # without the lock: the factory of a device may use the package
    with _open_lock:
        return _open_devices.setdefault(key, made)


def _prediction_constants(
    generation: str, machine: str | None, kernels: str | None
) -> tuple[tuple[str, float], ...]:
    if machine is None and kernels is None:
        return ()
    module = importlib.import_module("npu.ops.gemm_estimate")  # which needs designs
    found: tuple[tuple[str, float], ...] = module.constants_of(generation, machine, kernels)
    return found


def _choice(label: str, value: Any, variable: str, allowed: tuple[str, ...]) -> str | None:
    """An argument, else its environment variable, else None; the device checks the word."""
    chosen = value or os.environ.get(variable) or None
    if chosen is None or isinstance(chosen, str):
        return chosen
    raise DeviceError(
        f"[device] expected {label} to be one of {', '.join(allowed)}, found "
        f"{type(chosen).__name__}"
    )


def current_device(choice: str | Device | None = None) -> Device:
    """The device an operation runs on, given its ``device=`` argument."""
    if isinstance(choice, Device):
        return choice
    if choice is not None:
        return open_device(choice)
    selected = _selected.get()
    return _open_default() if selected is None else selected


def _open_default() -> Device:
    global _opened_default
    version = _environment.version()
    if _opened_default is not None:
        known, opened = _opened_default
        if known == version and opened in _open_devices.values():
            return opened
    opened = open_device(default_device().name)
    _opened_default = version, opened
    return opened


@contextlib.contextmanager
def device(
    name: str,
    *,
    arithmetic: str | None = None,
    bf16: str | None = None,
    kernel: str | None = None,
    designs: str | None = None,
    machine: str | None = None,
    kernels: str | None = None,
) -> Iterator[Device]:
    """Makes a device current inside a ``with`` block: ``with npu.device("emu:npu1") as d: ...``.

    Raises DeviceError at once when the device is unknown or not available.
    """
    opened = open_device(name, arithmetic, bf16, kernel, designs, machine, kernels)
    token = _selected.set(opened)
    try:
        yield opened
    finally:
        _selected.reset(token)


@dataclasses.dataclass(frozen=True)
class DefaultDevice:
    """The device that runs what no argument and no ``with`` chooses, and why it is that one."""

    name: str
    reason: str


_NOT_TESTED = 'no self-test of an NPU has passed on this machine; run "npu selftest"'


def default_device() -> DefaultDevice:
    """``NPU_DEVICE``, else the NPU if its self-test has passed, else the emulated npu2."""
    named = os.environ.get("NPU_DEVICE")
    return DefaultDevice(named, "NPU_DEVICE names it") if named else _best_device()


@functools.cache
def _best_device() -> DefaultDevice:
    # An NPU that never passed is not even opened: its driver may hang.
    if _hardware_may_exist():
        verdict = importlib.import_module("npu.hardware.verdict")
        if not verdict.passed_once():
            return DefaultDevice(DEFAULT_DEVICE, _NOT_TESTED)
    found, reason = _hardware()
    return DefaultDevice(XRT if found == "tested" else DEFAULT_DEVICE, reason)


def _hardware() -> tuple[str, str]:
    """("missing", "untested" or "tested", the reason) of the NPU."""
    if not _hardware_may_exist():
        return "missing", _NO_HARDWARE
    try:
        choice = importlib.import_module("npu.hardware.xrt.choice")
        tested, reason = choice.self_test()
    except NpuError as error:
        return "missing", str(error)
    return "tested" if tested else "untested", reason


def devices() -> list[DeviceDescription]:
    """Every device this build knows, with the reason where one is not available."""
    found = []
    for name in EMULATED_DEVICES:
        model = _npu.arch.device_geometry(name.removeprefix("emu:"))
        cores = 4 * model["columns"]
        found.append(
            DeviceDescription(
                name, True, f"emulated NPU, {model['columns']} columns, {cores} cores",
                "runs on the CPU of every machine",
            )
        )  # fmt: skip
    state, reason = _hardware()
    found.append(DeviceDescription(XRT, state != "missing", "AMD NPU through XRT", reason))
    return found


def all_open_devices() -> list[Device]:
    """The devices opened so far (for statistics)."""
    with _open_lock:
        return list(_open_devices.values())
