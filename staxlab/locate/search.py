"""Algorithm 11.1: the shortest prefix of the pipeline that disagrees with eager execution, and what it adds.

The pipeline is a composition ``T_k ... T_1`` in which every step ought to preserve the meaning. The debugging backends
are prefixes of it, so they are run one after the other: ``eager`` (capture and passes), ``aot_eager`` (and the
operators, forward and backward), and ``stax``, strictly first, so that what no kernel covers is said. The first that is
wrong is then taken apart by bisection, in O(log k) further runs for its k steps: over the graphs between passes, over
joint graph and division, or over what stands between operators and machine code.

The first two prefixes call the same operators as eager execution and are held to its bits, except where a rule or a
decomposition is known to round otherwise. Everything else is held to the bound of :mod:`.bounds`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from ..api import _target_of as target_of
from ..api import compile as compiled_for
from ..capture.graph import nodes_in
from ..capture.module import GraphModule, Interpreter
from ..capture.tracer import trace
from ..errors import BuildError, MissingDependencyError, OptionError, StaxError
from ..options import Options
from ..specialize.compiled_module import CompiledModule, uncompiled
from ..specialize.dispatch import Dispatcher
from ..transform.decompose import UNITS_IN_THE_LAST_PLACE
from . import back_end, dispatching, front_end, training
from .agreement import Agreement, Difference
from .back_end import Half
from .bounds import Bounds, bounds_of
from .record import REFUSED, Check, Culprit, Location
from .sample import Observation, Sample, _leaves
from .staging import StageFailed, advance, compilation_of

Progress = Callable[[str], None]

PREFIXES: dict[str, tuple[str, ...]] = {
    "eager": ("capture", "transforms"),
    "aot_eager": ("joint", "partition", "operators"),
    "stax": ("loops", "schedule", "kernels", "wrapper", "artifact"),
}


def locate_error(
    fn: Callable | torch.nn.Module,
    *args: Any,
    options: dict[str, Any] | None = None,
    mode: str | None = None,
    upstream: Any = None,
    minimise: bool = True,
    save: Any = None,
    samples: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
    **kwargs: Any,
) -> Location:
    """Find the layer in which compiled and eager execution of ``fn(*args, **kwargs)`` part (Algorithm 11.1).

    ``fn`` may be a compiled function: then what it holds is compared as well, which finds guards that let a version
    serve inputs it was not made for. Where an input or parameter requires grad, gradients are compared too;
    ``upstream`` are the upstream gradients (one for each differentiable result; normal numbers by default).
    ``options`` and ``mode`` are those of :func:`staxlab.compile`. ``samples`` tries more inputs, with floating-point
    tensors drawn anew, until one shows an error. ``minimise`` cuts a failing graph down to a small program, which
    ``save`` (a path) is written to. ``progress`` hears what is being done.

    ``fn`` runs several times, each time on copies of its arguments, from one random state; what it finds outside them
    is put back. Three to five compilations, and for an error O(log k) runs of prefixes inside the backend at fault.

    Raises what ``fn`` itself raises in eager execution, OptionError for parameters that are not allowed, and BuildError
    without a compiler. An interruption leaves everything as it was.
    """
    if samples < 1:
        raise OptionError(f"samples={samples} is not allowed: at least one input is tried")
    given = fn if isinstance(fn, (Dispatcher, CompiledModule)) else None
    plain = fn.fn if isinstance(fn, Dispatcher) else uncompiled(fn)
    if not callable(plain):
        raise OptionError(f"staxlab.locate_error takes a function or module first, got {type(fn).__name__}")
    held = getattr(given, "dispatcher", given)
    resolved = Options.resolve(mode=mode, options=options)
    if held is not None and options is None and mode is None:
        resolved = replace(held.options, backend="stax", strict_native=False)
    search = Search(plain, given, resolved, seed, progress or (lambda text: None))
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        culprit, sample = search.over(args, kwargs, samples, upstream)
        script, path = "", ""
        if culprit is not None and minimise and sample is not None:
            from .minimise import minimised

            script, note = minimised(search, sample, culprit)
            search.notes += [note] if note else []
            if script and save is not None:
                from .script import write_atomically

                path = write_atomically(script, save)
    return Location(
        search.name, "stax", tuple(search.checks), culprit, search.uncovered if culprit is None else "", script, path,
        tuple(search.notes), search.tried, time.perf_counter() - start,
    )  # fmt: skip


class Search:
    """One search: what was checked so far, and the tools for checking."""

    def __init__(self, fn: Any, given: Any, options: Options, seed: int, progress: Progress):
        self.fn, self.given, self.options, self.seed, self.progress = fn, given, options, seed, progress
        self.name = getattr(fn, "__name__", None) or type(fn).__name__
        self.checks: list[Check] = []
        self.notes: list[str] = []
        self.uncovered = ""
        self.raised: type[Exception] | None = None  # what the backend raises where that is the error
        self.tried = 0
        self.inside = False

    # -- the samples --------------------------------------------------------------------------------------------------

    def over(
        self, args: tuple, kwargs: dict[str, Any], samples: int, upstream: Any
    ) -> tuple[Culprit | None, Sample | None]:
        """Try inputs until one shows an error."""
        first: Sample | None = None
        for number in range(samples):
            given = (args, kwargs) if first is None else first.another(self.seed + number)
            try:
                sample = self.sample(*given, upstream, self.seed + number)
            except StaxError as error:
                self._note_check("eager", "capture", error)
                where = (error.where,) if error.where else ()
                return Culprit("capture", REFUSED, error.what, sources=where), None
            except Exception as error:
                if first is None:
                    raise
                self.notes.append(f"sample {number} was left out: eager execution raises {error!r:.120}")
                continue
            first = first or sample
            self.tried += 1
            culprit = self.one(sample)
            if culprit is not None:
                return culprit, sample
            if not self.checks[-1].right:
                return None, None  # eager execution itself is not deterministic
        return None, first

    def sample(self, args: tuple, kwargs: dict[str, Any], upstream: Any, seed: int) -> Sample:
        self.progress(f"{self.name}: capture")
        capture = trace(self.fn, args, kwargs, options=self.options)
        try:
            return Sample(self.fn, args, kwargs, capture, upstream, seed)
        finally:
            capture.rewind()

    def one(self, sample: Sample) -> Culprit | None:
        """Algorithm 11.1 on one input. None where every prefix agrees."""
        self.inside = False
        reference = self._reference(sample)
        if reference is None:
            return None
        self.current = Run(self, sample, reference)
        for look in (self.current.eager, self.current.aot_eager, self.current.stax, self.current.held):
            culprit = look()
            if culprit is not None:
                return culprit
        return None

    def _reference(self, sample: Sample) -> Observation | None:
        self.progress(f"{self.name}: eager execution, twice")
        start = time.perf_counter()
        reference = sample.observe(self.fn)
        again = sample.observe(self.fn).against(reference)
        if again.agrees:
            return reference
        self.checks.append(
            Check("eager execution", "twice from one random state", (), "WRONG", "bit for bit", again,
                  time.perf_counter() - start, self.tried - 1)
        )  # fmt: skip
        self.notes.append(
            f"eager execution is not deterministic: run again from the same random state, {again.difference}"
        )
        return None

    # -- checks -------------------------------------------------------------------------------------------------------

    def check(
        self, name: str, what: str, layers: Sequence[str], run: Callable[[], Agreement], held_to: str, note: str = ""
    ) -> Agreement | Exception:
        """Run a prefix and write down what came of it. What it raises is written down and returned."""
        self.progress(f"{self.name}: {what}")
        start = time.perf_counter()
        found: Agreement | Exception
        try:
            found = run()
            verdict = "WRONG" if not found.agrees else "equal bit for bit" if found.identical else "within the bound"
        except (BuildError, MissingDependencyError, OptionError):
            raise  # the user must act
        except Exception as error:
            found, verdict, note = error, "RAISED", f"{type(error).__name__}: {_first_line(error)}"
        self.checks.append(
            Check(name, what, tuple(layers), verdict, held_to, found if isinstance(found, Agreement) else None,
                  time.perf_counter() - start, self.tried - 1, self.inside, note)
        )  # fmt: skip
        return found

    def changed_options(self) -> dict[str, Any]:
        """The options that are not the defaults, as :func:`staxlab.compile` takes them."""
        values = {f.name: getattr(self.options, f.name) for f in fields(Options) if f.name not in _BESIDE}
        return {name: value for name, value in values.items() if value != getattr(Options(), name)}

    def _note_check(self, name: str, layer: str, error: Exception) -> None:
        self.checks.append(
            Check(name, f"the backend {name}", (layer,), "RAISED", "bit for bit", None, 0.0, note=_first_line(error))
        )


def _first_line(error: Exception) -> str:
    said = str(error).strip().splitlines()
    return said[0] if said else type(error).__name__


class Run:
    """Algorithm 11.1 on one sample."""

    def __init__(self, search: Search, sample: Sample, reference: Observation):
        self.search, self.sample, self.reference = search, sample, reference
        self.target = target_of((sample.fn, sample.args, sample.kwargs))
        self.staged = compilation_of(sample, search.options, self.target)
        self.fresh: Any = None
        self._bounds: dict[int, Bounds] = {}

    # -- criteria -----------------------------------------------------------------------------------------------------

    def bounds(self, height: int = 0) -> Bounds:
        """The bounds of an observation of this sample, value by value."""
        if height not in self._bounds:
            found = self._flat_bounds(height)
            self._bounds[height] = found
            if found.reason:
                self.search.notes.append(f"no bounds could be made, so bits are compared: {found.reason}")
        return self._bounds[height]

    def _flat_bounds(self, height: int) -> Bounds:
        sample = self.sample
        module, capture = sample.capture.module, sample.capture
        count = len(nodes_in(module.graph.output.args[0]))
        places = [_Place(k) for k in range(count)]
        leaves: list[tuple[str, Any]] = []
        _leaves(capture.rebuild(tuple(places), (sample.args, sample.kwargs)), "result", leaves, [])
        upstream = self._flat_upstream(places, [leaf for _, leaf in leaves]) if sample.trains else None
        inputs = sample.flat_copies()
        found = bounds_of(module, inputs, upstream=upstream, seed=sample.seed, height=height)
        if found.reason:
            return found
        rest = len(found) - count
        spread = [
            tuple(
                [values[leaf.number] if isinstance(leaf, _Place) else None for _, leaf in leaves]
                + list(values[len(values) - rest :] if rest else ())
            )
            for values in (found.exact, found.bound)
        ]
        return Bounds(spread[0], spread[1])

    def _flat_upstream(self, places: list[_Place], leaves: list[Any]) -> list[Any]:
        """The upstream gradient of each flat result that is differentiable: summed up where it is returned twice."""
        remaining = iter(self.sample.upstream)
        found: dict[int, Any] = {}
        for leaf, value in zip(leaves, self.reference_requires_grad(), strict=True):
            if not value or not isinstance(leaf, _Place):
                continue
            tangent = next(remaining, None)
            if tangent is not None:
                before = found.get(leaf.number)
                found[leaf.number] = tangent if before is None else before + tangent
        wanted = [place.number for place in places if place.number in self._differentiable(leaves)]
        return [found.get(number) for number in wanted]

    def reference_requires_grad(self) -> list[bool]:
        """For each leaf of the results, whether it is differentiable."""
        if not hasattr(self, "_grads"):
            seen: list[bool] = []

            def watching(*args: Any, **kwargs: Any) -> Any:
                result = self.sample.fn(*args, **kwargs)
                leaves: list[tuple[str, Any]] = []
                _leaves(result, "result", leaves, [])
                seen.extend(isinstance(x, torch.Tensor) and x.requires_grad for _, x in leaves)
                return result

            self.sample.observe(watching)
            self._grads = seen
        return self._grads

    def _differentiable(self, leaves: list[Any]) -> set[int]:
        pairs = zip(leaves, self.reference_requires_grad(), strict=True)
        return {leaf.number for leaf, wanted in pairs if wanted and isinstance(leaf, _Place)}

    def judge(self, call: Callable[..., Any], exact: bool, height: int = 0) -> Agreement:
        """Observe a call, and compare: bit for bit first, then, if that is not asked for, with the bounds."""
        seen = self.sample.observe(call)
        found = seen.against(self.reference)
        if exact or found.identical and found.agrees:
            return found
        return seen.against(self.reference, self.bounds(height).bound or None)

    def regional(self, call: Callable[[list[torch.Tensor]], Any]) -> Callable[..., Any]:
        """What maps flat inputs to flat results, as a function like the user's."""
        capture = self.sample.capture

        def run(*args: Any, **kwargs: Any) -> Any:
            result = call(capture.bind(args, kwargs))
            flat = tuple(result) if isinstance(result, (tuple, list)) else (result,)
            return capture.rebuild(flat, (args, kwargs))

        return run

    def compiled(self, backend: str, strict: bool = False) -> Any:
        """The function compiled anew."""
        search = self.search
        return compiled_for(
            self.sample.fn, backend=backend, options=search.changed_options(), dynamic=search.options.dynamic,
            strict_native=strict,
        )  # fmt: skip

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
                self.search.uncovered = _first_line(found)
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
        if inexact or attention:
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
            return _failed(failed, difference)
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
            return _failed(failed, difference)
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
            return _failed(failed, difference)
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
            return replace(_failed(failed, difference), half="backward")
        return self._levels(half, difference)

    def _levels(self, half: Half, difference: Difference | None) -> Culprit | None:
        """The first level of a half that is wrong, by bisection; None if the last is right."""
        levels = back_end.LEVELS
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


