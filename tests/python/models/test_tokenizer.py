"""The tokenizer against SentencePiece itself and against ids worked out by hand.

A model trained by the `sentencepiece` library with Gemma's options is turned into GGUF metadata;
the tokenizer rebuilt from that must give the library's own ids. Further: control pieces, byte
fallback, streaming of multi-byte text, chat templates, and malformed vocabularies.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from gemma3_files import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Shape,
    Vocabulary,
    small_vocabulary,
    write_model,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from q4nx_models import save_tokenizer_json

from npu.errors import FormatError
from npu.formats.gguf_file import GgufFile
from npu.formats.metadata import Metadata
from npu.models import hf_tokenizer
from npu.models.tokenizer import Tokenizer

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, 12 times.",
    "Wie viele Äpfel und Öfen sind im Übungsraum?  Zwölf.",
    "x = [1, 2, 3]\n\nprint(sum(x))\n",
    "  leading and   inner    runs of spaces ",
    "日本語のテキスト と emoji 😀👍🏽 mixed",
    "<start_of_turn>not parsed here<table>",
    "",
    " ",
]


def open_tokenizer(path: Path, vocabulary: Vocabulary | None = None, **keys: object) -> Tokenizer:
    dotted = {f"tokenizer.{name.replace('__', '.')}": value for name, value in keys.items()}
    shape = Shape(layers=1, width=32, heads=1, kv_heads=1, head_dim=8, ffn_width=32)
    return Tokenizer(
        GgufFile(write_model(path / "m.gguf", shape, vocabulary=vocabulary, keys=dotted))
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return open_tokenizer(tmp_path_factory.mktemp("small"))


def trained(space_prefix: bool) -> sentencepiece.SentencePieceProcessor:
    """A BPE model with Gemma's normalisation, trained on the sentences."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 20),
        model_writer=model,
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        add_dummy_prefix=space_prefix,
        remove_extra_whitespaces=False,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        user_defined_symbols=["\n", "\n\n", "\u2581\u2581", "<table>"],
        control_symbols=["<start_of_turn>", "<end_of_turn>"],
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def as_gguf(processor: sentencepiece.SentencePieceProcessor) -> Vocabulary:
    """The vocabulary as converters write it: user-defined pieces with plain spaces."""
    vocabulary = Vocabulary()
    for index in range(processor.get_piece_size()):
        piece, kind = processor.id_to_piece(index), NORMAL
        if processor.is_byte(index):
            kind = BYTE
        elif processor.is_unknown(index):
            kind = UNKNOWN
        elif processor.is_control(index):
            kind = CONTROL
        elif piece in ("\n", "\n\n", "\u2581\u2581", "<table>"):
            kind, piece = USER_DEFINED, piece.replace("\u2581", " ")
        vocabulary.pieces.append(piece)
        vocabulary.scores.append(processor.get_score(index))
        vocabulary.types.append(kind)
    return vocabulary


@pytest.mark.parametrize("space_prefix", [False, True])
def test_ids_equal_those_of_sentencepiece(tmp_path: Path, space_prefix: bool) -> None:
    """Texts without U+2581, which GGUF's user-defined pieces do not match; with a space prefix
    also without such pieces, which begin a new text in llama.cpp and Hugging Face tokenizers."""
    library = trained(space_prefix)
    ours = open_tokenizer(tmp_path, as_gguf(library), ggml__add_space_prefix=space_prefix)
    letters = "<dogÄ日😀\t\x7fxyz12" if space_prefix else "\n <table>dogÄ日😀\t\x7fxyz12"

    @settings(max_examples=300, deadline=None)
    @given(st.text(alphabet=st.sampled_from(letters), max_size=40))
    def check(text: str) -> None:
        ids = ours.encode(text, add_special=False, parse_control=False)
        assert ids == library.encode(text)
        assert ours.decode(ids) == library.decode(ids)

    check()
    for text in SENTENCES:
        if space_prefix and any(part in " " + text for part in ("\n", "  ", "<table>")):
            continue
        ids = ours.encode(text, add_special=False, parse_control=False)
        assert ids == library.encode(text)
        assert ours.decode(ids) == text


# As `llama-tokenize --no-bos` of llama.cpp (llama-cpp-python 0.3.36) gives them for a GGUF file of
# the small vocabulary, and the `tokenizers` library for a tokenizer.json of it.
LITERALS = {
    "\u2581hello": [270],
    "a\u2581b": [285, 284, 286],
    "\u2581\u2581": [284, 284],
    "a\u2581 b": [285, 284, 284, 286],
    "hello \u2581 world": [269, 284, 284, 275],
    "\u2581 \u2581": [284, 284, 284],
    "\u2581<bos>": [284, 2],
    "hello\u2581": [269, 284],
    "  ": [8],
    "   a": [8, 284, 285],
    "<unk>": [3],
    "a<unk>b": [285, 3, 286],
    " <unk> hello": [284, 3, 270],
    "<unk": [70, 305, 298, 295],
    "<table>": [9],
    "<pad>x": [0, 308],
    "<0x41>": [70, 321, 308, 325, 322, 72],
    "a\0b": [285, 10, 286],
    "\n\n\n": [7, 6],
}


