"""Which operators the back end implements, and how (Section 6.2, Table 6.1; Definition 4.2).

A lowering rule is a function ``rule(call, *args, **kwargs)``. Tensors arrive as
:class:`~staxlab.loops.lowering.values.TensorValue`, everything else as it stands in the operator graph; ``call`` says
which operator node is being lowered and offers the ways to make values. A rule returns a value for every result. It
may raise :class:`Decline` for a case it does not cover, and the operator then runs as PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Overload = torch._ops.OpOverload


class Decline(Exception):
    """Raised by a lowering rule for a case it does not cover; the message says which."""


@dataclass(frozen=True)
class LoweringRule:
    """A rule and what realization needs to know about it.

    ``passes``: how often the rule reads its tensor arguments in separate loops (a softmax reads its input three
    times), each of which would compute an inlined argument anew. ``kind`` is the class of Table 6.1. ``is_view`` rules
    make no value of their own. ``refuses(node)`` says, from metadata alone, why an operator node is not for the rule
    (None: it is), where that has to be known before anything is lowered.
    """

    function: Callable[..., Any]
    kind: str
    passes: int = 1
    is_view: bool = False
    refuses: Callable[[Any], str | None] | None = None


RULES: dict[Overload, LoweringRule] = {}
LIBRARY: set[Overload] = set()


def overloads(names: str) -> list[Overload]:
    """The overloads a space-separated list names, as ``add.Tensor`` or ``relu`` (its ``default``); those this version
    of PyTorch does not have are left out."""
    found: list[Overload] = []
    for name in names.split():
        packet, _, overload = name.partition(".")
        operator = getattr(torch.ops.aten, packet, None)
        candidate = getattr(operator, overload or "default", None) if operator is not None else None
        if candidate is not None:
            found.append(candidate)
    return found


def lowering(
    *targets: str | Overload,
    kind: str = "pointwise",
    passes: int = 1,
    is_view: bool = False,
    refuses: Callable[[Any], str | None] | None = None,
) -> Callable[[Callable], Callable]:
    """Decorator: the function is the lowering rule of the overloads named. A later rule replaces an earlier one."""

    def register(function: Callable) -> Callable:
        rule = LoweringRule(function, kind, passes, is_view, refuses)
        for target in targets:
            for overload in overloads(target) if isinstance(target, str) else [target]:
                RULES[overload] = rule
        return function

    return register


def register_lowering(
    overload: Overload, function: Callable | None = None, *, kind: str = "pointwise", passes: int = 1
) -> Callable:
    """Give an operator overload a lowering rule, as a call or as a decorator. Works for operators of one's own
    (``torch.library``) and replaces the built-in rule of an ``aten`` one.

    >>> @register_lowering(torch.ops.aten.sinc.default)                                     # doctest: +SKIP
    ... def lower_sinc(call, x):
    ...     return call.pointwise(lambda ops, a: ..., x)
    """
    if not isinstance(overload, Overload):
        raise TypeError(f"an operator overload is needed, such as torch.ops.aten.add.Tensor, not {overload!r}")
    register = lowering(overload, kind=kind, passes=passes)
    return register if function is None else register(function)


def basis() -> frozenset[Overload]:
    """The back end's basis: overloads with a lowering rule or a library call. These are never decomposed."""
    return frozenset(RULES) | frozenset(LIBRARY)
