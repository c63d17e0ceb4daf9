"""Words in pictures cover nothing that must be read."""

from __future__ import annotations

import re

import torch
import torch.nn.functional as F

import staxlab
from staxlab import view
from staxlab.view.charts import CHARACTER, free_spot
from tests.view.reading import read


def test_words_go_to_the_first_spot_where_they_cover_nothing():
    taken = [(0, 0, 100, 20)]
    spots = [(10, 10), (10, 30), (10, 60)]
    assert free_spot(spots, "words", taken) == (10, 60)  # 11 pixels above 30 is still taken
    assert taken[1] == (10, 49, 10 + 5 * CHARACTER, 63)
    assert free_spot([(10, 58), (60, 60)], "words", taken) == (60, 60)
    assert free_spot([(200, 60)], "words", taken, ends=True) == (200, 60)
    assert taken[-1][2] == 200
    assert free_spot([(20, 15), (95, 15)], "words", taken) == (95, 15)  # if there is none: where they cover least


def test_no_label_of_a_flow_network_covers_a_vertex_a_cross_or_another_label():
    def function(x, w, v):
        h = F.gelu(x @ w)
        return torch.tanh((h / h.sum(-1, keepdim=True)) @ v).sum()

    x, w, v = (torch.randn(n, m).requires_grad_() for n, m in ((32, 64), (64, 64), (64, 16)))
    figure = read(view.html(staxlab.explain(function, x, w, v).partition.flow))
    (picture,) = figure.find("svg", class_="sx-flow")
    width = float(picture.attributes["width"])
    boxes = []
    for node in picture.find("g", class_="sx-node"):
        across, down = map(float, re.findall(r"-?[\d.]+", node.attributes["transform"]))
        (frame,) = node.find("rect")
        wide, high = float(frame.attributes["width"]) / 2, float(frame.attributes["height"]) / 2
        boxes.append((across - wide, down - high, across + wide, down + high))
    for cross in picture.find("path", class_="sx-cut"):
        left, below = map(float, re.match(r"M([\d.]+) ([\d.]+)", cross.attributes["d"]).groups())
        boxes.append((left, below - 12, left + 14, below))
    labels = picture.find("text", class_="sx-flow-label")
    assert len(labels) > 10
    for label in labels:
        left, base = float(label.attributes["x"]), float(label.attributes["y"])
        box = (left, base - 9, left + CHARACTER * len(label.text), base + 1)
        assert box[2] <= width, f"{label.text} is cut off"
        for other in boxes:
            apart = box[2] <= other[0] or other[2] <= box[0] or box[3] <= other[1] or other[3] <= box[1]
            assert apart, f"{label.text} covers something at {other}"
        boxes.append(box)
