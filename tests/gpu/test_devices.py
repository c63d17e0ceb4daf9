"""Tensors that no argument tells of, and regions with tensors on several devices."""

import pytest
import torch
from torch.nn import functional as F

import staxlab

pytestmark = pytest.mark.gpu


def languages(compiled):
    return {kernel.language for kernel in compiled.versions[0].compilation.kernels}


def test_tensors_a_function_makes_itself_are_made_on_their_device():
    def made():
        return torch.ones(5, 7, device="cuda"), torch.arange(12, device="cuda") * 3 + 1

    compiled = staxlab.compile(made, strict_native=True)
    for result, expected in zip(compiled(), made(), strict=True):
        assert result.is_cuda and torch.equal(result, expected)
    assert languages(compiled) == {"triton"}


def test_a_tensor_in_a_closure():
    weight = torch.randn(33, device="cuda")
    compiled = staxlab.compile(lambda: torch.relu(weight) * 2, strict_native=True)
    assert torch.equal(compiled(), torch.relu(weight) * 2)
    assert languages(compiled) == {"triton"}


def test_inputs_on_both_sides():
    def both(x, y):
        return x * 2 + 1, torch.relu(y) - 1, x.cpu() + y, y.cuda() * x

    x, y = torch.randn(40, device="cuda"), torch.randn(40)
    compiled = staxlab.compile(both)
    for result, expected in zip(compiled(x, y), both(x, y), strict=True):
        assert result.device == expected.device and torch.equal(result, expected)


def test_a_host_tensor_beside_a_gpu_region_and_its_gradient():
    def mixed(x, y):
        return (x * y.cuda()).sum() + (y * y).sum().cuda()

    x, y = torch.randn(64, device="cuda", requires_grad=True), torch.randn(64, requires_grad=True)
    expected = torch.autograd.grad(mixed(x, y), (x, y))
    found = torch.autograd.grad(staxlab.compile(mixed)(x, y), (x, y))
    for a, b in zip(found, expected, strict=True):
        assert a.device == b.device
        torch.testing.assert_close(a, b)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_two_gpus_in_one_region():
    x, y = torch.randn(32, device="cuda:0"), torch.randn(32, device="cuda:1")

    def both(x, y):
        return x * 2 + 1, y * 2 + 1

    for result, expected in zip(staxlab.compile(both)(x, y), both(x, y), strict=True):
        assert result.device == expected.device and torch.equal(result, expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("library", ["FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION"])
def test_every_library_of_attention_is_a_call_in_a_region(library, causal):
    """Some return sizes beside tensors. Forward and backward, values as in eager execution."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def function(q, k, v):
        return F.scaled_dot_product_attention(q * 1.5, k, v, is_causal=causal).relu() + 1

    given = [torch.randn(2, 8, 300, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    compiled = staxlab.compile(function, strict_native=True)
    with sdpa_kernel(getattr(SDPBackend, library)):
        with torch.no_grad():
            assert torch.equal(compiled(*given), function(*given))
        actual, eager = compiled(*given), function(*given)
        upstream = torch.randn_like(eager)
        found = torch.autograd.grad(actual, given, upstream)
        wanted = torch.autograd.grad(eager, given, upstream)
    assert torch.equal(actual, eager)
    for one, other in zip(found, wanted, strict=True):  # sums over blocks may be added in another order
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
