"""The adjoints of elementwise operators, losses and normalisations against eager execution, and as real kernels."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from staxlab.autodiff.joint import JointGraph, joint_graph
from staxlab.codegen.wrapper import generate_wrapper
from staxlab.loops.ir import ExternBuffer, LoopProgram
from staxlab.loops.lowering import basis
from staxlab.operators.graph import OperatorGraph
from staxlab.options import Options, host_device_spec
from staxlab.runtime.artifact import load
from staxlab.schedule.dependencies import schedule
from tests.codegen.cpp_support import compile_program

from .lowered import CPU, GPU, check, lower, module_of, program_of

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
HALF = (torch.float16, torch.bfloat16)
NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 0.2, 0.8, 6.0, 20.0, 21.0, -20.0, 88.0, -88.0, 1e-6, 0.999]
SPECIAL = [*NUMBERS, 1e-30, -1e-30, 1e30, -1e30, math.inf, -math.inf, math.nan, 0.7]


def native(function: Callable, *inputs: torch.Tensor, **tolerance: float) -> LoopProgram:
    """As ``check``, and nothing may have been left to PyTorch."""
    program = check(function, *inputs, **tolerance)
    assert not any(isinstance(buffer, ExternBuffer) for buffer in program.buffers)
    return program


def pairs(values: list[float], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Each value as upstream gradient with each as forward value, as many as fill whole vectors (in the rest of a row
    eager execution runs scalar code, which treats NaN otherwise)."""
    x = torch.tensor(values, dtype=torch.float64).to(dtype)
    count = len(values) ** 2 // 32 * 32
    return tuple(t.reshape(-1)[-count:].clone() for t in torch.meshgrid(x, x, indexing="ij"))


def samples(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype)


# -- elementwise ------------------------------------------------------------------------------------------------------

