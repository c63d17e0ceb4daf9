"""What a checker says: a verdict per answer, points per part, and why.

A grade without a reason teaches nothing, so every verdict carries a sentence, and a wrong answer carries the facts
that show it is wrong: the input, what the student's answer gives there, and what the package found. A verdict that
recognises a particular slip also names it (``mistake``), which is what the tests of an exercise look at.

Points are exact fractions, counted per part, always beside their maximum. Prose is not scored by a program: its
points are *pending* and stay out of both numbers until an instructor has read it against the rubric.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from typing import Any

WIDTH = 100


class Status(Enum):
    """How an answer stands. The value is (symbol, word): colour is never the only cue."""

    RIGHT = ("✓", "right")
    NEARLY = ("≈", "nearly")
    WRONG = ("✗", "wrong")
    MISSING = ("○", "not answered")
    MALFORMED = ("!", "cannot be read")
    UNCHECKED = ("?", "could not be checked")
    PENDING = ("✎", "for your instructor")

    @property
    def symbol(self) -> str:
        return self.value[0]

    @property
    def word(self) -> str:
        return self.value[1]


@dataclass(frozen=True)
class Verdict:
    """The judgement on one answer.

    ``credit``   share of the points earned, a fraction between 0 and 1
    ``message``  one or two sentences to the student
    ``facts``    (label, value) pairs: the counterexample, or what was tried
    ``mistake``  short stable name of the slip that was recognised, for tests and statistics
    """

    status: Status
    credit: Fraction
    message: str
    facts: tuple[tuple[str, str], ...] = ()
    mistake: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.credit <= 1:
            raise ValueError(f"credit must lie in [0, 1], got {self.credit}")
        if (self.credit == 1) != (self.status is Status.RIGHT):
            raise ValueError(f"full credit and only full credit is 'right', got {self.status.word} with {self.credit}")

    def with_facts(self, *facts: tuple[str, Any]) -> Verdict:
        """The same verdict with more facts at the end."""
        return replace(self, facts=self.facts + _facts(facts))


def _facts(facts: Iterable[tuple[str, Any]]) -> tuple[tuple[str, str], ...]:
    return tuple((label, _text(value)) for label, value in facts)


def _text(value: Any) -> str:
    """Facts may hold what a student's function returned: an object that cannot be printed is named by its type."""
    try:
        return str(value)
    except Exception:
        return f"a value of type {type(value).__name__} that cannot be printed"


def right(message: str = "Right.", *facts: tuple[str, Any]) -> Verdict:
    """Full credit."""
    return Verdict(Status.RIGHT, Fraction(1), message, _facts(facts))


def nearly(
    message: str, *facts: tuple[str, Any], credit: Fraction | float = Fraction(1, 2), mistake: str | None = None
) -> Verdict:
    """Part of the credit (half unless told): the idea is there, and the message says what is missing."""
    return Verdict(Status.NEARLY, Fraction(credit), message, _facts(facts), mistake)


def wrong(message: str, *facts: tuple[str, Any], mistake: str | None = None) -> Verdict:
    """No credit; ``facts`` should hold a counterexample."""
    return Verdict(Status.WRONG, Fraction(0), message, _facts(facts), mistake)


def missing() -> Verdict:
    return Verdict(Status.MISSING, Fraction(0), "No answer yet.")


def malformed(message: str, *facts: tuple[str, Any]) -> Verdict:
    """The answer does not have the declared form, so its content was not judged."""
    return Verdict(Status.MALFORMED, Fraction(0), message, _facts(facts))


def unchecked(message: str) -> Verdict:
    """The checker could not do its work here (an extra is not installed, a checker failed). Not the student's fault."""
    return Verdict(Status.UNCHECKED, Fraction(0), message)


def pending(message: str) -> Verdict:
    """Left to a reader."""
    return Verdict(Status.PENDING, Fraction(0), message)


@dataclass(frozen=True)
class Item:
    """A verdict in its place: which field it is about and how many points that field is worth."""

    field: str
    label: str
    points: Fraction
    verdict: Verdict

    @property
    def automatic(self) -> bool:
        """False for prose, whose points a reader gives."""
        return self.verdict.status is not Status.PENDING

    @property
    def earned(self) -> Fraction:
        return self.points * self.verdict.credit


@dataclass(frozen=True)
class PartFeedback:
    """One part of an exercise: ``earned`` of ``maximum`` points, and ``pending`` points that wait for a reader."""

    name: str
    title: str
    items: tuple[Item, ...]

    @property
    def earned(self) -> Fraction:
        return sum((item.earned for item in self.items), Fraction(0))

    @property
    def maximum(self) -> Fraction:
        return sum((item.points for item in self.items if item.automatic), Fraction(0))

    @property
    def pending(self) -> Fraction:
        return sum((item.points for item in self.items if not item.automatic), Fraction(0))


