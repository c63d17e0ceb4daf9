"""Special functions: within a unit in the last place in single precision, and eager's special values."""

from __future__ import annotations

import math

import pytest
import torch

import staxlab
from staxlab.loops.lowering import special

mpmath = pytest.importorskip("mpmath")
F32, F64 = torch.float32, torch.float64


def scaled(order: int):
    return lambda x: mpmath.besseli(order, x) * mpmath.exp(-abs(x))


# compiled function, exact function, arguments, the bound in double precision (units in the last place)
FUNCTIONS = {
    "digamma": (torch.digamma, mpmath.digamma, "real", None),  # no bound near its roots
    "trigamma": (lambda x: torch.polygamma(1, x), lambda x: mpmath.polygamma(1, x), "real", 40),
    "erfinv": (torch.erfinv, mpmath.erfinv, "unit", 4),
    "i0": (torch.i0, lambda x: mpmath.besseli(0, x), "moderate", 20),
    "i1": (torch.special.i1, lambda x: mpmath.besseli(1, x), "moderate", 20),
    "i0e": (torch.special.i0e, scaled(0), "real", 20),
    "i1e": (torch.special.i1e, scaled(1), "real", 20),
}


def arguments(kind: str, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)

    def uniform(count: int, low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(count, generator=generator, dtype=F64)

    if kind == "unit":
        digits = 15 if dtype == F64 else 7
        parts = [uniform(150, -1, 1), 1 - 10 ** uniform(100, -digits, -1), 10 ** uniform(80, -30, -1)]
    else:
        parts = [uniform(200, -30, 30), 10 ** uniform(80, -20, 1.9)]
        if kind == "real":
            parts.append(10 ** uniform(40, 2, 15))
    found = torch.cat(parts).to(dtype)
    return found[(found.abs() < 1) | (kind != "unit")]


def errors(function, exact, x: torch.Tensor) -> list[float]:
    """Distance from the exact value in units in the last place, by argument."""
    compiled = staxlab.compile(function)
    results = compiled(x)
    assert {kernel.language for kernel in compiled.versions[0].compilation.kernels} == {"cpp"}
    found = []
    for argument, result in zip(x.tolist(), results.tolist(), strict=True):
        with mpmath.workdps(40):
            value = exact(mpmath.mpf(argument))
            rounded = torch.tensor(float(value), dtype=x.dtype).abs()
            unit = torch.nextafter(rounded, torch.tensor(math.inf, dtype=x.dtype)) - rounded
            found.append(float(abs(mpmath.mpf(result) - value) / mpmath.mpf(float(unit))))
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_single_precision_is_rounded_once(name):
    function, exact, kind, _ = FUNCTIONS[name]
    x = arguments(kind, F32)
    assert max(errors(function, exact, x)) <= 0.5 + 1e-6


@pytest.mark.parametrize("name", [name for name, row in FUNCTIONS.items() if row[3] is not None])
def test_double_precision(name):
    function, exact, kind, bound = FUNCTIONS[name]
    assert max(errors(function, exact, arguments(kind, F64))) <= bound


def test_digamma_in_double_precision_has_an_absolute_bound_near_its_roots():
    x = torch.cat([arguments("real", F64), torch.linspace(1.4, 1.5, 200, dtype=F64)])
    found = staxlab.compile(torch.digamma)(x)
    torch.testing.assert_close(found, torch.digamma(x), rtol=1e-13, atol=1e-13)


SPECIAL = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, -2.0, -30.0, 1e-30, -1e-30])


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "trigamma"])
def test_special_values_are_eagers(name, dtype):
    function = FUNCTIONS[name][0]
    x = SPECIAL.to(dtype)
    found, wanted = staxlab.compile(function)(x), function(x)
    assert torch.equal(found.isnan(), wanted.isnan()) and torch.equal(found.isinf(), wanted.isinf())
    assert torch.equal(found.signbit() & ~found.isnan(), wanted.signbit() & ~wanted.isnan())
    torch.testing.assert_close(found, wanted, equal_nan=True)


def test_trigamma_is_infinite_at_its_poles():
    """Where eager execution divides by the sine of a rounded multiple of pi and has some large number."""
    found = staxlab.compile(lambda x: torch.polygamma(1, x))(SPECIAL)
    assert found[[0, 1, 6, 7, 8]].isinf().all() and found[[3, 4]].isnan().all() and found[2] == 0


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64])
def test_other_dtypes(name, dtype):
    function = FUNCTIONS[name][0]
    x = torch.tensor([0.25, 0.5, -0.75, 1.0]).to(dtype) if dtype.is_floating_point else torch.tensor([1, 2, 3, 5])
    found, wanted = staxlab.compile(function)(x), function(x)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, equal_nan=True)


def test_derivatives_of_gamma_beyond_the_second_are_a_library_call():
    x = torch.rand(5) + 1
    compiled = staxlab.compile(lambda x: torch.polygamma(3, x))
    torch.testing.assert_close(compiled(x), torch.polygamma(3, x))
    assert {kernel.language for kernel in compiled.versions[0].compilation.kernels} == {"extern"}


@pytest.mark.parametrize("name", ["digamma", "erfinv", "i0", "i1"])
def test_gradients(name):
    function = FUNCTIONS[name][0]
    x = torch.tensor([0.1, 0.3, -0.4, 0.7], dtype=F64)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    staxlab.compile(function)(ours).sum().backward()
    function(theirs).sum().backward()
    accuracy = 1e-6 if name == "digamma" else 1e-10  # eager's trigamma is off by that much left of zero
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=accuracy, atol=1e-10)


@pytest.mark.parametrize("order", [0, 1])
def test_the_chebyshev_coefficients_are_those_of_the_bessel_functions(order):
    def near(t):
        x = 4 * (t + 1)
        if order == 0:
            return mpmath.exp(-x) * mpmath.besseli(0, x)
        return mpmath.exp(-x) * mpmath.besseli(1, x) / x if x else mpmath.mpf(1) / 2

    def far(t):
        x = 16 / (t + 1)
        return mpmath.exp(-x) * mpmath.sqrt(x) * mpmath.besseli(order, x)

    with mpmath.workdps(30):
        for exact, table in ((near, special._BESSEL_NEAR[order]), (far, special._BESSEL_FAR[order])):
            count = 96
            angles = [mpmath.pi * (k + mpmath.mpf(1) / 2) / count for k in range(count)]
            values = [exact(mpmath.cos(angle)) for angle in angles]
            for degree in (0, 1, 2, 7, len(table) - 1):
                terms = (value * mpmath.cos(degree * angle) for value, angle in zip(values, angles, strict=True))
                coefficient = (2 if degree else 1) * sum(terms) / count
                assert abs(coefficient - table[degree]) <= abs(table[degree]) * 2.0**-52 + 1e-27
