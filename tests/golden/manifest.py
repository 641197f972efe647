"""The manifest of the reference files: writes MANIFEST.json from what is in this folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
ORIGINS = {
    "silicon": "observed on a Phoenix NPU by xdna-emu (MIT licence, silicon/LICENSE)",
    "gemm_npu1_2x2_i16": "design of this project, lowered by mlir-aie (March 2026)",
    "gemm_npu2_4x8_bf16": "design of this project, lowered by mlir-aie (March 2026)",
    "relay_npu1": "design of this project, lowered by mlir-aie (March 2026)",
    "relay_npu2": "design of this project, lowered by mlir-aie (March 2026)",
}


def contents() -> dict[str, Any]:
    """What the manifest should say: per file its origin, size in bytes and SHA-256."""
    files = {}
    for path in sorted(FOLDER.glob("*/*")):
        if path.parent.name != "__pycache__":
            data = path.read_bytes()
            files[path.relative_to(FOLDER).as_posix()] = {
                "bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
            }
    return {"about": "see README.md", "origins": ORIGINS, "files": files}


if __name__ == "__main__":
    (FOLDER / "MANIFEST.json").write_text(json.dumps(contents(), indent=1) + "\n")
