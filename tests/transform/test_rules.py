"""Each rule on graphs of two to six nodes: where it applies, and where it must not."""

from __future__ import annotations

import math
import operator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import staxlab
from staxlab.capture.graph import Graph
from staxlab.capture.module import GraphModule
from staxlab.capture.tracer import trace
from staxlab.transform import transform
from staxlab.transform.cse import eliminate_common_subexpressions
from staxlab.transform.dce import eliminate_dead_code
from staxlab.transform.decompose import EXPANSIONS, KEPT
from staxlab.transform.fold import fold
from staxlab.transform.normalize import IDENTITIES
from staxlab.transform.operations import operation
from staxlab.transform.patterns import Rule, Var, apply, match
from tests.transform.graphs import I, X, captured, lines, operations, transformed

x = Var("x")


# -- patterns ---------------------------------------------------------------------------------------------------------


def test_a_rule_reads_as_its_law_and_knows_where_it_stands():
    rule = Rule("add zero", x + 0, x)
    assert rule.law == "x + 0 -> x"
    assert rule.source.rsplit(":", 1)[0] == __file__
    assert str((x * 2 + 1) ** x) == "((x * 2) + 1) ** x"
    assert str(apply("where", x > 0, x, 0.5 * x)) == "where(x > 0, x, 0.5 * x)"
    assert all(rule.source.split(":")[0].endswith("normalize.py") for rule in IDENTITIES)


def node_of(fn, *args):
    graph = captured(fn, *args).graph
    return graph.output.args[0]


def test_patterns_match_any_spelling():
    for fn in (lambda t: t + 0, lambda t: t.add(0), lambda t: torch.add(t, 0), lambda t: t + 0.0):
        assert match(x + 0, node_of(fn, X)) is not None
    assert match(x + 0, node_of(lambda t: t.add(0, alpha=2), X)) is None
    assert match(x + 0, node_of(lambda t: t + False, X)) is None
    assert match(x + 0, node_of(lambda t: 0 + t, X)) is None  # only after normalization


def test_a_variable_that_occurs_twice_is_one_value():
    assert match(x + x, node_of(lambda t: t + t, X)) is not None
    assert match(x + x, node_of(lambda t: t + t * 1, X)) is None
    assert match(x * Var("k", "number"), node_of(lambda t: t * 3, X))["k"] == 3
    assert match(x * Var("k", "number"), node_of(lambda t: t * t, X)) is None


# -- identities -------------------------------------------------------------------------------------------------------

HOLD = [
    lambda t: (t.exp() + 0).sum(),
    lambda t: (t.exp() - 0).sum(),
    lambda t: (t.exp() * 1).sum(),
    lambda t: (t.exp() / 1).sum(),
    lambda t: (t.exp() ** 1).sum(),
    lambda t: torch.neg(-t.exp()).sum(),
    lambda t: torch.relu(torch.relu(t)).sum(),
    lambda t: t.abs().abs().sum(),
    lambda t: (0 + t.exp()).sum(),
    lambda t: (1 * t.exp()).sum(),
    lambda t: torch.mul(t.exp(), 1.0).sum(),
]


@pytest.mark.parametrize("fn", HOLD)
def test_identities_disappear(fn):
    before, after = captured(fn, X), transformed(fn, X)
    assert len(after.graph.calls) < len(before.graph.calls)
    assert torch.equal(after(X), fn(X))


DO_NOT_HOLD = {
    "NaN and infinity times zero": lambda t: (t.exp() * 0).sum(),
    "infinity minus infinity": lambda t: (t.exp() - t.exp() * 1).sum(),
    "NaN over NaN": lambda t: (t.exp() / t.exp()).sum(),
    "associativity": lambda t: ((t.exp() + 1e8) - 1e8).sum(),
    "minus from the left": lambda t: (0 - t.exp()).sum(),
    "one over": lambda t: (1 / t.exp()).sum(),
    "power of one": lambda t: (1 ** t.exp()).sum(),
    "exp of log": lambda t: t.exp().log().exp().sum(),
    "addition of a tensor of zeros": lambda t: (t.exp() + torch.zeros(3, 4)).sum(),
}


