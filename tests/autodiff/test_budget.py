"""Saving within a budget (Section 5.8): the integer program against every plan there is, and its edges."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from staxlab.autodiff import budget as budgets
from staxlab.autodiff.budget import Problem, budget_in_bytes, floating_point_operations, within_budget
from staxlab.autodiff.frontier import frontier
from staxlab.autodiff.network import INFINITE
from staxlab.autodiff.partition import partition
from staxlab.autodiff.values import Kinds, forward_values
from staxlab.errors import ConstraintError, MissingDependencyError
from staxlab.loops.lowering import basis
from staxlab.loops.lowering.kinds import kind_of
from staxlab.options import Options
from tests.autodiff import programs
from tests.autodiff.programs import own_gradients, recorded, same_bits, upstream, write


def problem_of(joint):
    values = forward_values(joint, kind_of)
    return values, Kinds(kind_of), Problem(values, Kinds(kind_of))


def every_plan(problem):
    """(bytes, work) of every set of values that can be saved."""
    savable = [value for value in problem.values if not value.unsavable]
    for size in range(len(savable) + 1):
        for chosen in itertools.combinations(savable, size):
            work = work_by_definition(problem, {value.node for value in chosen})
            if work != INFINITE:
                yield sum(value.nbytes for value in chosen), work


def work_by_definition(problem, saved):
    """What a lazy backward pass computes, value by value."""
    done = set()

    def need(value):
        if value.node in saved or value.node in done:
            return 0.0
        if not value.is_repeatable:
            return INFINITE
        done.add(value.node)
        return problem.work[value.node] + sum(need(problem.value[source]) for source in problem.made_of[value.node])

    return sum(need(value) for value in problem.values if value.is_read)


@settings(max_examples=40)
@given(programs.steps, st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0]))
def test_the_plan_is_the_best_of_all(numbers, fraction):
    program = write(numbers)
    _, joint, arguments = recorded(program.function, program.arguments(), basis())
    assume(not joint.obstacles)
    values, kinds, problem = problem_of(joint)
    assume(len([v for v in problem.values if not v.unsavable]) <= 11)
    plans = list(every_plan(problem))
    least, most = min(size for size, _ in plans), max(size for size, _ in plans)
    budget = round(least + fraction * (most - least))
    plan = within_budget(values, kinds, budget)
    assert plan.least == least and plan.saved_bytes <= budget and plan.method == "exact" and plan.gap == 0
    assert plan.work == pytest.approx(min(work for size, work in plans if size <= budget), rel=1e-9, abs=1e-6)
    assert problem.work_of(plan.saved) == plan.work
    if least:
        with pytest.raises(ConstraintError, match=f"at least {least:,} bytes must be saved"):
            within_budget(values, kinds, least - 1)


@settings(max_examples=40)
@given(programs.steps, st.sampled_from([0.0, 0.3, 1.0]))
def test_every_plan_gives_the_same_gradients(numbers, fraction):
    program = write(numbers)
    _, joint, arguments = recorded(program.function, program.arguments(), basis())
    assume(not joint.obstacles)
    values, _, problem = problem_of(joint)
    least = problem.bytes_of(problem.least_saved())
    whole = partition(joint, kind_of=kind_of)
    limit = round(least + fraction * max(whole.save_all_bytes - least, 0))
    part = partition(joint, Options(memory_budget=limit if limit != 1 else 2), kind_of=kind_of)
    assert part.plan == "budget" and part.saved_bytes == part.budget.saved_bytes <= max(limit, 2)
    tangents = upstream(joint)
    expected, found = own_gradients(whole, arguments, tangents), own_gradients(part, arguments, tangents)
    assert all(map(same_bits, found, expected)), program.source


def chain():
    x = torch.randn(64, 64)
    weights = [torch.randn(64, 64, requires_grad=True) for _ in range(4)]

    def f(x, *weights):
        for w in weights:
            x = F.gelu(x @ w).tanh()
        return x.sum()

    return recorded(f, [x, *weights], basis())[1]


def test_the_whole_budget_repeats_nothing_and_a_small_one_repeats_products():
    joint = chain()
    everything = partition(joint, Options(memory_budget=1.0), kind_of=kind_of)
    assert everything.budget.work == 0 and everything.recomputed == ()
    least = everything.budget.least
    smallest = partition(joint, Options(memory_budget=least), kind_of=kind_of)
    assert smallest.saved_bytes == least == 0  # everything can be computed from the input and the weights
    assert [n.target_name() for n in smallest.recomputed].count("aten.mm.default") == 4
    assert "work done again" in smallest.reason and "recomputed" in smallest.format()


def test_random_values_are_kept_whatever_the_budget():
    x = torch.randn(16, 16, requires_grad=True)
    _, joint, _ = recorded(lambda x: (F.dropout(x.sin(), 0.5) * x).sum(), [x], basis())
    values, kinds, problem = problem_of(joint)
    assert [n.target_name() for n in problem.least_saved()] == ["aten.bernoulli.p"]
    with pytest.raises(ConstraintError, match="at least 1,024 bytes must be saved"):
        partition(joint, Options(memory_budget=0.0), kind_of=kind_of)


def test_without_a_solution_in_time_there_is_a_greedy_one(monkeypatch):
    joint = chain()
    values, kinds, problem = problem_of(joint)
    monkeypatch.setattr(budgets, "_solve", lambda *_: (None, 100.0))
    best = sum(value.nbytes for value in problem.values if value.is_read)
    for budget in (0, 16384, 3 * 16384, best):
        plan = within_budget(values, kinds, budget)
        assert plan.method == "greedy" and plan.saved_bytes <= budget
        assert plan.bound == min(100.0, plan.work) and plan.gap == pytest.approx(
            1 - plan.bound / plan.work if plan.work else 0
        )
        assert plan.work < INFINITE
    assert "greedy" in str(plan)


def test_a_solver_that_stops_early_says_how_far_it_may_be(monkeypatch):
    joint = chain()
    values, kinds, problem = problem_of(joint)
    monkeypatch.setattr(budgets, "_solve", lambda *_: ([], problem.work_of([]) / 2))
    plan = within_budget(values, kinds, 10**6)
    assert plan.method == "time limit" and plan.gap == pytest.approx(0.5) and "at most 50.0% above" in str(plan)


def test_scipy_is_asked_for_by_name(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    joint = chain()
    values, kinds, _ = problem_of(joint)
    with pytest.raises(MissingDependencyError, match="needs SciPy"):
        within_budget(values, kinds, 10**6)


def test_a_fraction_is_of_everything():
    assert budget_in_bytes(0.5, 1001) == 500 and budget_in_bytes(4096, 10) == 4096 and budget_in_bytes(1.0, 7) == 7


def test_the_frontier_falls():
    joint = chain()
    found = frontier(joint, kind_of=kind_of, points=6)
    sizes, works = [p.saved_bytes for p in found.plans], [p.work for p in found.plans]
    assert sizes == sorted(set(sizes)) and works == sorted(works, reverse=True) and works[-1] == 0
    cut, eager = found.marks
    assert (cut.name, eager.name) == ("minimum cut", "eager") and eager.work == 0 < cut.work
    # No plan beats the frontier: the minimum cut does no less work than the plan for as many bytes.
    values, kinds, _ = problem_of(joint)
    assert cut.work >= within_budget(values, kinds, cut.saved_bytes).work
    text = found.format()
    assert "minimum cut" in text and "eager" in text and len(text.splitlines()) == 1 + len(found.plans) + 2


def operations(f, *arguments):
    _, joint, _ = recorded(f, list(arguments), basis())
    return max(floating_point_operations(node) for node in joint.forward_nodes if node.op == "call_function")


@pytest.mark.parametrize(
    ("f", "shapes", "expected"),
    [
        (lambda a, b: a @ b, [(3, 4), (4, 5)], 2 * 3 * 4 * 5),
        (lambda a, b: a @ b, [(2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5),
        (lambda a, b: a @ b, [(3, 4), (4,)], 2 * 3 * 4),
        (lambda a, b, c: torch.addmm(a, b, c), [(5,), (3, 4), (4, 5)], 2 * 3 * 4 * 5),
        (lambda a, b, c: torch.baddbmm(a, b, c), [(2, 3, 5), (2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5),
        (lambda a, w: F.conv2d(a, w, padding=1), [(2, 3, 8, 8), (5, 3, 3, 3)], 2 * (2 * 5 * 8 * 8) * 27),
        (lambda a, w: F.conv1d(a, w, groups=3), [(2, 6, 10), (3, 2, 3)], 2 * (2 * 3 * 8) * 6),
        (lambda a: a.exp(), [(3, 4)], 0),
    ],
)
def test_arithmetic_is_counted(f, shapes, expected):
    assert operations(f, *(torch.randn(shape, requires_grad=True) for shape in shapes)) == expected
    assert math.isfinite(expected)
