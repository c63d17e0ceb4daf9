"""How each scalar operation is spelled in C++: one row per operation and kind of number (Section 6.7's table, for C++).

``{0}``, ``{1}``, ``{2}`` are the operands. The text works for vectors and for single elements alike, because the
functions of ``staxlab_math.h`` are templates and the compiler's vector extensions overload the operators. A row that
is a :class:`Library` names a function of SLEEF (vectors) or of the C library (single elements).

Sources of the numerical choices: the SLEEF functions are those with 1.0 ulp error bounds, the same that PyTorch's
vectorised kernels call where they do not use another library. Where they stop short of what numbers there are, the
result is mended, so that every function is within 4 units in the last place everywhere; ``staxlab.measure.accuracy``
measures it. ``sigmoid`` is composed of exp and a division as PyTorch's kernel is, in a form that does not overflow.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...loops.ops import OPERATIONS


@dataclass(frozen=True)
class Library:
    """A function of a vector mathematics library: SLEEF's name and accuracy suffix, and the C library's name.

    ``wrap`` is the expression around the call, ``{call}``; ``argument`` the expression of the first operand.
    ``mend`` is put around the call for vectors, where SLEEF's function has a smaller domain than it should; ``{other}``
    computes ``other`` there, a second function and its argument, and runs only if some lane needs it.
    """

    sleef: str
    accuracy: str
    c_name: str
    argument: str = "{0}"
    wrap: str = "{call}"
    mend: str = ""
    other: tuple[str, str] | None = None


def _library(names: str, accuracy: str = "u10") -> dict[str, Library]:
    return {name: Library(name, accuracy, name) for name in names.split()}


#: Functions of SLEEF's that ``staxlab_math.h`` has for itself, for float32 on x86, with the same bits.
INLINE = {"exp": "exp"}

_LOG = ("log", "abs({0})")
_ROOT_OF_EXP = ("exp", "abs({0}) * ({element})0.5")
_FMOD = "whole_fmod({0}, {1}, {call})"

FLOAT: dict[str, str | Library] = {
    "neg": "-{0}", "abs": "abs({0})", "sign": "sign({0})", "relu": "relu({0})", "square": "{0} * {0}",
    "reciprocal": "{one} / {0}", "sqrt": "sqrt({0})", "rsqrt": "{one} / sqrt({0})", "floor": "floor({0})",
    "ceil": "ceil({0})", "trunc": "trunc({0})", "round": "round({0})",
    **_library("exp exp2 expm1 log log2 log10 sin cos tan asin acos atan atanh"),
    "log1p": Library("log1p", "u10", "log1p", mend="small_log1p({0}, {call})"),
    "tanh": Library("tanh", "u10", "tanh", wrap="small_tanh({0}, {call})"),
    "sinh": Library("sinh", "u10", "sinh", mend="large_sinh({0}, {call}, {other})", other=_ROOT_OF_EXP),
    "cosh": Library("cosh", "u10", "cosh", mend="large_cosh({0}, {call}, {other})", other=_ROOT_OF_EXP),
    "asinh": Library("asinh", "u10", "asinh", mend="large_asinh({0}, {call}, {other})", other=_LOG),
    "acosh": Library("acosh", "u10", "acosh", mend="large_acosh({0}, {call}, {other})", other=_LOG),
    "erf": Library("erf", "u10", "erf"), "erfc": Library("erfc", "u15", "erfc"),
    "lgamma": Library("lgamma", "u10", "lgamma", mend="large_lgamma({0}, {call}, {other})", other=_LOG),
    "pow": Library("pow", "u10", "pow"),
    "atan2": Library("atan2", "u10", "atan2"), "hypot": Library("hypot", "u05", "hypot"),
    "nextafter": Library("nextafter", "", "nextafter"), "fmod": Library("fmod", "", "fmod", mend=_FMOD),
    "sigmoid": Library("exp", "u10", "exp", argument="-abs({0})", wrap="sigmoid({0}, {call})"),
    "remainder": Library("fmod", "", "fmod", wrap="float_remainder({call}, {1})", mend=_FMOD),
    "floordiv": Library("fmod", "", "fmod", wrap="float_floordiv({0}, {1}, {call})", mend=_FMOD),
    "isnan": "is_nan({0})", "isinf": "is_inf({0})",
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "truediv": "{0} / {1}", "truncdiv": "trunc({0} / {1})",
    "maximum": "maximum({0}, {1})", "minimum": "minimum({0}, {1})", "fmax": "fmax({0}, {1})",
    "fmin": "fmin({0}, {1})", "copysign": "copysign({0}, {1})",
    "eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}",
    "ge": "{0} >= {1}", "where": "select({0}, {1}, {2})",
}  # fmt: skip

INTEGER: dict[str, str | Library] = {
    "neg": "-{0}", "abs": "abs({0})", "sign": "sign({0})", "relu": "relu({0})", "square": "{0} * {0}",
    "floor": "{0}", "ceil": "{0}", "trunc": "{0}", "round": "{0}", "bitwise_not": "~{0}",
    "isnan": "is_nan({0})", "isinf": "is_nan({0})",
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}",
    "floordiv": "int_floordiv({0}, {1})", "truncdiv": "truncdiv({0}, {1})",
    "remainder": "int_remainder({0}, {1})", "fmod": "int_fmod({0}, {1})", "pow": "int_pow({0}, {1})",
    "maximum": "maximum({0}, {1})", "minimum": "minimum({0}, {1})", "fmax": "maximum({0}, {1})",
    "fmin": "minimum({0}, {1})",
    "eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}",
    "ge": "{0} >= {1}", "bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}",
    "bitwise_left_shift": "shift_left({0}, {1})", "bitwise_right_shift": "shift_right({0}, {1})",
    "where": "select({0}, {1}, {2})",
}  # fmt: skip

# Masks are bools or vectors of 0 and -1: "less" is "not a and b".
BOOL: dict[str, str | Library] = {
    "logical_not": "mask_not({0})", "logical_and": "{0} & {1}", "logical_or": "{0} | {1}", "logical_xor": "{0} ^ {1}",
    "bitwise_not": "mask_not({0})", "bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}",
    "eq": "mask_not({0} ^ {1})", "ne": "{0} ^ {1}", "lt": "mask_not({0}) & {1}", "le": "mask_not({0}) | {1}",
    "gt": "{0} & mask_not({1})", "ge": "{0} | mask_not({1})", "maximum": "{0} | {1}", "minimum": "{0} & {1}",
    "fmax": "{0} | {1}", "fmin": "{0} & {1}", "add": "{0} | {1}", "mul": "{0} & {1}",
    "where": "select({0}, {1}, {2})",
}  # fmt: skip

# Operations that have no meaning for a kind of number: PyTorch refuses them, or lowering converts first.
NOT_FOR_FLOAT = frozenset(name for name in OPERATIONS if name.startswith(("bitwise_", "logical_")))
NOT_FOR_INTEGER = frozenset(
    name for name, rule in OPERATIONS.items() if rule.transcendental and name != "pow"
) | {"reciprocal", "sqrt", "rsqrt", "truediv", "copysign", "nextafter", "logical_not", "logical_and", "logical_or",
     "logical_xor"}  # fmt: skip

COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf"})

def table_for(dtype: torch.dtype) -> dict[str, str | Library]:
    """The rows for operands of ``dtype``."""
    return BOOL if dtype == torch.bool else FLOAT if dtype.is_floating_point else INTEGER


def missing_operations() -> dict[str, list[str]]:
    """Operations without a row, by kind of number, leaving out those that do not apply to it."""
    return {
        "float": sorted(set(OPERATIONS) - set(FLOAT) - NOT_FOR_FLOAT),
        "integer": sorted(set(OPERATIONS) - set(INTEGER) - NOT_FOR_INTEGER),
    }


def sleef_symbol(function: Library, dtype: torch.dtype, lanes: int, neon: bool) -> tuple[str, int]:
    """SLEEF's symbol for a vector of ``lanes``, and the lanes it takes (more, when there is none so narrow)."""
    letter, widths = ("f", (4,) if neon else (8, 16)) if dtype == torch.float32 else ("d", (2,) if neon else (4, 8))
    width = next(w for w in widths if w >= lanes)
    extension = "" if neon else "avx512f" if width == widths[-1] else "avx2"
    separator = "" if function.accuracy or not extension else "_"
    suffix = f"_{function.accuracy}" if function.accuracy else ""
    return f"Sleef_{function.sleef}{letter}{width}{suffix}{separator}{extension}", width
