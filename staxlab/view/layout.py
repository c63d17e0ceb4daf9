"""Where the nodes of a drawn graph go: layered drawing, by ``dot`` if it is installed and by this module if not.

A data-flow graph reads from top to bottom, so it is drawn in layers (Sugiyama, Tagawa and Toda 1981, "Methods for
visual understanding of hierarchical system structures"):

1. *rank*: every node below everything it reads; inputs right above their first reader,
2. *bend*: an edge that skips layers passes a waypoint in each of them,
3. *order*: within a layer, by the mean position of the neighbours, sweeping down and up and keeping the order with the
   fewest crossings (Eades and Wormald's barycentre idea),
4. *place*: each node as near as possible to the mean of its neighbours without touching the next one. For a fixed
   order this is a least-squares problem with ordering constraints, solved exactly by pooling adjacent violators.

Graphviz does each step better; both deliver the same :class:`Placement`, and the drawing code does not know which.
Neither depends on anything but its input, so the same graph is drawn the same way every time.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

Point = tuple[float, float]
Size = tuple[float, float]

NODE_GAP = 22.0
LAYER_GAP = 34.0
MARGIN = 8.0
_SWEEPS = 8
_DOT_SECONDS = 10.0


@dataclass(frozen=True)
class Placement:
    """The answer: the drawing's size, the centre of every box, and for every edge the 3k + 1 control points of a chain
    of k cubic Bezier curves from the lower side of its first box to the upper side of its second. y grows downwards."""

    width: float
    height: float
    centres: tuple[Point, ...]
    curves: tuple[tuple[Point, ...], ...]


def place(sizes: Sequence[Size], edges: Sequence[tuple[int, int]], *, program: str | None = "dot") -> Placement:
    """Lay out boxes of the given sizes. Edges ``(reader's input, reader)`` are pairs of positions in ``sizes`` with the
    first smaller than the second (a topological order).

    ``program=None`` never calls Graphviz. A ``dot`` that is missing, fails or takes too long is replaced by
    :func:`layered`.
    """
    sizes, edges = tuple(sizes), tuple(dict.fromkeys(edges))
    if not sizes:
        return Placement(0.0, 0.0, (), ())
    found = shutil.which(program) if program else None
    return (_by_dot(found, sizes, edges) if found else None) or layered(sizes, edges)


@lru_cache(maxsize=64)
def _by_dot(program: str, sizes: tuple[Size, ...], edges: tuple[tuple[int, int], ...]) -> Placement | None:
    """Coordinates from ``dot -Tplain`` (inches, counted from the bottom), or None if it does not answer."""
    text = ["digraph {", f"nodesep={NODE_GAP / 72:.3f}; ranksep={LAYER_GAP / 72:.3f}; edge [arrowhead=none];"]
    text.append('node [shape=box, fixedsize=true, label=""];')
    text += [f"n{k} [width={w / 72:.4f}, height={h / 72:.4f}];" for k, (w, h) in enumerate(sizes)]
    text += [f"n{a} -> n{b};" for a, b in edges]
    text.append("}")
    try:
        done = subprocess.run(
            [program, "-Tplain"],
            input="\n".join(text),
            capture_output=True,
            text=True,
            timeout=_DOT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    centres: dict[int, Point] = {}
    curves: dict[tuple[int, int], tuple[Point, ...]] = {}
    width = height = 0.0

    def point(x: str, y: str) -> Point:
        return round(float(x) * 72 + MARGIN, 1), round(height - float(y) * 72 + MARGIN, 1)

    for line in done.stdout.replace("\\\n", "").splitlines():
        words = line.split()
        if words[0] == "graph":
            width, height = float(words[2]) * 72, float(words[3]) * 72
        elif words[0] == "node":
            centres[int(words[1][1:])] = point(words[2], words[3])
        elif words[0] == "edge":
            count = int(words[3])
            numbers = words[4 : 4 + 2 * count]
            key = int(words[1][1:]), int(words[2][1:])
            curves[key] = tuple(point(numbers[2 * k], numbers[2 * k + 1]) for k in range(count))
    if len(centres) != len(sizes) or any(edge not in curves for edge in edges):
        return None
    return Placement(
        round(width + 2 * MARGIN, 1),
        round(height + 2 * MARGIN, 1),
        tuple(centres[k] for k in range(len(sizes))),
        tuple(curves[edge] for edge in edges),
    )


@lru_cache(maxsize=64)
def layered(sizes: tuple[Size, ...], edges: tuple[tuple[int, int], ...]) -> Placement:
    """The layout without Graphviz. O(sweeps * (V + E) log V) plus O(E^2) per layer for counting crossings."""
    ranks = _ranks(len(sizes), edges)
    widths = [w for w, _ in sizes]
    chains: list[list[int]] = []  # for every edge, its nodes and waypoints from top to bottom
    for a, b in edges:
        chain = [a]
        for rank in range(ranks[a] + 1, ranks[b]):
            chain.append(len(widths))
            widths.append(0.0)
            ranks.append(rank)
        chains.append([*chain, b])
    above: list[list[int]] = [[] for _ in widths]
    below: list[list[int]] = [[] for _ in widths]
    for chain in chains:
        for upper, lower in zip(chain, chain[1:], strict=False):
            below[upper].append(lower)
            above[lower].append(upper)
    layers: list[list[int]] = [[] for _ in range(max(ranks) + 1)]
    for node in sorted(range(len(widths)), key=lambda k: (ranks[k], k)):
        layers[ranks[node]].append(node)
    layers = _ordered(layers, above, below)
    x = _coordinates(layers, above, below, widths)

    heights = [max((sizes[n][1] for n in layer if n < len(sizes)), default=0.0) for layer in layers]
    middle: list[float] = []
    top = MARGIN
    for height in heights:
        middle.append(top + height / 2)
        top += height + LAYER_GAP
    left = min(x[n] - widths[n] / 2 for n in range(len(widths))) - MARGIN
    right = max(x[n] + widths[n] / 2 for n in range(len(widths))) + MARGIN
    centres = [(round(x[n] - left, 1), round(middle[ranks[n]], 1)) for n in range(len(widths))]
    curves = tuple(_curve(chain, centres, sizes) for chain in chains)
    return Placement(round(right - left, 1), round(top - LAYER_GAP + MARGIN, 1), tuple(centres[: len(sizes)]), curves)


def _ranks(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The longest path from above to each node; what reads nothing is pulled down to its first reader."""
    ranks = [0] * count
    for a, b in sorted(edges, key=lambda edge: (edge[1], edge[0])):
        ranks[b] = max(ranks[b], ranks[a] + 1)
    reads = {b for _, b in edges}
    for node in range(count):
        readers = [ranks[b] for a, b in edges if a == node]
        if node not in reads and readers:
            ranks[node] = min(readers) - 1
    return ranks


def _ordered(layers: list[list[int]], above: list[list[int]], below: list[list[int]]) -> list[list[int]]:
    best, fewest = [list(layer) for layer in layers], _crossings(layers, below)
    current = [list(layer) for layer in layers]
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        neighbours = above if downwards else below
        order = range(1, len(current)) if downwards else range(len(current) - 2, -1, -1)
        for k in order:
            other = current[k - 1] if downwards else current[k + 1]
            position = {node: p for p, node in enumerate(other)}
            own = {node: p for p, node in enumerate(current[k])}

            def barycentre(node: int, position: dict = position, own: dict = own, around: list = neighbours) -> float:
                places = [position[n] for n in around[node] if n in position]
                return sum(places) / len(places) if places else own[node]

            current[k].sort(key=lambda node: (barycentre(node), own[node]))
        crossings = _crossings(current, below)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in current], crossings
    return best


