"""Streams of tokens for random models and positions end on the emulated array, which refuses task
queues that overrun, BDs that are rewritten under way and waits that nothing ends."""

from __future__ import annotations

import numpy as np
import pytest

from npu.ops.registry import operation
from npu.perf.execution import execute, zeros_but


def _request(rng: np.random.Generator) -> dict[str, int]:
    kv_heads = int(rng.choice([1, 2, 4, 8]))
    heads = kv_heads * int(rng.choice([2, 4, 8]))
    # All heads of a token pass the store of the vector core.
    head_dim = int(rng.choice([d for d in (64, 128, 256) if heads * d <= 4096]))
    sliding = int(rng.integers(0, 3))
    return {
        "position": int(rng.choice([0, 15, 16, 255, 256, 700, 3000])),
        "sliding": sliding,
        "global": int(rng.integers(0, 3)) + (sliding == 0),
        "width": 32 * int(rng.integers(4, 40)),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "ffn": 32 * int(rng.integers(4, 60)),
        "vocabulary": int(rng.integers(100, 20000)),
        "window": int(rng.choice([1, 16, 100, 512])),
        "top": int(rng.choice([0, 8, 64])),
        "format": int(rng.integers(0, 3)),
    }


@pytest.mark.parametrize("seed", range(12))
def test_random_tokens_end(seed: int) -> None:
    request = _request(np.random.default_rng(seed))
    generation = ("npu1", "npu2")[seed % 2]
    config = operation("decoder").configuration(generation)
    [one] = operation("decoder").submissions(config, request)
    data = [zeros_but(a["contents"], a["bytes"]) for a in one.arguments]
    report = execute(config, one.stream, data=data)
    weights = next(a["bytes"] for a in one.arguments if a["name"] == "weights")
    assert report["bytes_moved"]["shim_read"] >= weights