# Agree with eager execution to the last bit: nothing but +, -, *, / and comparisons, and no pair its compiler fuses.
EXACT = {
    "sigmoid": aten.sigmoid_backward,
    "threshold": lambda g, x: aten.threshold_backward(g, x, 0),
    "threshold 0.5": lambda g, x: aten.threshold_backward(g, x, 0.5),
    "leaky_relu": lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False),
    "elu of its result": lambda g, x: aten.elu_backward(g, 1.3, 1.1, 0.9, True, x),
    "hardtanh": lambda g, x: aten.hardtanh_backward(g, x, -1, 1),
    "hardswish": aten.hardswish_backward,
    "hardsigmoid": aten.hardsigmoid_backward,
    "softshrink": lambda g, x: aten.softshrink_backward(g, x, 0.5),
    "hardshrink": lambda g, x: aten.hardshrink_backward(g, x, 0.5),
    "logit": lambda g, x: aten.logit_backward(g, x),
    "logit with eps": lambda g, x: aten.logit_backward(g, x, 0.2),
    "log_sigmoid": lambda g, x: aten.log_sigmoid_backward(g, x, g.abs()),
    "prelu": lambda g, x: aten._prelu_kernel_backward(g, x, x[:1]),
    "rrelu": lambda g, x: aten.rrelu_with_noise_backward(g, x, g, 0.1, 0.3, True, False),
    "rrelu in evaluation": lambda g, x: aten.rrelu_with_noise_backward(g, x, g, 0.1, 0.3, False, False),
    "dropout": lambda g, x: aten.native_dropout_backward(g, x > 0, 1.25),
    "mse": lambda g, x: aten.mse_loss_backward(g, x, g, 0),
    "mse, mean": lambda g, x: aten.mse_loss_backward(g[0], x, g, 1),
    "mse, sum": lambda g, x: aten.mse_loss_backward(g[0], x, g, 2),
    "smooth_l1": lambda g, x: aten.smooth_l1_loss_backward(g, x, g, 0, 0.7),
    "smooth_l1, mean": lambda g, x: aten.smooth_l1_loss_backward(g[0], x, g, 1, 0.7),
    "smooth_l1, beta 0": lambda g, x: aten.smooth_l1_loss_backward(g, x, g, 0, 0.0),
    "huber": lambda g, x: aten.huber_loss_backward(g, x, g, 0, 0.7),
    "huber, mean": lambda g, x: aten.huber_loss_backward(g[0], x, g, 1, 0.7),
    "binary_cross_entropy": lambda g, x: aten.binary_cross_entropy_backward(g, x, g, None, 0),
    "binary_cross_entropy, weights": lambda g, x: aten.binary_cross_entropy_backward(g[0], x, g, x, 1),
}
# Call a mathematical library, or have a product and a sum that eager execution's compiler fuses into one rounding.
ROUNDED = {
    "gelu": lambda g, x: aten.gelu_backward(g, x),
    "gelu, tanh": lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    "tanh": aten.tanh_backward,
    "silu": aten.silu_backward,
    "mish": aten.mish_backward,
    "elu": lambda g, x: aten.elu_backward(g, 1.3, 1.1, 0.9, False, x),
    "softplus": lambda g, x: aten.softplus_backward(g, x, 1.3, 20),
    "soft_margin": lambda g, x: aten.soft_margin_loss_backward(g, x, g, 0),
    "soft_margin, mean": lambda g, x: aten.soft_margin_loss_backward(g[0], x, g, 1),
    "glu": lambda g, x: aten.glu_backward(g[: len(x) // 2], x, 0),
}


def same_bits(function: Callable, *inputs: torch.Tensor) -> None:
    native(function, *inputs, rtol=0, atol=0)
    native(lambda *given: [t.signbit() | t.isnan() for t in _tensors(function(*given))], *inputs)  # zeros have signs


def _tensors(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adjoints_without_transcendental_functions_have_eagers_bits(name, dtype):
    same_bits(EXACT[name], samples(dtype, 4096), 3 * samples(dtype, 4096))
    same_bits(EXACT[name], *pairs(SPECIAL, dtype))


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adjoints_with_them_are_a_few_roundings_away(name, dtype):
    """Each factor of the upstream gradient is a sum of terms of at most 1 (or |x|), each within some units of its own
    size, so the bound is absolute where they cancel."""
    eps = torch.finfo(dtype).eps
    g, x = samples(dtype, 4096), 3 * samples(dtype, 4096)
    native(ROUNDED[name], g, x, rtol=16 * eps, atol=16 * eps * float(g.abs().max()))
    g, x = pairs(SPECIAL, dtype)
    finite = {"rtol": 16 * eps, "atol": 16 * eps}
    program = native(ROUNDED[name], *pairs(NUMBERS[:-6], dtype), rtol=16 * eps, atol=16 * eps * 21)
    check(lambda g, x: [(t.isnan(), t.isinf()) for t in _tensors(ROUNDED[name](g, x))], g, x, **finite)
    assert len(program.buffers) == 1


@pytest.mark.parametrize("name", [*EXACT, *ROUNDED])
@pytest.mark.parametrize("dtype", HALF)
def test_adjoints_in_half_precision(name, dtype):
    """Eager execution rounds some of them after every operation, so it is the farther away from the truth; compared in
    float32, which it must be close to as well."""
    function, eps = (EXACT | ROUNDED)[name], torch.finfo(dtype).eps
    g, x = samples(dtype, 4096), samples(dtype, 4096)
    x = x.sigmoid() if "entropy" in name or "logit" in name else x
    try:
        expected = _tensors(function(g, x))
    except RuntimeError as refusal:
        pytest.skip(str(refusal))
    try:
        native(function, g, x, rtol=4 * eps, atol=4 * eps * float(g.abs().max()))
    except AssertionError:
        ours = _tensors(_evaluated(function, g, x))
        for got, eager, truth in zip(ours, expected, _tensors(function(g.float(), x.float())), strict=True):
            assert got.dtype == eager.dtype and got.stride() == eager.stride()
            torch.testing.assert_close(got.float(), truth, rtol=eps, atol=eps * float(g.abs().max()))


def _evaluated(function, *inputs):
    from .lowered import operators_of, run

    operators = operators_of(function, *inputs)
    return run(operators, lower(operators, CPU), *inputs)


@pytest.mark.parametrize("name", [*EXACT, *ROUNDED])
def test_adjoints_of_strided_empty_and_single_arguments(name):
    function = (EXACT | ROUNDED)[name]
    tolerance = {"rtol": 1e-5, "atol": 1e-5}
    rows = "glu" == name or "[0]" in name or "mean" in name or "sum" in name or "weights" in name or "prelu" in name
    if rows:
        native(function, samples(torch.float32, 24)[::2], samples(torch.float32, 36)[::3], **tolerance)
        return
    g, x = samples(torch.float32, 6, 4), samples(torch.float32, 4, 6)
    native(function, g, x.t(), **tolerance)
    native(function, g.t(), x, **tolerance)
    native(function, g[::2, 1:], x.t()[::2, 1:], **tolerance)
    native(function, g[0, 0], x[0, 0], **tolerance)
    native(function, g[:0], x.t()[:0], **tolerance)
    native(lambda t, x: function(t.expand(4, 6), x), g[0, 0], x, **tolerance)


LIMITS = {
    "threshold": lambda g, x, limit: aten.threshold_backward(g, x, limit),
    "hardtanh": lambda g, x, limit: aten.hardtanh_backward(g, x, -limit, limit),
    "softshrink": lambda g, x, limit: aten.softshrink_backward(g, x, limit),
    "hardshrink": lambda g, x, limit: aten.hardshrink_backward(g, x, limit),
    "logit": lambda g, x, limit: aten.logit_backward(g, x, limit / 3) != 0,
    "softplus": lambda g, x, limit: aten.softplus_backward(g, x * 4, 1, limit * 4),
    "hardshrink itself": lambda g, x, limit: F.hardshrink(x, limit),
    "threshold itself": lambda g, x, limit: F.threshold(x, limit, 9.0),
}


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_limits_are_rounded_as_in_eager_execution(name, dtype):
    """The neighbours of a limit, on either side of it before and after it was rounded to the tensor's dtype."""
    for limit in (0.1, 0.3, 0.7, 1.1):
        places = torch.tensor([limit, -limit, limit / 3, 1 - limit / 3], dtype=torch.float64).to(dtype)
        steps = 1 + torch.finfo(dtype).eps * torch.arange(-8, 8).to(dtype)
        x = (places[:, None] * steps).reshape(-1)
        native(lambda g, x, limit=limit: LIMITS[name](g, x, limit), torch.full_like(x, 1.5), x)


def test_thresholds_of_integers_and_of_values_not_rounded_yet():
    integers = torch.arange(-5, 5)
    native(lambda g, x: aten.threshold_backward(g, x, 2), integers.flip(0), integers)
    small = torch.full((16,), 6e-8, dtype=torch.float16)  # half of it is zero in float16, and not in float32
    native(lambda g, x: aten.threshold_backward(g, x * 0.25, 0), torch.ones_like(small), small)
    native(lambda g, x: aten.leaky_relu_backward(g, x * 0.25, 0.5, False), torch.ones_like(small), small)
    native(lambda x: F.threshold(x * 0.25, 0.0, 9.0), small)
    native(lambda x: F.hardshrink(x + 3e-4, 1.0), torch.ones_like(small))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_both_halves_of_a_gated_unit(dim):
    shape = [3, 2, 5]
    shape[dim] *= 2
    x = samples(torch.float32, *shape)
    shape[dim] //= 2
    native(lambda g, x: aten.glu_backward(g, x, dim), samples(torch.float32, *shape), x, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_negative_log_likelihood(dtype, reduction):
    """Class numbers with and without dimensions, weights, an ignored class, positions (``nll_loss2d``)."""
    bound = 0 if dtype not in HALF else 3 * torch.finfo(dtype).eps
    cases = [
        ((5, 7), aten.nll_loss_forward, aten.nll_loss_backward),
        ((7,), aten.nll_loss_forward, aten.nll_loss_backward),
    ]
    if dtype != torch.float16:
        cases.append(((2, 7, 3, 4), aten.nll_loss2d_forward, aten.nll_loss2d_backward))
    for shape, forward, backward in cases:
        x, weight = samples(dtype, *shape), samples(dtype, 7).abs()
        target = torch.randint(0, 7, shape[:1] + shape[2:] if len(shape) > 1 else ())
        ignored = int(target.reshape(-1)[0]) if target.ndim else -100
        for w in (None, weight):
            loss, total = forward(x, target, w, reduction, ignored)
            g = samples(dtype, *loss.shape)

            def function(g, x, t, s, *w, backward=backward, ignored=ignored):
                return backward(g, x, t, *(w or [None]), reduction, ignored, s)

            given = [g, x, target, total] + ([] if w is None else [w])
            native(function, *given, rtol=bound, atol=bound)


# -- softmax and normalisations ---------------------------------------------------------------------------------------

TOLERANCE = {
    torch.float32: {"rtol": 2e-5, "atol": 2e-5},
    torch.float64: {"rtol": 1e-12, "atol": 1e-12},
    torch.float16: {"rtol": 4e-3, "atol": 4e-3},
    torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_softmax(name, dtype):
    forward, backward = getattr(aten, name), getattr(aten, f"{name}_backward_data")
    bound = TOLERANCE[dtype]
    for dim in (0, 1, -1):
        g, y = samples(dtype, 6, 5, 4), forward(samples(dtype, 6, 5, 4), dim, False)
        native(lambda g, y: backward(g, y, dim, dtype), g, y, **bound)  # noqa: B023
        native(lambda g, y: backward(g.transpose(0, 2), y.transpose(0, 2), dim, dtype), g, y, **bound)  # noqa: B023
    y = forward(samples(dtype, 5, 4), 1, False)
    native(lambda t, y: backward(t.expand(5, 4), y, 1, dtype), samples(dtype, 1), y, **bound)
    native(lambda g, y: backward(g, y, 0, dtype), samples(dtype), forward(samples(dtype), 0, False), **bound)
    native(lambda g, y: backward(g, y, 1, dtype), samples(dtype, 3, 0), samples(dtype, 3, 0), **bound)
    native(lambda g, y: backward(g, y, 0, dtype), samples(dtype, 1, 3), torch.ones(1, 3, dtype=dtype), **bound)
    if dtype == torch.float32:
        rows = torch.tensor([[math.inf, 1.0], [math.nan, 1.0], [0.0, -0.0], [-math.inf, math.inf]])
        native(lambda g, y: backward(g, y, 1, dtype), rows, torch.tensor([[0.5, 0.5]] * 4), **bound)
        native(lambda g, y: backward(g, y, 1, dtype), torch.ones(4, 2), rows, **bound)


def masks(weights: bool) -> list[list[bool]]:
    every = [[True] * 3, [True, False, False], [False, True, False], [False, False, True], [False, True, True]]
    return every if weights else [[True, False, False]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weights", [False, True])
def test_layer_norm(dtype, weights):
    bound = TOLERANCE[dtype]
    for shape in ([4], [5, 4], [6, 5, 4]):
        x, g = samples(dtype, 6, 5, 4), samples(dtype, 6, 5, 4)
        parameters = [samples(dtype, *shape), samples(dtype, *shape)] if weights else []
        _, mean, scale = aten.native_layer_norm(x, shape, *(parameters or [None, None]), 1e-5)
        for mask in masks(weights):

            def function(g, x, mean, scale, *parameters, shape=shape, mask=mask):
                return aten.native_layer_norm_backward(g, x, shape, mean, scale, *(parameters or [None, None]), mask)

            native(function, g, x, mean, scale, *parameters, **bound)
            native(function, g[:1, :1, :1].expand(6, 5, 4), x, mean, scale, *parameters, **bound)


def test_layer_norm_of_rows_far_from_zero_is_as_exact_as_the_statistics_it_is_given():
    """Eager execution's form of it cancels, ours does not."""
    g, x, weight = torch.randn(8, 64), torch.randn(8, 64) + 1e4, torch.randn(64)
    _, *statistics = aten.native_layer_norm(x, [64], weight, None, 1e-5)

    def function(g, x, mean, scale, weight):
        return aten.native_layer_norm_backward(g, x, [64], mean, scale, weight, None, [True, False, False])[0]

    mean, scale = (t.double() for t in statistics)
    h, u = (x.double() - mean) * scale, g.double() * weight.double()
    truth = scale * (u - u.mean(1, keepdim=True) - h * (u * h).mean(1, keepdim=True))
    ours, eagers = _evaluated(function, g, x, *statistics, weight), function(g, x, *statistics, weight)
    assert (ours - truth).abs().max() < 1e-5 and (eagers - truth).abs().max() > 1e-4


def test_layer_norm_of_mixed_dtypes_and_of_nothing():
    x, g, weight = samples(torch.bfloat16, 6, 4), samples(torch.bfloat16, 6, 4), torch.randn(4)

    def function(g, x, mean, scale, weight):
        return aten.native_layer_norm_backward(g, x, [4], mean, scale, weight, weight, [True] * 3)

    _, *statistics = aten.native_layer_norm(x, [4], weight, weight, 1e-5)
    native(function, g, x, *statistics, weight, **TOLERANCE[torch.bfloat16])
    empty = torch.randn(0, 4)
    _, *statistics = aten.native_layer_norm(empty, [4], weight, weight, 1e-5)
    native(function, empty, empty, *statistics, weight)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(dtype, groups):
    for shape in ((3, 6, 5), (3, 6, 2, 4)):
        x, g, weight = samples(dtype, *shape), samples(dtype, *shape), samples(dtype, 6)
        sizes = (3, 6, x[0, 0].numel(), groups)
        _, *statistics = aten.native_group_norm(x, weight, weight, *sizes, 1e-5)
        for mask in masks(True):

            def function(g, x, m, r, w, sizes=sizes, mask=mask):
                return aten.native_group_norm_backward(g, x, m, r, w, *sizes, mask)

            native(function, g, x, *statistics, weight, **TOLERANCE[dtype])
        native(
            lambda g, x, m, r, sizes=sizes: aten.native_group_norm_backward(g, x, m, r, None, *sizes, masks(False)[0]),
            g, x, *statistics, **TOLERANCE[dtype],
        )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(dtype, training):
    for shape, layout in (((3, 6), None), ((3, 6, 5), None), ((3, 6, 4, 2), None), ((3, 6, 4, 2), torch.channels_last)):
        x, g = (samples(dtype, *shape).contiguous(memory_format=layout or torch.contiguous_format) for _ in range(2))
        weight, center, spread = samples(dtype, 6), samples(dtype, 6), samples(dtype, 6).abs() + 0.5
        _, *statistics = torch.native_batch_norm(x, weight, weight, center.clone(), spread.clone(), True, 0.1, 1e-5)
        for mask in masks(True):
            native(
                lambda g, x, w, c, s, m, r, mask=mask: aten.native_batch_norm_backward(
                    g, x, w, c, s, m, r, training, 1e-5, mask
                ),
                g, x, weight, center, spread, *statistics, **TOLERANCE[dtype],
            )  # fmt: skip
        if training:
            native(
                lambda g, x, m, r: aten.native_batch_norm_backward(
                    g, x, None, None, None, m, r, True, 1e-5, [True, False, False]
                ),
                g, x, *statistics, **TOLERANCE[dtype],
            )  # fmt: skip


def test_root_mean_square_norm():
    """PyTorch has this adjoint as an operator of its own on GPUs only; autograd says what it must be."""
    x, g, weight = torch.randn(6, 8, requires_grad=True), torch.randn(6, 8), torch.randn(8, requires_grad=True)
    expected = torch.autograd.grad(F.rms_norm(x, (8,), weight, 1e-5), (x, weight), g)
    scale = (x.detach().square().mean(1, keepdim=True) + 1e-5).rsqrt()

    def function(g, x, scale, weight):
        return aten._fused_rms_norm_backward(g, x, [8], scale, weight, [True, True])

    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_fused_rms_norm_backward", lambda *_: expected, "CPU", allow_override=True)
        native(function, g, x.detach(), scale, weight.detach(), rtol=1e-5, atol=1e-5)


# -- joint graphs -----------------------------------------------------------------------------------------------------


def joint(function: Callable, *inputs: torch.Tensor) -> JointGraph:
    return joint_graph(module_of(function, len(inputs)), list(inputs), basis=basis())


def program_of_joint(graph: JointGraph, device=CPU) -> LoopProgram:
    return lower(OperatorGraph(graph.module, graph.inputs), device)


def test_example_5_1_has_one_pointwise_kernel_on_the_way_back():
    x, w = torch.randn(32, 64), torch.randn(64, 64, requires_grad=True)
    graph = joint(lambda x, w: F.gelu(x @ w).sum(), x, w)
    names = [node.target._opname for node in graph.backward_nodes if node.op == "call_function"]
    assert names == ["expand", "gelu_backward", "t", "mm"]
    (adjoint,) = [n for n in graph.graph if "gelu_backward" in str(n.target)]
    assert [n.target for n in adjoint.inputs][1] == aten.mm.default
    for device in (CPU, GPU):
        program = program_of_joint(graph, device)
        (loop,) = [b for b in program.buffers if not isinstance(b, ExternBuffer) and b.layout.shape == (32, 64)]
        reads = {access.buffer: str(access.index) for access in _reads(program, loop)}
        assert sorted(reads.values()) == ["0", "64*i0 + i1"] and "tangents_1" in reads


def _reads(program: LoopProgram, buffer):
    from staxlab.loops.body import record

    dtypes = {b.name: b.layout.dtype for b in (*program.inputs, *program.buffers)}
    return record(buffer, dtypes).reads()


# -- kernels ----------------------------------------------------------------------------------------------------------


def kernels(function: Callable, *inputs: torch.Tensor, **tolerance: float) -> int:
    """Compile with the C++ compiler, run, compare with eager execution; the number of loops, fused or not."""
    program = program_of(function, *inputs, device=host_device_spec())
    compiled, _, scheduled = compile_program(program)
    results = compiled.call(list(inputs))
    expected = [t for t in _tensors(function(*inputs)) if t is not None]
    got = [t for t in results if t is not None]
    torch.testing.assert_close(got, expected, equal_nan=True, **tolerance)
    return sum(len(node.members) or 1 for node in scheduled.nodes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_elementwise_adjoint_in_one_kernel(dtype):
    table = {n: f for n, f in (EXACT | ROUNDED).items() if dtype == torch.float32 or "entropy" not in n}
    g, x = samples(dtype, 1000), samples(dtype, 1000)

    def together(g, x):
        return [t for function in table.values() for t in _tensors(function(g, x)) if t.shape == x.shape]

    kernels(together, g, x, **TOLERANCE[dtype])
    assert kernels(lambda t, x: aten.gelu_backward(t.expand(1000), x), samples(dtype), x, **TOLERANCE[dtype]) == 1


def test_special_values_through_kernels():
    g, x = pairs(SPECIAL, torch.float32)
    for function in EXACT.values():
        if isinstance(function(g, x), torch.Tensor):
            kernels(function, g, x, rtol=0, atol=0)


def test_the_sums_of_a_batch_norms_adjoint_are_the_gradients_of_its_parameters_too():
    x, w, m = torch.randn(4, 3, 5, 5), torch.rand(3), torch.randn(3)
    function = lambda g, x, w, m, r: aten.native_batch_norm_backward(  # noqa: E731
        g, x, w, None, None, m, r, True, 1e-5, [True] * 3
    )
    assert kernels(function, torch.randn(4, 3, 5, 5), x, w, m, torch.rand(3)) == 3


def test_loops_of_the_adjoints_over_rows():
    """A softmax: a sum and a pass. A layer norm: two sums and a pass; one more sum for each parameter."""
    g, x, w = torch.randn(33, 96), torch.randn(33, 96), torch.randn(96)
    bound = {"rtol": 1e-4, "atol": 1e-4}
    assert kernels(lambda g, y: aten._softmax_backward_data(g, y, 1, g.dtype), g, x.softmax(1), **bound) == 2
    _, *statistics = aten.native_layer_norm(x, [96], w, w, 1e-5)
    for mask, count in (([True, False, False], 3), ([False, True, True], 2), ([True] * 3, 5)):
        assert count == kernels(
            lambda g, x, m, r, w, mask=mask: aten.native_layer_norm_backward(g, x, [96], m, r, w, w, mask),
            g, x, *statistics, w, **bound,
        )  # fmt: skip


# -- on a GPU, interpreted --------------------------------------------------------------------------------------------


def interpreted(function: Callable, *inputs: torch.Tensor, **tolerance: float) -> int:
    """Generate Triton kernels, run them through Triton's interpreter, compare with eager execution."""
    pytest.importorskip("triton")
    from staxlab.codegen.triton import generate
    from staxlab.codegen.triton.interpreter import interpret

    scheduled = schedule(program_of(function, *inputs, device=GPU), GPU, Options())
    generated = generate(scheduled, Options(), GPU)
    launchers = {k.name: lambda *arguments, kernel=k: interpret(kernel, arguments) for k in generated}
    got = load(generate_wrapper(scheduled, generated, Options()), launchers).call(list(inputs))
    expected = [t for t in _tensors(function(*inputs)) if t is not None]
    torch.testing.assert_close([t for t in got if t is not None], expected, equal_nan=True, **tolerance)
    return len(generated)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adjoints_in_triton(dtype):
    table = {n: f for n, f in (EXACT | ROUNDED).items() if dtype == torch.float32 or "entropy" not in n}
    g, x = samples(dtype, 96), samples(dtype, 96)

    def together(g, x):
        return [t for function in table.values() for t in _tensors(function(g, x)) if t.shape == x.shape]

    interpreted(together, g, x, **TOLERANCE[dtype])
    if dtype == torch.float32:
        for function in EXACT.values():
            interpreted(function, *pairs(SPECIAL, dtype), rtol=0, atol=0)


def test_adjoints_over_rows_in_triton():
    g, x, w = torch.randn(5, 24), torch.randn(5, 24), torch.randn(24)
    bound = {"rtol": 1e-5, "atol": 1e-5}
    assert interpreted(lambda g, y: aten._softmax_backward_data(g, y, 1, g.dtype), g, x.softmax(1), **bound) == 1
    _, *statistics = aten.native_layer_norm(x, [24], w, w, 1e-5)
    assert 2 == interpreted(
        lambda g, x, m, r, w: aten.native_layer_norm_backward(g, x, [24], m, r, w, w, [True] * 3),
        g, x, *statistics, w, **bound,
    )  # fmt: skip
