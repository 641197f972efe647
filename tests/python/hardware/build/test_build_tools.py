"""Where the tools of a build are looked for, and the sentence where they are missing.

Asserts the order of places, that a host's clang++ is not taken for Peano's, both forms of aiecc,
and the commands per distribution.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import doubles
import pytest

from npu.errors import BuildError
from npu.hardware.build import places
from npu.hardware.build import tools as module
from npu.hardware.doctor import building, distribution
from npu.hardware.doctor.live import LiveSystem
from npu.hardware.doctor.machine import Machine

DOCS = Path(__file__).parents[4] / "docs"


@pytest.fixture(autouse=True)
def nothing_installed(xclbins, tmp_path, monkeypatch):
    monkeypatch.setattr(places, "_XRT", str(tmp_path / "no-xrt"))
    monkeypatch.setattr(places, "package", lambda name: None)
    monkeypatch.delenv("XILINX_XRT", raising=False)


def test_both_forms_of_aiecc(either, request):
    found = module.find()
    assert found.new_options == ("new" in request.node.name)
    assert found.takes("xclbinutil-path") == found.new_options
    assert found.peano == either / "peano" and found.include == either / "mlir_aie" / "include"
    assert set(found.versions()) == {"aiecc", "clang++", "xclbinutil"}
    assert found.versions()["aiecc"].startswith("aiecc version 1.2.3 (")


def test_versions_differ_where_the_text_does(tools):
    before = module.find().versions()
    doubles.set_faults(tools, clang={"version": "1.2.4"})
    after = module.find().versions()
    assert {name for name in before if before[name] != after[name]} == {"clang++"}


def test_packages_and_path(tmp_path, monkeypatch):
    folder = doubles.install(tmp_path / "tools")
    there = {"mlir_aie": str(folder / "mlir_aie"), "llvm-aie": str(folder / "peano")}
    monkeypatch.setattr(places, "package", there.get)
    with pytest.raises(BuildError, match="xclbinutil"):
        module.find()
    bundled = folder / "mlir_aie" / "bin" / "xclbinutil"
    bundled.write_bytes((folder / "xrt" / "bin" / "xclbinutil").read_bytes())
    bundled.chmod(0o755)
    assert module.find().xclbinutil.path == bundled
    own = folder / "xrt" / "bin" / "xclbinutil"
    monkeypatch.setattr(places, "_XRT", str(folder / "xrt"))
    assert module.find().xclbinutil.path == own
    inner = own.parent / "unwrapped" / "xclbinutil"
    inner.parent.mkdir()
    own.rename(inner)
    assert module.find().xclbinutil.path == inner
    monkeypatch.setattr(places, "_XRT", str(folder / "none"))
    assert module.find().xclbinutil.path == bundled
    monkeypatch.setenv("XILINX_XRT", str(folder / "xrt"))
    assert module.find().xclbinutil.path == inner


@pytest.mark.parametrize(
    "how", ["nowhere", "variables", "path", "packages", "xrt", "wrong", "no programs"]
)
def test_the_doctor_finds_what_a_build_finds(how, tmp_path, monkeypatch):
    folder = doubles.install(tmp_path / "tools")
    if how in ("variables", "wrong", "no programs"):
        for name, value in doubles.variables(folder).items():
            monkeypatch.setenv(name, value + ("x" if how == "wrong" else ""))
    if how == "no programs":
        for path in folder.glob("*/bin/*"):
            path.chmod(0o644)
    if how == "path":
        bins = [str(folder / place / "bin") for place in ("mlir_aie", "peano", "xrt")]
        monkeypatch.setenv("PATH", ":".join([*bins, "/usr/bin"]))
    if how == "packages":
        there = {"mlir_aie": str(folder / "mlir_aie"), "llvm-aie": str(folder / "peano")}
        monkeypatch.setattr(places, "package", there.get)
    if how == "xrt":
        monkeypatch.setenv("XILINX_XRT", str(folder / "xrt"))
    monkeypatch.setenv("HOME", "/home/nobody-of-this-test")
    mine, its = module._ThisMachine(), building._Examined(Machine(LiveSystem()))
    found = {name: places.locate(name, mine) for name in places.KINDS}
    assert found == {name: places.locate(name, its) for name in places.KINDS}
    count = {"nowhere": 0, "wrong": 0, "no programs": 0, "packages": 2, "xrt": 1}.get(how, 3)
    assert sum(one.path is not None for one in found.values()) == count
    assert all(one.wrong for one in found.values()) == (how in ("wrong", "no programs"))


def test_a_bare_name_of_xclbinutil(tools, monkeypatch):
    """It is looked for on PATH, as aiecc does."""
    folder = tools / "xrt" / "bin"
    (folder / "xclbinutil").rename(folder / "xclbinutil-2.25")
    monkeypatch.setenv("AIE_XCLBINUTIL", "xclbinutil-2.25")
    with pytest.raises(BuildError, match=r"is xclbinutil-2\.25, but PATH has no xclbinutil-2\.25"):
        module.find()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin")
    assert module.find().xclbinutil.path == folder / "xclbinutil-2.25"


def test_a_real_package_is_found(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert places.package("llvm-aie") is None
    (tmp_path / "llvm-aie").mkdir()
    (tmp_path / "mlir_aie").mkdir()
    (tmp_path / "mlir_aie" / "__init__.py").write_text("raise SystemExit  # never imported")
    importlib.invalidate_caches()
    assert places.package("llvm-aie") == str(tmp_path / "llvm-aie")
    assert places.package("mlir_aie") == str(tmp_path / "mlir_aie")
    assert places.package("no-such-package-at-all") is None


def test_everything_on_path(tmp_path, monkeypatch):
    folder = doubles.install(tmp_path / "tools")
    bins = [str(folder / place / "bin") for place in ("mlir_aie", "peano", "xrt")]
    monkeypatch.setenv("PATH", ":".join([*bins, "/usr/bin"]))
    assert module.find().clang.path == folder / "peano" / "bin" / "clang++"


def test_the_clang_of_the_host_is_not_peano(tmp_path, monkeypatch):
    (tmp_path / "clang++").write_text(f"#!{sys.executable}\nprint('x86-64')\n")
    (tmp_path / "clang++").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin")
    with pytest.raises(BuildError, match=r"clang\+\+ \(Peano\)"):
        module.find()


def test_all_missing_is_one_sentence_with_the_commands(npu):
    code, out, err = npu()
    assert code == 1 and out == "" and err.count("\n") == 1
    assert "aiecc (mlir-aie), clang++ (Peano) and xclbinutil (XRT) are needed" in err
    assert "pip install mlir_aie -f https://github.com/Xilinx/mlir-aie/releases/expanded" in err
    assert "pip install llvm-aie==21.0.0.2026080301 -f https://github.com/Xilinx/llvm-aie/" in err
    for name in ("MLIR_AIE_INSTALL_DIR", "PEANO_INSTALL_DIR", "AIE_XCLBINUTIL"):
        assert name in err


@pytest.mark.parametrize("name", sorted(doubles.variables(Path())))
def test_only_what_is_missing_is_named(name, tools, monkeypatch):
    monkeypatch.delenv(name)
    with pytest.raises(BuildError) as raised:
        module.find()
    others = set(doubles.variables(Path())) - {name}
    assert name in str(raised.value) and not any(other in str(raised.value) for other in others)
    assert " is needed to build" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ('ID=ubuntu\nVERSION_ID="26.04"\n', "`sudo apt install libxrt-utils` (ubuntu)"),
        (
            'ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04"',
            "`sudo add-apt-repository ppa:amd-team/xrt && sudo apt install libxrt-utils` (Ubuntu",
        ),
        ("ID=debian\nVERSION_ID=13\n", "`sudo apt install -t trixie-backports libxrt-utils`"),
        ("ID=debian\nVERSION_ID=12\n", "`git clone --recursive https://github.com/amd/xdna-drive"),
        ("ID=fedora\nVERSION_ID=46\n", "`sudo dnf install xrt` (fedora)"),
        ("ID=fedora\nVERSION_ID=44\n", "copr enable abn/amd-npu && sudo dnf install xrt`"),
        ("ID=cachyos\nID_LIKE=arch\n", "`sudo pacman -S xrt` (cachyos)"),
        ("ID=other\n", "`git clone --recursive https://github.com/amd/xdna-driver"),
        (None, "`git clone --recursive https://github.com/amd/xdna-driver"),
    ],
)
def test_the_command_of_the_distribution(text, command, tmp_path, monkeypatch):
    path = tmp_path / "os-release"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(distribution, "OS_RELEASE", path)
    with pytest.raises(BuildError) as raised:
        module.find()
    assert command in str(raised.value)


def test_wheels_go_to_the_python_that_runs(monkeypatch, tmp_path):
    """By its path, unless python3 is its name here; and not into one without wheels."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "bin" / "python"))
    with pytest.raises(BuildError, match=f"`{tmp_path}/venv/bin/python -m pip install mlir_aie"):
        module.find()
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python3").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", f"{tmp_path}/venv/bin:/usr/bin")
    with pytest.raises(BuildError, match="`python3 -m pip install mlir_aie"):
        module.find()
    for version, fits in (((3, 10, 12), False), ((3, 11, 0), True), ((3, 14, 2), True),
                          ((3, 15, 0), False)):  # fmt: skip
        monkeypatch.setattr(sys, "version_info", version)
        with pytest.raises(BuildError) as raised:
            module.find()
        assert ("Python 3.11 to 3.14" in str(raised.value)) is not fits


