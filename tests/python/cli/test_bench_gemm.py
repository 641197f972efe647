"""`npu bench gemm` as a user runs it: which sizes are swept, what CSV, JSON, tables and plots say,
which command lines are refused before anything is simulated or written, and what Ctrl-C leaves.

References: the definition of arithmetic intensity and 2 M K N operations, evaluated here; native
sizes and tiles of Taka et al., arXiv 2512.13282; npu.simulate_gemm for single sizes.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import json
import os
import stat
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits import HANG

import npu
from npu import cli
from npu.cli import bench_gemm, bench_gemm_sweep
from npu.errors import ArgumentError, ShapeError
from npu.perf.problem import design_point

FAST = ["bench", "gemm", "--method", "closed-form"]
SMALL = ["bench", "gemm", "--dtype", "int8", "--out-dtype", "int8", "--device", "npu1"]
SIZES = [(448, 448, 448), (896, 448, 1344), (500, 600, 700)]
TEXT = ",".join("x".join(map(str, size)) for size in SIZES)
BYTES = {"int8": 1, "int16": 2, "int32": 4, "bfloat16": 2, "float32": 4}


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


# Which sizes


@given(
    native=st.tuples(*[st.integers(1, 3000)] * 3),
    count=st.integers(1, 3000),
    limit=st.integers(1, 65536),
)
def test_sizes_are_distinct_legal_and_enough(
    native: tuple[int, int, int], count: int, limit: int
) -> None:
    """Multiples of the native size up to the limit, the largest among them, at least `count`."""
    most = [limit // unit for unit in native]
    try:
        sizes = bench_gemm_sweep.problem_sizes(native, count, limit)
    except ArgumentError:
        assert most[0] * most[1] * most[2] < count
        return
    assert len(sizes) >= count and len(set(sizes)) == len(sizes)
    for axis in range(3):
        values = {size[axis] for size in sizes}
        assert all(0 < v <= limit and v % native[axis] == 0 for v in values)
        assert max(values) == native[axis] * most[axis]
        assert len(values) == 1 or min(values) == native[axis]
    axes = [len({size[axis] for size in sizes}) for axis in range(3)]
    assert len(sizes) == axes[0] * axes[1] * axes[2]
    # No dimension is favoured: one has fewer steps only if it has no more multiples.
    assert all(a >= max(axes) - 1 or a == m for a, m in zip(axes, most, strict=True))


@pytest.mark.parametrize("key", bench_gemm_sweep.BALANCED, ids="-".join)
def test_every_default_kernel_is_legal_and_has_400_sizes(key: tuple[str, str, str]) -> None:
    device, a, c = key
    tile, k_mt = bench_gemm_sweep.BALANCED[key]
    for layout in ("row", "col"):
        design = design_point(
            device, dtype_in=a, dtype_out=c, tile=tile, k_mt=k_mt, b_layout=layout
        )
        sizes = bench_gemm_sweep.problem_sizes(design.native, 400, 8192)
        assert len(sizes) >= 400 and all(design.padded(size) == size for size in sizes)


def test_native_sizes_are_the_published_ones() -> None:
    """Section 5.2.2: 384 x 224 x 384 and 512 x 432 x 896."""
    for device, pair, native in (
        ("npu1", ("bfloat16", "bfloat16"), (384, 224, 384)),
        ("npu2", ("int8", "int16"), (512, 432, 896)),
    ):
        assert bench_gemm_sweep.design_of(device, pair, "col", None, None).native == native


def test_too_few_multiples_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="there are 8 multiples"):
        bench_gemm_sweep.problem_sizes((448, 448, 448), 9, 1000)
    with pytest.raises(ArgumentError, match="none fits"):
        bench_gemm_sweep.problem_sizes((448, 448, 448), 1, 447)
    with pytest.raises(ShapeError, match="65536"):
        bench_gemm_sweep.problem_sizes((448, 448, 448), 1, 65537)


# What is written and printed


def test_default_sweep_is_four_precisions_and_both_layouts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys, *FAST)
    assert code == 0 and "simulated TOPS" in out and "npu2" in out
    lines = [line for line in out.splitlines() if " -> " in line and "x" in line.split()[4]]
    assert [tuple(line.split()[i] for i in (0, 2, 3)) for line in lines] == [
        (a, c, layout)
        for a, c in [("int8", "int8"), ("int8", "int16"), ("int8", "int32"), ("bfloat16",) * 2]
        for layout in ("col", "row")
    ]
    assert all(int(line.split()[6]) >= 400 for line in lines)
    assert "simulating 3584 GEMMs in 8 sweeps" in err and "about" in err


@pytest.mark.parametrize("method", ["emulator", "closed-form"])
def test_csv_and_json_agree_with_simulate_gemm(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, method: str
) -> None:
    table, document = tmp_path / "a.csv", tmp_path / "a.json"
    words = [*SMALL, "--sizes", TEXT, "--method", method, "--b-layout", "both"]
    code, out, _ = run(capsys, *words, "--csv", str(table), "--json", str(document))
    assert code == 0 and "simulated" in out
    rows = rows_of(table)
    assert [(r["b_layout"], *(int(r[d]) for d in "MKN")) for r in rows] == [
        (layout, *size) for layout in ("col", "row") for size in SIZES
    ]
    for r in rows:
        m, k, n = (int(r[d]) for d in "MKN")
        alone = npu.simulate_gemm(
            "npu1", m, k, n, dtype_out="int8", tile=(112, 112, 112), k_mt=448,
            b_layout=r["b_layout"], model=method,
        )  # fmt: skip
        assert float(r["simulated_seconds"]) == alone.seconds and r["bound"] == alone.bound
        assert float(r["simulated_tops"]) == pytest.approx(2e-12 * m * k * n / alone.seconds)
        assert float(r["ops_per_byte"]) == pytest.approx(2 * m * k * n / (m * k + k * n + m * n))
        assert int(r["bytes_L3_read"]) == alone.bytes["L3_read"]
    found = json.loads(document.read_text())
    assert found["times"] == "simulated" and found["complete"] is True
    assert found["method"] == method and found["device"] == "npu1"
    col, row = found["sweeps"]
    assert (col["b_layout"], row["b_layout"]) == ("col", "row")
    assert col["native_size"] == [448, 448, 448] and col["tile"] == [112, 112, 112]
    assert [[r[d] for d in "MKN"] for r in col["rows"]] == [list(size) for size in SIZES]
    tops = [r["simulated_tops"] for r in col["rows"]]
    assert tops == [float(r["simulated_tops"]) for r in rows[:3]]
    s = col["summary"]
    assert (s["count"], s["min_tops"], s["max_tops"]) == (3, min(tops), max(tops))
    assert s["mean_tops"] == pytest.approx(sum(tops) / 3)
    assert sum(s["by_bound"].values()) == 3


def test_peak_and_read_ceiling_bound_every_size(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Table 3: 39.52 TOPS of 144 x 72 x 144; nothing exceeds it, nor the reads of its tiling."""
    code, out, _ = run(capsys, *FAST, "--json", "--dtype", "int8", "--out-dtype", "int8")
    assert code == 0
    for sweep in json.loads(out)["sweeps"]:
        assert sweep["kernel_peak_tops"] == pytest.approx(39.52, rel=0.01)
        ceiling = min(sweep["kernel_peak_tops"], sweep["dram_read_ceiling_tops"])
        tops = [row["simulated_tops"] for row in sweep["rows"]]
        assert 0.95 * ceiling < max(tops) < ceiling
        share = sum(t > 0.9 * sweep["kernel_peak_tops"] for t in tops) / len(tops)
        assert sweep["summary"]["share_above_90_percent_of_peak"] == share


