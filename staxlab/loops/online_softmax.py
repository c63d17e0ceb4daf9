"""Sums of exponentials that can be merged before their maximum is known (Proposition 9.1; Section 9.10).

A softmax needs ``sum(exp(x))``, which overflows, so it takes ``sum(exp(x - m))`` with ``m`` the maximum, which is known
at the end only. A part of the row can go ahead with a maximum of its own: what it has summed is off by one factor,
which is put right when a larger maximum turns up. So a part is summed up by ``(m, s, ...)``, its maximum and any number
of sums that are relative to it, and two parts by

    ``(mu, s exp(m - mu) + t exp(n - mu), ...)``    with ``mu = max(m, n)``

(Milakov and Gimelshein, 2018, "Online normalizer calculation for softmax"). With one sum, of exponentials, this is the
pair (m, d) of a softmax. With a second, of exponentials times rows of values, it is the triple (m, l, a) of attention.
Multiplied by ``exp(m)``, which leaves the maximum out, the sums are added and nothing else: so merging is associative
and commutative, and (-inf, 0, ...) is its identity.

The rule stands here once, over any interpretation of the operations. :mod:`staxlab.attention.online_softmax` runs it on
tensors, :mod:`staxlab.measure.online_softmax` proves its laws on symbols, and the tests hold what the generators of
kernels write (``merge_exponential_into`` of :mod:`staxlab.codegen.triton.operations`) to it, bit by bit.
"""

from __future__ import annotations

import math
from typing import Any

import torch

Part = tuple[Any, ...]  # a maximum, and sums relative to it


def rescaled(ops: Any, total: Any, old: Any, new: Any) -> Any:
    """``total exp(old - new)``: a sum relative to ``old``, made relative to ``new``.

    Where both are the same it stays as it is. That is no shortcut: two maxima of minus infinity, those of parts in
    which nothing is visible, have no difference.
    """
    return ops.where(ops.eq(old, new), total, ops.mul(total, ops.exp(ops.sub(old, new))))


def merge(ops: Any, first: Part, second: Part) -> Part:
    """Two parts as one: the greater maximum, and each sum relative to it (Proposition 9.1).

    ``ops`` interprets ``maximum``, ``eq``, ``where``, ``exp``, ``sub``, ``mul`` and ``add``; the parts have equally
    many sums. A NaN in either part is in the result.
    """
    (m, *sums), (n, *others) = first, second
    greatest = ops.maximum(m, n)
    pairs = zip(sums, others, strict=True)
    return greatest, *(ops.add(rescaled(ops, s, m, greatest), rescaled(ops, t, n, greatest)) for s, t in pairs)


def of_element(ops: Any, value: Any, dtype: torch.dtype) -> Part:
    """The pair of a single element: (x, 1), and (-inf, 0), the identity, for minus infinity, which adds nothing.

    Of NaN and plus infinity the sum is NaN, as ``exp(x - max)`` is where eager execution computes it.
    """
    lowest, zero = ops.constant(-math.inf, dtype), ops.constant(0.0, dtype)
    return value, ops.where(ops.eq(value, lowest), zero, ops.exp(ops.sub(value, value)))
