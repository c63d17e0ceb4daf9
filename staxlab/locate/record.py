"""What locating an error delivers: which prefixes were run and how they compared, and the layer that is at fault.

A :class:`Location` says it in a sentence, lists every :class:`Check`, and names the :class:`Culprit` down to the rule,
the operator or the kernel, with the user's lines and the first wrong element.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..measure.agreement import Agreement, Difference
from ..measure.tables import Table, Tabular, seconds_text
from ..provenance import NO_ORIGINS, Origins, SourceLocation

#: Where an error may sit, in the order of the pipeline: name, title, section.
LAYERS: tuple[tuple[str, str, str], ...] = (
    ("capture", "Capture", "Section 3"),
    ("transforms", "Graph transformation", "Section 4"),
    ("joint", "Joint graph", "Section 5.3"),
    ("partition", "Rematerialization", "Section 5.4"),
    ("operators", "Operator graph", "Sections 4.8 and 5.1"),
    ("loops", "Lowering", "Section 6"),
    ("schedule", "Schedule", "Section 7"),
    ("kernels", "Code generation", "Sections 8 and 9"),
    ("wrapper", "Wrapper", "Section 8.5"),
    ("artifact", "Program", "Sections 8.5 and 11.3"),
    ("dispatch", "Guards and dispatch", "Section 2"),
)

#: The part that is named where a layer does not take the program at all.
REFUSED = "refuses the function"

TITLES = {name: title for name, title, _ in LAYERS}


@dataclass(frozen=True)
class Check:
    """One prefix of the pipeline that was run and compared with eager execution.

    ``layers`` are those that the prefix adds to what was found right before. ``verdict`` is "equal bit for bit",
    "within the bound", "WRONG", "RAISED", or "not covered"; ``held_to`` is "bit for bit" or "rounding". ``inside``
    marks the checks of the bisection, after one of the backends was wrong; ``sample`` numbers the inputs.
    """

    name: str
    what: str
    layers: tuple[str, ...]
    verdict: str
    held_to: str
    agreement: Agreement | None
    seconds: float
    sample: int = 0
    inside: bool = False
    note: str = ""

    @property
    def right(self) -> bool:
        return self.verdict not in ("WRONG", "RAISED")


@dataclass(frozen=True)
class Culprit:
    """Where the first error is made. ``layer`` is one of :data:`LAYERS`; ``part`` names what of it ("decomposition of
    aten.addcmul", "pass Normalize, rule x + 0 -> x", "kernel fused_add_0"), ``reason`` says how that was found out.
    ``sources`` are lines of the user's program, ``difference`` the first wrong element, ``half`` "forward" or
    "backward" of a region with gradients."""

    layer: str
    part: str
    reason: str = ""
    difference: Difference | None = None
    sources: tuple[SourceLocation, ...] = ()
    origins: Origins = NO_ORIGINS
    half: str = ""

    @property
    def title(self) -> str:
        return TITLES[self.layer]

    def __str__(self) -> str:
        half = f" of the {self.half} half" if self.half else ""
        return f"{self.title}{half}: {self.part}"


@dataclass(frozen=True, repr=False)
class Location(Tabular):
    """Where compiled and eager execution part (Algorithm 11.1).

    ``culprit`` is None where nothing is wrong within what rounding allows; ``uncovered`` then still says what has no
    kernel and runs through PyTorch's operators. ``checks`` are in the order they were made. ``script`` is a small
    program that shows the error, written to ``path`` if that was asked for; ``notes`` say what could not be done.
    ``samples`` is how many inputs were tried, ``seconds`` how long it all took.
    """

    function: str
    backend: str
    checks: tuple[Check, ...]
    culprit: Culprit | None = None
    uncovered: str = ""
    script: str = field(default="", repr=False)
    path: str = ""
    notes: tuple[str, ...] = ()
    samples: int = 1
    seconds: float = 0.0

    @property
    def found(self) -> str:
        """The layer at fault; "not covered" or "no error" where there is none."""
        if self.culprit is not None:
            return self.culprit.layer
        return "not covered" if self.uncovered else "no error"

    @property
    def verdict(self) -> str:
        """All of it in a sentence."""
        if self.culprit is not None and self.culprit.part == REFUSED:
            return f"{self.function} is not compiled: {self.culprit.title.lower()} refuses it"
        if self.culprit is not None:
            return f"{self.function} goes wrong in {self.culprit}"
        if not self.checks or any(not check.right for check in self.checks):
            return f"{self.function}: nothing can be said; {'; '.join(self.notes)}"
        judged = [check for check in self.checks if check.agreement is not None]
        share = max((check.agreement.share for check in judged), default=0.0)
        how = "bit for bit" if all(check.agreement.identical for check in judged) else (
            f"within rounding, the largest difference being {share:.2g} of its bound"
        )  # fmt: skip
        many = f" on {self.samples} samples" if self.samples > 1 else ""
        covered = f"; not covered by kernels: {self.uncovered}" if self.uncovered else ""
        return f"{self.function}: no error, every prefix agrees with eager execution {how}{many}{covered}"

    def table(self) -> Table:
        columns = ("prefix", "verdict", "held to", "error / bound", "error", "bound", "bound in units", "time")
        rows = []
        for check in self.checks:
            found = check.agreement
            cells = ("", "", "", "")
            if found is not None and (found.identical or found.difference is None or found.bound):
                cells = (f"{found.share:.3g}", f"{found.error:.3g}", f"{found.bound:.3g}", f"{found.condition:.3g}")
            name = f"  {check.name}" if check.inside else check.name
            if self.samples > 1:
                name += f" #{check.sample}"
            rows.append((name, check.verdict, check.held_to, *cells, seconds_text(check.seconds)))
        notes = []
        if self.culprit is not None:
            notes += [str(self.culprit.difference)] if self.culprit.difference is not None else []
            notes += [self.culprit.reason] if self.culprit.reason else []
            notes += [f"from {source}" for source in self.culprit.sources]
        notes += [f"{check.name}: {check.note}" for check in self.checks if check.note]
        notes += self.notes
        if self.path:
            notes.append(f"a small program that shows it: {self.path}")
        elif self.script:
            notes.append("a small program that shows it: location.script")
        return Table.build(self.verdict, columns, rows, tuple(notes), 3)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def first_line(error: Exception) -> str:
    """What an error says, without details."""
    said = str(error).strip().splitlines()
    return said[0] if said else type(error).__name__