def test_json_of_standard_output_is_all_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *FAST, "--sizes", "512", "--json")
    assert code == 0 and len(json.loads(out)["sweeps"]) == 8
    code, out, _ = run(capsys, *FAST, "--sizes", "512", "--csv", "-")
    assert code == 0 and len(list(csv.DictReader(io.StringIO(out)))) == 8


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--dtype", "int16"], [("int16", "int32")]),
        (["--dtype", "bfloat16"], [("bfloat16", "bfloat16")]),
        (["--out-dtype", "float32"], [("bfloat16", "float32")]),
        (["--dtype", "int8", "--out-dtype", "int32,int8"], [("int8", "int32"), ("int8", "int8")]),
    ],
)
def test_types_that_are_swept(capsys, words, expected) -> None:
    code, out, _ = run(
        capsys, *FAST, *words, "--sizes", "512", "--json", "--b-layout", "row", "--device", "npu1"
    )
    found = [(s["dtype_in"], s["dtype_out"]) for s in json.loads(out)["sweeps"]]
    assert code == 0 and found == expected


def test_tile_k_mt_and_stream_bytes_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*FAST, "--dtype", "int8", "--out-dtype", "int8", "--b-layout", "col"]
    words += ["--tile", "64x64x64", "--k-mt", "128", "--sizes", "2048", "--json"]
    _, out, _ = run(capsys, *words)
    (sweep,) = json.loads(out)["sweeps"]
    assert sweep["tile"] == [64, 64, 64] and sweep["k_mt"] == 128
    _, wide, _ = run(capsys, *words, "--stream-bytes", "8")
    tops = [json.loads(text)["sweeps"][0]["rows"][0]["simulated_tops"] for text in (out, wide)]
    assert tops[1] > tops[0]


