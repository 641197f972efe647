"""What a benchmark's figures belong to: program, machine, device, model. Every JSON document of
`npu bench` carries it as ``stamp``; `npu bench --compare` reads it."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def stamp(
    benchmark: str, document: Mapping[str, Any], model_paths: Sequence[str] = ()
) -> dict[str, Any]:
    """The stamp of a document. ``benchmark``: the words after `npu bench`; device, arithmetic,
    machine and kernels (what was simulated) are those of the document (null: several, or none);
    ``model_paths``: files of the model."""
    from npu import __version__
    from npu.models.identity import fingerprint

    return {
        "benchmark": benchmark,
        "version": __version__,
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": document.get("device"),
        "arithmetic": document.get("arithmetic"),
        "machine": document.get("machine"),
        "kernels": document.get("kernels"),
        "host_cpu": _cpu(),
        "host_cpus": len(os.sched_getaffinity(0)),
        "model": fingerprint(model_paths) if model_paths else None,
    }


def _commit() -> str | None:
    """The commit of the checkout that the package runs from, "+" behind it if files differ from it;
    of an installed package, the one that pip installed; None where nobody knows."""
    root = Path(__file__).resolve().parents[3]
    if (root / "python/npu").is_dir() and (root / ".git").exists():
        found = _git(root, "rev-parse", "HEAD")
        if found:
            return found + ("+" if _git(root, "status", "--porcelain", "-uno") else "")
    return _installed_commit()


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _installed_commit() -> str | None:
    from importlib import metadata

    try:
        text = metadata.distribution("npu-xdna").read_text("direct_url.json")
        return str(json.loads(text or "{}")["vcs_info"]["commit_id"])
    except (metadata.PackageNotFoundError, KeyError, TypeError, ValueError):
        return None


def _cpu() -> str:
    """The name of this machine's processor."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
