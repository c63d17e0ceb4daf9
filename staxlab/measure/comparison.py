"""Four aspects in which systems that compile Python functions differ, shown by running them (Section 12, Exercise 32).

====================================  =====================  ================================  =========================
aspect                                staxlab                TorchDynamo                       JAX
====================================  =====================  ================================  =========================
how a program is captured             run with proxies that  bytecode is executed              run with abstract values
                                      have values            symbolically
``data-dependent control flow``       a condition of reuse   a break between two graphs        an error
``Python side effects``               once per version       replayed at every call            once per trace
``degree of specialization``          values of numbers,     values until a second one comes,  types and shapes
                                      shapes, answers        then symbols
``compilation failure``               operators, one by one  an error, or eager if asked to    an error
====================================  =====================  ================================  =========================

The table says what to expect; what a reader is shown is counted. ``python -m benchmarks.systems observe`` makes calls
of small programs and writes down, after each, how many graphs the system has compiled, how often the program's effect
has happened, and whether the value was right. What it found is kept beside this module, with the versions it was found
with (:func:`observations`); where a system is installed, and the package is a checkout, :func:`observe_again` asks it
anew. No entry of any table comes from anywhere else.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import OptionError
from .saved_runs import results_directory
from .tables import Table, Tabular

COMMAND = "python -m benchmarks.systems observe"
FORMAT = "staxlab-systems-1"
PACKAGES = {"own": "torch", "dynamo": "torch", "xla": "jax", "halide": "halide", "tvm": "tvm"}
#: How a package is called in a record's versions, for each system.
VERSIONS = {
    "own": ("staxlab", "torch"), "dynamo": ("torch",), "xla": ("jax", "jaxlib"), "halide": ("halide",),
    "tvm": ("apache-tvm",),
}  # fmt: skip
SAVED = Path(__file__).with_name("observed_systems.json")
RIGHT = "right"
#: A system that takes longer than this over one look at all programs has come to a halt.
SECONDS_AT_MOST = 120


@dataclass(frozen=True)
class ComparedProgram:
    """A program and the sequences of calls it was observed in, each as ``"+4, 2; +4, 3"``: a signed shape stands for a
    tensor of ones or minus ones, "h" for half precision. ``jax`` is its text in JAX's words."""

    name: str
    title: str
    aspect: str
    source: str
    jax: str
    sequences: tuple[str, ...]

    @property
    def same_words(self) -> bool:
        return self.source == self.jax


@dataclass(frozen=True)
class Observed:
    """One sequence of calls through one system: after each call the graphs compiled so far, the effects so far and the
    outcome; the first lines of errors and the categories of warnings."""

    graphs: tuple[int, ...]
    effects: tuple[int, ...]
    outcomes: tuple[str, ...]
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def refused(self) -> bool:
        """Whether no call gave a value."""
        return all(outcome.endswith(("Error", "Exception")) for outcome in self.outcomes)

    @property
    def said(self) -> str:
        return "; ".join((*self.errors, *self.warnings)) or "–"

    def outcome(self) -> str:
        """The outcomes in one word if they are all the same."""
        return self.outcomes[0] if len(set(self.outcomes)) == 1 else ", ".join(self.outcomes)


@dataclass(frozen=True)
class System:
    """What was observed of one system. ``missing`` says why nothing was; ``fresh`` names what was observed just now:
    programs (their first sequence, and their key), "failures" and "structure"; the rest was observed with the version
    ``kept``."""

    name: str
    title: str
    version: str
    runs: Mapping[str, tuple[Observed, ...]]
    pairs: Mapping[str, tuple[str, ...]]
    keys: Mapping[str, tuple[str, ...]]
    failures: Mapping[str, Mapping[str, str]]
    structure: Mapping[str, Any]
    missing: str = ""
    fresh: frozenset[str] = frozenset()
    kept: str = ""

    @property
    def watched(self) -> bool:
        """Whether it was given programs."""
        return bool(self.runs)


