"""The two operands of a template, taken apart again (Sections 6.3 and 8.1).

A template is recorded as one body whose result is the product of its operands, so that everything that looks at bodies
sees one list of statements. Who writes its loops by hand wants the operands one by one: each is a body of its own over
the subscripts it depends on, computed once per element of a matrix and not once per product.
"""

from __future__ import annotations

from dataclasses import replace

from .body import LoopBody, Statement
from .expressions import Expr, Symbol


def operands(body: LoopBody) -> tuple[LoopBody, LoopBody]:
    """The left and the right operand of a template's body, with the statements each needs. O(statements).

    Both keep the loop indices of the whole: ``(*batch, row, column)`` and the summed one.
    """
    product = next(s for s in reversed(body.statements) if s.id == body.result)
    assert product.operation == "mul", "a template's result is the product of its operands"
    left, right = (sliced(replace(body, epilogue=None), operand) for operand in product.args)
    return left, right


def sliced(body: LoopBody, result: int) -> LoopBody:
    """The part of a body that statement ``result`` depends on."""
    wanted: set[int] = {result}
    symbols: set[Symbol] = set()
    kept: list[Statement] = []
    for statement in reversed(body.statements):
        defines = statement.args[3] if statement.operation == "indirect" else None
        if statement.id not in wanted and defines not in symbols:
            continue
        kept.append(statement)
        _note_uses(statement, wanted, symbols)
    return replace(body, statements=tuple(reversed(kept)), result=result)


def _note_uses(statement: Statement, wanted: set[int], symbols: set[Symbol]) -> None:
    """Add what a statement reads: ids of other statements, and symbols in its subscripts."""
    operation, args = statement.operation, statement.args
    if operation in ("constant", "merged"):
        return
    symbols.update(*(argument.symbols for argument in args if isinstance(argument, Expr)))
    if operation == "masked":
        condition, block, _ = args
        wanted.update((condition, block.result))
        for inner in block.statements:
            _note_uses(inner, wanted, symbols)
    elif operation in ("to_dtype", "indirect"):
        wanted.add(args[0])
    elif operation not in ("load", "index_value"):
        wanted.update(args)


def depends_on(body: LoopBody, symbol: Symbol) -> bool:
    """Whether any subscript of a body changes with a loop."""
    return any(
        symbol in argument.symbols
        for statement in body.all_statements()
        for argument in statement.args
        if isinstance(argument, Expr)
    )


def operand_elements(body: LoopBody, extents: dict[Symbol, int]) -> int:
    """How many elements an operand has: the product of the ``extents`` of the loops it depends on."""
    count = 1
    for symbol, extent in extents.items():
        if depends_on(body, symbol):
            count *= extent
    return count
