"""The cases of Tables 13.1 and 13.2 as data: a function, its inputs, what the byte model says, what was reported.

``eager`` and ``compiled`` are the model's element counts in terms of ``N`` (elements of the input) and ``n`` (rows),
each a pair of coefficients; the tests hold them against the byte model run on the recorded operators. ``compiled`` is
what one pass over memory allows, the lower bound of Proposition 1.1; what the compiler really made of a case is counted
from its kernels (:mod:`.reproduce`), and may be more.

:class:`Reported` holds the figures that the text of Section 13.2 names, measured on 4 cores of another machine. They
are there to be set beside one's own, not to be reached: a machine with another bandwidth per core has other times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

Coefficients = tuple[int, int]  # a*N + b*n elements


@dataclass(frozen=True)
class Reported:
    """What the text says of a case: the byte ratio it counts, the speedups of its rounds (A, B) as far as it names
    them, and the rest in words."""

    rho: float | None = None
    speedups: tuple[float | None, ...] = ()
    remark: str = ""

    def speedup_text(self) -> str:
        """``4.91 / 3.95``; a dash for what the text does not name."""
        return " / ".join("–" if s is None else f"{s:.2f}" for s in self.speedups) or "–"


@dataclass(frozen=True)
class Case:
    """One row of a table.

    ``function`` takes tensors of shape (rows, columns), as many as ``inputs``, or what ``make`` makes of rows, columns
    and a generator. ``operations`` per element of the input counts as ``loops.ops.OPERATIONS`` does.
    """

    name: str
    title: str
    table: str
    function: Callable[..., Any]
    eager: Coefficients
    compiled: Coefficients
    operations: int
    inputs: int = 1
    size: tuple[int, int] = (8192, 2048)
    make: Callable[[int, int, torch.Generator], list[torch.Tensor]] | None = None
    reported: Reported = field(default_factory=Reported)

    def make_inputs(self, size: tuple[int, int], dtype: torch.dtype, device: str, seed: int = 0) -> list[torch.Tensor]:
        """Standard normal tensors of ``size``, the same for every peer and every run of one seed. ``dtype`` is that of
        the floating-point ones."""
        generator = torch.Generator().manual_seed(seed)
        if self.make is None:
            made = [torch.randn(*size, generator=generator) for _ in range(self.inputs)]
        else:
            made = self.make(*size, generator)
        return [t.to(device, dtype if t.is_floating_point() else t.dtype) for t in made]

    def elements(self, side: str, size: tuple[int, int]) -> int:
        """Elements moved by the "eager" or "compiled" side, by the formula."""
        a, b = self.eager if side == "eager" else self.compiled
        return a * size[0] * size[1] + b * size[0]

    def scaled(self, scale: float) -> tuple[int, int]:
        """The case's size with ``scale`` times as many rows, at least one. Rows keep their length, on which the quality
        of a kernel depends. ValueError unless ``scale`` is positive."""
        if not scale > 0:
            raise ValueError(f"a scale is positive, not {scale}")
        return max(round(self.size[0] * scale), 1), self.size[1]


def example_1_1(x, w):
    return (torch.relu(x + w) * 2).sum(-1)


def example_7_1(x):
    return x / x.sum(-1, keepdim=True)


def example_7_2(x):
    return x.exp().sum(-1), x.exp().amax(-1)


def softmax_of_operators(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def library_softmax(x):
    return torch.nn.functional.softmax(x, -1)


def pointwise_chain(x):
    return torch.relu(x * 2 + 1) * 0.5 - 3


def add(x, w):
    return x + w


def relu(x):
    return torch.relu(x)


def exp(x):
    return torch.exp(x)


def row_sum(x):
    return x.sum(-1)


def row_amax(x):
    return x.amax(-1)


#: What the text says of all single operators together.
SINGLE_OPERATORS = "the text has for single operators: eight of the ten values of S lie between 0.87 and 1.03"

CHAPTER_CASES: tuple[Case, ...] = (
    Case("example_1_1", "Example 1.1: (relu(x + w) * 2).sum(-1)", "13.1", example_1_1, (8, 1), (2, 1), 4, inputs=2,
         reported=Reported(4, (4.91, 3.95), "compiled at 80% of the bandwidth in round A, eager at 65%; both about 70% "
                           "in round B")),
    Case("example_7_1", "Example 7.1: x / x.sum(-1, keepdim=True)", "13.1", example_7_1, (3, 2), (2, 0), 2,
         reported=Reported(1.5)),
    Case("example_7_2", "Example 7.2: x.exp().sum(-1), x.exp().amax(-1)", "13.1", example_7_2, (6, 2), (1, 2), 22,
         reported=Reported(2, remark="counted for exp written to memory once: 6N against 3N elements")),
    Case("softmax_five_operators", "Softmax of five operators", "13.1", softmax_of_operators, (8, 4), (2, 0), 14,
         size=(16384, 1000), reported=Reported(4, (3.09, 2.26), "compiled at 35% of the bandwidth")),
    Case("softmax_library", "Library softmax", "13.1", library_softmax, (2, 0), (2, 0), 14, size=(16384, 1000),
         reported=Reported(1, (0.82,), "S is about that")),
    Case("pointwise_chain", "Chain of five pointwise operators", "13.1", pointwise_chain, (10, 0), (2, 0), 5),
    Case("add", "add", "13.2", add, (3, 0), (3, 0), 1, inputs=2, reported=Reported(1)),
    Case("relu", "relu", "13.2", relu, (2, 0), (2, 0), 1, reported=Reported(1)),
    Case("exp", "exp", "13.2", exp, (2, 0), (2, 0), 10, reported=Reported(1)),
    Case("row_sum", "row sum", "13.2", row_sum, (1, 1), (1, 1), 1,
         reported=Reported(1, (None, 0.63), "3.15 ms in one round and 1.36 ms in the other")),
    Case("row_amax", "row amax", "13.2", row_amax, (1, 1), (1, 1), 1, reported=Reported(1)),
)  # fmt: skip


def chapter_case(name: str) -> Case:
    """A case by name. KeyError for another."""
    for case in CHAPTER_CASES:
        if case.name == name:
            return case
    raise KeyError(f"no case named {name!r}; cases: {', '.join(case.name for case in CHAPTER_CASES)}")
