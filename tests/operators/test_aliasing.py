"""Writes and memory, end to end: results, strides, what shares memory with what, and what a later write reaches."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import staxlab
from staxlab.errors import FallbackWarning


def observe(function, make, calls: int = 2):
    """All that a caller can tell: values, strides and dtypes of results and inputs, which of them share memory or are
    the very same object, and what each of them holds once the results have been written to, one after the other."""
    inputs = make()
    for _ in range(calls):
        result = function(*inputs)
    results = [x for x in (result if isinstance(result, (tuple, list)) else (result,)) if isinstance(x, torch.Tensor)]
    tensors = [*results, *inputs]
    seen = [[(x.tolist(), x.stride() if x.numel() > 1 else None, x.dtype) for x in tensors]]
    seen += [[x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr() for y in tensors] for x in tensors]
    seen += [[x is y for y in tensors] for x in tensors]
    for k, x in enumerate(results):
        try:
            x.add_(100 * (k + 1))
        except RuntimeError:  # an expanded tensor
            continue
        seen.append([y.tolist() for y in tensors])
    return seen


def agree(function, make, backends=("aot_eager", "stax"), calls: int = 2) -> None:
    expected = observe(function, make, calls)
    for backend in backends:
        assert observe(staxlab.compile(function, backend=backend), make, calls) == expected, backend


def falls_back(function, make, match: str) -> None:
    """Eager's behaviour, with a warning that says why."""
    expected = observe(function, make)
    with pytest.warns(FallbackWarning, match=match):
        assert observe(staxlab.compile(function), make) == expected


def plain():
    return (torch.arange(12.0).view(3, 4),)


def transposed():
    return (torch.arange(12.0).view(4, 3).t(),)


def strided():
    return (torch.arange(48.0).view(6, 8)[::2, ::2],)


def writes_a_view_of_a_written_view(a):
    row = a[0]
    row.mul_(3)
    row[1:].fill_(5)
    return a * 1


def writes_a_transposed_view_twice(a):
    r = a.t()
    r += 1
    r[0] = 9
    return r


def writes_views_of_a_temporary(a):
    b = a * 2
    v = b[::2]
    v.mul_(3)
    v[:, 1:].sub_(a[0, 0])
    return v, b, v[0]


def squeezes_a_written_temporary(a):
    b = a * 1
    c = b + 0.5
    b.add_(c)
    b.unsqueeze_(0)
    w = b[0]
    b.mul_(2)
    return w, b


def reads_the_written_view_and_its_base(a):
    row = a[1]
    row.add_(1)
    row.mul_(row + a[0])
    a[1, 1] = 7.0
    return row * 1, a.sum(0)


@pytest.mark.parametrize("make", [plain, transposed, strided])
@pytest.mark.parametrize(
    "function",
    [
        writes_a_view_of_a_written_view,
        writes_a_transposed_view_twice,
        writes_views_of_a_temporary,
        squeezes_a_written_temporary,
        reads_the_written_view_and_its_base,
    ],
)
def test_writes_through_views_of_written_views(function, make):
    agree(function, make)


def test_a_literal_and_its_view_are_returned_as_one_memory():
    def f(a):
        c = torch.tensor([1.0, 2.0])
        return c, c[:1], a

    agree(f, plain)


def test_the_written_part_of_a_split_is_a_part_of_the_input():
    def chunks(a):
        q, _ = a.chunk(2, 1)
        q.add_(10)

    def rows(a):
        for k, row in enumerate(a):
            row.mul_(k + 2)

    def parts(a):
        a.split([1, 3], 1)[1].relu_()
        a.unbind(1)[0].neg_()

    def returned(a):
        first, second, _ = a.unbind()
        return first.relu_(), second.neg_(), a.sum(0)

    for function in (chunks, rows, parts):
        agree(function, plain, backends=("eager", "aot_eager"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agree(returned, plain)


def test_an_element_of_a_fresh_result_is_still_private():
    def f(a):
        values, positions = a.sort(1)
        values.add_(1)
        return values, positions

    compilation = staxlab.explain(f, torch.randn(3, 4), backend="eager")
    assert "t.f_() -> t.f()" in str(compilation.transforms)
    agree(f, plain, backends=("eager",))


def test_a_call_that_writes_a_tensor_twice_falls_back():
    def twice(a):
        torch._foreach_add_([a, a], 1)

    def crossed(a):
        b = a + 1
        torch._foreach_add_([a, b], [b, a])
        return b

    def scaled(a):
        b = a + 1
        torch._foreach_mul_([a, b], a)
        return b

    falls_back(twice, plain, "two of the tensors it writes share memory")
    falls_back(crossed, plain, "shares memory with one that it writes before")
    falls_back(scaled, lambda: (torch.tensor(3.0),), "shares memory with one that it writes before")


def test_a_call_that_writes_separate_tensors_is_compiled():
    def f(a):
        b = a + 1
        torch._foreach_mul_([a, b], [a, b])
        return b

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agree(f, plain, backends=("aot_eager",))


def test_a_write_into_an_input_that_overlaps_itself_falls_back():
    def window():
        return (torch.zeros(6).as_strided((3, 4), (1, 1)),)

    falls_back(lambda a: a.add_(1), window, "elements share memory")


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a[:],
        lambda a: a.detach(),
        lambda a: (a, a[:], a.view(3, 4), a.data),
        lambda a: a.add_(1)[:],
        lambda a: (a.add_(1), a.reshape(3, 4), a.view(-1)),
        lambda a: (lambda b: (b, b))(a * 2),
        lambda a: (lambda b: (b[:], b, b.view(3, 4)))(a * 2),
        lambda a: (a * 2)[:],
        lambda a: a.split(3),
        lambda a: (a, torch.view_copy(a, (4, 3)), a.clone(), torch.expand_copy(a, (3, 4))),
        lambda a: (lambda b: (b, torch.view_copy(b, (12,)), b.contiguous()))(a * 2),
    ],
)
def test_a_view_of_all_of_a_tensor_is_another_tensor_and_a_copy_is_none(function):
    agree(function, plain)


