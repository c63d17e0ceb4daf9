"""The four programs every outside backend runs, each with a bound on the rounding error of its float32 results.

The exact value is float64's. Bounds are first order in the unit roundoff (Section 6.5): a sum of n terms errs by at
most n*u times the sum of their magnitudes in any order, a quotient adds the relative errors of its operands, exp adds
that of its argument, which is absolute. A few operations of the library are taken at 8 units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

U = 2.0**-24


@dataclass(frozen=True)
class Program:
    name: str
    fn: Callable
    make: Callable[[], tuple[torch.Tensor, ...]]
    bound: Callable[..., torch.Tensor]  # of exact (float64) inputs


def example_1_1(x, w):
    return (torch.relu(x + w) * 2).sum(-1)


def example_7_1(x):
    return x / x.sum(-1, keepdim=True)


def softmax(x):
    return F.softmax(x, -1)


def mlp(x, w1, b1, w2, b2):
    return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)


def _bound_7_1(x):
    condition = x.abs().sum(-1, keepdim=True) / x.sum(-1, keepdim=True).abs()
    return example_7_1(x).abs() * U * (x.shape[-1] * condition + 2)


def _bound_softmax(x):
    furthest = (x.amax(-1, keepdim=True) - x).amax(-1, keepdim=True)
    return softmax(x) * U * (x.shape[-1] + 2 * furthest + 24)


def _bound_mlp(x, w1, b1, w2, b2):
    first = (x.shape[-1] + 2) * U * F.linear(x.abs(), w1.abs(), b1.abs())
    hidden = F.gelu(F.linear(x, w1, b1))
    second = 1.13 * first + 16 * U * (hidden.abs() + 1)  # the slope of GELU is below 1.13
    sums = (w2.shape[-1] + 2) * U * F.linear(hidden.abs(), w2.abs(), b2.abs())
    return F.linear(second, w2.abs()) + sums


def _random(*shapes: tuple[int, ...]) -> Callable[[], tuple[torch.Tensor, ...]]:
    def make():
        generator = torch.Generator().manual_seed(7)
        return tuple(torch.randn(shape, generator=generator) for shape in shapes)

    return make


PROGRAMS = (
    Program("example 1.1", example_1_1, _random((64, 128), (64, 128)),
            lambda x, w: (x.shape[-1] + 4) * U * 2 * (x.abs() + w.abs()).sum(-1)),
    Program("example 7.1", example_7_1, _random((64, 128)), _bound_7_1),
    Program("softmax", softmax, _random((33, 65)), _bound_softmax),
    Program("mlp", mlp, _random((16, 32), (48, 32), (48,), (5, 48), (5,)), _bound_mlp),
)  # fmt: skip


def check(program: Program, compiled: Callable, inputs: tuple[torch.Tensor, ...] | None = None) -> torch.Tensor:
    """Run and compare with the exact value. Returns the result."""
    inputs = program.make() if inputs is None else inputs
    result = compiled(*inputs)
    exact_inputs = [x.double() for x in inputs]
    exact, eager = program.fn(*exact_inputs), program.fn(*inputs)
    assert (result.shape, result.dtype, result.stride()) == (eager.shape, eager.dtype, eager.stride())
    error, bound = (result.double() - exact).abs(), program.bound(*exact_inputs)
    assert bool((error <= bound).all()), (program.name, (error / bound).max())
    return result


def same(result, expected) -> None:
    """Equal numbers, NaN among them, with equal layouts; for tuples, each. The sign of a zero is each library's own."""
    if isinstance(expected, (tuple, list)):
        assert len(result) == len(expected)
        for a, b in zip(result, expected, strict=True):
            same(a, b)
        return
    assert (result.shape, result.dtype, result.stride()) == (expected.shape, expected.dtype, expected.stride())
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


# Numbers that IEEE 754 has rules of its own for, and others to meet them.
NAN, INF = float("nan"), float("inf")
CORNERS = torch.tensor([1.0, NAN, INF, -INF, 0.0, -0.0, -2.5, 3.5, 1e-30, 0.5])
OTHERS = torch.tensor([2.0, 1.0, NAN, 1.0, 0.0, 0.0, -2.5, -1.0, 1e30, 0.5])


def check_smallest(compiled: Callable[[Callable], Callable]) -> None:
    """No elements, one element, and no axes."""
    same(compiled(PROGRAMS[0].fn)(torch.ones(0, 4), torch.ones(0, 4)), torch.ones(0))
    same(compiled(PROGRAMS[0].fn)(torch.ones(4, 0), torch.ones(4, 0)), torch.zeros(4))
    same(compiled(lambda x: x * 2 + 1)(torch.tensor(3.0)), torch.tensor(7.0))
    same(compiled(lambda x: x.amax(0))(torch.ones(1, 1)), torch.ones(1))
