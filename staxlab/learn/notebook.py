"""The exercise notebooks, generated from the exercise modules: ``python -m staxlab.learn.notebook``.

One notebook per section, written to ``exercises/``. The text, the fields and the points come from the modules, so a
notebook is never edited by hand; a test compares the committed files with what this module writes. Building the same
exercises twice gives the same bytes.

Cells carry nbgrader's metadata (schema 3), so a course that uses nbgrader can collect and grade the notebooks as they
are; without nbgrader they work all the same. A graded cell ends in the number of points earned, which nbgrader reads as
partial credit. Cells are found by ``grade_id``, and our own keys are in ``metadata.staxlab``, since nbgrader's schema
admits no others.

=====================  =======  =========  ========
cell                   grade    solution   locked
=====================  =======  =========  ========
text, set-up           no       no         yes
answers                no       yes        no
check (points)         yes      no         yes
answer in words        yes      yes        no
hints                  (an ordinary cell: whoever runs it asks for a hint)
=====================  =======  =========  ========

``--with-answers`` writes the instructor's version, whose answer cells hold the reference between nbgrader's solution
marks. It does not belong in the repository's ``exercises/``, nor in a student's hands. Whoever lets nbgrader make the
students' version from it should set ``c.ClearSolutions.code_stub = {"python": "# your answer"}``: the default stub
raises an exception, and an unanswered field is simply ``None`` here.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from .answers import Field, Prose
from .exercise import SECTIONS, Exercise, LearnError, Part
from .feedback import points_text
from .frame import catalogue, fields_text
from .variants import seed_of, variant_for

SECTION_TITLES = {
    1: "Introduction",
    2: "Specialization and caching",
    3: "Graph capture",
    4: "Graph transformation",
    5: "Automatic differentiation and rematerialization",
    6: "Lowering and the loop-level representation",
    7: "Scheduling and fusion",
    8: "CPU code",
    9: "GPU code",
    10: "Dynamic shapes",
    11: "Caching, building, falling back",
    12: "Discussion",
    13: "Models and measurement",
}

BEGIN_SOLUTION, END_SOLUTION = "### BEGIN SOLUTION", "### END SOLUTION"

# What a student's answer cell is filled with: field name to value, or None for the empty notebook.
Answers = Mapping[str, Any]
AnswersFor = Callable[[Exercise], Answers | None]


def notebook_name(section: int) -> str:
    """``01_introduction.ipynb``"""
    return f"{section:02d}_{SECTIONS[section]}.ipynb"


def build(section: int, *, student: str = "anonymous", answers: AnswersFor = lambda exercise: None) -> dict[str, Any]:
    """The notebook of a section as nbformat 4.5 data, without outputs.

    ``answers`` gives for each exercise the answers its cells should hold (a mapping by field), or None for the empty
    notebook that students get. Raises LearnError if the section has no exercises.
    """
    exercises = [exercise for exercise in catalogue() if exercise.section == section]
    if not exercises:
        raise LearnError(f"section {section} has no exercises")
    cells = [*_opening(section, student)]
    for exercise in exercises:
        cells += _exercise_cells(exercise, answers(exercise))
    return {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
            "staxlab": {"exercises": [exercise.id for exercise in exercises], "section": section},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def text_of(notebook: Mapping[str, Any]) -> str:
    """The bytes of a notebook file, as Jupyter writes them."""
    return json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


# --- Cells ------------------------------------------------------------------------------------------------------------


def _cell(
    kind: str, cell_id: str, source: str, flags: str = "", points: float | None = None, **own: Any
) -> dict[str, Any]:
    """A cell. ``flags`` are nbgrader's (grade, solution, locked) as three letters T or F; none for an ordinary cell."""
    metadata: dict[str, Any] = {"staxlab": own} if own else {}
    if flags:
        grade, solution, locked = (letter == "T" for letter in flags)
        metadata["nbgrader"] = {
            "cell_type": kind,
            "grade": grade,
            "grade_id": cell_id,
            "locked": locked,
            "schema_version": 3,
            "solution": solution,
            "task": False,
        }
        if grade:
            metadata["nbgrader"]["points"] = points
    cell: dict[str, Any] = {
        "cell_type": kind,
        "id": cell_id,
        "metadata": metadata,
        "source": source.strip("\n").splitlines(keepends=True),
    }
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return cell


def _opening(section: int, student: str) -> Iterable[dict[str, Any]]:
    title = f"# Exercises, Section {section}: {SECTION_TITLES[section]}"
    how = """
Write your answers in the cells that say so and run the cell below them: it tells you what is right, what is nearly
right and why, and what is wrong, with an input that shows it. Answers in words go between the quotation marks; your
instructor reads them. You may try as often as you like. Your answers and the
feedback are kept in a file of your own; the set-up cell prints where.

Everyone works with different values. They follow from your id, so fill it in first, and always use the same one.
"""
    yield _cell("markdown", "title", f"{title}\n{how}", "FFT")
    yield _cell("code", "student", f"student = {student!r}  # your id, the one your course knows you by", "FTF")
    setup = """
from staxlab import learn
from staxlab.learn.records import record_path

print("your record:", record_path(student))
"""
    yield _cell("code", "setup", setup, "FFT")


