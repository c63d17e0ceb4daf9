"""What a reproduction of Tables 13.1 and 13.2 found, as records (Section 13.2): to be printed, drawn, kept and read.

A :class:`CaseRun` is a case with its byte model and its rounds; a :class:`Reproduction` is all of them, with the
machine and the versions they were measured with. Its table sets this machine beside the text; its picture is Figure
13.1.
:mod:`.reproduce` measures.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .chapter_cases import SINGLE_OPERATORS, Reported
from .rounds import Rounds, Verdict, round_name
from .speedup import SpeedupDecomposition, decompose
from .tables import Table, Tabular, quantity_text, seconds_text
from .timing import Ratio

FORMAT = "staxlab-reproduction-1"

#: The format of a file with all records of ``staxlab reproduce``: this one's as "tables", and others.
REPRODUCED = "staxlab-reproduced-1"


@dataclass(frozen=True, repr=False)
class CaseRun(Tabular):
    """One case. ``traffic`` has for "eager" and "compiled" the bytes read and written and the operations of the byte
    model; ``roofs`` has for each round the bandwidths of the probes and the share of its roof each side reached.

    ``first_calls`` (seconds, compilation included), ``errors`` (relative to double precision) and ``problems`` are by
    side; a side with a problem was not timed.
    """

    name: str
    title: str
    table_number: str
    size: tuple[int, int]
    traffic: Mapping[str, Mapping[str, int]]
    rounds: Rounds
    roofs: tuple[Mapping[str, Any], ...] = ()
    kernels: tuple[str, ...] = ()
    first_calls: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    reported: Reported = field(default_factory=Reported)

    def nbytes(self, side: str, *, write_allocate: bool = False) -> int:
        """Bytes of "eager" or "compiled" by the byte model; with ``write_allocate`` as an ordinary store moves them,
        which first reads what it overwrites. KeyError where nothing was compiled."""
        of = self.traffic[side]
        return of["read"] + (2 if write_allocate else 1) * of["written"]

    def rho(self, *, write_allocate: bool = False) -> float:
        """``b_e / b_c`` of the kernels that ran (Definition 13.2); NaN where nothing was compiled."""
        if not self.traffic:
            return math.nan
        eager, compiled = (self.nbytes(side, write_allocate=write_allocate) for side in ("eager", "compiled"))
        return eager / compiled if compiled else math.nan

    def speedups(self, side: str = "compiled") -> tuple[Ratio, ...]:
        """``S`` of each round, medians of pairwise ratios; empty for a side that was not timed."""
        return self.rounds.ratios(side) if side in self.rounds.names else ()

    def decompositions(self) -> tuple[SpeedupDecomposition, ...]:
        """Proposition 13.3, round by round."""
        if not self.traffic:
            return ()
        sizes = self.nbytes("eager"), self.nbytes("compiled")
        timed = ((c["eager"], c["compiled"]) for c in self.rounds.rounds if "compiled" in self.rounds.names)
        return tuple(decompose(*sizes, e, c) for e, c in timed if e.readings and c.readings)

    def share(self, number: int, side: str = "compiled") -> Mapping[str, Any] | None:
        """Share of the roof of a side in a round: median and interval; None where it was not measured."""
        return self.roofs[number]["shares"].get(side) if number < len(self.roofs) else None

    def verdict(self, side: str = "compiled") -> Verdict | None:
        """Whether the side's speedup over eager is established (Section 13.5); None for one that was not timed."""
        return self.rounds.verdict(side) if self.speedups(side) else None

    def table(self) -> Table:
        """Round by round: times, effective bandwidths, shares of the roof."""
        rows = []
        for number, found in enumerate(self.decompositions()):
            for side, seconds, rate in (("eager", found.eager_seconds, found.eager_bandwidth),
                                        ("compiled", found.compiled_seconds, found.compiled_bandwidth)):  # fmt: skip
                rows.append((f"{side}, round {round_name(number)}", seconds_text(seconds), quantity_text(rate, "B/s"),
                             _share_text(self.share(number, side)),
                             _ratio_text(found.ratio) if side == "compiled" else "",
                             f"{found.quality:.3g}" if side == "compiled" else ""))  # fmt: skip
        for side in (name for name in self.rounds.names if name not in ("eager", "compiled")):
            for number, ratio in enumerate(self.speedups(side)):
                time = seconds_text(self.rounds.rounds[number][side].median)
                rows.append((f"{side}, round {round_name(number)}", time, "", "", _ratio_text(ratio), ""))
        columns = ("side", "median", "effective bandwidth", "share of the roof", "S", "beta_c / beta_e")
        return Table.build(f"{self.title}, {'x'.join(map(str, self.size))}", columns, rows, self._notes())

    def _notes(self) -> list[str]:
        notes = []
        if self.traffic:
            notes.append(
                f"rho = {self.rho():.3g} by the bytes of {len(self.kernels)} kernel(s), "
                f"{self.rho(write_allocate=True):.3g} with write-allocate; S = rho * beta_c / beta_e (Proposition 13.3)"
            )
            notes += [f"round {round_name(r)}: {d.obstacle}" for r, d in enumerate(self.decompositions()) if d.obstacle]
        if verdict := self.verdict():
            notes.append(str(verdict))
        if said := reported_text(self.reported):
            notes.append(said)
        return [*notes, *(f"{side}: {problem}" for side, problem in self.problems.items())]

    def to_json(self) -> dict[str, Any]:
        verdict = self.verdict()
        return {
            "case": self.name, "title": self.title, "table": self.table_number, "size": list(self.size),
            "traffic": {side: dict(of) for side, of in self.traffic.items()},
            "rho": _number(self.rho()), "rho_with_write_allocate": _number(self.rho(write_allocate=True)),
            "kernels": list(self.kernels), "first_calls_s": dict(self.first_calls),
            "errors": {side: _number(error) for side, error in self.errors.items()}, "problems": dict(self.problems),
            "rounds": self.rounds.to_json(), "roofs": [dict(roof) for roof in self.roofs],
            "decompositions": [found.to_json() for found in self.decompositions()],
            "verdict": verdict.to_json() if verdict else None, "reported": asdict(self.reported),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CaseRun:
        reported = data["reported"]
        return cls(
            data["case"], data["title"], data["table"], tuple(data["size"]), data["traffic"],
            Rounds.from_json(data["rounds"]), tuple(data["roofs"]), tuple(data["kernels"]), data["first_calls_s"],
            {side: math.inf if error is None else error for side, error in data["errors"].items()}, data["problems"],
            Reported(reported["rho"], tuple(reported["speedups"]), reported["remark"]),
        )  # fmt: skip


@dataclass(frozen=True, repr=False)
class Reproduction(Tabular):
    """Cases measured on a machine, beside the text. Prints as tables, draws Figure 13.1, keeps itself as JSON."""

    cases: tuple[CaseRun, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    date: str = ""
    notes: tuple[str, ...] = ()
    complete: bool = True

    def __getitem__(self, name: str) -> CaseRun:
        """A case by name. KeyError for one that was not measured."""
        for case in self.cases:
            if case.name == name:
                return case
        raise KeyError(f"no case named {name!r}; measured: {', '.join(case.name for case in self.cases)}")

    @property
    def where(self) -> str:
        """The device, and how many threads."""
        device = self.machine.get("device", "cpu")
        if device != "cpu":
            return str(device)
        return f"{self.machine.get('processor', 'this machine')}, {self.machine.get('threads', '?')} threads"

    @property
    def problems(self) -> tuple[str, ...]:
        """Sides that failed or were wrong."""
        return tuple(f"{case.title}: {side}: {said}" for case in self.cases for side, said in case.problems.items())

    @property
    def timed(self) -> tuple[CaseRun, ...]:
        """The cases whose compiled side was timed."""
        return tuple(case for case in self.cases if case.traffic and case.speedups())

    def table_13_1(self) -> Table:
        """The cases of Table 13.1: rho, S by round, effective bandwidths and shares of the roof, beside the text."""
        return self._table("Table 13.1: eager and compiled execution, rounds A / B", "13.1")

    def table_13_2(self) -> Table:
        """The single operators of Table 13.2, in the same columns."""
        return self._table("Table 13.2: single operators, rounds A / B", "13.2", [SINGLE_OPERATORS])

    def _table(self, caption: str, number: str, notes: Sequence[str] = ()) -> Table:
        columns = ["case", "rho", "with write-allocate", "eager", "compiled", "S", "beta_e", "beta_c",
                   "beta_c / beta_e", "roof", "established", "text: rho", "text: S"]  # fmt: skip
        of = [case for case in self.timed if case.table_number == number]
        rows = [self._row(case) for case in of]
        said = [reported_text(case.reported, case.title) for case in of if case.reported.remark]
        return Table.build(f"{caption}, {self.where}", columns, rows, [*said, *notes])

    def _row(self, case: CaseRun) -> list[str]:
        found = case.decompositions()
        rounds = range(len(found))
        verdict, rho = case.verdict(), case.reported.rho
        return [
            case.title,
            f"{case.rho():.3g}",
            f"{case.rho(write_allocate=True):.3g}",
            " / ".join(seconds_text(d.eager_seconds) for d in found),
            " / ".join(seconds_text(d.compiled_seconds) for d in found),
            " / ".join(_ratio_text(d.ratio) for d in found),
            " / ".join(quantity_text(d.eager_bandwidth, "B/s") for d in found),
            " / ".join(quantity_text(d.compiled_bandwidth, "B/s") for d in found),
            " / ".join(f"{d.quality:.3g}" for d in found),
            " / ".join(f"{share['median']:.0%}" if (share := case.share(r)) else "–" for r in rounds),
            "yes" if verdict and verdict.established else "no",
            "–" if rho is None else f"{rho:g}",
            case.reported.speedup_text(),
        ]

    def table(self) -> Table:
        """Both tables in one, in the order of the text."""
        rows = [self._row(case) for case in self.timed]
        base = self.table_13_1()
        notes = [
            "rho: bytes of the operators eager ran over bytes of the kernels that were made; with write-allocate, each "
            "line that is written is read first",
            "S: median of pairwise ratios and its interval; roof: share of the bandwidth in the same readings, for the "
            "kernel's own mix of reads and writes",
            *(reported_text(c.reported, c.title) for c in self.timed if c.reported.remark),
            SINGLE_OPERATORS if any(c.table_number == "13.2" for c in self.timed) else "",
            *(f"{case.title}: {verdict.reason}" for case in self.timed
              if (verdict := case.verdict()) and not verdict.established),
            *self.notes, *self.problems, *self._peer_notes(),
        ]  # fmt: skip
        if not self.complete:
            notes.append("interrupted: what was measured until then")
        return Table.build(f"Tables 13.1 and 13.2, rounds A / B, {self.where}", base.columns, rows, notes)

    def _peer_notes(self) -> list[str]:
        """What other peers reached, a line each."""
        said = []
        for case in self.cases:
            for side in case.rounds.names:
                if side not in ("eager", "compiled") and (ratios := case.speedups(side)):
                    said.append(
                        f"{case.title}: {side} " + " / ".join(map(_ratio_text, ratios)) + " times eager's speed"
                    )
        return said

    def __repr__(self) -> str:
        from ..view.reproduce import text_figure

        return f"{self.table().text()}\n\n{text_figure(self)}"

    __str__ = __repr__

    def description(self) -> str:
        """Figure 13.1 in words: every point."""
        parts = [f"Measured speedup S against the model byte ratio rho on {self.where}; the line is S = rho."]
        for case in self.timed:
            values = " and ".join(f"{ratio.median:.3g}" for ratio in case.speedups())
            parts.append(f"{case.title}: rho {case.rho():.3g}, S {values}.")
        return " ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types; :meth:`from_json` is its inverse."""
        return {
            "format": FORMAT, "date": self.date, "command": self.command, "machine": dict(self.machine),
            "versions": dict(self.versions), "settings": dict(self.settings), "notes": list(self.notes),
            "complete": self.complete, "cases": [case.to_json() for case in self.cases],
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reproduction:
        """ValueError for data of another format."""
        if data.get("format") != FORMAT:
            raise ValueError(f"no reproduction written by this version (format {data.get('format')!r})")
        return cls(
            tuple(CaseRun.from_json(case) for case in data["cases"]), data["settings"], data["machine"],
            data["versions"], data["command"], data["date"], tuple(data["notes"]), data["complete"],
        )  # fmt: skip

    @classmethod
    def load(cls, path: str | Path) -> Reproduction:
        """Read what ``staxlab reproduce --out`` wrote. ValueError for a file of another kind."""
        return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))


def reported_text(reported: Reported, title: str = "") -> str:
    """What the text says of a case, as a sentence; empty where it names nothing."""
    said = [f"rho {reported.rho:g}"] if reported.rho is not None else []
    if any(s is not None for s in reported.speedups):
        said.append(f"S {reported.speedup_text()}")
    said += [reported.remark] if reported.remark else []
    return f"the text has{' for ' + title if title else ''}: {'; '.join(said)}" if said else ""


def _ratio_text(ratio: Ratio | None) -> str:
    if ratio is None:
        return "–"
    interval = ratio.interval
    return f"{ratio.median:.3g} [{interval.low:.3g}, {interval.high:.3g}]" if interval else f"{ratio.median:.3g}"


def _share_text(share: Mapping[str, Any] | None) -> str:
    if not share:
        return "–"
    return f"{share['median']:.0%} [{share['interval']['low']:.0%}, {share['interval']['high']:.0%}]"


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
