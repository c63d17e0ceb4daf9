"""The verbs a student uses: ``statement``, ``check``, ``hint``, and for the instructor ``rubric``.

``check`` runs in five steps: choose the variant, sort the given answers into fields, read each field, judge what could
be read, write it down. Whatever goes wrong in one field stays in that field: a missing answer scores zero there, a
malformed one gets its one message, a checker that cannot work here says so; the rest is judged as usual. The only
exceptions that leave this module concern the call itself (no such exercise or part).
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from ..errors import MissingDependencyError
from .answers import Field, Malformed, Prose
from .exercise import Exercise, LearnError, Part, exercise_ids, load, split_target
from .feedback import Feedback, Item, PartFeedback, Status, Verdict, malformed, missing, pending, unchecked
from .records import StudentRecord, now
from .rubrics import Rubric
from .variants import BaseVariant, seed_of, variant_for

STUDENT_VARIABLE = "STAXLAB_STUDENT"
ANONYMOUS = "anonymous"
NAMELESS = (
    "these are the values of the anonymous variant, the chapter's own. Yours follow from your id: "
    f'run student = "your id" (in the notebook, the cell at its top), or set {STUDENT_VARIABLE}.'
)


def _identify(exercise: str, student: str | None, seed: int | None) -> tuple[str, int | None]:
    """Who is asking, and with which seed. The chapter's own values (seed None) go to those who give neither.

    Without the argument, it is the variable ``student`` of the notebook or script, then that of the environment.
    """
    name = student
    if name is None:
        name = getattr(sys.modules.get("__main__"), "student", None)
        name = name if isinstance(name, str) else os.environ.get(STUDENT_VARIABLE, "")
    name = str(name).strip()
    if seed is None and name and name.casefold() != ANONYMOUS:
        seed = seed_of(name, exercise)
    return name or ANONYMOUS, seed


def _is_nameless(exercise: Exercise, seed: int | None) -> bool:
    """Whether somebody works on the chapter's values although there are others."""
    draws = exercise.variant_class.draw.__func__ is not BaseVariant.draw.__func__  # type: ignore[attr-defined]
    return seed is None and draws


def check(
    target: str,
    answers: Mapping[str, Any] | None = None,
    /,
    *,
    student: str | None = None,
    seed: int | None = None,
    record: bool = True,
    **fields: Any,
) -> Feedback:
    """Judge answers to an exercise ("ex01") or to one part of it ("ex01.2").

    Answers are given by field name, as keywords or as a mapping (``globals()`` will do: only the declared fields are
    taken from it). ``student`` is an id, from which the variant follows (by default the variable ``student`` of the
    notebook, then ``$STAXLAB_STUDENT``); ``seed`` overrides it; without either, the chapter's own values are used.
    ``record=False`` writes nothing to disk.

    Raises LearnError if there is no such exercise or part; nothing that the answers contain makes it raise.
    """
    exercise_id, part_name = split_target(target)
    exercise = load(exercise_id)
    student, seed = _identify(exercise_id, student, seed)
    parts = (exercise.part(part_name),) if part_name else exercise.parts
    given, notes = _sort_answers(exercise, answers, fields)
    feedback = _grade(exercise, parts, given, seed, notes)
    if record:
        feedback = _write_down(feedback, exercise, parts, given, student)
    return feedback.add_note(NAMELESS) if _is_nameless(exercise, seed) else feedback


