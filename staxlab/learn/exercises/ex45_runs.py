"""What Exercise 45 runs: fusion without forbidden pairs, words turned into graphs, and methods against the best."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ...errors import ScheduleError
from ...schedule.fusion_problem import FusionProblem
from ...schedule.greedy import greedy
from ...schedule.optimum import brute_force, optimum
from ..answers import Callee, Malformed
from ..feedback import Verdict, nearly, right, wrong
from ..fusion_graphs import graph_dictionary, graph_of, graph_text, partition_of, partition_text, random_graph
from ..judges import call_failed, unexpected_result
from ..variants import generator

HARD, EASY = "NP-hard", "polynomial"

#: Words in the order in which they are tried, besides random ones.
WORDS: tuple[tuple[str, ...], ...] = (
    ("a",), ("ab",), ("a", "b"), ("ab", "ba"), ("aa",), ("aa", "a"), ("aab", "ab"), ("abb", "bab"), ("aab", "bba"),
    ("ab", "ba", "bb"), ("aba", "bab", "aa"),
)  # fmt: skip
RANDOM_WORDS = 6
MOST_NODES = 12

# --- No forbidden pairs -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def free_graph(number: int) -> FusionProblem:
    """A graph without forbidden pairs in which an input has two readers and a result is also read."""
    rng = random.Random(f"{number}/free")
    while True:
        problem = random_graph(rng, 6, share=0.0)
        twice = any(buffer.writer is None and len(buffer.readers) > 1 for buffer in problem.buffers)
        read = any(buffer.escapes and buffer.readers for buffer in problem.buffers)
        costs = free_costs(problem)
        if twice and read and len(set(costs)) == len(costs):
            return problem


def free_costs(problem: FusionProblem) -> tuple[int, int, int, int]:
    """Bytes of the best partition; of all buffers; of inputs, for each reader, and results; of a kernel per node."""
    everything = sum(buffer.nbytes for buffer in problem.buffers)
    results = sum(buffer.nbytes for buffer in problem.buffers if buffer.escapes)
    by_reader = sum(b.nbytes * len(b.readers) for b in problem.buffers if b.writer is None)
    return optimum(problem).nbytes, everything, by_reader + results, problem.cost([[name] for name in problem.names])


def judge_free(callee: Callee, seed: int | None) -> Verdict:
    """The student's partition must be as cheap as brute force finds, and be there in time for a large graph."""
    rng = generator(seed, "graphs without forbidden pairs")
    for count in (1, 2, 3, 4, 5, 5, 6, 6, 200):
        problem = random_graph(rng, count, share=0.0)
        read = _partition(callee, problem)
        if isinstance(read, Verdict):
            return read
        least = brute_force(problem)[0] if count <= 6 else _inputs_and_results(problem)
        cost = problem.cost(read)
        if cost > least:
            shown = graph_text(problem) if count <= 6 else f"a graph of {count} nodes"
            facts = (("for", shown), ("yours moves", cost), ("possible", least))
            return wrong("Your partition is legal and not the cheapest.", *facts, mistake="not-the-best")
    return right("The cheapest partition of every graph.", ("run for", "9 graphs, of up to 200 nodes"))


def _inputs_and_results(problem: FusionProblem) -> int:
    """What no partition can avoid (Proposition 1.1)."""
    return sum(b.nbytes for b in problem.buffers if b.escapes or b.writer is None)


def _partition(callee: Callee, problem: FusionProblem) -> Any:
    """What the student's function makes of a graph: a legal partition, or the verdict on what it is instead."""
    large = problem.size > 10
    shown = (f"a graph of {problem.size} nodes" if large else graph_text(problem),)
    outcome = callee.call(graph_dictionary(problem))
    if outcome.failed:
        return call_failed(callee, shown, outcome)
    try:
        partition = partition_of(outcome.value)
        violated = problem.violation(partition)
    except (Malformed, ScheduleError) as error:
        return unexpected_result(callee, shown, getattr(error, "what", str(error)))
    if violated is not None:
        facts = (("for", shown[0]), ("reason", violated))
        return wrong("Your partition is not legal.", *facts, mistake="not-legal")
    return partition


# --- Words ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def shortest_supersequence(words: tuple[str, ...]) -> int:
    """The length of the shortest word that holds each of these as a subsequence: a search, letter by letter."""
    states, length = {tuple(0 for _ in words)}, 0
    goal = tuple(map(len, words))
    while goal not in states:
        states = {
            tuple(k + (k < len(word) and word[k] == letter) for k, word in zip(state, words, strict=True))
            for state in states
            for letter in "ab"
        }
        length += 1
    return length


@dataclass(frozen=True)
class TypedGraph:
    """A graph whose forbidden pairs come from iteration spaces and from dependences with a distance."""

    problem: FusionProblem
    spaces: dict[str, str]
    distances: tuple[tuple[str, str], ...]


def typed_graph(answer: Any) -> TypedGraph:
    """Read ``nodes``, ``bytes``, ``results``, ``spaces`` and ``distances``. Raises Malformed."""
    if not isinstance(answer, dict):
        raise Malformed(f"got {type(answer).__name__}, which is no dictionary")
    if "forbidden" in answer:
        raise Malformed("pairs cannot be forbidden as one likes here: only by spaces and distances")
    problem = graph_of(answer)
    spaces, distances = answer.get("spaces"), answer.get("distances", [])
    if not isinstance(spaces, dict) or not set(problem.names) <= spaces.keys():
        raise Malformed("spaces must name the iteration space of every node")
    forbidden: dict[tuple[int, int], str] = {}
    for one, other in itertools.combinations(range(problem.size), 2):
        if spaces[problem.names[one]] != spaces[problem.names[other]]:
            forbidden[one, other] = "space"
    pairs = partition_of(distances)
    for pair in pairs:
        if len(pair) != 2 or any(name not in problem.place for name in pair):
            raise Malformed(f"{pair} is no pair of nodes")
        edge = problem.place[pair[0]], problem.place[pair[1]]
        if edge not in problem.edges:
            raise Malformed(f"{pair[1]} does not read what {pair[0]} writes, so there is no dependence with a distance")
        forbidden[edge] = "distance"
    return TypedGraph(replace(problem, forbidden=forbidden), {name: str(spaces[name]) for name in problem.names},
                      tuple((a, b) for a, b in pairs))  # fmt: skip


