"""The cases as data: formulas agree with the byte model, functions with their JAX twins, and names are found."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
import torch

from benchmarks.cases import CASES, select
from staxlab.measure.bytes import eager_traffic, lower_bound

_spec = importlib.util.spec_from_file_location("measure_graphs", Path(__file__).parents[1] / "measure" / "graphs.py")
_graphs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_graphs)

SIZE = (24, 40)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_formulas_are_what_the_byte_model_counts(case):
    graph = _graphs.operator_graph(case.function, *case.make_inputs(SIZE, torch.float32, "cpu"))
    traffic = eager_traffic(graph)
    exact = case.make is None
    assert traffic.elements == pytest.approx(case.elements("eager", SIZE), rel=1e-12 if exact else 0.15)
    assert lower_bound(graph).elements == pytest.approx(case.elements("compiled", SIZE), rel=1e-12 if exact else 0.15)
    # Operations differ from the formula only by terms in n.
    assert traffic.operations == pytest.approx(case.operations * SIZE[0] * SIZE[1], rel=0.05 if exact else 0.25)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_twin_computes_the_same(case):
    """Without JAX: numpy stands in for ``jax.numpy``, and the two library functions are spelled out."""
    import numpy

    class StandIn:
        class nn:
            @staticmethod
            def relu(x):
                return numpy.maximum(x, 0)

            @staticmethod
            def gelu(x, approximate):
                return x * (1 + torch.erf(torch.from_numpy(x) / math.sqrt(2)).numpy()) / 2

            @staticmethod
            def softmax(x, axis):
                e = numpy.exp(x - x.max(axis, keepdims=True))
                return e / e.sum(axis, keepdims=True)

        class lax:
            cummax = staticmethod(numpy.maximum.accumulate)

    inputs = case.make_inputs(SIZE, torch.float64, "cpu")
    ours = case.function(*inputs)
    theirs = case.jax(StandIn, numpy)(*(t.numpy() for t in inputs))
    pairs = zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]
    for a, b in pairs:
        assert torch.allclose(a, torch.from_numpy(numpy.asarray(b)), rtol=1e-9)


def test_the_chapters_byte_ratios():
    rho = {c.name: c.elements("eager", c.size) / c.elements("compiled", c.size) for c in CASES}
    expected = {
        "example_1_1": 4,
        "example_7_1": 1.5,
        "softmax_five_operators": 4,
        "softmax_library": 1,
        "pointwise_chain": 5,
    }
    for name, value in expected.items():
        assert rho[name] == pytest.approx(value, rel=0.01)
    assert all(rho[c.name] == 1 for c in CASES if c.table == "13.2")


def test_inputs_are_the_same_for_everyone_and_every_seed_differs():
    case = select("example_1_1")[0]
    first, again = (case.make_inputs(SIZE, torch.float32, "cpu", seed=3) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], case.make_inputs(SIZE, torch.float32, "cpu", seed=4)[0])


def test_selecting():
    assert [c.name for c in select("relu, exp")] == ["relu", "exp"]
    assert len(select("all")) == len(CASES)
    assert {c.table for c in select("table_13_2")} == {"13.2"}
    with pytest.raises(KeyError, match="no case named 'mish'"):
        select("mish")
