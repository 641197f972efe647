"""`npu inspect` and `npu compile` as a user runs them.

Asserts what is printed (checked against the stream and configuration by other readers), that files
are written whole, and that damaged, huge, missing and wrong input gives one line and exit code 1.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import bfloat16

import npu
from npu import cli, stream
from npu._npu import facts
from npu.cli import common
from npu.cli import inspect as inspect_command
from npu.designs import gemm, prefill
from npu.hardware.doctor import live, record
from npu.ops.registry import operations


@pytest.fixture(scope="module")
def config() -> bytes:
    return gemm.configuration("npu1", "bfloat16", "float32")


def run(capsys, *words: str) -> tuple[int, str, str]:
    code = cli.main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def test_inspect_gemm_follows_the_choice(capsys):
    """Of designs, sums and BFP16, as npu.matmul on that device; compile --size likewise."""
    words = ["inspect", "--gemm", "4096", "--dtype", "int8", "--designs", "array"]
    code, _, err = run(capsys, *words)
    assert (
        code == 0 and "gemm_i8_i32_pipelined_pairs tile 176x32x64" in err and "array design" in err
    )
    words += ["--out-dtype", "int8", "--accumulate", "narrow", "--b-layout", "col"]
    code, _, err = run(capsys, *words)
    assert code == 0 and "gemm_i8_i8_bcol_pipelined_narrow tile 256x32x128" in err
    code, _, err = run(capsys, "inspect", "--gemm", "64", "--bf16", "native")
    assert code == 0 and "gemm_bf16_f32 tile 64x64x64" in err
    compiling = ["compile", "gemm", "--dtype", "int8", "--size", "4096"]
    code, out, err = run(capsys, *compiling, "--emit", "mlir")
    assert code == 0 and "gemm_i8_i32_pipelined_pairs tile 176x32x64" in err and "aie.device" in out
    code, _, err = run(capsys, *compiling, "--tile", "64x64x64")
    assert code == 1 and "leave out --tile" in err


_INT8 = ["--dtype", "int8", "--out-dtype", "int8", "--b-layout", "col"]


@pytest.mark.parametrize(
    "device, environment, words, dtypes",
    [
        ("npu2", {}, [], ("float32", "float32")),
        ("npu1", {}, [], ("float32", "float32")),
        ("npu2", {"NPU_BF16": "native"}, [], ("float32", "float32")),
        ("npu2", {"NPU_KERNEL": "published"}, [], ("float32", "float32")),
        ("npu2", {}, ["--out-dtype", "bfloat16"], ("float32", "bfloat16")),
        ("npu2", {}, _INT8, ("int8", "int8")),
        ("npu2", {}, [*_INT8, "--accumulate", "narrow"], ("int8", "int8")),
        ("npu2", {}, ["--accumulate", "narrow"], ("float32", "float32")),
    ],
)
def test_compile_size_is_what_matmul_runs(
    capsys, monkeypatch, tmp_path, fresh_devices, device, environment, words, dtypes
):
    """With array designs on a device that has run nothing; --gemm and --operation name it too."""
    for name in ("NPU_BF16", "NPU_KERNEL", "NPU_DESIGNS"):
        monkeypatch.setenv(name, environment.get(name, ""))
    monkeypatch.setenv("NPU_DEVICE", f"emu:{device}")
    m, k, n = 192, 160, 256
    a, b = np.zeros((m, k), dtypes[0]), np.zeros((k, n), dtypes[0])
    b = np.asfortranarray(b) if "col" in words else b
    out = bfloat16 if dtypes[1] == "bfloat16" else dtypes[1]
    with npu.device(f"emu:{device}", designs="array"):
        npu.matmul(a, b, out_dtype=out, accumulate="narrow" if "narrow" in words else "wide")
        ran = npu.last_gemm().options
    path = tmp_path / "size.npucfg"
    code, _, err = run(capsys, "compile", "gemm", "--size", f"{m}x{k}x{n}", *words, "-o", str(path))
    assert code == 0 and err.startswith(ran.text + "\n")
    assert path.read_bytes() == gemm.configuration_of(ran)
    code, listing, err = run(
        capsys, "inspect", "--gemm", f"{m}x{k}x{n}", "--designs", "array", *words
    )
    assert code == 0 and f"on {device} with {ran.text} (array design)" in err
    request = f"m={m},k={k},n={n}"
    asked = ["inspect", "--operation", "gemm", "--request", request, "--designs", "array", *words]
    assert run(capsys, *asked) == (0, listing, err)


def test_the_device_comes_from_the_environment(capsys, monkeypatch, tmp_path, config):
    monkeypatch.setenv("NPU_DEVICE", "emu:npu1")
    code, _, err = run(capsys, "inspect", "--gemm", "512")
    assert code == 0 and "GEMM 512x512x512 on npu1 " in err
    code, _, err = run(capsys, "inspect", "--operation", "dequant", "--request", "n=64,k=256")
    assert code == 0 and "dequant on npu1:" in err
    path = tmp_path / "gemm.npucfg"
    assert run(capsys, "compile", "gemm", "-o", str(path))[0] == 0
    assert path.read_bytes() == config
    code, _, err = run(capsys, "inspect", "--gemm", "512", "--device", "npu2")
    assert code == 0 and " on npu2 " in err
    monkeypatch.setenv("NPU_DEVICE", "tpu")
    for words in (["inspect", "--gemm", "512"], ["compile", "gemm"]):
        code, out, err = run(capsys, *words)
        assert code == 1 and out == "" and "device is 'tpu'; name npu1 or npu2" in err


@pytest.mark.parametrize(
    ("name", "machine"),
    [("xrt", "healthy_npu1_arch"), ("xrt+module", "healthy_npu1_arch"),
     ("xrt:npu1", "no_npu_intel"), ("xrt:npu1+pyxrt", "healthy_npu2_fedora")],
)  # fmt: skip
def test_the_generation_of_an_npu_is_told_without_opening_it(
    capsys, monkeypatch, tmp_path, config, name, machine
):
    """By its name, else by its PCI ids."""
    path = Path(__file__).parents[1] / "hardware" / "doctor" / "machines" / f"{machine}.json"
    system = record.load(str(path))
    monkeypatch.setattr(live, "LiveSystem", lambda: system)
    devices, opened = importlib.import_module("npu.devices"), []
    monkeypatch.setattr(devices, "_xrt", defaultdict(lambda: opened.append("the NPU")))
    monkeypatch.setenv("NPU_DEVICE", name)
    made = tmp_path / "gemm.npucfg"
    assert run(capsys, "compile", "gemm", "-o", str(made))[0] == 0 and made.read_bytes() == config
    code, _, err = run(capsys, "inspect", "--operation", "dequant", "--request", "n=64,k=256")
    assert code == 0 and "dequant on npu1:" in err and opened == []


def test_an_npu_that_cannot_be_told_is_to_be_named(capsys, monkeypatch):
    monkeypatch.setenv("NPU_DEVICE", "xrt")
    path = Path(__file__).parents[1] / "hardware" / "doctor" / "machines" / "no_npu_intel.json"
    system = record.load(str(path))
    monkeypatch.setattr(live, "LiveSystem", lambda: system)
    code, out, err = run(capsys, "compile", "gemm")
    assert code == 1 and out == "" and "[compile] device is xrt, and this machine's NPU" in err


@pytest.mark.parametrize(
    "line, option, form, belongs",
    [
        ("inspect --gemm 64 --request rows=1", "--request", "--gemm", "--operation"),
        ("inspect FILE --dtype int8", "--dtype", "a file", "--gemm and --operation gemm"),
        ("inspect FILE --bf16 native", "--bf16", "a file", "--gemm and --operation gemm"),
        ("inspect FILE --accumulate wide", "--accumulate", "a file", "--gemm"),
        ("inspect FILE --designs host", "--designs", "a file", "--gemm"),
        ("inspect FILE --out-dtype int8", "--out-dtype", "a file", "--gemm"),
        ("inspect FILE --device npu1", "--device", "a file", "--gemm"),
        ("inspect FILE --request rows=1", "--request", "a file", "--operation"),
        ("inspect --operation dequant --request n=64,k=256 --b-layout col", "--b-layout",
         "--operation dequant", "--gemm and --operation gemm"),
        ("inspect --operation gemm --dtype int8", "--dtype", "--operation without --request",
         "--gemm and --operation gemm --request"),
        ("inspect --gemm 64 --dtype int8 --bf16 native", "--bf16", "int8", "bfloat16"),
        ("compile gemv --dtype int8", "--dtype", "gemv", "gemm"),
        ("compile gemv --b-layout row", "--b-layout", "gemv", "gemm"),
        ("compile gemv --accumulate narrow", "--accumulate", "gemv", "gemm"),
        ("compile gemv --bf16 bfp16", "--bf16", "gemv", "gemm"),
        ("compile gemv --size 64", "--size", "gemv", "gemm"),
        ("compile gemv --kernel published", "--kernel", "gemv", "gemm"),
        ("compile gemv --tile 64", "--tile", "gemv", "gemm without --size"),
        ("compile gemm --size 64 --c-buffers 0", "--c-buffers", "gemm --size",
         "gemm without --size"),
        ("compile gemm --size 64 --dtype int16 --bf16 native", "--bf16", "int16", "bfloat16"),
        ("compile --all FOLDER --device npu1", "--device", "--all", "a design's name"),
        ("compile --all FOLDER --dtype int8", "--dtype", "--all", "gemm"),
        ("compile --all FOLDER --emit config", "--emit", "--all", "a design's name"),
        ("compile --all FOLDER -o x", "--output", "--all", "a design's name"),
    ],
)  # fmt: skip
def test_options_of_another_form_are_refused(capsys, tmp_path, config, line, option, form, belongs):
    path = tmp_path / "file"
    path.write_bytes(config)
    names = {"FILE": str(path), "FOLDER": str(tmp_path / "folder")}
    words = [names.get(word, word) for word in line.split()]
    words += ["--emit", "mlir"] if line.startswith("compile gem") else []  # text if accepted
    code, out, err = run(capsys, *words)
    assert (code, out) == (1, "") and err.count("\n") == 1
    assert f"{option} does not apply to {form}" in err and f"only to {belongs}" in err
    assert err.endswith(f"leave out {option}\n")
    assert not (tmp_path / "folder").exists()


def test_operations_are_those_of_the_registry(capsys):
    """In help texts; the fields of one also as JSON."""
    names = ", ".join(operations())
    for command in ("inspect", "compile"):
        assert names in " ".join(run(capsys, command, "--help")[1].split())
    for name, operation in operations().items():
        code, out, _ = run(capsys, "inspect", "--operation", name, "--json")
        fields = [field["name"] for field in json.loads(out)["fields"]]
        assert code == 0 and fields == [field.name for field in operation.fields]


@pytest.mark.parametrize(
    "request_text, word",
    [("m=64,k=64", "n"), ("m=64,k=-1,n=64", "-1"), (f"m={1 << 40},k=1,n=1", "use 1 to")],
)
def test_inspect_leaves_wrong_gemm_requests_to_the_operation(capsys, request_text, word):
    code, out, err = run(capsys, "inspect", "--operation", "gemm", "--request", request_text)
    assert (code, out) == (1, "") and err.count("\n") == 1 and word in err
    assert "[estimate]" not in err


def test_inspect_gemm_names_every_transfer(capsys):
    code, out, err = run(capsys, "inspect", "--gemm", "500x1024x512", "--device", "emu:npu2")
    assert code == 0
    assert "gemm_bf16_f32_bfp16 tile 64x64x64 k_mt 128 (host design)" in err and "packed A" in err
    # Two output rounds: 4 A, 8 B and 8 C transfers each, one wait per round.
    assert out.count("queue push") == 2 * 20
    assert out.count("ADDRESS_PATCH") == 2 * 20
    assert out.count("SYNC") == 2
    assert out.count("token") == 16


def test_inspect_gemm_json_is_the_stream(capsys):
    code, out, _ = run(capsys, "inspect", "--gemm", "100", "--device", "npu1", "--json")
    assert code == 0
    document = json.loads(out)
    assert document["header"]["operations"] == len(document["operations"])


def test_compile_then_inspect(capsys, tmp_path, config):
    path = tmp_path / "gemm.npucfg"
    code, out, _ = run(capsys, "compile", "gemm", "--device", "npu1", "-o", str(path))
    assert (code, out) == (0, "") and path.read_bytes() == config
    assert [entry.name for entry in tmp_path.iterdir()] == ["gemm.npucfg"]
    code, out, _ = run(capsys, "inspect", str(path))
    assert code == 0
    assert "configuration gemm_bf16_f32 for npu1" in out
    assert out.count("call matmul_bf16_f32") == 16
    assert "port C3: shim(3,0) s2mm 0" in out
    assert len(re.findall(r": program \d+ of 16384 \(estimated\)\n", out)) == 16
    code, out, _ = run(capsys, "inspect", "--json", str(path))
    document = json.loads(out)
    assert document["params"]["columns"] == 4 and len(document["cores"]) == 16


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "empty"),
        (b"\x7fELF\2\1\1" + bytes(57), "an ELF file"),
        (b"GGUF\3\0\0\0" + bytes(24), "a GGUF model"),
        (b"PK\3\4" + bytes(60), "a zip archive"),
        (b"Xilinx ASCII PSA CDO\nversion 2.0\n", "text"),
        ("module { // \N{BULLET} \n}\n".encode() * 500, "text"),
        (bytes(64), "of no known kind (it begins with 00 00 00 00 00 00 00 00)"),
        (b"\xd2\xa6\xc4\x26" * 9, "of no known kind (it begins with d2 a6 c4 26 d2 a6"),
    ],
)
def test_inspect_names_a_file_of_no_known_kind(capsys, tmp_path, data, kind):
    """The file, what it looks like, and what is read."""
    path = tmp_path / "some.bin"
    path.write_bytes(data)
    code, out, err = run(capsys, "inspect", str(path))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"npu: error: [inspect] {path} is {kind}")
    assert "inspect reads configurations, command streams (TXN), xclbins, PDIs and " in err


def test_inspect_names_a_damaged_file(capsys, tmp_path, config):
    path = tmp_path / "cut"
    for data, words in (
        (b"\0\1\3\6" + bytes(97), "101 bytes given"), (config[:200], ": "),
    ):  # fmt: skip
        path.write_bytes(data)
        code, out, err = run(capsys, "inspect", str(path))
        assert (code, out) == (1, "") and err.startswith(f"npu: error: [inspect] {path}: ")
        assert words in err and not err.endswith(": \n")


def test_inspect_says_which_programs_are_estimated_over(capsys, tmp_path):
    path = tmp_path / "prefill.npucfg"
    text = prefill.configuration("npu1")
    path.write_bytes(re.sub(rb"program \d+ 16384", b"program 16400 16384", text, count=3))
    _, out, _ = run(capsys, "inspect", str(path))
    assert out.count(": program 16400 of 16384 (estimated over)\n") == 3
    assert out.count("(estimated over)") == 3
    for port in ("B0: shim(0,0) mm2s 1, packets of id 1", "B1: shim(1,0) mm2s 1"):
        assert f"  port {port}\n" in out
    assert "  port programs: shim(0,0) mm2s 1, packets of id 2\n" in out


def test_inspect_prints_the_programs_that_streams_load(capsys, tmp_path):
    path = tmp_path / "prefill.npucfg"
    path.write_bytes(prefill.configuration("npu2"))
    code, out, _ = run(capsys, "inspect", str(path))
    assert code == 0 and out.count(": overlays\n") == 32
    heads = re.findall(r"^overlay (\w+), loaded by streams, (\d+) bytes, counters at 0x", out, re.M)
    products = ["products", "small_products"]
    others = ["norm", "geglu", "rotation", "attention"]
    assert [name for name, _ in heads] == [*products, *others]
    assert all(0 < int(size) <= 16384 for _, size in heads)
    for kernel in ("multiply", "small_multiply"):
        assert out.count(f"call prefill_{kernel}") == 1  # the program of all cores
    _, out, _ = run(capsys, "inspect", "--json", str(path))
    document = json.loads(out)
    assert [one[0] for one in document["overlays"]] == [name for name, _ in heads]
    assert all(not program for _, _, program in document["cores"])


def test_compile_writes_through_links_and_into_devices(capsys, tmp_path, config):
    """A link keeps pointing to its file; a device such as /dev/stdout is not replaced."""
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(target)
    assert run(capsys, "compile", "gemm", "--device", "npu1", "-o", str(link))[0] == 0
    assert link.is_symlink() and target.read_bytes() == config
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert run(capsys, "compile", "gemm", "--device", "npu1", "-o", str(pipe))[0] == 0
    assert len(config) < 1 << 16  # what a pipe holds
    assert os.read(reader, 1 << 16) == config
    os.close(reader)
    assert pipe.is_fifo()


def test_inspect_reads_no_more_of_a_device_than_a_stream_can_have(capsys, monkeypatch):
    monkeypatch.setattr(inspect_command, "_MAX_BYTES", 1000)
    code, out, err = run(capsys, "inspect", "/dev/zero")
    assert (code, out) == (1, "") and "more than 1000 bytes" in err


def test_version(capsys):
    code, out, _ = run(capsys, "--version")
    assert (code, out) == (0, f"npu-xdna {npu.__version__}\n")


def test_compile_mlir(capsys):
    code, out, _ = run(
        capsys, "compile", "gemm", "--dtype", "int8", "--tile", "32x64x32", "--emit", "mlir"
    )
    assert code == 0
    assert "aie.device(npu2)" in out and "@matmul_i8_i32(memref<32x64xi8>" in out


def test_formats_of_blocks(capsys):
    """compile and the benches take --format; what it does not apply to refuses it."""
    code, out, _ = run(capsys, "compile", "dequant", "--format", "q8", "--emit", "mlir")
    assert code == 0 and "@dequant_q8(memref<5120xi8>" in out
    for what, us in (("gemv", "simulated_us"), ("dequant", "simulated_us")):
        found = {}
        for format in facts.BLOCK_COLUMNS:
            code, out, _ = run(
                capsys, "bench", what, "--projections", "gemma3-1b", "--format", format, "--json"
            )
            assert code == 0
            document = json.loads(out)
            assert document["format"] == format
            found[format] = document["results"][1][us]
        # o, 1152 x 1024: bytes per weight 0.625, 1.25, 2, of small blocks 0.5625 and 1.125, and as
        # much to write when expanded.
        assert found["q4nx"] < found["q8"] < found["bf16"]
        assert found["q4_0"] < found["q4nx"] and found["q8_0"] < found["q8"]
    code, _, err = run(capsys, "compile", "prefill", "--format", "q8")
    assert code == 1
    assert "--format does not apply to prefill, only to dequant, gemv and decoder" in err
    assert facts.BLOCK_COLUMNS.keys() == set(common.BLOCK_FORMATS)


@pytest.mark.parametrize("device", ["npu1", "npu2"])
@pytest.mark.parametrize("name", ["dequant", "gemv", "decoder"])
def test_compile_takes_the_format_of_blocks(name, device, capsys, tmp_path):
    """Of gemv and decoder it says their size."""
    path, made = tmp_path / "out", {}
    for format in (None, *facts.BLOCK_COLUMNS):
        words = ["compile", name, "--device", device, "-o", str(path)]
        words += [] if format is None else ["--format", format]
        assert run(capsys, *words)[0] == 0
        data = path.read_bytes()
        assert b"\nparam block_bytes %d\n" % facts.BYTES_OF_BLOCK[format or "q4nx"] in data
        assert run(capsys, *words, "--emit", "mlir")[0] == 0
        made[format] = data, path.read_text()
    small = made["q4_0"][1]
    kernel = {"dequant": "dequant_q4_0", "gemv": "gemv_small_block", "decoder": "gemv_small_kept"}
    assert f"@{kernel[name]}(memref<4608xi8>" in small and "5120xi8" not in small
    assert made[None] == made["q4nx"]
    if name == "dequant":
        assert len({data for data, _ in made.values()}) == 5
    else:
        assert made["q4nx"] == made["q8"] == made["bf16"] != made["q4_0"] == made["q8_0"]
        assert made["q8_0"][0] == operations()[name].configuration(device, small=True)


@pytest.mark.parametrize("format", facts.BLOCK_COLUMNS)
def test_bench_gemv_measures_every_format(format, capsys, monkeypatch):
    """Bytes per second of the format's blocks."""
    monkeypatch.setattr("npu.perf.gemv_simulation.PROJECTIONS", {"tiny": {"a": (64, 512, 3)}})
    words = ["bench", "gemv", "--projections", "tiny", "--host", "--repeats", "2", "--json"]
    code, out, _ = run(capsys, *words, "--format", format)
    assert code == 0
    (row,) = json.loads(out)["results"]
    blocks = 2 * -(-512 // facts.BLOCK_COLUMNS[format])
    fastest = row["host"]["npu_ms"]["min"] * 1e-3
    rate = row["host"]["gb_per_s"]["max"] * 1e9
    assert fastest * rate == pytest.approx(blocks * facts.BYTES_OF_BLOCK[format], rel=0.01)


def test_inspect_a_stream_file(capsys, tmp_path):
    builder = stream.Builder("npu1", 4)
    builder.sync(2, 0, "s2mm", 1)
    path = tmp_path / "insts.bin"
    path.write_bytes(builder.finish())
    code, out, _ = run(capsys, "inspect", str(path))
    assert code == 0 and "SYNC          shim(2,0).s2mm[1]" in out


@pytest.mark.parametrize(
    "words, expected",
    [
        (["inspect"], "name a file, --gemm"),
        (["inspect", "x", "--gemm", "5"], "name a file, --gemm"),
        (["inspect", "/nowhere/at/all"], "No such file"),
        (["inspect", "/"], "Is a directory"),
        (["inspect", "--gemm", "5", "--device", "emu:npu7"], "npu7"),
        (["compile", "gemm", "--out-dtype", "int32"], "bfloat16 -> int32"),
        (["compile", "gemm", "--tile", "65x64x64"], "multiple of"),
        (["compile", "gemm", "--tile", "256x256x256"], "bytes of L1"),
        (["compile", "gemm", "-o", "/nowhere/x"], "No such file"),
        (["compile", "gemm", "-o", ""], "Is a directory"),
        (["generate", "-m", "", "-p", "x"], "no model given"),
        (["bench", "gemm", "--device", "gpu"], "gpu"),
    ],
)
def test_errors_are_one_line(capsys, words, expected):
    code, out, err = run(capsys, *words)
    assert code == 1 and out == ""
    assert err.startswith("npu: error: ") and err.count("\n") == 1
    assert expected in err


@pytest.mark.parametrize("words", [["bench", "gemm", "--sizes", "0"], ["inspect", "--gemm", "1x2"]])
def test_wrong_sizes_are_usage_errors(capsys, words):
    code, _, err = run(capsys, *words)
    assert code == 2 and err.count("\n") == 1


def test_inspect_survives_damaged_files(capsys, tmp_path, config):
    rng = random.Random(1)
    path = tmp_path / "damaged"
    insts = stream.Builder("npu2", 8).finish()
    for _ in range(150):
        data = bytearray(rng.choice([config, insts]))
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(bytes(data[: rng.randrange(len(data) + 1)]))
        code, _, err = run(capsys, "inspect", str(path))
        assert code == 0 or (code == 1 and err.startswith("npu: error: ["))
