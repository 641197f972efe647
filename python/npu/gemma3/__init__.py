"""Gemma 3 text models from GGUF files: load, then generate.

>>> model, tokenizer = gemma3.load("model.gguf")
>>> prompt = tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": "Hello"}]))
>>> for text in gemma3.Generation(model, tokenizer, prompt):
...     print(text, end="")
"""

from __future__ import annotations

import os
from collections.abc import Callable

from npu.gemma3.config import read_config
from npu.gemma3.generation import Generation, Timings
from npu.gemma3.model import Model
from npu.gemma3.sampling import Sampler
from npu.gguf_file import GgufFile
from npu.tokenizer import Tokenizer

__all__ = ["Generation", "Model", "Sampler", "Timings", "Tokenizer", "load"]


def load(
    path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
) -> tuple[Model, Tokenizer]:
    """Opens a GGUF file and prepares its weights for the current device.

    The weights are rounded to bfloat16, whatever their type in the file. Raises FormatError with
    one sentence for anything that is not a complete Gemma 3 text model.
    """
    file = GgufFile(path)
    read_config(file)  # the architecture first: its message is the useful one
    tokenizer = Tokenizer(file)
    return Model(file, progress), tokenizer
