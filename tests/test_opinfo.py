"""PyTorch's own operator samples, through the whole compiler: every operator, not only those lowered natively.

A sample may be compiled natively, run through a library call or a fallback, or be refused when it is captured; what it
may never do is give another value, dtype or (dense) layout than eager, or crash (:mod:`staxlab.measure.survey`). All
samples of all dtypes at once are `python -m benchmarks.coverage --samples 0`.
"""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab.measure import survey

pytest.importorskip("torch.testing._internal.common_methods_invocations")
OPERATORS = survey.database()
PARTS = 6


def check(operators, dtype, limit, noncontiguous=False) -> survey.Findings:
    found = survey.survey_all(operators, dtype, staxlab.compile, limit, noncontiguous)
    assert not found.failures, "\n".join(found.failures)
    return found


@pytest.mark.parametrize("part", range(2))
def test_float32_of_every_third_operator(part):
    counts = check(OPERATORS[part * 3 :: 6], torch.float32, 1).counts
    assert counts["native"] > sum(counts.values()) / 3


@pytest.mark.slow
@pytest.mark.parametrize("noncontiguous", [False, True], ids=["contiguous", "strided"])
@pytest.mark.parametrize("part", range(PARTS))
def test_float32(part, noncontiguous):
    check(OPERATORS[part::PARTS], torch.float32, 2, noncontiguous)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", survey.DTYPES[1:], ids=str)
def test_every_second_operator_in_other_dtypes(dtype):
    check(OPERATORS[::2], dtype, 1)


NATIVE = {
    "add", "mul", "sub", "exp", "nn.functional.relu", "sum", "amax", "mean", "where", "clamp", "transpose", "cat",
    "softmax", "nn.functional.layer_norm", "nn.functional.gelu", "sigmoid", "var", "argmax",
}  # fmt: skip


def test_the_common_operators_are_compiled_natively():
    for name in NATIVE:
        op = next(op for op in OPERATORS if op.name == name)
        assert check([op], torch.float32, 1).counts == {"native": 1}, name
