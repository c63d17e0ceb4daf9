"""The picture of a compilation's path: boxes, bars, ways, kernels, rules."""

from __future__ import annotations

import re

import pytest
import torch

import staxlab
from staxlab.measure.compilation_flow import (
    NOT_REACHED,
    RAN,
    RESTORED,
    RULES,
    CompilationFlow,
    KernelPath,
    Step,
)
from staxlab.view.pipeline_flow import BAR, flow_chart
from tests.view.reading import check_page, read

STEPS = (
    Step("capture", "Captured graph", "Section 3", RAN, 0.02, "2 inputs, 3 operations", frozenset({1, 2})),
    Step("loops", "Loop IR", "Section 6", RESTORED, 0.0, ""),
    Step("kernels", "Kernels", "Sections 8 and 9", RAN, 0.01, "2 kernels"),
    Step("artifact", "Artifact", "Section 11", NOT_REACHED),
)
KERNELS = (
    KernelPath("sum_0", "C++", True, 0.001, None, frozenset({1})),
    KernelPath("mul_1", "Triton", False, 0.7, 1, frozenset({2})),
    KernelPath("sort_2", "library", None, 0.0, None, frozenset({2})),
)
FLOW = CompilationFlow("f", "cpu", "stax", False, STEPS, KERNELS, False, 2, 0.8, (1,), ("it is <planted>",))


def test_it_is_a_page():
    check_page(FLOW)
    check_page(staxlab.explain(lambda x: x.exp().sum(), torch.ones(8, requires_grad=True)).flow)


def test_a_box_for_each_stage_links_to_the_stages_of_the_explorer():
    picture = read(flow_chart(FLOW))
    boxes = {e.attributes["data-step"]: e for e in picture.walk() if "data-step" in e.attributes}
    assert [*boxes] == [step.name for step in STEPS]
    assert boxes["capture"].attributes["data-origins"] == "1 2"
    dashes = {name: box.find("rect")[0].attributes.get("stroke-dasharray") for name, box in boxes.items()}
    assert dashes["capture"] is None and len({dashes["loops"], dashes["artifact"], None}) == 3


def test_bars_are_in_proportion_to_the_time_and_say_the_share():
    picture = read(flow_chart(FLOW))
    bars = [e.attributes for e in picture.walk() if "data-seconds" in e.attributes]
    assert [float(bar["width"]) for bar in bars] == pytest.approx([BAR, BAR / 2])
    assert "20 ms 67%" in picture.text and "10 ms 33%" in picture.text and "time (share of all)" in picture.text


def test_dispatch_by_type_has_counts():
    picture = read(flow_chart(FLOW))
    boxes = [e.attributes for e in picture.walk() if "data-way" in e.attributes]
    counts = {box["data-way"]: box["data-count"] for box in boxes}
    assert counts == {"template": "0", "C++": "1", "Triton": "1", "library": "1", "PyTorch": "0", "no code": "0"}


def test_each_built_kernel_says_what_the_cache_had():
    picture = read(flow_chart(FLOW))
    kernels = {e.attributes["data-kernel"]: e for e in picture.walk() if "data-kernel" in e.attributes}
    assert {name: e.attributes["data-hit"] for name, e in kernels.items()} == {"sum_0": "yes", "mul_1": "no"}
    assert "compiled by worker 1, 700 ms" in kernels["mul_1"].text and "✓" in kernels["sum_0"].text
    assert "build pool: 2 workers, 800 ms" in picture.text


def test_many_kernels_are_cut_with_a_count():
    many = tuple(KernelPath(f"k_{k}", "C++", True) for k in range(20))
    picture = read(flow_chart(CompilationFlow("f", "cpu", "stax", False, (*STEPS,), many)))
    assert "and 4 more" in picture.text


def test_the_rule_that_applied_is_marked_by_more_than_colour():
    picture = read(flow_chart(FLOW))
    lines = {e.attributes["data-rule"]: e.attributes for e in picture.walk() if "data-rule" in e.attributes}
    assert [rule for rule, line in lines.items() if line.get("data-applied")] == ["2"]
    assert float(lines["2"]["stroke-width"]) > float(lines["1"]["stroke-width"])
    assert f"✗ APPLIED 2. {RULES[1].name}" in picture.text and picture.text.count("APPLIED") == 1
    (svg,) = picture.find("svg")
    assert "rule 2 applied" in svg.attributes["aria-label"]


def test_text_of_the_user_is_escaped():
    html = staxlab.view.html(FLOW)
    assert "it is &lt;planted&gt;" in html and "<planted>" not in html


def test_nothing_leaves_the_picture():
    for element in read(flow_chart(FLOW)).find("text"):
        x, words = float(element.attributes["x"]), element.text
        shift = {"middle": 0.5, "end": 1.0}.get(element.attributes.get("text-anchor", ""), 0.0)
        assert x - shift * 7 * len(words) >= 0 and x + (1 - shift) * 7 * len(words) <= 900, words


def test_the_explorer_shows_it_for_both_halves():
    compilation = staxlab.explain(lambda x: x.exp().sum(), torch.ones(8, requires_grad=True))
    html = staxlab.view.html(compilation)
    assert len(re.findall(r'aria-label="The path of', html)) == 2
