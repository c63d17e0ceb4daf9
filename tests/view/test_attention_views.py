"""The pictures of Section 9.10's models: self-contained, in words as well, and of what the records say."""

from __future__ import annotations

import json

import pytest
import torch

from staxlab import view
from staxlab.attention.block_mask import create_block_mask
from staxlab.attention.masks import and_masks, causal, sliding_window
from staxlab.measure.attention_state import instance_run
from staxlab.measure.attention_traffic import attention_traffic
from staxlab.measure.online_softmax import lse_derivation, monoid_laws
from staxlab.view.attention_state import picture, walk_figure
from staxlab.view.attention_traffic import capacity_chart, length_chart
from tests.view.reading import check_page, read
from tests.view.test_browser import CONTRAST

pytest.importorskip("sympy")


def masked_run(n=20):
    torch.manual_seed(1)
    q, k, v = (torch.randn(n, 8) for _ in range(3))
    mask = create_block_mask(and_masks(causal, sliding_window(7)), None, None, n, n, BLOCK_SIZE=4)
    return instance_run(q, k, v, row=3, block_mask=mask)


MASK = create_block_mask(causal, None, None, 2048, 2048)
RECORDS = {
    "instance": masked_run(),
    "too many cells": masked_run(600),
    "one key": instance_run(*torch.randn(3, 1, 4), block=(1, 1)),
    "traffic": attention_traffic(8192, 8192, 128, batch=4, query_heads=16),
    "masked traffic": attention_traffic(2048, 2048, 64, query_heads=8, key_heads=2, block_mask=MASK),
    "tiny traffic": attention_traffic(2, 3, 4, tile=(1, 1), capacity=20),
    "decoding": attention_traffic(1, 32768, 128, batch=8, query_heads=32, key_heads=8, tile=(16, 64), packed=True,
                                  splits=8),
    "laws": monoid_laws(),
    "derivation": lse_derivation(),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_a_view_is_text_and_self_contained_html(name):
    check_page(RECORDS[name])


def test_the_walk_has_a_step_for_each_block_and_one_at_each_end():
    run = RECORDS["instance"]
    figure = read(walk_figure(run)).find("figure")[0]
    words = json.loads(figure.attributes["data-words"])
    assert len(words) - 1 == int(figure.attributes["data-steps"]) == len(run.steps) + 1
    assert "not visited" in words[1] and "LSE" in words[-1]
    frames = [e for e in figure.walk() if "data-block" in e.attributes]
    assert [f.attributes["data-kind"] for f in frames] == [step.kind for step in run.steps]
    assert [f.attributes["data-lit"] for f in frames] == [str(k) for k in range(1, len(run.steps) + 1)]


def test_scores_and_states_are_the_records():
    run = RECORDS["instance"]
    drawn = read(picture(run))
    scores = [e for e in drawn.walk() if "data-score" in e.attributes]
    masked = [e for e in drawn.walk() if "data-masked" in e.attributes]
    finite = [s for step in run.steps for row in step.scores for s in row if s != float("-inf")]
    assert len(scores) == len(finite) and len(masked) == 3 * 16 - len(finite)
    sides = [float(e.attributes["width"]) for e in scores]
    order = sorted(range(len(finite)), key=lambda k: finite[k])
    assert [sides[k] for k in order] == sorted(sides), "a greater score has a greater cell"
    maxima = [json.loads(e.attributes["data-texts"]) for e in drawn.walk() if e.attributes.get("data-state") == "m"]
    assert [texts["3"] for texts in maxima] == [f"{m:.3g}" for m in run.steps[2].maximum]
    assert all(texts["0"] == "-inf" and texts["6"].startswith("LSE") for texts in maxima)


def test_traffic_is_drawn_against_length_and_storage():
    drawn = read(length_chart(RECORDS["masked traffic"]))
    curves = {e.attributes["data-curve"] for e in drawn.find("path") if "data-curve" in e.attributes}
    assert curves == {"operator by operator", "tiles of 128 x 64", "every element once"}
    assert "length N (queries and keys)" in drawn.text and "traffic (MB)" in drawn.text
    assert [e.attributes["data-mark"] for e in drawn.find("path") if "data-mark" in e.attributes] == ["with its mask"]
    drawn = read(length_chart(RECORDS["decoding"]))
    assert "keys (count)" in drawn.text and "the keys of 1 query" in drawn.text
    drawn = read(capacity_chart(RECORDS["traffic"]))
    curves = {e.attributes["data-curve"] for e in drawn.find("path") if "data-curve" in e.attributes}
    assert curves == {"largest tiles", "order N^2 d^2 / S", "operators"}
    assert "on-chip storage S (elements)" in drawn.text and "S = 102,400" in drawn.text


@pytest.mark.browser
def test_tiles_appear_one_after_the_other(page, tmp_path):
    page.goto(view.write_page(tmp_path / "run.html", RECORDS["instance"]).as_uri())
    slider = page.locator(".sx-steps-slider")
    assert slider.input_value() == "6"
    shown = "[...document.querySelectorAll('g[data-shown]')].filter(e => e.style.visibility === 'visible').length"
    bars = "[...document.querySelectorAll('rect[data-shown]')].filter(e => e.style.visibility === 'visible').length"
    for step, tiles, factors in (("0", 0, 0), ("1", 0, 0), ("2", 1, 4), ("3", 2, 4), ("5", 3, 0), ("6", 3, 0)):
        slider.fill(step)
        assert page.evaluate(shown) == tiles and page.evaluate(bars) == factors
    page.locator(".sx-steps-slider").focus()
    page.keyboard.press("ArrowLeft")
    assert slider.input_value() == "5" and page.locator("[data-block='4'].sx-lit").count() == 1


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["instance", "traffic", "derivation"])
def test_words_have_contrast_in_both_themes(browser, tmp_path, name, scheme):
    page = browser.new_context(color_scheme=scheme).new_page()
    page.goto(view.write_page(tmp_path / f"{name}.html", RECORDS[name]).as_uri())
    worst = page.evaluate(CONTRAST, ".sx-page")
    assert worst["ratio"] >= 4.5, worst
