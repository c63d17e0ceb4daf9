"""Exercise 26: the model by formula, by simulation and by trying, and the feedback on particular answers."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab import learn
from staxlab.learn.exercises import ex26, ex26_answers, ex26_runs
from staxlab.learn.variants import variant_for
from staxlab.measure import launch_timeline as model


def check(part, seed=None, **answers):
    return learn.check(f"ex26.{part}", answers, seed=seed, record=False)


@given(st.lists(st.integers(0, 30), max_size=10), st.integers(0, 9), st.integers(0, 30))
def test_the_reference_is_the_packages_simulation(times, launch, graph):
    assert ex26_answers.execution_times(times, launch, graph) == ex26_runs.truth(tuple(times), launch, graph)


@pytest.mark.parametrize("seed", [None, *range(30)])
def test_variants_have_short_kernels_and_a_clear_break_even(seed):
    variant = variant_for(ex26.Variant, seed)
    assert variant.t < variant.launch
    even = ex26_runs.break_even(variant.t, variant.launch, variant.graph)
    gains = [model.speedup(Fraction(n), variant.t, variant.launch, variant.graph) for n in (even - 1, even)]
    assert gains[0] < 1 < gains[1] and even > 2


def test_the_chapters_values():
    answers = ex26_answers.reference(ex26.Variant())
    assert (answers["break_even"], answers["own_gain"], answers["crossing"]) == (4, "120/58", "48/5")


@pytest.mark.parametrize(
    ("field", "part", "answer"),
    [
        ("launched", "1", "n*max(L, t)"),
        ("gain", "1", lambda n, t, L, G: Fraction(max(n * L, n * t), G + n * t)),
        ("gain", "1", "max(L, t)/(G/n + t)"),
        ("bound", "2", "max(L, t)/t"),
        ("bound_for_n", "2", "max(n*L, G)/G"),
        ("own_gain", "3", "60/29"),
        ("crossing", "3", "9.6"),
    ],
)
def test_other_ways_to_write_it_are_right(field, part, answer):
    assert check(part, **{field: answer})[field].credit == 1


@pytest.mark.parametrize("name", ex26_runs.MISTAKES)
@pytest.mark.parametrize("seed", [None, 3])
def test_every_mistake_shows_on_some_region_and_is_named(name, seed):
    function, _ = ex26_runs.MISTAKES[name]
    verdict = check("4", seed, execution_times=lambda times, L, G: function(times, L, G))["execution_times"]
    assert verdict.mistake == name and "yours" in dict(verdict.facts)


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda times, L, G: None, "wrong-form"),
        (lambda times, L, G: [1], "wrong-form"),
        (lambda times, L, G: [True, 2], "wrong-form"),
        (lambda times, L, G: times[0], "failed-call"),
        (lambda times, L, G: [0, 0], None),
    ],
)
def test_what_is_no_pair_of_times(answer, mistake):
    verdict = check("4", execution_times=answer)["execution_times"]
    assert verdict.mistake == mistake and verdict.credit == 0
