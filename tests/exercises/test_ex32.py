"""Exercise 32: what is right is what was observed, and what is wrong is shown by two calls."""

from __future__ import annotations

import pytest

from staxlab import learn
from staxlab.learn.exercises import ex32, ex32_answers, ex32_runs
from staxlab.learn.variants import variant_for
from staxlab.measure.comparison import observations


def check(part, seed=None, **answers):
    return learn.check(f"ex32.{part}", answers, seed=seed, record=False)


def test_the_chapters_values():
    """Section 12.1: a break at the branch, effects replayed, symbols; Section 12.2: an error, types instead of
    values."""
    answers = ex32_answers.reference(ex32.Variant())
    assert answers["graphs_branch"] == [2, 3, 0] and answers["lines_printed"] == [1, 4, 1]
    assert answers["graphs_number"] == [4, 2, 1] and answers["graphs_shapes"] == [4, 2, 4]
    assert answers["failure_proxies"] == "the value, with a warning"
    assert answers["failure_bytecode"] == answers["failure_abstract"] == "an error"


@pytest.mark.parametrize("seed", [None, *range(40)])
def test_every_mistake_shows_in_every_variant(seed):
    variant = variant_for(ex32.Variant, seed)
    for name in ("branch", "printing", "scale", "shapes"):
        assert getattr(variant, name) in ex32_runs.telling(name)
    truth = ex32_runs.final_counts("branch", variant.branch)
    assert {slip.name for slip in ex32_runs.branch_slips(truth)} >= {"break-forgotten", "abstract-branch"}
    lines = ex32_runs.final_counts("printing", variant.printing, effects=True)
    names = {slip.name for slip in ex32_runs.effect_slips(lines, ex32_runs.sequence("printing", variant.printing))}
    assert names == {"at-every-call", "not-replayed", "never"}
    numbers = ex32_runs.scale_slips(ex32_runs.final_counts("scale", variant.scale))
    assert {"values-everywhere", "no-symbols", "abstract-values"} == {slip.name for slip in numbers}
    assert len(ex32_runs.shape_slips(ex32_runs.final_counts("shapes", variant.shapes))) >= 2


def test_the_statement_shows_the_calls():
    described = dict(ex32.Variant().describe())
    assert described["calls of branch"] == observations().program("branch").sequences[0]


def test_the_programs_of_the_statement_are_those_that_were_observed():
    for name, shown in (("branch", "if x.sum() > 0:"), ("printing", 'print("called")'), ("scale", "return x * k")):
        assert shown in observations().program(name).source and shown in ex32.PART_1
    assert observations().program("guarded_scale").source.replace("def f", "def guarded_scale") in ex32.PART_2


def test_a_key_that_forgets_is_shown_two_calls_that_differ_in_nothing_else():
    verdict = check("2", key_of_proxies=lambda shape, dtype, positive, k: (shape, dtype, type(k), k))["key_of_proxies"]
    assert verdict.mistake == "forgets-data" and verdict.credit == 0
    facts = dict(verdict.facts)
    first, second = facts["first call"], facts["second call"]
    assert first != second and first.replace("True", "False") == second.replace("True", "False")


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda shape, dtype, positive, k: object(), "changes"),
        (lambda shape, dtype, positive, k: 1 // 0, "failed-call"),
        (lambda shape, dtype, positive, k: float("nan"), "changes"),
        (lambda shape, dtype, positive, k: (shape, dtype, positive, str(k)), None),
    ],
)
def test_any_result_that_tells_the_calls_apart_is_a_key(answer, mistake):
    verdict = check("2", key_of_proxies=answer)["key_of_proxies"]
    assert verdict.mistake == mistake and (verdict.credit == 1) == (mistake is None)


def test_a_result_that_cannot_be_compared_is_one_clear_verdict():
    class Stubborn:
        def __eq__(self, other):
            raise RuntimeError("no")

    verdict = check("2", key_of_abstract_values=lambda shape, dtype, positive, k: Stubborn())["key_of_abstract_values"]
    assert verdict.mistake == "wrong-form" and "RuntimeError" in str(verdict.facts)


@pytest.mark.parametrize("answer", [lambda sizes: True, lambda sizes: 1.0, lambda sizes: None])
def test_a_number_of_graphs_is_whole(answer):
    assert check("2", graphs_of_bytecode=answer)["graphs_of_bytecode"].mistake == "wrong-form"


def test_the_rule_for_sizes_holds_where_it_was_observed():
    assert len(ex32_runs.vectors()) >= 10
    assert {truth for _, truth in ex32_runs.vectors()} == {1, 2, 3}
    for sizes, truth in ex32_runs.vectors():
        assert ex32_answers.graphs_of_bytecode(list(sizes)) == truth, sizes
