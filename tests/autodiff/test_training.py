"""Compiled regions under autograd (Section 5.6): eager's gradients, errors, hooks, aliasing, undefined gradients."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import staxlab
from staxlab.errors import FallbackWarning
from tests.autodiff.gradients import assert_trains_alike, clones

BACKENDS = ("aot_eager", "stax")


def tensor(*shape: int, grad: bool = True, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_(grad)


def gelu_of_product(x, w):
    return F.gelu(x @ w).sum()


def row_sums(x, w):
    return (torch.relu(x + w) * 2).sum(-1)


def several_results(x, w):
    h = x @ w
    y = F.gelu(h).exp()
    z = y.tanh() * y
    z = z * 1
    z.mul_(2)
    out = F.layer_norm(z, (w.shape[1],))
    return out.sum(), out, out[0], x, x[1], 3, None, out.detach(), x > 0, h.argmax(-1)


def views(x, w):
    twice = w * 2
    return x.t()[1:3] * 1, twice, twice[1], twice.reshape(-1)[5:10], x.t()[1:3]


def cross_entropy(x, w):
    return F.cross_entropy(x @ w, torch.arange(x.shape[0]) % w.shape[1])


def writes_into_intermediates(x, w):
    y = x.clone()
    y[0] = w[0, : x.shape[1]]
    y[:, 1].mul_(3)
    y += 1
    return y * y


def dropout(x, w):
    return F.dropout(x @ w, 0.4) * F.dropout(x, 0.3).sum()


def reads_a_reduction(x, w):
    m = (x @ w).mean(-1, keepdim=True)
    return ((x @ w) - m).pow(2).sum(), m


FUNCTIONS = [
    gelu_of_product, row_sums, several_results, views, cross_entropy, writes_into_intermediates, dropout,
    reads_a_reduction,
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("which", ["both", "first", "second"])
def test_values_and_gradients_are_eagers(function, backend, which):
    x, w = tensor(8, 6, grad=which != "second"), tensor(6, 6, grad=which != "first")
    if function is row_sums:
        w = w[0].detach().clone().requires_grad_(which != "first")
    assert_trains_alike(function, x, w, backend=backend)


def test_the_backward_is_compiled_when_it_is_first_needed():
    compiled = staxlab.compile(gelu_of_product)
    x, w = tensor(8, 6, grad=False), tensor(6, 6)
    loss = compiled(x, w)
    compilation = compiled.versions[0].compilation
    assert compilation.backward is None
    loss.backward()
    assert compilation.backward.artifact is not None
    first = compilation.backward
    compiled(x, w).backward()
    assert compilation.backward is first and len(compiled.versions) == 1


def test_a_loss_of_one_result_has_a_backward_without_the_others():
    def function(x, w):
        h = x @ w
        return h.exp(), h.pow(2).sum()

    compiled = staxlab.compile(function)
    compiled(tensor(4, 4), tensor(4, 4))[1].backward()
    compilation = compiled.versions[0].compilation
    assert list(compilation.backwards) == [frozenset({0})]
    assert compilation.backward is compilation.backwards[frozenset({0})]
    assert "aten.exp.default" not in str(compilation.backward.operators)


def test_without_gradients_there_is_no_joint_graph():
    x, w = tensor(8, 6), tensor(6, 6)
    compiled = staxlab.compile(gelu_of_product)
    with torch.no_grad():
        assert not compiled(x, w).requires_grad
    assert compiled.versions[0].compilation.joint is None
    assert compiled(x, w).requires_grad and len(compiled.versions) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_backwards_need_the_graph_retained(backend):
    compiled = staxlab.compile(gelu_of_product, backend=backend)
    x, w = tensor(8, 6), tensor(6, 6)
    loss = compiled(x, w)
    loss.backward(retain_graph=True)
    once = w.grad.clone()
    loss.backward()
    torch.testing.assert_close(w.grad, 2 * once)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_a_saved_value_that_is_modified_meanwhile_raises_as_in_eager_execution():
    def function(x, w):
        return (x.exp() * w).sum()

    for f in (function, staxlab.compile(function)):
        x, w = tensor(4, 3), tensor(4, 3, seed=1)
        loss = f(x, w)
        with torch.no_grad():
            w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_eagers_error_about_a_value_modified_inside_is_kept():
    def function(x):
        y = x.exp()
        z = y * 2
        y.add_(1)
        return z.sum() + y.sum()

    x = tensor(5)
    compiled = staxlab.compile(function)
    with pytest.warns(FallbackWarning, match="modified in place"):
        loss = compiled(x)
    for value in (loss, function(x)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            value.backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_upstream_gradient_that_does_not_come_leaves_gradients_undefined(backend):
    """No zeros in the place of None; and no infinity times zero, which would be NaN."""

    def function(x, w):
        return x.sqrt() * 2, w * 3, x + w

    for f in (function, staxlab.compile(function, backend=backend)):
        x, w = torch.zeros(4, requires_grad=True), tensor(4)
        f(x, w)[1].sum().backward()
        assert x.grad is None and torch.equal(w.grad, torch.full((4,), 3.0))
        f(x, w)[2].sum().backward()
        assert torch.equal(x.grad, torch.ones(4))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("upstream", ["expanded", "transposed", "strided", "contiguous"])
def test_upstream_gradients_of_any_layout(upstream, backend):
    def function(x, w):
        return torch.tanh(x @ w)

    for f in (function, staxlab.compile(function, backend=backend)):
        x, w = tensor(6, 5), tensor(5, 6)
        tangent = {
            "expanded": torch.tensor(2.0).expand(6, 6),
            "transposed": tensor(6, 6, grad=False).t(),
            "strided": tensor(6, 12, grad=False)[:, ::2],
            "contiguous": tensor(6, 6, grad=False),
        }[upstream]
        gradients = torch.autograd.grad(f(x, w), (x, w), tangent)
        if f is function:
            expected = gradients
    torch.testing.assert_close(gradients, expected)


def test_hooks_of_arguments_results_and_parameters_run():
    seen: dict[str, list[torch.Tensor]] = {}

    def run(f, name):
        seen[name] = []
        x, w = tensor(4, 4), tensor(4, 4)
        x.register_hook(lambda g: seen[name].append(g) or g * 2)
        w.register_post_accumulate_grad_hook(lambda p: seen[name].append(p.grad.clone()))
        y = f(x, w)
        y.register_hook(lambda g: seen[name].append(g) or g + 1)
        y.sum().backward()
        return x.grad, w.grad

    def function(x, w):
        return torch.sigmoid(x * w)

    torch.testing.assert_close(run(staxlab.compile(function), "compiled"), run(function, "eager"))
    torch.testing.assert_close(seen["compiled"], seen["eager"])


def test_results_that_are_views_are_views_for_autograd_too():
    def function(x):
        y = x * 2
        return y, y[0], x[1]

    for f in (function, staxlab.compile(function)):
        x = tensor(3, 4)
        leaf = x * 1
        y, first, part = f(leaf)
        assert first._is_view() and first.data_ptr() == y.data_ptr()
        assert part.data_ptr() == leaf[1].data_ptr()
        first.mul_(5)  # autograd follows writes through views
        (y.sum() + part.sum()).backward()
        expected = torch.full((3, 4), 2.0)
        expected[0] *= 5
        expected[1] += 1
        assert torch.equal(x.grad, expected)


def test_checkpoint_inside_gives_the_same_gradients():
    from torch.utils.checkpoint import checkpoint

    def function(x, w):
        return checkpoint(lambda a: torch.tanh(a @ w).exp(), x, use_reentrant=False).sum()

    assert_trains_alike(function, tensor(4, 4), tensor(4, 4))


def test_batch_norm_updates_its_statistics_once():
    models = [nn.BatchNorm1d(3), nn.BatchNorm1d(3)]
    data = [tensor(5, 3, grad=False, seed=k) for k in range(3)]
    functions = [models[0], staxlab.compile(models[1])]
    for batch in data:
        for f in functions:
            f(batch).pow(2).sum().backward()
    for a, b in zip(models[0].state_dict().values(), models[1].state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_regions_chain_and_gradients_accumulate():
    def function(x, w):
        return torch.tanh(x @ w)

    compiled = staxlab.compile(function)
    for f in (function, compiled):
        x, w = tensor(4, 4), tensor(4, 4)
        for _ in range(2):
            f(f(x, w), w).sum().backward()
        if f is function:
            expected = (x.grad, w.grad)
    torch.testing.assert_close((x.grad, w.grad), expected)


def test_gradcheck_in_double_precision():
    def function(x, w):
        return F.layer_norm(F.gelu(x @ w), (4,)).softmax(-1), torch.logsumexp(x, 0)

    x, w = tensor(3, 4, dtype=torch.float64), tensor(4, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(staxlab.compile(function), (x, w))


def test_a_region_without_differentiable_results():
    def function(x):
        return x.argmax(-1), x.detach() * 2

    x = tensor(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        position, doubled = staxlab.compile(function)(x)
    assert not doubled.requires_grad and torch.equal(position, x.argmax(-1)) and torch.equal(doubled, x.detach() * 2)


def test_autocast_ends_with_the_forward_pass():
    def function(x, w):
        return (x @ w).float().exp()

    for f in (function, staxlab.compile(function)):
        x, w = tensor(8, 8), tensor(8, 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = f(x, w)
        y.sum().backward()
        if f is function:
            expected = (y, x.grad, w.grad)
    torch.testing.assert_close((y, x.grad, w.grad), expected, rtol=2**-7, atol=2**-7)


# -- more than once ---------------------------------------------------------------------------------------------------


def test_the_second_derivative_is_refused_clearly_and_the_first_is_right():
    compiled = staxlab.compile(gelu_of_product)
    x, w = tensor(4, 4), tensor(4, 4)
    for source in (x, x * 1):  # a leaf, and a value that came from elsewhere
        (first,) = torch.autograd.grad(compiled(source, w), x, create_graph=True)
        assert first.requires_grad
        torch.testing.assert_close(first, torch.autograd.grad(gelu_of_product(x, w), x)[0])
        with pytest.raises(RuntimeError, match="differentiated twice.*double_backward"):
            first.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_and_third_derivatives(backend):
    def function(x, w):
        return (F.gelu(x @ w).exp().tanh() * x.sum()).sum(), F.dropout(x, 0.5).pow(3).sum() * w.sum()

    compiled = staxlab.compile(function, backend=backend, options={"double_backward": True})
    found = []
    for f in (function, compiled):
        torch.manual_seed(0)
        arguments = clones([tensor(3, 4, dtype=torch.float64), tensor(4, 4, dtype=torch.float64)])
        value = sum(f(*arguments))
        for _ in range(3):
            gradients = torch.autograd.grad(value, arguments, create_graph=True)
            found.append(gradients)
            value = sum((g * g).sum() for g in gradients) / 10
    torch.testing.assert_close(found[3:], found[:3])


def test_gradgradcheck_in_double_precision():
    compiled = staxlab.compile(lambda x, w: torch.tanh(x @ w), options={"double_backward": True})
    arguments = (tensor(2, 3, dtype=torch.float64), tensor(3, 2, dtype=torch.float64))
    assert torch.autograd.gradgradcheck(compiled, arguments)


def test_an_input_without_gradient_may_be_modified_before_it_is_used():
    def function(x, w):
        return (x.mul_(2) * w).sum()

    gradients = []
    for f in (function, staxlab.compile(function, strict_native=True)):
        x, w = torch.arange(4.0), tensor(4)
        f(x, w).backward()
        gradients.append((w.grad, x, x._version))
    assert all(torch.equal(a, b) for a, b in zip(*(g[:2] for g in gradients), strict=True))
    assert gradients[0][2] == gradients[1][2]


def test_what_eager_keeps_for_values_nobody_returns_does_not_count():
    def function(x, w):
        _ = (x * w).exp() * w  # packed, and freed at once
        return (x @ w).tanh().sum()

    compilation = staxlab.explain(function, tensor(4, 4), tensor(4, 4))
    assert [node.name for node in compilation.joint.saved_by_eager] == ["w", "x", "tanh"]
    assert compilation.partition.eager_bytes == 64


def test_the_gradient_that_can_be_differentiated_is_shown():
    compiled = staxlab.compile(gelu_of_product, options={"double_backward": True})
    x, w = tensor(4, 4), tensor(4, 4)
    (first,) = torch.autograd.grad(compiled(x, w), x, create_graph=True)
    first.sum().backward()
    compilation = compiled.versions[0].compilation
    assert len(compilation.gradients) == 1 and "can be differentiated" in str(compilation)
    assert compilation.gradients[0].backward is not None


def test_a_budget_that_cannot_be_kept_is_an_error():
    compiled = staxlab.compile(dropout, options={"memory_budget": 0})  # random numbers cannot be drawn twice
    with pytest.raises(staxlab.ConstraintError, match="at least .* bytes must be saved"):
        compiled(tensor(8, 6), tensor(6, 6))


def test_compiling_under_a_profiler_in_c():
    import cProfile

    profiler = cProfile.Profile()
    profiler.enable()
    try:
        y = staxlab.compile(lambda x: x + 1)(torch.ones(3))
    finally:
        profiler.disable()
    assert torch.equal(y, torch.full((3,), 2.0))
