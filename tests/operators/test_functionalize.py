"""Writes become values (Section 4.9): same results, same effects on inputs, and the sample is never touched."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import staxlab
from staxlab.loops.lowering import lower
from staxlab.operators.functionalize import functional_twin
from tests.loops.lowered import CPU, operators_of, run

aten = torch.ops.aten


def agree(function, *inputs: torch.Tensor):
    """Recording leaves the inputs alone; the operator graph and the lowered program do to fresh inputs what eager
    execution does. Returns the operator graph."""
    originals = [x.clone() for x in inputs]
    operators = operators_of(function, *inputs)
    for x, original in zip(inputs, originals, strict=True):
        assert torch.equal(x, original), "recording wrote into the sample"
    assert operators.is_pure, operators.obstacles
    expected_inputs = [x.clone() for x in inputs]
    expected = function(*expected_inputs)
    for execute in (operators.module, lambda *xs: run(operators, lower(operators, CPU), *xs)):
        given_inputs = [x.clone() for x in inputs]
        result = execute(*given_inputs)
        torch.testing.assert_close(result, expected)
        for x, y in zip(given_inputs, expected_inputs, strict=True):
            torch.testing.assert_close(x, y)
    return operators


def lines(operators) -> list[str]:
    """The calls of an operator graph: target and arguments, without their defaults."""
    found = []
    for node in operators.graph.calls:
        arguments = ", ".join(f"%{a.name}" if hasattr(a, "name") else str(a) for a in node.args)
        found.append(f"{node.name} = {node.target_name()}({arguments})")
    return found


def test_example_4_4():
    def f(x, y):
        x.mul_(2)
        y[0].add_(1)
        return x + y

    operators = agree(f, torch.randn(3, 4), torch.randn(3, 4))
    assert lines(operators) == [
        "mul = aten.mul.Tensor(%a, 2)",
        "select = aten.select.int(%b, 0, 0)",
        "add = aten.add.Tensor(%select, 1)",
        "select_scatter = aten.select_scatter.default(%b, %add, 0, 0)",
        "add_0 = aten.add.Tensor(%mul, %select_scatter)",
        "copy_ = aten.copy_.default(%a, %mul)",
        "copy__0 = aten.copy_.default(%b, %select_scatter)",
    ]
    assert [node.args[0].name for node in operators.write_backs] == ["a", "b"] and not operators.mutations
    x, y = torch.ones(2, 2), torch.zeros(2, 2)
    assert operators_of(f, x, y).module(x, y).tolist() == [[3, 3], [2, 2]]
    assert (x.tolist(), y.tolist()) == ([[2, 2], [2, 2]], [[1, 1], [0, 0]])


def test_exercise_8_a_row_of_the_transpose():
    """y.t()[0].add_(1): the scatter inverses in reverse order, of the selection and then of the transpose."""

    def f(y):
        y.t()[0].add_(1)

    assert lines(agree(f, torch.randn(4, 3))) == [
        "t = aten.t.default(%a)",
        "select = aten.select.int(%t, 0, 0)",
        "add = aten.add.Tensor(%select, 1)",
        "t_0 = aten.t.default(%a)",
        "select_scatter = aten.select_scatter.default(%t_0, %add, 0, 0)",
        "t_1 = aten.t.default(%select_scatter)",
        "copy_ = aten.copy_.default(%a, %t_1)",
    ]
    y = torch.zeros(3, 2)
    operators_of(f, y).module(y)
    assert y.tolist() == [[1, 0], [1, 0], [1, 0]]


def test_what_was_written_is_read_without_undoing_the_scatter():
    def f(x):
        y = x * 2
        row = y[0]
        row.mul_(3)
        row.add_(1)
        return row + 1

    names = [node.target_name() for node in agree(f, torch.randn(3, 4)).graph.calls]
    assert not any("scatter" in name for name in names), names  # Proposition 4.4: view(scatter(b, v')) = v'


def written_by(write):
    """A function that writes into a temporary through ``write`` and returns it."""

    def f(x):
        y = x * 1
        z = y.t()
        write(y)
        return y, z + 1, y.sum()

    return f


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.add_(1),
        lambda y: y.relu_().mul_(3),
        lambda y: y[1:3, ::2].fill_(7),
        lambda y: y.t()[0].zero_(),
        lambda y: y.permute(1, 0).unsqueeze(0)[0, :2].neg_(),
        lambda y: y.view(-1)[3:9].clamp_(min=0.1),
        lambda y: y.diagonal().copy_(torch.arange(4.0)),
        lambda y: y.unbind(1)[2].sub_(4),
        lambda y: y.split([1, 3])[1].exp_(),
        lambda y: y.chunk(2, 1)[1].masked_fill_(y[:, 2:] > 0, -1),
        lambda y: y.copy_(torch.arange(4)),
        lambda y: y.__setitem__((slice(None), 1), 5.0),
        lambda y: torch.add(y, 1, out=y),
        lambda y: y.detach().mul_(2),
        lambda y: y.data.mul_(2),
        lambda y: y[0].add_(y[1]),
        lambda y: (y[0].add_(1), y[:, 0].mul_(2), y[0].sub_(3)),
    ],
)
def test_writes_into_temporaries_and_their_views(write):
    agree(written_by(write), torch.randn(4, 4))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.add_(1),
        lambda x: (x.mul_(2), x.t(), x[0])[1:],
        lambda x: x[0].zero_(),
        lambda x: (x.t().add_(1), x.sum())[1],
        lambda x: x.fill_(0) + 1,
        lambda x: x.add_(x.t() * 1).t(),
    ],
)
def test_writes_into_inputs_are_written_back_and_returned_inputs_stay_inputs(function):
    operators = agree(function, torch.randn(4, 4))
    assert len(operators.write_backs) == 1


def test_a_returned_modified_input_is_that_input():
    x = torch.randn(3)
    operators = operators_of(lambda x: (x.add_(1), x[1:]), x)
    whole, part = operators.module(x)
    assert whole is x and part.data_ptr() == x[1:].data_ptr()
    program = lower(operators, CPU)
    assert [output.name for output in program.outputs] == ["a", "a"]


def test_modules_of_the_library_that_write_into_temporaries():
    x = torch.randn(4, 6)
    agree(lambda x: F.cosine_similarity(x, x.flip(0)), x)
    agree(lambda x: F.pad(x[None], (1, 2), mode="circular"), x)
    agree(lambda x: x @ x[0], x)
    agree(lambda x: F.instance_norm(x[None]), x)
    agree(lambda x: torch.quantile(x, 0.3, dim=1), x)


def test_a_step_of_an_optimizer_over_many_tensors():
    def step(a, b, c, d):
        torch._foreach_mul_([a, b], 0.9)
        torch._foreach_add_([a, b], [c, d], alpha=-0.1)

    assert len(agree(step, *[torch.randn(3) for _ in range(4)]).write_backs) == 2


def test_batch_norm_in_training_updates_its_statistics():
    def f(x, mean, variance):
        return F.batch_norm(x, mean, variance, training=True, momentum=0.3)

    operators = agree(f, torch.randn(5, 3, 2), torch.randn(3), torch.rand(3))
    assert [node.args[0].name for node in operators.write_backs] == ["b", "c"]
    assert operators.versions == (0, 0, 0), "eager execution does not count these writes"


@pytest.mark.parametrize("kind", [torch.nn.BatchNorm1d, torch.nn.InstanceNorm1d])
@pytest.mark.parametrize("backend", ["aot_eager", "stax"])
def test_a_module_keeps_its_running_statistics(kind, backend):
    ours, eager = (kind(3, track_running_stats=True) for _ in range(2))
    compiled = staxlab.compile(ours, backend=backend)
    with torch.no_grad():
        for seed in range(3):
            x = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(compiled(x), eager(x))
        compiled.eval(), eager.eval()
        torch.testing.assert_close(compiled(x), eager(x))
    for name, buffer in eager.named_buffers():
        mine = ours.get_buffer(name)
        torch.testing.assert_close(mine, buffer)
        assert mine._version == buffer._version, name


def test_dropout_draws_eagers_random_numbers():
    x = torch.randn(8, 8)
    operators = operators_of(lambda x: F.dropout(x, 0.4), x)
    assert operators.is_pure
    program = lower(operators, CPU)
    torch.manual_seed(3)
    expected = F.dropout(x, 0.4)
    torch.manual_seed(3)
    torch.testing.assert_close(run(operators, program, x), expected)


def test_what_is_not_covered_is_listed_and_leaves_the_sample_alone():
    x = torch.zeros(4, 4)
    for function in (
        lambda x: x.resize_(2, 2),
        lambda x: x.squeeze_(0),
    ):
        operators = operators_of(function, x)
        assert operators.mutations and operators.obstacles[0].kind in ("mutation", "reshaped")
        assert torch.equal(x, torch.zeros(4, 4))


def test_a_constant_of_the_module_may_not_be_written():
    from staxlab.capture.graph import Graph
    from staxlab.capture.module import GraphModule
    from staxlab.operators.record import record

    graph = Graph()
    x = graph.placeholder("x")
    weight = graph.create("get_attr", "weight")
    graph.set_output(graph.call_method("add_", (weight, x)))
    constant = torch.zeros(3)
    operators = record(GraphModule(graph, {"weight": constant}), [torch.ones(3)])
    assert "constant of the program" in operators.obstacles[0].reason and torch.equal(constant, torch.zeros(3))


def test_functional_twins_take_the_same_arguments():
    twins = [aten.add_.Tensor, aten.add.out, aten.normal_.default, aten.native_batch_norm.default, aten.fill_.Scalar]
    for func in twins:
        twin = functional_twin(func)
        assert twin is not None and not twin._schema.is_mutable
    assert functional_twin(aten.resize_.default) is None or not functional_twin(aten.resize_.default)._schema.is_mutable
    assert functional_twin(aten.add_.Tensor) is aten.add.Tensor
    assert functional_twin(aten.add_.Scalar) is aten.add.Scalar


VIEWS = {
    "whole": lambda y: y,
    "row": lambda y: y[1],
    "column": lambda y: y[:, 2],
    "transposed": lambda y: y.t(),
    "block": lambda y: y[1:, :2],
    "strided": lambda y: y[::2, 1::2],
    "flat": lambda y: y.view(-1)[2:11],
    "diagonal": lambda y: y.diagonal(),
}
WRITES = {
    "add": lambda v: v.add_(1.5),
    "scale": lambda v: v.mul_(-2),
    "fill": lambda v: v.fill_(0.25),
    "positive": lambda v: v.relu_(),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(VIEWS)), st.sampled_from(sorted(WRITES)), st.booleans()), max_size=6))
def test_any_sequence_of_writes_through_views_is_what_eager_execution_does(steps):
    """Proposition 4.4, on random programs: views made before and after, writes into an input or a temporary."""

    def f(x):
        y = x * 1
        early = {name: view(x) for name, view in VIEWS.items()} | {f"{n} of y": v(y) for n, v in VIEWS.items()}
        for view, write, into_input in steps:
            WRITES[write](early[view] if into_input else VIEWS[view](y))
        return x.sum(), y + 0, [early[f"{name} of y"] * 1 for name in VIEWS]

    agree(f, torch.randn(4, 4))


def test_effects_survive_the_whole_pipeline():
    @staxlab.compile
    def f(x, y):
        torch.rand(2)  # unused, and yet it advances the generator
        x.mul_(2)
        y[0].add_(x[1])
        return x + y

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    for _ in range(2):
        expected_x, expected_y = x.clone(), y.clone()
        torch.default_generator.manual_seed(5)
        result = f(x, y)
        state = torch.get_rng_state()
        torch.default_generator.manual_seed(5)
        torch.rand(2)
        assert torch.equal(state, torch.get_rng_state())
        expected_x.mul_(2)
        expected_y[0].add_(expected_x[1])
        torch.testing.assert_close((result, x, y), (expected_x + expected_y, expected_x, expected_y))


def test_complex_values_pass_through():
    x = torch.randn(4, 6, dtype=torch.complex64)
    agree(lambda x: torch.view_as_real(x.conj() * 2).sum(), x)
    operators = operators_of(lambda x: ((x + 0).t().conj() * 2, x[1:, ::2] + 1, (x * 2).t()[1:]), x)
    result = run(operators, lower(operators, CPU), x)
    torch.testing.assert_close(result, (x.t().conj() * 2, x[1:, ::2] + 1, (x * 2).t()[1:]), check_stride=True)


@pytest.mark.parametrize("view", [torch.conj, torch._neg_view, lambda z: z.mH[1:], lambda z: z.conj().imag])
def test_a_pending_conjugation_is_returned_as_one(view):
    x = torch.randn(4, 6, dtype=torch.complex64)
    compiled = staxlab.compile(lambda x: view(x * 2))
    with pytest.warns(staxlab.FallbackWarning, match="pending conjugation or negation"):
        result, expected = compiled(x), view(x * 2)
    assert (result.is_conj(), result.is_neg()) == (expected.is_conj(), expected.is_neg())
    assert torch.equal(result, expected)


def test_two_conjugations_are_none():
    compiled = staxlab.compile(lambda x: (x * 2).conj()[1:].conj())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(torch.randn(4, 6, dtype=torch.complex64))
    # Kernels have a conjugation as a copy, but one that is undone is not returned as pending.
    assert "pending" not in str(compiled.versions[0].compilation.fallback_reason)


def test_cudnn_batch_norm_is_the_batch_norm_that_is_known_here():
    """It runs on GPUs only; that it is recorded as another operator can be seen anywhere."""
    x, weight, mean = torch.randn(4, 3), torch.rand(3), torch.zeros(3)
    variance = torch.ones(3)

    def function(x, weight, mean, variance):
        return torch.ops.aten.cudnn_batch_norm(x, weight, weight, mean, variance, True, 0.1, 1e-5)[:3]

    tensors = [t.clone() for t in (x, weight, mean, variance)]
    operators = operators_of(function, *tensors)
    assert operators.is_pure and len(operators.write_backs) == 2
    assert all("cudnn" not in str(node.target) for node in operators.graph)
    found = operators.module(*tensors)
    expected = torch.ops.aten.native_batch_norm(x, weight, weight, mean, variance, True, 0.1, 1e-5)
    torch.testing.assert_close((*found, *tensors[2:]), (*expected, mean, variance))
