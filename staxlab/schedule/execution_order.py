"""The nodes of a schedule in the order with the lowest peak (Section 7.5; the search is in :mod:`.orders`).

What must not change is stated as pairs of nodes: effects (random numbers, checks that may raise, writes into inputs)
keep the order of the program, a write into an input stays behind all that reads an input and stood before it, and a
scatter behind every other reader of the buffer it fills. An order is taken only if its memory plan has a lower peak
than that of the order there is, so that most programs keep theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..loops.ir import Layout, LoopProgram
from ..options import Decision, DeviceSpec
from .lifetimes import Step
from .memory_plan import MemoryPlan
from .orders import RULES, Order, OrderProblem, best_order, exact, is_forest, tree_order
from .placement import plan_memory, storage_bytes
from .records import Schedule, ScheduleNode, buffers_read, node_has_effect

#: Sets of nodes the search may look at while a program is compiled, and the longest schedule that is looked at at all.
STATES = 2_000
MOST_NODES = 400

#: Up to so many nodes a second plan is made although no order has a lower peak by Definition 7.5.
FEW_NODES = 80


def order_problem(nodes: Sequence[ScheduleNode], program: LoopProgram, layouts: Mapping[str, Layout]) -> OrderProblem:
    """What is free about the order of nodes, and what each does to memory; a scatter's memory is that of its base."""
    home: dict[str, str] = {}
    for node in nodes:
        for name in node.buffers:
            home[name] = home.get(node.base, node.base) if node.base is not None else name
    steps = []
    for node in nodes:
        reads = {home.get(name, name) for name in buffers_read(node)}
        writes = tuple(name for name in node.buffers if home[name] == name)
        steps.append(Step(node.name, tuple(sorted(reads)), writes))
    sizes = {name: _bytes(nodes, layouts, name) for name, own in home.items() if own == name}
    kept = frozenset(home[output.name] for output in program.outputs if output.name in home)
    return OrderProblem(tuple(steps), sizes, kept, frozenset(_pairs(nodes, program, home)))


def _bytes(nodes: Sequence[ScheduleNode], layouts: Mapping[str, Layout], name: str) -> int:
    node = next(node for node in nodes if name in node.buffers)
    writes = node.extern is not None and node.extern.operator._schema.is_mutable
    return 0 if writes else storage_bytes(layouts[name])  # what writes into an argument returns it


def _pairs(nodes: Sequence[ScheduleNode], program: LoopProgram, home: Mapping[str, str]) -> set[tuple[str, str]]:
    inputs = {buffer.name for buffer in program.inputs}
    pairs: set[tuple[str, str]] = set()
    effects = [node.name for node in nodes if node_has_effect(node)]
    pairs |= set(zip(effects, effects[1:], strict=False))
    written: dict[str, str] = {}  # memory -> the node that last wrote it
    readers: dict[str, list[str]] = {}
    writers_of_inputs: list[str] = []
    for node in nodes:
        taken = buffers_read(node)
        if taken & inputs:
            pairs |= {(before, node.name) for before in writers_of_inputs}
        if node.extern is not None and node.extern.operator._schema.is_mutable:
            pairs |= {(other, node.name) for name in inputs for other in readers.get(name, ())}
            writers_of_inputs.append(node.name)
        for name in taken:
            memory = home.get(name, name)
            if memory in written:
                pairs.add((written[memory], node.name))
        for name in node.buffers:
            memory = home[name]
            if node.base is not None:
                pairs |= {(other, node.name) for other in readers.get(memory, ())}
            written[memory] = node.name
        for name in taken:
            readers.setdefault(home.get(name, name), []).append(node.name)
    return {(one, other) for one, other in pairs if one != other}


