"""The cases of the GPU benchmark, without a GPU: what they move, and that each is the kernels its name says."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import staxlab
from benchmarks.gpu import all_cases, cross_entropy_case, fused_cases, norm_case, rms_case


@pytest.mark.parametrize("case", fused_cases(), ids=lambda case: case.title)
def test_reductions_share_a_kernel_that_moves_the_least(case):
    rows, columns = 512, case.shapes[0][1]
    again = {"layer_norm": norm_case, "rms_norm": rms_case}.get(case.name)
    if again is not None:
        small = again((rows, columns), case.dtype)
    elif case.labels:
        small = cross_entropy_case((rows, columns))
    else:
        share = case.elements / case.shapes[0][0]
        small = dataclasses.replace(case, shapes=((rows, columns),), elements=int(share * rows))
    inputs = small.inputs(0, "cpu")
    compilation = staxlab.explain(small.function, *inputs, target="sm_90", strict_native=True)
    (kernel,) = compilation.kernels
    assert kernel.bytes_read + kernel.bytes_written == small.least_bytes


def test_the_head_of_a_case_is_its_first_rows_in_double_precision():
    case = cross_entropy_case((600, 40))
    x, labels = case.head(case.inputs(0, "cpu"), 5)
    assert x.shape == (5, 40) and x.dtype == torch.float64 and labels.shape == (5,) and labels.dtype == torch.int64
    x, weight, bias = norm_case((600, 40)).head(norm_case((600, 40)).inputs(0, "cpu"), 5)
    assert x.shape == (5, 40) and weight.shape == bias.shape == (40,)


def test_every_case_has_a_title_of_its_own():
    for cases in (all_cases(), fused_cases()):
        assert len({case.title for case in cases}) == len(cases)
