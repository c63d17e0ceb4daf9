"""What Exercise 39 runs: inputs of one key, rewritten programs on samples and on a followed size, and decisions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ..answers import Callee
from ..data_sizes import AssertionFailed, Watch, assertion, watched
from ..feedback import Verdict, right, wrong
from ..judges import call_failed, result_text, unexpected_result
from ..variants import generator
from . import ex39_answers

if TYPE_CHECKING:
    from .ex39 import Variant

BEFORE = "before the call, from the shapes of its arguments"
AFTER = "in the middle of the call, once nonzero has run"
NEVER = "never"

ALWAYS_TRUE = "it is true"
ALWAYS_FALSE = "it is false"
REFUSED = "it is refused"


def decision_of(variant: Variant, bound: int) -> str:
    """What becomes of ``n > bound``, by trying every size that the constraints allow."""
    answers = {n > bound for n in range(variant.asserted + 1, variant.length + 1)}
    return REFUSED if len(answers) == 2 else ALWAYS_TRUE if True in answers else ALWAYS_FALSE


def reasons_against(variant: Variant, bound: int) -> dict[str, str]:
    """What speaks against each outcome, with a size that shows it."""
    sizes = range(variant.asserted + 1, variant.length + 1)
    above, below = next((n for n in sizes if n > bound), None), next((n for n in sizes if n <= bound), None)
    return {
        ALWAYS_TRUE: f"n may be {below}, and it is false then." if below is not None else "",
        ALWAYS_FALSE: f"n may be {above}, and it is true then." if above is not None else "",
        REFUSED: "Every size that the constraints allow gives the same answer.",
    }


# --- Part 1 -----------------------------------------------------------------------------------------------------------


def judge_witness(callee: Callee, seed: int | None) -> Verdict:
    """The student's inputs: same length, other way."""
    rng = generator(seed, "samples")
    cases = [([3.0], 0), ([0.0], 0), ([0.0, 0.0, 5.0], 0), ([0.0] * 4, 0), ([1.0, 2.0], 1), ([0.0, 7.0, 0.0], 1)]
    for _ in range(14):
        length = rng.randint(1, 9)
        cases.append(([float(rng.choice((0, 0, 1, -2))) for _ in range(length)], rng.randrange(length)))
    for values, k in cases:
        outcome = callee.call(list(values), k)
        if outcome.failed:
            return call_failed(callee, (values, k), outcome)
        other = outcome.value
        if not isinstance(other, (list, tuple)) or any(
            isinstance(v, bool) or not isinstance(v, (int, float)) for v in other
        ):
            return unexpected_result(callee, (values, k), f"{result_text(other)} is no list of numbers")
        counted = [int(torch.tensor([*map(float, each)]).nonzero().shape[0]) for each in (values, other)]
        facts = (("sample", str(values)), ("k", k), ("yours", result_text(other)), ("n of both", str(counted)))
        if len(other) != len(values):
            return wrong("That has another shape, hence another key.", *facts, mistake="other-key")
        if (counted[0] > k) == (counted[1] > k):
            return wrong("It goes the sample's way.", *facts, mistake="same-way")
    return right("Same key, other branch, for every sample.", ("tried", f"{len(cases)} samples"))


# --- Part 2 -----------------------------------------------------------------------------------------------------------


def judge_rewritten(callee: Callee, seed: int | None) -> Verdict:
    """Run the student's program where the user is right and where not; then follow it."""
    rng = generator(seed, "programs")
    samples = [[0.0, 2.0, 0.0], [5.0], [1.0, -1.0, 4.0, 0.0], [0.0, 0.0, 3.0, 0.5]]
    for _ in range(8):
        samples.append([float(rng.choice((0, 1, 2, -3, 8))) for _ in range(rng.randint(2, 9))])
    runs = [(values, k) for values in samples for k in (0, 1, 3)] + [([0.0, 0.0], 0), ([], 0), ([0.0, 6.0], 1)]
    for values, k in runs:
        verdict = _run(callee, values, k)
        if verdict is not None:
            return verdict
    for values, k in runs:
        if sum(v != 0 for v in values) > k:
            verdict = _follow(callee, values, k)
            if verdict is not None:
                return verdict
    return right(
        "Its values are f's, its assertion raises, and every decision follows.", ("tried", f"{len(runs)} inputs")
    )


