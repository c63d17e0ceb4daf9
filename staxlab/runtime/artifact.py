"""The loaded wrapper: what a compiled region is at run time (Sections 8.5 and 11.6)."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..codegen.kernel import Wrapper
from ..errors import BuildError
from .build_report import BuildReport

_numbers = itertools.count()


@dataclass(frozen=True)
class Artifact:
    """A region ready to run.

    ``call(inputs)`` takes the flat list of input tensors and returns the flat tuple of outputs. It is a
    :class:`staxlab.native.Program`, entered once whatever the region consists of, else the generated function
    ``wrapper_call`` itself; ``interpreted`` says why then (no extension, a GPU), and is empty otherwise. Nothing else
    stands between the dispatcher and the kernels.
    ``check(inputs)`` verifies shapes, strides and dtypes, which the specialization guards normally have done.
    ``cache_hits`` says per kernel whether it was found compiled, ``timings`` how many seconds building or loading it
    took; ``launchers`` are the callables that run the kernels, by name; ``build`` says which worker compiled what
    when (:class:`~staxlab.runtime.build_report.BuildReport`; None where nothing was built).
    """

    call: Callable[[list[Any]], tuple[Any, ...]]
    wrapper_call: Callable[[list[Any]], tuple[Any, ...]]
    interpreted: str
    check: Callable[[list[Any]], None]
    wrapper: Wrapper
    cache_hits: Mapping[str, bool] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    launchers: Mapping[str, Callable[..., Any]] = field(default_factory=dict, repr=False)
    build: BuildReport | None = field(default=None, repr=False)

    @property
    def searches(self) -> dict[str, Any]:
        """By kernel, how its launch configuration was found (:class:`~staxlab.runtime.autotune.Search`): of those that
        search for it (``options={"autotune": True}``) and have been called."""
        found = {name: getattr(launcher, "search", None) for name, launcher in self.launchers.items()}
        return {name: search for name, search in found.items() if search is not None}

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        return self.call(inputs)

    def __str__(self) -> str:
        kernels = ", ".join(f"{name} ({'cached' if hit else 'compiled'})" for name, hit in self.cache_hits.items())
        how = "one entry per call, in C"
        if self.interpreted:
            how = f"called through the Python wrapper: {self.interpreted}"
        searched = "".join(f"\n{name}: {search.decision}" for name, search in self.searches.items())
        return f"artifact: {kernels or 'no compiled kernels'}; {how}{searched}"


def load(
    wrapper: Wrapper, launchers: Mapping[str, Callable[..., Any]], program: Any = None, interpreted: str = ""
) -> Artifact:
    """Execute the wrapper module with its kernels in place; ``program`` does the same without the interpreter (or
    ``interpreted`` says why there is none). BuildError if the module does not define what it must."""
    file = f"<staxlab wrapper {next(_numbers)}>"
    # Tracebacks through the wrapper show its lines.
    linecache.cache[file] = (len(wrapper.source), None, wrapper.source.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": file, **wrapper.globals, **launchers}
    exec(compile(wrapper.source, file, "exec"), namespace)
    if "call" not in namespace or "check" not in namespace:
        raise BuildError("the generated wrapper defines no call()")
    return Artifact(
        namespace["call"] if program is None else program, namespace["call"], interpreted,
        namespace["check"], wrapper,
        getattr(launchers, "cache_hits", {}), getattr(launchers, "timings", {}), launchers,
        getattr(launchers, "report", None),
    )  # fmt: skip
