"""The lowered programs of the section's examples, and what realization decides."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from staxlab.errors import LoweringError
from staxlab.loops.body import record
from staxlab.loops.ir import ExternBuffer, Pointwise, Reduction
from staxlab.loops.ops import OPERATIONS

from .lowered import CPU, GPU, check, operators_of, program_of


def subscripts(program, position: int = 0) -> list[str]:
    buffer = program.buffers[position]
    dtypes = {b.name: b.layout.dtype for b in (*program.inputs, *program.buffers)}
    return [f"{a.buffer}[{a.index}]" for a in record(buffer, dtypes).reads()]


def example_1_1(x, w):
    return (torch.relu(x + w) * 2).sum(-1)


@pytest.mark.parametrize("device", [CPU, GPU])
def test_example_1_1_is_one_reduction(device):
    """Listing 6.2."""
    program = check(example_1_1, torch.randn(64, 128), torch.randn(64, 128), device=device)
    (buffer,) = program.buffers
    assert isinstance(buffer.data, Reduction)
    assert (buffer.data.ranges, buffer.data.reduction_ranges, buffer.data.kind) == ((64,), (128,), "sum")
    assert subscripts(program) == ["a[128*i0 + r0]", "b[128*i0 + r0]"]
    dtypes = {b.name: b.layout.dtype for b in program.inputs}
    operations = [s.operation for s in record(buffer, dtypes).statements]
    assert operations == ["load", "load", "add", "relu", "constant", "mul"]


def test_example_6_1_a_transpose_is_only_a_subscript():
    """Listing 6.3."""
    program = check(lambda x, y: x.t() + y, torch.randn(512, 256), torch.randn(256, 512))
    (buffer,) = program.buffers
    assert isinstance(buffer.data, Pointwise) and buffer.data.ranges == (256, 512)
    assert subscripts(program) == ["a[i0 + 256*i1]", "b[512*i0 + i1]"]


def test_example_6_3_an_index_of_loop_indices_needs_no_check_and_no_buffer():
    """Listings 6.5 and 6.6."""

    def g1(x, idx):
        return x[idx] * 2

    def g2(x):
        idx = (torch.arange(128) * 3) % 128
        return x[idx] * 2

    x = torch.randn(128)
    checked = check(g1, x, torch.randint(-128, 128, (128,)))
    free = check(g2, x)
    kinds = [[s.operation for s in _body(p).all_statements()] for p in (checked, free)]
    assert "indirect" in kinds[0] and "indirect" not in kinds[1]
    assert len(free.buffers) == 1 and subscripts(free) == ["a[((3*i0) % 128)]"]


def _body(program, position: int = -1):
    dtypes = {b.name: b.layout.dtype for b in (*program.inputs, *program.buffers)}
    return record(program.buffers[position], dtypes)


def test_example_7_2_exp_is_realized_on_a_cpu_and_not_on_a_gpu():
    def f(x):
        return x.exp().sum(-1), x.exp().amax(-1)

    def g(x):
        e = x.exp()
        return e.sum(-1), e.amax(-1)

    x = torch.randn(8, 16)
    on_cpu, on_gpu = check(g, x, device=CPU), check(g, x, device=GPU)
    assert [type(b.data) for b in on_cpu.buffers] == [Pointwise, Reduction, Reduction]
    assert [type(b.data) for b in on_gpu.buffers] == [Reduction, Reduction]
    (decision,) = [d for d in on_cpu.decisions if d.subject == "exp"]
    assert decision.choice == "realize" and "rule 1" in decision.reason and dict(decision.inputs)["users"] == 2
    (decision,) = [d for d in on_gpu.decisions if d.subject == "exp"]
    assert decision.choice == "inline"
    assert len(check(f, x, device=CPU).buffers) == 2  # two calls of exp have one user each


def test_every_statement_remembers_its_operator():
    operators = operators_of(example_1_1, torch.randn(4, 8), torch.randn(4, 8))
    program = program_of(example_1_1, torch.randn(4, 8), torch.randn(4, 8))
    call = {n.id for n in operators.graph.nodes if n.op == "placeholder"}
    for statement in _body(program).all_statements():
        assert statement.origins
        if statement.operation == "load":
            assert statement.origins & call


def test_a_value_several_loops_read_is_realized_by_the_first_rule_that_fires():
    def many(*xs):
        total = sum(xs)
        return total.sum(0), total.amax(0), total.amin(0)

    xs = [torch.randn(3, 4) for _ in range(6)]
    decisions = [d for d in check(many, *xs).decisions if "rule" in d.reason]
    assert len(decisions) == 1 and "rule 4" in decisions[0].reason


def test_deep_sharing_does_not_explode():
    def f(x):
        for _ in range(40):
            x = x + x.t()
        return x

    def g(x):
        for _ in range(300):
            x = torch.sin(x) + 1
        return x

    assert len(check(f, torch.randn(3, 3)).buffers) <= 3
    assert 1 < len(check(g, torch.randn(3)).buffers) < 20


def test_outputs_have_eager_strides_and_alias_inputs_as_eager_does():
    def f(x):
        y = x * 2
        return x, x.t(), x[1:, ::2], y.t(), y[0], y

    x = torch.randn(4, 6)
    operators, program = operators_of(f, x), check(f, x)
    names = [output.name for output in program.outputs]
    assert names[:3] == ["a"] * 3 and len(set(names[3:])) == 1 and len(program.buffers) == 1
    assert program.outputs[2].layout.offset == 6 and program.outputs[3].layout.stride == (1, 6)
    assert operators.is_pure


def test_as_strided_is_a_layout_where_the_storage_is_known():
    base = torch.randn(10, 10)
    program = check(lambda x: x + x.as_strided((3, 3), (1, 1)), base[2:5, 1:4])
    assert subscripts(program) == ["a[10*i0 + i1]", "a[i0 + i1]"]
    program = check(lambda x: (x * 2).as_strided((3, 3), (1, 5), 2) + 1, base[2:5, 1:6])
    assert "buf0[i0 + 5*i1 + 2]" in subscripts(program, 1)
    outside = check(lambda x: x + x.as_strided((3, 3), (1, 1), 12), base[2:5, 1:4])  # before the input's first element
    assert outside.buffers[0].data.operator is torch.ops.aten.as_strided_copy.default


def test_library_calls_are_extern_with_realized_arguments():
    program = check(lambda x, w: torch.relu((x + 1) @ w.t()).sum(), torch.randn(64, 80), torch.randn(50, 80))
    kinds = [type(b.data).__name__ for b in program.buffers]
    assert kinds == ["Pointwise", "Extern", "Reduction"]
    extern = program.buffers[1]
    assert isinstance(extern, ExternBuffer) and extern.data.reason == "library"
    assert extern.data.args[1].layout.stride == (1, 80)  # the transpose is a layout, not a copy


def test_strict_mode_refuses_a_fallback_and_names_operator_and_line():
    f = torch.special.erfcx
    program = program_of(f, torch.rand(3))
    assert program.buffers[0].data.reason == "fallback"
    with pytest.raises(LoweringError, match="special_erfcx"):
        program_of(f, torch.rand(3), strict_native=True)
    program_of(lambda x: x.sort()[0], torch.rand(3, 3), strict_native=True)  # a library call is fine


def test_a_case_a_rule_declines_is_a_visible_fallback():
    program = program_of(lambda x, y: x // y, torch.tensor([4, 5]), torch.tensor([2, 1]))
    assert program.buffers[0].data.reason == "fallback"
    assert any("division by zero" in d.reason for d in program.decisions)


def test_an_impure_graph_is_refused():
    with pytest.raises(LoweringError, match="depends on data"):
        program_of(lambda x: x[x > 0], torch.randn(4))


def test_half_precision_is_computed_in_float32_and_rounded_where_asked():
    x = (torch.rand(64) * 0.01 + 1).to(torch.bfloat16)
    program = program_of(lambda x: (x + 1) - 1, x)
    assert [s.operation for s in _body(program).all_statements() if s.operation == "to_dtype"] == []
    rounded = program_of(lambda x: (x.float() * 1.001).to(torch.bfloat16).float() * 3, x)
    conversions = [s.args[1] for s in _body(rounded).all_statements() if s.operation == "to_dtype"]
    assert conversions == [torch.bfloat16]
    check(lambda x: (x.float() * 1.001).to(torch.bfloat16).float() * 3, x)


def test_listings_print():
    program = program_of(lambda x: F.softmax(x, -1), torch.randn(4, 8))
    assert "amax over r0 < 8" in str(program)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_short_on_a_gpu(approximate):
    """Exact far out on a CPU; on a GPU as eager has it, so that the thresholds of realization let it be inlined."""
    counts = {}
    for device in (CPU, GPU):
        program = program_of(lambda x: F.gelu(x, approximate=approximate), torch.randn(64), device=device)
        (name,) = (b.name for b in program.inputs)
        body = record(program.buffers[0], {name: torch.float32})
        counts[device] = sum(s.operation in OPERATIONS for s in body.all_statements())
    assert counts[GPU] <= 12 < counts[CPU]
