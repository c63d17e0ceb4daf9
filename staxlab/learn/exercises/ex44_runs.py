"""What Exercise 44 runs: a chain of pointwise operators on two clocks, eager and compiled, with exact fractions.

Nothing here solves for a size. Two models of duration are evaluated, as Section 13.4 states them, and the smallest size
that wins is found from them; where there are two bandwidths, by trying one size after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..answers import Callee, Malformed, as_number
from ..feedback import Verdict, nearly, right, wrong
from ..formula import Value
from ..judges import Slip, call_failed, number_text, result_text, unexpected_result
from ..variants import generator
from .ex25_runs import different

if TYPE_CHECKING:
    from .ex44 import Variant

ITEMSIZE = 4

UNCHANGED = "it is the one of Proposition 13.6, whatever the numbers of reads"
SMALLER = "it becomes smaller, since eager execution reads more"
LARGER = "it becomes larger, since the fused kernel reads more"

#: The outside tensors that each operator of a chain reads; from the second on, it reads the result before it as well.
Chain = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Durations:
    """Both durations of a chain as functions of N. Overheads and ``beta`` in consistent units (seconds, bytes per
    second; or microseconds, bytes per microsecond). ``eager_tensors`` and ``fused_tensors`` are tensors moved per
    chain, reads and writes."""

    operators: int
    eager_tensors: int
    fused_tensors: int
    tau_e: Fraction
    tau_c: Fraction
    beta: Fraction

    def eager(self, n: Value) -> Fraction:
        return self.operators * self.tau_e + ITEMSIZE * self.eager_tensors * Fraction(n) / self.beta

    def compiled(self, n: Value) -> Fraction:
        return self.tau_c + ITEMSIZE * self.fused_tensors * Fraction(n) / self.beta

    def wins(self, n: Value) -> bool:
        """Whether compiled execution is faster at this size."""
        return self.compiled(n) < self.eager(n)

    @property
    def meeting(self) -> Fraction | None:
        """The size at which both take equally long; None where the difference does not depend on the size. From the
        durations at 0 and at 1, which determine the two lines."""
        at_zero, at_one = (self.compiled(n) - self.eager(n) for n in (0, 1))
        return at_zero / (at_zero - at_one) if at_zero != at_one else None

    @property
    def fewest(self) -> int | None:
        """The smallest whole N from 1 on at which compiled execution is faster; None if it never is."""
        meeting = self.meeting
        if meeting is None:
            return 1 if self.wins(1) else None
        return max(1, meeting.__floor__() + 1)


def of_counts(k: int, reads: int, distinct: int, tau_e: Value, tau_c: Value, beta: Value) -> Durations:
    """Operators that read ``reads`` tensors in all, ``distinct`` different ones of them from outside."""
    return Durations(k, reads + k, distinct + 1, Fraction(tau_e), Fraction(tau_c), Fraction(beta))


def of_chain(chain: Chain, tau_e: Value, tau_c: Value, beta: Value) -> Durations:
    reads = sum(len(outside) + (i > 0) for i, outside in enumerate(chain))
    distinct = len({name for outside in chain for name in outside})
    return of_counts(len(chain), reads, distinct, tau_e, tau_c, beta)


def plain(variant: Variant, k: int, tau_c: Fraction, beta: Fraction | None = None) -> Durations:
    """The variant's numbers, in microseconds, for k operators that read one tensor and write one."""
    return of_counts(k, k, 1, variant.tau_e, tau_c, beta or variant.bandwidth)


# --- Two levels of memory ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def last_loss(at_memory: int, ratio: int, limit: int) -> int:
    """The largest size at which compiled execution does not win, by trying them all.

    Up to ``limit`` elements all moves ``ratio`` times as fast as beyond; ``at_memory`` is N* at the speed beyond.
    One unit of time moves what fusion saves per element at that speed, so the overhead to be made up is ``at_memory``.
    """
    last = 0
    for n in range(1, max(ratio * at_memory, limit) + 2):
        saved = Fraction(n, ratio if n <= limit else 1)
        if saved <= at_memory:
            last = n
    return last


