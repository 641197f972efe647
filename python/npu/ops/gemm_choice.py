"""Which of several configurations computes a product: the policy alone, without device or estimate.

A configuration that is not loaded costs a load (milliseconds, `load_npu*` of docs/timing.md). So

- when none of the candidates is loaded, a load is due anyway: the fastest for this problem wins;
- otherwise the loaded one stays until another would have saved more than HYSTERESIS loads over the
  calls since the last load. Calls that the loaded one computes faster count against the other;
  nobody's savings fall below zero.

HYSTERESIS is 2 because a load brings the other configuration and another may bring this one back.
So sizes that alternate never make configurations alternate at a loss: a change is paid twice, by
time that is lost already or by what the call that causes it saves. With two candidates the policy
loses at most three times what keeping the better one from the start would (and a few loads), the
bound of such decisions without foresight; tests/python/ops/test_gemm_choice.py has the argument.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

HYSTERESIS = 2.0  # loads that a change must have saved

C = TypeVar("C", bound=Hashable)


@dataclass(frozen=True)
class Ledger(Generic[C]):
    """What is loaded, and the seconds that each other candidate would have saved since then."""

    loaded: C | None = None
    saved: Mapping[C, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision(Generic[C]):
    """The configuration that runs, whether it has to be loaded, and the ledger after this call."""

    candidate: C
    loads: bool
    reason: str
    ledger: Ledger[C]


def decide(seconds: Mapping[C, float], ledger: Ledger[C], load_seconds: float) -> Decision[C]:
    """The candidate for one call.

    seconds: predicted time of this problem with each candidate, not empty; of equals the first
    wins. load_seconds: of changing the configuration.
    """
    fastest = min(seconds, key=lambda c: seconds[c])
    now = ledger.loaded
    if now is None or now not in seconds:
        return Decision(fastest, True, "the fastest; none was loaded", Ledger(fastest))
    saved = {
        c: max(0.0, ledger.saved.get(c, 0.0) + seconds[now] - time)
        for c, time in seconds.items()
        if c != now
    }
    best = max(saved, key=lambda c: saved[c], default=now)
    if best != now and saved[best] > HYSTERESIS * load_seconds:
        return Decision(best, True, "saves more than its load", Ledger(best))
    reason = "loaded and the fastest" if fastest == now else "loaded; a change does not pay yet"
    return Decision(now, False, reason, Ledger(now, {**ledger.saved, **saved}))
