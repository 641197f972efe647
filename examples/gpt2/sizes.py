"""The matrix products of a training step of GPT-2, as the paper counts them, M x K x N:
"Unlocking the AMD Neural Processing Unit for ML Training on the Client", sections V and VI.

    python examples/gpt2/sizes.py

For 124M and 4 x 64 tokens these are its twelve sizes, 197 GFLOP with what is not a linear layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

Size = tuple[int, int, int]
ROWS = 4 * 64  # tokens of a batch
WIDTH, LAYERS, VOCABULARY = 768, 12, 50304


class Product(NamedTuple):
    """``kind``: "forward", "of inputs" (dy W) or "of weights" (dy^T x)."""

    layer: str
    kind: str
    size: Size
    calls: int


def layers(width: int, count: int, vocabulary: int) -> list[tuple[str, int, int, int]]:
    """Name, inputs, outputs and number of the linear layers of GPT-2."""
    return [
        ("attention, in", width, 3 * width, count),
        ("attention, out", width, width, count),
        ("feed-forward, in", width, 4 * width, count),
        ("feed-forward, out", 4 * width, width, count),
        ("head", width, vocabulary, 1),
    ]


def products(
    rows: int = ROWS, width: int = WIDTH, count: int = LAYERS, vocabulary: int = VOCABULARY
) -> Iterator[Product]:
    """All of a step: y = x W^T, then dx = dy W and dW = dy^T x of every layer."""
    for name, k, n, calls in layers(width, count, vocabulary):
        yield Product(name, "forward", (rows, k, n), calls)
        yield Product(name, "of inputs", (rows, n, k), calls)
        yield Product(name, "of weights", (n, rows, k), calls)


def flops(of: list[Product]) -> int:
    return sum(2 * m * k * n * calls for _, _, (m, k, n), calls in of)


def main() -> None:
    of = list(products())
    forward, backward = Counter[Size](), Counter[Size]()
    for one in of:
        (forward if one.kind == "forward" else backward)[one.size] += one.calls
    sizes = sorted(forward | backward)
    print(f"{'M x K x N':>20}  {'forward':>7}  {'backward':>8}   GFLOP")
    for m, k, n in sizes:
        f, b = forward[m, k, n], backward[m, k, n]
        print(f"{f'{m} x {k} x {n}':>20}  {f:7}  {b:8}  {2e-9 * m * k * n * (f + b):6.1f}")
    print(f"{len(sizes)} sizes, {flops(of) / 1e9:.0f} GFLOP")


if __name__ == "__main__":
    main()
