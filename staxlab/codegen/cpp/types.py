"""Names and literals of C++: how the numbers of a loop body are spelled in a kernel (Section 8.1).

Memory holds one of eleven dtypes; a compute function works on eight of them, because half precision is computed in
float32 and a bool is a mask. A *vector* of ``L`` lanes is named by its element and its lanes: ``f32x16``.
"""

from __future__ import annotations

import math
import re
import struct

import torch

from ...errors import CodegenError

#: What a pointer argument points to.
STORED = {
    torch.float32: "f32", torch.float64: "f64", torch.int64: "i64", torch.int32: "i32", torch.int16: "i16",
    torch.int8: "i8", torch.uint8: "u8", torch.bool: "boolean", torch.bfloat16: "bf16", torch.float16: "f16",
}  # fmt: skip

#: What a scalar value is (half precision is a float32, see ``compute_dtype``).
ELEMENT = {**STORED, torch.bool: "bool", torch.bfloat16: "f32", torch.float16: "f32"}

INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})


def stored_name(dtype: torch.dtype, where: str) -> str:
    """The C++ type of a buffer's elements. CodegenError for a dtype CPU kernels do not handle."""
    try:
        return STORED[dtype]
    except KeyError:
        known = ", ".join(str(d).removeprefix("torch.") for d in STORED)
        raise CodegenError(
            f"{where} has dtype {dtype}, which generated CPU kernels do not handle (they know {known})"
        ) from None


def element_bytes(dtype: torch.dtype) -> int:
    """Bytes of one lane of a value while it is computed with; masks are as narrow as need be."""
    return 1 if dtype == torch.bool else 4 if dtype in (torch.bfloat16, torch.float16) else dtype.itemsize


def vector_name(dtype: torch.dtype, lanes: int) -> str:
    """``f32x16``; ``mask`` for bools, whose width is one per kernel."""
    return "mask" if dtype == torch.bool else f"{ELEMENT[dtype]}x{lanes}"


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """A constant of ``dtype`` (a compute dtype) that reads back exactly."""
    if dtype == torch.bool:
        return "true" if value else "false"
    if dtype in INTEGERS:
        number = _wrap(int(value), dtype)
        if dtype == torch.int64:
            return "(-0x7fffffffffffffffll - 1)" if number == -(2**63) else f"{number}ll"
        if dtype == torch.int32:
            return "(-0x7fffffff - 1)" if number == -(2**31) else str(number)
        return f"({ELEMENT[dtype]}){number}"
    suffix = "f" if dtype == torch.float32 else ""
    if dtype == torch.float32:
        value = _to_float32(float(value))
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
    text = _shortest_float32(value) if dtype == torch.float32 else repr(value)
    if not re.search(r"[.e]", text):
        text += ".0"
    return text + suffix


def _wrap(value: int, dtype: torch.dtype) -> int:
    limits = torch.iinfo(dtype)
    return (value - limits.min) % (limits.max - limits.min + 1) + limits.min


def _to_float32(value: float) -> float:
    """Round a Python float to float32; overflow becomes infinity, as a cast does."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def _shortest_float32(value: float) -> str:
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if _to_float32(float(text)) == value:
            return text
    return f"{value:.9g}"


def identifier(text: str) -> str:
    """A C identifier made of arbitrary text: the only way names of the user reach generated source."""
    cleaned = re.sub(r"[^A-Za-z0-9_]", "_", text)[:48]
    return cleaned if cleaned and not cleaned[0].isdigit() else f"_{cleaned}"
