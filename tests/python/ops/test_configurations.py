"""The configurations that come with the package: that they are what the designs make now, that
whatever npu.matmul may choose is among them, that C++ reads from the index what Python chooses
among, and that writing the folder is reproducible and never leaves half of one.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from npu import _npu
from npu.cli import main
from npu.designs import gemm, gemm_catalogue
from npu.errors import ArgumentError, FormatError, NpuError
from npu.ops import configurations, gemm_estimate
from npu.ops.gemm_designs import GemmDesigns, candidates
from npu.ops.gemm_product import Product
from npu.ops.registry import operations

GENERATIONS = ("npu1", "npu2")
SIZE = (700, 1100, 900)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The one of the package, which a build without it makes here."""
    shipped = Path(_npu.__file__).resolve().parent / "configurations"
    if not shipped.is_dir():
        shipped = tmp_path_factory.mktemp("shipped") / "configurations"
        configurations.write_all(shipped)
    return shipped


def lines(folder: Path) -> list[list[str]]:
    text = (folder / configurations.INDEX).read_text().splitlines()
    assert text[0] == configurations.MAGIC and text[-1] == f"end {len(text) - 2}"
    return [line.split() for line in text[1:-1]]


def products(generation: str) -> list[Product]:
    """Every product that npu.matmul asks for; results of 32 bits have nothing to narrow."""
    found = []
    for (a, c), layout, sums in itertools.product(
        gemm.PAIRS, gemm_catalogue.VALUE_LAYOUTS, gemm.ACCUMULATE
    ):
        if sums == "narrow" and c in ("float32", "int32"):
            continue
        modes = gemm.BF16 if (a, generation) == ("bfloat16", "npu2") else gemm.BF16[:1]
        found += [Product(a, c, SIZE, layout, sums, mode) for mode in modes]
    for (a, c), sums in itertools.product(
        gemm.BLOCK_PAIRS if generation == "npu2" else (), gemm.BLOCK_ACCUMULATE
    ):
        if sums == "wide" or c == "bfp16" or (c == "bfloat16" and sums == "narrow"):
            found.append(Product(a, c, SIZE, "blocks", sums, "bfp16"))
    return found


def test_the_folder_is_complete(folder: Path) -> None:
    """All operations, all files of the index and no others, one use a line, keys that are not
    shared by different designs."""
    found = lines(folder)
    assert {(line[0], line[1]) for line in found} == {
        (name, generation) for name in operations() for generation in GENERATIONS
    }
    files = {line[2] for line in found}
    assert {path.name for path in folder.iterdir()} == files | {configurations.INDEX}
    assert len({" ".join(line) for line in found}) == len(found)
    for line in found:
        data = (folder / line[2]).read_bytes()
        assert f"{zlib.crc32(data):08x}" == line[4]
        assert _npu.device.Configuration.parse(data).source == line[3]
    shapes: dict[str, set[tuple[str, ...]]] = {}
    for line in found:
        # All but what the same configuration may be used for.
        own = tuple(x for x in line[5:] if not x.startswith(("prefers=", "layout=")))
        shapes.setdefault(line[2], set()).add(own)
    assert all(len(each) == 1 for each in shapes.values())


@pytest.mark.parametrize("generation", GENERATIONS)
def test_cpp_chooses_among_the_same(folder: Path, generation: str) -> None:
    """Every product: the same designs in the same order with the same predicted seconds."""
    asked = parts = 0  # parts of the array
    for product in products(generation):
        for prefers, kernel in (
            ("array", None), ("array", "published"), ("array", "pipelined"),
            ("host", None), ("host", "published"), ("host", "pipelined"),
        ):  # fmt: skip
            wanted = candidates(generation, prefers, product, kernel)
            packed = product.layout == "packed"
            offered = _npu.gemm_choice.offered(str(folder), product, generation, prefers, kernel)
            assert [key for key, _ in offered] == [o.key for o in wanted], (product, prefers)
            for (_, seconds), o in zip(offered, wanted, strict=True):
                if prefers == "host":
                    assert seconds == gemm_estimate.host_seconds(o, SIZE)
                    parts += not o.whole
                else:
                    assert seconds == gemm_estimate.seconds(o, SIZE, packed)
            asked += 1
        on_npu = candidates(generation, "host", product, simulated=False)
        offered = _npu.gemm_choice.offered(str(folder), product, generation, "host", emulated=False)
        assert [key for key, _ in offered] == [o.key for o in on_npu] and on_npu[0].whole
    assert asked >= 150 and parts >= 30


@pytest.mark.parametrize("generation", GENERATIONS)
def test_packed_copies_are_in_it(folder: Path, generation: str) -> None:
    files = {line[2] for line in lines(folder)}
    for prefers, a in itertools.product(("array", "host"), gemm.DEFAULT_TILE):
        for size in ((512, 512), (2048, 64), (64, 16384)):
            packed = GemmDesigns(generation, prefers, None).for_packing(a, size, "native")
            assert f"{packed.key}.config" in files


