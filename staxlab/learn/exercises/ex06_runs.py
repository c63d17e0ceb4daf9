"""What Exercise 6 runs: rule sets that go round, and passes whose every change a measure has to see."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import torch

from ...capture.graph import Graph, Node, TensorMeta
from ...capture.module import GraphModule
from ...capture.tracer import trace
from ...errors import StaxError, TransformError
from ...transform import Rule, Var, apply, transform
from ...transform.fold import fold
from ...transform.normalize import normalize
from ...transform.operations import operation
from ...transform.own_rules import own_pass
from ...transform.passes import measure as package_measure
from ...transform.rewrite import Applied, Pass
from ..answers import Callee
from ..feedback import Verdict, nearly, right, wrong
from ..judges import call_failed, unexpected_result

MOST_ROUNDS, MOST_NODES = 40, 400
HALF = Fraction(1, 2)

x, y = Var("x"), Var("y")
#: The rule a student is given, and the text of it. Each holds exactly, and ends by itself.
GIVEN: dict[str, Rule] = {
    rule.law: rule
    for rule in (
        Rule("given", x * 2, x + x),
        Rule("given", x + x, x * 2),
        Rule("given", x * -1, apply("neg", x)),
        Rule("given", x**2, x * x),
        *(Rule("given", x / 2**k, x * 0.5**k) for k in range(1, 7)),
        *(Rule("given", x * 2**k, (x * 2 ** (k - 1)) * 2) for k in range(2, 7)),
    )
}

FALLS = "a change does not lower the measure"
CONDITIONS = (
    FALLS,
    "the set of measures is not well-founded",
    "a pass changes values",
    "the order of the passes",
)
NO, YES = "no, whatever the set", "yes, with a fourth component"


# --- Part 1: rules that never end -------------------------------------------------------------------------------------


def state_of(graph: Graph) -> tuple[Any, ...]:
    """The graph without names: equal for graphs that are the same program."""
    position = {node: number for number, node in enumerate(graph)}

    def text(argument: Any) -> Any:
        if isinstance(argument, Node):
            return ("%", position[argument])
        if isinstance(argument, (tuple, list)):
            return tuple(map(text, argument))
        return repr(argument)

    return tuple((node.op, node.target_name(), text(node.args), text(sorted(node.kwargs.items()))) for node in graph)


@dataclass(frozen=True)
class Course:
    """How rewriting went: the rounds run, the rules applied in them, and how it ended: ``returned_to`` is the earlier
    round with the same graph, or None; ``ended`` says that nothing was left to do."""

    rounds: int
    rules: frozenset[str]
    ended: bool
    returned_to: int | None
    sizes: tuple[int, ...]
    measures: tuple[tuple[int, ...], ...]
    values: tuple[torch.Tensor, ...]


def run_rules(rules: Sequence[Rule], program: Callable[..., Any], sample: torch.Tensor) -> Course:
    """Apply the rules round by round, without a measure that could stop them, until nothing changes, the graph has been
    there before, or the bounds are reached."""
    module = trace(program, (sample,)).module
    graph, _ = module.graph.copy()
    step = own_pass(rules)
    seen, sizes, measures = {state_of(graph): 0}, [len(graph)], [package_measure(graph)]
    values = [GraphModule(graph, module.constants)(sample)]
    used: set[str] = set()
    for number in range(1, MOST_ROUNDS + 1):
        applied = step.run(graph)
        used.update(one.law for one in applied)
        graph.check()
        if not applied:
            return Course(number, frozenset(used), True, None, tuple(sizes), tuple(measures), tuple(values))
        sizes.append(len(graph))
        measures.append(package_measure(graph))
        values.append(GraphModule(graph, module.constants)(sample))
        before = seen.setdefault(state_of(graph), number)
        if before != number or len(graph) > MOST_NODES:
            back = before if before != number else None
            return Course(number, frozenset(used), False, back, tuple(sizes), tuple(measures), tuple(values))
    return Course(MOST_ROUNDS, frozenset(used), False, None, tuple(sizes), tuple(measures), tuple(values))


def judge_added(law: str, callee: Callee) -> Verdict:
    """Run the given rule with the student's, on the student's program."""
    outcome = callee.call()
    if outcome.failed:
        return call_failed(callee, (), outcome)
    try:
        rules, program = outcome.value
        rules = [rules] if isinstance(rules, Rule) else list(rules)
        sound = all(isinstance(rule, Rule) for rule in rules) and callable(program)
    except (TypeError, ValueError):
        sound = False
    if not sound:
        return unexpected_result(callee, (), "it did not return ([Rule(...), ...], program)")
    sample = torch.linspace(-1.5, 2.0, 12).reshape(3, 4)
    try:
        course = run_rules([GIVEN[law], *rules], program, sample)
    except (StaxError, RuntimeError, TypeError, AttributeError, ValueError, IndexError) as error:
        return wrong("Running it failed.", ("reason", str(error).splitlines()[0]), mistake="rules-fail")
    facts = [("rounds run", course.rounds), ("nodes, round by round", _listed(course.sizes))]
    expected = course.values[0]
    for number, value in enumerate(course.values):
        if not isinstance(value, torch.Tensor) or not torch.allclose(value, expected, rtol=1e-4, atol=1e-4):
            facts.append(("after round", number))
            return wrong("Your rules change what the program computes.", *facts, mistake="changes-values")
    if not course.rules:
        return wrong("No rule applies anywhere in your program.", *facts, mistake="no-rule-applies")
    if course.ended:
        return wrong("Rewriting comes to an end.", *facts, mistake="terminates")
    if law not in course.rules:
        return nearly(
            "It never ends, but the given rule takes no part in it: your rules go round by themselves.",
            *facts,
            credit=HALF,
            mistake="given-rule-unused",
        )
    facts.append(("the package's measure", _listed(course.measures)))
    if course.returned_to is not None:
        facts.append(("the same graph", f"after round {course.returned_to} and after round {course.rounds}"))
        return right("It never ends: the graph comes back, and so does every measure of it.", *facts)
    return right("It was still rewriting when it was stopped.", *facts)


def _listed(values: Sequence[Any]) -> str:
    shown = ", ".join(map(str, values[:6]))
    return shown + (", ..." if len(values) > 6 else "")


@lru_cache(maxsize=1)
def broken_condition() -> str:
    """Which condition of Proposition 4.1 the package's own driver finds violated by rules that undo each other."""
    rules = [Rule("there", x * 2, x + x), Rule("back", x + x, x * 2)]
    sample = torch.ones(3)
    try:
        transform(trace(lambda a: (a.exp() * 2).sum(), (sample,)), rules=rules)
    except TransformError as error:
        if "did not lower the measure" in str(error):
            return FALLS
    raise AssertionError("the driver lets rules pass that undo each other")


