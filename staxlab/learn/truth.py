"""Where the right answers come from: the package's own models, run on real tensors.

No exercise types in a number it could ask for. What eager execution moves is found by running the function and writing
down every operator it dispatches (:mod:`staxlab.operators.record`), each priced by the byte model of
:mod:`staxlab.measure.bytes`; what the least possible traffic is, by following the dependences in the same graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..capture.graph import Graph, describe_value
from ..capture.module import GraphModule
from ..measure.bytes import TrafficModel, traffic_model
from ..operators.record import OperatorGraph, record


class _EveryOperator(frozenset):
    """A basis that holds every overload: eager execution takes no operator apart."""

    def __contains__(self, item: object) -> bool:
        return True


def eager_operators(function: Callable[..., Any], *inputs: torch.Tensor) -> OperatorGraph:
    """The operators that ``function(*inputs)`` dispatches, in order, as eager execution runs them. One execution."""
    graph = Graph()
    arguments = tuple(graph.placeholder(f"input{i}", val=describe_value(value)) for i, value in enumerate(inputs))
    # One node that calls the function: the recorder sees every operator inside it, and nothing has to be traced.
    graph.set_output(graph.call_function(function, arguments))
    return record(GraphModule(graph, {}), list(inputs), basis=_EveryOperator())


def eager_model(function: Callable[..., Any], *inputs: torch.Tensor) -> TrafficModel:
    """Traffic of eager execution and the least traffic possible, for these inputs (Table 1.1, Proposition 1.1)."""
    return traffic_model(eager_operators(function, *inputs))
