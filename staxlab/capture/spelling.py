"""How an intercepted call is written down, so that the graph reads like the program it came from (Section 3.2).

PyTorch announces ``x + 1``, ``x.add(1)`` and ``1 + x`` in the same words: the method ``add`` with arguments ``x`` and
``1``. What the user wrote is still on the stack: the instruction the calling frame stands at tells an operator from a
method call, and its columns in the source line tell which operand came first.
"""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import inspect
import linecache
import operator
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from ..provenance import SourceLocation

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
#: Functions for users, written with PyTorch's: who called them is asked for.
_ATTENTION = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "attention")
_PUBLIC = tuple(os.path.join(_ATTENTION, name) for name in ("omni.py", "ready.py"))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep

# Methods that an operator may have called, by name: the operator, and whether operands arrive swapped.
BINARY = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "true_divide": operator.truediv,
    "matmul": operator.matmul, "remainder": operator.mod, "pow": operator.pow, "floor_divide": operator.floordiv,
    "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
    "__and__": operator.and_, "__or__": operator.or_, "__xor__": operator.xor,
    "__lshift__": operator.lshift, "__rshift__": operator.rshift, "bitwise_left_shift": operator.lshift,
    "bitwise_right_shift": operator.rshift, "__floordiv__": operator.floordiv, "__mod__": operator.mod,
    "__pow__": operator.pow, "__matmul__": operator.matmul, "__truediv__": operator.truediv,
    "__div__": operator.truediv,
    "__add__": operator.add, "__sub__": operator.sub, "__mul__": operator.mul,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "__eq__": operator.eq, "__ne__": operator.ne, "__lt__": operator.lt, "__le__": operator.le, "__gt__": operator.gt,
    "__ge__": operator.ge,
}  # fmt: skip
REFLECTED = {
    "__radd__": operator.add, "__rsub__": operator.sub, "__rmul__": operator.mul, "__rdiv__": operator.truediv,
    "__rtruediv__": operator.truediv, "__rpow__": operator.pow, "__rfloordiv__": operator.floordiv,
    "__rmod__": operator.mod,
    "__rmatmul__": operator.matmul, "__rand__": operator.and_, "__ror__": operator.or_, "__rxor__": operator.xor,
    "__rlshift__": operator.lshift, "__rrshift__": operator.rshift,
}  # fmt: skip
UNARY = {"neg": operator.neg, "__neg__": operator.neg, "__invert__": operator.invert, "bitwise_not": operator.invert,
         "__pos__": operator.pos, "positive": operator.pos}  # fmt: skip
_COMMUTATIVE = (operator.add, operator.mul, operator.and_, operator.or_, operator.xor)
_ALWAYS_OPERATOR = frozenset(BINARY) & frozenset(n for n in BINARY if n.startswith("__"))


@functools.lru_cache(maxsize=1)
def tensor_methods() -> dict[Any, str]:
    """Every callable attribute of torch.Tensor, by the object PyTorch reports it with."""
    found: dict[Any, str] = {}
    for name in dir(torch.Tensor):
        member = inspect.getattr_static(torch.Tensor, name)
        member = getattr(torch.Tensor, name) if not isinstance(member, (property, types.GetSetDescriptorType)) else None
        if callable(member):
            try:
                if member not in found or not name.startswith("_"):  # abs rather than __abs__
                    found[member] = name
            except TypeError:
                continue
    return found


def property_access(func: Any) -> tuple[str, str] | None:
    """("get", "shape") for a property getter, ("set", "data") for a setter, None for anything else."""
    owner = getattr(func, "__self__", None)
    if isinstance(owner, (types.GetSetDescriptorType, property)) and func.__name__ in (
        "__get__",
        "__set__",
        "__delete__",
    ):
        name = owner.__name__ if isinstance(owner, types.GetSetDescriptorType) else owner.fget.__name__
        return func.__name__.strip("_"), name
    return None


_MACHINERY = ("overrides.py", "_tensor.py", "functional.py", os.path.join("modules", "module.py"))


