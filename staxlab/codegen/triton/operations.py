"""Every scalar operation as a line of Triton (Sections 6.7 and 9.2): one table row each.

A row holds a template per class of operand: ``real`` (float32 and float64), ``whole`` (integers) and ``boolean``.
``{a}``, ``{b}``, ``{c}`` stand for the operands and ``{T}`` for their Triton dtype. Where a row needs more than one
expression it calls a small ``@triton.jit`` function of :data:`HELPERS`, whose text is put above the kernel, so that a
generated kernel can be read, copied and run with nothing but Triton.

Three places where the obvious spelling would be wrong:

* ``a / b`` compiles to an approximate division; PyTorch divides with correct rounding, so ``tl.div_rn`` is used,
  and likewise ``tl.sqrt_rn`` and libdevice's ``exp`` instead of the fast ``tl.exp``.
* ``//`` and ``%`` of Triton truncate toward zero, as C's do; PyTorch's floor division and remainder round down.
* ``tl.max`` and ``tl.maximum`` drop NaN unless told otherwise; PyTorch lets NaN win.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ...errors import CodegenError
from ...provenance import CodeWriter, Origins


@dataclass(frozen=True)
class Row:
    """The templates of one operation; None where the operation does not exist for that class of operand."""

    real: str | None = None
    whole: str | None = None
    boolean: str | None = None
    real64: str | None = None  # where float64 needs its own spelling

    def template(self, dtype: torch.dtype) -> str | None:
        if dtype == torch.bool:
            return self.boolean
        if not dtype.is_floating_point:
            return self.whole
        return self.real64 if dtype == torch.float64 and self.real64 else self.real


def _library(name: str, arity: int = 1) -> Row:
    return Row(real=f"libdevice.{name}({', '.join('{' + letter + '}' for letter in 'ab'[:arity])})")


def _infix(sign: str, boolean: str | None = None) -> Row:
    text = f"{{a}} {sign} {{b}}"
    return Row(text, text, boolean)


def _order(sign: str, boolean: str) -> Row:
    # An int1 compares as a signed bit (True < False), so the order of bools is spelled out in logic.
    return _infix(sign, boolean)


ROWS: dict[str, Row] = {
    "neg": Row("-{a}", "-{a}"),
    "abs": Row("tl.abs({a})", "tl.abs({a})", "{a}"),
    "sign": Row(
        "({a} > 0).to({T}) - ({a} < 0).to({T})", "({a} > 0).to({T}) - ({a} < 0).to({T})", "{a}"
    ),
    "relu": Row("tl.maximum(0, {a}, tl.PropagateNan.ALL)", "tl.where({a} > 0, {a}, 0)", "{a}"),
    "square": Row("{a} * {a}", "{a} * {a}", "{a}"),
    "reciprocal": _library("rcp_rn"),
    "sqrt": Row("tl.sqrt_rn({a})", real64="tl.sqrt({a})"),
    "rsqrt": _library("rsqrt"),
    "floor": Row("tl.floor({a})", "{a}"),
    "ceil": Row("tl.ceil({a})", "{a}"),
    "trunc": Row("libdevice.trunc({a})", "{a}"),
    "round": Row("libdevice.nearbyint({a})", "{a}"),
    "exp": _library("exp"),
    "exp2": _library("exp2"),
    "expm1": _library("expm1"),
    "log": _library("log"),
    "log2": _library("log2"),
    "log10": _library("log10"),
    "log1p": _library("log1p"),
    "sin": _library("sin"),
    "cos": _library("cos"),
    "tan": _library("tan"),
    "asin": _library("asin"),
    "acos": _library("acos"),
    "atan": _library("atan"),
    "sinh": _library("sinh"),
    "cosh": _library("cosh"),
    "tanh": _library("tanh"),
    "asinh": _library("asinh"),
    "acosh": _library("acosh"),
    "atanh": _library("atanh"),
    "erf": _library("erf"),
    "erfc": _library("erfc"),
    "lgamma": _library("lgamma"),
    "sigmoid": Row("libdevice.rcp_rn(1.0 + libdevice.exp(-{a}))"),
    "logical_not": Row(boolean="~{a}"),
    "bitwise_not": Row(None, "~{a}", "~{a}"),
    "isnan": Row("{a} != {a}", "{a} != {a}", "{a} != {a}"),
    "isinf": Row('tl.abs({a}) == float("inf")', "{a} != {a}", "{a} != {a}"),
    "add": _infix("+", "{a} | {b}"),
    "sub": _infix("-"),
    "mul": _infix("*", "{a} & {b}"),
    "truediv": Row("tl.div_rn({a}, {b})", real64="{a} / {b}"),
    "floordiv": Row("floor_divide_real({a}, {b})", "floor_divide({a}, {b})", real64="floor_divide_real64({a}, {b})"),
    "truncdiv": Row(None, "{a} // {b}"),
    "remainder": Row("remainder_real({a}, {b})", "remainder({a}, {b})"),
    "fmod": Row("libdevice.fmod({a}, {b})", "{a} % {b}"),
    "pow": Row("libdevice.pow({a}, {b})", "integer_power({a}, {b})"),
    "maximum": Row("tl.maximum({a}, {b}, tl.PropagateNan.ALL)", "tl.maximum({a}, {b})", "{a} | {b}"),
    "minimum": Row("tl.minimum({a}, {b}, tl.PropagateNan.ALL)", "tl.minimum({a}, {b})", "{a} & {b}"),
    "fmax": Row("tl.maximum({a}, {b})", "tl.maximum({a}, {b})", "{a} | {b}"),
    "fmin": Row("tl.minimum({a}, {b})", "tl.minimum({a}, {b})", "{a} & {b}"),
    "atan2": _library("atan2", 2),
    "hypot": _library("hypot", 2),
    "copysign": _library("copysign", 2),
    "nextafter": _library("nextafter", 2),
    "eq": _infix("==", "{a} == {b}"),
    "ne": _infix("!=", "{a} != {b}"),
    "lt": _order("<", "~{a} & {b}"),
    "le": _order("<=", "~{a} | {b}"),
    "gt": _order(">", "{a} & ~{b}"),
    "ge": _order(">=", "{a} | ~{b}"),
    "logical_and": Row(boolean="{a} & {b}"),
    "logical_or": Row(boolean="{a} | {b}"),
    "logical_xor": Row(boolean="{a} ^ {b}"),
    "bitwise_and": Row(None, "{a} & {b}", "{a} & {b}"),
    "bitwise_or": Row(None, "{a} | {b}", "{a} | {b}"),
    "bitwise_xor": Row(None, "{a} ^ {b}", "{a} ^ {b}"),
    "bitwise_left_shift": Row(None, "shift_left({a}, {b}, {bits})"),
    "bitwise_right_shift": Row(None, "shift_right({a}, {b}, {bits})"),
    "where": Row(*["tl.where({a}, {b}, {c})"] * 3),
}  # fmt: skip


HELPERS: dict[str, str] = {
    "floor_divide": '''
@triton.jit
def floor_divide(a, b):
    """Integer division rounding down; ``//`` rounds toward zero."""
    quotient = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), quotient - 1, quotient)
