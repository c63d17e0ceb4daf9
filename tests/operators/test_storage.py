"""The storage picture: which elements a tensor looks at, who writes, against the memory itself."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.operators.storage import StorageRow, covered, functionalized, storage_rows

aten = torch.ops.aten


def example(x, y):
    x.mul_(2)
    y.t()[0].add_(1)
    return x + y.sum()


def lanes(row):
    return {lane.name: lane for lane in row.lanes}


def test_the_transposed_row_of_the_exercise():
    """y.t()[0].add_(1): column 0 of y, every third element of twelve."""
    found = functionalized(example, torch.ones(3), torch.arange(12.0).view(4, 3))
    assert found.writes == ("mul", "add")
    x, y = found.storages
    assert (x.name, x.size, x.written) == ("x", 3, {0, 1, 2})
    assert (y.name, y.size, y.itemsize, y.written) == ("y", 12, 4, {0, 3, 6, 9})
    chain = lanes(y)
    assert list(chain) == ["y", "t", "getitem"]
    assert (chain["y"].base, chain["t"].base, chain["getitem"].base) == (None, "y", "t")
    assert chain["t"].elements == (0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11)
    assert chain["getitem"].elements == (0, 3, 6, 9) and chain["getitem"].writers == ("add",)
    assert chain["getitem"].geometry == "shape (4,), stride (3,), offset 0"
    assert y.bytes_of(chain["getitem"]) == ((0, 3), (12, 15), (24, 27), (36, 39))
    assert y.bytes_of(chain["t"]) == ((0, 47),), "neighbours are one range"


def test_the_graph_after_has_no_writes_but_the_last():
    found = functionalized(example, torch.ones(3), torch.arange(12.0).view(4, 3))
    targets = [node.target for node in found.after.graph.calls]
    assert aten.select_scatter.default in targets and targets.count(aten.t.default) == 3
    assert [node.name for node in found.after.graph if getattr(node.target, "_schema", None) is not None
            and node.target._schema.is_mutable] == [node.name for node in found.after.write_backs]  # fmt: skip


def test_the_sample_is_not_changed():
    x, y = torch.ones(3), torch.arange(12.0).view(4, 3)
    functionalized(example, x, y)
    assert torch.equal(x, torch.ones(3)) and torch.equal(y, torch.arange(12.0).view(4, 3))


def test_inputs_that_share_memory_are_one_storage():
    base = torch.arange(6.0)
    row = storage_rows(functionalized(lambda a, b: a + b, base[:3], base[3:]).before, [base[:3], base[3:]])
    (one,) = row
    assert [lane.elements for lane in one.lanes] == [(0, 1, 2), (3, 4, 5)]


def test_a_write_by_a_view_of_the_operations_own_has_a_lane():
    def f(y):
        y[1] = 7
        return y * 1

    (row,) = functionalized(f, torch.zeros(3, 2)).storages
    inside = row.lanes[-1]
    assert inside.made_by.startswith("a view inside") and inside.elements == (2, 3) and inside.writers == ("setitem",)


def test_unpacked_parts_have_the_names_of_their_nodes():
    def f(y):
        a, b = y.split(2)
        b.add_(a)
        return y * 1

    (row,) = functionalized(f, torch.arange(8.0).view(4, 2)).storages
    first, second = ({lane.elements: lane for lane in row.lanes}[tuple(range(k, k + 4))] for k in (0, 4))
    assert first.name.startswith("getitem") and second.name.startswith("getitem"), "not the split's"
    assert (first.writers, second.writers) == ((), ("add",))
    assert {lane.base for lane in row.lanes[1:]} == {"y"}


def test_fresh_values_have_no_picture_and_what_is_left_out_is_said():
    fresh = functionalized(lambda x: (x + 1) * 2, torch.ones(4))
    assert fresh.storages == fresh.left_out == fresh.writes == ()
    large = functionalized(lambda x: x.t().add_(1), torch.ones(100, 100))
    assert large.storages == () and large.writes == ("add",)
    assert large.left_out == ("%x has 10,000 elements, more than 4,096",) and large.left_out[0] in str(large)


def test_tensors_of_several_dtypes_cover_cells_of_the_smallest():
    def f(z):
        z.real[1:].add_(1)
        return z.conj()[0] * 2

    (row,) = functionalized(f, torch.arange(3).to(torch.complex64)).storages
    assert (row.size, row.itemsize, row.unit) == (6, 4, "cell")
    whole, real, written, conjugate, number = row.lanes
    assert (whole.width, whole.elements, list(whole.cells)) == (2, (0, 2, 4), [0, 1, 2, 3, 4, 5])
    assert (real.width, real.elements, real.seen_as) == (1, (0, 2, 4), ("float32",))
    assert written.elements == (2, 4) and row.written == {2, 4} and row.bytes_of(written) == ((8, 11), (16, 19))
    assert conjugate.seen_as == number.seen_as == ("conjugated",) and row.bytes_of(number) == ((0, 7),)
    lines = row.format().splitlines()
    assert lines[0] == "storage of %z: 3 elements of complex64, 24 bytes in cells of 4"
    assert lines[2].split()[0] == "cell" and lines[3].split()[1:7] == "0 - 1° - 2° -".split()
    assert lines[5].split()[1:7] == ". . 0* . 1* .".split()
    assert lines[6].endswith("shape (3,), stride (1,), offset 0, conjugated")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.float64, torch.uint8, torch.complex64])
def test_a_view_as_another_dtype_covers_the_same_bytes(dtype):
    def f(x):
        x[1:].view(dtype)[:, 1:].zero_()
        return x * 1

    memory = torch.ones(48, dtype=torch.uint8)
    x = memory.view(torch.float32).view(3, 4)
    (row,) = functionalized(f, x).storages
    f(x)
    (written,) = [lane for lane in row.lanes if lane.writers]
    covered_bytes = [b for first, last in row.bytes_of(written) for b in range(first, last + 1)]
    assert covered_bytes == torch.nonzero(memory == 0).view(-1).tolist()


def test_a_change_of_shape_is_no_write():
    found = functionalized(lambda x: (x * 1).unsqueeze_(0).add_(1), torch.ones(3))
    assert found.writes == ("add",)


def test_scratch_memory_of_an_operation_is_not_the_programs():
    assert functionalized(lambda x: x.softmax(-1), torch.ones(2, 3)).writes == ()


def test_tensors_with_a_history_and_parameters_can_be_drawn():
    grown = torch.ones(3, requires_grad=True) * 2
    scale = torch.nn.Parameter(torch.ones(3))
    found = functionalized(lambda x: (x * scale).view(3, 1).t(), grown)
    assert [row.name for row in found.storages] == ["mul"]


def test_the_text_marks_what_is_written_and_by_whom():
    _, y = functionalized(example, torch.ones(3), torch.arange(12.0).view(4, 3)).storages
    lines = y.format().splitlines()
    assert lines[0] == "storage of %y: 12 elements of float32, 48 bytes"
    assert lines[1].split() == ["byte", *(str(4 * k) for k in range(12))]
    assert lines[3].split()[1:13] == "0° 1 2 3° 4 5 6° 7 8 9° 10 11".split()
    assert lines[4].split()[1:13] == "0° 4 8 1° 5 9 2° 6 10 3° 7 11".split()
    assert lines[5].split()[1:13] == "0* . . 1* . . 2* . . 3* . .".split()
    assert lines[5].endswith("getitem of %t; shape (4,), stride (3,), offset 0; written by %add")
    assert "... 2 more elements" in y.format(most=10)


STEPS = {
    "t": lambda v: v.t() if v.dim() == 2 else v,
    "first": lambda v: v[0] if v.dim() > 1 else v,
    "last": lambda v: v[-1] if v.dim() > 1 else v,
    "tail": lambda v: v[1:] if v.shape[0] > 1 else v,
    "stride": lambda v: v[::2],
    "column": lambda v: v[:, 0] if v.dim() == 2 else v,
    "diagonal": lambda v: v.diagonal() if v.dim() == 2 else v,
    "unsqueeze": lambda v: v.unsqueeze(0) if v.dim() < 2 else v,
}


@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_any_chain_of_views_is_what_memory_says(names, place):
    """Write through one view of a chain: the elements that change are the ones the picture marks, every lane covers
    what the tensor reads, and the functionalized graph gives the same values."""

    def chained(y):
        views = [y]
        for name in names:
            views.append(STEPS[name](views[-1]))
        views[min(place, len(views) - 1)].add_(100)
        return y * 1

    numbers = torch.arange(12.0).view(4, 3)
    found = functionalized(chained, numbers)
    (row,) = found.storages
    assert isinstance(row, StorageRow)
    for lane in row.lanes:
        assert torch.equal(torch.as_strided(numbers, lane.shape, lane.stride, lane.offset).reshape(-1),
                           torch.tensor(lane.elements, dtype=torch.float32))  # fmt: skip
    truth = numbers.clone()
    result = chained(truth)
    assert row.written == set(torch.nonzero(truth.view(-1) != numbers.view(-1)).view(-1).tolist())
    mine = numbers.clone()
    assert torch.equal(found.after.module(mine), result) and torch.equal(mine, truth)


@pytest.mark.parametrize("shape,stride,offset", [((), (), 3), ((0,), (1,), 0), ((2, 2), (0, 1), 1)])
def test_elements_of_odd_layouts(shape, stride, offset):
    memory = torch.arange(8)
    assert covered(shape, stride, offset) == tuple(memory.as_strided(shape, stride, offset).reshape(-1).tolist())
