"""The tolerance chooser: right results pass whatever their condition, wrong ones do not, and words say why."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab
from staxlab.errors import StaxError, ToleranceError
from staxlab.measure import tolerance
from staxlab.measure.rounding import (
    composed_units,
    expected_height,
    gamma,
    pairwise,
    segmented,
    sequential,
    stored_apart,
    unit_roundoff,
)

U = unit_roundoff("float32")


def drawn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60), st.sampled_from([torch.float32, torch.bfloat16])
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_sums_in_two_orders_are_within_their_tolerance(values, dtype):
    row = torch.tensor([values]).to(dtype)
    n = len(values)
    first, second = sequential(n), segmented(n, 4, "pairwise")
    one, other = (plan.run(row, torch.float32).to(dtype) for plan in (first, second))
    found = tolerance.of_sum(row, first, second)
    assert found.agrees(one, other)
    exact = torch.tensor([math.fsum(row.double()[0].tolist())], dtype=torch.float64)
    alone = tolerance.of_sum(row, second, exact_reference=True)
    assert float((other.double() - exact).abs()) <= float(alone.room(other)) <= float(found.room(other)) + 1e-300


def test_a_sum_that_cancels_has_room_and_one_that_does_not_has_little():
    """The fixed tolerance that Section 13.3 warns of is wrong about both rows; this one is right about both."""
    n = 4096
    bad = drawn(n) * 1e4
    bad[-1] -= bad.sum()
    rows = torch.stack((bad, torch.full((n,), 1.0)))
    plan = pairwise(n)
    computed, other = plan.run(rows), sequential(n).run(rows)
    found = tolerance.of_sum(rows, plan, sequential(n))
    assert found.agrees(computed, other)
    off = (computed - other).abs()
    assert off[0] > 1e-4 * other[0].abs(), "the rows do cancel"
    room = tolerance.of_sum(rows, plan, plan).room(other)
    assert room[1] < 1 < room[0], "a lost summand of the second row shows, by less than the first row's room"
    lost = torch.stack((computed[0], sequential(n - 1).run(rows[1, 1:])))
    agreement = tolerance.of_sum(rows, plan, plan).compare(lost, other)
    assert agreement.difference.element == (1,) and agreement.difference.wrong == 1
    with pytest.raises(ToleranceError, match="shape"):
        found.compare(lost[:1], other[:1])


def test_the_room_of_a_sum_is_the_bound_of_either_side_and_no_more():
    rows = drawn(3, 100)
    size = rows.double().abs().sum(-1)
    expected = (gamma(7) + gamma(99)) * size
    assert torch.allclose(tolerance.of_sum(rows, pairwise(100)).absolute, expected, rtol=1e-12)
    assert torch.allclose(tolerance.of_sum(rows, pairwise(100), exact_reference=True).absolute, gamma(7) * size)
    typical = tolerance.of_sum(rows, typical=True).absolute / size
    assert torch.allclose(typical, torch.tensor(2 * gamma(18), dtype=torch.float64)) and expected_height(100) == 20
    halves = rows.to(torch.bfloat16)
    room = tolerance.of_sum(halves, pairwise(100), exact_reference=True).absolute / halves.double().abs().sum(-1)
    assert torch.allclose(room, torch.tensor(gamma(7) + (1 + gamma(7)) / 256, dtype=torch.float64))


def test_a_lost_summand_is_refused_with_the_reason():
    rows = drawn(8, 256).abs()
    wanted = rows.sum(-1)
    with pytest.raises(ToleranceError, match=r"row sums\[0\].*elements are wrong") as caught:
        tolerance.of_sum(rows, pairwise(256), pairwise(256)).require(rows[:, 1:].sum(-1), wanted, "row sums")
    assert isinstance(caught.value, AssertionError) and isinstance(caught.value, StaxError)
    assert "256 numbers" in str(caught.value) and "height 8" in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("depth", [1, 64, 777])
def test_products(dtype, depth):
    a, b = drawn(9, depth, dtype=dtype), drawn(depth, 7, seed=1, dtype=dtype)
    found = tolerance.of_product(a, b)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    other = (a.to(wide).flip(-1) @ b.to(wide).flip(0)).to(dtype)
    agreement = found.require(a @ b, other)
    assert agreement.share <= 1 and f"depth {depth}" in found.why
    wrong = a @ b
    wrong[3, 4] += 40 * depth * unit_roundoff(dtype) * float(a[3].abs().double() @ b[:, 4].abs().double())
    assert not found.agrees(wrong, other)
    assert float(tolerance.of_product(a, b, typical=False).absolute.max()) >= float(found.absolute.max())


def test_one_value_rounded():
    x = drawn(1000).exp()
    found = tolerance.of_dtype(torch.float32, 2)
    assert found.relative == pytest.approx(4 * U, rel=1e-6) and "2 roundings" in found.why
    assert found.agrees(x * 3 / 7, x / 7 * 3) and not found.agrees(x * (1 + 1e-6), x)
    assert tolerance.of_dtype("bfloat16").relative == pytest.approx(2 / 256, rel=0.01)
    for dtype in (torch.int64, torch.bool):
        assert tolerance.of_dtype(dtype).is_exact and not tolerance.of_dtype(dtype).agrees(
            torch.ones(2, dtype=dtype), torch.zeros(2, dtype=dtype)
        )
    assert tolerance.of_dtype(torch.complex64).relative == pytest.approx(2 * U, rel=1e-6)
    with pytest.raises(ValueError, match="-1 times"):
        tolerance.of_dtype(torch.float32, -1)


def test_exact_asks_for_every_bit_and_nan_is_nan():
    x = torch.tensor([1.0, math.nan, math.inf, 0.0])
    assert tolerance.exact().agrees(x, x.clone())
    assert not tolerance.exact().agrees(torch.nextafter(x, torch.tensor(9.0)), x)
    assert not tolerance.exact().agrees(x.neg().abs(), torch.tensor([1.0, math.nan, math.inf, -0.0]))
    assert tolerance.of_sum(torch.ones(3, 4, dtype=torch.int32)).is_exact
    assert tolerance.of_product(torch.ones(3, 4, dtype=torch.int32), torch.ones(4, 2, dtype=torch.int32)).is_exact


@pytest.mark.parametrize("place", [math.nan, math.inf])
def test_what_is_no_number_has_to_be_where_it_is(place):
    wide = tolerance.Tolerance(1e30, 1e30, "anything")
    assert wide.agrees(torch.tensor([place, 1.0]), torch.tensor([place, 5.0]))
    assert not wide.agrees(torch.tensor([1.0, 1.0]), torch.tensor([place, 1.0]))
    assert not wide.agrees(torch.tensor([place, 1.0]), torch.tensor([1.0, 1.0]))
    assert not wide.agrees(torch.ones(2), torch.ones(3)) and not wide.agrees(torch.ones(2).double(), torch.ones(2))


def test_a_program_decides_for_itself_and_for_its_data():
    """Example 7.1 on a row that cancels and one that does not, in one call: a defect of 1e-5 shows in one of them."""

    def normalise(x):
        return x / x.sum(-1, keepdim=True), x.argmax(-1)

    x = drawn(2, 2048)
    x[0] -= x[0].mean() * (1 - 1e-5)
    x[1] = x[1].abs()
    tolerances = tolerance.of_program(normalise, x)
    compiled = staxlab.compile(normalise, strict_native=True)
    assert tolerance.require_agreement(compiled(x), normalise(x), tolerances).agrees
    rooms = (tolerances[0].room(normalise(x)[0]) / normalise(x)[0].abs()).amax(-1)
    assert rooms[0] > 100 * rooms[1] and "right implementation" in tolerances[0].why
    wrong = normalise(x)[0] * (1 + 1e-3)
    found = tolerances[0].compare(wrong, normalise(x)[0])
    assert found.difference is not None and found.difference.element[0] == 1
    with pytest.raises(ToleranceError, match="result 1"):
        tolerance.require_agreement((normalise(x)[0], x.argmin(-1)), normalise(x), tolerances)
    with pytest.raises(ToleranceError, match="1 results beside 2"):
        tolerance.require_agreement(compiled(x)[0], normalise(x), tolerances)
    module = staxlab.trace(normalise, x).module
    again = tolerance.of_program(module, x)
    assert torch.equal(again[0].absolute, tolerances[0].absolute)


def test_without_bounds_bits_are_asked_for_and_it_says_so(monkeypatch):
    from staxlab.measure import program_bounds

    monkeypatch.setattr(program_bounds, "_bounds", lambda *_: (_ for _ in ()).throw(RuntimeError("no such kernel")))
    (found,) = tolerance.of_program(lambda x: x + 1, drawn(3))
    assert found.is_exact and "no such kernel" in found.why


def test_rules_for_orders_that_are_not_known():
    assert [expected_height(n) for n in (1, 4, 100, 10_000)] == [1, 4, 20, 200]
    assert expected_height(100, height=50) == 50 and expected_height(100, height=1000) == 100
    assert composed_units(100) == 24
    assert stored_apart(1.0, torch.float32) == pytest.approx(2 * U) and stored_apart(0.0, "float32") == 4 * 2.0**-149
    assert float(stored_apart(torch.ones(1), torch.bfloat16)) == pytest.approx(2 / 256)


def test_beside_eager():
    """Eager's error carries the condition, and what is allowed at least is what sums are typically off by."""
    assert tolerance.beside_eager(1e-4, "float32") == pytest.approx(1e-2, rel=1e-3)
    assert tolerance.beside_eager(0.0, "float32", 2048) == pytest.approx(8 * math.sqrt(2048) * 2 * U, rel=0.01)
    assert 2 / 256 < tolerance.beside_eager(0.0, torch.bfloat16, 64) < 2.1 / 256
    assert tolerance.beside_eager(0.0, "float64", 64) < 1e-13


def test_it_prints():
    rows = drawn(3, 16)
    assert "element by element" in str(tolerance.of_sum(rows)) and "any" not in str(tolerance.exact())
    assert str(tolerance.of_dtype("float16")).startswith("absolute")
    nothing = tolerance.of_sum(torch.empty(0, 5))
    assert nothing.agrees(torch.empty(0), torch.empty(0)) and "0 to 0" in str(nothing)
