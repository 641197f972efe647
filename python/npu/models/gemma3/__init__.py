"""Gemma 3 text models from GGUF or Q4NX files or safetensors folders: load, then generate.

>>> model, tokenizer = gemma3.load("model.gguf")
>>> prompt = tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": "Hello"}]))
>>> for text in gemma3.Generation(model, tokenizer, prompt):
...     print(text, end="")
"""

from __future__ import annotations

import os
from collections.abc import Callable

from npu.models.batch import BatchGeneration
from npu.models.gemma3.header import Header, read_header
from npu.models.gemma3.model import Model
from npu.models.generation import Generation, Timings
from npu.models.kv_cache import Cache
from npu.models.sampling import Sampler
from npu.models.tokenizer import Tokenizer

__all__ = [
    "BatchGeneration",
    "Cache",
    "Generation",
    "Model",
    "Sampler",
    "Timings",
    "Tokenizer",
    "load",
]


def load(
    path: str | os.PathLike[str] | Header,
    progress: Callable[[int, int], None] | None = None,
    weights: str = "auto",
    cache: bool = True,
    note: Callable[[str], None] | None = None,
) -> tuple[Model, Tokenizer]:
    """Opens a GGUF or Q4NX file, or a folder with a Q4NX file or a safetensors checkpoint, and
    prepares its weights for the current device.

    ``weights``: "auto" keeps what the file has at the nearest width: 4-bit types as Q4NX blocks,
    5, 6 and 8 bits as 8-bit blocks, floats as bfloat16, and models of Q4_0, Q8_0 and Q5_0 in
    blocks of their own (beside these Q6_K fitted to 8 bits); "q8" is the same with floats in 8
    bits; "q4nx" and "bf16" make everything of one kind. ``Model.weights_report`` says what was
    chosen and what it costs in error. ``cache``: prepared weights are kept in a file (folder:
    ``NPU_CACHE``, else npu-xdna in the user's cache), so that the next load is instant.
    ``progress(done, total)`` counts bytes prepared, ``note`` takes sentences about where they are
    kept. Raises FormatError with one sentence for anything that is not a complete Gemma 3 text
    model.
    """
    header = path if isinstance(path, Header) else read_header(path)
    return Model(header.source, progress, weights, cache, note), header.tokenizer
