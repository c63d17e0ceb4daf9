"""Exercise 40: the ridge point of eight bits, and stages, by the models and by running a pipeline."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab import learn
from staxlab.learn.exercises import ex40, ex40_answers, ex40_runs
from staxlab.learn.variants import variant_for
from staxlab.measure.matrix_traffic import peak_intensity
from staxlab.measure.pipeline_stages import pipeline, stage_budget
from staxlab.options import GPU_SPECS


def check(part, seed=None, **answers):
    return learn.check(f"ex40.{part}", answers, seed=seed, record=False)


def test_the_chapters_values():
    answers = ex40_answers.reference(ex40.Variant())
    assert (answers["least_order_40"], answers["stage_40"], answers["stages_40"]) == (886, 32768, 7)
    assert answers["against_16_bits"] == "the same"


@pytest.mark.parametrize("seed", [None, *range(12)])
def test_the_order_is_the_first_beyond_the_ridge_point(seed):
    variant = variant_for(ex40.Variant, seed)
    n, ridge = ex40_answers.reference(variant)["least_order_40"], Fraction(variant.rate, variant.bandwidth)
    assert peak_intensity(n - 1, n - 1, n - 1, 1) < ridge <= peak_intensity(n, n, n, 1)
    for slips in (ex40_runs.order_slips(variant), ex40_runs.stage_slips(variant), ex40_runs.stages_slips(variant)):
        assert slips


def test_the_reference_is_the_packages_budget():
    for rows, columns, depth, itemsize, _, epilogue in ex40_runs.cases(None)[1:]:
        tile, shared = (rows, columns, depth), GPU_SPECS["sm_90"].shared_memory_per_multiprocessor
        if (rows + columns) * depth * itemsize + epilogue > shared:
            continue
        budget = stage_budget(tile, itemsize=itemsize, epilogue_bytes=epilogue)
        assert ex40_answers.most_stages(*tile, itemsize, shared, epilogue, 1) == budget.stages


@given(st.integers(0, 40), st.integers(1, 12), st.integers(1, 12), st.integers(1, 8))
def test_what_is_run_is_the_closed_form(latency, transfer, compute, stages):
    run = pipeline(1, stages, latency=latency, transfer=transfer, compute=compute)
    assert ex40.long_run(latency, transfer, compute, stages) == run.period


@pytest.mark.parametrize("name", ex40_runs.MISTAKES)
def test_every_mistake_shows_and_is_named(name):
    made, _ = ex40_runs.MISTAKES[name]
    verdict = check("2", most_stages=lambda *arguments: made(*arguments))["most_stages"]
    assert verdict.mistake == name and verdict.credit == 0


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [(lambda *a: None, "wrong-form"), (lambda *a: True, "wrong-form"), (lambda *a: 1 // 0, "failed-call"),
     (lambda *a: 0, None)],
)  # fmt: skip
def test_what_is_no_number_of_stages(answer, mistake):
    verdict = check("2", most_stages=answer)["most_stages"]
    assert verdict.mistake == mistake and verdict.credit == 0
