"""From a failing graph to a small one that fails in the same way (delta debugging).

Zeller and Hildebrandt (2002, "Simplifying and Isolating Failure-Inducing Input") shrink an input step by step and keep
what still fails. Here the input is a graph with its values, so better cuts offer themselves than halves of a list: one
result in the place of many; the earliest value that is wrong; only what is near it, the values at the border becoming
inputs; each remaining node an input; numbers drawn from a seed in the place of the user's; smaller extents. "Fails in
the same way" means: the prefix of the pipeline that was found wrong disagrees with eager execution again. What raises
does not count.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ..capture.graph import Graph, Node, map_nodes, nodes_in
from ..capture.module import GraphModule, Interpreter
from ..measure.agreement import Agreement, Difference
from ..operators.structure import flatten
from .back_end import Half, interpreted
from .record import Culprit
from .sample import Sample, copies_of
from .script import Given, Unspeakable, script_text
from .staging import advance
from .values import Heard, node_values

if TYPE_CHECKING:
    from .search import Search

#: Candidates that are tried at most: each costs a compilation, those that need kernels a C++ compiler.
MOST_TRIALS = 80
MOST_TRIALS_WITH_KERNELS = 32

_OPERATORS = ("joint", "partition", "operators")


def minimised(search: Search, sample: Sample, culprit: Culprit) -> tuple[str, str]:
    """The program text, or "" and why there is none."""
    if culprit.layer == "dispatch":
        return "", f"no small program was made: the error is one of {culprit.title.lower()}, and a program starts anew"
    shrinking = Shrinking(search, culprit.layer, sample)
    try:
        case = shrinking.start()
    except Exception as error:
        return "", f"no small program was made: {type(error).__name__}: {error}"
    if not shrinking.fails(case):
        return "", "no small program was made: the captured graph, compiled as a function, does not show the error"
    case = shrinking.shrink(case, culprit)
    remarks = [
        f"Compiled and eager execution part in: {culprit}.",
        *([f"{culprit.difference}"] if culprit.difference is not None else []),
        *(f"from {source}" for source in culprit.sources),
        f"Cut down by staxlab.locate_error from {len(sample.capture.graph.calls)} calls to {len(case.graph.calls)}.",
    ]
    try:
        return script_text(GraphModule(case.graph), case.given, search.changed_options(), remarks, sample.seed), ""
    except Unspeakable as reason:
        return "", f"no small program was written: {reason}"


@dataclass(frozen=True)
class Case:
    """A graph without constants, and an input for each of its placeholders."""

    graph: Graph
    given: tuple[Given, ...]

    def inputs(self) -> list[torch.Tensor]:
        return [entry.value(place) for place, entry in enumerate(self.given)]


class Shrinking:
    """The steps, and the question whether a candidate fails."""

    def __init__(self, search: Search, layer: str, sample: Sample):
        self.search, self.layer, self.sample = search, layer, sample
        self.trials = 0
        quick = layer in ("capture", "transforms", *_OPERATORS, "loops") and search.raised is None
        self.most = MOST_TRIALS if quick else MOST_TRIALS_WITH_KERNELS

    def start(self) -> Case:
        """The captured graph, its tensor constants among the inputs; for an error of capture what the function was
        heard to ask of PyTorch."""
        module = self.sample.capture.module
        if self.layer == "capture":
            return self._heard()
        graph, _ = module.graph.copy()
        given = [Given(x) for x in copies_of(self.sample.flat)]
        return _rebuilt(graph, {n: _Kept(g) for n, g in zip(graph.placeholders, given, strict=True)}, module.constants)

    def _heard(self) -> Case:
        heard, sample = Heard(), self.sample
        args, kwargs = sample.copies()
        with torch.random.fork_rng(devices=[]), heard:
            torch.manual_seed(sample.seed)
            result = sample.fn(*args, **kwargs)
        graph = heard.whole(flatten(result))
        given = {node: _Kept(Given(x)) for node, x in zip(graph.placeholders, heard.given, strict=True)}
        return _rebuilt(graph, given, {})

    # -- the question -------------------------------------------------------------------------------------------------

    def fails(self, case: Case) -> bool:
        """Whether the prefix that was wrong is wrong again."""
        if self.trials >= self.most:
            return False
        self.trials += 1
        self.search.progress(f"{self.search.name}: a graph of {len(case.graph.calls)} calls, trial {self.trials}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = self._judged(case)
        except Exception:  # a candidate may be no program at all
            return False
        return found is not None and not found.agrees

    def _judged(self, case: Case) -> Agreement | None:
        from .prefixes import Run
        from .search import Search

        module = GraphModule(case.graph)
        search = Search(module.forward, None, self.search.options, self.sample.seed, lambda text: None)
        sample = search.sample(tuple(case.inputs()), {}, None, self.sample.seed)
        reference = sample.observe(sample.fn)
        run = Run(search, sample, reference)
        if self.search.raised is not None:
            return _raising(lambda: run.judge(run.compiled("stax", strict=True), False), self.search.raised)
        if self.layer in ("capture", "transforms"):
            return run.judge(run.compiled("eager"), False)
        if self.layer in _OPERATORS:
            return run.judge(run.compiled("aot_eager"), False)
        if self.layer == "loops" and not sample.trains:
            half = Half(advance(run.staged, "loops"), sample.flat, seed=sample.seed)
            half.expected = half.run(lambda given: flatten(Interpreter(half.operators.module).run(*given)))
            call = run.regional(lambda inputs: interpreted(half.compilation.loops, half.by_name(inputs)))
            return run.judge(call, False)
        return run.judge(run.compiled("stax"), False)

    # -- the steps ----------------------------------------------------------------------------------------------------

    def shrink(self, case: Case, culprit: Culprit) -> Case:
        case = self._one_result(case)
        case = self._earliest(case, culprit)
        case = self._near(case)
        case = self._node_by_node(case)
        case = self._drawn(case)
        return self._smaller(case)

    def _one_result(self, case: Case) -> Case:
        results = list(dict.fromkeys(nodes_in(case.graph.output.args[0])))
        for node in results if len(results) > 1 else ():
            candidate = _cut(case, [node])
            if self.fails(candidate):
                return candidate
        return case

    def _earliest(self, case: Case, culprit: Culprit) -> Case:
        """The earliest value that is wrong: among those the culprit stems from, else by bisection."""
        calls = [node for node in case.graph.calls if isinstance(node.val, object) and _is_tensor(node)]
        known = [node for node in calls if node.origins & culprit.origins]
        for node in known[:6] if len(known) < len(calls) else ():
            candidate = _cut(case, [node])
            if self.fails(candidate):
                return candidate
        low, high, best = 0, len(calls) - 1, case
        while low < high:
            middle = (low + high) // 2
            candidate = _cut(case, [calls[middle]])
            if self.fails(candidate):
                high, best = middle, candidate
            else:
                low = middle + 1
        return best

    def _near(self, case: Case) -> Case:
        """Only what is at most some steps away from the result; the values at the border become inputs."""
        values = self._values(case)
        depth = 1
        while depth < len(case.graph.calls):
            candidate = _border(case, values, _within(case.graph, depth))
            if candidate is not None and self.fails(candidate):
                return candidate
            depth *= 2
        return case

    def _node_by_node(self, case: Case) -> Case:
        """Each node but the results' becomes an input, if it still fails then."""
        results = set(nodes_in(case.graph.output.args[0]))
        names = [node.name for node in reversed(case.graph.calls) if node not in results and _is_tensor(node)]
        for name in names[:12]:
            node = next((n for n in case.graph.calls if n.name == name), None)
            if node is None:
                continue
            kept = {n for n in case.graph.calls if n is not node}
            candidate = _border(case, self._values(case), kept)
            if candidate is not None and self.fails(candidate):
                case = candidate
        return case

    def _values(self, case: Case) -> dict[str, Any]:
        try:
            return node_values(GraphModule(case.graph), case.inputs(), self.sample.seed)
        except Exception:
            return {}

    def _drawn(self, case: Case) -> Case:
        """Numbers from a seed, in contiguous memory, for all floating-point inputs or for some."""

        def draw(places: Sequence[int]) -> Case:
            given = [replace(g, drawn=True) if k in places else g for k, g in enumerate(case.given)]
            return replace(case, given=tuple(given))

        places = [k for k, g in enumerate(case.given) if g.tensor.is_floating_point()]
        candidate = draw(places)
        if not places or self.fails(candidate):
            return candidate
        for place in places:
            candidate = draw([place, *(k for k, g in enumerate(case.given) if g.drawn)])
            if self.fails(candidate):
                case = candidate
        return case

    def _smaller(self, case: Case) -> Case:
        """Every extent in turn, as small as still fails, wherever the same number stands."""
        extents = sorted({n for g in case.given if g.drawn for n in g.tensor.shape if n > 2}, reverse=True)
        for extent in extents:
            for smaller in dict.fromkeys((2, 3, 8, 17, extent // 2)):
                if smaller >= extent:
                    continue
                candidate = _resized(case, extent, smaller)
                if candidate is not None and self.fails(candidate):
                    case = candidate
                    break
        return case


def _raising(call: Callable[[], Agreement], kind: type[Exception]) -> Agreement | None:
    """A disagreement if a call raises an error of this kind; None if it ends."""
    try:
        call()
    except kind as error:
        return Agreement(False, difference=Difference("results", what=f"it raises {error!r:.200}"))
    return None


# -- graphs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kept:
    """In the place of a node: an input."""

    given: Given


def _is_tensor(node: Node) -> bool:
    return hasattr(node.val, "shape") and hasattr(node.val, "dtype")


def _cut(case: Case, results: Sequence[Node]) -> Case:
    """Only what some results are computed from, and what writes."""
    given = dict(zip(case.graph.placeholders, (_Kept(g) for g in case.given), strict=True))
    return _rebuilt(case.graph, given, {}, results)


def _within(graph: Graph, depth: int) -> set[Node]:
    """The calls that are at most ``depth`` steps before a result."""
    found: set[Node] = set()
    border = set(nodes_in(graph.output.args[0]))
    for _ in range(depth):
        found |= {node for node in border if node.op.startswith("call_")}
        border = {source for node in border for source in node.inputs}
    return found


def _border(case: Case, values: dict[str, Any], kept: set[Node]) -> Case | None:
    """The graph with every call that is not ``kept`` replaced by its value; None where that cannot be."""
    given: dict[Node, Any] = dict(zip(case.graph.placeholders, (_Kept(g) for g in case.given), strict=True))
    for node in case.graph.calls:
        if node in kept:
            continue
        if node.name not in values or node.meta.get("mutates"):
            return None
        value = values[node.name]
        if isinstance(value, torch.Tensor):
            grad = bool(getattr(node.val, "requires_grad", False)) and value.is_floating_point()
            given[node] = _Kept(Given(value.detach().requires_grad_(grad)))
        elif any(isinstance(leaf, torch.Tensor) for leaf in flatten(value)):
            return None
        else:
            given[node] = value
    return _rebuilt(case.graph, given, {})


def _rebuilt(
    graph: Graph, given: dict[Node, Any], constants: dict[str, Any], results: Sequence[Node] | None = None
) -> Case:
    """A new graph: nodes that are ``given`` become inputs or literals, tensor constants inputs, and what no result
    needs and does not write is left out. Locations are not taken over: the source of the graph quotes them."""
    output = graph.output.args[0] if results is None else results[0] if len(results) == 1 else tuple(results)
    needed: set[Node] = set()
    waiting = [*nodes_in(output), *(n for n in graph.calls if n.meta.get("mutates") and n not in given)]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += [] if node in given else node.inputs
    fresh, inputs = Graph(), []
    twins: dict[Node, Any] = {}
    for node in graph:  # inputs first, as a graph has them
        entry = given.get(node)
        if node in needed and node.op == "get_attr" and isinstance(constants.get(node.target), torch.Tensor):
            entry = _Kept(Given(constants[node.target].detach().clone()))
        if node in needed and isinstance(entry, _Kept):
            twins[node] = fresh.placeholder(node.name, val=node.val, origins=node.origins)
            inputs.append(entry.given)
        elif node in needed and node in given:
            twins[node] = entry
        elif node in needed and node.op == "get_attr":
            twins[node] = constants[node.target]
    for node in graph:
        if node in needed and node not in twins and node.op.startswith("call_"):
            args, kwargs = (map_nodes(part, twins.__getitem__) for part in (node.args, node.kwargs))
            twin = fresh.create(node.op, node.target, args, kwargs, name=node.name, origins=node.origins, val=node.val)
            twin.meta.update({k: v for k, v in node.meta.items() if k != "val"})
            twins[node] = twin
    fresh.set_output(map_nodes(output, twins.__getitem__))
    return Case(fresh, tuple(inputs))


def _resized(case: Case, extent: int, smaller: int) -> Case | None:
    """Every axis of that extent made smaller, in inputs and, for numbers that can hardly be anything else, in
    arguments of the operations."""
    given = []
    for entry in case.given:
        shape = [smaller if n == extent else n for n in entry.tensor.shape]
        if shape == list(entry.tensor.shape):
            given.append(entry)
        elif entry.drawn:
            like = torch.zeros(shape, dtype=entry.tensor.dtype, device=entry.tensor.device)
            given.append(Given(like.requires_grad_(entry.tensor.requires_grad), True))
        else:
            part = entry.tensor.detach()[tuple(slice(0, n) for n in shape)].clone()
            given.append(Given(part.requires_grad_(entry.tensor.requires_grad)))
    graph, _ = case.graph.copy()
    if extent > 4:
        for node in graph.calls:
            node.args = _numbers_replaced(node.args, extent, smaller)
            node.kwargs = _numbers_replaced(node.kwargs, extent, smaller)
    return Case(graph, tuple(given))


def _numbers_replaced(value: Any, old: int, new: int) -> Any:
    if type(value) is int:
        return new if value == old else value
    if type(value) in (tuple, list):
        return type(value)(_numbers_replaced(part, old, new) for part in value)
    if isinstance(value, torch.Size):
        return torch.Size(_numbers_replaced(tuple(value), old, new))
    if type(value) is dict:
        return {key: _numbers_replaced(part, old, new) for key, part in value.items()}
    return value