def _run(callee: Callee, values: list[float], k: int) -> Verdict | None:
    x = torch.tensor(values, dtype=torch.float64)
    count = int(x.nonzero().shape[0])
    outcome = callee.call(x.clone(), k, assertion())
    facts: tuple[tuple[str, Any], ...] = (("x", str(values)), ("k", k), ("n", count))
    if count <= k:
        if isinstance(outcome.error, AssertionFailed):
            return None
        if not outcome.failed:
            found = (*facts, ("yours returned", result_text(outcome.value)))
            return wrong("Here the user is wrong, and your function does not say so.", *found, mistake="not-asserted")
        if outcome.timed_out:
            return call_failed(callee, (values, k), outcome)
        message = "It raises, but not through check: whatever decided that was a decision on data."
        return wrong(message, *facts, ("raised", outcome.reason()), mistake="decides-on-data")
    if isinstance(outcome.error, AssertionFailed):
        return wrong("Here the user is right, and your assertion fails.", *facts, mistake="too-strong")
    if outcome.failed:
        return call_failed(callee, (values, k), outcome)
    value = outcome.value
    if not isinstance(value, (torch.Tensor, int, float)) or (isinstance(value, torch.Tensor) and value.numel() != 1):
        return unexpected_result(callee, (values, k), f"{result_text(value)} is no single number")
    if not math.isclose(float(value), float(x.sum() / count), rel_tol=1e-9, abs_tol=1e-12):
        return wrong("Not what f returns.", *facts, ("yours", result_text(value)), mistake="other-values")
    return None


def _follow(callee: Callee, values: list[float], k: int) -> Verdict | None:
    x, watch = watched(torch.tensor(values, dtype=torch.float64))
    outcome = callee.call(x, k, assertion(watch))
    facts = (("x", str(values)), ("k", k), ("what happened", _told(watch)))
    kinds = watch.kinds()
    if "read" in kinds:
        message = "That takes a number out of the data, where nobody can follow it. A size is read as .shape[0]."
        return wrong(message, *facts, mistake="reads-data")
    if "undecided" in kinds:
        position = kinds.index("undecided")
        if "asserted" in kinds[:position]:
            message = "The decision does not follow from what you asserted before it."
            return wrong(message, *facts, mistake="too-weak")
        if "asserted" in kinds[position:]:
            return wrong("The assertion comes after the decision that needs it.", *facts, mistake="too-late")
        message = "This decision depends on the data. (An if that raises and Python's assert are decisions as well.)"
        return wrong(message, *facts, mistake="decides-on-data")
    if outcome.failed:
        return call_failed(callee, (values, k), outcome)
    return None


def _told(watch: Watch) -> str:
    return "; ".join(f"{event.kind}: {event.text}" for event in watch.events[:6]) or "nothing was asked"


# --- Part 3 -----------------------------------------------------------------------------------------------------------

DECIDE_MISTAKES = {
    "lowest": (ex39_answers._of_lowest, "That is the answer of the smallest size, as if it were a hint."),
    "never-false": (ex39_answers._never_false, "If no size is above k, the negation follows, which is as good."),
    "edge": (ex39_answers._off_by_one, "At u = k it is false."),
    "always-refused": (ex39_answers._always_refused, "Some decisions follow from what is known."),
    "guess": (ex39_answers._false_if_open, "Where both are possible neither answer is right for every size."),
}


def judge_decide(callee: Callee, seed: int | None) -> Verdict:
    """The student's decisions against trying every size (up to well beyond k where there is no upper bound)."""
    rng = generator(seed, "constraints")
    cases: list[tuple[int, int | None, int]] = [
        (0, 9, 0), (1, 9, 0), (0, 0, 0), (5, 9, 9), (5, 9, 8), (5, 9, 4), (5, 9, 5), (0, None, 0), (3, None, 2),
        (3, None, 3), (3, None, 100), (4, 4, 3), (4, 4, 4),
    ]  # fmt: skip
    for _ in range(20):
        low = rng.randint(0, 6)
        cases.append((low, rng.choice((None, low + rng.randint(0, 6))), rng.randint(0, 14)))
    given, truths = [], []
    for low, high, k in cases:
        outcome = callee.call(low, high, k)
        if outcome.failed:
            return call_failed(callee, (low, high, k), outcome)
        if outcome.value is not None and not isinstance(outcome.value, bool):
            return unexpected_result(callee, (low, high, k), f"{result_text(outcome.value)} is not True, False or None")
        given.append(outcome.value)
        answers = {u > k for u in range(low, (high if high is not None else max(low, k) + 2) + 1)}
        truths.append(answers.pop() if len(answers) == 1 else None)
    wrongs = [i for i, (value, truth) in enumerate(zip(given, truths, strict=True)) if value is not truth]
    if not wrongs:
        return right("What follows, what does not, and what is open.", ("tried", f"{len(cases)} constraints"))
    low, high, k = cases[wrongs[0]]
    known = f"{low} <= u <= {high}" if high is not None else f"u >= {low}"
    facts = (("known", known), ("decision", f"u > {k}"), ("yours", str(given[wrongs[0]])))
    for name, (rule, message) in DECIDE_MISTAKES.items():
        if given == [rule(*case) for case in cases]:
            return wrong(message, *facts, mistake=name)
    if given[wrongs[0]] is None:
        return wrong("It has the same answer for every such size.", *facts, mistake="refuses-too-much")
    return wrong("Some such size gives the other answer.", *facts, mistake="does-not-follow")
