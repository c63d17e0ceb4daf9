"""Exercise 27: the loop on the simulated device, repairs that are right, and the feedback on particular answers."""

from __future__ import annotations

import pytest
import torch

from staxlab import learn
from staxlab.learn.exercises import ex27, ex27_answers, ex27_runs
from staxlab.learn.variants import variant_for


def check(part, seed=None, **answers):
    return learn.check(f"ex27.{part}", answers, seed=seed, record=False)


def test_the_chapters_loop_as_it_is_run():
    assert ex27_runs.loop_without_copies(ex27.Variant()) == ([2, 10, 10, 10, 10], 2)
    assert ex27_runs.left_open() == ex27_runs.RESULTS


@pytest.mark.parametrize("seed", [None, *range(10)])
def test_no_two_lists_one_may_expect_are_the_same(seed):
    variant = variant_for(ex27.Variant, seed)
    lists = [ex27_runs.loop_without_copies(variant)[0], *(list(slip.answer) for slip in ex27_runs.slips_of(variant))]
    assert len({tuple(entries) for entries in lists}) == 4


def test_the_wrapper_is_the_sections():
    f = ex27_runs.Recorded(lambda x: x + 1)
    x = torch.zeros(2)
    first, second, third = f(x), f(x), f(x)
    assert second.data_ptr() == third.data_ptr() != first.data_ptr() and (f.direct, f.replays) == (1, 2)
    assert f(torch.ones(2)).tolist() == [2.0, 2.0] and f.direct == 2


def with_lists(f, x, steps):
    kept = []
    for _ in range(steps):
        kept.append(f(x).tolist())
        x += 1
    return kept


def into_rows(f, x, steps):
    kept = torch.empty(steps, 2)
    for row in kept:
        row.copy_(f(x))
        x.add_(1)
    return list(kept)


def clone_before(f, x, steps):
    kept = []
    for step in range(steps):
        y = f(x)
        kept.append(torch.clone(y))
        if step + 1 < steps:
            x.add_(1)
    return tuple(kept)


@pytest.mark.parametrize("answer", [with_lists, into_rows, clone_before])
def test_other_repairs_are_right(answer):
    assert check("2", collect=answer)["collect"].credit == 1


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda f, x, steps: [], "wrong-number"),
        (lambda f, x, steps: ["a"] * steps, "wrong-form"),
        (lambda f, x, steps: f(None), "failed-call"),
        (lambda f, x, steps: [f(x).clone() * 0] * steps, None),
    ],
)
def test_what_is_no_list_of_results(answer, mistake):
    verdict = check("2", collect=answer)["collect"]
    assert verdict.mistake == mistake and verdict.credit == 0


@pytest.mark.parametrize("name", ex27_runs.MISTAKES)
def test_every_mistake_of_the_guard_is_named(name):
    function, _ = ex27_runs.MISTAKES[name]
    verdict = check("3", may_replay=lambda recorded, inputs: function(recorded, inputs))["may_replay"]
    assert verdict.mistake == name and "the call" in dict(verdict.facts)


def test_the_package_decides_as_the_reference_does():
    for what, recorded, inputs in ex27_runs.calls():
        expected = ex27_answers.may_replay(ex27_runs.described(recorded), ex27_runs.described(inputs))
        assert ex27_runs.is_replayed(recorded, inputs) == expected, what
