"""Views as (A, c), the layout law of Proposition 6.2 and the merge condition of reshape, against PyTorch's strides."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from staxlab.errors import OptionError
from staxlab.loops.layout import numel, same_stride
from staxlab.loops.viewmap import MergeCondition, affine_text, view_map

shapes = st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple)
COPYING = ("flip", "roll")


@st.composite
def steps(draw, shape, copying):
    """One operator that fits a shape: its name and the function."""
    rank = len(shape)
    names = ["unsqueeze", "squeeze", "reshape"] + (["permute", "slice", "select"] if rank else [])
    names += (["transpose", "diagonal"] if rank > 1 else []) + (["expand"] if 1 in shape else [])
    name = draw(st.sampled_from(names + (list(COPYING) if rank and copying else [])))
    dim = draw(st.integers(0, max(rank - 1, 0)))
    if name == "unsqueeze":
        return name, lambda x: x.unsqueeze(dim)
    if name == "squeeze":
        return name, lambda x: x.squeeze(dim) if rank else x.squeeze()
    if name == "reshape":
        count = numel(shape)
        first = draw(st.sampled_from([d for d in range(1, count + 1) if count % d == 0]))
        rest = count // first
        second = draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
        target = draw(st.sampled_from([(count,), (first, rest), (first, second, rest // second)]))
        return name, lambda x: x.reshape(target)
    if name == "permute":
        order = draw(st.permutations(range(rank)))
        return name, lambda x: x.permute(order)
    if name == "transpose":
        other = draw(st.integers(0, rank - 1))
        return name, lambda x: x.transpose(dim, other)
    if name == "slice":
        start, step = draw(st.integers(0, shape[dim] - 1)), draw(st.integers(1, 3))
        return name, lambda x: x[(slice(None),) * dim + (slice(start, None, step),)]
    if name == "select":
        position = draw(st.integers(-shape[dim], shape[dim] - 1))
        return name, lambda x: x.select(dim, position)
    if name == "expand":
        wanted = [draw(st.integers(1, 3)) if extent == 1 else extent for extent in shape]
        return name, lambda x: x.expand(wanted)
    if name == "diagonal":
        return name, lambda x: x.diagonal(0, 0, 1)
    if name == "flip":
        return name, lambda x: x.flip(dim)
    shift = draw(st.integers(-3, 3))
    return name, lambda x: x.roll(shift, dim)


@st.composite
def chains(draw, copying=True):
    """A tensor of any strides, and a function that applies a few views."""
    shape = draw(shapes)
    geometry = torch.empty(shape).permute(draw(st.permutations(range(len(shape)))))
    current, functions = geometry, []
    for _ in range(draw(st.integers(0, 4))):
        _, function = draw(steps(tuple(current.shape), copying))
        current = function(current)
        functions.append(function)
        assume(current.numel() <= 600)

    def whole(x):
        for function in functions:
            x = function(x)
        return x

    return geometry, whole


def numbered(geometry: torch.Tensor) -> torch.Tensor:
    """A tensor of the same geometry whose elements are their own storage numbers."""
    span = torch.arange(geometry.untyped_storage().nbytes() // geometry.element_size())
    return span.as_strided(geometry.shape, geometry.stride(), geometry.storage_offset())


@settings(max_examples=150, deadline=None)
@given(chains())
def test_a_view_map_reads_what_eager_execution_reads(case):
    geometry, function = case
    made = view_map(geometry, function)
    eager = function(numbered(geometry))
    assert made.shape == tuple(eager.shape) and torch.equal(made.addresses(), eager)
    assert torch.equal(made.addresses_after(len(made.steps)), eager)
    assert torch.equal(made.addresses_after(0), numbered(geometry))


@settings(max_examples=150, deadline=None)
@given(chains(copying=False))
def test_the_layout_is_pytorchs_where_pytorch_makes_a_view(case):
    geometry, function = case
    made, eager = view_map(geometry, function), function(numbered(geometry))
    if not made.copied:
        assert made.layout is not None and made.offset == eager.storage_offset()
        assert same_stride(made.shape, made.stride, eager.stride())
    copies = [k for k, step in enumerate(made.steps) if step.copies]
    if copies:  # reshape copies where, and only where, a merge condition fails
        following = made.steps[copies[0] + 1]
        assert following.operator == "reshape" and following.failing and following.layout is None
    else:
        assert not any(step.failing for step in made.steps)


@settings(max_examples=150, deadline=None)
@given(chains())
def test_the_law_of_proposition_6_2(case):
    geometry, function = case
    made = view_map(geometry, function)
    parts = [(s.viewed, s.shape, s.matrix, s.vector, s.before, s.layout) for s in made.steps]
    parts.append((made.source.shape, made.shape, made.matrix, made.vector, made.source, made.layout))
    for viewed, shape, matrix, vector, before, after in parts:
        if matrix is None or before is None:
            continue
        a = torch.tensor(matrix, dtype=torch.int64).reshape(len(viewed), len(shape))
        t, c = (torch.tensor(values, dtype=torch.int64) for values in (before.stride, vector))
        assert same_stride(shape, (a.T @ t).tolist(), after.stride) and before.offset + int(t @ c) == after.offset
    for step in made.steps:  # what the words say is what the numbers are
        if step.law():
            *strides, offset = (int(line.rpartition("= ")[2]) for line in step.law())
            assert (tuple(strides), offset) == (step.stride, step.offset)
    # Composition: A2 (A1 i + c1) + c2, from the last step inwards.
    if made.steps and all(step.matrix is not None for step in made.steps):
        a = torch.eye(len(made.source.shape), dtype=torch.int64)
        c = torch.zeros(len(made.source.shape), dtype=torch.int64)
        for step in made.steps:
            inner = torch.tensor(step.matrix, dtype=torch.int64).reshape(len(step.viewed), len(step.shape))
            c = c + a @ torch.tensor(step.vector, dtype=torch.int64)
            a = a @ inner
        assert tuple(map(tuple, a.tolist())) == made.matrix and tuple(c.tolist()) == made.vector


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_reshape_has_strides_exactly_if_its_merge_conditions_hold(data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple))
    strides = [data.draw(st.integers(0, 12)) for _ in shape]
    geometry = torch.empty(200).as_strided(shape, strides)
    _, function = data.draw(steps(shape, False).filter(lambda step: step[0] == "reshape"))
    (step,) = [s for s in view_map(geometry, function).steps if s.operator == "reshape"] or [None]
    if step is None:  # the same shape
        return
    try:
        expected = geometry.view(step.shape)
    except RuntimeError:
        expected = None
    assert (not step.failing) == (expected is not None) == (step.layout is not None)
    if expected is not None:
        assert same_stride(step.shape, step.stride, expected.stride())


# -- worked examples --------------------------------------------------------------------------------------------------


def test_example_6_1():
    made = view_map((512, 256), lambda x: x.t())
    assert (made.matrix, made.vector, made.stride, str(made.address)) == (
        ((0, 1), (1, 0)),
        (0, 0),
        (1, 256),
        "i0 + 256*i1",
    )
    (step,) = made.steps
    assert step.law() == ("t'0 = 0*256 + 1*1 = 1", "t'1 = 1*256 + 0*1 = 256", "o' = 0 + 256*0 + 1*0 = 0")


def test_a_reshape_of_a_transpose_is_not_affine():
    made = view_map((4, 6), lambda x: x.t().reshape(24)[3:])
    assert [step.operator for step in made.steps] == ["t", "clone", "reshape", "slice"] and made.copied
    reshape = made.steps[2]
    assert (
        reshape.failing == (MergeCondition(0, 1, 1, 4, 6),) and str(reshape.failing[0]) == "t0 = s1 t1 fails: 1 != 4*6"
    )
    assert reshape.map_text() == "(i0,) -> ((i0 // 4), (i0 % 4))"
    assert (made.matrix, made.layout) == (None, None) and "//" in str(made.address)
    jump = "along i1 the address moves by 6, from its end to the next i0 by -17"
    assert f"no strides: t0 = s1 t1 fails: 1 != 4*6 ({jump}); // and % stay in the subscript" in str(made)
    before = made.addresses_after(2)
    assert int(before[0, 1] - before[0, 0]) == 6 and int(before[1, 0] - before[0, 3]) == -17


def test_a_part_of_it_is_affine_again():
    made = view_map((4, 6), lambda x: x.t().reshape(24)[:4])
    assert made.stride == (6,) and made.matrix == ((1,), (0,)) and made.steps[-1].verdict().startswith("affine again")


def test_a_merge_that_holds():
    (step,) = view_map((2, 3, 4), lambda x: x.view(6, 4)).steps
    assert [str(condition) for condition in step.merges] == ["t0 = s1 t1 holds: 12 = 3*4"]
    assert step.matrix is None and step.stride == (4, 1) and step.verdict().startswith("merges dimensions")


def test_a_flip_has_a_negative_stride():
    made = view_map((3, 4), lambda x: x.flip(0, 1))
    assert (made.matrix, made.vector) == (((-1, 0), (0, -1)), (2, 3)) and (made.stride, made.offset) == ((-4, -1), 11)
    assert [step.operator for step in made.steps] == ["flip"] and made.copied


def test_the_offset_of_the_tensor_counts():
    base = torch.arange(30.0)
    made = view_map(base[5:29].view(4, 6), lambda x: x[1:, ::2])
    assert made.offset == 11 and int(base[made.addresses()[0, 1]]) == int(base[5:29].view(4, 6)[1, 2])


def test_no_step_and_no_element():
    same = view_map((2, 3), lambda x: x)
    assert same.steps == () and same.matrix == ((1, 0), (0, 1)) and same.stride == (3, 1)
    empty = view_map((2, 3), lambda x: x[2:])
    assert empty.shape == (0, 3) and "(no elements)" in str(empty)
    scalar = view_map((2, 3), lambda x: x[1, 2])
    assert scalar.shape == () and scalar.addresses().item() == 5 and scalar.matrix == ((), ())
    assert affine_text((), ()) == ["A and c have no rows: one element is viewed"]


def test_every_step_knows_the_users_line():
    def look(x):
        y = x.t()
        return y[1:]

    first = look.__code__.co_firstlineno
    assert [step.location.line for step in view_map((3, 4), look).steps] == [first + 1, first + 2]
    assert str(view_map((3, 4), look)).count("y = x.t()") == 1


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda x: x + 1, "aten.add.Tensor"),
        (lambda x: x.sum(0), "aten.sum.dim_IntList"),
        (lambda x: x.cumsum(0), "aten.cumsum"),
        (lambda x: x[torch.tensor([0, 1])], "aten.index.Tensor"),
        (lambda x: x.float(), "aten._to_copy"),
        (lambda x: torch.ones(3), "aten.ones"),
        (lambda x: torch.arange(4).view(2, 2), "view of its argument|aten.arange"),
        (lambda x: (x, x.t()), "returns one tensor"),
        (lambda x: x.as_strided((2,), (1,)), "as_strided"),
    ],
)
def test_what_is_no_view_is_refused_by_name(function, named):
    with pytest.raises(OptionError, match=named):
        view_map((4, 6), function)
