"""Rows over several loops, the row as a function of the address, and the rules, each on a program of its own."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab
from staxlab.loops.expressions import Expr, Symbol
from staxlab.schedule.legality import LITTLE_WORK, Legality, work
from staxlab.schedule.rows import place, row_views


def explained(function, *inputs, **options):
    return staxlab.explain(function, *inputs, options=options)


def agrees(function, *inputs, **tolerance) -> None:
    found, wanted = staxlab.compile(function)(*inputs), function(*inputs)
    for one, other in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other, **tolerance)


def rejected(compilation) -> dict[str, str]:
    return {d.subject: d.reason for d in compilation.schedule.decisions if d.topic == "fuse" and not d.choice}


# -- the row as a function of the address ------------------------------------------------------------------------------

LOOPS = (Symbol("i_row0", 0, 2), Symbol("i_row1", 0, 3))
INNER = (Symbol("i0", 0, 1), Symbol("i1", 0, 4))
STEPS = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 30, 40, 60])


@st.composite
def subscripts(draw):
    return sum((Expr.of(symbol) * draw(STEPS) for symbol in (*LOOPS, *INNER)), Expr.of(draw(st.integers(0, 3))))


def rows_of(index: Expr) -> dict[int, set]:
    """The rows that reach each address."""
    found: dict[int, set] = {}
    for values in itertools.product(*(range(int(s.upper) + 1) for s in (*LOOPS, *INNER))):
        at = index.evaluate(dict(zip((s.name for s in (*LOOPS, *INNER)), values, strict=True)))
        found.setdefault(at, set()).add(values[:2])
    return found


@given(subscripts(), subscripts())
@settings(max_examples=300, deadline=None)
def test_what_agrees_meets_in_one_row(one, other):
    """Proposition 7.3, against enumeration: if two subscripts agree, no address belongs to different rows of the two,
    as far as each loop over rows is in the subscript."""
    first, second = place(one, LOOPS), place(other, LOOPS)
    if not first.agrees(second):
        return
    told = [k for k, step in enumerate(first.steps) if step]
    here, there = rows_of(one), rows_of(other)
    for address in here.keys() & there.keys():
        digits = {tuple(row[k] for k in told) for row in here[address] | there[address]}
        assert len(digits) == 1


@given(subscripts())
@settings(max_examples=200, deadline=None)
def test_an_address_within_a_row_is_found_again(index):
    """Within a row, different addresses stay different when they are counted from the row's start."""
    found = place(index, LOOPS)
    if not found.is_apart:
        return
    low, high = found.bounds
    for row in itertools.product(range(3), range(4)):
        fixed = {loop: Expr.of(n) for loop, n in zip(LOOPS, row, strict=True)}
        pairs = set()
        for values in itertools.product(range(2), range(5)):
            names = dict(zip((s.name for s in INNER), values, strict=True))
            local = found.local.evaluate(names)
            assert low <= local <= high
            pairs.add((index.substitute(fixed).evaluate(names), local))
        assert len({at for at, _ in pairs}) == len({local for _, local in pairs}) == len(pairs)


def test_rows_inside_a_larger_stride():
    """Channels of a batch of images: rows interleave in memory, and are apart all the same."""
    row, n, p = Symbol("i_row", 0, 63), Symbol("i0", 0, 7), Symbol("i1", 0, 99)
    found = place(Expr.of(n) * 6400 + Expr.of(row) * 100 + Expr.of(p), (row,))
    assert found.is_apart and found.steps == (100,) and found.bounds == (0, 799)
    shifted = place(Expr.of(n) * 6400 + Expr.of(row) * 100 + Expr.of(p) + 100, (row,))
    assert not found.agrees(shifted)


# -- rows of several loops ---------------------------------------------------------------------------------------------

