"""How the back end treats an operator, in one word (Table 6.1).

This is what Section 5.4 has to know of the back end in order to divide a joint graph: which values are cheap to compute
again, and which readers can fuse with what they read.
"""

from __future__ import annotations

import operator

import torch

from ...capture.graph import Node, TensorMeta
from ...operators.basis import is_random, is_view
from ...operators.structure import flatten
from .graph import NATIVE_DTYPES
from .registry import LIBRARY, RULES

#: Normalizations that reduce nothing where they use statistics they are given.
_APPLIES_STATISTICS = frozenset({"_native_batch_norm_legit_no_training"})
_TRAINING_FLAG = {"native_batch_norm": 5, "_native_batch_norm_legit": 5}


def kind_of(node: Node) -> str:
    """The kind of a node of an operator graph:

    * ``"input"``, ``"constant"``: placeholders and ``get_attr``; ``"item"``: one of several results (``getitem``)
    * ``"pointwise"``, ``"reduction"``, ``"scan"``, ``"scatter"``, ``"normalization"``, ``"factory"``, ``"joining"``,
      ``"indexing"``, ``"window"``: generated loops, into which what they read may be fused
    * ``"template"``: loops laid out by hand, whose operands may be fused into them: a small matrix product
    * ``"template"``: loops laid out by hand, whose operands may be fused into them: a small matrix product
    * ``"view"``: a change of subscript; ``"storage view"``: a view of something that has to be in memory
    * ``"random"``: draws from the generator; ``"library"``: PyTorch's own routine by design; ``"fallback"``: PyTorch's
      own for want of a rule, dtypes that loops do not know included

    >>> from staxlab.capture.graph import Graph
    >>> graph = Graph()
    >>> x = graph.placeholder("x")
    >>> kind_of(graph.call_function(torch.ops.aten.exp.default, (x,))), kind_of(x)
    ('pointwise', 'input')
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
    rule = RULES.get(target)
    if rule is not None and rule.is_view:
        return rule.kind
    if is_view(target):
        return "storage view"
    if rule is None:
        return "library" if target in LIBRARY else "fallback"
    metas = flatten((node.val, [source.val for source in node.inputs]))
    if any(isinstance(meta, TensorMeta) and meta.dtype not in NATIVE_DTYPES for meta in metas):
        return "fallback"
    if rule.refuses is not None and rule.refuses(node) is not None:
        return "library" if target in LIBRARY else "fallback"
    name = target._opname
    flag = _TRAINING_FLAG.get(name)
    if name in _APPLIES_STATISTICS or (flag is not None and len(node.args) > flag and node.args[flag] is False):
        return "pointwise"
    return rule.kind
