"""Dividing the joint graph (Sections 5.4 and 5.5): Example 5.1, Exercises 9 and 10, the cut against brute force, and
the two graphs against autograd, bit for bit."""

from __future__ import annotations

import itertools
import math
import weakref
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import staxlab
from staxlab.autodiff.network import INFINITE, capacity_text, maximum_flow
from staxlab.autodiff.partition import partition, prune_tangents, rematerialization_network
from staxlab.autodiff.values import LONGEST_CHAIN, forward_values
from staxlab.capture.graph import TensorMeta
from staxlab.capture.module import Interpreter
from staxlab.loops.lowering import basis
from staxlab.loops.lowering.kinds import kind_of
from tests.autodiff import programs
from tests.autodiff.programs import eager_gradients, own_gradients, recorded, same_bits, upstream, write


def divided(function, *arguments, decomposed=True):
    _, joint, _ = recorded(function, list(arguments), basis() if decomposed else None)
    assert not joint.obstacles, joint.obstacles
    return partition(joint, kind_of=kind_of)


def example_5_1():
    x, w = torch.randn(32, 64), torch.randn(64, 64, requires_grad=True)
    return divided(lambda x, w: F.gelu(x @ w).sum(), x, w)


def names(nodes):
    return [node.name for node in nodes]


# -- Example 5.1 ------------------------------------------------------------------------------------------------------


def test_example_5_1_saves_the_product_only():
    part = example_5_1()
    product, gelu, total = part.values
    assert [v.nbytes for v in part.values] == [8192, 8192, 4]
    assert (product.distance, product.beta) == (1, 1) and (gelu.distance, gelu.beta) == (100, 2)
    assert product.capacity == pytest.approx(9011.2, abs=1e-9) and round(product.capacity) == 9011
    assert capacity_text(gelu.capacity) == "2.26e8"
    assert names(part.saved) == names(part.cut) == [product.name] and part.recomputed == ()
    assert (part.saved_bytes, part.eager_bytes, part.save_all_bytes) == (8192, 8192, 8192)


def test_example_5_1_has_one_augmenting_path():
    part = example_5_1()
    (path,) = part.flow.paths
    assert [part.network.name(v) for v in path.vertices] == ["s", "mm_in", "mm_out", "t"]
    assert round(path.bottleneck) == round(part.flow.value) == round(part.flow.cut_capacity) == 9011


def test_the_network_of_example_5_1():
    network = example_5_1().network
    edges = {(network.name(u), network.name(v)): c for u, v, c in network.edges}
    assert capacity_text(edges.pop(("mm_in", "mm_out"))) == "9,011"
    assert capacity_text(edges.pop(("gelu_in", "gelu_out"))) == "2.26e8"
    assert edges.pop(("sum_in", "sum_out")) == pytest.approx(4 * 1.1**100)
    assert set(edges.values()) == {INFINITE}
    assert set(edges) == {
        ("mm_out", "gelu_in"), ("gelu_out", "sum_in"), ("s", "mm_in"), ("s", "sum_in"), ("mm_out", "t"),
    }  # fmt: skip


def test_the_graphs_of_example_5_1():
    part = example_5_1()
    forward, backward = part.forward, part.backward
    assert names(forward.output_leaves) == ["sum", "mm"] and forward.memories == ("sum", "mm")
    assert names(backward.graph.placeholders) == ["x", "mm", "tangents_1"]
    assert backward.output_leaves[0] is None and len(backward.output_leaves) == 2
    for graph in (forward.graph, backward.graph):
        for node in graph:
            if isinstance(node.val, TensorMeta):
                assert not node.val.requires_grad
            assert node.op in ("output", "placeholder") or node.origins
    joint = {node.name: node for node in part.joint.graph}
    for node in (*forward.graph.calls, *backward.graph.calls):
        assert node.origins == joint[node.name].origins and node.location == joint[node.name].location
    text = part.format()
    assert "1 saved, 8,192 bytes" in text and "rule 1" in text


# -- Exercises 9 and 10 -----------------------------------------------------------------------------------------------


