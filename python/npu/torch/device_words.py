"""Devices as words: arguments of operators are tensors, numbers and text."""

from __future__ import annotations

from npu.devices import Device, current_device, open_device

_devices: dict[str, Device] = {}


def word_of(device: Device) -> str:
    """A word for a device and its choices, which another process understands, too."""
    arithmetic = device.arithmetic if device.emulated else ""
    choices = (
        arithmetic, device.bf16_chosen, device.kernel_chosen, device.prefers, device.machine,
        device.kernels,
    )  # fmt: skip
    word = ",".join((device.name, *(choice or "" for choice in choices)))
    _devices[word] = device
    return word


def device_of(word: str) -> Device:
    """The device of a word; of the empty one, the current device."""
    if not word:
        return current_device()
    if word not in _devices:  # in a graph that another process compiled
        name, *choices = word.split(",")
        _devices[word] = open_device(name, *(choice or None for choice in choices))
    return _devices[word]
