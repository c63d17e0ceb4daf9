"""Where a captured graph depends on shapes other than through its operations (gamma_s, Section 2.2).

A graph whose nodes run as PyTorch's own operators serves every size, unless a number that came from a shape has been
written into it. Such a number has to enter the key, and with it the exact shapes of the inputs it was computed from:
the placeholders in its backward slice. Numbers get in where

* Python code read a shape, a length or strides (``x.shape[0]``, ``len(x)``, ``x.is_contiguous()``);
* an operation returned a tuple with one part for each row or chunk (``unbind``, ``split``, ``for row in x``): Python
  saw how many there are;
* an operation returned one of its arguments as it was (``x.contiguous()``, ``torch.broadcast_tensors``), because sizes
  happened to be such. The graph then reads the argument, where at other sizes it would have to read the copy;
* Python code read a rank or a dtype that depends on sizes, because ``squeeze`` stands before it;
* the function compares objects by identity (``y is x``), and an operation may return its argument at other sizes;
* an operation met a tensor without elements. Many return at once then, and what was observed of the call (does it
  write, does it draw random numbers?) need not hold elsewhere.

Strides of a placeholder follow from its sizes as the key says, so asking an input for ``is_contiguous()`` needs no
exact shape. Free tensors enter the key with theirs anyway.
"""

from __future__ import annotations

import dis
import functools
import operator
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .gates import backward_slice
from .graph import Graph, Node, TensorMeta
from .values import call_with_autocast

# Operations whose result has more or fewer dimensions depending on sizes.
_RANK_VARIES = frozenset({"squeeze", "squeeze_", "squeeze_copy", "cov", "corrcoef", "lstsq", "linalg_lstsq"})

# Operations that return lists, but always as many parts as their other arguments say.
_FIXED_COUNT = frozenset({"meshgrid", "broadcast_tensors", "align_tensors", "tensor_split", "split_with_sizes",
                          "hsplit", "vsplit", "dsplit", "atleast_1d", "atleast_2d", "atleast_3d", "where", "nonzero",
                          "multi_head_attention_forward"})  # fmt: skip

# Operations that return their argument itself or not by rank, dtype and options alone.
_SAME_BY_KIND = frozenset({"to", "type", "type_as", "float", "double", "half", "bfloat16", "int", "long", "short",
                           "char", "byte", "bool", "cfloat", "cdouble", "chalf", "cpu", "cuda", "real", "conj",
                           "resolve_conj", "resolve_neg", "positive", "pos", "flatten", "ravel", "atleast_1d",
                           "atleast_2d", "atleast_3d", "requires_grad_", "dropout", "alpha_dropout",
                           "feature_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d",
                           "dropout3d"})  # fmt: skip

# Operations that return their argument itself or a copy by sizes and strides.
_SAME_BY_SIZE = frozenset({"contiguous", "sum_to_size", "broadcast_tensors", "to"})

# Views that are new tensors even where nothing changes.
_NEVER_SAME = frozenset({"squeeze", "view", "detach"})


#: In a node's metadata: decisions about sizes account for how many parts it returned (:mod:`.sizes`).
PARTS_TOLD = "parts_told"


#: How a number from a shape gets into a graph.
READ, EMPTY, PARTS, SAME, IDENTITY, KIND = "read", "no elements", "parts", "same tensor", "identity", "rank or dtype"


@dataclass(frozen=True)
class ShapeUse:
    """A node from whose shape a constant of the graph came, and how it got there: in words, and as one of the kinds
    above."""

    node: Node
    what: str
    kind: str

    def __str__(self) -> str:
        return f"%{self.node.name}: {self.what}" + (f"   ({self.node.location})" if self.node.location else "")


def shape_uses(
    graph: Graph, shape_reads: Iterable[Any], kind_reads: Iterable[Node], identities_count: bool
) -> Iterator[ShapeUse]:
    """Every place where something about shapes became a constant. O(V + E) for each kind read, O(V) else.

    ``shape_reads`` are the tracer's :class:`~staxlab.capture.record.ShapeRead`; ``kind_reads`` the nodes whose rank or
    dtype was read; ``identities_count`` says whether the function compares objects by identity.
    """
    for read in shape_reads:
        if not (read.attribute == "is_contiguous" and _has_elements(read.node) and read.node.op == "placeholder"):
            yield ShapeUse(read.node, f"Python code read .{read.attribute}", READ)
    kinds = list(kind_reads)
    for node in graph:
        if not node.op.startswith("call_"):
            continue
        name = _called(node)
        if any(isinstance(v, TensorMeta) and v.numel == 0 for v in _values_around(node)) and not _is_operator(node):
            yield ShapeUse(node, "computed on a tensor without elements", EMPTY)
        if isinstance(node.val, (tuple, list)) and not isinstance(node.val, torch.Size):
            if not _has_fixed_count(node, name) and not node.meta.get(PARTS_TOLD):
                yield ShapeUse(node, f"returned {len(node.val)} parts", PARTS)
            kinds.append(node)
        views = node.meta.get("aliases") and not node.meta.get("mutates") and name not in _NEVER_SAME
        if views and _may_be_its_argument(node):
            if name in _SAME_BY_KIND and not any(isinstance(a, torch.memory_format) for a in _options(node)):
                kinds.append(node)
            elif not _follows_from_strides(node, name):
                yield ShapeUse(node, "returned its argument as it was", SAME)
        elif identities_count and name in _SAME_BY_SIZE and not _follows_from_strides(node, name):
            yield ShapeUse(node, "returned a tensor whose identity may be asked for", IDENTITY)
    for node in dict.fromkeys(kinds):
        varying = next((n for n in backward_slice([node]) if _rank_varies(n)), None)
        if varying is not None:
            yield ShapeUse(node, f"Python code read its rank or dtype, which {varying.format()} may change", KIND)