def test_exercise_9_relu_whose_output_is_read():
    """Its backward reads r = relu(h). The cheapest cut is still h, which is written anyway: it costs half as much."""
    x, w = torch.randn(32, 64), torch.randn(64, 64, requires_grad=True)
    part = divided(lambda x, w: torch.relu(x @ w).sum(), x, w)
    product, relu, _ = part.values
    assert not product.is_read and relu.is_read and product.source and not relu.source
    assert product.distance == 2 and product.capacity == pytest.approx(8192 * 1.21)
    assert relu.distance == 1 and relu.capacity == pytest.approx(2 * 8192 * 1.1)
    assert names(part.saved) == [product.name] and names(part.recomputed) == [relu.name]


def test_exercise_9_where_the_output_is_written_too():
    """With relu's output among the results its price falls to that of the product and one step less: it is saved."""
    x, w = torch.randn(32, 64), torch.randn(64, 64, requires_grad=True)

    def f(x, w):
        r = torch.relu(x @ w)
        return r.sum(), r

    part = divided(f, x, w)
    assert part.values[1].beta == 1 and names(part.saved) == [part.values[1].name]
    assert part.forward.memories == ("sum", "relu", "relu")


def test_exercise_10_a_reduction_that_is_read_is_always_saved():
    x = torch.randn(16, 64, requires_grad=True)

    def f(x):
        total = (x * 2).sum(-1, keepdim=True)
        return (total * total * x).sum()

    part = divided(f, x)
    total = next(v for v in part.values if v.name == "sum")
    assert total.is_read and total.source.startswith("rule 3") and total.node in part.saved
    # v is in U and in B: every feasible set has it, and every finite cut goes through its own edge.
    assert all(total.node in chosen for chosen in feasible_sets(part.values))


# -- the cut ----------------------------------------------------------------------------------------------------------


def feasible_sets(values):
    """Definition 5.1 to the letter, by trying every set of values that can be saved."""
    savable = [v.node for v in values if not v.unsavable]
    for size in range(len(savable) + 1):
        for chosen in itertools.combinations(savable, size):
            if is_feasible(values, set(chosen)):
                yield set(chosen)


def is_feasible(values, chosen):
    """Whether every path from U to B goes through ``chosen``, ends included."""
    tainted = set()
    for value in values:
        reached = bool(value.source) or any(source in tainted for source in value.node.inputs)
        if reached and value.node not in chosen:
            tainted.add(value.node)
            if value.is_read:
                return False
    return True


@settings(max_examples=60)
@given(programs.steps)
def test_the_cut_is_the_cheapest_feasible_set(numbers):
    program = write(numbers)
    _, joint, _ = recorded(program.function, program.arguments(), basis())
    values = forward_values(joint, kind_of)
    assume(len([v for v in values if not v.unsavable]) <= 12)
    part = partition(joint, kind_of=kind_of)
    prices = {v.node: v.capacity for v in values}
    best = min(math.fsum(prices[node] for node in chosen) for chosen in feasible_sets(values))
    assert math.fsum(prices[node] for node in part.cut) == pytest.approx(best, rel=1e-12)
    assert is_feasible(values, set(part.cut)) and is_feasible(values, set(part.saved))
    assert part.flow.value == pytest.approx(best, rel=1e-9)


# -- the two graphs ---------------------------------------------------------------------------------------------------


@settings(max_examples=80)
@given(programs.steps, st.sampled_from([(), (0,), (1,), (0, 1)]), st.booleans())
def test_both_graphs_give_the_gradients_of_autograd(numbers, undefined, decomposed):
    program = write(numbers)
    module, joint, arguments = recorded(program.function, program.arguments(), basis() if decomposed else None)
    assume(not joint.obstacles)
    part = partition(joint, kind_of=kind_of)
    tangents = upstream(joint)
    direct = programs.directly_returned(joint)
    tangents = [None if k in undefined or k not in direct else tangent for k, tangent in enumerate(tangents)]
    found = own_gradients(part, arguments, tangents)
    if decomposed:  # other operators, so other roundings; the joint graph undivided is what they must agree with
        expected = undivided_gradients(joint, arguments, tangents)
    else:
        expected = eager_gradients(module, joint, arguments, tangents)
    for name, mine, wanted in zip(programs.NAMES, found, expected, strict=False):
        assert same_bits(mine, wanted), f"gradient of {name}: {mine} instead of {wanted}\n{program.source}\n{part}"


