"""The table of realization decisions with its switches."""

from __future__ import annotations

import json

import pytest
import torch

import staxlab
from staxlab import view
from staxlab.measure.what_if import realization_table, what_if
from staxlab.view.document import SIZE_CAP
from tests.view.reading import read, references, stripped


def shared(x):
    a, b = x.exp(), x.tanh()
    return a.sum(-1), a.amax(-1) + b.sum(-1), b.amax(-1)


@pytest.fixture(scope="module")
def record():
    return realization_table(staxlab.explain(shared, torch.randn(4, 32)))


def test_it_prints_and_draws_itself(record):
    bundle = record._repr_mimebundle_()
    html = bundle["text/html"]
    assert "drawing failed" not in html and len(html) < SIZE_CAP and bundle["text/plain"] == record.format()
    assert view.html(record) == html and references(html) == [] and " at 0x" not in html
    assert not any("hidden" in e.attributes for e in read(stripped(html)).walk())
    plain = read(stripped(html)).text
    assert "would inline" in plain and "rule 1: exp" in plain and "as compiled" in plain


def test_all_combinations_are_in_the_page_and_each_kernel_once(record):
    (figure,) = read(view.html(record)).find("div", class_="sx-switches")
    combinations = json.loads(figure.attributes["data-combinations"])
    assert sorted(combinations) == ["00", "01", "10", "11"] and combinations[0] == "11"
    words = json.loads(figure.attributes["data-words"])
    assert len(words) == 4 and words[0].startswith("exp realized, tanh realized")
    rows = [e for e in figure.find("tr") if "data-states" in e.attributes]
    assert [e.attributes["data-states"] for e in rows] == ["0", "1", "2", "3"]
    kernels = [e for e in figure.find("details") if "data-states" in e.attributes]
    for state, outcome in enumerate(record.outcomes):
        shown = [e for e in kernels if str(state) in e.attributes["data-states"].split()]
        assert [e.find("code")[0].text for e in shown] == list(outcome.kernel_names)
    sources = {(k.name, k.source) for outcome in record.outcomes for k in outcome.kernels}
    assert len(kernels) == len(sources)


def test_one_question_and_nothing_to_ask():
    compilation = staxlab.explain(shared, torch.randn(4, 32))
    html = what_if(compilation, {"exp": "inline"})._repr_mimebundle_()["text/html"]
    assert "drawing failed" not in html and "kernels, what if" in html
    nothing = realization_table(staxlab.explain(lambda x: x.sum(-1), torch.randn(4, 8)))
    bundle = nothing._repr_mimebundle_()
    assert "No value has a choice" in bundle["text/html"] and "no value has a choice" in bundle["text/plain"]


def test_it_is_in_the_explorer_where_there_is_something_to_ask():
    asked = staxlab.explain(shared, torch.randn(4, 32))._repr_mimebundle_()["text/html"]
    assert 'data-title="What if?"' in asked
    quiet = staxlab.explain(lambda x: x * 2, torch.randn(4))._repr_mimebundle_()["text/html"]
    assert 'data-title="What if?"' not in quiet


@pytest.mark.browser
def test_switches_show_what_was_worked_out(record, page, tmp_path):
    page.goto(view.write_page(tmp_path / "what_if.html", record).as_uri())
    figure = page.locator(".sx-switches")

    def shown():
        return figure.locator("details[data-states]:not([hidden]) > summary code").all_inner_texts()

    def said():
        return figure.locator(".sx-switches-words").inner_text()

    assert shown() == list(record.outcomes[0].kernel_names)
    for exp, tanh in (("inline", "realize"), ("inline", "inline"), ("realize", "inline"), ("realize", "realize")):
        figure.locator('[data-value="exp"] button', has_text=exp).click()
        page.keyboard.press("Tab")
        tanh_button = figure.locator('[data-value="tanh"] button', has_text=tanh)
        tanh_button.focus()
        page.keyboard.press("Enter")
        outcome = record.outcome(exp=exp, tanh=tanh)
        assert shown() == list(outcome.kernel_names) and said() == record.outcome_words(outcome)
        assert tanh_button.get_attribute("aria-pressed") == "true"
        assert figure.locator("tr.sx-chosen").count() == 1
    figure.locator('tr[data-states="1"]').click()
    assert shown() == list(record.outcomes[1].kernel_names)


@pytest.mark.browser
def test_where_not_all_are_worked_out_a_switch_takes_back_the_others(page, tmp_path):
    def many(x):
        parts = [(x * k).tanh() for k in range(2, 8)]
        return [p.sum(-1) for p in parts], [p.amax(-1) for p in parts]

    table = realization_table(staxlab.explain(many, torch.randn(3, 8)))
    page.goto(view.write_page(tmp_path / "many.html", table).as_uri())
    for name in table.values[:3]:
        page.locator(f'[data-value="{name}"] button', has_text="inline").click()
        pressed = page.locator('[aria-pressed="true"]', has_text="inline")
        assert pressed.count() == 1
        assert page.locator(".sx-switches-words").inner_text() == table.outcome_words(table.outcome(**{name: "inline"}))


def test_a_large_table_stays_below_the_cap_and_a_page_has_all(tmp_path, monkeypatch):
    from staxlab.view import what_if as module

    table = realization_table(staxlab.explain(shared, torch.randn(4, 32)))
    monkeypatch.setattr(module, "ROOM", 10_000)
    cut, whole = view.html(table), view.html(table, full=True)
    assert "left out here" in cut and "left out here" not in whole and len(cut) < len(whole)
    (figure,) = read(cut).find("div", class_="sx-switches")
    first = [e for e in figure.find("details") if "0" in e.attributes.get("data-states", "").split()]
    assert first[0].find("figure", class_="sx-listing"), "what was compiled is drawn first"
    assert "left out here" not in view.write_page(tmp_path / "all.html", table).read_text()
