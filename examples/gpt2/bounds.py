"""What the products of a training step of GPT-2 could reach on npu1 with the configuration loaded,
from the bytes that cross DRAM and the multiplications alone.

    python examples/gpt2/bounds.py

An output-stationary design that keeps a block of C of P x Q on the array reads every matrix once
per block that needs it. A and B are bfloat16; no wait, no fill and no narrowing is counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from npu.perf.execution import constant
from npu.perf.gpt2_products import Product, flops, products

CORES, CLOCK = 16, 1e9
Bytes = Callable[[Product], tuple[float, float]]  # read, written


def by_blocks(rows: int, columns: int, c_bytes: int) -> Bytes:
    """A is read once per `columns` of C, B once per `rows`."""

    def moved(one: Product) -> tuple[float, float]:
        m, k, n = one.size
        read = 2 * m * k * -(-n // columns) + 2 * k * n * -(-m // rows)
        return read, c_bytes * m * n

    return moved


def once(c_bytes: int) -> Bytes:
    """Every matrix once: one operand stays in the memtiles."""
    return by_blocks(1 << 30, 1 << 30, c_bytes)


def seconds(one: Product, moved: Bytes) -> tuple[float, str]:
    """Of a call, and what binds: multiplications, reads, or reads and writes together."""
    read, written = moved(one)
    m, k, n = one.size
    parts = {
        "multiplications": m * k * n / (CORES * constant("mac_bf16_npu1") * CLOCK),
        "reads": read / (1e9 * constant("dram_read_npu1")),
        "reads and writes": (read + written) / (1e9 * constant("dram_total_npu1")),
    }
    binds = max(parts, key=lambda name: parts[name])
    return parts[binds] + 1e-6 * (constant("dispatch") + constant("token")), binds


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    of = list(products())
    print(
        f"{flops(of) / 1e9:.1f} GFLOP; {'block of C':>14}  {'C':>4}  {'ms':>6}  TFLOP/s  bound by"
    )
    cases: list[tuple[str, Callable[[int], Bytes]]] = [
        (f"256 x {q}", lambda c, q=q: by_blocks(256, q, c)) for q in (256, 384, 512, 640, 768)
    ]
    for name, make in [*cases, ("each once", once)]:
        for c_bytes, dtype in ((2, "bf16"), (4, "f32")):
            timed = [(one, *seconds(one, make(c_bytes))) for one in of]
            total = sum(one.calls * taken for one, taken, _ in timed)
            share: dict[str, float] = {}
            for one, taken, binds in timed:
                share[binds] = share.get(binds, 0) + one.calls * taken / total
            bound = ", ".join(f"{binds} {part:.0%}" for binds, part in sorted(share.items()))
            tops = flops(of) / total / 1e12
            print(f"{'':16}{name:>12}  {dtype:>4}  {1e3 * total:6.1f}  {tops:7.2f}  {bound}")


if __name__ == "__main__":
    main()