def undivided_gradients(joint, arguments, tangents):
    part = partition(joint, kind_of=lambda node: "item" if kind_of(node) == "item" else _nothing_is_cheap(node))
    assert not any(kind_of(node) not in ("view", "storage view", "item") for node in part.recomputed)
    return own_gradients(part, arguments, tangents)


def _nothing_is_cheap(node):
    kind = kind_of(node)
    return kind if kind in ("view", "storage view", "input", "constant") else "library"


@settings(max_examples=40)
@given(programs.steps)
def test_both_graphs_are_operator_graphs(numbers):
    program = write(numbers)
    _, joint, _ = recorded(program.function, program.arguments(), basis())
    assume(not joint.obstacles)
    part = partition(joint, kind_of=kind_of)
    assert names(part.forward.graph.placeholders) == names(joint.primals)
    tangents = [node for node in joint.tangents if node is not None]
    assert names(part.backward.graph.placeholders) == names((*part.primals_read, *part.saved, *tangents))
    assert len(part.forward.output_leaves) == len(joint.outputs) + len(part.saved) == len(part.forward.memories)
    assert len(part.backward.output_leaves) == len(joint.primals) == len(part.backward.memories)
    assert {d.subject for d in part.decisions} == {v.name for v in part.values}
    assert part.saved_bytes <= part.save_all_bytes + sum(v.nbytes for v in part.values if v.node in part.saved)
    random = [node.name for node in joint.graph if kind_of(node) == "random"]
    assert [node.name for node in part.forward.graph if kind_of(node) == "random"] == random
    assert not [node for node in part.backward.graph if kind_of(node) == "random"]


@dataclass
class Held:
    tensor: torch.Tensor


@settings(max_examples=60)
@given(programs.steps)
def test_the_bytes_of_eager_execution_are_those_it_keeps(numbers):
    """Counted a second time by a hook on what autograd packs: distinct storages, those of inputs and literals left
    out."""
    program = write(numbers, returns=len(numbers))
    module, joint, arguments = recorded(program.function, program.arguments())
    assume(not joint.obstacles)
    packed = []

    def pack(tensor):
        held = Held(tensor.detach())
        packed.append(weakref.ref(held))
        return held

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
        results = Interpreter(module).run(*arguments)
    # What was kept for a value that is gone is gone by now.
    kept = [reference().tensor.untyped_storage() for reference in packed if reference() is not None]
    inputs = {argument.untyped_storage().data_ptr() for argument in arguments}
    sizes = {storage.data_ptr(): storage.nbytes() for storage in kept if storage.data_ptr() not in inputs}
    del results
    expected = sum(sizes.values()) - sum(node.val.nbytes for node in joint.saved_by_eager if node.op == "get_attr")
    assert partition(joint, kind_of=kind_of).eager_bytes == expected, program.source


# -- single rules -----------------------------------------------------------------------------------------------------


def test_views_are_saved_as_what_they_look_at():
    x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)

    def f(x, w):
        h = x @ w
        v = h.t()[1:]
        return (v.sin() * v).sum(), v

    part = divided(f, x, w)
    assert names(part.saved) == ["mm"] and {"t", "_slice"} <= set(names(part.recomputed))
    # The result is a view of what is saved: the caller can see both, and the memories say so.
    assert part.forward.memories[1] == part.forward.memories[2] == "mm"
    assert all(v.unsavable for v in part.values if v.kind == "view")


