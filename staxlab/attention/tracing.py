"""From a function of one score to a loop body (Section 9.10): how ``score_mod`` and ``mask_mod`` are traced.

A modification says what happens to *one* score, at subscripts ``b, h, q, kv``. It is traced once, with tensors that
broadcast as the subscripts of the whole matrix of scores do: a score ``[2, 2, 2, 2]``, ``b`` ``[2, 1, 1, 1]``, ``h``
``[1, 2, 1, 1]``, ``q`` ``[1, 1, 2, 1]`` and ``kv`` ``[1, 1, 1, 2]``. So the very function, run on tensors of the true
sizes, is its own specification; no other reading of it exists.

The path is the compiler's: capture, transform, operators. Only lowering differs, in what it is given and what it may
do. A subscript is no tensor in memory but an expression of a symbol with the true range, so that ``table[q - kv + n]``
becomes a plain subscript with a proof where there is one (Section 6.8). And nothing may be realized: what is not one
expression of the score and the subscripts has no place inside a kernel, and is refused with the user's line.

*Why the sample is two by two, and zero.* The extents 2 show what depends on which subscript, and no intermediate value
has more than 16 elements, whatever the true sizes are. Every subscript of the sample is 0: position (0, 0, 0, 0) exists
in every attention that has an element, so that captured tensors, which have their true sizes, are read where reading
is legal. Nothing of the sample remains in the result: a question about data is refused, and so is a question about the
sample's shapes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..capture.graph import Graph, Node, TensorMeta, map_nodes
from ..capture.record import Capture, Constant, Flat
from ..capture.tracer import trace
from ..errors import CaptureError, StaxError
from ..loops.body import Block, LoopBody, Statement
from ..loops.expressions import Expr, Symbol
from ..loops.ir import Layout
from ..loops.layout import broadcast, is_injective
from ..loops.lowering import RULES, basis
from ..loops.lowering.call import Call
from ..loops.lowering.graph import GraphLowering
from ..loops.lowering.registry import Decline
from ..loops.lowering.values import Box, TensorValue, convert
from ..operators.basis import is_random
from ..operators.graph import OperatorGraph
from ..operators.record import record
from ..operators.structure import flatten
from ..options import Options, host_device_spec
from ..provenance import SourceLocation
from ..transform import transform
from .clamping import ClampingRecorder
from .own_rules import NO_DERIVATIVE, own_rule

#: The subscripts of a score, outermost first, and the pseudo buffer whose element is the score at hand.
SUBSCRIPTS = ("b", "h", "q", "kv")
SCORE = "score"

#: The extents of the sample: what does not vary has extent 1, so any extent above tells the two apart.
SAMPLE = (2, 2, 2, 2)

#: A subscript's range where no sizes were given: whatever an int32 holds.
UNKNOWN_SIZE = 2**31 - 1

_POSITIONAL = frozenset({"tril", "triu", "native_dropout", "native_dropout_backward"})
_SAME_PLACE = frozenset({"expand", "alias", "detach", "lift", "lift_fresh"})  # views that keep every subscript
_LOOKUPS = frozenset({"index", "_unsafe_index", "take"})
_OF_CAPTURED = frozenset({"pointwise", "factory", "view", "indexing", "joining"})  # what costs no memory


@dataclass(frozen=True)
class CapturedBuffer:
    """A tensor that a modification reads besides its arguments: its node in the graph, what it is called in the user's
    function, its layout, and its ``place`` among the tensors of the function's environment. ``constant`` is the tensor
    where the function makes it itself, and then there is no place. ``detached``: no gradient goes back to it."""

    node: str
    path: str
    layout: Layout
    requires_grad: bool
    place: int = -1
    constant: torch.Tensor | None = None
    detached: bool = False


@dataclass(frozen=True)
class Traced:
    """What tracing yields: the captured graph, the loop body over ``b, h, q, kv``, and the tensors it reads.
    ``undifferentiable`` are operators, with the user's lines, that keep the body from being differentiated, and
    ``beyond`` reads of which some score's is certain to be out of range."""

    name: str
    location: SourceLocation | None
    graph: Graph
    body: LoopBody
    captured: tuple[CapturedBuffer, ...]
    undifferentiable: tuple[tuple[str, SourceLocation | None], ...] = ()
    beyond: tuple[tuple[str, SourceLocation | None], ...] = ()


