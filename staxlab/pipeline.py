"""The pipeline: what every stage does, and what runs them.

:data:`staxlab.compilation.STAGES` is the only place that knows the order::

    capture -> transforms -> operators -> loops -> schedule -> kernels -> wrapper -> artifact

A region that is differentiated goes through ``joint`` and ``partition`` before ``operators``, which is then the forward
half; the backward half is a compilation of its own, made when it is first needed (Section 5.6). With the option
``validate``, ``validation`` stands before ``artifact``: kernels are compared with what their loops mean (Section 6.9).

A stage is one function from the records made so far to the next record. Backends are prefixes of the list (Section
11.4): ``eager`` runs the transformed graph, ``aot_eager`` the operator graph, ``stax`` all of it, so a wrong value can
be blamed on a layer by shortening the prefix. An outside backend is given the graph a prefix ends with, in the stage
``outside``. The timing split, the explorer and the error locator iterate the list.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from .around_calls import as_recorded, counting_writes, outside_autocast, recorded, set_version, writes_uncounted
from .capture.module import GraphModule
from .capture.subscripts import ExplainingInterpreter, explain, has_subscripts
from .compilation import RESTORABLE, STAGES, Compilation, Fallback, Stage
from .errors import (
    BuildError,
    ConstraintError,
    MissingDependencyError,
    OptionError,
    ValidationError,
)
from .fallbacks import announce, extern_buffers, failure, obstacle, warn_about_fallbacks
from .instances import Instances
from .options import DeviceSpec, Options, device_spec
from .remarks import stage_ended
from .runtime.collector import only_new_objects
from .runtime.graphs import graphed_call

# -- the stages -------------------------------------------------------------------------------------------------------


def _capture(compilation: Compilation) -> Any:
    from .capture.tracer import trace

    args, kwargs = compilation.arguments
    return trace(compilation.function, args, kwargs, options=compilation.options)


def _transforms(compilation: Compilation) -> Any:
    from .transform import transform

    options = compilation.options
    by_autograd = options.last_stage == "transforms" and compilation.trains  # differentiated any number of times
    if compilation.derivative or options.double_backward or by_autograd or options.outside:
        # Attention without its matrix of scores has one derivative, in reverse mode, and kernels of ours alone.
        options = replace(options, attention="off")
    return transform(compilation.capture, options, general=_attention_operator)


def _attention_operator(*args: Any) -> Any:
    from .attention.recorded import attention_operator

    return attention_operator(*args)


def _joint(compilation: Compilation) -> Any:
    from .autodiff.joint import joint_graph
    from .runtime.plan_basis import basis

    return joint_graph(_front_end(compilation), compilation.sample, compilation.options, basis=basis())


def _front_end(compilation: Compilation) -> GraphModule:
    """The graph that the back end is given."""
    return compilation.source or compilation.transforms.final


def _partition(compilation: Compilation) -> Any:
    from .autodiff.partition import partition
    from .runtime.plan_basis import kind_of

    return partition(compilation.joint, compilation.options, kind_of=kind_of())


def _operators(compilation: Compilation) -> Any:
    from .operators.record import record
    from .runtime.plan_basis import basis

    if compilation.partition is not None:
        return compilation.partition.forward
    if compilation.derivative is not None:
        from .autodiff import forward_mode

        graph_of = {"jvp": forward_mode.jacobian_vector_graph, "hvp": forward_mode.hessian_vector_graph}
        count = len(compilation.sample)
        half = (count - len(compilation.capture.free_places)) // 2
        tangents = {place: place + half for place in range(count - 2 * half, count - half)}
        return graph_of[compilation.derivative](
            compilation.transforms.final, compilation.sample, tangents, basis=basis()
        )
    return record(_front_end(compilation), compilation.sample, compilation.options, basis=basis())


def _loops(compilation: Compilation) -> Any:
    from .loops.lowering import lower

    return lower(compilation.operators, compilation.device, compilation.options)


def _schedule(compilation: Compilation) -> Any:
    from .schedule.dependencies import schedule

    return schedule(compilation.loops, compilation.device, compilation.options, compilation.owned_inputs)


def _kernels(compilation: Compilation) -> Any:
    if compilation.device.is_gpu:
        from .codegen.triton import generate
    else:
        from .codegen.cpp import generate
    return generate(compilation.schedule, compilation.options, compilation.device)


def _wrapper(compilation: Compilation) -> Any:
    from .codegen.wrapper import generate_wrapper

    return generate_wrapper(compilation.schedule, compilation.kernels, compilation.options)


def _validation(compilation: Compilation) -> Any:
    from .measure.validation import user_lines, validate, whole_region
    from .runtime.build import build

    launchers = build(compilation.kernels, compilation.options, compilation.device)
    sample = compilation.sample and [*compilation.sample, *_tensor_constants(compilation)]
    lines = user_lines(compilation.operators.graph)
    found = validate(compilation.schedule, compilation.kernels, launchers, sample, lines).require()
    call = _artifact(compilation).call
    return whole_region(found, compilation.schedule, compilation.kernels, launchers, call, sample).require()


def _artifact(compilation: Compilation) -> Any:
    from .restoring import plan_of
    from .runtime.artifact import load
    from .runtime.build import build
    from .runtime.plan import keep
    from .runtime.program import program_of

    plan = compilation.plan or plan_of(compilation)
    launchers = build(plan.kernels, compilation.options, compilation.device)
    artifact = load(plan.wrapper, launchers, *program_of(plan.recipe, plan.kernels, launchers))
    if not compilation.restored:
        keep(plan, compilation.operators, compilation.device, compilation.name)
    return artifact


def _outside(compilation: Compilation) -> Any:
    from .backends.delegate import delegate

    return delegate(compilation)


# What each of the STAGES does: from the compilation's earlier records to its own.
RUN: dict[str, Callable[[Compilation], Any]] = {
    "capture": _capture, "transforms": _transforms, "joint": _joint, "partition": _partition, "operators": _operators,
    "loops": _loops, "schedule": _schedule, "kernels": _kernels, "wrapper": _wrapper,
    "validation": _validation, "artifact": _artifact, "outside": _outside,
}  # fmt: skip

# Up to here a failure is the user's or the capture's; beyond, the region can still run as a captured graph.
FRONT_END = ("capture", "transforms")


def compile_region(
    function: Callable,
    args: tuple,
    kwargs: dict[str, Any],
    options: Options,
    device: DeviceSpec,
    *,
    target: str = "cpu",
    runnable: bool = True,
    key: Any = None,
    warned: dict | None = None,
    derivative: str | None = None,
) -> Compilation:
    """Run the stages of ``options.backend`` on a function and sample arguments.

    ``key`` is the specialization key the result will hold for. ``runnable=False`` stops before the artifact (a target
    that is not here). ``warned`` remembers which warnings were shown; one for each compiled function.

    A failure after the graph has been transformed is a *backend* failure (Section 11.3): the captured graph is at hand
    and equivalent to the function, so the region runs operator by operator, with a FallbackWarning that says why. In
    strict mode the failure is raised instead.

    Raises CaptureError when the function cannot be recorded, LoweringError in strict mode where the fallback would run,
    BuildError without a compiler, and whatever the user's own function raises.
    """
    compilation = Compilation(
        name=getattr(function, "__name__", None) or type(function).__name__,
        target=target,
        options=options,
        device=device,
        key=key,
        function=function,
        arguments=(args, kwargs),
        derivative=derivative,
    )
    compilation.last = options.last_stage
    by_sizes = options.dynamic and not derivative and compilation.last not in FRONT_END
    if by_sizes:
        compilation.last = "transforms"  # the rest runs for each set of sizes
    if derivative and compilation.last == "transforms":
        compilation.last = "operators"
    if not runnable:
        compilation.last = _for_reading(compilation)
    try:
        with only_new_objects():
            _run_stages(compilation, STAGES, warned)
        if options.search_method and "artifact" in compilation.records and not compilation.fallback:
            _measure_products(compilation, warned)
    finally:
        # The sample belongs to the caller; a kept compilation must not keep the caller's tensors alive.
        compilation.sample = compilation.function = compilation.arguments = None
        if compilation.capture is not None:
            compilation.capture.rewind()  # recording ran the sample once more (Section 3.7)
            compilation.capture.release()
    compilation.executor = _executor(compilation, warned)
    if by_sizes and not compilation.fallback:
        compilation.executor = compilation.instances = Instances(functools.partial(_instance, compilation, warned))
    warn_about_fallbacks(compilation, warned)
    return compilation


def _instance(compilation: Compilation, warned: dict | None, inputs: list[torch.Tensor]) -> Compilation:
    """The back end of a version of dynamic mode for the sizes of these inputs. Random numbers that recording draws are
    drawn again by the call."""
    devices = sorted({x.device.index for x in inputs if x.device.type == "cuda"})
    module, trains = compilation.transforms.final, compilation.trains
    with torch.random.fork_rng(devices=devices):
        return _region_of(compilation, compilation.name, module, inputs, trains, warned)


def _region_of(
    of: Compilation, name: str, module: GraphModule, inputs: list[torch.Tensor], trains: bool, warned: dict | None
) -> Compilation:
    """A graph on these inputs through the stages from the operator graph on."""
    region = Compilation(name, of.target, of.options, of.device)
    region.source, region.last, region.sample, region.trains = module, of.options.last_stage, inputs, trains
    try:
        with only_new_objects():
            _run_stages(region, _after("transforms"), warned)
    finally:
        region.sample = None
    region.executor = _executor(region, warned)
    warn_about_fallbacks(region, warned)
    return region


def _measure_products(compilation: Compilation, warned: dict | None) -> None:
    """Under a search, keep of the ways of computing a region's products the one that is fastest on the sample."""
    from .runtime.autotune_launch import EventTimer
    from .runtime.autotune_products import choices_for, fastest

    device, options = compilation.device, compilation.options
    found: dict[str, Compilation] = {}
    for choice in choices_for(compilation.operators, compilation.loops, options, device):
        twin = Compilation(compilation.name, compilation.target, replace(options, matmul=choice), device)
        twin.records["operators"], twin.last, twin.sample = compilation.operators, "artifact", compilation.sample
        _run_stages(twin, _after("operators"), warned)
        if "artifact" in twin.records and not twin.fallback:
            found[choice] = twin
    if len(found) < 2 or not compilation.sample:
        return
    inputs = [*compilation.sample, *_tensor_constants(compilation)]
    runs = {choice: twin.artifact.call for choice, twin in found.items()}
    with torch.no_grad():
        chosen, decision, _ = fastest(runs, inputs, EventTimer(), subject=compilation.name)
    twin = found[chosen]
    twin.records["loops"] = replace(twin.loops, decisions=(*twin.loops.decisions, decision))
    compilation.records |= {name: twin.records[name] for name in twin.records if name != "operators"}


