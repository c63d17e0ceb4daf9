"""Exercise 44: sizes found on two exact clocks, with reads of any number, in a cache, and for longer chains."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab import learn
from staxlab.learn.exercises import ex44, ex44_answers, ex44_runs
from staxlab.learn.variants import variant_for
from staxlab.measure.amortize import minimum_size

chains = st.tuples(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True),
    st.lists(st.lists(st.sampled_from("abcd"), max_size=2, unique=True), max_size=5),
).map(lambda parts: (parts[0], *parts[1]))


def check(part, seed=None, **answers):
    return learn.check(f"ex44.{part}", answers, seed=seed, record=False)


def test_the_chapters_values():
    answers = ex44_answers.reference(ex44.Variant())
    assert answers["two_operators"] == 51871, "about 5e4, as Section 13.4 says"
    assert ex44_runs.plain(ex44.Variant(), 2, Fraction(22)).fewest == 113621, "about 1.1e5 with new tensors"
    assert (answers["chain_same"], answers["chain_new"], answers["always_from"]) == (4632, 20069, 7)
    assert answers["l2_limit"] == 2**19 and float(Fraction(answers["largest_bandwidth"])) == pytest.approx(
        499.3, abs=0.1
    )


@given(chains, st.integers(1, 9), st.integers(1, 60), st.integers(1, 90))
def test_the_clocks_meet_where_the_package_says(chain, tau_e, tau_c, beta):
    durations = ex44_runs.of_chain(chain, tau_e, tau_c, beta)
    reads = [len(outside) + (i > 0) for i, outside in enumerate(chain)]
    distinct = len({name for outside in chain for name in outside})
    expected = minimum_size(len(chain), tau_e, tau_c, beta, reads=reads, external_reads=distinct)
    if durations.meeting is None:
        assert len(chain) == 1 and durations.fewest == (1 if tau_c < tau_e else None)
    else:
        assert float(durations.meeting) == pytest.approx(expected)
        fewest = durations.fewest
        assert durations.wins(fewest) and (fewest == 1 or not durations.wins(fewest - 1))
    assert ex44_answers.fewest_elements(chain, tau_e, tau_c, beta) == durations.fewest


@given(st.integers(1, 20), st.integers(1, 8), st.integers(1, 120))
def test_the_cache_raises_the_size_to_its_capacity_at_most(at_memory, ratio, limit):
    last = ex44_runs.last_loss(at_memory, ratio, limit)
    assert last == min(ratio * at_memory, max(limit, at_memory))
    assert at_memory <= last <= max(limit, at_memory)


@pytest.mark.parametrize("seed", [None, *range(12)])
def test_variants_leave_something_to_compare(seed):
    variant = variant_for(ex44.Variant, seed)
    same = ex44_runs.plain(variant, 2, variant.tau_same).fewest
    assert 1 < same < variant.l2_limit and variant.largest_bandwidth * 1000 > variant.bandwidth
    chain = [ex44_runs.plain(variant, k, variant.tau_same).fewest for k in range(2, variant.always_same + 1)]
    assert chain == sorted(chain, reverse=True) and chain[-1] == 1 < chain[variant.length - 2]
    for slips, truth in (
        (ex44_runs.fewest_slips(variant, 2, variant.tau_same), same),
        (ex44_runs.fewest_slips(variant, variant.length, variant.tau_new),
         ex44_runs.plain(variant, variant.length, variant.tau_new).fewest),
        (ex44_runs.limit_slips(variant), variant.l2_limit),
        (ex44_runs.bandwidth_slips(variant), variant.largest_bandwidth),
        (ex44_runs.always_slips(variant), variant.always_same),
    ):  # fmt: skip
        answers = [slip.answer for slip in slips]
        assert len(answers) >= 2 and truth not in answers and len(set(answers)) == len(answers)


def test_the_cache_of_every_variant_holds_more_than_the_size_in_memory():
    for seed in range(300):
        variant = variant_for(ex44.Variant, seed)
        assert ex44_runs.plain(variant, 2, variant.tau_same).fewest < variant.l2_limit, seed


def test_at_the_largest_bandwidth_the_cache_is_just_large_enough():
    variant = ex44.Variant()
    durations = ex44_runs.plain(variant, 2, variant.tau_same, variant.largest_bandwidth * 1000)
    assert durations.meeting == variant.l2_limit


def test_the_generalization_does_not_depend_on_reads_that_are_not_shared():
    for reads in ((1, 1, 1), (3, 1, 2), (2, 4, 4)):
        outside = sum(reads) - 2
        assert ex44_runs.of_counts(3, sum(reads), outside, 2, 20, 50).meeting == Fraction((20 - 6) * 50, 16)


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda chain, tau_e, tau_c, beta: 0, "wrong-form"),
        (lambda chain, tau_e, tau_c, beta: 2.5, "wrong-form"),
        (lambda chain, tau_e, tau_c, beta: None, "never"),
        (lambda chain, tau_e, tau_c, beta: chain[9], "failed-call"),
        (lambda chain, tau_e, tau_c, beta: 1, "too-small"),
        (
            lambda chain, tau_e, tau_c, beta: ex44_answers.fewest_elements(chain, tau_e, tau_c, beta) or 3,
            "no-such-size",
        ),
        (lambda chain, tau_e, tau_c, beta: 10**6 if len(chain) > 1 else None, "too-large"),
    ],
)
def test_other_sizes(answer, mistake):
    verdict = check("1", fewest_elements=answer)["fewest_elements"]
    assert verdict.mistake == mistake and verdict.credit == 0


def test_the_feedback_shows_both_durations():
    verdict = check("1", fewest_elements=ex44_answers._not_yet)["fewest_elements"]
    facts = dict(verdict.facts)
    assert verdict.credit == Fraction(1, 2) and Fraction(facts["compiled takes there"].split()[0]) >= Fraction(
        facts["eager takes there"].split()[0]
    )
