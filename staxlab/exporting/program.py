"""The exported program: a graph that checks what it relies on, and a way to call it (Section 10.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..capture.graph import Graph, Node, TensorMeta, map_nodes
from ..capture.module import GraphModule
from ..capture.record import Capture, Input, compile_rebuild
from ..capture.sizes import Declared, ShapeArithmetic
from ..capture.tracer import trace
from ..errors import ConstraintError
from ..loops.expressions import Symbol
from ..options import Options
from ..shapes.assertions import assert_dim_multiple, assert_dim_range, assert_dims_equal, assert_shape_guard
from ..shapes.environment import ShapeGuard
from ..shapes.relations import COMPARISONS
from ..specialize.signature import stride_expression
from ..specialize.structure import Parameters, argument_leaves
from .adjudication import KEPT, Adjudication, adjudicate, require
from .dimension import Dim, declarations


@dataclass(frozen=True)
class Place:
    """Where an input is found in a call and what it must be: ``sizes`` has None where the size was declared, ``layout``
    its strides relative to sizes where the program asked for them, and ``constant`` says that it may not require grad:
    the sample did not, so where the program switches recording off was not recorded."""

    path: str
    sizes: tuple[int | None, ...]
    dtype: torch.dtype
    device: torch.device
    layout: tuple[Any, ...] | None = None
    constant: bool = False


@dataclass(eq=False)
class ExportedProgram:
    """A function recorded for a range of sizes (Definition 10.2).

    ``module``         the graph, assertions included, and its Python source; weights are its constants
    ``places``         the tensors it takes, in the order of their paths in a call
    ``others``         the sample's other arguments by path: constants of the program, the same at every call
    ``dims``           the declarations by name
    ``adjudications``  every decision about a declared size and what became of it

    Calling it takes arguments like those of the function. Raises ConstraintError for a call that the declarations or
    the sample exclude.
    """

    name: str
    module: GraphModule
    places: tuple[Place, ...]
    dims: dict[str, Dim]
    declared: dict[tuple[str, int], str]
    adjudications: tuple[Adjudication, ...]
    output_spec: Any
    names: tuple[str, ...] = field(default=(), repr=False)
    others: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._rebuild = compile_rebuild(self.output_spec)

    @property
    def graph(self) -> Graph:
        return self.module.graph

    @property
    def assertions(self) -> tuple[Node, ...]:
        """The nodes that check a call."""
        return tuple(n for n in self.graph if getattr(n.target, "__module__", "") == assert_shape_guard.__module__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        flat = self.module(*self._inputs(args, kwargs))
        return self._rebuild(flat if isinstance(flat, tuple) else (flat,), (args, kwargs))

    def _inputs(self, args: tuple, kwargs: dict) -> list[torch.Tensor]:
        parameters = Parameters(self.names, "args", frozenset(self.names))
        if kwargs:
            args, kwargs = parameters.canonical(len(args), tuple(kwargs))(args, kwargs)
        leaves = list(argument_leaves(args, kwargs, parameters.name, {}))
        found = {leaf.path: leaf.value for leaf in leaves if isinstance(leaf.value, torch.Tensor)}
        _check_others(self.name, self.others, leaves)
        missing = [place.path for place in self.places if place.path not in found]
        if missing or len(found) != len(self.places):
            raise ConstraintError(
                f"{self.name} was exported for the tensors {', '.join(p.path for p in self.places)}, "
                f"and this call has {', '.join(found) or 'none'}",
                remedy="call it with arguments of the same structure",
            )
        for place in self.places:
            _check(self.name, place, found[place.path])
        return [found[place.path] for place in self.places]

    def save(self, path: Any) -> Any:
        """Write the program into one file, which :func:`load_exported` reads; returns its path."""
        from .saving import save

        return save(self, path)

    def __str__(self) -> str:
        lines = [f"exported program {self.name!r}", str(self.graph), "declared:"]
        for row in self.dims.values():
            uses = ", ".join(f"{path}.shape[{d}]" for (path, d), name in self.declared.items() if name == row.name)
            lines.append(f"    {row} for {uses}")
        lines += ["decisions about sizes:" if self.adjudications else "decisions about sizes: none"]
        lines += [f"    {a}" for a in self.adjudications]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"ExportedProgram({self.name!r}, {len(self.graph)} nodes, dims {', '.join(self.dims) or 'none'})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def _check(name: str, place: Place, tensor: torch.Tensor) -> None:
    sizes = tuple(tensor.shape)
    fits = len(sizes) == len(place.sizes) and all(e is None or e == n for e, n in zip(place.sizes, sizes, strict=True))
    if not fits or tensor.dtype != place.dtype or tensor.device.type != place.device.type:
        wanted = ", ".join("any" if size is None else str(size) for size in place.sizes)
        remedy = "declare the dimensions that vary: dims={...: {dimension: Dim(...)}}"
        if fits:
            remedy = "convert or move the tensor, or export again with a sample like it"
        raise ConstraintError(
            f"{name} was exported for {place.path}: {place.dtype} [{wanted}] on {place.device.type}, "
            f"and got {tensor.dtype} {list(sizes)} on {tensor.device.type}",
            remedy=remedy,
        )
    if place.layout is not None and not _lies_so(tensor, place.layout):
        raise ConstraintError(
            f"{place.path} has the strides {tuple(tensor.stride())}, and {name}, which asks for its memory layout, was "
            "exported for another layout",
            remedy=f"{place.path}.contiguous(), or export with a sample that lies in memory like this one",
        )
    if place.constant and tensor.requires_grad and torch.is_grad_enabled():
        raise ConstraintError(
            f"{place.path} requires grad, and {name}, which switches gradient recording off for a part of it, "
            "was exported with a sample that does not",
            remedy="export with a sample that requires grad",
        )


def _lies_so(tensor: torch.Tensor, layout: tuple[Any, ...]) -> bool:
    """Whether strides are what :func:`~staxlab.specialize.signature.stride_expression` says of the sample."""

    def value(expression: Any) -> int:
        return expression if type(expression) is int else tensor.shape[expression[1]] * value(expression[2])

    rows = zip(tensor.shape, tensor.stride(), layout, strict=True)
    return all(size < 2 or e is None or value(e) == stride for size, stride, e in rows)


def _check_others(name: str, others: dict[str, Any], leaves: list[Any]) -> None:
    given = {leaf.path: leaf.value for leaf in leaves if not isinstance(leaf.value, torch.Tensor)}
    for path in dict.fromkeys([*others, *given]):
        if path not in given or path not in others or not _equal(given[path], others[path]):
            wanted = f"{path} = {others[path]!r}" if path in others else f"{path} left out"
            got = f"{given[path]!r}" if path in given else "a call without it"
            raise ConstraintError(
                f"{name} was exported for {wanted}, and got {got}", remedy="export it once more for this value"
            )


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    return repr(a) == repr(b) if isinstance(a, (float, complex)) else bool(a == b) is True


def export(
    fn: Callable, args: tuple = (), kwargs: dict[str, Any] | None = None, *, dims: Mapping[Any, Any] | None = None
) -> ExportedProgram:
    """Record ``fn`` on the sample ``args`` for all sizes that ``dims`` declares (Section 10.2).

    ``dims`` maps an argument's name, position or path (``"batch['x']"``) to ``{dimension: Dim(...)}``; dimensions with
    one Dim are equal at every call, all others have the sample's size. Weights and other tensors the function finds
    become constants of the program.

    Raises ConstraintError where the program's decisions do not hold for the whole of a declared range (the message has
    the ranges for which they do), where it decides by data, or where a declaration does not fit; CaptureError as
    capture does.
    """
    args, kwargs = tuple(args), dict(kwargs or {})
    parameters = Parameters.of(fn)
    if kwargs:
        args, kwargs = parameters.canonical(len(args), tuple(kwargs))(args, kwargs)
    leaves = list(argument_leaves(args, kwargs, parameters.name, {}))
    shapes = {leaf.path: tuple(leaf.value.shape) for leaf in leaves if isinstance(leaf.value, torch.Tensor)}
    names = [parameters.name(index) for index in range(len(args))]
    declared = declarations(dims or {}, names, list(shapes), shapes)
    rows = {place: Declared(row.name, *row.counts, row.multiple_of) for place, row in declared.items()}
    others = {leaf.path: leaf.value for leaf in leaves if not isinstance(leaf.value, torch.Tensor)}
    _check_apart(leaves)
    with torch.enable_grad():  # with recording on, the graph has where the program switches it off
        capture = trace(fn, args, kwargs, options=Options(dynamic=True), declared=rows)
    _check_data(capture)
    by_name = {row.name: row for row in declared.values()}
    adjudications = adjudicate(capture.shape_guard)
    hints = {row.name: shapes[path][d] // row.multiple_of for (path, d), row in declared.items()}
    require(adjudications, by_name, hints)
    uses = {place: row.name for place, row in declared.items()}
    module, places = _program(capture, uses, by_name, adjudications)
    _check_writes(capture, module)
    return ExportedProgram(
        capture.name, module, places, by_name, uses, adjudications, capture.output_spec, parameters.positional, others
    )


def _check_apart(leaves: list[Any]) -> None:
    """One tensor in two places would be one input of the graph, and no later call could tell them apart."""
    first: dict[int, str] = {}
    for leaf in leaves:
        if isinstance(leaf.value, torch.Tensor) and first.setdefault(id(leaf.value), leaf.path) != leaf.path:
            raise ConstraintError(
                f"the sample has one tensor as {first[id(leaf.value)]} and as {leaf.path}",
                remedy="a sample with tensors of their own: x.clone()",
            )


def _check_data(capture: Capture) -> None:
    if capture.gates:
        gate = capture.gates[0]
        raise ConstraintError(
            f"{capture.name} decides by data ({gate.condition}), which an exported program cannot ask again",
            where=gate.location,
            remedy="leave the decision in the data: torch.where, masks, staxlab.gate",
        )
    arguments = {_memory(t): row.path for row, t in _rows(capture) if not row.is_free}
    for place in capture.environment.tensors:
        path = arguments.get(_memory(place.read()))
        if path is not None:
            raise ConstraintError(
                f"the sample's {path} is a tensor that {capture.name} also finds outside, as {place.path}",
                remedy="a sample of its own: x.clone()",
            )


def _rows(capture: Capture) -> list[tuple[Input, torch.Tensor]]:
    return list(zip(capture.inputs, capture.samples or (), strict=True))


def _memory(tensor: torch.Tensor) -> Any:
    has_storage = tensor.layout is torch.strided and tensor.numel()
    return tensor.untyped_storage().data_ptr() if has_storage else id(tensor)


def _check_writes(capture: Capture, module: GraphModule) -> None:
    """Refuse a program that writes into its constants, through views or not: seen by running it once."""
    if not capture.mutates_inputs:
        return
    before = {name: value._version for name, value in module.constants.items()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        module(*(sample.detach().clone() for row, sample in _rows(capture) if not row.is_free))
    written = [name for name, value in module.constants.items() if value._version != before[name]]
    if written:
        raise ConstraintError(
            f"{capture.name} writes into a tensor it finds outside its arguments ({', '.join(written)}), and an "
            "exported program has copies",
            remedy="pass the tensor as an argument",
        )


def _program(
    capture: Capture, uses: dict[tuple[str, int], str], dims: dict[str, Dim], adjudications: tuple[Adjudication, ...]
) -> tuple[GraphModule, tuple[Place, ...]]:
    """The captured graph with found tensors as constants and the assertions right behind the inputs."""
    graph, moved, constants = Graph(), {}, {}
    rows = dict(zip(capture.graph.placeholders, capture.inputs, strict=True))
    samples = dict(zip(capture.graph.placeholders, capture.samples, strict=True))
    arguments = [node for node in rows if not rows[node].is_free]
    for node in arguments:
        moved[node] = graph.placeholder(node.name, val=node.val, location=node.location)
    _assert(graph, {rows[node].path: moved[node] for node in arguments}, uses, dims, capture.shape_guard, adjudications)
    for node in (n for n in rows if rows[n].is_free):
        constants[node.name] = samples[node].detach().clone()
        moved[node] = graph.create("get_attr", node.name, name=node.name, val=node.val, location=node.location)
    for node in capture.graph:
        if node in rows:
            continue
        args, kwargs = (map_nodes(a, moved.__getitem__) for a in (node.args, node.kwargs))
        if node.op == "output":
            graph.set_output(args[0])
            continue
        moved[node] = graph.create(node.op, node.target, args, kwargs, name=node.name, location=node.location)
        moved[node].meta.update(node.meta)
    graph.check()
    places = (_place(rows[node], samples[node], uses, capture) for node in arguments)
    return GraphModule(graph, constants), tuple(places)


def _place(row: Input, sample: torch.Tensor, uses: dict[tuple[str, int], str], capture: Capture) -> Place:
    meta: TensorMeta = row.meta
    sizes = tuple(None if (row.path, d) in uses else extent for d, extent in enumerate(meta.shape))
    # A call that returned its argument itself, `x.contiguous()`, leaves a node that nothing reads.
    asks = bool(capture.shape_reads) or any(
        node.meta.get("aliases") and not node.users and not node.meta.get("mutates") for node in capture.graph
    )
    layout = stride_expression(meta.shape, meta.stride) if asks else None
    switches = any(node.meta.get("recording_off") for node in capture.graph)
    return Place(row.path, sizes, meta.dtype, meta.device, layout, switches and not sample.requires_grad)


def _assert(
    graph: Graph, inputs: dict[str, Node], uses: dict[tuple[str, int], str], dims: dict[str, Dim],
    guard: ShapeGuard | None, adjudications: tuple[Adjudication, ...],
) -> None:  # fmt: skip
    first: dict[str, tuple[Node, int]] = {}
    for (path, dimension), name in uses.items():
        node, row = inputs[path], dims[name]
        if name in first:
            graph.call_function(assert_dims_equal, (node, dimension, *first[name], name), val=None)
            continue
        first[name] = (node, dimension)
        upper = float("inf") if row.max is None else row.max
        graph.call_function(assert_dim_range, (node, dimension, row.min, upper, name), val=None)
        if row.multiple_of > 1:
            graph.call_function(assert_dim_multiple, (node, dimension, row.multiple_of, name), val=None)
    places: dict[Symbol, tuple[Node, int, int]] = {}
    for symbol, source in guard.sources if guard is not None else ():
        places[symbol] = (*first[symbol.name], source.multiple_of)
    arithmetic = ShapeArithmetic(graph, places)
    for a in adjudications:
        if a.outcome == KEPT:
            relation = a.decision.relation
            sides = [arithmetic(relation.left), arithmetic(relation.right)]
            target = COMPARISONS[relation.comparison]
            value = target(*(s.val if isinstance(s, Node) else s for s in sides))
            compared = graph.call_function(target, tuple(sides), val=value, location=a.decision.location)
            graph.call_function(assert_shape_guard, (compared, True, a.condition), val=None)