def _run_stages(compilation: Compilation, stages: tuple[Stage, ...], warned: dict | None) -> None:
    """Run these stages, up to the compilation's last."""
    for stage in _due(compilation, stages):
        if stage.name == "loops":
            from .restoring import look_up

            look_up(compilation, _run_stage)
            if compilation.restored:
                continue
        reason = _attempt(compilation, stage)
        if reason is not None:
            _fall_back(compilation, reason, warned)
            return


def _due(compilation: Compilation, stages: tuple[Stage, ...]) -> Iterator[Stage]:
    """Which of these stages run, one at a time: whether gradients are recorded is known once the first has run."""
    options = compilation.options
    done = all(stage.name != compilation.last for stage in stages)  # they all come after it
    for stage in stages:
        skipped = stage.differentiates and not compilation.trains
        skipped |= bool(stage.option) and not getattr(options, stage.option or "")
        skipped |= stage.name == "validation" and compilation.device.is_gpu
        skipped |= compilation.restored and stage.name in RESTORABLE
        if not skipped and (not done or stage.name == "outside"):
            yield stage
        done |= stage.name == compilation.last


def _for_reading(compilation: Compilation) -> str:
    """The last stage for a target that is not here. OptionError if nothing could be read of it."""
    if compilation.options.outside:
        raise OptionError(
            f"backend {compilation.options.backend!r} compiles for the device of its inputs, not for "
            f"{compilation.target!r}",
            remedy="leave target= out, or read the code of backend='stax'",
        )
    return "wrapper" if compilation.last == "artifact" else compilation.last