@dataclass(frozen=True)
class Feedback:
    """Everything a call of ``staxlab.learn.check`` found. Prints in a terminal; draws itself in a notebook.

    ``seed`` is the number from which the variant and all random trials were derived: the same seed gives the same
    feedback. ``notes`` are remarks about the call itself (an unknown field name, a record that could not be written).
    """

    exercise: str
    title: str
    seed: int | None
    variant: tuple[tuple[str, str], ...]
    parts: tuple[PartFeedback, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def earned(self) -> Fraction:
        return sum((part.earned for part in self.parts), Fraction(0))

    @property
    def maximum(self) -> Fraction:
        return sum((part.maximum for part in self.parts), Fraction(0))

    @property
    def pending(self) -> Fraction:
        return sum((part.pending for part in self.parts), Fraction(0))

    @property
    def score(self) -> Fraction:
        """Earned points over the maximum that a program can give; 0 where that maximum is 0."""
        return self.earned / self.maximum if self.maximum else Fraction(0)

    @property
    def points(self) -> float:
        """The earned points as a float: as the last value of a graded cell it is what nbgrader reads."""
        return float(self.earned)

    @property
    def complete(self) -> bool:
        """True when every point a program can give was earned."""
        return self.maximum > 0 and self.earned == self.maximum

    def items(self) -> tuple[Item, ...]:
        return tuple(item for part in self.parts for item in part.items)

    def __getitem__(self, field_name: str) -> Verdict:
        """The verdict on one field. Raises KeyError for a field that was not part of this check."""
        for item in self.items():
            if item.field == field_name:
                return item.verdict
        raise KeyError(field_name)

    def add_note(self, note: str) -> Feedback:
        return replace(self, notes=(*self.notes, note))

    def show(self) -> None:
        """Display in a notebook, print elsewhere (to standard output, never to standard error)."""
        try:
            from IPython import get_ipython
        except ImportError:
            print(self)
            return
        if get_ipython() is None:
            print(self)
        else:
            from IPython.display import display

            display(self)

    def __str__(self) -> str:
        head = f"{self.exercise} · {self.title}: {amount(self.earned)} of {points_text(self.maximum)}"
        if self.pending:
            head += f", {amount(self.pending)} more from your instructor"
        lines = [head]
        if self.variant:
            lines.append("  with " + ", ".join(f"{name} = {value}" for name, value in self.variant))
        for part in self.parts:
            lines.append("")
            lines.append(f"  Part {part.name}. {part.title}  [{amount(part.earned)}/{amount(part.maximum)}]")
            for item in part.items:
                verdict = item.verdict
                score = f"{amount(item.earned)}/{amount(item.points)}" if item.automatic else points_text(item.points)
                lines.append(f"  {verdict.status.symbol} {item.field} ({verdict.status.word}, {score})")
                lines += textwrap.wrap(verdict.message, WIDTH - 6, initial_indent=" " * 6, subsequent_indent=" " * 6)
                width = max((len(label) for label, _ in verdict.facts), default=0)
                for label, value in verdict.facts:
                    first, *rest = str(value).splitlines() or [""]
                    lines.append(f"        {label:<{width}} : {first}")
                    lines += [" " * (width + 11) + line for line in rest]
        for note in self.notes:
            lines += ["", *textwrap.wrap("Note: " + note, WIDTH, initial_indent="  ", subsequent_indent="  ")]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from .render import feedback_html

        return {"text/plain": str(self), "text/html": feedback_html(self)}

    def to_json(self) -> dict[str, Any]:
        """What a student's record keeps: plain strings and numbers, fractions as "3/4"."""
        return {
            "earned": str(self.earned),
            "maximum": str(self.maximum),
            "pending": str(self.pending),
            "fields": {
                item.field: {
                    "status": item.verdict.status.name.lower(),
                    "credit": str(item.verdict.credit),
                    "points": str(item.points),
                    "mistake": item.verdict.mistake,
                    "message": item.verdict.message,
                    "facts": [list(pair) for pair in item.verdict.facts],
                }
                for item in self.items()
            },
        }


def amount(value: Fraction) -> str:
    """A number of points without needless digits: 3, 2.5, 1/3."""
    if value.denominator == 1:
        return str(value.numerator)
    if 100 % value.denominator == 0:
        return f"{float(value):g}"
    return str(value)


def points_text(value: Fraction) -> str:
    return f"{amount(value)} point" + ("" if value == 1 else "s")
