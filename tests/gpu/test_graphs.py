"""On a CUDA device: regions recorded as CUDA graphs give eager's values, and leave nothing behind when they cannot."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab.errors import GraphWarning
from staxlab.runtime import graphs
from staxlab.runtime.graph_devices import CudaGraphDevice
from staxlab.runtime.graphs import FALLBACK, REPLAYING, GraphedRegion

pytestmark = [pytest.mark.gpu]


def graphed(fn, **options):
    return staxlab.compile(fn, options={"cuda_graphs": True, **options})


def report(f):
    return f.versions[0].compilation.graphs


PROGRAMS = {
    "pointwise": lambda x, w: torch.relu(x + w) * 2,
    "row sums": lambda x, w: (torch.relu(x + w) * 2).sum(-1),
    "softmax": lambda x, w: (x @ w).softmax(-1),
    "library product": lambda x, w: torch.relu(x @ w).sum(0),
    "two results": lambda x, w: (x.exp().sum(-1), x.exp().amax(-1)),
    "views and inputs": lambda x, w: (x.t(), x, x * w),
    "cumulative": lambda x, w: x.cumsum(0) + w,
    "scatter": lambda x, w: x.index_add(0, w[0].abs().long() % x.shape[0], x),
    "sorted": lambda x, w: torch.sort(x + w)[0] * 2,
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("options", [{}, {"graph_outputs": "copy"}, {"graph_inputs": "copy"}], ids=str)
def test_replays_give_eagers_values(name, options):
    fn = PROGRAMS[name]
    f = graphed(fn, **options)
    x, w = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    with torch.no_grad():
        for _ in range(6):
            x.normal_()
            given = x.clone() if options.get("graph_inputs") == "copy" else x
            found, expected = f(given, w), fn(given, w)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            del found
    found = report(f)
    assert found.state == REPLAYING and found.replays >= 3, str(found)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_modes_switch_it_on(mode):
    f = staxlab.compile(PROGRAMS["row sums"], mode=mode)
    x, w = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    for _ in range(4):
        torch.testing.assert_close(f(x, w), PROGRAMS["row sums"](x, w), rtol=1e-5, atol=1e-5)
    assert report(f).replays >= 2


def test_results_that_are_held_never_change():
    f = graphed(lambda x: x * 2)
    x = torch.zeros(1000, device="cuda")
    kept = []
    with pytest.warns(GraphWarning, match="clone"):
        for call in range(20):
            x.fill_(call)
            kept.append(f(x))
    for call, y in enumerate(kept):
        assert (y == 2 * call).all()
    assert dict(report(f).direct)[graphs.HELD] > 0


def test_a_loop_that_rebinds_its_result_is_replayed():
    f = graphed(lambda x: x * 2)
    x = torch.zeros(1000, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for call in range(20):
            x.fill_(call)
            y = f(x)
            assert (y == 2 * call).all()
    assert report(f).direct_calls == 1


def test_results_of_random_operators_are_eagers_in_every_call():
    def fn(x):
        return F.dropout(x + 1, 0.5)

    f = graphed(fn)
    x = torch.ones(4096, device="cuda")
    torch.manual_seed(3)
    expected = [fn(x) for _ in range(8)]
    torch.manual_seed(3)
    for y in expected:
        torch.testing.assert_close(f(x), y)
    assert report(f).replays >= 6


def test_statistics_of_batch_norm_are_updated_once_per_call():
    norm, twin = torch.nn.BatchNorm1d(16).cuda(), torch.nn.BatchNorm1d(16).cuda()
    f = staxlab.compile(norm, mode="reduce-overhead")
    x = torch.randn(32, 16, device="cuda")
    with torch.no_grad():
        for _ in range(6):
            x.normal_()
            torch.testing.assert_close(f(x), twin(x), rtol=1e-4, atol=1e-4)
            for name, value in twin.state_dict().items():
                torch.testing.assert_close(norm.state_dict()[name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_training_loop_takes_eagers_steps(set_to_none):
    torch.manual_seed(0)
    models = [torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 10)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    data, target = torch.randn(16, 32, device="cuda"), torch.randint(10, (16,), device="cuda")
    losses = []
    for model, wrap in zip(models, (lambda f: f, graphed), strict=True):
        model.cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = wrap(lambda x, y, model=model: F.cross_entropy(model(x), y))
        found = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GraphWarning)
            for _ in range(12):
                optimizer.zero_grad(set_to_none=set_to_none)
                loss = step(data, target)
                loss.backward()
                optimizer.step()
                found.append(loss.item())
        losses.append(found)
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-3, atol=1e-4)
    compilation = step.versions[0].compilation
    assert compilation.graphs.replays > 4, str(compilation.graphs)
    # The engine makes the first upstream gradient anew in every step; where, is the allocator's choice.
    assert compilation.backward.graphs.replays > 0, str(compilation.backward.graphs)


def test_two_forward_passes_before_a_backward_keep_what_they_saved():
    f = graphed(lambda x, w: (x @ w).exp().sum())
    x, w = torch.randn(8, 8, device="cuda") / 8, (torch.randn(8, 8, device="cuda") / 8).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        for _ in range(4):
            x.normal_(std=0.1)
            first = f(x, w)
            expected_first = torch.autograd.grad((x @ w).exp().sum(), w)[0]
            old = x.clone()
            second = f(x, w)
            torch.testing.assert_close(torch.autograd.grad(second, w)[0], expected_first, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(torch.autograd.grad(first, w)[0], expected_first, rtol=1e-4, atol=1e-4)
            assert torch.equal(old, x)


def test_a_recording_that_fails_leaves_no_trace():
    device = CudaGraphDevice(torch.cuda.current_device())

    def run(inputs):
        (x,) = inputs
        return (x * x.sum().item() + torch.rand_like(x) * 0,)

    region = GraphedRegion(run, device, name="reads back")
    x = torch.ones(8, device="cuda")
    with pytest.warns(GraphWarning, match="reads back runs without CUDA Graphs"):
        for call in range(5):
            x.fill_(call)
            torch.testing.assert_close(region([x])[0], torch.full_like(x, 8.0 * call * call))
    assert region.state == FALLBACK
    assert not torch.cuda.is_current_stream_capturing()
    torch.manual_seed(1)
    first = torch.rand(8, device="cuda")  # the generator does not believe that it is still recording
    torch.manual_seed(1)
    assert torch.equal(torch.rand(8, device="cuda"), first)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    other = GraphedRegion(lambda inputs: ([*inputs][0] * 2,), CudaGraphDevice(torch.cuda.current_device()))
    for _ in range(3):
        assert (other([x])[0] == 8).all()
    assert other.state == REPLAYING


def test_other_streams_and_threads_get_the_values_of_their_own_calls():
    f = graphed(lambda x: (x * 2 + 1).sum(-1))
    wrong = []

    def work(number):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), torch.no_grad():
            x = torch.zeros(256, 256, device="cuda")
            for call in range(50):
                x.fill_(number + call)
                y = f(x)
                if not (y == (2 * (number + call) + 1) * 256).all():
                    wrong.append((number, call))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_inside_a_graph_of_the_callers_the_kernels_are_recorded_there():
    f = graphed(lambda x: x * 2)
    x = torch.ones(8, device="cuda")
    for _ in range(3):
        f(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = f(x)
    x.fill_(5)
    graph.replay()
    assert (y == 10).all()


def test_recordings_give_their_memory_back():
    f = graphed(lambda x: x * 2)
    x = torch.ones(1 << 20, device="cuda")
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        f(x)
    assert torch.cuda.memory_allocated() >= before + (4 << 20)
    f.versions[0].compilation.graphed.reset()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_another_device_is_refused_before_anything_is_recorded():
    f = graphed(lambda x, w: x * 2 + w)
    x, w = torch.ones(8, device="cuda"), torch.ones(())  # a number in memory of the host
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (f(x, w) == 3).all() and (f(x, w) == 3).all()
    assert report(f).state in (graphs.REFUSED, REPLAYING)
