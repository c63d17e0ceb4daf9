"""Inside the front end (Sections 3, 4 and 5): the captured graph, the rounds of passes, and the operators.

Capture is compared with the function itself: the values that PyTorch's functions returned are known, and the first node
of the graph whose value is not among them was recorded wrongly. The graphs between two passes are in the log of the
transformation, so that the first wrong one is found by bisection, and in it the rule whose replacement has another
value than what it replaced. An operator graph is compared node by node with the graph that it was recorded from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..capture.graph import Graph, Node
from ..capture.module import GraphModule
from ..measure.agreement import Difference
from ..operators.structure import flatten
from ..provenance import Origins, SourceLocation
from ..transform.rewrite import Applied, PassRun, TransformLog
from .record import Culprit
from .sample import Sample
from .values import Heard, distance, node_values

#: A node whose value is this much further away than its arguments' is said to be at fault: well above rounding.
CLEARLY = 1e-4


def lines_of(graph: Graph, origins: Origins, most: int = 4) -> tuple[SourceLocation, ...]:
    """The user's lines behind some origins."""
    found = (node.location for node in graph if node.location is not None and node.origins & origins)
    return tuple(dict.fromkeys(found))[:most]


def capture_culprit(sample: Sample, difference: Difference | None) -> Culprit:
    """The first node of the captured graph whose value the function never had."""
    heard = Heard()
    args, kwargs = sample.copies()
    module = sample.capture.module
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), heard:
            torch.manual_seed(sample.seed)
            sample.fn(*args, **kwargs)
        values = node_values(module, sample.flat, sample.seed)
    except Exception as error:
        return Culprit("capture", "the captured graph", f"it cannot be run: {error!r:.200}", difference)
    position = 0
    for node in module.graph.calls:
        value = values.get(node.name)
        leaves = [x for x in flatten(value) if isinstance(x, torch.Tensor)]
        if not leaves or node.meta.get("mutates"):
            continue
        for leaf in leaves:
            known = (k for k in range(position, len(heard.values)) if distance(heard.values[k], leaf) == 0.0)
            place = next(known, None)
            if place is None:
                reason = f"%{node.name} has a value that nothing in the function had: {node.format()}"
                where = (node.location,) if node.location else ()
                return Culprit("capture", f"node %{node.name}", reason, difference, where, node.origins)
            if not node.meta.get("aliases"):
                position = min(position + 1, place)
    reason = "every node has a value that the function had, but the results, their order or an effect is another"
    return Culprit("capture", "results or effects of the graph", reason, difference)


def pass_culprit(log: TransformLog, sample: Sample, agrees: Callable[[GraphModule], bool],
                 difference: Difference | None, graph: Graph) -> Culprit:  # fmt: skip
    """The pass, and in it the rule, that changed the values. ``agrees`` runs a graph and compares; it is asked
    O(log k) times for k passes that changed something."""
    changes = log.changes
    low, high = 0, len(changes)  # the graph before change `low` is right, the one after change `high - 1` is not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if agrees(changes[middle - 1].graph_after) else (low, middle)
    if not changes or (low == 0 and not agrees(log.initial)):
        reason = "the graph is wrong before the first pass, which gets a right one"
        return Culprit("transforms", "the copy that passes work on", reason, difference)
    return _rule_culprit(changes[low], sample, difference, graph)