def pinned_inputs(graph: Graph, uses: Iterable[ShapeUse]) -> frozenset[Node]:
    """The placeholders whose exact shapes decide those constants: the ones in the backward slices of their nodes,
    through all argument edges."""
    return frozenset(node for node in backward_slice(use.node for use in uses) if node.op == "placeholder")


@functools.lru_cache(maxsize=4096)
def asks_for_types(code: types.CodeType) -> bool:
    """Whether code, or a function written inside it, calls the builtin ``type``."""
    if any(isinstance(constant, types.CodeType) and asks_for_types(constant) for constant in code.co_consts):
        return True
    return any(i.opname in ("LOAD_GLOBAL", "LOAD_NAME") and i.argval == "type" for i in dis.get_instructions(code))


@functools.lru_cache(maxsize=4096)
def compares_identities(code: types.CodeType) -> bool:
    """Whether code, or a function written inside it, compares with ``is``, other than with a constant."""
    if any(isinstance(constant, types.CodeType) and compares_identities(constant) for constant in code.co_consts):
        return True
    before = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IS_OP" and before != "LOAD_CONST":
            return True
        before = instruction.opname
    return False


def _follows_from_strides(node: Node, name: str) -> bool:
    """``x.contiguous()`` of an input: whether it is a copy follows from the strides in the key."""
    return name == "contiguous" and not _options(node) and node.inputs[0].op == "placeholder"


def _called(node: Node) -> str:
    """The name of what a node calls, without regard to an autocast state around it."""
    target = node.args[1] if node.target is call_with_autocast else node.target
    if target is getattr and len(node.args) > 1:
        target = node.args[1]
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def _options(node: Node) -> list[Any]:
    """The arguments that are no tensors."""
    arguments = node.args[2:] if node.target is call_with_autocast else node.args
    return [a for a in (*arguments, *node.kwargs.values()) if not isinstance(a, Node)]


def _is_operator(node: Node) -> bool:
    return getattr(node.target, "__module__", None) == "_operator"


def _has_elements(node: Node) -> bool:
    return isinstance(node.val, TensorMeta) and node.val.numel > 0


def _values_around(node: Node) -> Iterator[Any]:
    for source in (node, *node.inputs):
        yield from source.val if isinstance(source.val, (tuple, list)) else (source.val,)


def _has_fixed_count(node: Node, name: str) -> bool:
    """Whether a call returns equally many parts at every size."""
    if name in _FIXED_COUNT:
        return True
    if name.endswith("split"):  # split(sizes), with a part for each; a number stands for equal parts, as many as fit
        return any(isinstance(option, (list, tuple)) for option in _options(node))
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name.rpartition('.')[2]}")
    return bool(schemas) and not any("List" in str(result.type) for schema in schemas for result in schema.returns)


def _may_be_its_argument(node: Node) -> bool:
    """Whether some result that nothing reads looks like an argument. The tracer knows a tensor by its identity, so a
    call that returns its own argument leaves behind a node without users."""
    sources = {_layout(source.val) for source in node.inputs if isinstance(source.val, TensorMeta)}
    for source in node.inputs:
        if isinstance(source.val, (tuple, list)):
            sources.update(_layout(part) for part in source.val if isinstance(part, TensorMeta))
    if isinstance(node.val, TensorMeta):
        return not node.users and _layout(node.val) in sources
    taken = {user.args[1] for user in node.users if user.target is operator.getitem and user.args[0] is node}
    whole = any(user.target is not operator.getitem for user in node.users)
    parts = node.val if isinstance(node.val, (tuple, list)) else ()
    return not whole and any(
        index not in taken and isinstance(part, TensorMeta) and _layout(part) in sources
        for index, part in enumerate(parts)
    )


def _layout(meta: TensorMeta) -> tuple:
    return meta.shape, meta.stride, meta.dtype, meta.storage_offset


def _rank_varies(node: Node) -> bool:
    """Whether the number of dimensions depends on sizes; on an input's it does not, as sizes of 1 are in the key."""
    if not node.op.startswith("call_") or _called(node) not in _RANK_VARIES:
        return False
    return not (_called(node).startswith("squeeze") and node.inputs and node.inputs[0].op == "placeholder")
