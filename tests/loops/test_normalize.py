"""Loop normalisation keeps every value and merges what Proposition 6.3 allows."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from staxlab.loops.body import record
from staxlab.loops.expressions import Expr
from staxlab.loops.normalize import normalize
from staxlab.loops.semantics import evaluate_body

from .programs import FLOAT, contiguous, pointwise, reduction


def normal_form(program, layout=None, ordered=False):
    buffer = program.buffers[0]
    body = record(buffer, {"x": FLOAT, "y": FLOAT})
    store = (layout or buffer.layout).address(tuple(Expr.of(s) for s in body.indices))
    inner = getattr(buffer.data, "reduction_ranges", ())
    return normalize(body, buffer.data.ranges, inner, store, ordered=ordered)


def test_contiguous_loops_merge_into_one():
    program = pointwise(
        {"x": contiguous(4, 8, 16)}, (4, 8, 16), lambda ops, i: ops.load("x", 128 * i[0] + 16 * i[1] + i[2])
    )
    normal = normal_form(program)
    assert normal.ranges == (512,)
    assert str(normal.body.reads()[0].index) == "i0"


def test_exercise_12_two_accesses_that_do_not_merge():
    # 128*i0 + 16*i1 + i2 merges everywhere; i0 + 4*i1 + 32*i2 merges nowhere in this order.
    program = pointwise(
        {"x": contiguous(512), "y": contiguous(512)}, (4, 8, 16),
        lambda ops, i: ops.add(
            ops.load("x", 128 * i[0] + 16 * i[1] + i[2]), ops.load("y", i[0] + 4 * i[1] + 32 * i[2])
        ),
    )  # fmt: skip
    assert normal_form(program).ranges == (4, 8, 16)


def test_example_6_2_merges_the_split_axes():
    program = reduction(
        contiguous(64, 16384), (64, 2), (8192,), "sum",
        lambda ops, i, r: ops.load("x", 16384 * i[0] + 8192 * i[1] + r[0]),
    )  # fmt: skip
    normal = normal_form(program)
    assert normal.ranges == (128,)
    assert str(normal.body.reads()[0].index) == "8192*i0 + r0"


def test_unit_loops_vanish_and_transposed_stores_reorder():
    program = pointwise({"x": contiguous(6, 1, 5)}, (6, 1, 5), lambda ops, i: ops.load("x", 5 * i[0] + i[2]))
    assert normal_form(program).ranges == (30,)
    transposed = pointwise({"x": contiguous(6, 5)}, (6, 5), lambda ops, i: ops.load("x", i[0] + 6 * i[1]))
    from staxlab.loops.ir import Layout

    normal = normal_form(transposed, Layout((6, 5), (1, 6), FLOAT, "cpu"))
    assert normal.ranges == (30,)
    assert str(normal.store) == "i0"


def test_argmax_keeps_the_order_of_its_positions():
    program = reduction(
        contiguous(4, 6), (), (4, 6), "argmax", lambda ops, i, r: ops.load("x", r[0] + 4 * r[1]), torch.int64
    )
    assert normal_form(program, ordered=True).reduction_ranges == (4, 6)
    assert normal_form(program, ordered=False).reduction_ranges == (24,)


def test_a_body_that_uses_the_position_itself_does_not_merge_it_away():
    def compute(ops, i):
        return ops.add(ops.load("x", 8 * i[0] + i[1]), ops.index_value(i[1], FLOAT))

    program = pointwise({"x": contiguous(4, 8)}, (4, 8), compute)
    assert normal_form(program).ranges == (4, 8)


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
    offset=st.integers(0, 3),
)
def test_the_same_elements_are_stored_at_the_same_places(shape, order, offset):
    axes = list(range(len(shape)))
    order.shuffle(axes)
    strides, step = [0] * len(shape), 1
    for axis in axes:
        strides[axis] = step
        step *= shape[axis]

    def compute(ops, i):
        where = Expr.of(offset)
        for position, stride in zip(i, strides, strict=True):
            where = where + stride * position
        return ops.load("x", where)

    program = pointwise({"x": contiguous(step + offset)}, tuple(shape), compute)
    storage = {"x": torch.arange(float(step + offset))}
    plain = evaluate_body(record(program.buffers[0], {"x": FLOAT}), tuple(shape), storage).reshape(-1)
    normal = normal_form(program)
    values = evaluate_body(normal.body, normal.ranges, storage).reshape(-1)
    grids = torch.meshgrid(*(torch.arange(n) for n in normal.ranges), indexing="ij") if normal.ranges else ()
    places = normal.store.evaluate({s.name: g for s, g in zip(normal.body.indices, grids, strict=True)})
    stored = torch.empty(step)
    stored[torch.as_tensor(places).reshape(-1)] = values
    assert torch.equal(stored, plain)
