"""Exercise 38: its truth by counting and by running, and the feedback on particular answers."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
import torch

from staxlab import learn
from staxlab.autodiff.straightline import Program, straight_line
from staxlab.autodiff.sweeps import gradient_program, reverse_mode, weighted
from staxlab.learn.exercises import ex38, ex38_runs
from staxlab.learn.exercises.ex38_runs import ERROR, FORWARD, REVERSE
from staxlab.learn.variants import variant_for


def check(part, seed=None, **answers):
    return learn.check(f"ex38.{part}", answers, seed=seed, record=False)


def test_sweeps_are_counted_and_the_chapters_are_1000_and_10():
    assert (ex38_runs.sweeps(1000, 10, FORWARD), ex38_runs.sweeps(1000, 10, REVERSE)) == (1000, 10)
    oracle = ex38_runs.Oracle([[1, 2, 3], [4, 5, 6]])
    assert ex38_runs.by_columns(oracle, 3, 2) == [[1, 2, 3], [4, 5, 6]] and oracle.calls == 3


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_the_two_modes_never_cost_the_same(seed):
    variant = variant_for(ex38.Variant, seed)
    assert variant.n != variant.m


def test_costs_may_be_written_with_numbers_or_names():
    feedback = check("1", forward_sweeps_cost="1000*W", reverse_sweeps_cost=lambda W: 10 * W)
    assert feedback["forward_sweeps_cost"].credit == feedback["reverse_sweeps_cost"].credit == 1


def test_a_jacobian_of_tensors_or_tuples_is_fine():
    def columns(jvp, n, m):
        return tuple(zip(*(jvp([float(j == k) for j in range(n)]) for k in range(n)), strict=True))

    assert check("1", jacobian_by_columns=columns)["jacobian_by_columns"].credit == 1


def test_vectors_of_the_wrong_length_are_refused_with_the_length():
    verdict = check("1", jacobian_by_rows=lambda vjp, n, m: [vjp([1] * (m + 1))])["jacobian_by_rows"]
    assert verdict.mistake == "failed-call" and "has 2 numbers and should have 1" in dict(verdict.facts)["reason"]


def test_a_backward_pass_without_a_tape_cannot_be_differentiated():
    happened, words = ex38_runs.differentiated_twice()
    assert happened == ERROR and "does not require grad" in words
    feedback = check("3", second_derivative=ERROR)
    assert feedback["second_derivative"].credit == 1 and "does not require grad" in str(feedback)


def test_eager_has_a_second_derivative_there():
    x = torch.tensor(2.0, requires_grad=True)
    (first,) = torch.autograd.grad(x**3, x, create_graph=True)
    assert torch.autograd.grad(first, x)[0] == 12


@pytest.mark.parametrize("seed", range(5))
def test_hessian_products_agree_with_reverse_over_reverse(seed):
    rng = random.Random(seed)
    program = ex38_runs.random_program(rng, 4, 12)
    x = [Fraction(rng.randint(-3, 3)) for _ in range(4)]
    v = [Fraction(rng.randint(-3, 3)) for _ in range(4)]
    assert reverse_mode(weighted(gradient_program(program), v), x).gradient == ex38_runs.hessian_times(program, x, v)


def test_programs_of_ones_own_making_are_right_too():
    """Not with the package's tools: differentiate by hand what is asked for."""

    def with_tracing(f, v):
        def product(*x):
            directional = weighted(gradient_program(f), v)
            found = gradient_program(directional)(*x)
            return found

        return straight_line(product, f.inputs)

    assert check("3", hessian_vector=with_tracing)["hessian_vector"].credit == 1


def test_the_counterexample_is_a_square():
    verdict = check("3", hessian_vector=lambda f, v: gradient_program(f))["hessian_vector"]
    facts = dict(verdict.facts)
    assert verdict.mistake == "gradient" and "v2 = v1 * v1" in facts["f"] and facts["yours"] == "[6]"


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda f, v: Program(f.inputs + 1, (), (1,)), "wrong-form"),
        (lambda f, v: 1 / 0, "failed-call"),
        (lambda f, v: Program(f.inputs, (), (1,)), "wrong-product"),
    ],
)
def test_other_answers(answer, mistake):
    assert check("3", hessian_vector=answer)["hessian_vector"].mistake == mistake
