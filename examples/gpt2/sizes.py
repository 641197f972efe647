"""The matrix products of a training step of GPT-2, as the paper counts them, M x K x N:
"Unlocking the AMD Neural Processing Unit for ML Training on the Client", sections V and VI.

    python examples/gpt2/sizes.py

For 124M and 4 x 64 tokens these are its twelve sizes, 197 GFLOP with what is not a linear layer.
`npu bench gpt2` simulates them.
"""

from __future__ import annotations

from collections import Counter

from npu.perf.gpt2_products import Size, flops, products


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
