"""Exercise 37: windows in blocks, by the block mask's own counts and in closed form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab import learn
from staxlab.learn.exercises import ex37, ex37_answers, ex37_runs
from staxlab.learn.variants import variant_for
from staxlab.measure.block_counts import window_blocks


def check(part, seed=None, **answers):
    return learn.check(f"ex37.{part}", answers, seed=seed, record=False)


def test_the_usual_values():
    answers = ex37_answers.reference(ex37.Variant())
    assert (answers["window_visited"], answers["causal_visited"], answers["saved_computation"]) == (472, 528, "7/66")
    assert (answers["ragged_partial"], answers["last_partial"]) == (94, 46)


@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 120))
def test_the_reference_is_the_closed_form(n, block, width):
    counts = window_blocks(n * block, block, width)
    assert ex37_answers.window_counts(n * block, block, width) == (counts.full, counts.partial, counts.empty)


@pytest.mark.parametrize("seed", [None, *range(12)])
def test_variants_ask_for_something(seed):
    variant = variant_for(ex37.Variant, seed)
    assert 0 < ex37_runs.saved(variant.length, variant.block, variant.width) < 1
    assert 0 < variant.extra < variant.block - 1 and variant.length <= 4096
    slips = (ex37.visited_slips, ex37.causal_slips, ex37.saving_slips, ex37.ragged_slips, ex37.last_slips)
    assert all(len(made(variant)) >= 2 for made in slips)


@pytest.mark.parametrize("name", ex37_runs.MISTAKES)
@pytest.mark.parametrize("seed", [None, 3])
def test_every_mistake_shows_on_some_window_and_is_named(name, seed):
    made, _ = ex37_runs.MISTAKES[name]
    verdict = check("3", seed, window_counts=lambda N, B, w: made(N, B, w))["window_counts"]
    assert verdict.mistake == name and verdict.credit < 1 and dict(verdict.facts)["yours"] is not None


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda N, B, w: None, "wrong-form"),
        (lambda N, B, w: (1, 2), "wrong-form"),
        (lambda N, B, w: (True, 0, 0), "wrong-form"),
        (lambda N, B, w: (N / B, 0, 0), "wrong-form"),
        (lambda N, B, w: N // 0, "failed-call"),
        (lambda N, B, w: (0, 0, (N // B) ** 2), None),
        (lambda N, B, w: (0, 0, 0), "not-all-blocks"),
    ],
)
def test_what_is_no_count(answer, mistake):
    verdict = check("3", window_counts=answer)["window_counts"]
    assert verdict.mistake == mistake and verdict.credit == 0