def judge_instance(callee: Callee, seed: int | None) -> Verdict:
    """The least traffic of the student's graph must be the length of the shortest supersequence of the words."""
    rng = generator(seed, "words")
    drawn = [
        tuple("".join(rng.choice("ab") for _ in range(rng.randint(1, 4))) for _ in range(rng.randint(2, 3)))
        for _ in range(RANDOM_WORDS)
    ]
    tried = 0
    for words in (*WORDS, *drawn):
        outcome = callee.call(list(words))
        if outcome.failed:
            return call_failed(callee, (list(words),), outcome)
        try:
            graph = typed_graph(outcome.value)
        except Malformed as error:
            return unexpected_result(callee, (list(words),), str(error))
        problem = graph.problem
        if len(set(graph.spaces.values())) > 2:
            return wrong("Two iteration spaces have to be enough.", ("words", words), mistake="more-spaces")
        if problem.size > 4 * sum(map(len, words)) + 4:
            facts = (("words", words), ("nodes", problem.size))
            return wrong("The graph is much larger than the words.", *facts, mistake="too-large")
        best = optimum(problem)
        if not best.is_proved:
            facts = (("words", words), ("nodes", problem.size))
            return wrong("The optimum of this graph was not found in time.", *facts, mistake="too-hard")
        truth = shortest_supersequence(words)
        if best.nbytes != truth:
            return _wrong_length(words, best.nbytes, truth, graph, partition_text(best.partition))
        tried += 1
    return right(
        "The least traffic is the length of the shortest supersequence.", ("run for", f"{tried} lists of words")
    )


def _wrong_length(words: tuple[str, ...], found: int, truth: int, graph: TypedGraph, best: str) -> Verdict:
    facts = (("words", ", ".join(words)), ("least traffic", found), ("shortest supersequence", truth), ("by", best))
    repeats = any(one == other for word in words for one, other in itertools.pairwise(word))
    if repeats and not graph.distances and found < truth:
        message = "Two equal letters one after the other share a kernel here, and a supersequence has both."
        return wrong(message, *facts, mistake="repeated-letters")
    if found == sum(map(len, words)) and found > truth:
        message = "Nothing is gained by sharing a kernel: equal letters of different words need something to share."
        return wrong(message, *facts, mistake="nothing-shared")
    if found > truth and found - truth == sum(len(word) - 1 for word in words) * 2:
        message = "What links one letter to the next is moved as well, whatever the partition: count it as nothing."
        return wrong(message, *facts, mistake="links-counted")
    return wrong("The least traffic is another number.", *facts, mistake="another-number")


# --- Methods ----------------------------------------------------------------------------------------------------------


def restricted_graph(rng: random.Random, count: int, spaces: int) -> FusionProblem:
    """A random graph of the restricted class: spaces, and distances on some dependences."""
    problem = random_graph(rng, count, spaces=spaces)
    more = {edge: "distance" for edge in sorted(problem.edges) if edge not in problem.forbidden and rng.random() < 0.25}
    return replace(problem, forbidden={**problem.forbidden, **more})


@lru_cache(maxsize=8)
def instances(seed: int | None) -> tuple[tuple[FusionProblem, int, int], ...]:
    """Graphs of the restricted class, the best cost (for large ones the best known) and the greedy cost of each."""
    rng = generator(seed, "graphs of few spaces")
    found: list[tuple[FusionProblem, int, int]] = []
    for count, spaces in ((5, 2), (6, 2), (7, 2), (7, 3), (8, 2), (8, 3), (9, 2), (10, 2)) * 3:
        problem = restricted_graph(rng, count, spaces)
        found.append((problem, optimum(problem, seconds=2.0).nbytes, greedy(problem).nbytes))
    return tuple(found)


def judge_method(callee: Callee, seed: int | None) -> Verdict:
    """Legal everywhere, and together no worse than greedy merging; how near to the best is data."""
    excess: list[float] = []
    optimal = yours = reached = apart = 0
    given = instances(seed)
    for problem, least, merged in given:
        read = _partition(callee, problem)
        if isinstance(read, Verdict):
            return read
        cost = problem.cost(read)
        excess.append(cost / least - 1 if least else 0.0)
        optimal += cost == least
        yours, reached = yours + cost, reached + merged
        apart += problem.cost([[name] for name in problem.names])
    greedy_optimal = sum(merged == least for _, least, merged in given)
    facts = (
        ("graphs", len(given)),
        ("optimal", f"{optimal}, greedy merging {greedy_optimal}"),
        ("above the best", f"{100 * _mean(excess):.2f}% on average, {100 * max(excess):.1f}% at most"),
        ("bytes in all", f"{yours}, greedy merging {reached}"),
    )
    if yours <= reached:
        return right("Legal on every graph, and in all no worse than greedy merging.", *facts)
    if yours < apart:
        return nearly(
            "Legal on every graph, and in all worse than greedy merging.", *facts, mistake="worse-than-greedy"
        )
    return wrong("Nothing is gained over a kernel for each node.", *facts, mistake="nothing-merged")


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)