@pytest.mark.parametrize("text", LITERALS)
def test_pieces_written_in_a_text(small: Tokenizer, text: str) -> None:
    assert small.encode(text, add_special=False) == LITERALS[text]


def test_pieces_in_a_text_as_the_tokenizers_library(tmp_path: Path) -> None:
    """Random texts with U+2581, runs of spaces and special pieces, from a tokenizer.json."""
    tokenizers = pytest.importorskip("tokenizers")
    library = save_tokenizer_json(tmp_path / "t")
    library.add_special_tokens([tokenizers.AddedToken("<unk>", normalized=False)])
    keys = Metadata()
    keys.metadata = hf_tokenizer.metadata(tmp_path / "t")
    ours = Tokenizer(keys)
    parts = ["\u2581", " ", "  ", "<unk>", "<bos>", "<table>", "\n", "\n\n", "hello", "world",
             "a", "<", "unk>", "\u2581hello", "<0x41>", "<start_of_turn>", "é"]  # fmt: skip

    @settings(max_examples=500, deadline=None)
    @given(st.lists(st.sampled_from(parts), max_size=12).map("".join))
    def check(text: str) -> None:
        expected = library.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special=False) == expected

    check()


def test_special_pieces_stay_text_when_asked(small: Tokenizer) -> None:
    for text in ("<unk>", "<bos>"):
        ids = small.encode(text, add_special=False, parse_control=False)
        assert len(ids) > 1 and small.decode(ids) == text
    assert small.encode("  <table>", add_special=False, parse_control=False) == [8, 9]


def test_ids_worked_out_by_hand(small: Tokenizer) -> None:
    def pieces(text: str) -> list[str]:
        return [small.pieces[index] for index in small.encode(text)]

    # BPE merges the adjacent pair whose merged piece ranks first, over and over.
    assert pieces("hello world") == ["<bos>", "hello", "\u2581world"]
    assert pieces("user\nmodel") == ["<bos>", "user", "\n", "model"]
    assert pieces("a\n\n\nb") == ["<bos>", "a", "\n\n", "\n", "b"]
    assert pieces("ß") == ["<bos>", "<0xC3>", "<0x9F>"]
    assert pieces("") == ["<bos>"]


def test_control_pieces_in_text(small: Tokenizer) -> None:
    ids = small.encode("<start_of_turn>user\nhello<end_of_turn>\n")
    names = [small.pieces[index] for index in ids]
    assert names == ["<bos>", "<start_of_turn>", "user", "\n", "hello", "<end_of_turn>", "\n"]
    assert small.decode(ids) == "user\nhello\n"
    as_text = small.encode("<end_of_turn>", parse_control=False)
    assert small.pieces.index("<end_of_turn>") not in as_text
    # A piece that is only begun stays text, and BOS is not doubled.
    assert small.encode("<bos>a") == [2, small.pieces.index("a")]
    assert 4 not in small.encode("<start_of_tur")


def test_the_longest_control_piece_wins(tmp_path: Path) -> None:
    vocabulary = small_vocabulary()
    vocabulary.add(CONTROL, "<x>", "<x><y>", "[END]")
    tokenizer = open_tokenizer(tmp_path, vocabulary)
    ids = tokenizer.encode("<x><y><x>[END]", add_special=False)
    assert [tokenizer.pieces[index] for index in ids] == ["<x><y>", "<x>", "[END]"]


def test_streaming_holds_incomplete_characters(small: Tokenizer) -> None:
    text = "é 日本 😀!"
    ids = small.encode(text, add_special=False)
    stream = small.stream()
    parts = [stream.push(index) for index in ids] + [stream.finish()]
    assert "".join(parts) == text
    assert "\ufffd" not in "".join(parts)
    emoji = small.encode("😀", add_special=False)
    assert len(emoji) == 4
    broken = small.stream()
    assert [broken.push(index) for index in emoji[:3]] == ["", "", ""]
    assert broken.finish() == "\ufffd"


def test_undecodable_arguments_become_replacement_characters(small: Tokenizer) -> None:
    assert small.decode(small.encode("a\udcffb")) == "a?b"


