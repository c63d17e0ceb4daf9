"""What must run though nobody reads its result: what may raise, and somebody's own operators."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import staxlab
from staxlab.capture.failing import is_foreign, may_fail
from staxlab.loops.lowering import lower
from tests.loops.lowered import CPU, operators_of, program_of, run

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore::staxlab.errors.FallbackWarning")


def outcome(function, arguments):
    """The value, or the kind of exception."""
    try:
        return function(*[x.clone() for x in arguments])
    except (IndexError, RuntimeError) as error:
        return error


def agree(function, good, *bad, backends=("aot_eager", "stax")) -> None:
    """Compiled on good arguments, the function raises on bad ones what eager execution raises."""
    for backend in backends:
        compiled = staxlab.compile(function, backend=backend)
        for arguments in (good, *bad, good):
            expected, got = outcome(function, arguments), outcome(compiled, arguments)
            if isinstance(expected, Exception):
                # an operator graph raises what the parts of an operator raise
                kinds = type(expected) if backend == "stax" else (IndexError, RuntimeError)
                assert isinstance(got, kinds), (backend, expected, got)
            else:
                torch.testing.assert_close(got, expected)


EYE, SINGULAR = torch.eye(2), torch.zeros(2, 2)


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.inv,
        torch.linalg.cholesky,
        torch.linalg.lu_factor,
        torch.linalg.ldl_factor,
        lambda a: torch.linalg.solve(a, a + 1),
        lambda a: torch.linalg.tensorinv(a.view(2, 2, 1), 1) if a.numel() == 2 else torch.linalg.inv(a) * 2,
        lambda a: (torch.linalg.inv(a), a * 2)[1],
    ],
)
def test_a_matrix_without_an_inverse(function):
    agree(function, (EYE,), (SINGULAR,))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_probabilities_outside_of_their_range(reduction):
    def f(x, y):
        return F.binary_cross_entropy(x, y, reduction=reduction)

    half, one = torch.full((3,), 0.5), torch.ones(3)
    agree(f, (half, one), (one * 2, one), (half, -one), (half * torch.nan, one))
    with pytest.raises(RuntimeError, match="all elements of input should be between 0 and 1"):
        staxlab.compile(f)(half * 3, one)


UNUSED = {
    "index": lambda a, i: (a[i], a * 2)[1],
    "index_select": lambda a, i: (a.index_select(0, i), a * 2)[1],
    "gather": lambda a, i: (a.gather(0, i), a * 2)[1],
    "take": lambda a, i: (a.take(i), a * 2)[1],
    "embedding": lambda a, i: (F.embedding(i, a.view(-1, 1)), a * 2)[1],
    "index_put": lambda a, i: (torch.index_put(a, (i,), a[0]), a * 2)[1],
    "scatter": lambda a, i: (a.scatter(0, i, 1.0), a * 2)[1],
    "cross_entropy": lambda a, i: (F.cross_entropy(a.view(1, -1), i[:1]), a * 2)[1],
    "overwritten": lambda a, i: a[i].zero_(),
}
READ_IN_PART = {
    "element": lambda a, i: a[i][0] * 2,
    "slice of a sum": lambda a, i: (a[i] + 1)[:1] * 2,
    "power 0": lambda a, i: a[i] ** 0,
    "transposed": lambda a, i: (a[i].view(2, 1).t() + 1)[0, 0] * 3,
    "expanded to nothing": lambda a, i: a[i].expand(0, 2).sum(),
    "sum of a part": lambda a, i: a[i][:1].sum() + 1,
    "sum": lambda a, i: a[i].sum() ** 0,
    "joined": lambda a, i: (torch.cat([a[i], a]) + 1)[2:] * 3,
    "softmax": lambda a, i: torch.softmax(a[i], 0)[0] * 3,
}


@pytest.mark.parametrize("name", UNUSED)
def test_a_subscript_out_of_range_of_an_unused_value(name):
    agree(UNUSED[name], (torch.ones(2), torch.tensor([0, 1])), (torch.ones(2), torch.tensor([9, 9])))


@pytest.mark.parametrize("name", READ_IN_PART)
def test_a_subscript_out_of_range_in_the_part_nobody_reads(name):
    agree(READ_IN_PART[name], (torch.ones(2), torch.tensor([0, 1])), (torch.ones(2), torch.tensor([0, 9])))


def test_an_integer_divided_by_zero():
    seven, zero = torch.tensor([7, 7]), torch.tensor([0, 2])
    for unused in (lambda a, b: a // b, lambda a, b: a % b, lambda a, b: torch.fmod(a, b)):
        agree(lambda a, b, unused=unused: (unused(a, b), a * 2)[1], (seven, seven), (seven, zero))


def test_what_cannot_fail_is_still_removed():
    x = torch.randn(3)
    assert len(operators_of(lambda x: (x / 2, x // 2, x[[0, 1]], x.softmax(0), x + 1)[4], x).graph.calls) <= 2
    assert not may_fail(aten.div.Tensor, (torch.ones(1), torch.ones(1)))
    assert not may_fail(aten.floor_divide.default, (torch.tensor(1), 2))
    assert may_fail(aten.floor_divide.default, (torch.tensor(1), torch.tensor(2)))
    assert may_fail(aten.index_put_.default) and not may_fail(aten.add.Tensor)


def test_a_gather_whose_users_read_all_of_it_is_not_kept_in_memory():
    def f(weight, i, bias):
        return F.layer_norm(F.embedding(i, weight) + bias, (4,))

    program = program_of(f, torch.randn(5, 4), torch.tensor([1, 2, 4]), torch.randn(4))
    assert not any(d.subject.startswith("embedding") and d.choice == "realize" for d in program.decisions)


@pytest.fixture(scope="module")
def counted():
    calls: list[int] = []
    library = torch.library.Library("staxlab_effects", "FRAGMENT")
    library.define("log(Tensor a) -> Tensor")
    library.impl("log", lambda a: (calls.append(1), a.clone())[1], "CPU")
    yield calls
    library._destroy()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "stax"])
def test_an_operator_of_ones_own_runs_as_often_as_it_is_called(counted, backend):
    log = torch.ops.staxlab_effects.log
    assert is_foreign(log.default)
    for function, times in ((lambda a: (log(a), a * 2)[1], 1), (lambda a: log(a) + log(a), 2)):
        compiled = staxlab.compile(function, backend=backend)
        compiled(torch.ones(1))
        counted.clear()
        assert torch.equal(compiled(torch.ones(1)), function(torch.ones(1)))
        assert len(counted) == 2 * times


STEPS = (
    "{w} = {v}[k]",
    "{w} = {v}.index_select(0, k)",
    "{w} = {v} * 2",
    "{w} = {v}[:2]",
    "{w} = {v}[1]",
    "{w} = {v}.sum(0)",
    "{w} = {v} + {u}.sum()",
    "{w} = torch.where({v} > 0, {v}, {v} * 0)",
    "{w} = {v}.softmax(0)",
    "{w} = {v}.t() if {v}.dim() == 2 else {v}",
    "{w} = torch.cat([{v}.reshape(-1), {u}.reshape(-1)])",
    "{w} = {v}.clone(); {w}[:1] = 0",
    "{w} = torch.zeros_like({v}) + 1",
    "{w} = {v} ** 0",
    "{w} = {v}.max(0)[0]",
    "{w} = {v}.expand(2, *{v}.shape)[0]",
    "{w} = {v}.flip(0)[:1]",
    "{w} = {v}.clone().fill_(1.0)",
)


@given(st.data())
def test_programs_that_read_at_subscripts_raise_where_eager_execution_does(data):
    names, lines = ["a"], []
    for n in range(data.draw(st.integers(2, 6), "length")):
        v, u = (data.draw(st.sampled_from(names), "operand") for _ in range(2))
        lines.append(data.draw(st.sampled_from(STEPS), "step").format(w=f"v{n}", v=v, u=u))
        names.append(f"v{n}")
    source = "def f(a, k):\n" + "".join(f"    {line}\n" for line in lines) + f"    return {names[-1]} + 1\n"
    scope = {"torch": torch}
    exec(source, scope)
    a, good = torch.arange(12.0).view(4, 3) - 5, torch.tensor([0, 1, 1])
    if isinstance(outcome(scope["f"], (a, good)), Exception):
        return
    operators = operators_of(scope["f"], a, good)
    program = lower(operators, CPU)
    for k in (good, torch.tensor([0, 0, 9]), torch.tensor([9, 0, 0])):
        expected = outcome(scope["f"], (a, k))
        if isinstance(expected, Exception):
            with pytest.raises((IndexError, RuntimeError)):
                run(operators, program, a.clone(), k)
        else:
            torch.testing.assert_close(run(operators, program, a.clone(), k), expected)
