"""Doubles of aiecc, aie-opt, clang++ and xclbinutil: programs that understand the options of the
real ones (aiecc in its older and its newer form) and leave files of the same kinds, ELF files,
MLIR, instruction words and a small xclbin among them. Each set of options comes with one form of
MLIR's text; "reads" in faults.json gives it the other one.

They share no code with what is tested: the encoder of command streams and the writer of ELF files
here are their own. ``faults.json`` beside a program says what goes wrong; each run adds a line to
``runs.log``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Any

OLD_HELP = """USAGE: aiecc [options] <input>
  --aie-generate-npu-insts  - Generate NPU instruction stream
  --aie-generate-xclbin     - Generate xclbin
  --alloc-scheme=<string>   --device-name=<string>  --no-xbridge  --no-xchesscc
  --npu-insts-name=<string> --peano=<string> --tmpdir=<string> --xclbin-name=<string> -j=<uint>
"""
NEW_HELP = """USAGE: aiecc [options] <input mlir> [-- <host cc args>...]
  --alloc-scheme=<string>   --device-name=<string>  --npu-insts-name=<string>
  --get=<name>              - Request graph output(s) by edge name; named artifacts also have
                              --get-<name> shorthands (e.g. --get-xclbin)
  --output-dir=<string> --peano=<string> --tmpdir=<string> --xclbin-name=<string>
  --xclbinutil-path=<string> -j=<uint>
"""
_KNOWN = {
    "old": {"aie-generate-npu-insts", "aie-generate-xclbin", "no-xbridge", "no-xchesscc"},
    "new": {"get-xclbin", "get-npu-insts", "get-core-elfs", "get-input-with-addresses",
            "output-dir", "xclbinutil-path"},
}  # fmt: skip
_BOTH = {"alloc-scheme", "device-name", "npu-insts-name", "peano", "tmpdir", "xclbin-name"}
# Answers questions by itself while nothing goes wrong: most runs only ask, and start in a third of
# the time.
_PROGRAM = """import os, sys
answer = {answers!r}.get(" ".join(sys.argv[1:]))
if answer and not os.path.exists({folder!r} + "/faults.json"):
    print(answer)
    sys.exit()
