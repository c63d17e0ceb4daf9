"""The drawings of Sections 2 and 3: right numbers, the right level lit, each component once, the slice on its graph."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab import view
from staxlab.capture.gates import replay_slice
from staxlab.capture.tracer import trace
from staxlab.options import Options
from staxlab.specialize.dispatch import CacheInfo
from staxlab.specialize.guards import Guard, components
from staxlab.specialize.report import COMPILED, EAGER, PARTS, compare, report, value_text
from staxlab.specialize.signature import compute_key
from staxlab.view.dispatch import call_path, guard_table
from staxlab.view.document import SIZE_CAP
from staxlab.view.growth import growth_chart, ticks
from staxlab.view.specialization import key_tree, steps_to
from staxlab.view.theme import BACKGROUND_ROLES, COLOURS, contrast
from tests.specialize.regions import dispatcher
from tests.view.reading import read, references, stripped

ATTACK = '</pre><script>alert("x")</script>&amp;'
LEVELS = [1, 2, 3, COMPILED, EAGER]


def record_of(level=1, same=0, fingerprint=0, key=0, compiled=0, eager=0, growth=(), name="f", **options):
    """A report with the given counts, as it is made of a dispatcher."""
    info = CacheInfo(same, fingerprint, key, compiled, len(growth), eager)
    fn = SimpleNamespace(__name__=name)
    return report(
        SimpleNamespace(
            fn=fn, options=Options(**options), cache_info=lambda: info, last_level=level, versions=(), recompiles=(),
            growth=growth,
        )
    )  # fmt: skip


def branch(x, k):
    y = x * 2
    if y.sum() > 0:
        return y * k
    return (y - k).relu()


@pytest.fixture(scope="module")
def compiled():
    """A dispatcher whose versions differ in a shape, a number and a gate."""
    made = dispatcher(branch)
    x = torch.ones(4, 8)
    for arguments in ((x, 2), (x, 2), (-x, 2), (torch.ones(6, 8), 2), (x, 3)):
        made(*arguments)
    return made


# -- what every view promises --------------------------------------------------------------------------------------


NAMES = [
    "report",
    "dispatcher",
    "version",
    "version report",
    "recompile",
    "recompile report",
    "key",
    "capture",
    "replay",
]


def records(compiled):
    found = report(compiled)
    version = compiled.versions[0]
    return dict(
        zip(
            NAMES,
            [
                found, compiled, version, found.versions[0], compiled.recompiles[-1], found.recompiles[-1], version.key,
                version.region.capture, version.region.capture.replay,
            ],
            strict=True,
        )
    )  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_view_is_text_and_self_contained_html(name, compiled):
    record = records(compiled)[name]
    bundle = view.mimebundle(record)
    html = bundle["text/html"]
    assert "drawing failed" not in html and bundle["text/plain"].strip() and len(html) < SIZE_CAP
    assert view.html(record) == html, "drawn differently the second time"
    assert references(html) == []
    tree = read(html)
    ids = [e.attributes["id"] for e in tree.walk() if "id" in e.attributes]
    assert len(ids) == len(set(ids)) and " at 0x" not in html
    assert not any("hidden" in e.attributes for e in read(stripped(html)).walk())


@pytest.mark.parametrize("name", ["report", "capture", "replay"])
def test_every_picture_speaks_and_is_one_stop_of_the_keyboard(name, compiled):
    pictures = read(view.html(records(compiled)[name])).find("svg")
    assert pictures
    for picture in pictures:
        assert picture.attributes["role"] in ("img", "group") and len(picture.attributes["aria-label"]) > 20
        assert sum(e.attributes.get("tabindex") == "0" for e in picture.walk()) == 1


def test_a_report_draws_itself(compiled):
    bundle = report(compiled)._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"} and "sx-call-path" in bundle["text/html"]
    stages = [e for e in read(bundle["text/html"]).walk() if "data-stage" in e.attributes]
    assert [e.attributes["data-stage"] for e in stages] == ["path", "versions", "recompiles", "history"]


def test_the_text_of_the_users_stays_text():
    keys = [compute_key(({ATTACK: k},), {}, parameter_name=lambda _: ATTACK) for k in range(2)]
    drawn = [
        call_path(record_of(name=ATTACK, same=1)),
        growth_chart(record_of(COMPILED, compiled=1, growth=((1, 1),), name=ATTACK)),
        guard_table(compare(keys), 2),
        key_tree(keys[0]),
    ]
    for html in drawn:
        assert (
            not read(html).find("script") and "<script" not in html and ATTACK in read(html).text + html_unescaped(html)
        )


def html_unescaped(html):
    return " ".join(value for e in read(html).walk() for value in e.attributes.values())


def test_what_is_lit_is_visible_in_both_themes():
    for theme in (0, 1):
        for role in ("added-mark", "warning", "accent", "strong-rule"):
            for background in (*BACKGROUND_ROLES, "added"):
                assert contrast(COLOURS[role][theme], COLOURS[background][theme]) >= 3, (role, background)


def test_colours_given_as_attributes_are_those_of_the_light_theme(compiled):
    light = {colours[0] for colours in COLOURS.values()} | {"none"}
    for html in (call_path(report(compiled)), growth_chart(report(compiled))):
        used = {e.attributes[a] for e in read(html).walk() for a in ("fill", "stroke") if a in e.attributes}
        assert used <= light


# -- the call path -------------------------------------------------------------------------------------------------


def counts_of(tree):
    """The numbers on the edges, by name."""
    return {e.attributes["data-count"]: e.text for e in tree.walk() if "data-count" in e.attributes}


counts = st.integers(0, 99_999)


@settings(max_examples=40)
@given(counts, counts, counts, counts, counts)
def test_the_numbers_on_the_edges(same, fingerprint, key, made, eager):
    shown = counts_of(read(call_path(record_of(1, same, fingerprint, key, made, eager))))

    def said(answer, number):
        return f"{answer}: {number:,} call{'' if number == 1 else 's'}"

    rest = made + eager
    assert shown == {
        "served-1": said("yes", same),
        "passed-1": said("no", fingerprint + key + rest),
        "served-2": said("yes", fingerprint),
        "passed-2": said("no", key + rest),
        "served-3": said("yes", key),
        "passed-3": said("no", rest),
        "served-0": said("yes", made),
        "served-eager": said("no", eager),
    }


# How many edges the call passes: down to its level, out of it, and from the compilation on to the run.
LIT_EDGES = {1: 2, 2: 3, 3: 4, COMPILED: 6, EAGER: 5}


@pytest.mark.parametrize("level", LEVELS)
def test_the_level_of_the_last_call_is_lit_and_only_that(level):
    record = record_of(level, 1, 1, 1, 1, 1)
    (picture,) = read(call_path(record)).find("svg")
    (lit,) = picture.find("g", class_="sx-lit")
    assert lit.attributes["data-level"] == str(level)
    # Not by colour alone: a row of text, a thicker frame, and words for a screen reader.
    assert "▸ taken by the last call" in lit.text and picture.text.count("▸") == 1
    (frame,) = lit.find("rect")
    assert frame.attributes["stroke-width"] == "3"
    assert "taken by the last call" in lit.attributes["aria-label"]
    name = next(s.name for s in record.stations if s.level == level)
    assert picture.attributes["aria-label"].endswith(f"The last call was taken by: {name}.")
    edges = picture.find("path", class_="sx-edge")
    assert len(edges) == 10
    assert sum(edge.has("class_", "sx-lit") for edge in edges) == LIT_EDGES[level]
    assert sum(head.has("class_", "sx-lit") for head in picture.find("path", class_="sx-arrow")) == LIT_EDGES[level]


def test_nothing_is_lit_before_the_first_call():
    (picture,) = read(call_path(record_of(0))).find("svg")
    assert not picture.find(class_="sx-lit") and "no call yet" in picture.attributes["aria-label"]


def test_the_lit_level_follows_the_calls():
    w = torch.ones(8)
    made = dispatcher(lambda x: x * w)
    x = torch.ones(8)
    seen = set()
    for argument in (x, x, x, x, torch.ones(2, 8), torch.ones(8)):
        made(argument)
        (lit,) = read(call_path(report(made))).find("g", class_="sx-lit")
        assert lit.attributes["data-level"] == str(made.last_level)
        seen.add(made.last_level)
    assert {COMPILED, 1} <= seen


def test_the_table_says_what_the_picture_says(compiled):
    record = report(compiled)
    (table,) = [t for t in read(view.html(record)).find("table") if "The call path in words" in t.text]
    rows = [[cell.text for cell in row.find("td")] for row in table.find("tr")[1:]]
    assert [(int(r[2]), int(r[3])) for r in rows] == [(s.reached, s.served) for s in record.stations]
    assert [bool(r[4]) for r in rows] == [s.is_last for s in record.stations]


def inside(box, x, y):
    left, top, width, height = box
    return left <= x <= left + width and top <= y <= top + height


def test_texts_stay_in_their_boxes_and_boxes_apart():
    record = record_of(COMPILED, 10**7, 10**7, 10**7, 255, 10**7, name="x" * 40)
    (picture,) = read(call_path(record)).find("svg")
    boxes = []
    for group in picture.find("g", class_="sx-node"):
        (frame,) = group.find("rect")
        box = [float(frame.attributes[a]) for a in ("x", "y", "width", "height")]
        boxes.append(box)
        for line in group.find("text"):
            x, y, half = float(line.attributes["x"]), float(line.attributes["y"]), len(line.text) * 7 / 2
            assert inside(box, x - half, y) and inside(box, x + half, y), line.text
    labels = [e for e in picture.walk() if "data-count" in e.attributes]
    for label in labels:
        x, y = float(label.attributes["x"]), float(label.attributes["y"])
        for box in boxes:
            assert not any(inside(box, x + k, y) for k in range(0, len(label.text) * 7, 7)), label.text
    for k, (left, top, width, height) in enumerate(boxes):
        for l2, t2, w2, h2 in boxes[k + 1 :]:
            assert left + width < l2 or l2 + w2 < left or top + height < t2 or t2 + h2 < top


# -- versions ------------------------------------------------------------------------------------------------------


def test_the_versions_and_what_they_served(compiled):
    record = report(compiled)
    (table,) = [t for t in read(view.html(record)).find("table") if t.find("caption")[0].text == "Versions"]
    rows = [[cell.text for cell in row.find("td")] for row in table.find("tr")[1:]]
    assert [row[:2] for row in rows] == [[str(v.calls), str(v.compiled_at)] for v in record.versions]
    assert sum(int(row[0]) for row in rows) == record.calls
    assert rows[1][-1].endswith("== False") and rows[0][-1].endswith("== True")


def cells_of(table):
    return {row.find("th")[0].text: row.find("td") for row in table.find("tr") if row.find("td")}


def test_a_cell_is_marked_exactly_where_it_differs_from_the_first_version(compiled):
    rows = report(compiled).rows
    first, second = read(guard_table(rows, 4)).find("table")
    shown, folded = cells_of(first), cells_of(second)
    assert list(shown) == ["x.shape[0]", "k", *(path for path in shown if path.startswith("bool"))]
    for row in rows:
        if row.is_equal:
            assert [cell.text for cell in folded.pop(row.path)] == [row.texts[0]]
            continue
        cells = shown.pop(row.path)
        assert [bool(cell.find("mark")) for cell in cells] == list(row.differs)
        assert [cell.text.removeprefix("≠ ") for cell in cells] == list(row.texts)
        assert [cell.text.startswith("≠ ") for cell in cells] == list(row.differs), "marked by colour alone"
    assert not shown and not folded


def test_eight_versions_of_three_hundred_components_stay_readable():
    weights = {f"layer{k}": torch.ones(4) for k in range(50)}
    keys = [compute_key((torch.ones(k + 2, 4), weights, k), {}) for k in range(8)]
    rows = compare(keys)
    assert len(rows) > 300
    html = guard_table(rows, 8)
    tree = read(html)
    first, second = tree.find("table")
    assert set(cells_of(first)) == {"args[0].shape[0]", "args[2]"}
    assert all(len(cells) == 8 for cells in cells_of(first).values())
    # What all agree in is one line until it is unfolded, with one column and not eight.
    (folded,) = tree.find("details")
    assert "open" not in folded.attributes and second in list(folded.walk())
    assert folded.find("summary")[0].text == f"{len(rows) - 2} components the same in all 8 versions"
    assert all(len(cells) == 1 for cells in cells_of(second).values()) and len(cells_of(second)) == len(rows) - 2
    assert len(html) < SIZE_CAP / 4


def test_one_version_has_nothing_to_compare_with():
    tree = read(guard_table(compare([compute_key((1,), {})]), 1))
    assert "one version so far" in tree.text and len(tree.find("table")) == 1 and not tree.find("mark")


# -- recompilations ------------------------------------------------------------------------------------------------


def test_each_reason_shows_expected_and_actual_side_by_side(compiled):
    record = report(compiled)
    tree = read(view.html(record))
    (stage,) = [e for e in tree.walk() if e.attributes.get("data-stage") == "recompiles"]
    folds = [e for e in stage.find("details") if e is not stage]
    assert ["open" in fold.attributes for fold in folds] == [False, False, True]
    for fold, reason in zip(folds, record.recompiles, strict=True):
        assert reason.title in fold.find("summary")[0].text
        shown = [[c.text for c in (*row.find("th"), *row.find("td"))] for row in fold.find("tr")[1:]]
        assert shown == [
            [f"version {number}", guard.path, f"− {value_text(guard.expected)}", f"+ {value_text(guard.actual)}"]
            for number, failed in reason.failures
            for guard in failed
        ]
    assert "call 5 fitted no version: version 4 was compiled" in folds[-1].text


def test_many_failures_fold():
    one, two = ([torch.ones(k) for _ in range(60)] for k in (2, 3))
    made = dispatcher(lambda xs: xs[0] + 1)
    made(one)
    made(two)
    (reason,) = report(made).recompiles
    tree = read(view.html(reason))
    assert len(tree.find("table")) == 2 and f"{len(reason.failures[0][1]) - 40} more" in tree.find("summary")[0].text
    assert sum(len(t.find("tr")) - 1 for t in tree.find("table")) == len(reason.failures[0][1]) == 60


# -- the number of versions over the calls -------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [1, 7, 150, 5000])
def test_the_chart_has_a_point_for_each_compilation_and_a_line_for_the_limit(calls):
    growth = tuple((call, k + 1) for k, call in enumerate(sorted({1, (calls + 1) // 2, calls})))
    record = record_of(COMPILED, same=calls - len(growth), compiled=len(growth), growth=growth, max_versions=4)
    (picture,) = read(growth_chart(record)).find("svg")
    points = picture.find("circle")
    assert [(int(p.attributes["data-call"]), int(p.attributes["data-versions"])) for p in points] == list(growth)
    heights = [float(p.attributes["cy"]) for p in points]
    places = [float(p.attributes["cx"]) for p in points]
    assert heights == sorted(heights, reverse=True) and places == sorted(places) and len(set(heights)) == len(growth)
    # The limit stands where a fourth version would: the steps of the counts are equal.
    (limit,) = [e for e in picture.walk() if e.attributes.get("data-limit") == "versions"]
    level = float(re.match(r"M[\d.]+ ([\d.]+)H", limit.attributes["d"]).group(1))
    labels = {e.text: float(e.attributes["y"]) - 4 for e in picture.find("text", class_="sx-label") if e.text.isdigit()
              and e.attributes["text-anchor"] == "end"}  # fmt: skip
    assert level == pytest.approx(labels["4"], abs=0.1)
    for (_, count), height in zip(growth, heights, strict=True):
        assert height == pytest.approx(labels[str(count)], abs=0.1)
    # Zero is the axis, and the line goes through the points: up at each call, level in between, on to the last call.
    frame = picture.find("path", class_="sx-chart-axis")[0].attributes["d"]
    bottom = float(re.search(r"V([\d.]+)", frame).group(1))
    assert bottom == pytest.approx(labels["0"], abs=0.1)
    (line,) = picture.find("path", class_="sx-chart-line")
    steps = re.findall(r"([MVH])([\d.]+)", line.attributes["d"])
    assert [float(v) for k, v in steps if k == "V"] == pytest.approx(heights, abs=0.1)
    right = float(re.search(r"H([\d.]+)", frame).group(1))
    assert [float(v) for k, v in steps if k in "MH"] == pytest.approx(
        [*places, places[-1] if calls == 1 else right], abs=0.1
    )
    assert "limit: 4 versions" in picture.text and "limit of 256 compilations" in picture.text
    assert "versions (count)" in picture.text
    assert ("call number (calls, logarithmic)" if calls > 200 else "call number (calls)") in picture.text
    said = picture.attributes["aria-label"]
    assert f"{growth[-1][1]} from call {growth[-1][0]:,}" in said and "4 versions and 256 compilations" in said


def test_both_limits_are_drawn_where_both_are_near():
    record = record_of(COMPILED, compiled=2, growth=((1, 1), (2, 2)), max_versions=4, max_compilations=6)
    (picture,) = read(growth_chart(record)).find("svg")
    found = [e.attributes["data-limit"] for e in picture.walk() if "data-limit" in e.attributes]
    assert found == ["versions", "compilations"] and "above this plot" not in picture.text


@given(st.integers(1, 10**7))
def test_ticks_are_few_and_apart(calls):
    for is_log in (False, True):
        found = ticks(calls, is_log)
        assert found[0] == 1 and found[-1] == calls and found == sorted(set(found)) and len(found) <= 12


# -- the tree of a key ---------------------------------------------------------------------------------------------


def leaves_of(tree):
    return [item for item in tree.find("li") if not item.find("details")]


def test_every_component_of_a_key_is_once_in_the_tree(compiled):
    model = dispatcher(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)))
    model(torch.ones(3, 4))
    nested = compute_key(({"a.b": [torch.ones(2), 1], "c]": (None,)}, "s", slice(1, 2)), {"q": 1.5}, gates=[True])
    for key in (model.versions[0].key, compiled.versions[0].key, nested):
        found = [item.text for item in leaves_of(read(key_tree(key)))]
        assert sorted(found) == sorted(f"{path} = {value_text(value)}" for path, value in components(key).items())


def test_the_tree_of_a_key_has_its_parts_and_what_hangs_there(compiled):
    tree = read(key_tree(compiled.versions[0].key))
    parts = {e.attributes["data-part"]: e for e in tree.walk() if "data-part" in e.attributes}
    assert list(parts) == list(PARTS)
    assert "open" in parts["sigma"].attributes and "empty" in parts["gamma_s"].find("summary")[0].text
    (gate,) = leaves_of(parts["gamma_g"])
    assert gate.text.startswith("bool(%gt)") and gate.text.endswith("= True")
    assert [leaf.text for leaf in leaves_of(parts["rho"])][0] == "grad_mode = True"
    summaries = [e.text for e in parts["sigma"].find("summary")]
    assert "x float32[4, 8]" in summaries and "k int 2" in summaries


@pytest.mark.parametrize(
    "path,kind,steps",
    [
        ("x.shape[0]", "shape", "x"),
        ("x.stride()", "stride", "x"),
        ("x.stride(1)", "stride", "x"),
        ("type(self.0.weight)", "type", "self .0 .weight"),
        ("type(len(vars(self.0)))", "type", "self .0"),
        ("config.shape", "value", "config .shape"),
        ("config.shape[0].dtype", "dtype", "config .shape [0]"),
        ("b['a.b'][0].dtype", "dtype", "b ['a.b'] [0]"),
        ("b['c]'].ndim", "shape", "b ['c]']"),
        ("<lambda>.__code__", "identity", "<lambda> .__code__"),
        ("memory overlap of inputs", "aliasing", ""),
        ("grad_mode", "ambient", ""),
        ("bool(%gt) at f.py:3", "gate", ""),
        ("x #2", "identity", ""),
    ],
)
def test_the_way_to_a_component(path, kind, steps):
    assert steps_to(Guard(path, "", None, kind=kind)) == steps.split()


def test_weights_hang_where_they_are_in_the_module():
    model = dispatcher(torch.nn.Sequential(torch.nn.Linear(4, 3)))
    model(torch.ones(2, 4))
    tree = read(key_tree(model.versions[0].key))
    folds = {
        e.find("summary")[0].find("code")[0].text: e for e in tree.find("details") if e.find("summary")[0].find("code")
    }
    weight = folds["self.0.weight"]
    assert "float32[3, 4]" in weight.find("summary")[0].text and len(leaves_of(weight)) == 8
    assert weight in list(folds["self.0"].walk()) and folds["self.0"] in list(folds["self"].walk())
    assert {leaf.text.split(" = ")[0] for leaf in leaves_of(folds["self.0.weight"])} >= {
        "self.0.weight.dtype", "type(self.0.weight)", "self.0.weight.shape[1]",
    }  # fmt: skip
    assert "len(vars(self.0))" in folds["self.0"].text


# -- the replay on its graph ---------------------------------------------------------------------------------------


def gated(x, w):
    y = x + w
    if y.sum() > 0:
        y = y * 2
    if int(w.max()) > 0:
        y = y - 1
    return (y.relu() * w).sum(-1)


def random_gate(x):
    noise = torch.rand(3)
    if torch.rand(()) < 2:
        return x + noise
    return x


@pytest.mark.parametrize(
    "program,inputs",
    [(gated, (torch.ones(2, 3), torch.ones(3))), (random_gate, (torch.ones(3),))],
    ids=["two", "random"],
)
def test_the_slice_is_lit_on_the_captured_graph_and_nothing_else(program, inputs):
    captured = trace(program, inputs, {}, options=Options())
    wanted = {node.id for node in replay_slice(captured.graph, captured.gates)}
    assert 0 < len(wanted) < len(list(captured.graph)) - 1
    tree = read(view.html(captured))
    (picture,) = tree.find("svg")
    nodes = picture.find("g", class_="sx-node")
    lit = [node for node in nodes if node.has("class_", "sx-lit")]
    assert {int(node.attributes["data-origins"]) for node in lit} == wanted and len(lit) == len(wanted)
    # In words as well: in the box, for a screen reader, and in the listing.
    for node in nodes:
        assert ("replayed at every call" in node.attributes["aria-label"]) == (node in lit)
    listing = tree.find("pre")[1]
    remarked = [line for line in listing.find("span", class_="sx-line") if "# replayed" in line.text]
    assert {int(line.attributes["data-origins"]) for line in remarked} == wanted and len(remarked) == len(wanted)
    gates = {int(node.attributes["data-origins"]) for node in lit if node.has("class_", "sx-gate")}
    assert gates == {gate.node.id for gate in captured.gates}
    for number, gate in enumerate(captured.gates, 1):
        (node,) = [n for n in lit if n.attributes["data-origins"] == str(gate.node.id)]
        assert f"gate {number}: {gate.value!r}" in node.text
    assert captured.replay.path_condition in tree.text
    operations = sum(node.op == "call_function" or node.op == "call_method" for node in captured.graph)
    ran = sum(node.id in wanted and node.op.startswith("call") for node in captured.graph)
    assert f"{ran} of {operations} operations" in tree.text
    assert ("forked random generator" in tree.text) == (program is random_gate)


def test_a_graph_without_gates_has_nothing_lit():
    captured = trace(lambda x: x + 1, (torch.ones(3),), {}, options=Options())
    tree = read(view.html(captured))
    assert not tree.find(class_="sx-lit") and "replay" not in tree.text


def test_a_replay_by_itself(compiled):
    replay = compiled.versions[0].region.capture.replay
    bundle = view.mimebundle(replay)
    assert bundle["text/plain"].endswith("path condition: " + replay.path_condition)
    (picture,) = read(bundle["text/html"]).find("svg")
    nodes = [n for n in picture.find("g", class_="sx-node") if not n.has("class_", "sx-node-output")]
    assert all(node.has("class_", "sx-lit") for node in nodes)