# --- Slips ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def fewest_slips(variant: Variant, k: int, tau_c: Fraction) -> tuple[Slip, ...]:
    """Other sizes one may arrive at."""
    durations = plain(variant, k, tau_c)
    truth = durations.fewest
    assert truth is not None
    extra, beta = tau_c - k * variant.tau_e, variant.bandwidth

    def whole(size: Fraction) -> Fraction:
        return Fraction(max(1, size.__floor__() + 1))

    meeting = durations.meeting
    assert meeting is not None
    equal = Fraction(truth - 1)
    found = [
        Slip("one-overhead", whole((tau_c - variant.tau_e) * beta / (8 * (k - 1))),
             "Eager execution pays its overhead for every operator."),
        Slip("all-operators", whole(extra * beta / (8 * k)), "The fused kernel reads and writes once, too: k - 1."),
        Slip("bytes", whole(8 * extra * beta / (8 * (k - 1))), "In elements, not bytes."),
        Slip("one-way", whole(extra * beta / (4 * (k - 1))), "Each tensor in between is written and read again."),
    ]  # fmt: skip
    if equal >= 1:
        found.append(Slip("not-yet-faster", equal, "At that size it is not faster yet.", Fraction(1, 2)))
    return different(Fraction(truth), found)


@lru_cache(maxsize=64)
def limit_slips(variant: Variant) -> tuple[Slip, ...]:
    total = variant.cores * variant.l2_kib * 1024
    return different(
        Fraction(variant.l2_limit),
        (
            Slip("one-core", Fraction(variant.l2_kib * 1024, 8), "All cores take part, each with its share in its L2."),
            Slip("one-tensor", Fraction(total, 4), "What an operator reads and what it writes have to fit."),
            Slip("bytes", Fraction(total), "These are bytes."),
        ),
    )


@lru_cache(maxsize=64)
def bandwidth_slips(variant: Variant) -> tuple[Slip, ...]:
    """In GB/s."""
    truth = variant.largest_bandwidth
    extra = variant.tau_same - 2 * variant.tau_e
    limit = variant.l2_limit
    return different(
        truth,
        (
            Slip("one-overhead", limit * 8 / (variant.tau_same - variant.tau_e) / 1000,
                 "Eager execution pays its overhead for every operator."),
            Slip("one-way", limit * 4 / extra / 1000, "The tensor in between is written and read again: 8 bytes."),
            Slip("megabytes", truth * 1000, "That is in MB/s."),
        ),
    )  # fmt: skip


@lru_cache(maxsize=64)
def always_slips(variant: Variant) -> tuple[Slip, ...]:
    truth = variant.always_same
    return different(
        Fraction(truth),
        (
            Slip("one-less", Fraction(truth - 1), "With so many the overheads are not made up yet."),
            Slip("new-tensors", Fraction(fewest_operators(variant.tau_new, variant.tau_e)),
                 "That is for new tensors each time."),
        ),
    )  # fmt: skip


def fewest_operators(tau_c: Fraction, tau_e: Fraction) -> int:
    """The shortest chain for which compiled execution is faster at every size from 1 on whatever the bandwidth, by
    trying them: without data it must not be slower."""
    k = 2
    while tau_c > k * tau_e:
        k += 1
    return k


# --- The students' functions ------------------------------------------------------------------------------------------

#: Chains, simplest first. Names in one operator are different.
CHAINS: tuple[Chain, ...] = (
    (("x",), ()),
    (("x",),),
    (("x", "y"), ()),
    (("x",), ("y",)),
    (("x",), ("x",)),
    (("x", "y"), ("x",), ("y",)),
    (("a", "b", "c"), (), ("d",), ()),
)


def chain_cases(seed: int | None) -> list[tuple[Chain, int, int, int]]:
    """Chains with overheads and a bandwidth, in whole units."""
    cases = [(chain, 2, 20, 50) for chain in CHAINS]
    # Compiled calls that cost no more than the eager ones, exactly as much, and a single operator either way.
    cases += [(CHAINS[0], 7, 9, 10), (CHAINS[0], 5, 10, 16), (CHAINS[1], 4, 3, 10), (CHAINS[1], 3, 3, 10)]
    cases += [(CHAINS[0], 1, 6, 4), (CHAINS[4], 1, 5, 16)]  # both take equally long at a whole size
    rng = generator(seed, "chains")
    for _ in range(12):
        first = tuple(rng.sample("abcd", rng.randint(1, 3)))
        rest = tuple(tuple(rng.sample("abcd", rng.randint(0, 2))) for _ in range(rng.randint(0, 5)))
        cases.append(((first, *rest), rng.randint(1, 9), rng.randint(1, 60), rng.randint(1, 90)))
    return cases


