"""Trains GPT-2 with its linear layers on the NPU, forward and backward; compares with the CPU.

    python examples/gpt2/finetune.py                          # a small model on made-up sentences
    python examples/gpt2/finetune.py --shape 124m --steps 20 --compare --plot loss.png
    python examples/gpt2/finetune.py --checkpoint FOLDER --text FILE --out tuned

FOLDER is a GPT-2 as transformers keeps it, for example a download of openai-community/gpt2. Needs
torch, transformers and tqdm: pip install '.[torch]' transformers.
"""

from __future__ import annotations

import argparse
import math
import sys
import zlib
from pathlib import Path
from typing import Any

import npu.torch  # before torch, whose idle threads then sleep (docs/torch.md, Threads)

try:
    import checkpoints
    import divergence
    import model as models
    from text import Windows, made_up, read, tokenizer_of
    from training import Run
except ModuleNotFoundError as missing:
    sys.exit(
        f"[gpt2] the Python module {missing.name!r} is missing; pip install '.[torch]' transformers"
    )

import npu
from npu.errors import NpuError


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checkpoint", type=Path, help="folder of a GPT-2")
    parser.add_argument("--shape", choices=sorted(models.SHAPES), default="small",
        help="of a model with random weights, without --checkpoint")  # fmt: skip
    parser.add_argument("--text", type=Path, help="file to train on; default: made-up sentences")
    parser.add_argument("--batch", type=positive, default=4, help="windows of a batch")
    parser.add_argument("--length", type=positive, default=64, help="tokens of a window, from 2")
    parser.add_argument("--steps", type=positive, default=300)
    parser.add_argument(
        "--rate", type=rate, help="of AdamW, after a warm-up; default by the model's size"
    )
    parser.add_argument("--every", type=positive, default=50, help="steps between validations")
    parser.add_argument("--seed", type=seed, default=0)
    parser.add_argument("--device", help="default: the current device, as in npu.device")
    parser.add_argument("--bf16", choices=("native", "bfp16"), help="products on npu2")
    parser.add_argument(
        "--out", type=Path, help="folder for the model, written at every validation"
    )
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add_argument(
        "--compare", action="store_true", help="train on the CPU in float32 as well"
    )
    parser.add_argument("--plot", type=Path, help="losses as a picture, with --compare of both")
    parser.add_argument("--prompt", help="text to continue before and after")
    return parser.parse_args(words)


def positive(word: str) -> int:
    value = int(word)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{word} is less than 1")
    return value


def rate(word: str) -> float:
    value = float(word)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{word} is no finite number above 0")
    return value


def seed(word: str) -> int:
    value = int(word)
    if not 0 <= value < 1 << 63:
        raise argparse.ArgumentTypeError(f"{word} is not from 0 to 2^63 - 1")
    return value


def main(words: list[str] | None = None) -> None:
    options = arguments(words)
    if options.resume and not options.out:
        raise SystemExit("[gpt2] --resume needs --out, the folder of the run to continue")
    if options.length < 2:
        raise SystemExit("[gpt2] --length 1: a window of one token has none to foretell; use 2 up")
    if options.plot:
        check_plot(options.plot)
    if options.out:
        options.out = checkpoints.claim(options.out)
    tokenizer = tokenizer_of(options.out if options.resume else options.checkpoint)
    text = read(options.text) if options.text else made_up(options.seed)
    prompt = options.prompt or ("\nafter monday comes" if not options.text else text[:40])
    run = prepared(options, tokenizer, text, options.out if options.resume else None)
    if run.step >= options.steps:
        raise SystemExit(
            f"[gpt2] --steps {options.steps}: the run is at step {run.step}; give more to continue"
        )
    before = npu.stats()
    report = npu.torch.offload(run.model, device=options.device, bf16=options.bf16)
    print(report)
    print("before:", models.generate(run.model, tokenizer, prompt, 12))
    try:
        run.train(options.steps, options.every, options.out, "NPU")
    except KeyboardInterrupt:
        print(f"stopped at step {run.step}; {saved(options.out)}")
        raise SystemExit(130) from None
    print("after:", models.generate(run.model, tokenizer, prompt, 12))
    loads = (npu.stats() - before).configuration_loads
    print(f"configurations loaded: {loads}, {sum(run.loads[1:])} of them after the first step")
    print_divergence(run)
    other = trained_on_cpu(options, text) if options.compare else None
    if other:
        print_comparison(run, other)
    if options.plot:
        plot(options.plot, run, other)


