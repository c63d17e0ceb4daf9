"""How the back end treats an operator, in one word (Table 6.1), said from a table of what rules there are.

This is what Section 5.4 has to know of the back end in order to divide a joint graph: which values are cheap to compute
again, and which readers can fuse with what they read. The table may be that of the registry (:mod:`.lowering.kinds`) or
one that was kept on disk (:mod:`staxlab.runtime.plan_basis`), so no rule is loaded here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..capture.graph import Node, TensorMeta
from ..operators.basis import is_random, is_view
from ..operators.structure import flatten

NATIVE_DTYPES = frozenset(
    {
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.float16, torch.bfloat16, torch.float32, torch.float64,
    }
)  # fmt: skip

#: Normalizations that reduce nothing where they use statistics they are given.
_APPLIES_STATISTICS = frozenset({"_native_batch_norm_legit_no_training"})
_TRAINING_FLAG = {"native_batch_norm": 5, "_native_batch_norm_legit": 5}


class Row(NamedTuple):
    """What there is for an overload: the ``kind`` of its rule (None: it has none), whether that makes views, what of
    its nodes it refuses, and whether the operator is PyTorch's routine by design."""

    kind: str | None
    is_view: bool = False
    refuses: Callable[[Any], str | None] | None = None
    library: bool = False


def kind_by(row_of: Callable[[torch._ops.OpOverload], Row], node: Node) -> str:
    """The kind of a node of an operator graph:

    * ``"input"``, ``"constant"``: placeholders and ``get_attr``; ``"item"``: one of several results (``getitem``)
    * ``"pointwise"``, ``"reduction"``, ``"scan"``, ``"scatter"``, ``"normalization"``, ``"factory"``, ``"joining"``,
      ``"indexing"``, ``"window"``: generated loops, into which what they read may be fused
    * ``"template"``: loops laid out by hand, whose operands may be fused into them: a small matrix product
    * ``"view"``: a change of subscript; ``"storage view"``: a view of something that has to be in memory
    * ``"random"``: draws from the generator; ``"library"``: PyTorch's own routine by design; ``"fallback"``: PyTorch's
      own for want of a rule, dtypes that loops do not know included
    """
    if node.op == "placeholder":
        return "input"
    if node.op == "get_attr":
        return "constant"
    target = node.target
    if target is operator.getitem:
        return "item"
    if not isinstance(target, torch._ops.OpOverload):
        return "fallback"
    if is_random(target):
        return "random"
    row = row_of(target)
    if row.is_view and row.kind is not None:
        return row.kind
    if is_view(target):
        return "storage view"
    if row.kind is None:
        return "library" if row.library else "fallback"
    metas = flatten((node.val, [source.val for source in node.inputs]))
    if any(isinstance(meta, TensorMeta) and meta.dtype not in NATIVE_DTYPES for meta in metas):
        return "fallback"
    if row.refuses is not None and row.refuses(node) is not None:
        return "library" if row.library else "fallback"
    name = target._opname
    flag = _TRAINING_FLAG.get(name)
    if name in _APPLIES_STATISTICS or (flag is not None and len(node.args) > flag and node.args[flag] is False):
        return "pointwise"
    return row.kind
