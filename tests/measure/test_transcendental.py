"""Table 4.2: errors in units in the last place, against bounds that follow from the formulas, and the whole table."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest
import torch

import staxlab
from benchmarks import transcendental as command
from staxlab import view
from staxlab.measure import transcendental as t
from staxlab.measure.identities import evaluate
from staxlab.transform.decompose import EXPANSIONS, KEPT, UNITS_IN_THE_LAST_PLACE
from tests.view.reading import read

pytest.importorskip("mpmath")
U = 2.0**-24
POINTS = 400


@pytest.fixture(scope="module")
def table():
    return t.treatments(POINTS)


def computed_by_formula(name):
    function = t.BY_NAME[name]
    at = t.arguments(function, POINTS)
    return at.double(), evaluate(function.formula, {"x": at}).double(), t.exact_values(function, at)


# -- the measure itself ------------------------------------------------------------------------------------------------


def test_a_unit_in_the_last_place_is_the_distance_of_the_neighbours():
    values = torch.tensor([1.0, 1.5, 2.0, 3.0, 1e-3, 1e30, 2.0**-126, 2.0**-127, 2.0**-149])
    towards = torch.nextafter(values, torch.tensor(math.inf))
    assert torch.equal(t.unit_in_the_last_place(values.double()), towards.double() - values.double())


def test_errors_are_counted_in_these_units():
    exact = torch.tensor([1.0, 1.0, 1.0, 1e39, 1.0], dtype=torch.float64)
    off = t.errors_in_ulps(torch.tensor([1.0, 1 + 2**-23, math.inf, math.inf, math.nan]), exact)
    assert off.tolist() == [0.0, 1.0, math.inf, 0.0, math.inf]
    half_way = torch.tensor([1 + 2**-24], dtype=torch.float64)
    assert t.errors_in_ulps(torch.tensor([1.0]), half_way).item() == 0.5


def test_exact_values_are_exact():
    """log1p against its series, whose remainder is known: no function of mpmath's, no rounding."""
    at = torch.tensor([1e-10, -1e-6, 2.0**-20])
    for argument, value in zip(at.tolist(), t.exact_values(t.BY_NAME["log1p"], at).tolist(), strict=True):
        a = Fraction(argument)
        series = sum((-1) ** (k + 1) * a**k / k for k in range(1, 6))
        assert value == float(series)


def test_a_wrong_exact_value_would_be_noticed():
    """The planted mistake: were exact values rounded to float32, every error would be a whole number of units."""
    function = t.BY_NAME["tanh"]
    at = t.arguments(function, POINTS)
    off = t.errors_in_ulps(torch.tanh(at), t.exact_values(function, at))
    assert ((off % 1) != 0).float().mean() > 0.5


def test_arguments_stay_inside_the_domain_and_cover_the_span():
    for function in t.FUNCTIONS:
        at = t.arguments(function, 100)
        low, high = function.domain
        assert ((at > low) & (at < high)).all() and len(at) > 50, function.name
        distance = (at.double() - function.near).abs()
        assert (distance.diff() >= 0).all() and distance[0] < 2.0 ** (function.span[0] + 4), function.name


# -- bounds that hold for every argument -------------------------------------------------------------------------------


def test_log_of_one_plus_x_loses_the_rounding_of_the_sum_and_no_more():
    """fl(1 + x) = (1 + x)(1 + d), |d| <= u: the logarithm is off by log(1 + d), and rounds once more itself."""
    at, computed, exact = computed_by_formula("log1p")
    bound = -math.log1p(-U) + 2 * t.unit_in_the_last_place(exact)
    assert ((computed - exact).abs() <= bound).all()
    small = at.abs() < 1e-3
    assert ((computed - exact).abs() / exact.abs() <= (1.001 * U / at.abs() + 4 * U))[small].all(), "u / |x|"


def test_exp_minus_one_loses_the_rounding_of_the_exponential_and_no_more():
    at, computed, exact = computed_by_formula("expm1")
    inside = (exact.abs() < 1e38) & computed.isfinite()
    exponential = t.unit_in_the_last_place(at.exp()) + t.unit_in_the_last_place(exact)
    assert ((computed - exact).abs() <= exponential)[inside].all()


def test_the_example_of_section_4_4():
    """x = 1e-10: the sum is 1, the formula gives 0, an error of 100 percent; log1p is right to the last digit."""
    function, small = t.BY_NAME["log1p"], torch.tensor([1e-10])
    exact = t.exact_values(function, small)
    formula = evaluate(function.formula, {"x": small})
    assert 1 + small.item() != 1.0 and (1 + small).item() == 1.0 and formula.item() == 0.0
    assert t.errors_in_ulps(formula, exact).item() > 2**23
    assert t.errors_in_ulps(torch.log1p(small), exact).item() <= 1.0


@pytest.mark.parametrize("name", ["log1p", "expm1", "sinh", "tanh", "asinh", "atanh", "softplus", "logsigmoid", "erf",
                                  "erfc", "selu", "elu"])  # fmt: skip
