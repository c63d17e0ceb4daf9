"""The joint graph, its partition, the flow and the memory frontier, drawn (Sections 5.3 to 5.5 and 5.8)."""

from __future__ import annotations

import json
import re

import pytest
import torch
import torch.nn.functional as F

from staxlab import view
from staxlab.autodiff.frontier import frontier
from staxlab.autodiff.network import FlowNetwork, capacity_text, maximum_flow
from staxlab.autodiff.partition import partition
from staxlab.loops.lowering import basis
from staxlab.loops.lowering.kinds import kind_of
from staxlab.options import Options
from staxlab.view.flow import MOST_VERTICES, flow_text
from staxlab.view.joint import MOST_NODES
from tests.autodiff.programs import recorded
from tests.view.reading import read, references, stripped


def joint_of(layers):
    x = torch.randn(8, 16)
    weights = [torch.randn(16, 16, requires_grad=True) for _ in range(layers)]

    def f(x, *weights):
        for w in weights:
            x = F.dropout(F.gelu(x @ w).tanh().exp(), 0.5)
        return x.sum()

    return recorded(f, [x, *weights], basis())[1]


TAKEN_BACK = FlowNetwork.of(
    8, [(0, 1, 1), (1, 4, 1), (4, 5, 1), (0, 2, 1), (2, 3, 1), (3, 4, 1), (1, 6, 1), (6, 7, 1), (7, 5, 1)], 0, 5
)
CIRCLES = FlowNetwork.of(4, [(1, 2, 3), (2, 1, 3), (0, 1, 2), (2, 3, 1), (3, 0, 5), (1, 1, 4)], 0, 3)
FLOWS = {
    "flow taken back": maximum_flow(TAKEN_BACK),
    "no flow": maximum_flow(FlowNetwork.of(2, [], 0, 1)),
    "no finite cut": maximum_flow(FlowNetwork.of(2, [(0, 1, float("inf"))], 0, 1)),
    "circles": maximum_flow(CIRCLES),
}


@pytest.fixture(scope="module")
def joint():
    return joint_of(2)


@pytest.fixture(scope="module")
def part(joint):
    return partition(joint, kind_of=kind_of)


@pytest.fixture(scope="module")
def records(joint, part):
    return FLOWS | {
        "joint": joint,
        "partition": part,
        "budget": partition(joint, Options(memory_budget=0.7), kind_of=kind_of),
        "network": part.network,
        "flow": part.flow,
        "frontier": frontier(joint, kind_of=kind_of, points=4),
    }


