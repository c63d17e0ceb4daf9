"""Exercise 47: the bound in numbers, schedules that are played, and the steps of the proof."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from staxlab import learn
from staxlab.learn.exercises import ex47, ex47_answers, ex47_runs
from staxlab.learn.variants import variant_for
from staxlab.measure.pebbles import replay


def check(part, seed=None, **answers):
    return learn.check(f"ex47.{part}", answers, seed=seed, record=False)


def test_the_chapters_values():
    answers = ex47_answers.reference(ex47.Variant())
    assert answers["bound_47"] == pytest.approx(4096**3 / 768 - 48 * 1024)
    assert answers["moved_47"] == 2**30 + 2**24
    assert answers["gap_47"] == pytest.approx([1.5, 2 / math.sqrt(3), 4 * math.sqrt(3)])
    assert math.prod(answers["gap_47"]) == pytest.approx(12)


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_the_three_factors_explain_the_reads(seed):
    variant = variant_for(ex47.Variant, seed)
    traffic = ex47_runs.traffic_of(variant)
    leading = traffic.bound + variant.capacity
    assert math.prod(ex47_runs.gap_factors(variant)) == pytest.approx(traffic.read / leading)
    assert ex47_runs.bound_slips(variant)


@pytest.mark.parametrize("game", ex47_runs.GAMES)
def test_the_reference_plays_every_game(game):
    m, n, k, capacity = game
    run = replay(m, n, k, capacity, ex47_answers.schedule(m, n, k, capacity))
    assert run.transfers <= ex47_runs.allowed_transfers(m, n, k, capacity) and run.keeps_bound and run.proof_holds


def test_a_schedule_that_never_ends_is_stopped():
    def endless(m, n, k, S):
        while True:
            yield ("read", ("a", 0, 0))

    verdict = check("1", schedule=endless)["schedule"]
    assert verdict.mistake in ("too-many-moves", "timed-out") and verdict.credit == 0


def test_another_order_of_the_same_tiles_is_as_good():
    def by_columns(m, n, k, S):
        T = math.isqrt(S + 1) - 1
        for j0 in range(0, n, T):
            for i0 in range(0, m, T):
                rows, columns = range(i0, min(i0 + T, m)), range(j0, min(j0 + T, n))
                for l in reversed(range(k)):
                    words = [("b", l, j) for j in columns] + [("a", i, l) for i in rows]
                    yield from [("read", word) for word in words]
                    yield from [("multiply", i, j, l) for j in columns for i in rows]
                    yield from [("drop", word) for word in words]
                for word in [("c", i, j) for i in rows for j in columns]:
                    yield from [("write", word), ("drop", word)]

    assert check("1", schedule=by_columns)["schedule"].credit == 1


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda m, n, k, S: [("read", ("z", 0, 0))], "against-the-rules"),
        (lambda m, n, k, S: [("read",)], "against-the-rules"),
        (lambda m, n, k, S: [3], "no-move"),
        (lambda m, n, k, S: [], "unfinished"),
        (lambda m, n, k, S: 1 // 0, "failed-call"),
    ],
)
def test_what_is_no_schedule(answer, mistake):
    verdict = check("1", schedule=answer)["schedule"]
    assert verdict.mistake == mistake and verdict.credit == 0


def test_a_shorter_chain_or_an_inequality_is_not_the_proof():
    steps = ex47_answers.reference(ex47.Variant())["segments_to_transfers"]
    bound = check("2", segments_to_transfers=[steps[0], "<= 3*(Q + S)*2*sqrt(3)*sqrt(S)", "= " + steps[2][2:]])
    assert bound["segments_to_transfers"].credit < 1
    values = check("2", products_each="m*n*k/P", least_each="(m*n*k/P)/(2*sqrt(3*S)) - S")
    assert values["products_each"].credit == Fraction(1, 2) and values["least_each"].credit == 1
