"""Floating-point numbers that do not fit an integer: C++ leaves open what they become, eager execution does not."""

from __future__ import annotations

import math

import pytest
import torch

import staxlab
from tests.codegen.cpp_support import RUNNABLE

NUMBERS = (
    math.nan, math.inf, -math.inf, 1e10, -1e10, 3e9, -3e9, 2.0**31, -(2.0**31) - 1, 1e20, -1e20, 9.3e18, -9.3e18, 300.7,
    -1.5, -300.2, 7e4, -7e4, 255.9, 128.0, -129.0, 1e30, 4e9, 1.8e19,
)  # fmt: skip
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def compare(fn, *inputs, instruction_set):
    compiled = staxlab.compile(fn, options={"instruction_set": instruction_set})
    for result, wanted in zip(compiled(*inputs), fn(*inputs), strict=True):
        torch.testing.assert_close(result, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("instruction_set", RUNNABLE)
@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_out_of_range_become_what_they_become_in_eager_execution(dtype, instruction_set):
    x = torch.tensor(NUMBERS * 3, dtype=torch.float64).to(dtype)

    def convert(x):
        return tuple((x * 1).to(integer) for integer in INTEGERS)

    compare(convert, x, instruction_set=instruction_set)
    compare(convert, x[:3], instruction_set=instruction_set)


@pytest.mark.parametrize("instruction_set", RUNNABLE)
@pytest.mark.parametrize("number", (math.nan, math.inf, 1e10, -1e10, 300.7, -1.5))
def test_constants_out_of_range_are_not_converted_by_the_compiler(number, instruction_set):
    """A compiler folds such conversions, to the nearest integer there is, where the processor does not."""

    def convert(x):
        made = [torch.full((20,), number, dtype=torch.float32).to(integer) for integer in INTEGERS]
        return (*made, (torch.full((3, 5), number, dtype=torch.float64).to(torch.int32) + x).sum(0))

    compare(convert, torch.zeros(5, dtype=torch.int32), instruction_set=instruction_set)


@pytest.mark.parametrize("instruction_set", RUNNABLE)
def test_multiples_of_a_constant_out_of_range(instruction_set):
    def convert(x):
        return tuple((torch.arange(5) * 1e10).to(integer) for integer in INTEGERS)

    compare(convert, torch.zeros(1), instruction_set=instruction_set)
