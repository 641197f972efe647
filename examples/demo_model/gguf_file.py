"""Writes the demo model as GGUF (architecture gemma3), and runs such a file with transformers.

Reading uses nothing of the training run: weights, sizes, tokenizer and chat template all come from
the file, so accuracy measured on a read-back model is accuracy of the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import architecture
import gguf
import numpy as np
import torch
import vocabulary
from gguf_tokenizer import GgufTokenizer, value
from transformers import Gemma3ForCausalLM

BF16 = gguf.GGMLQuantizationType.BF16


def write(path: Path, model: Gemma3ForCausalLM, words: vocabulary.Vocabulary) -> None:
    """Matrices as BF16, norms as F32 holding 1 + w."""
    writer = gguf.GGUFWriter(str(path), "gemma3")
    settings = model.config
    writer.add_name("npu-xdna demo")
    writer.add_description("Trained by examples/demo_model/train.py on text that it generates")
    writer.add_license("MIT")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_vocab_size(settings.vocab_size)
    writer.add_context_length(settings.max_position_embeddings)
    writer.add_embedding_length(settings.hidden_size)
    writer.add_block_count(settings.num_hidden_layers)
    writer.add_feed_forward_length(settings.intermediate_size)
    writer.add_head_count(settings.num_attention_heads)
    writer.add_head_count_kv(settings.num_key_value_heads)
    writer.add_key_length(settings.head_dim)
    writer.add_value_length(settings.head_dim)
    writer.add_layer_norm_rms_eps(settings.rms_norm_eps)
    writer.add_sliding_window(architecture.WINDOW)
    writer.add_rope_freq_base(architecture.ROPE_GLOBAL)
    writer.add_float32("gemma3.rope.freq_base_swa", architecture.ROPE_LOCAL)
    _write_tokenizer(writer, words)
    parameters = model.state_dict()
    for name, source in architecture.tensor_names(settings.num_hidden_layers).items():
        values = parameters[source].detach().float().numpy()
        if values.ndim == 1:
            writer.add_tensor(name, values + np.float32(1))
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, BF16), raw_dtype=BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_tokenizer(writer: gguf.GGUFWriter, words: vocabulary.Vocabulary) -> None:
    tokens, scores, types = words.gguf_tokens()
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(vocabulary.BOS)
    writer.add_eos_token_id(vocabulary.EOS)
    writer.add_eot_token_id(vocabulary.END_OF_TURN)
    writer.add_unk_token_id(vocabulary.UNK)
    writer.add_pad_token_id(vocabulary.PAD)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(vocabulary.CHAT_TEMPLATE)


class GgufModel:
    """Model and tokenizer of one file; greedy answers in float32, or with bf16 inputs."""

    def __init__(self, path: Path) -> None:
        self._reader = gguf.GGUFReader(str(path))
        found = value(self._reader, "general.architecture")
        if found != "gemma3":
            raise SystemExit(f"[check] {path} has architecture {found!r}; give a gemma3 GGUF")
        self.tokenizer = GgufTokenizer(self._reader)
        self.model = self._load()

    def _load(self) -> Gemma3ForCausalLM:
        def size(key: str) -> Any:
            return value(self._reader, f"gemma3.{key}")

        settings = architecture.config(
            len(self.tokenizer.tokens),
            hidden=size("embedding_length"),
            feed_forward=size("feed_forward_length"),
            layers=size("block_count"),
            heads=size("attention.head_count"),
            kv_heads=size("attention.head_count_kv"),
            head_dim=size("attention.key_length"),
            window=size("attention.sliding_window"),
            context=size("context_length"),
            rope_global=size("rope.freq_base"),
            rope_local=size("rope.freq_base_swa"),
            epsilon=size("attention.layer_norm_rms_epsilon"),
        )
        model = architecture.build(settings)
        stored = {t.name: t for t in self._reader.tensors}
        parameters = dict(model.named_parameters())
        names = architecture.tensor_names(settings.num_hidden_layers)
        assert set(stored) == set(names) and set(parameters) == set(names.values())
        with torch.no_grad():
            for name, target in names.items():
                tensor = stored[name]
                values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
                if values.ndim == 1:
                    values = values - np.float32(1)
                parameters[target].copy_(torch.from_numpy(np.array(values)))
        return model.eval()

    def use_bfloat16_inputs(self) -> None:
        """Round the input of every projection to bf16, as the device's matmul receives it."""
        for module in self.model.modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_pre_hook(lambda _, x: (x[0].bfloat16().float(),))

    @torch.no_grad()
    def answer_all(self, prompts: list[list[int]], limit: int = 40) -> list[str]:
        """Greedy answers; prompts of one length run as one batch."""
        answers = [""] * len(prompts)
        end = self.tokenizer.end_of_turn
        for length in sorted({len(p) for p in prompts}):
            rows = [i for i, p in enumerate(prompts) if len(p) == length]
            step = torch.tensor([prompts[i] for i in rows])
            cache, generated = None, torch.empty(len(rows), 0, dtype=torch.long)
            for _ in range(limit):
                out = self.model(step, past_key_values=cache, use_cache=True)
                cache, step = out.past_key_values, out.logits[:, -1:].argmax(-1)
                generated = torch.cat([generated, step], 1)
                if (generated == end).any(1).all():
                    break
            for i, row in zip(rows, generated.tolist(), strict=True):
                row = row[: row.index(end)] if end in row else row
                answers[i] = self.tokenizer.decode(row)
        return answers
