"""What Exercise 21 runs: Algorithm 8.1 on many nests, and the mistakes one can make in it, each as an algorithm."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...codegen.cpp.sharing import imbalance, parallel_depth
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import Slip, call_failed, unexpected_result
from ..variants import generator
from . import ex21_answers

if TYPE_CHECKING:
    from .ex21 import Variant

Nest = tuple[tuple[int, ...], int, int]

#: name of a mistake: the algorithm that makes it, and what to say.
MISTAKES: dict[str, tuple[Callable[[Any, int, int], int], str]] = {
    "stops-at-threads": (ex21_answers.stops_at_threads, "It stops at P iterations. With P + 1 one thread has two."),
    "grain-per-iteration": (
        ex21_answers.grain_per_iteration,
        "The grain is compared with all that is left; each thread gets a P-th of it.",
    ),
    "no-grain": (ex21_answers.no_grain, "The grain makes no difference: too little work for each thread is shared."),
    "looks-ahead": (
        ex21_answers.looks_ahead,
        "The loop in question is not taken yet when the work left is looked at.",
    ),
    "inside-out": (ex21_answers.inside_out, "Loops are taken from the outside in."),
}


def depth_slips(variant: Variant, threads: int) -> tuple[Slip, ...]:
    """The mistakes that lead to another depth for this nest, and the neighbouring depths."""
    truth = variant.depth(threads)
    found: dict[int, Slip] = {}
    for name, (algorithm, message) in MISTAKES.items():
        depth = algorithm(variant.extents, threads, variant.grain)
        if depth != truth:
            found.setdefault(depth, Slip(name, Fraction(depth), message))
    if truth < len(variant.extents):
        more = Slip(
            "one-loop-more", Fraction(truth + 1), "Before the last of these loops it stops. Which condition holds?"
        )
        found.setdefault(truth + 1, more)
    if truth > 0:
        fewer = Slip("one-loop-less", Fraction(truth - 1), "At that point neither condition holds: it goes on.")
        found.setdefault(truth - 1, fewer)
    return tuple(found.values())


def busiest_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other numbers of iterations one may arrive at."""
    threads, q = variant.many, variant.iterations(variant.many)
    every = 1
    for size in variant.extents:
        every *= size
    truth, found = -(-q // threads), {}
    for name, value, message in (
        ("rounded-down", q // threads, "Somebody has to do the rest."),
        ("all-iterations", q, "All threads together do so many."),
        (
            "body-counted",
            -(-every // threads),
            "Count iterations of the loops that are taken, not what is inside them.",
        ),
    ):
        if value != truth:
            found.setdefault(value, Slip(name, Fraction(value), message))
    return tuple(found.values())


@lru_cache(maxsize=4096)
def most_uneven(multiple: int, threads: int) -> tuple[int, Fraction]:
    """The q from ``multiple * threads`` to ``(multiple + 1) * threads`` with the largest imbalance, of all of them."""
    candidates = range(multiple * threads, (multiple + 1) * threads + 1)
    worst = max(candidates, key=lambda q: imbalance(q, threads))
    return worst, imbalance(worst, threads)


@lru_cache(maxsize=8)
def nests(seed: int | None) -> tuple[Nest, ...]:
    """Nests with threads and grain, small ones first; every mistake of :data:`MISTAKES` shows on one of them."""
    rng: random.Random = generator(seed, "nests")
    cases: list[Nest] = [
        ((), 1, 0), ((5,), 1, 1), ((1,), 4, 1), ((8,), 4, 1), ((3, 5), 1, 1), ((2, 2), 2, 1), ((4, 4), 2, 8),
        ((4, 8), 4, 8), ((4, 8), 4, 9), ((2, 3, 4), 1, 24), ((2, 3, 4), 1, 25), ((16, 2, 2), 8, 1), ((15, 2, 2), 8, 1),
        ((4, 4096, 16), 8, 512), ((4, 4096, 16), 64, 512), ((4, 4096, 16), 64, 2048), ((4, 1, 16), 2, 1),
    ]  # fmt: skip
    for _ in range(60):
        extents = tuple(rng.choice((1, 2, 3, 4, 7, 16, 60, 256)) for _ in range(rng.randint(1, 5)))
        cases.append((extents, rng.choice((1, 2, 3, 4, 8, 16, 64)), rng.choice((0, 1, 2, 16, 128, 512))))
    return tuple(cases)


def judge_parallel_depth(callee: Callee, seed: int | None) -> Verdict:
    """Every nest; if the answers are those of a known mistake wherever it was tried, it is named."""
    given: list[int] = []
    failed: Nest | None = None
    for extents, threads, grain in nests(seed):
        outcome = callee.call(list(extents), threads, grain)
        if outcome.failed:
            return call_failed(callee, (list(extents), threads, grain), outcome)
        depth = outcome.value
        if isinstance(depth, bool) or not isinstance(depth, int) or not 0 <= depth <= len(extents):
            words = f"a depth is a whole number from 0 to {len(extents)}"
            return unexpected_result(callee, (list(extents), threads, grain), words)
        given.append(depth)
        if failed is None and depth != parallel_depth(extents, threads, grain).depth:
            failed = (extents, threads, grain)
    if failed is None:
        return right("The depth of Algorithm 8.1 for every nest.", ("tried", f"{len(given)} nests"))
    extents, threads, grain = failed
    place = nests(seed).index(failed)
    facts = (
        ("extents", " × ".join(map(str, extents)) or "no loops"),
        ("P", threads),
        ("m", grain),
        ("your depth", given[place]),
    )
    for name, (algorithm, message) in MISTAKES.items():
        if given == [algorithm(list(e), p, m) for e, p, m in nests(seed)]:
            return wrong(message, *facts, mistake=name)
    steps = parallel_depth(extents, threads, grain).steps
    step = next((s for s in steps if s.loop == min(given[place], len(steps) - 1)), None)
    if step is not None:
        facts += (("before that loop", f"product {step.product}, left for each thread {step.left:g}"),)
    return wrong("Not the depth of Algorithm 8.1.", *facts)