@pytest.mark.parametrize("name", DO_NOT_HOLD)
def test_what_only_holds_for_real_numbers_stays(name):
    fn = DO_NOT_HOLD[name]
    special = torch.tensor([[math.nan, math.inf, -math.inf, 0.0], [-0.0, 1.0, 100.0, -1.0], [1e-8, 1e8, 89.0, 2.0]])
    final = transformed(fn, special)
    kept = {operation(n) for n in captured(fn, special).graph.calls} - {"exp"}
    assert kept - {"mul"} <= {operation(n) for n in final.graph.calls}
    assert torch.equal(final(special).isnan(), fn(special).isnan())
    assert torch.equal(torch.nan_to_num(final(special)), torch.nan_to_num(fn(special)))


@pytest.mark.parametrize("rule", IDENTITIES, ids=lambda rule: rule.name)
def test_identities_hold_for_special_values(rule):
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 1e-45, 3.4e38, -2.5])
    environment = {"x": special, "relu": torch.relu, "abs": torch.abs}
    left, right = (eval(str(side), environment) for side in (rule.pattern, rule.replace))
    assert torch.equal(torch.nan_to_num(left), torch.nan_to_num(right))
    assert torch.equal(left.isnan(), right.isnan())


def test_the_dtype_must_stay():
    for fn in (lambda t: (t + 0.0).sum(), lambda t: (t / 1).sum(), lambda t: (t * 1.0).sum()):
        assert transformed(fn, I)(I).dtype == fn(I).dtype == torch.float32
    assert "operator.add" not in operations(transformed(lambda t: (t + 0).sum(), I))
    boolean = X > 0
    assert transformed(lambda t: (t + 0).sum(0), boolean)(boolean).dtype == torch.int64
    assert operations(transformed(lambda t: (t * 1) + 0, boolean)) == ["operator.mul"]  # int64 after the first


def test_the_shape_must_stay():
    graph = Graph()
    a = graph.placeholder("a", val=captured(lambda t: t, X).graph.placeholders[0].val)
    other = captured(lambda t: (t[None] + 0).exp(), X).graph
    add = graph.call_function(operator.add, (a, 0), val=other.find("add").val)  # broadcast to a larger shape
    graph.set_output((graph.call_method("exp", (add,), val=other.find("exp").val),))
    assert "operator.add" in operations(transform(GraphModule(graph)).final)


def test_without_metadata_nothing_is_rewritten():
    graph = Graph()
    a = graph.placeholder("a")
    add = graph.call_function(operator.add, (a, 0))
    graph.set_output((graph.call_method("exp", (add,)),))
    assert operations(transform(GraphModule(graph)).final) == ["operator.add", "exp"]


ALIASING = {
    "an output must not become an input": lambda t: t + 0,
    "nor a view of one": lambda t: t.t() * 1,
    "nor may a view of the output": lambda t: (t + 0).view(-1),
    "two outputs must not become one": lambda t: (lambda y: (y, y * 1))(t.exp()),
    "the copy is written afterwards": lambda t: (lambda y: [y.add_(1), t.sum()][1])(t * 1),
    "the original is written afterwards": lambda t: _written(t),
}


def test_inputs_that_overlap_are_one_piece_of_memory():
    def fn(a, b):
        y = b * 1
        a.add_(1)
        return y.exp()

    base = X.clone().view(-1)
    final = transformed(fn, base[:8], base[4:])
    assert "operator.mul" in operations(final)
    one, other = X.clone().view(-1), X.clone().view(-1)
    assert torch.equal(final(one[:8], one[4:]), fn(other[:8], other[4:])) and torch.equal(one, other)
    assert "operator.mul" not in operations(transformed(fn, X.clone(), X + 1))


def _written(t):
    y = t.exp()
    z = y + 0
    y.add_(1)
    return z.sum() + y.sum()


@pytest.mark.parametrize("name", ALIASING)
def test_memory_must_stay_separate(name):
    fn = ALIASING[name]
    sample = X.clone()
    final = transformed(fn, sample)
    inputs = X.clone()
    result, expected = final(inputs), fn(X.clone())
    flat = result if isinstance(result, tuple) else (result,)
    wanted = expected if isinstance(expected, tuple) else (expected,)
    assert all(map(torch.equal, flat, wanted))
    storages = [r.untyped_storage()._cdata for r in flat]
    assert len(set(storages)) == len(storages)
    assert inputs.untyped_storage()._cdata not in storages


def test_an_intermediate_may_be_returned_under_the_identity():
    assert operations(transformed(lambda t: t.exp() + 0, X)) == ["exp"]


# -- spelling and in-place -----------------------------------------------------------------------------------------


