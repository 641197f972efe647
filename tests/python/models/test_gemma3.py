"""The Gemma 3 forward pass against Hugging Face transformers, and against itself in pieces.

Against the reference in float32 (same bfloat16 weights): with exact projections the logits agree to
float32 accuracy, but for the bfloat16 keys and values of the cache; with the device's bfloat16
projections to the bound derived in compare.py, and to about what rounding the same numbers does to
the reference itself. Mutations of the classic mistakes
must break the comparison. Prefill, chunks and single tokens must agree.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import compare
import numpy as np
import pytest
from exact_projection import ExactCache, ExactProjection
from gemma3_files import Shape, Vocabulary, random_weights, small_vocabulary, write_model

from npu.errors import ArgumentError
from npu.formats.gguf_file import GgufFile
from npu.models.gemma3 import model as model_module
from npu.models.gemma3.config import Config, read_config
from npu.models.gemma3.model import MOST_STEPS, Model
from npu.models.gemma3.weights import Projection
from npu.models.kv_cache import cache as kv_cache
from npu.ops import host

SHAPES = {
    "two KV heads": Shape(),
    "one KV head": Shape(kv_heads=1),
    "linear rope scaling": Shape(rope_factor=8.0),
    "odd sizes, head_dim > width / heads": Shape(
        width=72, heads=3, kv_heads=3, head_dim=40, ffn_width=100, window=7
    ),
}
TOKENS = 64  # several windows long


def tokens_for(shape: Shape) -> list[int]:
    size = len(small_vocabulary().pieces)
    return np.random.default_rng(shape.width + shape.kv_heads).integers(0, size, TOKENS).tolist()


@dataclasses.dataclass
class Case:
    """One model both here and there, with the reference's logits of one prefill."""

    shape: Shape
    model: Model
    tokens: list[int]
    expected: np.ndarray  # float32
    rounded: np.ndarray  # with projection inputs, keys and values rounded to bfloat16


def make_case(path: Path, shape: Shape) -> Case:
    reference = pytest.importorskip("gemma3_reference", exc_type=ImportError)
    weights = random_weights(shape, len(small_vocabulary().pieces))
    file = write_model(path / "m.gguf", shape, weights=weights)
    hf, tokens = reference.hf_model(shape, weights), tokens_for(shape)
    with reference.rounded(hf):
        rounded = reference.hf_logits(hf, tokens)
    return Case(shape, Model(GgufFile(file)), tokens, reference.hf_logits(hf, tokens), rounded)


@pytest.fixture(scope="module", params=SHAPES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp("model"), SHAPES[request.param])


@pytest.fixture(scope="module")
def plain_case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp("model"), Shape())


def logits_of(case: Case, *, chunk: int = TOKENS) -> np.ndarray:
    cache = case.model.new_cache()
    parts = [
        case.model.forward(case.tokens[start : start + chunk], cache, all_logits=True)
        for start in range(0, TOKENS, chunk)
    ]
    return np.concatenate(parts)


@pytest.fixture(autouse=True)
def between_host_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts as models of other sizes and native products on npu2 have them."""
    monkeypatch.setattr(model_module.Prefill, "of", lambda *_: None)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Projections in float32, on the host (the weights are bfloat16 numbers either way), those of
    single tokens too."""
    monkeypatch.setattr(model_module, "Projection", ExactProjection)
    monkeypatch.setattr(model_module.Decoder, "of", lambda *_: None)


