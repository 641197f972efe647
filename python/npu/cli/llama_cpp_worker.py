"""The process of `npu bench --against llama.cpp` (bench_against.py) in which the Python module
llama_cpp runs tests, so that what goes wrong there ends no other:

    python -m npu.cli.llama_cpp_worker MODEL.gguf CONTEXT THREADS SEQUENCES

Prints a line of JSON when the model is loaded, {"name": ...}, then one per line of standard input:
{"prompt", "generated", "depth", "sequences"} in tokens, {"seconds": ...} out; {"error": ...} ends
it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any

MODULE = "llama_cpp"
_BATCH, _UBATCH = 2048, 512  # tokens, as llama-bench's


def main(model: str, context: int, threads: int, sequences: int) -> None:
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
                model_path=model, n_ctx=context, n_batch=_BATCH, n_ubatch=_UBATCH,
                n_threads=threads, n_threads_batch=threads, n_gpu_layers=0, verbose=False,
            )  # fmt: skip
            words = list(range(2, min(llama.n_vocab(), context + 2)))
            batch = (
                _Sequences(module, llama, context, threads, sequences) if sequences > 1 else None
            )
            say(name=f"{MODULE} {getattr(module, '__version__', 'of unknown version')}")
            for line in sys.stdin:
                test = json.loads(line)
                if test.pop("sequences") == 1:
                    say(seconds=_run(llama, words, **test))
                else:
                    assert batch
                    say(seconds=batch.run(words, test["generated"], test["depth"]))
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


class _Sequences:
    """A second context of the model, for several sequences, by the functions of llama.h."""

    def __init__(self, module: Any, llama: Any, context: int, threads: int, sequences: int) -> None:
        self._module, self._count = module, sequences
        parameters = module.llama_context_default_params()
        parameters.n_ctx = context * sequences
        parameters.n_seq_max = sequences
        parameters.n_batch, parameters.n_ubatch = _BATCH, _UBATCH
        parameters.n_threads = parameters.n_threads_batch = threads
        self._context = module.llama_init_from_model(llama.model, parameters)
        if not self._context:
            raise RuntimeError(f"no context for {sequences} sequences of {context} tokens")
        self._batch = module.llama_batch_init(_BATCH, 0, 1)

    def run(self, words: list[int], generated: int, depth: int) -> float:
        """Seconds of ``generated`` steps of a token of each sequence, which holds ``depth`` tokens
        before."""
        module = self._module
        module.llama_memory_clear(module.llama_get_memory(self._context), True)
        for sequence in range(self._count):
            for first in range(0, depth, _BATCH):
                part = range(first, min(first + _BATCH, depth))
                self._decode([(words[at % len(words)], at, sequence, False) for at in part])
        begin = time.perf_counter()
        for at in range(depth, depth + generated):
            self._decode([(words[0], at, sequence, True) for sequence in range(self._count)])
            for row in range(self._count):
                module.llama_get_logits_ith(self._context, row)
        return time.perf_counter() - begin

    def _decode(self, tokens: list[tuple[int, int, int, bool]]) -> None:
        """Tokens, their positions and sequences, and whether logits are wanted."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence, wanted) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        status = self._module.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode ended with {status}")


if __name__ == "__main__":
    main(sys.argv[1], *(int(word) for word in sys.argv[2:5]))
