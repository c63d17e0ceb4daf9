"""Exercise 18: places of buffers against what is alive, and layouts that are longer than that."""

from __future__ import annotations

import itertools

import pytest

from staxlab import learn
from staxlab.learn.exercises import ex18, ex18_answers, ex18_runs
from staxlab.learn.variants import variant_for


def check(part, seed=None, **answers):
    return learn.check(f"ex18.{part}", answers, seed=seed, record=False)


@pytest.mark.parametrize("seed", [None, *range(30)])
def test_the_rule_of_the_package_is_that_of_the_statement(seed):
    variant = variant_for(ex18.Variant, seed)
    for found in (list(variant.lifetimes), *ex18_runs.cases(seed)):
        ends, places = {}, {}
        for k in sorted(range(len(found)), key=lambda k: (found[k][0], k)):
            first, last = found[k]
            place = next(p for p in itertools.count() if ends.get(p, -1) < first)
            ends[place], places[k] = last, place
        assert ex18_runs.places_of(found) == [places[k] for k in range(len(found))]
        assert len(set(places.values())) == ex18_runs.alive_at_once(found)


def test_the_values_of_the_chapter():
    answers = ex18_answers.reference(ex18.Variant())
    assert answers["most_alive"] == 3 and max(answers["places"]) == 2
    assert ex18_runs.shares_ends(ex18.Variant().lifetimes)


def test_another_rule_that_needs_no_more_is_as_good():
    def by_last_end(lifetimes):
        ends, places = [], {}
        for k in sorted(range(len(lifetimes)), key=lambda k: lifetimes[k][0]):
            free = [p for p in range(len(ends)) if ends[p] < lifetimes[k][0]]
            place = max(free, key=lambda p: ends[p]) if free else len(ends)
            ends[place : place + 1] = [lifetimes[k][1]]
            places[k] = place
        return [places[k] for k in range(len(lifetimes))]

    assert check("2", left_edge=by_last_end)["left_edge"].credit == 1


@pytest.mark.parametrize(
    ("buffers", "mistake"),
    [
        ([(0, 0, 1), (0, 2, 1), (1, 1, 2)], None),
        ([(0, 1, 3), (0, 5, 1), (2, 3, 5)], None),
        ([(0, 2, 1), (0, 0, 1), (1, 1, 2)], "rule-succeeds"),
        ([], "wrong-form"),
        ([(0, 0, 0)], "wrong-form"),
        ([(0, 0)], "wrong-form"),
        ([(0, 10**9, 1)], "wrong-form"),
        ([(0, 0, 1.5)], "wrong-form"),
        ([(0, 0, 1)] * 13, "wrong-form"),
        ("abc", "wrong-form"),
    ],
)
def test_other_buffers(buffers, mistake):
    verdict = check("3", uneven=lambda: buffers)["uneven"]
    assert verdict.mistake == mistake and (verdict.credit == 1) == (mistake is None), str(verdict)
