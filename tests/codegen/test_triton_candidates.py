"""Candidate sets and spaces of Triton kernels: few, the rule's first, and every member computes the same."""

from __future__ import annotations

import math
import random

import pytest
import torch

pytest.importorskip("triton")

import staxlab
from staxlab.codegen.triton import interpreter
from staxlab.codegen.triton.candidates import MOST_CANDIDATES
from staxlab.errors import CodegenError, OptionError


def softmax(x):
    return torch.softmax(x, -1)


def scattered(x, index):
    return torch.zeros(64).index_add(0, index, x)


#: A function, its inputs, and the form of its only kernel.
CASES = {
    "line": (lambda x, y: x.exp() + y, [(300, 70), (300, 70)], "pointwise"),
    "rectangle": (lambda x, y: x.t() + y, [(130, 70), (70, 130)], "pointwise"),
    "box": (lambda x, y: x.permute(2, 1, 0) + y.permute(0, 2, 1), [(20, 24, 18), (18, 20, 24)], "pointwise"),
    "persistent": (lambda x, w: (torch.relu(x + w) * 2).sum(-1), [(64, 128), (64, 128)], "persistent"),
    "persistent across": (lambda x: x.sum(0), [(40, 70)], "persistent"),
    "long row": (softmax, [(3, 3000)], "persistent"),
    "looped": (lambda x: (x * x).sum(-1), [(3, 9000)], "looped"),
    "looped across": (lambda x: x.amax(0), [(3000, 40)], "looped"),
    "position": (lambda x: x.argmax(-1), [(5, 9000)], "looped"),
    "scan": (lambda x: x.cumsum(-1), [(5, 700)], "persistent"),
    "fused": (lambda x: (x - x.mean(-1, keepdim=True)) / x.var(-1, keepdim=True), [(9, 1000)], "persistent"),
}


def made(name):
    function, shapes, form = CASES[name]
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=generator) for shape in shapes]
    # One kernel for the whole: what is split into two is another test's subject.
    compilation = staxlab.explain(
        function, *inputs, target="sm_90", strict_native=True, options={"split_reductions": False}
    )
    (kernel,) = compilation.kernels
    assert kernel.launch["form"] == form
    return function, inputs, compilation, kernel


def run(compilation, kernel, inputs):
    """The results of a kernel in Triton's interpreter, into poisoned memory."""
    buffers = dict(zip(compilation.schedule.inputs, inputs, strict=True))
    for argument in kernel.arguments:
        if argument.role == "output":
            layout = compilation.schedule.layouts[argument.buffer]
            out = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype)
            buffers[argument.buffer] = out.fill_(77)
    interpreter.interpret(kernel, [buffers[argument.buffer] for argument in kernel.arguments])
    return [buffers[argument.buffer] for argument in kernel.arguments if argument.role == "output"]


@pytest.mark.parametrize("name", CASES)
def test_a_candidate_set_is_small_begins_with_the_rule_and_lies_in_the_space(name):
    *_, kernel = made(name)
    tuning = kernel.tuning
    assert 2 <= len(tuning.candidates) <= MOST_CANDIDATES
    assert tuning.candidates[0] == tuning.rule and len(set(tuning.candidates)) == len(tuning.candidates)
    assert all(candidate in tuning.space and tuning.feasible(candidate) for candidate in tuning.candidates)
    assert tuning.parameters == tuning.space.names
    given = dict(zip(tuning.names, tuning.rule, strict=False))
    assert given | kernel.launch["constants"] == given and kernel.launch["num_warps"] == tuning.rule[-2]


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_of_the_rules_configuration_is_the_rules_kernel(name):
    *_, kernel = made(name)
    again = kernel.tuning.kernel(kernel.tuning.rule)
    assert again.source == kernel.source and again.launch == kernel.launch


@pytest.mark.parametrize("name", CASES)
def test_every_candidate_computes_the_same(name):
    function, inputs, compilation, kernel = made(name)
    (expected,) = [function(*inputs)]
    for candidate in kernel.tuning.candidates:
        (result,) = run(compilation, kernel.tuning.kernel(candidate), inputs)
        torch.testing.assert_close(result, expected, rtol=2e-5, atol=1e-4, msg=lambda m, c=candidate: f"{c}: {m}")


@pytest.mark.parametrize("name", CASES)
def test_members_of_the_space_compute_the_same(name):
    """A few drawn at random, with not too many instances for the interpreter."""
    function, inputs, compilation, kernel = made(name)
    generator, tried = random.Random(name), 0
    for _ in range(60):
        configuration = kernel.tuning.space.draw(generator)
        if not kernel.tuning.feasible(configuration):
            continue
        other = kernel.tuning.kernel(configuration)
        if math.prod(other.launch["grid"]) > 40:
            continue
        (result,) = run(compilation, other, inputs)
        torch.testing.assert_close(result, function(*inputs), rtol=2e-5, atol=1e-4)
        tried += 1
        if tried == 3:
            break
    assert tried


def test_a_long_row_may_be_walked_along_instead():
    *_, kernel = made("long row")
    forms = {kernel.tuning.kernel(candidate).launch["form"] for candidate in kernel.tuning.candidates}
    assert forms == {"persistent", "looped"}


def test_what_cannot_be_compiled_is_refused_before_it_is_tried():
    *_, kernel = made("line")
    space = kernel.tuning.space
    large = (max(space.parameters[0].values), 1, kernel.tuning.rule[-1])
    assert kernel.tuning.feasible(large) or pytest.raises(CodegenError, kernel.tuning.kernel, large)
    with pytest.raises(OptionError, match="not in the configuration space"):
        kernel.tuning.kernel((3, 1, 1))


def test_no_candidate_leaves_multiprocessors_idle_that_the_rule_keeps_busy():
    (kernel,) = staxlab.explain(lambda x, w: (x + w).sum(-1), *[torch.randn(300, 128)] * 2, target="sm_90").kernels
    tuning = kernel.tuning
    assert tuning.instances(tuning.rule) == math.prod(kernel.launch["grid"]) >= 132
    assert all(tuning.instances(candidate) >= 132 for candidate in tuning.candidates)
    assert any(tuning.instances(configuration) < 132 for configuration in tuning.space)


def test_a_kernel_of_nothing_has_one_candidate():
    compilation = staxlab.explain(lambda x: x + 1, torch.randn(0, 5), target="sm_90")
    for kernel in compilation.kernels:
        assert kernel.tuning is None or len(kernel.tuning.candidates) == 1
