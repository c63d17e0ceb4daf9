"""Views as changes of subscript (Proposition 6.2), and type promotion on metadata, as properties."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from staxlab.loops import layout as maps
from staxlab.loops.expressions import Expr, Symbol
from staxlab.loops.ir import Layout, Pointwise
from staxlab.loops.layout import IndexMap, layout_through
from staxlab.loops.lowering.values import Box, TensorValue, result_type

from .lowered import check

extents = st.integers(1, 4)
shapes = st.lists(extents, max_size=4).map(tuple)


@st.composite
def view_chains(draw):
    """A shape and a list of view steps that fit one after the other."""
    shape = draw(shapes)
    steps, current = [], torch.empty(shape)
    for _ in range(draw(st.integers(0, 5))):
        name, view = draw(_step(tuple(current.shape)))
        current = view(current)
        steps.append((name, view))
    return shape, steps


@st.composite
def _step(draw, shape):
    rank, nonempty = len(shape), [dim for dim, extent in enumerate(shape) if extent]
    choices = ["unsqueeze", "flatten", "squeeze"]
    choices += ["reshape"] if len(nonempty) == rank else []  # a diagonal above a single row is empty
    choices += ["permute", "movedim"] if rank else []
    choices += ["slice", "select", "unfold"] if nonempty else []
    choices += ["expand"] if 1 in shape else []
    choices += ["diagonal", "transpose"] if rank > 1 else []
    name = draw(st.sampled_from(choices))
    dim = draw(st.sampled_from(nonempty if name in ("slice", "select", "unfold") else range(max(rank, 1))))
    if name == "unsqueeze":
        return name, lambda x: x.unsqueeze(dim)
    if name == "squeeze":
        return name, lambda x: x.squeeze()
    if name == "flatten":
        return name, lambda x: x.reshape(-1)
    if name == "reshape":
        count = maps.numel(shape)
        divisors = [d for d in range(1, count + 1) if count % d == 0]
        first = draw(st.sampled_from(divisors))
        rest = count // first
        second = draw(st.sampled_from([d for d in divisors if rest % d == 0]))
        return name, lambda x: x.reshape(first, second, rest // second)
    if name == "permute":
        order = draw(st.permutations(range(rank)))
        return name, lambda x: x.permute(order)
    if name == "movedim":
        return name, lambda x: x.movedim(dim, 0)
    if name == "transpose":
        return name, lambda x: x.transpose(dim, -1)
    if name == "slice":
        start, step = draw(st.integers(0, shape[dim] - 1)), draw(st.integers(1, 3))
        return name, lambda x: x[(slice(None),) * dim + (slice(start, None, step),)]
    if name == "select":
        position = draw(st.integers(-shape[dim], shape[dim] - 1))
        return name, lambda x: x.select(dim, position)
    if name == "unfold":
        size = draw(st.integers(1, shape[dim]))
        step = draw(st.integers(1, 2))
        return name, lambda x: x.unfold(dim, size, step)
    if name == "expand":
        wanted = [draw(extents) if extent == 1 else extent for extent in shape]
        return name, lambda x: x.expand(wanted)
    offset = draw(st.integers(-1, 1))
    return "diagonal", lambda x: x.diagonal(offset, 0, 1) if rank > 1 else x


@given(view_chains(), st.booleans(), st.booleans())
def test_any_chain_of_views_of_inputs_and_of_values(chain, computed, strided):
    """Of a stored value a chain is a layout, of a value not in memory a subscript; both read the same elements, and a
    returned view has eager execution's strides."""
    shape, steps = chain
    base = torch.arange(float(maps.numel(shape) * 2)).reshape(*shape, 2)
    x = base[..., 0] if strided else base[..., 0].contiguous()

    def views(x):
        for _, view in steps:
            x = view(x)
        return x

    def f(x):
        y = views(x * 2 if computed else x)
        return y * 1 + 0.5, y.sum(), y

    check(f, x)
    check(lambda x: (lambda y: (y + 1, y.exp().sum()))(views(x.cos())), x)  # nothing here is ever stored as eager does


