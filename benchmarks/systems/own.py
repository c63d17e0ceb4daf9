"""staxlab, watched: one graph for each version, and whatever warnings it gives."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.systems.programs import BRANCH, Program, function_of
from benchmarks.systems.watching import first_line, torch_argument

name, title, library = "staxlab", "staxlab", "torch"
make = torch_argument
WITHOUT_VALUES = "trace(execute=False), a branch on data"


def missing() -> str | None:
    return None


def values(result: torch.Tensor) -> Any:
    return result.tolist()


class Taken:
    """A compiled function whose graphs run operator by operator, so that nothing but capture is watched."""

    def __init__(self, function: Callable[..., Any]):
        import staxlab

        self.call = staxlab.compile(function, backend="eager")

    def graphs(self) -> int:
        return self.call.cache_info().compilations


def take(program: Program, log: list[str]) -> Taken:
    return Taken(function_of(program.source, {"torch": torch, "log": log}, f"<{program.name}>"))


def keys(program: Program) -> list[str]:
    """What the first call's version is specialized to: its guards. Objects are numbered in the order they are met in,
    which says nothing here."""
    taken = take(program, [])
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        taken.call(*map(make, program.sequences[0][0]))
    return [re.sub(r" #\d+>", ">", str(guard)) for guard in taken.call.versions[0].guards]


def failures() -> dict[str, dict[str, str]]:
    """An operator that the backend has no rule for: by default, and under ``strict_native``. And a branch on data where
    proxies have no values."""
    import staxlab

    operator = unknown_operator()

    def f(x):
        return operator(x) + 1

    found = {}
    for setting, options in (("default", {}), ("strict_native=True", {"strict_native": True})):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                right = torch.equal(staxlab.compile(f, **options)(torch.ones(4)), torch.full((4,), 3.0))
                words = ", ".join(dict.fromkeys(warning.category.__name__ for warning in caught))
                found[setting] = {"outcome": "right" if right else "wrong value", "said": words}
            except staxlab.StaxError as error:
                found[setting] = {"outcome": type(error).__name__, "said": first_line(error)}
    branch = function_of(BRANCH, {"torch": torch}, "<branch>")
    try:
        staxlab.trace(branch, torch.ones(4), execute=False)
    except staxlab.StaxError as error:
        found[WITHOUT_VALUES] = {"outcome": type(error).__name__, "said": first_line(error)}
    return found


def unknown_operator() -> Callable[[torch.Tensor], torch.Tensor]:
    """An operator registered with PyTorch that no compiler has heard of: twice its argument."""
    if not hasattr(torch.ops.compared, "twice"):

        @torch.library.custom_op("compared::twice", mutates_args=())
        def twice(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        twice.register_fake(torch.empty_like)
    return torch.ops.compared.twice


def structure(rows: int, columns: int) -> dict[str, Any]:
    """How many operations the three functions have at first, and how many kernels in the end."""
    import staxlab
    from benchmarks.systems.timing import compared_cases

    found = {}
    for case in compared_cases():
        inputs = case.make_inputs((rows, columns), torch.float32, "cpu")
        compilation = staxlab.explain(case.function, *inputs)
        found[case.name] = {
            "operations": len(compilation.operators.graph.calls),
            "kernels": [kernel.name for kernel in compilation.kernels],
        }
    return found
