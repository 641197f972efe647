"""``npu.torch.offload``: the linear layers of a model, run on the NPU in place and reversibly.

A layer changes its class; the object, its parameters, hooks and names in the state dictionary stay.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from npu.devices import Device
from npu.errors import ArgumentError
from npu.torch.functions import checked_choices
from npu.torch.modules import Linear, conv1d_of
from npu.torch.tensors import FLOATS

MIN_SIZE = 1 << 14  # weights of a layer: below, a call costs more than the product
Include = str | Iterable[str] | Callable[[str, torch.nn.Module], bool]


@dataclasses.dataclass(frozen=True)
class Change:
    """A linear layer: its name in the model, its class, the shape of its weight; ``reason``: why it
    stays on the host, "" if it was offloaded."""

    name: str
    kind: str
    shape: tuple[int, ...]
    reason: str = ""


class Offloaded:
    """What ``offload`` did: ``changed`` and ``kept``, both of ``Change``; prints as a table.
    ``restore()`` undoes it."""

    def __init__(self) -> None:
        self.changed: list[Change] = []
        self.kept: list[Change] = []
        self._before: list[tuple[torch.nn.Module, type]] = []

    def restore(self) -> None:
        """Gives layers that are still offloaded their class back. Values of parameters stay."""
        for module, kind in self._before:
            if type(module) in (Linear, conv1d_of(kind)):
                module.__class__ = kind
                del module.npu
        self._before.clear()

    def __str__(self) -> str:
        weights = sum(_size(change.shape) for change in self.changed)
        lines = [f"{len(self.changed)} layers with {weights:,} weights run on the NPU"]
        lines += [f"  {one.name}  {one.kind} {_text(one.shape)}" for one in self.changed]
        if self.kept:
            lines.append(f"{len(self.kept)} stay on the host")
        lines += [f"  {one.name}  {one.kind} {_text(one.shape)}: {one.reason}" for one in self.kept]
        return "\n".join(lines)

    __repr__ = __str__


def offload(
    model: torch.nn.Module,
    *,
    min_size: int = MIN_SIZE,
    include: Include | None = None,
    device: str | Device | None = None,
    bf16: str | None = None,
    accumulate: str = "wide",
) -> Offloaded:
    """Runs the products of a model's linear layers, forward and backward, on the NPU.

    Every ``torch.nn.Linear`` and transformers' ``Conv1D`` of ``model`` becomes an offloaded one in
    place, if its weight has at least ``min_size`` elements. ``include``: only layers whose name
    matches a pattern ("*.mlp.*", or several), or for which a function of name and module is true.
    ``device``: default the current one of each call; ``bf16``, ``accumulate``: as in
    ``npu.matmul``. Parameters, optimisers and checkpoints stay what they are.
    Raises ArgumentError, DeviceError.
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(
            f"[torch.offload] model is {type(model).__name__}; pass a torch.nn.Module"
        )
    if isinstance(min_size, bool) or not isinstance(min_size, int) or min_size < 0:
        raise ArgumentError(f"[torch.offload] min_size is {min_size!r}; it must be a number >= 0")
    choices = checked_choices("torch.offload", bf16, accumulate, device)
    wanted = _wanted(include)
    report = Offloaded()
    for name, module, kind in _layers(model):
        shape = () if is_lazy(module.weight) else tuple(module.weight.shape)
        reason = _reason(module, kind, min_size) or ("" if wanted(name, module) else "not included")
        if reason:
            report.kept.append(Change(name, kind.__name__, shape, reason))
            continue
        report._before.append((module, type(module)))
        report.changed.append(Change(name, kind.__name__, shape))
        module.__class__ = Linear if kind is torch.nn.Linear else conv1d_of(kind)
        module.npu = choices
    return report


def _layers(model: torch.nn.Module) -> Iterator[tuple[str, Any, type]]:
    """Every linear layer with its name and the class that it is or stands for, each once."""
    for name, module in model.named_modules():
        for kind in type(module).__mro__:
            if kind is torch.nn.Linear or _is_conv1d(kind):
                yield name or "the model", module, kind
                break


def _is_conv1d(kind: type) -> bool:
    return (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D")


def _reason(module: Any, kind: type, min_size: int) -> str:
    """Why a layer stays on the host; "": it need not."""
    weight = module.weight
    if is_lazy(weight):
        return "its size is not known before the first batch"
    if type(module) is not kind:
        offloaded = type(module) is Linear or type(module) is conv1d_of(kind)
        return "offloaded before" if offloaded else f"{type(module).__name__} is another class"
    if "forward" in vars(module):
        return "its forward was replaced"
    if not isinstance(weight, torch.nn.Parameter):
        return "its weight is computed"
    if weight.dtype not in FLOATS:
        return f"its weight is {weight.dtype}"
    if weight.device.type not in ("cpu", "meta"):
        return f"its weight is on {weight.device}"
    if weight.numel() < min_size:
        return f"fewer than {min_size:,} weights"
    return ""


def _wanted(include: Include | None) -> Callable[[str, torch.nn.Module], bool]:
    if include is None:
        return lambda name, module: True
    if callable(include):
        return include
    patterns = [include] if isinstance(include, str) else include
    patterns = list(patterns) if isinstance(patterns, Iterable) else [patterns]
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise ArgumentError(
            f"[torch.offload] include is {include!r}; pass patterns of names such as "
            '"*.mlp.*", or a function of name and module'
        )
    return lambda name, module: any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _size(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def _text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
