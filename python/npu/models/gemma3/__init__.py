"""Gemma 3 text models from GGUF or Q4NX files or safetensors folders: load, then generate.

>>> model, tokenizer = gemma3.load("model.gguf")
>>> prompt = tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": "Hello"}]))
>>> for text in gemma3.Generation(model, tokenizer, prompt):
...     print(text, end="")
"""

from __future__ import annotations

import os
from collections.abc import Callable

from npu.models.gemma3.checks import check
from npu.models.gemma3.model import Model
from npu.models.generation import Generation, Timings
from npu.models.sampling import Sampler
from npu.models.sources import open_source
from npu.models.tokenizer import Tokenizer

__all__ = ["Generation", "Model", "Sampler", "Timings", "Tokenizer", "load"]


def load(
    path: str | os.PathLike[str],
    progress: Callable[[int, int], None] | None = None,
    weights: str = "auto",
) -> tuple[Model, Tokenizer]:
    """Opens a GGUF or Q4NX file, or a folder with a Q4NX file or a safetensors checkpoint, and
    prepares its weights for the current device.

    ``weights``: "auto" keeps Q4NX, Q4_0 and Q4_1 matrices in 4 bits and rounds the others to
    bfloat16; "q4nx" quantises all of them, "bf16" none. Raises FormatError with one sentence for
    anything that is not a complete Gemma 3 text model.
    """
    source = open_source(path)
    _, tokenizer = check(source)
    return Model(source, progress, weights), tokenizer