def test_constants_go_right_only_where_the_order_does_not_matter():
    assert lines(transformed(lambda t: 2 + (3 * t), X)) == [
        "%mul = call_function[operator.mul](%t, 3)", "%add = call_function[operator.add](%mul, 2)",
    ]  # fmt: skip
    for fn in (lambda t: 2 - t, lambda t: 2 / (t + 5), lambda t: 2**t):
        assert any(node.args[0] == 2 for node in transformed(fn, X).graph.calls)


def test_functions_and_methods_become_operators():
    final = transformed(lambda t: torch.add(t, 1).mul(t).sub(torch.true_divide(t, 2)).matmul(t.t()), X)
    assert [name for name in operations(final) if name != "t"] == [
        "operator.add", "operator.mul", "operator.truediv", "operator.sub", "operator.matmul",
    ]  # fmt: skip
    assert "torch.add" in operations(transformed(lambda t: torch.add(t, 1, alpha=2), X))


def test_private_in_place_operations_become_ordinary_ones():
    def fn(t):
        y = t + 1
        y.relu_()
        y.mul_(2)
        return F.relu(y, inplace=True)

    final = transformed(fn, X)
    assert not any(node.meta.get("mutates") for node in final.graph)
    assert torch.equal(final(X), fn(X.clone()))


def test_in_place_operations_become_ordinary_ones_in_training_where_nobody_saved_what_they_overwrite():
    w = torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_()

    def scores(a, b):
        s = a @ b
        s /= 2
        s += b.sum()
        s.masked_fill_(torch.ones(3, 3).tril() == 0, -1.0)
        return s * s

    def saved(a, b):
        s = (a @ b).exp()
        s *= 2  # the derivative of exp reads what this overwrites: eager raises
        return s.sum()

    a = X.clone().requires_grad_()
    final = transformed(scores, a, w)
    assert not any(node.meta.get("mutates") for node in final.graph)
    for one, other in zip(
        *(torch.autograd.grad(fn(a, w).sum(), (a, w)) for fn in (final.forward, scores)), strict=True
    ):
        assert torch.equal(one, other)
    kept = transformed(saved, a, w)
    assert sum(bool(node.meta.get("mutates")) for node in kept.graph) == 1
    for fn in (kept.forward, saved):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            fn(a, w).backward()


IN_PLACE_STAYS = {
    "an input": lambda t: t.add_(1),
    "a view": lambda t: _view_written(t),
    "a second reader": lambda t: _read_before(t),
    "another dtype would come out": lambda t: (t * 2).add_(t.double()),
    "a random draw": lambda t: torch.empty(3).uniform_(),
}


def _view_written(t):
    y = t * 2
    y[0].add_(1)
    return y


def _read_before(t):
    y = t * 2
    z = y.sum()
    y.add_(1)
    return z + y.sum()


@pytest.mark.parametrize("name", IN_PLACE_STAYS)
def test_in_place_operations_others_can_see_stay(name):
    fn = IN_PLACE_STAYS[name]
    final = transformed(fn, X.clone())
    assert any(node.meta.get("mutates") for node in final.graph)
    torch.manual_seed(3)
    expected = fn(X.clone())
    torch.manual_seed(3)
    result = final(X.clone())
    assert torch.equal(result, expected) and result.dtype == expected.dtype


# -- folding ----------------------------------------------------------------------------------------------------------


def constant_graph(target, *args):
    graph = Graph()
    a = graph.placeholder("a")
    value = graph.call_function(target, args)
    graph.set_output((graph.call_function(operator.mul, (a, value)),))
    return graph


@pytest.mark.parametrize(
    ("target", "args", "value"),
    [
        (operator.add, (2, 3), 5), (operator.mul, (1.5, 2), 3.0), (operator.lt, (1, 2), True), (operator.getitem,
        ((4, 5), 1), 5),
        (operator.pow, (2, 10), 1024), (operator.neg, (3,), -3), (operator.floordiv, (7, 2), 3),
    ],
)  # fmt: skip
def test_constants_fold(target, args, value):
    graph = constant_graph(target, *args)
    (applied,) = fold(graph)
    (call,) = graph.calls
    assert call.args[1] == value and type(call.args[1]) is type(value)
    assert applied.after == (repr(value),)


@pytest.mark.parametrize(
    ("target", "args"), [(operator.truediv, (1, 0)), (operator.getitem, ((1,), 3)), (torch.full, ((2,), 1.0))]
)
def test_errors_and_tensors_do_not_fold(target, args):
    graph = constant_graph(target, *args)
    assert not fold(graph) and len(graph.calls) == 2


