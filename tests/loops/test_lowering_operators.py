"""Lowering rules against eager execution: special values, types, shapes, and the overloads nothing else reaches."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from staxlab.loops.ir import ExternBuffer, Reduction
from staxlab.loops.lowering import RULES, register_lowering
from staxlab.loops.lowering.registry import LoweringRule

from .lowered import CPU, check, lower, operators_of, program_of, run

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
SPECIAL = torch.tensor(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        3.0,
        -3.0,
        1e-30,
        -1e-30,
        1e30,
        math.inf,
        -math.inf,
        math.nan,
        7.25,
    ]
)
# Eager execution's vectorized fmod gives NaN for 1e30 and 1e-30, its scalar one does not.
MODERATE = SPECIAL[(SPECIAL.abs() < 1e29) | ~SPECIAL.isfinite()]
INTEGERS = {
    torch.int64: torch.tensor([0, 1, -1, 7, -7, 63, 64, -64, 2**62, -(2**63)]),
    torch.int32: torch.tensor([0, 1, -1, 7, -7, 31, 32, -32, 2**30, -(2**31)], dtype=torch.int32),
    torch.uint8: torch.tensor([0, 1, 2, 7, 8, 200, 255], dtype=torch.uint8),
}


def native(function, *inputs, **tolerance):
    """As ``check``, and nothing may have been left to PyTorch."""
    program = check(function, *inputs, **tolerance)
    externs = [str(b.data.operator) for b in program.buffers if isinstance(b, ExternBuffer)]
    assert not externs, externs
    return program


UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc lgamma "
    "sigmoid sqrt rsqrt reciprocal neg abs sign sgn relu floor ceil trunc round frac square rad2deg deg2rad angle sinc "
    "logit nan_to_num logical_not isnan isinf isposinf isneginf isfinite signbit positive"
).split()


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unary_operators_on_special_values(name, dtype):
    native(getattr(torch, name), SPECIAL.to(dtype))


BINARY = (
    "add sub mul div maximum minimum fmax fmin atan2 hypot copysign xlogy logaddexp logaddexp2 eq ne lt le gt ge "
    "remainder fmod floor_divide pow logical_and logical_or logical_xor heaviside nextafter"
).split()


@pytest.mark.parametrize("name", BINARY)
def test_binary_operators_on_pairs_of_special_values(name):
    native(getattr(torch, name), MODERATE[:, None], MODERATE[None, :])


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_division_rounded(mode):
    native(lambda x, y: torch.div(x, y, rounding_mode=mode), MODERATE[:, None], MODERATE[None, :])
    native(lambda x: torch.div(x, 0.1, rounding_mode=mode), torch.tensor([1.0, -1.0, 0.3, -0.3]))
    for divisor in (1, -1, 3, -3, 200):
        for dtype in (torch.int64, torch.int32):
            native(lambda x, d=divisor: torch.div(x, d, rounding_mode=mode), INTEGERS[dtype][:-1])


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, -1, -2, 0.5, -0.5, 2.5, -3, math.inf, 0.0])
def test_powers(exponent):
    native(lambda x: x**exponent, SPECIAL)
    if isinstance(exponent, int) and exponent >= 0:
        for values in INTEGERS.values():
            native(lambda x: x**exponent, values)


def test_powers_with_a_number_as_base():
    for base in (1, 2.0, 0.5, -2.0):
        native(lambda x, b=base: torch.pow(b, x), SPECIAL)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_arithmetic_wraps_and_divides_as_python(dtype):
    x = INTEGERS[dtype]
    for other in (3, 5):
        native(lambda x, k=other: (x + k, x * k, x - k, k - x, x % k, torch.fmod(x, k), x // k), x)
    if dtype != torch.uint8:
        native(lambda x: (x % -3, torch.fmod(x, -3), -x, x.abs(), x % -1, torch.fmod(x, -1)), x)
    native(lambda x: (x & 6, x | 6, x ^ 6, ~x), x)
    native(lambda x, y: (x & y, x | y, x ^ y), x, x.flip(0))
    native(lambda x: (x + 0.5, x / 2, x.sqrt(), x > 1.5, x == 7), x)


def test_numbers_beyond_an_integer_dtype_wrap_as_in_eager_mode():
    byte, signed = torch.tensor([0, 1, 200, 255], dtype=torch.uint8), torch.tensor([-128, -1, 0, 127], dtype=torch.int8)
    native(lambda x: (x + 300, x * -1, x > -1, x == 300, x < 300, -1 - x, x & -2, x.clamp(min=-1)), byte)
    native(lambda x: (x // 300, x % 300, x % -3, x // -1, torch.full_like(x, -1), x.masked_fill(x > 3, -1)), byte)
    native(lambda x: (x + 200, x > 200, x // 255, x % 255), signed)
    native(lambda x: (x * 2**33, x > 2**40, x == 2**32 - 1), INTEGERS[torch.int32])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_functions_that_jump_see_rounded_values(dtype):
    x, y = torch.randn(4, 32).to(dtype), torch.randn(32).to(dtype)
    exact = {"rtol": 0, "atol": 0}
    native(lambda x, y: ((x * y) == (x * y).amax(1, keepdim=True)).any(1), x, y, **exact)
    native(lambda x, y: ((x * y) > 0.1, (x * y).argmax(1), (x * y).to(torch.int64), (x * y).floor()), x, y, **exact)
    native(lambda x, y: ((x * y).sign(), (x * y).bool(), torch.isinf(x * y), (x * y) % 1), x, y, **exact)
    large, small = torch.tensor([300.0]).to(dtype), torch.tensor([1e-4]).to(dtype)
    native(
        lambda x, y: (torch.isinf(x * x), torch.isfinite(x * x), (y * y).bool(), ~(y * y > 0)), large, small, **exact
    )
    native(lambda x: (x == 0.1, x >= 0.1, x != 0.3), torch.tensor([0.1, 0.3, 0.5]).to(dtype), **exact)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_shifts_by_any_amount(dtype):
    amounts = torch.tensor([0, 1, 3, 7, 8, 31, 32, 63], dtype=dtype)
    native(lambda x, n: (x << n, x >> n), INTEGERS[dtype][:, None], amounts[None])
    native(lambda x: (x << 2, x >> 2, torch.bitwise_left_shift(x, 1), torch.bitwise_right_shift(3, x)), INTEGERS[dtype])


def test_bool_arithmetic():
    x, y = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    native(lambda x, y: (x + y, x * y, x & y, x | y, x ^ y, ~x), x, y)
    native(lambda x, y: (x == y, x != y, x < y, x <= y, x > y, x >= y), x, y)
    native(lambda x, y: (torch.maximum(x, y), torch.minimum(x, y), torch.heaviside(x, y)), x, y)
    native(lambda x, y: (x + 1, x * 2.5, x.sum(), x.any(), x.all(), x.amax(), x.amin(), x.prod()), x, y)


def test_casts_truncate_wrap_and_round():
    x = torch.tensor([1.9, -1.9, 0.0, -0.0, 0.3, 255.0, 1.0009765])
    for dtype in (torch.int64, torch.int32, torch.bool, torch.float64, torch.float16, torch.bfloat16):
        native(lambda x, d=dtype: x.to(d), x)
        native(lambda x, d=dtype: x.to(d).to(torch.float32) * 3, x)
    native(
        lambda x: (x.to(torch.uint8), x.to(torch.int8), x.float(), x.bool()), torch.tensor([0, 1, -1, 255, 256, 70000])
    )


def test_scalars_take_the_precision_eager_gives_them():
    native(lambda x: x * 0.1 + 1e-9, torch.randn(50), rtol=0, atol=0)
    native(lambda x: x * 0.1 + 1e-17, torch.randn(50, dtype=torch.float64), rtol=0, atol=0)
    native(lambda x: x + torch.tensor(0.1, dtype=torch.float64), torch.randn(50), rtol=0, atol=0)
    native(lambda x: x + torch.tensor(2**40), torch.arange(5, dtype=torch.int32), rtol=0, atol=0)


def test_clamping():
    nan = math.nan
    for low, high in ((-1, 1), (None, 0.5), (0.5, None), (2, -2), (nan, 1), (0, nan)):
        native(lambda x, a=low, b=high: x.clamp(a, b), SPECIAL)
    native(lambda x: (x.clamp(min=1), x.clamp(max=3), x.clamp(1, 3.5)), torch.arange(6))
    native(lambda x, y: (x.clamp(min=y), x.clamp(max=y), torch.clamp(x, y, y + 1)), SPECIAL, SPECIAL.flip(0))
    native(lambda x: (aten.clamp_min.default(x, 0.5), aten.clamp_max.default(x, 0.5)), SPECIAL)


ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 2.0),
    "relu6": F.relu6,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "softplus": lambda x: F.softplus(x, 0.5, 3),
    "mish": F.mish,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "tanhshrink": F.tanhshrink,
    "logsigmoid": F.logsigmoid,
    "threshold": lambda x: F.threshold(x, 0.5, -7),
    "prelu": lambda x: F.prelu(x, torch.tensor([0.3], dtype=x.dtype)),
    "softsign": F.softsign,
    "glu": lambda x: F.glu(x[:4]),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_on_special_values(name):
    # Eager execution's vectorized gelu(inf) is NaN, its scalar one is inf.
    native(ACTIVATIONS[name], SPECIAL[~SPECIAL.isposinf()] if name.startswith("gelu") else SPECIAL)
    native(ACTIVATIONS[name], torch.randn(4, 6).to(torch.bfloat16), rtol=2e-2, atol=1e-2)


def test_choosing_and_mixing():
    x, y, z = torch.randn(3, 4), torch.randn(4), torch.randn(3, 1)
    native(lambda x, y, z: (torch.where(x > 0, y, z), torch.where(x > 0, x, 0.0), torch.where(x > 0, 1, y)), x, y, z)
    native(lambda x, y, z: (x.masked_fill(x > 0, 7), x.masked_fill(y > 0, torch.tensor(2.0))), x, y, z)
    native(lambda x, y, z: (torch.lerp(x, y, 0.3), torch.lerp(x, y, 0.8), torch.lerp(x, y, z)), x, y, z)
    native(lambda x, y, z: (torch.addcmul(x, y, z, value=0.5), torch.addcdiv(x, y, z, value=-2)), x, y, z)
    native(lambda x, y, z: (torch.add(x, y, alpha=2), torch.sub(x, z, alpha=0.5), torch.rsub(x, y, alpha=3)), x, y, z)


# -- overloads that no public function reaches on this path -----------------------------------------------------------

DIRECT = {
    "bitwise scalars": lambda x: (
        aten.bitwise_and.Scalar(x, 6), aten.bitwise_or.Scalar(x, 6), aten.bitwise_xor.Scalar(x, 6),
        aten.bitwise_and.Scalar_Tensor(6, x), aten.bitwise_or.Scalar_Tensor(6, x), aten.bitwise_xor.Scalar_Tensor(6, x),
    ),
    "shift scalars": lambda x: (
        aten.bitwise_left_shift.Tensor_Scalar(x, 2), aten.bitwise_right_shift.Tensor_Scalar(x, 2),
        aten.bitwise_left_shift.Scalar_Tensor(3, x & 3), aten.__lshift__.Scalar(x, 1), aten.__rshift__.Scalar(x, 1),
        aten.__lshift__.Tensor(x, x & 3), aten.__rshift__.Tensor(x, x & 3),
    ),
    "division scalars": lambda x: (
        aten.div.Scalar(x, 3), aten.div.Scalar_mode(x, 3, rounding_mode="floor"), aten.floor_divide.Scalar(x, 3),
        aten.fmod.Scalar(x, 3), aten.remainder.Scalar(x, 3),
    ),
    "remainder of a number": lambda x: aten.remainder.Scalar_Tensor(7.5, x + 0.5),
    "copysign": lambda x: aten.copysign.Scalar(x, -2.0),
    "xlogy": lambda x: (aten.xlogy.Scalar_Other(x, 2.0), aten.xlogy.Scalar_Self(2.0, x + 1)),
    "xlog1py": lambda x: (aten.special_xlog1py.other_scalar(x, 2.0), aten.special_xlog1py.self_scalar(2.0, x.abs())),
    "norms": lambda x: (
        aten.norm.ScalarOpt_dim(x + 0.5, 2, [0], False),
        aten.norm.ScalarOpt_dim_dtype(x + 0.5, 1, [0], True, dtype=torch.float64),
        aten.norm.Scalar(x + 0.5, 3), aten.norm.ScalarOpt_dtype(x + 0.5, 2, dtype=torch.float64),
    ),
    "counts": lambda x: (aten.count_nonzero.dim_IntList(x, [0]), aten.all.dims(x, [0]), aten.any.dims(x, [0])),
    "fills": lambda x: (aten.fill.Scalar(x, 3), aten.fill.Tensor(x, torch.tensor(3)), aten.zero.default(x)),
    "copies": lambda x: (aten.lift_fresh_copy.default(x), aten._conj_physical.default(x), aten.clone.default(x)),
    "sums and products": lambda x: (
        aten.add.Scalar(x, 2), aten.sub.Scalar(x, 2), aten.mul.Scalar(x, 2), aten.rsub.Scalar(x, 2),
    ),
    "strided copies": lambda x: (aten.view_copy.default(x, [2, 5]), aten.expand_copy.default(x, [3, 10])),
}  # fmt: skip


@pytest.mark.parametrize("name", DIRECT)
def test_overloads_called_directly(name):
    def f(x):
        try:
            return DIRECT[name](x)
        except NotImplementedError:  # this version of PyTorch has the name and no kernel
            return x + 0

    check(f, INTEGERS[torch.int64] % 1000)


def test_batch_norm_forms():
    x, w, b, m, v = torch.randn(4, 3, 5), torch.rand(3), torch.randn(3), torch.randn(3), torch.rand(3)
    close = {"rtol": 1e-5, "atol": 1e-5}
    native(lambda *a: F.batch_norm(a[0], a[3], a[4], a[1], a[2]), x, w, b, m, v, **close)
    native(lambda *a: aten._native_batch_norm_legit_no_training(*a, 0.1, 1e-5), x, w, b, m, v, **close)
    native(lambda x, w, b: aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5), x, w, b, **close)
    functional = aten._native_batch_norm_legit_functional.default
    native(lambda *a: functional(*a, True, 0.1, 1e-5), x, w, b, m, v, **close)


@pytest.mark.parametrize("value", ["empty", "0-dim", "one row of none"])
def test_empty_and_0_dim(value):
    x = {"empty": torch.randn(0), "0-dim": torch.tensor(2.5), "one row of none": torch.randn(3, 0)}[value]
    native(lambda x: (x + 1, x.sum(), x.prod(), x.mean(), x * x, x > 0, x.any(), x.all(), x.exp().sum(-1)), x)
    native(lambda x: (x.reshape(-1), x.clone(), torch.cat([x.reshape(-1), x.reshape(-1)]), x.to(torch.int32)), x)
    native(lambda x: (F.softmax(x, -1), F.log_softmax(x, -1), x.t() if x.dim() == 2 else x), x)


# -- reductions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.uint8, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("keepdim", [False, True])
def test_reductions_over_one_some_and_all_dimensions(dtype, keepdim):
    x = torch.randint(0, 3, (2, 3, 4)).to(dtype) if dtype != torch.float32 else torch.randn(2, 3, 4)
    for dims in (0, -1, (0, 2), (0, 1, 2)):
        native(lambda x, d=dims: (x.sum(d, keepdim), torch.amax(x, d, keepdim), torch.amin(x, d, keepdim)), x)
        native(lambda x, d=dims: (torch.any(x, d, keepdim), torch.all(x, d, keepdim)), x)
        if dtype.is_floating_point:
            native(lambda x, d=dims: (x.mean(d, keepdim), torch.logsumexp(x, d, keepdim)), x, rtol=2e-2, atol=1e-2)
    for dim in (0, 1, -1):
        native(lambda x, d=dim: x.prod(d, keepdim), x)
        if dtype != torch.bool:
            native(lambda x, d=dim: (x.argmax(d, keepdim), x.argmin(d, keepdim)), x)
        native(lambda x, d=dim: (tuple(x.max(d, keepdim)), tuple(x.min(d, keepdim))), x)
    native(lambda x: (x.sum(), x.max(), x.min(), x.prod(), x.sum((0, 1), dtype=torch.float64)), x)


def test_extremes_let_nan_through_and_take_the_first():
    x = torch.tensor(
        [[1.0, 3.0, 3.0, 2.0], [1.0, math.nan, 3.0, math.nan], [-math.inf] * 4, [math.inf, 0.0, math.inf, 1.0]]
    )
    native(lambda x: (x.amax(1), x.argmax(1), x.argmin(1), tuple(x.max(1)), tuple(x.min(1)), x.argmax()), x)
    native(lambda x: (x.logsumexp(1), x.softmax(1), x.log_softmax(1), x.nansum(1)), x)


def test_variances():
    x = torch.randn(4, 6) * 3 + 100
    for correction in (0, 1, 2, 6, 7):
        native(lambda x, c=correction: (x.var(1, correction=c), x.std(correction=c)), x, rtol=1e-4, atol=1e-4)
    native(lambda x: (*torch.var_mean(x, 1), *torch.std_mean(x, (0, 1), keepdim=True)), x, rtol=1e-4, atol=1e-4)
    native(lambda x: x[:, :1].var(1), x)


@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, math.inf, -math.inf])
def test_norms(order):
    native(lambda x: (torch.linalg.vector_norm(x, order, 1), torch.linalg.vector_norm(x, order)), torch.randn(3, 5))


def test_a_sum_along_a_dimension_of_one_or_none_is_no_reduction():
    program = native(lambda x: (x.sum(1), x[:, :0].sum(1), x.argmax(1)), torch.randn(5, 1))
    assert not any(isinstance(b.data, Reduction) for b in program.buffers)


def test_normalizations():
    x = torch.randn(2, 4, 6)
    native(lambda x, w, b: F.layer_norm(x, (6,), w, b), x, torch.randn(6), torch.randn(6), rtol=1e-4, atol=1e-5)
    native(lambda x: aten.native_layer_norm(x, [4, 6], None, None, 1e-5), x, rtol=1e-4, atol=1e-5)
    native(lambda x, w, b: F.group_norm(x, 2, w, b), x, torch.randn(4), torch.randn(4), rtol=1e-4, atol=1e-5)
    native(lambda x: F.rms_norm(x, (6,)), x, rtol=1e-4, atol=1e-5)
    native(lambda x: F.normalize(x, dim=1), x)
    native(lambda x: (F.softmax(x, 1), F.log_softmax(x, 0), F.softmin(x, -1)), x)
    native(lambda x: F.softmax(x, -1), x.to(torch.bfloat16), rtol=1e-2, atol=1e-3)


def test_losses_are_decomposed_into_native_operators():
    x, y = torch.rand(4, 5), torch.rand(4, 5)
    for reduction in ("mean", "sum", "none"):
        for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss):
            native(lambda x, y, f=loss: f(x, y, reduction=reduction), x, y)  # noqa: B023
        program = check(lambda x, y: F.binary_cross_entropy(x, y, reduction=reduction), x, y)  # noqa: B023
        externs = [str(b.data.operator) for b in program.buffers if isinstance(b, ExternBuffer)]
        assert externs == ["aten._assert_async.msg"] * 2  # both must be probabilities
        native(lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction=reduction), x, y)  # noqa: B023
        native(lambda x, y: F.kl_div(x.log(), y, reduction=reduction), x, y)  # noqa: B023
    native(lambda x: F.cross_entropy(x, torch.tensor([0, 4, 2, 1])), x)
    native(lambda x: F.nll_loss(x, torch.tensor([0, 4, -100, 1])), x)


# -- indexing ---------------------------------------------------------------------------------------------------------


def test_indexing():
    x, i, j = torch.randn(4, 5, 6), torch.tensor([0, 3, -1, 2]), torch.tensor([[1, -2, 0, 4]])
    native(lambda x, i, j: (x[i], x[:, i], x[i, j], x[i, :, j], x[..., i], x[i, None, i], x[i[:2, None], j]), x, i, j)
    native(lambda x, i, j: (x[i.to(torch.int32)], x.take(i * 3), x[1, i]), x, i, j)
    k = torch.tensor([[[0, 1, 3]], [[2, 2, 0]]])
    native(lambda x, k: (x.gather(0, k), x.gather(2, k), torch.take_along_dim(x[:2, :1], k, 2)), x, k)
    native(lambda x: (x.index_select(1, torch.tensor([4, 0])), F.embedding(torch.tensor([[0, 3]]), x[0, :4])), x)


@pytest.mark.parametrize("position", [4, -5])
def test_a_subscript_out_of_range_raises(position):
    index = torch.tensor([0, 1])
    for function in (lambda x, i: x[i], lambda x, i: x.gather(0, i), lambda x, i: F.embedding(i, x[:, None])):
        operators = operators_of(function, torch.randn(4), index)
        with pytest.raises(IndexError):
            run(operators, lower(operators, CPU), torch.randn(4), torch.tensor([0, position]))


def test_negative_subscripts_are_refused_where_eager_refuses_them():
    for function in (
        lambda x, i: x.gather(0, i),
        lambda x, i: F.embedding(i, x[:, None]),
        lambda x, i: x.index_select(0, i),
    ):
        operators = operators_of(function, torch.randn(4), torch.tensor([0, 1]))
        with pytest.raises(IndexError):
            run(operators, lower(operators, CPU), torch.randn(4), torch.tensor([0, -1]))


# -- joining and factories --------------------------------------------------------------------------------------------


def test_joining():
    x, y = torch.randn(3, 4), torch.randn(3, 2)
    native(lambda x, y: (torch.cat([x, y], 1), torch.cat([x, x.to(torch.float64)]), torch.stack([x, x + 1], 1)), x, y)
    native(lambda x, y: (torch.cat([torch.zeros(0), x]), torch.cat([x, y[:, :0]], 1), torch.hstack([x, y])), x, y)
    native(lambda x, y: (F.pad(x, (1, 2)), F.pad(x, (-1, 1, 2, -1), value=3), F.pad(x > 0, (1, 0), value=True)), x, y)
    native(lambda x, y: (x.flip(0), x.flip((0, 1)), x.roll(1), x.roll((1, -2), (0, 1)), x.repeat(2, 1, 3)), x, y)
    native(lambda x, y: (x.tril(), x.triu(1), x.tril(-1), (x > 0).triu(), x.rot90(), x.tile(2)), x, y)
    native(lambda x, y: (F.pad(x[None], (1, 1), mode="reflect"), F.pad(x[None], (2, 1), mode="replicate")), x, y)


def test_a_concatenation_fuses_with_what_reads_it():
    program = native(lambda x, y: torch.relu(torch.cat([x, y], 1)).sum(1), torch.randn(3, 4), torch.randn(3, 2))
    assert len(program.buffers) == 1


def test_factories():
    x = torch.randn(3)
    native(lambda x: (torch.arange(5), torch.arange(2, 11, 3), torch.arange(0.0, 1.0, 0.1), torch.arange(5, 0, -2)), x)
    native(lambda x: (torch.linspace(0, 1, 7), torch.linspace(2, -1, 4), torch.linspace(3, 4, 1)), x)
    native(
        lambda x: (
            torch.eye(3),
            torch.eye(2, 4, dtype=torch.int64),
            torch.full((2,), 3),
            torch.ones(2),
            torch.zeros(()),
        ),
        x,
    )
    native(
        lambda x: (torch.full_like(x, 2), torch.ones_like(x), x.new_full((2,), 4.5), x.new_zeros(2), x.new_ones(1)), x
    )
    native(lambda x: x * torch.tensor([1.0, 2.0, 3.0]) + torch.tensor(4), x)


def test_a_rule_that_fails_is_a_visible_fallback(monkeypatch):
    def broken(call, x):
        raise ZeroDivisionError("oh")

    monkeypatch.setitem(RULES, aten.erfc.default, LoweringRule(broken, "pointwise"))
    with pytest.raises(ZeroDivisionError):
        program_of(torch.erfc, torch.randn(3))
    monkeypatch.delenv("STAXLAB_LOWER_DEBUG")
    program = check(torch.erfc, torch.randn(3))
    assert program.buffers[0].data.reason == "fallback" and any("oh" in d.reason for d in program.decisions)


def test_a_rule_for_an_operator_of_ones_own():
    with torch.library._scoped_library("staxlab_test", "FRAGMENT") as library:
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
        overload = torch.ops.staxlab_test.double.default
        extern = program_of(lambda x: overload(x) + 1, torch.randn(3))
        assert extern.buffers[0].data.reason == "fallback"
        register_lowering(overload, lambda call, x: call.pointwise(lambda ops, a: ops.add(a, a), x))
        try:
            assert len(native(lambda x: overload(x) + 1, torch.randn(3)).buffers) == 1
        finally:
            del RULES[overload]
    with pytest.raises(TypeError, match="overload"):
        register_lowering(torch.relu, lambda call, x: x)
