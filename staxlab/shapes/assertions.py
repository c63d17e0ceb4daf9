"""Run-time assertions of an exported program (Section 10.2): what its graph checks before it computes.

They are ordinary functions that the graph's nodes call, so that a listing shows every condition the program rests on.
Each raises ConstraintError with the sizes it found.
"""

from __future__ import annotations

import builtins

import torch

from ..errors import ConstraintError


def assert_dim_range(tensor: torch.Tensor, dimension: int, lower: float, upper: float, name: str) -> None:
    """Size ``dimension`` of ``tensor``, declared as ``name``, lies in [lower, upper]."""
    size = tensor.shape[dimension]
    if not lower <= size <= upper:
        raise ConstraintError(
            f"{name} is {size}, and the program was exported for {range_text(name, lower, upper)}",
            remedy="export it for a wider range, or call the function itself",
        )


def assert_dim_multiple(tensor: torch.Tensor, dimension: int, factor: int, name: str) -> None:
    """Size ``dimension`` of ``tensor`` is a multiple of ``factor``."""
    size = tensor.shape[dimension]
    if size % factor:
        raise ConstraintError(
            f"{name} is {size}, and the program was exported for multiples of {factor}",
            remedy="pad the input, or export without multiple_of",
        )


def assert_dims_equal(tensor: torch.Tensor, dimension: int, other: torch.Tensor, its: int, name: str) -> None:
    """Two dimensions declared as one ``name`` have one size."""
    size, first = tensor.shape[dimension], other.shape[its]
    if size != first:
        raise ConstraintError(
            f"{name} is {first} in one input and {size} in another, and they were declared to be the same",
            remedy="give the two dimensions names of their own if they may differ",
        )


def assert_shape_guard(value: bool, expected: bool, text: str) -> None:
    """A relation between sizes that the program relies on and no declaration implies."""
    if bool(value) is not expected:
        raise ConstraintError(
            f"the sizes of this call do not satisfy {text}, which the exported program relies on",
            remedy="export again with a sample of such sizes, or call the function itself",
        )


def assert_stated(value: bool, error: str, message: str) -> None:
    """What the program states about a size that depends on data (``torch._check``): the exception is the program's."""
    if not value:
        kind = getattr(builtins, error, None)
        raise (kind if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError)(message)


def range_text(name: str, lower: float, upper: float) -> str:
    """``n in [2, 4096]``, or ``n >= 2`` without an upper bound."""
    return f"{name} >= {lower}" if upper == float("inf") else f"{name} in [{lower}, {upper}]"
