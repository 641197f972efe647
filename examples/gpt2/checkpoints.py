"""A run on disk: model and tokenizer as transformers writes them, and the optimiser's and the
generators' state beside them, in one folder that is replaced whole."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2LMHeadModel
from transformers.utils import logging

STATE = "training.pt"
NAMES = ("step", "optimiser", "windows", "dropout", "losses", "evaluated", "options")


def claim(folder: Path) -> Path:
    """The folder, absolute, if a run may be written there: nothing else is in it. Puts back what an
    interrupted save has set aside. Ends the program otherwise."""
    folder = folder.resolve()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if _beside(folder, "old").is_dir() and not folder.exists():
            _beside(folder, "old").rename(folder)
        others = folder.exists() and not (folder / STATE).is_file() and any(folder.iterdir())
    except OSError as error:
        raise SystemExit(f"[gpt2] --out {folder}: {error.strerror or error}") from None
    if others:
        raise SystemExit(
            f"[gpt2] --out {folder} has other files than a run's, which would be replaced; name a "
            "new folder"
        )
    if not os.access(folder.parent, os.W_OK):
        raise SystemExit(f"[gpt2] --out {folder}: its parent cannot be written to; name another")
    return folder


def _beside(folder: Path, word: str) -> Path:
    return folder.with_name(f".{folder.name}.{word}")


def save(folder: Path, model: GPT2LMHeadModel, tokenizer: Any, state: dict[str, Any]) -> None:
    """Writes beside the folder, then changes places: an interrupted save loses nothing."""
    new, old = _beside(folder, "new"), _beside(folder, "old")
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        logging.disable_progress_bar()  # the run has one
        model.save_pretrained(new)
        if hasattr(tokenizer, "save_pretrained"):
            tokenizer.save_pretrained(new)
        torch.save(state, new / STATE)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
    except OSError as error:
        raise SystemExit(f"[gpt2] --out {folder}: {error.strerror or error}") from None
    shutil.rmtree(old, ignore_errors=True)


def load(folder: Path) -> dict[str, Any]:
    """The state of a saved run; what it is of is the model in the same folder."""
    path = folder / STATE
    if not path.is_file():
        raise SystemExit(
            f"[gpt2] --resume: {folder} has no {STATE}; name the folder of an earlier run"
        )
    try:
        state = torch.load(path, weights_only=True)
        return {name: state[name] for name in NAMES}
    except Exception as error:  # whatever a damaged file makes of the reader
        raise SystemExit(
            f"[gpt2] {path} is damaged ({error}); start anew without --resume"
        ) from None