def _attempt(compilation: Compilation, stage: Stage) -> Fallback | None:
    """Run a stage. Returns why the region must run as a captured graph instead, or None if all is well."""
    try:
        _run_stage(compilation, stage)
    except (BuildError, ConstraintError, OptionError, MissingDependencyError, ValidationError):
        raise  # the user must act: no compiler, no Triton, a setting that does not exist, a wrong kernel
    except Exception as error:
        if stage.name in FRONT_END or compilation.options.strict_native:
            raise
        return failure(stage, error)
    if stage.name == "capture":
        compilation.sample = compilation.capture.samples
        compilation.trains = torch.is_grad_enabled() and any(map(_requires_grad, compilation.sample))
    if stage.name == "operators" and compilation.last == "artifact":
        _move_to(compilation, compilation.operators.home)
    if compilation.options.last_stage in FRONT_END:
        return None
    return obstacle(compilation, stage.name)


def _move_to(compilation: Compilation, home: torch.device) -> None:
    """Compile for the device the values are on. The arguments do not always tell: a function may find its tensors in a
    closure, or make them itself."""
    here = compilation.target.partition(":")[0]
    if {home.type, here} == {"cpu", "cuda"}:  # a named architecture stays
        compilation.target, compilation.device = home.type, device_spec(home.type, compilation.options)


