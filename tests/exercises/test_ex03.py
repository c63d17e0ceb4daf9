"""Exercise 3: its truth against the package's own keys and guards, and the feedback on particular answers."""

from __future__ import annotations

import pytest
import torch

from staxlab import learn
from staxlab.learn.dispatching import Compiled, key_of, same_result
from staxlab.learn.exercises import ex03, ex03_runs
from staxlab.learn.variants import variant_for
from staxlab.specialize.guards import failing_guards, guards

X = torch.ones(2, 3)


def check(part, seed=None, **answers):
    return learn.check(f"ex03.{part}", answers, seed=seed, record=False)


@pytest.mark.parametrize("form", ex03_runs.FORMS)
def test_what_happens_without_a_guard_on_k(form):
    assert ex03_runs.consequence(form, 1, by_guards=True) == "a wrong value"
    assert ex03_runs.consequence(form, 1, by_guards=False) == "a recompilation without a reason"


@pytest.mark.parametrize("form", ex03_runs.FORMS)
def test_guards_made_from_the_key_notice_every_difference(form):
    """Corollary 2.1, on the calls for which guards kept apart do not."""
    function = ex03_runs.function_of(form, 2)
    one, other = key_of(function, X, 2), key_of(function, X, 5)
    assert [guard.path for guard in failing_guards(one, other)] == ["k"]
    assert all(guard.holds for guard in guards(one, one))
    assert not same_result(Compiled.of(function, X, 2)(X, 5), function(X, 5))


def test_which_steps_need_projections():
    for seed in (None, 1, 2):
        refuted = [number for number in ex03_runs.STEPS if ex03_runs.refutation_of(number, seed) is not None]
        assert refuted == [3, 4]
    assert ex03_runs.refutation_of(3, None) == "key (0,), version's key (1,), guards hold: (True,)"


def test_on_real_keys_the_conclusion_holds():
    found = ex03_runs.real_components()
    assert len(found) == 36
    assert all(ex03_runs.conclusion(list(components)) for components in found)
    differing = [components for components in found if any(a != b for a, b, _ in components)]
    assert len(differing) == 30, "equal keys for equal calls only"


def test_the_conclusion_is_the_last_two_steps_together():
    for components in ([(0, 1, True)], [(0, 0, False)], [(0, 1, False)], [(0, 0, True), (1, 2, False)]):
        both = ex03_runs.STEPS[3](components) and ex03_runs.STEPS[4](components)
        assert ex03_runs.conclusion(components) == both


def key(x, k):
    return tuple(x.shape), k


def shape_forgotten():
    return key, [lambda x, k: k == 2], (torch.ones(2, 3), 2), (torch.ones(3, 4), 2)


def only_columns_guarded():
    return key, [lambda x, k: x.shape[1] == 3, lambda x, k: k > 0], (torch.ones(2, 3), 2), (torch.ones(2, 3), 9)


@pytest.mark.parametrize(
    ("separate", "mistake"),
    [
        (shape_forgotten, None),
        (only_columns_guarded, None),
        (lambda: (lambda x, k: (x.dtype, *x.shape, str(k)), [lambda x, k: len(x) == 2], (X, 1), (X, 3)), None),
        (lambda: (key, [lambda x, k: len(x) == 2], (X, 1), (X, 1)), "keys-equal"),
        (lambda: (key, [lambda x, k: 1 / 0], (X, 1), (X, 2)), "failed-call"),
        (lambda: (key, [lambda x: True], (X, 1), (X, 2)), "failed-call"),
        (lambda: (lambda x, k: (x, k), [lambda x, k: len(x) == 2], (X, 1), (X, 2)), "key-not-hashable"),
        (lambda: (key, [lambda x, k: len(x) == 2], (X, 1), (X, 2.0)), "wrong-form"),
        (lambda: (key, [lambda x, k: len(x) == 2], (X.double(), 1), (X, 2)), "wrong-form"),
        (lambda: (key, lambda x, k: len(x) == 2, (X, 1), (X, 2)), "wrong-form"),
        (lambda: 1 / 0, "failed-call"),
    ],
)
def test_examples(separate, mistake):
    verdict = check(1, separate=separate)["separate"]
    assert verdict.mistake == mistake, verdict


@pytest.mark.parametrize("form", ex03_runs.FORMS)
def test_examples_for_every_function(form):
    seed = next(seed for seed in range(100) if variant_for(ex03.Variant, seed).form == form)
    for separate in (shape_forgotten, only_columns_guarded):
        assert check(1, seed=seed, separate=separate)["separate"].credit == 1


def test_an_unhashable_key_names_the_trouble():
    verdict = check(1, separate=lambda: (lambda x, k: {"k": k}, [lambda x, k: len(x) == 2], (X, 1), (X, 2)))["separate"]
    assert verdict.mistake == "key-not-hashable" and "unhashable" in dict(verdict.facts)["reason"]


def test_a_guard_that_raises_on_other_shapes_turns_them_away():
    def picky():
        return key, [lambda x, k: float(x[1, 2]) == 1.0], (X, 1), (X, 2)

    assert check(1, separate=picky)["separate"].credit == 1


def test_the_wrong_value_is_shown():
    facts = dict(check(1, separate=shape_forgotten)["separate"].facts)
    assert facts["version returned"] != facts["f returns"] and "3 x 4" in facts["second"]

    def harmless():
        return lambda x, k: (key(x, k), float(x[0, 0])), [lambda x, k: len(x) == 2], (X, 1), (2 * X, 1)

    facts = dict(check(1, separate=harmless)["separate"].facts)
    assert facts["version returned"] == facts["f returns"]


def test_an_unsound_key_is_shown_two_calls():
    verdict = check(1, separate=lambda: (lambda x, k: k, [lambda x, k: len(x) == 2], (X, 1), (X, 2)))["separate"]
    assert verdict.mistake == "unsound-key" and verdict.credit == ex03_runs.HALF
    assert "one" in dict(verdict.facts) and "other" in dict(verdict.facts)


@pytest.mark.parametrize(
    ("exactly", "mistake"),
    [
        (lambda key, version, held: [a == b for a, b in zip(key, version, strict=True)] == list(held), None),
        (lambda key, version, held: tuple(a == b for a, b in zip(key, version, strict=True)) == held, None),
        (lambda key, version, held: True, "false-alarm"),
        (lambda key, version, held: False, "too-strict"),
        (lambda key, version, held: key == version, "too-strict"),
        (lambda key, version, held: sum(held) == sum(a == b for a, b in zip(key, version, strict=True)), "false-alarm"),
        (lambda key, version, held: None, "wrong-form"),
        (lambda key, version, held: 1 / 0, "failed-call"),
    ],
)
def test_predicates(exactly, mistake):
    verdict = check(2, exactly=exactly)["exactly"]
    assert verdict.mistake == mistake, verdict


def test_a_step_that_needs_projections_is_refuted():
    verdict = check(2, step_3=ex03_runs.FREE)["step_3"]
    assert verdict.credit == 0 and "guards hold: (True,)" in dict(verdict.facts)["fails for"]
