"""The training loop: AdamW on windows of a text, losses, progress, a checkpoint now and then."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import checkpoints
import torch
from text import Windows
from tqdm import tqdm
from transformers import GPT2LMHeadModel

import npu

VALIDATION = 8  # batches
WARM_UP = 30  # steps until the rate is whole


class Run:
    """A model in training. ``losses``: of each step so far; ``evaluated``: steps and losses on text
    that is not trained on."""

    def __init__(
        self, model: GPT2LMHeadModel, windows: Windows, rate: float, options: dict[str, Any],
        tokenizer: Any = None,
    ) -> None:  # fmt: skip
        self.model, self.windows, self.options, self.rate = model, windows, options, rate
        self.tokenizer = tokenizer
        self.optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
        self.step = 0
        self.losses: list[float] = []
        self.evaluated: list[tuple[int, float]] = []
        self.loads: list[int] = []  # of configurations, by step

    def train(self, steps: int, every: int, out: Path | None, label: str) -> None:
        """Up to step ``steps``. Evaluates and saves every so many steps and at the end; after
        Ctrl-C the last save stands."""
        self.model.train()  # a model that was loaded is in evaluation
        bar = tqdm(total=steps, initial=self.step, desc=label, unit="step")
        with contextlib.closing(bar):
            while self.step < steps:
                self.one_step()
                bar.set_postfix(loss=f"{self.losses[-1]:.4f}", refresh=False)
                bar.update()
                if self.step % every == 0 or self.step == steps:
                    self.evaluated.append((self.step, self.validate()))
                    bar.write(f"step {self.step}: validation loss {self.evaluated[-1][1]:.4f}")
                    if out:
                        checkpoints.save(out, self.model, self.tokenizer, self.state())

    def one_step(self) -> float:
        """A step on a drawn batch; its loss before the step."""
        before = npu.stats().configuration_loads
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate * min(1, (self.step + 1) / WARM_UP)
        self.losses.append(self.gradients())
        self.optimiser.step()
        self.loads.append(npu.stats().configuration_loads - before)
        self.step += 1
        return self.losses[-1]

    def gradients(self) -> float:
        """Of a drawn batch, into the parameters; its loss."""
        ids = self.windows.draw()
        self.optimiser.zero_grad()
        loss = self.model(input_ids=ids, labels=ids).loss
        loss.backward()
        return float(loss.detach())

    def validate(self) -> float:
        self.model.eval()
        with torch.no_grad():
            batches = self.windows.validation(VALIDATION)
            losses = [float(self.model(input_ids=ids, labels=ids).loss) for ids in batches]
        self.model.train()
        return sum(losses) / len(losses)

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step, "optimiser": self.optimiser.state_dict(), "losses": self.losses,
            "windows": self.windows.generator.get_state(), "options": self.options,
            "evaluated": self.evaluated, "dropout": torch.get_rng_state(),
        }  # fmt: skip

    def resume(self, state: dict[str, Any]) -> None:
        """Continues where a saved run was. Ends the program if it was another one."""
        for name, value in self.options.items():
            if state["options"].get(name) != value:
                raise SystemExit(
                    f"[gpt2] --resume: the run had {name} {state['options'].get(name)}, now it is "
                    f"{value}; give the same"
                )
        self.step, self.losses = state["step"], list(state["losses"])
        self.evaluated = [(step, loss) for step, loss in state["evaluated"]]
        self.optimiser.load_state_dict(state["optimiser"])
        self.windows.generator.set_state(state["windows"])
        torch.set_rng_state(state["dropout"])
