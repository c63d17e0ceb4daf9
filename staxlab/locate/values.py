"""What every node of a graph computes on a sample, kept by name: how two graphs are compared from the inside."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..capture.graph import Graph, Node, TensorMeta
from ..capture.module import GraphModule, Interpreter
from ..operators.structure import flatten, rebuild
from .sample import copies_of


class _Keeping(Interpreter):
    """An interpreter that copies every value when it has been computed, before anything writes into it."""

    def __init__(self, module: GraphModule):
        super().__init__(module)
        self.kept: dict[str, Any] = {}

    def run_node(self, node: Node) -> Any:
        value = super().run_node(node)
        self.kept[node.name] = copied(value)
        return value


def copied(value: Any) -> Any:
    """The structure with its tensors copied."""
    leaves = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in flatten(value)]
    return rebuild(value, leaves)


def node_values(module: GraphModule, inputs: Sequence[Any], seed: int = 0) -> dict[str, Any]:
    """The value of each node by name, on copies of ``inputs``. As much memory as all values take."""
    keeping = _Keeping(module)
    given = copies_of([x.detach() if isinstance(x, torch.Tensor) else x for x in inputs])
    for node, value in zip(module.graph.placeholders, given, strict=True):
        keeping.kept[node.name] = copied(value)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        keeping.run(*given)
    return keeping.kept


def distance(one: Any, other: Any) -> float:
    """How far two values are apart, relative to the largest number among them: 0 for equal bits, infinite where their
    kind or shape differs or one is NaN where the other is not."""
    leaves, others = flatten(one), flatten(other)
    if len(leaves) != len(others):
        return float("inf")
    return max((_apart(a, b) for a, b in zip(leaves, others, strict=True)), default=0.0)


def _apart(one: Any, other: Any) -> float:
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        tensors = isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor)
        return float("inf") if tensors or not (one is other or one == other) else 0.0
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if one.dtype.is_complex:
        one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
    one, other = one.double(), other.double()
    same = (one == other) | (one.isnan() & other.isnan())
    if bool(same.all()):
        return 0.0
    away = torch.where(same, 0.0, (one - other).abs())
    if not bool(away.isfinite().all()):
        return float("inf")
    largest = max(float(x.abs().nan_to_num(0, 0, 0).max()) for x in (one, other))
    return float(away.max()) / largest if largest else 0.0


class Heard(TorchFunctionMode):
    """What a function asks of PyTorch while it is active, written down without the tracer's help: ``values`` are copies
    of all tensors that were returned, in order, and ``graph`` has a node for each call that returned some. ``given``
    are the tensors that the function did not make, one for each placeholder, as they were before the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[torch.Tensor] = []
        self.graph = Graph()
        self.given: list[torch.Tensor] = []
        self._calls: list[tuple[Any, tuple, dict[str, Any], Any, bool]] = []
        self._kept: list[Any] = []  # ids stay those of these objects
        self._made: set[int] = set()
        self._inputs: dict[int, torch.Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in flatten((args, kwargs)) if isinstance(x, torch.Tensor)]
        for tensor in tensors:
            if id(tensor) not in self._made and id(tensor) not in self._inputs:
                self._inputs[id(tensor)] = tensor
                self.given += copies_of([tensor])
        before = [x._version for x in tensors]
        result = func(*args, **kwargs)
        found = [x for x in flatten(result) if isinstance(x, torch.Tensor)]
        writes = before != [x._version for x in tensors]
        self.values += [x.detach().clone() for x in found]
        self._kept += [*tensors, *found]
        if found or writes:
            self._calls.append((func, args, kwargs, result, writes))
            self._made.update(id(x) for x in found if id(x) not in self._inputs)
        return result

    def whole(self, results: Sequence[Any]) -> Graph:
        """The graph of all calls, which returns those of ``results`` that are tensors."""
        nodes: dict[int, Node] = {}
        for number, tensor in enumerate(self._inputs.values()):
            nodes[id(tensor)] = self.graph.placeholder(f"x{number}", val=TensorMeta.of(tensor))

        def known(value: Any) -> Any:
            return rebuild(value, [nodes[id(x)] if isinstance(x, torch.Tensor) else x for x in flatten(value)])

        for func, args, kwargs, result, writes in self._calls:
            single = isinstance(result, torch.Tensor)
            name = getattr(func, "__name__", "")
            is_method = bool(args) and isinstance(args[0], torch.Tensor) and getattr(torch.Tensor, name, None) is func
            create = self.graph.call_method if is_method else self.graph.call_function
            node = create(name if is_method else func, known(args), known(kwargs))
            node.meta.update({"mutates": True} if writes else {})
            if single:
                node.meta["val"] = TensorMeta.of(result)
                nodes.setdefault(id(result), node)
                continue
            for place, part in enumerate(result if isinstance(result, (tuple, list)) else ()):
                if isinstance(part, torch.Tensor):
                    val = TensorMeta.of(part)
                    nodes.setdefault(id(part), self.graph.call_function(operator.getitem, (node, place), val=val))
        self.graph.set_output(tuple(nodes[id(x)] for x in results if isinstance(x, torch.Tensor) and id(x) in nodes))
        return self.graph
