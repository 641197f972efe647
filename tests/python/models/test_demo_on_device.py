"""The README's main command: the packaged demo model answers on the emulated NPU.

Asserts the promised answers through `npu generate` on both generations, and that every projection
and every token ran on the device (submissions are counted).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from devices_under_test import DEVICES
from test_demo_model import PROMISED

import npu
from npu import cli
from npu.cli import common
from npu.models.gemma3.model import MOST_STEPS

LAYERS = 6  # of the demo model


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("prompt", PROMISED)
def test_demo_model_answers(prompt, device, capsys, monkeypatch, fresh_devices):
    monkeypatch.delenv("NPU_MODEL", raising=False)
    monkeypatch.delenv("NPU_REPLAY", raising=False)
    before = npu.stats()
    assert cli.main(["generate", "--device", device, "--temp", "0", "-p", prompt]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == PROMISED[prompt]
    assert device in err and "emulated" in err and "TTFT" in err
    used = npu.stats() - before
    found = re.search(r"(\d+) prompt tokens.*\((\d+) steps\)", err, re.DOTALL)
    assert found is not None
    tokens, steps = int(found[1]), int(found[2])
    # The tokens of so short a prompt in two halves of each layer, the head for the last one, then
    # each token layer by layer and its head.
    assert 1 < tokens <= MOST_STEPS and steps >= 1
    assert used.submissions == tokens * 2 * LAYERS + 1 + steps * (LAYERS + 1)
    assert used.configuration_loads <= 3


def test_demo_model_is_found_without_a_name(monkeypatch, tmp_path):
    monkeypatch.delenv("NPU_MODEL", raising=False)
    monkeypatch.chdir(tmp_path)
    found = common.default_model()
    assert found is not None and Path(found).name == "demo-gemma3.gguf"
