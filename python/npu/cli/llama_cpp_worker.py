"""The process of `npu bench --against llama.cpp` (bench_against.py) in which the Python module
llama_cpp runs tests, so that what goes wrong there ends no other:

    python -m npu.cli.llama_cpp_worker MODEL.gguf CONTEXT THREADS

Prints a line of JSON when the model is loaded, {"name": ...}, then one per line of standard input:
{"prompt", "generated", "depth"} in tokens, {"seconds": ...} out; {"error": ...} ends it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any

MODULE = "llama_cpp"


def main(model: str, context: int, threads: int) -> None:
    # Answers alone go to the parent: the module and its library print, too.
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)

        def say(**what: Any) -> None:
            print(json.dumps(what), file=out, flush=True)

        try:
            module = importlib.import_module(MODULE)
        except ImportError as error:
            return say(missing=str(error))
        try:
            llama = module.Llama(
                model_path=model, n_ctx=context, n_batch=2048, n_ubatch=512, n_threads=threads,
                n_threads_batch=threads, n_gpu_layers=0, verbose=False,
            )  # fmt: skip
            say(name=f"{MODULE} {getattr(module, '__version__', 'of unknown version')}")
            words = list(range(2, min(llama.n_vocab(), context + 2)))
            for line in sys.stdin:
                say(seconds=_run(llama, words, **json.loads(line)))
        except Exception as error:  # whatever the module raises
            say(error=f"{type(error).__name__}: {error}")


def _run(llama: Any, words: list[int], prompt: int, generated: int, depth: int) -> float:
    """Seconds of a prompt, or of tokens one by one, after ``depth`` tokens that are not timed."""

    def tokens(count: int) -> list[int]:
        return [words[i % len(words)] for i in range(count)]

    llama.reset()
    if depth:
        llama.eval(tokens(depth))
    begin = time.perf_counter()
    if prompt:
        llama.eval(tokens(prompt))
    for _ in range(generated):
        llama.eval(tokens(1))
    return time.perf_counter() - begin


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
