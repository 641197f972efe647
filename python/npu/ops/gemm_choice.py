"""Which of several configurations computes a product: the policy, which C++ has
(backend/ops/gemm/gemm_choice.h says how it decides and why)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from npu import _npu

HYSTERESIS: float = _npu.gemm_choice.HYSTERESIS  # loads that a change must have saved
Ledger = _npu.gemm_choice.Ledger


@dataclass(frozen=True)
class Decision:
    """The configuration that runs, whether it has to be loaded, and the ledger after this call."""

    candidate: str
    loads: bool
    reason: str
    ledger: Ledger


def decide(seconds: Mapping[str, float], ledger: Ledger, load_seconds: float) -> Decision:
    """The candidate for one call.

    seconds: predicted time of this problem with each candidate, not empty; of equals the first
    wins. load_seconds: of changing the configuration.
    """
    return Decision(*_npu.gemm_choice.decide(dict(seconds), ledger, load_seconds))
