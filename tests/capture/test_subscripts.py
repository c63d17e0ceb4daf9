"""Subscripts out of range: the same error at the first call (the sample runs) and later (kernels run), to the letter.

The message has the value as the program gave it, its position in the index tensor and the size; of several bad ones it
is the first in row-major order, whatever the threads do. Eager execution must refuse every case, too.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab.capture.subscripts import explain, out_of_range

X = torch.arange(20.0).reshape(5, 4)
L = torch.tensor


def at(position: str, value: int, dimension: int, size: int) -> str:
    place = f" at position {position} of the index tensor" if position != "()" else ""
    return f"index {value}{place} is out of bounds for dimension {dimension} with size {size}"


def first_line(error: BaseException) -> str:
    return str(error).splitlines()[0]


CASES = {
    "index": (lambda x, i: x[i], (X, L([0, 1, 2])), (X, L([0, 7, 9])), at("(1,)", 7, 0, 5)),
    "index negative": (lambda x, i: x[i], (X, L([0, -5, 2])), (X, L([0, -5, -6])), at("(2,)", -6, 0, 5)),
    "index int32": (lambda x, i: x[:, i], (X, L([3], dtype=torch.int32)), (X, L([4], dtype=torch.int32)),
                    at("(0,)", 4, 1, 4)),
    "index of rank 2": (lambda x, i: x[i], (X, L([[0, 1], [2, 3]])), (X, L([[0, 1], [8, 9]])), at("(1, 0)", 8, 0, 5)),
    "index strided": (lambda x, i: x[i.t()], (X, L([[0, 1], [2, 3]])), (X, L([[0, 9], [8, 3]])),
                      at("(0, 1)", 8, 0, 5)),
    "second of two": (lambda x, i, j: x[i, j], (X, L([0, 1]), L([0, 3])), (X, L([0, 1]), L([0, 4])),
                      at("(1,)", 4, 1, 4)),
    # Element (0, 1) is bad by its second subscript, (1, 0) by its first.
    "broadcast": (lambda x, i, j: x[i, j], (X, L([[0], [1]]), L([0, 3])), (X, L([[0], [9]]), L([0, 4])),
                  at("(1,)", 4, 1, 4)),
    "both at once": (lambda x, i, j: x[i, j], (X, L([0, 1]), L([0, 3])), (X, L([0, 6]), L([0, 4])),
                     at("(1,)", 6, 0, 5)),
    "with a slice between": (lambda x, i, j: x[:, None][i, :, j], (X, L([0, 1]), L([0, 3])), (X, L([0, 1]), L([0, -5])),
                             at("(1,)", -5, 2, 4)),
    "index_select": (lambda x, i: x.index_select(1, i), (X, L([3])), (X, L([1, 4])), at("(1,)", 4, 1, 4)),
    "index_select negative": (lambda x, i: x.index_select(0, i), (X, L([3])), (X, L([-1])), at("(0,)", -1, 0, 5)),
    "gather": (lambda x, i: x.gather(1, i), (X, L([[0, 1, 2]])), (X, L([[0, 1, 7]])), at("(0, 2)", 7, 1, 4)),
    "gather negative": (lambda x, i: x.gather(0, i), (X, L([[0, 1, 2]])), (X, L([[0, -1, 7]])), at("(0, 1)", -1, 0, 5)),
    "take": (lambda x, i: x.take(i), (X, L([-20])), (X, L([3, -21])),
             "index -21 at position (1,) of the index tensor is out of bounds for a tensor of 20 elements"),
    "embedding": (lambda i, w: F.embedding(i, w), (L([[0, 1]]), X), (L([[4, 5]]), X), at("(0, 1)", 5, 0, 5)),
    "embedding negative": (lambda i, w: F.embedding(i, w), (L([0, 1]), X), (L([4, -1]), X), at("(1,)", -1, 0, 5)),
    "embedding int32": (lambda i, w: F.embedding(i, w), (L([0, 1], dtype=torch.int32), X),
                        (L([4, 8], dtype=torch.int32), X), at("(1,)", 8, 0, 5)),
    "embedding_bag": (lambda i, w: F.embedding_bag(i, w), (L([[0, 1]]), X), (L([[4, 5]]), X), at("(1,)", 5, 0, 5)),
    "nll_loss": (lambda x, t: F.nll_loss(x, t), (X, L([0, 1, 2, 3, 0])), (X, L([0, 1, -100, 4, 9])),
                 at("(3,)", 4, 1, 4)),
    "nll_loss unreduced": (lambda x, t: F.nll_loss(x, t, reduction="none", ignore_index=-1), (X, L([0, 1, 2, -1, 0])),
                           (X, L([0, -1, 2, -2, 0])), at("(3,)", -2, 1, 4)),
    "nll_loss of one": (lambda x, t: F.nll_loss(x[0], t), (X, L(3)), (X, L(4)), at("()", 4, 0, 4)),
    "cross_entropy": (lambda x, t: F.cross_entropy(x, t), (X, L([0, 1, 2, 3, 0])), (X, L([0, 1, 2, 3, 4])),
                      at("(4,)", 4, 1, 4)),
    "cross_entropy weighted": (lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.1),
                               (X, L([0, 1, 2, 3, 0]), torch.rand(4)), (X, L([0, 1, 2, 3, 4]), torch.rand(4)),
                               at("(4,)", 4, 1, 4)),
    "cross_entropy of images": (lambda x, t: F.cross_entropy(x, t), (X.reshape(1, 5, 2, 2), L([[[0, 1], [2, 3]]])),
                                (X.reshape(1, 5, 2, 2), L([[[0, 1], [5, 7]]])), at("(0, 1, 0)", 5, 1, 5)),
    "one_hot": (lambda t: F.one_hot(t, 4), (L([0, 3]),), (L([0, 4]),), at("(1,)", 4, 1, 4)),
    "index_fill": (lambda x, i: x.index_fill(0, i, 1.0), (X, L([-5])), (X, L([-6])), at("(0,)", -6, 0, 5)),
    "index_put": (lambda x, i: x.index_put((i,), torch.ones(())), (X, L([-5])), (X, L([4, 5])), at("(1,)", 5, 0, 5)),
    "index_add": (lambda x, i: x.index_add(0, i, torch.ones(2, 4)), (X, L([0, 1])), (X, L([0, 5])),
                  at("(1,)", 5, 0, 5)),
    "index_copy": (lambda x, i: x.index_copy(1, i, torch.ones(5, 2)), (X, L([0, 1])), (X, L([4, 0])),
                   at("(0,)", 4, 1, 4)),
    "scatter": (lambda x, i: x.scatter(1, i, 1.0), (X, L([[0, 1]])), (X, L([[0, -1]])), at("(0, 1)", -1, 1, 4)),
    "scatter_add": (lambda x, i: x.scatter_add(0, i, torch.ones(1, 2)), (X, L([[0, 1]])), (X, L([[0, 5]])),
                    at("(0, 1)", 5, 0, 5)),
    "computed": (lambda x, i: x[i * 2 + 1] + 1, (X, L([0, 1])), (X, L([0, 2])), at("(1,)", 5, 0, 5)),
    "an empty dimension": (lambda x, i: x[:0][i].sum(), (X, L([], dtype=torch.int64)), (X, L([0])),
                           at("(0,)", 0, 0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_message_is_the_same_at_the_first_call_and_later(name):
    function, good, bad, expected = CASES[name]
    with pytest.raises((IndexError, RuntimeError)):
        function(*bad)
    with pytest.raises(staxlab.SubscriptError) as first:
        staxlab.compile(function)(*bad)
    compiled = staxlab.compile(function)
    compiled(*good)
    same_key = [g.shape for g in good] == [b.shape for b in bad]
    with pytest.raises(staxlab.SubscriptError) as later:
        compiled(*bad)
    assert len(compiled.versions) == 1 or not same_key
    assert first_line(first.value) == first_line(later.value) == expected
    assert isinstance(later.value, IndexError) and isinstance(later.value, staxlab.StaxError)
    assert str(later.value) == str(first.value)  # the line and the remedy, too
    torch.testing.assert_close(compiled(*good), function(*good))  # and nothing is broken afterwards


def brute_force(x: torch.Tensor, indices: list[torch.Tensor]) -> str | None:
    """The message for ``x[indices]``, element by element in row-major order."""
    shape = torch.broadcast_shapes(*(index.shape for index in indices))
    for place in itertools.product(*map(range, shape)):
        for dimension, index in enumerate(indices):
            own = place[len(shape) - index.ndim :]
            own = tuple(0 if extent == 1 else k for k, extent in zip(own, index.shape, strict=True))
            size = x.shape[dimension]
            if not -size <= int(index[own]) < size:
                return at(str(own), int(index[own]), dimension, size)
    return None


@pytest.mark.parametrize("seed", range(6))
def test_several_index_tensors_broadcast_against_each_other(seed):
    generator = random.Random(seed)
    x = torch.randn([generator.randint(1, 5) for _ in range(3)])
    full = [generator.randint(2, 3) for _ in range(generator.randint(1, 3))]
    shapes = [[n if generator.random() < 0.7 else 1 for n in full][generator.randint(0, 1) :] or [1] for _ in range(3)]
    compiled = staxlab.compile(lambda x, i, j, k: x[i, j, k])
    compiled(x, *(torch.zeros(shape, dtype=torch.int64) for shape in shapes))
    failed = 0
    for _ in range(30):
        low, high = generator.choice([(0, 0), (0, 1), (2, 2)])
        indices = [torch.randint(-n - low, n + high, shape) for n, shape in zip(x.shape, shapes, strict=True)]
        expected = brute_force(x, indices)
        if expected is None:
            torch.testing.assert_close(compiled(x, *indices), x[tuple(indices)])
            continue
        failed += 1
        with pytest.raises(staxlab.SubscriptError) as raised:
            compiled(x, *indices)
        assert first_line(raised.value) == expected
    assert failed > 5 and len(compiled.versions) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x[i],
        lambda x, i: x.index_select(0, i),
        lambda x, i: x.gather(0, i[:, None]),
        lambda x, i: F.embedding(i, x),
        lambda x, i: x.index_put((i,), torch.ones(())),
        lambda x, i: x.scatter(0, i[:, None], 1.0),
        lambda x, i: F.nll_loss(x.t()[:1], i),
    ],
)
def test_nothing_can_be_read_from_an_empty_dimension(function):
    empty = torch.randn(0, 4)
    with pytest.raises((IndexError, RuntimeError)):
        function(empty, L([0]))
    with pytest.raises(staxlab.SubscriptError) as raised:
        staxlab.compile(function)(empty, L([0]))
    assert first_line(raised.value).startswith("index 0 at position (0")
    assert first_line(raised.value).endswith("with size 0")
    assert str(raised.value).splitlines()[-1] == "  remedy: there is no element to read or write"


def test_writes_at_subscripts():
    def function(x, i):
        x[i] = 1.0
        return x * 2

    compiled = staxlab.compile(function)
    compiled(X.clone(), L([0, 1]))
    x = X.clone()
    with pytest.raises(IndexError) as raised:
        compiled(x, L([0, 7]))
    assert first_line(raised.value) == at("(1,)", 7, 0, 5)
    assert torch.equal(x, X)  # eager execution may have written a part of it


def test_what_is_said_beside_it():
    compiled = staxlab.compile(lambda x, i: x.gather(1, i))
    compiled(X, L([[0]]))
    with pytest.raises(IndexError) as raised:
        compiled(X, L([[-1]]))
    what, where, remedy = str(raised.value).splitlines()
    assert "test_subscripts.py" in where and remedy == "  remedy: subscripts from 0 to 3 are valid here"
    with pytest.raises(RuntimeError):  # what eager raises for gather
        compiled(X, L([[-1]]))


def test_a_single_number_is_read_as_eager_execution_reads_it():
    compiled = staxlab.compile(lambda x, i: x[i])
    for index in (L(5), L(4), L(5), L(-6)):
        if index in (4,):
            torch.testing.assert_close(compiled(X, index), X[index])
            continue
        with pytest.raises(IndexError) as raised:
            compiled(X, index)
        assert first_line(raised.value) == at("()", int(index), 0, 5)


def test_masks_and_empty_index_tensors_are_never_out_of_range():
    none = torch.empty(0, dtype=torch.int64)
    for function, arguments in (
        (lambda x, i: x[i], (X, none)), (lambda x, i: x.take(i), (X, none)), (lambda x, i: x[:0][i], (X, none)),
        (lambda x, i: x.gather(0, i), (X, none.reshape(0, 4))), (lambda i, w: F.embedding(i, w), (none, X)),
        (lambda x, m: x[m], (X, torch.zeros(5, dtype=torch.bool))), (lambda x, m: x[m], (X, X > 3)),
        (lambda x, m: x.masked_fill(m, 1.0), (X, X > 3)),
    ):  # fmt: skip
        compiled = staxlab.compile(function)
        for _ in range(2):
            torch.testing.assert_close(compiled(*arguments), function(*arguments))


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_a_mask_of_the_wrong_shape_is_eagers_error():
    for dtype in (torch.bool, torch.uint8):
        with pytest.raises(IndexError, match="mask"):
            staxlab.compile(lambda x, m: x[m])(X, torch.ones(4, dtype=dtype))


def test_take_along_dim_counts_round_the_dimension_as_eager_execution_does():
    function = lambda x, i: x.take_along_dim(i, 1)  # noqa: E731
    compiled = staxlab.compile(function)
    for index in (L([[0, 1, 2]]), L([[0, 7, -3]])):
        torch.testing.assert_close(compiled(X, index), function(X, index))


def test_the_first_in_row_major_order_whatever_the_threads_do():
    x, index = torch.randn(1000), torch.zeros(300, 1000, dtype=torch.int64)
    compiled = staxlab.compile(lambda x, i: x[i].sin())
    compiled(x, index)
    index[299, 999], index[170, 3], index[170, 2], index[200, 0] = 5000, 1000, -1001, 1001
    for _ in range(5):
        with pytest.raises(IndexError) as raised:
            compiled(x, index)
        assert first_line(raised.value) == at("(170, 2)", -1001, 0, 1000)


def test_the_first_operator_of_the_program_decides():
    compiled = staxlab.compile(lambda x, i, j: (x[i].sum(), x[:, j].sum()))
    compiled(X, L([0]), L([0]))
    with pytest.raises(IndexError) as raised:
        compiled(X, L([5]), L([4]))
    assert first_line(raised.value) == at("(0,)", 5, 0, 5)


def test_a_result_that_nobody_reads_is_checked():
    compiled = staxlab.compile(lambda x, i: (x[i], x * 2)[1])
    compiled(X, L([0]))
    with pytest.raises(IndexError) as raised:
        compiled(X, L([5]))
    assert first_line(raised.value) == at("(0,)", 5, 0, 5)


def test_training_calls():
    compiled = staxlab.compile(lambda x, t: F.cross_entropy(x, t))
    x = X.clone().requires_grad_()
    with pytest.raises(IndexError) as first:
        staxlab.compile(lambda x, t: F.cross_entropy(x, t))(x, L([0, 1, 2, 3, 4]))
    assert first_line(first.value) == at("(4,)", 4, 1, 4)
    compiled(x, L([0, 1, 2, 3, 0])).backward()
    with pytest.raises(IndexError) as raised:
        compiled(x, L([0, 1, 2, 3, 4]))
    assert first_line(raised.value) == at("(4,)", 4, 1, 4)


@pytest.mark.filterwarnings("ignore::staxlab.errors.FallbackWarning")
@pytest.mark.parametrize("options", [{"dynamic": True}, {"backend": "aot_eager"}, {"backend": "eager"}], ids=str)
def test_without_kernels_too(options):
    for function in (
        lambda x, i: x[i] * 2,
        lambda x, i: x.gather(0, i[:, None]),
        lambda x, i: F.nll_loss(x.t()[: len(i)], i),
        lambda x, i: torch.take(x[:, 0], i) + F.one_hot(i, 5)[:, 0],
    ):
        compiled = staxlab.compile(function, **options)
        compiled(X, L([0, 1]))
        for x, index, size in ((X, [0, 7], 5), (torch.randn(9, 4), [0, 2, 12], 9)):
            with pytest.raises(staxlab.SubscriptError) as raised:
                compiled(x, L(index))
            assert f"index {index[-1]} at position ({len(index) - 1}," in first_line(raised.value)
            assert f"{size}" in first_line(raised.value) and "test_subscripts.py" in str(raised.value)


def test_what_cannot_be_done_twice_is_not_done_twice():
    seen = []

    @torch.library.custom_op("staxlab_test::picking", mutates_args=())
    def picking(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return x[i]

    compiled = staxlab.compile(lambda x, i: picking(x, i), backend="eager")
    compiled(X, L([0]))
    del seen[:]
    with pytest.raises(IndexError):
        compiled(X, L([7]))
    assert seen == [1]


def test_a_written_index_tensor_is_not_asked_again():
    """Its elements may have changed by then, and a wrong position is worse than none."""

    def function(x, i):
        i += 1
        return x[i]

    compiled = staxlab.compile(function)
    compiled(X, L([0, 1]))
    with pytest.raises(IndexError) as raised:
        compiled(X, L([0, 4]))
    assert "index 5" in first_line(raised.value)


def test_caught_inside_the_function_it_is_refused_as_any_other_error():
    def function(x, i):
        try:
            return x[i]
        except IndexError:
            return x

    with pytest.raises(staxlab.CaptureError, match="caught"):
        staxlab.trace(function, X, L([5]))


def test_other_errors_of_the_same_operators_pass():
    with pytest.raises(RuntimeError) as raised:
        staxlab.compile(lambda x, i: x.gather(1, i))(X, L([0]))
    assert not isinstance(raised.value, staxlab.StaxError)


def test_rules_look_at_nothing_else():
    aten = torch.ops.aten
    assert out_of_range(aten.add.Tensor, (X, X), {}) is None
    assert out_of_range(aten.index.Tensor, (X, [None, L([3])]), {}) is None
    assert out_of_range(aten.index.Tensor, (X, [None, L([4])]), {}).what == at("(0,)", 4, 1, 4)
    assert out_of_range(aten.gather.default, (X, -1, L([[4]])), {}).dimension == 1
    module = staxlab.explain(lambda x, i: x[i], X, L([0])).operators.module
    assert explain(IndexError("somewhere"), module, [X, L([4])]) is None
    assert explain(RuntimeError("ZeroDivisionError"), module, [X, L([5])]) is None
    assert first_line(explain(IndexError("somewhere"), module, [X, L([5])])) == at("(0,)", 5, 0, 5)


def test_another_error_before_it_is_the_one_that_is_raised():
    """Integers divided by zero raise in PyTorch's operator, which comes first in the program."""
    compiled = staxlab.compile(lambda x, i, n: (n // (n - 1), x[i]))
    compiled(X, L([0]), L([3]))
    with pytest.raises(RuntimeError, match="ZeroDivisionError") as raised:
        compiled(X, L([5]), L([1]))
    assert not isinstance(raised.value, IndexError)


def test_a_region_whose_subscripts_are_known_runs_as_before():
    compiled = staxlab.compile(lambda x: x[(torch.arange(5) * 3) % 5] * 2)
    torch.testing.assert_close(compiled(X), X[[0, 3, 1, 4, 2]] * 2)
    compilation = compiled.versions[0].compilation
    assert not compilation.artifact.interpreted and compilation.executor is compilation.artifact.call


def test_nothing_is_read_or_written_out_of_bounds():
    """A page before and behind the table must not be touched: its memory ends at pages that cannot be read."""
    program = """
import ctypes, mmap, torch, staxlab
libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
page = mmap.PAGESIZE
block = mmap.mmap(-1, 3 * page)
start = ctypes.addressof(ctypes.c_char.from_buffer(block))
table = torch.frombuffer(block, dtype=torch.float32, count=page // 4, offset=page)
for number in (0, 2):
    assert libc.mprotect(start + number * page, page, 0) == 0
size = table.numel()
for shape, function in (((64,), lambda x, i: x[i] * 2), ((64,), lambda x, i: x.take(i)), ((3,), lambda x, i: x[i]),
                        ((64,), lambda x, i: x.index_select(0, i)), ((64,), lambda x, i: x[i].sum()),
                        ((64,), lambda x, i: x.gather(0, i)), ((64,), lambda x, i: x.index_add(0, i, x[:64])),
                        ((64,), lambda x, i: x.index_put((i,), x[:64])), ((64,), lambda x, i: x.scatter(0, i, 1.0))):
    compiled = staxlab.compile(function)
    compiled(table, torch.zeros(shape, dtype=torch.int64))
    for bad in (size, size + 900, -size - 1, -size - 900, 10**15, -(10**15)):
        index = torch.zeros(shape, dtype=torch.int64)
        index[-1] = bad
        try:
            compiled(table, index)
        except IndexError as error:
            assert f"index {bad} at position ({shape[0] - 1},)" in str(error), error
        else:
            raise AssertionError(bad)
print("done")
import os; os._exit(0)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout.strip().endswith("done"), found.stderr[-2000:]
