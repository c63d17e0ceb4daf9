"""The wrapper in C: from a recipe and loaded kernels to a :class:`staxlab.native.Program` (Sections 8.5 and 11.3).

A program is entered once per call, whatever the region consists of: it takes memory as the plan says
(:mod:`staxlab.schedule.memory_plan`), calls the kernels through pointers and PyTorch's operators with arguments filled
into a template, and makes the results. The generated Python wrapper stays the readable description of the same thing,
and is what runs where there is no extension, or on a GPU. :func:`program_of` says why.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .. import native
from ..codegen.kernel import Kernel
from ..codegen.wrapper_calls import in_layout
from .build import KEEP_LOCK_BELOW

# What program.h calls them: where memory comes from, templates, steps.
OWN, ARENA, SHARED, MADE, DELIVERED = range(5)
CONSTANT, TENSOR, VIEW, SEQUENCE = range(4)
KERNEL, OPERATOR, NOTHING = range(3)


@dataclass(frozen=True)
class Recipe:
    """A program without addresses; values are numbers, the ``inputs`` first.

    ``arena`` is (bytes, first step, last step). ``values`` say where each value's memory comes from, ``steps`` what is
    done (a kernel by its name, an operator as its overload, or None for counting a write), ``outputs`` what is
    returned (:mod:`.recipe` writes them).
    """

    inputs: int
    arena: tuple[int, int, int]
    values: tuple[tuple, ...]
    steps: tuple[tuple, ...]
    outputs: tuple[tuple, ...]


def program_of(recipe: Recipe | str, kernels: Iterable[Kernel], launchers: Mapping[str, Any]) -> tuple[Any, str]:
    """The program of a recipe whose kernels are loaded, and ""; or None and the reason, which may be the recipe."""
    if not native.available:
        return None, native.reason
    if isinstance(recipe, str):
        return None, recipe
    by_name = {kernel.name: kernel for kernel in kernels}
    values = tuple(map(_value, recipe.values))
    steps = tuple(_step(step, by_name, launchers) for step in recipe.steps)
    keep = tuple(launchers.values())
    return native.Program(recipe.inputs, recipe.arena, values, steps, recipe.outputs, in_layout, keep), ""


def _value(value: tuple) -> tuple:
    """With the function that makes it, where it is made by one."""
    *rest, made = value
    if made is None:
        return value
    shape, stride, dtype = made
    return (*rest, functools.partial(torch.empty_strided, shape, stride, dtype=dtype))


def _step(step: tuple, kernels: Mapping[str, Kernel], launchers: Mapping[str, Any]) -> tuple:
    """With the addresses of what it calls."""
    kind, takes, gives, *details = step
    if kind == OPERATOR:
        operator, *details = details
        function = torch._C._increment_version if operator is None else operator
        if type(function) is torch._ops.OpOverload:
            function = function._op  # what it calls itself, one Python function later
        return OPERATOR, takes, gives, function, *details
    if kind != KERNEL:
        return step
    name, arguments, overwritten = details
    launch = launchers[name]
    entry = getattr(launch, "entry", launch)
    address = ctypes.cast(entry, ctypes.c_void_p).value
    is_long = kernels[name].launch.get("work", 0) >= KEEP_LOCK_BELOW
    past_caches = 0 if entry.resident is None else ctypes.cast(entry.resident, ctypes.c_void_p).value
    report = getattr(launch, "report", None)
    return KERNEL, takes, gives, address, arguments, is_long, report, past_caches, overwritten
