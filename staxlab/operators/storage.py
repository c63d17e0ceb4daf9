"""The storage picture of a program (Section 4.9): which tensors look at which elements of a storage, and who writes?

A tensor is a storage, an offset and strides; a view is another tensor of the same storage. That is why a write through
a view changes its base, and every other tensor that looks at the same elements: the thing functionalization has to
bring into a graph of values. Here it is made visible. The captured graph is run on copies of the sample, node by node,
under a dispatch mode that sees every operator, and each tensor becomes a :class:`Lane` of the :class:`StorageRow` it
looks at.

:func:`functionalized` puts the three things side by side: the program with its writes, the graph without them
(Definition 4.3), and the picture that explains the difference.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..capture.graph import Node
from ..capture.module import GraphModule, Interpreter
from ..provenance import NO_ORIGINS, Origins, SourceLocation
from .basis import written_arguments
from .graph import OperatorGraph
from .record import record
from .structure import flatten
from .tensors import storage_key

MOST_ELEMENTS = 4096  # of a storage: beyond that a picture of single elements says nothing


@dataclass(frozen=True)
class Lane:
    """One tensor of a storage: the node that made it, the tensor it is a view of, and its geometry in elements.

    ``elements`` are the cells of the storage where its elements begin, in their order; each takes ``width`` cells.
    ``writers`` are the nodes that were given it to write into (whether they changed all of it is not asked).
    ``seen_as`` says what it makes of the memory if not what the storage was made for: another dtype, "conjugated" or
    "negated", which are carried out when it is read. A view that an operation makes for itself only (``y[0] = 1``) has
    a lane named after it.
    """

    name: str
    made_by: str
    base: str | None
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    elements: tuple[int, ...]
    writers: tuple[str, ...] = ()
    origins: Origins = NO_ORIGINS
    location: SourceLocation | None = None
    width: int = 1
    seen_as: tuple[str, ...] = ()

    @property
    def geometry(self) -> str:
        """``shape (3,), stride (4,), offset 1``, in elements, and what it sees."""
        return ", ".join([f"shape {self.shape}, stride {self.stride}, offset {self.offset}", *self.seen_as])

    @cached_property
    def cells(self) -> dict[int, int]:
        """The cells it covers, and which element each belongs to (the first, where elements share one)."""
        found: dict[int, int] = {}
        for number, first in enumerate(self.elements):
            for place in range(first, first + self.width):
                found.setdefault(place, number)
        return found


@dataclass(frozen=True)
class StorageRow:
    """A storage: its size in cells of ``itemsize`` bytes, and the tensors that look at it in the order they were made.

    A cell is an element of ``dtype``, which the storage was made for, or the part of one that the tensors of other
    dtypes have in common with it: of complex numbers looked at as real ones (``z.real``), a half.
    """

    name: str
    size: int
    dtype: torch.dtype
    lanes: tuple[Lane, ...]
    itemsize: int

    @cached_property
    def written(self) -> frozenset[int]:
        """The cells that are written by any of its tensors."""
        return frozenset(place for lane in self.lanes if lane.writers for place in lane.cells)

    @property
    def unit(self) -> str:
        """What a cell is called: an "element", or a "cell" where an element has several."""
        return "element" if self.itemsize == self.dtype.itemsize else "cell"

    @property
    def extent(self) -> str:
        """``12 elements of float32, 48 bytes``"""
        number, kind = self.size * self.itemsize // self.dtype.itemsize, str(self.dtype).removeprefix("torch.")
        text = f"{number} {'element' if number == 1 else 'elements'} of {kind}, {self.size * self.itemsize} bytes"
        return text if self.unit == "element" else f"{text} in cells of {self.itemsize}"

    def bytes_of(self, lane: Lane) -> tuple[tuple[int, int], ...]:
        """The bytes a tensor covers, as [first, last] ranges in ascending order."""
        ranges: list[tuple[int, int]] = []
        for place in sorted(lane.cells):
            first = place * self.itemsize
            if ranges and ranges[-1][1] == first - 1:
                ranges[-1] = (ranges[-1][0], first + self.itemsize - 1)
            else:
                ranges.append((first, first + self.itemsize - 1))
        return tuple(ranges)

    def format(self, most: int = 32) -> str:
        """A row of cells for the storage and a lane for each tensor. In a lane, a number is the position of the element
        in the tensor itself (``-`` stands in the cells of an element after its first); ``*`` marks one that is written
        through this tensor, ``°`` one that is written through another, ``.`` one the tensor does not look at."""
        shown = min(self.size, most)
        width = max(len(str((shown - 1) * self.itemsize)), len(str(max(self.size - 1, 0))) + 1, 2)
        name_width = max(len("element"), *(len(f"%{lane.name}") for lane in self.lanes))
        lines = [f"storage of %{self.name}: {self.extent}"]
        for title, step in (("byte", self.itemsize), (self.unit, 1)):
            cells = " ".join(f"{k * step:>{width}}" for k in range(shown))
            lines.append(f"  {title:{name_width}}  {cells}")
        for lane in self.lanes:
            cells = " ".join(f"{self.cell(lane, k):>{width}}" for k in range(shown))
            origin = f"{lane.made_by} of %{lane.base}" if lane.base else lane.made_by
            lines.append(f"  %{lane.name:{name_width - 1}}  {cells}   {origin}; {lane.geometry}")
            if lane.writers:
                lines[-1] += f"; written by {', '.join('%' + name for name in lane.writers)}"
        if shown < self.size:
            lines.append(f"  ... {self.size - shown} more {self.unit}s")
        return "\n".join(lines)

    def cell(self, lane: Lane, place: int) -> str:
        """What stands in a cell of a lane (see :meth:`format`)."""
        if place not in lane.cells:
            return "."
        mark = "*" if lane.writers else "°" if place in self.written else ""
        number = lane.cells[place]
        return f"{number if lane.elements[number] == place else '-'}{mark}"

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


@dataclass(frozen=True)
class Functionalization:
    """A program before and after (Definition 4.3): ``before`` with its writes, ``after`` without any but the
    write-backs at the end, and the storages that more than one tensor of ``before`` looks at or that are written.
    ``writes`` are the nodes of ``before`` that write into a tensor, in program order; ``left_out`` says which storages
    have no picture, and why."""

    before: GraphModule
    after: OperatorGraph
    storages: tuple[StorageRow, ...]
    writes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def format(self) -> str:
        parts = ["before:", _indented(self.before.graph.format()), "after:", _indented(self.after.format())]
        parts += [row.format() for row in self.storages]
        parts += [f"no picture: {reason}" for reason in self.left_out]
        return "\n".join(parts)

    __str__ = format

    def __repr__(self) -> str:
        return f"<{len(self.writes)} writes functionalized, {len(self.storages)} storages>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def _indented(text: str) -> str:
    return "\n".join("    " + line for line in text.split("\n"))


def functionalized(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Functionalization:
    """Trace ``function`` on a sample and functionalize what was recorded. The sample itself is not changed.

    Operators are left whole (every operator counts as one of the basis), and the front-end passes do not run, so that
    nothing but functionalization stands between the two programs. Raises CaptureError where the function cannot be
    recorded.
    """
    from ..capture.tracer import trace

    captured = trace(function, args, kwargs)
    module, samples = captured.module, list(captured.samples)
    watcher = _watch(module, samples)
    after = record(module, samples)
    rows = tuple(watcher.rows())
    return Functionalization(module, after, rows, tuple(watcher.writers), tuple(watcher.left_out))


# -- the picture -----------------------------------------------------------------------------------------------------


def storage_rows(module: GraphModule, inputs: list[Any]) -> tuple[StorageRow, ...]:
    """The storages that are written or seen by more than one tensor while ``module`` runs on copies of ``inputs``.

    Storages of more than MOST_ELEMENTS cells are left out, and so is what is not strided memory. Time and memory of
    one eager execution in which nothing is freed.
    """
    return tuple(_watch(module, inputs).rows())


def _watch(module: GraphModule, inputs: list[Any]) -> _Watcher:
    # One deep copy for all, so that inputs which share memory still do; constants may be written as well.
    constants = {name: _detached(value) for name, value in module.constants.items()}
    *copies, constants = copy.deepcopy([*map(_detached, inputs), constants])
    watcher = _Watcher(GraphModule(module.graph, constants))
    with torch.no_grad():
        watcher.watch(copies)
    return watcher


def _detached(value: Any) -> Any:
    """The same memory without its history, which cannot be copied."""
    return value.detach() if isinstance(value, torch.Tensor) else value


@dataclass
class _Seen:
    """A tensor on its way to becoming a lane. Holding it keeps its id and its storage's from being given out again."""

    tensor: torch.Tensor
    name: str
    made_by: str
    base: _Seen | None
    node: Node
    is_part: bool = False  # one of several results, until it is unpacked and has a name of its own
    writers: list[str] = field(default_factory=list)


