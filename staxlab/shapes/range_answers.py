"""What one relation says for which sizes of a range (Section 10.2): the three outcomes on a number line.

Over a whole declared range a decision is true, false or undetermined. Undetermined means that it holds for some sizes
and not for others, so the range falls into bands in each of which the answer is one and the same. The band around the
sample is the range that may be declared instead: there the decision is implied.

>>> n = Symbol("n", 2, 4096)
>>> answers = range_answers(Relation.of(n, ">", 32), sample=64)
>>> answers.decided, [(band.lower, band.upper, band.holds) for band in answers.bands], answers.narrower
(None, [(2, 32, False), (33, 4096, True)], (33, 4096))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..errors import ConstraintError
from ..loops.expressions import Bound, Expr, Symbol
from .relations import ENUMERATED, Relation

#: A relation that changes its answer more often than this (``n % 8 == 0``) has no bands worth drawing.
MOST_BANDS = 24


@dataclass(frozen=True)
class Band:
    """Sizes from ``lower`` to ``upper``, both included. ``holds`` is None where nothing is said: the relation goes on
    changing its answer there, or the sizes are too many to look at."""

    lower: Bound
    upper: Bound
    holds: bool | None

    @property
    def answer(self) -> str:
        return {True: "true", False: "false", None: "undetermined"}[self.holds]

    def __str__(self) -> str:
        return range_words(self.lower, self.upper)


@dataclass(frozen=True)
class RangeAnswers:
    """A relation over one symbol with the range [``symbol.lower``, ``symbol.upper``], in sizes; ``bands`` cover it.

    ``decided`` is the answer for the range as a whole: True, False, or None. ``narrower`` is the band of the sample: at
    all of its sizes the answer is that of the sample; None where no band is known.
    """

    relation: Relation
    symbol: Symbol
    sample: int
    decided: bool | None
    bands: tuple[Band, ...]

    @property
    def narrower(self) -> tuple[Bound, Bound] | None:
        found = next(band for band in self.bands if band.lower <= self.sample <= band.upper)
        return None if found.holds is None else (found.lower, found.upper)

    @property
    def suggestion(self) -> str:
        """What may be declared instead; empty if the whole range is decided, or no band of the sample is known."""
        if self.decided is not None or self.narrower is None:
            return ""
        lower, upper = self.narrower
        if lower == upper:
            return "its neighbours answer otherwise than the sample: declare multiples, or this one size"
        return f"declare {range_words(lower, upper)} instead, and the sample decides for all of it"

    @property
    def outcome(self) -> str:
        """The answer for the whole range, in words."""
        if self.decided is not None:
            return f"{'true' if self.decided else 'false'} for every size of the range: nothing is left to ask"
        return "undetermined: it holds for some sizes of the range, and not for others"

    def __str__(self) -> str:
        lines = [f"{self.relation} for {self.symbol.name} in {range_words(self.symbol.lower, self.symbol.upper)}: "
                 f"{self.outcome}"]  # fmt: skip
        width = max(len(str(band)) for band in self.bands)
        for band in self.bands:
            is_here = band.lower <= self.sample <= band.upper
            note = f"   <- the sample, {self.sample}" if is_here else ""
            lines.append(f"    {str(band):{width}}   {band.answer}{note}")
        if self.suggestion:
            lines.append(self.suggestion)
        return "\n".join(lines)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def range_answers(relation: Relation, sample: int) -> RangeAnswers:
    """The bands of a relation over one symbol, from the lower end of its range.

    ConstraintError for several symbols, and for a sample outside the range. Linear relations cost O(1) for each band;
    others are tried size by size, at most 2**16 sizes for a band, and what is not settled within :data:`MOST_BANDS`
    bands is one undetermined band.
    """
    if len(relation.symbols) != 1:
        raise ConstraintError(f"{relation} is about {len(relation.symbols)} sizes: a number line shows one")
    (symbol,) = relation.symbols
    if not symbol.lower <= sample <= symbol.upper:
        raise ConstraintError(f"the sample {sample} is not in {range_words(symbol.lower, symbol.upper)}")
    bands: list[Band] = []
    while not bands or bands[-1].upper < symbol.upper:
        at = int(bands[-1].upper + 1 if bands else symbol.lower)
        band = _band(relation, symbol, at) if len(bands) < MOST_BANDS - 1 else None
        bands.append(band or Band(at, symbol.upper, None))
    return RangeAnswers(relation, symbol, sample, relation.decide(), tuple(bands))


def _band(relation: Relation, symbol: Symbol, start: int) -> Band | None:
    """The band that begins at ``start``; None if its end is not found."""
    holds = relation.holds({symbol.name: start})
    if symbol.upper - start >= ENUMERATED:
        rest = Expr.of(Symbol(symbol.name, start, symbol.upper))
        left, right = (side.substitute({symbol: rest}) for side in (relation.left, relation.right))
        if Relation(left, relation.comparison, right).decide() is not None:
            return Band(start, symbol.upper, holds)
    around = (relation if holds else relation.negated()).range_around(start)
    if around is None:
        return None
    upper = around[1]
    is_end = upper == symbol.upper or _changes(relation, symbol, upper, holds)
    return Band(start, upper, holds) if is_end else None


def _changes(relation: Relation, symbol: Symbol, upper: Bound, holds: bool) -> bool:
    return not math.isinf(upper) and relation.holds({symbol.name: int(upper) + 1}) is not holds


def range_words(lower: Bound, upper: Bound) -> str:
    """``[2, 4096]``, or ``[2, ∞)`` without an upper bound."""
    return f"[{lower}, ∞)" if math.isinf(upper) else f"[{lower}, {upper}]"
