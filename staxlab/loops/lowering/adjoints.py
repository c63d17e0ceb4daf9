"""The adjoints of elementwise operators and of losses (Section 5.2): what PyTorch's engine runs on the way back.

The adjoint of ``y = f(x)`` takes the upstream gradient ``g = dL/dy`` to ``g * f'(x)`` (a product with the transposed
Jacobian, which is diagonal here), so it is elementwise as ``f`` is. It reads ``x`` where the derivative is said in
terms of the argument, and ``y`` where it is said in terms of the result: ``tanh' = 1 - y*y``. Which of the two decides
what the forward pass must keep (Section 5.4).

Formulas are eager execution's own, in its order of operations. Where its vector code and its scalar code treat NaN
differently (``hardtanh_backward`` drops the gradient in vectors and lets it through in the rest of a row), the rules do
what the vector code does.
"""

from __future__ import annotations

import math

import torch

from ...operators.decompositions import MEAN
from ..layout import sliced
from ..ops import compute_dtype
from .call import Call
from .registry import Decline, lowering
from .values import Number, TensorValue

# -- activations ------------------------------------------------------------------------------------------------------


def adjoint(*names: str):
    """Decorator for ``function(ops, constant, g, a, *parameters)``: the adjoint's element from the upstream gradient's
    element ``g`` and the kept forward value's ``a``; ``constant(v)`` makes a number of their dtype."""

    def register(function):
        def rule(call: Call, gradient: TensorValue, kept: TensorValue, *parameters, **named) -> TensorValue:
            return _elementwise(call, function, gradient, kept, *parameters, **named)

        lowering(*names)(rule)
        return function

    return register


def _elementwise(call: Call, function, gradient: TensorValue, kept: TensorValue, *parameters, **named) -> TensorValue:
    dtype = call.meta.dtype
    if not dtype.is_floating_point:
        raise Decline(f"the derivative of a function of {dtype}")
    # Most derivatives jump somewhere, so the kept value must be the one eager execution compares.
    (kept,) = call.rounded(kept)

    def element(ops, g, a):
        return function(ops, lambda v: ops.constant(v, dtype), g, a, *parameters, **named)

    return call.pointwise(element, gradient, kept, operand_dtype=dtype)


def _logistic(ops, constant, a):
    return ops.truediv(constant(1.0), ops.add(constant(1.0), ops.exp(ops.neg(a))))


@adjoint("gelu_backward")
def gelu_backward(ops, constant, g, a, approximate="none"):
    """``g * (Phi(a) + a * phi(a))`` with the normal distribution and its density (Listing 5.3)."""
    half, one = constant(0.5), constant(1.0)
    if approximate == "tanh":
        slope, cubic = math.sqrt(2 / math.pi), 0.044715
        square = ops.mul(a, a)
        inner = ops.mul(constant(slope), ops.add(a, ops.mul(constant(cubic), ops.mul(square, a))))
        t = ops.tanh(inner)
        left = ops.mul(half, ops.add(one, t))
        rate = ops.mul(constant(slope), ops.add(one, ops.mul(ops.mul(constant(3.0), constant(cubic)), square)))
        right = ops.mul(ops.mul(ops.mul(half, a), ops.sub(one, ops.mul(t, t))), rate)
        return ops.mul(g, ops.add(left, right))
    distribution = ops.mul(half, ops.add(one, ops.erf(ops.mul(a, constant(math.sqrt(0.5))))))
    density = ops.mul(constant(1 / math.sqrt(2 * math.pi)), ops.exp(ops.mul(ops.mul(a, a), constant(-0.5))))
    return ops.mul(g, ops.add(distribution, ops.mul(a, density)))


@adjoint("tanh_backward")
def tanh_backward(ops, constant, g, y):
    return ops.mul(g, ops.sub(constant(1.0), ops.mul(y, y)))


@adjoint("sigmoid_backward")
def sigmoid_backward(ops, constant, g, y):
    return ops.mul(ops.mul(g, ops.sub(constant(1.0), y)), y)


@adjoint("silu_backward")
def silu_backward(ops, constant, g, a):
    one, s = constant(1.0), _logistic(ops, constant, a)
    return ops.mul(ops.mul(g, s), ops.add(one, ops.mul(a, ops.sub(one, s))))


@adjoint("mish_backward")
def mish_backward(ops, constant, g, a):
    s, t = _logistic(ops, constant, a), ops.tanh(ops.log1p(ops.exp(a)))
    return ops.mul(g, ops.add(t, ops.mul(ops.mul(a, s), ops.sub(constant(1.0), ops.mul(t, t)))))


@adjoint("leaky_relu_backward")
def leaky_relu_backward(ops, constant, g, a, slope=0.01, self_is_result=False):
    return ops.mul(g, ops.where(ops.gt(a, constant(0.0)), constant(1.0), constant(slope)))


