"""Loop nests written down as Python text, three lines long: what a student types to ask Section 7.7 about it.

>>> nest = loop_nest('''
... for i in range(1, 6):
...     for j in range(1, 6):
...         w[i, j] = w[i - 1, j] + w[i, j - 1]
... ''')
>>> nest.depth, [str(access) for access in nest.statements[0].reads]
(2, ['w[i - 1, j]', 'w[i, j - 1]'])

The text is parsed, never run. Loops are ``for name in range(...)`` with bounds that are sums of outer loop variables
and sizes (also ``max(...)`` of lower and ``min(...)`` of upper bounds); all statements stand in the innermost loop. A
name in a bound or subscript that is no loop variable is a size: give it a value (``loop_nest(text, N=8)``) or leave it
open. A statement assigns to an element or to a scalar, with ``=`` or ``+=``. A subscript that is read from an array
(``w[idx[i]]``), or is no sum of loop variables, may be anything.
"""

from __future__ import annotations

import ast
import math
import textwrap
from collections.abc import Sequence

from ..errors import ScheduleError
from ..loops.expressions import Expr, Symbol
from .nests import Access, LoopNest, NestStatement
from .polyhedron import Constraint, Polyhedron

_FORM = "write loops as 'for i in range(1, N):', one inside the other, and assignments in the innermost"


def loop_nest(text: str, **sizes: int) -> LoopNest:
    """The nest that a text of one loop nest describes; ``sizes`` are values for its open sizes. ScheduleError, with
    what is not understood, for any other text."""
    nests = loop_nests(text, **sizes)
    if len(nests) != 1:
        raise ScheduleError(f"the text has {len(nests)} loop nests and not one", remedy=_FORM)
    return nests[0]


def loop_nests(text: str, **sizes: int) -> tuple[LoopNest, ...]:
    """As :func:`loop_nest` for several nests, one after the other."""
    try:
        tree = ast.parse(textwrap.dedent(text))
    except SyntaxError as error:
        raise ScheduleError(f"the text is no Python: {error}", remedy=_FORM) from None
    return tuple(_Reader(sizes).nest(node) for node in tree.body)


