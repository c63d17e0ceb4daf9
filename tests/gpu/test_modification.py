"""Modifications traced with captured tensors on a CUDA device (Section 9.10)."""

from __future__ import annotations

import pytest
import torch

from staxlab.attention.modification import Modification, modification
from staxlab.loops.formatting import body_lines
from tests.attention.variants import VARIANTS, Variant

pytestmark = [pytest.mark.gpu]


def traced(variant: Variant, device: str) -> list[tuple[Modification, list[torch.Tensor]]]:
    made = variant.make(device=device)
    found = []
    for function, kind in ((made.score_mod, "score"), (made.mask_mod, "mask")):
        if function is not None:
            result = modification(function, kind, variant.sizes.scores, device=device)
            found.append((result, [c.tensor for c in result.captured]))
    return found


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_body_does_not_depend_on_the_device(variant: Variant):
    """The same statements, the same derivative and the same captured tensors, on the device."""
    for (ours, tensors), (reference, expected) in zip(traced(variant, "cuda"), traced(variant, "cpu"), strict=True):
        assert [x.text for x in body_lines(ours.body)] == [x.text for x in body_lines(reference.body)]
        if ours.kind == "score":
            assert str(ours.adjoint) == str(reference.adjoint)
        assert [c.path for c in ours.captured] == [c.path for c in reference.captured]
        for found, wanted in zip(tensors, expected, strict=True):
            assert found.is_cuda and torch.equal(found.cpu(), wanted)
