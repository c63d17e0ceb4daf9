"""The result of capture: a graph, what it was specialized on, and how to call it.

A compiled region is called with a flat list of tensors, one per placeholder; everything else about the arguments has
been specialized away. :meth:`Capture.bind` takes a call apart into that list and :meth:`Capture.rebuild` puts the flat
results back into whatever the function returned. Both are small generated or precomputed functions, since they run at
every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..provenance import SourceLocation
from ..shapes.environment import ShapeGuard
from ..specialize.free_variables import Environment, Place
from ..specialize.structure import rebuild_container
from .gates import DataGate, Replay
from .graph import Graph, Node, TensorMeta
from .isolation import RandomState
from .module import GraphModule
from .outside import PythonEffect
from .shape_use import ShapeUse, compares_identities, pinned_inputs, shape_uses


@dataclass(frozen=True)
class ShapeRead:
    """Python asked for metadata that is determined by the inputs' signatures: the node, what was asked, the answer."""

    node: Node
    attribute: str
    value: Any
    location: SourceLocation | None = None

    def __str__(self) -> str:
        return f"%{self.node.name}.{self.attribute} == {self.value!r}" + (
            f"   ({self.location})" if self.location else ""
        )


@dataclass(frozen=True)
class Input:
    """A placeholder: its name, the path of its tensor (``batch['x']``, ``self.linear.weight``), whether it is a lifted
    free variable, and the metadata of the sample."""

    name: str
    path: str
    is_free: bool
    meta: TensorMeta


@dataclass(frozen=True)
class Flat:
    """In an output specification: the flat result with this position."""

    index: int


@dataclass(frozen=True)
class Nest:
    """In an output specification: a container like ``like`` with these parts."""

    like: Any
    parts: tuple[Any, ...]


@dataclass(frozen=True)
class Constant:
    """In an output specification: a value that is the same at every call with an equal key."""

    value: Any


@dataclass(frozen=True)
class Argument:
    """In an output specification: a container the caller passed in, returned as it is; ``read(args, kwargs)`` finds
    it."""

    read: Callable[[tuple, dict], Any]


def compile_rebuild(spec: Any) -> Callable[..., Any]:
    """``rebuild(flat results, (args, kwargs))`` -> the user's return value; the common cases do almost nothing. The
    call itself is needed only where the specification has an :class:`Argument`."""
    if isinstance(spec, Flat):
        index = spec.index
        return lambda flat, call=None: flat[index]
    if isinstance(spec, Constant):
        value = spec.value
        return lambda flat, call=None: value
    if isinstance(spec, Argument):
        read = spec.read
        return lambda flat, call: read(*call)
    if isinstance(spec, Nest):
        if type(spec.like) is tuple and all(isinstance(part, Flat) for part in spec.parts):
            indices = tuple(part.index for part in spec.parts)
            if indices == tuple(range(len(indices))):
                count = len(indices)
                return lambda flat, call=None: tuple(flat) if len(flat) == count else tuple(flat[:count])
            return lambda flat, call=None: tuple(flat[i] for i in indices)
        like, makers = spec.like, tuple(compile_rebuild(part) for part in spec.parts)
        return lambda flat, call=None: rebuild_container(like, [make(flat, call) for make in makers])
    raise TypeError(f"unknown output specification {spec!r}")


def uses_of_shapes(
    graph: Graph, shape_reads: Iterable[ShapeRead], kind_reads: Iterable[Node], environment: Environment
) -> tuple[ShapeUse, ...]:
    """Where something about shapes became a constant of a graph recorded in this environment."""
    identities_count = "id" in environment.names or any(map(compares_identities, environment.codes))
    return tuple(shape_uses(graph, shape_reads, kind_reads, identities_count))


