"""The demo model's vocabulary: a small SentencePiece BPE, and Gemma's chat format in its token ids.

Digits are single tokens, unknown characters fall back to bytes, and the ids of <pad> <eos> <bos>
<unk> are Gemma's.
"""

from __future__ import annotations

import io
import random
from dataclasses import dataclass

import questions
import sentencepiece

SIZE = 640  # 7 special pieces, 256 bytes, the printable ASCII characters, and merges for the words
PAD, EOS, BOS, UNK, START_OF_TURN, END_OF_TURN = range(6)
CONTROL_PIECES = ("<start_of_turn>", "<end_of_turn>")

# Gemma's chat format. A system message becomes the head of the first user turn.
CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- set ns = namespace(head='', expect='user') -%}
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}
{%- if not loop.first -%}{{ raise_exception('The system message must come first') }}{%- endif -%}
{%- set ns.head = message['content'] | trim + '\\n\\n' -%}
{%- else -%}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
{%- if role != ns.expect -%}
{{- raise_exception('Turns must alternate: user, assistant, user, ...') -}}
{%- endif -%}
{{- '<start_of_turn>' + role + '\\n' + ns.head + message['content'] | trim + '<end_of_turn>\\n' -}}
{%- set ns.head = '' -%}
{%- set ns.expect = 'model' if role == 'user' else 'user' -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}
"""


@dataclass(frozen=True)
class Vocabulary:
    """Pieces with scores and GGUF token types, plus the encoder that training uses."""

    processor: sentencepiece.SentencePieceProcessor

    @property
    def size(self) -> int:
        return int(self.processor.vocab_size())

    def encode(self, text: str) -> list[int]:
        return list(self.processor.encode(text))

    def prompt(self, text: str) -> list[int]:
        """A user turn and the head of the model's turn, without <bos>."""
        return [
            START_OF_TURN,
            *self.encode(f"user\n{text}"),
            END_OF_TURN,
            *self.encode("\n"),
            START_OF_TURN,
            *self.encode("model\n"),
        ]

    def answer(self, text: str) -> list[int]:
        """The model's turn as it must be generated."""
        return [*self.encode(text), END_OF_TURN]

    def gguf_tokens(self) -> tuple[list[str], list[float], list[int]]:
        """Tokens, scores and types (tokenizer.ggml.*), in id order."""
        p = self.processor
        types = []
        for i in range(self.size):
            if p.is_unknown(i):
                types.append(2)
            elif p.is_control(i):
                types.append(3)
            elif p.is_byte(i):
                types.append(6)
            else:
                types.append(4 if p.id_to_piece(i) == "\n" else 1)
        pieces = [p.id_to_piece(i) for i in range(self.size)]
        return pieces, [p.get_score(i) for i in range(self.size)], types


def train_vocabulary(seed: int) -> Vocabulary:
    """BPE over generated questions and answers."""
    rng = random.Random(seed)
    texts = ["user", "model"] * 2000
    for _ in range(20000):
        question = questions.draw(rng)
        texts += [question.text, question.answer]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        model_type="bpe",
        vocab_size=SIZE,
        character_coverage=1.0,
        required_chars="".join(chr(c) for c in range(33, 127)),
        byte_fallback=True,
        split_digits=True,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        pad_id=PAD,
        eos_id=EOS,
        bos_id=BOS,
        unk_id=UNK,
        pad_piece="<pad>",
        eos_piece="<eos>",
        bos_piece="<bos>",
        unk_piece="<unk>",
        control_symbols=list(CONTROL_PIECES),
        user_defined_symbols=["\n"],
        num_threads=1,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    assert processor.piece_to_id("<end_of_turn>") == END_OF_TURN
    return Vocabulary(processor)
