"""A reverse sweep over a straight-line program (Section 5.2, Theorem 5.1), drawn: values, adjoints, operations.

Three things beside each other. The program as a graph: each value with its number, its operation, what it is and what
the result's derivative with respect to it is. The same as a table, with the operations each reverse step took. And all
operations of both sweeps as one bar, next to the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..specialize.report import counted
from .charts import MUTED, RULE, TEXT, chart, text_at
from .diagram import MOST_NODES, MOST_NODES_FULL, Box, diagram
from .document import Pane, View
from .markup import Html, element, join, table
from .reversal import round_ticks

WIDTH, LEFT, RIGHT = 700, 90, 90  # of the bar
MOST_ROWS = 200


def view(record: Any, full: bool = False) -> View:
    """The graph where it is small enough, the bar, the table."""
    parts = [program_diagram(record, full), operations_bar(record), program_table(record, full)]
    title = f"Reverse mode of {record.program.name}"
    return View("reverse mode", (Pane("sweep", title, join(parts), record.summary(), record.format()),))


def program_diagram(record: Any, full: bool = False) -> Html:
    """A box for each value, an edge from each operand."""
    rows = record.rows()
    if len(rows) > (MOST_NODES_FULL if full else MOST_NODES):
        said = f"A drawing of {len(rows):,} values would explain nothing; the table has them."
        return element("p", said, class_="sx-note")
    program = record.program
    result = program.outputs[0]
    boxes, edges = [], []
    for number, (text, value, adjoint, count) in enumerate(rows, 1):
        kind = "input" if number <= program.inputs else "output" if number == result else "call"
        spoken = f"{text}: value {value}, adjoint {adjoint}"
        spoken += f"; reverse step: {counted(int(count), 'operation')}" if count else ""
        boxes.append(Box((text, f"= {value}", f"adjoint {adjoint}"), kind, spoken, frozenset()))
        if count:
            operands = program.instructions[number - program.inputs - 1].operands
            edges += [(one - 1, number - 1) for one in operands if isinstance(one, int)]
    return diagram(boxes, edges, f"Straight-line program {program.name} with its adjoints")


def program_table(record: Any, full: bool = False) -> Html:
    rows = record.rows()
    shown = rows if full else rows[:MOST_ROWS]
    caption = f"Values and adjoints: {record.summary()}"
    if len(shown) < len(rows):
        caption += f" (the first {len(shown)} of {len(rows):,} values)"
    return table(caption, ("", "value", "adjoint", "operations of the reverse step"), shown)


def operations_bar(record: Any) -> Html:
    """Forward sweep, reverse sweep and the bound on one axis of operations."""
    most = max(record.bound, record.operations, 1)

    def x(count: float) -> float:
        return LEFT + count / most * (WIDTH - LEFT - RIGHT)

    title = f"Operations of {record.program.name} and its gradient"
    said = f"{record.summary()}. The program alone takes {counted(record.forward_operations, 'operation')}"
    base, height = 98, 138
    drawn = [
        element("title", title),
        element("desc", said),
        text_at(title, 12, 18, "sx-count", TEXT, font_weight="600"),
        *_segments(record, x),
        text_at("bound", LEFT - 10, 85, "sx-label", MUTED, text_anchor="end"),
        element("path", d=f"M{x(0):.1f} 81H{x(record.bound):.1f}", class_="sx-chart-limit", fill="none",
                stroke="#8a4600", stroke_width="1.6", stroke_dasharray="7 4", data_bound=record.bound),
        text_at(f"{record.program.factor} W = {record.bound:,}", x(record.bound) + 6, 85, "sx-count", TEXT),
        element("path", d=f"M{LEFT} {base}H{WIDTH - RIGHT}", class_="sx-chart-axis", fill="none", stroke=RULE),
        *_axis(x, most, base),
        text_at("operations (count)", (LEFT + WIDTH - RIGHT) / 2, height - 6, "sx-label", MUTED, text_anchor="middle"),
    ]  # fmt: skip
    return chart(drawn, title, said, WIDTH, height)


def _segments(record: Any, x: Any) -> Iterator[Html]:
    """The two sweeps end to end: the forward sweep filled, the reverse sweep hatched by a dashed frame."""
    yield text_at("counted", LEFT - 10, 54, "sx-label", MUTED, text_anchor="end")
    ends = (0, record.forward_operations, record.operations)
    looks = (("forward", "sx-cell-covered", "#e4f0fb", None), ("reverse", "sx-cell-changed", "#fff3c9", "4 3"))
    for (name, style, fill, dashes), start, stop in zip(looks, ends, ends[1:], strict=False):
        words = f"{name} {stop - start:,}"
        wide = x(stop) - x(start)
        yield element(
            "rect", element("title", f"{name} sweep: {counted(stop - start, 'operation')}"), x=f"{x(start):.1f}", y=36,
            width=f"{wide:.1f}", height=28, fill=fill, stroke=RULE, class_=f"sx-cell {style}", stroke_dasharray=dashes,
            data_sweep=name, data_count=stop - start,
        )  # fmt: skip
        if wide > 7.3 * len(words):
            yield text_at(words, (x(start) + x(stop)) / 2, 54, "sx-count", TEXT, text_anchor="middle")
    yield text_at(f"{record.operations:,}", x(record.operations) + 6, 54, "sx-count", TEXT)


def _axis(x: Any, most: int, base: float) -> Iterator[Html]:
    for count in round_ticks(most):
        yield element("path", d=f"M{x(count):.1f} {base}V{base + 4}", class_="sx-chart-axis", stroke=RULE)
        yield text_at(f"{count:,}", x(count), base + 16, "sx-label", MUTED, text_anchor="middle")
