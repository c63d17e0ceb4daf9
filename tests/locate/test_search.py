"""What the search leaves alone, what it refuses, and errors that show only sometimes or in one half."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab import locate_error
from staxlab.errors import OptionError
from staxlab.locate.sample import Sample
from staxlab.locate.search import Search
from staxlab.loops.lowering import RULES
from staxlab.options import Options
from tests.locate.faults import numbers
from tests.locate.programs import Net, written

aten = torch.ops.aten


def test_the_callers_tensors_generators_and_modules_are_as_before():
    x, w, net = numbers(4, 6), numbers(5), Net()
    kept = [tensor.clone() for tensor in (x, w, *net.buffers(), *net.parameters())]
    states = torch.get_rng_state(), random.getstate()
    assert locate_error(written, x, w).found == "no error"
    data = numbers(7, 8, grad=True)
    assert locate_error(net, data, samples=2).found == "no error"
    for tensor, before in zip((x, w, *net.buffers(), *net.parameters()), kept, strict=True):
        assert torch.equal(tensor, before) and tensor.grad is None
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1] and data.grad is None


@pytest.mark.parametrize("at", [1, 3, 5])
def test_an_interruption_puts_everything_back(at):
    net, x = Net(), numbers(7, 8)
    before, said = [tensor.clone() for tensor in net.buffers()], []

    def progress(text):
        said.append(text)
        if len(said) == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        locate_error(net, x, progress=progress)
    assert all(map(torch.equal, net.buffers(), before)) and len(said) == at


def test_what_runs_and_is_interrupted_leaves_buffers_as_they_were():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x):
            self.total.add_(1)
            return x + self.total

    module, x = Counting(), torch.ones(3)
    sample = Sample(module, (x,), {}, staxlab.trace(module, x), None, 0)

    def interrupted(x):
        module(x)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample.observe(interrupted)
    assert module.total.tolist() == [0.0, 0.0, 0.0]
    assert sample.observe(module).values[-1].tolist() == [1.0, 1.0, 1.0] or "total" in sample.input_names[-1]


def test_what_the_function_raises_passes_through():
    with pytest.raises(RuntimeError, match="must match the size"):
        locate_error(lambda x, y: x + y, torch.ones(3), torch.ones(4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": 0}, "at least one input"),
        ({"options": {"fusee": True}}, "did you mean 'fuse'"),
        ({"mode": "fast"}, "unknown mode"),
        ({"upstream": [torch.ones(3), torch.ones(3)]}, "2 upstream gradients were given for 1"),
        ({"upstream": torch.ones(4)}, r"is \[4\], its result \[3\]"),
    ],
)
def test_parameters_that_are_not_allowed_are_refused(arguments, message):
    with pytest.raises(OptionError, match=message):
        locate_error(lambda x: x * 2, torch.ones(3, requires_grad=True), **arguments)


def test_what_is_no_function_is_refused():
    with pytest.raises(OptionError, match="takes a function or module first, got Tensor"):
        locate_error(torch.ones(3))


def test_a_function_that_cannot_be_captured_is_said_with_its_line():
    location = locate_error(lambda x: x.numpy().sum(), torch.ones(3))
    assert location.found == "capture" and location.culprit.part == "refuses the function", location
    assert "test_search.py" in str(location) and not location.script


def test_eager_execution_that_is_not_deterministic_is_noticed():
    calls = itertools.count(1)
    library = torch.library.Library("staxlab_locate_tests", "DEF")
    library.define("noise(Tensor x) -> Tensor")
    library.impl("noise", lambda x: x * next(calls), "CompositeExplicitAutograd")
    location = locate_error(lambda x: torch.ops.staxlab_locate_tests.noise(x) + 1, torch.ones(3))
    assert location.culprit is None and "nothing can be said" in location.verdict
    assert "eager execution is not deterministic" in str(location)


def test_an_operator_without_a_kernel_is_no_error_but_said():
    location = locate_error(lambda x: x[x > 0].sum(), numbers(3, 3))
    assert location.found == "not covered" and "cannot be compiled to native kernels" in location.uncovered, location
    assert [check.verdict for check in location.checks][2] == "not covered"


def test_a_compiled_function_that_holds_right_versions_has_no_error():
    compiled = staxlab.compile(lambda x: x.exp() + 1)
    compiled(numbers(3))
    location = locate_error(compiled, numbers(3))
    assert location.found == "no error" and location.checks[-1].name == "held"
    module = staxlab.compile(torch.nn.Linear(4, 3))
    assert locate_error(module, numbers(2, 4)).checks[-1].name == "held"


def test_an_error_that_shows_on_some_inputs_is_found_with_more_samples(monkeypatch):
    """A limit that is lowered as another one shows on large numbers only."""
    rule = RULES[aten.clamp_max.default]
    wrong = dataclasses.replace(rule, function=lambda call, x, limit: rule.function(call, x, limit + 1))
    monkeypatch.setitem(RULES, aten.clamp_max.default, wrong)
    small = torch.linspace(-1.9, 1.9, 20)
    assert locate_error(lambda x: torch.clamp_max(x, 2.0), small, minimise=False).found == "no error"
    location = locate_error(lambda x: torch.clamp_max(x, 2.0), small, minimise=False, samples=20)
    assert location.found == "loops" and 1 < location.samples <= 20, location
    assert location.checks[-1].sample == location.samples - 1


def test_the_half_at_fault_is_named(monkeypatch):
    """The derivative of a sine is a cosine, which only the backward half computes."""
    monkeypatch.setitem(RULES, aten.cos.default, RULES[aten.sin.default])
    location = locate_error(lambda x: torch.sin(x).exp(), numbers(5, grad=True), upstream=torch.ones(5))
    culprit = location.culprit
    assert (culprit.layer, culprit.half, culprit.part) == ("loops", "backward", "lowering of aten.cos.default")
    assert "gradient of x" in str(location.checks[2].agreement.difference) and location.script
    monkeypatch.undo()
    monkeypatch.setitem(RULES, aten.sin.default, RULES[aten.cos.default])
    location = locate_error(lambda x: torch.sin(x).exp(), numbers(5, grad=True), minimise=False)
    assert (location.culprit.layer, location.culprit.half) == ("loops", "forward")


def test_a_nan_in_the_wrong_place_is_an_error_whatever_the_bound(monkeypatch):
    rule = RULES[aten.relu.default]
    x = numbers(4, 300) * 1e6
    x[1, 7] = float("nan")
    assert locate_error(lambda x: torch.relu(x) + 1, x).found == "no error"

    def lower(call, x):
        return call.pointwise(lambda ops, a: ops.fmax(a, ops.constant(0.0, a.dtype)), x)

    monkeypatch.setitem(RULES, aten.relu.default, dataclasses.replace(rule, function=lower))
    location = locate_error(lambda x: torch.relu(x) + 1, x, minimise=False)
    assert location.found == "loops" and location.culprit.difference.element == (1, 7), location


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda x: (x.t().clone(), x + 1), "share memory otherwise"),
        (lambda x: (x, x + 1), r"shape \[3, 4\] in the place of \[4, 3\]"),
        (lambda x: [x.t(), x + 1], "list"),
        (lambda x: (x.t(), (x + 1).double()), "dtype float64"),
        (lambda x: (x.t(), x), "in the place of"),
        (lambda x: (x.t(), None), "NoneType came back"),
        (lambda x: (x.t(),), "came back in the place of"),
    ],
)
def test_a_wrong_shape_structure_or_alias_is_an_error(wrong, words):
    def program(x):
        return x.t(), x + 1

    x = numbers(3, 4)
    sample = Sample(program, (x,), {}, staxlab.trace(program, x), None, 0)
    found = sample.observe(wrong).against(sample.observe(program))
    assert not found.agrees and re.search(words, str(found.difference)), found


def test_an_input_that_is_written_otherwise_is_an_error():
    x = numbers(3, 4)
    sample = Sample(lambda x: x + 1, (x,), {}, staxlab.trace(lambda x: x + 1, x), None, 0)
    found = sample.observe(lambda x: (x + 1, x.mul_(2))[0]).against(sample.observe(sample.fn))
    assert "x afterwards[0, 0]" in str(found.difference) and sample.flat[0] is x


def test_options_reach_every_prefix():
    seen = []
    options = {"fuse": False}
    location = locate_error(lambda x: F.softmax(x, -1).sum(0), numbers(5, 9), options=options, progress=seen.append)
    assert location.found == "no error" and len(seen) == 5
    search = Search(lambda x: x, None, Options(fuse=False, memory_budget=0.5), 0, seen.append)
    assert search.changed_options() == {"fuse": False, "memory_budget": 0.5}


def test_a_stage_that_ends_in_an_error_is_named_with_the_operator(monkeypatch):
    """Without strict mode the region runs operator by operator and is right: a defect that only shows in time."""
    from staxlab.loops import lowering

    true = lowering.lower

    def lower(operators, *rest, **options):
        if any(node.target is aten.gelu.default for node in operators.graph):
            raise ZeroDivisionError("no such layout")
        return true(operators, *rest, **options)

    monkeypatch.setattr(lowering, "lower", lower)
    location = locate_error(lambda x: F.gelu(x * 2) + 1, numbers(5))
    culprit = location.culprit
    assert (culprit.layer, culprit.part) == ("loops", "lowering of aten.gelu.default ends in an error"), location
    assert "ZeroDivisionError: no such layout" in culprit.reason and "F.gelu" in str(culprit.sources[0])
    assert "its values are right" in " ".join(location.notes) and "gelu(" in location.script


def test_a_plan_of_the_cache_that_is_wrong_is_blamed_for_itself(monkeypatch, plans):
    """What was kept on disk by a compiler with a mistake is restored by one without."""

    def program(x):
        return torch.sin(x) + 1

    with pytest.MonkeyPatch.context() as planted:
        planted.setitem(RULES, aten.sin.default, RULES[aten.cos.default])
        staxlab.compile(program, strict_native=True)(numbers(5))
    location = locate_error(program, numbers(5), minimise=False)
    assert location.found == "artifact" and "restored from the cache" in location.culprit.reason, location
    assert location.culprit.part.startswith("plan ")


def test_memory_that_was_never_written_is_not_blamed(monkeypatch):
    """Dropout draws into an empty tensor, whose value means nothing."""
    monkeypatch.setitem(RULES, aten.tanh.default, RULES[aten.exp.default])
    location = locate_error(lambda x: F.dropout(x, 0.5).sum() + x.tanh(), numbers(4, 4), minimise=False)
    assert location.culprit.part == "lowering of aten.tanh.default", location
