"""The drawings of Section 10: decisions over a range, shape guards, exported programs, versions under one key."""

from __future__ import annotations

import math

import pytest
import torch

import staxlab
from staxlab.errors import ConstraintError
from staxlab.exporting.adjudication import IMPLIED, KEPT
from staxlab.loops.expressions import Expr, Symbol
from staxlab.shapes.range_answers import MOST_BANDS, range_answers
from staxlab.shapes.relations import Relation
from staxlab.view import exported, html
from staxlab.view.range_answers import number_line
from tests.view.reading import check_page, read

N, M = Symbol("n", 2, 4096), Symbol("m", 2, math.inf)
ANSWERS = {
    "branch": range_answers(Relation.of(N, ">", 32), 64),
    "implied": range_answers(Relation.of(N, ">=", 1), 64),
    "impossible": range_answers(Relation.of(N, "<", 2), 64),
    "open": range_answers(Relation.of(M, "!=", 10), 64),
    "square": range_answers(Relation.of(Expr.of(M) * M, "<=", 1000), 10),
    "multiples": range_answers(Relation.of(Expr.of(N) % 8, "==", 0), 64),
    "subscripts": range_answers(Relation.of(128 * Expr.of(Symbol("s", 2, 2**25)) - 1, "<", 2**31), 64),
    "one size": range_answers(Relation.of(Symbol("k", 7, 7), "==", 7), 7),
}


def bands(name):
    return [(band.lower, band.upper, band.holds) for band in ANSWERS[name].bands]


def branch(x):
    return x + 1 if x.shape[0] > 4 else x * 2


def both(x, y):
    n = x.shape[0]
    total = x + y
    return total * n if n > 1 else total


@pytest.fixture(scope="module")
def compiled():
    made = staxlab.compile(branch, dynamic=True, backend="eager")
    for n in (3, 7, 2, 9):
        made(torch.ones(n))
    return made


@pytest.fixture(scope="module")
def program():
    p, q = staxlab.Dim("p", min=2), staxlab.Dim("q", min=2, max=64)
    return staxlab.export(both, (torch.ones(8), torch.ones(8)), dims={"x": {0: p}, "y": {0: q}})


# -- decisions over a range ----------------------------------------------------------------------------------------


