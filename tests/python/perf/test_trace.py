"""npu.trace_gemm and `npu trace`: the timeline of a simulated GEMM.

Asserts what a timeline must have whatever the constants: tracks without overlaps, cores without
gaps from the first operation to the end, busy times, calls and bytes that add up to what
simulate_gemm counts elsewhere, windows and limits that are parts of the whole, a file that keeps
the rules of the trace-event format and is written whole or not at all, pictures without clipped
text, and typed errors.
"""

from __future__ import annotations

import collections
import dataclasses
import gzip
import io
import itertools
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npu
from npu import cli
from npu.errors import ArgumentError, DesignError, DeviceError, DtypeError, ShapeError
from npu.perf import plots
from npu.perf.plots import trace as trace_plot
from npu.perf.trace import EVENT, KINDS

SMALL: dict[str, Any] = {"dtype_out": "int8", "tile": (32, 32, 32), "k_mt": 64}
KERNEL, SEND, RECEIVE, LOCK = (KINDS.index(k) for k in ("kernel", "send", "receive", "lock"))


@pytest.fixture(scope="module")
def small() -> npu.GemmTrace:
    return npu.trace_gemm("npu1", 256, 256, 384, **SMALL)


def of_kind(trace: npu.GemmTrace, *kinds: int) -> np.ndarray:
    return trace.events[np.isin(trace.events["kind"], kinds)]


def check_timeline(trace: npu.GemmTrace) -> None:
    """A whole run without limit: every track against the simulation's own counts."""
    s, events = trace.simulation, trace.events
    total = s.cycles
    assert events["start"].min() == 0
    assert (np.diff(events["start"]) >= 0).all()
    slices = events[events["kind"] != LOCK]
    assert (slices["end"] > slices["start"]).all() and slices["end"].max() <= total * (1 + 1e-12)
    assert trace.microseconds(total) == pytest.approx(s.seconds * 1e6, rel=1e-12)
    for index, track in enumerate(trace.tracks):
        mine = slices[slices["track"] == index]
        apart = mine["start"][1:] - mine["end"][:-1]
        tight = 1e-9 * total
        assert (apart >= -tight).all(), track.name
        durations = mine["end"] - mine["start"]
        assert sum(track.cycles.values()) == pytest.approx(durations.sum())
        busy = durations[np.isin(mine["kind"], [KERNEL, SEND, KINDS.index("operation")])].sum()
        busy -= mine["memory_wait"][mine["kind"] == SEND].sum()
        assert busy == pytest.approx(s.agents.get(track.name, 0.0), abs=tight), track.name
        if track.kind in ("core", "command"):  # always at work or waiting
            assert mine["start"][0] <= s.details["dispatch"] + tight and (apart <= tight).all()
        if track.kind == "core":
            assert mine["end"][-1] == pytest.approx(total)
    calls = [trace.kernels[i] for i in of_kind(trace, KERNEL)["other"]]
    assert sum(name.startswith("matmul") for name in calls) == s.details["matmul_calls"]
    rows = np.array([track.row for track in trace.tracks])
    for kind, name in ((SEND, "read"), (RECEIVE, "write")):
        moved = of_kind(trace, kind)
        level = np.choose(np.clip(rows[moved["track"]], 0, 2), [3, 2, 1])
        for n in (1, 2, 3):
            assert moved["bytes"][level == n].sum() == s.bytes[f"L{n}_{name}"]
    values = of_kind(trace, LOCK)
    assert len(values) and (values["bytes"] <= 63).all()


@settings(max_examples=20, deadline=None)
@given(
    device=st.sampled_from(["npu1", "npu2"]),
    size=st.tuples(*[st.integers(1, 700)] * 3),
    types=st.sampled_from([("int8", "int8"), ("int16", "int32"), ("bfloat16", "float32")]),
    b_layout=st.sampled_from(["row", "col"]),
    c_buffers=st.sampled_from([1, 2]),
    depth=st.sampled_from([1, 3]),
    overlap=st.booleans(),
)
def test_small_sizes(device, size, types, b_layout, c_buffers, depth, overlap):
    options = {
        "dtype_in": types[0], "dtype_out": types[1], "tile": (32, 32, 32), "k_mt": 32 * depth,
        "b_layout": b_layout, "c_buffers": c_buffers, "overlap_bds": overlap,
    }  # fmt: skip
    trace = npu.trace_gemm(device, *size, **options)
    check_timeline(trace)
    assert trace.simulation == npu.simulate_gemm(device, *size, **options)


