"""At which arguments functions are measured: every binade, and where they are delicate (see :mod:`.accuracy`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from ..errors import MissingDependencyError
from .accuracy_functions import Function

BITS = 200  # of the exact values: float32 has 24, and no function here cancels more than 150


def mpmath_context() -> Any:
    """A context of mpmath's of our own, of ``BITS`` bits. MissingDependencyError without mpmath."""
    try:
        import mpmath
    except ImportError as error:
        raise MissingDependencyError("exact values need mpmath", remedy='pip install "staxlab[proof]"') from error
    context = mpmath.mp.clone()
    context.prec = BITS
    return context


def binades(dtype: torch.dtype) -> range:
    """The exponents e of the numbers from 2^e up to 2^(e+1), subnormal ones first."""
    info = torch.finfo(dtype)
    return range(round(math.log2(info.smallest_normal * info.eps)), math.frexp(info.max)[1])


def _draw(exponents: torch.Tensor, dtype: torch.dtype, random: torch.Generator, mantissas: int) -> torch.Tensor:
    """Numbers of the given exponents, shape (exponents, mantissas): the power of two, the number below the next one,
    the number after the first, then random ones."""
    digits = 1 - math.frexp(torch.finfo(dtype).eps)[1]
    fraction = torch.rand(len(exponents), mantissas, generator=random, dtype=torch.float64)
    units = torch.ldexp(fraction, torch.tensor(digits)).floor()  # of the last place, in [0, 2^digits)
    # A subnormal number has fewer digits, which scaling down would round: cut them off.
    kept = torch.clamp(exponents - binades(dtype)[0], max=digits)[:, None]
    units = torch.ldexp(torch.ldexp(units, kept - digits).floor(), digits - kept)
    step = torch.where(kept > 0, torch.ldexp(torch.ones_like(units[:, :1]), digits - kept), 0.0)
    last = torch.where(kept > 0, math.ldexp(1.0, digits) - step, 0.0)
    for column, value in enumerate((torch.zeros_like(step), last, step)[:mantissas]):
        units[:, column] = value[:, 0]
    whole = torch.ldexp(torch.ones((), dtype=torch.float64), torch.tensor(digits)) + units
    return scaled(whole, exponents[:, None] - digits).to(dtype)


def scaled(x: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """``x * 2**exponent`` in float64 in two steps, neither of which rounds for a result that is a number."""
    half = exponent // 2
    return torch.ldexp(torch.ldexp(x, half), exponent - half)


def sample(dtype: torch.dtype, mantissas: int, random: torch.Generator) -> torch.Tensor:
    """Numbers of every binade, shape (2 * binades, mantissas): the positive ones, then the negative ones."""
    positive = _draw(torch.tensor(list(binades(dtype))), dtype, random, mantissas)
    return torch.cat([positive, -_draw(torch.tensor(list(binades(dtype))), dtype, random, mantissas)])


def neighbours(places: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
    """The numbers around each place: the first eight to both sides, then twice as far each time, up to a binade."""
    digits = 1 - math.frexp(torch.finfo(dtype).eps)[1]
    steps = [*range(9), *(1 << k for k in range(4, digits))]
    offsets = torch.tensor(sorted({sign * step for step in steps for sign in (1, -1)}))
    centres = torch.tensor([place for place in places if abs(place) <= torch.finfo(dtype).max], dtype=torch.float64)
    whole = torch.int32 if dtype == torch.float32 else torch.int64
    around = centres.to(dtype).view(whole)[:, None] + offsets.to(whole)
    return around.view(dtype).reshape(-1)


@lru_cache(maxsize=4)
def near_multiples(dtype: torch.dtype) -> torch.Tensor:
    """From every binade from 1 on, numbers closer to a multiple of pi/2 than all that have smaller mantissas.

    ``m * 2**k`` is close to ``n * pi/2`` where ``n/m`` is close to ``2**k * 2/pi``: the convergents of its continued
    fraction are the closest of all fractions with so small a denominator, and their multiples nearly so.
    """
    digits = 2 - math.frexp(torch.finfo(dtype).eps)[1]
    context = mpmath_context()
    found = []
    for exponent in range(binades(dtype)[-1] + 1):
        shift = exponent - digits + 1
        context.prec = abs(shift) + 3 * digits + 32
        ratio = context.ldexp(2 / context.pi, shift)
        before, denominator = 0, 1
        while True:
            rest = ratio - context.floor(ratio)
            if denominator >= 2 ** (digits - 1):
                found.append(math.ldexp(denominator, shift))
            elif denominator > 1:
                times = (2**digits - 1) // denominator
                found += [math.ldexp(denominator * (times - k), shift) for k in range(min(2, times))]
            if rest == 0:
                break
            ratio = 1 / rest
            # Between two convergents lie fractions that are nearly as close, b + j*d; the last have enough digits.
            times = (2**digits - 1 - before) // denominator
            between = [before + (times - k) * denominator for k in range(min(2, times))]
            found += [math.ldexp(m, shift) for m in between if m >= 2 ** (digits - 1)]
            before, denominator = denominator, int(ratio) * denominator + before
            if denominator >= 2**digits:
                break
    return torch.tensor(found, dtype=torch.float64).to(dtype)


def hard_arguments(function: Function, dtype: torch.dtype) -> torch.Tensor:
    """The neighbours of where a function is delicate, of both signs."""
    found = neighbours(function.near, dtype)
    if function.periodic:
        multiples = near_multiples(dtype)
        found = torch.cat([found, multiples, -multiples])
    return found
