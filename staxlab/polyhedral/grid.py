"""Iterations as a grid of words, for a terminal: the outer loop downwards, the inner one to the right.

The same as the drawing in a notebook (:mod:`staxlab.view.iteration_space`), which has arrows and colours besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from .integers import Vector
from .nests import LoopNest

#: What an open size is taken to be where a nest is to be looked at, and the most iterations that help when shown.
SHOWN_SIZE = 6
MOST_SHOWN = 400


def shown(nest: LoopNest) -> LoopNest:
    """The nest with small values for its open sizes."""
    return nest.with_sizes(**{p.name: SHOWN_SIZE for p in nest.parameters})


def can_be_shown(nest: LoopNest) -> bool:
    """Whether there are few enough iterations, of one or two loops."""
    if nest.parameters or nest.depth not in (1, 2):
        return False
    count = 1
    for low, high in nest.extents:
        if low is None or high is None:
            return False
        count *= high - low + 1
    return 0 < count <= MOST_SHOWN


def grid(points: Iterable[Vector], label: Callable[[Vector], object], names: Sequence[str]) -> str:
    """A word for each point, at its place. One- and two-dimensional points."""
    words = {(0, *point)[-2:]: str(label(point)) for point in points}
    if not words:
        return "no iterations"
    rows = range(min(i for i, _ in words), max(i for i, _ in words) + 1)
    columns = range(min(j for _, j in words), max(j for _, j in words) + 1)
    inner, outer = names[-1], names[0] if len(names) > 1 else ""
    heads = [f"{outer}={i}" if outer else "" for i in rows]
    tops = [f"{inner}={j}" for j in columns]
    wide = max(map(len, (*words.values(), *tops)))
    margin = max(map(len, heads))
    lines = [" " * margin + " " + " ".join(f"{top:>{wide}}" for top in tops)]
    for head, i in zip(heads, rows, strict=True):
        lines.append(f"{head:>{margin}} " + " ".join(f"{words.get((i, j), ''):>{wide}}" for j in columns))
    return "\n".join(line.rstrip() for line in lines)
