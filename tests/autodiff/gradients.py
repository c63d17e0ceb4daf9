"""Comparing a compiled function with eager execution: values, flags, strides and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

import staxlab


def clones(arguments: Sequence[Any]) -> list[Any]:
    """The same arguments as fresh leaves."""
    return [
        x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in arguments
    ]


def weighted_sum(results: Any) -> torch.Tensor:
    """A scalar in which every element of every differentiable result counts with a weight of its own."""
    leaves = results if isinstance(results, (tuple, list)) else [results]
    total: Any = 0
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            weights = torch.cos(torch.arange(math.prod(leaf.shape), dtype=torch.float64)).reshape(leaf.shape)
            total = total + (leaf * weights.to(leaf.dtype)).sum()
    return total


def run(function: Callable, arguments: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The results on fresh leaves, and the gradients of the arguments, with the random state of seed 0."""
    torch.manual_seed(0)
    fresh = clones(arguments)
    results = function(*fresh)
    weighted_sum(results).backward()
    return results, [x.grad if isinstance(x, torch.Tensor) else None for x in fresh]


def assert_trains_alike(
    function: Callable, *arguments: Any, backend: str = "stax", calls: int = 2, rtol: float = 1e-4, atol: float = 1e-5
) -> Any:
    """Compile, call several times, compare with eager execution. Nothing may fall back. Returns the compilation."""
    expected, gradients = run(function, arguments)
    compiled = staxlab.compile(function, backend=backend)
    for _ in range(calls):
        found, found_gradients = run(compiled, arguments)
        torch.testing.assert_close(found, expected, check_stride=True, rtol=rtol, atol=atol)
        torch.testing.assert_close(found_gradients, gradients, check_stride=True, rtol=rtol, atol=atol)
        pairs = zip(*(r if isinstance(r, tuple) else (r,) for r in (found, expected)), strict=True)
        for a, b in pairs:
            if isinstance(b, torch.Tensor):
                assert (a.requires_grad, a._is_view()) == (b.requires_grad, b._is_view())
    (version,) = compiled.versions
    assert version.compilation.fallback_reason is None and version.compilation.backward.fallback_reason is None
    return version.compilation
