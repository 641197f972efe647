"""A run on the NPU: waiting for it, what it ended with, giving it up.

pyxrt holds the GIL while it waits, so that waits are short and repeated. Where the driver has no
watchdog (before Linux 6.17), a limit of our own ends a run.
"""

from __future__ import annotations

import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from npu.device_contract import DeviceRun
from npu.errors import ArgumentError, NpuError, RunAbortedError
from npu.hardware.xrt import failures
from npu.hardware.xrt.context import Context, RunSlot
from npu.hardware.xrt.instructions import Prepared, Slot
from npu.hardware.xrt.signals import is_interrupted

_LIMIT = 30  # seconds; the driver's watchdog has 2, older drivers' 16
_LONGEST = 86400
_SLICE_MS = 5  # of one wait, in which other threads do not run Python
_GRACE_NS = 5_000_000  # in which a cancelled run may end by itself


# How the name of a state ends; any other is of a run that has ended, and no pyxrt has all of them.
_RUNNING = ("_NEW", "_QUEUED", "_RUNNING", "_SUBMITTED")


def chosen_limit() -> int:
    """Seconds after which a run is given up: those of ``NPU_XRT_TIMEOUT``. Raises ArgumentError."""
    text = os.environ.get("NPU_XRT_TIMEOUT", "")
    if not text:
        return _LIMIT
    if not re.fullmatch(r"0*[1-9][0-9]{0,4}", text) or int(text) > _LONGEST:
        raise ArgumentError(
            f"[device] NPU_XRT_TIMEOUT is {text[:40]!r}; use seconds from 1 to {_LONGEST}"
        )
    return int(text)


class XrtRun(DeviceRun):
    """A run under way. ``give_up(context)`` closes the context, which ends its runs."""

    def __init__(
        self, context: Context, run: RunSlot, prepared: Prepared, keep: Any,
        give_up: Callable[[Context], None], states: Any, limit: float,
    ) -> None:  # fmt: skip
        assert prepared.slot is not None
        self._context, self._prepared, self._keep = context, prepared, keep
        self._run: RunSlot | None = run
        self._slot: Slot = prepared.slot
        self._give_up, self._states, self._limit = give_up, states, limit
        self._started = time.perf_counter_ns()
        self._elapsed = 0
        self._slot.uses += 1
        context.under_way.append(self)

    def wait(self, timeout: float | None) -> bool:
        if self._run is None:
            self._check_kept()
            return True
        now = time.perf_counter_ns()
        # Runs of a context take their turns.
        own = max(self._started, self._context.last_end) + int(self._limit * 1e9)
        end = own if timeout is None else min(own, now + int(timeout * 1e9))
        while not self._ended(end - now):
            now = time.perf_counter_ns()
            if now >= own:
                self._fail(self._out_of_time())
            if now >= end:
                return False
        return True

    def report(self) -> dict[str, int]:
        """Time includes the driver's."""
        return {"operations": self._prepared.operations, "array_ns": self._elapsed}

    def cancel(self) -> None:
        """pyxrt cannot stop a run: closing its context does."""
        if self._run is None:
            return
        try:
            if self._ended(_GRACE_NS):
                return
        except NpuError:
            return  # it has ended, and its context with it
        self.release()
        self._give_up(self._context)

    def release(self) -> None:
        """Lets go of everything but the words of the stream."""
        if self._run is None:
            return
        self._run = None
        self._keep = None
        self._slot.uses -= 1
        self._context.under_way.remove(self)

    def _ended(self, nanoseconds: int) -> bool:
        """Whether the run has ended, well, within a slice of that time. Raises if not well."""
        before = sys.exc_info()[1]
        try:
            return self._asked(nanoseconds)
        except BaseException as error:  # a handler's, raised anywhere in there
            _let_go(error, before)
            raise

    def _asked(self, nanoseconds: int) -> bool:
        try:
            state = self._state(nanoseconds)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # see _let_go
            if not isinstance(error, RuntimeError):
                raise
            if is_interrupted(error):
                return False  # the signal's handler has its turn
            self._fail(failures.of_wait(error), error)
        if state == self._states.ERT_CMD_STATE_COMPLETED:
            self._context.last_end = time.perf_counter_ns()
            self._elapsed = self._context.last_end - self._started
            self._context.completed += 1
            run = self._run
            self.release()
            assert run is not None
            self._context.idle.append(run)
            return True
        name = _name(state)
        if not name.endswith(_RUNNING):
            first = self._context.completed == 0
            detail, words = self._detail(), self._prepared.words
            self._fail(failures.of_run(name, detail, words, first, self._context.again))
        return False

    def _state(self, nanoseconds: int) -> Any:
        """Of the run."""
        assert self._run is not None
        run = self._run.run
        state = run.wait(max(1, min(_SLICE_MS, nanoseconds // 1_000_000)))  # 0 would be forever
        if state != self._states.ERT_CMD_STATE_COMPLETED and _name(state).endswith("_TIMEOUT"):
            # The wait's time-out, or the run's? Where pyxrt cannot say, our own limit decides.
            return run.state() if hasattr(run, "state") else "_RUNNING"
        return state

    def _detail(self) -> str:
        """XRT's words for a run that ended badly; wait2() raises them."""
        assert self._run is not None
        try:
            self._run.run.wait2()
        except (RuntimeError, AttributeError) as error:  # AttributeError: before XRT 2.20
            return str(error)
        return ""

    def _out_of_time(self) -> Exception:
        reason = (
            f"after {self._limit:g} s this process gave up (a driver with a watchdog ends a run "
            "after 2 to 16 s)"
        )
        return failures.timed_out(reason, self._prepared.words, self._context.again)

    def _fail(self, error: Exception, cause: Exception | None = None) -> NoReturn:
        self.release()
        self._give_up(self._context)
        raise error from cause

    def _check_kept(self) -> None:
        if not self._elapsed:
            raise RunAbortedError(
                "[wait] the run was given up: it was cancelled, or another run of its "
                "configuration failed and ended both; submit it again"
            )


def _let_go(error: BaseException | None, before: BaseException | None) -> None:
    """Frames of an error, and of those met on the way to it since ``before``, would keep the run
    object, which goes before its context."""
    while error is not None and error is not before:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def _name(state: Any) -> str:
    return str(getattr(state, "name", state))