''',
    "remainder": '''
@triton.jit
def remainder(a, b):
    """The remainder with the sign of the divisor; ``%`` has the sign of the dividend."""
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
''',
    "remainder_real": '''
@triton.jit
def remainder_real(a, b):
    """The remainder with the sign of the divisor, for floating point."""
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
''',
    "floor_divide_real": '''
@triton.jit
def floor_divide_real(a, b):
    """floor(a / b) computed from the exact remainder, so that a rounded quotient cannot spoil it."""
    rest = libdevice.fmod(a, b)
    quotient = tl.div_rn(a - rest, b)
    quotient = tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1.0, quotient)
    whole = tl.floor(quotient)
    whole = tl.where(quotient - whole > 0.5, whole + 1.0, whole)
    true_quotient = tl.div_rn(a, b)
    whole = tl.where(quotient != 0, whole, libdevice.copysign(0.0 * whole, true_quotient))
    return tl.where(b == 0, true_quotient, whole)
''',
    "floor_divide_real64": '''
@triton.jit
def floor_divide_real64(a, b):
    """floor(a / b) computed from the exact remainder, so that a rounded quotient cannot spoil it."""
    rest = libdevice.fmod(a, b)
    quotient = (a - rest) / b
    quotient = tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1.0, quotient)
    whole = tl.floor(quotient)
    whole = tl.where(quotient - whole > 0.5, whole + 1.0, whole)
    true_quotient = a / b
    whole = tl.where(quotient != 0, whole, libdevice.copysign(0.0 * whole, true_quotient))
    return tl.where(b == 0, true_quotient, whole)
