"""What an identity may change besides values: dtype, shape and memory (Section 4.2), each shown by running it.

Every :class:`Condition` is a program and the same program with the identity applied. Both are run; what they make
visible is written down; and the passes of Section 4 are run on the first, to see whether they leave the operation
alone. The last row is the opposite case: nothing but the value can be seen, and the operation goes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.tracer import trace
from ..transform import transform
from ..transform.operations import operation
from .tables import Table, Tabular


@dataclass(frozen=True)
class Condition:
    """One thing an identity can change: the two programs as text, what each shows, and what the passes did.

    ``kept`` says whether the operation is still in the graph after all passes.
    """

    name: str
    program: str
    rewritten: str
    shows: str
    rewritten_shows: str
    kept: bool

    @property
    def differs(self) -> bool:
        return self.shows != self.rewritten_shows


@dataclass(frozen=True)
class Conditions(Tabular):
    """The conditions under which an identity may be applied, with a counterexample for each."""

    conditions: tuple[Condition, ...]

    def table(self) -> Table:
        rows = [
            (c.name, c.program, c.shows, c.rewritten, c.rewritten_shows, "kept" if c.kept else "removed")
            for c in self.conditions
        ]
        columns = ("must stay", "program", "shows", "rewritten", "shows", "after the passes, the operation is")
        return Table.build("What an identity may change besides values (Section 4.2)", columns, rows, text_columns=6)


def _dtype(fn: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> str:
    return str(fn(*inputs).dtype).removeprefix("torch.")


def _shape(fn: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> str:
    return " x ".join(map(str, fn(*inputs).shape))


def _memory(fn: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> str:
    """What the caller finds in the input after adding 1 to the result in place."""
    inputs = tuple(tensor.clone() for tensor in inputs)
    fn(*inputs).add_(1)
    return f"the caller's x then holds {inputs[0].flatten()[0].item():g}"


def _value(fn: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> str:
    return f"sum {fn(*inputs).item():g}"


def conditions() -> Conditions:
    """The three conditions of Section 4.2, and a program for which all of them hold."""
    whole, x = torch.arange(4), torch.zeros(4)
    zeros = torch.zeros(4, 1)
    cases: tuple[tuple[Any, ...], ...] = (
        ("dtype", "x + 0.0, x of int64", lambda x: x + 0.0, "x", lambda x: x, _dtype, (whole,)),
        ("shape", "x + zeros(4, 1), x of shape 4", lambda x: x + zeros, "x", lambda x: x, _shape, (x,)),
        ("memory", "y = x * 1; the caller adds 1 to y", lambda x: x * 1, "y = x", lambda x: x, _memory, (x,)),
        ("(none concerned)", "(x.exp() * 1).sum()", lambda x: (x.exp() * 1).sum(), "x.exp().sum()",
         lambda x: x.exp().sum(), _value, (x,)),
    )  # fmt: skip
    shown = []
    for name, program, fn, rewritten, other, show, inputs in cases:
        calls = transform(trace(fn, inputs)).final.graph.calls
        kept = any(operation(node) in ("add", "mul") for node in calls)
        shown.append(Condition(name, program, rewritten, show(fn, *inputs), show(other, *inputs), kept))
    return Conditions(tuple(shown))