@lru_cache(maxsize=1)
def measurable_without_condition() -> str:
    """Whether some measure falls with every change by ``a + b -> b + a``: not if a graph comes back."""
    swap = [Rule("swap", x + y, y + x)]
    course = run_rules(swap, lambda a: (a.exp() + a.sin()).sum(), torch.ones(3))
    return NO if course.returned_to is not None else YES


# --- Part 2: an exchange that ends, and a measure that shows it -------------------------------------------------------

Operand = tuple[str, Any]
Nodes = list[tuple[str, tuple[Operand, ...]]]
_META = TensorMeta((3,), (1,), torch.float32, torch.device("cpu"))


def plain(graph: Graph) -> Nodes:
    """The graph as students see it: (operation, operands), where an operand is ("value", position) or ("number", c)."""
    position = {node: number for number, node in enumerate(graph)}

    def operand(argument: Any) -> Operand:
        return ("value", position[argument]) if isinstance(argument, Node) else ("number", argument)

    return [
        (
            "input" if node.op == "placeholder" else "output" if node.op == "output" else operation(node) or node.op,
            tuple(map(operand, node.args[0] if node.op == "output" else node.args)),
        )
        for node in graph
    ]


class _StudentError(Exception):
    def __init__(self, verdict: Verdict):
        self.verdict = verdict


def exchange(decide: Callable[[Operand, Operand], bool]) -> Pass:
    """The pass ``a + b -> b + a`` where ``decide(a, b)``."""

    def run(graph: Graph) -> list[Applied]:
        applied = []
        for node, (name, operands) in zip(graph, plain(graph), strict=True):
            if name == "add" and decide(*operands):
                before = node.format()
                node.args = (node.args[1], node.args[0])
                applied.append(Applied("exchange", "a + b -> b + a", (before,), (node.format(),), node.origins))
        return applied

    return Pass("Exchange", run)


