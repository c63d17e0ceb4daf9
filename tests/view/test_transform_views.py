"""The drawings of Section 4: passes node by node, the measure, regions, decomposition trees, storages."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

from staxlab import view
from staxlab.capture.tracer import trace
from staxlab.loops.lowering import basis
from staxlab.operators.depth import expansion, expansions
from staxlab.operators.observe import observe
from staxlab.operators.record import record
from staxlab.operators.storage import functionalized
from staxlab.transform import transform
from staxlab.view.document import SIZE_CAP
from staxlab.view.functionalization import CELLS, storage_markup
from staxlab.view.measure_chart import COMPONENTS, measure_chart, measure_points, measure_text_chart
from staxlab.view.node_difference import (
    ADDED,
    CHANGED,
    KEPT,
    REMOVED,
    changes_diagram,
    changes_listing,
    changes_text,
    node_changes,
)
from staxlab.view.theme import COLOURS, contrast
from staxlab.view.transforms import REGION_COLOURS, regions_markup
from tests.view.reading import read, references, stripped

aten = torch.ops.aten


def example_4_2(x):
    y = x * 3
    return F.selu(y) + F.selu(y * 1) * 2


def writes(x, y):
    x.mul_(2)
    y.t()[0].add_(1)
    return x + y.sum()


@pytest.fixture(scope="module")
def log():
    return transform(trace(example_4_2, (torch.randn(4, 8),), {}))


@pytest.fixture(scope="module")
def records(log):
    found = functionalized(writes, torch.ones(3), torch.arange(12.0).view(4, 3))
    table = observe(basis(), [aten.mse_loss.default, aten.cross_entropy_loss.default, aten.nll_loss_forward.default])
    return {
        "log": log,
        "functionalization": found,
        "storage": found.storages[1],
        "table": table,
        "expansion": table.expansion("aten.cross_entropy_loss.default"),
    }


NAMES = ["log", "functionalization", "storage", "table", "expansion"]


@pytest.mark.parametrize("name", NAMES)
def test_a_view_is_text_and_self_contained_html(name, records):
    bundle = view.mimebundle(records[name])
    html = bundle["text/html"]
    assert "drawing failed" not in html and bundle["text/plain"].strip() and len(html) < SIZE_CAP
    assert view.html(records[name]) == html, "drawn differently the second time"
    assert references(html) == []
    tree = read(html)
    ids = [e.attributes["id"] for e in tree.walk() if "id" in e.attributes]
    assert len(ids) == len(set(ids)) and " at 0x" not in html
    assert not any("hidden" in e.attributes for e in read(stripped(html)).walk())
    assert records[name]._repr_mimebundle_() == bundle


@pytest.mark.parametrize("name", NAMES)
def test_every_picture_speaks_and_is_one_stop_of_the_keyboard(name, records):
    for picture in read(view.html(records[name])).find("svg"):
        if picture.attributes.get("aria-hidden") == "true":
            continue  # a bar beside its number
        assert picture.attributes["role"] in ("img", "group") and len(picture.attributes["aria-label"]) > 20
        stops = sum(e.attributes.get("tabindex") == "0" for e in picture.walk())
        assert stops == 1 or not any("data-origins" in e.attributes for e in picture.walk())


# -- passes --------------------------------------------------------------------------------------------------------


def test_alone_the_log_is_a_stepper_with_a_step_per_pass_that_changed_something(log):
    stages = [e for e in read(view.html(log)).walk() if "data-stage" in e.attributes]
    assert [e.attributes["data-stage"] for e in stages] == ["transforms", *(f"pass-{k + 1}" for k in range(5))]
    titles = [e.attributes["data-title"] for e in stages[1:]]
    assert titles == [f"{run.round}. {run.name}" for run in log.changes]


def changes_of(run):
    return node_changes(run.graph_before.graph, run.graph_after.graph)


def test_nodes_are_matched_by_themselves_not_by_their_text(log):
    normalize, decompose, merge, regions, again = log.changes
    assert [(c.kind, c.node.name) for c in changes_of(normalize) if c.kind != KEPT] == [
        (REMOVED, "mul_0"), (CHANGED, "selu_0"),
    ]  # fmt: skip
    kinds = [c.kind for c in changes_of(decompose)]
    assert (kinds.count(REMOVED), kinds.count(ADDED), kinds.count(CHANGED)) == (2, 10, 2)
    kinds = [c.kind for c in changes_of(merge)]
    assert (kinds.count(REMOVED), kinds.count(ADDED)) == (5, 0)
    assert all(c.kind == KEPT for c in changes_of(regions))
    assert [c.kind for c in changes_of(again)].count(CHANGED) == 2


def test_every_node_of_both_graphs_is_there_once_in_order(log):
    for run in log.changes:
        changes = changes_of(run)
        assert [c.after.name for c in changes if c.after is not None] == [n.name for n in run.graph_after.graph]
        gone = [c.before.name for c in changes if c.kind == REMOVED]
        after = {n.id for n in run.graph_after.graph}
        assert gone == [n.name for n in run.graph_before.graph if n.id not in after]


def test_a_change_has_a_sign_and_words_as_well_as_a_colour(log):
    changes = changes_of(log.changes[0])
    lines = read(changes_listing(changes, "test")).find("span", class_="sx-line")
    signs = {e.attributes["data-change"]: e.text[0] for e in lines}
    assert signs[REMOVED] == "−" and signs[CHANGED] == "~"
    (changed,) = [e.text for e in lines if e.attributes["data-change"] == CHANGED]
    assert "# was %selu_0" in changed and "%mul_0" in changed.split("# was")[1]
    assert changes_text(changes).splitlines()[0].startswith("− %mul_0")
    drawn = read(changes_diagram(changes, "test"))
    (box,) = drawn.find("g", class_="sx-node-removed")
    assert "− removed" in box.text and "removed by this pass" in box.attributes["aria-label"]


def test_unchanged_stretches_are_counted():
    def long(x):
        for _ in range(20):
            x = x.sin()
        return 2 * x

    run = transform(trace(long, (torch.ones(3),), {})).changes[0]
    text = read(changes_listing(changes_of(run), "test")).text
    assert "nodes unchanged" in text
    shown = len(re.findall(r"%sin\w* :", text))
    hidden = int(re.search(r"… (\d+) nodes unchanged", text).group(1))
    assert shown + hidden == 21, "twenty calls and the input"


def test_a_large_graph_is_listed_and_not_drawn():
    def large(x):
        for _ in range(100):
            x = x.sin()
        return 2 * x

    run = transform(trace(large, (torch.ones(3),), {})).changes[0]
    assert changes_diagram(changes_of(run), "test") is None


# -- the measure ---------------------------------------------------------------------------------------------------


def test_the_chart_has_every_component_of_every_change(log):
    tree = read(measure_chart(log))
    for component in range(3):
        points = [e for e in tree.find("circle") if e.attributes["data-component"] == str(component)]
        drawn = [int(e.attributes["data-count"]) for e in points]
        assert drawn == [measure[component] for measure in log.measures]
        # The line goes through the points.
        line = tree.find("path", class_="sx-chart-line")[component].attributes["d"]
        heights = [float(each) for each in re.findall(r"V([\d.]+)", line)]
        all_measures = [measure for _, _, measure, _ in measure_points(log)]
        at = {measure[component]: float(e.attributes["cy"]) for e, measure in zip(points, log.measures, strict=True)}
        assert heights == [at[measure[component]] for measure in all_measures[1:]]
        # Higher counts are drawn higher.
        heights = {int(e.attributes["data-count"]): float(e.attributes["cy"]) for e in points}
        assert sorted(heights, reverse=True) == sorted(heights, key=heights.get)
    texts = [e.text for e in tree.find("text")]
    assert [axis for _, axis in COMPONENTS] == [t for t in texts if t.endswith("(count)")], "axes with units"
    rounds = [e.attributes["data-round"] for e in tree.walk() if "data-round" in e.attributes]
    assert rounds == ["1", "2", "3"]
    passes = [e.attributes["data-pass"] for e in tree.walk() if "data-pass" in e.attributes]
    assert passes == ["as captured", *(run.name for run in log.runs)]


def test_the_measure_goes_down_with_every_change_and_the_words_say_so(log):
    changed = [measure for _, number, measure, is_change in measure_points(log) if is_change or not number]
    annotating = {run.name for run in log.changes if run.name == "MarkPointwiseRegions"}
    for before, after, run in zip(changed, changed[1:], log.changes, strict=False):
        assert after < before or run.name in annotating
    said = read(measure_chart(log)).find("svg")[0].attributes["aria-label"]
    assert "Decompose in round 1 leaves (0, 15, 4)" in said and said.startswith("The measure")
    rows = measure_text_chart(log).splitlines()
    assert len(rows) == 2 + len(log.runs) and "composites" in rows[0]
    assert sum(row.endswith("changed") for row in rows) == len(log.changes)


def test_a_graph_that_nothing_changes_has_a_chart_too():
    quiet = transform(trace(lambda x: x.sin(), (torch.ones(3),), {}))
    assert "drawing failed" not in view.html(quiet) and "measure" in view.html(quiet)


# -- regions -------------------------------------------------------------------------------------------------------


def test_regions_have_a_colour_a_number_and_words():
    def two(x, w):
        return (torch.relu(x + w) * 2).sum(-1).exp() + 1

    final = transform(trace(two, (torch.ones(3, 4), torch.ones(3, 4)), {})).final.graph
    tree = read(regions_markup(final))
    drawn = {}
    for node in final:
        (box,) = [e for e in tree.find("g", class_="sx-node") if e.attributes["aria-label"].startswith(f"%{node.name}:")
                  or (node.op == "output" and e.attributes["aria-label"].startswith("return"))]  # fmt: skip
        region = node.meta.get("region")
        if region is None:
            assert "region" not in box.text and not box.has("class_", "sx-region")
        else:
            drawn[node.name] = region
            assert f"region {region}" in box.text and box.has("class_", f"sx-region-{region}")
    assert drawn == {"add": 0, "relu": 0, "mul": 0, "exp": 1, "add_0": 1}
    assert "%sum" in tree.text


@pytest.mark.parametrize("theme", (0, 1))
def test_text_on_regions_is_readable(theme):
    for number in range(REGION_COLOURS):
        for role in ("text", "muted"):
            assert contrast(COLOURS[role][theme], COLOURS[f"region-{number}"][theme]) >= 4.5, (number, role)


# -- decomposition -------------------------------------------------------------------------------------------------


def test_a_tree_says_depths_and_why_it_ends(records):
    tree = read(view.html(records["expansion"]))
    outline = tree.find("div", class_="sx-tree")[0]
    summaries = [e.text for e in outline.find("summary")]
    assert summaries == ["aten.cross_entropy_loss.default depth 2", "aten.nll_loss_forward.default depth 1"]
    leaves = [e.text for e in outline.find("li") if not e.find("summary")]
    assert leaves and all(leaf.endswith(("in the basis", "run by PyTorch")) for leaf in leaves)
    boxes = tree.find("g", class_="sx-node")
    assert len(boxes) == len(leaves) + len(summaries), "the diagram has the same nodes"


def test_what_was_taken_apart_hangs_on_the_source(records):
    inputs = [torch.rand(4, 4), torch.rand(4, 4)]
    graph = record(trace(F.mse_loss, inputs, {}).module, inputs, basis=basis())
    html = view.html(graph)
    assert "the same as trees" in html
    (tree,) = expansions(graph, basis())
    linked = [e for e in read(view.html(tree)).walk() if "data-origins" in e.attributes]
    assert {e.attributes["data-origins"] for e in linked} == {" ".join(map(str, sorted(tree.origins)))}


def test_a_large_tree_is_an_outline_only():
    rules = {"a": [f"b{k}" for k in range(80)]}
    tree = read(view.html(expansion(rules, (), "a")))
    assert not tree.find("svg") and len(tree.find("li")) == 80


def test_the_table_counts_operators_by_depth(records):
    table = records["table"]
    rows = read(view.html(table)).find("tbody")[0].find("tr")
    assert {row.find("th")[0].text: row.find("td")[0].text for row in rows} == {
        str(depth): str(len(names)) for depth, names in table.by_depth.items()
    }


# -- storages ------------------------------------------------------------------------------------------------------


def test_cells_are_what_the_memory_is(records):
    row = records["storage"]
    tree = read(storage_markup(row))
    for lane in row.lanes:
        (drawn,) = [e for e in tree.find("g") if e.attributes.get("data-lane") == lane.name]
        cells = drawn.find("rect")
        assert [int(e.attributes["data-element"]) for e in cells] == list(range(row.size))
        kinds = [next(k for k in CELLS if e.has("class_", f"sx-cell-{k}")) for e in cells]
        for place, kind in enumerate(kinds):
            assert (kind != "apart") == (place in lane.elements)
            assert (kind == "written") == (place in lane.elements and bool(lane.writers))
            assert (kind == "changed") == (place in lane.elements and place in row.written and not lane.writers)
        numbers = [e.text for e in drawn.find("text")][1:]
        assert numbers == [row.cell(lane, place) for place in sorted(lane.elements)]
    texts = [e.text for e in tree.find("text")]
    assert {"byte", "element", "44"} <= set(texts)


def test_tensors_of_several_dtypes_share_cells():
    """Complex numbers of which the real parts are written: an element of z takes two cells, one of z.real one."""

    def f(z):
        z.real.add_(1)
        return z.conj() * 2

    (row,) = functionalized(f, torch.arange(3).to(torch.complex64)).storages
    tree = read(storage_markup(row))
    assert tree.find("svg")[0].find("title")[0].text == "Storage of %z: 3 elements of complex64, 24 bytes in cells of 4"
    drawn = {
        e.attributes["data-lane"]: [t.text for t in e.find("text")][1:]
        for e in tree.find("g")
        if e.attributes.get("data-lane")
    }
    assert drawn["z"] == ["0°", "-", "1°", "-", "2°", "-"] and drawn["real"] == ["0*", "1*", "2*"]
    rows = {r.find("td")[0].text if r.find("td") else "": r.text for r in tree.find("tr")}
    assert any("float32" in text for text in rows.values()) and any("conjugated" in text for text in rows.values())
    assert {"byte", "cell", "20"} <= {e.text for e in tree.find("text")}


def test_a_lane_speaks_and_links_to_its_node(records):
    found = records["functionalization"]
    drawn = [e for e in read(view.html(found)).find("g") if e.attributes.get("data-lane") == "getitem"]
    (lane,) = drawn
    said = lane.attributes["aria-label"]
    assert said.startswith("%getitem = getitem of %t: shape (4,), stride (3,), offset 0; covers bytes 0–3, 12–15")
    assert said.endswith("written by %add")
    assert lane.attributes["data-origins"] == str(found.before.graph.find("getitem").id)


def test_both_programs_are_side_by_side_and_say_what_is_new(records):
    tree = read(view.html(records["functionalization"]))
    (columns,) = tree.find("div", class_="sx-columns")
    before, after = columns.find("pre")
    assert before.text.count("# writes") == 2 and "add_" in before.text
    assert after.text.count("# scatter inverse") == 1 and after.text.count("# write-back") == 2
    assert "add_]" not in after.text


def test_a_long_storage_is_cut_and_says_so():
    row = functionalized(lambda x: x.view(10, 10).add_(1), torch.zeros(100)).storages[0]
    tree = read(storage_markup(row))
    assert "the first 48 drawn" in tree.text
    assert max(int(e.attributes["data-element"]) for e in tree.find("rect")) == 47


def test_what_has_no_picture_is_named():
    found = functionalized(lambda x: x.t().add_(1), torch.ones(100, 100))
    assert "No picture: %x has 10,000 elements" in read(view.html(found)).text
