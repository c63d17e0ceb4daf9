"""How many versions a history of calls needs: concrete sizes, buckets, symbols (Proposition 13.5, Sections 10.4, 13.4).

Every version costs one compilation, so ``K`` of them multiply the break-even of Proposition 13.4 by ``K``. What ``K_m``
is after ``m`` calls depends on which sizes count as the same (Definition 10.1):

* *concrete*: as many versions as different sizes have been seen. For sizes drawn independently from a distribution its
  expectation is ``sum(1 - (1 - p_s)**m)``, which rises until all sizes have been met;
* *bucketed*: as many as different buckets, at most ``ceil(log2 M) - floor(log2 m) + 1`` for powers of two, at any
  number of calls;
* *symbolic*: as many as classes of the guards that were recorded. Sizes 0 and 1 are classes of their own
  (Section 10.2), and every other size is told apart only by what the program asks about it.

>>> history = draw_history(uniform(1, 512), calls=1000, seed=1)
>>> [round(history.after(1000, name)) for name in ("expected", "bound", "symbolic")]
[440, 10, 2]
>>> version_history((3, 7, 2, 9, 4, 11), guards={"n > 4": lambda n: n > 4}).after(6, "symbolic")
2

A size met in one call is a shape with one variable dimension; everything else is taken to stay the same. What is
counted by :func:`run_history` is counted by compiling: the versions that the dispatcher really made.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import OptionError
from ..shapes.bucketing import Buckets
from .amortize import expected_versions
from .tables import Table, Tabular

POINTS = 25  # of a curve, spread evenly over the logarithm of the calls


@dataclass(frozen=True)
class VersionCurve:
    """``steps``: (number of the call, versions after it), ascending, the first at call 1. Between two of them the
    number stays, unless the curve is ``smooth``: an expectation, known at these calls only. ``by_running``: counted by
    compiling. ``note`` says what limits it, if anything does."""

    name: str
    steps: tuple[tuple[int, float], ...]
    smooth: bool = False
    by_running: bool = False
    note: str = ""

    def after(self, calls: int) -> float:
        """Versions after so many calls: 0 before the first; of a smooth curve, those at the last point before."""
        position = bisect.bisect_right([call for call, _ in self.steps], calls)
        return self.steps[position - 1][1] if position else 0


@dataclass(frozen=True, repr=False)
class VersionHistory(Tabular):
    """Versions against calls. ``sizes`` are the calls in their order, ``buckets`` what sizes are rounded up to,
    ``guards`` the questions that a symbolic version is guarded by, ``curves`` one for each way of counting."""

    sizes: tuple[int, ...]
    buckets: Buckets
    guards: tuple[str, ...]
    curves: tuple[VersionCurve, ...]

    @property
    def calls(self) -> int:
        return len(self.sizes)

    def __getitem__(self, name: str) -> VersionCurve:
        """The curve of that name. KeyError with the names there are."""
        for curve in self.curves:
            if curve.name == name:
                return curve
        raise KeyError(f"no curve {name!r}; there are {', '.join(curve.name for curve in self.curves)}")

    def after(self, calls: int, name: str) -> float:
        """``K_m`` of one curve for ``m = calls``."""
        return self[name].after(calls)

    @property
    def points(self) -> tuple[int, ...]:
        """Numbers of calls at which the curves are worth comparing: powers of ten and all calls."""
        return tuple(dict.fromkeys((*itertools.takewhile(lambda m: m < self.calls, _powers_of_ten()), self.calls)))

    def summary(self) -> str:
        """One line: how many versions each way needs for all calls."""
        found = ", ".join(f"{curve.name} {_count(curve.after(self.calls))}" for curve in self.curves)
        return f"versions after {self.calls:,} calls: {found}"

    def table(self) -> Table:
        """A row for each curve, a column for each number of calls."""
        columns = ("versions K_m after m calls", *(f"m = {m:,}" for m in self.points))
        rows = [(curve.name, *(_count(curve.after(m)) for m in self.points)) for curve in self.curves]
        span = f"sizes {min(self.sizes)} to {max(self.sizes)}"
        guards = f"guards of symbolic versions: {', '.join(self.guards) or 'none beside sizes 0 and 1'}"
        notes = (f"{span}; {self.buckets}; {guards}", *(f"{c.name}: {c.note}" for c in self.curves if c.note))
        return Table.build("Versions against calls (Proposition 13.5)", columns, rows, notes)

    def to_json(self) -> dict[str, Any]:
        """Plain data: the calls, and the steps of every curve."""
        return {
            "calls": self.calls,
            "sizes": [min(self.sizes), max(self.sizes)],
            "buckets": str(self.buckets),
            "guards": list(self.guards),
            "curves": {c.name: {"steps": [list(step) for step in c.steps], "note": c.note} for c in self.curves},
        }


def version_history(
    sizes: Sequence[int],
    *,
    distribution: Mapping[int, float] | None = None,
    buckets: Buckets | None = None,
    guards: Mapping[str, Callable[[int], bool]] | None = None,
) -> VersionHistory:
    """Count the versions that calls with these ``sizes`` need, in their order.

    ``distribution`` gives each size's probability: the expectation of Proposition 13.5 is then drawn beside, and the
    bound of the buckets holds for all its sizes rather than for those that occurred. ``guards`` maps the text of a
    question to its predicate; sizes that answer all of them alike share a symbolic version. OptionError for no calls, a
    negative size, or a distribution in which a size that occurred cannot. O(calls * guards).
    """
    sizes = tuple(sizes)
    if not sizes or min(sizes) < 0:
        raise OptionError("a history has at least one call, and no size is negative")
    buckets, guards = buckets or Buckets(), guards or {}
    curves = [VersionCurve("concrete", _grown(sizes))]
    if distribution is not None:
        impossible = next((size for size in sizes if not distribution.get(size)), None)
        if impossible is not None:
            raise OptionError(f"size {impossible} occurred, and has no probability in the distribution")
        expected = tuple((m, expected_versions(distribution, m)) for m in _spread(len(sizes)))
        curves.append(VersionCurve("expected", expected, smooth=True))
    curves.append(VersionCurve("bucketed", _grown(map(buckets.round_up, sizes))))
    possible = sizes if distribution is None else tuple(size for size, chance in distribution.items() if chance)
    positive = [size for size in possible if size]
    bound = (buckets.bound(min(positive), max(positive)) if positive else 0) + (0 in possible)
    curves.append(VersionCurve("bound", ((1, bound),)))
    curves.append(VersionCurve("symbolic", _grown(guard_class(size, guards) for size in sizes)))
    return VersionHistory(sizes, buckets, tuple(guards), tuple(curves))


def draw_history(
    distribution: Mapping[int, float], calls: int, *, seed: int | None = 0, **settings: Any
) -> VersionHistory:
    """The history of ``calls`` sizes drawn independently from a distribution (Proposition 13.5); settings as for
    :func:`version_history`. OptionError for less than one call."""
    if calls < 1:
        raise OptionError(f"calls={calls}: a history has at least one")
    chosen = random.Random(seed).choices(tuple(distribution), tuple(distribution.values()), k=calls)
    return version_history(chosen, distribution=distribution, **settings)


def uniform(smallest: int, largest: int) -> dict[int, float]:
    """Every size from ``smallest`` to ``largest`` equally likely."""
    count = largest - smallest + 1
    return dict.fromkeys(range(smallest, largest + 1), 1 / count)


def guard_class(size: int, guards: Mapping[str, Callable[[int], bool]]) -> Hashable:
    """What a symbolic version is told apart by: sizes 0 and 1 are specialized, others answer the guards."""
    return size if size in (0, 1) else tuple(bool(holds(size)) for holds in guards.values())


def run_history(
    history: VersionHistory, name: str, compiled: Any, arguments: Callable[[int], tuple[Any, ...]]
) -> VersionHistory:
    """The history with one more curve: ``compiled(*arguments(size))`` is called for every size, and the versions it has
    after each call are counted. ``compiled`` is what :func:`staxlab.compile` returned (or :func:`staxlab.bucketed`
    around it), and starts from the versions it has already.

    A limit of versions (``options={"max_versions": ...}``, 8 unless set) ends the counting, and the curve's note says
    so. OptionError if ``compiled`` has no versions to count or the history has a curve of that name. What the function
    raises passes through. Compiles whatever is new.
    """
    if not hasattr(compiled, "versions"):
        raise OptionError(f"{compiled!r} has no versions to count", remedy="compile it first: staxlab.compile(f)")
    if any(curve.name == name for curve in history.curves):
        raise OptionError(f"there is a curve {name!r} already")
    dispatcher = getattr(compiled, "fn", compiled) if not hasattr(compiled, "cache_info") else compiled
    before = dispatcher.cache_info().eager
    steps: list[tuple[int, float]] = []
    for call, size in enumerate(history.sizes, 1):
        compiled(*arguments(size))
        count = len(compiled.versions)
        if not steps or steps[-1][1] != count:
            steps.append((call, count))
    eager = dispatcher.cache_info().eager - before
    note = f"{eager:,} calls ran eagerly, beyond the limit of versions" if eager else ""
    return replace(history, curves=(*history.curves, VersionCurve(name, tuple(steps), by_running=True, note=note)))


def _grown(classes: Iterable[Hashable]) -> tuple[tuple[int, float], ...]:
    seen: set[Hashable] = set()
    steps: list[tuple[int, float]] = []
    for call, one in enumerate(classes, 1):
        if one not in seen:
            seen.add(one)
            steps.append((call, len(seen)))
    return tuple(steps)


def _spread(calls: int) -> tuple[int, ...]:
    """Numbers of calls from 1 to ``calls``, about evenly over their logarithm, powers of ten among them."""
    even = (round(calls ** (k / (POINTS - 1))) for k in range(POINTS))
    return tuple(sorted({*even, calls, *itertools.takewhile(lambda m: m < calls, _powers_of_ten())}))


def _powers_of_ten() -> Iterable[int]:
    return (10**k for k in itertools.count())


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