def passes(decide: Callable[[Operand, Operand], bool]) -> tuple[Pass, ...]:
    return Pass("Normalize", normalize), exchange(decide), Pass("Fold", fold)


def in_order(a: Operand, b: Operand) -> bool:
    """The exchange of the reference: values by position; numbers are left to normalization."""
    return a[0] == b[0] == "value" and a[1] > b[1]


def _sum(graph: Graph, one: Any, other: Any, target: Any = operator.add) -> Node:
    of_tensors = any(isinstance(part, Node) and part.val is _META for part in (one, other))
    return graph.call_function(target, (one, other), val=_META if of_tensors else 5)


def _in_the_way(g: Graph, a: Node, b: Node) -> tuple[Node, ...]:
    """A number that stands on the left once it has been computed: folding puts two sums in need of normalization."""
    number, later = _sum(g, 2, 3), _sum(g, a, a)
    return _sum(g, number, later), _sum(g, number, later)


#: Small graphs, each of which catches one mistake: functions of a graph and its two inputs, that return its outputs.
HAND_MADE: tuple[Callable[[Graph, Node, Node], tuple[Node, ...]], ...] = (
    lambda g, a, b: (_sum(g, a, a),),
    lambda g, a, b: (_sum(g, b, a), _sum(g, a, b)),
    lambda g, a, b: (_sum(g, a, b),),
    lambda g, a, b: (_sum(g, 2, a),),
    lambda g, a, b: (_sum(g, a, 2),),
    lambda g, a, b: (_sum(g, a, _sum(g, 2, 3)),),
    _in_the_way,
    lambda g, a, b: (_sum(g, 3, a, operator.mul), _sum(g, b, a, operator.mul)),
)


def hand_made() -> list[Graph]:
    found = []
    for fill in HAND_MADE:
        graph = Graph()
        a, b = (graph.placeholder(name, val=_META) for name in "ab")
        graph.set_output(fill(graph, a, b))
        found.append(graph)
    return found


