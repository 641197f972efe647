"""Every command takes short and long names of element types, and an error names the option."""

from __future__ import annotations

import argparse
import re

import pytest

from npu import cli
from npu.cli import bench, build_parser, dtypes

# Command lines that take --dtype and --out-dtype, without them.
LINES = {
    "tune": ["tune", "gemm"],
    "trace": ["trace", "8", "8", "8"],
    "inspect": ["inspect", "--gemm", "8"],
    "compile": ["compile", "gemm"],
    "sweep": ["bench", "gemm"],
    "designs": ["bench", "gemm", "--designs", "default"],
    "curve": ["bench", "gemm", "--k-mt-curve"],
}


def parsed(words: list[str]) -> argparse.Namespace:
    rest = words[1:]
    if words[0] == "bench":
        rest = bench.expand(rest)
    return build_parser().parse_args([words[0], *rest])


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
@pytest.mark.parametrize(
    ("short", "long"), [("bf16", "bfloat16"), ("i8", "int8"), ("INT16", "int16")]
)
def test_short_and_long_names_are_the_same(line: list[str], short: str, long: str) -> None:
    for option in ("--dtype", "--out-dtype"):
        one, other = (vars(parsed([*line, option, name])) for name in (short, long))
        assert one == other
        key = option.strip("-").replace("-", "_")
        assert one[key] in (long, [long])


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_an_unknown_name_is_an_error_of_the_option(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for option, name, offered in (
        ("--dtype", "float64", "bfloat16 (bf16)"),
        ("--dtype", "float32", "int8 (i8)"),  # known, but not of operands
        ("--out-dtype", "int64", "float32 (f32)"),
    ):
        assert cli.main([*line, option, name]) == 2
        err = capsys.readouterr().err
        assert f"argument {option}: {name!r} is not" in err and offered in err
        assert err.count("\n") == 1


def test_host_measurements_take_short_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed(["bench", "gemm", "--host", "--dtype", "bf16"]).dtype == ["bfloat16"]
    assert cli.main(["bench", "gemm", "--host", "--dtype", "half"]) == 2
    assert "argument --dtype: 'half' is not an element type" in capsys.readouterr().err


def test_no_command_has_names_of_its_own() -> None:
    """Each --dtype and --out-dtype of the whole command line is read by npu.cli.dtypes."""

    def options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
        found = []
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for sub in action.choices.values():
                    found += options(sub)
            elif any(re.fullmatch(r"--(out-)?dtype", name) for name in action.option_strings):
                found.append(action)
        return found

    found = options(build_parser())
    assert len(found) >= 2 * len(LINES)
    readers = {dtypes.operand, dtypes.operands, dtypes.result, dtypes.results}
    readers |= {dtypes.operand_or_blocks, dtypes.result_or_blocks, dtypes.tensor}
    assert all(action.type in readers for action in found)
