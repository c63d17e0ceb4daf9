"""The three outcomes of a shape guard against the declared ranges (Section 10.2, Definition 10.2).

1. *Implied*: every declared size satisfies it; it need not be checked.
2. *Violated by some* of the declared sizes, and it was the program's own code that decided: the recording would be
   wrong for them, so the export fails, and says for which range it would not.
3. *Kept* as an assertion: what operations take for granted (two sizes they put together are equal). The declaration
   does not say so, the sample does, and a call that breaks it is told so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import ConstraintError
from ..shapes.assertions import range_text
from ..shapes.environment import ShapeDecision, ShapeGuard
from .dimension import Dim

IMPLIED, VIOLATED, KEPT = "implied by the range", "violated by some of the range", "asserted at run time"


@dataclass(frozen=True)
class Adjudication:
    """A decision and what became of it: one of :data:`IMPLIED`, :data:`VIOLATED`, :data:`KEPT`."""

    decision: ShapeDecision
    condition: str
    outcome: str

    def __str__(self) -> str:
        where = f"   ({self.decision.location})" if self.decision.location else ""
        why = f"   {self.decision.text}" if self.decision.text else ""
        return f"{self.condition}: {self.outcome}{why}{where}"


def adjudicate(guard: ShapeGuard | None) -> tuple[Adjudication, ...]:
    """The outcome of every decision, in the order they were made; the implied ones last."""
    if guard is None:
        return ()
    rows = [(d, KEPT if d.assumed and not _fixes(d) else VIOLATED) for d in guard.decisions]
    rows += [(d, IMPLIED) for d in guard.implied]
    return tuple(Adjudication(d, guard.condition(d), outcome) for d, outcome in rows)


def _fixes(decision: ShapeDecision) -> bool:
    """Whether a decision leaves one value of a declared size: an operation puts it together with a size that was not
    declared, and the declaration means nothing."""
    relation = decision.relation
    return relation.comparison == "==" and len(relation.symbols) == 1 and relation.solutions() is not None


def require(adjudications: tuple[Adjudication, ...], dims: Mapping[str, Dim], hints: Mapping[str, int]) -> None:
    """Raise ConstraintError if a decision is violated by some of a declared range, with the declarations under which
    none is."""
    violated = [a for a in adjudications if a.outcome == VIOLATED]
    if not violated:
        return
    names = sorted({s.name for a in violated for s in a.decision.relation.symbols})
    lines = [f"constraints violated ({', '.join(names)}): the recorded program holds for only some declared sizes"]
    for a in violated:
        own = sorted(s.name for s in a.decision.relation.symbols)
        ranges = ", ".join(_declared(dims[name]) for name in own)
        decided = "relied on" if a.decision.assumed else "decided"
        where = f", {decided} at {a.decision.location}" if a.decision.location else ""
        lines.append(f"  - not all sizes with {ranges} satisfy {_sizes(a, dims)}{where}")
    raise ConstraintError("\n".join(lines), remedy="\n".join(["suggested fixes:", *suggestions(violated, dims, hints)]))


def suggestions(violated: list[Adjudication], dims: Mapping[str, Dim], hints: Mapping[str, int]) -> list[str]:
    """Declarations for which the decisions would be implied, one line each."""
    lines: dict[str, None] = {}
    narrowed: dict[str, tuple[float, float]] = {}
    for a in violated:
        relation = a.decision.relation
        symbols = sorted(relation.symbols, key=lambda symbol: symbol.name)
        if len(symbols) > 1:
            first, *others = (s.name for s in symbols)
            if relation.comparison == "==" and len(others) == 1:
                lines[f"    {others[0]} = {first}   (one Dim for both)"] = None
            else:
                lines[f"    leave one of {', '.join(s.name for s in symbols)} out of dims, or decide outside"] = None
            continue
        name = symbols[0].name
        if _fixes(a.decision):
            size = hints[name] * dims[name].multiple_of
            lines[f"    declare the other size that is {size} as {name}, too, or leave {name} out of dims"] = None
            continue
        around = relation.range_around(hints[name])
        if _multiples(a, dims):
            continue
        if around is None:
            size = hints[name] * dims[name].multiple_of
            lines[f"    leave {name} out of dims: it is then {size} at every call"] = None
            continue
        low, high = narrowed.get(name, (-math.inf, math.inf))
        narrowed[name] = (max(low, around[0]), min(high, around[1]))
    for name, (low, high) in narrowed.items():
        lines[f"    {_narrower(dims[name], low, high)}"] = None
    factors = {d.name: f for a in violated for d, f in _multiples(a, dims)}
    for name, factor in factors.items():
        row = dims[name]
        least = -(-row.min // factor) * factor
        bound = f", max={row.max}" if row.max is not None else ""
        lines[f'    {name} = Dim("{name}", min={least}{bound}, multiple_of={factor})'] = None
    return list(lines)


def _multiples(a: Adjudication, dims: Mapping[str, Dim]) -> list[tuple[Dim, int]]:
    """Of ``n % k == 0``: n and k."""
    relation = a.decision.relation
    if relation.comparison != "==" or len(relation.symbols) != 1 or len(relation.left.terms) != 1:
        return []
    ((monomial, coefficient),) = relation.left.terms
    if coefficient != 1 or len(monomial) != 1 or not hasattr(monomial[0], "denominator") or relation.right != 0:
        return []
    (symbol,) = relation.symbols
    atom = monomial[0]
    if type(atom).__name__ != "Modulo" or atom.numerator != symbol or not atom.denominator.is_constant:
        return []
    return [(dims[symbol.name], int(atom.denominator) * dims[symbol.name].multiple_of)]


def _narrower(row: Dim, low: float, high: float) -> str:
    factor = row.multiple_of
    if low == high:
        return f"leave {row.name} out of dims: it is then {int(low) * factor} at every call"
    parts = [f"{row.name} = Dim({row.name!r}, min={int(low) * factor}"]
    parts += [f"max={int(high) * factor}"] if not math.isinf(high) else []
    parts += [f"multiple_of={factor}"] if factor > 1 else []
    return f"{', '.join(parts)})"


def _declared(row: Dim) -> str:
    text = range_text(row.name, row.min, math.inf if row.max is None else row.max)
    return f"{text}, a multiple of {row.multiple_of}" if row.multiple_of > 1 else text


def _sizes(a: Adjudication, dims: Mapping[str, Dim]) -> str:
    """The relation in terms of the declared names where they are sizes, else of the inputs."""
    if any(dims[s.name].multiple_of > 1 for s in a.decision.relation.symbols):
        return a.condition
    return str(a.decision.relation)
