"""Regions restored from the cache: the same as compiled ones to whoever calls, reads or draws them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F

import staxlab
from benchmarks import corpus
from staxlab.runtime import cache, plan
from tests.runtime.plan_support import bitwise, compilation_of, compiled, difference, planned, text_of
from tests.transform import programs
from tests.transform.bit_identity import numbers
from tests.transform.observation import difference as seen_difference
from tests.transform.observation import observe

pytestmark = pytest.mark.usefixtures("plans")

LITERAL = [0.25, 1.5, -2.0, 4.0]


def example_1_1(x, w):
    return (torch.relu(x + w) * 2).sum(-1)


def writes_and_returns_views(x, y):
    x.mul_(2)
    y[0].add_(1)
    return x.t(), y[1:], x + y, 3


def reads_literals(x):
    return x * torch.tensor(LITERAL) + torch.tensor(0.1), torch.tensor(LITERAL) @ x.t()


def library_calls(x):
    values, places = torch.sort(x @ x.t(), dim=1)
    return values.cumsum(0), places, torch.empty(0)


SMALL = {
    "example_1_1": (example_1_1, lambda: (torch.randn(8, 16), torch.randn(8, 16))),
    "writes": (writes_and_returns_views, lambda: (torch.randn(6, 6), torch.randn(6, 6))),
    "literals": (reads_literals, lambda: (torch.randn(5, 4),)),
    "library": (library_calls, lambda: (torch.randn(7, 7),)),
    "softmax": (lambda x: F.softmax(x, -1), lambda: (torch.randn(4, 33),)),
    "half": (lambda x: (x * 3).cumsum(-1), lambda: (torch.randn(4, 9).half(),)),
    "integers": (lambda x, i: x[i] // 3, lambda: (torch.arange(20), torch.tensor([3, -1, 0]))),
    "random": (lambda x: F.dropout(x, 0.5) + torch.rand(4), lambda: (torch.ones(3, 4),)),
}


def pair(function, make, **options):
    """A program compiled by its stages and then restored, each called on inputs of its own that are alike."""
    torch.manual_seed(0)
    first = make()
    torch.manual_seed(0)
    second = make()
    torch.manual_seed(1)
    fresh, one = compiled(function, first, **options)
    torch.manual_seed(1)
    restored, other = compiled(function, second, **options)
    assert bitwise(one, other) and bitwise(first, second)
    return compilation_of(fresh), compilation_of(restored)


@pytest.mark.parametrize("name", SMALL)
def test_a_restored_region_is_the_compiled_one(name):
    fresh, restored = pair(*SMALL[name])
    assert planned(fresh)
    assert difference(fresh, restored) is None


def test_a_training_region_is_restored_with_its_backward():
    def step(compile_it):
        torch.manual_seed(0)
        x, w = torch.randn(6, 5, requires_grad=True), torch.randn(5, 3, requires_grad=True)
        function = compile_it(lambda x, w: F.gelu(x @ w).pow(2).sum())
        function(x, w).backward()
        return function, x.grad, w.grad

    first, *gradients = step(staxlab.compile)
    second, *again = step(staxlab.compile)
    _, *eager = step(lambda function: function)
    assert planned(compilation_of(first)) and difference(compilation_of(first), compilation_of(second)) is None
    assert all(map(torch.equal, gradients, again))
    assert all(map(torch.allclose, again, eager))
    assert compilation_of(second).backward.restored and compilation_of(second).backward.owned_inputs


@pytest.mark.slow
def test_all_of_the_corpus():
    kept = 0
    for program in corpus.PROGRAMS:

        def run(program=program):
            function, inputs = program.instance()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dispatcher = staxlab.compile(function)
                return compilation_of_called(dispatcher, program, inputs)

        (fresh, one), (restored, other) = run(), run()
        kept += planned(fresh)
        assert difference(fresh, restored) is None, program.name
        assert bitwise(one, other), program.name
    assert kept == len(corpus.PROGRAMS)


def compilation_of_called(dispatcher, program, inputs):
    result = corpus.call(program, dispatcher, inputs)
    return compilation_of(dispatcher), result


def campaign(count, seed, monkeypatch):
    """Random programs that all share one cache: what a caller sees of each, restored, is what its stages come to."""
    generator, restored = random.Random(seed), 0
    for number in range(count):
        program = programs.write(numbers(generator), seed=number % 2)
        if program is None:
            continue
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                observe(program.function, program.arguments(0), seed=0)
            except Exception:
                continue
            with monkeypatch.context() as patched:
                patched.setenv("STAXLAB_PLANS", "0")
                by_stages = staxlab.compile(program.function)
                expected = observe(by_stages, program.arguments(0), seed=0)
            kept, again = staxlab.compile(program.function), staxlab.compile(program.function)
            observe(kept, program.arguments(0), seed=0)
            found = observe(again, program.arguments(0), seed=0)
        assert seen_difference(found, expected) is None, program.source
        assert not compilation_of(by_stages).restored
        if compilation_of(again).restored:
            restored += 1
            ours, theirs = text_of(compilation_of(by_stages)), text_of(compilation_of(again))
            assert ours == theirs, program.source
    return restored


def test_a_few_random_programs(monkeypatch):
    assert campaign(8, 3, monkeypatch) > 3


@pytest.mark.slow
def test_many_random_programs(monkeypatch):
    assert campaign(80, 4, monkeypatch) > 40


# -- another process ---------------------------------------------------------------------------------------------------

SCRIPT = """
import hashlib, json, sys, torch, staxlab
from staxlab.runtime import plan_sources
plan_sources.LOADED = float("inf")  # the sources may be younger while somebody edits them
torch.manual_seed(0)
FACTOR = {factor}
def f(x, w):
    return (torch.relu(x + w) * FACTOR).sum(-1)
