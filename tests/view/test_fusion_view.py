"""The heatmap of fusion and the dependence graph with its kernels: what is drawn is what the record says."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab import view
from staxlab.measure.fusion_gap import fusion_history, gap
from staxlab.view.dependences import dependence_diagram, schedule_edges
from staxlab.view.document import SIZE_CAP
from staxlab.view.fusion import heatmap
from tests.view.reading import read, references, stripped


def losses(x, w, b, y):
    h = F.layer_norm(x, (384,), w, b)
    return torch.softmax(h @ y, -1), h.sum(0), (h @ y).amax(-1)


@pytest.fixture(scope="module")
def compilation():
    return staxlab.explain(losses, torch.rand(256, 384), torch.rand(384), torch.rand(384), torch.rand(384, 384))


@pytest.fixture(scope="module")
def history(compilation):
    return fusion_history(compilation, best=True)


def test_a_view_is_text_and_self_contained_html(history, compilation):
    for record in (history, gap(compilation), compilation.schedule):
        bundle = record._repr_mimebundle_()
        html = bundle["text/html"]
        assert "drawing failed" not in html and len(html) < SIZE_CAP
        assert view.html(record) == html and references(html) == [] and " at 0x" not in html
        assert not any("hidden" in e.attributes for e in read(stripped(html)).walk())
    assert history._repr_mimebundle_()["text/plain"] == history.format()


def test_every_step_shows_every_pair_and_no_other(history):
    picture = read(heatmap(history))
    (figure,) = picture.find("figure")
    assert int(figure.attributes["data-steps"]) == len(history.steps) - 1
    words = json.loads(figure.attributes["data-words"])
    assert len(words) == len(history.steps)
    shown = [e for e in picture.find("g") if "data-shown" in e.attributes and "aria-label" in e.attributes]
    for number, step in enumerate(history.steps):
        said = [e.attributes["aria-label"] for e in shown if str(number) in e.attributes["data-shown"].split()]
        wanted = [str(pair) for pair in step.pairs for _ in pair.first for _ in pair.second]
        wanted += [
            f"share the kernel {' + '.join(group)}"
            for group in step.groups
            for _ in range(len(group) * (len(group) - 1) // 2)
        ]
        assert len(said) == len(wanted)
        assert sorted(s[max(s.find("share the kernel"), 0) :] for s in said) == sorted(wanted)


def test_without_a_script_the_last_step_is_drawn(history):
    last = str(len(history.steps) - 1)
    for e in read(heatmap(history)).find("g"):
        if "data-shown" in e.attributes:
            assert (e.attributes.get("visibility") == "hidden") == (last not in e.attributes["data-shown"].split())


def test_a_rule_is_said_in_words_and_shown_by_more_than_colour(history):
    picture = read(heatmap(history))
    (said,) = (e.text for e in picture.find("figcaption"))
    rules = {pair.rule for step in history.steps for pair in step.pairs if pair.rule}
    assert rules and all(f" {rule} (" in said for rule in rules)
    hatched = [e for e in picture.find("path") if e.has("class_", "sx-heat-hatch")]
    letters = [e for e in picture.find("text") if e.has("class_", "sx-heat-rule")]
    assert len(hatched) == len(letters) > 0


def test_the_kernel_of_every_node_is_said_at_every_step(history):
    homes = [e for e in read(heatmap(history)).find("text") if "data-texts" in e.attributes]
    assert len(homes) == len(history.nodes)
    for node, home in zip(history.nodes, homes, strict=True):
        texts = {int(k): v for k, v in json.loads(home.attributes["data-texts"]).items()}
        for number, step in enumerate(history.steps):
            said = texts[max(k for k in texts if k <= number)]
            assert said == next(group[0] for group in step.groups if node.name in group)
        assert home.text == next(group[0] for group in history.groups if node.name in group)


def test_a_large_program_is_left_to_the_tables(history):
    import dataclasses

    many = dataclasses.replace(history, nodes=history.nodes * 9)
    assert "would explain nothing" in heatmap(many)


@pytest.mark.parametrize("program", ["dot", None])
def test_kernels_are_frames_round_their_nodes(compilation, program):
    nodes, groups, edges = schedule_edges(compilation.schedule)
    picture = read(dependence_diagram(nodes, groups, edges, "Kernels", program=program))
    assert len(picture.find("rect", class_="sx-hull")) == sum(len(group) > 1 for group in groups)
    drawn = [e for e in picture.find("g") if e.has("class_", "sx-node")]
    assert len(drawn) == len(nodes)
    lines = [e for e in picture.find("g") if e.has("class_", "sx-flow-edge")]
    inside = [e for e in lines if "within the kernel" in e.attributes["aria-label"]]
    home = {name: k for k, group in enumerate(groups) for name in group}
    assert len(inside) == len({(a, b) for a, b, _, _ in edges if home[a] == home[b] and a != b})
    assert len(lines) - len(inside) == len({(home[a], home[b]) for a, b, _, _ in edges if home[a] != home[b]})
    assert all("stroke-dasharray" in e.find("path")[0].attributes for e in inside)
    for kernel in picture.find("g", class_="sx-kernel"):
        (hull,) = kernel.find("rect", class_="sx-hull")
        assert float(hull.attributes["width"]) > 0


def test_an_edge_says_its_buffers(compilation):
    nodes, groups, edges = schedule_edges(compilation.schedule)
    drawing = read(dependence_diagram(nodes, groups, edges, "Kernels"))
    said = " ".join(e.attributes.get("aria-label", "") for e in drawing.walk())
    assert all(buffer in said for _, _, buffer, _ in edges)


@pytest.mark.browser
def test_the_slider_goes_over_the_merges(history, page, tmp_path):
    page.goto(view.write_page(tmp_path / "fusion.html", history).as_uri())
    slider = page.locator(".sx-steps-slider").first

    def visible() -> list[str]:
        return page.evaluate(
            "() => [...document.querySelectorAll('.sx-heat g[data-shown][aria-label]')]"
            ".filter(e => getComputedStyle(e).visibility === 'visible').map(e => e.getAttribute('aria-label'))"
        )

    for number in (0, len(history.steps) // 2, len(history.steps) - 1):
        slider.evaluate("(e, n) => { e.value = n; e.dispatchEvent(new Event('input')); }", str(number))
        step = history.steps[number]
        wanted = {str(pair) for pair in step.pairs}
        assert {said for said in visible() if " share the kernel" not in said} == wanted
