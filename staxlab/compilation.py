"""The record of a compilation: what every stage delivered, in order, and what runs in the end.

What the stages do, and who runs them, is in :mod:`staxlab.pipeline`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from .capture.graph import Graph
from .capture.module import GraphModule
from .errors import OptionError
from .options import Decision, DeviceSpec, Options
from .provenance import SourceLocation


@dataclass(frozen=True)
class Stage:
    """A step of the pipeline, and how it is shown. ``differentiates``: only regions with gradients have it; ``option``:
    only compilations with that option."""

    name: str
    title: str
    section: str
    differentiates: bool = False
    option: str | None = None


STAGES: tuple[Stage, ...] = (
    Stage("capture", "Captured graph", "Section 3"),
    Stage("transforms", "Graph transformation", "Section 4"),
    Stage("joint", "Joint graph", "Section 5.3", differentiates=True),
    Stage("partition", "Rematerialization", "Section 5.4", differentiates=True),
    Stage("operators", "Operator graph", "Section 5.1"),
    Stage("loops", "Loop IR", "Section 6"),
    Stage("schedule", "Schedule", "Section 7"),
    Stage("kernels", "Kernels", "Sections 8 and 9"),
    Stage("wrapper", "Wrapper", "Section 8.5"),
    # Before there is an artifact: kernels that fail never become one.
    Stage("validation", "Translation validation", "Section 6.9", option="validate"),
    Stage("artifact", "Artifact", "Section 11"),
    # In the place of all that comes after the last stage of ours, for a backend that is not ours.
    Stage("outside", "Outside backend", "Section 11.3", option="outside"),
)

#: Stages that do not run where a plan is restored from the cache; their records are made when they are asked for.
RESTORABLE = ("loops", "schedule", "kernels", "wrapper")


@dataclass(frozen=True)
class Fallback:
    """Why a region runs operator by operator: the reason, the user's line where there is one, and what to do."""

    reason: str
    remedy: str | None = None
    where: SourceLocation | None = None

    def __str__(self) -> str:
        return f"{self.reason} ({self.where})" if self.where else self.reason