@dataclass(frozen=True, repr=False)
class Observations(Tabular):
    """All programs and systems; ``date`` and ``command`` of the run that is kept. ``notes`` say what could not be
    observed anew."""

    programs: Mapping[str, ComparedProgram]
    systems: Mapping[str, System]
    date: str
    command: str
    notes: tuple[str, ...] = ()

    def program(self, name: str) -> ComparedProgram:
        """OptionError for an unknown name."""
        if name not in self.programs:
            raise OptionError(f"no program is called {name!r}", remedy=f"there are {', '.join(self.programs)}")
        return self.programs[name]

    @property
    def watched(self) -> tuple[System, ...]:
        return tuple(system for system in self.systems.values() if system.watched)

    def of(self, system: str, program: str, sequence: int = 0) -> Observed:
        """One observation. OptionError where there is none."""
        self.program(program)
        runs = self.systems[system].runs.get(program, ()) if system in self.systems else ()
        if sequence >= len(runs):
            raise OptionError(f"{system} was not observed with {program}, sequence {sequence}", remedy=COMMAND)
        return runs[sequence]

    def behaviour(self, program: str, sequence: int = 0) -> Behaviour:
        """What every system did with a program in one of its sequences."""
        described = self.program(program)
        if not 0 <= sequence < len(described.sequences):
            raise OptionError(f"{program} has {len(described.sequences)} sequences, numbered from 0")
        rows = tuple((system, self.of(system.name, program, sequence)) for system in self.watched)
        source = self.source("" if sequence else program)
        return Behaviour(described, described.sequences[sequence], rows, source)

    def failure(self) -> FailureTable:
        """What each system did where the compiler itself could not go on."""
        rows = tuple((s.title, setting, found["outcome"], found["said"]) for s in self.watched
                     for setting, found in s.failures.items())  # fmt: skip
        return FailureTable(rows, self.source("failures"))

    def shared(self, program: str, system: str) -> Shared:
        """Which pairs of calls share a compilation in a system."""
        described = self.program(program)
        found = self.systems[system].pairs.get(program) if system in self.systems else None
        if not found:
            raise OptionError(f"no pairs of calls of {program} were observed in {system}", remedy=COMMAND)
        return Shared(self.systems[system].title, described, tuple(described.sequences[0].split("; ")), found)

    def key(self, program: str) -> KeyTable:
        """What each system knew a program's first compilation to be specialized to, in its own words."""
        self.program(program)
        return KeyTable(program, tuple((s.title, s.keys.get(program, ())) for s in self.watched), self.source(program))

    def source(self, what: str, systems: Sequence[str] | None = None) -> str:
        """In which systems ``what`` (a program, "failures", "structure") was observed just now, and in which at another
        time; of ``systems``, or of all that are given programs."""
        asked = [self.systems[name] for name in systems] if systems is not None else self.watched
        now = [f"{s.title} ({s.version})" for s in asked if what in s.fresh]
        kept = [f"{s.title} ({s.kept or s.version})" for s in asked if what not in s.fresh]
        parts = [f"observed just now: {', '.join(now)}"] if now else []
        parts += [f"observed on {self.date[:10]} by {self.command}: {', '.join(kept)}"] if kept else []
        return "; ".join(parts)

    def table(self) -> Table:
        rows = [
            (s.title, s.version, "just now" if s.fresh else self.date[:10], sum(map(len, s.runs.values())),
             len(s.structure))
            for s in self.systems.values()
        ]  # fmt: skip
        columns = ("system", "version", "observed", "sequences of calls", "functions looked at")
        return Table.build("The systems, and what was observed of them", columns, rows, self.notes, text_columns=3)


@dataclass(frozen=True, repr=False)
class Behaviour(Tabular):
    """What every system did with one ``program`` in the calls of ``sequence``: a row for each."""

    program: ComparedProgram
    sequence: str
    rows: tuple[tuple[System, Observed], ...]
    source: str

    def of(self, title: str) -> Observed:
        """The row of a system by its name or title. KeyError for another."""
        return {name: found for system, found in self.rows for name in (system.name, system.title)}[title]

    def table(self) -> Table:
        rows = [
            (system.title, _counts(found.graphs), _counts(found.effects), found.outcome(), found.said)
            for system, found in self.rows
        ]
        effects = any(any(found.effects) for _, found in self.rows)
        keep = [0, 1, *([2] if effects else []), 3, 4]
        columns = ("system", "graphs so far", "effects so far", "values", "said")
        notes = [f"calls: f({self.sequence.replace('; ', '), f(')})", self.source]
        return Table.build(
            f"{self.program.aspect}: {self.program.title}",
            [columns[place] for place in keep],
            [[row[place] for place in keep] for row in rows],
            notes,
            text_columns=len(keep),
        )


