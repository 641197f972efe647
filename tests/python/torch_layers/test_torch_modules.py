"""npu.torch.Linear, npu.torch.offload: which layers of a model change and which stay, that results
and gradients are those of the layers before within bfloat16's rounding, that nothing else of a
model changes and all of it comes back, copies and pickles, errors.
"""

from __future__ import annotations

import copy
import pickle

import pytest
from compare import assert_matmul_close

torch = pytest.importorskip("torch")

import npu.torch  # noqa: E402
from npu.errors import ArgumentError, DeviceError  # noqa: E402

nn = torch.nn


class Named(nn.Linear):
    """Somebody's own layer."""


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.ModuleDict(
        {
            "up": nn.Linear(128, 256),
            "down": nn.Linear(256, 128, bias=False),
            "small": nn.Linear(8, 8),
            "own": Named(128, 256),
            "exact": nn.Linear(128, 256, dtype=torch.float64),
            "norm": nn.LayerNorm(128),
        }
    )


def names(changes: list[npu.torch.Change]) -> list[str]:
    return [change.name for change in changes]


def test_linear_is_torchs_with_products_on_the_device() -> None:
    torch.manual_seed(1)
    mine = npu.torch.Linear(60, 70, npu_device="emu:npu1")
    torch.manual_seed(1)
    plain = nn.Linear(60, 70)
    assert mine.state_dict().keys() == plain.state_dict().keys()
    assert torch.equal(mine.weight, plain.weight) and torch.equal(mine.bias, plain.bias)
    x = torch.randn(5, 60)
    with torch.no_grad():
        mine.bias.zero_()
        assert_matmul_close(mine(x).numpy(), x.numpy(), mine.weight.T.numpy())


def test_offload_reports_what_it_changed_and_why_others_stay() -> None:
    report = npu.torch.offload(model())
    assert names(report.changed) == ["up", "down"]
    assert {one.name: one.reason for one in report.kept} == {
        "small": "fewer than 16,384 weights",
        "own": "Named is another class",
        "exact": "its weight is torch.float64",
    }
    text = str(report)
    assert "2 layers with 65,536 weights run on the NPU" in text and "3 stay on the host" in text
    assert "up  Linear 256 x 128" in text and "own  Linear 256 x 128: Named is another" in text


def test_a_layer_without_a_size_stays() -> None:
    report = npu.torch.offload(nn.Sequential(nn.LazyLinear(256)))
    assert [one.reason for one in report.kept] == ["its size is not known before the first batch"]
    assert "1 stay on the host" in str(report)


def test_layers_of_an_encoder_are_offloaded_without_its_fast_path() -> None:
    """docs/torch.md: in evaluation torch's encoder layer passes its linear layers by."""
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True).eval()
    npu.torch.offload(layer, device="emu:npu1")
    before, enabled = npu.stats(), torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        with torch.no_grad():
            layer(torch.ones(1, 4, 128))
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
    assert (npu.stats() - before).submissions == 2


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        ("up", ["up"]),
        (["d*"], ["down"]),
        ((), []),
        (lambda name, module: module.bias is None, ["down"]),
    ],
)
def test_include_chooses_layers(include, expected) -> None:
    report = npu.torch.offload(model(), include=include)
    assert names(report.changed) == expected
    assert all(one.reason == "not included" for one in report.kept if one.name in ("up", "down"))


def test_min_size_counts_weights() -> None:
    assert names(npu.torch.offload(model(), min_size=64).changed) == ["up", "down", "small"]
    assert not npu.torch.offload(model(), min_size=1 << 20).changed


def test_layers_stay_the_objects_that_they_are_and_come_back() -> None:
    """Hooks, parameters, names and an optimiser's references are not touched."""
    whole = model()
    layer, parameters = whole["up"], list(whole.parameters())
    seen = []
    layer.register_forward_hook(lambda module, args, output: seen.append(output))
    before = {name: dict(vars(one)) for name, one in whole.named_modules()}
    report = npu.torch.offload(whole, device="emu:npu2", bf16="native")
    assert whole["up"] is layer and isinstance(layer, nn.Linear)
    assert all(a is b for a, b in zip(whole.parameters(), parameters, strict=True))
    x = torch.randn(4, 128)
    layer(x)
    assert len(seen) == 1 and "npu_linear" in seen[0].grad_fn.name()
    report.restore()
    assert type(layer) is nn.Linear and type(whole["down"]) is nn.Linear
    assert {name: dict(vars(one)) for name, one in whole.named_modules()} == before
    assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
    report.restore()  # nothing is left to do


