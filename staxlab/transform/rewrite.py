"""Rewriting to a fixed point (Section 4.1): rules, passes, rounds, and why they stop.

A *rule* replaces a pattern by an equal one. A *pass* applies its rules over the graph, in topological order. A *round*
runs all passes in order, and rounds repeat until one changes nothing, because what a pass leaves behind can be what an
earlier one was waiting for (Example 4.2).

That this ends is not left to hope. A measure of the graph (Proposition 4.1),

    (composite operators, nodes, deviations from normal form),

compared lexicographically, strictly decreases with every change: decomposition lowers the first component, elimination
and merging the second, normalization the third. The driver computes the measure after every pass and raises
TransformError if a pass changed the graph without lowering it, so a rule that could run for ever is found by the first
graph it touches. The order of passes is part of the design, since the result is in general not independent of it.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..capture.graph import Graph, Node
from ..capture.module import GraphModule
from ..errors import TransformError
from ..options import Decision, Options
from ..provenance import Origins

if TYPE_CHECKING:
    from .patterns import Rule

Measure = tuple[int, int, int]


def measure_text(measure: Measure) -> str:
    """A measure with its parts named: ``(0, 7, 1): 0 composite operators, 7 nodes, 1 deviation from normal form``."""
    nouns = ("composite operator", "node", "deviation")
    parts = [f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in zip(measure, nouns, strict=True)]
    return f"{measure}: {', '.join(parts)} from normal form"


@dataclass(frozen=True)
class Applied:
    """One application of a rule: its name, the law it states, the nodes before and after (as printed), and their
    origins.

    ``source`` is the file and line where the rule is written.
    """

    rule: str
    law: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    origins: Origins
    source: str = ""

    def __str__(self) -> str:
        return "\n".join(
            [f"{self.rule}: {self.law}"]
            + [f"    - {line}" for line in self.before]
            + [f"    + {line}" for line in self.after]
        )


@dataclass(frozen=True)
class PassRun:
    """One pass in one round. ``graph_before`` and ``graph_after`` are copies, kept only if the pass changed the
    graph."""

    round: int
    name: str
    changed: bool
    applied: tuple[Applied, ...] = ()
    graph_before: GraphModule | None = field(default=None, repr=False)
    graph_after: GraphModule | None = field(default=None, repr=False)
    measure: Measure = (0, 0, 0)


@dataclass(frozen=True)
class TransformLog:
    """Everything the front-end passes did to a graph.

    ``initial`` and ``final`` are the graphs before and after; ``runs`` every pass of every round in order;
    ``measures`` the measure of Proposition 4.1 before the first pass and after each pass that changed the graph;
    ``decisions`` what was decided about each attention that is written out (Section 9.10).
    """

    initial: GraphModule
    final: GraphModule
    runs: tuple[PassRun, ...]
    measures: tuple[Measure, ...]
    decisions: tuple[Decision, ...] = ()

    @property
    def rounds(self) -> int:
        return self.runs[-1].round if self.runs else 0

    @property
    def changes(self) -> tuple[PassRun, ...]:
        """The passes that changed the graph."""
        return tuple(run for run in self.runs if run.changed)

    def format(self) -> str:
        """One block for each pass that changed something, the round in which nothing did, and what was decided."""
        lines: list[str] = []
        for run in self.changes:
            lines.append(f"[round {run.round}] {run.name}: measure {measure_text(run.measure)}")
            lines += [f"    {line}" for applied in run.applied for line in str(applied).split("\n")]
        lines.append(f"[round {self.rounds}] no change: fixed point reached")
        lines += map(str, self.decisions)
        return "\n".join(lines)

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


@dataclass(frozen=True)
class Pass:
    """A named transformation: ``run(graph) -> applications``, which edits the graph in place.

    ``removes`` counts something that the pass lowers with every change and that no other pass raises. It then stands
    ahead of the measure, which the pass may raise. ``constants`` are those that the pass has added to the graph's.
    """

    name: str
    run: Callable[[Graph], Sequence[Applied]]
    annotates: bool = False  # writes metadata only: the measure need not fall
    removes: Callable[[Graph], int] | None = None
    constants: dict[str, Any] = field(default_factory=dict, compare=False)


def copy_module(module: GraphModule) -> GraphModule:
    """An independent copy of the graph; constants are shared."""
    return GraphModule(module.graph.copy()[0], module.constants)


def rewrite(
    module: GraphModule, passes: Sequence[Pass], measure: Callable[[Graph], Measure], max_rounds: int
) -> TransformLog:
    """Run the passes in rounds until none changes the graph. ``module`` itself is left as it is.

    Raises TransformError if a pass changes the graph without lowering the measure, leaves a malformed graph, or if
    ``max_rounds`` do not suffice.
    """
    with _collector_paused():
        return _rewrite(module, passes, measure, max_rounds)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """No garbage collection: what rewriting makes is kept, in the log, and looking for garbage among it again and again
    takes as long as the work."""
    was_running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_running:
            gc.enable()


def _rewrite(
    module: GraphModule, passes: Sequence[Pass], measure: Callable[[Graph], Measure], max_rounds: int
) -> TransformLog:
    current = copy_module(module)
    runs: list[PassRun] = []
    measures = [measure(current.graph)]
    initial = snapshot = copy_module(module)  # what the graph was after the last change: copied when it changes
    for number in range(1, max_rounds + 1):
        changed_in_round = False
        for item in passes:
            count = item.removes(current.graph) if item.removes else 0
            applied = tuple(item.run(current.graph))
            if not applied:
                runs.append(PassRun(number, item.name, False, measure=measures[-1]))
                continue
            current.graph.check()
            current.constants.update(item.constants)
            now = measure(current.graph)
            falls = item.removes(current.graph) < count if item.removes else now < measures[-1]
            if not item.annotates and not falls:
                raise TransformError(
                    f"pass {item.name} changed the graph but did not lower the measure {measures[-1]} -> {now}; "
                    f"last rule applied: {applied[-1]}"
                )
            measures.append(now)
            before, snapshot = snapshot, copy_module(current)
            runs.append(PassRun(number, item.name, True, applied, before, snapshot, now))
            changed_in_round = True
        if not changed_in_round:
            return TransformLog(initial, current, tuple(runs), tuple(measures))
    raise TransformError(f"no fixed point after {max_rounds} rounds; last change by {runs[-1].name}")


def transform(
    capture: Any,
    options: Options | None = None,
    *,
    rules: Sequence[Rule] = (),
    general: Callable[..., Any] | None = None,
) -> TransformLog:
    """The front-end passes (Section 4.1) on a captured graph, iterated to a fixed point; in dynamic mode, those that
    hold at every size.

    ``capture`` is a Capture or a GraphModule; it is not changed. ``rules`` are applied as well, after normalization in
    every round; they show in the log under their names. Values, dtypes, shapes and aliasing of the outputs
    stay as they are, except that ``x + 0 -> x`` may change the sign of a zero, that decomposed operators round as
    their formulas do, and that attention without its matrix of scores rounds as that does (the option ``attention``).
    ``general`` makes the operator for one with a pointwise modification (:data:`.attention_rewrite.General`); without
    it there is none. Each use of a rule of ``rules`` is tried out first (:mod:`.trial`), on the samples of a Capture.
    TransformError if a replacement changes dtype, shape, strides, aliasing or (on the samples) values, if a rule breaks
    the graph, or if it does not lower the measure of Proposition 4.1, so that the iteration might not end: defects of
    the rules.
    """
    from .attention_signs import may_hold_attention
    from .passes import PASSES, SHAPE_INDEPENDENT, measure

    module: GraphModule = getattr(capture, "module", capture)
    options = options or Options()
    passes = SHAPE_INDEPENDENT if options.dynamic else PASSES
    if rules:
        if options.dynamic:
            raise TransformError("own rules rely on the shapes of the sample", remedy="transform without dynamic=True")
        from .own_rules import own_pass

        own = own_pass(rules, samples=getattr(capture, "samples", None), constants=module.constants)
        passes = (passes[0], own, *passes[1:])
    decisions: dict[str, Decision] = {}
    if options.attention != "off" and not options.dynamic and may_hold_attention(module.graph):
        from .attention_rewrite import attention_pass

        # After dead code has gone: a dropout of nothing reads the probabilities, and is read by nobody.
        attention = attention_pass(options.attention, decisions, general)
        passes = (*passes[:-1], attention, passes[-1])
    log = rewrite(module, passes, measure, options.max_rounds)
    return replace(log, decisions=tuple(decisions.values()))


def describe(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Nodes as lines of a listing, as an :class:`Applied` keeps them."""
    return tuple(node.format() for node in nodes)
