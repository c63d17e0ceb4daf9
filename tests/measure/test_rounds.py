"""Rounds on planted clocks: drift between them, the interval of the overall median, and what counts as established."""

from __future__ import annotations

import json
import math
import random

import pytest

from staxlab.measure.rounds import Rounds, chance_of_agreement, measure_rounds, round_name
from staxlab.measure.timing import Comparison, Timing


def rounds_of(*pairs, readings=9, noise=0.01, seed=0):
    """Rounds whose sides "eager" and "compiled" have these medians, with readings around them."""
    generator = random.Random(seed)

    def timing(name, seconds):
        return Timing(
            name, tuple(seconds * (1 + noise * generator.random()) for _ in range(readings)), planned=readings
        )

    made = tuple(Comparison((timing("eager", e), timing("compiled", c))) for e, c in pairs)
    return Rounds(made, len(made))


def test_a_large_effect_in_all_rounds_is_established_and_the_drift_of_the_sides_does_not_matter():
    """The chapter's own example: S of 4.91 and 3.95."""
    found = rounds_of((4.91, 1.0), (2 * 3.95, 2.0))
    verdict = found.verdict("compiled")
    assert verdict.established and str(verdict).startswith("established")
    assert verdict.effect == pytest.approx((4.91 + 3.95) / 2, rel=0.02)
    assert verdict.drift == pytest.approx(4.91 / 3.95, rel=0.02)
    assert found.drift("compiled") == pytest.approx(2, rel=0.02)
    assert found.speedup("compiled") == pytest.approx(4.43, rel=0.02)


@pytest.mark.parametrize(
    ("pairs", "noise", "reason"),
    [
        ([(3.0, 1.0)], 0.01, "one round shows nothing"),
        ([(1.2, 1.0), (0.8, 1.0)], 0.01, "disagree"),
        ([(1.1, 1.0), (1.12, 1.0)], 0.8, "holds the ratio 1"),
        ([(1.05, 1.0), (1.9, 1.0)], 0.01, "does not exceed the drift"),
    ],
)
def test_what_is_not_established_has_a_reason(pairs, noise, reason):
    verdict = rounds_of(*pairs, noise=noise).verdict("compiled")
    assert not verdict.established and reason in verdict.reason
    assert reason in str(rounds_of(*pairs, noise=noise))


def test_slower_counts_like_faster():
    one, other = rounds_of((1.0, 2.0), (1.0, 2.1)), rounds_of((2.0, 1.0), (2.1, 1.0))
    assert one.verdict("compiled").established and other.verdict("compiled").established
    assert one.verdict("compiled").effect == pytest.approx(other.verdict("compiled").effect, rel=0.03)


def test_the_margin_decides_and_a_senseless_one_is_refused():
    found = rounds_of((1.5, 1.0), (2.0, 1.0))
    assert found.verdict("compiled", margin=0.5).established and not found.verdict("compiled", margin=3).established
    for call in (lambda: found.verdict("compiled", margin=0.4), lambda: chance_of_agreement(0.4)):
        with pytest.raises(ValueError, match="at least 1/2"):
            call()
    with pytest.raises(ValueError, match="no readings"):
        Rounds(()).verdict("compiled", "eager")


def test_two_equal_sides_are_called_different_as_often_as_the_formula_says():
    generator = random.Random(1)
    for margin in (1.0, 2.0):
        hits = 0
        for _ in range(4000):
            a, b = (math.exp(generator.gauss(0, 0.1)) for _ in range(2))
            flat = [Comparison((Timing("eager", (s,) * 3), Timing("compiled", (1.0,) * 3))) for s in (a, b)]
            hits += Rounds(tuple(flat), 2).verdict("compiled", margin=margin).established
        assert hits / 4000 == pytest.approx(chance_of_agreement(margin), abs=0.03)


def test_the_overall_median_has_the_interval_of_the_medians_of_the_rounds():
    two = rounds_of((1.0, 1.0), (3.0, 1.0))
    assert two.overall("eager").coverage == 0.5 and two.overall("eager").low < 1.02 < 2.9 < two.overall("eager").high
    six = rounds_of(*[(1.0 + r, 1.0) for r in range(6)])
    assert six.overall("eager").coverage > 0.95 and six.overall("eager").n == 6
    assert six.overall("eager").high - six.overall("eager").low > 4 * (six.intervals("eager")[0].high - 1.0)


def drifting(noise_free=True):
    """A machine whose clock is only moved by what runs on it, and which is twice as slow from the second round on."""
    state = {"now": 0.0, "factor": 1.0}

    def side(seconds):
        def run():
            state["now"] += seconds * state["factor"]

        return run

    return {"slow": side(3.0), "fast": side(1.0)}, lambda: state["now"], lambda: state.update(factor=2.0)


def test_rounds_are_measured_and_the_drift_cancels_in_the_ratio():
    sides, clock, slower = drifting()
    reports = []
    found = measure_rounds(sides, rounds=2, readings=5, clock=clock, between=slower,
                           progress=lambda fraction, message: reports.append((fraction, message)))  # fmt: skip
    assert found.complete and found.drift("slow") == pytest.approx(2) and found.drift("fast") == pytest.approx(2)
    assert [ratio.median for ratio in found.ratios("fast")] == pytest.approx([3, 3])
    assert found.verdict("fast").established
    assert reports[0][1].startswith("round A of 2") and reports[-1][1].startswith("round B") and reports[-1][0] == 1
    assert Rounds.from_json(json.loads(json.dumps(found.to_json()))) == found
    with pytest.raises(ValueError, match="at least one round"):
        measure_rounds(sides, rounds=0)
    with pytest.raises(ValueError, match="no rounds written"):
        Rounds.from_json({"format": "else"})


def test_an_interruption_keeps_what_was_measured():
    sides, clock, _ = drifting()

    def interrupted():
        raise KeyboardInterrupt

    found = measure_rounds(sides, rounds=3, readings=3, clock=clock, between=interrupted)
    assert len(found.rounds) == 1 and not found.complete and "interrupted" in str(found)
    assert len(found.medians("slow")) == 1


def test_an_interruption_within_a_round_is_the_end_of_all():
    sides, clock, _ = drifting()
    calls = []

    def fast():
        calls.append(1)
        if len(calls) == 15:  # among the readings of round A
            raise KeyboardInterrupt
        sides["fast"]()

    found = measure_rounds({"slow": sides["slow"], "fast": fast}, rounds=3, readings=9, warmup=1, calls=2, clock=clock)
    assert len(found.rounds) == 1 and not found.complete and len(calls) == 15
    assert 0 < len(found.rounds[0]["fast"].readings) < 9


def test_rounds_have_the_names_of_the_text():
    assert [round_name(r) for r in (0, 1, 25, 26, 52)] == ["A", "B", "Z", "AA", "BA"]


def test_a_round_without_readings_has_no_numbers():
    nothing = Rounds((Comparison((Timing("eager", (), planned=3), Timing("compiled", ())), complete=False),), 2)
    assert math.isnan(nothing.drift("eager")) and nothing.overall("eager") is None and nothing.ratios("compiled") == ()
    assert "n/a" in str(nothing) and "nan" not in str(nothing)
    assert Rounds.from_json(json.loads(json.dumps(nothing.to_json(), allow_nan=False))) == nothing


def test_sides_can_be_left_out():
    found = rounds_of((2.0, 1.0), (2.0, 1.0)).without("comp")
    assert found.names == ("eager",) and "compiled" not in str(found)
