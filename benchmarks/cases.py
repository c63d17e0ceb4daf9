"""The cases of Tables 13.1 and 13.2, scans, and layers of models, as data: a function, its twin for JAX, its inputs,
what the model says.

``eager`` and ``compiled`` are the model's element counts in terms of ``N`` (elements of the input) and ``n`` (rows),
each a pair of coefficients; the tests hold them against the byte model run on the recorded operators (of the layers, to
terms of lower order: weights, statistics). ``compiled`` is what one pass over memory allows, the lower bound of
Proposition 1.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Coefficients = tuple[int, int]  # a*N + b*n elements


@dataclass(frozen=True)
class Case:
    """One row of a table.

    ``function`` takes tensors of shape (rows, columns), as many as ``inputs``, or what ``make`` makes of rows, columns
    and a generator; ``jax`` makes the same function from the ``jax`` and ``jax.numpy`` modules. ``operations`` per
    element of the input counts as ``loops.ops.OPERATIONS`` does.
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
    make: Callable[[int, int, torch.Generator], list[torch.Tensor]] | None = None

    def make_inputs(self, size: tuple[int, int], dtype: torch.dtype, device: str, seed: int = 0) -> list[torch.Tensor]:
        """Standard normal tensors of ``size``, the same for every peer and every run of one seed. ``dtype`` is that of
        the floating-point ones."""
        generator = torch.Generator().manual_seed(seed)
        if self.make is None:
            made = [torch.randn(*size, generator=generator) for _ in range(self.inputs)]
        else:
            made = self.make(*size, generator)
        return [t.to(device, dtype if t.is_floating_point() else t.dtype) for t in made]

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


def layer_norm(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def layer_norm_backward(gradient, x, mean, scale, weight, bias):
    shape = [x.shape[-1]]
    mask = [True, True, True]
    return torch.ops.aten.native_layer_norm_backward(gradient, x, shape, mean, scale, weight, bias, mask)


def batch_norm(x, weight, bias):
    return F.batch_norm(x, None, None, weight, bias, training=True)


def rotary_embedding(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def bias_gelu_dropout(x, bias, mask):
    return F.gelu(x + bias) * mask * (1 / 0.9)


def _vectors(rows, columns, generator):
    return [torch.randn(*shape, generator=generator) for shape in ((rows, columns), (columns,), (columns,))]


def _layer_norm_gradient(rows, columns, generator):
    gradient, x = (torch.randn(rows, columns, generator=generator) for _ in range(2))
    mean = x.mean(-1, keepdim=True)
    scale = (x.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
    return [gradient, x, mean, scale, *(torch.randn(columns, generator=generator) for _ in range(2))]


def _images(rows, columns, generator):
    channels = math.gcd(rows, 128)
    x = torch.randn(rows // channels, channels, columns, generator=generator)
    return [x, *(torch.randn(channels, generator=generator) for _ in range(2))]


def _labelled(rows, columns, generator):
    return [torch.randn(rows, columns, generator=generator), torch.randint(columns, (rows,), generator=generator)]


def _rotations(rows, columns, generator):
    """Queries of 32 heads of a sequence, and the cosines and sines of its positions."""
    heads = math.gcd(rows, 32)
    positions = torch.arange(rows // heads)[:, None] * 10_000.0 ** (-torch.arange(0, columns, 2) / columns)
    angles = torch.cat((positions, positions), -1)
    return [torch.randn(heads, rows // heads, columns, generator=generator), angles.cos(), angles.sin()]


def _transposed(rows, columns, generator):
    return [torch.randn(*shape, generator=generator) for shape in ((rows, columns), (columns, rows))]


def _dropped(rows, columns, generator):
    x, bias, _ = _vectors(rows, columns, generator)
    return [x, bias, (torch.rand(rows, columns, generator=generator) < 0.9).float()]


def _jax_layer_norm(jnp, x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def _jax_layer_norm_backward(jnp, gradient, x, mean, scale, weight, bias):
    normal, scaled = (x - mean) * scale, gradient * weight
    inner = scaled - scaled.mean(-1, keepdims=True) - normal * (scaled * normal).mean(-1, keepdims=True)
    return inner * scale, (gradient * normal).sum(0), gradient.sum(0)


def _jax_batch_norm(jnp, x, weight, bias):
    centred = x - x.mean((0, 2), keepdims=True)
    scale = weight[None, :, None] / jnp.sqrt((centred**2).mean((0, 2), keepdims=True) + 1e-5)
    return centred * scale + bias[None, :, None]


def _jax_cross_entropy(jnp, x, labels):
    largest = x.max(-1)
    logarithms = jnp.log(jnp.exp(x - largest[:, None]).sum(-1)) + largest
    return (logarithms - jnp.take_along_axis(x, labels[:, None], -1)[:, 0]).mean()


def _jax_rotary(jnp, x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + jnp.concatenate((-x[..., half:], x[..., :half]), -1) * sin


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
    Case("gelu", "GELU", "layers", F.gelu, lambda jax, jnp: lambda x: jax.nn.gelu(x, approximate=False),
         (2, 0), (2, 0), 14),
    Case("layer_norm", "layer norm", "layers", layer_norm, lambda jax, jnp: lambda *a: _jax_layer_norm(jnp, *a),
         (2, 0), (2, 0), 8, make=_vectors),
    Case("layer_norm_backward", "layer norm, backward", "layers", layer_norm_backward,
         lambda jax, jnp: lambda *a: _jax_layer_norm_backward(jnp, *a), (3, 0), (3, 0), 21, make=_layer_norm_gradient),
    Case("batch_norm", "batch norm of images, training", "layers", batch_norm,
         lambda jax, jnp: lambda *a: _jax_batch_norm(jnp, *a), (2, 0), (2, 0), 8, size=(4096, 3136), make=_images),
    Case("cross_entropy", "cross entropy of 32,000 classes", "layers", F.cross_entropy,
         lambda jax, jnp: lambda *a: _jax_cross_entropy(jnp, *a), (3, 0), (1, 0), 13, size=(8192, 32000),
         make=_labelled),
    Case("rotary_embedding", "rotary embedding, 32 heads", "layers", rotary_embedding,
         lambda jax, jnp: lambda *a: _jax_rotary(jnp, *a), (11, 0), (2, 0), 4, size=(65536, 128), make=_rotations),
    Case("transpose_add", "x + w.t()", "layers", lambda x, w: x + w.t(), lambda jax, jnp: lambda x, w: x + w.T,
         (3, 0), (3, 0), 1, size=(4096, 4096), make=_transposed),
    Case("bias_gelu_dropout", "gelu(x + bias) * mask / 0.9", "layers", bias_gelu_dropout,
         lambda jax, jnp: lambda x, bias, mask: jax.nn.gelu(x + bias, approximate=False) * mask * (1 / 0.9),
         (9, 0), (3, 0), 17, make=_dropped),
    Case("softmax_long_rows", "softmax of rows of 1,000,000", "layers", library_softmax,
         lambda jax, jnp: lambda x: jax.nn.softmax(x, -1), (2, 0), (2, 0), 14, size=(64, 1_000_000)),
)  # fmt: skip

GROUPS = {"table_13_1": "13.1", "table_13_2": "13.2", "scans": "scans", "layers": "layers"}


def select(names: str) -> list[Case]:
    """Cases by comma-separated names, "table_13_1", "table_13_2", "scans", "layers" or "all".

    KeyError names the unknown one.
    """
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