x, w = torch.randn(8, 16), torch.randn(8, 16)
compiled = staxlab.compile(f, strict_native=True)
result = compiled(x, w)
compilation = compiled.versions[-1].compilation
loaded = [name for name in sys.modules if name.startswith("staxlab.")]
print(json.dumps({{
    "restored": compilation.restored, "key": compilation.plan_key, "loaded": loaded,
    "result": hashlib.sha256(result.numpy().tobytes()).hexdigest(), "right": torch.allclose(result, f(x, w)),
    "kernels": [kernel.source for kernel in compilation.compiled_kernels],
    "again": [kernel.source for kernel in compilation.kernels], "decisions": len(compilation.decisions),
}}))
"""


def run_process(factor):
    code = SCRIPT.format(factor=factor)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


NOT_LOADED = (
    "loops.lowering", "loops.body", "schedule", "polyhedral", "codegen.cpp", "codegen.triton", "codegen.wrapper",
)  # fmt: skip


def test_a_new_process_restores_and_loads_none_of_the_stages():
    first, second, other = run_process("2"), run_process("2"), run_process("2.5")
    assert not first["restored"] and second["restored"] and not other["restored"]
    assert first["right"] and second["right"] and other["right"]
    for what in ("key", "result", "kernels", "again", "decisions"):
        assert first[what] == second[what], what
    assert second["again"] == second["kernels"] != other["kernels"]
    assert any(name == "staxlab.loops.lowering" for name in first["loaded"])
    stages = tuple(f"staxlab.{name}" for name in NOT_LOADED)
    assert not [name for name in second["loaded"] if name in stages or name.startswith(tuple(s + "." for s in stages))]


# -- what a restored region says ---------------------------------------------------------------------------------------


def test_records_exist_when_somebody_looks():
    fresh, restored = pair(*SMALL["softmax"])
    assert "restored" in repr(restored) and "loops" not in restored.records
    assert restored.traffic.compiled == fresh.traffic.compiled
    assert {"loops", "schedule", "kernels", "wrapper"} <= {*restored.records}
    assert [str(d) for d in restored.decisions] == [str(d) for d in fresh.decisions]
    assert [stage.name for stage, _ in restored.stages()] == [stage.name for stage, _ in fresh.stages()]
    assert f"restored from the cache, key {restored.plan_key}" in str(restored)
    assert "restored from the cache" not in str(fresh)


def test_a_warning_about_a_fallback_is_given_again_at_the_line_it_is_on_now(tmp_path, monkeypatch):
    def load(title, shift):
        file = tmp_path / f"{title}.py"
        file.write_text("import torch\n" + "\n" * shift + "def f(x):\n    return torch.special.erfcx(x) + 1\n")
        namespace = {}
        exec(compile(file.read_text(), str(file), "exec"), namespace)
        return namespace["f"], str(file)

    said = []
    for title, shift in (("first", 0), ("second", 3)):
        function, file = load(title, shift)
        with pytest.warns(staxlab.FallbackWarning) as caught:
            dispatcher = staxlab.compile(function)
            dispatcher(torch.rand(3))
        (warning,) = caught
        said.append(str(warning.message).replace(file, "FILE"))
    assert compilation_of(dispatcher).restored
    assert "FILE:3" in said[0] and "FILE:6" in said[1]
    assert said[0].replace("FILE:3", "FILE:6") == said[1]


def test_a_subscript_out_of_range_is_the_same_error():
    def f(x, i):
        return x[i] * 2

    inputs = (torch.randn(5), torch.tensor([0, 4]))
    dispatchers = [compiled(f, inputs)[0] for _ in range(2)]
    assert compilation_of(dispatchers[1]).restored
    errors = []
    for dispatcher in dispatchers:
        with pytest.raises(staxlab.SubscriptError) as caught:
            dispatcher(torch.randn(5), torch.tensor([0, 5]))
        errors.append(str(caught.value))
    assert errors[0] == errors[1] and "5" in errors[0]


def test_versions_of_modified_inputs_rise_as_in_eager_execution():
    def f(x):
        x.add_(1).mul_(2)
        return x * 2

    versions = []
    for function in (f, *(staxlab.compile(f) for _ in range(2))):
        x = torch.zeros(4)
        function(x)
        versions.append(x._version)
    assert compilation_of(function).restored
    assert versions[0] == versions[1] == versions[2] == 2


def test_settings_of_the_time_of_compiling_hold_for_records_made_later():
    def f(x):
        return x / 3  # integers divide in the default dtype

    x = torch.arange(6)
    compiled(f, (x,))
    restored = compilation_of(compiled(f, (x,))[0])
    torch.set_default_dtype(torch.float64)
    try:
        assert restored.restored and "float32" in str(restored.loops)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_stages_that_come_to_something_else_are_refused(monkeypatch):
    from staxlab.loops.lowering.registry import RULES, LoweringRule

    function, make = SMALL["example_1_1"]
    compiled(function, make())
    restored = compilation_of(compiled(function, make())[0])

    def negative(call, x):
        return call.pointwise(lambda ops, a: ops.neg(a), x)

    monkeypatch.setitem(RULES, torch.ops.aten.relu.default, LoweringRule(negative, "pointwise"))
    for _ in range(2):  # the second time, too
        with pytest.raises(staxlab.StaxError, match="what its stages give now differs"):
            restored.kernels  # noqa: B018


# -- when nothing is kept or restored ----------------------------------------------------------------------------------


def restored_after(function=example_1_1, make=SMALL["example_1_1"][1], **options):
    compiled(function, make(), **options)
    return compilation_of(compiled(function, make(), **options)[0])


def test_options_that_need_the_records_run_every_stage():
    assert restored_after().restored
    assert not restored_after(options={"validate": True}).restored
    assert not restored_after(dynamic=True).restored
    assert not restored_after(backend="aot_eager").restored
    assert restored_after(options={"fuse": False}).restored


def test_plans_can_be_switched_off(monkeypatch):
    assert restored_after().restored
    monkeypatch.setenv("STAXLAB_PLANS", "0")
    assert not restored_after().restored


def test_rules_of_others_are_never_kept(monkeypatch):
    from staxlab.loops.lowering.registry import RULES

    assert restored_after().restored

    def triple(call, x):
        return call.pointwise(lambda ops, a: ops.mul(a, ops.constant(3.0, torch.float32)), x)

    monkeypatch.setitem(RULES, torch.ops.aten.relu.default, RULES[torch.ops.aten.relu.default])
    staxlab.register_lowering(torch.ops.aten.relu.default, triple)
    x, w = torch.ones(8, 16), torch.ones(8, 16)
    dispatcher = staxlab.compile(example_1_1)
    assert dispatcher(x, w).eq(16 * 12).all()
    assert not compilation_of(dispatcher).restored
    monkeypatch.undo()


def test_a_rule_that_failed_once_may_not_fail_again(monkeypatch):
    from dataclasses import replace

    from staxlab.loops.lowering import unary
    from staxlab.loops.lowering.registry import RULES

    def broken(call, x):
        raise MemoryError("for now")

    broken.__module__ = unary.__name__
    rule = RULES[torch.ops.aten.relu.default]
    with monkeypatch.context() as patched:
        patched.setitem(RULES, torch.ops.aten.relu.default, replace(rule, function=broken))
        assert not restored_after().restored
    assert not compilation_of(compiled(example_1_1, SMALL["example_1_1"][1]())[0]).restored


def entries(kind):
    return [entry.name for entry in cache.entries() if entry.kind == kind]


def test_a_damaged_plan_is_made_anew(plans):
    assert restored_after().restored
    (name,) = entries("plan")
    path = cache.path_of(name)
    path.write_bytes(path.read_bytes()[:-9])
    again = compilation_of(compiled(example_1_1, SMALL["example_1_1"][1]())[0])
    assert not again.restored and again.plan_key == name
    assert restored_after().restored


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: {},
        lambda text: text | {"recipe": ["t", ["unknown"]]},
        lambda text: text | {"wrapper": {"lines": ["a\nb", [[]], [0]], "globals": ["d"]}},
        lambda text: text | {"kernels": [{}]},
        lambda text: text | {"externs": [[["operator", "aten::no_such_operator"], "library", "", None]]},
    ],
)
def test_a_plan_that_cannot_be_read_is_made_anew(spoil):
    assert restored_after().restored
    (name,) = entries("plan")
    text = json.loads(cache.read_verified(name))
    cache.clear()
    cache.write_verified(name, json.dumps(spoil(text)).encode())
    function, make = SMALL["example_1_1"]
    dispatcher, result = compiled(function, make())
    assert not compilation_of(dispatcher).restored


def test_clearing_the_cache_clears_plans():
    assert restored_after().restored
    assert entries("plan")
    cache.clear()
    assert not entries("plan")
    assert not compilation_of(compiled(example_1_1, SMALL["example_1_1"][1]())[0]).restored


def test_a_region_whose_key_cannot_be_made_is_compiled(monkeypatch):
    def broken(*_):
        raise ArithmeticError("oh")

    monkeypatch.setattr(plan, "key_of", broken)
    assert not restored_after().restored
    assert not entries("plan")


def test_a_plan_holds_nothing_that_is_not_portable():
    made = compilation_of(compiled(*[f() if i else f for i, f in enumerate(SMALL["library"])])[0])
    whole = plan.made(made.operators, made.loops, made.schedule, made.kernels, made.wrapper, "plan-" + "0" * 64)
    assert plan.keep(whole, made.operators, made.device, "library")
    made.wrapper.globals["stranger"] = object()
    assert not plan.keep(whole, made.operators, made.device, "library")
