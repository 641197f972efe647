"""npu.torch.matmul, npu.torch.linear: results and gradients against float64 within the bounds of
their arithmetic, over random shapes, types and layouts; memory that is shared; weights that are
packed once and never stale; derivatives that are refused; errors.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from compare import FLOAT32_UNIT, OUTPUT_UNIT, assert_matmul_close
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import npu.torch  # noqa: E402
from npu.errors import ArgumentError, DeviceError, DtypeError, ShapeError  # noqa: E402
from npu.torch import packed_weights, products  # noqa: E402
from npu.torch.functions import checked_choices, layer  # noqa: E402
from npu.torch.tensors import array_of  # noqa: E402

TYPES = (torch.float32, torch.bfloat16, torch.float16)
MODES = (("emu:npu1", "native"), ("emu:npu2", "native"), ("emu:npu2", "bfp16"))
SIDE = st.integers(1, 90)


def values(shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def array(tensor):
    """What the device is given: float32 of the tensor's values, which its rounding then changes."""
    return tensor.detach().float().numpy()


def result(tensor):
    return array_of(tensor)


def strided(tensor, layout):
    """The same values in other memory: a transposed view, or every second of a larger one."""
    if layout == "transposed":
        return tensor.mT.contiguous().mT
    if layout == "spread":
        larger = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)
        larger[..., ::2] = tensor
        return larger[..., ::2]
    return tensor


layouts = st.sampled_from(["rows", "transposed", "spread"])


@settings(max_examples=25, deadline=None)
@given(
    m=SIDE, k=SIDE, n=SIDE, dtype=st.sampled_from(TYPES), mode=st.sampled_from(MODES),
    of_a=layouts, of_b=layouts,
)  # fmt: skip
def test_matmul_and_its_gradients(m, k, n, dtype, mode, of_a, of_b) -> None:
    device, bf16 = mode
    a, b = values((m, k), dtype, 1), values((k, n), dtype, 2)
    left, right = (strided(x, o).requires_grad_() for x, o in ((a, of_a), (b, of_b)))
    c = npu.torch.matmul(left, right, bf16=bf16, device=device)
    gradient = values((m, n), dtype, 3)
    of_left, of_right = torch.autograd.grad(c, (left, right), gradient)
    assert c.dtype == of_left.dtype == of_right.dtype == dtype
    assert_matmul_close(result(c), array(a), array(b), bf16=bf16)
    assert_matmul_close(result(of_left), array(gradient), array(b).T, bf16=bf16)
    assert_matmul_close(result(of_right), array(a).T, array(gradient), bf16=bf16)