def _exercise_cells(exercise: Exercise, answers: Answers | None) -> Iterable[dict[str, Any]]:
    stars = "★" * exercise.difficulty
    head = f"## Exercise {exercise.number}. {exercise.title} {stars}\n\n{exercise.statement.strip()}"
    own = {"exercise": exercise.id}
    yield _cell("markdown", f"{exercise.id}-statement", head, "FFT", **own, role="statement")
    yield _cell(
        "code", f"{exercise.id}-values", f'learn.values("{exercise.id}", student=student)', "FFT", **own, role="values"
    )
    for part in exercise.parts:
        yield from _part_cells(exercise, part, answers)


def _part_cells(exercise: Exercise, part: Part, answers: Answers | None) -> Iterable[dict[str, Any]]:
    name, target = f"{exercise.id}-{part.name}", f"{exercise.id}.{part.name}"
    own = {"exercise": exercise.id, "part": part.name}
    text = f"### Part {part.name}. {part.title}\n\n{part.statement.strip()}\n\n{fields_text(part)}"
    yield _cell("markdown", f"{name}-statement", text, "FFT", **own, role="statement")
    small = [field for field in part.automatic if not field.own_cell]
    groups = ([("answers", small)] if small else []) + [
        (field.name, [field]) for field in part.automatic if field.own_cell
    ]
    for label, fields in groups:
        source = "\n\n".join(_answer_source(field, answers) for field in fields)
        yield _cell(
            "code", f"{name}-{label}", source, "FTF", **own, role="answer", fields=[field.name for field in fields]
        )
    for field in part.fields:
        if isinstance(field, Prose):
            source = _answer_source(field, answers)
            points = float(field.points)
            yield _cell("code", f"{name}-{field.name}", source, "TTF", points=points, **own, role="prose",
                        fields=[field.name])  # fmt: skip
    if part.automatic:
        # The mapping survives a deleted answer cell, which would be a NameError if every field were named here.
        source = f'feedback = learn.check("{target}", globals(), student=student)\nfeedback.show()\nfeedback.points'
        yield _cell("code", f"{name}-check", source, "TFT", points=float(part.points), **own, role="check")
    if part.hints:
        source = (
            f"# Stuck? Take away the # and run this cell: each run reveals one more of {len(part.hints)} hints.\n"
            f'# learn.hint("{target}", student=student)'
        )
        yield _cell("code", f"{name}-hint", source, **own, role="hint")


def _answer_source(field: Field, answers: Answers | None) -> str:
    """Comment, empty answer, and (in the instructor's version) the reference between nbgrader's marks."""
    by = f"; {points_text(Fraction(field.points))} from your instructor" if isinstance(field, Prose) else ""
    lines = textwrap.wrap(f"{field.name}: {field.label}; {field.form()}{by}.", 96)
    example = field.example.splitlines()
    lines += ["For example:", *("    " + line for line in example)] if len(example) > 1 else []
    if len(example) == 1:
        lines.append(f"For example: {field.name} = {field.example}")
    nothing = 'r"""\n\n"""' if isinstance(field, Prose) else "None"  # raw: a backslash in it is a backslash
    source = "\n".join(f"# {line}" for line in lines) + f"\n{field.name} = {nothing}"
    if answers is None:
        return source
    return f"{source}\n{BEGIN_SOLUTION}\n{answer_code(field.name, answers.get(field.name))}\n{END_SOLUTION}"


def answer_code(name: str, value: Any) -> str:
    """Python source that gives ``name`` the value of an answer. A function's source must stand on its own."""
    if callable(value):
        source = textwrap.dedent(inspect.getsource(value)).rstrip()
        return source if value.__name__ == name else f"{source}\n\n\n{name} = {value.__name__}"
    return f"{name} = {value!r}"


# --- Command line -----------------------------------------------------------------------------------------------------


def reference_answers(student: str) -> AnswersFor:
    """The reference answers to a student's variants."""

    def answers(exercise: Exercise) -> Answers:
        seed = None if student == "anonymous" else seed_of(student, exercise.id)
        return exercise.reference(variant_for(exercise.variant_class, seed))

    return answers


def main(arguments: list[str] | None = None) -> int:
    """Write the notebooks, or with ``--check`` only compare them. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m staxlab.learn.notebook", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("exercises"), help="folder (default: exercises)")
    parser.add_argument("--section", type=int, action="append", help="only this section; may be repeated")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a notebook would change")
    parser.add_argument("--with-answers", action="store_true", help="the instructor's version, with reference answers")
    parser.add_argument("--student", default="anonymous", help="id whose values the notebook starts with")
    options = parser.parse_args(arguments)
    sections = options.section or sorted({exercise.section for exercise in catalogue()})
    stale = []
    for section in sections:
        answers = reference_answers(options.student) if options.with_answers else (lambda exercise: None)
        text = text_of(build(section, student=options.student, answers=answers))
        path = options.out / notebook_name(section)
        current = path.read_text(encoding="utf-8") if path.exists() else None
        if current == text:
            continue
        stale.append(path)
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    if options.check and stale:
        print("out of date, run python -m staxlab.learn.notebook: " + ", ".join(map(str, stale)), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