@dataclass(eq=False)
class Capture:
    """A recorded function (Section 3).

    ``module``          the graph and its Python source; ``forward`` takes the flat inputs and returns the one result
                        tensor, or a flat tuple of the distinct result tensors
    ``gates``           the data gates in order (Definition 3.2)
    ``replay``          the subgraph that re-evaluates the gates, or None
    ``shape_reads``     metadata the Python code asked for
    ``kind_reads``      the nodes it asked for any metadata, ranks and dtypes included
    ``shape_guard``     what it relies on about sizes that are symbols (Definition 10.2), or None
    ``inputs``          the placeholders in order, lifted free variables first
    ``samples``         the flat sample tensors; :meth:`release` drops them once compilation is done
    ``output_spec``     how the flat results form the return value
    ``environment``     the free variables the function reads
    ``python_effects``  side effects seen on the Python side: they happened once, while tracing
    ``source``          the function's source, ``source_line`` its first line number, ``source_file`` its file
    """

    name: str
    module: GraphModule
    gates: tuple[DataGate, ...]
    replay: Replay | None
    shape_reads: tuple[ShapeRead, ...]
    inputs: tuple[Input, ...]
    output_spec: Any
    environment: Environment
    bind: Callable[[tuple, dict], list[torch.Tensor]] = field(repr=False)
    samples: list[torch.Tensor] | None = field(default=None, repr=False)
    random_state: RandomState | None = field(default=None, repr=False)
    free_places: tuple[Place, ...] = field(default=(), repr=False)
    python_effects: tuple[PythonEffect, ...] = ()
    kind_reads: tuple[Node, ...] = ()
    shape_guard: ShapeGuard | None = None
    grad_mode: bool = False
    executed: bool = True
    source: str = field(default="", repr=False)
    source_line: int = 1
    source_file: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        #: Builds the function's return value from flat results (in the order of the output node).
        self.rebuild: Callable[..., Any] = compile_rebuild(self.output_spec)

        only = self.output_spec == Flat(0)
        #: The same, or None where the one flat result is itself the return value.
        self.rebuild_single = None if only else self.rebuild

    @property
    def graph(self) -> Graph:
        return self.module.graph

    @property
    def mutates_inputs(self) -> bool:
        """Whether some recorded call writes to a tensor."""
        return any(node.meta.get("mutates") for node in self.graph)

    @property
    def opaque_nodes(self) -> tuple[Node, ...]:
        """Nodes whose target reads tensor data inside (``F.one_hot``, ``F.gaussian_nll_loss``): recording such a call
        once more at the operator level would specialize on the sample without a gate, so it must stay whole.

        Calls that only answer a data gate (``torch.equal``) are not among them: the replay subgraph runs those.
        """
        return tuple(
            node for node in self.graph if node.meta.get("reads_data") and (node.users or node.meta.get("mutates"))
        )

    @property
    def shape_uses(self) -> tuple[ShapeUse, ...]:
        """Where something about shapes became a constant of the graph (gamma_s in dynamic mode)."""
        return uses_of_shapes(self.graph, self.shape_reads, self.kind_reads, self.environment)

    @property
    def pinned(self) -> tuple[int, ...]:
        """The positions of the argument tensors whose exact shapes those constants depend on."""
        nodes = pinned_inputs(self.graph, self.shape_uses)
        placeholders = zip(self.graph.placeholders, self.inputs, strict=True)
        return tuple(i for i, (node, taken) in enumerate(placeholders) if node in nodes and not taken.is_free)

    def flat_results(self, result: Any) -> tuple[torch.Tensor, ...]:
        """What ``module.forward`` returned, as a flat tuple."""
        return result if isinstance(result, tuple) else (result,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the captured graph on new arguments, which must have an equal key: no guard is checked here."""
        return self.rebuild(self.flat_results(self.module(*self.bind(args, kwargs))), (args, kwargs))

    def rewind(self) -> None:
        """Put random number generators back to where they were when the function was called. For later stages that run
        the sample once more: compiling must not shift the numbers the program draws."""
        if self.random_state is not None:
            self.random_state.restore()

    def release(self) -> None:
        """Forget the sample tensors and the generators' states."""
        self.samples = self.random_state = None

    def __str__(self) -> str:
        lines = [f"capture of {self.name!r}", str(self.graph)]
        if self.gates:
            lines += ["data gates:"] + [f"    {gate}" for gate in self.gates]
        if self.shape_reads:
            lines += ["shape reads:"] + [f"    {read}" for read in self.shape_reads]
        if self.shape_guard is not None:
            lines += [str(self.shape_guard)]
        if self.python_effects:
            lines += ["Python side effects (happened once, while tracing):"] + [f"    {e}" for e in self.python_effects]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Capture({self.name!r}, {len(self.graph)} nodes, {len(self.inputs)} inputs, {len(self.gates)} gates)"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)
