"""`npu bench -m MODEL`: what loading a model takes in time and memory, its time to first token and
tokens per second per context length."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from npu.cli import bench_gemm_files as files
from npu.cli import common, memory

if TYPE_CHECKING:
    from npu import Device
    from npu.models.gemma3 import Model, Tokenizer

_SEED = 0


def run(arguments: argparse.Namespace) -> int:
    import numpy as np

    with files.opened(json_path=arguments.json) as outputs, common.use_device(arguments) as device:
        common.check_computes(device, "bench")
        path, model, tokenizer, loading = load(arguments)
        longest = max(arguments.context) + arguments.tokens
        model.new_cache(longest)  # refuses a context the model does not have
        size = min(len(tokenizer), model.config.vocabulary)
        prompt = np.random.default_rng(_SEED).integers(0, size, max(arguments.context))
        rows = [
            measure(model, prompt[:length].tolist(), arguments.tokens, arguments.repeats, size)
            for length in arguments.context
        ]
        if outputs:
            document = _document(path, device, arguments, loading, rows)
            outputs["json"].write(files.json_bytes(document))
    if arguments.json != files.STDOUT:
        _print_table(path, device, arguments, loading, rows)
    return 0


def load(arguments: argparse.Namespace) -> tuple[str, Model, Tokenizer, dict[str, float]]:
    """Loads the model; what that took: seconds, and the process's memory before and after it."""
    before = memory.private_bytes()
    begin = time.perf_counter()
    path, model, tokenizer = common.load_model(
        arguments.model, arguments.weights, cache=not arguments.no_cache
    )
    loading = {
        "seconds": time.perf_counter() - begin,
        "private_bytes_before": before,
        "private_bytes": memory.private_bytes(),
        "peak_resident_bytes": memory.peak_resident_bytes(),
    }
    return path, model, tokenizer, loading


def measure(model: Model, prompt: list[int], steps: int, repeats: int, size: int) -> dict[str, Any]:
    """Runs one prompt length, greedily among the first ``size`` tokens of the vocabulary.

    Returns figures of each repeat, the warm-up not among them.
    """
    first: list[float] = []
    decode: list[float] = []
    for repeat in range(repeats + 1):
        if sys.stderr.isatty():
            print(f"\r{len(prompt)} tokens, run {repeat}/{repeats} ", end="", file=sys.stderr)
        cache = model.new_cache()
        begin = time.perf_counter()
        _, token = model.top(prompt, cache, 1, size)
        middle = time.perf_counter()
        for _ in range(steps):
            _, token = model.top(token.tolist(), cache, 1, size)
        end = time.perf_counter()
        if repeat:
            first.append(middle - begin)
            decode.append(end - middle)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    return {
        "prompt_tokens": len(prompt),
        "decode_steps": steps,
        "ttft_ms": common.spread([value * 1e3 for value in first]),
        "prefill_tokens_per_s": common.spread([len(prompt) / value for value in first]),
        "decode_tokens_per_s": common.spread([steps / value for value in decode]),
    }


def _document(
    path: str,
    device: Device,
    arguments: argparse.Namespace,
    loading: dict[str, float],
    rows: list[dict[str, Any]],
) -> dict[str, Any]:
    return {
        "model": path,
        "device": device.name,
        "emulated": device.emulated,
        "arithmetic": device.arithmetic,
        "times": common.time_label(device),
        "warm_up_runs": 1,
        "repeats": arguments.repeats,
        "loading": loading,
        "results": rows,
    }


def _print_table(
    path: str,
    device: Device,
    arguments: argparse.Namespace,
    loading: dict[str, float],
    rows: list[dict[str, Any]],
) -> None:
    print(f"model: {path}")
    print(common.device_line(device))
    print(
        "loading: {seconds:.2f} s; private memory {after:.0f} MB after it, {before:.0f} MB before; "
        "peak resident {peak:.0f} MB, pages of the mapped file included".format(
            seconds=loading["seconds"],
            after=loading["private_bytes"] / 1e6,
            before=loading["private_bytes_before"] / 1e6,
            peak=loading["peak_resident_bytes"] / 1e6,
        )
    )
    print(
        f"{common.time_label(device)}; median [min, max] of {arguments.repeats} runs after one "
        f"warm-up; {arguments.tokens} decode steps"
    )
    columns = ("ttft_ms", "prefill_tokens_per_s", "decode_tokens_per_s")
    heads = ("context", "TTFT ms", "prefill tok/s", "decode tok/s")
    print("{:>8}  {:>28}  {:>28}  {:>28}".format(*heads))
    for row in rows:
        cells = [
            f"{row[name]['median']:.1f} [{row[name]['min']:.1f}, {row[name]['max']:.1f}]"
            for name in columns
        ]
        print("{:>8}  {:>28}  {:>28}  {:>28}".format(row["prompt_tokens"], *cells))
