"""Exercise 51: orders are run by the simulator, and the broken rule reaches the student."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from staxlab import learn
from staxlab.autodiff.checkpoint import beta, binomial, minimal_slots, uniform_segments
from staxlab.autodiff.reversal import Advance, Free, Reverse, Rule, Store, simulate
from staxlab.learn.answers import Malformed
from staxlab.learn.exercises import ex51, ex51_answers, ex51_runs
from staxlab.learn.feedback import Status
from staxlab.learn.variants import variant_for


def check(part, seed=None, **answers):
    return learn.check(f"ex51.{part}", answers, seed=seed, record=False)


def test_the_chapters_numbers():
    variant = ex51.Variant()
    assert beta(variant.sigma, variant.tau) == 20
    assert [minimal_slots(variant.long, t) for t in (2, 3, 4)] == [44, 17, 10]
    assert ex51_runs.fewest_uniform_slots(1000) == 63


@pytest.mark.parametrize("length", [1, 2, 7, 100, 399, 1000])
def test_the_best_segments_are_those_over_all_numbers_of_segments(length):
    candidates = range(1, length + 1) if length < 200 else range(10, 60)
    fewest = min(uniform_segments(length, c).peak_slots for c in candidates)
    assert ex51_runs.fewest_uniform_slots(length) == fewest


def test_the_gain_in_the_long_run_is_the_root_of_two():
    assert float(ex51_runs.gain_in_the_long_run()) == pytest.approx(math.sqrt(2), rel=1e-9)
    assert check("3", gain=math.sqrt(2))["gain"].credit == check("3", gain="2**(1/2)")["gain"].credit == 1
    assert check("3", gain=Fraction(63, 44))["gain"].mistake == "this-chain-only"


@pytest.mark.parametrize("seed", range(30))
def test_own_chains_need_their_slots_and_repetitions(seed):
    variant = variant_for(ex51.Variant, seed)
    l, s, t = variant.l, variant.s, variant.t
    assert beta(s, t - 1) < l <= beta(s, t) and l > beta(s - 1, t) and l > s and l > t + 1


WRITTEN = """
advance 0 2
store 2
Advance 2 -> 3
reverse 4
reverse 3
free 2
advance 0, 1
reverse 2
reverse 1
"""


def test_orders_may_be_lists_text_or_moves():
    moves = (
        Advance(0, 2), Store(2), Advance(2, 3), Reverse(4), Reverse(3), Free(2), Advance(0, 1), Reverse(2), Reverse(1),
    )  # fmt: skip
    assert (
        ex51_runs.moves_of(WRITTEN)
        == ex51_runs.moves_of(ex51_runs.written(moves))
        == ex51_runs.moves_of(moves)
        == moves
    )
    assert simulate(moves, 4, 2, 2).complete


@pytest.mark.parametrize(
    "entry", [("advance", 1), ("advance", 0, "2"), ("jump", 1), "advance 0", (), 7, ("store", True), ("store", 1.5)]
)
def test_what_is_no_move_is_malformed(entry):
    with pytest.raises(Malformed, match="is no move"):
        ex51_runs.moves_of([entry])
    feedback = check("1", order=[("advance", 0, 1), entry])
    assert feedback["order"].status is Status.MALFORMED and "Example" in feedback["order"].message


def test_every_rule_that_an_answer_can_break_has_words():
    assert set(ex51_runs.SAID) == set(Rule) - {Rule.KNOWN_MOVE}


def test_a_broken_rule_is_shown_with_the_move_and_the_diagram():
    verdict = check("1", order=[("advance", 0, 3), ("store", 3), ("advance", 3, 5), ("reverse", 6), ("reverse", 5)])[
        "order"
    ]
    facts = dict(verdict.facts)
    assert verdict.mistake == "state-present" and facts["move 5"] == "reverse 5"
    assert "z_4 is neither" in facts["reason"] and "z_3" in facts["up to there"] and "|" in facts["up to there"]


def test_another_complete_order_is_right():
    """Not the package's: the second checkpoint stands elsewhere."""
    order = [
        ("advance", 0, 2), ("store", 2), ("advance", 2, 4), ("store", 4), ("advance", 4, 5), ("reverse", 6),
        ("reverse", 5), ("free", 4), ("advance", 2, 3), ("reverse", 4), ("reverse", 3), ("free", 2), ("advance", 0, 1),
        ("reverse", 2), ("reverse", 1),
    ]  # fmt: skip
    assert check("1", order=order)["order"].credit == 1
    assert tuple(ex51_runs.moves_of(order)) != binomial(6, 3, 2).moves


def test_the_smallest_chain_that_fails_is_shown():
    verdict = check("2", reversal_order=ex51_answers._keeps_everything)["reversal_order"]
    assert dict(verdict.facts)["call"] == "_keeps_everything(2, 1, 1)" and verdict.mistake == "free-slot"


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda l, s, t: binomial(l, s, t), "wrong-form"),
        (lambda l, s, t: binomial(l, s, t).moves, None),
        (lambda l, s, t: "\n".join(map(str, binomial(l, s, t).moves)), None),
        (lambda l, s, t: [], "complete"),
        (lambda l, s, t: 1 / 0, "failed-call"),
    ],
)
def test_functions_that_return_orders(answer, mistake):
    verdict = check("2", reversal_order=answer)["reversal_order"]
    assert verdict.mistake == mistake and (verdict.credit == 1) == (mistake is None)
