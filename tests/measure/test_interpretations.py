"""One compute function under all its handlers, row by row."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab import view
from staxlab.errors import OptionError
from staxlab.measure.interpretations import interpretations
from tests.view.reading import read, references


def example_1_1(x, w):
    return (torch.relu(x + w) * 2).sum(-1)


def example_6_3(x):
    return x[(torch.arange(16) * 3) % 16] * 2


def shown(function, *inputs):
    here, gpu = staxlab.explain(function, *inputs), staxlab.explain(function, *inputs, target="sm_90")
    return interpretations(here, inputs, gpu)


def test_every_handler_says_something_about_each_operator():
    torch.manual_seed(0)
    x, w = torch.randn(4, 32), torch.randn(4, 32)
    found = shown(example_1_1, x, w)
    assert [row.node for row in found.rows] == ["x, add", "w, add", "add", "relu", "mul"]
    by_node = {row.node: row for row in found.rows}
    assert by_node["relu"].listing == ("tmp3 = relu(tmp2)",) and by_node["relu"].operations == 1
    assert "relu(" in by_node["relu"].code["cpp"][0] and "tl.maximum" in by_node["relu"].code["triton"][0]
    assert by_node["x, add"].interval == "subscript [0, 127]" and "tl.load" in by_node["x, add"].code["triton"][0]
    assert float(by_node["add"].value) == pytest.approx((x + w)[0, 0].item(), rel=1e-5)
    assert float(found.result) == pytest.approx((torch.relu(x + w) * 2)[0, 0].item(), rel=1e-5)
    assert found.operations == 3 and found.reads == ("x[32*i0 + r0]", "w[32*i0 + r0]")


def test_it_prints_and_draws_itself():
    found = shown(example_6_3, torch.randn(16))
    bundle = found._repr_mimebundle_()
    assert "drawing failed" not in bundle["text/html"] and bundle["text/plain"] == str(found)
    assert references(bundle["text/html"]) == [] and view.html(found) == bundle["text/html"]
    (drawn,) = read(bundle["text/html"]).find("table")
    assert [e.text for e in drawn.find("th", scope="col")] == [
        "node", "formatted", "operations", "interval", "value", "C++", "Triton"
    ]  # fmt: skip
    assert "1 operation for each point" in str(found) and "subscript [0, 15]" in str(found)
    assert all("data-origins" in e.attributes for e in drawn.find("tr")[1:])


def test_what_is_not_computed_here():
    compilation = staxlab.explain(lambda x: x.exp(), torch.randn(4))
    with pytest.raises(OptionError, match="buf7"):
        interpretations(compilation, [torch.randn(4)], buffer="buf7")
