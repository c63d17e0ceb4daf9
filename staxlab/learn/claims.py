"""Claims as predicates: search for a counterexample, then make it small.

"For every n and every row, ..." cannot be proved by running it, but it can be refuted, and a wrong claim usually
falls within a few hundred random trials. The search is the one property-based testing uses: try the corners of the
domain, draw from a generator with a recorded seed, and once an input refutes the claim, replace it step by step by
simpler inputs that refute it too. A student then sees ``n = 1`` instead of ``n = 48213``.

A domain maps argument names to :class:`Values`, each of which can list its corners, draw a value, and propose simpler
ones. The cost is at most ``trials + SHRINK_TRIALS`` evaluations of the predicate.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .variants import generator

SHRINK_TRIALS = 400


class Values(Protocol):
    """The values one argument may take."""

    def corners(self) -> Sequence[Any]:
        """Values to try before any random one, simplest first."""
        ...

    def draw(self, rng: random.Random) -> Any: ...

    def simpler(self, value: Any) -> Iterator[Any]:
        """Candidates simpler than ``value``, the boldest first; each must be strictly simpler, so shrinking ends."""
        ...


@dataclass(frozen=True)
class integers:
    """Integers in [low, high]; draws are uniform in magnitude (small numbers are as likely as large ones)."""

    low: int
    high: int

    def corners(self) -> Sequence[int]:
        return sorted({self.low, min(self.low + 1, self.high), min(self.low + 2, self.high), self.high})

    def draw(self, rng: random.Random) -> int:
        span = self.high - self.low
        return self.low + min(span, int(2 ** (rng.random() * math.log2(span + 1))) - 1 + rng.randrange(2))

    def simpler(self, value: int) -> Iterator[int]:
        distance = value - self.low
        while distance > 0:  # low, then half way back to value, a quarter..., value - 1
            yield value - distance
            distance //= 2


@dataclass(frozen=True)
class choices:
    """One of ``options``; the earlier, the simpler."""

    options: tuple[Any, ...]

    def corners(self) -> Sequence[Any]:
        return self.options[:16]

    def draw(self, rng: random.Random) -> Any:
        return rng.choice(self.options)

    def simpler(self, value: Any) -> Iterator[Any]:
        for option in self.options:
            if option is value or (type(option) is type(value) and option == value):
                return
            yield option


@dataclass(frozen=True)
class floats:
    """Python floats; with ``special``, also both zeros, infinities, NaN, subnormals and the largest numbers."""

    scale: float = 100.0
    special: bool = True

    SPECIAL = (
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        math.inf,
        -math.inf,
        math.nan,
        5e-324,
        2.0**-149,
        3e38,
        1.7976931348623157e308,
    )

    def corners(self) -> Sequence[float]:
        return self.SPECIAL if self.special else (0.0, 1.0, -1.0)

    def draw(self, rng: random.Random) -> float:
        if rng.random() < 0.3:
            return float(rng.randint(-10, 10))
        return rng.uniform(-self.scale, self.scale)

    def simpler(self, value: float) -> Iterator[float]:
        if math.isnan(value) or math.isinf(value) or value == 0:
            return
        if value != int(value):
            yield float(int(value))
            return
        for candidate in (0.0, 1.0, float(int(value) // 2), value - math.copysign(1.0, value)):
            if abs(candidate) < abs(value):
                yield candidate
        if value < 0:
            yield -value


@dataclass(frozen=True)
class lists:
    """Lists of ``length`` in [low, high] whose elements come from ``elements``."""

    elements: Values
    low: int = 0
    high: int = 8

    def corners(self) -> Sequence[list[Any]]:
        first = list(self.elements.corners())
        return [first[:1] * self.low, (first * self.high)[: self.high]] if first else []

    def draw(self, rng: random.Random) -> list[Any]:
        return [self.elements.draw(rng) for _ in range(rng.randint(self.low, self.high))]

    def simpler(self, value: list[Any]) -> Iterator[list[Any]]:
        if len(value) > self.low:
            half = max(self.low, len(value) // 2)
            if half < len(value):
                yield value[:half]
            for i in range(len(value)):
                yield value[:i] + value[i + 1 :]
        for i, element in enumerate(value):
            for candidate in self.elements.simpler(element):
                yield value[:i] + [candidate] + value[i + 1 :]
        for i, element in enumerate(value):  # equal elements together: [1, 1] refutes where [0, 1] does not
            if value.count(element) > 1 and value.index(element) == i:
                for candidate in self.elements.simpler(element):
                    yield [candidate if other == element else other for other in value]


@dataclass(frozen=True)
class Search:
    """The result of a search: ``counterexample`` (argument name to value) with the predicate's own ``reason``, or None.

    ``trials`` counts different inputs tried before shrinking; ``seed`` reproduces the search.
    """

    counterexample: dict[str, Any] | None
    reason: Any
    trials: int
    seed: int | None

    @property
    def survived(self) -> bool:
        """True when no counterexample was found: not a proof, but ``trials`` failed refutations."""
        return self.counterexample is None


def falsify(
    reason_against: Callable[..., Any],
    domain: Mapping[str, Values],
    *,
    seed: int | None,
    trials: int = 200,
    purpose: str = "claim",
    worth_shrinking: Callable[[Any], bool] = lambda reason: True,
) -> Search:
    """Look for arguments at which ``reason_against(**arguments)`` is not None, and shrink the first found.

    ``reason_against`` states the claim from the refuter's side: None where it holds, otherwise the reason why it does
    not (any value; it is kept). A reason that is not ``worth_shrinking`` is taken as it is: a function that ran out of
    time would do so again at every simpler input. Exceptions are not caught here: a predicate over student code wraps
    that code itself (:mod:`staxlab.learn.limits`).

    >>> search = falsify(lambda n: None if n * n < 50 else f"{n * n} >= 50", {"n": integers(0, 1000)}, seed=1)
    >>> search.counterexample, search.reason
    ({'n': 8}, '64 >= 50')
    """
    rng = generator(seed, purpose)
    tried = 0
    seen: set[str] = set()
    for arguments in _candidates(domain, rng, trials):
        key = repr(arguments)
        if key in seen:  # small domains repeat themselves
            continue
        seen.add(key)
        tried += 1
        reason = reason_against(**arguments)
        if reason is not None:
            small, reason = _shrink(reason_against, domain, arguments, reason, worth_shrinking)
            return Search(small, reason, tried, seed)
    return Search(None, None, tried, seed)


def _candidates(domain: Mapping[str, Values], rng: random.Random, trials: int) -> Iterator[dict[str, Any]]:
    """All combinations of corners as long as they are few (shuffled beyond that), then random draws."""
    corners = {name: list(values.corners()) for name, values in domain.items()}
    combinations = math.prod(len(options) for options in corners.values())
    budget = trials // 2
    indices = range(combinations) if combinations <= budget else rng.sample(range(combinations), budget)
    for index in indices:
        arguments = {}
        for name, options in corners.items():
            index, position = divmod(index, len(options))
            arguments[name] = options[position]
        yield arguments
    for _ in range(trials - len(indices)):
        yield {name: values.draw(rng) for name, values in domain.items()}


def _shrink(
    reason_against: Callable[..., Any],
    domain: Mapping[str, Values],
    arguments: dict[str, Any],
    reason: Any,
    worth_shrinking: Callable[[Any], bool],
) -> tuple[dict[str, Any], Any]:
    """Greedy: accept the first simpler value of any argument that still refutes; repeat until none does."""
    budget = SHRINK_TRIALS
    improved = True
    while improved and budget > 0:
        improved = False
        for name, values in domain.items():
            for candidate in values.simpler(arguments[name]):
                if budget == 0 or not worth_shrinking(reason):
                    return arguments, reason
                budget -= 1
                attempt = {**arguments, name: candidate}
                found = reason_against(**attempt)
                if found is not None:
                    arguments, reason, improved = attempt, found, True
                    break
    return arguments, reason
