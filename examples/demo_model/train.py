"""Trains the demo model on text that it generates, and writes it as GGUF.

    python examples/demo_model/train.py --out demo-gemma3.gguf

A Gemma 3 of 1.8 million parameters learns the questions of questions.py in Gemma's chat format; the
loss is taken on the model's turns only. The result is reloaded from the file and measured on
questions that training never drew. One seed gives one model on one machine and thread count, unless
--minutes cuts the run short. Needs torch, transformers, gguf and sentencepiece:
pip install '.[reference]'
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import architecture
    import check
    import gguf_file
    import questions
    import torch
    import vocabulary
    from tqdm import tqdm
    from transformers import Gemma3ForCausalLM
except ModuleNotFoundError as missing:
    sys.exit(
        f"[train] the Python module {missing.name!r} is missing; "
        "install the training dependencies with: pip install '.[reference]'"
    )

BATCH = 64
STEPS = 2400
RATE = 5e-3
WARM_UP = 50  # steps
TWO_TURNS = 0.1  # share of chats with a second question
POOL = 16  # batches drawn together and sorted by length, to waste little on padding
IGNORED = -100  # label of the positions without loss


class Chats:
    """An infinite stream of (ids, labels) batches."""

    def __init__(self, words: vocabulary.Vocabulary, seed: int) -> None:
        self._words = words
        self._rng = random.Random(seed)

    def _chat(self) -> tuple[list[int], list[int]]:
        """Token ids, and as labels the next token wherever that one belongs to an answer."""
        ids: list[int] = [vocabulary.BOS]
        labels: list[int] = []
        for turn in range(2 if self._rng.random() < TWO_TURNS else 1):
            if turn:
                ids += self._words.encode("\n")
            question = questions.draw(self._rng)
            ids += self._words.prompt(question.text)
            labels += [IGNORED] * (len(ids) - 1 - len(labels))
            answer = self._words.answer(question.answer)
            ids += answer
            labels += answer
        return ids, [*labels, IGNORED]

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            chats = sorted((self._chat() for _ in range(BATCH * POOL)), key=lambda c: len(c[0]))
            starts = list(range(0, len(chats), BATCH))
            self._rng.shuffle(starts)
            for start in starts:
                rows = chats[start : start + BATCH]
                width = max(len(ids) for ids, _ in rows)
                # Padding stands at the end, where no earlier position can see it.
                ids = torch.full((BATCH, width), vocabulary.PAD)
                labels = torch.full((BATCH, width), IGNORED)
                for i, (row, answer) in enumerate(rows):
                    ids[i, : len(row)] = torch.tensor(row)
                    labels[i, : len(row)] = torch.tensor(answer)
                yield ids, labels


def optimisers(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (matrices if parameter.ndim == 2 and "embed" not in name else others).append(parameter)
    return [
        torch.optim.Muon(matrices, lr=RATE, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=RATE, betas=(0.9, 0.99), weight_decay=0.0),
    ]


def train(
    words: vocabulary.Vocabulary, seed: int, steps: int, minutes: float | None
) -> Gemma3ForCausalLM:
    """The trained model, its matrices rounded to bf16."""
    torch.manual_seed(seed)
    model = architecture.build(architecture.config(words.size))
    steppers = optimisers(model)
    start, loss_mean = time.monotonic(), None
    bar = tqdm(Chats(words, seed), total=steps, unit="step", mininterval=1.0)
    for step, (ids, labels) in enumerate(bar):
        done = step / steps
        if minutes is not None:
            done = max(done, (time.monotonic() - start) / 60 / minutes)
        if done >= 1:
            break
        for group in (g for s in steppers for g in s.param_groups):
            group["lr"] = RATE * min(1.0, (step + 1) / WARM_UP) * (1 - done)
        answered = labels != IGNORED
        hidden = model.model(input_ids=ids).last_hidden_state[answered]
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden), labels[answered])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad()
        value = loss.item()
        loss_mean = value if loss_mean is None else 0.98 * loss_mean + 0.02 * value
        bar.set_postfix(loss=f"{loss_mean:.4f}")
    bar.close()
    architecture.round_to_bfloat16(model)
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the GGUF to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"default {STEPS}")
    parser.add_argument("--minutes", type=float, help="train at most this long (default: no limit)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's own choice)")
    arguments = parser.parse_args()
    if arguments.steps < 1 or (arguments.minutes is not None and not arguments.minutes > 0):
        parser.error("--steps and --minutes must be positive")
    if arguments.threads is not None and arguments.threads < 1:
        parser.error("--threads must be at least 1")
    if not arguments.out.absolute().parent.is_dir():
        parser.error(f"--out: no directory {arguments.out.absolute().parent}")
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)

    start = time.monotonic()
    words = vocabulary.train_vocabulary(arguments.seed)
    model = train(words, arguments.seed, arguments.steps, arguments.minutes)
    print(f"Trained in {(time.monotonic() - start) / 60:.1f} minutes.")
    gguf_file.write(arguments.out, model, words)
    size = arguments.out.stat().st_size / 1e6
    print(f"Wrote {arguments.out} ({size:.1f} MB). Exact answers, from the file as written:")
    stored = gguf_file.GgufModel(arguments.out)
    stored.use_bfloat16_inputs()
    print(check.report(check.measure(stored, arguments.seed)))


if __name__ == "__main__":
    main()