@pytest.mark.parametrize("name", [*FLOWS, "joint", "partition", "budget", "network", "flow", "frontier"])
def test_it_prints_and_draws_and_needs_nothing_else(name, records):
    record = records[name]
    bundle = view.mimebundle(record)
    assert bundle["text/plain"].strip() and repr(record)
    html = bundle["text/html"]
    assert "drawing failed" not in html and html == view.html(record) and references(html) == []
    tree = read(html)
    ids = [e.attributes["id"] for e in tree.walk() if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    for drawing in tree.find("svg"):
        assert drawing.attributes.get("aria-label") and drawing.find("title")
    plain = read(stripped(html))
    assert not any("hidden" in e.attributes or "visibility" in e.attributes.get("style", "") for e in plain.walk())


def test_both_sides_of_the_joint_graph_are_told_apart_by_words(joint):
    tree = read(view.html(joint))
    (drawing,) = tree.find("svg", class_="sx-joint")
    boxes = {e.attributes["data-label"]: e for e in drawing.find("g", class_="sx-node")}
    assert set(boxes) == {f"%{node.name}" for node in joint.graph if node.op != "output"}
    for node in joint.forward_nodes:
        assert boxes[f"%{node.name}"].attributes["aria-label"].endswith("; forward")
    for node in joint.backward_nodes:
        assert boxes[f"%{node.name}"].attributes["aria-label"].endswith("; backward")
    assert "forward (FW), downwards" in drawing.text and "backward (BW), upwards" in drawing.text
    edges = {e.attributes["data-edge"] for e in drawing.walk() if "data-edge" in e.attributes}
    assert edges == {f"{a.name} {b.name}" for b in joint.graph if b.op != "output" for a in b.inputs}
    places = [x_of(boxes[f"%{node.name}"]) for node in joint.forward_nodes]
    others = [x_of(boxes[f"%{node.name}"]) for node in joint.backward_nodes]
    assert max(places) < min(others)


def x_of(group):
    return float(re.match(r"translate\(([-\d.]+) ", group.attributes["transform"]).group(1))


def test_the_cut_is_drawn_on_the_joint_graph_and_told_in_the_table(part):
    tree = read(view.html(part))
    (drawing,) = tree.find("svg", class_="sx-joint")
    for fate, nodes in (("saved", part.saved), ("recomputed", part.recomputed)):
        drawn = drawing.find("g", class_=f"sx-{fate}")
        assert {e.attributes["data-label"] for e in drawn} == {f"%{node.name}" for node in nodes} != set()
        assert all(fate in e.text and e.attributes["aria-label"].endswith(fate) for e in drawn)
    text = tree.text
    assert f"{part.saved_bytes:,}" in text and "eager execution" in text and "saving all that is read" in text
    rows = {row.find("th")[0].text: row for row in tree.find("tr") if row.find("th") and row.find("td")}
    for value, decision in zip(part.values, part.decisions, strict=True):
        row = rows[f"%{value.name}"].text
        assert decision.choice in row and decision.reason in row and capacity_text(value.capacity) in row
    keys = [e.attributes["data-stage"] for e in tree.walk() if "data-stage" in e.attributes]
    assert keys == ["partition", "flow", "forward", "backward"]


@pytest.mark.parametrize("name", ["flow", "flow taken back", "no flow", "circles"])
def test_the_slider_has_a_position_for_every_path_and_the_cut(name, records):
    flow = records[name]
    (figure,) = read(view.html(flow)).find("figure", class_="sx-steps")
    words = json.loads(figure.attributes["data-words"])
    last = int(figure.attributes["data-steps"])
    assert last == len(flow.paths) + 1 and len(words) == last + 1 and words[0] == "no flow yet"
    edges = {int(e.attributes["data-edge"]): e for e in figure.walk() if "data-edge" in e.attributes}
    for e, group in edges.items():
        lit = [int(k) for k in group.attributes.get("data-lit", "").split()]
        assert lit == [k for k, path in enumerate(flow.paths, 1) if e in {arc // 2 for arc in path.arcs}]
        crossed = group.find("path", class_="sx-cut")
        assert len(crossed) == (e in flow.cut)
        # What is drawn without a script is the last state.
        for label in group.find("text"):
            texts = json.loads(label.attributes["data-texts"])
            capacity = flow.network.capacities[e]
            assert label.text == list(texts.values())[-1] == flow_text(flow.on_edges[e], capacity)
            for step, written in texts.items():
                forwards, backwards = flow.residuals(int(step))[2 * e : 2 * e + 2]
                assert written in ("", flow_text(backwards, capacity))
                assert not written or capacity == float("inf") or f"{capacity_text(forwards)} left" in written
    sides = {e.attributes["data-label"]: e for e in figure.find("g", class_="sx-node")}
    for vertex in range(flow.network.size):
        letter = "S" if vertex in flow.reachable else "T"
        assert sides[flow.network.name(vertex)].find("text", class_="sx-flow-side")[0].text == letter


def test_flow_that_is_taken_back_is_said_to_be():
    flow = FLOWS["flow taken back"]
    assert any(arc % 2 for path in flow.paths for arc in path.arcs)
    assert "← (taken back) 1 → 6" in read(view.html(flow)).text


def test_a_large_network_is_reduced_and_then_left_to_the_table():
    edges = [(0, 1, 1), (1, 2, 1)] + [(1, k, 1) for k in range(3, 400)]  # most of it leads nowhere
    text = read(view.html(maximum_flow(FlowNetwork.of(400, edges, 0, 2)))).text
    assert "397 vertices on no way from source to sink are left out" in text
    wide = [(0, k, 1) for k in range(2, 300)] + [(k, 1, 1) for k in range(2, 300)]
    tree = read(view.html(maximum_flow(FlowNetwork.of(300, wide, 0, 1))))
    assert "would explain nothing" in tree.text and not tree.find("svg", class_="sx-flow")
    assert MOST_VERTICES < 300


def test_a_large_joint_graph_is_listed():
    large = joint_of(10)
    assert len(large.graph) > MOST_NODES
    tree = read(view.html(large))
    assert "the listing has them all" in tree.text and not tree.find("svg", class_="sx-joint")


def test_the_frontier_says_in_words_what_it_draws(records):
    found = records["frontier"]
    tree = read(view.html(found))
    (chart,) = tree.find("svg")
    said = chart.attributes["aria-label"]
    assert "minimum cut" in said and "eager" in said
    assert "saved for the backward pass (bytes)" in chart.text and "done again (bytes moved)" in chart.text
    points = [int(e.attributes["data-bytes"]) for e in chart.walk() if "data-bytes" in e.attributes]
    assert points == [plan.saved_bytes for plan in found.plans]
    assert {e.attributes["data-mark"] for e in chart.walk() if "data-mark" in e.attributes} == {"minimum cut", "eager"}


def test_among_the_stages_of_a_compilation_both_graphs_are_the_operator_graphs_of_their_halves():
    import staxlab

    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    compilation = staxlab.explain(lambda x, w: F.gelu(x @ w).sum(), x, w)
    tree = read(view.html(compilation))
    keys = [e.attributes["data-stage"] for e in tree.walk() if "data-stage" in e.attributes]
    assert keys[2:6] == ["joint", "partition", "flow", "operators"] and "backward-operators" in keys
    assert not {"forward", "backward"} & set(keys)


@pytest.mark.browser
def test_the_slider_in_a_browser(page, part, tmp_path):
    flow = part.flow
    page.goto(view.write_page(tmp_path / "flow.html", flow).as_uri())
    slider = page.get_by_role("slider", name="Step")
    last = len(flow.paths) + 1
    assert slider.input_value() == str(last) and page.get_by_role("button", name="Next step").is_disabled()
    assert page.locator(".sx-cut").first.is_visible()
    slider.focus()
    page.keyboard.press("Home")
    assert page.locator("output").inner_text() == f"0 / {last}: no flow yet"
    assert not page.locator(".sx-cut").first.is_visible() and page.locator(".sx-flow-edge.sx-lit").count() == 0
    page.get_by_role("button", name="Next step").click()
    assert page.locator(".sx-flow-edge.sx-lit").count() == len(flow.paths[0].arcs)
    page.keyboard.press("Tab")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert slider.input_value() == "2"
