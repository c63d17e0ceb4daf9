"""Subscripts of captured tensors that stay inside them (Section 9.10).

Ordinary kernels check a subscript that is data and report one that is out of range (Section 6.2). An attention kernel
cannot: it works on tiles, some of whose lanes are no score at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..loops.body import _Recorder
from ..loops.expressions import Expr

#: Operations of subscripts that leave them affine in b, h, q and kv, whose bounds are then attained.
_AFFINE: dict[str, Callable[..., Expr]] = {
    "to_dtype": lambda a: a,
    "neg": lambda a: -a,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
}


class ClampingRecorder(_Recorder):
    """Records subscripts read at run time so that they stay inside the array whatever the data say.

    A kernel works on tiles, some of whose lanes belong to no score or to one that a mask hides, and there a subscript
    may be anything. So where no proof shows that a subscript is in range, negative ones are turned round and the rest
    is brought into range, instead of checked: a visible score that reads out of range is an error in the reference
    (:mod:`.reference`), and reads the nearest element in a kernel, never memory that is not the tensor's.

    ``beyond`` are the subscripts that do not depend on data and leave the array for some score, with their origins.
    """

    def __init__(self, dtypes: Any):
        super().__init__(dtypes)
        self.beyond: list[tuple[str, Any]] = []

    def tagged(self, origins: Any) -> ClampingRecorder:
        twin = object.__new__(type(self))
        twin.__dict__ = dict(self.__dict__)
        twin.origins = origins
        return twin

    def indirect(self, value: Any, size: Expr, *, check: bool | None = True) -> Expr:
        extent = int(Expr.of(size))
        key = ("subscript", value.id, extent)
        if check is not None:
            index = self._expression(value.id)
            limits = index.bounds() if index is not None and index.affine(index.symbols) else None
            if limits is not None and not -extent <= limits.lower <= limits.upper < extent:
                reach = f"subscripts from {limits.lower} to {limits.upper}, in a dimension of {extent}"
                self.beyond.append((reach, self.origins))
            zero, count, last = (self.constant(n, torch.int64) for n in (0, extent, extent - 1))
            value = self.where(self.lt(value, zero), self.add(value, count), value)
            value = self.minimum(self.maximum(value, zero), last)
        # Reads at equal subscripts are one read, which the recorder can only see if their symbols are one.
        return self.once(key, lambda _: _Recorder.indirect(self, value, size, check=None))

    def _expression(self, number: int) -> Expr | None:
        """The subscript that a value is, in b, h, q and kv; None if it is anything else."""
        statement = next((s for scope in self.scopes for s in scope if s.id == number), None)
        if statement is None or statement.dtype == torch.bool or statement.dtype.is_floating_point:
            return None
        if statement.operation in ("index_value", "constant"):
            return Expr.of(statement.args[0])
        parts = [self._expression(part) for part in statement.args if type(part) is int]
        if statement.operation not in _AFFINE or None in parts:
            return None
        if statement.operation == "mul" and not any(part.is_constant for part in parts):
            return None
        return _AFFINE[statement.operation](*parts)


__all__ = ["ClampingRecorder"]
