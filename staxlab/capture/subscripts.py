"""Which subscript was out of range (Section 6.2): the value, its place in the index tensor, and the bound it missed.

A kernel that reads at subscripts which are data checks each of them, reads nothing where the check fails, and remembers
only *that* one failed: to remember the first, in the order of the program and not of the threads, would cost every
call. So the question is asked again afterwards, of the graph: :func:`explain` computes the index tensors of its
operators, as far as nothing but what the program was given goes into them, and looks for the first bad element in
row-major order. :func:`out_of_range` asks it of one call of an operator.

Subscripts are checked by PyTorch's rules, which differ: ``x[i]``, ``take``, ``put`` and ``index_fill`` count negative
ones from the end, the others refuse them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import StaxError, SubscriptError
from ..provenance import SourceLocation
from .graph import Node, map_nodes
from .module import GraphModule, Interpreter


@dataclass(frozen=True)
class BadSubscript:
    """An element of an index tensor that is out of range.

    ``value`` stands at ``position`` of an index tensor of ``shape``; allowed are ``lowest`` to ``size - 1``.
    ``dimension`` is the indexed tensor's, or None where its elements are numbered through (``take``).
    """

    value: int
    position: tuple[int, ...]
    shape: tuple[int, ...]
    size: int
    lowest: int
    dimension: int | None

    @property
    def what(self) -> str:
        """``index 7 at position (2, 0) of the index tensor is out of bounds for dimension 1 with size 5``."""
        at = f" at position {self.position} of the index tensor" if self.position else ""
        bound = f"dimension {self.dimension} with size {self.size}"
        if self.dimension is None:
            bound = f"a tensor of {self.size} elements"
        return f"index {self.value}{at} is out of bounds for {bound}"

    def error(self, where: SourceLocation | None = None) -> SubscriptError:
        """The exception that says so."""
        remedy = f"subscripts from {self.lowest} to {self.size - 1} are valid here" if self.size else None
        return SubscriptError(self.what, where=where, remedy=remedy or "there is no element to read or write")


@dataclass(frozen=True)
class _Use:
    """One index tensor in one call: its elements subscribe a dimension of ``size`` elements."""

    index: torch.Tensor
    size: int
    dimension: int | None = 0
    negative: bool = False
    ignored: int | None = None

    def bad(self) -> torch.Tensor:
        """Where it is out of range, as bool."""
        lowest = -self.size if self.negative else 0
        found = (self.index < lowest) | (self.index >= self.size)
        return found if self.ignored is None else found & (self.index != self.ignored)


# -- the operators ----------------------------------------------------------------------------------------------------

# A rule says which of a call's arguments are subscripts of what; ``a`` has the arguments by name.
Rule = Callable[[Any], list[_Use]]


def _along(source: str, index: str = "index", negative: bool = False) -> Rule:
    def rule(a: Any) -> list[_Use]:
        tensor = a[source]
        dim = a["dim"] % max(tensor.ndim, 1)
        return [_Use(a[index], tensor.shape[dim] if tensor.ndim else 1, dim, negative)]

    return rule


def _rows(a: Any) -> list[_Use]:
    return [_Use(a["indices"], a["weight"].shape[0])]


def _numbered(a: Any) -> list[_Use]:
    return [_Use(a["index"], a["self"].numel(), None, negative=True)]


def _several(a: Any) -> list[_Use]:
    tensor, uses, dim = a["self"], [], 0
    for index in a["indices"]:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            dim += index.ndim  # a mask; its shape was checked before
            continue
        if index is not None:
            uses.append(_Use(index, tensor.shape[dim], dim, negative=True))
        dim += 1
    return uses


def _classes(a: Any) -> list[_Use]:
    dimension = int(a["self"].ndim > 1)
    return [_Use(a["target"], a["self"].shape[dimension], dimension, ignored=a["ignore_index"])]


def _one_hot(a: Any) -> list[_Use]:
    index, classes = a["tensor"], a["num_classes"]
    return [_Use(index, classes, index.ndim)] if classes > 0 else []


_RULES: dict[str, Rule] = {
    "index": _several, "index_put": _several, "_index_put_impl": _several, "take": _numbered, "put": _numbered,
    "gather": _along("self"), "index_select": _along("self"), "index_fill": _along("self", negative=True),
    "embedding": _rows, "embedding_bag": _rows, "_embedding_bag": _rows, "_embedding_bag_forward_only": _rows,
    "nll_loss_forward": _classes, "nll_loss2d_forward": _classes, "one_hot": _one_hot,
    **{name: _along("self") for name in ("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy",
                                         "index_reduce")},
}  # fmt: skip


def out_of_range(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> BadSubscript | None:
    """The first subscript of a call that is out of range; None if there is none or ``target`` has no subscripts.

    ``target`` is an operator overload, or :func:`torch.nn.functional.one_hot`, which looks at its classes itself. Of
    several index tensors, which are broadcast against each other, the first bad element decides, and at one element the
    first tensor. O(number of subscripts).
    """
    arguments = _named(target, args, kwargs)
    return _first(_RULES[_name(target)](arguments)) if arguments is not None else None


def subscript_error(
    error: Exception, target: Any, args: Sequence[Any], kwargs: dict[str, Any], where: SourceLocation | None
) -> Exception:
    """``error``, which a call has raised, or what explains it: a SubscriptError if it is about a subscript."""
    found = None if isinstance(error, StaxError) else out_of_range(target, args, kwargs)
    if found is None:
        return error
    explained = found.error(where)
    explained.__cause__ = error
    return explained


def _first(uses: list[_Use]) -> BadSubscript | None:
    if not uses or any(use.index.is_floating_point() for use in uses):
        return None
    shape = torch.broadcast_shapes(*(use.index.shape for use in uses))
    if math.prod(shape) == 0:
        return None
    bad = [use.bad().expand(shape).flatten() for use in uses]
    anywhere = torch.stack(bad).any(0)
    number = int(anywhere.int().argmax())
    if not bool(anywhere[number]):
        return None
    use = next(use for use, mask in zip(uses, bad, strict=True) if mask[number])
    kept = tuple(use.index.shape)
    place = _unravel(number, shape)[len(shape) - len(kept) :]
    position = tuple(0 if extent == 1 else k for k, extent in zip(place, kept, strict=True))
    lowest = -use.size if use.negative else 0
    return BadSubscript(int(use.index[position]), position, kept, use.size, lowest, use.dimension)


def _name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return target._opname.removesuffix("_") if target.namespace == "aten" else ""
    return "one_hot" if target is torch.nn.functional.one_hot else ""


def _named(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments by name, defaults filled in; None for what has no subscripts."""
    if _name(target) not in _RULES:
        return None
    if not isinstance(target, torch._ops.OpOverload):
        return {"num_classes": -1, **dict(zip(("tensor", "num_classes"), args, strict=False)), **kwargs}
    found = {a.name: a.default_value for a in target._schema.arguments if a.has_default_value()}
    return found | dict(zip((a.name for a in target._schema.arguments), args, strict=False)) | dict(kwargs)


