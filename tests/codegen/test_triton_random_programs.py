"""Random programs for a GPU that is not here: rows, columns, products, writes into inputs, against eager execution."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab.runtime.artifact import load

pytest.importorskip("triton")

from staxlab.codegen.triton.interpreter import interpret

SIZES = ((5, 7), (16, 16), (3, 1500), (33, 40), (1, 9))


def step(rng: random.Random, inputs: tuple[torch.Tensor, ...], a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One more value of two, some of them after a write into an input."""
    kind, own = rng.randrange(11), rng.choice(inputs)
    if kind == 0:
        own.mul_(0.5)
    elif kind == 1:
        own[:, 1:].add_(b[:, 1:].clone() * 0.1)
    elif kind == 2:
        own.copy_(torch.tanh(b))
    makers = (
        lambda: a + 1, lambda: a * 2 - b, lambda: own - b, lambda: torch.softmax(a, -1) * b,
        lambda: a * a.amax(-1, keepdim=True), lambda: a.cumsum(-1) * 0.1 + b.cumsum(0) * 0.1,
        lambda: F.layer_norm(a, a.shape[-1:]) + b, lambda: torch.relu(a) / (1 + a.abs().sum(0, keepdim=True)),
        lambda: torch.where(a > b, a.flip(-1), -b), lambda: (a.var(-1, keepdim=True) + 1).rsqrt() * b,
        lambda: (a @ b.t() / a.shape[-1]) @ b + a,
    )  # fmt: skip
    return torch.tanh(makers[kind]())


def program(seed: int):
    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rng, values = random.Random(seed), [*inputs]
        for _ in range(rng.randint(3, 8)):
            values.append(step(rng, inputs, rng.choice(values), rng.choice(values)))
        return tuple(value * 1.0 for value in (*rng.sample(values[2:], min(2, len(values) - 3)), values[-1]))

    return run


def check(seed: int) -> None:
    rows, columns = SIZES[seed % len(SIZES)]
    generator = torch.Generator().manual_seed(seed)

    def made() -> list[torch.Tensor]:
        generator.manual_seed(seed)
        gaps = torch.randn(rows, 2 * columns, generator=generator)[:, ::2]
        return [torch.randn(columns, rows, generator=generator).t(), gaps]

    compilation = staxlab.explain(
        program(seed), *made(), target="sm_90", strict_native=True, options={"matmul": "template"}
    )
    kernels = [kernel for kernel in compilation.kernels if kernel.language == "triton"]  # others copy into an input
    launchers = {k.name: lambda *tensors, kernel=k: interpret(kernel, tensors) for k in kernels}
    inputs, expected = made(), made()
    found, wanted = load(compilation.wrapper, launchers).call(list(inputs)), program(seed)(*expected)
    for one, other in zip((*found, *inputs), (*wanted, *expected), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    for kernel in kernels:
        assert ".target sm_90" in kernel.assembly("ptx").text, "the interpreter is laxer about types than the compiler"


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 80))
def test_more_random_programs(seed):
    check(seed)
