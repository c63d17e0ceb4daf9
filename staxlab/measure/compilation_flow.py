"""The path of one compilation (Section 11.6, Figure 11.1): stages with their times, and what would catch a failure.

A compiled region has come a fixed way: captured, rewritten, recorded as operators, lowered, scheduled, written as
kernels by the type of each node, called by a wrapper, built through the cache on disk. :class:`CompilationFlow` is that
way as it was gone: what each stage delivered in one line, how long it took and which share of the whole that is; for
each kernel how it is computed (a template, a loop nest in C++ or Triton, a routine of PyTorch), whether the cache had
its library, and which worker of the build pool compiled it; and at the end the rules of Section 11.3. They say what
happens where a stage cannot go on: which of them would have applied at each stage, and which one did.

The shares show what Section 13.4 computes with. A cold compilation is almost all compiler; a warm one is capture and
code generation, which every process had to repeat, unless the whole plan was restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..provenance import NO_ORIGINS, Origins
from .tables import Table, Tabular, bytes_text, seconds_text

RAN, RESTORED, NOT_REACHED = "ran", "restored", "not reached"

#: How a kernel comes about, by the type of its node; in the order of a picture.
WAYS = ("template", "C++", "Triton", "library", "PyTorch", "no code")


SAME = "the same"


@dataclass(frozen=True)
class Rule:
    """What happens where a stage cannot go on (Section 11.3). ``stages`` are those it stands behind; ``strict`` says
    what ``strict_native=True`` makes of it."""

    name: str
    stages: tuple[str, ...]
    happens: str
    strict: str


RULES: tuple[Rule, ...] = (
    Rule(
        "no graph", ("capture", "transforms"),
        "nothing equivalent to the function is at hand: the error is raised, and nothing is compiled",
        SAME,
    ),
    Rule(
        "whole region",
        ("capture", "joint", "partition", "operators", "loops", "schedule", "kernels", "wrapper", "artifact"),
        "the captured graph runs operator by operator; a FallbackWarning says why",
        "LoweringError, or the stage's own error",
    ),
    Rule(
        "one operator", ("loops",),
        "an operator without a lowering runs as PyTorch's routine between the kernels; a FallbackWarning names it",
        "LoweringError",
    ),
    Rule(
        "the user's turn", ("loops", "schedule", "kernels", "validation", "artifact", "outside"),
        "no compiler, a package missing, a setting, kernel or backend that is wrong: raised, never run",
        SAME,
    ),
    Rule(
        "the store", ("artifact",),
        "an entry that is damaged or foreign is dropped and built again; a directory that cannot be used is replaced",
        SAME,
    ),
    Rule(
        "no recording", ("artifact",),
        "where CUDA Graphs were asked for and cannot be: kernels are launched one by one; a GraphWarning says why",
        SAME,
    ),
)  # fmt: skip
WHOLE_REGION, ONE_OPERATOR, NO_RECORDING = 1, 2, 5  # places in RULES: those that leave a compilation to look at


@dataclass(frozen=True)
class Step:
    """A stage: its ``title`` and ``section``, ``state`` (ran, restored from a plan, not reached), ``seconds`` (0 unless
    it ran), what it delivered in one line, and the captured nodes that went through it."""

    name: str
    title: str
    section: str
    state: str
    seconds: float = 0.0
    delivered: str = ""
    origins: Origins = NO_ORIGINS


_BUILT = ("template", "C++", "Triton")


@dataclass(frozen=True)
class KernelPath:
    """A kernel: the ``way`` it is computed (one of :data:`WAYS`), whether the cache on disk had its library (None for
    one without), the seconds until it was loaded, and the ``worker`` that built it where that was recorded."""

    name: str
    way: str
    hit: bool | None = None
    seconds: float = 0.0
    worker: int | None = None
    origins: Origins = NO_ORIGINS

    @property
    def fate(self) -> str:
        """``found in the cache, 1.2 ms``."""
        if self.hit is None:
            return "not built: the target is not here" if self.way in _BUILT else "nothing to build"
        by = "" if self.worker is None or self.hit else f" by worker {self.worker}"
        return f"{'found in the cache' if self.hit else 'compiled' + by}, {seconds_text(self.seconds)}"


@dataclass(frozen=True)
class CompilationFlow(Tabular):
    """How one compilation went (Figure 11.1). ``plan`` says whether the stages before the build came from a stored
    plan; ``workers`` and ``build_seconds`` are the build pool's. ``applied`` are places in :data:`RULES`, ``reasons``
    why; ``halves`` are the flows of what was compiled for the backward pass, by name."""

    name: str
    target: str
    backend: str
    strict: bool
    steps: tuple[Step, ...]
    kernels: tuple[KernelPath, ...]
    plan: bool = False
    workers: int = 0
    build_seconds: float = 0.0
    applied: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    halves: tuple[tuple[str, CompilationFlow], ...] = ()

    @property
    def seconds(self) -> float:
        """All stages together, in seconds, without the halves."""
        return sum(step.seconds for step in self.steps)

    def share(self, step: Step) -> float:
        """Which part of :attr:`seconds` a stage took; 0 where nothing was timed."""
        return step.seconds / self.seconds if self.seconds else 0.0

    def ways(self) -> dict[str, int]:
        """How many kernels there are of each way that occurs, in the order of :data:`WAYS`."""
        counts = {way: sum(kernel.way == way for kernel in self.kernels) for way in WAYS}
        return {way: count for way, count in counts.items() if count}

    def rules_of(self, name: str) -> tuple[int, ...]:
        """The places in :data:`RULES` of those that stand behind a stage."""
        return tuple(place for place, rule in enumerate(RULES) if name in rule.stages)

    def outcome(self, place: int) -> str:
        """What the rule at a place of :data:`RULES` makes of a failure, under the options of this compilation."""
        rule = RULES[place]
        return rule.strict if self.strict and rule.strict != SAME else rule.happens

    def summary(self) -> str:
        """One line: how long, how many kernels, what the cache had, what fell back."""
        built = [kernel for kernel in self.kernels if kernel.hit is not None]
        parts = [f"{seconds_text(self.seconds)} in {len([s for s in self.steps if s.state == RAN])} stages"]
        parts += ["restored from a plan"] if self.plan else []
        parts += [f"{sum(k.hit for k in built)} of {_count(len(built), 'kernel')} found in the cache"] if built else []
        parts += [f"rule {place + 1} applied ({RULES[place].name})" for place in self.applied]
        return ", ".join(parts)

    def table(self) -> Table:
        """A row for each stage."""
        rows = []
        for step in self.steps:
            timed = (seconds_text(step.seconds), f"{self.share(step):.0%}") if step.state == RAN else ("", "")
            rules = " ".join(str(place + 1) for place in self.rules_of(step.name))
            rows.append((step.title, step.section, step.delivered or step.state, *timed, rules))
        rows.append(("all", "", "", seconds_text(self.seconds), "", ""))
        columns = ("stage", "explained in", "delivered", "time", "share", "rules")
        caption = f"The path of {self.name} for {self.target} (backend {self.backend})"
        return Table(caption, columns, tuple(rows), (), frozenset({3, 4}))

    def format(self) -> str:
        """The table, the kernels, the rules, and the same for the halves of a backward pass."""
        return "\n".join(self._lines())

    def _lines(self, is_half: bool = False) -> Iterator[str]:
        yield self.table().text()
        for kernel in self.kernels:
            yield f"kernel {kernel.name} ({kernel.way}): {kernel.fate}"
        if self.workers:
            yield f"build pool: {_count(self.workers, 'worker')}, {seconds_text(self.build_seconds)}"
        for place, rule in enumerate(RULES):
            if not is_half or place in self.applied:
                mark = "applied" if place in self.applied else "would apply"
                yield f"rule {place + 1} ({rule.name}, {mark}): {self.outcome(place)}"
        yield from (f"why: {reason}" for reason in self.reasons)
        for name, half in self.halves:
            yield f"=== {name}"
            yield from half._lines(is_half=True)

    def __str__(self) -> str:
        return self.format()

    __repr__ = __str__


def compilation_flow(compilation: Any, stages: Sequence[Any]) -> CompilationFlow:
    """The flow of a :class:`~staxlab.compilation.Compilation` whose stages may be ``stages``, in order. Reads records
    that are there and makes none; O(size of the records)."""
    plan = compilation.restored
    steps = tuple(_step(compilation, stage, plan) for stage in stages if _belongs(compilation, stage))
    report = compilation.artifact.build if compilation.artifact is not None else None
    kernels = _kernels(compilation, report)
    applied = [WHOLE_REGION] if compilation.fallback else []
    applied += [ONE_OPERATOR] if any(kernel.way == "PyTorch" for kernel in kernels) else []
    reasons = [compilation.fallback_reason] if compilation.fallback else []
    # Looking at a restored region's graphs would run the stages that it did without.
    graphs = compilation.graphs if compilation.options.cuda_graphs and not plan else None
    if graphs is not None and not graphs.check.allowed:
        applied.append(NO_RECORDING)
        reasons.append(graphs.summary())
    halves = [(f"Backward half {missing}".strip(), half) for missing, half in compilation.backward_halves()]
    halves += [("The gradient as a program", gradient) for gradient in compilation.gradients]
    return CompilationFlow(
        compilation.name,
        compilation.target,
        compilation.options.backend,
        compilation.options.strict_native,
        steps,
        kernels,
        plan,
        report.workers if report is not None else 0,
        report.seconds if report is not None else 0.0,
        tuple(applied),
        tuple(reasons),
        tuple((name, compilation_flow(half, stages[_first_of(half, stages) :])) for name, half in halves),
    )


def _first_of(half: Any, stages: Sequence[Any]) -> int:
    """The place of the first stage that a half has a record of."""
    return next((place for place, stage in enumerate(stages) if stage.name in half.records), 0)


def _belongs(compilation: Any, stage: Any) -> bool:
    """Whether a stage is on the way of this compilation: gone, or such as it would have been."""
    if stage.name in compilation.records:
        return True
    if "outside" in compilation.records:
        return False  # what comes after our last stage is somebody else's
    return not stage.differentiates and stage.option is None and stage.name != "outside"


_IN_A_PLAN = ("loops", "schedule", "kernels", "wrapper")


def _step(compilation: Any, stage: Any, plan: bool) -> Step:
    if stage.name in compilation.timings:
        record = compilation.records.get(stage.name)
        return Step(stage.name, stage.title, stage.section, RAN, compilation.timings[stage.name],
                    summary(stage.name, record), _origins(record))  # fmt: skip
    given = stage.name in compilation.records  # a half begins with the graph that the division made for it
    record = compilation.records.get(stage.name)
    state = RAN if given else RESTORED if plan and stage.name in _IN_A_PLAN else NOT_REACHED
    return Step(stage.name, stage.title, stage.section, state, 0.0, summary(stage.name, record) if given else "",
                _origins(record))  # fmt: skip


def _kernels(compilation: Any, report: Any) -> tuple[KernelPath, ...]:
    artifact, schedule = compilation.artifact, compilation.records.get("schedule")
    hits = dict(artifact.cache_hits) if artifact is not None else {}
    seconds = dict(artifact.timings) if artifact is not None else {}
    workers = {task.kernel: task.worker for task in getattr(report, "tasks", ()) if task.worker >= 0}
    kernels, outside = compilation.records.get("kernels") or (), ()
    if not kernels and compilation.plan is not None:
        kernels, outside = compilation.plan.kernels, compilation.plan.externs
    found = [
        KernelPath(kernel.name, _way(kernel, schedule), hits.get(kernel.name), seconds.get(kernel.name, 0.0),
                   workers.get(kernel.name), kernel.origins)
        for kernel in kernels
    ]  # fmt: skip
    for extern in dict.fromkeys(outside):  # a call with several results is there once for each
        way = "PyTorch" if extern.reason == "fallback" else "library"
        found.append(KernelPath(str(extern.operator), way, origins=getattr(extern, "origins", NO_ORIGINS)))
    return tuple(found)


def _way(kernel: Any, schedule: Any) -> str:
    """One of :data:`WAYS`: dispatch by the type of the node. A restored region has no nodes, so its templates count as
    what they are written in."""
    if kernel.is_fallback:
        return "PyTorch"
    if kernel.launch.get("skip"):
        return "no code"
    if kernel.language == "extern":
        return {"cpp": "C++", "triton": "Triton"}.get(kernel.written_in or "", "library")
    if schedule is not None and any(schedule.node(name).product is not None for name in kernel.nodes):
        return "template"
    return "Triton" if kernel.language == "triton" else "C++"


def _origins(record: Any) -> Origins:
    parts = getattr(record, "buffers", None) or getattr(record, "nodes", None)
    if parts is None and hasattr(record, "__iter__"):
        parts = record
    return frozenset().union(*(getattr(part, "origins", ()) or () for part in parts or ()))


# -- what a stage delivered, in a line --------------------------------------------------------------------------------


def summary(stage: str, record: Any) -> str:
    """What a stage's record is, in one line; empty for a stage that no line was written for."""
    return _SUMMARIES[stage](record) if stage in _SUMMARIES and record is not None else ""


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _graph(record: Any) -> str:
    graph = record.graph
    return f"{_count(len(graph.placeholders), 'input')}, {_count(len(graph.calls), 'operation')}"