SEVERAL = {
    "a row vector for each position": (
        lambda x, p, w, b: F.layer_norm(x + p, (256,), w, b),
        (torch.randn(4, 128, 256), torch.randn(128, 256), torch.randn(256), torch.randn(256)),
    ),
    "an embedding": (
        lambda i, w, p: F.layer_norm(F.embedding(i, w) + p, (256,)),
        (torch.randint(0, 1000, (4, 128)), torch.randn(1000, 256), torch.randn(128, 256)),
    ),
    "scores under a mask": (
        lambda x, m: torch.softmax(x.masked_fill(m, float("-inf")), -1),
        (torch.randn(4, 8, 64, 96), torch.rand(64, 96) < 0.3),
    ),
    "channels of images": (
        lambda x: (x - x.mean((0, 2, 3), keepdim=True)) * torch.rsqrt(x.var((0, 2, 3), keepdim=True) + 1e-5),
        (torch.randn(4, 80, 12, 12),),
    ),
    "a channel at a time, with a copy": (
        lambda x: (lambda e: (e, e / e.sum((0, 2), keepdim=True)))(x.exp()), (torch.randn(3, 70, 40),)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
def test_one_kernel_over_rows_of_several_loops(name):
    function, inputs = SEVERAL[name]
    assert len(explained(function, *inputs).kernels) == 1
    agrees(function, *inputs, rtol=1e-4, atol=1e-5)


def test_a_group_takes_on_the_rows_of_another():
    """512 rows and 4 x 128 rows are the same rows once the first are cut."""
    x, p = torch.randn(4, 128, 256), torch.randn(128, 256)

    def function(x, p):
        scale = x.sum(-1, keepdim=True)
        return (x * scale).amax(-1, keepdim=True) + (x + p).sum(-1, keepdim=True) * scale

    compilation = explained(function, x, p)
    assert len(compilation.kernels) == 1
    (node,) = compilation.schedule.nodes
    assert [int(loop.upper) + 1 for loop in node.row_loops] == [4, 128] and node.rows == 512
    agrees(function, x, p, rtol=1e-4, atol=1e-3)


def test_heads_copied_together():
    """Three copies out of one matrix share a kernel, one of them transposed."""

    def function(x):
        q, k, v = x.view(2, 128, 3, 4, 64).permute(2, 0, 3, 1, 4).unbind(0)
        return q.contiguous(), k.transpose(-1, -2).contiguous(), v.contiguous()

    x = torch.randn(2, 128, 768)
    assert len(explained(function, x).kernels) < 3
    agrees(function, x, rtol=0, atol=0)


# -- one row -----------------------------------------------------------------------------------------------------------


def test_little_work_shares_one_row():
    """Whatever they read of each other, and whether or not they share anything."""

    def function(x, y):
        total = x.sum()
        return x / total, x.roll(1) * y.amax(), y.flip(0) + total

    x, y = torch.rand(37), torch.rand(37)
    compilation = explained(function, x, y)
    assert len(compilation.kernels) == 1
    (node,) = compilation.schedule.nodes
    assert node.row_loops == () and node.rows == 1
    assert compilation.kernels[0].launch["parallel"] == 0
    agrees(function, x, y)


def test_updates_of_many_small_tensors_share_kernels():
    def function(*tensors):
        return tuple(t * 0.9 + 1 for t in tensors)

    tensors = [torch.randn(n) for n in range(3, 33)]
    compilation = explained(function, *tensors)
    assert len(compilation.kernels) == 2  # of 24 members at most
    agrees(function, *tensors)
    reasons = {d.reason for d in compilation.schedule.decisions if d.topic == "fuse" and d.choice}
    assert reasons == {"one after the other: both have little to do"}


def test_a_single_row_has_a_largest_amount_of_work():
    x = torch.randn(150, 100)
    nodes = explained(lambda x: (x.exp() + 1, x.sum(0)), x, fuse=False).schedule.nodes
    rules = Legality(explained(lambda x: (x.exp() + 1, x.sum(0)), x, fuse=False).schedule.layouts)
    views = tuple(view for node in nodes for view in row_views(node, ()))
    total = sum(map(work, nodes))
    problem = rules.together(views)
    assert (problem is None) == (total <= LITTLE_WORK)
    assert rules.together(views * 10)[0] == "size"


# -- rules -------------------------------------------------------------------------------------------------------------


def test_rule_index_names_the_buffer():
    x = torch.randn(128, 640)

    def function(x):
        e = x.exp()
        return e, e.roll(1, 0) + e.sum(-1, keepdim=True)

    found = rejected(explained(function, x))
    assert any(reason.startswith("index: buf") for reason in found.values())
    agrees(function, x)


def test_rule_cache():
    x = torch.randn(64, 140_001)  # no blocks of whole cache lines
    found = rejected(explained(lambda x: torch.softmax(x, -1), x))
    assert any(reason.startswith("cache") for reason in found.values())


def test_rule_rows():
    x = torch.randn(8, 60_000)
    found = rejected(explained(lambda x: torch.softmax(x, -1), x))
    assert "rows: 8 rows" in found.values()


@pytest.mark.parametrize("inputs", [(torch.randn(0, 64),), (torch.randn(64, 0),)])
def test_empty_nodes_stay_alone(inputs):
    agrees(lambda x: (x.exp(), x.sum(-1), x.sum(0)), *inputs)


def test_not_finite_values_go_through_shared_rows():
    x = torch.randn(4, 64, 300)
    x[0, 0, 0], x[1, 2, 3], x[2, 5] = float("nan"), float("inf"), float("-inf")
    agrees(lambda x, p: torch.softmax(x + p, -1), x, torch.randn(64, 300), equal_nan=True)


@pytest.mark.parametrize("shape, groups", [((8, 64, 14, 14), 8), ((4, 96, 10, 10), 24)])
def test_group_norm_is_one_kernel(shape, groups):
    """The rows of the sums, sample by group, are found inside the loop over channels."""
    x, w, b = torch.randn(shape), torch.randn(shape[1]), torch.randn(shape[1])
    function = lambda x, w, b: F.group_norm(x, groups, w, b)  # noqa: E731
    assert len(explained(function, x, w, b).kernels) == 1
    agrees(function, x, w, b, rtol=1e-4, atol=1e-4)


def test_rule_space_neighbours_share_cache_lines():
    """Rows one element apart, each of them long, are columns."""
    schedule = explained(lambda x: x.sum(0), torch.randn(400, 300), fuse=False).schedule
    (view,) = row_views(schedule.nodes[0], (300,))
    rule, reason = Legality(schedule.layouts).unfit(view)
    assert rule == "space" and "share cache lines" in reason


# -- scans -------------------------------------------------------------------------------------------------------------

SCANS = {
    "cumsum": lambda x: x.cumsum(-1),
    "cumprod": lambda x: (x * 0.1 + 0.95).cumprod(-1),
    "cummax": lambda x: x.cummax(-1)[0],
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
}


@pytest.mark.parametrize("shape", [(64, 40), (67, 130), (4, 32, 33), (5, 7)])
@pytest.mark.parametrize("name", SCANS)
def test_a_scan_between_elementwise_nodes(name, shape):
    """Where rows do not cross the scanned axis, what goes in and what comes out share the kernel: the same bits."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    x[0] = float("nan")

    def function(x):
        prefixes = SCANS[name](x.exp() * 0.1)
        return prefixes, (prefixes * 2).relu()

    compilation = explained(function, x, validate=True)
    assert len(compilation.kernels) == 1 and compilation.validation.passed
    fused, alone = staxlab.compile(function), staxlab.compile(function, options={"fuse": False})
    for one, other in zip(fused(x), alone(x), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    agrees(function, x, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_a_scan_has_several_rows_at_a_time():
    """An addition waits for the one before it in its row: four rows are folded in turn, in a shared kernel too."""
    x = torch.rand(512, 1024)
    (node,) = explained(lambda x: (x.exp().cumsum(-1) * 0.5).relu(), x).schedule.nodes
    scan = next(member for member in node.members if member.kind == "scan")
    assert node.rows == 128 and scan.ranges == (4,)


def test_a_scan_down_the_columns_keeps_its_rows_to_itself():
    compilation = explained(lambda x: (x.cumsum(0) * 0.5).relu(), torch.randn(300, 700))
    assert len(compilation.kernels) == 2
