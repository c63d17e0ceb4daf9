"""Compiled derivatives beyond the gradient (Section 5.7): ``jvp`` and ``hvp``.

Both return a callable that is compiled, specialized and cached as what :func:`staxlab.compile` returns; gradients need
neither, they come out of ``backward()`` on a compiled function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .api import compile_here
from .errors import OptionError
from .operators.structure import flatten, rebuild
from .options import Options
from .specialize.compiled_module import uncompiled
from .specialize.dispatch import Dispatcher


class HessianVector(NamedTuple):
    """What :func:`hvp` computes: ``value`` (0-dim), and, nested as the primals, ``gradient`` and ``product``."""

    value: torch.Tensor
    gradient: Any
    product: Any


def jvp(fn: Callable, *, backend: str = "stax", options: dict[str, Any] | None = None) -> Derivative:
    """Compile the directional derivative of ``fn``: ``jvp(fn)(primals, tangents)`` is ``(fn(*primals), J tangents)``.

    ``primals`` and ``tangents`` are tuples of floating-point tensors, equal in shape and dtype place by place; other
    arguments of ``fn`` belong into a closure. Forward mode: about the cost of two to three evaluations, no memory for
    saved values. The results carry no gradient.

    Raises OptionError for tangents that do not fit the primals, and as :func:`staxlab.compile`.
    """
    return Derivative(fn, "jvp", backend, options)


def hvp(fn: Callable, *, backend: str = "stax", options: dict[str, Any] | None = None) -> Derivative:
    """Compile the product of the Hessian of a scalar function with a vector, forward over reverse (Section 5.7).

    ``hvp(fn)(primals, vectors)`` is a :class:`HessianVector`. Arguments and errors as for :func:`jvp`; ``fn`` returns
    one real scalar tensor.
    """
    return Derivative(fn, "hvp", backend, options)


class Derivative:
    """A compiled derivative; ``compilation`` of :attr:`versions` shows how it is computed."""

    def __init__(self, fn: Callable, kind: str, backend: str, options: dict[str, Any] | None):
        self.fn = uncompiled(fn)
        self.kind = kind
        resolved = Options.resolve(backend=backend, options=options)
        function = self.fn

        def doubled(primals: tuple, tangents: tuple) -> Any:
            """What the derivative returns has this structure: a place for every value and one for its tangent."""
            value = function(*primals)
            if kind == "jvp":
                return value, _others(value)
            return HessianVector(value, _others(primals), _others(primals))

        doubled.__name__ = f"{kind} of {getattr(fn, '__name__', type(fn).__name__)}"

        build = functools.partial(compile_here, resolved, {}, derivative=kind)
        self._dispatcher = Dispatcher(doubled, build, resolved)

    @property
    def versions(self) -> Any:
        return self._dispatcher.versions

    def __call__(self, primals: tuple, tangents: tuple) -> Any:
        _check(self.kind, primals, tangents)
        seen: set[int] = set()
        with torch.no_grad():
            return self._dispatcher(_apart(tuple(primals), seen), _apart(tuple(tangents), seen))


def _others(structure: Any) -> Any:
    """The same structure with other tensor objects."""
    leaves = flatten(structure)
    return rebuild(structure, [x.view_as(x) if isinstance(x, torch.Tensor) else x for x in leaves])


def _apart(structure: Any, seen: set[int]) -> Any:
    """The same structure, where no tensor object occurs again: each place is a variable of its own."""
    leaves = flatten(structure)
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            if id(leaf) in seen:
                leaves[place] = leaf.detach()
            seen.add(id(leaf))
    return rebuild(structure, leaves)


def _check(kind: str, primals: Any, tangents: Any) -> None:
    for name, value in (("primals", primals), ("tangents", tangents)):
        if not isinstance(value, (tuple, list)):
            raise OptionError(f"{kind} takes {name} as a tuple of tensors, not {type(value).__name__}")
    given, directions = flatten(list(primals)), flatten(list(tangents))
    if len(given) != len(directions):
        raise OptionError(f"{kind} was given {len(given)} primals and {len(directions)} tangents")
    for place, (primal, tangent) in enumerate(zip(given, directions, strict=True)):
        if not isinstance(primal, torch.Tensor) or not primal.is_floating_point():
            raise OptionError(
                f"primal {place} of {kind} is no floating-point tensor: nothing can be differentiated by it",
                remedy="put it into a closure: jvp(lambda x: fn(x, n))",
            )
        if not isinstance(tangent, torch.Tensor) or (tangent.shape, tangent.dtype) != (primal.shape, primal.dtype):
            raise OptionError(f"tangent {place} of {kind} must have its primal's shape and dtype, {primal.dtype}")
