"""Functionalization (Section 4.9, Definition 4.3): writes into tensors become new values.

Recording never lets a write happen. An in-place operator is replaced by its functional twin (``add_`` by ``add``), and
the result becomes the new contents of the memory written to. If what was written is a view, the contents are put
together by the *scatter inverses* of the views on the way: for ``v = view(b)`` and new contents ``v'`` of the view,
``scatter(b, v')`` equals ``v'`` where the view looks and ``b`` elsewhere, so that ``view(scatter(b, v')) = v'``
(Proposition 4.4). Other tensors that look at the same memory are out of date from then on; the next operator that
takes one is handed its value replayed on the new contents instead. So the sample's memory, the caller's tensors above
all, is never touched, and the graph has single assignment.

At the end every input that was written gets one ``copy_``, the only effect left (Example 4.4).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from .basis import complete_arguments, is_random, written_arguments
from .structure import flatten, rebuild
from .tensors import Entry, Memory, ViewStep

if TYPE_CHECKING:
    from .record import Recorder

aten = torch.ops.aten
Tensor = torch.Tensor


class NotCovered(Exception):
    """A write that cannot be turned into values; the message says why."""


@lru_cache(maxsize=1024)
def functional_twin(func: Any) -> Any | None:
    """The overload that computes what ``func`` writes and writes nothing, or None. It takes the same arguments, but for
    the ``out=`` ones."""
    name = func._opname
    if func.namespace != "aten" or name.rstrip("_") in _UNLIKE_THEIR_TWINS:
        return None
    names = [f"{name}_functional", _TWINS.get(name), name[:-1] if name.endswith("_") else None, name]
    expected = [a.name for a in func._schema.arguments if not (a.is_out and a.kwarg_only)]
    for packet in (getattr(aten, candidate, None) for candidate in names if candidate):
        for overload in packet.overloads() if packet is not None else ():
            twin = getattr(packet, overload)
            if (
                not twin._schema.is_mutable
                and [a.name for a in twin._schema.arguments] == expected
                and _alike(func, twin)
            ):
                return twin
    return None


@lru_cache(maxsize=1024)
def _argument_names(func: Any) -> frozenset[str]:
    return frozenset(argument.name for argument in func._schema.arguments)


def _alike(func: Any, twin: Any) -> bool:
    """Whether the arguments of both have the same types."""
    types = {a.name: _bare(a) for a in func._schema.arguments}
    return all(types.get(a.name) == _bare(a) for a in twin._schema.arguments)


def _bare(argument: Any) -> str:
    """The type; a twin may insist on an argument that the original may leave out."""
    return str(argument.type).removeprefix("Optional[").removesuffix("]")


# The functional version gives its result another layout.
_UNLIKE_THEIR_TWINS = {"rrelu_with_noise"}

_TWINS = {
    "normal_": "normal_functional",
    "_index_put_impl_": "index_put",
    "native_batch_norm": "_native_batch_norm_legit_functional",
}


# -- scatter inverses -------------------------------------------------------------------------------------------------

INVERSES: dict[Any, Callable[..., Tensor]] = {}


def inverse_of(*overloads: Any) -> Callable[[Callable], Callable]:
    """Decorator: the function ``scatter(base, contents, *view arguments)`` inverts these view operators."""

    def register(function: Callable) -> Callable:
        for overload in overloads:
            INVERSES[overload] = function
        return function

    return register


@inverse_of(aten.select.int)
def _unselect(base: Tensor, contents: Tensor, dim: int, position: int) -> Tensor:
    return aten.select_scatter.default(base, contents, dim, position)


@inverse_of(aten.slice.Tensor)
def _unslice(base: Tensor, contents: Tensor, dim: int = 0, start=None, end=None, step: int = 1) -> Tensor:
    return aten.slice_scatter.default(base, contents, dim, start, end, step)


@inverse_of(aten.diagonal.default)
def _undiagonal(base: Tensor, contents: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    return aten.diagonal_scatter.default(base, contents, offset, dim1, dim2)


@inverse_of(aten.t.default)
def _untranspose_matrix(base: Tensor, contents: Tensor) -> Tensor:
    return aten.t.default(contents)


@inverse_of(aten.transpose.int)
def _untranspose(base: Tensor, contents: Tensor, first: int, second: int) -> Tensor:
    return aten.transpose.int(contents, first, second)


@inverse_of(aten.permute.default)
def _unpermute(base: Tensor, contents: Tensor, order: list[int]) -> Tensor:
    rank = base.dim()
    back = [0] * rank
    for place, dimension in enumerate(order):
        back[dimension % rank] = place
    return aten.permute.default(contents, back)


@inverse_of(
    aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim,
    aten.squeeze.dims,
)  # fmt: skip
def _unreshape(base: Tensor, contents: Tensor, *_: Any) -> Tensor:
    return contents.reshape(base.shape)


@inverse_of(aten.alias.default, aten.detach.default)
def _unalias(base: Tensor, contents: Tensor, *_: Any) -> Tensor:
    return contents


def _scatter(base: Tensor, contents: Tensor, step: ViewStep) -> Tensor:
    if step.part is not None:
        return _scatter_part(base, contents, step)
    inverse = INVERSES.get(step.function)
    if inverse is None:
        raise NotCovered(f"a view by {step.function} has no scatter inverse")
    return inverse(base, contents, *step.args, **dict(step.kwargs))


def _scatter_part(base: Tensor, contents: Tensor, step: ViewStep) -> Tensor:
    """One of the parts of a split or unbind is a slice or a selection."""
    dim = dict(step.kwargs).get("dim", step.args[-1] if step.function is aten.unbind.int and step.args else 0)
    if step.function is aten.unbind.int:
        return aten.select_scatter.default(base, contents, dim, step.part)
    if step.function not in (aten.split.Tensor, aten.split_with_sizes.default):
        raise NotCovered(f"a view by {step.function} has no scatter inverse")
    dim = step.args[1] if len(step.args) > 1 else dict(step.kwargs).get("dim", 0)
    sizes = step.args[0]
    start = sizes * step.part if isinstance(sizes, int) else sum(sizes[: step.part])
    return aten.slice_scatter.default(base, contents, dim, start, start + contents.shape[dim], 1)


# -- writes -----------------------------------------------------------------------------------------------------------


class Functionalizer:
    """Carries out writes on behalf of a recorder. Everything runs under the recorder's mode and is thus recorded."""

    def __init__(self, recorder: Recorder):
        self.recorder = recorder
        self.table = recorder.table
        self.active = False  # whether any memory has been written yet

    def present(self, structure: Any, *, only_read: bool = False) -> Any:
        """The arguments with out-of-date tensors replaced by their values as of now. ``only_read`` says that the call
        neither writes into them nor returns something that looks at them."""
        if not self.active:
            return structure
        leaves = [self.current(x, only_read=only_read) if isinstance(x, Tensor) else x for x in flatten(structure)]
        return rebuild(structure, leaves)

    def current(self, tensor: Tensor, *, only_read: bool = False) -> Tensor:
        """The tensor that has the contents of ``tensor`` now. It looks at the memory's own contents, so that a write
        into it, or into a view of it, is seen by all who share the memory. For ``only_read`` the value that was written
        last will do, which saves undoing the scatter (Proposition 4.4)."""
        entry = self.table.get(tensor)
        if entry is None:
            return tensor
        if only_read and entry.written is not None and entry.written_version == entry.memory.version:
            return entry.written
        if not entry.is_current:
            with self.recorder:
                value = entry.memory.value
                for step in entry.chain:
                    value = step(value)
            entry.value, entry.version = value, entry.memory.version
            entry.node = self.table.get(value).node
        return tensor if entry.value is None else entry.value

    def write(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Record a call that writes. Returns what the call returns. Raises NotCovered, leaving nothing written."""
        if torch.Tag.inplace_view in func.tags:
            return self._change_view(func, args, kwargs)
        twin = functional_twin(func)
        if twin is None:
            raise NotCovered(f"{func} has no functional twin")
        targets = written_arguments(func, args, kwargs)
        tensors = [x for x in flatten((args, kwargs)) if isinstance(x, Tensor)]
        if is_random(func) and not all(x.is_contiguous() for x in tensors):
            raise NotCovered("the order in which it draws random numbers follows a layout that a copy may not have")
        entries = [self._writable(target) for target in targets]
        if len(targets) > 1:
            self._check_separate(args, kwargs, targets)
        given, named = complete_arguments(
            func, self.present(args, only_read=True), self.present(kwargs, only_read=True)
        )
        named = {name: value for name, value in named.items() if name in _argument_names(twin)}
        with self.recorder:
            result = twin(*given, **named)
            results = list(result) if isinstance(result, (tuple, list)) else [result]
            fresh = results[len(results) - len(targets) :]
            for target, entry, value in zip(targets, entries, fresh, strict=True):
                self._store(target, entry, value)
        if not func._schema.returns:
            return None
        if len(func._schema.returns) == 1 and func._schema.returns[0].alias_info is not None:
            return targets[0]
        kept = results[: len(results) - len(targets)]
        return kept[0] if len(kept) == 1 else tuple(kept)

    def _writable(self, target: Tensor) -> Entry:
        entry = self.table.get(target)
        if entry is None:
            self.recorder.node_of(target)
            entry = self.table.get(target)
        if entry.memory.protected:
            raise NotCovered(f"it writes into {entry.memory.protected}")
        for step in entry.chain:
            if step.function not in INVERSES and step.part is None:
                raise NotCovered(f"it writes through {step.function}, which has no scatter inverse")
        base = self._first(target, entry)
        if not _are_apart(base):
            raise NotCovered(f"it writes into a tensor whose elements share memory (stride {tuple(base.stride())})")
        return entry

    def _check_separate(self, args: tuple, kwargs: dict[str, Any], targets: list[Tensor]) -> None:
        """A call that writes several tensors does so one after the other, and its twin all at once. These are equal if
        nothing that one of the writes changes is read or written by another: ``torch._foreach_add_([a, b], [c, d])``
        where ``b`` and ``d`` are apart from ``a``."""
        memories = [self.table.get(target).memory for target in targets]
        if len(set(memories)) != len(memories):
            raise NotCovered("two of the tensors it writes share memory")
        given = [*args, *kwargs.values()]
        in_lists = any(isinstance(x, (list, tuple)) and any(leaf is targets[0] for leaf in x) for x in given)
        for argument in given:
            if not in_lists and any(argument is target for target in targets):
                continue  # one of those that are written, each an argument of its own
            in_step = isinstance(argument, (list, tuple)) and len(argument) == len(targets)
            for place, leaf in enumerate(flatten(argument)):
                entry = self.table.get(leaf) if isinstance(leaf, Tensor) else None
                if entry is None:
                    continue
                others = [memory for k, memory in enumerate(memories) if not (in_step and k == place)]
                if entry.memory in others:
                    raise NotCovered("a tensor that it reads shares memory with one that it writes before")

    def _first(self, target: Tensor, entry: Entry) -> Tensor:
        """The tensor the memory of ``target`` was made for, with its latest contents."""
        if entry.memory.value is not None:
            return entry.memory.value
        return entry.owner.tensor if entry.owner is not None else target

    def _store(self, target: Tensor, entry: Entry, value: Tensor) -> None:
        """Make ``value`` the contents of ``target`` and, through its chain of views, of the memory behind it."""
        if value.shape != target.shape:
            raise NotCovered("it changes the size of a tensor")
        if value.dtype != target.dtype:
            value = aten._to_copy.default(value, dtype=target.dtype)
        memory, base = entry.memory, self._first(target, entry)
        seen = [base]
        for step in entry.chain:
            seen.append(step(seen[-1]))
        contents = value
        for viewed, step in zip(reversed(seen[:-1]), reversed(entry.chain), strict=True):
            contents = _scatter(viewed, contents, step)
        if tuple(contents.stride()) != memory.stride or self.table.get(contents) is None or contents is base:
            contents = aten.copy.default(base, contents)
        self.replace(memory, contents)
        # What is written has other memory than what it is written into: good enough to be read, not to be looked at by
        # a view, which must see the contents.
        if value is not contents and value.stride() == target.stride() and self.table.get(value) is not None:
            entry.written, entry.written_version = value, memory.version

    def replace(self, memory: Memory, contents: Tensor) -> None:
        """Give ``memory`` other contents. Every tensor that looks at it is out of date now."""
        self.active = True
        self.table.rehome(contents, memory)

    def _change_view(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Tensor:
        """``squeeze_`` and its kind change what a tensor object looks at and no contents."""
        target = args[0]
        twin, entry = functional_twin(func), self._writable(target)
        if twin is None or entry.memory.placeholder is not None and not entry.chain:
            raise NotCovered("it changes the shape of a tensor that is not the program's own")
        if not entry.chain and entry.memory.owner is not None and entry.memory.owner() is not None:
            raise NotCovered("it changes the shape of a tensor that has views")
        was_itself = self.current(target) is target
        with self.recorder:
            value = twin(self.current(target), *args[1:], **kwargs)
        func(*args, **kwargs)  # no contents change; only this object's shape does
        seen = self.table.get(value)
        if entry.chain:
            entry.chain = seen.chain
        else:
            literal = entry.memory.literal and was_itself  # still the graph's own, which the caller must not get
            entry.memory = Memory(tuple(target.stride()), seen.node.name, literal=literal)
            entry.version = 0
            if not was_itself:
                self.replace(entry.memory, value)
                entry.version = entry.memory.version
        entry.node, entry.value, entry.written = seen.node, None if was_itself else value, None
        return target


def _are_apart(tensor: Tensor) -> bool:
    """Whether no two elements share an address, as far as the strides say so plainly: each dimension steps over all
    that the smaller ones reach."""
    reach = 0
    for stride, extent in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1):
        if stride <= reach:
            return tensor.numel() == 0
        reach += (extent - 1) * stride
    return True
