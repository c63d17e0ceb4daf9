"""The transformations on the compilation path, in the order in which they run (Section 4.10, Table 4.3, Figure 4.1).

Each layer knows more than the one above it and does what can be proved with what it knows: the Python-level graph has
calls, the operator graph exact overloads, the loop program the subscript of every element, the schedule the lifetime of
every buffer. The list is read off the compiler, not written down: the front-end passes are those of
``transform.passes``, and what each does is the first sentence of the module that does it. For a compilation, it also
counts what was done.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..loops import realize
from ..operators import basis, functionalize
from ..options import Options
from ..schedule import dependencies
from ..transform import passes
from .tables import Table, Tabular

# stage of Figure 4.1: (name, what its transformations see)
STAGES = {
    "A": ("front end", "Python-level graph: calls"),
    "B": ("operator recording", "operator graph: overloads"),
    "C": ("loops and schedule", "loop program: subscripts, buffers"),
}


@dataclass(frozen=True)
class Transformation:
    """One transformation: its ``stage`` (A, B, C), what it does, where it is written, and, for a compilation, how often
    it did something (``count`` of ``unit``)."""

    stage: str
    name: str
    what: str
    source: str
    count: int | None = None
    unit: str = ""

    @property
    def done(self) -> str:
        """``2 rewrites``, or nothing where there is no compilation."""
        return "" if self.count is None else f"{self.count} {self.unit}{'' if self.count == 1 else 's'}"


@dataclass(frozen=True)
class TransformationMap(Tabular):
    """All transformations in order. ``rounds`` is how often stage A was gone through; None without a compilation."""

    entries: tuple[Transformation, ...]
    max_rounds: int
    rounds: int | None = None

    def table(self) -> Table:
        columns = ("transformation", "stage", "sees", "does", "written in")
        if self.rounds is not None:
            columns = (*columns, "here")
        rows = [
            [e.name, f"{e.stage} {STAGES[e.stage][0]}", STAGES[e.stage][1], e.what, e.source]
            + ([e.done] if self.rounds is not None else [])
            for e in self.entries
        ]
        said = f"stage A is repeated until a round changes nothing, at most {self.max_rounds} times"
        said += "" if self.rounds is None else f"; here {self.rounds} rounds"
        caption = "Transformations on the compilation path, in order (Table 4.3)"
        return Table.build(caption, columns, rows, [said], text_columns=len(columns))


def transformations(compilation: Any = None, options: Options | None = None) -> TransformationMap:
    """The map, with counts if a ``Compilation`` is given (stages that did not run count as None)."""
    log = getattr(compilation, "transforms", None)
    operators = getattr(compilation, "operators", None)
    loops, schedule = getattr(compilation, "loops", None), getattr(compilation, "schedule", None)
    options = options or getattr(compilation, "options", None) or Options()
    entries = []
    for item in passes.SHAPE_INDEPENDENT if options.dynamic else passes.PASSES:
        applied = None if log is None else sum(len(run.applied) for run in log.runs if run.name == item.name)
        entries.append(_entry("A", item.name, item.run, applied, "rewrite"))
    taken = None if operators is None else len(operators.decomposed)
    back = None if operators is None else len(operators.write_backs)
    inlined = None if loops is None else sum(d.topic == "realize" and d.choice == "inline" for d in loops.decisions)
    nodes = None if schedule is None else len(schedule.nodes)
    entries += [
        _entry("B", "Decompose operators", basis.decomposition_of, taken, "operator"),
        _entry("B", "Functionalize", functionalize.Functionalizer, back, "write-back"),
        _entry("C", "Inline or realize", realize.decide, inlined, "inlined value"),
        _entry("C", "Schedule", dependencies.schedule, nodes, "schedule node"),
    ]
    return TransformationMap(tuple(entries), options.max_rounds, None if log is None else log.rounds)


def _entry(stage: str, name: str, does: Callable[..., Any], count: int | None, unit: str) -> Transformation:
    module = sys.modules[does.__module__]
    first = re.split(r"\n\s*\n", inspect.getdoc(module) or "")[0].replace("\n", " ")
    what = re.sub(r"\s*\((?:Section|Sections|Definition)[^)]*\)", "", first.replace("``", ""))
    source = does.__module__.partition(".")[2].replace(".", "/") + ".py"
    return Transformation(stage, name, what.split(". ")[0].rstrip("."), source, count, unit)
