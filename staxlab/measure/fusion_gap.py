"""How far greedy fusion is from the optimum (Section 7.3), and what it looked at on the way.

The compiler merges kernels greedily (Algorithm 7.1). :func:`gap` holds the schedule of a compilation against the best
partition there is by the same rules and the same count of bytes (:mod:`staxlab.schedule.optimum`), and names the merges
that the optimum would not have made. :func:`fusion_history` is the run itself: what every pair of kernels was weighed
at, before each merge. Both do the scheduling again, and nothing else.

>>> import torch, staxlab
>>> softmax = lambda x: torch.softmax(x, -1)
>>> gap(staxlab.explain(softmax, torch.randn(256, 512))).relative
0.0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import OptionError
from ..schedule.dependencies import escaping, single_nodes
from ..schedule.fusion import Fusion, Group, Pair, Score, score
from ..schedule.fusion_problem import FusionProblem
from ..schedule.optimum import PROVED, SECONDS, STATES, Optimum, Progress, optimum
from ..schedule.programs import ProgramFusion
from ..schedule.records import Schedule, ScheduleNode
from ..schedule.row_classes import problem_of
from .tables import Table, Tabular, bytes_text

Names = tuple[str, ...]
MOST_REASONS = 4
CUT = "optimal among the ways of writing a kernel that were kept"


@dataclass(frozen=True, repr=False)
class FusionGap(Tabular):
    """A schedule's kernels beside the best there are. ``greedy`` are the schedule's, ``best`` the optimum's, each with
    the bytes that it moves; ``reasons`` say which merges made the difference. Equal partitions where there is none."""

    name: str
    greedy: tuple[Names, ...]
    greedy_bytes: int
    best: Optimum
    nodes: Mapping[str, str]
    reasons: tuple[str, ...] = ()

    @property
    def relative(self) -> float:
        """(greedy - optimum) / optimum; against the best known where the optimum is not proved."""
        return (self.greedy_bytes - self.best.nbytes) / self.best.nbytes if self.best.nbytes else 0.0

    @property
    def proof(self) -> str:
        """ "optimal", or what ended the search before its end."""
        return self.best.proof

    def table(self) -> Table:
        def row(what: str, partition: tuple[Names, ...], nbytes: int) -> tuple[str, ...]:
            return what, str(len(partition)), bytes_text(nbytes), "; ".join(" + ".join(part) for part in partition)

        rows = [
            row("greedy (Algorithm 7.1)", self.greedy, self.greedy_bytes),
            row("optimum" if self.best.is_proved else "best known", self.best.partition, self.best.nbytes),
        ]
        notes = [f"relative gap {self.relative:.2%}", *self.reasons]
        if not self.best.is_proved:
            notes.append(f"not proved ({self.proof}): no partition moves less than {bytes_text(self.best.bound)}")
        return Table("Greedy fusion and the optimum", ("", "kernels", "bytes", "nodes in each"), tuple(rows),
                     tuple(notes), frozenset((1, 2)))  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {
            "nodes": len(self.nodes),
            "greedy": {"kernels": len(self.greedy), "bytes": self.greedy_bytes, "partition": self.greedy},
            "optimum": {
                "kernels": len(self.best.partition), "bytes": self.best.nbytes, "partition": self.best.partition,
                "bound": self.best.bound, "proof": self.proof, "states": self.best.states,
            },
            "relative_gap": self.relative,
            "reasons": self.reasons,
        }  # fmt: skip


@dataclass(frozen=True)
class Weighed:
    """A pair of kernels, by the names of their nodes, as Algorithm 7.1 weighed it: what merging them would save, or the
    ``rule`` that forbids it, with the ``reason``."""

    first: Names
    second: Names
    kind: str
    bytes_saved: int
    distance: int
    rule: str
    reason: str

    @property
    def is_legal(self) -> bool:
        return not self.rule

    def __str__(self) -> str:
        said = f"{self.rule}: {self.reason}" if self.rule else f"{self.kind}, saves {bytes_text(self.bytes_saved)}"
        return f"{' + '.join(self.first)} with {' + '.join(self.second)}: {said}"


@dataclass(frozen=True)
class Step:
    """The kernels at one moment, every pair that was weighed, and the one that was merged next (None at the end)."""

    groups: tuple[Names, ...]
    pairs: tuple[Weighed, ...]
    merged: Weighed | None


@dataclass(frozen=True)
class FusionHistory:
    """A run of Algorithm 7.1, step by step, over ``nodes`` in the order of the program, and the optimum if it was asked
    for. ``edges`` are dependences, as (producer, consumer, buffer, bytes)."""

    name: str
    nodes: tuple[ScheduleNode, ...]
    edges: tuple[tuple[str, str, str, int], ...]
    steps: tuple[Step, ...]
    best: Optimum | None = None

    @property
    def groups(self) -> tuple[Names, ...]:
        return self.steps[-1].groups

    def format(self) -> str:
        """The merges in order, and the pairs that stayed apart with the rule that kept them so."""
        lines = [f"Fusion in {self.name}: {len(self.nodes)} nodes, {len(self.groups)} kernels"]
        lines += [f"  {node.describe()} -> {', '.join(node.buffers)}" for node in self.nodes]
        merges = [step.merged for step in self.steps if step.merged is not None]
        lines += [f"merge {number}: {merged}" for number, merged in enumerate(merges, 1)]
        lines += [f"apart: {pair}" for pair in self.steps[-1].pairs]
        if self.best is not None:
            same = set(map(frozenset, self.best.partition)) == set(map(frozenset, self.groups))
            lines.append("the optimum is the same" if same else f"optimum: {self.best}")
        return "\n".join(lines)

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


class _Recorded(Fusion):
    """A run that keeps what it weighed."""

    def run(self) -> list[Group]:
        self.steps: list[tuple[list[Group], list[Pair], Pair | None]] = []
        ordered = super().run()
        self.steps.append((list(self.groups), list(self.pairs.values()), None))
        return ordered

    def _merge(self, pair: Pair) -> None:
        self.steps.append((list(self.groups), list(self.pairs.values()), pair))
        super()._merge(pair)


class _RecordedPrograms(_Recorded, ProgramFusion):
    """The same by the rules of a GPU."""


def fusion_history(record: Any, *, score: Score = score, best: bool | Optimum = False) -> FusionHistory:
    """Algorithm 7.1 once more on the nodes of a ``Schedule`` (or of a ``Compilation``), by ``score``.

    ``best``: the optimum to show beside it, or True to search for it (see :func:`gap`). Raises OptionError for a
    compilation without a schedule, and where the optimum is asked for on a GPU.
    """
    planned, name = _schedule_of(record)
    nodes, run = _again(planned, score)
    run.run()
    if best is True:
        _has_rows(planned)
        start = [[n.name for n in group.members] for group in run.groups]
        best = _honest(optimum(_problem(run, nodes), start=start))
    position = run.position

    def names(group: Group) -> Names:
        return tuple(sorted(group.names, key=position.__getitem__))

    def weighed(pair: Pair) -> Weighed:
        rule, reason = pair.rule, pair.reason
        if any(pair is merged for merged in run.merges):
            reason = reason if pair.bytes_saved else "little to do"
        elif not rule and not pair.bytes_saved:
            rule, reason = "gain", "nothing would be saved"
        return Weighed(names(pair.first), names(pair.second), pair.kind, pair.bytes_saved, pair.distance, rule, reason)

    steps = []
    for groups, pairs, merged in run.steps:
        ordered = sorted(map(names, groups), key=lambda group: position[group[0]])
        steps.append(Step(tuple(ordered), tuple(map(weighed, pairs)), None if merged is None else weighed(merged)))
    return FusionHistory(name, tuple(nodes), _edges(nodes, run), tuple(steps), best or None)


def gap(
    record: Any,
    *,
    seconds: float = SECONDS,
    states: int = STATES,
    progress: Progress | None = None,
) -> FusionGap:
    """The kernels of a ``Schedule`` (or of a ``Compilation``) and the best there are.

    ``seconds`` and ``states`` limit the search, Ctrl-C ends it: then ``proof`` says so, and the best known is compared.
    The search is exponential in the worst case; up to about 25 nodes that may share kernels are well within reach.

    Raises OptionError for a compilation without a schedule, and for one for a GPU, whose rules look at merges and not
    at classes.
    """
    planned, name = _schedule_of(record)
    _has_rows(planned)
    nodes, run = _again(planned, score)
    problem = _problem(run, nodes)
    greedy = tuple(tuple(m.name for m in node.members) or (node.name,) for node in planned.nodes)
    best = _honest(optimum(problem, start=greedy, seconds=seconds, states=states, progress=progress))
    paid = problem.cost(greedy)
    reasons = _reasons(run, best) if best.nbytes < paid else ()
    return FusionGap(name, greedy, paid, best, {node.name: node.describe() for node in nodes}, reasons)


def _problem(run: _Recorded, nodes: list[ScheduleNode]) -> FusionProblem:
    """The problem of a run, in which the kernels it comes to are legal."""
    if not run.merges:
        run.run()
    problem = problem_of(run, nodes)
    for group in run.groups:
        if group.views:
            problem.classes.admit(group.views)  # type: ignore[union-attr]  # they are RowClasses
    return problem


def _honest(best: Optimum) -> Optimum:
    """Where not all ways of writing a class were kept, nothing is proved but that inputs and results are moved."""
    if not getattr(best.problem.classes, "is_cut", False):
        return best
    least = sum(
        min((b.bytes_read(1 << reader) for reader in b.readers), default=0) if b.writer is None else b.bytes_written
        for b in best.problem.buffers
        if b.writer is None or b.escapes
    )
    return replace(best, bound=min(least, best.nbytes), proof=CUT if best.proof == PROVED else best.proof)


def _reasons(run: _Recorded, best: Optimum) -> tuple[str, ...]:
    """The merges that join what the optimum keeps apart, and what the greedy kept apart then, and why."""
    home = {name: place for place, part in enumerate(best.partition) for name in part}
    ordered = run.position.__getitem__

    def said(pair: Pair) -> str:
        both = " with ".join(" + ".join(sorted(group.names, key=ordered)) for group in (pair.first, pair.second))
        return f"{both} ({pair.kind}, {bytes_text(pair.bytes_saved)})"

    found = []
    for number, (_, pairs, merged) in enumerate(run.steps, 1):
        if merged is None or len({home[name] for name in merged.first.names | merged.second.names}) == 1:
            continue
        words = f"merge {number} joins what the optimum keeps apart: {said(merged)}"
        other = [
            pair for pair in pairs
            if pair.merged is not None and len({home[n] for n in pair.first.names | pair.second.names}) == 1
        ]  # fmt: skip
        if other:
            words += f"; the optimum has {said(max(other, key=lambda pair: pair.bytes_saved))}"
        found.append(words)
    if not found:
        for pair in run.pairs.values():
            if len({home[name] for name in pair.first.names | pair.second.names}) == 1:
                found.append(f"the optimum joins what stayed apart, {pair.rule or 'nothing saved'}: {said(pair)}")
    more = len(found) - MOST_REASONS
    return (*found[:MOST_REASONS], *([f"and {more} more"] if more > 0 else []))


def _schedule_of(record: Any) -> tuple[Schedule, str]:
    planned = getattr(record, "schedule", record)
    name = getattr(record, "name", "the schedule")
    if not isinstance(planned, Schedule):
        reason = getattr(record, "fallback_reason", None) or "it has no schedule"
        raise OptionError(f"nothing was fused in {name}: {reason}", remedy="compile it with backend='stax'")
    return planned, name


def _has_rows(planned: Schedule) -> None:
    if planned.device.is_gpu:
        raise OptionError(
            "the optimum is known for kernels of a CPU, and not by the rules of a GPU", remedy="target='cpu'"
        )


def _again(planned: Schedule, score: Score) -> tuple[list[ScheduleNode], _Recorded]:
    """The nodes of a schedule before they shared kernels, and a run over them."""
    nodes = single_nodes(planned.program)
    given = (nodes, planned.layouts, escaping(nodes, planned.program), score)
    return nodes, _RecordedPrograms(*given, device=planned.device) if planned.device.is_gpu else _Recorded(*given)


def _edges(nodes: list[ScheduleNode], run: Fusion) -> tuple[tuple[str, str, str, int], ...]:
    writer = {buffer: node.name for node in nodes for buffer in node.buffers}
    found = []
    for node in nodes:
        for buffer in dict.fromkeys(access.buffer for access in node.reads):
            if buffer in writer:
                layout = run.layouts[buffer]
                found.append((writer[buffer], node.name, buffer, layout.storage_elements * layout.dtype.itemsize))
    return tuple(found)