def _crossings(layers: list[list[int]], below: list[list[int]]) -> int:
    total = 0
    for upper, lower in zip(layers, layers[1:], strict=False):
        position = {node: p for p, node in enumerate(lower)}
        ends = [(p, position[n]) for p, node in enumerate(upper) for n in below[node] if n in position]
        total += sum(a < c and b > d for a, b in ends for c, d in ends)
    return total


def _coordinates(
    layers: list[list[int]], above: list[list[int]], below: list[list[int]], widths: list[float]
) -> list[float]:
    x = [0.0] * len(widths)
    for layer in layers:
        position = 0.0
        for node in layer:
            x[node] = position + widths[node] / 2
            position += widths[node] + NODE_GAP
        middle = (position - NODE_GAP) / 2
        for node in layer:
            x[node] -= middle
    for sweep in range(2 * _SWEEPS):
        # The last two sweeps look both ways, so that chains end up straight.
        both = sweep >= 2 * _SWEEPS - 2
        order = layers if sweep % 2 == 0 else layers[::-1]
        for layer in order:
            wanted = []
            for node in layer:
                around = above[node] + below[node] if both else (above if sweep % 2 == 0 else below)[node]
                wanted.append(sum(x[n] for n in around) / len(around) if around else x[node])
            gaps = [
                (widths[a] + widths[b]) / 2 + (NODE_GAP if widths[a] and widths[b] else NODE_GAP / 2)
                for a, b in zip(layer, layer[1:], strict=False)
            ]
            for node, value in zip(layer, nearest_with_gaps(wanted, gaps), strict=True):
                x[node] = value
    return x


def nearest_with_gaps(wanted: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """The values nearest to ``wanted`` in the least-squares sense with ``value[k+1] - value[k] >= gaps[k]``.

    Subtracting the accumulated gaps turns the constraint into "not decreasing"; pooling adjacent violators solves that
    exactly in linear time (Ayer and others 1955).
    """
    offset, offsets = 0.0, [0.0]
    for gap in gaps:
        offset += gap
        offsets.append(offset)
    pools: list[list[float]] = []  # sum and count of each run of equal values
    for value, shift in zip(wanted, offsets, strict=False):
        pools.append([value - shift, 1])
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
            total, count = pools.pop()
            pools[-1][0] += total
            pools[-1][1] += count
    flat = [total / count for total, count in pools for _ in range(int(count))]
    return [value + shift for value, shift in zip(flat, offsets, strict=False)]


def _curve(chain: list[int], centres: list[Point], sizes: tuple[Size, ...]) -> tuple[Point, ...]:
    """Vertical at both ends and at every waypoint."""
    first, last = chain[0], chain[-1]
    stations = [(centres[first][0], centres[first][1] + sizes[first][1] / 2)]
    stations += [centres[n] for n in chain[1:-1]]
    stations.append((centres[last][0], centres[last][1] - sizes[last][1] / 2))
    points = [stations[0]]
    for (x0, y0), (x1, y1) in zip(stations, stations[1:], strict=False):
        bend = round((y0 + y1) / 2, 1)
        points += [(x0, bend), (x1, bend), (x1, y1)]
    return tuple((round(x, 1), round(y, 1)) for x, y in points)
