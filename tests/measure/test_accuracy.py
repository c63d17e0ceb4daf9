"""Elementwise functions against exact values: the bound for every one of them, and whether its violation is found."""

from __future__ import annotations

import json
import math

import pytest
import torch

import staxlab
from benchmarks import accuracy as command
from staxlab import view
from staxlab.loops.ops import OPERATIONS
from staxlab.measure import accuracy as a
from staxlab.measure.accuracy_arguments import binades, hard_arguments, near_multiples, neighbours, sample
from staxlab.measure.accuracy_functions import COMPOSED
from tests.codegen.cpp_support import RUNNABLE, compile_program, pointwise
from tests.view.reading import read

pytest.importorskip("mpmath")
ALGEBRAIC = {"sqrt", "rsqrt", "reciprocal", "truediv", "fmod", "remainder", "floordiv"}
F32 = torch.float32


def uncovered(functions) -> set[str]:
    wanted = {name for name, rule in OPERATIONS.items() if rule.transcendental} | ALGEBRAIC
    return wanted - {function.name for function in functions}


def measured(name, ways, **options):
    return a.measure(a.BY_NAME[name], ways, **{"mantissas": 8, "grid": 1, **options})


# -- which functions, at which arguments -------------------------------------------------------------------------------


def test_every_transcendental_operation_is_measured():
    assert uncovered(a.FUNCTIONS) == set()
    assert len(a.BY_NAME) == len(a.FUNCTIONS)


def test_one_that_is_not_would_be_noticed():
    assert uncovered(f for f in a.FUNCTIONS if f.name not in ("erf", "fmod")) == {"erf", "fmod"}


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
def test_every_binade_is_sampled_on_both_sides(dtype):
    numbers = sample(dtype, 6, torch.Generator().manual_seed(0))
    count = len(binades(dtype))
    assert count == {torch.float32: 277, torch.float64: 2098}[dtype] and numbers.shape == (2 * count, 6)
    exponents = torch.frexp(numbers.double().abs() if dtype == torch.float32 else numbers.abs())[1] - 1
    wanted = torch.tensor([*binades(dtype), *binades(dtype)])
    assert torch.equal(exponents, wanted[:, None].expand(-1, 6).to(exponents.dtype))
    assert (numbers[:count] > 0).all() and (numbers[count:] < 0).all()
    assert numbers[count - 1].max() == torch.finfo(dtype).max and numbers[0, 0] == numbers[0].max() > 0
    assert all(len(row.unique()) == 6 for row in numbers[30:count])


def test_neighbours_are_all_numbers_around_a_place():
    found = neighbours([1.0], F32).sort().values
    middle = len(found) // 2
    steps = found[middle - 8 : middle + 9]
    assert found[middle] == 1 and torch.equal(steps[1:], torch.nextafter(steps[:-1], torch.tensor(2.0)))


def test_the_numbers_closest_to_multiples_of_half_pi_are_found():
    """The worst case of single precision, 16367173 * 2^72, is known (Muller, 2016, "Elementary Functions", 11.4)."""
    import mpmath

    found = near_multiples(F32)
    assert 16367173 * 2.0**72 in found.tolist()
    with mpmath.workprec(400):
        distances = {}
        for number in found.tolist():
            quotient = mpmath.mpf(number) / (mpmath.pi / 2)
            exponent = math.frexp(number)[1]
            distances[exponent] = min(distances.get(exponent, 1.0), float(abs(quotient - mpmath.nint(quotient))))
    assert len(distances) == 128 and max(distances.values()) < 2.0**-18


def test_delicate_places_are_among_the_arguments():
    assert {1.0, float(torch.nextafter(torch.tensor(1.0), torch.tensor(2.0)))} <= set(
        hard_arguments(a.BY_NAME["log"], F32).tolist()
    )
    assert len(hard_arguments(a.BY_NAME["sin"], F32)) > 1000


# -- the unit ----------------------------------------------------------------------------------------------------------


def values(*numbers):
    high = torch.tensor(numbers, dtype=torch.float64)
    return a.ExactValues(high, torch.zeros_like(high), high.abs())


