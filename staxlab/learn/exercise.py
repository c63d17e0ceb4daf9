"""What an exercise is, where they are found, and what makes one complete.

An exercise is a module ``staxlab/learn/exercises/exNN.py``; there is no table to add it to. :func:`load` imports it,
wraps its parts in an :class:`Exercise` and refuses, with a list of everything missing, a module that does not hold what
the frame needs. The docstring of :mod:`staxlab.learn` shows how to write one.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from types import ModuleType
from typing import Any

from ..errors import StaxError
from .answers import Field, Prose
from .variants import BaseVariant

PACKAGE = "staxlab.learn.exercises"
RESERVED_FIELD_NAMES = frozenset({"answers", "record", "seed", "student", "target", "learn", "feedback"})

# The chapter's sections, for the names of the notebooks: one notebook per section that has exercises.
SECTIONS = {
    1: "introduction",
    2: "specialization",
    3: "capture",
    4: "transformation",
    5: "differentiation",
    6: "loops",
    7: "scheduling",
    8: "cpu",
    9: "gpu",
    10: "dynamic_shapes",
    11: "runtime",
    12: "discussion",
    13: "measurement",
}


class LearnError(StaxError):
    """An exercise that does not exist, or a module that is no complete exercise."""


@dataclass(frozen=True)
class Part:
    """One question: its ``statement`` (markdown), the ``fields`` it asks for, and ``hints``, gentlest first."""

    name: str
    title: str
    statement: str
    fields: tuple[Field, ...]
    hints: tuple[str, ...] = ()

    @property
    def automatic(self) -> tuple[Field, ...]:
        """The fields a program grades."""
        return tuple(field for field in self.fields if not isinstance(field, Prose))

    @property
    def points(self) -> Fraction:
        """The points a program can give."""
        return sum((Fraction(field.points) for field in self.automatic), Fraction(0))


@dataclass(frozen=True)
class WrongAnswer:
    """A plausible wrong answer: the reference with some ``answers`` replaced.

    ``loses`` are the fields that must get less than full credit (all others keep it), and ``mistake`` the name that the
    verdict on the first of them must carry: feedback that does not name the mistake is not good enough.
    """

    mistake: str
    answers: Mapping[str, Any]
    loses: tuple[str, ...]


@dataclass(frozen=True)
class Exercise:
    """A loaded exercise. ``id`` is the module's name (ex01), ``number`` the chapter's.

    ``harmless`` lists, per field, the changes to a reference function after which it is still a right answer.
    """

    id: str
    number: int
    section: int
    title: str
    difficulty: int
    statement: str
    variant_class: type[BaseVariant]
    parts: tuple[Part, ...]
    reference: Callable[[Any], Mapping[str, Any]]
    wrong_answers: Callable[[Any], Sequence[WrongAnswer]]
    judges: Callable[[Any, Mapping[str, Any], int | None], Mapping[str, Any]]
    harmless: Mapping[str, tuple[str, ...]]

    @property
    def fields(self) -> tuple[Field, ...]:
        return tuple(field for part in self.parts for field in part.fields)

    def part(self, name: str) -> Part:
        """The part of that name. Raises LearnError."""
        for part in self.parts:
            if part.name == name:
                return part
        known = ", ".join(f"{self.id}.{part.name}" for part in self.parts)
        raise LearnError(f"{self.id} has no part {name!r}", remedy=f"its parts are {known}")


def exercise_ids() -> tuple[str, ...]:
    """All exercises there are, in order: the modules of the exercises package whose name is ``exNN``."""
    package = importlib.import_module(PACKAGE)
    names = (module.name for module in pkgutil.iter_modules(package.__path__))
    return tuple(sorted(name for name in names if re.fullmatch(r"ex\d\d", name)))


@cache
def load(exercise: str) -> Exercise:
    """The exercise with that id. Raises LearnError for an unknown id or an incomplete module."""
    known = exercise_ids()
    if exercise not in known:
        close = difflib.get_close_matches(exercise, known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise LearnError(f"there is no exercise {exercise!r}", remedy=f"{hint}known: {', '.join(known)}")
    return from_module(importlib.import_module(f"{PACKAGE}.{exercise}"), exercise)


def split_target(target: str) -> tuple[str, str | None]:
    """``"ex01.2"`` into ``("ex01", "2")``; without a part, ``("ex01", None)``. "EX1" and "1" also name ex01."""
    match = re.fullmatch(r"\s*(?:ex)?0*(\d{1,2})(?:\.(\w+))?\s*", str(target), re.IGNORECASE)
    if not match:
        raise LearnError(f"{target!r} names no exercise", remedy='write "ex01" or, for one part, "ex01.2"')
    return f"ex{int(match.group(1)):02d}", match.group(2)


def from_module(module: ModuleType, exercise: str) -> Exercise:
    """Wrap an exercise module. Raises LearnError listing everything that is missing or of the wrong kind."""
    wanted = {
        "SECTION": int,
        "TITLE": str,
        "DIFFICULTY": int,
        "statement": str,
        "Variant": type,
        "PARTS": tuple,
        "reference": Callable,
        "wrong_answers": Callable,
        "check": Callable,
    }
    problems = [
        f"{name}: " + ("missing" if not hasattr(module, name) else f"must be {kind.__name__}")
        for name, kind in wanted.items()
        if not isinstance(getattr(module, name, None), kind)  # type: ignore[arg-type]
    ]
    if not problems:
        problems = _inconsistencies(module)
    if problems:
        raise LearnError(f"{exercise} is no complete exercise: " + "; ".join(problems))
    return Exercise(
        id=exercise,
        number=int(exercise[2:]),
        section=module.SECTION,
        title=module.TITLE,
        difficulty=module.DIFFICULTY,
        statement=module.statement,
        variant_class=module.Variant,
        parts=module.PARTS,
        reference=module.reference,
        wrong_answers=module.wrong_answers,
        judges=module.check,
        harmless=getattr(module, "HARMLESS", {}),
    )


def _inconsistencies(module: ModuleType) -> list[str]:
    problems = []
    if not issubclass(module.Variant, BaseVariant):
        problems.append("Variant must derive from BaseVariant")
    if module.SECTION not in SECTIONS:
        problems.append(f"SECTION {module.SECTION} is not a section of the chapter")
    if not module.PARTS or not all(isinstance(part, Part) for part in module.PARTS):
        return [*problems, "PARTS must hold at least one Part"]
    names = [part.name for part in module.PARTS]
    fields = [field for part in module.PARTS for field in part.fields]
    if len(set(names)) != len(names):
        problems.append("two parts have the same name")
    seen: set[str] = set()
    for field in fields:
        if field.name in seen:
            problems.append(f"two fields are called {field.name!r}")
        seen.add(field.name)
        if not field.name.isidentifier() or field.name in RESERVED_FIELD_NAMES:
            problems.append(f"{field.name!r} cannot be the name of a field")
        if isinstance(field, Prose):
            if field.points != field.rubric.points:
                problems.append(f"{field.name}: its points must be those of its rubric, {field.rubric.points}")
        elif not field.example:
            problems.append(f"{field.name}: a graded field needs an example")
    return problems