def test_a_returned_view_may_be_changed_in_shape_alone():
    x = torch.ones(2)
    for _ in range(2):
        staxlab.compile(lambda a: a[:])(x).unsqueeze_(0)
        assert x.shape == (2,)


def numbers():
    return (torch.tensor([1 + 2j, 3 - 4j]),)


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (lambda a: a.view(torch.int32), plain),
        (lambda a: (lambda b: (b, b.view(torch.int32)))(a * 2), plain),
        (lambda a: torch.view_as_complex(a.view(6, 2)), plain),
        (lambda a: a.conj(), numbers),
        (lambda a: a.real, numbers),
        (lambda a: a.imag[1:], numbers),
        (lambda a: torch.view_as_real(a), numbers),
        (lambda a: (lambda b: (b.real, b))(a * 2), numbers),
    ],
)
def test_a_view_that_kernels_have_as_a_copy_only_is_not_returned_as_one(function, make):
    falls_back(function, make, "is a view of .* a copy only|pending conjugation")


def test_an_operator_that_may_copy_is_a_view_only_where_it_shares_memory():
    agree(lambda a: torch.nn.functional.channel_shuffle(a.view(1, 4, 3, 1), 2).mul_(2), plain)
    agree(lambda a: (a.t().reshape(-1).mul_(2), a), plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64])
@pytest.mark.filterwarnings("ignore::staxlab.errors.FallbackWarning")
def test_what_is_allocated_is_filled_where_algorithms_are_deterministic(dtype):
    def f(a):
        strided = torch.empty_strided((2, 2), (1, 4), dtype=dtype)
        return torch.empty(2, dtype=dtype), torch.empty_like(a, dtype=dtype), a.new_empty(3, dtype=dtype), strided

    was = torch.are_deterministic_algorithms_enabled()
    compiled = staxlab.compile(f)
    compiled(torch.ones(2))
    torch.use_deterministic_algorithms(True)
    try:
        torch.testing.assert_close(compiled(torch.ones(2)), f(torch.ones(2)), equal_nan=True, check_stride=True)
    finally:
        torch.use_deterministic_algorithms(was)


STEPS = (
    "{w} = {v} * 2",
    "{w} = {v}.flatten()[::2]",
    "{w} = {v}.reshape(-1)",
    "{w} = {v}.t() if {v}.dim() <= 2 else {v}",
    "{w} = {v}[1:]",
    "{w} = {v}[..., 0] if {v}.dim() > 0 else {v}",
    "{v}.add_(1); {w} = {v}",
    "{v}[...] = 4.5; {w} = {v} * 1",
    "{w} = {v} + {u}.sum()",
    "{w} = {v}.expand(2, *{v}.shape)",
    "{w} = torch.zeros(3, 4); {w}[0] = 7; {w}[:, 1] = {v}.sum()",
    "{v}.copy_({u}.sum()); {w} = {v}.detach()",
    "{w} = {v}.chunk(2, -1)[0] if {v}.dim() else {v}; {w}.mul_(3)",
    "{w} = {v}.unbind(0)[-1] if {v}.dim() else {v}; {w}.sub_(2)",
    "{v}[{v} > 4] = 1.5; {w} = {v}",
    "{w} = {v}.diagonal() if {v}.dim() == 2 else {v}; {w}.sub_(1)",
    "{w} = {v}.t().reshape(-1) if {v}.dim() == 2 else {v}.reshape(-1); {w}.add_(1)",
    "{w} = {v}.to(torch.float32); {w}.mul_(2)",
    "{w} = {v}.transpose(0, -1) if {v}.dim() else {v}; {w}[...] = {u}.mean()",
)


@given(st.data())
def test_programs_of_views_and_writes(data):
    names, lines = ["a", "b"], []
    for k in range(data.draw(st.integers(2, 6), "length")):
        step = data.draw(st.sampled_from(STEPS), "step")
        v, u = (data.draw(st.sampled_from(names), "operand") for _ in range(2))
        lines.append(step.format(w=f"v{k}", v=v, u=u))
        names.append(f"v{k}")
    returned = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True), "returned")
    source = "def f(a, b):\n" + "".join(f"    {line}\n" for line in lines) + f"    return ({', '.join(returned)},)\n"
    scope = {"torch": torch}
    exec(source, scope)
    layout = data.draw(st.sampled_from([plain, transposed, strided]), "layout")

    def make():
        return (*layout(), torch.arange(1.0, 9.0)[::2])

    try:
        expected = observe(scope["f"], make)
    except (RuntimeError, IndexError):
        return  # the program is none in eager mode either
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert observe(staxlab.compile(scope["f"], backend="aot_eager"), make) == expected, source
