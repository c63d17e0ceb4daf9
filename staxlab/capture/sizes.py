"""Sizes in a recording for many shapes (Sections 10.2 and 10.4): symbols for the inputs, expressions for the rest.

Without this, a number that Python code reads off a shape is a constant of the graph, and the input's exact shape has to
enter the key. With it, the answer is a :class:`~staxlab.shapes.integer.SymbolicInteger`: one symbol for each dimension
of size 2 or more of each argument, read from the argument at every call. Where such a number becomes an argument of an
operation, the graph gets nodes that compute it (``x.shape[0]``, ``* 128``), so the graph serves every size for which
the decisions taken on the way come out alike.

Sizes 0 and 1 stay numbers, for they are in the key: broadcasting treats them otherwise (Proposition 10.2). So do the
shapes of free tensors and of tensors without elements. The size of an intermediate value follows from those of the
inputs, and is found when somebody asks (:mod:`.size_propagation`); where it cannot be found, the shape read is what it
is elsewhere, a constant.
"""

from __future__ import annotations

import builtins
import contextlib
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import ConstraintError
from ..loops.expressions import Expr, FloorDivision, Symbol
from ..provenance import SourceLocation
from ..shapes.assertions import assert_stated
from ..shapes.environment import LEAST_SYMBOLIC, ShapeEnvironment, ShapeGuard, SizeSource
from ..shapes.integer import is_symbolic, number
from ..shapes.relations import COMPARISONS, Relation
from ..specialize.free_variables import Environment
from .gates import DataGate, backward_slice
from .graph import Graph, Node, TensorMeta
from .shape_use import EMPTY, IDENTITY, PARTS, PARTS_TOLD, READ, ShapeUse, asks_for_types

#: What may be asked about a shape and answered symbolically; the rest (strides, layouts, ``len``) is a plain number.
ANSWERED = frozenset({"shape", "size", "numel", "nelement", "sym_size", "sym_numel"})


@dataclass(frozen=True)
class Declared:
    """A dimension of an input that its caller has declared: the symbol's name and range (Section 10.2)."""

    name: str
    lower: int
    upper: float
    multiple_of: int = 1


def usable(sizes: Sizes | None, environment: Environment) -> Sizes | None:
    """``sizes``, but None for a program that asks for types (``type(n) is int``): no object can answer that a symbol is
    an int, so it gets numbers, and its inputs' exact shapes enter the key. An export refuses such a program."""
    if sizes is None or not any(map(asks_for_types, environment.codes)):
        return sizes
    if sizes.declared:
        raise ConstraintError(
            "the program asks for the type of something (type(n) is int), which a size that is a symbol cannot answer",
            remedy="ask isinstance(n, int) instead",
        )
    return None


class ShapeArithmetic:
    """Nodes that compute expressions over sizes: reads of shapes and integer arithmetic, each once."""

    def __init__(self, graph: Graph, places: dict[Symbol, tuple[Node, int, int]]):
        self.graph = graph
        self.places = places  # placeholder, dimension, and how many make one of what the symbol counts
        self._nodes: dict[Any, Node] = {}
        self._late: set[Node] = set()

    def __call__(self, expression: Expr) -> Node | int:
        """The node whose value the expression is; a number if it is constant."""
        if expression.is_constant:
            return int(expression)
        if expression not in self._nodes:
            total: Any = None
            for monomial, coefficient in expression.terms:
                term: Any = coefficient
                for atom in monomial:
                    term = self._apply(operator.mul, self._atom(atom), term)
                total = term if total is None else self._apply(operator.add, total, term)
            self._nodes[expression] = total
        return self._nodes[expression]

    def _atom(self, atom: Any) -> Node:
        if isinstance(atom, Symbol):
            return self._read(atom)
        operation = operator.floordiv if isinstance(atom, FloorDivision) else operator.mod
        return self._apply(operation, self(atom.numerator), self(atom.denominator))

    def _read(self, symbol: Symbol) -> Node:
        placeholder, dimension, multiple_of = self.places[symbol]
        shape = self._make(builtins.getattr, (placeholder, "shape"), "shape")
        size = self._make(operator.getitem, (shape, dimension), "size")
        return size if multiple_of == 1 else self._apply(operator.floordiv, size, multiple_of)

    def _apply(self, operation: Callable, left: Any, right: Any) -> Any:
        if operation is operator.mul and right == 1:
            return left
        return self._make(operation, (left, right), operation.__name__)

    def _make(self, target: Callable, args: tuple, name: str) -> Node:
        """A node right behind the placeholders, where every input still has the shape it came with; one that reads
        the size of another value stands at the end of what has been recorded."""
        key = (target, args)
        if key not in self._nodes:
            values = [a.val if isinstance(a, Node) else a for a in args]
            value = torch.Size(values[0].shape) if target is builtins.getattr else target(*values)
            own = set(self._nodes.values())
            anchor = next((n for n in self.graph if n.op != "placeholder" and n not in own), None)
            if any(isinstance(a, Node) and (a in self._late or (a.op != "placeholder" and a not in own)) for a in args):
                anchor = None
            with self.graph.inserting_before(anchor) if anchor is not None else contextlib.nullcontext():
                self._nodes[key] = self.graph.create("call_function", target, args, {}, name=name, val=value)
            if anchor is None:
                self._late.add(self._nodes[key])
        return self._nodes[key]


