"""The matrix products of a training step of GPT-2, M x K x N, as "Unlocking the AMD Neural
Processing Unit for ML Training on the Client" counts them (sections V and VI).

For 124M and 4 x 64 tokens they have twelve sizes, and 190 of the step's 197 GFLOP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

Size = tuple[int, int, int]
ROWS = 4 * 64  # tokens of a batch
WIDTH, LAYERS, VOCABULARY = 768, 12, 50304
KINDS = ("forward", "of inputs", "of weights")  # y = x W^T, dx = dy W, dW = dy^T x


class Product(NamedTuple):
    """``kind``: one of KINDS; ``calls``: how often a step has it."""

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
    """All of a step, the three of every layer; weights are (outputs, inputs)."""
    for name, k, n, calls in layers(width, count, vocabulary):
        sizes = (rows, k, n), (rows, n, k), (n, rows, k)
        for kind, size in zip(KINDS, sizes, strict=True):
            yield Product(name, kind, size, calls)


def in_order(of: Sequence[Product]) -> Iterator[Product]:
    """The products of a step one by one: forward, then backward through the layers."""
    blocks = max(one.calls for one in of)
    forward = [one for one in of if one.kind == KINDS[0]]
    chain = [one for _ in range(blocks) for one in forward if one.calls == blocks]
    chain += [one for one in forward if one.calls < blocks]
    yield from chain
    for last in reversed(chain):
        yield from (one for one in of if one.layer == last.layer and one.kind != KINDS[0])


def flops(of: Sequence[Product]) -> int:
    return sum(2 * m * k * n * calls for _, _, (m, k, n), calls in of)
