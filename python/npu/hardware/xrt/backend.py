"""Device ``xrt``: a DeviceBackend (npu/device_contract.py) over pyxrt.

xclbin -> hardware context -> kernel (context.py); arguments are BOs (memory.py), a stream is a BO
of its own (instructions.py). A run's arguments are 3 (a TXN stream), the stream, its number of
words, then the stream's arguments. After a run that failed, its context is closed; loading the
configuration builds it afresh.
"""

from __future__ import annotations

import atexit
import collections
import ctypes
import os
import traceback
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npu.device_contract import Argument, DeviceBackend
from npu.errors import ArgumentError, DeviceError, NpuError
from npu.hardware.xrt import artefacts, failures, machine, memory, overlays
from npu.hardware.xrt.context import (
    FIRST_DATA,
    PLACEHOLDER,
    Context,
    Contexts,
    RunSlot,
    check_manifest,
)
from npu.hardware.xrt.instructions import HEAP_BUDGET, InstructionPool, Prepared, Slot
from npu.hardware.xrt.memory import XrtBuffer
from npu.hardware.xrt.run import XrtRun, chosen_limit
from npu.hardware.xrt.setup import setup_of
from npu.hardware.xrt.signals import uninterrupted

MAX_ARGUMENTS = 16  # that an xclbin declares at most
_MOST_GONE = 256  # buffers that have ended and may still be arguments of idle runs