def prepared(options: argparse.Namespace, tokenizer: Any, text: str, resumed: Path | None) -> Run:
    """A run at its beginning, or where the one in a folder was saved."""
    ids = tokenizer.encode(text)
    model = models.build(resumed or options.checkpoint, options.shape, options.seed)
    most = model.config.n_positions
    if options.length > most:
        raise SystemExit(f"[gpt2] --length {options.length}: the model has {most} positions")
    if max(ids) >= model.config.vocab_size:
        raise SystemExit(
            f"[gpt2] the text has token {max(ids)}, the model {model.config.vocab_size} tokens; "
            "the checkpoint folder lacks its tokenizer"
        )
    rate = options.rate or (2e-3 if model.config.n_embd < 512 else 1e-4)
    windows = Windows(ids, options.batch, options.length, options.seed)
    about = {name: getattr(options, name) for name in ("batch", "length", "seed")}
    about |= {"rate": rate, "text (its checksum)": zlib.crc32(text.encode())}
    run = Run(model, windows, rate, about, tokenizer)
    if resumed:
        run.resume(checkpoints.load(resumed))
        print(f"continues {resumed} at step {run.step}")
    return run


def saved(out: Path | None) -> str:
    if out and (out / checkpoints.STATE).exists():
        return f"continue with --resume --out {out}"
    return "nothing was saved"


def print_divergence(run: Run) -> None:
    """Of the products of one more batch."""
    with divergence.recorded() as found:
        run.gradients()
    print("products of a step against float64:")
    print(divergence.table(found))


def trained_on_cpu(options: argparse.Namespace, text: str) -> Run:
    """The same run without the NPU: same seed, same batches, float32."""
    run = prepared(options, tokenizer_of(options.checkpoint), text, None)
    run.train(options.steps, options.every, None, "CPU")
    return run


def print_comparison(mine: Run, theirs: Run) -> None:
    for label, run in (("NPU", mine), ("CPU", theirs)):
        print(f"{label}: validation loss {run.evaluated[-1][1]:.4f}")


def check_plot(path: Path) -> None:
    """Before the run: ends the program if its picture could not be written."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ModuleNotFoundError:
        raise SystemExit("[gpt2] --plot needs matplotlib: pip install matplotlib") from None
    kinds = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix.removeprefix(".").lower() not in kinds:
        raise SystemExit(f"[gpt2] --plot {path}: its ending is none of {', '.join(kinds)}")
    try:
        path.open("ab").close()
    except OSError as error:
        raise SystemExit(f"[gpt2] --plot {path}: {error.strerror or error}") from None


def plot(path: Path, mine: Run, theirs: Run | None) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5 if theirs else 4), layout="constrained")
    heights = [3, 1] if theirs else [1]
    panels = figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)
    axes = panels[0][0]
    runs = [(theirs, "CPU, float32", 4), (mine, "NPU, bfloat16 products", 1)]
    for run, label, width in runs:
        if run:
            axes.plot(range(1, len(run.losses) + 1), run.losses, linewidth=width, label=label)
    axes.plot(*zip(*mine.evaluated, strict=True), "ko", label="validation")
    axes.set(ylabel="loss (nats per token)", title="GPT-2 training")
    axes.legend()
    if theirs:
        steps = range(1, len(theirs.losses) + 1)
        panels[1][0].plot(steps, [a - b for a, b in zip(mine.losses, theirs.losses, strict=False)])
        panels[1][0].set(ylabel="NPU - CPU")
    panels[-1][0].set(xlabel="step")
    figure.savefig(path)


if __name__ == "__main__":
    try:
        main()
    except NpuError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
