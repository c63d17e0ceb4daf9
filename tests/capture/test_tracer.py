"""The tracer: what a graph looks like, where nodes come from, what is asked of shapes, symbolic mode, and imports."""

from __future__ import annotations

import dataclasses
import linecache
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from staxlab.capture.graph import TensorMeta
from staxlab.capture.module import Interpreter
from staxlab.capture.tracer import active_tracer, trace
from staxlab.errors import CaptureError, SideEffectWarning

X = torch.linspace(-2, 2, 32).reshape(4, 8)


def lines(capture):
    return str(capture.graph).splitlines()[1:]


def test_listing_3_1_example_1_1():
    def f(x, w):
        return (torch.relu(x + w) * 2).sum(-1)

    x = torch.randn(64, 128)
    assert [line.strip() for line in lines(trace(f, (x, x + 1)))] == [
        "%x : float32[64, 128] = placeholder[x]",
        "%w : float32[64, 128] = placeholder[w]",
        "%add : float32[64, 128] = call_function[operator.add](%x, %w)",
        "%relu : float32[64, 128] = call_function[torch.relu](%add)",
        "%mul : float32[64, 128] = call_function[operator.mul](%relu, 2)",
        "%sum : float32[64] = call_method[sum](%mul, -1)",
        "return %sum",
    ]


def test_the_graph_reads_like_the_program():
    def f(x):
        a = 2 * x + x.add(1)
        b = torch.add(a, 1)
        c = 1 - b
        d = -c
        e = d.T @ a
        return e[0], F.softmax(e, dim=-1), F.relu(e)

    assert [line.split(" = ")[1] for line in lines(trace(f, (X,)))[1:-1]] == [
        "call_function[operator.mul](2, %x)",
        "call_method[add](%x, 1)",
        "call_function[operator.add](%mul, %add)",
        "call_function[torch.add](%add_0, 1)",
        "call_function[operator.sub](1, %add_1)",
        "call_function[operator.neg](%sub)",
        "call_function[getattr](%neg, 'T')",
        "call_function[operator.matmul](%T, %add_0)",
        "call_function[operator.getitem](%matmul, 0)",
        "call_function[torch.nn.functional.softmax](%matmul, dim=-1)",
        "call_function[torch.nn.functional.relu](%matmul)",
    ]


def test_order_of_operands_is_the_users_for_names_of_constants_too():
    import math

    def f(x):
        return math.pi * x + x * math.pi + (-3) * x + 2**3 * x

    arguments = [tuple(type(a).__name__ for a in n.args) for n in trace(f, (X,)).graph if n.name.startswith("mul")]
    assert arguments == [("float", "Node"), ("Node", "float"), ("int", "Node"), ("int", "Node")]


def test_generated_source_computes_the_same():
    def f(x):
        y = x.T.sort(dim=0)
        return {"values": y.values[::2, ..., None], "same": x}, x.mean() if x.sum() > -1 else x

    capture = trace(f, (X,))
    assert "x.T" in capture.module.code
    by_code = capture.module(X)
    by_interpreter = Interpreter(capture.module).run(X)
    assert all(map(torch.equal, by_code, by_interpreter))
    result = capture.rebuild(by_code)
    assert torch.equal(result[0]["values"], f(X)[0]["values"]) and result[0]["same"] is X


def test_locations_are_the_users_lines_also_inside_modules_and_helpers():
    def helper(x):
        return x.exp()  # here

    layer = nn.Linear(8, 8)

    def f(x):
        x = layer(x)  # the call
        return helper(x)

    linear, exp = trace(f, (X,)).graph.calls
    assert (linear.location.text, linear.location.function) == ("x = layer(x)  # the call", "f")
    assert (exp.location.text, exp.location.function) == ("return x.exp()  # here", "helper")
    assert exp.location.file == __file__


def test_a_traced_library_module_points_into_the_library():
    (node,) = trace(nn.Linear(8, 2), (X,)).graph.calls
    assert node.location.file.endswith("linear.py") and "F.linear" in node.location.text


