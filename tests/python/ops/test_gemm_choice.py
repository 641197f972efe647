"""The choice of a GEMM configuration, without running one: that the policy loads what is fastest
when a load is due anyway, changes only when that pays, never changes to and fro at a loss, and
that the time it loses against the best fixed choice in hindsight is bounded; that the catalogue
can be lowered, that packed layouts have a configuration for every product, and that the device
picks small configurations for few rows.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from npu.designs import gemm, gemm_catalogue
from npu.errors import DesignError
from npu.ops import gemm_estimate
from npu.ops.gemm_choice import HYSTERESIS, Ledger, decide
from npu.ops.gemm_designs import GemmDesigns, candidates, packs_alike
from npu.ops.gemm_product import GemmRun, Product

LOAD = 4.9e-3


def play(calls: list[dict[str, float]], load: float = LOAD) -> tuple[list[str], int, float]:
    """What runs, how many loads, and the seconds of all calls, loads included."""
    ledger: Ledger[str] = Ledger()
    ran, loads, total = [], 0, 0.0
    for seconds in calls:
        decision = decide(seconds, ledger, load)
        ledger = decision.ledger
        assert ledger.loaded == decision.candidate
        ran.append(decision.candidate)
        loads += decision.loads
        total += seconds[decision.candidate] + load * decision.loads
    return ran, loads, total


def test_first_call_takes_the_fastest() -> None:
    assert play([{"a": 2e-3, "b": 1e-3}])[:2] == (["b"], 1)
    assert play([{"a": 1e-3, "b": 1e-3}])[0] == ["a"], "of equals the first"
    # Another operation's configuration is loaded, so a load is due whatever is chosen.
    assert decide({"a": 2.0, "b": 1.0}, Ledger("other", {"a": 5.0}), LOAD).candidate == "b"


def test_a_change_waits_until_it_has_paid() -> None:
    """1 ms a call: after more than HYSTERESIS x 4.9 of them, and not again afterwards."""
    calls = [{"a": 1e-3, "b": 2e-3}] + [{"a": 2e-3, "b": 1e-3}] * 40
    ran, loads, _ = play(calls)
    stayed = int(HYSTERESIS * LOAD / 1e-3)
    assert ran == ["a"] * (1 + stayed) + ["b"] * (40 - stayed)
    assert loads == 2
    # One call that saves more than both loads changes at once.
    assert play([{"a": 1e-3, "b": 2e-3}, {"a": 20e-3, "b": 1e-3}])[0] == ["a", "b"]


@pytest.mark.parametrize("gain", [0.1, 0.5, 0.99, 1.01, 1.5, 1.99])
def test_alternating_sizes_load_once(gain: float) -> None:
    """Sizes of which either prefers its own configuration by up to two loads: one of them stays."""
    x = {"a": 1e-3, "b": 1e-3 + gain * LOAD}
    y = {"a": 1e-3 + gain * LOAD, "b": 1e-3}
    ran, loads, _ = play([x, y] * 200)
    assert loads == 1 and set(ran) == {"a"}
    # Where one is preferred by more, it wins in the end and stays.
    y = {"a": 1e-3 + 1.2 * gain * LOAD, "b": 1e-3}
    ran, loads, _ = play([x, y] * 200)
    assert loads == 2 and ran[-1] == "b"


def test_at_most_three_times_the_loss_of_hindsight() -> None:
    """Two configurations, random sizes. Loss: seconds above those of the faster one for every call
    without loads. Hindsight keeps the better of the two. In every stretch between two loads the one
    that is then given up has lost more than 2 loads (fixed at it, hindsight loses that too); the
    policy loses at most 2 loads more than the other one would have, and the load itself."""
    rng = np.random.default_rng(0)
    changed = 0
    for case in range(500):
        scale = 10 ** rng.uniform(-4, -1.5)
        kinds = [
            {name: float(rng.exponential(scale)) for name in "ab"}
            for _ in range(rng.integers(1, 4))
        ]
        calls = [kinds[i] for i in rng.integers(0, len(kinds), 300)]
        _, loads, total = play(calls)
        faster = sum(min(call.values()) for call in calls)
        hindsight = min(sum(call[name] for call in calls) for name in "ab") - faster
        assert total - faster <= 3 * hindsight + 5 * LOAD, case
        changed += loads > 2
    assert changed > 50


def products() -> list[Product]:
    found = []
    for a, c in gemm.PAIRS:
        for layout, accumulate in itertools.product(gemm_catalogue.VALUE_LAYOUTS, gemm.ACCUMULATE):
            for bf16 in gemm.BF16 if a == "bfloat16" else gemm.BF16[:1]:
                found.append(Product(a, c, (1, 1, 1), layout, accumulate, bf16))
    for (a, c), sums in itertools.product(gemm.BLOCK_PAIRS, gemm.BLOCK_ACCUMULATE):
        if sums == "wide" or c == "bfp16" or (c == "bfloat16" and sums == "narrow"):
            found.append(Product(a, c, (1, 1, 1), "blocks", sums, "bfp16"))
    return found


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_the_catalogue_has_every_product(generation: str) -> None:
    """At most four configurations each, at most two layouts of packed copies, and one of both for
    every type of result: a copy serves all of them."""
    for product in products():
        if generation == "npu1" and product.bf16 == "bfp16":
            with pytest.raises(DesignError):
                candidates(generation, "array", product)
            continue
        found = candidates(generation, "array", product)
        assert 1 <= len(set(found)) == len(found) <= 4
        assert {o.c_dtype for o in found} == {product.c_dtype}
        for o in found:
            narrows = product.accumulate == "narrow" and o.narrows
            kept = "bfloat16" if product.accumulate == "bfloat16" else o.wide_dtype
            assert o.sum_dtype == (o.c_dtype if narrows else kept)
            assert o.b_layout == ("col" if product.layout in ("col", "blocks") else "row")
            assert o.b_dtype == ("bfp16" if product.layout == "blocks" else o.a_dtype)
        if product.layout == "packed":
            layouts = {(o.tile[2], o.k_mt) for o in found}
            wide = Product(product.a_dtype, product.c_dtype, (1, 1, 1), "packed", "wide",
                           product.bf16)  # fmt: skip
            others = {(o.tile[2], o.k_mt) for o in candidates(generation, "array", wide)}
            assert layouts == others and len(layouts) <= 2


def test_the_catalogue_can_be_lowered() -> None:
    """Every entry with the narrowest and the widest result it is used for."""
    for generation, name, sums, layout in gemm_catalogue.ENTRIES:
        if layout == "blocks":
            for c, accumulate in (
                (("float32", "wide"), ("bfp16", "wide"))
                if sums == "wide"
                else ((sums, "narrow"), ("bfp16", "narrow" if sums == "bfp16" else "bfloat16"))
            ):
                for o in gemm_catalogue.candidates(
                    generation, name, c, layout, accumulate=accumulate
                ):
                    assert gemm.configuration_of(o)
            continue
        a = "bfloat16" if name == "bfp16" else name
        results = [c for x, c in gemm.PAIRS if x == a]
        results = [results[0], results[-1]] if sums == "wide" else [sums]
        for c in dict.fromkeys(results):
            for o in gemm_catalogue.candidates(
                generation, a, c, layout, accumulate="wide" if sums == "wide" else "narrow",
                bf16="bfp16" if name == "bfp16" else "native",
            ):  # fmt: skip
                assert gemm.configuration_of(o)


def test_a_packed_copy_for_another_product() -> None:
    """bf16= may differ from what a copy was packed for: its layout has a configuration anyway."""
    packed = GemmDesigns("npu2", "array", None).for_packing("bfloat16", (512, 512), "bfp16")
    product = Product("bfloat16", "float32", (100, 512, 512), "packed", "wide", "native", packed)
    for prefers in ("host", "array"):
        (found,) = candidates("npu2", prefers, product)
        assert packs_alike(found, packed) and found.bf16 == "native"
    packed = GemmDesigns("npu2", "host", None).for_packing("bfloat16", (512, 512), "bfp16")
    product = dataclasses.replace(product, packed_for=packed)
    default, *small = candidates("npu2", "host", product)
    assert default.whole and small and not any(o.whole for o in small)
    assert all(packs_alike(o, packed) for o in (default, *small))


def choose(designs: GemmDesigns, product: Product, loads: int) -> GemmRun:
    designs.choose(designs.offered(product), loads)
    assert designs.last is not None
    return designs.last


def test_the_closed_form_decides() -> None:
    """Few rows run on a small configuration, 4096 cubed on the large one, and the ledger of a
    device follows what other operations load."""
    chosen = GemmDesigns("npu2", "array", None)
    large = choose(chosen, Product("int8", "int32", (4096, 4096, 4096)), 0)
    assert large.options.tile == gemm_catalogue.ENTRIES["npu2", "int8", "wide", "row"][0].tile
    assert large.load_seconds == pytest.approx(LOAD) and "none was loaded" in large.reason
    few = Product("int8", "int32", (16, 4096, 4096))
    assert choose(chosen, few, 1).options == large.options, "loaded"
    small = choose(chosen, few, 2)  # somebody else loaded something in between
    assert small.options.tile[0] == 32 and "none was loaded" in small.reason
    assert small.predicted_seconds == pytest.approx(
        LOAD + gemm_estimate.seconds(small.options, few.size)
    )
    assert chosen.last == small
    assert "tile 32x" in str(small)


def test_kernels_can_be_restricted() -> None:
    product = Product("int8", "int32", (4096, 4096, 4096))
    for kernel in gemm.KERNELS:
        found = candidates("npu2", "array", product, kernel)
        assert found and {o.kernel for o in found} <= {kernel, "pipelined"}
    native = Product("int16", "int32", (64, 64, 64))
    assert {o.kernel for o in candidates("npu2", "array", native, "pipelined")} == {"published"}


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_the_estimate_sums_submissions(generation: str) -> None:
    """A problem of two submissions costs what they cost; packed copies are read in long runs."""
    o = candidates(generation, "array", Product("int8", "int32", (1, 1, 1)))[0]
    m, k, n = o.native
    whole = gemm_estimate.seconds(o, (2048 * m, k, n))
    assert gemm_estimate.seconds(o, (2 * 2048 * m, k, n)) == pytest.approx(2 * whole)
    size, single = (4 * m, 8 * k, 4 * n), dataclasses.replace(o, b_pairs=False)
    assert gemm_estimate.seconds(single, size, True) < gemm_estimate.seconds(single, size)
