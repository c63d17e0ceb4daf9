"""Every C++ kernel's loop order is a decision with the reason why it is legal, by Section 7.7's own analysis."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab.loops.disjoint import separates
from staxlab.polyhedral import disjoint_loops, legal_orders

X = torch.randn(32, 48)
PLACES = torch.randint(0, 32, (32, 48))
PROGRAMS = {
    "example 1.1": (lambda x: (torch.relu(x + x) * 2).sum(-1), X),
    "columns": (lambda x: x.sum(0), X),
    "transposed": (lambda x: x.t().contiguous() * 2, X),
    "permuted": (lambda x: x.view(4, 8, 48).permute(2, 0, 1).exp().sum(1), X),
    "everything": (lambda x: x.sum(), X),
    "softmax": (lambda x: x.softmax(0), X),
    "argmin": (lambda x: x.argmin(0), X),
    "layer norm": (lambda x: F.layer_norm(x, (48,)), X),
    "windows": (lambda x: x.unfold(1, 4, 2).sum(-1), X),
}


def decisions(function, *inputs, topic):
    compilation = staxlab.explain(function, *inputs)
    nodes = {m.name: m for node in compilation.schedule.nodes for m in (node.members or (node,))}
    for kernel in compilation.kernels:
        for decision in kernel.decisions:
            if decision.topic == topic:
                yield nodes[decision.subject], decision


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_order_that_was_chosen_is_among_the_legal_ones(name):
    found = list(decisions(*PROGRAMS[name], topic="loop-order"))
    assert found
    for node, decision in found:
        assert "every order is legal" in decision.reason
        if node.body.symbols:
            assert tuple(decision.choice.split(", ")) in legal_orders(node)


@pytest.mark.parametrize("dim", [0, 1])
def test_threads_share_a_loop_of_a_scatter_that_never_meets_itself(dim):
    def scatter(x, places):
        return torch.zeros(32, 48).scatter_add(dim, places, x)

    ((node, decision),) = [
        pair for pair in decisions(scatter, X, PLACES, topic="parallel-depth") if pair[0].kind == "scatter"
    ]
    names = [loop.name for loop in disjoint_loops(node)]
    assert dict(decision.inputs)["disjoint loops"] == ", ".join(names) == f"i{1 - dim}"
    assert all(separates(node.writes[0].index, loop) for loop in disjoint_loops(node))
