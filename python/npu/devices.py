"""Devices: which there are, which is current, and what each keeps between calls.

The choice, first match wins: the ``device=`` argument; the innermost ``with npu.device(...)``; the
environment variable ``NPU_DEVICE``; ``emu:npu2``. There is no hardware backend in this version. A
``PackedMatrix`` stays on the device it was packed for, unless ``device=`` says otherwise: an error.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import os
import threading
from collections.abc import Iterator
from typing import Any

from npu import _npu
from npu.errors import DeviceError

DEFAULT_DEVICE = "emu:npu2"
DEFAULT_ARITHMETIC = "fast"
EMULATED_DEVICES = ("emu:npu1", "emu:npu2")
ARITHMETIC_MODES = ("fast", "silicon")
DEFAULT_BF16 = "native"


@dataclasses.dataclass(frozen=True)
class DeviceDescription:
    """One line of ``npu.devices()``; ``reason`` says why a device is not available."""

    name: str
    available: bool
    description: str
    reason: str = ""


class Device:
    """An open device: its name, its arithmetic mode and the operations prepared for it."""

    def __init__(self, name: str, arithmetic: str, bf16: str = DEFAULT_BF16) -> None:
        self.handle = _npu.device.open(name, arithmetic)
        info: dict[str, Any] = self.handle.info()
        self.name: str = info["name"]
        self.generation: str = info["generation"]
        self.columns: int = info["columns"]
        self.emulated: bool = info["emulated"]
        self.arithmetic: str = info["arithmetic"]
        if bf16 not in ("native", "bfp16") or (bf16 == "bfp16" and self.generation != "npu2"):
            raise DeviceError(
                f'[device] {name} with bf16="{bf16}": use "native", or on npu2 "bfp16"'
            )
        self.bf16 = bf16
        self._gemms: dict[tuple[str, str, str], Any] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        kind = "emulated" if self.emulated else "hardware"
        return f"<npu.Device {self.name} ({kind}, arithmetic {self.arithmetic})>"

    def gemm(self, input_dtype: str, output_dtype: str, b_layout: str = "row") -> Any:
        """The GEMM of a pair of element types and a layout of B ("row", "col").

        There is one configuration for each, lowered on first use; sizes change only streams.
        """
        key = (input_dtype, output_dtype, b_layout)
        with self._lock:
            if key not in self._gemms:
                from npu.designs import gemm

                bf16 = self.bf16 if input_dtype == "bfloat16" else DEFAULT_BF16
                config = gemm.configuration(
                    self.generation, input_dtype, output_dtype, b_layout=b_layout, bf16=bf16
                )
                self._gemms[key] = _npu.ops.Gemm(self.handle, config)
            return self._gemms[key]

    def counters(self) -> dict[str, int]:
        """Loads, submissions, streams built, stream-cache hits, host copies and submit overhead."""
        totals: dict[str, int] = dict(self.handle.counters())
        totals.update(streams_built=0, stream_hits=0, host_copy_bytes=0, submit_overhead_ns=0)
        with self._lock:
            gemms = list(self._gemms.values())
        for gemm in gemms:
            for name, value in gemm.counters().items():
                totals[name] += value
        return totals


_open_devices: dict[tuple[str, str, str], Device] = {}
_open_lock = threading.Lock()
_selected: contextvars.ContextVar[Device | None] = contextvars.ContextVar(
    "npu_device", default=None
)


def open_device(name: str, arithmetic: str | None = None, bf16: str | None = None) -> Device:
    """The device of that name, opened on first use and kept.

    ``arithmetic`` is "fast" (fp32 accumulation, the default) or "silicon" (the hardware's known
    bit-level rules, slow); default ``NPU_ARITHMETIC``. ``bf16`` is how npu2 multiplies bfloat16:
    "native" (the default) or "bfp16", which rounds both operands to blocks of 8 values along K
    with one exponent and is faster on hardware; default ``NPU_BF16``. Raises DeviceError.
    """
    mode = arithmetic or os.environ.get("NPU_ARITHMETIC") or DEFAULT_ARITHMETIC
    product = bf16 or os.environ.get("NPU_BF16") or DEFAULT_BF16
    if not isinstance(name, str):
        raise DeviceError(
            f"[device] expected a device name, found {type(name).__name__}; use one of "
            f"{', '.join(EMULATED_DEVICES)}"
        )
    if not isinstance(mode, str):
        raise DeviceError(
            f"[device] expected an arithmetic mode, found {type(mode).__name__}; use one of "
            f"{', '.join(ARITHMETIC_MODES)}"
        )
    if not isinstance(product, str):
        raise DeviceError(
            f'[device] expected bf16 to be "native" or "bfp16", found {type(product).__name__}'
        )
    with _open_lock:
        key = (name, mode, product)
        if key not in _open_devices:
            _open_devices[key] = Device(*key)
        return _open_devices[key]


def current_device(choice: str | Device | None = None) -> Device:
    """The device an operation runs on, given its ``device=`` argument."""
    if isinstance(choice, Device):
        return choice
    if choice is not None:
        return open_device(choice)
    selected = _selected.get()
    if selected is not None:
        return selected
    return open_device(os.environ.get("NPU_DEVICE") or DEFAULT_DEVICE)


@contextlib.contextmanager
def device(
    name: str, *, arithmetic: str | None = None, bf16: str | None = None
) -> Iterator[Device]:
    """Makes a device current inside a ``with`` block: ``with npu.device("emu:npu1") as d: ...``.

    Raises DeviceError at once when the device is unknown or not available.
    """
    opened = open_device(name, arithmetic, bf16)
    token = _selected.set(opened)
    try:
        yield opened
    finally:
        _selected.reset(token)


def devices() -> list[DeviceDescription]:
    """Every device this build knows, with the reason where one is not available."""
    found = []
    for name in EMULATED_DEVICES:
        model = _npu.arch.device_model(name.removeprefix("emu:"))
        cores = 4 * model["columns"]
        found.append(
            DeviceDescription(
                name, True, f"emulated NPU, {model['columns']} columns, {cores} cores"
            )
        )
    try:
        _npu.device.open("xrt", DEFAULT_ARITHMETIC)
        found.append(DeviceDescription("xrt", True, "AMD NPU through XRT"))
    except DeviceError as error:
        found.append(DeviceDescription("xrt", False, "AMD NPU through XRT", str(error)))
    return found


def all_open_devices() -> list[Device]:
    """The devices opened so far (for statistics)."""
    with _open_lock:
        return list(_open_devices.values())
