"""The free part of the key between calls (level 2 of Algorithm 2.1).

A model reads hundreds of weights and flags at every call, and hardly ever does one of them change. :class:`FreeState`
keeps their part of the key from the last call and checks by identity whether it still stands: the same tensor objects
with the same fingerprints, the same numbers, the same submodules. Only what has changed is described anew.
"""

from __future__ import annotations

import bisect
import operator
import weakref
from collections.abc import Callable
from typing import Any

import torch

from .free_variables import Environment, compile_reader
from .signature import Signature, aliasing, memory_spans, object_signatures, one_object, signature


class FreeState:
    """The free part of the key, kept as long as its objects are the same (level 2)."""

    def __init__(self, environment: Environment):
        self.environment = environment
        self.is_empty = environment.is_empty
        self.read_rest = compile_reader((*environment.scalars, *environment.structure, *environment.extents))
        self.rest: tuple[Any, ...] = ()
        self.tensors: list[tuple[Callable[[], Any], Any]] = []
        self.tensor_part: tuple[Signature, ...] = ()
        self.scalar_part: tuple[Signature, ...] = ()
        self.object_part = object_signatures(environment)
        self.generation = 0  # counts descriptions: who remembers a decision must also remember for which
        self.count = 0
        self.overlap: tuple[tuple[int, int, int], ...] = ()
        self.spans: tuple[tuple[int, int], ...] = ()
        self.starts: list[int] = []
        self.numbers: dict[int, int] = {}
        self.repeated: tuple[tuple, ...] = ()
        self._describe_rest()
        self._describe_tensors()

    def is_same(self) -> bool:
        """Whether nothing has been touched since the free part was last described. Compares identities only; may say no
        where :meth:`refresh` would find the same."""
        if not all(map(operator.is_, self.read_rest(), self.rest)):
            return False
        return self._tensors_are_same()

    def _tensors_are_same(self) -> bool:
        if not self.tensors:
            return True
        for tensor, (reference, fingerprint) in zip(self.environment.read_tensors(), self.tensors):  # noqa: B905
            if reference() is not tensor or _fingerprint(tensor) != fingerprint:
                return False
        return True

    def refresh(self) -> bool:
        """Describe anew what has changed. False if the places themselves have to be collected anew."""
        if not self.environment.is_current():
            return False
        self._describe_rest()
        if not self._tensors_are_same():
            self._describe_tensors()
        return True

    def _describe_rest(self) -> None:
        self.generation += 1
        self.rest = self.read_rest()
        self.scalar_part = tuple(map(signature, self.rest[: len(self.environment.scalars)]))

    def _describe_tensors(self) -> None:
        self.generation += 1
        values = self.environment.read_tensors()
        self.tensor_part = tuple(map(signature, values))
        self.tensors = [
            (weakref.ref(t) if isinstance(t, torch.Tensor) else (lambda t=t: t), _fingerprint(t)) for t in values
        ]
        plain = [t for t in values if isinstance(t, torch.Tensor)]
        self.count, self.overlap, self.spans = len(plain), aliasing(plain), memory_spans(plain)
        self.starts = [start for start, _ in self.spans]
        self.numbers = {id(tensor): len(plain) - 1 - j for j, tensor in enumerate(reversed(plain))}
        self.repeated = one_object(plain)

    def overlap_with(self, tensors: list[torch.Tensor]) -> tuple[tuple[int, int, int], ...]:
        """The aliasing component for these arguments, numbering lifted tensors first. O(log n) each, where nothing is
        shared."""
        if not self.count:
            return aliasing(tensors)
        for start, end in memory_spans(tensors):
            position = bisect.bisect_left(self.starts, end) - 1
            if position >= 0 and self.spans[position][1] > start:
                free = [t for t in self.environment.read_tensors() if isinstance(t, torch.Tensor)]
                return aliasing([*free, *tensors])
        own = aliasing(tensors)
        return (*self.overlap, *((i + self.count, j + self.count, d) for i, j, d in own)) if own else self.overlap

    def one_object(self, objects: list[Any]) -> tuple[tuple, ...]:
        """Which of these parts of a call, numbered after the lifted tensors, are one object with an earlier part."""
        return (*self.repeated, *one_object(objects, self.count, self.numbers))


def _fingerprint(tensor: Any) -> Any:
    """What must be equal for a tensor object to have kept its metadata: assigning ``.data`` (as ``module.half()`` does)
    changes the pointer, ``requires_grad_`` the flag, in-place reshaping the version."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    try:
        return tensor._version, tensor.data_ptr(), tensor.requires_grad, tensor.dtype, tensor.shape, tensor.stride()
    except RuntimeError:  # inference tensors keep no version
        return object()
