"""Orders with low peaks (Section 7.5): search against brute force, trees, rules of thumb, and what a schedule does."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab
from staxlab.errors import ScheduleError
from staxlab.schedule.lifetimes import Step
from staxlab.schedule.orders import (
    RULES,
    OrderProblem,
    best_order,
    candidates,
    exact,
    is_forest,
    tree_order,
)


def brute_force(problem: OrderProblem) -> int:
    """The lowest peak over all orders, one after the other."""
    count = len(problem.steps)
    legal = (order for order in itertools.permutations(range(count)) if problem.is_legal(order))
    return min(problem.peak(order) for order in legal)


@st.composite
def graphs(draw, most: int = 7) -> OrderProblem:
    """Steps that write one or two buffers, read some of the earlier ones, and keep some of what they write."""
    count = draw(st.integers(1, most))
    steps: list[Step] = []
    sizes: dict[str, int] = {}
    for k in range(count):
        reads = tuple(sorted(draw(st.sets(st.sampled_from([*sizes, "x"]), max_size=3))))
        writes = tuple(f"b{k}{suffix}" for suffix in ("", "'")[: draw(st.integers(1, 2))])
        sizes |= {name: draw(st.integers(0, 6)) for name in writes}
        steps.append(Step(f"s{k}", reads, writes))
    escaping = draw(st.sets(st.sampled_from([*sizes]), max_size=3))
    pairs = draw(st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=2))
    ordered = frozenset((f"s{a}", f"s{b}") for a, b in pairs if a < b)
    return OrderProblem(tuple(steps), sizes, frozenset(escaping), ordered)


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_the_search_finds_the_lowest_peak(problem):
    found = exact(problem)
    assert problem.is_legal(found.positions) and found.is_proved
    assert found.peak == problem.peak(found.positions) == brute_force(problem)
    assert found.peak >= problem.least


@settings(max_examples=150, deadline=None)
@given(graphs(most=12))
def test_rules_of_thumb_give_legal_orders_and_none_below_the_lowest(problem):
    lowest = exact(problem).peak
    for name, rule in RULES.items():
        order = tuple(rule(problem))
        assert problem.is_legal(order), name
        assert problem.peak(order) >= lowest, name
    best, decision = best_order(problem)
    assert best.peak == lowest and decision.choice in decision.candidates
    assert "no order" in decision.reason


@st.composite
def forests(draw, most: int = 8) -> OrderProblem:
    count = draw(st.integers(1, most))
    parents = [draw(st.integers(k + 1, count)) for k in range(count)]  # count: a result
    sizes = {f"b{k}": draw(st.integers(0, 9)) for k in range(count)}
    steps = tuple(
        Step(f"s{k}", tuple(f"b{j}" for j in range(k) if parents[j] == k), (f"b{k}",)) for k in range(count)
    )
    kept = frozenset(f"b{k}" for k in range(count) if parents[k] == count and draw(st.booleans()))
    return OrderProblem(steps, sizes, kept)


@settings(max_examples=300, deadline=None)
@given(forests(most=10))
def test_trees_have_a_quick_best_order(problem):
    """Exercise 48, second part: Sethi and Ullman's rule, with sizes."""
    assert is_forest(problem)
    order = tree_order(problem)
    assert problem.is_legal(order)
    assert problem.peak(order) == exact(problem).peak


def test_large_trees_are_quick_and_no_rule_of_thumb_is_better():
    draw = random.Random(0)
    count = 300
    parents = [draw.randint(k + 1, min(k + 12, count)) for k in range(count)]
    steps = tuple(
        Step(f"s{k}", tuple(f"b{j}" for j in range(k) if parents[j] == k), (f"b{k}",)) for k in range(count)
    )
    problem = OrderProblem(steps, {f"b{k}": draw.randint(1, 99) for k in range(count)})
    height = problem.peak(tree_order(problem))
    assert all(problem.peak(tuple(rule(problem))) >= height for rule in RULES.values())


def test_a_graph_with_sharing_is_no_tree():
    steps = (Step("a", (), ("p",)), Step("b", ("p",), ("q",)), Step("c", ("p",), ("r",)))
    problem = OrderProblem(steps, dict.fromkeys("pqr", 1))
    assert not is_forest(problem)
    with pytest.raises(ScheduleError, match="several users"):
        tree_order(problem)


def test_steps_must_stand_after_what_they_need():
    with pytest.raises(ScheduleError, match="before a step that it needs"):
        OrderProblem((Step("a", ("q",), ("p",)), Step("b", (), ("q",))), {"p": 1, "q": 1})


