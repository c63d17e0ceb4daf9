"""Following a program whose sizes depend on data (Section 10.5): which questions can be answered before it runs?

A number of nonzero elements has no hint: what it is on a sample says nothing about the next call. A compiler may then
only make decisions that follow from what is known of it (Proposition 10.4). :func:`watch` runs a function on a real
tensor and lets it have real results, but such sizes are :class:`DataSize`: they keep an interval, and every question
put to one is answered from that interval or written down as undecided. An assertion narrows the interval for whatever
comes after it.

What is followed are sizes of results of ``nonzero``, ``argwhere``, ``masked_select`` and of indexing with a mask, and
``a u + b`` of them. Taking a value out of a tensor (``item``, ``int``, ``if tensor:``) is a question to data as well.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch


class AssertionFailed(Exception):
    """An assertion of the program does not hold at run time."""


@dataclass
class Event:
    """``kind`` is "asserted", "decided", "undecided" or "read"; ``text`` the condition, or what was read."""

    kind: str
    text: str


@dataclass
class Size:
    """A size that data decide: its ``name``, what it is this time, and what is known of it beforehand."""

    name: str
    value: int
    low: int
    high: int


@dataclass
class Watch:
    """What happened in one run, in order."""

    events: list[Event] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)

    def size(self, value: int, most: int) -> DataSize:
        """A new size, of which ``0 <= u <= most`` is known."""
        found = Size(f"u{len(self.sizes)}", value, 0, most)
        self.sizes.append(found)
        return DataSize(self, found, 1, 0)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


def decided(low: int, high: int, comparison: str, bound: int) -> bool | None:
    """Whether ``u comparison bound`` for every ``u`` in ``[low, high]`` (True), for none (False), or neither (None)."""
    holds = COMPARISONS[comparison]
    if comparison in ("==", "!="):
        # Equal for some: only a single point decides it. Equal for none: outside.
        equal = (low == high == bound) or (None if low <= bound <= high else False)
        return equal if comparison == "==" or equal is None else not equal
    ends = {holds(low, bound), holds(high, bound)}
    return ends.pop() if len(ends) == 1 else None


@dataclass(frozen=True)
class Condition:
    """``scale * u + offset  comparison  bound``. Its truth value is asked for with ``bool``, as ``if`` does."""

    watch: Watch
    size: Size
    scale: int
    offset: int
    comparison: str
    bound: int

    @property
    def holds(self) -> bool:
        """What it is this time."""
        return COMPARISONS[self.comparison](self.scale * self.size.value + self.offset, self.bound)

    def __str__(self) -> str:
        return f"{_affine(self.size.name, self.scale, self.offset)} {self.comparison} {self.bound}"

    def known(self) -> bool | None:
        """What follows from what is known of the size."""
        ends = sorted((self.scale * self.size.low + self.offset, self.scale * self.size.high + self.offset))
        return decided(ends[0], ends[1], self.comparison, self.bound)

    def __bool__(self) -> bool:
        known = self.known()
        self.watch.events.append(Event("undecided" if known is None else "decided", str(self)))
        return self.holds

    def narrow(self) -> None:
        """From here on it is known to hold: every size of the interval for which it does not leaves at an end."""
        size = self.size
        while size.low < size.high and not self._at(size.low):
            size.low += 1
        while size.high > size.low and not self._at(size.high):
            size.high -= 1

    def _at(self, value: int) -> bool:
        return COMPARISONS[self.comparison](self.scale * value + self.offset, self.bound)


def _affine(name: str, scale: int, offset: int) -> str:
    text = name if scale == 1 else f"{scale} * {name}"
    return text if not offset else f"{text} {'+' if offset > 0 else '-'} {abs(offset)}"


class DataSize:
    """``scale * u + offset`` of a size that data decide. Taking the number out of it is written down."""

    __slots__ = ("offset", "scale", "size", "watch")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, watch: Watch, size: Size, scale: int, offset: int) -> None:
        self.watch, self.size, self.scale, self.offset = watch, size, scale, offset

    @property
    def value(self) -> int:
        """What it is this time. Only what runs the program may ask."""
        return self.scale * self.size.value + self.offset

    def __repr__(self) -> str:
        return _affine(self.size.name, self.scale, self.offset)

    def _compare(self, comparison: str, other: Any) -> Any:
        if isinstance(other, DataSize) and other.size is self.size:
            return Condition(self.watch, self.size, self.scale - other.scale, self.offset - other.offset, comparison, 0)
        if isinstance(other, bool) or not isinstance(other, int):
            return NotImplemented
        return Condition(self.watch, self.size, self.scale, self.offset, comparison, other)

    def __gt__(self, other: Any) -> Any:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> Any:
        return self._compare(">=", other)

    def __lt__(self, other: Any) -> Any:
        return self._compare("<", other)

    def __le__(self, other: Any) -> Any:
        return self._compare("<=", other)

    def __eq__(self, other: Any) -> Any:
        return self._compare("==", other)

    def __ne__(self, other: Any) -> Any:
        return self._compare("!=", other)

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __add__(self, other: Any) -> Any:
        whole = isinstance(other, int)
        return DataSize(self.watch, self.size, self.scale, self.offset + other) if whole else NotImplemented

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self + -other if isinstance(other, int) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        whole = isinstance(other, int)
        return DataSize(self.watch, self.size, self.scale * other, self.offset * other) if whole else NotImplemented

    __rmul__ = __mul__

    def __neg__(self) -> DataSize:
        return self * -1

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __index__(self) -> int:
        self.watch.events.append(Event("read", repr(self)))
        return self.value

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Beside a tensor it is a number like others."""
        return Watched.__torch_function__(func, types, args, kwargs)


