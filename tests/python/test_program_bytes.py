"""Estimates of the kernels' program memory: the counting, its weights, and the committed table."""

import functools
import importlib.util
import itertools
import sys
from pathlib import Path

import pytest

from npu._npu import kernels

ROOT = Path(__file__).resolve().parents[2]
_SPEC = importlib.util.spec_from_file_location(
    "program_bytes", ROOT / "aie_kernels" / "counting" / "program_bytes.py"
)
program_bytes = importlib.util.module_from_spec(_SPEC)
sys.modules["program_bytes"] = program_bytes
_SPEC.loader.exec_module(program_bytes)

KEYS = tuple(itertools.product(program_bytes.FORMS, program_bytes.ARCH))
# What a kernel may change by, and a small one in bytes; more with other versions of GCC than the
# one that wrote the table.
TOLERANCE, OTHER_GCC, SMALLEST = 0.1, 0.5, 64
_DIVISION = "integer division"


def rows(text):
    """{(form, generation, kind, name): (bytes, what is needed)} of a table."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            form, generation, kind, size, rest = line.split(" ", 4)
            name, *needed = rest.split("; ")
            found[form, generation, kind, name] = int(size), needed
    return found


def sums(table):
    """{(form, generation, kernel): bytes with all that it needs}."""
    return {
        (form, generation, name): size + sum(table[form, generation, "shared", n][0] for n in more)
        for (form, generation, kind, name), (size, more) in table.items()
        if kind == "kernel"
    }


@functools.cache
def committed():
    return sums(rows(program_bytes.TABLE.read_text()))


@pytest.mark.parametrize(("form", "generation"), KEYS[:3])  # compiling takes its time
def test_the_table_is_what_the_sources_give(form, generation):
    lines = program_bytes.lines(form, generation)
    now = sums(rows("\n".join(lines)))
    before = {key: size for key, size in committed().items() if key[:2] == (form, generation)}
    assert before.keys() == now.keys()
    written = program_bytes.TABLE.read_text().splitlines()[0]
    tolerance = TOLERANCE if written.endswith(program_bytes.gcc()) else OTHER_GCC
    off = {
        key: (before[key], size)
        for key, size in now.items()
        if abs(size - before[key]) > max(SMALLEST, tolerance * size)
    }
    assert not off, "kernels have changed: run aie_kernels/counting/program_bytes.py"


@pytest.mark.parametrize("generation", program_bytes.ARCH)
def test_the_stacks_of_the_table_are_what_the_sources_give(generation):
    text = program_bytes.TABLE.read_text()
    now = program_bytes.stacks(generation, program_bytes.sources())
    before = {key[3]: v[0] for key, v in rows(text).items() if key[1:3] == (generation, "stack")}
    assert before.keys() == now.keys()
    if not text.splitlines()[0].endswith(program_bytes.gcc()):
        pytest.skip("another version of GCC wrote the table: it spills otherwise")
    off = {k: (before[k], n) for k, n in now.items() if abs(n - before[k]) > max(64, TOLERANCE * n)}
    assert not off, "kernels have changed: run aie_kernels/counting/program_bytes.py"


@pytest.mark.parametrize(("form", "generation"), KEYS)
def test_every_declared_kernel_has_an_estimate(form, generation):
    names = {name for f, g, name in committed() if (f, g) == (form, generation)}
    assert set(kernels.list(generation)) == names


def test_the_small_form_is_smaller():
    for (form, generation, name), size in committed().items():
        if form == "fast":  # GCC divides where it multiplies in the other form
            least = committed()["small", generation, name] - program_bytes.LIBRARY[_DIVISION]
            assert least < size, name


def estimate(folder, body, *, arch="npu2", form="fast"):
    """Of a kernel with this body."""
    source = folder / "synthetic.cc"
    source.write_text(
        '#include <aie_api/aie.hpp>\n#include "kernel.h"\n'
        "using Sums = aie::accum<accfloat, 32>;\n"
        f"NPU_KERNEL void synthetic(const float* a, float* c, int32_t n) {{ {body} }}\n"
    )
    kernels_found, shared = program_bytes.estimates(arch, form, [source])
    size, needed = kernels_found["synthetic"]
    return size + sum(shared[n] for n in needed)


def straight(products):
    steps = "".join(
        f"x = aie::mac(Sums(y), aie::load_v<32>(a + {32 * i}), y).template to_vector<float>();"
        "y = x;"
        for i in range(products)
    )
    return f"auto y = aie::load_v<32>(a), x = y; {steps} aie::store_v(c, x);"


def test_the_estimate_grows_with_the_code(tmp_path):
    sizes = [estimate(tmp_path, straight(products)) for products in (1, 2, 4, 8)]
    slots = 24  # of a product of fp32 lanes, eight bytes each
    for before, after, more in zip(sizes, sizes[1:], (1, 2, 4), strict=False):
        assert after - before >= more * slots * program_bytes.OPERATION
    assert estimate(tmp_path, straight(8), form="small") < sizes[-1] / 1.5


def test_aie2_takes_two_products_where_aie2p_takes_one(tmp_path):
    narrow, wide = (estimate(tmp_path, straight(8), arch=arch) for arch in ("npu1", "npu2"))
    assert narrow - wide >= 8 * 24 * program_bytes.OPERATION


def test_a_loop_counts_prologue_and_epilogue(tmp_path):
    body = "aie::store_v(c + i, aie::add(Sums(aie::load_v<32>(a + i)), "
    body += "Sums(aie::load_v<32>(c + i))).template to_vector<float>());"
    looped = estimate(tmp_path, f"for (int32_t i = 0; i < n; i += 32) {{ {body} }}")
    once = estimate(tmp_path, f"const int32_t i = n; {body}")
    assert looped > 2 * once
    # A branch in it: not pipelined, and counted as it stands.
    branch = "if (a[i] == 3) continue;"
    assert estimate(tmp_path, f"for (int32_t i = 0; i < n; i += 32) {{ {branch} {body} }}") > once


def test_routines_of_the_library_are_counted(tmp_path):
    kernel, shared = program_bytes.estimates("npu1", "fast", [])
    assert (kernel, shared) == ({}, {})
    assert estimate(tmp_path, "c[0] = a[0] / a[1];") >= program_bytes.LIBRARY["fp32 division"]
    assert estimate(tmp_path, "c[7 % n] = 0;") >= program_bytes.LIBRARY[_DIVISION]
    assert estimate(tmp_path, "c[0] = 0;") < 64


def function_of(assembly, dump="", name="f"):
    text = f".type\t{name}, @function\n{name}:\n{assembly}\n.size\t{name}, .-{name}\n"
    return program_bytes.read(text, dump)[name]


def test_a_frame_counts_registers_at_their_size():
    assert function_of("ret").frame() == 32  # the return address, in units of 32
    saved = "pushq\t%rbx\n" * 6 + "movl\t%eax, 8(%rsp)\nmovl\t8(%rsp), %eax\n"
    assert function_of(saved).frame() == 32  # six, the return address, one scalar
    spilled = saved + "vmovss\t%xmm1, 12(%rsp)\nvmovss\t12(%rsp), %xmm2\n"
    assert function_of(spilled).frame() == 32 + 64
    dump = ";; Function f (f, funcdef_no=1)\nPartition 0: size 128 align 64\n"
    assert function_of(spilled, dump).frame() == 32 + 64 + 128
    # An array of registers that is indexed: 8 of them, in 32 bytes of x86.
    dump = ";; Function f (f, funcdef_no=1)\nPartition 0: size 32 align 16\n"
    assert function_of("vmovss\t16(%rsp,%rax,4), %xmm2\n", dump).frame() == 32 + 64 + 512
    assert function_of("movl\t16(%rsp,%rax,4), %ecx\n", dump).frame() == 64


def test_a_stack_is_the_deepest_chain_of_calls():
    functions = {
        name: function_of("vmovss\t%xmm1, 4(%rsp)\n" * depth + "call\t" + callee, name=name)
        for name, depth, callee in (("a", 1, "b"), ("b", 0, "c"), ("c", 1, "memcpy"))
    }
    assert program_bytes.stack(functions["c"], functions) == 96 + program_bytes.LIBRARY_STACK
    assert program_bytes.stack(functions["a"], functions) == 96 + 32 + 96 + 64


def test_arrays_of_a_kernel_are_in_its_stack(tmp_path):
    body = "alignas(64) float t[96]; for (int32_t i = 0; i < n; ++i) t[i % 96] = a[i];"
    body += "aie::store_v(c, aie::load_v<32>(t + n));"
    source = tmp_path / "synthetic.cc"
    source.write_text(
        '#include <aie_api/aie.hpp>\n#include "kernel.h"\n'
        f"NPU_KERNEL void synthetic(const float* a, float* c, int32_t n) {{ {body} }}\n"
    )
    (found,) = program_bytes.stacks("npu2", [source]).values()
    assert 4 * 96 < found < 4 * 96 + 160


def test_the_table_has_the_stack_of_every_kernel():
    table = rows(program_bytes.TABLE.read_text())
    for generation in program_bytes.ARCH:
        stated = {
            n for form, g, kind, n in table if (form, g, kind) == ("fast", generation, "stack")
        }
        assert stated == set(kernels.list(generation))


# Listings of llvm-aie's tests: operations of the source's loop, vector operations outside it,
# scalars, loads of scalars, jumps; and the listing's bytes, each bundle by the number of its
# operations (docs/reference/program_memory.md).
LISTINGS = {
    "TanhTemplated, AIE2": (30, 10, 8, 1, 1, 622),
    "gelu_fn, AIE2P": (14, 4, 10, 1, 1, 720),
    "gemm_bfp16, AIE2P": (28, 32, 45, 20, 2, 988),
}


@pytest.mark.parametrize("name", LISTINGS)
def test_published_listings_are_not_underestimated(name):
    loop, marks, scalars, loads, jumps, listed = LISTINGS[name]
    function = program_bytes.Function(name, True)
    function.labels[".L1"] = 0
    function.items = [("mark", program_bytes.OPERATION, 4)] * loop + [("jump", 14, 0)]
    function.jumps = [(loop, ".L1")]
    function.items += [("mark", program_bytes.OPERATION, 4)] * marks
    function.items += [("scalar", program_bytes.SCALAR, 1)] * scalars
    function.items += [("scalar", program_bytes.LOAD, 7)] * loads
    function.items += [("call", program_bytes.JUMP, 0)] * jumps
    assert listed <= function.bytes() <= 2.5 * listed
