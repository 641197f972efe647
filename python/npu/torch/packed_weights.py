"""Weights as the array reads them, packed or rounded once for all products until they change.

A copy belongs to a piece of a storage. It is used again while the storage lives, its version
counter stands, and a sample of its values is the same: writes through ``.data``, which count for no
version, change some value of the sample when they change all of a matrix. Steps of optimisers
always count (npu.torch.versions).
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import npu.torch.versions  # noqa: F401
from npu import _npu
from npu.devices import Device
from npu.ops.arrays import bytes_of, typed_view
from npu.ops.matmul import PackedMatrix, pack, pack_like
from npu.torch.tensors import array_of

_SAMPLED = 16  # rows, and columns of each
_PIECES = 16  # of one storage that are kept; a layer has two, W and its transpose


@dataclasses.dataclass(frozen=True)
class _Entry:
    storage: StorageWeakRef
    version: int
    sample: bytes
    copy: Any


_Copy = TypeVar("_Copy")
_entries: dict[tuple[Any, ...], _Entry] = {}
_lock = threading.Lock()


def right_operand(b: torch.Tensor, device: Device, bf16: str | None) -> np.ndarray | PackedMatrix:
    """b (K, N) as an operand of ``npu.matmul``: itself if the device can read it where it lies,
    else a packed copy, from an earlier call if nothing has changed since."""
    array = array_of(b)
    if b.dtype is torch.bfloat16 or b.is_inference() or 0 in b.shape:
        return array  # matmul reads it in place, or the version of its values is not known
    return _kept(b, (id(device), bf16), lambda: pack(array, bf16=bf16, device=device))


def rounded_weight(weight: torch.Tensor, device: Device) -> torch.Tensor:
    """The weight in bfloat16, as it lies in memory: itself, or a copy, from an earlier call if
    nothing has changed since."""
    if weight.dtype is torch.bfloat16 or weight.is_inference():
        return rounded(weight, device)
    return _kept(weight, ("rounded",), lambda: rounded(weight, device))


def rounded(x: torch.Tensor, device: Device) -> torch.Tensor:
    """A tensor in bfloat16, in the order in which it lies; a copy counts as one of the device's."""
    if x.dtype is torch.bfloat16:
        return x
    begin = time.perf_counter_ns()
    copy = torch.empty_like(x, dtype=torch.bfloat16, requires_grad=False)
    # The order of its memory is that of x, or row by row where x has gaps.
    turned = x.dim() == 2 and not copy.is_contiguous()
    source, target = (x.T, copy.T) if turned else (x, copy)
    if x.dtype is torch.float32 and target.is_contiguous() and x.dim() > 0 and x.numel() > 0:
        width = source.shape[-1]
        view, name = typed_view(array_of(source.reshape(-1, width)))
        _npu.ops.round_to_bf16(view, name, bytes_of(array_of(target.view(-1, width))))
    else:
        copy.copy_(x.detach())
    device.count_copy(time.perf_counter_ns() - begin, copy.numel() * copy.element_size())
    return copy


def _kept(tensor: torch.Tensor, kind: tuple[Any, ...], make: Callable[[], _Copy]) -> _Copy:
    """A copy of some kind, made again when the tensor has changed."""
    storage = StorageWeakRef(tensor.untyped_storage())
    layout = *tensor.shape, *tensor.stride(), tensor.dtype
    key = (storage.cdata, tensor.storage_offset(), *layout, *kind)
    version, sample = tensor._version, _sample(array_of(tensor))
    with _lock:
        found = _entries.get(key)
    if found and not found.storage.expired() and (found.version, found.sample) == (version, sample):
        kept: _Copy = found.copy
        return kept
    copy = make()
    with _lock:
        _entries.pop(key, None)
        for other in [one for one, entry in _entries.items() if entry.storage.expired()]:
            del _entries[other]
        pieces = [one for one in _entries if one[0] == storage.cdata]
        for other in pieces[: max(0, len(pieces) + 1 - _PIECES)]:
            del _entries[other]
        _entries[key] = _Entry(storage, version, sample, copy)
    return copy


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
