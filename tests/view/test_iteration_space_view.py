"""Iteration spaces, drawn: a dot for each iteration with the right number, arrows where one waits for the other."""

from __future__ import annotations

import re

import pytest

from staxlab import view
from staxlab.polyhedral import affine_schedule, dependences, loop_nest, make_permutable, transform, transformed
from staxlab.polyhedral.distances import running_pairs
from staxlab.polyhedral.grid import grid
from staxlab.polyhedral.integers import apply
from staxlab.view.document import SIZE_CAP
from staxlab.view.iteration_space import DASHES, MOST_ARROWS, waiting
from tests.polyhedral.nests import STENCIL, WRITTEN
from tests.view.reading import read, references, stripped

NEST = loop_nest(STENCIL)
FOUND = dependences(NEST)
RECORDS = {
    "nest": NEST,
    "dependences": FOUND,
    "one loop": loop_nest(WRITTEN["in place"]),
    "open sizes": loop_nest("for i in range(N):\n    w[i] = w[i - 1]"),
    "transformation": make_permutable(FOUND),
    "not legal": transform(FOUND, [[0, 1], [1, 0]]),
    "tiles": transformed(NEST, None, (2, 3)),
    "skewed tiles": transformed(NEST, [[1, 0], [1, 1]], (2, 3)),
    "schedule": affine_schedule(FOUND),
    "two statements": affine_schedule(dependences(loop_nest(WRITTEN["two statements"]))),
    "no schedule": affine_schedule(
        dependences(loop_nest("for i in range(N):\n    for j in range(N):\n        s += x[i, j]"))
    ),
    "not uniform": loop_nest(WRITTEN["not uniform"]),
    "from data": loop_nest("for i in range(5):\n    h[k[i]] += x[i]"),
    "nothing waits": loop_nest(WRITTEN["pointwise"]),
    "triangle": dependences(loop_nest(WRITTEN["triangle"])),
    "three loops": loop_nest(WRITTEN["three loops"]),
    "large": loop_nest("for i in range(90):\n    for j in range(90):\n        w[i, j] = w[i - 1, j]"),
}


def pictures(record):
    return [figure.find("svg")[0] for figure in read(view.html(record)).find("figure", class_="sx-map")]


def dots(picture):
    """{iteration: number in its dot}, and where its centre is."""
    found = {}
    for dot in picture.find("g", class_="sx-node"):
        point = tuple(int(x) for x in re.findall(r"-?\d+", dot.attributes["data-point"]))
        (circle,), (text,) = dot.find("circle"), dot.find("text")
        assert text.text == dot.attributes["data-number"]
        found[point] = (int(text.text), float(circle.attributes["cx"]), float(circle.attributes["cy"]))
    return found


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_is_text_and_self_contained_html(name):
    record = RECORDS[name]
    bundle = record._repr_mimebundle_()
    html = bundle["text/html"]
    assert "drawing failed" not in html and len(html) < SIZE_CAP and references(html) == [] and " at 0x" not in html
    assert bundle["text/plain"].startswith(record.format()) and view.html(record) == html
    assert not any("hidden" in e.attributes for e in read(stripped(html)).walk())
    for picture in pictures(record):
        assert picture.attributes["aria-label"] == picture.find("title")[0].text and "iterations" in picture.text
        width, height = (float(picture.attributes[key]) for key in ("width", "height"))
        for circle in picture.find("circle"):
            x, y = float(circle.attributes["cx"]), float(circle.attributes["cy"])
            assert 12 < x < width - 12 and 12 < y < height - 12
        words = [e for e in picture.find("text") if e.attributes.get("class") in ("sx-count", "sx-label")]
        assert all(float(e.attributes["x"]) + 7 * len(e.text) / 2 <= width + 1 for e in words)


def test_the_numbers_say_when_an_iteration_runs():
    (picture,) = pictures(NEST)
    assert {p: k for p, (k, _, _) in dots(picture).items()} == {p: k for k, p in enumerate(NEST.points())}
    before, after = pictures(RECORDS["not legal"])
    order = list(transformed(NEST, [[0, 1], [1, 0]]).order())
    assert {p: k for p, (k, _, _) in dots(after).items()} == {p: k for k, p in enumerate(order)}
    # The outer loop downwards, the inner one to the right, also after the change.
    for picture, rows in ((before, ((1, 0), (0, 1))), (after, ((0, 1), (1, 0)))):
        found = dots(picture)
        places = {p: apply(rows, p) for p in found}
        for p, (_, x, y) in found.items():
            for q, (_, u, v) in found.items():
                assert (places[p][0] < places[q][0]) == (y < v) and (places[p][1] < places[q][1]) == (x < u)


