"""Functionalization (Section 4.9, Definition 4.3): writes into tensors become new values.

Recording never lets a write happen. An in-place operator is replaced by its functional twin (``add_`` by ``add``), and
the result becomes the new contents of the memory written to. If what was written is a view, the contents are put
together by the *scatter inverses* of the views on the way (:mod:`.scatter`, Proposition 4.4). Other tensors
that look at the same memory are out of date from then on; the next operator that takes one is handed its value replayed
on the new contents instead. So the sample's memory, the caller's tensors above all, is never touched, and the graph has
single assignment.

At the end every input that was written gets one ``copy_``, the only effect left (Example 4.4). Inputs that share memory
are one memory here as well: if one of them covers the others, these are views of it (:meth:`Functionalizer.share`), and
it alone gets the new contents. That holds for every call that shares the program, because how inputs overlap is part of
the specialization key (Section 2.1).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from ..capture.graph import Node
from .basis import complete_arguments, is_random, written_arguments
from .extent import apart, contains, is_injective, memory_order, route
from .scatter import INVERSES, NotCovered, scatter
from .structure import flatten, rebuild
from .tensors import Entry, Home, Memory, Owner, ViewStep, Window, distance, storage_key

if TYPE_CHECKING:
    from .record import Recorder

aten = torch.ops.aten
Tensor = torch.Tensor


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


# -- writes -----------------------------------------------------------------------------------------------------------


#: Random operators that fill a CPU tensor without gaps in the order of its memory (all of PyTorch's but ``normal_``).
_IN_MEMORY_ORDER = frozenset("bernoulli_ uniform_ exponential_ random_ geometric_ cauchy_ log_normal_".split())


def _drawing_order(func: Any, tensors: list[Tensor]) -> list[int] | None:
    """The order of dimensions in which a random operator's one tensor is contiguous, where it draws in that order."""
    if len(tensors) != 1 or func._opname not in _IN_MEMORY_ORDER or tensors[0].device.type != "cpu":
        return None
    (tensor,) = tensors
    order = memory_order(tensor.shape, tensor.stride())
    return order if tensor.permute(order).is_contiguous() else None


