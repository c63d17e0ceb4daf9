"""Exercise 31: greedy schedules run, and the students' own lists scheduled."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab import learn
from staxlab.learn.exercises import ex31, ex31_answers, ex31_runs
from staxlab.learn.variants import variant_for
from staxlab.measure.list_scheduling import improved_bound, list_schedule


def check(part, seed=None, **answers):
    return learn.check(f"ex31.{part}", answers, seed=seed, record=False)


def test_the_chapters_values():
    answers = ex31_answers.reference(ex31.Variant())
    schedule = list_schedule((2, 5, 3, 4, 1, 6), 3)
    assert answers["makespan_31"] == schedule.makespan == 10 and answers["improved_31"] == "11"
    assert answers["greedy_ratio"] == "5/3" and answers["own_list"] == [2] * 6 + [6]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 5))
def test_the_reference_finds_a_task_that_ends_last(tasks, workers):
    task, start = ex31_answers.last_task(tasks, workers)
    schedule = list_schedule(tasks, workers)
    assert schedule.assignments[task].finish == schedule.makespan and schedule.assignments[task].start == start
    assert workers * start <= sum(tasks) - tasks[task], "the step of the proof"


@given(st.integers(1, 500), st.integers(1, 40), st.integers(1, 9))
def test_what_is_run_attains_the_steps_of_the_proof(others, last, workers):
    start, end = ex31_runs.last_of(others + last, last, workers)
    assert start == Fraction(others, workers) and end == start + last
    tasks = ex31_runs.tasks_with(others + last, last)
    assert sum(tasks) == others + last and max(tasks) == last
    assert improved_bound(tasks, workers) == Fraction(others + last, workers) + (1 - Fraction(1, workers)) * last


@pytest.mark.parametrize("seed", [None, *range(25)])
def test_slips_lead_elsewhere_and_the_own_list_exists(seed):
    variant = variant_for(ex31.Variant, seed)
    schedule = list_schedule(variant.tasks, variant.workers)
    assert schedule.makespan not in {slip.answer for slip in ex31_runs.makespan_slips(variant)}
    assert schedule.improved_bound not in {slip.answer for slip in ex31_runs.bound_slips(variant)}
    reference = ex31_answers.reference(variant)["own_list"]
    assert ex31_runs.examined(reference, variant.workers, variant.longest) is None


@pytest.mark.parametrize(
    ("tasks", "mistake"),
    [
        ([], None),
        ([2, 2, 2, 2, 2, 2, 6], "right"),
        ([4, 4, 4, 6], "right"),  # other lists than ours attain it, too
        (["4", "4", "4", 6], "right"),
        ([3, 1, 4, 4, 6], "not-attained"),
        ([4, 4, 6, 4], "order"),
        ([4, 4, 4, 5], "longest"),
        ([0, 4, 4, 4, 6], "too-short"),
        ([6], "outweighs"),
        ([6, 6, 6, 6], "too-many"),
        ([1] * 12 + [6], "right"),
        ([5, 5, 2, 6], "not-attained"),
        ([4, 4, 3, 1, 6], "right"),
    ],
)
def test_own_lists_are_scheduled(tasks, mistake):
    verdict = check("3", own_list=tasks)["own_list"]
    if mistake == "right":
        assert verdict.credit == 1 and ("ends at", "10") in verdict.facts
    else:
        assert verdict.credit == 0 and verdict.mistake == mistake


def test_any_list_that_attains_the_bound_is_right():
    def other(P):
        return [P - 1] * P + [P]

    def generated(P):
        yield from [1] * (P * (P - 1))
        yield P

    for answer in (other, generated):
        assert check("3", tight=answer)["tight"].credit == 1


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda P: [1, 1, 2] if P == 2 else [1] * P, "not-attained"),
        (lambda P: [0] * P, "too-short"),
        (lambda P: [], "no-tasks"),
        (lambda P: [1.0] * (P * (P - 1)) + [P], "wrong-form"),
        (lambda P: iter(lambda: 1, 2), "wrong-form"),
        (lambda P: 1 // 0, "failed-call"),
    ],
)
def test_what_is_no_tight_list(answer, mistake):
    verdict = check("3", tight=answer)["tight"]
    assert verdict.mistake == mistake and verdict.credit == 0


def test_the_feedback_shows_what_the_workers_do():
    verdict = check("3", tight=lambda P: [1, 1, 2])["tight"]
    facts = dict(verdict.facts)
    assert facts["P"] == "3" and facts["workers do"] == "1; 1; 2" and facts["ends at"] == "2"
    assert facts["but"] == "it is right for 2 workers"


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda c, P: (len(c), 0), None),
        (lambda c, P: (0.0, 0), "wrong-form"),
        (lambda c, P: "01", "wrong-form"),
        (lambda c, P: c[100], "failed-call"),
        (lambda c, P: c.clear() or (0, 0), None),
    ],
)
def test_what_is_no_last_task(answer, mistake):
    verdict = check("2", last_task=answer)["last_task"]
    assert verdict.credit == 0 and verdict.mistake == mistake