def test_errors_are_counted_in_units_of_the_exact_value():
    tiny, most = 2.0**-149, torch.finfo(F32).max
    exact = values(1.0, 1 + 2.0**-24, tiny * 1.5, 2.0**128, most, math.nan, 1.0, 0.0, -(2.0**128))
    computed = torch.tensor([1 + 2.0**-23, 1.0, tiny, most, math.inf, math.nan, math.nan, 2 * tiny, math.inf])
    off, plain = a.errors(computed, exact)
    assert off.tolist()[:8] == [1.0, 0.5, 0.5, 1.0, 1.0, 0.0, math.inf, 2.0] and off[8] > 2**23
    assert torch.equal(off, plain)


def test_a_number_where_there_is_none_is_an_error():
    off, _ = a.errors(torch.tensor([0.0, math.inf]), values(math.nan, math.nan))
    assert off.tolist() == [math.inf, math.inf]


def test_what_is_more_exact_than_float64_counts_in_float64():
    exact = a.ExactValues(*(torch.tensor([v], dtype=torch.float64) for v in (1.0, 2.0**-54, 1.0)))
    off, _ = a.errors(torch.tensor([1 + 2.0**-52], dtype=torch.float64), exact)
    assert off.item() == 0.75


def test_where_a_difference_is_taken_its_parts_are_the_size():
    found = measured("tanhshrink", {"kernel": torch.nn.functional.tanhshrink})
    assert found["kernel"].worst <= 4 and found["kernel"].plain > 2**20


# -- the bound ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [function.name for function in a.FUNCTIONS])
def test_generated_kernels_are_within_the_bound(name):
    """A thinned sweep: one argument of each binade and sign, the worst of eight more, and all hard ones; by the widest
    vectors of this machine, and single functions also element by element, which is the C library's work."""
    function = a.BY_NAME[name]
    sets = [RUNNABLE[0]] if function in COMPOSED else dict.fromkeys((RUNNABLE[0], "scalar"))
    ways = a.compiled_ways(function, staxlab.compile, sets)
    del ways["eager"]
    found = measured(name, ways)
    for way in found.ways:
        assert found.within(way), f"{found}"


@pytest.mark.slow
@pytest.mark.parametrize("name", [function.name for function in a.FUNCTIONS])
def test_every_instruction_set_is_within_the_bound(name):
    ways = a.compiled_ways(a.BY_NAME[name], staxlab.compile, RUNNABLE)
    found = measured(name, ways, mantissas=512, grid=4, seed=1)
    for way in found.generated:
        assert found.within(way), f"{found}"


def test_bounds_other_than_four_units_say_why():
    for function in a.FUNCTIONS:
        assert function.bound <= 4.0
        assert bool(function.why) == (function.scale is not None or math.isfinite(function.inside[1])), function.name


@pytest.mark.parametrize("instruction_set", RUNNABLE)
def test_the_operation_that_no_operator_reaches(instruction_set):
    """floordiv of floating-point numbers: the lowering of floor_divide writes it out."""
    length = 2 * 277 * 8 + 13
    inputs = {"x": torch.zeros(length), "y": torch.zeros(length)}
    program = pointwise(
        inputs, (length,), F32, lambda ops, i: ops.floordiv(ops.load("x", i[0]), ops.load("y", i[0]))
    )  # fmt: skip
    compiled, _, _ = compile_program(program, instruction_set)
    found = measured("floordiv", {"kernel": lambda x, y: compiled.call([x, y])[0]})
    assert found["kernel"].worst <= 4, str(found)


@pytest.mark.parametrize("name", ["sigmoid", "sinh", "lgamma", "gelu", "silu", "logit", "tanh"])
def test_the_tail_of_a_loop_is_its_body(name):
    """Masked lanes run the same code: the same arguments give the same bits wherever they stand."""
    x = sample(F32, 1, torch.Generator().manual_seed(3)).reshape(-1)[:277]
    kernel = staxlab.compile(lambda x: a.BY_NAME[name].operator(x))
    padded = torch.cat([x, x.new_ones(43)])  # 320 elements: whole vectors
    whole, tail = kernel(padded)[:277], kernel(x)
    assert torch.equal(whole.nan_to_num(7.0), tail.nan_to_num(7.0))