def trace_modification(
    function: Callable,
    kind: str,
    sizes: Sequence[int] | None,
    dtype: torch.dtype,
    device: torch.device,
    spread_out: bool = False,
) -> Traced:
    """Trace a ``score_mod`` or ``mask_mod`` (``kind`` "score" or "mask").

    ``sizes`` are (batch, query heads, queries, keys) or None; ``dtype`` is the score's, float32 or float64. Captured
    tensors are read with the strides they have, but one whose elements share memory (an expanded one) as if it were
    contiguous where it requires grad, or with ``spread_out`` in any case: gradients are summed up element by element.

    Raises CaptureError, naming the user's line, for what is no function of one score; exceptions of ``function`` pass
    through. About 10 ms, and memory for a few dozen numbers.
    """
    label = f"{kind}_mod {_name(function)!r}"
    arguments = _sample(kind, dtype, device)
    _check_signature(function, kind, label, len(arguments))
    try:
        with torch.enable_grad():  # so that what the function detaches is seen
            capture = trace(function, arguments)
    except StaxError:
        raise
    except (RuntimeError, IndexError) as error:
        about_tensors = "size of tensor" in str(error) or "device" in str(error) or "shape" in str(error)
        raise CaptureError(
            f"{label} fails for the score at position (0, 0, 0, 0): {error}",
            where=_location_of(function),
            remedy="captured tensors live on the queries' device and are read by subscripts: bias[q_idx, kv_idx]"
            if about_tensors
            else "it has to be defined for every score, the first one included",
        ) from error
    _check_capture(capture, kind, label)
    changed = transform(capture, Options())
    operators = record(changed.final, capture.samples, Options(), basis=basis())
    capture.rewind()
    lowering = ModificationLowering(operators, capture, kind, label, sizes, spread_out)
    value = lowering.value(flatten(operators.graph.output.args[0]))
    body, captured = lowering.body(value, dtype)
    return Traced(
        _name(function), _location_of(function), capture.graph, body, captured, tuple(lowering.undifferentiable),
        tuple(lowering.beyond),
    )  # fmt: skip


def _sample(kind: str, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, ...]:
    places = [[2 if axis == own else 1 for axis in range(4)] for own in range(4)]
    subscripts = [torch.zeros(place, dtype=torch.int32, device=device) for place in places]
    if kind == "mask":
        return tuple(subscripts)
    score = torch.zeros(SAMPLE, dtype=dtype, device=device, requires_grad=True)
    return (score.neg(), *subscripts)  # no leaf, which PyTorch would not let be written: the refusal of that is ours


def _name(function: Any) -> str:
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    return getattr(function, "__name__", None) or type(function).__name__


def _location_of(function: Any) -> SourceLocation | None:
    while hasattr(function, "func"):
        function = function.func
    if isinstance(function, torch.nn.Module):
        function = type(function).forward
    elif not hasattr(function, "__code__"):
        function = vars(type(function)).get("__call__")
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        return None
    import linecache

    first = code.co_firstlineno
    lines = (linecache.getline(code.co_filename, line).strip() for line in range(first, first + 10))
    text = next((line for line in lines if line and not line.startswith("@")), "")
    return SourceLocation(code.co_filename, first, text, code.co_name)


def _check_signature(function: Any, kind: str, label: str, count: int) -> None:
    wanted = "score, b, h, q_idx, kv_idx" if kind == "score" else "b, h, q_idx, kv_idx"
    if not callable(function):
        raise CaptureError(
            f"a {kind}_mod is a function of ({wanted}), not {type(function).__name__}",
            remedy=f"pass def {kind}_mod({wanted}): ...",
        )
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError as error:
        raise CaptureError(
            f"{label} does not take ({wanted}): {error}", where=_location_of(function), remedy=f"def f({wanted}): ..."
        ) from None
    except ValueError:  # a builtin without a signature: calling it will tell
        pass


# -- what may not happen ---------------------------------------------------------------------------------------------


def _check_capture(capture: Capture, kind: str, label: str) -> None:
    """Refuse what the captured graph shows already: questions about data, or about the sample's shapes."""
    for gate in capture.gates:
        raise CaptureError(
            f"{label} asks for the value of a tensor, {gate.condition}, which differs from score to score",
            where=gate.location,
            remedy="choose with torch.where(condition, a, b); a number is taken out of a tensor outside the function",
        )
    given = {p.name for p, taken in zip(capture.graph.placeholders, capture.inputs, strict=True) if not taken.is_free}
    varying = varying_nodes(capture.graph, given)
    for read in capture.shape_reads:
        if read.node in varying:
            raise CaptureError(
                f"{label} reads the {read.attribute} of a score or subscript, which stands for one element",
                where=read.location,
                remedy="let the function capture the length as a Python number",
            )


