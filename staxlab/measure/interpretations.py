"""One description, many interpretations (Section 6.7), beside each other.

A compute function is run by whoever wants something of it: a handler that writes it down, one that counts, one that
keeps intervals, one that computes, one that prints C++ and one that prints Triton. What they return has nothing in
common but where it comes from. That is enough: everything knows the captured nodes it stems from, so the answers of all
handlers to one operator of the user's program stand in one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..codegen.kernel import Kernel
from ..errors import OptionError
from ..loops.body import Statement, record
from ..loops.expressions import Expr
from ..loops.formatting import statement_text
from ..loops.intervals import Intervals, interval_text
from ..loops.ir import ComputedBuffer, LoopProgram
from ..loops.ops import OPERATIONS
from ..loops.semantics import Evaluator, evaluate_buffers, flat_storage
from ..provenance import NO_ORIGINS, Origins
from ..specialize.report import counted
from .tables import Table, Tabular

LANGUAGES = {"cpp": "C++", "triton": "Triton"}


@dataclass(frozen=True)
class Interpretation:
    """What all handlers make of the statements that stem from the same captured nodes. ``code`` has the lines of each
    kernel, by language."""

    node: str
    listing: tuple[str, ...]
    operations: int
    interval: str
    value: str
    code: Mapping[str, tuple[str, ...]]
    origins: Origins = NO_ORIGINS


@dataclass(frozen=True, repr=False)
class Interpretations(Tabular):
    """The body of one buffer under all handlers. ``index`` is the point the concrete values belong to."""

    buffer: str
    index: tuple[int, ...]
    rows: tuple[Interpretation, ...]
    reads: tuple[str, ...]
    result: str

    @property
    def operations(self) -> int:
        """Operations for one point, a transcendental function counting as several."""
        return sum(row.operations for row in self.rows)

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(self.rows[0].code) if self.rows else ()

    def table(self) -> Table:
        languages = self.languages
        named = [LANGUAGES.get(language, language) for language in languages]
        columns = ["node", "formatted", "operations", "interval", "value", *named]
        cells = [
            (
                row.node, "; ".join(row.listing), row.operations or "–", row.interval or "–", row.value,
                *("  ".join(row.code[language]) or "–" for language in languages),
            )
            for row in self.rows
        ]  # fmt: skip
        notes = [
            f"recorded: reads {', '.join(self.reads) or 'nothing'}; writes {self.buffer}",
            f"counted: {counted(self.operations, 'operation')} for each point",
            f"computed: the values at {self.index}; the result there is {self.result}",
        ]
        table = Table.build(f"One compute function, many interpretations: {self.buffer}", columns, cells, notes)
        return Table(table.caption, table.columns, table.rows, table.notes, frozenset({2}))


def interpretations(
    compilation: Any, inputs: Sequence[torch.Tensor], *others: Any, buffer: str | None = None
) -> Interpretations:
    """The last computed buffer of a ``Compilation``, or ``buffer``, at the first point of its loops, on flat inputs.

    ``others`` are compilations of the same function for other targets, whose kernels get a column, too. OptionError if
    nothing is computed by loops.
    """
    program: LoopProgram = compilation.loops
    computed = [b for b in program.buffers if isinstance(b, ComputedBuffer) and buffer in (None, b.name)]
    if not computed:
        raise OptionError(f"{compilation.name} has no loops that compute {buffer or 'anything'}")
    chosen = computed[-1]
    dtypes = {b.name: b.layout.dtype for b in (*program.inputs, *program.buffers)}
    body = record(chosen, dtypes)
    point = {symbol.name: torch.tensor(0) for symbol in body.symbols}
    given = dict(zip((b.name for b in program.inputs), inputs, strict=True))
    storages = evaluate_buffers(program, given)
    storages |= {b.name: flat_storage(given[b.name], b.layout) for b in program.inputs}
    values = body.replay_statements(Evaluator(storages, point))[0]
    ranges = body.replay_statements(Intervals(dtypes))[0]
    names = {node.id: node.name for node in compilation.graph}
    code = {kernel.language: kernel for c in (compilation, *others) if (kernel := _kernel(c, chosen.name)) is not None}
    groups: dict[Origins, list[Statement]] = {}
    for statement in body.all_statements():
        groups.setdefault(statement.origins, []).append(statement)
    rows = [
        Interpretation(
            ", ".join(names.get(origin, f"%{origin}") for origin in sorted(origins)) or "–",
            tuple(map(statement_text, statements)),
            sum(OPERATIONS[s.operation].cost for s in statements if s.operation in OPERATIONS),
            _interval(statements, ranges),
            _value(values.get(statements[-1].id)),
            {language: _lines(kernel, origins) for language, kernel in code.items()},
            origins,
        )
        for origins, statements in groups.items()
    ]
    reads = tuple(f"{access.buffer}[{access.index}]" for access in body.reads())
    return Interpretations(chosen.name, (0,) * len(body.symbols), tuple(rows), reads, _value(values.get(body.result)))


def _kernel(compilation: Any, buffer: str) -> Kernel | None:
    """The kernel that writes a buffer."""
    for kernel in compilation.kernels or ():
        if any(argument.buffer == buffer and argument.role != "input" for argument in kernel.arguments):
            return kernel
    return None


def _lines(kernel: Kernel, origins: Origins) -> tuple[str, ...]:
    """The lines of a kernel that stem from exactly these nodes, without their comments."""
    marks = {"cpp": "//", "triton": "#"}
    mark = marks.get(kernel.language, "\0")
    found = [line.text.split(mark)[0].strip() for line in kernel.lines if line.origins == origins]
    return tuple(dict.fromkeys(text for text in found if text.strip("{}")))


def _interval(statements: Sequence[Statement], ranges: Mapping[int, Any]) -> str:
    """What is known of the subscripts read, or of the last value where it is a whole number."""
    for statement in statements:
        if statement.operation == "load":
            return f"subscript {interval_text(Expr.of(statement.args[1]).bounds())}"
    known = getattr(ranges.get(statements[-1].id), "interval", None)
    return interval_text(known) if known is not None else ""


def _value(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return "–"
    number = value.reshape(-1)[0].item()
    return f"{number:.6g}" if isinstance(number, float) else str(number)