def test_what_the_caller_may_modify_is_not_saved_where_eager_does_not_keep_it():
    """The product would be cheaper to save than its double. But eager execution keeps only the latter, so a caller may
    write into the former before the backward pass."""
    x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)

    def f(x, w):
        h = x @ w
        return h, (h * 2).sin().sum()

    part = divided(f, x, w)
    product, double = part.values[:2]
    assert "the caller" in product.unsavable and part.saved == (double.node,)
    compiled = staxlab.compile(f, backend="aot_eager")
    expected = torch.autograd.grad(f(x, w)[1], w)[0]
    h, loss = compiled(x, w)
    with torch.no_grad():
        h.mul_(7)
    assert torch.allclose(torch.autograd.grad(loss, w)[0], expected)
    # Read by the backward pass itself, it is kept by eager execution too, whose error is then the same.
    part = divided(lambda x, w: (lambda h: (h, h.sin().sum()))(x @ w), x, w)
    assert names(part.saved) == ["mm"]
    # The same for a view of it.
    part = divided(lambda x, w: (lambda h: (h.t(), (h * 2).sin().sum()))(x @ w), x, w)
    assert names(part.saved) == ["mul"]


def test_of_several_results_each_is_a_value():
    x = torch.randn(8, 16, requires_grad=True)
    part = divided(lambda x: (F.layer_norm(x * 2, (16,)) * x).sum(), x)
    call = next(v for v in part.values if v.name == "native_layer_norm")
    assert call.nbytes == 0 and call.capacity == INFINITE and call.source.startswith("rule 1")
    assert {"native_layer_norm_1", "native_layer_norm_2"} <= set(names(part.saved))


def test_random_numbers_are_never_drawn_again():
    x = torch.randn(8, 8, requires_grad=True)
    part = divided(lambda x: (F.dropout(x.sin(), 0.5) * torch.rand(8, 8)).sum(), x)
    assert {v.name for v in part.values if v.source.startswith("random")} == {"bernoulli", "rand"}
    assert {"bernoulli", "rand"} <= set(names(part.saved))
    # They stay in the forward graph once and in order though nobody there reads the result.
    part = divided(lambda x: (torch.rand(3), x.sin().sum(), torch.rand(4))[1], x)
    assert [n.target_name() for n in part.forward.graph if kind_of(n) == "random"] == ["aten.rand.default"] * 2


def test_a_modified_input_is_read_from_a_copy_or_not_at_all():
    """The backward pass comes after the write. What was computed from the old contents must not be computed from the
    new ones: either it is saved, or the old contents are."""
    x, w = torch.randn(6, 6), torch.randn(6, 6, requires_grad=True)

    def f(x, w):
        half = x * 0.5
        y = (w * half).sin() * (half + 1).exp()
        x.add_(1)
        return y.sum()

    module, joint, arguments = recorded(f, [x, w], basis())
    part = partition(joint, kind_of=kind_of)
    assert names(part.primals_read) == ["w"] and part.forward.write_backs
    assert next(v for v in part.values if v.name == "x").source.startswith("modified")
    tangents = upstream(joint)
    assert same_bits(own_gradients(part, [x, w], tangents)[1], undivided_gradients(joint, [x, w], tangents)[1])


def test_a_modified_input_is_copied_where_that_is_cheaper():
    x, w = torch.randn(6, 6), torch.randn(6, 6, requires_grad=True)

    def f(x, w):
        y = w
        for k in range(3):
            y = y * (x.double() * k).sin()  # each factor is twice the size of x
        x.add_(1)
        return y.sum()

    module, joint, arguments = recorded(f, [x, w], basis())
    part = partition(joint, kind_of=kind_of)
    assert [n.name for n in part.saved if n.op == "placeholder"] == ["x"]
    copy = part.forward.output_leaves[-1]
    assert copy.target_name() == "aten.clone.default" and part.forward.memories[-1] == "x_before"
    tangents = upstream(joint)
    assert same_bits(own_gradients(part, [x, w], tangents)[1], undivided_gradients(joint, [x, w], tangents)[1])


