"""Upstream gradients that are no number reach the elements that were selected, and only those."""

from __future__ import annotations

import math

import pytest
import torch

import staxlab

SELECTIONS = {
    "max": lambda x: x.max() * 2,
    "min": lambda x: x.min(),
    "median": lambda x: x.median(),
    "nanmedian": lambda x: x.nanmedian(),
    "max of rows": lambda x: x.max(1).values,
    "amax": lambda x: x.amax(1),
}


@pytest.mark.parametrize("options", [{}, {"double_backward": True}])
@pytest.mark.parametrize("upstream", [1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", SELECTIONS)
def test_gradients_are_eagers(name, upstream, options):
    function = SELECTIONS[name]
    ours = torch.tensor([[1.0, 2.0, 2.0], [0.0, 2.0, 1.0]], requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    for x, run in ((ours, staxlab.compile(function, options=options)), (theirs, function)):
        result = run(x)
        result.backward(torch.full_like(result, upstream))
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=0, equal_nan=True)
    if name in ("max", "min", "median", "nanmedian"):
        assert (theirs.grad == 0).any()


def test_it_can_be_differentiated_again():
    x = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64, requires_grad=True)
    function = staxlab.compile(lambda x: x.square().max() * x.sum(), options={"double_backward": True})
    (gradient,) = torch.autograd.grad(function(x), x, create_graph=True)
    (found,) = torch.autograd.grad(gradient.square().sum(), x)
    (gradient,) = torch.autograd.grad(x.square().max() * x.sum(), x, create_graph=True)
    (wanted,) = torch.autograd.grad(gradient.square().sum(), x)
    torch.testing.assert_close(found, wanted)