def _transforms(record: Any) -> str:
    applied = sum(len(run.applied) for run in record.changes)
    return f"{_count(applied, 'rewrite')}, {_count(record.rounds, 'round')}"


def _joint(record: Any) -> str:
    return f"{len(record.forward_nodes)} forward and {_count(len(record.backward_nodes), 'backward node')}"


def _partition(record: Any) -> str:
    return f"{record.plan}: {_count(len(record.saved), 'value')} saved, {bytes_text(record.saved_bytes)}"


def _loops(record: Any) -> str:
    outside = sum(type(buffer).__name__ == "ExternBuffer" for buffer in record.buffers)
    said = f"{_count(len(record.buffers), 'buffer')} in memory"
    return said + (f", {outside} by PyTorch" if outside else "")


def _schedule(record: Any) -> str:
    fused = sum(len(node.members) for node in record.nodes if node.members)
    said = f"{_count(len(record.nodes), 'node')}, peak {bytes_text(record.memory.peak_bytes)}"
    return said + (f"; {fused} share kernels" if fused else "")


def _written(record: Any) -> str:
    lines = sum(len(kernel.lines) for kernel in record if kernel.is_generated)
    return f"{_count(len(record.kernels), 'kernel')}, {_count(lines, 'line')}, {bytes_text(record.bytes_moved)} moved"


def _wrapper(record: Any) -> str:
    return f"{_count(len(record.lines), 'line')} of Python"


def _validation(record: Any) -> str:
    return "all kernels agree with their loops" if record.passed else f"{_count(len(record.failures), 'kernel')} wrong"


def _artifact(record: Any) -> str:
    found = sum(map(bool, record.cache_hits.values()))
    entry = "called through the Python wrapper" if record.interpreted else "one entry in C"
    return f"{found} of {_count(len(record.cache_hits), 'library', 'libraries')} cached; {entry}"


def _outside(record: Any) -> str:
    return f"{record.backend.name} was given {_count(len(record.module.graph.calls), 'operation')}"


_SUMMARIES: dict[str, Callable[[Any], str]] = {
    "capture": _graph, "transforms": _transforms, "joint": _joint, "partition": _partition, "operators": _graph,
    "loops": _loops, "schedule": _schedule, "kernels": _written, "wrapper": _wrapper, "validation": _validation,
    "artifact": _artifact, "outside": _outside,
}  # fmt: skip
