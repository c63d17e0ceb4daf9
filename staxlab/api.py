"""The public entry points: :func:`compile`, :func:`explain` and :func:`trace`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .compilation import Compilation
from .errors import OptionError
from .options import DeviceSpec, Options, device_spec, nearest
from .pipeline import compile_backward, compile_region
from .specialize.compiled_module import compiled_module, uncompiled
from .specialize.dispatch import Dispatcher


def compile(
    fn: Callable | torch.nn.Module | None = None,
    *,
    backend: str | Callable[..., Any] = "stax",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    dynamic: bool = False,
    strict_native: bool = False,
    **unknown: Any,
) -> Any:
    """Compile a function or module: specialized, fused kernels at the first call for each kind of input.

    Usable as a decorator, with or without arguments. The result is called like ``fn`` and gives eager's values, within
    the rounding-error bound of Section 6.5 for reductions. A module stays a module, with the same parameters and
    attributes (:class:`.specialize.compiled_module.CompiledModule`). The result has ``.versions`` (each with ``.key``,
    ``.guards`` and ``.compilation``), ``.recompiles`` (a list of reasons), ``.cache_info()`` and ``.reset()``.

    backend        "stax" (kernels), a prefix of the pipeline: "aot_eager", "eager" (Section 11.4), another name of
                   ``staxlab.list_backends()``, or a backend itself: a function from a graph and example inputs to a
                   callable (:func:`staxlab.register_backend`)
    mode, options  presets (Table 11.1, ``staxlab.modes``) and single settings, see :class:`staxlab.options.Options`
    dynamic        one version for all shapes of a rank (Section 2.2). Code that reads a shape, a length or strides
                   still makes a version for each. Kernels with symbolic sizes are not there yet: such a version runs
                   operator by operator, with a FallbackWarning
    strict_native  raise LoweringError where an operator would run through the fallback: one that no lowering rule
                   covers. Library calls are no fallback: matmul, convolution, sort and their kind run as
                   PyTorch's own routines on purpose, and are accepted

    Raises OptionError for an unknown backend, mode or option, or a value that is not allowed, at once; what compiling
    raises, at the first call.
    """
    if unknown:
        raise _unknown_parameter("compile", next(iter(unknown)), _own_parameters(compile))
    resolved = Options.resolve(
        backend=backend, mode=mode, options=options, dynamic=dynamic, strict_native=strict_native
    )
    if fn is None:
        return functools.partial(
            compile, backend=backend, mode=mode, options=options, dynamic=dynamic, strict_native=strict_native
        )
    _require_callable("compile", fn)
    dispatcher = Dispatcher(uncompiled(fn), functools.partial(compile_here, resolved, {}), resolved)
    return compiled_module(dispatcher) if isinstance(fn, torch.nn.Module) else dispatcher


def compile_here(
    options: Options,
    warned: dict,
    function: Callable,
    args: tuple,
    kwargs: dict[str, Any],
    key: Any,
    *,
    derivative: str | None = None,
) -> Compilation:
    """Compile for the device the arguments are on. ``warned`` and ``derivative`` as for :func:`compile_region`."""
    target = _target_of((function, args, kwargs))
    device = device_spec(target, options)
    return compile_region(
        function, args, kwargs, options, device, target=target, key=key, warned=warned, derivative=derivative
    )


def _require_callable(name: str, fn: Any) -> None:
    if not callable(fn):
        example = "(f)" if name == "compile" else "(f, x)"
        raise OptionError(
            f"staxlab.{name} takes a function or module first, got {type(fn).__name__}",
            remedy=f"staxlab.{name}{example}"
            + ("" if name == "compile" else ", where the function's own arguments follow it"),
        )


def _own_parameters(function: Callable) -> list[str]:
    """The names a function of ours may be given."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]


#: Parameters of torch.compile that have no meaning here, and why.
FOREIGN = {
    "fullgraph": "a region is always captured whole",
    "disable": "leave the decorator out",
    "verbose": "staxlab.explain shows every stage",
}


