"""The wrapper of a GPU region (Section 9.7): what it submits, in which order, and what it lets go of, without a GPU."""

from __future__ import annotations

import re
import weakref
from dataclasses import replace

import pytest
import torch

import staxlab
from staxlab.codegen.triton.interpreter import interpret
from staxlab.runtime.artifact import load

PROGRAMS = {
    "row sums in two kernels": (lambda x: torch.relu(x).sum(-1), (64, 16384)),
    "a library call between kernels": (lambda x: (torch.sort((x @ x).relu())[0].cumsum(0) + 1), (64, 64)),
    "a diamond": (lambda x: (x.cumsum(0) + x.cumsum(1)).cumsum(0), (32, 32)),
    "two results": (lambda x: (x.softmax(-1), x.sum(0)), (32, 32)),
}


def logged(fn, x):
    """(compilation, submissions of one call on ``x``: kernel name and tensors' memory, results)."""
    compilation = staxlab.explain(fn, x, target="sm_90")
    log = []

    def launcher(kernel):
        def launch(*tensors):
            log.append((kernel.name, [t.data_ptr() for t in tensors]))
            interpret(kernel, tensors)

        return launch

    launchers = {kernel.name: launcher(kernel) for kernel in compilation.kernels if kernel.language == "triton"}
    return compilation, log, load(compilation.wrapper, launchers).call([x])


def test_listing_9_6_submits_two_kernels_and_frees_the_partial_sums():
    """The partial sums are allocated, written by the first kernel, read by the second, and dropped."""
    fn, shape = PROGRAMS["row sums in two kernels"]
    x = torch.randn(shape)
    compilation, log, (y,) = logged(fn, x)
    torch.testing.assert_close(y, fn(x), rtol=1e-5, atol=1e-3)
    (first, given), (second, passed_on) = log
    assert first.startswith("triton_red") and second.startswith("triton_per")
    assert given == [x.data_ptr(), passed_on[0]] and passed_on[1] == y.data_ptr()
    body = compilation.wrapper.source.split("def call(inputs):")[1]
    lines = [line.strip() for line in body.strip().split("\n")]
    assert lines[0] == "x, = inputs" and lines[-2] == "del buf0" and lines[-1] == "return (buf1,)"


@pytest.mark.parametrize("name", PROGRAMS)
def test_submission_order_realizes_every_dependence(name):
    """On one stream, order is all the synchronization there is: who reads is submitted after who writes."""
    fn, shape = PROGRAMS[name]
    compilation, log, results = logged(fn, torch.randn(shape))
    schedule = compilation.schedule
    written = set(schedule.inputs)
    for node in schedule.nodes:
        assert {access.buffer for access in node.reads} <= written, node.name
        written.update(node.buffers)
    submitted = [name for name, _ in log]
    assert submitted == [k.name for k in compilation.kernels if k.language == "triton" and not k.launch.get("skip")]


@pytest.mark.parametrize("name", PROGRAMS)
def test_only_tensors_are_passed_and_nothing_waits(name):
    fn, shape = PROGRAMS[name]
    source = staxlab.explain(fn, torch.randn(shape), target="sm_90").wrapper.source
    for launch in re.findall(r"^    (triton_\w+\(.*\))$", source, re.MULTILINE):
        assert re.fullmatch(r"triton_\w+\(\w+(, \w+)*\)", launch), launch
    assert not re.search(r"synchronize|\.item\(|\.cpu\(|\.tolist\(|stream", source)


def outliving(compilation, wrapper, x):
    """Intermediates in memory at a launch although no later kernel needs what stands there: (kernel, memory)."""
    schedule = compilation.schedule
    root = schedule.memory.root
    needed: dict[str, int] = {}
    for position, node in enumerate(schedule.nodes):
        for buffer in (*node.buffers, *(access.buffer for access in node.reads)):
            needed[root(buffer)] = position
    kept = {*schedule.inputs, *(root(output.name) for output in schedule.outputs)}
    positions = {kernel.name: position for position, kernel in enumerate(compilation.kernels)}
    seen: list[tuple[str, weakref.ref]] = []
    found = []

    def launcher(kernel):
        def launch(*tensors):
            for memory, reference in seen:
                if reference() is not None and memory not in kept and needed[memory] < positions[kernel.name]:
                    found.append((kernel.name, memory))
            for argument, tensor in zip(kernel.arguments, tensors, strict=True):
                seen.append((root(argument.buffer), weakref.ref(tensor)))

        return launch

    launchers = {kernel.name: launcher(kernel) for kernel in compilation.kernels if kernel.language == "triton"}
    load(wrapper, launchers).call([x])
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_intermediates_die_with_their_last_reader(name):
    fn, shape = PROGRAMS[name]
    x = torch.randn(shape)
    compilation = staxlab.explain(fn, x, target="sm_90", options={"fuse": False})
    assert outliving(compilation, compilation.wrapper, x) == []


def test_a_wrapper_that_frees_nothing_is_found_out():
    fn, shape = PROGRAMS["a library call between kernels"]
    x = torch.randn(shape)
    compilation = staxlab.explain(fn, x, target="sm_90", options={"fuse": False})
    lines = tuple(line for line in compilation.wrapper.lines if not line.text.strip().startswith("del "))
    assert len(lines) < len(compilation.wrapper.lines)
    assert outliving(compilation, replace(compilation.wrapper, lines=lines), x)
