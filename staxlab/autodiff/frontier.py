"""Memory against work: what each budget costs (Sections 5.4 and 5.8), with the minimum cut and eager execution beside.

Every point is the least work that has to be done again when no more than so many bytes are saved. Eager execution does
nothing again; what it saves can lie right of the frontier, because it also keeps what could be had for free. The
minimum cut has another measure, which prefers values that are written anyway and read soon; it lies on the frontier or
above it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .budget import TIME_LIMIT, BudgetPlan, Problem, operator_work, within_budget, work_again
from .graph import JointGraph
from .network import maximum_flow
from .partition import eager_bytes, save_all
from .values import KindOf, Kinds, forward_values, rematerialization_network


@dataclass(frozen=True)
class Mark:
    """A plan to compare with: bytes saved, and work done again in bytes moved."""

    name: str
    saved_bytes: int
    work: float


@dataclass(frozen=True)
class Frontier:
    """The plans of least work for ascending budgets, each in bytes, and what they are compared with.

    ``forward_work`` is the work of the forward pass, the measure of what doing something again means.
    """

    plans: tuple[BudgetPlan, ...]
    marks: tuple[Mark, ...]
    forward_work: float

    def format(self) -> str:
        """A line for each budget, then the marks."""
        lines = ["saved (bytes)    done again (bytes moved)    of the forward pass    proof"]
        for plan in self.plans:
            proof = "least" if not plan.gap else f"within {plan.gap:.1%}"
            lines.append(self._line(plan.saved_bytes, plan.work, proof))
        lines += [self._line(mark.saved_bytes, mark.work, mark.name) for mark in self.marks]
        return "\n".join(lines)

    def share(self, work: float) -> float:
        """Work as a fraction of the forward pass's."""
        return work / self.forward_work if self.forward_work else 0.0

    def _line(self, saved: int, work: float, said: str) -> str:
        return f"{saved:>13,}    {work:>24,.0f}    {self.share(work):>19.1%}    {said}"

    __str__ = format

    def __repr__(self) -> str:
        return f"<frontier of {len(self.plans)} memory budgets>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def frontier(joint: JointGraph, *, kind_of: KindOf, points: int = 12, time_limit: float = TIME_LIMIT) -> Frontier:
    """The frontier from the least possible budget to that of saving everything, in at most ``points`` steps.

    An integer program for each point (:func:`.budget.within_budget`), of ``time_limit`` seconds at most. Errors as
    there.
    """
    kinds = Kinds(kind_of)
    values = forward_values(joint, kinds)
    sizes = {value.node: value.nbytes for value in values}
    problem = Problem(values, kinds)
    least, most = problem.bytes_of(problem.least_saved()), sum(sizes[node] for node in save_all(joint, values))
    most = max(least, most)
    budgets = sorted({least + round((most - least) * k / max(points - 1, 1)) for k in range(points)})
    plans: dict[int, BudgetPlan] = {}
    for budget in budgets:
        plan = within_budget(values, kinds, budget, time_limit=time_limit)
        plans.setdefault(plan.saved_bytes, plan)
    marks = []
    network = rematerialization_network(values)
    flow = maximum_flow(network)
    if flow.is_finite:
        cut = [values[network.tails[edge] // 2].node for edge in flow.cut]
        marks.append(Mark("minimum cut", problem.bytes_of(problem.useful(cut)), work_again(cut, values, kinds)))
    marks.append(Mark("eager", eager_bytes(joint, kinds), 0.0))
    forward = sum(operator_work(value.node, kinds(value.node)) for value in values)
    return Frontier(tuple(sorted(plans.values(), key=lambda plan: plan.saved_bytes)), tuple(marks), forward)