SHAPE = torch.Tensor.shape.__get__  # type: ignore[attr-defined]
#: Calls that take a value out of a tensor: a question to the data.
READS = {
    torch.Tensor.__bool__, torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__int__, torch.Tensor.__float__,
    torch.Tensor.__index__, torch.Tensor.is_nonzero, torch.is_nonzero, torch.equal, torch.Tensor.equal,
    torch.allclose, torch.Tensor.allclose, torch.Tensor.numpy,
}  # fmt: skip
#: Calls whose result has as many rows as the data say.
COUNTING = {
    torch.Tensor.nonzero, torch.nonzero, torch.argwhere, torch.Tensor.argwhere,
    torch.masked_select, torch.Tensor.masked_select,
}  # fmt: skip


class Watched(torch.Tensor):
    """A tensor whose program is followed. ``rows`` is its first size where data decide it."""

    watch: Watch
    rows: DataSize | None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = next(_all(Watched, (args, kwargs)), None)
        if first is None:  # a size, and tensors that are not followed
            return func(*_plain(args), **_plain(kwargs))
        watch, rows = first.watch, next((t.rows for t in _all(Watched, (args, kwargs)) if t.rows is not None), None)
        name = getattr(func, "__name__", "a method")
        if rows is not None and first.rows is not None:
            if func == SHAPE:
                return (first.rows, *(int(size) for size in first.as_subclass(torch.Tensor).shape[1:]))
            if func in (torch.Tensor.size, torch.Tensor.__len__, torch.Tensor.numel):
                return _size_of(func, first, args, kwargs)
        if func in READS:
            watch.events.append(Event("read", name))
        result = super().__torch_function__(func, (Watched,), _plain(args), _plain(kwargs))
        masked = func is torch.Tensor.__getitem__ and any(t.dtype == torch.bool for t in _all(torch.Tensor, args[1:]))
        if func in COUNTING or masked:
            tensors = list(_all(torch.Tensor, result))
            most = int(first.as_subclass(torch.Tensor).numel())
            rows = watch.size(int(tensors[0].as_subclass(torch.Tensor).shape[0]), most)
        for tensor in _all(Watched, result):
            shape = tensor.as_subclass(torch.Tensor).shape
            tensor.watch = watch
            tensor.rows = rows if rows is not None and len(shape) and shape[0] == rows.value else None
        return result


def _size_of(func: Any, tensor: Watched, args: Any, kwargs: Any) -> Any:
    rest = [int(size) for size in tensor.as_subclass(torch.Tensor).shape[1:]]
    sizes = (tensor.rows, *rest)
    if func is torch.Tensor.numel:
        total: Any = tensor.rows
        for size in rest:
            total = total * size
        return total
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if func is torch.Tensor.__len__:
        return tensor.rows
    return sizes if dim is None else sizes[dim]


def _all(kind: type, value: Any) -> Any:
    if isinstance(value, kind):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _all(kind, part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _all(kind, part)


def _plain(value: Any) -> Any:
    """Sizes as numbers: handed to an operator they are data, and nothing is decided."""
    if isinstance(value, DataSize):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(_plain(part) for part in value)
    return value


def watched(tensor: torch.Tensor) -> tuple[Watched, Watch]:
    """A tensor to follow a program with, and where what happens is written down."""
    found = tensor.clone().as_subclass(Watched)
    found.watch, found.rows = Watch(), None
    return found, found.watch


def assertion(watch: Watch | None = None) -> Callable[..., None]:
    """What a program calls to assert a condition: ``check(condition, message)``. AssertionFailed where it does not
    hold. With a watch, a condition on a size is known from there on."""

    def check(condition: Any, message: str = "") -> None:
        if isinstance(condition, Condition):
            watch_of = condition.watch
            watch_of.events.append(Event("asserted", str(condition)))
            holds = condition.holds
            if holds:
                condition.narrow()
        else:
            value = condition.as_subclass(torch.Tensor) if isinstance(condition, torch.Tensor) else condition
            holds = bool(value)
            if watch is not None:
                watch.events.append(Event("asserted", "a condition on data"))
        if not holds:
            raise AssertionFailed(message or "the assertion does not hold")

    return check
