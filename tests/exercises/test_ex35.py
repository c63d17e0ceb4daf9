"""Exercise 35: windows of numbered blocks, by going through them and by the closed form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab import learn
from staxlab.learn.exercises import ex35, ex35_answers, ex35_runs
from staxlab.learn.variants import variant_for
from staxlab.measure.grouped_numbering import aligned_reads


def check(part, seed=None, **answers):
    return learn.check(f"ex35.{part}", answers, seed=seed, record=False)


def test_the_chapters_values():
    answers = ex35_answers.reference(ex35.Variant())
    assert (answers["row_major_35"], answers["low_groups"], answers["high_groups"]) == (18, 10, 11)
    assert answers["best_height"] == 4 and answers["running_35"] == 3 * 132


@given(st.integers(1, 12), st.integers(1, 12), st.data())
def test_the_reference_is_the_closed_form(grid_m, grid_n, data):
    window = data.draw(st.integers(1, grid_m * grid_n))
    group = data.draw(st.integers(1, grid_m))
    assert ex35_answers.blocks_read(window, group, grid_m, grid_n) == aligned_reads(grid_m, grid_n, group, window)


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_variants_ask_for_something(seed):
    variant = variant_for(ex35.Variant, seed)
    low, high = variant.groups
    assert low < high <= variant.grid and variant.window % low == variant.window % high == 0
    for group in variant.groups:
        assert (
            sum(ex35_runs.read_by(variant.grid, variant.grid, group, variant.window)) == group + variant.window // group
        )
    for slips in (ex35.row_slips(variant), ex35.height_slips(variant), ex35.running_slips(variant)):
        assert slips


@pytest.mark.parametrize("name", ex35_runs.MISTAKES)
@pytest.mark.parametrize("seed", [None, 3])
def test_every_mistake_shows_on_some_grid_and_is_named(name, seed):
    made, _ = ex35_runs.MISTAKES[name]
    verdict = check("2", seed, blocks_read=lambda W, G, g_m, g_n: made(W, G, g_m, g_n))["blocks_read"]
    assert verdict.mistake == name and dict(verdict.facts)["yours"] is not None


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda W, G, g_m, g_n: None, "wrong-form"),
        (lambda W, G, g_m, g_n: (1, 2, 3), "wrong-form"),
        (lambda W, G, g_m, g_n: (W / G, 1), "wrong-form"),
        (lambda W, G, g_m, g_n: W // 0, "failed-call"),
        (lambda W, G, g_m, g_n: (0, 0), None),
    ],
)
def test_what_is_no_count(answer, mistake):
    verdict = check("2", blocks_read=answer)["blocks_read"]
    assert verdict.mistake == mistake and verdict.credit == 0