def test_agents_and_waits_name_what_they_wait_for(small):
    """Cores wait for locks only; a wait for a receiver names a channel; sends name receivers."""
    names = {KINDS[k] for k in of_kind(small, *range(4, 8))["kind"]}
    assert {"wait lock", "wait data"} <= names
    for event in of_kind(small, SEND):
        assert all(small.tracks[i].kind == "in" for i in small.routes[event["other"]])
    for event in of_kind(small, RECEIVE):
        assert small.tracks[event["other"]].kind == "out"
    cores = [i for i, track in enumerate(small.tracks) if track.kind == "core"]
    on_cores = small.events[np.isin(small.events["track"], cores)]
    assert {KINDS[k] for k in on_cores["kind"]} == {"kernel", "wait lock"}
    ports = [t.port for t in small.tracks if t.port]
    assert sorted(ports) == sorted(f"{m}{c}" for m in "ABC" for c in range(4))


def test_a_slow_memory_shows_as_waiting_for_it():
    def waits(**constants: float) -> float:
        trace = npu.trace_gemm("npu1", 512, 512, 512, **SMALL, constants=constants)
        shims = [t for t in trace.tracks if t.row == 0 and t.kind == "out" and t.used]
        moving = sum(t.cycles["send"] for t in shims)
        assert moving == pytest.approx(trace.simulation.bytes["L3_read"] / 4, rel=0.02)  # 4 B/cycle
        return sum(t.cycles["wait memory"] for t in shims) / moving

    assert waits(dram_read_npu1=1.0) > 10 * waits(dram_read_npu1=1000.0, row_visit=1e-6) + 10


def test_window_is_a_part_of_the_whole(small):
    begin, end = 110.0, 150.0
    part = npu.trace_gemm("npu1", 256, 256, 384, **SMALL, from_us=begin, to_us=end, locks=False)
    whole = small.events[small.events["kind"] != LOCK]
    start, stop = (small.microseconds(whole[name]) for name in ("start", "end"))
    inside = whole[(start < end) & (stop > begin)]
    assert len(part.events) == len(inside) > 100
    order = ["start", "track"]
    for name in ("start", "end", "track", "kind", "other", "bytes"):
        found, expected = np.sort(part.events, order=order), np.sort(inside, order=order)
        assert (found[name] == expected[name]).all(), name
    assert part.simulation == small.simulation
    length = (end - begin) * small.clock_hz / 1e6
    assert part.window_cycles == pytest.approx(length)
    for track in part.tracks:
        assert sum(track.cycles.values()) <= length * (1 + 1e-9)
        if track.kind == "core":
            assert sum(track.cycles.values()) == pytest.approx(length)


def test_lock_values_of_a_window(small):
    """At any time of the window a lock has the value that it has in the whole run."""
    begin, end = 110.0, 150.0
    part = npu.trace_gemm("npu1", 256, 256, 384, **SMALL, from_us=begin, to_us=end)

    def value(trace: npu.GemmTrace, lock: int, moment: float) -> int:
        mine = of_kind(trace, LOCK)
        mine = mine[mine["other"] == lock]
        return int(mine["bytes"][trace.microseconds(mine["start"]) <= moment][-1])

    locks = np.unique(of_kind(part, LOCK)["other"])
    assert len(locks) > 50
    for lock in locks:
        for moment in np.linspace(begin, end, 9):
            assert value(part, lock, moment) == value(small, lock, moment)


