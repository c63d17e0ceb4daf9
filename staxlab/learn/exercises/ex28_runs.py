"""What Exercise 28 runs: guards at every size of a range, and versions by compiling a function that has the branch."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from ...api import compile as compile_function
from ...measure.version_counts import version_history
from ...shapes.bucketed import bucketed
from ...shapes.bucketing import Buckets, bucket
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import Slip, call_failed, result_text, unexpected_result
from ..variants import generator
from .ex25_runs import different

if TYPE_CHECKING:
    from .ex28 import Variant

IMPLIED = "the range implies it, and it is removed"
VIOLATED = "part of the range violates it, and it is an error"
KEPT = "it is kept as an assertion at run time"

MOST = 2000  # versions; more than any variant needs


@dataclass(frozen=True)
class Truth:
    """What was counted for one variant. ``narrower`` are the ends of the widest range around the sample."""

    satisfied: int
    narrower: tuple[int, int]
    concrete: int
    symbolic: int
    bucketed: int
    waste: Fraction
    other_way: int


def holds(n: int, d: int, s: int) -> bool:
    """The guard that a sample of size ``s`` leaves: the decision comes out as it did for the sample."""
    return (n % d == 0) is (s % d == 0)


@lru_cache(maxsize=64)
def truth_of(variant: Variant) -> Truth:
    """Counted at every size, and by compiling: nothing here is a formula."""
    d, s, upper, last = variant.divisor, variant.sample, variant.upper, variant.last
    valid = [n for n in range(1, upper + 1) if holds(n, d, s)]
    low = high = s
    while low - 1 in valid:
        low -= 1
    while high + 1 in valid:
        high += 1
    sizes = range(1, last + 1)
    symbolic = version_history(sizes, guards={"n % d == 0": lambda n: n % d == 0}).after(last, "symbolic")
    concrete, padded, others = compiled_counts(d, 1, last)
    return Truth(
        len(valid), (low, high), concrete, int(symbolic), padded, Buckets().worst_waste(1, last), others
    )  # fmt: skip


@lru_cache(maxsize=64)
def compiled_counts(d: int, smallest: int, largest: int) -> tuple[int, int, int]:
    """Versions for concrete shapes and for powers of two, and calls whose values differ, by calling a function with the
    branch for every size. A version runs operator by operator: only their number matters."""

    def branching(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] % d == 0 else x + 3

    limits = {"max_versions": MOST, "max_compilations": MOST}
    concrete = compile_function(branching, backend="eager", options=limits)
    inner = compile_function(branching, backend="eager", options=limits)
    # Unchecked on purpose: the check refuses this function, and what it does to its values is a question here.
    padded = bucketed(inner, dims={"x": 0}, pad=0.0, results=0, check=False)
    others = 0
    for n in range(smallest, largest + 1):
        x = torch.ones(n)
        others += not torch.equal(concrete(x), padded(x))
    return len(concrete.versions), len(padded.versions), others


# --- Judging functions ------------------------------------------------------------------------------------------------

GUARD_MISTAKES = {
    "true-branch-only": (lambda n, d, s: n % d == 0, "Your guard takes the question to have been answered with yes."),
    "other-branch": (lambda n, d, s: not holds(n, d, s), "These sizes go the other way than the sample."),
    "concrete": (lambda n, d, s: n == s, "That is the concrete shape: the guard is only about the question asked."),
    "same-residue": (
        lambda n, d, s: n % d == s % d,
        "Too narrow: whether there is a remainder was asked, not which.",
    ),
    "always": (lambda n, d, s: True, "Then a size that goes the other way would be served by this version."),
}


def judge_guard(callee: Callee, seed: int | None) -> Verdict:
    """The student's guard against the decision itself, at sizes around multiples, for several divisors and samples."""
    rng = generator(seed, "guards")
    cases = [(n, d, s) for d in (2, 3, 5) for s in (2 * d, 2 * d + 1, 3 * d - 1) for n in range(1, 2 * d + 2)]
    for _ in range(20):
        d = rng.randint(2, 20)
        cases.append((rng.randint(1, 100), d, rng.choice((d * rng.randint(1, 9), rng.randint(1, 100)))))
    given = []
    for case in cases:
        outcome = callee.call(*case)
        if outcome.failed:
            return call_failed(callee, case, outcome)
        if not isinstance(outcome.value, bool):
            return unexpected_result(callee, case, f"{result_text(outcome.value)} is neither True nor False")
        given.append(outcome.value)
    wrongs = [(case, value) for case, value in zip(cases, given, strict=True) if value != holds(*case)]
    if not wrongs:
        return right("The sizes for which the question has the sample's answer.", ("tried", f"{len(cases)} sizes"))
    for name, (rule, message) in GUARD_MISTAKES.items():
        if given == [rule(*case) for case in cases]:
            return wrong(message, *_guard_facts(*wrongs[0]), mistake=name)
    return wrong("Not the guard.", *_guard_facts(*wrongs[0]))


def _guard_facts(case: tuple[int, int, int], value: bool) -> tuple[tuple[str, Any], ...]:
    n, d, s = case
    return (
        ("n, d, s", f"{n}, {d}, {s}"),
        ("n goes", "the sample's way" if holds(*case) else "the other way"),
        ("your guard", "holds" if value else "does not hold"),
    )


VERSION_MISTAKES = {
    "bound": (
        lambda m, M: Buckets().bound(m, M),
        "That is the bound of the proposition, which counts from the power of two below m.",
    ),
    "one-end": (lambda m, M: len(Buckets().between(m, M)) - 1, "Both ends belong to it."),
    "from-one": (lambda m, M: len(Buckets().between(1, M)), "Sizes below m do not occur."),
    "every-size": (lambda m, M: M - m + 1, "That is one for each size."),
}