def _run_stage(compilation: Compilation, stage: Stage) -> None:
    start = time.perf_counter()
    compilation.records[stage.name] = RUN[stage.name](compilation)
    compilation.timings[stage.name] = time.perf_counter() - start
    stage_ended(compilation, stage)


def _fall_back(compilation: Compilation, fallback: Fallback, warned: dict | None) -> None:
    announce(compilation, fallback, warned)
    if compilation.capture is not None and "transforms" not in compilation.records:
        _run_stage(compilation, STAGES[1])


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _executor(compilation: Compilation, warned: dict | None) -> Callable[[list[torch.Tensor]], Any] | None:
    """What runs when the compilation is called."""
    forward = _half_executor(compilation)
    if compilation.partition is None or compilation.fallback or forward is None:
        return forward
    from .autodiff.runtime import TrainingRegion
    from .autodiff.second_order import gradient_program
    from .autodiff.split import prune_tangents

    second = _second_order(compilation, warned) if compilation.options.double_backward else None
    return TrainingRegion(
        compilation.joint,
        forward,
        compilation.partition.places,
        lambda undefined: compile_backward(compilation, undefined, warned).executor,
        lambda undefined: _flat(prune_tangents(compilation.partition, undefined).module),
        second,
        gradient_program(compilation.joint.undecomposed).reads if second else (),
    )


def _second_order(compilation: Compilation, warned: dict | None) -> Callable[..., tuple[Any, ...]]:
    """The gradients of a region as a region of their own, traced and compiled when they are first differentiated, once
    for each layout, choice of inputs that require grad, and pattern of undefined upstream gradients."""
    from .autodiff.runtime import every_operation_counts
    from .autodiff.second_order import gradient_program

    joint = compilation.joint.undecomposed
    differentiable = [k for k, tangent in enumerate(joint.tangents) if tangent is not None]
    found: dict[Any, tuple[Compilation, tuple[int, ...]]] = {}

    def run(values: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, ...]:
        inputs = [*values, *(tangent for tangent in tangents if tangent is not None)]
        undefined = frozenset(k for k, t in zip(differentiable, tangents, strict=True) if t is None)
        if every_operation_counts(inputs):
            program = gradient_program(joint, undefined)
            return tuple(_spread(_flat(program.final)(inputs), program.places, len(joint.primals)))
        key = (undefined, tuple((x.requires_grad, x.stride()) for x in inputs))
        if key not in found:
            name = f"{compilation.name}, gradient"
            program = gradient_program(joint, undefined)
            region = _region_of(compilation, name, program.final, inputs, True, warned)
            compilation.gradients.append(region)
            found[key] = region, program.places
        region, places = found[key]
        return tuple(_spread(region.call(inputs), places, len(joint.primals)))

    return run


def compile_backward(
    compilation: Compilation, undefined: frozenset[int] = frozenset(), warned: dict | None = None
) -> Compilation:
    """The backward half of a training compilation through the stages from ``loops`` on (Section 5.6).

    ``undefined`` are the numbers of forward outputs to which no upstream gradient comes; the result is kept in
    ``compilation.backwards`` under them. Failures are treated as those of :func:`compile_region`.
    """
    from .autodiff.split import only_gradients, prune_tangents, saved_names

    half = Compilation(f"{compilation.name}, backward", compilation.target, compilation.options, compilation.device)
    half.records["operators"], places = only_gradients(prune_tangents(compilation.partition, undefined))
    half.last, graph = compilation.last, half.operators
    if not graph.write_backs and not has_subscripts(graph.module):  # nobody looks at the inputs afterwards
        half.owned_inputs = saved_names(graph, compilation.partition.places)
    with only_new_objects():
        _run_stages(half, _after("operators"), warned)
    run, count, owns = _half_executor(half), len(compilation.joint.primals), bool(half.owned_inputs)
    half.executor = run and (lambda inputs: _spread(run(inputs if owns else [*inputs]), places, count))
    warn_about_fallbacks(half, warned)
    compilation.backwards[undefined] = half
    return half


