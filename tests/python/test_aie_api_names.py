"""Kernels as the NPU's compiler would accept them: every `aie::` name and member they use is in
the tables below, which say where AMD's public aie_api declares it, and nothing is there that they
do not use; no words of other compilers, no exceptions, no static constructors, no size of a block
float.

A new name belongs here after a look at aie_api: https://github.com/Xilinx/aie_api, revision
dc3ab77cd64c6ace5c073edd141d749b634031a4 (21 March 2025), include/aie_api. How types and signatures
were checked is in aie_kernels/README.md.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

KERNELS = Path(__file__).resolve().parents[2] / "aie_kernels"
SOURCES = sorted(p for p in KERNELS.iterdir() if p.suffix in (".cc", ".h"))

# name: (header of aie_api, form that the kernels use)
FREE = {
    "accum": (
        "accum.hpp",
        "accum<accfloat, N>(vector | block_vector), accum<acc32, N>",
    ),
    "add": ("aie.hpp", "add(vector, vector), add(accum, accum), add(accum, vector)"),
    "bit_and": ("aie.hpp", "bit_and(vector, vector)"),
    "bit_or": ("aie.hpp", "bit_or(vector, vector)"),
    "bit_xor": ("aie.hpp", "bit_xor(vector, vector)"),
    "block_vector_input_buffer_stream": ("iterator.hpp", "of bfp16ebs8; AIE2P only"),
    "block_vector_output_buffer_stream": ("iterator.hpp", "of bfp16ebs8; AIE2P only"),
    "broadcast": ("aie.hpp", "broadcast<T, N>(T)"),
    "concat": ("aie.hpp", "concat(vector...), concat(accum...)"),
    "downshift": ("aie.hpp", "downshift(vector, unsigned)"),
    "exp2": ("aie.hpp", "exp2<bfloat16>(vector<float, N>); AIE2P only"),
    "filter_even": ("aie.hpp", "filter_even(vector, unsigned)"),
    "filter_odd": ("aie.hpp", "filter_odd(vector, unsigned)"),
    "ge": ("aie.hpp", "ge(vector, vector)"),
    "interleave_zip": ("aie.hpp", "interleave_zip(vector, vector, unsigned)"),
    "invsqrt": ("aie.hpp", "invsqrt(float)"),
    "load_v": ("aie.hpp", "load_v<N>(const T*)"),
    "lt": ("aie.hpp", "lt(vector, vector)"),
    "mac": ("aie.hpp", "mac(accum, vector, vector)"),
    "max": ("aie.hpp", "max(vector, vector)"),
    "min": ("aie.hpp", "min(vector, vector)"),
    "mmul": ("aie.hpp", "mmul<M, K, N, TA, TB>(accum | vector, shift)"),
    "msc": ("aie.hpp", "msc(accum, vector, vector)"),
    "op_transpose": ("aie.hpp", "op_transpose(block_vector); AIE2P only"),
    "reduce_add": ("aie.hpp", "reduce_add(vector)"),
    "rounding_mode": ("aie_types.hpp", "rounding_mode::conv_even"),
    "saturation_mode": ("aie_types.hpp", "saturation_mode::none, saturate"),
    "select": ("aie.hpp", "select(vector, vector, mask)"),
    "set_rounding": ("aie.hpp", "set_rounding(rounding_mode)"),
    "set_saturation": ("aie.hpp", "set_saturation(saturation_mode)"),
    "store_v": ("aie.hpp", "store_v(T*, vector)"),
    "sub": ("aie.hpp", "sub(vector, vector), sub(accum, accum)"),
    "tanh": ("aie.hpp", "tanh<bfloat16>(vector<float, N>); AIE2P only"),
    "to_float": ("aie.hpp", "to_float<T>(vector, shift)"),
    "transpose": ("aie.hpp", "transpose(vector, rows, columns)"),
    "unpack": ("aie.hpp", "unpack(vector<uint4, N>), unpack(vector<uint8_t, N>)"),
    "upshift": ("aie.hpp", "upshift(vector, unsigned)"),
    "vector": ("vector.hpp", "vector<T, N>"),
    "zeros": ("aie.hpp", "zeros<T, N>()"),
}
MEMBERS = {
    "cast_to": ("vector.hpp", "vector::cast_to<T>()"),
    "extract": ("vector.hpp, accum.hpp", "extract<N>(index)"),
    "insert": ("vector.hpp", "vector::insert<N>(index, vector)"),
    "pop": ("iterator.hpp", "block_vector_input_buffer_stream::pop()"),
    "push": ("iterator.hpp", "block_vector_output_buffer_stream::push(block_vector)"),
    "seek": ("iterator.hpp", "seek(block vectors)"),
    "to_accum": ("aie.hpp", "mmul::to_accum()"),
    "to_vector": ("accum.hpp, aie.hpp", "accum::to_vector<T>(shift), mmul::to_vector<T>(shift)"),
}
# The host's own: `host` behind AIE_HOST macros, `detail` in the branch of kernel.h for GCC.
OURS = {"host", "detail"}
PRAGMAS = {
    "once",
    "unroll",  # UNROLL_STEPS, for clang
    "clang loop unroll(disable)",
    "clang loop pipeline(disable)",
    "GCC unroll 1",  # kernel.h, not for clang
}


@cache
def code(path: Path) -> str:
    """A source without comments and string literals that are not pragmas."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text("utf-8"), flags=re.S)
    return re.sub(r"#include[^\n]*", "", text)


