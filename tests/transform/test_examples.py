"""Examples 4.1 and 4.2 and the region annotation of Section 4.7, and the driver: rounds, measure, log."""

from __future__ import annotations

import gc
import re

import pytest
import torch
import torch.nn.functional as F

from staxlab.capture.graph import Graph
from staxlab.capture.module import GraphModule
from staxlab.capture.tracer import trace
from staxlab.errors import TransformError
from staxlab.transform import transform
from staxlab.transform.passes import PASSES, measure
from staxlab.transform.regions import region_table
from staxlab.transform.rewrite import Applied, Pass, rewrite
from tests.transform.graphs import X, lines


def test_example_4_1_constant_to_the_right_and_zero_eliminated():
    def n(x):
        return (2 * x + 0).exp()

    capture = trace(n, (X,))
    assert lines(capture.module) == [
        "%mul = call_function[operator.mul](2, %x)",
        "%add = call_function[operator.add](%mul, 0)",
        "%exp = call_method[exp](%add)",
    ]
    log = transform(capture)
    assert lines(log.final) == ["%mul = call_function[operator.mul](%x, 2)", "%exp = call_method[exp](%mul)"]
    assert [a.rule for a in log.changes[0].applied] == ["constant to the right", "add zero"]
    assert len(capture.graph.calls) == 3  # the captured graph is left alone
    assert torch.equal(log.final(X), n(X))


def selu_twice(x):
    y = x * 3
    return F.selu(y) + F.selu(y * 1) * 2


def test_example_4_2_passes_feed_each_other():
    log = transform(trace(selu_twice, (X,)))
    assert [(run.round, run.name) for run in log.changes] == [
        (1, "Normalize"),
        (1, "Decompose"),
        (1, "MergeCommonSubexpressions"),
        (1, "MarkPointwiseRegions"),
        (2, "Normalize"),
    ]
    assert log.rounds == 3  # the third changes nothing
    normalize, decompose, merge, _, right = log.changes
    assert [a.law for a in normalize.applied] == ["x * 1 -> x"]
    assert [a.rule for a in decompose.applied] == ["expand selu", "expand selu"]
    (scaled,) = [n for n in merge.graph_after.graph if n.args[:1] == (1.0507009873554805,)]
    assert len(scaled.users) == 2  # the two chains are one
    assert {a.rule for a in right.applied} == {"constant to the right"} and len(right.applied) == 2
    torch.testing.assert_close(log.final(X), selu_twice(X), rtol=1e-6, atol=1e-6)


SELU_CHAIN = [
    "%gt = call_function[operator.gt](%mul, 0)",
    "%expm1 = call_method[expm1](%mul)",
    "%mul_0 = call_function[operator.mul](1.6732632423543772, %expm1)",
    "%where = call_function[torch.where](%gt, %mul, %mul_0)",
    "%mul_2 = call_function[operator.mul](1.0507009873554805, %where)",
]
REST = ["%mul_1 = call_function[operator.mul](%mul_2, 2)", "%add = call_function[operator.add](%mul_2, %mul_1)"]
TRIPLED = "%mul = call_function[operator.mul](%x, 3)"


def test_example_4_2_graph_by_graph():
    """The chapter's five steps, each with the graph it leaves (selu is written with expm1 here, Section 4.4)."""
    log = transform(trace(selu_twice, (X,)))
    normalized, decomposed, merged, marked, turned = (lines(run.graph_after) for run in log.changes)
    assert normalized == [
        TRIPLED,
        "%selu = call_function[torch.nn.functional.selu](%mul)",
        "%selu_0 = call_function[torch.nn.functional.selu](%mul)",
        "%mul_1 = call_function[operator.mul](%selu_0, 2)",
        "%add = call_function[operator.add](%selu, %mul_1)",
    ]  # the argument of both is %mul
    other = "gt_0 expm1_0 mul_3 where_0 mul_4".split()
    second = SELU_CHAIN
    for name, twin in zip("gt expm1 mul_0 where mul_2".split(), other, strict=True):
        second = [re.sub(rf"%{name}\b", f"%{twin}", line) for line in second]
    assert decomposed == [
        TRIPLED, *SELU_CHAIN, *second, "%mul_1 = call_function[operator.mul](%mul_4, 2)",
        "%add = call_function[operator.add](%mul_2, %mul_1)",
    ]  # fmt: skip
    assert merged == marked == [TRIPLED, *SELU_CHAIN, *REST]
    assert set(log.changes[2].graph_after.graph.find("mul_2").users) == {
        log.changes[2].graph_after.graph.find(name) for name in ("mul_1", "add")
    }
    regions = {number for _, _, number in region_table(log.changes[3].graph_after.graph)}
    assert regions == {0}, "one region, with every node in it"
    final = list(merged)
    final[3] = "%mul_0 = call_function[operator.mul](%expm1, 1.6732632423543772)"
    final[5] = "%mul_2 = call_function[operator.mul](%where, 1.0507009873554805)"
    assert turned == lines(log.final) == final


def test_example_4_2_in_terms_of_the_measure():
    log = transform(trace(selu_twice, (X,)))
    start, normalized, decomposed, merged, marked, turned = log.measures
    assert (start[0], decomposed[0]) == (2, 0) and decomposed[1] > normalized[1], "composites fall, nodes rise"
    assert merged[1] == decomposed[1] - 5 and merged[2] == 2, "one chain of five fewer; two constants on the left"
    assert marked == merged and turned == (0, merged[1], 0)
    third = [run for run in log.runs if run.round == 3]
    assert len(third) == len(PASSES) and not any(run.changed for run in third) and third[-1].measure == turned


