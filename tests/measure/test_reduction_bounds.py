"""Enclosures of reductions hold every order of the kernel's height, and are points where no order can matter."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.loops.enclosure import Enclosure
from staxlab.measure.reduction_bounds import enclose_reduction
from staxlab.measure.rounding import pairwise, segmented, sequential, vectorized

F32, F64 = torch.float32, torch.float64
PLANS = (sequential, pairwise, lambda n: segmented(n, 7), lambda n: vectorized(n, 16, 4))


def numbers(n: int, seed: int, *, cancels: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.rand(n, generator=generator).mul(8).exp()
    x = torch.randn(n, generator=generator) * scale
    return x if cancels else x.abs()


@settings(max_examples=80)
@given(st.integers(1, 400), st.integers(0, 1000), st.booleans(), st.sampled_from(PLANS), st.sampled_from([F32, F64]))
def test_a_sum_in_any_order_of_that_height_is_enclosed(n, seed, cancels, plan, dtype):
    x = numbers(n, seed, cancels=cancels).to(dtype)
    found = enclose_reduction(Enclosure(x), "sum", 1, dtype, plan(n).height)
    assert float(found.low) <= float(plan(n).run(x)) <= float(found.high)


@given(st.integers(2, 300), st.integers(0, 1000))
def test_the_bound_is_no_wider_than_section_6_5_allows(n, seed):
    x = numbers(n, seed, cancels=False)
    height = pairwise(n).height
    found = enclose_reduction(Enclosure(x), "sum", 1, F32, height)
    exact = math.fsum(x.tolist())
    assert float(found.high) - float(found.low) <= 2.1 * (height + 1) * 2.0**-24 * exact


def test_a_lost_summand_is_outside_where_nothing_rounds():
    """A hundred thousand multiples of 1/2: the bound of their height would hide one of them, exactness does not."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-4, 5, (100_000,), generator=generator) / 2
    x[-1] = 0.5
    found = enclose_reduction(Enclosure(x), "sum", 1, F32, 500)
    assert float(found.low) == float(found.high) == math.fsum(x.tolist()) != float(x[:-1].double().sum())
    rounds = enclose_reduction(Enclosure(x + 0.123), "sum", 1, F32, 500)
    assert float(rounds.high) - float(rounds.low) > 0.5


@given(st.integers(1, 60), st.integers(0, 1000), st.randoms(use_true_random=False))
def test_a_product_in_any_order_is_enclosed(n, seed, random):
    x = torch.rand(n, generator=torch.Generator().manual_seed(seed)) + 0.5
    order = list(range(n))
    random.shuffle(order)
    product = torch.ones(())
    for k in order:
        product = product * x[k]
    found = enclose_reduction(Enclosure(x), "prod", 1, F32, 3)
    assert float(found.low) <= float(product) <= float(found.high) and not bool(found.free)


def test_where_an_order_may_overflow_nothing_is_claimed():
    largest = torch.finfo(F32).max
    for kind, values in (("sum", [largest, largest, -largest]), ("prod", [1e30, 1e30, 1e-30]), ("prod", [1e-30] * 3)):
        assert bool(enclose_reduction(Enclosure(torch.tensor(values)), kind, 1, F32, 2).free)


@pytest.mark.parametrize(("values", "wanted"), [
    ([1.0, math.nan], math.nan), ([math.inf, 1.0], math.inf), ([math.inf, -math.inf], math.nan), ([-0.0, -0.0], 0.0),
])  # fmt: skip
def test_special_summands_have_one_sum(values, wanted):
    found = enclose_reduction(Enclosure(torch.tensor(values)), "sum", 1, F32, 1)
    assert str(float(found.low)) == str(float(found.high)) == str(wanted) and not bool(found.free)


def test_an_extreme_is_exact_but_for_the_sign_of_zero():
    found = enclose_reduction(Enclosure(torch.tensor([-0.0, 0.0, -1.0])), "amax", 1, F32, None)
    assert found.low.signbit() and not found.high.signbit() and float(found.low) == float(found.high) == 0
    found = enclose_reduction(Enclosure(torch.tensor([2.0, math.nan])), "amax", 1, F32, None)
    assert math.isnan(float(found.low)) and math.isnan(float(found.value)) and found.free is None


def test_a_position_is_certain_only_where_intervals_do_not_overlap():
    value = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.9, 3.0]])
    wide = Enclosure(value, value - 0.2, value + 0.2)
    found = enclose_reduction(wide, "argmax", 1, F32, None)
    assert found.value.tolist() == [2, 2] and found.free.tolist() == [False, True]


def test_integers_wrap_alike_in_any_order_and_nothing_reduced_is_the_neutral_element():
    x = torch.tensor([2**62, 2**62, 2**62, 5])
    found = enclose_reduction(Enclosure(x), "sum", 1, torch.int64, None)
    assert found.lower is None and int(found.value) == int(x.sum())
    assert float(enclose_reduction(Enclosure(torch.zeros(3, 0)), "amax", 1, F32, None).value[1]) == -math.inf
