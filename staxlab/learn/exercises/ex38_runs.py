"""What Exercise 38 runs: Jacobians behind oracles that count their calls, programs that are differentiated twice, and a
backward pass without a tape."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import torch

from ...autodiff.straightline import Constant, Instruction, Program, ProgramError
from ...autodiff.sweeps import forward_mode, gradient_program, reverse_mode
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import call_failed, unexpected_result
from ..variants import generator

FORWARD, REVERSE = "forward mode", "reverse mode"
EAGER, ZERO, ERROR = "what eager gives", "zero", "an error"


class Oracle:
    """A linear map given by a matrix, as a function of a vector; counts its calls."""

    def __init__(self, matrix: Sequence[Sequence[int]]):
        self.matrix, self.calls = matrix, 0

    def __call__(self, vector: Any) -> list[Any]:
        self.calls += 1
        vector = list(vector)
        if len(vector) != len(self.matrix[0]):
            raise ValueError(f"the vector has {len(vector)} numbers and should have {len(self.matrix[0])}")
        return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in self.matrix]


def transposed(matrix: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(column) for column in zip(*matrix, strict=True)]


def by_columns(jvp: Callable[[list[int]], list[Any]], n: int, m: int) -> list[list[Any]]:
    """The Jacobian by forward mode."""
    return transposed([jvp([int(j == k) for j in range(n)]) for k in range(n)])


def by_rows(vjp: Callable[[list[int]], list[Any]], n: int, m: int) -> list[list[Any]]:
    """The Jacobian by reverse mode."""
    return [list(vjp([int(j == k) for j in range(m)])) for k in range(m)]


@lru_cache(maxsize=64)
def sweeps(n: int, m: int, mode: str) -> int:
    """How many sweeps the whole Jacobian takes, by counting calls on a zero matrix of that shape."""
    zero = [[0] * n for _ in range(m)]
    oracle = Oracle(zero if mode == FORWARD else transposed(zero))
    (by_columns if mode == FORWARD else by_rows)(oracle, n, m)
    return oracle.calls


def judge_jacobian(mode: str, callee: Callee, seed: int | None) -> Verdict:
    """The student's function must give the matrix behind the oracle, in as few calls as there are columns or rows."""
    rng = generator(seed, "jacobians")
    shapes = ((1, 1), (1, 3), (3, 1), (2, 3), (4, 2), (7, 5))
    for n, m in shapes:
        matrix = [[rng.randint(-9, 9) for _ in range(n)] for _ in range(m)]
        oracle = Oracle(matrix if mode == FORWARD else transposed(matrix))
        outcome = callee.call(oracle, n, m)
        asked = ("for", f"n = {n}, m = {m}")
        if outcome.failed:
            return call_failed(callee, ("the oracle", n, m), outcome)
        yours = outcome.value
        try:
            yours = [list(row) for row in yours]
        except TypeError:
            return unexpected_result(callee, ("the oracle", n, m), "that is no list of rows")
        if yours != matrix:
            facts = (asked, ("yours", yours), ("the Jacobian", matrix))
            if yours == transposed(matrix):
                return wrong("That is its transpose: J has m rows and n columns.", *facts, mistake="transposed")
            return wrong("That is not the Jacobian behind the oracle.", *facts, mistake="wrong-matrix")
        fewest = n if mode == FORWARD else m
        if oracle.calls > fewest:
            facts = (asked, ("calls", oracle.calls), ("possible", "with fewer"))
            return wrong("The Jacobian is right, with more calls than needed.", *facts, mistake="too-many-calls")
    return right("The whole Jacobian, with no call more than needed.", ("run for", f"{len(shapes)} shapes"))


# --- Second derivatives -----------------------------------------------------------------------------------------------


def random_program(rng: random.Random, inputs: int, size: int) -> Program:
    """A program of +, - and * whose result depends on every operation's result."""
    instructions: list[Instruction] = []
    unread = list(range(1, inputs + 1))
    for position in range(size):
        first = unread.pop(rng.randrange(len(unread))) if unread else rng.randint(1, inputs + position)
        second: Any = unread.pop(rng.randrange(len(unread))) if unread else rng.randint(1, inputs + position)
        if rng.random() < 0.15:
            unread += [second] if second > inputs else []
            second = Constant(Fraction(rng.randint(1, 3)))
        instructions.append(Instruction(rng.choice("+-**"), (first, second)))
        unread.append(inputs + position + 1)
    while len(unread) > 1:
        instructions.append(Instruction("+", (unread.pop(), unread.pop())))
        unread.append(inputs + len(instructions))
    return Program(inputs, tuple(instructions), (unread[0],), "f")


