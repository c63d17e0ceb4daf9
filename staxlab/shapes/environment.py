"""The size symbols of one recording, and the decisions made about them (Section 10.2, Definition 10.2).

The recorder runs on a sample, so every size has a value there, its *hint*. A question about sizes is answered from the
range if the range settles it, else from the hint; then the answer is written down with the user's line, and holds for
later calls only if they would answer alike. All decisions together are the shape guard: the path condition of King
(1976, "Symbolic Execution and Program Testing"), with sizes in place of data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ..loops.expressions import Bound, Expr, Symbol
from ..provenance import SourceLocation
from .relations import Relation

#: Sizes 0 and 1 are never symbols where nothing is declared: broadcasting treats them otherwise (Proposition 10.2).
LEAST_SYMBOLIC = 2


@dataclass(frozen=True)
class SizeSource:
    """Where a symbol's value is found at a call: dimension ``dimension`` of the input at ``position``, divided by
    ``multiple_of`` where the symbol counts multiples."""

    position: int
    dimension: int
    name: str
    multiple_of: int = 1

    def __str__(self) -> str:
        size = f"{self.name}.shape[{self.dimension}]"
        return f"({size} // {self.multiple_of})" if self.multiple_of > 1 else size


@dataclass(frozen=True)
class ShapeDecision:
    """A relation that held on the sample and that the recording relies on: ``text`` says what asked."""

    relation: Relation
    location: SourceLocation | None = None
    text: str = ""

    def __str__(self) -> str:
        asked = f"   {self.text}" if self.text else ""
        return f"{self.relation}{asked}" + (f"   ({self.location})" if self.location else "")


@dataclass(eq=False)
class ShapeEnvironment:
    """Symbols with hints and sources, and the decisions in the order they were made."""

    where: Callable[[], SourceLocation | None] = lambda: None
    hints: dict[Symbol, int] = field(default_factory=dict)
    sources: dict[Symbol, list[SizeSource]] = field(default_factory=dict)
    decisions: list[ShapeDecision] = field(default_factory=list)

    def symbol(
        self, name: str, hint: int, lower: Bound = LEAST_SYMBOLIC, upper: Bound = math.inf,
        source: SizeSource | None = None,
    ) -> Symbol:  # fmt: skip
        """A new symbol, or the one of this name, which then has one more source."""
        found = next((symbol for symbol in self.hints if symbol.name == name), None)
        if found is None:
            found = Symbol(name, lower, upper)
            self.hints[found] = hint
        if source is not None:
            self.sources.setdefault(found, []).append(source)
        return found

    def hint(self, expression: Expr) -> int:
        """The value of an expression on the sample."""
        return expression.evaluate({symbol.name: value for symbol, value in self.hints.items()})

    def ask(self, relation: Relation, text: str = "") -> bool:
        """The truth of a relation. Unless its symbols' ranges settle it, the answer of the sample, kept as a
        decision."""
        known = relation.decide()
        if known is not None:
            return known
        answer = relation.holds({symbol.name: value for symbol, value in self.hints.items()})
        self.rely_on(relation if answer else relation.negated(), text)
        return answer

    def rely_on(self, relation: Relation, text: str = "") -> None:
        """Note that the recording holds only where ``relation`` does, which it does on the sample."""
        if all(decision.relation != relation for decision in self.decisions):
            self.decisions.append(ShapeDecision(relation, self.where(), text))

    def specialize(self, expression: Expr, text: str = "") -> int:
        """The value on the sample, on which the recording relies from now on."""
        value = self.hint(expression)
        self.ask(Relation.of(expression, "==", value), text)
        return value


@dataclass(frozen=True)
class ShapeGuard:
    """The guard of a recording: the decisions, as one function of the flat inputs that reads nothing but sizes.

    ``source`` is its Python text; :meth:`failing` names the decisions that do not hold.
    """

    decisions: tuple[ShapeDecision, ...]
    sources: tuple[tuple[Symbol, SizeSource], ...]
    source: str
    check: Callable[[list[Any]], bool] = field(compare=False, repr=False)

    @staticmethod
    def of(environment: ShapeEnvironment) -> ShapeGuard | None:
        """The guard of all decisions; None if there are none."""
        if not environment.decisions:
            return None
        decisions = tuple(environment.decisions)
        used = frozenset().union(*(decision.relation.symbols for decision in decisions))
        sources = tuple((symbol, environment.sources[symbol][0]) for symbol in environment.hints if symbol in used)
        lines = ["def check(inputs):"]
        for symbol, place in sources:
            read = str(replace(place, name=f"inputs[{place.position}]"))
            lines.append(f"    {symbol.name} = {read}  # of {place.name}")
        relations = "\n        and ".join(decision.relation.python() for decision in decisions)
        lines += ["    return (", f"        {relations}", "    )"]
        source = "\n".join(lines) + "\n"
        scope: dict[str, Any] = {}
        exec(compile(source, "<staxlab shape guard>", "exec"), scope)
        return ShapeGuard(decisions, sources, source, scope["check"])

    def condition(self, decision: ShapeDecision) -> str:
        """A decision in terms of the inputs: ``x.shape[0] > 4``."""
        names = {symbol.name: str(place) for symbol, place in self.sources}
        return re.sub(r"\b[A-Za-z_]\w*\b", lambda match: names.get(match[0], match[0]), decision.relation.python())

    def values(self, inputs: list[Any]) -> dict[str, int]:
        """The symbols' values for flat inputs."""
        return {s.name: inputs[p.position].shape[p.dimension] // p.multiple_of for s, p in self.sources}

    def failing(self, inputs: list[Any]) -> tuple[ShapeDecision, ...]:
        values = self.values(inputs)
        return tuple(decision for decision in self.decisions if not decision.relation.holds(values))

    def __str__(self) -> str:
        places = ", ".join(f"{symbol.name} = {place}" for symbol, place in self.sources)
        return "\n".join([f"shape guard over {places}:", *(f"    {decision}" for decision in self.decisions)])
