"""Zeros with a sign, infinities, NaN and the largest numbers, through the kernels themselves."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import staxlab

INFINITY = math.inf
VALUES = [-INFINITY, -0.0, 0.0, INFINITY, math.nan, -1.0, 1.0, 3e38, -3e38, 1e-45, 6.0, 7.0, -6.5]

FUNCTIONS = {
    "clamp below 0": lambda a: a.clamp(max=0.0),
    "clamp above 0": lambda a: a.clamp(min=0.0),
    "clamp above -0": lambda a: a.clamp(min=-0.0),
    "clamp between": lambda a: a.clamp(-0.0, 6.0),
    "clamp crossed": lambda a: a.clamp(5.0, 2.0),
    "clamp with NaN": lambda a: a.clamp(min=math.nan),
    "relu6": F.relu6,
    "hardtanh": lambda a: F.hardtanh(a, 0.0, 1.0),
    "square root as a power": lambda a: a**0.5,
    "its reciprocal": lambda a: a**-0.5,
    "square": lambda a: a**2,
    "floor division": lambda a: a // 0.3,
    "floor division by a negative number": lambda a: a // -0.3,
    "floor division by infinity": lambda a: a // INFINITY,
    "floor division by 0": lambda a: a // 0.0,
    "relu": F.relu,
    "negation": torch.neg,
}

# Kernels use the processor's square root, which is rounded right; eager's is MKL's, which on some processors is not.
ROUNDED_RIGHT = ("square root as a power", "its reciprocal")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_special_values(dtype):
    """As in eager execution, with the sign of each zero; long enough that vectors and their remainder are met."""
    x = torch.tensor(VALUES * 5, dtype=torch.float64).to(dtype)

    def together(x):
        return tuple(function(x) for function in FUNCTIONS.values())

    for name, got, expected in zip(FUNCTIONS, staxlab.compile(together)(x), together(x), strict=True):
        same = (got == expected) & (got.signbit() == expected.signbit()) | (got.isnan() & expected.isnan())
        if name in ROUNDED_RIGHT and dtype == torch.float32:
            same |= got == FUNCTIONS[name](x.double()).to(dtype)
        wrong = [(a.item(), g.item(), e.item()) for a, g, e, ok in zip(x, got, expected, same, strict=True) if not ok]
        assert not wrong, (name, wrong[:5])