def test_limit_keeps_the_beginning(small):
    whole = npu.trace_gemm("npu1", 256, 256, 384, **SMALL, locks=False)
    assert whole.left_out == 0
    cut = npu.trace_gemm("npu1", 256, 256, 384, **SMALL, locks=False, limit=500)
    assert len(cut.events) == 500 and cut.left_out == len(whole.events) - 500
    end = whole.microseconds(whole.events["end"])
    assert (end < cut.left_out_from).sum() <= 500
    kept = {(int(e["track"]), float(e["start"])) for e in cut.events}
    early = whole.events[end < cut.left_out_from]
    assert len(early) > 100
    assert {(int(e["track"]), float(e["start"])) for e in early} <= kept
    assert cut.tracks == whole.tracks  # the summary is of the whole run
    assert npu.trace_gemm("npu1", 256, 256, 384, **SMALL, limit=1).left_out > 1000


def test_window_inside_the_dispatch_has_no_array_events():
    trace = npu.trace_gemm("npu1", 64, 64, 64, **SMALL, to_us=50)
    assert len(trace.events) == 0 and trace.window_cycles == 0 and trace.left_out == 0
    trace_plot.draw(trace)


def test_the_default_k_mt_is_that_of_simulate_gemm():
    """1024 is no multiple of the deepest k_mt of this tile."""
    traced = npu.trace_gemm("npu2", 64, 1024, 64).simulation
    assert traced == npu.simulate_gemm("npu2", 64, 1024, 64)


@pytest.mark.parametrize(
    ("change", "error", "telling"),
    [
        ({"from_us": -1}, ArgumentError, "from_us"),
        ({"from_us": float("nan")}, ArgumentError, "from_us"),
        ({"to_us": "late"}, ArgumentError, "to_us"),
        ({"from_us": 5, "to_us": 5}, ArgumentError, "after"),
        ({"from_us": 1e9}, ArgumentError, "the run ends"),
        ({"limit": 0}, ArgumentError, "limit"),
        ({"limit": 1 << 40}, ArgumentError, "limit"),
        ({"limit": 10.5}, ArgumentError, "limit"),
        ({"tile": (144, 144, 144), "k_mt": None}, DesignError, "L1"),
        ({"dtype_in": "float64"}, DtypeError, "float64"),
        ({"constants": {"no_such": 1.0}}, ArgumentError, "no_such"),
        ({"stream_bytes": 5}, ArgumentError, "stream_bytes"),
    ],
)
def test_errors(change, error, telling):
    with pytest.raises(error, match=telling):
        npu.trace_gemm("npu1", 64, 64, 64, **(SMALL | change))
    with pytest.raises(DeviceError, match="npu3"):
        npu.trace_gemm("npu3", 64, 64, 64)
    with pytest.raises(ShapeError, match="K"):
        npu.trace_gemm("npu1", 64, 0, 64)


# The file.


def check_file(path: Path) -> dict[str, Any]:
    """The rules of the trace-event format, read by its description and nothing of npu."""
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    slices = collections.defaultdict(list)
    threads, processes = {}, {}
    for event in document["traceEvents"]:
        assert event["ph"] in ("X", "C", "M", "i")
        assert type(event["pid"]) is int and type(event["tid"]) is int and event["name"]
        if event["ph"] == "M":
            named = {"thread_name": threads, "process_name": processes}.get(event["name"])
            if named is not None:
                named[event["pid"], event["tid"]] = event["args"]["name"]
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            slices[event["pid"], event["tid"]].append((event["ts"], event["dur"], event))
        if event["ph"] == "C":
            assert all(type(v) is int for v in event["args"].values())
    assert set(slices) <= set(threads)
    assert {pid for pid, _ in threads} == {pid for pid, _ in processes}
    assert len({tid for _, tid in threads}) == len(threads)
    for found in slices.values():
        found.sort(key=lambda item: item[:2])
        for (ts, dur, _), (following, _, _) in itertools.pairwise(found):
            assert following >= ts + dur - 1e-6  # far below the 1e-4 us that are written
    document["slices"] = {threads[key]: [] for key in slices}
    for key, found in slices.items():
        document["slices"][threads[key]] += [event for _, _, event in found]
    return document


