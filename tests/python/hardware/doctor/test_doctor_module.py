"""The command that looks at libnpu_xrt.so: modules compiled here, of every kind that a machine can
have, give one JSON line; also one that crashes while it is loaded leaves npu doctor an answer.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from limits import HANG

from npu.hardware.build import xrt_module
from npu.hardware.doctor import module_command

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")
TABLE = "static const unsigned table[2] = {%d, 8};\nconst void* npu_xrt_module_get(void) {%s}\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache in which the module is looked for."""
    monkeypatch.setenv("NPU_CACHE", str(tmp_path))
    monkeypatch.delenv("NPU_XRT_MODULE", raising=False)
    (tmp_path / "xrt").mkdir()
    return tmp_path / "xrt"


def compiled(path: Path, source: str) -> Path:
    assert COMPILER is not None
    words = [COMPILER, "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(words, input=source, text=True, check=True, timeout=HANG)
    return path


def said() -> dict[str, object]:
    words = (sys.executable, "-m", "npu.hardware.doctor.module_command")
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {"exit": done.returncode}


def test_no_module(cache: Path) -> None:
    assert said() == {"path": None}


def test_the_interface_that_is_wanted_is_that_of_the_sources() -> None:
    header = Path(__file__).parents[4] / "backend/devices/xrt/module/module_abi.h"
    line = next(x for x in header.read_text().splitlines() if "define NPU_XRT_MODULE_ABI " in x)
    assert module_command.wanted() == int(line.split()[-1])


def test_a_module_and_its_interface(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compiled(cache / xrt_module.FILE, TABLE % (77, "return table;"))
    assert said() == {"path": str(path), "abi": 77, "wanted": module_command.wanted()}
    named = compiled(cache / "other.so", TABLE % (78, "return table;"))
    monkeypatch.setenv("NPU_XRT_MODULE", str(named))
    assert said()["abi"] == 78
    monkeypatch.setenv("NPU_XRT_MODULE", str(cache / "none.so"))
    assert said() == {"path": None, "named": str(cache / "none.so")}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("int other;\n", "npu_xrt_module_get"),
        (TABLE % (2, "return 0;"), "no table"),
        ("extern int no_such_symbol; int* f(void) {return &no_such_symbol;}\n", "no_such_symbol"),
    ],
)
def test_modules_that_cannot_be_used(source: str, words: str, cache: Path) -> None:
    path = compiled(cache / xrt_module.FILE, source)
    outcome = said()
    assert outcome["path"] == str(path) and words in str(outcome["error"])


def test_a_file_that_is_no_library(cache: Path) -> None:
    (cache / xrt_module.FILE).write_text("no library")
    assert "error" in said()


def test_a_module_that_crashes_ends_only_its_process(cache: Path) -> None:
    crash = "__attribute__((constructor)) static void f(void) {__builtin_trap();}\n"
    compiled(cache / xrt_module.FILE, crash)
    assert int(str(said()["exit"])) < 0
