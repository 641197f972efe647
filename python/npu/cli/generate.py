"""`npu generate`: streams a model's answer to stdout, its timings to stderr."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from npu.cli import common

if TYPE_CHECKING:
    from npu import Device
    from npu.models.gemma3 import Generation

HELP = "generate text with a Gemma 3 model (GGUF or Q4NX)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_model_arguments(parser)
    parser.add_argument("-p", "--prompt", help="the prompt; `-` or absent: read standard input")
    parser.add_argument("--system", help="system message of the chat")
    parser.add_argument("--raw", action="store_true", help="continue the prompt, no chat template")
    parser.add_argument(
        "-n",
        "--max-tokens",
        type=common.positive,
        default=256,
        metavar="N",
        help="at most N tokens (%(default)s)",
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0: always the likeliest token"
    )
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="0: all tokens")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="1: all tokens")
    parser.add_argument("--min-p", type=float, default=0.0, metavar="P", help="0: all tokens")
    parser.add_argument("--seed", type=int, help="seed of the sampling (default: random)")
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="stop before TEXT; repeatable"
    )
    parser.add_argument(
        "--context", type=common.positive, metavar="N", help="context length (default: the model's)"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no figures on stderr")


def run(arguments: argparse.Namespace) -> int:
    from npu.models import gemma3

    # What the command line alone decides fails before a large model is read.
    sampler = gemma3.Sampler(
        arguments.temperature,
        arguments.top_k,
        arguments.top_p,
        arguments.min_p,
        arguments.seed,
    )
    text = _prompt_text(arguments.prompt)
    with common.use_device(arguments) as device:
        common.check_computes(device, "generate")
        path, model, tokenizer = common.load_model(
            arguments.model,
            arguments.weights,
            cache=not arguments.no_cache,
            quiet=arguments.quiet,
        )
        if not arguments.quiet:
            _note(f"model: {path}; {common.device_line(device)}")
        if not arguments.raw:
            messages = [{"role": "user", "content": text}]
            if arguments.system:
                messages.insert(0, {"role": "system", "content": arguments.system})
            text = tokenizer.render_chat(messages)
        generation = gemma3.Generation(
            model,
            tokenizer,
            tokenizer.encode(text),
            sampler,
            max_tokens=arguments.max_tokens,
            stop=arguments.stop,
            context=arguments.context,
        )
        _stream(generation)
    if not arguments.quiet:
        _report(generation, device)
    return 0


def _prompt_text(argument: str | None) -> str:
    if argument is not None and argument != "-":
        return argument
    if sys.stdin.isatty():
        _note("reading the prompt from the terminal; end it with Ctrl-D")
    return sys.stdin.buffer.read().decode("utf-8", errors="replace").rstrip("\n")


def _stream(generation: Generation) -> None:
    # A terminal of another encoding shows `?` instead of failing in the middle of an answer.
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    started = False
    try:
        for text in generation:
            started = True
            print(text.encode(encoding, "replace").decode(encoding), end="", flush=True)
    finally:
        if started:
            print(flush=True)


def _report(generation: Generation, device: Device) -> None:
    timings = generation.timings
    decode = (
        f"decode {timings.decode_rate:.1f} tok/s ({timings.decode_steps} steps)"
        if timings.decode_steps
        else "decode: no step after the first token"
    )
    reasons = {
        "end": "the model ended its turn",
        "stop": "stop string",
        "length": "--max-tokens reached",
        "context": "context full",
    }
    _note(
        f"{timings.prompt_tokens} prompt tokens, {timings.generated_tokens} generated "
        f"({reasons[generation.finish_reason]})"
    )
    _note(
        f"TTFT {timings.first_token * 1e3:.1f} ms, prefill {timings.prefill_rate:.1f} tok/s, "
        f"{decode} [{common.time_label(device)}]"
    )


def _note(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
