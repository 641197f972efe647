"""The demo model of examples/demo_model: its questions, its committed file, its accuracy.

Asserts that training never draws a question that measures accuracy, that every answer is right by
Python's own arithmetic, that the GGUF is a complete and small Gemma 3, and that transformers
running the file's weights answers as the README promises. Add a skill in questions.py and its
arithmetic in ``expected_number``.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

gguf = pytest.importorskip("gguf", reason="reads the file with the gguf package")
jinja2 = pytest.importorskip("jinja2", reason="renders the chat template")

DEMO = Path(__file__).parents[2] / "examples" / "demo_model"
MODEL = DEMO / "demo-gemma3.gguf"
sys.path.insert(0, str(DEMO))

import questions  # noqa: E402

PER_UNIT = {
    ("centimetre", "millimetre"): 10,
    ("metre", "centimetre"): 100,
    ("metre", "millimetre"): 1000,
    ("kilometre", "metre"): 1000,
    ("kilogram", "gram"): 1000,
    ("litre", "millilitre"): 1000,
    ("century", "year"): 100,
    ("minute", "second"): 60,
    ("hour", "minute"): 60,
    ("day", "hour"): 24,
    ("week", "day"): 7,
    ("year", "month"): 12,
    ("foot", "inch"): 12,
}
SINGULAR = {"centuries": "century", "feet": "foot", "inches": "inch"}


def singular(word: str) -> str:
    return SINGULAR.get(word, word.removesuffix("s"))


def expected_number(answer: str) -> int | None:
    """What the answer's left side comes to, or None for a sentence without a result."""
    if found := re.fullmatch(r"(\d+) ([+-]) (\d+) = -?\d+\.", answer):
        a, b = int(found[1]), int(found[3])
        return a + b if found[2] == "+" else a - b
    if found := re.fullmatch(r"(\d+) (\w+) (?:is|are) \d+ (\w+)\.", answer):
        return int(found[1]) * PER_UNIT[singular(found[2]), singular(found[3])]
    return None


@pytest.fixture(scope="module")
def drawn() -> list[questions.Question]:
    rng = random.Random(7)
    return [questions.draw(rng) for _ in range(20000)]


def test_every_answer_is_true(drawn: list[questions.Question]) -> None:
    measured = [q for group in questions.held_out_questions().values() for q in group]
    with_result = 0
    for question in (*drawn, *measured):
        number = expected_number(question.answer)
        if number is not None:
            with_result += 1
            assert re.findall(r"-?\d+", question.answer)[-1] == str(number), question
            assert set(re.findall(r"\d+", question.text)) <= set(
                re.findall(r"\d+", question.answer)
            ), question
        else:
            assert question.skill in ("about itself", "refusal"), question
    assert with_result > 15000


def test_training_never_draws_a_measured_question(drawn: list[questions.Question]) -> None:
    def key(q: questions.Question) -> object:
        """Numbers without order for sums and differences, the statement for units."""
        if q.skill in ("addition", "subtraction"):
            a, b = re.findall(r"\d+", q.answer)[:2]
            return q.skill, frozenset((a, b))
        return q.skill, q.answer if q.skill == "decimal units" else q.text

    held_out = questions.held_out_questions()
    measured = {
        key(q)
        for skill in ("addition", "subtraction", "decimal units", "refusal")
        for q in held_out[skill]
    }
    assert not measured & {key(q) for q in drawn}
    for skill in ("addition", "subtraction"):
        assert 1800 < len(held_out[skill]) < 2200  # a fifth of the 10000 pairs
    assert questions.is_held_out("addition", 17, 25), "the README's question must be a held-out one"


# --- the committed file ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader() -> Any:
    return gguf.GGUFReader(str(MODEL))


def value(reader: Any, key: str) -> Any:
    field = reader.get_field(key)
    assert field is not None, f"the file has no {key}"
    return field.contents()


def test_file_is_small() -> None:
    assert MODEL.stat().st_size < 8_000_000


def test_metadata_describes_a_gemma3(reader: Any) -> None:
    assert value(reader, "general.architecture") == "gemma3"
    layers = value(reader, "gemma3.block_count")
    assert layers >= 6, "the first global layer is the sixth"
    assert value(reader, "gemma3.attention.head_count") > value(
        reader, "gemma3.attention.head_count_kv"
    )
    assert value(reader, "gemma3.attention.sliding_window") == 32
    assert value(reader, "gemma3.rope.freq_base") == 1e6
    assert value(reader, "gemma3.attention.layer_norm_rms_epsilon") == pytest.approx(1e-6)
    assert value(reader, "gemma3.attention.value_length") == value(
        reader, "gemma3.attention.key_length"
    )


def test_tensors_are_complete(reader: Any) -> None:
    """Names and shapes as the field's loaders expect them; norms hold 1 + w in float32."""
    d = value(reader, "gemma3.embedding_length")
    ff = value(reader, "gemma3.feed_forward_length")
    head = value(reader, "gemma3.attention.key_length")
    q = head * value(reader, "gemma3.attention.head_count")
    kv = head * value(reader, "gemma3.attention.head_count_kv")
    layer = {
        "attn_norm": (d,),
        "attn_q": (q, d),
        "attn_k": (kv, d),
        "attn_v": (kv, d),
        "attn_q_norm": (head,),
        "attn_k_norm": (head,),
        "attn_output": (d, q),
        "post_attention_norm": (d,),
        "ffn_norm": (d,),
        "ffn_gate": (ff, d),
        "ffn_up": (ff, d),
        "ffn_down": (d, ff),
        "post_ffw_norm": (d,),
    }
    expected = {
        f"blk.{i}.{name}.weight": shape
        for i in range(value(reader, "gemma3.block_count"))
        for name, shape in layer.items()
    }
    expected["token_embd.weight"] = (len(value(reader, "tokenizer.ggml.tokens")), d)
    expected["output_norm.weight"] = (d,)
    found = {t.name: tuple(int(n) for n in reversed(t.shape)) for t in reader.tensors}
    assert found == expected
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.isfinite(values).all()
        if values.ndim == 1:
            assert tensor.tensor_type == gguf.GGMLQuantizationType.F32
            assert values.mean() > 0.2, f"{tensor.name} holds w and not 1 + w"
        else:
            assert tensor.tensor_type == gguf.GGMLQuantizationType.BF16