@dataclass
class Compilation:
    """The ordered record of one compilation, complete or up to the stage its backend ends with.

    ``capture``, ``transforms``, ``joint``, ``partition``, ``operators``, ``loops``, ``schedule``, ``kernels``,
    ``wrapper``, ``validation``, ``artifact``, ``outside`` are the records of the stages; ``key`` and ``guards`` say for
    which inputs the result holds; ``timings`` maps stage names to seconds. In a notebook the object draws itself as a
    stepper.

    A record is None where its stage did not run: beyond the ``last`` stage, or because the region runs operator
    by operator. ``fallback_reason`` then says why, and ``fallback_remedy`` what to do. ``trains`` says that gradients
    are recorded; ``backwards`` has then the compilations of the backward half, made when they are first needed: one for
    each set of results (numbers of forward outputs) to which no upstream gradient came. With ``double_backward``,
    ``gradients`` has the compilations of the gradient as a program of its own, made where it was to be differentiated.
    ``source`` is the graph a compilation starts from that has no captured one (the gradient, for a second derivative).
    ``owned_inputs`` are those that the call may let go of after their last reader: what was saved for a backward half.
    ``instances`` has the back ends of a version of dynamic mode, one for each set of sizes (:mod:`staxlab.instances`).
    ``graphed`` records and replays the region (:class:`staxlab.runtime.graphs.GraphedRegion`), if anything does.
    ``plan`` is what a restored compilation runs instead of records (:mod:`staxlab.restoring`), kept under ``plan_key``.
    ``derivative`` is "jvp" or "hvp" where it is not the function itself that is computed (:mod:`staxlab.derivatives`).
    """

    name: str
    target: str
    options: Options
    device: DeviceSpec
    records: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    key: Any = None
    sample: list[torch.Tensor] | None = field(default=None, repr=False)
    function: Callable | None = field(default=None, repr=False)
    arguments: tuple[tuple, dict] | None = field(default=None, repr=False)
    executor: Callable[[list[torch.Tensor]], Any] | None = field(default=None, repr=False)
    fallback: Fallback | None = None
    last: str = "artifact"
    source: GraphModule | None = field(default=None, repr=False)
    trains: bool = False
    derivative: str | None = None
    owned_inputs: frozenset[str] = frozenset()
    backwards: dict[frozenset[int], Compilation] = field(default_factory=dict, repr=False)
    gradients: list[Compilation] = field(default_factory=list, repr=False)
    graphed: Any = field(default=None, repr=False)
    instances: Any = field(default=None, repr=False)
    plan: Any = field(default=None, repr=False)
    plan_key: str = field(default="", repr=False)
    make_again: Callable[[], None] | None = field(default=None, repr=False)

    @property
    def fallback_reason(self) -> str | None:
        """Why the region runs operator by operator; None if it does not."""
        return str(self.fallback) if self.fallback else None

    @property
    def fallback_remedy(self) -> str | None:
        """What to do so that it is compiled, where something can be done."""
        return self.fallback.remedy if self.fallback else None

    @property
    def backward(self) -> Compilation | None:
        """The backward half for gradients from all results, or else the first that was needed; None before."""
        return self.backwards.get(frozenset()) or next(iter(self.backwards.values()), None)

    def backward_halves(self) -> Iterator[tuple[str, Compilation]]:
        """What was compiled for the backward pass, :attr:`backward` first, each with what it does without: "" or
        "without %tangents_2", where no upstream gradient came from the second forward output."""
        first = self.backward
        for undefined, half in sorted(self.backwards.items(), key=lambda entry: entry[1] is not first):
            missing = ", ".join(f"%tangents_{place + 1}" for place in sorted(undefined))
            yield (f"without {missing}" if missing else "", half)

    @property
    def guards(self) -> tuple[Any, ...]:
        """One guard for each component of the key (Definition 2.3)."""
        from .specialize.guards import guards

        return guards(self.key) if self.key is not None else ()

    @property
    def restored(self) -> bool:
        """Whether the stages from lowering on were restored from the cache (Section 11.1)."""
        return self.plan is not None

    @property
    def compiled_kernels(self) -> Any:
        """The kernels that run, generated or restored; a restored region's are without what PyTorch computes."""
        return self.plan.kernels if self.plan is not None else self.kernels

    def _record(self, name: str) -> Any:
        """A record that may not have been needed until now. Of a restored region the stages run then; BuildError if
        they come to something else."""
        if name not in self.records and self.make_again is not None:
            self.make_again()
        return self.records.get(name)

    # -- the records, by name -----------------------------------------------------------------------------------------

    @property
    def capture(self) -> Any:
        """What tracing recorded (Section 3)."""
        return self.records.get("capture")

    @property
    def graph(self) -> Graph | None:
        """The captured graph."""
        return self.capture.graph if self.capture is not None else None

    @property
    def transforms(self) -> Any:
        """The front-end passes, round by round (Section 4)."""
        return self.records.get("transforms")

    @property
    def operators(self) -> Any:
        """The operator graph over ``aten`` overloads (Sections 4.8 and 5.1)."""
        return self.records.get("operators")

    @property
    def joint(self) -> Any:
        """The joint forward and backward graph (Section 5); None for inference."""
        return self.records.get("joint")

    @property
    def partition(self) -> Any:
        """The rematerialization cut (Section 5); None for inference."""
        return self.records.get("partition")

    @property
    def loops(self) -> Any:
        """The loop program (Section 6)."""
        return self._record("loops")

    @property
    def schedule(self) -> Any:
        """The schedule (Section 7)."""
        return self._record("schedule")

    @property
    def kernels(self) -> Any:
        """The generated kernels (Sections 8 and 9)."""
        return self._record("kernels")

    @property
    def wrapper(self) -> Any:
        """The module that calls the kernels (Section 8.5)."""
        return self._record("wrapper")

    @property
    def validation(self) -> Any:
        """Every kernel against the semantics of its loops (Section 6.9); None without ``options={"validate": True}``
        and for other targets than the CPU."""
        return self.records.get("validation")

    @property
    def artifact(self) -> Any:
        """What runs (Section 11); None when the target is not this machine."""
        return self.records.get("artifact")

    @property
    def outside(self) -> Any:
        """What an outside backend was given and what it made of it (Section 11.3, a
        :class:`staxlab.backends.delegate.Delegated`); None for backends of our own."""
        return self.records.get("outside")

    @property
    def graphs(self) -> Any:
        """How the region fares with CUDA Graphs (Section 9.9, a :class:`staxlab.runtime.graph_report.GraphReport`), or
        would, if the target is not here; None where the options do not ask for them."""
        from .runtime.graphs import graph_report

        return graph_report(self)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every decision any stage took, in order."""
        found: list[Decision] = []
        for record in (self.transforms, self.partition, self.loops, self.schedule, *(self.kernels or ())):
            found += getattr(record, "decisions", ())
        if self.options.cuda_graphs and (self.schedule is not None or self.fallback is not None):
            found += self.graphs.decisions
        return tuple(found)

    @property
    def traffic(self) -> Any:
        """The byte model of Sections 1.1 and 13.2: eager against compiled.

        OptionError where no operator was recorded: the region fell back before, or the backend ends before.
        """
        from .measure.bytes import traffic_model

        if self.operators is None:
            backend = f"backend {self.options.backend!r} ends before the operators are recorded"
            raise OptionError(
                f"{self.name} has no byte model, since it was not compiled: {self.fallback_reason or backend}",
                remedy=self.fallback_remedy or "use backend='stax'",
            )
        return traffic_model(self)

    @property
    def flow(self) -> Any:
        """The way this compilation went (Figure 11.1, a :class:`staxlab.measure.compilation_flow.CompilationFlow`):
        stages with their times, kernels with what the cache had, and which fallback rule applied."""
        from .measure.compilation_flow import compilation_flow

        return compilation_flow(self, STAGES)

    def memory(self, *budgets: int | float) -> Any:
        """Bytes alive over the operators of forward and backward pass (:mod:`staxlab.autodiff.memory`), in eager
        execution and for what could be kept, with a curve for each of ``budgets`` (as ``memory_budget``) besides.

        OptionError where no gradients are recorded; errors of budgets as :func:`staxlab.autodiff.budget.within_budget`.
        """
        from .autodiff.memory import memory_timeline
        from .loops.lowering.kinds import kind_of

        if self.joint is None or self.partition is None:
            raise OptionError(
                f"{self.name} keeps nothing for a backward pass: no gradients are recorded",
                remedy="compile it with an input or parameter that requires grad",
            )
        own = self.options.memory_budget
        if own is not None and own not in budgets:
            budgets = (own, *budgets)
        return memory_timeline(self.joint, kind_of=kind_of, budgets=budgets)

    def orders(self) -> Any:
        """The kernels in several orders, with what each needs of memory (:mod:`staxlab.schedule.execution_order`).
        OptionError where there is no schedule."""
        from .schedule.execution_order import compare_orders

        if self.schedule is None:
            raise OptionError("there is no schedule", remedy=f"this region runs differently: {self.fallback_reason}")
        return compare_orders(self.schedule)

    def stages(self) -> Iterator[tuple[Stage, Any]]:
        """The stages that ran, with their records, in order."""
        for stage in STAGES:
            record = self._record(stage.name) if stage.name in RESTORABLE else self.records.get(stage.name)
            if record is not None:
                yield stage, record

    # -- running ------------------------------------------------------------------------------------------------------

    def call(self, inputs: list[torch.Tensor]) -> Any:
        """Run on flat tensor inputs whose key equals this compilation's; returns the flat outputs."""
        if self.executor is None:
            raise OptionError(
                f"this compilation targets {self.target!r}, which is not this machine: it can be read but not run",
                remedy="compile for target='cpu', or for 'cuda' on a machine with a GPU",
            )
        return self.executor(inputs)

    # -- showing ------------------------------------------------------------------------------------------------------

    def format(self) -> str:
        """Every stage as text."""
        head = f"Compilation of {self.name} for {self.target} (backend {self.options.backend})"
        parts = [head]
        parts += [*self._heading_texts(), *self._stage_texts()]
        if self.backwards:
            kept = f"{self.partition.saved_bytes:,} bytes are kept for it"
            for missing, half in self.backward_halves():
                what = "The backward half" + (f" {missing}" if missing else "")
                parts.append(f"=== {what}, compiled by itself (Section 5.6); {kept}")
                parts += [*half._heading_texts(), *half._stage_texts()]
        elif self.partition is not None and not self.fallback and not self.gradients:
            parts.append("=== The backward half is compiled when it is first needed (Section 5.6)")
        if self.instances is not None:
            parts.append("=== The stages from the operator graph on, for each set of sizes (Section 10.3)")
            parts.append(str(self.instances))
        for gradient in self.gradients:
            parts.append("=== The gradient as a program that can be differentiated (Section 5.7)")
            parts.append(gradient.format())
        return "\n".join(parts)

    @property
    def restored_text(self) -> str:
        """Where the stages from lowering on came from, in words; "" where they ran."""
        return f"restored from the cache, key {self.plan_key}: {', '.join(RESTORABLE)}" if self.restored else ""

    def _heading_texts(self) -> Iterator[str]:
        if self.restored:
            yield self.restored_text
        if self.fallback_reason:
            yield f"FALLBACK, runs operator by operator: {self.fallback_reason}"
            if self.fallback_remedy:
                yield f"  remedy: {self.fallback_remedy}"

    def _stage_texts(self) -> Iterator[str]:
        for stage, record in self.stages():
            seconds = self.timings.get(stage.name, 0.0)
            yield f"--- {stage.title} ({stage.section}, {seconds * 1e3:.1f} ms)\n{record}"
        if self.graphs is not None:
            yield f"--- CUDA Graphs (Section 9.9)\n{self.graphs}"

    def __str__(self) -> str:
        return self.format()

    def __repr__(self) -> str:
        there = {*self.records, *(RESTORABLE if self.restored else ())}
        ran = ", ".join(stage.name for stage in STAGES if stage.name in there)
        ran += " (restored from the cache)" if self.restored else ""
        why = f"; then operator by operator: {self.fallback_reason}" if self.fallback_reason else ""
        return f"<Compilation of {self.name} for {self.target}: {ran}{why}>"

    def stepper(self) -> Any:
        """The interactive stepper (ipywidgets), for a live notebook."""
        from .view.explorer import stepper

        return stepper(self)

    def write_html(self, path: str | os.PathLike) -> None:
        """Write the whole compilation as one page that needs no network and no server."""
        from .view import write_page

        write_page(path, self, title=f"{self.name} for {self.target}")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from .view import mimebundle

        return mimebundle(self)
