"""Figure 6.1: the nest of compute functions, drawn."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab import view
from staxlab.loops.composition import Applied, compose, computed_names
from staxlab.view.composition import MOST_SHOWN, composition_markup, folded
from staxlab.view.document import SIZE_CAP
from tests.view import examples
from tests.view.reading import Element, read, references, stripped


def example_1_1(x, w):
    y = torch.relu(x + w)
    return (y * 2).sum(-1)


def through_views(x):
    m = x.t().reshape(24)
    return m[3:] * 2


@pytest.fixture(scope="module")
def compilation():
    return staxlab.explain(example_1_1, torch.randn(64, 128), torch.randn(128))


@pytest.fixture(scope="module")
def record(compilation):
    return compose(compilation.loops)


def inner_boxes(element: Element) -> list[Element]:
    """The boxes directly below one, folded ones and loads."""
    return [c for c in element.children if isinstance(c, Element) and c.has("class_", "sx-box")]


def same_nest(drawn: Element, box: Applied) -> None:
    assert drawn.attributes["data-operator"] == box.operator
    (head,) = [c for c in drawn.children if isinstance(c, Element) and c.tag == "summary"]
    assert box.operator in head.text and f"tmp{box.result}" in head.text
    if box.location is not None:
        assert f"line {box.location.line}: {box.location.text}" in head.text
    own = [c.text for c in drawn.children if isinstance(c, Element) and c.has("class_", "sx-box-own")]
    assert own == list(box.own_text())
    inner = inner_boxes(drawn)
    assert len(inner) == len(box.reads)
    for part, source in zip(inner, box.reads, strict=True):
        if isinstance(source.source, Applied):
            if not source.again:
                same_nest(part, source.source)
        else:
            assert source.source.format() in part.text and part.attributes["data-buffer"] == source.source.buffer


@pytest.mark.parametrize("function", [example_1_1, through_views, lambda x: F.layer_norm(x, (6,)).exp().cumsum(0)])
def test_the_boxes_are_nested_as_the_compute_functions_are(function):
    inputs = [torch.randn(4, 6)] + ([torch.randn(6)] if function is example_1_1 else [])
    loops = staxlab.explain(function, *inputs).loops
    for name in computed_names(loops):
        made = compose(loops, name)
        (outermost,) = inner_boxes(read(composition_markup(made)).children[0])
        roots = inner_boxes(outermost)
        for drawn, (_, root) in zip(roots, made.functions, strict=True):
            same_nest(drawn, root)


def test_a_view_is_text_and_self_contained_html(record):
    bundle = record._repr_mimebundle_()
    html = bundle["text/html"]
    assert "drawing failed" not in html and len(html) < SIZE_CAP and bundle["text/plain"] == record.format()
    assert view.html(record) == html and references(html) == [] and " at 0x" not in html
    assert not any("hidden" in e.attributes for e in read(stripped(html)).walk())
    plain = read(stripped(html)).text
    assert "for i0 < 64: sum over r0 < 128 in float32" in plain and "tmp0 = load x[128*i0 + r0]" in plain


def test_every_operator_and_load_is_linked_to_the_captured_graph(record, compilation):
    drawn = read(composition_markup(record))
    ids = {node.id for node in compilation.graph}
    for box in drawn.find("details", class_="sx-box")[1:]:
        (name,) = box.find("summary")[0].find("span", class_="sx-inline")
        assert set(map(int, name.attributes["data-origins"].split())) <= ids
    stops = [e for e in drawn.walk() if e.attributes.get("tabindex") == "0"]
    assert len(stops) == 1, "one tab stop, the arrow keys go on"
    (group,) = drawn.find("div", class_="sx-boxes")
    assert group.attributes["aria-label"].startswith("Compute functions of buf0 as nested boxes: 4 compute functions")


def test_the_status_line_knows_operators_and_inputs(record):
    from staxlab.view.composition import _names

    assert sorted(name.split(" (")[0] for name in _names(record).values()) == ["add", "mul", "relu", "sum", "w", "x"]


def test_the_loader_chain_is_written_out():
    drawn = read(composition_markup(compose(staxlab.explain(through_views, torch.randn(4, 6)).loops, "buf0")))
    outer, inner = (" ".join(chain.text.split()) for chain in drawn.find("div", class_="sx-chain"))
    assert outer == "asked for at (i0,) ─ slice → (i0 + 3,) ─ reshape → (((i0 + 3) // 4), ((i0 + 3) % 4))"
    assert inner.startswith("asked for at (((i0 + 3) // 4), ((i0 + 3) % 4)) ─ t → (((i0 + 3) % 4), ((i0 + 3) // 4))")
    assert inner.endswith("─ storage strides (6, 1) → 6*((i0 + 3) % 4) + ((i0 + 3) // 4)")
    labels = [
        e.attributes["data-label"]
        for e in drawn.find("span", class_="sx-inline")
        if e.parent.has("class_", "sx-chain-step")
    ]
    line = through_views.__code__.co_firstlineno
    assert labels == [f"slice, line {line + 2}", f"reshape, line {line + 1}", f"t, line {line + 1}"]


def test_the_stage_of_the_loop_ir_has_them_folded(compilation):
    drawn = read(view.html(compilation.loops))
    (part,) = [e for e in drawn.find("details") if "data-part" in e.attributes]
    operators = [e.attributes["data-operator"] for e in part.walk() if "data-operator" in e.attributes]
    assert "open" not in part.attributes and operators == ["sum", "mul", "relu", "add"]
    assert "Figure 6.1" in part.find("summary")[0].text


def test_records_built_by_hand_are_drawn_too():
    drawn = read(folded(examples.program()))
    assert [e.attributes["data-buffer"] for e in drawn.walk() if "data-buffer" in e.attributes] == ["x", "w"]
    sorting = staxlab.explain(lambda x: x.sort()[0], torch.randn(4)).loops
    assert folded(sorting) is None


def test_a_large_program_shows_the_beginning():
    def deep(x):
        for k in range(MOST_SHOWN // 3):
            x = (x * k).exp() + x.sum(-1, keepdim=True)
        return x

    drawn = read(folded(staxlab.explain(deep, torch.randn(4, 4)).loops))
    boxes = [e for e in drawn.walk() if "data-operator" in e.attributes]
    assert len(boxes) <= MOST_SHOWN and "more buffers: compilation.loops.composition(" in drawn.text
