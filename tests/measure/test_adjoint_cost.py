"""What the model of Table 1.1 counts for backward operators, against the loops they are lowered to."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from staxlab.autodiff.joint import joint_graph
from staxlab.loops.body import record
from staxlab.loops.ir import Reduction
from staxlab.loops.lowering import basis
from staxlab.loops.ops import OPERATIONS
from staxlab.measure.operator_cost import operations
from tests.loops.lowered import module_of, operators_of, program_of
from tests.loops.test_adjoints import EXACT, ROUNDED

aten = torch.ops.aten


def modelled(function, *inputs) -> int:
    (node,) = [n for n in operators_of(function, *inputs).graph if "_backward" in str(n.target)]
    return operations(node)


def lowered(function, *inputs) -> int:
    """The operations of every loop of the lowered program; a reduction merges each element by one more."""
    program = program_of(function, *inputs)
    dtypes = {b.name: b.layout.dtype for b in (*program.inputs, *program.buffers)}
    total = 0
    for buffer in program.buffers:
        reduced = buffer.data.reduction_ranges if isinstance(buffer.data, Reduction) else ()
        named = [s.operation for s in record(buffer, dtypes).all_statements() if s.operation in OPERATIONS]
        each = sum(OPERATIONS[name].cost for name in named) + bool(reduced)
        total += math.prod((*buffer.data.ranges, *reduced)) * each
    return total


# Variants whose formula is another one than the table's.
OTHERS = ("elu of its result", "binary_cross_entropy, weights", "rrelu in evaluation")


@pytest.mark.parametrize("name", [n for n in (*EXACT, *ROUNDED) if n not in OTHERS])
def test_elementwise_adjoints(name):
    function, g, x = (EXACT | ROUNDED)[name], torch.randn(64), torch.randn(64)
    assert abs(modelled(function, g, x) - lowered(function, g, x)) <= 64  # one operation for each element


def test_adjoints_over_rows():
    g, x, w = torch.randn(16, 32), torch.randn(16, 32), torch.randn(32)
    _, *statistics = aten.native_layer_norm(x, [32], w, w, 1e-5)

    def layer_norm(g, x, m, r, w):
        return aten.native_layer_norm_backward(g, x, [32], m, r, w, w, [True] * 3)

    assert modelled(layer_norm, g, x, *statistics, w) == lowered(layer_norm, g, x, *statistics, w)
    for backward in (aten._softmax_backward_data, aten._log_softmax_backward_data):

        def rows(g, y, backward=backward):
            return backward(g, y, 1, g.dtype)

        assert modelled(rows, g, x) == lowered(rows, g, x)


def test_products_on_the_way_back():
    """A convolution is run twice more, for the argument and for the weight; attention computes its scores again and
    needs four products besides."""
    x, w = torch.randn(2, 4, 9, 9, requires_grad=True), torch.randn(6, 4, 3, 3, requires_grad=True)
    assert ratio(F.conv2d, "convolution", x, w) == 2
    assert ratio(F.conv2d, "convolution", x.detach(), w) == 1
    assert ratio(F.conv_transpose2d, "convolution", x, torch.randn(4, 6, 3, 3, requires_grad=True)) == 2
    q, k, v = (torch.randn(1, 2, 8, 16, requires_grad=True) for _ in range(3))
    assert 2 < ratio(F.scaled_dot_product_attention, "scaled_dot_product", q, k, v) < 2.6


def ratio(function, name, *inputs) -> float:
    graph = joint_graph(module_of(function, len(inputs)), list(inputs), basis=basis())
    calls = [n for n in graph.graph if n.op == "call_function" and name in str(n.target)]
    (forth,) = [n for n in calls if n not in graph.backward]
    (back,) = [n for n in calls if n in graph.backward]
    return operations(back) / operations(forth)