def test_the_formula_is_catastrophic_where_the_operator_is_not(table, name):
    entry = table[name]
    assert entry["formula"].worst > 2**20, "more than twenty bits of twenty-four"
    assert entry["eager"].worst <= 4 and entry["ours"].worst <= 4


def test_nothing_that_is_written_out_loses_what_the_operator_had(table):
    for name in EXPANSIONS:
        ways = table[name].ways
        assert ways["ours"].worst <= ways["eager"].worst + UNITS_IN_THE_LAST_PLACE.get(name, 0), name
        assert ways["ours"].failure == ways["eager"].failure, name


def test_what_is_kept_is_the_operator_itself(table):
    for entry in table.measured:
        if entry.treatment == "kept":
            assert entry["ours"] == entry["eager"], entry.name


def test_failures_at_the_ends_of_the_format_are_told_apart(table):
    assert table["logaddexp"]["formula"].worst < 4 and table["logaddexp"]["formula"].failure[1] == math.inf
    assert math.isnan(table["tanh"]["formula"].failure[1]) and table["tanh"]["eager"].failure is None
    assert abs(table["logaddexp"]["formula"].failure[0]) > 88


def test_operators_that_are_their_formula_in_pytorch_are_as_inaccurate(table):
    """Kept, because generated kernels do better; ``test_accuracy`` measures by how much."""
    assert table["logit"]["eager"].worst > 2**18 and table["gelu"]["eager"].worst > 2**18
    assert "does not cancel" in table["logit"].reason and "does not cancel" in table["gelu"].reason


# -- the table ---------------------------------------------------------------------------------------------------------


def test_every_operator_of_the_table_is_there_once(table):
    assert [entry.name for entry in table.entries] == [*EXPANSIONS, *KEPT]
    assert {entry.name for entry in table.entries if not entry.ways} == {"softmax", "layer_norm"}
    assert set(t.BY_NAME) == {entry.name for entry in table.measured}
    for entry in table.measured:
        assert ("formula" in entry.ways) == bool(entry.formula), entry.name


def test_it_prints_and_draws(table):
    text = str(table)
    assert "Table 4.2" in text and "log(x + 1)" in text and "inf from" in text and "200-bit" in text
    page = read(view.html(table))
    assert "tanhshrink" in page.text and "units in the last place" in page.text
    (picture,) = [e for e in page.find("svg") if e.attributes.get("role") == "img"]
    assert "log1p: formula" in picture.attributes["aria-label"]


def test_without_matplotlib_the_table_stays(table, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    text = read(view.html(table)).text
    assert "matplotlib" in text and "tanhshrink" in text and "drawing failed" not in text


def test_it_is_written_as_data_and_read_again(tmp_path, capsys):
    out = tmp_path / "transcendental.json"
    assert command.main(["--operators", "log1p,tanh,softmax", "--points", "60", "--out", str(out)]) == 0
    assert "Table 4.2" in capsys.readouterr().out and out.with_suffix(".svg").exists()
    record = json.loads(out.read_text())
    assert record["format"] == command.FORMAT and record["what"] == "kernel"
    again = t.load(out)
    assert [entry.name for entry in again.entries] == ["log1p", "tanh", "softmax"]
    assert math.isnan(again["tanh"]["formula"].failure[1]) and "generated kernel" in str(again)
    assert again["log1p"]["ours"].worst <= 2 and record["machine"]["processor"] in str(again)


@pytest.mark.slow
def test_kernels_keep_what_operators_have():
    """Generated code calls another vector library for some of these; it must not be a worse one."""
    found = t.treatments(POINTS, staxlab.compile)
    for entry in found.measured:
        if entry["eager"].worst <= 4:
            assert entry["ours"].worst <= 4 and entry["ours"].failure in (None, entry["eager"].failure), entry.name


def test_unknown_operators_are_refused(capsys):
    with pytest.raises(staxlab.OptionError, match="not in Table 4.2: sin"):
        t.treatments(10, names=["sin"])
    for options in (["--operators", "sin"], ["--points", "0"]):
        with pytest.raises(SystemExit):
            command.main(options)


def test_without_mpmath_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mpmath", None)
    with pytest.raises(staxlab.MissingDependencyError, match=r"staxlab\[proof\]"):
        t.treatments(10, names=["log1p"])


def test_the_committed_results_are_those_of_this_code(repository):
    """The figures the notebook shows: every operator, with a kernel, and as accurate as said."""
    found = t.load(repository / "benchmarks/results/transcendental_cpu.json")
    assert found.what == "kernel" and [entry.name for entry in found.entries] == [*EXPANSIONS, *KEPT]
    assert max(entry.points for entry in found.measured) == t.POINTS
    reasons = {**{name: str(make()) for name, make in EXPANSIONS.items()}, **KEPT}
    assert {entry.name: entry.reason for entry in found.entries} == reasons
    for entry in found.measured:
        assert entry["ours"].worst <= 4 or entry["eager"].worst > 4, entry.name
        assert (entry.formula or None) == (t.BY_NAME[entry.name].formula and str(t.BY_NAME[entry.name].formula))
