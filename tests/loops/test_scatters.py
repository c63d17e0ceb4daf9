"""Scattered writes against eager execution, by the reference semantics and as real kernels; errors, order, aliasing."""

from __future__ import annotations

import concurrent.futures
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab
from staxlab.errors import SubscriptError
from staxlab.loops.body import record
from staxlab.loops.disjoint import is_one_to_one, separates
from staxlab.loops.expressions import Expr, Symbol
from staxlab.loops.ir import ComputedBuffer, ExternBuffer, LoopProgram, Scatter

from .lowered import GPU, program_of
from .opinfo import DTYPES, operators_database, outcome, samples
from .test_adjoints import kernels, native

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
ALL = list(DTYPES.values())
HALF = (torch.float16, torch.bfloat16)


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    return (torch.randn(shape) * 4).to(dtype) if dtype != torch.uint8 else torch.randint(0, 200, shape).to(dtype)


def subscripts(size: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, size, shape)


def exact(function, *inputs: torch.Tensor, merged: bool = True) -> LoopProgram:
    """Eager's bits from the reference semantics and from kernels; what merges half precision is rounded once here and
    at every step there."""
    half = inputs[0].dtype in HALF and merged
    tolerance = {"rtol": 5e-2, "atol": 0.5} if half else {"rtol": 0, "atol": 0}
    program = native(function, *inputs, **tolerance)
    kernels(function, *inputs, **tolerance)
    return program


def scatters(program: LoopProgram) -> list[ComputedBuffer]:
    return [b for b in program.buffers if isinstance(b, ComputedBuffer) and isinstance(b.data, Scatter)]


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_adding_element_by_element(dtype):
    for dim in (0, 1, -1):
        x, k = numbers(dtype, 4, 5, 6), subscripts(4, 3, 5, 2)
        exact(lambda x, k, s: x.scatter_add(dim, k, s), x, k, numbers(dtype, 3, 5, 6))  # noqa: B023
    exact(lambda x, k, s: x.scatter_add(0, k, s), numbers(dtype, 9), subscripts(9, 70), numbers(dtype, 70))


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin", "mean"])
def test_reducing_element_by_element(dtype, reduce):
    if dtype == torch.bool and reduce == "mean":
        return
    x, k, s = numbers(dtype, 6, 7), subscripts(6, 9, 7), numbers(dtype, 9, 7)
    if reduce == "prod":
        x, s = x.clamp(0, 2), s.clamp(0, 2)
    for include_self in (True, False):
        exact(lambda x, k, s: x.scatter_reduce(0, k, s, reduce, include_self=include_self), x, k, s)  # noqa: B023


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_replacing(dtype):
    x, s = numbers(dtype, 6, 7), numbers(dtype, 6, 7)
    k = torch.stack([torch.randperm(7) for _ in range(6)])
    exact(lambda x, k, s: x.scatter(1, k, s), x, k, s, merged=False)
    exact(lambda x, k: x.scatter(1, k, 1), x, subscripts(7, 6, 3), merged=False)
    exact(lambda x, k, s: x.index_copy(0, k, s), x, torch.randperm(6), s, merged=False)
    exact(lambda x, k: x.index_fill(1, k - 7, 1), x, subscripts(7, 3), merged=False)
    exact(lambda x, k, v: x.index_fill(0, k, v), x, subscripts(6, 3), numbers(dtype), merged=False)
    exact(lambda x, k: x.index_fill(0, k, 1), x, torch.tensor(3), merged=False)


@pytest.mark.parametrize("reduce", ["add", "multiply"])
def test_the_older_names_of_two_reductions(reduce):
    x, k = torch.randn(6, 7), subscripts(6, 9, 7)
    exact(lambda x, k, s: x.scatter(0, k, s, reduce=reduce), x, k, torch.randn(9, 7))
    exact(lambda x, k: x.scatter(0, k, 1.5, reduce=reduce), x, k)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_adding_slices(dtype):
    for dim in (0, 1):
        x, k = numbers(dtype, 6, 37), subscripts((6, 37)[dim], 11)
        s = numbers(dtype, *((11, 37), (6, 11))[dim])
        exact(lambda x, k, s: x.index_add(dim, k, s), x, k, s)  # noqa: B023
        if dtype != torch.bool:
            exact(lambda x, k, s: x.index_add(dim, k, s, alpha=2), x, k, s)  # noqa: B023
    exact(lambda x, k, s: x.index_add(0, k, s), numbers(dtype, 6), torch.tensor(2), numbers(dtype, 1))


