"""Recording at the dispatcher: overloads, origins, decomposition, obstacles."""

from __future__ import annotations

import operator
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from staxlab.capture.graph import Graph, TensorMeta
from staxlab.capture.module import GraphModule
from staxlab.capture.tracer import trace
from staxlab.loops.lowering import basis
from staxlab.operators.record import record
from tests.loops.lowered import module_of, operators_of

aten = torch.ops.aten


def targets(operators) -> list[str]:
    return [node.target_name() for node in operators.graph.calls]


def example_1_1() -> GraphModule:
    graph = Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    total = graph.call_function(operator.add, (x, w))
    positive = graph.call_function(torch.relu, (total,))
    double = graph.call_function(operator.mul, (positive, 2))
    graph.set_output(graph.call_method("sum", (double, -1)))
    return GraphModule(graph)


def test_listing_5_1():
    module = example_1_1()
    x, w = torch.randn(64, 128), torch.randn(64, 128)
    operators = record(module, [x, w])
    assert targets(operators) == ["aten.add.Tensor", "aten.relu.default", "aten.mul.Tensor", "aten.sum.dim_IntList"]
    add, _, _, total = operators.graph.calls
    assert add.kwargs == {"alpha": 1} and total.args[1:] == ([-1], False)
    assert total.val == TensorMeta((64,), (1,), torch.float32, torch.device("cpu"))
    # one id space: an operator node stems from the captured node that reached it
    captured = {node.name: node.id for node in module.graph}
    assert [node.origins for node in operators.graph.calls] == [
        frozenset({captured[name]}) for name in ("add", "relu", "mul", "sum")
    ]
    assert [p.origins for p in operators.graph.placeholders] == [frozenset({0}), frozenset({1})]
    assert torch.equal(operators.module(x, w), module(x, w))
    assert operators.is_pure and "aten.relu.default" in str(operators)


def test_composite_calls_come_apart_at_the_dispatcher():
    operators = operators_of(lambda x, w, b: F.linear(x, w, b), torch.randn(4, 8), torch.randn(5, 8), torch.randn(5))
    assert targets(operators) == ["aten.t.default", "aten.addmm.default"]


def test_an_operator_outside_the_basis_is_decomposed_and_one_inside_is_not():
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    operators = operators_of(F.mse_loss, x, y)
    assert targets(operators) == ["aten.sub.Tensor", "aten.mul.Tensor", "aten.mean.default"]
    assert operators.decomposed[0].operator == "aten.mse_loss.default"
    whole = operators_of(F.mse_loss, x, y, basis=frozenset({aten.mse_loss.default}))
    assert targets(whole) == ["aten.mse_loss.default"]
    layer_norm = operators_of(lambda x: F.layer_norm(x, (8,)), x)
    assert targets(layer_norm) == ["aten.native_layer_norm.default", "operator.getitem"]


def test_example_4_3():
    """The graphs of the chapter, argument by argument: a member of the basis whole, a loss as three primitives."""
    x, y, w, b = torch.randn(4, 8), torch.randn(4, 8), torch.ones(8), torch.zeros(8)
    whole = trace(lambda x, w, b: F.layer_norm(x, (8,), w, b), (x, w, b), {})
    graph = record(whole.module, [x, w, b], basis=basis()).graph
    norm, item = graph.calls
    assert norm.target is aten.native_layer_norm.default and norm.args == (*graph.placeholders[:1], [8],
                                                                           *graph.placeholders[1:], 1e-05)  # fmt: skip
    assert item.target is operator.getitem and item.args == (norm, 0) and graph.output.args == (item,)

    taken_apart = trace(F.mse_loss, (x, y), {})
    recorded = record(taken_apart.module, [x, y], basis=basis())
    sub, mul, mean = recorded.graph.calls
    assert (sub.target, sub.args) == (aten.sub.Tensor, recorded.graph.placeholders)
    assert (mul.target, mul.args) == (aten.mul.Tensor, (sub, sub))
    assert (mean.target, mean.args) == (aten.mean.default, (mul,)) and recorded.graph.output.args == (mean,)
    assert aten.native_layer_norm.default in basis() and aten.mse_loss.default not in basis()
    (entry,) = recorded.decomposed
    assert (entry.operator, entry.into) == ("aten.mse_loss.default", ("sub", "mul", "mean"))


def test_random_operators_stay_whole_and_alive():
    def f(x):
        torch.rand(3)
        return F.dropout(x, 0.5)

    operators = operators_of(f, torch.randn(4, 8))
    assert "aten.rand.default" in targets(operators)  # unused, but it advances the generator


def test_unused_operators_and_constants_go():
    operators = operators_of(lambda x: (x * torch.tensor([1.0, 2.0]), x + 1)[1], torch.randn(3, 2))
    assert targets(operators) == ["aten.add.Tensor"] and not operators.module.constants


def test_literals_become_constants():
    x = torch.randn(3, 2)
    operators = operators_of(lambda x: x * torch.tensor([1.0, 2.0]), x)
    assert operators.is_pure and list(operators.module.constants) == ["constant0"]
    assert torch.equal(operators.module(x), x * torch.tensor([1.0, 2.0]))