def test_no_bar_but_estimate_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = run(capsys, *SMALL, "--count", "30", "--max-size", "2000")
    assert err.count("\n") == 1 and "about" in err and "threads" in err


def test_bar_on_a_terminal() -> None:
    """stderr as a pseudo-terminal: a bar that counts to the number of sizes."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    words = [sys.executable, "-m", "npu.cli", *SMALL, "--count", "30", "--max-size", "2000"]
    subprocess.run(words, stdout=subprocess.DEVNULL, stderr=theirs, check=True, timeout=HANG)
    os.close(theirs)
    shown = ""
    with contextlib.suppress(OSError):  # EIO: all is read
        while data := os.read(ours, 1 << 16):
            shown += data.decode()
    os.close(ours)
    assert "%|" in shown and "/72 [" in shown  # 3 x 3 x 4 sizes, two layouts


def test_progress_reaches_the_number_of_sizes() -> None:
    """Two of each sweep are done by prepare(), one step for each of the others."""
    design = bench_gemm_sweep.design_of("npu1", ("int8", "int8"), "col", None, None)
    sizes = bench_gemm_sweep.problem_sizes(design.native, 20, 2000)
    sweep = bench_gemm_sweep.Sweep(bench_gemm_sweep.Case(design, "emulator"), sizes)
    assert bench_gemm_sweep.prepare([sweep]) > 0
    assert len(sweep.results) == 2
    steps: list[int] = []
    bench_gemm_sweep.run([sweep], steps.append)
    assert sum(steps) == len(sizes) - 2 and [s for s, _ in sweep.done()] == sizes


@pytest.mark.parametrize("name", ["a.png", "a.svg", "A.PNG"])
def test_roofline_plot(capsys, tmp_path, name) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / name
    for scale in ("linear", "log"):
        code, out, _ = run(
            capsys, *FAST, "--count", "8", "--max-size", "2500", "--plot", str(path),
            "--scale", scale,
        )  # fmt: skip
        assert code == 0 and f"{path}: written" in out
        _check_picture(path, ("simulated TOPS", "bound by compute", "operations / byte", "npu2"))


def test_plot_is_deterministic(capsys, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    paths = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in paths:
        run(capsys, *FAST, "--count", "8", "--max-size", "2500", "--plot", str(path))
    assert paths[0].read_bytes() == paths[1].read_bytes()


def _check_picture(path: Path, words: tuple[str, ...]) -> None:
    data = path.read_bytes()
    if path.suffix.lower() == ".png":
        assert data.startswith(b"\x89PNG") and len(data) > 20_000
    else:
        text = data.decode()
        assert text.rstrip().endswith("</svg>")
        assert all(word in text for word in words)


# k_mt curves


def test_k_mt_curve(capsys, tmp_path) -> None:
    """Figure 6a: 1.27 TOPS at 56, saturated from 224 to 560, the deepest that L2 holds."""
    table = tmp_path / "curve.csv"
    words = ["bench", "gemm", "--k-mt-curve", "--device", "npu1", "--csv", str(table)]
    code, out, _ = run(capsys, *words)
    assert code == 0 and "simulated TOPS against k_mt" in out and "L2" in out
    tops = {int(r["k_mt"]): float(r["simulated_tops"]) for r in rows_of(table)}
    assert list(tops) == list(range(56, 561, 56))
    assert tops[56] == pytest.approx(1.27, rel=0.05)
    assert tops[56] < tops[112] < tops[168] < tops[224] == pytest.approx(3.12, rel=0.05)
    assert tops[560] == pytest.approx(tops[224], rel=0.01)


def test_k_mt_curve_of_one_size_with_plot_and_json(capsys, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "c.svg"
    code, out, _ = run(
        capsys, *FAST, "--k-mt-curve", "--b-layout", "both", "--sizes", "1000x2000x3000",
        "--plot", str(picture), "--json",
    )  # fmt: skip
    document = json.loads(out)
    assert code == 0 and document["times"] == "simulated" and document["complete"] is True
    assert {(r["M"], r["K"], r["N"]) for r in document["rows"]} == {(1000, 2000, 3000)}
    assert {r["b_layout"] for r in document["rows"]} == {"col", "row"}
    assert document["default_k_mt"] == [432, 432]
    _check_picture(picture, ("k_mt (elements)", "simulated TOPS", "kernel peak"))


# What is refused, before anything is simulated


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a simulation or measurement began")

    monkeypatch.setattr(bench_gemm_sweep.Case, "run", fail)
    monkeypatch.setattr(npu, "matmul", fail)


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    "words, expected",
    [
        (["--csv", "/nowhere/a.csv"], "/nowhere/a.csv"),
        (["--csv", "a.txt"], "must end in .csv"),
        (["--json", "a.csv"], "must end in .json"),
        (["--plot", "a.jpg"], "must end in"),
        (["--plot", "a"], "must end in"),
        (["--csv", ""], "must end in .csv"),
        (["--csv", "-", "--json"], "both write to standard output"),
        (["--sizes", "65537"], "65536"),
        (["--sizes", "16,16x70000x16"], "16x70000x16"),
        (["--sizes", "64", "--count", "5"], "leave out --count"),
        (["--max-size", "100"], "none fits"),
        (["--count", "100001"], "100000 at most"),
        (["--count", "100000"], "100000 sizes up to 8192: there are"),
        (["--tile", "65x64x64"], "multiple of"),
        (["--tile", "256x256x256"], "L1"),
        (["--k-mt", "100"], "multiple of"),
        (["--k-mt", "43200"], "at most 1023 words"),
        (["--dtype", "int8", "--out-dtype", "float32"], "int8 -> float32"),
        (["--device", "gpu"], "gpu"),
        (["--k-mt-curve", "--sizes", "1,2"], "one size"),
        (["--host", "--dtype", "int16"], "int16"),
        (["--host", "--sizes", "64,2147483648"], "2147483648x2147483648x2147483648 needs about"),
        (["--host", "--json", "/nowhere/a.json"], "/nowhere"),
    ],
)
def test_refused_in_one_line(capsys, tmp_path, monkeypatch, words, expected) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "bench", "gemm", *words)
    assert code == 1 and out == ""
    assert err.startswith("npu: error: [") and err.count("\n") == 1 and expected in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [
    "gemm --ragged",
    "gemm --sizes 1x2",
    "gemm --count 0",
    "gemm --method magic",
    "gemm --repeats 3",
    "gemm --context 3",
    "gemm --k-mt-curve --count 5",
    "gemm --host --csv a.csv",
    "gemm --host --plot a.png",
    "--host",
    "--csv a.csv",
    "-m a.gguf --k-mt 64",
    "gemv --sizes 64",
    "dequant --batch 2",
])  # fmt: skip
def test_wrong_command_lines(capsys, words: str) -> None:
    """Every subcommand and mode has only its own options; without one, models are meant."""
    code, out, err = run(capsys, "bench", *words.split())
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert ("npu bench model" in err) == words.startswith("-")


@pytest.mark.usefixtures("nothing_runs")
def test_missing_matplotlib_is_said_first(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = run(capsys, *SMALL, "--plot", str(tmp_path / "a.png"))
    assert (code, out) == (1, "") and "npu-xdna[plot]" in err
    assert list(tmp_path.iterdir()) == []


# Files: whole or not at all


def test_files_keep_links_and_modes(capsys, tmp_path) -> None:
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    assert run(capsys, *FAST, "--sizes", "512", "--csv", str(link))[0] == 0
    assert link.is_symlink() and target.read_text().startswith("device,dtype_in")
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.csv", "target.csv"]


def test_a_failing_sweep_leaves_files_alone(capsys, tmp_path, monkeypatch) -> None:
    path = tmp_path / "a.csv"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise ArgumentError("[test] no")

    monkeypatch.setattr(bench_gemm_sweep, "run", fail)
    assert run(capsys, *FAST, "--csv", str(path))[0] == 1
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("nothing_runs")
def test_folder_as_a_file_is_refused(capsys, tmp_path) -> None:
    folder = tmp_path / "a.csv"
    folder.mkdir()
    code, _, err = run(capsys, *FAST, "--csv", str(folder))
    assert code == 1 and "is a folder" in err


@pytest.mark.slow
def test_interrupt_keeps_the_rows_so_far(tmp_path) -> None:
    """SIGINT to the command in the middle of a sweep: exit code 130, a shorter CSV, a sentence."""
    path, document = tmp_path / "a.csv", tmp_path / "a.json"
    words = [*SMALL, "--csv", str(path), "--json", str(document)]
    code = """
