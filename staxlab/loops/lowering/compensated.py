"""Sums and products with their rounding errors: numbers of twice the precision, as sums of two (Dekker, 1971).

A steep function multiplies the rounding error of its argument: that of ``exp(v)`` is off by ``v`` times the relative
error of ``v``. Where an argument is itself computed, these operations keep what rounding dropped, and a first-order
correction brings it back in. Theorems: ``a + b = s + e`` exactly (Knuth, 1969, "The Art of Computer Programming",
volume 2, 4.2.2, Theorem B), ``a * b = p + e`` exactly, by splitting each factor into halves whose products do not round
(Dekker, 1971, "A floating-point technique for extending the available precision"), as long as nothing overflows.
Neither holds if a compiler contracts or reassociates, which the semantics of kernels forbids.
"""

from __future__ import annotations

import struct
from typing import Any

import torch


def two_sum(ops: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """The sum of two values, and what its rounding dropped."""
    total = ops.add(a, b)
    second = ops.sub(total, a)
    first = ops.sub(total, second)
    return total, ops.add(ops.sub(a, first), ops.sub(b, second))


def _halves(ops: Any, a: Any) -> tuple[Any, Any]:
    """A value as the sum of two of half its digits (Veltkamp's splitting)."""
    dtype = ops.dtype_of(a)
    scaled = ops.mul(a, ops.constant(float(2 ** (12 if dtype == torch.float32 else 27) + 1), dtype))
    high = ops.sub(scaled, ops.sub(scaled, a))
    return high, ops.sub(a, high)


def two_product(ops: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """The product of two values, and what its rounding dropped. |a|, |b| and the product below 2^110 (float32)."""
    product = ops.mul(a, b)
    (a_high, a_low), (b_high, b_low) = _halves(ops, a), _halves(ops, b)
    rest = ops.add(ops.sub(ops.mul(a_high, b_high), product), ops.mul(a_high, b_low))
    return product, ops.add(ops.add(rest, ops.mul(a_low, b_high)), ops.mul(a_low, b_low))


def number(ops: Any, like: Any, value: float) -> tuple[Any, Any]:
    """A constant to twice the precision of ``like`` (to that of Python's numbers, for float64)."""
    dtype = ops.dtype_of(like)
    high = value if dtype == torch.float64 else struct.unpack("f", struct.pack("f", value))[0]
    return ops.constant(high, dtype), ops.constant(value - high, dtype)


def times_number(ops: Any, a: Any, value: float) -> tuple[Any, Any]:
    """The product of a value and a constant of twice the precision, and what its rounding dropped."""
    high, low = number(ops, a, value)
    product, rest = two_product(ops, a, high)
    return product, ops.add(rest, ops.mul(a, low))
