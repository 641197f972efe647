"""The ports of a configuration by the shim channels that they are, as tracks name those."""

from __future__ import annotations

from npu import _npu


def port_names(config: bytes) -> dict[str, str]:
    """The port of each channel, {"shim (0,0) MM2S 1": "B0"}; of those that share one, the first:
    its data, not programs."""
    names: dict[str, str] = {}
    for name, col, direction, channel, _ in _npu.device.parse_configuration(config)["ports"]:
        names.setdefault(f"shim ({col},0) {direction.upper()} {channel}", name)
    return names