class Sizes:
    """The size symbols of one recording, and the nodes that read them."""

    def __init__(
        self,
        graph: Graph,
        where: Callable[[], SourceLocation | None],
        declared: dict[tuple[str, int], Declared] | None = None,
    ):
        self.graph = graph
        self.environment = ShapeEnvironment(where)
        self.declared = declared  # None: every dimension of every argument
        self.known: dict[Node, tuple[Expr, ...] | None] = {}
        self.places: dict[Symbol, tuple[Node, int, int]] = {}  # placeholder, dimension, multiple_of
        self.arithmetic = ShapeArithmetic(graph, self.places)
        self.held: dict[Node, DataGate] = {}  # sizes that depend on data, and the gates they would be
        self.gated: set[Node] = set()
        self.environment.gate = lambda symbol: self.gated.add(self.places[symbol][0])
        self.environment.state = self._state
        self.uses: tuple[ShapeUse, ...] = ()
        self._propagation: Any = None

    # -- sizes that depend on data (Section 10.5) --------------------------------------------------------------------

    def hold(self, gate: DataGate) -> bool:
        """A tensor whose size depends on data: a symbol without a hint, and no gate unless something turns out to need
        the number. False if the value is no single tensor."""
        if not isinstance(gate.node.val, TensorMeta):
            return False
        self.held[gate.node] = gate
        return True

    def data_dependent(self, node: Node, dimension: int) -> Expr:
        """A symbol for a size that only running tells."""
        source = self.of(node.inputs[0]) if node.inputs else None
        known = source is not None and all(e.is_constant for e in source)
        upper = math.prod(map(int, source)) if known else math.inf
        name = f"u{len(self.environment.data_dependent)}"
        symbol = self.environment.symbol(name, node.val.shape[dimension], 0, upper)
        self.environment.data_dependent.add(symbol)
        self.environment.open.add(symbol)
        self.places[symbol] = (node, dimension, 1)
        return Expr.of(symbol)

    def _state(self, relation: Relation, error: type, message: str) -> None:
        sides = [self.arithmetic(side) for side in (relation.left, relation.right)]
        compare = COMPARISONS[relation.comparison]
        value = compare(*(s.val if isinstance(s, Node) else s for s in sides))
        where = self.environment.where()
        compared = self.graph.call_function(compare, tuple(sides), val=value, location=where)
        self.graph.call_function(assert_stated, (compared, error.__name__, message), val=None, location=where)

    def gates(self, others: Iterable[DataGate], uses: Iterable[ShapeUse]) -> tuple[DataGate, ...]:
        """All data gates in the order of the graph: ``others``, and of the sizes held back those whose number got into
        the graph after all."""
        self.uses = tuple(use for use in uses if not self._counts(use))
        needed = self.gated | set(backward_slice([use.node for use in self.uses]))
        order = {node: position for position, node in enumerate(self.graph)}
        kept = [gate for node, gate in self.held.items() if node in needed]
        return tuple(sorted([*others, *kept], key=lambda gate: order[gate.node]))

    def _counts(self, use: ShapeUse) -> bool:
        """Whether a use is a number of parts (``qkv.unbind(2)``) that the decisions account for: the operation, carried
        out on symbols, returns as many, whatever sizes it does not rely on."""
        if use.kind != PARTS or not self._propagated().tells(use.node):
            return False
        use.node.meta[PARTS_TOLD] = True
        return True

    # -- what sizes are ----------------------------------------------------------------------------------------------

    def add_input(self, node: Node, meta: TensorMeta, path: str, *, is_free: bool) -> None:
        """A placeholder: symbols for its dimensions."""
        if is_free or not meta.numel:
            self.known[node] = tuple(map(Expr.of, meta.shape))
            return
        sizes = []
        for dimension, extent in enumerate(meta.shape):
            row = (self.declared or {}).get((path, dimension))
            if row is not None:
                symbol = self.environment.symbol(row.name, extent // row.multiple_of, row.lower, row.upper)
                self.places.setdefault(symbol, (node, dimension, row.multiple_of))
                sizes.append(Expr.of(symbol) * row.multiple_of)
            elif self.declared is None and extent >= LEAST_SYMBOLIC:
                symbol = self.environment.symbol(f"s{len(self.places)}", extent)
                self.places[symbol] = (node, dimension, 1)
                sizes.append(Expr.of(symbol))
            else:
                sizes.append(Expr.of(extent))
        self.known[node] = tuple(sizes)

    def of(self, node: Node) -> tuple[Expr, ...] | None:
        """The sizes of a node's value; None where they cannot be told. The first question about an intermediate value
        runs the operations it comes from once on tensors without memory."""
        if node not in self.known:
            self.known[node] = self._propagated().sizes(node)
        return self.known[node]

    def _propagated(self) -> Any:
        if self._propagation is None:
            from .size_propagation import Propagation

            self._propagation = Propagation(self)
        return self._propagation

    def answer(self, name: str, arguments: tuple, keywords: dict, nodes: list[Node]) -> Any:
        """What ``x.shape``, ``x.size(0)`` or ``x.numel()`` is; None where it is a plain number as ever."""
        if name not in ANSWERED or len(nodes) != 1:
            return None
        arguments = (*arguments, *keywords.values())
        expressions = self.of(nodes[0])
        if expressions is None or all(e.is_constant for e in expressions):
            return None
        sizes = [number(e, self.environment) for e in expressions]
        if name in ("numel", "nelement", "sym_numel"):
            total: Any = 1
            for size in sizes:
                total = size * total
            return total
        if name == "shape" or not arguments:
            return torch.Size(sizes)
        (dimension,) = arguments
        return sizes[dimension] if -len(sizes) <= dimension < len(sizes) else None

    def as_argument(self, leaf: Any) -> Any:
        """A leaf of a call's arguments as its node has it: sizes are the nodes that compute them."""
        if isinstance(leaf, torch.Size) and any(map(is_symbolic, leaf)):
            return tuple(map(self.as_argument, leaf))
        if not is_symbolic(leaf):
            return leaf
        return self.arithmetic(leaf.expression) if leaf.environment is self.environment else int(leaf)

    # -- the end -----------------------------------------------------------------------------------------------------

    def propagate(self) -> None:
        """Find the sizes of all values, and with them everything that operations take for granted."""
        for node in self.graph:
            if node.op.startswith("call_") and isinstance(node.val, TensorMeta):
                self.of(node)

    def _refuse_number(self, use: ShapeUse) -> None:
        """A number that got into the graph without a decision, though it comes from a declared size: ConstraintError.
        How many parts there are, whether there is one row, whether something was a copy: that is among what the
        operations take for granted, if their sizes could be told."""
        sizes = self.known.get(use.node)
        if use.what.endswith(".__len__") and sizes and sizes[0].is_constant:
            return
        inputs = [node for node in backward_slice([use.node]) if node.op == "placeholder"]
        declared = sorted({s.name for node in inputs for e in self.known[node] or () for s in e.symbols})
        if declared and (use.kind in (READ, IDENTITY, EMPTY) or not self._propagated().tells(use.node)):
            raise ConstraintError(
                f"the program has a number in it that depends on {', '.join(declared)}: {use}",
                remedy="read sizes as x.shape[0] or x.numel(), or leave these dimensions out of dims",
            )

    def guard(self) -> ShapeGuard | None:
        """The decisions as a guard over the flat inputs, whose order is final now. Where dimensions were declared, what
        the operations take for granted is among them, whether Python code asked for a size or not."""
        if self.declared is not None:
            self.propagate()
            for use in self.uses:
                self._refuse_number(use)
        positions = {node: position for position, node in enumerate(self.graph.placeholders)}
        for symbol, (node, dimension, multiple_of) in self.places.items():
            if node not in positions:
                continue
            self.environment.sources[symbol] = SizeSource(positions[node], dimension, node.name, multiple_of)
        return ShapeGuard.of(self.environment)
