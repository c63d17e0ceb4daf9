"""The order of a vectorised reduction: what is drawn is what the kernel does, bit for bit."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab
from staxlab.codegen.cpp.lanes import LaneReduction, merge_tree
from staxlab.errors import OptionError
from staxlab.options import host_instruction_set
from staxlab.view.document import SIZE_CAP
from staxlab.view.lanes import lanes_figure
from tests.view.reading import read, references, stripped

vectors = pytest.mark.skipif(host_instruction_set() == "scalar", reason="needs vector instructions")


def kernel_of(function, *inputs, **options):
    compilation = staxlab.explain(function, *inputs, options=options)
    return compilation, compilation.kernels[0]


def record(length, lanes=16, accumulators=4, **more):
    settings_ = {"kind": "sum", "dtype": torch.float32, "rows": 1, "pieces": 1, "chunk": 0, "cut_rows": False}
    return LaneReduction("k", "op0", length=length, lanes=lanes, accumulators=accumulators, **settings_ | more)


@vectors
@pytest.mark.parametrize("length", [64, 65, 100, 127, 130, 1000, 2050, 4096])
@pytest.mark.parametrize("kind", ["sum", "prod", "amax"])
def test_its_bits_are_those_of_the_kernel(length, kind):
    """A sum in another order would differ in some of sixteen rows of random numbers."""
    functions = {"sum": lambda x: x.sum(-1), "prod": lambda x: x.prod(-1), "amax": lambda x: x.amax(-1)}
    x = torch.randn(16, length).exp() if kind == "prod" else torch.randn(16, length)
    compilation, kernel = kernel_of(functions[kind], x)
    lanes = kernel.lanes()
    assert (lanes.lanes, lanes.accumulators) == (kernel.launch["vector_lanes"], kernel.launch["accumulators"])
    computed = compilation.call([x])[0]
    assert torch.equal(torch.stack([lanes.run(row) for row in x]), computed)


@vectors
@pytest.mark.parametrize("accumulators", [1, 2, 3, 5, 8])
def test_other_numbers_of_accumulators(accumulators):
    x = torch.randn(16, 1003)
    compilation, kernel = kernel_of(lambda x: x.sum(-1), x, accumulators=accumulators)
    lanes = kernel.lanes()
    assert lanes.accumulators == accumulators
    assert torch.equal(torch.stack([lanes.run(row) for row in x]), compilation.call([x])[0])


@vectors
def test_pieces_are_merged_in_order():
    x = torch.randn((1 << 17) + 37)
    compilation, kernel = kernel_of(lambda x: x.sum(), x)
    lanes = kernel.lanes()
    assert lanes.pieces > 1 and not lanes.cut_rows
    assert torch.equal(lanes.run(x), compilation.call([x])[0])
    assert "merged from left to right" in str(lanes)


@vectors
def test_rows_that_share_accumulators():
    x = torch.randn(4, 3, 6, 100).transpose(0, 1).contiguous().transpose(0, 1)
    compilation, kernel = kernel_of(lambda x: x.sum((1, 3)), torch.randn(4, 3, 6, 100))
    lanes = kernel.lanes()
    x = torch.randn(4, 3, 6, 100)
    computed = compilation.call([x])[0]
    if lanes.rows > 1:
        expected = torch.stack([torch.stack([lanes.run(x[a, :, c]) for c in range(6)]) for a in range(4)])
        assert torch.equal(expected, computed)


@given(st.integers(1, 700), st.sampled_from((4, 8, 16)), st.integers(1, 8))
@settings(max_examples=80, deadline=None)
def test_every_element_is_read_once_and_in_order(length, lanes, accumulators):
    found = record(length, lanes, accumulators)
    events = list(found.events())
    read_ = [e for event in events if event.kind == "read" for e in range(event.first, event.first + event.elements)]
    assert read_ == list(range(length))
    assert [event.masked for event in events if event.masked] == [True] * bool(length % lanes)
    short = list(found.events(2))
    assert sum(event.elements for event in short) == length and len(short) <= len(events)
    ones = torch.ones(length)
    assert found.run(ones).item() == length


@pytest.mark.parametrize(
    ("count", "tree"),
    [(1, ()), (2, ((0, 1),)), (3, ((0, 1), (0, 2))), (4, ((0, 1), (2, 3), (0, 2))),
     (5, ((0, 1), (2, 3), (0, 2), (0, 4))), (8, ((0, 1), (2, 3), (4, 5), (6, 7), (0, 2), (4, 6), (0, 4)))],
)  # fmt: skip
def test_the_tree_is_that_of_the_code_generator(count, tree):
    assert merge_tree(count) == tree


def test_what_has_no_lanes_says_so():
    _, kernel = kernel_of(lambda x: x * 2, torch.randn(64))
    with pytest.raises(OptionError, match="does not reduce along a vector"):
        kernel.lanes()
    _, fused = kernel_of(lambda x: torch.softmax(x, -1), torch.randn(8, 256))
    assert fused.lanes().kind == "amax" and fused.lanes("op1").kind == "sum"
    with pytest.raises(OptionError, match="node op9"):
        fused.lanes("op9")
    with pytest.raises(OptionError, match="keeps more than a value"):
        kernel_of(lambda x: x.argmax(-1), torch.randn(8, 256))[1].lanes().run(torch.randn(256))


# -- the picture -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [record(130), record(2050), record(70, 4, 3), record(64, 64, 1), record(1 << 20)])
def test_a_view_is_text_and_self_contained_html(lanes):
    bundle = lanes._repr_mimebundle_()
    html = bundle["text/html"]
    assert "drawing failed" not in html and len(html) < SIZE_CAP and bundle["text/plain"] == str(lanes)
    assert references(html) == [] and not any("hidden" in e.attributes for e in read(stripped(html)).walk())


def test_counts_masks_and_lit_cells_are_those_of_the_events():
    lanes = record(130)  # two blocks of 64, and a tail of 2
    (figure,) = read(lanes_figure(lanes)).find("figure")
    words = json.loads(figure.attributes["data-words"])
    events = list(lanes.events(2))
    assert int(figure.attributes["data-steps"]) == len(events) == len(words) - 1
    counts = [json.loads(e.attributes["data-texts"]) for e in figure.find("text") if "data-texts" in e.attributes]
    assert len(counts) == 4 * 16
    final = [int(list(texts.values())[-1]) for texts in counts]
    assert final == [3, 3] + [2] * 62 and sum(final) == 130
    masks = [int(e.attributes["data-mask"]) for e in figure.find("text") if "data-mask" in e.attributes]
    assert masks == [1, 1] + [0] * 14
    tail = str(words.index(next(w for w in words if "masked" in w)))
    cells = [e for e in figure.find("rect") if e.text.startswith("acc0, lane")]
    assert [e.text.split(":")[0] for e in cells if tail in e.attributes["data-lit"].split()] == [
        "acc0, lane 0", "acc0, lane 1",
    ]  # fmt: skip
    (picture,) = figure.find("svg")
    assert picture.attributes["role"] == "img" and "the other 14 lanes masked" in picture.attributes["aria-label"]