@pytest.mark.parametrize("frozen", ["x", "weight"])
@pytest.mark.parametrize("size", [(40, 48, 56), (256, 320, 272)], ids=str)
def test_gradients_that_nobody_wants_are_not_made(
    frozen: str, size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, k, n = size
    x, weight = values((rows, k), seed=1), values((n, k), seed=2)
    wanted = weight if frozen == "x" else x
    wanted.requires_grad_()
    y = npu.torch.linear(x, weight, device="emu:npu1")
    made, empty = [], torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: made.append(empty(*a, **k)) or made[-1])
    before = npu.stats()
    (found,) = torch.autograd.grad(y, wanted, values((rows, n), seed=3))
    assert (npu.stats() - before).submissions == 1
    assert not any(one.shape == (weight if frozen == "weight" else x).shape for one in made)
    assert found.shape == wanted.shape


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.integers(1, 9), max_size=2), k=SIDE, n=SIDE, dtype=st.sampled_from(TYPES),
    mode=st.sampled_from(MODES), biased=st.booleans(), layout=layouts,
)  # fmt: skip
def test_linear_and_its_gradients(rows, k, n, dtype, mode, biased, layout) -> None:
    """Any number of leading dimensions, none as well; the bias is added before the result is
    rounded, its gradient is a sum in float32."""
    device, bf16 = mode
    x = values((*rows, k), dtype, 1).requires_grad_()
    weight = strided(values((n, k), dtype, 2), layout).requires_grad_()
    bias = values((n,), dtype, 3).requires_grad_() if biased else None
    y = npu.torch.linear(x, weight, bias, bf16=bf16, device=device)
    assert y.shape == (*rows, n) and y.dtype == dtype
    gradient = values(y.shape, dtype, 4)
    inputs = (x, weight, bias) if biased else (x, weight)
    of_x, of_weight, *of_bias = torch.autograd.grad(y, inputs, gradient)
    flat, back = x.reshape(-1, k), gradient.reshape(-1, n)
    assert of_x.shape == x.shape and of_weight.shape == weight.shape
    assert_matmul_close(result(of_x.reshape(-1, k)), array(back), array(weight), bf16=bf16)
    assert_matmul_close(result(of_weight), array(back).T, array(flat), bf16=bf16)
    if not biased:
        assert_matmul_close(result(y.reshape(-1, n)), array(flat), array(weight).T, bf16=bf16)
        return
    # The bias as one more term of each sum, exact on the device where it is one of bfloat16.
    plain = npu.torch.linear(flat, weight, out_dtype=torch.float32, bf16=bf16, device=device)
    exact = plain.double() + bias.double()
    unit = OUTPUT_UNIT[str(dtype).removeprefix("torch.")]
    bound = (unit + FLOAT32_UNIT) * exact.abs() + (2.0**-25 if dtype is torch.float16 else 0)
    assert ((y.reshape(-1, n).double() - exact).abs() <= bound).all()
    total, most = back.double().sum(0), back.double().abs().sum(0)
    bound = unit * total.abs() + (len(back) + 1) * FLOAT32_UNIT * most + 2.0**-25
    assert ((of_bias[0].double() - total).abs() <= bound).all()


