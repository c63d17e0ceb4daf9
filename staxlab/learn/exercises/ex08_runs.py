"""What Exercise 8 runs: views and their scatter inverses, a functionalized graph as data, and merging too early."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import torch

from ...capture.graph import Graph
from ...capture.module import GraphModule
from ...capture.tracer import trace
from ...errors import StaxError
from ...operators.record import record
from ...operators.storage import functionalized
from ...transform.cse import eliminate_common_subexpressions
from ..answers import Callee
from ..dispatching import same_result, value_text
from ..feedback import Verdict, nearly, right, wrong
from ..judges import call_failed, unexpected_result
from ..variants import generator

HALF = Fraction(1, 2)
Facts = tuple[tuple[str, str], ...]


class _Refused(Exception):
    """A verdict found somewhere in the middle of judging."""

    def __init__(self, verdict: Verdict):
        self.verdict = verdict


# --- Part 1: select and its scatter inverse ---------------------------------------------------------------------------


def matrices(seed: int | None) -> list[tuple[torch.Tensor, int, int]]:
    """(matrix of different numbers, dimension, index): every place in small matrices, the smallest first."""
    rng = generator(seed, "matrices")
    found = []
    for rows, columns in ((1, 1), (2, 2), (2, 3), (3, 2), (rng.randint(2, 4), rng.randint(3, 5))):
        numbers = torch.tensor(rng.sample(range(10, 99), rows * columns)).view(rows, columns)
        found += [(numbers, dim, index) for dim in (0, 1) for index in range(numbers.shape[dim])]
    return found


def _lists(callee: Callee, arguments: tuple, shape: tuple[int, ...]) -> torch.Tensor:
    """What the student's function returned, as a tensor of that shape."""
    outcome = callee.call(*arguments)
    if outcome.failed:
        raise _Refused(call_failed(callee, arguments, outcome))
    try:
        value = torch.as_tensor(outcome.value)
    except (TypeError, ValueError, RuntimeError):
        raise _Refused(unexpected_result(callee, arguments, f"got {value_text(outcome.value)}")) from None
    if tuple(value.shape) != shape:
        problem = f"the result has shape {tuple(value.shape)} and not {shape}"
        raise _Refused(unexpected_result(callee, arguments, problem))
    return value


def judge_select(callee: Callee, seed: int | None) -> Verdict:
    """The student's select against PyTorch's."""
    cases = matrices(seed)
    for b, dim, index in cases:
        arguments = (b.tolist(), dim, index)
        truth, other = b.select(dim, index), None
        if index < b.shape[1 - dim]:
            other = b.select(1 - dim, index)
        outcome = callee.call(*copy.deepcopy(arguments))
        if outcome.failed:
            return call_failed(callee, arguments, outcome)
        yours = outcome.value
        if yours == truth.tolist() and isinstance(yours, list):
            continue
        facts = (("call", callee.call_text(*arguments)), ("yours", yours))
        if other is not None and yours == other.tolist():
            return wrong("That is the row or column of the other dimension.", *facts, mistake="other-dimension")
        return wrong("These are not the elements with that index.", *facts, mistake="wrong-elements")
    return right("It is PyTorch's select.", ("tried", f"{len(cases)} selections"))


def judge_scatter(callee: Callee, seed: int | None) -> Verdict:
    """The two conditions of Proposition 4.4, and that nothing is written."""
    cases = matrices(seed)
    try:
        for b, dim, index in cases:
            _check_scatter(callee, b, dim, index)
    except _Refused as refused:
        return refused.verdict
    return right("Both conditions of Proposition 4.4 hold, and b is left alone.", ("tried", f"{len(cases)} views"))


def _check_scatter(callee: Callee, b: torch.Tensor, dim: int, index: int) -> None:
    v = -b.select(dim, index) - 1
    arguments = (b.tolist(), v.tolist(), dim, index)
    result = _lists(callee, arguments, tuple(b.shape))
    facts = (("call", callee.call_text(b.tolist(), v.tolist(), dim, index)), ("yours", result.tolist()))
    if arguments[0] != b.tolist():
        message = (
            "b is not the same afterwards: that was a write, and the old contents are gone for whoever needs them."
        )
        raise _Refused(wrong(message, *facts, ("b afterwards", arguments[0]), mistake="changes-b"))
    if not torch.equal(result.select(dim, index), v):
        message = "Looking at the result through the view does not give v: view(scatter(b, v)) = v fails."
        raise _Refused(wrong(message, *facts, mistake="view-not-put-in"))
    if not torch.equal(result, b.select_scatter(v, dim, index)):
        message = "The result does not agree with b where the view does not look."
        raise _Refused(wrong(message, *facts, mistake="loses-b"))


# --- Part 2: y.t()[k].add_(a), functionalized ------------------------------------------------------------------------


def program(y: torch.Tensor, k: int, a: int) -> dict[str, torch.Tensor]:
    """The program of the exercise; what each of its names holds at the end."""
    v = y.t()
    row = v[k]
    first = y[0]
    row.add_(a)
    return {"y": y, "v": v, "row": row, "first": first}


