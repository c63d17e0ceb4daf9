"""Ridge points by kind of number, and what fusing an epilogue saves."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab.errors import OptionError
from staxlab.measure.epilogue_saving import epilogue_saving
from staxlab.measure.matrix_traffic import peak_intensity
from staxlab.measure.tensor_cores import least_order, measured_roofline, ridge_table
from staxlab.options import DeviceSpec


def test_the_numbers_of_the_section_and_of_exercise_40():
    table = ridge_table("sm_90")
    assert round(table["bfloat16"].ridge) == 295 and round(table["bfloat16"].ridge / table["float32"].ridge) == 15
    assert table["bfloat16"].least_order == table["float8"].least_order == 886
    assert table["float8"].rate == 2 * table["bfloat16"].rate


@given(st.sampled_from((1, 2, 4)), st.integers(1, 10**16), st.integers(10**9, 10**13))
def test_the_least_order_is_the_least(itemsize, rate, bandwidth):
    n = least_order(itemsize, rate, bandwidth)
    ridge = Fraction(rate, bandwidth)
    assert peak_intensity(n, n, n, itemsize) >= ridge
    assert n == 1 or peak_intensity(n - 1, n - 1, n - 1, itemsize) < ridge


def test_a_roofline_with_a_ceiling_for_each_rate():
    roof = ridge_table("sm_90").roofline()
    assert [c.value for c in roof.of("throughput")] == [1978e12, 989e12, 494.5e12, 67e12]
    placed = ridge_table("sm_90").roofline((512, 4096))
    assert placed.throughput == 989e12, "products are judged by their own rate"
    below, beyond = placed.points
    assert placed.limit(below).kind == "bandwidth" and placed.limit(beyond).kind == "throughput"
    assert all(placed.fraction(point) == pytest.approx(1) for point in placed.points)
    assert "nothing here is measured" in str(placed)


def test_other_rates_and_measured_ones():
    table = ridge_table("sm_90", bandwidth=4.8e12).with_measured({"bfloat16": 680e12})
    assert table["bfloat16"].measured == 680e12 and table["bfloat16"].least_order == 619
    assert "680 TFLOP/s" in str(table)
    with pytest.raises(KeyError):
        table.with_measured({"int8": 1.0})
    unknown = DeviceSpec(kind="cuda", name="x", compute_capability=70, nominal_bandwidth=1e12)
    for call in (
        lambda: ridge_table(unknown),
        lambda: ridge_table(90),
        lambda: ridge_table(unknown, rates={"int4": 1e12}),
        lambda: ridge_table("sm_90", bandwidth=0.0),
        lambda: least_order(0, 1.0, 1.0),
    ):
        with pytest.raises(OptionError) as caught:
            call()
        assert caught.value.remedy
    assert ridge_table(unknown, rates={"float16": 1e14}).rows[0].ridge == 100


def saved_run():
    """What a device that is exactly as fast as its model would have saved."""
    entries = []
    for dtype, itemsize, rate in (("bfloat16", 2, 700e12), ("float32", 4, 50e12), ("tf32", 4, 400e12)):
        for order in (256, 1024, 4096):
            intensity = float(peak_intensity(order, order, order, itemsize))
            reached = min(rate, 4e12 * intensity)
            seconds = 2 * order**3 / reached
            entries.append({"dtype": dtype, "order": order, "intensity": intensity, "rate": reached,
                            "median_s": seconds, "interval_s": [seconds * 0.99, seconds * 1.01]})  # fmt: skip
    return {"ridge": entries, "copy_bandwidth": 4e12, "machine": {"device": "a model"}}


def test_a_saved_run_is_drawn_as_it_was():
    roof = measured_roofline(saved_run(), "tf32")
    assert [c.name for c in roof.of("throughput")] == ["best tf32", "best float32"] and roof.throughput == 400e12
    assert [point.label for point in roof.points] == ["n = 256", "n = 1024", "n = 4096"]
    assert all(roof.fraction(point) == pytest.approx(1) for point in roof.points)
    assert "[99%, 101%]" in str(roof) and "a model" in roof.title
    for record, dtype in ((saved_run(), "float8"), ({"ridge": []}, "bfloat16")):
        with pytest.raises(OptionError, match="were measured in this run") as caught:
            measured_roofline(record, dtype)
        assert "benchmarks.product_models" in caught.value.remedy


def test_exercise_25():
    saving = epilogue_saving(4096, 4096, 4096)
    assert saving.saved == 2 * 4096**2 and saving.share_of_reads == Fraction(128, 4096)
    assert saving.share == Fraction(2, 65)


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 200))
def test_what_is_saved_does_not_depend_on_the_depth(m, n, k, side):
    saving = epilogue_saving(m, n, k, tile=(side, side, 8))
    assert saving.saved == 2 * m * n == saving.at(2 * k).saved
    assert saving.at(k + 1).share < saving.share <= saving.share_at_least_traffic < 2
    assert 1 <= saving.speedup < 3
    if m % side == 0 and n % side == 0:
        assert saving.share_of_reads == Fraction(side, k)


def test_the_table_has_the_curve():
    saving = epilogue_saving(4096, 4096, 4096, depths=(16, 128))
    assert [one.traffic.k for one in saving.curve] == [16, 128]
    assert "66.67%" in str(saving) and "nothing measured" in str(saving)
    with pytest.raises(OptionError):
        epilogue_saving(8, 8, 8, rate=0)
