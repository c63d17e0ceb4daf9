"""The backends as prefixes of the pipeline, and what is done inside the first that is wrong (Algorithm 11.1).

Each prefix is compiled and called as a user would. The search inside takes a compilation of its own, stage by stage:
what its records compute, run on their own, is compared with the same reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..capture.module import GraphModule, Interpreter
from ..errors import StaxError
from ..measure.agreement import Agreement, Difference
from ..provenance import NO_ORIGINS
from ..transform.decompose import UNITS_IN_THE_LAST_PLACE
from . import back_end, dispatching, front_end, training
from .back_end import Half
from .criterion import Criterion
from .record import Culprit, first_line
from .sample import Observation, Sample
from .staging import StageFailed, advance, advance_half

if TYPE_CHECKING:
    from .search import Search

PREFIXES: dict[str, tuple[str, ...]] = {
    "eager": ("capture", "transforms"),
    "aot_eager": ("joint", "partition", "operators"),
    "stax": ("loops", "schedule", "kernels", "wrapper", "artifact"),
}


class Run(Criterion):
    """Algorithm 11.1 on one sample."""

    def __init__(self, search: Search, sample: Sample, reference: Observation):
        super().__init__(search, sample, reference)
        self.fresh: Any = None  # the function compiled without looking at what anybody holds

    # -- the prefixes -------------------------------------------------------------------------------------------------

    def eager(self) -> Culprit | None:
        exact = self._same_operators("transforms")
        compiled = self.compiled("eager")
        what = "captured and transformed graph, node by node"
        found = self.search.check("eager", what, PREFIXES["eager"], lambda: self.judge(compiled, exact), _held(exact))
        if isinstance(found, Agreement) and found.agrees:
            return None
        self.search.inside = True
        return self._inside_eager(found, compiled)

    def aot_eager(self) -> Culprit | None:
        exact = self._same_operators("operators")
        compiled = self.compiled("aot_eager")
        what = "operators, one by one" + (", forward and backward" if self.sample.trains else "")
        found = self.search.check(
            "aot_eager", what, PREFIXES["aot_eager"], lambda: self.judge(compiled, exact), _held(exact)
        )
        if isinstance(found, Agreement) and found.agrees:
            return None
        self.search.inside = True
        return self._inside_aot_eager(found, compiled, exact)

    def stax(self) -> Culprit | None:
        layers = PREFIXES["stax"]
        strict = self.compiled("stax", strict=True)
        self.fresh = strict
        check = self.search.check
        found = check("stax, strict", "kernels, without fallback", layers, lambda: self._twice(strict), "rounding")
        if isinstance(found, Exception):
            self.fresh = self.compiled("stax")
            loose = check("stax", "kernels, with fallback", layers, lambda: self._twice(self.fresh), "rounding")
            deliberate = isinstance(found, StaxError)
            if deliberate and isinstance(loose, Agreement):
                self.search.uncovered = first_line(found)
                last = self.search.checks[-2]
                self.search.checks[-2] = replace(last, verdict="not covered")
            if deliberate or not (isinstance(loose, Agreement) and loose.agrees):
                found = loose
            else:
                self.search.raised = type(found)
                self.search.notes.append("without strict_native the region falls back, and its values are right")
        if isinstance(found, Agreement) and found.agrees:
            return None
        self.search.inside = True
        return self._inside_stax(found)

    def held(self) -> Culprit | None:
        """What a compiled function holds, where one was given."""
        given = self.search.given
        if given is None:
            return None
        what = "the versions that the compiled function holds"
        found = self.search.check("held", what, ("dispatch",), lambda: self._twice(given), "rounding")
        if isinstance(found, Agreement) and found.agrees:
            return None
        holder = getattr(given, "dispatcher", given)
        return dispatching.held_culprit(holder, self.fresh, self.sample, _difference(found))

    def _twice(self, compiled: Any) -> Agreement:
        """The call that compiles, and the one that finds the version."""
        seen = self.sample.observe(compiled)
        again = self.sample.observe(compiled)
        height = 0
        versions = getattr(getattr(compiled, "dispatcher", compiled), "versions", ())
        for version in versions:
            for _, half in [("", version.compilation), *_halves(version.compilation)]:
                height = max(height, back_end.tallest_sum(_kernels_of(half)))
        found = seen.against(self.reference)
        if not (found.identical and found.agrees):
            found = seen.against(self.reference, self.bounds(height).bound or None)
        if not found.agrees:
            return found
        other = again.against(seen)
        if other.agrees:
            return found
        return again.against(self.reference, self.bounds(height).bound or None)

    def _same_operators(self, stage: str) -> bool:
        """Whether the prefix calls the very operators that eager execution calls, in its layouts."""
        try:
            made = advance(self.staged, stage)
        except StageFailed as failed:
            if failed.stage not in made_before(stage) or self.staged.transforms is None:
                return True
            made = self.staged
        log = made.transforms
        rules = [applied.rule for run in log.runs for applied in run.applied]
        inexact = any(rule.removeprefix("expand ") in UNITS_IN_THE_LAST_PLACE for rule in rules)
        attention = any("attention" in rule for rule in rules)
        if inexact or attention or (rules and self.sample.trains):  # gradients of what was merged add up otherwise
            return False
        if stage == "transforms":
            return True
        taken = [made.joint.decomposed if made.joint else (), made.operators.decomposed if made.operators else ()]
        writes = any(node.meta.get("mutates") for node in made.capture.graph)
        return not any(taken) and not writes

    # -- inside the prefixes ------------------------------------------------------------------------------------------

    def _inside_eager(self, found: Agreement | Exception, compiled: Any) -> Culprit:
        search, sample, difference = self.search, self.sample, _difference(found)
        agrees = self._module_check("capture", "the captured graph", ("capture",), exact=True)
        if not agrees(sample.capture.module):
            return front_end.capture_culprit(sample, difference)
        try:
            log = advance(self.staged, "transforms").transforms
        except StageFailed as failed:
            return _failed(failed, difference, self.staged)
        exact = self._same_operators("transforms")
        agrees = self._module_check("passes", "the graph after some passes", ("transforms",), exact)
        if not agrees(log.final):
            return front_end.pass_culprit(log, sample, agrees, difference, sample.capture.graph)
        search.notes.append("the graphs are right, run on their own")
        return dispatching.fresh_culprit(compiled, self, difference)

    def _module_check(
        self, name: str, what: str, layers: Sequence[str], exact: bool
    ) -> Callable[[GraphModule], bool]:
        def agrees(module: GraphModule) -> bool:
            call = self.regional(lambda inputs: Interpreter(module).run(*inputs))
            found = self.search.check(name, what, layers, lambda: self.judge(call, exact), _held(exact))
            return isinstance(found, Agreement) and found.agrees

        return agrees

    def _inside_aot_eager(self, found: Agreement | Exception, compiled: Any, exact: bool) -> Culprit:
        difference = _difference(found)
        try:
            made = advance(self.staged, "operators")
        except StageFailed as failed:
            return _failed(failed, difference, self.staged)
        if made.partition is not None:
            return self._inside_training(found, compiled, exact)
        agrees = self._module_check("operators", "the operator graph", ("operators",), exact)
        if not agrees(made.operators.module):
            return front_end.operators_culprit(
                made.transforms.final, made.operators, self.sample.flat, self.sample.seed, difference
            )
        return dispatching.fresh_culprit(compiled, self, difference)

    def _inside_training(self, found: Agreement | Exception, compiled: Any, exact: bool) -> Culprit:
        made, difference = self.staged, _difference(found)
        call = self.regional(training.undivided(made))
        whole = self.search.check(
            "joint", "the joint graph, everything saved", ("joint",), lambda: self.judge(call, exact), _held(exact)
        )
        if not (isinstance(whole, Agreement) and whole.agrees):
            return self._joint_culprit(difference or _difference(whole))
        seen = training.TangentsSeen(made.partition)
        divided = self.regional(seen.region())
        parts = self.search.check(
            "partition", "forward and backward half, divided at the minimum cut", ("partition",),
            lambda: self.judge(divided, exact), _held(exact),
        )  # fmt: skip
        if not (isinstance(parts, Agreement) and parts.agrees):
            tangents = [] if seen.undefined else seen.tangents
            return training.partition_culprit(made, self.sample.flat, tangents, self.sample.seed, difference)
        return dispatching.fresh_culprit(compiled, self, difference)

    def _joint_culprit(self, difference: Difference | None) -> Culprit:
        """A joint graph whose forward side is wrong was recorded from wrong operators, which is seen without
        gradients; else it is the recording of both."""
        from ..loops.lowering import basis
        from ..operators.record import record

        made, sample = self.staged, self.sample
        if difference is not None and not difference.value.startswith("gradient"):
            flat = [x.detach() for x in sample.flat_copies()]
            operators = record(made.transforms.final, flat, made.options, basis=basis())
            found = front_end.operators_culprit(made.transforms.final, operators, flat, sample.seed, difference)
            if found.part != "results of the graph":
                return found
        return training.joint_culprit(made, difference)

    def _inside_stax(self, found: Agreement | Exception) -> Culprit:
        difference = _difference(found)
        try:
            made = advance(self.staged)
            half = Half(made, self.sample.flat, "forward" if made.partition is not None else "", self.sample.seed)
            half.prepare()
        except StageFailed as failed:
            return _failed(failed, difference, self.staged)
        culprit = self._levels(half, difference)
        if culprit is None and made.partition is not None:
            culprit = self._backward(difference)
        return culprit or dispatching.fresh_culprit(self.fresh, self, difference)

    def _backward(self, difference: Difference | None) -> Culprit | None:
        from ..pipeline import compile_backward

        made = self.staged
        seen = training.TangentsSeen(made.partition)
        self.sample.observe(self.regional(seen.region()))
        inputs = training.backward_inputs(made.partition, self.sample.flat, seen.tangents, self.sample.seed)
        compiled = compile_backward(made, seen.undefined)
        half = Half(compiled, inputs, "backward", self.sample.seed)
        try:
            advance_half(compiled)
            half.prepare()
        except StageFailed as failed:
            return replace(_failed(failed, difference, compiled), half="backward")
        return self._levels(half, difference)

    def _levels(self, half: Half, difference: Difference | None) -> Culprit | None:
        """The first level of a half that is wrong, by bisection; None if the last is right."""
        levels = back_end.levels_of(half)
        found: dict[int, Agreement | Exception] = {}

        def wrong(number: int) -> bool:
            name, layers, what = levels[number]
            where = f"{half.name} {name}".strip()
            run = getattr(half, name)
            found[number] = self.search.check(where, what, layers, lambda: half.judge(half.run(run)), "rounding")
            result = found[number]
            return not (isinstance(result, Agreement) and result.agrees)

        if not wrong(len(levels) - 1):
            return None
        low, high = -1, len(levels) - 1  # right up to low, wrong at high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if wrong(middle) else (middle, high)
        self.search.progress(f"{self.search.name}: looking into {levels[high][0]}")
        return back_end.culprit_of(half, levels[high][0], _difference(found[high]) or difference)


def made_before(stage: str) -> tuple[str, ...]:
    """The stages that run before one of the two that are looked at here, and it."""
    return ("capture", "transforms") if stage == "transforms" else ("joint", "partition", "operators")


def _held(exact: bool) -> str:
    return "bit for bit" if exact else "rounding"


def _difference(found: Agreement | Exception | None) -> Difference | None:
    if isinstance(found, Agreement):
        return found.difference
    return Difference("results", what=f"it raises {type(found).__name__}: {first_line(found)}") if found else None


def _failed(failed: StageFailed, difference: Difference | None, made: Any) -> Culprit:
    where = getattr(failed.error, "where", None)
    sources, part, origins = (where,) if where else (), "the stage ends in an error", NO_ORIGINS
    node = back_end.raising_operator(made) if failed.stage == "loops" and failed.error is not None else None
    if node is not None:
        part, origins = f"lowering of {node.target_name()} ends in an error", node.origins
        sources = sources or ((node.location,) if node.location else ())
    return Culprit(failed.stage, part, failed.reason, difference, sources, origins)


def _halves(compilation: Any) -> list[tuple[str, Any]]:
    return list(compilation.backward_halves()) if hasattr(compilation, "backward_halves") else []


def _kernels_of(compilation: Any) -> Any:
    return getattr(compilation, "compiled_kernels", ())
