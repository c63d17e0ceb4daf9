"""Calling a program and writing down what happened: the counting that is the same for every system.

After each call three numbers are known: how many graphs the system has compiled so far, how often the program's effect
has happened so far, and whether the result was the one that the program itself gives. Nothing is typed in.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from benchmarks.systems.programs import Call, Program, function_of, shape_of

RIGHT, WRONG = "right", "wrong value"


class Watched(Protocol):
    """One program in the hands of one system: what to call, and how many graphs it has compiled so far."""

    call: Callable[..., Any]

    def graphs(self) -> int: ...


@dataclass
class Run:
    """What happened in a sequence: after each call the graphs compiled so far, the effects so far, the outcome
    ("right", "wrong value" or the error's type); first lines of errors, and categories of warnings."""

    graphs: list[int] = field(default_factory=list)
    effects: list[int] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Lists that have an entry for each call are written in one line."""
        return {
            "graphs": " ".join(map(str, self.graphs)),
            "effects": " ".join(map(str, self.effects)),
            "outcomes": ", ".join(self.outcomes),
            "errors": self.errors,
            "warnings": self.warnings,
        }


class System(Protocol):
    """A system that can be watched. ``library`` is "torch" or "jax": in whose words it is given a program."""

    name: str
    title: str
    library: str

    def make(self, argument: Any) -> Any:
        """An argument of a call, from how it is written."""
        ...

    def values(self, result: Any) -> Any:
        """A result as nested lists of Python numbers."""
        ...

    def take(self, program: Program, log: list[str]) -> Watched:
        """The program, compiled anew by this system, with ``log`` as its list."""
        ...


def torch_argument(argument: Any) -> Any:
    """A call's argument for PyTorch."""
    if not isinstance(argument, str):
        return argument
    sign, shape, half = shape_of(argument)
    return torch.full(shape, float(sign), dtype=torch.float16 if half else torch.float32)


def expected(program: Program, call: Call) -> Any:
    """The values that the program itself gives, in plain Python and eager PyTorch."""
    plain = function_of(program.source, {"torch": torch, "log": []}, f"<{program.name}, plain>")
    with contextlib.redirect_stdout(io.StringIO()):
        return plain(*map(torch_argument, call)).tolist()


def watch(system: System, program: Program, sequence: Sequence[Call]) -> Run:
    """Give a program to a system and make the calls of a sequence."""
    run, log, printed = Run(), [], io.StringIO()
    watched = system.take(program, log)
    for call in sequence:
        wanted = expected(program, call)
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(printed):
            warnings.simplefilter("always")
            try:
                got = system.values(watched.call(*map(system.make, call)))
                run.outcomes.append(RIGHT if got == wanted else WRONG)
            except Exception as error:  # what a system refuses is a finding
                run.outcomes.append(type(error).__name__)
                _add(run.errors, f"{type(error).__name__}: {first_line(error)}")
        for warning in caught:
            _add(run.warnings, warning.category.__name__)
        run.graphs.append(watched.graphs())
        run.effects.append(len(log) + len(printed.getvalue().splitlines()))
    return run


def first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")


def _add(found: list[str], text: str) -> None:
    if text not in found:
        found.append(text)


def shared(system: System, program: Program, calls: Sequence[Call]) -> list[str]:
    """A row for every first call and in it a mark for every second one: "=" where the second needed no compilation
    after the first alone, "." where it did."""
    table = []
    for first in calls:
        row = ""
        for second in calls:
            run = watch(system, program, (first, second))
            if run.outcomes != [RIGHT, RIGHT]:
                raise ValueError(f"{system.title} does not take {program.name} with {first} and {second}: {run}")
            row += "=" if run.graphs[1] == run.graphs[0] else "."
        table.append(row)
    return table


def observe(system: System, programs: Sequence[Program], first: bool = False) -> dict[str, Any]:
    """Everything a system does with the programs, as JSON: runs by program, in the order of their sequences. With
    ``first`` only the first sequence of each, and no pairs of calls."""
    runs = {
        program.name: [watch(system, program, s).to_json() for s in program.sequences[: 1 if first else None]]
        for program in programs
    }
    if first:
        return {"runs": runs}
    pairs = {program.name: shared(system, program, program.sequences[0]) for program in programs if program.pairs}
    return {"runs": runs, "pairs": pairs}


@contextlib.contextmanager
def silenced(*loggers: str) -> Iterator[None]:
    """Loggers that say nothing in the meantime: what they would say is counted here in other ways."""
    import logging

    before = {name: logging.getLogger(name).level for name in loggers}
    for name in loggers:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
