"""Products of matrices and vectors lowered to loops of our own: which are, their values against eager execution over
dtypes, layouts and special values, and a small perceptron trained without leaving native code."""

from __future__ import annotations

import math
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab
from staxlab.loops import product_limits
from staxlab.loops.ir import ComputedBuffer, ExternBuffer, LoopProgram, Reduction, Template
from staxlab.loops.lowering.kinds import kind_of
from staxlab.options import Options
from tests.loops.lowered import CPU, GPU, check, operators_of, program_of

from .opinfo import DTYPES, copy_of, operators_database, outcome, samples

F32, F64 = torch.float32, torch.float64
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
TOLERANCE = {
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
    torch.float16: {"rtol": 4e-3, "atol": 4e-3},
    F32: {"rtol": 2e-5, "atol": 2e-5},
}


def filled(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(-99, 100, shape, generator=generator).to(dtype)


def nodes(program: LoopProgram) -> list[str]:
    return [type(buffer.data).__name__ for buffer in program.buffers]


#: Every operator with the kinds of node it becomes and shapes of its arguments.
OPERATORS: dict[str, tuple[Callable, list[str], list[tuple[int, ...]]]] = {
    "mm": (torch.mm, ["Template"], [(5, 7), (7, 9)]),
    "bmm": (torch.bmm, ["Template"], [(3, 5, 7), (3, 7, 9)]),
    "addmm": (lambda a, x, y: torch.addmm(a, x, y, beta=2, alpha=3), ["Template"], [(5, 1), (5, 7), (7, 9)]),
    "addmm, no addend": (lambda a, x, y: torch.addmm(a, x, y, beta=0), ["Template"], [(9,), (5, 7), (7, 9)]),
    "baddbmm": (lambda a, x, y: torch.baddbmm(a, x, y, beta=3), ["Template"], [(1, 5, 9), (3, 5, 7), (3, 7, 9)]),
    "addbmm": (lambda a, x, y: torch.addbmm(a, x, y, alpha=2), ["Template"], [(5, 9), (3, 5, 7), (3, 7, 9)]),
    "linear": (F.linear, ["Template"], [(4, 5, 7), (9, 7), (9,)]),
    "broadcast batches": (torch.matmul, ["Template"], [(2, 1, 4, 5), (3, 5, 6)]),
    "mv": (torch.mv, ["Reduction"], [(5, 7), (7,)]),
    "dot": (torch.dot, ["Reduction"], [(37,), (37,)]),
    "vdot": (torch.vdot, ["Reduction"], [(37,), (37,)]),
    "addmv": (lambda a, x, y: torch.addmv(a, x, y, beta=2, alpha=3), ["Reduction", "Pointwise"], [(5,), (5, 7), (7,)]),
    "addmv, beta 0": (lambda a, x, y: torch.addmv(a, x, y, beta=0), ["Reduction", "Pointwise"], [(5,), (5, 7), (7,)]),
    "addr": (lambda a, x, y: torch.addr(a, x, y, beta=2, alpha=3), ["Pointwise"], [(5, 7), (5,), (7,)]),
    "outer": (torch.outer, ["Pointwise"], [(5,), (7,)]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [F32, F64, torch.bfloat16, torch.float16, *INTEGERS], ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_in_every_dtype(name, dtype):
    function, kinds, shapes = OPERATORS[name]
    inputs = [filled(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes)]
    program = check(function, *inputs, **TOLERANCE.get(dtype, {}))
    assert nodes(program)[-len(kinds) :] == kinds


def test_which_products_are_small():
    """Above the border a product is a library call, and its argument is in memory; below it is inlined."""
    limit = product_limits.LIMITS[F32]
    for depth, kinds in ((limit // 64 // 64 - 1, ["Template"]), (limit // 64 // 64, ["Pointwise", "Extern"])):
        program = program_of(lambda x, y: torch.relu(x) @ y, filled(64, depth), filled(depth, 64))
        assert nodes(program) == kinds
        (decision,) = [d for d in program.decisions if d.topic == "lower"]
        assert decision.choice == ("template" if kinds == ["Template"] else "extern")
        assert f"{limit:,}" in decision.reason and f"{64 * 64 * depth:,}" in decision.reason
    large = [b for b in program.buffers if isinstance(b, ExternBuffer)]
    assert large[0].data.reason == "library"
    strict = operators_of(lambda x, y: x @ y, filled(64, 64), filled(64, 64))
    staxlab.loops.lowering.lower(strict, CPU, Options(strict_native=True))


def test_a_partition_sees_what_lowering_will_do():
    def kinds(*shape: int) -> list[str]:
        graph = operators_of(torch.mm, filled(*shape), filled(*shape)).graph
        return [kind_of(node) for node in graph if node.op == "call_function"]

    assert kinds(8, 8) == ["template"] and kinds(128, 128) == ["library"]


@pytest.mark.parametrize("name", ["mm", "linear", "mv", "dot"])
def test_on_a_gpu_products_are_the_librarys(name):
    """Also where the samples are on the CPU and only the target is a GPU."""
    function, _, shapes = OPERATORS[name]
    program = program_of(function, *[filled(*shape) for shape in shapes], device=GPU)
    assert nodes(program) == ["Extern"]
    assert "GPU" in next(d.reason for d in program.decisions if d.topic == "lower")
    node = next(n for n in operators_of(torch.mm, filled(4, 4), filled(4, 4)).graph if n.op == "call_function")
    there = mock.Mock(wraps=node, val=mock.Mock(spec=node.val, device=torch.device("cuda")))
    assert "GPU" in product_limits.refusal(there)


def test_what_is_around_a_product_goes_into_it():
    def f(x, w, b):
        return F.linear(torch.relu(x) * 2, w.sigmoid(), b)

    program = check(f, filled(6, 10), filled(12, 10), filled(12))
    assert nodes(program) == ["Template"]
    assert "then:" in str(program) and "matrix product over r0 < 10" in str(program)


@pytest.mark.parametrize("dtype", [F32, torch.int32], ids=str)
def test_products_of_nothing(dtype):
    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    a = filled(3, 4, dtype=dtype)
    check(torch.mm, empty(3, 0), empty(0, 4))
    check(torch.mm, empty(0, 3), empty(3, 4))
    check(lambda a, x, y: torch.addmm(a, x, y, beta=3), a, empty(3, 0), empty(0, 4))
    check(torch.bmm, empty(0, 3, 4), empty(0, 4, 5))
    check(torch.bmm, empty(2, 3, 0), empty(2, 0, 5))
    check(torch.mv, empty(3, 0), empty(0))
    check(torch.dot, empty(0), empty(0))
    check(lambda a, x, y: torch.addbmm(a, x, y), a, empty(0, 3, 5), empty(0, 5, 4))


def test_nan_in_an_addend_that_does_not_count():
    x, y = filled(3, 4), filled(4, 5)
    for function, addend in ((torch.addmm, torch.full((5,), math.nan)), (torch.addmm, torch.full((3, 5), math.inf))):
        check(lambda a, b, c, f=function: f(a, b, c, beta=0), addend, x, y)
    check(lambda a, b, c: torch.addmm(a, b, c, alpha=0), filled(5), x * math.nan, y)  # the library's way with a 0
    check(torch.mm, torch.tensor([[math.inf, 1.0], [math.nan, 2.0]]), torch.tensor([[1.0, 0.0], [-0.0, 3.0]]))


@st.composite
def operands(draw):
    """Two matrices of any strides: transposed, with gaps, expanded, at an offset."""

    def matrix(rows: int, columns: int) -> torch.Tensor:
        step, offset, expanded = draw(st.sampled_from([1, 1, 2])), draw(st.integers(0, 2)), draw(st.integers(0, 5))
        if expanded == 0:
            return filled(rows, 1, seed=draw(st.integers(0, 9))).expand(rows, columns)
        if draw(st.booleans()):
            base = filled(columns * step + offset, rows, seed=draw(st.integers(0, 9)))
            return base[offset::step].t()[:, :columns]
        return filled(rows + offset, columns * step, seed=draw(st.integers(0, 9)))[offset:, ::step]

    rows, columns, depth = (draw(st.integers(1, 20)) for _ in range(3))
    return matrix(rows, depth), matrix(depth, columns)


@settings(max_examples=40)
@given(operands())
def test_any_strides(pair):
    program = check(torch.mm, *pair, rtol=1e-4, atol=1e-4)
    assert nodes(program) == ["Template"]


NAMES = frozenset(
    "mm bmm addmm baddbmm addbmm addmv mv dot vdot addr outer matmul __rmatmul__ inner tensordot einsum kron "
    "nn.functional.linear linalg.vecdot linalg.multi_dot linalg.matrix_power".split()
)


@pytest.mark.parametrize(
    "name", ["float32", *(pytest.param(n, marks=pytest.mark.slow) for n in DTYPES if n not in ("float32", "bool"))]
)
def test_pytorchs_own_samples(name):
    """What PyTorch tests these operators with, contiguous and strided, against eager execution."""
    pytest.importorskip("expecttest", reason="PyTorch's operator database needs expecttest (the dev extra)")
    tally: Counter = Counter()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for op in operators_database():
            if op.name in NAMES and DTYPES[name] in op.supported_dtypes("cpu"):
                tally.update(outcome(op, sample) for sample in samples(op, DTYPES[name], 3))
    assert tally["native"] > 0.8 * sum(tally.values()) and not tally["fallback"], tally


# -- Compiled ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F32, F64, torch.bfloat16, torch.int64, torch.int8], ids=str)
def test_compiled_products_run_natively(dtype):
    x, w, b = filled(9, 20, dtype=dtype), filled(33, 20, dtype=dtype, seed=1), filled(33, dtype=dtype, seed=2)
    compiled = staxlab.compile(lambda x, w, b: torch.addmm(b, x, w.t()), strict_native=True)
    torch.testing.assert_close(compiled(x, w, b), torch.addmm(b, x, w.t()), **TOLERANCE.get(dtype, {}))
    compilation = compiled.versions[0].compilation
    assert [kernel.name for kernel in compilation.kernels] == ["fused_matmul_add_0"]
    assert not compilation.artifact.interpreted, "such a region needs no interpreter"


def test_compiled_views_of_one_storage():
    """Operands that overlap, and a product of a tensor with itself."""
    storage = filled(400)
    x, y = storage[3:163].view(8, 20), storage[40:200].view(8, 20).t()
    for function, inputs in ((torch.mm, (x, y)), (lambda x: x @ x.t(), (x,)), (lambda x: x.t() @ x, (x,))):
        compiled = staxlab.compile(function, strict_native=True)
        torch.testing.assert_close(compiled(*inputs), function(*[copy_of(t) for t in inputs]))


def perceptron() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def test_a_perceptron_is_trained_natively():
    """Gradients and ten steps of gradient descent against eager execution; no kernel of either pass is PyTorch's."""
    ours, eagers = perceptron(), perceptron()
    x, target = filled(8, 32), torch.arange(8) % 10

    def loss(model):
        return lambda x, target: F.cross_entropy(model(x), target)

    compiled = staxlab.compile(loss(ours))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.3) for model in (ours, eagers)]
    for _ in range(10):
        for optimizer in optimizers:
            optimizer.zero_grad()
        first, second = compiled(x, target), loss(eagers)(x, target)
        torch.testing.assert_close(first, second)
        first.backward()
        second.backward()
        for p, q in zip(ours.parameters(), eagers.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6)
        for optimizer in optimizers:
            optimizer.step()
    compilation = compiled.versions[0].compilation
    kernels = [*compilation.kernels, *compilation.backward.kernels]
    assert {kernel.language for kernel in kernels} == {"cpp"}
    assert sum("matmul" in kernel.name for kernel in kernels) == 5
    assert not [v for v in compilation.partition.recomputed if "mm" in v.name], "products are not computed again"


def test_many_threads_at_once():
    compiled = staxlab.compile(lambda x, w: torch.relu(x) @ w.t())
    w = filled(40, 24, seed=1)
    inputs = [filled(16, 24, seed=seed) for seed in range(8)]
    with torch.no_grad():
        compiled(inputs[0], w)
        expected = [torch.relu(x) @ w.t() for x in inputs]
    failures: list[BaseException] = []

    def work(k: int) -> None:
        try:
            with torch.no_grad():
                for _ in range(200):
                    torch.testing.assert_close(compiled(inputs[k], w), expected[k], rtol=1e-4, atol=1e-5)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_the_nodes_say_what_they_are():
    program = program_of(lambda x, v: (x @ x.t()) @ v, filled(6, 4), filled(6))
    template, reduction = (b.data for b in program.buffers if isinstance(b, ComputedBuffer))
    assert isinstance(template, Template) and (template.ranges, template.depth) == ((6, 6), 4)
    assert isinstance(reduction, Reduction) and reduction.kind == "sum"