@pytest.mark.parametrize("reduce", ["prod", "amax", "amin", "mean"])
def test_reducing_slices(reduce):
    for include_self in (True, False):
        exact(
            lambda x, k, s: x.index_reduce(1, k, s, reduce, include_self=include_self),  # noqa: B023
            torch.randn(5, 6), subscripts(6, 9), torch.randn(5, 9),
        )  # fmt: skip


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("accumulate", [False, True])
def test_several_subscripts_at_once(dtype, accumulate):
    x = numbers(dtype, 4, 5, 6)

    def put(*indices):
        return lambda x, v, *given: aten.index_put(x, [None if i is None else given[i] for i in indices], v, accumulate)

    merged = accumulate
    exact(put(0), x, numbers(dtype, 4, 5, 6), torch.randperm(4), merged=merged)
    exact(put(0), x, numbers(dtype, 6), torch.tensor([-1, 2]), merged=merged)
    # two that broadcast, with a slice between them (their dimensions come first) and next to each other
    i, j = torch.randperm(4)[:3].view(3, 1), torch.randperm(6)[:2] - 6
    exact(put(0, None, 1), x, numbers(dtype, 3, 2, 5), i, j, merged=merged)
    exact(put(None, 0, 1), x, numbers(dtype, 1, 3, 2), i, j, merged=merged)
    exact(
        lambda x, k, s: aten.put(x, k, s, accumulate), x, torch.randperm(120)[:8] - 60, numbers(dtype, 8), merged=merged
    )


def test_a_mask_and_a_number():
    x, mask = torch.randn(4, 5, 6), torch.rand(4, 5) > 0.5
    for accumulate in (False, True):
        program = exact(lambda x, m, v: aten.index_put(x, [m], v, accumulate), x, mask, torch.tensor(2.0))  # noqa: B023
        assert not scatters(program)  # elements stay where they are
    program = program_of(lambda x, m, v: aten.index_put(x, [m], v), x, mask, torch.randn(int(mask.sum()), 6))
    assert isinstance(program.buffers[0], ExternBuffer)


def test_rows_of_an_embedding():
    for shape in ((7,), (3, 4), (2, 3, 2)):
        k = subscripts(9, *shape)
        for padding in (-1, 0, 4):
            program = exact(
                lambda g, k: aten.embedding_dense_backward(g, k, 9, padding, False),  # noqa: B023
                torch.randn(*shape, 21), k,
            )  # fmt: skip
            assert not any(record(b, dtypes(program)).may_fail for b in scatters(program))
    program = program_of(
        lambda g, k: aten.embedding_dense_backward(g, k, 9, -1, True), torch.randn(7, 21), k.view(-1)[:7]
    )
    assert isinstance(program.buffers[0], ExternBuffer)


def dtypes(program: LoopProgram) -> dict[str, torch.dtype]:
    return {b.name: b.layout.dtype for b in (*program.inputs, *program.buffers)}


def test_nan_infinities_and_zeros_of_both_signs():
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan])
    x, s = special.repeat_interleave(7), special.repeat(7)
    k = torch.arange(49)
    for reduce in ("sum", "prod", "amax", "amin"):
        program = native(lambda x, k, s: x.scatter_reduce(0, k, s, reduce), x, k, s)  # noqa: B023
        assert scatters(program)
        function = staxlab.compile(lambda x, k, s: x.scatter_reduce(0, k, s, reduce))  # noqa: B023
        ours, eagers = function(x, k, s), x.scatter_reduce(0, k, s, reduce)
        torch.testing.assert_close(ours, eagers, rtol=0, atol=0, equal_nan=True)
        known = ~eagers.isnan()
        assert torch.equal(ours[known].signbit(), eagers[known].signbit())


