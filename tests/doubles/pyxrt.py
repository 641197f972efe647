"""A test double of pyxrt, XRT's Python module, over emulated NPUs: same names and signatures,
stricter than the real thing.

- A BO has two copies, the host's and the device's; only ``sync`` of a range makes them equal. Fresh
  memory of both is poisoned.
- Wrong flags, banks, opcodes, counts of words, pointers and sizes are refused; more arguments than
  the xclbin declares and use after the context is gone are a ``Crash``, as is giving things back in
  another order than runs, instruction BOs, kernel, context.
- Limits of heap, contexts and locked memory hold, from the heap of an opened device on;
  pyxrt_machine.py counts and injects failures.

Put this folder on ``sys.path``. What pyxrt does is taken from XRT's pyxrt.cpp and
core/common/api, and from xdna-driver's src/shim.
"""

from __future__ import annotations

import ctypes
import enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from pyxrt_command import Command, ert_cmd_state
from pyxrt_machine import PDI_BYTES, Crash, driver_error, machine, parse_xclbin
from pyxrt_memory import DATA, INSTRUCTIONS, Data, Instructions, Memory, User, integers

__all__ = ["Crash", "ert_cmd_state", "machine"]

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class xclBOSyncDirection(enum.Enum):
    XCL_BO_SYNC_BO_TO_DEVICE = 0
    XCL_BO_SYNC_BO_FROM_DEVICE = 1
    XCL_BO_SYNC_BO_GMIO_TO_AIE = 2
    XCL_BO_SYNC_BO_AIE_TO_GMIO = 3


class xrt_info_device(enum.Enum):
    bdf = 0
    name = 5


def enumerate_devices() -> int:
    return len(machine.devices)


class uuid:
    def __init__(self, value: str) -> None:
        self._value = value

    def to_string(self) -> str:
        return self._value


class device:
    def __init__(self, index: int) -> None:
        if type(index) is not int or not 0 <= index < len(machine.devices):
            raise RuntimeError(f"Could not open device with index '{index}'")
        machine.check("device", "Open /dev/accel/accel0 failed")
        machine.devices[index].open()
        self._npu = machine.devices[index]
        self._registered: dict[str, Any] = {}

    def __del__(self) -> None:
        if hasattr(self, "_npu"):
            self._npu.close()

    def get_info(self, key: xrt_info_device) -> str:
        machine.check("info", "DRM_IOCTL_AMDXDNA_GET_INFO IOCTL failed")
        return {xrt_info_device.bdf: self._npu.bdf, xrt_info_device.name: self._npu.name}[key]

    def register_xclbin(self, image: xclbin) -> uuid:
        machine.check("register", "register_xclbin failed")
        self._registered[image.get_uuid().to_string()] = image
        return image.get_uuid()


class _Kernel:
    """pyxrt.xclbin.xclbinkernel"""

    def __init__(self, name: str, arguments: int) -> None:
        self._name, self._arguments = name, arguments

    def get_name(self) -> str:
        return self._name

    def get_num_args(self) -> int:
        return self._arguments


class xclbin:
    xclbinkernel = _Kernel

    def __init__(self, filename: str) -> None:
        if type(filename) is not str:
            raise TypeError("xclbin(): incompatible constructor arguments")
        self._head, self._configuration = parse_xclbin(filename)
        self._uuid = uuid(f"{Path(filename).resolve()} {next(machine.serials)}")

    def get_kernels(self) -> list[_Kernel]:
        return [_Kernel(name, self._head["arguments"]) for name in self._head["kernels"]]

    def get_uuid(self) -> uuid:
        return self._uuid


class hw_context:
    def __init__(self, on: device, which: uuid) -> None:
        npu = on._npu
        machine.counts["contexts"] += 1
        request = "DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed"
        machine.check("context", request)
        if which.to_string() not in on._registered:
            raise RuntimeError("xclbin is not registered with the device")
        if len(npu.contexts) >= npu.context_limit:
            raise driver_error(request, -22)  # firmware 0x2000003
        npu.take(PDI_BYTES)
        image = on._registered[which.to_string()]
        # Others refer to this, so that the end of the Python object can be seen.
        self._state = SimpleNamespace(
            npu=npu, image=image, slot=next(machine.serials), open=True, kernels=0, runs=0, bos=0,
            commands=[], closed=False,
        )  # fmt: skip
        npu.contexts.append(self._state)

    def __del__(self) -> None:
        state = getattr(self, "_state", None)
        if state is None:
            return
        for what in ("runs", "bos", "kernels"):
            if getattr(state, what):
                machine.violate(f"a context ended before {getattr(state, what)} of its {what}")
        state.open = False
        state.npu.contexts.remove(state)
        for command in state.commands:
            command.abort()


