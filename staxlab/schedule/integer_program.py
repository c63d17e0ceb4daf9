"""The fusion partition problem as an integer program (Definition 7.3), solved by HiGHS.

A partition is written as the pairs that share a class, which are the edges of a *clique partitioning* (Grötschel and
Wakabayashi 1989, "A cutting plane algorithm for a clustering problem"). Nothing here is shared with the search of
:mod:`.optimum` but the definition of the problem, so each is a check of the other. Variables and constraints, for nodes
``u``, ``v``, ``w`` in topological order:

- ``z[u,v]`` is 1 if the two share a class, 0 for a forbidden pair. Sharing is transitive: ``z[u,v] + z[v,w] <= 1 +
  z[u,w]``, and so for the other two rotations.
- ``p[v]`` from 0 to n - 1 is when the class of ``v`` runs: along an edge ``p[v] >= p[u] + 1 - z[u,v]``, within a class
  ``|p[u] - p[v]| <= (n - 1)(1 - z[u,v])``. Such numbers exist exactly if the quotient is acyclic.
- ``r[b,v]`` is 1 if ``v`` is the first of its class to touch buffer ``b``, which the class then has to read:
  ``r[b,v] >= 1 - sum of z[t,v]`` over the nodes ``t`` before ``v`` that touch it.
- ``s[b]`` is 1 if the buffer is written to memory: ``s[b] >= 1 - z[writer,v]`` for each reader, 1 if it escapes.

Least is the sum of the bytes of all ``r`` and ``s``.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

from ..errors import MissingDependencyError, ScheduleError
from .fusion_problem import FusionProblem, bits
from .optimum import OUT_OF_TIME, PROVED, SECONDS, Optimum

Row = tuple[dict[int, float], float]  # coefficients by variable, and the least that they may add up to


def by_integer_program(problem: FusionProblem, *, seconds: float = SECONDS) -> Optimum:
    """The partition of least traffic according to HiGHS, in at most about ``seconds``.

    n^2/2 + n variables for the pairs and the order, and one for each reader and buffer; n^3/2 constraints. Where more
    is known about classes than their pairs (``problem.classes``), a class that is not legal is cut off and the program
    solved again; what a class moves beyond its buffers must then be 0.

    Raises ScheduleError for buffers of which readers touch parts and classes that move more, which are not linear;
    MissingDependencyError without SciPy.
    """
    if any(buffer.parts for buffer in problem.buffers):
        raise ScheduleError("the integer program knows whole buffers only: what readers touch in part is not linear")
    program = _Program(problem)
    solved = 0
    while True:
        partition, bound, optimal = program.solve(seconds)
        solved += 1
        masks = partition if partition is not None else [1 << node for node in range(problem.size)]
        extra = [0 if problem.classes is None else problem.classes.extra(mask) for mask in masks]
        if any(extra):
            raise ScheduleError("the integer program knows whole buffers only: a class moves more than its buffers")
        if None not in extra:
            proof = PROVED if optimal else OUT_OF_TIME
            nbytes = problem.cost_of(masks)
            return Optimum(problem, problem.named(masks), nbytes, min(bound, nbytes), solved, proof)
        for mask, more in zip(masks, extra, strict=True):
            if more is None:
                program.cut(mask)


class _Program:
    def __init__(self, problem: FusionProblem):
        self.problem = problem
        n = problem.size
        self.pair = {pair: k for k, pair in enumerate(combinations(range(n), 2))}
        self.order = [len(self.pair) + node for node in range(n)]
        self.count = len(self.pair) + n
        self.upper: dict[int, float] = {self.pair[pair]: 0.0 for pair in problem.forbidden}
        self.lower: dict[int, float] = {}
        self.price: dict[int, float] = {}
        self.rows: list[Row] = []
        self._sharing_is_transitive()
        self._kernels_run_in_order()
        for buffer in problem.buffers:
            self._traffic(buffer)

    def z(self, one: int, other: int) -> int:
        return self.pair[min(one, other), max(one, other)]

    def _new(self, price: float) -> int:
        self.count += 1
        self.price[self.count - 1] = price
        return self.count - 1

    def _sharing_is_transitive(self) -> None:
        for u, v, w in combinations(range(self.problem.size), 3):
            sides = self.z(u, v), self.z(v, w), self.z(u, w)
            for left_out in sides:
                self.rows.append(({side: 1.0 if side == left_out else -1.0 for side in sides}, -1.0))

    def _kernels_run_in_order(self) -> None:
        last = self.problem.size - 1
        for (u, v), z in self.pair.items():
            if (u, v) in self.problem.edges:
                self.rows.append(({self.order[v]: 1.0, self.order[u]: -1.0, z: 1.0}, 1.0))
            for one, other in ((u, v), (v, u)):
                self.rows.append(({self.order[one]: 1.0, self.order[other]: -1.0, z: -float(last)}, -float(last)))

    def _traffic(self, buffer: Any) -> None:
        touched = [] if buffer.writer is None else [buffer.writer]
        for reader in buffer.readers:
            r = self._new(buffer.nbytes)
            self.rows.append(({r: 1.0, **{self.z(t, reader): 1.0 for t in touched}}, 1.0))
            touched.append(reader)
        if buffer.writer is not None:
            s = self._new(buffer.bytes_written)
            if buffer.escapes:
                self.lower[s] = 1.0
            for reader in buffer.readers:
                self.rows.append(({s: 1.0, self.z(buffer.writer, reader): 1.0}, 1.0))

    def cut(self, mask: int) -> None:
        """No class may hold all of these nodes."""
        pairs = [self.z(one, other) for one, other in combinations(bits(mask), 2)]
        self.rows.append((dict.fromkeys(pairs, -1.0), -float(len(pairs) - 1)))

    def solve(self, seconds: float) -> tuple[list[int] | None, int, bool]:
        """The classes (None: none in time), a lower bound of the bytes, and whether they are the least."""
        try:
            import numpy
            from scipy.optimize import Bounds, LinearConstraint, milp
            from scipy.sparse import csr_matrix
        except ImportError as error:
            raise MissingDependencyError(
                "solving the fusion problem as an integer program needs SciPy",
                remedy="pip install 'staxlab[grading]'",
            ) from error
        n = self.problem.size
        unit = max(math.gcd(*(int(value) for value in self.price.values())), 1)
        price, lower, upper = (numpy.zeros(self.count), numpy.zeros(self.count), numpy.ones(self.count))
        upper[self.order] = max(n - 1, 0)
        for variable, value in self.price.items():
            price[variable] = value / unit
        for ends, values in ((lower, self.lower), (upper, self.upper)):
            for variable, value in values.items():
                ends[variable] = value
        if not self.count:
            return [], 0, True
        constraints = []
        if self.rows:
            columns = [column for coefficients, _ in self.rows for column in coefficients]
            factors = [factor for coefficients, _ in self.rows for factor in coefficients.values()]
            starts = numpy.cumsum([0, *(len(coefficients) for coefficients, _ in self.rows)])
            matrix = csr_matrix((factors, columns, starts), shape=(len(self.rows), self.count))
            constraints = [LinearConstraint(matrix, [least for _, least in self.rows], numpy.inf)]
        result = milp(
            price,
            integrality=numpy.ones(self.count),
            bounds=Bounds(lower, upper),
            constraints=constraints,
            options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )
        dual = getattr(result, "mip_dual_bound", None)
        bound = math.ceil(dual - 1e-6) * unit if dual is not None and math.isfinite(dual) else 0
        if result.x is None:
            return None, max(bound, 0), False
        masks: list[int] = []
        for node in range(n):
            for place, mask in enumerate(masks):
                if result.x[self.z(node, (mask & -mask).bit_length() - 1)] > 0.5:
                    masks[place] = mask | 1 << node
                    break
            else:
                masks.append(1 << node)
        return masks, max(bound, 0), result.status == 0
