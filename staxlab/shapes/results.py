"""Results of a padded call: where a size stands in them, and cutting it back to what it was.

A result is a tensor, or tuples, lists and dictionaries of results. Tensors are counted in the order in which they stand
there, and a declaration says of each which dimension has which size. A number among the results is refused: nothing
tells whether it would have been another one without the padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..errors import ConstraintError

# One result: a dimension with the size "n", dimensions with the names of their sizes, or None. Several: a list of them.
Declared = int | Mapping[int, str] | Sequence[int | Mapping[int, str] | None] | None


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples, lists and dictionaries, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with every leaf changed. Named tuples stay named."""
    if isinstance(value, dict):
        return {key: mapped(part, change) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(part, change) for part in value))
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(part, change) for part in value)
    return change(value)


def described(value: Any, variable: Mapping[int, str] | None = None) -> Any:
    """What a call depends on beside elements: types, shapes (without the ``variable`` dimensions), other values."""
    if isinstance(value, torch.Tensor):
        varies = {dim % value.dim() for dim in variable or () if value.dim()}
        shape = tuple(None if dim in varies else size for dim, size in enumerate(value.shape))
        return shape, value.dtype, value.device
    if isinstance(value, Mapping):
        return tuple((repr(key), described(part)) for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(described(part) for part in value)
    return type(value), repr(value)


def cut(result: Any, declared: Declared, sizes: Mapping[str, int], targets: Mapping[str, int], who: str) -> Any:
    """``result`` without padding: the declared dimensions go from their ``targets`` to their ``sizes``.

    ConstraintError if there are more or fewer tensors than declared, if one does not have the size it should have, or
    if something is neither tensor nor None.
    """
    several = isinstance(declared, (list, tuple))
    count = sum(1 for _ in tensors_in(result))
    if several and len(declared) != count:  # type: ignore[arg-type]
        raise ConstraintError(f"{who} returns {count} tensors, and results declares {len(declared)}")  # type: ignore[arg-type]
    if declared is not None and not several and count != 1:
        raise ConstraintError(f"{who} returns {count} tensors, and results declares one",
                              remedy="give a list with an entry for each, None where nothing is padded")  # fmt: skip
    entries = iter(declared if several else [declared] * count)  # type: ignore[arg-type]
    position = 0

    def one(leaf: Any) -> Any:
        nonlocal position
        if leaf is None:
            return None
        if not isinstance(leaf, torch.Tensor):
            raise ConstraintError(
                f"{who} returns {leaf!r}, and nothing tells whether that depends on the padding",
                remedy="return tensors only",
            )
        entry, position = next(entries), position + 1
        dimensions = {entry: "n"} if isinstance(entry, int) else dict(entry or {})
        for dim, name in dimensions.items():
            if not -leaf.dim() <= dim < leaf.dim() or leaf.shape[dim] != targets[name]:
                raise ConstraintError(
                    f"result {position} of {who} does not have the size {name} in dimension {dim}: its shape is "
                    f"{tuple(leaf.shape)}, and {name} is {targets[name]}"
                    + (f" ({sizes[name]}, padded)" if sizes[name] != targets[name] else ""),
                    remedy="declare in results the dimensions that have it, and no others",
                )
            leaf = leaf.narrow(dim, 0, sizes[name])
        return leaf.contiguous() if dimensions else leaf

    return mapped(result, one)
