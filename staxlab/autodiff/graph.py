"""The record of this stage: one graph that holds a computation and its gradient (Section 5.3).

A :class:`JointGraph` runs from the *primals* (what the function is given) and the *tangents* (what the rest of the
program says about the results: the upstream gradients) to the results and the gradients of the primals. Backward nodes
read forward values directly, so "which values have to survive until the backward pass?" is a question about a graph
(Section 5.4), asked while compiling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..capture.graph import Graph, Node, TensorMeta
from ..capture.module import GraphModule
from ..operators.graph import Decomposed, Obstacle
from ..operators.tensors import ViewStep


@dataclass(frozen=True)
class Result:
    """How one value that the function returns comes about at run time.

    Either it is a Python ``constant`` (``source`` is None), or ``chain`` is replayed on the input number ``index``
    (``source == "input"``: a returned input, or a view of one) or on the forward output number ``index``
    (``"output"``). Views are replayed outside the compiled region, where autograd sees them as the views they are.
    """

    source: str | None
    index: int = -1
    chain: tuple[ViewStep, ...] = ()
    constant: Any = None


@dataclass(frozen=True)
class JointGraph:
    """Forward and backward in one operator graph (Listing 5.2).

    ``module`` maps the primals and tangents, its placeholders in this order, to ``(outputs, gradients)``. ``outputs``
    are the values the forward pass delivers; ``tangents`` has, for each, the placeholder of its upstream gradient, or
    None where it is not differentiable. ``gradients`` has a node for each primal, or None where no gradient is asked
    for or none flows. ``backward`` are the nodes recorded while the autograd engine ran, the tangents among them; their
    ``meta["autograd_node"]`` is the sequence number of the node of autograd's graph that was running.
    ``results`` says how what the function returns is made of the outputs. ``drawn`` are random values, the last of the
    outputs, which nobody is given: a second derivative must not draw them anew. ``saved_by_eager`` are the values that
    eager execution packs for its backward pass, each once, whatever their number of readers.

    ``undecomposed`` is, where second derivatives are asked for, the same graph of operators as autograd knows them: a
    rule that takes one apart need not have a derivative everywhere (a branch of a ``where`` that is not taken may give
    infinity times zero).

    ``write_backs``, ``obstacles``, ``decomposed``, ``versions`` and ``apart`` are those of an operator graph.
    """

    module: GraphModule
    inputs: tuple[TensorMeta | Any, ...]
    primals: tuple[Node, ...]
    tangents: tuple[Node | None, ...]
    outputs: tuple[Node, ...]
    gradients: tuple[Node | None, ...]
    backward: frozenset[Node]
    results: tuple[Result, ...]
    drawn: tuple[Node, ...] = ()
    saved_by_eager: tuple[Node, ...] = ()
    write_backs: tuple[Node, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    decomposed: tuple[Decomposed, ...] = ()
    versions: tuple[int, ...] = ()
    undecomposed: JointGraph | None = None
    apart: frozenset[str] = frozenset()

    @property
    def graph(self) -> Graph:
        return self.module.graph

    @property
    def forward_nodes(self) -> tuple[Node, ...]:
        """The nodes of the forward side in order: primals, constants and calls."""
        return tuple(node for node in self.graph if node.op != "output" and node not in self.backward)

    @property
    def backward_nodes(self) -> tuple[Node, ...]:
        """The nodes of the backward side in order, the tangents first."""
        return tuple(node for node in self.graph if node in self.backward)

    @property
    def read_by_backward(self) -> tuple[Node, ...]:
        """The forward values the backward side reads: the set B of Section 5.4, primals included."""
        wanted = {node for node in self.gradients if node is not None}
        readers = self.backward
        return tuple(n for n in self.forward_nodes if n in wanted or any(user in readers for user in n.users))

    def format(self) -> str:
        """A line for each node, marked ``[FW]`` or ``[BW]`` as in Listing 5.2."""
        lines = []
        for node in self.graph:
            side = "    " if node.op == "output" else "[BW]" if node in self.backward else "[FW]"
            lines.append(f"{side} {node.format()}")
        if self.obstacles:
            lines += ["obstacles:"] + [f"    {obstacle}" for obstacle in self.obstacles]
        return "\n".join(lines)

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)
