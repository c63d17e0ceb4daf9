"""The tensor core language (Definition 6.5) as random programs, and their translation into loop programs.

Every value has the domain 4 x 4, so that any expression may stand anywhere. A program is a list of bindings; which of
them are written to memory is the translation's choice: a binding that is not is substituted wherever it is used, and
every occurrence of a reduction becomes a node of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from staxlab.loops.expressions import Expr
from staxlab.loops.ir import ComputedBuffer, InputBuffer, Layout, LoopProgram, OutputReference, Pointwise, Reduction

SIDE = 4
SHAPE = (SIDE, SIDE)
FLOAT = torch.float32
INPUTS = ("a", "b")
LAYOUT = Layout.contiguous(SHAPE, FLOAT, "cpu")
LAST = SIDE - 1

ARITY = {"neg": 1, "abs": 1, "relu": 1, "square": 1, "floor": 1, "add": 2, "sub": 2, "mul": 2, "truediv": 2,
         "maximum": 2, "minimum": 2}  # fmt: skip
VIEWS: dict[str, Callable[[Any, Any], tuple]] = {
    "transpose": lambda i, j: (j, i), "flip rows": lambda i, j: (LAST - i, j),
    "flip columns": lambda i, j: (i, LAST - j), "row 2": lambda i, j: (Expr.of(2), j),
    "column 0": lambda i, j: (i, Expr.of(0)), "diagonal": lambda i, j: (i, i),
}  # fmt: skip
# What a reduction reads for the element (i, j) of its result, at r.
REDUCED: dict[str, Callable[[Any, Any], tuple]] = {
    "rows": lambda i, r: (i[0], r[0]), "columns": lambda i, r: (r[0], i[1]), "all": lambda i, r: r,
}  # fmt: skip
MERGES = ("sum", "prod", "amax", "amin")


@dataclass(frozen=True)
class Var:
    name: str


@dataclass(frozen=True)
class Map:
    operation: str
    operands: tuple[Any, ...]


@dataclass(frozen=True)
class View:
    name: str
    of: Any


@dataclass(frozen=True)
class Red:
    kind: str
    along: str
    of: Any


Expression = Var | Map | View | Red
Program = tuple[tuple[str, Expression], ...]


def substitute(body: Expression, values: Mapping[str, Expression]) -> Expression:
    """``body[e/y]`` for every ``y: e``."""
    if isinstance(body, Var):
        return values.get(body.name, body)
    if isinstance(body, Map):
        return Map(body.operation, tuple(substitute(operand, values) for operand in body.operands))
    if isinstance(body, View):
        return View(body.name, substitute(body.of, values))
    return Red(body.kind, body.along, substitute(body.of, values))


def expressions(names: tuple[str, ...]) -> st.SearchStrategy[Expression]:
    """Expressions of a few nodes over variables of these names."""

    def grow(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
        maps = st.sampled_from(sorted(ARITY)).flatmap(
            lambda name: st.tuples(*[inner] * ARITY[name]).map(lambda operands: Map(name, operands))
        )
        reductions = st.builds(Red, st.sampled_from(MERGES), st.sampled_from(sorted(REDUCED)), inner)
        return st.one_of(maps, maps, st.builds(View, st.sampled_from(sorted(VIEWS)), inner), reductions)

    return st.recursive(st.sampled_from(names).map(Var), grow, max_leaves=4)


@st.composite
def programs(draw: Any) -> Program:
    """One to five bindings ``y0, y1, ...``; the last is what the program returns."""
    names, bindings = INPUTS, []
    for number in range(draw(st.integers(1, 5))):
        bindings.append((f"y{number}", draw(expressions(names))))
        names = (f"y{number}", *names)
    return tuple(bindings)


class Translation:
    """Collects the buffers of a loop program."""

    def __init__(self) -> None:
        self.buffers: list[ComputedBuffer] = []

    def load(self, name: str) -> Callable:
        return lambda ops, index: ops.load(name, SIDE * index[0] + index[1])

    def compute(self, body: Expression) -> Callable:
        """The compute function of an expression; its reductions are written to memory on the way."""
        if isinstance(body, Var):
            return self.load(body.name)
        if isinstance(body, Map):
            parts = [self.compute(operand) for operand in body.operands]
            return lambda ops, index: ops.apply(body.operation, *(part(ops, index) for part in parts))
        inner = self.compute(body.of)
        if isinstance(body, View):
            return lambda ops, index: inner(ops, VIEWS[body.name](*index))
        name = f"red{len(self.buffers)}"
        at = REDUCED[body.along]
        ranges = SHAPE if body.along == "all" else (SIDE,)
        data = Reduction(SHAPE, ranges, body.kind, FLOAT, FLOAT, lambda ops, i, r: inner(ops, at(i, r)))
        self.buffers.append(ComputedBuffer(name, LAYOUT, data))
        return self.load(name)

    def realize(self, name: str, body: Expression, dtype: torch.dtype = FLOAT) -> None:
        data = Pointwise(SHAPE, dtype, self.compute(body))
        self.buffers.append(ComputedBuffer(name, Layout.contiguous(SHAPE, dtype, "cpu"), data))


def loop_program(program: Program, inlined: frozenset[str] = frozenset(), result: str | None = None) -> LoopProgram:
    """The loop program that writes all bindings but ``inlined`` to memory. It returns ``result`` (the last)."""
    result = result or program[-1][0]
    translation = Translation()
    values: dict[str, Expression] = {}
    for name, body in program:
        body = substitute(body, values)
        if name in inlined and name != result:
            values[name] = body
        else:
            translation.realize(name, body)
    inputs = tuple(InputBuffer(name, LAYOUT) for name in INPUTS)
    return LoopProgram(inputs, tuple(translation.buffers), (OutputReference(result, LAYOUT),))


def environment(seed: int) -> dict[str, torch.Tensor]:
    """Inputs with special values among ordinary ones; an even seed gives ordinary ones only."""
    generator = torch.Generator().manual_seed(seed)
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-42, 3e38, -1.5])
    found = {}
    for name in INPUTS:
        values = torch.randn(SHAPE, generator=generator)
        chosen = special[torch.randint(len(special), SHAPE, generator=generator)]
        rare = torch.rand(SHAPE, generator=generator) < (0.3 if seed % 2 else 0.0)
        found[name] = torch.where(rare, chosen, values)
    return found


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal bit for bit; a NaN equals every NaN, of which IEEE 754 does not say which bits it has."""
    nan = one.isnan() & other.isnan()
    return bool((nan | (one.view(torch.int32) == other.view(torch.int32))).all())
