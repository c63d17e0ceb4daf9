"""Operator graphs for tests: run a function on real tensors and write down the aten operators it dispatched."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from staxlab.capture.graph import Graph, Node, TensorMeta, describe_value


class _Recorder(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, graph: Graph, known: dict[int, Node]):
        super().__init__()
        self.graph, self.known, self.alive = graph, known, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.alive.append((args, kwargs, result))  # ids stay unique while tensors live

        def to_node(value: Any) -> Any:
            return self.known.get(id(value), value) if isinstance(value, torch.Tensor) else value

        node = self.graph.call_function(func, tree_map(to_node, args), tree_map(to_node, kwargs))
        node.meta["val"] = describe_value(result)
        if isinstance(result, torch.Tensor):
            self.known[id(result)] = node
        elif isinstance(result, (tuple, list)):
            import operator

            for i, part in enumerate(result):
                if isinstance(part, torch.Tensor):
                    item = self.graph.call_function(operator.getitem, (node, i), val=TensorMeta.of(part))
                    self.known[id(part)] = item
        return result


def operator_graph(fn, *args: torch.Tensor) -> Graph:
    """The aten operators of ``fn(*args)`` with the metadata of every value."""
    graph, known = Graph(), {}
    for i, tensor in enumerate(args):
        known[id(tensor)] = graph.placeholder(f"x{i}", val=TensorMeta.of(tensor))
    with _Recorder(graph, known) as recorder:
        result = fn(*args)
    graph.set_output(tree_map(lambda t: known[id(t)] if isinstance(t, torch.Tensor) else t, result))
    graph.check()
    assert recorder.alive or result is not None
    return graph
