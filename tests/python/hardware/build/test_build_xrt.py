"""`npu build --xrt`: CMake configures, builds and installs the module's sources with the paths that
the environment names, and the module appears in the cache whole or not at all; what is missing or
fails is one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import npu as package
from npu import cli
from npu.hardware.build import xrt_module
from npu.hardware.doctor import distribution

# A stand-in for cmake: writes down its command lines, leaves a module, fails at one step if asked.
CMAKE = """#!/bin/sh
echo "$@" >> "$CALLS"
case "$*" in *"$FAILS"*)
  printf '%s\\n' "CMake Error at module.cmake:23 (message):" "  XRT is not here" "" "-- Incomplete"
  exit 1;;
esac
if [ "$1" = --install ] && [ -z "$LEAVES_NOTHING" ]; then
  mkdir -p "$4" && echo module > "$4/libnpu_xrt.so"
fi
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command lines that cmake got. Cache and PATH are the test's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "cmake").write_text(CMAKE)
    (folder / "cmake").chmod(0o755)
    sources = tmp_path / "package" / "xrt_module"
    sources.mkdir(parents=True)
    (sources / "CMakeLists.txt").write_text("")
    monkeypatch.setattr(package, "__file__", str(sources.parent / "__init__.py"))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("NPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("FAILS", "no such step")
    for name in ("LEAVES_NOTHING", *xrt_module.PATHS):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "calls"


def test_the_module_is_built_and_kept(calls, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("NPU_XRT_INCLUDE", "/some/include")
    assert cli.main(["build", "--xrt"]) == 0
    place = tmp_path / "cache" / "xrt" / "libnpu_xrt.so"
    assert capsys.readouterr().out == f"{place}: built\n" and place.read_text() == "module\n"
    configure, build, install = calls.read_text().splitlines()
    assert configure.startswith(f"-S {tmp_path}/package/xrt_module -B ")
    assert configure.endswith("-DCMAKE_BUILD_TYPE=Release -DNPU_XRT_INCLUDE=/some/include")
    assert build.startswith("--build ") and install.startswith("--install ")
    assert os.listdir(place.parent) == ["libnpu_xrt.so"]  # nothing else stays


@pytest.mark.parametrize("step", ["-S", "--build", "--install"])
def test_a_step_that_fails_keeps_the_old_module_and_the_log(
    step, calls, monkeypatch, capsys, tmp_path
):
    assert cli.main(["build", "--xrt"]) == 0
    xrt_module.target().write_text("old")
    monkeypatch.setenv("FAILS", step)
    release = tmp_path / "os-release"
    release.write_text('ID=ubuntu\nVERSION_ID="24.04"\n')
    monkeypatch.setattr(distribution, "OS_RELEASE", release)
    assert cli.main(["build", "--xrt"]) == 1
    message = capsys.readouterr().err
    reason = "CMake Error at module.cmake:23 (message): XRT is not here; its output is in"
    assert f"cmake failed with exit code 1: {reason}" in message
    needs = "`sudo add-apt-repository ppa:amd-team/xrt && sudo apt install libxrt-dev g++ cmake`"
    assert (needs in message) == (step == "-S")
    assert xrt_module.target().read_text() == "old"
    assert "XRT is not here" in xrt_module.target().with_suffix(".log").read_text()


def test_cmake_that_leaves_no_module(calls, monkeypatch, capsys):
    monkeypatch.setenv("LEAVES_NOTHING", "1")
    assert cli.main(["build", "--xrt"]) == 1
    assert "left no libnpu_xrt.so" in capsys.readouterr().err
    assert not xrt_module.target().exists()


def test_without_cmake_without_sources_and_without_a_folder(calls, monkeypatch, capsys, tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert cli.main(["build", "--xrt"]) == 1
    assert "cannot be kept" in capsys.readouterr().err
    monkeypatch.setenv("NPU_CACHE", str(tmp_path / "other"))
    (tmp_path / "package" / "xrt_module" / "CMakeLists.txt").unlink()
    assert cli.main(["build", "--xrt"]) == 1
    assert "sources are not at" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["build", "--xrt"]) == 1
    assert "cmake is needed" in capsys.readouterr().err


@pytest.mark.parametrize("more", [["gemm"], ["--all"], ["--device", "npu1"]])
def test_options_of_configurations_are_refused(more, calls, capsys):
    assert cli.main(["build", "--xrt", *more]) == 1
    assert "leave operations and their options out" in capsys.readouterr().err
    assert not calls.exists()