def test_the_affine_form_of_views():
    """``pi(i) = A i + c`` and ``t' = A^T t, o' = o + t^T c``."""
    layout = Layout((4, 6), (6, 1), torch.float32, "cpu")
    transposed = maps.permuted((4, 6), (1, 0))
    assert transposed.affine() == (((0, 1), (1, 0)), (0, 0))
    assert layout_through(layout, transposed).stride == (1, 6)
    cut = maps.sliced((4, 6), 1, 1, 3, 2)
    assert cut.affine() == (((1, 0), (0, 2)), (0, 1))
    assert (layout_through(layout, cut).stride, layout_through(layout, cut).offset) == ((6, 2), 1)
    stretched = maps.broadcast((4, 1), (4, 5))
    assert stretched.affine() == (((1, 0), (0, 0)), (0, 0))
    row = maps.selected((4, 6), 0, 2)
    assert row.affine() == (((0,), (1,)), (2, 0))


def test_a_reshape_is_affine_exactly_where_dimensions_lie_seamlessly():
    """Merging dimensions j and j+1 is affine iff ``t_j = s_(j+1) t_(j+1)``."""
    merge = maps.reshaped((4, 6), (24,))
    assert layout_through(Layout((4, 6), (6, 1), torch.float32, "cpu"), merge).stride == (1,)
    assert layout_through(Layout((4, 6), (12, 2), torch.float32, "cpu"), merge).stride == (2,)
    assert layout_through(Layout((4, 6), (1, 4), torch.float32, "cpu"), merge) is None
    assert layout_through(Layout((4, 6), (8, 1), torch.float32, "cpu"), merge) is None
    untouched = maps.reshaped((4, 6, 5), (4, 2, 3, 5))
    i = tuple(Expr.of(Symbol(f"i{k}", 0, n - 1)) for k, n in enumerate(untouched.shape))
    assert [str(e) for e in untouched(i)] == ["i0", "3*i1 + i2", "i3"]


@given(st.lists(st.tuples(extents, st.integers(0, 12)), min_size=1, max_size=4))
def test_injective_layouts_are_those_without_two_elements_at_one_address(dims):
    shape, stride = tuple(n for n, _ in dims), tuple(t for _, t in dims)
    addresses = [0]
    for extent, step in dims:
        addresses = [a + step * k for a in addresses for k in range(extent)]
    if maps.is_injective(shape, stride):
        assert len(set(addresses)) == len(addresses)
    if maps.is_dense(shape, stride):
        assert sorted(addresses) == list(range(len(addresses)))


def test_index_maps_compose():
    outer, inner = maps.permuted((3, 4), (1, 0)), maps.sliced((4, 3), 0, 1, 2, 2)
    both = outer.after(inner)
    i = (Expr.of(1), Expr.of(2))
    assert both(i) == outer(inner(i)) and both.shape == (2, 3)
    assert IndexMap((2,), lambda i: i)((Expr.of(1),)) == (Expr.of(1),)


# -- promotion --------------------------------------------------------------------------------------------------------

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
]  # fmt: skip
operands = st.one_of(st.tuples(st.sampled_from(DTYPES), st.integers(0, 2)), st.sampled_from([True, 3, 2.5]))


@given(st.lists(operands, min_size=1, max_size=4))
def test_promotion_on_metadata_is_torchs(mixed):
    tensors, values = [], []
    for operand in mixed:
        if isinstance(operand, tuple):
            dtype, rank = operand
            tensors.append(torch.ones((1,) * rank, dtype=dtype))
            box = Box((1,) * rank, dtype, "cpu", Pointwise((1,) * rank, dtype, None))
            values.append(TensorValue(box))
        else:
            tensors.append(operand)
            values.append(operand)
    expected = tensors[0]
    if len(tensors) == 1:
        if isinstance(expected, torch.Tensor):
            assert result_type(*values) == expected.dtype
        return
    # torch.result_type takes two; more are asked for through an operator that promotes all its operands
    if len(tensors) == 2:
        assert result_type(*values) == torch.result_type(*tensors)
    elif all(isinstance(t, torch.Tensor) for t in tensors) and len(tensors) == 3:
        assert result_type(*values[1:]) == torch.where(torch.ones((), dtype=torch.bool), *tensors[1:]).dtype


@pytest.mark.parametrize("first", DTYPES)
@pytest.mark.parametrize("second", DTYPES)
def test_mixed_dtypes_add_compare_and_divide_as_eager_does(first, second):
    x, y = torch.tensor([1, 0, 3, 2]).to(first), torch.tensor([1, 1, 2, 1]).to(second)
    close = {"rtol": 1e-2, "atol": 1e-2}
    check(lambda x, y: (x + y, x * y, x / y, x == y, x < y, torch.maximum(x, y)), x, y, **close)
    check(lambda x, y: (x + y, x * y, torch.where(x > 0, x, y)), x, y[0], **close)
    check(lambda x, y: (x + 2.5, x * 3, x + True), x, y, **close)
