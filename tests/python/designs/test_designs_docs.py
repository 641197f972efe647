"""docs/adding_a_design.md: its Python blocks run in order, with the assertions they contain."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs" / "adding_a_design.md"


def test_examples_run() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.S | re.M)
    assert len(blocks) >= 5
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{DOCS.name} block {number}", "exec"), names)
