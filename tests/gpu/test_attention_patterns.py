"""Attention written out by hand, found and computed without its matrix of scores on a CUDA device, beside float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

import staxlab

pytestmark = [pytest.mark.gpu]

LIBRARY, GENERAL = "scaled_dot_product_attention", "attention operator"
INF = math.inf


def causal(q, k, v):
    i = torch.arange(q.shape[-2], device=q.device)
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(i > i[:, None], -INF).softmax(-1) @ v


def with_softmax_in_float32(q, k, v):
    scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
    return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)


def shared_heads(q, k, v):
    k, v = (t[:, :4].repeat_interleave(2, dim=1) for t in (k, v))
    return (q @ k.mT * 0.125).softmax(-1) @ v


def padded(q, k, v, hidden):
    return (q @ k.mT * 0.125).masked_fill(hidden, -INF).softmax(-1) @ v


def biased(q, k, v, bias):
    i = torch.arange(q.shape[-2], device=q.device)
    return (q @ k.mT * 0.125 + bias).masked_fill(i > i[:, None], -INF).softmax(-1) @ v


def capped_window(q, k, v):
    i = torch.arange(q.shape[-2], device=q.device)
    far = (i[:, None] - i).abs() > 100
    return (20 * torch.tanh(q @ k.mT * 0.125 / 20)).masked_fill(far, -INF).softmax(-1) @ v


# Function, what else it takes, and what it becomes in inference and in training.
PROGRAMS = {
    "causal": (causal, "", LIBRARY, LIBRARY),
    "softmax in float32": (with_softmax_in_float32, "", LIBRARY, LIBRARY),
    "shared heads": (shared_heads, "", LIBRARY, LIBRARY),
    "padded": (padded, "hidden", LIBRARY, LIBRARY),
    "biased": (biased, "bias", LIBRARY, GENERAL),
    "capped window": (capped_window, "", GENERAL, GENERAL),
}


def arguments(takes: str, dtype: torch.dtype, length: int = 500) -> list[torch.Tensor]:
    torch.manual_seed(0)
    found = [torch.randn(2, 8, length, 64, device="cuda").to(dtype) for _ in range(3)]
    if takes == "hidden":
        found.append(torch.rand(2, 1, length, length, device="cuda") < 0.3)
        found[-1][..., 0] = False
    elif takes == "bias":
        found.append(torch.randn(8, length, length, device="cuda").to(dtype))
    return found


def choices(compiled) -> list[str]:
    return [d.choice for d in compiled.versions[0].compilation.decisions if d.topic == "attention"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_no_further_off_than_eagers(name, dtype):
    function, takes, choice, _ = PROGRAMS[name]
    given = arguments(takes, dtype)
    compiled = staxlab.compile(function)
    actual, eager = compiled(*given), function(*given)
    exact = function(*(x.double() if x.is_floating_point() else x for x in given))
    assert choices(compiled) == [choice]
    assert (actual.dtype, actual.shape, actual.stride()) == (eager.dtype, eager.shape, eager.stride())
    # Twice eager's error; in float32, where products may go through tf32 in neither, at least a few roundings.
    limit = 2 * (eager - exact).abs().max() + 64 * torch.finfo(dtype).eps * exact.abs().max() / 8
    assert (actual - exact).abs().max() <= limit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PROGRAMS)  # scores of 500 in bfloat16 stay in the cache: not worth it
def test_gradients_are_no_further_off_than_eagers(name, dtype):
    function, takes, _, choice = PROGRAMS[name]
    given = [x.requires_grad_(x.is_floating_point()) for x in arguments(takes, dtype, 1000)]
    exact = [x.detach().double().requires_grad_() if x.is_floating_point() else x for x in given]
    compiled = staxlab.compile(function)
    upstream = torch.randn_like(given[0])
    found = [
        torch.autograd.grad(run(*args), [x for x in args if x.requires_grad], upstream.to(args[0].dtype))
        for run, args in ((compiled, given), (function, given), (function, exact))
    ]
    assert choices(compiled) == [choice]
    for one, eager, true in zip(*found, strict=True):
        limit = 3 * (eager - true).abs().max() + 64 * torch.finfo(dtype).eps * true.abs().max()
        assert (one - true).abs().max() <= limit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["padded", "biased"])
def test_rows_without_a_key_are_nan_as_in_eager(name, dtype):
    function, takes, *_ = PROGRAMS[name]
    given = arguments(takes, dtype)
    given[3][..., 7, :] = True if takes == "hidden" else -INF
    actual, eager = staxlab.compile(function)(*given), function(*given)
    assert actual[:, :, 7].isnan().all() and torch.equal(actual.isnan(), eager.isnan())


def test_memory_grows_with_the_length_and_not_with_its_square():
    def peak(run, length):
        given = arguments("", torch.bfloat16, length)
        run(*given)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(*given)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    for name in ("causal", "capped window"):
        compiled = staxlab.compile(PROGRAMS[name][0])
        short, long = peak(compiled, 2048), peak(compiled, 8192)
        assert long <= 5 * max(short, 1 << 20)
        assert long < 2 * 8 * 8192 * 8192 * 2 / 4  # a quarter of one matrix of scores