def _unravel(number: int, shape: Sequence[int]) -> tuple[int, ...]:
    position = []
    for extent in reversed(shape):
        number, k = divmod(number, extent)
        position.append(k)
    return tuple(reversed(position))


# -- a graph ----------------------------------------------------------------------------------------------------------


_SUBSCRIPTS = ("index", "indices", "target", "tensor")


class _Unknown(Exception):
    """A value cannot be had again: it is drawn, or an input it stems from has been written since."""


def has_subscripts(module: GraphModule) -> bool:
    """Whether the graph has a call :func:`explain` knows something about."""
    return any(node.op == "call_function" and _name(node.target) in _RULES for node in module.graph)


# What PyTorch's operators say of a subscript, in one wording or another.
_ABOUT_SUBSCRIPTS = re.compile(r"\b(index|indices|subscripts?|out of (bounds|range)|valid range|class values)\b", re.I)


def _is_about_subscripts(error: Exception) -> bool:
    return isinstance(error, IndexError) or _ABOUT_SUBSCRIPTS.search(str(error)) is not None


def explain(
    error: Exception, module: GraphModule, inputs: Sequence[Any], written: Collection[Node] = ()
) -> SubscriptError | None:
    """Which subscript made a graph's run on ``inputs`` raise ``error``: what to raise instead. None if ``error`` is
    about something else, or no subscript is found that was out of range.

    ``written`` are the placeholders whose tensors the run modifies. Computes what index tensors are made from, and
    nothing else; most often they are inputs.
    """
    if not _is_about_subscripts(error):
        return None
    env: dict[Node, Any] = dict(zip(module.graph.placeholders, inputs, strict=False))
    for node in written:
        env.pop(node, None)
    for node in module.graph:
        if node.op == "call_function" and _name(node.target) in _RULES:
            try:
                with torch.no_grad():
                    found = _first(_RULES[_name(node.target)](_arguments(module, node, env)))
            except Exception:  # what cannot be had again; what was raised before must do
                continue
            if found is not None:
                return _as_written(found, node).error(node.location)
    return None