class Functionalizer:
    """Carries out writes on behalf of a recorder. Everything runs under the recorder's mode and is thus recorded."""

    def __init__(self, recorder: Recorder):
        self.recorder = recorder
        self.table = recorder.table
        self.active = False  # whether any memory has been written yet
        self.counts: dict[Node, int] = {}  # writes into an input, as its version counter shows them
        self.inputs: list[Memory] = []  # what belongs to the caller

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
            made = self.table.get(value)
            entry.node, made.home, made.counted = made.node, entry.home, entry.counted
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
        order = None
        if is_random(func) and not all(x.is_contiguous() for x in tensors):
            order = _drawing_order(func, tensors)
            if order is None:
                why = "the order in which it draws random numbers follows a layout that a copy may not have"
                raise NotCovered(why, "random-layout")
        ways = [self._way(target, func in UNIFORM) for target in targets]
        if len(targets) > 1:
            self._check_separate(args, kwargs, targets)
        else:
            self._check_order(targets[0], tensors)
        given, named = complete_arguments(
            func, self.present(args, only_read=True), self.present(kwargs, only_read=True)
        )
        named = {name: value for name, value in named.items() if name in _argument_names(twin)}
        with self.recorder:
            if order is not None:  # drawn as it lies in memory, then seen as it was
                moved = twin(aten.permute.default(given[0], order), *given[1:], **named)
                result = aten.permute.default(moved, [order.index(d) for d in range(len(order))])
            else:
                result = twin(*given, **named)
            results = list(result) if isinstance(result, (tuple, list)) else [result]
            fresh = results[len(results) - len(targets) :]
            for target, way, value in zip(targets, ways, fresh, strict=True):
                self._store(target, way, value)
        if func._schema.is_mutable and func not in _UNCOUNTED:
            self._count(targets)
        if not func._schema.returns:
            return None
        if len(func._schema.returns) == 1 and func._schema.returns[0].alias_info is not None:
            return targets[0]
        kept = results[: len(results) - len(targets)]
        return kept[0] if len(kept) == 1 else tuple(kept)

    def _count(self, targets: Sequence[Tensor]) -> None:
        """Eager execution counts each write in the version counter of the tensor, which its views share."""
        for entry in map(self.table.get, targets):
            if entry.home is not None and entry.counted:
                node = entry.home.placeholder
                self.counts[node] = self.counts.get(node, 0) + 1

    def _entry(self, target: Tensor) -> Entry:
        entry = self.table.get(target)
        if entry is None:
            self.recorder.node_of(target)
            entry = self.table.get(target)
        return entry

    def _way(self, target: Tensor, uniform: bool = False) -> Way:
        """How new contents of ``target`` get into its memory. NotCovered if they cannot. ``uniform`` says that all
        elements will be equal: then it does not matter if some share memory."""
        entry = self._entry(target)
        if target.layout != torch.strided:
            raise NotCovered(f"it writes into a tensor of layout {target.layout}")
        memory, window = entry.memory, Window.of(target, entry.start)
        if memory.protected:
            kind, why = memory.protected
            raise NotCovered(f"it writes into {why}", kind)
        if not is_injective(memory.window):
            raise NotCovered(f"it writes into a tensor whose elements share memory ({_layout(target)})", "overlap")
        if entry.is_plain:
            for step in entry.chain:
                if step.function not in INVERSES and step.part is None:
                    raise NotCovered(f"it writes through {step.function}, which has no scatter inverse")
            return Way(entry, entry.chain)
        repeated = tuple(k for k, n in enumerate(window.shape) if n > 1 and window.stride[k] == 0 and uniform)
        kept = [k for k in range(len(window.shape)) if k not in repeated]
        window = replace(
            window, shape=tuple(window.shape[k] for k in kept), stride=tuple(window.stride[k] for k in kept)
        )
        if not is_injective(window):
            raise NotCovered(f"it writes into a tensor whose elements share memory ({_layout(target)})", "overlap")
        chain = route(memory.window, window) if _are_alike(target, self._first(target, entry)) else None
        if chain is None and window.numel:
            raise NotCovered(
                f"it writes into a part of a tensor that views do not reach ({_layout(target)})", "overlap"
            )
        return Way(entry, chain or (), repeated)

    def _check_order(self, target: Tensor, tensors: Sequence[Tensor]) -> None:
        """A call that reads what it writes, element by element at the same place, reads it before. At other places
        (``x[:, 1:].add_(x[:, :-1])``) what it reads depends on the order in which PyTorch goes over the elements, where
        PyTorch does not refuse it."""
        entry = self.table.get(target)
        own = Window.of(target, entry.start)
        for tensor in tensors:
            known = self.table.get(tensor) if tensor is not target else None
            if known is None or known.memory is not entry.memory or Window.of(tensor, known.start) == own:
                continue
            if not self._are_apart([tensor, target]):
                raise NotCovered("it reads elements at other places than it writes them, in PyTorch's order", "overlap")

    def _check_separate(self, args: tuple, kwargs: dict[str, Any], targets: list[Tensor]) -> None:
        """A call that writes several tensors does so one after the other, and its twin all at once. These are equal if
        nothing that one of the writes changes is read or written by another: ``torch._foreach_add_([a, b], [c, d])``
        where ``b`` and ``d`` are apart from ``a``."""
        if not self._are_apart(targets):
            raise NotCovered("two of the tensors it writes share memory", "written-twice")
        by_memory: dict[Memory, list[tuple[int, Tensor]]] = {}
        for place, target in enumerate(targets):
            by_memory.setdefault(self.table.get(target).memory, []).append((place, target))
        given = [*args, *kwargs.values()]
        in_lists = any(isinstance(x, (list, tuple)) and any(leaf is targets[0] for leaf in x) for x in given)
        for argument in given:
            if not in_lists and any(argument is target for target in targets):
                continue  # one of those that are written, each an argument of its own
            in_step = isinstance(argument, (list, tuple)) and len(argument) == len(targets)
            for place, leaf in enumerate(flatten(argument)):
                known = self.table.get(leaf) if isinstance(leaf, Tensor) else None
                if known is None or in_step and leaf is targets[place]:
                    continue  # the targets are apart, as has been seen
                others = [target for k, target in by_memory.get(known.memory, ()) if not (in_step and k == place)]
                if any(not self._are_apart([leaf, other]) for other in others):
                    why = "a tensor that it reads shares memory with one that it writes before"
                    raise NotCovered(why, "written-twice")

    def _are_apart(self, tensors: Sequence[Tensor]) -> bool:
        """Whether no two of them have a byte in common."""
        by_memory: dict[Memory, list[Window]] = {}
        for tensor in tensors:
            entry = self._entry(tensor)
            by_memory.setdefault(entry.memory, []).append(Window.of(tensor, entry.start))
        return all(apart(windows) for windows in by_memory.values())

    def _first(self, target: Tensor, entry: Entry) -> Tensor:
        """The tensor the memory of ``target`` was made for, with its latest contents."""
        if entry.memory.value is not None:
            return entry.memory.value
        return entry.owner.tensor if entry.owner is not None else target

    def _store(self, target: Tensor, way: Way, value: Tensor) -> None:
        """Make ``value`` the contents of ``target`` and, through its chain of views, of the memory behind it."""
        if value.shape != target.shape:
            raise NotCovered("it changes the size of a tensor", "reshaped")
        if value.dtype != target.dtype:
            value = aten._to_copy.default(value, dtype=target.dtype)
        if value.numel() == 0:
            return
        entry, memory, base = way.entry, way.entry.memory, self._first(target, way.entry)
        seen = [base]
        for step in way.chain:
            seen.append(step(seen[-1]))
        contents = value
        for dimension in reversed(way.repeated):
            contents = aten.select.int(contents, dimension, 0)
        for viewed, step in zip(reversed(seen[:-1]), reversed(way.chain), strict=True):
            contents = scatter(viewed, contents, step)
        if tuple(contents.stride()) != memory.window.stride or self.table.get(contents) is None or contents is base:
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
        twin, entry = functional_twin(func), self._entry(target)
        if entry.memory.protected:
            kind, why = entry.memory.protected
            raise NotCovered(f"it writes into {why}", kind)
        if twin is None or entry.home is not None and entry.home.tensor() is target:
            raise NotCovered("it changes the shape of a tensor that is not the program's own", "reshaped")
        was_itself = self.current(target) is target
        with self.recorder:
            value = twin(self.current(target), *args[1:], **kwargs)
        seen = self.table.get(value)
        owner = entry.memory.owner() if entry.memory.owner is not None else None
        if not entry.chain and owner is not None:  # its views keep looking at what it was
            owner.tensor, entry.owner, entry.chain = self.table.stand_in(target), owner, seen.chain
        func(*args, **kwargs)  # no contents change; only this object's shape does
        if entry.chain:
            entry.chain, entry.start, entry.is_plain = seen.chain, seen.start, seen.is_plain
        else:
            literal = entry.memory.literal and was_itself  # still the graph's own, which the caller must not get
            entry.memory = Memory(Window.of(target), seen.node.name, literal=literal)
            entry.version = 0
            if not was_itself:
                self.replace(entry.memory, value)
                entry.version = entry.memory.version
        entry.node, entry.value, entry.written = seen.node, None if was_itself else value, None
        self._count([target])
        return target

    # -- memory that is addressed otherwise than by views --------------------------------------------------------------

    def chain(self, viewed: Tensor, tensor: Tensor, step: ViewStep) -> tuple[tuple[ViewStep, ...], bool]:
        """The chain of views that leads to ``tensor``, which ``step`` makes of ``viewed``; and whether no two elements
        share memory anywhere on it."""
        known = self.table.get(viewed)
        window = Window.of(tensor, known.start + distance(viewed, tensor))
        if step.function not in _MAY_OVERLAP or tensor.numel() == 0:
            return (*known.chain, step), known.is_plain
        plain = known.is_plain and is_injective(window)
        if step.function is not aten.as_strided.default:
            return (*known.chain, step), plain
        # The operator counts from the start of a storage, of which contents that take its place know nothing.
        memory, offset = known.memory, step.args[2] if len(step.args) > 2 else dict(step.kwargs).get("storage_offset")
        if memory.home is not None and offset is not None:
            self.protect(memory, "memory that as_strided addresses from the start of the caller's storage", "outside")
        ways = route(Window.of(viewed, known.start), window)
        if ways is not None:
            return (*known.chain, replace(step, route=ways)), plain
        alike = _are_alike(tensor, self._first(viewed, known))
        ways = route(memory.window, window) if alike else None
        if ways is not None:
            return ways, plain
        inside = contains(memory.window, window) and alike
        why = "in an order that views do not have" if inside else "where no element of it is"
        self.protect(memory, f"memory that as_strided addresses {why}", "outside")
        return (*known.chain, step), plain

    def protect(self, memory: Memory, why: str, kind: str) -> None:
        """Let nothing be written into ``memory`` from now on. NotCovered if something has been. Beyond the elements of
        an input may lie those of another one, in this call or in a later one: inputs are protected together."""
        together = [memory] if memory.home is None else [*dict.fromkeys((memory, *self.inputs))]
        for each in together:
            each.protected = each.protected or (kind, why)
        if any(each.version > 0 for each in together):
            raise NotCovered(f"it looks at {why}, after a write", kind)

    def share(self, inputs: Sequence[Tensor]) -> None:
        """Make inputs that have bytes in common views of the one among them that covers the others. Where there is
        none, nothing may be written into them."""
        for group in _sharing(inputs):
            entries = [self.table.get(tensor) for tensor in group]
            start = min(tensor.data_ptr() for tensor in group)
            windows = [Window.of(tensor, tensor.data_ptr() - start) for tensor in group]
            for owner, outer in zip(entries, windows, strict=True):
                chains = [() if inner is outer else route(outer, inner) for inner in windows]
                alike = _are_alike(*group) and len(set(map(storage_key, group))) == 1
                if alike and None not in chains and is_injective(outer):
                    kept = Owner(owner.reference())
                    owner.memory.owner = weakref.ref(kept)
                    for entry, inner, chain in zip(entries, windows, chains, strict=True):
                        if entry is not owner:
                            entry.memory, entry.owner, entry.chain = owner.memory, kept, chain
                            entry.start, entry.is_plain = inner.start - outer.start, is_injective(inner)
                            entry.home = Home(entry.home.placeholder, entry.reference, len(chain))
                    break
            else:
                for entry in entries:
                    entry.memory.protected = ("shared-input", "memory that several inputs share in part")
        self.inputs = [self.table.get(tensor).memory for tensor in inputs]


