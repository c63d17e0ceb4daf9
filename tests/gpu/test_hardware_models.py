"""On a CUDA device: the rules of occupancy against the driver's, the one-dimensional kernel against eager's values."""

from __future__ import annotations

import pytest
import torch

import staxlab
from benchmarks.hardware_models import driver_counts, occupancy_kernels, row_sum_kernel, sectors

pytestmark = [pytest.mark.gpu]


def test_registers_and_resident_blocks_are_the_drivers():
    for kernel in occupancy_kernels():
        found, driver = kernel.occupancy(), driver_counts(kernel)
        assert driver["registers"] == found.usage.registers, kernel.name
        assert driver["blocks"] == found.blocks, (kernel.name, found.summary())


def test_rows_are_summed_whatever_the_configuration():
    from staxlab.codegen.triton.launcher import load

    kernel, shape = row_sum_kernel(2, 256, 1 << 20)
    x, out = torch.randn(shape, device="cuda"), torch.empty(shape[0], device="cuda")
    load(kernel)(*(x if a.role == "input" else out for a in kernel.arguments))
    torch.testing.assert_close(out, x.sum(-1), rtol=1e-4, atol=1e-2)


def test_both_tilings_give_eagers_values():
    found = sectors(512, 1)  # compares each with eager before it is timed
    assert set(found["variants"]) == {"one dimension", "as tiled"}


def test_pictures_of_a_kernel_that_runs_here():
    x = torch.randn(4096, 512, device="cuda")
    (kernel,) = staxlab.explain(lambda x: torch.softmax(x, -1), x).kernels
    assert kernel.occupancy().blocks >= 1 and kernel.coalescing().efficiency == 1
    assert "SASS" in str(kernel.lowering_steps())