def numbers(rows: int, columns: int) -> torch.Tensor:
    return torch.arange(rows * columns, dtype=torch.float32).view(rows, columns)


@lru_cache(maxsize=64)
def _elements(rows: int, columns: int, k: int) -> tuple[int, ...]:
    found = functionalized(lambda y: program(y, k, 1)["y"] * 1, numbers(rows, columns))
    (lane,) = [lane for lane in found.storages[0].lanes if lane.writers]
    return lane.elements


def elements_of_row(rows: int, columns: int, k: int) -> list[int]:
    """The positions in y's storage that y.t()[k] looks at, read off the storage picture."""
    return list(_elements(rows, columns, k))


def elements_changed_in_first(rows: int, columns: int, k: int) -> int:
    """How many elements of y[0] have another value after the write, by running it."""
    return int((program(numbers(rows, columns), k, 1)["first"] != numbers(rows, columns)[0]).sum())


def judge_elements(rows: int, columns: int, k: int, answer: tuple) -> Verdict:
    truth = elements_of_row(rows, columns, k)
    yours = [int(value) if value == int(value) else value for value in answer]
    if sorted(yours) == truth:
        return right("These are the elements the write changes.")
    if yours == [4 * place for place in truth]:
        return wrong("Positions are asked for, not bytes.", mistake="bytes")
    if sorted(yours) == sorted(range(k * columns, k * columns + len(yours))):
        message = "These are neighbours in memory, as a row of y would be. With which stride does a row of y.t() go?"
        return wrong(message, mistake="row-of-y")
    return wrong("Not these elements.", ("yours", yours), mistake="wrong-elements")


# What a graph may consist of. Views are values here: each operator makes a new tensor.
OPERATORS: dict[str, Callable[..., torch.Tensor]] = {
    "t": lambda x: x.t().clone(),
    "transpose": lambda x, i, j: x.transpose(i, j).clone(),
    "select": lambda x, dim, index: x.select(dim, index).clone(),
    "slice": lambda x, dim, start, end: x.narrow(dim, start, end - start).clone(),
    "select_scatter": lambda x, v, dim, index: x.select_scatter(v, dim, index),
    "add": lambda x, other: x + other,
    "mul": lambda x, other: x * other,
}  # fmt: skip
RESULTS = ("y", "v", "row", "first")


def _graph_of(callee: Callee, k: int, a: int) -> tuple[list[tuple], dict[str, str]]:
    outcome = callee.call(k, a)
    if outcome.failed:
        raise _Refused(call_failed(callee, (k, a), outcome))
    try:
        nodes, final = outcome.value
        nodes, final = [tuple(node) for node in nodes], dict(final)
        if not all(len(node) >= 3 and isinstance(node[0], str) and isinstance(node[1], str) for node in nodes):
            raise ValueError
    except (TypeError, ValueError):
        problem = "that is not (nodes, results): a list of (name, operator, argument, ...) and a dict"
        raise _Refused(unexpected_result(callee, (k, a), problem)) from None
    return nodes, final


def run_graph(nodes: Sequence[tuple], y: torch.Tensor) -> dict[str, torch.Tensor]:
    """Execute a graph given as data. Raises _Refused with the node that cannot be run."""
    values = {"y": y}
    for name, operator, *arguments in nodes:
        shown = ("node", f"{name} = {operator}({', '.join(map(str, arguments))})")
        if operator.endswith("_"):
            message = "This operator writes in place: functionalization is there to have none of them."
            raise _Refused(wrong(message, shown, mistake="in-place-operator"))
        if operator not in OPERATORS:
            message = f"There is no operator {operator!r} here."
            raise _Refused(wrong(message, shown, ("there are", ", ".join(OPERATORS)), mistake="unknown-operator"))
        if name in values:
            message = f"{name} has a value already: every name is given one value, once."
            raise _Refused(wrong(message, shown, mistake="assigned-twice"))
        missing = next((x for x in arguments if isinstance(x, str) and x not in values), None)
        if missing is not None:
            message = f"{missing} is not the name of a node before this one."
            raise _Refused(wrong(message, shown, mistake="cannot-run"))
        try:
            values[name] = OPERATORS[operator](*(values[x] if isinstance(x, str) else x for x in arguments))
        except (RuntimeError, TypeError, IndexError) as error:
            reason = str(error).splitlines()[0]
            raise _Refused(wrong("This node fails.", shown, ("reason", reason), mistake="cannot-run")) from None
    return values


def judge_graph(rows: int, columns: int, k: int, a: int, callee: Callee, seed: int | None) -> Verdict:
    """Run the student's graph and compare every name of the program with what it holds after the write."""
    rng = generator(seed, "graphs")
    calls = [(rows, columns, k, a)]
    for _ in range(6):
        r, c = rng.randint(2, 5), rng.randint(2, 5)
        calls.append((r, c if c != r else c + 1, 0, rng.randint(2, 9)))
    calls = [(r, c, k if n == 0 else rng.randrange(c), x) for n, (r, c, k, x) in enumerate(calls)]
    try:
        is_fixed = _graph_of(callee, 0, 2) == _graph_of(callee, 1, 3)
        for call in calls:
            _check_graph(callee, *call, is_fixed=is_fixed)
    except _Refused as refused:
        return refused.verdict
    used = sorted({node[1] for node in _graph_of(callee, k, a)[0]})
    facts = (("run for", f"{len(calls)} shapes, rows and amounts"), ("operators", ", ".join(used)))
    return right("No write is left, and every name sees what the write did.", *facts)


