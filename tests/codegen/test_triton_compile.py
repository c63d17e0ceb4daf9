"""Ahead-of-time compilation for named architectures, and PTX and machine code that know their origins."""

from __future__ import annotations

import re

import pytest
import torch

import staxlab
from staxlab.codegen.triton.source_files import source_path
from staxlab.errors import CodegenError
from staxlab.loops.ops import OPERATIONS
from staxlab.options import GPU_SPECS
from tests.codegen.triton_operands import ALSO_BOOL, ALSO_WHOLE, BIT_OPERATIONS, LOGIC
from tests.codegen.triton_support import example_1_1, example_6_1, kernels_of, program, read

pytest.importorskip("triton")

from staxlab.codegen.triton.compile import aot_compile, assemble
from staxlab.codegen.triton.listings import disassemble_cubin, honest_positions, ptx_lines, sass_lines


def kernel_1_1(rows=64, columns=128):
    (kernel,) = kernels_of(example_1_1(rows, columns))
    return kernel


def test_every_step_of_the_compiler_is_kept():
    steps = aot_compile(kernel_1_1(), 90)
    assert "tt.load" in steps["ttir"] and "#blocked" in steps["ttgir"] and "define" in steps["llir"]
    assert ".target sm_90" in steps["ptx"] and steps["cubin"][:4] == b"\x7fELF"
    assert steps["metadata"].name == "triton_per_fused_0"


def test_the_same_text_for_other_elements_is_compiled_again():
    """Both kernels convert what they read to float32, so that only the types of their pointers differ."""
    texts, found = set(), []
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.zeros(1024, dtype=dtype)
        (kernel,) = staxlab.explain(lambda x: x.float() + 1, x, target="sm_90").kernels
        texts.add(kernel.source)
        found.append(aot_compile(kernel)["ptx"])
    assert len(texts) == 1 and ["cvt.f32.f16" in ptx for ptx in found] == [True, False]


def test_example_1_1_loads_whole_vectors_and_propagates_nan():
    ptx = aot_compile(kernel_1_1(), 90)["ptx"]
    assert len(re.findall(r"ld\.global\S*\.v4\.b32", ptx)) == 2
    assert "max.NaN.f32" in ptx


def test_multiplications_and_additions_stay_separate():
    def compute(ops, i):
        return ops.add(ops.mul(ops.load("x", i[0]), ops.load("y", i[0])), ops.load("z", i[0]))

    tensors = {name: torch.empty(4096) for name in "xyz"}
    (kernel,) = kernels_of(program(tensors, (4096,), compute, torch.float32))
    listing = "\n".join(line.text for line in sass_lines(kernel, 90))
    assert "FMUL" in listing and "FADD" in listing and "FFMA" not in listing


def test_ptx_lines_carry_origins():
    kernel = kernel_1_1()
    lines = ptx_lines(kernel, 90)
    origins_of = lambda pattern: {line.origins for line in lines if re.search(pattern, line.text)}  # noqa: E731
    assert origins_of(r"ld\.global") == {frozenset({0}), frozenset({1})}
    assert origins_of(r"max\.NaN") == {frozenset({3})}
    assert origins_of("shfl") == {frozenset({99})}  # inlined from Triton's own sum
    assert origins_of(r"%tid\.x") == {kernel.origins}
    assert origins_of(r"st\.global") == {frozenset({99})}


def test_sass_lines_carry_origins_and_show_the_code_that_runs():
    kernel = kernel_1_1()
    lines = sass_lines(kernel, 90)
    origins_of = lambda pattern: {line.origins for line in lines if re.search(pattern, line.text)}  # noqa: E731
    assert origins_of("LDG") == {frozenset({0}), frozenset({1})}
    assert origins_of("FMNMX") == {frozenset({3})}
    assert origins_of("SHFL") == {frozenset({99})}
    assert all(line.origins for line in lines if line.text.startswith("    /*"))
    steps = aot_compile(kernel, 90)
    code = lambda cubin: re.findall(r"/\*[0-9a-f]{4}\*/.*;", disassemble_cubin(kernel, cubin))  # noqa: E731
    shown = code(assemble(kernel, honest_positions(steps["ptx"], kernel), 90))
    assert shown == code(steps["cubin"]) and len(shown) > 20


def test_lines_of_a_helper_function_belong_to_its_caller():
    x, y = torch.empty(256, dtype=torch.int32), torch.empty(256, dtype=torch.int32)

    def compute(ops, i):
        tag = lambda n: ops.tagged(frozenset({n}))  # noqa: E731
        return tag(7).floordiv(tag(5).load("x", i[0]), tag(6).load("y", i[0]))

    (kernel,) = kernels_of(program({"x": x, "y": y}, (256,), compute, torch.int32))
    body = [line for line in ptx_lines(kernel, 90) if re.match(r"\s+(div|rem|setp|sub|selp)\.", line.text)]
    assert body and {line.origins for line in body} <= {frozenset({7}), kernel.origins, frozenset({99})}
    assert any(line.origins == {7} for line in body)


def test_the_source_is_a_file_a_reader_can_open(cache_dir):
    from staxlab.codegen.triton.source_files import write_source

    kernel = kernel_1_1(48)
    path = source_path(kernel)
    assert cache_dir in path.parents
    assert write_source(kernel) == str(path) and path.read_text() == kernel.source


