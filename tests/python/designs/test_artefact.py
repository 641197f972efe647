"""A configuration names its hardware artefact: the same design and kernels give the same name,
another design, another generation and other kernel sources another one."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

from npu import _npu
from npu.designs import gemm
from npu.designs.lowering import configuration
from npu.ops.registry import operation


def artefact(config: bytes) -> str:
    return str(_npu.device.Configuration.parse(config).artefact)


def test_artefacts_are_told_apart(monkeypatch):
    names = [
        artefact(operation(name).configuration(generation))
        for name in ("gemm", "gemv", "rms_norm")
        for generation in ("npu1", "npu2")
    ]
    names.append(artefact(gemm.configuration("npu2", "int8", "int8", tile=(32, 32, 32))))
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"\w+-npu[12]-[0-9a-f]{16}", name) for name in names)

    design = gemm.design("npu2", "int8", "int8", tile=(32, 32, 32))
    assert artefact(configuration(design)) == names[-1]
    changed = SimpleNamespace(SOURCE_HASH="0" * 64)
    module = sys.modules["npu.designs.lowering.serialise"]  # the package has a function of the name
    monkeypatch.setattr(module, "kernels", changed)
    assert artefact(configuration(design)) != names[-1]
