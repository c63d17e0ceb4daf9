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
    """A relation that held on the sample and that the recording relies on. ``text`` says what asked; ``assumed`` tells
    what an operation takes for granted (that two sizes are equal, since it puts the tensors together) from what the
    program's own code decided."""

    relation: Relation
    location: SourceLocation | None = None
    text: str = ""
    assumed: bool = False

    def __str__(self) -> str:
        asked = f"   {self.text}" if self.text else ""
        return f"{self.relation}{asked}" + (f"   ({self.location})" if self.location else "")


@dataclass(eq=False)
class ShapeEnvironment:
    """Symbols with hints and sources, and the decisions in the order they were made."""

    where: Callable[[], SourceLocation | None] = lambda: None
    hints: dict[Symbol, int] = field(default_factory=dict)
    sources: dict[Symbol, SizeSource] = field(default_factory=dict)
    decisions: list[ShapeDecision] = field(default_factory=list)
    implied: list[ShapeDecision] = field(default_factory=list)  # what the ranges alone answered
    open: set[Symbol] = field(default_factory=set)  # sizes that depend on data
    data_dependent: set[Symbol] = field(default_factory=set)  # and those that have been
    facts: dict[Symbol, tuple[Bound, Bound]] = field(default_factory=dict)  # their ranges, as the program has stated
    stated: list[Relation] = field(default_factory=list)
    gate: Callable[[Symbol], None] = lambda symbol: None
    state: Callable[[Relation, type, str], None] = lambda relation, error, message: None

    def symbol(
        self, name: str, hint: int, lower: Bound = LEAST_SYMBOLIC, upper: Bound = math.inf,
        source: SizeSource | None = None,
    ) -> Symbol:  # fmt: skip
        """A new symbol, or the one of this name. What is known of its ``source`` first, stays."""
        found = next((symbol for symbol in self.hints if symbol.name == name), None)
        if found is None:
            found = Symbol(name, lower, upper)
            self.hints[found] = hint
        if source is not None:
            self.sources.setdefault(found, source)
        return found

    def hint(self, expression: Expr) -> int:
        """The value of an expression on the sample."""
        return expression.evaluate(self._sample)

    @property
    def _sample(self) -> dict[str, int]:
        return {symbol.name: value for symbol, value in self.hints.items()}

    def ask(self, relation: Relation, text: str = "", *, node: Any = None) -> bool:
        """The truth of a relation. Unless its symbols' ranges settle it, the answer of the sample, kept as a decision.
        ``node`` is the operation that takes it for granted, if it is not the program's code that asks.

        A size that depends on data has a value on the sample that says nothing of the next call. Where its range and
        what the program has stated do not settle the question (Proposition 10.4), the number becomes a data gate:
        versions differ by it, as they do without dynamic mode.
        """
        known = self.known(relation)
        if known is None and relation.symbols & self.open:
            for symbol in relation.symbols & self.open:
                self.open.discard(symbol)
                self.gate(symbol)
        if (relation.symbols & self.data_dependent) - self.open:
            relation = self._on_the_sample(relation)
            known = self.known(relation) if known is None else known
        answer = relation.holds(self._sample) if known is None else known
        where = self.where() if node is None else node.location
        decision = ShapeDecision(relation if answer else relation.negated(), where, text, node is not None)
        kept = self.decisions if known is None else self.implied
        settled = relation.left == relation.right or not relation.symbols  # by algebra, whatever the ranges
        if not settled and all(earlier.relation != decision.relation for earlier in kept):
            kept.append(decision)
        return answer

    def known(self, relation: Relation) -> bool | None:
        """What ranges and statements say of a relation; None if they leave it open."""
        if relation in self.stated:
            return True
        if relation.negated() in self.stated:
            return False
        return relation.over(self.facts).decide()

    def is_open(self, relation: Relation) -> bool:
        """Whether a relation depends on data and nothing known settles it."""
        return bool(relation.symbols & self.open) and self.known(relation) is None

    def assume(self, relation: Relation, error: type, message: str) -> bool:
        """The program states a relation (``torch._check``): from now on it is known, and every call checks it. False
        if it does not hold on the sample."""
        if not relation.holds(self._sample):
            return False
        self.stated.append(relation)
        interval = relation.solutions()
        if interval is not None:
            (symbol,) = relation.symbols
            low, high = self.facts.get(symbol, (symbol.lower, symbol.upper))
            self.facts[symbol] = (max(low, interval[0]), min(high, interval[1]))
        self.state(relation, error, message)
        return True

    def _on_the_sample(self, relation: Relation) -> Relation:
        """A relation with gated sizes as the numbers that their gates hold them to."""
        gated = {s: Expr.of(self.hints[s]) for s in relation.symbols if s in self.data_dependent and s not in self.open}
        return Relation.of(relation.left.substitute(gated), relation.comparison, relation.right.substitute(gated))

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
    implied: tuple[ShapeDecision, ...] = field(compare=False, repr=False)
    check: Callable[[list[Any]], bool] = field(compare=False, repr=False)

    @staticmethod
    def of(environment: ShapeEnvironment) -> ShapeGuard | None:
        """The guard of all decisions; None if nothing was asked."""
        if not environment.decisions and not environment.implied:
            return None
        decisions = tuple(environment.decisions)
        asked = (*decisions, *environment.implied)
        used = frozenset().union(*(decision.relation.symbols for decision in asked))
        held = (symbol for symbol in environment.sources if symbol in used)
        sources = tuple((symbol, environment.sources[symbol]) for symbol in held)
        lines = ["def check(inputs):"]
        for symbol, place in sources:
            read = str(replace(place, name=f"inputs[{place.position}]"))
            lines.append(f"    {symbol.name} = {read}  # of {place.name}")
        relations = "\n        and ".join(decision.relation.python() for decision in decisions)
        lines += ["    return (", f"        {relations}", "    )"] if decisions else ["    return True"]
        source = "\n".join(lines) + "\n"
        scope: dict[str, Any] = {}
        exec(compile(source, "<staxlab shape guard>", "exec"), scope)
        return ShapeGuard(decisions, sources, source, tuple(environment.implied), scope["check"])

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
        if not self.decisions:
            return "shape guard: nothing is asked at a call"
        places = ", ".join(f"{symbol.name} = {place}" for symbol, place in self.sources)
        return "\n".join([f"shape guard over {places}:", *(f"    {decision}" for decision in self.decisions)])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)
