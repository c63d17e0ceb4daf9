"""The cases of Tables 13.1 and 13.2, scans, and layers of models, as data: a function, its twin for JAX, its inputs,
what the model says.

The cases of the two tables are those of :mod:`staxlab.measure.chapter_cases`, which ``staxlab reproduce`` measures too.
``eager`` and ``compiled`` are the model's element counts in terms of ``N`` (elements of the input) and ``n`` (rows),
each a pair of coefficients; the tests hold them against the byte model run on the recorded operators (of the layers, to
terms of lower order: weights, statistics). ``compiled`` is what one pass over memory allows, the lower bound of
Proposition 1.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F

from staxlab.measure import chapter_cases
from staxlab.measure.chapter_cases import Coefficients, library_softmax

Twin = Callable[[Any, Any], Callable[..., Any]]


@dataclass(frozen=True)
class Case(chapter_cases.Case):
    """A case with its twin: ``jax`` makes the same function from the ``jax`` and ``jax.numpy`` modules."""

    jax: Twin | None = None


def _case(name: str, title: str, table: str, function: Callable[..., Any], jax: Twin, eager: Coefficients,
          compiled: Coefficients, operations: int, **more: Any) -> Case:  # fmt: skip
    return Case(name, title, table, function, eager, compiled, operations, jax=jax, **more)


def _of_the_chapter(name: str, jax: Twin) -> Case:
    case = chapter_cases.chapter_case(name)
    return Case(**{field.name: getattr(case, field.name) for field in fields(case)}, jax=jax)


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
    _of_the_chapter("example_1_1", lambda jax, jnp: lambda x, w: (jax.nn.relu(x + w) * 2).sum(-1)),
    _of_the_chapter("example_7_1", lambda jax, jnp: lambda x: x / x.sum(-1, keepdims=True)),
    _of_the_chapter("example_7_2", lambda jax, jnp: lambda x: (jnp.exp(x).sum(-1), jnp.exp(x).max(-1))),
    _of_the_chapter("softmax_five_operators", _jax_softmax),
    _of_the_chapter("softmax_library", lambda jax, jnp: lambda x: jax.nn.softmax(x, -1)),
    _of_the_chapter("pointwise_chain", lambda jax, jnp: lambda x: jax.nn.relu(x * 2 + 1) * 0.5 - 3),
    _of_the_chapter("add", lambda jax, jnp: lambda x, w: x + w),
    _of_the_chapter("relu", lambda jax, jnp: jax.nn.relu),
    _of_the_chapter("exp", lambda jax, jnp: jnp.exp),
    _of_the_chapter("row_sum", lambda jax, jnp: lambda x: x.sum(-1)),
    _of_the_chapter("row_amax", lambda jax, jnp: lambda x: x.max(-1)),
    _case("cumsum_rows", "cumsum along rows", "scans", lambda x: x.cumsum(-1), lambda jax, jnp: lambda x: x.cumsum(-1),
          (2, 0), (2, 0), 1, size=(4096, 4096)),
    _case("cumsum_columns", "cumsum down columns", "scans", lambda x: x.cumsum(0),
          lambda jax, jnp: lambda x: x.cumsum(0), (2, 0), (2, 0), 1, size=(4096, 4096)),
    _case("cummax_rows", "cummax along rows, values", "scans", lambda x: x.cummax(-1)[0],
          lambda jax, jnp: lambda x: jax.lax.cummax(x, axis=1), (3, 0), (2, 0), 1, size=(4096, 4096)),
    _case("exp_cumsum_rows", "x.exp().cumsum(-1)", "scans", lambda x: x.exp().cumsum(-1),
          lambda jax, jnp: lambda x: jnp.exp(x).cumsum(-1), (4, 0), (2, 0), 11, size=(4096, 4096)),
    _case("gelu", "GELU", "layers", F.gelu, lambda jax, jnp: lambda x: jax.nn.gelu(x, approximate=False),
          (2, 0), (2, 0), 14),
    _case("layer_norm", "layer norm", "layers", layer_norm, lambda jax, jnp: lambda *a: _jax_layer_norm(jnp, *a),
          (2, 0), (2, 0), 8, make=_vectors),
    _case("layer_norm_backward", "layer norm, backward", "layers", layer_norm_backward,
          lambda jax, jnp: lambda *a: _jax_layer_norm_backward(jnp, *a), (3, 0), (3, 0), 21, make=_layer_norm_gradient),
    _case("batch_norm", "batch norm of images, training", "layers", batch_norm,
          lambda jax, jnp: lambda *a: _jax_batch_norm(jnp, *a), (2, 0), (2, 0), 8, size=(4096, 3136), make=_images),
    _case("cross_entropy", "cross entropy of 32,000 classes", "layers", F.cross_entropy,
          lambda jax, jnp: lambda *a: _jax_cross_entropy(jnp, *a), (3, 0), (1, 0), 13, size=(8192, 32000),
          make=_labelled),
    _case("rotary_embedding", "rotary embedding, 32 heads", "layers", rotary_embedding,
          lambda jax, jnp: lambda *a: _jax_rotary(jnp, *a), (11, 0), (2, 0), 4, size=(65536, 128), make=_rotations),
    _case("transpose_add", "x + w.t()", "layers", lambda x, w: x + w.t(), lambda jax, jnp: lambda x, w: x + w.T,
          (3, 0), (3, 0), 1, size=(4096, 4096), make=_transposed),
    _case("bias_gelu_dropout", "gelu(x + bias) * mask / 0.9", "layers", bias_gelu_dropout,
          lambda jax, jnp: lambda x, bias, mask: jax.nn.gelu(x + bias, approximate=False) * mask * (1 / 0.9),
          (9, 0), (3, 0), 17, make=_dropped),
    _case("softmax_long_rows", "softmax of rows of 1,000,000", "layers", library_softmax,
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
