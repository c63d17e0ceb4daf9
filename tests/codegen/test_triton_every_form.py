"""Every form of kernel once: values in Triton's interpreter against eager execution, counted facts of compiled code.

The forms are data, ``benchmarks.kernel_forms``; the check for races and wrong accesses on a device reads the same
table. Together they are the chapter's Listings 1.2, 9.1 to 9.5 in content.
"""

from __future__ import annotations

import re
import typing

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab
from benchmarks.kernel_forms import FORMS, Facts, KernelForm, spaced, spoiled
from staxlab.codegen.kernel import Kernel
from staxlab.runtime.artifact import load

pytest.importorskip("triton")

from staxlab.codegen.triton.compile import aot_compile
from staxlab.codegen.triton.interpreter import interpret
from staxlab.codegen.triton.resources import resource_usage

BY_NAME = {form.name: form for form in FORMS}
forms = pytest.mark.parametrize("name", BY_NAME)


def explained(form: KernelForm, inputs: list[torch.Tensor]) -> staxlab.Compilation:
    return staxlab.explain(form.function, *inputs, target="sm_90", strict_native=True)


def agrees(form: KernelForm, inputs: list[torch.Tensor]) -> None:
    compilation = explained(form, inputs)
    launchers = {k.name: lambda *tensors, kernel=k: interpret(kernel, tensors) for k in compilation.kernels}
    wanted = form.function(*inputs)
    found = load(compilation.wrapper, launchers).call(list(inputs))
    for one, other in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert one.dtype == other.dtype and one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=form.tolerance, atol=form.tolerance, equal_nan=True)


# -- values ------------------------------------------------------------------------------------------------------------


@forms
def test_values(name):
    form = BY_NAME[name]
    agrees(form, form.inputs(form.values_at or form.sizes))


@forms
def test_values_of_inputs_with_gaps(name):
    form = BY_NAME[name]
    if not form.strided:
        pytest.skip("its inputs lie apart already")
    inputs = [spaced(tensor) for tensor in form.inputs(form.values_at or form.sizes)]
    assert all(t.stride(-1) == 2 for t in inputs if t.ndim)
    agrees(form, inputs)


@forms
def test_nan_and_infinities(name):
    form = BY_NAME[name]
    if not form.special:
        pytest.skip("eager execution does not say what comes of them, or does not add them up in the same order")
    agrees(form, [spoiled(tensor) for tensor in form.inputs(form.values_at or form.sizes)])


@pytest.mark.parametrize(("name", "sizes"), [(form.name, sizes) for form in FORMS for sizes in form.others])
def test_values_at_other_sizes(name, sizes):
    """Empty ones, tensors without dimensions, blocks that hang over."""
    agrees(BY_NAME[name], BY_NAME[name].inputs(sizes))


def test_the_table_has_empty_tensors_and_ones_without_dimensions():
    sizes = [sizes for form in FORMS for sizes in form.others]
    assert sizes.count(()) >= 4 and sum(0 in size for size in sizes) >= 10


# -- machine code ------------------------------------------------------------------------------------------------------

ACCESS = re.compile(r"\b(ld|st)\.global(\S*)")
ATOMIC = re.compile(r"\b(?:atom|red)\.global")


def widths(ptx: str, which: str) -> set[str]:
    found = (modifiers for operation, modifiers in ACCESS.findall(ptx) if operation == which)
    return {re.search(r"(?:v\d\.)?b\d+$", modifiers)[0] for modifiers in found}


def advice(ptx: str) -> set[str]:
    return set(re.findall(r"evict_\w+", " ".join(modifiers for _, modifiers in ACCESS.findall(ptx))))


def check(kernel: Kernel, facts: Facts, capability: int) -> None:
    ptx = aot_compile(kernel, capability)["ptx"]
    assert f".target sm_{capability}" in ptx
    for which, allowed in (("ld", facts.loads), ("st", facts.stores)):
        found = widths(ptx, which)
        assert found <= set(allowed.split()) and bool(found) == bool(allowed), f"{which}: {found}"
    assert advice(ptx) == set(facts.advice.split())
    assert bool(ATOMIC.search(ptx)) == facts.atomics
    usage = resource_usage(kernel, capability)
    assert usage.spills == 0 and usage.registers <= 128


