"""A mistake planted in each layer is found there (Algorithm 11.1)."""

from __future__ import annotations

import pytest

from staxlab import locate_error
from tests.locate.faults import FAULTS, Fault, compiled_for


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_layer_of_a_planted_fault_is_found(fault: Fault, monkeypatch):
    before = locate_error(fault.program, *fault.inputs(), minimise=False, options=fault.options)
    assert before.found == "no error", before
    fault.plant(monkeypatch)
    location = locate_error(compiled_for(fault), *fault.inputs(), minimise=False, options=fault.options)
    culprit = location.culprit
    assert culprit is not None and culprit.layer == fault.layer, location
    assert fault.part in culprit.part, location
    assert fault.line in " ".join(map(str, culprit.sources)), location
    assert culprit.difference is not None and fault.half == culprit.half, location
