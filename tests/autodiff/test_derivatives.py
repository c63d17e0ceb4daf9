"""``staxlab.jvp`` and ``staxlab.hvp`` against ``torch.func`` (Section 5.7): arguments that coincide, writes, layers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import staxlab
from staxlab.errors import LoweringError, OptionError
from tests.autodiff.scenarios import tensor

BACKENDS = [pytest.param("stax", marks=pytest.mark.slow), "aot_eager"]


def plain(*shape, seed=0, dtype=torch.float32):
    return tensor(*shape, seed=seed, dtype=dtype, grad=False)


def writes(a):
    y = a.clone()
    y[0] = a[1]
    y.mul_(2)
    return y.exp()


X, V, W = plain(3), plain(3, seed=1), plain(3, seed=7)
STRIDED, TRANSPOSED = plain(4, 6)[:, ::2], plain(3, 4).t()

DIRECTIONAL = {
    "one argument": (lambda a: a.sin() * a, (X,), (V,)),
    "several results": (lambda a, b: (a * b, a + b.exp()), (X, V), (V, W)),
    "a result that is an argument": (lambda a: (a, a * 2), (X,), (V,)),
    "a constant result": (lambda a: (a * 2, torch.ones(3)), (X,), (V,)),
    "an integer result": (lambda a: (a.exp(), a.argmax()), (X,), (V,)),
    "the same argument twice": (lambda a, b: a * b.exp(), (X, X), (V, W)),
    "the argument as its own tangent": (lambda a, b: a * b.exp(), (X, X), (X, X)),
    "arguments as each other's tangents": (lambda a, b: a * b.exp(), (X, V), (V, X)),
    "nested arguments": (lambda d: {"y": d["a"] * d["b"]}, ({"a": X, "b": V},), ({"a": V, "b": W},)),
    "writes": (writes, (X,), (V,)),
    "a view": (lambda a: a[1:], (X,), (V,)),
    "strides": (lambda a: a.exp() @ a.t(), (STRIDED,), (TRANSPOSED,)),
    "an expanded tangent": (torch.exp, (X,), (torch.ones(1).expand(3),)),
    "a detached factor": (lambda a: a.detach() * a, (X,), (V,)),
    "dropout": (lambda a: F.dropout(a, 0.5).exp(), (X,), (V,)),
    "normalizations": (lambda a: F.layer_norm(a, (3,)).softmax(-1), (plain(5, 3),), (plain(5, 3, seed=1),)),
    "a convolution": (
        lambda a, w: F.conv2d(a, w).relu(),
        (plain(1, 2, 5, 5), plain(3, 2, 3, 3)),
        (plain(1, 2, 5, 5, seed=2), plain(3, 2, 3, 3, seed=9)),
    ),
    "special values": (lambda a: a.log().sqrt(), (torch.tensor([-1.0, 0.0, torch.inf]),), (V,)),
    "kinks": (lambda a: a.relu() + a.abs() + a.clamp(0, 1) + a.max() + a.norm(), (torch.zeros(3),), (V,)),
    "singular values": (torch.linalg.svdvals, (plain(3, 3),), (plain(3, 3, seed=1),)),
    "nothing": (torch.exp, (torch.zeros(0),), (torch.zeros(0),)),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", DIRECTIONAL)
def test_directional_derivatives(name, backend):
    function, primals, tangents = DIRECTIONAL[name]
    torch.manual_seed(0)
    expected = torch.func.jvp(function, primals, tangents)
    compiled = staxlab.jvp(function, backend=backend)
    for _ in range(2):
        torch.manual_seed(0)
        found = compiled(primals, tangents)
        torch.testing.assert_close(found, expected, equal_nan=True, rtol=2e-5, atol=2e-5)
    assert len(compiled.versions) == 1


SCALARS = {
    "one argument": (lambda a: (a.sin() * a).sum(), (X,), (V,)),
    "an unused argument": (lambda a, b: a.exp().sum(), (X, V), (V, X)),
    "a linear function": (lambda a: (a * 2).sum(), (X,), (V,)),
    "the same argument twice": (lambda a, b: (a * b.exp()).sum(), (X, X), (V, W)),
    "writes": (lambda a: writes(a).sum(), (X,), (V,)),
    "strides": (lambda a: (a.exp() @ a.t()).sum(), (STRIDED,), (TRANSPOSED,)),
    "layers": (
        lambda a, w: F.gelu(a @ w).softmax(-1).pow(2).sum(),
        (plain(3, 4), plain(4, 5)),
        (plain(3, 4, seed=1), plain(4, 5, seed=2)),
    ),
    "layer norm": (lambda a: F.layer_norm(a, (4,)).pow(3).sum(), (plain(3, 4),), (plain(3, 4, seed=1),)),
    "batch norm": (
        lambda a: F.batch_norm(a, None, None, training=True).pow(3).sum(), (plain(3, 4),), (plain(3, 4, seed=1),)
    ),
    "group norm": (lambda a: F.group_norm(a, 2).pow(3).sum(), (plain(3, 4, 5),), (plain(3, 4, 5, seed=1),)),
    "cross entropy": (
        lambda a: F.cross_entropy(a, torch.tensor([1, 2, 0])), (plain(3, 4),), (plain(3, 4, seed=1),)
    ),
    "an embedding": (
        lambda w: F.embedding(torch.tensor([0, 0, 1]), w).pow(3).sum(), (plain(3, 4),), (plain(3, 4, seed=1),)
    ),
    "pooling": (lambda a: F.max_pool2d(a, 2).pow(3).sum(), (plain(1, 2, 4, 4),), (plain(1, 2, 4, 4, seed=1),)),
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SCALARS)
def test_products_of_the_hessian(name, backend):
    function, primals, vectors = SCALARS[name]
    every = tuple(range(len(primals)))
    gradient, product = torch.func.jvp(torch.func.grad(function, argnums=every), primals, vectors)
    found = staxlab.hvp(function, backend=backend)(primals, vectors)
    torch.testing.assert_close(found.value, function(*primals), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close((found.gradient, found.product), (gradient, product), rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize("backend", ["stax", "aot_eager"])
def test_the_hessian_is_that_of_a_scalar(backend):
    with pytest.raises(OptionError, match=r"returns a tensor of shape \[3\]"):
        staxlab.hvp(torch.exp, backend=backend)((X,), (V,))


def test_a_derivative_that_pytorch_lacks_is_no_defect_of_the_compiler():
    q = plain(1, 2, 5, 4)
    with pytest.raises(LoweringError, match="forward AD") as refusal:
        staxlab.jvp(lambda a: F.scaled_dot_product_attention(a, a, a))((q,), (q,))
    assert "defect" not in str(refusal.value) and "torch.func" in str(refusal.value)


def test_a_module_keeps_its_parameters():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
    x, v = plain(5, 3), plain(5, 3, seed=1)
    torch.testing.assert_close(staxlab.jvp(model)((x,), (v,)), torch.func.jvp(model, (x,), (v,)))
    assert all(p.grad is None for p in model.parameters())