def varying_nodes(graph: Any, names: set[str]) -> set[Node]:
    """The nodes of a graph that depend on the placeholders of these names."""
    found: set[Node] = set()
    for node in graph:
        if (node.op == "placeholder" and node.name in names) or any(source in found for source in node.inputs):
            found.add(node)
    return found


class ModificationLowering(GraphLowering):
    """Lowering with subscripts for index tensors, and without memory."""

    def __init__(
        self,
        operators: OperatorGraph,
        capture: Capture,
        kind: str,
        label: str,
        sizes: Sequence[int] | None,
        spread_out: bool,
    ):
        super().__init__(operators, host_device_spec(), Options())
        self.capture, self.kind, self.label, self.spread_out = capture, kind, label, spread_out
        self.inputs_of = dict(zip([p.name for p in operators.graph.placeholders], capture.inputs, strict=True))
        own = [name for name, taken in self.inputs_of.items() if not taken.is_free]
        names = ((SCORE,) if kind == "score" else ()) + SUBSCRIPTS
        self.role = dict(zip(own, names, strict=True))
        self.home = next(p.val.device for p in operators.graph.placeholders if p.name in self.role)
        self.varying = varying_nodes(operators.graph, set(own))
        extents = sizes or (UNKNOWN_SIZE,) * 4
        self.symbols = tuple(Symbol(n, 0, max(e - 1, 0)) for n, e in zip(SUBSCRIPTS, extents, strict=True))
        # What gradients go through, as far as is known while tracing; and what they may go through in some call.
        self.differentiated: set[Node] = set()
        self.learnable: set[Node] = set()
        self.read: dict[str, CapturedBuffer] = {}
        self.places: dict[Node, int] = {}
        self.undifferentiable: list[tuple[str, SourceLocation | None]] = []
        self.beyond: list[tuple[str, SourceLocation | None]] = []
        self.sizes = None if sizes is None else tuple(sizes)

    # -- the walk ----------------------------------------------------------------------------------------------------

    def value(self, outputs: list[Any]) -> Any:
        """The loop-level value of the function's result."""
        if self.operators.write_backs or self.operators.mutations:
            node = (*self.operators.write_backs, *self.operators.mutations)[0]
            self._refuse(node, "writes to a tensor that it was given", "return the new value instead")
        if self.operators.obstacles:
            first = self.operators.obstacles[0]
            raise CaptureError(
                f"{self.label} is no function of its arguments: {first.reason}",
                where=first.location,
                remedy="compute it outside and let the function capture the tensor",
            )
        for node in self.operators.graph:
            if node.op == "placeholder":
                self.values[node] = self._input(node)
            elif node.op == "get_attr":
                self.values[node] = self._constant(node)
            elif node.op == "call_function":
                self._check(node)
                self.values[node] = self._call(node)
        if not isinstance(self.capture.output_spec, (Flat, Constant)):
            self._wrong_result("a container")
        if isinstance(self.capture.output_spec, Constant):
            return self._constant_result(self.capture.output_spec.value)
        return self.values[outputs[0]] if isinstance(outputs[0], Node) else self._constant_result(outputs[0])

    def _constant_result(self, value: Any) -> Any:
        if self.kind == "mask" and isinstance(value, bool):
            return value
        if self.kind == "score" and isinstance(value, float):
            return value
        return self._wrong_result(type(value).__name__)

    def _wrong_result(self, what: str) -> Any:
        wanted = "a floating-point score" if self.kind == "score" else "a bool: which scores take part"
        remedy = (
            "return score where nothing is to change" if self.kind == "score" else "compare: return q_idx >= kv_idx"
        )
        where = SourceLocation(self.capture.source_file, self.capture.source_line) if self.capture.source_file else None
        raise CaptureError(f"{self.label} returns {what}, where it must return {wanted}", where=where, remedy=remedy)

    def _input(self, node: Node) -> Any:
        role = self.role.get(node.name)
        if role == SCORE:
            self.learnable.add(node)
            self.differentiated.add(node)
            layout = Layout(SAMPLE, (0, 0, 0, 0), node.val.dtype, str(node.val.device))  # one score, at [0] everywhere
            self.dtypes[SCORE] = node.val.dtype
            return TensorValue(Box.stored(SCORE, layout, node.origins))
        if role is not None:
            axis = SUBSCRIPTS.index(role)
            return Call(self, node).position(lambda index: index[axis], node.val.shape, node.val.dtype)
        taken = self.inputs_of[node.name]
        self.learnable.add(node)
        if taken.meta.requires_grad:
            self.differentiated.add(node)
        place = self.capture.free_places[list(self.inputs_of).index(node.name)]
        tensors = self.capture.environment.tensors
        number = next(number for number, other in enumerate(tensors) if other is place)
        self.places[node] = number
        return self._captured(node, taken.path, taken.meta.requires_grad, place=number)

    def _constant(self, node: Node) -> Any:
        value = self.operators.module.constants[node.target]
        if isinstance(value, torch.Tensor) and value.dim():
            return self._captured(node, "a tensor the function makes", False, constant=value.detach())
        return super()._constant(node)

    def _captured(self, node: Node, path: str, requires_grad: bool, **where: Any) -> TensorValue:
        meta = node.val
        layout = Layout(meta.shape, meta.stride, meta.dtype, str(meta.device))
        if (requires_grad or self.spread_out) and not is_injective(meta.shape, meta.stride):
            layout = Layout.contiguous(meta.shape, meta.dtype, str(meta.device))
        self.read[node.name] = CapturedBuffer(node.name, path, layout, requires_grad, **where)
        self.dtypes[node.name] = meta.dtype
        return TensorValue(Box.stored(node.name, layout, node.origins, is_input=True))

    # -- refusals ----------------------------------------------------------------------------------------------------

    def _refuse(self, node: Node, what: str, remedy: str) -> Any:
        raise CaptureError(f"{self.label} {what}", where=node.location, remedy=remedy)

    def _check(self, node: Node) -> None:
        """Refuse an operator that is no function of one score, or that would read the sample's extents."""
        operator = getattr(node.target, "_opname", None)
        if operator is None:
            return
        if is_random(node.target) or operator in ("native_dropout", "bernoulli"):
            self._refuse(node, f"draws random numbers ({operator})", "draw them outside and capture the tensor")
        if any(source in self.differentiated for source in node.inputs) and operator != "detach":
            if operator in NO_DERIVATIVE:
                self.undifferentiable.append((operator, node.location))
            if isinstance(node.val, TensorMeta) and node.val.dtype.is_floating_point:
                self.differentiated.add(node)
        if any(source in self.learnable for source in node.inputs):
            if operator == "detach" and node.args[0] not in self.places and node.val.dtype.is_floating_point:
                self._refuse(
                    node,
                    "detaches what it has computed from the score or from captured tensors",
                    "detach the captured tensor itself, before anything is computed from it",
                )
            if operator == "detach":
                return
            if isinstance(node.val, TensorMeta) and node.val.dtype.is_floating_point:
                self.learnable.add(node)
        rule = RULES.get(node.target)
        kind = rule.kind if rule is not None else "fallback"
        if node not in self.varying:
            if kind not in _OF_CAPTURED:
                remedy = "compute it outside and let the function capture the result"
                self._refuse(node, f"uses {operator} of captured tensors, which is more than reading them", remedy)
            return
        lookup = operator in _LOOKUPS
        pointwise = kind in ("pointwise", "factory") and operator not in _POSITIONAL
        if not (lookup or pointwise or operator in _SAME_PLACE):
            self._refuse(
                node,
                f"uses {operator}, which is no function of one score and its subscripts",
                "use elementwise operations and reads such as table[h, q_idx]; compute the rest outside",
            )
        if lookup and node.args[0] in self.varying:
            self._refuse(
                node, "reads a score or subscript by position, but has one of each only", "capture a tensor and read it"
            )
        for meta in flatten(node.val):
            whole = isinstance(meta, TensorMeta) and meta.ndim == 4 and all(n in (1, 2) for n in meta.shape)
            if isinstance(meta, TensorMeta) and not whole and meta.numel != 1:
                left = (
                    "it needs as many subscripts as the tensor has dimensions" if lookup else "shapes stay as they are"
                )
                self._refuse(node, f"makes more than one element per score ({operator} of {meta})", left)
        for source in node.inputs:
            table = lookup and source is node.args[0]
            meta = source.val
            if source not in self.varying and not table and isinstance(meta, TensorMeta) and meta.numel != 1:
                self._refuse(
                    node,
                    f"combines one score with all of a captured tensor ({meta})",
                    "read the element that belongs to the score: bias[h], bias[q_idx, kv_idx]",
                )

    def _call(self, node: Node) -> Any:
        if not hasattr(node.target, "_opname") or not isinstance(node.val, TensorMeta):
            return super()._call(node)
        place = self.places.get(node.args[0]) if node.target._opname == "detach" else None
        if place is not None:
            path = f"{self.inputs_of[node.args[0].name].path}.detach()"
            return self._captured(node, path, False, place=place, detached=True)
        args, kwargs = (map_nodes(a, self.values.__getitem__) for a in (node.args, node.kwargs))
        found = own_rule(Call(self, node), args, kwargs)
        return super()._call(node) if found is None else found

    def realize(self, box: Box, reason: str, decision: Any = None) -> None:
        raise Decline(f"what needs memory: {reason}")

    def _decide(self, box: Box, node: Node) -> None:
        """Everything is inlined: there is no memory inside a score."""

    def _extern(self, node: Node, args: tuple, kwargs: dict[str, Any], declined: str | None) -> Any:
        short = getattr(node.target, "_opname", str(node.target))
        why = f" for {declined}" if declined else ""
        remedy = "use elementwise operations; compute the rest outside and let the function capture the result"
        return self._refuse(node, f"uses {short}, which has no place inside a kernel{why}", remedy)

    def _check_result(self, value: TensorValue) -> None:
        """Refuse a captured tensor as the result if it has not the size of the scores: nothing clamps its reads."""
        (output,) = flatten(self.operators.graph.output.args[0])
        extents = zip(reversed(value.shape), reversed(self.sizes or (1, 1, 1, 1)), strict=False)
        if isinstance(output, Node) and output not in self.varying and any(have not in (1, n) for have, n in extents):
            self._wrong_result(f"a tensor of shape {list(value.shape)}")

    def _line_of(self, origins: Any) -> SourceLocation | None:
        found = [node for node in self.operators.graph if node.location is not None and origins & node.origins]
        return found[-1].location if found else None

    # -- writing it down ---------------------------------------------------------------------------------------------

    def body(self, value: Any, dtype: torch.dtype) -> tuple[LoopBody, tuple[CapturedBuffer, ...]]:
        """The body over ``b, h, q, kv``, and the tensors it reads, numbered in the order of the graph's inputs."""
        recorder = ClampingRecorder(self.dtypes)
        where = tuple(Expr.of(symbol) for symbol in self.symbols)
        wanted = torch.bool if self.kind == "mask" else dtype
        if isinstance(value, TensorValue):
            found = value.dtype
            if (found != torch.bool) if self.kind == "mask" else not found.is_floating_point:
                self._wrong_result(f"{str(found).removeprefix('torch.')}")
            self._check_result(value)
            seen = value if value.shape == SAMPLE else value.seen(broadcast(value.shape, SAMPLE))
            result = convert(recorder, seen.load(recorder, where), wanted)
        else:
            result = recorder.constant(value, wanted)
        body = LoopBody(self.symbols, (), tuple(recorder.scopes[0]), result.id)
        if self.sizes is not None and 0 not in self.sizes:
            self.beyond = [(what, self._line_of(origins)) for what, origins in recorder.beyond]
        loaded = {access.buffer for access in body.reads()}
        used = [buffer for name, buffer in self.read.items() if name in loaded]
        names = {buffer.node: captured_name(number) for number, buffer in enumerate(used)}
        return renamed(body, names), tuple(used)


def captured_name(number: int) -> str:
    """What a body calls a captured tensor: ``captured0``, ``captured1``, ..."""
    return f"captured{number}"


def renamed(body: LoopBody, names: dict[str, str]) -> LoopBody:
    """The body with other names of buffers."""

    def change(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        changed = []
        for s in statements:
            if s.operation == "load":
                s = replace(s, args=(names.get(s.args[0], s.args[0]), s.args[1]))
            elif s.operation == "masked":
                condition, block, other = s.args
                s = replace(s, args=(condition, Block(change(block.statements), block.result), other))
            changed.append(s)
        return tuple(changed)

    return replace(body, statements=change(body.statements))


__all__ = [
    "SCORE",
    "SUBSCRIPTS",
    "CapturedBuffer",
    "Traced",
    "captured_name",
    "renamed",
    "trace_modification",
]
