"""TorchDynamo, watched through a backend that does nothing but count the graphs it is given (Section 12.1)."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.systems.own import values
from benchmarks.systems.programs import Program, function_of
from benchmarks.systems.watching import first_line, silenced, torch_argument

name, title, library = "dynamo", "TorchDynamo", "torch"
make = torch_argument
LOGGERS = ("torch._dynamo", "torch._dynamo.convert_frame", "torch._dynamo.variables.tensor")

__all__ = ["failures", "keys", "library", "make", "missing", "name", "structure", "take", "title", "values"]


def missing() -> str | None:
    return None


class Taken:
    """A function under ``torch.compile``. Graphs run operator by operator, so that nothing but capture is watched."""

    def __init__(self, function: Callable[..., Any]):
        self.seen: list[int] = []  # operations of each graph
        torch.compiler.reset()
        self.compiled = torch.compile(function, backend=self.count)

    def count(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        self.seen.append(sum(node.op not in ("placeholder", "output") for node in graph.graph.nodes))
        return graph.forward

    def call(self, *args: Any) -> Any:
        with silenced(*LOGGERS):
            return self.compiled(*args)

    def graphs(self) -> int:
        return len(self.seen)


def take(program: Program, log: list[str]) -> Taken:
    return Taken(function_of(program.source, {"torch": torch, "log": log}, f"<{program.name}>"))


def keys(program: Program) -> list[str]:
    """What the first call's graphs are guarded by, as far as it is about the program's arguments and globals."""
    from torch import _dynamo

    torch.compiler.reset()
    plain = function_of(program.source, {"torch": torch, "log": []}, f"<{program.name}>")
    with silenced(*LOGGERS), contextlib.redirect_stdout(io.StringIO()):
        explained = _dynamo.explain(plain)(*map(make, program.sequences[0][0]))
    guards = explained.out_guards or ()
    own = {f"{guard.name}: {guard.create_fn_name()}" for guard in guards if guard.name.startswith(("L[", "G['log']"))}
    breaks = [f"graph break: {first_line(Exception(str(reason.reason)))}" for reason in explained.break_reasons]
    return sorted(own) + breaks


def failures() -> dict[str, dict[str, str]]:
    """A backend that raises: by default, and with errors suppressed. And a graph break where none is allowed."""
    from torch import _dynamo

    def refuses(graph: Any, inputs: Any) -> Any:
        raise NotImplementedError("no rule for this operator")

    def f(x):
        return x * 2 + 1

    def branches(x):
        return x * 2 if x.sum() > 0 else x - 1

    def tried(function: Callable[..., Any], wanted: float, **options: Any) -> dict[str, str]:
        torch.compiler.reset()
        try:
            with silenced(*LOGGERS):
                result = torch.compile(function, **options)(torch.ones(4))
        except Exception as error:
            return {"outcome": type(error).__name__, "said": " ".join(str(error).splitlines()[:2])}
        return {"outcome": "right" if bool((result == wanted).all()) else "wrong value", "said": ""}

    found = {"default": tried(f, 3.0, backend=refuses)}
    with _dynamo.config.patch(suppress_errors=True):
        found["suppress_errors=True"] = tried(f, 3.0, backend=refuses)
    found["fullgraph=True, a branch on data"] = tried(branches, 2.0, backend="eager", fullgraph=True)
    return found


def structure(rows: int, columns: int) -> dict[str, Any]:
    """The graphs that the three functions become, and their operations."""
    from benchmarks.systems.timing import compared_cases

    found = {}
    for case in compared_cases():
        taken = Taken(case.function)
        taken.call(*case.make_inputs((rows, columns), torch.float32, "cpu"))
        found[case.name] = {"graphs": taken.graphs(), "operations": sum(taken.seen)}
    return found
