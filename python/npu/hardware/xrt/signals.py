"""Calls of XRT that a signal may interrupt.

The shim makes each system call once, and Python's handlers are installed so that calls end with
EINTR. Between two attempts Python runs the handler, which may raise (KeyboardInterrupt).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from npu.hardware.xrt import failures


def is_interrupted(error: RuntimeError) -> bool:
    return failures.number_of(error) == errno.EINTR


def uninterrupted(call: Callable[..., Any], *arguments: Any) -> Any:
    """What ``call`` returns, made again after every signal."""
    while True:
        try:
            return call(*arguments)
        except RuntimeError as error:
            if not is_interrupted(error):
                raise
