"""Everything that generating text needs of a model besides the values of its weights.

One list of rules for ``npu.gemma3.load``, ``npu convert`` and ``npu q4nx verify``: what one of
them accepts, the others do.
"""

from __future__ import annotations

from npu.errors import NpuError
from npu.models.gemma3.config import Config, read_config
from npu.models.gemma3.names import check_tensors
from npu.models.sampling_settings import model_settings
from npu.models.sources.interface import Source
from npu.models.tokenizer import Tokenizer


def check(source: Source) -> tuple[Config, Tokenizer]:
    """Configuration and tokenizer of a source whose tensors are complete, with known types.

    Raises FormatError with the first thing that is missing or wrong. Weights are not read, and the
    chat template is only looked for: text can be generated without it.
    """
    config = read_config(source)  # the architecture first: its message is the useful one
    tokenizer = open_tokenizer(source)
    check_tensors(source, config)
    _check_vocabulary(source, config, tokenizer)
    model_settings(source)
    return config, tokenizer


def problems(source: Source) -> list[str]:
    """What ``check`` raises, all of it, and why the chat template cannot be used."""
    found: list[str] = []
    config: Config | None = None
    tokenizer: Tokenizer | None = None
    try:
        config = read_config(source)
        check_tensors(source, config)
    except NpuError as error:
        found.append(str(error))
    try:
        tokenizer = open_tokenizer(source)
        if config:
            _check_vocabulary(source, config, tokenizer)
    except NpuError as error:
        found.append(str(error))
    try:
        model_settings(source)
    except NpuError as error:
        found.append(str(error))
    try:
        if tokenizer:
            tokenizer.check_template()
    except NpuError as error:
        found.append(str(error))
    return found


def open_tokenizer(source: Source) -> Tokenizer:
    """The tokenizer of a source, tried on a sample."""
    if "tokenizer.ggml.tokens" not in source.metadata:
        raise source.fail(
            "no tokenizer was found; put tokenizer.model or tokenizer.json into the folder, or "
            "convert the model again with tokenizer.ggml.tokens"
        )
    tokenizer = Tokenizer(source)
    tokenizer.check()
    return tokenizer


def _check_vocabulary(source: Source, config: Config, tokenizer: Tokenizer) -> None:
    if len(tokenizer) > config.vocabulary:
        raise source.fail(
            f"the tokenizer has {len(tokenizer)} tokens, the embedding {config.vocabulary} rows; "
            "they are not of one model"
        )