def _elu_backward(ops, constant, g, a, alpha, scale, input_scale, is_result):
    below = ops.mul(g, constant(input_scale))
    factor = ops.mul(constant(alpha), constant(scale))
    if is_result:
        below = ops.mul(below, ops.add(a, factor))
    else:
        below = ops.mul(ops.mul(below, factor), ops.exp(ops.mul(a, constant(input_scale))))
    return ops.where(ops.gt(a, constant(0.0)), ops.mul(g, constant(scale)), below)


@lowering("elu_backward")
def lower_elu_backward(call: Call, gradient: TensorValue, alpha, scale, input_scale, is_result, kept: TensorValue):
    return _elementwise(call, _elu_backward, gradient, kept, alpha, scale, input_scale, is_result)


@adjoint("hardtanh_backward")
def hardtanh_backward(ops, constant, g, a, low=-1.0, high=1.0):
    inside = ops.logical_and(ops.gt(a, constant(low)), ops.lt(a, constant(high)))
    return ops.where(inside, g, constant(0.0))


@adjoint("hardswish_backward")
def hardswish_backward(ops, constant, g, a):
    three = constant(3.0)
    middle = ops.mul(g, ops.add(ops.truediv(a, three), constant(0.5)))
    return ops.where(ops.le(a, constant(-3.0)), constant(0.0), ops.where(ops.ge(a, three), g, middle))


@adjoint("hardsigmoid_backward")
def hardsigmoid_backward(ops, constant, g, a):
    inside = ops.logical_and(ops.gt(a, constant(-3.0)), ops.lt(a, constant(3.0)))
    return ops.where(inside, ops.mul(g, constant(_SIXTH)), constant(0.0))


_SIXTH = torch.tensor(1.0 / 6.0, dtype=torch.float32).item()  # eager execution has it in float32, whatever the dtype


@adjoint("softplus_backward")
def softplus_backward(ops, constant, g, a, beta=1.0, threshold=20.0):
    scaled = ops.mul(a, constant(beta))
    z = ops.exp(scaled)
    smooth = ops.truediv(ops.mul(g, z), ops.add(z, constant(1.0)))
    return ops.where(ops.gt(scaled, constant(threshold)), g, smooth)


@lowering("softshrink_backward hardshrink_backward")
def lower_shrink_backward(call: Call, gradient: TensorValue, kept: TensorValue, limit: Number = 0.5) -> TensorValue:
    def shrink_backward(ops, constant, g, a, limit):
        outside = ops.logical_or(ops.lt(a, constant(-limit)), ops.gt(a, constant(limit)))
        return ops.where(outside, g, constant(0.0))

    return _elementwise(call, shrink_backward, gradient, kept, _as_stored(limit, call.meta.dtype))


@lowering("logit_backward")
def lower_logit_backward(call: Call, gradient: TensorValue, kept: TensorValue, eps: float | None = None):
    """Outside of [eps, 1 - eps] the forward pass clamped; without an ``eps`` there is no derivative there."""
    outside = math.nan if eps is None or eps < 0 else 0.0

    def logit_backward(ops, constant, g, a, low, high):
        inside = ops.logical_and(ops.ge(a, constant(low)), ops.le(a, constant(high)))
        return ops.where(inside, ops.truediv(g, ops.mul(a, ops.sub(constant(1.0), a))), constant(outside))

    dtype = compute_dtype(call.meta.dtype) if call.lowering.device.is_gpu else call.meta.dtype
    low = _as_stored(max(eps or 0.0, 0.0), dtype)
    return _elementwise(call, logit_backward, gradient, kept, low, _as_stored(1.0 - low, dtype))


def _as_stored(number: Number, dtype: torch.dtype) -> float:
    """A limit that eager execution rounds to the tensor's dtype before it compares: in half precision this shows."""
    return torch.tensor(number, dtype=dtype).item()


@lowering("log_sigmoid_backward")
def lower_log_sigmoid_backward(call: Call, gradient: TensorValue, x: TensorValue, decay: TensorValue) -> TensorValue:
    """``decay`` is ``exp(-|x|)`` from the forward pass; a GPU keeps nothing and computes it again."""
    dtype, kept = call.meta.dtype, [decay] if decay.shape == x.shape else []

    def function(ops, g, a, *rest):
        zero, one = ops.constant(0.0, dtype), ops.constant(1.0, dtype)
        z = rest[0] if rest else ops.exp(ops.neg(ops.abs(a)))
        negative = ops.lt(a, zero)
        greatest = ops.where(negative, one, zero)
        sign = ops.where(negative, one, ops.neg(one))
        return ops.mul(ops.sub(greatest, ops.mul(sign, ops.truediv(z, ops.add(one, z)))), g)

    return call.pointwise(function, gradient, *call.rounded(x), *kept, operand_dtype=dtype)