@pytest.mark.parametrize("name", ["sin", "sigmoid", "sinh"])
def test_values_that_do_not_vary_within_a_vector_are_as_exact(name):
    """They are computed one at a time, by another library."""
    function = a.BY_NAME[name]
    kernel = staxlab.compile(lambda x, y: function.operator(x)[:, None] * y)
    ones = torch.ones(16)
    found = measured(name, {"kernel": lambda x: kernel(x, ones)[:, 5]})
    assert found["kernel"].worst <= 4 and not found["kernel"].wrong


def test_what_pytorch_leaves_is_mended():
    """Where eager execution overflows, cancels or has NaN for a number, generated kernels do not."""
    x = torch.tensor([88.9, -88.9] * 20)
    for operator in (torch.sinh, torch.cosh):
        assert staxlab.compile(lambda x, f=operator: f(x))(x).isfinite().all()
    assert (staxlab.compile(torch.sigmoid)(-x.abs()) > 0).all()
    assert (staxlab.compile(torch.nn.functional.silu)(-x.abs()) < 0).all()
    assert (staxlab.compile(torch.nn.functional.gelu)(-x.abs() / 8) < 0).all()
    quotient = staxlab.compile(torch.fmod)(torch.full((40,), 1e30), torch.full((40,), 1e-30))
    assert torch.equal(quotient, torch.full((40,), math.fmod(*torch.tensor([1e30, 1e-30]).tolist())))
    assert staxlab.compile(torch.lgamma)(torch.full((40,), 4.06e36)).isfinite().all()
    assert torch.equal(staxlab.compile(torch.nn.functional.tanhshrink)(x / 1e10), torch.zeros(40))


# -- special values ----------------------------------------------------------------------------------------------------


def test_prescribed_values_are_pytorchs_own_but_for_these():
    """Two opinions: what this table prescribes, and what eager execution does. They differ where eager's vectors have
    NaN for gelu(inf)."""
    differing = {f.name: a.wrong_values(f, f.operator) for f in a.FUNCTIONS}
    assert {name for name, wrong in differing.items() if wrong} <= {"gelu"}, differing


def test_the_sign_of_zero_counts():
    (said,) = a.wrong_values(a.BY_NAME["sin"], lambda x: torch.sin(x) + 0.0)
    assert said == "sin(-0) = 0, not -0"


def test_numbers_outside_the_domain_count():
    wrong = a.wrong_values(a.BY_NAME["pow"], lambda x, y: torch.where(y == 0, torch.nan, x**y))
    assert "pow(nan, 0) = nan, not 1" in wrong
    outside = measured("log", {"kernel": lambda x: torch.log(x.abs())})
    assert outside["kernel"].worst == math.inf and outside["kernel"].at[0] < 0


# -- planted mistakes --------------------------------------------------------------------------------------------------


def test_an_inaccurate_function_is_found():
    found = measured("gelu", {"kernel": lambda x: x * 0.5 * (1 + torch.erf(x * 0.70710678))})
    assert not found.within("kernel") and found["kernel"].at[0] < -1
    assert found["kernel"].plain == found["kernel"].worst > 2**20


def test_one_bad_binade_is_found():
    def wrong(x):
        return torch.where(
            (x.abs() >= 2.0**-90) & (x.abs() < 2.0**-89), torch.asinh(x) * (1 + 2.0**-20), torch.asinh(x)
        )

    found = measured("asinh", {"kernel": wrong})
    beyond = {exponent for exponent, error in found.curve().items() if error > 4}
    assert beyond == {-90} and math.frexp(found["kernel"].at[0])[1] - 1 == -90


def test_one_bad_number_is_found_if_the_sieve_meets_it():
    """A single float32 number in a binade: the sieve goes through as many as it is told to."""
    numbers = sample(F32, 8, torch.Generator().manual_seed(0))  # drawn as the grid: the sieve draws others
    assert len(numbers) == 554

    def wrong(x):
        return torch.where((x.view(torch.int32) & 0xFFF) == 0x123, 1.001 * torch.atan(x), torch.atan(x))

    found = measured("atan", {"kernel": wrong}, mantissas=4096)
    assert sum(error > 4 for error in found.curve().values()) > 100