class _Reader:
    """Reads one nest."""

    def __init__(self, sizes: dict[str, int]):
        self.sizes = sizes
        self.loops: dict[str, Symbol] = {}
        self.parameters: dict[str, Symbol] = {}
        self.bounds: list[tuple[list[Expr], list[Expr]]] = []
        self.values_read = 0
        self.scalars: set[str] = set()

    def nest(self, node: ast.stmt) -> LoopNest:
        assigned = [target for inner in ast.walk(node) for target in _targets(inner)]
        self.scalars = {target.id for target in assigned if isinstance(target, ast.Name)}
        body: Sequence[ast.stmt] = [node]
        while len(body) == 1 and isinstance(body[0], ast.For):
            body = self.loop(body[0])
        statements = tuple(self.statement(inner, k) for k, inner in enumerate(body))
        symbols = (*self.loops.values(), *self.parameters.values())
        domain = Polyhedron(tuple(s.name for s in symbols), tuple(self.constraints(symbols)))
        return LoopNest(tuple(self.loops.values()), domain, statements, tuple(self.parameters.values()))

    def constraints(self, symbols: tuple[Symbol, ...]) -> list[Constraint]:
        found = []
        for loop, (lower, upper) in zip(self.loops.values(), self.bounds, strict=True):
            here = Expr.of(loop)
            for difference in (*(here - b for b in lower), *(b - here for b in upper)):
                affine = difference.affine(symbols)
                if affine is None:
                    raise ScheduleError(f"a bound of {loop} is no sum of loop variables and sizes: {difference}")
                found.append(Constraint(*affine))
        for parameter in self.parameters.values():
            found.append(Constraint(tuple(int(s == parameter) for s in symbols), -1))
        return found

    def loop(self, node: ast.For) -> list[ast.stmt]:
        call = node.iter
        is_range = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"
        if not is_range or not isinstance(node.target, ast.Name) or node.orelse or call.keywords:
            raise ScheduleError(f"not a loop of this form: {ast.unparse(node).splitlines()[0]}", remedy=_FORM)
        arguments = list(call.args)
        if len(arguments) == 3:
            if ast.unparse(arguments[2]) != "1":
                raise ScheduleError("loops count up by one here", remedy="put the step into the subscripts: w[2*i]")
            arguments.pop()
        lower = self.several(arguments[0], "max") if len(arguments) == 2 else [Expr.of(0)]
        upper = [bound - 1 for bound in self.several(arguments[-1], "min")]
        if node.target.id in self.loops or node.target.id in self.parameters:
            raise ScheduleError(f"{node.target.id} is already the name of a loop or a size")
        # Nothing is said about the values of the symbol: the domain knows them better than an interval would.
        self.loops[node.target.id] = Symbol(node.target.id, -math.inf, math.inf)
        self.bounds.append((lower, upper))
        return node.body

    def several(self, node: ast.expr, function: str) -> list[Expr]:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
            return [bound for part in node.args for bound in self.several(part, function)]
        return [self.subscript(node, [])]

    def statement(self, node: ast.stmt, position: int) -> NestStatement:
        reads: list[Access] = []
        writes: list[Access] = []
        merges = False
        if isinstance(node, ast.AugAssign):
            self.read(node.value, reads)
            target = self.access(node.target, reads)
            merges = isinstance(node.op, ast.Add | ast.Mult) and all(a.array != target.array for a in reads)
            reads.append(target)
            writes.append(target)
        elif isinstance(node, ast.Assign):
            self.read(node.value, reads)
            writes = [self.access(target, reads) for target in node.targets]
        else:
            raise ScheduleError(f"not a statement of this form: {ast.unparse(node).splitlines()[0]}", remedy=_FORM)
        return NestStatement(f"S{position}", ast.unparse(node), tuple(dict.fromkeys(reads)), tuple(writes), merges)

    def read(self, node: ast.expr, reads: list[Access]) -> None:
        """The accesses of an expression, left to right."""
        if isinstance(node, ast.Subscript):
            reads.append(self.access(node, reads))
        elif isinstance(node, ast.Name):
            if node.id in self.scalars:
                reads.append(Access(node.id, ()))
        elif isinstance(node, ast.Call):
            for part in node.args:
                self.read(part, reads)
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.read(child, reads)

    def access(self, node: ast.expr, reads: list[Access]) -> Access:
        if isinstance(node, ast.Name):
            if node.id in self.loops:
                raise ScheduleError(f"the loop variable {node.id} is assigned to")
            return Access(node.id, ())
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            raise ScheduleError(f"not an element of an array: {ast.unparse(node)}", remedy="write w[i, j]")
        places = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return Access(node.value.id, tuple(self.subscript(place, reads) for place in places))

    def subscript(self, node: ast.expr, reads: list[Access]) -> Expr:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return Expr.of(node.value)
        if isinstance(node, ast.Name):
            if node.id in self.loops:
                return Expr.of(self.loops[node.id])
            if node.id in self.sizes:
                return Expr.of(int(self.sizes[node.id]))
            if node.id in self.scalars:
                return self.from_data(Access(node.id, ()), reads)
            return Expr.of(self.parameters.setdefault(node.id, Symbol(node.id, 1)))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.subscript(node.operand, reads)
        if isinstance(node, ast.BinOp):
            left, right = self.subscript(node.left, reads), self.subscript(node.right, reads)
            if isinstance(node.op, ast.Add):
                return left + right
            if isinstance(node.op, ast.Sub):
                return left - right
            if isinstance(node.op, ast.Mult):
                return left * right
            if isinstance(node.op, ast.FloorDiv) and right.is_constant and int(right) > 0:
                return left // right
            if isinstance(node.op, ast.Mod) and right.is_constant and int(right) > 0:
                return left % right
        if isinstance(node, ast.Subscript):
            return self.from_data(self.access(node, reads), reads)
        raise ScheduleError(f"not a subscript or bound of this form: {ast.unparse(node)}", remedy="use +, - and *")

    def from_data(self, access: Access, reads: list[Access]) -> Expr:
        reads.append(access)
        self.values_read += 1
        return Expr.of(Symbol(f"indirect{self.values_read}", -math.inf, math.inf))


def _targets(node: ast.AST) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
