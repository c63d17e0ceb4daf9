"""From the product of queries and keys to the argument of the softmax: which operations stand between, and what they
say.

:func:`score_paths` walks back from the softmax through pointwise operations, casts and views to the product. What it
met is described twice. As a list of :class:`Step`, where every operation is a multiplication by a number, an addition
of something that does not depend on the scores, or a masking: then the scores are ``scale * q k^T + mask``, which is
what ``scaled_dot_product_attention`` takes. And as an expression in (score, b, h, q, kv), which holds whatever stands
between as long as it is pointwise: that is a ``score_mod``.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from ..capture.graph import Node, TensorMeta
from .attention_expressions import (
    CASTS,
    Call,
    Captured,
    Coordinate,
    Expression,
    Number,
    Score,
    call,
    function_of,
    is_of_position,
    is_truth,
    parts_of,
)
from .attention_products import VIEWS, Atom, Coordinates, Layout, Product, is_real, product
from .attention_reading import Reader, filling, spelled
from .operations import is_number, is_pointwise, operation

_CAST_NAMES = frozenset({*CASTS, "to", "type_as", "type"}) - {"bool", "long", "int"}
_LONGEST = 64  # operations between a product and its softmax


@dataclass(frozen=True)
class Step:
    """One operation on the scores, in the order of the program.

    ``kind`` is "multiply" (``value`` a number), "add" (``value`` a node or a number, times ``factor``) or "fill":
    positions where ``value`` is true (false, if ``negated``) get the number ``filling``. ``axes`` says which atoms each
    axis of ``value`` runs over, ``term`` is the value read at a position, None where it cannot be read.
    """

    kind: str
    value: Any
    axes: tuple[tuple[Atom, ...], ...] = ()
    factor: float = 1.0
    negated: bool = False
    filling: float = 0.0
    term: Expression | None = None

    @property
    def is_of_tensor(self) -> bool:
        """Whether the value is a tensor. A number that is added to all scores of a row changes no probability."""
        return isinstance(self.value, Node) and isinstance(self.value.val, TensorMeta)


@dataclass
class ScorePath:
    """What stands between ``scores`` and the softmax's argument ``end``.

    ``nodes`` are the operations in order, the last of them ``end``; ``layouts`` where the axes of each lie in the
    imagined memory of the scores.
    """

    scores: Product
    end: Node
    nodes: tuple[Node, ...]
    layouts: dict[Node, Layout]
    coordinates: Coordinates | None = None
    reader: Reader = field(init=False, repr=False)

    def set_coordinates(self, found: Coordinates) -> None:
        self.coordinates = found
        self.reader = Reader(found)

    def axes(self, operand: Node, reader: Node) -> tuple[tuple[Atom, ...], ...] | None:
        """The atoms that each axis of an operand runs over which is broadcast to the scores at ``reader``."""
        layout, shape = self.layouts[reader], operand.val.shape
        if len(shape) > len(layout.shape):
            return None
        found = []
        place = len(layout.shape) - len(shape)
        for extent, full, stride in zip(shape, layout.shape[place:], layout.strides[place:], strict=True):
            atoms = () if extent == 1 else self.coordinates.atoms_of(stride, extent)  # type: ignore[union-attr]
            if atoms is None or extent not in (1, full):
                return None
            found.append(atoms)
        return tuple(found)

    def _term(self, operand: Any, reader: Node) -> tuple[Expression | None, tuple[tuple[Atom, ...], ...]] | None:
        if isinstance(operand, Node) and isinstance(operand.val, TensorMeta):
            axes = self.axes(operand, reader)
            return None if axes is None else (self.reader.term(operand, axes), axes)
        if isinstance(operand, Node):
            operand = operand.val
        return (Number(operand), ()) if is_number(operand) else None

    # -- as steps -----------------------------------------------------------------------------------------------------

    @cached_property
    def steps(self) -> tuple[Step, ...] | None:
        """The operations as steps; None where one of them is something else."""
        found: list[Step] = []
        if self.scores.alpha != 1.0:
            found.append(Step("multiply", self.scores.alpha))
        if self.scores.addend is not None:
            step = self._addition(self.scores.addend, self.scores.node, self.scores.beta)
            if step is None:
                return None
            found.append(step)
        carrying = {self.scores.node}
        for node in self.nodes:
            carrying.add(node)
            if _is_cast(node) or operation(node) in VIEWS:
                continue
            inputs = [x for x in (*node.args, *node.kwargs.values()) if isinstance(x, Node) and x in carrying]
            if len(inputs) != 1:
                return None
            step = self._step(node, inputs[0])
            if step is None:
                return None
            found.append(step)
        return tuple(found)

    def _step(self, node: Node, source: Node) -> Step | None:
        name = operation(node)
        args = node.args
        if name == "neg":
            return Step("multiply", -1.0)
        if name == "masked_fill" and len(args) == 3 and args[0] is source:
            return self._fill(args[1], args[2], node, negated=False)
        if name == "where" and len(args) == 3 and not node.kwargs:
            if args[1] is source:
                return self._fill(args[0], args[2], node, negated=True)
            return self._fill(args[0], args[1], node, negated=False) if args[2] is source else None
        if len(args) != 2 or set(node.kwargs) - {"alpha"}:
            return None
        first = args[0] is source
        other = number_of(args[1] if first else args[0])
        alpha = node.kwargs.get("alpha", 1)
        if not is_real(alpha):
            return None
        if name == "mul" and is_real(other):
            return Step("multiply", float(other))
        if name == "div" and first and is_real(other) and other:
            return Step("multiply", 1.0 / float(other))
        if name == "add" and (first or alpha == 1):
            return self._addition(other, node, float(alpha))
        if name == "sub" and first:
            return self._addition(other, node, -float(alpha))
        return None

    def _addition(self, value: Any, reader: Node, factor: float) -> Step | None:
        found = self._term(value, reader)
        if found is None or (isinstance(found[0], Number) and not is_real(found[0].value)):
            return None
        term, axes = found
        # A triangle of minus infinities, added, is a mask.
        if isinstance(term, Call) and term.name == "where" and factor == 1.0:
            condition, yes, no = term.args
            for filled, other, negated in ((yes, no, False), (no, yes, True)):
                if filled == Number(-math.inf) and isinstance(other, Number) and other.value == 0:
                    return Step("fill", value, axes, negated=negated, filling=-math.inf, term=condition)
        return Step("add", value, axes, factor, term=term)

    def _fill(self, condition: Any, value: Any, reader: Node, *, negated: bool) -> Step | None:
        number, found = number_of(value), self._term(condition, reader)
        if found is None or not is_number(number) or isinstance(number, (bool, complex)) or math.isnan(number):
            return None
        return Step("fill", condition, found[1], negated=negated, filling=float(number), term=found[0])

    # -- as an expression ---------------------------------------------------------------------------------------------

    @cached_property
    def expression(self) -> Expression | None:
        """The softmax's argument as an expression in the unscaled product of query and key; None where something is not
        pointwise, or cannot be read at a position."""
        known: dict[Node, Expression | None] = {}
        start: Expression = Score()
        if self.scores.alpha != 1.0:
            start = call("mul", start, Number(self.scores.alpha))
        if self.scores.addend is not None:
            found = self._term(self.scores.addend, self.scores.node)
            if found is None or found[0] is None:
                return None
            term = found[0] if self.scores.beta == 1.0 else call("mul", found[0], Number(self.scores.beta))
            start = call("add", start, term)
        known[self.scores.node] = start
        for node in self.nodes:
            known[node] = self._expressed(node, known)
            if known[node] is None:
                return None
        return known[self.end] if self.end in known else start

    def _expressed(self, node: Node, known: dict[Node, Expression | None]) -> Expression | None:
        if _is_cast(node) or operation(node) in VIEWS:
            return known[node.args[0]]

        def argument(value: Any) -> Any:
            if isinstance(value, Node) and value in known:
                return known[value]
            if isinstance(value, Node):
                found = self._term(value, node)
                return found and found[0]
            return Number(value) if is_number(value) else value

        return spelled(node, argument)


def number_of(value: Any) -> Any:
    """The number that an argument is, or that every element of a tensor it is has; the argument itself otherwise."""
    if isinstance(value, Node):
        if isinstance(value.val, TensorMeta):
            filled = filling(value) if value.val.ndim == 0 else None
            return value if filled is None else filled
        return value.val if is_number(value.val) and value.op != "placeholder" else value
    return value


def _is_cast(node: Node) -> bool:
    return operation(node) in _CAST_NAMES and isinstance(node.val, TensorMeta) and node.val.dtype.is_floating_point


def score_paths(end: Node) -> Iterator[ScorePath]:
    """The paths from each product of matrices that ``end`` is computed from, pointwise, to ``end``."""
    order = _looked_through(end)
    if order is None:
        return
    for leaf in [node for node in order if product(node)]:
        carrying, nodes = {leaf}, []
        for node in order:
            if node is not leaf and any(source in carrying for source in _read_from(node)) and not product(node):
                carrying.add(node)
                nodes.append(node)
        found = product(leaf)
        if end not in carrying or found is None or 0 in leaf.val.shape:
            continue
        layouts = _layouts(leaf, nodes)
        if layouts is not None:
            yield ScorePath(found, end, tuple(nodes), layouts)


def _read_from(node: Node) -> tuple[Node, ...]:
    """The inputs whose elements an operation takes. A cast, or a view, may look at another tensor for its type or
    shape."""
    if _is_cast(node) or operation(node) in VIEWS:
        return tuple(x for x in node.args[:1] if isinstance(x, Node))
    return node.inputs


def _looked_through(end: Node) -> list[Node] | None:
    """``end`` and what it is computed from, pointwise or as a view, back to products, inputs first."""
    order: list[Node] = []
    seen: set[Node] = set()
    pending: list[tuple[Node, bool]] = [(end, False)]
    while pending:
        node, done = pending.pop()
        if done:
            order.append(node)
            continue
        if node in seen:
            continue
        seen.add(node)
        if len(seen) > 4 * _LONGEST:
            return None
        if product(node) is not None:
            order.append(node)
        elif is_pointwise(node) or operation(node) in VIEWS or _is_cast(node):
            if not isinstance(node.val, TensorMeta):
                continue
            pending.append((node, True))
            pending += [(source, False) for source in _read_from(node)]
    return order


def _layouts(leaf: Node, nodes: list[Node]) -> dict[Node, Layout] | None:
    layouts = {leaf: Layout.contiguous(leaf.val.shape)}
    for node in nodes:
        carrying = [source for source in _read_from(node) if source in layouts]
        if operation(node) in VIEWS:
            if len(carrying) != 1 or carrying[0] is not node.args[0]:
                return None
            found = layouts[carrying[0]].after(node, carrying[0])
        else:
            if node.target is builtins.getattr or {layouts[source] for source in carrying} != {layouts[carrying[0]]}:
                return None
            found = layouts[carrying[0]]
            if tuple(node.val.shape) != found.shape:
                return None  # the scores are spread out
        if found is None:
            return None
        layouts[node] = found
    return layouts


# -- which rows see a key ---------------------------------------------------------------------------------------------


def visible(steps: tuple[Step, ...]) -> Expression | None:
    """The condition under which a position is not filled; None if one of the conditions is not known."""
    found: Expression = Number(True)
    for step in steps:
        if step.kind == "fill":
            if step.term is None:
                return None
            one = step.term if step.negated else call("bitwise_not", step.term)
            found = one if found == Number(True) else call("bitwise_and", found, one)
    return found


_FINITE = frozenset(
    {"add", "sub", "mul", "neg", "tanh", "sigmoid", "abs", "clamp", "clamp_min", "clamp_max", "maximum", "minimum",
     "sin", "cos", "relu", "sign", "square", "exp", "exp2", "where", "floor", "ceil", "round", "atan", "erf"}
)  # fmt: skip


def finite_where(expression: Any, captured: Sequence[Node]) -> Expression | None:
    """A condition under which a modified score is finite if the score is; None where nothing is known, as of captured
    numbers that may be minus infinity themselves. Overflow apart."""
    if isinstance(expression, (Score, Coordinate)) or not isinstance(expression, Expression):
        return Number(True)
    if isinstance(expression, Number):
        return Number(isinstance(expression.value, (bool, int)) or math.isfinite(expression.value))
    if isinstance(expression, Captured):
        return None if captured[expression.number].val.dtype.is_floating_point else Number(True)
    assert isinstance(expression, Call)
    if is_truth(expression):
        return Number(True)
    if expression.name == "where":
        condition, yes, no = expression.args
        sides = finite_where(yes, captured), finite_where(no, captured)
        return None if None in sides else call("where", condition, *sides)
    if expression.name == "to":
        return finite_where(expression.args[0], captured)
    by_number = (
        expression.name in ("div", "pow") and isinstance(expression.args[1], Number) and expression.args[1].value
    )
    if expression.name not in _FINITE and not by_number:
        return None
    found: Expression = Number(True)
    for part in (*expression.args, *(value for _, value in expression.keywords)):
        one = finite_where(part, captured)
        if one is None:
            return None
        if found == Number(True):
            found = one
        elif one != Number(True):
            found = call("bitwise_and", found, one)
    return found


def every_query_sees_a_key(condition: Expression, sizes: tuple[int, int, int, int]) -> bool:
    """Whether a condition that depends on the position alone holds for some key of every query: proved by showing one.

    The witness is the query's own key, the first, or the last, or one at the same distance from the end; rows are
    counted off one by one. O(queries) for each; False where none of them is seen.
    """
    if condition == Number(True):
        return sizes[3] > 0
    if not is_of_position(condition):
        return False
    batch, heads, queries, keys = sizes
    read = {part.axis for part in parts_of(condition) if isinstance(part, Coordinate)}
    batch, heads = (size if axis in read else 1 for axis, size in enumerate((batch, heads)))
    b, h = torch.arange(batch)[:, None, None], torch.arange(heads)[None, :, None]
    q = torch.arange(queries)[None, None, :]
    seen = torch.zeros(batch, heads, queries, dtype=torch.bool)
    holds = function_of(condition, "visible", score=False)
    for witness in (q, q + keys - queries, q * 0, q * 0 + keys - 1):
        try:
            seen |= torch.as_tensor(holds(b, h, q, witness.clamp(0, keys - 1))).expand(seen.shape)
        except (RuntimeError, TypeError, AttributeError):  # an operation that numbers or tensors do not have: no proof
            return False
    return bool(seen.all())
