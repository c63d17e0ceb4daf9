"""Searches on a CUDA device: right results before and after, spills excluded, records read, and no trace left."""

from __future__ import annotations

import math

import pytest
import torch

import staxlab
from staxlab.options import SEARCH_METHODS
from staxlab.runtime import autotune_record
from staxlab.runtime.autotune_launch import KernelCost, TunedLauncher, spills_of

pytestmark = [pytest.mark.gpu]


def example_1_1(x, w):
    return (torch.relu(x + w) * 2).sum(-1)


def product_of_softmaxes(*rows):
    result = torch.softmax(rows[0], -1)
    for row in rows[1:]:
        result = result * torch.softmax(row, -1)
    return result


def tuned(function, method="candidates"):
    return staxlab.compile(function, strict_native=True, options={"autotune": method})


CASES = {
    "persistent": (example_1_1, [(512, 256), (512, 256)]),
    "rectangle": (lambda x, y: x.t() + y, [(1024, 512), (512, 1024)]),
    "long row": (lambda x: torch.softmax(x, -1), [(256, 3000)]),
    "split": (lambda x: (x * x).sum(-1), [(64, 16384)]),
}
#: Random search compiles sixty kernels for each: one case of it is enough.
RUNS = [(m, n) for m in SEARCH_METHODS for n in CASES if m != "random" or n == "persistent"]


@pytest.mark.parametrize(("method", "name"), RUNS)
def test_every_method_finds_a_configuration_that_is_right(cache_dir, method, name):
    function, shapes = CASES[name]
    inputs = [torch.randn(shape, device="cuda") for shape in shapes]
    compiled = tuned(function, method)
    with torch.no_grad():
        first, second = compiled(*inputs), compiled(*inputs)
    torch.testing.assert_close(first, function(*inputs), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    searches = compiled.versions[-1].compilation.artifact.searches
    assert searches
    for search in searches.values():
        assert search.complete and (not search.trials or math.isfinite(search.cost))
        assert "drawing failed" not in search._repr_mimebundle_()["text/html"] and str(search)
    assert len(list(cache_dir.glob("autotune-*.json"))) == len(searches)


def test_a_second_process_would_read_the_record(cache_dir):
    inputs = [torch.randn(512, 256, device="cuda") for _ in range(2)]
    first = tuned(example_1_1)
    first(*inputs)
    second = staxlab.compile(lambda x, w: example_1_1(x, w), options={"autotune": True})
    second(*inputs)
    (one,), (other,) = (c.versions[-1].compilation.artifact.searches.values() for c in (first, second))
    assert other.reason.startswith("recorded: ") and other.chosen == one.chosen
    autotune_record.clear()
    assert not list(cache_dir.glob("autotune-*.json"))


def test_a_scatter_is_not_added_twice(cache_dir):
    index = torch.randint(64, (4096,), device="cuda")
    values, target = torch.ones(4096, 32, device="cuda"), torch.zeros(64, 32, device="cuda")
    compiled = tuned(lambda t, v, i: t.index_add(0, i, v))
    with torch.no_grad():
        result = compiled(target, values, index)
    torch.testing.assert_close(result, target.index_add(0, index, values), rtol=0, atol=0)
    assert target.abs().sum() == 0


def test_an_update_in_place_happens_once(cache_dir):
    def function(x):
        x.mul_(2).add_(1)
        return x.sum(-1)

    x = torch.randn(512, 256, device="cuda")
    again = x.clone()
    compiled = tuned(function)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), function(again), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(x, again, rtol=0, atol=0)


def test_spilling_configurations_are_excluded():
    rows = [torch.randn(512, 2048, device="cuda") for _ in range(5)]
    compilation = staxlab.explain(product_of_softmaxes, *rows, strict_native=True)
    (kernel,) = compilation.kernels
    heaviest = (1, 2048, 1, kernel.tuning.rule[-1])  # 64 elements of five rows in each thread
    from staxlab.codegen.triton.launcher import load
    from staxlab.runtime.autotune_launch import EventTimer

    known = dict(zip(compilation.schedule.inputs, rows, strict=True))
    tensors = [known.get(a.buffer, torch.empty_like(rows[0])) for a in kernel.arguments]
    cost = KernelCost(kernel.tuning, load, EventTimer(), tensors)
    assert math.isinf(cost(heaviest)) and "spill" in cost.excluded[heaviest]
    seconds = cost(kernel.tuning.rule)
    assert 0 < seconds < 1 and spills_of(cost.launchers[kernel.tuning.rule]) == 0


def test_nothing_is_measured_while_a_graph_is_recorded(cache_dir):
    x, w = (torch.randn(512, 256, device="cuda") for _ in range(2))
    compilation = staxlab.explain(example_1_1, x, w, strict_native=True)
    (kernel,) = compilation.kernels
    launcher, out = TunedLauncher(kernel), torch.empty(512, device="cuda")
    launcher.rule(x, w, out)  # compiled before anything is recorded
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launcher(x, w, out)
    assert launcher.search is None
    out.zero_()
    graph.replay()
    torch.testing.assert_close(out, example_1_1(x, w), rtol=1e-5, atol=1e-4)
    launcher(x, w, out)
    assert launcher.search is not None
