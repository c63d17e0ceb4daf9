"""Exercise 34: experiments on planted machines and on real kernels, signs counted, bytes with write allocate."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy
import pytest

from staxlab import learn
from staxlab.learn.answers import Callee
from staxlab.learn.exercises import ex34, ex34_answers, ex34_runs
from staxlab.learn.variants import variant_for
from staxlab.measure.timing import median_coverage


def check(part, seed=None, **answers):
    return learn.check(f"ex34.{part}", answers, seed=seed, record=False)


def judged(experiment, effect=0.1):
    return ex34_runs.judge_experiment(Callee(experiment, ("run_a", "run_b"), 2.0), effect)


@pytest.fixture
def planted_kernels(monkeypatch):
    """In the place of compiled kernels, machines on which one is slower: nothing is built, no clock is read."""

    def plant(extra):
        machine = ex34_runs.Machine(ex34_runs.Scenario("real", "", "", extra=extra), 0)
        machine.left = math.inf
        monkeypatch.setattr(ex34_runs, "real_kernels", lambda: (machine.first, machine.second))

    return plant


def test_the_chapters_values():
    answers = ex34_answers.reference(ex34.Variant())
    assert Fraction(answers["corrected_here"]) == Fraction(7783, 1639)  # 4.7486: nearly (5 + 4.5)/2
    assert answers["left_over"] == pytest.approx(4.91 / 4.7486, rel=1e-4)
    assert answers["pairs_34"] == 7 and Fraction(answers["compiled_share"]) == Fraction(651, 10)
    assert float(Fraction(answers["delay_here"])) == pytest.approx(1.36 / 0.63 - 1.36)


@pytest.mark.parametrize("columns", [2, 31, 2048])
def test_bytes_are_those_of_table_1_1(columns):
    eager_read, eager_written, read, written = ex34_runs.counted_bytes(columns)
    row = 4 * 64
    assert (eager_read, eager_written) == (5 * columns * row, (3 * columns + 1) * row)
    assert (read, written) == (2 * columns * row, row)
    assert ex34_runs.byte_ratio(columns, Fraction(1)) == Fraction(8 * columns + 1, 2 * columns + 1)


@pytest.mark.parametrize("n", range(1, 12))
def test_signs_counted_are_the_tail_of_proposition_13_2(n):
    for j in range(1, n + 1):
        counted = ex34_runs.false_alarms(n, j)
        assert counted == Fraction(sum(math.comb(n, i) for i in range(j)), 2**n)
        k = n + 1 - j
        if j < k:  # an interval leaves the same share out on either side
            assert 1 - 2 * counted == pytest.approx(median_coverage(n, j, k))


@pytest.mark.parametrize("seed", [None, *range(12)])
def test_slips_lead_elsewhere_and_the_measured_s_exceeds_the_corrected_ratio(seed):
    variant = variant_for(ex34.Variant, seed)
    assert len(ex34_runs.ratio_slips(variant)) == 5
    assert variant.measured > ex34_runs.byte_ratio(variant.columns, variant.factor)
    left_over = [slip.answer for slip in ex34_runs.left_over_slips(variant)]
    assert len(left_over) == 2 and min(abs(x - variant.measured / ex34_runs.byte_ratio(variant.columns, variant.factor))
                                       for x in left_over) > Fraction(1, 100)  # fmt: skip


def test_machines_keep_definition_13_1_and_repeat():
    for scenario in ex34_runs.scenarios(0.1):
        one, other = ex34_runs.Machine(scenario, 5), ex34_runs.Machine(scenario, 5)
        readings = [one.first() for _ in range(ex34_runs.MOST_READINGS)]
        assert min(readings) >= ex34_runs.T0 and readings == [other.first() for _ in readings]
        with pytest.raises(ex34_runs.TooManyReadings):
            one.second()


@pytest.mark.parametrize("effect", [0.09, 0.15])
def test_sound_experiments_of_other_kinds_are_right(planted_kernels, effect):
    planted_kernels(1.0)

    def fifteen_pairs(run_a, run_b):
        pairs = []
        for k in range(15):
            b, a = (run_b(), run_a()) if k % 2 else (None, run_a())
            pairs.append((run_b() if b is None else b) - a)
        return sorted(pairs)[3] > 0

    def logarithms_of_ratios(run_a, run_b):
        found = []
        for k in range(60):
            a = run_a() if k % 2 else None
            b = run_b()
            found.append(math.log(b / (run_a() if a is None else a)))
        return numpy.bool_(sorted(found)[22] > 0)

    for experiment in (fifteen_pairs, logarithms_of_ratios):
        verdict = judged(experiment, effect)
        assert verdict.credit == 1, verdict
        assert dict(verdict.facts)["slower? quiet, the second kernel is faster"] == "0 of 120"


@pytest.mark.parametrize(
    ("experiment", "mistake"),
    [
        (lambda a, b: True, "chance"),
        (lambda a, b: False, "missed"),
        (lambda a, b: sum(b() for _ in range(20)) > 1.1 * sum(a() for _ in range(20)), "not-alternated"),
        (lambda a, b: 1, "wrong-form"),
        (lambda a, b: None, "wrong-form"),
        (lambda a, b: a() / 0, "failed-call"),
        (lambda a, b: [a() for _ in range(241)] == [], "over-budget"),
    ],
)
def test_unsound_experiments_are_named(experiment, mistake):
    verdict = judged(experiment)
    assert verdict.credit == 0 and verdict.mistake == mistake


def test_a_fixed_order_is_nearly_right_whichever_side_is_first(planted_kernels):
    planted_kernels(1.0)

    def first_first(run_a, run_b):
        return sorted(-run_a() + run_b() for _ in range(40))[13] > 0

    def second_first(run_a, run_b):
        return sorted(run_b() - run_a() for _ in range(40))[13] > 0

    machines = []
    for experiment in (first_first, second_first):
        verdict = judged(experiment)
        assert verdict.credit == Fraction(2, 3) and verdict.mistake == "fixed-order"
        machines.append(dict(verdict.facts)["machine"])
    assert [name.split(",")[0] for name in machines] == ["getting steadily slower", "getting steadily faster"]


def test_an_experiment_that_never_ends_is_stopped(monkeypatch):
    monkeypatch.setattr(ex34_runs, "SECONDS", 0.1)

    def waits(run_a, run_b):
        while True:
            pass

    assert judged(waits).mistake == "timed-out"


def test_real_kernels_decide_in_the_end(planted_kernels):
    planted_kernels(0.0)  # what is said to do more work does not: then the reference is wrong about it
    verdict = judged(ex34_answers.experiment)
    assert verdict.mistake == "real-kernels" and verdict.credit == 0
    assert dict(verdict.facts)["real kernels"] == "the second computes more for every element"
    planted_kernels(1.0)

    def says_slower_where_readings_are_many(run_a, run_b):
        return run_a.__name__ == "limited" or ex34_answers.experiment(run_a, run_b)

    verdict = judged(says_slower_where_readings_are_many)
    assert verdict.mistake == "real-kernels"
    assert dict(verdict.facts)["real kernels"] == "the same kernel twice"


def test_without_a_compiler_the_field_is_not_checked(monkeypatch):
    from staxlab.errors import BuildError

    def none():
        raise BuildError("no working C++ compiler was found", remedy="install one")

    monkeypatch.setattr(ex34_runs, "real_kernels", none)
    verdict = judged(ex34_answers.experiment)
    assert verdict.status is learn.feedback.Status.UNCHECKED and "install one" in verdict.message


def test_partial_marks_where_the_sum_was_forgotten():
    feedback = check("3", corrected_rho="(5 + 3*w)/2", corrected_here="19/4", left_over=4.91 / 4.75)
    assert feedback["corrected_rho"].credit == feedback["corrected_here"].credit == Fraction(3, 4)
    assert feedback["left_over"].credit == 1, "four digits do not tell the two apart"
    assert check("2", pairs_34=8)["pairs_34"].mistake == "both-ends"
