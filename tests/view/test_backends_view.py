"""Tables of backends and modes, and a region in an outside backend's hands, drawn."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab import view
from staxlab.modes import mode_table
from tests.view.reading import read


def outside(text="a < b & c"):
    class Made:
        def __init__(self, graph_module):
            self.forward = graph_module.forward

        def __call__(self, *inputs):
            return self.forward(*inputs)

        def format(self):
            return text

    staxlab.register_backend("drawn", lambda g, e: Made(g), after="operators", replace=True)
    try:
        return staxlab.explain(lambda x: (x + 1).t(), torch.ones(2, 3), backend="drawn")
    finally:
        staxlab.backends.table.clear()


@pytest.mark.parametrize("record", [staxlab.list_backends(), mode_table()], ids=["backends", "modes"])
def test_tables_are_drawn_with_every_cell(record):
    markup = view.mimebundle(record)["text/html"]
    words = " ".join(read(markup).text.split())
    for row in record.cells():
        for cell in row:
            assert cell in words


def test_a_delegated_region_shows_graph_and_text_and_escapes_it():
    compilation = outside()
    markup = view.mimebundle(compilation.outside)["text/html"]
    words = " ".join(read(markup).text.split())
    assert "carried out here afterwards" in words.lower() and "What drawn made of it" in words
    assert "a < b & c" in words and "a < b & c" not in markup
    (add,) = compilation.outside.module.graph.calls
    assert f'data-origins="{min(add.origins)}"' in markup
    assert "Outside backend" in view.mimebundle(compilation)["text/html"]
