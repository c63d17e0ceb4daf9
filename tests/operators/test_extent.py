"""Which bytes a tensor covers, against the bytes themselves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from staxlab.operators import extent
from staxlab.operators.extent import apart, contains, is_injective, route
from staxlab.operators.tensors import Window

dimensions = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=3)
windows = st.builds(
    lambda dims, itemsize, start: Window(tuple(n for n, _ in dims), tuple(s for _, s in dims), itemsize, start),
    dimensions, st.sampled_from([1, 2, 4, 8]), st.integers(0, 12),
)  # fmt: skip


def elements(window: Window) -> list[tuple[int, ...]]:
    """The bytes of each element, by counting."""
    places = [0]
    for extent_, step in zip(window.shape, window.stride, strict=True):
        places = [place + k * step for place in places for k in range(extent_)]
    first = [window.start + place * window.itemsize for place in places]
    return [tuple(range(byte, byte + window.itemsize)) for byte in first]


def covered(window: Window) -> set[int]:
    return {byte for element in elements(window) for byte in element}


@given(windows)
def test_a_window_is_injective_if_no_byte_is_in_two_elements(window):
    everything = [byte for element in elements(window) for byte in element]
    assert is_injective(window) == (len(everything) == len(set(everything)))
    assert window.numel == len(elements(window)) and window.end == max(everything, default=window.start - 1) + 1


@given(st.lists(windows, min_size=1, max_size=3))
def test_windows_are_apart_if_no_byte_is_in_two_of_them(several):
    sets = [covered(window) for window in several]
    assert apart(several) == (sum(map(len, sets)) == len(set().union(*sets)))


@given(windows, windows)
def test_one_window_contains_another_if_it_has_all_its_bytes(outer, inner):
    assert contains(outer, inner) == (covered(inner) <= covered(outer))


@st.composite
def layouts(draw):
    """A tensor, with or without gaps, and a window inside it."""
    memory = torch.arange(256.0)
    kind = draw(st.sampled_from(["dense", "transposed", "gaps", "any"]))
    if kind == "any":
        shape = draw(st.lists(st.integers(1, 4), max_size=3))
        outer = memory.as_strided(shape, [draw(st.integers(1, 12)) for _ in shape], draw(st.integers(0, 5)))
    else:
        shape = [draw(st.integers(1, 4)) for _ in range(draw(st.integers(1, 3)))]
        outer = memory[: torch.Size(shape).numel()].view(shape)
        outer = outer.transpose(0, -1) if kind == "transposed" else outer
        outer = outer[::2, ..., 1:] if kind == "gaps" and outer.dim() > 1 else outer
    inner = outer
    for _ in range(draw(st.integers(0, 3))):
        dim = draw(st.integers(0, max(inner.dim() - 1, 0)))
        step = draw(st.sampled_from(["select", "slice", "transpose", "unsqueeze", "unfold", "diagonal", "strided"]))
        if step == "unsqueeze":
            inner = inner.unsqueeze(dim)
        elif step == "strided":
            size = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(0, 2)))]
            inner = memory.as_strided(size, [draw(st.integers(0, 4)) for _ in size], draw(st.integers(0, 8)))
        elif inner.dim() and inner.shape[dim]:
            position = draw(st.integers(0, inner.shape[dim] - 1))
            inner = {
                "select": lambda x, d=dim, p=position: x.select(d, p),
                "slice": lambda x, d=dim, p=position: x.narrow(d, p, x.shape[d] - p),
                "transpose": lambda x, d=dim: x.transpose(d, -1),
                "unfold": lambda x, d=dim, p=position: x.unfold(d, p + 1, p + 1),
                "diagonal": lambda x: x.diagonal() if x.dim() > 1 else x,
            }[step](inner)
    return outer, inner


@given(layouts())
def test_a_route_leads_to_the_very_elements_on_any_memory(pair):
    outer, inner = pair
    distance = (inner.storage_offset() - outer.storage_offset()) * 4
    steps = route(Window.of(outer), Window.of(inner, distance))
    if steps is None:
        inside = contains(Window.of(outer), Window.of(inner, distance))
        dense = extent._is_dense(Window.of(outer))
        assert not (inside and dense and inner.numel()), "a tensor without gaps has a route to every window"
        return
    other = torch.empty_strided(outer.shape, outer.stride()).copy_(outer) if is_injective(Window.of(outer)) else None
    for base in (outer, other):
        assume(base is not None)
        found = base
        for step in steps:
            found = step(found)
        assert torch.equal(found, inner) and found.stride() == inner.stride()
        assert found.untyped_storage().data_ptr() == base.untyped_storage().data_ptr(), "views, all of them"


@pytest.mark.parametrize("large", [1 << 29])
def test_where_a_map_would_be_too_large_the_answer_is_the_safe_one(large):
    column = Window((large // 8, 2), (8, 1), 1, 0)
    beside = Window((large // 8, 2), (8, 1), 1, 4)
    assert not apart([column, beside]) and not contains(column, column)
    assert apart([column, Window((4,), (1,), 1, large)]) and is_injective(column)