''',
    "integer_power": '''
@triton.jit
def integer_power(base, exponent):
    """base ** exponent by repeated squaring; negative exponents give 0 except for bases 1 and -1."""
    negative = exponent < 0
    odd = (exponent & 1) != 0
    by_inverse = tl.where(base == 1, 1, tl.where(base + 1 == 0, tl.where(odd, -1, 1), 0)).to(base.dtype)
    power = tl.where(negative, by_inverse, 1).to(base.dtype)
    remaining = tl.where(negative, 0, exponent)
    square = base
    for _ in tl.static_range(63):
        power = tl.where((remaining & 1) != 0, power * square, power)
        square = square * square
        remaining = remaining >> 1
    return power
''',
    "shift_left": '''
@triton.jit
def shift_left(a, amount, bits: tl.constexpr):
    """a << amount; shifting by the width or more leaves nothing."""
    valid = (amount >= 0) & (amount < bits)
    return tl.where(valid, a << tl.where(valid, amount, 0), 0)
''',
    "shift_right": '''
@triton.jit
def shift_right(a, amount, bits: tl.constexpr):
    """a >> amount, keeping the sign; shifting by the width or more leaves only the sign."""
    valid = (amount >= 0) & (amount < bits)
    return tl.where(valid, a >> tl.where(valid, amount, 0), -((a < 0).to(a.dtype)))
''',
    "merge_product": '''
@triton.jit
def merge_product(a, b):
    """How two partial products merge."""
    return a * b
''',
    "merge_sum": '''
@triton.jit
def merge_sum(a, b):
    """How two partial sums merge."""
    return a + b
''',
    "merge_greater": '''
@triton.jit
def merge_greater(a, b):
    """How two partial maxima merge: NaN wins."""
    return tl.maximum(a, b, tl.PropagateNan.ALL)
''',
    "merge_smaller": '''
@triton.jit
def merge_smaller(a, b):
    """How two partial minima merge: NaN wins."""
    return tl.minimum(a, b, tl.PropagateNan.ALL)
''',
    "merge_argmax": '''
@triton.jit
def merge_argmax(value_a, index_a, value_b, index_b):
    """How two (value, position) pairs merge: NaN is the greatest, and of equal values the first position wins."""
    nan_a = value_a != value_a
    nan_b = value_b != value_b
    better = (value_a > value_b) | (nan_a & (value_b == value_b))
    tied = (value_a == value_b) | (nan_a & nan_b)
    first = better | (tied & (index_a < index_b))
    return tl.where(first, value_a, value_b), tl.where(first, index_a, index_b)
''',
    "merge_argmin": '''
@triton.jit
def merge_argmin(value_a, index_a, value_b, index_b):
    """How two (value, position) pairs merge: NaN is the smallest, and of equal values the first position wins."""
    nan_a = value_a != value_a
    nan_b = value_b != value_b
    better = (value_a < value_b) | (nan_a & (value_b == value_b))
    tied = (value_a == value_b) | (nan_a & nan_b)
    first = better | (tied & (index_a < index_b))
    return tl.where(first, value_a, value_b), tl.where(first, index_a, index_b)
''',
    "later_greater": '''
@triton.jit
def later_greater(a, b):
    """The greater of what came and what comes: of equal values the later one, and NaN once it came."""
    return tl.where((b != b) | ((b >= a) & (a == a)), b, a)
''',
    "later_smaller": '''
@triton.jit
def later_smaller(a, b):
    """The smaller of what came and what comes: of equal values the later one, and NaN once it came."""
    return tl.where((b != b) | ((b <= a) & (a == a)), b, a)
''',
    "later_argmax": '''
