"""Kernels of several nodes: right values whatever the members' forms, and damaged ones are found."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab
from staxlab.codegen import cpp
from staxlab.codegen.kernel import KernelSet
from staxlab.errors import ValidationError
from staxlab.provenance import Line
from tests.codegen.cpp_support import RUNNABLE


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def validated(function, *inputs, **options):
    compiled = staxlab.compile(function, options={"validate": True, **options})
    result = compiled(*inputs)
    compilation = compiled.versions[0].compilation
    assert compilation.fallback_reason is None and compilation.validation.passed
    return compilation, result


FORMS = {
    "rows": (lambda x: torch.softmax(x, -1), (numbers(100, 67),)),
    "columns": (lambda x: torch.softmax(x, 1), (numbers(70, 9, 40),)),
    "tiles": (lambda x, y: (x.transpose(1, 2) + y, x.sum((1, 2))), (numbers(70, 33, 20), numbers(70, 20, 33))),
    "positions": (lambda x: (x.argmax(-1), x / x.amax(-1, keepdim=True)), (numbers(80, 130),)),
    "conditions": (lambda x: F.pad(x, (1, 2)) - x.mean(-1, keepdim=True), (numbers(90, 50),)),
    "subscripts": (
        lambda x, i: torch.log_softmax(x, -1).gather(1, i), (numbers(90, 50), torch.arange(90)[:, None] % 50),
    ),
    "bool": (lambda x: ((x > 0).any(-1), (x > 0).all(-1, keepdim=True) & (x > 1)), (numbers(90, 50),)),
    "half": (lambda x: x.softmax(-1) * 2, (numbers(90, 50, dtype=torch.bfloat16),)),
    "double": (lambda x: F.layer_norm(x, (50,)), (numbers(90, 50, dtype=torch.float64),)),
    "integers": (
        lambda x: x - x.amax(-1, keepdim=True) + x.sum(-1, keepdim=True), (torch.arange(6400).view(80, 80) % 7,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("instruction_set", RUNNABLE)
@pytest.mark.parametrize("name", FORMS)
def test_members_of_every_form(name, instruction_set):
    function, inputs = FORMS[name]
    compilation, result = validated(function, *inputs, instruction_set=instruction_set)
    assert any(node.members for node in compilation.schedule.nodes)
    wanted = function(*inputs)
    for one, other in zip(*(r if isinstance(r, tuple) else (r,) for r in (result, wanted)), strict=True):
        torch.testing.assert_close(one, other)


def test_a_subscript_out_of_range_in_a_member_is_an_error():
    function, (x, i) = FORMS["subscripts"]
    compiled = staxlab.compile(function)
    compiled(x, i)
    bad = i.clone()
    bad[71] = 50
    with pytest.raises(IndexError, match="50"):
        compiled(x, bad)


def test_results_do_not_depend_on_the_number_of_threads():
    function, inputs = FORMS["rows"]
    compiled = staxlab.compile(function)
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(compiled(*inputs))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


FAULTS = {
    "a row is left out": ("i_row < 100", "i_row < 99"),
    "the next row is read": ("67*i_row", "67*i_row + 1"),
    "the maximum is not subtracted": (" - t", " + t"),
    "the sum begins with one": ("splat<f32x16>(0.0f)", "splat<f32x16>(1.0f)"),
    "a tail is forgotten": ("first<3>", "first<2>"),
}


@pytest.mark.skipif(RUNNABLE[0] != "avx512", reason="the texts below are those of 16 lanes")
@pytest.mark.parametrize("name", FAULTS)
def test_a_damaged_kernel_is_found(name, monkeypatch):
    old, new = FAULTS[name]
    generate = cpp.generate

    def damaged(*arguments):
        kernels = []
        for kernel in generate(*arguments):
            assert old in kernel.source
            lines = tuple(Line(line.text.replace(old, new), line.origins) for line in kernel.lines)
            kernels.append(dataclasses.replace(kernel, lines=lines))
        return KernelSet(tuple(kernels))

    monkeypatch.setattr(cpp, "generate", damaged)
    with pytest.raises(ValidationError):
        validated(*(FORMS["rows"][0], *FORMS["rows"][1]))


SHAPES = st.lists(st.sampled_from([1, 2, 3, 7, 16, 33, 64, 65, 128]), min_size=1, max_size=3)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["exp", "sigmoid", "relu", "add", "mul", "sum", "max", "mean", "columns", "flip", "cumsum"]),
        st.integers(0, 30), st.booleans(),
    ),
    min_size=2, max_size=6,
)  # fmt: skip


def program(steps):
    def run(x, y):
        values, results = [x, y], []
        for name, number, returned in steps:
            a, b = values[number % len(values)], values[(number * 7 + 1) % len(values)]
            value = {
                "exp": lambda a=a: (a * 0.1).exp(),
                "sigmoid": lambda a=a: torch.sigmoid(a),
                "relu": lambda a=a: torch.relu(a - 0.5) + 0.1,
                "add": lambda a=a, b=b: a + (b if b.dim() == a.dim() else a),
                "mul": lambda a=a, b=b: a * (b if b.dim() == a.dim() else a) * 0.5,
                "sum": lambda a=a: a.sum(-1, keepdim=True) * 0.01,
                "max": lambda a=a: a.amax(-1, keepdim=True),
                "mean": lambda a=a: a.mean(-1, keepdim=True),
                "columns": lambda a=a: a.sum(0, keepdim=True) * 0.01,
                "flip": lambda a=a: a.flip(-1) * 1.5,
                "cumsum": lambda a=a: a.cumsum(-1) * 0.01,
            }[name]()
            values.append(value)
            if returned:
                results.append(value)
        return (*results, values[-1])

    return run


@settings(max_examples=25, deadline=None)
@given(SHAPES, STEPS, st.integers(0, 99))
def test_programs(shape, steps, seed):
    """Fused and apart, every program has the same values up to the order of sums."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.rand(shape, generator=generator) + 0.5 for _ in range(2))
    function = program(steps)
    for found, wanted in zip(staxlab.compile(function)(x, y), function(x, y), strict=True):
        assert found.shape == wanted.shape and found.stride() == wanted.stride()
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
