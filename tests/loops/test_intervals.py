"""Interval analysis: sound (Proposition 6.4), and worth it where it can be (Example 6.3)."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab
from staxlab.codegen import triton
from staxlab.loops.expressions import Expr, Interval
from staxlab.loops.formatting import annotated_lines
from staxlab.loops.intervals import Intervals, Ranged, interval_text, limits, remarks
from staxlab.loops.ir import ComputedBuffer, InputBuffer, Layout, LoopProgram, OutputReference, Pointwise
from staxlab.loops.ops import OPERATIONS, Ops
from staxlab.loops.semantics import Evaluator
from staxlab.options import GPU_SPECS, Options
from staxlab.schedule.dependencies import schedule

I8, I64 = torch.int8, torch.int64
UNARY = [n for n, o in OPERATIONS.items() if o.arity == 1 and not o.transcendental and n not in
         ("sqrt", "rsqrt", "reciprocal", "isnan", "isinf", "logical_not")]  # fmt: skip
BINARY = [n for n, o in OPERATIONS.items() if o.arity == 2 and not o.transcendental and n not in
          ("truediv", "copysign", "nextafter", "logical_and", "logical_or", "logical_xor")]  # fmt: skip
DIVIDING = ("floordiv", "truncdiv", "remainder", "fmod")
SHIFTING = ("bitwise_left_shift", "bitwise_right_shift")


def every(interval: Interval, dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(int(interval.lower), int(interval.upper) + 1).to(dtype)


@st.composite
def intervals(draw, low=-128, high=127):
    ends = sorted([draw(st.integers(low, high)), draw(st.integers(low, high))])
    return Interval(*ends)


def contained(operation: str, *operands: tuple[Interval, torch.dtype]) -> Interval:
    """The interval of an operation, after every concrete result was found in it. Operands are ints of 8 bits, so that
    all numbers can be tried, those that wrap around too."""
    axes = [every(interval, dtype) for interval, dtype in operands]
    grids = torch.meshgrid(*axes, indexing="ij")
    concrete = getattr(Evaluator({}, {}), operation)(*grids)
    found = getattr(Intervals({}), operation)(*(Ranged(interval, dtype) for interval, dtype in operands))
    assert isinstance(found, Ranged) and found.dtype == concrete.dtype
    assert found.interval.within(*(limits(found.dtype).lower, limits(found.dtype).upper))
    assert found.interval.lower <= int(concrete.min()) and int(concrete.max()) <= found.interval.upper
    return found.interval


# -- Proposition 6.4 ---------------------------------------------------------------------------------------------------


@settings(max_examples=80)
@given(st.sampled_from(UNARY), intervals())
def test_unary_operations_are_sound(operation, a):
    contained(operation, (a, I8))


@settings(max_examples=250)
@given(st.sampled_from([n for n in BINARY if n not in DIVIDING + SHIFTING]), intervals(), intervals())
def test_binary_operations_are_sound(operation, a, b):
    contained(operation, (a, I8), (b, I8))


@settings(max_examples=120)
@given(st.sampled_from(DIVIDING), intervals(-127), st.booleans(), intervals(1, 127))
def test_divisions_are_sound(operation, a, negative, b):
    contained(operation, (a, I8), (Interval(-b.upper, -b.lower) if negative else b, I8))


@settings(max_examples=60)
@given(st.sampled_from(SHIFTING), intervals(), intervals(0, 7))
def test_shifts_are_sound(operation, a, b):
    contained(operation, (a, I8), (b, I8))


@pytest.mark.parametrize("operation", ["logical_and", "logical_or", "logical_xor", "eq", "ne", "bitwise_and", "lt"])
def test_operations_on_bools_are_sound(operation):
    for a in (Interval(0, 0), Interval(0, 1), Interval(1, 1)):
        for b in (Interval(0, 0), Interval(0, 1), Interval(1, 1)):
            contained(operation, (a, torch.bool), (b, torch.bool))
            contained("where", (a, torch.bool), (b, torch.bool), (Interval(0, 0), torch.bool))


@settings(max_examples=60)
@given(intervals(-300, 300), st.sampled_from([I8, torch.uint8, torch.bool, torch.int16]))
def test_conversions_are_sound(a, dtype):
    concrete = every(a, I64).to(dtype)
    found = Intervals({}).to_dtype(Ranged(a, I64), dtype)
    assert found.interval.lower <= int(concrete.min()) and int(concrete.max()) <= found.interval.upper


@settings(max_examples=60)
@given(intervals(-40, 40), st.integers(1, 20))
def test_run_time_subscripts_are_sound(a, size):
    expression = Intervals({}).indirect(Ranged(a, I64), Expr.of(size))
    legal = [v % size for v in range(int(a.lower), int(a.upper) + 1) if -size <= v < size]
    assert expression.bounds().within(0, size - 1)
    assert all(expression.bounds().lower <= v <= expression.bounds().upper for v in legal)


def test_no_operation_is_forgotten():
    """Where there is no rule the whole dtype is the answer; that is only so for these."""
    handler = Intervals({})
    for name, operation in OPERATIONS.items():
        found = handler.apply(name, *[Ranged(Interval(1, 1), I64)] * operation.arity)
        assert isinstance(found, Ranged), name
    floating = handler.add(*[Ranged(None, torch.float32)] * 2)
    assert floating.interval is None and handler.lt(*[floating] * 2).interval == Interval(0, 1)
    assert handler.constant(300, torch.uint8).interval == Interval(0, 255)  # wraps around


def test_rules_are_sharp_where_it_matters():
    assert contained("remainder", (Interval(-9, 90), I8), (Interval(5, 5), I8)) == Interval(0, 4)
    assert contained("remainder", (Interval(1, 3), I8), (Interval(5, 5), I8)) == Interval(1, 3)
    assert contained("minimum", (Interval(-9, 90), I8), (Interval(5, 5), I8)) == Interval(-9, 5)
    assert contained("mul", (Interval(-3, 4), I8), (Interval(-2, 5), I8)) == Interval(-15, 20)
    assert contained("lt", (Interval(0, 3), I8), (Interval(4, 4), I8)) == Interval(1, 1)
    assert interval_text(Interval(-(2**63), 2**63 - 1)) == "[-inf, +inf]" and interval_text(Interval(0, 5)) == "[0, 5]"


# -- Example 6.3 -------------------------------------------------------------------------------------------------------


def g1(x, idx):
    return x[idx] * 2


def g2(x):
    return x[(torch.arange(128) * 3) % 128] * 2


def g3(x, idx):
    return x[idx.clamp(0, 127)] * 2


def g4(x, idx):
    return x[idx % 128 - 64] * 2


def g5(x, idx):
    return F.embedding(idx.remainder(7), x.view(32, 4))


def g6(x, idx):
    return x.index_select(0, idx - 200)


def program(function, *inputs):
    with torch.no_grad():
        return staxlab.explain(function, *inputs)


X, IDX = torch.randn(128), torch.randint(-128, 128, (50,))


def found(function, *inputs):
    loops = program(function, *inputs).loops
    dtypes = {b.name: b.layout.dtype for b in (*loops.inputs, *loops.buffers)}
    return remarks(loops.buffers[-1], dtypes)


def test_example_6_3():
    one, two = program(g1, X, IDX), program(g2, X)
    text = one.loops.format(intervals=True)
    assert "[-inf, +inf] not within [0, 127]: fix-up and check kept" in text and "checks: 1 kept" in text
    assert "index_inside" in one.kernels[0].source
    text = two.loops.format(intervals=True)
    assert "index [0, 127] within [0, 127]: no fix-up, no check" in text and "checks: 1 removed" in text
    assert "index_inside" not in two.kernels[0].source and len(two.loops.buffers) == 1
    assert "#" not in one.loops.format() + two.loops.format()


@pytest.mark.parametrize(("function", "said"), [
    (g3, "[0, 127] within [0, 127]: no fix-up, no check"),
    (g5, "[0, 6] within [0, 31]: no fix-up, no check"),
])  # fmt: skip
def test_a_value_brought_into_range_needs_no_check(function, said):
    compilation = program(function, X, IDX)
    assert said in compilation.loops.format(intervals=True)
    assert "index_inside" not in compilation.kernels[0].source
    assert "wrap_index" not in compilation.kernels[0].source
    gpu = staxlab.explain(function, X, IDX, target="sm_90").kernels[0].source
    assert "counts from the end" not in gpu and "device_assert" not in gpu
    assert not found(function, X, IDX)[0].may_fail
    (result,) = compilation.call([X, IDX])
    assert torch.equal(result, function(X, IDX))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_computed_subscript_wraps_as_its_dtype_does(dtype):
    """Expressions of subscripts are exact, machine integers are not: where a product may not fit its dtype the
    subscript is computed, and the remainder is that of the number that wrapped."""
    x = torch.arange(7.0)

    def strided(x):
        return x[(torch.arange(70_000, dtype=dtype) * 70_000) % 7]

    assert torch.equal(staxlab.compile(strided)(x), strided(x))
    assert ("proved" in str(staxlab.explain(strided, x).loops)) == (dtype == torch.int32)


def test_a_value_that_may_be_negative_keeps_both():
    """[-64, 63] is legal for 128 elements, but the negative half counts from the end."""
    compilation = program(g4, X, IDX)
    assert "[-64, 63] not within [0, 127]: fix-up and check kept" in compilation.loops.format(intervals=True)
    assert torch.equal(compilation.call([X, IDX])[0], g4(X, IDX))


def test_a_value_out_of_range_is_still_noticed():
    compiled = staxlab.compile(g6)
    legal = IDX % 128 + 200
    _, said = found(g6, X, legal)
    assert said.kept == 1 and said.removed == 0
    assert torch.equal(compiled(X, legal), g6(X, legal))
    with pytest.raises(IndexError):
        compiled(X, legal + 128)


def test_an_operator_that_vouches_for_its_index_has_nothing_removed():
    _, said = found(lambda x, i: torch.ops.aten._unsafe_index(x, [i]), X, IDX)
    assert said.kept == said.removed == 0 and any("vouches" in text for text in said.statements.values())


def test_widths():
    _, said = found(g1, X, IDX)
    assert said.about.startswith("subscripts reach 127: 32 bits suffice")
    side = 1 << 16
    layout = Layout.contiguous((side, side), torch.float32, "cuda")
    double = Pointwise((side, side), torch.float32, lambda ops, i: ops.load("x", side * i[0] + i[1]))
    loops = LoopProgram((InputBuffer("x", layout),), (ComputedBuffer("buf0", layout, double),),
                        (OutputReference("buf0", layout),))  # fmt: skip
    _, said = remarks(loops.buffers[0], {"x": torch.float32})
    assert said.about == "subscripts reach 4,294,967,295: 32 bits do not suffice"
    kernels = triton.generate(schedule(loops, GPU_SPECS["sm_90"], Options()), Options(), GPU_SPECS["sm_90"])
    assert any(d.topic == "index-width" and d.choice == 64 for d in kernels[0].decisions)


def test_every_line_has_its_remark_in_its_place():
    compilation = program(lambda x, i: F.pad(x[i % 8], (1, 2)).sum(-1), torch.randn(8, 4), torch.arange(5))
    lines, said = annotated_lines(compilation.loops)
    assert len(lines) == len(said) and "".join(f"{line.text}\n" for line in lines) == compilation.loops.format()
    by_text = {line.text.strip(): remark for line, remark in zip(lines, said, strict=True)}
    assert any("load x[" in text and "subscript [" in remark for text, remark in by_text.items())
    assert all(not remark for text, remark in by_text.items() if text.startswith(("input", "output", "for")))
    assert issubclass(Intervals, Ops)


def test_the_end_of_a_matrix_product_has_remarks_too():
    loops = program(lambda x, w: x @ w, torch.randn(4, 8), torch.randn(8, 3)).loops
    template = loops.buffers[0].data
    if type(template).__name__ != "Template":
        pytest.skip("the product is a library call here")

    def epilogue(ops, index, merged):
        return ops.add(merged, ops.load("w", index[1]))

    buffer = dataclasses.replace(loops.buffers[0], data=dataclasses.replace(template, epilogue=epilogue))
    _, said = remarks(buffer, {"x": torch.float32, "w": torch.float32})
    assert "subscript [0, 2]" in said.epilogue.values()
    text = LoopProgram(loops.inputs, (buffer,), loops.outputs).format(intervals=True)
    assert text.count("# subscript [") == 3