import os, signal, sys
from npu import cli
from npu.cli import bench_gemm_sweep
simulate, calls = bench_gemm_sweep.Case.run, []
def run(*arguments):
    calls.append(arguments)
    if len(calls) == 100:
        os.kill(os.getpid(), signal.SIGINT)
    return simulate(*arguments)
bench_gemm_sweep.Case.run = run
sys.exit(cli.main(sys.argv[1:]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=HANG
    )
    out, err = done.stdout, done.stderr
    assert done.returncode == 130 and out == ""
    assert "simulating 896 GEMMs" in err or "simulating 1024 GEMMs" in err
    rows = rows_of(path)
    assert 4 <= len(rows) < 896
    assert f"interrupted: {len(rows)} of" in err and str(path) in err
    found = json.loads(document.read_text())
    assert found["complete"] is False
    assert sum(len(sweep["rows"]) for sweep in found["sweeps"]) == len(rows)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.csv", "a.json"]


def test_interrupt_before_anything_is_simulated_writes_nothing(
    capsys, tmp_path, monkeypatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_gemm_sweep.Case, "run", interrupt)
    path = tmp_path / "a.csv"
    code, out, err = run(capsys, *SMALL, "--csv", str(path))
    assert (code, out) == (130, "") and "nothing was written" in err
    assert list(tmp_path.iterdir()) == []


# Host time


def test_host_prints_ratios_and_says_emulated(capsys, monkeypatch) -> None:
    words = ["bench", "gemm", "--host", "--sizes", "64,20x30x40", "--repeats", "2"]
    monkeypatch.setitem(sys.modules, "torch", None)
    code, out, _ = run(capsys, *words)
    assert code == 0 and "torch" not in out and "threads: npu" in out
    assert "emulated" in out and "host time" in out and "64x64x64" in out and "20x30x40" in out
    assert "npu.stats() of 20x30x40, first call: " in out and "stream_hits 202" in out
    assert "20x30x40 (100 in a row) ran as " in out and "64x64x64 (100 in a row) ran as " in out
    assert "200 ms of pause" in out and "unseen size" in out
    code, out, _ = run(capsys, *words, "--json", "--dtype", "int8", "--device", "emu:npu1")
    document = json.loads(out)
    assert document["device"] == "emu:npu1" and document["repeats"] == 2
    assert document["times"] == "host time, the NPU is emulated"
    row = document["results"][1]
    assert row["size"] == [20, 30, 40] and len(row["ratio"]["values"]) == 2
    first = row["numpy_float32_ms"]["values"][0] / row["npu_ms"]["values"][0]
    assert row["ratio"]["values"][0] == pytest.approx(first)
    first = row["numpy_float32_first_ms"]["values"][0] / row["npu_first_ms"]["values"][0]
    assert row["ratio_of_first"]["values"][0] == pytest.approx(first)
    assert row["calls_in_a_row"] == 100 and row["stats_repeats"]["submissions"] == 202
    assert row["submission_us"] > 0 and document["pause_ms"] == 200
    assert row["stats_repeats"]["stream_build_ns"] == 0  # all of them found their stream
    shortest = min(row["numpy_float32_ms"]["values"]) / min(row["npu_ms"]["values"])
    assert row["ratio_of_best"] == pytest.approx(shortest)


@pytest.mark.slow
def test_host_says_what_a_new_stream_takes(capsys) -> None:
    # A size that no other test has, then one that is padded to the same stream.
    code, out, _ = run(
        capsys, "bench", "gemm", "--host", "--sizes", "2040x30x70,2030x30x70", "--repeats", "1",
        "--json",
    )  # fmt: skip
    assert code == 0
    new, known = json.loads(out)["results"]
    assert new["stats_first"]["streams_built"] == 1
    assert new["stream_build_us"] > 0
    assert 1e3 * new["stream_build_us"] == pytest.approx(new["stats_first"]["stream_build_ns"])
    assert known["stats_first"]["streams_built"] == 0 and known["stream_build_us"] is None


def test_host_beside_torch(capsys) -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    code, out, _ = run(
        capsys, "bench", "gemm", "--host", "--sizes", "64", "--repeats", "2", "--json"
    )
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    assert after == before + 1
    document = json.loads(out)
    assert code == 0 and document["threads"]["torch"] == document["threads"]["npu"]
    (row,) = document["results"]
    first = row["torch_bfloat16_ms"]["values"][0] / row["npu_ms"]["values"][0]
    assert row["ratio_torch"]["values"][0] == pytest.approx(first)
    first = row["torch_bfloat16_first_ms"]["values"][0] / row["npu_first_ms"]["values"][0]
    assert row["ratio_torch_of_first"]["values"][0] == pytest.approx(first)


def test_column_gain_is_the_mean_of_ratios() -> None:
    """Two sizes with known TOPS: (4/2 + 3/3) / 2 - 1."""
    sizes = [(448, 448, 448), (896, 896, 896)]
    sweeps = []
    for layout, tops in (("col", (4.0, 3.0)), ("row", (2.0, 3.0))):
        design = bench_gemm_sweep.design_of("npu1", ("int8", "int8"), layout, None, None)
        case = bench_gemm_sweep.Case(design, "closed-form")
        sweep = bench_gemm_sweep.Sweep(case, sizes)
        for size, value in zip(sizes, tops, strict=True):
            result = case.run(size)
            object.__setattr__(result, "tops", value)
            sweep.results[size] = result
        sweeps.append(sweep)
    assert bench_gemm.column_gain(sweeps) == {"int8 -> int8": pytest.approx(0.5)}