class kernel:
    def __init__(self, context: hw_context, name: str) -> None:
        if name not in context._state.image._head["kernels"]:
            raise RuntimeError(f"No such kernel '{name}'")
        self._context = context._state
        self._context.kernels += 1
        self._arguments = context._state.image._head["arguments"]

    def group_id(self, argument: int) -> int:
        if not 0 <= argument < self._arguments:
            raise RuntimeError(f"No such kernel argument '{argument}'")
        # As xcl_bo_flags packs them: the slot of the context above the bank.
        return self._context.slot << 16 | (INSTRUCTIONS if argument == 1 else DATA)

    def __del__(self) -> None:
        if hasattr(self, "_context"):
            if self._context.runs:
                machine.violate("a kernel ended before its runs")
            self._context.kernels -= 1


class _Flags(enum.Enum):
    normal = 0
    cacheable = 1 << 24
    device_only = 1 << 28
    host_only = 1 << 29
    p2p = 1 << 30
    svm = 1 << 27


class bo:
    """(device, size, flags, group), or (bo, size, offset): a part of a BO."""

    flags = _Flags
    normal, cacheable, device_only = _Flags.normal, _Flags.cacheable, _Flags.device_only
    host_only, p2p, svm = _Flags.host_only, _Flags.p2p, _Flags.svm

    def __init__(self, *arguments: Any) -> None:
        self._memory: Memory | None = None
        self._offset = 0
        if len(arguments) == 3 and isinstance(arguments[0], bo):
            parent, size, offset = arguments
            integers(size, offset)
            if offset < 0 or size <= 0 or offset + size > parent._size:
                raise RuntimeError("sub buffer size and offset: Invalid argument")
            self._memory, self._size = parent._alive(), size
            if isinstance(self._memory, Instructions):
                self._memory.context.bos += 1
            self._offset = parent._offset + offset
            return
        if len(arguments) != 4 or not isinstance(arguments[0], device):
            raise TypeError("bo(): incompatible constructor arguments")
        on, size, flags, group = arguments
        integers(size, group)
        if flags not in (_Flags.cacheable, _Flags.host_only):
            raise driver_error("Bad BO type.", 22)
        self._size = size
        self._memory = (Instructions if flags is _Flags.cacheable else Data)(on._npu, size, group)

    def __del__(self) -> None:
        memory = getattr(self, "_memory", None)
        context = getattr(memory, "context", None)
        if context is not None:
            context.bos -= 1

    def _alive(self) -> Memory:
        if self._memory is None:
            raise Crash("a BO that is none")
        return self._memory

    def size(self) -> int:
        return self._size

    def map(self) -> memoryview:
        return memoryview(self._alive().host)[self._offset : self._offset + self._size]

    def write(self, data: Any, seek: int) -> None:
        content = np.frombuffer(data, np.uint8)
        if seek < 0 or seek + content.size > self._size:
            raise RuntimeError("attempting to write past buffer size: Invalid argument")
        start = self._offset + seek
        self._alive().host[start : start + content.size] = content

    def read(self, size: int, skip: int) -> np.ndarray:
        return np.array(self.map()[skip : skip + size]).view(np.int8)

    def sync(self, direction: xclBOSyncDirection, *span: int) -> None:
        if not isinstance(direction, xclBOSyncDirection) or len(span) not in (0, 2):
            raise TypeError("sync(): incompatible function arguments")
        size, offset = span or (self._size, 0)
        integers(size, offset)
        if offset < 0 or size < 0 or offset + size > self._size:
            raise driver_error("Invalid BO offset and size for sync'ing", 22)
        machine.check("sync", "DRM_IOCTL_AMDXDNA_SYNC_BO IOCTL failed")
        machine.counts["syncs"] += 1
        memory, start = self._alive(), self._offset + offset
        if isinstance(memory, Instructions):
            machine.counts["stream bytes"] += size
            if memory.is_read():
                raise Crash("a stream was changed while a command reads it")
        if direction is xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE:
            memory.device_side[start : start + size] = memory.host[start : start + size]
        elif direction is xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE:
            if memory.read_only:
                return  # a flush; nothing was written
            memory.host[start : start + size] = memory.device_side[start : start + size]
        else:
            raise driver_error("sync direction is not supported", 22)

    def address(self) -> int:
        return self._alive().number << 32 | self._offset


