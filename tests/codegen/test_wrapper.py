"""The wrapper module: allocation, order, frees, views, aliases, extern calls and constants."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import staxlab
from staxlab.codegen import cpp, wrapper
from staxlab.codegen.kernel import KernelSet
from staxlab.errors import CodegenError
from staxlab.loops.ir import (
    BufferArgument,
    ComputedBuffer,
    Extern,
    ExternBuffer,
    InputBuffer,
    Layout,
    LoopProgram,
    OutputReference,
    Pointwise,
    Reduction,
)
from staxlab.options import Options, host_device_spec
from staxlab.schedule.dependencies import schedule
from tests.codegen.cpp_support import ORIGINS, compile_program

F32 = torch.float32


def contiguous(*shape: int) -> Layout:
    return Layout.contiguous(shape, F32, "cpu")


def scaled(name: str, source: str, shape: tuple[int, ...], factor: float) -> ComputedBuffer:
    """A buffer ``factor * source`` over a flat contiguous source."""
    layout = contiguous(*shape)

    def compute(ops, index):
        return ops.mul(ops.load(source, layout.address(index)), ops.constant(factor, F32))

    return ComputedBuffer(name, layout, Pointwise(shape, F32, compute, ORIGINS), ORIGINS)


def test_a_chain_of_elementwise_kernels_has_one_memory():
    layout = contiguous(8)
    program = LoopProgram(
        (InputBuffer("x", layout, ORIGINS),),
        (scaled("a", "x", (8,), 2.0), scaled("b", "a", (8,), 3.0), scaled("c", "b", (8,), 5.0)),
        (OutputReference("c", layout, origins=ORIGINS), OutputReference("x", layout, origins=ORIGINS)),
    )
    artifact, kernels, _ = compile_program(program, options=Options(fuse=False))
    lines = [line.text.strip() for line in artifact.wrapper.lines]
    assert sum("= empty" in line for line in lines) == 1 and "del c" not in lines
    assert f"{kernels[2].name}(c.data_ptr(), c.data_ptr())" in lines
    x = torch.arange(8.0)
    result, same = artifact.call([x])
    assert torch.equal(result, x * 30) and same is x


def test_what_is_no_longer_read_is_freed():
    layout = contiguous(8)
    total = Reduction((), (8,), "sum", F32, F32, lambda ops, i, r: ops.load("a", r[0]), ORIGINS)
    program = LoopProgram(
        (InputBuffer("x", layout, ORIGINS),),
        (scaled("a", "x", (8,), 2.0), ComputedBuffer("b", contiguous(), total, ORIGINS)),
        (OutputReference("b", contiguous(), origins=ORIGINS),),
    )
    artifact, _, _ = compile_program(program, options=Options(fuse=False))
    lines = [line.text.strip() for line in artifact.wrapper.lines]
    assert lines.index("del a") > next(n for n, t in enumerate(lines) if t.startswith("b = empty"))
    assert artifact.call([torch.ones(8)])[0].item() == 16


def test_intermediates_are_addresses_in_one_arena():
    def f(x):
        rows = x.sum(1).cumsum(0)
        columns = x.flip(0).cumsum(0).sum(0)
        return rows.flip(0).cumsum(0) + columns

    compilation = staxlab.explain(f, x := torch.randn(70, 70), options={"fuse": False})
    source, memory = compilation.wrapper.source, compilation.schedule.memory
    assert memory.arena_bytes and f"arena = empty(({memory.arena_bytes},), (1,), uint8)" in source
    assert "arena_at + " in source and source.index("del arena") < source.index("return")
    torch.testing.assert_close(compilation.artifact.wrapper_call([x])[0], f(x), rtol=1e-4, atol=1e-3)


def test_an_operator_gets_a_tensor_over_the_arena():
    def f(x):
        return torch.softmax((x @ x).relu(), -1).t().contiguous() @ x

    compilation = staxlab.explain(f, x := torch.randn(70, 70), options={"fuse": False})
    assert "as_strided(arena.view(float32), (70, 70), (70, 1), " in compilation.wrapper.source
    torch.testing.assert_close(compilation.artifact.wrapper_call([x])[0], f(x), rtol=1e-4, atol=1e-3)


def test_outputs_that_are_views_and_aliases():
    layout = contiguous(4, 6)
    flipped = Layout((6, 4), (1, 6), F32, "cpu")
    row = Layout((6,), (1,), F32, "cpu", 12)
    program = LoopProgram(
        (InputBuffer("x", layout, ORIGINS),),
        (scaled("a", "x", (4, 6), 2.0),),
        (
            OutputReference("a", flipped), OutputReference("a", layout), OutputReference("x", row),
            OutputReference(None, constant=7), OutputReference(None, constant=None),
            OutputReference(None, constant=float("nan")), OutputReference("a", layout),
        ),
    )  # fmt: skip
    artifact, _, _ = compile_program(program)
    base = torch.arange(30.0)
    x = base[3:27].view(4, 6)  # starts inside its storage
    turned, whole, alias, seven, nothing, nan, again = artifact.call([x])
    assert torch.equal(whole, x * 2) and torch.equal(turned, (x * 2).t()) and again is whole
    assert turned.data_ptr() == whole.data_ptr()
    assert torch.equal(alias, x[2])
    alias[0] = -1.0
    assert x[2, 0] == -1.0, "a view of an input is the caller's memory"
    assert seven == 7 and nothing is None and nan != nan


def extern(name: str, operator, args: tuple, layout: Layout, position: int | None = None, call: str = "c", **kwargs):
    node = Extern(operator, args, kwargs, "library", ORIGINS)
    return ExternBuffer(name, layout, node, call, position, ORIGINS)


def test_extern_calls_take_views_and_constants():
    layout, product = contiguous(3, 5), contiguous(3, 3)
    transposed = Layout((5, 3), (1, 5), F32, "cpu")
    aten = torch.ops.aten
    program = LoopProgram(
        (InputBuffer("x", layout, ORIGINS),),
        (
            scaled("a", "x", (3, 5), 2.0),
            extern("m", aten.mm.default, (BufferArgument("a", layout), BufferArgument("x", transposed)), product),
            extern("s", aten.cat.default, ([BufferArgument("m", product), BufferArgument("m", product)], 0),
                   contiguous(6, 3), call="d"),
        ),
        (OutputReference("s", contiguous(6, 3), origins=ORIGINS),),
    )  # fmt: skip
    artifact, kernels, _ = compile_program(program)
    assert [k.language for k in kernels] == ["cpp", "extern", "extern"]
    base = torch.randn(20)
    x = base[2:17].view(3, 5)
    torch.testing.assert_close(artifact.call([x])[0], torch.cat([(x * 2) @ x.t()] * 2))
    assert all(line.origins for line in artifact.wrapper.lines if line.text.startswith("    ") and "assert" not in
               line.text and "= inputs" not in line.text)  # fmt: skip


def test_an_operator_with_several_results():
    layout = contiguous(4, 6)
    values, positions = contiguous(4, 2), Layout.contiguous((4, 2), torch.int64, "cpu")
    call = Extern(torch.ops.aten.topk.default, (BufferArgument("x", layout), 2), {"largest": False}, "library", ORIGINS)
    program = LoopProgram(
        (InputBuffer("x", layout, ORIGINS),),
        (ExternBuffer("v", values, call, "t", 0, ORIGINS), ExternBuffer("p", positions, call, "t", 1, ORIGINS)),
        (OutputReference("p", positions), OutputReference("v", values)),
    )
    artifact, kernels, _ = compile_program(program)
    assert len(kernels) == 1 and kernels[0].source.count("topk") == 1
    x = torch.randn(4, 6)
    wanted = x.topk(2, largest=False)
    result = artifact.call([x])
    assert torch.equal(result[0], wanted.indices) and torch.equal(result[1], wanted.values)


def test_an_operator_that_answers_in_another_layout_is_brought_to_the_recorded_one():
    layout = Layout((3, 4), (1, 3), F32, "cpu")
    program = LoopProgram(
        (InputBuffer("x", contiguous(3, 4), ORIGINS),),
        (
            extern("c", torch.ops.aten.clone.default, (BufferArgument("x", contiguous(3, 4)),), layout),
            ComputedBuffer(
                "out", contiguous(3, 4),
                Pointwise((3, 4), F32, lambda ops, i: ops.load("c", layout.address(i)), ORIGINS), ORIGINS,
            ),
        ),
        (OutputReference("out", contiguous(3, 4)),),
    )  # fmt: skip
    artifact, _, _ = compile_program(program)
    x = torch.randn(3, 4)
    assert torch.equal(artifact.call([x])[0], x)
    with pytest.raises(CodegenError, match="returned shape"):
        wrapper.in_layout(x, (4, 3), (3, 1))


def test_intermediates_are_freed_during_the_call(monkeypatch):
    layout = contiguous(1000)
    program = LoopProgram(
        (InputBuffer("x", layout, ORIGINS),),
        (
            scaled("a", "x", (1000,), 2.0),
            extern("m", torch.ops.aten.neg.default, (BufferArgument("a", layout),), layout),
            scaled("b", "m", (1000,), 3.0),
        ),
        (OutputReference("b", layout),),
    )
    artifact, _, _ = compile_program(program)
    alive: list[weakref.ref] = []
    namespace = artifact.call.__globals__
    original = namespace["empty"]

    def watching(*arguments):
        tensor = original(*arguments)
        alive.append(weakref.ref(tensor))
        return tensor

    namespace["empty"] = watching
    (result,) = artifact.call([torch.ones(1000)])
    gc.collect()
    assert len(alive) == 2 and alive[0]() is None and alive[1]() is result


def test_check_states_what_the_kernels_rely_on():
    layout = contiguous(4, 6)
    program = LoopProgram(
        (InputBuffer("x", layout),), (scaled("a", "x", (4, 6), 2.0),), (OutputReference("a", layout),)
    )
    artifact, _, _ = compile_program(program)
    artifact.check([torch.zeros(4, 6)])
    for bad in (torch.zeros(6, 4), torch.zeros(6, 4).t(), torch.zeros(4, 6, dtype=torch.float64)):
        with pytest.raises(AssertionError, match="shape, dtype or stride"):
            artifact.check([bad])
    with pytest.raises(AssertionError, match="number of inputs"):
        artifact.check([])


def test_names_that_are_python_keywords_or_repeat():
    layout = contiguous(5)
    names = ("lambda", "call", "x y", "x.y", "inputs")
    total = names[0]

    def compute(ops, i):
        value = ops.load(total, i[0])
        for name in names[1:]:
            value = ops.add(value, ops.load(name, i[0]))
        return value

    out = ComputedBuffer("def", layout, Pointwise((5,), F32, compute, ORIGINS), ORIGINS)
    program = LoopProgram(tuple(InputBuffer(n, layout) for n in names), (out,), (OutputReference("def", layout),))
    artifact, _, _ = compile_program(program)
    tensors = [torch.full((5,), 10.0**k) for k in range(5)]
    assert torch.equal(artifact.call(tensors)[0], torch.full((5,), 11111.0))


def test_a_failing_kernel_shows_the_wrappers_line():
    import traceback

    layout = contiguous(5)
    index = Layout.contiguous((5,), torch.int64, "cpu")
    from staxlab.loops.expressions import Expr

    def chosen(ops, i):
        return ops.load("x", ops.indirect(ops.load("n", i[0]), Expr.of(5)))

    out = ComputedBuffer("out", layout, Pointwise((5,), F32, chosen, ORIGINS), ORIGINS)
    inputs = (InputBuffer("x", layout), InputBuffer("n", index))
    program = LoopProgram(inputs, (out,), (OutputReference("out", layout),))
    artifact, _, _ = compile_program(program)
    try:
        artifact.call([torch.zeros(5), torch.tensor([0, 1, 2, 3, 5])])
    except IndexError as error:
        shown = "".join(traceback.format_exception(error))
    assert "data_ptr()" in shown and "index 5 is out of bounds" in shown


def test_kernels_that_do_not_match_are_refused():
    layout = contiguous(8)
    program = LoopProgram((InputBuffer("x", layout),), (scaled("a", "x", (8,), 2.0),), (OutputReference("a", layout),))
    device = host_device_spec()
    scheduled = schedule(program, device, Options())
    assert len(cpp.generate(scheduled, Options(), device)) == 1
    with pytest.raises(CodegenError, match="do not match"):
        wrapper.generate_wrapper(scheduled, KernelSet(()), Options())


def test_a_region_without_kernels():
    layout = contiguous(3)
    program = LoopProgram((InputBuffer("x", layout),), (), (OutputReference("x", layout),))
    artifact, kernels, _ = compile_program(program)
    x = torch.zeros(3)
    assert len(kernels) == 0 and artifact.call([x])[0] is x
    assert LoopProgram((), (), ()) is not None
    empty, _, _ = compile_program(LoopProgram((), (), ()))
    assert empty.call([]) == ()


def test_arguments_named_like_what_the_wrapper_calls():
    def function(mm, float32, device, pooled, in_layout):
        return mm.t() @ float32 + device @ pooled, torch.relu(in_layout) * 2

    x = torch.randn(3, 3)
    arguments = (x, x + 1, x + 2, x + 3, x + 4)
    torch.testing.assert_close(staxlab.compile(function, strict_native=True)(*arguments), function(*arguments))