sys.path.insert(0, {beside!r})
import doubles
sys.exit(doubles.main({name!r}, {folder!r}, {options!r}))
"""
PROGRAMS = ("aiecc", "clang++", "xclbinutil")
_PLACES = {"aiecc": "mlir_aie", "aie-opt": "mlir_aie", "clang++": "peano", "xclbinutil": "xrt"}
# Both forms of what mlir-aie has written in two ways; the rest of a line is not looked at.
_FORMS = {
    "new": (
        r"aie\.use_lock\(%\w+, \w+, %\w+\)",
        r"aie\.dma_bd\(%\w+ : memref<[\w]+>( offset = \d+)?( len = \d+)?"
        r"( sizes = \[[\d, ]+\] strides = \[[\d, ]+\])?\)",
        r"aiex\.npu\.(write32|maskwrite32)\((%\w+, )+%\w+\) (\{[^}]*\} )?: (i32, )+i32$",
    ),
    "old": (
        r"aie\.use_lock\(%\w+, \w+, \d+\)",
        r"aie\.dma_bd\(%\w+ : memref<[\w]+>(, \d+, \d+(, \[[<\w =,>]+\])?)?\)",
        r"aiex\.npu\.(write32|maskwrite32) \{[^}]*address = \d+ : ui32[^}]*\}$",
    ),
}


def install(folder: Path, options: str = "new") -> Path:
    """An installation of mlir-aie, Peano and XRT in a folder, which is returned."""
    for name, place in _PLACES.items():
        path = folder / place / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        program = _PROGRAM.format(
            name=name, options=options, folder=str(folder), answers=_answers(name, options, {}),
            beside=str(Path(__file__).parent),
        )  # fmt: skip
        path.write_text(f"#!{sys.executable} -S\n{program}")
        path.chmod(0o755)
    header = folder / "mlir_aie" / "include" / "aie_api" / "aie.hpp"
    header.parent.mkdir(parents=True)
    header.touch()
    return folder


def variables(folder: Path) -> dict[str, str]:
    """What names the installation."""
    return {
        "MLIR_AIE_INSTALL_DIR": str(folder / "mlir_aie"),
        "PEANO_INSTALL_DIR": str(folder / "peano"),
        "AIE_XCLBINUTIL": str(folder / "xrt" / "bin" / "xclbinutil"),
    }


def set_faults(folder: Path, **faults: Any) -> None:
    """By program ("clang" for clang++): exit, sleep, and what each function below looks for."""
    (folder / "faults.json").write_text(json.dumps(faults))


def runs(folder: Path) -> list[str]:
    """The programs that ran, but for questions about their versions."""
    path = folder / "runs.log"
    return path.read_text().split() if path.exists() else []


def _answers(name: str, options: str, faults: dict[str, Any]) -> dict[str, str]:
    """To questions that every program understands."""
    help = NEW_HELP if options == "new" else OLD_HELP
    return {
        "--version": f"{name} version {faults.get('version', '1.2.3')}",
        "--help": faults.get("help", help),
    }


def main(name: str, folder: str, options: str) -> int:
    words, home = sys.argv[1:], Path(folder)
    path = home / "faults.json"
    faults = json.loads(path.read_text()) if path.exists() else {}
    mine: dict[str, Any] = faults.get(name.replace("++", ""), {})
    answer = _answers(name, options, mine).get(" ".join(words))
    if answer is not None:
        print(answer)
        return 0
    reads = faults.get("reads", options)
    if name == "aie-opt":
        return aie_opt(words, reads)
    with (home / "runs.log").open("a") as log:
        log.write(name + "\n")
    if mine.get("sleep"):
        (home / "sleeping").write_text(str(os.getpid()))
        time.sleep(mine["sleep"])
    if mine.get("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if mine.get("exit"):
        print("some words\nerror: no such thing\nmore words")
        return int(mine["exit"])
    if mine.get("nothing"):
        return 0
    if name == "aiecc" and (line := unread(Path(words[-1]).read_text(), reads)):
        print(f"error: expected something else in {line}")
        return 1
    return {"aiecc": aiecc, "clang++": clang, "xclbinutil": xclbinutil}[name](words, mine, options)


# aie-opt and aiecc


def aie_opt(words: list[str], reads: str) -> int:
    line = unread(Path(words[0]).read_text(), reads)
    print(f"{words[0]}:1:1: error: expected something else in {line}" if line else "module {}")
    return int(bool(line))


def unread(text: str, reads: str) -> str:
    """The first line that is of the other form, or of none."""
    names = ("aie.use_lock(", "aie.dma_bd(", "aiex.npu.write32", "aiex.npu.maskwrite32")
    for line in map(str.strip, text.splitlines()):
        if line.startswith(names) and not any(
            re.match(form, line) for form in _FORMS.get(reads, ())
        ):
            return line
    return ""


def aiecc(words: list[str], faults: dict[str, Any], options: str) -> int:
    given, inputs = {}, []
    for word in words:
        if not word.startswith("-"):
            inputs.append(Path(word))
            continue
        key, _, value = word.lstrip("-").partition("=")
        if not re.fullmatch(r"j\d+", key) and key not in _KNOWN[options] | _BOTH:
            print(f"aiecc: Unknown command line argument '{word}'")
            return 1
        given[key] = value
    text = inputs[0].read_text()
    body = devices(text)[given["device-name"]]
    work = Path(given["tmpdir"])
    work.mkdir(parents=True)
    output = Path(given.get("output-dir", work))
    assert Path(given["peano"], "bin", "clang++").is_file()
    assert given["alloc-scheme"] == "basic-sequential"
    (output / "input_with_addresses.mlir").write_text(_changed(text, faults))
    _cores(body, given["device-name"], inputs[0].parent, output, options, faults)
    found = sequences(body)
    if "get-npu-insts" in given or "aie-generate-npu-insts" in given:
        for sequence, data in found:
            key = given["npu-insts-name"]
            key = key.replace(
                "{0}", f"{given['device-name']}" + (f"_{sequence}" if options == "new" else "")
            )
            if not faults.get("no_words"):
                Path(key.replace("{1}", sequence)).write_bytes(_damaged(data, faults))
    if ("get-xclbin" in given or "aie-generate-xclbin" in given) and not faults.get("no_xclbin"):
        arity = (
            int(re.search(r"runtime_sequence @\w+\((.*?)\)", body)[1].count("%")) if found else 0
        )
        buffers = faults.get("buffers", max(5, arity) if options == "new" else 5)
        program = given.get("xclbinutil-path") or os.environ["AIE_XCLBINUTIL"]
        command = [program, "--kernels", str(faults.get("kernels", 1)), "--buffers", str(buffers)]
        import subprocess  # only here: it takes a fifth of the time that a program starts in

        return subprocess.run([*command, "--output", given["xclbin-name"]], check=False).returncode
    return 0


def devices(text: str) -> dict[str, str]:
    """The text of each device."""
    found = {}
    for part in re.split(r"(?m)^  (?=aie\.device)", text)[1:]:
        name = re.match(r"aie\.device\(\w+\)\s*@?(\w*)", part)[1]
        found[name or "main"] = part
    return found


def _changed(text: str, faults: dict[str, Any]) -> str:
    """The module "after allocation": the same, but for what is to go wrong."""
    if faults.get("move"):  # the first buffer
        text = re.sub(r"address = \d+", f"address = {faults['move']}", text, count=1)
    if faults.get("move_last"):
        head, _, tail = text.rpartition("address = ")
        text = f"{head}address = 1{tail}"
    if faults.get("unplaced"):
        text = re.sub(r"address = \d+ : i32, ", "", text, count=1)
    if faults.get("port"):  # another channel for the first port
        text = re.sub(r"(shim_alloc\(%\w+, \w+), \d\)", rf"\1, {faults['port']})", text, count=1)
    if faults.get("rename_device"):
        text = re.sub(r"aie\.device\((\w+)\)( @\w+)?", r"aie.device(\1) @other", text)
    return text


def _cores(
    body: str, device: str, folder: Path, output: Path, options: str, faults: dict[str, Any]
) -> None:
    places = re.findall(r"aie\.core\(%tile_(\d+)_(\d+)\)", body)
    for number, (column, row) in enumerate(places):
        link = re.search(r'link_with = "([^"]+)"', body)
        assert link and (folder / link[1]).is_file()
        size = faults.get("text", 600)
        code = bytes([faults.get("byte", 7) if not number else 7]) * size
        sections = [(".text", 1, 6, 0, code)]
        if faults.get("data"):
            sections.append((".data", 1, 3, 0x70400, b"\1" * 8))
        name = f"{device}_core_{column}_{row}.elf"
        if faults.get("missing_core") and not number:
            continue
        place = output / (f"elfs_{name}" if options == "new" else name)
        place.write_bytes(elf(2, sections, [])[: faults.get("cut")])
        (output / f"objects_{name}").with_suffix(".o").write_bytes(elf(1, sections, []))


# Command streams: docs/reference/command_stream.md


def sequences(body: str) -> list[tuple[str, bytes]]:
    """The runtime sequences of a device as command streams, of either form of the dialect."""
    blocks = {
        name: [int(word) & 0xFFFFFFFF for word in words.split(",")]
        for name, words in re.findall(r"@(\w+) : memref<\d+xi32> = dense<\[(.*?)\]>", body)
    }
    generation, columns = (3, 4) if "device(npu1)" in body else (4, 8)
    found = []
    for name, inside in re.findall(
        r"aie\.runtime_sequence @(\w+)\(.*?\) \{(.*?)\n    \}", body, re.S
    ):
        inside = inside.strip("\n")
        numbers: dict[str, int] = {}
        held: dict[str, list[int]] = {}
        operations = []
        for line in map(str.strip, inside.splitlines()):
            if constant := re.fullmatch(r"(%\w+) = arith\.constant (-?\d+) : i32", line):
                assert -(1 << 31) <= int(constant[2]) < 1 << 31
                numbers[constant[1]] = int(constant[2]) & 0xFFFFFFFF
            elif block := re.fullmatch(r"(%\w+) = memref\.get_global @(\w+) : .*", line):
                held[block[1]] = blocks[block[2]]
            else:
                operations.append(_operation(line, numbers, held))
        data = b"".join(operations)
        head = struct.pack(
            "<BBBBHHII", 0, 1, generation, 6, 0x100 + columns, 0, len(operations), 16 + len(data)
        )
        found.append((name, head + data))
    return found


def _operation(line: str, numbers: dict[str, int], held: dict[str, list[int]]) -> bytes:
    name, rest = re.fullmatch(r"aiex\.npu\.(\w+) ?(.*)", line).groups()
    operands = [numbers[n] for n in re.findall(r"%\w+", rest) if n in numbers]
    fields = {k: int(v) & 0xFFFFFFFF for k, v in re.findall(r"(\w+) = (-?\d+) : u?i32", rest)}

    def number(key: str, at: int) -> int:
        return operands[at] if operands else fields[key]

    if name == "write32":
        return struct.pack("<6I", 0, 0, number("address", 0), 0, number("value", 1), 24)
    if name == "maskwrite32":
        values = number("address", 0), 0, number("value", 1), number("mask", 2)
        return struct.pack("<7I", 3, 0, *values, 28)
    if name == "sync":
        keys = ("column", "row", "direction", "channel", "column_num", "row_num")
        column, row, way, channel, columns, rows = (number(k, n) for n, k in enumerate(keys))
        return struct.pack(
            "<4I",
            0x80,
            16,
            way | row << 8 | column << 16,
            rows << 8 | columns << 16 | channel << 24,
        )
    if name == "address_patch":
        offset = operands[0] if operands else fields["arg_plus"]
        offset += 0x80000000 if fields["arg_idx"] >= 5 else 0
        return struct.pack(
            "<12I", 0x81, 48, *[0] * 4, fields["addr"], 0, fields["arg_idx"], 0, offset, 0
        )
    assert name == "blockwrite", line
    data = held[re.search(r"%\w+", rest)[0]]
    place = fields.get("column", 0), fields.get("row", 0)
    address = fields["address"] + (place[0] << 25) + (place[1] << 20)
    head = struct.pack(
        "<BBBBIII", 1, 0, 0, 0, place[0] | place[1] << 8, address, 16 + 4 * len(data)
    )
    return head + struct.pack(f"<{len(data)}I", *data)


def _damaged(data: bytes, faults: dict[str, Any]) -> bytes:
    if (word := faults.get("word")) is not None:
        at = 4 * word
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    return data[: len(data) - faults.get("short", 0)]


# clang++ of Peano


def clang(words: list[str], faults: dict[str, Any], options: str) -> int:
    if words == ["--print-targets"]:
        print("  Registered Targets:\n    aie2  - AI Engine\n    aie2p - AI Engine")
        return 0
    assert any(re.fullmatch(r"--target=aie2p?-none-unknown-elf", word) for word in words)
    assert {"-c", "-O2", "-std=c++20", "-D__AIE_API_AIE_ADF_HPP__"} <= set(words)
    folders = [Path(word[2:]) for word in words if word.startswith("-I")]
    assert any((folder / "aie_api" / "aie.hpp").is_file() for folder in folders)
    source = next(Path(word) for word in words if word.endswith(".cc"))
    kernels: list[str] = []
    for name in re.findall(r'#include "(.*?)"', source.read_text()):
        path = next(folder / name for folder in folders if (folder / name).is_file())
        kernels += re.findall(r"^NPU_KERNEL\s+void\s+(\w+)", path.read_text(), re.M)
    stack = faults.get("stack", 200) if "-fstack-size-section" in words else None
    data = kernel_object(dict.fromkeys(kernels[faults.get("forget", 0) :], ("helper",)), stack)
    Path(words[words.index("-o") + 1]).write_bytes(data[: faults.get("cut")])
    return 0


def kernel_object(calls: dict[str, tuple[str, ...]], stack: int | None, helper: int = 40) -> bytes:
    """An object with functions in sections of their own that call others by relocations; with
    ``stack`` the stack size of each, and of "helper", which is local."""
    names = [*calls, "helper"]
    sections = [(f".text.{name}", 1, 6, 0, bytes(32)) for name in names]
    symbols = [(name, 0, 32, 2, n + 1) for n, name in enumerate(names)]
    outside = sorted({one for called in calls.values() for one in called} - set(names))
    symbols += [(name, 0, 0, 0, 0) for name in outside]
    number = {symbol[0]: n + 1 for n, symbol in enumerate(symbols)}
    for n, name in enumerate(calls):
        if calls[name]:
            table = b"".join(
                struct.pack("<IIi", 4, number[called] << 8 | 1, 0) for called in calls[name]
            )
            sections.append((f".rela.text.{name}", 4, 0, n + 1, table))
    if stack is not None:
        entries, table = b"", b""
        for name in names:
            table += struct.pack("<IIi", len(entries), number[name] << 8 | 1, 0)
            entries += bytes(4) + uleb(helper if name == "helper" else stack)
        sections.append((".stack_sizes", 1, 0, 0, entries))
        sections.append((".rela.stack_sizes", 4, 0, len(sections), table))
    return elf(1, sections, symbols)


def uleb(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def elf(
    kind: int,
    sections: list[tuple[str, int, int, int, bytes]],
    symbols: list[tuple[str, int, int, int, int]],
) -> bytes:
    """An ELF32 file. sections: name, type, flags, address (of relocations: the section they
    change), data. symbols: name, value, size, type, section."""
    names, table = b"\0", bytes(16)
    for name, value, size, of, section in symbols:
        table += struct.pack("<IIIBBH", len(names), value, size, of, 0, section)
        names += name.encode() + b"\0"
    count = len(sections)
    every = [
        ("", 0, 0, 0, b""), *sections,
        (".symtab", 2, 0, 0, table), (".strtab", 3, 0, 0, names), (".shstrtab", 3, 0, 0, b""),
    ]  # fmt: skip
    text = b"".join(section[0].encode() + b"\0" for section in every)
    every[-1] = (".shstrtab", 3, 0, 0, text)
    body, heads, at, name_at = b"", b"", 52, 0
    for name, of, flags, address, data in every:
        link, info = (count + 1, address) if of == 4 else (count + 2, 1) if of == 2 else (0, 0)
        place = 0 if of in (2, 4) else address
        size = struct.calcsize("<IIi") if of == 4 else 16 if of == 2 else 0
        heads += struct.pack("<10I", name_at, of, flags, place, at, len(data), link, info, 4, size)
        body, at, name_at = body + data, at + len(data), name_at + len(name) + 1
    ident = b"\x7fELF\1\1\1" + bytes(9)
    head = struct.pack(
        "<16sHHIIIIIHHHHHH",
        ident,
        kind,
        264,
        1,
        0,
        0,
        at,
        0,
        52,
        0,
        0,
        40,
        len(every),
        len(every) - 1,
    )
    return head + body + heads


# xclbinutil


def xclbinutil(words: list[str], faults: dict[str, Any], options: str) -> int:
    given = dict(zip(words[::2], words[1::2], strict=True))
    data = xclbin(
        {f"MLIR_AIE{n or ''}": 3 + int(given["--buffers"]) for n in range(int(given["--kernels"]))}
    )
    Path(given["--output"]).write_bytes(data[: faults.get("cut")])
    return 0


def xclbin(kernels: dict[str, int]) -> bytes:
    """A container with MEM_TOPOLOGY, and EMBEDDED_METADATA with the arguments of these kernels."""
    inside = "".join(
        f'<kernel name="{name}" language="c" type="dpu"><extended-data functional="0"/>'
        + "".join(f'<arg name="a{n}" id="{n}"/>' for n in range(count))
        + f'<instance name="{name}IE"/></kernel>'
        for name, count in kernels.items()
    )
    text = (
        '<?xml version="1.0" encoding="utf-8"?><project><platform><device><core>'
        f"{inside}</core></device></platform></project>"
    ).encode()
    parts = [(6, b"\2\0\0\0" + bytes(80)), (2, text)]
    at, heads, body = 456 + 40 * len(parts), b"", b""
    for kind, data in parts:
        heads += struct.pack("<I16s4xQQ", kind, b"", at + len(body), len(data))
        body += data
    front = b"xclbin2\0" + struct.pack("<i", -1) + b"\xff" * 28 + bytes(256 + 8)
    header = struct.pack("<Q", at + len(body)) + bytes(136) + struct.pack("<I4x", len(parts))
    return front + header + heads + body
