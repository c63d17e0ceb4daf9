"""Recording compute functions, the listing, and the reference semantics."""

from __future__ import annotations

import pytest
import torch

from staxlab.loops.body import record
from staxlab.loops.expressions import Expr
from staxlab.loops.ir import Layout
from staxlab.loops.ops import OPERATIONS
from staxlab.loops.semantics import Evaluator, evaluate, fold, neutral_element

from .programs import FLOAT, contiguous, example_1_1, pointwise, reduction

DTYPES = {"x": FLOAT, "w": FLOAT}


def test_example_1_1_records_as_one_short_program():
    program = example_1_1()
    body = record(program.buffers[0], DTYPES)
    assert [s.operation for s in body.statements] == ["load", "load", "add", "relu", "constant", "mul"]
    assert [str(a.index) for a in body.reads()] == ["128*i0 + r0", "128*i0 + r0"]
    assert [a.unique_elements for a in body.reads()] == [64 * 128] * 2
    assert body.operation_count() == 3
    assert [sorted(s.origins) for s in body.statements] == [[0], [1], [2], [3], [4], [4]]
    assert body.origins == frozenset(range(5))


def test_equal_loads_and_operations_are_recorded_once():
    program = pointwise(
        {"x": contiguous(8)}, (8,),
        lambda ops, i: ops.add(ops.mul(ops.load("x", i[0]), ops.load("x", i[0])),
                               ops.mul(ops.load("x", i[0]), ops.load("x", i[0]))),
    )  # fmt: skip
    body = record(program.buffers[0], DTYPES)
    assert [s.operation for s in body.statements] == ["load", "mul", "add"]


def test_a_statement_shared_by_two_sources_belongs_to_both():
    def compute(ops, i):
        a = ops.tagged(frozenset({1})).load("x", i[0])
        b = ops.tagged(frozenset({2})).load("x", i[0])
        return ops.tagged(frozenset({3})).add(a, b)

    body = record(pointwise({"x": contiguous(8)}, (8,), compute).buffers[0], DTYPES)
    assert sorted(body.statements[0].origins) == [1, 2]


@pytest.mark.parametrize("pair", [(0.0, -0.0), (1, True)])
def test_constants_that_differ_in_sign_or_type_stay_apart(pair):
    def compute(ops, i):
        dtypes = [torch.bool if isinstance(v, bool) else FLOAT for v in pair]
        left, right = (ops.to_dtype(ops.constant(v, d), FLOAT) for v, d in zip(pair, dtypes, strict=True))
        return ops.copysign(left, right)

    body = record(pointwise({}, (2,), compute).buffers[0], {})
    assert sum(s.operation == "constant" for s in body.statements) == 2


def test_operands_of_different_dtypes_are_refused():
    def compute(ops, i):
        return ops.add(ops.load("x", i[0]), ops.constant(1, torch.int64))

    with pytest.raises(TypeError, match="operands of one dtype"):
        record(pointwise({"x": contiguous(8)}, (8,), compute).buffers[0], DTYPES)


def test_a_body_that_yields_the_wrong_dtype_is_refused():
    program = pointwise({"x": contiguous(8)}, (8,), lambda ops, i: ops.gt(ops.load("x", i[0]), ops.load("x", i[0])))
    with pytest.raises(TypeError, match="declares"):
        record(program.buffers[0], DTYPES)


def test_the_listing_names_loops_loads_and_the_merge():
    text = str(example_1_1())
    assert "for i0 < 64: sum over r0 < 128 in float32" in text
    assert "load x[128*i0 + r0]" in text
    assert "merge tmp5" in text


def test_evaluation_matches_eager_bit_for_bit_where_no_order_is_free():
    x, w = torch.randn(5, 7), torch.randn(5, 7)
    x[0, 0], w[1, 1], x[2, 2] = float("nan"), float("inf"), -0.0
    program = example_1_1(5, 7)
    (result,) = evaluate(program, {"x": x, "w": w})
    expected = torch.zeros(5)
    for column in range(7):
        expected = expected + (torch.relu(x + w) * 2)[:, column]
    assert torch.equal(result.nan_to_num(7e7), expected.nan_to_num(7e7))


