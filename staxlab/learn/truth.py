"""Where the right answers come from: the package's own models, run on real tensors.

No exercise types in a number it could ask for. What eager execution moves is found by running the function and writing
down every operator it dispatches (:mod:`staxlab.operators.record`), each priced by the byte model of
:mod:`staxlab.measure.bytes`; the least possible traffic, by following the dependences in the same graph; and what a
fused kernel moves, by lowering and scheduling that graph as the compiler does (no code is generated or built).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..capture.graph import Graph, describe_value
from ..capture.module import GraphModule
from ..loops.lowering import lower
from ..measure.bytes import TrafficModel, compiled_traffic, eager_traffic, lower_bound
from ..operators.record import OperatorGraph, record
from ..options import Options, host_device_spec
from ..schedule.dependencies import schedule


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


def byte_model(function: Callable[..., Any], *inputs: torch.Tensor) -> TrafficModel:
    """Traffic of eager execution, of the compiler's schedule, and the least possible, for these inputs (Table 1.1,
    Proposition 1.1). The function's operators must all have a lowering, or LoweringError is raised."""
    operators = eager_operators(function, *inputs)
    device, options = host_device_spec(), Options(strict_native=True)
    plan = schedule(lower(operators, device, options), device, options)
    return TrafficModel(eager_traffic(operators.graph), lower_bound(operators.graph), compiled_traffic(plan))