# -- decomposition ----------------------------------------------------------------------------------------------------

COMPOSITES = {
    "selu": F.selu, "elu": lambda t: F.elu(t, 0.7), "leaky_relu": lambda t: F.leaky_relu(t, 0.2), "relu6": F.relu6,
    "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish, "softsign": F.softsign, "tanhshrink": F.tanhshrink,
}  # fmt: skip
SPECIAL = torch.tensor(
    [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-10, -1e-10, 1e-3, -1e-3, 3.0, -3.0, 6.5, -100.0, 100.0]
)


def test_every_expansion_is_tested():
    assert set(COMPOSITES) == set(EXPANSIONS)
    assert not set(EXPANSIONS) & set(KEPT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", COMPOSITES)
def test_expansions_are_as_accurate_as_the_operator(name, dtype):
    fn, values = COMPOSITES[name], SPECIAL.to(dtype)
    final = transformed(fn, values)
    assert name not in {operation(n) for n in final.graph.calls}
    result, expected = final(values), fn(values)
    torch.testing.assert_close(result, expected, rtol=4 * torch.finfo(dtype).eps, atol=0, equal_nan=True)


def test_a_formula_that_cancels_is_not_used():
    small = torch.full((4,), -1e-6)
    exact = torch.expm1(small.double()) * 1.6732632423543772 * 1.0507009873554805
    naive = 1.0507009873554805 * (1.6732632423543772 * (small.exp() - 1))
    final = transformed(F.selu, small)
    assert ((final(small) - exact) / exact).abs().max() < 1e-6 < ((naive - exact) / exact).abs().max()


def test_operators_with_accurate_kernels_stay_whole():
    fns = {"log1p": torch.log1p, "expm1": torch.expm1, "gelu": F.gelu, "softmax": lambda t: F.softmax(t, 0),
             "tanh": torch.tanh,
           "layer_norm": lambda t: F.layer_norm(t, (4,)), "sinh": torch.sinh, "softplus": F.softplus}  # fmt: skip
    for name, fn in fns.items():
        assert [operation(n) for n in transformed(fn, X).graph.calls] == [name] and name in KEPT


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_stays_whole(dtype):
    assert [operation(n) for n in transformed(F.selu, X.to(dtype)).graph.calls] == ["selu"]


def test_in_place_composites_are_expanded_once_they_are_private():
    final = transformed(lambda t: F.leaky_relu(t + 1, inplace=True), X)
    assert "leaky_relu" not in {operation(n) for n in final.graph.calls}
    final = transformed(lambda t: F.leaky_relu(t, inplace=True), X.clone())
    assert "leaky_relu" in {operation(n) for n in final.graph.calls}


# -- merging ----------------------------------------------------------------------------------------------------------


def merged(fn, *args):
    """Call names after one scan of value numbering."""
    graph = captured(fn, *args).graph.copy()[0]
    eliminate_common_subexpressions(graph)
    graph.check()
    return [operation(node) for node in graph.calls]


def test_equal_chains_merge_in_one_scan():
    assert merged(lambda t: (t.exp() + 1).sum() * (t.exp() + 1).sum(), X) == ["exp", "add", "sum", "mul"]
    assert merged(lambda t: t[0:2].sum() + t[0:2].sum(), X) == ["getitem", "sum", "add"]


DIFFERENT = {
    "types of constants": lambda t: (t * 1).sum() + (t * 1.0).sum() + (t * True).sum(),
    "sign of zero": lambda t: torch.copysign(t, 0.0).sum() + torch.copysign(t, -0.0).sum(),
    "keywords": lambda t: t.sum(0).sum() + t.sum(0, keepdim=True).sum(),
    "operand order": lambda t: (t - t[0]).sum() + (t[0] - t).sum(),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_computations_stay_apart(name):
    fn = DIFFERENT[name]
    argument = I if name == "types of constants" else X
    final = transformed(fn, argument)
    assert torch.equal(final(argument), fn(argument))


def test_random_operations_do_not_merge():
    assert merged(lambda t: (F.dropout(t), F.dropout(t)), X).count("dropout") == 2
    assert merged(lambda t: torch.rand(3) + torch.rand(3), X).count("rand") == 2


def test_in_place_operations_and_reads_around_them_do_not_merge():
    def fn(t):
        y = t * 2
        view = y[0]
        before = view.sum()
        y.add_(1)
        after = view.sum()
        y.add_(1)
        return before, after, y

    assert merged(fn, X).count("sum") == 2 and merged(fn, X).count("add_") == 2
    final = transformed(fn, X)
    assert all(map(torch.equal, final(X), fn(X)))


def test_two_outputs_do_not_become_one_tensor():
    def fn(t):
        return t + 1, t + 1

    a, b = transformed(fn, X)(X)
    assert a is not b and a.data_ptr() != b.data_ptr()
    assert merged(lambda t: (t.exp() + 1, t.exp() * 2), X).count("exp") == 1


def test_three_copies_of_a_returned_value_keep_two():
    final = transformed(lambda t: (t.exp(), t.exp(), t.exp().sum()), X)
    assert operations(final).count("exp") == 2


# -- dead code --------------------------------------------------------------------------------------------------------


def alive(fn, *args):
    graph = captured(fn, *args).graph.copy()[0]
    eliminate_dead_code(graph)
    graph.check()
    return [operation(node) or node.op for node in graph if node.op != "output"]


def test_values_that_reach_no_output_disappear():
    assert alive(lambda t: [t.exp().log(), t + 1][1], X) == ["placeholder", "add"]


def test_inputs_effects_and_draws_stay():
    assert alive(lambda t, unused: t, X, X) == ["placeholder", "placeholder"]
    assert alive(lambda t: [t.add_(1), torch.rand(2), t.exp(), 3][3], X.clone()) == ["placeholder", "add_", "rand"]
    assert "batch_norm" in alive(
        lambda t, mean, var: [F.batch_norm(t, mean, var, training=True), t][1], X, torch.zeros(4), torch.ones(4)
    )


def test_removing_a_draw_would_shift_the_later_ones():
    def fn(t):
        torch.rand(2)
        return t + torch.rand(4)

    final = transformed(fn, X)
    torch.manual_seed(0)
    expected = fn(X)
    torch.manual_seed(0)
    assert torch.equal(final(X), expected)


# -- all of it --------------------------------------------------------------------------------------------------------

BINARY = [operator.add, operator.sub, operator.mul, torch.maximum, torch.minimum]
UNARY = [torch.exp, torch.relu, torch.abs, operator.neg, lambda t: t + 0, lambda t: 1 * t, lambda t: t * 2,
         lambda t: 0 - t,
         lambda t: t.clone().mul_(1), lambda t: t.t(), torch.tanh]  # fmt: skip


@given(
    st.lists(
        st.tuples(st.integers(0, 10), st.integers(0, 4), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8
    )
)
def test_random_programs_keep_their_values_and_separate_outputs(program):
    def fn(a, b):
        values = [a, b]
        for unary, binary, i, j in program:
            values.append(UNARY[unary](values[i % len(values)]))
            values.append(BINARY[binary](values[-1], values[j % len(values)]))
        return tuple(values[2:])

    a, b = torch.randn(3, 3), torch.tensor([[math.nan, -0.0, 1.0], [math.inf, 2.0, -1.0], [0.0, -math.inf, 5.0]])
    capture = trace(fn, (a, b))
    final = transform(capture).final
    result, expected = capture.rebuild(capture.flat_results(final(a, b))), fn(a, b)
    assert len(result) == len(expected)
    for r, e in zip(result, expected, strict=True):
        assert torch.equal(torch.nan_to_num(r), torch.nan_to_num(e)) and torch.equal(r.isnan(), e.isnan())

    def sharing(values):
        keys = [v.untyped_storage()._cdata for v in (a, b, *values)]
        return [keys.index(key) for key in keys]

    assert sharing(result) == sharing(expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "stax"])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_masking_in_place_keeps_the_order_of_the_dimensions(backend, transposed):
    """The ordinary form of masked_fill fills a contiguous clone, whatever order its argument's dimensions have."""

    def masked(d, mask):
        doubled = 2 * d
        return doubled.masked_fill_(mask, 2), doubled

    d = torch.arange(12.0).reshape(4, 3).t() if transposed else torch.arange(12.0).reshape(3, 4)
    mask = torch.arange(12).reshape(3, 4) % 3 == 0
    for found, expected in zip(staxlab.compile(masked, backend=backend)(d, mask), masked(d, mask), strict=True):
        assert torch.equal(found, expected) and found.stride() == expected.stride()
