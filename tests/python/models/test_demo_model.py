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
from limits import HANG

gguf = pytest.importorskip("gguf", reason="reads the file with the gguf package")
pytest.importorskip("jinja2", reason="renders the chat template")

DEMO = Path(__file__).parents[3] / "examples" / "demo_model"
MODEL = DEMO / "demo-gemma3.gguf"
sys.path.insert(0, str(DEMO))

import questions  # noqa: E402
from gguf_tokenizer import GgufTokenizer  # noqa: E402

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
    tokenizer = GgufTokenizer(reader)

    def render(*messages: tuple[str, str], generate: bool = True) -> str:
        return tokenizer.chat(
            [{"role": role, "content": content} for role, content in messages], generate
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


# --- a second reader: the architecture written out in NumPy over the GGUF's own names -------------


class NumpyGemma3:
    """Gemma 3 in float32 straight from the tensors of the file, for one short sequence."""

    def __init__(self, reader: Any, window: int | None = None) -> None:
        def read(name: str) -> Any:
            return value(reader, f"gemma3.{name}")

        self.w = {
            t.name.removesuffix(".weight"): gguf.quants.dequantize(t.data, t.tensor_type)
            for t in reader.tensors
        }
        self.layers = read("block_count")
        self.head_dim = read("attention.key_length")
        self.eps = read("attention.layer_norm_rms_epsilon")
        self.window = window or read("attention.sliding_window")
        self.bases = read("rope.freq_base_swa"), read("rope.freq_base")

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.w[name]

    def rope(self, x: np.ndarray, base: float) -> np.ndarray:
        """Rotate (head, position, dim), pairing dim i with i + half."""
        half = self.head_dim // 2
        angle = np.arange(x.shape[1])[:, None] * base ** (-np.arange(half) / half)
        cos, sin = np.cos(angle), np.sin(angle)
        low, high = x[..., :half], x[..., half:]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)

    def attention(self, x: np.ndarray, i: int) -> np.ndarray:
        is_global = (i + 1) % 6 == 0
        base = self.bases[is_global]

        def heads(name: str) -> np.ndarray:
            y = x @ self.w[f"blk.{i}.attn_{name}"].T
            return y.reshape(len(x), -1, self.head_dim).transpose(1, 0, 2)

        q = self.rope(self.norm(heads("q"), f"blk.{i}.attn_q_norm"), base)
        k = self.rope(self.norm(heads("k"), f"blk.{i}.attn_k_norm"), base)
        v = heads("v")
        group = len(q) // len(k)
        k, v = k.repeat(group, 0), v.repeat(group, 0)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(self.head_dim)
        back = np.arange(len(x))[:, None] - np.arange(len(x))[None, :]
        visible = (back >= 0) & (is_global | (back < self.window))
        scores = np.where(visible, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out = weights / weights.sum(-1, keepdims=True) @ v
        return out.transpose(1, 0, 2).reshape(len(x), -1) @ self.w[f"blk.{i}.attn_output"].T

    def feed_forward(self, x: np.ndarray, i: int) -> np.ndarray:
        gate, up = (x @ self.w[f"blk.{i}.ffn_{name}"].T for name in ("gate", "up"))
        gelu = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        return (gelu * up) @ self.w[f"blk.{i}.ffn_down"].T

    def logits(self, ids: list[int]) -> np.ndarray:
        table = self.w["token_embd"]
        x = table[ids] * np.sqrt(table.shape[1])
        for i in range(self.layers):
            y = self.attention(self.norm(x, f"blk.{i}.attn_norm"), i)
            x = x + self.norm(y, f"blk.{i}.post_attention_norm")
            y = self.feed_forward(self.norm(x, f"blk.{i}.ffn_norm"), i)
            x = x + self.norm(y, f"blk.{i}.post_ffw_norm")
        return self.norm(x, "output_norm") @ table.T

    def answer(self, prompt: list[int], end: int) -> list[int]:
        ids: list[int] = []
        while end not in ids and len(ids) < 40:
            ids.append(int(self.logits(prompt + ids)[-1].argmax()))
        return ids


PROMISED = {
    "What is 17 + 25?": "17 + 25 = 42.",
    "What is 25 - 17?": "25 - 17 = 8.",
    "How many centimetres are in 7 metres?": "7 metres are 700 centimetres.",
    "Who are you?": questions.IDENTITY,
    "What is the capital of France?": questions.REFUSAL,
}


@pytest.fixture(scope="module")
def tokenizer(reader: Any) -> GgufTokenizer:
    return GgufTokenizer(reader)


@pytest.mark.slow
def test_promised_answers(reader: Any, tokenizer: GgufTokenizer) -> None:
    model = NumpyGemma3(reader)
    for text, wanted in PROMISED.items():
        got = tokenizer.decode(model.answer(tokenizer.prompt(text), tokenizer.end_of_turn))
        assert got == wanted


@pytest.mark.slow
def test_window_matters(reader: Any, tokenizer: GgufTokenizer) -> None:
    """A second turn reaches beyond the window: right with it, other logits without it."""
    prompt = tokenizer.prompt("What is 17 + 25?", "17 + 25 = 42.", "What is 31 - 14?")
    assert len(prompt) > value(reader, "gemma3.attention.sliding_window")
    model = NumpyGemma3(reader)
    assert tokenizer.decode(model.answer(prompt, tokenizer.end_of_turn)) == "31 - 14 = 17."
    wide = NumpyGemma3(reader, window=10**6)
    assert np.abs(model.logits(prompt)[-1] - wide.logits(prompt)[-1]).max() > 0.1


def test_tokens_are_sentencepieces(tokenizer: GgufTokenizer) -> None:
    """The pieces and scores of the file encode as the SentencePiece model that made them."""
    pytest.importorskip("sentencepiece", reason="trains the vocabulary again")
    import vocabulary

    words = vocabulary.train_vocabulary(seed=0)
    rng = random.Random(5)
    texts = [questions.draw(rng).text for _ in range(300)]
    for text in (*texts, "Two\n\nlines  and  spaces ", "naïve 漢字 \U0001f600", ""):
        ids = tokenizer.encode(text)
        assert ids == words.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.prompt(text.strip()) == [vocabulary.BOS, *words.prompt(text.strip())]


# --- transformers on the file's weights -----------------------------------------------------------


@pytest.fixture(scope="module")
def hf(reader: Any) -> Any:
    pytest.importorskip("torch", reason="runs the model with transformers")
    pytest.importorskip("transformers", reason="runs the model with transformers")
    import gguf_file

    return gguf_file.GgufModel(MODEL)


@pytest.mark.slow
def test_transformers_agrees_with_numpy(reader: Any, tokenizer: GgufTokenizer, hf: Any) -> None:
    """Two readings of the same weights in float32: 6 layers of sums of up to 480 terms differ by
    about 1e-5 of the logits; a wrong norm or window differs by more than 0.1."""
    import torch

    prompt = tokenizer.prompt("What is 17 + 25?", "17 + 25 = 42.", "Convert 7 metres to inches.")
    with torch.no_grad():
        expected = hf.model(torch.tensor([prompt])).logits[0].numpy()
    difference = np.abs(NumpyGemma3(reader).logits(prompt) - expected).max()
    assert difference < 1e-3 * expected.std()


@pytest.mark.slow
def test_accuracy_on_held_out_questions(hf: Any) -> None:
    """200 questions of each skill with bf16 inputs; the README has the accuracy on all of them."""
    import check

    hf.use_bfloat16_inputs()
    results = check.measure(hf, seed=11, limit=200)
    least = {
        "addition": 0.97,
        "subtraction": 0.97,
        "decimal units": 0.98,
        "other units": 0.98,
        "about itself": 0.98,
        "refusal": 0.9,
        "second turn": 0.95,
    }
    share = {skill: right / total for skill, (right, total) in results.items()}
    assert not {skill: s for skill, s in share.items() if s < least[skill]}


# --- the training script --------------------------------------------------------------------------


def test_missing_dependency_is_one_sentence(tmp_path: Path) -> None:
    """Without torch the training script says what to install."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')")
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); "
        f"sys.path.insert(1, {str(DEMO)!r}); sys.argv = ['train.py', '--out', 'x']; "
        f"runpy.run_path({str(DEMO / 'train.py')!r}, run_name='__main__')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG)
    assert run.returncode != 0
    assert run.stderr.startswith("[train] the Python module 'torch' is missing")
    assert "Traceback" not in run.stderr
