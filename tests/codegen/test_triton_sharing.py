"""Kernels that differ in names alone share a launcher, and so a compilation; kernels that differ in more do not."""

from __future__ import annotations

import dataclasses
import gc

import pytest
import torch

import staxlab

pytest.importorskip("triton")

from staxlab.codegen.triton import launcher


def layers(x, weights):
    for weight in weights:
        x = torch.relu(torch.nn.functional.layer_norm(x, x.shape[-1:]) @ weight)
    return x


def kernels_of(function, *args):
    compilation = staxlab.explain(function, *args, target="sm_90", options={"matmul": "library"})
    return [kernel for kernel in compilation.kernels if kernel.language == "triton"]


def test_the_layers_of_a_model_are_compiled_once():
    found = kernels_of(layers, torch.randn(64, 128), [torch.randn(128, 128) for _ in range(6)])
    loaded = [launcher.load(kernel) for kernel in found]
    assert len({kernel.name for kernel in found}) == len(found) >= 7
    assert len({id(one) for one in loaded}) <= 3  # the first, those between, the last


def test_kernels_that_differ_in_more_than_names_are_apart():
    (first,), (longer,) = (kernels_of(lambda x: x.exp() + 1, torch.randn(n)) for n in (4096, 8192))
    (other,) = kernels_of(lambda x: x.exp() + 2, torch.randn(4096))
    (half,) = kernels_of(lambda x: x.exp() + 1, torch.randn(4096).half())
    warps = dataclasses.replace(first, launch={**first.launch, "num_warps": 2 * first.launch["num_warps"]})
    inner = dataclasses.replace(first, launch={**first.launch, "unaligned": first})
    shared = dataclasses.replace(
        first, arguments=tuple(dataclasses.replace(argument, shared=True) for argument in first.arguments)
    )
    elsewhere = dataclasses.replace(first, device=dataclasses.replace(first.device, compute_capability=80))
    kernels = [first, longer, other, half, warps, inner, shared, elsewhere]
    assert len({launcher.alike(kernel) for kernel in kernels}) == len(kernels)
    renamed = kernels_of(lambda y: (y.exp() + 1, y.sum(0))[0], torch.randn(4096))[0]
    assert launcher.alike(renamed) == launcher.alike(first)


def test_a_launcher_goes_when_nobody_holds_it():
    (kernel,) = kernels_of(lambda x: x.sin() * 3, torch.randn(64))
    first = launcher.load(kernel)
    assert launcher.load(kernel) is first
    assert launcher.shared(kernel, lambda one: launcher.TritonLauncher(one), "otherwise") is not first
    name = id(first)
    del first
    gc.collect()
    assert all(id(one) != name for one in launcher._shared.values())