def exercise_20() -> OrderProblem:
    steps = (Step("a", (), ("A",)), Step("b", (), ("B",)), Step("c", ("A",), ("C",)), Step("d", ("B",), ("D",)))
    return OrderProblem(steps, {"A": 4, "B": 4, "C": 1, "D": 1}, frozenset("CD"))


def test_exercise_20():
    problem = exercise_20()
    peaks = {
        "".join("abcd"[k] for k in order): problem.peak(order)
        for order in itertools.permutations(range(4))
        if problem.is_legal(order)
    }
    assert peaks == {"abcd": 9, "abdc": 9, "bacd": 9, "badc": 9, "acbd": 6, "bdac": 6}
    best, decision = best_order(problem)
    assert best.peak == 6 and decision.choice != "as it stands"


def test_a_search_that_is_too_long_gives_up():
    steps = tuple(Step(f"s{k}", (), (f"b{k}",)) for k in range(12))
    last = Step("end", tuple(f"b{k}" for k in range(12)), ("r",))
    more = tuple(Step(f"t{k}", (f"b{k}", f"b{(k + 5) % 12}"), (f"c{k}",)) for k in range(12))
    sizes = {f"b{k}": 3 + k % 4 for k in range(12)} | {f"c{k}": 2 for k in range(12)} | {"r": 1}
    problem = OrderProblem((*steps, *more, last), sizes)
    assert exact(problem, states=5) is None
    assert "exact" not in candidates(problem, states=5)


# -- schedules ---------------------------------------------------------------------------------------------------------


def explained(function, *inputs, **options):
    return staxlab.explain(function, *inputs, options=options)


def order_of(compilation):
    (decision,) = [d for d in compilation.schedule.decisions if d.topic == "order"] or [None]
    return decision


def two_chains(x, w):
    """Exercise 20 in the large: both large products first, if nobody looks."""
    a, b = x @ w, x @ w.t()
    return a.sort(0)[0].sum(0), b.sort(0)[0].sum(0)


def test_a_schedule_runs_in_the_order_with_the_lowest_peak():
    x, w = torch.randn(64, 64), torch.randn(64, 64)
    compilation = explained(two_chains, x, w, fuse=False)
    decision = order_of(compilation)
    assert decision.choice != "as it stands"
    inputs = dict(decision.inputs)
    assert inputs[f"peak {decision.choice}"] < inputs["peak as it stands"]
    for found, wanted in zip(staxlab.compile(two_chains)(x, w), two_chains(x, w), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_an_order_that_is_as_good_stays():
    compilation = explained(lambda x: (x @ x).sum(0), torch.randn(32, 32))
    decision = order_of(compilation)
    assert decision is None or decision.choice == "as it stands"


def test_effects_keep_their_order():
    """Random numbers are drawn, checks made and inputs overwritten in the order of the program."""

    def function(x, i):
        big = (x @ x).sort(0)[0]
        a = torch.nn.functional.dropout(x, 0.5)
        b = torch.rand_like(x) + x[i]
        x.mul_(a)
        return (big * b).sum(0), torch.nn.functional.dropout(b, 0.3)

    i = torch.arange(48).flip(0)
    mine, eager = torch.randn(48, 48), None
    eager = mine.clone()
    torch.manual_seed(5)
    wanted = function(eager, i)
    torch.manual_seed(5)
    found = staxlab.compile(function)(mine, i)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine, eager)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=10),
    st.booleans(),
)
def test_values_in_any_order(numbers, fuse):
    lines = (
        lambda a, b: (a @ b) * 0.1, lambda a, b: a.sort(0)[0], lambda a, b: a + b.sum(0),
        lambda a, b: a.cumsum(0) * 0.1, lambda a, b: a.flip(1) * b, lambda a, b: a.index_add(0, b.argmax(1), b),
    )  # fmt: skip

    def function(x, y):
        values = [x, y]
        for line, i, j in numbers:
            values.append(lines[line](values[-1 - i % len(values)], values[-1 - j % len(values)]))
        return values[-1], values[len(values) // 2].sum()

    x, y = (torch.randn(24, 24, generator=torch.Generator().manual_seed(k)) for k in (1, 2))
    wanted = function(x, y)
    if all(v.isfinite().all() for v in wanted):
        found = staxlab.compile(function, options={"fuse": fuse})(x, y)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
