"""Theorems 6.1 to 6.3 as properties: what a transformation keeps, on random programs of the core language."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.codegen import cpp
from staxlab.loops.body import record
from staxlab.loops.expressions import Expr
from staxlab.loops.ir import ComputedBuffer, InputBuffer, Layout, LoopProgram, OutputReference, Pointwise, Reduction
from staxlab.loops.semantics import Evaluator, evaluate, evaluate_buffers
from staxlab.measure.rounding import difference_bound, gamma, segmented, sequential, summation_bound, two_level
from staxlab.measure.validation import validate
from staxlab.options import Options, host_device_spec
from staxlab.runtime.build import build
from staxlab.schedule.dependencies import schedule

from . import core
from .core import FLOAT, LAYOUT, SHAPE, SIDE, Map, Var, loop_program, same_bits

seeds = st.integers(0, 7)


def value(program: LoopProgram, seed: int) -> torch.Tensor:
    (result,) = evaluate(program, core.environment(seed))
    return result


# -- Theorem 6.1 -------------------------------------------------------------------------------------------------------


@given(core.programs(), st.sets(st.integers(0, 4)), seeds)
def test_inlining_and_realization_keep_every_bit(program, numbers, seed):
    """``let y = e; b`` is ``b[e/y]``, whichever bindings are substituted."""
    inlined = frozenset(f"y{number}" for number in numbers)
    wanted = value(loop_program(program), seed)
    assert same_bits(value(loop_program(program, inlined), seed), wanted)
    assert same_bits(value(loop_program(program, frozenset(name for name, _ in program)), seed), wanted)


@given(st.sampled_from(sorted(core.VIEWS)), st.sampled_from(["neg", "relu", "square"]), seeds)
def test_corollary_6_1_maps_compose_through_views(view, function, seed):
    """``map g (view p (map f x))`` is ``map (g . f) (view p x)``."""
    outside = Map("abs", (core.View(view, Map(function, (Var("a"),))),))
    inside = Map("abs", (Map(function, (core.View(view, Var("a")),)),))
    one, other = (value(loop_program((("y0", body),)), seed) for body in (outside, inside))
    assert same_bits(one, other)


def test_the_theorem_needs_memory_as_wide_as_the_computation():
    """Realized in bfloat16, a value is rounded once more: inlining is then no identity."""
    results = []
    for inline in (True, False):
        translation = core.Translation()
        square = Map("square", (Var("a"),))
        if inline:
            translation.realize("out", Map("sub", (square, Var("b"))))
        else:
            translation.realize("y", square, torch.bfloat16)
            translation.realize("out", Map("sub", (Var("y"), Var("b"))))
        inputs = tuple(InputBuffer(name, LAYOUT) for name in core.INPUTS)
        results.append(value(LoopProgram(inputs, tuple(translation.buffers), (OutputReference("out", LAYOUT),)), 0))
    assert not same_bits(*results)


# -- Theorem 6.2 -------------------------------------------------------------------------------------------------------


@given(core.programs(), core.expressions(("y", *core.INPUTS)), seeds)
def test_of_two_equal_bindings_one_suffices(program, body, seed):
    """``let y1 = e; let y2 = e; b`` is ``let y1 = e; b[y1/y2]``."""
    name, bound = program[-1]
    twice = (*program, ("twin", bound), ("out", core.substitute(body, {"y": Map("sub", (Var(name), Var("twin")))})))
    once = (*program, ("out", core.substitute(body, {"y": Map("sub", (Var(name), Var(name)))})))
    assert same_bits(value(loop_program(twice), seed), value(loop_program(once), seed))


@given(core.programs(), seeds)
def test_merging_equal_statements_of_a_body_keeps_every_bit(program, seed):
    """Recording merges equal operations and reads; the compute function itself, run as it is, has the same value."""
    loops = loop_program(program, frozenset(name for name, _ in program))
    wanted = value(loops, seed)
    last = loops.buffers[-1]
    assert isinstance(last.data, Pointwise)
    storages = evaluate_buffers(loops, core.environment(seed))
    index = {f"i{k}": torch.arange(SIDE).reshape([SIDE if k == axis else 1 for axis in range(2)]) for k in range(2)}
    body = record(last, dict.fromkeys(storages, FLOAT))
    direct = last.data.compute(Evaluator(storages, dict(index)), tuple(Expr.of(s) for s in body.indices))
    assert same_bits(direct.expand(SHAPE).contiguous(), wanted)


@given(core.programs(), st.integers(0, 4), seeds)
def test_dead_code_can_go(program, number, seed):
    """If ``y`` is not free in ``b``, ``let y = e; b`` is ``b``: what the schedule drops changes nothing."""
    number = min(number, len(program) - 1)
    result, dead = program[number][0], {name for name, _ in program[number + 1 :]}
    loops = loop_program(program, result=result)
    kept = {name for node in schedule(loops, host_device_spec(), Options(fuse=False)).nodes for name in node.buffers}
    fewer = dataclasses.replace(loops, buffers=tuple(b for b in loops.buffers if b.name in kept))
    assert same_bits(value(fewer, seed), value(loops, seed))
    assert not kept & dead


def test_dead_code_that_may_fail_stays():
    """The theorem presupposes that evaluation ends with a value. A checked subscript may raise instead."""

    def compute(ops, index):
        return ops.load("a", ops.indirect(ops.load("at", index[0]), Expr.of(3)))

    vector = Layout.contiguous((3,), FLOAT, "cpu")
    inputs = (InputBuffer("a", vector), InputBuffer("at", Layout.contiguous((3,), torch.int64, "cpu")))
    dead = ComputedBuffer("dead", vector, Pointwise((3,), FLOAT, compute))
    live = ComputedBuffer("live", vector, Pointwise((3,), FLOAT, lambda ops, i: ops.load("a", i[0])))
    program = LoopProgram(inputs, (dead, live), (OutputReference("live", vector),))
    for options in (Options(fuse=False), Options()):  # little kernels share one, in which it stays as well
        nodes = schedule(program, host_device_spec(), options).nodes
        assert [part.buffers for node in nodes for part in node.members or (node,)] == [("dead",), ("live",)]


# -- Theorem 6.3 -------------------------------------------------------------------------------------------------------

finite = st.floats(-1e6, 1e6, width=32)


@st.composite
def trees(draw, leaves: int):
    """A random parenthesization of ``leaves`` operands in random order: nested pairs of positions."""
    parts = list(draw(st.permutations(range(leaves))))
    while len(parts) > 1:
        at = draw(st.integers(0, len(parts) - 2))
        parts[at : at + 2] = [(parts[at], parts[at + 1])]
    return parts[0]


def fold_tree(tree, values, merge):
    return values[tree] if isinstance(tree, int) else merge(*(fold_tree(part, values, merge) for part in tree))


def height(tree) -> int:
    return 0 if isinstance(tree, int) else 1 + max(map(height, tree))


@given(st.lists(finite, min_size=1, max_size=12).flatmap(lambda v: st.tuples(st.just(v), trees(len(v)))))
def test_any_order_keeps_the_real_semantics_and_the_bound(drawn):
    """Over the reals every parenthesization of every permutation is the sum; in float32 it is within the bound of its
    own height, and extremes are equal."""
    values, tree = drawn
    exact = [Fraction(v) for v in values]
    total = sum(exact, Fraction(0))
    assert fold_tree(tree, exact, lambda a, b: a + b) == total
    assert math.prod(exact) == fold_tree(tree, exact, lambda a, b: a * b)
    tensors = [torch.tensor(v, dtype=FLOAT) for v in values]
    computed = Fraction(float(fold_tree(tree, tensors, torch.add)))
    size = sum(map(abs, exact), Fraction(0))
    assert abs(computed - total) <= Fraction(gamma(height(tree), FLOAT)) * size
    for merge, kind in ((torch.maximum, max), (torch.minimum, min)):
        assert float(fold_tree(tree, tensors, merge)) == kind(values)


@settings(max_examples=60)
@given(st.integers(1, 300), st.integers(1, 20), st.integers(0, 1000), st.booleans())
def test_splitting_a_sum_stays_within_the_bound(n, segments, seed, cancels):
    """One level against two (Section 6.5), as loop programs, for data that cancel and data that do not."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator) if cancels else torch.rand(n, generator=generator)
    length = -(-n // segments)
    scalar, vector = Layout.contiguous((), FLOAT, "cpu"), Layout.contiguous((segments,), FLOAT, "cpu")
    inputs = (InputBuffer("x", Layout.contiguous((n,), FLOAT, "cpu")),)

    def summand(ops, i, r):
        at = length * i[0] + r[0]
        inside = ops.lt(ops.index_value(at, torch.int64), ops.constant(n, torch.int64))
        return ops.masked(inside, lambda within: within.load("x", at), 0.0)

    whole = ComputedBuffer(
        "out", scalar, Reduction((), (n,), "sum", FLOAT, FLOAT, lambda ops, i, r: ops.load("x", r[0]))
    )
    first = ComputedBuffer("partial", vector, Reduction((segments,), (length,), "sum", FLOAT, FLOAT, summand))
    second = ComputedBuffer(
        "out", scalar, Reduction((), (segments,), "sum", FLOAT, FLOAT, lambda ops, i, r: ops.load("partial", r[0]))
    )
    output = (OutputReference("out", scalar),)
    (one,) = evaluate(LoopProgram(inputs, (whole,), output), {"x": x})
    (other,) = evaluate(LoopProgram(inputs, (first, second), output), {"x": x})
    exact, size = math.fsum(x.tolist()), math.fsum(x.abs().tolist())
    plan = two_level(n, sequential(length), sequential(segments))
    assert abs(float(one) - exact) <= summation_bound(n, sequential(n), size)
    assert abs(float(other) - exact) <= summation_bound(n, plan, size)
    assert abs(float(one) - float(other)) <= difference_bound(sequential(n), plan, n, size)
    assert plan.height == segmented(n, segments).height


# -- the compiler on the same programs ---------------------------------------------------------------------------------


def check_kernels(program, inlined, seed) -> None:
    loops = loop_program(program, inlined)
    device = host_device_spec()
    scheduled = schedule(loops, device, Options())
    kernels = cpp.generate(scheduled, Options(), device)
    sample = list(core.environment(seed).values())
    validate(scheduled, kernels, build(kernels, Options(), device), sample).require()


def test_the_kernels_of_a_program_keep_the_semantics():
    total = core.Red("sum", "rows", Map("mul", (core.View("transpose", Var("a")), Var("b"))))
    program = (("y0", total), ("y1", Map("maximum", (Var("y0"), core.Red("amax", "all", Var("a"))))))
    for inlined in (frozenset(), frozenset({"y0"})):
        check_kernels(program, inlined, 1)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(core.programs(), st.sets(st.integers(0, 4)), seeds)
def test_the_kernels_of_random_programs_keep_the_semantics(program, numbers, seed):
    check_kernels(program, frozenset(f"y{number}" for number in numbers), seed)
