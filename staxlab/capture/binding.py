"""Both ends of a compiled region: taking the tensors out of a call, and describing how to build the return value."""

from __future__ import annotations

import collections
import enum
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import CaptureError
from ..specialize.free_variables import Place
from ..specialize.structure import is_dataclass_instance, is_named_tuple, rebuild_container
from .record import Constant, Flat, Nest

_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, torch.layout,
              torch.memory_format, type(Ellipsis), range, slice, enum.Enum, type, types.FunctionType,
              types.BuiltinFunctionType, types.ModuleType)  # fmt: skip


def compile_bind(
    places: Sequence[Place], expressions: Sequence[str], scope: dict[str, Any]
) -> Callable[[tuple, dict], list[torch.Tensor]]:
    """``bind(args, kwargs)`` -> the flat tensors: lifted free variables from where they live, then the arguments' own.

    Generated as one list display, because it runs at every call.
    """
    scope = dict(scope)
    parts = [place.expression(scope) for place in places] + list(expressions)
    exec(f"def bind(args, kwargs): return [{', '.join(parts)}]", scope)
    return scope["bind"]


def output_specification(
    result: Any, place: Callable[[torch.Tensor], int], known: set[int], formatted: bool
) -> Flat | Nest | Constant:
    """How to rebuild ``result`` from flat tensors; ``place`` gives a tensor its position among them.

    ``known`` are the ids of objects the caller passed in, which may be returned as they are. ``formatted``: some
    tensor was turned into text, so text in the result may depend on data and is refused. CaptureError for what cannot
    be rebuilt.
    """

    def describe(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return Flat(place(value))
        if isinstance(value, str) and formatted and id(value) not in known:
            raise CaptureError(
                "the function returns text, and a tensor was turned into text on the way",
                remedy="return the tensor and format it outside",
            )
        if isinstance(value, slice) and any(isinstance(part, torch.Tensor) for part in _ends(value)):
            raise CaptureError(
                "the function returns a slice made of tensors, which would be those of the sample at every later call",
                remedy="return the tensors, and make the slice outside",
            )
        if isinstance(value, _CONSTANTS) or id(value) in known:
            return Constant(value)
        exact = type(value) in (tuple, list, dict, collections.OrderedDict, collections.defaultdict)
        if exact or is_named_tuple(value) or is_dataclass_instance(value) or _is_struct_sequence(value):
            if isinstance(value, dict):
                parts = list(value.values())
            elif is_dataclass_instance(value):
                from ..specialize.structure import children

                parts = [part for _, _, part in children(value) or []]
            else:
                parts = list(value)
            return Nest(rebuild_container(value, [None] * len(parts)), tuple(map(describe, parts)))
        raise CaptureError(
            f"the function returns a {type(value).__module__}.{type(value).__qualname__}, "
            "which cannot be rebuilt at later calls",
            remedy="return tensors, plain Python values, tuples, lists, dicts, named tuples or dataclasses",
        )

    return describe(result)


def _ends(value: slice) -> tuple[Any, Any, Any]:
    return value.start, value.stop, value.step


def _is_struct_sequence(value: Any) -> bool:
    """A result type of PyTorch such as ``torch.return_types.max``."""
    return isinstance(value, tuple) and hasattr(type(value), "n_sequence_fields")
