"""Tiny graphs for rule tests."""

from __future__ import annotations

import torch

from staxlab.capture.graph import Graph
from staxlab.capture.module import GraphModule
from staxlab.capture.tracer import trace
from staxlab.transform import transform


def captured(fn, *args) -> GraphModule:
    return trace(fn, args).module


def transformed(fn, *args) -> GraphModule:
    return transform(trace(fn, args)).final


def lines(module: GraphModule | Graph) -> list[str]:
    """The graph without types, one call a line."""
    graph = getattr(module, "graph", module)
    texts = []
    for node in graph.calls:
        val = node.meta.pop("val", None)
        texts.append(node.format())
        if val is not None:
            node.meta["val"] = val
    return texts


def operations(module: GraphModule) -> list[str]:
    return [node.target_name() for node in module.graph.calls]


X = torch.linspace(-2, 2, 12).reshape(3, 4)
I = torch.arange(12).reshape(3, 4)
