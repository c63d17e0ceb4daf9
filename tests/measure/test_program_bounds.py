"""Bounds follow the condition of a computation (Sections 6.5 and 11.4), and comparison follows the bounds."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab.measure.agreement import compare
from staxlab.measure.program_bounds import SAFETY, bounds_of
from staxlab.measure.rounding import gamma, unit_roundoff
from tests.locate.faults import numbers
from tests.locate.programs import cancelling

U = unit_roundoff("float32")


def bounds(function, *inputs, **options):
    found = bounds_of(staxlab.trace(function, *inputs).module, list(inputs), **options)
    assert not found.reason
    return found


def test_moves_have_no_room_and_an_addition_has_a_few_units():
    x, y = numbers(20, 30), numbers(20, 30) + 1
    moved = bounds(lambda x: x.t().flip(0).relu(), x)
    assert bool((moved.bound[0] <= 2.1 * U * moved.exact[0].abs() + 1e-40).all())
    added = bounds(lambda x, y: x + y, x, y)
    assert bool((added.bound[0] <= 20 * U * added.exact[0].abs() + 1e-40).all())


@pytest.mark.parametrize("function", [lambda x: x.sum(-1), lambda x: x @ torch.ones(x.shape[-1])])
def test_the_bound_of_a_sum_follows_the_sum_of_magnitudes_and_not_the_sum(function):
    x = cancelling()
    found = bounds(function, x)
    size, total = x.double().abs().sum(-1), x.double().sum(-1)
    n = x.shape[-1]
    least = gamma(math.ceil(2 * math.sqrt(n))) * size
    assert bool((found.bound[0] >= least).all()) and bool((found.bound[0] <= 1.1 * SAFETY * least).all())
    assert float((found.bound[0] / total.abs()).max()) > 1  # no digit of such a sum is certain


def test_a_taller_summation_tree_has_more_room():
    x = torch.full((10000,), 0.1)
    short, tall = bounds(lambda x: x.sum(0), x), bounds(lambda x: x.sum(0), x, height=9999)
    assert float(tall.bound[0] / short.bound[0]) == pytest.approx(9999 / 200, rel=0.05)


def test_errors_grow_on_their_way_through_steep_functions():
    x = numbers(50)
    plain, steep = bounds(lambda x: (x * 3) + 0, x), bounds(lambda x: ((x * 3) * 30).exp(), x)
    finite = steep.bound[0].isfinite() & (plain.exact[0].abs() > 0.1)
    growth = (steep.bound[0] / steep.exact[0])[finite] / (plain.bound[0] / plain.exact[0].abs())[finite]
    assert float(growth.min()) > 2


def test_what_hangs_on_the_last_bit_is_open_and_nothing_else():
    x = torch.tensor([1.0, 2.0, 3.0])
    found = bounds(lambda x: (x * (1 / 3) * 3 > x * 1.0000000001, (x / 3).floor(), x > 2.5), x)
    assert (found.bound[1] > 0.5).tolist() == [False, False, True]  # 3 / 3 may be a little less than 1
    assert found.bound[2].tolist() == [0.0, 0.0, 0.0]


def test_whole_numbers_and_special_values_have_to_be_the_same():
    x = torch.tensor([1.0, float("nan"), float("inf"), -0.0])
    found = bounds(lambda x: (x * 2, x.isnan(), x.argmax()), x)
    assert found.bound[0][1:3].tolist() == [0.0, 0.0] and found.bound[1].tolist() == [0.0] * 4
    assert float(found.bound[2]) == 0.0


def test_drawn_numbers_are_played_back():
    x = numbers(40, 40)
    torch.manual_seed(7)
    eager = F.dropout(x, 0.3) + torch.rand_like(x)
    found = bounds(lambda x: F.dropout(x, 0.3) + torch.rand_like(x), x, seed=7)
    assert bool(((eager.double() - found.exact[0]).abs() <= found.bound[0]).all())


def test_gradients_have_bounds_and_half_precision_has_its_own_units():
    x = numbers(6, 40, grad=True)
    upstream = numbers(6)
    found = bounds_of(staxlab.trace(lambda x: (x.sin() * x).sum(-1), x).module, [x], upstream=[upstream])
    (gradient,) = torch.autograd.grad((x.sin() * x).sum(-1), x, upstream)
    assert bool(((gradient.double() - found.exact[1]).abs() <= found.bound[1]).all()) and len(found) == 3
    half = numbers(6, 40).to(torch.bfloat16)
    wide = bounds(lambda x: x * 1.5, half)
    units = wide.bound[0] / wide.exact[0].abs()
    assert 2.0**-8 < float(units.min()) and float(units.max()) < 40 * 2.0**-8


def test_a_program_that_cannot_run_so_has_a_reason_in_the_place_of_bounds():
    x = numbers(4)
    module = staxlab.trace(lambda x: x + 1, x).module
    found = bounds_of(module, [])
    assert not found.bound and found.reason.startswith("StopIteration")


def test_bounds_are_much_smaller_than_the_values_where_the_condition_is_good():
    """So that an error of a thousandth does not pass for rounding."""
    x, w = numbers(8, 64), numbers(64, 16)
    for function, inputs in ((lambda x: F.softmax(x, -1), (x,)), (lambda x: F.layer_norm(x, (64,)), (x,)),
                             (lambda x, w: F.gelu(x @ w), (x, w)), (lambda x: x.var(-1), (x,))):  # fmt: skip
        found = bounds(function, *inputs)
        assert float(found.bound[0].max()) < 1e-3 * float(found.exact[0].abs().max())


# -- comparison -------------------------------------------------------------------------------------------------------


def test_the_error_is_told_in_units_of_its_bound_at_the_worst_element():
    expected, bound = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.5, 0.01, 1.0]).double()
    found = compare([torch.tensor([1.25, 2.0, 4.75])], [expected], ["y"], [bound])
    assert found.agrees and not found.identical and (found.share, found.error, found.bound) == (0.75, 0.75, 1.0)
    assert found.condition == pytest.approx(1.0 / (4.0 * U))
    found = compare([torch.tensor([1.0, 2.02, 4.0])], [expected], ["y"], [bound])
    assert (found.difference.element, found.difference.wrong) == ((1,), 1)
    assert found.share == pytest.approx(2, rel=1e-3)


def test_without_bounds_only_the_same_bits_are_equal():
    one = torch.tensor([float("nan"), 0.0, 1.0])
    assert compare([one], [one.clone()], ["y"]).identical
    assert compare([torch.tensor([0.0])], [torch.tensor([-0.0])], ["y"]).difference.element == (0,)
    assert not compare([one + 1e-7], [one], ["y"]).agrees


@pytest.mark.parametrize(("computed", "expected"), [(math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0),
                                                    (math.inf, -math.inf)])  # fmt: skip
def test_nan_and_infinities_are_compared_whatever_the_bound(computed, expected):
    bound = [torch.tensor([1e30], dtype=torch.float64)]
    found = compare([torch.tensor([computed])], [torch.tensor([expected])], ["y"], bound)
    assert not found.agrees
    open_ = [torch.tensor([math.nan], dtype=torch.float64)]
    assert compare([torch.tensor([computed])], [torch.tensor([expected])], ["y"], open_).agrees


def test_the_first_wrong_value_is_named_with_the_rest_counted():
    expected = torch.zeros(3, 4)
    computed = expected.clone()
    computed[1, 2:] = 5
    found = compare([1, computed], [1, expected], ["a", "gradient of x"])
    assert str(found.difference) == "gradient of x[1, 2] is 5.0 in the place of 0.0 (2 of 12 elements are wrong)"
    assert "there are 1 values" in str(compare([1], [1, 2], ["a"]).difference)
    complex_ = torch.tensor([1 + 2j])
    assert compare([complex_], [complex_.clone()], ["z"]).identical
    assert not compare([complex_], [complex_.conj()], ["z"]).agrees