def test_half_precision_is_rounded_once():
    x, k, s = torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1000, dtype=torch.int64), torch.ones(1000).bfloat16()
    ours = staxlab.compile(lambda x, k, s: x.scatter_add(0, k, s))(x, k, s)
    assert ours == 1000 and x.index_add(0, k, s) == 256  # what eager adds to 256 is rounded away


def test_strided_memory_and_offsets():
    x, k, s = torch.randn(9, 6).t()[:, 1:], subscripts(6, 7, 9).t()[:8], torch.randn(8, 20)[:, ::2]
    exact(lambda x, k, s: x.scatter_add(0, k, s), x, k, s)
    x = torch.randn(9, 6).t()
    exact(lambda x, k, s: x.index_add(0, k, s), x, subscripts(6, 5), torch.randn(9, 5).t())
    exact(
        lambda x, k, s: x.index_add(0, k, s), torch.randn(6, 9), subscripts(6, 10)[::2], torch.randn(1, 9).expand(5, 9)
    )


def test_numbers_count_as_rows_of_one():
    number, at, k = torch.tensor(2.0), torch.tensor(0), torch.tensor([0])
    for x, s in ((number, torch.tensor(3.0)), (torch.tensor([2.0]), torch.tensor(3.0))):
        exact(lambda x, k, s: x.scatter_add(0, k, s), x, at, s)
        exact(lambda x, k, s: x.scatter(-1, k, s), x, at, s)
        exact(lambda x, k, s: x.scatter_reduce(0, k, s, "mean", include_self=False), x, at, s)
        exact(lambda x, k, s: x.index_add(0, k, s), x, k, s.view(x.shape))
        exact(lambda x, k, s: x.index_copy(0, k, s), x, at, s.view(x.shape))
        exact(lambda x, k: x.index_fill(0, k, 5.0), x, k)
        exact(lambda x, k, v: x.index_fill(0, k, v), x, at, s)


@pytest.mark.parametrize("kind", ["sum", "store", "amax", "prod"])
def test_kernels_pass_validation(kind):
    """Every kernel against the semantics of its loops, on the sample and on drawn data, subscripts out of range too."""
    functions = {
        "sum": lambda x, k, s: x.index_add(0, k[:, 0], s).scatter_add(0, k, s),
        "store": lambda x, k, s: x.scatter(0, k, s),
        "amax": lambda x, k, s: x.scatter_reduce(0, k, s, "amax", include_self=False),
        "prod": lambda x, k, s: x.scatter_reduce(0, k, s, "prod"),
    }
    x, k, s = torch.randn(20, 37), subscripts(20, 30, 37), torch.randn(30, 37)
    compiled = staxlab.compile(functions[kind], options={"validate": True})
    torch.testing.assert_close(compiled(x, k, s), functions[kind](x, k, s))
    (version,) = compiled.versions
    assert version.compilation.records["validation"].passed


