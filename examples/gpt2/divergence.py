"""How far the products of a step are from float32 ones, as the paper's section VII reports it: each
product of the model once more on the CPU, in float64."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import npu.torch.products as products


class Divergence(NamedTuple):
    """Of a product M x K x N. ``norm``: root mean square of the difference over that of the
    product; ``total``: difference of the means of magnitudes, relative."""

    size: tuple[int, int, int]
    norm: float
    total: float


@contextlib.contextmanager
def recorded() -> Iterator[list[Divergence]]:
    """Compares every product of npu.torch inside the block."""
    found: list[Divergence] = []
    prepare = products.call_of

    def compared(a: np.ndarray, b: np.ndarray, **choices: Any) -> Any:
        call = prepare(a, b, **choices)

        def finish() -> None:
            if call.finish is not None:
                call.finish()
            exact = a.astype(np.float64) @ b.astype(np.float64)
            if choices.get("bias") is not None:
                exact += np.asarray(choices["bias"], np.float64)
            difference = call.returned.astype(np.float64) - exact
            norm = np.linalg.norm(difference) / np.linalg.norm(exact)
            mean = np.abs(call.returned, dtype=np.float64).mean()
            total = abs(mean / np.abs(exact).mean() - 1)
            size = (a.shape[0], a.shape[1], b.shape[1])
            found.append(Divergence(size, float(norm), float(total)))

        return dataclasses.replace(call, finish=finish)

    def as_it_is(x: Any, *_: Any) -> Any:
        return x

    def unpacked(b: Any, *_: Any) -> np.ndarray:
        return products.array_of(b)

    with (
        mock.patch.object(products, "call_of", compared),
        mock.patch.object(products, "rounded", as_it_is),
        mock.patch.object(products, "rounded_weight", as_it_is),
        mock.patch.object(products, "right_operand", unpacked),
        mock.patch.object(products, "beside_weight", unpacked),
    ):
        yield found


def table(found: list[Divergence]) -> str:
    """By size, and mean and largest over all, in percent."""
    lines = [f"{'M x K x N':>20}  {'products':>8}  {'RMS':>8}  {'magnitude':>9}"]
    for size in sorted({one.size for one in found}):
        of = [one for one in found if one.size == size]
        norm, total = max(one.norm for one in of), max(one.total for one in of)
        name = " x ".join(map(str, size))
        lines.append(f"{name:>20}  {len(of):8}  {100 * norm:7.3f}%  {100 * total:8.4f}%")
    norms, totals = [one.norm for one in found], [one.total for one in found]
    for label, of in (("mean", np.mean), ("largest", np.max)):
        lines.append(f"{label:>20}  {'':8}  {100 * of(norms):7.3f}%  {100 * of(totals):8.4f}%")
    return "\n".join(lines)
