"""`npu validate-model`: what the simulations predict for published figures, with the errors."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from npu.cli import common

if TYPE_CHECKING:
    from npu.perf import published_atb
    from npu.perf.published import Comparison

PAPER = "arXiv 2512.13282"
HELP = "compare the simulated times with published measurements"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--method",
        choices=("emulator", "closed-form", "both", "atb", "all"),
        default="all",
        help="which model; both: those of designs, atb: of BFP16 products with asymmetric tile "
        "buffering (default: all)",
    )
    parser.add_argument(
        "--constants", action="store_true", help="print the timing constants and stop"
    )

    parser.add_argument(
        "--report", metavar="FILE",
        help="compare with the times that `npu selftest` measured on an NPU, and stop",
    )  # fmt: skip
    common.add_profile_arguments(parser)
    parser.add_argument(
        "--machines", action="store_true",
        help="list the machines that --machine of every simulation names, and stop",
    )  # fmt: skip
    parser.add_argument(
        "--cross-validate",
        action="store_true",
        help="refit the constants without each figure in turn, predict it, and stop (20 s)",
    )


def run(arguments: argparse.Namespace) -> int:
    from npu import _npu
    from npu.errors import ArgumentError
    from npu.perf import published, published_atb

    if arguments.cross_validate:
        return _cross_validate(arguments.json)
    if arguments.machines:
        return _machines(arguments.json)
    if arguments.report:
        return _report(arguments)
    if arguments.machine:
        raise ArgumentError(
            "[validate-model] published figures are compared on the machines they are of; "
            "--machine belongs to --report FILE"
        )

    constants = _npu.perf.constants()
    if arguments.constants:
        return _constants(constants, arguments.json)
    chosen = arguments.method
    of_designs = published.MODELS if chosen in ("both", "all") else (chosen,)
    methods = [model for model in of_designs if model in published.MODELS]
    kernels = arguments.kernels or "published"
    results = {method: published.compare(method, kernels=kernels) for method in methods}
    errors = {method: published.mean_errors(found) for method, found in results.items()}
    tiles = published_atb.compare() if chosen in ("atb", "all") else []
    if arguments.json:
        rows = [_row(c) for found in results.values() for c in found]
        rows += [_atb_row(c) for c in tiles]
        if tiles:
            errors["atb"] = published_atb.mean_errors(tiles)
        document = {"kernels": kernels, "figures": rows, "mean_absolute_error": errors}
        print(json.dumps(document, indent=2))
        return 0
    for method, found in results.items():
        _print(method, found, errors[method], kernels)
    if tiles:
        _print_atb(tiles)
    return 0


def _cross_validate(as_json: bool) -> int:
    from npu.perf import published_atb
    from npu.perf.cross_validation import METRICS, cross_validate

    found = cross_validate()
    tiles = published_atb.cross_validate()
    of_tiles = {
        metric: _mean([abs(error) for row, error in tiles if row.metric == metric])
        for metric in published_atb.FITTED
    }
    means = {
        metric: {
            "leave_one_out": _mean([abs(x.leave_one_out) for x in part]),
            "half": _mean([x.half for x in part]),
        }
        for metric in METRICS
        if (part := [x for x in found if x.published.metric == metric])
    }
    if as_json:
        rows = [
            {"id": x.published.id, "leave_one_out": x.leave_one_out, "half": x.half} for x in found
        ]
        rows += [{"id": row.id, "leave_one_out": error} for row, error in tiles]
        both = means | {"atb": {name: {"leave_one_out": x} for name, x in of_tiles.items()}}
        print(json.dumps({"figures": rows, "mean_absolute_error": both}, indent=2))
        return 0
    print("closed form, error on figures that its constants were not fitted to")
    print(f"  {'figure':22} {'leave one out':>14} {'half left out':>14}")
    for x in found:
        print(f"  {x.published.id:22} {100 * x.leave_one_out:+12.1f} % {100 * x.half:12.1f} %")
    for metric, mean in means.items():
        label = f"mean, {metric}"
        print(f"  {label:22} {100 * mean['leave_one_out']:12.1f} % {100 * mean['half']:12.1f} %")
    print("atb, the same")
    for row, error in tiles:
        print(f"  {row.id:30} {100 * error:+6.1f} %")
    for metric, value in of_tiles.items():
        print(f"  {'mean, ' + metric:30} {100 * value:6.1f} %")
    return 0


def _report(arguments: argparse.Namespace) -> int:
    """Times of a self-test beside simulated ones, with the constants of this version."""
    from npu.hardware.selftest.validate import validate

    found = validate(arguments.report, arguments.machine, arguments.kernels)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(found), indent=2))
        return 0
    print(
        f"{found.device}: measured (median, microseconds) against simulated, machine "
        f"{found.machine}; kernels: {found.kernels}"
    )
    print(f"  {'operation':10} {'example':46} {'measured':>10} {'simulated':>10} {'error':>8}")
    for row in found.rows:
        print(
            f"  {row.operation:10} {row.example:46} {1e6 * row.measured:10.1f} "
            f"{1e6 * row.simulated:10.1f} {100 * row.error:+7.1f} %"
        )
    print(f"  mean absolute error: {100 * found.mean_absolute_error:.1f} %")
    for name in found.skipped:
        print(f"  not compared: {name}")
    return 0


def _machines(as_json: bool) -> int:
    """The profiles, and what the memory of each gives."""
    from npu.perf import machines

    if as_json:
        print(json.dumps(machines.document(), indent=2))
        return 0
    for machine in machines.MACHINES:
        default = ", default" if machine.default else ""
        print(f"{machine.name} ({machine.generation}{default}): {machine.about}")
        for c in machine.memory():
            print(f"    {c.name} = {c.value:g} {c.unit}, {c.grade}: {c.source}")
    print("all other constants: npu validate-model --constants")
    return 0


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def constants_table(constants: list[dict[str, Any]]) -> str:
    """The constants as a Markdown table (docs/timing.md carries it)."""
    lines = [
        "| constant | value | unit | grade | source | fitted on |",
        "|---|---|---|---|---|---|",
    ]
    for c in constants:
        lines.append(
            f"| `{c['name']}` | {c['value']:g} | {c['unit']} | {c['grade']} | {c['source']} | "
            f"{c['fitted_on'] or '-'} |"
        )
    fitted = sum(c["grade"] == "fitted" for c in constants)
    return "\n".join([*lines, "", f"{len(constants)} constants, {fitted} fitted."])


def _constants(constants: list[dict[str, Any]], as_json: bool) -> int:
    """The table of all models, and that of npu.perf.atb."""
    from npu.perf import atb

    own = [dataclasses.asdict(constant) for constant in atb.CONSTANTS]
    if as_json:
        print(json.dumps([*constants, *own], indent=2))
        return 0
    print(constants_table(constants))
    print(f"\nmodel atb:\n\n{constants_table(own)}")
    return 0


def _row(c: Comparison) -> dict[str, Any]:
    p = c.published
    return {
        "id": p.id, "paper": PAPER, "where": p.where, "device": p.device, "metric": p.metric,
        "method": c.model, "published": p.value, "simulated": c.predicted, "error": c.error,
        "holds": c.holds if p.is_bound else None, "note": p.note,
    }  # fmt: skip


def _atb_row(c: published_atb.Comparison) -> dict[str, Any]:
    from npu.perf.published_atb import MACHINE, PAPER

    p = c.published
    return {
        "id": p.id, "paper": PAPER, "machine": MACHINE, "where": p.where, "device": "npu2",
        "metric": p.metric, "method": "atb", "published": p.value, "simulated": c.predicted,
        "error": c.error, "holds": None, "note": p.note,
    }  # fmt: skip


def _print_atb(found: list[published_atb.Comparison]) -> None:
    from npu.perf.published_atb import MACHINE, PAPER, mean_errors

    print(f"atb: simulated against published ({PAPER}), machine {MACHINE}")
    print(
        f"  {'figure':24} {'where':12} {'metric':24} {'published':>9} {'simulated':>9} {'error':>7}"
    )
    for c in found:
        p = c.published
        print(
            f"  {p.id:24} {p.where:12} {p.metric:24} {p.value:9.4g} {c.predicted:9.4g} "
            f"{100 * c.error:+6.1f} %" + (f"  {p.note}" if p.note else "")
        )
    print("  mean absolute error:")
    for name, value in sorted(mean_errors(found).items()):
        print(f"    {name:34} {100 * value:5.2f} %")


def _print(method: str, found: list[Comparison], errors: dict[str, float], kernels: str) -> None:
    print(f"{method}: simulated against published ({PAPER}); kernels: {kernels}")
    print(
        f"  {'figure':22} {'where':14} {'metric':24} {'published':>9} {'simulated':>9} {'error':>7}"
    )
    for c in found:
        p = c.published
        bound = "holds" if c.holds else "FAILS"
        error = bound if c.error is None else f"{100 * c.error:+.1f} %"
        print(
            f"  {p.id:22} {p.where:14} {p.metric:24} {p.value:9.4g} {c.predicted:9.4g} {error:>7}"
        )
    print("  mean absolute error:")
    for name, value in sorted(errors.items()):
        print(f"    {name:34} {100 * value:5.2f} %")
    print()
