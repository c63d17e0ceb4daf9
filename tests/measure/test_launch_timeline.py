"""The host and device timeline of Section 9.9: the simulation against closed forms, and its pictures."""

from __future__ import annotations

import json
import re
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import staxlab
from staxlab.errors import OptionError
from staxlab.measure import launch_timeline as model
from staxlab.measure.launch_timeline import DEVICE, HOST, launch_timeline, measured_costs, region_timeline

DURATION = st.fractions(0, 20, max_denominator=8)
KERNELS = st.lists(DURATION, max_size=12)


@given(KERNELS, DURATION)
def test_the_simulation_takes_the_closed_forms_time(kernels, launch):
    run = model.run_launches(kernels, launch)
    assert run.total == model.launched_time(kernels, launch)
    estimate = model.first_order(kernels, launch)
    assert estimate <= run.total <= estimate + min(len(kernels) * launch, sum(kernels))
    if kernels:
        alike = [kernels[0]] * len(kernels)
        gap = model.launched_time(alike, launch) - model.first_order(alike, launch)
        assert gap == min(launch, kernels[0])


@given(KERNELS, DURATION)
def test_lanes_never_do_two_things_at_once_and_no_kernel_precedes_its_launch(kernels, launch):
    run = model.run_launches(kernels, launch)
    for name in (HOST, DEVICE):
        lane = run.lane(name)
        assert len(lane) == len(kernels)
        assert all(a.end <= b.start for a, b in zip(lane, lane[1:], strict=False))
    for host, device in zip(run.lane(HOST), run.lane(DEVICE), strict=True):
        assert host.end <= device.start and host.kernel == device.kernel
    assert run.idle_seconds + sum(kernels) == max((span.end for span in run.lane(DEVICE)), default=0)


@given(KERNELS, DURATION)
def test_a_graph_has_one_wait_and_no_gaps(kernels, graph):
    run = model.run_graph(kernels, graph)
    assert run.total == (model.graph_time(kernels, graph) if kernels else 0)
    assert run.idle_seconds == (graph if kernels else 0)


@given(st.integers(1, 60), *(st.fractions(Fraction(1, 8), 20, max_denominator=8) for _ in range(3)))
def test_the_speedup_stays_below_both_of_its_bounds(n, t, launch, graph):
    found = model.speedup(n, t, launch, graph)
    assert found < model.speedup_bound(t, launch)
    assert found < n * max(launch, t) / graph
    assert found == model.first_order([t] * n, launch) / model.graph_time([t] * n, graph)
    assert model.speedup(10**9, t, launch, graph) > model.speedup_bound(t, launch) * Fraction(999, 1000)


def test_where_launches_begin_to_decide():
    work, launch = Fraction(12), Fraction(2)
    star = model.crossing(work, launch)
    assert star == 6
    for n in range(1, 20):
        timeline = launch_timeline([work / n] * n, launch=launch, graph=1)
        assert timeline.host_bound == (n > star) and timeline.crossing == star
    assert model.crossing(work, 0) == float("inf") and model.speedup_bound(0, launch) == float("inf")


def test_no_kernels_and_free_launches():
    nothing = launch_timeline([], launch=1e-6, graph=1e-6)
    assert nothing.launched.total == 0 == nothing.graph.total and nothing.speedup == 1 == nothing.bound
    assert "0 kernels" in str(nothing)
    free = launch_timeline([1e-6, 2e-6], launch=0, graph=0)
    assert free.speedup == 1 and free.launched.idle == () and not free.host_bound


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kernels": [1e-6], "launch": -1e-6, "graph": 0}, "launch must be a time"),
        ({"kernels": [1e-6], "launch": 1e-6, "graph": float("inf")}, "graph must be a time"),
        ({"kernels": [1e-6, "2"], "launch": 1e-6, "graph": 1e-6}, "kernel 2 must be a time"),
        ({"kernels": [1e-6], "launch": 1e-6}, "graph is missing"),
    ],
)
def test_bad_durations_are_refused(given, words):
    with pytest.raises(OptionError, match=words):
        launch_timeline(**given)


