"""What a started run of the test double does: on an emulated NPU, or as a test has injected."""

from __future__ import annotations

import enum
import re
from typing import Any

from pyxrt_machine import UNKNOWN_OPERATION, Npu, machine, words_of

from npu.errors import DeadlockError, NpuError


class ert_cmd_state(enum.Enum):
    ERT_CMD_STATE_NEW = 1
    ERT_CMD_STATE_QUEUED = 2
    ERT_CMD_STATE_COMPLETED = 4
    ERT_CMD_STATE_ERROR = 5
    ERT_CMD_STATE_ABORT = 6
    ERT_CMD_STATE_SUBMITTED = 7
    ERT_CMD_STATE_TIMEOUT = 8
    ERT_CMD_STATE_NORESPONSE = 9
    ERT_CMD_STATE_SKERROR = 10
    ERT_CMD_STATE_SKCRASHED = 11


class Command:
    """One start of a run: what it was started with, and what became of it."""

    def __init__(self, context: Any, arguments: dict[int, Any]) -> None:
        self.context = context
        self.state = ert_cmd_state.ERT_CMD_STATE_SUBMITTED
        self.message = ""
        self.arguments = arguments
        self.emulated: Any = None
        self.fault = machine.fault("run")

    def over(self) -> bool:
        return self.state is not ert_cmd_state.ERT_CMD_STATE_SUBMITTED

    def abort(self) -> None:
        if not self.over():
            if self.emulated is not None:
                self.emulated.cancel()
            self.end("ABORT")

    def end(self, state: str, detail: str = "") -> None:
        self.state = ert_cmd_state[f"ERT_CMD_STATE_{state}"]
        self.emulated = None
        self.arguments = {}
        self.message = f"Command failed to complete successfully (ERT_CMD_STATE_{state}){detail}"

    def time_out(self, operation: int = UNKNOWN_OPERATION) -> None:
        health = f"\ntxn_op_idx = 0x{operation:08X}\nctx_pc = 0x00001234\n"
        self.end("TIMEOUT", health if machine.health_data else "")

    def advance(self, seconds: float) -> None:
        """Runs it on the emulated NPU for a time."""
        if self.fault is not None:
            self._inject(str(self.fault))
            return
        if machine.null:
            self.end("COMPLETED")
            return
        try:
            if self.emulated is None:
                self._start()
            if self.emulated.wait(seconds):
                self.end("COMPLETED")
        except DeadlockError as error:
            if machine.watchdog:
                found = re.search(r"operation (\d+)", str(error))
                self.time_out(int(found[1]) if found else UNKNOWN_OPERATION)
        except NpuError as error:
            machine.errors.append(str(error))
            self.end("ERROR", f"\nfirmware status 0x3000002\n{error}")

    def _inject(self, fault: str) -> None:
        kind, _, detail = fault.partition(" ")
        if kind == "timeout":
            self.time_out(int(detail) if detail else UNKNOWN_OPERATION)
        elif kind != "hang":
            self.end(kind.upper(), f"\nfirmware status {detail}" if detail else "")

    def _start(self) -> None:
        npu: Npu = self.context.npu
        stream, offset, _ = self.arguments[1]
        words = stream.device_side[offset:][: 4 * self.arguments[2]].tobytes()
        prepared = npu.prepared(self.context.image._configuration, words)
        if words_of(words) != self.arguments[2]:
            raise NpuError("the number of words is not the stream's")
        refs: list[Any] = []
        for index in range(3, max(self.arguments) + 1):
            if index not in self.arguments:
                refs.append(None)
                continue
            memory, offset, size = self.arguments[index]
            access = "read" if memory.read_only else "readwrite"
            refs.append((memory.buffer, offset, size, access))
        self.emulated = npu.array.submit(prepared, refs)
