"""A run on disk: the model as transformers writes it, and the optimiser's and the generators' state
beside it, in one folder that is replaced whole."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2LMHeadModel

STATE = "training.pt"


def save(folder: Path, model: GPT2LMHeadModel, state: dict[str, Any]) -> None:
    """Writes beside the folder, then changes places: an interrupted save loses nothing."""
    new, old = (folder.with_name(f".{folder.name}.{word}") for word in ("new", "old"))
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        model.save_pretrained(new)
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
        return {name: state[name] for name in ("step", "optimiser", "windows", "losses", "options")}
    except Exception as error:  # whatever a damaged file makes of the reader
        raise SystemExit(
            f"[gpt2] {path} is damaged ({error}); start anew without --resume"
        ) from None