def used(pattern: str) -> set[str]:
    return {name for path in SOURCES for name in re.findall(pattern, code(path))}


def test_the_sources_are_found() -> None:
    assert {"matmul.cc", "kernel.h", "gemv.cc"} <= {path.name for path in SOURCES}


def test_names_are_those_of_aie_api() -> None:
    assert used(r"\baie::(\w+)") - OURS == set(FREE)


def test_members_are_those_of_aie_api() -> None:
    """Member templates: every one is listed. Others: those of the list are used at all."""
    templates = used(r"\.template (\w+)<") | used(r"\.(\w+)<[^<>]*>\(\d*\)")
    assert templates <= set(MEMBERS)
    assert set(MEMBERS) <= templates | used(r"\.(\w+)\(")


def test_enumerators() -> None:
    assert used(r"rounding_mode::(\w+)") == {"conv_even"}
    assert used(r"saturation_mode::(\w+)") <= {"none", "saturate"}  # no `truncate`: deprecated


def test_pragmas_are_those_of_the_compilers() -> None:
    found = {p.strip() for p in used(r'_Pragma\("([^"]*)"\)') | used(r"#pragma ([^\n]*)")}
    assert found <= PRAGMAS


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_words(path: Path) -> None:
    """Nothing of another compiler, nothing that needs a runtime, no size of a block float, whose
    type is empty in aie_api: blocks are counted by the streams (memory_bytes())."""
    text = code(path)
    for word in (
        r"chess\w*", r"\btry\b", r"\bthrow\b", r"\bcatch\b", r"\bnew\b", r"\bdelete\b",
        r"dynamic_cast", r"typeid", r"thread_local", r"sizeof\s*\(?\s*bfp16\w*",
        r"\bstd::(?:vector|string|function|map|cout|printf)\b",
    ):  # fmt: skip
        if path.name != "kernel.h":  # whose host branch may differ
            assert not re.search(word, text), word


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_static_objects(path: Path) -> None:
    """What is static is constexpr or a function: a core runs no constructors before main."""
    for line in re.findall(r"^\s*static\b[^\n]*", code(path), flags=re.M):
        assert re.match(r"\s*static (constexpr|const auto&|inline|auto|void|aie::|\w+ \w+\()", line)
    for line in re.findall(
        r"^(?:inline )?(?:const )?[A-Z]\w+ k?\w+[;{=][^\n]*", code(path), flags=re.M
    ):
        assert line.startswith("using ") or "constexpr" in line, line


def test_kernels_are_c_functions() -> None:
    """NPU_KERNEL is extern "C" where the NPU's compiler reads it, and the only place of it."""
    text = code(KERNELS / "kernel.h")
    assert '#define NPU_KERNEL extern "C"' in text[text.index("#else") :]
    assert [path.name for path in SOURCES if 'extern "C"' in code(path)] == ["kernel.h"]
    assert len(used(r"NPU_KERNEL\s+void\s+(\w+)\(")) > 50


def test_products_of_block_floats_name_a_transposed_operand() -> None:
    """aie::mmul multiplies block floats only by op_transpose(b)."""
    text = code(KERNELS / "kernel.h")
    assert "#define NPU_TRANSPOSED(b) aie::op_transpose(b)" in text
    products = [
        line
        for name in ("prefill_attention_bfp16.h", "prefill_attention_blocks.h")
        for line in re.findall(r"(?:total|sum|s0|s1)\.mac\([^;]*;", code(KERNELS / name))
    ]
    products += re.findall(
        r"block\.multiply\([^;]*b0\.pop[^;]*;", code(KERNELS / "matmul_pipelined.cc")
    )
    products += re.findall(r"block\.multiply\([^;]*;", code(KERNELS / "prefill_product_multiply.h"))
    assert len(products) >= 8
    assert all("NPU_TRANSPOSED(" in line for line in products)
