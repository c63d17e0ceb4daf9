"""Data that a kernel is validated on: ordinary numbers, special ones, and subscripts up to the bounds.

A test is as good as its data. Six kinds are drawn, the same for the same kernel every time:

============  ==========================================================================================================
"positive"    between 0.5 and 1.5: nothing cancels, so a lost summand shows; integers from 1 to 5
"negative"    the same below zero, where the neutral element of a maximum shows
"ordinary"    normally distributed; integers of both signs
"whole"       multiples of 1/2 of both signs, most of them small, whose sums do not round: reordered sums have to be
              equal bit for bit, and a conversion that is missing shows
"special"     among ordinary numbers NaN, infinities, zeros of both signs, subnormal numbers and the extremes
"outside"     one subscript beyond its bound: kernel and semantics must both refuse it
============  ==========================================================================================================

Subscripts read at run time stay inside their dimension, and reach both of its ends, except in the last.
"""

from __future__ import annotations

import math

import torch

from ..loops.body import LoopBody, Statement

KINDS = ("positive", "negative", "ordinary", "whole", "special", "outside")


def subscript_bounds(body: LoopBody) -> dict[str, int]:
    """The buffers whose elements become run-time subscripts, with the size of the (least) dimension they index."""
    statements: dict[int, Statement] = {s.id: s for s in body.all_statements()}
    found: dict[str, int] = {}

    def trace(number: int, size: int) -> None:
        statement = statements[number]
        if statement.operation == "load":
            buffer = statement.args[0]
            found[buffer] = min(found.get(buffer, size), size)
        elif statement.operation == "masked":
            trace(statement.args[1].result, size)
        elif statement.operation not in ("constant", "index_value"):
            for operand in statement.args:
                if isinstance(operand, int) and not isinstance(operand, bool):
                    trace(operand, size)

    for statement in statements.values():
        if statement.operation == "indirect":
            trace(statement.args[0], int(statement.args[1].bounds().upper))
    return found


def draw(
    kind: str, dtype: torch.dtype, count: int, generator: torch.Generator, size: int | None = None, rarity: int = 4
) -> torch.Tensor:
    """``count`` elements of one kind, a flat storage. ``size``: they are subscripts of a dimension of that size. One
    element in ``rarity`` is special where some are."""
    if size is not None and not dtype.is_complex and dtype != torch.bool:
        return _subscripts(kind, dtype, count, generator, size)
    if dtype.is_complex:
        parts = draw(kind, torch.empty((), dtype=dtype).real.dtype, 2 * count, generator)
        return torch.view_as_complex(parts.reshape(count, 2))
    if dtype == torch.bool:
        return torch.rand(count, generator=generator) < 0.5
    if kind in ("positive", "negative"):
        if dtype.is_floating_point:
            found = torch.rand(count, generator=generator, dtype=torch.float64) + 0.5
        else:
            found = torch.randint(1, 6, (count,), generator=generator)
        return (found if kind == "positive" or not _signed(dtype) else -found).to(dtype)
    if not dtype.is_floating_point:
        lowest = -8 if _signed(dtype) else 0
        found = torch.randint(lowest, 9, (count,), generator=generator).to(dtype)
    elif kind == "whole":
        found = torch.randint(-4, 5, (count,), generator=generator).double() / 2
        large = torch.randint(-1023, 1024, (count,), generator=generator).double() / 2  # more digits than bfloat16 has
        found = torch.where(torch.randint(64, (count,), generator=generator) == 0, large, found).to(dtype)
    else:
        found = (torch.randn(count, generator=generator, dtype=torch.float64) * 2).to(dtype)
    if kind != "special" or not count:
        return found
    values = special_values(dtype)
    chosen = values[torch.randint(len(values), (count,), generator=generator)]
    rare = torch.randint(max(rarity, 1), (count,), generator=generator) == 0
    rare[0] = True
    return torch.where(rare, chosen, found)


def _signed(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or torch.iinfo(dtype).min < 0


def special_values(dtype: torch.dtype) -> torch.Tensor:
    """The numbers of a dtype at which operations differ from their general rule."""
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        return torch.tensor([0, 1, limits.max, limits.max - 1, limits.min, limits.min + 1], dtype=dtype)
    limits = torch.finfo(dtype)
    numbers = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, math.inf, -math.inf, math.nan, limits.max, -limits.max,
               limits.smallest_normal, -limits.smallest_normal / 4, limits.eps, 88.5, -88.5]  # fmt: skip
    return torch.tensor(numbers, dtype=torch.float64).to(dtype)


def _subscripts(kind: str, dtype: torch.dtype, count: int, generator: torch.Generator, size: int) -> torch.Tensor:
    """Positions of a dimension, negative ones (from the end) too except where numbers are to be positive."""
    signed = _signed(dtype)
    lowest = 0 if kind == "positive" or not signed else -size
    found = torch.randint(lowest, max(size, 1), (count,), generator=generator)
    if count > 1 and size:
        found[0], found[1] = lowest, size - 1
    if kind == "outside" and count:
        found[count // 2] = size if int(torch.randint(2, (), generator=generator)) or not signed else -size - 1
    return found.to(dtype)