def test_file_keeps_the_rules_and_adds_up(small, tmp_path):
    path = tmp_path / "trace.json"
    assert small.save(path) == path.stat().st_size
    document = check_file(path)
    s, other = small.simulation, document["otherData"]
    assert "simulated" in other and other["seconds"] == s.seconds
    ends = [e["ts"] + e["dur"] for found in document["slices"].values() for e in found]
    assert max(ends) == pytest.approx(s.seconds * 1e6, abs=1e-3)
    kernels = [e for e in document["slices"]["core"] if e["cat"] == "kernel"]
    busy = sum(e["dur"] for e in kernels) / 1e6 * small.clock_hz
    assert busy == pytest.approx(16 * s.details["core_busy"], rel=1e-4)
    assert {e["name"] for e in kernels} == set(small.kernels)
    commands = [e["name"] for e in document["slices"]["command processor"]]
    for start in ("RTP write core(0,2)", "lock write core(", "BD write shim(", "task push shim(",
                  "address patch shim(", "sync shim(", "wait: sync shim("):  # fmt: skip
        assert any(name.startswith(start) for name in commands), start
    counters = [e for e in document["traceEvents"] if e["ph"] == "C"]
    assert len(counters) == len(of_kind(small, LOCK))
    assert document["slices"]["host"][0]["dur"] == pytest.approx(s.dispatch_seconds * 1e6)
    reads = [e for e in document["slices"]["MM2S 0 (A0)"] if e["cat"] == "send"]
    assert all(e["args"]["to"] == ["memtile (0,1) S2MM 0"] for e in reads) or reads


def test_compressed_file_is_the_same_and_reproducible(small, tmp_path, monkeypatch):
    plain, packed, again = (tmp_path / name for name in ("a.json", "a.json.gz", "b.json.gz"))
    small.save(plain)
    small.save(packed)
    monkeypatch.setattr(time, "time", lambda: 0.0)  # a day that gzip could write down
    small.save(again)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert packed.read_bytes() == again.read_bytes()
    assert packed.stat().st_size < plain.stat().st_size / 5


def test_a_cut_trace_says_so(tmp_path):
    path = tmp_path / "cut.json"
    trace = npu.trace_gemm("npu2", 512, 256, 512, **SMALL, limit=2000)
    trace.save(path)
    document = check_file(path)
    assert document["otherData"]["events_left_out"] == trace.left_out > 1000
    marks = [e for e in document["traceEvents"] if e["ph"] == "i"]
    assert len(marks) == 1 and str(trace.left_out) in marks[0]["name"]


