"""Exercise 30: probabilities by counting, a workshop with a real compiler, and keys that do and do not notice."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from staxlab import learn
from staxlab.learn.exercises import ex30, ex30_answers, ex30_runs
from staxlab.learn.exercises.ex30_runs import (
    CHANGES,
    HARMLESS_CHANGES,
    TextCache,
    packages_key,
    value_of,
    workshop,
)
from staxlab.learn.variants import variant_for

FRESH = 20.5  # 2 * 1 * 10 + 0.5


def check(part, seed=None, **answers):
    return learn.check(f"ex30.{part}", answers, seed=seed, record=False)


def test_the_chapters_length_of_a_hash():
    most = ex30_answers.reference(ex30.Variant())["most_keys"]
    assert Fraction(most**2, 2**256) <= Fraction(1, 10**6) < Fraction((most + 1) ** 2, 2**256)
    assert most > 10**35


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_variants_have_slips_of_their_own(seed):
    variant = variant_for(ex30.Variant, seed)
    numbers = [slip.answer for slip in ex30_runs.key_slips(variant)]
    assert len(set(numbers)) == len(numbers) >= 4 and ex30_runs.most_keys(variant) not in numbers


@pytest.mark.parametrize(("q", "n"), list(itertools.product(range(6), range(1, 6))))
def test_the_probability_is_counted_and_the_bound_is_one(q, n):
    counted = ex30_runs.counted_collisions(q, n)
    assert counted == ex30_runs.collision_probability(q, n) == ex30_answers.collision(q, n)
    assert counted <= Fraction(q * (q - 1), 2 * n) <= Fraction(q * q, 2 * n)


def test_every_mistaken_probability_is_named():
    for name, (mistaken, _) in ex30_runs.COLLISION_MISTAKES.items():
        assert check("1", collision=lambda q, n, mistaken=mistaken: mistaken(q, n))["collision"].mistake == name
    assert check("1", collision=lambda q, n: "often")["collision"].mistake == "wrong-form"
    assert check("1", collision=lambda q, n: float(ex30_answers.collision(q, n)))["collision"].credit == 1


@pytest.mark.parametrize("name", [name for name, _, _ in CHANGES])
def test_a_change_leaves_the_text_and_makes_the_old_artifact_stale(name):
    """What the exercise rests on: with the chapter's key, and not with the reference's or with the package's."""
    change = next(change for one, change, _ in CHANGES if one == name)
    with workshop() as place:
        text, more = TextCache(), TextCache(ex30_answers.extended)
        assert value_of(text.build(place)) == value_of(more.build(place)) == FRESH
        key = packages_key(place)
        change(place)
        afresh = value_of(place.compile())
        assert afresh != FRESH and value_of(text.build(place)) == FRESH, "the chapter's cache returns the old one"
        assert value_of(more.build(place)) == afresh
        assert packages_key(place) != key


def test_harmless_changes_change_nothing():
    with workshop() as place:
        assert value_of(place.compile()) == FRESH
        key, mine = packages_key(place), ex30_answers.extended(place)
        for _, change in HARMLESS_CHANGES:
            change(place)
        assert value_of(place.compile()) == FRESH
        assert packages_key(place) == key and ex30_answers.extended(place) == mine


@pytest.mark.parametrize("other", ["sets_a_variable", "replaces_the_compiler", "links_other_headers"])
def test_other_situations_are_right_as_well(other):
    verdict = check("2", situation=getattr(ex30_answers, other))["situation"]
    facts = dict(verdict.facts)
    assert verdict.credit == 1 and facts["kernel(10), built before"] == facts["from the cache now"] == "20.5"
    assert facts["built afresh now"] != "20.5" and "builds again" in facts["this package's key"]


def test_answers_that_fail_or_return_the_wrong_thing():
    assert check("2", situation=lambda w: 1 / 0)["situation"].mistake == "failed-call"
    assert check("3", extended=lambda w: 1 / 0)["extended"].mistake == "failed-call"
    for value in (None, {1: 2}, [object()]):
        assert check("3", extended=lambda w, value=value: value)["extended"].mistake == "wrong-form"


def test_a_workshop_leaves_nothing_behind():
    with workshop() as place:
        root = place.root
        assert place.header in place.files() and place.site / "offset.h" in place.files()
    assert not root.exists()