def test_measured_costs_are_read_and_never_invented(tmp_path):
    with pytest.raises(OptionError, match=r"no measurement(.|\n)*benchmarks.cuda_graphs"):
        measured_costs(tmp_path / "missing.json")
    file = tmp_path / "found.json"
    file.write_text(json.dumps({"costs": {"launch_s": 3e-6, "graph_s": 8e-6}, "device_present": True}))
    timeline = launch_timeline([1e-6] * 4, costs=measured_costs(file))
    assert (timeline.launch, timeline.graph_launch) == (3e-6, 8e-6) and "found.json" in str(timeline)
    file.write_text(json.dumps({"costs": {"launch_s": 3e-6, "graph_s": 8e-6}, "device_present": False}))
    with pytest.raises(OptionError, match="without a GPU"):
        measured_costs(file)
    for text in ("{}", "[]", "not json", '{"costs": {"launch_s": "x", "graph_s": 1}}'):
        file.write_text(text)
        with pytest.raises(OptionError, match="no record"):
            measured_costs(file)


def test_a_compiled_region_has_a_timeline_by_its_bytes():
    """Example 6.2: two kernels, the first of which reads 64 x 16384 numbers."""
    x = torch.randn(64, 16384)
    compilation = staxlab.explain(lambda x: (x * x).sum(-1), x, target="sm_90")
    timeline = region_timeline(compilation, launch=4e-6, graph=8e-6)
    partial = 4 * 128
    expected = [(4 * 64 * 16384 + partial) / 3.35e12, (partial + 4 * 64) / 3.35e12]
    assert timeline.kernels == pytest.approx(expected) and "modelled" in str(timeline)
    assert timeline.host_bound
    with pytest.raises(OptionError, match="no kernels for a GPU"):
        region_timeline(staxlab.explain(torch.relu, torch.randn(4)), launch=4e-6, graph=8e-6)


def test_the_picture_in_characters_has_both_lanes_of_both_runs():
    timeline = launch_timeline([1.5e-6] * 12, launch=4e-6, graph=7e-6)
    lines = timeline.picture().split("\n")
    assert [line[:7].strip() for line in lines[:4]] == ["host", "device", "host", "device"]
    assert "·" in lines[1] and set(lines[2][8:]) <= set("G ") and "49.5 us" in lines[4]


@pytest.mark.parametrize("kernels", [[1.5e-6] * 12, [9e-6] * 3, [1e-7], [2e-6, 50e-6, 1e-6], [1e-6] * 400, [1e9]])
def test_the_drawing_has_words_axes_and_every_kernel(kernels):
    timeline = launch_timeline(kernels, launch=4e-6, graph=7e-6)
    bundle = timeline._repr_mimebundle_()
    page = bundle["text/html"]
    assert timeline.summary() in bundle["text/plain"]
    assert page.count("<svg") == 2 and page.count('role="img"') == 2 and page.count("aria-label") >= 2
    for words in ("time (microseconds)", "n: kernels (count)", "times faster", "host", "device", "idle"):
        assert words in page
    drawn = min(len(kernels), 200)
    numbers = re.findall(r'data-kernel="(\d+)"', page)
    assert numbers.count("1") == 3 and numbers.count(str(drawn)) == (3 if drawn > 0 else 0)
    assert "http" not in page.replace("http://www.w3.org", "")
    if len(kernels) > 200:
        assert "the first 200 are drawn" in page


def test_idle_time_is_drawn_as_long_as_it_is():
    timeline = launch_timeline([1e-6] * 3, launch=4e-6, graph=7e-6)
    page = timeline._repr_mimebundle_()["text/html"]
    idle = [float(value) for value in re.findall(r'data-idle="([\d.e-]+)"', page)]
    assert idle == pytest.approx([4e-6, 3e-6, 3e-6, 7e-6])