def test_metadata_describes_the_sample():
    capture = trace(lambda x: (x.t() * 2).max(0), (X,))
    t, mul, maximum = capture.graph.calls[:3]
    assert t.val == TensorMeta((8, 4), (1, 8), torch.float32, torch.device("cpu"))
    assert mul.val.shape == (8, 4)
    assert [m.dtype for m in maximum.val] == [torch.float32, torch.int64]


def test_ids_are_origins():
    graph = trace(lambda x: x.exp().log(), (X,)).graph
    assert all(node.origins == frozenset({node.id}) for node in graph if node.op != "output")


def test_submodules_are_inlined_and_weights_lifted():
    model = nn.Sequential(nn.Linear(8, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2, bias=False)))
    capture = trace(model, (X,))
    assert [(i.path, i.is_free) for i in capture.inputs] == [
        ("self.0.weight", True), ("self.0.bias", True), ("self.1.1.weight", True), ("input", False),
    ]  # fmt: skip
    assert [n.target_name() for n in capture.graph.calls] == [
        "torch.nn.functional.linear", "torch.nn.functional.relu", "torch.nn.functional.linear",
    ]  # fmt: skip
    assert [s is p for s, p in zip(capture.samples, [*model.parameters(), X], strict=True)] == [True] * 4
    capture.release()
    assert capture.samples is None


def test_bind_and_rebuild_take_nested_structures_apart_and_together():
    def f(batch, *rest, scale=1.0, **named):
        return {"y": [batch["x"] * scale, (rest[0][1], None)], "k": named["extra"] + 1, "n": 3}

    args = ({"x": torch.ones(2), "unused": torch.zeros(1)}, (5, torch.ones(3)))
    kwargs = {"scale": 2.0, "extra": torch.ones(1)}
    capture = trace(f, args, kwargs)
    assert [i.path for i in capture.inputs] == ["batch['x']", "batch['unused']", "rest[0][1]", "extra"]
    assert [n.name for n in capture.graph.placeholders] == ["batch_x", "batch_unused", "rest_0_1", "extra"]
    other = ({"x": torch.full((2,), 3.0), "unused": torch.zeros(1)}, (5, torch.zeros(3)))
    flat = capture.bind(other, kwargs)
    assert flat[0] is other[0]["x"] and flat[2] is other[1][1]
    result = capture(*other, **kwargs)
    assert torch.equal(result["y"][0], torch.full((2,), 6.0)) and result["y"][1] == (other[1][1], None)
    assert list(result) == ["y", "k", "n"] and result["n"] == 3


def test_unused_inputs_stay_placeholders():
    capture = trace(lambda x, unused: x + 1, (X, X * 2))
    assert [n.name for n in capture.graph.placeholders] == ["x", "unused"]


def test_a_result_keeps_no_sample_alive():
    import weakref

    def f(x):
        return {"a": [x * 2]}, x.exp()

    x = torch.randn(3)
    capture = trace(f, (x,))
    reference = weakref.ref(x)
    capture.release()
    del x
    assert reference() is None


def test_shape_reads_are_noted():
    def f(x):
        return x.reshape(x.shape[0] * x.size(1)) * len(x) + x.numel()

    capture = trace(f, (X,))
    assert [(r.node.name, r.attribute, r.value) for r in capture.shape_reads] == [
        ("x", "shape", (4, 8)), ("x", "size", 8), ("x", "__len__", 4), ("x", "numel", 32),
    ]  # fmt: skip
    assert all(type(r.value) in (int, torch.Size) for r in capture.shape_reads)
    assert not capture.gates


def test_types_and_identities_are_those_of_eager_execution():
    seen = {}

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(8))
            self.w.tag = "mine"

        def forward(self, x, y):
            seen.update(
                exact=type(x) is torch.Tensor, instance=isinstance(x, torch.Tensor), parameter=isinstance(self.w,
                nn.Parameter),
                tag=self.w.tag, same=x is y, contiguous=x.contiguous() is x, none=x.__eq__(None) is NotImplemented,
                hash=hash(x) == hash(y),
            )  # fmt: skip
            return x * self.w

    trace(Module(), (X, X))
    assert seen == {"exact": True, "instance": True, "parameter": True, "tag": "mine", "same": True, "contiguous": True,
                    "none": True, "hash": True}  # fmt: skip