def judge_bucket_versions(callee: Callee, variant: Variant) -> Verdict:
    """The student's count against the powers of two that occur, and once against versions that were compiled."""
    cases = [(m, M) for M in (1, 2, 3, 4, 7, 8, 9, 16, 17, 20) for m in range(1, M + 1, 1 + M // 8)]
    cases += [(5, 20), (4, 20), (257, 512), (256, 513), (300, 5000)]
    given = []
    for case in cases:
        outcome = callee.call(*case)
        if outcome.failed:
            return call_failed(callee, case, outcome)
        if isinstance(outcome.value, bool) or not isinstance(outcome.value, int):
            return unexpected_result(callee, case, f"{result_text(outcome.value)} is no whole number")
        given.append(outcome.value)
    truths = [len({bucket(n) for n in range(m, M + 1)}) for m, M in cases]
    wrongs = [k for k, (value, truth) in enumerate(zip(given, truths, strict=True)) if value != truth]
    if not wrongs:
        made = compiled_counts(variant.divisor, 5, 20)[1]
        assert made == truths[cases.index((5, 20))], "versions are what buckets say"
        return right("As many as there are.", ("tried", f"{len(cases)} ranges"), ("compiled for 5 to 20", made))
    (m, M), value = cases[wrongs[0]], given[wrongs[0]]
    used = sorted({bucket(n) for n in range(m, M + 1)})
    facts = (("m, M", f"{m}, {M}"), ("rounded up to", ", ".join(map(str, used))), ("yours", value))
    for name, (rule, message) in VERSION_MISTAKES.items():
        if given == [rule(*case) for case in cases]:
            return wrong(message, *facts, mistake=name)
    return wrong("Not the number of powers of two.", *facts)


# --- Slips ------------------------------------------------------------------------------------------------------------


def satisfied_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other numbers of sizes one may arrive at."""
    satisfied, upper = truth_of(variant).satisfied, variant.upper
    return different(Fraction(satisfied), (
        Slip("other-branch", Fraction(upper - satisfied), "These are the sizes that go the other way."),
        Slip("from-zero", Fraction(satisfied + 1), "The range begins at 1."),
        Slip("concrete", Fraction(1), "That is the sample's size alone."),
        Slip("whole-range", Fraction(upper), "Not every size of the range satisfies it."),
    ))  # fmt: skip


def range_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other ranges one may name."""
    upper, truth = variant.upper, truth_of(variant).narrower
    found = (
        Slip("first-multiple", (variant.divisor, upper), "It holds at both ends perhaps, but not in between."),
        Slip("from-sample", (variant.sample, upper), "Sizes just above the sample violate the guard sooner or later."),
        Slip("whole-range", (1, upper), "That is the declared range itself."),
    )
    return tuple(slip for slip in found if slip.answer != truth)


def concrete_slips(variant: Variant) -> tuple[Slip, ...]:
    truth = truth_of(variant)
    return different(Fraction(truth.concrete), (
        Slip("two-branches", Fraction(2), "The key holds the shape itself, not the answer to the question."),
        Slip("size-one-apart", Fraction(truth.concrete + 1), "Every size has one version, size 1 as well."),
        Slip("default-limit", Fraction(8), "That is how many are kept by default; here no limit stops it."),
    ))  # fmt: skip


def symbolic_slips(variant: Variant) -> tuple[Slip, ...]:
    truth = truth_of(variant)
    return different(Fraction(truth.symbolic), (
        Slip("size-one-forgotten", Fraction(truth.symbolic - 1), "Size 1 is specialized: broadcasting depends on it."),
        Slip("one-version", Fraction(1), "The question has two answers."),
        Slip("size-zero", Fraction(truth.symbolic + 1), "Size 0 is not among the calls."),
        Slip("concrete", Fraction(truth.concrete), "Sizes that answer alike share a version."),
    ))  # fmt: skip


def bucketed_slips(variant: Variant) -> tuple[Slip, ...]:
    truth = truth_of(variant)
    return different(Fraction(truth.bucketed), (
        Slip("one-end", Fraction(truth.bucketed - 1), "1 is a power of two as well, and the last one counts."),
        Slip("zero-bucket", Fraction(truth.bucketed + 1), "No power of two is below 1."),
        Slip("concrete", Fraction(truth.concrete), "Sizes in one bucket share a version."),
    ))  # fmt: skip


def waste_slips(variant: Variant) -> tuple[Slip, ...]:
    last = variant.last
    return different(truth_of(variant).waste, (
        Slip("bound", Fraction(2), "The padded size stays below twice the true one: 2 is not reached."),
        Slip("last-call", Fraction(bucket(last), last), "That is the last call's; another one wastes more."),
        Slip("inverse", 1 / truth_of(variant).waste, "The other way round."),
    ))  # fmt: skip


def branch_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other numbers of calls one may arrive at."""
    d, last, truth = variant.divisor, variant.last, truth_of(variant)
    multiples = last // d
    padded = sum(bucket(n) != n for n in range(1, last + 1))
    return different(Fraction(truth.other_way), (
        Slip("all-padded", Fraction(padded), "Not every padded call: some sizes keep their answer."),
        Slip("non-multiples", Fraction(last - multiples), "Some of these are rounded to sizes that go their way."),
        Slip("multiples", Fraction(multiples), "Ask which way each size goes before rounding, and which way after."),
        Slip("none", Fraction(0), "The function asks about the size it is given."),
    ))  # fmt: skip
