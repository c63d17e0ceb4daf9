"""Graphs of kernels as students write them, and partitions of their nodes (Section 7, Definition 7.3).

A graph is a dictionary: ``nodes`` in an order in which they can run, each ``(name, buffers read, buffers written)``;
``bytes`` of every buffer; ``results``, the buffers that are wanted; and ``forbidden`` pairs of nodes, if there are any.
A partition is a list of lists of names. Both are read into the records the compiler's own search works on.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from ..errors import ScheduleError
from ..schedule.fusion_problem import FusionProblem
from .answers import Field, Malformed
from .judges import result_text

GRAPH_EXAMPLE = """\
{
    "nodes": [("a", ["x"], ["y"]), ("b", ["y"], ["z"])],
    "bytes": {"x": 100, "y": 100, "z": 100},
    "results": ["z"],
    "forbidden": [("a", "b")],
}"""


@dataclass(frozen=True)
class GraphField(Field):
    """A graph of at most ``most`` nodes, read as a :class:`~staxlab.schedule.fusion_problem.FusionProblem`."""

    most: int = 12
    kind: ClassVar[str] = "a graph: a dictionary with nodes, bytes, results and forbidden pairs"
    own_cell: ClassVar[bool] = True

    def read(self, answer: Any, constants: Mapping[str, Fraction]) -> FusionProblem:
        problem = graph_of(answer)
        if problem.size > self.most:
            raise Malformed(f"it has {problem.size} nodes, and {self.most} are allowed")
        return problem


@dataclass(frozen=True)
class PartitionField(Field):
    """A partition of nodes: lists of names."""

    kind: ClassVar[str] = "a list of lists of names"
    own_cell: ClassVar[bool] = True

    def read(self, answer: Any, constants: Mapping[str, Fraction]) -> tuple[tuple[str, ...], ...]:
        return partition_of(answer)


@dataclass(frozen=True)
class PairsField(Field):
    """Pairs of nodes, in any order."""

    kind: ClassVar[str] = "a list of pairs of names"
    own_cell: ClassVar[bool] = True

    def read(self, answer: Any, constants: Mapping[str, Fraction]) -> frozenset[frozenset[str]]:
        found = set()
        for pair in partition_of(answer):
            if len(set(pair)) != 2:
                raise Malformed(f"{result_text(pair)} is no pair")
            found.add(frozenset(pair))
        return frozenset(found)


def partition_of(answer: Any) -> tuple[tuple[str, ...], ...]:
    """Lists of names as tuples. Raises Malformed."""
    if not isinstance(answer, list | tuple | set | frozenset):
        raise Malformed(f"got {result_text(answer)}")
    found = []
    for part in answer:
        if not isinstance(part, list | tuple | set | frozenset) or not all(isinstance(name, str) for name in part):
            raise Malformed(f"{result_text(part)} is no list of names")
        found.append(tuple(part))
    return tuple(found)


def graph_of(answer: Any) -> FusionProblem:
    """A graph from its dictionary. Raises Malformed with what is wrong."""
    if not isinstance(answer, Mapping):
        raise Malformed(f"got {result_text(answer)}")
    for key in ("nodes", "bytes", "results"):
        if key not in answer:
            raise Malformed(f"{key!r} is missing")
    nodes = []
    for node in _listed(answer["nodes"], "nodes"):
        if not isinstance(node, list | tuple) or len(node) != 3 or not isinstance(node[0], str):
            raise Malformed(f"{result_text(node)} is no (name, buffers read, buffers written)")
        nodes.append((node[0], *map(_names, node[1:])))
    if not nodes:
        raise Malformed("it has no nodes")
    pairs = []
    for pair in _listed(answer.get("forbidden", ()), "forbidden"):
        pair = _names(pair)
        if len(pair) != 2:
            raise Malformed(f"{result_text(pair)} is no pair")
        pairs.append(tuple(pair))
    sizes = answer["bytes"]
    if not isinstance(sizes, Mapping):
        raise Malformed(f"bytes are {result_text(sizes)} and not a dictionary")
    try:
        return FusionProblem.build(nodes, sizes, results=_names(answer["results"]), forbidden=pairs)
    except (ScheduleError, TypeError) as error:
        raise Malformed(getattr(error, "what", str(error))) from None


def _listed(value: Any, key: str) -> Any:
    if not isinstance(value, list | tuple | set | frozenset):
        raise Malformed(f"{key} are {result_text(value)} and not a list")
    return value


def _names(value: Any) -> list[str]:
    if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
        raise Malformed(f"{result_text(value)} is no list of names")
    if not all(isinstance(name, str) for name in value):
        raise Malformed(f"{result_text(value)} is no list of names")
    return list(value)


def graph_dictionary(problem: FusionProblem) -> dict[str, Any]:
    """The other way round: what :func:`graph_of` reads."""
    nodes = [
        (
            name,
            [b.name for b in problem.buffers if place in b.readers],
            [b.name for b in problem.buffers if b.writer == place],
        )
        for name, place in problem.place.items()
    ]
    return {
        "nodes": nodes,
        "bytes": {b.name: b.nbytes for b in problem.buffers},
        "results": [b.name for b in problem.buffers if b.escapes],
        "forbidden": [(problem.names[one], problem.names[other]) for one, other in sorted(problem.forbidden)],
    }


def graph_text(problem: FusionProblem) -> str:
    """A graph in a few words, for statements and feedback."""
    given = graph_dictionary(problem)
    nodes = "; ".join(f"{name}: {', '.join(reads)} → {', '.join(writes)}" for name, reads, writes in given["nodes"])
    sizes = ", ".join(f"{name} {size}" for name, size in given["bytes"].items())
    pairs = ", ".join(f"{one}-{other}" for one, other in given["forbidden"]) or "none"
    return f"{nodes} (bytes: {sizes}; results: {', '.join(given['results'])}; forbidden: {pairs})"


def partition_text(partition: Any) -> str:
    return "; ".join(" + ".join(part) for part in partition)


def random_graph(rng: random.Random, count: int, spaces: int = 0, share: float = 0.3) -> FusionProblem:
    """A random program of ``count`` nodes. With ``spaces`` each node has one of so many iteration spaces and pairs of
    different spaces are forbidden; otherwise that share of all pairs is."""
    nodes: list[tuple[str, list[str], list[str]]] = []
    buffers = ["x", "y"]
    for k in range(count):
        name = "abcdefghijklmnopqrstuvw"[k] if count <= 23 else f"n{k}"
        reads = rng.sample(buffers[-6:], min(len(buffers), rng.choice((1, 2, 2))))
        nodes.append((name, reads, [f"{name}1"]))
        buffers.append(f"{name}1")
    read = {buffer for _, reads, _ in nodes for buffer in reads}
    sizes = {buffer: rng.randint(1, 9) for buffer in buffers if buffer in read or buffer not in ("x", "y")}
    space = {name: rng.randrange(max(spaces, 1)) for name, _, _ in nodes}
    names = [name for name, _, _ in nodes]
    pairs = [(one, other) for k, one in enumerate(names) for other in names[k + 1 :]]
    forbidden = [p for p in pairs if (space[p[0]] != space[p[1]] if spaces else rng.random() < share)]
    results = [buffer for buffer in buffers[2:] if buffer not in read or rng.random() < 0.15]
    return FusionProblem.build(nodes, sizes, results=results, forbidden=forbidden)
