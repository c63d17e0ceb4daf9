"""Every determinant of a plan is in its key: changed one at a time, each changes the key; what is none does not."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import staxlab
from staxlab.capture.graph import Graph, TensorMeta
from staxlab.capture.module import GraphModule
from staxlab.capture.tracer import trace
from staxlab.operators.graph import OperatorGraph
from staxlab.operators.record import record
from staxlab.options import GPU_SPECS, DeviceSpec, Options, host_device_spec
from staxlab.provenance import SourceLocation
from staxlab.runtime import plan_basis, plan_key
from staxlab.runtime.plan_encoding import NotEncodable
from staxlab.transform import transform

aten = torch.ops.aten
DEVICE = host_device_spec()


def graph_of(function, *inputs) -> OperatorGraph:
    """What the pipeline hands to lowering."""
    capture = trace(function, inputs, {}, options=Options())
    return record(transform(capture, Options()).final, capture.samples, Options(), basis=plan_basis.basis())


@pytest.fixture(autouse=True)
def _rules_may_fail(monkeypatch):
    """Tests of lowering ask for errors where a rule fails, for their whole process; then nothing is kept."""
    monkeypatch.delenv("STAXLAB_LOWER_DEBUG", raising=False)


def key(graph, options=None, device=DEVICE, owned=(), basis="basis", sources="sources"):
    return plan_key.key_of(graph, options or Options(), device, owned, basis, sources)


def small(scale=2.0, **changes):
    """A graph made by hand: ``sum(x * w + scale)`` over rows, a constant, and a write into x."""
    given = {
        "shape": (4, 8), "stride": (8, 1), "dtype": torch.float32, "device": "cpu", "requires_grad": False,
        "offset": 0, "dim": [-1], "operator": aten.mul.Tensor, "origin": 1, "name": "product", "number": 3.5,
        "vector": torch.arange(8.0), "location": SourceLocation("f.py", 3, "return x"), "memories": ("sum_1",),
        "versions": (1, 0), "apart": frozenset({"x", "w"}), "write": True, "keyword": False, "result": (8, 1),
        "listed": True,
    }  # fmt: skip
    assert changes.keys() <= given.keys()
    given |= changes
    meta = TensorMeta(
        given["shape"], given["stride"], given["dtype"], torch.device(given["device"]), given["requires_grad"],
        given["offset"],
    )  # fmt: skip
    graph = Graph()
    where = {"location": given["location"], "origins": frozenset({given["origin"]})}
    x, w = (graph.placeholder(name, val=meta, **where) for name in "xw")
    number, vector = torch.tensor(given["number"]), given["vector"]
    constants = {"number": number, "vector": vector}
    loaded = [graph.create("get_attr", name, val=TensorMeta.of(constants[name]), **where) for name in constants]
    result = dataclasses.replace(meta, stride=given["result"])  # a library may choose what it returns
    product = graph.call_function(given["operator"], (x, w), name=given["name"], val=result, **where)
    shifted = graph.call_function(aten.add.Tensor, (product, scale), val=meta, **where)
    for constant in loaded:
        shifted = graph.call_function(aten.add.Tensor, (shifted, constant), val=meta, **where)
    kwargs = {"dtype": None} if given["keyword"] else {}
    total = graph.call_function(aten.sum.dim_IntList, (shifted, given["dim"]), kwargs, val=meta, **where)
    writes = (graph.call_function(aten.copy_.default, (x, product), val=meta, **where),) if given["write"] else ()
    graph.set_output((total,))
    module = GraphModule(graph, constants)
    return OperatorGraph(
        module,
        (meta, meta),
        writes if given["listed"] else (),
        memories=given["memories"],
        versions=given["versions"],
        apart=given["apart"],
    )


CHANGES = {
    "shape": (8, 4), "stride": (1, 4), "dtype": torch.float64, "device": "cuda", "requires_grad": True, "offset": 1,
    "dim": [0], "operator": aten.add.Tensor, "origin": 2, "name": "product_1", "number": 3.25,
    "vector": torch.arange(9.0), "memories": ("x",), "versions": (2, 0), "apart": frozenset({"x"}), "write": False,
    "keyword": True, "result": (1, 4), "listed": False,
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_each_part_of_the_graph_is_a_determinant(name):
    assert key(small()) == key(small())
    assert key(small(**{name: CHANGES[name]})) != key(small())


def test_arguments_differ_by_type_and_by_the_sign_of_zero():
    keys = [key(small(scale)) for scale in (0, 0.0, -0.0, False, 1, 1.0, True, 1 + 0j, "1", float("nan"), None)]
    assert len({*keys}) == len(keys)
    assert key(small(dim=(-1,))) != key(small(dim=[-1]))


def test_where_a_line_stands_and_what_a_vector_holds_are_none():
    """Kernels read vectors from memory, and lines are looked up in the graph at hand."""
    assert key(small(location=SourceLocation("g.py", 7, "return x"))) == key(small())
    assert key(small(vector=torch.arange(8.0) + 1)) == key(small())


def changed_fields(record, values):
    """The record with each field changed in turn, but for what only outside backends have, which have no plans."""
    for field in dataclasses.fields(record):
        if field.name in ("extra", "outside"):
            continue
        old = getattr(record, field.name)
        new = values.get(field.name)
        if new is None:
            new = not old if isinstance(old, bool) else old + 1 if isinstance(old, (int, float)) else f"{old}x"
        assert new != old
        yield field.name, dataclasses.replace(record, **{field.name: new})


OTHER_OPTIONS = {
    "backend": "eager", "mode": "default", "instruction_set": "scalar", "graph_inputs": "copy", "matmul": "library",
    "graph_outputs": "copy", "attention": "off", "memory_budget": 0.5,
}  # fmt: skip


def test_each_option_is_a_determinant():
    graph = small()
    names = []
    for name, options in changed_fields(Options(), OTHER_OPTIONS):
        assert key(graph, options) != key(graph), name
        names.append(name)
    assert len(names) >= 20


def test_each_fact_of_the_device_is_a_determinant():
    graph = small()
    for device in (DEVICE, GPU_SPECS["sm_90"]):
        for name, other in changed_fields(device, {"kind": "cuda" if device.kind == "cpu" else "cpu"}):
            assert key(graph, device=other) != key(graph, device=device), name
    assert isinstance(DEVICE, DeviceSpec)


def test_the_number_of_threads_is_one():
    function, before = lambda x: x.exp().sum(), torch.get_num_threads()
    try:
        keys = set()
        for threads in (1, 2):
            torch.set_num_threads(threads)
            keys.add(key(graph_of(function, torch.ones(4)), device=host_device_spec()))
    finally:
        torch.set_num_threads(before)
    assert len(keys) == 2


def test_what_a_call_owns_the_rules_and_the_sources_are():
    graph = small()
    assert len({key(graph), key(graph, owned=["x"]), key(graph, basis="b"), key(graph, sources="s")}) == 4
    assert key(graph, owned=["x", "w"]) == key(graph, owned=frozenset("wx"))


def test_settings_of_pytorch_are():
    graph = small()
    keys = {key(graph)}
    torch.set_default_dtype(torch.float64)
    try:
        keys.add(key(graph))
    finally:
        torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        keys.add(key(graph))
    finally:
        torch.use_deterministic_algorithms(False)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        keys.add(key(graph))
    finally:
        torch.set_float32_matmul_precision(precision)
    assert len(keys) == 4 and key(graph) in keys


def test_versions_are(monkeypatch):
    graph, gpu = small(), GPU_SPECS["sm_90"]
    before, on_gpu = key(graph), key(graph, device=gpu)
    plan_key._versions.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(plan_key, "_triton_version", lambda: "99")
        assert key(graph) == before and key(graph, device=gpu) != on_gpu
    plan_key._versions.cache_clear()
    for place in range(3):
        versions = [*plan_key.host_versions()]
        versions[place] += "x"
        with monkeypatch.context() as patched:
            patched.setattr(plan_key, "host_versions", lambda versions=versions: tuple(versions))
            assert key(graph) != before, place
        plan_key._versions.cache_clear()
    assert key(graph) == before


def test_rules_that_fail_on_purpose_have_no_key(monkeypatch):
    monkeypatch.setenv("STAXLAB_LOWER_DEBUG", "1")
    with pytest.raises(NotEncodable):
        key(small())


def test_operators_of_others_have_no_key():
    with torch.library._scoped_library("staxlab_plan_test", "FRAGMENT") as library:
        library.define("mul(Tensor x, Tensor y) -> Tensor")
        with pytest.raises(NotEncodable, match="staxlab_plan_test"):
            key(small(operator=torch.ops.staxlab_plan_test.mul.default))
    with pytest.raises(NotEncodable):
        key(small(operator=torch.mul))
    with pytest.raises(NotEncodable, match="Generator"):
        key(small(torch.Generator()))


def test_facts_on_a_node_that_nobody_foresaw_have_no_key():
    graph = small()
    graph.graph.find("product").meta["something"] = 1
    with pytest.raises(NotEncodable, match="something"):
        key(graph)


def test_a_name_of_an_attention_is_in_the_key_with_what_it_stands_for(monkeypatch):
    from staxlab.attention import operator

    q = torch.randn(1, 2, 16, 8)
    graph = graph_of(lambda q: staxlab.omni_attention(q, q, q), q)
    scaled = graph_of(lambda q: staxlab.omni_attention(q, q, q, scale=0.5), q)
    before = key(graph)
    assert before != key(scaled)
    (node,) = [node for node in graph.graph.calls if node.target is operator.attention]
    other = dataclasses.replace(operator.specification(node.args[5]), scale=0.125)
    monkeypatch.setitem(operator._specifications, node.args[5], other)
    assert key(graph) != before


# -- programs that differ by what no text of theirs says ---------------------------------------------------------------

FACTOR = 2.0


def scaled_by_a_global(x):
    return (x * FACTOR).exp()


def make(scale, flag=False, shape=(4, 4)):
    def inner(x):
        y = x * scale
        return y.expand(shape).sum(0) if flag else y.expand(shape).sum(1)

    return inner


@pytest.mark.usefixtures("plans")
def test_programs_with_one_text_are_told_apart(monkeypatch):
    """Closures, globals, numbers, attributes, data gates: all reach the key by way of the graph."""
    x = torch.randn(4, 4)

    def check(function):
        for _ in range(2):
            dispatcher = staxlab.compile(function)
            assert torch.allclose(dispatcher(x), function(x), atol=1e-5)
        return dispatcher.versions[-1].compilation

    restored = [check(make(scale, flag)) for scale in (1, 1.0, -1.0, 2, 2.5) for flag in (False, True)]
    for factor in (2.0, 3.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        restored.append(check(scaled_by_a_global))
    weights = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]
    restored += [check(lambda x, weight=weight: torch.relu(weight(x)).detach()) for weight in weights]
    restored += [check(lambda x, literal=literal: x * torch.tensor(literal)) for literal in (0.5, 0.25)]
    # A vector is read from memory, so these two share a plan, and each has its own numbers.
    restored += [check(lambda x, v=v: x * torch.tensor(v)) for v in ([1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0])]
    assert all(compilation.restored for compilation in restored)
    assert restored[-6].plan_key == restored[-5].plan_key  # two layers that are alike but for their numbers
    assert restored[-2].plan_key == restored[-1].plan_key != restored[-3].plan_key
    assert len({compilation.plan_key for compilation in restored}) >= len(restored) - 4