def in_best_order(
    nodes: list[ScheduleNode], program: LoopProgram, device: DeviceSpec, layouts: Mapping[str, Layout],
    owned: frozenset[str] = frozenset(),
) -> tuple[list[ScheduleNode], MemoryPlan, tuple[Decision, ...]]:  # fmt: skip
    """The nodes in the order whose memory plan has the lowest peak of those tried, that plan, and why. Inputs that are
    ``owned`` by the call count until their last reader has run."""
    plan = plan_memory(nodes, program, device, layouts)
    if not 2 < len(nodes) <= MOST_NODES:
        return nodes, plan, ()
    held = {name: storage_bytes(layouts[name]) for name in sorted(owned)}
    problem = _with_inputs(order_problem(nodes, program, layouts), held)
    best, decision = best_order(problem, STATES)
    if decision.choice == decision.candidates[0]:
        if not held or len(nodes) > FEW_NODES:
            return nodes, plan, (decision,)
        # Reuse in place lowers some peaks and not others: orders that tie without it may differ with it.
        best, decision = _fewest_bytes_left(problem, decision)
    changed = [nodes[k - bool(held)] for k in best.positions[bool(held) :]]
    other = plan_memory(changed, program, device, layouts)
    peaks = (_peak(nodes, plan, held), _peak(changed, other, held))
    facts = (*decision.inputs, ("peak as planned", peaks[0]), ("peak of the other plan", peaks[1]))
    if peaks[1] < peaks[0]:
        kept = Decision("order", "schedule", decision.choice, decision.reason, decision.candidates, facts)
        return changed, other, (kept,)
    reason = "with reuse in place the order of the program needs no more"
    return nodes, plan, (Decision("order", "schedule", decision.candidates[0], reason, decision.candidates, facts),)


def _with_inputs(problem: OrderProblem, held: Mapping[str, int]) -> OrderProblem:
    """The problem with a first step that brings the inputs which are let go of on the way."""
    if not held:
        return problem
    first = Step("inputs", (), tuple(held))
    pairs = {(first.name, step.name) for step in problem.steps}
    return replace(
        problem, steps=(first, *problem.steps), sizes={**problem.sizes, **held}, ordered=problem.ordered | pairs
    )


def _fewest_bytes_left(problem: OrderProblem, decision: Decision) -> tuple[Order, Decision]:
    name = "fewest bytes left"
    positions = tuple(RULES[name](problem))
    return Order(positions, problem.peak(positions)), replace(decision, choice=name, reason=f"by the rule {name!r}")


def _peak(nodes: Sequence[ScheduleNode], plan: MemoryPlan, held: Mapping[str, int]) -> int:
    """The most bytes at once of a plan and of what is still held of the inputs."""
    last = {name: position for position, node in enumerate(nodes) for name in buffers_read(node) if name in held}
    return max(
        live + sum(size for name, size in held.items() if last.get(name, 0) >= position)
        for position, live in enumerate(plan.live_bytes)
    )


@dataclass(frozen=True)
class OrderComparison:
    """The memory plans of a schedule's nodes in several orders, by the name of the rule that gave each; ``chosen`` is
    the order of the schedule. ``proved`` is the lowest peak of any order by Definition 7.5 (that is, without reuse in
    place), None where the search was cut short."""

    plans: Mapping[str, MemoryPlan]
    chosen: str
    proved: int | None

    def format(self) -> str:
        """A line per order: its peaks in bytes."""
        wide = max(map(len, self.plans))
        lines = [
            f"{name:{wide}}  peak {plan.peak_bytes} bytes, alive at most {plan.least_bytes} bytes, "
            f"arena {plan.arena_bytes} bytes{'  <- the schedule' if name == self.chosen else ''}"
            for name, plan in self.plans.items()
        ]
        if self.proved is not None:
            lines.append(f"in no order are fewer than {self.proved} bytes alive at most (Definition 7.5)")
        return "\n".join(lines)

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def compare_orders(schedule: Schedule, states: int = 20_000) -> OrderComparison:
    """Every order that can be tried, with its memory plan; the first is that of the schedule."""
    nodes, layouts = list(schedule.nodes), schedule.layouts
    problem = order_problem(nodes, schedule.program, layouts)
    scheduled = "as scheduled"
    orders = {scheduled: tuple(range(len(nodes))), "as written": _as_written(nodes, schedule.program, problem)}
    orders |= {name: tuple(rule(problem)) for name, rule in RULES.items() if name != "as it stands"}
    proved = None
    if is_forest(problem):
        orders["tree"] = tree_order(problem)
        proved = problem.peak(orders["tree"])
    elif (best := exact(problem, states)) is not None:
        orders["exact"], proved = best.positions, best.peak
    plans = {
        name: plan_memory([nodes[k] for k in order], schedule.program, schedule.device, layouts)
        for name, order in orders.items()
    }
    return OrderComparison(plans, scheduled, proved)


def _as_written(nodes: Sequence[ScheduleNode], program: LoopProgram, problem: OrderProblem) -> tuple[int, ...]:
    """Of the nodes that can run, always the one that the program has first."""
    position = {buffer.name: k for k, buffer in enumerate(program.buffers)}
    first = [min(position[name] for name in node.buffers) for node in nodes]
    done, order = 0, []
    for _ in nodes:
        step = min(problem.ready(done), key=first.__getitem__)
        done |= 1 << step
        order.append(step)
    return tuple(order)
