"""Operands and PyTorch's own answer for every scalar operation: shared by the interpreter's and the GPU's tests."""

from __future__ import annotations

import itertools

import torch

from staxlab.loops.ops import OPERATIONS

REAL = (torch.float32, torch.float64)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

# Operations for integers, for bools, or not for floating point; every other one takes floating point.
BIT_OPERATIONS = {name for name in OPERATIONS if name.startswith("bitwise")} | {"truncdiv"}
LOGIC = {name for name in OPERATIONS if name.startswith("logical")}
ALSO_WHOLE = {
    "neg", "abs", "sign", "relu", "square", "add", "sub", "mul", "floordiv", "remainder", "fmod", "pow", "maximum",
    "minimum", "fmax", "fmin", "eq", "ne", "lt", "le", "gt", "ge", "where", "floor", "ceil", "trunc", "round",
}  # fmt: skip
ALSO_BOOL = {"abs", "eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum", "where", "bitwise_and", "bitwise_or",
             "bitwise_xor", "bitwise_not"}  # fmt: skip

CASES = (
    [(name, dtype) for name in OPERATIONS if name not in BIT_OPERATIONS | LOGIC for dtype in REAL]
    + [(name, dtype) for name in OPERATIONS if name in ALSO_WHOLE | BIT_OPERATIONS for dtype in WHOLE]
    + [(name, torch.bool) for name in OPERATIONS if name in ALSO_BOOL | LOGIC]
)

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 7.0, -7.0, 1e-3, 20.0, -20.0, 88.0, 1e4, -1e30, 1e38,
           float("inf"), float("-inf"), float("nan")]  # fmt: skip


def operands(name: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Values that reach the corners of an operation, all pairs for binary ones, and then random ones."""
    generator = torch.Generator().manual_seed(7)
    arity = OPERATIONS[name].arity - (name == "where")
    if dtype == torch.bool:
        values = torch.tensor([False, True])
    elif dtype.is_floating_point:
        random = torch.randn(40, generator=generator, dtype=torch.float64) * 3
        values = torch.cat([torch.tensor(SPECIAL, dtype=torch.float64), random]).to(dtype)
    else:
        info = torch.iinfo(dtype)
        extremes = [info.min, info.min + 1, info.max, 0, 1, 2, 3, 5, 100] + ([-1, -2, -3, -7] if info.min else [])
        values = torch.cat([torch.tensor(extremes), torch.randint(max(info.min, -99), 99, (15,), generator=generator)])
        values = values.to(dtype)
    if arity == 1:
        given: tuple[torch.Tensor, ...] = (values,)
    else:
        given = tuple(torch.stack(column) for column in zip(*itertools.product(values, values), strict=True))
    given = _restrict(name, dtype, given)
    if name == "where":
        condition = torch.rand(given[0].shape, generator=generator) > 0.5
        return (condition, *given)
    return given


def _restrict(name: str, dtype: torch.dtype, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Leave out what the vocabulary excludes (an integer divisor of 0) or what no hardware defines."""
    if dtype == torch.bool or len(given) == 1:
        return given
    a, b = given
    if dtype.is_floating_point:
        if name not in ("fmod", "remainder", "floordiv"):
            return given
        keep = ~((a / b).abs() > 1e7) | a.isinf() | (b == 0)  # PyTorch's own vectorised fmod fails beyond
        return a[keep], b[keep]
    keep = torch.ones_like(a, dtype=torch.bool)
    if name in ("floordiv", "truncdiv", "remainder", "fmod"):
        keep = b != 0
        if dtype != torch.uint8:
            keep &= ~((a == torch.iinfo(dtype).min) & (b == -1))  # the quotient does not fit
    if name == "pow":
        keep = (b <= 20) & (b >= -3)
        if dtype != torch.uint8:
            keep &= (a != 0) | (b >= 0)
    return a[keep], b[keep]


def expected(name: str, given: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """What PyTorch says."""
    renamed = {
        "truediv": torch.true_divide,
        "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
        "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        "relu": torch.relu,
        "lgamma": torch.lgamma,
        "isnan": torch.isnan,
        "isinf": torch.isinf,
        "where": torch.where,
    }
    if name == "abs" and given[0].dtype == torch.bool:
        return given[0]
    return renamed.get(name, getattr(torch, name, None))(*given)
