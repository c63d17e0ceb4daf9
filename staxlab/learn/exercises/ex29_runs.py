"""What Exercise 29 runs: bounds of index expressions, guard classes, and the rule for splitting a sum."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...loops.expressions import Expr, Symbol
from ...loops.intervals import NARROW
from ...loops.splitting import Split, choose_split
from ...measure.version_counts import version_history
from ...options import GPU_SPECS
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import Slip, call_failed, result_text, unexpected_result
from ..variants import generator
from . import ex29_answers
from .ex25_runs import different

if TYPE_CHECKING:
    from .ex29 import Variant

FITS = "suffice"
TOO_LARGE = "do not suffice"

WIDE_COST = "slower arithmetic and more registers, in every call"
GUARD_COST = "a comparison at each call, and another version where it fails"
VALUES_COST = "wrong values for large tensors"
COPY_COST = "a copy of the tensor"
OPTIONS_OF_COST = (WIDE_COST, GUARD_COST, VALUES_COST, COPY_COST)


@dataclass(frozen=True)
class Truth:
    """The largest subscript, whether 32 bits hold it, and how much longer a segment gets by the hint's choice."""

    largest: int
    fits: bool
    ratio: Fraction


def largest_index(uppers: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """The bound of the index expression, by the package's own intervals."""
    index = Expr.of(0)
    for number, (upper, stride) in enumerate(zip(uppers, strides, strict=True)):
        index = index + Expr.of(Symbol(f"i{number}", 0, upper - 1)) * stride
    return int(index.bounds().upper)


@lru_cache(maxsize=256)
def most_rows_of(columns: int) -> int:
    """The largest number of rows whose subscripts fit, by bisection on the bound."""
    low, high = 1, 1 << 32  # fits, does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if largest_index((middle, columns), (columns, 1)) <= NARROW else (low, middle)
    return low


def segments_of(elements: int) -> int:
    """What Algorithm 6.1 chooses for the sum of so many elements on an H100."""
    split: Split = choose_split("y", "sum", 1, elements, GPU_SPECS["sm_90"])[0]
    return split.segments


def truth_of(variant: Variant) -> Truth:
    """The package's answers for one variant."""
    largest = largest_index((variant.most_rows, variant.columns), (variant.columns, 1))
    later = 1 << variant.later_exponent
    by_hint, by_size = segments_of(1 << variant.hint_exponent), segments_of(later)
    return Truth(largest, largest <= NARROW, Fraction(-(-later // by_hint), -(-later // by_size)))


def index_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other subscripts one may arrive at."""
    c, n, truth = variant.columns, variant.most_rows, truth_of(variant).largest
    return different(Fraction(truth), (
        Slip("count", Fraction(c * n), "That is how many elements there are; the first one has subscript 0."),
        Slip("last-row", Fraction(c * (n - 1)), "That is where the last row begins."),
        Slip("one-row-more", Fraction(c * n + c - 1), "i_0 goes up to n - 1."),
        Slip("bytes", Fraction(4 * c * n - 1), "Subscripts are counted in elements."),
    ))  # fmt: skip


def slowdown_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other factors one may arrive at."""
    truth = truth_of(variant).ratio
    hint, later = 1 << variant.hint_exponent, 1 << variant.later_exponent
    return different(truth, (
        Slip("inverse", 1 / truth, "The other way round: longer by that factor."),
        Slip("sizes", Fraction(later, hint), "That is the ratio of the sizes; ask for the lengths of segments."),
        Slip("none", Fraction(1), "The number of segments does not follow the size: it is part of the kernel."),
        Slip("segments-of-hint", Fraction(-(-later // segments_of(hint))), "That is the longest segment itself."),
    ))  # fmt: skip


def reasons_of_cost(truth: str) -> dict[str, str]:
    """What speaks against the other costs."""
    return {
        WIDE_COST: "Subscripts of 32 bits stay; that is what the guard is for.",
        GUARD_COST: "There is nothing to guard: 64 bits hold every subscript.",
        VALUES_COST: "Neither may give a wrong value.",
        COPY_COST: "Nothing is copied.",
    }


# --- Judging functions ------------------------------------------------------------------------------------------------


def judge_most_rows(callee: Callee) -> Verdict:
    """The student's bound for many widths, against bisection on the largest subscript."""
    widths = (1, 2, 3, 5, 7, 64, 100, 127, 128, 129, 1000, 4096, 65537, 1 << 20, (1 << 31) - 1, 1 << 31)
    given = []
    for c in widths:
        outcome = callee.call(c)
        if outcome.failed:
            return call_failed(callee, (c,), outcome)
        if isinstance(outcome.value, bool) or not isinstance(outcome.value, int):
            return unexpected_result(callee, (c,), f"{result_text(outcome.value)} is no whole number")
        given.append(outcome.value)
    wrongs = [(c, value) for c, value in zip(widths, given, strict=True) if value != most_rows_of(c)]
    if not wrongs:
        return right("The largest bound, each time.", ("tried", f"{len(widths)} widths"))
    c, value = wrongs[0]
    facts = (("c", c), ("yours", value), ("largest subscript then", f"{c * value - 1:,}"), ("2^31 - 1", f"{NARROW:,}"))
    for name, (rule, message) in ROWS_MISTAKES.items():
        if given == [rule(c) for c in widths]:
            return wrong(message, *facts, mistake=name)
    if value > most_rows_of(c):
        return wrong("The last subscript does not fit.", *facts, mistake="too-large")
    return wrong("One row more would fit as well.", *facts, mistake="too-small")


ROWS_MISTAKES = {
    "count-below": (ex29_answers._count_below, "2^31 elements may be there: the last one has subscript 2^31 - 1."),
    "bytes": (ex29_answers._in_bytes, "Subscripts are counted in elements, not in bytes."),
    "unsigned": (ex29_answers._unsigned, "Subscripts are signed numbers of 32 bits."),
}


def judge_index_bits(callee: Callee, seed: int | None) -> Verdict:
    """The student's decision for subscripts at and around the edge."""
    rng = generator(seed, "indices")
    cases: list[tuple[list[int | None], list[int]]] = [
        ([1 << 24, 128], [128, 1]),
        ([(1 << 24) + 1, 128], [128, 1]),
        ([None, 128], [128, 1]),
        ([None, 128], [0, 1]),
        ([1 << 40, 128], [0, 1]),
        ([1 << 31], [1]),
        ([(1 << 31) + 1], [1]),
        ([3, None], [5, 1]),
        ([1, 1 << 31], [1 << 40, 1]),
        ([], []),
        ([1 << 30, 2], [2, 1]),
        ([1 << 16, 1 << 15], [1, 1 << 16]),
        ([2, 2], [1 << 31, 1]),
    ]
    for _ in range(20):
        c = rng.randint(2, 5000)
        cases.append(([most_rows_of(c) + rng.randint(0, 1), c], [c, 1]))
    given, truths = [], []
    for uppers, strides in cases:
        outcome = callee.call(list(uppers), list(strides))
        if outcome.failed:
            return call_failed(callee, (uppers, strides), outcome)
        if outcome.value not in (32, 64):
            return unexpected_result(callee, (uppers, strides), f"{result_text(outcome.value)} is neither 32 nor 64")
        moving = [(u, s) for u, s in zip(uppers, strides, strict=True) if s]
        bounded = tuple(u for u, _ in moving if u is not None)
        fits = len(bounded) == len(moving) and largest_index(bounded, tuple(s for _, s in moving)) <= NARROW
        given.append(outcome.value)
        truths.append(32 if fits else 64)
    wrongs = [k for k, (value, truth) in enumerate(zip(given, truths, strict=True)) if value != truth]
    if not wrongs:
        return right("Decided for the whole range, each time.", ("tried", f"{len(cases)} subscripts"))
    k = wrongs[0]
    facts = (("uppers, strides", f"{cases[k][0]}, {cases[k][1]}"), ("yours", given[k]))
    for name, (rule, message) in BITS_MISTAKES.items():
        if given == [_quietly(rule, *case) for case in cases]:
            return wrong(message, *facts, mistake=name)
    if given[k] == 32:
        return wrong("A size of the range has a larger subscript.", *facts, mistake="overflow")
    return wrong("All subscripts of the range fit.", *facts, mistake="too-careful")


def _quietly(rule: Any, *case: Any) -> Any:
    try:
        return rule(*case)
    except TypeError:  # a slip that does not know sizes without a bound
        return None


BITS_MISTAKES = {
    "counts": (ex29_answers._bits_of_counts, "A size of u has subscripts up to u - 1."),
    "broadcast-forgotten": (ex29_answers._bits_unbounded, "A dimension of stride 0 adds nothing, however large it is."),
    "always-wide": (ex29_answers._bits_wide, "That is always correct, and more than is needed."),
}


def judge_version_counts(callee: Callee, seed: int | None) -> Verdict:
    """The student's counts against guard classes along histories of calls."""
    rng = generator(seed, "histories")
    edge = most_rows_of(128)
    cases: list[tuple[list[int], int]] = [
        ([2, 3, 4], 128),
        ([edge, edge + 1], 128),
        ([edge], 128),
        ([edge + 1, edge + 2], 128),
        ([5, edge + 7, 6, edge + 9, 7], 128),
        ([2] * 3, 1 << 20),
    ]
    for _ in range(12):
        c = rng.randint(2, 3000)
        cases.append(
            ([most_rows_of(c) + rng.randint(-3, 1 + rng.choice((-1, 3))) for _ in range(rng.randint(1, 4))], c)
        )
    given, truths = [], []
    for sizes, c in cases:
        outcome = callee.call(list(sizes), c)
        if outcome.failed:
            return call_failed(callee, (sizes, c), outcome)
        pair = outcome.value
        whole = isinstance(pair, (tuple, list)) and len(pair) == 2
        if not whole or not all(isinstance(part, int) and not isinstance(part, bool) for part in pair):
            return unexpected_result(callee, (sizes, c), f"{result_text(pair)} is no pair of whole numbers")
        guards = {"narrow": lambda n, c=c: largest_index((n, c), (c, 1)) <= NARROW}
        wide, guarded = version_history(sizes), version_history(sizes, guards=guards)
        given.append(tuple(pair))
        truths.append((int(wide.after(len(sizes), "symbolic")), int(guarded.after(len(sizes), "symbolic"))))
    wrongs = [k for k, (value, truth) in enumerate(zip(given, truths, strict=True)) if value != truth]
    if not wrongs:
        return right("As many as there are classes of sizes.", ("tried", f"{len(cases)} histories"))
    k = wrongs[0]
    facts = (("sizes", str(cases[k][0])), ("c", cases[k][1]), ("yours", str(given[k])))
    for name, (rule, message) in COUNTS_MISTAKES.items():
        if given == [rule(*case) for case in cases]:
            return wrong(message, *facts, mistake=name)
    if given[k][0] != truths[k][0]:
        return wrong("64-bit subscripts hold every size: one version serves all of these.", *facts, mistake="wide")
    return wrong("Sizes that answer the guard alike share a version.", *facts, mistake="guarded")


COUNTS_MISTAKES = {
    "concrete": (ex29_answers._counts_of_sizes, "Sizes are symbols here: they do not make a version each."),
    "always-two": (ex29_answers._counts_two, "A version is compiled only when a call needs it."),
    "edge": (ex29_answers._counts_at_edge, "At exactly 2^31 elements the largest subscript is 2^31 - 1, which fits."),
}


def judge_segment_sums(callee: Callee) -> Verdict:
    """The student's sums of powers of two, which show what each of them holds."""
    for count, k in ((6, 2), (6, 3), (7, 3), (1, 1), (5, 5), (3, 5), (0, 4), (9, 4), (10, 4), (17, 8)):
        values = [1 << position for position in range(count)]
        outcome = callee.collect(list(values), k, limit=100)
        if outcome.failed:
            return call_failed(callee, (values, k), outcome)
        sums = outcome.value
        if any(isinstance(entry, bool) or not isinstance(entry, int) for entry in sums):
            return unexpected_result(callee, (values, k), f"{result_text(sums)} is no list of whole numbers")
        length = -(-count // k)
        truth = [sum(values[j * length : (j + 1) * length]) for j in range(k)]
        if sums == truth:
            continue
        facts = (("values", str(values)), ("k", k), ("yours", result_text(sums)))
        total = sum(sums)
        if total < sum(values) and (total & ~sum(values)) == 0:
            return wrong("Values at the end are in no segment.", *facts, mistake="tail-lost")
        if len(sums) != k:
            return wrong(f"There are {k} segments, empty ones included.", *facts, mistake="number-of-segments")
        if total == sum(values):
            return wrong("Every value is there, but not in these segments.", *facts, mistake="other-segments")
        return wrong("A value is counted more than once.", *facts, mistake="counted-twice")
    return right("Every value once, for every size.", ("tried", "10 sizes, smaller than k among them"))
