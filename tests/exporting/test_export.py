"""Exported programs (Section 10.2): what a declared range may change, what it must not, and what the errors say."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from staxlab import Dim, export
from staxlab.errors import ConstraintError
from staxlab.exporting.adjudication import IMPLIED, KEPT

N = Dim("n", min=2, max=4096)
SIZES = (2, 3, 5, 8, 13)


def at(*dims, row=N):
    """``dims`` for the first dimension of arguments by position."""
    return {position: {0: row} for position in dims}


def ramp(*shape):
    return torch.arange(1.0, 1.0 + math.prod(shape)).reshape(shape)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and (a.shape, a.dtype) == (b.shape, b.dtype) and torch.equal(a, b)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return a == b


def targets(program):
    return [node.target_name().rpartition(".")[2] for node in program.graph.calls]


# -- the examples of the section --------------------------------------------------------------------------------------


def example_10_1(x, w):
    y = (F.relu(x + w) * 2).sum(-1)
    return y / x.shape[0]


def branch(x):
    return x + 1 if x.shape[0] > 32 else x - 1


def test_example_10_1_a_size_is_read_at_every_call():
    program = export(example_10_1, (torch.randn(64, 8), torch.randn(64, 8)), dims={"x": {0: N}, "w": {0: N}})
    x, w = torch.randn(10, 8), torch.randn(10, 8)
    assert torch.allclose(program(x, w), example_10_1(x, w)) and program(x, w).shape == (10,)
    assert "getattr" in targets(program) and "getitem" in targets(program)
    assert [node.target.__name__ for node in program.assertions] == ["assert_dim_range", "assert_dims_equal"]
    with pytest.raises(ConstraintError, match="n is 10 in one input and 12 in another"):
        program(x, torch.randn(12, 8))
    with pytest.raises(ConstraintError, match=r"n is 4097, .* n in \[2, 4096\]"):
        program(torch.randn(4097, 8), torch.randn(4097, 8))
    with pytest.raises(ConstraintError, match="n is 1,"):
        program(x[:1], w[:1])


def test_example_10_2_a_branch_that_some_sizes_would_take_otherwise():
    with pytest.raises(ConstraintError) as refused:
        export(branch, (torch.randn(64),), dims=at(0))
    text = str(refused.value)
    for part in ("constraints violated (n)", "n in [2, 4096]", "n > 32", "test_export.py", "x.shape[0] > 32"):
        assert part in text
    assert "n = Dim('n', min=33, max=4096)" in refused.value.remedy
    program = export(branch, (torch.randn(64),), dims=at(0, row=Dim("n", min=33, max=4096)))
    assert [a.outcome for a in program.adjudications] == [IMPLIED] and "x.shape[0] > 32" in str(program)
    assert same(program(ramp(40)), ramp(40) + 1)
    with pytest.raises(ConstraintError, match=r"n is 32, .* n in \[33, 4096\]"):
        program(ramp(32))


def test_example_10_2_the_other_side():
    with pytest.raises(ConstraintError) as refused:
        export(branch, (torch.randn(8),), dims=at(0))
    assert "n <= 32" in str(refused.value) and "Dim('n', min=2, max=32)" in refused.value.remedy


def test_example_10_3_broadcasting_makes_an_assertion():
    sample = (torch.randn(4), torch.randn(4))
    program = export(lambda x, y: x + y, sample, dims={"x": {0: Dim("p")}, "y": {0: Dim("q")}})
    (kept,) = program.adjudications
    assert kept.outcome == KEPT and kept.condition == "x.shape[0] == y.shape[0]"
    assert same(program(ramp(7), ramp(7)), 2 * ramp(7))
    with pytest.raises(ConstraintError, match=r"do not satisfy x\.shape\[0\] == y\.shape\[0\]"):
        program(ramp(7), ramp(6))
    with pytest.raises(ConstraintError, match="q is 1, .* q >= 2"):  # the first of the two treatments of size 1
        program(ramp(7), ramp(1))


# -- programs against eager execution ---------------------------------------------------------------------------------

MATRIX = (4, 3)
SERVED = {
    "read": lambda x: x * x.shape[0] + x.size(0) - x.numel() // 3,
    "reshaped": lambda x: x.reshape(x.size(0), 1, -1).flatten(1),
    "sliced": lambda x: x[: x.shape[0] // 2].sum(0) * x[x.shape[0] - 1] + x[1:, -1].sum(),
    "padded": lambda x: F.pad(x, (0, 0, 0, x.shape[0])),
    "arange": lambda x: x * torch.arange(x.shape[0])[:, None] + torch.full((x.shape[0], 1), x.shape[0]),
    "product": lambda x: x @ x.T,
    "with a constant": lambda x: x @ torch.ones(3, 2),
    "parts of a fixed dimension": lambda x: torch.cat(x.chunk(3, -1)[::-1], -1) + sum(x.unbind(1))[:, None],
    "length of a fixed dimension": lambda x: x * len(x.t()[:, :2]),
    "divided by a tensor": lambda x: x.shape[0] / x + x.shape[1] ** x,
    "shape of an intermediate": lambda x: x.new_zeros((x.t() * 2).shape) + x.flatten().shape[0],
    "shapes compared": lambda x: x + 1 if x.shape == (x * 2).shape else x,
    "implied": lambda x: x + 1 if x.shape[0] >= 1 and x.shape[0] * 2 > x.shape[0] else x,
    "written argument": lambda x: x.add_(1) * 2,
    "data-dependent size": lambda x: x[x > 4],
    "view of an intermediate, in place": lambda x: (x * 1).t_().contiguous() * x.shape[0],
    "an inner write": lambda x: (x * 1).view(-1).mul_(2).view_as(x),
    "nothing": lambda x: {"x": x, "rest": [None, (x.sum(),)]},
}


@pytest.mark.parametrize("name", SERVED)
def test_one_program_serves_the_range(name):
    program = export(SERVED[name], (ramp(*MATRIX),), dims=at(0))
    for size in SIZES:
        mine, theirs = ramp(size, 3), ramp(size, 3)
        assert same(program(mine), SERVED[name](theirs)), size
        assert same(mine, theirs)


#: Programs of which the sample is no example: a number of it is in the graph.
REFUSED = {
    "len": lambda x: x * len(x),
    "returned length": lambda x: (x, len(x)),
    "returned size": lambda x: (x, x.shape[0]),
    "stride": lambda x: x.t() * x.t().stride(1) * x.t().contiguous().stride(0),
    "bytes": lambda x: x * x.nbytes,
    "int": lambda x: x * int(x.shape[0]),
    "root": lambda x: x / x.shape[0] ** 0.5,
    "rows": lambda x: torch.stack([x[i] for i in range(x.shape[0])]),
    "text": lambda x: x * len(f"{x.shape[0]}"),
    "sum of sizes": lambda x: x * torch.sym_sum([x.shape[0], 2]) + torch.sym_max(x.shape[0], 3),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_number_of_the_sample_is_refused(name):
    with pytest.raises(ConstraintError, match=r"constraints violated \(n\)|number in it that depends on n"):
        export(REFUSED[name], (ramp(*MATRIX),), dims=at(0))


#: Programs whose operations leave one size of the declared range.
FIXED = {
    "iteration": lambda x: sum(row for row in x),
    "unbind": lambda x: torch.stack(x.unbind(0)[::-1]),
    "broadcast": lambda x: x + torch.ones(4, 1),
}


@pytest.mark.parametrize("name", FIXED)
def test_operations_that_leave_one_size_are_refused(name):
    with pytest.raises(ConstraintError, match="n == 4, relied on") as refused:
        export(FIXED[name], (ramp(*MATRIX),), dims=at(0))
    assert "declare the other size that is 4 as n, too, or leave n out of dims" in refused.value.remedy


#: Programs that hold for some sizes, by what operations do: they say so, or compute what eager execution does.
ASSERTED = {
    "split": lambda x: sum(part.sum() for part in x.split(2)),
    "chunk": lambda x: sum(part.sum() for part in x.chunk(3)),
    "squeeze": lambda x: x * x[::4].squeeze().ndim,
    "multiple": lambda x: x.reshape(-1, 4),
}


@pytest.mark.parametrize("name", ASSERTED)
def test_what_operations_take_for_granted_is_asserted(name):
    program = export(ASSERTED[name], (ramp(*MATRIX),), dims=at(0))
    served = 0
    for size in range(2, 12):
        try:
            result = program(ramp(size, 3))
        except ConstraintError as refused:
            assert "x.shape[0]" in str(refused)
            continue
        served += 1
        assert same(result, ASSERTED[name](ramp(size, 3))), size
    assert 1 <= served < 10 and any(a.outcome == KEPT for a in program.adjudications)


def test_every_value_of_the_operations_is_checked_in_the_graph():
    program = export(ASSERTED["chunk"], (ramp(*MATRIX),), dims=at(0))
    assert "assert_shape_guard" in [node.target.__name__ for node in program.assertions]
    assert "assert_shape_guard" in program.module.code


# -- declarations -----------------------------------------------------------------------------------------------------


def test_multiples():
    def fold(x):
        return x.view(x.shape[0] // 4, 4) if x.shape[0] % 4 == 0 else x

    with pytest.raises(ConstraintError) as refused:
        export(fold, (ramp(8),), dims=at(0))
    assert 'Dim("n", min=4, max=4096, multiple_of=4)' in refused.value.remedy
    row = Dim("n", min=4, max=4096, multiple_of=4)
    program = export(fold, (ramp(8),), dims=at(0, row=row))
    for size in (4, 12, 40):
        assert same(program(ramp(size)), ramp(size).view(-1, 4))
    with pytest.raises(ConstraintError, match="n is 10, .* multiples of 4"):
        program(ramp(10))
    with pytest.raises(ConstraintError, match=r"Dim\('n'.* excludes"):
        export(fold, (ramp(6),), dims=at(0, row=row))


def test_the_suggested_range_is_one_in_which_the_export_succeeds():
    def fn(x):
        return x * 2 if 7 <= x.shape[0] * 2 < 31 and x.shape[0] != 5 else x

    with pytest.raises(ConstraintError) as refused:
        export(fn, (ramp(9),), dims=at(0))
    line = next(line for line in refused.value.remedy.splitlines() if "Dim(" in line)
    suggested = eval(line.partition("=")[2].strip(), {"Dim": Dim})
    assert (suggested.min, suggested.max) == (6, 15)
    program = export(fn, (ramp(9),), dims=at(0, row=suggested))
    assert same(program(ramp(15)), fn(ramp(15)))


def test_two_sizes_that_the_program_compares_want_one_name():
    def fn(x, y):
        return x.sum() + y.sum() if x.shape[0] == y.shape[0] else x.sum()

    with pytest.raises(ConstraintError) as refused:
        export(fn, (ramp(4), ramp(4)), dims={"x": {0: Dim("p")}, "y": {0: Dim("q")}})
    assert "q = p" in refused.value.remedy
    program = export(fn, (ramp(4), ramp(4)), dims=at(0, 1, row=Dim("p")))
    assert same(program(ramp(6), ramp(6)), 2 * ramp(6).sum())


def test_one_dim_for_two_dimensions_of_one_input():
    program = export(lambda x: x + x.t(), (ramp(4, 4),), dims={"x": {0: N, 1: N}})
    assert same(program(ramp(6, 6)), ramp(6, 6) + ramp(6, 6).t())
    with pytest.raises(ConstraintError, match="n is 5 in one input and 6 in another"):
        program(ramp(5, 6))


def keyed(batch, *, scale):
    return {"y": batch["x"] * scale, "n": None, "l": [batch["x"] + 1, (scale,)]}


@pytest.mark.parametrize("key", ["x", 0, -2])
def test_arguments_by_name_and_position(key):
    program = export(lambda x, y: x * 2 + y, (ramp(4), ramp(1)), dims={key: {-1: N}})
    assert same(program(ramp(6), y=ramp(1)), ramp(6) * 2 + 1)
    assert same(program(y=ramp(1), x=ramp(6)), ramp(6) * 2 + 1)


def test_arguments_by_path_and_keyword():
    program = export(keyed, ({"x": ramp(4)},), {"scale": ramp(4)}, dims={"batch['x']": {0: N}, "scale": {0: N}})
    assert same(program({"x": ramp(6)}, scale=ramp(6)), keyed({"x": ramp(6)}, scale=ramp(6)))
    with pytest.raises(ConstraintError, match=r"exported for the tensors batch\['x'\], scale, .* has batch\['z'\]"):
        program({"z": ramp(6)}, scale=ramp(6))
    with pytest.raises(ConstraintError, match="and this call has"):
        program({"x": ramp(6), "more": ramp(6)}, scale=ramp(6))


WRONG = {
    "no dictionary": ([N], "must be a dictionary, not list"),
    "no such argument": ({"z": {0: N}}, "no tensor argument 'z'"),
    "no such position": ({5: {0: N}}, "no tensor argument 5"),
    "a number is no tensor": ({"k": {0: N}}, "no tensor argument 'k'"),
    "no inner dictionary": ({"x": N}, r"dims\['x'\] must be a dictionary"),
    "no such dimension": ({"x": {2: N}}, "x has dimensions 0 to 1"),
    "no dimension": ({"x": {"0": N}}, "x has dimensions 0 to 1"),
    "no Dim": ({"x": {0: "n"}}, "x has dimensions 0 to 1"),
    "two ranges": ({"x": {0: N, 1: Dim("n")}}, "n is declared twice"),
    "excluded by the range": ({"x": {0: Dim("n", min=5)}}, r"x\.shape\[0\] == 4"),
    "excluded by the multiple": ({"x": {1: Dim("n", multiple_of=2)}}, r"x\.shape\[1\] == 3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_declarations(name):
    dims, message = WRONG[name]
    with pytest.raises(ConstraintError, match=message) as refused:
        export(lambda x, k: x * k, (ramp(*MATRIX), 2), dims=dims)
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "a b"}, "no name for a dimension"),
        ({"name": 3}, "no name for a dimension"),
        ({"name": "n", "min": -1}, "whole numbers"),
        ({"name": "n", "min": 2.5}, "whole numbers"),
        ({"name": "n", "max": True}, "whole numbers"),
        ({"name": "n", "multiple_of": 0}, "whole numbers"),
        ({"name": "n", "min": 5, "max": 4}, "allows no size"),
        ({"name": "n", "min": 5, "max": 7, "multiple_of": 4}, "allows no size"),
    ],
)
def test_wrong_dims(arguments, message):
    with pytest.raises(ConstraintError, match=message):
        Dim(**arguments)


# -- what is the same at every call -----------------------------------------------------------------------------------


def test_other_arguments_are_those_of_the_sample():
    def fn(x, k=3, *, flag="a"):
        return x * k if flag == "a" else x

    program = export(fn, (ramp(4), 5), {"flag": "a"}, dims=at(0))
    assert same(program(ramp(6), 5, flag="a"), ramp(6) * 5)
    for args, kwargs, message in (
        ((7,), {"flag": "a"}, "k = 5, and got 7"), ((5.0,), {"flag": "a"}, r"k = 5, and got 5\.0"),
        ((5,), {"flag": "b"}, "flag = 'a', and got 'b'"), ((), {"flag": "a"}, "k = 5, and got a call without it"),
        ((5,), {}, "flag = 'a', and got a call without it"),
    ):  # fmt: skip
        with pytest.raises(ConstraintError, match=message):
            program(ramp(6), *args, **kwargs)
    with pytest.raises(ConstraintError, match="k left out, and got 3"):
        export(fn, (ramp(4),), dims=at(0))(ramp(6), 3)


def test_kinds_and_other_sizes_are_those_of_the_sample():
    program = export(lambda x: x * 2, (ramp(*MATRIX),), dims=at(0))
    for wrong in (ramp(4, 4), ramp(4), ramp(4, 3, 1), ramp(4, 3).double(), ramp(4, 3).to("meta")):
        with pytest.raises(ConstraintError, match=r"exported for x: torch\.float32 \[any, 3\] on cpu, and got"):
            program(wrong)
    with pytest.raises(ConstraintError, match="convert or move the tensor"):
        program(ramp(4, 3).double())
    with pytest.raises(ConstraintError, match="declare the dimensions that vary"):
        program(ramp(4, 4))


def test_other_strides_compute_the_same_or_are_refused():
    plain = export(lambda x: x.relu().sum(0) + x[1], (ramp(*MATRIX),), dims=at(0))
    asks = {
        "is_contiguous": lambda x: x + 1 if x.is_contiguous() else x - 1,
        "contiguous": lambda x: x.contiguous().view(-1),
    }
    for x in (ramp(3, 5).t(), ramp(10, 3)[::2], ramp(1, 3).expand(5, 3), ramp(5, 6)[:, ::2]):
        assert same(plain(x), x.relu().sum(0) + x[1])
        for name, fn in asks.items():
            program = export(fn, (ramp(*MATRIX),), dims=at(0))
            assert same(program(ramp(5, 3)), fn(ramp(5, 3)))
            with pytest.raises(ConstraintError, match="x has the strides .* memory layout"):
                program(x)
            turned = export(fn, (ramp(3, 4).t(),), dims=at(0))
            assert same(turned(ramp(3, 7).t()), fn(ramp(3, 7).t())), name


def test_the_sample_has_tensors_of_its_own():
    x = ramp(4)
    with pytest.raises(ConstraintError, match="one tensor as x and as y"):
        export(lambda x, y: (x + 1) * y, (x, x), dims=at(0, 1))
    with pytest.raises(ConstraintError, match="also finds outside"):
        export(lambda y: y * x, (x,), dims=at(0))
    program = export(lambda x, y: (x.add_(1), x + y)[1], (ramp(4), ramp(4)), dims=at(0, 1))
    shared, twin = ramp(6), ramp(6)
    assert same(program(shared, shared), 2 * (twin + 1)) and same(shared, twin + 1)  # like eager execution


# -- weights, writes, gradients, data ---------------------------------------------------------------------------------


def test_weights_are_copies():
    layer = torch.nn.Linear(3, 2)
    program = export(layer, (ramp(*MATRIX),), dims=at(0))
    x = ramp(7, 3)
    before = layer(x).detach()
    with torch.no_grad():
        layer.weight.zero_()
    assert torch.equal(program(x), before) and layer.weight.grad is None


found = torch.zeros(3)


@pytest.mark.parametrize(
    "write",
    [lambda: found.add_(1), lambda: found.view(-1).add_(1), lambda: found[0].fill_(1), lambda: found.t().zero_()],
)
def test_a_found_tensor_is_not_written(write):
    def fn(x):
        write()
        return x * found.sum()

    with pytest.raises(ConstraintError, match=r"writes into a tensor it finds outside its arguments \(found\)"):
        export(fn, (ramp(4),), dims=at(0))
    assert same(found, torch.zeros(3))


def test_a_found_tensor_may_be_added_to_what_is_written():
    program = export(lambda x: (x * 1).add_(found.sum()), (ramp(4),), dims=at(0))
    assert same(program(ramp(5)), ramp(5))
    with pytest.raises(ConstraintError, match="num_batches_tracked"):
        export(torch.nn.BatchNorm1d(3), (ramp(*MATRIX),), dims=at(0))
    net = torch.nn.BatchNorm1d(3).eval()
    assert torch.equal(export(net, (ramp(*MATRIX),), dims=at(0))(ramp(6, 3)), net(ramp(6, 3)))


def partly_constant(x, w):
    with torch.no_grad():
        scale = (x * w).sum()
    return x * scale + w


def test_gradients_flow_through_an_exported_program():
    def gradients(fn):
        x, w = ramp(5).requires_grad_(), ramp(5).requires_grad_()
        fn(x, w).sum().backward()
        return x.grad, w.grad

    sample = tuple(ramp(4).requires_grad_() for _ in range(2))
    program = export(partly_constant, sample, dims=at(0, 1))
    assert same(gradients(program), gradients(partly_constant))
    assert same(gradients(export(lambda x, w: x * w, (ramp(4), ramp(4)), dims=at(0, 1))), (ramp(5), ramp(5)))
    without = export(partly_constant, (ramp(4), ramp(4)), dims=at(0, 1))
    assert same(without(ramp(5), ramp(5)), partly_constant(ramp(5), ramp(5)))
    with pytest.raises(ConstraintError, match="x requires grad, .* switches gradient recording off"):
        without(ramp(5).requires_grad_(), ramp(5))
    with torch.no_grad():
        assert same(without(ramp(5).requires_grad_(), ramp(5)), partly_constant(ramp(5), ramp(5)))


@pytest.mark.parametrize(
    "fn", [lambda x: x if x.sum() > 0 else -x, lambda x: x * x.sum().item(), lambda x: x[: int(x[0])]]
)
def test_a_program_that_asks_for_data_is_refused(fn):
    with pytest.raises(ConstraintError, match="decides by data") as refused:
        export(fn, (ramp(4),), dims=at(0))
    assert "test_export.py" in str(refused.value)


def test_what_it_says_of_itself():
    program = export(branch, (ramp(64),), dims=at(0, row=Dim("n", min=33)))
    assert "Dim('n', min=33) for x.shape[0]" in str(program) and IMPLIED in str(program)
    assert repr(program).startswith("ExportedProgram('branch', ") and "dims n" in repr(program)
    assert "dims none" in repr(export(lambda x: x + 1, (ramp(4),)))


# -- random programs --------------------------------------------------------------------------------------------------

STEPS = {
    "scale": lambda x, n: x * n,
    "half": lambda x, n: x[: (x.shape[0] + 1) // 2],
    "twice": lambda x, n: torch.cat([x, x]),
    "turn": lambda x, n: x.flip(0),
    "grow": lambda x, n: F.pad(x, (0, n)),
    "length": lambda x, n: x + x.shape[0],
    "count": lambda x, n: x - x.numel() % 7,
    "outer": lambda x, n: (x[:, None] * x[None, :]).sum(1),
    "fold": lambda x, n: x.reshape(2, -1).sum(0),
    "branch": lambda x, n: x + 1 if x.shape[0] > 6 else x - 1,
    "parity": lambda x, n: x * 2 if n % 2 == 0 else x * 3,
    "last": lambda x, n: x - x[x.shape[0] - 1],
}
programs = st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4)


@given(programs, st.integers(2, 9), st.integers(2, 6), st.integers(0, 6))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_an_exported_program_computes_what_eager_does_or_says_that_it_cannot(steps, sample, low, extent):
    def fn(x):
        n = x.shape[0]
        for step in steps:
            x = STEPS[step](x, n)
        return x

    sample = min(max(sample, low), low + extent)
    try:
        eager = fn(ramp(sample))
    except RuntimeError:
        return
    try:
        program = export(fn, (ramp(sample),), dims=at(0, row=Dim("n", min=low, max=low + extent)))
    except ConstraintError:
        return
    assert same(program(ramp(sample)), eager)
    for size in range(low, low + extent + 1):
        try:
            result = program(ramp(size))
        except ConstraintError:
            assert program.adjudications and any(a.outcome == KEPT for a in program.adjudications)
            continue
        assert same(result, fn(ramp(size)))


def test_a_size_that_meets_one_not_declared_is_refused_with_both_remedies():
    n = Dim("n", min=2, max=4096)
    x, w = torch.randn(64, 8), torch.randn(64, 8)
    with pytest.raises(ConstraintError, match=r"(?s)n == 64, relied on at .*declare the other size that is 64 as n"):
        export(lambda x, w: x + w, (x, w), dims={"x": {0: n}})
    program = export(lambda x, w: x + w, (x, w), dims={"x": {0: n}, "w": {0: n}})
    assert torch.equal(program(x[:5], w[:5]), x[:5] + w[:5])