def _spread(gradients: Sequence[Any], places: Sequence[int], count: int) -> list[Any]:
    """One gradient, or None, for each of ``count`` primals."""
    found: list[Any] = [None] * count
    for place, gradient in zip(places, gradients, strict=True):
        found[place] = gradient
    return found


def _after(name: str) -> tuple[Stage, ...]:
    return STAGES[[stage.name for stage in STAGES].index(name) + 1 :]


def _half_executor(compilation: Compilation) -> Callable[[list[torch.Tensor]], Any] | None:
    """What runs a forward or backward half, or a region without halves, and says which subscript was out of range."""
    artifact = compilation.artifact
    if artifact is not None and not artifact.interpreted:
        return _in_one_entry(compilation)
    run = _runner(compilation)
    # A region without kernels explains itself.
    if run is None or artifact is None or not has_subscripts(compilation.operators.module):
        return run
    explanation = _explanation(compilation)

    def explained(inputs: list[torch.Tensor]) -> Any:
        try:
            return run(inputs)
        except (IndexError, RuntimeError) as error:
            found = explanation(error, inputs)
            if found is None:
                raise
            raise found from error

    return explained


def _in_one_entry(compilation: Compilation) -> Callable[[list[torch.Tensor]], Any]:
    """The program of a region together with what stands around a call: its constants, version counters, errors that say
    which subscript was out of range, and no autocast (what :func:`_runner` and :func:`_half_executor` do in Python)."""
    program, operators = compilation.artifact.call, compilation.operators
    constants = tuple(_tensor_constants(compilation))
    counts = tuple(writes_uncounted(operators))
    externs = bool(extern_buffers(compilation))
    may_fail = externs or any(kernel.launch.get("checks") for kernel in compilation.compiled_kernels)
    may_fail = may_fail and has_subscripts(operators.module)
    if constants or counts or externs or may_fail:
        explanation = _explanation(compilation) if may_fail else None
        outside = torch._C._DisableAutocast if externs else None
        program = program.bound(constants, explanation, counts or None, set_version, outside)
    return recorded(program, operators)


def _explanation(compilation: Compilation) -> Callable[[Exception, list[torch.Tensor]], Exception | None]:
    """From an error of a run and its inputs to the subscript that was out of range, None if the error is another."""
    operators = compilation.operators
    written = [node.args[0] for node in operators.write_backs]
    return lambda error, inputs: explain(error, operators.module, inputs, written)


def _runner(compilation: Compilation) -> Callable[[list[torch.Tensor]], Any] | None:
    if compilation.artifact is not None:
        call, constants, operators = graphed_call(compilation), _tensor_constants(compilation), compilation.operators
        run = (lambda inputs: call([*inputs, *constants])) if constants else call
        return counting_writes(as_recorded(run, operators) if extern_buffers(compilation) else run, operators)
    if compilation.outside is not None:
        run = compilation.outside.run
        if compilation.outside.division is None:
            return run
        return counting_writes(as_recorded(run, compilation.operators), compilation.operators)
    if compilation.source is not None and compilation.fallback_reason:
        return outside_autocast(_flat(compilation.source))
    if compilation.transforms is not None and not compilation.derivative:
        if compilation.last == "transforms" or compilation.fallback_reason:
            return _flat(compilation.transforms.final)
    if compilation.options.backend == "stax" and not compilation.fallback_reason:
        return None  # compiled for a target that is not here
    operators = compilation.operators
    return counting_writes(as_recorded(_flat(operators.module), operators), operators)


def _tensor_constants(compilation: Compilation) -> list[torch.Tensor]:
    """Tensors the operator graph holds as constants and the kernels read as further inputs, in the program's order."""
    module = compilation.operators.module
    constants = {node.name: module.constants[node.target] for node in module.graph if node.op == "get_attr"}
    placeholders = {node.name for node in module.graph.placeholders}
    plan = compilation.plan
    inputs = plan.inputs if plan is not None else [buffer.name for buffer in compilation.loops.inputs]
    return [constants[name] for name in inputs if name not in placeholders]


def _flat(module: GraphModule) -> Callable[[list[torch.Tensor]], tuple]:
    def run(inputs: list[torch.Tensor]) -> tuple:
        result = ExplainingInterpreter(module).run(*inputs)
        return result if isinstance(result, tuple) else (result,)

    return run
