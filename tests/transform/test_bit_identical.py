"""After the front-end passes a program is what it was (Section 4): the backends "eager" and "aot_eager" against eager
execution, bit for bit, on random programs and on PyTorch's own operator samples. (The corpus: capture/test_corpus.)"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab
from staxlab.transform.decompose import EXPANSIONS, UNITS_IN_THE_LAST_PLACE
from tests.transform import opinfo, programs
from tests.transform.bit_identity import BACKENDS, campaign, check, rules_applied
from tests.transform.observation import difference, geometry, observe

SEED = 4


pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom", "ignore:Use of index_put_ on expanded")

# -- random programs ---------------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(programs.drawn, st.integers(0, 1))
def test_programs_that_hypothesis_draws(numbers, seed):
    program = programs.write(numbers, seed=seed)
    for backend in BACKENDS if program is not None else ():
        found = check(program, backend)
        assert found is None, f"{backend}: {found}\n{program.source}"


def test_four_hundred_programs():
    counts, failures = campaign(400, SEED + 1)
    assert not failures, "\n\n".join(failures)
    assert counts["nodes"] > 10 * counts["programs"] and counts["as transformed"] > counts["programs"]
    # The passes had something to do: nearly every rule was applied.
    for rule in ("add zero", "multiply by one", "double negation", "out of place", "merge", "constant to the right"):
        assert counts[rule] > 0, rule


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_twenty_thousand_programs(part):
    _, failures = campaign(2000, 100 + part)
    assert not failures, "\n\n".join(failures)


@pytest.mark.slow
@pytest.mark.nightly
@settings(max_examples=2000, derandomize=False)
@given(programs.drawn, st.integers(0, 1))
def test_programs_that_hypothesis_draws_anew_each_night(numbers, seed):
    program = programs.write(numbers, seed=seed)
    for backend in BACKENDS if program is not None else ():
        found = check(program, backend)
        assert found is None, f"{backend}: {found}\n{program.source}"


@pytest.mark.parametrize("seed", [0, 1])
def test_a_program_has_no_more_than_thirty_nodes_and_runs(seed):
    generator = random.Random(0)
    for _ in range(20):
        numbers = [(generator.randrange(len(programs.LINES)), 0, 1, 1) for _ in range(200)]
        program = programs.write((numbers, [0]), seed=seed)
        if program is not None:
            assert 1 <= len(program.lines) <= programs.MOST_NODES
            program.function(*program.arguments(0))


# What comparing must not miss: each of these pairs differs in one thing that a caller can tell.


def _twice(a):
    return a.mul_(1).mul_(1)


DIFFERENT = {
    "values": (lambda a: a + 1, lambda a: a + 2),
    "the sign of zero": (lambda a: a * 0, lambda a: a * -0.0),
    "geometry": (lambda a: a.t().contiguous(), lambda a: a.t() + 0),
    "dtype": (lambda a: a > 0, lambda a: (a > 0).float()),
    "structure": (lambda a: [a + 1], lambda a: (a + 1,)),
    "identity": (lambda a: a, lambda a: a[:]),
    "storage": (lambda a: a.view(-1), lambda a: a.clone().view(-1)),
    "storage of results": (lambda a: [b := a + 1, b[:]], lambda a: [a + 1, a + 1]),
    "versions": (lambda a: a.mul_(1), lambda a: a),
    "number of writes": (lambda a: a.mul_(1), _twice),
    "drawn": (lambda a: torch.rand(1) * 0, lambda a: torch.zeros(1)),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_is_seen(name):
    one, other = DIFFERENT[name]
    argument = torch.arange(-2.0, 4.0).view(2, 3)
    assert difference(observe(one, [argument.clone()]), observe(one, [argument.clone()])) is None
    assert difference(observe(one, [argument.clone()]), observe(other, [argument.clone()])) is not None


# -- what the programs found -------------------------------------------------------------------------------------------


def _gaps():
    return torch.arange(48.0).view(6, 8)[::2, ::2]


def _expanded():
    return torch.tensor([[0.1], [0.7], [1e8]]).expand(3, 4)


def _expanded_at_random():
    return torch.randn(3, 1, generator=torch.Generator().manual_seed(7)).expand(3, 4)


def _one_column(a):
    return a.diagonal().unsqueeze(0).t() ** 2


FOUND = {
    "logical_not_ keeps a float": (lambda a: (a + 1).logical_not_(), _gaps),
    "x - 0 is dense and x is not": (lambda a: (a - 0).view(-1) * 2, _gaps),
    "x * 1 is dense and x is expanded": (lambda a: (a * 1).view(-1).add(3), _expanded),
    "strides after the negative of -x": (lambda a: (a.neg().neg()).as_strided((2, 2), (4, 1)) + 1, _gaps),
    "a sum over x - 0": (lambda a: (a - 0).sum(), _expanded_at_random),
    "relu_ keeps the stride of an axis of one": (lambda a: _one_column(a).relu_(), _gaps),
    "a reflected division of tensors rounds twice": (lambda a: (a + 7).__rdiv__(a + 1), _gaps),
    "a literal reshaped in place": (lambda a: torch.tensor([[1.5, 2.0]]).t_().detach() + a[:2, :2], _gaps),
    "singular values alone": (lambda a: torch.linalg.svdvals(a), lambda: torch.randn(5, 4)),
    "eigenvalues alone": (lambda a: torch.linalg.eigvalsh(a @ a.t()), lambda: torch.randn(5, 4)),
    "a nuclear norm": (lambda a: torch.norm(a, "nuc"), lambda: torch.randn(5, 4)),
}


def written_between(a):
    b = (a + 2).neg_()
    b[..., 1:] = 0
    return b.neg().neg()


FOUND["the negative of -x, written between"] = (written_between, _gaps)


@pytest.mark.parametrize("backend", [*BACKENDS, "stax"])
@pytest.mark.parametrize("name", FOUND)
def test_what_random_programs_found(name, backend):
    function, make = FOUND[name]
    argument = make()
    compiled = staxlab.compile(function, backend=backend)
    if backend == "stax":
        torch.testing.assert_close(compiled(argument), function(argument))
    else:
        assert difference(observe(compiled, [argument]), observe(function, [argument])) is None


@pytest.mark.parametrize("backend", [*BACKENDS, "stax"])
def test_a_literal_reshaped_in_place_is_no_memory_of_the_callers(backend):
    functions = (
        lambda a: torch.tensor(0.5).t_(),
        lambda a: torch.tensor([0.5]).unsqueeze_(0),
        lambda a: torch.tensor([[0.5, 1.0]]).t_().squeeze_(),
    )
    for function in functions:
        compiled = staxlab.compile(function, backend=backend)
        compiled(torch.ones(2)).fill_(7)
        assert compiled(torch.ones(2)).tolist() == function(torch.ones(2)).tolist()


# -- composite operators -----------------------------------------------------------------------------------------------

COMPOSITES = {
    "selu": F.selu, "elu": lambda t: F.elu(t, 0.7), "leaky_relu": lambda t: F.leaky_relu(t, 0.2), "relu6": F.relu6,
    "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish, "softsign": F.softsign, "tanhshrink": F.tanhshrink,
}  # fmt: skip
INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}


def _all_kinds_of(dtype: torch.dtype) -> torch.Tensor:
    """Numbers of every magnitude, both signs, subnormal, infinite and NaN, and densely where the functions bend."""
    if dtype == torch.float32:
        everywhere = torch.arange(-(2**31), 2**31, 131063).to(torch.int32).view(dtype)
    else:
        everywhere = (torch.arange(-(2**15), 2**15) * (2**48 + 12345)).view(dtype)
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 3.0, -3.0, 6.0], dtype=dtype)
    return torch.cat([everywhere, special, torch.linspace(-8, 8, 20001, dtype=dtype)])


def units_apart(a: torch.Tensor, b: torch.Tensor) -> int:
    """The largest distance in units in the last place; zeros of different sign, or NaN against a number, are far."""
    assert torch.equal(a.isnan(), b.isnan()) and torch.equal(a.isinf(), b.isinf())
    zeros = (a == 0) & (b == 0)
    assert torch.equal(a[zeros].signbit(), b[zeros].signbit())
    numbers = ~a.isnan()
    a, b = (t[numbers].contiguous().view(INTEGERS[a.dtype]).long() for t in (a, b))
    assert torch.equal(a < 0, b < 0)  # equal signs: the distance of the patterns is that of the numbers
    return int((a - b).abs().max()) if len(a) else 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", COMPOSITES)
def test_an_expansion_keeps_within_its_stated_bound(name, dtype, backend):
    assert set(COMPOSITES) == set(EXPANSIONS)
    values, function = _all_kinds_of(dtype), COMPOSITES[name]
    bound = UNITS_IN_THE_LAST_PLACE.get(name, 0)
    for argument in (values, values[::3], values[: len(values) // 2 * 2].view(2, -1).t()):
        compiled = staxlab.compile(function, backend=backend)
        result = compiled(argument)
        assert units_apart(result, function(argument)) <= bound
        assert any(rule.startswith(f"expand {name}") for rule in rules_applied(compiled))

LAYOUTS = {
    "gaps": lambda: torch.randn(6, 8)[::2, ::2],
    "expanded": lambda: torch.randn(3, 1).expand(3, 4),
    "expanded rows": lambda: torch.randn(4).expand(3, 4),
    "transposed": lambda: torch.randn(4, 3).t(),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "one channel, last": lambda: torch.randn(2, 1, 4, 5).to(memory_format=torch.channels_last),
    "permuted": lambda: torch.randn(2, 3, 4).permute(2, 0, 1),
    "expanded and permuted": lambda: torch.randn(2, 1, 4).expand(2, 3, 4).permute(2, 1, 0),
    "an axis of one": lambda: torch.randn(4, 3).t()[:, :1],
    "empty": lambda: torch.randn(0, 3).t(),
    "no axes": lambda: torch.randn(()),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_expansion_has_the_operators_shape_and_strides(layout, backend):
    for name, function in COMPOSITES.items():
        argument = LAYOUTS[layout]()
        expected, result = function(argument), staxlab.compile(function, backend=backend)(argument)
        assert geometry(result) == geometry(expected), name
        if argument.numel():
            assert units_apart(result, expected) <= UNITS_IN_THE_LAST_PLACE.get(name, 0), name


# -- PyTorch's operator samples ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", opinfo.VARIANTS)
@pytest.mark.parametrize("dtype", opinfo.DTYPES, ids=str)
def test_samples_of_some_operators(dtype, variant):
    counts, failures = opinfo.survey(opinfo.operators()[7::25], dtype, variant, 1)
    assert not failures, "\n".join(failures)
    assert counts["compared"] > 20


PARTS = 4


def _every_part() -> Iterator[Any]:
    """Half of the operators in each dtype and layout, in turn; the other half of each by night."""
    settings_of_samples = itertools.product(opinfo.DTYPES, opinfo.VARIANTS)
    for place, (dtype, variant) in enumerate(settings_of_samples):
        for part in range(PARTS):
            by_night = [] if (part + place) % 2 else [pytest.mark.nightly]
            yield pytest.param(dtype, variant, part, marks=by_night, id=f"{dtype}-{variant}-{part}")


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "variant", "part"), _every_part())
def test_samples_of_every_operator(dtype, variant, part):
    counts, failures = opinfo.survey(opinfo.operators()[part::PARTS], dtype, variant, 3)
    assert not failures, "\n".join(failures)
    assert counts["refused"] < counts["compared"] / 8
