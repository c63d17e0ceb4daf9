"""The compiler's own nodes as nests: what they carry, which orders are legal, and that fusion agrees with Proposition
7.3."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from staxlab.errors import ScheduleError
from staxlab.loops.body import LoopBody, MemoryAccess
from staxlab.loops.disjoint import separates
from staxlab.loops.expressions import Expr, Symbol
from staxlab.loops.lowering import lower
from staxlab.options import Options, host_device_spec
from staxlab.polyhedral import dependences, disjoint_loops, legal_orders, loop_order, nest_of, row_fusion
from staxlab.polyhedral.distances import by_running
from staxlab.schedule.dependencies import schedule
from staxlab.schedule.records import ScheduleNode
from staxlab.schedule.rows import row_views
from tests.loops.lowered import operators_of

X = torch.randn(6, 8)
ROWS = torch.randint(0, 6, (4,))
PLACES = torch.randint(0, 6, (6, 8))
FUNCTIONS = {
    "pointwise": lambda: nodes(lambda x: x.relu() * 2, X),
    "transposed": lambda: nodes(lambda x: x.t().contiguous() + 1, X),
    "row sums": lambda: nodes(lambda x: x.sum(1), X),
    "column sums": lambda: nodes(lambda x: x.sum(0), X),
    "argmax": lambda: nodes(lambda x: x.argmax(0), X),
    "cumsum": lambda: nodes(lambda x: x.cumsum(1), X),
    "scatter_add columns": lambda: nodes(lambda x, i: torch.zeros(6, 8).scatter_add(0, i, x), X, PLACES),
    "scatter_add rows": lambda: nodes(lambda x, i: torch.zeros(6, 8).scatter_add(1, i, x), X, PLACES),
    "index_add": lambda: nodes(lambda x, i: torch.zeros(6, 8).index_add(0, i, x[:4]), X, ROWS),
    "index_put": lambda: nodes(lambda x, i: x.index_put((i,), x[:4]), X, ROWS),
    "histogram": lambda: nodes(lambda i: torch.zeros(6).scatter_add(0, i.flatten(), torch.ones(48)), PLACES),
}


def nodes(function, *inputs, fuse=False):
    options, device = Options(fuse=fuse), host_device_spec()
    return schedule(lower(operators_of(function, *inputs), device, options), device, options).nodes


def computed(name):
    return [node for node in FUNCTIONS[name]() if node.body is not None]


EXPECTED = {
    "pointwise": [()], "transposed": [()], "row sums": [((0, 1),)], "column sums": [((0, 1),)], "argmax": [((0, 1),)],
    "cumsum": [((0, 1),)],
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_running_results_are_carried_by_the_loop_that_is_reduced(name):
    (node,) = computed(name)
    found = dependences(nest_of(node))
    assert {v for d in found.found for v in d.distances[:1]} == set(EXPECTED[name][0])
    assert {v for d in found.found for piece in d.pieces for v in piece.points(2)} == by_running(nest_of(node))
    assert bool(found.without_merges().found) == (name == "cumsum")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_legal_orders_are_those_that_keep_every_value(name):
    for node in computed(name):
        nest = nest_of(node)
        orders = legal_orders(node, merges_in_order=True)
        assert set(orders) <= set(legal_orders(node))
        for order in itertools.permutations(range(nest.depth)):
            names = tuple(nest.names[k] for k in order)
            if not any("indirect" in str(a) for s in nest.statements for a, _ in s.accesses):
                kept = nest.same_values(sorted(nest.points(), key=lambda x, order=order: [x[k] for k in order]))
                assert (names in orders) == kept
            decision = loop_order(node, [node.body.symbols[k] for k in order])
            assert decision.topic == "loop-order" and decision.choice == ", ".join(names)
            assert ("legal" in decision.reason or "stays" in decision.reason) == (names in legal_orders(node))


def test_the_decision_names_the_distance_that_forbids_an_order():
    i, j = Symbol("i", 0, 3), Symbol("j", 0, 3)
    skewed = scatter((i, j), Expr.of(i) + Expr.of(j), "sum")
    assert legal_orders(skewed) == (("i", "j"),)
    decision = loop_order(skewed, (j, i))
    assert "Theorem 7.2: distance (1, -1) becomes (-1, 1)" in decision.reason and decision.inputs


def test_what_is_written_more_than_once_is_not_taken_to_be_written_apart():
    i, j = Symbol("i", 0, 3), Symbol("j", 0, 3)
    twice = pointwise("y", [("x", Expr.of(i) * 4 + Expr.of(j))], [("y", Expr.of(i) + Expr.of(j))], (i, j))
    assert "distance (1, -1)" in loop_order(twice, (j, i)).reason and legal_orders(twice) == (("i", "j"),)
    in_place = pointwise("y", [("y", Expr.of(i) * 4 + Expr.of(j) + 3)], [("y", Expr.of(i) * 4 + Expr.of(j))], (i, j))
    assert "Theorem 7.2" in loop_order(in_place, (j, i)).reason


def test_what_has_no_loops_is_refused():
    (call,) = nodes(lambda x: torch.linalg.inv(x @ x.t()), X)[-1:]
    with pytest.raises(ScheduleError, match="no loops of its own"):
        nest_of(call)


# -- scatters ----------------------------------------------------------------------------------------------------------


def scatter(indices, target, kind="sum"):
    symbols = tuple(indices)
    body = LoopBody(symbols, (), (), 0, target)
    access = MemoryAccess("buf", target, symbols)
    ranges = tuple(int(s.upper) + 1 for s in symbols)
    reads = (MemoryAccess("base", target, symbols),)
    return ScheduleNode(
        "op", "scatter", ("buf",), ranges=ranges, body=body, reduction=kind, reads=reads, writes=(access,), base="base"
    )


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), min_size=1, max_size=3), st.integers(1, 4),
       st.integers(0, 12))  # fmt: skip
def test_disjoint_loops_by_brute_force(loops, values, stride):
    symbols = [Symbol(f"i{k}", 0, extent - 1) for k, (extent, _) in enumerate(loops)]
    value = Symbol("indirect0", 0, values - 1)
    target = sum((Expr.of(s) * step for s, (_, step) in zip(symbols, loops, strict=True)), Expr.of(value) * stride)
    found = disjoint_loops(scatter(symbols, target))
    for place, symbol in enumerate(symbols):
        seen: dict[int, set[int]] = {}
        for point in itertools.product(*(range(extent) for extent, _ in loops)):
            for v in range(values):
                address = sum(x * step for x, (_, step) in zip(point, loops, strict=True)) + v * stride
                seen.setdefault(address, set()).add(point[place])
        assert (symbol in found) == all(len(different) == 1 for different in seen.values())
        assert symbol in found or not separates(target, symbol)


@pytest.mark.parametrize(
    ("name", "disjoint"),
    [("scatter_add columns", ["i1"]), ("scatter_add rows", ["i0"]), ("index_add", ["i1"]), ("index_put", ["i1"]),
     ("histogram", [])],
)  # fmt: skip
def test_disjoint_loops_of_scatters(name, disjoint):
    node = computed(name)[-1]
    assert node.kind == "scatter" and [s.name for s in disjoint_loops(node)] == disjoint


# -- rows --------------------------------------------------------------------------------------------------------------


def views(function, *inputs, rows):
    found = [node for node in nodes(function, *inputs) if node.body is not None]
    return [list(row_views(node, (rows,))) for node in found]


def test_what_shares_rows_has_distance_zero():
    (sums,), (divided,) = views(lambda x: x / x.sum(1, keepdim=True), torch.randn(64, 12), rows=64)
    verdict = row_fusion(sums, divided)
    assert verdict.parallel and {v for d in verdict.distances for v in d.distances} == {(0,)}


def pointwise(name, reads, writes, symbols):
    body = LoopBody(symbols, (), (), 0)
    ranges = tuple(int(s.upper) + 1 for s in symbols)
    accesses = [tuple(MemoryAccess(b, index, symbols) for b, index in pairs) for pairs in (reads, writes)]
    return ScheduleNode(name, "pointwise", (name,), ranges=ranges, body=body, reads=accesses[0], writes=accesses[1])


@pytest.mark.parametrize(("shift", "sequential", "parallel"), [(0, True, True), (-12, True, False), (12, False, False)])
def test_a_shift_by_a_row_is_seen_as_its_distance(shift, sequential, parallel):
    i, j = Symbol("i0", 0, 9), Symbol("i1", 0, 11)
    address = 12 * Expr.of(i) + Expr.of(j) + 12
    writer = pointwise("a", [("x", address)], [("w", address)], (i, j))
    reader = pointwise("b", [("w", address + shift)], [("y", address)], (i, j))
    (one,), (other,) = row_views(writer, (10,)), row_views(reader, (10,))
    verdict = row_fusion(one, other)
    assert (verdict.sequential.legal, verdict.parallel.legal) == (sequential, parallel)
    assert {v for d in verdict.distances for v in d.distances} == {(-shift // 12,)}


FUSED = {
    "softmax": lambda x: (e := (x - x.amax(-1, keepdim=True)).exp()) / e.sum(-1, keepdim=True),
    "row normalisation": lambda x: x / x.sum(-1, keepdim=True),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, (48,)),
    "two sums": lambda x: (x.exp().sum(-1), x.exp().amax(-1)),
    "standardized": lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True),
}


@pytest.mark.parametrize("name", FUSED)
def test_members_of_fused_nodes_depend_on_their_own_row_alone(name):
    """The scheduler's own test of rows (spans of addresses) against the exact one."""
    x = torch.randn(128, 48)
    fused = [node for node in nodes(FUSED[name], x, fuse=True) if node.members]
    assert fused
    apart = {node.name: node for node in nodes(FUSED[name], x) if node.body is not None}
    for node in fused:
        space = [int(loop.upper) + 1 for loop in node.row_loops]
        members = [apart[member.name] for member in node.members]
        pairs = 0
        for one, other in itertools.combinations(members, 2):
            ways = itertools.product(row_views(one, space), row_views(other, space))
            verdicts = [row_fusion(*way) for way in ways]
            assert any(v.parallel.legal for v in verdicts)
            pairs += any(v.distances for v in verdicts)
        assert pairs or name == "two sums", "which only read the same"
        for member in node.members:  # over one row, whose number is given
            assert [p.name for p in nest_of(member).parameters] == [loop.name for loop in node.row_loops]
