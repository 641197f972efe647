"""README.md and docs/: the Python of the README and of the command-stream page runs and prints what
the page shows, links lead somewhere, every NPU_ variable the code reads is documented, every
section of docs/reference/hardware.md that the sources cite exists, docs/reference/api.md is what
the docstrings say.

docs/adding_a_design.md has a test of its own (test_designs_docs.py).
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("*/*/README.md")),
]


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)  # a lambda is no link
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("http") or (page.parent / target).exists(), target


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


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text()
    pages = [p.relative_to(ROOT / "docs").as_posix() for p in ROOT.glob("docs/**/*.md")]
    assert [page for page in pages if page != "README.md" and f"({page})" not in index] == []


def test_environment_variables_are_documented() -> None:
    sources = [*ROOT.glob("python/**/*.py"), *ROOT.glob("backend/**/*.cpp")]
    pattern = re.compile(r"(?:getenv\(|environ\.get\(|environ\[)\"(NPU_\w+)\"")
    read = {name for path in sources for name in pattern.findall(path.read_text())}
    table = (ROOT / "docs/architecture.md").read_text()
    assert len(read) >= 5
    assert {name for name in read if f"| `{name}` |" not in table} == set()
