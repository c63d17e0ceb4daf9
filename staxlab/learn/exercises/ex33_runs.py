"""What Exercise 33 runs: Proposition 7.3 on loops, and program instances that count what they compute."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ...polyhedral import LoopNest, fusion, loop_nests
from ...polyhedral.legality import FusionVerdict
from ..answers import Callee
from ..feedback import Verdict, nearly, right, wrong
from ..judges import call_failed, result_text, unexpected_result
from ..variants import generator

KINDS = ("parallel", "sequential", "none")


def loops(shifts: Sequence[int], n: str = "N") -> tuple[LoopNest, ...]:
    """Node a writes B[i]; node b reads B[i + k] for every k of the shifts."""
    reads = " + ".join(f"B[i + {k}]" for k in shifts) or "A[i]"
    return loop_nests(f"for i in range({n}):\n    B[i] = A[i]\nfor i in range({n}):\n    C[i] = {reads}")


@lru_cache(maxsize=256)
def verdict(shifts: tuple[int, ...]) -> FusionVerdict:
    return fusion(*loops(shifts))


def distance(shift: int) -> int:
    """The dependence distance of a read of B[i + shift]."""
    ((only,),) = {v for d in verdict((shift,)).distances for v in d.distances}
    return only


def kind(shifts: tuple[int, ...]) -> str:
    """The best way of fusing: into a parallel loop, a sequential one, or none."""
    found = verdict(shifts)
    return KINDS[0] if found.parallel else KINDS[1] if found.sequential else KINDS[2]


# --- Judges -----------------------------------------------------------------------------------------------------------

#: Rules that look like the right one.
LOOKALIKES = (
    ("signs-exchanged", lambda ks: "parallel" if not any(ks) else "sequential" if min(ks) >= 0 else "none",
     "You take a read ahead for one behind: B[i - 1] was written by an iteration before this one."),
    ("one-read-is-enough", lambda ks: "parallel" if 0 in ks else "sequential" if min(ks) <= 0 else "none",
     "Every read has to be legal, not one of them."),
    ("sequential-is-parallel", lambda ks: "parallel" if max(ks) <= 0 else "none",
     "Iterations of a parallel loop may run in any order, also before the one whose result they read."),
    ("first-read-only", lambda ks: "parallel" if ks[0] == 0 else "sequential" if ks[0] < 0 else "none",
     "You look at the first read only."),
)  # fmt: skip


def cases(seed: int | None) -> list[tuple[int, ...]]:
    rng = generator(seed, "shifts")
    found = [
        (0,),
        (-1,),
        (1,),
        (0, 0),
        (0, -2),
        (-2, 0),
        (0, 3),
        (3, 0),
        (-1, 1),
        (1, -1),
        (-3, -1),
        (2, 1),
        (0, 0, -4),
    ]
    found += [tuple(rng.randint(-4, 4) for _ in range(rng.randint(1, 4))) for _ in range(30)]
    found += [tuple(-rng.randint(0, 4) for _ in range(rng.randint(1, 4))) for _ in range(10)]
    return list(dict.fromkeys(found))


def judge_fusion_kind(callee: Callee, seed: int | None) -> Verdict:
    """The student's rule against the analysis of the loops it speaks of."""
    mine = {}
    for shifts in cases(seed):
        outcome = callee.call(list(shifts))
        if outcome.failed:
            return call_failed(callee, (list(shifts),), outcome)
        if outcome.value not in KINDS:
            problem = f"{result_text(outcome.value)} is none of {', '.join(map(repr, KINDS))}"
            return unexpected_result(callee, (list(shifts),), problem)
        mine[shifts] = outcome.value
    for shifts, answer in mine.items():
        truth = kind(shifts)
        if answer == truth:
            continue
        distances = sorted(v[0] for d in verdict(shifts).distances for v in d.distances)
        facts = (("shifts", list(shifts)), ("distances", distances), ("yours", answer))
        for name, rule, message in LOOKALIKES:
            if all(given == rule(case) for case, given in mine.items()):
                return wrong(message, *facts, mistake=name)
        if KINDS.index(answer) > KINDS.index(truth):
            return nearly("A better way of fusing is legal.", *facts, mistake="too-careful")
        return wrong("That fusion would read elements that are not written yet.", *facts, mistake="illegal-fusion")
    return right("It agrees with Proposition 7.3 on every list.", ("tried", f"{len(mine)} lists"))


def instance_cases(seed: int | None) -> list[tuple[int, int, int]]:
    """(start, size, shift) of program instances, small ones first."""
    rng = generator(seed, "instances")
    found = [
        (0, 1, 1),
        (0, 4, 1),
        (4, 4, 1),
        (8, 4, 2),
        (0, 4, 3),
        (2, 2, 3),
        (6, 3, 3),
        (5, 1, 4),
        (3, 8, 5),
        (0, 2, 6),
    ]
    return found + [(rng.randint(0, 30), rng.randint(1, 12), rng.randint(1, 8)) for _ in range(10)]


def judge_instance(callee: Callee, seed: int | None) -> Verdict:
    """A program instance gets nothing but the function that makes an element of B, and must say the right elements of C
    with no element computed that it could do without."""
    for start, size, shift in instance_cases(seed):
        calls: list[int] = []

        def element(i: int, calls: list[int] = calls) -> int:
            if not isinstance(i, int) or isinstance(i, bool):
                raise TypeError(f"a(i) takes a whole number, not {i!r}")
            calls.append(i)
            return 1000 + 7 * i * i

        shown = ("a", start, size, shift)
        outcome = callee.call(element, start, size, shift)
        if outcome.failed:
            return call_failed(callee, shown, outcome)
        try:
            own, read = outcome.value
            own, read = list(own), list(read)
        except (TypeError, ValueError):
            problem = f"{result_text(outcome.value)} is no pair of lists"
            return unexpected_result(callee, shown, problem)
        facts: tuple[tuple[str, Any], ...] = (("start, size, s", (start, size, shift)),)
        wanted = [1000 + 7 * i * i for i in range(start, start + size)]
        before = [1000 + 7 * i * i for i in range(max(start - shift, 0), start + size - shift)]
        if any(i < 0 for i in calls):
            message = "There is no element of B before the first: iterations i < s of b do not run."
            return wrong(message, *facts, ("asked for", f"a({min(calls)})"), mistake="before-the-first")
        if own != wanted:
            facts += (("yours", result_text(own)), ("elements", f"{start} to {start + size - 1}"))
            return wrong("These are not the elements of B that the instance stores.", *facts, mistake="wrong-own")
        if read != before:
            facts += (("yours", result_text(read)), ("should be", f"{len(before)} elements"))
            return wrong("These are not the elements of B that b reads.", *facts, mistake="wrong-read")
        needed = len(set(range(start, start + size)) | set(range(max(start - shift, 0), max(start + size - shift, 0))))
        if len(calls) > needed:
            facts += (("calls of a", len(calls)), ("different elements needed", needed))
            return nearly(
                "Right, but some element is computed more often than needed.", *facts, mistake="too-many-calls"
            )
    return right("Every instance has all it reads, and computes no element twice.")