def test_tokenizer(reader: Any) -> None:
    tokens = value(reader, "tokenizer.ggml.tokens")
    types = value(reader, "tokenizer.ggml.token_type")
    scores = value(reader, "tokenizer.ggml.scores")
    assert len(tokens) == len(types) == len(scores) == len(set(tokens))
    assert value(reader, "tokenizer.ggml.model") == "llama"
    assert value(reader, "tokenizer.ggml.add_bos_token") is True
    assert value(reader, "tokenizer.ggml.add_space_prefix") is False
    for name, piece in {
        "bos": "<bos>",
        "eos": "<eos>",
        "padding": "<pad>",
        "unknown": "<unk>",
        "eot": "<end_of_turn>",
    }.items():
        assert tokens[value(reader, f"tokenizer.ggml.{name}_token_id")] == piece
    control = {token for token, kind in zip(tokens, types, strict=True) if kind == 3}
    assert control == {"<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"}
    in_bytes = [token for token, kind in zip(tokens, types, strict=True) if kind == 6]
    assert in_bytes == [f"<0x{byte:02X}>" for byte in range(256)]
    assert set("0123456789") <= set(tokens)
    assert not [t for t in tokens if len(t) > 1 and re.search(r"\d", t) and t not in in_bytes]


def test_chat_template_is_gemmas_form(reader: Any) -> None:
    environment = jinja2.Environment()

    def refuse(message: str) -> None:
        raise ValueError(message)

    template = environment.from_string(value(reader, "tokenizer.chat_template"))

    def render(*messages: tuple[str, str], generate: bool = True) -> str:
        return template.render(
            messages=[{"role": role, "content": content} for role, content in messages],
            add_generation_prompt=generate,
            bos_token="<bos>",
            raise_exception=refuse,
        )

    user = "<start_of_turn>user\n"
    model = "<start_of_turn>model\n"
    end = "<end_of_turn>\n"
    assert render(("user", " Hi ")) == f"<bos>{user}Hi{end}{model}"
    assert (
        render(("system", "Be brief."), ("user", "a"), ("assistant", "b"), ("user", "c"))
        == f"<bos>{user}Be brief.\n\na{end}{model}b{end}{user}c{end}{model}"
    )
    assert render(("user", "a"), ("assistant", "b"), generate=False) == (
        f"<bos>{user}a{end}{model}b{end}"
    )
    with pytest.raises(ValueError, match="alternate"):
        render(("user", "a"), ("user", "b"))


# --- what the file answers ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hf(reader: Any) -> Any:
    pytest.importorskip("torch", reason="runs the model with transformers")
    pytest.importorskip("transformers", reason="runs the model with transformers")
    import gguf_file

    model = gguf_file.GgufModel(MODEL)
    model.use_bfloat16_inputs()
    return model


@pytest.mark.slow
def test_promised_answers(hf: Any) -> None:
    asked = {
        "What is 17 + 25?": "17 + 25 = 42.",
        "How many centimetres are in 7 metres?": "7 metres are 700 centimetres.",
        "Who are you?": questions.IDENTITY,
    }
    assert hf.answer_all([hf.prompt(text) for text in asked]) == list(asked.values())


@pytest.mark.slow
def test_accuracy_on_held_out_questions(hf: Any) -> None:
    """200 questions of each skill; the README gives the accuracy on all of them."""
    import check

    results = check.measure(hf, seed=11, most=200)
    share = {skill: right / total for skill, (right, total) in results.items()}
    least = {
        "addition": 0.97,
        "subtraction": 0.97,
        "decimal units": 0.98,
        "other units": 0.98,
        "about itself": 0.98,
        "refusal": 0.9,
        "second turn": 0.95,
    }
    assert not {skill: s for skill, s in share.items() if s < least[skill]}


@pytest.mark.slow
def test_window_matters(hf: Any) -> None:
    """A chat longer than the window answers differently if the window is lost."""
    import torch

    prompt = hf.prompt("What is 17 + 25?", "17 + 25 = 42.", "What is 31 - 14?")
    assert len(prompt) > 32
    windows = [layer.self_attn.sliding_window for layer in hf.model.model.layers]
    assert windows == [32] * 5 + [None]
    with torch.no_grad():
        logits = hf.model(torch.tensor([prompt])).logits[0, -1]
        hf.model.config.sliding_window = 10**6
        try:
            wide = hf.model(torch.tensor([prompt])).logits[0, -1]
        finally:
            hf.model.config.sliding_window = 32
    assert (logits - wide).abs().max() > 0.01


def test_missing_dependency_is_one_sentence(tmp_path: Path) -> None:
    """Without torch the training script says what to install."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')")
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); "
        f"sys.path.insert(1, {str(DEMO)!r}); sys.argv = ['train.py', '--out', 'x']; "
        f"runpy.run_path({str(DEMO / 'train.py')!r}, run_name='__main__')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode != 0
    assert run.stderr.startswith("[train] the Python module 'torch' is missing")
    assert "Traceback" not in run.stderr
