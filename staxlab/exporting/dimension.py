"""Dimensions that a caller declares variable (Section 10.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConstraintError
from ..options import nearest
from ..shapes.environment import LEAST_SYMBOLIC


@dataclass(frozen=True)
class Dim:
    """A named size in [min, max] (both included; ``max=None``: no bound), and a multiple of ``multiple_of``.

    Dimensions declared with one name are equal at every call. The least size is 2 unless another is given: at 1
    operations broadcast, and at 0 there are no elements (Proposition 10.2). Raises ConstraintError for a name that is
    no identifier, for an empty range, and for a range without a multiple.
    """

    name: str
    min: int = LEAST_SYMBOLIC
    max: int | None = None
    multiple_of: int = 1

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name.isidentifier()):
            raise ConstraintError(f"{self.name!r} is no name for a dimension", remedy='an identifier, such as Dim("n")')
        given = (self.min, self.multiple_of, *(() if self.max is None else (self.max,)))
        if not all(type(number) is int for number in given) or self.min < 0 or self.multiple_of < 1:
            raise ConstraintError(
                f"{self} must have whole numbers: min at least 0, multiple_of at least 1",
                remedy=f'Dim("{self.name}", min=2, max=4096)',
            )
        if self.max is not None and self.counts[0] > self.counts[1]:
            raise ConstraintError(f"{self} allows no size at all", remedy="a max that is not below min")

    @property
    def counts(self) -> tuple[int, float]:
        """The least and greatest number of multiples."""
        return -(-self.min // self.multiple_of), math.inf if self.max is None else self.max // self.multiple_of

    def __str__(self) -> str:
        parts = [repr(self.name), f"min={self.min}"]
        parts += [f"max={self.max}"] if self.max is not None else []
        parts += [f"multiple_of={self.multiple_of}"] if self.multiple_of != 1 else []
        return f"Dim({', '.join(parts)})"

    __repr__ = __str__


def declarations(dims: Any, names: list[str], paths: list[str], shapes: Mapping[str, tuple[int, ...]]) -> dict:
    """``dims`` as {(path, dimension): Dim}, checked against the sample.

    ``names`` are the parameters, which ``dims`` names or counts; ``paths`` those of all tensors among the arguments
    (``batch['x']``), which it may name as well. Raises ConstraintError for what is not there, and for a sample that a
    declaration excludes.
    """
    found: dict[tuple[str, int], Dim] = {}
    known: dict[str, Dim] = {}
    if not isinstance(dims, Mapping):
        kind = type(dims).__name__
        raise ConstraintError(f"dims must be a dictionary, not {kind}", remedy='dims={"x": {0: Dim("n")}}')
    for argument, declared in dims.items():
        path = names[argument] if type(argument) is int and -len(names) <= argument < len(names) else argument
        if path not in paths:
            raise ConstraintError(
                f"there is no tensor argument {argument!r}{nearest(str(path), paths)}",
                remedy=f"one of {', '.join(paths)}",
            )
        if not isinstance(declared, Mapping):
            raise ConstraintError(f"dims[{argument!r}] must be a dictionary", remedy='{0: Dim("n")}')
        rank = len(shapes[path])
        for dimension, row in declared.items():
            if type(dimension) is not int or not -rank <= dimension < rank or not isinstance(row, Dim):
                raise ConstraintError(
                    f"dims[{argument!r}] has {dimension!r}: {row!r}, and {path} has dimensions 0 to {rank - 1}",
                    remedy="a dimension's number and a Dim",
                )
            _check(row, known.setdefault(row.name, row), shapes[path][dimension % rank], path, dimension % rank)
            found[(path, dimension % rank)] = row
    return found


def _check(row: Dim, same: Dim, size: int, path: str, dimension: int) -> None:
    if same != row:
        raise ConstraintError(f"{row.name} is declared twice, as {same} and as {row}", remedy="one Dim for one name")
    fits = row.min <= size and (row.max is None or size <= row.max) and size % row.multiple_of == 0
    if not fits:
        raise ConstraintError(
            f"the sample has {path}.shape[{dimension}] == {size}, which {row} excludes",
            remedy="another sample, or another range",
        )
