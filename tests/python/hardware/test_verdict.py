"""The self-test's verdict holds for its stamp alone; a damaged file is none, and one that cannot be
written is an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu.errors import FileError
from npu.hardware import verdict

STAMP = {"pci": "1022:17f0 rev 10", "firmware": "1.1", "driver": "2.25", "xrt": "2.25", "npu": "1"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NPU_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("passed", [True, False])
def test_a_verdict_is_kept(folder, passed):
    assert verdict.read(STAMP) is None
    assert verdict.write(STAMP, passed, "all is well") == folder / "selftest.json"
    found = verdict.read(dict(STAMP))
    assert found is not None and found.passed is passed and found.report == "all is well"
    assert found.time.endswith("Z")
    verdict.write(STAMP, not passed, "")
    again = verdict.read(STAMP)
    assert again is not None and again.passed is not passed


@pytest.mark.parametrize("key", STAMP)
def test_another_stamp_has_none(folder, key):
    verdict.write(STAMP, True, "")
    assert verdict.read({**STAMP, key: "other"}) is None
    assert verdict.read({k: v for k, v in STAMP.items() if k != key}) is None
    assert verdict.read({}) is None


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"passed": 1}, {"passed": "yes"}, {"report": None}, {"time": 3}, {"stamp": []}],
)
def test_fields_of_other_types_are_no_verdict(folder, change):
    path = verdict.write(STAMP, True, "")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert verdict.read(STAMP) is None


@pytest.mark.parametrize("content", [b"", b"\0", b"[]", b"null", b"{", b"[" * 100000, b" " * 2**21])
def test_damaged_files_are_no_verdict(folder, content):
    verdict.write(STAMP, True, "").write_bytes(content)
    assert verdict.read(STAMP) is None


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_file_with_any_byte_changed_is_no_verdict_or_the_same_stamps(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPU_CACHE", str(folder))
        path = verdict.write(STAMP, False, "bad")
        content = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
        path.write_bytes(bytes(content[: data.draw(st.integers(at, len(content)))]))
        found = verdict.read(STAMP)
        assert found is None or not found.passed


def test_where_the_file_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for named in ("off", ""):
        monkeypatch.setenv("NPU_CACHE", named)
        assert verdict.path() == tmp_path / "npu-xdna" / "selftest.json"


def test_a_verdict_that_cannot_be_kept(monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("NPU_CACHE", str(file / "below"))
    with pytest.raises(FileError, match=r"^\[selftest\] .*NPU_CACHE"):
        verdict.write(STAMP, True, "")
    assert verdict.read(STAMP) is None