def test_lost_subnormals_are_found():
    found = measured("exp", {"kernel": lambda x: torch.where(x < -87.4, 0.0, torch.exp(x))})
    assert found["kernel"].worst > 2**20 and -104 < found["kernel"].at[0] < -87.4


# -- records -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def record():
    def ways(function):
        return {"eager": function.operator, "kernel": function.operator}

    return a.accuracy(ways, ["tanh", "pow", "lgamma", "sinh"], mantissas=4, grid=1)


def test_it_prints(record):
    text = view.text(record)
    assert "bound (ulp)" in text and "4*" in text and "200-bit" in text and "(!) sinh, kernel: inf instead" in text
    rows = [line for line in text.splitlines() if line.endswith("|")]
    assert len(rows) == 4 and len({len(row) for row in rows}) == 1
    assert "!" in rows[0] and rows[0].startswith("sinh") and "beyond 4" in text


def test_one_function_prints(record):
    text = str(record["lgamma"])
    assert "bound 4 ulp" in text and "below 0" in text and "as prescribed" in text


def test_it_draws(record):
    page = read(view.html(record))
    (picture,) = [e for e in page.find("svg") if e.attributes.get("role") == "img"]
    assert "sinh: eager" in picture.attributes["aria-label"] and "beyond 4, crossed" in page.text
    strip = read(view.html(record["tanh"]))
    assert "bound 4" in strip.text and "exponent" in strip.text


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_is_written_as_a_picture(record, theme, tmp_path):
    from staxlab.view.accuracy import write

    assert write(record, tmp_path / "map.png", theme).stat().st_size > 1000
    assert "exponent" in write(record["pow"], tmp_path / "strip.svg", theme).read_text()


def test_without_matplotlib_the_map_is_text(record, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    text = read(view.html(record)).text
    assert "matplotlib" in text and "|" in text and "drawing failed" not in text


def test_it_is_written_as_data_and_read_again(tmp_path, capsys):
    out = tmp_path / "accuracy.json"
    given = ["--functions", "tanh,pow", "--mantissas", "4", "--rounds", "1", "--dtypes", "float32", "--out", str(out)]
    assert command.main(given) == 0
    assert "Errors of float32 functions" in capsys.readouterr().out and out.with_suffix(".svg").exists()
    again = a.load(out)
    assert json.loads(out.read_text())["format"] == command.FORMAT
    assert [entry.name for entry in again.entries] == ["tanh", "pow"] and not again.beyond
    assert again["pow"].curve(["eager"]) and len(again["tanh"].curve()) == 277 and "measured" not in again.machine
    assert a.Accuracy.from_json(again.to_json()) == a.Accuracy(again.entries)
    assert a.load(out, torch.float64).entries == ()


def test_double_precision_is_measured_too():
    found = measured("expm1", {"kernel": torch.expm1}, dtype=torch.float64)
    assert 0.3 < found["kernel"].worst < 2 and found.points > 4000


def test_unknown_functions_are_refused(capsys):
    with pytest.raises(staxlab.OptionError, match="no such function: cot"):
        a.accuracy(lambda function: {}, ["cot"])
    for options in (["--functions", "cot"], ["--mantissas", "0"], ["--dtypes", "float8"]):
        with pytest.raises(SystemExit):
            command.main(options)


def test_without_mpmath_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mpmath", None)
    with pytest.raises(staxlab.MissingDependencyError, match=r"staxlab\[proof\]"):
        measured("exp", {"kernel": torch.exp})


def test_the_committed_results_are_those_of_this_code(repository):
    found = a.load(repository / "benchmarks/results/accuracy_cpu.json")
    assert [entry.name for entry in found.entries] == [function.name for function in a.FUNCTIONS]
    assert [(e.bound, e.why) for e in found.entries] == [(f.bound, f.why) for f in a.FUNCTIONS]
    assert found.beyond == []
    assert all(set(entry.curve()) == set(binades(F32)) or a.BY_NAME[entry.name].why for entry in found.entries)
    double = a.load(repository / "benchmarks/results/accuracy_cpu.json", torch.float64)
    assert len(double.entries) == len(found.entries) and double.beyond == []
    assert {e.name for e in double.entries if math.isinf(e.bound)} == {f.name for f in a.FUNCTIONS if f.why_double}
