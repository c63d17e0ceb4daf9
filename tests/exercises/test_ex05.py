"""Exercise 5: its truth against IEEE 754 by hand, and the feedback on particular answers."""

from __future__ import annotations

import math

import pytest

from staxlab import learn
from staxlab.learn.exercises import ex05, ex05_runs
from staxlab.learn.exercises.ex05_runs import LETTERS
from staxlab.learn.variants import variant_for


def check(part, seed=None, **answers):
    return learn.check(f"ex05.{part}", answers, seed=seed, record=False)


BY_HAND = dict(zip(LETTERS, ("exact", "sign of zero", "exact", "NaN and sign of zero", "NaN", "exact", "wrong"),
                   strict=True))  # fmt: skip


def test_the_chapters_seven_by_hand():
    feedback = check(1, **{f"verdict_{letter}": verdict for letter, verdict in BY_HAND.items()})
    assert all(feedback[f"verdict_{letter}"].credit == 1 for letter in LETTERS), str(feedback)
    found = {"a": "none", "b": "-0.0", "c": "none", "d": math.inf, "e": "nan", "f": "none", "g": 5.0}
    while not ex05_runs.differs("x / 3 -> x * (1 / 3)", found["g"]):
        found["g"] += 1
    feedback = check(1, **{f"against_{letter}": value for letter, value in found.items()})
    assert all(feedback[f"against_{letter}"].credit == 1 for letter in LETTERS), str(feedback)


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        ("inf", None), ("-inf", None), ("nan", None), (-1.0, None), ("-0.0", None), ("-0x1p-149", None),
        (1.0, "no-counterexample"), (0.0, "no-counterexample"), (1e-46, "no-counterexample"),
        ("none", "counterexample-missed"),
    ],
)  # fmt: skip
def test_counterexamples_to_times_zero_are_run(answer, mistake):
    verdict = check(1, against_d=answer)["against_d"]
    assert verdict.mistake == mistake and (verdict.credit == 1) == (mistake is None), verdict


def test_what_the_sides_gave_is_shown():
    facts = dict(check(1, against_d=-1.0)["against_d"].facts)
    assert facts == {"x": "-1.0", "before": "-0.0", "after": "0.0"}
    facts = dict(check(1, against_g=3.0)["against_g"].facts)
    assert facts["before"] == facts["after"] == "1.0"


@pytest.mark.parametrize("answer", ["zero", [1.0], True, 1j, object()])
def test_what_is_no_number_is_not_judged(answer):
    verdict = check(1, against_a=answer)["against_a"]
    assert verdict.status.name == "MALFORMED" and "against_a" in verdict.message


def test_a_number_is_rounded_to_float32_first():
    assert check(1, against_b=-1e-60)["against_b"].credit == 1  # becomes -0.0
    assert check(1, against_e=1e60)["against_e"].credit == 1  # becomes infinity


def test_every_student_has_exact_and_wrong_ones():
    for seed in range(12):
        variant = variant_for(ex05.Variant, seed)
        verdicts = [ex05_runs.OPTIONS[ex05_runs.decided(law).verdict] for law in variant.laws]
        assert len(set(variant.laws)) == 7 and set(verdicts) == set(ex05_runs.OPTIONS.values())
        assert verdicts.count("exact") == verdicts.count("wrong") == 2


def test_the_rows_of_the_pool_hold_what_they_say():
    wanted = ("exact", "sign of zero", "NaN", "NaN and sign of zero", "wrong")
    for (_, laws), verdict in zip(ex05_runs.POOL, wanted, strict=True):
        assert {ex05_runs.OPTIONS[ex05_runs.decided(law).verdict] for law in laws} == {verdict}


@pytest.mark.parametrize(
    ("fails", "mistake"),
    [
        (lambda x: math.isnan(x) or math.isinf(x) or math.copysign(1, x) == -1, None),
        (lambda x: not (0.0 <= x < math.inf) or str(x) == "-0.0", None),
        (lambda x: not (0.0 <= x < math.inf), "unnoticed-difference"),  # -0.0 forgotten
        (lambda x: x < 0 or not math.isfinite(x), "unnoticed-difference"),
        (lambda x: not math.isfinite(x) or x <= 0, "false-alarm"),  # +0.0 taken in
        (lambda x: 1 / x, "failed-call"),
        (lambda x: 0, "wrong-form"),
    ],
)
def test_where_times_zero_fails(fails, mistake):
    verdict = check(2, fails=fails)["fails"]
    assert verdict.mistake == mistake, verdict


def test_a_forgotten_zero_is_the_counterexample():
    verdict = check(2, fails=lambda x: x < 0 or not math.isfinite(x))["fails"]
    assert dict(verdict.facts) == {"for": "x = -0.0", "before": "-0.0", "after": "0.0"}


@pytest.mark.parametrize(
    ("exact_divisor", "mistake"),
    [
        (lambda c: bin(c).count("1") == 1, None),
        (lambda c: math.log2(c) == int(math.log2(c)), None),
        (lambda c: c in (1, 2, 4, 8), "unnoticed-exactness"),
        (lambda c: c % 4 == 0 or c < 3, "false-alarm"),
        (lambda c: True, "false-alarm"),
        (lambda c: None, "wrong-form"),
    ],
)
def test_divisors(exact_divisor, mistake):
    verdict = check(3, exact_divisor=exact_divisor)["exact_divisor"]
    assert verdict.mistake == mistake, verdict


def test_divisors_by_hand():
    exact = [c for c in range(1, 70) if ex05_runs.division_case(c).verdict.words == "exact"]
    assert exact == [1, 2, 4, 8, 16, 32, 64]