def test_a_returned_literal_is_a_fresh_tensor_at_every_run():
    operators = operators_of(lambda x: (torch.tensor([1.0, 2.0]), torch.tensor(3.0), x), torch.randn(2))
    for _ in range(2):
        vector, scalar, _ = operators.module(torch.randn(2))
        assert vector.tolist() == [1.0, 2.0] and scalar.item() == 3.0
        vector.zero_(), scalar.zero_()


def test_outputs_keep_their_nesting():
    def f(x):
        return {"sum": x + 1, "rest": [x, None, 3, (x.t(),)], "pair": torch.max(x, 1)}

    x = torch.randn(2, 3)
    operators = operators_of(f, x)
    expected = f(x)
    torch.testing.assert_close(operators.module(x)["rest"][3], expected["rest"][3])
    numbered = operators.rebuild(range(len(operators.output_leaves)))
    assert numbered["rest"] == [1, 2, 3, (4,)]
    assert type(numbered["pair"]) is type(expected["pair"])


def test_views_made_behind_the_dispatchers_back_are_not_constants():
    x = torch.randn(4)
    operators = operators_of(lambda x: (x * 2).data + 1, x)
    assert not operators.module.constants
    fresh = torch.randn(4)
    assert torch.equal(operators.module(fresh), fresh * 2 + 1)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: x * x.sum().item(), "data-dependent"),
        (lambda x: x[x > 0], "dynamic-shape"),
        (lambda x: torch.nonzero(x), "dynamic-shape"),
        (lambda x: x if torch.equal(x, x) else x + 1, "data-dependent"),
    ],
)
def test_what_depends_on_data_is_an_obstacle(function, kind):
    operators = operators_of(function, torch.randn(4))
    assert kind in [obstacle.kind for obstacle in operators.obstacles]


def test_indexing_with_integers_is_no_obstacle():
    assert operators_of(lambda x: x[torch.tensor([0, 1])], torch.randn(4)).is_pure


def test_a_failing_program_says_where():
    with pytest.raises(RuntimeError) as failure:
        record(module_of(lambda x, y: x @ y, 2), [torch.randn(2, 3), torch.randn(2, 3)])
    assert any("while executing" in note for note in failure.value.__notes__)


def test_intermediates_die_as_in_eager_mode():
    alive = []

    class Watch:
        def __call__(self, x):
            import gc
            import weakref

            first = x + 1
            alive.append(weakref.ref(first))
            second = first * 2
            del first
            gc.collect()
            alive.append(alive[0]() is None)
            return second

    operators_of(Watch(), torch.randn(3))
    assert alive[1] is True


def test_recording_imports_neither_torchs_compiler_nor_sympy():
    program = (
        "import sys, torch, torch.nn.functional as F\n"
        "from tests.loops.lowered import program_of\n"
        "program_of(lambda x: F.layer_norm(F.mse_loss(x, x + 1) + F.gelu(x), (8,)).sum(-1), torch.randn(4, 8))\n"
        "program_of(lambda x: torch.digamma(x) + torch.erfinv(x) + F.dropout(x) + x.std(), torch.rand(4, 8))\n"
        "print([m for m in ('torch._dynamo', 'torch._inductor', 'sympy') if m in sys.modules])\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: x[torch.tensor([n, 0])],
        lambda x, n: x[torch.as_tensor([[n, 0]])],
        lambda x, n: x[torch.asarray([0, n])],
        lambda x, n: x[n.new_tensor([n])],
        lambda x, n: x.view(3, 3)[:, [n]],
        lambda x, n: x.view(3, 3).__setitem__((slice(None), [n]), 5.0),
        lambda x, n: torch.tensor(((1, n), (0, n))) * 1.5,
    ],
)
def test_a_literal_made_of_tensors_is_no_literal(function):
    import staxlab

    compiled = staxlab.compile(function, backend="aot_eager")
    with pytest.warns(staxlab.errors.FallbackWarning, match="become part of a literal"):
        for n in (2, 1, 0):
            given, expected = (torch.arange(9.0), torch.arange(9.0))
            assert_same(compiled(given, torch.tensor(n)), function(expected, torch.tensor(n)))
            assert_same(given, expected)


def assert_same(result, expected) -> None:
    assert (result is None and expected is None) or torch.equal(result, expected)


@pytest.mark.parametrize(
    "function",
    [lambda x, n: x[torch.tensor([1, 0])] + n, lambda x, n: x[[0, 1]] + n, lambda x, n: x.new_tensor([1, 2]) + n],
)
def test_a_literal_beside_tensors_stays_a_literal(function):
    operators = operators_of(function, torch.arange(9.0), torch.tensor(2))
    assert operators.is_pure


def test_numbers_among_results_are_sizes_where_the_schema_says_so():
    """Attention of CUDA libraries returns the numbers of queries and keys: no values of tensors, so no obstacle."""
    from staxlab.operators.record import _numbers_are_sizes

    aten = torch.ops.aten
    sizes = (aten._scaled_dot_product_cudnn_attention, aten._scaled_dot_product_flash_attention, aten.sym_numel)
    others = (aten.equal, aten._local_scalar_dense, aten.is_nonzero, aten.native_layer_norm, aten.record_stream)
    assert all(_numbers_are_sizes(packet.default) for packet in sizes)
    assert not any(_numbers_are_sizes(packet.default) for packet in others)
