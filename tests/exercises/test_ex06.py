"""Exercise 6: rule sets that are run, exchanges and measures, and the feedback on particular answers."""

from __future__ import annotations

import pytest
import torch

from staxlab import learn
from staxlab.learn.exercises import ex06, ex06_answers, ex06_runs
from staxlab.learn.variants import variant_for
from staxlab.transform import Rule, Var, apply

x, y = Var("x"), Var("y")


def check(part, seed=None, **answers):
    return learn.check(f"ex06.{part}", answers, seed=seed, record=False)


@pytest.mark.parametrize("law", ex06_runs.GIVEN)
def test_every_given_rule_ends_alone_and_goes_round_with_its_reverse(law):
    rules, program = ex06_answers.ADDED[law]()
    sample = torch.linspace(-1, 1, 6)
    course = ex06_runs.run_rules([ex06_runs.GIVEN[law]], program, sample)
    assert course.ended
    course = ex06_runs.run_rules([ex06_runs.GIVEN[law], *rules], program, sample)
    assert not course.ended and course.returned_to is not None and law in course.rules
    assert course.measures[course.returned_to] == course.measures[-1]


@pytest.mark.parametrize("law", ex06_runs.GIVEN)
def test_every_variant_can_be_drawn_and_answered(law):
    seed = next(seed for seed in range(200) if variant_for(ex06.Variant, seed).given == law)
    assert check(1, seed=seed, added=ex06_answers.ADDED[law])["added"].credit == 1


def test_the_course_is_shown():
    facts = dict(check(1, added=ex06_answers.back_to_product)["added"].facts)
    assert facts["the same graph"] == "after round 0 and after round 2"
    assert facts["the package's measure"].startswith("(0, 5, 0), (0, 5, 0)")


def longer_way_round():
    rules = [Rule("one", x + x, x * 4 / 2), Rule("two", x * 4 / 2, x * 2)]
    return rules, lambda a: (a.exp() * 2).sum()


def ever_larger():
    return [Rule("grow", x + x, x * 2 * 1)], lambda a: (a.exp() * 2).sum()


@pytest.mark.parametrize(
    ("added", "mistake"),
    [
        (longer_way_round, None),
        (ever_larger, None),
        (lambda: (Rule("back", x + x, x * 2), lambda a: (a.exp() * 2).sum()), None),
        (lambda: ([], lambda a: (a.exp() * 2).sum()), "terminates"),
        (lambda: ([Rule("back", x + x, x * 2)], lambda a: (a.exp() * 3).sum()), "no-rule-applies"),
        (lambda: ([Rule("back", x + x, x * 3)], lambda a: (a.exp() * 2).sum()), "changes-values"),
        (lambda: ([Rule("r", apply("relu", x), apply("relu", apply("relu", x)))], lambda a: a.exp().relu().sum()),
         "given-rule-unused"),
        (lambda: ([Rule("zero", x + x, 0)], lambda a: (a.exp() * 2).sum()), "rules-fail"),
        (lambda: (["x + x -> x * 2"], lambda a: a), "wrong-form"),
        (lambda: 1 / 0, "failed-call"),
    ],
)  # fmt: skip
def test_rule_sets(added, mistake):
    verdict = check(1, added=added)["added"]
    assert verdict.mistake == mistake, verdict


def test_truth_comes_from_the_driver():
    assert ex06_runs.broken_condition() == ex06_runs.FALLS
    assert ex06_runs.measurable_without_condition() == ex06_runs.NO


def by_descending_position(a, b):
    return a[0] == b[0] == "value" and a[1] < b[1]


def descending_measure(nodes):
    pairs = [pair for name, pair in nodes if name in ("add", "mul")]
    wrong = [pair for name, pair in nodes if name == "add" and by_descending_position(*pair)]
    return len(nodes), sum(pair[0][0] == "number" for pair in pairs), len(wrong)


@pytest.mark.parametrize(
    ("swap", "mistake"),
    [
        (by_descending_position, None),
        (lambda a, b: (a[0] == "number", a) > (b[0] == "number", b) and a[0] == "value", None),
        (lambda a, b: (a[0] == "number") > (b[0] == "number"), "not-canonical"),
        (lambda a, b: b[0] == "number" or (a[0] == b[0] == "value" and a[1] > b[1]), "fights-normalization"),
        (lambda a, b: a != b, "swaps-back"),
        (lambda a, b: 1, "wrong-form"),
        (lambda a, b: a[2] > b[2], "failed-call"),
    ],
)
def test_exchanges(swap, mistake):
    verdict = check(2, swap=swap)["swap"]
    assert verdict.mistake == mistake, verdict


def test_a_measure_is_tried_with_the_exchange_it_is_for():
    alone = check(2, measure=descending_measure)["measure"]
    together = check(2, swap=by_descending_position, measure=descending_measure)["measure"]
    assert alone.mistake == "not-lowered-by-exchange" and together.credit == 1
    assert "your exchange" in dict(together.facts)["tried on"]
    assert check(2, swap=lambda a, b: True, measure=ex06_answers.measure)["measure"].credit == 1


@pytest.mark.parametrize(
    ("measure", "mistake"),
    [
        (lambda nodes: (*reversed(ex06_answers.measure(nodes)),), "not-lowered-by-fold"),
        (lambda nodes: 100 * ex06_answers.measure(nodes)[0] + ex06_answers.measure(nodes)[1], None),
        (lambda nodes: list(ex06_answers.measure(nodes)), None),
        (lambda nodes: 7, "not-lowered-by-exchange"),
        (lambda nodes: (0, -1), "not-well-founded"),
        (lambda nodes: None, "wrong-form"),
        (lambda nodes: (), "wrong-form"),
        (lambda nodes: nodes[99], "failed-call"),
    ],
)
def test_measures(measure, mistake):
    verdict = check(2, measure=measure)["measure"]
    assert verdict.mistake == mistake, verdict


def test_the_graph_before_and_after_is_shown():
    facts = dict(check(2, measure=lambda nodes: len(nodes))["measure"].facts)
    assert facts["before"] != facts["after"] and facts["measure"] == facts["measure then"]
    assert "add (('value', 1), ('value', 0))" in facts["before"]