@pytest.fixture
def exact_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values in float32."""
    ExactCache().install(monkeypatch)


def reloaded(case: Case) -> Case:
    """The case with its weights loaded again, under the patches of the moment."""
    return dataclasses.replace(case, model=Model(case.model.source))


@pytest.mark.usefixtures("exact", "exact_cache")
@pytest.mark.parametrize("chunk", [TOKENS, 11, 1])
def test_float32_gives_the_references_logits(case: Case, chunk: int) -> None:
    actual = logits_of(reloaded(case), chunk=chunk)
    compare.assert_logits(actual, case.expected, compare.FLOAT32_LOGITS)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("chunk", [TOKENS, 11, 1])
def test_the_cache_only_rounds_keys_and_values(case: Case, chunk: int) -> None:
    actual, layers = logits_of(reloaded(case), chunk=chunk), case.shape.layers
    bound = compare.bf16_logits_max(layers, operands=0)
    compare.assert_logits(actual, case.expected, bound)
    error = compare.rms_error(actual, case.expected)
    assert error <= compare.bf16_logits_rms(layers, operands=0)


@pytest.mark.parametrize("chunk", [TOKENS, 11])
def test_device_projections_stay_within_the_bfloat16_bound(case: Case, chunk: int) -> None:
    actual = logits_of(case, chunk=chunk)
    layers = case.shape.layers
    compare.assert_logits(actual, case.expected, compare.bf16_logits_max(layers))
    error = compare.rms_error(actual, case.expected)
    assert error <= compare.bf16_logits_rms(layers)
    # Calibration: the reference itself, its projection inputs rounded, is as far away.
    rounding = compare.rms_error(case.rounded, case.expected)
    assert rounding / 1.25 < error < rounding * 1.25


def test_one_layer_rounds_exactly_where_the_reference_rounds(tmp_path: Path) -> None:
    """In one layer almost no activation is so near a rounding boundary that the order of a float32
    sum decides it, so nearly all rows agree to float32; one that does moves by a bfloat16 step."""
    case = make_case(tmp_path, Shape(layers=1))
    rows = np.abs(logits_of(case) - case.rounded).max(axis=-1) / case.rounded.std()
    assert np.mean(rows < compare.FLOAT32_LOGITS) >= 0.9
    assert rows.max() < compare.bf16_logits_max(1)


def test_device_projections_token_by_token(case: Case) -> None:
    """Single tokens after a chunked prefill; every position that way is in the float32 test."""
    cache, start = case.model.new_cache(), TOKENS - 4
    rows = [case.model.prefill(case.tokens[:start], cache, chunk=32)]
    rows += [case.model.forward([token], cache) for token in case.tokens[start:]]
    assert cache.length == TOKENS
    error = np.abs(np.concatenate(rows) - case.expected[start - 1 :]).max()
    # They round more (test_decoder.py), except where the array does not run the sizes.
    bound = compare.decoder_logits_max if case.model.decodes_on_array else compare.bf16_logits_max
    assert error <= bound(case.shape.layers) * case.expected.std()


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("chunk", [50, 1])
def test_a_prompt_that_outgrows_the_sliding_caches(
    tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 tokens: sliding layers give pages back; the logits stay the reference's. The final
    soft-capping, which no published Gemma 3 uses, is on."""
    reference = pytest.importorskip("gemma3_reference", exc_type=ImportError)
    monkeypatch.setattr(kv_cache, "SLIDING_HISTORY", 0)
    shape, cap = Shape(context=1024), 2.0
    size = len(small_vocabulary().pieces)
    weights = random_weights(shape, size)
    keys: dict[str, Any] = {"gemma3.final_logit_softcapping": cap}
    model = Model(GgufFile(write_model(tmp_path / "m.gguf", shape, weights=weights, keys=keys)))
    hf = reference.hf_model(shape, weights)
    tokens = np.random.default_rng(3).integers(0, size, 600).tolist()
    plain = reference.hf_logits(hf, tokens)
    hf.config.final_logit_softcapping = cap
    expected = reference.hf_logits(hf, tokens)
    assert np.abs(expected).max() <= cap < np.abs(plain).max()
    cache = model.new_cache()
    parts = [
        model.forward(tokens[start : start + chunk], cache, all_logits=True)
        for start in range(0, len(tokens), chunk)
    ]
    assert cache.start(0) == 512
    bound = compare.bf16_logits_max(shape.layers, operands=0)
    compare.assert_logits(np.concatenate(parts), expected, bound)


# --- the classic mistakes must be seen ------------------------------------------------------------


def shifted_window(config: Config, by: int) -> Config:
    windows = tuple(window and window + by for window in config.windows)
    return dataclasses.replace(config, windows=windows)


MUTATIONS: dict[str, Any] = {
    "window one longer": lambda c: shifted_window(c, 1),
    "window one shorter": lambda c: shifted_window(c, -1),
    "global rope base in sliding layers": lambda c: dataclasses.replace(c, rope_base_sliding=1e6),
    "sliding rope base in global layers": lambda c: dataclasses.replace(c, rope_base=1e4),
    "rope scaling": lambda c: dataclasses.replace(c, rope_factor=2.0),
    "global layer one early": lambda c: dataclasses.replace(
        c, windows=(*c.windows[1:], c.windows[0])
    ),
    "attention scale from width": lambda c: dataclasses.replace(
        c, attention_scale=(c.width / c.heads) ** -0.5
    ),
    "epsilon": lambda c: dataclasses.replace(c, eps=1e-2),
}