class XrtBackend(DeviceBackend):
    """An NPU. ``pyxrt``: the module, imported if None; ``index``: of XRT's devices, the first NPU
    if None; ``find``: the xclbin of a configuration; ``run_limit``: seconds after which a run is
    given up, those of ``NPU_XRT_TIMEOUT`` if None; ``contexts``: how many are kept."""

    def __init__(
        self, name: str = "xrt", *, pyxrt: Any = None, index: int | None = None,
        find: artefacts.Finder = artefacts.find, run_limit: float | None = None,
        heap_bytes: int = HEAP_BUDGET, contexts: int | None = None, sysfs: Path = machine.SYSFS,
    ) -> None:  # fmt: skip
        self._closed = False
        limit = chosen_limit() if run_limit is None else run_limit
        self._pyxrt = pyxrt or machine.import_pyxrt()
        if index is None:
            self._device, self.identity = machine.first_npu(self._pyxrt, sysfs)
        else:
            self._device = machine.open_device(self._pyxrt, index)
            self.identity = machine.identify(self._pyxrt, self._device, sysfs)
        self._name, self._find, self._run_limit = name, find, limit
        self._wraps = hasattr(self._pyxrt, "ext")  # since XRT 2.20
        self._states = self._pyxrt.ert_cmd_state
        self.pool = InstructionPool(self._pyxrt, self._device, heap_bytes)
        self.contexts = Contexts(self.identity.generation, self.pool, contexts)
        self._builds = overlays.Builds()
        self._configuration: Any = None  # that is loaded
        self._current: Context | None = None  # of it
        self._gone: collections.deque[int] = collections.deque()  # serials of buffers
        self._placeholder: XrtBuffer | None = None
        self._buffers: weakref.WeakSet[XrtBuffer] = weakref.WeakSet()
        self._process = os.getpid()
        _close_at_exit(self)

    def info(self) -> dict[str, Any]:
        return {
            "name": self._name, "generation": self.identity.generation, "emulated": False,
            "arithmetic": "hardware", "max_arguments": MAX_ARGUMENTS,
        }  # fmt: skip

    def allocate(self, size: int) -> XrtBuffer:
        self._check("allocate")
        self._unbind()
        try:
            buffer = memory.allocate(self._pyxrt, self._device, size, self._gone)
        except RuntimeError as error:
            raise failures.of_memory("allocate", size, error) from error
        self._buffers.add(buffer)
        return buffer

    def wrap(self, array: np.ndarray, writable: bool) -> XrtBuffer | None:
        if not self._wraps or not memory.can_wrap(array.ctypes.data, array.nbytes, writable):
            return None
        self._check("wrap")
        try:
            buffer = memory.wrap(self._pyxrt, self._device, array, self._gone)
        except RuntimeError as error:
            if not failures.cannot_pin(error):
                raise failures.of_memory("wrap", array.nbytes, error) from error
            if failures.is_unsupported(error):
                self._wraps = False
            return None
        self._buffers.add(buffer)
        return buffer

    def overlay_image(self, configuration: Any, overlay: str) -> bytes:
        self._check("overlay_image")
        xclbin = self._find(configuration)
        image = overlays.image(configuration, xclbin, overlay)
        self._builds.note("overlay_image", configuration, xclbin)
        return image

    def load(self, configuration: Any) -> None:
        self._check("load")
        self._unbind()
        self._configuration = None
        self._current = self._context_of(configuration)
        self._configuration = configuration

    def prepare(self, stream: bytes) -> Prepared:
        setup = self._loaded("prepare").setup
        return self.pool.prepare(setup.before(stream), len(setup.operations) // 4)

    def patch(self, prepared: Prepared, patches: np.ndarray) -> bool:
        self._check("patch")
        return self.pool.patch(prepared, patches)

    def submit(self, prepared: Prepared, arguments: Sequence[Argument]) -> XrtRun:
        context = self._loaded("submit")
        if len(self._gone) > _MOST_GONE:
            self._unbind()
        count = len(arguments)
        while count and arguments[count - 1] is None:
            count -= 1
        context.check_count(count)
        slot = self.pool.place(prepared, context)
        try:
            chosen, keep = _started(context, slot, prepared.count, arguments)
            return XrtRun(
                context, chosen, prepared, keep, self._give_up, self._states, self._run_limit
            )
        except NpuError:
            raise
        except BaseException as error:  # KeyboardInterrupt too: the run may be under way
            # Frames of the error would keep the run object, which goes before its context.
            traceback.clear_frames(error.__traceback__)
            self._give_up(context)
            if isinstance(error, RuntimeError):
                raise failures.of_start(error) from error
            raise

    def _loaded(self, function: str) -> Context:
        """The context of the loaded configuration, built afresh after a submission that failed."""
        self._check(function)
        if self._configuration is None:
            raise ArgumentError(f"[{function}] no configuration is loaded; load one first")
        if self._current is None:
            self._current = self._context_of(self._configuration)
        return self._current

    def _context_of(self, configuration: Any) -> Context:
        return self.contexts.get(configuration, lambda: self._context(configuration))

    def close(self) -> None:
        """Gives everything back: runs, streams and kernels before their contexts."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        self._current = None
        self.contexts.close()
        self._placeholder = None

    def __del__(self) -> None:
        if hasattr(self, "_process"):  # opened
            self.close()

    def _context(self, configuration: Any) -> Context:
        xclbin = self._find(configuration)
        check_manifest(configuration, xclbin)
        if configuration.as_dict()["overlays"]:
            overlays.check(configuration, xclbin)
            self._builds.note("load", configuration, xclbin)
        if self._placeholder is None:
            self._placeholder = self.allocate(memory.PAGE)
        return Context(
            self._pyxrt, self._device, configuration.name, xclbin, self._placeholder.bo,
            setup_of(configuration.as_dict()["txn"]),
        )  # fmt: skip

    def _unbind(self) -> None:
        serials = set()
        while self._gone:
            serials.add(self._gone.popleft())
        if serials:
            for context in self.contexts.all():
                context.unbind(serials)

    def _give_up(self, context: Context) -> None:
        if context is self._current:
            self._current = None
        self.contexts.drop(context)

    def _check(self, function: str) -> None:
        if os.getpid() != self._process:
            raise DeviceError(
                f"[{function}] {self._name} was opened before this process was forked, and a fork "
                'cannot share it; start processes with multiprocessing\'s "spawn", or open the '
                "device in the child only"
            )
        if self._closed:
            raise DeviceError(f"[{function}] {self._name} is closed, the program is ending")

    def _leak(self) -> None:
        """In a forked child: nothing of the parent's is ever given back, because the driver would
        take it from the parent."""
        kept: list[Any] = [self._device, self.pool, self.contexts, self._placeholder]
        for context in self.contexts.all():
            kept += [context.hardware, context.kernel, *(slot.run for slot in context.idle)]
        kept += [slot.bo for slot in self.pool.slots()]
        for buffer in list(self._buffers):
            kept += [buffer.bo, *buffer.parts.values()]
        for one in kept:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


def _started(
    context: Context, slot: Slot, words: int, arguments: Sequence[Argument]
) -> tuple[RunSlot, list[Any]]:
    """The run object of a run that has been started, and what must live until its end."""
    chosen = context.run_slot(slot.serial)
    run = chosen.run
    if chosen.stream != slot.serial:
        chosen.slot, chosen.stream = slot, slot.serial
        run.set_arg(1, slot.bo)
        run.set_arg(2, words)
    keep = _bind(chosen, arguments, context.placeholder)
    uninterrupted(run.start)
    return chosen, keep


def _bind(chosen: RunSlot, arguments: Sequence[Argument], placeholder: Any) -> list[Any]:
    """Sets the arguments that differ from the last run's. Returns what the run must keep."""
    keep = []
    bound, run, count = chosen.bound, chosen.run, len(arguments)
    for index in range(len(bound)):
        argument = arguments[index] if index < count else None
        if argument is None:
            if bound[index] != PLACEHOLDER:
                run.set_arg(FIRST_DATA + index, placeholder)
                bound[index] = PLACEHOLDER
            continue
        buffer: Any = argument[0]
        offset = argument[1]
        keep.append(buffer)
        key = (buffer.serial, offset)
        if bound[index] != key:
            part = buffer.at(offset)
            bound[index] = None
            run.set_arg(FIRST_DATA + index, part)
            bound[index] = key
            keep.append(part)
    return keep


def _close_at_exit(backend: XrtBackend) -> None:
    """Before the interpreter takes objects apart in an order of its own, and in no forked child."""
    reference = weakref.ref(backend)

    def close() -> None:
        alive = reference()
        if alive is not None:
            alive.close()

    def forked() -> None:
        alive = reference()
        if alive is not None:
            alive._leak()

    atexit.register(close)
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=forked)