def advance_half(compilation: Any) -> None:
    """The stages of a backward half that have not run: those after the operators."""
    from .staging import LAST, STAGES, run

    names = [stage.name for stage in STAGES if not stage.option]
    for name in names[names.index("operators") + 1 : names.index(LAST) + 1]:
        if name not in compilation.records:
            run(compilation, name)


def made_before(stage: str) -> tuple[str, ...]:
    """The stages that run before one of the two that are looked at here, and it."""
    return ("capture", "transforms") if stage == "transforms" else ("joint", "partition", "operators")


class _Place:
    """Stands for the flat result with this number."""

    def __init__(self, number: int):
        self.number = number


#: What :func:`staxlab.compile` takes beside its ``options``.
_BESIDE = frozenset({"extra", "backend", "mode", "dynamic", "strict_native", "outside"})


def _held(exact: bool) -> str:
    return "bit for bit" if exact else "rounding"


def _difference(found: Agreement | Exception | None) -> Difference | None:
    if isinstance(found, Agreement):
        return found.difference
    return Difference("results", what=f"it raises {type(found).__name__}: {_first_line(found)}") if found else None


def _failed(failed: StageFailed, difference: Difference | None) -> Culprit:
    layer = failed.stage if failed.stage != "validation" else "kernels"
    where = getattr(failed.error, "where", None)
    return Culprit(layer, "the stage ends in an error", failed.reason, difference, (where,) if where else ())


def _halves(compilation: Any) -> list[tuple[str, Any]]:
    return list(compilation.backward_halves()) if hasattr(compilation, "backward_halves") else []


def _kernels_of(compilation: Any) -> Any:
    return getattr(compilation, "compiled_kernels", ())
