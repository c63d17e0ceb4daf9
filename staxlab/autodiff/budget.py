"""Saving within a memory budget: the least work that has to be done again (Sections 5.4 and 5.8).

The minimum cut asks what is cheapest to save when only cheap operations may be repeated. With a limit on the bytes
saved, everything may have to be repeated, matrix products too, and the question is which. For general graphs that is
NP-hard; as a 0/1 program it is small, and solvers are good at those (Jain et al. 2020, "Checkmate: breaking the memory
wall with optimal tensor rematerialization"). Unlike there, a value is computed again at most once and lives through the
backward pass from then on, which is what our backward graph does.

For every forward value v the backward pass might need, ``s_v = 1`` if it is saved, ``r_v = 1`` if it is computed
again::

    minimise    sum over v of work(v) r_v
    subject to  s_v + r_v >= 1              for v read by the backward pass
                r_v <= s_u + r_u            for every u that v is computed from
                sum over v of bytes(v) s_v <= budget

Views and tuples have no s, random values no r. The unit of work is the byte moved between memory and processor; what
is limited by arithmetic counts for as many bytes as could be moved in that time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..capture.graph import Node, TensorMeta
from ..errors import ConstraintError, MissingDependencyError
from ..operators.structure import flatten
from .network import INFINITE, maximum_flow
from .values import ForwardValue, Kinds, rematerialization_network

#: Operations in the time it takes to move a byte: 67e12 per second over 3.35e12 bytes per second on a GPU as sold
#: today, about as many on a CPU with wide vectors. Only the ratio between work of both sorts depends on it.
OPERATIONS_PER_BYTE = 20
#: Seconds the solver may take. Regions are small next to what it can do; a compiler that thinks longer is no help.
TIME_LIMIT = 5.0


@dataclass(frozen=True)
class BudgetPlan:
    """What to save within a budget. Sizes in bytes, ``work`` in bytes moved (or equivalent arithmetic).

    ``least`` is the least that must be saved under any plan, ``saved`` are nodes of the joint graph, ``work`` what
    computing the rest again costs. ``bound`` is proven: no plan within the budget does with less. ``method`` is
    "exact" where both agree, "time limit" where the solver stopped early, "greedy" where it had found nothing by then.
    """

    budget: int
    least: int
    saved: tuple[Node, ...]
    saved_bytes: int
    work: float
    bound: float
    method: str

    @property
    def gap(self) -> float:
        """How much of the work may be unnecessary, as a fraction of it."""
        return 0.0 if self.work <= self.bound else (self.work - self.bound) / self.work

    def __str__(self) -> str:
        proof = "the least possible" if not self.gap else f"at most {self.gap:.1%} above the least possible"
        used = f"{self.saved_bytes:,} of {self.budget:,} bytes saved"
        return f"{used} (at least {self.least:,} are needed); work done again {self.work:,.0f}, {proof} ({self.method})"


def budget_in_bytes(budget: int | float, save_all_bytes: int) -> int:
    """A budget as ``Options.memory_budget`` has it, in bytes: fractions are of what saving everything takes."""
    return math.floor(budget * save_all_bytes) if isinstance(budget, float) else budget


def within_budget(
    values: Sequence[ForwardValue], kinds: Kinds, budget: int, *, time_limit: float = TIME_LIMIT
) -> BudgetPlan:
    """The plan of least work that saves at most ``budget`` bytes, by integer programming.

    Raises ConstraintError where even the least possible is more, and names that; MissingDependencyError without SciPy.
    """
    problem = Problem(values, kinds)
    least = problem.least_saved()
    least_bytes = problem.bytes_of(least)
    if least_bytes > budget:
        raise ConstraintError(
            f"a memory budget of {budget:,} bytes is too small: at least {least_bytes:,} bytes must be saved",
            remedy=f"give at least options={{'memory_budget': {least_bytes}}}",
        )
    started = time.monotonic()
    found, bound = _solve(problem, budget, time_limit)
    method = "exact"
    if found is None or problem.bytes_of(found) > budget:
        found, method = _improved(problem, least, budget, started + 2 * time_limit), "greedy"
    work = problem.work_of(found)
    bound = min(bound, work)
    if method == "exact" and work > bound * (1 + 1e-9) + 1e-6:
        method = "time limit"
    elif method == "exact":
        bound = work
    saved = problem.useful(found)
    return BudgetPlan(budget, least_bytes, saved, problem.bytes_of(saved), work, bound, method)


def work_again(saved: Iterable[Node], values: Sequence[ForwardValue], kinds: Kinds) -> float:
    """What computing the rest again costs where ``saved`` are saved; infinite where it is not possible."""
    return Problem(values, kinds).work_of(saved)


class Problem:
    """Which values have to be had in the backward pass, from what, and what each costs."""

    def __init__(self, values: Sequence[ForwardValue], kinds: Kinds, work: Callable[[Node, str], float] | None = None):
        known = {value.node: value for value in values}
        waiting = [value.node for value in values if value.is_read]
        wanted = set(waiting)
        while waiting:
            for source in waiting.pop().inputs:
                if source in known and source not in wanted:
                    wanted.add(source)
                    waiting.append(source)
        work = work or operator_work
        self.values = tuple(value for value in values if value.node in wanted)
        self.value = {value.node: value for value in self.values}
        self.made_of = {v.node: tuple(s for s in v.node.inputs if s in wanted) for v in self.values}
        self.work = {v.node: float(work(v.node, kinds(v.node))) for v in self.values}

    def bytes_of(self, saved: Iterable[Node]) -> int:
        return sum(self.value[node].nbytes for node in saved if node in self.value)

    def again(self, saved: Iterable[Node]) -> set[Node]:
        """The values that have to be computed again where ``saved`` are saved."""
        saved = set(saved)
        waiting = [value.node for value in self.values if value.is_read and value.node not in saved]
        needed = set(waiting)
        while waiting:
            for source in self.made_of[waiting.pop()]:
                if source not in saved and source not in needed:
                    needed.add(source)
                    waiting.append(source)
        return needed

    def work_of(self, saved: Iterable[Node]) -> float:
        again = self.again(saved)
        if any(not self.value[node].is_repeatable for node in again):
            return INFINITE
        return math.fsum(self.work[node] for node in again)

    def useful(self, saved: Iterable[Node]) -> tuple[Node, ...]:
        """Those of ``saved`` that the backward pass reads or that something it computes again is made of, in order."""
        saved = set(saved)
        again = self.again(saved)
        read = {value.node for value in self.values if value.is_read}
        read.update(source for node in again for source in self.made_of[node])
        return tuple(value.node for value in self.values if value.node in saved and value.node in read)

    def least_saved(self) -> list[Node]:
        """The feasible set of fewest bytes when everything that can be repeated may be: a minimum cut as well.

        Raises ConstraintError where a value can neither be saved nor computed again.
        """
        network = rematerialization_network(
            self.values, lambda v: INFINITE if v.unsavable else v.nbytes, lambda v: not v.is_repeatable
        )
        flow = maximum_flow(network)
        if not flow.is_finite:
            way = " -> ".join(network.name(vertex) for vertex in flow.paths[-1].vertices)
            raise ConstraintError(f"no memory budget can be kept: nothing on the way {way} can be saved or repeated")
        return [self.values[network.tails[edge] // 2].node for edge in flow.cut]


def _solve(problem: Problem, budget: int, time_limit: float) -> tuple[list[Node] | None, float]:
    """The best set found by HiGHS (None: none in time), and a lower bound of the work of any."""
    try:
        import numpy
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_matrix
    except ImportError as error:
        raise MissingDependencyError(
            "dividing a graph within a memory budget needs SciPy", remedy="pip install 'staxlab[grading]'"
        ) from error
    values = problem.values
    count = len(values)
    if not count:
        return [], 0.0
    place = {value.node: k for k, value in enumerate(values)}  # s_v is variable k, r_v is variable count + k
    upper = numpy.ones(2 * count)
    for k, value in enumerate(values):
        upper[k] = not value.unsavable
        upper[count + k] = value.is_repeatable
    rows: list[tuple[list[int], list[float], float]] = []  # columns, factors, lower end
    for k, value in enumerate(values):
        if value.is_read:
            rows.append(([k, count + k], [1, 1], 1))
        for source in problem.made_of[value.node]:
            rows.append(([place[source], count + place[source], count + k], [1, 1, -1], 0))
    sizes = numpy.array([value.nbytes for value in values], dtype=float)
    unit = max(math.gcd(*(value.nbytes for value in values)), 1)
    rows.append((list(range(count)), list(-sizes / unit), -float(budget // unit)))
    columns = [column for row in rows for column in row[0]]
    starts = numpy.cumsum([0, *(len(row[0]) for row in rows)])
    matrix = csr_matrix(([f for row in rows for f in row[1]], columns, starts), shape=(len(rows), 2 * count))
    works = numpy.array([problem.work[value.node] for value in values])
    scale = works.max() or 1.0
    result = milp(
        numpy.concatenate([numpy.zeros(count), works / scale]),
        integrality=numpy.ones(2 * count),
        bounds=Bounds(0, upper),
        constraints=LinearConstraint(matrix, [row[2] for row in rows], numpy.inf),
        options={"time_limit": time_limit, "mip_rel_gap": 0.0},
    )
    bound = getattr(result, "mip_dual_bound", None)
    bound = 0.0 if bound is None or not math.isfinite(bound) else max(bound * scale, 0.0)
    if result.x is None:
        return None, bound
    return [value.node for k, value in enumerate(values) if result.x[k] > 0.5], bound


def _improved(problem: Problem, saved: Sequence[Node], budget: int, deadline: float) -> list[Node]:
    """A feasible set made better as long as there is room: the values that spare most work for a byte come first."""
    chosen, used = set(saved), problem.bytes_of(saved)
    work = problem.work_of(chosen)
    gains = []
    for node in problem.again(chosen):
        value = problem.value[node]
        if not value.unsavable and used + value.nbytes <= budget and time.monotonic() < deadline:
            gains.append(((work - problem.work_of(chosen | {node})) / max(value.nbytes, 1), node.id, node))
    for _, _, node in sorted(gains, reverse=True):
        size = problem.value[node].nbytes
        if used + size <= budget and time.monotonic() < deadline:
            lower = problem.work_of(chosen | {node})
            if lower < work:
                chosen.add(node)
                used, work = used + size, lower
    return [value.node for value in problem.values if value.node in chosen]


# -- work -------------------------------------------------------------------------------------------------------------


def operator_work(node: Node, kind: str) -> float:
    """What one run of an operator costs, in bytes moved: its operands and results, or as many bytes as could be moved
    in the time of its arithmetic if that is more. Views and items cost nothing."""
    if kind in ("view", "storage view", "item", "input", "constant"):
        return 0.0
    moved = sum(meta.nbytes for part in (node.val, *(source.val for source in node.inputs)) for meta in _metas(part))
    return float(max(moved, floating_point_operations(node) / OPERATIONS_PER_BYTE))


def floating_point_operations(node: Node) -> int:
    """The arithmetic of matrix products, convolutions and attention; 0 for others, which memory limits."""
    name = getattr(node.target, "_opname", "")
    metas = [part.val for part in node.args if isinstance(part, Node)]
    results = _metas(node.val)
    if not results or not all(isinstance(meta, TensorMeta) for meta in metas):
        return 0
    place = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "vdot": 0, "addmm": 1, "baddbmm": 1, "addbmm": 1, "addmv": 1}.get(
        name
    )
    if place is not None and len(metas) > place and metas[place].ndim:
        batch = metas[place].shape[0] if name == "addbmm" else 1  # the one whose batch is summed
        return 2 * batch * results[0].numel * metas[place].shape[-1]
    if "convolution" in name and len(metas) > 1 and "backward" not in name:
        weight = metas[1]
        return 2 * results[0].numel * (weight.numel // max(weight.shape[0], 1))
    own = name == "attention" and node.target.namespace == "staxlab"
    if (own or name.startswith("_scaled_dot_product")) and len(metas) > 2 and "backward" not in name:
        query, key = metas[:2]
        return 4 * query.numel * key.shape[-2]
    return 0


def _metas(value: Any) -> list[TensorMeta]:
    return [leaf for leaf in flatten(value) if isinstance(leaf, TensorMeta)]
