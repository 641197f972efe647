"""Hardware contexts: one per configuration, a few kept.

An xclbin is one configuration with one kernel (two kernels in one context time out). Its context
has the configuration loaded; the driver loads it again after another context ran, after five idle
seconds and after a time-out. The limit of contexts, 6 on npu1 and 16 on npu2, is the whole
machine's: where the driver gives no more and closing may help, those of this process used least
recently are closed.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Callable
from typing import Any

from npu.errors import ArgumentError, ContextError, DeviceError, GenerationError
from npu.hardware.build import cache
from npu.hardware.xrt import failures
from npu.hardware.xrt.artefacts import Xclbin
from npu.hardware.xrt.instructions import InstructionPool, Slot
from npu.hardware.xrt.setup import Setup
from npu.hardware.xrt.signals import uninterrupted

KERNEL = "MLIR_AIE"  # how the name begins of the kernel that mlir-aie makes
FIRST_DATA = 3  # arguments before it: opcode, stream, its words
OPCODE = 3  # a TXN stream
CONTEXT_LIMITS = {"npu1": 6, "npu2": 16}
PLACEHOLDER = (0, 0)  # RunSlot.bound of an argument that a stream leaves alone
_RUN_OBJECTS = 4  # as many commands of a context are under way at most


class RunSlot:
    """A run object of XRT and what its arguments are: set only where they change."""

    __slots__ = ("bound", "run", "slot", "stream")

    def __init__(self, run: Any, arguments: int) -> None:
        self.run = run
        self.slot: Slot | None = None  # where the stream is
        self.stream = 0  # its serial
        # Of each data argument: serial of the buffer and offset.
        self.bound: list[tuple[int, int] | None] = [None] * arguments


class Context:
    """A loaded configuration: what XRT needs to run its streams."""

    def __init__(
        self, pyxrt: Any, device: Any, name: str, xclbin: Xclbin, placeholder: Any, setup: Setup
    ) -> None:
        self.name = name
        self.again = xclbin.again  # the command that builds it again
        self.setup = setup  # what every stream does first
        self.placeholder = placeholder  # for arguments that a stream leaves alone
        self.under_way: list[Any] = []  # XrtRun
        self.completed = 0  # runs
        self.last_end = 0  # of a run, perf_counter_ns
        self.closed = False
        self.idle: list[RunSlot] = []
        self._pyxrt = pyxrt
        path = os.fspath(xclbin.path)
        try:
            image = pyxrt.xclbin(path)
            kernels = list(image.get_kernels())
            uuid = device.register_xclbin(image)
        except RuntimeError as error:
            raise failures.of_xclbin(path, error, self.again) from error.with_traceback(None)
        found = next((one for one in kernels if one.get_name().startswith(KERNEL)), None)
        if found is None:
            names = ", ".join(one.get_name() for one in kernels) or "none"
            raise DeviceError(
                f'[load] {path}: it should have a kernel "{KERNEL}", found {names}; build the '
                f"configuration again: {self.again}"
            )
        # XRT crashes on more than these.
        self.arguments = max(0, found.get_num_args() - FIRST_DATA)
        try:
            self.hardware = uninterrupted(pyxrt.hw_context, device, uuid)
        except RuntimeError as error:
            raise failures.of_context(name, error) from error.with_traceback(None)
        try:
            self.kernel = pyxrt.kernel(self.hardware, found.get_name())
            self.stream_group = self.kernel.group_id(1)
        except RuntimeError as error:
            self.kernel = self.hardware = None
            raise failures.of_xclbin(path, error, self.again) from error.with_traceback(None)

    def run_slot(self, stream: int) -> RunSlot:
        """A run object that is not under way, with ``stream`` set if there is such a one."""
        for index, slot in enumerate(self.idle):
            if slot.stream == stream:
                return self.idle.pop(index)
        if len(self.idle) + len(self.under_way) < _RUN_OBJECTS:
            run = self._pyxrt.run(self.kernel)
            run.set_arg(0, OPCODE)
            return RunSlot(run, self.arguments)
        if not self.idle:
            raise ArgumentError(
                f'[submit] configuration "{self.name}" has {_RUN_OBJECTS} runs under way, as many '
                "as the driver takes; wait for one first"
            )
        return self.idle.pop(0)

    def forget(self, slot: Slot) -> None:
        """Before an instruction BO is given back: run objects that would keep it go first."""
        self.idle = [one for one in self.idle if one.slot is not slot]

    def unbind(self, serials: set[int]) -> None:
        """Run objects keep no buffer that has ended."""
        for slot in self.idle:
            for index, key in enumerate(slot.bound):
                if key is not None and key[0] in serials:
                    slot.run.set_arg(FIRST_DATA + index, self.placeholder)
                    slot.bound[index] = PLACEHOLDER

    def check_count(self, count: int) -> None:
        """Refuses more arguments than the xclbin declares."""
        if count > self.arguments:
            raise ArgumentError(
                f"[submit] the stream has {count} arguments, the xclbin of configuration "
                f'"{self.name}" declares {self.arguments}; build the configuration again: '
                f"{self.again}"
            )

    def close(self, pool: InstructionPool) -> None:
        """Runs, then streams, then the kernel, then the context; runs under way end here."""
        if self.closed:
            return
        self.closed = True
        for run in list(self.under_way):
            run.release()
        self.idle.clear()
        pool.close(self)
        self.kernel = None
        self.hardware = None


class Contexts:
    """The contexts of this process, by the artefact that they run."""

    def __init__(self, generation: str, pool: InstructionPool, limit: int | None = None) -> None:
        self._generation = generation
        self._pool = pool
        self._limit = limit or CONTEXT_LIMITS[generation]
        self._kept: collections.OrderedDict[str, Context] = collections.OrderedDict()

    def get(self, configuration: Any, make: Callable[[], Context]) -> Context:
        """The context of a configuration, made if there is none. Raises ContextError."""
        if configuration.generation != self._generation:
            raise GenerationError(
                f'[load] configuration "{configuration.name}" is for {configuration.generation}, '
                f"this NPU is {self._generation}; lower its design for {self._generation}"
            )
        key = configuration.artefact
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        while len(self._kept) >= self._limit and self._close_one():
            pass
        closed = 0
        while True:
            try:
                made = make()
                break
            except ContextError as error:
                if closed >= failures.contexts_to_close(error.__cause__) or not self._close_one():
                    raise
                closed += 1
        self._kept[key] = made
        return made

    def drop(self, context: Context) -> None:
        """Closes a context whose state is not known; the next ``get`` makes it again."""
        for key, kept in list(self._kept.items()):
            if kept is context:
                del self._kept[key]
        context.close(self._pool)

    def close(self) -> None:
        for context in list(self._kept.values()):
            self.drop(context)

    def all(self) -> list[Context]:
        return list(self._kept.values())

    def _close_one(self) -> bool:
        """Closes the context used least recently that no run uses."""
        for context in self._kept.values():
            if not context.under_way:
                self.drop(context)
                return True
        return False


def check_manifest(configuration: Any, xclbin: Xclbin) -> None:
    """Compares what the builder wrote about an xclbin with the configuration: one of the other
    generation gives zeros and no error. Raises GenerationError."""
    built: Any = xclbin.manifest.get("generation", configuration.generation)
    if built != configuration.generation:
        raise GenerationError(
            f"[load] {xclbin.path} was built for {built}, configuration "
            f'"{configuration.name}" is for {configuration.generation}; build that: '
            + cache.command(configuration.generation, configuration.name)
        )