def test_evaluation_through_strides_and_masks():
    # cat(x.t(), 0-padding) written as one masked read
    def compute(ops, i):
        inside = ops.lt(ops.index_value(i[0], torch.int64), ops.constant(3, torch.int64))
        return ops.masked(inside, lambda inner: inner.load("x", i[0] + 3 * i[1]), -1.0)

    x = torch.arange(6.0).reshape(2, 3)
    program = pointwise({"x": contiguous(2, 3)}, (4, 2), compute)
    (result,) = evaluate(program, {"x": x})
    assert torch.equal(result, torch.cat([x.t(), torch.full((1, 2), -1.0)]))


def test_a_masked_block_is_replayed_under_the_handler_it_is_given():
    from staxlab.loops.ops import Ops

    class Spy(Ops):
        def __init__(self, depth=0):
            self.depth, self.seen = depth, []

        def index_value(self, expression, dtype):
            return "position"

        def constant(self, value, dtype):
            return "constant"

        def apply(self, operation, *operands):
            return operation

        def load(self, buffer, index):
            return f"load at depth {self.depth}"

        def masked(self, condition, body, other):
            return body(Spy(self.depth + 1))

    def compute(ops, i):
        inside = ops.lt(ops.index_value(i[0], torch.int64), ops.constant(3, torch.int64))
        return ops.masked(inside, lambda outer: outer.masked(inside, lambda inner: inner.load("x", i[0]), 0.0), 0.0)

    body = record(pointwise({"x": contiguous(8)}, (8,), compute).buffers[0], DTYPES)
    assert body.replay(Spy()) == "load at depth 2"


def test_subscripts_read_at_run_time_wrap_and_are_checked():
    def compute(ops, i):
        position = ops.indirect(ops.load("index", i[0]), Expr.of(5))
        return ops.load("x", position)

    layouts = {"x": contiguous(5), "index": contiguous(3, dtype=torch.int64)}
    program = pointwise(layouts, (3,), compute)
    x = torch.randn(5)
    index = torch.tensor([4, -1, 0])
    assert torch.equal(evaluate(program, {"x": x, "index": index})[0], x[index])
    with pytest.raises(IndexError, match="size 5"):
        evaluate(program, {"x": x, "index": torch.tensor([0, 5, 1])})


def test_half_precision_is_computed_wide_and_rounded_when_cast():
    def compute(ops, i):
        value = ops.load("x", i[0])
        assert ops.dtype_of(value) == FLOAT
        return ops.to_dtype(ops.mul(value, ops.constant(1.001, FLOAT)), torch.bfloat16)

    program = pointwise({"x": contiguous(8, dtype=torch.bfloat16)}, (8,), compute, torch.bfloat16)
    x = torch.randn(8, dtype=torch.bfloat16)
    (result,) = evaluate(program, {"x": x})
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, (x.float() * 1.001).bfloat16())


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(k, d) for k in ("sum", "prod", "amax", "amin") for d in (FLOAT, torch.int64)]
    + [("any", torch.bool), ("all", torch.bool)],
)
def test_an_empty_reduction_is_the_neutral_element(kind, dtype):
    program = reduction(contiguous(3, 0), (3,), (0,), kind, lambda ops, i, r: ops.constant(1, dtype), dtype, dtype)
    (result,) = evaluate(program, {"x": torch.empty(3, 0)})
    assert result.tolist() == [neutral_element(kind, dtype)] * 3


def test_fold_keeps_nan_and_first_position():
    values = torch.tensor([[1.0, float("nan"), 3.0], [2.0, 5.0, 5.0]])
    assert fold(values, "amax", 1, FLOAT).isnan().tolist() == [True, False]
    assert fold(values, "argmax", 1, FLOAT).tolist() == [1, 1]


def test_the_evaluator_covers_every_operation():
    assert Evaluator.operations == set(OPERATIONS)


def test_layout_addresses():
    layout = Layout((2, 3), (1, 2), FLOAT, "cpu", offset=4)
    assert layout.address((1, 2)) == 4 + 1 + 4
    assert layout.storage_elements == 10
    assert contiguous(0, 3).storage_elements == 0
    assert contiguous().storage_elements == 1