def test_bands_cover_the_range_and_say_what_the_relation_says():
    assert bands("branch") == [(2, 32, False), (33, 4096, True)]
    assert bands("implied") == [(2, 4096, True)] and bands("impossible") == [(2, 4096, False)]
    assert bands("open") == [(2, 9, True), (10, 10, False), (11, math.inf, True)]
    assert bands("square") == [(2, 31, True), (32, math.inf, False)]
    assert bands("subscripts") == [(2, 2**24, True), (2**24 + 1, 2**25, False)]
    for answers in ANSWERS.values():
        for band in answers.bands:
            tried = {band.lower, *([] if math.isinf(band.upper) else [band.upper, (band.lower + band.upper) // 2])}
            if band.holds is not None:
                assert {answers.relation.holds({answers.symbol.name: int(v)}) for v in tried} == {band.holds}


def test_the_narrower_range_is_the_band_of_the_sample():
    assert ANSWERS["branch"].narrower == (33, 4096) and "declare [33, 4096]" in ANSWERS["branch"].suggestion
    assert ANSWERS["implied"].suggestion == ANSWERS["impossible"].suggestion == ""
    assert "declare multiples" in ANSWERS["multiples"].suggestion


def test_a_relation_that_keeps_changing_ends_undetermined():
    answers = ANSWERS["multiples"]
    assert len(answers.bands) == MOST_BANDS and answers.bands[-1].holds is None and answers.bands[-1].upper == 4096
    assert range_answers(answers.relation, 4000).narrower is None


def test_a_band_whose_end_is_not_found_is_no_band():
    relation = Relation.of(Expr.of(M) // 100_000, "==", 0)
    assert [(band.lower, band.upper, band.holds) for band in range_answers(relation, 5).bands] == [(2, math.inf, None)]


def test_a_number_line_shows_one_size_of_its_range():
    with pytest.raises(ConstraintError, match="2 sizes"):
        range_answers(Relation.of(N, "<", M), 4)
    with pytest.raises(ConstraintError, match="sample 1 is not in"):
        range_answers(Relation.of(N, ">", 32), 1)


@pytest.mark.parametrize("name", ANSWERS)
def test_a_number_line_is_text_and_self_contained_html(name):
    html_of = html(ANSWERS[name])
    assert "drawing failed" not in html_of and str(ANSWERS[name]).splitlines()
    drawn = read(number_line(ANSWERS[name]))
    shown = [
        (e.attributes["data-lower"], e.attributes["data-answer"]) for e in drawn.find("rect", class_="sx-range-band")
    ]
    assert shown == [(str(band.lower), band.answer) for band in ANSWERS[name].bands]
    for rectangle in drawn.find("rect", class_="sx-range-band"):
        assert float(rectangle.attributes["width"]) > 0
    said = drawn.find("desc")[0].text
    assert all(f"{band.answer} on {band}" in said for band in ANSWERS[name].bands)
    assert f"size {ANSWERS[name].symbol.name} (elements, logarithmic)" in drawn.text


def test_a_number_line_is_a_whole_page():
    check_page(ANSWERS["branch"])
    assert "holds on all of [33, 4096]" in number_line(ANSWERS["branch"])


# -- shape guards --------------------------------------------------------------------------------------------------


def test_a_shape_guard_shows_condition_line_and_check(compiled):
    guard = compiled.versions[1].shape_guard
    text = read(guard._repr_mimebundle_()["text/html"]).text
    assert "x.shape[0] > 4" in text and "test_shape_views.py" in text and "s0 = inputs[0].shape[0]" in text
    assert guard._repr_mimebundle_()["text/plain"] == str(guard)


def test_a_guard_that_asks_nothing_says_so():
    def stated(x):
        y = x[x > 0]
        torch._check(y.shape[0] > 2)
        return y * 2 if y.shape[0] > 2 else y

    made = staxlab.compile(stated, dynamic=True, backend="eager")
    made(torch.ones(5))
    guard = made.versions[0].shape_guard
    assert str(guard) == "shape guard: nothing is asked at a call"
    assert "Nothing is asked at a call" in read(html(guard)).text


# -- exported programs ---------------------------------------------------------------------------------------------


def test_an_exported_program_lights_its_assertions(program):
    drawn = read(exported.asserted_graph(program))
    assert len(drawn.find("g", class_="sx-lit")) == len(program.assertions) == 3
    assert drawn.text.count("# asserted at every call") == 3


def test_decisions_are_linked_to_their_lines_and_assertions(program):
    outcomes = {a.outcome: a for a in program.adjudications}
    assert {KEPT, IMPLIED} <= set(outcomes)
    kept = outcomes[KEPT]
    added = next(node for node in program.graph if node.name == "add")
    check = next(node for node in program.assertions if kept.condition in node.args)
    assert exported.origins_of(program, kept) >= added.origins | check.origins
    rows = read(exported.decisions(program)).find("tr")
    linked = [row.attributes["data-origins"] for row in rows if "data-origins" in row.attributes]
    assert len(linked) == len(program.adjudications)
    assert str(check.id) in linked[program.adjudications.index(kept)].split()
    assert "test_shape_views.py" in rows[1].text


def test_an_exported_program_draws_its_contract_also_when_loaded(program, tmp_path):
    text = read(exported.declarations(program)).text
    assert "q in [2, 64]" in text and "p >= 2" in text and "y.shape[0]" in text and "[q]" in text
    again = staxlab.load_exported(program.save(tmp_path / "both"))
    for record in (program, again):
        bundle = record._repr_mimebundle_()
        assert "drawing failed" not in bundle["text/html"] and bundle["text/plain"] == str(record)
        assert KEPT in read(bundle["text/html"]).text
    undeclared = staxlab.export(branch, (torch.ones(8),), dims={})
    assert "Nothing was declared" in read(html(undeclared)).text
    assert "Nothing is asserted" in read(html(undeclared)).text


# -- several versions under one key --------------------------------------------------------------------------------


def test_a_report_groups_versions_by_key(compiled):
    report = compiled.report()
    assert [[v.number for v in group] for group in report.groups] == [[1, 2]] and report.tries is None
    assert [v.size_condition for v in report.versions] == ["x.shape[0] <= 4", "x.shape[0] > 4"]
    assert "version 2: x.shape[0] > 4" in report.format()


def test_a_report_says_which_version_a_call_would_meet(compiled):
    before = compiled.cache_info()
    for n, tried, met in ((2, [1], 1), (9, [1, 2], 2)):
        report = compiled.report(torch.ones(n))
        assert [one.version for one in report.tries] == tried and report.tries[-1].is_met
        drawn = read(html(report))
        lit = drawn.find("g", data_version=str(met), class_="sx-lit")
        assert (
            len(lit) == 1
            and f"meets version {met}" in drawn.find("svg", class_="sx-size-dispatch")[0].attributes["aria-label"]
        )
        assert compiled.specialize(torch.ones(n)).number == met
    report = compiled.report(torch.ones(1))
    assert report.tries == () and "no version has its key: another would be compiled" in report.format()
    assert compiled.cache_info().compilations == before.compilations, "a report compiles nothing"


def test_a_call_that_no_version_under_its_key_meets():
    made = staxlab.compile(branch, dynamic=True, backend="eager")
    made(torch.ones(3))
    report = made.report(torch.ones(9))
    assert [one.is_met for one in report.tries] == [False]
    assert report.tries[0].failed[0].path == "x.shape[0] <= 4"
    assert "none of them is met: another would be compiled" in report.format()
    assert "this call ends here" in html(report) and len(made.versions) == 1


def test_data_gates_are_among_what_a_call_does_not_meet():
    def asks(x):
        return x * 2 if x.sum() > 0 else x + x.shape[0]

    made = staxlab.compile(asks, dynamic=True, backend="eager")
    for x in (torch.ones(3), -torch.ones(4)):
        made(x)
    report = made.report(-torch.ones(6))
    assert [one.is_met for one in report.tries] == [False, True] and report.tries[1].version == 2