def test_files_are_replaced_whole_or_not_at_all(small, tmp_path, monkeypatch):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(b"before")
    broken = dataclasses.replace(small, kernels=[])  # fails in the middle
    with pytest.raises(IndexError):
        broken.save(path)
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == [path.name]
    small.save(path)
    check_file(path)
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "target.json")
    small.save(link)
    assert link.is_symlink() and (tmp_path / "target.json").is_file()
    for bad, telling in (
        (tmp_path, "folder"), (tmp_path / "no" / "t.json", "no folder to be"), ("", "folder"),
        ("a\0b", "null"), ("x" * 5000, "long"), (5, "int"), (None, "None"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=telling):
            small.save(bad)
    if Path("/dev/full").exists():
        for name in ("save", "plot"):
            target = Path("/dev/full") if name == "save" else tmp_path / "full.png"
            if name == "plot":
                target.symlink_to("/dev/full")
            with pytest.raises(ArgumentError, match="space"):
                getattr(small, name)(target)


# The picture.


@pytest.mark.parametrize("device", ["npu1", "npu2"])
@pytest.mark.slow
def test_plot_has_no_clipped_or_colliding_text(device, tmp_path):
    text = pytest.importorskip("matplotlib.text")
    trace = npu.trace_gemm(
        device, 65536, 64, 512, dtype_in="bfloat16", dtype_out="bfloat16", tile=(32, 32, 32),
        from_us=100, to_us=200,
    )  # fmt: skip
    figure = trace_plot.draw(trace)
    figure.savefig(io.BytesIO())  # places legends
    frame = figure.bbox
    texts = [t for t in figure.findobj(match=text.Text) if t.get_text()]
    assert any("imulated" in t.get_text() for t in texts)
    boxes = [(t.get_text(), t.get_window_extent()) for t in texts if t.get_visible()]
    for words, box in boxes:
        assert frame.x0 <= box.x0 and box.x1 <= frame.x1, words
        assert frame.y0 <= box.y0 and box.y1 <= frame.y1, words
    for i, (words, box) in enumerate(boxes):
        for other, beside in boxes[:i]:
            across = min(box.x1, beside.x1) - max(box.x0, beside.x0)
            down = min(box.y1, beside.y1) - max(box.y0, beside.y0)
            assert across <= 0 or down <= 2, (words, other)  # boxes include the line's leading
    for name, start in (("s.png", b"\x89PNG"), ("s.svg", b"<?xml"), ("s.pdf", b"%PDF")):
        trace.plot(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)


def test_plot_errors(small, tmp_path, monkeypatch):
    with pytest.raises(ArgumentError, match=r"\.png"):
        small.plot(tmp_path / "summary.bmp")
    with pytest.raises(ArgumentError, match="no folder to be"):
        small.plot(tmp_path / "no" / "summary.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(DeviceError, match=r"npu-xdna\[plot\]"):
        plots.pyplot()
    with pytest.raises(DeviceError, match=r"npu-xdna\[plot\]"):
        small.plot(tmp_path / "summary.png")
    assert os.listdir(tmp_path) == []


# The command.


def run(capsys, *words: str) -> tuple[int, str, str]:
    code = cli.main(["trace", *words])
    return code, *capsys.readouterr()


def test_command(capsys, tmp_path):
    path, picture = tmp_path / "t.json", tmp_path / "t.png"
    code, out, err = run(
        capsys, "100", "200", "300", "--device", "npu1", "--dtype", "bfloat16", "--tile",
        "32,32,32", "--k-mt", "64", "--b-layout", "row", "--c-buffers", "2", "--limit", "1000",
        "--no-locks", "-o", str(path), "--png", str(picture),
    )  # fmt: skip
    assert (code, out) == (0, "")
    assert "simulated" in err and "1000 events" in err and "left out" in err
    document = check_file(path)
    assert document["otherData"]["events"] == 1000
    assert not [e for e in document["traceEvents"] if e["ph"] == "C"]
    same = npu.simulate_gemm(
        "npu1", 100, 200, 300, dtype_in="bfloat16", dtype_out="float32", tile=(32, 32, 32),
        k_mt=64, b_layout="row", c_buffers=2,
    )  # fmt: skip
    assert document["otherData"]["seconds"] == same.seconds
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "telling"),
    [
        (("64", "64", "64"), "-o"),
        (("64", "64", "64", "-o", "-"), "not a file name"),
        (("64", "64", "64", "-o", "/dev/null", "--png", "-"), "not a file name"),
        (("64", "64", "64", "-o", "/no/such/folder/t.json"), "no folder to be"),
        (("64", "64", "64", "-o", "."), "folder"),
        (("64", "64", "64", "--png", "t.bmp"), ".png"),
        (("64", "64", "64", "--tile", "144,144,144", "-o", "/dev/null"), "L1"),
        (("64", "64", "64", "--tile", "64,64", "-o", "/dev/null"), "m,k,n"),
        (("64", "64", "64", "--from", "9e9", "-o", "/dev/null"), "the run ends"),
        (("64", "64", "64", "--from", "nan", "-o", "/dev/null"), "from_us"),
        (("64", "64", "64", "--limit", "-1", "-o", "/dev/null"), "limit"),
        (("64", "64", str(1 << 60), "-o", "/dev/null"), "N is"),
        (("64", "64", "0", "-o", "/dev/null"), "positive"),
        (("64", "64"), "N"),
    ],
)
def test_command_errors(capsys, words, telling):
    code, _, err = run(capsys, *words)
    assert code in (1, 2) and telling in err and err.count("\n") == 1


def test_event_records_match_the_core():
    assert EVENT.itemsize == 48
    assert len(KINDS) == 11


def test_example_of_the_documentation(tmp_path, monkeypatch, capsys):
    page = Path(__file__).resolve().parents[3] / "docs" / "tracing.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert "core (0,2)" in capsys.readouterr().out
    check_file(tmp_path / "trace.json.gz")
    assert (tmp_path / "summary.svg").is_file()
