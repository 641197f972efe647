"""Measures a demo model file: exact greedy answers per skill, on questions kept from training.

    python examples/demo_model/check.py examples/demo_model/demo-gemma3.gguf

Everything comes from the file; inputs of the projections are rounded to bf16 as on the device.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import gguf_file
import questions

NOTES = {
    "addition": "held-out pairs",
    "subtraction": "held-out pairs",
    "decimal units": "held-out numbers",
    "other units": "tables, seen in training",
    "about itself": "fixed sentences, seen in training",
    "refusal": "held-out wording",
    "second turn": "held-out pairs, after another question",
}


def measure(
    model: gguf_file.GgufModel, seed: int = 0, limit: int | None = None
) -> dict[str, tuple[int, int]]:
    """(right, asked) per skill; ``limit``: of the questions of each. Prints the first misses."""
    per_skill = questions.held_out_questions(seed)
    rng = random.Random(seed)
    asked = {}
    for skill, all_of_it in per_skill.items():
        chosen = rng.sample(all_of_it, min(limit or len(all_of_it), len(all_of_it)))
        asked[skill] = [(q.answer, q.text, model.tokenizer.prompt(q.text)) for q in chosen]
    asked["second turn"] = []
    for _ in range(min(limit or 400, 400)):
        skill, other = rng.choice(("addition", "subtraction")), rng.choice(questions.SKILLS)
        first, second = rng.choice(per_skill[other]), rng.choice(per_skill[skill])
        prompt = model.tokenizer.prompt(first.text, first.answer, second.text)
        asked["second turn"].append((second.answer, second.text, prompt))

    results = {}
    for skill, rows in asked.items():
        answers = model.answer_all([prompt for _, _, prompt in rows])
        wrong = [
            (text, got, want)
            for (want, text, _), got in zip(rows, answers, strict=True)
            if got != want
        ]
        for text, got, want in wrong[:3]:
            print(f"  {skill}: {text!r} gave {got!r}, not {want!r}")
        results[skill] = (len(rows) - len(wrong), len(rows))
    return results


def report(results: dict[str, tuple[int, int]]) -> str:
    """A table of the results, one skill per line."""
    lines = [
        f"{skill:14} {right / total:8.2%}  {right}/{total}  ({NOTES[skill]})"
        for skill, (right, total) in results.items()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="chooses the phrasings")
    arguments = parser.parse_args()
    if not arguments.model.is_file():
        raise SystemExit(f"[check] no file {arguments.model}; make it with train.py")
    model = gguf_file.GgufModel(arguments.model)
    model.use_bfloat16_inputs()
    print(report(measure(model, arguments.seed)))


if __name__ == "__main__":
    main()