def _counts(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))


@dataclass(frozen=True, repr=False)
class FailureTable(Tabular):
    """Where a compiler has no rule for what it is given: system, setting, outcome, what it said."""

    rows: tuple[tuple[str, str, str, str], ...]
    source: str

    def table(self) -> Table:
        columns = ("system", "setting", "outcome", "said")
        rows = [(*row[:3], row[3] or "–") for row in self.rows]
        return Table.build("compilation failure", columns, rows, [self.source], text_columns=4)


@dataclass(frozen=True, repr=False)
class KeyTable(Tabular):
    """What the first compilation of a program rests on in each system: conditions, as the system prints them."""

    program: str
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    source: str

    def table(self) -> Table:
        longest = max((len(conditions) for _, conditions in self.rows), default=0)
        cells = [[(*conditions, *[""] * longest)[place] for _, conditions in self.rows] for place in range(longest)]
        columns = ["", *(f"{title}: {len(conditions)}" for title, conditions in self.rows)]
        rows = [[str(place + 1), *row] for place, row in enumerate(cells)]
        return Table.build(f"What {self.program} is specialized to", columns, rows, [self.source], len(columns))


@dataclass(frozen=True, repr=False)
class Shared(Tabular):
    """For every pair of ``calls`` whether the second (across) needs no compilation after the first (down): "=" in
    ``marks``."""

    system: str
    program: ComparedProgram
    calls: tuple[str, ...]
    marks: tuple[str, ...]

    def together(self, first: int, second: int) -> bool:
        return self.marks[first][second] == "="

    def classes(self) -> tuple[tuple[str, ...], ...]:
        """The calls divided by what they share, in order of their first member."""
        found: list[list[int]] = []
        for place in range(len(self.calls)):
            home = next((group for group in found if self.together(group[0], place)), None)
            found.append([place]) if home is None else home.append(place)
        return tuple(tuple(self.calls[place] for place in group) for group in found)

    def table(self) -> Table:
        rows = [(call, *row) for call, row in zip(self.calls, self.marks, strict=True)]
        note = f"{len(self.classes())} classes of {len(self.calls)} calls; =: no compilation after the call at left"
        title = f"{self.system}: calls of {self.program.name} that share a compilation"
        return Table.build(title, ("first call \\ second", *self.calls), rows, [note], len(self.calls) + 1)