class _ExtBo(bo):
    """pyxrt.ext.bo(device, userptr, size): a void* is a capsule in Python."""

    def __init__(self, on: device, userptr: Any, size: int) -> None:
        if type(userptr).__name__ != "PyCapsule" or not isinstance(on, device):
            raise TypeError("ext.bo(): incompatible constructor arguments")
        integers(size)
        self._offset, self._size = 0, size
        self._memory = User(on._npu, _pointer(userptr, None), size)


ext = SimpleNamespace(bo=_ExtBo)


class run:
    def __init__(self, of: kernel) -> None:
        self._context = of._context
        self._context.runs += 1
        self._declared = of._arguments
        self._arguments: dict[int, Any] = {}
        self._command: Command | None = None
        machine.counts["runs"] += 1

    def __del__(self) -> None:
        if hasattr(self, "_declared"):
            self._context.runs -= 1

    def _check_context(self) -> None:
        if not self._context.open:
            raise Crash("a run of a context that is gone")

    def set_arg(self, index: int, item: Any) -> None:
        self._check_context()
        integers(index)
        if not isinstance(item, bo) and type(item) is not int:
            raise TypeError("set_arg(): incompatible function arguments")
        if not 0 <= index < self._declared:
            raise Crash(f"argument {index} of a kernel that declares {self._declared}")
        if self._command is not None and not self._command.over():
            raise Crash("an argument was set while the command is under way")
        machine.counts["arguments set"] += 1
        self._arguments[index] = item

    def start(self) -> None:
        self._check_context()
        machine.counts["starts"] += 1
        machine.check("start", "DRM_IOCTL_AMDXDNA_EXEC_CMD IOCTL failed")
        if self._command is not None and not self._command.over():
            raise RuntimeError("bad command state, can't launch")
        self._check_arguments()
        # A command refers to memory, not to the objects of Python that name it.
        places = {
            index: (item._alive(), item._offset, item._size) if isinstance(item, bo) else item
            for index, item in self._arguments.items()
        }
        self._command = Command(self._context, places)
        self._context.commands[:] = [one for one in self._context.commands if not one.over()]
        self._context.commands.append(self._command)
        self._context.npu.pending.append(self._command)

    def _check_arguments(self) -> None:
        arguments = self._arguments
        if arguments.get(0) != 3:
            raise Crash(f"opcode {arguments.get(0)} instead of 3")
        stream, words = arguments.get(1), arguments.get(2)
        memory = stream._alive() if isinstance(stream, bo) else None
        if not isinstance(memory, Instructions) or memory.context is not self._context:
            raise Crash("argument 1 is no instruction BO of this context")
        if type(words) is not int or not 0 < 4 * words <= stream._size:
            raise Crash(f"argument 2, the number of words, is {words}")
        for index, item in arguments.items():
            if index > 2 and not (isinstance(item, bo) and isinstance(item._alive(), Data)):
                raise Crash(f"argument {index} is no BO of host memory")

    def state(self) -> ert_cmd_state:
        if self._command is None:
            return ert_cmd_state.ERT_CMD_STATE_NEW
        return self._command.state

    def wait(self, timeout_ms: int = 0) -> ert_cmd_state:
        integers(timeout_ms)
        self._check_context()
        command = self._command
        if command is None:
            return ert_cmd_state.ERT_CMD_STATE_NEW
        pending = self._context.npu.pending
        while not command.over():
            machine.check("wait", "DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT IOCTL failed")
            first = pending[0]
            if not first.over():
                first.advance(timeout_ms / 1000 if timeout_ms else 3600.0)
            if first.over():
                pending.popleft()
            elif timeout_ms:
                return ert_cmd_state.ERT_CMD_STATE_TIMEOUT
            elif first.fault is not None:
                raise Crash("a wait that never ends")
        return command.state

    def wait2(self) -> None:
        if self.wait() is not ert_cmd_state.ERT_CMD_STATE_COMPLETED:
            assert self._command is not None
            raise RuntimeError(self._command.message)


class runlist:
    """Runs of one context, in order."""

    def __init__(self, context: hw_context) -> None:
        self._context = context._state
        self._runs: list[run] = []

    def add(self, item: run) -> None:
        if item._context is not self._context:
            raise RuntimeError("runlist: a run of another context")
        self._runs.append(item)

    def execute(self) -> None:
        if self._context.image._head["arguments"] < 8:
            raise Crash("a run list of a kernel that declares less than 5 BOs")
        for item in self._runs:
            item.start()

    def wait(self) -> None:
        for item in self._runs:
            item.wait2()
