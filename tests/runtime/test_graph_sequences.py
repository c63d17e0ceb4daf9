"""CUDA Graphs under any sequence of calls: values are eager's, and results that are held never change."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.errors import GraphWarning
from staxlab.runtime import graph_recording, graphs
from tests.runtime.test_graphs import region, simple


def mixed(x, state):
    """Results of every kind: new, two in one memory, an input, a view of one; and a write into an input."""
    y = x * 3 + state
    state.add_(1)
    return y, y[1:], x, x.view(2, 2), (x + state).sum()


AFTERWARDS = ("keep", "drop", "keep a view", "write", "forget all")
CALL = st.tuples(st.integers(0, 3), st.integers(0, 1), st.sampled_from(AFTERWARDS))
OPERATIONS = st.lists(CALL, min_size=1, max_size=40)


@settings(max_examples=60, report_multiple_bugs=False)
@given(OPERATIONS, st.sampled_from(("check", "copy")), st.sampled_from(("reuse", "copy")), st.integers(1, 8))
def test_values_are_right_whatever_is_called_held_and_written(operations, inputs, outputs, most):
    """Addresses alternate, results are held, seen through views, written into and let go, in any order."""
    places = [torch.zeros(4) for _ in range(4)]
    states = [torch.zeros(4) for _ in range(2)]
    f, device = region(simple(mixed), inputs=inputs, outputs=outputs, most_recordings=most)
    held: list[tuple[torch.Tensor, list[float]]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        for number, (place, which, what) in enumerate(operations):
            x, state = places[place], states[which]
            x.copy_(torch.arange(4.0) + number)
            twin = state.clone()
            expected = mixed(x.clone(), twin)
            device.stream = which
            found = f([x, state])
            assert torch.equal(state, twin)
            for a, b in zip(found, expected, strict=True):
                assert torch.equal(a, b)
            assert found[2] is x and found[3].data_ptr() == x.data_ptr()
            for tensor, values in held:
                assert tensor.tolist() == values, "a result that is held has changed"
            if what == "keep":
                held.append((found[0], found[0].tolist()))
            elif what == "keep a view":
                held.append((found[1].detach()[1:], found[1][1:].tolist()))
            elif what == "write":
                found[0].fill_(-1.0)
            elif what == "forget all":
                held.clear()
            del found, a
    assert len(f.report().recordings) <= most


PLANTED = {
    "results that are held are written over": (graph_recording.Recording, "is_busy", lambda self: False),
    "inputs are not copied": (graph_recording.Recording, "copy_in", lambda self, inputs: None),
    "the first recording serves all addresses": (graphs.GraphedRegion, "_key", lambda self, pointers: (0, 0)),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_planted_mistakes_are_found(mistake, monkeypatch):
    monkeypatch.setattr(*PLANTED[mistake])
    with pytest.raises((AssertionError, RuntimeError)):
        test_values_are_right_whatever_is_called_held_and_written()
