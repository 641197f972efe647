"""Two products in one submission (Gemm.run_both): the bits are those of two calls, whatever lies
where and whichever of them is split or has edges, in timed runs, too; simulated, one dispatch is
saved, and one product begins to read while the other is computed; products of different
configurations are submitted one by one; one that writes what the other uses is an error.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import npu
from npu import _npu
from npu.designs import gemm
from npu.devices import open_device
from npu.errors import ArgumentError
from npu.ops.arrays import bytes_of, typed_view
from npu.ops.gemm_calls import run_both
from npu.ops.matmul import call_of, pack
from npu.perf.execution import execute
from npu.perf.simulate import simulate_call

BF16 = np.dtype(ml_dtypes.bfloat16)
KEPT = gemm.design_point(
    "npu1", "bfloat16", "bfloat16", tile=(64, 64, 64), k_mt=256, b_layout="col", c_l2_buffers=1,
    square=True, keeps=True,
)  # fmt: skip
ARGUMENTS = 8  # of a product in a stream: A, B, C, ...
# M, K, N of both; what memtiles keep of each
SIZES = [
    ((256, 2304, 768), (2304, 256, 768)),  # dy, x
    ((256, 3072, 768), (3072, 256, 768)),
    ((256, 768, 768), (768, 256, 768)),
    ((256, 2560, 1280), (2560, 256, 256)),
    ((256, 768, 512), (768, 256, 256)),  # dy, nothing
    ((512, 512, 256), (256, 3072, 768)),  # nothing, A
    ((300, 600, 330), (600, 300, 330)),  # edges are packed, and results copied
]


def values(rows: int, columns: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns), np.float32).astype(BF16)


def joined(size: tuple[int, int, int], then: tuple[int, int, int]) -> dict[str, int]:
    """The request of dx and dW."""
    names = ("m", "k", "n", "then_m", "then_k", "then_n")
    across = {"b_across": 1, "then_a_across": 1, "then_b_across": 1}
    return dict(zip(names, (*size, *then), strict=True)) | across


def gradients(
    size: tuple[int, int, int], then: tuple[int, int, int]
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """A by rows and then by columns, as dy of dx and of dW; B by rows; results."""
    m, k, n = then
    of = [(values(*size[:2], 1), values(*size[1:], 2)), (values(k, m, 3).T, values(k, n, 4))]
    return [(a, b, np.full((a.shape[0], b.shape[1]), np.nan, BF16)) for a, b in of]


@pytest.mark.parametrize("size, then", SIZES, ids=str)
@pytest.mark.parametrize("residency", ["", "+reload", "+intruder", "+replay"])
def test_bits_are_those_of_two_calls(
    size: tuple[int, int, int], then: tuple[int, int, int], residency: str
) -> None:
    """Three times, in both orders: from the second one on the stream is one that was built."""
    kept = open_device("emu:npu1").gemm_of(KEPT)
    expected = gradients(size, then)
    for a, b, out in expected:
        kept.run(*typed_view(a), *typed_view(b), bytes_of(out), 0)
    both = open_device(f"emu:npu1{residency}").gemm_of(KEPT)
    for order in (1, 1, -1):
        found = gradients(size, then)
        before = npu.stats()
        words = [(*typed_view(a), *typed_view(b), bytes_of(out), 0) for a, b, out in found]
        both.run_both(*words[::order])
        assert (npu.stats() - before).submissions == 1
        for (_, _, out), (_, _, wanted) in zip(found, expected, strict=True):
            np.testing.assert_array_equal(out.view(np.uint16), wanted.view(np.uint16))


@pytest.mark.parametrize("size, then", [pair for pair in SIZES if pair[0][0] != 300], ids=str)
def test_bits_of_a_timed_run(size: tuple[int, int, int], then: tuple[int, int, int]) -> None:
    """Where transfers and products take their time and reads for one product overtake the end of
    the other."""
    expected = gradients(size, then)
    kept = open_device("emu:npu1").gemm_of(KEPT)
    for a, b, out in expected:
        kept.run(*typed_view(a), *typed_view(b), bytes_of(out), 0)
    (submission,) = _npu.operations.submissions(
        "gemm", gemm.configuration_of(KEPT), joined(size, then)
    )
    data = [np.full(one["bytes"], 0xFF, np.uint8) for one in submission["arguments"]]
    for first, (a, b, _) in zip((0, ARGUMENTS), expected, strict=True):
        stored = a if a.flags.c_contiguous else a.T
        data[first], data[first + 1] = (x.view(np.uint8).ravel().copy() for x in (stored, b))
    execute(gemm.configuration_of(KEPT), submission["stream"], data=data)
    for first, (_, _, out) in zip((0, ARGUMENTS), expected, strict=True):
        np.testing.assert_array_equal(data[first + 2], out.view(np.uint8).ravel())


def test_long_products_have_submissions_of_their_own() -> None:
    """Two times 1,300 output rounds are more than the 2,048 that one may have."""
    device = open_device("null:npu1")
    a, b = np.zeros((256, 128), BF16), np.zeros((128, 1300 * 256), BF16)
    for columns, submissions in ((1300 * 256, 2), (512, 1)):
        before = npu.stats()
        run_both(call_of(a, b, device=device), call_of(a, b[:, :columns], device=device))
        assert (npu.stats() - before).submissions == submissions


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_packed_operands_epilogues_and_batches(generation: str) -> None:
    """As npu.torch has them in float32; a batch, and results of other types, one by one."""
    device = open_device(f"emu:{generation}")
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(s, np.float32) for s in ((70, 90), (90, 110)))
    pairs = [
        ((a, pack(b, device=device), {}), (a, b, {"bias": b[0]}), 1),
        ((a, pack(b, device=device), {"alpha": 2}), (b.T, pack(a.T, device=device), {}), 1),
        ((a, b, {}), (a, b, {"out_dtype": BF16}), 2),
        ((np.stack([a, a]), np.stack([b, b]), {}), (a, b, {}), 3),
        ((a[:, :0], b[:0], {}), (a, b, {}), 1),
    ]
    for first, second, submissions in pairs:
        calls = [call_of(x, y, device=device, **more) for x, y, more in (first, second)]
        before = npu.stats()
        run_both(*calls)
        assert (npu.stats() - before).submissions == submissions
        for call, (x, y, more) in zip(calls, (first, second), strict=True):
            np.testing.assert_array_equal(call.returned, npu.matmul(x, y, device=device, **more))


@pytest.mark.parametrize("size, then, gained", [(*SIZES[0], 0.09), (*SIZES[1], 0.07)])
def test_one_dispatch_is_saved_and_reads_overlap(
    size: tuple[int, int, int], then: tuple[int, int, int], gained: float
) -> None:
    """No byte is moved more. The array's time is that of both without most of the time in which A
    of dx is read, and the array filled. In which order they are given does not matter."""
    alone = [
        simulate_call(KEPT, size, stored={"b_across": 1}),
        simulate_call(KEPT, then, stored={"a_across": 1, "b_across": 1}),
    ]
    both = simulate_call(KEPT, size, stored=joined(size, then))
    assert both.dispatch_seconds == alone[0].dispatch_seconds
    assert both.bytes == {name: sum(one.bytes[name] for one in alone) for name in both.bytes}
    total = sum(one.array_seconds for one in alone)
    assert both.array_seconds < (1 - gained) * total
    names = ("then_m", "then_k", "then_n")
    other = dict(zip(names, size, strict=True)) | {"then_b_across": 1}
    turned = simulate_call(KEPT, then, stored={"a_across": 1, "b_across": 1} | other)
    assert turned.array_seconds == both.array_seconds


def test_products_that_cannot_overlap_take_the_time_of_both() -> None:
    """Nothing stays of the second one."""
    size, then = (256, 768, 512), (768, 256, 256)
    alone = [
        simulate_call(KEPT, size, stored={"b_across": 1}),
        simulate_call(KEPT, then, stored={"a_across": 1, "b_across": 1}),
    ]
    both = simulate_call(KEPT, size, stored=joined(size, then))
    total = sum(one.array_seconds for one in alone)
    assert 0.98 * total < both.array_seconds < total


def test_products_that_write_what_the_other_uses_are_refused() -> None:
    kept = open_device("emu:npu1").gemm_of(KEPT)
    memory = np.zeros(4 * 256 * 256, BF16)
    part = [memory[i * 65536 : (i + 1) * 65536].reshape(256, 256) for i in range(4)]

    def run(*of: tuple[int, int, int]) -> None:
        operands = [(part[a], part[b].T, part[c]) for a, b, c in of]
        kept.run_both(*((*typed_view(a), *typed_view(b), bytes_of(c), 0) for a, b, c in operands))

    run((0, 1, 2), (0, 1, 3))
    for one, other, what in (
        ((0, 0, 2), (1, 1, 2), "the result"),
        ((0, 0, 2), (2, 1, 3), "A"),
        ((0, 0, 2), (1, 2, 3), "B"),
    ):
        for both in ((one, other), (other, one)):
            with pytest.raises(ArgumentError, match=f"memory that {what} of the other"):
                run(*both)