@triton.jit
def later_argmax(value_a, index_a, value_b, index_b):
    """The greater of two (value, position) pairs, the later of equal ones; a NaN beats all before it."""
    taken = (value_b != value_b) | ((value_b >= value_a) & (value_a == value_a))
    return tl.where(taken, value_b, value_a), tl.where(taken, index_b, index_a)
''',
    "later_argmin": '''
@triton.jit
def later_argmin(value_a, index_a, value_b, index_b):
    """The smaller of two (value, position) pairs, the later of equal ones; a NaN beats all before it."""
    taken = (value_b != value_b) | ((value_b <= value_a) & (value_a == value_a))
    return tl.where(taken, value_b, value_a), tl.where(taken, index_b, index_a)
''',
    "merge_exponential_into": '''
@triton.jit
def merge_exponential_into(greatest, total, value):
    """Take a value into (greatest, sum of exp(value - greatest)), the pair that a softmax needs of its row."""
    new = tl.maximum(greatest, value, tl.PropagateNan.ALL)
    before = tl.where(greatest == new, total, total * libdevice.exp(greatest - new))
    return new, before + tl.where(value == float("-inf"), 0.0, libdevice.exp(value - new))
''',
    "merge_deviation_into": '''
@triton.jit
def merge_deviation_into(mean, squares, value, share):
    """Take a value into (mean, sum of (value - mean)**2); ``share`` is 1 over how many values there are with it."""
    difference = value - mean
    return mean + difference * share, squares + difference * (difference * (1.0 - share))
''',
    "merge_exponentials": '''
@triton.jit
def merge_exponentials(a, b):
    """log(exp(a) + exp(b)) without overflow; of equal infinities, that infinity."""
    least = tl.minimum(a, b, tl.PropagateNan.ALL)
    greatest = tl.maximum(a, b, tl.PropagateNan.ALL)
    total = libdevice.log1p(libdevice.exp(least - greatest)) + greatest
    return tl.where((a == b) & (a - a != 0), a, total)
''',
}


TRITON_DTYPES: dict[torch.dtype, str] = {
    torch.bool: "tl.int1",
    torch.uint8: "tl.uint8",
    torch.int8: "tl.int8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.uint16: "tl.uint16",
    torch.uint32: "tl.uint32",
    torch.uint64: "tl.uint64",
    torch.float8_e4m3fn: "tl.float8e4nv",  # only operands of products
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
}

# Types of pointers in Triton's own spelling, for signatures of ahead-of-time compilation.
POINTER_TYPES: dict[torch.dtype, str] = {
    torch.bool: "*i1",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint16: "*u16",
    torch.uint32: "*u32",
    torch.uint64: "*u64",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
}


def triton_dtype(dtype: torch.dtype) -> str:
    """The dtype's name in a kernel, as ``tl.float32``. CodegenError for one Triton has no arithmetic for."""
    if dtype not in TRITON_DTYPES:
        raise CodegenError(f"{dtype} has no Triton kernel", remedy="convert to a real or integer dtype first")
    return TRITON_DTYPES[dtype]


def write_preamble(
    top: CodeWriter, description: Iterable[str], origins: Origins, library: bool, helpers: Iterable[str]
) -> None:
    """What stands above a kernel: what it is, in comments, imports, and the functions of :data:`HELPERS` it calls."""
    for line in description:
        top.emit(f"# {line}", origins)
    top.emit("import triton")
    top.emit("import triton.language as tl")
    if library:
        top.emit("from triton.language.extra import libdevice  # the accurate mathematical functions of CUDA")
    for name in HELPERS:  # none calls another
        if name in helpers:
            top.emit()
            top.emit(HELPERS[name].rstrip("\n"))
    top.emit()
    top.emit()



def constant_text(value: bool | int | float, dtype: torch.dtype) -> str:
    """A literal inside a kernel: ``2.0``, ``float("inf")``, ``True``."""
    if dtype == torch.bool:
        return str(bool(value))
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)  # a literal out of range wraps, as PyTorch's conversion does
        return str((int(value) - info.min) % (info.max - info.min + 1) + info.min)
    number = float(value)
    if number != number:
        return 'float("nan")'
    if number in (float("inf"), float("-inf")):
        return f'float("{number}")'
    return repr(number)
