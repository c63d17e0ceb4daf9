"""Rubrics: what a reader looks for in prose that no program can grade.

A rubric is a list of criteria, each with its points and a description of what earns all of them, part of them, and
what does not count. It is written for the instructor and open to the student: knowing what a good argument contains is
part of learning to write one.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Criterion:
    """One thing to look for. ``full`` and ``partial`` say what earns the points; ``none`` names a usual way to miss."""

    name: str
    points: int
    full: str
    partial: str = ""
    none: str = ""

    def levels(self) -> tuple[tuple[str, str], ...]:
        """(what it earns, description), the best first."""
        between = {1: "part", 2: "1"}.get(self.points, f"1 to {self.points - 1}")
        rows = ((f"{self.points}", self.full), (between, self.partial))
        return tuple((earns, text) for earns, text in (*rows, ("0", self.none)) if text)


@dataclass(frozen=True)
class Rubric:
    """The criteria for one piece of prose."""

    criteria: tuple[Criterion, ...]
    title: str = ""

    @property
    def points(self) -> int:
        return sum(criterion.points for criterion in self.criteria)

    def __str__(self) -> str:
        lines = [f"{self.title or 'Rubric'} ({self.points} points)"]
        for criterion in self.criteria:
            lines.append(f"  {criterion.name} ({criterion.points})")
            for earns, text in criterion.levels():
                head = f"    {earns:>6} : "
                lines += textwrap.wrap(text, 100, initial_indent=head, subsequent_indent=" " * len(head))
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from .render import rubric_html

        return {"text/plain": str(self), "text/html": rubric_html(self)}
