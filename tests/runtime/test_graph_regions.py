"""Compiled regions as CUDA graphs on a simulated device: their wrappers, halves, options, and the static check."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

import staxlab
from staxlab.autodiff.runtime import TrainingRegion
from staxlab.autodiff.split import only_gradients, prune_tangents
from staxlab.errors import GraphWarning, OptionError
from staxlab.options import Options
from staxlab.pipeline import _spread, _tensor_constants
from staxlab.runtime import graphs
from staxlab.runtime.graph_checks import GraphCheck, check_region, check_schedule
from staxlab.runtime.graphs import REPLAYING
from staxlab.runtime.simulated_device import SimulatedDevice, SimulatedError, simulated_region
from tests.runtime.test_graphs import counted, doubled, simple


def explained(fn, *inputs, **options):
    options = {"target": "sm_90", "mode": "reduce-overhead", **options}
    return staxlab.explain(fn, *inputs, **options)


PROGRAMS = {
    "pointwise": lambda x, w: torch.relu(x + w) * 2,
    "two results": lambda x, w: (x.softmax(-1), (x * w).sum(0)),
    "library product": lambda x, w: torch.relu(x @ w).sum(-1),
    "sorted": lambda x, w: torch.sort(x + w)[0] * 2,
    "view of the input": lambda x, w: (x.t(), x * 2, x),
    "scatter": lambda x, w: x.index_add(0, torch.tensor([0, 2, 2]), w[:3]),
    "cumulative": lambda x, w: x.cumsum(0) + w,
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("outputs", ["reuse", "copy"])
def test_compiled_regions_replay_their_own_wrapper(name, outputs):
    fn = PROGRAMS[name]
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    compilation = explained(fn, x, w, options={"graph_outputs": outputs})
    f = simulated_region(compilation)
    constants = [c for c in compilation.loops.inputs if c.name not in ("x", "w")]
    more = _tensor_constants(compilation) if constants else []
    for _ in range(4):
        x.normal_(), w.normal_()
        expected = fn(x, w)
        expected = expected if isinstance(expected, tuple) else (expected,)
        found = f([x, w, *more])
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)
        del found, a
    assert compilation.graphs.state == REPLAYING and compilation.graphs.replays == 3


def test_batch_norm_in_training_updates_its_statistics_once_per_call():
    norm = torch.nn.BatchNorm1d(6)
    twin = torch.nn.BatchNorm1d(6)
    x = torch.randn(5, 6)
    with torch.no_grad():
        compilation = explained(norm, x)
        norm.load_state_dict(twin.state_dict())
        f = simulated_region(compilation)
        for _ in range(5):
            x.normal_()
            flat = compilation.capture.bind((x,), {})
            (y, *_) = f([*flat, *_tensor_constants(compilation)])
            torch.testing.assert_close(y, twin(x))
            for name, value in twin.state_dict().items():
                torch.testing.assert_close(norm.state_dict()[name], value)
            del y
    assert f.replays == 4


def test_forward_and_backward_are_recorded_by_themselves():
    x = torch.randn(6, 8, requires_grad=True)
    w = torch.randn(8, 8, requires_grad=True)
    compilation = explained(lambda x, w: torch.relu(x @ w).exp().sum(), x, w)
    assert compilation.graphs.check.allowed and compilation.backward.graphs.check.allowed
    forward, backward = simulated_region(compilation), simulated_region(compilation.backward)
    places = only_gradients(prune_tangents(compilation.partition, frozenset()))[1]
    count = len(compilation.joint.primals)
    trained = TrainingRegion(
        compilation.joint, forward, compilation.partition.places,
        lambda undefined: lambda inputs: _spread(backward(inputs), places, count), None,
    )  # fmt: skip
    one = torch.ones(())  # the upstream gradient; a new one in every step would be at a new address
    for _ in range(6):
        with torch.no_grad():
            x.normal_(std=0.3)
        (loss,) = trained([x, w])
        found = torch.autograd.grad(loss, (x, w), one)
        expected = torch.autograd.grad(torch.relu(x @ w).exp().sum(), (x, w))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        del loss, found
    assert forward.replays > 2 and backward.replays > 2, (forward.report(), backward.report())
    # Two forward passes before a backward: what the first has saved must survive the second.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        first, second, third = (trained([x, w])[0] for _ in range(3))
    for loss in (third, second, first):
        torch.testing.assert_close(torch.autograd.grad(loss, w)[0], expected[1], rtol=1e-4, atol=1e-5)


# -- the static check --------------------------------------------------------------------------------------------------


def test_modes_and_options_switch_it_on():
    assert not Options.resolve().cuda_graphs
    assert Options.resolve(mode="reduce-overhead").cuda_graphs and Options.resolve(mode="max-autotune").cuda_graphs
    assert not Options.resolve(mode="max-autotune-no-cudagraphs").cuda_graphs
    assert not Options.resolve(mode="reduce-overhead", options={"cuda_graphs": False}).cuda_graphs
    for name, value in (("cuda_graphs", 1), ("graph_inputs", "move"), ("graph_outputs", True)):
        with pytest.raises(OptionError, match=name):
            Options.resolve(options={name: value})


def test_without_being_asked_there_is_no_report():
    assert staxlab.explain(doubled, torch.ones(3), target="sm_90").graphs is None


def test_on_a_cpu_the_option_changes_nothing():
    f = staxlab.compile(lambda x: x * 2, mode="reduce-overhead")
    x = torch.ones(3)
    assert f(x).tolist() == [2.0] * 3
    report = f.versions[0].compilation.graphs
    assert report.state == graphs.REFUSED and "CPU" in report.summary()
    assert [d.choice for d in report.decisions] == ["not checked", "broken", "run as it is"]
    assert not any("CUDA" in str(d) and d.choice == "record" for d in f.versions[0].compilation.decisions)


def test_data_dependent_shapes_are_refused_with_node_and_line():
    with pytest.warns(staxlab.FallbackWarning):
        report = explained(lambda x: x[x > 0] * 2, torch.randn(4)).graphs
    (obstacle,) = report.check.obstacles
    assert obstacle.condition == 1 and "depends on data" in str(report) and "x[x > 0]" in str(report)
    assert "remedy: use an operator whose result has a shape known beforehand" in str(report)
    assert [d.choice for d in report.decisions] == ["broken", "not checked", "run as it is"]


def test_operators_that_wait_for_the_device_are_refused_with_node_and_line():
    report = explained(lambda x: torch.linalg.eigvalsh(x @ x.t()) + 1, torch.randn(4, 4)).graphs
    assert report.state == graphs.REFUSED
    (obstacle,) = report.check.obstacles
    assert obstacle.node and "eigvalsh" in str(obstacle.where) and "host" in obstacle.reason


def test_a_foreign_operator_is_refused_for_what_it_may_do_on_the_host():
    @torch.library.custom_op("staxlab_graph_tests::tripled", mutates_args=())
    def tripled(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    tripled.register_fake(lambda x: torch.empty_like(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = explained(lambda x: tripled(x) + 1, torch.randn(4)).graphs
    assert report.state == graphs.REFUSED, str(report)
    assert any(o.condition in (1, 3) and "tripled" in str(o) for o in report.check.obstacles)


def test_random_numbers_are_registered_and_not_refused():
    report = explained(lambda x: torch.nn.functional.dropout(x, 0.5) + 1, torch.randn(8)).graphs
    assert report.check.allowed and report.check.draws
    assert any(d.topic == "cuda-graph-randomness" for d in report.decisions)


def test_a_tensor_on_another_device_is_refused():
    schedule = explained(lambda x, w: (x * 2 + w).sum(), torch.ones(3), torch.ones(3)).schedule
    layouts = {name: replace(layout, device="cuda:0") for name, layout in schedule.layouts.items()}
    assert check_schedule("f", replace(schedule, layouts=layouts)).allowed
    layouts["w"] = replace(layouts["w"], device="cpu")
    (obstacle,) = check_schedule("f", replace(schedule, layouts=layouts)).obstacles
    assert obstacle.condition == 3 and obstacle.node == "w" and "an input on cpu" in obstacle.reason
    layouts["w"] = replace(layouts["w"], device="cuda:1")
    assert check_schedule("f", replace(schedule, layouts=layouts)).obstacles[0].reason.startswith("an input on cuda:1")


def test_what_cannot_be_simulated_says_why():
    with pytest.raises(OptionError, match='target="sm_90"'):
        simulated_region(staxlab.explain(doubled, torch.ones(3), mode="reduce-overhead"))
    with pytest.raises(OptionError, match="not recorded"):
        simulated_region(explained(lambda x: torch.linalg.eigvalsh(x), torch.eye(3)))


def test_the_simulated_device_refuses_what_a_gpu_refuses():
    device = SimulatedDevice()
    for run in (lambda x: (torch.nonzero(x),), lambda x: (x[x > 0],), lambda x: (bool(x.any()),)):
        with pytest.raises((SimulatedError, RuntimeError)):
            device.record(simple(run), [torch.ones(3)], ())
        assert not device.is_capturing()


def test_nothing_is_executed_while_recording():
    device, x, state = SimulatedDevice(), torch.ones(3), torch.zeros(3)
    graph, (y,) = device.record(simple(counted), [x, state], ())
    assert state.tolist() == [0.0] * 3 and y.tolist() != [1.0] * 3
    device.replay(graph)
    assert state.tolist() == [1.0] * 3 == y.tolist()


def test_the_report_prints_and_draws():
    x = torch.ones(8)
    compilation = explained(lambda x: x * 2, x)
    f = simulated_region(compilation)
    for _ in range(4):
        f([x])
    text = str(compilation.graphs)
    assert "replaying, 1 recording, 3 calls replayed, 1 run as they are" in text and "test_graph_regions.py" in text
    assert "CUDA Graphs (Section 9.9)" in compilation.format()
    drawn = compilation.graphs._repr_mimebundle_()
    assert "<svg" in drawn["text/html"] and drawn["text/plain"].strip() == text.strip()
    assert "aria-label" in drawn["text/html"] and "http" not in drawn["text/html"].replace("http://www.w3.org", "")
    assert "CUDA Graphs" in compilation._repr_mimebundle_()["text/html"]


def test_a_check_by_itself_prints():
    assert "holds" in str(GraphCheck("f")) and "holds" not in str(GraphCheck("f", looked_at=()))
    assert check_region(explained(lambda x: x + 1, torch.ones(2))).allowed