def test_offloading_twice_changes_nothing_and_restores_what_was_first() -> None:
    whole = model()
    first = npu.torch.offload(whole)
    again = npu.torch.offload(whole)
    assert not again.changed
    assert {one.reason for one in again.kept if one.name == "up"} == {"offloaded before"}
    again.restore()
    assert type(whole["up"]) is npu.torch.Linear
    first.restore()
    assert type(whole["up"]) is nn.Linear


def test_replaced_and_computed_layers_stay() -> None:
    whole = model()
    whole["up"].forward = lambda x: x
    nn.utils.parametrizations.weight_norm(whole["down"])
    whole["older"] = nn.utils.weight_norm(nn.Linear(128, 128))
    reasons = {one.name: one.reason for one in npu.torch.offload(whole).kept}
    assert reasons["up"] == "its forward was replaced"
    assert reasons["down"] == "ParametrizedLinear is another class"
    assert reasons["older"] == "its weight is computed"


def test_copies_and_pickles_are_offloaded_too() -> None:
    layer = nn.Sequential(nn.Linear(128, 128))
    npu.torch.offload(layer, device="emu:npu1")
    x = torch.randn(3, 128)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(other[0]) is npu.torch.Linear
        assert torch.equal(other(x), layer(x))


def test_conv1d_of_transformers() -> None:
    """(K, N) weights: results and gradients within the bound, class and back, pickled."""
    kind = pytest.importorskip("transformers.pytorch_utils").Conv1D
    torch.manual_seed(1)
    layer = nn.Sequential(kind(96, 192))  # 192 -> 96
    report = npu.torch.offload(layer, device="emu:npu1")
    assert [(one.kind, one.shape) for one in report.changed] == [("Conv1D", (192, 96))]
    assert isinstance(layer[0], kind) and type(layer[0]) is not kind
    x = torch.randn(2, 7, 192, requires_grad=True)
    with torch.no_grad():
        layer[0].weight.normal_()
    y = layer(x)
    gradient = torch.randn(y.shape)
    y.backward(gradient)
    weight, flat, back = layer[0].weight, x.detach().reshape(-1, 192), gradient.reshape(-1, 96)
    assert_matmul_close(y.detach().reshape(-1, 96).numpy(), flat.numpy(), weight.detach().numpy())
    assert_matmul_close(x.grad.reshape(-1, 192).numpy(), back.numpy(), weight.detach().T.numpy())
    assert_matmul_close(weight.grad.numpy(), flat.T.numpy(), back.numpy())
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), y)
    report.restore()
    assert type(layer[0]) is kind


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: npu.torch.offload([1]), ArgumentError, "model is list"),
        (lambda: npu.torch.offload(model(), min_size=-1), ArgumentError, "min_size is -1"),
        (lambda: npu.torch.offload(model(), min_size=True), ArgumentError, "min_size is True"),
        (lambda: npu.torch.offload(model(), include=[3]), ArgumentError, "include is"),
        (lambda: npu.torch.offload(model(), include=3), ArgumentError, "include is 3"),
        (lambda: npu.torch.offload(model(), device="npu"), DeviceError, '"npu"'),
        (lambda: npu.torch.offload(model(), accumulate=1), ArgumentError, "accumulate is 1"),
        (lambda: npu.torch.offload(model(), bf16="fp8"), DeviceError, "fp8"),
        (lambda: npu.torch.Linear(4, 4, device="cuda"), DeviceError, "npu_device= chooses"),
        (lambda: npu.torch.Linear(4, 4, device="emu:npu1"), DeviceError, "npu_device= chooses"),
        (lambda: npu.torch.Linear(4, 4, bf16="fp8"), DeviceError, "fp8"),
    ],
)
def test_errors_say_what_was_asked_and_found(call, error, words) -> None:
    with pytest.raises(error, match=words):
        call()