def test_no_op_calls_return_the_same_tensor():
    capture = trace(lambda x: F.dropout(x.contiguous().to(torch.float32), training=False) + 1, (X,))
    assert capture.graph.find("add").args[0] is capture.graph.find("x")


def test_requires_grad_follows_the_rules_of_autograd():
    w = torch.ones(3, requires_grad=True)

    def f(x):
        y = x * w
        with torch.no_grad():
            z = y + 1
        return y, z, y.detach(), y > 0, y.argmax(), torch.zeros_like(y), z * w

    capture = trace(f, (torch.ones(3),))
    expected = f(torch.ones(3))
    assert [n.val.requires_grad for n in capture.graph.output.args[0]] == [t.requires_grad for t in expected]
    assert [t.requires_grad for t in capture(torch.ones(3))] == [t.requires_grad for t in expected]
    with torch.no_grad():
        assert not any(n.name.startswith("detach") for n in trace(lambda x: x * w, (torch.ones(3),)).graph)


def test_gradients_flow_through_a_captured_graph():
    w = torch.randn(8, requires_grad=True)

    def f(x):
        return (x * w).tanh().sum()

    capture = trace(f, (X,))
    assert w.grad is None and capture.graph.find("sum").val.requires_grad
    capture(X).backward()
    captured, w.grad = w.grad, None
    f(X).backward()
    assert torch.equal(captured, w.grad)


def test_an_in_place_write_to_a_leaf_raises_as_in_eager_execution():
    w = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        trace(lambda x: w.add_(x), (torch.ones(3),))
    with torch.no_grad():
        trace(lambda x: w.add_(x), (torch.ones(3),))
    assert torch.equal(w, torch.ones(3))


def test_exceptions_pass_through_with_their_own_traceback():
    def f(x):
        return x @ torch.ones(3, 3)

    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        trace(f, (X,))
    assert any(entry.name == "f" for entry in caught.traceback)
    assert active_tracer() is None


def test_what_a_function_did_before_it_raised_stands():
    def f(x):
        x.add_(1)
        torch.rand(3)
        raise KeyError("mine")

    x, y = torch.zeros(2), torch.zeros(2)
    torch.manual_seed(0)
    with pytest.raises(KeyError, match="mine"):
        trace(f, (x,))
    after = torch.rand(1)
    torch.manual_seed(0)
    with pytest.raises(KeyError):
        f(y)
    assert torch.equal(x, y) and torch.equal(after, torch.rand(1))


def test_a_refusal_cannot_be_swallowed():
    def f(x):
        try:
            scale = float(x.numpy().sum())
        except Exception:
            scale = 1.0
        return x * scale

    with pytest.raises(CaptureError, match="outside PyTorch") as caught:
        trace(f, (X,))
    assert caught.value.where.text == "scale = float(x.numpy().sum())"


def test_side_effects_are_reported_once():
    seen = []

    def f(x):
        print("tracing")
        seen.append(x.shape)
        return x + 1

    with pytest.warns(SideEffectWarning, match="only while it is traced") as caught:
        capture = trace(f, (X,))
    assert len(caught) == 1 and len(seen) == 1
    assert (caught[0].filename, linecache.getline(__file__, caught[0].lineno).strip()) == (
        __file__,
        "capture = trace(f, (X,))",
    )
    text = "\n".join(map(str, capture.python_effects))
    assert "seen was changed" in text and 'print("tracing")' in text
    assert "side effects" in str(capture)


def test_symbolic_tracing_records_without_running():
    ran = []

    def f(x, w):
        y = torch.relu(x @ w) * x.shape[0]
        return y.sum(-1), y

    capture = trace(f, (X, torch.ones(8, 2)), execute=False)
    assert [n.target_name() for n in capture.graph.calls] == ["operator.matmul", "torch.relu", "operator.mul", "sum"]
    assert not capture.executed and not any("val" in n.meta for n in capture.graph.calls)
    assert torch.equal(capture(X, torch.ones(8, 2))[0], f(X, torch.ones(8, 2))[0])

    def leaf(x):
        ran.append(1)
        return x

    trace(lambda x: torch.cond if False else x + 1, (X,), execute=False)
    assert not ran


