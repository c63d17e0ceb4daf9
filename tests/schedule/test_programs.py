"""Which nodes share a kernel on a GPU, over which rows and columns, in how many passes (Sections 7.3 and 9.4)."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import staxlab
from staxlab.loops.body import LoopBody, MemoryAccess, Statement, record
from staxlab.loops.expressions import Expr, Symbol
from staxlab.loops.ir import ComputedBuffer, Layout, Reduction
from staxlab.options import GPU_SPECS
from staxlab.schedule import programs
from staxlab.schedule.programs import COLUMN, ROW, plan_passes, program_views, residence, same_value
from staxlab.schedule.records import ScheduleNode
from staxlab.schedule.squared_deviations import squared_deviations


def scheduled(function, *inputs, **options):
    return staxlab.explain(function, *inputs, target="sm_90", options=options).schedule


def rules(schedule) -> set[str]:
    return {d.reason.split(":")[0] for d in schedule.decisions if d.topic == "fuse" and not d.choice}


# -- views -------------------------------------------------------------------------------------------------------------


def elementwise(extents: tuple[int, ...], order: tuple[int, ...] | None = None) -> ScheduleNode:
    """A copy over loops of these extents whose buffer has the loops of ``order`` from outside to inside."""
    indices = tuple(Symbol(f"i{k}", 0, n - 1) for k, n in enumerate(extents))
    address, stride = Expr.of(0), 1
    for k in reversed(order or range(len(extents))):
        address, stride = address + Expr.of(indices[k]) * stride, stride * extents[k]
    body = LoopBody(indices, (), (Statement(0, "load", ("x", address), torch.float32),), 0)
    access = MemoryAccess("y", address, indices)
    return ScheduleNode(
        "op0", "pointwise", ("y",), ranges=extents, body=body, reads=body.reads(), writes=(access,),
        store_dtype=torch.float32,
    )  # fmt: skip


@given(
    st.lists(st.integers(2, 6), min_size=1, max_size=4).flatmap(
        lambda extents: st.tuples(st.just(tuple(extents)), st.permutations(range(len(extents))), st.integers(1, 40))
    )
)
def test_a_view_visits_every_element_once(case):
    extents, order, rows = case
    node = elementwise(extents, tuple(order))
    points = node.numel
    if points % rows:
        rows = next(k for k in range(rows, 0, -1) if points % k == 0)
    columns = points // rows
    for view in program_views(node, rows, columns):
        (write,) = view.node.writes
        names = (ROW, COLUMN) if view.node.ranges else (ROW,)
        inside = range(columns) if view.node.ranges else range(1)
        found = [
            write.index.evaluate(dict(zip(names, p, strict=False))) for p in itertools.product(range(rows), inside)
        ]
        assert sorted(found) == list(range(points))
        assert view.node.body.reads()[0].index == write.index and view.node.numel * view.rows == points


def test_rows_may_be_any_loops_and_parts_of_one():
    seen = {str(view.node.writes[0].index) for view in program_views(elementwise((6, 4)), 6, 4)}
    assert f"4*{ROW} + {COLUMN}" in seen
    assert f"{ROW} + 4*{COLUMN}" in {str(v.node.writes[0].index) for v in program_views(elementwise((6, 4)), 4, 6)}
    halves = {str(view.node.writes[0].index) for view in program_views(elementwise((24,)), 2, 12)}
    assert halves == {f"12*{ROW} + {COLUMN}", f"{ROW} + 2*{COLUMN}"}


# -- rules -------------------------------------------------------------------------------------------------------------


def test_a_chain_of_reductions_and_broadcasts_is_one_node():
    schedule = scheduled(lambda x: torch.softmax(x, -1), torch.randn(64, 500))
    (node,) = schedule.nodes
    assert node.kind == "fused" and node.rows == 64 and node.private == ("buf0", "buf1")
    assert [member.kind for member in node.members] == ["reduction", "reduction", "pointwise"]
    assert schedule.bytes_read(node) == schedule.bytes_written(node) == 64 * 500 * 4


def test_reductions_along_different_dimensions_stay_apart():
    schedule = scheduled(lambda x: (x.sum(0), x.sum(1)), torch.randn(40, 50))
    assert len(schedule.nodes) == 2 and rules(schedule) == {"space"}


def test_equal_extents_do_not_make_equal_rows():
    """Of a square, rows and columns are equally many; but they lie in different lanes."""
    schedule = scheduled(lambda x: (x.sum(1), x.sum(0)), torch.randn(32, 32))
    assert len(schedule.nodes) == 2 and rules(schedule) == {"index"}
    x = torch.randn(32, 32)
    shifted = scheduled(lambda x: (x.sum(1) + 1, x.sum(1).roll(1) * x[:, 0]), x)
    assert all(len(node.members) < 4 for node in shifted.nodes)
    assert rules(shifted) & {"index"}


def test_a_lane_does_not_read_what_another_one_wrote():
    schedule = scheduled(lambda x: (x.exp() + 1).sum(-1, keepdim=True) * torch.flip(x.tanh(), (1,)), torch.randn(9, 30))
    for node in schedule.nodes:
        for member in node.members:
            inside = {a.buffer: a.index for other in node.members for a in other.writes}
            assert all(a.index == inside[a.buffer] for a in member.reads if a.buffer in inside)


def test_what_a_rectangle_coalesces_keeps_it():
    schedule = scheduled(lambda x, y: (x.t() + y, x.t() * y), torch.randn(50, 60), torch.randn(60, 50))
    assert len(schedule.nodes) == 2 and rules(schedule) == {"lanes"}


def test_rows_and_columns_are_not_mixed():
    def function(x, y):
        return (x - x.sum(1, keepdim=True)).t().contiguous() + y

    schedule = scheduled(function, torch.randn(300, 200), torch.randn(200, 300))
    assert "lanes" in rules(schedule)


def test_few_rows_do_not_leave_the_device_idle():
    schedule = scheduled(lambda x: (x * 2, x.sum(-1)), torch.randn(3, 20000), split_reductions=False)
    assert rules(schedule) == {"rows"} and len(schedule.nodes) == 2


def test_a_third_node_between_two_keeps_them_apart():
    x = torch.randn(64, 64)
    schedule = scheduled(lambda x: x.sum(-1, keepdim=True) + torch.sort(x * x.sum(-1, keepdim=True))[0], x)
    names = [node.name for node in schedule.nodes]
    assert any(node.kind == "extern" for node in schedule.nodes)
    for node in schedule.nodes:
        assert all(names.index(before) < names.index(node.name) for before in node.predecessors)


# -- passes ------------------------------------------------------------------------------------------------------------


def members(function, *inputs):
    (node,) = scheduled(function, *inputs).nodes
    return node.members


def test_a_norm_takes_two_passes_and_so_does_a_softmax():
    x = torch.randn(32, 500)
    ours = members(lambda x: torch.nn.functional.layer_norm(x, (500,)), x)
    norm = plan_passes(ours)
    assert norm.count == 2 and not norm.online and list(norm.late) == ["op2"]
    assert [access.buffer for access in norm.late["op2"].center.reads()] == ["buf1"]
    assert [access.buffer for access in norm.late["op2"].value.reads()] != ["buf1"]
    assert plan_passes(ours, late=False).count == 3
    softmax = plan_passes(members(lambda x: torch.softmax(x, -1), x))
    assert softmax.count == 2 and softmax.online == {"op1": "op0"}
    siblings = plan_passes(members(lambda x: (x.exp().sum(-1), x.exp().amax(-1)), x))
    assert siblings.count == 1


def test_what_is_shifted_by_the_maximum_of_something_else_is_no_pair():
    x = torch.randn(32, 500)
    for function in (lambda x: (x - (2 * x).amax(-1, keepdim=True)).exp().sum(-1),
                     lambda x: (x - x.amax(-1, keepdim=True)).exp().prod(-1)):  # fmt: skip
        passes = plan_passes(members(function, x))
        assert passes.count == 2 and not passes.online


def test_a_value_is_the_same_only_if_all_of_it_is():
    one, other = members(lambda x: ((x * 2).amax(-1), (x * 2).sum(-1), (x * 3).prod(-1)), torch.randn(32, 500))[:2]
    third = members(lambda x: ((x * 2).amax(-1), (x * 3).prod(-1)), torch.randn(32, 500))[1]
    assert same_value(one.body, one.body.result, other.body, other.body.result)
    assert not same_value(one.body, one.body.result, third.body, third.body.result)


DEVIATIONS = {
    "variance": (lambda x: x.var(-1), 1),
    "both moments": (lambda x: torch.var_mean(x, -1), 1),
    "of a function": (lambda x: torch.tanh(x).std(-1), 1),
    "from the greatest element": (lambda x: (x - x.amax(-1, keepdim=True)).square().sum(-1), 2),
    "from the mean of something else": (lambda x: (x - x.exp().mean(-1, keepdim=True)).square().sum(-1), 2),
    "from minus the mean": (lambda x: (x - x.sum(-1, keepdim=True) / -500).square().sum(-1), 2),
    "the other way round": (lambda x: (x.mean(-1, keepdim=True) - x).square().sum(-1), 1),
    "of deviations": (lambda x: (x - x.mean(-1, keepdim=True)).var(-1), 2),
    "cubes": (lambda x: (x - x.mean(-1, keepdim=True)).pow(3).sum(-1), 2),
    "greatest deviation": (lambda x: (x - x.mean(-1, keepdim=True)).square().amax(-1), 2),
    "of two different things": (lambda x: ((x - x.mean(-1, keepdim=True)) * (x - x.amax(-1, keepdim=True))).sum(-1), 2),
}


@pytest.mark.parametrize("case", DEVIATIONS)
def test_squared_deviations_are_gathered_in_the_pass_that_finds_what_they_deviate_from(case):
    function, count = DEVIATIONS[case]
    passes = plan_passes(members(function, torch.randn(32, 500)))
    assert passes.count == count and bool(passes.late) == (count == 1 or case == "of deviations")


def deviations_of(element) -> bool:
    """Whether a sum of ``element(ops, x, c, i, r)`` squared, x of shape [8, 50] and c of [8], is one of deviations."""
    row, column = Symbol("i0", 0, 7), Symbol("r0", 0, 49)

    def compute(ops, i, r):
        difference = element(ops, i[0], r[0])
        return ops.mul(difference, difference)

    data = Reduction((8,), (50,), "sum", torch.float32, torch.float32, compute)
    buffer = ComputedBuffer("y", Layout((8,), (1,), torch.float32, "cuda"), data)
    body = record(buffer, {"x": torch.float32, "c": torch.float32, "k": torch.int64})
    assert body.symbols == (row, column)
    node = ScheduleNode("op0", "reduction", ("y",), ranges=(8,), reduction_ranges=(50,), body=body,
                        reduction="sum", accumulate_dtype=torch.float32)  # fmt: skip
    return squared_deviations(node) is not None


def test_conditions_and_subscripts_read_at_run_time_are_no_straight_line():
    def plain(ops, i, r):
        return ops.sub(ops.load("x", 50 * i + r), ops.load("c", i))

    def guarded(ops, i, r):
        inside = ops.lt(ops.index_value(r, torch.int64), ops.constant(40, torch.int64))
        return ops.sub(ops.masked(inside, lambda ops: ops.load("x", 50 * i + r), 0.0), ops.load("c", i))

    def gathered(ops, i, r):
        column = ops.indirect(ops.load("k", r), Expr.of(50))
        return ops.sub(ops.load("x", 50 * i + column), ops.load("c", i))

    def both_vary(ops, i, r):
        return ops.sub(ops.load("x", 50 * i + r), ops.load("c", r))

    assert deviations_of(plain) and deviations_of(lambda ops, i, r: ops.neg(plain(ops, i, r))) is False
    assert not any(map(deviations_of, (guarded, gathered, both_vary)))


@pytest.mark.parametrize(("columns", "kind"), [(100, "persistent"), (1024, "persistent"), (16384, "persistent"),
                                               (16385, "looped")])  # fmt: skip
def test_rows_are_held_as_long_as_registers_allow(columns, kind):
    schedule = scheduled(lambda x: torch.softmax(x, -1), torch.empty(300, columns))
    (node,) = schedule.nodes
    decision = residence(node.name, node.members, columns, schedule.layouts, GPU_SPECS["sm_90"])
    assert decision.choice == kind and f"{columns:,}" in decision.reason


def test_more_arrays_leave_room_for_shorter_rows():
    def function(x, y):
        product = x * y
        return product / product.sum(-1, keepdim=True)

    for columns, kind in ((4096, "persistent"), (8192, "looped")):
        schedule = scheduled(function, torch.empty(300, columns), torch.empty(300, columns))
        (node,) = schedule.nodes
        decision = residence("", node.members, columns, schedule.layouts, GPU_SPECS["sm_90"])
        assert decision.choice == kind and dict(decision.inputs)["arrays held"] == 2


def test_what_would_be_read_again_too_often_is_not_fused():
    def function(a, b, c, d):
        h = a * b + c * d
        return h, h / h.sum(-1, keepdim=True)

    short, long = (scheduled(function, *(torch.empty(300, n) for _ in range(4))) for n in (1000, 40000))
    assert len(short.nodes) == 1 and len(long.nodes) == 2 and "registers" in rules(long)


def test_every_rule_is_explained():
    assert all(f"``{rule}``" in programs.__doc__ for rule in ("space", "index", "lanes", "registers", "rows"))