def hessian_times(program: Program, x: Sequence[Fraction], v: Sequence[Fraction]) -> tuple[Any, ...]:
    """H v by forward mode over the gradient: another way than the one asked for."""
    found = forward_mode(gradient_program(program), x, v).derivative
    return found if isinstance(found, tuple) else (found,)


def judge_hessian(callee: Callee, seed: int | None) -> Verdict:
    """The student's program must compute H v, and be larger than f by a constant factor at most."""
    rng = generator(seed, "programs")
    cases = [(Program(1, (Instruction("*", (1, 1)),), name="f"), [Fraction(3)], [Fraction(2)])]
    for inputs, size in ((2, 2), (2, 4), (3, 5), (4, 9), (5, 14), (6, 60)):
        x = [Fraction(rng.randint(-3, 3), rng.choice((1, 2))) for _ in range(inputs)]
        cases.append((random_program(rng, inputs, size), x, [Fraction(rng.randint(-4, 4)) for _ in range(inputs)]))
    for program, x, v in cases:
        verdict = _check_hessian(callee, program, x, v)
        if verdict is not None:
            return verdict
    facts = (("run for", f"{len(cases)} programs"),)
    return right("H v, by a program that is larger than f by a constant factor.", *facts)


def _check_hessian(callee: Callee, program: Program, x: list[Fraction], v: list[Fraction]) -> Verdict | None:
    outcome = callee.call(program, v)
    shown = (("f", program.format() if program.size <= 12 else f"a program of {program.size} operations"),
             ("x", _text(x)), ("v", _text(v)))  # fmt: skip
    if outcome.failed:
        return call_failed(callee, ("f", _text(v)), outcome)
    yours = outcome.value
    if not isinstance(yours, Program) or yours.inputs != program.inputs:
        problem = f"that is no Program with {program.inputs} inputs"
        return unexpected_result(callee, ("f", _text(v)), problem)
    truth = hessian_times(program, x, v)
    try:
        found = yours(*x)
    except (ProgramError, TypeError) as error:
        return unexpected_result(callee, ("f", _text(v)), f"it cannot be run: {error}")
    found = found if isinstance(found, tuple) else (found,)
    if found != truth:
        return _wrong_product(program, x, v, found, shown)
    # Each of the two gradients makes a program at most five times as large; the scalar product is 2 d - 1 operations.
    limit = 5 * (5 * program.size + 2 * program.inputs)
    if yours.size > limit:
        facts = (("operations of f", program.size), ("of yours", yours.size))
        return wrong("H v is right, but the program grows faster than f does.", *facts, mistake="too-large")
    return None


def _wrong_product(
    program: Program, x: list[Fraction], v: list[Fraction], found: tuple, shown: tuple[tuple[str, Any], ...]
) -> Verdict:
    facts = (*shown, ("yours", _text(found)))
    gradient = reverse_mode(program, x).gradient
    truth = hessian_times(program, x, v)
    if len(found) == len(truth) + 1 and found[1:] == truth:
        message = "There is one number too many: the first is what was differentiated, grad f . v."
        return wrong(message, *facts, mistake="value-as-well")
    if found == gradient:
        return wrong("That is the gradient of f. It has to be differentiated once more.", *facts, mistake="gradient")
    along = sum(a * b for a, b in zip(gradient, v, strict=True))
    if found == (along,):
        return wrong("That is grad f . v, one number, not yet differentiated.", *facts, mistake="not-differentiated")
    if found == hessian_times(program, x, [Fraction(1)] * len(x)):
        return wrong("That is the Hessian times a vector of ones: v is not used.", *facts, mistake="ignores-v")
    return wrong("That is not H v.", *facts, mistake="wrong-product")


class _WithoutTape(torch.autograd.Function):
    """x^3 whose backward pass is a finished program: it computes, and records nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            return gradient * 3 * x**2


@lru_cache(maxsize=1)
def differentiated_twice() -> tuple[str, str]:
    """What a second derivative gives where the backward pass records nothing, and the words of the error if it is one.

    The first derivative is right; it is asked for with ``create_graph=True`` and differentiated again.
    """
    x = torch.tensor(2.0, requires_grad=True)
    (first,) = torch.autograd.grad(_WithoutTape.apply(x), x, create_graph=True)
    assert float(first) == 12
    try:
        (second,) = torch.autograd.grad(first, x, allow_unused=True)
    except RuntimeError as error:
        return ERROR, str(error).splitlines()[0]
    return (ZERO if second is None or float(second) == 0 else EAGER), ""


def _text(numbers: Sequence[Any]) -> str:
    return "[" + ", ".join(map(str, numbers)) + "]"