@pytest.mark.usefixtures("exact", "exact_cache")
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutated_configuration_is_seen(
    plain_case: Case, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(
        model_module, "read_config", lambda file: MUTATIONS[name](read_config(file))
    )
    assert mutation_error(plain_case) > compare.bf16_logits_max(plain_case.shape.layers)


OPERATIONS: dict[str, tuple[str, Any]] = {
    "norm weight without its 1": ("rms_norm", lambda x, w, eps: REAL["rms_norm"](x, w - 1, eps)),
    "norm weight plus another 1": ("rms_norm", lambda x, w, eps: REAL["rms_norm"](x, w + 1, eps)),
    "no embedding scale": ("embed", lambda rows, scale: rows),
    "interleaved rope pairs": (
        "rope",
        lambda x, table: REAL["rope"](
            np.concatenate([x[..., ::2], x[..., 1::2]], axis=-1), table
        ).reshape(*x.shape[:-1], 2, -1).swapaxes(-1, -2).reshape(x.shape),
    ),
    "rope positions that ignore the cache": (
        "rope_table",
        lambda start, count, *rest: REAL["rope_table"](0, count, *rest),
    ),
    "sigmoid GELU": ("geglu", lambda gate, up: gate / (1 + np.exp(-1.702 * gate)) * up),
    "gate and up exchanged": ("geglu", lambda gate, up: REAL["geglu"](up, gate)),
}  # fmt: skip
REAL = {name: getattr(host, name) for name, _ in OPERATIONS.values()}


@pytest.mark.usefixtures("exact", "exact_cache")
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_mutated_operation_is_seen(
    plain_case: Case, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    operation, mutated = OPERATIONS[name]
    monkeypatch.setattr(host, operation, mutated)
    # The two forms of GELU differ by 0.02 at most: only float32 projections tell them apart.
    bound = compare.bf16_logits_max(plain_case.shape.layers)
    bound = 100 * compare.FLOAT32_LOGITS if name == "sigmoid GELU" else bound
    assert mutation_error(plain_case) > bound


def test_truncating_instead_of_rounding_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, real = make_case(tmp_path, Shape(layers=1)), Projection.multiply

    def truncated(projection: Projection, x: np.ndarray) -> np.ndarray:
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        return real(projection, bits.view(np.float32))

    monkeypatch.setattr(Projection, "multiply", truncated)
    rows = np.abs(logits_of(case) - case.rounded).max(axis=-1) / case.rounded.std()
    assert np.mean(rows < compare.FLOAT32_LOGITS) < 0.1


def mutation_error(case: Case) -> float:
    with np.errstate(over="ignore"):
        return compare.max_error(logits_of(reloaded(case), chunk=11), case.expected)


# --- what needs no reference ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    shape = Shape(layers=6, context=48)
    return Model(GgufFile(write_model(tmp_path_factory.mktemp("plain") / "m.gguf", shape)))


def test_context_overflow_is_refused_and_changes_nothing(model: Model) -> None:
    cache = model.new_cache()
    with pytest.raises(ArgumentError, match=r"49 more tokens after 0 do not fit the context of 48"):
        model.prefill([5] * 49, cache)
    assert cache.length == 0
    model.prefill([5] * 48, cache)
    with pytest.raises(ArgumentError, match=r"1 more tokens after 48"):
        model.forward([5], cache)
    with pytest.raises(
        ArgumentError, match="a context of 49 was asked for, the model allows 1 to 48"
    ):
        model.new_cache(49)


def test_wrong_tokens_are_refused(model: Model) -> None:
    size = model.config.vocabulary
    for bad in ([], [-1], [size], [0.5], [[1]]):
        with pytest.raises(ArgumentError, match=r"\[gemma3\]"):
            model.forward(bad, model.new_cache())


def test_an_interrupted_pass_can_be_repeated(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = list(range(10, 40))
    expected = model.prefill(tokens, model.new_cache())
    assert len(tokens[3:]) > MOST_STEPS  # layer by layer
    cache, calls = model.new_cache(), 0
    model.prefill(tokens[:3], cache)
    real = Projection.multiply

    def failing(projection: Projection, x: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls == 7:
            raise KeyboardInterrupt
        return real(projection, x)

    monkeypatch.setattr(Projection, "multiply", failing)
    with pytest.raises(KeyboardInterrupt):
        model.prefill(tokens[3:], cache)
    actual = model.prefill(tokens[3:], cache)
    assert np.abs(actual - expected).max() < compare.bf16_logits_max(6) * expected.std()


def test_sliding_layers_forget_what_is_beyond_window_and_history(tmp_path: Path) -> None:
    shape = Shape(layers=6, context=2048, width=32, head_dim=8, ffn_width=32, window=16)
    model = Model(GgufFile(write_model(tmp_path / "m.gguf", shape)))
    cache = model.new_cache()
    for _ in range(60):
        model.forward([7] * 30, cache)
    # The next query, at 1800, sees 1785 and later; 1024 positions more are kept.
    assert cache.start(0) == (1785 - 1024) // 256 * 256
    assert cache.start(5) == 0
    assert cache.nbytes == (5 * 6 + 8) * cache.page_bytes


def test_attention_equals_a_plain_loop() -> None:
    """Blocks, windows and a cache that does not start at 0 against float64 loops."""
    random = np.random.default_rng(1)
    count, kv_heads, group, head_dim, start, key_start = 300, 2, 3, 4, 40, 9
    q = random.normal(size=(count, kv_heads * group, head_dim)).astype(np.float32)
    k, v = random.normal(size=(2, kv_heads, start + count - key_start, head_dim)).astype(np.float32)
    for window in (None, 1, 20):
        actual = host.attention(
            q, k, v, query_start=start, key_start=key_start, scale=0.5, window=window
        ).reshape(q.shape)
        for t in (0, 1, 100, 255, 256, 299):
            position = start + t
            oldest = key_start if window is None else max(key_start, position - window + 1)
            rows = slice(oldest - key_start, position + 1 - key_start)
            for head in range(kv_heads * group):
                scores = 0.5 * k[head // group, rows].astype(float) @ q[t, head]
                p = np.exp(scores - scores.max())
                expected = p / p.sum() @ v[head // group, rows]
                # Sums of up to 331 terms below 4 in size, in float32.
                np.testing.assert_allclose(actual[t, head], expected, atol=331 * 4 * 2.0**-24)


def config_from(path: Path, shape: Shape | None = None, **keys: object) -> Config:
    dotted = {f"gemma3.{name.replace('__', '.')}": value for name, value in keys.items()}
    weights = {"token_embd.weight": np.zeros((8, (shape or Shape()).width), np.float32)}
    # A count of tensors that allows any number of layers used here.
    weights |= {f"filler.{index}": np.zeros(1, np.float32) for index in range(70)}
    written = write_model(
        path / "c.gguf", shape, vocabulary=Vocabulary(), weights=weights, keys=dotted
    )
    return read_config(GgufFile(written))


def test_configuration_of_the_published_sizes(tmp_path: Path) -> None:
    """4B: linear factor 8, window 1024, every sixth layer global; 27B: scale from width / heads."""
    shape = Shape(layers=34, heads=8, kv_heads=4, head_dim=256, window=1024, rope_factor=8.0)
    config = config_from(tmp_path, shape)
    global_layers = [layer for layer, window in enumerate(config.windows) if window is None]
    assert global_layers == [5, 11, 17, 23, 29]
    assert config.windows[0] == 1024
    assert (config.rope_base, config.rope_base_sliding, config.rope_factor) == (1e6, 1e4, 8)
    assert config.attention_scale == 1 / 16
    large = config_from(tmp_path, Shape(layers=62, width=5376, heads=32, kv_heads=16, head_dim=128))
    assert large.attention_scale == pytest.approx((5376 / 32) ** -0.5)


def test_optional_keys(tmp_path: Path) -> None:
    config = config_from(tmp_path, attention__key_length=None, attention__value_length=None)
    assert config.head_dim == 96 // 4
    assert config_from(tmp_path, rope__freq_base_swa=5e3).rope_base_sliding == 5e3
    assert config_from(tmp_path, attention__sliding_window=None).windows == (None,) * 7
    pattern = [True, False] * 3 + [True]
    config = config_from(tmp_path, attention__sliding_window_pattern=pattern)
    assert config.windows == (16, None, 16, None, 16, None, 16)
    config = config_from(tmp_path, attention__sliding_window_pattern=2)
    assert config.windows == (16, None, 16, None, 16, None, 16)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"block_count": None}, r"gemma3\.block_count is missing"),
        ({"block_count": 10**6}, "block_count is 1000000, the file has 71 tensors"),
        ({"block_count": "x"}, "block_count is 'x', expected an integer"),
        ({"attention__head_count": 0}, "head_count is 0, expected"),
        ({"attention__head_count_kv": 3}, "4 attention heads are not a multiple of 3"),
        ({"attention__key_length": 33}, "head dimension 33 is odd"),
        ({"attention__value_length": 16}, "value_length differs"),
        ({"attention__layer_norm_rms_epsilon": -1.0}, "expected a positive number"),
        ({"rope__freq_base": float("nan")}, "expected a positive number"),
        ({"rope__scaling__type": "yarn"}, "rope scaling 'yarn' is not supported"),
        ({"rope__scaling__type": "linear"}, r"rope\.scaling\.factor is missing"),
        ({"attn_logit_softcapping": 50.0}, "soft-capping"),
        ({"embedding_length": 64}, r"token_embd.weight has shape \(8, 96\), expected"),
        ({"attention__sliding_window_pattern": [True]}, "each of the 7 layers"),
    ],
)
def test_configurations_that_are_refused(
    tmp_path: Path, keys: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        config_from(tmp_path, **keys)
    assert str(caught.value).startswith("[gguf] c.gguf: ")


def test_other_architectures_and_incomplete_models_are_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "llama.gguf", architecture="llama")
    with pytest.raises(ValueError, match="architecture is 'llama', only 'gemma3'"):
        Model(GgufFile(path))
    weights = random_weights(Shape(), len(small_vocabulary().pieces))
    incomplete = {name: w for name, w in weights.items() if name != "blk.3.ffn_up.weight"}
    path = write_model(tmp_path / "incomplete.gguf", weights=incomplete)
    with pytest.raises(ValueError, match=r"the tensor blk\.3\.ffn_up\.weight is missing"):
        Model(GgufFile(path))
    wrong = weights | {"blk.2.attn_k.weight": np.zeros((64, 97), np.float32)}
    path = write_model(tmp_path / "wrong.gguf", weights=wrong)
    with pytest.raises(ValueError, match=r"attn_k.weight has shape \(64, 97\), the model needs"):
        Model(GgufFile(path))


def test_quantised_files_and_an_untied_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in Q8_0 gives what its dequantised weights give; output.weight replaces the tie."""
    import gguf

    shape = Shape(layers=2)
    weights = random_weights(shape, len(small_vocabulary().pieces))
    weights["output.weight"] = np.roll(weights["token_embd.weight"], 1, axis=0)
    q8 = gguf.GGMLQuantizationType.Q8_0
    matrices = {name: q8 for name, w in weights.items() if w.ndim == 2}
    restored = {
        name: gguf.quants.dequantize(gguf.quants.quantize(w, q8), q8) if name in matrices else w
        for name, w in weights.items()
    }
    path = write_model(tmp_path / "q.gguf", shape, weights=weights, types=matrices)
    tokens = tokens_for(shape)
    reference = pytest.importorskip("gemma3_reference", exc_type=ImportError)
    layers = {name: w for name, w in restored.items() if name != "output.weight"}
    hf = reference.hf_model(shape, layers)
    head = reference.torch.from_numpy(restored["output.weight"])
    hf.lm_head.weight = reference.torch.nn.Parameter(head)
    expected = reference.hf_logits(hf, tokens)[-1:]
    with monkeypatch.context() as patch:
        patch.setattr(model_module, "Projection", ExactProjection)
        ExactCache().install(patch)
        model = Model(GgufFile(path))
        actual = model.forward(tokens, model.new_cache())
    compare.assert_logits(actual, expected, compare.FLOAT32_LOGITS)
    model = Model(GgufFile(path))
    actual = model.forward(tokens, model.new_cache())
    # Prefills multiply weights rounded to bfloat16: as much again as rounding their inputs.
    bound = compare.bf16_logits_max(shape.layers, operands=2)
    assert compare.max_error(actual, expected) <= bound
    del restored["output.weight"]
    tied = Model(GgufFile(write_model(tmp_path / "t.gguf", shape, weights=restored)))
    swapped = tied.forward(tokens, tied.new_cache())
    np.testing.assert_allclose(np.roll(swapped, 1), actual, atol=0.1 * actual.std())
    assert np.abs(swapped - actual).max() > actual.std()