def test_tiles_and_dates_are_in_the_dots():
    (picture,) = pictures(RECORDS["tiles"])
    tiles = sorted({(i // 2, j // 3) for i, j in NEST.points()})
    assert {p: k for p, (k, _, _) in dots(picture).items()} == {
        p: tiles.index((p[0] // 2, p[1] // 3)) for p in NEST.points()
    }
    first, fronts = pictures(RECORDS["schedule"])
    for picture in (first, fronts):
        assert {p: k for p, (k, _, _) in dots(picture).items()} == {p: 2 * p[0] + p[1] for p in NEST.points()}
    columns = {x for _, x, _ in dots(fronts).values()}
    assert len(columns) == len(RECORDS["schedule"].dates), "a column for each date"


def arrows(picture):
    return picture.find("path", class_="sx-chart-line")


def test_arrows_lead_from_source_to_target_and_differ_by_dashes():
    for record in (NEST, RECORDS["triangle"], RECORDS["one loop"]):
        nest = getattr(record, "nest", record)
        found = waiting(dependences(nest), nest)
        assert {(s, t) for _, s, t in found.arrows} == running_pairs(nest)
        assert len(found.legend) == len({k for k, _, _ in found.arrows})
        (picture,) = pictures(record)
        drawn = arrows(picture)
        assert len(drawn) == len(found.arrows)
        assert {a.attributes.get("stroke-dasharray") for a in drawn} == {DASHES[k] for k, _, _ in found.arrows}
        said = {dot.attributes["aria-label"] for dot in picture.find("g", class_="sx-node")}
        for target, sources in found.before.items():
            ours = [words for words in said if words.startswith(f"iteration ({', '.join(map(str, target))}):")]
            assert len(ours) == 1 and f"({', '.join(map(str, sources[-1]))})" in ours[0]


def test_many_pairs_are_thinned_out_and_said_to_be():
    dense = waiting(RECORDS["not uniform"] and dependences(RECORDS["not uniform"]), RECORDS["not uniform"])
    assert dense.arrows and all((s, t) in running_pairs(RECORDS["not uniform"]) for _, s, t in dense.arrows)
    large = loop_nest("for i in range(15):\n    for j in range(15):\n        w[i, j] = w[i - 1, j] + w[i, j - 1]")
    thin = waiting(dependences(large), large)
    assert len(thin.arrows) == 2 < MOST_ARROWS < len(running_pairs(large))
    assert len(thin.before) == 15 * 15 - 1, "the words know them all"
    assert "depends on data" in view.html(RECORDS["from data"])
    assert "No iteration waits for another." in view.html(RECORDS["nothing waits"])


def test_what_is_not_drawn_is_said():
    for name in ("three loops", "large"):
        assert pictures(RECORDS[name]) == [] and "are drawn; here are the numbers" in view.html(RECORDS[name])
        assert "Dependences: which accesses meet" in view.html(RECORDS[name])


def test_the_table_has_a_row_for_each_dependence_with_its_image():
    tree = read(view.html(RECORDS["transformation"]))
    (table,) = tree.find("table")
    rows = [[cell.text for cell in row.children] for row in table.find("tbody")[0].find("tr")]
    assert [row[:4] for row in rows] == [
        ["RAW (true)", "w", "(1, 0)", "(1, 1)"], ["RAW (true)", "w", "(0, 1)", "(0, 1)"],
        ["RAW (true)", "w", "(1, -1)", "(1, 0)"],
    ]  # fmt: skip
    assert "fully permutable" in tree.text and "for t1 in range(i + 1, i + 7):" in tree.text


def test_the_same_iteration_is_linked_in_both_pictures():
    before, after = pictures(RECORDS["transformation"])
    for picture in (before, after):
        keys = [dot.attributes["data-origins"] for dot in picture.find("g", class_="sx-node")]
        assert sorted(keys) == sorted(f"x{i}_{j}" for i, j in NEST.points())


def test_a_grid_for_the_terminal():
    assert grid(((0, 1), (1, 0)), lambda p: sum(p) + 9, ("i", "j")) == "    j=0 j=1\ni=0      10\ni=1  10"
    assert grid(((2,), (3,)), lambda p: p[0], ("i",)).splitlines()[0].split() == ["i=2", "i=3"]
    assert grid((), str, ("i",)) == "no iterations"
    plain = RECORDS["schedule"]._repr_mimebundle_()["text/plain"]
    assert "i=3   7   8   9  10  11  12" in plain and "Wavefronts" in plain
