"""Random programs with views and writes under autograd: results, inputs and gradients of compiled calls are eager's.

The programs are those of ``tests/transform/programs``; some arguments are leaves, some have a history, some are views,
and some of the results get upstream gradients.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import staxlab
from tests.transform import programs

#: What a tensor may be off by, relative to its largest element; bfloat16 is rounded once here and there.
BOUNDS = {torch.bfloat16: 2**-5, torch.float16: 2**-8, torch.float32: 1e-4, torch.float64: 1e-9}
PLAIN, LEAF, COMPUTED, VIEW = range(4)
# Eager execution lets these write into values that require grad, and goes on as if they had not.
WITHOUT_DERIVATIVE = (".logical_not_(", ".eq_(")
# Where a mode is active, PyTorch multiplies by the mask of the extreme elements where it fills otherwise: an upstream
# gradient that is NaN or infinite then makes NaN of the other elements' zeros.
MULTIPLIED_BY_A_MASK = (".median()", ".min()")


@dataclass
class Seen:
    """What a caller can tell of a call and of the backward pass after it."""

    error: str = ""
    facts: list[Any] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    gradients: list[torch.Tensor | None] = field(default_factory=list)
    backward_error: str = ""


def arguments_of(program: programs.Program, kinds: list[int], call: int) -> tuple[list, list]:
    """The arguments of a call, and the leaves that gradients are asked for."""
    arguments, leaves = [], []
    for value, kind in zip(program.arguments(call), kinds, strict=True):
        if kind != PLAIN and value.is_floating_point():
            leaf = (value.detach() if kind == LEAF else value.detach().clone()).requires_grad_()
            leaves.append(leaf)
            value = leaf if kind == LEAF else (leaf * 1 if kind == COMPUTED else (leaf * 1)[:])
        arguments.append(value)
    return arguments, leaves


def observe(function: Any, program: programs.Program, kinds: list[int], call: int, seed: int) -> Seen:
    arguments, leaves = arguments_of(program, kinds, call)
    torch.manual_seed(5)
    try:
        results = function(*arguments)
    except staxlab.CaptureError:
        raise
    except Exception as error:
        return Seen(error=type(error).__name__)
    seen = Seen()
    for tensor in results:
        seen.facts.append((tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad))
    for tensor in arguments:
        seen.facts.append((tensor._version, tensor.requires_grad))
    seen.tensors = [tensor.detach().clone() for tensor in (*results, *arguments)]
    generator = torch.Generator().manual_seed(seed)
    chosen, upstream = [], []
    for tensor in {id(t): t for t in results}.values():
        if tensor.requires_grad and torch.rand(1, generator=generator) > 0.25:
            chosen.append(tensor)
            upstream.append(torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype))
    if chosen and leaves:
        try:
            seen.gradients = list(torch.autograd.grad(chosen, leaves, upstream, allow_unused=True))
        except Exception as error:
            seen.backward_error = type(error).__name__
    return seen


def difference(found: Seen, expected: Seen) -> str | None:
    if expected.error:  # by a line whose result nobody uses, perhaps: then the graph does not have it
        return None
    if found.error or found.facts != expected.facts:
        return f"{found.error or found.facts} where eager has {expected.facts}"
    if found.backward_error != expected.backward_error:
        return f"backward: {found.backward_error or 'no error'} where eager has {expected.backward_error or 'none'}"
    pairs = [
        *zip(found.tensors, expected.tensors, strict=True), *zip(found.gradients, expected.gradients, strict=True)
    ]  # fmt: skip
    for place, (a, b) in enumerate(pairs):
        if (a is None) != (b is None):
            return f"tensor {place}: {a} where eager has {b}"
        if a is not None and not close(a, b):
            return f"tensor {place}: {a} where eager has {b}"
    return None


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or not torch.equal(a.isnan(), b.isnan()) or not torch.equal(a[b.isinf()], b[b.isinf()]):
        return False
    a, b = a[b.isfinite()].double(), b[b.isfinite()].double()
    # A sum over several results may be added up in another order, in the dtype of the widest of them.
    bound = max(BOUNDS.get(dtype, 0.0) for dtype in (b.dtype, torch.float32))
    return not b.numel() or bool(((a - b).abs() <= bound * b.abs().max().clamp(min=1)).all())


def campaign(count: int, seed: int, backend: str) -> tuple[Counter, list[str]]:
    """Compare ``count`` programs, each in three calls; what happened, and every failure as a program to paste."""
    generator = random.Random(seed)
    counts: Counter = Counter()
    failures: list[str] = []
    while counts["programs"] < count:
        lines = [
            (
                generator.randrange(len(programs.LINES)), min(int(generator.expovariate(0.25)), 36),
                generator.randrange(37), generator.randrange(3),
            )
            for _ in range(generator.randint(2, generator.choice([5, 10, 25])))
        ]  # fmt: skip
        returned = [min(int(generator.expovariate(0.3)), 36) for _ in range(generator.randint(1, 4))]
        kinds = [generator.choice([PLAIN, PLAIN, LEAF, COMPUTED, COMPUTED, VIEW]) for _ in programs.PARAMETERS]
        with torch.no_grad():
            program = programs.write((lines, returned), seed=generator.randrange(2))
        if program is None or any(word in program.source for word in WITHOUT_DERIVATIVE + MULTIPLIED_BY_A_MASK):
            continue
        counts["programs"] += 1
        expected = [observe(program.function, program, kinds, call, seed + call) for call in (0, 1)]
        compiled = staxlab.compile(program.function, backend=backend)
        for call in (0, 1, 1):
            try:
                found = observe(compiled, program, kinds, call, seed + call)
            except staxlab.CaptureError:
                counts["refused"] += 1
                break
            problem = difference(found, expected[call])
            if problem is not None:
                failures.append(f"{backend}, kinds {kinds}, call {call}: {problem:.600}\n{program.source}")
                break
        if compiled.versions:
            compilation = compiled.versions[0].compilation
            counts["fallback" if compilation.fallback_reason else "compiled"] += 1
            counts["with gradients"] += any(g is not None for g in expected[0].gradients)
    return counts, failures


def check(count: int, seed: int, backend: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts, failures = campaign(count, seed, backend)
    print(dict(counts))
    assert not failures, "\n\n".join(failures)
    assert counts["compiled"] > count / 8 and counts["with gradients"] > count / 8, counts


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("backend, count", [("aot_eager", 60), ("stax", 8)])
def test_some_programs(backend, count):
    check(count, 1, backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend, count", [("aot_eager", 1000), ("stax", 100)])
def test_many_programs(backend, count):
    check(count, 2, backend)