def test_the_measure_falls_with_every_change():
    log = transform(trace(selu_twice, (X,)))
    changing = [run for run in log.changes if run.name != "MarkPointwiseRegions"]
    values = [log.measures[0], *(run.measure for run in changing)]
    assert all(later < earlier for earlier, later in zip(values, values[1:], strict=False))
    composites, _, irregular = zip(*values, strict=True)
    assert composites[0] == 2 and composites[-1] == 0 and irregular[-1] == 0


def test_log_reads_round_by_round():
    text = str(transform(trace(selu_twice, (X,))))
    assert "[round 1] Normalize" in text and "[round 3] no change: fixed point reached" in text
    assert "multiply by one: x * 1 -> x" in text
    assert "- %mul_0" in text and "+ %mul " in text


def test_graphs_before_and_after_are_kept_for_changes_only():
    log = transform(trace(selu_twice, (X,)))
    for run in log.runs:
        assert (run.graph_before is not None) == run.changed == (run.graph_after is not None) == bool(run.applied)
    for run in log.changes:
        torch.testing.assert_close(run.graph_before(X), run.graph_after(X), rtol=1e-6, atol=1e-6)


def test_regions_of_example_1_1():
    def f(x, w):
        return (torch.relu(x + w) * 2).sum(-1)

    final = transform(trace(f, (X, X + 1))).final
    assert region_table(final.graph) == [
        ("add", "pointwise", 0), ("relu", "pointwise", 0), ("mul", "pointwise", 0), ("sum", None, None),
    ]  # fmt: skip


def test_regions_are_connected_components():
    def f(x, y):
        a = x + 1
        b = y * 2
        c = a.sum(0) + b.sum(0)
        return c.exp(), a - 1

    final = transform(trace(f, (X, X + 1))).final
    regions = {name: region for name, _, region in region_table(final.graph)}
    assert regions["add"] == regions["sub"] != regions["mul"]
    assert regions["add_0"] == regions["exp"] not in (regions["add"], regions["mul"])
    assert regions["sum"] is None


def test_annotation_is_stable():
    log = transform(trace(lambda x: x.exp() + 1, (X,)))
    again = transform(log.final)
    assert not again.changes and again.rounds == 1


def test_a_fixed_point_is_a_fixed_point():
    for fn in (selu_twice, lambda x: F.hardswish(F.elu(2 * x, 0.5)) + 0, lambda x: [x * 1, (x + 0).t()]):
        final = transform(trace(fn, (X,))).final
        assert not transform(final).changes


def test_origins_and_locations_survive():
    capture = trace(selu_twice, (X,))
    ids = {node.id for node in capture.graph}
    selus = [node.id for node in capture.graph.calls if "selu" in node.target_name()]
    final = transform(capture).final
    for node in final.graph.calls:
        assert node.origins and node.origins <= ids and node.location.file == __file__
    merged = [node for node in final.graph.calls if set(selus) <= node.origins]
    assert merged, "nodes of the merged chain stem from both calls"
    multiplied = final.graph.find("mul")
    dropped = next(node.id for node in capture.graph.calls if node.args[1:] == (1,))
    assert dropped in multiplied.origins  # y * 1 went into y


def test_a_rule_that_does_not_lower_the_measure_is_found():
    def swap(graph: Graph):
        (node,) = [n for n in graph if n.op == "call_function"]
        node.args = tuple(reversed(node.args))
        return [Applied("swap", "x + y -> y + x", (), (), node.origins)]

    module = trace(lambda x, y: x + y, (X, X)).module
    with pytest.raises(TransformError, match="did not lower the measure"):
        rewrite(module, (Pass("Swap", swap),), measure, 16)


def test_a_pass_that_never_stops_is_stopped():
    flip = Pass("Flip", lambda graph: [Applied("flip", "", (), (), frozenset())], annotates=True)
    with pytest.raises(TransformError, match="no fixed point after 5 rounds"):
        rewrite(trace(lambda x: x + 1, (X,)).module, (flip,), measure, 5)


@pytest.mark.parametrize("was_running", [True, False])
def test_the_collector_is_left_as_it_was(was_running):
    """It rests while passes run, and rewriting that fails must not leave it off."""
    seen = []
    watch = Pass("Watch", lambda graph: seen.append(gc.isenabled()) or [])
    flip = Pass("Flip", lambda graph: [Applied("flip", "", (), (), frozenset())], annotates=True)
    module = trace(lambda x: x + 1, (X,)).module
    try:
        (gc.enable if was_running else gc.disable)()
        rewrite(module, (watch,), measure, 5)
        with pytest.raises(TransformError):
            rewrite(module, (watch, flip), measure, 5)
        assert gc.isenabled() == was_running and not any(seen)
    finally:
        gc.enable()


def test_a_broken_graph_is_found():
    def breaks(graph: Graph):
        graph._nodes.reverse()
        return [Applied("break", "", (), (), frozenset())]

    with pytest.raises(TransformError):
        rewrite(trace(lambda x: x + 1, (X,)).module, (Pass("Break", breaks),), measure, 5)


def test_passes_come_in_the_order_of_the_chapter():
    assert [item.name for item in PASSES] == [
        "Normalize", "Fold", "Decompose", "MergeCommonSubexpressions", "RemoveDeadCode", "MarkPointwiseRegions",
    ]  # fmt: skip


def test_a_module_can_be_transformed_directly():
    graph = Graph()
    x = graph.placeholder("x")
    graph.set_output(graph.call_function(torch.exp, (x,)))
    assert str(transform(GraphModule(graph)).final) == str(GraphModule(graph))
