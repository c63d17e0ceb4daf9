"""Algorithm 7.1 on the fusion partition problem as a graph problem (:mod:`.fusion_problem`).

This is the algorithm alone: candidates are pairs of classes that share a buffer, the best legal one by a score is
merged, all are weighed again. The compiler's own run of it (:mod:`.fusion`), which also finds the rows that a kernel
loops over, weighs pairs in time proportional to the program; here every merge looks at every pair, O(n^4) in all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .fusion_problem import FusionProblem, bits, run_order


@dataclass(frozen=True)
class Candidate:
    """Two classes that share a buffer, by the names of their nodes. ``kind`` is "vertical" if the second reads what the
    first writes, else "horizontal"; ``distance`` that of their first nodes in the order of the program; ``rule`` says
    why they must not be merged."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    kind: str
    bytes_saved: int
    distance: int
    rule: str = ""


Gain = Callable[[Candidate], tuple]


def gain(pair: Candidate) -> tuple:
    """Vertical before horizontal, then bytes, then nearness: the score of Section 7.3."""
    return (pair.kind == "vertical", pair.bytes_saved, -pair.distance)


@dataclass(frozen=True)
class GreedyRun:
    """The partition that greedy merging ends in, and the merges, each the best of the candidates beside it."""

    problem: FusionProblem
    partition: tuple[tuple[str, ...], ...]
    nbytes: int
    merges: tuple[Candidate, ...]
    weighed: tuple[tuple[Candidate, ...], ...]


def greedy(problem: FusionProblem, score: Gain = gain) -> GreedyRun:
    """Merge the best legal pair by ``score`` until none saves a byte."""
    masks = [1 << node for node in range(problem.size)]
    merges, history = [], []
    while True:
        found = candidates(problem, masks)
        history.append(tuple(pair for pair, _, _ in found))
        legal = [entry for entry in found if not entry[0].rule and entry[0].bytes_saved > 0]
        if not legal:
            named = problem.named(masks)
            return GreedyRun(problem, named, problem.cost_of(masks), tuple(merges), tuple(history))
        pair, first, second = max(legal, key=lambda entry: score(entry[0]))
        merges.append(pair)
        masks = sorted([m for m in masks if m not in (first, second)] + [first | second], key=lambda m: m & -m)


def candidates(problem: FusionProblem, masks: list[int]) -> list[tuple[Candidate, int, int]]:
    """All pairs of classes that share a buffer, weighed; with their sets of bits."""
    found = []
    for place, one in enumerate(masks):
        for other in masks[place + 1 :]:
            shared = [b for b in problem.buffers if _touches(b, one) and _touches(b, other)]
            if not shared:
                continue
            rest = [mask for mask in masks if mask not in (one, other)]
            merged = [*rest, one | other]
            vertical = any(b.writer is not None and (one | other) >> b.writer & 1 for b in shared)
            saved = sum(problem.buffer_cost(b, masks) - problem.buffer_cost(b, merged) for b in shared)
            rule = _rule(problem, one, other, merged)
            if not rule and problem.classes is not None:
                parts = [problem.classes.extra(mask) for mask in (one, other, one | other)]
                saved += parts[0] + parts[1] - parts[2]  # type: ignore[operator]  # all three are legal
            distance = _first(other) - _first(one)
            pair = Candidate(
                _names(problem, one), _names(problem, other), "vertical" if vertical else "horizontal", saved, distance,
                rule,
            )  # fmt: skip
            found.append((pair, one, other))
    return found


def _rule(problem: FusionProblem, one: int, other: int, merged: list[int]) -> str:
    for first, second in sorted(problem.forbidden):
        if (one >> first & 1 and other >> second & 1) or (other >> first & 1 and one >> second & 1):
            return problem.forbidden[first, second]
    if problem.classes is not None and problem.classes.extra(one | other) is None:
        return "no rows in common"
    return "path" if run_order(merged, problem.before) is None else ""


def _touches(buffer: object, mask: int) -> bool:
    return any(mask >> node & 1 for node in buffer.touching)  # type: ignore[attr-defined]


def _first(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _names(problem: FusionProblem, mask: int) -> tuple[str, ...]:
    return tuple(problem.names[node] for node in bits(mask))
