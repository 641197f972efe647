"""`--kernels both`: a simulated command once per profile of kernels; figures in one JSON document
or one after the other, files with the profile in their names."""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
from pathlib import Path

from npu.perf.kernel_profile import PROFILES

BOTH = "both"
_WRITTEN = ("json", "csv", "plot", "output", "png")  # options that name a file, or - for stdout


def run(arguments: argparse.Namespace) -> int:
    """Runs the command of the parsed line with every profile; the first code that is not 0."""
    document = getattr(arguments, "json", None) in (True, "-")
    found, codes = {}, []
    for profile in PROFILES:
        own = _of(arguments, profile)
        if not document:
            codes.append(own.run(own))
            continue
        with contextlib.redirect_stdout(io.StringIO()) as text:
            codes.append(own.run(own))
        if codes[-1]:
            break
        found[profile] = json.loads(text.getvalue())
    if found:
        print(json.dumps(found, indent=1))
    return next((code for code in codes if code), 0)


def _of(arguments: argparse.Namespace, profile: str) -> argparse.Namespace:
    own = copy.copy(arguments)
    own.kernels = profile
    for name in _WRITTEN:
        value = getattr(own, name, None)
        if isinstance(value, str) and value != "-":
            path = Path(value)
            stem, dot, rest = path.name.partition(".")
            setattr(own, name, str(path.with_name(f"{stem}.{profile}{dot}{rest}")))
    return own
