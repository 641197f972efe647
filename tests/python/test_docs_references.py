"""What the documentation names exists: files, links and their anchors, `npu` command lines,
options, Python names and identifiers of the sources; and its lines end at column 110. The examples
run in test_docs.py.

What hardware.md and arithmetic.md cite belongs to other projects: of those pages only links and the
files of backend/ and tests/ are looked up.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from npu.cli import bench, build_parser

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
    *(ROOT / "aie_kernels/README.md", ROOT / "tests/golden/README.md"),
    ROOT / "examples/demo_model/README.md",
]
CITES_OTHERS = (
    "docs/reference/hardware.md",
    "docs/reference/arithmetic.md",
    "docs/reference/foreign_programs.md",
)
OWN_PAGES = [page for page in PAGES if page.relative_to(ROOT).as_posix() not in CITES_OTHERS]
FOLDERS = r"backend|tests|docs|designs|aie_kernels|examples|include|perf|python|\.ci|\.github"
SUFFIXES = ("py", "cpp", "h", "cc", "hpp", "md", "cmake", "csv", "toml", "yml", "json")
MADE_ELSEWHERE = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    # The example that docs/adding_a_design.md adds.
    "aie_kernels/scale.cc",
    "designs/scale.py",
    "backend/ops/scale/scale.cpp",
    "python/npu/ops/scale.py",
    "tests/python/ops/test_scale.py",
)

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
own_page = pytest.mark.parametrize("page", OWN_PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())


@functools.cache
def tracked() -> tuple[str, ...]:
    """Files of the repository, without what builds leave in it."""
    folders = ("backend", "tests", "docs", "designs", "aie_kernels", "examples", "include", "perf")
    found = [p for f in (*folders, "python", ".ci", ".github") for p in ROOT.glob(f"{f}/**/*")]
    names = [p for p in (*found, *ROOT.glob("*")) if p.is_file() and "__pycache__" not in p.parts]
    return tuple(p.relative_to(ROOT).as_posix() for p in names)


@functools.cache
def words_of_sources() -> frozenset[str]:
    """Every identifier and option in the sources, their comments included."""
    kinds = (".py", ".cpp", ".h", ".cc", ".hpp", ".cmake", ".toml", ".csv", ".txt", ".json", ".run")
    own = Path(__file__).name
    files = [f for f in tracked() if f.endswith(kinds) and not f.endswith((own, ".md"))]
    texts = [(ROOT / f).read_text() for f in (*files, ".ci/run") if "golden/" not in f]
    return frozenset(word for text in texts for word in re.findall(r"--[\w-]+|\w+", text))


def in_backticks(text: str) -> list[str]:
    """What stands in backticks in prose, on one line each."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found = [word for part in prose.split("\n\n") for word in re.findall(r"`([^`]+)`", part)]
    return [" ".join(word.split()) for word in found]


def exists(name: str, page: Path) -> bool:
    """Whether a path, with NAME or * for any, is a file or folder: from the root, beside the page,
    or the end of the path of a file."""
    name = name.replace("NAME", "*").rstrip("/")
    if any(next(folder.glob(name), None) for folder in (ROOT, page.parent)):
        return True
    return "*" not in name and any(f"/{file}".endswith(f"/{name}") for file in tracked())


def paths_in(text: str, folders: str = FOLDERS) -> set[str]:
    """Words below a folder of ours."""
    return set(re.findall(rf"(?<![\w./-])(?:{folders})/[\w./*-]*[\w*]", text))


def files_in_backticks(text: str) -> set[str]:
    name = re.compile(rf"[\w/*.-]+\.(?:{'|'.join(SUFFIXES)})")
    return {word for word in in_backticks(text) if name.fullmatch(word)}


@every_page
def test_paths_exist(page: Path) -> None:
    text = page.read_text()
    if page in OWN_PAGES:
        named = paths_in(text) | files_in_backticks(text)
    else:
        named = paths_in(text, "backend|tests")
    assert {p for p in named if p not in MADE_ELSEWHERE and not exists(p, page)} == set()


@functools.cache
def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.+)$", page.read_text(), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


@every_page
def test_links_and_anchors_resolve(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def command_lines(text: str) -> Iterator[list[str]]:
    """The words of every `npu ...` in backticks or in a shell block."""
    blocks = re.findall(r"```(?:sh)?\n(.*?)```", text, re.DOTALL)
    for line in (*in_backticks(text), *"\n".join(blocks).splitlines()):
        for part in line.split("&&"):
            with contextlib.suppress(ValueError):  # prose in a block: an open quote
                words = shlex.split(part.replace("`", ""), comments=True)
                while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                    words.pop(0)
                if words and re.fullmatch(r"(?:\S*/)?npu", words[0]) and len(words) > 1:
                    yield words[1:]