@dataclass(frozen=True)
class Way:
    """From a tensor that is written to its memory: the chain of views whose inverses put the contents together, after
    all but the first element along the ``repeated`` dimensions, which show the same, have been left out."""

    entry: Entry
    chain: tuple[ViewStep, ...]
    repeated: tuple[int, ...] = ()


# Operators that give all elements one value.
UNIFORM = frozenset({aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default})

# Operators that write (running statistics) and raise no version counter.
_UNCOUNTED = frozenset({aten._native_batch_norm_legit.default, aten._batch_norm_with_update.default})

# View operators that may show an element twice.
_MAY_OVERLAP = frozenset({aten.expand.default, aten.unfold.default, aten.as_strided.default})


def _layout(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)}, stride {tuple(tensor.stride())}"


def _sharing(inputs: Sequence[Tensor]) -> list[list[Tensor]]:
    """The inputs in groups that have bytes in common, directly or through others; only groups of two or more. By
    address, as in the specialization key: two storages may lie on the same memory (``torch.from_numpy`` twice)."""
    given = [x for x in inputs if x.layout == torch.strided and x.numel() and x.device.type in ("cpu", "cuda")]
    given.sort(key=lambda x: x.data_ptr())
    groups: list[list[Tensor]] = []
    end = 0
    for tensor in given:  # first by what they span
        window = Window.of(tensor, tensor.data_ptr())
        if groups and window.start < end:
            groups[-1].append(tensor)
        else:
            groups.append([tensor])
        end = max(end, window.end)
    return [part for group in groups if len(group) > 1 for part in _connected(group)]


def _are_alike(*tensors: Tensor) -> bool:
    """Whether the same bytes are the same numbers in all of them."""
    return len({(x.dtype, x.is_neg(), x.is_conj()) for x in tensors}) == 1


def _connected(tensors: list[Tensor]) -> list[list[Tensor]]:
    parts: list[list[Tensor]] = []
    for tensor in tensors:
        window = Window.of(tensor, tensor.data_ptr())
        near = [p for p in parts if any(not apart([window, Window.of(x, x.data_ptr())]) for x in p)]
        parts = [p for p in parts if p not in near] + [[*(x for p in near for x in p), tensor]]
    return [part for part in parts if len(part) > 1]
