"""What Exercise 12 runs: the compiler's own normalisation of loops, on nests that a student describes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from itertools import permutations
from typing import Any

import torch

from ...loops.body import record
from ...loops.expressions import ZERO, Expr
from ...loops.ir import ComputedBuffer, Layout, Reduction
from ...loops.layout import contiguous_stride
from ...loops.normalize import normalize
from ...loops.ops import Ops
from ..answers import Callee
from ..feedback import Verdict, nearly, right, wrong
from ..judges import call_failed, result_text, unexpected_result
from ..variants import generator

Extents = tuple[int, ...]
Accesses = tuple[tuple[int, ...], ...]

LAYERS = ("both", "only the first", "only the second", "neither")


@lru_cache(maxsize=4096)
def loops_after_merging(extents: Extents, accesses: Accesses) -> Extents:
    """What the compiler leaves of a nest in the given order: the extents after merging. Access ``n`` reads the buffer
    ``xn`` at the sum of its coefficients times the loop variables; extents are at least 2."""

    def compute(ops: Ops, index: Any, loops: tuple[Expr, ...]) -> Any:
        total = None
        for n, coefficients in enumerate(accesses):
            subscript = sum((loops[k] * c for k, c in enumerate(coefficients)), ZERO)
            value = ops.load(f"x{n}", subscript)
            total = value if total is None else ops.add(total, value)
        return total

    single = torch.float32
    # As the loops of a sum: their order is kept on request, where that of pointwise loops follows the store.
    data = Reduction((), extents, "sum", single, single, compute)
    buffer = ComputedBuffer("y", Layout.contiguous((), single, "cpu"), data)
    body = record(buffer, {f"x{n}": single for n in range(len(accesses))})
    return normalize(body, (), extents, ZERO, ordered=True).reduction_ranges


def reordered(extents: Extents, accesses: Accesses, order: Sequence[int]) -> tuple[Extents, Accesses]:
    """The nest with loop ``order[k]`` at place k."""
    return tuple(extents[k] for k in order), tuple(tuple(access[k] for k in order) for access in accesses)


def merges(extents: Extents, accesses: Accesses, j: int) -> bool:
    """Whether the compiler merges loops j and j + 1, looked at alone."""
    pair = tuple(access[j : j + 2] for access in accesses)
    return len(loops_after_merging(extents[j : j + 2], pair)) == 1


def allowed_by(extents: Extents, accesses: Accesses, j: int) -> str:
    """Which of two accesses allow loops j and j + 1 to be merged."""
    first, second = (merges(extents, (access,), j) for access in accesses)
    return LAYERS[0] if first and second else LAYERS[1] if first else LAYERS[2] if second else LAYERS[3]


def loops_left(extents: Extents, accesses: Accesses, order: Sequence[int] | None = None) -> int:
    return len(loops_after_merging(*reordered(extents, accesses, order or range(len(extents)))))


def fewest_loops(extents: Extents, accesses: Accesses) -> int:
    """Over all orders, tried one after the other."""
    return min(loops_left(extents, accesses, order) for order in permutations(range(len(extents))))


def left_if_one_access_decided(extents: Extents, accesses: Accesses) -> int:
    """The number of loops for who merges where any access allows it."""
    pairs = range(len(extents) - 1)
    return len(extents) - sum(any(merges(extents, (access,), j) for access in accesses) for j in pairs)


# --- Nests ------------------------------------------------------------------------------------------------------------


def drawn_access(rng: random.Random, extents: Extents, padded: bool) -> tuple[int, ...]:
    """A row-major array over the loops in some order, perhaps with gaps between its rows."""
    order = rng.sample(range(len(extents)), len(extents))
    strides = list(contiguous_stride([extents[k] for k in order]))
    if padded:
        for place in range(rng.randint(1, len(extents) - 1)):
            strides[place] += strides[-2] * rng.randint(1, 3)
    access = [0] * len(extents)
    for place, k in enumerate(order):
        access[k] = strides[place]
    return tuple(access)


def drawn_nest(rng: random.Random) -> tuple[Extents, Accesses]:
    """Three loops and two accesses; a reordering helps about every other time."""
    extents = tuple(rng.sample((2, 3, 4, 5, 6, 8, 16), 3))
    first = drawn_access(rng, extents, padded=rng.random() < 0.3)
    while True:
        second = drawn_access(rng, extents, padded=rng.random() < 0.3)
        if second != first and (rng.random() < 0.3 or fewest_loops(extents, (first, second)) < 3):
            return extents, (first, second)


@lru_cache(maxsize=8)
def nests(seed: int | None) -> tuple[tuple[Extents, Accesses], ...]:
    """Nests of two to four loops with one to three accesses, small ones first."""
    rng = generator(seed, "nests")
    cases: list[tuple[Extents, Accesses]] = [
        ((2, 3), ((3, 1),)), ((3, 2), ((3, 1),)), ((2, 3), ((3, 1), (1, 2))), ((2, 3), ((1, 2), (3, 1))),
        ((2, 3), ((0, 0),)), ((2, 3), ((0, 1),)), ((2, 2), ((4, 2), (2, 1))), ((2, 3, 2), ((0, 1, 0), (1, 4, 2))),
        ((4, 8, 16), ((128, 16, 1), (1, 4, 32))),
    ]  # fmt: skip
    for _ in range(30):
        extents = tuple(rng.choice((2, 3, 4, 5)) for _ in range(rng.randint(2, 4)))
        accesses = [drawn_access(rng, extents, padded=rng.random() < 0.3)]
        for _ in range(rng.randint(0, 2)):
            # The same array with other gaps, an element that a loop does not move, or another order.
            scaled = tuple(rng.choice((1, 2)) * c for c in [*accesses[0]])
            accesses.append(rng.choice((scaled, (0,) * len(extents), drawn_access(rng, extents, padded=False))))
        rng.shuffle(accesses)
        cases.append((extents, tuple(accesses)))
    return tuple(sorted(dict.fromkeys(cases), key=lambda case: (len(case[0]), len(case[1]), case[0])))


# --- Judges -----------------------------------------------------------------------------------------------------------


# Conditions that look like the right one.
LOOKALIKES = (
    ("other-extent", lambda s, accesses, j: all(a[j] == s[j] * a[j + 1] for a in accesses),
     "There is an extent in the condition: is it that of the loop whose steps are long, or of the other one?"),
    ("one-access-is-enough", lambda s, accesses, j: any(a[j] == s[j + 1] * a[j + 1] for a in accesses),
     "One access that would allow it is not enough: the loops belong to all accesses."),
    ("one-access-is-enough", lambda s, accesses, j: accesses[0][j] == s[j + 1] * accesses[0][j + 1],
     "You look at the first access only: the loops belong to all of them."),
    ("unit-stride-only", lambda s, accesses, j: all(a[j + 1] == 1 and a[j] == s[j + 1] for a in accesses),
     "Arrays whose elements are not next to one another can be walked through with one step, too."),
)  # fmt: skip


def judge_can_merge(callee: Callee, seed: int | None) -> Verdict:
    """The student's condition against what the compiler does with the two loops."""
    cases = [(*nest, j) for nest in nests(seed) for j in range(len(nest[0]) - 1)]
    answers = []
    for arguments in cases:
        outcome = callee.call(*arguments)
        if outcome.failed:
            return call_failed(callee, arguments, outcome)
        if not isinstance(outcome.value, bool):
            problem = f"it returned {result_text(outcome.value)}, which is neither True nor False"
            return unexpected_result(callee, arguments, problem)
        answers.append(outcome.value)
    wrongs = [k for k, arguments in enumerate(cases) if answers[k] != merges(*arguments)]
    if not wrongs:
        return right("It agrees with the compiler's own merging.", ("tried", f"{len(cases)} pairs of loops"))
    extents, accesses, j = cases[wrongs[0]]
    facts: tuple = (("extents", extents), ("accesses", accesses), ("j", j), ("yours", answers[wrongs[0]]))
    if answers[wrongs[0]]:
        guilty = next(access for access in accesses if not merges(extents, (access,), j))
        reached = guilty[j + 1] * (extents[j + 1] - 1)
        facts += (("access", guilty), ("the inner loop gets as far as", reached),
                  ("where the next step of the outer loop begins", guilty[j]))  # fmt: skip
    for name, condition, message in LOOKALIKES:
        if all(answer == condition(*arguments) for answer, arguments in zip(answers, cases, strict=True)):
            return wrong(message, *facts, mistake=name)
    if answers[wrongs[0]]:
        return wrong("These two loops cannot be one.", *facts, mistake="false-merge")
    message = "These two loops are one: every access goes through both with one step."
    return wrong(message, *facts, mistake="missed-merge")


def judge_loop_order(callee: Callee, seed: int | None) -> Verdict:
    """The student's order, given to the compiler, against the best of all orders."""
    orders = []
    for extents, accesses in nests(seed):
        arguments = (extents, accesses)
        outcome = callee.call(*arguments)
        if outcome.failed:
            return call_failed(callee, arguments, outcome)
        order = tuple(outcome.value) if isinstance(outcome.value, list | tuple) else ()
        if sorted(order, key=repr) != list(range(len(extents))):
            problem = f"{result_text(outcome.value)} does not name each of the {len(extents)} loops once"
            return unexpected_result(callee, arguments, problem)
        orders.append(order)
    for (extents, accesses), order in zip(nests(seed), orders, strict=True):
        mine = loops_left(extents, accesses, order)
        if mine == fewest_loops(extents, accesses):
            continue
        facts = (("extents", extents), ("accesses", accesses), ("your order", order), ("loops left", mine))
        if all(order == tuple(range(len(order))) for order in orders):
            return wrong("In the given order more loops are left than need be.", *facts, mistake="given-order")
        return nearly("Another order leaves fewer loops.", *facts, mistake="not-the-fewest")
    return right("No order leaves fewer loops.", ("tried", f"{len(orders)} nests, against all orders"))