def parses(words: list[str]) -> bool:
    """Whether the real parser takes a command line. A subcommand alone names itself."""
    places = {"MxKxN": "8x8x8", "M": "8", "K": "8", "N": "8", "NAME": "gemm"}
    words = [places.get(word, word) for word in words]
    if words[0] == "bench":
        words[1:] = bench.expand(words[1:])
    output = io.StringIO()
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
        try:
            _, unknown = build_parser().parse_known_args(words)
            return not unknown
        except SystemExit:
            missing = "the following arguments are required" in output.getvalue()
            return missing and not any(word.startswith("-") for word in words[1:])


@own_page
def test_command_lines_parse(page: Path) -> None:
    found = list(command_lines(page.read_text()))
    assert [" ".join(words) for words in found if not parses(words)] == []
    if page.name == "README.md" and page.parent == ROOT:
        assert len(found) >= 15  # the table of commands


@own_page
def test_options_exist(page: Path) -> None:
    words = " ".join(in_backticks(page.read_text())).split()
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    if page.name != "CHANGELOG.md":  # which names what is gone
        assert options - words_of_sources() - {"--preset"} == set()  # an option of cmake


def resolves(name: str) -> bool:
    """Whether npu.a.b.c is a module, or an attribute of one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@own_page
def test_python_names_exist(page: Path) -> None:
    text = page.read_text()
    named = {n for word in in_backticks(text) for n in re.findall(r"(?<![\w.])npu(?:\.\w+)+", word)}
    named = {name for name in named if not name.endswith((".h", ".hpp"))}  # of include/npu
    # Keys of a file's metadata look the same.
    names = ("version", "source", "shapes", "checksums", "header_checksum")
    keys = {f"npu.q4nx.{key}" for key in names}
    example = {"npu.scale"}  # what docs/adding_a_design.md adds
    if importlib.util.find_spec("torch") is None:  # without which npu.torch is no module
        example |= {name for name in named if name.split(".")[1] == "torch"}
    assert {n for n in named - keys - example if not resolves(n)} == set()


@own_page
def test_identifiers_occur_in_the_sources(page: Path) -> None:
    """Names with an underscore, a capital inside, or an argument list."""
    shape = re.compile(r"(?:\w+::)*(\w+(?:_|[a-z][A-Z])\w*|\w+(?=\())(?:\(.*\))?")
    found = {m[1] for word in in_backticks(page.read_text()) if (m := shape.fullmatch(word))}
    assert found - words_of_sources() == set()


WIDTH = 110
GENERATED = ROOT / "docs/reference/api.md"  # wrapped as the docstrings are


@every_page
def test_lines_end_at_column_110(page: Path) -> None:
    """Tables apart, which cannot be wrapped."""
    if page == GENERATED:
        return
    lines = page.read_text().splitlines()
    assert [line for line in lines if len(line) > WIDTH and not line.startswith("|")] == []


def test_the_readme_lists_every_command() -> None:
    from npu.cli import COMMANDS

    named = {words[0] for words in command_lines((ROOT / "README.md").read_text())}
    assert set(COMMANDS) - named == set()


# Headers of other projects that comments cite.
CITED = {"xaiemlgbl_params.h", "xaie2pgbl_params.h", "TxnEncoding.h"}


def test_comments_name_existing_files() -> None:
    """Paths below our folders in all sources, headers and sources in C++ comments."""
    missing = set()
    for file in tracked():
        if not file.endswith((".py", ".cpp", ".h", ".hpp", ".cc")) or file.startswith("tests/"):
            continue
        text = (ROOT / file).read_text()
        named = paths_in(text)
        if not file.endswith(".py"):
            comments = " ".join(re.findall(r"//(.*)", text))
            named |= set(re.findall(r"(?<![\w./])[\w/]+\.(?:h|hpp|cpp|cc)\b", comments)) - CITED
        missing |= {(file, name) for name in named if not exists(name, ROOT / file)}
    assert missing == set()
