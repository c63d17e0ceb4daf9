"""The cases of Tables 13.1 and 13.2, and scans, as data: a function, its twin for JAX, its inputs, what the model says.

``eager`` and ``compiled`` are the model's element counts in terms of ``N`` (elements of the input) and ``n`` (rows),
each a pair of coefficients; the tests hold them against the byte model run on the recorded operators. ``compiled`` is
what one pass over memory allows, the lower bound of Proposition 1.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Coefficients = tuple[int, int]  # a*N + b*n elements


@dataclass(frozen=True)
class Case:
    """One row of a table.

    ``function`` takes tensors of shape (rows, columns), as many as ``inputs``; ``jax`` makes the same function from the
    ``jax`` and ``jax.numpy`` modules. ``operations`` per element of the input counts as ``loops.ops.OPERATIONS`` does.
    """

    name: str
    title: str
    table: str
    function: Callable[..., Any]
    jax: Callable[[Any, Any], Callable[..., Any]]
    eager: Coefficients
    compiled: Coefficients
    operations: int
    inputs: int = 1
    size: tuple[int, int] = (8192, 2048)

    def make_inputs(self, size: tuple[int, int], dtype: torch.dtype, device: str, seed: int = 0) -> list[torch.Tensor]:
        """Standard normal tensors of ``size``, the same for every peer and every run of one seed."""
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(*size, generator=generator).to(device, dtype) for _ in range(self.inputs)]

    def elements(self, side: str, size: tuple[int, int]) -> int:
        """Elements moved by the "eager" or "compiled" side, by the formula."""
        a, b = self.eager if side == "eager" else self.compiled
        return a * size[0] * size[1] + b * size[0]


def example_1_1(x, w):
    return (torch.relu(x + w) * 2).sum(-1)


def example_7_1(x):
    return x / x.sum(-1, keepdim=True)


def example_7_2(x):
    return x.exp().sum(-1), x.exp().amax(-1)


def softmax_of_operators(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def library_softmax(x):
    return torch.nn.functional.softmax(x, -1)


def pointwise_chain(x):
    return torch.relu(x * 2 + 1) * 0.5 - 3


def _jax_softmax(jax, jnp):
    def softmax(x):
        e = jnp.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    return softmax


CASES: tuple[Case, ...] = (
    Case("example_1_1", "Example 1.1: (relu(x + w) * 2).sum(-1)", "13.1", example_1_1,
         lambda jax, jnp: lambda x, w: (jax.nn.relu(x + w) * 2).sum(-1), (8, 1), (2, 1), 4, inputs=2),
    Case("example_7_1", "Example 7.1: x / x.sum(-1, keepdim=True)", "13.1", example_7_1,
         lambda jax, jnp: lambda x: x / x.sum(-1, keepdims=True), (3, 2), (2, 0), 2),
    Case("example_7_2", "Example 7.2: x.exp().sum(-1), x.exp().amax(-1)", "13.1", example_7_2,
         lambda jax, jnp: lambda x: (jnp.exp(x).sum(-1), jnp.exp(x).max(-1)), (6, 2), (1, 2), 22),
    Case("softmax_five_operators", "Softmax of five operators", "13.1", softmax_of_operators, _jax_softmax,
         (8, 4), (2, 0), 14, size=(16384, 1000)),
    Case("softmax_library", "Library softmax", "13.1", library_softmax,
         lambda jax, jnp: lambda x: jax.nn.softmax(x, -1), (2, 0), (2, 0), 14, size=(16384, 1000)),
    Case("pointwise_chain", "Chain of five pointwise operators", "13.1", pointwise_chain,
         lambda jax, jnp: lambda x: jax.nn.relu(x * 2 + 1) * 0.5 - 3, (10, 0), (2, 0), 5),
    Case("add", "add", "13.2", lambda x, w: x + w, lambda jax, jnp: lambda x, w: x + w, (3, 0), (3, 0), 1, inputs=2),
    Case("relu", "relu", "13.2", torch.relu, lambda jax, jnp: jax.nn.relu, (2, 0), (2, 0), 1),
    Case("exp", "exp", "13.2", torch.exp, lambda jax, jnp: jnp.exp, (2, 0), (2, 0), 10),
    Case("row_sum", "row sum", "13.2", lambda x: x.sum(-1), lambda jax, jnp: lambda x: x.sum(-1), (1, 1), (1, 1), 1),
    Case("row_amax", "row amax", "13.2", lambda x: x.amax(-1), lambda jax, jnp: lambda x: x.max(-1), (1, 1), (1, 1), 1),
    Case("cumsum_rows", "cumsum along rows", "scans", lambda x: x.cumsum(-1), lambda jax, jnp: lambda x: x.cumsum(-1),
         (2, 0), (2, 0), 1, size=(4096, 4096)),
    Case("cumsum_columns", "cumsum down columns", "scans", lambda x: x.cumsum(0),
         lambda jax, jnp: lambda x: x.cumsum(0), (2, 0), (2, 0), 1, size=(4096, 4096)),
    Case("cummax_rows", "cummax along rows, values", "scans", lambda x: x.cummax(-1)[0],
         lambda jax, jnp: lambda x: jax.lax.cummax(x, axis=1), (3, 0), (2, 0), 1, size=(4096, 4096)),
    Case("exp_cumsum_rows", "x.exp().cumsum(-1)", "scans", lambda x: x.exp().cumsum(-1),
         lambda jax, jnp: lambda x: jnp.exp(x).cumsum(-1), (4, 0), (2, 0), 11, size=(4096, 4096)),
)  # fmt: skip

GROUPS = {"table_13_1": "13.1", "table_13_2": "13.2", "scans": "scans"}


def select(names: str) -> list[Case]:
    """Cases by comma-separated names, "table_13_1", "table_13_2", "scans" or "all". KeyError names the unknown one."""
    chosen: dict[str, Case] = {}
    by_name = {case.name: case for case in CASES}
    for name in (part.strip() for part in names.split(",")):
        if name == "all":
            chosen.update(by_name)
        elif name in GROUPS:
            chosen.update({c.name: c for c in CASES if c.table == GROUPS[name]})
        elif name in by_name:
            chosen[name] = by_name[name]
        else:
            raise KeyError(f"no case named {name!r}; cases: {', '.join([*by_name, *GROUPS, 'all'])}")
    return list(chosen.values())
