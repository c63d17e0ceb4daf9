"""CUDA Graphs around PyTorch's operators, on a device that records and replays on CPU memory."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab.backends import cudagraphs as module
from staxlab.runtime.simulated_device import SimulatedDevice
from tests.backends.programs import PROGRAMS, check, same


@pytest.fixture
def device(monkeypatch):
    simulated = SimulatedDevice()
    monkeypatch.setattr(module, "graph_device", lambda graph_module: simulated)
    return simulated


def compiled(fn, **options):
    return staxlab.compile(fn, backend="cudagraphs", strict_native=True, options=options)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_the_programs_of_the_course_are_eagers_bit_by_bit(program, device):
    inputs, call = program.make(), compiled(program.fn)
    for number in range(5):
        if number == 3:
            for x in inputs:
                x.mul_(1.5)  # the same memory with other values
        same(check(program, call, inputs), program.fn(*inputs))
    (version,) = call.versions
    report = version.compilation.outside.function.region.report()
    assert report.replays >= 3 and len(report.recordings) == 1


def test_writes_views_and_held_results(device):
    def f(x):
        x.add_(1)
        return x.t(), x * 2

    call, x, y = compiled(f), torch.zeros(2, 3), torch.zeros(2, 3)
    held = []
    for _ in range(6):
        found, expected = call(x), f(y)
        held.append((found[1], expected[1].clone()))
        same(x, y)
        assert found[0].data_ptr() == x.data_ptr()
    for result, expected in held:
        same(result, expected)


def test_options_of_compiled_regions_reach_it(device):
    call = compiled(lambda x: x + 1, graph_inputs="copy", graph_outputs="copy")
    for _ in range(6):
        x = torch.randn(3)
        same(call(x), x + 1)
    (version,) = call.versions
    assert version.compilation.outside.function.region.inputs == "copy"
    assert "replays" in version.compilation.outside.format()


def test_gradients(device):
    w = torch.ones(3, requires_grad=True)
    call = compiled(lambda w: (w.exp() * 2).sum())
    for _ in range(4):
        w.grad = None
        call(w).backward()
        torch.testing.assert_close(w.grad, 2 * w.detach().exp())


def test_an_operator_that_waits_for_the_device_is_refused(device):
    with pytest.raises(staxlab.BackendError, match="computes on the host|may compute on the host"):
        compiled(lambda x: torch.geqrf(x)[0])(torch.eye(3))


def test_without_a_gpu_it_says_so():
    with pytest.raises(staxlab.OptionError, match="needs every value on one GPU, and they are on cpu"):
        staxlab.compile(lambda x: x + 1, backend="cudagraphs")(torch.ones(2))
