"""One version for many sizes: a back end for each set of sizes that is met (Section 10.3).

A version of dynamic mode holds for a class of shapes (Proposition 10.1); its graph is captured and transformed once,
with sizes as nodes. Below the graph, every stage would like to know the sizes: which loops to merge, what fits where,
how long a row is. So the stages from the operator graph on run for each set of sizes, on the graph that the version
shares, with every decision that the sizes allow; their kernels share libraries where the texts say so
(:mod:`staxlab.runtime.size_parameters`). A call looks its sizes up; the first of a kind plans, and seldom compiles.

What the key of a dynamic version leaves open is the key here: shapes, strides, and how inputs overlap.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Any

import torch

from .specialize.signature import aliasing

#: How many sets of sizes a version keeps; the one that was made first goes.
MOST_KEPT = 512


class Instances:
    """Calls the compilation for the sizes at hand; ``make(inputs)`` makes one."""

    def __init__(self, make: Callable[[list[torch.Tensor]], Any]):
        self._make = make
        self._lock = threading.RLock()
        self.found: collections.OrderedDict[tuple, Any] = collections.OrderedDict()
        self.made = 0

    def __call__(self, inputs: list[torch.Tensor]) -> Any:
        return self.of(inputs).call(inputs)

    def executor_for(self, inputs: list[torch.Tensor]) -> Callable[[list[torch.Tensor]], Any]:
        """What runs inputs of exactly these sizes, strides and overlaps, for whoever has checked them."""
        return self.of(inputs).executor

    def of(self, inputs: list[torch.Tensor]) -> Any:
        """The compilation for inputs like these, made if need be."""
        key = tuple([(x.shape, x.stride()) for x in inputs]), aliasing(inputs)
        found = self.found.get(key)
        if found is not None:
            return found
        with self._lock:
            if key not in self.found:
                self.found[key] = self._make(inputs)
                self.made += 1
                while len(self.found) > MOST_KEPT:
                    self.found.popitem(last=False)
            return self.found[key]

    def __str__(self) -> str:
        """A line for each set of sizes: how many kernels it has, and how many of them had to be compiled."""
        lines = []
        for (layouts, _), compilation in self.found.items():
            sizes = ", ".join("x".join(map(str, shape)) or "number" for shape, _ in layouts)
            hits = [*getattr(compilation.artifact, "cache_hits", {}).values()]
            kernels = f"{len(hits)} kernel{'' if len(hits) == 1 else 's'}"
            ran = f"{kernels}, {hits.count(False)} compiled" if hits else "operator by operator"
            lines.append(f"    {sizes}: {ran}")
        return "\n".join(lines) or "    none yet"


def draws_by_generators(graph: Any) -> bool:
    """Whether a graph draws from a generator it was given: planning runs the graph once, and would move it on."""
    return any(isinstance(v, torch.Generator) for node in graph for v in (*node.args, *node.kwargs.values()))