class _Writes(TorchDispatchMode):
    """Notes the tensors that operators write into, in order."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if torch.Tag.inplace_view not in func.tags:  # those change what an object looks at, and no contents
            self.targets += written_arguments(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


class _Watcher(Interpreter):
    """Runs a graph and keeps every tensor that appears."""

    def __init__(self, module: GraphModule):
        super().__init__(module)
        self.seen: dict[int, _Seen] = {}
        self.writers: list[str] = []
        self.left_out: list[str] = []

    def watch(self, inputs: list[Any]) -> None:
        for node, value in zip(self.module.graph.placeholders, inputs, strict=True):
            self._see(value, node, "input", None)
        self.run(*inputs)

    def run_node(self, node: Node) -> Any:
        with _Writes() as writes:
            result = super().run_node(node)
        viewed = [self.seen.get(id(leaf)) for leaf in flatten((self.load(node.args), self.load(node.kwargs)))]
        for leaf in flatten(result):
            known = self.seen.get(id(leaf))
            if known is not None and known.is_part and node.target is operator.getitem:
                known.name, known.is_part = node.name, False
            elif known is None and isinstance(leaf, torch.Tensor):
                made_by = node.target_name().rpartition(".")[2]
                self._see(leaf, node, made_by, self._base(leaf, viewed), is_part=leaf is not result)
        for target in writes.targets:
            if id(target) not in self.seen:
                inside = self._base(target, viewed)
                if inside is None:
                    continue  # the operation's own scratch memory
                self._see(target, node, "a view inside " + node.target_name().rpartition(".")[2], inside)
            if id(target) not in self.seen:
                continue  # not strided memory
            for writers in (self.writers, self.seen[id(target)].writers):
                if node.name not in writers:
                    writers.append(node.name)
        return result

    def _base(self, tensor: torch.Tensor, candidates: list[_Seen | None]) -> _Seen | None:
        """The argument whose storage a tensor looks at."""
        key = storage_key(tensor)
        return next((each for each in candidates if each is not None and storage_key(each.tensor) == key), None)

    def _see(self, value: Any, node: Node, made_by: str, base: _Seen | None, is_part: bool = False) -> None:
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            name = node.name
            while any(each.name == name for each in self.seen.values()):
                name += "'"
            self.seen[id(value)] = _Seen(value, name, made_by, base, node, is_part)

    def rows(self) -> Iterator[StorageRow]:
        groups: dict[int, list[_Seen]] = {}
        for each in self.seen.values():
            groups.setdefault(storage_key(each.tensor), []).append(each)
        for members in groups.values():
            if len(members) < 2 and not members[0].writers:
                continue
            first = members[0].tensor
            cell = math.gcd(*(each.tensor.dtype.itemsize for each in members))
            size = first.untyped_storage().nbytes() // cell
            if size > MOST_ELEMENTS:
                unit = "elements" if cell == first.dtype.itemsize else "cells"
                self.left_out.append(f"%{members[0].name} has {size:,} {unit}, more than {MOST_ELEMENTS:,}")
            else:
                lanes = tuple(_lane(each, first.dtype, cell) for each in members)
                yield StorageRow(members[0].name, size, first.dtype, lanes, cell)


def _lane(seen: _Seen, dtype: torch.dtype, cell: int) -> Lane:
    tensor, node = seen.tensor, seen.node
    shape, stride, offset = tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()
    width = tensor.dtype.itemsize // cell
    seen_as = (
        *([str(tensor.dtype).removeprefix("torch.")] if tensor.dtype != dtype else []),
        *(["conjugated"] if tensor.is_conj() else []),
        *(["negated"] if tensor.is_neg() else []),
    )
    return Lane(
        seen.name, seen.made_by, seen.base.name if seen.base else None, shape, stride, offset,
        tuple(place * width for place in covered(shape, stride, offset)), tuple(seen.writers), node.origins,
        node.location, width, seen_as,
    )  # fmt: skip


def covered(shape: tuple[int, ...], stride: tuple[int, ...], offset: int) -> tuple[int, ...]:
    """The positions in a storage of a tensor's elements, in row-major order of the tensor.

    >>> covered((2, 3), (1, 2), 0)
    (0, 2, 4, 1, 3, 5)
    """
    places = [offset]
    for extent, step in zip(shape, stride, strict=True):
        places = [place + k * step for place in places for k in range(extent)]
    return tuple(places)