def test_a_residual_stream_is_not_computed_again_from_its_beginning():
    """Each layer adds to the stream, whose sums would all be cheap: without the rule the last would be computed from
    the first and all that was added."""
    x = torch.randn(16, 16)
    weights = [torch.randn(16, 16, requires_grad=True) for _ in range(4)]

    def f(x, *weights):
        for w in weights:
            x = x + (x * 2).sin() @ w
        return x.sum()

    part = divided(f, x, *weights)
    forced = [v for v in part.values if v.source.startswith("read nearby and far away")]
    assert [v.node.target_name() for v in forced] == ["aten.add.Tensor"] * 3
    assert all(" again, after %mm" in v.source for v in forced)
    # No value is computed again from more than one layer's sum.
    sums = {v.node for v in part.values if v.node.target_name() == "aten.add.Tensor"}
    assert not sums & set(part.recomputed)


def test_a_long_chain_is_broken():
    x = torch.randn(4, 4, requires_grad=True)

    def f(x):
        for _ in range(250):
            x = x.sin()
        return x.sum()

    part = divided(f, x)
    forced = [k for k, v in enumerate(part.values, 1) if v.source.startswith("the last of")]
    assert forced == [LONGEST_CHAIN, 2 * LONGEST_CHAIN]
    assert len(part.saved) == 2 and part.plan == "min cut"


def test_what_a_backward_reader_cannot_fuse_is_not_computed_again():
    x, w, u = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    part = divided(lambda x, w, u: ((x * w).sin() @ u).sum(), x, w, u)
    sine = next(v for v in part.values if v.name == "sin")
    assert sine.source.startswith("rule 2") and "reads it from memory" in sine.source and sine.node in part.saved


def test_without_a_finite_cut_everything_is_saved():
    """The backward pass reads a value that is not cheap and no tensor either."""
    x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
    _, joint, _ = recorded(lambda x, w: (x @ w).exp().sum(), [x, w], basis())
    exp = next(node for node in joint.forward_nodes if node.target_name() == "aten.exp.default")
    exp.meta["val"] = 3  # a Python number
    part = partition(joint, kind_of=lambda node: "library" if node is exp else kind_of(node))
    assert part.plan == "save all" and "s -> exp_in -> exp_out -> t" in part.reason and not part.flow.is_finite
    assert names(part.saved) == ["mm"] and exp in part.recomputed and "save all" in part.format()


def test_a_value_of_no_bytes_is_saved_only_if_it_is_read():
    x = torch.randn(0, 4, requires_grad=True)
    w = torch.randn(4, 4, requires_grad=True)
    part = divided(lambda x, w: ((x @ w).sin() @ w).sum(), x, w)
    assert part.saved_bytes == 0
    assert set(part.saved) <= set(part.joint.forward_nodes)


# -- undefined upstream gradients -------------------------------------------------------------------------------------


def test_what_depends_on_undefined_tangents_only_is_gone():
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    part = divided(lambda x, w: (x.sin(), w.cos()), x, w)
    pruned = prune_tangents(part, {0})
    assert pruned.output_leaves[0] is None and pruned.output_leaves[1] is not None
    assert "tangents_1" not in names(pruned.graph.placeholders) and "tangents_2" in names(pruned.graph.placeholders)
    assert not [n for n in pruned.graph if n.target_name() == "aten.cos.default"]
    assert prune_tangents(part, set()) is part.backward
    assert prune_tangents(part, {0, 1}).output_leaves == [None, None]


def test_a_sum_with_something_undefined_is_the_other_summand():
    x = torch.randn(4, 4, requires_grad=True)
    part = divided(lambda x: (x * 2, x * 3), x)
    assert [n for n in part.backward.graph if n.target_name() == "aten.add.Tensor"]
    pruned = prune_tangents(part, {1})
    assert not [n for n in pruned.graph if n.target_name() in ("aten.add.Tensor", "aten.zeros.default")]
    assert len(pruned.graph.calls) == 1