def test_default_chat_template(small: Tokenizer) -> None:
    """The turn format of Gemma's model card; the system message goes into the first user turn."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " hello "},
        {"role": "assistant", "content": "world"},
        {"role": "user", "content": "hello"},
    ]
    assert small.render_chat(messages) == (
        "<bos><start_of_turn>user\nBe brief.\n\nhello<end_of_turn>\n"
        "<start_of_turn>model\nworld<end_of_turn>\n"
        "<start_of_turn>user\nhello<end_of_turn>\n<start_of_turn>model\n"
    )
    assert small.end_ids == {1, small.pieces.index("<end_of_turn>")}


def test_the_files_template_is_used_in_a_sandbox(tmp_path: Path) -> None:
    template = (
        "{{ bos_token }}|{% for m in messages %}{{ m['role'] }}={{ m['content'] }}{% endfor %}"
    )
    tokenizer = open_tokenizer(tmp_path, chat_template=template)
    assert tokenizer.render_chat([{"role": "user", "content": "x"}]) == "<bos>|user=x"
    for bad, reason in (
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ ''.__class__.__mro__ }}{{ ''.__class__.__base__.__subclasses__() }}", "unsafe"),
        ("{% for %}", "Expected an expression"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages.append(1) }}", "unsafe|not callable|append"),
    ):
        with pytest.raises(FormatError, match=f"chat template failed: .*({reason})"):
            open_tokenizer(tmp_path, chat_template=bad).render_chat([])


def test_vocabularies_the_library_refuses_keep_their_ids(tmp_path: Path) -> None:
    """Duplicates, empty pieces, a second unknown piece, incomplete bytes: all become unused."""
    vocabulary = Vocabulary()
    vocabulary.add(UNKNOWN, "<unk>", "<unk2>")
    vocabulary.add(CONTROL, "<bos>", "<eos>")
    vocabulary.add(NORMAL, "a", "a", "", "ab", "b")
    vocabulary.add(UNUSED, "zz")
    vocabulary.add(BYTE, "<0x41>")
    tokenizer = open_tokenizer(
        tmp_path, vocabulary, ggml__bos_token_id=2, ggml__eos_token_id=3, ggml__unknown_token_id=0
    )
    assert tokenizer.encode("abb") == [2, 7, 8]
    assert tokenizer.encode("A", add_special=False) == [0]
    assert tokenizer.decode([10, 2, 7]) == "Aab"


@pytest.mark.parametrize("third", ["ab", "<unused piece 1>", "a\0"])
def test_what_replaces_a_piece_is_no_other_ones_name(tmp_path: Path, third: str) -> None:
    """A second unknown piece, alone and beside its replacement; a piece that ends a C string."""
    vocabulary = Vocabulary()
    vocabulary.add(UNKNOWN, "<unk>", "<unk2>")
    vocabulary.add(CONTROL, "<bos>", "<eos>")
    vocabulary.add(NORMAL, "a", third, "b")
    ids = {"ggml__bos_token_id": 2, "ggml__eos_token_id": 3, "ggml__unknown_token_id": 0}
    tokenizer = open_tokenizer(tmp_path, vocabulary, **ids)
    assert tokenizer.encode("abz") == ([2, 5, 0] if third == "ab" else [2, 4, 6, 0])
    assert tokenizer.decode([4, 5, 6]) == f"a{third}b"


def test_an_unknown_piece_without_a_usable_name_stays_the_unknown_piece(tmp_path: Path) -> None:
    for name in ("", "<bos>"):
        vocabulary = Vocabulary()
        vocabulary.add(CONTROL, "<bos>", "<eos>")
        vocabulary.add(UNKNOWN, name)
        vocabulary.add(NORMAL, "a")
        ids = {"ggml__bos_token_id": 0, "ggml__eos_token_id": 1, "ggml__unknown_token_id": 2}
        assert open_tokenizer(tmp_path, vocabulary, **ids).encode("az") == [0, 3, 2]


def vocabulary_with(**changes: object) -> Vocabulary:
    vocabulary = small_vocabulary()
    for name, value in changes.items():
        setattr(vocabulary, name, value)
    return vocabulary


SMALL = small_vocabulary()
BAD_VOCABULARIES = {
    "scores has 3 entries for": vocabulary_with(scores=[0.0, 0.0, 0.0]),
    "token_type has 1 entries": vocabulary_with(types=[1]),
    "outside [1, 6]": vocabulary_with(types=[9, *SMALL.types[1:]]),
    "scores has values outside": vocabulary_with(scores=[np.nan, *SMALL.scores[1:]]),
    "scores has values outside [-3": vocabulary_with(scores=[np.inf, *SMALL.scores[1:]]),
    "byte token '<0x0g>'": vocabulary_with(
        pieces=[p.replace("<0x00>", "<0x0g>") for p in SMALL.pieces]
    ),
    "tokens is missing": Vocabulary(),
}


@pytest.mark.parametrize("message", BAD_VOCABULARIES)
def test_malformed_vocabularies(tmp_path: Path, message: str) -> None:
    weights = {"token_embd.weight": np.zeros((4, 32), np.float32)}
    path = write_model(tmp_path / "m.gguf", vocabulary=BAD_VOCABULARIES[message], weights=weights)
    with pytest.raises(FormatError) as caught:
        Tokenizer(GgufFile(path))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"ggml__model": "gpt2"}, "tokenizer type 'gpt2' is not supported"),
        ({"ggml__model": None}, r"tokenizer\.ggml\.model is missing"),
        ({"ggml__bos_token_id": 10**6}, r"bos_token_id is 1000000, expected"),
        ({"ggml__bos_token_id": None}, "bos_token_id is missing"),
        ({"ggml__add_bos_token": 1}, "add_bos_token is 1, expected true or false"),
        ({"chat_template": 5}, "chat_template is 5, expected a string"),
    ],
)
def test_malformed_keys(tmp_path: Path, keys: dict[str, object], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        open_tokenizer(tmp_path, **keys)