def _sort_answers(
    exercise: Exercise, mapping: Mapping[str, Any] | None, keywords: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The answers by field, and a note for every name that belongs to no field. Keywords win."""
    declared = {field.name for field in exercise.fields}
    stray = list(keywords)
    if mapping is not None:
        if not isinstance(mapping, Mapping):
            raise LearnError(
                f"answers must be a mapping from field names, not {type(mapping).__name__}",
                remedy=f'for example check("{exercise.id}", {exercise.fields[0].name}=...)',
            )
        if "__builtins__" not in mapping:  # a namespace holds many other names
            stray += [str(name) for name in mapping]
    given = {name: value for source in (mapping or {}, keywords) for name, value in source.items() if name in declared}
    notes = []
    for name in dict.fromkeys(stray):
        if name not in declared:
            close = difflib.get_close_matches(name, declared, n=1)
            notes.append(
                f"{exercise.id} has no field {name!r}"
                + (f"; did you mean {close[0]!r}?" if close else "; it was ignored.")
            )
    return given, tuple(notes)


def _grade(
    exercise: Exercise, parts: tuple[Part, ...], given: Mapping[str, Any], seed: int | None, notes: tuple[str, ...]
) -> Feedback:
    variant = variant_for(exercise.variant_class, seed)
    constants = variant.constants()
    verdicts: dict[str, Verdict] = {}
    read: dict[str, Any] = {}
    for field in exercise.fields:  # all of them: an answer to another part may be referred to
        try:
            answer = given.get(field.name)
            if field.is_missing(answer):
                verdicts[field.name] = missing()
            else:
                read[field.name] = field.read(answer, constants)
        except Malformed as problem:
            verdicts[field.name] = malformed(field.complaint(str(problem)))
        except Exception as error:  # an object whose repr, comparison or conversion raises
            verdicts[field.name] = malformed(field.complaint(f"reading it raised {type(error).__name__}: {error}"))
    try:
        judges = exercise.judges(variant, read, seed)
    except Exception as error:
        judges = dict.fromkeys(read, partial(_fail, error))
    results = []
    for part in parts:
        items = []
        for field in part.fields:
            verdict = verdicts.get(field.name) or _judge(field, judges[field.name], read[field.name])
            if isinstance(field, Prose):
                verdict = _left_to_a_reader(verdict)
            items.append(Item(field.name, field.label, Fraction(field.points), verdict))
        results.append(PartFeedback(part.name, part.title, tuple(items)))
    return Feedback(exercise.id, exercise.title, seed, variant.describe(), tuple(results), notes)


def _judge(field: Field, judge: Any, value: Any) -> Verdict:
    try:
        return judge(value)
    except MissingDependencyError as error:
        return unchecked(f"{error.what}: {error.remedy}")
    except Exception as error:
        # A defect of the checker. It costs the student nothing but an explanation, and the rest is still judged.
        return unchecked(f"The checker of {field.name} failed ({type(error).__name__}: {error}). Please report this.")


def _left_to_a_reader(verdict: Verdict) -> Verdict:
    """Prose never counts among the points a program gives, whether it was handed in here, elsewhere or not readable."""
    if verdict.status is Status.MISSING:
        return pending("Written in your notebook or on paper, this is read by your instructor.")
    return verdict if verdict.status is Status.PENDING else pending(verdict.message)


def _fail(error: Exception, value: Any) -> Verdict:
    raise error


def _write_down(
    feedback: Feedback, exercise: Exercise, parts: tuple[Part, ...], given: Mapping[str, Any], student: str
) -> Feedback:
    """Append the attempt to the student's record. Feedback is given even where it cannot be kept."""
    asked = [field for part in parts for field in part.fields if field.name in given]
    attempt = {
        "time": now(),
        "seed": feedback.seed,
        "parts": [part.name for part in parts],
        "answers": {field.name: _recorded(field, given[field.name]) for field in asked},
        "feedback": feedback.to_json(),
    }
    diary = StudentRecord(student)
    try:
        _, notes = diary.update(lambda data: diary.exercise(data, exercise.id)["attempts"].append(attempt))
    except OSError as error:
        notes = (f"this attempt could not be recorded ({error}).",)
    for note in notes:
        feedback = feedback.add_note(note)
    return feedback


def _recorded(field: Field, answer: Any) -> str | None:
    if answer is None:
        return None
    try:
        return field.recorded(answer)
    except Exception as error:  # a repr that raises
        return f"({type(answer).__name__}, which could not be written down: {type(error).__name__})"


@dataclass(frozen=True)
class Shown:
    """Markdown that prints as it is in a terminal and is typeset in a notebook."""

    markdown: str

    def __str__(self) -> str:
        return self.markdown

    __repr__ = __str__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": self.markdown, "text/markdown": self.markdown}


def statement(target: str, *, student: str | None = None, seed: int | None = None) -> Shown:
    """The text of an exercise or of one part, with this student's values."""
    exercise_id, part_name = split_target(target)
    exercise = load(exercise_id)
    _, seed = _identify(exercise_id, student, seed)
    lines = [
        f"## Exercise {exercise.number}. {exercise.title} {'★' * exercise.difficulty}",
        "",
        exercise.statement.strip(),
        "",
    ]
    lines += [values_text(exercise, seed), ""]
    for part in (exercise.part(part_name),) if part_name else exercise.parts:
        lines += [f"### Part {part.name}. {part.title}", "", part.statement.strip(), "", fields_text(part), ""]
    return Shown("\n".join(lines).strip())


def values(target: str, *, student: str | None = None, seed: int | None = None) -> Shown:
    """This student's values of the exercise's parameters."""
    exercise_id, _ = split_target(target)
    _, seed = _identify(exercise_id, student, seed)
    return Shown(values_text(load(exercise_id), seed))


def values_text(exercise: Exercise, seed: int | None) -> str:
    pairs = variant_for(exercise.variant_class, seed).describe()
    if not pairs:
        return ""
    text = "**Your values:** " + ", ".join(f"{name} = {value}" for name, value in pairs) + "."
    return f"{text}\n\nNote: {NAMELESS}" if _is_nameless(exercise, seed) else text


def fields_text(part: Part) -> str:
    """The answer fields of a part as a markdown list."""
    return "\n".join(
        f"- `{field.name}`: {field.label} ({field.form()}; {field.points} point{'' if field.points == 1 else 's'})"
        for field in part.fields
    )


@dataclass(frozen=True)
class Hints:
    """The hints of one part that have been revealed so far, out of ``total``."""

    exercise: str
    part: str
    texts: tuple[str, ...]
    total: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self._lines(""))

    __repr__ = __str__

    def _lines(self, bold: str) -> list[str]:
        lines = [f"{bold}Hints for {self.exercise}.{self.part}{bold}", ""] if self.texts else []
        lines += [f"{number}. {text}" for number, text in enumerate(self.texts, 1)]
        left = self.total - len(self.texts)
        if not self.total:
            lines.append(f"There are no hints for {self.exercise}.{self.part}.")
        else:
            lines += ["", f"{left} more: call hint again." if left else "These are all there are."]
        return lines + [f"Note: {note}" for note in self.notes]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/markdown": "\n".join(self._lines("**"))}


