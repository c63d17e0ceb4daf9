"""What every node of a graph computes on a sample, kept by name: how two graphs are compared from the inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..capture.graph import Node
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
    """Every tensor that PyTorch's functions return while it is active, copied, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.values += [x.detach().clone() for x in flatten(result) if isinstance(x, torch.Tensor)]
        return result
