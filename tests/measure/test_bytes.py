"""Section 1.1 and Section 13.2: traffic of eager operators and of schedules, the lower bound, the decomposition."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import staxlab
from staxlab.capture.graph import Graph, TensorMeta
from staxlab.codegen.kernel import Kernel, KernelArgument, KernelSet
from staxlab.loops.body import MemoryAccess
from staxlab.loops.expressions import Expr, Symbol
from staxlab.loops.ir import BufferArgument, Extern, Layout, LoopProgram
from staxlab.measure import operator_cost
from staxlab.measure.bytes import (
    compiled_traffic,
    eager_traffic,
    in_units,
    lower_bound,
    traffic_model,
)
from staxlab.options import DeviceSpec
from staxlab.schedule.records import Schedule, ScheduleNode

_spec = importlib.util.spec_from_file_location("measure_graphs", Path(__file__).with_name("graphs.py"))
_graphs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_graphs)
operator_graph = _graphs.operator_graph

aten = torch.ops.aten
CPU = torch.device("cpu")


def meta(shape, stride=None, dtype=torch.float32, offset=0):
    shape = tuple(shape)
    return TensorMeta(shape, stride or Layout.contiguous(shape, dtype, "cpu").stride, dtype, CPU, storage_offset=offset)


def example_1_1(x, w):
    return (torch.relu(x + w) * 2).sum(-1)


def test_example_1_1_by_hand():
    """Table 1.1 on a graph built by hand: 3N + 2N + 2N + (N + n)."""
    rows, columns = 64, 128
    N, n = rows * columns, rows
    graph = Graph()
    x = graph.placeholder("x", val=meta((rows, columns)))
    w = graph.placeholder("w", val=meta((rows, columns)))
    add = graph.call_function(aten.add.Tensor, (x, w), val=meta((rows, columns)))
    relu = graph.call_function(aten.relu.default, (add,), val=meta((rows, columns)))
    mul = graph.call_function(aten.mul.Tensor, (relu, 2), val=meta((rows, columns)))
    total = graph.call_function(aten.sum.dim_IntList, (mul, [-1]), val=meta((rows,)))
    graph.set_output(total)
    traffic = eager_traffic(graph)
    assert [r.elements for r in traffic.rows] == [3 * N, 2 * N, 2 * N, N + n]
    assert traffic.elements == 8 * N + n
    assert traffic.nbytes == 4 * (8 * N + n)
    assert traffic.operations == 4 * N
    assert traffic.intensity == pytest.approx(0.125, rel=0.01)
    assert traffic.bytes_with_write_allocate == traffic.bytes_read + 2 * traffic.bytes_written
    bound = lower_bound(graph)
    assert (bound.elements, bound.exact) == (2 * N + n, True)


def test_recorded_example_1_1_agrees_with_the_hand_made_graph():
    model = traffic_model(operator_graph(example_1_1, torch.randn(64, 128), torch.randn(64, 128)))
    assert in_units(model.eager.parts, model.eager.symbols) == "8N + n"
    assert in_units(model.bound.parts, model.eager.symbols) == "2N + n"
    assert model.best_rho == pytest.approx((8 * 128 + 1) / (2 * 128 + 1))
    assert model.compiled is None
    assert math.isnan(model.rho)


@pytest.mark.parametrize(
    ("fn", "eager", "bound"),
    [
        (lambda x: x / x.sum(-1, keepdim=True), (3, 2), (2, 0)),
        (lambda x: (x.exp().sum(-1), x.exp().amax(-1)), (6, 2), (1, 2)),
        (lambda x: x.exp().sin().cos().sqrt().abs(), (10, 0), (2, 0)),
        (lambda x: x * x, (2, 0), (2, 0)),
        (lambda x: torch.relu(x), (2, 0), (2, 0)),
        (lambda x: x.sum(-1), (1, 1), (1, 1)),
    ],
    ids=["example 7.1", "example 7.2", "chain of five", "square", "relu", "row sum"],
)
def test_traffic_of_the_chapters_cases(fn, eager, bound):
    N, n = 24 * 40, 24
    graph = operator_graph(fn, torch.rand(24, 40) + 1)
    assert eager_traffic(graph).elements == eager[0] * N + eager[1] * n
    assert lower_bound(graph).elements == bound[0] * N + bound[1] * n


def test_views_are_free_and_broadcast_rows_count_once():
    graph = operator_graph(lambda x, b: x.t()[2:5].unsqueeze(0) + b, torch.randn(8, 6), torch.randn(8))
    rows = eager_traffic(graph).rows
    assert [r.name.split()[-1] for r in rows] == ["aten.add.Tensor"]
    assert (rows[0].elements_read, rows[0].elements_written) == (3 * 8 + 8, 24)


def test_expanded_inputs_count_their_distinct_elements():
    graph = operator_graph(lambda x: x + 1, torch.randn(5, 1).expand(5, 7))
    assert eager_traffic(graph).rows[0].elements_read == 5
    assert lower_bound(graph).of("input")[0].elements == 5


def test_tensors_that_share_storage_are_read_once():
    graph = operator_graph(lambda x: x + x.t(), torch.randn(6, 6))
    assert eager_traffic(graph).rows[0].elements_read == 36
    graph = operator_graph(lambda x: x[:4] * x[2:], torch.randn(6, 3))
    assert eager_traffic(graph).rows[0].elements_read == 18


def test_element_sizes_follow_the_dtype():
    graph = operator_graph(lambda x: (x > 0).to(torch.float64), torch.randn(10))
    rows = eager_traffic(graph).rows
    assert [(r.bytes_read, r.bytes_written) for r in rows] == [(40, 10), (10, 80)]
    assert [r.operations for r in rows] == [10, 0]


def test_metadata_only_factories_and_overwriting_operators():
    graph = operator_graph(lambda x: torch.zeros_like(x), torch.randn(10))
    assert [(r.elements_read, r.elements_written) for r in eager_traffic(graph).rows] == [(0, 10)]
    graph = operator_graph(lambda x: torch.empty_like(x).copy_(x), torch.randn(10))
    assert [(r.elements_read, r.elements_written) for r in eager_traffic(graph).rows] == [(10, 10)]
    graph = operator_graph(lambda x: x.clone().add_(1), torch.randn(10))
    assert [(r.elements_read, r.elements_written) for r in eager_traffic(graph).rows] == [(10, 10), (10, 10)]


def test_out_arguments_are_written_not_read():
    graph = Graph()
    x = graph.placeholder("x", val=meta((10,)))
    target = graph.placeholder("target", val=meta((10,)))
    graph.set_output(graph.call_function(aten.add.out, (x, 1), {"out": target}, val=meta((10,))))
    assert [(r.elements_read, r.elements_written) for r in eager_traffic(graph).rows] == [(10, 10)]


def test_multiple_results_and_their_items():
    graph = operator_graph(lambda x: torch.var_mean(x, -1), torch.randn(4, 9))
    assert [(r.elements_read, r.elements_written) for r in eager_traffic(graph).rows] == [(36, 8)]
    graph = operator_graph(lambda x: x.split(3, -1)[1] * 2, torch.randn(4, 9))
    assert [(r.elements_read, r.elements_written) for r in eager_traffic(graph).rows] == [(12, 12)]
    assert lower_bound(graph).of("input")[0].elements == 12


def test_gathers_read_what_they_select():
    graph = operator_graph(lambda w, i: torch.nn.functional.embedding(i, w), torch.randn(1000, 8), torch.arange(5))
    row = eager_traffic(graph).rows[0]
    assert (row.elements_read, row.bytes_read) == (5 * 8 + 5, 5 * 8 * 4 + 5 * 8)
    bound = lower_bound(graph)
    assert not bound.exact
    assert bound.of("input")[0].elements == 40


def test_matrix_products_count_two_operations_per_multiply_add():
    graph = operator_graph(lambda a, b: a @ b, torch.randn(3, 5), torch.randn(5, 7))
    row = eager_traffic(graph).rows[0]
    assert row.operations == 2 * 3 * 5 * 7
    assert row.elements == 15 + 35 + 21


def test_a_captured_graph_is_refused():
    graph = Graph()
    x = graph.placeholder("x", val=meta((3,)))
    graph.set_output(graph.call_function(torch.relu, (x,), val=meta((3,))))
    for count in (eager_traffic, lower_bound):
        with pytest.raises(TypeError, match="operator graph"):
            count(graph)
    with pytest.raises(TypeError, match="expected a compilation"):
        traffic_model(3)


@pytest.mark.parametrize(
    ("fn", "needed"),
    [
        (lambda x: x[0] * 2, 7),
        (lambda x: (x * 2)[0], 7),
        (lambda x: (x.exp() + 1)[:, 1:3].sum(-1), 12),
        (lambda x: x.sum(-1)[2], 7),
        (lambda x: x.sum(0)[2:4], 12),
        (lambda x: x.mean((0, 1)), 42),
        (lambda x: torch.softmax(x, -1)[3], 7),
        (lambda x: (x.t() * 3)[1], 6),
        (lambda x: x[0] + x[1], 14),
        (lambda x: x[0] + x[:, 0].sum(), 12),
        (lambda x: x.diagonal() * 1.5, 6),
    ],
    ids=lambda v: v if isinstance(v, int) else "f",
)
def test_the_bound_counts_only_elements_depended_upon(fn, needed):
    bound = lower_bound(operator_graph(fn, torch.rand(6, 7)))
    assert bound.of("input")[0].elements == needed
    assert bound.exact


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x * 2)[1, 2:4],
        lambda x: (x.t() + x.sum(-1))[2],
        lambda x: torch.softmax(x[1:], 0)[:, 1],
        lambda x: x[1] * x[:, 2].sum(),
        lambda x: (x + x.amax(0, keepdim=True))[0],
    ],
)
def test_the_bound_agrees_with_what_gradients_reach(fn):
    """An independent witness: an element counts exactly if perturbing it (here, to NaN) can change an output."""
    x = torch.rand(4, 4, dtype=torch.float64)
    reached = 0
    for i in range(16):
        y = x.clone().reshape(-1)
        y[i] = math.nan
        reached += bool(torch.isnan(fn(y.reshape(4, 4))).any())
    assert lower_bound(operator_graph(fn, x)).of("input")[0].elements == reached


def test_unknown_operators_demand_everything_and_say_so():
    bound = lower_bound(operator_graph(lambda x: torch.linalg.matrix_exp(x)[0], torch.rand(6, 6)))
    assert bound.of("input")[0].elements == 36
    assert not bound.exact
    assert "linalg_matrix_exp" in bound.reasons[0]


def test_a_prefix_depends_on_what_stands_before_it():
    bound = lower_bound(operator_graph(lambda x: x.cumsum(0)[2, :5], torch.rand(6, 7)))
    assert bound.exact and bound.of("input")[0].elements == 15


def test_unused_inputs_and_returned_inputs_move_nothing():
    graph = operator_graph(lambda x, y: (x.t(), y.t() + 1), torch.rand(3, 4), torch.rand(3, 4))
    bound = lower_bound(graph)
    assert [r.elements for r in bound.of("input")] == [0, 12]
    assert [r.elements for r in bound.of("output")] == [12]
    assert lower_bound(operator_graph(lambda x: (y := x + 1, y), torch.rand(5))).elements == 10


def test_empty_tensors_move_nothing():
    graph = operator_graph(lambda x: x * 2 + 1, torch.rand(0, 4))
    assert eager_traffic(graph).elements == 0
    assert lower_bound(graph).elements == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=3), st.integers(0, 5))
def test_distinct_elements_never_exceed_nor_undercount_the_truth(dims, offset):
    shape, stride = tuple(n for n, _ in dims), tuple(s for _, s in dims)
    value = meta(shape, stride or None, offset=offset)
    addresses = {offset}
    for n, s in dims:
        addresses = {a + i * s for a in addresses for i in range(n)}
    truth = len(addresses)
    assert operator_cost.distinct_elements(value) >= truth
    # Marking is exact, and is what overlapping views are counted with.
    shifted = meta(shape, stride or None, offset=offset + 1)
    both = addresses | {a + 1 for a in addresses}
    assert operator_cost.union_elements([value, shifted]) == len(both)


def test_a_symbol_stands_for_a_tensor_of_exactly_that_size():
    symbols = {"N": 8192, "n": 128}
    assert in_units([8192] * 8 + [128], symbols) == "8N + n"
    assert in_units([8192], symbols) == "N"
    assert in_units([128, 128], symbols) == "2n"
    assert in_units([8192, 64, 1], symbols) == "N + 65"
    assert in_units([64 * 128], {"N": 64, "n": 128}) == "8,192", "64n elements that are no n tensors"
    assert in_units([8193], symbols) == "8,193"
    assert in_units([4096, 4096], symbols) == "8,192", "two halves are not the tensor"
    assert in_units([], symbols) == "0"
    assert in_units([8, 8, 8], {"N": 8}) == "24"


def test_sizes_that_agree_by_coincidence_get_no_symbol():
    """512 elements in, 70 out and a weight of 70 * 512: 512 is no multiple of a symbol, the bias is as large as n."""
    graph = operator_graph(torch.nn.functional.linear, torch.randn(1, 512), torch.randn(70, 512), torch.randn(70))
    model = traffic_model(graph)
    assert model.eager.symbols == {"N": 70 * 512, "n": 70}
    assert in_units(model.eager.parts, model.eager.symbols) == "N + 2n + 512"
    graph = operator_graph(lambda x, w: (x * w[:512]).sum(), torch.randn(512), torch.randn(5 * 512))
    model = traffic_model(graph)
    assert model.eager.symbols["N"] == 512, "the used part of a tensor is not the tensor"


def test_the_legend_names_tensors():
    model = traffic_model(operator_graph(example_1_1, torch.randn(64, 128), torch.randn(64, 128)))
    inputs = ", ".join(row.name for row in model.bound.of("input"))
    (output,) = (row.name for row in model.bound.of("output"))
    assert model.legend == f"N = 8,192 (elements of input {inputs}), n = 64 (elements of output {output})"
    assert model.legend in repr(model)


# --- Compiled side ----------------------------------------------------------------------------------------------------


def schedule_of_example_1_1(rows=64, columns=128) -> Schedule:
    i, r = Symbol("i0", 0, rows - 1), Symbol("r0", 0, columns - 1)
    flat = Expr.of(i) * columns + Expr.of(r)
    node = ScheduleNode(
        name="op0",
        kind="reduction",
        buffers=("buf0",),
        ranges=(rows,),
        reduction_ranges=(columns,),
        reads=(MemoryAccess("x", flat, (i, r)), MemoryAccess("w", flat, (i, r))),
        writes=(MemoryAccess("buf0", Expr.of(i), (i,)),),
    )
    layouts = {name: Layout.contiguous((rows, columns), torch.float32, "cpu") for name in ("x", "w")}
    layouts["buf0"] = Layout.contiguous((rows,), torch.float32, "cpu")
    program = LoopProgram.__new__(LoopProgram)
    return Schedule((node,), program, DeviceSpec("cpu", "cpu"), layouts, {})


def kernel(nodes, arguments) -> Kernel:
    return Kernel("kernel0", "cpp", (), tuple(arguments), tuple(nodes), DeviceSpec("cpu", "cpu"), operations=7)


def argument(name, role):
    return KernelArgument(name, name, role, torch.float32)


def test_compiled_example_1_1_attains_the_bound():
    N, n = 64 * 128, 64
    schedule = schedule_of_example_1_1()
    by_node = compiled_traffic(schedule)
    by_kernel = compiled_traffic(
        schedule, [kernel(["op0"], [argument("x", "input"), argument("w", "input"), argument("buf0", "output")])]
    )
    for traffic in (by_node, by_kernel):
        assert (traffic.rows[0].elements_read, traffic.rows[0].elements_written) == (2 * N, n)
        assert traffic.nbytes == 4 * (2 * N + n)
        assert traffic.nbytes == schedule.bytes_read(schedule.nodes[0]) + schedule.bytes_written(schedule.nodes[0])
    assert by_kernel.operations == 7


class FakeCompilation:
    def __init__(self, operators, schedule, kernels):
        self.operators, self.schedule, self.kernels = operators, schedule, kernels


def test_model_of_a_compilation():
    graph = operator_graph(example_1_1, torch.randn(64, 128), torch.randn(64, 128))
    arguments = [argument("x", "input"), argument("w", "input"), argument("buf0", "output")]
    model = traffic_model(FakeCompilation(graph, schedule_of_example_1_1(), KernelSet((kernel(["op0"], arguments),))))
    assert model.attains_bound
    assert model.rho == pytest.approx((8 * 128 + 1) / (2 * 128 + 1))
    text = repr(model)
    assert "8N + n" in text
    assert "2N + n" in text
    assert "which is the lower bound" in text
    assert json.loads(json.dumps(model.to_json()))["rho"] == pytest.approx(model.rho)
    bundle = model._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert "<caption>" in bundle["text/html"]


def test_values_passed_inside_a_fused_kernel_cost_nothing():
    i = Symbol("i0", 0, 99)
    at = Expr.of(i)
    access = lambda name: MemoryAccess(name, at, (i,))  # noqa: E731
    first = ScheduleNode("a", "pointwise", ("t",), ranges=(100,), reads=(access("x"),), writes=(access("t"),))
    second = ScheduleNode(
        "b", "pointwise", ("y",), ranges=(100,), reads=(access("t"), access("x")), writes=(access("y"),)
    )
    layouts = {name: Layout.contiguous((100,), torch.float32, "cpu") for name in "xty"}
    schedule = Schedule((first, second), LoopProgram.__new__(LoopProgram), DeviceSpec("cpu", "cpu"), layouts, {})
    assert compiled_traffic(schedule).elements == 200 + 300
    fused = kernel(["a", "b"], [argument("x", "input"), argument("y", "output")])
    assert compiled_traffic(schedule, [fused]).elements == 200


def test_extern_and_empty_nodes():
    layouts = {
        "x": Layout.contiguous((4, 6), torch.float32, "cpu"),
        "y": Layout.contiguous((4, 4), torch.float32, "cpu"),
    }
    row = Layout((4, 6), (0, 1), torch.float32, "cpu")
    call = Extern(aten.mm.default, (BufferArgument("x", layouts["x"]), [BufferArgument("x", row)]), {}, "library")
    extern = ScheduleNode("mm", "extern", ("y",), extern=call)
    empty = ScheduleNode("nothing", "pointwise", ("y",), ranges=(0,))
    schedule = Schedule((extern, empty), LoopProgram.__new__(LoopProgram), DeviceSpec("cpu", "cpu"), layouts, {})
    rows = compiled_traffic(schedule).rows
    assert (rows[0].elements_read, rows[0].elements_written) == (24, 16)
    assert rows[1].elements == 0


LIBRARY = {
    "product": (lambda a, b: a @ b, (64, 96), (96, 48)),
    "product with itself": (lambda a: torch.addmm(a, a, a), (64, 64)),
    "batched": (lambda a, b: torch.bmm(a, b), (3, 48, 64), (3, 64, 40)),
    "linear": (torch.nn.functional.linear, (64, 64), (48, 64), (48,)),
    "convolution": (torch.nn.functional.conv2d, (2, 3, 12, 12), (5, 3, 3, 3)),
    "transposed": (torch.nn.functional.conv_transpose2d, (2, 3, 6, 6), (3, 5, 3, 3)),
    "attention": (torch.nn.functional.scaled_dot_product_attention, *[(1, 2, 16, 8)] * 3),
    "sort": (lambda a: a.sort(-1)[0], (30, 7)),
    "fallback": (lambda a: torch.linalg.inv(a), (9, 9)),
    "product and pointwise": (lambda a, b: (a @ b).relu(), (64, 96), (96, 64)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LIBRARY)
def test_library_and_fallback_kernels_count_as_their_operators_do(name):
    """Both sides run the same routine, so they read, write and compute the same, tensor by tensor."""
    fn, *shapes = LIBRARY[name]
    model = traffic_model(staxlab.explain(fn, *(torch.randn(shape) for shape in shapes)))
    assert model.compiled.operations == model.eager.operations
    assert sorted(model.compiled.parts) == sorted(model.eager.parts)
    called = [row for row in model.compiled.rows if row.name.startswith("extern")]
    assert called, "nothing ran through the library: this case tests nothing"
    assert all(row.operations for row in called if row.elements_written)  # what only checks computes nothing


def test_a_matrix_product_and_attention_by_hand():
    traffic = traffic_model(staxlab.explain(torch.mm, torch.randn(64, 64), torch.randn(64, 64)))
    assert traffic.compiled.operations == 2 * 64**3
    q = torch.randn(1, 2, 16, 8)
    traffic = traffic_model(staxlab.explain(torch.nn.functional.scaled_dot_product_attention, q, q + 1, q + 2))
    assert traffic.eager.operations == 2 * 16 * 16 * (2 * 8 + 14 + 2 * 8)


def test_a_compiled_gather_reads_what_it_selects_and_never_beats_the_bound():
    compilation = staxlab.explain(
        lambda w, i: torch.nn.functional.embedding(i, w), torch.randn(1000, 8), torch.arange(5)
    )
    model = traffic_model(compilation)
    assert sorted(model.compiled.rows[0].parts) == sorted(model.eager.rows[0].parts) == [5, 40, 40]
    assert model.compiled.nbytes >= model.bound.nbytes
    assert compilation.kernels[0].bytes_read == 5 * 8 * 4 + 5 * 8


def test_operations_and_intensity_have_columns_of_their_own():
    table = traffic_model(staxlab.explain(torch.mm, torch.randn(64, 64), torch.randn(64, 64))).table()
    operations, intensity = table.columns.index("operations"), table.columns.index("op/byte")
    assert all(row[operations].endswith("op") or row[0] == "lower bound" for row in table.rows)
    assert {row[intensity] for row in table.rows} == {"10.7", ""}
    softmax = repr(traffic_model(staxlab.explain(lambda x: x.softmax(-1), torch.randn(8, 100))))
    assert "14 op per element" in softmax and "exponential 10" in softmax