def _changed(k: Any = None, eager: Any = None, fused: Any = None) -> Any:
    """The smallest size by a model in which something is counted otherwise."""

    def fewest(chain: Chain, tau_e: int, tau_c: int, beta: int) -> int | None:
        true = of_chain(chain, tau_e, tau_c, beta)
        return Durations(
            k(true) if k else true.operators,
            eager(chain, true) if eager else true.eager_tensors,
            fused(chain, true) if fused else true.fused_tensors,
            true.tau_e, true.tau_c, true.beta,
        ).fewest  # fmt: skip

    return fewest


def _outside(chain: Chain) -> int:
    return sum(map(len, chain))


#: name of a mistake: the answers it leads to, and what to say.
CHAIN_MISTAKES: dict[str, tuple[Any, str]] = {
    "shared-counted-twice": (
        _changed(fused=lambda chain, true: _outside(chain) + 1),
        "The fused kernel reads a tensor once, however many operators use it.",
    ),
    # One tensor for every result in between is missing, on either way the same number.
    "half-a-round-trip": (
        _changed(eager=lambda chain, true: true.eager_tensors - (true.operators - 1)),
        "What lies between two operators is written by one and read again by the next.",
    ),
    "one-overhead": (_changed(k=lambda true: 1), "Eager execution pays its overhead for every operator."),
    "shared-read-once": (
        _changed(eager=lambda chain, true: true.fused_tensors + 2 * (true.operators - 1)),
        "Eager execution reads a tensor again in every operator that uses it.",
    ),
}


def judge_fewest(callee: Callee, seed: int | None) -> Verdict:
    """The student's smallest size against both clocks, just at it and just below."""
    cases = chain_cases(seed)
    given: list[int | None] = []
    for case in cases:
        chain, *numbers = case
        outcome = callee.call([list(outside) for outside in chain], *numbers)
        if outcome.failed:
            return call_failed(callee, case, outcome)
        size = _size(outcome.value)
        if isinstance(size, str):
            return unexpected_result(callee, case, size)
        given.append(size)
    wrongs = [(case, size) for case, size in zip(cases, given, strict=True) if of_chain(*case).fewest != size]
    if not wrongs:
        return right("There it is faster, and just below it is not.", ("tried", f"{len(cases)} chains"))
    case, size = wrongs[0]
    chain, tau_e, tau_c, beta = case
    durations = of_chain(*case)
    facts = [("chain", str([list(outside) for outside in chain])), ("tau_e, tau_c, beta", f"{tau_e}, {tau_c}, {beta}")]
    facts.append(("yours", "None" if size is None else f"{size:,}"))
    for name, (mistaken, message) in CHAIN_MISTAKES.items():
        if all(answer == mistaken(*one) for one, answer in zip(cases, given, strict=True)):
            return wrong(message, *facts, mistake=name)
    if size is None:
        return wrong("From some size on it is faster.", *facts, mistake="never")
    facts += [
        ("eager takes there", number_text(durations.eager(size))),
        ("compiled takes there", number_text(durations.compiled(size))),
    ]
    if durations.fewest is None:
        return wrong("It is never faster: say None.", *facts, mistake="no-such-size")
    if all(answer is not None and of_chain(*one).fewest == answer + 1 for one, answer in wrongs):
        return nearly("At that size both take equally long, or compiled longer.", *facts, mistake="not-yet-faster")
    if not durations.wins(size):
        return wrong("At that size it is not faster.", *facts, mistake="too-small")
    return wrong("A smaller size would do.", *facts, mistake="too-large")


def _size(value: Any) -> int | None | str:
    """A whole number from 1 on, None, or what is wrong with it."""
    if value is None:
        return None
    try:
        number = as_number(value)
    except Malformed as error:
        return str(error)
    if number != int(number) or number < 1:
        return f"{result_text(value)} is no whole number from 1 on, and not None"
    return int(number)