class Frame:
    """The user's frame an operation was called from: its source line and the instruction it stands at."""

    __slots__ = ("location", "_code", "_at", "_direct")

    def __init__(self, boundary: types.CodeType):
        frame: Any = sys._getframe(2)
        direct = True
        library = None  # the innermost frame of PyTorch's own code that is not machinery
        while frame is not None and frame.f_code is not boundary:
            file = frame.f_code.co_filename
            if file in _PUBLIC:
                direct = False
            elif not file.startswith(_HERE):
                if not file.startswith(_TORCH):
                    break
                if library is None and not file.endswith(_MACHINERY):
                    library = frame
                if not file.endswith(("overrides.py", "_tensor.py")):
                    direct = False
            frame = frame.f_back
        if frame is None or frame.f_code is boundary:
            # The traced callable is itself a library function or module: point into the library.
            frame, direct = library, False
        if frame is None:
            self.location, self._direct = None, False
            return
        code, line = frame.f_code, frame.f_lineno
        self.location = SourceLocation(
            code.co_filename, line, linecache.getline(code.co_filename, line).strip(), code.co_name
        )
        self._code, self._at, self._direct = code, frame.f_lasti, direct

    @property
    def is_operator(self) -> bool:
        """Whether the instruction is an operator (and not a call)."""
        return self._direct and _instruction(self._code, self._at).startswith(
            ("BINARY_", "COMPARE_", "UNARY_", "INPLACE_", "CONTAINS_")
        )

    def constant_first(self, tensor: torch.Tensor, frame_values: dict[str, Any] | None = None) -> bool:
        """Whether the source writes the scalar before the tensor, as in ``2 * x``. False if the source cannot tell."""
        return self._direct and _left_is_constant(self._code, self._at)


@functools.lru_cache(maxsize=8192)
def _instruction(code: types.CodeType, at: int) -> str:
    return dis.opname[code.co_code[at]]


@functools.lru_cache(maxsize=8192)
def _left_is_constant(code: types.CodeType, at: int) -> bool:
    positions = list(code.co_positions())[at // 2]
    if any(p is None for p in positions):
        return False
    first, last, start, stop = positions
    lines = [linecache.getline(code.co_filename, number) for number in range(first, last + 1)]
    if not lines or not lines[0]:
        return False
    raw = [line.encode() for line in lines]
    raw[-1] = raw[-1][:stop]
    raw[0] = raw[0][start:]
    try:
        tree = ast.parse(b"(" + b"".join(raw) + b")", mode="eval").body
    except (SyntaxError, ValueError):
        return False
    if not isinstance(tree, ast.BinOp):
        return False
    left, right = _is_constant(tree.left), _is_constant(tree.right)
    return left and not right


def _is_constant(tree: ast.expr) -> bool:
    if isinstance(tree, ast.UnaryOp):
        return _is_constant(tree.operand)
    if isinstance(tree, ast.BinOp):
        return _is_constant(tree.left) and _is_constant(tree.right)
    if isinstance(tree, ast.Attribute):
        return isinstance(tree.value, ast.Name) and tree.value.id == "math"
    return isinstance(tree, ast.Constant)


@functools.lru_cache(maxsize=4096)
def _keyword_defaults(func: Any) -> dict[str, Any]:
    if not isinstance(func, types.FunctionType):
        return {}
    try:
        parameters = inspect.signature(func).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


def drop_defaults(func: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments without those that repeat the default (PyTorch spells all of them out when it reports a
    call)."""
    if not kwargs:
        return kwargs
    defaults = _keyword_defaults(func)
    return {
        name: value
        for name, value in kwargs.items()
        if not (
            name in defaults and type(value) in (bool, int, float, str, type(None)) and _same(value, defaults[name])
        )
    }


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and value == default


def spell(func: Callable, args: tuple, kwargs: dict, frame: Frame) -> tuple[str, Any, tuple, dict]:
    """(opcode, target, args, kwargs) of the node that records ``func(*args, **kwargs)``."""
    access = property_access(func)
    if access is not None and access[0] == "get":
        return "call_function", builtins.getattr, (args[0], access[1]), {}
    name = tensor_methods().get(func) if getattr(func, "__hash__", None) else None
    if name is None:
        return "call_function", func, args, drop_defaults(func, kwargs)
    kwargs = drop_defaults(func, kwargs)
    if not kwargs and len(args) == 2:
        # Between tensors x.__rdiv__(y) is y * (1 / x), which rounds twice; y / x is called otherwise and rounds once.
        rounds_twice = REFLECTED.get(name) is operator.truediv and isinstance(args[1], torch.Tensor)
        if name in REFLECTED and not rounds_twice:
            return "call_function", REFLECTED[name], (args[1], args[0]), {}
        if name == "__getitem__":
            return "call_function", operator.getitem, args, {}
        if name in BINARY and (name in _ALWAYS_OPERATOR or frame.is_operator):
            target = BINARY[name]
            if target in _COMMUTATIVE and not isinstance(args[1], torch.Tensor) and frame.constant_first(args[0]):
                args = (args[1], args[0])
            return "call_function", target, args, {}
    if not kwargs and len(args) == 3 and name == "__setitem__":
        return "call_function", operator.setitem, args, {}
    if not kwargs and len(args) == 1 and name in UNARY and (name.startswith("__") or frame.is_operator):
        return "call_function", UNARY[name], args, {}
    if not args or not isinstance(args[0], torch.Tensor):
        return "call_function", func, args, kwargs
    if name == "__rsub__":
        return "call_function", func, args, kwargs
    return "call_method", name, args, kwargs