def _unknown_parameter(name: str, given: str, known: Iterable[str]) -> OptionError:
    what = f"staxlab.{name} has no parameter {given!r}"
    if given in FOREIGN:
        return OptionError(what, remedy=f"leave it out: {FOREIGN[given]}")
    if given in Options.names():
        return OptionError(f"{what}, but an option of that name", remedy=f"options={{{given!r}: ...}}")
    meant = {"strict": "strict_native", "device": "target"}.get(given)
    if meant in known:
        return OptionError(f"{what}; did you mean {meant!r}? (known: {', '.join(known)})")
    return OptionError(what + nearest(given, known))


def _check_call(name: str, fn: Callable, args: tuple, kwargs: dict[str, Any]) -> None:
    """Refuse, before anything is compiled, a keyword that neither ``fn`` nor the function of ours knows."""
    _require_callable(name, fn)
    try:
        parameters = inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn).parameters
    except (TypeError, ValueError):
        return  # a builtin without a signature: the call itself will tell
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    for given in kwargs:
        if given not in parameters:
            own = _own_parameters(globals()[name])
            error = _unknown_parameter(name, given, own)
            whose = getattr(fn, "__name__", None) or type(fn).__name__
            takes = ", ".join(parameters) or "nothing"
            raise OptionError(f"{error.what}; and {whose} takes {takes}", remedy=error.remedy)


def explain(
    fn: Callable | torch.nn.Module,
    *args: Any,
    target: str | None = None,
    backend: str | Callable[..., Any] = "stax",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    strict_native: bool = False,
    **kwargs: Any,
) -> Compilation:
    """Compile ``fn`` for the given arguments and return the record of every stage.

    ``target`` is "cpu", "cuda", or an architecture such as "sm_90", for which Triton source is generated (and compiled
    to PTX and SASS on demand) without a GPU; by default the device the arguments are on. The sample runs on the
    arguments' own device whatever the target is. ``strict_native`` is that of :func:`compile`.

    Where an input or parameter requires grad, the records are those of the forward half (``joint`` and ``partition``
    among them), and ``compilation.backward`` is the compilation of the backward half. To see the kernels of a model
    that only infers, ask under ``torch.no_grad()``.

    Raises as :func:`compile` and its first call do; OptionError for a keyword that neither this function nor ``fn``
    knows.
    """
    fn = uncompiled(fn)
    _check_call("explain", fn, args, kwargs)
    resolved = Options.resolve(backend=backend, mode=mode, options=options, strict_native=strict_native)
    here = _target_of((fn, args, kwargs))
    chosen = target or here
    device: DeviceSpec = device_spec(chosen, resolved)

    def build(function: Callable, args: tuple, kwargs: dict[str, Any], key: Any) -> Compilation:
        compilation = compile_region(
            function, args, kwargs, resolved, device, target=chosen, runnable=chosen == here, key=key
        )
        if compilation.partition is not None and not compilation.fallback:
            compile_backward(compilation)
        return compilation

    return Dispatcher(fn, build, resolved).specialize(*args, **kwargs).compilation


def trace(fn: Callable | torch.nn.Module, *args: Any, execute: bool = True, **kwargs: Any) -> Any:
    """Record ``fn`` on sample arguments without compiling it (Section 3). ``execute=False`` is purely symbolic and
    raises CaptureError at control flow that depends on data."""
    from .capture.tracer import trace as capture

    fn = uncompiled(fn)
    _check_call("trace", fn, args, kwargs)
    return capture(fn, args, kwargs, execute=execute, options=Options())


def _target_of(structure: Any) -> str:
    """ "cuda" if a tensor or module among the arguments is on a GPU, else "cpu"."""
    found: dict[str, None] = {}

    def visit(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found[value.device.type] = None
        elif isinstance(value, torch.nn.Module):
            for tensor in (*value.parameters(), *value.buffers()):
                visit(tensor)
        elif isinstance(value, dict):
            for part in value.values():
                visit(part)
        elif isinstance(value, (tuple, list)):
            for part in value:
                visit(part)

    visit(structure)
    return "cuda" if "cuda" in found else "cpu"
