"""The eager side of the byte model is the program as written, not as the compiler simplified it."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab.capture.graph import TensorMeta
from staxlab.measure.bytes import in_units, traffic_model
from staxlab.measure.eager import eager_operators, stand_in


def traffic_of(fn, *args):
    return traffic_model(staxlab.explain(fn, *args))


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: (x.exp().sum(-1), x.exp().amax(-1)), "6N + 2n"),
        (lambda x: torch.nn.functional.softmax(x, -1), "2N"),
        (lambda x: torch.nn.functional.gelu(x) * 1, "4N"),
        (lambda x: torch.relu(x) + 0, "4N"),
    ],
    ids=["repeated subexpression", "library softmax", "gelu times one", "plus zero"],
)
def test_eager_pays_for_what_the_program_says(fn, expected):
    model = traffic_of(fn, torch.randn(48, 200))
    assert in_units(model.eager.parts, model.eager.symbols) == expected
    assert model.remark is None


def test_an_unchanged_program_is_not_run_again(monkeypatch):
    compilation = staxlab.explain(lambda x, w: (torch.relu(x + w) * 2).sum(-1), torch.randn(4, 8), torch.randn(4, 8))
    monkeypatch.setattr("staxlab.operators.record.record", lambda *a, **k: pytest.fail("it was run"))
    graph, remark = eager_operators(compilation)
    assert graph is compilation.operators.graph
    assert remark is None


def test_a_program_the_stand_ins_cannot_serve_is_counted_as_simplified(monkeypatch):
    compilation = staxlab.explain(lambda x: x.exp() + x.exp(), torch.randn(4, 8))

    def refuse(*args, **kwargs):
        raise RuntimeError("not on this data\nmore")

    monkeypatch.setattr("staxlab.operators.record.record", refuse)
    model = traffic_model(compilation)
    assert "not on this data" in model.remark
    assert model.remark in repr(model)


def test_stand_ins_have_the_layout_of_the_sample():
    tensor = torch.randn(6, 8)[1:, ::2].t()
    twin = stand_in(TensorMeta.of(tensor))
    assert (twin.shape, twin.stride(), twin.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
    assert twin.storage_offset() == tensor.storage_offset()
    assert stand_in(TensorMeta.of(torch.zeros(3, dtype=torch.int64))).tolist() == [0, 0, 0]
    assert stand_in(TensorMeta.of(torch.empty(0, 4))).shape == (0, 4)
    expanded = torch.randn(5, 1).expand(5, 7)
    assert stand_in(TensorMeta.of(expanded)).stride() == (1, 0)
    assert stand_in(3) == 3