def test_nothing_to_write_and_nothing_to_write_to():
    exact(lambda x, k, s: x.scatter_add(0, k, s), torch.randn(4, 5), subscripts(4, 0, 5), torch.randn(3, 5))
    exact(lambda x, k, s: x.index_add(0, k, s), torch.randn(4, 5), subscripts(4, 0), torch.randn(0, 5))
    exact(lambda x, k, s: torch.index_put(x, [k], s, True), torch.randn(4, 5), subscripts(4, 0), torch.randn(0, 5))
    x = torch.randn(4, 0)
    result = staxlab.compile(lambda x, k, s: x.index_add(0, k, s))(x, subscripts(4, 3), torch.randn(3, 0))
    assert result.shape == (4, 0)


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(1, 4)), st.integers(0, 2), st.data(),
    st.sampled_from(["sum", "prod", "amax", "amin"]), st.booleans(),
)  # fmt: skip
def test_any_shape_any_subscripts(shape, dim, data, reduce, turned):
    ranges = [data.draw(st.integers(1, n if d != dim else 9)) for d, n in enumerate(shape)]
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    x = torch.randn(shape, generator=generator)
    k = torch.randint(0, shape[dim], ranges, generator=generator)
    s = torch.randn(ranges, generator=generator)
    if turned:
        x, s = x.permute(2, 0, 1).contiguous().permute(1, 2, 0), s.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    native(lambda x, k, s: x.scatter_reduce(dim, k, s, reduce), x, k, s, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operator_samples(dtype):
    names = (
        "scatter scatter_add scatter_reduce index_put index_add index_copy index_fill index_reduce put "
        "nn.functional.embedding"
    ).split()
    tally: Counter = Counter()
    for op in (op for op in operators_database() if op.name in names and DTYPES[dtype] in op.dtypes):
        tally.update(outcome(op, sample) for sample in samples(op, DTYPES[dtype], 6))
    assert tally["native"] > 2 * (tally["library"] + tally["fallback"])


# -- order, memory and errors -----------------------------------------------------------------------------------------


def test_of_equal_subscripts_the_last_one_stays():
    k, s = torch.tensor([2, 0, 2, 2]), torch.arange(4.0)
    function = staxlab.compile(lambda x, k, s: torch.index_put(x, [k], s))
    assert function(torch.zeros(3), k, s).tolist() == [1, 0, 3]


def test_one_scatter_goes_on_in_the_memory_of_another():
    def twice(x, k, s):
        x = x.clone()
        x[k] = s
        x[k + 1] = 2 * s
        return x

    x, k, s = torch.randn(9, 4), torch.tensor([0, 5]), torch.randn(2, 4)
    program = exact(twice, x, k, s)
    first, second = scatters(program)
    assert second.data.base == first.name

    def read_between(x, k, s):
        y = x.index_add(0, k, s)
        return y.index_add(0, k, s), y

    program = exact(read_between, x, k, s)
    first, second = scatters(program)
    assert second.data.base != first.name
    for function in (
        lambda x, k, s: (y := x.index_add(0, k, s)).index_add(0, k, y[:2]),
        lambda x, k, s: (y := x.index_add(0, k, s)).index_add(0, k, y.t().t()[:2]),
    ):
        exact(function, x, k, s)


def test_the_tensor_written_to_is_also_what_is_read():
    x, k = torch.randn(6, 5), subscripts(6, 6)
    exact(lambda x, k: x.index_add(0, k, x), x, k)
    exact(lambda x, k: x.scatter_add(0, k.view(6, 1).expand(6, 5), x * 2), x, k)
    n = torch.arange(6)
    exact(lambda n: n.scatter_add(0, n % 3, n), n)
    compiled = staxlab.compile(lambda x, k: x.index_add_(0, k, x[:, :1].expand(6, 5).clone()), strict_native=True)
    ours, eagers = x.clone(), x.clone()
    assert compiled(ours, k) is ours
    torch.testing.assert_close(ours, eagers.index_add_(0, k, eagers[:, :1].expand(6, 5).clone()), rtol=0, atol=0)


REFUSED = {
    "scatter_add": (lambda x, k, s: x.scatter_add_(0, k.view(-1, 1).expand(4, 5), s), RuntimeError, True),
    "scatter": (lambda x, k, s: x.scatter_(0, k.view(-1, 1).expand(4, 5), s), RuntimeError, True),
    "index_add": (lambda x, k, s: x.index_add_(0, k, s), IndexError, True),
    "index_copy": (lambda x, k, s: x.index_copy_(0, k, s), IndexError, True),
    "index_put": (lambda x, k, s: x.index_put_([k], s, True), IndexError, False),
    "index_fill": (lambda x, k, s: x.index_fill_(0, k, 1.0) * s.sum(), IndexError, False),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("wrong", [6, -7, 1 << 40, -(1 << 40), -1])
def test_a_subscript_out_of_range_raises_and_nothing_is_written(name, wrong):
    function, error, refuses_negative = REFUSED[name]
    compiled = staxlab.compile(function)
    x, k, s = torch.randn(6, 5), subscripts(6, 4), torch.randn(4, 5)
    compiled(x.clone(), k, s)
    k[2] = wrong
    if wrong == -1 and not refuses_negative:
        torch.testing.assert_close(compiled(x.clone(), k, s), function(x.clone(), k, s))
        return
    with pytest.raises((IndexError, RuntimeError)):  # so does eager execution
        function(x.clone(), k, s)
    guarded = torch.full((18, 5), 7.0)
    mine = guarded[6:12].copy_(x)
    with pytest.raises(error) as found:
        compiled(mine, k, s)
    assert isinstance(found.value, SubscriptError)
    assert torch.equal(mine, x) and bool((guarded[:6] == 7).all()) and bool((guarded[12:] == 7).all())


def test_a_result_nobody_reads_still_raises():
    compiled = staxlab.compile(lambda x, k: (x.index_add(0, k, x[:2]), x + 1)[1])
    x = torch.randn(6, 5)
    compiled(x, torch.tensor([0, 1]))
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([0, 6]))


def test_gathered_rows_are_not_stored_before_they_are_scattered():
    x, source, target = torch.randn(20, 8), subscripts(20, 50), subscripts(20, 50)
    program = exact(lambda x, a, b: torch.zeros_like(x).index_add(0, b, x[a]), x, source, target)
    assert [type(b.data).__name__ for b in program.buffers] == ["Pointwise", "Scatter"]


def test_ten_threads_call_the_same_scatter():
    function = staxlab.compile(lambda x, k, s: x.index_add(0, k, s))
    x, k, s = torch.zeros(64, 33), subscripts(64, 500), torch.randn(500, 33)
    wanted = x.index_add(0, k, s)
    function(x, k, s)
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        for result in pool.map(lambda _: function(x, k, s), range(100)):
            assert torch.equal(result, wanted)


# -- which loops are disjoint -----------------------------------------------------------------------------------------


def test_what_is_proved_of_a_subscript():
    i, j = Symbol("i0", 0, 6), Symbol("i1", 0, 4)
    read = Expr.of(Symbol("indirect0", 0, 8))
    rows = read * 5 + j  # rows of five
    assert separates(rows, j) and not separates(rows, i)
    assert separates(Expr.of(i) * 9 + read, i)  # row by row
    assert not separates(Expr.of(i) * 8 + read, i)  # nine positions, rows of eight: neighbours overlap
    assert not separates(read * 4 + j, j)  # a row is longer than it is far to the next
    assert separates(Expr.of(i) * -5 + j, i) and separates(Expr.of(i) * -5 + j, j)
    assert not separates(Expr.of(i) // 2, i) and not separates(Expr.of(i) % 3 + 3 * read, i)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-12, 12), st.integers(1, 4)), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(-12, 12), st.integers(1, 4)), max_size=2),
)
def test_a_proof_is_never_wrong(loops, reads):
    """Against all combinations of values: if a loop separates, targets of different iterations never meet."""
    import itertools

    symbols = [Symbol(f"i{k}", 0, n - 1) for k, (_, n) in enumerate(loops)]
    symbols += [Symbol(f"indirect{k}", 0, n - 1) for k, (_, n) in enumerate(reads)]
    target = Expr.of(0)
    for (stride, _), symbol in zip([*loops, *reads], symbols, strict=True):
        target = target + Expr.of(symbol) * stride
    for place, loop in enumerate(symbols[: len(loops)]):
        if not separates(target, loop):
            continue
        seen: dict[int, set[int]] = {}
        for values in itertools.product(*(range(int(s.upper) + 1) for s in symbols)):
            where = target.evaluate({s.name: v for s, v in zip(symbols, values, strict=True)})
            seen.setdefault(int(where), set()).add(values[place])
        assert all(len(found) == 1 for found in seen.values())


def test_slices_at_known_positions_meet_nowhere():
    program = program_of(lambda x, s: x.index_add(0, torch.arange(4) + 1, s), torch.randn(6, 5), torch.randn(4, 5))
    (scatter,) = scatters(program)
    body = record(scatter, dtypes(program))
    assert is_one_to_one(body) and not body.may_fail


# -- traffic ----------------------------------------------------------------------------------------------------------


def test_a_scatter_reads_and_writes_what_it_touches():
    """Adding 3 rows of 5 to 100: the copy moves all twice, the scatter 3 rows and subscripts, and 3 rows each way."""
    from staxlab.measure.bytes import traffic_model

    x, k, s = torch.randn(100, 5), torch.tensor([4, 90, 4]), torch.randn(3, 5)
    for function, each_way in ((lambda x, k, s: x.index_add(0, k, s), 15), (lambda x, k, s: x.index_copy(0, k, s), 0)):
        compiled = staxlab.compile(function)
        compiled(x, k, s)
        (version,) = compiled.versions
        model = traffic_model(version.compilation)
        copy, scatter = model.compiled.rows
        assert (copy.elements_read, copy.elements_written) == (500, 500)
        assert scatter.elements_read == 3 + 15 + each_way and scatter.elements_written == 15
        assert scatter.operations == version.compilation.schedule.nodes[1].operations
        assert model.eager.operations == each_way  # an addition for each element, if any


# -- training ---------------------------------------------------------------------------------------------------------


class Reader(torch.nn.Module):
    """Reads parameters in every way whose adjoint scatters."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(20, 6, generator=generator, dtype=torch.float64))
        self.vector = torch.nn.Parameter(torch.randn(6, generator=generator, dtype=torch.float64))

    def forward(self, k, j):
        rows = torch.nn.functional.embedding(k, self.table, padding_idx=3)
        picked = self.table.index_select(0, k) * self.vector
        gathered = self.table.gather(0, j)
        indexed = self.table[k, k % 6].sin() + self.vector[k % 6]
        added = torch.zeros_like(self.table).index_add(0, k, rows).scatter_add(0, j, gathered)
        largest = added.scatter_reduce(0, j, gathered, "amax")
        return (rows * picked).sum() + indexed.exp().sum() + largest.square().sum() + added.sum()


def test_training_through_reads_at_subscripts():
    k, j = torch.randint(0, 20, (31,)), torch.randint(0, 20, (9, 6))
    ours, eagers = Reader(), Reader()
    compiled = staxlab.compile(ours, strict_native=True)
    for _ in range(2):
        a, b = compiled(k, j), eagers(k, j)
        a.backward()
        b.backward()
        torch.testing.assert_close(a, b)
        for mine, theirs in zip(ours.parameters(), eagers.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-10, atol=1e-10)
    # Frequent subscripts, in single precision: eager's bits, for the order of the additions is the same.
    table, tokens = torch.randn(5, 40, requires_grad=True), torch.randint(0, 5, (300,))
    weights = torch.randn(300, 40)
    (mine,) = torch.autograd.grad(staxlab.compile(lambda t, k: (t[k] * weights).sum())(table, tokens), table)
    (theirs,) = torch.autograd.grad((table[tokens] * weights).sum(), table)
    torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-5)


# -- what a GPU does not do natively ----------------------------------------------------------------------------------


@pytest.fixture
def deterministic():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


def on_gpu(function, *inputs: torch.Tensor) -> bool:
    """Whether the rules make a scatter of it for a GPU."""
    program = program_of(function, *inputs, device=GPU)
    return not any(isinstance(b, ExternBuffer) for b in program.buffers)


def test_what_atomic_operations_offer():
    x, k, s = torch.randn(6, 5), subscripts(6, 9, 5), torch.randn(9, 5)
    reduce = lambda name: lambda x, k, s: x.scatter_reduce(0, k, s, name)  # noqa: E731
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.int8):
        whole = not dtype.is_floating_point
        assert on_gpu(reduce("sum"), x.to(dtype), k, s.to(dtype))
        assert on_gpu(reduce("amax"), x.to(dtype), k, s.to(dtype)) == whole
        assert not on_gpu(reduce("prod"), x.to(dtype), k, s.to(dtype))
    assert not on_gpu(reduce("sum"), x > 0, k, s > 0)


def test_deterministic_algorithms_leave_what_depends_on_an_order_to_pytorch(deterministic):
    x, k, s = torch.randn(6, 5), subscripts(6, 9, 5), torch.randn(9, 5)
    add = lambda x, k, s: x.scatter_add(0, k, s)  # noqa: E731
    assert not on_gpu(add, x, k, s) and on_gpu(add, x.int(), k, s.int())
    assert not on_gpu(lambda x, k, s: x.scatter(0, k, s), x, k, s)
    native(add, x, k, s, rtol=0, atol=0)  # a CPU adds in order anyway