def drawn(rng: random.Random, size: int) -> Graph:
    """A graph of sums, products and foldable constants."""
    graph = Graph()
    tensors = [graph.placeholder(name, val=_META) for name in "abc"]
    numbers: list[Any] = [2, 3]
    for _ in range(size):
        target = rng.choice((operator.add, operator.add, operator.mul))
        if rng.random() < 0.3:
            numbers.append(graph.call_function(target, (rng.choice(numbers), rng.choice(numbers)), val=5))
            continue
        pair = [rng.choice(tensors), rng.choice(tensors if rng.random() < 0.7 else numbers)]
        rng.shuffle(pair)
        tensors.append(graph.call_function(target, tuple(pair), val=_META))
    graph.set_output((tensors[-1], tensors[len(tensors) // 2]))
    return graph


def instances(seed: int | None) -> list[Graph]:
    rng = random.Random(f"{seed}/ex06")
    return hand_made() + [drawn(rng, size) for size in (3, 4, 5, 6, 8, 10, 12, 15, 20, 25)]


def _listing(graph: Graph) -> str:
    return "\n".join(f"{number}: {name} {operands}" for number, (name, operands) in enumerate(plain(graph)))


def _ask_swap(callee: Callee) -> Callable[[Operand, Operand], bool]:
    def decide(a: Operand, b: Operand) -> bool:
        outcome = callee.call(a, b)
        if outcome.failed:
            raise _StudentError(call_failed(callee, (a, b), outcome))
        if not isinstance(outcome.value, bool):
            problem = f"it returned {outcome.value!r}, which is neither True nor False"
            raise _StudentError(unexpected_result(callee, (a, b), problem))
        return outcome.value

    return decide


def judge_swap(callee: Callee, seed: int | None) -> Verdict:
    """The exchange, run with normalization and folding: it ends, and x + y and y + x become the same."""
    try:
        for graph in instances(seed):
            problem = _examine_swap(_ask_swap(callee), graph.copy()[0])
            if problem is not None:
                return problem
    except _StudentError as error:
        return error.verdict
    return right("It ends on every graph, and sums of the same two values are written alike.")


def _examine_swap(decide: Callable[[Operand, Operand], bool], graph: Graph) -> Verdict | None:
    start, seen = _listing(graph), {state_of(graph): 0}
    history: list[set[str]] = []
    for number in range(1, MOST_ROUNDS + 1):
        names = set()
        for item in passes(decide):
            sums = [operands for name, operands in plain(graph) if name == "add"]
            if item.name == "Exchange":
                equal = next((pair for pair in sums if pair[0] == pair[1] and decide(*pair)), None)
                if equal is not None:
                    facts = (("graph", start), ("exchanged", f"{equal[0]} + {equal[1]}"))
                    return wrong("It exchanges two equal operands, for ever.", *facts, mistake="exchanges-equals")
            if item.run(graph):
                names.add(item.name)
        if not names:
            return _same_sums(graph, start)
        history.append(names)
        before = seen.setdefault(state_of(graph), number)
        if before != number:
            facts = (("graph", start), ("the same", f"after round {before} and after round {number}"))
            if any("Normalize" in names for names in history[before:]):
                return wrong(
                    "It never ends: what normalization moves to the right, your exchange moves to the left again.",
                    *facts,
                    mistake="fights-normalization",
                )
            return wrong("It never ends: what is exchanged is exchanged back.", *facts, mistake="swaps-back")
    return wrong(f"It has not ended after {MOST_ROUNDS} rounds.", ("graph", start), mistake="does-not-end")


def _same_sums(graph: Graph, start: str) -> Verdict | None:
    sums = {operands for name, operands in plain(graph) if name == "add"}
    twice = next((pair for pair in sums if pair[0] != pair[1] and (pair[1], pair[0]) in sums), None)
    if twice is None:
        return None
    facts = (("graph", start), ("left", f"{twice[0]} + {twice[1]} and the reverse"))
    return wrong("It ends, but a sum and its mirror image are both left.", *facts, mistake="not-canonical")


def judge_measure(callee: Callee, swap: Callee | None, seed: int | None) -> Verdict:
    """The measure, evaluated after every pass: it must have fallen wherever the pass changed anything.

    The exchange is the student's own where that is right, otherwise by position.
    """
    own = swap is not None and judge_swap(swap, seed).credit == 1
    decide = _ask_swap(swap) if own and swap is not None else in_order
    changes = 0
    try:
        for graph in instances(seed):
            graph, _ = graph.copy()
            for _ in range(MOST_ROUNDS):
                changed = False
                for item in passes(decide):
                    before, text = plain(graph), _listing(graph)
                    if not item.run(graph):
                        continue
                    changed, changes = True, changes + 1
                    high, low = _measured(callee, before), _measured(callee, plain(graph))
                    if len(high) != len(low) or not low < high:
                        name = {"Normalize": "normalization", "Exchange": "the exchange", "Fold": "folding"}[item.name]
                        word = "falls" if low < high else "stays" if low == high else "rises"
                        facts = (("before", text), ("measure", high), ("after", _listing(graph)), ("measure then", low))
                        mistake = f"not-lowered-by-{item.name.lower()}"
                        return wrong(f"With {name} here, your measure {word}.", *facts, mistake=mistake)
                if not changed:
                    break
    except _StudentError as error:
        return error.verdict
    whose = "your exchange" if own else "an exchange by position"
    return right("It falls with every change.", ("tried on", f"{changes} changes, with {whose}"))


def _measured(callee: Callee, nodes: Nodes) -> tuple[int, ...]:
    outcome = callee.call(nodes)
    if outcome.failed:
        raise _StudentError(call_failed(callee, (nodes,), outcome))
    value = outcome.value
    parts = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if any(isinstance(part, bool) or not isinstance(part, (int, float)) for part in parts) or not parts:
        problem = f"it returned {value!r}, which is no tuple of whole numbers"
        raise _StudentError(unexpected_result(callee, (nodes,), problem))
    if any(not isinstance(part, int) or part < 0 for part in parts):
        said = "Below a negative number or a fraction there is always another one: such a measure may fall for ever."
        facts = (("nodes", nodes), ("measure", value))
        raise _StudentError(wrong(said, *facts, mistake="not-well-founded"))
    return parts
