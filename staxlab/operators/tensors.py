"""Which node defines a tensor, and which memory it looks at.

While a program runs, tensors are known by identity, held weakly so that they die as in eager mode. Each has an
:class:`Entry`: the node that defines its value, the :class:`Memory` it shares with its views, and the chain of view
operators that leads to it from the tensor the memory was made for. When a write replaces the contents of a memory
(Section 4.9) its version rises; an entry with an older version is out of date, and its value is found again by
replaying its chain on the new contents.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ..capture.graph import Node


@dataclass(frozen=True)
class Window:
    """The part of a memory that a tensor looks at: ``start`` in bytes from the memory's first, the rest as the tensor
    has it (strides in elements of ``itemsize`` bytes)."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    itemsize: int
    start: int = 0

    @classmethod
    def of(cls, tensor: torch.Tensor, start: int = 0) -> Window:
        return cls(tuple(tensor.shape), _stride(tensor), tensor.dtype.itemsize, start)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        """Past the last byte."""
        if self.numel == 0:
            return self.start
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        return self.start + (reach + 1) * self.itemsize


@dataclass(eq=False)
class Memory:
    """What a tensor and its views share.

    ``value`` holds the contents once a write has replaced them, as a tensor with the geometry of the first tensor of
    this memory (``window``). ``name`` is that of the node that made this first tensor. ``home`` is the input whose
    memory it is, if it belongs to the caller; ``protected`` says why nothing may be written into it (the kind of
    obstacle and the words). A ``literal`` is a tensor the program makes anew at every run, of which the graph keeps
    one.
    """

    window: Window
    name: str = ""
    version: int = 0
    value: torch.Tensor | None = None
    protected: tuple[str, str] | None = None
    literal: bool = False
    owner: weakref.ref | None = None
    home: Home | None = None


@dataclass(eq=False)
class Owner:
    """Keeps the first tensor of a memory reachable while views of it live."""

    tensor: torch.Tensor


@dataclass(frozen=True)
class Home:
    """An input: its node, the tensor, and how many steps lead to it from the start of its memory."""

    placeholder: Node
    tensor: weakref.ref
    depth: int = 0


@dataclass(frozen=True)
class ViewStep:
    """One view operator of a chain: ``function(viewed, *args, **kwargs)``, then the result number ``part`` if it
    has several. ``route`` is the same view by other operators, for one that counts from the start of a storage and so
    cannot be repeated on another (``as_strided``)."""

    function: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    part: int | None = None
    route: tuple[ViewStep, ...] = ()

    def __call__(self, viewed: Any) -> Any:
        if self.route:
            for step in self.route:
                viewed = step(viewed)
            return viewed
        result = self.function(viewed, *self.args, **dict(self.kwargs))
        return result if self.part is None else result[self.part]


@dataclass(eq=False)
class Entry:
    """What is known of a tensor object. ``value`` is the tensor that has its contents as of ``version``, if not the
    object itself; ``written`` has the contents as of ``written_version`` too, but other memory.

    ``start`` is where it begins in its memory, in bytes. ``home`` is the input that it is, or is a view of; ``counted``
    says that a write into it shows in the version counter of that input (not so for ``x.data``). ``is_plain`` if no
    view of the chain, nor the tensor itself, shows an element twice."""

    reference: weakref.ref
    node: Node
    memory: Memory
    chain: tuple[ViewStep, ...] = ()
    version: int = 0
    value: torch.Tensor | None = None
    owner: Owner | None = None
    written: torch.Tensor | None = None
    written_version: int = -1
    start: int = 0
    home: Home | None = None
    counted: bool = True
    is_plain: bool = True

    @property
    def is_current(self) -> bool:
        return self.version == self.memory.version


