"""Perplexity of a GGUF model's held-out answers with its projections stored in several ways.

    python examples/demo_model/perplexity.py examples/demo_model/demo-gemma3.gguf

BF16 and F16 are multiplied as bfloat16; Q4_0 and Q4NX stay 4-bit on the device, up to 48 tokens by
GEMV and longer texts by dequantisation and GEMM. Only the tokens of the answers count:
the questions are random numbers.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

import gguf
import numpy as np
import questions

from npu import gemma3
from npu.models.convert import convert


def requantise(source: Path, target: Path, kind: str) -> Path:
    """A GGUF file with its matrices in another type, by the gguf package."""
    reader = gguf.GGUFReader(str(source))
    writer = gguf.GGUFWriter(str(target), "gemma3")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        inner = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        values = np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type)).reshape(shape)
        wanted = gguf.GGMLQuantizationType[kind if len(shape) == 2 else "F32"]
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def log_likelihood(
    model: gemma3.Model, tokenizer: gemma3.Tokenizer, question: str, answer: str
) -> tuple[float, int]:
    """Sum of the log probabilities of an answer's tokens, and their number."""
    prompt = tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": question}]))
    tokens = prompt + tokenizer.encode(answer + "<end_of_turn>", add_special=False)
    logits = model.forward(tokens[:-1], model.new_cache(len(tokens)), all_logits=True)
    wide = logits[len(prompt) - 1 :].astype(np.float64)
    top = wide.max(axis=1, keepdims=True)
    totals = top[:, 0] + np.log(np.exp(wide - top).sum(axis=1))
    chosen = wide[np.arange(len(wide)), tokens[len(prompt) :]]
    return float((chosen - totals).sum()), len(wide)


def perplexity(path: Path, count: int, weights: str = "auto") -> float:
    """Over ``count`` held-out questions of every skill."""
    model, tokenizer = gemma3.load(path, weights=weights)
    rng = random.Random(0)
    total, tokens = 0.0, 0
    for asked in questions.held_out_questions(0).values():
        for q in rng.sample(asked, min(count, len(asked))):
            part, number = log_likelihood(model, tokenizer, q.text, q.answer)
            total, tokens = total + part, tokens + number
    return float(np.exp(-total / tokens))


def measure(source: Path, count: int) -> dict[str, float]:
    """Perplexity per way of storing the projections."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        f16 = requantise(source, place / "f16.gguf", "F16")
        q4_0 = requantise(source, place / "q4_0.gguf", "Q4_0")
        return {
            "BF16": perplexity(source, count, "bf16"),
            "F16 GGUF": perplexity(f16, count),
            "Q4_0 GGUF": perplexity(q4_0, count),
            "Q4_0 GGUF, expanded to BF16": perplexity(q4_0, count, "bf16"),
            "Q4NX of the Q4_0 GGUF": perplexity(convert(q4_0, place / "a.q4nx"), count),
            "Q4NX of the BF16 file": perplexity(convert(source, place / "b.q4nx"), count),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--questions", type=int, default=40, help="per skill (%(default)s)")
    arguments = parser.parse_args()
    for name, value in measure(arguments.model, arguments.questions).items():
        print(f"{name:28} {value:.5f}")


if __name__ == "__main__":
    main()
