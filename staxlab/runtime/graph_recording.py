"""One recording of a region: the addresses it holds for, what it copies in, and what it gives out (Section 9.9).

The results of a replay lie in memory that belongs to the graph; the next replay writes there again. What is given out
is therefore a new tensor over that memory, and a recording knows how many tensors look at it besides its own: as long
as there are any, somebody may still read the results of the last replay, and it is *busy*. Views of results, and values
autograd has saved, count like the results themselves, because all of them hold the storage.

A result that is one of the inputs, or a view of one, is none of this: it is made anew from the input of each call.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

_use_count = torch._C._storage_Use_Count
_increment_version = torch.autograd.graph.increment_version


@dataclass(frozen=True)
class _Ours:
    """A result in the graph's memory."""

    tensor: torch.Tensor

    def of(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.tensor.data  # another tensor on the same storage, with a version counter of its own


@dataclass(frozen=True)
class _Input:
    """A result that is an input itself."""

    place: int

    def of(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        return inputs[self.place]


@dataclass(frozen=True)
class _ViewOfInput:
    """A result that looks at an input's memory, ``offset`` elements from the input's first."""

    place: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        source = inputs[self.place]
        return torch.as_strided(source, self.shape, self.stride, source.storage_offset() + self.offset)


@dataclass(frozen=True)
class _ViewOfResult:
    """A result that looks at an earlier one's memory. In-place writes into either are counted for both, as for views
    in eager execution."""

    place: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class _Constant:
    """A result that is no tensor."""

    value: Any

    def of(self, inputs: Sequence[torch.Tensor]) -> Any:
        return self.value


@lru_cache(maxsize=1)
def _counted_for_the_object() -> int:
    """By how much C++'s count of a storage's holders is higher once there is the storage's Python object."""
    tensor = torch.empty(1)
    wrapper = tensor.untyped_storage()
    return _use_count(wrapper._cdata) - 1


class _Storage:
    """The memory of results in the graph's pool, and who holds it. C++ counts the tensors on it, ``own`` of which are
    the recording's, and the Python object of the storage, of which there is one. Somebody who holds only that object
    (``y.untyped_storage()``) shows in the object's own count."""

    __slots__ = ("tensor", "pointer", "wrapper", "address", "alone")

    def __init__(self, tensor: torch.Tensor, own: int):
        self.tensor, self.pointer = tensor, tensor.data_ptr()
        self.wrapper = tensor.untyped_storage()
        self.address = self.wrapper._cdata
        own += _counted_for_the_object()
        if _use_count(self.address) > own:
            gc.collect()  # garbage of the recording's; a holder that stays keeps the recording from being replayed
        self.alone = own + sys.getrefcount(self.wrapper)

    def holders(self) -> int:
        return _use_count(self.address) + sys.getrefcount(self.wrapper)


@dataclass(eq=False)
class Recording:
    """A graph, and what goes with it.

    ``copied`` maps the number of an input to the tensor it is copied into before a replay; all other inputs must be
    where they were. ``writes`` are the inputs that the program modifies, with how much their version counters rise.
    ``results`` say how each result is made from the call's inputs, ``storages`` are the memory of those in the graph's
    pool. ``counted``: the writes of the call that is about to be replayed have been counted while recording it.
    """

    graph: Any
    copied: dict[int, torch.Tensor]
    writes: tuple[tuple[int, int], ...]
    results: tuple[Any, ...]
    storages: tuple[_Storage, ...]
    counted: bool = True
    replays: int = 0
    last_used: int = 0

    @property
    def result_bytes(self) -> int:
        return result_bytes(self.results)

    @property
    def copied_bytes(self) -> int:
        return sum(span(x) * x.dtype.itemsize for x in self.copied.values())

    def is_busy(self) -> bool:
        """Whether somebody still holds results of the last replay."""
        for storage in self.storages:
            if storage.holders() > storage.alone:
                return True
        return False

    def is_intact(self) -> bool:
        """Whether the results' memory is still there: ``y.untyped_storage().resize_(0)`` gives it back."""
        for storage in self.storages:
            if storage.tensor.data_ptr() != storage.pointer:
                return False
        return True

    def copy_in(self, inputs: Sequence[torch.Tensor]) -> None:
        """Bring the inputs that may be anywhere to where the graph reads them."""
        for place, target in self.copied.items():
            whole(target).copy_(whole(inputs[place]))

    def count_writes(self, inputs: Sequence[torch.Tensor]) -> None:
        """Raise the version counters of modified inputs, which the kernels do not know of."""
        if self.counted:
            self.counted = False
            return
        for place, more in self.writes:
            if not inputs[place].is_inference():
                for _ in range(more):
                    _increment_version(inputs[place])

    def give_out(self, inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """The results of the replay that has just been submitted."""
        found: list[Any] = []
        for result in self.results:
            if isinstance(result, _ViewOfResult):
                base = found[result.place]
                offset = base.storage_offset() + result.offset
                found.append(torch.as_strided(base, result.shape, result.stride, offset))
            else:
                found.append(result.of(inputs))
        return tuple(found)


def describe_results(delivered: Iterable[Any], inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """How to make each of the delivered results again, from the inputs they were delivered for."""
    places = {id(x): place for place, x in reversed([*enumerate(inputs)])}
    storages = {x.untyped_storage()._cdata: place for place, x in reversed([*enumerate(inputs)]) if x.numel()}
    found: list[Any] = []
    first: dict[tuple[int, torch.dtype], int] = {}  # the first result on a storage
    for result in delivered:
        if not isinstance(result, torch.Tensor):
            found.append(_Constant(result))
        elif id(result) in places:
            found.append(_Input(places[id(result)]))
        elif result.untyped_storage()._cdata in storages:
            place = storages[result.untyped_storage()._cdata]
            offset = result.storage_offset() - inputs[place].storage_offset()
            found.append(_ViewOfInput(place, tuple(result.shape), result.stride(), offset))
        elif (base := first.setdefault((result.untyped_storage()._cdata, result.dtype), len(found))) < len(found):
            offset = result.storage_offset() - found[base].tensor.storage_offset()
            found.append(_ViewOfResult(base, tuple(result.shape), result.stride(), offset))
        else:
            found.append(_Ours(result.data))  # not the result itself: a view would hold its base as well
    return tuple(found)


def storages_of(results: Iterable[Any]) -> tuple[_Storage, ...]:
    """The storages of results in the graph's memory, each once, while only the recording holds them."""
    tensors: dict[int, dict[int, torch.Tensor]] = {}
    for result in results:
        if isinstance(result, _Ours):
            alike = tensors.setdefault(result.tensor.untyped_storage()._cdata, {})
            alike[id(result.tensor)] = result.tensor
    return tuple(_Storage(next(iter(alike.values())), len(alike)) for alike in tensors.values())


def result_bytes(results: Iterable[Any]) -> int:
    """Bytes of the results in the graph's memory, each storage once."""
    held = [result.tensor.untyped_storage() for result in results if isinstance(result, _Ours)]
    return sum({storage._cdata: storage.nbytes() for storage in held}.values())


def span(tensor: torch.Tensor) -> int:
    """Elements from a tensor's first to its last in memory, gaps included."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All a tensor spans, as one row: what can be copied whatever the strides are (expanded ones included)."""
    return tensor.as_strided((span(tensor),), (1,), tensor.storage_offset())


ALIGNMENT = 16  # bytes; compiled kernels differ by whether a pointer is a multiple of it


def place_for(tensor: torch.Tensor) -> torch.Tensor:
    """New memory for a copy of a tensor: shape, strides, dtype and alignment as its own."""
    size = tensor.dtype.itemsize
    shift = tensor.data_ptr() % ALIGNMENT // size
    memory = torch.empty(span(tensor) + shift, dtype=tensor.dtype, device=tensor.device)
    return memory.as_strided(tuple(tensor.shape), tensor.stride(), shift)


def copied_out(results: Sequence[Any], recording: Recording) -> tuple[Any, ...]:
    """Results in memory of their own. Those that look at one another's memory still do, and views of inputs stay."""
    ours = {storage.address for storage in recording.storages}
    bases: dict[int, torch.Tensor] = {}
    found: list[Any] = []
    for result in results:
        storage = result.untyped_storage() if isinstance(result, torch.Tensor) else None
        if storage is None or storage._cdata not in ours:
            found.append(result)
            continue
        itemsize = result.dtype.itemsize
        base = bases.get(storage._cdata)
        if base is None:
            size = storage.nbytes() // itemsize
            base = bases[storage._cdata] = result.as_strided((size,), (1,), 0).clone()
        base = base.view(result.dtype)
        found.append(base.as_strided(tuple(result.shape), result.stride(), result.storage_offset()))
    return tuple(found)