@lowering("threshold_backward")
def lower_threshold_backward(call: Call, gradient: TensorValue, kept: TensorValue, threshold: Number) -> TensorValue:
    """Of ``relu`` too, from its result as from its argument. A NaN is not below the threshold."""
    dtype = call.meta.dtype
    limit = threshold if dtype.is_floating_point else int(threshold)

    def function(ops, g, a):
        return ops.where(ops.le(a, ops.constant(limit, dtype)), ops.constant(0, dtype), g)

    return call.pointwise(function, gradient, *call.rounded(kept), operand_dtype=dtype)


@lowering("glu_backward")
def lower_glu_backward(call: Call, gradient: TensorValue, x: TensorValue, dim: int) -> TensorValue:
    """Of ``a * sigmoid(b)``, the halves of ``x``: ``s*g`` in the first half, ``(1 - s)*s*a*g`` in the second."""
    dim, dtype, shape = dim % x.ndim, call.meta.dtype, call.meta.shape
    half = shape[dim] // 2
    first, second = (x.seen(sliced(x.shape, dim, k * half, half, 1)) for k in (0, 1))

    def read(ops, index, value):
        return call.loader(value, value.shape, dtype)(ops, index)

    def compute(ops, index):
        ops = ops.tagged(call.origins)
        one, zero = ops.constant(1.0, dtype), ops.constant(0, torch.int64)
        place = (*index[:dim], index[dim] % half, *index[dim + 1 :])
        g, b = read(ops, place, gradient), read(ops, place, second)
        s = ops.sigmoid(b)
        in_first = ops.eq(ops.index_value(index[dim] // half, torch.int64), zero)
        later = ops.mul(ops.mul(ops.mul(ops.sub(one, s), s), read(ops, place, first)), g)
        return ops.where(in_first, ops.mul(s, g), later)

    if call.meta.numel == 0:
        return call.full(0.0, shape, dtype)
    return call.computed(compute, shape, dtype, (gradient, x))


@lowering("_prelu_kernel_backward")
def lower_prelu_backward(call: Call, gradient: TensorValue, x: TensorValue, weight: TensorValue):
    (x,) = call.rounded(x)

    def positive(ops, a):
        return ops.gt(a, ops.constant(0.0, ops.dtype_of(a)))

    for_x = call.pointwise(lambda ops, g, a, w: ops.where(positive(ops, a), g, ops.mul(w, g)), gradient, x, weight)
    for_weight = call.pointwise(
        lambda ops, g, a: ops.where(positive(ops, a), ops.constant(0.0, ops.dtype_of(a)), ops.mul(a, g)),
        gradient, x, dtype=call.val[1].dtype, shape=call.val[1].shape,
    )  # fmt: skip
    return for_x, for_weight


@lowering("rrelu_with_noise_backward")
def lower_rrelu_backward(call: Call, gradient, kept, noise, lower, upper, training: bool, self_is_result: bool):
    if training and upper - lower > 1e-6:
        return call.pointwise(lambda ops, g, n: ops.mul(g, n), gradient, noise)
    return _elementwise(call, leaky_relu_backward, gradient, kept, (lower + upper) / 2)


@lowering("native_dropout_backward _masked_scale")
def lower_dropout_backward(call: Call, gradient: TensorValue, mask: TensorValue, scale: float) -> TensorValue:
    dtype = call.meta.dtype

    def function(ops, g, m):
        return ops.mul(ops.mul(g, m), ops.constant(scale, dtype))

    return call.pointwise(function, gradient, mask, operand_dtype=dtype)


# -- losses -----------------------------------------------------------------------------------------------------------


def _per_element(reduction: int, count: int) -> float:
    """What a mean divides every element's share by, as a factor."""
    return 1.0 / count if reduction == MEAN and count else 1.0


def _of_difference(call: Call, function, gradient: TensorValue, x: TensorValue, y: TensorValue) -> TensorValue:
    """The adjoint of a loss that depends on ``x - y``: ``function(ops, constant, g, difference)``."""
    dtype = call.meta.dtype

    def element(ops, g, a, b):
        return function(ops, lambda v: ops.constant(v, dtype), g, ops.sub(a, b))

    return call.pointwise(element, gradient, x, y, operand_dtype=dtype)


@lowering("mse_loss_backward")
def lower_mse_loss_backward(call: Call, gradient: TensorValue, x: TensorValue, y: TensorValue, reduction: int):
    norm = 2.0 / x.numel if reduction == MEAN and x.numel else 2.0

    def function(ops, constant, g, difference):
        return ops.mul(ops.mul(constant(norm), difference), g)

    return _of_difference(call, function, gradient, x, y)


@lowering("smooth_l1_loss_backward")
def lower_smooth_l1_loss_backward(call: Call, gradient, x: TensorValue, y: TensorValue, reduction: int, beta: float):
    norm = _per_element(reduction, x.numel)

    def function(ops, constant, g, difference):
        side = ops.where(ops.gt(difference, constant(0.0)), constant(1.0), constant(-1.0))
        far = ops.ge(ops.abs(difference), constant(beta))
        slope = ops.where(far, side, ops.truediv(difference, constant(beta)))
        return ops.mul(ops.mul(constant(norm), slope), g)

    return _of_difference(call, function, gradient, x, y)


@lowering("huber_loss_backward")
def lower_huber_loss_backward(call: Call, gradient, x: TensorValue, y: TensorValue, reduction: int, delta: float):
    norm = _per_element(reduction, x.numel)

    def function(ops, constant, g, difference):
        near = ops.mul(ops.mul(constant(norm), difference), g)
        above = ops.mul(ops.mul(constant(norm), g), constant(delta))
        below = ops.neg(above)
        beyond = ops.where(ops.ge(difference, constant(delta)), above, near)
        return ops.where(ops.le(difference, constant(-delta)), below, beyond)

    return _of_difference(call, function, gradient, x, y)


@lowering("binary_cross_entropy_backward")
def lower_binary_cross_entropy_backward(call: Call, gradient, x, y, weight=None, reduction: int = MEAN):
    """``g * (x - y) / (x - x*x)``, whose denominator is kept away from 0."""
    dtype, count = call.meta.dtype, x.numel
    least = torch.tensor(1e-12, dtype=torch.float32).item()  # in float32 whatever the dtype, as eager has it

    def function(ops, g, a, b, *weights):
        one = ops.constant(1.0, dtype)
        denominator = ops.mul(ops.sub(one, a), a)
        bound = ops.constant(least, dtype)
        denominator = ops.where(ops.lt(denominator, bound), bound, denominator)
        value = ops.truediv(ops.mul(g, ops.sub(a, b)), denominator)
        for w in weights:
            value = ops.mul(value, w)
        return ops.truediv(value, ops.constant(float(count), dtype)) if reduction == MEAN else value

    operands = [gradient, x, y] + ([] if weight is None else [weight])
    return call.pointwise(function, *operands, operand_dtype=dtype)


@lowering("soft_margin_loss_backward")
def lower_soft_margin_loss_backward(call: Call, gradient: TensorValue, x: TensorValue, y: TensorValue, reduction: int):
    dtype, norm = call.meta.dtype, _per_element(reduction, x.numel)

    def function(ops, g, a, b):
        z = ops.exp(ops.mul(ops.neg(b), a))
        value = ops.mul(ops.mul(b, z), ops.constant(-norm, dtype))
        return ops.mul(ops.truediv(value, ops.add(z, ops.constant(1.0, dtype))), g)

    return call.pointwise(function, gradient, x, y, operand_dtype=dtype)


@lowering("nll_loss_backward nll_loss2d_backward", kind="indexing")
def lower_nll_loss_backward(
    call: Call, gradient, x, target, weight, reduction: int, ignored: int, total_weight: TensorValue
) -> TensorValue:
    """``-w[t] * g`` at the target's class ``t`` of each row and zero elsewhere; a mean divides by the weights' sum. The
    forward pass has checked that every ``t`` is a class."""
    dtype, shape = call.meta.dtype, call.meta.shape
    if target.dtype not in (torch.int64, torch.uint8):
        raise Decline(f"class numbers of {target.dtype}")
    if call.meta.numel == 0:
        return call.full(0.0, shape, dtype)
    classes_at = 0 if len(shape) == 1 else 1
    places = [k for k in range(len(shape)) if k != classes_at]

    def compute(ops, index):
        ops = ops.tagged(call.origins)
        position = tuple(index[k] for k in places)[: target.ndim]
        number = target.load(ops, position)
        if ops.dtype_of(number) != torch.int64:
            number = ops.to_dtype(number, torch.int64)
        counts = ops.ne(number, ops.constant(ignored, torch.int64))
        here = ops.eq(number, ops.index_value(index[classes_at], torch.int64))
        g = call.loader(gradient, target.shape, dtype)(ops, position)
        if reduction == MEAN:
            g = ops.truediv(g, call.loader(total_weight, (), dtype)(ops, ()))
        if weight is None:
            value = ops.neg(g)
        else:
            value = ops.mul(ops.neg(call.loader(weight, weight.shape, dtype)(ops, (index[classes_at],))), g)
        return ops.where(ops.logical_and(counts, here), value, ops.constant(0.0, dtype))

    operands = [gradient, target, total_weight] + ([] if weight is None else [weight])
    return call.computed(compute, shape, dtype, operands)