def test_a_scaled_sum_is_its_first_summand_or_gets_zeros():
    from types import SimpleNamespace

    from staxlab.capture.graph import Graph
    from staxlab.capture.module import GraphModule, Interpreter
    from staxlab.operators.graph import OperatorGraph

    graph = Graph()
    small = TensorMeta.of(torch.empty(3))
    tangents = [graph.placeholder(name, val=small) for name in ("t1", "t2")]
    total = graph.call_function(torch.ops.aten.add.Tensor, tuple(tangents), {"alpha": 3}, val=small)
    wide = TensorMeta.of(torch.empty(2, 3))
    spread = graph.placeholder("t3", val=wide)
    other = graph.call_function(torch.ops.aten.add.Tensor, (tangents[0], spread), {"alpha": 1}, val=wide)
    graph.set_output((total, other))
    backward = OperatorGraph(GraphModule(graph), (small, small, wide), memories=(total.name, other.name))
    part = SimpleNamespace(joint=SimpleNamespace(tangents=(*tangents, spread)), backward=backward)
    a, b, c = torch.randn(3), torch.randn(3), torch.randn(2, 3)

    def run(undefined, *given):
        pruned = prune_tangents(part, undefined)
        return Interpreter(pruned.module).run(*given), pruned.memories

    (first, second), memories = run({1}, a, c)
    assert first is a and memories[0] == "t1" and torch.equal(second, a + c)
    (first, second), memories = run({0}, b, c)
    assert torch.equal(first, 3 * b) and second is c and memories == (total.name, "t3")
    (first, second), memories = run({2}, a, b)  # the other summand is not as wide as the sum
    assert torch.equal(first, torch.add(a, b, alpha=3)) and torch.equal(second, a.expand(2, 3))
    assert run({0, 1, 2})[0] == (None, None)


def test_other_operators_get_zeros():
    x = torch.randn(2, 4, requires_grad=True)

    def f(x):
        first, second = x.unbind(0)
        return first.sin(), second.cos()

    part = divided(f, x)
    pruned = prune_tangents(part, {0})
    assert [n.target_name() for n in pruned.graph.calls].count("aten.zeros.default") == 1
    tangent = torch.randn(4)
    found = own_gradients(part, [x], [None, tangent])[0]
    assert torch.equal(found[1], tangent * -x[1].sin()) and not found[0].any()


@pytest.mark.parametrize("geometry", ["contiguous", "transposed", "expanded", "both"])
def test_zeros_have_the_geometry_of_what_they_stand_for(geometry):
    from staxlab.autodiff.split import _Pruning
    from staxlab.capture.graph import Graph
    from staxlab.capture.module import GraphModule, Interpreter

    shapes = {
        "contiguous": torch.empty(3, 4), "transposed": torch.empty(4, 3).t(), "expanded": torch.empty(4).expand(3, 4),
        "both": torch.empty(4, 3).t()[:, None].expand(3, 5, 4),
    }  # fmt: skip
    meta = TensorMeta.of(shapes[geometry])
    part = example_5_1()
    pruning = _Pruning(part.backward, part.joint.tangents, set())
    node = Graph().placeholder("lost", val=meta)
    pruning.graph.set_output((pruning._filled(meta, node),))
    (made,) = Interpreter(GraphModule(pruning.graph)).run()
    assert TensorMeta.of(made) == meta and not made.any()


def test_a_position_without_a_tangent_is_refused():
    from staxlab.errors import TransformError

    part = example_5_1()
    with pytest.raises(TransformError, match="forward output 3 has no upstream gradient"):
        prune_tangents(part, {3})


# -- size -------------------------------------------------------------------------------------------------------------


def test_the_steps_of_a_large_network_are_bounded():
    """A chain of layers with 2,000 nodes in the joint graph: the arcs looked at grow with the graph, not its square."""

    def layered(count):
        x = torch.randn(4, 4)
        weights = [torch.randn(4, 4, requires_grad=True) for _ in range(count)]

        def f(x, *weights):
            for w in weights:
                x = x + F.gelu((x @ w).tanh() * 2) @ w
            return x.sum()

        _, joint, _ = recorded(f, [x, *weights], basis())
        flow = maximum_flow(rematerialization_network(forward_values(joint, kind_of)))
        return len(joint.graph), flow

    small, few = layered(20)
    large, many = layered(100)
    assert large >= 2000
    assert many.steps <= 60 * large
    assert many.steps / few.steps <= 2 * large / small
