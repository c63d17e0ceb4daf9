"""The public entry points: :func:`compile`, :func:`explain` and :func:`trace`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .errors import OptionError
from .options import DeviceSpec, Options, device_spec
from .pipeline import Compilation, compile_region
from .specialize.dispatch import Dispatcher


def compile(
    fn: Callable | torch.nn.Module | None = None,
    *,
    backend: str = "stax",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    dynamic: bool = False,
    strict_native: bool = False,
) -> Any:
    """Compile a function or module: specialized, fused kernels at the first call for each kind of input.

    Usable as a decorator, with or without arguments. The result is called like ``fn`` and gives eager's values, within
    the rounding-error bound of Section 6.5 for reductions. It has ``.versions`` (each with ``.key``, ``.guards`` and
    ``.compilation``), ``.recompiles`` (a list of reasons), ``.cache_info()`` and ``.reset()``.

    backend        "stax" (kernels), or a prefix of the pipeline: "aot_eager", "eager" (Section 11.4)
    mode, options  presets and single settings, see :class:`staxlab.options.Options`
    dynamic        one version for all shapes of a rank (Section 2.2). Code that reads a shape, a length or strides
                   still makes a version for each. Kernels with symbolic sizes are not there yet: such a version runs
                   operator by operator, with a FallbackWarning
    strict_native  raise LoweringError where an operator would run through the fallback

    Raises OptionError for an unknown backend, mode or option; what compiling raises, at the first call.
    """
    resolved = Options.resolve(
        backend=backend, mode=mode, options=options, dynamic=dynamic, strict_native=strict_native
    )
    if fn is None:
        return functools.partial(
            compile, backend=backend, mode=mode, options=options, dynamic=dynamic, strict_native=strict_native
        )
    if not callable(fn):
        raise OptionError(f"staxlab.compile takes a function or module, got {type(fn).__name__}")

    return Dispatcher(fn, functools.partial(_compile_here, resolved), resolved)


def _compile_here(options: Options, function: Callable, args: tuple, kwargs: dict[str, Any], key: Any) -> Compilation:
    """Compile for the device the arguments are on."""
    target = _target_of((function, args, kwargs))
    return compile_region(function, args, kwargs, options, device_spec(target, options), target=target, key=key)


def explain(
    fn: Callable | torch.nn.Module,
    *args: Any,
    target: str | None = None,
    backend: str = "stax",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    strict_native: bool = False,
    **kwargs: Any,
) -> Compilation:
    """Compile ``fn`` for the given arguments and return the record of every stage.

    ``target`` is "cpu", "cuda", or an architecture such as "sm_90", for which Triton source is generated (and compiled
    to PTX and SASS on demand) without a GPU; by default the device the arguments are on. The sample runs on the
    arguments' own device whatever the target is.

    Raises as :func:`compile` and its first call do.
    """
    resolved = Options.resolve(backend=backend, mode=mode, options=options, strict_native=strict_native)
    here = _target_of((fn, args, kwargs))
    chosen = target or here
    device: DeviceSpec = device_spec(chosen, resolved)

    def build(function: Callable, args: tuple, kwargs: dict[str, Any], key: Any) -> Compilation:
        return compile_region(
            function, args, kwargs, resolved, device, target=chosen, runnable=chosen == here, key=key
        )

    return Dispatcher(fn, build, resolved).specialize(*args, **kwargs).compilation


def trace(fn: Callable | torch.nn.Module, *args: Any, execute: bool = True, **kwargs: Any) -> Any:
    """Record ``fn`` on sample arguments without compiling it (Section 3). ``execute=False`` is purely symbolic and
    raises CaptureError at control flow that depends on data."""
    from .capture.tracer import trace as capture

    return capture(fn, args, kwargs, execute=execute, options=Options())


def _target_of(structure: Any) -> str:
    """"cuda" if a tensor or module among the arguments is on a GPU, else "cpu"."""
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
