"""README.md and docs/: the Python of the README and of the command-stream page runs and prints what
the page shows, every NPU_ variable the code reads is documented, every section of
docs/reference/hardware.md that the sources cite exists, docs/reference/api.md is what the
docstrings say. What pages mention exists: test_docs_references.py.

docs/adding_a_design.md and docs/tracing.md have tests of their own (test_designs_docs.py,
test_trace.py).
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_readme_example_is_ten_lines_and_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NPU_DEVICE", "NPU_ARITHMETIC"):
        monkeypatch.delenv(name, raising=False)
    (code,) = blocks("README.md", "python")
    assert code.count("\n") == 10
    names: dict[str, object] = {}
    exec(code, names)
    device, error, stats = capsys.readouterr().out.splitlines()
    assert f"# {device}\n" in code
    # 500 products of normal numbers, both factors rounded to 2^-9 relative: standard deviation
    # sqrt(2 * 500) * 0.42 * 2^-8; eight of them for the largest of 210000.
    assert 0 < float(error) < 8 * 1000**0.5 * 0.42 * 2**-8
    assert stats.startswith("Stats(configuration_loads=")


def test_command_stream_page_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("docs/reference/command_stream.md", "python")
    exec(code, {})
    printed = capsys.readouterr().out.rstrip("\n")
    assert f"```\n{printed}\n```" in (ROOT / "docs/reference/command_stream.md").read_text()


def test_cited_hardware_sections_exist() -> None:
    headings = (ROOT / "docs/reference/hardware.md").read_text()
    numbers = set(re.findall(r"^#+ (\d+(?:\.\d+)?)[. ]", headings, re.MULTILINE))
    cited: dict[str, Path] = {}
    for folder, pattern in (("backend", "*.[ch]*"), ("tests/cpp", "*.[ch]*"), ("designs", "*.py")):
        for path in ROOT.glob(f"{folder}/**/{pattern}"):
            text = re.sub(r"\s*//\s*|\s+", " ", path.read_text())
            for lists in re.findall(
                r"hardware\.md (?:sections? )?(\d(?:\.\d)?(?:(?:, | and )\d\.\d)*)", text
            ):
                cited.update(dict.fromkeys(re.split(r", | and ", lists), path))
    assert len(cited) >= 8
    assert {number: path for number, path in cited.items() if number not in numbers} == {}


def test_the_api_page_is_current() -> None:
    """After a change of public docstrings: python docs/generate_api.py"""
    page = runpy.run_path(str(ROOT / "docs/generate_api.py"))["page"]()
    assert (ROOT / "docs/reference/api.md").read_text() == page


def test_the_index_names_every_page_once() -> None:
    index = (ROOT / "docs/README.md").read_text()
    pages = {p.relative_to(ROOT / "docs").as_posix() for p in ROOT.glob("docs/**/*.md")}
    assert {page: index.count(f"]({page})") for page in pages - {"README.md"}} == {
        page: 1 for page in pages - {"README.md"}
    }


def test_environment_variables_are_documented() -> None:
    sources = [*ROOT.glob("python/**/*.py"), *ROOT.glob("backend/**/*.cpp")]
    pattern = re.compile(r"(?:getenv\(|environ\.get\(|environ\[)\"(NPU_\w+)\"")
    read = {name for path in sources for name in pattern.findall(path.read_text())}
    table = (ROOT / "docs/architecture.md").read_text()
    assert len(read) >= 5
    assert {name for name in read if f"| `{name}` |" not in table} == set()


def test_benchmarking_lists_the_columns_of_a_sweep() -> None:
    from npu.cli import bench_gemm
    from npu.cli.bench_gemm_sweep import Case
    from npu.perf.problem import design_point

    case = Case(design_point("npu2", tile=(64, 64, 64)), "closed-form")
    size = (512, 512, 512)
    columns = ", ".join(bench_gemm.row(case, size, case.run(size)))
    page = " ".join((ROOT / "docs/benchmarking.md").read_text().split())
    assert columns in page.replace(" (of the time)", "")
