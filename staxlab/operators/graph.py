"""The record of this stage: a graph of ``aten`` overloads, and what keeps it from being a pure function.

After recording every node points at exactly one operator overload, so a back end can look up its rule (Section 5.1).
In-place modifications have become new values, with one ``copy_`` for each modified input at the end (Section 4.9).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.graph import Graph, Node, TensorMeta
from ..capture.module import GraphModule
from ..provenance import NO_ORIGINS, Origins, SourceLocation
from .structure import flatten, rebuild


@dataclass(frozen=True)
class Obstacle:
    """Why a region cannot be compiled as a pure function of its inputs: the node, the reason, the user's line.

    ``kind`` is "data-dependent" (a tensor's value became a Python value), "dynamic-shape" (a result's shape depends on
    data), "unknown-tensor" (a tensor no recorded operator made), "unsupported-tensor" (sparse, quantized: not a strided
    array of numbers), "uninitialized" (memory that eager execution fills), or what stands in the way of a write:
    "mutation" (the operator has no functional twin, a view no inverse), "overlap" (elements of what is written share
    memory), "written-twice" (a call writes, or writes and reads, the same memory), "shared-input" (inputs overlap),
    "outside" (``as_strided`` looks beyond the tensor), "reshaped" (the shape changes in place), "constant" (a tensor of
    the program itself) or "random-layout" (the draw follows strides). Where gradients are recorded there are three
    more: "gradient-write" (an input is modified in place, and that is part of what is differentiated), "saved-write" (a
    value is modified that eager execution saved for its backward pass before, which raises there) and "phase" (complex
    vectors whose gradient exists only where it does not depend on their phase).
    """

    node: str
    kind: str
    reason: str
    location: SourceLocation | None = None

    def __str__(self) -> str:
        return f"%{self.node}: {self.reason}" + (f" ({self.location})" if self.location else "")


@dataclass(frozen=True)
class Decomposed:
    """One operator taken apart: its overload, the names of the nodes its rule was recorded as, the user's line."""

    operator: str
    into: tuple[str, ...]
    origins: Origins = NO_ORIGINS
    location: SourceLocation | None = None

    def __str__(self) -> str:
        return f"{self.operator} -> {', '.join('%' + name for name in self.into) or 'nothing'}"


@dataclass(frozen=True)
class OperatorGraph:
    """The recorded graph of ``aten`` overloads.

    ``module`` runs it (placeholders in the order of ``record``'s inputs, constants in ``module.constants``); it does
    what the program does if ``obstacles`` is empty. ``write_backs`` are the ``copy_`` nodes at the end that give
    modified inputs their new contents. ``mutations`` are writes that functionalization does not cover; each is among
    the ``obstacles`` too. ``decomposed`` logs the decomposition rules that were used. ``memories`` names, for each
    of :attr:`output_leaves`, the memory it looks at (None for a Python value): results with equal names share it, and
    the name of an input is the caller's memory. ``versions`` counts for each input how often the program writes into
    it: by so much does eager execution raise its version counter. ``apart`` are the names of inputs that are known to
    share no memory with another input.
    """

    module: GraphModule
    inputs: tuple[TensorMeta | Any, ...]
    write_backs: tuple[Node, ...] = ()
    mutations: tuple[Node, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    decomposed: tuple[Decomposed, ...] = ()
    memories: tuple[str | None, ...] = ()
    versions: tuple[int, ...] = ()
    apart: frozenset[str] = frozenset()

    @property
    def home(self) -> torch.device:
        """The one device a region's kernels run on: the first GPU that one of its values is on, else where its first
        value is. What is on another device is computed by PyTorch's operators."""
        placed = [leaf.device for node in self.graph for leaf in flatten(node.val) if isinstance(leaf, TensorMeta)]
        gpus = (device for device in placed if device.type == "cuda")
        return next(gpus, placed[0] if placed else torch.device("cpu"))

    @property
    def graph(self) -> Graph:
        return self.module.graph

    @property
    def is_pure(self) -> bool:
        """Whether the graph, apart from its write-backs, is a pure function of its inputs."""
        return not self.obstacles

    @property
    def output_leaves(self) -> list[Any]:
        """What the program returns, flattened: nodes and Python constants, left to right."""
        return flatten(self.graph.output.args[0])

    def rebuild(self, leaves: Iterable[Any]) -> Any:
        """The program's output structure with other leaves, in the order of :attr:`output_leaves`."""
        return rebuild(self.graph.output.args[0], leaves)

    def format(self) -> str:
        lines = [self.graph.format()]
        if self.decomposed:
            lines += ["decomposed:"] + [f"    {entry}" for entry in self.decomposed]
        if self.obstacles:
            lines += ["obstacles:"] + [f"    {obstacle}" for obstacle in self.obstacles]
        return "\n".join(lines)

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)
