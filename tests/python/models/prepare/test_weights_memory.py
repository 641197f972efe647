"""Private memory while a model of 100 MB is loaded: at most 1.3 times the file, from a process's
first megabyte to its last, measured as the kernel counts anonymous pages.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from gemma3_files import Shape, add_value, config_of, metadata, small_vocabulary
from limits import HANG

from npu.models.gemma3.names import tensor_shapes

SHAPE = Shape(layers=8, width=1024, heads=8, kv_heads=4, head_dim=128, ffn_width=6144)

SCRIPT = """
import sys, threading, time

def anonymous():
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("RssAnon"))

peak, over = 0, threading.Event()

def watch():
    global peak
    while not over.wait(0.002):
        peak = max(peak, anonymous())

watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
from npu import gemma3
from npu.ops.registry import operation
operation("decoder").configuration("npu2")  # once per process, whatever the model
before = anonymous()
model, _ = gemma3.load(sys.argv[1], cache=sys.argv[2] == "cache")
over.set()
watcher.join()
print(before, max(peak, anonymous()), model.weights_report.nbytes)
"""


def write(path: Path, kind: gguf.GGMLQuantizationType) -> Path:
    """A model with the same random rows over and over."""
    vocabulary = small_vocabulary()
    writer = gguf.GGUFWriter(path, "gemma3")
    ids = {f"tokenizer.ggml.{name}_token_id": i for i, name in ((1, "eos"), (2, "bos"))}
    keys = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.unknown_token_id": 3, **ids}
    for key, value in {**metadata(SHAPE), **keys}.items():
        add_value(writer, key, value)
    writer.add_token_list([piece.encode() for piece in vocabulary.pieces])
    writer.add_token_scores(vocabulary.scores)
    writer.add_token_types(vocabulary.types)
    random = np.random.default_rng(0)
    for name, size in tensor_shapes(config_of(SHAPE, len(vocabulary.pieces))).items():
        if len(size) == 1:
            writer.add_tensor(name, np.ones(size, np.float32))
            continue
        few = random.normal(0, size[1] ** -0.5, (min(64, size[0]), size[1])).astype(np.float32)
        stored = gguf.quants.quantize(few, kind)
        rows = stored[np.arange(size[0]) % len(stored)]
        writer.add_tensor(name, rows, raw_dtype=None if rows.dtype != np.uint8 else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "cache"),
    [(kind, True) for kind in ("Q4_0", "Q5_1", "Q8_0", "F16")]
    + [(kind, False) for kind in ("Q4_0", "Q8_0", "F16")],
)
def test_private_memory_is_bounded_by_the_file(
    kind: str, cache: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "m.gguf", gguf.GGMLQuantizationType[kind])
    monkeypatch.setenv("NPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NPU_HUGE_PAGES", "0")  # no copies of mapped files
    mode = "cache" if cache else "memory"
    for _ in range(2 if cache else 1):
        found = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(path), mode],
            capture_output=True, text=True, timeout=HANG,
        )  # fmt: skip
        assert found.returncode == 0, found.stderr
        before, peak, nbytes = map(int, found.stdout.split())
        size = os.path.getsize(path)
        # The interpreter with its libraries counts for a large model as for this one.
        assert peak - before <= 1.3 * size, (before, peak, nbytes, size)
        if cache:
            # Chunks on their way, whatever the model: nothing of its size.
            assert peak - before <= 60e6
        else:
            assert peak - before >= nbytes  # so the measurement sees what is there
