"""The ONNX backend: values within bounds, IEEE's corners as PyTorch has them, and clear refusals."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F

import staxlab
from tests.backends.programs import CORNERS, INF, NAN, OTHERS, PROGRAMS, check, check_smallest, same

pytest.importorskip("onnx", reason="needs the extra onnxrt")
pytest.importorskip("onnxruntime", reason="needs the extra onnxrt")


def compiled(fn, **options):
    return staxlab.compile(fn, backend="onnxrt", strict_native=True, options=options)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_the_programs_of_the_course_are_within_their_bounds(program):
    check(program, compiled(program.fn))


@pytest.mark.parametrize("optimization", ["basic", "none"])
def test_every_level_of_rewriting_is_within_the_bound(optimization):
    check(PROGRAMS[3], compiled(PROGRAMS[3].fn, optimization=optimization, threads=1))


@pytest.mark.parametrize("program", PROGRAMS[:3], ids=lambda p: p.name)
def test_other_strides_than_row_major(program):
    inputs = tuple(torch.randn(2 * x.shape[1], x.shape[0]).t()[:, ::2] for x in program.make())
    check(program, compiled(program.fn), inputs)


def test_no_elements_one_element_and_no_axes():
    check_smallest(compiled)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_dtypes_round_where_the_program_rounds(dtype):
    x, w = (t.to(dtype) for t in PROGRAMS[0].make())
    f = lambda x, w: (torch.relu(x + w) * 0.3 - w, (x < 0.1), x.sum(-1), x @ w.t())  # noqa: E731
    found, expected = compiled(f)(x, w), f(x, w)
    same(found[:2], expected[:2])  # rounded once for each operation
    for a, b, unit in zip(found[2:], expected[2:], (1, 1), strict=True):
        epsilon = torch.finfo(dtype).eps * unit
        torch.testing.assert_close(a, b, rtol=epsilon, atol=128 * torch.finfo(torch.float32).eps * 30)


@pytest.mark.parametrize(
    "f",
    [
        lambda a, b: (a + b, a - b, a * b, a / b, a * 0, a - a, -a, 1 - a, 2 / a),
        lambda a, b: (a < b, a <= b, a > b, a >= b, a == b, a != b, a == a, ~(a < b), (a < b) ^ (b > 0)),
        lambda a, b: (torch.maximum(a, b), torch.minimum(a, b), a.clamp(-1, 1), a.clamp(min=0.25), a.relu()),
        lambda a, b: (a.sign(), a.abs(), a.floor(), a.ceil(), a.round(), a.trunc(), a.isnan(), a.isinf()),
        lambda a, b: (a.bool(), torch.where(a > 0, a, b), a.masked_fill(b > 0, 7), torch.logical_or(a, b)),
        lambda a, b: (a.amax(), a.amin(), a.argmax(), a.argmin(), b.argmax(), (a > 0).any(), (b > -9).all()),
        lambda a, b: (a[2:8:3], a.flip(0), torch.cat([a, b[1:]]), torch.stack([a, b], 1), F.pad(a, (1, 2), value=3)),
        lambda a, b: (a.view(2, 5).t(), a.view(2, 5)[1], a.expand(3, 10), a.view(2, 5).tril(), a.view(5, 2).triu(1)),
    ],
)
def test_corners_of_floating_point_are_eagers(f):
    same(compiled(f)(CORNERS, OTHERS), f(CORNERS, OTHERS))


def test_truth_values_and_integers():
    i, j = torch.tensor([7, -7, 3, 0]), torch.tensor([2, 2, -2, 5])

    def f(i, j):
        pointwise = i + j, i * j - 3, i / j, i & j, i | j, i ^ j, ~i, i > j, (i > 0) & (j > 0), i.clamp(-1, 3)
        return *pointwise, i.sum(), i.prod(), (i > 0).sum(), i.float().mean(), i.to(torch.int32) + 1, i.cumsum(0)

    same(compiled(f)(i, j), f(i, j))


def test_functions_of_the_library_are_within_a_few_units():
    x = torch.linspace(-3, 3, 101)
    f = lambda x: (x.exp(), x.abs().log(), x.abs().sqrt(), x.tanh(), x.sigmoid(), x.erf(), x.sin(), x.abs().log1p(),  # noqa: E731
                   F.gelu(x), F.silu(x), x.abs().rsqrt())  # fmt: skip
    for a, b in zip(compiled(f)(x), f(x), strict=True):
        torch.testing.assert_close(a, b, rtol=16 * 2**-24, atol=8 * 2**-24, equal_nan=True)
    tiny = torch.tensor([1e-8, -1e-8, 1e-20, INF, -1.0, NAN])
    same(compiled(torch.log1p)(tiny), torch.log1p(tiny))


def test_networks_and_their_gradients():
    net = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(),
                              torch.nn.LayerNorm(4 * 36), torch.nn.Linear(4 * 36, 5))  # fmt: skip
    x = torch.randn(3, 2, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(compiled(net)(x), net(x))
    w = torch.randn(8, 5)
    gradients = []
    for call in (F.linear, compiled(F.linear)):
        leaves = [torch.randn(4, 5, generator=torch.manual_seed(1)).requires_grad_(), w.clone().requires_grad_()]
        F.cross_entropy(call(*leaves), torch.tensor([0, 3, 7, 2])).backward()
        gradients.append([leaf.grad for leaf in leaves])
    torch.testing.assert_close(*gradients)


def test_subscripts_that_eager_refuses_are_refused():
    table = torch.arange(12.0).view(6, 2)
    look_up = compiled(lambda i: F.embedding(i, table))
    same(look_up(torch.tensor([0, 5, 2])), F.embedding(torch.tensor([0, 5, 2]), table))
    for wrong in (-1, 6):
        with pytest.raises(Exception, match="(?i)out of|index|bound"):
            look_up(torch.tensor([0, wrong, 2]))


def test_what_has_no_rule_is_named_with_its_line():
    def f(x):
        return torch.special.i0(x)

    with pytest.raises(staxlab.BackendError) as raised:
        compiled(f)(torch.ones(3))
    assert "aten.i0.default" in str(raised.value) and "torch.special.i0(x)" in str(raised.value)
    with pytest.warns(staxlab.FallbackWarning, match="aten.i0.default"):
        same(staxlab.compile(f, backend="onnxrt")(torch.ones(3)), f(torch.ones(3)))


@pytest.mark.parametrize(
    "f, x, words",
    [
        (lambda x: x * 2, torch.ones(2, dtype=torch.complex64), "complex64 has no counterpart"),
        (lambda x: F.dropout(x, 0.5), torch.ones(2), "no rule"),
        (lambda x: x.erf(), torch.ones(2, dtype=torch.float64), "Erf"),
        (lambda x: x * 2, torch.ones(2, device="meta"), "device .?meta"),
    ],
)
def test_dtypes_devices_and_random_numbers_it_cannot_take(f, x, words):
    with pytest.raises(staxlab.StaxError, match=words):
        compiled(f)(x)


@pytest.mark.parametrize(
    "options, words", [({"threads": -1}, "threads=-1"), ({"optimization": "most"}, "'all', 'basic'")]
)
def test_options_are_checked(options, words):
    with pytest.raises(staxlab.OptionError, match=words):
        compiled(lambda x: x + 1, **options)(torch.ones(1))


def test_the_model_is_checked_and_can_be_read():
    import onnx

    compilation = staxlab.explain(PROGRAMS[0].fn, *PROGRAMS[0].make(), backend="onnxrt")
    model = compilation.outside.function.model
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Add", "Relu", "Mul", "ReduceSum", "Reshape"]
    assert "ReduceSum" in str(compilation)


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(staxlab.MissingDependencyError, match=r"staxlab\[onnxrt\]"):
        staxlab.compile(lambda x: x + 1, backend="onnxrt")(torch.ones(1))
