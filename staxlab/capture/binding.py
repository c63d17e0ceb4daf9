"""Both ends of a compiled region: taking the tensors out of a call, and describing how to build the return value."""

from __future__ import annotations

import collections
import enum
import types
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from ..errors import CaptureError
from ..shapes.integer import plain
from ..specialize.free_variables import Place
from ..specialize.structure import children, is_dataclass_instance, is_named_tuple, rebuild_container
from .record import Argument, Constant, Flat, Nest

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


def argument_containers(args: tuple, kwargs: dict[str, Any]) -> dict[int, Callable[[tuple, dict], Any]]:
    """The containers among the arguments, by id, each with a function that finds its like in another call."""
    found: dict[int, Callable[[tuple, dict], Any]] = {}

    def walk(value: Any, read: Callable[[tuple, dict], Any]) -> None:
        parts = children(value)
        if parts is None or id(value) in found:
            return
        found[id(value)] = read
        for kind, key, part in parts:
            if kind == "attribute":
                walk(part, lambda args, kwargs, key=key: getattr(read(args, kwargs), key))
            else:
                walk(part, lambda args, kwargs, key=key: read(args, kwargs)[key])

    for position, value in enumerate(args):
        walk(value, lambda args, kwargs, position=position: args[position])
    for name, value in kwargs.items():
        walk(value, lambda args, kwargs, name=name: kwargs[name])
    return found


def output_specification(
    result: Any,
    place: Callable[[torch.Tensor], int],
    known: set[int],
    formatted: bool,
    containers: Mapping[int, Callable[[tuple, dict], Any]] = MappingProxyType({}),
) -> Flat | Nest | Constant | Argument:
    """How to rebuild ``result`` from flat tensors; ``place`` gives a tensor its position among them.

    ``known`` are the ids of objects the caller passed in, which may be returned as they are, ``containers`` those of
    :func:`argument_containers`. ``formatted``: some tensor was turned into text, so text in the result may depend on
    data and is refused. CaptureError for what cannot be rebuilt.
    """

    def describe(value: Any) -> Any:
        value = plain(value)
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
        if id(value) in containers:
            return Argument(containers[id(value)])
        exact = type(value) in (tuple, list, dict, collections.OrderedDict, collections.defaultdict)
        if exact or is_named_tuple(value) or is_dataclass_instance(value) or _is_struct_sequence(value):
            if isinstance(value, dict):
                parts = list(value.values())
            elif is_dataclass_instance(value):
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
