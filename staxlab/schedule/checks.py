"""Checks of subscripts: which ones a kernel makes, and which of them cannot fail since an earlier kernel made them.

A subscript that is data is checked by every kernel that reads or writes at it (Section 6.2). A model that looks up the
same positions in every layer checks them in every layer, and whoever wants to know whether something may still fail
(:mod:`.placement`: may an input be overwritten yet?) would always hear yes. Two checks ask the same if the checked
values are computed by the same operations from elements of the same input, and the later one asks about no other
elements than the earlier one did.

A scatter can also make its own checks before it writes anything: :func:`checking_part` is what its kernel runs first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..loops.body import LoopBody, Statement
from ..loops.expressions import Expr, Symbol
from ..provenance import Origins
from .in_place import bounded
from .records import ScheduleNode


@dataclass(frozen=True)
class Check:
    """That a value lies within a dimension. ``question`` is how it is computed and what it is held against, with the
    subscript of the elements it is computed from left out: that is ``index``. Both are None where it is computed from
    elements at several subscripts, or from none. ``always`` says that ``index`` takes every whole number between its
    bounds, and that whatever conditions stand before the check let it be made for each of them. ``statement`` is the
    id of the statement that makes it."""

    question: tuple | None
    index: Expr | None
    origins: Origins
    always: bool
    statement: int = -1

    def answered_by(self, earlier: Check) -> bool:
        """Whether this one holds if the earlier one did."""
        if not earlier.always or self.question is None or self.question != earlier.question:
            return False
        assert self.index is not None and earlier.index is not None
        asked, made = self.index.bounds(), earlier.index.bounds()
        return made.lower <= asked.lower and asked.upper <= made.upper

    @property
    def buffer(self) -> str | None:
        """Whose elements it is computed from."""
        return _buffer(self.question) if self.question is not None else None


def checks_of(node: ScheduleNode) -> list[Check]:
    """The checks of a kernel, those of all its members."""
    found = []
    for member in node.members or (node,):
        body = member.body
        while body is not None:
            found += _checks(body)
            body = body.epilogue
    return found


def answered(check: Check, earlier: Iterable[Check]) -> bool:
    """Whether a check cannot fail, since one of the earlier ones asked the same."""
    return any(check.answered_by(other) for other in earlier)


def checking_part(
    node: ScheduleNode, checks: Iterable[Check], overwritten: frozenset[str], most: int
) -> LoopBody | None:
    """What of a scatter's body some of its checks need, over the loops they depend on: run beforehand, nothing is
    written if one of them fails. None if they cannot be made beforehand, where one stands under a condition or needs
    elements of the ``overwritten`` buffers, or not in ``most`` iterations."""
    body = node.body
    if node.kind != "scatter" or node.members or body is None or body.target is None:
        return None
    statements = {statement.id: statement for statement in body.statements}
    makers = {s.args[3]: s.id for s in body.statements if s.operation == "indirect"}
    needed: set[int] = set()
    waiting = [check.statement for check in checks]
    symbols: set[Symbol] = set()
    while waiting:
        number = waiting.pop()
        if number in needed:
            continue
        statement = statements.get(number)
        if statement is None or statement.operation in ("masked", "merged"):
            return None
        if statement.operation == "load" and statement.args[0] in overwritten:
            return None
        needed.add(number)
        if statement.operation == "indirect":
            waiting.append(statement.args[0])
        elif statement.operation not in ("load", "constant", "index_value"):
            waiting += [argument for argument in statement.args if type(argument) is int]
        read = set().union(*(argument.symbols for argument in statement.args if isinstance(argument, Expr)))
        waiting += [makers[symbol] for symbol in read & makers.keys()]
        symbols |= read - makers.keys()
    if not needed or not symbols <= set(body.indices):
        return None
    loops = tuple(loop for loop in body.indices if loop in symbols)
    if math.prod(int(loop.upper) - int(loop.lower) + 1 for loop in loops) > most:
        return None
    part = tuple(statement for statement in body.statements if statement.id in needed)
    return LoopBody(loops, (), part, part[-1].id)


def _checks(body: LoopBody) -> list[Check]:
    values = {statement.id: statement for statement in body.all_statements()}
    found = []

    def visit(statements: Iterable[Statement], conditions: tuple[int, ...]) -> None:
        for statement in statements:
            if statement.operation == "masked":
                visit(statement.args[1].statements, (*conditions, statement.args[0]))
            elif statement.operation == "indirect" and statement.args[2]:
                indices: set[Expr] = set()
                question, index = _question(values, statement.args[0], indices), None
                if question is not None and len(indices) == 1:
                    question, (index,) = (statement.args[1], question), indices
                else:
                    question = None
                always = index is not None and _without_gaps(index, body.symbols)
                always = always and _met(values, conditions, index, body.symbols)
                found.append(Check(question, index, statement.origins, always, statement.id))

    visit(body.statements, ())
    return found


def _met(values: Mapping[int, Statement], conditions: Iterable[int], index: Expr, loops: Iterable[Symbol]) -> bool:
    """Whether conditions are met somewhere for every value of a subscript: they bound other loops than it has, and
    leave each of them an iteration (the halves of a concatenation do)."""
    ranges = {loop: (loop.lower, loop.upper) for loop in loops if loop not in index.symbols}
    tests = [values[condition] for condition in conditions]
    while tests:
        test = tests.pop()
        if test.operation == "logical_and":
            tests += [values[argument] for argument in test.args]
            continue
        bound = bounded(test, values)
        loop = next((loop for loop in ranges if bound is not None and bound[0] == Expr.of(loop)), None)
        if bound is None or loop is None:
            return False
        ranges[loop] = max(ranges[loop][0], bound[1]), min(ranges[loop][1], bound[2])
    return all(low <= high for low, high in ranges.values())


def _question(values: Mapping[int, Statement], number: int, indices: set[Expr]) -> tuple | None:
    """How a value is computed, as nested tuples; the subscripts of its loads go into ``indices``. None for what is not
    computed from loads and constants alone."""
    statement = values.get(number)
    if statement is None:
        return None
    if statement.operation == "load":
        indices.add(statement.args[1])
        return "load", statement.args[0]
    if statement.operation == "constant":
        return "constant", statement.args[0], statement.dtype
    if statement.operation not in _PLAIN:
        return None
    parts = tuple(_question(values, argument, indices) for argument in statement.args)
    return None if None in parts else (statement.operation, statement.dtype, *parts)


#: What subscripts are made with; all arguments are values.
_PLAIN = frozenset({"where", "lt", "le", "gt", "ge", "eq", "ne", "add", "sub", "mul", "neg"})


def _buffer(question: Any) -> str | None:
    """The one buffer that is loaded from; None if there are several."""
    found: set[str] = set()

    def visit(part: Any) -> None:
        if isinstance(part, tuple):
            if len(part) == 2 and part[0] == "load":
                found.add(part[1])
            for inner in part:
                visit(inner)

    visit(question)
    return found.pop() if len(found) == 1 else None


def _without_gaps(index: Expr, loops: Iterable[Symbol]) -> bool:
    """Whether a subscript takes every whole number between its bounds: a constant, or one of the loops, shifted."""
    if index.is_constant:
        return True
    return any(index - Expr.of(loop) == Expr.of(index.constant_term) for loop in loops)
