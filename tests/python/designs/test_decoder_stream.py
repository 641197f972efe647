"""Streams of tokens for random models and positions end on the emulated array, which refuses task
queues that overrun, BDs that are rewritten under way and waits that nothing ends."""

from __future__ import annotations

import numpy as np
import pytest

from npu.designs import decoder as decoder_design
from npu.errors import ArgumentError
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
        "format": int(rng.integers(0, 5)),
    }


@pytest.mark.parametrize("seed", range(16))
def test_random_tokens_end(seed: int) -> None:
    request = _request(np.random.default_rng(seed))
    generation, small = ("npu1", "npu2")[seed % 2], request["format"] > 2
    config = operation("decoder").configuration(generation, small=small)
    [one] = operation("decoder").submissions(config, request)
    data = [zeros_but(a["contents"], a["bytes"]) for a in one.arguments]
    report = execute(config, one.stream, data=data)
    weights = next(a["bytes"] for a in one.arguments if a["name"] == "weights")
    # Of small blocks prompts read 512 bytes beyond the last one, tokens do not.
    assert report["bytes_moved"]["shim_read"] >= weights - 512 * small


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_blocks_of_the_other_size_are_refused(generation: str) -> None:
    """Of all matrices or one, wherever it is."""
    decoder, plain = operation("decoder"), _request(np.random.default_rng(1)) | {"format": 0}
    large, small = (decoder.configuration(generation, small=x) for x in (False, True))
    assert [len(decoder.submissions(large, plain)), decoder.choices_for(plain)] == [1, {}]
    assert decoder.choices_for(plain | {"format": 3}) == {"small": True}
    assert decoder.submissions(small, plain | {"format": 3, "format_head": 4})
    for field in ("format", "format_qkv", "format_output", "format_gate_up", "format_head"):
        with pytest.raises(ArgumentError, match=r"\[decoder\] blocks of q8_0 have 4608 bytes"):
            decoder.submissions(large, plain | {field: 4})
    for field in ("format_qkv", "format_down", "format_head"):
        with pytest.raises(ArgumentError, match=r"\[decoder\] blocks of q4nx have 5120 bytes"):
            decoder.submissions(small, plain | {"format": 3, field: 0})


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_small_blocks_are_read_in_runs_of_their_size(generation: str) -> None:
    """A token reads a tenth less: params, buffers and reads of the weights' channels."""
    plain, found = _request(np.random.default_rng(4)), {}
    for small, format in ((False, 0), (True, 3)):
        config = operation("decoder").configuration(generation, small=small)
        size = 4608 if small else 5120
        assert b"\nparam block_bytes %d\n" % size in config
        design = decoder_design.design(generation, small)
        widths = {f.name[0]: f.shape for f in design.fifos if f.name[0] in "Ww"}
        assert widths == {"W": (2, decoder_design.RUN_BLOCKS * size), "w": (size,)}
        text = operation("decoder").mlir(generation, small=small)
        kernels = ["gemv_", "gemv_small_"][:: -1 if small else 1]
        cores = 2 * {"npu1": 4, "npu2": 8}[generation]
        for name in ("one", "kept"):
            assert text.count(f"func.call @{kernels[0]}{name}(") >= cores
            assert f"func.call @{kernels[1]}{name}(" not in text
        assert f'link_with = "{design.object_file}"' in text
        assert design.object_file == ("decoder_small.o" if small else "decoder.o")
        request = plain | {"format": format, "width": 1024, "vocabulary": 20000}
        [one] = operation("decoder").submissions(config, request)
        weights = next(a["bytes"] for a in one.arguments if a["name"] == "weights")
        data = [zeros_but(a["contents"], a["bytes"]) for a in one.arguments]
        read = execute(config, one.stream, data=data, timed=False)["bytes_moved"]["shim_read"]
        found[small] = weights - 512 * small, read
    # Other bytes are the same; of weights some are read twice.
    (large, all_large), (little, all_little) = found[False], found[True]
    assert little / large == 0.9
    assert 0.1 * large <= all_large - all_little <= 1.1 * 0.1 * large