@pytest.mark.parametrize("capability", [80, 90], ids=["sm_80", "sm_90"])
@forms
def test_machine_code(name, capability):
    """As many kernels as expected, whole vectors per access, the advice that was meant, and nothing spilled."""
    form = BY_NAME[name]
    kernels = list(explained(form, form.inputs()).kernels)
    assert [kernel.launch["form"] for kernel in kernels] == [facts.form for facts in form.kernels]
    for kernel, facts in zip(kernels, form.kernels, strict=True):
        assert (kernel.source.count("tl.load("), kernel.source.count("tl.store(")) == (facts.reads, facts.writes)
        check(kernel, facts, capability)
    text = "\n".join(kernel.source for kernel in kernels)
    assert [mark for mark in form.marks if mark not in text] == []
    assert [mark for mark in form.absent if mark in text] == []


def test_the_table_knows_every_form_there_is():
    """Every form and every kind of node and reduction that the generator writes."""
    from staxlab.codegen.triton.tiling import Form

    kernels = [kernel for form in FORMS for kernel in explained(form, form.inputs()).kernels]
    kinds = {kernel.launch["form"] for kernel in kernels}
    assert kinds == {"pointwise", "persistent", "looped"} and "kind" in typing.get_type_hints(Form)
    ranks = {len(kernel.launch["sizes"]) for kernel in kernels if kernel.launch["form"] == "pointwise"}
    assert ranks == {1, 2, 3}
    decisions = {(d.topic, d.choice) for kernel in kernels for d in kernel.decisions}
    assert {("reduction-direction", "inner"), ("reduction-direction", "outer")} <= decisions
    assert {("index-width", 32), ("index-width", 64), ("tiling", "3-D")} <= decisions


@pytest.mark.parametrize("capability", [80, 90], ids=["sm_80", "sm_90"])
@pytest.mark.parametrize("kind", ["pointwise", "along rows", "across rows", "one row"])
def test_more_points_than_32_bits_number(kind, capability):
    """Sizes and subscripts are 64 bits wide where they must be, and nowhere else."""
    from tests.codegen.triton_support import kernels_of, program

    many, few = 2**31 + 640, 32
    rows, columns = {"along rows": (many, few), "across rows": (few, many), "one row": (1, many)}.get(kind, (many, 1))
    x = torch.empty(rows * columns, device="meta")

    def reduced(ops, i, r):
        return ops.load("x", r[0] * rows + i[0] if kind == "across rows" else i[0] * columns + r[0])

    if kind == "pointwise":
        p = program({"x": x}, (many,), lambda ops, i: ops.neg(ops.load("x", i[0])), torch.float32)
    else:
        p = program({"x": x}, (rows,), reduced, torch.float32, kind="sum", reduction_ranges=(columns,))
    (kernel,) = kernels_of(p)
    text = kernel.source
    assert f"tl.full([], {many}, tl.int64)" in text and f"numel = {few}  #" in text or kind in ("pointwise", "one row")
    assert "tl.program_id(0).to(tl.int64)" in text
    assert ("(r0_offset + r0_base).to(tl.int64)" in text) == (kernel.launch["form"] == "looped")
    ptx = aot_compile(kernel, capability)["ptx"]
    assert "mul.wide" in ptx or "mul.lo.s64" in ptx or "shl.b64" in ptx or "mad.wide" in ptx
    assert resource_usage(kernel, capability).spills == 0


@pytest.mark.parametrize(
    ("length", "counter"), [(2**31 - 100, "i64"), (2**31 - 5000, "i64"), (2**31 - (1 << 17), "i32")]
)
def test_a_loop_that_ends_near_the_last_32_bit_number_counts_in_64(length, counter):
    """Its counter is compared after a step beyond the end, where 32 bits would begin again from below."""
    from tests.codegen.triton_support import kernels_of, program

    x = torch.empty(length, device="meta")
    load_one = lambda ops, i, r: ops.load("x", r[0])  # noqa: E731
    (kernel,) = kernels_of(program({"x": x}, (1,), load_one, torch.float32, kind="sum", reduction_ranges=(length,)))
    (loop,) = [line for line in aot_compile(kernel, 90)["ttir"].splitlines() if "scf.for" in line]
    assert re.search(rf"\b{counter} {{$|: {counter} ", loop) or f"%c{length}_{counter}" in loop


