"""The table of derivatives, row by row, against autograd: at random points, at ties and kinks, and for completeness."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.attention.adjoint import adjoint_of
from staxlab.attention.derivatives import CONSTANT_PIECES, DERIVATIVES, DISCRETE, NOT_DIFFERENTIABLE
from staxlab.attention.modification import Captured
from staxlab.attention.tracing import SCORE
from staxlab.errors import CaptureError
from staxlab.loops.body import LoopBody, Statement
from staxlab.loops.expressions import Expr, Symbol
from staxlab.loops.ops import OPERATIONS
from staxlab.loops.semantics import _FUNCTIONS

F64 = torch.float64

#: Where a function is defined and smooth enough to compare there; the rest: anywhere between -4 and 4.
DOMAINS = {
    "reciprocal": (0.2, 4), "sqrt": (0.1, 4), "rsqrt": (0.1, 4), "log": (0.1, 4), "log2": (0.1, 4), "log10": (0.1, 4),
    "log1p": (-0.9, 4), "tan": (-1.4, 1.4), "asin": (-0.95, 0.95), "acos": (-0.95, 0.95), "acosh": (1.05, 4),
    "atanh": (-0.95, 0.95), "lgamma": (0.1, 4), "truediv": (0.2, 4), "remainder": (0.2, 4), "fmod": (0.2, 4),
    "pow": (0.1, 4), "atan2": (0.1, 4), "hypot": (0.1, 4),
}  # fmt: skip

#: Points at which pieces meet, limits are guarded, or NaN comes in.
TIES = {
    1: [(-1.0,), (-0.0,), (0.0,), (0.5,), (1.0,), (math.nan,)],
    2: [(0.0, 0.0), (0.0, 2.0), (1.0, 1.0), (-1.0, -1.0), (2.0, 0.0), (-2.0, 3.0), (-2.0, 2.0), (math.nan, 1.0),
        (1.0, math.nan), (3.0, 1.5), (-3.0, 1.5), (0.0, -1.0)],
}  # fmt: skip


def body_of(operation: str, arity: int, constants: tuple[float | None, ...] = ()) -> LoopBody:
    """``operation`` of the score and, if it takes two, of a captured tensor (or of a constant)."""
    indices = tuple(Symbol(name, 0, 63) for name in ("b", "h", "q", "kv"))
    statements = [Statement(0, "load", (SCORE, Expr.of(0)), F64)]
    if arity == 2:
        number = constants[0] if constants else None
        if number is None:
            statements.append(Statement(1, "load", ("captured0", Expr.of(indices[3])), F64))
        else:
            statements.append(Statement(1, "constant", (number,), F64))
    statements.append(Statement(2, operation, tuple(range(arity)), F64))
    return LoopBody(indices, (), tuple(statements), 2)


def differentiated(operation: str, operands: list[torch.Tensor], upstream: torch.Tensor, constant=None):
    """The derivatives that the sweep makes of one operation."""
    count = len(operands[0])
    captured = []
    if len(operands) == 2 and constant is None:
        second = operands[1].clone().requires_grad_()
        captured = [Captured("captured0", "y", (count,), (1,), F64, "cpu", True, lambda: second)]
    body = body_of(operation, len(operands), (constant,) if constant is not None else ())
    subject = SimpleNamespace(
        kind="score",
        name=operation,
        source=None,
        graph=(),
        body=body,
        captured=captured,
        dtype=F64,
        undifferentiable=(),
    )
    adjoint = adjoint_of(subject)
    places = (torch.zeros(1, dtype=torch.int64),) * 3 + (torch.arange(count),)
    d_score, sums = adjoint.evaluate([c.tensor for c in captured], operands[0], upstream, *places)
    return [d_score, *([sums.get(0, torch.zeros(count, dtype=F64))] if captured else [])]


def autograds(operation: str, operands: list[torch.Tensor], upstream: torch.Tensor) -> list[torch.Tensor]:
    leaves = [x.clone().requires_grad_() for x in operands]
    result = _FUNCTIONS[operation](*leaves)
    found = torch.autograd.grad(result, leaves, upstream, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


def test_every_operation_has_its_place():
    """A row, or a reason for none; so that a new operation of the vocabulary cannot be forgotten."""
    groups = [frozenset(DERIVATIVES), CONSTANT_PIECES, NOT_DIFFERENTIABLE, DISCRETE]
    assert frozenset().union(*groups) == frozenset(OPERATIONS)
    assert sum(map(len, groups)) == len(OPERATIONS)
    assert {name for name in DISCRETE if OPERATIONS[name].result == "same"} == {
        "bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift"
    }  # fmt: skip
    for name, row in DERIVATIVES.items():
        assert row.formula.count(";") == OPERATIONS[name].arity - 1, name


NUMERIC = [name for name in (*DERIVATIVES, *sorted(CONSTANT_PIECES)) if name != "where"]


@pytest.mark.parametrize("operation", NUMERIC)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**20))
def test_random_points(operation, seed):
    low, high = DOMAINS.get(operation, (-4, 4))
    generator = torch.Generator().manual_seed(seed)
    arity = OPERATIONS[operation].arity
    operands = [torch.rand(64, generator=generator, dtype=F64) * (high - low) + low for _ in range(arity)]
    upstream = torch.randn(64, generator=generator, dtype=F64)
    for got, want in zip(
        differentiated(operation, operands, upstream), autograds(operation, operands, upstream), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("operation", NUMERIC)
def test_ties_and_limits(operation):
    """PyTorch's choice wherever pieces meet, and its infinities; where both are undefined both say NaN."""
    arity = OPERATIONS[operation].arity
    operands = [torch.tensor(column, dtype=F64) for column in zip(*TIES[arity], strict=True)]
    upstream = torch.full_like(operands[0], 2.0)
    for got, want in zip(
        differentiated(operation, operands, upstream), autograds(operation, operands, upstream), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, 0.5, -1.0, -2.5])
def test_powers_with_a_constant_exponent(exponent):
    x = torch.tensor([0.0, 0.25, 1.0, 2.0, 7.0], dtype=F64)
    upstream = torch.full_like(x, 3.0)
    leaf = x.clone().requires_grad_()
    (want,) = torch.autograd.grad(leaf**exponent, leaf, upstream)
    (got,) = differentiated("pow", [x, x], upstream, constant=exponent)
    torch.testing.assert_close(got, want, equal_nan=True)


def test_what_pytorch_has_no_derivative_of_is_refused():
    x = torch.ones(3, dtype=F64)
    with pytest.raises(CaptureError, match="uses nextafter"):
        differentiated("nextafter", [x, x], x)
    assert not differentiated("floor", [x], x)[0].any()


def test_a_planted_mistake_is_noticed(monkeypatch):
    """The comparison is sharp enough to see half of a tie go wrong."""
    row = DERIVATIVES["maximum"]
    monkeypatch.setitem(DERIVATIVES, "maximum", type(row)(row.formula, lambda a, g, y, x, z: (g, g)))
    with pytest.raises(AssertionError):
        test_ties_and_limits("maximum")
