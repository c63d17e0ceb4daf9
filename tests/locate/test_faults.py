"""A mistake planted in each layer is found there (Algorithm 11.1)."""

from __future__ import annotations

import pytest
import torch

from staxlab import locate_error
from staxlab.locate.record import LAYERS
from tests.locate.faults import FAULTS, Fault, compiled_for, differences, pair


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_layer_of_a_planted_fault_is_found(fault: Fault, monkeypatch):
    fault.plant(monkeypatch)
    location = locate_error(compiled_for(fault), *fault.inputs(), minimise=False, options=fault.options)
    culprit = location.culprit
    assert culprit is not None and culprit.layer == fault.layer, location
    assert fault.part in culprit.part, location
    assert fault.line in " ".join(map(str, culprit.sources)), location
    assert culprit.difference is not None and fault.half == culprit.half, location


def test_each_layer_has_a_fault_and_without_one_there_is_none():
    layers = {fault.layer for fault in FAULTS}
    assert layers == {name for name, _, _ in LAYERS} and len(FAULTS) >= 12
    location = locate_error(differences, *pair())
    assert location.found == "no error" and all(check.right for check in location.checks)


def test_the_checks_inside_grow_with_the_logarithm_of_the_passes(monkeypatch):
    """Of k passes that changed something, the one at fault is found by about log2(k) runs of graphs between them."""

    def program(x):
        for k in range(12):
            x = torch.selu(x * (k + 2))
        return x + 2 + 3

    next(fault for fault in FAULTS if fault.name == "fold").plant(monkeypatch)
    location = locate_error(program, torch.randn(4), minimise=False)
    inside = [check for check in location.checks if check.name == "passes"]
    assert location.found == "transforms" and "pass Fold" in location.culprit.part
    assert len(inside) <= 5, location
