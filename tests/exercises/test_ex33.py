"""Exercise 33: the verdicts against fused loops that are run, and program instances that together give both nodes."""

from __future__ import annotations

import random

import pytest

from staxlab import learn
from staxlab.learn.exercises import ex33_answers, ex33_runs


def check(part, seed=None, **answers):
    return learn.check(f"ex33.{part}", answers, seed=seed, record=False)


def fused(shifts, n, order):
    """Which value each iteration of b finds, the fused iterations in this order; None where nothing was written."""
    memory: dict[int, int] = {}
    found = {}
    for i in order:
        memory[i] = i
        found[i] = [memory.get(i + k) if 0 <= i + k < n else "outside" for k in shifts]
    return found


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_the_kind_of_fusion_by_running_it(seed):
    n = 12
    for shifts in ex33_runs.cases(seed):
        truth = {i: [i + k if 0 <= i + k < n else "outside" for k in shifts] for i in range(n)}
        orders = [random.Random(k).sample(range(n), n) for k in range(20)] + [list(reversed(range(n)))]
        sequential = fused(shifts, n, range(n)) == truth
        parallel = sequential and all(fused(shifts, n, order) == truth for order in orders)
        expected = "parallel" if parallel else "sequential" if sequential else "none"
        assert ex33_runs.kind(shifts) == expected == ex33_answers.fusion_kind(list(shifts))


def test_the_chapters_values():
    answers = ex33_answers.reference(learn.load("ex33").variant_class())
    assert (answers["behind_distance"], answers["ahead_distance_33"]) == (1, -1)
    assert (answers["behind_sequential"], answers["behind_parallel"], answers["ahead_sequential"]) == (
        "legal", "not legal", "not legal",
    )  # fmt: skip


@pytest.mark.parametrize(("n", "size", "shift"), [(24, 4, 1), (24, 8, 3), (20, 2, 5)])
def test_instances_together_are_both_nodes(n, size, shift):
    calls = []

    def a(i):
        calls.append(i)
        return 3 * i + 1

    b, c = [], []
    for start in range(0, n, size):
        own, read = ex33_answers.instance(a, start, size, shift)
        b += own
        c += read
    assert b == [3 * i + 1 for i in range(n)] and c == b[: n - shift]
    assert size < shift or len(calls) == n // size * (size + shift) - shift


def test_a_wrong_rule_is_shown_the_distances():
    verdict = check("2", fusion_kind=ex33_answers._no_difference)["fusion_kind"]
    facts = dict(verdict.facts)
    assert facts["shifts"] == "[-1]" and facts["distances"] == "[1]"


def test_an_instance_that_asks_for_something_else_is_told():
    verdict = check("3", instance=lambda a, start, size, s: ([a("x")], []))["instance"]
    assert verdict.mistake == "failed-call" and "whole number" in str(verdict.facts)
