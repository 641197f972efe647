"""Where the tools of a build are looked for, and the sentence where they are missing.

Asserts the order of places, that a host's clang++ is not taken for Peano's, both forms of aiecc,
and the commands per distribution.
"""

from __future__ import annotations

import sys
from pathlib import Path

import doubles
import pytest

from npu.errors import BuildError
from npu.hardware.build import tools as module


@pytest.fixture(autouse=True)
def nothing_installed(xclbins, monkeypatch):
    monkeypatch.setattr(module, "_XRT", ())
    monkeypatch.setattr(module, "_package", lambda name: None)


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
    places = {"mlir_aie": folder / "mlir_aie", "llvm-aie": folder / "peano"}
    monkeypatch.setattr(module, "_package", places.get)
    with pytest.raises(BuildError, match="xclbinutil"):
        module.find()
    bundled = folder / "mlir_aie" / "bin" / "xclbinutil"
    bundled.write_bytes((folder / "xrt" / "bin" / "xclbinutil").read_bytes())
    bundled.chmod(0o755)
    assert module.find().xclbinutil.path == bundled
    monkeypatch.setattr(module, "_XRT", (folder / "xrt" / "bin",))
    assert module.find().xclbinutil.path == folder / "xrt" / "bin" / "xclbinutil"


def test_a_real_package_is_found(tmp_path, monkeypatch):
    monkeypatch.undo()
    info = tmp_path / "llvm_aie-21.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llvm-aie\nVersion: 21.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert module._package("llvm-aie") is None  # no folder
    (tmp_path / "llvm-aie").mkdir()
    assert module._package("llvm-aie") == tmp_path / "llvm-aie"
    assert module._package("no-such-package-at-all") is None


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
        ("ID=ubuntu\nID_LIKE=debian\n", "`sudo apt install libxrt-utils` (Ubuntu)"),
        ('ID="debian"\n', "`sudo apt install libxrt-utils` (Debian after 12)"),
        ("ID=fedora\n", "`sudo dnf install xrt` (Fedora)"),
        ("ID=cachyos\nID_LIKE=arch\n", "`sudo pacman -S xrt` (Arch Linux)"),
        ("ID=other\n", "(Fedora) or `sudo pacman -S xrt` (Arch Linux)"),
        (None, "`sudo apt install libxrt-utils` (Ubuntu) or"),
    ],
)
def test_the_command_of_the_distribution(text, command, tmp_path, monkeypatch):
    path = tmp_path / "os-release"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(module, "_OS_RELEASE", path)
    with pytest.raises(BuildError) as raised:
        module.find()
    assert command in str(raised.value)
    if text and "other" not in text:
        assert str(raised.value).count("sudo") == 1


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


def test_an_aiecc_of_another_kind(tools):
    doubles.set_faults(tools, aiecc={"help": "usage: aiecc.py"})
    with pytest.raises(BuildError, match="neither the option --get-xclbin nor"):
        module.find()


def test_headers_are_needed(tools):
    (tools / "mlir_aie" / "include" / "aie_api" / "aie.hpp").unlink()
    with pytest.raises(BuildError, match=r"has no aie_api/aie\.hpp"):
        module.find()