def _check_graph(callee: Callee, rows: int, columns: int, k: int, a: int, *, is_fixed: bool) -> None:
    nodes, final = _graph_of(callee, k, a)
    y = numbers(rows, columns)
    before, truth = program(y.clone(), k, 0), program(y.clone(), k, a)
    asked = ("for", f"y of shape ({rows}, {columns}), k = {k}, a = {a}")
    missing = [name for name in RESULTS if name not in final]
    if missing:
        message = f"The results do not say which node {missing[0]} is afterwards."
        raise _Refused(wrong(message, asked, mistake="missing-result"))
    values = run_graph(nodes, y)
    for name in RESULTS:
        if final[name] not in values:
            raise _Refused(wrong(f"{final[name]!r} is not a node.", asked, mistake="cannot-run"))
        yours = values[final[name]]
        shown = (asked, ("name", name), ("yours", value_text(yours)), ("after the write", value_text(truth[name])))
        if yours.shape != truth[name].shape:
            message = f"{name} has shape {tuple(truth[name].shape)}; your node has shape {tuple(yours.shape)}."
            raise _Refused(wrong(message, *shown[:3], mistake="wrong-shape"))
        if torch.equal(yours, truth[name]):
            continue
        if torch.equal(yours, before[name]):
            message = f"{name} looks at the written memory too, and has its old value here."
            raise _Refused(nearly(message, *shown, credit=HALF, mistake="stale-alias") if name != "row"
                           else wrong("The row itself has its old value.", *shown, mistake="stale-alias"))  # fmt: skip
        if is_fixed:
            message = "Your graph is the same whatever k and a are."
            raise _Refused(wrong(message, *shown, mistake="fixed-numbers"))
        raise _Refused(wrong(f"{name} has another value after the write.", *shown, mistake="wrong-value"))


# --- Part 3: merging too early ---------------------------------------------------------------------------------------


def merge_what_looks_equal(graph: Graph) -> int:
    """Common subexpression elimination that knows nothing of writes; the number of nodes it merged. Writes themselves
    stay."""
    seen: dict[Any, Any] = {}
    merged = 0
    for node in graph:
        if not node.op.startswith("call_") or node.meta.get("mutates"):
            continue
        key = (node.op, node.target, repr(node.args), repr(sorted(node.kwargs.items())))
        first = seen.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase(node)
            merged += 1
    return merged


def judge_stale(callee: Callee) -> Verdict:
    """The student's program with equal calls merged before, and after, functionalization."""
    y = numbers(2, 3) + 1
    outcome = callee.call(y.clone())
    if outcome.failed:
        return call_failed(callee, ("y",), outcome)
    if not isinstance(outcome.value, torch.Tensor):
        return unexpected_result(callee, ("y",), f"got {value_text(outcome.value)} and not a tensor")
    truth = outcome.value
    try:
        captured = trace(callee.function, (y.clone(),), {})
    except StaxError as error:
        return wrong("It cannot be recorded as a graph.", ("reason", error.what), mistake="not-recorded")
    if not any(node.meta.get("mutates") for node in captured.graph):
        return wrong("There is no write in it: equal calls have equal values.", mistake="no-write")
    early, _ = captured.graph.copy()
    merged = merge_what_looks_equal(early)
    if not merged:
        message = (
            "No two of its calls have the same target and the same arguments, so there is nothing to merge. (After "
            "y.add_(1) the graph calls y by the name of that call. Who else could write into y?)"
        )
        return wrong(message, mistake="nothing-merged")
    got = _value_of(GraphModule(early, captured.module.constants), captured, y)
    facts: Facts = (
        ("merged", f"{merged} call{'' if merged == 1 else 's'}"), ("then it returns", value_text(got)),
        ("your program returns", value_text(truth)),
    )  # fmt: skip
    if same_result(got, truth):
        message = "Calls are merged, but the value stays right: nothing is written between them that they read."
        return nearly(message, *facts, credit=HALF, mistake="right-value")
    pure = record(captured.module, [y.clone()]).module
    eliminate_common_subexpressions(pure.graph)
    late = _value_of(pure, captured, y)
    assert same_result(late, truth), "functionalization first: merging is safe"
    return right("Merged too early it is wrong; functionalized first, it is right.", *facts,
                 ("functionalized first", value_text(late)))  # fmt: skip


def _value_of(module: GraphModule, captured: Any, y: torch.Tensor) -> Any:
    return captured.rebuild(captured.flat_results(module(y.clone())))


def drawn_shape(rng: random.Random) -> tuple[int, int, int]:
    """Rows, columns and a column's number, the shape not square."""
    rows, columns = rng.sample(range(3, 7), 2)
    return rows, columns, rng.randrange(1, columns)
