"""``staxlab reproduce``: the tables and figures of Section 13 on this machine, from the measurements to the files.

:mod:`.measure.reproduce` and :mod:`.measure.amortization` measure any compiler they are handed; here it is this one, in
strict mode, or a fallback would be timed for a kernel. What was asked for by its name in the text:

=============  =========================================================================================
table-13.1     six cases, eager and compiled: time, effective bandwidth, byte ratio, rounds A and B
table-13.2     five single operators, whose byte ratio is 1
figure-13.1    both tables' cases, speedup against byte ratio
figure-1.1     the roofline of this machine, and Example 1.1 on it, eager and compiled
amortisation   first calls with a cold and a warm cache, calls to break even, the smallest size worth fusing
all            everything above
=============  =========================================================================================
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .api import compile as compile_function
from .errors import MissingDependencyError, OptionError
from .files import write_whole
from .measure import amortization, roofline
from .measure.chapter_cases import CHAPTER_CASES, chapter_case
from .measure.reproduce import Settings, reproduce, write_json
from .measure.reproduction import REPRODUCED, CaseRun, Reproduction
from .measure.roofline import Roofline, measured_point
from .measure.timing import Progress

WHAT = ("table-13.1", "table-13.2", "figure-1.1", "figure-13.1", "amortisation", "all")
EXAMPLE = "example_1_1"


@dataclass(frozen=True)
class Reproduced:
    """What was asked for: ``tables`` (Figure 13.1 with its tables), ``roof`` (Figure 1.1), ``amortized``; None for what
    was not, or was not reached before an interruption."""

    what: str
    tables: Reproduction | None = None
    roof: Roofline | None = None
    amortized: amortization.Amortization | None = None
    complete: bool = True

    @property
    def parts(self) -> dict[str, Any]:
        """The records there are, by the name of their files."""
        named = {"tables": self.tables, "roofline": self.roof, "amortisation": self.amortized}
        return {name: part for name, part in named.items() if part is not None}

    @property
    def problems(self) -> tuple[str, ...]:
        """Sides that failed or gave wrong values."""
        return self.tables.problems if self.tables is not None else ()

    def text(self) -> str:
        return "\n\n".join(str(part) for part in self.parts.values())

    def to_json(self) -> dict[str, Any]:
        """All records, headed as a result of ``benchmarks/`` is."""
        parts = {name: part.to_json() for name, part in self.parts.items()}
        first = next(iter(parts.values()), {})
        head = {key: first[key] for key in ("date", "command", "machine", "versions") if key in first}
        return {"format": REPRODUCED, **head, "what": self.what, "complete": self.complete, **parts}


def compiler() -> Callable[..., Any]:
    """This compiler, in strict mode."""
    return functools.partial(compile_function, strict_native=True)


def torch_compile() -> Mapping[str, Callable[..., Any]]:
    """The peer that is measured on request. Its first compilation takes long."""
    import torch

    return {"torch.compile": torch.compile}


def run(
    what: str, settings: Settings, *, quick: bool = False, peers: bool = False, progress: Progress | None = None
) -> Reproduced:
    """Measure what was asked for. Ctrl-C ends early with what was measured.

    Raises OptionError for an unknown name, device or too little memory, before anything is measured; BuildError without
    a C++ compiler.
    """
    names = (*WHAT, *(case.name for case in CHAPTER_CASES))
    if what not in names:
        raise OptionError(f"there is nothing called {what!r} to reproduce", remedy=f"choose among {', '.join(names)}")
    steps = [name for name in ("tables", "roof", "amortized") if name in _steps(what)]

    def part(step: str) -> Progress | None:
        if progress is None:
            return None
        return lambda fraction, message: progress((steps.index(step) + fraction) / len(steps), message)

    done = Reproduced(what)
    if "tables" in steps:
        cases = (chapter_case(EXAMPLE),) if what in ("amortisation", "figure-1.1") else what
        tables = reproduce(cases, compiler(), settings, torch_compile() if peers else {}, part("tables"))
        done = replace(done, tables=tables, complete=tables.complete)
    example = next((case for case in (done.tables.cases if done.tables else ()) if case.name == EXAMPLE), None)
    if "roof" in steps and done.complete:
        roof = roofline.measure(part("roof"), quick, device=settings.device)
        remarks = tuple(note for note in done.tables.notes if note not in roof.notes)
        roof = replace(with_case(roof, example), notes=(*roof.notes, *remarks))
        done = replace(done, roof=roof, complete=roof.complete)
    if "amortized" in steps and done.complete:
        few = {"repeats": 1, "readings": 9, "calls": 200} if quick else {}
        found = amortization.measure_amortization(
            compiler(), example, settings.device, progress=part("amortized"), **few
        )
        done = replace(done, amortized=found, complete=found.complete)
    return done


def _steps(what: str) -> tuple[str, ...]:
    """Which measurements answer what was asked for; both figures and the amortisation need Example 1.1 timed."""
    if what == "all":
        return ("tables", "roof", "amortized")
    if what == "figure-1.1":
        return ("tables", "roof")
    return ("tables", "amortized") if what == "amortisation" else ("tables",)


def with_case(roof: Roofline, case: CaseRun | None) -> Roofline:
    """The roofline with a case on it, eager and compiled, with the times of its first round."""
    if case is None or not case.traffic or not case.decompositions():
        return roof
    timed = case.rounds.rounds[0]
    name = case.title.split(":")[0]
    return roof.with_points(
        measured_point(f"{name}, {side}", timed[side], of["operations"], of["read"], of["written"])
        for side, of in case.traffic.items()
    )


def write(done: Reproduced, target: Path) -> tuple[list[Path], list[str]]:
    """Write a directory with every record as JSON and text, and the pictures as SVG; or, for a ``target`` that ends in
    ".json", one file with all records, and the pictures beside it.

    The paths, and remarks on pictures that could not be drawn (without matplotlib there is no Figure 1.1).
    """
    from .view.amortization import figure as amortization_figure
    from .view.reproduce import standing_alone, svg_text

    together = target.suffix == ".json"
    directory, prefix = (target.parent, f"{target.stem}_") if together else (target, "")
    directory.mkdir(parents=True, exist_ok=True)
    written = [write_json(done.to_json(), target)] if together else []
    remarks: list[str] = []
    for name, part in done.parts.items() if not together else ():
        written.append(write_json(part.to_json(), directory / f"{name}.json"))
        written.append(_write(directory / f"{name}.txt", f"{part}\n"))
    if done.tables is not None and done.tables.timed:
        written.append(_write(directory / f"{prefix}figure_13_1.svg", svg_text(done.tables)))
    if done.amortized is not None and (picture := amortization_figure(done.amortized)) is not None:
        written.append(_write(directory / f"{prefix}amortisation.svg", standing_alone(str(picture))))
    if done.roof is not None:
        try:
            written.append(done.roof.plot(directory / f"{prefix}figure_1_1.svg"))
        except MissingDependencyError as error:
            remarks.append(f"Figure 1.1 was not drawn: {error.what} ({error.remedy})")
    return written, remarks


def _write(path: Path, text: str) -> Path:
    return write_whole(path, text.encode(), private=False)


def load(source: Path) -> Reproduced:
    """Read what :func:`write` wrote, a directory or one file. ValueError for files of another kind."""
    if source.is_dir():
        found = {name: json.loads(path.read_text(encoding="utf-8")) for name in _READERS
                 if (path := source / f"{name}.json").exists()}  # fmt: skip
    else:
        record = json.loads(source.read_text(encoding="utf-8"))
        if record.get("format") != REPRODUCED:
            raise ValueError(f"no reproduction written by this version (format {record.get('format')!r})")
        found = {name: record[name] for name in _READERS if name in record}
    parts = {_READERS[name][0]: _READERS[name][1](content) for name, content in found.items()}
    return Reproduced("all", **parts, complete=all(part.complete for part in parts.values()))


#: The name of a record's file, and which part of :class:`Reproduced` it holds.
_READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "tables": ("tables", Reproduction.from_json),
    "roofline": ("roof", Roofline.from_json),
    "amortisation": ("amortized", amortization.Amortization.from_json),
}
