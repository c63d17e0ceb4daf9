"""How long the graph passes take on large graphs, and how that grows (Section 4.1).

A pass that walks the graph once takes time in proportion to its nodes; one that walks it for every node takes time in
proportion to their square, which nobody notices at fifty nodes and everybody at five thousand. The *exponent* tells
them apart: the slope of time over nodes, both logarithmic. 1 is linear, 2 quadratic.

>>> round(exponent([(100, 0.01), (1000, 0.1), (10_000, 1.0)]), 3)
1.0

``python -m benchmarks.transforms`` measures; this is the record of what it found.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .tables import Table, Tabular, seconds_text

#: Below this many nodes what does not grow with the graph still shows.
FIT_FROM = 900


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The slope of log(cost) over log(nodes), by least squares; NaN for fewer than two sizes."""
    if len(points) < 2:
        return math.nan
    logs = [(math.log(nodes), math.log(max(cost, 1e-9))) for nodes, cost in points]
    mean_x, mean_y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    spread = sum((a - mean_x) ** 2 for a, _ in logs)
    return sum((a - mean_x) * (b - mean_y) for a, b in logs) / spread if spread else math.nan


@dataclass(frozen=True)
class PassCosts(Tabular):
    """Seconds of all passes to their fixed point. ``points`` maps a family of graphs to (size asked for, nodes,
    seconds) in order of size; ``machine`` says where they were measured; ``complete`` is false for an interrupted run.
    """

    points: Mapping[str, tuple[tuple[int, int, float], ...]]
    machine: str = ""
    complete: bool = True

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PassCosts:
        """From what the benchmark wrote (or is about to write)."""
        points = {
            family: tuple((row["size"], row["nodes"], row["seconds"]) for row in rows)
            for family, rows in data["results"].items()
        }
        machine = data.get("machine", {})
        said = f"{machine['processor']}, load average {machine['load_average']}" if machine else ""
        return cls(points, said, data["complete"])

    def seconds(self, family: str, size: int) -> float:
        """KeyError for a family or a size that was not measured."""
        for asked, _, seconds in self.points[family]:
            if asked == size:
                return seconds
        raise KeyError(size)

    def exponent(self, family: str) -> float:
        """The slope from ``FIT_FROM`` nodes on; over all sizes where there are none so large."""
        every = [(nodes, seconds) for _, nodes, seconds in self.points[family]]
        return exponent([point for point in every if point[0] >= FIT_FROM] or every)

    def table(self) -> Table:
        sizes = sorted({size for measured in self.points.values() for size, _, _ in measured})
        rows = []
        for family, measured in self.points.items():
            seconds = {size: seconds_text(taken) for size, _, taken in measured}
            slope = self.exponent(family)
            last = "" if math.isnan(slope) else f"{slope:.2f}"
            rows.append((family, *(seconds.get(size, "") for size in sizes), last))
        columns = ("family", *(f"{size:,} nodes" for size in sizes), "exponent")
        notes = [
            "processor time, the smallest of the readings",
            f"exponent: slope of log time over log nodes, from {FIT_FROM} nodes on; 1 is linear",
            self.machine and f"measured on {self.machine}",
            "" if self.complete else "interrupted: what was measured until then",
        ]
        return Table.build("All passes of Section 4, to their fixed point", columns, rows, notes)


def load(path: str | Path) -> PassCosts:
    """The costs that ``python -m benchmarks.transforms --out`` wrote."""
    return PassCosts.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
