"""Answers to Exercise 4: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex04 import Variant


def slice_nodes(inputs, gates):
    needed = set()
    pending = list(gates)
    while pending:
        node = pending.pop()
        if node in needed:
            continue
        needed.add(node)
        pending.extend(inputs[node])
    return needed


LINEAR = """A node enters needed at most once, because line 4 skips it afterwards, and its arguments are pushed only
when it enters. So each edge pushes at most one entry, and the gates push |D| more: at most |D| + |E| entries, each
popped once, and D is a subset of V. An iteration costs constant expected time, since needed is a hash set and pending a
stack. Copying in topological order is one more pass over nodes and edges. Together O(|V| + |E|)."""

UNSEEN = """The condition's value is read by a Python if and reaches no output, so its nodes are dead and gone before
they are looked for. The key then has no component that depends on the elements of x. Guards are the components of the
key, so none of them is about the gate: they all hold, and rightly, because the keys are equal. What breaks is the
assumption of Proposition 2.1 that the key determines every value used as a constant; Corollary 2.1 stays true."""


def results(variant: Variant, gate_in_key: bool) -> list[float]:
    """The calls by hand: a version is known by its rows, and by its branch if the gate is in the key."""
    branches: dict[Any, bool] = {}
    found = []
    for rows, value in variant.calls:
        taken = rows * 8 * value > variant.threshold
        branch = branches.setdefault((rows, taken) if gate_in_key else rows, taken)
        found.append(value * variant.factor if branch else value - variant.minus)
    return found


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer. ``w`` stands for the variant's width."""
    return {
        "slice_nodes": slice_nodes,
        "needed": "n*w",
        "popped": "w + (n - 1)*w**2",
        "popped_without_check": "Sum(w**i, (i, 1, n))",
        "linear": LINEAR,
        "late_results": results(variant, gate_in_key=False),
        "early_versions": len({(rows, rows * 8 * value > variant.threshold) for rows, value in variant.calls}),
        "late_versions": len({rows for rows, _ in variant.calls}),
        "early_replay": 2,
        "late_replay": 0,
        "early_failing": 1,
        "late_failing": 0,
        "corollary": "still holds",
        "proposition": "no longer holds",
        "unseen": UNSEEN,
    }


HARMLESS: dict[str, tuple[str, ...]] = {}


def _without_the_check(inputs, gates):
    needed, pending = set(), list(gates)
    while pending:
        node = pending.pop()
        needed.add(node)
        pending.extend(inputs[node])
    return needed


def _recursion_over_paths(inputs, gates):
    needed = set(gates)
    for gate in gates:
        needed |= _recursion_over_paths(inputs, list(inputs[gate]))
    return needed


def _keeps_a_list(inputs, gates):
    needed, pending = [], list(gates)
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.append(node)
            pending.extend(inputs[node])
    return needed


def _goes_over_all_nodes(inputs, gates):
    needed, changed = set(gates), True
    while changed:
        changed = False
        for node in inputs:
            if node in needed and not needed.issuperset(inputs[node]):
                needed.update(inputs[node])
                changed = True
    return needed


def _without_the_gates(inputs, gates):
    return slice_nodes(inputs, [node for gate in gates for node in inputs[gate]])


def _one_level(inputs, gates):
    return set(gates).union(*(inputs[gate] for gate in gates))


def _everything(inputs, gates):
    return set(inputs)


def _first_gate_only(inputs, gates):
    return slice_nodes(inputs, gates[:1])


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""

    def slip(mistake: str, *loses: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, loses or tuple(answers))

    right = reference(variant)
    own, late = results(variant, gate_in_key=True), right["late_results"]
    found = [
        slip("expands-again", slice_nodes=_without_the_check),
        slip("expands-again", slice_nodes=_recursion_over_paths),
        slip("searches-a-list", slice_nodes=_keeps_a_list),
        slip("repeated-passes", slice_nodes=_goes_over_all_nodes),
        slip("gate-missing", slice_nodes=_without_the_gates),
        slip("gate-missing", slice_nodes=_first_gate_only),
        slip("ancestor-missing", slice_nodes=_one_level),
        slip("not-needed", slice_nodes=_everything),
        slip("failed-call", slice_nodes=lambda inputs, gates: slice_nodes(inputs, gates[0])),
        slip("wrong-form", slice_nodes=lambda inputs, gates: len(gates)),
        slip("pops-for-nodes", needed="w + (n - 1)*w**2"),
        slip("nodes-for-pops", popped="n*w"),
        slip("gates-forgotten", popped="(n - 1)*w**2"),
        slip("nodes-plus-edges", popped="n*w + (n - 1)*w**2"),
        slip("with-the-check", popped_without_check="w + (n - 1)*w**2"),
        slip("first-layer-only", popped_without_check="w**n"),
        slip("gates-forgotten", popped_without_check="Sum(w**i, (i, 2, n))"),
        slip("eager-values", late_results=own),
        slip("wrong-length", late_results=late[:2]),
        slip("gate-forgotten", early_versions=right["late_versions"]),
        slip("gate-still-there", late_versions=right["early_versions"]),
        slip("input-counted", early_replay=3),
        slip("condition-only", early_replay=1),
        slip("gate-still-there", late_replay=2),
        slip("gate-forgotten", early_failing=0),
        slip("gate-still-there", late_failing=1),
        slip("chose-no-longer-holds", corollary="no longer holds"),
        slip("chose-still-holds", proposition="still holds"),
    ]
    if len(variant.calls) not in (right["early_versions"], right["late_versions"]):
        found.append(slip("calls-counted", early_versions=len(variant.calls)))
    stale = [number for number, (a, b) in enumerate(zip(own, late, strict=True)) if a != b]
    if len(stale) > 1:
        mixed = [*late[: stale[-1]], own[stale[-1]], *late[stale[-1] + 1 :]]
        found.append(slip("partly-eager", late_results=mixed))
    return tuple(found)
