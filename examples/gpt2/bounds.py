"""What the products of a training step of GPT-2 could reach on npu1 with the configuration loaded,
from the bytes that cross DRAM and the multiplications alone.

    python examples/gpt2/bounds.py           # blocks of C on the array
    python examples/gpt2/bounds.py --kept    # the design that npu.torch takes, per product

An output-stationary design that keeps a block of C of P x Q on the array reads every matrix once
per block that needs it. A and B are bfloat16; no wait, no fill and no narrowing is counted. Both
gradients of a layer share a dispatch.

With --kept, memtiles keep an operand (docs/gemm_designs.md, "Operands that stay in L2"): what the
cores take with their generated product, what the runs of the reads leave of the memory's bandwidth,
and reads and writes together. Filling and draining the array are not counted. What of an operand is
read while the other gradient of a layer is computed is left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from npu.perf.execution import constant
from npu.perf.gpt2_products import KINDS, Product, flops, products

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


def around(one: Product) -> float:
    """Seconds of a call beside the array's."""
    submissions = 1.0 if one.kind == KINDS[0] else 0.5
    return 1e-6 * (constant("dispatch") * submissions + constant("token"))


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
    return parts[binds] + around(one), binds


TILE, BLOCK = 64, 256  # of a core, and of C on the array
OBJECTS, PASSES = 12, 3  # of 256 columns of A that memtiles keep; so often others are sent at most
AHEAD = 7  # of the former that are read while the product before is computed
CALL = 2081  # cycles of a product of 64 x 64 x 64: backend/perf/kernel_schedules.inc, and the call


def bandwidth(run: int, shared: bool, channels: int) -> float:
    """GB/s of reads in runs of so many bytes (docs/timing.md); shared: runs of neighbours lie in
    the same memory rows."""
    cap = constant("dram_read_npu1")
    visits = channels * run / constant("row_visit") / (constant("row_sharing") if shared else 1)
    return float((cap**-4 + visits**-4) ** -0.25)


def kept(one: Product) -> str:
    """The operand that stays."""
    m, k, n = one.size
    if m == BLOCK and k % BLOCK == 0 and k // BLOCK <= OBJECTS:
        return "A"
    if k == BLOCK and n // BLOCK == PASSES:
        return "B"
    return "A" if k == BLOCK and m // BLOCK == PASSES else ""


def ahead(one: Product) -> float:
    """The part of A that is read beside the other gradient of the layer, which keeps its B."""
    _, k, n = one.size
    objects = k / BLOCK
    if one.kind != "of inputs" or n // BLOCK != PASSES or kept(one) != "A":
        return 0.0
    return min(AHEAD, objects) / objects


def terms(one: Product) -> dict[str, float]:
    """Seconds of a call by what could bind, and of the bytes."""
    (m, k, n), stays = one.size, kept(one)
    rows, columns = -(-m // BLOCK), -(-n // BLOCK)
    again = k == BLOCK  # what passes by is an object per row, or column, of blocks: read once, too
    a = 2 * m * k * (1 - ahead(one) if stays == "A" else 1 if again else columns)
    b = 2 * k * n * (1 if stays == "B" or (stays and again) else rows)
    channels = 4 if again else 8  # that read most of the time
    across, along = bandwidth(2 * TILE, True, channels), bandwidth(2 * BLOCK, False, channels)
    a_speed = across if one.kind == "of weights" else along
    b_speed = along if one.kind == "forward" else across
    beside = TILE * TILE * 10 / constant("l1_port_npu1") + 1e3 * constant("round")  # zero, narrow
    cycles = rows * columns * (k / TILE * CALL + beside)
    return {
        "cores": cycles / CLOCK,
        "reads": 1e-9 * (a / a_speed + b / b_speed),
        "reads and writes": (a + b + 2 * m * n) / (1e9 * constant("dram_total_npu1")),
    }


def print_kept(of: list[Product]) -> None:
    print(
        f"{'layer':<18} {'product':<11} {'M x K x N':>18} stays {'cores':>8} {'reads':>8} "
        f"{'both ways':>9} {'us':>8}  TFLOP/s"
    )
    total = 0.0
    for one in of:
        found = terms(one)
        taken = max(found.values()) + around(one)
        total += one.calls * taken
        cells = " ".join(f"{1e6 * value:8.1f}" for value in found.values())
        tops = flops([one._replace(calls=1)]) / taken / 1e12
        print(
            f"{one.layer:<18} {one.kind:<11} {' x '.join(map(str, one.size)):>18} "
            f"{kept(one):>5} {cells}  {1e6 * taken:8.1f}  {tops:7.2f}"
        )
    print(f"a step: {1e3 * total:.1f} ms, {flops(of) / total / 1e12:.2f} TFLOP/s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kept", action="store_true", help="the design whose memtiles keep A or B")
    of = list(products())
    if parser.parse_args().kept:
        print_kept(of)
        return
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
