"""Weights in the layout that the array reads, packed once for all products until they change.

A packed copy belongs to a piece of a storage. It is used again while the storage lives, its version
counter stands, and a sample of its values is the same: writes through ``.data``, which count for no
version, change some value of the sample when they change all of a matrix. Steps of optimisers
always count (npu.torch.versions).
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import npu.torch.versions  # noqa: F401
from npu.devices import Device
from npu.ops.matmul import PackedMatrix, pack, pack_like
from npu.torch.tensors import array_of

_SAMPLED = 16  # rows, and columns of each
_PIECES = 16  # of one storage that are kept; a layer has two, W and its transpose


@dataclasses.dataclass(frozen=True)
class _Entry:
    storage: StorageWeakRef
    version: int
    sample: bytes
    matrix: PackedMatrix


_entries: dict[tuple[Any, ...], _Entry] = {}
_lock = threading.Lock()


def right_operand(b: torch.Tensor, device: Device, bf16: str | None) -> np.ndarray | PackedMatrix:
    """b (K, N) as an operand of ``npu.matmul``: itself if the device can read it where it lies,
    else a packed copy, from an earlier call if nothing has changed since."""
    array = array_of(b)
    if b.dtype is torch.bfloat16 or b.is_inference() or 0 in b.shape:
        return array  # matmul reads it in place, or the version of its values is not known
    storage = StorageWeakRef(b.untyped_storage())
    key = (storage.cdata, b.storage_offset(), *b.shape, *b.stride(), b.dtype, id(device), bf16)
    version, sample = b._version, _sample(array)
    with _lock:
        found = _entries.get(key)
    if found and not found.storage.expired() and (found.version, found.sample) == (version, sample):
        return found.matrix
    matrix = pack(array, bf16=bf16, device=device)
    with _lock:
        _entries.pop(key, None)
        for other in [one for one, entry in _entries.items() if entry.storage.expired()]:
            del _entries[other]
        pieces = [one for one in _entries if one[0] == storage.cdata]
        for other in pieces[: max(0, len(pieces) + 1 - _PIECES)]:
            del _entries[other]
        _entries[key] = _Entry(storage, version, sample, matrix)
    return matrix


def beside_weight(
    b: torch.Tensor, weight: torch.Tensor, device: Device, bf16: str | None
) -> np.ndarray | PackedMatrix:
    """b (K, N) of a product whose layer also multiplies by ``weight``, as its products of inputs
    do: in the layout of the packed weight, so that the layer runs on one configuration. Nothing is
    copied that matmul would not copy."""
    array = array_of(b)
    if torch.bfloat16 in (b.dtype, weight.dtype) or 0 in (*b.shape, *weight.shape):
        return array
    k, n = weight.shape
    return pack_like(array, (k, n), bf16=bf16, device=device)


def _sample(array: np.ndarray) -> bytes:
    rows, columns = (max(1, size // _SAMPLED) for size in array.shape)
    return array[::rows, ::columns].tobytes()