def _rule_culprit(run: PassRun, sample: Sample, difference: Difference | None, graph: Graph) -> Culprit:
    named = f"pass {run.name} in round {run.round}"
    before = node_values(run.graph_before, sample.flat, sample.seed)
    after = node_values(run.graph_after, sample.flat, sample.seed)
    wrong: list[tuple[float, Applied]] = []
    for applied in run.applied:
        away = _changed(applied, before, after)
        if away is not None and away > 0:
            wrong.append((away, applied))
    if wrong:
        _, applied = max(wrong, key=lambda entry: entry[0])
        texts = f"{applied.before[-1].strip()} became {applied.after[-1].strip() if applied.after else 'nothing'}"
        where = lines_of(graph, applied.origins)
        reason = f"{texts}, written in {_place(applied.source)}"
        return Culprit("transforms", f"{named}, rule {applied.rule}: {applied.law}", reason, difference, where,
                       applied.origins)  # fmt: skip
    for node in run.graph_after.graph.calls:
        if node.name in before and distance(before[node.name], after.get(node.name)) > 0:
            where = (node.location,) if node.location else ()
            return Culprit("transforms", named, f"%{node.name} has another value than before", difference, where,
                           node.origins)  # fmt: skip
    rules = ", ".join(dict.fromkeys(applied.rule for applied in run.applied))
    return Culprit("transforms", named, f"the results or their order changed; rules applied: {rules}", difference)


def _place(source: str) -> str:
    """The file and line of a rule without its folders."""
    return source.replace("\\", "/").rpartition("/")[2] or "an unknown place"


def _changed(applied: Applied, before: dict[str, Any], after: dict[str, Any]) -> float | None:
    """How far the value that a rule put in the place of another is from it; None where that cannot be seen."""
    old = _named(applied.before[-1]) if applied.before else None
    if old is None or old not in before or not applied.after:
        return None
    new = _named(applied.after[-1])
    if new is None:  # a literal that stands for a number
        return 0.0 if repr(before[old]) == applied.after[-1] else float("inf")
    return distance(before[old], after[new]) if new in after else None


def _named(line: str) -> str | None:
    found = re.match(r"\s*%(\w+)", line)
    return found.group(1) if found else None


def operators_culprit(
    module: GraphModule, operators: Any, sample_inputs: Sequence[Any], seed: int, difference: Difference | None
) -> Culprit:
    """The node of a graph of Python calls that its operators compute otherwise: a decomposition rule, or a write that
    was made functional wrongly, or the recording."""
    reference = node_values(module, sample_inputs, seed)
    values = node_values(operators.module, sample_inputs, seed)
    by_origins: dict[Origins, list[Node]] = {}
    for node in operators.graph:
        by_origins.setdefault(node.origins, []).append(node)
    wrote: Node | None = None
    for node in module.graph.calls:
        wrote = node if node.meta.get("mutates") else wrote
        wanted = reference.get(node.name)
        tensors = [x for x in flatten(wanted) if isinstance(x, torch.Tensor)]
        group = by_origins.get(node.origins, [])
        if not tensors or not group:
            continue
        found = [x for other in group for x in flatten(values.get(other.name)) if isinstance(x, torch.Tensor)]
        alike = [x for x in found if (x.shape, x.dtype) == (tensors[0].shape, tensors[0].dtype)]
        if not alike or min(distance(x, tensors[0]) for x in alike) <= CLEARLY:
            continue
        where = (node.location,) if node.location else ()
        taken = [entry for entry in operators.decomposed if entry.origins & node.origins]
        listing = "; ".join(other.format() for other in group[:3])
        listing += f" and {len(group) - 3} more" if len(group) > 3 else ""
        reason = f"{node.format()} became {listing}"
        if taken:
            part = f"decomposition of {taken[0].operator}"
        elif wrote is not None:
            part = f"functionalization of %{wrote.name}"
            if wrote is not node:
                part += f", as %{node.name} sees it"
                where = (*((wrote.location,) if wrote.location else ()), *where)
        else:
            part = f"recording of %{node.name}"
        return Culprit("operators", part, reason, difference, where, node.origins)
    if wrote is not None:
        where = (wrote.location,) if wrote.location else ()
        reason = "every operator computes what it should, so a write goes to the wrong place or is lost"
        return Culprit("operators", f"functionalization of %{wrote.name}", reason, difference, where, wrote.origins)
    return Culprit("operators", "results of the graph", "every operator computes what it should", difference)
