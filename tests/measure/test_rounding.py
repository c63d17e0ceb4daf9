"""Section 6.5 and Section 13.3: the bounds hold against exact sums, the model predicts the spread."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.measure import rounding
from staxlab.measure.rounding import (
    Stage,
    SummationPlan,
    condition_number,
    corollary_variance,
    difference_bound,
    error_model,
    pairwise,
    segmented,
    sequential,
    sequential_deviation,
    summation_bound,
    vectorized,
)

finite = st.floats(-1e6, 1e6, width=32, allow_subnormal=True)


def plans(n: int) -> list[SummationPlan]:
    return [
        sequential(n),
        pairwise(n),
        segmented(n, 3),
        segmented(n, 4, "pairwise"),
        vectorized(n, 4),
        vectorized(n, 4, accumulators=3),
        vectorized(n, 2, accumulators=2, chunks=3),
    ]


@given(st.lists(finite, min_size=1, max_size=70))
@settings(max_examples=60, deadline=None)
def test_every_plan_stays_within_its_bound(values):
    exact = sum(map(Fraction, values), Fraction(0))
    absolute = sum(abs(Fraction(v)) for v in values)
    for plan in plans(len(values)):
        computed = plan.run(torch.tensor(values, dtype=torch.float32)).item()
        assert abs(Fraction(computed) - exact) <= Fraction(
            summation_bound(len(values), plan, float(absolute) * (1 + 1e-15))
        )


@given(st.lists(st.floats(-8, 8, width=16), min_size=1, max_size=40), st.sampled_from([torch.float16, torch.bfloat16]))
@settings(max_examples=40, deadline=None)
def test_narrow_accumulation_and_narrow_result(values, dtype):
    data = torch.tensor(values, dtype=dtype)
    numbers = data.double().tolist()
    exact, absolute = math.fsum(numbers), math.fsum(map(abs, numbers))
    plan = segmented(len(values), 4)
    assert abs(plan.run(data).item() - exact) <= summation_bound(len(values), plan, absolute, dtype)
    wide = plan.run(data.float()).to(dtype).item()
    assert abs(wide - exact) <= summation_bound(len(values), plan, absolute, "float32", result_dtype=dtype) + 1e-12


def test_the_bound_is_nearly_attained():
    # Each addition of a tiny value to a large one rounds away all of it: errors accumulate with one sign.
    n = 1000
    values = torch.full((n,), 2.0**-25 * 0.999)
    values[0] = 1.0
    exact = math.fsum(values.double().tolist())
    error = abs(sequential(n).run(values).item() - exact)
    bound = summation_bound(n, sequential(n), exact)
    assert 0.4 * bound < error <= bound


def test_heights_of_section_6_5():
    n = 2**20
    assert sequential(n).height == n - 1
    assert segmented(n, 16).height == n // 16 - 1 + 15
    assert segmented(n, 1024).height == 1023 + 1023
    assert pairwise(n).height == 20
    assert pairwise(1).height == pairwise(0).height == 0


def test_figures_of_example_1_1():
    def bound(plan):
        return summation_bound(2048, plan, 2300.0)

    assert bound(sequential(2048)) == pytest.approx(0.28, rel=0.01)
    assert bound(segmented(2048, 16)) == pytest.approx(0.0195, rel=0.01)
    assert bound(pairwise(2048)) == pytest.approx(1.5e-3, rel=0.02)


@given(st.integers(1, 3000), st.integers(1, 32), st.integers(1, 4), st.integers(1, 4))
def test_height_counts_the_additions_a_summand_passes_through(n, lanes, accumulators, chunks):
    """Measured on the plan itself: adding ones in an arithmetic that counts depth instead of adding."""
    plan = vectorized(n, lanes, accumulators, chunks)
    depth = 0
    for stage in plan.stages:
        level = [depth] * stage.count
        if stage.kind == "sequential":
            best = level[0]
            for other in level[1:]:
                best = max(best, other) + 1
        else:
            while len(level) > 1:
                pairs = [max(level[i], level[i + 1]) + 1 for i in range(0, len(level) - 1, 2)]
                level = pairs + level[len(pairs) * 2 :]
            best = level[0]
        depth = best
    assert plan.height == depth


def test_difference_of_two_orders_is_bounded_by_both():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(50, 777, generator=generator)
    absolute = values.double().abs().sum(-1)
    first, second = sequential(777), vectorized(777, 16, 4)
    gap = (first.run(values).double() - second.run(values).double()).abs()
    assert all(
        g <= difference_bound(first, second, 777, a) for g, a in zip(gap.tolist(), absolute.tolist(), strict=True)
    )


def test_without_a_plan_the_bound_holds_for_any_order():
    assert summation_bound(100, None, 1.0) == summation_bound(100, sequential(100), 1.0)


def test_refusals():
    with pytest.raises(ValueError, match="no finite bound"):
        summation_bound(5000, sequential(5000), 1.0, torch.float16)
    with pytest.raises(ValueError, match="cannot be negative"):
        summation_bound(3, None, -1.0)
    with pytest.raises(ValueError, match="not 4"):
        summation_bound(4, sequential(3), 1.0)
    with pytest.raises(ValueError, match="fewer than"):
        SummationPlan(10, (Stage("sequential", 3),))
    with pytest.raises(ValueError, match="sequential"):
        Stage("random", 3)
    with pytest.raises(ValueError, match="no unit roundoff"):
        rounding.unit_roundoff(torch.int32)
    with pytest.raises(ValueError, match="power of two"):
        corollary_variance(10, 0.0, 1.0, 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_unit_roundoff_is_half_an_epsilon(dtype):
    assert rounding.unit_roundoff(dtype) == torch.finfo(dtype).eps / 2


def test_condition_number():
    assert condition_number([1.0, 2.0, 3.0]) == 1.0
    assert condition_number([1.0, -1.0]) == math.inf
    assert condition_number([1e16, 1.0, -1e16]) == 2e16 + 1
    assert condition_number([]) == 1.0
    assert math.isnan(condition_number([math.nan]))


@pytest.mark.parametrize(("mean", "deviation"), [(1.13, 1.7), (0.0, 1.0)])
def test_model_predicts_the_spread_of_sequential_sums(mean, deviation):
    """Theorem 13.1 by simulation: the actual spread of rounding errors is that of the model within a factor of 1.5."""
    generator = torch.Generator().manual_seed(5)
    n, rows = 512, 2000
    values = (torch.randn(rows, n, generator=generator, dtype=torch.float64) * deviation + mean).float()
    exact = values.double().sum(-1)
    errors = sequential(n).run(values).double() - exact
    predicted = error_model(sequential(n), mean, deviation).error_deviation
    assert 1 / 1.5 < errors.std().item() / predicted < 1.5
    assert abs(errors.mean().item()) < 5 * predicted / math.sqrt(rows), "unbiased"


def test_model_with_injected_uniform_roundings_matches_the_theorem():
    """The theorem's own assumptions, simulated in double precision: variance within sampling error."""
    generator = torch.Generator().manual_seed(11)
    n, trials, u = 64, 20000, 2.0**-24
    values = torch.rand(n, generator=generator, dtype=torch.float64)
    partial = torch.full((trials,), values[0].item(), dtype=torch.float64)
    for k in range(1, n):
        delta = (torch.rand(trials, generator=generator, dtype=torch.float64) * 2 - 1) * u
        partial = (partial + values[k]) * (1 + delta)
    errors = partial - values.sum()
    assert errors.std().item() == pytest.approx(sequential_deviation(values.tolist()), rel=0.03)