def hint(target: str, *, student: str | None = None, seed: int | None = None) -> Hints:
    """Reveal one more hint for a part ("ex01.2"), or for the first part that still has one ("ex01"). Recorded."""
    exercise_id, part_name = split_target(target)
    exercise = load(exercise_id)
    student, _ = _identify(exercise_id, student, seed)
    parts = (exercise.part(part_name),) if part_name else exercise.parts
    diary = StudentRecord(student)

    def reveal(data: dict[str, Any]) -> tuple[Part, int]:
        entry = diary.exercise(data, exercise_id)
        revealed = entry["hints"]
        part = next((p for p in parts if revealed.get(p.name, 0) < len(p.hints)), parts[-1])
        count = min(revealed.get(part.name, 0) + 1, len(part.hints))
        if count > revealed.get(part.name, 0):
            revealed[part.name] = count
            entry["hint_log"].append({"time": now(), "part": part.name, "number": count})
        return part, min(count, len(part.hints))

    try:
        (part, count), notes = diary.update(reveal)
    except OSError as error:
        # Nothing can be remembered, so the first hint is all that can be given step by step.
        part, notes = parts[0], (f"hints could not be recorded ({error}), so only the first is shown.",)
        count = min(1, len(part.hints))
    return Hints(exercise_id, part.name, part.hints[:count], len(part.hints), notes)


def rubric(target: str) -> Rubric:
    """What a reader looks for in the prose of an exercise or part."""
    exercise_id, part_name = split_target(target)
    exercise = load(exercise_id)
    parts = (exercise.part(part_name),) if part_name else exercise.parts
    found = [field.rubric for part in parts for field in part.fields if isinstance(field, Prose)]
    criteria = tuple(criterion for each in found for criterion in each.criteria)
    return Rubric(criteria, f"{target}: {exercise.title}")


def history(target: str, *, student: str | None = None) -> list[dict[str, Any]]:
    """The recorded attempts of a student at an exercise, oldest first, as plain data."""
    exercise_id, part_name = split_target(target)
    load(exercise_id)
    student, _ = _identify(exercise_id, student, None)
    attempts = StudentRecord(student).load().data["exercises"].get(exercise_id, {}).get("attempts", [])
    return [attempt for attempt in attempts if part_name is None or part_name in attempt["parts"]]


def catalogue() -> tuple[Exercise, ...]:
    """All exercises, in order."""
    return tuple(load(exercise) for exercise in exercise_ids())
