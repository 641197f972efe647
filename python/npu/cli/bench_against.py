"""`npu bench -m MODEL --against llama.cpp [PATH]`: the same tests by llama.cpp on this machine,
each of its runs after one of ours. What runs them is the program llama-bench or, where there is
none and for several sequences at once, the Python module llama_cpp (llama-cpp-python), in a process
of its own. Neither uses a GPU.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from npu.cli import llama_cpp_worker
from npu.cli.bench_runs import Test
from npu.cli.llama_cpp_worker import MODULE
from npu.errors import ArgumentError

PROGRAM = "llama-bench"
_MOST_SECONDS = 3600  # of one run
_ENDING_SECONDS = 10  # of the module's process, once nothing more is asked
# Builds for GPUs give them the products of long prompts although no layer is theirs.
_NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}

Rival = Callable[[Test], float]  # tokens per second


@contextlib.contextmanager
def llama_cpp(
    path: str | None, model: str, longest: int, threads: int, sequences: int = 1
) -> Iterator[tuple[str, Rival]]:
    """The name of what runs tests with a GGUF file, and it, until the context ends. ``path``:
    llama-bench, or a folder that has it; ``longest``: the most tokens of a context; ``sequences``:
    the most of a test. Raises ArgumentError."""
    if not Path(model).is_file():
        raise ArgumentError(
            f"[bench] llama.cpp reads a GGUF file, {model} is none; name one with --against-model"
        )
    program = _program(path)
    if path is not None and sequences > 1:
        raise ArgumentError(
            f"[bench] {PROGRAM} runs one sequence at a time, {sequences} were asked for; leave out "
            f"its path: the Python module {MODULE} runs several"
        )
    if program and sequences == 1:
        yield f"{PROGRAM} ({program})", lambda test: _by_program(program, model, test, threads)
        return
    with contextlib.closing(_Module(model, longest, threads, sequences)) as rival:
        yield rival.start(), rival


def _program(path: str | None) -> str | None:
    """Of llama-bench; None where nobody named it and there is none."""
    if path is None:
        return shutil.which(PROGRAM)
    found = Path(path) / PROGRAM if Path(path).is_dir() else Path(path)
    if not found.is_file() or not os.access(found, os.X_OK):
        raise ArgumentError(f"[bench] --against llama.cpp {path}: {found} is no program")
    return str(found)


def _by_program(program: str, model: str, test: Test, threads: int) -> float:
    """One run of llama-bench, which warms up by itself."""
    words = {
        "-m": model, "-p": test.prompt, "-n": test.generated, "-d": test.depth, "-t": threads,
        "-ngl": 0, "-r": 1, "-o": "json",
    }  # fmt: skip
    command = [program, *(str(word) for pair in words.items() for word in pair)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False,
            env=os.environ | _NO_GPU,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ArgumentError(f"[bench] {' '.join(command)}: {error}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise ArgumentError(f"[bench] {' '.join(command)} ended with {done.returncode}: {said}")
    try:
        (row,) = json.loads(done.stdout)
        return float(row["avg_ts"])
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(
            f"[bench] {' '.join(command)} did not print one row of JSON with avg_ts ({error!r})"
        ) from error


class _Module:
    """The module in a process of its own (llama_cpp_worker.py), with a model."""

    def __init__(self, model: str, longest: int, threads: int, sequences: int) -> None:
        program = [sys.executable, "-m", llama_cpp_worker.__name__]
        command = [*program, model, longest, threads, sequences]
        # A pipe that nobody reads would fill up.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115, closed by close()
        self._process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._said, text=True, env=os.environ | _NO_GPU,
        )  # fmt: skip
        atexit.register(self._process.kill)

    def start(self) -> str:
        """Waits until the model is loaded. The module's name."""
        return str(self._answer()["name"])

    def close(self) -> None:
        """Ends the process, whose model and threads would be beside whatever runs next."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        atexit.unregister(self._process.kill)
        self._process.stdout.close()
        self._said.close()

    def __call__(self, test: Test) -> float:
        words = {
            "prompt": test.prompt, "generated": test.generated, "depth": test.depth,
            "sequences": test.sequences,
        }  # fmt: skip
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # what it said is read below
            self._process.stdin.write(json.dumps(words) + "\n")
            self._process.stdin.flush()
        return test.tokens / float(self._answer()["seconds"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {}
        if "missing" in answer:
            raise ArgumentError(
                f"[bench] neither {PROGRAM} nor the Python module {MODULE} is there "
                f"({answer['missing']}); name {PROGRAM} (--against llama.cpp PATH) or "
                "`pip install llama-cpp-python`"
            )
        if "error" in answer:
            raise ArgumentError(f"[bench] {MODULE}: {answer['error']}")
        if not answer:
            code = self._process.wait()
            raise ArgumentError(f"[bench] {MODULE} ended with {_ending(code)}: {self._last_line()}")
        return answer

    def _last_line(self) -> str:
        """Of what the process said."""
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip()
        return said.splitlines()[-1] if said else "it said nothing"


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else str(code)
