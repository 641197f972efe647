"""`npu bench -m MODEL --against llama.cpp [PATH]`: the same tests by llama.cpp on this machine,
each of its runs after one of ours. What runs them is the program llama-bench or, where there is
none, the Python module llama_cpp (llama-cpp-python) in this process.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from npu.cli.bench_runs import Test
from npu.errors import ArgumentError

PROGRAM, MODULE = "llama-bench", "llama_cpp"
_MOST_SECONDS = 3600  # of one run

Rival = Callable[[Test], float]  # tokens per second


def llama_cpp(path: str | None, model: str, longest: int, threads: int) -> tuple[str, Rival]:
    """What runs tests with a GGUF file, and the name of it. ``path``: llama-bench, or a folder that
    has it; ``longest``: the most tokens of a context. Raises ArgumentError."""
    if not Path(model).is_file():
        raise ArgumentError(
            f"[bench] llama.cpp reads a GGUF file, {model} is none; name one with --against-model"
        )
    program = _program(path)
    if program:
        return f"{PROGRAM} ({program})", lambda test: _by_program(program, model, test, threads)
    module = _module()
    name = f"{MODULE} {getattr(module, '__version__', 'of unknown version')}"
    return name, _Loaded(module, model, longest, threads)


def _program(path: str | None) -> str | None:
    """Of llama-bench; None where nobody named it and there is none."""
    if path is None:
        return shutil.which(PROGRAM)
    found = Path(path) / PROGRAM if Path(path).is_dir() else Path(path)
    if not found.is_file() or not os.access(found, os.X_OK):
        raise ArgumentError(f"[bench] --against llama.cpp {path}: {found} is no program")
    return str(found)


def _module() -> Any:
    try:
        return importlib.import_module(MODULE)
    except ImportError as error:
        raise ArgumentError(
            f"[bench] neither {PROGRAM} nor the Python module {MODULE} is there ({error}); name "
            f"{PROGRAM} (--against llama.cpp PATH) or `pip install llama-cpp-python`"
        ) from error


def _by_program(program: str, model: str, test: Test, threads: int) -> float:
    """One run of llama-bench, which warms up by itself."""
    words = {
        "-m": model, "-p": test.prompt, "-n": test.generated, "-d": test.depth, "-t": threads,
        "-r": 1, "-o": "json",
    }  # fmt: skip
    command = [program, *(str(word) for pair in words.items() for word in pair)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False
        )
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


class _Loaded:
    """The module with a model, which takes memory beside ours; files are mapped by both."""

    def __init__(self, module: Any, model: str, longest: int, threads: int) -> None:
        try:
            self.llama = module.Llama(
                model_path=model, n_ctx=longest, n_batch=2048, n_ubatch=512, n_threads=threads,
                n_threads_batch=threads, verbose=False,
            )  # fmt: skip
        except (ValueError, RuntimeError, TypeError) as error:
            raise ArgumentError(f"[bench] {MODULE} does not load {model}: {error}") from error
        self.words = list(range(2, min(self.llama.n_vocab(), longest + 2)))

    def __call__(self, test: Test) -> float:
        llama = self.llama
        llama.reset()
        if test.depth:
            llama.eval(self._tokens(test.depth))
        begin = time.perf_counter()
        if test.prompt:
            llama.eval(self._tokens(test.prompt))
        for _ in range(test.generated):
            llama.eval(self._tokens(1))
        return test.tokens / (time.perf_counter() - begin)

    def _tokens(self, count: int) -> list[int]:
        return [self.words[i % len(self.words)] for i in range(count)]