def check_files(folder: Path, step: int) -> None:
    made = {use.file: use.make for use in configurations.uses()}
    for file in sorted(made)[::step]:
        assert (folder / file).read_bytes() == made[file](), file


def test_the_build_needs_no_numpy() -> None:
    """python/write_configurations.py runs where nothing but Python is installed."""
    script = (
        "import sys, types; sys.modules['numpy'] = None; npu = types.ModuleType('npu');"
        f"npu.__path__ = [{str(Path(_npu.__file__).parent)!r}]; sys.modules['npu'] = npu;"
        "from npu.ops.configurations import uses; print(sum(len(use.make()) > 0 for use in uses()"
        " if use.operation != 'gemm'), sum(1 for _ in uses()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    others, count = map(int, done.stdout.split())
    # dequant has one for each of five formats, gemv and decoder one for each size of blocks.
    assert others == 2 * (len(operations()) - 1 + 4 + 2) and count > 300


def test_formats_and_sizes_of_blocks_are_told_apart(folder: Path) -> None:
    """Those for blocks of 4608 bytes have small=1, and no other operation does."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name, generation, file, _, _, *more in lines(folder):
        if name in ("gemv", "decoder", "dequant", "prefill"):
            found[(name, generation, *more)] = [file]
            small = b"\nparam block_bytes 4608\n" in (folder / file).read_bytes()
            assert small == (more in (["small=1"], ["format=q4_0"], ["format=q8_0"]))
        else:
            assert not any(one.startswith("small=") for one in more)
    assert found == {
        key: [file]
        for g in GENERATIONS
        for key, file in {
            ("gemv", g): f"{g}-gemv.config",
            ("gemv", g, "small=1"): f"{g}-gemv-small.config",
            ("decoder", g): f"{g}-decoder.config",
            ("decoder", g, "small=1"): f"{g}-decoder-small.config",
            ("dequant", g): f"{g}-dequant.config",
            **{
                ("dequant", g, f"format={format}"): f"{g}-dequant-{format}.config"
                for format in ("q8", "bf16", "q4_0", "q8_0")
            },
            ("prefill", g): f"{g}-prefill.config",
        }.items()
    }
    uses = {
        (use.operation, use.generation, *(f"{name}={value}" for name, value in use.about)): [
            use.file
        ]
        for use in configurations.uses()
    }
    assert {key: uses[key] for key in found} == found


def test_some_are_what_the_designs_make(folder: Path) -> None:
    check_files(folder, 17)


@pytest.mark.slow
def test_all_are_what_the_designs_make(folder: Path) -> None:
    check_files(folder, 1)


@pytest.fixture
def few(monkeypatch) -> None:
    some = [use for use in configurations.uses() if use.operation != "gemv"][-6:]
    monkeypatch.setattr(configurations, "uses", lambda: iter(some))


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_writing_again_gives_the_same_bytes(few, tmp_path, capsys) -> None:
    target = tmp_path / "deep" / "folder"
    assert main(["compile", "--all", str(target)]) == 0
    assert "configurations" in capsys.readouterr().err
    first = snapshot(target)
    assert len(first) > 3
    (target / "stale.config").write_bytes(b"of an older version")
    configurations.write_all(target)
    assert snapshot(target) == first
    assert [path.name for path in target.parent.iterdir()] == ["folder"], "nothing is left over"


def test_a_failure_keeps_what_was_there(few, tmp_path, monkeypatch) -> None:
    target = tmp_path / "folder"
    configurations.write_all(target)
    before = snapshot(target)

    def broken() -> bytes:
        raise OSError(28, "No space left on device")

    uses = [*configurations.uses()]
    uses.append(configurations.Use("gemm", "npu2", "last", (), broken, broken))
    monkeypatch.setattr(configurations, "uses", lambda: iter(uses))
    with pytest.raises(ArgumentError, match="No space left"):
        configurations.write_all(target)
    assert snapshot(target) == before
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_other_folders_are_left_alone(few, tmp_path, capsys) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ArgumentError, match="other files"):
        configurations.write_all(tmp_path)
    assert snapshot(tmp_path) == {"letter.txt": b"dear"}
    for bad in (str(tmp_path / "letter.txt"), "\0"):
        with pytest.raises(ArgumentError):
            configurations.write_all(bad)
    for arguments in (["compile"], ["compile", "gemm", "--all", str(tmp_path / "x")]):
        assert main(arguments) == 1
        assert "name either" in capsys.readouterr().err


def test_the_reader_says_where_it_looked(few, tmp_path) -> None:
    product = products("npu2")[0]
    with pytest.raises(NpuError, match=f"no index.txt in {tmp_path}"):
        _npu.gemm_choice.offered(str(tmp_path), product, "npu2", "array")
    target = tmp_path / "folder"
    configurations.write_all(target)
    assert _npu.gemm_choice.offered(str(target), product, "npu2", "array") == []
    index = target / configurations.INDEX
    index.write_text(index.read_text().replace("end ", "gemm "))
    with pytest.raises(FormatError, match="write the folder again"):
        _npu.gemm_choice.offered(str(target), product, "npu2", "array")
