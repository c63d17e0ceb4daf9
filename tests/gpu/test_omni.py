"""``omni_attention`` in programs on a CUDA device: regions, training, CUDA Graphs, autocast, several devices."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import staxlab
from staxlab import create_block_mask, omni_attention
from staxlab.attention import backends, operator
from staxlab.attention.masks import causal
from staxlab.attention.reference import reference_attention

pytestmark = [pytest.mark.gpu]

LENGTH, HEADS, KEY_HEADS, SIZE = 320, 8, 2, 64


class Layer(torch.nn.Module):
    """Grouped-query attention with a learned temperature and a table of relative positions."""

    def __init__(self, dtype: torch.dtype = torch.float32):
        super().__init__()
        kind = {"device": "cuda", "dtype": dtype}
        self.project = torch.nn.Linear(64, (HEADS + 2 * KEY_HEADS) * SIZE, **kind)
        self.table = torch.nn.Parameter(torch.randn(HEADS, 2 * LENGTH - 1, **kind))
        self.log_temperature = torch.nn.Parameter(torch.zeros(HEADS, **kind))
        self.mask = create_block_mask(causal, None, None, LENGTH, LENGTH, device="cuda")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.project(x).unflatten(-1, (-1, SIZE)).transpose(1, 2)
        query, key, value = heads.split((HEADS, KEY_HEADS, KEY_HEADS), 1)
        temperature = self.log_temperature.exp()

        def biased(score, b, h, q_idx, kv_idx):
            return score * temperature[h] + self.table[h, q_idx - kv_idx + LENGTH - 1]

        return omni_attention(query, key, value, biased, self.mask, enable_gqa=True).transpose(1, 2).flatten(2).sin()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_a_layer(dtype):
    layer = Layer(dtype)
    x = torch.randn(2, LENGTH, 64, device="cuda", dtype=dtype, requires_grad=True)
    compiled = staxlab.compile(layer, strict_native=True)
    results = {}
    for name, call in (("eager", layer), ("compiled", compiled)):
        layer.zero_grad()
        x.grad = None
        output = call(x)
        output.square().sum().backward()
        results[name] = [output, x.grad, *(p.grad for p in layer.parameters())]
    allowed = 1e-3 if dtype == torch.float32 else 5e-2
    for ours, theirs in zip(results["compiled"], results["eager"], strict=True):
        assert (ours - theirs).abs().max() <= allowed * max(1.0, theirs.abs().max().item())
    kernels = compiled.versions[0].compilation.kernels
    assert [k.written_in for k in kernels if k.written_in] == ["triton"]


def test_replaying_a_region():
    layer = Layer()
    x = torch.randn(2, LENGTH, 64, device="cuda")
    region = staxlab.compile(layer, options={"cuda_graphs": True})
    with torch.no_grad():
        for _ in range(4):
            x.normal_()
            assert torch.allclose(region(x), layer(x), atol=1e-4)
        compilation = region.versions[0].compilation
    assert compilation.graphs.recordings and compilation.graphed.replays >= 1


def test_a_recording_outlives_the_block_mask_it_was_made_with():
    """Other masks come to lie where the first one lay, and replays must see theirs and nothing that went with it."""
    query, key, value = (torch.randn(1, 2, 1024, 64, device="cuda") for _ in range(3))

    def window(width: int):
        return lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx < ids[0, 0] + width)

    ids = torch.zeros(1, 1, device="cuda", dtype=torch.int64)
    region = staxlab.compile(omni_attention, options={"cuda_graphs": True})
    for call in range(8):
        ids.fill_(100 * (call % 3))
        mask = create_block_mask(window(64), None, None, 1024, 1024, device="cuda")
        with torch.no_grad():
            found = region(query, key, value, block_mask=mask).clone()
            assert torch.allclose(found, omni_attention(query, key, value, block_mask=mask), atol=1e-5)
        del mask, found
        torch.full((1 << 16,), -1, dtype=torch.int32, device="cuda")  # overwrites what was given back


def test_autocast_is_that_of_scaled_dot_product_attention():
    query, key, value = (torch.randn(2, 4, 64, 64, device="cuda", requires_grad=True) for _ in range(3))
    with torch.autocast("cuda", dtype=torch.float16):
        wanted = scaled_dot_product_attention(query, key, value)
        found = omni_attention(query, key, value)
    assert found.dtype == wanted.dtype == torch.float16
    assert torch.allclose(found, wanted, atol=4e-3)
    found.float().sum().backward()
    assert query.grad.dtype == torch.float32


def test_few_queries_take_the_template_that_splits_keys():
    query = torch.randn(2, HEADS, 1, SIZE, device="cuda")
    key, value = (torch.randn(2, KEY_HEADS, 4096, SIZE, device="cuda") for _ in range(2))
    problem = operator.Specification().problem(query, key, value, operator.device_of(query))
    assert backends.choose(problem).choice == "decode"
    found = omni_attention(query, key, value, enable_gqa=True)
    assert torch.allclose(found.double(), reference_attention(query, key, value, enable_gqa=True)[0], atol=1e-5)


def test_tensors_of_another_device_than_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("one device only")
    query = torch.randn(1, 2, 64, 32, device="cuda:1", requires_grad=True)
    with torch.cuda.device(0):
        found = omni_attention(query, query, query)
        found.sum().backward()
    assert torch.allclose(found.double(), reference_attention(query, query, query)[0], atol=1e-5)