def test_the_derivative_of_gelu_reads_its_argument_and_one_number():
    """Listing 9.3 as it comes about: the loss is a sum, so the gradient that arrives is a single number."""
    x, w = torch.randn(32, 64), torch.randn(64, 64, requires_grad=True)
    backward = staxlab.explain(lambda x, w: torch.nn.functional.gelu(x @ w).sum(), x, w, target="sm_90").backward
    kernel = next(kernel for kernel in backward.kernels if kernel.language == "triton")
    assert kernel.bytes_read == 4 * (32 * 64 + 1) and kernel.source.count("tl.load(") == 2
    assert "tl.load(in_ptr0 + (0))" in kernel.source and "xnumel = 2048" in kernel.source
    assert kernel.source.count("libdevice.erf(") == kernel.source.count("libdevice.exp(") == 1


def test_the_box_touches_no_sector_that_it_does_not_use():
    """What the score of Section 9.3 promises, counted on the compiled layouts: every sector of 32 bytes is used whole,
    while a rectangle leaves one of the operands scattered."""
    from staxlab.codegen.triton import tiling
    from staxlab.measure.coalescing import coalescing

    def efficiencies():
        (kernel,) = explained(BY_NAME["box"], BY_NAME["box"].inputs()).kernels
        return [float(share) / 100 for share in re.findall(r"(\d+)%  ", str(coalescing(kernel)))]

    assert efficiencies() == [1.0] * 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiling, "SMALLEST_BOX_EXTENT", 1 << 30)
        assert min(efficiencies()) < 0.5


# -- planted mistakes --------------------------------------------------------------------------------------------------


def test_a_wrong_fact_is_noticed():
    form = BY_NAME["persistent"]
    (kernel,) = explained(form, form.inputs()).kernels
    (facts,) = form.kernels
    check(kernel, facts, 90)
    from dataclasses import replace

    for wrong in ({"loads": "b32"}, {"stores": "v4.b32"}, {"advice": ""}, {"advice": "evict_last"}, {"atomics": True}):
        with pytest.raises(AssertionError):
            check(kernel, replace(facts, **wrong), 90)


def test_a_wrong_value_is_noticed():
    form = BY_NAME["persistent"]
    from dataclasses import replace

    compilation_of_another = replace(form, function=lambda x, w: form.function(x, w) + 1e-3)
    compilation = explained(form, form.inputs())
    launchers = {k.name: lambda *tensors, kernel=k: interpret(kernel, tensors) for k in compilation.kernels}
    (found,) = load(compilation.wrapper, launchers).call(form.inputs())
    assert not torch.allclose(found, compilation_of_another.function(*form.inputs()), rtol=0, atol=form.tolerance)


# -- any order of dimensions -------------------------------------------------------------------------------------------


def stored_in_order(shape: tuple[int, ...], order: tuple[int, ...]) -> torch.Tensor:
    """A tensor whose dimensions lie in memory in this order, the last one adjacent."""
    return torch.randn([shape[d] for d in order]).permute([order.index(d) for d in range(len(shape))])


def combined(*tensors):
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total * 0.5 + tensor
    return total


@given(
    st.lists(st.sampled_from([1, 2, 9, 12]), min_size=2, max_size=4).flatmap(
        lambda shape: st.tuples(
            st.just(tuple(shape)), st.lists(st.permutations(range(len(shape))), min_size=2, max_size=4)
        )
    )
)
@settings(max_examples=15, deadline=None)
def test_any_orders_of_dimensions_meet(case):
    shape, chosen = case
    form = KernelForm("orders", combined, None, (), (), tolerance=1e-6)
    agrees(form, [stored_in_order(shape, tuple(order)) for order in chosen])


@pytest.mark.parametrize(
    ("chosen", "rank"),
    [
        (((0, 1, 2), (0, 1, 2)), 1), (((2, 0, 1), (2, 0, 1)), 1), (((0, 1, 2), (1, 0, 2)), 1),
        (((0, 1, 2), (2, 1, 0)), 2), (((0, 1, 2), (0, 2, 1)), 2), (((0, 1, 2), (2, 0, 1), (1, 2, 0)), 3),
        (((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 2, 0)), 3),
    ],
)  # fmt: skip
def test_as_many_dimensions_as_loops_that_step_by_one(chosen, rank):
    """What counts is which dimension is adjacent in memory."""
    form = KernelForm("orders", combined, None, (), (), tolerance=1e-6)
    tensors = [stored_in_order((9, 12, 10), order) for order in chosen]
    (kernel,) = explained(form, tensors).kernels
    assert len(kernel.launch["sizes"]) == rank == len({order[-1] for order in chosen})
    agrees(form, tensors)