@pytest.mark.parametrize(
    ("fn", "what"),
    [
        (lambda x: x * 2 if x.sum() > 0 else x, "the data of a tensor"),
        (lambda x: x * int(x.sum()), "the data of a tensor"),
        (lambda x: x.relu().reshape(x.relu().shape[0], -1), "shape of an intermediate"),
        (lambda x: list(x.relu()), "dim of an intermediate"),
        (lambda x: f"{x}", "the data of a tensor"),
    ],
)
def test_symbolic_tracing_refuses_questions_about_values(fn, what):
    with pytest.raises(CaptureError, match=what) as caught:
        trace(fn, (X,), execute=False)
    assert caught.value.where.file == __file__ and "execute=True" in caught.value.remedy


def test_symbolic_tracing_lifts_weights():
    capture = trace(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), (X,), execute=False)
    assert [i.path for i in capture.inputs] == ["self.0.weight", "self.0.bias", "input"]


def test_source_text_is_kept_for_the_view():
    def f(x):
        return x + 1  # a comment

    capture = trace(f, (X,))
    assert capture.source.splitlines()[1].strip() == "return x + 1  # a comment"
    assert capture.source_file == __file__ and capture.source_line == f.__code__.co_firstlineno


def test_threads_record_their_own_calls_only():
    captures = {}
    barrier = threading.Barrier(3)

    def work(k):
        def f(x):
            for _ in range(k):
                barrier.wait()
                x = x + k
            for _ in range(3 - k):
                barrier.wait()
                x * 2
            return x

        captures[k] = trace(f, (X,))

    threads = [threading.Thread(target=work, args=(k,)) for k in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, capture in captures.items():
        assert [n.args[1] for n in capture.graph.calls if n.name.startswith("add")] == [k] * k


def test_capture_imports_no_second_compiler(repository):
    code = """
import sys, torch, torch.nn as nn
from staxlab.capture.tracer import trace
from staxlab.specialize.dispatch import Dispatcher
from staxlab.transform import transform
def f(x, w):
    y = nn.functional.dropout(torch.relu(x + w)).sum(-1)
    y[0] = 1
    if y.sum() > 0:
        y.add_(torch.rand(4))
    with torch.no_grad():
        return y[y > 0]
c = trace(f, (torch.randn(4, 8), torch.randn(4, 8)))
c.replay.evaluate(c.samples)
transform(c)
trace(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), (torch.randn(3, 2),))
trace(lambda x: x * 2, (torch.randn(2),), execute=False)
loaded = [m for m in ("torch._dynamo", "torch._inductor", "sympy") if m in sys.modules]
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, cwd=repository)


def test_record_prints_everything_it_depends_on():
    def f(x):
        return x * x.shape[0] if x.max() > 0 else x

    text = str(trace(f, (X,)))
    assert "capture of 'f'" in text and "bool(%gt) == True" in text and "%x.shape == torch.Size([4, 8])" in text


def test_a_container_that_is_returned_is_the_callers_own():
    import staxlab

    @dataclasses.dataclass
    class Batch:
        x: torch.Tensor
        rest: list

    compiled = staxlab.compile(lambda batch, extra: (batch, extra["a"], batch.rest, [extra["a"]], batch.x + 1))
    for _ in range(3):
        batch, extra = Batch(torch.ones(2), [torch.zeros(1), 3]), {"a": [torch.ones(3)]}
        same, inner, rest, fresh, y = compiled(batch, extra)
        assert same is batch and inner is extra["a"] and rest is batch.rest
        assert fresh is not extra["a"] and fresh[0] is extra["a"] and torch.equal(y, batch.x + 1)
    identity = staxlab.compile(lambda x: x)
    for value in ([torch.ones(2)], {"k": torch.ones(1)}, torch.ones(3)):
        assert identity(value) is value and identity(value) is value
