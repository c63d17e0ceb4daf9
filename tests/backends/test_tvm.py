"""The TVM backend: our compute functions under TVM's schedules."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab.loops.ops import OPERATIONS
from tests.backends.programs import CORNERS, OTHERS, PROGRAMS, check, check_smallest, same

pytest.importorskip("tvm", reason="needs the extra tvm")


def compiled(fn, **options):
    return staxlab.compile(fn, backend="tvm", strict_native=True, options=options)


@pytest.mark.parametrize("schedule", ["rules", "none"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_the_programs_of_the_course_are_within_their_bounds(program, schedule):
    check(program, compiled(program.fn, schedule=schedule))


@pytest.mark.parametrize("program", PROGRAMS[:3], ids=lambda p: p.name)
def test_other_strides_than_row_major(program):
    inputs = tuple(torch.randn(2 * x.shape[1], x.shape[0]).t()[:, ::2] for x in program.make())
    check(program, compiled(program.fn), inputs)
    transposed = tuple(torch.randn(x.shape[1], x.shape[0]).t() for x in program.make())
    check(program, compiled(program.fn), transposed)


def test_memory_that_begins_anywhere_or_is_shared_by_elements():
    off = torch.randn(100)[3:93].view(9, 10)
    same(compiled(lambda x: x.relu())(off), off.relu())
    spread = torch.randn(4, 1, 3).expand(4, 5, 3)
    same(compiled(lambda x: x * 2)(spread), spread * 2)
    windows = torch.arange(9.0).as_strided((4, 3), (2, 1))
    same(compiled(lambda x: x + 1)(windows), windows + 1)


def test_no_elements_one_element_and_no_axes():
    check_smallest(compiled)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_dtypes_are_computed_in_float32_and_rounded_where_they_are_stored(dtype):
    x, w = (t.to(dtype) for t in PROGRAMS[0].make())
    f = lambda x, w: (x + w, x * 0.5, x.sum(-1), x @ w.t())  # noqa: E731
    found, expected = compiled(f)(x, w), f(x, w)
    same(found[:2], expected[:2])
    for a, b in zip(found[2:], expected[2:], strict=True):
        atol = 128 * torch.finfo(torch.float32).eps * 30
        torch.testing.assert_close(a, b, rtol=torch.finfo(dtype).eps, atol=atol)


@pytest.mark.parametrize(
    "f",
    [
        lambda a, b: (a + b, a - b, a * b, a / b, a * 0, a - a, a / a, 0 / a, -a, 1 - a),
        lambda a, b: (a < b, a <= b, a > b, a >= b, a == b, a != b, a == a, a <= a, a != a, ~(a < b), ~(a == b)),
        lambda a, b: ((a < b) ^ (b > 0), (a < b) | (b > 0), (a < b).logical_not(), a.bool(), ~(a >= b)),
        lambda a, b: (torch.maximum(a, b), torch.minimum(a, b), torch.fmax(a, b), torch.fmin(a, b), a.clamp(-1, 1)),
        lambda a, b: (a.relu(), a.sign(), a.abs(), a.floor(), a.ceil(), a.round(), a.trunc(), a.isnan(), a.isinf()),
        lambda a, b: (torch.where(a > 0, a, b), a.masked_fill(b > 0, 7), a.copysign(b), torch.remainder(a, b)),
        lambda a, b: (a.amax(), a.amin(), (a > 0).any(), (b > -9).all(), a.view(2, 5).amax(0), a.view(2, 5).amin(1)),
        lambda a, b: (a[2:8:3], a.flip(0), torch.cat([a, b[1:]]), torch.stack([a, b], 1), F.pad(a, (1, 2), value=3)),
        lambda a, b: (a.view(2, 5).t() + 1, a.view(2, 5)[1], a.view(2, 5).tril(), a.roll(3), a.unfold(0, 4, 3) * 1),
    ],
)
def test_corners_of_floating_point_are_eagers(f):
    same(compiled(f)(CORNERS, OTHERS), f(CORNERS, OTHERS))


def test_truth_values_and_integers():
    i, j = torch.tensor([7, -7, 3, 0]), torch.tensor([2, 2, -2, 5])

    def f(i, j):
        pointwise = i + j, i * j - 3, i / j, i & j, i | j, i ^ j, ~i, i > j, (i > 0) & (j > 0), i.clamp(-1, 3)
        return *pointwise, i // 2, i % 3, i.sum(), i.prod(), (i > 0).sum(), i.float().mean(), i.to(torch.int32) + 1

    same(compiled(f)(i, j), f(i, j))


def test_functions_of_the_library_are_within_a_few_units():
    x = torch.linspace(-3, 3, 101)
    f = lambda x: (x.exp(), x.abs().log(), x.abs().sqrt(), x.tanh(), x.sigmoid(), x.erf(), x.sin(), x.abs().log1p(),  # noqa: E731
                   F.gelu(x), F.silu(x), x.abs().rsqrt(), x.expm1(), torch.atan2(x, x + 1), x.abs() ** 1.7)  # fmt: skip
    for a, b in zip(compiled(f)(x), f(x), strict=True):
        torch.testing.assert_close(a, b, rtol=16 * 2**-24, atol=8 * 2**-24, equal_nan=True)


def test_expressions_that_grow_exponentially_are_refused():
    def f(x, times):
        for _ in range(times):
            x = x * x + (x - 0.5) * x
        return x

    x = torch.linspace(-0.4, 0.4, 9)
    torch.testing.assert_close(compiled(f)(x, 3), f(x, 3), rtol=1e-5, atol=1e-7)
    with pytest.raises(staxlab.BackendError, match="more than 1000 nodes"):
        compiled(f)(x, 8)


def test_every_operation_of_the_loop_language_is_translated():
    from staxlab.backends.tvm_expressions import TvmOps

    assert TvmOps(lambda *_: None, {}).covered() == set(OPERATIONS)


def test_gradients_of_a_network():
    gradients = []
    for call in (PROGRAMS[3].fn, compiled(PROGRAMS[3].fn)):
        leaves = [x.clone().requires_grad_() for x in PROGRAMS[3].make()]
        call(*leaves).square().sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    for a, b in zip(*gradients, strict=True):
        assert (a - b).abs().max() <= 256 * 2**-24 * b.abs().max()  # sums of 16 to 48 terms, one after another


@pytest.mark.parametrize(
    "f, x, words",
    [
        (lambda x: x.cumsum(0), torch.ones(3), "a scan has an order"),
        (lambda x: x.argmax(), torch.ones(3), "argmax merges pairs"),
        (lambda x: torch.zeros(3).index_add(0, x, torch.ones(2)), torch.tensor([0, 1]), "TVM is not given"),
        (lambda x: F.embedding(x, torch.ones(3, 2)), torch.tensor([1]), "cannot raise"),
        (lambda x: F.conv1d(x, torch.ones(1, 1, 2)), torch.ones(1, 1, 5), "convolution"),
        (lambda x: F.dropout(x, 0.5), torch.ones(3), "bernoulli"),
        (lambda x: x * 2, torch.ones(2, dtype=torch.complex64), "complex64|TVM is not given"),
        (lambda x: x * 2, torch.ones(2, device="meta"), "device .?meta"),
    ],
)
def test_what_it_cannot_take_is_a_clear_error(f, x, words):
    with pytest.raises(staxlab.StaxError, match=words):
        compiled(f)(x)


def test_a_refusal_names_the_users_line():
    def f(x):
        return x.exp().cumsum(0)

    with pytest.raises(staxlab.BackendError) as raised:
        compiled(f)(torch.ones(3))
    assert "return x.exp().cumsum(0)" in str(raised.value) and "aten.cumsum.default" in str(raised.value)


def test_schedules_are_tvms_rules():
    from staxlab.backends.tvm import lowered_text

    x, w = torch.randn(256, 128), torch.randn(256, 128)
    ours = staxlab.explain(PROGRAMS[0].fn, x, w)
    plain, ruled = lowered_text(ours, schedule="none"), lowered_text(ours)
    assert "T.parallel" not in plain and "T.parallel" in ruled
    by_rows = lowered_text(staxlab.explain(PROGRAMS[2].fn, x))
    assert "T.parallel" in by_rows and "T.vectorized" in by_rows
    outside = staxlab.explain(PROGRAMS[0].fn, x, w, backend="tvm")
    assert lowered_text(outside) == outside.outside.text
    with pytest.raises(staxlab.OptionError, match="'rules', 'none'"):
        compiled(lambda x: x + 1, schedule="best")(torch.ones(1))
    with pytest.raises(staxlab.BackendError, match="has no loop program"):
        lowered_text(staxlab.explain(PROGRAMS[0].fn, x, w, backend="eager"))


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tvm", None)
    with pytest.raises(staxlab.MissingDependencyError, match=r"staxlab\[tvm\]"):
        staxlab.compile(lambda x: x + 1, backend="tvm")(torch.ones(1))
