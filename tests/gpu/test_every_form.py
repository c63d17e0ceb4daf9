"""Every form of kernel once on a CUDA device, from the table that the interpreter's tests read too."""

from __future__ import annotations

import pytest
import torch

import staxlab
from benchmarks.kernel_forms import FORMS, placed, spaced, spoiled

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::UserWarning")]

BY_NAME = {form.name: form for form in FORMS}
#: On a device additions come in another order than in eager execution there, which has one of its own.
LEAST_TOLERANCE = 1e-6


def agrees(form, inputs: list[torch.Tensor]) -> None:
    inputs = [placed(tensor, "cuda") for tensor in inputs]
    compiled, wanted = staxlab.compile(form.function, strict_native=True), form.function(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    bound = form.tolerance and max(form.tolerance, LEAST_TOLERANCE)
    first = compiled(*inputs)
    for result in (first, compiled(*inputs)):
        result = result if isinstance(result, tuple) else (result,)
        for one, other in zip(result, wanted, strict=True):
            assert one.dtype == other.dtype and one.stride() == other.stride()
            torch.testing.assert_close(one, other, rtol=bound, atol=bound, equal_nan=True)


@pytest.mark.parametrize("name", BY_NAME)
def test_values(name):
    form = BY_NAME[name]
    agrees(form, form.inputs())
    for sizes in form.others:
        agrees(form, form.inputs(sizes))


@pytest.mark.parametrize("name", BY_NAME)
def test_values_with_gaps_and_special_ones(name):
    form = BY_NAME[name]
    inputs = form.inputs(form.values_at or form.sizes)
    if form.strided:
        agrees(form, [spaced(tensor) for tensor in inputs])
    if form.special:
        agrees(form, [spoiled(tensor) for tensor in inputs])


@pytest.mark.parametrize("columns", [33, 1000, 4000, 40000])
def test_rows_written_where_they_stood_repeat_bit_by_bit(columns):
    """A lane that stored before another one had loaded would give other bits, in some run."""

    def function(x, w):
        return torch.softmax(x @ w, -1)

    x, w = torch.randn(2048, 16, device="cuda"), torch.randn(16, columns, device="cuda")
    compiled = staxlab.compile(function)
    first = compiled(x, w)
    decisions = compiled.versions[0].compilation.schedule.memory.decisions
    assert any(d.topic == "in place" and d.choice for d in decisions)
    torch.testing.assert_close(first, function(x, w), rtol=1e-4, atol=1e-5)
    for _ in range(20):
        assert torch.equal(compiled(x, w), first)
