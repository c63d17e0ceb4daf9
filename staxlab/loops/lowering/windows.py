"""What pooling and its adjoint share: parameters for each dimension, tests of subscripts, the size of a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..expressions import Expr
from ..ops import Ops


def each(value: int | Sequence[int], count: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


def holds(ops: Ops, tests: Sequence[tuple[Expr, int, int]]) -> Any:
    """The conjunction of the tests; None if they hold whatever the subscripts are."""
    result = None
    for expression, low, high in tests:
        bounds = expression.bounds()
        value = ops.index_value(expression, torch.int64)
        for operation, limit, known in (("ge", low, low <= bounds.lower), ("lt", high, bounds.upper < high)):
            if not known:
                test = ops.apply(operation, value, ops.constant(limit, torch.int64))
                result = test if result is None else ops.logical_and(result, test)
    return result


def elements_in(
    ops: Ops, window: Expr, extent: int, size: int, step: int, padding: int, count: int, count_padding: bool
) -> Any:
    """How many elements a window has along a dimension: fewer at the ends, where it is cut."""
    start = window * step - padding
    last = (count - 1) * step - padding + size
    if last <= extent + (padding if count_padding else 0) and (count_padding or padding == 0):
        return ops.constant(size, torch.int64)
    low, high = ops.index_value(start, torch.int64), ops.index_value(start + size, torch.int64)
    high = ops.minimum(high, ops.constant(extent + padding, torch.int64))
    if not count_padding:
        low = ops.maximum(low, ops.constant(0, torch.int64))
        high = ops.minimum(high, ops.constant(extent, torch.int64))
    return ops.sub(high, low)


def product_of(ops: Ops, factors: Sequence[Any]) -> Any:
    result = factors[0]
    for factor in factors[1:]:
        result = ops.mul(result, factor)
    return result