@dataclass
class TensorTable:
    """Entries by tensor identity. An entry is only believed while its weak reference still leads to the very tensor
    asked for, because a dead tensor's id may be given out again."""

    _by_id: dict[int, Entry] = field(default_factory=dict)
    _by_storage: dict[int, list[Entry]] = field(default_factory=dict)

    def define(self, tensor: torch.Tensor, node: Node) -> Entry:
        """A tensor with memory of its own."""
        return self._put(tensor, node, Memory(Window.of(tensor), node.name), (), None)

    def define_view(
        self, tensor: torch.Tensor, node: Node, viewed: torch.Tensor, chain: tuple[ViewStep, ...], is_plain: bool
    ) -> Entry:
        """A tensor that looks at the memory of ``viewed``, to which ``chain`` leads from the start of the memory."""
        known = self.get(viewed)
        memory = known.memory
        if known.owner is None:
            owner = (memory.owner() if memory.owner else None) or Owner(viewed)
            memory.owner = weakref.ref(owner)
        else:
            owner = known.owner
        start = known.start + distance(viewed, tensor)
        entry = self._put(tensor, node, memory, chain, owner)
        entry.version, entry.start, entry.is_plain = known.version, start, is_plain
        entry.home, entry.counted = known.home, known.counted
        return entry

    def stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Another tensor that is known as all that ``tensor`` is known as: for one that is about to change."""
        entry = self.get(tensor)
        other = tensor.detach()
        copied = self._put(other, entry.node, entry.memory, entry.chain, entry.owner)
        copied.version, copied.value, copied.start = entry.version, entry.value, entry.start
        copied.is_plain, copied.home, copied.counted = entry.is_plain, entry.home, entry.counted
        return other

    def rehome(self, tensor: torch.Tensor, memory: Memory) -> None:
        """Make ``tensor`` the contents of ``memory``."""
        entry = self.get(tensor)
        entry.memory, entry.chain, entry.owner = memory, (), None
        entry.start, entry.is_plain, entry.home, entry.counted = 0, True, memory.home, True
        memory.version += 1
        memory.value = tensor
        entry.version = memory.version

    def _put(
        self, tensor: torch.Tensor, node: Node, memory: Memory, chain: tuple[ViewStep, ...], owner: Owner | None
    ) -> Entry:
        key = id(tensor)

        def died(reference: weakref.ref) -> None:
            if key in self._by_id and self._by_id[key].reference is reference:
                del self._by_id[key]

        entry = Entry(weakref.ref(tensor, died), node, memory, chain, memory.version, None, owner)
        self._by_id[key] = entry
        shared = self._by_storage.setdefault(storage_key(tensor), [])
        shared[:] = [old for old in shared if old.reference() is not None]
        shared.append(entry)
        return entry

    def get(self, tensor: torch.Tensor) -> Entry | None:
        entry = self._by_id.get(id(tensor))
        return entry if entry is not None and entry.reference() is tensor else None

    def forget(self, nodes: set[Node]) -> None:
        """Drop what is known of tensors these nodes defined."""
        self._by_id = {key: entry for key, entry in self._by_id.items() if entry.node not in nodes}
        for shared in self._by_storage.values():
            shared[:] = [entry for entry in shared if entry.node not in nodes]

    def sharing_storage(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A known live tensor with the same memory and dtype (``x.data`` makes tensors the dispatcher never sees),
        best one that looks at the same part of it."""
        key, found = storage_key(tensor), None
        for entry in self._by_storage.get(key, ()):
            known = entry.reference()
            if known is not None and storage_key(known) == key and known.dtype == tensor.dtype and known is not tensor:
                if Window.of(known) == Window.of(tensor) and distance(known, tensor) == 0:
                    return known
                found = known if found is None else found
        return found

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._by_id.values()))


def distance(first: torch.Tensor, second: torch.Tensor) -> int:
    """From the start of a tensor to that of another one of its storage, in bytes."""
    if first.layout != torch.strided or second.layout != torch.strided:
        return 0
    return second.storage_offset() * second.dtype.itemsize - first.storage_offset() * first.dtype.itemsize


def _stride(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.stride()) if tensor.layout == torch.strided else ()


def storage_key(tensor: torch.Tensor) -> int:
    """A number equal for tensors that share memory, while they live."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # sparse and other tensors without one storage
        return -id(tensor)
