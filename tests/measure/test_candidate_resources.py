"""Candidates compiled ahead of time: what spills is out before anything is measured."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

import staxlab
from staxlab.errors import OptionError
from staxlab.measure.candidate_resources import candidate_resources


def heavy(*rows):
    """Several rows are held at once."""
    result = torch.softmax(rows[0], -1)
    for row in rows[1:]:
        result = result * torch.softmax(row, -1)
    return result


@pytest.mark.slow
def test_a_block_that_does_not_fit_into_registers_is_ruled_out():
    x = torch.randn(512, 2048)
    rows = [x + k for k in range(5)]
    (kernel,) = staxlab.explain(heavy, *rows, target="sm_90", strict_native=True).kernels
    tuning = kernel.tuning
    assert tuning.names == ("XBLOCK", "R0_BLOCK")
    heaviest = (1, 2048, 1, tuning.rule[-1])  # 64 elements of five rows in each thread
    found = candidate_resources(kernel, [tuning.rule, heaviest], 90)
    first, second = found.entries
    assert first.resources.spills == 0 and second.resources.spills > 0 and second.resources.registers == 255
    assert found.eligible == (tuning.rule,)
    assert "out: registers spill" in str(found) and "to be measured" in str(found)
    alone = candidate_resources(kernel, [heaviest], 90)
    assert alone.eligible == (heaviest,) and "nothing is left" in str(alone)
    bundle = found._repr_mimebundle_()
    assert "drawing failed" not in bundle["text/html"] and "registers per thread" in bundle["text/html"]


def test_what_cannot_be_compiled_says_so_and_what_has_no_configuration_is_refused():
    x = torch.randn(64, 2048)
    (kernel,) = staxlab.explain(heavy, x, x + 1, target="sm_90").kernels
    found = candidate_resources(kernel, [kernel.tuning.rule, (8, 2048, 1, 1)])
    first, second = found.entries
    assert first.resources.registers > 0 and first.excluded == ""
    assert (
        second.resources is None and "no thread can hold" in second.excluded and found.eligible == (kernel.tuning.rule,)
    )
    with pytest.raises(OptionError, match="at least one configuration"):
        candidate_resources(kernel, [])
    (plain,) = staxlab.explain(lambda x: x + 1, torch.randn(8)).kernels
    with pytest.raises(OptionError, match="no launch configuration to vary"):
        candidate_resources(plain)