def test_deleting_the_cache_under_a_running_program_changes_nothing(cache_dir):
    import shutil

    from staxlab.codegen.triton import compile as compiling
    from staxlab.codegen.triton.source_files import jit_function

    kernel = kernel_1_1(56)
    jit_function(kernel)
    shutil.rmtree(cache_dir)
    compiling.clear()
    assert aot_compile(kernel, 90)["cubin"]


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (3, 0, 2), (0,)], ids=str)
def test_what_has_no_elements_compiles_and_is_asked_for_what_it_takes(shape):
    """Nobody launches it, but a reader may look at it: a loop without points has no variable."""
    (kernel,) = staxlab.explain(lambda x: x * 2, torch.empty(shape), target="sm_90").kernels
    assert ".target sm_90" in aot_compile(kernel)["ptx"] and kernel.launch["grid"] == (0, 1, 1)
    assert "registers" in str(kernel.occupancy()) and "SASS" in str(kernel.lowering_steps())
    with pytest.raises(CodegenError, match="empty grid"):
        kernel.coalescing()


def test_what_cannot_be_compiled_says_so():
    from dataclasses import replace

    kernel = kernel_1_1()
    with pytest.raises(CodegenError, match="not a Triton kernel"):
        aot_compile(replace(kernel, language="extern"), 90)
    with pytest.raises(CodegenError, match="compute capability"):
        aot_compile(replace(kernel, device=replace(kernel.device, compute_capability=0)))


def everything(dtype: torch.dtype):
    """One kernel that uses every operation of a dtype, and the names it uses."""
    if dtype == torch.bool:
        names = [n for n in OPERATIONS if n in LOGIC | ALSO_BOOL]
    elif dtype.is_floating_point:
        names = [n for n in OPERATIONS if n not in BIT_OPERATIONS | LOGIC]
    else:
        names = [n for n in OPERATIONS if n in ALSO_WHOLE | BIT_OPERATIONS]

    def compute(ops, i):
        x, y = ops.load("x", i[0]), ops.load("y", i[0])
        condition = ops.ne(x, y)
        total = x
        for name in names:
            arity = OPERATIONS[name].arity
            given = (condition, total, y) if name == "where" else (total, y)[:arity]
            value = ops.apply(name, *given)
            if ops.dtype_of(value) != ops.dtype_of(total):
                condition = value
            else:
                total = value
        return ops.where(condition, total, y)

    tensors = {"x": torch.empty(1000, dtype=dtype), "y": torch.empty(1000, dtype=dtype)}
    (kernel,) = kernels_of(program(tensors, (1000,), compute, dtype))
    return kernel, names


ARCHITECTURES = [
    pytest.param(90, id="sm_90"),
    pytest.param(80, id="sm_80", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.int64,
        torch.bool,
        *(pytest.param(d, marks=pytest.mark.slow) for d in (torch.int32, torch.int16, torch.int8, torch.uint8)),
    ],
)
def test_every_operation_compiles(dtype, capability):
    kernel, names = everything(dtype)
    for name in names:
        assert f"# {name}" in kernel.source
    assert aot_compile(kernel, capability)["cubin"]


def reduction(kind: str, dtype: torch.dtype, shape: tuple[int, int], dim: int):
    x = torch.empty(shape, dtype=dtype)
    accumulate = torch.bool if kind in ("any", "all") else torch.float32 if dtype.itemsize == 2 else dtype
    stored = torch.int64 if kind.startswith("arg") else torch.bool if kind in ("any", "all") else dtype

    def compute(ops, i, r):
        index = (i[0], r[0]) if dim else (r[0], i[0])
        return ops.to_dtype(read(ops, {"x": x}, "x", index), accumulate)

    p = program(
        {"x": x}, (shape[1 - dim],), compute, stored, kind=kind, reduction_ranges=(shape[dim],), accumulate=accumulate
    )
    (kernel,) = kernels_of(p)
    return kernel


FORMS = [
    ("sum", torch.float32, (300, 100), 1),
    ("amax", torch.bfloat16, (300, 5000), 1),
    ("argmin", torch.float32, (300, 4500), 1),
    ("all", torch.int32, (7, 3000), 1),
    ("prod", torch.float64, (2000, 33), 0),
]
MORE_FORMS = [
    (kind, dtype, shape, dim)
    for kind in ("sum", "prod", "amax", "amin", "any", "argmax")
    for dtype in (torch.float16, torch.int64)
    for shape, dim in (((10, 600), 1), ((10, 2500), 1), ((10, 5000), 1), ((100, 70), 0))
]


@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize(("kind", "dtype", "shape", "dim"), FORMS)
def test_every_form_of_reduction_compiles(kind, dtype, shape, dim, capability):
    assert aot_compile(reduction(kind, dtype, shape, dim), capability)["cubin"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "dtype", "shape", "dim"), MORE_FORMS)
def test_every_reduction_of_every_form_compiles(kind, dtype, shape, dim):
    assert aot_compile(reduction(kind, dtype, shape, dim), 90)["cubin"]


@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_rectangles_checks_and_wide_subscripts_compile(capability, monkeypatch):
    from staxlab.codegen.triton import tiling
    from staxlab.loops.expressions import Expr

    (rectangle,) = kernels_of(example_6_1(250, 500))
    ptx = aot_compile(rectangle, capability)["ptx"]
    assert ptx.count("ld.global") and "st.shared" in ptx  # the transposition goes through shared memory

    def gather(ops, i):
        return ops.load("table", ops.indirect(ops.load("k", i[0]), Expr.of(100)))

    tensors = {"table": torch.empty(100), "k": torch.empty(50, dtype=torch.int64)}
    (checked,) = kernels_of(program(tensors, (50,), gather, torch.float32))
    assert "__assertfail" in aot_compile(checked, capability)["ptx"]

    monkeypatch.setattr(tiling, "INT32_MAX", 1000)
    (wide,) = kernels_of(example_1_1(30, 5000))
    assert ".to(tl.int64)" in wide.source and aot_compile(wide, capability)["cubin"]


def test_both_architectures_are_known():
    assert {spec.compute_capability for spec in GPU_SPECS.values()} >= {80, 90}