@pytest.mark.parametrize("name", sorted(doubles.variables(Path())))
def test_a_variable_that_names_nothing(name, tools, monkeypatch, tmp_path):
    monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(BuildError, match=rf"{name} is .*none, but .* is no program"):
        module.find()


def test_links_to_the_tools(tools, tmp_path, monkeypatch):
    """A link is run by its own name: clang++ is one itself, to a program of another name."""
    (tmp_path / "bin").mkdir()
    for place, name in (("mlir_aie", "aiecc"), ("peano", "clang++"), ("xrt", "xclbinutil")):
        (tmp_path / "bin" / name).symlink_to(tools / place / "bin" / name)
    for name in doubles.variables(tools):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin")
    found = module.find()
    assert found.clang.path == tmp_path / "bin" / "clang++"
    assert found.peano == tools / "peano" and found.include == tools / "mlir_aie" / "include"


def test_the_script_that_pip_makes_of_aiecc(tools, tmp_path, monkeypatch):
    """It lies in bin of an environment, the headers in site-packages."""
    home = tmp_path / "venv"
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "aiecc"
    script.write_text(f'#!/bin/sh\nexec {tools}/mlir_aie/bin/aiecc "$@"\n')
    script.chmod(0o755)
    monkeypatch.delenv("MLIR_AIE_INSTALL_DIR")
    monkeypatch.setenv("PATH", f"{home}/bin:/usr/bin:/bin")
    with pytest.raises(BuildError, match=r"has no aie_api/aie\.hpp"):
        module.find()
    package = home / "lib" / "python3.12" / "site-packages" / "mlir_aie"
    (package / "include" / "aie_api").mkdir(parents=True)
    (package / "include" / "aie_api" / "aie.hpp").touch()
    assert module.find().include == package / "include"


def test_an_aiecc_of_another_kind(tools):
    doubles.set_faults(tools, aiecc={"help": "usage: aiecc.py"})
    with pytest.raises(BuildError, match="neither the option --get-xclbin nor"):
        module.find()


def test_headers_are_needed(tools):
    (tools / "mlir_aie" / "include" / "aie_api" / "aie.hpp").unlink()
    with pytest.raises(BuildError, match=r"has no aie_api/aie\.hpp"):
        module.find()


@pytest.mark.parametrize("page", ["building.md", "hardware.md"])
@pytest.mark.parametrize("name", ["aiecc", "clang++"])
def test_the_pages_install_what_the_messages_do(page, name):
    """Names, versions and addresses of wheels are those of places.KINDS."""
    text = " ".join((DOCS / page).read_text().replace("\\\n", " ").split())
    assert " ".join(places.pip_install(name, "python3")) in text
    of_kind = {"aiecc": "mlir_aie", "clang++": "llvm-aie=="}[name]
    others = re.findall(rf"{re.escape(of_kind)}[\w.]*", text)
    assert {one for one in others if "==" in one} <= {places.KINDS[name].wheel}
