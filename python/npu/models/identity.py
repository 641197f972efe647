"""What tells one model from another without reading all of it.

``fingerprint`` covers the model's files: their sizes, the first MiB (metadata and tensor table) and
256 pieces of 256 bytes spread over the rest. ``identity`` is what keys and values depend on: the
fingerprint, the time of the files' last change, the configuration, and the arithmetic (generation
of the device, order of sums, products, choice of the weights' blocks). Names and folders do not
count.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence
from typing import Any

from npu.devices import Device

_HEAD_BYTES, _SAMPLES, _SAMPLE_BYTES = 1 << 20, 256, 256


def fingerprint(paths: Sequence[str]) -> str:
    """32 hexadecimal digits for the content of a model's files. Raises OSError."""
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(f"{size}\n".encode())
            digest.update(file.read(_HEAD_BYTES))
            for sample in range(_SAMPLES):
                file.seek(size * sample // _SAMPLES)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def files_identity(paths: Sequence[str]) -> str:
    """The part of an identity that the files decide; of a model without files, a random one."""
    try:
        times = [os.stat(path).st_mtime_ns for path in paths]
        found = fingerprint(paths)
    except OSError:
        times = []
    if not times:
        return f"model {secrets.token_hex(16)}"
    return f"model {found}; changed {','.join(map(str, times))}"


def identity(files: str, config: Any, weights: str, device: Device, bf16: str, prompts: str) -> str:
    """The identity of what a model computes on a device. ``weights``: as ``load`` takes it;
    ``prompts``: how those are computed."""
    shape = hashlib.blake2b(repr(config).encode(), digest_size=8).hexdigest()
    return (
        f"{files}; configuration {shape}; weights {weights}; "
        f"device {device.generation}, {device.arithmetic}, {bf16}; prompts {prompts}"
    )
