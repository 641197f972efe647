"""Perplexity of the demo model through BF16, F16, Q4_0 and Q4NX: 16-bit forms agree, 4-bit
ones are near, and a device that used the wrong weights would be far away."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "examples/demo_model"))


@pytest.mark.slow
def test_all_forms_are_consistent() -> None:
    perplexity = pytest.importorskip("perplexity")
    found = perplexity.measure(ROOT / "examples/demo_model/demo-gemma3.gguf", 3)
    assert 1 < found["BF16"] < 1.2
    assert found["F16 GGUF"] == pytest.approx(found["BF16"], rel=1e-3)
    q4_0 = found["Q4_0 GGUF, expanded to BF16"]
    # The same codes; scales in bfloat16 instead of float16 move logits by a relative 2^-9.
    assert found["Q4_0 GGUF"] == pytest.approx(q4_0, rel=5e-3)
    assert found["Q4NX of the Q4_0 GGUF"] == pytest.approx(q4_0, rel=5e-3)
    assert found["Q4NX of the BF16 file"] == pytest.approx(found["BF16"], rel=3e-2)