@pytest.mark.parametrize(("mean", "deviation"), [(1.0, 0.5), (0.0, 1.0)])
def test_corollary_keeps_the_leading_terms_of_the_exact_model(mean, deviation):
    n, ways = 2**16, 16
    model = error_model(segmented(n, ways, "pairwise"), mean, deviation)
    accumulation, merge = corollary_variance(n, mean, deviation, ways)
    scale = rounding.rounding_deviation() ** 2
    assert accumulation == pytest.approx(scale * model.parts[0], rel=1e-2)
    assert merge == pytest.approx(scale * model.parts[1], rel=0.1)


def test_growth_rates():
    def deviation(n, mean):
        return error_model(segmented(n, 16, "pairwise"), mean, 1.0).error_deviation

    big = 2**22
    assert deviation(2 * big, 1.0) / deviation(big, 1.0) == pytest.approx(2**1.5, rel=0.01)
    assert deviation(2 * big, 0.0) / deviation(big, 0.0) == pytest.approx(2.0, rel=0.01)


def test_figures_of_section_13_3():
    first = error_model(segmented(2048, 16, "pairwise"), 1.13, math.sqrt(4 * 0.5 * 2 - 1.13**2))
    assert first.error_deviation == pytest.approx(1.7e-4, rel=0.05)
    assert first.typical_largest(8192, sums=2) == pytest.approx(9.5e-4, rel=0.05)
    accumulation, merge = corollary_variance(2048, 0.0, 1.0, 16)
    assert math.sqrt(accumulation) == pytest.approx(1.25e-5, rel=0.01)


def test_typical_largest_is_the_median_of_the_maximum():
    generator = torch.Generator().manual_seed(3)
    model = error_model(pairwise(8), 1.0, 1.0)
    largest = torch.randn(2000, 300, generator=generator, dtype=torch.float64).abs().amax(-1).median().item()
    assert model.typical_largest(300) / model.error_deviation == pytest.approx(largest, rel=0.02)
    assert model.typical_largest(1) / model.error_deviation == pytest.approx(0.6745, rel=1e-3)


def test_records_print_and_serialise():
    model = error_model(vectorized(2048, 16, 4), 1.0, 1.0)
    assert "share of variance" in repr(model)
    assert json.loads(json.dumps(model.to_json()))["n"] == 2048
    assert str(vectorized(100, 8)).startswith("100 numbers: sequential over 13")


def test_plan_of_a_generated_kernel():
    described = {
        "kind": "sum", "n": 1000, "lanes": 16, "accumulators": 4, "chunks": 3,
        "lane_merge": "pairwise", "chunk_merge": "sequential", "sequential": 6,
    }  # fmt: skip
    plan = rounding.plan_of(described)
    assert plan.height == 5 + 2 + 4 + 2
    assert rounding.plan_of({**described, "lanes": 1, "accumulators": 1, "chunks": 1, "sequential": 1000}).height == 999


@pytest.mark.parametrize("size", [(64, 128), (3, 4099), (1, 100000)])
def test_compiled_sums_stay_within_the_bound_of_their_own_plan(size):
    """Example 1.1 compiled: against exact row sums of the float32 summands, with the order the kernel says it uses."""
    import staxlab

    x, w = torch.randn(*size), torch.randn(*size)
    compiled = staxlab.compile(lambda x, w: (torch.relu(x + w) * 2).sum(-1), strict_native=True)
    result = compiled(x, w)
    plan = rounding.plan_of(compiled.versions[-1].compilation.kernels[0].launch["accumulation"])
    summands = (torch.relu(x + w) * 2).double()
    for row, computed in zip(summands.tolist(), result.tolist(), strict=True):
        exact = math.fsum(row)
        assert abs(computed - exact) <= summation_bound(size[1], plan, math.fsum(map(abs, row)))
    assert plan.height < sequential(size[1]).height / 4, "a bound that says nothing would be met by anything"
