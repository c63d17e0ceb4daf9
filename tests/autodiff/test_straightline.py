"""Straight-line programs and their sweeps: gradients against PyTorch and against exact arithmetic, operations against
Theorem 5.1."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from staxlab.autodiff.straightline import (
    BINARY,
    ELEMENTARY,
    Constant,
    Instruction,
    Program,
    ProgramError,
    Tally,
    cos,
    exp,
    log,
    sigmoid,
    sqrt,
    straight_line,
    tanh,
)
from staxlab.autodiff.sweeps import forward_mode, joint, reverse_mode, weighted


@st.composite
def programs(draw, operations=tuple(BINARY), most=12, constants=True):
    """A random program, and inputs for it as small fractions."""
    inputs = draw(st.integers(1, 4))
    instructions = []
    for position in range(draw(st.integers(0, most))):
        operand = st.integers(1, inputs + position)
        if constants:
            operand = st.one_of(operand, operand, operand, st.integers(-3, 3).map(lambda n: Constant(Fraction(n, 2))))
        name = draw(st.sampled_from(operations))
        operands = [draw(operand) for _ in range(2 if name in BINARY else 1)]
        if all(isinstance(one, Constant) for one in operands):
            operands[0] = inputs + position
        instructions.append(Instruction(name, tuple(operands)))
    program = Program(inputs, tuple(instructions))
    small = st.fractions(min_value=-3, max_value=3, max_denominator=4)
    return program, [draw(small) for _ in range(inputs)]


def swept(program, inputs):
    try:
        return reverse_mode(program, inputs)
    except ProgramError:
        assume(False)


@given(programs())
def test_rational_programs_have_exactly_the_gradient_that_forward_mode_finds(case):
    """Two algorithms, exact arithmetic: the results are equal, not nearly."""
    program, inputs = case
    found = swept(program, inputs)
    for k in range(program.inputs):
        unit = [Fraction(int(j == k)) for j in range(program.inputs)]
        assert forward_mode(program, inputs, unit).derivative == found.gradient[k]
    assert found.values == tuple(program.values(inputs))


@settings(max_examples=150)
@given(programs((*BINARY, *ELEMENTARY)))
def test_the_gradient_is_torchs(case):
    program, inputs = case
    inputs = [float(one) for one in inputs]
    found = swept(Program(program.inputs, _in_floats(program.instructions)), inputs)
    program = found.program
    assume(all(abs(one) < 1e4 for one in (*found.values, *found.adjoints)))
    leaves = [torch.tensor(one, dtype=torch.float64, requires_grad=True) for one in inputs]
    result = program(*leaves)
    assert float(result.detach()) == pytest.approx(found.values[-1], rel=1e-9, abs=1e-9)
    if result.requires_grad:
        result.backward()
    truth = [0.0 if leaf.grad is None else float(leaf.grad) for leaf in leaves]
    assert [float(one) for one in found.gradient] == pytest.approx(truth, rel=1e-7, abs=1e-7)


def _in_floats(instructions):
    def operand(one):
        return Constant(float(one.value)) if isinstance(one, Constant) else one

    return tuple(Instruction(i.operation, tuple(map(operand, i.operands))) for i in instructions)


@given(programs((*BINARY, *ELEMENTARY)))
def test_operations_stay_within_the_bound_of_theorem_5_1(case):
    program, inputs = case
    found = swept(Program(program.inputs, _in_floats(program.instructions)), [float(one) for one in inputs])
    assert found.forward_operations == program.size
    assert found.operations <= found.bound == program.factor * program.size


STEP = {"+": 2, "-": 2, "*": 4, "/": 4}


@given(programs((*BINARY, *ELEMENTARY), constants=False))
def test_each_reverse_step_costs_what_the_proof_says(case):
    program, inputs = case
    found = swept(program, [float(one) for one in inputs])
    expected = [
        STEP[i.operation] if i.operation in STEP else ELEMENTARY[i.operation].cost + 2 for i in program.instructions
    ]
    assert list(found.step_operations) == expected


def test_derivatives_cost_at_most_two_operations():
    costs = {name: one.cost for name, one in ELEMENTARY.items()}
    assert costs == {"neg": 0, "exp": 0, "log": 1, "sqrt": 2, "tanh": 2, "sigmoid": 2, "sin": 1, "cos": 2}


@pytest.mark.parametrize("size", [1, 5, 40])
def test_the_bound_is_attained(size):
    """By a chain of multiplications (5 W), and by one of tanh (5 W); additions take 3 W."""

    def chain(step):
        def function(x):
            for _ in range(size):
                x = step(x)
            return x

        return reverse_mode(straight_line(function, 1), [0.5])

    assert chain(lambda x: x * x).operations == chain(tanh).operations == 5 * size == chain(tanh).bound
    assert chain(lambda x: x + x).operations == 3 * size
    assert chain(lambda x: exp(-x)).operations == 6 * size and chain(lambda x: log(exp(x))).operations == 7 * size


def product(n):
    def function(*x):
        v = x[0]
        for factor in x[1:]:
            v = v * factor
        return v

    return straight_line(function, n, "product")


@pytest.mark.parametrize("n", [2, 3, 10, 50])
def test_the_gradient_of_a_product(n):
    """Exercise 46: all n derivatives by 5 (n - 1) operations; forward mode needs 4 (n - 1) for each of them."""
    inputs = [Fraction(k + 1, 3) for k in range(n - 1)] + [Fraction(0)]
    found = reverse_mode(product(n), inputs)
    assert found.gradient == tuple(math.prod(inputs[:k] + inputs[k + 1 :]) for k in range(n))
    assert found.operations == 5 * (n - 1)
    unit = [int(k == 1) for k in range(n)]
    assert forward_mode(product(n), inputs, unit).operations == 4 * (n - 1)


@given(programs())
def test_the_joint_program_computes_value_and_gradient(case):
    program, inputs = case
    found = swept(program, inputs)
    both = joint(program)
    value, *gradient = both(*inputs)
    assert (value, tuple(gradient)) == (found.values[-1], found.gradient)
    assert both.size <= program.factor * program.size
    assert both.instructions[: program.size] == program.instructions


@given(programs(most=7), st.data())
def test_a_joint_program_can_be_differentiated_again(case, data):
    """The Hessian times a vector, against differences of nothing: forward mode over the gradient program."""
    program, inputs = case
    swept(program, inputs)
    direction = data.draw(st.lists(st.integers(-2, 2).map(Fraction), min_size=program.inputs, max_size=program.inputs))
    both = joint(program)
    gradient = Program(both.inputs, both.instructions, both.outputs[1:], "gradient")
    product = reverse_mode(weighted(gradient, direction), inputs).gradient
    along = forward_mode(gradient, inputs, direction).derivative
    along = along if isinstance(along, tuple) else (along,)
    assert product == along


def test_the_rosenbrock_function_has_its_hessian():
    f = straight_line(lambda x, y: (1 - x) * (1 - x) + 100 * ((y - x * x) * (y - x * x)), 2)
    both = joint(f)
    gradient = Program(2, both.instructions, both.outputs[1:])
    assert gradient(Fraction(2), Fraction(3)) == (2 * (2 - 1) - 400 * 2 * (3 - 4), 200 * (3 - 4))
    hessian = reverse_mode(weighted(gradient, (1, 0)), [Fraction(2), Fraction(3)]).gradient
    assert hessian == (2 - 400 * (3 - 3 * 4), -400 * 2)


def test_an_input_that_is_not_read_has_adjoint_zero():
    program = straight_line(lambda x, y: x * x, 2)
    assert reverse_mode(program, [3.0, 4.0]).gradient == (6.0, 0) and joint(program)(3.0, 4.0) == (9.0, 6.0, 0)


def test_a_program_without_operations():
    program = straight_line(lambda x: x, 1)
    found = reverse_mode(program, [2.0])
    assert (found.gradient, found.operations, found.bound) == ((1,), 0, 0)
    constant = straight_line(lambda x: 7, 1)
    assert constant(2.0) == 7 and reverse_mode(constant, [2.0]).gradient == (0,)
    assert forward_mode(constant, [2.0], [1.0]).derivative == 0


def test_it_is_recorded_and_printed():
    text = str(reverse_mode(straight_line(lambda x, y: sqrt(x) / (y - 1) - cos(-x) * sigmoid(y), 2, "f"), [4.0, 3.0]))
    lines = text.splitlines()
    assert lines[0] == "reverse mode of f" and "v3 = sqrt(v1)" in lines[4] and "v4 = v2 - 1" in lines[5]
    assert lines[4].split()[-3:] == ["2", "0.5", "4"]
    assert lines[-1] == "8 + 25 = 33 operations for 2 derivatives; the bound is 5 W = 40"


def test_a_tally_counts_every_operation_with_its_numbers():
    tally = Tally()
    x = tally.number(2.0)
    assert (1 - (3 / x + x * 2 - -x)).value == 1 - (1.5 + 4 + 2) and tally.count == 6


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Program(1, (Instruction("+", (1,)),)), "1 operand is no operation"),
        (lambda: Program(1, (Instruction("power", (1, 1)),)), "power"),
        (lambda: Program(1, (Instruction("exp", (2,)),)), "reads v2"),
        (lambda: Program(1, (), (2,)), "the output reads v2"),
        (lambda: straight_line(lambda x, y: x / y, 2)(1.0, 0.0), "v3 = v1 / v2 has no value"),
        (lambda: straight_line(log, 1)(-1.0), "v2 = log"),
        (lambda: straight_line(log, 1, "f")(1.0, 2.0), "f has 1 input and was given 2"),
        (lambda: reverse_mode(straight_line(sqrt, 1), [0.0]), r"v2 = sqrt\(v1\) has no derivative"),
        (lambda: reverse_mode(straight_line(lambda x: (x, x), 1), [1.0]), "2 outputs"),
        (lambda: forward_mode(straight_line(log, 1), [-1.0], [1.0]), "v2 = log"),
        (lambda: forward_mode(straight_line(log, 1), [1.0], []), "a direction as many"),
        (lambda: weighted(straight_line(log, 1), [1, 2]), "2 weights"),
    ],
)
def test_what_is_no_program_is_refused(make, words):
    with pytest.raises(ProgramError, match=words):
        make()