def _arguments(module: GraphModule, node: Node, env: dict[Node, Any]) -> dict[str, Any]:
    """A call's arguments, as far as a rule looks at them: of what is read or written only the shape."""
    found = _named(node.target, node.args, node.kwargs) or {}
    for name, value in found.items():
        if name in ("self", "weight") and isinstance(value, Node):
            found[name] = torch.empty(value.val.shape, device="meta")
        elif name in _SUBSCRIPTS:
            found[name] = map_nodes(value, lambda source: _computed(module, source, env))
    return found


def _computed(module: GraphModule, node: Node, env: dict[Node, Any]) -> Any:
    """A node's value, computed from the inputs with everything it needs. Deep graphs are walked without recursion."""
    stack = [node]
    while stack:
        top = stack[-1]
        missing = [source for source in top.inputs if source not in env] if top not in env else []
        if top not in env and not missing:
            env[top] = _run(module, top, env)
        if missing:
            stack += missing
        else:
            stack.pop()
    return env[node]


def _run(module: GraphModule, node: Node, env: dict[Node, Any]) -> Any:
    if node.op == "get_attr":
        return module.constants[node.target]
    tags = getattr(node.target, "tags", ())
    if node.op != "call_function" or torch.Tag.nondeterministic_seeded in tags:
        raise _Unknown(node.name)
    args, kwargs = (map_nodes(part, env.__getitem__) for part in (node.args, node.kwargs))
    return node.target(*args, **kwargs)


# What keeps the row-major order of elements: a position before is a position after.
_REARRANGES = frozenset({"view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "_to_copy", "where"})


def _as_written(found: BadSubscript, node: Node) -> BadSubscript:
    """The position in the tensor the user gave, where the operator is part of a larger one that was taken apart:
    ``nll_loss`` reads at ``target.unsqueeze(1)``."""
    index = node.args[2] if node.target._opname == "gather" and isinstance(node.args[2], Node) else None
    shape = found.shape
    while index is not None and index.origins == node.origins:
        if getattr(index.target, "_opname", "") not in _REARRANGES:
            break
        index = index.args[1 if index.target._opname == "where" else 0]
        if not isinstance(index, Node) or math.prod(index.val.shape) != math.prod(shape):
            break
        shape = tuple(index.val.shape)
    if shape == found.shape:
        return found
    number = 0
    for k, extent in zip(found.position, found.shape, strict=True):
        number = number * extent + k
    return BadSubscript(found.value, _unravel(number, shape), shape, found.size, found.lowest, found.dimension)


# -- a graph that runs operator by operator ---------------------------------------------------------------------------


class ExplainingInterpreter(Interpreter):
    """Runs a graph, and says which subscript was out of range where a node raises because of one."""

    def run_node(self, node: Node) -> Any:
        try:
            return super().run_node(node)
        except (IndexError, RuntimeError) as error:
            found = self._bad_subscript(node) if _is_about_subscripts(error) else None
            if found is None:
                raise
            raise found.error(node.location) from error

    def _bad_subscript(self, node: Node) -> BadSubscript | None:
        if node.op == "call_function" and _name(node.target):
            found = out_of_range(node.target, self.load(node.args), self.load(node.kwargs))
            return found if found is None or node.target is torch.nn.functional.one_hot else _as_written(found, node)
        if any(node.meta.get(fact) for fact in ("random", "mutates", "foreign")):
            return None  # what cannot be done twice
        watch = _Watch()
        try:
            with watch:  # the call fails once more, under the eyes of who knows its operators
                super().run_node(node)
        except (IndexError, RuntimeError):
            return watch.found
        return None


class _Watch(TorchDispatchMode):
    """Remembers the bad subscript of the operator that raises."""

    found: BadSubscript | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the default loads torch._dynamo, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except (IndexError, RuntimeError):
            self.found = out_of_range(func, args, kwargs or {})
            raise