@pytest.mark.parametrize("input_first", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    ("rows", "k", "n"), [((256,), 768, 512), ((2, 150), 270, 330), ((512,), 256, 257)]
)
def test_layers_that_share_a_configuration(rows, k, n, dtype, input_first) -> None:
    """From 256 on, on npu1, whatever memtiles keep: in bfloat16 results are rounded before the bias
    is added, and then again."""
    x, dy = values((*rows, k), dtype, 1).requires_grad_(), values((*rows, n), dtype, 4)
    weight = values((k, n) if input_first else (n, k), dtype, 2).requires_grad_()
    bias = values((n,), dtype, 3).requires_grad_()
    choices = checked_choices("test", None, "wide", "emu:npu1")
    assert products.is_layer(x, weight, (choices.bf16, choices.accumulate, choices.device))
    y, plain = (layer(x, weight, one, input_first, choices) for one in (bias, None))
    of_x, of_weight = torch.autograd.grad(y, (x, weight), dy)
    flat, back = array(x.reshape(-1, k)), array(dy.reshape(-1, n))
    right = array(weight) if input_first else array(weight).T
    assert_matmul_close(result(plain.reshape(-1, n)), flat, right)
    assert_matmul_close(result(of_x.reshape(-1, k)), back, right.T)
    of_right = result(of_weight) if input_first else result(of_weight).T
    assert_matmul_close(of_right, flat.T, back)
    unit = OUTPUT_UNIT[str(dtype).removeprefix("torch.")]
    exact = plain.double() + bias.double()
    if dtype is torch.bfloat16:
        bound = (unit + FLOAT32_UNIT) * exact.abs()
    else:  # the sum before it was rounded is within `unit` of `plain`
        bound = 2 * unit * (plain.double().abs() + exact.abs()) + FLOAT32_UNIT * (exact.abs() + 1)
    assert ((y.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize(
    ("a", "b"), [((3, 8, 20), (20, 16)), ((3, 8, 20), (3, 20, 16)), ((8, 20), (2, 3, 20, 16)),
                 ((3, 1, 8, 20), (2, 20, 16)), ((0, 20), (20, 16)), ((8, 0), (0, 16))],
)  # fmt: skip
def test_batches_broadcast_as_in_torch(a, b) -> None:
    """Values of small whole numbers are exact, so that results are torch's."""
    left = torch.randint(-4, 5, a).float().requires_grad_()
    right = torch.randint(-4, 5, b).float().requires_grad_()
    c = npu.torch.matmul(left, right, bf16="native")
    expected = torch.matmul(left, right)
    assert torch.equal(c, expected)
    gradient = torch.randint(-4, 5, c.shape).float()
    mine = torch.autograd.grad(c, (left, right), gradient)
    for found, other in zip(
        mine, torch.autograd.grad(expected, (left, right), gradient), strict=True
    ):
        assert torch.equal(found, other)


def test_types_of_results() -> None:
    a, b = values((4, 8)), values((8, 6))
    assert npu.torch.matmul(a, b.half()).dtype is torch.float32
    assert npu.torch.matmul(a.half(), b.half()).dtype is torch.float16
    assert npu.torch.matmul(a, b, out_dtype=torch.bfloat16).dtype is torch.bfloat16
    mixed = npu.torch.linear(a.bfloat16().requires_grad_(), b.T.contiguous().requires_grad_())
    assert mixed.dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert npu.torch.matmul(a, b).dtype is torch.bfloat16
        assert npu.torch.linear(a, b.T, out_dtype=torch.float32).dtype is torch.float32


def test_sums_narrowed_and_wide_differ_only_as_matmul_says() -> None:
    """accumulate= and bf16= reach the device: the results are npu.matmul's for the same choices."""
    a, b = values((64, 700), torch.bfloat16, 1), values((700, 64), torch.bfloat16, 2)
    seen = []
    for accumulate in ("wide", "narrow"):
        for bf16 in ("native", "bfp16"):
            choices = {"accumulate": accumulate, "bf16": bf16, "device": "emu:npu2"}
            found = npu.torch.matmul(a, b, **choices)
            assert (result(found) == npu.matmul(array_of(a), array_of(b), **choices)).all()
            seen.append(found)
    assert all(not torch.equal(x, y) for i, x in enumerate(seen) for y in seen[:i])


def test_tensors_are_shared() -> None:
    """No copy on the way to the device: the arrays are the tensors' memory, with their strides."""
    for dtype in TYPES:
        tensor = values((6, 10), dtype).requires_grad_()
        for view in (tensor, tensor.T, tensor[::2, 3:]):
            found = array_of(view)
            assert found.ctypes.data == view.data_ptr() and found.shape == tuple(view.shape)
            assert found.strides == tuple(s * view.element_size() for s in view.stride())
    assert array_of(values((2, 2), torch.bfloat16)).dtype == np.dtype(ml_dtypes.bfloat16)


def copied(call) -> int:
    before = npu.stats()
    call()
    return (npu.stats() - before).host_copy_bytes


def test_arrays_of_other_packages_are_operands_of_npu_matmul() -> None:
    class Exported:  # has nothing but DLPack's protocol
        def __init__(self, tensor):
            self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__

    a = values((24, 40))
    expected = npu.matmul(a.numpy(), a.numpy().T)
    for one in (a, Exported(a)):
        np.testing.assert_array_equal(npu.matmul(one, a.T), expected)
    for one in (a.bfloat16(), a.clone().requires_grad_()):
        with pytest.raises(ArgumentError, match=r"a cannot become.*npu\.torch has functions"):
            npu.matmul(one, a.T)


def test_a_weight_in_bfloat16_is_read_where_it_lies() -> None:
    weight = values((768, 512), torch.bfloat16, 1).requires_grad_()
    x = values((256, 512), torch.bfloat16, 2)
    assert copied(lambda: npu.torch.linear(x, weight, device="emu:npu1")) < x.nbytes


def test_a_weight_in_float32_is_packed_once_per_change() -> None:
    """Forward and backward read a layout each; an optimiser's step packs both anew, and so do
    writes that count for no version."""
    weight = values((96, 128), seed=1).requires_grad_()
    x = values((8, 128), seed=2).requires_grad_()
    step = torch.optim.SGD([weight], 0.1)

    def both() -> torch.Tensor:
        y = npu.torch.linear(x, weight, device="emu:npu1")
        y.sum().backward()
        return y

    first, again = copied(both), copied(both)
    assert first - again >= 2 * 2 * weight.numel()
    assert copied(both) == again
    changes = [
        step.step, lambda: weight.data.mul_(2), lambda: weight.detach().add_(1),
        lambda: setattr(weight, "data", values((96, 128), seed=3)),
    ]  # fmt: skip
    for change in changes:
        change()
        assert copied(both) == first
        assert_matmul_close(result(both()), array(x), array(weight).T)


@pytest.mark.parametrize("choice", ["fused", "foreach"])
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_no_optimiser_leaves_packed_weights_stale(kind, choice) -> None:
    """A step that changes one column, which a sample of values would miss: only it has a
    gradient. Fused optimisers move no version counter themselves."""
    weight = torch.zeros(96, 300, requires_grad=True)
    x = torch.zeros(1, 300)
    x[0, 11] = 1
    step = getattr(torch.optim, kind)([weight], 0.5, **{choice: True})
    for _ in range(3):
        y = npu.torch.linear(x, weight, device="emu:npu1")
        assert_matmul_close(result(y), array(x), array(weight).T)
        y.sum().backward()
        step.step()
    assert weight[:, 11].abs().min() > 1


@pytest.mark.slow
def test_a_compiled_step_leaves_no_packed_weight_stale() -> None:
    weight, x = torch.zeros(96, 300, requires_grad=True), torch.zeros(1, 300)
    x[0, 11] = 1
    step = torch.compile(torch.optim.SGD([weight], 0.5, fused=True).step)
    for _ in range(3):
        y = npu.torch.linear(x, weight, device="emu:npu1")
        assert_matmul_close(result(y), array(x), array(weight).T)
        y.sum().backward()
        step()
    assert weight[:, 11].abs().min() > 1


def test_a_step_leaves_packed_copies_of_frozen_weights() -> None:
    """Of parameters that the optimiser has but does not change."""
    frozen, weight = values((64, 64), seed=1), values((64, 64), seed=2).requires_grad_()
    x = values((4, 64), seed=3)
    step = torch.optim.SGD([frozen, weight], 0.1, fused=True)

    def use() -> None:
        npu.torch.linear(npu.torch.linear(x, frozen), weight).sum().backward()

    first, again = copied(use), copied(use)
    step.step()
    assert again < copied(use) < first


def test_packed_weights_end_with_their_storage() -> None:
    def use() -> None:
        npu.torch.linear(values((4, 64)), values((64, 64)), device="emu:npu1")

    use()
    use()
    known = [entry.storage.expired() for entry in packed_weights._entries.values()]
    assert sum(known) <= 1  # the last one, until another is packed


def test_packed_pieces_of_one_weight_are_bounded() -> None:
    """The last ones stay."""
    weight, x = values((64 * 40, 64), seed=1), values((4, 64), seed=2)

    def use(piece: int) -> None:
        npu.torch.linear(x, weight[64 * piece : 64 * piece + 64], device="emu:npu1")

    for piece in range(40):
        use(piece)
    storage = packed_weights.StorageWeakRef(weight.untyped_storage()).cdata
    assert sum(key[0] == storage for key in packed_weights._entries) == packed_weights._PIECES
    assert copied(lambda: use(39)) < copied(lambda: use(0))


def test_under_inference_mode_nothing_is_kept() -> None:
    with torch.inference_mode():
        weight, x = values((64, 64), seed=1), values((4, 64), seed=2)
        npu.torch.linear(x, weight, bf16="native")
        weight.mul_(2)
        found = npu.torch.linear(x, weight, bf16="native")
    assert_matmul_close(result(found), array(x), array(weight).T)


def test_only_wanted_gradients_are_computed() -> None:
    weight, x = values((64, 64), seed=1).requires_grad_(), values((4, 64), seed=2)
    y = npu.torch.linear(x, weight)
    before = npu.stats()
    y.sum().backward()
    assert (npu.stats() - before).submissions == 1 and x.grad is None
    with torch.no_grad():
        assert not npu.torch.linear(x, weight).requires_grad


def test_gradients_run_on_the_device_of_the_product() -> None:
    """Also when another one is current by then."""
    weight, x = values((64, 64), seed=1).requires_grad_(), values((4, 64), seed=2)
    with npu.device("emu:npu1"):
        y = npu.torch.linear(x, weight)
    gradient = values((4, 64), seed=3)
    with npu.device("emu:npu2"):
        (found,) = torch.autograd.grad(y, weight, gradient)
    assert_matmul_close(result(found), array(gradient).T, array(x), bf16="native")


@pytest.mark.parametrize("call", [npu.torch.matmul, npu.torch.linear])
def test_gradients_of_gradients_are_refused(call) -> None:
    a, b = values((8, 8), seed=1).requires_grad_(), values((8, 8), seed=2).requires_grad_()
    y = call(a, b)
    (first,) = torch.autograd.grad(y.square().sum(), a, create_graph=True)
    with pytest.raises(ArgumentError, match=r"a gradient of its gradient .*create_graph=True"):
        first.sum().backward()


def dual(a: torch.Tensor) -> torch.Tensor:
    with torch.autograd.forward_ad.dual_level():
        return npu.torch.linear(torch.autograd.forward_ad.make_dual(a, a), ONE)


@pytest.mark.parametrize(
    "call",
    [
        dual, lambda a: torch.func.jvp(lambda b: npu.torch.matmul(ONE, b), (a,), (a,)),
        torch.func.grad(lambda a: npu.torch.matmul(a, ONE).sum()),
        torch.func.jacrev(lambda a: npu.torch.linear(ONE, a)),
    ],
)  # fmt: skip
def test_other_derivatives_are_refused(call) -> None:
    """Forward mode would give tangents of zero."""
    with pytest.raises(ArgumentError, match=r"use torch\.autograd or \.backward\(\)"):
        call(torch.ones(4, 4))
    with torch.autograd.forward_ad.dual_level():
        assert npu.torch.matmul(ONE, ONE).shape == (4, 4)  # nothing has a tangent


ONE = torch.ones(4, 4)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: npu.torch.matmul(np.ones((4, 4)), ONE), ArgumentError, "a is ndarray"),
        (lambda: npu.torch.matmul(ONE.to("meta"), ONE), DeviceError, "a is on meta"),
        (lambda: npu.torch.matmul(ONE.double(), ONE), DtypeError, "a is torch.float64"),
        (lambda: npu.torch.matmul(ONE, ONE.to_sparse()), ArgumentError, "layout torch.sparse_coo"),
        (lambda: npu.torch.matmul(torch.nested.nested_tensor([ONE]), ONE), ArgumentError,
         "a is a nested tensor"),
        (lambda: npu.torch.matmul(ONE[0], ONE), ShapeError, r"a has shape \(4,\)"),
        (lambda: npu.torch.matmul(ONE[:, :3], ONE), ShapeError, r"a is \(4, 3\) and b is"),
        (lambda: npu.torch.matmul(ONE.expand(2, 4, 4), ONE.expand(3, 4, 4)), ShapeError,
         r"\(2,\) and \(3,\) do not broadcast"),
        (lambda: npu.torch.matmul(ONE, ONE, out_dtype=torch.int8), DtypeError, "out_dtype"),
        (lambda: npu.torch.matmul(ONE, ONE, accumulate="deep"), ArgumentError, "accumulate"),
        (lambda: npu.torch.matmul(ONE, ONE, bf16="bfp16", device="emu:npu1"), DeviceError, "bf16"),
        (lambda: npu.torch.matmul(ONE, ONE, device="emu:npu9"), DeviceError, "emu:npu9"),
        (lambda: npu.torch.linear(ONE[:, :3], ONE), ShapeError, r"\(..., K\) and \(N, K\)"),
        (lambda: npu.torch.linear(ONE, ONE[0]), ShapeError, r"weight is \(4,\)"),
        (lambda: npu.torch.linear(ONE, ONE, ONE), ShapeError, r"bias is \(4, 4\)"),
        (lambda: npu.torch.linear(ONE, ONE, [0] * 4), ArgumentError, "bias is list"),
    ],
)  # fmt: skip
def test_errors_say_what_was_asked_and_found(call, error, words) -> None:
    with pytest.raises(error, match=words) as found:
        call()
    assert str(found.value).startswith("[torch." if "emu:npu9" not in words else "[")