# --- Reading what was observed ----------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def observations() -> Observations:
    """What is kept beside this module: found by ``python -m benchmarks.systems observe`` with the versions it names.

    OptionError where the file is damaged.
    """
    try:
        return read(json.loads(SAVED.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"{SAVED.name} cannot be read: {error!r}", remedy=f"{COMMAND} --out staxlab/measure/{SAVED.name}"
        ) from None


def read(record: Mapping[str, Any], live: bool = False) -> Observations:
    """A record of the command as observations; ``live`` if it was made just now. OptionError for one of another
    kind."""
    if record.get("format") != FORMAT:
        raise OptionError(f"a record of the format {record.get('format')!r} is no comparison", remedy=COMMAND)
    programs = {
        name: ComparedProgram(name, p["title"], p["aspect"], p["source"], p["jax"], tuple(p["sequences"]))
        for name, p in record["programs"].items()
    }
    systems = {name: _system(name, found, record["versions"], live) for name, found in record["systems"].items()}
    return Observations(programs, systems, record["date"], record["command"])


def _system(name: str, found: Mapping[str, Any], versions: Mapping[str, str], live: bool) -> System:
    runs = {program: tuple(map(_observed, entries)) for program, entries in found.get("runs", {}).items()}
    pairs = {program: tuple(rows) for program, rows in found.get("pairs", {}).items()}
    keys = {program: tuple(conditions) for program, conditions in found.get("keys", {}).items()}
    version = ", ".join(f"{what} {versions[what]}" for what in VERSIONS.get(name, ()) if what in versions)
    failures, structure = found.get("failures", {}), found.get("structure", {})
    now = (*runs, *(["failures"] if failures else []), *(["structure"] if structure else []))
    return System(
        name, found.get("title", name), version, runs, pairs, keys, failures, structure, found.get("missing", ""),
        frozenset(now if live else ()),
    )  # fmt: skip


def _observed(entry: Mapping[str, Any]) -> Observed:
    return Observed(
        tuple(map(int, entry["graphs"].split())),
        tuple(map(int, entry["effects"].split())),
        tuple(entry["outcomes"].split(", ")),
        tuple(entry["errors"]),
        tuple(entry["warnings"]),
    )


def numbers_of(sequence: str) -> tuple[tuple[Any, ...], ...]:
    """The calls of a sequence's text: tensors as they are written, numbers as Python's."""

    def argument(text: str) -> Any:
        if text[0] in "+-":
            return text
        return float(text) if "." in text else int(text)

    return tuple(tuple(argument(part) for part in call.split(", ")) for call in sequence.split("; "))


# --- Observing anew ---------------------------------------------------------------------------------------------------


def _run_command(arguments: Sequence[str]) -> Mapping[str, Any]:
    """The record of ``python -m benchmarks.systems observe`` with these arguments, run from the checkout."""
    root = results_directory().parents[1]
    command = [sys.executable, "-m", "benchmarks.systems", "observe", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=SECONDS_AT_MOST, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def observe_again(
    systems: Sequence[str] = ("own", "dynamo", "xla", "halide", "tvm"),
    programs: Sequence[str] | None = None,
    structure: bool = True,
    run: Callable[[Sequence[str]], Mapping[str, Any]] | None = None,
) -> Observations:
    """The kept observations, with those of ``systems`` replaced by what they do now: the first sequence of each of
    ``programs`` (default: all), each system in a process of its own, since a process that has loaded a compiler is no
    longer the one that is being explained. What cannot be observed keeps its entry, and ``notes`` say why.
    """
    kept = observations()
    unknown = [*(s for s in systems if s not in PACKAGES), *(p for p in programs or () if p not in kept.programs)]
    if unknown:
        raise OptionError(f"nothing is called {', '.join(unknown)}", remedy=f"systems are {', '.join(PACKAGES)}")
    absent = [s for s in systems if importlib.util.find_spec(PACKAGES[s]) is None]
    notes = [f"{kept.systems[s].title}: {PACKAGES[s]} is not installed; what is shown was observed before"
             for s in absent if s in kept.systems]  # fmt: skip
    wanted = [s for s in systems if s not in absent]
    if not (results_directory().parent / "systems" / "__main__.py").exists():
        return replace(kept, notes=("this is no checkout of the project: what is shown was observed before",))
    found: Observations | None = None
    if wanted:
        arguments = ["--first", "--systems", ",".join(wanted)]
        arguments += [] if programs is None else ["--programs", ",".join(programs)]
        arguments += [] if structure else ["--no-structure"]
        try:
            found = read((run or _run_command)(arguments), live=True)
        except (subprocess.SubprocessError, OSError, ValueError) as error:
            notes.append(f"observing anew failed ({type(error).__name__}); what is shown was observed before")
    merged = dict(kept.systems)
    for name, system in (found.systems if found is not None else {}).items():
        if system.missing:
            notes.append(f"{merged[name].title}: {system.missing}; what is shown was observed before")
            continue
        merged[name] = _merged(merged[name], system)
    return replace(kept, systems=merged, notes=tuple(notes))


def _merged(kept: System, now: System) -> System:
    """What a system does now, and what was kept of it where it was not asked."""
    runs = dict(kept.runs)
    for name, found in now.runs.items():
        runs[name] = (*found, *kept.runs.get(name, ())[len(found) :])
    return replace(
        now,
        runs=runs,
        pairs=kept.pairs,
        keys={**kept.keys, **now.keys},
        failures=now.failures or kept.failures,
        structure=now.structure or kept.structure,
        kept=kept.version,
    )
